package wire_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/wire"
)

// A file that is followed, of either kind, with a clock of its own.
type watched struct {
	*followed
	says   func() string // of what is in force
	status func() wire.FileStatus
	text   func(says string) string
}

func watchedPolicy(t *testing.T) *watched {
	t.Helper()
	w := &watched{followed: follow(t)}
	w.text = func(says string) string {
		return "policy: 1\napproval:\n  - {name: " + says + ", when: 'true'}\n"
	}
	w.write(w.text("first"))
	file, err := wire.OpenPolicy(wire.PolicyConfig{Path: w.path, Now: func() time.Time { return w.now }, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	w.says, w.status = func() string { return strings.Join(file.Policy().Rules(), " ") }, file.Status
	return w
}

func watchedCredentials(t *testing.T) *watched {
	t.Helper()
	w := &watched{followed: follow(t)}
	w.text = func(says string) string {
		return "credentials: 1\nproviders: {example: {one: {credential: env:" + says + "}}}\n"
	}
	w.write(w.text("first"))
	file, err := wire.OpenCredentials(w.config(false))
	if err != nil {
		t.Fatal(err)
	}
	c := catalogueOver(t, file, nil, nil)
	w.says, w.status = func() string {
		a, err := c.Account("example", "one")
		if err != nil {
			t.Error(err)
		}
		return strings.TrimPrefix(a.Credential, "env:")
	}, file.Status
	return w
}

// put writes a file, in place if it is there; its time of change is behind the clock by age.
func (w *watched) put(path, text string, age time.Duration) {
	w.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, w.now.Add(-age)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watched) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// after lets time pass, a look every second, and tells what is in force at its end; what
// was before must be so until then.
func (w *watched) after(d time.Duration, before, want string) {
	w.t.Helper()
	for ; d > time.Second; d -= time.Second {
		w.now = w.now.Add(time.Second)
		if got := w.says(); got != before || w.status().Writing.IsZero() {
			w.t.Fatalf("%s before it should count: %s, %+v", d-time.Second, got, w.status())
		}
	}
	w.now = w.now.Add(d)
	if got := w.says(); got != want || w.status().Problem != "" || w.status().Writing.IsZero() != (want != before) {
		w.t.Fatalf("it says %s, want %s: %+v", got, want, w.status())
	}
}

// However another version comes about, no half of it is ever in force.
func TestFileCountsOnceItRests(t *testing.T) {
	const s = time.Second
	for how, way := range map[string]func(w *watched){
		"moved away, and another is written under the name between two looks": func(w *watched) {
			w.must(os.Rename(w.path, w.path+".gone"))
			w.put(w.path, w.text("half"), 0)
			w.after(9*s, "first", "first")
			w.put(w.path, w.text("whole"), 0)
			w.after(10*s, "first", "whole")
		},
		"removed, and another grows under the name between two looks": func(w *watched) {
			w.must(os.Remove(w.path))
			for _, text := range []string{"", w.text("half"), w.text("half") + "# more\n", w.text("whole")} {
				w.put(w.path, text, 0)
				w.after(s, "first", "first")
			}
			w.after(9*s, "first", "whole")
		},
		"gone at a look, and then another is written": func(w *watched) {
			w.must(os.Remove(w.path))
			w.now = w.now.Add(s)
			if w.says() != "first" || !strings.Contains(w.status().Problem, "no such file") {
				w.t.Errorf("%+v", w.status())
			}
			w.put(w.path, w.text("half"), 0)
			w.after(9*s, "first", "first")
			w.put(w.path, w.text("whole"), 0)
			w.after(10*s, "first", "whole")
		},
		"gone at a look, and then one of long ago is there": func(w *watched) {
			w.must(os.Remove(w.path))
			w.now = w.now.Add(s)
			w.says()
			w.put(w.path, w.text("whole"), time.Hour)
			w.after(10*s, "first", "whole")
		},
		"renamed over it, just written": func(w *watched) {
			w.put(w.path+".new", w.text("whole"), 0)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(10*s, "first", "whole")
		},
		"renamed over it, written not quite a minute ago": func(w *watched) {
			w.put(w.path+".new", w.text("whole"), 58*s)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(2*s, "first", "whole") // by then it is
		},
		"renamed over it, written long ago": func(w *watched) {
			w.put(w.path+".new", w.text("whole"), time.Hour)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(s, "first", "whole")
		},
		"renamed over one that waits": func(w *watched) {
			w.put(w.path+".new", w.text("other"), 0)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(5*s, "first", "first")
			w.put(w.path+".new", w.text("whole"), time.Hour)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(s, "first", "whole")
		},
		"renamed over it, ahead of our clock": func(w *watched) {
			w.put(w.path+".new", w.text("whole"), -time.Hour)
			w.must(os.Rename(w.path+".new", w.path))
			w.after(s, "first", "first")
			w.after(10*s, "first", "whole")
		},
		"a link that leads elsewhere": func(w *watched) {
			for _, name := range []string{"whole", "next"} {
				before := w.says()
				to := filepath.Join(w.t.TempDir(), name)
				w.put(to, w.text(name), 0)
				w.must(os.Symlink(to, w.path+".link"))
				w.must(os.Rename(w.path+".link", w.path))
				w.after(10*s, before, name)
			}
		},
		"changed in place": func(w *watched) {
			w.put(w.path, w.text("half"), time.Hour) // as it may be set to
			w.after(9*s, "first", "first")
			w.put(w.path, w.text("whole"), 0)
			w.after(10*s, "first", "whole")
		},
		"looked at by nobody for a while": func(w *watched) {
			w.must(os.Remove(w.path))
			w.put(w.path, w.text("whole"), 0)
			w.now = w.now.Add(9 * s)
			w.after(s, "first", "whole")
		},
	} {
		for kind, open := range map[string]func(*testing.T) *watched{"policy": watchedPolicy, "credentials": watchedCredentials} {
			t.Run(kind+", "+how, func(t *testing.T) {
				w := open(t)
				if w.says() != "first" {
					t.Fatal(w.says())
				}
				way(w)
				waited := strings.Contains(w.log.String(), "is being written, or new; what it said before holds")
				if !strings.Contains(w.log.String(), "was read") || waited == (how == "renamed over it, written long ago" || how == "looked at by nobody for a while") {
					t.Errorf("told: %s", &w.log)
				}
			})
		}
	}
}

// The file that was read last, put back before another counted, is no news.
func TestFileComesBack(t *testing.T) {
	for kind, open := range map[string]func(*testing.T) *watched{"policy": watchedPolicy, "credentials": watchedCredentials} {
		t.Run(kind, func(t *testing.T) {
			w := open(t)
			w.must(os.Rename(w.path, w.path+".gone"))
			w.put(w.path, w.text("half"), 0)
			w.after(5*time.Second, "first", "first")
			w.must(os.Rename(w.path+".gone", w.path))
			w.now = w.now.Add(time.Second)
			if w.says() != "first" || !w.status().Writing.IsZero() || w.status().Problem != "" || strings.Contains(w.log.String(), "was read") {
				t.Errorf("%s: %+v: %s", w.says(), w.status(), &w.log)
			}
		})
	}
}

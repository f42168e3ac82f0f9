package broker_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
)

const holdVariable = "BROKER_TEST_HOLD_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVariable); dir != "" {
		holdDirectory(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// holdDirectory is the other process of TestSecondProcessIsRefused: it holds
// the directory until its input ends or it is killed.
func holdDirectory(dir string) {
	if _, err := broker.Start(config(dir, "held")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(1)
}

func config(dir, run string) broker.Config {
	return broker.Config{Dir: dir, Run: run, Now: time.Now, Sync: broker.SyncAlways}
}

func start(t *testing.T, c broker.Config) *broker.Broker {
	t.Helper()
	b, err := broker.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Stop() }) // tests that care stop it themselves
	return b
}

func TestRunsAreKnownAndCleanStopsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(brokertest.Outlast)
		dir := filepath.Join(t.TempDir(), "new", "data")
		b := start(t, config(dir, "one"))
		if id, clean := b.LastRun(); id != "" || clean || b.Gone("one") {
			t.Fatalf("first run: last %q, clean %v, own run gone %v", id, clean, b.Gone("one"))
		}
		if b.URL() != "" {
			t.Fatalf("it listens on %s without being told to", b.URL())
		}
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := b.Stop(); err != nil {
			t.Fatalf("second stop: %v", err)
		}

		b = start(t, config(dir, "two"))
		if id, clean := b.LastRun(); id != "one" || !clean || !b.Gone("one") || b.Gone("two") || b.Gone("other") {
			t.Fatalf("second run: last %q, clean %v", id, clean)
		}
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}

		// A run that was cut off, and a line torn by a power loss after it.
		f, err := os.OpenFile(filepath.Join(dir, "runs"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("start three 2026-01-02T03:04:05Z\nstart fo")
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		b = start(t, config(dir, "five"))
		if id, clean := b.LastRun(); id != "three" || clean || !b.Gone("three") || !b.Gone("two") || b.Gone("fo") {
			t.Fatalf("after a cut: last %q, clean %v", id, clean)
		}
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := broker.Start(config(dir, "two")); err == nil || !strings.Contains(err.Error(), "used before") {
			t.Fatalf("a run id used twice: %v", err)
		}
		b = start(t, config(dir, "six"))
		if id, clean := b.LastRun(); id != "five" || !clean {
			t.Fatalf("after the torn line: last %q, clean %v", id, clean)
		}
	})
}

func TestForeignAndNewerDirectoriesAreRefusedUntouched(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       error
	}{
		"someone's files":   {"thesis.txt", "chapter one", broker.ErrForeign},
		"other marker":      {"format", "gif89a", broker.ErrForeign},
		"marker, no number": {"format", "counterfoil data directory, format x", broker.ErrForeign},
		"newer":             {"format", "counterfoil data directory, format 2\n", broker.ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := broker.Start(config(dir, "run"))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got %v, want %v naming the directory", err, c.want)
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) != 1 || left[0].Name() != c.file {
				t.Fatalf("the refused directory holds %v, %v", left, err)
			}
		})
	}
}

func TestDirectoryLeftByACrashedFirstStartIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(brokertest.Outlast)
		dir := t.TempDir()
		for _, name := range []string{"lock", "format.new"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		start(t, config(dir, "run"))
	})
}

// The credentials file may be in a new directory before the first start, and nothing else.
func TestDirectoryWithCredentialsIsNew(t *testing.T) {
	for text, ours := range map[string]bool{
		"credentials: 1\n": true,
		"\n# of ours\n---\ncredentials: 1\nproviders: {}\n": true,
		"credentials: x\n":         true, // which is told with its place
		"user: somebody\n":         false,
		"# credentials: 1\n":       false,
		"a: 1\ncredentials: 1\n":   false,
		"[default]\ncredentials: ": false,
		"":                         false,
	} {
		t.Run(text, func(t *testing.T) {
			dir := t.TempDir()
			name := filepath.Join(dir, broker.CredentialsName)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			i, err := broker.Inspect(dir)
			if ours != (err == nil) || !ours && !errors.Is(err, broker.ErrForeign) || i.Made {
				t.Fatalf("%+v, %v", i, err)
			}
			if !ours {
				if _, err := broker.Start(config(dir, "run")); !errors.Is(err, broker.ErrForeign) || !strings.Contains(err.Error(), name[len(dir)+1:]) {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := broker.Start(config(dir, "run")); !errors.Is(err, broker.ErrForeign) {
				t.Fatalf("beside another file: %v", err)
			}
			left, err := os.ReadDir(dir)
			if kept, _ := os.ReadFile(name); err != nil || len(left) != 2 || string(kept) != text {
				t.Fatalf("the refused directory holds %v, %v", left, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(brokertest.Outlast)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, broker.CredentialsName), []byte("credentials: 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, config(dir, "run"))
	})
	t.Run("a directory of that name", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, broker.CredentialsName), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := broker.Start(config(dir, "run")); !errors.Is(err, broker.ErrForeign) {
			t.Fatal(err)
		}
	})
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Env = append(os.Environ(), holdVariable+"="+dir)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}

	var locked *broker.LockedError
	_, err = broker.Start(config(dir, "second"))
	if !errors.As(err, &locked) || locked.PID != other.Process.Pid {
		t.Fatalf("got %v, want the directory in use by %d", err, other.Process.Pid)
	}
	if want := fmt.Sprintf("in use by process %d", other.Process.Pid); !strings.Contains(err.Error(), want) {
		t.Fatalf("%q does not say %q", err, want)
	}

	// Killed, not stopped: the lock ends with the process.
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed
	_ = in.Close()
	b := start(t, config(dir, "third"))
	if id, clean := b.LastRun(); id != "held" || clean || !b.Gone("held") {
		t.Fatalf("after the kill: last %q, clean %v", id, clean)
	}
}

func TestConfigProblemsAreToldTogether(t *testing.T) {
	_, err := broker.Start(broker.Config{Sync: "sometimes", Run: "a b", Listen: "0.0.0.0:4222"})
	for _, want := range []string{"no data directory", "run id", "no clock", `sync "sometimes"`, "loopback"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %s", err, want)
		}
	}
}

func TestListensOnLoopbackWhenTold(t *testing.T) {
	c := config(t.TempDir(), "run")
	c.Listen = "127.0.0.1:0"
	if url := start(t, c).URL(); !strings.HasPrefix(url, "nats://127.0.0.1:") {
		t.Fatalf("URL %q", url)
	}
}

// A data directory can be looked at from outside, whoever holds it, and is left
// as it is.
func TestInspect(t *testing.T) {
	dir := t.TempDir()
	look := func(what string, want broker.Inspection) {
		t.Helper()
		got, err := broker.Inspect(dir)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", what, got, err, want)
		}
	}
	look("empty", broker.Inspection{})
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a look left %v, %v", entries, err)
	}
	b := start(t, config(dir, "one"))
	look("in use", broker.Inspection{Made: true, Locked: true, PID: os.Getpid(), Run: "one"})
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	look("after an orderly stop", broker.Inspection{Made: true, Run: "one", Clean: true})
	if err := os.WriteFile(filepath.Join(dir, "runs"), []byte("start one 2026-12-01T12:00:00Z\nstop one 2026-12-01T12:00:01Z\nstart two 2026-12-01T12:00:02Z\nsta"), 0o600); err != nil {
		t.Fatal(err)
	}
	look("after a crash", broker.Inspection{Made: true, Run: "two"})
	if err := os.WriteFile(filepath.Join(dir, "format"), []byte("counterfoil data directory, format 999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Inspect(dir); !errors.Is(err, broker.ErrNewer) {
		t.Errorf("a newer one: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "format")); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Inspect(dir); !errors.Is(err, broker.ErrForeign) {
		t.Errorf("a foreign one: %v", err)
	}
}

// TestFailing: what makes a server unable to write is told until it is started
// again. A disk that is really full is in tests/crash.
func TestFailing(t *testing.T) {
	for _, one := range []struct {
		name string
		does func(b *broker.Broker) error
		want string // "": nothing is told
	}{
		{"nothing", func(*broker.Broker) error { return nil }, ""},
		{"its store is off", (*broker.Broker).TurnOff, "turned its store off"},
		{"a stream could not write by itself", func(b *broker.Broker) error {
			b.Say("Filestore [%s] Critical write error: %v", "WAKEUPS", "no space left on device")
			b.Say("Filestore [%s] Critical write error: %v", "HISTORY", "no space left on device")
			return nil
		}, "[WAKEUPS] Critical write error: no space left on device"},
		{"a batch could not be staged", func(b *broker.Broker) error {
			b.Say("Filestore [%s] Critical write error: %v", "S1xY7z", "no space left on device")
			return nil
		}, ""},
		{"another error", func(b *broker.Broker) error { b.Say("slow consumer"); return nil }, ""},
	} {
		t.Run(one.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(brokertest.Outlast)
				dir := filepath.Join(t.TempDir(), "data")
				b := start(t, config(dir, "one"))
				for _, stream := range []string{"WAKEUPS", "HISTORY"} {
					if err := os.MkdirAll(filepath.Join(dir, "jetstream", "jetstream", "$G", "streams", stream), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.Failing(); err != nil {
					t.Fatalf("after its start: %v", err)
				}
				if err := one.does(b); err != nil {
					t.Fatal(err)
				}
				err := b.Failing()
				if (err == nil) != (one.want == "") || err != nil && !strings.Contains(err.Error(), one.want) {
					t.Errorf("failing: %v, want %q", err, one.want)
				}
				if err := b.Stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

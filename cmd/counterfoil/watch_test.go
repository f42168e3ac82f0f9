package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/counterfoil/counterfoil/client"
)

var watched = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func shownOperations() []client.Operation {
	at := func(d time.Duration) *time.Time { t := watched.Add(d); return &t }
	op := func(n int, state string, change func(*client.Operation)) client.Operation {
		o := client.Operation{
			ID: fmt.Sprintf("op_%032d", n), Provider: "example", Account: "default", State: state, Started: watched.Add(-time.Duration(n) * 47 * time.Minute),
			Since: watched.Add(-time.Minute), Attempts: client.Attempts{Permitted: 1}, NextLook: at(time.Duration(n) * time.Second),
		}
		change(&o)
		return o
	}
	return []client.Operation{
		op(1, "observing", func(o *client.Operation) {
			o.Job, o.Because = &client.Job{ID: "j-1", RemoteState: "processing"}, "the job goes on"
		}),
		op(2, "create_pending", func(o *client.Operation) {
			o.Attempts.Permitted, o.NextLook, o.Because = 0, at(90*time.Minute), "deferred: credential_missing"
		}),
		op(3, "observing", func(o *client.Operation) {
			// A provider that would like to have the terminal.
			o.Job, o.Because = &client.Job{ID: "j-3", RemoteState: "\x1b]0;owned\a\x1b[2Jrun\r\nning\u202e"}, "the job goes on"
			o.NextLook = at(-time.Second)
		}),
		op(40, "quarantined", func(o *client.Operation) {
			o.Quarantine, o.Reason, o.Done, o.NextLook = "unknown", "create_outcome_unknown", true, nil
			o.Attempts.Unresolved, o.Provider, o.Account = 1, "replicate", "research-2"
			o.Job = &client.Job{ID: "j-40", RemoteState: "処理中の仕事"}
		}),
	}
}

// Frames are the same for the same data and view, never wider or higher than it,
// and hold no control character that is not ours.
func TestFrames(t *testing.T) {
	many := table{at: watched, more: true}
	for range 20 {
		many.ops = append(many.ops, shownOperations()...)
	}
	f := follow{}
	for i, op := range append(shownOperations()[2:], shownOperations()[2]) {
		f.add(op, watched.Add(time.Duration(i)*time.Second))
	}
	var b strings.Builder
	for _, c := range []struct {
		name  string
		frame func(v view) []string
		views []view
	}{
		{"table", table{ops: shownOperations(), at: watched}.frame, []view{unbounded, {160, 50, false}, {120, 24, false}, {80, 24, false}, {40, 24, false}, {20, 10, false}, {80, 24, true}}},
		{"table of nothing", table{at: watched}.frame, []view{{80, 24, false}}},
		{"table that is not refreshed", table{ops: shownOperations(), at: watched, trouble: "Get \"http://x\": connection \x1b[31mrefused"}.frame, []view{{80, 24, false}}},
		{"more than fits", many.frame, []view{{80, 8, false}, {80, 2, false}}},
		{"one operation", func(v view) []string { return f.frame(v, watched.Add(time.Minute)) }, []view{{100, 24, false}, {40, 12, false}, {40, 5, false}, {100, 24, true}}},
	} {
		for _, v := range c.views {
			fmt.Fprintf(&b, "== %s, %d x %d, colour %v\n", c.name, v.width, v.height, v.colour)
			for _, line := range c.frame(v) {
				fmt.Fprintln(&b, strings.ReplaceAll(line, "\x1b", "␛"))
			}
		}
		for width := 1; width < 200; width++ {
			v := view{width: width, height: 1 + width%30, colour: width%2 == 0}
			lines := c.frame(v)
			if len(lines) > v.height {
				t.Errorf("%s, %d x %d: %d lines", c.name, v.width, v.height, len(lines))
			}
			for _, line := range lines {
				for _, ours := range []string{"\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"} {
					line = strings.ReplaceAll(line, ours, "")
				}
				if line != printable(line) || cellsOf(line) > width {
					t.Errorf("%s, %d x %d: %q", c.name, v.width, v.height, line)
				}
			}
		}
	}
	path := filepath.Join("testdata", "frames.txt")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s is otherwise; -update rewrites it. Got:\n%s", path, b.String())
	}
}

// hostile is a service whose words would like to have the terminal.
func hostile(t *testing.T, ended *atomic.Bool) *httptest.Server {
	items := []map[string]any{}
	for _, op := range shownOperations() {
		text, err := json.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		item := map[string]any{}
		if err := json.Unmarshal(text, &item); err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	items[2]["version"] = 3
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tell := func(name string, op map[string]any) {
			text, _ := json.Marshal(map[string]any{"data": op})
			fmt.Fprintf(w, "id: %v\nevent: dev.counterfoil.operation.%s.v1\ndata: %s\n\n", op["version"], name, text)
			_ = http.NewResponseController(w).Flush()
		}
		tell("snapshot", items[2])
		for !ended.Load() && r.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		tell("ended", map[string]any{"id": items[2]["id"], "state": "succeeded", "done": true, "terminal": true, "version": 9})
	}))
	t.Cleanup(s.Close)
	return s
}

// terminal runs the real program on a real terminal.
type terminal struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	seen bytes.Buffer
}

func onTerminal(t *testing.T, server string, size pty.Winsize, args ...string) *terminal {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "counterfoil") // the name makes the test binary the program
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "COUNTERFOIL_SERVER="+server, "COUNTERFOIL_KEY=cf_x", "TERM=xterm", "NO_COLOR=")
	tty, err := pty.StartWithSize(cmd, &size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return &terminal{t: t, tty: tty, cmd: cmd}
}

// until reads what the program writes until it holds the text behind what was
// read before.
func (p *terminal) until(text string) string {
	p.t.Helper()
	p.seen.Reset()
	_ = p.tty.SetReadDeadline(time.Now().Add(30 * time.Second))
	part := make([]byte, 4096)
	for !strings.Contains(p.seen.String(), text) {
		n, err := p.tty.Read(part)
		p.seen.Write(part[:n])
		if err != nil {
			p.t.Fatalf("%q does not come: %v\n%q", text, err, p.seen.String())
		}
	}
	return p.seen.String()
}

func (p *terminal) clean(text string) {
	p.t.Helper()
	for _, bad := range []string{"\x1b]0;", "\x1b[2J", "\a", "\u202e"} {
		if strings.Contains(text, bad) {
			p.t.Errorf("the provider's %q reached the terminal: %q", bad, text)
		}
	}
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// The table on a real terminal: it follows the size, and an interrupt gives the
// terminal back.
func TestTableOnATerminal(t *testing.T) {
	s := hostile(t, new(atomic.Bool))
	p := onTerminal(t, s.URL, pty.Winsize{Rows: 24, Cols: 160}, "watch", "--every", "500ms")
	first := p.until("BECAUSE")
	if !strings.Contains(first, enterScreen) || !strings.Contains(first, "4 open: 2 observing") {
		t.Errorf("begins with %q", first)
	}
	p.clean(first + p.until("\x1b[H")) // drawn again
	if err := pty.Setsize(p.tty, &pty.Winsize{Rows: 5, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	p.clean(p.until("… and 2 more"))
	if _, err := p.tty.Write([]byte{3}); err != nil { // ctrl-C, as typed
		t.Fatal(err)
	}
	p.until(leaveScreen)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("an interrupted table ends with %v", err)
	}
}

// One operation on a real terminal: shown in place, and its lines afterwards.
func TestOneOperationOnATerminal(t *testing.T) {
	var ended atomic.Bool
	s := hostile(t, &ended)
	p := onTerminal(t, s.URL, pty.Winsize{Rows: 24, Cols: 100}, "watch", "op_00000000000000000000000000000003")
	first := p.until("next look")
	if !strings.Contains(first, enterScreen) {
		t.Errorf("begins with %q", first)
	}
	p.clean(first)
	ended.Store(true)
	last := p.until("succeeded\r\n")
	p.clean(last)
	if !strings.Contains(last, leaveScreen) {
		last = p.seen.String()
	}
	if i := strings.Index(last, leaveScreen); i < 0 || !strings.Contains(last[i:], "observing") {
		t.Errorf("the lines do not stand on the terminal at the end: %q", last)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the exit code is not the outcome: %v", err)
	}

	// An interrupt before the end gives the terminal back too.
	ended.Store(false)
	p = onTerminal(t, s.URL, pty.Winsize{Rows: 24, Cols: 100}, "watch", "op_00000000000000000000000000000003")
	p.until("next look")
	if _, err := p.tty.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	p.until(leaveScreen)
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != exitNotYet {
		t.Errorf("exit code %d, want %d: %v", p.cmd.ProcessState.ExitCode(), exitNotYet, err)
	}
}

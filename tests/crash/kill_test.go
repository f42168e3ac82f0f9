package crash_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// patience is how long a test waits for a real process before it fails.
const patience = 60 * time.Second

// program is the real binary, built once for all tests that start it.
type program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

var built program

func (p *program) build(t *testing.T) string {
	t.Helper()
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", "counterfoil-crash-"); p.err != nil { //nolint:usetesting // it outlives the test that needs it first
			return
		}
		p.path = filepath.Join(p.dir, "counterfoil")
		out, err := exec.Command("go", "build", "-o", p.path, "github.com/counterfoil/counterfoil/cmd/counterfoil").CombinedOutput()
		if err != nil {
			p.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

func (p *program) remove() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// site is a data directory, a simulated provider on a real socket, and what is
// needed to start the program on them.
type site struct {
	t    *testing.T
	dir  string
	sim  *simulator.Simulator
	args []string
	key  string // bearer key, as the first start printed it
}

func newSite(t *testing.T, o simulator.Options, rules ...simulator.Rule) *site {
	t.Helper()
	s := &site{t: t, dir: filepath.Join(t.TempDir(), "data"), sim: simulator.New(simulator.Config{Now: time.Now, Seed: 1})}
	t.Cleanup(s.sim.Close)
	o.Auth = simulator.Auth{Bearer: harness.Token}
	s.sim.Mount("/example", simulator.Example, rules...).Configure(o)
	url, err := s.sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.args = []string{
		"serve", "--data", s.dir, "--listen", "127.0.0.1:0", "--admin-listen", "", "--disk-reserve", "0", "--allow-http", "--contracts", quick(t),
		"--base-url", "example=" + url + "/example", "--credential", "example=env:CRASH_TOKEN", "--log-level", "warn",
	}
	return s
}

// put has the program keep its data somewhere else.
func (s *site) put(dir string) {
	s.dir = dir
	s.args = append(s.args, "--data", dir) // the last one counts
}

// quick is a directory with the example contract and shorter waits.
func quick(t *testing.T) string {
	t.Helper()
	text, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	changed := string(text)
	for _, change := range [][2]string{
		{"  settle: 30s\n", "  settle: 1s\n"},
		{"{default: 2s, min: 10ms, max: 1h}", "{default: 500ms, min: 10ms, max: 1h}"},
		{"  backoff: 1s\n", "  backoff: 250ms\n"},
		{"  request_timeout: 30s\n", "  request_timeout: 10s\n"},
	} {
		if !strings.Contains(changed, change[0]) {
			t.Fatalf("the example contract has no %q any more", change[0])
		}
		changed = strings.ReplaceAll(changed, change[0], change[1])
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "example.yaml"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// process is one run of the program.
type process struct {
	site   *site
	cmd    *exec.Cmd
	client *client.Client
	lines  []string      // of standard output up to ready
	ready  chan string   // gets the address, closed with the end
	ended  chan struct{} // closed when the process is gone and its output read
	err    error         // of Wait; read after ended
	errors *strings.Builder
}

// start runs the program until it says that it is ready, or has ended.
func (s *site) start() *process {
	s.t.Helper()
	p := s.launch()
	p.await()
	return p
}

// launch runs the program.
func (s *site) launch() *process {
	s.t.Helper()
	p := &process{site: s, ready: make(chan string, 1), ended: make(chan struct{}), errors: &strings.Builder{}}
	p.cmd = exec.Command(built.build(s.t), s.args...)
	p.cmd.Env = append(os.Environ(), "CRASH_TOKEN="+harness.Token)
	p.cmd.Stderr = p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		defer close(p.ready)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			p.lines = append(p.lines, scanner.Text())
			if address, ok := strings.CutPrefix(scanner.Text(), "ready on "); ok {
				p.ready <- address
				break
			}
		}
		for scanner.Scan() { // nothing is expected after it; a full pipe would stop the process
			continue
		}
		p.err = p.cmd.Wait()
	}()
	s.t.Cleanup(func() { p.end(syscall.SIGKILL) })
	return p
}

// await waits until the process says that it is ready, or has ended.
func (p *process) await() {
	s := p.site
	s.t.Helper()
	select {
	case address, ok := <-p.ready:
		if !ok {
			<-p.ended
			return
		}
		for _, line := range p.lines {
			if m := regexp.MustCompile(`printed this once: (cf_\S+)$`).FindStringSubmatch(line); m != nil {
				s.key = m[1]
			}
		}
		p.client = s.caller(address)
	case <-time.After(patience):
		s.t.Fatalf("not ready after %s: %v\n%s", patience, p.lines, p.errors)
	}
}

// caller is a client of whoever is at the address.
func (s *site) caller(address string) *client.Client {
	s.t.Helper()
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(address, s.key, &http.Client{Transport: transport})
	if err != nil {
		s.t.Fatal(err)
	}
	return c.Retrying(client.Retry{Tries: 1})
}

// address is where the process answers, once it has said that it is ready.
func (p *process) address() string { return strings.TrimPrefix(p.lines[len(p.lines)-1], "ready on ") }

// end sends the signal to this process alone and waits until it is gone.
func (p *process) end(signal syscall.Signal) {
	p.site.t.Helper()
	select {
	case <-p.ended:
		return
	default:
	}
	if err := syscall.Kill(p.cmd.Process.Pid, signal); err != nil {
		p.site.t.Errorf("signal %v: %v", signal, err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.site.t.Errorf("the process ignores signal %v", signal)
	}
}

// code is the exit code of a process that ended by itself.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

func (s *site) context() context.Context {
	ctx, stop := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(stop)
	return ctx
}

// killable is what a process that will be killed is asked for.
func killable(key string) client.Submission {
	s := submission("example", key)
	if key == askKey {
		s.Deadlines = &client.Deadlines{Create: "5s"} // until then it waits for what cannot come
	}
	return s
}

const askKey = "asks"

func (p *process) submit(key string) client.Operation {
	p.site.t.Helper()
	op, _, err := p.client.Submit(p.site.context(), key, killable(key))
	if err != nil {
		p.site.t.Fatal(err)
	}
	return op
}

// until follows the operation until ok says so, by the server's long polls.
func (p *process) until(id string, ok func(client.Operation) bool) client.Operation {
	p.site.t.Helper()
	var last client.Operation
	for op, err := range p.client.Retrying(client.Retry{}).Watch(p.site.context(), id) {
		if err != nil {
			p.site.t.Fatalf("%s is %s: %v\n%s", id, last.State, err, p.errors)
		}
		last = op
		if ok(op) {
			return op
		}
	}
	p.site.t.Fatalf("%s ended %s (%s)", id, last.State, last.Reason)
	return last
}

func in(state string) func(client.Operation) bool {
	return func(op client.Operation) bool { return op.State == state }
}

// TestKill kills the real program with SIGKILL at moments that a test can wait
// for, and starts it again on the same directory.
func TestKill(t *testing.T) {
	after := func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} }
	plain := simulator.Options{Plan: simulator.Steps(300*time.Millisecond, "queued", "running", "succeeded")}
	endless := simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")}
	for _, one := range []struct {
		name    string
		options simulator.Options
		hold    simulator.Call // its first call is held between effect and answer; "" for none
		before  func(t *testing.T, p *process, id string, gate *simulator.Gate)
		creates int // on the wire in all
		state   string
		asks    bool // it stops and is told the job
	}{
		{
			name: "attempt stored, create under way", options: plain, hold: simulator.Create, creates: 2, state: "succeeded",
			before: func(t *testing.T, _ *process, _ string, gate *simulator.Gate) {
				if !gate.WaitArrived(1, t.Context().Done()) {
					t.Fatal("no create arrived")
				}
			},
		},
		{
			name: "job id stored, before the first poll", options: plain, creates: 1, state: "succeeded",
			before: func(t *testing.T, p *process, id string, _ *simulator.Gate) {
				p.until(id, func(op client.Operation) bool { return op.Job != nil && op.Job.ID != "" })
			},
		},
		{
			// Once a cancel is wished nothing is sent a second time, so nobody but
			// the provider's people can tell: the operation asks.
			name: "answer on its way while a cancel lands", options: endless, hold: simulator.Create, creates: 1, state: "cancelled", asks: true,
			before: func(t *testing.T, p *process, id string, gate *simulator.Gate) {
				if !gate.WaitArrived(1, t.Context().Done()) {
					t.Fatal("no create arrived")
				}
				if _, err := p.client.Cancel(p.site.context(), id, "test"); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "status read under way while a cancel lands", options: endless, hold: simulator.Status, creates: 1, state: "cancelled",
			before: func(t *testing.T, p *process, id string, gate *simulator.Gate) {
				if !gate.WaitArrived(1, t.Context().Done()) {
					t.Fatal("no status read arrived")
				}
				if _, err := p.client.Cancel(p.site.context(), id, "test"); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "cancel under way", options: endless, hold: simulator.Cancel, creates: 1, state: "cancelled",
			before: func(t *testing.T, p *process, id string, gate *simulator.Gate) {
				p.until(id, in("observing"))
				if _, err := p.client.Cancel(p.site.context(), id, "test"); err != nil {
					t.Fatal(err)
				}
				if !gate.WaitArrived(1, t.Context().Done()) {
					t.Fatal("no cancel arrived")
				}
			},
		},
		{
			name: "result being read", options: plain, hold: simulator.Result, creates: 1, state: "succeeded",
			before: func(t *testing.T, _ *process, _ string, gate *simulator.Gate) {
				if !gate.WaitArrived(1, t.Context().Done()) {
					t.Fatal("no result was asked for")
				}
			},
		},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			gate := simulator.NewGate()
			defer gate.Release()
			var rules []simulator.Rule
			if one.hold != "" {
				rules = append(rules, simulator.On(one.hold, simulator.Nth(1), after(gate)))
			}
			s := newSite(t, one.options, rules...)
			p := s.start()
			key := "killed"
			if one.asks {
				key = askKey
			}
			op := p.submit(key)
			one.before(t, p, op.ID, gate)
			p.end(syscall.SIGKILL)
			gate.Release()
			if p = s.start(); p.client == nil {
				t.Fatalf("it does not start again:\n%s", p.errors)
			}
			if one.asks {
				op = p.until(op.ID, in("quarantined"))
				decision := client.Decision{Kind: "adopt", JobID: s.sim.Jobs()[0].ID, Why: "test"}
				if _, err := p.client.Decide(s.context(), op.ID, op.Version, "adopt", decision); err != nil {
					t.Fatal(err)
				}
			}
			op = p.until(op.ID, in(one.state))
			if n := len(s.sim.Jobs()); n != 1 || s.sim.DuplicateCount() != 0 {
				t.Errorf("%d jobs, want 1", n)
			}
			if n := s.sim.Count(simulator.Filter{Call: simulator.Create}); n > one.creates {
				t.Errorf("%d creates on the wire, want at most %d", n, one.creates)
			}
			if n := s.sim.MaxAtOnceAny(); n > 1 {
				t.Errorf("%d calls with side effects at once", n)
			}
			if again, replayed, err := p.client.Submit(s.context(), key, killable(key)); err != nil || !replayed || again.ID != op.ID {
				t.Errorf("the same key gives %s, replayed %v, %v", again.ID, replayed, err)
			}
			p.end(syscall.SIGTERM)
			if p.err != nil {
				t.Errorf("SIGTERM: %v\n%s", p.err, p.errors)
			}
		})
	}
}

// TestOrderlyStop is the counterpart: SIGTERM is clean, the key is printed at
// the first start alone, and an operation goes on at the next.
func TestOrderlyStop(t *testing.T) {
	s := newSite(t, simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")})
	p := s.start()
	if s.key == "" {
		t.Fatalf("no key was printed: %v", p.lines)
	}
	op := p.submit("stopped")
	p.until(op.ID, in("observing"))
	p.end(syscall.SIGTERM)
	if p.err != nil {
		t.Fatalf("SIGTERM: %v\n%s", p.err, p.errors)
	}
	p = s.start()
	if p.client == nil || len(p.lines) != 1 {
		t.Fatalf("the second start says %q\n%s", p.lines, p.errors)
	}
	for _, where := range []string{p.errors.String(), string(read(t, filepath.Join(s.dir, "keys.jsonl")))} {
		if strings.Contains(where, s.key) {
			t.Error("the key is kept where it can be read")
		}
	}
	if _, err := p.client.Cancel(s.context(), op.ID, "end"); err != nil {
		t.Fatal(err)
	}
	p.until(op.ID, in("cancelled"))
}

// TestDataDirectory starts the program on directories it must not touch, and on
// those that a first start left when it was killed.
func TestDataDirectory(t *testing.T) {
	t.Run("two processes on one data directory", func(t *testing.T) {
		s := newSite(t, simulator.Options{})
		first := s.start()
		second := s.start()
		want := fmt.Sprintf("is in use by process %d", first.cmd.Process.Pid)
		if second.client != nil || second.code() != 1 || !strings.Contains(second.errors.String(), want) || !strings.Contains(second.errors.String(), "hint: ") {
			t.Errorf("exit %d, want 1, and %q with a hint:\n%s", second.code(), want, second.errors)
		}
		// The first is none the worse for it.
		if op := first.submit("still"); op.ID == "" {
			t.Error("no operation")
		}
	})
	for _, one := range []struct {
		name  string
		files map[string]string
		want  string // of the error; "" if it starts
	}{
		{"not ours", map[string]string{"letter.txt": "dear reader"}, "not a counterfoil data directory"},
		{"something else's marker", map[string]string{"format": "tar archive"}, "not a counterfoil data directory"},
		{"newer than the program", map[string]string{"format": "counterfoil data directory, format 999\n"}, "newer than this program"},
		{"first start killed after the lock", map[string]string{"lock": "1\n"}, ""},
		{"first start killed in the marker", map[string]string{"lock": "1\n", "format.new": "counterf"}, ""},
		{"first start killed in the identity", map[string]string{"lock": "1\n", "format": "counterfoil data directory, format 1\n", "identity.json.new": "{"}, ""},
		{"identity broken", map[string]string{"format": "counterfoil data directory, format 1\n", "identity.json": "{"}, "restore it from a backup"},
	} {
		t.Run(one.name, func(t *testing.T) {
			s := newSite(t, simulator.Options{})
			if err := os.Mkdir(s.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range one.files {
				if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := s.start()
			if one.want == "" {
				if p.client == nil {
					t.Errorf("it does not start:\n%s", p.errors)
				}
				return
			}
			if p.client != nil || p.code() != 1 || !strings.Contains(p.errors.String(), one.want) {
				t.Errorf("exit %d, want 1 and %q:\n%s", p.code(), one.want, p.errors)
			}
			for name, text := range one.files {
				if string(read(t, filepath.Join(s.dir, name))) != text {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return text
}

// Package fleet runs an installation as it is run on a cluster: a NATS server
// and each role in processes of their own, with TLS and nkeys, over sockets, and
// the simulator as every provider. Time is the machine's, so cases are few and
// bounded.
//
// Processes are suspended, killed and stopped by signals; only those started
// here. Callers and providers come in through [Doors], which leads to whichever
// instance takes them, as a load balancer does.
package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/page"
)

// Patience is how long anything that must happen may take.
const Patience = 60 * time.Second

// Token is the credential the simulated providers ask for, HookSecret what they
// sign webhooks with.
const (
	Token      = "fleet-provider-token"
	HookSecret = "fleet-hook-secret"
)

const module = "github.com/counterfoil/counterfoil/"

// Programs are the real binaries, built once for all tests of a package.
type Programs struct {
	once sync.Once
	dir  string
	err  error
}

func (p *Programs) path(t testing.TB, name string) string {
	t.Helper()
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", "counterfoil-fleet-"); p.err != nil { //nolint:usetesting // it outlives the test that needs it first
			return
		}
		args := []string{"build", "-o", p.dir + "/", "github.com/nats-io/nats-server/v2"}
		for _, name := range []string{"counterfoil", "ingest", "projector", "poller", "webhooks"} {
			args = append(args, module+"cmd/"+name)
		}
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			p.err = fmt.Errorf("build the programs: %w\n%s", err, out)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return filepath.Join(p.dir, name)
}

// Remove takes the binaries away, at the end of a package's tests.
func (p *Programs) Remove() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// Options of a Fleet.
type Options struct {
	// Waits are replacements in the text of the example contract, in pairs.
	Waits []string
	// Plan and Rules are the simulated provider's.
	Plan  simulator.Plan
	Rules []simulator.Rule
}

// Fleet is a server, a provider, and what is needed to start roles on them.
type Fleet struct {
	T       testing.TB
	Sim     *simulator.Simulator
	Example *simulator.Mount
	// Client calls whichever ingest takes it.
	Client *client.Client
	Server *Process

	programs *Programs
	dir      string
	files    access
	provider string
	ingest   *Doors
	hooks    *Doors
}

// New starts a server, provisions it and makes an identity and a key. Roles are
// started by Start.
func New(t testing.TB, programs *Programs, o Options) *Fleet {
	t.Helper()
	f := &Fleet{T: t, programs: programs, dir: t.TempDir(), ingest: &Doors{}, hooks: &Doors{}}
	f.files = makeAccess(t, f.dir)
	hooks := &http.Client{Transport: f.hooks}
	f.Sim = simulator.New(simulator.Config{Now: time.Now, Seed: 1, Webhooks: hooks, WebhookSecret: []byte(HookSecret)})
	t.Cleanup(func() {
		f.Sim.Close()
		f.hooks.close()
		f.ingest.close()
	})
	f.Example = f.Sim.Mount("/example", simulator.Example, o.Rules...)
	f.Example.Configure(simulator.Options{Auth: simulator.Auth{Bearer: Token}, Plan: o.Plan})
	url, err := f.Sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.provider = url
	f.contract(o.Waits)
	f.StartServer()
	f.run(f.Provision("admin")...)
	out := f.run("key", "add", "--keys", f.path("keys.jsonl"), "--principal", "tester", "--operator", "--output", "json")
	var made struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(out, &made); err != nil {
		t.Fatal(err)
	}
	if f.Client, err = client.New("http://ingest.test", made.Key, &http.Client{Transport: f.ingest}); err != nil {
		t.Fatal(err)
	}
	f.Client = f.Client.Retrying(client.Retry{Tries: 1}) // tests see each answer
	return f
}

func (f *Fleet) path(name string) string { return filepath.Join(f.dir, name) }

// contract writes the example contract with other waits.
func (f *Fleet) contract(waits []string) {
	text, err := contracts.FS.ReadFile("example.yaml")
	if err == nil {
		err = os.MkdirAll(f.path("contracts"), 0o700)
	}
	if err != nil {
		f.T.Fatal(err)
	}
	for i := 0; i < len(waits); i += 2 {
		if !bytes.Contains(text, []byte(waits[i])) {
			f.T.Fatalf("the example contract has no %q any more", waits[i])
		}
		text = bytes.ReplaceAll(text, []byte(waits[i]), []byte(waits[i+1]))
	}
	if err := os.WriteFile(f.path("contracts/example.yaml"), text, 0o600); err != nil {
		f.T.Fatal(err)
	}
}

// store are the flags for the server, as that user.
func (f *Fleet) store(user string) []string {
	return []string{
		"--nats", f.files.url, "--nats-ca", f.path("ca.pem"), "--nats-creds", f.path(user + ".nk"),
		"--nats-cert", f.path("client.pem"), "--nats-key", f.path("client.key"),
	}
}

// Provision is the command that provisions the server, as that user.
func (f *Fleet) Provision(user string) []string {
	return append(append([]string{"provision"}, f.store(user)...), "--replicas", "1", "--identity", f.path("identity.json"))
}

// run runs a command of counterfoil to its end and gives its standard output.
func (f *Fleet) run(args ...string) []byte {
	f.T.Helper()
	out, complaint, code := f.Run(args...)
	if code != 0 {
		f.T.Fatalf("counterfoil %s: exit %d\n%s", args[0], code, complaint)
	}
	return out
}

// Run runs a command of counterfoil to its end.
func (f *Fleet) Run(args ...string) (stdout []byte, stderr string, code int) {
	f.T.Helper()
	ctx, stop := context.WithTimeout(context.Background(), Patience)
	defer stop()
	cmd := exec.CommandContext(ctx, f.programs.path(f.T, "counterfoil"), args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		f.T.Fatal(err)
	}
	return out, complaint.String(), cmd.ProcessState.ExitCode()
}

// StartServer starts the NATS server on its directory, as after it was killed.
func (f *Fleet) StartServer() {
	f.T.Helper()
	f.Server = f.begin("nats-server", "", "-c", f.path("nats.conf"))
	for end := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", f.files.address)
		if err == nil {
			_ = conn.Close() // it was only tried
			return
		}
		if f.Server.gone() || time.Now().After(end) {
			f.T.Fatalf("the NATS server did not start: %v\n%s", err, f.Server.Log())
		}
	}
}

// Administer opens the server as those who provision do, by the store's own tools.
func (f *Fleet) Administer() jetstream.JetStream {
	f.T.Helper()
	seed, err := nats.NkeyOptionFromSeed(f.path("admin.nk"))
	if err != nil {
		f.T.Fatal(err)
	}
	conn, err := nats.Connect(f.files.url, seed, nats.RootCAs(f.path("ca.pem")), nats.ClientCert(f.path("client.pem"), f.path("client.key")))
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		f.T.Fatal(err)
	}
	return js
}

// Refused starts a role that must not start, and gives what it says.
func (f *Fleet) Refused(role string) string {
	f.T.Helper()
	p := f.begin(role, "ready", f.Flags(role, "role")...)
	select {
	case <-p.ended:
	case <-p.ready:
		f.T.Errorf("%s is ready", role)
		p.Kill()
	case <-time.After(Patience):
		f.T.Errorf("%s neither starts nor ends", role)
		p.Kill()
	}
	if code := p.cmd.ProcessState.ExitCode(); code == 0 {
		f.T.Errorf("%s ends with 0", role)
	}
	return p.Log()
}

// Flags are those of a role, to be started as user.
func (f *Fleet) Flags(role, user string) []string {
	args := append(f.store(user), "--clock-difference", "1s", "--admin-listen", "127.0.0.1:0")
	if role == "projector" {
		return args
	}
	args = append(args, "--identity", f.path("identity.json"), "--contracts", f.path("contracts"), "--allow-http",
		"--base-url", "example="+f.provider+"/example", "--credential", "example=env:FLEET_TOKEN",
		"--hook-secret", "example=env:FLEET_HOOK", "--public-url", "http://hooks.test")
	if role == "ingest" {
		args = append(args, "--keys", f.path("keys.jsonl"))
	}
	if role != "poller" {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	return args
}

// Start starts one instance of a role and waits until it is ready.
func (f *Fleet) Start(role string, flags ...string) *Process {
	f.T.Helper()
	p := f.begin(role, "ready", append(f.Flags(role, "role"), flags...)...)
	select {
	case line := <-p.ready:
		p.url = strings.TrimPrefix(line, "ready on ")
	case <-p.ended:
	case <-time.After(Patience):
	}
	if p.gone() || p.url == "" {
		f.T.Fatalf("%s did not become ready\n%s", role, p.Log())
	}
	switch role {
	case "ingest":
		f.ingest.add(p.url)
	case "webhooks":
		f.hooks.add(p.url)
	}
	return p
}

// Process is one run of a program.
type Process struct {
	f     *Fleet
	role  string
	cmd   *exec.Cmd
	url   string
	log   *page.Page
	ready chan string   // the line that says so
	ended chan struct{} // closed when it is gone
}

// begin starts a program; a line of its standard output that begins with mark
// says that it is ready.
func (f *Fleet) begin(program, mark string, args ...string) *Process {
	f.T.Helper()
	p := &Process{f: f, role: program, log: &page.Page{}, ready: make(chan string, 1), ended: make(chan struct{})}
	p.cmd = exec.Command(f.programs.path(f.T, program), args...)
	p.cmd.Env = append(os.Environ(), "FLEET_TOKEN="+Token, "FLEET_HOOK="+HookSecret)
	p.cmd.Stderr = p.log
	if mark != "" {
		p.cmd.Stdout = &mouth{mark: mark, said: p.ready, log: p.log}
	}
	if err := p.cmd.Start(); err != nil {
		f.T.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the state says how it ended
	}()
	f.T.Cleanup(func() {
		if f.T.Failed() {
			f.T.Logf("log of %s %d:\n%s", p.role, p.cmd.Process.Pid, tail(p.Log()))
		}
		p.Signal(syscall.SIGKILL)
		<-p.ended
	})
	return p
}

// tail is the end of a log.
func tail(s string) string { return s[max(0, len(s)-4000):] }

func (p *Process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Log is what the process has written so far.
func (p *Process) Log() string { return p.log.String() }

// Signal sends it to this process alone, if it is there.
func (p *Process) Signal(s syscall.Signal) {
	if p.gone() {
		return
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.f.T.Errorf("signal %v to %s: %v", s, p.role, err)
	}
}

// Kill ends it as kill -9 does.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Stop asks it to stop, and gives its exit code and how long it took.
func (p *Process) Stop() (code int, took time.Duration) {
	p.f.T.Helper()
	began := time.Now()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.f.T.Errorf("%s does not stop", p.role)
		p.Kill()
	}
	return p.cmd.ProcessState.ExitCode(), time.Since(began)
}

var adminLine = regexp.MustCompile(`"msg":"metrics and health","address":"([^"]+)"`)

// Admin reads a page of the process's metrics and health; "" if it does not
// answer.
func (p *Process) Admin(path string) string {
	m := adminLine.FindStringSubmatch(p.Log())
	if m == nil || p.gone() {
		return ""
	}
	c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := c.Get("http://" + m[1] + path)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// Series is the value of one series of the process's metrics, 0 if it does not
// say.
func (p *Process) Series(name string) float64 {
	for line := range strings.Lines(p.Admin("/metrics")) {
		if text, is := strings.CutPrefix(line, name+" "); is {
			value, _ := strconv.ParseFloat(strings.TrimSpace(text), 64) // 0 where it is no number
			return value
		}
	}
	return 0
}

// Partitions is how many partitions the process projects.
func (p *Process) Partitions() int { return int(p.Series("counterfoil_partitions")) }

// Submit asks for an operation until it is told that it is accepted: a caller
// repeats with the same key whatever happened to the instance it asked.
func (f *Fleet) Submit(key string) client.Operation {
	f.T.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(200 * time.Millisecond) {
		op, _, err := f.Client.Submit(context.Background(), key, client.Submission{Provider: "example", Params: json.RawMessage(fmt.Sprintf(`{"correlation":%q}`, key))})
		if err == nil {
			return op
		}
		var refused *client.Problem
		if errors.As(err, &refused) && !refused.Retryable || time.Now().After(end) {
			f.T.Fatalf("submit %s: %v", key, err)
		}
	}
}

// Get looks at an operation, as patiently as Submit.
func (f *Fleet) Get(id string) client.Operation {
	f.T.Helper()
	for end := time.Now().Add(Patience); ; time.Sleep(200 * time.Millisecond) {
		op, err := f.Client.Get(context.Background(), id)
		if err == nil {
			return op
		}
		if time.Now().After(end) {
			f.T.Fatalf("get %s: %v", id, err)
		}
	}
}

// Await waits until the operation is in one of the states, or done if none are
// given.
func (f *Fleet) Await(id string, limit time.Duration, states ...string) client.Operation {
	f.T.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		op := f.Get(id)
		if slices.Contains(states, op.State) || len(states) == 0 && op.Done {
			return op
		}
		if time.Now().After(end) {
			f.T.Fatalf("%s is %s (%s) after %s, want %v\n%s", id, op.State, op.Reason, limit, states, f.Story(id))
		}
	}
}

// Until waits until the condition holds, and fails with what it was if it does
// not in time.
func (f *Fleet) Until(limit time.Duration, what string, holds func() bool) {
	f.T.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			f.T.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// Timeline reads the operation's facts.
func (f *Fleet) Timeline(id string) []client.Entry {
	f.T.Helper()
	list, err := f.Client.Timeline(context.Background(), id, 0)
	if err != nil {
		f.T.Fatalf("timeline of %s: %v", id, err)
	}
	return list
}

// Story is the operation's timeline as text, for failures.
func (f *Fleet) Story(id string) string {
	var b strings.Builder
	for _, e := range f.Timeline(id) {
		text, _ := json.Marshal(e.Fields) // strings always encode
		fmt.Fprintf(&b, "%s %s %s -> %s %s %s %s %s\n", e.Time.Format("15:04:05.000"), e.Type, e.From, e.To, e.Verdict, e.Reason, e.Source, text)
	}
	return b.String()
}

// Promises checks what holds whatever happened: every operation a caller was told
// of is there and began with its intent, none made two jobs or had two calls with
// side effects at once, and there is no job but theirs.
func (f *Fleet) Promises(ids ...string) {
	f.T.Helper()
	if d := f.Sim.Duplicates(); len(d) > 0 {
		f.T.Errorf("operations with more than one job: %v", d)
	}
	if n := f.Sim.MaxAtOnceAny(); n > 1 {
		f.T.Errorf("%d calls with side effects of one operation at once", n)
	}
	if n := len(f.Sim.Jobs()); n != len(ids) {
		f.T.Errorf("%d jobs for %d operations", n, len(ids))
	}
	for _, id := range ids {
		if line := f.Timeline(id); len(line) == 0 || !strings.HasPrefix(line[0].Type, "intent.recorded") {
			f.T.Errorf("the history of %s does not begin with its intent", id)
		}
	}
}

// Doors leads every request to one of several addresses, and to the next where
// nobody is there any more.
type Doors struct {
	transport http.Transport

	mu   sync.Mutex
	list []string // addresses; guarded by mu
	next int      // guarded by mu
}

func (d *Doors) add(url string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, strings.TrimPrefix(url, "http://"))
}

func (d *Doors) close() { d.transport.CloseIdleConnections() }

// RoundTrip implements [http.RoundTripper].
func (d *Doors) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	d.next++
	list := slices.Concat(d.list, d.list)
	if len(d.list) > 0 {
		at := d.next % len(d.list)
		list = list[at : at+len(d.list)]
	}
	d.mu.Unlock()
	err := errors.New("nobody is there")
	for _, host := range list {
		to := r.Clone(r.Context())
		to.URL.Host = host
		if r.GetBody != nil {
			if to.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		var answer *http.Response
		answer, err = d.transport.RoundTrip(to)
		var refused *net.OpError
		if err == nil || !errors.As(err, &refused) || refused.Op != "dial" {
			return answer, err
		}
	}
	return nil, err
}

// mouth tells of the first line of a process's output that begins with mark.
type mouth struct {
	mark string
	said chan string
	log  *page.Page
	line []byte
}

func (m *mouth) Write(b []byte) (int, error) {
	_, _ = m.log.Write(b) // never fails
	m.line = append(m.line, b...)
	for {
		line, rest, whole := bytes.Cut(m.line, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		m.line = rest
		if strings.HasPrefix(string(line), m.mark) {
			select {
			case m.said <- cmp.Or(string(line), m.mark):
			default:
			}
		}
	}
}

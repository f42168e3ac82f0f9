// Package canary_test puts marked secrets wherever a secret can be, makes the
// real program fail in every way it can be made to from outside, at its most
// verbose level, and then looks for the marks in everything that came of it:
// its output and log, every answer, the metrics, the notices, what the commands
// print, every message of every stream, and the bytes of the data directory.
//
// Limits: a mark is found as it is written, in base64 and in a URL's escapes, and
// not in other spellings. Payloads of more than 512 KiB are looked at in their
// parts.
package canary_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/page"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// The marks. Nothing in them changes when they are escaped, but the ends of the
// providers' credentials, which answers spell in many ways.
const (
	mark         = "SECR3T"
	markHeader   = mark + "header7f3a91c0d2e84b6a/9Zq+&s=="
	markQuery    = mark + "query5b0e77a1c93f4d28/8Yp+\"s=="
	markUser     = mark + "user4c1d88e0"
	markPassword = mark + "password88ab03f1e7d6/7Xo+<s"
	markHook     = mark + "hook2d90e5b7c6a14f83"
	markLink     = mark + "link61f7a0c3b2"
	markLinkUser = mark + "linkpassword03c81bd7e5"
	markMistake  = mark + "mistake0c4f7b9d21ae"
	markKey      = mark + "key9e21d7aa03bf"
	markEnv      = mark + "environment33cc91"
)

// site is the program, its surroundings, and everything that came out of it.
type site struct {
	t       *testing.T
	binary  string
	root    string // holds everything; the data directory is root/data
	sim     *simulator.Simulator
	url     string // of the simulator
	log     page.Page
	notices string // file
	base    string // of the service
	admin   string
	key     string
	operate *client.Client
	env     []string
	seen    map[string]string // what was shown, by where
	done    chan error
	cmd     *exec.Cmd
}

func (s *site) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.root, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	// One that was written long ago is whole, and counts at the next look.
	if err := os.Chtimes(path+".new", time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// places are where a provider's credential can go.
type place struct {
	name, credential, secret string
	auth                     simulator.Auth
}

func places() []place {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(markUser+":"+markPassword))
	return []place{
		{"in-header", "credential:\n  header: X-Api-Key\n", markHeader, simulator.Auth{Header: "X-Api-Key", Value: markHeader}},
		{"in-query", "credential:\n  query: key\n", markQuery, simulator.Auth{Query: "key", Value: markQuery}},
		{"in-basic", "credential:\n  basic: true\n", markUser + ":" + markPassword, simulator.Auth{Header: "Authorization", Value: basic}},
	}
}

func (s *site) contracts() string {
	s.t.Helper()
	raw, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	dir := filepath.Join(s.root, "contracts")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for i, p := range places() {
		text := string(raw)
		change := func(from, to string) {
			if strings.Count(text, from) != 1 {
				s.t.Fatalf("the example contract does not have %q once", from)
			}
			text = strings.Replace(text, from, to, 1)
		}
		change("name: example\n", "name: "+p.name+"\n")
		change("credential:\n  header: Authorization\n  format: Bearer {secret}\n", p.credential)
		change("  settle: 30s\n", "  settle: 1s\n")
		change("{default: 2s, min: 10ms, max: 1h}", "{default: 300ms, min: 10ms, max: 1h}")
		change("  backoff: 1s\n", "  backoff: 200ms\n")
		change("  backoff_max: 1m\n", "  backoff_max: 1s\n")
		change("  request_timeout: 30s\n", "  request_timeout: 2s\n")
		if i == 1 { // one of them hands its results out by signed links
			change("  from: request\n  path: /v1/jobs/{job.id}/result\n", "  from: status\n  links: \"[body.?result_url.orValue('')].filter(l, l != '')\"\n")
			change("  read:\n    not_ready: status in [404, 409]\n    expired: status == 410\n  checks:\n", "  link_checks:\n")
		}
		if err := os.WriteFile(filepath.Join(dir, p.name+".yaml"), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return dir
}

// credentials is the file's text; mistakes can be added behind it.
func (s *site) credentials(more string) string {
	return fmt.Sprintf(`credentials: 1
providers:
  in-header:
    "*": {base_url: %[1]q, webhook_secret: env:CANARY_HOOK}
    default: {credential: env:CANARY_HEADER}
    later: {credential: env:CANARY_LATER}
  in-query:
    default: {credential: %[2]q, base_url: %[3]q}
  in-basic:
    default: {credential: env:CANARY_BASIC, base_url: %[4]q}
`, s.url+"/in-header", "file:"+filepath.Join(s.root, "query-key"), s.url+"/in-query", s.url+"/in-basic") + more
}

func start(t *testing.T) *site {
	s := &site{t: t, root: t.TempDir(), seen: map[string]string{}, done: make(chan error, 1)}
	sources(t)
	s.binary = filepath.Join(s.root, "counterfoil")
	if out, err := exec.Command("go", "build", "-o", s.binary, "github.com/counterfoil/counterfoil/cmd/counterfoil").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	s.sim = simulator.New(simulator.Config{Now: time.Now, Seed: 1})
	t.Cleanup(s.sim.Close)
	var err error
	if s.url, err = s.sim.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.notices = filepath.Join(s.root, "notices")
	notify := s.file("notify", "#!/bin/sh\ncat >> "+s.notices+"\n")
	if err := os.Chmod(notify, 0o700); err != nil {
		t.Fatal(err)
	}
	s.file("query-key", markQuery+"\n")
	s.env = append(os.Environ(), "TZ=America/St_Johns", "CANARY_HEADER="+markHeader, "CANARY_BASIC="+markUser+":"+markPassword,
		"CANARY_HOOK="+markHook, "CANARY_UNUSED="+markEnv)
	s.cmd = exec.Command(s.binary, "serve", "--data", filepath.Join(s.root, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--disk-reserve", "0", "--sync", "interval", "--allow-http", "--contracts", s.contracts(), "--credentials", s.file("credentials.yaml", s.credentials("")),
		"--public-url", "http://here.test", "--notify-exec", notify, "--log-level", "debug")
	s.cmd.Env = s.env
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			line := scanner.Text()
			if _, key, ok := strings.Cut(line, "printed this once: "); ok {
				s.key = key // the one place where it is shown
				continue
			}
			if address, ok := strings.CutPrefix(line, "ready on "); ok {
				s.base = address
				close(ready)
			}
			fmt.Fprintln(&s.log, line)
		}
		s.done <- s.cmd.Wait()
	}()
	t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // gone already unless the test failed
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatalf("not ready: %s", &s.log)
	}
	m := regexp.MustCompile(`"msg":"metrics and health","address":"([^"]+)"`).FindStringSubmatch(s.log.String())
	if m == nil {
		t.Fatalf("the log does not say where the metrics are: %s", &s.log)
	}
	s.admin = "http://" + m[1]
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	if s.operate, err = client.New(s.base, s.key, &http.Client{Transport: transport}); err != nil {
		t.Fatal(err)
	}
	s.operate = s.operate.Retrying(client.Retry{Tries: 1})
	return s
}

// sources looks at every directory the program is built from. The test cache
// sees what this process opens and not what the go command reads, and would
// repeat the verdict on an older program.
func sources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"cmd", "internal", "events", "projections", "contracts", "client", "simulator"} {
		must(t, filepath.WalkDir(filepath.Join("..", "..", dir), func(_ string, _ fs.DirEntry, err error) error { return err }))
	}
}

// ask keeps a plain answer, with its headers.
func (s *site) ask(method, address, body string, header ...string) int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, address, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.seen[fmt.Sprintf("answer %d to %s %s", len(s.seen), method, r.URL.Path)] = fmt.Sprint(resp.Header) + string(text)
	return resp.StatusCode
}

// run keeps what a command prints.
func (s *site) run(env []string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(s.binary, args...)
	cmd.Env = append(append(s.env, "COUNTERFOIL_SERVER="+s.base, "COUNTERFOIL_KEY="+s.key), env...)
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		s.t.Fatalf("%v: %v", args, err)
	}
	s.seen[fmt.Sprintf("command %d, %s", len(s.seen), args[0])] = string(out)
	return string(out)
}

// echo is a provider's answer that shows all the secrets that it knows.
func (s *site) echo(status int, secret, sent string) simulator.Answer {
	words := fmt.Sprintf("key %s or %s at https://%s:%s@files.test/x?signature=%s&expires=1#%s", secret, sent, markUser, markLinkUser, markLink, markLink)
	return simulator.Answer{
		Status: status,
		Header: http.Header{
			"Content-Type": {"application/json"}, "X-Request-Id": {"req-" + sent}, "Www-Authenticate": {"Bearer " + secret},
			"Location": {s.url + "/x?signature=" + markLink}, "Set-Cookie": {"s=" + secret},
		},
		Body: fmt.Sprintf(`{"code":%q,"detail":%q,"error":{"code":%q,"message":%q},"link":"https://files.test/x?signature=%s"}`, secret, words, secret, words, markLink),
	}
}

// spelled is an answer that shows the secret in the ways in which JSON, HTML, URLs
// and base64 write it, and in some of them inside each other.
func spelled(secret string) simulator.Answer {
	quote := func(text string) string {
		quoted, err := json.Marshal(text)
		if err != nil {
			panic(err)
		}
		return string(quoted[1 : len(quoted)-1])
	}
	var numbers, small strings.Builder
	for _, c := range []byte(secret) {
		fmt.Fprintf(&numbers, "&#x%X;", c)
		fmt.Fprintf(&small, "%%%02x", c)
	}
	slashes := strings.NewReplacer("/", `\/`, "+", `\u002B`).Replace(quote(secret))
	list := []string{
		slashes, quote(slashes), quote(quote(slashes)), quote(html.EscapeString(secret)), numbers.String(), quote(numbers.String()),
		strings.NewReplacer("/", "&#x2F;", "+", "&#43;", `"`, "&quot;", "&", "&amp;", "<", "&lt;").Replace(secret),
		small.String(), url.QueryEscape(secret), url.QueryEscape(url.QueryEscape(secret)),
	}
	for _, e := range encodings() {
		list = append(list, e.EncodeToString([]byte(secret)))
	}
	return simulator.Answer{
		Status: 422, Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {small.String()}},
		Body: `{"error":{"code":"bad_key","message":"` + strings.Join(list, " ") + `"}}`,
	}
}

func encodings() []*base64.Encoding {
	return []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding}
}

// fail makes each call of one provider fail in several ways and gives the
// operations.
func (s *site) fail(t *testing.T, p place) []string {
	t.Helper()
	m := s.sim.Mount("/"+p.name, simulator.Example).Configure(simulator.Options{
		Plan: simulator.Steps(time.Second, "running", "succeeded"), Auth: p.auth, Echo: true, LinkTTL: time.Hour,
	})
	page := s.echo(502, p.secret, p.auth.Value)
	page.Header.Set("Content-Type", "text/html")
	page.Body = "<html><body>" + page.Body + "</body></html>"
	large := s.echo(500, p.secret, p.auth.Value)
	large.Body = strings.Repeat(large.Body, 4000) // over 512 KiB, so stored in parts
	moved := simulator.Answer{Status: 302, Header: http.Header{"Location": {s.url + "/elsewhere?signature=" + markLink}}}
	answers := []simulator.Fault{
		spelled(p.secret), // what ends an operation before what makes it ask again, so that each gets its own
		s.echo(400, p.secret, p.auth.Value), s.echo(401, p.secret, p.auth.Value), s.echo(403, p.secret, p.auth.Value), s.echo(404, p.secret, p.auth.Value),
		s.echo(409, p.secret, p.auth.Value), s.echo(429, p.secret, p.auth.Value), page, large, moved,
		simulator.DropAnswer{},
		simulator.CutBody{},
		simulator.NeverReceive{Reset: true},
	}
	var ids []string
	submit := func(name string) client.Operation {
		op, _, err := s.operate.Submit(t.Context(), p.name+name, client.Submission{
			Provider: p.name, Params: json.RawMessage(fmt.Sprintf(`{"case":%q}`, name)), Deadlines: &client.Deadlines{Result: "20s", Create: "20s"},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, op.ID)
		return op
	}
	for i, fault := range answers {
		m.Add(simulator.On(simulator.Create, simulator.Nth(i+1), fault))
		submit(fmt.Sprintf("create-%d", i))
		for end := time.Now().Add(patience); s.sim.Count(simulator.Filter{Mount: m.Base(), Call: simulator.Create}) <= i; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("create %d did not come\n%s", i, &s.log)
			}
		}
	}
	for _, call := range []simulator.Call{simulator.Status, simulator.Result, simulator.Cancel} {
		for i, fault := range answers {
			op := submit(fmt.Sprintf("%s-%d", call, i))
			for end := time.Now().Add(patience); op.Job == nil; time.Sleep(20 * time.Millisecond) {
				var err error
				if op, err = s.operate.Get(t.Context(), op.ID); err != nil || time.Now().After(end) {
					t.Fatalf("%s has no job: %v %s", op.ID, err, op.Raw)
				}
			}
			m.Add(simulator.On(call, simulator.Match{Job: op.Job.ID, By: simulator.PerJob, To: 2}, fault))
			if call == simulator.Cancel {
				if _, err := s.operate.Cancel(t.Context(), op.ID, ""); err != nil {
					t.Log(err) // it may have ended
				}
			}
		}
	}
	// What is lost for good stops, and is told of: no read of it is authorised.
	lost, _, err := s.operate.Submit(t.Context(), p.name+"lost", client.Submission{
		Provider: p.name, Params: json.RawMessage(`{"case":"lost"}`), Deadlines: &client.Deadlines{Result: "4s"},
	})
	must(t, err)
	for end := time.Now().Add(patience); lost.Job == nil; time.Sleep(10 * time.Millisecond) {
		if lost, err = s.operate.Get(t.Context(), lost.ID); err != nil || time.Now().After(end) {
			t.Fatalf("%s has no job: %v %s", lost.ID, err, lost.Raw)
		}
	}
	m.Add(simulator.On(simulator.Status, simulator.Match{Job: lost.Job.ID}, s.echo(401, p.secret, p.auth.Value)))
	return append(ids, lost.ID)
}

// hook delivers a webhook signed with the key.
func (s *site) hook(id, key string) int {
	body := fmt.Sprintf(`{"event_id":"e","type":"job.updated","job_id":"j","state":"running","link":"https://files.test/y?signature=%s"}`, markLink)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	return s.ask("POST", s.base+"/hooks/in-header/"+id+"?token="+url.QueryEscape(markQuery), body, "X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)), "Authorization", "Bearer "+markHook)
}

func TestSecretsShowNowhere(t *testing.T) {
	s := start(t)
	each := make([][]string, len(places()))
	if !t.Run("fail", func(t *testing.T) {
		for i, p := range places() {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel() // they mostly wait, each for a provider of its own
				each[i] = s.fail(t, p)
			})
		}
	}) {
		t.FailNow()
	}
	ids := slices.Concat(each...)
	if code := s.hook(ids[0], markHook); code/100 != 2 {
		t.Errorf("a signed webhook is answered %d", code)
	}
	if code := s.hook(ids[0], markMistake); code != 401 {
		t.Errorf("a webhook signed with another key is answered %d", code)
	}

	// The credentials file as people get it wrong, while it is in use.
	for _, wrong := range []string{
		s.credentials("denied_keys: [cf_ab12." + markKey + "]\n"),
		s.credentials(markMistake + ": 1\n"),
		s.credentials("principals: {" + strings.ToLower(markMistake) + ": {accounts: [" + markMistake + "]}}\n"),
		strings.Replace(s.credentials(""), "env:CANARY_HEADER", markMistake, 1),
		strings.Replace(s.credentials(""), "env:CANARY_BASIC", "env:"+markMistake, 1),
		strings.Replace(s.credentials(""), "env:CANARY_HOOK", "file:"+markMistake, 1),
		strings.Replace(s.credentials(""), "http://", "http://u:"+markMistake+"@", 1),
		"credentials: 1\nproviders: *" + markMistake + "\n",
		"credentials: 1\n# more\n\nproviders: {" + markMistake + "\n",
	} {
		before := strings.Count(s.log.String(), "the credentials file cannot be used")
		path := s.file("credentials.yaml", wrong)
		for end := time.Now().Add(patience); strings.Count(s.log.String(), "the credentials file cannot be used") == before; time.Sleep(100 * time.Millisecond) {
			s.ask("GET", s.base+"/v1/capabilities", "") // it is looked at when it is used
			if time.Now().After(end) {
				t.Fatalf("not told of:\n%s", wrong)
			}
		}
		s.run(nil, "doctor", "--data", filepath.Join(s.root, "data"), "--credentials", path)
	}
	s.file("credentials.yaml", s.credentials(""))
	time.Sleep(1500 * time.Millisecond)
	// The secrets behind the references: open to others, wrong, gone, right.
	key := filepath.Join(s.root, "query-key")
	for i, change := range []func(){
		func() { must(t, os.Chmod(key, 0o644)) },
		func() { s.file("query-key", markMistake) },
		func() { s.file("query-key", markQuery+"\n"+markMistake) },
		func() { must(t, os.Remove(key)) },
		func() { s.file("query-key", markQuery) },
	} {
		change()
		ids = append(ids, s.submit(fmt.Sprintf("secret-%d", i), "in-query", "default"))
		s.run(nil, "doctor", "--probe")
		time.Sleep(time.Second)
	}
	ids = append(ids, s.submit("later", "in-header", "later"))

	// Callers who put secrets where none belong.
	s.ask("GET", s.base+"/v1/operations?key="+markKey+"&cursor="+markKey, "")
	s.ask("GET", s.base+"/v1/operations", "", "Authorization", "Bearer cf_nobody."+markKey)
	s.ask("GET", s.base+"/v1/operations", "", "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(markUser+":"+markPassword)))
	// The answer names the caller's own path and field to the caller alone; so
	// only the log is looked at.
	shown := maps.Clone(s.seen)
	s.ask("GET", s.base+"/v1/operations/"+markKey+"?"+markKey, "")
	s.ask("GET", s.base+"/"+markKey, "")
	s.ask("POST", s.base+"/v1/operations", `{"provider":"in-header","params":{"a":1},"`+markKey+`":1}`, "Idempotency-Key", "m1")
	s.seen = shown
	s.ask("POST", s.base+"/v1/operations", `{"provider":"in-header","params":"`+markKey, "Idempotency-Key", "m2")
	s.run([]string{"COUNTERFOIL_KEY=cf_nobody." + markKey}, "list")
	s.run([]string{"COUNTERFOIL_SERVER=http://" + markUser + ":" + markLinkUser + "@127.0.0.1:1"}, "list")
	s.run(nil, "serve", "--data", filepath.Join(s.root, "other"), "--credentials", s.file("wrong.yaml", s.credentials(markMistake+": 1\n")), "--contracts", filepath.Join(s.root, "contracts"), "--allow-http")
	s.run(nil, "serve", "--data", filepath.Join(s.root, "other"), "--credential", "in-header=env:sk_live_"+markMistake, "--contracts", filepath.Join(s.root, "contracts"))

	time.Sleep(3 * time.Second)
	for i, id := range ids {
		for _, path := range []string{"", "/timeline", "/result", "/result?unaccepted=true"} {
			s.ask("GET", s.base+"/v1/operations/"+id+path, "")
		}
		if i%12 == 0 {
			for _, command := range []string{"get", "timeline", "result", "cancel"} {
				s.run(nil, command, id)
			}
			s.run(nil, "get", id, "--output", "json")
			s.ask("POST", s.base+"/v1/operations/"+id+"/decisions", `{"kind":"abandon"}`, "Idempotency-Key", `"d"`, "If-Match", `"v1"`)
		}
	}
	s.run(nil, "list")
	s.run(nil, "doctor", "--probe")
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/debug/pprof/cmdline"} {
		s.ask("GET", s.admin+path, "", "Authorization", "none")
	}
	s.ask("GET", s.base+"/v1/capabilities", "")
	http.DefaultClient.CloseIdleConnections()

	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("the service ended with %v\n%s", err, &s.log)
		}
	case <-time.After(patience):
		t.Fatal("the service does not stop")
	}
	s.seen["log"] = s.log.String()
	if notices, err := os.ReadFile(s.notices); err != nil {
		t.Errorf("no notice came: %v", err)
	} else {
		s.seen["notices"] = string(notices)
	}
	s.streams()
	s.disk()

	marks := []string{mark, strings.ToLower(mark), s.key[strings.Index(s.key, ".")+1:]}
	marks = append(marks, "%53%45%43", "#x53;&#x45;", `#x53;\u0026#x45;`) // how two of the spellings begin
	for _, p := range places() {
		for _, e := range encodings() {
			marks = append(marks, e.EncodeToString([]byte(p.secret)))
		}
	}
	before := len(marks)
	for _, r := range s.sim.Requests(simulator.Filter{}) {
		if q, err := url.ParseQuery(r.Query); err == nil && q.Get("signature") != "" {
			marks = append(marks, q.Get("signature"))
		}
	}
	if links := len(marks) - before; links < 6 {
		t.Errorf("only %d signed links were used", links)
	}
	marks = append(marks, s.instanceKey()...)
	s.look(marks)

	text := s.log.String()
	for _, part := range []string{`"level":"DEBUG"`, `"level":"ERROR"`, "a reference leads to no secret", "CANARY_LATER"} {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in the log: it was not captured, or not verbose", part)
		}
	}
	if at := regexp.MustCompile(`"time":"[^"]*[^Z"]"`).FindString(text); at != "" {
		t.Errorf("a time of the log is not UTC: %s", at)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) submit(key, provider, account string) string {
	s.t.Helper()
	op, _, err := s.operate.Submit(s.t.Context(), key, client.Submission{Provider: provider, Account: account, Params: json.RawMessage(`{"n":1}`)})
	if err != nil {
		s.t.Fatal(err)
	}
	return op.ID
}

// instanceKey is the installation's own secret, in the spellings in which it
// could leave.
func (s *site) instanceKey() []string {
	text, err := os.ReadFile(filepath.Join(s.root, "data", "identity.json"))
	must(s.t, err)
	var identity struct {
		Key []byte `json:"instance_key"`
	}
	must(s.t, json.Unmarshal(text, &identity))
	if len(identity.Key) != 32 {
		s.t.Fatalf("the instance key has %d bytes", len(identity.Key))
	}
	return []string{string(identity.Key), hex.EncodeToString(identity.Key), base64.StdEncoding.EncodeToString(identity.Key), base64.RawURLEncoding.EncodeToString(identity.Key)}
}

// streams reads every message of every stream, as a reader sees them.
func (s *site) streams() {
	s.t.Helper()
	b, err := broker.Start(broker.Config{Dir: filepath.Join(s.root, "data"), Run: "reader", Now: time.Now, Sync: broker.SyncInterval})
	must(s.t, err)
	defer func() { must(s.t, b.Stop()) }()
	n, err := journal.Connect(s.t.Context(), journal.Config{Dial: b.InProcess, Name: "canary", Replicas: 1})
	must(s.t, err)
	defer n.Close()
	read := map[journal.Stream]int{}
	for _, stream := range journal.Streams() {
		for from := uint64(1); ; read[stream]++ {
			m, err := n.Next(s.t.Context(), stream, ">", from)
			if errors.Is(err, journal.ErrNoMessage) {
				break
			}
			must(s.t, err)
			s.seen[fmt.Sprintf("%s %d %s", stream, m.Sequence, m.Subject)] = fmt.Sprint(m.Subject, m.Header) + string(m.Data)
			from = m.Sequence + 1
		}
	}
	for _, stream := range []journal.Stream{journal.Ledger, journal.History, journal.Payloads, journal.Webhooks, journal.Index} {
		if read[stream] == 0 {
			s.t.Errorf("nothing was read of %s", stream)
		}
	}
}

// disk reads every file of the data directory but the identity, which is the
// secret's own place. What is compressed there was read by streams.
func (s *site) disk() {
	s.t.Helper()
	files := 0
	must(s.t, filepath.WalkDir(filepath.Join(s.root, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "identity.json" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			files++
			s.seen["file "+path[len(s.root):]] = string(text)
		}
		return err
	}))
	if files < 5 {
		s.t.Errorf("%d files in the data directory", files)
	}
}

// look looks for the marks in all that was seen.
func (s *site) look(marks []string) {
	s.t.Helper()
	slices.Sort(marks)
	marks = slices.Compact(marks)
	shown := 0
	for where, text := range s.seen {
		for _, m := range marks {
			if len(m) < 6 {
				s.t.Fatalf("%q is no mark", m)
			}
			if i := strings.Index(text, m); i >= 0 {
				if shown++; shown <= 12 {
					s.t.Errorf("%s shows %q: …%q…", where, m, text[max(0, i-160):min(len(text), i+120)])
				}
			}
		}
	}
	if shown > 0 {
		s.t.Errorf("%d places in all, of %d looked at", shown, len(s.seen))
	}
}

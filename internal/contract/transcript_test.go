package contract

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
)

var update = flag.Bool("update", false, "rewrite golden files")

var received = time.Date(2026, 9, 21, 14, 14, 0, 0, time.UTC)

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it\n%s", file, diff)
	}
}

func builtin(t testing.TB, name string) *Contract {
	t.Helper()
	src, err := contracts.FS.ReadFile(name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, src)
}

func parse(t testing.TB, src []byte) *Contract {
	t.Helper()
	c, err := Parse("test.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// edited is a built-in contract with pieces of its text replaced, in pairs.
func edited(t testing.TB, name string, pairs ...string) []byte {
	t.Helper()
	src, err := contracts.FS.ReadFile(name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s.yaml does not contain %q", name, pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return []byte(text)
}

// line writes a struct's fields that are not zero, in one line.
func line(v any) string {
	s := fmt.Sprintf("%+v", v)
	return s
}

func show(b *strings.Builder, what string, pairs ...any) {
	b.WriteString("  " + what)
	for i := 0; i < len(pairs); i += 2 {
		v := pairs[i+1]
		text := fmt.Sprint(v)
		if at, ok := v.(time.Time); ok {
			text = ""
			if !at.IsZero() {
				text = at.Format(time.RFC3339Nano)
			}
		}
		if text == "" || text == "false" || text == "[]" {
			continue
		}
		fmt.Fprintf(b, " %s=%q", pairs[i], text)
	}
	b.WriteString("\n")
}

func failure(f Failure) []any {
	return []any{"class", f.Class, "code", f.Code, "message", f.Message, "retry_at", f.RetryAt, "detail", f.Detail}
}

func showRequest(b *strings.Builder, r Request, err error) {
	if err != nil {
		fmt.Fprintf(b, "  no request: %v\n", err)
		return
	}
	fmt.Fprintf(b, "  %s %s\n", r.Method, r.URL)
	for _, h := range r.Header {
		fmt.Fprintf(b, "  %s: %s\n", h.Name, h.Value)
	}
	fmt.Fprintf(b, "  credential=%q redirects=%d\n", strings.TrimSpace(string(r.Credential.Place)+" "+r.Credential.Name), r.FollowRedirects)
	if r.Body != nil {
		fmt.Fprintf(b, "  %s\n", r.Body)
	}
}

func showCreate(b *strings.Builder, r CreateReading) {
	show(b, "create", append([]any{"outcome", r.Outcome, "job", r.JobID, "status_url", r.StatusURL, "remote", r.Remote, "state", r.State, "echo_differs", r.EchoDiffer}, failure(r.Failure)...)...)
}

func showStatus(b *strings.Builder, r StatusReading) {
	show(b, "status", append([]any{"job", r.JobID, "remote", r.Remote, "state", r.State, "time", r.ProviderTime, "progress", r.Progress, "results", showLinks(r.Results), "no_result", r.NoResult}, failure(r.Failure)...)...)
}

func showLinks(links []Link) []string {
	var list []string
	for _, l := range links {
		if l.Name != "" {
			l.Name += "="
		}
		list = append(list, l.Name+l.URL)
	}
	return list
}

func showLookup(b *strings.Builder, r LookupReading) {
	show(b, "lookup", append([]any{"outcome", r.Outcome, "next", r.Next}, failure(r.Failure)...)...)
	for _, j := range r.Jobs {
		show(b, "  job", "id", j.ID, "status_url", j.StatusURL, "exact", j.Exact, "created", j.CreatedAt)
	}
}

func showCancel(b *strings.Builder, r CancelReading) {
	show(b, "cancel", append([]any{"outcome", r.Outcome, "remote", r.Remote, "state", r.State}, failure(r.Failure)...)...)
}

func showResult(b *strings.Builder, r ResultReading) {
	show(b, "result", append([]any{"media_type", r.MediaType, "body", string(r.Body), "links", showLinks(r.Links), "not_ready", r.NotReady}, failure(r.Failure)...)...)
	for _, k := range r.Checks {
		fmt.Fprintf(b, "    check %s passed=%t %s\n", k.Name, k.Passed, k.Detail)
	}
}

// fixture is one recorded exchange.
type fixture struct {
	Name     string
	Scenario string
	BaseURL  string `json:"base_url"`
	Request  struct {
		Method, Path string
		Headers      map[string]string
		Body         json.RawMessage
		BodyRaw      string `json:"body_raw"`
	}
	Response struct {
		Status  int
		Headers map[string]string
		Body    json.RawMessage
		BodyRaw string `json:"body_raw"`
	}
}

func recorded(t testing.TB, provider, name string) fixture {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + provider + "/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f fixture) answer() Answer {
	a := Answer{Status: f.Response.Status, Header: map[string][]string{}, Body: f.Response.Body, URL: f.BaseURL + f.Request.Path, ReceivedAt: received}
	if f.Response.BodyRaw != "" {
		a.Body = []byte(f.Response.BodyRaw)
	}
	for k, v := range f.Response.Headers {
		a.Header[k] = []string{v}
	}
	return a
}

// playbook is what a provider's recorded exchanges are played with.
type playbook struct {
	provider string
	least    int // exchanges there must be, so that an empty list plays nothing in silence
	in       Inputs
	// create gives the inputs that make the recorded create, and says whether two
	// bodies are the same.
	create func(t *testing.T, f fixture) (in Inputs, same func(ours []byte) bool)
	ended  string // the recorded status whose files the recorded results are
	files  string // origin of the files
}

func compact(t *testing.T, raw string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(raw)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every recorded exchange is asked and read as the engine would, and every
// recorded exchange there is gets played, except webhooks of a contract that has
// none.
func TestTranscripts(t *testing.T) {
	for _, p := range []playbook{
		{
			provider: "replicate", least: 18,
			in: Inputs{JobID: "rrr4z55ocneqzikepnug6xezpe", Params: []byte(`{"version":"5c7d5dc6dd8bf75c1acaa8565735e7986bc5b66206b55cca93cb72c9bf15ccaa","input":{"image":"https://example.test/in.png"}}`)},
			create: func(t *testing.T, f fixture) (in Inputs, same func([]byte) bool) {
				var sent map[string]json.RawMessage
				if err := json.Unmarshal(f.Request.Body, &sent); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(sent["webhook"], &in.CallbackURL); err != nil {
					t.Fatal(err)
				}
				in.Params = compact(t, `{"version":`+string(sent["version"])+`,"input":`+string(sent["input"])+`}`)
				return in, func(body []byte) bool {
					var ours map[string]json.RawMessage
					return json.Unmarshal(body, &ours) == nil && string(ours["version"]) == string(sent["version"]) && string(ours["webhook"]) == string(sent["webhook"])
				}
			},
		},
		{
			provider: "openai-batches", least: 25, ended: "status_partial", files: "https://api.openai.com",
			in: Inputs{JobID: "batch_68f0a1c2d3e4", ClientReference: "op_01JZ0001", Since: time.Unix(1789999990, 0), Params: []byte(`{"input_file_id":"file-in01","endpoint":"/v1/responses","completion_window":"24h"}`)},
			create: func(t *testing.T, f fixture) (in Inputs, same func([]byte) bool) {
				var sent map[string]json.RawMessage
				if err := json.Unmarshal(f.Request.Body, &sent); err != nil {
					t.Fatal(err)
				}
				in.ClientReference = "op_01JZ0001"
				in.Params = compact(t, `{"input_file_id":`+string(sent["input_file_id"])+`,"endpoint":`+string(sent["endpoint"])+`,"completion_window":`+string(sent["completion_window"])+`}`)
				return in, func(ours []byte) bool { return string(ours) == string(compact(t, string(f.Request.Body))) }
			},
		},
		{
			provider: "stripe-reporting", least: 13, ended: "status_succeeded", files: "https://files.stripe.com",
			in: Inputs{JobID: "frr_1FIX0001", Token: "op_01JZ0011", Since: time.Unix(1789999990, 0), Params: []byte(`{"report_type":"balance.summary.1","parameters":{"interval_start":1788220800,"interval_end":1789430400}}`)},
			create: func(t *testing.T, f fixture) (in Inputs, same func([]byte) bool) {
				var sent string
				if err := json.Unmarshal(f.Request.Body, &sent); err != nil {
					t.Fatal(err)
				}
				form, err := url.ParseQuery(sent)
				if err != nil {
					t.Fatal(err)
				}
				in.Token = f.Request.Headers["idempotency-key"]
				in.Params = []byte(`{"report_type":"` + form.Get("report_type") + `"}`)
				if form.Has("parameters[interval_start]") {
					in.Params = []byte(`{"report_type":"` + form.Get("report_type") + `","parameters":{"interval_start":` + form.Get("parameters[interval_start]") + `,"interval_end":` + form.Get("parameters[interval_end]") + `}}`)
				}
				return in, func(ours []byte) bool { return string(ours) == sent }
			},
		},
	} {
		t.Run(p.provider, func(t *testing.T) {
			c := builtin(t, p.provider)
			raw, err := os.ReadFile("testdata/" + p.provider + "/index.json")
			if err != nil {
				t.Fatal(err)
			}
			var index struct{ Exchanges []string }
			if err := json.Unmarshal(raw, &index); err != nil {
				t.Fatal(err)
			}
			if c.Webhook == nil {
				index.Exchanges = slices.DeleteFunc(index.Exchanges, func(name string) bool { return strings.HasPrefix(name, "webhook") })
			}
			files, err := filepath.Glob("testdata/" + p.provider + "/*.json")
			if err != nil || len(index.Exchanges) < p.least || len(files) != len(index.Exchanges)+1 {
				t.Fatalf("%d files for %d exchanges: %v", len(files), len(index.Exchanges), err)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "# Recorded exchanges with %s: the request we make, and what we read from the answer.\n", p.provider)
			for _, name := range index.Exchanges {
				fmt.Fprintf(&b, "\n%s\n", name)
				p.play(t, &b, c, recorded(t, p.provider, name))
			}
			golden(t, p.provider+".txt", b.String())
		})
	}
}

func (p playbook) play(t *testing.T, b *strings.Builder, c *Contract, f fixture) {
	t.Helper()
	in, a := p.in, f.answer()
	base := f.BaseURL
	ask := func(r Request, err error) {
		t.Helper()
		showRequest(b, r, err)
		plain, err2 := url.QueryUnescape(r.URL)
		if err != nil || err2 != nil || r.Method != f.Request.Method || plain != base+f.Request.Path {
			t.Errorf("%s: request %s %s (%v), recorded %s %s", f.Name, r.Method, r.URL, err, f.Request.Method, f.Request.Path)
		}
		for name, value := range f.Request.Headers {
			i := slices.IndexFunc(r.Header, func(h Header) bool { return strings.EqualFold(h.Name, name) })
			if name != "authorization" && name != "prefer" && r.Method != "GET" && (i < 0 || r.Header[i].Value != value) {
				t.Errorf("%s: header %s is not %q", f.Name, name, value)
			}
		}
		fmt.Fprintf(b, "  -> %d\n", a.Status)
	}
	switch kind, _, _ := strings.Cut(f.Scenario, "_"); kind {
	case "create", "rate", "validation":
		in, same := p.create(t, f)
		r, err := c.Create(in)
		ask(r, err)
		if !same(r.Body) {
			t.Errorf("%s: the body is %s, recorded %s", f.Name, r.Body, f.Request.Body)
		}
		showCreate(b, c.ReadCreate(a, in))
	case "status":
		ask(c.Status(in))
		s := c.ReadStatus(a, in)
		showStatus(b, s)
		if s.State == events.ClassSucceeded || len(s.Results) > 0 {
			showResult(b, c.ReadResult(a, in))
			for _, link := range s.Results {
				r, err := c.ResultLink(link.URL, in)
				showRequest(b, r, err)
			}
		}
	case "result":
		// The host is said in the fixtures' notes only.
		base = p.files
		ended := p.ended
		if f.Name == "openai-batches/result_error_file" {
			ended = "status_expired_partial" // one of its lines says that the batch expired
		}
		last := recorded(t, p.provider, ended).answer()
		in.LastBody = last.Body
		for _, link := range c.ReadResult(last, in).Links {
			if strings.HasSuffix(link.URL, f.Request.Path) {
				ask(c.ResultLink(link.URL, in))
				in.Link = link.Name
				showResult(b, c.ReadLink(a, in))
				return
			}
		}
		t.Errorf("%s: %s names no such file", f.Name, ended)
	case "reconcile":
		ask(c.Lookup(in))
		l := c.ReadLookup(a, in)
		showLookup(b, l)
		in.Page = l.Next
		r, err := c.Lookup(in)
		showRequest(b, r, err)
		in.Params, in.ClientReference = []byte(`{"version":"other","input":{},"report_type":"other"}`), "other"
		b.WriteString("  read for other parameters and another reference:\n")
		showLookup(b, c.ReadLookup(a, in))
	case "cancel":
		ask(c.Cancel(in))
		showCancel(b, c.ReadCancel(a, in))
	case "webhook":
		header := map[string][]string{}
		for k, v := range f.Request.Headers {
			header[k] = []string{v}
		}
		w, err := c.ReadWebhook([]byte(f.Request.BodyRaw), header)
		if err != nil {
			t.Fatal(err)
		}
		show(b, "webhook", "event", w.EventID, "type", w.Type, "job", w.JobID, "remote", w.Remote, "reference", w.Reference, "detail", w.Detail)
	default:
		t.Errorf("%s: no rule plays this scenario", f.Name)
	}
}

// The built-in contracts load, and what they promise is read by a human.
func TestBuiltIn(t *testing.T) {
	entries, err := contracts.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]events.Guarantee{
		"example": events.Deduplicated, "example-lookup": events.Recoverable,
		"example-ask": events.AskAfterLoss, "replicate": events.AskAfterLoss,
		"openai-batches": events.AskAfterLoss, "stripe-reporting": events.Deduplicated,
	}
	var b strings.Builder
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".yaml")
		c := builtin(t, name)
		if c.Name != name || c.Guarantee() != want[name] {
			t.Errorf("%s: name %q, guarantee %s, want %s", name, c.Name, c.Guarantee(), want[name])
		}
		delete(want, name)
		fmt.Fprintf(&b, "%s\n", c.Explain())
		p := c.Promises(true)
		fmt.Fprintf(&b, "%s\n\n", strings.ReplaceAll(line(p), " ", "\n  "))
		if c.Promises(false).WebhookNamesJob {
			t.Errorf("%s: a webhook that cannot reach us names a job", name)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	golden(t, "explain.txt", b.String())
}

// answers are read by the example contracts; each case says what went before
// the arrow in plain text, so that the golden file can be reviewed by itself.
func TestExampleTranscript(t *testing.T) {
	type step struct {
		what   string
		status int
		header string // "name: value", separated by "; "
		body   string
		cut    bool
	}
	params := []byte(`{"kind":"render","n":9007199254740991,"a":1.0,"b":1e2,"c":0.1}`)
	base := Inputs{Params: params, Token: "tok", ClientReference: "cfref", JobID: "j1", StatusURL: ""}
	html := "<!doctype html><html><head><style>x{}</style></head><body><h1>Bad gateway</h1></body></html>"
	problem := `{"type":"about:blank","status":422,"code":"bad_kind","detail":"no such kind, see https://docs.test/x?token=s3cret"}`
	groups := []struct {
		name  string
		read  func(b *strings.Builder, c *Contract, a Answer, in Inputs)
		on    string
		steps []step
	}{
		{"create", func(b *strings.Builder, c *Contract, a Answer, in Inputs) { showCreate(b, c.ReadCreate(a, in)) }, "example", []step{
			{what: "accepted", status: 202, header: "Location: /v1/jobs/j1", body: `{"job_id":"j1","state":"queued","status_url":"x"}`},
			{what: "replayed, the same", status: 200, body: `{"job_id":"j1","state":"running","replayed":true,"request":{"kind":"render","n":9007199254740991,"a":1,"b":100,"c":0.1,"client_reference":"cfref"}}`},
			{what: "replayed, another number", status: 200, body: `{"job_id":"j1","state":"running","replayed":true,"request":{"kind":"render","n":9007199254740990,"a":1,"b":100,"c":0.1}}`},
			{what: "FC-41: an id as a number", status: 202, body: `{"job_id":9007199254740993,"state":"queued"}`},
			{what: "an id beyond 64 bits", status: 202, body: `{"job_id":123456789012345678901234567890,"state":"queued"}`},
			{what: "FC-02 a: conflict names the job", status: 409, body: `{"code":"duplicate","job_id":"j1"}`},
			{what: "FC-02 b: conflict names none", status: 409, body: `{"code":"duplicate"}`},
			{what: "in progress", status: 409, header: "Retry-After: 7", body: `{"code":"in_progress"}`},
			{what: "refused", status: 422, body: problem},
			{what: "refused without a body", status: 401},
			{what: "refused for now", status: 429, header: "Retry-After: 30", body: `{"code":"slow"}`},
			{what: "refused and yet a job", status: 422, body: `{"code":"odd","job_id":"j1"}`},
			{what: "FC-12: 200 with an error only", status: 200, body: `{"error":{"code":"Q1","message":"no room"}}`},
			{what: "FC-12: 202 with an error only", status: 202, body: `{"error":{"code":"Q1","message":"no room"}}`},
			{what: "no id", status: 202, body: `{"state":"queued"}`},
			{what: "empty id", status: 202, body: `{"job_id":"","state":"queued"}`},
			{what: "null id", status: 202, body: `{"job_id":null}`},
			{what: "id that is an object", status: 202, body: `{"job_id":{}}`},
			{what: "id with a control character", status: 202, body: `{"job_id":"a\nb"}`},
			{what: "empty body", status: 202},
			{what: "FC-14: HTML", status: 502, body: html},
			{what: "HTML with a status that would refuse", status: 403, body: html},
			{what: "HTML 200", status: 200, body: html},
			{what: "server error", status: 500, body: `{"code":"oops"}`},
			{what: "unavailable", status: 503, header: "Retry-After: 2"},
			{what: "cut", status: 202, body: `{"job_id":"j1"}`, cut: true},
			{what: "cut refusal", status: 422, body: `{"co`, cut: true},
			{what: "cut without saying so", status: 202, body: `{"job_id":"j1`},
			{what: "two bodies", status: 202, body: `{"job_id":"j1"}{"job_id":"j2"}`},
			{what: "a name twice", status: 202, body: `{"job_id":"j1","job_id":"j2"}`},
			{what: "an array", status: 202, body: `[]`},
			{what: "a redirect", status: 302, header: "Location: /login"},
			{what: "teapot", status: 418, body: `{}`},
			{what: "Location that is no link", status: 202, header: "Location: ftp://h/x", body: `{"job_id":"j1"}`},
		}},
		{"status", func(b *strings.Builder, c *Contract, a Answer, in Inputs) { showStatus(b, c.ReadStatus(a, in)) }, "example", []step{
			{what: "queued", status: 200, body: `{"job_id":"j1","state":"queued","updated_at":"2026-09-21T16:13:20.5+02:00","progress":0}`},
			{what: "running", status: 200, header: "Retry-After: 3", body: `{"job_id":"j1","state":"running","progress":12.50}`},
			{what: "succeeded", status: 200, body: `{"job_id":"j1","state":"succeeded","progress":100}`},
			{what: "FC-12: failed in 200", status: 200, body: `{"status":"Failed","error":{"code":"Q1","message":"no room"}}`},
			{what: "FC-13: unknown word", status: 200, body: `{"job_id":"j1","state":"on_hold"}`},
			{what: "FC-13: other case and blanks", status: 200, body: `{"job_id":"j1","state":" SuccEEded\n"}`},
			{what: "inner blank is another word", status: 200, body: `{"job_id":"j1","state":"suc ceeded"}`},
			{what: "no state", status: 200, body: `{"job_id":"j1"}`},
			{what: "null state", status: 200, body: `{"job_id":"j1","state":null}`},
			{what: "state is a number", status: 200, body: `{"job_id":"j1","state":7}`},
			{what: "state is a list", status: 200, body: `{"job_id":"j1","state":["queued"]}`},
			{what: "another job", status: 200, body: `{"job_id":"j2","state":"running"}`},
			{what: "unreadable time", status: 200, body: `{"job_id":"j1","state":"running","updated_at":"yesterday"}`},
			{what: "FC-16: unauthorized", status: 401, body: `{"code":"bad_key"}`},
			{what: "FC-16: forbidden", status: 403},
			{what: "FC-11: not found", status: 404, body: `{"code":"job_not_found"}`},
			{what: "gone", status: 410},
			{what: "FC-07: date", status: 503, header: "Retry-After: Mon, 21 Sep 2026 14:14:08 GMT"},
			{what: "FC-08: far", status: 429, header: "Retry-After: 99999999999999999999"},
			{what: "timeout", status: 408},
			{what: "other", status: 400, body: `{"code":"x"}`},
			{what: "FC-14: HTML", status: 504, body: html},
			{what: "HTML 200", status: 200, body: html},
			{what: "empty", status: 200},
			{what: "FC-14: empty 502", status: 502},
			{what: "cut", status: 200, body: `{"job_id":"j1","state":"suc`, cut: true},
			{what: "no content", status: 204},
			{what: "redirect", status: 301},
			{what: "invalid UTF-8 in a log", status: 200, body: "{\"job_id\":\"j1\",\"state\":\"running\",\"log\":\"\xff\"}"},
		}},
		{"lookup", func(b *strings.Builder, c *Contract, a Answer, in Inputs) { showLookup(b, c.ReadLookup(a, in)) }, "example-lookup", []step{
			{what: "ours", status: 200, body: `{"jobs":[{"job_id":9007199254740993,"client_reference":"cfref","created_at":"2026-09-21T14:13:20Z","status_url":"jobs/x"}]}`},
			{what: "filter ignored", status: 200, body: `{"jobs":[{"job_id":"a","client_reference":"other"},{"job_id":"b"},{"job_id":"c","client_reference":"cfref"}],"next":"?client_reference=cfref&cursor=2"}`},
			{what: "two", status: 200, body: `{"jobs":[{"job_id":"a","client_reference":"cfref"},{"job_id":"b","client_reference":"cfref"}]}`},
			{what: "none", status: 200, body: `{"jobs":[]}`},
			{what: "no list", status: 200, body: `{}`},
			{what: "null list", status: 200, body: `{"jobs":null}`},
			{what: "not a list", status: 200, body: `{"jobs":{"a":1}}`},
			{what: "ours without an id", status: 200, body: `{"jobs":[{"client_reference":"cfref"}]}`},
			{what: "an item that is no object", status: 200, body: `{"jobs":[7]}`},
			{what: "next on another host", status: 200, body: `{"jobs":[],"next":"https://evil.test/v1/jobs"}`},
			{what: "not found is not absent", status: 404, body: `{}`},
			{what: "error", status: 500},
			{what: "cut", status: 200, body: `{"jobs":[]}`, cut: true},
		}},
		{"cancel", func(b *strings.Builder, c *Contract, a Answer, in Inputs) { showCancel(b, c.ReadCancel(a, in)) }, "example", []step{
			{what: "acknowledged", status: 202, body: `{"job_id":"j1","state":"cancelling"}`},
			{what: "at once", status: 202, body: `{"job_id":"j1","state":"cancelled"}`},
			{what: "empty", status: 202},
			{what: "too late", status: 409, body: `{"code":"too_late","state":"succeeded"}`},
			{what: "refused", status: 409, body: `{"code":"cancel_refused"}`},
			{what: "unsupported", status: 405, body: `{"code":"cancel_unsupported"}`},
			{what: "not found", status: 404},
			{what: "throttled", status: 429, header: "Retry-After: 5"},
			{what: "server", status: 500},
			{what: "HTML", status: 200, body: html},
			{what: "cut", status: 202, body: `{"state":"canc`, cut: true},
		}},
		{"result", func(b *strings.Builder, c *Contract, a Answer, in Inputs) { showResult(b, c.ReadResult(a, in)) }, "example", []step{
			{what: "JSON", status: 200, header: "Content-Type: Application/JSON; charset=utf-8", body: `{"output":1.00}`},
			{what: "not JSON", status: 200, header: "Content-Type: text/plain", body: `done`},
			{what: "FC-22: not yet", status: 404, body: `{"code":"no_result"}`},
			{what: "FC-22: empty", status: 200},
			{what: "gone", status: 410, body: `{"code":"result_taken"}`},
			{what: "unauthorized", status: 401},
			{what: "throttled", status: 429, header: "Retry-After: 1"},
			{what: "server", status: 500, body: html},
			{what: "cut", status: 200, body: `{"output`, cut: true},
			{what: "FC-14: an HTML page where JSON is expected", status: 200, header: "Content-Type: text/html; charset=utf-8", body: html},
		}},
	}
	var b strings.Builder
	b.WriteString("# What the example contracts read from answers. Case, status, reading.\n")
	for _, g := range groups {
		c := builtin(t, g.on)
		fmt.Fprintf(&b, "\n== %s, contract %s\n", g.name, g.on)
		for _, s := range g.steps {
			a := Answer{Status: s.status, Header: map[string][]string{}, Body: []byte(s.body), URL: "http://127.0.0.1:8787/v1/jobs", ReceivedAt: received, Truncated: s.cut}
			if s.header != "" {
				k, v, _ := strings.Cut(s.header, ": ")
				a.Header[k] = []string{v}
			}
			fmt.Fprintf(&b, "%s: %d\n", s.what, s.status)
			g.read(&b, c, a, base)
		}
	}
	if strings.Contains(b.String(), "s3cret") {
		t.Error("a secret of a link was kept")
	}
	golden(t, "example.txt", b.String())
}

// Edits of the example contract that must be refused, with the whole message.
func TestBadContracts(t *testing.T) {
	bad := []struct {
		name  string
		pairs []string
	}{
		{"unknown variable", []string{"job_id: body.?job_id\n", "job_id: bod.job_id\n"}},
		{"several at once", []string{"contract: 1", "contract: 2", "name: example", "name: Ex ample", "second_create: returns_first", "second_create: maybe", "repeat: safe", "repeat: often"}},
		{"wrong type", []string{"accepted: status in [200, 201, 202]", "accepted: status + 1"}},
		{"wrong comparison", []string{"accepted: status in [200, 201, 202]", `accepted: status == "202"`}},
		{"missing read as false", []string{"accepted: status in [200, 201, 202]", "accepted: body.?ok"}},
		{"syntax", []string{"accepted: status in [200, 201, 202]", "accepted: status in [200,"}},
		{"syntax in a folded block", []string{"&& given(body.?error)", "&& giben(body.?error)"}},
		{"syntax in quotes", []string{"expired: status == 410", `expired: "status == 410 &&"`}},
		{"unknown field", []string{"title:", "titel:"}},
		{"declared guarantee", []string{"promises:\n", "promises:\n  guarantee: deduplicated\n"}},
		{"twice", []string{"token:\n", "title: again\ntoken:\n"}},
		{"missing sections", []string{"base_url: http://127.0.0.1:8787\n", "", "    state: body.?state.orValue(body.?status.orValue(\"\"))\n", ""}},
		{"base URL with a secret", []string{"http://127.0.0.1:8787", "https://me:pw@host/"}},
		{"base URL of another scheme", []string{"http://127.0.0.1:8787", "file:///etc"}},
		{"credential twice", []string{"  header: Authorization\n", "  header: Authorization\n  query: key\n"}},
		{"credential without a place", []string{"Bearer {secret}", "Bearer secret"}},
		{"header of the connection", []string{"Idempotency-Key:", "Content-Length:"}},
		{"template not closed", []string{`"{token}"`, `"{token"`}},
		{"template with an unknown name", []string{`"{token}"`, `"x-{tokn}"`}},
		{"path with a query", []string{"path: /v1/jobs/{job.id}/cancel", "path: /v1/jobs/{job.id}?cancel=1"}},
		{"path without a slash", []string{"path: /v1/jobs/{job.id}/cancel", `path: "{job.id}/cancel"`}},
		{"answer read in a request", []string{"path: /v1/jobs/{job.id}/cancel", "path: /v1/jobs/{body.id}/cancel"}},
		{"pointer", []string{"/client_reference: client", "client_reference: client"}},
		{"bound", []string{"poll_interval: {default: 2s, min: 10ms, max: 1h}", "poll_interval: {default: 2h, min: 10ms, max: 1h}"}},
		{"bound of the program", []string{"settle: 30s", "settle: 40d"}},
		{"not a duration", []string{"settle: 30s", "settle: soon"}},
		{"not a number", []string{"attempts: {default: 10, max: 100}", "attempts: {default: ten, max: 100}"}},
		{"class of nothing", []string{"queued: [queued]", "waiting: [queued]"}},
		{"word twice", []string{"running: [running, cancelling]", "running: [running, QUEUED ]"}},
		{"nothing succeeds", []string{"succeeded: [succeeded]", "succeeded: []", "partial: [partial]", "partial: []"}},
		{"anchor", []string{"queued: [queued]", "queued: &q [queued]"}},
		{"tag", []string{"queued: [queued]", "queued: !x [queued]"}},
		{"two documents", []string{"promises:\n", "---\npromises:\n"}},
		{"not YAML", []string{"promises:\n", "promises: [\n"}},
		{"token not sent", []string{`    Idempotency-Key: "{token}"`, `    X-Other: x`}},
		{"token sent, nothing said", []string{"token:\n  form: uuid\n  second_create: returns_first\n  window: 24h\n", ""}},
		{"token without a settle time", []string{"  settle: 30s\n", ""}},
		{"token window shorter than settle", []string{"window: 24h", "window: 1m", "settle: 30s", "settle: 5m"}},
		{"window without a promise", []string{"second_create: returns_first", "second_create: ignored"}},
		{"conflict named, none read", []string{"second_create: returns_first", "second_create: names_first", `    conflict: status == 409 && body.?code.orValue("") != "in_progress"` + "\n", ""}},
		{"refusal proves, none read", []string{"promises:\n", "promises:\n  refusal_is_proof: true\n", `    conflict: status == 409 && body.?code.orValue("") != "in_progress"` + "\n", ""}},
		{"reference in the URL, none sent", []string{"/webhook_url: callback_url", "/webhook_url: '\"x\"'", "  reference: body.?client_reference", "  reference_in_url: true"}},
		{"webhook reference, none sent", []string{"      /client_reference: client_reference\n", "", `    Idempotency-Key: "{token}"`, "    X-Other: x", "token:\n  form: uuid\n  second_create: returns_first\n  window: 24h\n", ""}},
		{"cost", []string{"accepted: status in [200, 201, 202]", "accepted: " + strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)}},
	}
	var b strings.Builder
	b.WriteString("# Edits of contracts/example.yaml and what the author is told.\n")
	for _, c := range bad {
		_, err := Parse("example.yaml", edited(t, "example", c.pairs...))
		if err == nil {
			t.Errorf("%s: loaded", c.name)
			continue
		}
		fmt.Fprintf(&b, "\n== %s\n%v\n", c.name, err)
	}
	lookup := []struct {
		name  string
		pairs []string
	}{
		{"order without ages", []string{"  late: 5s\n", "  late: 5s\n  order: newest_first\n", "    created_at: item.?created_at\n", ""}},
		{"order of another kind", []string{"  late: 5s\n", "  late: 5s\n  order: oldest_first\n"}},
		{"candidates claim to be conclusive", []string{"answers: exact", "answers: candidates"}},
		{"exact without a comparison", []string{"exact: item.?client_reference.orValue(\"\") == client_reference", "match: \"true\""}},
		{"exact that looks at nothing", []string{"exact: item.?client_reference.orValue(\"\") == client_reference", "exact: client_reference != \"\""}},
		{"exact without our reference", []string{"exact: item.?client_reference.orValue(\"\") == client_reference", "exact: item.mine"}},
		{"exact, reference not sent", []string{"      /client_reference: client_reference\n", "", "  reference: body.?client_reference\n", ""}},
		{"conclusive without a settle time", []string{"  settle: 30s\n", ""}},
		{"page token that is never sent", []string{"next: body.?next", "next_page: body.?next"}},
	}
	for _, c := range lookup {
		_, err := Parse("example-lookup.yaml", edited(t, "example-lookup", c.pairs...))
		if err == nil {
			t.Errorf("%s: loaded", c.name)
			continue
		}
		fmt.Fprintf(&b, "\n== %s\n%v\n", c.name, err)
	}
	// Edits of the contract the tests of preparations use.
	whole := string(edited(t, "example-ask", create, preparations))
	for _, c := range []struct{ name, old, new string }{
		{"preparation that looks at more than parameters", "when: given(params.?rows)", "when: job.id != ''"},
		{"preparation that gives no truth", "done: status == 200", "done: body.?ok"},
		{"value that is not yet there", "path: /v1/files\n", "path: /v1/files/{prepared.file}\n"},
		{"value that nothing gives", "{prepared.session}", "{prepared.sessoin}"},
		{"value that is no text", "file: body.?id", "file: '[1]'"},
		{"value without a name CEL takes", "file: body.?id", "in: body.?id"},
		{"value twice", "session: body.?session", "file: body.?session"},
		{"repeat that is not safe", "repeat: safe\n      path: /v1/files\n", "repeat: once\n      path: /v1/files\n"},
		{"no repeat", "      repeat: safe\n      method: PUT\n", ""},
		{"preparation with the token", "reference: client_reference", "reference: token"},
		{"name twice", "name: seal", "name: upload"},
		{"preparation by link", "path: /v1/session", "url: job.status_url"},
		{"file of two kinds", "lines: /rows", "lines: /rows, text: token"},
		{"file of no kind", ", lines: /rows", ""},
		{"file with a quote in its name", "filename: rows.jsonl", `filename: 'a"b'`},
		{"lines that are no pointer", "lines: /rows", "lines: rows"},
		{"part that cannot be typed", `purpose: '"batch"'`, "purpose: pramas.x"},
		{"parts and members", "multipart:", "from: params\n        multipart:"},
		{"form that says what it is", "        multipart:", "        as: form\n      headers: {content-type: x}\n      query:"},
		{"drop of a deep member", "    from: params\n", "    from: params\n    drop: [/a/b]\n"},
		{"encoding nobody knows", "    from: params\n", "    from: params\n    as: xml\n"},
		{"no result that cannot be typed", "  read:\n    job_id:", "  read:\n    no_result: body.?output\n    job_id:"},
		{"links that are neither list nor mapping", "  checks:", "  links: status + 1\n  checks:"},
		{"check of two kinds", "      json: true", "      json: true\n      jsonl: true"},
		{"check that counts no number", "      json: true", "      lines: last.x == 1"},
		{"check with a condition that is none", "      json: true", "      json: true\n      when: last.?x.orValue(1) + 1"},
		{"check that compares a size with text", "      json: true", "      size: '\"1\"'"},
		{"check of the result with a link", "      json: true", "      json: true\n      link: a"},
		{"choice of one", "\ncreate:", "\nparams: {one_of: [a]}\ncreate:"},
	} {
		text := strings.Replace(whole, c.old, c.new, 1)
		if text == whole {
			t.Errorf("%s: nothing to edit", c.name)
		}
		_, err := Parse("prepare.yaml", []byte(text))
		if err == nil {
			t.Errorf("%s: loaded", c.name)
			continue
		}
		fmt.Fprintf(&b, "\n== %s\n%v\n", c.name, err)
	}
	priced, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new string }{
		{"cost without a unit", "  unit: USD\n", ""},
		{"cost in no unit", "  unit: USD", "  unit: US dollars"},
		{"cost without an amount", "  amount: decimal(25 * params.?copies.orValue(1), 2)\n", ""},
		{"cost that is no amount", "decimal(25 * params.?copies.orValue(1), 2)", "params.?copies.orValue(1) > 2"},
		{"cost with a part of a copy", "decimal(25 * params.?copies.orValue(1), 2)", "decimal(0.25, 2)"},
		{"cost by the answer", "params.?copies", "body.?copies"},
	} {
		text := strings.Replace(string(priced), c.old, c.new, 1)
		if _, err := Parse("example.yaml", []byte(text)); err == nil || text == string(priced) {
			t.Errorf("%s: loaded", c.name)
		} else {
			fmt.Fprintf(&b, "\n== %s\n%v\n", c.name, err)
		}
	}
	further := []struct {
		name  string
		pairs []string
	}{
		{"an input nobody waits for", []string{waits, "classes:\n"}},
		{"an input that is not sent", []string{"  repeat: safe\n  params", "  body: empty\n  repeat: safe\n  params"}},
		{"further calls that say nothing", []string{"  repeat: safe\n  params", "  params", "    done: status == 200\n", "", "    refused: status == 409\n", ""}},
		{"further calls elsewhere", []string{"  repeat: safe\n  params", "  url: job.status_url\n  repeat: safe\n  params", "  repeat: once\n", "  method: GET\n  repeat: once\n"}},
		{"a cleanup of which job", []string{"cleanup:\n  path: /v1/jobs/{job.id}", "cleanup:\n  path: /v1/jobs/all"}},
		{"further calls with the create's token", []string{"{input_token}", "{token}"}},
		{"an input in a cleanup", []string{"cleanup:\n  path: /v1/jobs/{job.id}", "cleanup:\n  path: /v1/jobs/{job.id}/{input.answer}\n  body: input"}},
		{"odd parameters of an input", []string{"type: string, enum", "type: text, enum"}},
	}
	for _, c := range further {
		_, err := Parse("answers.yaml", answering(t, c.pairs...))
		if err == nil {
			t.Errorf("%s: loaded", c.name)
			continue
		}
		fmt.Fprintf(&b, "\n== %s\n%v\n", c.name, err)
	}
	for _, src := range []string{"", "# nothing\n", "- a\n", "a: b: c\n", "\xff\xfe", "contract: 1\n"} {
		_, err := Parse("odd.yaml", []byte(src))
		if err == nil {
			t.Errorf("%q: loaded", src)
			continue
		}
		fmt.Fprintf(&b, "\n== the file %q\n%v\n", src, err)
	}
	golden(t, "bad.txt", b.String())
	if _, err := Parse("big.yaml", bytes.Repeat([]byte("#"), MaxFile+1)); err == nil {
		t.Error("a file over the bound was read")
	}
}

// What a contract leaves out costs it the guarantee, never the other way round.
func TestGuaranteeIsComputed(t *testing.T) {
	for name, c := range map[string]struct {
		from  string
		pairs []string
		want  events.Guarantee
	}{
		"token refused":          {"example", []string{"second_create: returns_first\n  window: 24h", "second_create: refused"}, events.AskAfterLoss},
		"token ignored":          {"example", []string{"second_create: returns_first\n  window: 24h", "second_create: ignored"}, events.AskAfterLoss},
		"token named by 409":     {"example", []string{"second_create: returns_first", "second_create: names_first"}, events.Deduplicated},
		"token for ever":         {"example", []string{"window: 24h", "window: forever"}, events.Deduplicated},
		"look-up not conclusive": {"example-lookup", []string{"  conclusive: true\n", ""}, events.AskAfterLoss},
		"look-up candidates":     {"example-lookup", []string{"answers: exact\n  conclusive: true", "answers: candidates"}, events.AskAfterLoss},
	} {
		if got := parse(t, edited(t, c.from, c.pairs...)).Guarantee(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if p := builtin(t, "example-lookup").Promises(true); p.Settle != 35*time.Second {
		t.Errorf("settle is %s: the list's lateness is not in it", p.Settle)
	}
	if !slices.Contains(knownClasses, events.ClassPartial) {
		t.Error("partial is no class")
	}
}

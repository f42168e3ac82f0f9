package contract

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/httprule"
)

func TestRequests(t *testing.T) {
	params := []byte("{ \"kind\":\"render\", \"n\":9007199254740991, \"a\":1.0,\"b\":1e2, \"c\":0.1 }")
	in := Inputs{Params: params, Token: "t0k", ClientReference: "cfref", JobID: "j1"}
	with := func(change func(*Inputs)) Inputs {
		out := in
		change(&out)
		return out
	}
	example, lookup, ask := builtin(t, "example"), builtin(t, "example-lookup"), builtin(t, "example-ask")
	replicate := builtin(t, "replicate")
	var b strings.Builder
	b.WriteString("# Requests made from inputs.\n")
	for _, c := range []struct {
		what string
		make func(Inputs) (Request, error)
		in   Inputs
	}{
		{"FC-41: create, number text unchanged", example.Create, in},
		{"create with a place to call back", example.Create, with(func(i *Inputs) { i.CallbackURL = "https://hooks.test/x?a=1&b=2" })},
		{"create without a token", example.Create, with(func(i *Inputs) { i.Token = "" })},
		{"create without a reference", lookup.Create, with(func(i *Inputs) { i.ClientReference = "" })},
		{"create that adds nothing sends the caller's bytes", ask.Create, in},
		{"another base", example.Create, with(func(i *Inputs) { i.BaseURL = "https://proxy.test:444/base/" })},
		{"a base that is none", example.Create, with(func(i *Inputs) { i.BaseURL = "https://u:p@h/?x" })},
		{"status by id", example.Status, in},
		{"FC-15: an awkward id is one segment", example.Status, with(func(i *Inputs) { i.JobID = "a/../b?x=1#é" })},
		{"an id of dots", example.Status, with(func(i *Inputs) { i.JobID = ".." })},
		{"no id", example.Status, with(func(i *Inputs) { i.JobID = "" })},
		{"FC-15: status by link, query untouched", example.Status, with(func(i *Inputs) { i.StatusURL = "http://127.0.0.1:8787/v1/jobs/abc?x=1%2F2" })},
		{"status by a link to another origin takes the path", example.Status, with(func(i *Inputs) { i.StatusURL = "http://127.0.0.1:8788/v1/jobs/abc" })},
		{"the same host over another scheme too", example.Status, with(func(i *Inputs) { i.StatusURL = "https://127.0.0.1:8787/v1/jobs/abc" })},
		{"with another base the contract's own is no longer trusted", replicate.Status, with(func(i *Inputs) {
			i.BaseURL, i.StatusURL = "http://127.0.0.1:9/replicate", "https://api.replicate.com/v1/predictions/j1"
		})},
		{"look-up", lookup.Lookup, with(func(i *Inputs) { i.ClientReference = "a b&c" })},
		{"look-up, next page", lookup.Lookup, with(func(i *Inputs) { i.Page = "http://127.0.0.1:8787/v1/jobs?cursor=2" })},
		{"look-up, next page elsewhere", lookup.Lookup, with(func(i *Inputs) { i.Page = "https://evil.test/v1/jobs?cursor=2" })},
		{"look-up without a reference", lookup.Lookup, with(func(i *Inputs) { i.ClientReference = "" })},
		{"no look-up", example.Lookup, in},
		{"cancel", example.Cancel, in},
		{"result", example.Result, in},
		{"result through status", replicate.Result, in},
		{"a link to a file", func(i Inputs) (Request, error) { return replicate.ResultLink("https://files.test/x?sig=1", i) }, in},
		{"a link on the provider's own host", func(i Inputs) (Request, error) { return replicate.ResultLink("https://api.replicate.com/x", i) }, in},
		{"a link that is none", func(i Inputs) (Request, error) { return replicate.ResultLink("file:///etc/passwd", i) }, in},
	} {
		fmt.Fprintf(&b, "\n== %s\n", c.what)
		r, err := c.make(c.in)
		showRequest(&b, r, err)
		again, _ := c.make(c.in)
		if !cmp.Equal(r, again) {
			t.Errorf("%s: the same inputs gave another request", c.what)
		}
	}
	golden(t, "requests.txt", b.String())
	r, err := ask.Create(in)
	if err != nil || !bytes.Equal(r.Body, params) {
		t.Errorf("the caller's bytes became %q: %v", r.Body, err)
	}
}

func TestSetMembers(t *testing.T) {
	c := parse(t, edited(t, "example", "      /client_reference: client_reference\n", `      /metadata/refs/ours: client_reference
      /a~1b: '"x"'
      /list: '[1, 2.5, true, {"k": null}]'
      /big: params.?big
      /none: optional.none()
      /empty: '""'
`, "  reference: body.?client_reference\n", ""))
	got := func(params string) string {
		r, err := c.Create(Inputs{Params: []byte(params), Token: "t", ClientReference: "r"})
		if err != nil {
			return "error: " + err.Error()
		}
		return string(r.Body)
	}
	for params, want := range map[string]string{
		`{}`: `{"metadata":{"refs":{"ours":"r"}},"a/b":"x","list":[1,2.5,true,{"k":null}]}`,
		`{"metadata":{"mine":1.0,"refs":{}},"z":[1e2]}`:                 `{"metadata":{"mine":1.0,"refs":{"ours":"r"}},"z":[1e2],"a/b":"x","list":[1,2.5,true,{"k":null}]}`,
		`{"metadata":[],"z":1}`:                                         `error: create.body: cannot set the member "refs": not inside an object`,
		`{"big":123456789012345678901234567890,"metadata":{"refs":{}}}`: `{"big":123456789012345678901234567890,"metadata":{"refs":{"ours":"r"}},"a/b":"x","list":[1,2.5,true,{"k":null}]}`,
	} {
		if g := got(params); g != want {
			t.Errorf("%s\n got %s\nwant %s", params, g, want)
		}
	}
	var fields []string
	for _, e := range c.CheckParams([]byte(`{"metadata":{"refs":{"ours":"mine"}},"a/b":1}`)) {
		fields = append(fields, e.Code+" "+e.Field)
	}
	if want := []string{"set_by_contract /metadata/refs/ours", "set_by_contract /a~1b"}; !slices.Equal(fields, want) {
		t.Errorf("params: %q, want %q", fields, want)
	}
}

func TestCheckParams(t *testing.T) {
	c := parse(t, edited(t, "example", "errors:\n", `params:
  required: [kind]
  closed: true
  properties:
    kind: {type: string, enum: [render, transcode]}
    n: {type: number}
    i: {type: integer}
    any: {}
    two: {type: [string, "null"]}
errors:
`))
	for params, want := range map[string]string{
		`{"kind":"render","n":1,"i":-5,"any":[],"two":null}`: "",
		`{"kind":"render","n":1.5,"two":"x"}`:                "",
		`{}`:                                                 "required /kind",
		`[]`:                                                 "type ",
		`{"kind":"delete","i":1.5,"two":7}`:                  "not_allowed /kind; type /i; type /two",
		`{"kind":7,"x/y":1}`:                                 "type /kind; unknown /x~1y",
		`{"kind":"render","webhook_url":""}`:                 "unknown /webhook_url; set_by_contract /webhook_url",
	} {
		var got []string
		for _, e := range c.CheckParams([]byte(params)) {
			got = append(got, e.Code+" "+e.Field)
		}
		if g := strings.Join(got, "; "); g != want {
			t.Errorf("%s: %q, want %q", params, g, want)
		}
	}
}

func TestParameterWords(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want []string
	}{
		{Params{}, []string{"Any JSON object; the provider checks its members."}},
		{Params{Closed: true}, []string{"None: whatever is given is refused."}},
		{Params{Required: []string{"a"}, OneOf: []string{"b", "c"}, Closed: true, Properties: []Property{
			{Name: "a", Types: []string{"string", "null"}, Enum: []string{"x", "y"}, Description: "What it is"},
			{Name: "b"},
		}}, []string{
			"a: string or null, required, one of x, y. What it is", "b: of any type", "c: of any type",
			"Exactly one of b, c.", "Any other is refused.",
		}},
	} {
		if got := c.p.words(); !slices.Equal(got, c.want) {
			t.Errorf("%+v:\n%q\nwant\n%q", c.p, got, c.want)
		}
	}
}

func TestBounds(t *testing.T) {
	c := builtin(t, "example")
	p, err := c.Policy(events.Policy{ClockDifference: time.Second})
	want := events.Policy{
		PollInterval: 2 * time.Second, PollMax: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute,
		RequestTimeout: 30 * time.Second, MaxAttempts: 10, ClockDifference: time.Second,
	}
	if err != nil || p != want {
		t.Errorf("policy %+v %v", p, err)
	}
	if p, err = c.Policy(events.Policy{PollInterval: 10 * time.Minute}); err != nil || p.PollMax != 10*time.Minute {
		t.Errorf("poll_max %s below the interval: %v", p.PollMax, err)
	}
	d, err := c.Deadlines(events.Deadlines{Result: 48 * time.Hour})
	if err != nil || d.Result != 48*time.Hour || d.Create != time.Hour || d.Approval != 7*day {
		t.Errorf("deadlines %+v %v", d, err)
	}
	for name, f := range map[string]func() error{
		"pacing.poll_interval": func() error { _, err := c.Policy(events.Policy{PollInterval: time.Millisecond}); return err },
		"pacing.attempts":      func() error { _, err := c.Policy(events.Policy{MaxAttempts: 101}); return err },
		"deadlines.create":     func() error { _, err := c.Deadlines(events.Deadlines{Create: 8 * day}); return err },
		"deadlines.result":     func() error { _, err := c.Deadlines(events.Deadlines{Result: -time.Second}); return err },
		"deadlines.cancel":     func() error { _, err := c.Deadlines(events.Deadlines{Cancel: 3650 * day}); return err },
	} {
		var e *BoundError
		if err := f(); !errors.As(err, &e) || e.Field != name || e.High == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokens(t *testing.T) {
	key, fp := []byte("instance key"), events.Sum([]byte("fp"))
	forms := map[TokenForm]string{
		TokenHex:    `^[0-9a-f]{64}$`,
		TokenUUID:   `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`,
		TokenBase32: `^[a-z2-7]{32}$`,
	}
	for form, want := range forms {
		got := Token(key, "op_1", fp, form)
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %s", form, got)
		}
		for _, other := range []string{
			Token([]byte("another key"), "op_1", fp, form), Token(key, "op_2", fp, form), Token(key, "op_1", events.Sum(nil), form),
		} {
			if other == got {
				t.Errorf("%s: two operations share a token", form)
			}
		}
	}
	// Fixed: an operation's token must be made again after the ledger was lost.
	if got := Token(key, "op_1", fp, TokenUUID); got != "79eb347c-e3d5-49f1-a6a2-516d06082efa" {
		t.Errorf("token moved: %s", got)
	}
	for name, sends := range map[string][2]bool{
		"example": {true, true}, "example-lookup": {false, true}, "example-ask": {false, false}, "replicate": {false, false},
		"openai-batches": {false, true}, "stripe-reporting": {true, false},
	} {
		token, ref := builtin(t, name).Identifiers(key, "op_1", fp)
		if (token != "") != sends[0] || (ref != "") != sends[1] {
			t.Errorf("%s: token %q, reference %q", name, token, ref)
		}
		if ref != "" && (len(ref) != 26 || strings.Contains(ref, "op_1")) {
			t.Errorf("%s: reference %q", name, ref)
		}
	}
}

// A number in an answer compares as a number where that is exact, and is never
// taken for another one.
func TestNumbersInExpressions(t *testing.T) {
	for expr, want := range map[string]string{
		`text(body.int)`:                     "9007199254740993",
		`text(body.huge)`:                    "123456789012345678901234567890",
		`text(body.half)`:                    "0.5",
		`text(body.one)`:                     "1",
		`text(body.long)`:                    "0.1000000000000000055",
		`body.half > 0.25`:                   "true",
		`0.25 < body.half`:                   "true",
		`body.one == 1`:                      "true",
		`body.int == 9007199254740992`:       "false",
		`body.huge == body.huge`:             "true",
		`body.huge == body.huge2`:            "false",
		`body.huge == 1.2345678901234568e29`: "false",
		`body.huge > 1`:                      "error",
		`body.huge + 1`:                      "error",
		`string(body.huge)`:                  "error",
		`body.missing == 1`:                  "error",
		`text(body.missing)`:                 "error",
		`text(body.?missing)`:                "",
		`given(body.nothing)`:                "false",
		`given(body.empty)`:                  "false",
		`given(body.?missing)`:               "false",
		`given(body.zero)`:                   "true",
		`text(body.zero)`:                    "0",
		`text(body.minus)`:                   "0",
		`text(body.list)`:                    "error",
	} {
		// The outcome of a truth is shown as text, since progress is text.
		shown := expr
		if strings.ContainsAny(expr, "=<>") || strings.HasPrefix(expr, "given") {
			shown = "(" + expr + ") ? \"true\" : \"false\""
		}
		c := parse(t, edited(t, "example", "progress: body.?progress", "progress: >-\n      "+shown))
		s := c.ReadStatus(Answer{Status: 200, URL: "http://h/", Body: []byte(`{"state":"running","int":9007199254740993,"huge":123456789012345678901234567890,
			"huge2":123456789012345678901234567891,"half":0.5,"one":1.0,"long":0.1000000000000000055,"nothing":null,"empty":"","zero":0,"minus":-0,"list":[]}`)}, Inputs{JobID: "j"})
		got := s.Progress
		if s.Detail != "" {
			got = "error"
		}
		if got != want {
			t.Errorf("%s is %q (%s), want %q", expr, got, s.Detail, want)
		}
	}
}

// An expression that would run for ever is stopped, and that is an error.
func TestCostIsBounded(t *testing.T) {
	loop := "true"
	for _, v := range []string{"a", "b", "c", "d", "e"} {
		loop = fmt.Sprintf("body.list.all(%s, %s)", v, loop)
	}
	c := parse(t, edited(t, "example", "progress: body.?progress", `ok: "`+loop+`"`))
	body := []byte(`{"state":"running","list":[` + strings.Repeat("1,", 99) + `1]}`)
	s := c.ReadStatus(Answer{Status: 200, Body: body, URL: "http://h/"}, Inputs{JobID: "j"})
	if s.Class != events.ErrorUnreadable || !strings.Contains(s.Detail, "cost limit") {
		t.Errorf("%+v", s)
	}
}

func TestResultThroughStatus(t *testing.T) {
	c := builtin(t, "replicate")
	read := func(output, more string) ResultReading {
		body := `{"id":"j1","status":"succeeded","output":` + output + more + `}`
		return c.ReadResult(Answer{Status: 200, Body: []byte(body), URL: "https://api.replicate.com/v1/predictions/j1"}, Inputs{JobID: "j1"})
	}
	for output, want := range map[string]string{
		`"https://f.test/a"`:                      "links 1",
		`["https://f.test/a","https://f.test/b"]`: "links 2",
		`["to","ken"]`:                            `value ["to","ken"]`,
		`{"n":1.50}`:                              `value {"n":1.50}`,
		`"text"`:                                  `value "text"`,
		`null`:                                    "not ready not_found",
		`""`:                                      "not ready not_found",
	} {
		r := read(output, "")
		got := ""
		switch {
		case len(r.Links) > 0:
			got = fmt.Sprintf("links %d", len(r.Links))
		case r.NotReady:
			got = "not ready " + string(r.Class)
		default:
			got = "value " + string(r.Body)
		}
		if got != want {
			t.Errorf("%s: %s (%s), want %s", clip(output, 80), clip(got, 80), r.Detail, clip(want, 80))
		}
		if len(r.Links) > 0 && string(r.Body) != output {
			t.Errorf("%s: the value beside the links is %s", output, r.Body)
		}
	}
	if r := read(`null`, `,"data_removed":true`); r.Class != events.ErrorExpired || r.NotReady {
		t.Errorf("removed: %+v", r)
	}
	for status, want := range map[int]events.ErrorClass{403: events.ErrorExpired, 404: events.ErrorExpired, 500: events.ErrorServer, 200: events.ErrorNone} {
		if r := c.ReadLink(Answer{Status: status, Body: []byte("\x89PNG"), URL: "https://f.test/a"}, Inputs{}); r.Class != want {
			t.Errorf("link %d: %s, want %s", status, r.Class, want)
		}
	}
	if r := c.ReadLink(Answer{Status: 200, URL: "https://f.test/a"}, Inputs{}); r.Class == events.ErrorNone || !r.NotReady {
		t.Errorf("an empty file is a result: %+v", r)
	}
}

func TestWebhook(t *testing.T) {
	c := builtin(t, "example")
	if w := c.Webhook; w.Scheme != "hmac-sha256-hex" || w.Header != "X-Signature" || w.Prefix != "sha256=" || w.InURL {
		t.Errorf("webhook %+v", w)
	}
	for body, want := range map[string]WebhookReading{
		`{"event_id":"e1","type":"job.succeeded","job_id":9007199254740993,"state":"succeeded","client_reference":"r"}`: {
			EventID: "e1", Type: "job.succeeded", JobID: "9007199254740993", Remote: "succeeded", Reference: "r",
		},
		`{}`:                {},
		`{"job_id":"a\nb"}`: {Detail: "webhook.job_id: body.?job_id: the text has a control character or more than 1024 bytes"},
	} {
		if got, err := c.ReadWebhook([]byte(body), nil); err != nil || got != want {
			t.Errorf("%s: %+v %v", body, got, err)
		}
	}
	for _, body := range []string{"", "x=1", "{", "<html>"} {
		if _, err := c.ReadWebhook([]byte(body), nil); err == nil {
			t.Errorf("%q was read", body)
		}
	}
	if _, err := parse(t, edited(t, "example-ask", "webhook:\n  scheme: hmac-sha256-hex\n  header: X-Signature\n  prefix: \"sha256=\"\n  event_id: body.?event_id\n  type: body.?type\n  job_id: body.?job_id\n  state: body.?state\n", "")).ReadWebhook(nil, nil); !errors.Is(err, ErrNoCall) {
		t.Errorf("a webhook that is not there: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	entries, err := contracts.FS.ReadDir(".")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		src, err := contracts.FS.ReadFile(e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("a: 1\n---\nb: [\n"))
	f.Add([]byte("contract: 1\ncreate: {read: {accepted: |\n  1 +\n  body.x}}\n"))
	f.Add([]byte("create:\n  path: \"/{\"\n  body: {set: {/a: x}}\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := Parse("f.yaml", src)
		if err != nil {
			var e *ParseError
			if !errors.As(err, &e) || len(e.Problems) == 0 {
				t.Fatalf("no problems in %v", err)
			}
			for _, p := range e.Problems {
				if p.Line < 1 || p.Column < 1 || p.Message == "" || p.Caret < 0 || p.Caret > len(p.Source) {
					t.Fatalf("bad place %+v", p)
				}
			}
			return
		}
		if c.Explain() == "" || c.Digest != events.Sum(src) || !ValidName(c.Name) {
			t.Fatalf("bad contract %+v", c)
		}
		if _, err := c.Policy(events.Policy{}); err != nil {
			t.Fatalf("its own defaults break its bounds: %v", err)
		}
		if _, err := c.Deadlines(events.Deadlines{}); err != nil {
			t.Fatalf("its own defaults break its bounds: %v", err)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	var all []*Contract
	entries, err := contracts.FS.ReadDir(".")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, builtin(f, strings.TrimSuffix(e.Name(), ".yaml")))
	}
	all = append(all, prepared(f), parse(f, answering(f)))
	f.Add(202, "Location", "/v1/jobs/a", []byte(`{"job_id":"a","state":"queued"}`), false)
	f.Add(409, "Retry-After", "5", []byte(`{"code":"in_progress"}`), false)
	f.Add(200, "Retry-After", "Mon, 21 Sep 2026 14:14:08 GMT", []byte(`{"job_id":9007199254740993,"state":"succeeded","progress":1e400}`), false)
	f.Add(200, "x", "", []byte(`{"results":[{"id":"a","input":{},"created_at":1}],"next":"?c=1"}`), false)
	f.Add(200, "x", "", []byte(`{"jobs":[{"job_id":"a","client_reference":"r"}],"next":"//evil/"}`), true)
	f.Add(502, "Content-Type", "text/html", []byte("<html>"), false)
	f.Add(200, "webhook-id", "m", []byte(`{"id":"a","status":"succeeded","output":["https://h/?s"],"data_removed":false}`), false)
	f.Add(200, "x", "", []byte(`{"id":"b","status":"completed","request_counts":{"total":3,"completed":2,"failed":1},"output_file_id":"f","error_file_id":"","metadata":{"client_ref":"r"}}`), false)
	f.Add(200, "x", "", []byte(`{"data":[{"id":"b","created_at":2,"created":2,"metadata":{"client_ref":"r"}},{"id":"c","created_at":1,"created":1}],"has_more":true,"last_id":"c"}`), false)
	f.Add(400, "x", "", []byte(`{"error":{"type":"idempotency_error"}}`), false)
	f.Add(400, "x", "", []byte(`{"id":"b","error":{"type":"invalid_request_error"}}`), false)
	f.Add(200, "x", "", []byte(`{"id":"r","report_type":"x","parameters":{"a":[1,{"b":null}]},"status":"succeeded","result":{"url":"/f","size":1.5}}`), false)
	f.Add(200, "x", "", []byte("{\"a\":1}\n\n[2]\n"), false)
	f.Fuzz(func(t *testing.T, status int, name, value string, body []byte, cut bool) {
		a := Answer{Status: status, Header: map[string][]string{name: {value}}, Body: body, URL: "http://127.0.0.1:8787/v1/jobs", ReceivedAt: received, Truncated: cut}
		in := Inputs{
			Params: []byte(`{"input":{},"rows":[1],"requests":[{}],"report_type":"x","parameters":{"a":1}}`), Token: "t", ClientReference: "r",
			JobID: "a", Link: "output", LastBody: body, Prepared: map[string]string{"file": "f"}, Since: received,
		}
		for _, c := range all {
			fuzzOne(t, c, a, in)
		}
	})
}

func fuzzOne(t *testing.T, c *Contract, a Answer, in Inputs) {
	cr := c.ReadCreate(a, in)
	switch cr.Outcome {
	case events.CreateAccepted:
		if cr.JobID == "" || a.Truncated || a.Status < 200 || a.Status > 299 {
			t.Fatalf("%s: accepted %+v", c.Name, cr)
		}
	case events.CreateRejected:
		if id, err := c.createRead.jobID.id(c.view(a, in).vars); err == nil && id != "" {
			t.Fatalf("%s: rejected, and names %q: %+v", c.Name, id, cr)
		}
		if a.Truncated || cr.JobID != "" || a.Status >= 500 || a.Status < 200 || a.Status/100 == 3 {
			t.Fatalf("%s: rejected %+v", c.Name, cr)
		}
	case events.CreateAmbiguous:
		if cr.Class == events.ErrorNone {
			t.Fatalf("%s: ambiguous without a class %+v", c.Name, cr)
		}
	case events.CreateConflict, events.CreateInProgress:
		if a.Status != 409 && (a.Status != 400 || c.Name != "stripe-reporting") {
			t.Fatalf("%s: %s by status %d", c.Name, cr.Outcome, a.Status)
		}
	default:
		t.Fatalf("%s: outcome %q", c.Name, cr.Outcome)
	}
	if !validName(cr.JobID, maxID) {
		t.Fatalf("%s: job id %q", c.Name, cr.JobID)
	}
	st := c.ReadStatus(a, in)
	if st.Class == events.ErrorNone && (st.State == "" || st.JobID == "" || st.Remote == "" || a.Status < 200 || a.Status > 299) {
		t.Fatalf("%s: status %+v", c.Name, st)
	}
	if st.Class != events.ErrorNone && st.State != "" {
		t.Fatalf("%s: trouble with reading became a state %+v", c.Name, st)
	}
	lr := c.ReadLookup(a, in)
	if lr.Outcome == events.LookupAbsent && (a.Truncated || a.Status < 200 || a.Status > 299) || lr.Outcome == events.LookupFailed && lr.Class == events.ErrorNone {
		t.Fatalf("%s: look-up %+v", c.Name, lr)
	}
	for _, j := range lr.Jobs {
		if j.ID == "" || j.Exact != (c.promises.Lookup == events.LookupExact) {
			t.Fatalf("%s: job %+v", c.Name, j)
		}
	}
	if ca := c.ReadCancel(a, in); ca.Outcome == events.CancelConfirmed && (a.Status/100 != 2 || ca.State != events.ClassCancelled) {
		t.Fatalf("%s: cancel %+v", c.Name, ca)
	}
	if r := c.ReadResult(a, in); r.Class == events.ErrorNone && len(r.Body) == 0 && len(r.Links) == 0 {
		t.Fatalf("%s: an empty result %+v", c.Name, r)
	}
	if r := c.ReadLink(a, in); r.Class == events.ErrorNone && (len(r.Body) == 0 || a.Status/100 != 2 || a.Truncated) {
		t.Fatalf("%s: a file %+v", c.Name, r)
	}
	if st.NoResult && (st.Class != events.ErrorNone || st.State == events.ClassRunning || st.State == events.ClassQueued || st.State == events.ClassUnknown) {
		t.Fatalf("%s: no result of a job that goes on %+v", c.Name, st)
	}
	for _, l := range append(st.Results, c.ReadResult(a, in).Links...) {
		if _, err := httprule.Origin(l.URL); err != nil || l.Name != "" && !validLinkName(l.Name) {
			t.Fatalf("%s: link %+v", c.Name, l)
		}
	}
	steps, err := c.Prepares(in)
	if err != nil || steps != len(c.prepares) {
		t.Fatalf("%s: %d preparations, %v", c.Name, steps, err)
	}
	for step := range steps + 1 {
		fuzzPrepare(t, c, step, a, in)
	}
	for kind, further := range map[string]FurtherReading{"input": c.ReadInput(a, in), "cleanup": c.ReadCleanup(a, in)} {
		good := !a.Truncated && (further.Class == events.ErrorNone) == (further.Outcome == events.CallDone)
		if known := further.Outcome == events.CallDone || further.Outcome == events.CallRefused; known && !good || !known && (further.Outcome != events.CallAmbiguous || further.Class == events.ErrorNone) {
			t.Fatalf("%s: %s %+v", c.Name, kind, further)
		}
	}
	if w, err := c.ReadWebhook(a.Body, a.Header); err == nil && !validName(w.JobID, maxID) {
		t.Fatalf("%s: webhook %+v", c.Name, w)
	}
	for _, msg := range []string{cr.Message, st.Message, cr.Detail, st.Detail} {
		if len(msg) > 2000 || !bytes.Equal(canonical.RedactLinks([]byte(msg)), []byte(msg)) {
			t.Fatalf("%s: words %q", c.Name, msg)
		}
	}
}

func fuzzPrepare(t *testing.T, c *Contract, step int, a Answer, in Inputs) {
	r := c.ReadPrepare(step, a, in)
	switch r.Outcome {
	case events.PrepareDone:
		if r.Class != events.ErrorNone || a.Truncated || len(r.Values) != len(c.prepares[step].read.values) {
			t.Fatalf("%s: done %+v", c.Name, r)
		}
	case events.PrepareRejected:
		if r.Class == events.ErrorNone || a.Truncated || a.Status < 400 || a.Status >= 500 {
			t.Fatalf("%s: rejected %+v", c.Name, r)
		}
	case events.PrepareAmbiguous:
		if r.Class == events.ErrorNone {
			t.Fatalf("%s: ambiguous without a class %+v", c.Name, r)
		}
	case events.PrepareNotSent, events.PreparePresumed:
		t.Fatalf("%s: %+v", c.Name, r)
	}
	for _, v := range r.Values {
		if v.Value == "" || !validName(v.Value, maxID) {
			t.Fatalf("%s: value %+v", c.Name, v)
		}
	}
}

// Whatever the parameters, the bytes of a request are the same each time, a
// form names nothing twice, and the file has one line for each element.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{`{"rows":[1.0,{"a": "\n"}],"x":{"y":[1,{"z":null}]}}`, `{"a[b]":1}`, `{"rows":[]}`, `{"":1}`, `{"a":{"b":{}},"rows":"x"}`, `[]`} {
		f.Add([]byte(s))
	}
	upload := prepared(f)
	form := parse(f, edited(f, "example-ask", "    from: params\n", "    from: params\n    as: form\n"))
	f.Fuzz(func(t *testing.T, params []byte) {
		if canonical.Check(params, 1<<20) != nil {
			return
		}
		in := Inputs{Params: params, ClientReference: "r"}
		problems := form.CheckParams(params)
		if r, err := form.Create(in); err == nil {
			again, _ := form.Create(in)
			if _, err := url.ParseQuery(string(r.Body)); err != nil || !bytes.Equal(r.Body, again.Body) {
				t.Fatalf("form %q: %v", r.Body, err)
			}
			seen := map[string]bool{}
			for pair := range strings.SplitSeq(string(r.Body), "&") {
				name, _, _ := strings.Cut(pair, "=")
				if seen[name] {
					t.Fatalf("%s is given twice", name)
				}
				seen[name] = true
			}
		} else if len(problems) == 0 {
			t.Fatalf("accepted parameters make no form: %v", err)
		}
		n, err := upload.Prepares(in)
		if err != nil || n < 3 {
			return
		}
		r, err := upload.Prepare(0, in)
		if err != nil {
			return
		}
		_, content, _ := strings.Cut(string(r.Body), "application/jsonl\r\n\r\n")
		content, _, _ = strings.Cut(content, "\r\n--")
		for line := range strings.Lines(content) {
			if !validJSON([]byte(line)) || !strings.HasSuffix(line, "\n") {
				t.Fatalf("line %q", line)
			}
		}
	})
}

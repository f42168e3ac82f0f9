package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/events"
)

const create = "create:\n  path: /v1/jobs\n"

const preparations = `create:
  prepare:
    - name: upload
      when: given(params.?rows)
      repeat: safe
      path: /v1/files
      body:
        multipart:
          fields:
            purpose: '"batch"'
            reference: client_reference
            absent: params.?nothing
          file: {name: file, filename: rows.jsonl, type: application/jsonl, lines: /rows}
      read:
        done: status == 200
        values:
          file: body.?id
          bytes: body.?bytes
        rejected: status in [400, 413, 429]
    - name: seal
      repeat: safe
      path: /v1/files/{prepared.file}/seal
      when: given(params.?rows)
      body: none
      read:
        done: status == 204 || body.?sealed.orValue(false) == true
        rejected: "false"
    - name: session
      repeat: safe
      method: PUT
      path: /v1/session
      read:
        done: status == 200
        values:
          session: body.?session
        rejected: "false"
  path: /v1/jobs
  headers:
    X-Session: "{prepared.session}"
`

func prepared(t testing.TB) *Contract {
	t.Helper()
	return parse(t, edited(t, "example-ask", create, preparations, "    from: params\n", "    from: params\n    drop: [/rows]\n", "      /webhook_url: callback_url\n", "      /webhook_url: callback_url\n      /input: prepared.file\n"))
}

func TestPrepareRequests(t *testing.T) {
	c := prepared(t)
	var b strings.Builder
	b.WriteString("# Requests made before the create, and the create.\n")
	for _, params := range []string{`{"rows":[{"n":1.0, "big":12345678901234567890},[1e2,"a\nb"],0.10],"keep":1.50}`, `{"input":"file-7"}`} {
		in := Inputs{Params: []byte(params), ClientReference: "cfref", Prepared: map[string]string{}}
		n, err := c.Prepares(in)
		fmt.Fprintf(&b, "\n== %s: %d, %v\n", params, n, err)
		for step := range n {
			fmt.Fprintf(&b, "%d %s\n", step, c.PrepareName(step, in))
			r, err := c.Prepare(step, in)
			r.Body = bytes.ReplaceAll(r.Body, []byte("\r\n"), []byte("\n  "))
			showRequest(&b, r, err)
			again, _ := c.Prepare(step, in)
			again.Body = bytes.ReplaceAll(again.Body, []byte("\r\n"), []byte("\n  "))
			if !cmp.Equal(r, again) {
				t.Errorf("step %d: the same inputs gave another request", step)
			}
			a := Answer{Status: 200, URL: "http://127.0.0.1:8787/", Body: []byte(`{"id":"file 1/2","bytes":77,"sealed":true,"session":"s"}`)}
			reading := c.ReadPrepare(step, a, in)
			show(&b, "read", append([]any{"outcome", reading.Outcome, "values", reading.Values}, failure(reading.Failure)...)...)
			if _, err := c.Create(in); err == nil {
				t.Errorf("step %d: the create was built without it", step)
			} else {
				fmt.Fprintf(&b, "  before: %v\n", err)
			}
			for _, v := range reading.Values {
				in.Prepared[v.Name] = v.Value
			}
		}
		if _, err := c.Prepare(n, in); !errors.Is(err, ErrNoCall) {
			t.Errorf("a step too many: %v", err)
		}
		b.WriteString("create\n")
		r, err := c.Create(in)
		showRequest(&b, r, err)
		if bad := c.CheckParams(in.Params); len(bad) > 0 {
			t.Errorf("%s: refused: %+v", params, bad)
		}
	}
	golden(t, "prepare.txt", b.String())
}

func TestReadPrepare(t *testing.T) {
	c := prepared(t)
	in := Inputs{Params: []byte(`{"rows":[1]}`)}
	for _, k := range []struct {
		what    string
		a       Answer
		outcome events.PrepareOutcome
		class   events.ErrorClass
		values  string
	}{
		{"done", Answer{Status: 200, Body: []byte(`{"id":"f","bytes":9007199254740993}`)}, events.PrepareDone, events.ErrorNone, "[{bytes 9007199254740993} {file f}]"},
		{"a value is absent", Answer{Status: 200, Body: []byte(`{"id":"f"}`)}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"a value is empty", Answer{Status: 200, Body: []byte(`{"id":"","bytes":1}`)}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"a value is no text", Answer{Status: 200, Body: []byte(`{"id":{},"bytes":1}`)}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"a value could not be sent back", Answer{Status: 200, Body: []byte(`{"id":"a\nb","bytes":1}`)}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"rejected", Answer{Status: 413, Body: []byte(`{"code":"big"}`)}, events.PrepareRejected, events.ErrorRefused, "[]"},
		{"rejected for now", Answer{Status: 429}, events.PrepareRejected, events.ErrorThrottled, "[]"},
		{"credential", Answer{Status: 401}, events.PrepareAmbiguous, events.ErrorUnauthorized, "[]"},
		{"server", Answer{Status: 500, Body: []byte(`{}`)}, events.PrepareAmbiguous, events.ErrorServer, "[]"},
		{"another success", Answer{Status: 202, Body: []byte(`{"id":"f","bytes":1}`)}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"HTML with a status that would refuse", Answer{Status: 400, Body: []byte("<html>no</html>")}, events.PrepareAmbiguous, events.ErrorRefused, "[]"},
		{"HTML 200", Answer{Status: 200, Body: []byte("<html>log in</html>")}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"empty", Answer{Status: 200}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
		{"cut", Answer{Status: 200, Body: []byte(`{"id":"f","bytes":1}`), Truncated: true}, events.PrepareAmbiguous, events.ErrorUnreadable, "[]"},
	} {
		r := c.ReadPrepare(0, k.a, in)
		if r.Outcome != k.outcome || r.Class != k.class || fmt.Sprint(r.Values) != k.values {
			t.Errorf("%s: %+v", k.what, r)
		}
	}
	if r := c.ReadPrepare(1, Answer{Status: 204}, in); r.Outcome != events.PrepareDone || len(r.Values) != 0 {
		t.Errorf("a step without values and without a body: %+v", r)
	}
	if r := c.ReadPrepare(7, Answer{Status: 200}, in); r.Outcome != events.PrepareAmbiguous || r.Class != events.ErrorUnreadable {
		t.Errorf("a step there is not: %+v", r)
	}
	// A contract without preparations needs none.
	if n, err := builtin(t, "example").Prepares(in); n != 0 || err != nil {
		t.Errorf("example needs %d, %v", n, err)
	}
}

// Parameters nothing could be built from are refused before anything is stored.
func TestParamsOfPreparations(t *testing.T) {
	c := parse(t, bytes.Replace(edited(t, "example-ask", create, preparations), []byte("\ncreate:"), []byte("\nparams: {one_of: [rows, input]}\ncreate:"), 1))
	for params, want := range map[string]string{
		`{"rows":[1]}`:             "",
		`{"input":"x"}`:            "",
		`{}`:                       "one_of ",
		`{"rows":[1],"input":"x"}`: "one_of ",
		`{"rows":[]}`:              "not_allowed /rows",
		`{"rows":{"a":1}}`:         "not_allowed /rows",
		`{"rows":7}`:               "not_allowed /rows",
	} {
		got := ""
		for _, e := range c.CheckParams([]byte(params)) {
			got += e.Code + " " + e.Field
		}
		if got != want {
			t.Errorf("%s: %q, want %q", params, got, want)
		}
	}
}

// The parts are read back by the standard library's reader as they were meant.
func TestMultipartReadsBack(t *testing.T) {
	c := prepared(t)
	for _, text := range []string{`["a"]`, `["--cf", "\r\n--\r\n", {"x": "é\u0000"}]`} {
		r, err := c.Prepare(0, Inputs{Params: []byte(`{"rows":` + text + `}`), ClientReference: "ref"})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Header, func(h Header) bool { return h.Name == "Content-Type" })
		kind, params, err := mime.ParseMediaType(r.Header[i].Value)
		if err != nil || kind != "multipart/form-data" {
			t.Fatalf("%s: %v", r.Header[i].Value, err)
		}
		form, err := multipart.NewReader(bytes.NewReader(r.Body), params["boundary"]).ReadForm(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string][]string{"purpose": {"batch"}, "reference": {"ref"}}, form.Value); diff != "" {
			t.Error(diff)
		}
		f, err := form.File["file"][0].Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		var rows []json.RawMessage
		for line := range bytes.Lines(content) {
			rows = append(rows, bytes.TrimSpace(line))
		}
		joined, err := json.Marshal(rows)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if json.Unmarshal(joined, &got) != nil || json.Unmarshal([]byte(text), &want) != nil || !cmp.Equal(got, want) {
			t.Errorf("%s became %s", text, content)
		}
	}
}

func TestBoundaryIsNotInTheContent(t *testing.T) {
	sum := func(n uint64, _ [][]byte) string { return string(rune('a' + n)) }
	if b := boundary([][]byte{[]byte("xa"), []byte("b")}, sum); b != "c" {
		t.Errorf("boundary %q", b)
	}
	one, other := digest(0, [][]byte{[]byte("a"), []byte("b")}), digest(0, [][]byte{[]byte("ab"), {}})
	if one == other || len(one) > 70 {
		t.Errorf("%q, %q", one, other)
	}
}

func TestFormBody(t *testing.T) {
	for raw, want := range map[string]string{
		`{"report_type":"balance.summary.1","parameters":{"interval_start":1788220800,"interval_end":1789430400}}`: "report_type=balance.summary.1&parameters[interval_start]=1788220800&parameters[interval_end]=1789430400",
		`{"b":1.0,"a":[1e2,{"x":true},["é& "]],"n":null,"e":{},"l":[],"s":""}`:                                     "b=1.0&a[0]=1e2&a[1][x]=true&a[2][0]=%C3%A9%26+&s=",
		`{"big":123456789012345678901234567890,"plus":1e+5}`:                                                       "big=123456789012345678901234567890&plus=1e%2B5",
		`{"a b=&":"=&"}`:       "a+b%3D%26=%3D%26",
		`{}`:                   "",
		`{"a[b]":1}`:           "error: /a[b]: a form cannot carry a name that is empty or holds a bracket",
		`{"a":{"x~/":{"":1}}}`: "error: /a/x~0~1/: a form cannot carry a name that is empty or holds a bracket",
		`[]`:                   "error: not inside an object",
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "error: /a" + strings.Repeat("/0", 99) + "…: nested more than 128 deep",
	} {
		body, err := formBody([]byte(raw))
		got := string(body)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", clip(raw, 80), got, want)
		}
		if _, err := url.ParseQuery(string(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	long := `{"` + strings.Repeat("n", 4000) + `":{"` + strings.Repeat("m", 100) + `":1}}`
	if _, err := formBody([]byte(long)); err == nil || !strings.Contains(err.Error(), "at most 4096 bytes") {
		t.Errorf("a name beyond the bound: %v", err)
	}
	wide := `{"a":[` + strings.Repeat(`"&",`, maxBody/4) + `1]}`
	if _, err := formBody([]byte(wide)); err == nil || !strings.Contains(err.Error(), "more than 8388608 bytes") {
		t.Errorf("a form beyond the bound: %v", err)
	}
}

func TestFormCreate(t *testing.T) {
	c := parse(t, edited(t, "example-ask", "    from: params\n", "    from: params\n    as: form\n"))
	r, err := c.Create(Inputs{Params: []byte(`{"a":1.0}`), CallbackURL: "https://h/?a=1"})
	if err != nil || string(r.Body) != "a=1.0&webhook_url=https%3A%2F%2Fh%2F%3Fa%3D1" || r.Header[0] != (Header{"Content-Type", "application/x-www-form-urlencoded"}) {
		t.Errorf("%s %v %v", r.Body, r.Header, err)
	}
	if bad := c.CheckParams([]byte(`{"a":{"b]":1}}`)); len(bad) != 1 || bad[0].Field != "/a/b]" || bad[0].Code != "not_allowed" {
		t.Errorf("%+v", bad)
	}
}

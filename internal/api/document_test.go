package api

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/webhook"
)

// documented serves the options, and fails the test for every answer that the
// document does not allow.
func documented(t testing.TB, o Options) http.Handler {
	t.Helper()
	h := newHandler(o)
	h.described = onceFor(h)
	tags := &shared{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent bytes.Buffer
		r.Body = io.NopCloser(io.TeeReader(r.Body, &sent))
		tee := &teeWriter{ResponseWriter: w}
		// The mux writes the route it found into the request.
		h.ServeHTTP(tee, r)
		if etag := w.Header().Get("ETag"); etag != "" && tee.status == 200 && r.Method == http.MethodGet {
			if before := tags.differs(r.URL.String(), etag, tee.body.Bytes()); before != "" {
				t.Errorf("%s: the tag %s stands for\n%s\nand for\n%s", r.URL, etag, before, tee.body.Bytes())
			}
		}
		for _, problem := range h.judge(r, sent.Bytes(), tee.status, w.Header(), tee.body.Bytes()) {
			t.Errorf("%s %s: the document does not allow the answer %d: %s\n%s", r.Method, r.URL.Path, tee.status, problem, tee.body.Bytes())
		}
	})
}

// described are the documents of all tests, by the routes that are in them: making
// one takes longer than most tests do.
var described struct {
	mu  sync.Mutex
	all map[string]*huma.OpenAPI // guarded by mu
}

func onceFor(h *handler) func() *huma.OpenAPI {
	key := strings.Join(slices.Sorted(maps.Keys(h.serves)), " ")
	own := h.described
	return func() *huma.OpenAPI {
		described.mu.Lock()
		defer described.mu.Unlock()
		if described.all == nil {
			described.all = map[string]*huma.OpenAPI{}
		}
		if described.all[key] == nil {
			described.all[key] = own()
		}
		return described.all[key]
	}
}

type teeWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *teeWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *teeWriter) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}

func (w *teeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// seen counts the answers of all tests, "GET /path 200", so that the last of them
// can tell which documented ones none provoked.
var seen struct {
	mu      sync.Mutex
	answers map[string]int
}

func see(answer string) {
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.answers == nil {
		seen.answers = map[string]int{}
	}
	seen.answers[answer]++
}

// judge holds an answer against the document.
func (h *handler) judge(r *http.Request, sent []byte, status int, header http.Header, body []byte) (problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	registry := h.described().Components.Schemas
	valid := func(what string, s *huma.Schema, text []byte) {
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			say("%s: %v", what, err)
			return
		}
		var result huma.ValidateResult
		huma.Validate(registry, s, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, v, &result)
		for _, err := range result.Errors {
			say("%s: %v", what, err)
		}
	}
	for _, link := range serviceLinks() {
		if !slices.Contains(header["Link"], link) {
			say("it has no Link %s", link)
		}
	}
	op := h.operationAt(r)
	if op == nil {
		want := map[int]string{404: string(ingest.CodeNotFound), 405: string(ingest.CodeMethodNotAllowed), 505: string(ingest.CodeHTTPVersion), 500: string(ingest.CodeInternal)}[status]
		if want == "" {
			say("it is of no route")
			return problems
		}
		valid("body", problemOf([]string{want}), body)
		return problems
	}
	name := op.Method + " " + op.Path
	see(fmt.Sprintf("%s %d", name, status))
	answer := op.Responses[strconv.Itoa(status)]
	if answer == nil {
		return append(problems, "no such status")
	}
	for name := range header {
		if _, of := answer.Headers[name]; !of && headers()[name] != "" && !slices.Contains([]string{"Cache-Control", "Link", "Retry-After", "Content-Location", "Location"}, name) {
			say("the header %s is not described", name)
		}
	}
	if status < 400 {
		for name := range answer.Headers {
			if always(h, op, status, name) && header.Get(name) == "" {
				say("the header %s is missing", name)
			}
		}
	}
	if len(answer.Content) == 0 {
		if len(body) > 0 {
			say("it has a body")
		}
		return problems
	}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return append(problems, err.Error())
	}
	content := answer.Content[media]
	if content == nil {
		content = answer.Content["*/*"]
	}
	switch {
	case content == nil:
		say("it is %s", media)
	case media == eventStream:
		h.judgeEvents(body, say)
	case strings.HasSuffix(media, "json") && answer.Content["*/*"] == nil:
		valid("body", content.Schema, body)
	}
	// What was taken must be what the document says is taken.
	if request := op.RequestBody; status < 300 && request != nil && len(sent) > 0 {
		form, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // it was taken
		if content := request.Content[form]; content != nil {
			valid("request", content.Schema, takenOf(sent, body))
		}
	}
	return problems
}

// takenOf leaves out of a request for several things those that were refused.
func takenOf(sent, body []byte) []byte {
	var request map[string]any
	var answer struct{ Items []struct{ Status int } }
	if json.Unmarshal(sent, &request) != nil || json.Unmarshal(body, &answer) != nil {
		return sent
	}
	items, ok := request["items"].([]any)
	if !ok || len(items) != len(answer.Items) {
		return sent
	}
	var taken []any
	for i, it := range answer.Items {
		if it.Status < 300 {
			taken = append(taken, items[i])
		}
	}
	if len(taken) == len(items) || len(taken) == 0 {
		return sent
	}
	request["items"] = taken
	text, err := json.Marshal(request)
	if err != nil {
		return sent
	}
	return text
}

// judgeEvents holds the events of a stream against what is said of them.
func (h *handler) judgeEvents(body []byte, say func(string, ...any)) {
	registry := newRegistry()
	kinds := toldBy(registry)
	all := make([]*huma.Schema, len(kinds))
	for i, k := range kinds {
		all[i] = k.payload(registry)
	}
	tidySchemas(registry)
	for line := range strings.Lines(string(body)) {
		text, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			say("event: %v", err)
			continue
		}
		var found []string
		for _, s := range all {
			var result huma.ValidateResult
			if huma.Validate(registry, s, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, v, &result); len(result.Errors) == 0 {
				found = nil
				break
			}
			for _, err := range result.Errors {
				found = append(found, err.Error())
			}
		}
		if len(found) > 0 {
			say("event %s: none of the messages: %s", text, strings.Join(found, "; "))
		}
	}
}

// operationAt finds the document's operation for a request, nil where there is none.
func (h *handler) operationAt(r *http.Request) *huma.Operation {
	if r.URL.Path != path.Clean("/"+r.URL.Path) {
		return nil
	}
	_, pattern := h.mux.Handler(r)
	method, at, _ := strings.Cut(pattern, " ")
	item := h.described().Paths[strings.TrimSuffix(at, "{$}")]
	if item == nil {
		return nil
	}
	return operationsOf(item)[method]
}

// always says whether the header must be there.
func always(h *handler, op *huma.Operation, status int, name string) bool {
	for _, r := range h.routes() {
		if r.method != op.Method || r.path != op.Path {
			continue
		}
		for _, o := range r.sheet.answers {
			if o.status == status {
				return slices.Contains(o.always, name)
			}
		}
	}
	return false
}

// unprovoked are documented answers that no test of this package makes, with the
// reason.
func unprovoked() map[string]string {
	return map[string]string{}
}

// whole runs all tests and then looks whether they saw all that is documented.
type whole struct{ m *testing.M }

func (w whole) Run() int {
	code := w.m.Run()
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz", "test.bench"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return code // not all of them ran
		}
	}
	if code != 0 {
		return code
	}
	for _, line := range unseen() {
		fmt.Fprintln(os.Stderr, line)
		code = 1
	}
	return code
}

// unseen lists what is documented and was neither seen nor excused.
func unseen() (lines []string) {
	h := everything()
	excused := unprovoked()
	for at, item := range h.described().Paths {
		for method, op := range operationsOf(item) {
			for status := range op.Responses {
				answer := method + " " + at + " " + status
				switch why, ok := excused[answer]; {
				case ok && seen.answers[answer] > 0:
					lines = append(lines, "FAIL: "+answer+" is provoked by a test, and listed as one that is not: "+why)
				case !ok && seen.answers[answer] == 0:
					lines = append(lines, "FAIL: "+answer+" is documented, and no test provokes it")
				}
				delete(excused, answer)
			}
		}
	}
	for _, answer := range slices.Sorted(maps.Keys(excused)) {
		lines = append(lines, "FAIL: "+answer+" is excused, and not documented")
	}
	slices.Sort(lines)
	return lines
}

// everything has all routes, and can do nothing.
func everything() *handler {
	return newHandler(Options{
		Service: &ingest.Service{}, Doctor: &doctor.Doctor{}, Webhooks: &webhook.Receiver{},
		Ready: func(context.Context) (bool, any) { return false, nil },
	})
}

// TestDocumentHasEveryRoute: what the table has, the document has, and the other
// way round.
func TestDocumentHasEveryRoute(t *testing.T) {
	h := everything()
	documented, table, ids := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for at, item := range h.described().Paths {
		for method, op := range operationsOf(item) {
			documented[method+" "+at] = true
			if ids[op.OperationID] || op.OperationID == "" {
				t.Errorf("the id %q is there twice, or empty", op.OperationID)
			}
			ids[op.OperationID] = true
			if op.Summary == "" || op.Description == "" || len(op.Tags) != 1 {
				t.Errorf("%s is described in part", op.OperationID)
			}
		}
	}
	for _, r := range h.routes() {
		table[r.method+" "+r.path] = true
	}
	if len(table) < 15 || !maps.Equal(documented, table) {
		t.Errorf("the table has\n%v\nthe document\n%v", slices.Sorted(maps.Keys(table)), slices.Sorted(maps.Keys(documented)))
	}
}

// TestDocumentIsWhole: every reference leads somewhere, and nothing of the library's
// own is in it.
func TestDocumentIsWhole(t *testing.T) {
	h := newHarness(t)
	w := h.do("", "GET", "/openapi.json", nil, "")
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc["openapi"] != "3.1.0" {
		t.Fatalf("%v %v", doc["openapi"], err)
	}
	if bytes.Contains(w.Body.Bytes(), []byte("$schema")) {
		t.Error("it has $schema members")
	}
	if refs := follow(t, doc); refs < 50 {
		t.Errorf("only %d references", refs)
	}
	for _, header := range []string{w.Header().Get("ETag"), "W/" + w.Header().Get("ETag"), `"x", ` + w.Header().Get("ETag"), "*"} {
		if w := h.do("", "GET", "/openapi.json", map[string]string{"If-None-Match": header}, ""); w.Code != 304 || w.Header().Get("ETag") == "" || w.Body.Len() > 0 {
			t.Errorf("If-None-Match %s: %d", header, w.Code)
		}
	}
	if w := h.do("", "GET", "/openapi.json", map[string]string{"If-None-Match": `"x"`}, ""); w.Code != 200 {
		t.Errorf("another ETag: %d", w.Code)
	}
}

// TestJudgeFindsBreaches: the check of answers can fail.
func TestJudgeFindsBreaches(t *testing.T) {
	h := newHandler(Options{Service: &ingest.Service{}})
	for name, c := range map[string]struct {
		target string
		status int
		header map[string]string
		body   string
		want   string
	}{
		"a status":           {"/v1/holds", 418, nil, "", "no such status"},
		"a 304 without ETag": {"/v1/operations/op_a", 304, map[string]string{"Vary": "Prefer"}, "", "ETag is missing"},
		"a 304 with a body":  {"/v1/operations/op_a", 304, map[string]string{"ETag": `"x"`, "Vary": "Prefer"}, "{}", "has a body"},
		"a member":           {"/v1/holds", 200, nil, `{"holds":[],"more":1}`, "unexpected property"},
		"a missing member":   {"/v1/holds", 200, nil, `{}`, "required property"},
		"a null":             {"/v1/holds", 200, nil, `{"holds":null}`, "expected array"},
		"a media type":       {"/v1/holds", 200, map[string]string{"Content-Type": "text/plain"}, `{"holds":[]}`, "it is text/plain"},
		"a code of another":  {"/v1/holds", 403, map[string]string{"Content-Type": problemType}, `{"type":"a","title":"b","status":403,"instance":"/","code":"account_not_allowed","retryable":false,"retry_with":"never","hint":"c","docs":"d"}`, "expected value to be"},
		"no route":           {"/v1/nothing", 200, nil, `{}`, "of no route"},
		"a header":           {"/v1/holds", 200, map[string]string{"Idempotent-Replayed": "true"}, `{"holds":[]}`, "not described"},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"Content-Type": {jsonType}, "Link": serviceLinks()}
			for name, value := range c.header {
				header.Set(name, value)
			}
			problems := h.judge(httptest.NewRequest("GET", c.target, nil), nil, c.status, header, []byte(c.body))
			if all := strings.Join(problems, "\n"); !strings.Contains(all, c.want) {
				t.Errorf("it finds %q, and not %q", all, c.want)
			}
		})
	}
}

// follow looks where each reference of a document leads, and counts them.
func follow(t *testing.T, doc map[string]any) int {
	t.Helper()
	refs := 0
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				refs++
				at := any(doc)
				for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
					m, _ := at.(map[string]any)
					at = m[part]
				}
				if at == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, next := range v {
				walk(next)
			}
		case []any:
			for _, next := range v {
				walk(next)
			}
		}
	}
	walk(doc)
	return refs
}

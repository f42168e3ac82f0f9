package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(whole{m}) }

// TestBadInput asserts for each bad request its answer, and that nothing at all
// was stored.
func TestBadInput(t *testing.T) {
	const good = `{"provider":"example","params":{"kind":"render"}}`
	with := func(member string) string { return `{"provider":"example","params":{"kind":"render"},` + member + `}` }
	params := func(p string) string { return `{"provider":"example","params":` + p + `}` }
	key := map[string]string{"Idempotency-Key": "k"}
	keyed := func(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }
	for _, c := range []struct {
		name   string
		header map[string]string
		body   string
		status int
		code   ingest.Code
		field  string // of errors[0]; "" where there is none
		says   string // part of the detail
	}{
		{"no key", keyed(""), good, 400, ingest.CodeKeyMissing, "", "Idempotency-Key"},
		{"empty quoted key", keyed(`""`), good, 400, ingest.CodeKeyInvalid, "Idempotency-Key", "empty"},
		{"long key", keyed(strings.Repeat("k", 256)), good, 400, ingest.CodeKeyInvalid, "Idempotency-Key", "255"},
		{"key with a space", keyed("a b"), good, 400, ingest.CodeKeyInvalid, "Idempotency-Key", "visible ASCII"},
		{"key not closed", keyed(`"a`), good, 400, ingest.CodeKeyInvalid, "Idempotency-Key", "closing quote"},
		{"media type", map[string]string{"Idempotency-Key": "k", "Content-Type": "text/plain"}, good, 415, ingest.CodeMediaType, "", "application/json"},
		{"no media type", map[string]string{"Idempotency-Key": "k", "Content-Type": ""}, good, 415, ingest.CodeMediaType, "", "application/json"},
		{"not JSON", key, `{"provider":`, 400, ingest.CodeMalformedJSON, "", "byte"},
		{"empty", key, " ", 400, ingest.CodeMalformedJSON, "", "ends before"},
		{"data after", key, good + "{}", 400, ingest.CodeMalformedJSON, "", "after the end"},
		{"invalid UTF-8", key, with("\"expect\":\"\xff\""), 400, ingest.CodeMalformedJSON, "/expect", "Unicode"},
		{"lone surrogate", key, with(`"expect":"\ud800"`), 400, ingest.CodeMalformedJSON, "/expect", "Unicode"},
		{"array", key, `[1]`, 422, ingest.CodeInvalid, "", "object"},
		{"duplicate key", key, `{"provider":"example","provider":"replicate","params":{}}`, 400, ingest.CodeDuplicateKey, "/provider", "before"},
		{"duplicate key in params", key, params(`{"a":{"b":1,"b":2}}`), 400, ingest.CodeDuplicateKey, "/params/a/b", "before"},
		{"unknown field", key, with(`"deadline":"1h"`), 422, ingest.CodeInvalid, "/deadline", "not a field"},
		{"unknown deadline", key, with(`"deadlines":{"start":"1h"}`), 422, ingest.CodeInvalid, "/deadlines/start", "not a field"},
		{"field of other case", key, with(`"Tags":{}`), 422, ingest.CodeInvalid, "/Tags", "not a field"},
		{"wrong type", key, `{"provider":7,"params":{}}`, 422, ingest.CodeInvalid, "/provider", "string"},
		{"FC-41: 2^63-1", key, params(`{"n":9223372036854775807}`), 422, ingest.CodeNumberOutOfRange, "/params/n", "string"},
		{"number beyond doubles", key, params(`{"n":1e400}`), 422, ingest.CodeNumberOutOfRange, "/params/n", "string"},
		{"digits a double loses", key, params(`{"n":0.10000000000000000001}`), 422, ingest.CodeNumberOutOfRange, "/params/n", "string"},
		{"too deep", key, params(strings.Repeat("[", 70) + strings.Repeat("]", 70)), 422, ingest.CodeTooDeep, "", "64"},
		{"FC-34: over the limit", key, with(`"expect":"` + strings.Repeat("x", 1<<20) + `"`), 413, ingest.CodeBodyTooLarge, "", "1048576"},
		{"no provider", key, `{"params":{}}`, 422, ingest.CodeInvalid, "/provider", "given"},
		{"unknown provider", key, `{"provider":"nobody","params":{}}`, 422, ingest.CodeUnknownProvider, "/provider", "nobody"},
		{"provider of other characters", key, `{"provider":"a.b","params":{}}`, 422, ingest.CodeInvalid, "/provider", "a-z"},
		{"account of other characters", key, with(`"account":"*"`), 422, ingest.CodeInvalid, "/account", "a-z"},
		{"unknown account", key, with(`"account":"spare"`), 422, ingest.CodeInvalid, "/account", "not an account"},
		{"no params", key, `{"provider":"example"}`, 422, ingest.CodeInvalid, "/params", "given"},
		{"params not an object", key, params(`[]`), 422, ingest.CodeInvalid, "/params", "object"},
		{"param set by the contract", key, params(`{"kind":"render","client_reference":"x"}`), 422, ingest.CodeInvalid, "/params/client_reference", "set by"},
		{"FC-18: zero", key, with(`"deadlines":{"result":"0s"}`), 422, ingest.CodeInvalid, "/deadlines/result", "more than 0"},
		{"FC-18: negative", key, with(`"deadlines":{"result":"-5m"}`), 422, ingest.CodeInvalid, "/deadlines/result", "more than 0"},
		{"FC-18: in the past", key, with(`"deadlines":{"result":"2026-11-30T09:00:00Z"}`), 422, ingest.CodeInvalid, "/deadlines/result", "later than now"},
		{"FC-18: a thousand years", key, with(`"deadlines":{"result":"365000d"}`), 422, ingest.CodeInvalid, "/deadlines/result", "30d"},
		{"more than a duration holds", key, with(`"deadlines":{"result":"99999999999h"}`), 422, ingest.CodeInvalid, "/deadlines/result", "30d"},
		{"time without zone", key, with(`"deadlines":{"result":"2026-12-24T09:00:00"}`), 422, ingest.CodeInvalid, "/deadlines/result", "zone"},
		{"not a length of time", key, with(`"deadlines":{"result":"soon"}`), 422, ingest.CodeInvalid, "/deadlines/result", "length of time"},
		{"deadline as a number", key, with(`"deadlines":{"result":60}`), 422, ingest.CodeInvalid, "/deadlines/result", "string"},
		{"create deadline too short", key, with(`"deadlines":{"create":"10ms"}`), 422, ingest.CodeInvalid, "/deadlines/create", "1s"},
		{"not before after the create deadline", key, with(`"not_before":"2026-12-24T09:00:00Z"`), 422, ingest.CodeInvalid, "/not_before", "create deadline"},
		{"cost that is no number", key, with(`"max_cost":"1e3"`), 422, ingest.CodeInvalid, "/max_cost", "decimal"},
		{"tag name", key, with(`"tags":{"A b":"x"}`), 422, ingest.CodeInvalid, "/tags/A b", "a-z"},
		{"tag value", key, with(`"tags":{"a":"` + strings.Repeat("x", 300) + `"}`), 422, ingest.CodeInvalid, "/tags/a", "256"},
		{"control character", key, with(`"session":"a\u0000b"`), 422, ingest.CodeInvalid, "/session", "control"},
		{"retry of a bad id", key, with(`"retry_of":"op.*"`), 422, ingest.CodeInvalid, "/retry_of", "operation id"},
		{"retry of nothing", key, with(`"retry_of":"op_none"`), 422, ingest.CodeInvalid, "/retry_of", "not an operation of yours"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			before := h.stored()
			w := h.do("alice", "POST", "/v1/operations", c.header, c.body)
			var p ingest.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			if w.Code != c.status || p.Status != c.status || p.Code != c.code {
				t.Errorf("got %d %s (%s), want %d %s", w.Code, p.Code, p.Detail, c.status, c.code)
			}
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %q", got)
			}
			if !strings.Contains(p.Detail, c.says) {
				t.Errorf("detail %q does not say %q", p.Detail, c.says)
			}
			field := ""
			if len(p.Errors) > 0 {
				field = p.Errors[0].Field
			}
			if c.field != "" && field != c.field {
				t.Errorf("field %q, want %q", field, c.field)
			}
			if n := h.stored(); n != before {
				t.Errorf("%d messages were stored", n-before)
			}
			// The key is not used up.
			if c.header["Idempotency-Key"] == "k" {
				if w := h.do("alice", "POST", "/v1/operations", key, good); w.Code != 202 {
					t.Errorf("the key was used up: %d %s", w.Code, w.Body)
				}
			}
		})
	}
}

// TestClockDifference: a create deadline must leave room for what the clocks of
// two processes may differ by, since no request may leave later than that.
func TestClockDifference(t *testing.T) {
	h := newHarness(t)
	h.skew = 30 * time.Second
	h.over(h.store)
	for create, status := range map[string]int{"30s": 422, "31s": 202} {
		w := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": create},
			`{"provider":"example","params":{"kind":"render"},"deadlines":{"create":"`+create+`"}}`)
		if w.Code != status || (status == 422 && !strings.Contains(w.Body.String(), "at least 31s")) {
			t.Errorf("%s: %d %s", create, w.Code, w.Body)
		}
	}
}

// TestLargestBody is the other side of the limit (FC-34), and FC-41: the text of
// numbers is kept.
func TestLargestBody(t *testing.T) {
	h := newHarness(t)
	const open, end = `{"provider":"example","params":`, `}`
	params := `{"n":9007199254740991, "a":1.0,"b":1e2,"c":0.1,"d":"9223372036854775807","pad":"`
	params += strings.Repeat("x", ingest.MaxBody-len(open)-len(end)-len(params)-2) + `"}`
	body := open + params + end
	if len(body) != ingest.MaxBody {
		t.Fatal(len(body))
	}
	if w := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "big"}, body); w.Code != 202 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	s, err := h.journal.Current(t.Context(), h.op)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := h.journal.Payload(t.Context(), s.Intent.Payload)
	if err != nil || string(kept) != params {
		t.Errorf("the parameters were not kept as they came: %v", err)
	}
}

// TestChunkedBody has no Content-Length to be refused by.
func TestChunkedBody(t *testing.T) {
	h := newHarness(t)
	r := httptest.NewRequest("POST", "/v1/operations", struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 2<<20))})
	r.ContentLength = -1
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	if w.Code != 413 || h.stored() != 0 {
		t.Errorf("%d %s, %d stored", w.Code, w.Body, h.stored())
	}
}

func facts(h *harness, kind events.Type) int {
	n := 0
	lines, err := h.journal.Timeline(h.t.Context(), h.op)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range lines {
		if l.Entry.Event.Fact.Type() == kind {
			n++
		}
	}
	return n
}

// TestParallel: 20 equal submits are one operation, 20 cancels are one wish.
func TestParallel(t *testing.T) {
	h := newHarness(t)
	run := func(method, target, body string) map[int]int {
		var mu sync.Mutex
		codes := map[int]int{}
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				r := httptest.NewRequest(method, target, strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Idempotency-Key", "same")
				r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
				w := httptest.NewRecorder()
				h.handler.ServeHTTP(w, r)
				mu.Lock()
				defer mu.Unlock()
				codes[w.Code]++
				var v struct{ ID string }
				if json.Unmarshal(w.Body.Bytes(), &v) == nil && v.ID != "" {
					if h.op != "" && h.op != v.ID {
						t.Errorf("two operations: %s and %s", h.op, v.ID)
					}
					h.op = v.ID
				}
			})
		}
		wait.Wait()
		return codes
	}
	if codes := run("POST", "/v1/operations", `{"provider":"example","params":{"kind":"render"}}`); codes[202] != 1 || codes[200] != 19 {
		t.Errorf("submits answered %v, want one 202 and 19 replays", codes)
	}
	if n := facts(h, events.TypeIntentRecorded); n != 1 {
		t.Errorf("%d intents", n)
	}
	h.play("attempted")
	h.play("accepted job-1")
	if codes := run("POST", "/v1/operations/"+h.op+"/cancel", `{"why":"enough"}`); codes[202] == 0 || codes[202]+codes[200] != 20 {
		t.Errorf("cancels answered %v, want 202 and replays", codes)
	}
	if n := facts(h, events.TypeCancelRequested); n != 1 {
		t.Errorf("%d wishes to cancel", n)
	}
}

// Texts are shown beside their digests; one that was erased leaves its digest.
func TestTextIsErased(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	h.do("alice", "POST", "/v1/operations/"+h.op+"/cancel", map[string]string{"Idempotency-Key": "c"}, `{"why":"SAID <here>"}`)
	timeline := func() string {
		w := h.do("alice", "GET", "/v1/operations/"+h.op+"/timeline", nil, "")
		if w.Code != 200 || !strings.Contains(w.Body.String(), events.Sum([]byte("SAID <here>")).String()) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	if text := timeline(); !strings.Contains(text, "SAID ") {
		t.Error(text)
	}
	h.store.Lose(journal.Payloads)
	if text := timeline(); strings.Contains(text, "why_text") {
		t.Error(text)
	}
}

// TestStoreFails: the store goes away at each write of a submit, having done it
// or not. The caller is told to try again with the same key, and that makes one
// operation.
func TestStoreFails(t *testing.T) {
	const body = `{"provider":"example","params":{"kind":"render"}}`
	key := map[string]string{"Idempotency-Key": "k"}
	for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done} {
		for failing := 1; failing <= 2; failing++ {
			t.Run(fmt.Sprintf("kind %d at write %d", kind, failing), func(t *testing.T) {
				h := newHarness(t)
				writes, dead := 0, false
				faulty := memory.Inject(h.store, func(c memory.Call) memory.Fault {
					if dead {
						return memory.Fault{Kind: memory.Unavailable}
					}
					if c.Op == memory.OpPublish {
						if writes++; writes == failing {
							dead = true
							return memory.Fault{Kind: kind}
						}
					}
					return memory.Fault{}
				})
				w := h.over(faulty).do("alice", "POST", "/v1/operations", key, body)
				var p ingest.Problem
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 503 || p.Code != ingest.CodeUnavailable || !p.Retryable {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				if w.Header().Get("Retry-After") == "" {
					t.Error("no Retry-After")
				}
				dead, writes = false, 10 // the store is back
				w = h.do("alice", "POST", "/v1/operations", key, body)
				want := 202
				if kind == memory.Done && failing == 2 {
					want = 200 // it was recorded before
				}
				if w.Code != want {
					t.Errorf("the retry answered %d, want %d: %s", w.Code, want, w.Body)
				}
				if n := facts(h, events.TypeIntentRecorded); n != 1 {
					t.Errorf("%d intents", n)
				}
				s, err := h.journal.Current(t.Context(), h.op)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := h.journal.Payload(t.Context(), s.Intent.Payload); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestList(t *testing.T) {
	h := newHarness(t)
	for i := range 7 {
		who := "alice"
		if i == 3 {
			who = "bob"
		}
		if w := h.do(who, "POST", "/v1/operations", map[string]string{"Idempotency-Key": fmt.Sprint(i)}, `{"provider":"example","params":{"kind":"render"}}`); w.Code != 202 {
			t.Fatal(w.Body)
		}
	}
	h.project()
	seen := map[string]bool{}
	target := "/v1/operations?limit=2"
	for pages := 0; target != "" && pages < 10; pages++ {
		w := h.do("alice", "GET", target, nil, "")
		var page ingest.Page
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, v := range page.Items {
			if seen[v.ID] {
				t.Errorf("%s is listed twice", v.ID)
			}
			seen[v.ID] = true
		}
		target = ""
		if page.NextCursor != "" {
			target = "/v1/operations?limit=2&cursor=" + page.NextCursor
			for _, other := range []string{target + "&state=failed", target + "A"} {
				if w := h.do("alice", "GET", other, nil, ""); w.Code != 400 {
					t.Errorf("a cursor for another list: %d", w.Code)
				}
			}
			if w := h.do("bob", "GET", target, nil, ""); w.Code != 400 {
				t.Errorf("another principal's cursor: %d", w.Code)
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d operations listed, want the 6 of alice", len(seen))
	}
}

func TestKeysFileBroken(t *testing.T) {
	h := newHarness(t)
	o := Options{Service: h.service, Log: logInto(h.log), Now: h.clock.Now, Keys: brokenKeys{}}
	w := httptest.NewRecorder()
	documented(t, o).ServeHTTP(w, httptest.NewRequest("GET", "/v1/operations", nil))
	if w.Code != 503 || strings.Contains(w.Body.String(), "canary") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type brokenKeys struct{}

func (brokenKeys) Authenticate([]string) (ingest.Caller, error) {
	return ingest.Caller{}, &ingest.KeysError{Cause: errors.New("canary")}
}

// TestPanic: a defect of ours answers without detail, and the log has no text of
// the panic, which may quote a request.
func TestPanic(t *testing.T) {
	log := &bytes.Buffer{}
	handler := documented(t, Options{Log: logInto(log), Now: time.Now, Ready: func(context.Context) (bool, any) { panic("canary-panic") }})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), `"internal_error"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if all := w.Body.String() + log.String(); strings.Contains(all, "canary") {
		t.Error(all)
	}
	if !strings.Contains(log.String(), "panicked") {
		t.Error("the panic is not in the log")
	}
}

// TestErrorsDocument keeps docs/ERRORS.md what the registry says.
func TestErrorsDocument(t *testing.T) {
	const path = "../../docs/ERRORS.md"
	if *update {
		if err := os.WriteFile(path, []byte(ErrorsDocument()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != ErrorsDocument() {
		t.Errorf("docs/ERRORS.md is not what the registry says; -update rewrites it (%v)", err)
	}
}

// TestCodes: every declared code has a meaning, every meaning is used, and no
// code is made up elsewhere.
func TestCodes(t *testing.T) {
	declared, used := map[string]bool{}, map[string]bool{}
	fset := token.NewFileSet()
	var names []string
	for _, root := range []string{"..", "../../cmd"} {
		if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				names = append(names, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		inside := filepath.Dir(name) == "../ingest"
		if !inside && !bytes.Contains(src, []byte("counterfoil/internal/ingest\"")) {
			continue
		}
		file, err := parser.ParseFile(fset, name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		registry := inside && filepath.Base(name) == "codes.go"
		// text says whether the expression is written out and not one of the names.
		text := func(e ast.Expr) bool { _, ok := e.(*ast.BasicLit); return ok }
		ast.Inspect(file, func(n ast.Node) bool {
			made := false
			switch n := n.(type) {
			case *ast.ValueSpec:
				if id, ok := n.Type.(*ast.Ident); ok && id.Name == "Code" {
					if declared[n.Names[0].Name] = true; !registry {
						t.Errorf("%s declares a code", fset.Position(n.Pos()))
					}
				}
			case *ast.Ident:
				if !registry && strings.HasPrefix(n.Name, "Code") {
					used[n.Name] = true
				}
			case *ast.CallExpr:
				id, ok := n.Fun.(*ast.Ident)
				selector, other := n.Fun.(*ast.SelectorExpr)
				made = (ok && id.Name == "Code" && inside || other && selector.Sel.Name == "Code" && len(n.Args) == 1) && text(n.Args[0])
			case *ast.CompositeLit:
				id, _ := n.Type.(*ast.Ident)
				if selector, ok := n.Type.(*ast.SelectorExpr); ok {
					id = selector.Sel
				}
				if id == nil || id.Name != "Refusal" {
					break
				}
				for _, element := range n.Elts {
					pair, ok := element.(*ast.KeyValueExpr)
					made = made || !ok || pair.Key.(*ast.Ident).Name == "Code" && text(pair.Value)
				}
			}
			if made {
				t.Errorf("%s makes up a code", fset.Position(n.Pos()))
			}
			return true
		})
	}
	if len(declared) < 25 {
		t.Fatalf("only %d codes were found", len(declared))
	}
	if n := len(ingest.Meanings()); n != len(declared) {
		t.Errorf("%d codes are declared, %d have a meaning", len(declared), n)
	}
	for name := range declared {
		if !used[name] {
			t.Errorf("%s is declared and used nowhere", name)
		}
	}
	texts := map[ingest.Code]bool{}
	for _, m := range ingest.Meanings() {
		if texts[m.Code] || m.Title == "" || m.Advice == "" || m.Status < 400 {
			t.Errorf("%s has no full meaning, or two", m.Code)
		}
		texts[m.Code] = true
	}
	if fields := ingest.FieldMeanings(); len(fields) != len(ingest.FieldCodes()) {
		t.Error("a field code has no meaning")
	}
}

// TestEndToEnd plays the client against a real server on the embedded store: a
// submit, a watch that sees the changes, the result, and a stop during a wait.
func TestEndToEnd(t *testing.T) {
	b, err := broker.Start(broker.Config{Dir: filepath.Join(t.TempDir(), "data"), Run: "run-1", Now: time.Now, Sync: broker.SyncInterval})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	}()
	store, err := journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Name: "test", Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, clock: &clock{real: true}, log: &bytes.Buffer{}, bearer: map[string]string{}}
	h.over(store)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, listener, h.handler, logInto(h.log), nil) }()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New("http://"+listener.Addr().String(), h.bearer["alice"], &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	submission := client.Submission{Provider: "example", Params: json.RawMessage(`{"kind":"render", "n":1.0}`)}
	op, replayed, err := c.Submit(ctx, `a-"key"`, submission)
	if err != nil || replayed {
		t.Fatal(replayed, err)
	}
	if again, replayed, err := c.Submit(ctx, `a-"key"`, submission); err != nil || !replayed || again.ID != op.ID {
		t.Fatal(again.ID, replayed, err)
	}
	h.op = op.ID
	var problem *client.Problem
	if _, err := c.Result(ctx, op.ID); !errors.As(err, &problem) || problem.Code != "result_not_ready" || !problem.Retryable {
		t.Errorf("early result: %v", err)
	}
	steps := []string{"attempted", "accepted job-1", "observed running", "observed succeeded", `collected {"ok":true}`}
	var states []string
	for op, err := range c.Watch(ctx, op.ID) {
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, op.State)
		if len(steps) > 0 {
			h.play(steps[0])
			steps = steps[1:]
		}
	}
	if want := []string{"create_pending", "create_pending", "accepted", "observing", "result_collecting", "succeeded"}; !slices.Equal(states, want) {
		t.Errorf("watched %v, want %v", states, want)
	}
	r, err := c.Result(ctx, op.ID)
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	if _, err := data.ReadFrom(r.Body); err != nil || data.String() != `{"ok":true}` || r.MediaType != "application/json" {
		t.Errorf("result %q %q: %v", data.String(), r.MediaType, err)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	if line, err := c.Timeline(ctx, op.ID, 0); err != nil || len(line) != 6 || line[5].To != "succeeded" || line[0].Fields["provider"] != "example" {
		t.Errorf("timeline %v: %v", line, err)
	}
	if _, err := c.Cancel(ctx, op.ID, ""); !errors.As(err, &problem) || problem.Code != "already_terminal" {
		t.Errorf("cancel: %v", err)
	}
	if _, err := c.Capabilities(ctx); err != nil {
		t.Error(err)
	}
	if page, err := c.List(ctx, client.Filter{Provider: "example"}); err != nil || page.Next != "" {
		t.Errorf("list: %v %v", page, err)
	}
	second, _, err := c.Submit(ctx, "k2", submission)
	if err != nil {
		t.Fatal(err)
	}
	if second, err = c.Decide(ctx, second.ID, second.Version, "d1", client.Decision{Kind: "abandon", Why: "no"}); err != nil || second.State != "abandoned" {
		t.Errorf("decide: %s %v", second.State, err)
	}

	// Of a result of several files, one.
	files, _, err := c.Submit(ctx, "k-files", submission)
	if err != nil {
		t.Fatal(err)
	}
	h.op = files.ID
	for _, line := range []string{"attempted", "accepted job-9", "observed succeeded", "collected-files output=one errors=two"} {
		h.play(line)
	}
	for op, err := range c.Watch(ctx, files.ID) {
		if err != nil || op.Terminal && op.State != "succeeded" {
			t.Fatal(op.State, err)
		}
	}
	for file, want := range map[string]string{"output": "one", "1": "two"} {
		r, err := c.ResultFile(ctx, files.ID, file)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil || string(data) != want || r.MediaType != "application/jsonl" {
			t.Errorf("file %s is %q of %s: %v", file, data, r.MediaType, err)
		}
	}
	if _, err := c.ResultFile(ctx, files.ID, "x&unaccepted=true"); !errors.As(err, &problem) || problem.Code != "validation_failed" ||
		len(problem.Errors) != 1 || !slices.Equal(problem.Errors[0].Allowed, []string{"output", "errors"}) {
		t.Errorf("a file that is none: %v", err)
	}
	if _, err := c.ResultFile(ctx, op.ID, "0"); !errors.As(err, &problem) || problem.Code != "validation_failed" {
		t.Errorf("a file of a result that is one: %v", err)
	}
	if _, err := c.ResultFile(ctx, op.ID, ""); err == nil || errors.As(err, &problem) {
		t.Errorf("no name: %v", err)
	}

	// A wait ends when the server stops, long before its time.
	third, _, err := c.Submit(ctx, "k3", submission)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		_, _, err := c.Retrying(client.Retry{Tries: 1}).Poll(context.WithoutCancel(ctx), third, 50*time.Second)
		waited <- err
	}()
	<-waiting
	began := time.Now()
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	t.Logf("the wait ended with: %v", <-waited) // answered, or cut before it was sent
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
}

// Whoever counts is told each problem by its code, what is no refusal too; and of
// the requests that went well only those that change something are worth a line.
func TestRefused(t *testing.T) {
	h := newHarness(t)
	var log bytes.Buffer
	o := Options{Service: h.service, Keys: brokenKeys{}, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: h.clock.Now, Refused: func(code ingest.Code) { h.refused = append(h.refused, code) }}
	for _, path := range []string{"/v1/operations", "/nothing", "/healthz"} {
		documented(t, o).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	if want := []ingest.Code{ingest.CodeKeysUnavailable, ingest.CodeNotFound}; !slices.Equal(h.refused, want) {
		t.Errorf("told of %q, want %q", h.refused, want)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 || strings.Contains(log.String(), "healthz") {
		t.Errorf("%d lines\n%s", lines, log.String())
	}
}

// A line about a request that shows an operation has its trace, as the lines about
// the operation's calls do.
func TestRequestLineHasTheTrace(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	h := newHarness(t)
	w := h.do("alice", "POST", "/v1/operations", map[string]string{
		"Idempotency-Key": `"traced"`, "Traceparent": "00-" + trace + "-00f067aa0ba902b7-01",
	}, `{"provider": "example", "params": {"n": 1}}`)
	if w.Code != 202 {
		t.Fatal(w.Code, w.Body)
	}
	if w := h.do("alice", "GET", w.Header().Get("Location"), nil, ""); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	at := w.Header().Get("Location")
	h.op = strings.TrimPrefix(at, "/v1/operations/")
	ask := func(method, path string, header map[string]string, body string, status int) {
		t.Helper()
		if w := h.do("alice", method, path, header, body); w.Code != status {
			t.Errorf("%s %s is answered %d: %s", method, path, w.Code, w.Body)
		}
	}
	ask("GET", at+"/result", nil, "", 409)
	ask("POST", "/v1/operations", map[string]string{"Idempotency-Key": `"traced"`}, `{"provider": "example", "params": {"n": 2}}`, 422)
	ask("POST", at+"/pause", map[string]string{"Idempotency-Key": "a"}, `{"why": "a look"}`, 200)
	ask("POST", at+"/resume", map[string]string{"Idempotency-Key": "b"}, `{"why": "seen"}`, 200)
	ask("POST", at+"/decisions", map[string]string{"Idempotency-Key": `"d"`, "If-Match": `"v1"`}, `{"kind": "abandon", "why": "no"}`, 412)
	for _, line := range []string{"attempted", "accepted job-9", "observed succeeded", "collected-files output=one errors=two"} {
		h.play(line)
	}
	ask("GET", at+"/timeline", nil, "", 200)
	ask("GET", at+"/result", nil, "", 200)
	ask("GET", at+"/result?file=errors", nil, "", 200)
	ask("POST", at+"/cancel", map[string]string{"Idempotency-Key": "c"}, "", 409)
	named := 0
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, "operation=") {
			if named++; !strings.Contains(line, "trace="+trace) {
				t.Errorf("names an operation and not its trace: %s", line)
			}
		}
	}
	if named != 11 {
		t.Errorf("%d lines name the operation:\n%s", named, h.log)
	}
}

// No body is read of a delivery that nobody takes: its sender needs no key.
func TestForeignDeliveryIsNotRead(t *testing.T) {
	h := newHarness(t)
	for _, provider := range []string{"nobody", "example-ask"} {
		read := false
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/hooks/"+provider, readerFunc(func([]byte) (int, error) {
			read = true
			return 0, io.EOF
		}))
		if h.handler.ServeHTTP(w, r); w.Code != http.StatusNotFound || read {
			t.Errorf("%s: %d, read %t", provider, w.Code, read)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

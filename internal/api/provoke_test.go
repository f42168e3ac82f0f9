package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// TestEveryRouteRefuses asks each route of the table for what is wrong in the same
// way everywhere. What the document says of the answers is held against them by the
// harness.
func TestEveryRouteRefuses(t *testing.T) {
	all := everything().routes()
	for _, route := range all {
		t.Run(route.method+" "+route.path, func(t *testing.T) {
			dead := false
			h := newHarness(t)
			h.doctor = &doctor.Doctor{}
			h.over(memory.Inject(h.store, func(memory.Call) memory.Fault {
				if dead {
					return memory.Fault{Kind: memory.Unavailable}
				}
				return memory.Fault{}
			}))
			if w := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "first"}, `{"provider":"example","params":{}}`); w.Code != 202 {
				t.Fatal(w.Code, w.Body)
			}
			takes := func(name string) bool { return slices.Contains(route.sheet.params, name) }
			header := func(more ...string) map[string]string {
				m := map[string]string{}
				if takes(paramKey) {
					m["Idempotency-Key"] = "k"
				}
				if takes(paramMatch) {
					m["If-Match"] = `"v1"`
				}
				if route.path == eventPath && route.method == http.MethodPost {
					m["ce-specversion"], m["ce-id"], m["ce-source"], m["ce-type"] = "1.0", "1", "/a", ingest.EventSubmit
				}
				for i := 0; i < len(more); i += 2 {
					m[more[i]] = more[i+1]
				}
				return m
			}
			body := map[string]string{
				"/v1/operations": `{"provider":"example","params":{}}`, eventPath: `{"provider":"example","params":{}}`, "/v1/operations:batch": `{"items":[{"operation":{"provider":"example","params":{}}}]}`, "/v1/operations:cancel": `{"mode":"atomic","items":[{"id":"op_none"}]}`, "/v1/operations/{id}/decisions": `{"kind":"abandon"}`, "/v1/operations/{id}/input": `{"input":{}}`,
				"/v1/holds": `{"provider":"example","scope":"all","why":"x"}`, "/v1/holds/release": `{"provider":"example","why":"x"}`,
			}[route.path]
			if body == "" || route.method != http.MethodPost {
				body = ""
			}
			at := func(id string) string {
				return strings.NewReplacer("{id}", id, "{provider}", "example").Replace(route.path)
			}
			ask := func(want int, as, target string, header map[string]string, body string) {
				t.Helper()
				if w := h.do(as, route.method, target, header, body); w.Code != want {
					t.Errorf("%s answered %d, want %d: %s", target, w.Code, want, w.Body)
				}
			}
			if !route.open {
				if !route.either {
					ask(401, "", at(h.op), header(), body)
				}
				ask(401, "nobody", at(h.op), header(), body)
				ask(422, "alice", at(h.op)+"?nothing=1", header(), body)
				for _, name := range queryOf(route.sheet, params()) {
					w := h.do("alice", route.method, at(h.op)+"?"+name+"=", header(), body)
					var p ingest.Problem
					if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 || len(p.Errors) != 1 || p.Errors[0].Field != name {
						t.Errorf("an empty %s is answered %d, want it refused by its name: %s", name, w.Code, w.Body)
					}
				}
			}
			if len(route.offers()) > 0 {
				ask(406, "alice", at(h.op), header("Accept", "image/png, application/json;q=0, text/event-stream;q=0"), body)
			}
			if takes(paramID) {
				ask(400, "alice", at("op.1"), header(), body)
				ask(404, "alice", at("op_none"), header(), body)
				ask(404, "bob", at(h.op), header(), body)
				ask(403, "submitter", at(h.op), header(), body)
			}
			if takes(paramMatchMaybe) {
				ask(400, "alice", at(h.op), header("If-Match", "seven"), body)
				ask(412, "alice", at(h.op), header("If-Match", `"v99"`), body)
			}
			if takes(paramKey) {
				ask(400, "alice", at(h.op), header("Idempotency-Key", ""), body)
				ask(400, "alice", at(h.op), header("Idempotency-Key", "a b"), body)
			}
			if route.sheet.body != nil {
				ask(415, "alice", at(h.op), header("Content-Type", "text/plain"), "{}")
				ask(400, "alice", at(h.op), header(), "{")
				ask(422, "alice", at(h.op), header(), `{"nothing":1}`)
			}
			for err, want := range map[error]int{os.ErrDeadlineExceeded: 408, io.ErrUnexpectedEOF: 400, errors.New("malformed chunk"): 400} {
				w, r := httptest.NewRecorder(), httptest.NewRequest(route.method, at(h.op), iotest.ErrReader(err))
				r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
				r.Header.Set("Content-Type", "application/json")
				for name, value := range header() {
					r.Header.Set(name, value)
				}
				if h.handler.ServeHTTP(w, r); w.Code != want {
					t.Errorf("%s answered %d after %v, want %d: %s", r.URL.Path, w.Code, err, want, w.Body)
				}
			}
			ask(413, "alice", at(h.op), header(), strings.Repeat(" ", ingest.MaxBody+1))
			if route.path == "/hooks/{provider}" || route.path == "/hooks/{provider}/{id}" {
				ask(404, "alice", strings.Replace(at(h.op), "example", "nobody", 1), nil, "{}")
			}
			dead = true
			if slices.Contains(route.codesOf(), ingest.CodeUnavailable) && !slices.Contains(quiet(), route.path) {
				ask(503, "alice", at(h.op), header(), body)
			}
			dead = false
			if !route.open {
				o := Options{Service: h.service, Doctor: h.doctor, Log: logInto(h.log), Now: h.clock.Now, Keys: brokenKeys{}}
				w, r := httptest.NewRecorder(), httptest.NewRequest(route.method, at(h.op), nil)
				r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
				if documented(t, o).ServeHTTP(w, r); w.Code != 503 {
					t.Errorf("without its keys it answers %d: %s", w.Code, w.Body)
				}
			}

			// A defect of ours, wherever it is: the first look at the answer's headers
			// breaks.
			r := httptest.NewRequest(route.method, at(h.op), strings.NewReader(body))
			w := &brokenOnce{ResponseRecorder: httptest.NewRecorder()}
			h.handler.ServeHTTP(w, r)
			if w.Code != 500 || !strings.Contains(w.Body.String(), `"internal_error"`) {
				t.Errorf("a panic is answered %d: %s", w.Code, w.Body)
			}
		})
	}
}

// quiet are routes that do not ask the store, or not in a way that this test can
// break.
func quiet() []string {
	return []string{"/v1/capabilities", "/v1/doctor", "/hooks/{provider}", "/hooks/{provider}/{id}"}
}

// brokenOnce panics when its headers are first asked for.
type brokenOnce struct {
	*httptest.ResponseRecorder
	asked bool
}

func (w *brokenOnce) Header() http.Header {
	if !w.asked {
		w.asked = true
		panic("canary-panic")
	}
	return w.ResponseRecorder.Header()
}

// TestResultIsHadAgain: whoever has the result is told so, and one that is lost is
// gone.
func TestResultIsHadAgain(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	for _, line := range []string{"attempted", "accepted job-1", "observed succeeded", `collected {"ok":true}`} {
		h.play(line)
	}
	at := "/v1/operations/" + h.op + "/result"
	first := h.do("alice", "GET", at, nil, "")
	etag := first.Header().Get("ETag")
	for _, have := range []string{etag, "W/" + etag, `"x", ` + etag, "*"} {
		if w := h.do("alice", "GET", at, map[string]string{"If-None-Match": have}, ""); w.Code != 304 || w.Body.Len() > 0 {
			t.Errorf("If-None-Match %s: %d %s", have, w.Code, w.Body)
		}
	}
	if w := h.do("alice", "GET", at, map[string]string{"If-None-Match": `"x"`}, ""); w.Code != 200 {
		t.Errorf("another ETag: %d", w.Code)
	}
	h.store.Lose(journal.Payloads)
	if w := h.do("alice", "GET", at, nil, ""); w.Code != 410 {
		t.Errorf("a lost result: %d %s", w.Code, w.Body)
	}
}

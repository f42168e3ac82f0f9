package api

import (
	"encoding/json"
	"html"
	"net/http"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// TestErrorsResolve: the type of every problem is an address of the service that
// says what its document says, to machines and to browsers, without a key and
// before the store is there.
func TestErrorsResolve(t *testing.T) {
	h := newHarness(t)
	h.open = make(chan struct{})
	h.over(h.store)
	var all struct {
		Codes      []ingest.CodeEntry
		FieldCodes []fieldMeaning `json:"field_codes"`
	}
	if w := h.do("", "GET", "/errors", nil, ""); json.Unmarshal(w.Body.Bytes(), &all) != nil || len(all.Codes) != len(ingest.Meanings()) ||
		len(all.FieldCodes) != len(ingest.FieldCodes()) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, m := range ingest.Meanings() {
		p := ingest.ProblemOf(&ingest.Refusal{Code: m.Code}, "/", ingest.ProblemBase)
		var e ingest.CodeEntry
		w := h.do("", "GET", p.Type, nil, "")
		if err := json.Unmarshal(w.Body.Bytes(), &e); w.Code != 200 || err != nil {
			t.Fatalf("%s: %d %s %v", p.Type, w.Code, w.Body, err)
		}
		if want := (ingest.CodeEntry{Type: p.Type, Code: p.Code, Title: p.Title, Status: p.Status, Retryable: p.Retryable, RetryWith: p.RetryWith, Hint: p.Hint, Docs: p.Docs}); e != want {
			t.Errorf("%s says %+v, the document %+v", p.Type, e, want)
		}
		if w := h.do("", "GET", p.Type, map[string]string{"Accept": "text/html"}, ""); w.Header().Get("Content-Type") != "text/html; charset=utf-8" ||
			!strings.Contains(w.Body.String(), "<code>"+string(m.Code)+"</code>") || !strings.Contains(w.Body.String(), html.EscapeString(m.Title)) {
			t.Errorf("%s for a browser: %d %s", p.Type, w.Code, w.Body)
		}
	}
}

func TestWantsHTML(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/html": true, "text/html,application/xml;q=0.9,*/*;q=0.8": true,
		"application/json, text/html;q=0.5": false, "text/html;q=0": false, "TEXT/HTML ; Q=0.2": true, "text/html;q=x": true, ";;,,": false,
	} {
		if got := wantsHTML(http.Header{"Accept": {accept}}["Accept"]); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// TestRetryAfterIsOneNumber: the member and the header agree.
func TestRetryAfterIsOneNumber(t *testing.T) {
	h := newHarness(t)
	h.full = true
	w := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	if !strings.Contains(w.Body.String(), `"retry_after_s":60,`) || w.Header().Get("Retry-After") != "60" {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
}

func FuzzWantsHTML(f *testing.F) {
	for _, s := range []string{"text/html", "text/html;q=0.5, application/json", ";q=", "a/b;q=1;q=0", ",,", "text/html;q=NaN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		if wantsHTML([]string{accept}) && !strings.Contains(strings.ToLower(accept), "text/html") {
			t.Errorf("%q", accept)
		}
	})
}

func FuzzOwnRefusal(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n400 Bad Request", "HTTP/1.1 431", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 -1", "", "HTTP/1.1 +40"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := ownRefusal(b); r != nil && !strings.HasPrefix(string(refusalBytes(r)), "HTTP/1.1 "+string(b[9:12])+" ") {
			t.Errorf("%q became %q", b, refusalBytes(r))
		}
	})
}

package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// nowhere is a writer that keeps nothing.
type nowhere struct{ header http.Header }

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (w *nowhere) WriteHeader(int)             {}

// BenchmarkHandler is what a request costs between the server and the store, in memory.
// tests/throughput measures the whole.
func BenchmarkHandler(b *testing.B) {
	h := newHarness(b)
	h.handler = newHandler(h.options)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
	etag := h.do("alice", "GET", "/v1/operations/"+h.op, nil, "").Header().Get("ETag")
	for name, c := range map[string]struct{ method, target, have, body string }{
		"get":          {"GET", "/v1/operations/" + h.op, "", ""},
		"not modified": {"GET", "/v1/operations/" + h.op, etag, ""},
		"replay":       {"POST", "/v1/operations", "", `{"provider":"example","params":{}}`},
		"capabilities": {"GET", "/v1/capabilities", "", ""},
		"healthz":      {"GET", "/healthz", "", ""},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
				r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
				r.Header.Set("Content-Type", jsonType)
				r.Header.Set("Idempotency-Key", "k")
				if c.have != "" {
					r.Header.Set("If-None-Match", c.have)
				}
				h.handler.ServeHTTP(&nowhere{http.Header{}}, r)
			}
		})
	}
}

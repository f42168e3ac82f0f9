package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
)

// TestBeforeItIsOpen: who comes while the service cannot do its work yet is
// answered within ten seconds, and at once where it is asked how it is.
func TestBeforeItIsOpen(t *testing.T) {
	const body = `{"provider":"example","params":{}}`
	early := func(t *testing.T) *harness {
		h := newHarness(t)
		h.clock.real, h.open, h.doctor = true, make(chan struct{}), &doctor.Doctor{}
		return h.over(h.store)
	}
	refused := func(t *testing.T, w *httptest.ResponseRecorder) {
		t.Helper()
		var p ingest.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 503 || p.Code != ingest.CodeUnavailable || !p.Retryable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	for _, one := range []struct{ as, method, path, body string }{
		{"alice", "POST", "/v1/operations", body},
		{"alice", "GET", "/v1/operations", ""},
		{"bob", "GET", "/v1/operations/op_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", ""},
		{"", "POST", "/hooks/example", "{}"},
		{"", "POST", "/hooks/example/op_a", "{}"},
	} {
		t.Run(one.method+" "+one.path+" waits, and not for ever", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := early(t)
				start := time.Now()
				refused(t, h.do(one.as, one.method, one.path, map[string]string{"Idempotency-Key": "k"}, one.body))
				if took := time.Since(start); took != openTime {
					t.Errorf("answered after %s, want %s", took, openTime)
				}
				if n := h.stored(); n != 0 {
					t.Errorf("%d messages stored", n)
				}
			})
		})
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/doctor": 403, "/v1/nothing": 404} {
		t.Run(path+" is answered at once", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := early(t)
				start := time.Now()
				if w := h.do("bob", "GET", path, nil, ""); w.Code != want || time.Since(start) != 0 {
					t.Errorf("%d after %s, want %d: %s", w.Code, time.Since(start), want, w.Body)
				}
			})
		})
	}
	t.Run("it opens meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := early(t)
			time.AfterFunc(3*time.Second, func() { close(h.open) })
			if w := h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, body); w.Code != http.StatusAccepted {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	})
	t.Run("it stops meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := early(t)
			stopping, stop := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, stop)
			start := time.Now()
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), stoppingKey{}, stopping), "GET", "/v1/operations", nil)
			r.Header.Set("Authorization", "Bearer "+h.bearer["alice"])
			w := httptest.NewRecorder()
			h.handler.ServeHTTP(w, r)
			refused(t, w)
			if took := time.Since(start); took != 3*time.Second {
				t.Errorf("answered after %s, want 3s", took)
			}
		})
	})
}

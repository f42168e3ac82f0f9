package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// TestNewKeyCannotDuplicate: a code that advises another key comes from a request
// that recorded nothing, and that could not have recorded anything whenever it was
// sent before. Every use case that takes a key is asked with each spelling of one
// that earns such a code; and no other code advises it.
func TestNewKeyCannotDuplicate(t *testing.T) {
	earned := map[ingest.Code]int{}
	for _, keys := range [][]string{nil, {""}, {`""`}, {"a b"}, {strings.Repeat("k", ingest.MaxKey+1)}, {`"open`}, {`"a";b`}, {"a\x7f"}} {
		h := newHarness(t)
		h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
		before, asked := h.stored(), 0
		for _, route := range everything().routes() {
			if !slices.Contains(route.sheet.params, paramKey) {
				continue
			}
			asked++
			body := map[string]string{
				"/v1/operations": `{"provider":"example","params":{}}`, "/v1/operations:batch": `{"items":[{"operation":{"provider":"example","params":{}}}]}`, "/v1/operations:cancel": `{"mode":"atomic","items":[{"id":"op_none"}]}`, "/v1/operations/{id}/decisions": `{"kind":"abandon"}`, "/v1/operations/{id}/input": `{"input":{}}`,
				"/v1/holds": `{"provider":"example","scope":"all","why":"x"}`, "/v1/holds/release": `{"provider":"example","why":"x"}`,
			}[route.path]
			header := map[string]string{"If-Match": `"v1"`}
			if len(keys) > 0 {
				header["Idempotency-Key"] = keys[0]
			}
			target := strings.ReplaceAll(route.path, "{id}", h.op)
			for range 2 { // the second finds what the first left: nothing
				w := h.do("alice", route.method, target, header, body)
				var p ingest.Problem
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.RetryWith != ingest.RetryNewKey {
					t.Errorf("%s with key %.20q: %d %s", target, keys, w.Code, w.Body)
				}
				earned[p.Code]++
			}
		}
		if asked < 7 {
			t.Fatalf("only %d routes take a key", asked)
		}
		if n := h.stored(); n != before {
			t.Errorf("key %.20q: %d messages were stored", keys, n-before)
		}
		if len(keys) > 0 {
			if key, err := ingest.ParseKey(keys); err == nil {
				t.Errorf("%.20q is the key %q", keys, key)
			}
		}
	}
	for _, m := range ingest.Meanings() {
		if (m.RetryWith == ingest.RetryNewKey) != (earned[m.Code] > 0) {
			t.Errorf("%s advises %s and was earned %d times", m.Code, m.RetryWith, earned[m.Code])
		}
	}
}

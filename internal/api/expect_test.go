package api

import (
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// An expectation is typed before anything is recorded, and each problem has its place.
func TestExpect(t *testing.T) {
	h := newHarness(t)
	before := h.stored()
	body := func(expect, more string) string {
		return `{"provider":"example","params":{},"expect":"` + expect + `"` + more + `}`
	}
	for expect, at := range map[string]float64{"reslt.total < 5": 1, "result.total < 5 && nothing": 21, "a nice picture": 3, "result_size": 1} {
		for _, more := range []string{"", `,"validate_only":true`} {
			w, _, p := h.submit("alice", "k", body(expect, more))
			if w.Code != 422 || p.Code != ingest.CodeInvalid || p.Errors[0].Field != "/expect" || p.Errors[0].Values["at_character"] != at || h.stored() != before {
				t.Errorf("%s: %d %s", expect, w.Code, w.Body)
			}
		}
	}
	w, v, _ := h.submit("alice", "k", body("result.total < 5", ""))
	if w.Code != 202 || v.Expect != "result.total < 5" {
		t.Fatal(w.Code, w.Body)
	}
	// It is part of what is asked for.
	if w, _, p := h.submit("alice", "k", body("result.total < 6", "")); w.Code != 422 || p.Code != ingest.CodeKeyReused {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if page := h.do("alice", "GET", "/operations/"+v.ID, nil, "").Body.String(); !strings.Contains(page, "result.total &lt; 5") {
		t.Error(page)
	}
}

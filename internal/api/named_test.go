package api

import (
	"fmt"
	"slices"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// A job that a webhook named is shown as soon as it was, and what it left can be removed
// although the operation ended before anybody had read it.
func TestANamedJobIsShownAndCleanedUp(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{"n":1}}`)
	h.play("attempted")
	h.play("lost")
	h.fact(&events.WebhookReceived{EventID: "e", JobID: "job-7", Exact: true})
	if v := h.view("alice", h.op); v.State != projections.PhaseCreateUnknown || !slices.Equal(v.Candidates, []string{"job-7"}) || len(v.Strays) > 0 {
		t.Errorf("%s, candidates %q, strays %q", v.State, v.Candidates, v.Strays)
	}
	if w, _, p := h.decide("alice", "d", fmt.Sprintf(`"v%d"`, h.view("alice", h.op).Version), `{"kind":"abandon","why":"not needed"}`); w.Code >= 300 {
		t.Fatalf("%d %+v", w.Code, p)
	}
	v := h.view("alice", h.op)
	if v.State != projections.PhaseAbandoned || len(v.Candidates) > 0 || !slices.Equal(v.Strays, []string{"job-7"}) {
		t.Errorf("%s, candidates %q, strays %q", v.State, v.Candidates, v.Strays)
	}
	if i := slices.IndexFunc(v.Allowed, func(a ingest.Allowed) bool { return a.Action == "cleanup" }); i < 0 || !slices.Equal(v.Allowed[i].Jobs, []string{"job-7"}) {
		t.Errorf("%+v", v.Allowed)
	}
	if _, p, status := h.tell("alice", "cleanup", "c", `{"job_id":"job-9"}`); status != 422 || !slices.Equal(p.Errors[0].Allowed, []string{"job-7"}) {
		t.Errorf("%d %+v", status, p)
	}
	if v, p, status := h.tell("alice", "cleanup", "c", `{"job_id":"job-7"}`); status != 202 || v.Cleanup == nil || v.Cleanup.JobID != "job-7" {
		t.Errorf("%d %+v %+v", status, v.Cleanup, p)
	}
	if owner, owned, err := h.journal.Owner(t.Context(), "example", "default", "job-7"); err != nil || !owned || owner != h.op {
		t.Errorf("job-7 is %q's: %t, %v", owner, owned, err)
	}
}

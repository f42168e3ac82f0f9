package api

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// TestCancelIsOfferedWhereItHelps: in every phase that an operation can be in, a cancel is
// among what is allowed if, and only if, it then begins something: the operation moves, or a
// wish is kept that was not there.
func TestCancelIsOfferedWhereItHelps(t *testing.T) {
	fails := func(h *harness) {
		d, err := h.journal.PutPayload(t.Context(), []byte("no JSON"))
		if err != nil {
			t.Fatal(err)
		}
		h.fact(&events.ResultCollected{Payload: d, Size: 7, MediaType: "text/plain", Checks: []events.Check{{Name: "json"}}, Call: events.Call{LeftAt: h.clock.Now(), Status: 200}})
	}
	cancelled := func(h *harness) {
		h.fact(&events.CancelAttempted{Attempt: events.Attempt{Number: 1, NotAfter: h.clock.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "1/run"}})
		h.fact(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAcknowledged, Call: events.Call{LeftAt: h.clock.Now(), Status: 202}})
	}
	const job = "attempted,accepted job-1"
	for _, c := range []struct {
		phase projections.Phase
		lines string
		then  func(*harness)
		helps bool
	}{
		{projections.PhaseCreatePending, "", nil, true},
		{projections.PhaseApprovalPending, "policy 'true' because", nil, true},
		{projections.PhaseCreateUnknown, "attempted,lost", nil, true},
		{projections.PhaseCreateUnknown, "attempted,lost,wish", nil, false},
		{projections.PhaseAccepted, job, nil, true},
		{projections.PhaseObserving, job + ",observed running", nil, true},
		{projections.PhaseInputRequired, job + ",observed input_required", nil, true},
		{projections.PhaseCancelRequested, job + ",wish", nil, false},
		{projections.PhaseCancelling, job + ",wish", cancelled, false},
		{projections.PhaseCancellationUnconfirmed, job + ",wish", func(h *harness) { cancelled(h); h.play("advance 1h"); h.play("passed cancel") }, true},
		{projections.PhaseResultTimedOut, job + ",advance 720h,observed running,passed result", nil, true},
		{projections.PhaseResultCollecting, job + ",observed succeeded", nil, false},
		{projections.PhaseResultUnavailable, job + ",observed succeeded,advance 720h,passed collect", nil, false},
		{projections.PhaseResultValidationFailed, job + ",observed succeeded", fails, false},
		{projections.PhaseQuarantined, job, func(h *harness) {
			h.fact(&events.JobObserved{JobID: "job-2", Claim: events.ClaimOwn, State: events.ClassRunning, Remote: "running"})
		}, true},
		{projections.PhaseQuarantined, job + ",observed running", func(h *harness) {
			for range 6 {
				h.play("advance 1h")
				s, err := h.journal.Current(t.Context(), h.op)
				if err != nil {
					t.Fatal(err)
				}
				h.fact(&events.ObservationFailed{JobID: "job-1", Prompt: "due", Call: events.Call{AsOf: s.Sequence, LeftAt: h.clock.Now(), Status: 404, Class: events.ErrorNotFound}})
			}
		}, true},
		{projections.PhaseSucceeded, job + `,observed succeeded,collected {}`, nil, false},
		{projections.PhaseFailed, job + ",observed failed", nil, false},
		{projections.PhaseCancelled, "wish", nil, false},
	} {
		t.Run(string(c.phase)+" after "+c.lines, func(t *testing.T) {
			h := newHarness(t)
			lines := strings.Split(c.lines, ",")
			if strings.HasPrefix(lines[0], "policy") {
				h.play(lines[0])
				h.over(h.store)
				lines = nil
			}
			h.submitted("alice", "k")
			for _, line := range lines {
				switch line {
				case "":
				case "wish":
					h.tell("alice", "cancel", "before", "")
				default:
					h.play(line)
				}
			}
			if c.then != nil {
				c.then(h)
			}
			before := h.view("alice", h.op)
			if before.State != c.phase {
				t.Fatalf("it is %s", before.State)
			}
			offered := strings.Contains(" "+actions(before)+" ", " cancel ")
			_, p, status := h.tell("alice", "cancel", "now", "")
			after := h.view("alice", h.op)
			wished := after.Cancel != nil && after.Cancel.Wished && after.Cancel.Possible && !after.Cancel.TooLate && (before.Cancel == nil || !before.Cancel.Wished)
			began := status < 300 && (after.State != before.State || wished)
			if offered != c.helps || began != c.helps {
				t.Errorf("offered: %v; answered %d %s, %s, %+v", offered, status, p.Code, after.State, after.Cancel)
			}
		})
	}
}

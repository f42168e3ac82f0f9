package runbook

import (
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// What fails is said with how often and of what class, also where the provider
// gave no words; what is over or has ended is not.
func TestTroubleOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		phase projections.Phase
		class events.ErrorClass
		set   func(s *projections.State)
		words string
		lasts bool
	}{
		{"nothing", projections.PhaseObserving, "", func(s *projections.State) { s.Job.ID = "j" }, "", false},
		{"what the job ended with", projections.PhaseFailed, events.ErrorRefused, nil, "", false},
		{"over", projections.PhaseObserving, events.ErrorUnreadable, func(s *projections.State) { s.Job.ID = "j" }, "", false},
		{"one read", projections.PhaseObserving, events.ErrorServer, func(s *projections.State) { s.Job.ID, s.Pace.Failures = "j", 1 }, "the last status read failed: an error of the provider's own", false},
		{"reads", projections.PhaseObserving, events.ErrorServer, func(s *projections.State) { s.Job.ID, s.Pace.Failures = "j", 3 }, "the last 3 status reads failed: an error of the provider's own", true},
		{"one that is not authorised", projections.PhaseCancelling, events.ErrorUnauthorized, func(s *projections.State) { s.Job.ID, s.Pace.Failures = "j", 1 }, "the last status read failed: not authorised", true},
		{"at the deadline", projections.PhaseResultTimedOut, events.ErrorUnauthorized, func(s *projections.State) { s.Job.ID, s.Pace.Failures = "j", 9 }, "the last 9 status reads failed: not authorised", true},
		{"collections", projections.PhaseResultCollecting, events.ErrorNotFound, func(s *projections.State) { s.Job.ID, s.Pace.Collects = "j", 3 }, "the last 3 attempts to collect the result failed: not found", true},
		{"creates", projections.PhaseCreatePending, events.ErrorThrottled, func(s *projections.State) { s.Creates.Streak = 2 }, "the last 2 calls failed: the provider asked to slow down", false},
		{"an upload", projections.PhaseCreatePending, events.ErrorTimeout, nil, "the last call failed: no whole answer in time", false},
		{"a create or a look-up", projections.PhaseQuarantined, events.ErrorUnreadable, func(s *projections.State) { s.Pace.Lookups = 7 }, "a call failed: an answer that the contract cannot read", false},
		{"a create whose process died", projections.PhaseQuarantined, events.ErrorUnanswered, nil, "a call was left open: nobody recorded an answer, and the request may have arrived", false},
		{"uploads whose process died", projections.PhaseCreatePending, events.ErrorUnanswered, func(s *projections.State) { s.Prepares.Streak = 3 }, "the last call was left open: nobody recorded an answer, and the request may have arrived", true},
		{"a cancel whose process died", projections.PhaseCancelling, events.ErrorUnanswered, func(s *projections.State) { s.Job.ID = "j" }, "", false},
		{"a class of a later version", projections.PhaseReconciliation, "dreamt", nil, "a call failed: dreamt", false},
	} {
		s := projections.State{Phase: c.phase}
		s.Problem.Class = c.class
		if c.set != nil {
			c.set(&s)
		}
		got, ok := TroubleOf(s)
		if ok != (c.words != "") || got.Words != c.words || got.Lasts != c.lasts {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
}

// Where reads failed, what made them fail comes before looking again.
func TestStepsAfterTrouble(t *testing.T) {
	for _, phase := range []projections.Phase{projections.PhaseResultTimedOut, projections.PhaseCancellationUnconfirmed, projections.PhaseResultUnavailable} {
		s := projections.State{Operation: "op_1", Phase: phase}
		s.Intent.Provider, s.Intent.Account, s.Job.ID = "replicate", "main", "j"
		s.Pace.Failures, s.Pace.Collects = 9, 9
		for class, want := range map[events.ErrorClass]string{
			events.ErrorUnauthorized: "There is a valid credential behind replicate/main again (the last 9 ",
			events.ErrorServer:       "What made it fail is repaired (the last 9 ",
		} {
			s.Problem.Class = class
			if got := Steps(s)[1].String(); !strings.HasPrefix(got, want) {
				t.Errorf("%s, %s: %s", phase, class, got)
			}
		}
	}
}

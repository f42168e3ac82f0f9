package runbook

import (
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// Rests lists every phase and kind that rests, each with a page of its own.
func TestRests(t *testing.T) {
	pages := map[string]bool{}
	for _, r := range Rests() {
		if !r.Phase.Stopped() || (r.Phase == projections.PhaseQuarantined) != (r.Kind != "") || pages[r.Page()] {
			t.Errorf("%+v, page %s", r, r.Page())
		}
		pages[r.Page()] = true
	}
	if len(pages) != 8 {
		t.Errorf("%d rests: the phases that rest are four and the four kinds of quarantine", len(pages))
	}
}

// Whatever the rest: first a look, then nothing that is refused, that accepts a
// risk, or that has a placeholder where something would be bound by it.
func TestSteps(t *testing.T) {
	offered := map[events.DecisionKind]bool{}
	for _, r := range Rests() {
		for _, open := range []bool{false, true} {
			s := projections.State{Operation: "op_1", Phase: r.Phase, Quarantine: r.Kind}
			if open {
				s.Creates.List = []projections.Try{{Number: 1, Status: projections.AttemptOpen}}
			}
			steps := Steps(s)
			if len(steps) < 2 || !open && len(steps) < 3 {
				t.Errorf("%+v: only %q", r, Lines(steps))
				continue
			}
			if look := steps[0].String(); look != "counterfoil get op_1" && look != "counterfoil timeline op_1" {
				t.Errorf("%+v begins with %q", r, look)
			}
			for _, st := range steps[1:] {
				line := st.String()
				if st.When == "" || strings.Contains(line, "accept-risk") || strings.Contains(line, "JOB") {
					t.Errorf("%+v: %q", r, line)
				}
				words := strings.Fields(st.Command)
				if len(words) < 4 || words[1] != "decide" {
					continue
				}
				choice := events.DecisionKind(words[3])
				offered[choice] = true
				if ok, why := projections.Allowed(s, choice); !ok {
					t.Errorf("%+v: %s is offered and refused: %s", r, choice, why)
				}
				lacks := choice == events.DecideAdopt || choice == events.DecideMarkCancelled
				if lacks != (st.Add != "") || strings.Contains(st.Command, "--job") || strings.Contains(st.Command, "--evidence") {
					t.Errorf("%+v: %q", r, line)
				}
			}
			if adopts := slices.ContainsFunc(steps, func(st Step) bool { return strings.Contains(st.Command, " adopt ") }); open && adopts {
				t.Errorf("%+v: adopt is offered beside an open attempt", r)
			}
		}
	}
	for _, choice := range []events.DecisionKind{
		events.DecideAbandon, events.DecideAdopt, events.DecideRetryCreate, events.DecideResume,
		events.DecideRetryCollection, events.DecideAcceptResult, events.DecideMarkCancelled,
	} {
		if !offered[choice] {
			t.Errorf("%s is never offered", choice)
		}
	}
	for _, phase := range []projections.Phase{projections.PhaseNone, projections.PhaseObserving, projections.PhaseSucceeded} {
		if steps := Steps(projections.State{Phase: phase}); len(steps) != 0 {
			t.Errorf("%s: %q", phase, Lines(steps))
		}
	}
}

// A result that is read once is not promised to be there again.
func TestResultReadOnce(t *testing.T) {
	s := projections.State{Operation: "op_1", Phase: projections.PhaseResultUnavailable, Reason: projections.ReasonResultLost}
	if got := Steps(s)[1].String(); got != "The provider still has it, though it may be read once only: counterfoil decide op_1 retry_collection --why '...'" {
		t.Error(got)
	}
}

func TestJobSource(t *testing.T) {
	const console = "its id as the provider's own console shows it"
	for _, c := range []struct {
		candidates []string
		hint       projections.Hint
		want       string
	}{
		{nil, projections.Hint{}, console},
		{[]string{"job-1"}, projections.Hint{}, console + "; look-ups named job-1"},
		{[]string{"a", "b", "c", "d"}, projections.Hint{}, console + "; look-ups named a, b, c, …"},
		{[]string{"a", "$(b)"}, projections.Hint{}, console},
		{[]string{"-a"}, projections.Hint{}, console},
		{[]string{""}, projections.Hint{}, console},
		{[]string{strings.Repeat("a", 129)}, projections.Hint{}, console},
		{[]string{"a"}, projections.Hint{JobID: "b", Exact: true}, console + "; a webhook with our reference named b; look-ups named a"},
		{nil, projections.Hint{JobID: "b"}, console},
		{nil, projections.Hint{JobID: "job", Exact: true}, console}, // that is followed
		{nil, projections.Hint{JobID: "$(b)", Exact: true}, console},
	} {
		s := projections.State{Candidates: c.candidates, Hint: c.hint, Job: projections.Job{ID: "job"}}
		if got := jobSource(s); got != c.want {
			t.Errorf("%q, %+v: %q, want %q", c.candidates, c.hint, got, c.want)
		}
	}
}

package ingest

import (
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/projections"
)

// A job that a webhook named is shown to whoever decides, and to whoever looks at what
// is left.
func TestNamedJobIsShown(t *testing.T) {
	for _, c := range []struct {
		name              string
		state             projections.State
		candidates, stray []string
	}{
		{"unknown", projections.State{Phase: projections.PhaseQuarantined, Quarantine: projections.QuarantineUnknown, Candidates: []string{"j7"}}, []string{"j7", "j1"}, nil},
		{"waiting", projections.State{Phase: projections.PhaseCreateUnknown}, []string{"j1"}, nil},
		{"unreadable", projections.State{Phase: projections.PhaseQuarantined, Quarantine: projections.QuarantineUnreadable}, []string{"j1"}, nil},
		{"conflict", projections.State{Phase: projections.PhaseQuarantined, Quarantine: projections.QuarantineConflict, Strays: []string{"j2"}}, nil, []string{"j2", "j1"}},
		{"ended", projections.State{Phase: projections.PhaseAbandoned}, nil, []string{"j1"}},
		{"beside another", projections.State{Phase: projections.PhaseObserving, Job: projections.Job{ID: "j2"}}, nil, []string{"j1"}},
		{"followed", projections.State{Phase: projections.PhaseObserving, Job: projections.Job{ID: "j1"}}, nil, nil},
		{"stray already", projections.State{Phase: projections.PhaseFailed, Strays: []string{"j1"}}, nil, []string{"j1"}},
	} {
		c.state.Hint = projections.Hint{JobID: "j1", Exact: true}
		if v := ViewOf(c.state, time.Time{}); !slices.Equal(v.Candidates, c.candidates) || !slices.Equal(v.Strays, c.stray) {
			t.Errorf("%s: candidates %q, strays %q", c.name, v.Candidates, v.Strays)
		}
		c.state.Hint.Exact = false
		if v := ViewOf(c.state, time.Time{}); len(v.Candidates)+len(v.Strays) != len(c.state.Candidates)+len(c.state.Strays) {
			t.Errorf("%s, not by reference: candidates %q, strays %q", c.name, v.Candidates, v.Strays)
		}
	}
}

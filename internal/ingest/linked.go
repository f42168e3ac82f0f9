package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// An operation that names an earlier one, by replaces or retry_of, is recorded in one
// write with a fact on the earlier one, at the very state of it that was checked. So both
// show the link or none does, and no create can come between the check and the record.

// predecessor is an earlier operation that a submission names.
type predecessor struct {
	state projections.State
	link  events.Link
}

// predecessors reads the operations that the submission names, and refuses where one of
// them may still create a job and the caller did not allow that both do.
func (v *Service) predecessors(ctx context.Context, caller Caller, s *Submission, id string) ([]predecessor, error) {
	return v.predecessorsBy(func(id string) (projections.State, error) { return v.cfg.Journal.Current(ctx, id) }, caller, s, id)
}

// predecessorsBy is predecessors with the states that read gives.
func (v *Service) predecessorsBy(read func(id string) (projections.State, error), caller Caller, s *Submission, id string) ([]predecessor, error) {
	var list []predecessor
	for _, l := range []struct {
		field, id string
		kind      events.LinkKind
	}{{"/replaces", s.Replaces, events.LinkReplacedBy}, {"/retry_of", s.RetryOf, events.LinkRetriedBy}} {
		if l.id == "" {
			continue
		}
		// Also for a key that may not read: that it is its principal's is no news.
		earlier, err := read(l.id)
		switch {
		case errors.Is(err, journal.ErrNoOperation), errors.Is(err, journal.ErrBadName), err == nil && earlier.Intent.Principal != caller.Principal:
			return nil, invalid(l.field, FieldNotAllowed, "is not an operation of yours", nil)
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", l.id, err)
		case earlier.Rulebook() > projections.Rules:
			return nil, cancelRefusal(earlier)
		case mayStillCreate(earlier) && !s.AllowOverlap:
			r := &Refusal{
				Code: CodeMayStillCreate, Operation: earlier.Operation, Trace: earlier.TraceID(), State: earlier.Phase,
				Errors:     []FieldError{Wrong(l.field, FieldNotAllowed, "may still create a job", nil)},
				RetryAfter: time.Duration(pollAfter(earlier, v.cfg.Clock.Now())) * time.Second,
			}
			return nil, r.Say("{operation} is {state} and may still create a job, or have one that is not known", nil)
		}
		list = append(list, predecessor{earlier, events.Link{Kind: l.kind, Operation: id, Overlap: s.AllowOverlap}})
	}
	return list, nil
}

// mayStillCreate says whether the operation may yet send a create, or has sent one that
// may have made a job that is not known. Once it is false it stays so.
func mayStillCreate(s projections.State) bool {
	if s.Job.ID != "" {
		return false
	}
	switch s.Phase {
	case projections.PhaseApprovalPending:
		return s.Intent.Adopt == ""
	case projections.PhaseCreatePending, projections.PhaseCreateUnknown, projections.PhaseReconciliation, projections.PhaseQuarantined:
		return true
	case projections.PhaseAbandoned, projections.PhaseFailed:
		return s.Creates.Unresolved() > 0
	case projections.PhaseNone, projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired, projections.PhaseCancelRequested,
		projections.PhaseCancelling, projections.PhaseResultCollecting, projections.PhaseResultTimedOut, projections.PhaseCancellationUnconfirmed,
		projections.PhaseResultUnavailable, projections.PhaseResultValidationFailed, projections.PhaseSucceeded, projections.PhaseCancelled:
	}
	return false
}

// together are facts that are stored all or none, one for each operation.
type together struct {
	v       *Service
	actor   string
	states  []projections.State
	facts   []events.Event
	earlier map[string]int // the place of an earlier operation
}

func (v *Service) together(actor string) *together {
	return &together{v: v, actor: actor, earlier: map[string]int{}}
}

func (t *together) add(s projections.State, e events.Event) {
	t.states, t.facts = append(t.states, s), append(t.facts, e)
}

// link adds the facts on earlier operations. Two items of a batch may name the same one,
// which gets one fact then.
func (t *together) link(list []predecessor) {
	for _, p := range list {
		at, has := t.earlier[p.state.Operation]
		if !has {
			at = len(t.facts)
			t.earlier[p.state.Operation] = at
			t.add(p.state, events.Event{
				ID: t.v.cfg.NewID(), Source: t.v.cfg.Source, Operation: p.state.Operation, Time: t.v.cfg.Clock.Now(),
				Actor: t.actor, Fact: &events.OperationLinked{Who: t.actor},
			})
		}
		if p.state.Sequence > t.states[at].Sequence { // both were checked, and an answer does not become worse
			t.states[at] = p.state
		}
		fact := t.facts[at].Fact.(*events.OperationLinked)
		fact.Links = append(fact.Links, p.link)
	}
}

// linked lists the operations of one kind of link.
func linked(links []events.Link, kind events.LinkKind) (list []string) {
	for _, l := range links {
		if l.Kind == kind {
			list = append(list, l.Operation)
		}
	}
	return list
}

package projections

import (
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// decidable is the guard of row 35; a decision that does not fit is rejected.
func (f *folding) decidable() bool {
	s, d := f.s, f.fact.(*events.DecisionMade)
	if s.Phase == PhaseNone {
		return false
	}
	if s.Phase.Terminal() {
		f.reason, f.refuse = ReasonTerminal, true
		return false
	}
	ok, why := Allowed(*s, d.Choice)
	if ok {
		switch d.Choice {
		case events.DecideAdopt:
			if d.JobID == "" {
				ok, why = false, ReasonBadDecision
			} else if d.Claim != events.ClaimOwn {
				ok, why = false, ReasonJobOwned
			}
		case events.DecideExtend:
			switch at := f.date(d.Which); {
			case at == nil || !d.Until.After(f.e.Time):
				ok, why = false, ReasonBadDecision
			case at.IsZero(): // one that does not run cannot be longer
				ok, why = false, ReasonNotApplicable
			}
		case events.DecideRetryCreate:
			if !d.AcceptRisk && !s.tokenHolds(f.e.Time.Add(s.Intent.Policy.RequestTimeout)) {
				ok, why = false, ReasonRiskUnstated
			}
		case events.DecideMarkCancelled:
			if d.Evidence.IsZero() {
				ok, why = false, ReasonBadDecision
			}
		case events.DecideAbandon, events.DecideResume, events.DecideRetryCollection, events.DecideAcceptResult:
		}
	}
	if !ok {
		f.reason, f.refuse = why, true
	}
	return ok
}

// Allowed says whether a decision of this kind fits the state, or the reason
// why not. Details of the decision itself are checked when it is folded.
func Allowed(s State, choice events.DecisionKind) (bool, Reason) {
	if s.Phase.Terminal() {
		return false, ReasonTerminal
	}
	ok := false
	switch choice {
	case events.DecideAbandon, events.DecideExtend:
		ok = s.Phase != PhaseNone
	case events.DecideAdopt:
		if _, open := s.OpenAttempt(); open != nil {
			return false, ReasonAttemptOpen
		}
		ok = s.inC() || s.Phase == PhaseQuarantined
	case events.DecideRetryCreate:
		if s.Creates.Open() != nil {
			return false, ReasonAttemptOpen
		}
		ok = s.Phase == PhaseQuarantined && s.Quarantine == QuarantineUnknown
	case events.DecideResume:
		ok = s.Phase == PhaseResultTimedOut || s.Phase == PhaseCancellationUnconfirmed ||
			(s.Phase == PhaseQuarantined && s.Quarantine == QuarantineLost)
	case events.DecideRetryCollection:
		ok = s.Phase == PhaseResultUnavailable || s.Phase == PhaseResultValidationFailed
	case events.DecideAcceptResult:
		ok = s.Phase == PhaseResultValidationFailed
	case events.DecideMarkCancelled:
		ok = s.Phase == PhaseCancellationUnconfirmed || s.Phase == PhaseQuarantined
	}
	if !ok {
		return false, ReasonNotApplicable
	}
	return true, ""
}

func (f *folding) date(which events.Deadline) *time.Time {
	switch which {
	case events.DeadlineApproval:
		return &f.s.Dates.Approval
	case events.DeadlineCreate:
		return &f.s.Dates.Create
	case events.DeadlineResult:
		return &f.s.Dates.Result
	case events.DeadlineCancel:
		return &f.s.Dates.Cancel
	case events.DeadlineCollect:
		return &f.s.Dates.Collect
	}
	return nil
}

func (f *folding) decide() {
	s, d := f.s, f.fact.(*events.DecisionMade)
	limits := s.Intent.Deadlines
	switch d.Choice {
	case events.DecideAbandon:
		f.enter(PhaseAbandoned, ReasonDecided)
	case events.DecideExtend:
		*f.date(d.Which) = d.Until
		s.Dates.RetryAt = time.Time{}
		if d.Which == events.DeadlineCreate {
			s.Dates.CreatePassed = false
		}
	case events.DecideAdopt:
		if s.Job.ID != "" && s.Job.ID != d.JobID {
			old := s.Job.ID
			s.Job = Job{}
			f.stray(old)
			s.Cancels.List, s.Cancels.Streak, s.Cancel.Repeat = nil, 0, false // they went to the other job
			s.Input, s.Inputs.List = Input{Asked: Asked{Number: s.Input.Number}}, nil
		}
		f.hint(Hint{})
		s.Dates.Result = after(f.e.Time, limits.Result)
		s.Dates.Cancel = time.Time{}
		for i := range s.Creates.List { // the decision says which job came of them
			s.Creates.List[i].Covered = true
		}
		f.accept(d.JobID, "", "")
		f.prompt("decision")
	case events.DecideRetryCreate:
		s.Cancel = Cancel{}
		s.Dates.Create = after(f.e.Time, limits.Create)
		s.Dates.Result = after(f.e.Time, limits.Result)
		s.Dates.CreatePassed = false
		s.Creates.Streak = 0
		s.Creates.Rested = time.Time{}
		s.RiskAccepted, s.Granted = d.AcceptRisk, true
		f.enter(PhaseCreatePending, ReasonDecided)
	case events.DecideResume:
		s.Dates.Result = after(f.e.Time, limits.Result)
		s.Dates.Cancel = time.Time{}
		s.Pace.NotFound, s.Pace.NotFoundSince = 0, time.Time{}
		f.enter(PhaseObserving, ReasonDecided)
		f.prompt("decision")
	case events.DecideRetryCollection:
		f.collect(OutcomeSuccess, ReasonDecided)
	case events.DecideAcceptResult:
		f.enter(PhaseSucceeded, ReasonDecided)
	case events.DecideMarkCancelled:
		s.Outcome = OutcomeCancelled
		f.enter(PhaseCancelled, ReasonDecided)
	}
}

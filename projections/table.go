package projections

import (
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// Trigger is a fact's type with its outcome: "create.answered/accepted".
type Trigger string

// TriggerOf names the trigger of a fact. An outcome of a later version counts
// as the one that claims least.
func TriggerOf(fact events.Fact) Trigger {
	base, _, _ := strings.Cut(string(fact.Type()), ".v")
	outcome := ""
	switch f := fact.(type) {
	case *events.PrepareAnswered:
		switch outcome = string(f.Outcome); f.Outcome {
		case events.PrepareDone, events.PrepareRejected, events.PrepareNotSent, events.PrepareAmbiguous, events.PreparePresumed:
		default:
			outcome = string(events.PrepareAmbiguous)
		}
	case *events.CreateAnswered:
		switch outcome = string(f.Outcome); f.Outcome {
		case events.CreateAccepted, events.CreateCompleted, events.CreateRejected, events.CreateConflict,
			events.CreateInProgress, events.CreateNotSent, events.CreateAmbiguous, events.CreatePresumed:
		default:
			outcome = string(events.CreateAmbiguous)
		}
	case *events.LookupAnswered:
		switch outcome = string(f.Outcome); f.Outcome {
		case events.LookupFound, events.LookupAbsent, events.LookupFailed:
		default:
			outcome = string(events.LookupFailed)
		}
	case *events.JobObserved:
		switch outcome = string(f.State); f.State {
		case events.ClassQueued, events.ClassRunning, events.ClassInputRequired, events.ClassSucceeded, events.ClassPartial,
			events.ClassFailed, events.ClassCancelled, events.ClassExpired, events.ClassUnknown:
		default:
			outcome = string(events.ClassUnknown)
		}
	case *events.ObservationFailed:
		if outcome = "other"; f.Class == events.ErrorNotFound {
			outcome = "not_found"
		}
	case *events.CancelAnswered:
		switch outcome = string(f.Outcome); f.Outcome {
		case events.CancelAcknowledged, events.CancelConfirmed, events.CancelTooLate, events.CancelRefused,
			events.CancelUnsupported, events.CancelNotSent, events.CancelAmbiguous, events.CancelPresumed:
		default:
			outcome = string(events.CancelAmbiguous)
		}
	case *events.ResultFailed:
		switch outcome = string(f.Outcome); f.Outcome {
		case events.ResultNotSent, events.ResultAmbiguous, events.ResultPresumed, events.ResultError:
		default:
			outcome = string(events.ResultAmbiguous)
		}
	case *events.DeadlinePassed:
		outcome = string(f.Which)
	case *events.DecisionMade:
		outcome = string(f.Choice)
	default: // the type says it all
	}
	if outcome == "" {
		return Trigger(base)
	}
	return Trigger(base + "/" + outcome)
}

// A Row is one line of the transition table. Its guard decides whether it
// applies; where it does not, the guard may leave the reason.
type Row struct {
	ID   string  // number in the design's table
	From []Phase // nil means any
	On   []Trigger
	When func(*folding) bool // nil means always
	Then func(*folding)
}

func (r *Row) matches(f *folding) bool {
	if r.From != nil && !slices.Contains(r.From, f.s.Phase) {
		return false
	}
	if r.On != nil && !slices.Contains(r.On, f.on) {
		return false
	}
	return r.When == nil || r.When(f)
}

// Sets of phases the table speaks of.
func inC() []Phase {
	return []Phase{PhaseCreatePending, PhaseCreateUnknown, PhaseReconciliation}
}

func inCOrQuarantined() []Phase { return append(inC(), PhaseQuarantined) }

func inJ() []Phase {
	return []Phase{PhaseAccepted, PhaseObserving, PhaseInputRequired, PhaseCancelRequested, PhaseCancelling}
}

func lateJ() []Phase {
	return append(inJ(), PhaseResultTimedOut, PhaseCancellationUnconfirmed, PhaseQuarantined)
}

func observed(classes ...events.Class) []Trigger {
	var list []Trigger
	for _, c := range classes {
		list = append(list, Trigger("job.observed/"+string(c)))
	}
	return list
}

// conflictRow is row 33, looked at before all others.
func conflictRow() *Row {
	return &Row{
		ID: "33", When: (*folding).contested,
		Then: func(f *folding) {
			f.enter(PhaseQuarantined, ReasonJobConflict)
			f.s.Quarantine = QuarantineConflict
			f.s.Prompt = Prompt{}
		},
	}
}

func (f *folding) contested() bool {
	return f.s.Phase != PhaseNone && !f.s.Phase.Terminal() && f.conflict() &&
		(f.s.Phase != PhaseQuarantined || f.s.Quarantine != QuarantineConflict)
}

// transitions is the transition table without row 33, which comes first, and
// row 0, which is what is left. At most one of its rows matches any fact in any
// state.
var transitions = []Row{
	{
		ID: "1", From: []Phase{PhaseNone}, On: []Trigger{"intent.recorded"},
		Then: func(f *folding) {
			s := f.s
			s.Intent = *f.fact.(*events.IntentRecorded)
			s.Started = f.e.Time
			s.Trace = f.e.Event.TraceID()
			switch {
			case s.Intent.NeedsApproval:
				s.Dates.Approval = after(f.e.Time, s.Intent.Deadlines.Approval)
				f.enter(PhaseApprovalPending, "")
			case s.Intent.Adopt != "":
				f.start()
				f.bind(s.Intent.Adopt, "", "")
				s.Job.Adopted = true
				f.enter(PhaseAccepted, "")
			default:
				f.start()
				f.enter(PhaseCreatePending, "")
			}
		},
	},
	{
		ID: "0", On: []Trigger{"intent.recorded"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone },
		Then: func(f *folding) { f.reason, f.refuse = ReasonSecondIntent, true },
	},
	{
		ID: "2", From: []Phase{PhaseApprovalPending}, On: []Trigger{"approval.granted"},
		When: (*folding).mayApprove,
		Then: func(f *folding) {
			f.start()
			f.s.Approval = Approval{Granted: true, By: f.fact.(*events.ApprovalGranted).Who, At: f.e.Time}
			f.s.Dates.Approval = time.Time{}
			if f.s.Intent.Adopt != "" {
				f.bind(f.s.Intent.Adopt, "", "")
				f.s.Job.Adopted = true
				f.enter(PhaseAccepted, "")
				return
			}
			f.enter(PhaseCreatePending, "")
		},
	},
	{
		ID: "2", From: []Phase{PhaseApprovalPending}, On: []Trigger{"approval.denied"},
		When: (*folding).mayApprove,
		Then: func(f *folding) {
			f.s.Approval = Approval{By: f.fact.(*events.ApprovalDenied).Who, At: f.e.Time}
			f.enter(PhaseAbandoned, ReasonApprovalDenied)
		},
	},
	{
		ID: "2", From: []Phase{PhaseApprovalPending}, On: []Trigger{"deadline.passed/approval"},
		When: func(f *folding) bool { return f.due(f.s.Dates.Approval) },
		Then: func(f *folding) { f.enter(PhaseAbandoned, ReasonApprovalExpired) },
	},
	{
		ID: "3", From: inC(), On: []Trigger{"create.attempted"},
		When: (*folding).mayCreate,
		Then: func(f *folding) {
			fact := f.fact.(*events.CreateAttempted)
			unresolved := f.s.Creates.Unresolved() > 0
			f.open(&f.s.Creates, fact.Attempt)
			f.s.RiskAccepted, f.s.Granted = false, false
			f.s.Pace.Lookups = 0
			if unresolved {
				f.enter(PhaseReconciliation, ReasonCreateUnknown)
			}
		},
	},
	{
		ID: "3a", From: []Phase{PhaseCreatePending}, On: []Trigger{"prepare.attempted"},
		When: (*folding).mayPrepare,
		Then: (*folding).prepare,
	},
	{
		ID: "3b", From: []Phase{PhaseCreatePending}, On: []Trigger{"prepare.answered/done"},
		When: func(f *folding) bool { return f.prepares(AttemptAnswered) },
		Then: func(f *folding) {
			f.s.Ready++
			f.s.Prepared = append(f.s.Prepared, f.fact.(*events.PrepareAnswered).Values...)
			// A second call of the same preparation may be running; what follows waits
			// for it, since calls with side effects do not overlap.
			f.s.Prepares.List = slices.DeleteFunc(f.s.Prepares.List, func(t Try) bool { return t.Status != AttemptOpen })
			f.s.Prepares.Streak = 0
		},
	},
	{
		ID: "3c", From: []Phase{PhaseCreatePending}, On: []Trigger{"prepare.answered/rejected"},
		When: func(f *folding) bool { return f.prepares(AttemptRejected) },
		Then: func(f *folding) {
			if f.s.Creates.Unresolved() > 0 { // its risk was accepted, and is not taken now
				f.s.RiskAccepted, f.s.Granted = false, false
				f.quarantineUnknown()
				return
			}
			f.enter(PhaseFailed, ReasonRefused)
		},
	},
	{
		ID: "4", From: inCOrQuarantined(), On: []Trigger{"create.answered/accepted", "create.answered/conflict"},
		When: func(f *folding) bool {
			a := f.fact.(*events.CreateAnswered)
			return f.open34() && a.JobID != "" && a.Claim == events.ClaimOwn
		},
		Then: func(f *folding) {
			a := f.fact.(*events.CreateAnswered)
			if t := f.s.Creates.find(a.Attempt); t != nil {
				t.Status = AttemptAnswered // also where the answer was a conflict that named the job
			}
			f.accept(a.JobID, a.StatusURL, a.Remote)
		},
	},
	{
		ID: "5", From: inCOrQuarantined(), On: []Trigger{"create.answered/completed"},
		When: func(f *folding) bool {
			a := f.fact.(*events.CreateAnswered)
			return f.open34() && (a.JobID == "" || a.Claim == events.ClaimOwn)
		},
		Then: func(f *folding) {
			a := f.fact.(*events.CreateAnswered)
			f.bind(a.JobID, a.StatusURL, a.Remote)
			if f.s.Cancel.Wished {
				f.s.Cancel.TooLate = true
			}
			if !f.s.Intent.Promises.HasResult {
				f.s.Outcome = OutcomeSuccess
				f.enter(PhaseSucceeded, "")
				return
			}
			f.collect(OutcomeSuccess, "")
		},
	},
	{
		ID: "6", From: inCOrQuarantined(), On: []Trigger{"create.answered/rejected", "create.answered/conflict"},
		When: func(f *folding) bool {
			return f.open34() && f.refused() && !f.throttled() && f.s.Creates.Unresolved() == 0
		},
		Then: func(f *folding) { f.enter(PhaseFailed, ReasonRefused) },
	},
	{
		ID: "7", From: inC(), On: []Trigger{"create.answered/rejected", "create.answered/conflict", "create.answered/in_progress"},
		When: func(f *folding) bool {
			a := f.fact.(*events.CreateAnswered)
			switch {
			case !f.known:
				f.reason = ReasonNoPermit
				return false
			case a.Outcome == events.CreateInProgress:
				return f.s.Creates.Unresolved() > 0
			case f.throttled():
				return false
			case a.Outcome == events.CreateRejected:
				return f.s.Creates.Unresolved() > 0
			}
			return a.JobID == "" && f.s.Creates.Unresolved() > 0
		},
		Then: func(f *folding) { f.enter(PhaseReconciliation, ReasonCreateUnknown) },
	},
	{
		ID: "8", From: inCOrQuarantined(), On: []Trigger{"create.answered/not_sent", "create.answered/rejected"},
		When: func(f *folding) bool {
			if !f.open34() || (f.on == "create.answered/rejected" && !f.throttled()) {
				return false
			}
			switch {
			case !f.known:
				f.reason = ReasonNoPermit
			case f.try.OwnClosed: // its worker has said otherwise
				return f.stale()
			}
			return f.known
		},
		Then: (*folding).notSent,
	},
	{
		ID: "9", From: inC(), On: []Trigger{
			"create.answered/ambiguous", "create.answered/presumed",
			"create.answered/accepted", "create.answered/completed", "create.answered/conflict", // where they name no job that can be bound
		},
		When: func(f *folding) bool {
			a := f.fact.(*events.CreateAnswered)
			switch {
			case f.on != "create.answered/ambiguous" && f.on != "create.answered/presumed" && !nameless(a):
				return false
			case !f.known:
				f.reason = ReasonNoPermit
				return false
			case f.try.OwnClosed, f.try.Covered, f.try.Status != AttemptOpen:
				return f.stale()
			}
			return true
		},
		Then: func(f *folding) {
			if id := f.fact.(*events.CreateAnswered).JobID; id != "" && !slices.Contains(f.s.Candidates, id) {
				f.s.Candidates = append(f.s.Candidates, id)
			}
			f.s.Pace.Lookups = 0
			// A worker presumed dead may still say; one proved dead will not.
			silent := f.on != "create.answered/presumed" || f.fact.(*events.CreateAnswered).OwnerGone
			if silent && !f.canTell() {
				// Nobody will ever know more: ask now, not at the create deadline.
				f.quarantineUnknown()
				return
			}
			f.enter(PhaseCreateUnknown, ReasonCreateUnknown)
		},
	},
	{
		ID: "10", From: inCOrQuarantined(), On: []Trigger{"lookup.answered/found"},
		When: func(f *folding) bool {
			j, ok := f.exactJob()
			return f.open34() && ok && j.Claim == events.ClaimOwn
		},
		Then: func(f *folding) {
			j, _ := f.exactJob()
			f.accept(j.ID, j.StatusURL, "")
		},
	},
	{
		ID: "11", From: inCOrQuarantined(), On: []Trigger{"lookup.answered/found"},
		When: func(f *folding) bool {
			l := f.fact.(*events.LookupAnswered)
			if _, exact := f.exactJob(); exact || !f.open34() || f.s.Creates.Unresolved() == 0 || len(f.candidates()) == 0 {
				return false
			}
			if !f.covers(l.AsOf) {
				return f.stale()
			}
			return true
		},
		Then: func(f *folding) {
			f.s.Candidates = f.candidates()
			if f.s.Phase == PhaseQuarantined {
				return // whoever decides sees what there is to adopt
			}
			if f.s.Intent.Promises.WebhookNamesJob {
				f.enter(PhaseReconciliation, ReasonCreateUnknown)
				return
			}
			f.quarantineUnknown()
		},
	},
	{
		ID: "12", From: []Phase{PhaseCreateUnknown, PhaseReconciliation, PhaseQuarantined}, On: []Trigger{"lookup.answered/absent"},
		When: (*folding).provedAbsent,
		Then: func(f *folding) {
			for i := range f.s.Creates.List {
				if f.s.Creates.List[i].Unresolved() {
					f.s.Creates.List[i].Covered = true
				}
			}
			f.s.Changed = f.e.Sequence
			switch {
			case f.s.Cancel.Wished, f.createOver(), f.s.Phase == PhaseQuarantined:
				f.enter(PhaseFailed, ReasonNotCreated)
			default:
				f.enter(PhaseCreatePending, "")
			}
		},
	},
	{
		ID: "13", From: inC(), On: []Trigger{"lookup.answered/absent", "lookup.answered/failed", "lookup.answered/found"},
		When: func(f *folding) bool {
			if f.on == "lookup.answered/found" { // all of them other operations' jobs: as good as absent, and no proof
				if _, exact := f.exactJob(); exact || len(f.candidates()) > 0 {
					return false
				}
			}
			if f.on == "lookup.answered/absent" && f.s.Phase != PhaseCreatePending && f.provedAbsent() {
				return false
			}
			if !f.covers(f.fact.(*events.LookupAnswered).AsOf) {
				return f.stale()
			}
			return f.s.Creates.Unresolved() > 0
		},
		Then: func(f *folding) { f.enter(PhaseReconciliation, ReasonCreateUnknown) },
	},
	{
		ID: "14", From: inCOrQuarantined(), On: anyObserved(),
		When: func(f *folding) bool {
			o := f.fact.(*events.JobObserved)
			return f.open34() && f.s.Job.ID == "" && f.s.Hint.Exact && f.s.Hint.JobID == o.JobID && o.Claim == events.ClaimOwn
		},
		Then: func(f *folding) {
			o := f.fact.(*events.JobObserved)
			f.accept(o.JobID, "", o.Remote)
			f.observe(o)
		},
	},
	{
		ID: "15", From: inC(), On: []Trigger{"deadline.passed/create"},
		When: func(f *folding) bool {
			if f.calling() {
				f.reason, f.refuse = ReasonAttemptOpen, true
				return false
			}
			return !f.s.Dates.CreatePassed && f.due(f.s.Dates.Create)
		},
		Then: func(f *folding) {
			s := f.s
			s.Dates.CreatePassed = true
			p := s.Intent.Promises
			switch {
			case !f.mayExist():
				f.enter(PhaseFailed, f.unsent())
			case p.Lookup == events.LookupExact && p.LookupConclusive || p.WebhookNamesJob:
				f.enter(PhaseReconciliation, ReasonCreateUnknown)
			default:
				f.quarantineUnknown()
			}
		},
	},
	{
		ID: "16", From: inC(), On: []Trigger{"deadline.passed/result"},
		When: func(f *folding) bool {
			if f.calling() {
				f.reason, f.refuse = ReasonAttemptOpen, true
				return false
			}
			return f.due(f.s.Dates.Result)
		},
		Then: func(f *folding) {
			if !f.mayExist() {
				f.enter(PhaseFailed, f.unsent())
				return
			}
			f.quarantineUnknown()
		},
	},
	{
		ID: "17", From: append(inJ(), PhaseQuarantined), On: observed(events.ClassQueued, events.ClassRunning, events.ClassUnknown),
		When: func(f *folding) bool { return f.sees(false) },
		Then: func(f *folding) { f.observe(f.fact.(*events.JobObserved)) },
	},
	{
		ID: "18", From: append(inJ(), PhaseQuarantined), On: observed(events.ClassInputRequired),
		When: func(f *folding) bool { return f.sees(false) },
		Then: func(f *folding) { f.observe(f.fact.(*events.JobObserved)) },
	},
	{
		ID: "19", From: lateJ(), On: observed(events.ClassSucceeded, events.ClassPartial),
		When: func(f *folding) bool { return f.sees(true) },
		Then: func(f *folding) { f.observe(f.fact.(*events.JobObserved)) },
	},
	{
		ID: "20", From: lateJ(), On: observed(events.ClassFailed, events.ClassExpired, events.ClassCancelled),
		When: func(f *folding) bool { return f.sees(true) },
		Then: func(f *folding) { f.observe(f.fact.(*events.JobObserved)) },
	},
	{
		ID: "21", From: inJ(), On: []Trigger{"observation.failed/not_found"},
		When: func(f *folding) bool {
			if !f.covers(f.fact.(*events.ObservationFailed).AsOf) {
				return f.stale()
			}
			grace := f.s.Intent.Promises.NotFoundGrace + f.s.Intent.Policy.ClockDifference
			return f.s.Pace.NotFound >= 3 && f.e.Time.Sub(f.s.Pace.NotFoundSince) >= grace
		},
		Then: func(f *folding) {
			if f.s.Phase == PhaseCancelling && f.s.Intent.Promises.GoneConfirmsCancel {
				f.s.Outcome = OutcomeCancelled
				f.enter(PhaseCancelled, ReasonGone)
				return
			}
			f.enter(PhaseQuarantined, ReasonJobLost)
			f.s.Quarantine = QuarantineLost
		},
	},
	{
		ID: "22", From: []Phase{PhaseResultCollecting}, On: []Trigger{"result.collected"},
		When: (*folding).checksPass,
		Then: (*folding).collected,
	},
	{
		ID: "23", From: []Phase{PhaseResultCollecting}, On: []Trigger{"result.collected"},
		When: func(f *folding) bool { return !f.checksPass() },
		Then: func(f *folding) {
			f.keepResult()
			if f.s.Outcome == OutcomeSuccess {
				f.enter(PhaseResultValidationFailed, ReasonCheckFailed)
				return
			}
			f.finish("")
		},
	},
	{
		ID: "24", From: []Phase{PhaseResultCollecting}, On: []Trigger{"deadline.passed/collect"},
		When: func(f *folding) bool {
			if f.s.Results.Open() != nil {
				f.reason, f.refuse = ReasonAttemptOpen, true
				return false
			}
			return f.due(f.s.Dates.Collect)
		},
		Then: func(f *folding) { f.withoutResult(ReasonCollectDeadline) },
	},
	{
		ID: "24", From: []Phase{PhaseResultCollecting}, On: []Trigger{"result.failed/ambiguous", "result.failed/presumed", "result.failed/error"},
		When: func(f *folding) bool { return !f.s.Intent.Promises.RepeatResult && f.known },
		Then: func(f *folding) { f.withoutResult(ReasonResultLost) },
	},
	{
		ID: "0", From: []Phase{PhaseResultCollecting}, On: []Trigger{"result.attempted"},
		When: func(f *folding) bool { return f.s.Results.Open() == nil && f.numbered(&f.s.Results) },
		Then: func(f *folding) { f.open(&f.s.Results, f.fact.(*events.ResultAttempted).Attempt) },
	},
	{
		ID: "25", From: append(inC(), PhaseApprovalPending), On: []Trigger{"cancel.requested"},
		When: func(f *folding) bool { return !f.mayExist() },
		Then: func(f *folding) {
			f.wish()
			if !f.s.Creates.everLeft() {
				f.s.Outcome = OutcomeCancelled
				f.enter(PhaseCancelled, ReasonCancelledUnsent)
				return
			}
			f.enter(PhaseFailed, ReasonNotCreated)
		},
	},
	{
		ID: "26", From: inC(), On: []Trigger{"cancel.requested"},
		When: func(f *folding) bool { return f.mayExist() },
		Then: (*folding).wish,
	},
	{
		ID: "26", From: []Phase{PhaseQuarantined}, On: []Trigger{"cancel.requested"},
		When: func(f *folding) bool { return f.s.Quarantine != QuarantineLost },
		Then: (*folding).wish,
	},
	{
		ID: "27", From: []Phase{PhaseAccepted, PhaseObserving, PhaseInputRequired, PhaseResultTimedOut, PhaseCancellationUnconfirmed, PhaseQuarantined},
		On: []Trigger{"cancel.requested"},
		When: func(f *folding) bool {
			return f.s.Phase != PhaseQuarantined || f.s.Quarantine == QuarantineLost
		},
		Then: func(f *folding) {
			f.wish()
			if f.cancellable() {
				f.s.Cancels.Streak = 0
				f.s.Cancel.Repeat = f.s.Phase == PhaseCancellationUnconfirmed && f.s.Intent.Promises.RepeatCancel
				f.s.Dates.Cancel = time.Time{}
				if !f.e.Time.Before(f.s.Dates.Result) {
					// A deadline that has passed would end the wish before a
					// cancel that could not leave is tried again.
					f.s.Dates.Result = after(f.e.Time, f.s.Intent.Deadlines.Cancel)
				}
				f.enter(PhaseCancelRequested, "")
			}
		},
	},
	{
		ID: "27a", From: []Phase{PhaseResultCollecting, PhaseResultUnavailable, PhaseResultValidationFailed}, On: []Trigger{"cancel.requested"},
		Then: func(f *folding) {
			f.wish()
			f.s.Cancel.TooLate = true
			f.reason = ReasonTooLate
		},
	},
	{
		ID: "28", From: []Phase{PhaseCancelRequested}, On: []Trigger{"cancel.answered/acknowledged", "cancel.answered/confirmed"},
		When: (*folding).permitted,
		Then: func(f *folding) {
			f.prompt("cancel")
			f.enter(PhaseCancelling, "")
		},
	},
	{
		ID: "28a", From: []Phase{PhaseCancelRequested}, On: []Trigger{"cancel.attempted"},
		When: func(f *folding) bool {
			if f.s.Cancels.Open() != nil {
				f.reason, f.refuse = ReasonAttemptOpen, true
				return false
			}
			return (len(f.s.Cancels.List) == 0 || f.s.Cancel.Repeat) && f.numbered(&f.s.Cancels)
		},
		Then: func(f *folding) {
			f.open(&f.s.Cancels, f.fact.(*events.CancelAttempted).Attempt)
			f.s.Cancel.Repeat = false
			if f.s.Dates.Cancel.IsZero() {
				f.s.Dates.Cancel = after(f.e.Time, f.s.Intent.Deadlines.Cancel)
			}
		},
	},
	{
		ID: "29", From: []Phase{PhaseCancelRequested},
		On:   []Trigger{"cancel.answered/too_late", "cancel.answered/refused", "cancel.answered/ambiguous", "cancel.answered/presumed"},
		When: (*folding).permitted,
		Then: func(f *folding) { f.prompt("cancel") },
	},
	{
		ID: "29a", From: []Phase{PhaseCancelRequested}, On: []Trigger{"cancel.answered/not_sent"},
		When: (*folding).permitted,
		Then: func(f *folding) { f.s.Cancel.Repeat = f.s.Cancel.Repeat || len(f.s.Cancels.List) > 0 },
	},
	{
		ID: "30", From: []Phase{PhaseCancelRequested}, On: []Trigger{"cancel.answered/unsupported"},
		When: (*folding).permitted,
		Then: func(f *folding) {
			f.s.Cancel.Impossible = true
			f.s.Dates.Cancel = time.Time{}
			f.enter(PhaseObserving, "")
		},
	},
	{
		ID: "31", From: []Phase{PhaseCancelRequested, PhaseCancelling}, On: []Trigger{"deadline.passed/cancel"},
		When: func(f *folding) bool {
			if f.s.Cancels.Open() != nil {
				f.reason, f.refuse = ReasonAttemptOpen, true
				return false
			}
			return f.due(f.s.Dates.Cancel)
		},
		Then: func(f *folding) { f.enter(PhaseCancellationUnconfirmed, ReasonCancelDeadline) },
	},
	{
		ID: "32", From: []Phase{PhaseAccepted, PhaseObserving, PhaseInputRequired, PhaseCancelRequested}, On: []Trigger{"deadline.passed/result"},
		When: func(f *folding) bool {
			if f.s.Phase == PhaseCancelRequested && !f.s.Dates.Cancel.IsZero() {
				return false
			}
			if !f.s.lookedAfter(f.s.Dates.Result) {
				f.reason, f.refuse = ReasonTooEarly, true
				return false
			}
			return f.due(f.s.Dates.Result)
		},
		Then: func(f *folding) { f.enter(PhaseResultTimedOut, ReasonResultDeadline) },
	},
	{
		ID: "35", On: []Trigger{
			"decision.made/abandon", "decision.made/extend", "decision.made/adopt", "decision.made/retry_create", "decision.made/resume",
			"decision.made/retry_collection", "decision.made/accept_result", "decision.made/mark_cancelled",
		},
		When: (*folding).decidable,
		Then: (*folding).decide,
	},
	{
		ID: "36", From: []Phase{PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned},
		On: []Trigger{
			"create.answered/accepted", "create.answered/completed", "create.answered/conflict", "lookup.answered/found", "webhook.received",
			"job.observed/queued", "job.observed/running", "job.observed/input_required", "job.observed/succeeded", "job.observed/partial",
			"job.observed/failed", "job.observed/cancelled", "job.observed/expired", "job.observed/unknown",
		},
		Then: func(f *folding) {
			f.keepStrays()
			f.reason = ReasonTerminal
		},
	},
	{
		ID: "37", On: []Trigger{"webhook.received"},
		When: func(f *folding) bool {
			return f.s.Phase != PhaseNone && !f.s.Phase.Terminal() &&
				(f.s.Phase != PhaseQuarantined || f.s.Quarantine != QuarantineConflict)
		},
		Then: func(f *folding) {
			w := f.fact.(*events.WebhookReceived)
			switch f.s.Phase {
			case PhaseResultCollecting, PhaseResultUnavailable, PhaseResultValidationFailed, PhaseApprovalPending:
				f.reason = ReasonTooLate
				return
			}
			if w.JobID != "" && w.Exact && f.s.Job.ID == "" {
				f.hint(Hint{JobID: w.JobID, Exact: true})
			}
			if f.s.Job.ID != "" || f.s.Hint.Exact {
				f.prompt("webhook")
			}
		},
	},
	{
		ID: "38", From: []Phase{PhaseResultUnavailable, PhaseResultValidationFailed}, On: []Trigger{"result.collected"},
		Then: func(f *folding) {
			if f.checksPass() {
				f.collected()
				return
			}
			f.keepResult()
			f.enter(PhaseResultValidationFailed, ReasonCheckFailed)
		},
	},
	{
		ID: "39", On: []Trigger{"step.deferred"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone },
		Then: func(*folding) {}, // keepTime took it
	},
	{
		ID: "40", On: []Trigger{"operation.paused"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone && !f.s.Phase.Terminal() },
		Then: func(f *folding) {
			if !f.s.Paused {
				f.s.PausedAt, f.s.PausedBy = f.e.Time, f.fact.(*events.OperationPaused).Who
			}
			f.s.Paused = true
		},
	},
	{
		ID: "40", On: []Trigger{"operation.resumed"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone && !f.s.Phase.Terminal() },
		Then: func(f *folding) { f.s.Paused, f.s.PausedAt, f.s.PausedBy = false, time.Time{}, "" },
	},
	{
		ID: "41", From: []Phase{PhaseInputRequired}, On: []Trigger{"input.answered"},
		When: func(f *folding) bool { return !f.s.takesInput() || f.permitted() },
		Then: func(f *folding) {
			if !f.s.Input.Due { // nothing of it left
				f.prompt("input")
			}
		},
	},
	{
		ID: "41a", From: []Phase{PhaseInputRequired}, On: []Trigger{"input.submitted"},
		When: func(f *folding) bool {
			ok, why := TakesInput(*f.s)
			if asked := f.fact.(*events.InputSubmitted).Question; ok && asked != 0 && asked != f.s.Input.Question {
				ok, why = false, ReasonStale // it answers something else
			}
			if !ok && f.s.takesInput() {
				f.reason = why
			}
			return ok
		},
		Then: (*folding).takeInput,
	},
	{
		ID: "41b", From: []Phase{PhaseInputRequired}, On: []Trigger{"input.attempted"},
		When: func(f *folding) bool { return f.s.takesInput() && f.maySend(&f.s.Input.Asked, &f.s.Inputs) },
		Then: func(f *folding) {
			f.open(&f.s.Inputs, f.fact.(*events.InputAttempted).Attempt)
			f.s.Input.Due, f.s.Input.Wanted = false, false
		},
	},
	{
		ID: "42", From: cleansUpIn(), On: []Trigger{"cleanup.requested"},
		When: func(f *folding) bool {
			c := f.fact.(*events.CleanupRequested)
			ok, why := TakesCleanup(*f.s, c.JobID)
			if ok && c.Claim != events.ClaimOwn { // rule 4
				ok, why = false, ReasonJobOwned
			}
			if !ok && f.s.takesCleanup() {
				f.reason = why
			}
			return ok
		},
		Then: (*folding).takeCleanup,
	},
	{
		ID: "42a", From: cleansUpIn(), On: []Trigger{"cleanup.attempted"},
		When: func(f *folding) bool {
			return f.s.takesCleanup() && f.s.cleansUp() && f.maySend(&f.s.Cleanup.Asked, &f.s.Cleanups)
		},
		Then: func(f *folding) {
			f.open(&f.s.Cleanups, f.fact.(*events.CleanupAttempted).Attempt)
			f.s.Cleanup.Due = false
		},
	},
	{
		ID: "42b", From: cleansUpIn(), On: []Trigger{"cleanup.answered"},
		When: func(f *folding) bool { return f.s.takesCleanup() && f.permitted() },
		Then: func(*folding) {}, // closing the attempt took it
	},
	{
		ID: "0", On: []Trigger{"tags.changed"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone },
		Then: func(f *folding) { f.s.Intent.Tags = slices.Clone(f.fact.(*events.TagsChanged).Tags) },
	},
	{
		ID: "0", On: []Trigger{"operation.linked"},
		When: func(f *folding) bool { return f.s.Phase != PhaseNone },
		Then: func(f *folding) {
			list := slices.Concat(f.s.Later, f.fact.(*events.OperationLinked).Links)
			f.s.Later = list[max(len(list)-MaxLater, 0):]
		},
	},
	{
		ID: "0", On: []Trigger{"notification.attempted"},
		When: func(f *folding) bool {
			return f.s.Phase.Stopped() && f.fact.(*events.NotificationAttempted).Number == f.s.Notice.Made+1
		},
		Then: func(f *folding) {
			a, n := f.fact.(*events.NotificationAttempted), &f.s.Notice
			n.Made, n.Told, n.Open, n.Owner, n.Until = n.Made+1, n.Told+1, true, a.Owner, after(a.NotAfter, a.Timeout)
		},
	},
	{
		ID: "0", On: []Trigger{"notification.answered"},
		When: func(f *folding) bool {
			return f.s.Notice.Open && f.fact.(*events.NotificationAnswered).Attempt == f.s.Notice.Made
		},
		Then: func(f *folding) { f.s.Notice.Open = false },
	},
}

func anyObserved() []Trigger {
	return observed(events.ClassQueued, events.ClassRunning, events.ClassInputRequired, events.ClassSucceeded,
		events.ClassPartial, events.ClassFailed, events.ClassCancelled, events.ClassExpired, events.ClassUnknown)
}

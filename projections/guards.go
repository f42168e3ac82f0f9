package projections

import (
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// conflict says whether the fact shows a second job, or a job of another
// operation. It keeps what it finds as a stray, since nothing else will.
func (f *folding) conflict() bool {
	other := func(id string) bool {
		if id == "" || slices.Contains(f.s.Strays, id) { // a decision was made knowing of it
			return false
		}
		if known := f.s.Job.ID; known != "" {
			return id != known
		}
		return f.s.Hint.Exact && f.s.Hint.JobID != id
	}
	stray := func(id, claim string) bool {
		if claim == events.ClaimOwn || claim == "" {
			f.stray(id)
		}
		return true
	}
	foreign := func(claim string) bool {
		return claim != "" && claim != events.ClaimOwn && claim != f.s.Operation
	}
	switch fact := f.fact.(type) {
	case *events.CreateAnswered:
		if foreign(fact.Claim) {
			return true
		}
		if fact.EchoDiffer {
			return stray(fact.JobID, fact.Claim)
		}
		if other(fact.JobID) {
			return stray(fact.JobID, fact.Claim)
		}
	case *events.LookupAnswered:
		if fact.Outcome != events.LookupFound {
			return false
		}
		exact := 0
		found := false
		for _, j := range fact.Jobs {
			if !j.Exact || slices.Contains(f.s.Strays, j.ID) {
				continue
			}
			exact++
			if foreign(j.Claim) {
				found = true
			}
			if other(j.ID) {
				found = stray(j.ID, j.Claim)
			}
		}
		if exact > 1 {
			for _, j := range fact.Jobs {
				if j.Exact && j.ID != f.s.Job.ID && !foreign(j.Claim) {
					f.stray(j.ID)
				}
			}
		}
		return found || exact > 1
	case *events.JobObserved:
		if foreign(fact.Claim) {
			return true
		}
		if f.s.Job.ID != "" && other(fact.JobID) {
			return stray(fact.JobID, fact.Claim)
		}
	case *events.WebhookReceived:
		if fact.Exact && other(fact.JobID) {
			return stray(fact.JobID, "")
		}
	case *events.JobContested:
		return fact.JobID == f.s.Job.ID || f.s.Job.ID == ""
	default: // no other fact names a job
	}
	return false
}

func (f *folding) stray(id string) {
	if id != "" && id != f.s.Job.ID && !slices.Contains(f.s.Strays, id) {
		f.s.Strays = append(f.s.Strays, id)
	}
}

// open34 says whether evidence about the create may still establish a job here:
// C always, quarantine only of kind unknown (row 34).
func (f *folding) open34() bool {
	return f.s.Phase != PhaseQuarantined || f.s.Quarantine == QuarantineUnknown
}

// due says whether a deadline has passed by the ledger's clock. One that comes
// too early is rejected, and the next look is later by what was missing.
func (f *folding) due(at time.Time) bool {
	if at.IsZero() {
		return false
	}
	if missing := at.Sub(f.e.Time); missing > 0 {
		f.reason, f.refuse = ReasonTooEarly, true
		// The clock that asked is ahead, and decides when to ask again: later
		// by what was missing, by that clock.
		asked := latest(f.e.Time, f.e.Event.Time)
		if most := at.Add(mostAhead); asked.After(most) {
			asked = most
		}
		f.s.Dates.RetryAt = after(asked, max(missing, tooEarlyPause))
		return false
	}
	return true
}

// tooEarlyPause keeps a fast clock from asking again and again.
const tooEarlyPause = 10 * time.Second

// mostAhead bounds how far a wrong clock can put a deadline off.
const mostAhead = time.Hour

// calling says whether a call that comes before there is a job may be running.
func (f *folding) calling() bool { return f.s.Creates.Open() != nil || f.s.Prepares.Open() != nil }

func (f *folding) numbered(tries *Tries) bool {
	var number uint64
	switch fact := f.fact.(type) {
	case *events.PrepareAttempted:
		number = fact.Number
	case *events.CreateAttempted:
		number = fact.Number
	case *events.CancelAttempted:
		number = fact.Number
	case *events.ResultAttempted:
		number = fact.Number
	case *events.InputAttempted:
		number = fact.Number
	case *events.CleanupAttempted:
		number = fact.Number
	default: // no other fact is numbered
	}
	return number == tries.Made+1
}

// mayApprove refuses the word of the submitter, and one over something else than what
// waits. A fact that says nothing of what it is over is taken at its word.
func (f *folding) mayApprove() bool {
	who, over := "", events.Digest{}
	switch fact := f.fact.(type) {
	case *events.ApprovalGranted:
		who, over = fact.Who, fact.Approved
	case *events.ApprovalDenied:
		who, over = fact.Who, fact.Denied
	default: // the table asks for no other
	}
	i := &f.s.Intent
	if who != "" && who == i.Principal || !over.IsZero() && over != i.ToApprove(f.s.Operation) {
		f.reason, f.refuse = ReasonBadApproval, true
		return false
	}
	return true
}

// mayCreate refuses a permit for a create that could make a second job.
func (f *folding) mayCreate() bool {
	s := f.s
	switch {
	case f.calling():
		f.reason = ReasonAttemptOpen
	case s.Cancel.Wished, s.Paused, f.createOver(), !f.numbered(&s.Creates), !f.prepared():
		f.reason = ReasonNotApplicable
	case s.Creates.Unresolved() > 0 && !s.RiskAccepted && !s.tokenHolds(f.fact.(*events.CreateAttempted).NotAfter):
		f.reason = ReasonNotApplicable
	default:
		return true
	}
	f.refuse = true
	if f.numbered(&s.Creates) { // an answer to it must never be taken for one to the next
		s.Creates.Made++
	}
	return false
}

// prepared says whether all is there that this create needs, made where and as
// whom the create goes.
func (f *folding) prepared() bool {
	a, s := f.fact.(*events.CreateAttempted), f.s
	return s.Intent.Promises.Prepares == 0 || s.Ready >= s.Intent.Promises.Prepares && s.Round.Serves(a.Origin, a.Account, a.Identity)
}

// mayPrepare refuses a permit for a preparation that nothing waits for, and one
// that would mix what two targets have. At another target the preparations
// begin again, unless a create that relied on them may have made a job.
func (f *folding) mayPrepare() bool {
	a, s := f.fact.(*events.PrepareAttempted), f.s
	same := s.Round.Serves(a.Origin, a.Account, a.Identity)
	switch {
	case f.calling():
		f.reason = ReasonAttemptOpen
	case s.Cancel.Wished, s.Paused, f.createOver(), !f.numbered(&s.Prepares), s.Intent.Promises.Prepares == 0,
		same && (a.Step != s.Ready || s.Ready >= s.Intent.Promises.Prepares),
		!same && (a.Step != 0 || s.Creates.Unresolved() > 0 && !s.RiskAccepted):
		f.reason = ReasonNotApplicable
	default:
		return true
	}
	f.refuse = true
	if f.numbered(&s.Prepares) { // an answer to it must never be taken for one to the next
		s.Prepares.Made++
	}
	return false
}

// prepare is row 3a: the attempt is open. The first one at a target begins a
// round, in which nothing of the round before counts, nor a late answer to it.
func (f *folding) prepare() {
	a, s := f.fact.(*events.PrepareAttempted), f.s
	if same := s.Round.Serves(a.Origin, a.Account, a.Identity); a.Step == 0 && (!same || s.Round.Sequence == 0) {
		again := s.Round.Again
		if s.Round.Sequence > 0 {
			again++
		}
		s.Round = Round{
			Origin: a.Origin, Account: a.Account, Identity: a.Identity, Sequence: f.e.Sequence, Began: f.e.Time, Again: again,
		}
		s.Ready, s.Prepared, s.Prepares.List = 0, nil, nil
	}
	f.open(&s.Prepares, a.Attempt)
}

// prepares says whether the answer is one to the preparation that is under way,
// and closed its attempt with that status.
func (f *folding) prepares(status AttemptStatus) bool {
	a := f.fact.(*events.PrepareAnswered)
	if !f.known {
		f.reason = ReasonNoPermit
		return false
	}
	t := f.s.Prepares.find(a.Attempt)
	return a.Step == f.s.Ready && a.Step < f.s.Intent.Promises.Prepares && t != nil && t.Status == status
}

// tokenHolds says whether the provider promises to answer a repeated token with
// the first job for a request that leaves no later than notAfter.
func (s *State) tokenHolds(notAfter time.Time) bool {
	if s.Intent.Promises.Guarantee != events.Deduplicated {
		return false
	}
	ends, bounded := s.WindowEnds()
	return !bounded || !notAfter.After(ends)
}

func (f *folding) createOver() bool {
	d := f.s.Dates
	return d.CreatePassed || (!d.Create.IsZero() && !f.e.Time.Before(d.Create))
}

func (f *folding) open(tries *Tries, a events.Attempt) {
	tries.Made = a.Number
	tries.List = append(tries.List, Try{
		Number: a.Number, Status: AttemptOpen, Sequence: f.e.Sequence, OpenedAt: f.e.Time,
		NotAfter: a.NotAfter, Timeout: a.Timeout, Request: a.Request,
		Origin: a.Origin, Account: a.Account, Identity: a.Identity, Owner: a.Owner,
	})
	f.s.Changed = f.e.Sequence
}

// permitted says whether the answer belongs to an attempt that was permitted.
func (f *folding) permitted() bool {
	if !f.known {
		f.reason = ReasonNoPermit
	}
	return f.known
}

// refused says whether the answer proves that no job was made.
func (f *folding) refused() bool {
	a := f.fact.(*events.CreateAnswered)
	if !f.known {
		return false
	}
	if a.Outcome == events.CreateRejected {
		return true
	}
	return a.JobID == "" && f.s.Intent.Promises.RefusalIsProof
}

// throttled says whether the provider refused for now only.
func (f *folding) throttled() bool { return throttled(f.fact.(*events.CreateAnswered)) }

// notSent is row 8: the attempt is closed and made nothing.
func (f *folding) notSent() {
	s := f.s
	if s.Creates.Unresolved() > 0 {
		return
	}
	rejected := false
	for _, t := range s.Creates.List {
		rejected = rejected || t.Status == AttemptRejected
	}
	switch {
	case s.Cancel.Wished && !s.Creates.everLeft():
		s.Outcome = OutcomeCancelled
		f.enter(PhaseCancelled, ReasonCancelledUnsent)
	case s.Cancel.Wished:
		f.enter(PhaseFailed, ReasonNotCreated)
	case rejected:
		f.enter(PhaseFailed, ReasonRefused)
	case f.createOver(), s.Phase == PhaseQuarantined:
		f.enter(PhaseFailed, f.unsent())
	default:
		f.enter(PhaseCreatePending, "")
	}
}

// unsent names why an operation without an unresolved attempt ends.
func (f *folding) unsent() Reason {
	if !f.s.Creates.everLeft() {
		return ReasonNeverSent
	}
	if len(f.s.Creates.List) == 0 {
		return ReasonRefused
	}
	for _, t := range f.s.Creates.List {
		if t.Status == AttemptRejected {
			return ReasonRefused
		}
	}
	return ReasonNotCreated
}

func (f *folding) exactJob() (events.FoundJob, bool) {
	l := f.fact.(*events.LookupAnswered)
	for _, j := range l.Jobs {
		if j.Exact {
			return j, true
		}
	}
	return events.FoundJob{}, false
}

// candidates gives the jobs found that no other operation owns.
func (f *folding) candidates() []string {
	var list []string
	for _, j := range f.fact.(*events.LookupAnswered).Jobs {
		if j.Claim == "" || j.Claim == events.ClaimOwn {
			list = append(list, j.ID)
		}
	}
	return list
}

// seenCandidates keeps what a look-up named while nobody knows our job, however
// late its answer is: whoever decides must see it. Only row 11 takes a newer
// list for the whole truth.
func (f *folding) seenCandidates(l *events.LookupAnswered) {
	s := f.s
	if l.Outcome != events.LookupFound || s.Job.ID != "" || s.Creates.Unresolved() == 0 || s.Phase.Terminal() {
		return
	}
	for _, j := range l.Jobs {
		ours := !j.Exact && (j.Claim == "" || j.Claim == events.ClaimOwn)
		if ours && len(s.Candidates) < mostCandidates && !slices.Contains(s.Candidates, j.ID) {
			s.Candidates = append(s.Candidates, j.ID)
		}
	}
}

// mostCandidates bounds what a state carries of look-ups that find too much.
const mostCandidates = 200

// provedAbsent is the guard of row 12: everything that could still make a job
// appear is over, and the author knew all of it.
func (f *folding) provedAbsent() bool {
	l := f.fact.(*events.LookupAnswered)
	s := f.s
	p := s.Intent.Promises
	if !l.Conclusive || !p.LookupConclusive || s.Creates.Unresolved() == 0 || s.Creates.Open() != nil {
		return false
	}
	if s.Phase == PhaseQuarantined && s.Quarantine != QuarantineUnknown {
		return false
	}
	if s.Hint.Exact { // someone who carries our reference says otherwise
		return false
	}
	if p.Strict {
		for _, t := range s.Creates.List {
			if !t.OwnClosed && !t.OwnerGone {
				return false
			}
		}
	}
	return f.covers(l.AsOf) && !l.LeftAt.Before(s.ConclusiveAt())
}

// mayExist says whether a job of ours may exist: an attempt is unresolved, or a
// webhook with our reference named one.
func (f *folding) mayExist() bool {
	return f.s.Creates.Unresolved() > 0 || (f.s.Hint.Exact && f.s.Job.ID == "")
}

// canTell says whether anything but a human can still find out what became of
// a create whose answer its own worker lost.
func (f *folding) canTell() bool {
	p := f.s.Intent.Promises
	return p.Guarantee == events.Deduplicated || p.Lookup != events.LookupNone || p.WebhookNamesJob
}

func (f *folding) quarantineUnknown() {
	f.enter(PhaseQuarantined, ReasonCreateUnknown)
	f.s.Quarantine = QuarantineUnknown
}

// sees is the guard of rows 17 to 20. The end of a job is positive evidence and
// applies at any age; that it goes on applies only from someone who knew the
// present state.
func (f *folding) sees(positive bool) bool {
	o := f.fact.(*events.JobObserved)
	if f.s.Job.ID == "" || o.JobID != f.s.Job.ID {
		return false
	}
	if f.s.Phase == PhaseQuarantined && f.s.Quarantine != QuarantineLost {
		return false
	}
	if !positive && !f.covers(o.AsOf) {
		return f.stale()
	}
	return true
}

func (f *folding) checksPass() bool {
	for _, c := range f.fact.(*events.ResultCollected).Checks {
		if !c.Passed {
			return false
		}
	}
	return true
}

func (f *folding) keepResult() {
	r := f.fact.(*events.ResultCollected)
	f.s.Result = Result{Payload: r.Payload, Size: r.Size, MediaType: r.MediaType, Checks: slices.Clone(r.Checks)}
}

func (f *folding) collected() {
	f.keepResult()
	f.finish("")
}

func (f *folding) withoutResult(why Reason) {
	if f.s.Outcome == OutcomeSuccess {
		f.enter(PhaseResultUnavailable, why)
		return
	}
	f.finish("")
}

func (f *folding) wish() {
	c := f.fact.(*events.CancelRequested)
	if !f.s.Cancel.Wished {
		f.s.Cancel.Wished, f.s.Cancel.At, f.s.Cancel.By = true, f.e.Time, c.Who
	}
}

// keepOwn keeps a job that INDEX gave to this operation although no row could
// use it, so that no job of ours is unknown.
func (f *folding) keepOwn() {
	switch fact := f.fact.(type) {
	case *events.CreateAnswered:
		if fact.Claim == events.ClaimOwn {
			f.stray(fact.JobID)
		}
	case *events.LookupAnswered:
		for _, j := range fact.Jobs {
			if j.Exact && j.Claim == events.ClaimOwn {
				f.stray(j.ID)
			}
		}
	case *events.JobObserved:
		if fact.Claim == events.ClaimOwn {
			f.stray(fact.JobID)
		}
	default: // the others do not count here
	}
}

func (f *folding) keepStrays() {
	switch fact := f.fact.(type) {
	case *events.CreateAnswered:
		if fact.Claim == events.ClaimOwn || fact.Claim == "" {
			f.stray(fact.JobID)
		}
	case *events.LookupAnswered:
		for _, j := range fact.Jobs {
			if j.Exact && (j.Claim == events.ClaimOwn || j.Claim == "") {
				f.stray(j.ID)
			}
		}
	case *events.WebhookReceived:
		if fact.Exact {
			f.stray(fact.JobID)
		}
	case *events.JobObserved:
		if fact.Claim == events.ClaimOwn {
			f.stray(fact.JobID)
		}
	default: // no other fact names a job
	}
}

// lookedAfter says whether a status read began after the deadline, or the
// newest one failed after it, or whether none may be made before it and after.
func (s *State) lookedAfter(deadline time.Time) bool {
	if s.Job.ID == "" || s.Pace.Deferred == events.DeferHold && s.Pace.DeferUntil.After(deadline) {
		return true
	}
	return !s.Pace.LastReadLeft.Before(deadline) || (s.Pace.LastFailed && !s.Pace.LastRead.Before(deadline))
}

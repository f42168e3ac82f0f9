package projections

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// StepKind is something that can be done for an operation.
type StepKind string

// The steps.
const (
	StepPresume  StepKind = "presume"  // close an attempt whose owner is gone
	StepPrepare  StepKind = "prepare"  // make a call the create needs, such as an upload
	StepCreate   StepKind = "create"   // send the create, or send it again
	StepLookup   StepKind = "lookup"   // ask the provider for our job
	StepRead     StepKind = "read"     // read the job's status
	StepCancel   StepKind = "cancel"   // ask the provider to cancel
	StepCollect  StepKind = "collect"  // fetch the result
	StepDeadline StepKind = "deadline" // record that a deadline passed
	StepInput    StepKind = "input"    // pass on what was answered to a job that waits
	StepCleanup  StepKind = "cleanup"  // remove what a job left
)

// A Step is one thing that may be done from At on. A state's steps come in
// order of preference: of those that are due, the first that is still possible
// is taken.
type Step struct {
	Kind    StepKind
	At      time.Time
	Which   events.Deadline // of StepDeadline
	Prompt  string          // of StepRead: due, webhook, cancel, decision, deadline
	JobID   string          // of StepRead and StepCleanup: the job
	Because string          // for people
}

// Next is when the operation needs attention next; false means not by itself.
func Next(s State) (time.Time, bool) {
	var l list
	l.fill(&s)
	step, ok := l.first()
	return step.At, ok
}

// Steps lists what can be done for the operation, each with its earliest time.
// While a call with side effects may still be running there is one step only:
// to presume, once it cannot be running any more, that its owner is gone.
func Steps(s State) []Step {
	var l list
	l.fill(&s)
	return append([]Step(nil), l.all()...)
}

// list is the steps of a state in the making. Its methods take the state and do
// not keep it, so that neither has to be put on the heap: this runs several
// times for every fact.
type list struct {
	n     int
	steps [mostSteps]Step
}

// mostSteps is more than any state has: two deadlines, a job that was named, a
// create and a look-up.
const mostSteps = 8

func (l *list) all() []Step { return l.steps[:l.n] }

func (l *list) first() (Step, bool) {
	if l.n == 0 {
		return Step{}, false
	}
	best := 0
	for i := 1; i < l.n; i++ {
		if l.steps[i].At.Before(l.steps[best].At) {
			best = i
		}
	}
	return l.steps[best], true
}

func (l *list) fill(s *State) {
	if s.Phase == PhaseNone || s.Rulebook() > Rules {
		return
	}
	if _, t := s.Presumable(); t != nil {
		// Whoever presumes may have a clock that is ahead of the worker's.
		at := t.GoneAt().Add(s.Intent.Policy.ClockDifference)
		l.put(Step{Kind: StepPresume, At: at, Because: "an attempt is open and may be running"})
		return
	}
	switch s.Phase {
	case PhaseApprovalPending:
		l.deadline(s, events.DeadlineApproval, s.Dates.Approval)
	case PhaseCreatePending:
		l.establish(s)
		l.hint(s) // before a create: somebody says that our job exists
		if s.Ready < s.Intent.Promises.Prepares {
			l.prepare(s)
		} else {
			l.create(s, "nothing was sent yet")
		}
	case PhaseCreateUnknown, PhaseReconciliation:
		l.establish(s)
		l.hint(s)
		if last := s.Creates.Last(); last != nil && last.Status == AttemptConflict {
			// The provider says that the job is there; a look-up can name it,
			// where another create would be told the same again.
			l.lookup(s, "the provider says that the job exists and does not name it")
			l.create(s, "the outcome of the create is unknown and the same token is safe to repeat")
			break
		}
		l.create(s, "the outcome of the create is unknown and the same token is safe to repeat")
		l.lookup(s, "the outcome of the create is unknown")
	case PhaseInputRequired:
		l.resultDeadline(s)
		l.prompted(s, s.Job.ID) // first: somebody says that the job may wait no longer
		l.input(s)
		l.due(s)
		l.owed(s)
	case PhaseAccepted, PhaseObserving, PhaseCancelling:
		if s.Phase == PhaseCancelling {
			l.deadline(s, events.DeadlineCancel, s.Dates.Cancel)
		} else {
			l.resultDeadline(s)
		}
		l.read(s)
		l.owed(s)
	case PhaseCancelRequested:
		if s.Dates.Cancel.IsZero() {
			l.cancel(s) // first: asked for after the result deadline, it would never be sent
			l.resultDeadline(s)
		} else {
			l.deadline(s, events.DeadlineCancel, s.Dates.Cancel)
			l.cancel(s)
		}
		if len(s.Cancels.List) > 0 || !s.Prompt.At.IsZero() {
			l.read(s)
		}
		l.owed(s)
	case PhaseResultCollecting:
		l.deadline(s, events.DeadlineCollect, s.Dates.Collect)
		l.collect(s)
		l.owed(s)
	case PhaseQuarantined:
		l.quarantined(s)
	case PhaseResultTimedOut, PhaseCancellationUnconfirmed:
		l.prompted(s, s.Job.ID)
		l.owed(s)
		l.cleanup(s)
	case PhaseResultUnavailable, PhaseResultValidationFailed:
		l.owed(s)
		l.cleanup(s)
	case PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned:
		l.owed(s)
		l.cleanup(s)
	case PhaseNone:
	}
}

// Rulebook is the version of the rules the operation keeps.
func (s *State) Rulebook() uint64 { return s.Intent.Rules }

// deferredPrefix begins what is said of a step that rests.
const deferredPrefix = "deferred: "

// add appends a step, not before a deferral's end. The one read after the
// result deadline does not wait for a provider that is busy, and a cancel not for
// our own limit.
func (l *list) add(s *State, step Step) {
	p := &s.Pace
	last := step.Kind == StepRead && step.Prompt == "deadline" && (p.Deferred == events.DeferThrottled || p.Deferred == events.DeferLimit) ||
		step.Kind == StepCancel && p.Deferred == events.DeferLimit
	if step.Kind != StepDeadline && !last && p.DeferUntil.After(step.At) {
		step.At, step.Because = p.DeferUntil, deferredPrefix+string(p.Deferred)
	}
	if (step.Kind == StepCreate || step.Kind == StepPrepare) && p.RestCreates.After(step.At) {
		step.At, step.Because = p.RestCreates, deferredPrefix+string(p.Resting)
	}
	l.put(step)
}

func (l *list) put(step Step) {
	l.steps[l.n] = step
	l.n++
}

func (l *list) deadline(s *State, which events.Deadline, at time.Time) {
	if at.IsZero() {
		return
	}
	l.add(s, Step{Kind: StepDeadline, Which: which, At: latest(at, s.Dates.RetryAt), Because: passing(which)})
}

func passing(which events.Deadline) string {
	switch which { // so that the usual ones need no new string each time
	case events.DeadlineResult:
		return deadlinePrefix + "result"
	case events.DeadlineCreate:
		return deadlinePrefix + "create"
	case events.DeadlineApproval, events.DeadlineCancel, events.DeadlineCollect:
	}
	return deadlinePrefix + string(which)
}

// deadlinePrefix begins the note of a step that is the passing of a deadline.
const deadlinePrefix = "deadline "

// establish gives the deadlines of the time without a job id.
func (l *list) establish(s *State) {
	l.deadline(s, events.DeadlineResult, s.Dates.Result)
	if !s.Dates.CreatePassed {
		l.deadline(s, events.DeadlineCreate, s.Dates.Create)
	}
}

// resultDeadline asks for a status read begun after the deadline, then for the
// deadline itself.
func (l *list) resultDeadline(s *State) {
	at := s.Dates.Result
	if s.lookedAfter(at) {
		l.deadline(s, events.DeadlineResult, at)
		return
	}
	// A read that left before the deadline by its author's clock, or could not
	// leave, does not count; the next one must not follow at once.
	// The waits after failures before the deadline do not move it, nor does a
	// Retry-After: one read more ends on time with the provider's last word.
	wait := s.backoff(max(s.Pace.Failures, 1))
	switch ahead := s.Intent.Policy.ClockDifference; {
	case !s.Pace.LastRead.Before(at):
		at = latest(s.Pace.LastRead.Add(wait), s.Pace.RetryAt)
	case !s.Pace.LastRead.Before(at.Add(-ahead)): // perhaps tried for the deadline already, by a clock that is ahead
		at = latest(at, s.Pace.LastRead.Add(min(wait, ahead)))
	}
	l.add(s, Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "deadline", At: at, Because: "one read after the result deadline"})
}

// prepare makes the next call that the create needs. Repeating one is safe, so
// an unknown outcome is tried again.
func (l *list) prepare(s *State) {
	if s.Cancel.Wished || s.Paused || s.Dates.CreatePassed || uint64(len(s.Prepares.List)) >= max(s.Intent.Policy.MaxAttempts, 1) {
		return
	}
	at := latest(s.Since, s.Intent.NotBefore)
	if n := uint64(len(s.Prepares.List)) + s.Prepares.Streak; n > 0 {
		closed := s.Prepares.Rested
		for _, t := range s.Prepares.List {
			closed = latest(closed, t.ClosedAt)
		}
		at = latest(at, closed.Add(s.backoff(n)))
	}
	l.add(s, Step{Kind: StepPrepare, At: latest(at, s.Pace.RetryAt), Because: "the create needs it"})
}

func (l *list) create(s *State, because string) {
	over := s.Dates.CreatePassed
	if s.Cancel.Wished || s.Paused || over || s.Ready < s.Intent.Promises.Prepares {
		return
	}
	if uint64(len(s.Creates.List)) >= max(s.Intent.Policy.MaxAttempts, 1) && !s.RiskAccepted && !s.Granted {
		return
	}
	if s.Creates.Unresolved() > 0 && !s.RiskAccepted && !s.tokenHolds(s.retryCreateAt()) {
		return
	}
	if s.Hint.Exact && !s.RiskAccepted && s.Intent.Promises.Guarantee != events.Deduplicated {
		return // a second create could make a second job
	}
	l.add(s, Step{Kind: StepCreate, At: s.retryCreateAt(), Because: because})
}

// retryCreateAt is when the next create may leave: at once the first time, else
// after a growing wait that leaves an earlier request time to settle.
func (s *State) retryCreateAt() time.Time {
	at := latest(s.Since, s.Intent.NotBefore)
	if s.Creates.Unresolved() == 0 {
		if s.Creates.Streak > 0 {
			at = latest(at, s.Creates.Rested.Add(s.backoff(s.Creates.Streak)))
		}
		return latest(at, s.Pace.RetryAt)
	}
	if s.RiskAccepted {
		return at
	}
	closed := latest(s.Since, s.Creates.Rested)
	for _, t := range s.Creates.List {
		closed = latest(closed, t.ClosedAt)
	}
	wait := max(s.backoff(uint64(len(s.Creates.List))+s.Creates.Streak), s.Intent.Promises.Settle)
	return latest(closed.Add(wait), s.Pace.RetryAt)
}

// hint reads a job that a webhook named by our reference.
func (l *list) hint(s *State) {
	if !s.Hint.Exact || s.Hint.JobID == "" {
		return
	}
	if !s.Prompt.At.IsZero() {
		l.prompted(s, s.Hint.JobID)
		return
	}
	l.add(s, Step{
		Kind: StepRead, JobID: s.Hint.JobID, Prompt: "due",
		At: latest(latest(s.Pace.LastRead, s.Since).Add(s.backoff(max(s.Pace.Failures, 1))), s.Pace.RetryAt), Because: "a webhook named the job",
	})
}

func (l *list) prompted(s *State, job string) {
	if !s.Prompt.At.IsZero() && job != "" {
		l.add(s, Step{Kind: StepRead, JobID: job, Prompt: s.Prompt.Why, At: s.Prompt.At, Because: "asked to look by " + s.Prompt.Why})
	}
}

// lookup asks for our job: first when the request has had time to settle, then
// with growing waits, and in any case when an empty answer becomes proof.
func (l *list) lookup(s *State, because string) {
	if s.Intent.Promises.Lookup == events.LookupNone || s.Creates.Unresolved() == 0 {
		return
	}
	l.add(s, Step{Kind: StepLookup, At: s.lookupAt(), Because: because})
}

func (s *State) lookupAt() time.Time {
	var settled time.Time
	for _, t := range s.Creates.List {
		settled = latest(settled, t.ClosedAt)
	}
	settled = settled.Add(s.Intent.Promises.Settle)
	if s.Pace.Lookups == 0 {
		return latest(settled, s.Pace.RetryAt)
	}
	at := s.Pace.LastLookup.Add(s.backoff(s.Pace.Lookups))
	if proof := s.ConclusiveAt(); s.Pace.LastLookupLeft.Before(proof) && proof.Before(at) && proof.After(s.Pace.LastLookup) {
		at = proof
	}
	return latest(at, s.Pace.RetryAt)
}

// read follows a job we know.
func (l *list) read(s *State) {
	l.prompted(s, s.Job.ID)
	l.due(s)
}

func (l *list) due(s *State) {
	why := "the job goes on"
	if s.Phase == PhaseInputRequired && s.Rulebook() >= 2 { // the words of earlier operations are stored
		why = "the job waits for an answer"
	}
	l.add(s, Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "due", At: s.readAt(), Because: why})
}

func (s *State) readAt() time.Time {
	from := latest(s.Pace.LastRead, s.Job.At)
	wait := s.Intent.Policy.PollInterval
	if s.Pace.Failures > 0 {
		wait = s.backoff(s.Pace.Failures)
	}
	return latest(from.Add(wait), s.Pace.RetryAt)
}

func (l *list) cancel(s *State) {
	if len(s.Cancels.List) > 0 && !s.Cancel.Repeat {
		return
	}
	at := s.Since
	switch {
	case s.Cancels.Streak > 0:
		at = latest(at, s.Cancels.Rested.Add(s.backoff(s.Cancels.Streak)))
	case len(s.Cancels.List) > 0:
		at = latest(at, s.lastCancelled().Add(s.backoff(uint64(len(s.Cancels.List)))))
	}
	l.add(s, Step{Kind: StepCancel, At: latest(at, s.Pace.RetryAt), Because: "a cancel was asked for"})
}

func (s *State) lastCancelled() time.Time {
	at := s.Since
	for _, t := range s.Cancels.List {
		at = latest(at, t.ClosedAt)
	}
	return at
}

func (l *list) collect(s *State) {
	if s.Paused {
		return
	}
	at := s.Since
	if s.Pace.Collects > 0 {
		at = s.Pace.LastCollect.Add(s.backoff(s.Pace.Collects))
	}
	l.add(s, Step{Kind: StepCollect, At: latest(at, s.Pace.RetryAt), Because: "the job ended and its result is due"})
}

// quarantined looks on at the longest interval where evidence can still clear
// the quarantine.
func (l *list) quarantined(s *State) {
	slow := func(last time.Time) time.Time {
		return latest(last, s.Since).Add(s.Intent.Policy.PollMax)
	}
	until := func(step Step) {
		if !step.At.After(s.Dates.Result) {
			l.add(s, step)
		}
	}
	switch s.Quarantine {
	case QuarantineConflict, QuarantineUnreadable:
		return
	case QuarantineLost:
		l.prompted(s, s.Job.ID)
		until(Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "due", At: slow(s.Pace.LastRead), Because: "the job was not found"})
	case QuarantineUnknown:
		if s.Hint.Exact {
			l.prompted(s, s.Hint.JobID)
			until(Step{Kind: StepRead, JobID: s.Hint.JobID, Prompt: "due", At: slow(s.Pace.LastRead), Because: "a webhook named the job"})
		}
		if s.Intent.Promises.Lookup != events.LookupNone {
			until(Step{Kind: StepLookup, At: slow(s.Pace.LastLookup), Because: "the outcome of the create is unknown"})
		}
	}
	l.owed(s)
	l.cleanup(s)
}

// owed is the one look-up for stray jobs at the settle time (rule 3).
func (l *list) owed(s *State) {
	if !s.OwedLookup || s.Intent.Promises.Lookup == events.LookupNone {
		return
	}
	at := s.ConclusiveAt()
	if !s.Pace.LastLookupLeft.Before(at) || s.Pace.LastLookup.After(at) {
		at = latest(at, s.Pace.LastLookup.Add(s.backoff(s.Pace.Lookups)))
	}
	l.add(s, Step{Kind: StepLookup, At: at, Because: s.whyOwed()})
}

// whyOwed says to people what owesLookup found.
func (s *State) whyOwed() string {
	switch {
	case s.LookupBroke:
		return "the look-up that found the job did not see every page"
	case len(s.Creates.List) > 1:
		return "more than one create may have arrived"
	}
	return "the create may have arrived once more, or later, than its answer tells"
}

// backoff is the wait after n failures in a row: it doubles from the base to
// the cap and is shortened by up to a tenth, computed from the operation and n,
// so that a schedule can be recomputed and a herd spreads.
func (s *State) backoff(n uint64) time.Duration {
	if n == 0 {
		return 0
	}
	base, most := s.Intent.Policy.BackoffBase, s.Intent.Policy.BackoffMax
	wait := min(base, most)
	for i := uint64(1); i < n && wait > 0 && wait < most; i++ {
		if wait > most/2 { // doubling could overflow
			wait = most
			break
		}
		wait *= 2
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	h := fnv1a(fnv1a(fnvStart, s.Operation), b[:])
	return wait - wait/10/1024*time.Duration(h%1024)
}

// Due gives the steps whose time has come, in order of preference.
func Due(s State, now time.Time) []Step {
	return slices.DeleteFunc(Steps(s), func(step Step) bool { return step.At.After(now) })
}

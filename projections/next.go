package projections

import (
	"encoding/binary"
	"hash/fnv"
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
)

// A Step is one thing that may be done from At on. A state's steps come in
// order of preference: of those that are due, the first that is still possible
// is taken.
type Step struct {
	Kind    StepKind
	At      time.Time
	Which   events.Deadline // of StepDeadline
	Prompt  string          // of StepRead: due, webhook, cancel, decision, deadline
	JobID   string          // of StepRead: the job to read
	Because string          // for people
}

// Next is when the operation needs attention next; false means not by itself.
func Next(s State) (time.Time, bool) {
	step, ok := first(Steps(s))
	return step.At, ok
}

func first(steps []Step) (Step, bool) {
	if len(steps) == 0 {
		return Step{}, false
	}
	best := steps[0]
	for _, step := range steps[1:] {
		if step.At.Before(best.At) {
			best = step
		}
	}
	return best, true
}

// Steps lists what can be done for the operation, each with its earliest time.
// While a call with side effects may still be running there is one step only:
// to presume, once it cannot be running any more, that its owner is gone.
func Steps(s State) []Step {
	if s.Phase == PhaseNone || s.Rulebook() > Rules {
		return nil
	}
	if _, t := s.OpenAttempt(); t != nil && !s.Phase.Terminal() {
		// Whoever presumes may have a clock that is ahead of the worker's.
		at := t.GoneAt().Add(s.Intent.Policy.ClockDifference)
		return []Step{{Kind: StepPresume, At: at, Because: "an attempt is open and may be running"}}
	}
	w := &walk{s: &s}
	switch s.Phase {
	case PhaseApprovalPending:
		w.deadline(events.DeadlineApproval, s.Dates.Approval)
	case PhaseCreatePending:
		w.establish()
		w.hint() // before a create: somebody says that our job exists
		if s.Ready < s.Intent.Promises.Prepares {
			w.prepare()
		} else {
			w.create("nothing was sent yet")
		}
	case PhaseCreateUnknown, PhaseReconciliation:
		w.establish()
		w.hint()
		if last := s.Creates.Last(); last != nil && last.Status == AttemptConflict {
			// The provider says that the job is there; a look-up can name it,
			// where another create would be told the same again.
			w.lookup("the provider says that the job exists and does not name it")
			w.create("the outcome of the create is unknown and the same token is safe to repeat")
			break
		}
		w.create("the outcome of the create is unknown and the same token is safe to repeat")
		w.lookup("the outcome of the create is unknown")
	case PhaseAccepted, PhaseObserving, PhaseInputRequired, PhaseCancelling:
		if s.Phase == PhaseCancelling {
			w.deadline(events.DeadlineCancel, s.Dates.Cancel)
		} else {
			w.resultDeadline()
		}
		w.read()
		w.owed()
	case PhaseCancelRequested:
		if s.Dates.Cancel.IsZero() {
			w.cancel() // first: asked for after the result deadline, it would never be sent
			w.resultDeadline()
		} else {
			w.deadline(events.DeadlineCancel, s.Dates.Cancel)
			w.cancel()
		}
		if len(s.Cancels.List) > 0 || !s.Prompt.At.IsZero() {
			w.read()
		}
		w.owed()
	case PhaseResultCollecting:
		w.deadline(events.DeadlineCollect, s.Dates.Collect)
		w.collect()
		w.owed()
	case PhaseQuarantined:
		w.quarantined()
	case PhaseResultTimedOut, PhaseCancellationUnconfirmed:
		w.prompted(s.Job.ID)
		w.owed()
	case PhaseResultUnavailable, PhaseResultValidationFailed:
		w.owed()
	case PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned:
		w.owed()
	case PhaseNone:
	}
	return w.steps
}

// Rulebook is the version of the rules the operation keeps.
func (s *State) Rulebook() uint64 { return s.Intent.Rules }

type walk struct {
	s     *State
	steps []Step
}

// deferredPrefix begins what is said of a step that rests.
const deferredPrefix = "deferred: "

// add appends a step, not before a deferral's end. The one read after the
// result deadline does not wait for a provider that is busy.
func (w *walk) add(step Step) {
	p := &w.s.Pace
	last := step.Kind == StepRead && step.Prompt == "deadline" && p.Deferred == events.DeferThrottled
	if step.Kind != StepDeadline && !last && p.DeferUntil.After(step.At) {
		step.At, step.Because = p.DeferUntil, deferredPrefix+string(p.Deferred)
	}
	if (step.Kind == StepCreate || step.Kind == StepPrepare) && p.RestCreates.After(step.At) {
		step.At, step.Because = p.RestCreates, deferredPrefix+string(p.Resting)
	}
	w.steps = append(w.steps, step)
}

func (w *walk) deadline(which events.Deadline, at time.Time) {
	if at.IsZero() {
		return
	}
	w.add(Step{Kind: StepDeadline, Which: which, At: latest(at, w.s.Dates.RetryAt), Because: "deadline " + string(which)})
}

// establish gives the deadlines of the time without a job id.
func (w *walk) establish() {
	w.deadline(events.DeadlineResult, w.s.Dates.Result)
	if !w.s.Dates.CreatePassed {
		w.deadline(events.DeadlineCreate, w.s.Dates.Create)
	}
}

// resultDeadline asks for a status read begun after the deadline, then for the
// deadline itself.
func (w *walk) resultDeadline() {
	s := w.s
	at := s.Dates.Result
	if s.lookedAfter(at) {
		w.deadline(events.DeadlineResult, at)
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
	w.add(Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "deadline", At: at, Because: "one read after the result deadline"})
}

// prepare makes the next call that the create needs. Repeating one is safe, so
// an unknown outcome is tried again.
func (w *walk) prepare() {
	s := w.s
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
	w.add(Step{Kind: StepPrepare, At: latest(at, s.Pace.RetryAt), Because: "the create needs it"})
}

func (w *walk) create(because string) {
	s := w.s
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
	w.add(Step{Kind: StepCreate, At: s.retryCreateAt(), Because: because})
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
func (w *walk) hint() {
	s := w.s
	if !s.Hint.Exact || s.Hint.JobID == "" {
		return
	}
	if !s.Prompt.At.IsZero() {
		w.prompted(s.Hint.JobID)
		return
	}
	w.add(Step{
		Kind: StepRead, JobID: s.Hint.JobID, Prompt: "due",
		At: latest(latest(s.Pace.LastRead, s.Since).Add(s.backoff(max(s.Pace.Failures, 1))), s.Pace.RetryAt), Because: "a webhook named the job",
	})
}

func (w *walk) prompted(job string) {
	if s := w.s; !s.Prompt.At.IsZero() && job != "" {
		w.add(Step{Kind: StepRead, JobID: job, Prompt: s.Prompt.Why, At: s.Prompt.At, Because: "asked to look by " + s.Prompt.Why})
	}
}

// lookup asks for our job: first when the request has had time to settle, then
// with growing waits, and in any case when an empty answer becomes proof.
func (w *walk) lookup(because string) {
	s := w.s
	if s.Intent.Promises.Lookup == events.LookupNone || s.Creates.Unresolved() == 0 {
		return
	}
	w.add(Step{Kind: StepLookup, At: s.lookupAt(), Because: because})
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
func (w *walk) read() {
	s := w.s
	w.prompted(s.Job.ID)
	w.add(Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "due", At: s.readAt(), Because: "the job goes on"})
}

func (s *State) readAt() time.Time {
	from := latest(s.Pace.LastRead, s.Job.At)
	wait := s.Intent.Policy.PollInterval
	if s.Pace.Failures > 0 {
		wait = s.backoff(s.Pace.Failures)
	}
	return latest(from.Add(wait), s.Pace.RetryAt)
}

func (w *walk) cancel() {
	s := w.s
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
	w.add(Step{Kind: StepCancel, At: latest(at, s.Pace.RetryAt), Because: "a cancel was asked for"})
}

func (s *State) lastCancelled() time.Time {
	at := s.Since
	for _, t := range s.Cancels.List {
		at = latest(at, t.ClosedAt)
	}
	return at
}

func (w *walk) collect() {
	s := w.s
	if s.Paused {
		return
	}
	at := s.Since
	if s.Pace.Collects > 0 {
		at = s.Pace.LastCollect.Add(s.backoff(s.Pace.Collects))
	}
	w.add(Step{Kind: StepCollect, At: latest(at, s.Pace.RetryAt), Because: "the job ended and its result is due"})
}

// quarantined looks on at the longest interval where evidence can still clear
// the quarantine.
func (w *walk) quarantined() {
	s := w.s
	slow := func(last time.Time) time.Time {
		return latest(last, s.Since).Add(s.Intent.Policy.PollMax)
	}
	until := func(step Step) {
		if !step.At.After(s.Dates.Result) {
			w.add(step)
		}
	}
	switch s.Quarantine {
	case QuarantineConflict, QuarantineUnreadable:
		return
	case QuarantineLost:
		w.prompted(s.Job.ID)
		until(Step{Kind: StepRead, JobID: s.Job.ID, Prompt: "due", At: slow(s.Pace.LastRead), Because: "the job was not found"})
	case QuarantineUnknown:
		if s.Hint.Exact {
			w.prompted(s.Hint.JobID)
			until(Step{Kind: StepRead, JobID: s.Hint.JobID, Prompt: "due", At: slow(s.Pace.LastRead), Because: "a webhook named the job"})
		}
		if s.Intent.Promises.Lookup != events.LookupNone {
			until(Step{Kind: StepLookup, At: slow(s.Pace.LastLookup), Because: "the outcome of the create is unknown"})
		}
	}
	w.owed()
}

// owed is the one look-up for stray jobs at the settle time (rule 3).
func (w *walk) owed() {
	s := w.s
	if !s.OwedLookup || s.Intent.Promises.Lookup == events.LookupNone {
		return
	}
	at := s.ConclusiveAt()
	if !s.Pace.LastLookupLeft.Before(at) || s.Pace.LastLookup.After(at) {
		at = latest(at, s.Pace.LastLookup.Add(s.backoff(s.Pace.Lookups)))
	}
	w.add(Step{Kind: StepLookup, At: at, Because: "more than one create may have arrived"})
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
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.Operation)) // a hash never fails
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = h.Write(b[:])
	return wait - wait/10/1024*time.Duration(h.Sum64()%1024)
}

// Due gives the steps whose time has come, in order of preference.
func Due(s State, now time.Time) []Step {
	return slices.DeleteFunc(Steps(s), func(step Step) bool { return step.At.After(now) })
}

// Package workflow decides the one step that is due for an operation.
//
// Decide is pure: it takes the state, the time and what the worker knows of its
// own surroundings, and gives work as data: a fact to append first, then an
// effect to attempt. An effect whose fact was not stored at the expected
// sequence is not attempted. It reads the promises in the state and never the
// contract, as the fold does, so that both can be proved without one.
package workflow

import (
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// Target is where the operation's calls go as things stand now.
type Target struct {
	Origin     string // base URL of the calls: two teams may share a host and not a path
	Account    string
	Credential string // reference; "" where none is needed
	Identity   string // fingerprint of the credential's value
	Missing    string // why the credential cannot be had; "" if it can
}

// World is what a worker knows beside the state.
type World struct {
	Now time.Time // the worker's clock, which its permits end by
	// Ledger is the ledger's time as far as the worker knows it, which dates the
	// facts and the steps that follow from them: Now, or earlier where the worker's
	// clock is known to be ahead. Zero means Now. A worker that went by a clock that
	// is ahead by more than the interval would never find a read that is not due.
	Ledger time.Time
	Owner  string // this worker and run
	Target Target
	// Gone says whether the owner of an attempt is proved to be gone: only one
	// process at a time holds the data directory, and the owner names an
	// earlier one. On a cluster nothing proves it.
	Gone func(owner string) bool
	// Held says that no call with side effects may be permitted for now.
	Held bool
	// Hold is what an operator, or the want of room, lets rest.
	Hold Hold
	// Throttled is when the provider may be asked again for this operation after
	// it told others of the account to slow down, by the ledger's time; zero if it
	// did not.
	Throttled time.Time
}

// due is the time that steps are held against.
func (w *World) due() time.Time {
	if w.Ledger.IsZero() {
		return w.Now
	}
	return w.Ledger
}

// HoldScope is which calls a hold lets rest.
type HoldScope string

// Scopes of a hold. Deadlines pass under each.
const (
	HoldNone    HoldScope = ""
	HoldCreates HoldScope = "creates" // creates and preparations for them
	HoldAll     HoldScope = "all"     // every call
)

// Hold is what rests, and why. The zero Hold lets everything go on.
type Hold struct {
	Scope  HoldScope
	Reason events.DeferReason // provider_on_hold or storage_low
	Detail string             // for people
}

// covers says whether the step rests under the hold.
func (h Hold) covers(step projections.Step) bool {
	switch h.Scope {
	case HoldAll:
		return calls(step)
	case HoldCreates:
		return step.Kind == projections.StepCreate || step.Kind == projections.StepPrepare
	case HoldNone:
	}
	return false
}

// Rests says whether the call that a permit allows rests under the hold.
func (h Hold) Rests(permit events.Fact) bool {
	switch h.Scope {
	case HoldAll:
		return true
	case HoldCreates:
		return permit.Type() == events.TypeCreateAttempted || permit.Type() == events.TypePrepareAttempted
	case HoldNone:
	}
	return false
}

// calls says whether the step asks anything of the provider.
func calls(step projections.Step) bool {
	return step.Kind != projections.StepPresume && step.Kind != projections.StepDeadline
}

// holdRest is how long a step rests under a hold before the hold is looked at
// again. The end of a hold ends the rest, see [Released].
const holdRest = time.Hour

// Released gives the fact that ends an operation's rest under a hold that is
// over, or nil.
func Released(s projections.State, now time.Time, h Hold) events.Fact {
	held := func(reason events.DeferReason) bool {
		return reason == events.DeferHold || reason == events.DeferStorageLow
	}
	switch {
	case s.Pace.DeferUntil.After(now) && held(s.Pace.Deferred) && h.Scope != HoldAll:
		return &events.StepDeferred{Until: now, Reason: s.Pace.Deferred, Detail: "the hold is over"}
	case s.Pace.RestCreates.After(now) && held(s.Pace.Resting) && h.Scope == HoldNone:
		return &events.StepDeferred{Until: now, Reason: s.Pace.Resting, Detail: "the hold is over", Creates: true}
	}
	return nil
}

// Decision is the work that is due. With neither fact nor effect there is none
// before Until (zero: none by itself).
type Decision struct {
	Step projections.Step
	// Fact is appended first, at the expected sequence if it is a permit. The
	// digest of the exact request is filled in by the worker that builds it.
	Fact events.Fact
	// Effect is attempted after the fact is known to be stored.
	Effect Effect
	// Until is when to decide again if nothing is due or possible.
	Until time.Time
	// Held says that a step was passed over only because calls are held.
	Held bool
}

// Effect is a call to the provider.
//
//sumtype:decl
type Effect interface{ effect() }

// SendPrepare makes the call of one preparation.
type SendPrepare struct {
	Step    uint64
	Attempt events.Attempt
}

// SendCreate sends the create, the first time or again with the same bytes.
type SendCreate struct {
	Attempt events.Attempt
	Stored  events.Digest // the request of the first attempt at this origin; zero if this is it
}

// SendCancel asks the provider to cancel.
type SendCancel struct{ Attempt events.Attempt }

// SendInput passes on what was answered to a job that waits.
type SendInput struct {
	Attempt events.Attempt
	Payload events.Digest // the answer
	Number  uint64        // which of the operation's answers it is, from 1
}

// SendCleanup removes what a job left.
type SendCleanup struct {
	Attempt events.Attempt
	JobID   string
}

// ReadStatus reads the job's status.
type ReadStatus struct {
	JobID   string
	Prompt  string
	Claim   bool          // the job is not ours yet: claim it before the fact
	Timeout time.Duration // cut so that the deadline is met
}

// LookUp asks the provider for our job, over all pages.
type LookUp struct{ Timeout time.Duration }

// CollectResult fetches and validates the result. Attempt is set where reading
// changes something.
type CollectResult struct {
	Attempt *events.Attempt
	Timeout time.Duration
}

func (SendPrepare) effect()   {}
func (SendCreate) effect()    {}
func (SendCancel) effect()    {}
func (SendInput) effect()     {}
func (SendCleanup) effect()   {}
func (ReadStatus) effect()    {}
func (LookUp) effect()        {}
func (CollectResult) effect() {}

// lastReadTimeout bounds the one status read after the result deadline, and so
// how late the deadline's outcome can come.
const lastReadTimeout = 2 * time.Second

// The functions below Decide take the state by its address and do not change it:
// it is large, and a worker's stack grows with every copy.

// Decide gives the step that is due. Of the steps whose time has come it takes
// the first that is still possible; a late worker may find that the first is
// not, and then gets the next, or the time of the next.
func Decide(s projections.State, w World) Decision {
	if kind, t := s.Presumable(); t != nil && w.Gone != nil && w.Gone(t.Owner) {
		step := projections.Step{Kind: projections.StepPresume, At: w.due(), Because: "the attempt's process is gone"}
		return Decision{Step: step, Fact: presume(&s, kind, t, true)}
	}
	var rest Decision
	for _, step := range projections.Steps(s) {
		if step.At.After(w.due()) {
			if rest.Until.IsZero() || step.At.Before(rest.Until) {
				rest.Until = step.At
			}
			continue
		}
		if w.Held && changes(&s, step) {
			rest.Held = true
			continue
		}
		if d, rests := resting(w, step); rests {
			return d
		}
		if d, ok := possible(&s, w, step); ok {
			d.Held = rest.Held
			return d
		}
	}
	return rest
}

// resting defers a step that a hold covers or that the provider is too busy for.
// The one read after the result deadline is made all the same.
func resting(w World, step projections.Step) (Decision, bool) {
	switch last := step.Kind == projections.StepRead && step.Prompt == "deadline"; {
	case w.Hold.covers(step):
		return Decision{Step: step, Fact: &events.StepDeferred{
			Until: w.due().Add(holdRest), Reason: w.Hold.Reason, Detail: w.Hold.Detail, Creates: w.Hold.Scope == HoldCreates,
		}}, true
	case calls(step) && !last && w.Throttled.After(w.due()):
		return Decision{Step: step, Fact: &events.StepDeferred{
			Until: w.Throttled, Reason: events.DeferThrottled, Detail: "the provider asked the account to slow down",
		}}, true
	}
	return Decision{}, false
}

// changes says whether the step calls for something that has side effects.
func changes(s *projections.State, step projections.Step) bool {
	switch step.Kind {
	case projections.StepPrepare, projections.StepCreate, projections.StepCancel, projections.StepInput, projections.StepCleanup:
		return true
	case projections.StepCollect:
		return !s.Intent.Promises.RepeatResult
	case projections.StepPresume, projections.StepLookup, projections.StepRead, projections.StepDeadline:
	}
	return false
}

func possible(s *projections.State, w World, step projections.Step) (Decision, bool) {
	timeout := s.Intent.Policy.RequestTimeout
	switch step.Kind {
	case projections.StepPresume:
		kind, t := s.Presumable()
		return Decision{Step: step, Fact: presume(s, kind, t, false)}, true
	case projections.StepDeadline:
		return Decision{Step: step, Fact: &events.DeadlinePassed{Which: step.Which}}, true
	case projections.StepPrepare:
		return prepare(s, w, step)
	case projections.StepCreate:
		return create(s, w, step)
	case projections.StepLookup:
		if d, changed := pinned(s, w, step); changed {
			return d, true
		}
		if w.Target.Missing != "" {
			return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
		}
		return Decision{Step: step, Effect: LookUp{Timeout: timeout}}, true
	case projections.StepRead:
		if s.Job.ID == "" { // of a job that a webhook named: another account may have one of that id
			if d, changed := pinned(s, w, step); changed {
				return d, true
			}
		}
		cut := timeout
		end := s.Dates.Result
		if cancelling := s.Phase == projections.PhaseCancelRequested || s.Phase == projections.PhaseCancelling; cancelling && !s.Dates.Cancel.IsZero() {
			end = s.Dates.Cancel // the result deadline rests meanwhile
		}
		switch {
		case end.IsZero() || !s.Phase.Live():
		case w.due().Before(end):
			cut = min(cut, end.Sub(w.due()))
		case step.Prompt == "deadline":
			// A provider that hangs must not hold up the deadline's outcome.
			cut = min(cut, lastReadTimeout)
		}
		return Decision{Step: step, Effect: ReadStatus{
			JobID: step.JobID, Prompt: step.Prompt, Claim: s.Job.ID == "", Timeout: cut,
		}}, true
	case projections.StepCancel:
		if w.Target.Missing != "" {
			return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
		}
		notAfter := w.Now.Add(timeout)
		if end := s.Dates.Cancel; !end.IsZero() {
			notAfter = earliest(notAfter, end.Add(-s.Intent.Policy.ClockDifference))
		}
		if !notAfter.After(w.Now) {
			return Decision{}, false
		}
		a := attempt(s.Cancels.Made+1, w, notAfter, timeout)
		return Decision{Step: step, Fact: &events.CancelAttempted{Attempt: a}, Effect: SendCancel{Attempt: a}}, true
	case projections.StepInput:
		if w.Target.Missing != "" {
			return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
		}
		// An answer that leaves after the deadline would be one to a job that
		// nobody watches.
		notAfter := w.Now.Add(timeout)
		if end := s.Dates.Result; !end.IsZero() {
			notAfter = earliest(notAfter, end.Add(-s.Intent.Policy.ClockDifference))
		}
		if !notAfter.After(w.Now) {
			return Decision{}, false
		}
		a := attempt(s.Inputs.Made+1, w, notAfter, timeout)
		return Decision{
			Step: step, Fact: &events.InputAttempted{Attempt: a},
			Effect: SendInput{Attempt: a, Payload: s.Input.Payload, Number: s.Input.Number},
		}, true
	case projections.StepCleanup:
		if w.Target.Missing != "" {
			// No deadline ends the tries of an operation that has ended, so each in
			// vain is recorded and counted.
			return Decision{Step: step, Fact: &events.CleanupAnswered{Outcome: events.CallNotSent, Call: events.Call{
				AsOf: s.Sequence, Class: events.ErrorNoCredential, Code: string(events.DeferNoCredential), Message: w.Target.Missing,
			}}}, true
		}
		a := attempt(s.Cleanups.Made+1, w, w.Now.Add(timeout), timeout)
		return Decision{Step: step, Fact: &events.CleanupAttempted{Attempt: a}, Effect: SendCleanup{Attempt: a, JobID: step.JobID}}, true
	case projections.StepCollect:
		if w.Target.Missing != "" {
			return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
		}
		if s.Intent.Promises.RepeatResult {
			if end := s.Dates.Collect; w.due().Before(end) {
				timeout = min(timeout, end.Sub(w.due()))
			}
			return Decision{Step: step, Effect: CollectResult{Timeout: timeout}}, true
		}
		notAfter := w.Now.Add(timeout)
		if end := s.Dates.Collect; !end.IsZero() {
			notAfter = earliest(notAfter, end.Add(-s.Intent.Policy.ClockDifference))
		}
		if !notAfter.After(w.Now) {
			return Decision{}, false
		}
		a := attempt(s.Results.Made+1, w, notAfter, timeout)
		return Decision{Step: step, Fact: &events.ResultAttempted{Attempt: a}, Effect: CollectResult{Attempt: &a, Timeout: timeout}}, true
	}
	return Decision{}, false
}

// prepare permits one call that the create needs: the next one, or the first
// where the calls made so far went elsewhere or as someone else. Targets that
// change again and again make that rarer, up to the longest backoff, until the
// create deadline.
func prepare(s *projections.State, w World, step projections.Step) (Decision, bool) {
	if w.Target.Missing != "" {
		return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
	}
	next := s.Ready
	if r := s.Round; !serves(s, w) {
		if s.Phase != projections.PhaseCreatePending || s.Creates.Unresolved() > 0 && !s.RiskAccepted {
			return deferred(w, step, s, events.DeferTargetChanged, "what was prepared is elsewhere, and a create is unresolved"), true
		}
		next = 0
		if at := r.Began.Add(s.Backoff(r.Again)); r.Again > 0 && at.After(w.due()) {
			return Decision{Step: step, Fact: &events.StepDeferred{
				Until: at, Reason: events.DeferTargetChanged, Detail: "what was prepared is elsewhere, and was made again before",
			}}, true
		}
	}
	timeout := s.Intent.Policy.RequestTimeout
	notAfter := w.Now.Add(timeout)
	if end := s.Dates.Create; !end.IsZero() {
		notAfter = earliest(notAfter, end.Add(-s.Intent.Policy.ClockDifference))
	}
	if !notAfter.After(w.Now) {
		return Decision{}, false
	}
	a := attempt(s.Prepares.Made+1, w, notAfter, timeout)
	return Decision{
		Step: step, Fact: &events.PrepareAttempted{Step: next, Attempt: a}, Effect: SendPrepare{Step: next, Attempt: a},
	}, true
}

// serves says whether what was prepared is there for a call that leaves now.
func serves(s *projections.State, w World) bool {
	return s.Round.Serves(w.Target.Origin, w.Target.Account, w.Target.Identity)
}

// create permits one create request, if it can still leave in time. What was
// prepared at another target is prepared again first.
func create(s *projections.State, w World, step projections.Step) (Decision, bool) {
	if d, changed := pinned(s, w, step); changed {
		return d, true
	}
	if w.Target.Missing != "" {
		return deferred(w, step, s, events.DeferNoCredential, w.Target.Missing), true
	}
	if s.Intent.Promises.Prepares > 0 && !serves(s, w) {
		step.Kind, step.Because = projections.StepPrepare, "what was prepared is not there for the create"
		return prepare(s, w, step)
	}
	timeout := s.Intent.Policy.RequestTimeout
	notAfter := w.Now.Add(timeout)
	if end := s.Dates.Create; !end.IsZero() {
		notAfter = earliest(notAfter, end.Add(-s.Intent.Policy.ClockDifference))
	}
	if s.Creates.Unresolved() > 0 && !s.RiskAccepted {
		// Only the token keeps this from making a second job.
		if ends, bounded := s.WindowEnds(); bounded {
			notAfter = earliest(notAfter, ends)
		}
	}
	if !notAfter.After(w.Now) {
		return Decision{}, false
	}
	a := attempt(s.Creates.Made+1, w, notAfter, timeout)
	// The bytes name where they go and what was prepared. If either is another
	// since, and that is allowed because nothing there is unresolved or the risk
	// was accepted, this create gets a request of its own.
	for _, t := range s.Creates.List {
		if t.Origin == w.Target.Origin && t.Sequence > s.Round.Sequence {
			a.Request = t.Request
			break
		}
	}
	return Decision{Step: step, Fact: &events.CreateAttempted{Attempt: a}, Effect: SendCreate{Attempt: a, Stored: a.Request}}, true
}

// pinned defers a step that would go elsewhere, or as someone else, than an
// unresolved attempt went: another account knows nothing of our token.
func pinned(s *projections.State, w World, step projections.Step) (Decision, bool) {
	for _, t := range s.Creates.List {
		if !t.Unresolved() || w.Target.Missing != "" || s.RiskAccepted {
			continue
		}
		detail := ""
		switch {
		case t.Origin != w.Target.Origin:
			detail = "origin differs from the unresolved attempt's"
		case t.Account != w.Target.Account:
			detail = "account differs from the unresolved attempt's"
		case t.Identity != w.Target.Identity:
			detail = "credential differs from the unresolved attempt's"
		default:
			continue
		}
		return deferred(w, step, s, events.DeferTargetChanged, detail), true
	}
	return Decision{}, false
}

// deferred rests the step: a lease is not a place to wait. A stopped or ended
// operation looks up at a pace of its own, so there the failed look-up is the
// record.
func deferred(w World, step projections.Step, s *projections.State, why events.DeferReason, detail string) Decision {
	if !s.Phase.Live() {
		class := events.ErrorNoCredential
		if why == events.DeferTargetChanged {
			class = events.ErrorPolicy
		}
		call := events.Call{AsOf: s.Sequence, Class: class, Code: string(why), Message: detail}
		if step.Kind == projections.StepRead {
			return Decision{Step: step, Fact: &events.ObservationFailed{JobID: step.JobID, Prompt: step.Prompt, Call: call}}
		}
		return Decision{Step: step, Fact: &events.LookupAnswered{Outcome: events.LookupFailed, Call: call}}
	}
	return Decision{Step: step, Fact: &events.StepDeferred{
		Until: w.due().Add(s.RestFor()), Reason: why, Detail: detail,
	}}
}

func attempt(number uint64, w World, notAfter time.Time, timeout time.Duration) events.Attempt {
	return events.Attempt{
		Number: number, Origin: w.Target.Origin, Account: w.Target.Account,
		Credential: w.Target.Credential, Identity: w.Target.Identity,
		NotAfter: notAfter, Timeout: timeout, Owner: w.Owner,
	}
}

// Presume closes an attempt whose owner cannot be running any more. Its own
// worker may still say better, unless it is proved to be gone.
func Presume(s projections.State, kind events.Type, t *projections.Try, gone bool) events.Fact {
	return presume(&s, kind, t, gone)
}

func presume(s *projections.State, kind events.Type, t *projections.Try, gone bool) events.Fact {
	call := events.Call{AsOf: s.Sequence, Class: events.ErrorUnanswered, Message: "no answer was recorded by " + t.Owner + ", and the request may have arrived"}
	switch kind {
	case events.TypePrepareAttempted:
		return &events.PrepareAnswered{Attempt: t.Number, Step: s.Ready, Outcome: events.PreparePresumed, Call: call}
	case events.TypeCancelAttempted:
		return &events.CancelAnswered{Attempt: t.Number, Outcome: events.CancelPresumed, Call: call}
	case events.TypeResultAttempted:
		return &events.ResultFailed{Attempt: t.Number, Outcome: events.ResultPresumed, Call: call}
	case events.TypeInputAttempted:
		return &events.InputAnswered{Attempt: t.Number, Outcome: events.CallPresumed, Call: call}
	case events.TypeCleanupAttempted:
		return &events.CleanupAnswered{Attempt: t.Number, Outcome: events.CallPresumed, Call: call}
	default:
		return &events.CreateAnswered{Attempt: t.Number, Outcome: events.CreatePresumed, OwnerGone: gone, Call: call}
	}
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

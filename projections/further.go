package projections

import (
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// What is in this file came with version 2 of the rules: passing on what a person
// answered to a job that waits (rows 41 to 41b), and removing what a job left (rows
// 42 to 42b). No operation of an earlier version has such a fact, and none of them
// takes one: see takesInput and takesCleanup.

// RulesFor is the version of the rules that an operation is to keep: the earliest
// that knows all the provider offers, so that earlier programs leave alone what they
// would misread, and nothing else.
func RulesFor(o events.Offers) uint64 {
	if o.Input || o.Cleanup {
		return 2
	}
	return 1
}

func (s *State) takesInput() bool { return s.Rulebook() >= 2 && s.Intent.Offers.Input }

func (s *State) takesCleanup() bool { return s.Rulebook() >= 2 && s.Intent.Offers.Cleanup }

// Asked is what is known of a call that is made because somebody asked for it.
type Asked struct {
	By      string
	At      time.Time // message time of the fact that asked; zero before the first
	Number  uint64    // of those that were taken so far; the newest has this number
	Due     bool      // it is to be sent, or sent again
	Dropped bool      // its time was over before anything left
	Problem Problem   // why it did not come to it, by the newest answer
}

func (a *Asked) visit(v *codec.Visitor) {
	codec.Text(v, "b", &a.By)
	codec.Time(v, "t", &a.At)
	codec.Uint(v, "n", &a.Number)
	codec.Bool(v, "d", &a.Due)
	codec.Bool(v, "x", &a.Dropped)
	codec.Nested(v, "p", &a.Problem)
}

// Input is the newest answer that somebody gave for the job to have.
type Input struct {
	Asked
	Payload events.Digest // the answer, in PAYLOADS
	// Wanted: a read has shown that the job waits, and knew of all that was sent.
	Wanted bool
	// Over: the job has been seen to go on, or nobody waits for it any more. What it
	// asks later is another question.
	Over bool
	// Question is the ledger sequence at which the job was first seen to wait for what
	// it waits for now, 0 where none has a name: it does not wait, or an answer was
	// passed on and no read has followed. Reads that say the same leave it.
	Question uint64
}

// Fields implements codec.Record.
func (i *Input) Fields(v *codec.Visitor) {
	i.Asked.visit(v)
	codec.Digest(v, "y", &i.Payload)
	codec.Bool(v, "w", &i.Wanted)
	codec.Bool(v, "o", &i.Over)
	codec.Uint(v, "q", &i.Question)
}

// Cleanup is the newest wish to remove what a job left.
type Cleanup struct {
	Asked
	JobID string   // the operation's, or one that it does not follow
	Done  []string // jobs of which the provider said that it is done
}

// Fields implements codec.Record.
func (c *Cleanup) Fields(v *codec.Visitor) {
	c.Asked.visit(v)
	codec.Text(v, "j", &c.JobID)
	codec.Texts(v, "o", &c.Done)
}

// CallStatus is what is known of a call that somebody asked for.
type CallStatus string

// Statuses of such a call.
const (
	CallNone    CallStatus = ""
	CallWaiting CallStatus = "waiting"  // it is to be sent, or sent again
	CallSending CallStatus = "sending"  // it may be on its way
	CallDone    CallStatus = "done"     // the provider said so
	CallRefused CallStatus = "refused"  // the provider said so
	CallUnknown CallStatus = "unknown"  // it left, and nobody knows what came of it
	CallNotSent CallStatus = "not_sent" // given up: it could not be sent
	CallDropped CallStatus = "dropped"  // its time was over before anything left
)

// InputStatus is what is known of the newest answer that was given.
func (s *State) InputStatus() CallStatus { return callStatus(&s.Input.Asked, &s.Inputs) }

// CleanupStatus is what is known of the newest cleanup that was asked for.
func (s *State) CleanupStatus() CallStatus { return callStatus(&s.Cleanup.Asked, &s.Cleanups) }

func callStatus(a *Asked, tries *Tries) CallStatus {
	with := func(status ...AttemptStatus) bool {
		return slices.ContainsFunc(tries.List, func(t Try) bool { return slices.Contains(status, t.Status) })
	}
	switch {
	case a.At.IsZero():
		return CallNone
	case with(AttemptAnswered):
		return CallDone
	case with(AttemptOpen):
		return CallSending
	case a.Due:
		return CallWaiting
	case with(AttemptPresumed, AttemptAmbiguous):
		return CallUnknown
	case with(AttemptRejected):
		return CallRefused
	case a.Dropped:
		return CallDropped
	}
	return CallNotSent
}

// TakesInput says whether the operation takes an answer for its job now, or the
// reason why not.
func TakesInput(s State) (bool, Reason) {
	switch {
	case !s.takesInput(), s.Phase != PhaseInputRequired:
		return false, ReasonNotApplicable
	case s.Input.Due, s.Inputs.Open() != nil:
		return false, ReasonAttemptOpen // one after the other
	case !s.Input.Wanted, s.Input.Question == 0:
		return false, ReasonTooEarly // nobody has looked since the last one left
	}
	return true, ""
}

// Cleanable gives the jobs of which a cleanup can be asked for now.
func Cleanable(s State) []string {
	var list []string
	for _, job := range append([]string{s.Job.ID}, Unfollowed(s)...) {
		if ok, _ := TakesCleanup(s, job); ok {
			list = append(list, job)
		}
	}
	return list
}

// TakesCleanup says whether a cleanup of the job can be asked for now, or the reason
// why not. Whose job it is, is checked when the wish is folded.
func TakesCleanup(s State, job string) (bool, Reason) {
	known := job != "" && (job == s.Job.ID || slices.Contains(Unfollowed(s), job))
	switch {
	case !s.takesCleanup(), !s.cleansUp(), !known, slices.Contains(s.Cleanup.Done, job):
		return false, ReasonNotApplicable
	case s.Cleanup.Due, s.Cleanups.Open() != nil:
		return false, ReasonAttemptOpen
	}
	return true, ""
}

// cleansUp says whether the operation has ended, or rests in a way that leaves no
// doubt about its facts and about whose its job is.
func (s *State) cleansUp() bool {
	if s.Phase == PhaseQuarantined {
		return s.Quarantine == QuarantineUnknown || s.Quarantine == QuarantineLost
	}
	return s.Phase.Terminal() || s.Phase.Stopped()
}

// cleansUpIn are the phases in which that can be.
func cleansUpIn() []Phase {
	return []Phase{
		PhaseResultTimedOut, PhaseCancellationUnconfirmed, PhaseResultUnavailable, PhaseResultValidationFailed, PhaseQuarantined,
		PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned,
	}
}

// tries is how often such a call is made, or tried in vain, in a row.
func (s *State) tries() uint64 { return max(s.Intent.Policy.MaxAttempts, 1) }

// takeInput is row 41a.
func (f *folding) takeInput() {
	s, i := f.s, f.fact.(*events.InputSubmitted)
	s.Input = Input{
		Asked:   Asked{By: i.Who, At: f.e.Time, Number: s.Input.Number + 1, Due: true},
		Payload: i.Payload, Question: s.Input.Question,
	}
	s.Inputs.List, s.Inputs.Streak = nil, 0
}

// takeCleanup is row 42.
func (f *folding) takeCleanup() {
	s, c := f.s, f.fact.(*events.CleanupRequested)
	s.Cleanup = Cleanup{Asked: Asked{By: c.Who, At: f.e.Time, Number: s.Cleanup.Number + 1, Due: true}, JobID: c.JobID, Done: s.Cleanup.Done}
	s.Cleanups.List, s.Cleanups.Streak = nil, 0
	f.stray(c.JobID) // if a webhook alone had named it: it is claimed now, and a sweep looks after the claim
}

// maySend refuses a permit for a call that nobody asked for, or beside which another
// may be running.
func (f *folding) maySend(a *Asked, tries *Tries) bool {
	running := f.s.runsUntil()
	switch {
	case tries.Open() != nil, f.e.Time.Before(running), !running.IsZero() && !f.s.Phase.Terminal():
		f.reason = ReasonAttemptOpen
	case !a.Due, !f.numbered(tries):
		f.reason = ReasonNotApplicable
	default:
		return true
	}
	f.refuse = true
	if f.numbered(tries) { // an answer to it must never be taken for one to the next
		tries.Made++
	}
	return false
}

// runsUntil is when the last call with side effects can no longer be running, zero if
// none is open. An operation may end while one is, and nobody presumes most of them
// then.
func (s *State) runsUntil() time.Time {
	var at time.Time
	for _, tries := range []*Tries{&s.Prepares, &s.Creates, &s.Cancels, &s.Results, &s.Inputs, &s.Cleanups} {
		if t := tries.Open(); t != nil {
			at = latest(at, t.GoneAt())
		}
	}
	return at
}

// closeFurther closes the attempt an answer names and says whether that changed what
// is known. untried reports that nothing could even be permitted, which counts as one
// that could not be sent: an operation that has ended has no deadline that would end
// the tries.
func (f *folding) closeFurther(a *Asked, tries *Tries, number uint64, outcome events.CallOutcome, call *events.Call) bool {
	if number == 0 && outcome == events.CallNotSent && a.Due {
		f.known = true
		tries.Streak++
		tries.Rested = f.e.Time
		a.problem(call)
		return true
	}
	t := tries.find(number)
	if t == nil {
		return false
	}
	f.known = true
	before, row := f.s.Changed, tries.Streak
	if outcome == events.CallRefused && call.Class == events.ErrorThrottled && !t.OwnClosed {
		tries.Throttled++
		f.rest(tries, t)
	} else {
		f.settle(tries, t, furtherStatus(outcome), outcome == events.CallPresumed)
	}
	if number < tries.Made { // late word of an earlier one: those that could not be sent since are in a row still
		tries.Streak = max(tries.Streak, row)
	}
	if f.s.Changed == before {
		return false
	}
	a.problem(call)
	return true
}

func (a *Asked) problem(c *events.Call) {
	a.Problem = Problem{}
	if c.Class != events.ErrorNone {
		a.Problem = Problem{Code: c.Code, Message: c.Message, Class: c.Class}
	}
}

func furtherStatus(o events.CallOutcome) AttemptStatus {
	switch o {
	case events.CallDone:
		return AttemptAnswered
	case events.CallRefused:
		return AttemptRejected
	case events.CallNotSent:
		return AttemptNotSent
	case events.CallPresumed:
		return AttemptPresumed
	case events.CallAmbiguous:
	}
	return AttemptAmbiguous // also any word this version does not know
}

// givenUp says whether as many calls in a row as there may be could not be sent. What
// was given up goes out again only where somebody asks again, whatever else is known
// of it.
func (s *State) givenUp(tries *Tries) bool { return tries.Streak >= s.tries() }

// rested says whether the newest answer left no attempt: nothing came of it, and it
// may be made again.
func rested(tries *Tries, number uint64) bool { return number == 0 || tries.find(number) == nil }

// inputAnswered says what is to be done about the answer that was given: one that
// did not get there is sent again while the job waits, one that may have only after
// a read says that it still does.
func (f *folding) inputAnswered(a *events.InputAnswered) {
	s := f.s
	if !f.closeFurther(&s.Input.Asked, &s.Inputs, a.Attempt, a.Outcome, &a.Call) {
		return
	}
	switch {
	case !rested(&s.Inputs, a.Attempt):
		// A read says what it came to, and what is asked then is another question.
		s.Input.Due, s.Input.Wanted, s.Input.Question = false, false, 0
	case s.Phase != PhaseInputRequired, s.Input.Over:
		s.Input.Due, s.Input.Dropped = false, len(s.Inputs.List) == 0
	default:
		s.Input.Due = !s.givenUp(&s.Inputs)
		s.Input.Wanted = !s.Input.Due
	}
}

// asks is what a read says that saw the job wait. other: it waits for something else
// than the read before said.
func (f *folding) asks(other bool) {
	s := f.s
	if !s.takesInput() {
		return
	}
	if other { // what was answered, and may not have left, answers something else
		s.asksNoMore()
	}
	if s.Input.Question == 0 {
		s.Input.Question = f.e.Sequence
	}
	if s.Input.Due || s.Inputs.Open() != nil {
		return
	}
	if s.InputStatus() == CallUnknown && !s.Input.Over && s.Intent.Offers.RepeatInput && uint64(len(s.Inputs.List)) < s.tries() && !s.givenUp(&s.Inputs) {
		s.Input.Due = true
		return
	}
	s.Input.Wanted = true
}

// asksNoMore is what it means that the job waits no longer, or nobody for it: the
// answer is not sent any more, since another question is another matter.
func (s *State) asksNoMore() {
	s.Input.Wanted, s.Input.Question = false, 0
	s.Input.Over = !s.Input.At.IsZero()
	if s.Input.Due {
		s.Input.Due, s.Input.Dropped = false, len(s.Inputs.List) == 0
	}
}

// cleanupAnswered says what is to be done about the cleanup.
func (f *folding) cleanupAnswered(a *events.CleanupAnswered) {
	s := f.s
	if !f.closeFurther(&s.Cleanup.Asked, &s.Cleanups, a.Attempt, a.Outcome, &a.Call) {
		return
	}
	t := s.Cleanups.find(a.Attempt)
	switch {
	case !s.cleansUp():
		s.keepsAll()
	case rested(&s.Cleanups, a.Attempt):
		s.Cleanup.Due = !s.givenUp(&s.Cleanups)
	case t.Status == AttemptPresumed, t.Status == AttemptAmbiguous:
		s.Cleanup.Due = s.Intent.Promises.RepeatCleanup && uint64(len(s.Cleanups.List)) < s.tries() && !s.givenUp(&s.Cleanups)
	default:
		s.Cleanup.Due = false
	}
	if t != nil && t.Status == AttemptAnswered && !slices.Contains(s.Cleanup.Done, s.Cleanup.JobID) {
		s.Cleanup.Done = append(s.Cleanup.Done, s.Cleanup.JobID)
	}
}

// keepsAll is what it means that an operation which had stopped goes on: what was
// not removed is not removed any more.
func (s *State) keepsAll() {
	if s.Cleanup.Due || s.CleanupStatus() == CallNotSent {
		s.Cleanup.Due, s.Cleanup.Dropped = false, len(s.Cleanups.List) == 0
	}
}

// input passes an answer on.
func (l *list) input(s *State) {
	if !s.Input.Due {
		return
	}
	l.add(s, Step{Kind: StepInput, At: s.furtherAt(&s.Input.Asked, &s.Inputs), Because: "an answer for the job was given"})
}

// cleanup removes what a job left.
func (l *list) cleanup(s *State) {
	if !s.Cleanup.Due || !s.cleansUp() {
		return
	}
	at := s.furtherAt(&s.Cleanup.Asked, &s.Cleanups)
	if running := s.runsUntil(); !running.IsZero() {
		at = latest(at, running.Add(s.Intent.Policy.ClockDifference))
	}
	l.add(s, Step{Kind: StepCleanup, JobID: s.Cleanup.JobID, At: at, Because: "a cleanup was asked for"})
}

// furtherAt is at once the first time, and after a growing wait each time after.
func (s *State) furtherAt(a *Asked, tries *Tries) time.Time {
	at := a.At
	switch {
	case tries.Streak > 0:
		at = latest(at, tries.Rested.Add(s.backoff(tries.Streak)))
	case len(tries.List) > 0:
		for _, t := range tries.List {
			at = latest(at, t.ClosedAt)
		}
		at = at.Add(s.backoff(uint64(len(tries.List))))
	}
	return latest(at, s.Pace.RetryAt)
}

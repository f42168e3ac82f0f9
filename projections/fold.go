package projections

import (
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// Entry is one fact as the ledger holds it.
type Entry struct {
	Sequence   uint64    // ledger sequence
	Time       time.Time // message time: the server's clock, the only one workers compare
	Event      events.Event
	Digest     events.Digest // chain digest of this fact
	Unreadable error         // set if the message is not a fact this version can read
}

// Verdict is what a fact did.
type Verdict string

// Verdicts.
const (
	Applied  Verdict = "applied"
	Noted    Verdict = "noted"    // recorded; the phase stands
	Rejected Verdict = "rejected" // recorded; refused with a reason
)

// Record is one line of history: what was believed after one fact, and why. The
// fact is named by its sequence, and by the digest that is the state's head.
type Record struct {
	Sequence uint64
	Type     events.Type
	Time     time.Time
	Actor    string
	Source   string
	Verdict  Verdict
	Row      string // number in the transition table
	From, To Phase
	Reason   Reason
	Rules    uint64
	Build    string // set by the projector; the fold does not know it
	State    State

	Extra codec.Extra
}

// Fields implements codec.Record.
func (r *Record) Fields(v *codec.Visitor) {
	codec.Uint(v, "q", &r.Sequence)
	codec.Text(v, "ty", &r.Type)
	codec.Time(v, "t", &r.Time)
	codec.Text(v, "ac", &r.Actor)
	codec.Text(v, "so", &r.Source)
	codec.Text(v, "v", &r.Verdict)
	codec.Text(v, "rw", &r.Row)
	codec.Text(v, "f", &r.From)
	codec.Text(v, "to", &r.To)
	codec.Text(v, "re", &r.Reason)
	codec.Uint(v, "ru", &r.Rules)
	codec.Text(v, "b", &r.Build)
	codec.Nested(v, "s", &r.State)
	codec.Rest(v, &r.Extra)
}

// folding is one fact on its way into the state.
type folding struct {
	after State
	s     *State // after
	e     Entry
	fact  events.Fact
	on    Trigger

	try    *Try   // the create attempt this fact closes or names, as it stood before
	known  bool   // an attempt of that number was permitted
	reason Reason // why it is noted or rejected
	refuse bool   // rejected rather than noted
}

const recentIDs = 32

// Fold applies one fact. It is total: any fact in any state gives a state and
// a record. The given State is not changed and shares no memory that Fold
// writes to.
func Fold(before State, e Entry) (after State, record Record) {
	var f Folder
	return f.Fold(before, e)
}

// A Folder folds with room that it uses again: a state takes 2 KiB. The zero Folder
// is ready; it belongs to one goroutine.
type Folder struct{ work folding }

// Fold is [Fold].
func (r *Folder) Fold(before State, e Entry) (after State, record Record) {
	f := &r.work
	*f = folding{after: before, e: e, fact: e.Event.Fact}
	s := &f.after
	f.s = s
	s.own()

	row := f.choose()
	if row == nil {
		f.note()
	} else {
		row.Then(f)
	}

	if s.Cleanup.Due && !s.cleansUp() {
		s.keepsAll()
	}
	if f.refuse {
		s.Refused++
	}
	if s.Operation == "" {
		s.Operation = e.Event.Operation
	}
	if s.Phase != before.Phase {
		s.Since = e.Time
		s.Changed = e.Sequence
	}
	if s.Phase != before.Phase || s.Quarantine != before.Quarantine {
		s.Notice = Notice{Made: s.Notice.Made} // another rest is other news
	}
	s.Sequence = e.Sequence
	s.Facts++
	s.Head = e.Digest
	s.remember(e.Event.ID)
	s.derive()

	after, record = f.after, Record{
		Sequence: e.Sequence, Time: e.Time,
		Actor: e.Event.Actor, Source: e.Event.Source,
		Verdict: Noted, Row: "0", From: before.Phase, To: s.Phase,
		Reason: f.reason, Rules: max(1, min(s.Rulebook(), Rules)), State: f.after,
	}
	if f.fact != nil {
		record.Type = f.fact.Type()
	}
	switch {
	case f.refuse:
		record.Verdict = Rejected
	case row != nil && f.reason == "":
		record.Verdict = Applied
	}
	if row != nil {
		record.Row = row.ID
	}
	if record.Reason == "" && s.Phase != before.Phase {
		record.Reason = s.Reason
	}
	return after, record
}

// choose runs what holds in every state and finds the row that applies.
func (f *folding) choose() *Row {
	s, e := f.s, f.e
	if e.Unreadable != nil {
		return f.unreadable(ReasonUnreadable)
	}
	if _, unknown := f.fact.(*events.Unknown); unknown || f.fact == nil {
		return f.unreadable(ReasonUnreadable)
	}
	if s.Facts > 0 && slices.Contains(s.Recent, idHash(e.Event.ID)) {
		f.reason = ReasonDuplicateFact
		return nil
	}
	want := s.Head
	if s.Facts == 0 {
		want = events.ChainStart(e.Event.Operation)
	}
	if e.Event.Previous != want {
		return f.unreadable(ReasonChainBroken)
	}
	f.on = TriggerOf(f.fact)
	f.closeAttempt()
	f.keepTime()
	if f.contested() {
		return conflictRow()
	}
	rows := transitions
	for i := range rows {
		if rows[i].matches(f) {
			return &rows[i]
		}
	}
	return nil
}

// note is row 0: the fact is kept and the phase stands.
func (f *folding) note() {
	if f.fact != nil && f.s.Phase != PhaseNone && !f.s.inC() && f.reason != ReasonDuplicateFact {
		f.keepOwn()
	}
	if f.reason != "" {
		return
	}
	switch {
	case f.s.Phase.Terminal():
		f.reason, f.refuse = ReasonTerminal, f.fact.Kind() == events.Permit
	case f.fact.Kind() == events.Permit:
		f.reason, f.refuse = ReasonNotApplicable, true
	}
}

// unreadable stops the operation and only it (rule 7).
func (f *folding) unreadable(why Reason) *Row {
	f.reason = why
	f.refuse = true
	if f.s.Phase.Terminal() {
		return nil
	}
	return &Row{ID: "rule 7", Then: func(f *folding) {
		f.enter(PhaseQuarantined, ReasonFactUnreadable)
		if f.s.Quarantine != QuarantineConflict { // a fact more or less changes nothing of a conflict
			f.s.Quarantine = QuarantineUnreadable
		}
	}}
}

// closeAttempt closes the attempt an answer names, in whatever state.
func (f *folding) closeAttempt() {
	switch fact := f.fact.(type) {
	case *events.PrepareAnswered:
		t := f.s.Prepares.find(fact.Attempt)
		if t == nil {
			return
		}
		f.known = true
		if fact.Outcome == events.PrepareRejected && fact.Class == events.ErrorThrottled && !t.OwnClosed {
			f.s.Prepares.Throttled++
			f.rest(&f.s.Prepares, t)
			return
		}
		f.settle(&f.s.Prepares, t, prepareStatus(fact.Outcome), fact.Outcome == events.PreparePresumed)
		if fact.Step != f.s.Ready { // of one that is done already
			f.s.Prepares.drop(fact.Attempt)
		}
	case *events.CreateAnswered:
		t := f.s.Creates.find(fact.Attempt)
		if t == nil {
			return
		}
		before := *t
		f.try, f.known = &before, true
		t.OwnerGone = t.OwnerGone || fact.OwnerGone
		if throttled(fact) && !t.OwnClosed {
			f.s.Creates.Throttled++
			f.rest(&f.s.Creates, t)
			return
		}
		status := createStatus(fact)
		if status == AttemptConflict && fact.JobID == "" && f.s.Intent.Promises.RefusalIsProof {
			status = AttemptRejected
		}
		f.settle(&f.s.Creates, t, status, fact.Outcome == events.CreatePresumed)
	case *events.CancelAnswered:
		t := f.s.Cancels.find(fact.Attempt)
		if t == nil {
			return
		}
		f.known = true
		f.settle(&f.s.Cancels, t, cancelStatus(fact.Outcome), fact.Outcome == events.CancelPresumed)
		if len(f.s.Cancels.List) == 0 {
			f.s.Dates.Cancel = time.Time{} // nothing left, so nothing to confirm
		}
	case *events.ResultFailed:
		if t := f.s.Results.find(fact.Attempt); t != nil {
			f.known = true
			f.settle(&f.s.Results, t, resultStatus(fact.Outcome), fact.Outcome == events.ResultPresumed)
		}
	case *events.ResultCollected:
		if t := f.s.Results.find(fact.Attempt); t != nil {
			f.known = true
			f.settle(&f.s.Results, t, AttemptAnswered, false)
		}
	case *events.InputAnswered:
		f.inputAnswered(fact)
	case *events.CleanupAnswered:
		f.cleanupAnswered(fact)
	default: // no other fact closes an attempt
	}
}

// settle writes an answer's status. An open or presumed attempt takes any; one
// that its own worker closed stands, and so does a presumption over a closed one.
func (f *folding) settle(tries *Tries, t *Try, status AttemptStatus, presumed bool) {
	if t.OwnClosed || (presumed && t.Status != AttemptOpen) {
		return
	}
	t.Status = status
	t.OwnClosed = !presumed
	t.ClosedAt = f.e.Time
	f.s.Changed = f.e.Sequence
	switch status {
	case AttemptNotSent:
		tries.NotSent++
		f.rest(tries, t)
	case AttemptOpen, AttemptPresumed, AttemptAmbiguous, AttemptInProgress, AttemptConflict, AttemptRejected, AttemptAnswered:
		tries.Streak = 0
	}
}

// rest drops an attempt that made nothing and may be made again after a wait.
func (f *folding) rest(tries *Tries, t *Try) {
	tries.Streak++
	tries.Rested = f.e.Time
	f.s.Changed = f.e.Sequence
	tries.drop(t.Number)
}

// throttled says whether the provider refused for now only.
func throttled(a *events.CreateAnswered) bool {
	return a.Outcome == events.CreateRejected && a.Class == events.ErrorThrottled
}

func prepareStatus(o events.PrepareOutcome) AttemptStatus {
	switch o {
	case events.PrepareDone:
		return AttemptAnswered
	case events.PrepareRejected:
		return AttemptRejected
	case events.PrepareNotSent:
		return AttemptNotSent
	case events.PreparePresumed:
		return AttemptPresumed
	case events.PrepareAmbiguous:
	}
	return AttemptAmbiguous
}

func createStatus(a *events.CreateAnswered) AttemptStatus {
	if nameless(a) {
		return AttemptAmbiguous
	}
	switch a.Outcome {
	case events.CreateAccepted, events.CreateCompleted:
		return AttemptAnswered
	case events.CreateRejected:
		return AttemptRejected
	case events.CreateConflict:
		return AttemptConflict
	case events.CreateInProgress:
		return AttemptInProgress
	case events.CreateNotSent:
		return AttemptNotSent
	case events.CreatePresumed:
		return AttemptPresumed
	case events.CreateAmbiguous:
	}
	return AttemptAmbiguous // also any word this version does not know
}

// nameless says whether an answer speaks of a job that cannot be bound: it has
// no id, or nobody claimed it. A job may well exist, so the attempt that gave
// it stays unresolved.
func nameless(a *events.CreateAnswered) bool {
	switch a.Outcome {
	case events.CreateAccepted:
		return a.JobID == "" || a.Claim == ""
	case events.CreateCompleted, events.CreateConflict:
		return a.JobID != "" && a.Claim == ""
	case events.CreateRejected, events.CreateInProgress, events.CreateNotSent, events.CreateAmbiguous, events.CreatePresumed:
	}
	return false
}

func cancelStatus(o events.CancelOutcome) AttemptStatus {
	switch o {
	case events.CancelAcknowledged, events.CancelConfirmed, events.CancelUnsupported:
		return AttemptAnswered
	case events.CancelTooLate, events.CancelRefused:
		return AttemptRejected
	case events.CancelNotSent:
		return AttemptNotSent
	case events.CancelPresumed:
		return AttemptPresumed
	}
	return AttemptAmbiguous
}

func resultStatus(o events.ResultOutcome) AttemptStatus {
	switch o {
	case events.ResultNotSent:
		return AttemptNotSent
	case events.ResultPresumed:
		return AttemptPresumed
	case events.ResultError:
		return AttemptRejected
	}
	return AttemptAmbiguous
}

// trouble keeps the last trouble with asking the provider. Why a job failed, and
// how an operation ended, is not hidden by what was asked later.
func (f *folding) trouble(c *events.Call) {
	if f.s.Outcome != OutcomeFailed && !f.s.Phase.Terminal() {
		f.s.Problem = Problem{Code: c.Code, Message: c.Message, Class: c.Class}
	}
}

// keepTime records when we last looked and what it says about the next look,
// whatever the phase.
func (f *folding) keepTime() {
	s, at := f.s, f.e.Time
	if f.spokeWithProvider() {
		s.Pace.Deferrals = 0
	}
	switch fact := f.fact.(type) {
	case *events.JobObserved:
		s.Pace.Reads++
		s.Pace.Failures = 0
		if s.Problem.Class != events.ErrorNone {
			s.Problem = Problem{} // trouble in asking, which is over
		}
		s.Pace.LastRead, s.Pace.LastReadLeft, s.Pace.LastFailed = at, latest(s.Pace.LastReadLeft, fact.LeftAt), false
		s.Pace.NotFound, s.Pace.NotFoundSince = 0, time.Time{}
		f.retryAt(fact.RetryAt)
		f.settlePrompt(fact.AsOf)
	case *events.ObservationFailed:
		s.Pace.Failures++
		s.Pace.LastRead, s.Pace.LastReadLeft, s.Pace.LastFailed = at, latest(s.Pace.LastReadLeft, fact.LeftAt), true
		if fact.Class == events.ErrorNotFound && f.covers(fact.AsOf) {
			if s.Pace.NotFound == 0 {
				s.Pace.NotFoundSince = at
			}
			s.Pace.NotFound++
		}
		f.trouble(&fact.Call)
		f.retryAt(fact.RetryAt)
		f.settlePrompt(fact.AsOf)
	case *events.LookupAnswered:
		f.seenCandidates(fact)
		s.Pace.LastLookup = at
		s.Pace.Lookups++
		// One that broke off has looked at nothing, or found our job and may have
		// missed a second one.
		whole := fact.Outcome != events.LookupFailed && fact.Class == events.ErrorNone
		if whole {
			s.Pace.LastLookupLeft = latest(s.Pace.LastLookupLeft, fact.LeftAt)
		}
		if whole && !fact.LeftAt.Before(s.ConclusiveAt()) {
			s.OwedLookup, s.LookupBroke = false, false
		}
		if !whole && fact.Outcome == events.LookupFound {
			s.LookupBroke = true
		}
		if fact.Outcome == events.LookupFailed {
			f.trouble(&fact.Call)
			if !s.Phase.Live() && s.Pace.Lookups >= owedLookupTries {
				s.OwedLookup = false
			}
		}
		f.retryAt(fact.RetryAt)
	case *events.PrepareAnswered:
		f.retryAt(fact.RetryAt)
		if fact.Class != events.ErrorNone {
			f.trouble(&fact.Call)
		}
	case *events.CreateAnswered:
		f.retryAt(fact.RetryAt)
		if fact.Class != events.ErrorNone {
			f.trouble(&fact.Call)
		}
	case *events.CancelAnswered:
		f.retryAt(fact.RetryAt)
	case *events.InputAnswered:
		if f.known {
			f.retryAt(fact.RetryAt)
		}
	case *events.CleanupAnswered:
		if f.known {
			f.retryAt(fact.RetryAt)
		}
	case *events.ResultFailed:
		s.Pace.Collects++
		s.Pace.LastCollect = at
		f.trouble(&fact.Call)
		f.retryAt(fact.RetryAt)
	case *events.ResultCollected:
		s.Pace.LastCollect = at
		s.Pace.Collects = 0
	case *events.StepDeferred:
		f.deferred(fact)
	default: // no other fact is about looking
	}
	switch {
	case !s.owesLookup():
		s.OwedLookup = false
	case !s.Phase.Terminal():
		s.owe()
	}
}

// deferred rests what the fact names. One whose time has come by its author's
// clock ends the rest instead.
func (f *folding) deferred(d *events.StepDeferred) {
	p := &f.s.Pace
	if d.Creates {
		p.RestCreates, p.Resting = d.Until, d.Reason
		return
	}
	p.DeferUntil, p.Deferred = d.Until, d.Reason
	p.Deferrals++
}

// spokeWithProvider says whether the fact reports an exchange, of whatever
// outcome, and not that one could not be tried.
func (f *folding) spokeWithProvider() bool {
	switch fact := f.fact.(type) {
	case *events.PrepareAnswered:
		return fact.Status != 0
	case *events.CreateAnswered:
		return fact.Status != 0
	case *events.LookupAnswered:
		return fact.Status != 0
	case *events.JobObserved:
		return true
	case *events.ObservationFailed:
		return fact.Status != 0
	case *events.CancelAnswered:
		return fact.Status != 0
	case *events.ResultCollected:
		return true
	case *events.ResultFailed:
		return fact.Status != 0
	case *events.InputAnswered:
		return f.known && fact.Status != 0
	case *events.CleanupAnswered:
		return f.known && fact.Status != 0
	default: // no other fact is about a call
	}
	return false
}

// owe notes that a look-up for stray jobs is owed, unless one left late enough.
func (s *State) owe() {
	if s.Intent.Promises.Lookup == events.LookupNone || !s.owesLookup() || !s.Pace.LastLookupLeft.Before(s.ConclusiveAt()) {
		return
	}
	s.OwedLookup = s.OwedLookup || s.Phase.Live() || s.Pace.Lookups < owedLookupTries
}

// owedLookupTries bounds the look-ups a stopped or terminal operation still
// makes when the provider does not answer them.
const owedLookupTries = 5

// owesLookup says whether a stray job may exist: more than one attempt left, or
// one was never closed by its own worker (rule 3), or the look-up that found our
// job did not see every page, or the operation ended while one was unresolved.
func (s *State) owesLookup() bool {
	if s.LookupBroke || len(s.Creates.List) > 1 || (s.Phase.Terminal() && s.Creates.Unresolved() > 0) {
		return true
	}
	for _, t := range s.Creates.List {
		if t.Status == AttemptPresumed {
			return true
		}
	}
	return false
}

// retryAt keeps the provider's wish for a pause, no longer than the policy's
// longest wait.
func (f *folding) retryAt(at time.Time) {
	f.s.Pace.RetryAt = time.Time{}
	if at.IsZero() {
		return
	}
	if most := f.s.Intent.Policy.PollMax; most > 0 && at.After(f.e.Time.Add(most)) {
		at = f.e.Time.Add(most)
	}
	f.s.Pace.RetryAt = at
}

// settlePrompt ends a pending wish for a read if the read that just ended knew
// of it when it left.
func (f *folding) settlePrompt(asOf uint64) {
	if asOf >= f.s.Prompt.Sequence {
		f.s.Prompt = Prompt{}
	}
}

// prompt asks for one read now. A burst leaves the time of its first fact, so
// that the next look does not move with every one.
func (f *folding) prompt(why string) {
	p := &f.s.Prompt
	p.Sequence = f.e.Sequence
	if p.At.IsZero() {
		p.At, p.Why = f.e.Time, why
	}
}

// covers says whether evidence that could take something back was gathered by
// someone who knew all that it would take back (rule 3).
func (f *folding) covers(asOf uint64) bool { return asOf >= f.s.Changed }

func (f *folding) stale() bool {
	f.reason = ReasonStale
	return false
}

// enter moves the operation to a phase and clears what belongs to the old one.
func (f *folding) enter(p Phase, why Reason) {
	s := f.s
	if p != PhaseQuarantined {
		s.Quarantine = ""
	}
	if s.Phase == PhaseInputRequired && p != PhaseInputRequired {
		s.asksNoMore()
	}
	if !p.Live() && p != s.Phase {
		s.Pace.Lookups = 0 // the owed ones are counted from here
	}
	s.Phase, s.Reason = p, why
	if p.Terminal() {
		s.Prompt = Prompt{}
		s.owe()
	}
}

// accept is what every row means by "accepted": the job is ours. With a wish to
// cancel that can be granted, it is cancel_requested.
func (f *folding) accept(id, statusURL, remote string) {
	s := f.s
	f.bind(id, statusURL, remote)
	if s.Cancel.Wished && f.cancellable() {
		f.enter(PhaseCancelRequested, "")
		return
	}
	f.enter(PhaseAccepted, "")
}

func (f *folding) bind(id, statusURL, remote string) {
	s := f.s
	if s.Job.ID == "" {
		s.Job.At = f.e.Time
	}
	s.Job.ID = id
	if statusURL != "" {
		s.Job.StatusURL = statusURL
	}
	if remote != "" {
		s.Job.Remote = remote
	}
	s.Candidates = nil
	s.Strays = slices.DeleteFunc(s.Strays, func(stray string) bool { return stray == id })
	s.RiskAccepted = false
	s.Pace.Failures, s.Pace.NotFound, s.Pace.NotFoundSince = 0, 0, time.Time{}
}

// cancellable says whether a cancel can be sent, and marks the wish where not.
func (f *folding) cancellable() bool {
	if f.s.Intent.Promises.Cancels {
		return !f.s.Cancel.Impossible
	}
	f.s.Cancel.Impossible = true
	return false
}

// collect starts collecting the result of a job that ended.
func (f *folding) collect(o Outcome, why Reason) {
	f.s.Outcome = o
	f.s.Dates.Collect = after(f.e.Time, f.s.Intent.Deadlines.Collect)
	f.s.Pace.Collects, f.s.Pace.LastCollect, f.s.Pace.RetryAt = 0, time.Time{}, time.Time{}
	f.enter(PhaseResultCollecting, why)
}

// finish ends the operation by outcome, with or without a result.
func (f *folding) finish(why Reason) {
	switch f.s.Outcome {
	case OutcomeFailed:
		f.enter(PhaseFailed, orElse(why, f.s.Reason))
	case OutcomeCancelled:
		f.enter(PhaseCancelled, orElse(why, f.s.Reason))
	case OutcomeSuccess:
		f.enter(PhaseSucceeded, why)
	default:
		f.enter(PhaseSucceeded, why)
	}
}

// observe applies a status that was read: rows 17 to 20 and those that refer
// to them.
func (f *folding) observe(o *events.JobObserved) {
	s := f.s
	s.Job.Remote, s.Job.Class, s.Job.ProviderTime, s.Job.Progress = o.Remote, o.State, o.ProviderTime, o.Progress
	other := s.Phase == PhaseInputRequired && (s.Job.InputURL != o.InputURL || s.Job.InputText != o.InputText)
	s.Job.InputURL, s.Job.InputText = o.InputURL, o.InputText
	promises := s.Intent.Promises
	cancelling := s.Phase == PhaseCancelRequested || s.Phase == PhaseCancelling
	switch o.State {
	case events.ClassInputRequired:
		if !cancelling {
			f.enter(PhaseInputRequired, "")
			f.asks(other)
		}
	case events.ClassSucceeded, events.ClassPartial:
		if s.Cancel.Wished {
			s.Cancel.TooLate = true
		}
		if promises.HasResult {
			f.collect(OutcomeSuccess, "")
			return
		}
		s.Outcome = OutcomeSuccess
		f.enter(PhaseSucceeded, "")
	case events.ClassFailed, events.ClassExpired:
		why := ReasonProviderFailed
		if o.State == events.ClassExpired {
			why = ReasonProviderExpired
		}
		s.Problem = Problem{Code: o.Code, Message: o.Message}
		f.ended(OutcomeFailed, why)
	case events.ClassCancelled:
		why := ReasonProviderCancel
		if s.Cancel.Wished {
			why = ReasonCancelConfirmed
		}
		f.ended(OutcomeCancelled, why)
	case events.ClassQueued, events.ClassRunning, events.ClassUnknown:
		f.goesOn(cancelling)
	default:
		f.goesOn(cancelling) // a class of a later version says no more than that the job exists
	}
}

func (f *folding) goesOn(cancelling bool) {
	s := f.s
	if !cancelling {
		f.enter(PhaseObserving, "")
		return
	}
	last := s.Cancels.Last()
	if s.Phase == PhaseCancelRequested && s.Intent.Promises.RepeatCancel && last != nil && last.Status != AttemptOpen &&
		uint64(len(s.Cancels.List)) < max(s.Intent.Policy.MaxAttempts, 1) {
		s.Cancel.Repeat = true
	}
}

func (f *folding) ended(o Outcome, why Reason) {
	f.s.Outcome = o
	if seen, ok := f.fact.(*events.JobObserved); ok && seen.NoResult {
		f.finish(why)
		return
	}
	if f.s.Intent.Promises.PartialResults && f.s.Intent.Promises.HasResult {
		f.collect(o, why)
		return
	}
	f.finish(why)
}

// start sets the deadlines that run from the beginning.
func (f *folding) start() {
	d := f.s.Intent.Deadlines
	f.s.Dates.Create = after(f.e.Time, d.Create)
	f.s.Dates.Result = after(f.e.Time, d.Result)
}

// own copies what Fold may write to.
func (s *State) own() {
	s.Creates.List = slices.Clone(s.Creates.List)
	s.Cancels.List = slices.Clone(s.Cancels.List)
	s.Results.List = slices.Clone(s.Results.List)
	s.Candidates = slices.Clone(s.Candidates)
	s.Strays = slices.Clone(s.Strays)
	s.Prepares.List = slices.Clone(s.Prepares.List)
	s.Prepared = slices.Clone(s.Prepared)
	s.Inputs.List = slices.Clone(s.Inputs.List)
	s.Cleanups.List = slices.Clone(s.Cleanups.List)
	s.Cleanup.Done = slices.Clone(s.Cleanup.Done)
}

// remember makes a new list: the old one belongs to the state before.
func (s *State) remember(id string) {
	known := s.Recent[max(0, len(s.Recent)+1-recentIDs):]
	s.Recent = append(append(make([]uint64, 0, len(known)+1), known...), idHash(id))
}

func (s *State) derive() {
	s.NextLook, s.WaitingFor, s.Because = time.Time{}, "", ""
	var l list
	l.fill(s)
	step, ok := l.first()
	if ok {
		s.NextLook, s.WaitingFor, s.Because = latest(after(step.At, 0), s.Started), string(step.Kind), step.Because
		if step.Kind == StepDeadline {
			// People want to know what rests, and not that a deadline comes before
			// the end of the rest.
			for _, other := range l.all() {
				if strings.HasPrefix(other.Because, deferredPrefix) {
					s.WaitingFor, s.Because = string(other.Kind), other.Because
					break
				}
			}
		}
		return
	}
	switch {
	case s.Phase.Stopped():
		s.WaitingFor, s.Because = "decision", string(s.Reason)
	case s.Phase.Terminal():
		s.WaitingFor, s.Because = "nothing", string(s.Reason)
	}
}

// The FNV-1a hash of 64 bits, by its specification.
const (
	fnvStart uint64 = 0xcbf29ce484222325
	fnvPrime uint64 = 0x100000001b3
)

func fnv1a[T string | []byte](h uint64, text T) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * fnvPrime
	}
	return h
}

func idHash(id string) uint64 { return fnv1a(fnvStart, id) }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

const endOfTime = 9_214_560_000 // seconds since 1970: 31 December 2261

// after adds a wait and ends with the year 2261, the last a state can hold:
// no length of time that somebody asks for may stop the fold.
func after(t time.Time, d time.Duration) time.Time {
	if sum := t.Add(d); sum.Unix() < endOfTime {
		return sum
	}
	return time.Unix(endOfTime, 0).UTC()
}

func orElse(a, b Reason) Reason {
	if a != "" {
		return a
	}
	return b
}

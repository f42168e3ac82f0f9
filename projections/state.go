// Package projections turns the facts of one operation into its state.
//
// Fold takes one fact at a time and is total and deterministic: replaying any
// prefix of an operation's facts twice gives equal bytes. It refuses what the
// evidence does not carry and says why; it never drops what was seen. Steps
// and Next say, from the state alone, what may be done next and when.
//
// The package is pure: no clock, randomness, file or network. Anyone can
// import it and fold a ledger themselves.
package projections

import (
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// Rules is the newest version of the fold's rules in this package. An operation
// keeps the version its intent names for its whole life, see [RulesFor].
const Rules = 2

// Phase is the local state of an operation.
type Phase string

// The phases. "" is an operation without facts.
const (
	PhaseNone                    Phase = ""
	PhaseApprovalPending         Phase = "approval_pending"
	PhaseCreatePending           Phase = "create_pending"
	PhaseCreateUnknown           Phase = "create_unknown"
	PhaseReconciliation          Phase = "reconciliation"
	PhaseAccepted                Phase = "accepted"
	PhaseObserving               Phase = "observing"
	PhaseInputRequired           Phase = "input_required"
	PhaseCancelRequested         Phase = "cancel_requested"
	PhaseCancelling              Phase = "cancelling"
	PhaseResultCollecting        Phase = "result_collecting"
	PhaseResultTimedOut          Phase = "result_timed_out"
	PhaseCancellationUnconfirmed Phase = "cancellation_unconfirmed"
	PhaseResultUnavailable       Phase = "result_unavailable"
	PhaseResultValidationFailed  Phase = "result_validation_failed"
	PhaseQuarantined             Phase = "quarantined"
	PhaseSucceeded               Phase = "succeeded"
	PhaseFailed                  Phase = "failed"
	PhaseCancelled               Phase = "cancelled"
	PhaseAbandoned               Phase = "abandoned"
)

// Terminal says whether nothing moves the phase any more.
func (p Phase) Terminal() bool {
	return p == PhaseSucceeded || p == PhaseFailed || p == PhaseCancelled || p == PhaseAbandoned
}

// Stopped says whether automation rests: late evidence or a decision moves on.
func (p Phase) Stopped() bool {
	switch p {
	case PhaseResultTimedOut, PhaseCancellationUnconfirmed, PhaseResultUnavailable, PhaseResultValidationFailed, PhaseQuarantined:
		return true
	}
	return false
}

// Live says whether the operation always has a next look.
func (p Phase) Live() bool { return p != PhaseNone && !p.Terminal() && !p.Stopped() }

// Quarantine is why an operation is quarantined.
type Quarantine string

// Kinds of quarantine.
const (
	QuarantineConflict   Quarantine = "conflict"   // two jobs or two owners; decision only
	QuarantineUnknown    Quarantine = "unknown"    // the create's outcome; clears itself on evidence
	QuarantineLost       Quarantine = "lost"       // the job is not found; reads go on
	QuarantineUnreadable Quarantine = "unreadable" // a fact this version cannot read
)

// Reason is a stable code that says why a fact was refused or a state entered.
type Reason string

// Why a fact did not move the state. A closed list.
const (
	ReasonDuplicateFact Reason = "duplicate_fact"
	ReasonSecondIntent  Reason = "second_intent"
	ReasonNotApplicable Reason = "not_applicable"
	ReasonAttemptOpen   Reason = "attempt_open"
	ReasonTooEarly      Reason = "too_early"
	ReasonTooLate       Reason = "too_late"
	ReasonStale         Reason = "stale"
	ReasonTerminal      Reason = "terminal"
	ReasonRiskUnstated  Reason = "risk_not_accepted"
	ReasonBadDecision   Reason = "decision_incomplete"
	ReasonBadApproval   Reason = "approval_of_another"
	ReasonJobOwned      Reason = "job_owned_elsewhere"
	ReasonChainBroken   Reason = "chain_broken"
	ReasonUnreadable    Reason = "unreadable"
	ReasonNoPermit      Reason = "answer_without_permit"
)

// Why a phase was entered.
const (
	ReasonNeverSent       Reason = "never_sent"
	ReasonRefused         Reason = "refused"
	ReasonNotCreated      Reason = "not_created"
	ReasonApprovalDenied  Reason = "approval_denied"
	ReasonApprovalExpired Reason = "approval_expired"
	ReasonProviderFailed  Reason = "provider_failed"
	ReasonProviderExpired Reason = "provider_expired"
	ReasonProviderCancel  Reason = "provider_cancelled"
	ReasonCancelConfirmed Reason = "cancel_confirmed"
	ReasonCancelledUnsent Reason = "cancelled_before_create"
	ReasonGone            Reason = "job_gone"
	ReasonJobLost         Reason = "job_not_found"
	ReasonCreateUnknown   Reason = "create_outcome_unknown"
	ReasonJobConflict     Reason = "job_conflict"
	ReasonResultDeadline  Reason = "result_deadline"
	ReasonCancelDeadline  Reason = "cancel_deadline"
	ReasonCollectDeadline Reason = "collect_deadline"
	ReasonResultLost      Reason = "result_read_lost"
	ReasonCheckFailed     Reason = "result_check_failed"
	ReasonDecided         Reason = "decided"
	ReasonFactUnreadable  Reason = "fact_unreadable"
)

// AttemptStatus is what is known of one call with side effects.
type AttemptStatus string

// Statuses of an attempt; an open one may still be running.
const (
	AttemptOpen       AttemptStatus = "open"
	AttemptPresumed   AttemptStatus = "presumed"
	AttemptAmbiguous  AttemptStatus = "ambiguous"
	AttemptInProgress AttemptStatus = "in_progress"
	AttemptConflict   AttemptStatus = "conflict" // without a job id
	AttemptNotSent    AttemptStatus = "not_sent"
	AttemptRejected   AttemptStatus = "rejected"
	AttemptAnswered   AttemptStatus = "answered" // with a job or a result
)

// Try is one call with side effects as the fold knows it.
type Try struct {
	Number    uint64
	Status    AttemptStatus
	Sequence  uint64 // ledger sequence of the permit
	OpenedAt  time.Time
	NotAfter  time.Time
	Timeout   time.Duration
	Request   events.Digest
	Origin    string
	Account   string
	Identity  string
	Owner     string
	OwnClosed bool // closed by its own worker
	OwnerGone bool // presumed with proof that its process is gone
	Covered   bool // a conclusive absence covers it
	ClosedAt  time.Time
}

// Fields implements codec.Record.
func (t *Try) Fields(v *codec.Visitor) {
	codec.Uint(v, "n", &t.Number)
	codec.Text(v, "s", &t.Status)
	codec.Uint(v, "q", &t.Sequence)
	codec.Time(v, "o", &t.OpenedAt)
	codec.Time(v, "na", &t.NotAfter)
	codec.Duration(v, "t", &t.Timeout)
	codec.Digest(v, "rq", &t.Request)
	codec.Text(v, "or", &t.Origin)
	codec.Text(v, "a", &t.Account)
	codec.Text(v, "ci", &t.Identity)
	codec.Text(v, "ow", &t.Owner)
	codec.Bool(v, "oc", &t.OwnClosed)
	codec.Bool(v, "og", &t.OwnerGone)
	codec.Bool(v, "cv", &t.Covered)
	codec.Time(v, "c", &t.ClosedAt)
}

// Unresolved says whether the attempt may have made a job we do not know.
func (t *Try) Unresolved() bool {
	switch t.Status {
	case AttemptOpen, AttemptPresumed, AttemptAmbiguous, AttemptInProgress, AttemptConflict:
		return !t.Covered
	}
	return false
}

// Left says whether a byte of the request may have reached the wire.
func (t *Try) Left() bool { return t.Status != AttemptNotSent }

// GoneAt is when the attempt can no longer be running, by the clock that
// decided it.
func (t *Try) GoneAt() time.Time { return t.NotAfter.Add(t.Timeout).Add(presumeMargin) }

// presumeMargin is added to a call's last possible end before another worker
// presumes that its owner is gone.
const presumeMargin = 5 * time.Second

// Tries are the attempts of one kind of call. Those closed as not_sent or
// refused for now are counted and dropped, so that a list stays short whatever
// happens.
type Tries struct {
	List      []Try
	Made      uint64    // permits so far; numbers run from 1
	NotSent   uint64    // closed as not_sent
	Throttled uint64    // refused for now: they left, and made nothing
	Streak    uint64    // of those two, since the last that got further
	Rested    time.Time // when the newest of those two was closed
}

// Fields implements codec.Record.
func (t *Tries) Fields(v *codec.Visitor) {
	codec.List(v, "l", &t.List)
	codec.Uint(v, "m", &t.Made)
	codec.Uint(v, "n", &t.NotSent)
	codec.Uint(v, "th", &t.Throttled)
	codec.Uint(v, "k", &t.Streak)
	codec.Time(v, "r", &t.Rested)
}

// Open gives the attempt that may still be running, or nil.
func (t *Tries) Open() *Try {
	for i := range t.List {
		if t.List[i].Status == AttemptOpen {
			return &t.List[i]
		}
	}
	return nil
}

// Last gives the newest attempt that was not closed as not_sent, or nil.
func (t *Tries) Last() *Try {
	if len(t.List) == 0 {
		return nil
	}
	return &t.List[len(t.List)-1]
}

// Unresolved counts the attempts that may have made something we do not know.
func (t *Tries) Unresolved() int {
	n := 0
	for i := range t.List {
		if t.List[i].Unresolved() {
			n++
		}
	}
	return n
}

// everLeft says whether a byte of any attempt may have reached the wire.
func (t *Tries) everLeft() bool { return len(t.List) > 0 || t.Throttled > 0 }

func (t *Tries) find(number uint64) *Try {
	for i := range t.List {
		if t.List[i].Number == number {
			return &t.List[i]
		}
	}
	return nil
}

func (t *Tries) drop(number uint64) {
	for i := range t.List {
		if t.List[i].Number == number {
			t.List = append(append([]Try(nil), t.List[:i]...), t.List[i+1:]...)
			return
		}
	}
}

// Round is one course of the preparations, all of them at one target: what one
// credential uploaded may not be there for another.
type Round struct {
	Origin   string
	Account  string
	Identity string
	Sequence uint64    // ledger sequence of the permit that began it; zero before the first
	Began    time.Time // message time of that permit
	Again    uint64    // rounds before it
}

// Fields implements codec.Record.
func (r *Round) Fields(v *codec.Visitor) {
	codec.Text(v, "or", &r.Origin)
	codec.Text(v, "a", &r.Account)
	codec.Text(v, "ci", &r.Identity)
	codec.Uint(v, "q", &r.Sequence)
	codec.Time(v, "b", &r.Began)
	codec.Uint(v, "n", &r.Again)
}

// Serves says whether what the round made is there for a call that goes to this
// origin and account as this identity.
func (r *Round) Serves(origin, account, identity string) bool {
	return r.Origin == origin && r.Account == account && r.Identity == identity
}

// Cancel is the wish to cancel and what became of it.
type Cancel struct {
	Wished     bool
	At         time.Time
	By         string
	Impossible bool // the provider has no way to cancel
	TooLate    bool // the job had ended, or its result was on its way
	Repeat     bool // a read after the last cancel saw the job go on, and repeating is safe
}

// Fields implements codec.Record.
func (c *Cancel) Fields(v *codec.Visitor) {
	codec.Bool(v, "w", &c.Wished)
	codec.Time(v, "t", &c.At)
	codec.Text(v, "b", &c.By)
	codec.Bool(v, "i", &c.Impossible)
	codec.Bool(v, "l", &c.TooLate)
	codec.Bool(v, "r", &c.Repeat)
}

// Job is the remote job.
type Job struct {
	ID           string
	StatusURL    string
	Remote       string // provider's word, verbatim
	Class        events.Class
	ProviderTime time.Time
	Progress     string
	Adopted      bool // not created by us
	At           time.Time
	InputURL     string // where a person gives what the job waits for, whole
	InputText    string // what that is, in the provider's words
}

// Fields implements codec.Record.
func (j *Job) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &j.ID)
	codec.Text(v, "u", &j.StatusURL)
	codec.Text(v, "r", &j.Remote)
	codec.Text(v, "c", &j.Class)
	codec.Time(v, "pt", &j.ProviderTime)
	codec.Text(v, "pg", &j.Progress)
	codec.Bool(v, "ad", &j.Adopted)
	codec.Time(v, "t", &j.At)
	codec.Text(v, "iu", &j.InputURL)
	codec.Text(v, "it", &j.InputText)
}

// Outcome is how the remote job ended, while its result is collected.
type Outcome string

// Outcomes.
const (
	OutcomeSuccess   Outcome = "success"
	OutcomeFailed    Outcome = "failed"
	OutcomeCancelled Outcome = "cancelled"
)

// Result is what was collected.
type Result struct {
	Payload   events.Digest
	Size      uint64
	MediaType string
	Checks    []events.Check
}

// Fields implements codec.Record.
func (r *Result) Fields(v *codec.Visitor) {
	codec.Digest(v, "p", &r.Payload)
	codec.Uint(v, "s", &r.Size)
	codec.Text(v, "m", &r.MediaType)
	codec.List(v, "c", &r.Checks)
}

// Problem is what the provider said went wrong, or the last trouble in asking.
type Problem struct {
	Code    string
	Message string
	Class   events.ErrorClass
}

// Fields implements codec.Record.
func (p *Problem) Fields(v *codec.Visitor) {
	codec.Text(v, "c", &p.Code)
	codec.Text(v, "m", &p.Message)
	codec.Text(v, "k", &p.Class)
}

// Dates are the absolute deadlines that run; zero ones do not.
type Dates struct {
	Approval, Create, Result, Cancel, Collect time.Time

	CreatePassed bool      // recorded as passed: no further creates
	RetryAt      time.Time // a deadline.passed came too early by the ledger's clock
}

// Fields implements codec.Record.
func (d *Dates) Fields(v *codec.Visitor) {
	codec.Time(v, "a", &d.Approval)
	codec.Time(v, "c", &d.Create)
	codec.Time(v, "r", &d.Result)
	codec.Time(v, "x", &d.Cancel)
	codec.Time(v, "o", &d.Collect)
	codec.Bool(v, "cp", &d.CreatePassed)
	codec.Time(v, "ra", &d.RetryAt)
}

// Prompt is a pending reason to read the status sooner than the interval.
type Prompt struct {
	Sequence uint64    // newest fact that asked for it; a read that knew this fact settles it
	At       time.Time // message time of the first fact that asked
	Why      string    // webhook, cancel, decision, deadline
}

// Fields implements codec.Record.
func (p *Prompt) Fields(v *codec.Visitor) {
	codec.Uint(v, "q", &p.Sequence)
	codec.Time(v, "t", &p.At)
	codec.Text(v, "w", &p.Why)
}

// Pace is what the waiting times are computed from.
type Pace struct {
	Reads        uint64 // status reads understood
	Failures     uint64 // status reads in a row that were not
	LastRead     time.Time
	LastReadLeft time.Time // when the newest read left, by its author's clock
	LastFailed   bool

	Lookups        uint64 // look-ups in a row without an answer that settles
	LastLookup     time.Time
	LastLookupLeft time.Time

	Collects    uint64 // failed reads of the result in a row
	LastCollect time.Time

	RetryAt    time.Time // provider's Retry-After, capped
	DeferUntil time.Time
	Deferred   events.DeferReason
	Deferrals  uint64 // in a row, without an answer of the provider between

	RestCreates time.Time // creates and preparations alone rest until then
	Resting     events.DeferReason

	NotFound      uint64 // in a row
	NotFoundSince time.Time
}

// Fields implements codec.Record.
func (p *Pace) Fields(v *codec.Visitor) {
	codec.Uint(v, "r", &p.Reads)
	codec.Uint(v, "f", &p.Failures)
	codec.Time(v, "lr", &p.LastRead)
	codec.Time(v, "ll", &p.LastReadLeft)
	codec.Bool(v, "lf", &p.LastFailed)
	codec.Uint(v, "u", &p.Lookups)
	codec.Time(v, "lu", &p.LastLookup)
	codec.Time(v, "lx", &p.LastLookupLeft)
	codec.Uint(v, "c", &p.Collects)
	codec.Time(v, "lc", &p.LastCollect)
	codec.Time(v, "ra", &p.RetryAt)
	codec.Time(v, "d", &p.DeferUntil)
	codec.Text(v, "dr", &p.Deferred)
	codec.Uint(v, "dn", &p.Deferrals)
	codec.Time(v, "rc", &p.RestCreates)
	codec.Text(v, "rr", &p.Resting)
	codec.Uint(v, "nf", &p.NotFound)
	codec.Time(v, "ns", &p.NotFoundSince)
}

// Notice is what people were told about the rest the operation is at.
type Notice struct {
	Made  uint64    // notices permitted so far; numbers run from 1
	Told  uint64    // of those, since the operation came to the rest it is at
	Open  bool      // the newest is not answered
	Owner string    // of the newest
	Until time.Time // when the newest can no longer be running, by its author's clock
}

// Fields implements codec.Record.
func (n *Notice) Fields(v *codec.Visitor) {
	codec.Uint(v, "m", &n.Made)
	codec.Uint(v, "t", &n.Told)
	codec.Bool(v, "o", &n.Open)
	codec.Text(v, "w", &n.Owner)
	codec.Time(v, "u", &n.Until)
}

// Hint is a job that an exact reference named before we knew it otherwise.
type Hint struct {
	JobID string
	Exact bool
}

// Fields implements codec.Record.
func (h *Hint) Fields(v *codec.Visitor) {
	codec.Text(v, "j", &h.JobID)
	codec.Bool(v, "e", &h.Exact)
}

// Approval is what became of the wait for one.
type Approval struct {
	Granted bool // else denied, where By is set
	By      string
	At      time.Time
}

// Fields implements codec.Record.
func (a *Approval) Fields(v *codec.Visitor) {
	codec.Bool(v, "g", &a.Granted)
	codec.Text(v, "b", &a.By)
	codec.Time(v, "t", &a.At)
}

// MaxLater is how many of the operations that name one its state has, the newest.
const MaxLater = 16

// State is everything that is believed about one operation. It is a value;
// Fold never changes the one it was given.
type State struct {
	Operation string
	Sequence  uint64        // ledger sequence of the newest fact folded
	Facts     uint64        // facts folded; the state's version for callers
	Head      events.Digest // chain digest of the newest fact

	Phase      Phase
	Quarantine Quarantine
	Reason     Reason
	Since      time.Time // message time of the fact that entered the phase
	Changed    uint64    // sequence of the newest fact that changed the phase or opened or closed an attempt

	Intent  events.IntentRecorded
	Started time.Time // message time of the intent
	Trace   string    // W3C trace id of the submitter; "" for one made from the operation's id, see TraceID

	Paused   bool
	PausedAt time.Time
	PausedBy string

	Prepares Tries        // of the preparation that is under way
	Ready    uint64       // preparations done
	Prepared []events.Tag // what the create needs of them
	Round    Round        // where, and as whom, they are made
	Creates  Tries
	Cancels  Tries
	Results  Tries // where reading a result changes something
	Cancel   Cancel

	Job        Job
	Hint       Hint
	Candidates []string // jobs a look-up named without our reference
	Strays     []string // jobs of ours that no operation follows
	Outcome    Outcome
	Result     Result
	Problem    Problem

	Dates  Dates
	Prompt Prompt
	Pace   Pace
	Notice Notice

	LookupBroke  bool   // the look-up that found our job did not see every page
	OwedLookup   bool   // one more look-up for stray jobs is owed (rule 3)
	Granted      bool   // a decision allows one create beyond the policy's number
	RiskAccepted bool   // a decision allows one create although a second job cannot be excluded
	Refused      uint64 // facts rejected so far

	// Derived at the end of each fold, for those who read the record alone.
	NextLook   time.Time
	WaitingFor string
	Because    string

	Recent []uint64 // hashes of the newest fact ids, to note a repeated one

	Later []events.Link // the newest operations that name this one, oldest first

	Approval Approval
	Input    Input
	Inputs   Tries // of the newest answer
	Cleanup  Cleanup
	Cleanups Tries // of the newest cleanup

	Extra codec.Extra
}

// Fields implements codec.Record.
func (s *State) Fields(v *codec.Visitor) {
	codec.Text(v, "op", &s.Operation)
	codec.Uint(v, "q", &s.Sequence)
	codec.Uint(v, "n", &s.Facts)
	codec.Digest(v, "h", &s.Head)
	codec.Text(v, "s", &s.Phase)
	codec.Text(v, "qk", &s.Quarantine)
	codec.Text(v, "re", &s.Reason)
	codec.Time(v, "si", &s.Since)
	codec.Uint(v, "ch", &s.Changed)
	codec.Nested(v, "i", &s.Intent)
	codec.Time(v, "st", &s.Started)
	codec.Text(v, "tr", &s.Trace)
	codec.Bool(v, "pa", &s.Paused)
	codec.Time(v, "pt", &s.PausedAt)
	codec.Text(v, "pb", &s.PausedBy)
	codec.Nested(v, "pp", &s.Prepares)
	codec.Uint(v, "pn", &s.Ready)
	codec.List(v, "pv", &s.Prepared)
	codec.Nested(v, "pf", &s.Round)
	codec.Nested(v, "c", &s.Creates)
	codec.Nested(v, "x", &s.Cancels)
	codec.Nested(v, "rr", &s.Results)
	codec.Nested(v, "w", &s.Cancel)
	codec.Nested(v, "j", &s.Job)
	codec.Nested(v, "hi", &s.Hint)
	codec.Texts(v, "ca", &s.Candidates)
	codec.Texts(v, "sj", &s.Strays)
	codec.Text(v, "o", &s.Outcome)
	codec.Nested(v, "r", &s.Result)
	codec.Nested(v, "p", &s.Problem)
	codec.Nested(v, "d", &s.Dates)
	codec.Nested(v, "pr", &s.Prompt)
	codec.Nested(v, "pc", &s.Pace)
	codec.Nested(v, "no", &s.Notice)
	codec.Bool(v, "lb", &s.LookupBroke)
	codec.Bool(v, "ol", &s.OwedLookup)
	codec.Bool(v, "gr", &s.Granted)
	codec.Bool(v, "ra", &s.RiskAccepted)
	codec.Uint(v, "rf", &s.Refused)
	codec.Time(v, "nl", &s.NextLook)
	codec.Text(v, "wf", &s.WaitingFor)
	codec.Text(v, "be", &s.Because)
	codec.Uints(v, "fi", &s.Recent)
	codec.List(v, "la", &s.Later)
	codec.Nested(v, "ap", &s.Approval)
	codec.Nested(v, "in", &s.Input)
	codec.Nested(v, "it", &s.Inputs)
	codec.Nested(v, "cu", &s.Cleanup)
	codec.Nested(v, "ct", &s.Cleanups)
	codec.Rest(v, &s.Extra)
}

// C says whether no job is established yet.
func (s *State) inC() bool {
	return s.Phase == PhaseCreatePending || s.Phase == PhaseCreateUnknown || s.Phase == PhaseReconciliation
}

// OpenAttempt gives the call with side effects that may still be running.
func (s *State) OpenAttempt() (events.Type, *Try) {
	if t := s.Creates.Open(); t != nil {
		return events.TypeCreateAttempted, t
	}
	if t := s.Prepares.Open(); t != nil {
		return events.TypePrepareAttempted, t
	}
	if t := s.Cancels.Open(); t != nil {
		return events.TypeCancelAttempted, t
	}
	if t := s.Results.Open(); t != nil {
		return events.TypeResultAttempted, t
	}
	if t := s.Inputs.Open(); t != nil {
		return events.TypeInputAttempted, t
	}
	if t := s.Cleanups.Open(); t != nil {
		return events.TypeCleanupAttempted, t
	}
	return "", nil
}

// Presumable gives the call that is waited for until its owner cannot be running any
// more. Of an operation that has ended only an input or a cleanup is: what became of
// the others, a look-up tells.
func (s *State) Presumable() (events.Type, *Try) {
	if !s.Phase.Terminal() {
		return s.OpenAttempt()
	}
	if t := s.Inputs.Open(); t != nil {
		return events.TypeInputAttempted, t
	}
	if t := s.Cleanups.Open(); t != nil {
		return events.TypeCleanupAttempted, t
	}
	return "", nil
}

// Opened gives the call that a permit of this type allows and that may still be
// running.
func (s *State) Opened(permit events.Type) *Try {
	switch permit {
	case events.TypePrepareAttempted:
		return s.Prepares.Open()
	case events.TypeCreateAttempted:
		return s.Creates.Open()
	case events.TypeCancelAttempted:
		return s.Cancels.Open()
	case events.TypeResultAttempted:
		return s.Results.Open()
	case events.TypeInputAttempted:
		return s.Inputs.Open()
	case events.TypeCleanupAttempted:
		return s.Cleanups.Open()
	}
	return nil
}

// TraceID is the W3C trace id that every call of the operation carries, 32
// lower-case hexadecimal digits.
func (s *State) TraceID() string {
	if s.Trace != "" {
		return s.Trace
	}
	return events.OperationTrace(s.Operation)
}

// Backoff is the wait after n failures in a row by the operation's policy.
func (s *State) Backoff(n uint64) time.Duration { return s.backoff(n) }

// RestFor is how long a step that cannot be done now rests before it is tried
// again: longer each time in a row.
func (s *State) RestFor() time.Duration { return s.backoff(s.Pace.Deferrals + 1) }

// Spread is a share of a wait that is the operation's own, between nothing and
// all of it, so that many that were told to wait do not come back at once.
func (s *State) Spread(wait time.Duration) time.Duration {
	return wait / 1024 * time.Duration(idHash(s.Operation)%1024)
}

// ConclusiveAt is when a look-up must leave, at the earliest, for its empty
// answer to prove that no attempt made a job.
func (s *State) ConclusiveAt() time.Time {
	var at time.Time
	for _, t := range s.Creates.List {
		if end := t.NotAfter.Add(t.Timeout); end.After(at) {
			at = end
		}
	}
	if at.IsZero() {
		return at
	}
	return at.Add(s.Intent.Promises.Settle).Add(s.Intent.Policy.ClockDifference)
}

// WindowEnds is when the provider stops honouring the token, less what a
// retry needs to be answered within it; ok is false where it never does.
func (s *State) WindowEnds() (at time.Time, ok bool) {
	window := s.Intent.Promises.TokenWindow
	if window == 0 || len(s.Creates.List) == 0 {
		return time.Time{}, false
	}
	return s.Creates.List[0].OpenedAt.Add(window - s.Intent.Policy.RequestTimeout - s.Intent.Promises.Settle - s.Intent.Policy.ClockDifference), true
}

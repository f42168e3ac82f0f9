package events

import (
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// A Fact is something that happened to one operation. The set is closed: the
// types below and *Unknown. Facts are values behind pointers; nobody changes
// one after it was made.
//
//sumtype:decl
type Fact interface {
	// Type is the fact's name and version, "create.answered.v1".
	Type() Type
	// Kind says whether the fact allows an effect or reports one.
	Kind() Kind
	codec.Record
	fact()
}

// Kind separates the two ways a fact meets a conflict (DESIGN §4).
type Kind uint8

const (
	// Evidence reports what happened or was asked. It is never dropped: on a
	// conflict its author links it to the newer facts and appends it again.
	Evidence Kind = iota
	// Permit allows an effect or closes something. It is appended at the
	// expected sequence of the very state it was decided on, or not at all.
	Permit
)

func (k Kind) String() string {
	if k == Permit {
		return "permit"
	}
	return "evidence"
}

// Type is a fact's name and version without the CloudEvents prefix.
type Type string

// The fact types.
const (
	TypeIntentRecorded        Type = "intent.recorded.v1"
	TypeApprovalGranted       Type = "approval.granted.v1"
	TypeApprovalDenied        Type = "approval.denied.v1"
	TypePrepareAttempted      Type = "prepare.attempted.v1"
	TypePrepareAnswered       Type = "prepare.answered.v1"
	TypeCreateAttempted       Type = "create.attempted.v1"
	TypeCreateAnswered        Type = "create.answered.v1"
	TypeLookupAnswered        Type = "lookup.answered.v1"
	TypeJobObserved           Type = "job.observed.v1"
	TypeObservationFailed     Type = "observation.failed.v1"
	TypeJobContested          Type = "job.contested.v1"
	TypeWebhookReceived       Type = "webhook.received.v1"
	TypeCancelRequested       Type = "cancel.requested.v1"
	TypeCancelAttempted       Type = "cancel.attempted.v1"
	TypeCancelAnswered        Type = "cancel.answered.v1"
	TypeResultAttempted       Type = "result.attempted.v1"
	TypeResultCollected       Type = "result.collected.v1"
	TypeResultFailed          Type = "result.failed.v1"
	TypeCleanupRequested      Type = "cleanup.requested.v1"
	TypeCleanupAttempted      Type = "cleanup.attempted.v1"
	TypeCleanupAnswered       Type = "cleanup.answered.v1"
	TypeInputSubmitted        Type = "input.submitted.v1"
	TypeInputAttempted        Type = "input.attempted.v1"
	TypeInputAnswered         Type = "input.answered.v1"
	TypeDeadlinePassed        Type = "deadline.passed.v1"
	TypeDecisionMade          Type = "decision.made.v1"
	TypeStepDeferred          Type = "step.deferred.v1"
	TypeOperationPaused       Type = "operation.paused.v1"
	TypeOperationResumed      Type = "operation.resumed.v1"
	TypeTagsChanged           Type = "tags.changed.v1"
	TypeOperationLinked       Type = "operation.linked.v1"
	TypeNotificationAttempted Type = "notification.attempted.v1"
	TypeNotificationAnswered  Type = "notification.answered.v1"
)

// New gives an empty fact of the type, or nil for a type this version does not
// know. It is the one registry of types.
func New(t Type) Fact {
	switch t {
	case TypeIntentRecorded:
		return new(IntentRecorded)
	case TypeApprovalGranted:
		return new(ApprovalGranted)
	case TypeApprovalDenied:
		return new(ApprovalDenied)
	case TypePrepareAttempted:
		return new(PrepareAttempted)
	case TypePrepareAnswered:
		return new(PrepareAnswered)
	case TypeCreateAttempted:
		return new(CreateAttempted)
	case TypeCreateAnswered:
		return new(CreateAnswered)
	case TypeLookupAnswered:
		return new(LookupAnswered)
	case TypeJobObserved:
		return new(JobObserved)
	case TypeObservationFailed:
		return new(ObservationFailed)
	case TypeJobContested:
		return new(JobContested)
	case TypeWebhookReceived:
		return new(WebhookReceived)
	case TypeCancelRequested:
		return new(CancelRequested)
	case TypeCancelAttempted:
		return new(CancelAttempted)
	case TypeCancelAnswered:
		return new(CancelAnswered)
	case TypeResultAttempted:
		return new(ResultAttempted)
	case TypeResultCollected:
		return new(ResultCollected)
	case TypeResultFailed:
		return new(ResultFailed)
	case TypeCleanupRequested:
		return new(CleanupRequested)
	case TypeCleanupAttempted:
		return new(CleanupAttempted)
	case TypeCleanupAnswered:
		return new(CleanupAnswered)
	case TypeInputSubmitted:
		return new(InputSubmitted)
	case TypeInputAttempted:
		return new(InputAttempted)
	case TypeInputAnswered:
		return new(InputAnswered)
	case TypeDeadlinePassed:
		return new(DeadlinePassed)
	case TypeDecisionMade:
		return new(DecisionMade)
	case TypeStepDeferred:
		return new(StepDeferred)
	case TypeOperationPaused:
		return new(OperationPaused)
	case TypeOperationResumed:
		return new(OperationResumed)
	case TypeTagsChanged:
		return new(TagsChanged)
	case TypeOperationLinked:
		return new(OperationLinked)
	case TypeNotificationAttempted:
		return new(NotificationAttempted)
	case TypeNotificationAnswered:
		return new(NotificationAnswered)
	}
	return nil
}

// IntentRecorded is the first fact of every operation: what was asked, by whom,
// with everything the fold needs later, resolved. Permit.
type IntentRecorded struct {
	Principal string // who asked; the id outlives its keys
	KeyID     string // which of the principal's keys was used
	Session   string // caller's label for its own session; optional
	Approval  string // caller's approval reference; optional
	Provider  string
	Account   string
	Contract  Digest // digest of the contract's bytes

	Fingerprint     Digest // over canonical JSON of provider, account and parameters
	Payload         Digest // the caller's body in PAYLOADS
	PayloadSize     uint64 // bytes
	Token           string // idempotency token for the provider; "" where it takes none
	ClientReference string // reference the provider stores; "" where it takes none

	Replaces  string // operation this one replaces; optional
	RetryOf   string // operation this one retries; optional
	Adopt     string // existing job to follow instead of creating one; optional
	NotBefore time.Time
	Expect    string // caller's expectation of the result; optional
	MaxCost   string // decimal text; optional
	Tags      []Tag  // sorted by name

	NeedsApproval bool
	Deadlines     Deadlines
	Policy        Policy
	Promises      Promises
	Rules         uint64 // version of the fold's rules for the operation's whole life

	Reference string // caller's own name for what it asks; a label; optional

	Approving Digest   // of the policy file that demanded an approval; zero for none
	Demands   []Demand // which of its rules did, in its order

	Cost     string // decimal text: what the contract says one job costs; "" where it does not
	CostUnit string // of Cost and MaxCost; also where only the amount is not known

	Offers     Offers
	ExpectForm uint64 // of Expect: [ExpectWords] or [ExpectRule]

	Extra codec.Extra
}

// The forms of an expectation. Those that were recorded before there were rules are
// words.
const (
	ExpectWords uint64 = 0 // for people; nothing checks them
	ExpectRule  uint64 = 1 // an expression over the result, checked when it is collected
)

// Demand is a rule of the policy that wants an operation approved before anything is
// sent.
type Demand struct {
	Rule string
	Why  string // in the rule's words; "" for none
	// Failed is what kept the rule from being evaluated, which counts as a demand; "" if
	// nothing did.
	Failed string
}

// Offers is which calls the provider takes beside those of every operation,
// resolved at submit. They take the rules from version 2 on.
type Offers struct {
	Input       bool // an answer to what a job waits for can be passed on
	RepeatInput bool // repeating one is safe
	Cleanup     bool // what a job left can be removed; Promises.RepeatCleanup says whether repeating that is safe
}

// Tag is a caller's label on an operation.
type Tag struct{ Name, Value string }

// Deadlines are lengths of time. Create and Result count from the start (the
// intent, or the approval where one is needed), Approval from the intent,
// Cancel from the first cancel call that was not closed as not_sent, Collect
// from the moment collection starts.
type Deadlines struct {
	Approval, Create, Result, Cancel, Collect time.Duration
}

// Policy is pacing, resolved at submit.
type Policy struct {
	PollInterval    time.Duration // between status reads that succeed
	PollMax         time.Duration // the longest wait between reads, Retry-After included
	BackoffBase     time.Duration // first wait after a failure
	BackoffMax      time.Duration // longest wait after failures
	RequestTimeout  time.Duration // one exchange with the provider
	MaxAttempts     uint64        // create requests on the wire, the first included
	ClockDifference time.Duration // allowed between processes; 0 where one process holds all roles
}

// Guarantee is what the engine can honour after a create whose answer was lost.
type Guarantee string

// The three guarantees (DESIGN §8).
const (
	Deduplicated Guarantee = "deduplicated"
	Recoverable  Guarantee = "recoverable"
	AskAfterLoss Guarantee = "ask_after_loss"
)

// Lookup says what a look-up at the provider can name.
type Lookup string

// Kinds of look-up.
const (
	LookupNone       Lookup = ""
	LookupCandidates Lookup = "candidates" // jobs that may be ours
	LookupExact      Lookup = "exact"      // jobs that carry our reference
)

// Promises is what the fold needs of the contract, resolved at submit. Fold
// reads these and never the contract.
type Promises struct {
	Guarantee          Guarantee
	TokenWindow        time.Duration // how long the provider honours a token; 0 = for ever
	Settle             time.Duration // how long a request may be held before it acts
	RefusalIsProof     bool          // a conflict without id proves that no job exists
	Lookup             Lookup
	LookupConclusive   bool // an empty exact look-up proves absence
	Strict             bool // absence counts only if every attempt was closed by its own worker
	WebhookNamesJob    bool // a webhook carries our reference
	NotFoundGrace      time.Duration
	GoneConfirmsCancel bool
	Cancels            bool // the provider has a cancel call
	HasResult          bool
	PartialResults     bool // failed, expired and cancelled jobs may have output
	RepeatCancel       bool // repeating a cancel is safe
	RepeatResult       bool // reading the result again is safe
	RepeatCleanup      bool
	Prepares           uint64 // calls that come before this operation's create; repeating each is safe
}

// Attempt opens a call with side effects. The call may leave only after the
// fact that carries it is stored, and no later than NotAfter.
type Attempt struct {
	Number     uint64 // 1, 2, 3 … for each kind of call of the operation
	Request    Digest // digest of the exact request, in PAYLOADS for creates
	Origin     string // base URL the calls go below: scheme://host:port/path
	Account    string
	Credential string // reference, never a value
	Identity   string // fingerprint of the credential's value
	NotAfter   time.Time
	Timeout    time.Duration
	Owner      string // worker and run: "poller-3/run-id"
}

// PrepareAttempted permits one call that comes before the create, such as the
// upload of its input. It makes no job, and repeating it is safe. Permit.
type PrepareAttempted struct {
	Step uint64 // 0, 1, 2 … in the contract's order
	Attempt
	Extra codec.Extra
}

// PrepareOutcome is how a preparation ended, as far as its author knows.
type PrepareOutcome string

// Outcomes of a preparation.
const (
	PrepareDone      PrepareOutcome = "done"
	PrepareRejected  PrepareOutcome = "rejected"  // with class throttled: for now only
	PrepareNotSent   PrepareOutcome = "not_sent"  // proved: no byte left
	PrepareAmbiguous PrepareOutcome = "ambiguous" // anything else
	PreparePresumed  PrepareOutcome = "presumed"  // by another worker, for an attempt left open
)

// PrepareAnswered closes an attempt at a preparation. Evidence.
type PrepareAnswered struct {
	Attempt uint64
	Step    uint64
	Outcome PrepareOutcome
	Values  []Tag // what the create needs of the answer, sorted by name
	Call
	Extra codec.Extra
}

// CreateAttempted permits one create request. Permit.
type CreateAttempted struct {
	Attempt
	Extra codec.Extra
}

// Call is what every fact about an exchange with a provider carries.
type Call struct {
	AsOf      uint64    // ledger sequence of the newest fact its author knew when the request left
	LeftAt    time.Time // author's clock; zero if nothing left
	Status    uint64    // HTTP status; 0 if no answer
	Class     ErrorClass
	Code      string // provider's error code, or ours
	Message   string // provider's words, cut and cleaned
	RequestID string // provider's name of the exchange
	RetryAt   time.Time
	Inline    []byte // body under 1 KiB, reduced
	Body      Digest // body in PAYLOADS, or the digest alone if unchanged
}

// ErrorClass is why a call did not give what it was made for.
type ErrorClass string

// Error classes. They are for ever.
const (
	ErrorNone         ErrorClass = ""
	ErrorTransport    ErrorClass = "transport"    // connection refused, reset, cut, TLS, DNS
	ErrorTimeout      ErrorClass = "timeout"      // no whole answer in time
	ErrorThrottled    ErrorClass = "throttled"    // asked to slow down
	ErrorServer       ErrorClass = "server"       // 5xx
	ErrorUnauthorized ErrorClass = "unauthorized" // 401, 403
	ErrorNotFound     ErrorClass = "not_found"    // 404, 410
	ErrorRefused      ErrorClass = "refused"      // other 4xx
	ErrorUnreadable   ErrorClass = "unreadable"   // an answer the contract cannot read
	ErrorTooLarge     ErrorClass = "too_large"    // more bytes than allowed
	ErrorNotAfter     ErrorClass = "not_after"    // the permit had run out before the first byte
	ErrorNoCredential ErrorClass = "no_credential"
	ErrorPolicy       ErrorClass = "policy"     // destination or redirect not allowed
	ErrorExpired      ErrorClass = "expired"    // result no longer offered
	ErrorInternal     ErrorClass = "internal"   // no request could be made of what is recorded and configured
	ErrorUnanswered   ErrorClass = "unanswered" // nobody recorded how it ended, and it may have arrived
)

// CreateOutcome is how a create request ended, as far as its author knows.
type CreateOutcome string

// Create outcomes.
const (
	CreateAccepted   CreateOutcome = "accepted"
	CreateCompleted  CreateOutcome = "completed"   // synchronous result
	CreateRejected   CreateOutcome = "rejected"    // the provider said no job was made
	CreateConflict   CreateOutcome = "conflict"    // token known; a job id may be named
	CreateInProgress CreateOutcome = "in_progress" // this token is being worked on
	CreateNotSent    CreateOutcome = "not_sent"    // proved: no byte left
	CreateAmbiguous  CreateOutcome = "ambiguous"   // anything else
	CreatePresumed   CreateOutcome = "presumed"    // by another worker, for an attempt left open
)

// ClaimOwn in a Claim field says that INDEX gave the job to this operation;
// any other value is the operation that owns it.
const ClaimOwn = "own"

// CreateAnswered closes a create attempt. Evidence.
type CreateAnswered struct {
	Attempt    uint64
	Outcome    CreateOutcome
	JobID      string
	StatusURL  string
	Remote     string // provider's word, verbatim
	Claim      string
	EchoDiffer bool // a replayed answer shows other parameters than were sent
	OwnerGone  bool // presumed, with proof that the attempt's process is gone
	Call
	Extra codec.Extra
}

// LookupOutcome is what a look-up said.
type LookupOutcome string

// Look-up outcomes.
const (
	LookupFound  LookupOutcome = "found"
	LookupAbsent LookupOutcome = "absent"
	LookupFailed LookupOutcome = "failed"
)

// FoundJob is one job a look-up named.
type FoundJob struct {
	ID        string
	StatusURL string
	Exact     bool   // carries our reference
	Claim     string // ClaimOwn, the owner, or "" if not claimed
	CreatedAt time.Time
}

// LookupAnswered reports a look-up over all pages, without jobs older than the
// first attempt. Evidence.
type LookupAnswered struct {
	Outcome    LookupOutcome
	Jobs       []FoundJob
	Conclusive bool // an absence the contract promises to be proof
	Pages      uint64
	Call
	Extra codec.Extra
}

// Class is our reading of a provider's state word.
type Class string

// Classes of a remote state.
const (
	ClassQueued        Class = "queued"
	ClassRunning       Class = "running"
	ClassInputRequired Class = "input_required"
	ClassSucceeded     Class = "succeeded"
	ClassPartial       Class = "partial"
	ClassFailed        Class = "failed"
	ClassCancelled     Class = "cancelled"
	ClassExpired       Class = "expired"
	ClassUnknown       Class = "unknown"
)

// JobObserved is one status read that was understood. Evidence.
type JobObserved struct {
	JobID        string
	Claim        string
	Remote       string // provider's word, verbatim
	State        Class
	ProviderTime time.Time
	RetrievedAt  time.Time
	Progress     string // as the provider writes it
	NoResult     bool   // the job has ended and left nothing to collect
	Prompt       string // due, webhook, cancel, deadline
	Call
	// Where a person gives what the job waits for, whole, and what that is, in the
	// provider's words; with state input_required, where the provider says so.
	InputURL  string
	InputText string
	Extra     codec.Extra
}

// ObservationFailed is one status read that was not. Evidence.
type ObservationFailed struct {
	JobID  string
	Prompt string
	Call
	Extra codec.Extra
}

// JobContested tells the later claimant of a job who had it first. Evidence.
type JobContested struct {
	JobID string
	Owner string
	Extra codec.Extra
}

// WebhookReceived is one verified delivery, stored once. Evidence; it makes us
// look sooner and proves nothing else.
type WebhookReceived struct {
	EventID   string // signed event id, or digest of the body
	Scheme    string
	EventType string
	Remote    string // claimed state, verbatim
	JobID     string // if named
	Exact     bool   // it carried our reference or was matched through INDEX
	Body      Digest
	Extra     codec.Extra
}

// CancelRequested is a caller's wish. Evidence.
type CancelRequested struct {
	Who      string
	Key      string // caller's idempotency key, hashed
	Why      Digest // reason in PAYLOADS
	Expected string
	Extra    codec.Extra
}

// CancelAttempted permits one cancel request. Permit.
type CancelAttempted struct {
	Attempt
	Extra codec.Extra
}

// CancelOutcome is how a cancel request ended.
type CancelOutcome string

// Cancel outcomes.
const (
	CancelAcknowledged CancelOutcome = "acknowledged"
	CancelConfirmed    CancelOutcome = "confirmed"
	CancelTooLate      CancelOutcome = "too_late"
	CancelRefused      CancelOutcome = "refused"
	CancelUnsupported  CancelOutcome = "unsupported"
	CancelNotSent      CancelOutcome = "not_sent"
	CancelAmbiguous    CancelOutcome = "ambiguous"
	CancelPresumed     CancelOutcome = "presumed"
)

// CancelAnswered closes a cancel attempt. Evidence.
type CancelAnswered struct {
	Attempt uint64
	Outcome CancelOutcome
	Remote  string
	Call
	Extra codec.Extra
}

// ResultAttempted permits one read of a result where reading changes
// something. Permit.
type ResultAttempted struct {
	Attempt
	Extra codec.Extra
}

// Check is one validation of a result and its verdict.
type Check struct {
	Name   string
	Passed bool
	Detail string
}

// Count is a number the provider or we counted, "items_failed" 3.
type Count struct {
	Name  string
	Value uint64
}

// ResultCollected says that a result is stored and what validation said.
// Evidence.
type ResultCollected struct {
	Attempt     uint64 // 0 where reading is safe
	Payload     Digest
	Size        uint64 // bytes
	MediaType   string
	Checks      []Check
	Counts      []Count
	FailedItems []string
	Call
	Extra codec.Extra
}

// ResultOutcome is how a read of a result failed.
type ResultOutcome string

// Result outcomes.
const (
	ResultNotSent   ResultOutcome = "not_sent"
	ResultAmbiguous ResultOutcome = "ambiguous"
	ResultPresumed  ResultOutcome = "presumed"
	ResultError     ResultOutcome = "error" // answered, but not with a result
)

// ResultFailed is a read of a result that gave none. Evidence.
type ResultFailed struct {
	Attempt uint64
	Outcome ResultOutcome
	Call
	Extra codec.Extra
}

// CleanupRequested asks for the contract's compensating action. Evidence.
type CleanupRequested struct {
	Who   string
	Why   Digest
	JobID string
	Claim string // as in CreateAnswered
	Extra codec.Extra
}

// CleanupAttempted permits one cleanup request. Permit.
type CleanupAttempted struct {
	Attempt
	Extra codec.Extra
}

// CallOutcome is how a cleanup, an input or a notification ended.
type CallOutcome string

// Outcomes of those calls.
const (
	CallDone      CallOutcome = "done"
	CallRefused   CallOutcome = "refused"
	CallNotSent   CallOutcome = "not_sent"
	CallAmbiguous CallOutcome = "ambiguous"
	CallPresumed  CallOutcome = "presumed"
)

// CleanupAnswered closes a cleanup attempt. Evidence.
type CleanupAnswered struct {
	Attempt uint64
	Outcome CallOutcome
	Call
	Extra codec.Extra
}

// InputSubmitted carries an answer to a provider that asked for one. Evidence.
type InputSubmitted struct {
	Who      string
	Payload  Digest
	Question uint64 // sequence at which the job was first seen to ask this; 0 in earlier facts
	Extra    codec.Extra
}

// InputAttempted permits passing the answer on. Permit.
type InputAttempted struct {
	Attempt
	Extra codec.Extra
}

// InputAnswered closes an input attempt. Evidence.
type InputAnswered struct {
	Attempt uint64
	Outcome CallOutcome
	Call
	Extra codec.Extra
}

// ApprovalGranted lets an operation start. Permit.
type ApprovalGranted struct {
	Who      string // never the submitter
	Approved Digest // what was approved: see [IntentRecorded.ToApprove]
	Key      string // hash of the caller's idempotency key
	KeyID    string // which of the principal's keys was used
	Why      Digest // the text given; zero for none
	JobID    string // of an intent that adopts: its job, which is claimed by now
	Claim    string
	Extra    codec.Extra
}

// ApprovalDenied ends an operation before it starts. Permit.
type ApprovalDenied struct {
	Who    string // never the submitter
	Why    Digest
	Denied Digest // what was denied: see [IntentRecorded.ToApprove]
	Key    string // hash of the caller's idempotency key
	KeyID  string // which of the principal's keys was used
	Extra  codec.Extra
}

// Deadline names one of an operation's five deadlines.
type Deadline string

// The deadlines.
const (
	DeadlineApproval Deadline = "approval"
	DeadlineCreate   Deadline = "create"
	DeadlineResult   Deadline = "result"
	DeadlineCancel   Deadline = "cancel"
	DeadlineCollect  Deadline = "collect"
)

// DeadlinePassed closes what a deadline guarded. Permit.
type DeadlinePassed struct {
	Which Deadline
	Extra codec.Extra
}

// DecisionKind is a choice of a human or a policy.
type DecisionKind string

// Decisions.
const (
	DecideAbandon         DecisionKind = "abandon"
	DecideExtend          DecisionKind = "extend"
	DecideAdopt           DecisionKind = "adopt"
	DecideRetryCreate     DecisionKind = "retry_create"
	DecideResume          DecisionKind = "resume"
	DecideRetryCollection DecisionKind = "retry_collection"
	DecideAcceptResult    DecisionKind = "accept_result"
	DecideMarkCancelled   DecisionKind = "mark_cancelled"
)

// DecisionMade records a choice on an operation that automation must not
// settle. Permit.
type DecisionMade struct {
	Choice     DecisionKind
	Who        string
	Key        string // caller's idempotency key, hashed
	Why        Digest // reason in PAYLOADS
	Sequence   uint64 // ledger sequence of the state it was made on
	JobID      string // adopt
	Claim      string // adopt: as in CreateAnswered
	Which      Deadline
	Until      time.Time // extend
	Evidence   Digest    // mark_cancelled
	AcceptRisk bool      // retry_create where a second job cannot be excluded
	Extra      codec.Extra
}

// DeferReason says why a step waits although it is due.
type DeferReason string

// Reasons to defer.
const (
	DeferThrottled     DeferReason = "throttled"
	DeferNoCredential  DeferReason = "credential_missing"
	DeferHold          DeferReason = "provider_on_hold"
	DeferTargetChanged DeferReason = "target_changed" // origin, account or credential differ from those of an unresolved attempt
	DeferNoContract    DeferReason = "contract_missing"
	DeferStorageLow    DeferReason = "storage_low" // no room for what a new job would bring
	DeferLimit         DeferReason = "at_limit"    // of calls to the account, set by its operator or the contract
)

// StepDeferred postpones the due steps, but no deadline. One whose Until has
// come ends the rest that another began. Evidence.
type StepDeferred struct {
	Until   time.Time
	Reason  DeferReason
	Detail  string
	Creates bool // only creates, and preparations for them, rest
	Extra   codec.Extra
}

// OperationPaused rests creates and collections. Evidence.
type OperationPaused struct {
	Who   string
	Why   Digest
	Extra codec.Extra
}

// OperationResumed ends a pause. Evidence.
type OperationResumed struct {
	Who   string
	Why   Digest
	Extra codec.Extra
}

// TagsChanged replaces the caller's labels. Evidence.
type TagsChanged struct {
	Who   string
	Tags  []Tag
	Extra codec.Extra
}

// OperationLinked says that later operations name this one. It is stored in one write
// with their intents, at the very state that they were checked against. Evidence.
type OperationLinked struct {
	Who   string // whose they are
	Links []Link
	Extra codec.Extra
}

// Link is one operation that names this one.
type Link struct {
	Kind      LinkKind
	Operation string
	// Overlap: whoever asked for it allows that both have a job.
	Overlap bool
}

// LinkKind is what a later operation is to an earlier one.
type LinkKind string

// Kinds of links.
const (
	LinkReplacedBy LinkKind = "replaced_by"
	LinkRetriedBy  LinkKind = "retried_by"
)

// NotificationAttempted permits one notice to a caller's address. Permit.
type NotificationAttempted struct {
	Attempt
	Extra codec.Extra
}

// NotificationAnswered closes a notice. Evidence.
type NotificationAnswered struct {
	Attempt uint64
	Outcome CallOutcome
	Call
	Extra codec.Extra
}

// Unknown is a fact of a type this version does not know. Its bytes are kept;
// a fold that meets one stops its operation (DESIGN §5 rule 7). Evidence.
type Unknown struct {
	Name Type
	Data []byte
}

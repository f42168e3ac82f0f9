package ingest

import (
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/runbook"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	excerptLimit = 300 // bytes of provider text in an answer

	// Bounds of what a caller is told to wait before it reads again.
	shortestPoll = time.Second
	longestPoll  = time.Minute
)

// View is one operation as a caller may see it. The tags named doc are what a
// description of the API says of a member.
type View struct {
	ID        string `json:"id" doc:"Made from the caller's key; it names the operation for ever."`
	Principal string `json:"principal,omitempty" doc:"Whose it is, where that is another than the caller's."`

	Provider  string     `json:"provider"`
	Account   string     `json:"account"`
	Session   string     `json:"session,omitempty" doc:"Your label."`
	Replaces  string     `json:"replaces,omitempty" doc:"The operation that this one takes the place of."`
	RetryOf   string     `json:"retry_of,omitempty" doc:"The operation that this one is another try of."`
	Reference string     `json:"client_reference,omitempty" doc:"Your own name for it."`
	NotBefore *time.Time `json:"not_before,omitempty" doc:"The create is not sent before."`
	// Later operations.
	ReplacedBy []string `json:"replaced_by,omitempty" doc:"The newest operations that take the place of this one."`
	RetriedBy  []string `json:"retried_by,omitempty" doc:"The newest operations that are other tries of this one."`
	Tags       []Tag    `json:"tags,omitempty"`

	State      projections.Phase      `json:"state" doc:"How it stands."`
	Phase      projections.Phase      `json:"phase" doc:"The same as state."`
	Terminal   bool                   `json:"terminal" doc:"Nothing moves it any more."`
	Done       bool                   `json:"done" doc:"Waiting is over: it is terminal, or stopped until somebody decides. Late evidence can still move a stopped one."`
	Quarantine projections.Quarantine `json:"quarantine,omitempty" doc:"Why it stopped, where it is quarantined."`
	Outcome    projections.Outcome    `json:"outcome,omitempty" doc:"How the remote job ended, and not whether the operation succeeded: state says that."`
	Reason     projections.Reason     `json:"reason,omitempty" doc:"Why it is in this state, for machines."`
	WaitingFor string                 `json:"waiting_for,omitempty" doc:"What comes next."`
	NextLook   *time.Time             `json:"next_look,omitempty" doc:"When the service looks next."`
	Because    string                 `json:"because,omitempty" doc:"Why, in words for people."`
	Paused     *PauseView             `json:"paused,omitempty" doc:"Creates and collections rest."`
	Started    time.Time              `json:"started" doc:"When it was submitted."`
	Since      time.Time              `json:"since" doc:"When the state was entered."`

	Expect    string        `json:"expect,omitempty" doc:"The rule that the result is held against when it is collected: the check expect of the result says whether it holds."`
	Cost      *CostView     `json:"cost,omitempty" doc:"What one job costs, as the contract says."`
	Approval  *ApprovalView `json:"approval,omitempty" doc:"Where a rule of the operator's policy demands one: nothing is sent before."`
	Guarantee GuaranteeView `json:"guarantee" doc:"What holds after a create whose answer was lost."`
	Attempts  AttemptsView  `json:"attempts"`
	Job       *JobView      `json:"job,omitempty"`
	Input     *InputView    `json:"input,omitempty" doc:"With input_required: what a person has to give, and where. And what became of the newest answer that was given here."`
	Cancel    *CancelView   `json:"cancel,omitempty"`
	Cleanup   *CleanupView  `json:"cleanup,omitempty" doc:"What became of the newest cleanup that was asked for."`
	Deadlines DeadlinesView `json:"deadlines"`
	Problem   *ProblemView  `json:"problem,omitempty"`
	Result    *ResultView   `json:"result,omitempty"`

	Candidates []string `json:"candidates,omitempty" doc:"Jobs that may be this operation's: that look-ups named without its reference, or a webhook with it."`
	Strays     []string `json:"strays,omitempty" doc:"Jobs of this operation that none follows."`

	Allowed []Allowed `json:"allowed" doc:"What you may do now."`
	// DecisionURL is where automation rests and the caller may decide, and where somebody
	// else has to approve.
	DecisionURL string `json:"decision_url,omitempty" format:"uri-reference" doc:"A page on this service for the person who is to decide, where automation rests, or for the one who is to approve; a browser may give the key as a password."`

	Validation *ValidationView `json:"validation,omitempty" doc:"Only in the answer to validate_only: nothing was recorded."`

	OriginalStatus int `json:"original_status,omitempty" doc:"Only in the answer to a request that its Idempotency-Key had recorded before: the HTTP status of its first answer."`

	Version  uint64 `json:"version" doc:"Counts facts. It is in the ETag, and goes into If-Match and ?after=."`
	Sequence uint64 `json:"sequence" doc:"Of the newest fact in the ledger."`
	// Trace is that of the operation's calls; for the log.
	Trace         string `json:"-"`
	NextPollAfter int    `json:"next_poll_after" doc:"Seconds; 0 means that reading again shows nothing new."`
}

// Tag is a caller's label.
type Tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// CostView is what a job costs, in decimals as text.
type CostView struct {
	Amount string `json:"amount"`
	Unit   string `json:"unit" doc:"A currency or another unit, as the contract names it."`
	Max    string `json:"max,omitempty" doc:"max_cost: more was refused."`
}

func costView(i *events.IntentRecorded) *CostView {
	if i.Cost == "" {
		return nil
	}
	return &CostView{i.Cost, i.CostUnit, i.MaxCost}
}

// GuaranteeView says what holds after a create whose answer was lost.
type GuaranteeView struct {
	Name  events.Guarantee `json:"name"`
	Words string           `json:"words" doc:"The same in plain words."`
}

// AttemptsView counts create requests.
type AttemptsView struct {
	Permitted  uint64 `json:"permitted" doc:"Create requests that were allowed out."`
	NotSent    uint64 `json:"not_sent" doc:"Of those, never sent."`
	Unresolved int    `json:"unresolved" doc:"Of those, may have made a job that is not known."`
}

// JobView is the remote job.
type JobView struct {
	ID          string       `json:"id"`
	RemoteState string       `json:"remote_state,omitempty" doc:"The provider's word, cleaned."`
	Class       events.Class `json:"class,omitempty" doc:"What the contract takes the provider's word for."`
	Progress    string       `json:"progress,omitempty"`
	Adopted     bool         `json:"adopted,omitempty" doc:"It was not created here."`
	UpdatedAt   *time.Time   `json:"updated_at,omitempty"`
}

// InputView is what a job waits for that a person has to give.
type InputView struct {
	URL  string `json:"url,omitempty" format:"uri" doc:"Where it is given, at the provider: to be handed to the person. Its secret parts are left out for who may not decide."`
	Text string `json:"text,omitempty" doc:"What it is, in the provider's words, cleaned."`
	// Question is the name an answer gives.
	Question string `json:"question,omitempty" doc:"The name of this question, to be sent with the answer. It stays while reads say the same, and is another when the job has gone on, url or text is another, or an answer was passed on. Left out where no answer can be passed on, or none is asked for."`
	// Given is the newest answer given here.
	Given *AskedView `json:"given,omitempty" doc:"The newest answer that was given here. Whether the job goes on with it, its state says."`
}

// CancelView is the wish to cancel and what became of it.
type CancelView struct {
	Wished   bool       `json:"wished"`
	At       *time.Time `json:"at,omitempty"`
	Possible bool       `json:"possible" doc:"It may still come to it."`
	TooLate  bool       `json:"too_late" doc:"The job had ended before."`
}

// DeadlinesView holds the absolute deadlines that run.
type DeadlinesView struct {
	Approval *time.Time `json:"approval,omitempty"`
	Create   *time.Time `json:"create,omitempty"`
	Result   *time.Time `json:"result,omitempty"`
	Cancel   *time.Time `json:"cancel,omitempty"`
	Collect  *time.Time `json:"collect,omitempty"`
}

// ProblemView is what the provider said went wrong, or the last trouble in
// asking it.
type ProblemView struct {
	Code    string            `json:"code,omitempty" doc:"The provider's."`
	Message string            `json:"message,omitempty" doc:"The provider's words, cleaned and cut."`
	Class   events.ErrorClass `json:"class,omitempty" doc:"What kind of trouble it is."`
}

// ResultView describes a collected result.
type ResultView struct {
	Size      uint64      `json:"size"`
	MediaType string      `json:"media_type"`
	SHA256    string      `json:"sha256" doc:"Of the bytes, in hex."`
	Checks    []CheckView `json:"checks,omitempty"`
}

// CheckView is one validation of a result.
type CheckView struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail,omitempty"`
}

// Allowed is something the caller may do now.
type Allowed struct {
	Action    string                `json:"action" doc:"cancel, pause, resume (which ends a pause), input, cleanup or decide."`
	Method    string                `json:"method"`
	Href      string                `json:"href"`
	Decisions []events.DecisionKind `json:"decisions,omitempty" doc:"The kinds that fit the state."`
	Jobs      []string              `json:"jobs,omitempty" doc:"The jobs that a cleanup may be of."`

	right Action // that it takes
}

// ViewOf shows a state to its principal, as far as that may do everything.
func ViewOf(s projections.State, now time.Time) View {
	v := View{
		ID: s.Operation, Provider: s.Intent.Provider, Account: s.Intent.Account,
		Session: s.Intent.Session, Replaces: s.Intent.Replaces, RetryOf: s.Intent.RetryOf,
		Reference: s.Intent.Reference, NotBefore: moment(s.Intent.NotBefore), ReplacedBy: linked(s.Later, events.LinkReplacedBy), RetriedBy: linked(s.Later, events.LinkRetriedBy),
		State: s.Phase, Phase: s.Phase, Terminal: s.Phase.Terminal(), Quarantine: s.Quarantine, Outcome: s.Outcome,
		Reason: s.Reason, WaitingFor: s.WaitingFor, Because: s.Why(), Paused: pauseView(s),
		NextLook: moment(s.NextLook), Started: s.Started.UTC(), Since: s.Since.UTC(),
		Guarantee: GuaranteeView{s.Intent.Promises.Guarantee, Words(s.Intent.Promises)},
		Attempts:  AttemptsView{s.Creates.Made, s.Creates.NotSent, s.Creates.Unresolved()},
		Deadlines: running(s), Version: s.Facts, Sequence: s.Sequence, Trace: s.TraceID(),
	}
	v.Done = v.Terminal || s.Phase.Stopped()
	if v.Paused != nil {
		v.Because = "paused by " + v.Paused.By + ": creates and collections rest; " + v.Because
	}
	for _, t := range s.Intent.Tags {
		v.Tags = append(v.Tags, Tag{t.Name, t.Value})
	}
	if s.Job.ID != "" {
		v.Job = &JobView{
			ID: verbatim(s.Job.ID), RemoteState: clean(s.Job.Remote), Class: s.Job.Class, Progress: clean(s.Job.Progress),
			Adopted: s.Job.Adopted, UpdatedAt: moment(s.Job.ProviderTime),
		}
	}
	switch {
	case v.Job == nil || v.Job.RemoteState == "":
	case s.Phase == projections.PhaseResultTimedOut, s.Phase == projections.PhaseCancellationUnconfirmed:
		// A deadline says nothing of the job; the provider's last word does.
		v.Because += fmt.Sprintf("; the provider last said %q", v.Job.RemoteState)
		if s.Job.Class == events.ClassUnknown {
			v.Because += ", and the contract does not know what that means"
		}
	}
	switch {
	case v.Job == nil || s.Job.Remote == "":
	case s.Job.Class == events.ClassUnknown && s.Phase.Live():
		v.Because += fmt.Sprintf("; the provider says %q, and the contract does not know what that means", v.Job.RemoteState)
	case s.Job.Class == events.ClassPartial && (s.Outcome == projections.OutcomeSuccess || s.Phase == projections.PhaseSucceeded):
		v.Because = strings.TrimPrefix(v.Because+"; the job succeeded in part"+brackets(v.Job.Progress), "; ")
	}
	if trouble, ok := runbook.TroubleOf(s); ok {
		v.Because = strings.TrimPrefix(v.Because+"; "+trouble.Words, "; ")
	}
	if s.Cancel.Wished {
		v.Cancel = &CancelView{
			Wished: true, At: moment(s.Cancel.At), TooLate: s.Cancel.TooLate,
			Possible: !s.Cancel.Impossible && !s.Cancel.TooLate && !v.Terminal,
		}
	}
	if v.Problem = problemView(s.Problem); s.Phase == projections.PhaseSucceeded && s.Problem.Class != events.ErrorNone {
		v.Problem = nil // trouble in asking, which is over
	}
	if !s.Result.Payload.IsZero() {
		v.Result = &ResultView{Size: s.Result.Size, MediaType: clean(s.Result.MediaType), SHA256: s.Result.Payload.String()}
		for _, c := range s.Result.Checks {
			v.Result.Checks = append(v.Result.Checks, CheckView{c.Name, c.Passed, clean(c.Detail)})
		}
	}
	for _, id := range projections.Candidates(s) {
		v.Candidates = append(v.Candidates, verbatim(id))
	}
	for _, id := range projections.Unfollowed(s) {
		v.Strays = append(v.Strays, verbatim(id))
	}
	given := askedView(&s.Input.Asked, s.InputStatus())
	if s.Phase == projections.PhaseInputRequired || given != nil {
		v.Input = &InputView{Given: given}
	}
	if s.Phase == projections.PhaseInputRequired {
		v.Input.URL, v.Input.Text = s.Job.InputURL, clean(s.Job.InputText)
		v.Input.Question = questionName(s)
	}
	v.Cleanup = cleanupView(s)
	if s.Intent.ExpectForm == events.ExpectRule {
		v.Expect = s.Intent.Expect
	}
	v.Cost = costView(&s.Intent)
	if v.Approval = approvalView(s); v.Approval != nil && v.Approval.State == ApprovalPending {
		v.WaitingFor, v.Because = "approval", v.Approval.waits()
	}
	v.Allowed = allowed(s)
	v.NextPollAfter = pollAfter(s, now)
	return v
}

// running gives the deadlines that still guard something in the state.
func running(s projections.State) DeadlinesView {
	d := s.Dates
	switch s.Phase {
	case projections.PhaseApprovalPending:
		return DeadlinesView{Approval: moment(d.Approval)}
	case projections.PhaseCreatePending, projections.PhaseCreateUnknown, projections.PhaseReconciliation:
		v := DeadlinesView{Create: moment(d.Create), Result: moment(d.Result)}
		if d.CreatePassed {
			v.Create = nil
		}
		return v
	case projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired:
		return DeadlinesView{Result: moment(d.Result)}
	case projections.PhaseCancelRequested, projections.PhaseCancelling:
		if d.Cancel.IsZero() {
			return DeadlinesView{Result: moment(d.Result)}
		}
		return DeadlinesView{Cancel: moment(d.Cancel)} // the result deadline rests meanwhile
	case projections.PhaseResultCollecting:
		return DeadlinesView{Collect: moment(d.Collect)}
	case projections.PhaseQuarantined:
		return DeadlinesView{Result: moment(d.Result)} // reads and look-ups end with it
	}
	return DeadlinesView{}
}

// allowed lists what can be done now. It asks the same functions that refuse.
func allowed(s projections.State) []Allowed {
	list := []Allowed{}
	if s.Rulebook() > projections.Rules {
		return list
	}
	base := "/v1/operations/" + s.Operation
	if cancelRefusal(s) == nil && cancelHelps(s) {
		list = append(list, Allowed{right: ActCancel, Action: "cancel", Method: "POST", Href: base + "/cancel"})
	}
	switch {
	case pauseRefusal(s) != nil:
	case s.Paused:
		list = append(list, Allowed{right: ActPause, Action: "resume", Method: "POST", Href: base + "/resume"})
	default:
		list = append(list, Allowed{right: ActPause, Action: "pause", Method: "POST", Href: base + "/pause"})
	}
	if ok, _ := projections.TakesInput(s); ok {
		list = append(list, Allowed{right: ActInput, Action: "input", Method: "POST", Href: base + "/input"})
	}
	if jobs := projections.Cleanable(s); len(jobs) > 0 {
		a := Allowed{right: ActCleanup, Action: "cleanup", Method: "POST", Href: base + "/cleanup"}
		for _, job := range jobs {
			a.Jobs = append(a.Jobs, verbatim(job))
		}
		list = append(list, a)
	}
	var kinds []events.DecisionKind
	for _, kind := range decisionKinds() {
		if ok, _ := projections.Allowed(s, kind); ok {
			kinds = append(kinds, kind)
		}
	}
	if s.Phase == projections.PhaseApprovalPending {
		kinds = append(kinds, Approve, Deny)
	}
	if len(kinds) > 0 {
		list = append(list, Allowed{right: ActDecide, Action: "decide", Method: "POST", Href: base + "/decisions", Decisions: kinds})
	}
	return list
}

func decisionKinds() []events.DecisionKind {
	return []events.DecisionKind{
		events.DecideAbandon, events.DecideExtend, events.DecideAdopt, events.DecideRetryCreate, events.DecideResume,
		events.DecideRetryCollection, events.DecideAcceptResult, events.DecideMarkCancelled,
	}
}

// pollAfter is when reading again may show something new, in whole seconds.
func pollAfter(s projections.State, now time.Time) int {
	if s.NextLook.IsZero() {
		return 0
	}
	wait := min(max(s.NextLook.Sub(now)+shortestPoll, shortestPoll), longestPoll)
	return int((wait + time.Second - 1) / time.Second)
}

// Words says in plain words what may be relied on after a create whose answer
// was lost.
func Words(p events.Promises) string {
	switch p.Guarantee {
	case events.Deduplicated:
		window := "for ever"
		if p.TokenWindow > 0 {
			window = "for " + span(p.TokenWindow)
		}
		return fmt.Sprintf("If the answer to the create is lost, the same request is sent again with the same token; "+
			"the provider gives or names the first job %s. This assumes that no process or network holds a request longer than %s.",
			window, span(p.Settle))
	case events.Recoverable:
		return fmt.Sprintf("If the answer to the create is lost, a look-up by our reference tells whether the job exists, "+
			"and nothing is sent again before. This assumes that no process or network holds a request longer than %s.", span(p.Settle))
	case events.AskAfterLoss:
		return "If the answer to the create is lost, nothing is sent again: the operation stops and asks, unless evidence of the job turns up."
	}
	return "Unknown to this version of the program."
}

// span writes a length of time without trailing zero units.
func span(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		if d == 24*time.Hour {
			return "1 day"
		}
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func brackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func problemView(p projections.Problem) *ProblemView {
	if p == (projections.Problem{}) {
		return nil
	}
	v := &ProblemView{Code: clean(p.Code), Message: clean(p.Message), Class: p.Class}
	if v.Code == "" && v.Message == "" {
		v.Message = runbook.ClassWords(p.Class) // never a problem without words
	}
	return v
}

// clean makes a provider's text fit for an answer: no secret parts of links, no
// markup, no control characters, bounded.
func clean(s string) string {
	if s == "" {
		return ""
	}
	return httprule.Excerpt(canonical.RedactLinks([]byte(s)), excerptLimit)
}

// verbatim keeps a job id as it is, since decisions name it, unless it could not
// be shown on a line.
func verbatim(s string) string {
	if textProblem(s, MaxText) != nil {
		return clean(s)
	}
	return s
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

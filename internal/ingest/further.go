package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// AskRequest asks for a further call of an operation: that an answer to its waiting
// job is passed on, or that what its job left is removed.
type AskRequest struct {
	Caller  Caller
	ID      string
	Body    []byte // an [InputBody] or a [CleanupBody]; the latter may be empty
	Key     string // as ParseKey gave it; required
	Version uint64 // optional: only if the operation is still at this version
}

// Asked says what came of a request for a further call.
type Asked int

// What can come of it.
const (
	AskedNow    Asked = iota // recorded by this request, and on its way
	AskedBefore              // recorded by an earlier one under its key
	NothingToDo              // recorded for its key's sake: it was done before, whoever asked for it
)

// AskedView is what somebody asked for and what was seen of it.
type AskedView struct {
	Status  projections.CallStatus `json:"status" doc:"What is known of it: waiting (to be sent, or sent again), sending, done or refused (the provider said so), unknown (it left, and nobody knows what came of it), not_sent (given up), dropped (its time was over before anything left)."`
	By      string                 `json:"by" doc:"The principal that asked."`
	At      time.Time              `json:"at"`
	Number  uint64                 `json:"number" doc:"Which it is of the operation's, from 1."`
	Problem *ProblemView           `json:"problem,omitempty" doc:"Why it did not come to it, by the newest try."`
}

func askedView(a *projections.Asked, status projections.CallStatus) *AskedView {
	if status == projections.CallNone {
		return nil
	}
	return &AskedView{Status: status, By: a.By, At: a.At.UTC(), Number: a.Number, Problem: problemView(a.Problem)}
}

// CleanupView is what becomes of what jobs left.
type CleanupView struct {
	AskedView
	JobID   string   `json:"job_id" doc:"Of which job."`
	Removed []string `json:"removed,omitempty" doc:"The jobs of which the provider said that it is done."`
}

func cleanupView(s projections.State) *CleanupView {
	asked := askedView(&s.Cleanup.Asked, s.CleanupStatus())
	if asked == nil {
		return nil
	}
	v := &CleanupView{AskedView: *asked, JobID: verbatim(s.Cleanup.JobID)}
	for _, job := range s.Cleanup.Done {
		v.Removed = append(v.Removed, verbatim(job))
	}
	return v
}

// asking is a request for a further call on its way into the ledger.
type asking struct {
	AskRequest
	action Action
	fact   events.Fact
	job    string // that a cleanup names; "": the operation's own
	text   []byte // stored before the fact, which names it by its digest
	// look says why it makes no sense in the state, or that it is done already.
	look func(context.Context, projections.State) (idle bool, err error)
}

// Input records an answer to what the operation's job waits for, to be passed on once:
// on the very state in which it is wanted, so that of several callers one is heard, and
// to the very question that the caller looked at.
func (v *Service) Input(ctx context.Context, r AskRequest) (View, Asked, error) {
	var body InputBody
	if _, err := decodeStrict(r.Body, &body); err != nil { // an empty question is refused below, as one that must be given
		return View{}, AskedNow, err
	}
	if len(body.Input) == 0 || string(body.Input) == "null" {
		return View{}, AskedNow, invalid("/input", FieldRequired, "must be a JSON object", nil)
	}
	if body.Input.Kind() != '{' {
		return View{}, AskedNow, invalid("/input", FieldWrongType, "must be a JSON object", nil)
	}
	if problem := textProblem(text(body.Question), maxQuestion); problem != nil {
		return View{}, AskedNow, Refuse(problem.at("/question"))
	}
	answer := []byte(body.Input.Clone())
	question := questionOf(body.Question)
	return v.ask(ctx, asking{
		AskRequest: r, action: ActInput, text: answer,
		fact: &events.InputSubmitted{Who: r.Caller.Principal, Payload: events.Sum(answer), Question: question},
		look: func(ctx context.Context, s projections.State) (bool, error) {
			if refusal := inputRefusal(s); refusal != nil {
				return false, refusal
			}
			if refusal := questionRefusal(s, body.Question); refusal != nil {
				return false, refusal
			}
			if !v.cfg.Directory.MayUse(r.Caller.Principal, s.Intent.Provider, s.Intent.Account) {
				refusal := v.notAllowed(r.Caller, s.Intent.Provider, s.Intent.Account, "")
				refusal.Operation, refusal.State, refusal.Allowed = s.Operation, s.Phase, nil
				return false, refusal
			}
			return false, v.checkInput(ctx, s, answer)
		},
	})
}

// A question's name, and the most bytes one is read of.
const (
	questionPrefix = "q"
	maxQuestion    = 64
)

// questionName is how callers call what the operation's job waits for, "" where it has
// no name.
func questionName(s projections.State) string {
	if s.Phase != projections.PhaseInputRequired || s.Input.Question == 0 {
		return ""
	}
	return questionPrefix + strconv.FormatUint(s.Input.Question, 10)
}

// questionOf reads a question's name as questionName writes it; 0 is none.
func questionOf(name *string) uint64 {
	digits, ok := strings.CutPrefix(text(name), questionPrefix)
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || strconv.FormatUint(n, 10) != digits {
		return 0
	}
	return n
}

// questionRefusal refuses an answer to something else than what the job waits for, or
// to nothing in particular.
func questionRefusal(s projections.State, given *string) *Refusal {
	waiting := questionName(s)
	switch {
	case text(given) == "":
		r := invalid("/question", FieldRequired, "must be given: input.question of the operation as the person saw it", nil)
		r.Operation, r.Trace, r.State = s.Operation, s.TraceID(), s.Phase
		return r
	case *given != waiting:
		r := &Refusal{Code: CodeQuestionDiffers, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
		return r.Say("the job waits for an answer to question {waiting}, not {question}", Values{"waiting": waiting, "question": clip(clean(*given))})
	}
	return nil
}

// checkInput holds an answer against the operation's contract. One that the contract
// cannot make a request of would be recorded and never sent.
func (v *Service) checkInput(ctx context.Context, s projections.State, text []byte) error {
	c, err := v.contractOf(ctx, s)
	if c == nil || err != nil {
		return err // without its contract the worker says so, too
	}
	var problems []FieldError
	for _, p := range c.CheckInput(text) {
		problems = append(problems, Wrong(clip("/input"+p.Field), paramCode(p.Code), "{what}", Values{"what": p.Message}, p.Allowed...))
	}
	if len(problems) > 0 {
		return Refuse(problems...)
	}
	params, err := v.cfg.Journal.Payload(ctx, s.Intent.Payload)
	if err != nil {
		return fmt.Errorf("input of %s: %w", s.Operation, err)
	}
	prepared := map[string]string{}
	for _, p := range s.Prepared {
		prepared[p.Name] = p.Value
	}
	_, err = c.Input(contract.Inputs{
		Params: params, Token: s.Intent.Token, ClientReference: s.Intent.ClientReference, JobID: s.Job.ID, StatusURL: s.Job.StatusURL,
		CallbackURL: callbackShape, Prepared: prepared, Input: text, InputToken: "shape",
	})
	if err != nil {
		return invalid("/input", FieldNotAllowed, "does not make a request to the provider: {what}", Values{"what": clean(err.Error())})
	}
	return nil
}

// contractOf gives the contract that the operation was recorded with, nil if it is not
// to be had.
func (v *Service) contractOf(ctx context.Context, s projections.State) (*contract.Contract, error) {
	if c, ok := v.cfg.Directory.Current(s.Intent.Provider); ok && c.Digest == s.Intent.Contract {
		return c, nil
	}
	text, err := v.cfg.Journal.Payload(ctx, s.Intent.Contract)
	if errors.Is(err, journal.ErrNoPayload) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("contract of %s: %w", s.Operation, err)
	}
	c, err := contract.Parse(s.Intent.Provider+".yaml", text)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // it was read once, by another version
	}
	return c, nil
}

// Cleanup records the wish to remove what a job of the operation left, of the
// operation's own job unless another one of its jobs is named. One that is done is not sent
// again, and one at a time is under way. Each key has one meaning for ever, which job the
// operation's own may be by then.
func (v *Service) Cleanup(ctx context.Context, r AskRequest) (View, Asked, error) {
	var body CleanupBody
	if len(r.Body) > 0 {
		if err := DecodeStrict(r.Body, &body); err != nil {
			return View{}, AskedNow, err
		}
	}
	why, err := reason(body.Why)
	if err != nil {
		return View{}, AskedNow, err
	}
	if problem := textProblem(text(body.JobID), MaxText); problem != nil {
		return View{}, AskedNow, Refuse(problem.at("/job_id"))
	}
	fact := &events.CleanupRequested{Who: r.Caller.Principal, Why: digestOf(why)}
	job := text(body.JobID)
	return v.ask(ctx, asking{
		AskRequest: r, action: ActCleanup, text: []byte(why), fact: fact, job: job,
		look: func(ctx context.Context, s projections.State) (bool, error) {
			// At each look: a decision may have given it another one.
			if fact.JobID = job; job == "" {
				fact.JobID = s.Job.ID
			}
			if refusal := cleanupRefusal(s, fact.JobID); refusal != nil {
				return false, refusal
			}
			if slices.Contains(s.Cleanup.Done, fact.JobID) {
				return true, nil
			}
			// Whose job it is, before the fact that relies on it (rule 4). A crash in
			// between leaves a claim that is this operation's by its own facts.
			claim, err := v.cfg.Journal.Claim(ctx, s.Intent.Provider, s.Intent.Account, fact.JobID, s.Operation)
			if err != nil {
				return false, fmt.Errorf("clean up after %s: %w", s.Operation, err)
			}
			if fact.Claim = claim; claim != events.ClaimOwn {
				refusal := jobOwned("/job_id")
				refusal.Operation, refusal.Trace, refusal.State = s.Operation, s.TraceID(), s.Phase
				return false, refusal
			}
			return false, nil
		},
	})
}

// retryCleanup is when a cleanup that is under way may be over, if its call is answered.
const retryCleanup = 5 * time.Second

// ask records a request for a further call.
func (v *Service) ask(ctx context.Context, a asking) (View, Asked, error) {
	if a.Key == "" {
		return View{}, AskedNow, keyMissing()
	}
	for try := range batchTries {
		if try > 0 {
			if err := v.beaten(ctx, a.Key, try); err != nil {
				return View{}, AskedNow, fmt.Errorf("%s of %s: %w", a.action, a.ID, err)
			}
		}
		view, asked, again, err := v.tryAsk(ctx, a)
		if err != nil || !again {
			return view, asked, err
		}
	}
	return View{}, AskedNow, moving()
}

func (v *Service) tryAsk(ctx context.Context, a asking) (view View, asked Asked, again bool, err error) {
	s, err := v.load(ctx, a.Caller, a.ID, a.action)
	if err != nil {
		return View{}, AskedNow, false, err
	}
	// The fact's id is the request's: a retry finds what it did, whatever became of
	// the operation since.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s key %s", s.Operation, hashKey(a.Caller, a.Key)))
	id := string(a.action) + "-" + hex.EncodeToString(sum[:16])
	if original, err := v.askedBefore(ctx, s, id, a); original != 0 || err != nil {
		return replayOf(v.view(a.Caller, s), original), AskedBefore, false, err
	}
	if s.Rulebook() > projections.Rules {
		return View{}, AskedNow, false, cancelRefusal(s)
	}
	if a.Version != 0 && a.Version != s.Facts {
		return View{}, AskedNow, false, stale(s)
	}
	idle, err := a.look(ctx, s)
	if err != nil {
		return View{}, AskedNow, false, err
	}
	// The text before the fact that names it: a crash in between leaves bytes
	// that nothing refers to.
	if err := v.keep(ctx, string(a.text)); err != nil {
		return View{}, AskedNow, false, err
	}
	// On the very state that was looked at, or not at all: what would be noted and
	// never sent is refused instead, but for what was done before, whose key is all that is
	// kept of it. A crash before it leaves nothing, and the caller asks again; after it the
	// request is in the ledger and the projector makes it due.
	after, outcome, err := v.cfg.Journal.AppendAll(ctx, []projections.State{s}, []events.Event{{
		ID: id, Source: v.cfg.Source, Operation: s.Operation, Time: v.cfg.Clock.Now(), Actor: a.Caller.Principal, Fact: a.fact,
	}})
	switch {
	case err != nil:
		return View{}, AskedNow, false, fmt.Errorf("%s of %s: %w", a.action, a.ID, err)
	case outcome == journal.Superseded:
		return View{}, AskedNow, true, nil
	}
	if idle {
		return v.view(a.Caller, after[0]), NothingToDo, false, nil
	}
	return v.view(a.Caller, after[0]), AskedNow, false, nil
}

// askedBefore gives the status that was answered when the caller's key recorded this very
// request, 0 if it did not.
func (v *Service) askedBefore(ctx context.Context, s projections.State, id string, a asking) (int, error) {
	want := a.fact
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return 0, fmt.Errorf("%s on %s: %w", want.Type(), s.Operation, err)
	}
	var then projections.State
	for _, line := range lines {
		var record projections.Record
		then, record = projections.Fold(then, line.Entry)
		if line.Entry.Event.ID != id {
			continue
		}
		same := false
		switch have := line.Entry.Event.Fact.(type) {
		case *events.InputSubmitted:
			given, ok := want.(*events.InputSubmitted)
			if same = ok && have.Question == given.Question; same {
				if same, err = v.sameAnswer(ctx, have.Payload, a.text); err != nil {
					return 0, fmt.Errorf("%s on %s: %w", want.Type(), s.Operation, err)
				}
			}
		case *events.CleanupRequested:
			// The operation's own job need not be named. It may have another one by now.
			asked, ok := want.(*events.CleanupRequested)
			same = ok && have.Why == asked.Why && (have.JobID == a.job || a.job == "" && have.JobID == then.Job.ID)
		default: // no other fact has such an id
		}
		if !same {
			return 0, keyReused(s, "this Idempotency-Key asked for something else on this operation")
		}
		if record.Verdict != projections.Applied {
			return statusDone, nil // it was done before
		}
		return statusSubmitted, nil
	}
	return 0, nil
}

// sameAnswer says whether an answer that was given means what this text does, whatever
// the order of its members.
func (v *Service) sameAnswer(ctx context.Context, given events.Digest, answer []byte) (bool, error) {
	if given == events.Sum(answer) {
		return true, nil
	}
	text, err := v.cfg.Journal.Payload(ctx, given)
	if errors.Is(err, journal.ErrNoPayload) {
		return false, nil // it is gone: nothing but the same bytes is known to be the same
	}
	if err != nil {
		return false, fmt.Errorf("the answer that was given: %w", err)
	}
	one, err := canonical.Form(text, MaxBody)
	if err != nil {
		return false, fmt.Errorf("the answer that was given: %w", err)
	}
	other, err := canonical.Form(answer, MaxBody)
	if err != nil {
		return false, gateRefusal(err)
	}
	return bytes.Equal(one, other), nil
}

// inputRefusal says why an answer makes no sense in the state, or nil.
func inputRefusal(s projections.State) *Refusal {
	r := &Refusal{Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	ok, why := projections.TakesInput(s)
	switch {
	case ok:
		return nil
	case s.Phase.Terminal():
		r.Code = CodeAlreadyTerminal
		return r.Say("the operation ended as {state}; nothing waits for an answer", nil)
	case !s.Intent.Offers.Input:
		r.Code = CodeInputUnsupported
		return r.Say("no answer can be passed on to provider {provider}", Values{"provider": s.Intent.Provider})
	case s.Phase != projections.PhaseInputRequired:
		r.Code = CodeInputNotWanted
		return r.Say("the operation is in state {state}; its job waits for no answer", nil)
	case why == projections.ReasonTooEarly:
		r.Code = CodeInputNotWanted
		return r.Say("an answer was passed on, and no read has shown yet that the job waits for another", nil)
	}
	r.Code = CodeInputNotWanted
	return r.Say("another answer is on its way", nil)
}

// cleanupRefusal says why a cleanup of the job makes no sense in the state, or nil.
func cleanupRefusal(s projections.State, job string) *Refusal {
	r := &Refusal{Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	ok, why := projections.TakesCleanup(s, job)
	known := job != "" && (job == s.Job.ID || slices.Contains(projections.Unfollowed(s), job))
	switch {
	case ok, slices.Contains(s.Cleanup.Done, job):
		return nil
	case !s.Intent.Offers.Cleanup:
		r.Code = CodeCleanupUnsupported
		return r.Say("provider {provider} has no way to remove what a job left", Values{"provider": s.Intent.Provider})
	case !s.Phase.Terminal() && !s.Phase.Stopped():
		r.Code = CodeCleanupNotAllowed
		return r.Say("the operation is in state {state} and goes on; a cleanup is for one that has ended or stopped", nil)
	case s.Phase == projections.PhaseQuarantined && (s.Quarantine == projections.QuarantineConflict || s.Quarantine == projections.QuarantineUnreadable):
		r.Code = CodeCleanupNotAllowed
		return r.Say("the operation is quarantined ({reason}); first it has to be decided whose its job is", Values{"reason": s.Quarantine})
	case !known:
		jobs := append([]string{s.Job.ID}, projections.Unfollowed(s)...)
		jobs = slices.DeleteFunc(jobs, func(job string) bool { return job == "" })
		for i := range jobs {
			jobs[i] = verbatim(jobs[i])
		}
		out := invalid("/job_id", FieldNotAllowed, "is not a job of this operation", nil, jobs...)
		out.Operation, out.Trace, out.State = r.Operation, r.Trace, r.State
		return out
	case why == projections.ReasonAttemptOpen:
		r.Code, r.RetryAfter = CodeCleanupUnderWay, retryCleanup
		return r.Say("the cleanup of job {job} is under way", Values{"job": verbatim(s.Cleanup.JobID)})
	}
	r.Code = CodeCleanupNotAllowed
	return r.Say("this operation takes no cleanup", nil)
}

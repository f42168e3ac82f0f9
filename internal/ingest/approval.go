package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// A policy can demand that an operation is approved before anything is sent. It waits in
// approval_pending then, its deadlines begin with the approval, and another principal
// than the one that submitted grants or denies it, over the digest of what would be sent.
// Both are asked for as a decision is and recorded as facts of their own.

// The ways to answer a wait for an approval, beside the kinds of decision.
const (
	Approve events.DecisionKind = "approve"
	Deny    events.DecisionKind = "deny"
)

// approves says whether the kind is about an approval.
func approves(kind events.DecisionKind) bool { return kind == Approve || kind == Deny }

// rightOf is the action that a kind of decision is.
func rightOf(kind events.DecisionKind) Action {
	if approves(kind) {
		return ActApprove
	}
	return ActDecide
}

// ApprovalState is what became of the wait for an approval.
type ApprovalState string

// What became of it.
const (
	ApprovalPending ApprovalState = "pending"
	ApprovalGranted ApprovalState = "granted"
	ApprovalDenied  ApprovalState = "denied"
	ApprovalLapsed  ApprovalState = "lapsed" // the operation ended before
)

// ApprovalView is the approval of an operation that needs one.
type ApprovalView struct {
	State   ApprovalState `json:"state" enum:"pending,granted,denied,lapsed" doc:"lapsed: the operation ended before anybody said anything."`
	Digest  string        `json:"digest" doc:"Of what is sent, in hex: operation, principal, provider, account, contract, parameters, token, reference, adopted job, not_before and all else that was asked for. Whoever approves or denies says it."`
	Params  string        `json:"params_sha256" doc:"Of the parameters as they were sent, in hex."`
	Demands []DemandView  `json:"demanded_by" doc:"The rules of the policy that demand it."`
	By      string        `json:"by,omitempty" doc:"Who granted or denied it."`
	At      *time.Time    `json:"at,omitempty"`
}

// DemandView is a rule that demands an approval.
type DemandView struct {
	Rule   string `json:"rule"`
	Why    string `json:"why,omitempty" doc:"In the operator's words."`
	Failed string `json:"failed,omitempty" doc:"What kept the rule from being evaluated, which demands an approval, too."`
}

func approvalView(s projections.State) *ApprovalView {
	if !s.Intent.NeedsApproval {
		return nil
	}
	v := &ApprovalView{
		State: ApprovalLapsed, Digest: s.Intent.ToApprove(s.Operation).String(), Params: s.Intent.Payload.String(),
		Demands: []DemandView{}, By: s.Approval.By, At: moment(s.Approval.At),
	}
	switch {
	case s.Phase == projections.PhaseApprovalPending:
		v.State = ApprovalPending
	case s.Approval.Granted:
		v.State = ApprovalGranted
	case s.Approval.By != "":
		v.State = ApprovalDenied
	}
	for _, d := range s.Intent.Demands {
		v.Demands = append(v.Demands, DemandView{d.Rule, d.Why, clean(d.Failed)})
	}
	return v
}

// waits says in words what a pending approval waits for.
func (v *ApprovalView) waits() string {
	text := "nothing is sent until another principal approves it"
	for i, d := range v.Demands {
		if text += ", and rule "; i == 0 {
			text = text[:len(text)-len(", and rule ")] + ": rule "
		}
		switch text += d.Rule; {
		case d.Failed != "":
			text += " could not be evaluated (" + d.Failed + ")"
		default:
			text += " demands it" + brackets(d.Why)
		}
	}
	return text
}

// asked is a submit as the policy's rules see it.
func asked(caller Caller, provider, account string, p events.Promises) contract.Asked {
	a := contract.Asked{
		Principal: caller.Principal, Team: caller.Team(), Operator: caller.Operator,
		Provider: provider, Account: account, Guarantee: p.Guarantee,
	}
	for _, s := range caller.Scopes {
		a.Scopes = append(a.Scopes, string(s))
	}
	return a
}

// demand has the policy look at what is asked for. What it says is part of the intent,
// so that a later policy changes nothing for an operation that is recorded.
func (v *Service) demand(caller Caller, s *Submission, intent *events.IntentRecorded) {
	policy := v.policy()
	a := asked(caller, s.Provider, s.Account, intent.Promises)
	a.Action, a.Params, a.Tags, a.Adopt = s.Action, s.Params, s.Tags, s.Adopt
	a.Replaces, a.RetryOf, a.Overlap, a.MaxCost = s.Replaces, s.RetryOf, s.AllowOverlap, s.MaxCost
	a.Cost, a.Unit = intent.Cost, intent.CostUnit
	if intent.Demands = policy.Demands(a); len(intent.Demands) > 0 {
		intent.NeedsApproval, intent.Approving = true, policy.Digest
	}
}

func (v *Service) policy() *contract.Policy {
	if v.cfg.Policy == nil {
		return nil
	}
	return v.cfg.Policy()
}

// selfApproval refuses who submitted the operation.
func selfApproval() *Refusal {
	return &Refusal{Code: CodeSelfApproval, Detail: "whoever submitted an operation has no say in its approval"}
}

// approvable gives an operation of somebody else's that the caller may approve.
func (v *Service) approvable(ctx context.Context, caller Caller, id string) (projections.State, error) {
	if err := checkID("id", id); err != nil {
		return projections.State{}, err
	}
	// Who may not do it anywhere, nor know of operations of its own, learns no more.
	if refusal := v.May(caller, Right{Action: ActApprove}); refusal != nil && v.May(caller, Right{Action: ActRead}) != nil {
		return projections.State{}, refusal
	}
	s, err := v.cfg.Journal.Current(ctx, id)
	switch {
	case errors.Is(err, journal.ErrNoOperation), errors.Is(err, journal.ErrBadName):
		// What is not there is refused as an operation that the caller does not see.
		if refusal := v.May(caller, Right{Action: ActApprove}); refusal != nil {
			return projections.State{}, refusal
		}
		return projections.State{}, noOperation()
	case err != nil:
		return projections.State{}, fmt.Errorf("read %s: %w", id, err)
	}
	if refusal := v.May(caller, Right{Action: ActApprove, Principal: s.Intent.Principal}); refusal != nil {
		if refusal.Code == CodeSelfApproval {
			refusal.Operation, refusal.Trace, refusal.State = s.Operation, s.TraceID(), s.Phase
		}
		return projections.State{}, refusal
	}
	return s, nil
}

// approve records the word of another principal on what waits for it. It goes as a
// decision does: the key first, then the version, then the very state.
func (v *Service) approve(ctx context.Context, r DecideRequest, d *decision, now time.Time) (view View, replayed bool, err error) {
	s, err := v.approvable(ctx, r.Caller, r.ID)
	if err != nil {
		return View{}, false, err
	}
	who, key := r.Caller.Principal, hashKey(r.Caller, r.Key)
	granted := &events.ApprovalGranted{Who: who, Approved: d.digest, Key: key, KeyID: r.Caller.KeyID, Why: digestOf(d.why)}
	var fact events.Fact = granted
	if d.fact.Choice == Deny {
		fact = &events.ApprovalDenied{Who: who, Denied: d.digest, Key: key, KeyID: r.Caller.KeyID, Why: digestOf(d.why)}
	}
	if done, err := v.decided(ctx, s, fact); done || err != nil {
		return replayOf(v.view(r.Caller, s), statusCreated), done, err
	}
	if err := d.unsaid.refused(); err != nil {
		return View{}, false, err
	}
	waits := s.Intent.ToApprove(s.Operation)
	switch {
	case s.Rulebook() > projections.Rules:
		return View{}, false, cancelRefusal(s)
	case s.Phase.Terminal():
		return View{}, false, decisionRefusal(s, projections.ReasonTerminal)
	case s.Phase != projections.PhaseApprovalPending:
		return View{}, false, decisionRefusal(s, projections.ReasonNotApplicable)
	case d.digest != waits: // also at another version: what waits never changes
		refusal := &Refusal{Code: CodeApprovalDiffers, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
		return View{}, false, refusal.Say("what waits has the digest {waiting}, not {digest}", Values{"waiting": waits.String(), "digest": d.digest.String()})
	case r.Version != s.Facts:
		return View{}, false, stale(s)
	}
	// The text before the fact that names it: a crash in between leaves bytes that nothing
	// refers to.
	if err := v.keep(ctx, d.why); err != nil {
		return View{}, false, err
	}
	if fact == events.Fact(granted) && s.Intent.Adopt != "" {
		// The claim before the fact that relies on it. A crash in between leaves the job
		// claimed by this operation, which waits on: the retry finds its own claim, another
		// operation is refused the job.
		claim, err := v.cfg.Journal.Claim(ctx, s.Intent.Provider, s.Intent.Account, s.Intent.Adopt, s.Operation)
		if err != nil {
			return View{}, false, fmt.Errorf("approve %s: %w", r.ID, err)
		}
		if claim != events.ClaimOwn {
			return View{}, false, &Refusal{Code: CodeJobOwned, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase, Detail: "the job to adopt has come to another operation since"}
		}
		granted.JobID, granted.Claim = s.Intent.Adopt, claim
	}
	// A crash before the append leaves the operation waiting; after it the retry finds the
	// word by its key, and the projector makes due what it lets out.
	return v.appendDecision(ctx, r, s, events.Event{
		ID: v.cfg.NewID(), Source: v.cfg.Source, Operation: s.Operation, Time: now, Actor: who, Fact: fact,
	})
}

// appendDecision appends a fact that answers a request to decide, on the very state that it
// was judged on.
func (v *Service) appendDecision(ctx context.Context, r DecideRequest, s projections.State, e events.Event) (view View, replayed bool, err error) {
	after, outcome, err := v.cfg.Journal.Append(ctx, s, e)
	switch {
	case err != nil:
		return View{}, false, fmt.Errorf("decide on %s (%s): %w", r.ID, outcome, err)
	case outcome == journal.Superseded:
		done, err := v.decided(ctx, after, e.Fact) // two tries of one request at once
		if done || err != nil {
			return replayOf(v.view(r.Caller, after), statusCreated), done, err
		}
		return View{}, false, stale(after)
	case after.Refused > s.Refused:
		return View{}, false, decisionRefusal(after, projections.ReasonNotApplicable)
	}
	return v.view(r.Caller, after), false, nil
}

// decidedBy gives who recorded a fact that answers a request to decide, and under which
// key.
func decidedBy(f events.Fact) (who, key string) {
	switch f := f.(type) {
	case *events.DecisionMade:
		return f.Who, f.Key
	case *events.ApprovalGranted:
		return f.Who, f.Key
	case *events.ApprovalDenied:
		return f.Who, f.Key
	default: // no other fact does
	}
	return "", ""
}

// sameDecision says whether two requests to decide ask for the same.
func sameDecision(have, want events.Fact) bool {
	switch a := have.(type) {
	case *events.DecisionMade:
		b, ok := want.(*events.DecisionMade)
		// A relative time is another one at each try, so Until is not compared.
		return ok && a.Choice == b.Choice && a.JobID == b.JobID && a.Which == b.Which &&
			a.AcceptRisk == b.AcceptRisk && a.Why == b.Why && a.Evidence == b.Evidence
	case *events.ApprovalGranted:
		b, ok := want.(*events.ApprovalGranted)
		return ok && a.Approved == b.Approved && a.Why == b.Why
	case *events.ApprovalDenied:
		b, ok := want.(*events.ApprovalDenied)
		return ok && a.Denied == b.Denied && a.Why == b.Why
	default: // no other fact answers one
	}
	return false
}

// Params gives the parameters as they were sent, byte for byte, and their digest: whoever
// approves sees what it approves.
func (v *Service) Params(ctx context.Context, caller Caller, id string) (params []byte, digest events.Digest, err error) {
	s, err := v.load(ctx, caller, id, ActRead)
	if err != nil {
		return nil, events.Digest{}, err
	}
	params, err = v.cfg.Journal.Payload(ctx, s.Intent.Payload)
	if err != nil {
		return nil, events.Digest{}, fmt.Errorf("read the parameters of %s: %w", id, err)
	}
	return params, s.Intent.Payload, nil
}

package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// leastRoom is what the create deadline must leave for the request itself
	// after the allowed clock difference.
	leastRoom = time.Second

	// retryFull is what a caller waits while there is no room: somebody has to
	// make some.
	retryFull = time.Minute

	// callbackShape stands for the address of our webhooks while a create is
	// tried out at submit.
	callbackShape = "https://callback.invalid/hooks"
)

// SubmitRequest asks for an operation.
type SubmitRequest struct {
	Caller      Caller
	Key         string // as ParseKey gave it
	Body        []byte
	TraceParent string // W3C; "" if there is none
}

// Submit records what the caller asks for, or finds that it is recorded.
// replayed says that the key named the operation before.
//
// Nothing is stored unless all of it can be: an error leaves the key unused,
// and where the store did not answer the same request may be sent again.
//
// Of a body with validate_only nothing is stored: Validation of the view says what would be.
func (v *Service) Submit(ctx context.Context, r SubmitRequest) (view View, replayed bool, err error) {
	if r.Key == "" {
		return View{}, false, keyMissing()
	}
	s, err := DecodeSubmission(r.Body)
	if err != nil {
		return View{}, false, err
	}
	fingerprint, err := s.Fingerprint()
	if err != nil {
		return View{}, false, err
	}
	id := OperationID(v.cfg.Installation, r.Caller.Principal, r.Key)
	if s.ValidateOnly {
		view, err := v.validate(ctx, r, &s, id, fingerprint)
		return view, false, err
	}
	// What is recorded stands, whatever contracts and clocks say by now. So the
	// key is looked up before the request is held against either.
	found, err := v.cfg.Journal.Find(ctx, id)
	switch {
	case err == nil:
		return v.adopt(r.Caller, found, fingerprint)
	case !errors.Is(err, journal.ErrNoOperation):
		return View{}, false, fmt.Errorf("submit %s: %w", id, err)
	}
	return v.record(ctx, r, &s, id, fingerprint)
}

// full refuses a new operation where there is no room.
func (v *Service) full() *Refusal {
	if v.cfg.Full == nil || !v.cfg.Full() {
		return nil
	}
	return &Refusal{
		Code: CodeStorageLow, RetryAfter: retryFull,
		Detail: "the disk's reserve is reached; operations that are recorded go on, and can be read, cancelled and decided on",
	}
}

// record records an operation that was not found.
func (v *Service) record(ctx context.Context, r SubmitRequest, s *Submission, id string, fingerprint events.Digest) (view View, replayed bool, err error) {
	if refusal := v.full(); refusal != nil {
		return View{}, false, refusal
	}
	p, err := v.intent(ctx, r, s, id, fingerprint)
	if err != nil {
		return View{}, false, err
	}
	settle, err := v.begin(ctx, r.Caller, orderOf(id, p.intent))
	if err != nil {
		return View{}, false, err
	}
	defer func() { settle(err == nil && !replayed) }()
	intent := p.intent
	// The payload comes before the fact that names it. A crash in between leaves
	// bytes that nothing refers to; the retry stores them again under the same
	// digest.
	if intent.Payload, err = v.cfg.Journal.PutPayload(ctx, s.Params); err != nil {
		return View{}, false, fmt.Errorf("submit %s: %w", id, err)
	}
	v.cfg.Journal.Keep(intent.Payload, s.Params) // for the create
	if turn := jobTurn(intent); turn != "" {
		// Requests of this process for one job take turns, so that none withdraws what
		// another one with its key relies on.
		release, _, err := v.linking.take(ctx, []string{turn}, nil)
		if err != nil {
			return View{}, false, fmt.Errorf("submit %s: wait for those that adopt the same job: %w", id, err)
		}
		defer release()
	}
	claim, err := v.claimAdopted(ctx, intent, id)
	if err != nil {
		return View{}, false, err
	}
	defer func() {
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			v.withdraw(ctx, claim)
		}
	}()
	// Its request is named by a later fact, and by then is likely to be stored. The
	// worker stores it otherwise.
	var draft sync.WaitGroup
	if p.create != nil {
		draft.Go(func() { v.cfg.Journal.Draft(ctx, p.create) })
	}
	defer draft.Wait()
	if len(p.before) > 0 {
		return v.recordLinked(ctx, r, s, id, p)
	}
	// A crash before this append leaves no operation, and the caller's retry
	// makes it. A crash after it leaves the operation, which the retry finds
	// above; the projector derives its first wake-up.
	state, outcome, err := v.cfg.Journal.Create(ctx, v.intentEvent(r, id, intent))
	switch {
	case err != nil && outcome != journal.Stored:
		return View{}, false, fmt.Errorf("submit %s: %w", id, err)
	case err != nil:
		// Stored, and only the newest state could not be read.
		return View{}, false, fmt.Errorf("submit %s: recorded: %w", id, err)
	case outcome == journal.Superseded:
		return v.adopt(r.Caller, state, fingerprint)
	}
	return v.view(r.Caller, state), false, nil
}

func (v *Service) intentEvent(r SubmitRequest, id string, intent *events.IntentRecorded) events.Event {
	return events.Event{
		ID: v.cfg.NewID(), Source: v.cfg.Source, Operation: id, Time: v.cfg.Clock.Now(),
		Actor: r.Caller.Principal, TraceParent: r.TraceParent, Fact: intent,
	}
}

// adopt answers a request whose key already names an operation.
func (v *Service) adopt(caller Caller, s projections.State, fingerprint events.Digest) (View, bool, error) {
	if s.Intent.Fingerprint != fingerprint {
		return View{}, false, keyReused(s, "this Idempotency-Key named another request of yours; that operation is unchanged")
	}
	return replayOf(v.view(caller, s), statusSubmitted), true, nil
}

// view shows a state to a caller: whose it is where that is another principal, and
// of what can be done now what this caller may do.
func (v *Service) view(caller Caller, s projections.State) View {
	view := ViewOf(s, v.cfg.Clock.Now())
	if s.Intent.Principal != caller.Principal {
		view.Principal = s.Intent.Principal
	}
	may := func(action Action) bool {
		return v.May(caller, Right{Action: action, Principal: s.Intent.Principal}) == nil
	}
	view.Allowed = slices.DeleteFunc(view.Allowed, func(a Allowed) bool { return len(a.Decisions) == 0 && !may(a.right) })
	mayAsk := v.cfg.Directory.MayUse(caller.Principal, s.Intent.Provider, s.Intent.Account)
	for i := range view.Allowed {
		a := &view.Allowed[i]
		a.Decisions = slices.DeleteFunc(a.Decisions, func(kind events.DecisionKind) bool {
			return !may(rightOf(kind)) || asksProvider(kind) && !mayAsk
		})
	}
	view.Allowed = slices.DeleteFunc(view.Allowed, func(a Allowed) bool {
		return a.right == ActDecide && len(a.Decisions) == 0 || a.right == ActInput && !mayAsk
	})
	if view.Input != nil && view.Input.URL != "" && !may(ActDecide) {
		view.Input.URL = httprule.RedactURL(view.Input.URL) // whoever has it may answer
	}
	switch {
	case s.Phase == projections.PhaseApprovalPending: // to hand over
		view.DecisionURL = PageOf(s.Operation)
	case s.Phase.Stopped() && slices.ContainsFunc(view.Allowed, func(a Allowed) bool { return a.right == ActDecide }):
		view.DecisionURL = PageOf(s.Operation)
	}
	return view
}

// PageOf is where a person sees an operation: a reference on the service.
func PageOf(operation string) string { return "/operations/" + operation }

// plan is what a submission comes to.
type plan struct {
	intent *events.IntentRecorded
	create []byte        // the request of the create, where that is certain by now
	before []predecessor // the operations that it names
}

// intent holds the request against the contract and resolves all that the fold
// will need.
func (v *Service) intent(ctx context.Context, r SubmitRequest, s *Submission, id string, fingerprint events.Digest) (p plan, err error) {
	if err := s.unsaid.refused(); err != nil {
		return plan{}, err
	}
	c, ok := v.cfg.Directory.Current(s.Provider)
	if !ok {
		known := v.providersOf(r.Caller)
		return plan{}, unknownProvider(s.Provider, known)
	}
	// Before it is said whether there is such an account: that is not for
	// everyone to know.
	if refusal := v.May(r.Caller, Right{Action: ActSubmit, Provider: s.Provider, Account: s.Account}); refusal != nil {
		return plan{}, refusal
	}
	if !v.cfg.Directory.HasAccount(s.Provider, s.Account) {
		return plan{}, invalid("/account", FieldNotAllowed, "is not an account configured for provider {provider}", Values{"provider": s.Provider})
	}
	now := v.cfg.Clock.Now()
	deadlines, policy, err := v.limits(c, s, now)
	if err != nil {
		return plan{}, err
	}
	token, reference := c.Identifiers(v.cfg.Key, id, fingerprint)
	promises := c.Promises(v.cfg.Directory.Reachable(s.Provider, s.Account))
	in := contract.Inputs{Params: s.Params, Token: token, ClientReference: reference, CallbackURL: callbackShape, Prepared: c.PreparedShape()}
	if v.cfg.Bound != nil {
		in.BaseURL, in.CallbackURL = v.cfg.Bound(s.Provider, s.Account, id)
	}
	var request contract.Request
	var prepares uint64
	if s.Adopt != "" {
		err = v.checkAdoption(ctx, c, s, in, id)
	} else {
		request, prepares, err = checkParams(c, in)
	}
	if err != nil {
		return plan{}, err
	}
	promises.Prepares = prepares
	if s.Adopt == "" && v.cfg.Bound != nil && prepares == 0 {
		p.create = contract.EncodeRequest(request)
	}
	cost, unit, err := costOf(c, s, v.quotas.bounded(r.Caller.Principal))
	if err != nil {
		return plan{}, err
	}
	if err := checkExpectation(c, s); err != nil {
		return plan{}, err
	}
	if p.before, err = v.predecessors(ctx, r.Caller, s, id); err != nil {
		return plan{}, err
	}
	p.intent = &events.IntentRecorded{
		Principal: r.Caller.Principal, KeyID: r.Caller.KeyID, Session: s.Session, Approval: s.Approval,
		Provider: s.Provider, Account: s.Account, Contract: c.Digest,
		Fingerprint: fingerprint, PayloadSize: uint64(len(s.Params)), Token: token, ClientReference: reference,
		Replaces: s.Replaces, RetryOf: s.RetryOf, Adopt: s.Adopt, Reference: s.Reference, NotBefore: s.NotBefore, Expect: s.Expect, MaxCost: s.MaxCost, Tags: s.Tags,
		Deadlines: deadlines, Policy: policy, Promises: promises, Rules: projections.RulesFor(c.Offers()), Offers: c.Offers(),
	}
	p.intent.Cost, p.intent.CostUnit = cost, unit
	if s.Expect != "" {
		p.intent.ExpectForm = events.ExpectRule
	}
	v.demand(r.Caller, s, p.intent)
	return p, nil
}

// costOf is what the job would cost, as the contract says, and refuses where that is more
// than the caller's bound, or cannot be held against it or against a quota of its unit. The
// cost is "" where it is not known and nobody asked; the unit is "" only where the contract
// says nothing of costs: a caller who makes the amount unknown must not make a cost vanish.
func costOf(c *contract.Contract, s *Submission, quotas map[string]contract.Decimal) (cost, unit string, err error) {
	if s.Adopt != "" { // the job is there
		return "", "", nil
	}
	amount, unit, err := c.Cost(s.Params)
	bound, bounded := contract.ParseDecimal(s.MaxCost)
	_, counted := quotas[c.CostUnit()]
	switch {
	case err != nil && !bounded && counted && !errors.Is(err, contract.ErrNoCost):
		values := Values{"provider": s.Provider, "unit": c.CostUnit(), "what": clean(err.Error())}
		r := &Refusal{Code: CodeCostUnknown, Errors: []FieldError{Wrong("/params", FieldNotAllowed, "do not say what it would cost: {what}", values)}}
		return "", "", r.Say("a quota bounds what you spend in {unit}, and what the contract of provider {provider} says of the cost cannot be evaluated for these parameters: {what}", values)
	case err != nil && !bounded:
		return "", c.CostUnit(), nil
	case errors.Is(err, contract.ErrNoCost):
		r := &Refusal{Code: CodeCostUnknown, Errors: []FieldError{Wrong("/max_cost", FieldNotAllowed, "cannot be held against anything", nil)}}
		return "", "", r.Say("the contract of provider {provider} does not say what a job costs", Values{"provider": s.Provider})
	case err != nil:
		r := &Refusal{Code: CodeCostUnknown, Errors: []FieldError{Wrong("/max_cost", FieldNotAllowed, "cannot be held against anything", nil)}}
		return "", "", r.Say("what the contract of provider {provider} says of the cost cannot be evaluated for these parameters: {what}",
			Values{"provider": s.Provider, "what": clean(err.Error())})
	case bounded && amount.Compare(bound) > 0:
		values := Values{"cost": amount.String(), "unit": unit, "max_cost": s.MaxCost}
		r := &Refusal{Code: CodeCostExceeded, Errors: []FieldError{Wrong("/max_cost", FieldOutOfBounds, "is {max_cost}, and it would cost {cost} {unit}", values)}}
		return "", "", r.Say("it would cost {cost} {unit}, more than max_cost, {max_cost}", values)
	}
	return amount.String(), unit, nil
}

// checkExpectation types what the caller expects of the result, so that what cannot hold
// for want of a name is said while somebody is there to correct it.
func checkExpectation(c *contract.Contract, s *Submission) error {
	if s.Expect == "" {
		return nil
	}
	if c.ResultSource == contract.ResultNone {
		return invalid("/expect", FieldNotAllowed, "cannot be held against anything: jobs of provider {provider} have no result", Values{"provider": s.Provider})
	}
	var problems []FieldError
	_, wrong := c.Expectation(s.Expect)
	for _, p := range wrong {
		problems = append(problems, Wrong("/expect", FieldNotAllowed, "is no rule on the result: {what} (at character {at_character})",
			Values{"what": clean(p.Message), "at_character": p.At}))
	}
	if len(problems) > 0 {
		return Refuse(problems...)
	}
	return nil
}

// unknownProvider refuses a provider that there is not.
func unknownProvider(name string, known []string) *Refusal {
	r := &Refusal{
		Code: CodeUnknownProvider, Allowed: known,
		Errors: []FieldError{Wrong("/provider", FieldNotAllowed, "is not a provider of this installation", nil, known...)},
	}
	return r.Say("there is no provider {provider} here", Values{"provider": name})
}

// notAllowed refuses an account that the caller may not use.
func (v *Service) notAllowed(caller Caller, provider, account, field string) *Refusal {
	allowed := v.cfg.Directory.AccountsOf(caller.Principal, provider)
	r := &Refusal{Code: CodeAccountNotAllowed, Allowed: allowed}
	r = r.Say("principal {principal} may not use account {account} of provider {provider}",
		Values{"principal": caller.Principal, "account": account, "provider": provider})
	if field != "" {
		r.Errors = []FieldError{Wrong(field, FieldNotAllowed, "is not an account you may use", nil, allowed...)}
	}
	return r
}

// limits resolves deadlines and pacing.
func (v *Service) limits(c *contract.Contract, s *Submission, now time.Time) (events.Deadlines, events.Policy, error) {
	wanted, err := s.Deadlines.Lengths(now)
	if err != nil {
		return events.Deadlines{}, events.Policy{}, err
	}
	deadlines, err := c.Deadlines(wanted)
	var bound *contract.BoundError
	if errors.As(err, &bound) {
		return events.Deadlines{}, events.Policy{}, invalid("/"+pointerOf(bound.Field), FieldOutOfBounds, "must be between {min} and {max}", Values{"min": bound.Low, "max": bound.High})
	}
	if err != nil {
		return events.Deadlines{}, events.Policy{}, err
	}
	policy, err := c.Policy(events.Policy{ClockDifference: v.cfg.ClockDifference})
	if err != nil {
		return events.Deadlines{}, events.Policy{}, err
	}
	// A permit's not_after is at most the create deadline less the allowed clock
	// difference; a shorter deadline would never let a request out.
	if least := policy.ClockDifference + leastRoom; deadlines.Create < least {
		return events.Deadlines{}, events.Policy{}, invalid("/deadlines/create", FieldOutOfBounds,
			"must be at least {min}: clocks here may differ by {clock_difference}", Values{"min": span(least), "clock_difference": span(policy.ClockDifference)})
	}
	if last := now.Add(deadlines.Create - policy.ClockDifference); s.NotBefore.After(last) {
		return events.Deadlines{}, events.Policy{}, invalid("/not_before", FieldOutOfBounds,
			"must be before the create deadline, {before}", Values{"before": last.UTC().Format(time.RFC3339)})
	}
	return deadlines, policy, nil
}

// pointerOf turns "deadlines.create" into "deadlines/create".
func pointerOf(dotted string) string {
	b := []byte(dotted)
	for i := range b {
		if b[i] == '.' {
			b[i] = '/'
		}
	}
	return string(b)
}

// checkParams finds what the contract says is wrong with the parameters, and
// what would keep the create, or a call before it, from being built later, when
// nobody is there to correct it. It gives the create and the number of calls before it.
func checkParams(c *contract.Contract, in contract.Inputs) (create contract.Request, prepares uint64, err error) {
	var problems []FieldError
	for _, p := range c.CheckParams(in.Params) {
		problems = append(problems, Wrong(clip("/params"+p.Field), paramCode(p.Code), "{what}", Values{"what": p.Message}, p.Allowed...))
	}
	if len(problems) > 0 {
		return create, 0, Refuse(problems...)
	}
	steps, err := c.Prepares(in)
	for step := 0; err == nil && step < steps; step++ {
		_, err = c.Prepare(step, in)
	}
	if err == nil {
		create, err = c.Create(in)
	}
	if err != nil {
		return create, 0, invalid("/params", FieldNotAllowed, "do not make a request to the provider: {what}", Values{"what": clean(err.Error())})
	}
	return create, uint64(steps), nil
}

func paramCode(code string) FieldCode {
	switch code {
	case "required":
		return FieldRequired
	case "type":
		return FieldWrongType
	case "unknown":
		return FieldUnknown
	}
	return FieldNotAllowed // not_allowed, set_by_contract
}

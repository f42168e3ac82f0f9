package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// longestExtension bounds how far a decision may move a deadline.
const longestExtension = 365 * 24 * time.Hour

// CancelRequest is a wish to cancel.
type CancelRequest struct {
	Caller  Caller
	ID      string
	Body    []byte // {"why": …} or empty
	Key     string // as ParseKey gave it; required
	Version uint64 // optional: only if the operation is still at this version

	unsaid unsaid // of the body
}

// Cancel records the wish to cancel. The answer is the operation as it then
// stands: the wish is a wish, and only the provider's word makes it cancelled.
// Any number of callers may ask: a wish that is being served already is recorded for
// the sake of its key, and changes nothing else. A key that recorded its wish before is
// answered with the operation as it now stands, whatever became of it, and an
// OriginalStatus.
func (v *Service) Cancel(ctx context.Context, r CancelRequest) (View, error) {
	if r.Key == "" {
		return View{}, keyMissing()
	}
	var body WhyBody
	if len(r.Body) > 0 {
		var err error
		if r.unsaid, err = decodeStrict(r.Body, &body); err != nil {
			return View{}, err
		}
	}
	why, err := reason(body.Why)
	if err != nil {
		return View{}, err
	}
	return v.cancel(ctx, r, why)
}

func (v *Service) cancel(ctx context.Context, r CancelRequest, why string) (View, error) {
	found, err := v.wishOn(ctx, r, why)
	if err != nil {
		return View{}, err
	}
	if found.idle {
		return replayOf(v.view(r.Caller, found.state), found.original), nil
	}
	// The text before the fact that names it: a crash in between leaves bytes
	// that nothing refers to.
	if err := v.keep(ctx, why); err != nil {
		return View{}, err
	}
	// A crash before the append leaves no wish, and the caller asks again; after it the
	// wish is in the ledger and the projector makes it due.
	s, outcome, err := v.cfg.Journal.Append(ctx, found.state, v.wishEvent(r.Caller, found))
	if err != nil {
		return View{}, fmt.Errorf("cancel %s (%s): %w", r.ID, outcome, err)
	}
	// Another request under the key may have been the one that stored it.
	if _, err := v.wishedBefore(ctx, s, found.fact); err != nil {
		return View{}, err
	}
	// The wish may have come too late meanwhile.
	if s.Phase.Terminal() && s.Phase != projections.PhaseCancelled && !s.Cancel.Wished {
		return View{}, cancelRefusal(s)
	}
	return v.view(r.Caller, s), nil
}

// wishedBefore gives the status that was answered when the caller's key recorded
// this very wish, 0 if it did not. Under a key that recorded another one it
// refuses.
func (v *Service) wishedBefore(ctx context.Context, s projections.State, want *events.CancelRequested) (int, error) {
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return 0, fmt.Errorf("cancel %s: %w", s.Operation, err)
	}
	var then projections.State
	for _, line := range lines {
		then, _ = projections.Fold(then, line.Entry)
		have, ok := line.Entry.Event.Fact.(*events.CancelRequested)
		if !ok || have.Key != want.Key || have.Who != want.Who {
			continue
		}
		if have.Why != want.Why {
			return 0, keyReused(s, "this Idempotency-Key asked for this cancellation with another reason")
		}
		return CancelStatus(ViewOf(then, line.Entry.Time)), nil
	}
	return 0, nil
}

// keyReused refuses another request under a key that recorded something on the
// operation, which it names.
func keyReused(s projections.State, detail string) *Refusal {
	return &Refusal{Code: CodeKeyReused, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase, Detail: detail}
}

// cancelRefusal says why a wish to cancel makes no sense in the state, or nil.
func cancelRefusal(s projections.State) *Refusal {
	r := &Refusal{Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	switch {
	case s.Rulebook() > projections.Rules:
		r.Code, r.Detail = CodeNewerVersion, "this operation keeps rules that this program does not know"
	case s.Phase.Terminal() && s.Phase != projections.PhaseCancelled:
		r.Code = CodeAlreadyTerminal
		r = r.Say("the operation ended as {state}; its state and result are unchanged", nil)
	case s.Phase != projections.PhaseCancelled && s.Job.ID != "" && (!s.Intent.Promises.Cancels || s.Cancel.Impossible):
		r.Code = CodeCancelUnsupported
		r = r.Say("provider {provider} has no way to cancel a job", Values{"provider": s.Intent.Provider})
	default:
		return nil
	}
	return r
}

// cancelHelps says whether a wish to cancel would begin anything that is not under way. Of
// a job that has ended nothing can be cancelled: the wish is recorded and too late.
func cancelHelps(s projections.State) bool {
	switch s.Phase { //nolint:exhaustive // in every other phase the first wish does
	case projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired,
		projections.PhaseResultTimedOut, projections.PhaseCancellationUnconfirmed:
		return true // the fold starts a cancel anew
	case projections.PhaseResultCollecting, projections.PhaseResultUnavailable, projections.PhaseResultValidationFailed:
		return false
	case projections.PhaseQuarantined:
		if s.Quarantine == projections.QuarantineLost {
			return true
		}
	}
	return !s.Phase.Terminal() && !s.Cancel.Wished
}

func stale(s projections.State) *Refusal {
	r := &Refusal{Code: CodeStale, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	return r.Say("the operation is at version {version} by now", Values{"version": s.Facts})
}

// reason reads the text a person gave for what they ask.
func reason(text *string) (string, error) {
	if text == nil {
		return "", nil
	}
	if len(*text) > MaxWhy {
		return "", Refuse(tooLong("/why", *text, MaxWhy))
	}
	return *text, nil
}

// keep stores human text, which is never part of a fact, so that it can be
// erased.
func (v *Service) keep(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	if _, err := v.cfg.Journal.PutPayload(ctx, []byte(text)); err != nil {
		return fmt.Errorf("store a reason: %w", err)
	}
	return nil
}

// hashKey is what the ledger keeps of a caller's idempotency key.
func hashKey(caller Caller, key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(caller.Principal + "\n" + key))
	return hex.EncodeToString(sum[:16])
}

// DecideRequest is a choice on an operation that automation must not settle.
type DecideRequest struct {
	Caller  Caller
	ID      string
	Key     string // as ParseKey gave it; required
	Version uint64 // of the operation the choice was made on; required
	Body    []byte
}

// Decide records a decision on the very state the caller saw. replayed says
// that the key had recorded it before.
func (v *Service) Decide(ctx context.Context, r DecideRequest) (view View, replayed bool, err error) {
	if r.Key == "" {
		return View{}, false, keyMissing()
	}
	now := v.cfg.Clock.Now()
	d, err := readDecision(r.Body, now)
	if err != nil {
		return View{}, false, err
	}
	if approves(d.fact.Choice) {
		return v.approve(ctx, r, d, now)
	}
	fact, why, evidence := d.fact, d.why, d.evidence
	s, err := v.load(ctx, r.Caller, r.ID, ActDecide)
	if err != nil {
		return View{}, false, err
	}
	fact.Who, fact.Key, fact.Sequence = r.Caller.Principal, hashKey(r.Caller, r.Key), s.Sequence
	fact.Why, fact.Evidence = digestOf(why), digestOf(evidence)
	// The key is looked up first: after the decision the version is another,
	// and a retry must find its decision and not a refusal.
	if done, err := v.decided(ctx, s, fact); done || err != nil {
		return replayOf(v.view(r.Caller, s), statusCreated), done, err
	}
	if err := d.unsaid.refused(); err != nil {
		return View{}, false, err
	}
	if asksProvider(fact.Choice) && !v.cfg.Directory.MayUse(r.Caller.Principal, s.Intent.Provider, s.Intent.Account) {
		refusal := v.notAllowed(r.Caller, s.Intent.Provider, s.Intent.Account, "")
		refusal.Operation, refusal.State, refusal.Allowed = s.Operation, s.Phase, nil
		return View{}, false, refusal
	}
	if r.Version != s.Facts {
		return View{}, false, stale(s)
	}
	if s.Rulebook() > projections.Rules {
		return View{}, false, cancelRefusal(s)
	}
	e := events.Event{
		ID: v.cfg.NewID(), Source: v.cfg.Source, Operation: s.Operation, Time: now, Actor: r.Caller.Principal, Fact: fact,
	}
	if refusal := rehearse(s, e, now); refusal != nil {
		return View{}, false, refusal
	}
	for _, text := range []string{why, evidence} {
		if err := v.keep(ctx, text); err != nil {
			return View{}, false, err
		}
	}
	if fact.Choice == events.DecideAdopt {
		// The claim before the fact that relies on it. A crash in between leaves
		// the job claimed by this operation without a fact: its retry finds its
		// own claim, another operation is refused the job.
		fact.Claim, err = v.cfg.Journal.Claim(ctx, s.Intent.Provider, s.Intent.Account, fact.JobID, s.Operation)
		if err != nil {
			return View{}, false, fmt.Errorf("decide on %s: %w", r.ID, err)
		}
		if fact.Claim != events.ClaimOwn {
			refusal := jobOwned("/job_id")
			refusal.Operation, refusal.Trace, refusal.State = s.Operation, s.TraceID(), s.Phase
			return View{}, false, refusal
		}
	}
	// A crash before the append leaves no decision; after it the retry finds the
	// decision by its key.
	return v.appendDecision(ctx, r, s, e)
}

// asksProvider says whether the decision leads to further calls under the
// operation's account, or takes hold of a job there. The others settle what is
// here already, and stay with whoever owns the operation, also when the account
// is no longer theirs to use; so does a cancel.
func asksProvider(kind events.DecisionKind) bool {
	switch kind {
	case events.DecideAdopt, events.DecideRetryCreate, events.DecideRetryCollection, events.DecideExtend, events.DecideResume:
		return true
	case events.DecideAbandon, events.DecideAcceptResult, events.DecideMarkCancelled:
	}
	return false
}

// decision is a request to decide, read.
type decision struct {
	fact          *events.DecisionMade
	why, evidence string        // texts to be stored before the fact
	digest        events.Digest // of what is approved or denied
	unsaid        unsaid
}

// readDecision reads the body.
func readDecision(body []byte, now time.Time) (*decision, error) {
	var d DecideBody
	empty, err := decodeStrict(body, &d)
	if err != nil {
		return nil, err
	}
	var problems []FieldError
	add := func(problem FieldError) { problems = append(problems, problem) }
	value := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	fact := &events.DecisionMade{
		Choice: events.DecisionKind(value(d.Kind)), JobID: value(d.JobID), Which: events.Deadline(value(d.Deadline)),
		AcceptRisk: d.AcceptRisk != nil && *d.AcceptRisk,
	}
	why, err := reason(d.Why)
	if err != nil {
		return nil, err
	}
	evidence := value(d.Evidence)
	if len(evidence) > MaxWhy {
		add(tooLong("/evidence", evidence, MaxWhy))
	}
	kinds := Decisions()
	switch {
	case fact.Choice == "":
		add(Wrong("/kind", FieldRequired, "must be given", nil, kinds...))
	case !slices.Contains(kinds, string(fact.Choice)):
		fact.Choice = ""
		add(Wrong("/kind", FieldNotAllowed, "is not a decision", nil, kinds...))
	}
	// A field that the kind has no use for would be a misunderstanding.
	for _, f := range []struct {
		name  string
		given bool
		need  bool
		kinds []events.DecisionKind
	}{
		{"job_id", fact.JobID != "", true, []events.DecisionKind{events.DecideAdopt}},
		{"deadline", fact.Which != "", true, []events.DecisionKind{events.DecideExtend}},
		{"until", value(d.Until) != "", true, []events.DecisionKind{events.DecideExtend}},
		{"evidence", evidence != "", true, []events.DecisionKind{events.DecideMarkCancelled}},
		{"accept_risk", fact.AcceptRisk, false, []events.DecisionKind{events.DecideRetryCreate}},
		{"digest", value(d.Digest) != "", true, []events.DecisionKind{Approve, Deny}},
	} {
		fits := slices.Contains(f.kinds, fact.Choice)
		switch {
		case fact.Choice == "":
		case f.given && !fits:
			add(Wrong("/"+f.name, FieldNotAllowed, "goes with kind {kind} only", Values{"kind": orOf(f.kinds)}))
		case !f.given && f.need && fits:
			add(Wrong("/"+f.name, FieldRequired, "must be given with kind {kind}", Values{"kind": fact.Choice}))
		}
	}
	var digest events.Digest
	if text := value(d.Digest); text != "" {
		if digest, err = events.ParseDigest(text); err == nil && digest.IsZero() {
			add(Wrong("/digest", FieldNotAllowed, "is all zeros, which is the digest of nothing: give approval.digest of the operation", nil))
		} else if err != nil {
			add(Wrong("/digest", FieldMalformed, "must be {characters} hexadecimal digits, as approval.digest of the operation has them", Values{"characters": 2 * len(digest)}))
		}
	}
	if problem := textProblem(fact.JobID, MaxText); problem != nil {
		add(problem.at("/job_id"))
	}
	names := []string{"approval", "create", "result", "cancel", "collect"}
	if fact.Which != "" && !slices.Contains(names, string(fact.Which)) {
		add(Wrong("/deadline", FieldNotAllowed, "is not a deadline", nil, names...))
	}
	if text := value(d.Until); text != "" {
		wish, problem := parseWish(text)
		switch {
		case problem != nil:
			add(problem.at("/until"))
		default:
			if fact.Until = wish.At; fact.Until.IsZero() {
				fact.Until = now.Add(min(wish.Length, 2*longestExtension))
			}
			if !fact.Until.After(now) {
				add(notLater("/until", now))
			} else if fact.Until.Sub(now) > longestExtension {
				add(Wrong("/until", FieldOutOfBounds, "must be at most {max} from now", Values{"max": span(longestExtension)}))
			}
		}
	}
	if len(problems) > 0 {
		return nil, Refuse(problems...)
	}
	return &decision{fact, why, evidence, digest, empty}, nil
}

func orOf(kinds []events.DecisionKind) string {
	var names []string
	for _, kind := range kinds {
		names = append(names, string(kind))
	}
	return strings.Join(names, " or ")
}

// rehearse asks the fold what it would say, so that a decision that would be
// rejected is refused before it is recorded.
func rehearse(s projections.State, e events.Event, now time.Time) *Refusal {
	fact := *e.Fact.(*events.DecisionMade)
	fact.Claim = events.ClaimOwn // not asked for yet
	e.Fact, e.Previous = &fact, s.Head
	_, record := projections.Fold(s, projections.Entry{Sequence: s.Sequence + 1, Time: now, Event: e})
	if record.Verdict == projections.Applied {
		return nil
	}
	return decisionRefusal(s, record.Reason)
}

func decisionRefusal(s projections.State, why projections.Reason) *Refusal {
	r := &Refusal{Code: CodeDecisionNotAllowed, Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	r = r.Say("the decision does not fit state {state} ({reason})", Values{"reason": why})
	for _, kind := range decisionKinds() {
		if ok, _ := projections.Allowed(s, kind); ok {
			r.Allowed = append(r.Allowed, string(kind))
		}
	}
	switch why { //nolint:exhaustive // every other reason is that it does not fit
	case projections.ReasonTerminal:
		r.Code = CodeAlreadyTerminal
		r = r.Say("the operation ended as {state}", nil)
	case projections.ReasonRiskUnstated:
		r.Code, r.Values, r.Detail = CodeRiskNotAccepted, nil, "nothing proves that the create made no job, and the provider is not known to recognise it if it is sent again"
	}
	return r
}

func digestOf(text string) events.Digest {
	if text == "" {
		return events.Digest{}
	}
	return events.Sum([]byte(text))
}

// decided says whether the caller's key has recorded this very decision. Under
// a key that recorded another one it is refused.
func (v *Service) decided(ctx context.Context, s projections.State, want events.Fact) (bool, error) {
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return false, fmt.Errorf("decide on %s: %w", s.Operation, err)
	}
	who, key := decidedBy(want)
	for _, line := range lines {
		have := line.Entry.Event.Fact
		if by, under := decidedBy(have); by != who || under != key {
			continue
		}
		if !sameDecision(have, want) {
			return false, keyReused(s, "this Idempotency-Key recorded another decision on this operation")
		}
		return true, nil
	}
	return false, nil
}

// ParseVersion reads the version out of an entity tag such as "v7-1f8a0c5be4d2aa03",
// or as one writes it by hand, "v7".
func ParseVersion(tag string) (uint64, error) {
	text, ok := strings.CutPrefix(strings.Trim(strings.TrimSpace(tag), `"`), "v")
	text, sum, summed := strings.Cut(text, "-")
	if !ok || text == "" || len(text) > 19 || strings.Trim(text, "0123456789") != "" || summed && (sum == "" || strings.Trim(sum, "0123456789abcdef") != "") {
		return 0, errors.New("want a version such as \"v7\"")
	}
	var n uint64
	for _, c := range []byte(text) {
		n = n*10 + uint64(c-'0')
	}
	return n, nil
}

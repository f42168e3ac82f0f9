package poller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	inlineLimit  = 1 << 10 // bytes of a provider's body that travel inside the fact
	messageLimit = 500     // bytes of a provider's words kept for people
	maxPages     = 100     // pages of one look-up
	maxFound     = 200     // jobs of one look-up that may be ours
)

// calls is what is needed to talk about one operation with its provider.
type calls struct {
	contract *contract.Contract
	account  Account
	target   workflow.Target
	origin   string // scheme://host:port of the account's base URL
	held     error  // why no call with side effects may be permitted; nil if it may
	// unusable says why nothing can be asked of the provider at all: contract is
	// nil then. Deadlines pass all the same.
	unusable error

	// What Observe is told of: whom the calls go to, and for which step.
	provider string
	step     projections.StepKind

	// turn is the call's part of the account's limits; nil once it is used.
	turn *turn

	// When the step is decided, on both clocks.
	now       time.Time
	monotonic time.Duration
}

// calls gathers the operation's contract, its account as configured now, and
// the identity of the credential behind the reference.
func (p *Poller) calls(ctx context.Context, s projections.State) (*calls, error) {
	c, err := p.cfg.Directory.Contract(ctx, s.Intent.Contract)
	var broken *contract.ParseError
	switch {
	case errors.Is(err, journal.ErrNoPayload), errors.As(err, &broken):
		return p.unusable(s, err), nil
	case err != nil: // the store does not answer; the lease ends and it is tried again
		return nil, fmt.Errorf("contract of %s: %w", s.Operation, err)
	}
	account, err := p.cfg.Directory.Account(s.Intent.Provider, s.Intent.Account)
	if err != nil {
		return p.unusable(s, err), nil
	}
	if account.BaseURL == "" {
		account.BaseURL = c.BaseURL
	}
	base, origin, err := p.bases.read(account.BaseURL)
	if err != nil {
		return p.unusable(s, fmt.Errorf("base URL of provider %s: %w", s.Intent.Provider, err)), nil
	}
	target := workflow.Target{Origin: base, Account: s.Intent.Account, Credential: account.Credential}
	switch {
	case account.Missing != "":
		target.Missing = account.Missing
	case account.Credential != "":
		if target.Identity, err = p.cfg.Call.CredentialIdentity(ctx, placed(account.Credential, c.Credential)); err != nil {
			target.Missing = pathless(account.Credential, err)
		}
	case c.Credential.Place != contract.PlaceNone:
		target.Missing = fmt.Sprintf("no credential is configured for provider %s, account %s", s.Intent.Provider, s.Intent.Account)
	}
	var held error
	if p.cfg.Permits != nil {
		held = p.cfg.Permits()
	}
	made := &calls{contract: c, account: account, target: target, origin: origin, held: held, now: p.cfg.Clock.Now()}
	if p.cfg.Monotonic != nil {
		made.monotonic = p.cfg.Monotonic()
	}
	return made, nil
}

// maxBases bounds how many base URLs are remembered.
const maxBases = 256

// bases remembers how base URLs read, which are few and are asked for at each step.
type bases struct {
	mu    sync.Mutex // guards known
	known map[string]base
}

type base struct{ base, origin string }

// read is httprule.Base.
func (b *bases) read(url string) (string, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if found, ok := b.known[url]; ok {
		return found.base, found.origin, nil
	}
	path, origin, err := httprule.Base(url)
	if err != nil {
		return "", "", err
	}
	if b.known == nil || len(b.known) >= maxBases {
		b.known = map[string]base{}
	}
	b.known[url] = base{path, origin}
	return path, origin, nil
}

// unusable is what is left where the contract or the account cannot be used.
func (p *Poller) unusable(s projections.State, err error) *calls {
	return &calls{
		target:   workflow.Target{Account: s.Intent.Account, Missing: err.Error()},
		unusable: err, now: p.cfg.Clock.Now(),
	}
}

// without turns what would be asked of the provider into a record that it could
// not be: a step that rests, or a look that failed.
func (c *calls) without(s projections.State, d workflow.Decision) workflow.Decision {
	call := events.Call{
		AsOf: s.Sequence, LeftAt: c.now, Class: events.ErrorInternal, Code: string(events.DeferNoContract),
		Message: httprule.Excerpt([]byte(c.unusable.Error()), messageLimit),
	}
	if deferred, ok := d.Fact.(*events.StepDeferred); ok {
		deferred.Reason, deferred.Detail = events.DeferNoContract, call.Message
	}
	if untried, ok := d.Fact.(*events.CleanupAnswered); ok && untried.Outcome == events.CallNotSent {
		untried.Call = call
		untried.LeftAt = time.Time{} // nothing did
	}
	switch effect := d.Effect.(type) {
	case workflow.ReadStatus:
		d.Fact, d.Effect = &events.ObservationFailed{JobID: effect.JobID, Prompt: effect.Prompt, Call: call}, nil
	case workflow.LookUp:
		d.Fact, d.Effect = &events.LookupAnswered{Outcome: events.LookupFailed, Call: call}, nil
	case nil, workflow.SendPrepare, workflow.SendCreate, workflow.SendCancel, workflow.SendInput, workflow.SendCleanup, workflow.CollectResult:
		// Without a credential none of these is decided on.
	}
	return d
}

// inputs gives what a contract's requests are built from.
func (p *Poller) inputs(s projections.State, c *calls) contract.Inputs {
	return contract.Inputs{
		BaseURL: c.account.BaseURL, Token: s.Intent.Token, ClientReference: s.Intent.ClientReference,
		JobID: s.Job.ID, StatusURL: s.Job.StatusURL,
		CallbackURL: p.cfg.Callback(s.Intent.Provider, s.Intent.Account, s.Operation),
	}
}

// inputsWithParams adds the caller's own bytes, for the calls whose request or
// answer is compared with them.
func (p *Poller) inputsWithParams(ctx context.Context, s projections.State, c *calls) (contract.Inputs, error) {
	in := p.inputs(s, c)
	in.Prepared = map[string]string{}
	for _, v := range s.Prepared {
		in.Prepared[v.Name] = v.Value
	}
	if len(s.Creates.List) > 0 {
		in.Since = since(s)
	}
	err := p.steadily(ctx, func() (err error) {
		in.Params, err = p.cfg.Journal.Payload(ctx, s.Intent.Payload)
		return err
	})
	if err != nil {
		return in, fmt.Errorf("read the caller's parameters: %w", err)
	}
	return in, nil
}

// send makes one exchange and says what it proves. The credential goes along
// only where the contract puts one.
func (p *Poller) send(ctx context.Context, s projections.State, c *calls, r contract.Request, timeout time.Duration, guard *events.Attempt) (outbound.Answer, *outbound.Failure) {
	if c.target.Missing != "" && c.target.Credential == "" {
		// A read without the credential it needs would be answered "not
		// authorised", and one for an account that is gone asks in vain.
		return outbound.Answer{}, &outbound.Failure{Class: outbound.CredentialMissing, Sent: outbound.NotSent, Err: errors.New(c.target.Missing)}
	}
	request := outbound.Request{
		Method: r.Method, URL: r.URL, Body: r.Body, Timeout: timeout,
		MaxBody: r.MaxBody, FollowRedirects: r.FollowRedirects,
		Trusted: append([]string{c.origin}, c.contract.Origins...),
	}
	for _, h := range r.Header {
		request.Header = append(request.Header, outbound.Header{Name: h.Name, Value: h.Value})
	}
	// Not part of the stored request, whose bytes are the same for each attempt;
	// it goes no further than the first origin.
	request.Header = append(request.Header, outbound.Header{Name: "Traceparent", Value: traceparent(s.TraceID(), p.cfg.NewID())})
	if c.target.Credential != "" {
		request.Credential = placed(c.target.Credential, r.Credential)
		if guard != nil && request.Credential.In != outbound.Nowhere {
			// The same identity as was written down, even if the credential was
			// rotated between the permit and now.
			request.Credential.Identity = guard.Identity
		}
	}
	if guard != nil {
		request.SideEffect, request.NotAfter = true, guard.NotAfter
		request.Repeatable = repeatable(s.Intent.Promises, c.step)
		if p.cfg.Monotonic != nil {
			// A wall clock that is set back after the decision lets nothing out.
			request.NotAfterMonotonic = c.monotonic + guard.NotAfter.Sub(c.now)
		}
		// One attempt is one request: a redirect is the attempt's answer, also
		// where the contract lets reads of that kind follow one.
		request.FollowRedirects = 0
	}
	turn, err := p.turnFor(ctx, s, c, timeout)
	if err != nil {
		return outbound.Answer{}, &outbound.Failure{Class: outbound.Canceled, Sent: outbound.NotSent, Err: err}
	}
	if turn != nil {
		defer turn.done()
		turn.bound(&request)
	}
	begun := p.cfg.Clock.Now()
	answer, err := p.cfg.Call.Do(ctx, request)
	var failure *outbound.Failure
	if err != nil && !errors.As(err, &failure) {
		failure = &outbound.Failure{Class: outbound.Protocol, Err: err}
	}
	if failure != nil && failure.Class == outbound.CredentialMissing && failure.Err != nil {
		failure.Err = errors.New(pathless(c.target.Credential, failure.Err))
	}
	if p.cfg.Observe != nil {
		e := Exchange{Provider: c.provider, Step: c.step, Outcome: fmt.Sprintf("%dxx", answer.Status/100), Took: p.cfg.Clock.Now().Sub(begun)}
		if failure != nil {
			e.Outcome = string(failure.Class)
		}
		p.cfg.Observe(e)
	}
	return answer, failure
}

// placed is a credential where a contract puts it.
func placed(ref string, place contract.Credential) outbound.Credential {
	switch place.Place {
	case contract.PlaceNone:
		// The credential stays here, but who answers may be the provider under
		// another name and show it.
		return outbound.Credential{Ref: ref, In: outbound.Nowhere}
	case contract.PlaceHeader:
		return outbound.Credential{Ref: ref, In: outbound.InHeader, Name: place.Name, Format: place.Before + "{}" + place.After}
	case contract.PlaceQuery, contract.PlaceBasic:
	}
	return outbound.Credential{Ref: ref, In: outbound.Place(place.Place), Name: place.Name}
}

// pathless is why a credential cannot be used, as callers may read it: where its
// file lies on this machine is not their business, and the doctor tells
// operators.
func pathless(ref string, err error) string {
	var failure *outbound.Failure
	if errors.As(err, &failure) && failure.Err != nil {
		err = failure.Err // what kind of failure it is stands beside it
	}
	path, file := strings.CutPrefix(ref, "file:")
	if !file || path == "" {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), path, "[path]")
}

// repeatable says whether the contract takes the call a second time. Of any
// other, a doubt whether it was sent costs a look-up or a person's time, and it
// shares no connection that may be closing.
func repeatable(p events.Promises, step projections.StepKind) bool {
	switch step {
	case projections.StepPrepare: // only such calls can be prepared by
		return true
	case projections.StepCreate:
		return p.Guarantee == events.Deduplicated
	case projections.StepCancel:
		return p.RepeatCancel
	case projections.StepCollect:
		return p.RepeatResult
	case projections.StepInput: // an answer may come twice, and a second question be taken for the first
		return false
	case projections.StepCleanup:
		return p.RepeatCleanup
	case projections.StepPresume, projections.StepLookup, projections.StepRead, projections.StepDeadline:
	}
	return false
}

// traceparent is the W3C trace context of one call: the operation's trace, and a
// span of the call's own.
func traceparent(trace, call string) string {
	span := sha256.Sum256([]byte(call))
	return "00-" + trace + "-" + hex.EncodeToString(span[:8]) + "-01"
}

// call gives what every fact about this exchange carries. A body over 1 KiB is
// stored where it tells something new; of the others, which come with every
// poll, the digest must do, or a long job would fill the disk.
func (p *Poller) call(ctx context.Context, s projections.State, asOf uint64, a outbound.Answer, reading contract.Failure, news bool) (events.Call, error) {
	p.heard(s, a, reading)
	reading = worded(reading, a)
	call := events.Call{
		AsOf: asOf, LeftAt: a.SentAt, Status: uint64(max(a.Status, 0)),
		Class: reading.Class, Code: reading.Code, Message: message(reading), RetryAt: reading.RetryAt,
		RequestID: requestID(a),
	}
	if len(a.Body) == 0 {
		return call, nil
	}
	// Links may be pre-signed: they are secrets and are cut before storing.
	body := canonical.RedactLinks(a.Body)
	if len(body) <= inlineLimit {
		call.Inline = body
		return call, nil
	}
	if !news {
		call.Body = events.Sum(body)
		return call, nil
	}
	digest, err := p.cfg.Journal.PutPayload(ctx, body)
	if err != nil {
		return call, fmt.Errorf("store the provider's answer: %w", err)
	}
	call.Body = digest
	return call, nil
}

// message is what a fact says in words, messageLimit bytes at most. Where the
// answer could not be read, why comes first and then what there was of it: an
// excerpt does not show that a body was cut. Where it could, a part of the
// contract that failed beside it does not stand before the provider's words. How
// a body was cut always does.
func message(f contract.Failure) string {
	switch detail := f.Detail; {
	case f.Cut != "" && f.Message != "":
		return f.Cut + ": " + httprule.Excerpt([]byte(f.Message), messageLimit-len(f.Cut)-2)
	case f.Cut != "":
		return f.Cut
	case detail == "":
		return f.Message
	case f.Message == "":
		return httprule.Excerpt([]byte(detail), messageLimit)
	case f.Class != events.ErrorUnreadable && f.Class != events.ErrorTooLarge:
		return f.Message
	default:
		detail = httprule.Excerpt([]byte(detail), messageLimit/2) + ": "
		return detail + httprule.Excerpt([]byte(f.Message), messageLimit-len(detail))
	}
}

// worded gives a failure that has no words the few that can be said of its
// answer, so that none is without a cause.
func worded(f contract.Failure, a outbound.Answer) contract.Failure {
	if f.Class == events.ErrorNone || f.Code != "" || f.Message != "" || f.Detail != "" || f.Cut != "" {
		return f
	}
	f.Detail = fmt.Sprintf("answered %d", a.Status)
	if a.Status/100 == 3 {
		f.Detail += ", a redirect that was not followed"
	}
	if len(bytes.TrimSpace(a.Body)) == 0 {
		f.Detail += ", with an empty body"
	} else {
		f.Detail += ", with a body in which the contract finds no code and no message"
	}
	return f
}

// requestID is the provider's own name of the exchange, if it gave one.
func requestID(a outbound.Answer) string {
	kept := httprule.AllowedHeaders(a.Header)
	for _, name := range []string{"x-request-id", "request-id", "x-amzn-requestid", "x-ms-request-id"} {
		if id := kept[name]; id != "" {
			return id
		}
	}
	return ""
}

// failed gives the same for an exchange that gave no usable answer.
func failed(asOf uint64, a outbound.Answer, f *outbound.Failure) events.Call {
	return events.Call{
		AsOf: asOf, LeftAt: a.SentAt, Status: uint64(max(a.Status, 0)), Class: errorClass(f.Class),
		Code: string(f.Class), Message: httprule.Excerpt([]byte(f.Words()), messageLimit),
	}
}

func errorClass(c outbound.Class) events.ErrorClass {
	switch c {
	case outbound.NotAfter:
		return events.ErrorNotAfter
	case outbound.Timeout, outbound.Canceled:
		return events.ErrorTimeout
	case outbound.CredentialMissing, outbound.CredentialChanged:
		return events.ErrorNoCredential
	case outbound.BodyTooLarge, outbound.HeaderTooLarge:
		return events.ErrorTooLarge
	case outbound.RedirectRefused, outbound.DestinationRefused:
		return events.ErrorPolicy
	case outbound.Encoding:
		return events.ErrorUnreadable
	case outbound.InvalidRequest:
		return events.ErrorInternal
	case outbound.DNS, outbound.Dial, outbound.TLS, outbound.Reset, outbound.Protocol, outbound.BodyCut:
		return events.ErrorTransport
	}
	return events.ErrorTransport
}

// unread says that a failed exchange left nothing for a contract to read: no
// answer, a success whose body nobody here can decode, or a redirect that was
// not followed. That one came whole: what failed is what came after it, and the
// failure says why.
func unread(a outbound.Answer, f *outbound.Failure) bool {
	return a.Status == 0 || !a.Truncated || f.Class == outbound.Encoding && a.Status/100 == 2
}

// reading gives an answer to the contract's expressions.
func reading(a outbound.Answer) contract.Answer {
	return contract.Answer{
		Status: a.Status, Header: a.Header, Body: a.Body, URL: a.URL,
		ReceivedAt: a.AnsweredAt, Truncated: a.Truncated, Cut: a.Cut, Unended: a.CloseDelimited,
	}
}

// permit stores a permit and says whether the effect may be attempted: it was
// stored at the expected sequence, the fold opened the attempt, and nobody has
// presumed since that its owner is gone. Newer facts may have come behind it; a
// call that is permitted may leave all the same.
func (p *Poller) permit(ctx context.Context, s projections.State, fact events.Fact, a events.Attempt) (projections.State, bool, error) {
	if p.cfg.Permits != nil {
		if err := p.cfg.Permits(); err != nil {
			return s, false, fmt.Errorf("no call with side effects is permitted: %w", err)
		}
	}
	if p.hold(s).Rests(fact) {
		return s, false, nil // placed since it was decided; deciding again defers it
	}
	s, outcome, err := p.append(ctx, s, fact)
	if err != nil || outcome != journal.Stored {
		return s, false, err
	}
	open := s.Opened(fact.Type())
	return s, open != nil && open.Number == a.Number && open.Owner == a.Owner, nil
}

// presumed says whether this worker's own attempt was given up for dead before
// it was made. Nobody but this worker knows that nothing left.
func presumed(tries projections.Tries, a events.Attempt) bool {
	return slices.ContainsFunc(tries.List, func(t projections.Try) bool {
		return t.Number == a.Number && t.Owner == a.Owner && t.Status == projections.AttemptPresumed
	})
}

func unsent(s projections.State) events.Call {
	return events.Call{AsOf: s.Sequence, Class: events.ErrorNotAfter, Message: "the attempt was given up before it was made"}
}

// prepare makes one call the create needs. A crash before the permit leaves
// nothing. After it, an open attempt, which the next owner presumes to have left
// and makes again: it makes no job, and the contract says that repeating it is
// safe. What it left at the provider the first time stays there, unused. The
// permit that begins the preparations again is no other: before it the old ones
// count, after it none does.
func (p *Poller) prepare(ctx context.Context, s projections.State, c *calls, e workflow.SendPrepare) (projections.State, error) {
	in, err := p.inputsWithParams(ctx, s, c)
	if err != nil {
		return s, err
	}
	if e.Step == 0 {
		in.Prepared = map[string]string{} // what is there counts no more
	}
	step := int(e.Step)
	request, err := c.contract.Prepare(step, in)
	if err != nil {
		return s, fmt.Errorf("build preparation %d: %w", e.Step+1, err)
	}
	e.Attempt.Request = events.Sum(contract.EncodeRequest(request))
	s, applied, err := p.permit(ctx, s, &events.PrepareAttempted{Step: e.Step, Attempt: e.Attempt}, e.Attempt)
	fact := &events.PrepareAnswered{Attempt: e.Attempt.Number, Step: e.Step}
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(s.Prepares, e.Attempt):
		fact.Outcome, fact.Call = events.PrepareNotSent, unsent(s)
		return p.record(ctx, s, fact)
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, e.Attempt.Timeout, &e.Attempt)
	switch {
	case failure != nil && failure.Sent == outbound.NotSent:
		fact.Outcome, fact.Call = events.PrepareNotSent, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	case failure != nil:
		fact.Outcome, fact.Call = events.PrepareAmbiguous, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := c.contract.ReadPrepare(step, reading(answer), in)
		fact.Outcome, fact.Values = r.Outcome, r.Values
		if fact.Call, err = p.call(ctx, s, asOf, answer, r.Failure, true); err != nil {
			return s, err
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// create sends the create.
//
// A crash before the permit is stored leaves at most a payload that nothing
// refers to. After it, an open attempt, which the next owner presumes to have
// left once it can no longer be running. After the answer, the same, although
// a job may exist: that is what look-ups and tokens are for. After the claim,
// INDEX names this operation as owner, and claiming again finds its own entry.
func (p *Poller) create(ctx context.Context, s projections.State, c *calls, e workflow.SendCreate) (projections.State, error) {
	// Read before the permit: after it, a store that does not answer would cost
	// the answer.
	in, err := p.inputsWithParams(ctx, s, c)
	if err != nil {
		return s, err
	}
	request, digest, err := p.createRequest(ctx, c, in, e.Stored)
	if err != nil {
		return s, err
	}
	e.Attempt.Request = digest
	s, applied, err := p.permit(ctx, s, &events.CreateAttempted{Attempt: e.Attempt}, e.Attempt)
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(s.Creates, e.Attempt):
		return p.record(ctx, s, &events.CreateAnswered{Attempt: e.Attempt.Number, Outcome: events.CreateNotSent, Call: unsent(s)})
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, e.Attempt.Timeout, &e.Attempt)
	fact := &events.CreateAnswered{Attempt: e.Attempt.Number}
	if failure != nil && failure.Sent == outbound.NotSent {
		fact.Outcome, fact.Call = events.CreateNotSent, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	if failure != nil {
		fact.Outcome, fact.Call = events.CreateAmbiguous, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := c.contract.ReadCreate(reading(answer), in)
		fact.Outcome, fact.JobID, fact.StatusURL = r.Outcome, r.JobID, r.StatusURL
		fact.Remote, fact.EchoDiffer = r.Remote, r.EchoDiffer
		if fact.Call, err = p.call(ctx, s, asOf, answer, r.Failure, true); err != nil {
			return s, err
		}
		if fact.JobID != "" {
			if fact.Claim, err = p.claim(ctx, s, fact.JobID); err != nil {
				return s, err
			}
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// createRequest gives the exact bytes of the create: those of the first
// attempt if there was one, whatever the contract is by now.
func (p *Poller) createRequest(ctx context.Context, c *calls, in contract.Inputs, stored events.Digest) (contract.Request, events.Digest, error) {
	if !stored.IsZero() {
		var body []byte
		err := p.steadily(ctx, func() (err error) {
			body, err = p.cfg.Journal.Payload(ctx, stored)
			return err
		})
		if err != nil {
			return contract.Request{}, stored, fmt.Errorf("read the first attempt's request: %w", err)
		}
		request, err := contract.DecodeRequest(body)
		if err != nil {
			return contract.Request{}, stored, fmt.Errorf("first attempt's request: %w", err)
		}
		return request, stored, nil
	}
	request, err := c.contract.Create(in)
	if err != nil {
		return contract.Request{}, stored, fmt.Errorf("build the create: %w", err)
	}
	digest, err := p.cfg.Journal.PutPayload(ctx, contract.EncodeRequest(request))
	if err != nil {
		return contract.Request{}, stored, fmt.Errorf("store the create's request: %w", err)
	}
	return request, digest, nil
}

// whileStopping runs f to its end even if ctx ends meanwhile, for a while.
func (p *Poller) whileStopping(ctx context.Context, f func(context.Context) (projections.State, error)) (projections.State, error) {
	ctx, stop := p.outlive(ctx)
	defer stop()
	return f(ctx)
}

// claim writes who the job belongs to before any fact relies on it. A crash
// between claim and fact leaves an entry that names this operation; the next
// claim finds it and succeeds.
func (p *Poller) claim(ctx context.Context, s projections.State, job string) (string, error) {
	owner, err := p.cfg.Journal.Claim(ctx, s.Intent.Provider, s.Intent.Account, job, s.Operation)
	if err != nil {
		return "", fmt.Errorf("claim job of %s: %w", s.Operation, err)
	}
	return owner, nil
}

// cancel asks the provider to cancel. A crash after the permit leaves an open
// attempt; it is presumed later, and a status read says what became of the job.
func (p *Poller) cancel(ctx context.Context, s projections.State, c *calls, e workflow.SendCancel) (projections.State, error) {
	in := p.inputs(s, c)
	request, err := c.contract.Cancel(in)
	if err != nil {
		return s, fmt.Errorf("build the cancel: %w", err)
	}
	e.Attempt.Request = events.Sum(contract.EncodeRequest(request))
	s, applied, err := p.permit(ctx, s, &events.CancelAttempted{Attempt: e.Attempt}, e.Attempt)
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(s.Cancels, e.Attempt):
		return p.record(ctx, s, &events.CancelAnswered{Attempt: e.Attempt.Number, Outcome: events.CancelNotSent, Call: unsent(s)})
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, e.Attempt.Timeout, &e.Attempt)
	fact := &events.CancelAnswered{Attempt: e.Attempt.Number}
	switch {
	case failure != nil && failure.Sent == outbound.NotSent:
		fact.Outcome, fact.Call = events.CancelNotSent, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	case failure != nil:
		fact.Outcome, fact.Call = events.CancelAmbiguous, failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := c.contract.ReadCancel(reading(answer), in)
		fact.Outcome, fact.Remote = r.Outcome, r.Remote
		if fact.Call, err = p.call(ctx, s, asOf, answer, r.Failure, true); err != nil {
			return s, err
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// read reads the job's status. A crash at any point leaves the read due.
func (p *Poller) read(ctx context.Context, s projections.State, c *calls, e workflow.ReadStatus) (projections.State, error) {
	answer, r, failure, err := p.status(ctx, s, c, e.JobID, e.Timeout)
	if err != nil {
		return s, err
	}
	asOf := s.Sequence
	if failure != nil {
		return p.record(ctx, s, &events.ObservationFailed{JobID: e.JobID, Prompt: e.Prompt, Call: failed(asOf, answer, failure)})
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		call, err := p.call(ctx, s, asOf, answer, r.Failure, r.Class == events.ErrorNone && r.Remote != s.Job.Remote)
		if err != nil {
			return s, err
		}
		if r.Class != events.ErrorNone {
			s, _, err := p.append(ctx, s, &events.ObservationFailed{JobID: e.JobID, Prompt: e.Prompt, Call: call})
			return s, err
		}
		fact := &events.JobObserved{
			JobID: e.JobID, Remote: r.Remote, State: r.State, ProviderTime: r.ProviderTime,
			RetrievedAt: answer.AnsweredAt, Progress: r.Progress, NoResult: r.NoResult, Prompt: e.Prompt, Call: call,
			InputURL: r.InputURL, InputText: r.InputText,
		}
		if r.JobID != "" {
			fact.JobID = r.JobID
		}
		if e.Claim {
			if fact.Claim, err = p.claim(ctx, s, fact.JobID); err != nil {
				return s, err
			}
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// status makes one status read.
func (p *Poller) status(ctx context.Context, s projections.State, c *calls, job string, timeout time.Duration) (outbound.Answer, contract.StatusReading, *outbound.Failure, error) {
	in := p.inputs(s, c)
	if job != s.Job.ID {
		in.JobID, in.StatusURL = job, ""
	}
	request, err := c.contract.Status(in)
	if err != nil {
		return outbound.Answer{}, contract.StatusReading{}, nil, fmt.Errorf("build the status read: %w", err)
	}
	if c.target.Missing != "" {
		return outbound.Answer{SentAt: p.cfg.Clock.Now()}, contract.StatusReading{}, &outbound.Failure{
			Class: outbound.CredentialMissing, Sent: outbound.NotSent, Err: errors.New(c.target.Missing),
		}, nil
	}
	answer, failure := p.send(ctx, s, c, request, timeout, nil)
	if answer.SentAt.IsZero() {
		answer.SentAt = p.cfg.Clock.Now() // it failed before it left; it was begun now
	}
	if failure != nil && unread(answer, failure) {
		return answer, contract.StatusReading{}, failure, nil
	}
	return answer, c.contract.ReadStatus(reading(answer), in), nil, nil
}

// lookUp asks the provider for our job over all pages. A crash at any point
// leaves the look-up due.
func (p *Poller) lookUp(ctx context.Context, s projections.State, c *calls, e workflow.LookUp) (projections.State, error) {
	asOf := s.Sequence
	fact := &events.LookupAnswered{Outcome: events.LookupAbsent}
	in, err := p.inputsWithParams(ctx, s, c)
	if err != nil {
		return s, err
	}
	var answer outbound.Answer
	var failure *outbound.Failure
	var left time.Time
	var last contract.LookupReading
	for page := 1; ; page++ {
		request, err := c.contract.Lookup(in)
		if err != nil {
			return s, fmt.Errorf("build the look-up: %w", err)
		}
		answer, failure = p.send(ctx, s, c, request, e.Timeout, nil)
		if answer.SentAt.IsZero() {
			answer.SentAt = p.cfg.Clock.Now()
		}
		if left.IsZero() {
			left = answer.SentAt // the first page decides how old the whole answer is
		}
		fact.Pages = uint64(page)
		if failure != nil {
			brokenOff(fact)
			break
		}
		last = c.contract.ReadLookup(reading(answer), in)
		if last.Outcome == events.LookupFailed {
			brokenOff(fact)
			break
		}
		fact.Jobs = p.ours(s, append(fact.Jobs, last.Jobs...)) // a job can move between pages
		// In a list that is newest first nothing behind a job older than our first
		// attempt is ours.
		if (last.Next == "" || last.Older(since(s))) && len(fact.Jobs) <= maxFound {
			break
		}
		if page == maxPages || len(fact.Jobs) > maxFound {
			brokenOff(fact)
			last.Failure = contract.Failure{Class: events.ErrorTooLarge, Code: "too_many_pages", Message: fmt.Sprintf("more than %d pages or %d jobs", maxPages, maxFound)}
			break
		}
		in.Page = last.Next
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		if fact.Outcome != events.LookupFailed {
			if err := p.claimFound(ctx, s, fact); err != nil {
				return s, err
			}
			fact.Conclusive = fact.Outcome == events.LookupAbsent && s.Intent.Promises.LookupConclusive
		}
		if failure != nil {
			fact.Call = failed(asOf, answer, failure)
		} else if fact.Call, err = p.call(ctx, s, asOf, answer, last.Failure, fact.Outcome == events.LookupFound); err != nil {
			return s, err
		}
		fact.LeftAt = left
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// brokenOff is what a look-up says that did not see every page. A job that
// carries our reference is ours whatever the pages behind it hold, so it is
// kept, with the class of what went wrong beside it. The candidates are not:
// their list would be taken for the whole. That a second job of ours may be on a
// page nobody saw is why the fold owes a whole look-up after this one: it is seen
// then, and row 33 says what becomes of the two.
func brokenOff(fact *events.LookupAnswered) {
	fact.Jobs = slices.DeleteFunc(fact.Jobs, func(j events.FoundJob) bool { return !j.Exact })
	if len(fact.Jobs) == 0 || len(fact.Jobs) > maxFound {
		fact.Outcome, fact.Jobs = events.LookupFailed, nil
	}
}

// ours leaves out jobs that are older than our first attempt; those that carry
// our reference are ours at any age.
func (p *Poller) ours(s projections.State, jobs []events.FoundJob) []events.FoundJob {
	var list []events.FoundJob
	from := since(s)
	for _, j := range jobs {
		if !j.Exact && !j.CreatedAt.IsZero() && j.CreatedAt.Before(from) {
			continue
		}
		if !slices.ContainsFunc(list, func(o events.FoundJob) bool { return o.ID == j.ID }) {
			list = append(list, j)
		}
		if len(list) > maxFound {
			break // too many to say anything about
		}
	}
	return list
}

// since is the time before which the provider has made no job of ours, by its
// own clock; zero if there was no attempt.
func since(s projections.State) time.Time {
	if len(s.Creates.List) == 0 {
		return time.Time{}
	}
	return s.Creates.List[0].OpenedAt.Add(-s.Intent.Policy.ClockDifference - providerClockMargin)
}

// providerClockMargin is how far a provider's clock may stand from ours when
// the age of a job is compared.
const providerClockMargin = 2 * time.Minute

// claimFound claims the one job that carries our reference, and leaves out
// candidates that belong to others.
func (p *Poller) claimFound(ctx context.Context, s projections.State, fact *events.LookupAnswered) error {
	kept := fact.Jobs[:0]
	for _, j := range fact.Jobs {
		if j.Exact {
			claim, err := p.claim(ctx, s, j.ID)
			if err != nil {
				return err
			}
			j.Claim = claim
			kept = append(kept, j)
			continue
		}
		owner, owned, err := p.cfg.Journal.Owner(ctx, s.Intent.Provider, s.Intent.Account, j.ID)
		if err != nil {
			return fmt.Errorf("owner of a found job: %w", err)
		}
		if !owned || owner == s.Operation {
			kept = append(kept, j)
		}
	}
	fact.Jobs = kept
	if len(kept) > 0 {
		fact.Outcome = events.LookupFound
	}
	return nil
}

// collect fetches the result, validates it, stores it, and says so. A crash
// before the fact leaves the result to be read again where that is safe; where
// it is not, the open attempt is presumed and the result is unavailable.
func (p *Poller) collect(ctx context.Context, s projections.State, c *calls, e workflow.CollectResult) (projections.State, error) {
	// Before anything is read: a result that can be read once is not to be lost over it.
	expect, err := p.expectation(ctx, s, c.contract)
	if err != nil {
		return s, err
	}
	number := uint64(0)
	if e.Attempt != nil {
		var applied bool
		number = e.Attempt.Number
		s, applied, err = p.permit(ctx, s, &events.ResultAttempted{Attempt: *e.Attempt}, *e.Attempt)
		switch {
		case err != nil:
			return s, err
		case !applied && presumed(s.Results, *e.Attempt):
			return p.record(ctx, s, &events.ResultFailed{Attempt: number, Outcome: events.ResultNotSent, Call: unsent(s)})
		case !applied:
			return s, nil
		}
	}
	asOf := s.Sequence
	answer, r, failure, err := p.fetch(ctx, s, c, e)
	defer answer.Release() // the result is stored by then, or given up
	switch {
	case err != nil:
		return s, err
	case failure != nil && failure.Sent == outbound.NotSent:
		return p.record(ctx, s, &events.ResultFailed{Attempt: number, Outcome: events.ResultNotSent, Call: failed(asOf, answer, failure)})
	case failure != nil:
		return p.record(ctx, s, &events.ResultFailed{Attempt: number, Outcome: events.ResultAmbiguous, Call: failed(asOf, answer, failure)})
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		result := r.Body
		r.Failure = worded(r.Failure, answer)
		answer.Body = nil // the result itself, or not one: its words are in the reading
		call, err := p.call(ctx, s, asOf, answer, r.Failure, true)
		if err != nil {
			return s, err
		}
		if r.Class != events.ErrorNone || r.NotReady {
			s, _, err := p.append(ctx, s, &events.ResultFailed{Attempt: number, Outcome: events.ResultError, Call: call})
			return s, err
		}
		r.Checks = append(r.Checks, expect(contract.Expected{Result: result, MediaType: r.MediaType, Class: s.Job.Class})...)
		digest, err := p.cfg.Journal.PutPayload(ctx, result)
		if err != nil {
			return s, fmt.Errorf("store the result: %w", err)
		}
		s, _, err := p.append(ctx, s, &events.ResultCollected{
			Attempt: number, Payload: digest, Size: uint64(len(result)), MediaType: r.MediaType, Checks: r.Checks, Call: call,
		})
		return s, err
	})
}

// expectation gives what makes the check of the caller's expectation, which is none where
// nothing is expected. What is expected was typed at submit; where this program cannot
// read it, or the parameters that it looks at are gone, the check fails and says so.
func (p *Poller) expectation(ctx context.Context, s projections.State, c *contract.Contract) (func(contract.Expected) []events.Check, error) {
	failing := func(detail string) func(contract.Expected) []events.Check {
		return func(contract.Expected) []events.Check {
			return []events.Check{{Name: contract.ExpectCheck, Detail: detail}}
		}
	}
	switch {
	case s.Intent.Expect == "" || s.Intent.ExpectForm == events.ExpectWords:
		return func(contract.Expected) []events.Check { return nil }, nil
	case s.Intent.ExpectForm != events.ExpectRule:
		return failing("this program does not know the form of the expectation"), nil
	}
	rule, problems := c.Expectation(s.Intent.Expect)
	if len(problems) > 0 {
		return failing("this program cannot read the expectation: " + problems[0].Message), nil
	}
	var params []byte
	if rule.NeedsParams() {
		err := p.steadily(ctx, func() (err error) {
			params, err = p.cfg.Journal.Payload(ctx, s.Intent.Payload)
			return err
		})
		switch {
		case errors.Is(err, journal.ErrNoPayload):
			return failing("the parameters that the expectation looks at are not stored any more"), nil
		case err != nil:
			return nil, fmt.Errorf("read the parameters that the result is held against: %w", err)
		}
	}
	return func(in contract.Expected) []events.Check {
		in.Params = params
		return []events.Check{rule.Check(in)}
	}, nil
}

// fetch makes the contract's result call and reads the files it leads to, at
// once, since their links expire and are never stored.
func (p *Poller) fetch(ctx context.Context, s projections.State, c *calls, e workflow.CollectResult) (outbound.Answer, contract.ResultReading, *outbound.Failure, error) {
	in := p.inputs(s, c)
	request, err := c.contract.Result(in)
	if err != nil {
		return outbound.Answer{}, contract.ResultReading{}, nil, fmt.Errorf("build the result call: %w", err)
	}
	answer, failure := p.send(ctx, s, c, request, e.Timeout, e.Attempt)
	if failure != nil && (unread(answer, failure) || failure.Sent == outbound.NotSent) {
		return answer, contract.ResultReading{}, failure, nil
	}
	r := c.contract.ReadResult(reading(answer), in)
	if r.Class != events.ErrorNone || len(r.Links) == 0 {
		return answer, r, nil, nil
	}
	var files []file
	in.LastBody = answer.Body // files are checked against the answer that named them
	for _, link := range r.Links {
		// Who waits for room while it holds some could wait for itself.
		answer.Release()
		request, err := c.contract.ResultLink(link.URL, in)
		if err != nil {
			r.Failure = contract.Failure{Class: events.ErrorUnreadable, Detail: err.Error()}
			return answer, r, nil, nil
		}
		var failure *outbound.Failure
		if answer, failure = p.send(ctx, s, c, request, e.Timeout, nil); failure != nil && unread(answer, failure) {
			failure.Sent = outbound.SentUnknown // the call before it has left
			return answer, contract.ResultReading{}, failure, nil
		}
		in.Link = link.Name
		part := c.contract.ReadLink(reading(answer), in)
		if part.Class != events.ErrorNone || part.NotReady || len(r.Links) == 1 {
			return answer, part, nil, nil // the only one is the result, and stored as such
		}
		storing, stop := p.outlive(ctx)
		digest, err := p.cfg.Journal.PutPayload(storing, part.Body)
		stop()
		if err != nil {
			return answer, part, nil, fmt.Errorf("store a file of the result: %w", err)
		}
		files = append(files, file{link.Name, digest, int64(len(part.Body)), part})
		files[len(files)-1].reading.Body, answer.Body = nil, nil
	}
	return answer, manifest(files), nil, nil
}

// file is one file of a result of several, and stored.
type file struct {
	name    string // the contract's; "" if it has none
	digest  events.Digest
	size    int64
	reading contract.ResultReading // without the body
}

// manifest gives the list of files that is the result.
func manifest(files []file) contract.ResultReading {
	out := contract.ResultReading{MediaType: contract.FilesType}
	var list []contract.File
	for i, f := range files {
		entry := contract.File{Name: f.name, Digest: f.digest, Size: f.size, MediaType: f.reading.MediaType}
		list = append(list, entry)
		for _, check := range f.reading.Checks {
			check.Name = fmt.Sprintf("%s[%s]", check.Name, entry.Label(i))
			out.Checks = append(out.Checks, check)
		}
	}
	out.Body = contract.WriteFiles(list)
	return out
}

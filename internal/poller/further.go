package poller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// input passes on what was answered to a job that waits. The answer was stored
// before the fact that names it. A crash before the permit leaves the step due.
// After it, an open attempt: it is presumed later, a status read says whether the job
// waits still, and it is sent again only where the contract says that this is safe.
func (p *Poller) input(ctx context.Context, s projections.State, c *calls, e workflow.SendInput) (projections.State, error) {
	in, err := p.inputsWithParams(ctx, s, c)
	if err != nil {
		return s, err
	}
	err = p.steadily(ctx, func() (err error) {
		in.Input, err = p.cfg.Journal.Payload(ctx, e.Payload)
		return err
	})
	if err != nil && !errors.Is(err, journal.ErrNoPayload) {
		return s, fmt.Errorf("read the answer: %w", err)
	}
	in.InputToken = inputToken(s, e.Number)
	var request contract.Request
	if err == nil {
		request, err = c.contract.Input(in)
	}
	if err != nil {
		return p.record(ctx, s, &events.InputAnswered{Outcome: events.CallNotSent, Call: unbuilt(s, err)})
	}
	e.Attempt.Request = events.Sum(contract.EncodeRequest(request))
	s, applied, err := p.permit(ctx, s, &events.InputAttempted{Attempt: e.Attempt}, e.Attempt)
	fact := &events.InputAnswered{Attempt: e.Attempt.Number}
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(s.Inputs, e.Attempt):
		fact.Outcome, fact.Call = events.CallNotSent, unsent(s)
		return p.record(ctx, s, fact)
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, e.Attempt.Timeout, &e.Attempt)
	if failure != nil {
		fact.Outcome, fact.Call = unanswered(failure), failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := c.contract.ReadInput(reading(answer), in)
		fact.Outcome = r.Outcome
		if fact.Call, err = p.call(ctx, s, asOf, answer, r.Failure, true); err != nil {
			return s, err
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// unbuilt is what a fact carries about a call of which no request can be made. The
// fold counts it as one that could not be sent, and gives up in the end.
func unbuilt(s projections.State, err error) events.Call {
	return events.Call{AsOf: s.Sequence, Class: events.ErrorInternal, Code: "no_request", Message: httprule.Excerpt([]byte(err.Error()), messageLimit)}
}

// inputToken names one answer of one operation at the provider, the same each time it
// is sent. It is made of the create's token and tells nothing of it.
func inputToken(s projections.State, number uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "input\n%s\n%s\n%s\n%d", s.Operation, s.Intent.Fingerprint, s.Intent.Token, number))
	return hex.EncodeToString(sum[:16])
}

// cleanup removes what a job left. A crash before the permit leaves the step due.
// After it, an open attempt, which is presumed later; it is sent again only where the
// contract says that repeating it is safe, and otherwise somebody has to ask again.
func (p *Poller) cleanup(ctx context.Context, s projections.State, c *calls, e workflow.SendCleanup) (projections.State, error) {
	in, err := p.inputsWithParams(ctx, s, c)
	if err != nil {
		return s, err
	}
	if e.JobID != s.Job.ID {
		in.JobID, in.StatusURL = e.JobID, ""
	}
	request, err := c.contract.Cleanup(in)
	if err != nil {
		return p.record(ctx, s, &events.CleanupAnswered{Outcome: events.CallNotSent, Call: unbuilt(s, err)})
	}
	e.Attempt.Request = events.Sum(contract.EncodeRequest(request))
	s, applied, err := p.permit(ctx, s, &events.CleanupAttempted{Attempt: e.Attempt}, e.Attempt)
	fact := &events.CleanupAnswered{Attempt: e.Attempt.Number}
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(s.Cleanups, e.Attempt):
		fact.Outcome, fact.Call = events.CallNotSent, unsent(s)
		return p.record(ctx, s, fact)
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, e.Attempt.Timeout, &e.Attempt)
	if failure != nil {
		fact.Outcome, fact.Call = unanswered(failure), failed(asOf, answer, failure)
		return p.record(ctx, s, fact)
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := c.contract.ReadCleanup(reading(answer), in)
		fact.Outcome = r.Outcome
		if fact.Call, err = p.call(ctx, s, asOf, answer, r.Failure, true); err != nil {
			return s, err
		}
		s, _, err := p.append(ctx, s, fact)
		return s, err
	})
}

// unanswered is how a call ended that gave no usable answer.
func unanswered(f *outbound.Failure) events.CallOutcome {
	if f.Sent == outbound.NotSent {
		return events.CallNotSent
	}
	return events.CallAmbiguous
}

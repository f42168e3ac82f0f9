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
	return p.further(ctx, s, c, request, further{
		attempt: e.Attempt,
		permit:  func(a events.Attempt) events.Fact { return &events.InputAttempted{Attempt: a} },
		tries:   func(s projections.State) projections.Tries { return s.Inputs },
		read:    func(a contract.Answer) contract.FurtherReading { return c.contract.ReadInput(a, in) },
		fact: func(number uint64, o events.CallOutcome, call events.Call) events.Fact {
			return &events.InputAnswered{Attempt: number, Outcome: o, Call: call}
		},
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
	return p.further(ctx, s, c, request, further{
		attempt: e.Attempt,
		permit:  func(a events.Attempt) events.Fact { return &events.CleanupAttempted{Attempt: a} },
		tries:   func(s projections.State) projections.Tries { return s.Cleanups },
		read:    func(a contract.Answer) contract.FurtherReading { return c.contract.ReadCleanup(a, in) },
		fact: func(number uint64, o events.CallOutcome, call events.Call) events.Fact {
			return &events.CleanupAnswered{Attempt: number, Outcome: o, Call: call}
		},
	})
}

// further is what differs among the calls that somebody asked for.
type further struct {
	attempt events.Attempt
	permit  func(events.Attempt) events.Fact
	tries   func(projections.State) projections.Tries
	read    func(contract.Answer) contract.FurtherReading
	fact    func(attempt uint64, o events.CallOutcome, c events.Call) events.Fact // closes the attempt
}

// further makes one call: the permit, then the call, then what was seen of it.
func (p *Poller) further(ctx context.Context, s projections.State, c *calls, request contract.Request, w further) (projections.State, error) {
	number := w.attempt.Number
	w.attempt.Request = events.Sum(contract.EncodeRequest(request))
	s, applied, err := p.permit(ctx, s, w.permit(w.attempt), w.attempt)
	switch {
	case err != nil:
		return s, err
	case !applied && presumed(w.tries(s), w.attempt):
		return p.record(ctx, s, w.fact(number, events.CallNotSent, unsent(s)))
	case !applied:
		return s, nil
	}
	asOf := s.Sequence
	answer, failure := p.send(ctx, s, c, request, w.attempt.Timeout, &w.attempt)
	if failure != nil {
		return p.record(ctx, s, w.fact(number, unanswered(failure), failed(asOf, answer, failure)))
	}
	return p.whileStopping(ctx, func(ctx context.Context) (projections.State, error) {
		r := w.read(reading(answer))
		call, err := p.call(ctx, s, asOf, answer, r.Failure, true)
		if err != nil {
			return s, err
		}
		s, _, err := p.append(ctx, s, w.fact(number, r.Outcome, call))
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

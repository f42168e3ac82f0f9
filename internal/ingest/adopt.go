package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// An operation that adopts follows a job that was created elsewhere. It never creates
// one: nothing but reads, a cancel and the collection of the result is sent, and whether
// there is such a job the first status read says.

// checkAdoption refuses a job that the contract cannot read by its id, and one that
// another operation has. It writes nothing.
func (v *Service) checkAdoption(ctx context.Context, c *contract.Contract, s *Submission, in contract.Inputs, id string) error {
	_, err := c.Status(contract.Inputs{BaseURL: in.BaseURL, JobID: s.Adopt, Token: in.Token, ClientReference: in.ClientReference, CallbackURL: in.CallbackURL})
	if err != nil {
		return invalid("/adopt", FieldNotAllowed, "cannot be: the contract of provider {provider} has no way to read this job by its id: {what}",
			Values{"provider": s.Provider, "what": clean(err.Error())})
	}
	owner, since, err := v.cfg.Journal.Holder(ctx, s.Provider, s.Account, s.Adopt)
	if err == nil && owner != "" && owner != id {
		var lapsed bool
		if lapsed, err = v.lapsed(ctx)(owner, since); err == nil && !lapsed {
			return jobOwned("/adopt/job_id")
		}
	}
	if err != nil {
		return fmt.Errorf("submit %s: %w", id, err)
	}
	return nil
}

// claimLapses is for how long a claim counts whose operation is not recorded: longer than
// any request may take, which gives its intent up after 20 s.
const claimLapses = time.Minute

// lapsed says whether another operation's claim of a job counts no more: there is no such
// operation, and the request that claimed the job for it can record it no more. See
// [journal.Journal.ClaimAhead] for what becomes of one that is recorded after all.
func (v *Service) lapsed(ctx context.Context) func(owner string, since time.Time) (bool, error) {
	return func(owner string, since time.Time) (bool, error) {
		if v.cfg.Clock.Now().Sub(since) <= claimLapses+v.cfg.ClockDifference {
			return false, nil
		}
		_, err := v.cfg.Journal.Find(ctx, owner)
		if errors.Is(err, journal.ErrNoOperation) {
			return true, nil
		}
		return false, err
	}
}

// jobTurn names the turn at a job that an operation adopts, "" if it claims none. It sorts
// before every operation.
func jobTurn(intent *events.IntentRecorded) string {
	if intent.Adopt == "" || intent.NeedsApproval {
		return ""
	}
	return "job " + intent.Provider + " " + intent.Account + " " + intent.Adopt
}

// claimAdopted claims the job, before the fact that relies on it; nil if none is to be
// claimed. A crash in between leaves it claimed by an operation that there is not: the same
// request, by its key, finds its own claim, and another one takes the job once the claim has
// lapsed. A fact of another operation that names the job wins over such a claim.
func (v *Service) claimAdopted(ctx context.Context, intent *events.IntentRecorded, id string) (*journal.Provisional, error) {
	if jobTurn(intent) == "" {
		return nil, nil
	}
	claim, owner, err := v.cfg.Journal.ClaimAhead(ctx, intent.Provider, intent.Account, intent.Adopt, id, v.lapsed(ctx))
	switch {
	case err != nil:
		return nil, fmt.Errorf("submit %s: %w", id, err)
	case owner != "":
		return nil, jobOwned("/adopt/job_id")
	}
	return claim, nil
}

// withdraw gives jobs up that were claimed for operations which this request does not
// record: none of their intents was sent, or none can be stored any more. An operation that
// is recorded keeps its job, whoever recorded it. What cannot be withdrawn lapses.
func (v *Service) withdraw(ctx context.Context, claims ...*journal.Provisional) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer stop()
	for _, c := range claims {
		if c == nil {
			continue
		}
		_, err := v.cfg.Journal.Find(ctx, c.Operation())
		if errors.Is(err, journal.ErrNoOperation) {
			err = v.cfg.Journal.Withdraw(ctx, c)
		}
		if err != nil {
			v.cfg.Log.WarnContext(ctx, "a job stays claimed for a minute, although its operation was refused", "operation", c.Operation(), "error", err)
		}
	}
}

const withdrawTime = 5 * time.Second

func jobOwned(field string) *Refusal {
	return &Refusal{
		Code: CodeJobOwned, Detail: "another operation has this job",
		Errors: []FieldError{{Field: field, Code: FieldNotAllowed, Message: "belongs to another operation"}},
	}
}

// twiceAdopted refuses items of a batch that adopt one job.
func twiceAdopted(items []item, fresh []int, refused *refusals) {
	first := map[[3]string]int{}
	for _, i := range fresh {
		s := &items[i].submission
		job := [3]string{s.Provider, s.Account, s.Adopt}
		if s.Adopt == "" {
			continue
		}
		if other, twice := first[job]; twice {
			refused.add(i, invalid("/adopt/job_id", FieldDuplicate, "is that of item {first}, too", Values{"first": other}))
			continue
		}
		first[job] = i
	}
}

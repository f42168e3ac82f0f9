package ingest

import (
	"context"
	"fmt"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
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
	owner, owned, err := v.cfg.Journal.Owner(ctx, s.Provider, s.Account, s.Adopt)
	switch {
	case err != nil:
		return fmt.Errorf("submit %s: %w", id, err)
	case owned && owner != id:
		return jobOwned("/adopt/job_id")
	}
	return nil
}

// claimAdopted claims the job, before the fact that relies on it. A crash in between
// leaves it claimed by an operation that there is not: the same request, by its key,
// finds its own claim, and another one is refused the job. A fact of another operation
// that names the job wins over such a claim.
func (v *Service) claimAdopted(ctx context.Context, intent *events.IntentRecorded, id string) error {
	if intent.Adopt == "" || intent.NeedsApproval { // which claims it
		return nil
	}
	claim, err := v.cfg.Journal.Claim(ctx, intent.Provider, intent.Account, intent.Adopt, id)
	switch {
	case err != nil:
		return fmt.Errorf("submit %s: %w", id, err)
	case claim != events.ClaimOwn:
		return jobOwned("/adopt/job_id")
	}
	return nil
}

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

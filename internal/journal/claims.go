package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/counterfoil/counterfoil/events"
)

func jobSubject(provider, account, job string) string {
	return "job." + provider + "." + account + "." + token(job)
}

// Claim makes the operation the owner of a provider's job, unless it has one,
// and returns [events.ClaimOwn] or the id of the operation that owns it. It
// comes before the fact that relies on it, which carries the answer.
func (j *Journal) Claim(ctx context.Context, provider, account, job, operation string) (string, error) {
	if err := errors.Join(checkName("provider", provider), checkName("account", account), checkOperation(operation)); err != nil {
		return "", err
	}
	subject := jobSubject(provider, account, job)
	// A crash after this write leaves the claim without its fact. Whoever learns
	// of the job next for the same operation finds its own claim; for another
	// one the job counts as taken until the owner's fact or a decision says
	// otherwise.
	_, other, err := j.place(ctx, Index, subject, 0,
		func() (uint64, error) {
			return j.store.Publish(ctx, Index, Outgoing{Subject: subject, Data: []byte(operation), Guard: &Guard{}})
		},
		func(m Message) bool { return string(m.Data) == operation })
	switch {
	case err != nil:
		return "", fmt.Errorf("claim job for %s: %w", operation, err)
	case other == nil:
		return events.ClaimOwn, nil
	}
	return ownerIn(*other)
}

// Owner gives the operation that owns a job; false means none.
func (j *Journal) Owner(ctx context.Context, provider, account, job string) (string, bool, error) {
	if err := errors.Join(checkName("provider", provider), checkName("account", account)); err != nil {
		return "", false, err
	}
	m, err := j.store.Last(ctx, Index, jobSubject(provider, account, job))
	if errors.Is(err, ErrNoMessage) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up owner of a job: %w", err)
	}
	owner, err := ownerIn(m)
	return owner, err == nil, err
}

func ownerIn(m Message) (string, error) {
	owner := string(m.Data)
	if err := checkOperation(owner); err != nil {
		return "", fmt.Errorf("read claim %s: %w", m.Subject, err)
	}
	return owner, nil
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Whoever adopts a job claims it before there is an operation: the claim is provisional
// until the intent is recorded, whose fact is what counts from then on (DESIGN §12). It may
// be withdrawn by who made it, and it lapses: an operation that there is still not after so
// long will not come by that request any more, and another may take the job.
//
// A claim that is withdrawn or taken cannot be held against a claimant who does not know it:
// every change expects the very entry that was looked at, and a claimant who comes again
// writes its claim anew, so that it is not withdrawn or taken by what was decided on the one
// before. What is left is who was stopped between its claim and its intent for longer than
// that, or whose intent lands that late, and who withdraws what the same request in another
// process relies on. Then two
// operations can come to hold one job by facts, as where INDEX was lost, and the rule for
// that holds: the one whose fact comes first owns it, and the later is contested.

// Provisional is a claim of a job for an operation that there is not yet.
type Provisional struct {
	subject, operation string
	sequence           uint64 // of the entry
}

// Operation is the one that it is for.
func (p *Provisional) Operation() string { return p.operation }

// claimNonce tells the claims of one operation apart, which its requests at the same time
// make. Whoever reads a claim takes no notice of it.
const claimNonce = "Counterfoil-Claim"

// withdrawnLife is how long an entry that is withdrawn stays. Nobody waits for its end; who
// looks at it just before, and expects it just behind, has to find out that it is gone.
const withdrawnLife = time.Minute

// withdrawn says whether an entry of a job is one that is withdrawn.
func withdrawn(m Message) bool { return len(m.Header[ExpiresHeader]) > 0 }

// ClaimAhead claims a job for an operation that is about to be recorded. lapsed is asked
// whether the claim of another operation counts no more, with when it was made, by the
// server's clock. It gives the claim, or the operation that has the job.
func (j *Journal) ClaimAhead(ctx context.Context, provider, account, job, operation string, lapsed func(owner string, since time.Time) (bool, error)) (*Provisional, string, error) {
	if err := errors.Join(checkName("provider", provider), checkName("account", account), checkOperation(operation)); err != nil {
		return nil, "", err
	}
	subject, nonce := jobSubject(provider, account, job), j.newID()
	defer j.board.unclaim(subject)
	for {
		expected := uint64(0)
		m, err := j.store.Last(ctx, Index, subject)
		switch {
		case errors.Is(err, ErrNoMessage):
		case err != nil:
			return nil, "", fmt.Errorf("claim job for %s: %w", operation, err)
		default:
			expected = m.Sequence
			owner, err := ownerIn(m)
			if err != nil {
				return nil, "", err
			}
			if owner == operation || withdrawn(m) {
				break
			}
			switch free, err := lapsed(owner, m.Time); {
			case err != nil:
				return nil, "", fmt.Errorf("claim job for %s: %w", operation, err)
			case !free:
				return nil, owner, nil
			}
		}
		// What the board says of the entry that was there counts no more.
		j.board.unclaim(subject)
		// A crash after this write leaves the claim, which the same request finds and
		// another one takes once it has lapsed.
		sequence, other, err := j.place(ctx, Index, subject, expected,
			func() (uint64, error) {
				return j.store.Publish(ctx, Index, Outgoing{
					Subject: subject, Header: map[string][]string{claimNonce: {nonce}}, Data: []byte(operation), Guard: &Guard{Sequence: expected},
				})
			},
			func(m Message) bool { return len(m.Header[claimNonce]) == 1 && m.Header[claimNonce][0] == nonce })
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("claim job for %s: %w", operation, err)
		case other == nil:
			return &Provisional{subject, operation, sequence}, "", nil
		}
		// Somebody else came first; see what they made of it.
	}
}

// Withdraw gives a job up that was claimed for an operation that will not be recorded by
// this request, if the claim is still the one that was made. A crash before it leaves the
// claim, which lapses.
func (j *Journal) Withdraw(ctx context.Context, p *Provisional) error {
	j.board.unclaim(p.subject)
	defer j.board.unclaim(p.subject)
	// An entry that expires says that it is gone, and then is gone itself. A version that
	// does not know that sees the job claimed for as long.
	_, _, err := j.place(ctx, Index, p.subject, p.sequence,
		func() (uint64, error) {
			return j.store.Publish(ctx, Index, Outgoing{
				Subject: p.subject, Header: map[string][]string{ExpiresHeader: {Expires(withdrawnLife)}}, Data: []byte(p.operation), Guard: &Guard{Sequence: p.sequence},
			})
		}, withdrawn)
	if err != nil {
		return fmt.Errorf("withdraw the claim of a job for %s: %w", p.operation, err)
	}
	return nil
}

// Holder gives who has a job and since when, by the server's clock; "" for nobody.
func (j *Journal) Holder(ctx context.Context, provider, account, job string) (owner string, since time.Time, err error) {
	if err := errors.Join(checkName("provider", provider), checkName("account", account)); err != nil {
		return "", time.Time{}, err
	}
	m, err := j.store.Last(ctx, Index, jobSubject(provider, account, job))
	switch {
	case errors.Is(err, ErrNoMessage), err == nil && withdrawn(m):
		return "", time.Time{}, nil
	case err != nil:
		return "", time.Time{}, fmt.Errorf("look up owner of a job: %w", err)
	}
	owner, err = ownerIn(m)
	return owner, m.Time, err
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	begun := j.board.claiming()
	// A crash after this write leaves the claim without its fact. Whoever learns
	// of the job next for the same operation finds its own claim; for another
	// one the job counts as taken until the owner's fact or a decision says
	// otherwise.
	for expected := uint64(0); ; {
		_, other, err := j.place(ctx, Index, subject, expected,
			func() (uint64, error) {
				return j.store.Publish(ctx, Index, Outgoing{Subject: subject, Data: []byte(operation), Guard: &Guard{Sequence: expected}})
			},
			func(m Message) bool { return string(m.Data) == operation && !withdrawn(m) })
		switch {
		case err != nil:
			return "", fmt.Errorf("claim job for %s: %w", operation, err)
		case other == nil:
			j.board.claim(subject, operation, begun)
			return events.ClaimOwn, nil
		case withdrawn(*other):
			expected = other.Sequence
			continue
		}
		return ownerIn(*other)
	}
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
	if withdrawn(m) {
		return "", false, nil
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

// OwnJobs gives the jobs that a fact says belong to its operation. The claims
// in the facts are the truth that INDEX is derived from.
func OwnJobs(fact events.Fact) []string {
	var list []string
	own := func(job, claim string) {
		if job != "" && claim == events.ClaimOwn && !slices.Contains(list, job) {
			list = append(list, job)
		}
	}
	switch f := fact.(type) {
	case *events.IntentRecorded:
		if !f.NeedsApproval { // the approval claims it
			own(f.Adopt, events.ClaimOwn)
		}
	case *events.ApprovalGranted:
		own(f.JobID, f.Claim)
	case *events.CreateAnswered:
		own(f.JobID, f.Claim)
	case *events.LookupAnswered:
		for _, job := range f.Jobs {
			own(job.ID, job.Claim)
		}
	case *events.JobObserved:
		own(f.JobID, f.Claim)
	case *events.DecisionMade:
		own(f.JobID, f.Claim)
	case *events.CleanupRequested:
		own(f.JobID, f.Claim)
	default: // no other fact claims a job
	}
	return list
}

// Reclaim writes the entry of a job again that a fact of the operation calls
// its own, where INDEX lost it. Of two operations that both hold the job by a
// fact, the one whose fact comes first in the ledger owns it, whichever asks
// first. It gives the owner, and the later of two, "" if there is none: that
// one is contested.
func (j *Journal) Reclaim(ctx context.Context, provider, account, job, operation string) (owner, later string, err error) {
	if j.board.claimed(jobSubject(provider, account, job), operation) {
		return operation, "", nil
	}
	for {
		has, taken, err := j.Owner(ctx, provider, account, job)
		if err != nil || taken && has == operation {
			return has, "", err
		}
		ours, err := j.claimedAt(ctx, operation, job)
		if err != nil || ours == 0 {
			return has, "", err // nothing in the ledger says that it is ours
		}
		if !taken {
			claim, err := j.Claim(ctx, provider, account, job, operation)
			if err != nil {
				return "", "", err
			}
			if claim == events.ClaimOwn {
				return operation, "", nil
			}
			has = claim
		}
		theirs, err := j.claimedAt(ctx, has, job)
		if err != nil {
			return "", "", err
		}
		if theirs > 0 && theirs < ours {
			return has, operation, nil
		}
		// The entry is a claim without a fact, or that of a later one, made while
		// ours was lost. A crash after this write leaves the later one without its
		// contest; its own sweep finds the entry to be ours and makes it.
		replaced, err := j.replaceClaim(ctx, jobSubject(provider, account, job), has, operation)
		if err != nil {
			return "", "", fmt.Errorf("claim job for %s again: %w", operation, err)
		}
		if !replaced {
			continue // somebody else settles the same; see what they made of it
		}
		if theirs == 0 {
			has = "" // its fact, if it comes, is contested when it is projected
		}
		return operation, has, nil
	}
}

// Contest appends to the later of two operations that the job is the earlier
// one's, unless it was told so before. Whoever finds it appends the same fact.
func (j *Journal) Contest(ctx context.Context, later, job, owner, source string) error {
	found := errors.New("found")
	err := j.each(ctx, Ledger, factSubject(later), func(m Message) error {
		if f, ok := entry(m).Event.Fact.(*events.JobContested); ok && f.JobID == job {
			return found
		}
		return nil
	})
	if errors.Is(err, found) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a contest of %s: %w", later, err)
	}
	s, err := j.Current(ctx, later)
	if err != nil {
		return fmt.Errorf("read %s: %w", later, err)
	}
	_, _, err = j.Append(ctx, s, events.Event{
		ID: "contest-" + token(later, job, owner), Source: source, Fact: &events.JobContested{JobID: job, Owner: owner},
	})
	return err
}

// replaceClaim puts one owner in the place of another. False means that the
// entry is not that owner's any more.
func (j *Journal) replaceClaim(ctx context.Context, subject, from, to string) (bool, error) {
	m, err := j.store.Last(ctx, Index, subject)
	if errors.Is(err, ErrNoMessage) {
		return false, nil
	}
	if err != nil || string(m.Data) != from {
		return false, err
	}
	j.board.unclaim(subject)
	defer j.board.unclaim(subject) // the owner may have claimed it once more meanwhile
	_, other, err := j.place(ctx, Index, subject, m.Sequence,
		func() (uint64, error) {
			return j.store.Publish(ctx, Index, Outgoing{Subject: subject, Data: []byte(to), Guard: &Guard{Sequence: m.Sequence}})
		},
		func(stored Message) bool { return string(stored.Data) == to })
	return err == nil && other == nil, err
}

// claimedAt is the ledger sequence of the operation's first fact that calls the
// job its own; 0 means none.
func (j *Journal) claimedAt(ctx context.Context, operation, job string) (at uint64, err error) {
	found := errors.New("found")
	err = j.each(ctx, Ledger, factSubject(operation), func(m Message) error {
		if e := entry(m); e.Unreadable == nil && slices.Contains(OwnJobs(e.Event.Fact), job) {
			at = m.Sequence
			return found
		}
		return nil
	})
	if err != nil && !errors.Is(err, found) {
		return 0, fmt.Errorf("look for the claim of a job by %s: %w", operation, err)
	}
	return at, nil
}

// owners gives the operations that own a job of that name, one for each account
// that has one.
func (j *Journal) owners(ctx context.Context, provider, job string, accounts []string) (list []string, err error) {
	err = j.each(ctx, Index, jobSubject(provider, "*", job), func(m Message) error {
		parts := strings.Split(m.Subject, ".")
		if len(parts) != 4 || !slices.Contains(accounts, parts[2]) {
			return nil
		}
		if withdrawn(m) {
			return nil
		}
		owner, err := ownerIn(m)
		if err == nil {
			list = append(list, owner)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up owners of a job: %w", err)
	}
	return list, nil
}

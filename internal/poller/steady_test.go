package poller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// away is a store that answers no read until a time.
type away struct {
	journal.Store
	until time.Time
}

func (a *away) answers() error {
	if time.Now().Before(a.until) {
		return journal.ErrUnread
	}
	return nil
}

func (a *away) Last(ctx context.Context, s journal.Stream, subject string) (journal.Message, error) {
	if err := a.answers(); err != nil {
		return journal.Message{}, err
	}
	return a.Store.Last(ctx, s, subject)
}

func (a *away) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	if err := a.answers(); err != nil {
		return journal.Message{}, err
	}
	return a.Store.Next(ctx, s, subject, from)
}

// An operation whose lease was taken while the servers choose a leader goes on
// as soon as there is one, and its lease is not let go to be waited for.
func TestLeaseOutlivesAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(says(201, accepts), says(200, `{"state": "running"}`))
		began, due := time.Now(), h.due()
		h.store.Store = &away{h.store.Store, began.Add(9 * time.Second)}
		if err := h.poller.Attend(t.Context(), due); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); len(h.caller.sent) == 0 || took < 9*time.Second || took > 10*time.Second {
			t.Errorf("%d calls, after %s", len(h.caller.sent), took)
		}
		// It does not wait for ever.
		began, due = time.Now(), h.due()
		h.store.Store = &away{h.store.Store, began.Add(time.Hour)}
		if err := h.poller.Attend(t.Context(), due); !errors.Is(err, journal.ErrUnread) {
			t.Error(err)
		}
		if took := time.Since(began); took < steadyTime || took > steadyTime+time.Second {
			t.Errorf("it gave up after %s", took)
		}
	})
}

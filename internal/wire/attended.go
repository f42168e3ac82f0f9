package wire

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
)

const (
	// providersEvery is how often a process asks for providers that others have
	// been configured with since.
	providersEvery = 10 * time.Second
	// newcomers is how many calls at once it makes to one of those, beside the
	// others, until it is started again.
	newcomers = 4
)

// attended are the providers whose wake-ups one poller takes: not only those
// that are configured, since an operation is followed to its end by the contract
// it was recorded with.
type attended struct {
	s       *Service
	journal *journal.Journal
	poller  *poller.Poller
	joined  map[string]bool // belongs to one goroutine at a time
}

// join joins the wake-ups of every provider that is known by now and was not
// joined before.
func (a *attended) join(ctx context.Context) ([]poller.Fetch, error) {
	providers, err := a.journal.Providers(ctx)
	if err != nil {
		return nil, err
	}
	var fetches []poller.Fetch
	for _, provider := range providers {
		if a.joined[provider] {
			continue
		}
		leases, err := a.journal.Leases(ctx, provider)
		if err != nil {
			return fetches, fmt.Errorf("join the wake-ups of %s: %w", provider, err)
		}
		a.joined[provider] = true
		fetch := poller.FromJournal(leases)
		if a.s.timers != nil {
			fetch = poller.WithFallback(a.s.timers.Fetch(provider), fetch, a.s.cfg.Clock.Now)
		}
		fetches = append(fetches, a.s.timed(fetch))
	}
	return fetches, nil
}

// begin joins those that are known at the start. A store elsewhere may be lost
// meanwhile, and is waited for; one of this process that fails here is broken.
func (a *attended) begin(ctx context.Context) (first []poller.Fetch, err error) {
	for {
		more, err := a.join(ctx)
		first = append(first, more...)
		if err == nil || a.s.cfg.Alone {
			return first, err
		}
		if ctx.Err() == nil {
			a.s.cfg.Log.WarnContext(ctx, "wake-ups cannot be joined yet", "error", err)
		}
		if a.s.cfg.Clock.Sleep(ctx, time.Second) != nil {
			return first, nil // ctx ended, which is for the caller to see
		}
	}
}

// follow attends to providers that another process remembers meanwhile, until
// ctx ends.
func (a *attended) follow(ctx context.Context) error {
	var group errgroup.Group
	for a.s.cfg.Clock.Sleep(ctx, providersEvery) == nil {
		fresh, err := a.join(ctx)
		if err != nil && ctx.Err() == nil {
			a.s.cfg.Log.WarnContext(ctx, "new providers could not be looked for", "error", err)
		}
		if len(fresh) > 0 {
			a.s.cfg.Log.InfoContext(ctx, "attending to providers that another process was configured with", "count", len(fresh))
			group.Go(func() error { return a.poller.Run(ctx, fresh, newcomers*len(fresh)) })
		}
	}
	return group.Wait()
}

package poller

import (
	"context"
	"time"
)

// outlive gives a context that ends so long after ctx has ended, and not before.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		limit := time.AfterFunc(d, cancel)
		context.AfterFunc(out, func() { limit.Stop() })
	})
	return out, func() {
		forget()
		cancel()
	}
}

// next asks for one lease. While stopping in order, a request that is under way
// is waited for: broken off, what it was about to bring would be nobody's until
// its lease ends.
func (p *Poller) next(ctx context.Context, fetch Fetch, wait time.Duration) ([]Lease, error) {
	if p.cfg.Drain == 0 {
		return fetch(ctx, 1, wait)
	}
	leases, err := fetch(context.WithoutCancel(ctx), 1, wait)
	if ctx.Err() == nil {
		return leases, err
	}
	for _, lease := range leases {
		p.release(ctx, lease)
	}
	return nil, err
}

// release gives a lease back to be handed out at once. If it fails the lease
// ends by itself.
func (p *Poller) release(ctx context.Context, lease Lease) {
	ctx, stop := outlive(ctx, p.cfg.Record)
	defer stop()
	if err := lease.Release(ctx); err != nil {
		p.cfg.Log.DebugContext(ctx, "lease not given back", "operation", lease.Operation(), "error", err)
	}
}

package poller

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// crew serves leases with goroutines that stay: a fresh one would grow its stack
// anew for each lease. There are as many as were ever busy at once.
type crew struct {
	group *errgroup.Group
	work  chan task
}

// task is leases that were handed out together, and the place of who serves them.
type task struct {
	leases []Lease
	post   *post
}

func newCrew(group *errgroup.Group) *crew { return &crew{group: group, work: make(chan task)} }

// give hands a task to one that has nothing to do, or to another that it takes on.
func (c *crew) give(ctx context.Context, p *Poller, t task) {
	select {
	case c.work <- t:
	default:
		c.group.Go(func() error {
			for {
				p.do(ctx, t)
				select {
				case t = <-c.work:
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
}

// do serves the leases of a task.
func (p *Poller) do(ctx context.Context, t task) {
	defer t.post.leave()
	for _, lease := range t.leases {
		p.serve(atPost(ctx, t.post), lease)
	}
}

// beats extend the leases that are worked on, all of them from one goroutine,
// which is there while there are some.
type beats struct {
	clock  Clock
	every  time.Duration // between two of one lease, at most
	failed func(ctx context.Context, lease Lease, err error)

	mu   sync.Mutex // guards what follows
	held map[*held]struct{}
	stop func() // ends the goroutine and waits for that; nil: there is none
}

// held is one lease that is worked on.
type held struct {
	lease Lease
	since time.Time // when it began, or was extended last
	stop  func()    // ends the extension that is under way and waits for that; nil: there is none
}

// hold begins to extend a lease. The context is for the extensions and has no end.
func (b *beats) hold(ctx context.Context, lease Lease) *held {
	h := &held{lease: lease, since: b.clock.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		b.held = map[*held]struct{}{}
	}
	b.held[h] = struct{}{}
	if b.stop == nil {
		b.stop = apart(ctx, b.beat)
	}
	return h
}

// leave ends that. No extension is under way when it returns.
func (b *beats) leave(h *held) {
	b.mu.Lock()
	delete(b.held, h)
	var all func()
	if len(b.held) == 0 {
		all, b.stop = b.stop, nil
	}
	one := h.stop
	b.mu.Unlock()
	if one != nil {
		one()
	}
	if all != nil {
		all()
	}
}

// beat looks at all leases twice in the time in which each is to be extended.
func (b *beats) beat(ctx context.Context) {
	for b.clock.Sleep(ctx, b.every/2) == nil {
		now := b.clock.Now()
		b.mu.Lock()
		for h := range b.held {
			if h.stop == nil && now.Sub(h.since) > b.every/2 { // at the next look it would be too late
				h.since = now
				h.stop = apart(context.WithoutCancel(ctx), func(ctx context.Context) { b.extend(ctx, h) })
			}
		}
		b.mu.Unlock()
	}
}

func (b *beats) extend(ctx context.Context, h *held) {
	if err := h.lease.Extend(ctx); err != nil && ctx.Err() == nil {
		b.failed(ctx, h.lease, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h.stop = nil
}

// apart runs f in a goroutine of its own until it is told to stop, which waits for
// its end.
func apart(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

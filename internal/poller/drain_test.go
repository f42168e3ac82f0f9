package poller

import (
	"context"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// A worker that is told to stop finishes the step that is under way, begins no
// other and gives the lease back, so that another goes on at once.
func TestDrain(t *testing.T) {
	drained := changes{config: func(c *Config) { c.Drain = 20 * time.Second }}
	attend := func(t *testing.T, h *house, takes time.Duration) (*lease, time.Duration) {
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
			stop()
			select {
			case <-time.After(takes):
				return answered(r, 201, accepts), nil
			case <-ctx.Done():
				return outbound.Answer{}, &outbound.Failure{Class: outbound.Canceled, Err: ctx.Err()}
			}
		})
		l, began := h.due(), time.Now()
		if err := h.poller.Attend(ctx, l); err == nil {
			t.Error("attended to the end")
		}
		return l, time.Since(began)
	}
	bubble(t, "a call that ends in time", func(t *testing.T) {
		h := newHouse(t, drained)
		l, took := attend(t, h, 15*time.Second)
		same(t, h.take(), "create.attempted", "POST /v1/jobs", "claim", "create.answered")
		if s := h.state(); s.Job.ID != "j-1" || took != 15*time.Second {
			t.Errorf("job %q after %s", s.Job.ID, took)
		}
		if l.released.Load() != 1 || l.acked.Load() != 0 {
			t.Errorf("released %d times, acked %d times", l.released.Load(), l.acked.Load())
		}
	})
	bubble(t, "a call that takes longer", func(t *testing.T) {
		h := newHouse(t, drained)
		l, took := attend(t, h, time.Minute)
		same(t, h.take(), "create.attempted", "POST /v1/jobs", "create.answered")
		if s := h.state(); s.Job.ID != "" || took != 20*time.Second || l.released.Load() != 1 {
			t.Errorf("job %q after %s, released %d times", s.Job.ID, took, l.released.Load())
		}
	})
	bubble(t, "a lease that comes while stopping", func(t *testing.T) {
		h := newHouse(t, drained)
		l := h.due()
		ctx, stop := context.WithCancel(t.Context())
		fetch := func(ctx context.Context, _ int, wait time.Duration) ([]Lease, error) {
			stop()
			time.Sleep(wait / 2)
			return []Lease{l}, ctx.Err() // it is not broken off
		}
		if err := h.poller.Run(ctx, []Fetch{fetch}, 1); err != nil {
			t.Error(err)
		}
		same(t, h.take())
		if l.released.Load() != 1 {
			t.Errorf("released %d times", l.released.Load())
		}
	})
}

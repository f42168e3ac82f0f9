package outbound

import (
	"context"
	"errors"
	"testing"
	"time"
)

// handClock is set by hand.
type handClock struct {
	now  time.Time
	mono time.Duration
}

func (c *handClock) Now() time.Time           { return c.now }
func (c *handClock) Monotonic() time.Duration { return c.mono }

func (c *handClock) pass(d time.Duration) { c.now, c.mono = c.now.Add(d), c.mono+d }

// The steps between which a process can be stopped, one by one.
func TestGuard(t *testing.T) {
	const notAfter, timeout = 10 * time.Second, 60 * time.Second
	for _, c := range []struct {
		name  string
		steps func(g *guard, pass func(time.Duration)) error // gives the last admit
		want  error
		left  bool
	}{
		{"handshake is not the request", func(g *guard, pass func(time.Duration)) error {
			pass(2 * timeout)
			return g.admit()
		}, nil, false},
		{"first byte in time", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			pass(notAfter)
			return g.admit()
		}, nil, true},
		{"first byte late", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			pass(notAfter + 1)
			return g.admit()
		}, errNotAfter, false},
		{"second record of the first flush late", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			if err := g.admit(); err != nil {
				return err
			}
			pass(notAfter + 1)
			return g.admit()
		}, errNotAfter, true},
		{"body after the first flush", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			if err := g.admit(); err != nil {
				return err
			}
			g.flushed = true
			pass(notAfter + 1)
			return g.admit()
		}, nil, true},
		{"body after the timeout", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			if err := g.admit(); err != nil {
				return err
			}
			g.flushed = true
			pass(timeout + 1)
			return g.admit()
		}, errTimeout, true},
		{"first byte after the report", func(g *guard, _ func(time.Duration)) error {
			g.speaks = true
			if left, _ := g.finish(); left {
				return errors.New("nothing can have left")
			}
			return g.admit()
		}, errFinished, false},
		{"a refusal is for good", func(g *guard, pass func(time.Duration)) error {
			g.speaks = true
			pass(notAfter + 1)
			if err := g.admit(); !errors.Is(err, errNotAfter) {
				return err
			}
			pass(-notAfter) // the clock is set back
			return g.admit()
		}, errNotAfter, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &handClock{now: time.Unix(1000, 0), mono: time.Hour}
			g := newGuard(clock, Request{NotAfter: clock.now.Add(notAfter)}, timeout, context.Background().Err)
			if err := c.steps(g, clock.pass); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if left, _ := g.finish(); left != c.left {
				t.Errorf("left = %v", left)
			}
		})
	}
}

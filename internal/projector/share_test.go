package projector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// chairs are Seats in memory: who asked first has the seat.
type chairs struct {
	mu    sync.Mutex
	lines map[int][]chan *chair // who waits, by partition; guarded by mu
	taken map[int]*chair        // guarded by mu
}

func newChairs() *chairs { return &chairs{lines: map[int][]chan *chair{}, taken: map[int]*chair{}} }

func (c *chairs) TakeSeat(ctx context.Context, partition int) (Seat, error) {
	c.mu.Lock()
	mine := make(chan *chair, 1)
	c.lines[partition] = append(c.lines[partition], mine)
	c.callLocked(partition)
	c.mu.Unlock()
	select {
	case s := <-mine:
		return s, nil
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lines[partition] = slices.DeleteFunc(c.lines[partition], func(one chan *chair) bool { return one == mine })
		select {
		case s := <-mine: // called in the same moment
			delete(c.taken, s.partition)
			c.callLocked(partition)
		default:
		}
		return nil, ctx.Err()
	}
}

func (c *chairs) callLocked(partition int) {
	if line := c.lines[partition]; c.taken[partition] == nil && len(line) > 0 {
		s := &chair{c: c, partition: partition, lost: make(chan struct{})}
		c.taken[partition], c.lines[partition] = s, line[1:]
		line[0] <- s
	}
}

// take takes a seat from whoever has it, as a server does that forgets pins.
func (c *chairs) take(partition int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.taken[partition].lost)
}

type chair struct {
	c         *chairs
	partition int
	lost      chan struct{}
}

func (s *chair) Lost() <-chan struct{} { return s.lost }

func (s *chair) Others(context.Context) (int, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return len(s.c.lines[s.partition]), nil
}

func (s *chair) Leave(context.Context) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	delete(s.c.taken, s.partition)
	s.c.callLocked(s.partition)
	return nil
}

// faltering fails once.
type faltering struct {
	Seats
	failed atomic.Bool
}

func (f *faltering) TakeSeat(ctx context.Context, partition int) (Seat, error) {
	if !f.failed.Swap(true) {
		return nil, errors.New("no leader")
	}
	return f.Seats.TakeSeat(ctx, partition)
}

// holds counts the partitions each observer is told of.
type holds struct {
	unobserved
	mu   sync.Mutex
	mine map[string]bool
}

func (h *holds) Counted(partition string, _ map[Standing]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mine[partition] = true
}

func (h *holds) Left(partition string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.mine, partition)
}

func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mine)
}

func TestShare(t *testing.T) {
	var all []int
	for p := range journal.Partitions {
		all = append(all, p)
	}
	type one struct {
		*holds
		ready atomic.Bool
		stop  func() error
	}
	begin := func(h *hall, seats Seats) *one {
		o := &one{holds: &holds{mine: map[string]bool{}}}
		p := h.projector(func(c *Config) { c.Observe = o.holds })
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.RunShared(ctx, all, seats, func() { o.ready.Store(true) }) }()
		o.stop = func() error {
			cancel()
			return <-done
		}
		return o
	}
	counts := func(t *testing.T, what string, want int, list ...*one) {
		t.Helper()
		synctest.Wait()
		sum := 0
		for _, o := range list {
			if n := o.count(); n > want {
				t.Errorf("%s: one holds %d partitions, its share is %d", what, n, want)
			}
			sum += o.count()
		}
		if sum != journal.Partitions {
			t.Errorf("%s: %d partitions are held", what, sum)
		}
	}
	bubble(t, "each has its share, and a newcomer gets one", func(t *testing.T) {
		h, seats := newHall(t), newChairs()
		a := begin(h, seats)
		time.Sleep(time.Second)
		counts(t, "alone", journal.Partitions, a)
		if !a.ready.Load() {
			t.Error("not ready")
		}
		b := begin(h, seats)
		time.Sleep(time.Second)
		if b.ready.Load() {
			t.Error("ready before anybody can know that others hold the rest")
		}
		time.Sleep(time.Minute)
		counts(t, "two", 16, a, b)
		if !b.ready.Load() {
			t.Error("the second is not ready")
		}
		c := begin(h, seats)
		time.Sleep(time.Minute)
		counts(t, "three", 11, a, b, c)
		// In order: the others have all at once.
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		counts(t, "one has stopped", 32, a, c)
		time.Sleep(time.Minute)
		counts(t, "two again", 16, a, c)
		for _, o := range []*one{a, c} {
			if err := o.stop(); err != nil {
				t.Error(err)
			}
		}
		if len(seats.taken) != 0 {
			t.Errorf("%d seats were not left", len(seats.taken))
		}
	})
	bubble(t, "a seat that is lost is stood for again", func(t *testing.T) {
		h, seats := newHall(t), newChairs()
		a := begin(h, seats)
		time.Sleep(time.Second)
		seats.take(journal.Partition("op_0"))
		time.Sleep(time.Second)
		counts(t, "after the loss", journal.Partitions, a)
		h.create("op_0")
		time.Sleep(time.Second)
		if _, err := h.journal.Recorded(t.Context(), "op_0"); err != nil {
			t.Error(err)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "one that could not stand for a moment lags no longer than that", func(t *testing.T) {
		h, seats := newHall(t), newChairs()
		other, err := seats.TakeSeat(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		seen := newTally()
		p := h.projector(func(c *Config) { c.Observe = seen })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.RunShared(ctx, []int{3}, &faltering{Seats: seats}, func() {}) }()
		time.Sleep(time.Second / 2)
		name := journal.PartitionName(3)
		seen.mu.Lock()
		if seen.stalled[name] != 1 || len(seen.left) != 0 {
			t.Errorf("stalled %d times, left %v", seen.stalled[name], seen.left)
		}
		seen.mu.Unlock()
		time.Sleep(1*time.Second + journal.SeatTime + time.Second) // it stands, and another has the seat
		seen.mu.Lock()
		if !slices.Contains(seen.left, name) {
			t.Error("it still counts as a lag although another has the seat")
		}
		seen.mu.Unlock()
		cancel()
		if err := errors.Join(<-done, other.Leave(t.Context())); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "who is fenced gives way and stands again", func(t *testing.T) {
		h, seats := newHall(t), newChairs()
		a := begin(h, seats)
		time.Sleep(time.Second)
		h.create("op_0")
		time.Sleep(time.Second)
		if _, err := h.journal.TakeOver(t.Context(), journal.Partition("op_0")); err != nil {
			t.Fatal(err)
		}
		h.put("op_0", &events.CancelRequested{Who: "team-a"}) // by whose record it is noticed
		time.Sleep(time.Minute)
		counts(t, "after it was fenced", journal.Partitions, a)
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
}

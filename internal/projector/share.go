package projector

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Seats elects one process for each partition. An election saves effort and
// fences nothing: what a projector writes is fenced by its tenure.
type Seats interface {
	// TakeSeat waits until this process is elected for the partition, or ctx ends.
	TakeSeat(ctx context.Context, partition int) (Seat, error)
}

// Seat is one election, until it is lost or left.
type Seat interface {
	// Lost is closed when the seat may be another's.
	Lost() <-chan struct{}
	// Others says how many other processes wait for the seat.
	Others(ctx context.Context) (int, error)
	// Leave gives the seat up to whoever waits for it. It is called once the
	// partition is not worked on any more.
	Leave(ctx context.Context) error
}

const (
	// shareEvery is how often a process compares what it holds with its share, and
	// moved how many partitions it gives up at once at most: each has to be swept
	// by who takes it.
	shareEvery = 2 * time.Second
	moved      = 4
	// abstain is how long it does not stand for a partition that it gave up.
	abstain = journal.SeatTime
	// leaveTime bounds giving up a seat when the process stops.
	leaveTime = 2 * time.Second
)

// RunShared projects those of the partitions for which this process is elected,
// and gives up what is more than its share while others wait, until ctx ends,
// which is not an error. It then ends the tenures in order and gives up all, so
// that others go on at once. ready is called once each partition has caught up
// here or was another's for longer than a seat lasts.
func (p *Projector) RunShared(ctx context.Context, partitions []int, seats Seats, ready func()) error {
	s := &sharing{p: p, seats: seats, held: map[int]*holding{}}
	defer p.rounds.reading.Wait()
	settled := make(chan struct{}, len(partitions))
	group, ctx := errgroup.WithContext(ctx)
	for _, partition := range partitions {
		group.Go(func() error { return s.stand(ctx, partition, sync.OnceFunc(func() { settled <- struct{}{} })) })
	}
	group.Go(func() error { return s.balance(ctx, len(partitions)) })
	group.Go(func() error {
		for range partitions {
			select {
			case <-settled:
			case <-ctx.Done():
				return nil
			}
		}
		ready()
		return nil
	})
	return group.Wait()
}

// sharing is what one process holds of the partitions.
type sharing struct {
	p     *Projector
	seats Seats

	mu   sync.Mutex
	held map[int]*holding // by partition; guarded by mu
}

// holding is one seat at work.
type holding struct {
	seat   Seat
	giveUp context.CancelFunc // ends the work on it
	given  bool               // because others wait; guarded by sharing.mu
}

// stand takes one partition again and again, and works on it while the seat
// lasts.
func (s *sharing) stand(ctx context.Context, partition int, settled func()) error {
	name := journal.PartitionName(partition)
	for failed := false; ctx.Err() == nil; {
		// Another's, until it is ours. One that waits is settled after a while.
		waited := s.after(ctx, journal.SeatTime+time.Second, func() {
			s.p.cfg.Observe.Left(name) // it could not be had for a moment, and is no lag of ours
			settled()
		})
		seat, err := s.seats.TakeSeat(ctx, partition)
		waited()
		if ctx.Err() != nil {
			if err == nil {
				s.leave(ctx, partition, seat)
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, journal.ErrNotProvisioned) {
				return err
			}
			// Nobody here can tell whether another projects it.
			s.p.cfg.Observe.Stalled(name)
			level := slog.LevelWarn
			if failed { // once for each time that it cannot
				level = slog.LevelDebug
			}
			failed = true
			s.p.cfg.Log.Log(ctx, level, "no seat can be had for a partition", "partition", partition, "error", err)
			_ = s.p.cfg.Clock.Sleep(ctx, time.Second) // the next round sees ctx
			continue
		}
		failed = false
		given, err := s.work(ctx, partition, seat, settled)
		if err != nil {
			return err
		}
		if given {
			_ = s.p.cfg.Clock.Sleep(ctx, abstain)
		}
	}
	return nil
}

// after calls f after so long, unless it is called off.
func (s *sharing) after(ctx context.Context, d time.Duration, f func()) (callOff func()) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.p.cfg.Clock.Sleep(ctx, d) == nil {
			f()
		}
	}()
	return func() { stop(); <-done }
}

// work projects the partition until the seat is lost, given up or fenced, or ctx
// ends. It says whether it was given up for others.
func (s *sharing) work(ctx context.Context, partition int, seat Seat, settled func()) (given bool, err error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	h := &holding{seat: seat, giveUp: stop}
	s.mu.Lock()
	s.held[partition] = h
	s.mu.Unlock()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-seat.Lost():
			stop()
		case <-working.Done():
		}
	}()
	err = s.p.partition(working, partition, settled)
	stop()
	<-watched
	s.mu.Lock()
	delete(s.held, partition)
	given = h.given
	s.mu.Unlock()
	// What is under way in the store is fenced by whoever takes over; nothing of
	// this tenure is tried again.
	s.p.cfg.Observe.Left(journal.PartitionName(partition))
	s.leave(ctx, partition, seat)
	switch {
	case ctx.Err() != nil, working.Err() != nil && !errors.Is(err, journal.ErrFenced):
		return given, nil
	case errors.Is(err, journal.ErrFenced):
		s.p.cfg.Log.WarnContext(ctx, "partition was taken over by another projector", "partition", partition)
		_ = s.p.cfg.Clock.Sleep(ctx, time.Second) // two that take each other's turn would do nothing else
		return given, nil
	}
	return given, err
}

func (s *sharing) leave(ctx context.Context, partition int, seat Seat) {
	limited, stop := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer stop()
	if err := seat.Leave(limited); err != nil {
		s.p.cfg.Log.WarnContext(ctx, "a seat was not given up in order and is free in a few seconds", "partition", partition, "error", err)
	}
}

// balance gives up partitions while others wait and this process holds more than
// its share.
func (s *sharing) balance(ctx context.Context, partitions int) error {
	for s.p.cfg.Clock.Sleep(ctx, shareEvery) == nil {
		s.mu.Lock()
		var seats []Seat
		for _, h := range s.held {
			if len(seats) < moved {
				seats = append(seats, h.seat)
			}
		}
		s.mu.Unlock()
		others := 0
		for _, seat := range seats {
			// Who does not know waits for the next round.
			if n, err := seat.Others(ctx); err == nil {
				others = max(others, n)
			}
		}
		share := (partitions + others) / (others + 1) // rounded up
		s.mu.Lock()
		more := min(len(s.held)-share, moved)
		for partition, h := range s.held {
			if more <= 0 {
				break
			}
			if !h.given {
				h.given = true
				h.giveUp()
				s.p.cfg.Log.InfoContext(ctx, "partition is given up to others that wait", "partition", partition)
			}
			more--
		}
		s.mu.Unlock()
	}
	return nil
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

const (
	// checkEvery is how often the streams are compared with what was provisioned.
	checkEvery = time.Minute
	// checkAgain is when it is tried again after it could not be done.
	checkAgain = 2 * time.Second
	// checkTrusted is how long the last comparison counts where no other can be
	// made. A server that does not answer keeps no permit either; this is for one
	// that answers everything but this.
	checkTrusted = 3 * checkEvery
)

// checkFirst compares the clocks before anything is permitted, and gives when to
// compare again; the streams were compared when the process connected.
func (s *Service) checkFirst(ctx context.Context) (wait time.Duration) {
	known, err := s.checkClock(ctx)
	switch {
	case err == nil:
		return checkEvery
	case ctx.Err() == nil:
		s.forbid(ctx, err)
	}
	if known {
		return checkEvery
	}
	return checkAgain
}

// forbid says why no permit is taken, until a comparison finds nothing wrong.
func (s *Service) forbid(ctx context.Context, why error) {
	s.cfg.Log.ErrorContext(ctx, "no call with side effects is permitted until the streams are as provisioned and the clock is right", "error", why)
	s.forbidden.Store(&forbidden{why})
}

// RunChecks compares the streams with what was provisioned, and this process's
// clock with theirs, until ctx ends: after a first wait, then every minute, and when
// a lost connection is there again. A loosened stream or a clock that is off stops permits, never
// evidence; so does a comparison that cannot be made for three minutes. It ends
// with an error if another generation of the history counts by now: the process
// must be started again to work on it.
func (s *Service) RunChecks(ctx context.Context, first time.Duration) error {
	if s.cfg.Check == nil {
		return nil
	}
	for checked, wait := s.cfg.Clock.Monotonic(), first; s.waitCheck(ctx, wait) == nil; {
		known, err := s.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var other *generationError
		switch {
		case errors.As(err, &other):
			return other
		case known:
			checked, wait = s.cfg.Clock.Monotonic(), checkEvery
		default:
			wait = checkAgain
			if s.cfg.Clock.Monotonic()-checked < checkTrusted {
				s.cfg.Log.WarnContext(ctx, "the streams could not be compared with what was provisioned", "error", err)
				continue
			}
		}
		if err == nil {
			s.forbidden.Store(nil)
			continue
		}
		s.forbid(ctx, err)
	}
	return nil
}

// waitCheck waits until the next comparison is due, or gives ctx's error.
func (s *Service) waitCheck(ctx context.Context, wait time.Duration) error {
	if s.cfg.Regained == nil {
		return s.cfg.Clock.Sleep(ctx, wait)
	}
	due, stop := context.WithCancel(ctx)
	defer stop()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = s.cfg.Clock.Sleep(due, wait) // whoever waits looks at ctx
	}()
	select {
	case <-slept:
	case <-s.cfg.Regained:
	}
	stop()
	<-slept
	return ctx.Err()
}

// check compares once. known is false where something could not be asked.
func (s *Service) check(ctx context.Context) (known bool, err error) {
	if err := s.cfg.Check(ctx); err != nil {
		var drift *journal.DriftError
		return errors.As(err, &drift) || errors.Is(err, journal.ErrNotProvisioned), err
	}
	if s.cfg.Alone {
		return true, nil
	}
	switch g, err := s.journal.RecordedGeneration(ctx); {
	case err != nil:
		return false, err
	case g != s.generation:
		return true, &generationError{was: s.generation, is: g}
	}
	return s.checkClock(ctx)
}

// checkClock holds our clock against the store's, which dates all facts. Two
// processes whose clocks are each within half of what is allowed are within the
// whole of each other.
func (s *Service) checkClock(ctx context.Context) (known bool, err error) {
	if s.cfg.StoreTime == nil || s.cfg.ClockDifference == 0 {
		return true, nil
	}
	before := s.cfg.Clock.Now()
	at, err := s.cfg.StoreTime(ctx)
	if err != nil {
		return false, err
	}
	after := s.cfg.Clock.Now()
	// The store answered at some moment in between. It is not known when, so what
	// is due is never held back for longer than the clocks differ.
	s.ahead.Store(int64(max(before.Sub(at), 0)))
	if off := max(before.Sub(at), at.Sub(after)); off > s.cfg.ClockDifference/2 {
		return true, &clockError{off.Round(time.Millisecond), s.cfg.ClockDifference / 2}
	}
	return true, nil
}

// aheadBy is by how much this process's clock is ahead of the store's.
func (s *Service) aheadBy() time.Duration { return time.Duration(s.ahead.Load()) }

// forbidden says why no call with side effects may be permitted.
type forbidden struct{ why error }

// clockError says that this process's clock is off from the store's.
type clockError struct{ off, allowed time.Duration }

func (e *clockError) Error() string {
	return fmt.Sprintf("this process's clock is off by %s from the store's, at most %s is allowed: set the clocks right", e.off, e.allowed)
}

// generationError says that the history this process works on is not the one
// that counts.
type generationError struct{ was, is journal.Generation }

func (e *generationError) Error() string {
	return fmt.Sprintf("generation %d of the history counts by now, and this process works on %d: start it again", e.is, e.was)
}

// permits says why no call with side effects may be permitted, as far as the
// streams and the clock go.
func (s *Service) permits() error {
	if f := s.forbidden.Load(); f != nil {
		return f.why
	}
	return nil
}

// clockOff is what is wrong with the clock, if permits are not taken because of it.
func (s *Service) clockOff() error {
	var off *clockError
	if errors.As(s.permits(), &off) {
		return off
	}
	return nil
}

// drifted is why no permits are taken, if it is not the clock.
func (s *Service) drifted() error {
	if s.clockOff() != nil {
		return nil
	}
	return s.permits()
}

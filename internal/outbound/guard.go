package outbound

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Clock tells the time twice. The wall clock moves on while the machine is
// suspended but can be set back; the monotonic one the other way round. A
// process that was stopped sees the stop on at least one of them.
type Clock interface {
	// Now is wall time; a monotonic reading in it is ignored.
	Now() time.Time
	// Monotonic is the time since some fixed moment of this process.
	Monotonic() time.Duration
}

// SystemClock is the clock of the operating system.
type SystemClock struct{ start time.Time }

// NewSystemClock starts its monotonic clock at 0.
func NewSystemClock() SystemClock { return SystemClock{time.Now()} }

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// Monotonic is the time since NewSystemClock.
func (s SystemClock) Monotonic() time.Duration { return time.Since(s.start) }

var (
	errNotAfter         = errors.New("the last moment for sending has passed")
	errTimeout          = errors.New("the time for the exchange has passed")
	errFinished         = errors.New("the call has ended")
	errSecondConnection = errors.New("a call with side effects has one connection")
	errEarlyAnswer      = errors.New("an answer came before the request was sent")
)

// maxBudget keeps sums of durations from overflowing.
const maxBudget = 1 << 61

// guard decides for one call, one connection, whether bytes may leave, and
// knows whether any did. Two wrappers ask it:
//
//	net/http → spoken → (tls.Conn →) wire → dialed connection
//
// spoken sees request bytes only, so it tells the handshake from the request;
// wire sits below the encryption and asks the clocks last, right before the
// connection's own Write.
type guard struct {
	clock    Clock
	notAfter time.Time // wall; zero means none
	// Monotonic limits: the first byte's (if notAfter is set) and the exchange's.
	monoNotAfter, monoEnd time.Duration
	ended                 func() error // the context's Err

	// mu guards the fields below: net/http writes in a goroutine of its own,
	// which may still be about to write when the call has returned.
	mu      sync.Mutex
	speaks  bool      // net/http has begun to write the request
	flushed bool      // its first Write has come back with bytes written
	left    bool      // a request byte was given to the connection, or may have been
	leftAt  time.Time // wall; zero while nothing left
	stop    error     // not nil: nothing more may leave
}

func newGuard(clock Clock, r Request, timeout time.Duration, ended func() error) *guard {
	mono := clock.Monotonic()
	g := &guard{clock: clock, notAfter: r.NotAfter.Round(0), monoEnd: mono + timeout, ended: ended}
	if !r.NotAfter.IsZero() {
		g.monoNotAfter = r.NotAfterMonotonic
		if g.monoNotAfter == 0 {
			g.monoNotAfter = mono + min(g.notAfter.Sub(clock.Now().Round(0)), maxBudget)
		}
	}
	return g
}

// late asks both clocks. At notAfter itself a byte may still leave.
func (g *guard) late() (now time.Time, late bool) {
	now = g.clock.Now().Round(0)
	if g.notAfter.IsZero() {
		return now, false
	}
	return now, now.After(g.notAfter) || g.clock.Monotonic() > g.monoNotAfter
}

// refuse is the check before there is anything to write: errNotAfter if it is
// too late, and then nothing will ever leave.
func (g *guard) refuse() error {
	if _, late := g.late(); !late {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop = errNotAfter
	return g.stop
}

// admit is asked by wire before each Write. Until the first flush is through,
// every piece of it (TLS may cut it into records) is held against NotAfter;
// later pieces against the end of the exchange, so that a process that was
// stopped in the middle of a body does not complete the request afterwards.
//
// The clocks are asked outside the lock, then the lock decides: a call that
// finished in between has said what left, so nothing may leave any more.
func (g *guard) admit() error {
	g.mu.Lock()
	stop, speaks, first := g.stop, g.speaks, !g.flushed
	g.mu.Unlock()
	if stop != nil || !speaks { // not speaking: TLS handshake
		return stop
	}
	if g.clock.Monotonic() > g.monoEnd {
		stop = errTimeout
	}
	var now time.Time
	if first {
		var late bool
		if now, late = g.late(); late { // last: nothing slow may come between this and Write
			stop = errNotAfter
		}
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == nil {
		g.stop = stop
	}
	if g.stop == nil {
		g.stop = g.ended()
	}
	if g.stop != nil {
		return g.stop
	}
	if !g.left {
		g.left, g.leftAt = true, now
	}
	return nil
}

// finish lets nothing more leave, and says whether anything may have and what
// stopped the writing (errFinished if nothing did). Safe to call again.
func (g *guard) finish() (left bool, stop error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == nil {
		g.stop = errFinished
	}
	return g.left, g.stop
}

func (g *guard) sent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

func (g *guard) sentAt() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leftAt
}

// wire is the dialed connection. Embedding the interface hides ReadFrom and
// the like, so every byte goes through Write.
type wire struct {
	net.Conn
	g *guard
}

func (w *wire) Write(p []byte) (int, error) {
	if err := w.g.admit(); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// spoken is what net/http writes to.
type spoken struct {
	net.Conn
	g *guard
}

// Write hides an error of the network from net/http, which would drop an
// answer that is already here: a provider may answer 401 or 413 and close
// without reading the rest. The reading side finds the answer, or the error.
func (s *spoken) Write(p []byte) (int, error) {
	s.g.mu.Lock()
	s.g.speaks = true
	s.g.mu.Unlock()
	n, err := s.Conn.Write(p)
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.g.flushed = s.g.flushed || n > 0
	if err != nil && s.g.left && s.g.stop == nil {
		return len(p), nil
	}
	return n, err
}

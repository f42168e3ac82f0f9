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
	errNotAfter       = errors.New("the last moment for sending has passed")
	errTimeout        = errors.New("the time for the exchange has passed")
	errFinished       = errors.New("the call has ended")
	errEarlyAnswer    = errors.New("an answer came before the request was sent")
	errHeaderTooLarge = errors.New("the headers are larger than the limit")
)

// maxBudget keeps sums of durations from overflowing.
const maxBudget = 1 << 61

// guard decides for one request, on one connection, whether bytes may leave, and
// knows whether any did. It is asked in two places:
//
//	carrier.speak → (tls.Conn →) wire → dialed connection
//
// speak writes request bytes only, so it tells the handshake from the request;
// wire sits below the encryption and asks the clocks last, right before the
// connection's own Write.
type guard struct {
	clock    Clock
	notAfter time.Time // wall; zero means none
	// Monotonic limits: the first byte's (if notAfter is set) and the exchange's.
	monoNotAfter, monoEnd time.Duration
	began                 time.Duration // monotonic
	ended                 func() error  // the context's Err
	// quiet looks at the connection before the first piece; nil where wire cannot tell.
	quiet func() error

	// mu guards the fields below: a long body is written by a goroutine of its
	// own, while the call reads and may come to its end.
	mu      sync.Mutex
	speaks  bool      // the request has begun to be written
	flushed bool      // its first Write has come back with bytes written
	pieces  int       // that were let through
	left    bool      // a request byte was given to the connection, or may have been
	leftAt  time.Time // wall; zero while nothing left
	stop    error     // not nil: nothing more may leave
}

func newGuard(clock Clock, r Request, timeout time.Duration, ended func() error) *guard {
	mono := clock.Monotonic()
	g := &guard{clock: clock, notAfter: r.NotAfter.Round(0), monoEnd: mono + timeout, began: mono, ended: ended}
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
	if g.notAfter.IsZero() {
		return nil
	}
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
	if first && stop == nil && g.quiet != nil {
		stop = g.quiet()
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
	g.pieces++
	if !g.left {
		g.left, g.leftAt = true, now
	}
	return nil
}

// begin is said before each piece of the request; first says that it is the first one.
func (g *guard) begin() (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first = !g.speaks
	g.speaks = true
	return first
}

// wrote is said after it: n bytes of it were taken.
func (g *guard) wrote(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flushed = g.flushed || n > 0
}

// untaken is said when the connection took no byte of a piece. If that was the
// first one, nothing has left: the kernel refused it whole.
func (g *guard) untaken() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pieces == 1 {
		g.left, g.leftAt = false, time.Time{}
	}
}

// halt lets nothing more leave, because of err, and says why nothing may: that,
// or what was the reason before.
func (g *guard) halt(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop == nil {
		g.stop = err
	}
	return g.stop
}

func (g *guard) stopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop != nil
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
	now   reader // nil: it cannot be looked at without waiting
	guard *guard // of the request that is on it; nil while idle
	polls bool   // Read does not wait
	one   [1]byte
}

func (w *wire) Read(p []byte) (int, error) {
	if w.polls {
		return w.now(p)
	}
	return w.Conn.Read(p)
}

func (w *wire) Write(p []byte) (int, error) {
	g := w.guard
	if g == nil {
		return w.Conn.Write(p)
	}
	if err := g.admit(); err != nil {
		return 0, err
	}
	n, err := w.Conn.Write(p)
	if n == 0 && err != nil {
		g.untaken()
	}
	return n, err
}

// quiet is carrier.quiet for a connection without encryption.
func (w *wire) quiet() error {
	if w.now == nil {
		return nil
	}
	return verdict(w.now(w.one[:]))
}

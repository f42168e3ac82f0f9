package outbound

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// place is what a kept connection may be used for: nothing that differs in one
// of these rides on it. The policy is the Client's for its whole life, and so is
// what its TLS trusts; the name TLS checked is the host of addr.
type place struct {
	trusted, secure bool
	addr            string // host:port as in the URL
	// identity is the digest of the credential that goes along, so that neither
	// a rotated one nor another account's meets what a provider may remember of
	// a connection.
	identity string
}

// carrier is a connection that carries requests, one after the other. Who has
// taken it from the pool owns all of it, but for interrupt.
type carrier struct {
	net.Conn // what is spoken over: wire, or TLS over it
	wire     *wire
	place    place
	in       *bufio.Reader
	// left is what may still be read of an answer's head, in bytes.
	left  int64
	asked http.Request // tells http.ReadResponse the method
	head  []byte       // room for the request's head

	born     time.Duration // when its first call began, on the monotonic clock
	rests    moment        // since when it is idle
	patience time.Duration // how long the provider says that it keeps it idle; 0: it did not say
}

func newCarrier(conn net.Conn, w *wire, at place, born time.Duration) *carrier {
	c := &carrier{Conn: conn, wire: w, place: at, born: born}
	c.in = bufio.NewReader(bounded{c})
	return c
}

// bounded is the reading side: it holds a head to its limit. What arrives in
// one packet with the head's last byte counts with it.
type bounded struct{ c *carrier }

func (b bounded) Read(p []byte) (int, error) {
	if b.c.left <= 0 {
		return 0, errHeaderTooLarge
	}
	if int64(len(p)) > b.c.left {
		p = p[:b.c.left]
	}
	n, err := b.c.Conn.Read(p)
	b.c.left -= int64(n)
	return n, err
}

// interrupt ends every Read and Write of it, now and later. Any goroutine may call it.
func (c *carrier) interrupt() { _ = c.SetDeadline(time.Unix(1, 0)) }

// answer reads the head of the final answer; those before it are skipped.
func (c *carrier) answer(method string, limit int64) (*http.Response, error) {
	c.left, c.asked.Method = limit, method
	for {
		resp, err := http.ReadResponse(c.in, &c.asked)
		if err != nil && c.left <= 0 {
			return nil, errHeaderTooLarge // cut there, what was read may look malformed
		}
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 || resp.StatusCode < 100 || resp.StatusCode == http.StatusSwitchingProtocols {
			c.left = math.MaxInt64
			return resp, nil
		}
	}
}

// quiet says, without waiting, whether the connection is as it has to be before
// a request: open, and nothing to read. An answer that is already there answers
// something else. Over TLS this reads the tickets that follow a handshake.
func (c *carrier) quiet() error {
	if c.Conn == net.Conn(c.wire) {
		return c.wire.quiet()
	}
	if c.wire.now == nil {
		return nil
	}
	c.wire.polls = true
	n, err := c.Conn.Read(c.wire.one[:])
	c.wire.polls = false
	return verdict(n, err)
}

// verdict reads what a Read that does not wait says about an open connection.
func verdict(n int, err error) error {
	switch {
	case n > 0:
		return errEarlyAnswer
	case errors.Is(err, errNothingYet):
		return nil
	case err == nil, errors.Is(err, io.EOF):
		return fmt.Errorf("closed before the request: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("broken before the request: %w", err)
}

// nothingYet is temporary, or TLS would not read on after it.
type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing to read yet" }
func (nothingYet) Timeout() bool   { return true }
func (nothingYet) Temporary() bool { return true }

var errNothingYet error = nothingYet{}

// reader is a Read that does not wait: errNothingYet where it would have to.
type reader func(p []byte) (int, error)

// nowReader gives the one of conn; nil if it has none.
func nowReader(conn net.Conn) reader {
	switch c := conn.(type) {
	case interface{ ReadNow(p []byte) (int, error) }:
		return func(p []byte) (int, error) {
			n, err := c.ReadNow(p)
			if n == 0 && err == nil {
				err = errNothingYet
			}
			return n, err
		}
	case syscall.Conn:
		raw, err := c.SyscallConn()
		if err != nil {
			return nil
		}
		s := &socket{raw: raw}
		s.take = s.read
		return s.now
	}
	return nil
}

// socket reads from a file descriptor without waiting. It has one user at a time.
type socket struct {
	raw  syscall.RawConn
	take func(fd uintptr) bool // read, made once
	p    []byte
	n    int
	err  error
}

func (s *socket) read(fd uintptr) bool {
	for {
		if s.n, s.err = syscall.Read(int(fd), s.p); !errors.Is(s.err, syscall.EINTR) {
			return true // never waits
		}
	}
}

func (s *socket) now(p []byte) (int, error) {
	s.p = p
	failed := s.raw.Read(s.take)
	s.p = nil
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(s.err, syscall.EAGAIN):
		return 0, errNothingYet
	case s.err != nil:
		return 0, s.err
	case s.n == 0:
		return 0, io.EOF
	}
	return s.n, nil
}

// moment is a time on both clocks of a Clock.
type moment struct {
	wall time.Time
	mono time.Duration
}

func momentOf(c Clock) moment { return moment{c.Now().Round(0), c.Monotonic()} }

// since is the longer of the two, so that a suspended machine counts.
func (m moment) since(before moment) time.Duration {
	return max(m.wall.Sub(before.wall), m.mono-before.mono)
}

// patienceOf reads Keep-Alive: timeout=5. 0: it is not said, or not so that it can be read.
func patienceOf(h http.Header) time.Duration {
	for part := range strings.SplitSeq(h.Get("Keep-Alive"), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !strings.EqualFold(name, "timeout") {
			continue
		}
		n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 16)
		if err != nil {
			return 0
		}
		return max(time.Duration(n)*time.Second, 1) // 0 seconds is not nothing said
	}
	return 0
}

// exchange writes one request on a connection and reads the answer. kept says
// that the connection may carry another one. Without it the carrier is closed.
func (c *Client) exchange(ctx context.Context, h *hop, on *carrier, g *guard, keep bool) (a Answer, kept bool, f *Failure) {
	a.URL = h.link
	heeded := context.AfterFunc(ctx, on.interrupt)
	w := on.write(h, g, !keep)
	resp, err := (*http.Response)(nil), w.failed()
	if err == nil {
		resp, err = on.answer(h.method, c.cfg.MaxHeader)
	}
	if err != nil {
		// From here on no byte leaves, also where the rest of a body is still
		// being written: this is what makes NotSent true rather than likely.
		_, _ = g.finish()
		heeded()
		on.Close()
		w.wait()
		left, stop := g.finish()
		a.SentAt = g.sentAt()
		f := &Failure{Class: classify(ctx, err), Sent: SentUnknown, Err: err}
		if !left {
			f.Sent = NotSent
		}
		if errors.Is(stop, errNotAfter) {
			f.Class, f.Err = NotAfter, stop
		}
		return a, false, f
	}
	// At its end this does nothing; before it, the connection is closed by then,
	// or what is left would be read.
	defer resp.Body.Close()
	a.SentAt = g.sentAt()
	whole := false
	whole, f = c.receive(ctx, resp, h, &a)
	written := w.done()
	left, stop := g.finish() // whatever the answer was, nothing more leaves
	kept = heeded() && keep && whole && written && left && errors.Is(stop, errFinished) && !resp.Close && on.in.Buffered() == 0
	if !kept {
		on.Close()
		w.wait()
		return a, false, f
	}
	on.patience = patienceOf(resp.Header)
	return a, true, f
}

// aside is the size in bytes from which a body is written by a goroutine of its
// own: one that reads nothing before it answers could otherwise block the
// writer, and its answer would not be read.
const aside = 32 << 10

// writing is a request under way.
type writing struct {
	err  error
	rest chan error // of the goroutine, one value; nil: there is none
}

// write sends the request, all of it, or all but what a goroutine goes on with.
func (c *carrier) write(h *hop, g *guard, closes bool) writing {
	c.wire.guard = g
	if c.Conn == net.Conn(c.wire) {
		g.quiet = c.wire.quiet
	}
	b := h.appendHead(c.head[:0], closes)
	if len(h.body) <= aside {
		b = append(b, h.body...)
	}
	c.head = b[:0]
	if cap(c.head) > 2*aside {
		c.head = nil
	}
	w := writing{err: c.speak(g, b)}
	if w.err != nil || len(h.body) <= aside {
		return w
	}
	w.rest = make(chan error, 1)
	go func() {
		var err error
		for rest := h.body; len(rest) > 0 && err == nil; {
			n := min(len(rest), aside)
			err = c.speak(g, rest[:n])
			rest = rest[n:]
		}
		if err != nil && g.stopped() {
			c.interrupt() // no answer is waited for
		}
		w.rest <- err
	}()
	return w
}

// speak writes a piece of the request.
func (c *carrier) speak(g *guard, p []byte) error {
	if g.begin() && c.Conn != net.Conn(c.wire) {
		// Below the encryption it cannot be told from the end of a handshake.
		if err := c.quiet(); err != nil {
			return g.halt(err)
		}
	}
	n, err := c.Conn.Write(p)
	g.wrote(n)
	if err != nil && g.sent() && !g.stopped() {
		// The network's error is not the call's end: a provider may answer 401
		// or 413 and close without reading the rest. The reading side finds the
		// answer, or the error.
		return errUnread{err}
	}
	return err
}

// errUnread says that the provider stopped reading.
type errUnread struct{ error }

// failed gives the error for which no answer is waited for.
func (w *writing) failed() error {
	if _, answerable := errors.AsType[errUnread](w.err); answerable {
		return nil
	}
	return w.err
}

// done says whether the whole request is written, without waiting.
func (w *writing) done() bool {
	if w.rest == nil {
		return w.err == nil
	}
	select {
	case err := <-w.rest:
		w.rest, w.err = nil, err
		return err == nil
	default:
		return false
	}
}

// wait returns once nothing is being written. The connection is closed by then.
func (w *writing) wait() {
	if w.rest != nil {
		w.err = <-w.rest
		w.rest = nil
	}
}

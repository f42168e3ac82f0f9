package outbound_test

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe is a connection in memory that buffers as a socket does. net.Pipe does
// not, and two ends of TLS that write at once block each other for ever there.
func pipe() (a, b net.Conn) {
	x, y := newFlow(), newFlow()
	return &end{Conn: nil, in: x, out: y}, &end{Conn: nil, in: y, out: x}
}

// socketBuffer is how much a flow holds before Write blocks, in bytes.
const socketBuffer = 64 << 10

// flow is one direction.
type flow struct {
	mu            sync.Mutex // guards the fields below
	changed       sync.Cond
	buf           []byte
	ended, broken bool // the writer has closed; the reader has
	readBy        time.Time
	writeBy       time.Time
}

func newFlow() *flow {
	f := &flow{}
	f.changed.L = &f.mu
	return f
}

func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func (f *flow) read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.broken:
			return 0, net.ErrClosed
		case passed(f.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(f.buf) > 0:
			n := copy(p, f.buf)
			f.buf = f.buf[n:]
			f.changed.Broadcast()
			return n, nil
		case f.ended:
			return 0, io.EOF
		}
		f.changed.Wait()
	}
}

func (f *flow) write(p []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n < len(p) {
		room := socketBuffer - len(f.buf)
		switch {
		case f.ended:
			return n, net.ErrClosed
		case f.broken:
			return n, io.ErrClosedPipe
		case passed(f.writeBy):
			return n, os.ErrDeadlineExceeded
		case room > 0:
			k := min(room, len(p)-n)
			f.buf = append(f.buf, p[n:n+k]...)
			n += k
			f.changed.Broadcast()
			continue
		}
		f.changed.Wait()
	}
	return n, nil
}

func (f *flow) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.changed.Broadcast()
}

// end implements net.Conn; the embedded nil only lends the rest of the method set.
type end struct {
	net.Conn
	in, out *flow
}

func (e *end) Read(p []byte) (int, error)  { return e.in.read(p) }
func (e *end) Write(p []byte) (int, error) { return e.out.write(p) }

// ReadNow is Read without waiting: 0 and no error where it would.
func (e *end) ReadNow(p []byte) (int, error) {
	e.in.mu.Lock()
	nothing := !e.in.broken && !e.in.ended && !passed(e.in.readBy) && len(e.in.buf) == 0
	e.in.mu.Unlock()
	if nothing {
		return 0, nil
	}
	return e.in.read(p)
}

func (e *end) Close() error {
	e.out.set(func() { e.out.ended = true })
	e.in.set(func() { e.in.broken = true })
	return nil
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.set(func() { e.in.readBy = t })
	wake(e.in, t)
	return nil
}

func (e *end) SetWriteDeadline(t time.Time) error {
	e.out.set(func() { e.out.writeBy = t })
	wake(e.out, t)
	return nil
}

func (e *end) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *end) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "memory"} }
func (e *end) LocalAddr() net.Addr  { return e.RemoteAddr() }

func wake(f *flow, t time.Time) {
	if d := time.Until(t); !t.IsZero() && d > 0 {
		time.AfterFunc(d, func() { f.set(func() {}) })
	}
}

package simulator

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// connKey finds a request's connection in its context.
type connKey struct{}

// Listen serves the simulator on a TCP address, such as 127.0.0.1:0, until
// Close. It returns the URL of the root, without a slash at its end.
func (s *Simulator) Listen(addr string) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("listen for the simulator on %s: %w", addr, err)
	}
	if !s.serve(l) {
		return "", errors.Join(net.ErrClosed, l.Close())
	}
	return "http://" + l.Addr().String(), nil
}

// ListenMemory serves the simulator on a listener without sockets, until Close.
// Every host name dialled through it leads to the simulator; the name asked for
// is in the log.
func (s *Simulator) ListenMemory() *MemoryListener {
	l := NewMemoryListener()
	if !s.serve(l) {
		_ = l.Close() // always nil
	}
	return l
}

// serve starts the loop that serves l. Close ends it, and waits for it and for
// every connection it accepted.
func (s *Simulator) serve(l net.Listener) bool {
	var open sync.WaitGroup
	srv := &http.Server{
		Handler:  s,
		ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew: // called by the loop below, before it ends
				open.Add(1)
			case http.StateClosed, http.StateHijacked:
				open.Done()
			case http.StateActive, http.StateIdle:
			}
		},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.beginLocked() {
		return false
	}
	s.stoppers = append(s.stoppers, func() {
		// Closing a listener or connection twice is the only error here.
		_ = srv.Close()
	})
	go func() {
		defer s.work.Done()
		// Serve returns when Close closed it; there is nobody to tell of
		// another error than the clients, who see it.
		_ = srv.Serve(l)
		_ = srv.Close()
		open.Wait()
	}()
	return true
}

// abort cuts the request's connection without (the rest of) an answer.
func abort(r *http.Request, reset bool) {
	if reset {
		switch c := r.Context().Value(connKey{}).(type) {
		case *memoryConn:
			c.reset()
		case *net.TCPConn:
			// Makes the close that follows a reset. It fails only on a
			// connection already closed.
			_ = c.SetLinger(0)
		}
	}
	panic(http.ErrAbortHandler)
}

// write sends the answer with the faults that concern its bytes.
func (s *Simulator) write(w http.ResponseWriter, r *http.Request, c *call, rep reply) {
	body := rep.raw
	h := w.Header()
	h.Set("Content-Type", "application/json")
	now := s.now()
	s.mu.Lock()
	if c.mount != nil {
		now = c.mount.clock()
	}
	if rep.doc != nil {
		if f, ok := find[HugeMessage](c.faults); ok {
			c.noteLocked(f.fault())
			c.fillUp(&rep.doc, strings.Repeat("x", int(f)))
		}
		body = rep.doc.encode()
	}
	coding, spaces := "", int64(0)
	if f, ok := find[Compress](c.faults); ok {
		c.noteLocked(f.fault())
		coding = f.Coding
	}
	if f, ok := find[Bomb](c.faults); ok {
		c.noteLocked(f.fault())
		coding, spaces = f.Coding, f.Size
	}
	short, isShort := find[Truncate](c.faults)
	if isShort {
		c.noteLocked(short.fault())
	}
	cut, isCut := find[CutBody](c.faults)
	slow, isSlow := find[SlowBody](c.faults)
	if isCut {
		c.noteLocked(cut.fault())
	}
	if isSlow {
		c.noteLocked(slow.fault())
	}
	c.entry.Status = rep.status
	s.mu.Unlock()

	h.Set("Date", now.UTC().Format(http.TimeFormat))
	for name, values := range rep.header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	if coding != "" {
		h.Set("Content-Encoding", coding)
		body = encoded(coding, spaces, body)
	}
	if isShort {
		body = body[:part(short.Bytes, len(body))]
	}
	if rep.status == http.StatusNoContent || rep.status == http.StatusNotModified {
		w.WriteHeader(rep.status)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(rep.status)
	if !isCut && !isSlow {
		// A failed write means that the client has left; so also below.
		_, _ = w.Write(body)
		return
	}
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	send := body
	if isCut {
		send = body[:part(cut.Bytes, len(body))]
	}
	step := len(send)
	if isSlow {
		step = 1
	}
	for len(send) > 0 {
		if isSlow && !s.wait(slow.Every, r.Context().Done()) {
			panic(http.ErrAbortHandler)
		}
		if _, err := w.Write(send[:step]); err != nil {
			return
		}
		_ = flush.Flush()
		send = send[step:]
	}
	if isCut {
		panic(http.ErrAbortHandler)
	}
}

// encoded writes so many spaces and then the body in a coding.
func encoded(coding string, spaces int64, body []byte) []byte {
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	default:
		panic(fmt.Sprintf("simulator: unknown coding %q", coding))
	}
	blank := bytes.Repeat([]byte{' '}, 1<<20)
	// Writes into a buffer do not fail.
	for ; spaces > 0; spaces -= int64(len(blank)) {
		_, _ = w.Write(blank[:min(spaces, int64(len(blank)))])
	}
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// fillUp puts a text where the provider has texts.
func (c *call) fillUp(doc *document, text string) {
	switch d := c.mount.dialect; {
	case d == Replicate:
		doc.set("logs", text)
	case d == OpenAIBatches && doc.has("errors"):
		var row document
		row.set("code", "server_error")
		row.set("message", text)
		row.set("param", nil)
		row.set("line", nil)
		doc.set("errors", batchErrors([]document{row}))
	case (d == OpenAIBatches || d == StripeReporting) && !doc.has("id") && doc.has("error"):
		var inner document
		inner.set("type", "invalid_request_error")
		inner.set("message", text)
		doc.set("error", inner)
	case d == StripeReporting && doc.has("error"):
		doc.set("error", text)
	default:
		doc.set("message", text)
	}
}

// part bounds a number of bytes; 0 means half.
func part(n, all int) int {
	if n <= 0 {
		return all / 2
	}
	return min(n, all)
}

// A MemoryListener is a net.Listener whose connections are pairs of buffers in
// memory. They honour deadlines, and everything that waits in them waits in a
// way that a synctest bubble counts as durably blocked, so that whole HTTP
// exchanges run on fake time. It serves other servers of a test as well.
type MemoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewMemoryListener makes a listener. Inside a synctest bubble make it there.
func NewMemoryListener() *MemoryListener {
	return &MemoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next dialled connection.
func (l *MemoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close refuses further connections; those accepted stay open.
func (l *MemoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr is a name without meaning outside the process.
func (l *MemoryListener) Addr() net.Addr { return memoryAddr{} }

// DialContext connects to the listener, whatever the address; it fits
// http.Transport and net.Dialer. On a closed listener the error is
// syscall.ECONNREFUSED.
func (l *MemoryListener) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	client, server := newMemoryPair()
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: network, Addr: memoryAddr{}, Err: ctx.Err()}
	case l.conns <- server:
		return client, nil
	}
	return nil, &net.OpError{Op: "dial", Net: network, Addr: memoryAddr{}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Client is an HTTP client on the listener. It follows no redirects and opens a
// connection per request, so that it leaves nothing behind.
func (l *MemoryListener) Client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: l.DialContext, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

// window is how many bytes one direction of a memory connection buffers.
const window = 64 << 10

// A stream is one direction of a memory connection.
type stream struct {
	mu      sync.Mutex // guards the fields below
	data    []byte
	ended   bool          // the writer closed: EOF after data
	dead    bool          // the reader closed: writes fail
	broken  bool          // reset: both fail at once
	changed chan struct{} // closed and replaced at every change
}

// update runs f and wakes whoever waits.
func (st *stream) update(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
	st.wakeLocked()
}

func (st *stream) wakeLocked() {
	close(st.changed)
	st.changed = make(chan struct{})
}

// memoryConn is one end of a memory connection.
type memoryConn struct {
	in, out     *stream
	readBefore  *deadline
	writeBefore *deadline
}

func newMemoryPair() (client, server *memoryConn) {
	up := &stream{changed: make(chan struct{})}
	down := &stream{changed: make(chan struct{})}
	client = &memoryConn{in: down, out: up, readBefore: newDeadline(), writeBefore: newDeadline()}
	server = &memoryConn{in: up, out: down, readBefore: newDeadline(), writeBefore: newDeadline()}
	return client, server
}

// ReadNow is Read without waiting: 0 bytes and no error where it would wait.
func (c *memoryConn) ReadNow(p []byte) (int, error) {
	c.in.mu.Lock()
	waits := !c.in.dead && !c.in.broken && !c.in.ended && len(c.in.data) == 0
	c.in.mu.Unlock()
	if waits {
		return 0, nil
	}
	return c.Read(p)
}

func (c *memoryConn) Read(p []byte) (int, error) {
	for {
		expired := c.readBefore.wait()
		select {
		case <-expired:
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		default:
		}
		st := c.in
		st.mu.Lock()
		switch {
		case st.dead:
			st.mu.Unlock()
			return 0, c.fail("read", net.ErrClosed)
		case st.broken:
			st.mu.Unlock()
			return 0, c.fail("read", os.NewSyscallError("read", syscall.ECONNRESET))
		case len(p) == 0:
			st.mu.Unlock()
			return 0, nil
		case len(st.data) > 0:
			n := copy(p, st.data)
			st.data = st.data[n:]
			st.wakeLocked()
			st.mu.Unlock()
			return n, nil
		case st.ended:
			st.mu.Unlock()
			return 0, io.EOF
		}
		changed := st.changed
		st.mu.Unlock()
		select {
		case <-changed:
		case <-expired:
		}
	}
}

func (c *memoryConn) Write(p []byte) (int, error) {
	sent := 0
	for {
		expired := c.writeBefore.wait()
		select {
		case <-expired:
			return sent, c.fail("write", os.ErrDeadlineExceeded)
		default:
		}
		st := c.out
		st.mu.Lock()
		switch {
		case st.ended:
			st.mu.Unlock()
			return sent, c.fail("write", net.ErrClosed)
		case st.broken:
			st.mu.Unlock()
			return sent, c.fail("write", os.NewSyscallError("write", syscall.ECONNRESET))
		case st.dead:
			st.mu.Unlock()
			return sent, c.fail("write", os.NewSyscallError("write", syscall.EPIPE))
		}
		if room := window - len(st.data); room > 0 && len(p) > 0 {
			n := min(room, len(p))
			st.data = append(st.data, p[:n]...)
			p, sent = p[n:], sent+n
			st.wakeLocked()
		}
		changed := st.changed
		st.mu.Unlock()
		if len(p) == 0 {
			return sent, nil
		}
		select {
		case <-changed:
		case <-expired:
		}
	}
}

func (c *memoryConn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "memory", Source: memoryAddr{}, Addr: memoryAddr{}, Err: err}
}

// Close ends both directions: the peer reads what was sent and then EOF.
func (c *memoryConn) Close() error {
	c.out.update(func() { c.out.ended = true })
	c.in.update(func() { c.in.dead = true })
	c.readBefore.set(time.Time{})
	c.writeBefore.set(time.Time{})
	return nil
}

// reset ends both directions at once; what was sent and not read is lost.
func (c *memoryConn) reset() {
	for _, st := range []*stream{c.in, c.out} {
		st.update(func() { st.broken, st.data = true, nil })
	}
}

// abandoned says whether the peer has closed its end.
func (c *memoryConn) abandoned() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.in.ended || c.in.broken
}

func (c *memoryConn) LocalAddr() net.Addr  { return memoryAddr{} }
func (c *memoryConn) RemoteAddr() net.Addr { return memoryAddr{} }

func (c *memoryConn) SetDeadline(t time.Time) error {
	c.readBefore.set(t)
	c.writeBefore.set(t)
	return nil
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.readBefore.set(t)
	return nil
}

func (c *memoryConn) SetWriteDeadline(t time.Time) error {
	c.writeBefore.set(t)
	return nil
}

// A deadline is a channel that closes when a time set on it has come.
type deadline struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	setAt int           // counts set calls, so that an outrun timer does nothing
	ended chan struct{} // closed when expired; replaced by the next set then
}

func newDeadline() *deadline { return &deadline{ended: make(chan struct{})} }

// wait returns the channel. Whoever waits on it sees a later set too, as long
// as it has not expired.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

// set moves the deadline; the zero time takes it away.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setAt++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	select {
	case <-d.ended:
		d.ended = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	in := time.Until(t)
	if in <= 0 {
		close(d.ended)
		return
	}
	own := d.setAt
	d.timer = time.AfterFunc(in, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.setAt == own {
			close(d.ended)
		}
	})
}

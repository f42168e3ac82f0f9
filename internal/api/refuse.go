package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// net/http refuses by itself what it cannot make a request of, by plain text and
// before any handler runs. These connections put a problem document in the place
// of that text. What net/http closes without a word stays so: a caller who sends
// no whole header within headerTime, or reads no answer within writeTime.

// refusingListener gives connections on which every refusal is a problem.
type refusingListener struct{ net.Listener }

func (l refusingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &refusingConn{Conn: c}, nil
}

// refusingConn tells what net/http writes of its own accord from what a handler
// does. One connection serves one request at a time, and has sent all of an
// answer before it is idle again, so that no byte of a handler's is ever looked
// at.
type refusingConn struct {
	net.Conn
	// handled is true from the moment a handler has the request until the
	// connection is idle.
	handled atomic.Bool
}

// connKey finds the connection in a request's context.
type connKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connState(c net.Conn, state http.ConnState) {
	if own, ok := c.(*refusingConn); ok && state == http.StateIdle {
		own.handled.Store(false)
	}
}

// serving marks the connection as handled.
func serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*refusingConn); ok {
			c.handled.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}

// Write sends b, or a problem document where b is a refusal of net/http's own. It
// writes each of them at once.
func (c *refusingConn) Write(b []byte) (int, error) {
	if c.handled.Load() {
		return c.Conn.Write(b)
	}
	refusal := ownRefusal(b)
	if refusal == nil {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(refusalBytes(refusal)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite lets a caller who is still sending read why it was refused: net/http
// asks for it.
func (c *refusingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// ownRefusal is what the status line means, nil if it refuses nothing.
func ownRefusal(b []byte) *ingest.Refusal {
	line, ok := bytes.CutPrefix(b, []byte("HTTP/1.1 "))
	if !ok || len(line) < 3 {
		return nil
	}
	status, err := strconv.Atoi(string(line[:3]))
	if err != nil {
		return nil
	}
	switch status {
	case http.StatusBadRequest:
		return &ingest.Refusal{Code: ingest.CodeRequestMalformed, Detail: "the request line or a header field cannot be read, or there is not one Host header"}
	case http.StatusExpectationFailed:
		return (&ingest.Refusal{Code: ingest.CodeExpectation, Allowed: []string{"100-continue"}}).Say("the Expect header asks for something else than {allowed}", nil)
	case http.StatusRequestHeaderFieldsTooLarge:
		r := &ingest.Refusal{Code: ingest.CodeHeadersTooLarge}
		return r.Say("the request line and the header fields have more than {max_bytes} bytes together", ingest.Values{"max_bytes": headerSize})
	case http.StatusNotImplemented:
		return (&ingest.Refusal{Code: ingest.CodeTransferCoding, Allowed: []string{"chunked"}}).Say("the Transfer-Encoding header names something else than {allowed}", nil)
	case http.StatusHTTPVersionNotSupported:
		return (&ingest.Refusal{Code: ingest.CodeHTTPVersion, Allowed: []string{"HTTP/1.0", "HTTP/1.1"}}).Say("the request line names another version of HTTP than {allowed}", nil)
	}
	return nil
}

// refusalBytes is a whole answer. The address is not known, or could not be read.
func refusalBytes(r *ingest.Refusal) []byte {
	p := ingest.ProblemOf(r, "", ingest.ProblemBase)
	body := append(p.JSON(), '\n')
	header := http.Header{"Content-Type": {"application/problem+json"}, "Connection": {"close"}, "Content-Length": {strconv.Itoa(len(body))}}
	common(header)
	var out bytes.Buffer
	out.WriteString("HTTP/1.1 " + strconv.Itoa(p.Status) + " " + http.StatusText(p.Status) + "\r\n")
	_ = header.Write(&out) // a buffer takes everything
	out.WriteString("\r\n")
	out.Write(body)
	return out.Bytes()
}

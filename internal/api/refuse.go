package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// net/http refuses by itself what it cannot make a request of, by plain text and
// before any handler runs. These connections put a problem document in the place
// of that text. What net/http closes without a word stays so: a caller who sends
// no whole header within headerTime, or reads no answer within writeTime.

// refusingListener gives connections on which every refusal is a problem.
type refusingListener struct {
	net.Listener
	refused func(ingest.Code) // counts
}

func (l refusingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &refusingConn{Conn: c, refused: l.refused}, nil
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
	refused func(ingest.Code)

	// length is true once "content-length" was read, be it in a header or not.
	length atomic.Bool
	tail   []byte // the last bytes read, without it; of whoever reads
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
			// A body with two lengths has ended for one reader where another goes on,
			// so that what follows on the connection is not to be believed (RFC 9112,
			// section 6.3). net/http reads it by its chunks and hides the other length.
			if len(r.TransferEncoding) > 0 && c.length.Load() {
				w.Header().Set("Connection", "close")
			}
		}
		h.ServeHTTP(w, r)
	})
}

// Read notes whether a length was ever named on the connection: that is more than
// whether this request has one, and never less.
func (c *refusingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.length.Load() {
		c.tail = append(c.tail, b[:n]...)
		if namesLength(c.tail) {
			c.length.Store(true)
			c.tail = nil
		} else {
			c.tail = append(c.tail[:0], c.tail[max(0, len(c.tail)-len(lengthName)+1):]...)
		}
	}
	return n, err
}

const (
	lengthName = "content-length"
	lengthDash = len("content")
)

// namesLength looks for the header's name in any case.
func namesLength(text []byte) bool {
	for from := lengthDash; from < len(text); from++ {
		i := bytes.IndexByte(text[from:], '-')
		if i < 0 {
			return false
		}
		from += i
		if end := from - lengthDash + len(lengthName); end <= len(text) && strings.EqualFold(string(text[from-lengthDash:end]), lengthName) {
			return true
		}
	}
	return false
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
	if c.refused != nil {
		c.refused(refusal.Code)
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
		return otherVersion()
	}
	return nil
}

func otherVersion() *ingest.Refusal {
	return (&ingest.Refusal{Code: ingest.CodeHTTPVersion, Allowed: []string{"HTTP/1.0", "HTTP/1.1"}}).Say("the request line names another version of HTTP than {allowed}", nil)
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

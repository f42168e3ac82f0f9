package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// pipes is a listener of connections in memory, which wait on the fake clock.
type pipes struct {
	calls  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// dial gives the caller's end.
func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.calls <- there
	return here
}

// raw serves the handler in a bubble and gives what dials it.
func raw(t *testing.T, run func(t *testing.T, h *harness, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		listener := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, listener, h.handler, slog.New(slog.DiscardHandler)) }()
		run(t, h, listener.dial)
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// rawAnswer is one answer, read whole.
type rawAnswer struct {
	status int
	header http.Header
	closes bool // the connection
	text   string
}

// exchangeRaw sends the text, as far as it is taken, and reads one answer.
func exchangeRaw(t *testing.T, c net.Conn, method, text string) rawAnswer {
	t.Helper()
	go func() { _, _ = io.WriteString(c, text) }() // a refusal may come before its end
	return readRaw(t, bufio.NewReader(c), method)
}

func readRaw(t *testing.T, in *bufio.Reader, method string) rawAnswer {
	t.Helper()
	r, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return rawAnswer{r.StatusCode, r.Header, r.Close, string(body)}
}

// TestRaw sends what no client library would. Each refusal is a problem document,
// also where net/http refuses before any handler runs.
func TestRaw(t *testing.T) {
	const auth = "Host: x\r\nAuthorization: Bearer {key}\r\n"
	submit := "POST /v1/operations HTTP/1.1\r\n" + auth + "Content-Type: application/json\r\nIdempotency-Key: k\r\n"
	const body = `{"provider":"example","params":{}}`
	chunked := submit + "Transfer-Encoding: chunked\r\n"
	for name, c := range map[string]struct {
		send   string
		status int
		code   ingest.Code // "" for a success
	}{
		"no HTTP":                {"GARBAGE\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"TLS":                    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"no Host":                {"GET /healthz HTTP/1.1\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"two Hosts":              {"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad Host":               {"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad header name":        {"GET /healthz HTTP/1.1\r\nHost: a\r\nA B: c\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad header value":       {"GET /healthz HTTP/1.1\r\nHost: a\r\nA: \x01\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad escape":             {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad method":             {"G T /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"bad length":             {submit + "Content-Length: many\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"two lengths":            {submit + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}", 400, ingest.CodeRequestMalformed},
		"HTTP/3.0":               {"GET /healthz HTTP/3.0\r\nHost: a\r\n\r\n", 505, ingest.CodeHTTPVersion},
		"HTTP/2 preface":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404, ingest.CodeNotFound},
		"large header":           {"GET /healthz HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("x", headerSize+8<<10) + "\r\n\r\n", 431, ingest.CodeHeadersTooLarge},
		"long address":           {"GET /" + strings.Repeat("x", headerSize+8<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 431, ingest.CodeHeadersTooLarge},
		"many headers":           {"GET /healthz HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 10_000) + "\r\n", 431, ingest.CodeHeadersTooLarge},
		"transfer coding":        {submit + "Transfer-Encoding: gzip\r\n\r\n", 501, ingest.CodeTransferCoding},
		"expectation":            {submit + "Expect: the-unexpected\r\nContent-Length: 2\r\n\r\n{}", 417, ingest.CodeExpectation},
		"100-continue, unread":   {"POST /v1/operations HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", 401, ingest.CodeUnauthenticated},
		"chunk that is none":     {chunked + "\r\nzz\r\n", 400, ingest.CodeRequestMalformed},
		"chunk without its end":  {chunked + "\r\n2\r\n{}{}{}", 400, ingest.CodeRequestMalformed},
		"too large in chunks":    {chunked + "\r\n200000\r\n" + strings.Repeat("x", 0x200000) + "\r\n0\r\n\r\n", 413, ingest.CodeBodyTooLarge},
		"trailers":               {chunked + "Trailer: A\r\n\r\n22\r\n" + body + "\r\n0\r\nA: b\r\n\r\n", 202, ""},
		"trailer that is none":   {chunked + "Trailer: A\r\n\r\n22\r\n" + body + "\r\n0\r\nno trailer\r\n\r\n", 400, ingest.CodeRequestMalformed},
		"absolute form":          {"GET http://elsewhere.test/healthz HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n", 200, ""},
		"absolute form, nothing": {"GET http://elsewhere.test/nothing HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n", 404, ingest.CodeNotFound},
		"asterisk form":          {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404, ingest.CodeNotFound},
		"authority form":         {"CONNECT elsewhere.test:443 HTTP/1.1\r\nHost: a\r\n\r\n", 404, ingest.CodeNotFound},
		"OPTIONS":                {"OPTIONS /v1/operations HTTP/1.1\r\nHost: a\r\n\r\n", 405, ingest.CodeMethodNotAllowed},
		"TRACE":                  {"TRACE /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 405, ingest.CodeMethodNotAllowed},
		"method of their own":    {"BREW /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 405, ingest.CodeMethodNotAllowed},
		"HTTP/1.0":               {"GET /nothing HTTP/1.0\r\n\r\n", 404, ingest.CodeNotFound},
		"HEAD":                   {"HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 200, ""},
		"HEAD of nothing":        {"HEAD /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 404, ingest.CodeNotFound},
		"dots":                   {"GET /v1/../healthz HTTP/1.1\r\nHost: a\r\n\r\n", 404, ingest.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			raw(t, func(t *testing.T, h *harness, dial func() net.Conn) {
				conn := dial()
				method, _, _ := strings.Cut(c.send, " ")
				a := exchangeRaw(t, conn, method, strings.ReplaceAll(c.send, "{key}", h.bearer["alice"]))
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				if a.status != c.status {
					t.Errorf("%d %s, want %d", a.status, a.text, c.status)
				}
				if c.code == "" {
					return
				}
				if a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cache-Control") != "no-store" {
					t.Errorf("headers %v", a.header)
				}
				if method == http.MethodHead {
					return
				}
				var p ingest.Problem
				if err := json.Unmarshal([]byte(a.text), &p); err != nil || p.Code != c.code || p.Status != c.status || p.Type != "/errors/"+string(c.code) || p.Detail == "" {
					t.Errorf("%d %s", a.status, a.text)
				}
			})
		})
	}
}

// TestSlow: a body that stalls, or ends early, is answered; a header that stalls
// is not, since net/http reads the next one in the same way from a connection
// that nobody uses any more.
func TestSlow(t *testing.T) {
	const head = "POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
	for name, c := range map[string]struct {
		send string
		code ingest.Code // "" where the connection ends without a word
		took time.Duration
	}{
		"body stalls":        {head + "Content-Length: 100\r\n\r\n{\"provider\":", ingest.CodeRequestTimeout, readTime},
		"no body comes":      {head + "Content-Length: 100\r\n\r\n", ingest.CodeRequestTimeout, readTime},
		"chunk stalls":       {head + "Transfer-Encoding: chunked\r\n\r\n22\r\n{", ingest.CodeRequestTimeout, readTime},
		"header stalls":      {"GET /healthz HTTP/1.1\r\nHost:", "", headerTime},
		"nothing comes":      {"", "", headerTime},
		"hook's body stalls": {"POST /hooks/example HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", ingest.CodeRequestTimeout, readTime},
	} {
		t.Run(name, func(t *testing.T) {
			raw(t, func(t *testing.T, h *harness, dial func() net.Conn) {
				before, begun := h.stored(), time.Now()
				conn := dial()
				if c.code == "" {
					if _, err := io.WriteString(conn, c.send); err != nil {
						t.Fatal(err)
					}
					if text, err := io.ReadAll(conn); len(text) > 0 || err != nil {
						t.Errorf("got %q, %v", text, err)
					}
				} else {
					a := exchangeRaw(t, conn, "POST", strings.ReplaceAll(c.send, "{key}", h.bearer["alice"]))
					var p ingest.Problem
					if err := json.Unmarshal([]byte(a.text), &p); err != nil || p.Code != c.code || !p.Retryable || a.status != 408 || !a.closes {
						t.Errorf("%d %s", a.status, a.text)
					}
				}
				if took := time.Since(begun); took < c.took || took > c.took+2*time.Second {
					t.Errorf("after %s, want %s", took, c.took)
				}
				if n := h.stored(); n != before {
					t.Errorf("%d messages were stored", n-before)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHalfSent: the caller ends its half of the connection within the body, and
// still reads.
func TestHalfSent(t *testing.T) {
	h := newHarness(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, listener, h.handler, slog.New(slog.DiscardHandler)) }()
	for _, frame := range []string{"Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n64\r\n"} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n%s{\"provider\":", h.bearer["alice"], frame)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		a := readRaw(t, bufio.NewReader(conn), "POST")
		var p ingest.Problem
		if err := json.Unmarshal([]byte(a.text), &p); err != nil || a.status != 400 || p.Code != ingest.CodeBodyIncomplete || p.RetryWith != ingest.RetrySameKey {
			t.Errorf("%d %s", a.status, a.text)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages were stored", n)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestRefusedBehindAnother: what follows a good request on its connection is
// refused by a problem; and what a handler sends is never taken for a refusal.
func TestRefusedBehindAnother(t *testing.T) {
	const looks = "HTTP/1.1 400 Bad Request\r\n\r\n"
	synctest.Test(t, func(t *testing.T) {
		listener := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, strings.Repeat(looks, 1000)) // larger than what is buffered
		})
		go func() { served <- Serve(ctx, listener, h, slog.New(slog.DiscardHandler)) }()
		conn := listener.dial()
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n") }()
		if text, err := io.ReadAll(conn); err != nil || strings.Count(string(text), looks) != 1000 {
			t.Errorf("a handler's bytes came out as %.200q, %v", text, err)
		}
		conn = listener.dial()
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGARBAGE\r\n\r\n") }()
		in := bufio.NewReader(conn)
		for _, status := range []int{200, 400} {
			a := readRaw(t, in, "GET")
			if a.status != status || (a.header.Get("Content-Type") == "application/problem+json") != (status == 400) {
				t.Errorf("%d %.200q", a.status, a.text)
			}
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

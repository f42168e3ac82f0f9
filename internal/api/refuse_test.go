package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
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
		go func() { served <- Serve(ctx, listener, h.handler, slog.New(slog.DiscardHandler), nil) }()
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
		"HTTP/2 preface":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, ingest.CodeHTTPVersion},
		"two media types":        {submit + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 400, ingest.CodeRequestMalformed},
		"one media type twice":   {submit + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 400, ingest.CodeRequestMalformed},
		"large header":           {"GET /healthz HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("x", headerSize+8<<10) + "\r\n\r\n", 431, ingest.CodeHeadersTooLarge},
		"long address":           {"GET /" + strings.Repeat("x", headerSize+8<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 431, ingest.CodeHeadersTooLarge},
		"many headers":           {"GET /healthz HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 10_000) + "\r\n", 431, ingest.CodeHeadersTooLarge},
		"transfer coding":        {submit + "Transfer-Encoding: gzip\r\n\r\n", 501, ingest.CodeTransferCoding},
		"expectation":            {submit + "Expect: the-unexpected\r\nContent-Length: 2\r\n\r\n{}", 417, ingest.CodeExpectation},
		"100-continue, unread":   {"POST /v1/operations HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", 401, ingest.CodeUnauthenticated},
		"chunk that is none":     {chunked + "\r\nzz\r\n", 400, ingest.CodeRequestMalformed},
		"chunk without its end":  {chunked + "\r\n2\r\n{}{}{}", 400, ingest.CodeRequestMalformed},
		"too large in chunks":    {chunked + "\r\n200000\r\n" + strings.Repeat("x", 0x200000) + "\r\n0\r\n\r\n", 413, ingest.CodeBodyTooLarge},
		"GET with a body":        {"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 200, ""},
		"GET with a large one":   {"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n", 413, ingest.CodeBodyTooLarge},
		"GET, large in chunks":   {"GET /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n" + strings.Repeat("x", 0x10001) + "\r\n0\r\n\r\n", 413, ingest.CodeBodyTooLarge},
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

// TestTwoLengthsEndTheConnection (RFC 9112, section 6.3): what follows a request with
// both is not read, also where it was sent with others before it.
func TestTwoLengthsEndTheConnection(t *testing.T) {
	const get = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	const head = "POST /mcp HTTP/1.1\r\nHost: x\r\n"
	const chunk = "\r\n2\r\n{}\r\n0\r\n\r\n"
	const length, chunked, unlike = "Content-Length: 2\r\n", "Transfer-Encoding: chunked\r\n", "cOnTeNt-LeNgTh: 40\r\n"
	for name, c := range map[string]struct {
		send    string
		answers int
		closes  bool // after the last
	}{
		"chunked alone":        {head + chunked + chunk + get, 2, false},
		"a length alone":       {head + length + "\r\n{}" + get, 2, false},
		"both":                 {head + chunked + length + chunk + get, 1, true},
		"both, turned round":   {head + unlike + chunked + chunk + get, 1, true},
		"both, behind another": {get + get + head + chunked + length + chunk + get, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, 4096} { // of a piece
				raw(t, func(t *testing.T, h *harness, dial func() net.Conn) {
					conn := dial()
					go func() { // what nobody reads any more is not taken
						for text := c.send; text != ""; {
							n := min(size, len(text))
							if _, err := io.WriteString(conn, text[:n]); err != nil {
								return
							}
							text = text[n:]
						}
					}()
					in := bufio.NewReader(conn)
					for n := range c.answers {
						if a := readRaw(t, in, "POST"); a.closes != (c.closes && n == c.answers-1) {
							t.Errorf("answer %d: %d, closes %t", n, a.status, a.closes)
						}
					}
					if c.closes {
						if _, err := in.ReadByte(); err == nil {
							t.Error("the connection went on")
						}
					}
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// TestRefusedBeforeAHandlerIsCounted as every other refusal is.
func TestRefusedBeforeAHandlerIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		listener := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		var mu sync.Mutex
		counts := map[ingest.Code]int{}
		count := func(c ingest.Code) {
			mu.Lock()
			defer mu.Unlock()
			counts[c]++
		}
		options := h.options
		options.Refused = count
		go func() {
			served <- Serve(ctx, listener, newHandler(options), slog.New(slog.DiscardHandler), count)
		}()
		want := map[ingest.Code]int{}
		for send, code := range map[string]ingest.Code{
			"GARBAGE\r\n\r\n":                                ingest.CodeRequestMalformed,
			"GET /healthz HTTP/3.0\r\nHost: a\r\n\r\n":       ingest.CodeHTTPVersion,
			"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n":       ingest.CodeNotFound,
			"GET /v1/../healthz HTTP/1.1\r\nHost: a\r\n\r\n": ingest.CodeNotFound,
			"PUT /v1/operations HTTP/1.1\r\nHost: a\r\n\r\n": ingest.CodeMethodNotAllowed,
			"GET /v1/operations HTTP/1.1\r\nHost: a\r\n\r\n": ingest.CodeUnauthenticated,
			"POST /hooks/none HTTP/1.1\r\nHost: a\r\n\r\n":   ingest.CodeNotFound,
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":               ingest.CodeHTTPVersion,
			"GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n": ingest.CodeExpectation,
			"POST /hooks/example HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + strings.Repeat("x", 2_000_000): ingest.CodeBodyTooLarge,
		} {
			conn := listener.dial()
			exchangeRaw(t, conn, "GET", send)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			want[code]++
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if !maps.Equal(counts, want) {
			t.Errorf("counted %v, want %v", counts, want)
		}
	})
}

// TestDeliveriesAreBounded: those without a key hold so many bodies and bytes together,
// and who comes beyond that is told to come again.
func TestDeliveriesAreBounded(t *testing.T) {
	const head = "POST /hooks/example HTTP/1.1\r\nHost: x\r\nContent-Length: "
	beyond := func(t *testing.T, conn net.Conn) {
		t.Helper()
		a := exchangeRaw(t, conn, "POST", head+"2\r\n\r\n{}")
		var p ingest.Problem
		if err := json.Unmarshal([]byte(a.text), &p); err != nil || p.Code != ingest.CodeTooManyDeliveries || a.status != 503 || !p.Retryable || a.header.Get("Retry-After") != "5" {
			t.Errorf("beyond: %d %v %s", a.status, a.header, a.text)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		senders int
		sent    string // by each, and no more
	}{
		"deliveries": {mostDeliveries, head + "9\r\n\r\n{"},
		"bytes":      {mostDelivered >> 20, head + strconv.Itoa(1<<20) + "\r\n\r\n" + strings.Repeat("x", 1<<20-1)},
	} {
		t.Run(name, func(t *testing.T) {
			raw(t, func(t *testing.T, h *harness, dial func() net.Conn) {
				var conns []net.Conn
				for range c.senders {
					conn := dial()
					if _, err := io.WriteString(conn, c.sent); err != nil {
						t.Fatal(err)
					}
					conns = append(conns, conn)
				}
				synctest.Wait()
				if name == "bytes" { // each holds a byte less than a whole one; the rest fills it
					for range c.senders / 2 {
						conn := dial()
						if _, err := io.WriteString(conn, head+"9\r\n\r\n{{"); err != nil {
							t.Fatal(err)
						}
						conns = append(conns, conn)
					}
					synctest.Wait()
				}
				beyond(t, dial())
				// One that leaves makes room for one.
				if err := conns[0].Close(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				a := exchangeRaw(t, dial(), "POST", head+"2\r\n\r\n{}")
				if a.status != http.StatusUnauthorized { // it is not signed
					t.Errorf("with room: %d %s", a.status, a.text)
				}
				for _, conn := range conns[1:] {
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
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
		"GET's body stalls":  {"GET /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 9\r\n\r\n", ingest.CodeRequestTimeout, readTime},
		"page's body stalls": {"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n", ingest.CodeRequestTimeout, readTime},
		"stream's body, too": {"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 9\r\n\r\n1", ingest.CodeRequestTimeout, readTime},
		"header stalls":      {"GET /healthz HTTP/1.1\r\nHost:", "", headerTime},
		"nothing comes":      {"", "", headerTime},
		"hook's body stalls": {"POST /hooks/example HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", ingest.CodeRequestTimeout, deliveryTime},
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
	go func() { served <- Serve(ctx, listener, h.handler, slog.New(slog.DiscardHandler), nil) }()
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
		go func() { served <- Serve(ctx, listener, h, slog.New(slog.DiscardHandler), nil) }()
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

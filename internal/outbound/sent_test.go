package outbound_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// both runs a test over plain HTTP and over TLS, in fake time.
func both(t *testing.T, test func(t *testing.T, nw *network, secure func(*outbound.Config), base string)) {
	t.Run("http", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, &network{t: t}, func(*outbound.Config) {}, "http://api.example.com")
		})
	})
	t.Run("https", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			nw := &network{t: t}
			cfg := nw.secure()
			test(t, nw, func(c *outbound.Config) { c.TLS, c.AllowHTTP = cfg, false }, "https://api.example.com")
		})
	})
}

func TestSideEffectIsOneRequest(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = answering("HTTP/1.1 202 Accepted\r\nDate: Mon, 30 Nov 2026 11:50:00 GMT\r\nLocation: /v1/jobs/7\r\nContent-Length: 2\r\n\r\n{}")
		c := newClient(t, nw, secure)
		begin := time.Now()
		a, err := c.Do(t.Context(), create(base+"/v1/jobs"))
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != 202 || string(a.Body) != "{}" || a.Header.Get("Location") != "/v1/jobs/7" || a.Truncated || a.CloseDelimited ||
			!a.SentAt.Equal(begin) || !a.AnsweredAt.Equal(begin) || a.Date.Minute() != 50 || a.URL != base+"/v1/jobs" {
			t.Errorf("answer: %+v", a)
		}
		want := "POST /v1/jobs HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: counterfoil\r\n" +
			"Content-Length: 14\r\nContent-Type: application/json\r\nIdempotency-Key: k1\r\nConnection: close\r\n\r\n{\"prompt\":\"x\"}"
		if w := nw.wire(); len(w) != 1 || w[0] != want {
			t.Errorf("on the wire: %q", w)
		}
	})
}

// The worker is stopped while it connects, or within the handshake's time.
func TestStopBetweenDoAndWrite(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		for _, timeout := range []time.Duration{30 * time.Second, 2 * time.Hour} {
			nw.serve = answering(ok)
			nw.dialing = func(context.Context) error { time.Sleep(time.Hour); return nil } // a stop heeds no context
			c := newClient(t, nw, func(c *outbound.Config) { secure(c); c.DialTimeout = 3 * time.Hour })
			r := create(base)
			r.Timeout = timeout
			_, err := c.Do(t.Context(), r)
			if timeout < time.Hour && strings.HasPrefix(base, "https") {
				wantFailure(t, err, outbound.Timeout, outbound.NotSent) // the handshake has no time left
			} else {
				wantFailure(t, err, outbound.NotAfter, outbound.NotSent)
			}
			if n := requests(nw.wire()); n != 0 {
				t.Errorf("%d requests on the wire", n)
			}
		}
	})
}

// The worker is stopped for an hour right before any one of the clock readings
// of a call. A request leaves in time or not at all, and NotSent means that
// nothing came. The call's first readings fix its limits; the sweep goes on
// until a call reads the clock too seldom to be stopped.
func TestStopAnywhere(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		for _, timeout := range []time.Duration{30 * time.Second, 2 * time.Hour} {
			refused, sent := 0, 0
			for k := 1; ; k++ {
				run := &network{t: t, cert: nw.cert, serve: answering(ok)}
				clock := newStopClock()
				stopped := false
				clock.stop = func(n int) {
					if n == k {
						stopped = true
						time.Sleep(time.Hour)
					}
				}
				c := newClient(t, run, func(c *outbound.Config) { secure(c); c.Clock = clock })
				r := create(base)
				r.Timeout = timeout
				// Long enough for several records of TLS and several writes of net/http.
				r.Header = append(r.Header, outbound.Header{Name: "X-Long", Value: strings.Repeat("x", 9000)})
				r.Body = bytes.Repeat([]byte("y"), 100_000)
				a, err := c.Do(t.Context(), r)
				time.Sleep(2 * time.Hour) // a late write would come now
				synctest.Wait()
				first := run.firstByte()
				if !first.IsZero() && first.After(r.NotAfter) {
					t.Errorf("timeout %v, stop %d: first byte %v after the last moment", timeout, k, first.Sub(r.NotAfter))
				}
				var f *outbound.Failure
				switch {
				case errors.As(err, &f) && f.Sent == outbound.NotSent:
					refused++
					if f.Class != outbound.NotAfter && f.Class != outbound.Timeout || !first.IsZero() || !a.SentAt.IsZero() {
						t.Errorf("timeout %v, stop %d: %v, yet %q came", timeout, k, err, run.wire())
					}
				case err != nil:
					sent++
					if a.SentAt.IsZero() || first.IsZero() {
						t.Errorf("timeout %v, stop %d: %v, yet nothing came", timeout, k, err)
					}
				default:
					sent++
				}
				if !stopped {
					if err != nil {
						t.Errorf("timeout %v, no stop: %v", timeout, err)
					}
					break
				}
			}
			if refused < 3 || sent < 3 {
				t.Errorf("timeout %v: %d refused, %d sent: the sweep shows nothing", timeout, refused, sent)
			}
		}
	})
}

// A stop in the middle of a body: what is left of it stays here.
func TestTailDoesNotLeaveLate(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		clock := newStopClock()
		nw.serve = func(_ int, c net.Conn) {
			buf := make([]byte, 1<<16)
			for total := 0; ; {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if total += n; total > 100_000 {
					clock.shift(0, time.Hour) // the rest would be written an hour later
				}
			}
		}
		c := newClient(t, nw, func(c *outbound.Config) { secure(c); c.Clock = clock })
		r := create(base)
		r.Body = bytes.Repeat([]byte("y"), 1<<20)
		_, err := c.Do(t.Context(), r)
		wantFailure(t, err, outbound.Timeout, outbound.SentUnknown)
		if n := len(nw.wire()[0]); n < 100_000 || n > 300_000 {
			t.Errorf("%d bytes came", n)
		}
	})
}

// A call that has reported NotSent stays unsent, though its writer was only
// stopped and the connection still takes bytes.
func TestNoByteAfterTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inner net.Conn
		nw := &network{t: t, serve: answering(ok)}
		nw.conn = func(c net.Conn) net.Conn { inner = c; return &faulty{Conn: c, stayAlive: true} }
		clock := newStopClock()
		clock.stop = func(n int) {
			if n == 8 { // Write's second, see TestAnswerBeforeRequest: its check of the timeout is over
				time.Sleep(time.Minute)
			}
		}
		c := newClient(t, nw, func(cfg *outbound.Config) { cfg.Clock = clock })
		r := create("http://api.example.com")
		r.NotAfter = time.Now().Add(time.Hour)
		_, err := c.Do(t.Context(), r)
		wantFailure(t, err, outbound.Timeout, outbound.NotSent)
		time.Sleep(time.Hour)
		if w := nw.wire()[0]; w != "" {
			t.Errorf("on the wire after the report: %q", w)
		}
		inner.Close()
	})
}

func TestNotAfterAsksBothClocks(t *testing.T) {
	for _, c := range []struct {
		name       string
		wall, mono time.Duration // shift between Do and Write
		within     time.Duration // NotAfterMonotonic from now; 0: not given
		class      outbound.Class
	}{
		{"neither passed", 59 * time.Second, 59 * time.Second, 0, ""},
		{"at the very moment", time.Minute, time.Minute, 0, ""},
		{"wall passed, machine was suspended", 61 * time.Second, 0, 0, outbound.NotAfter},
		{"monotonic passed, wall set back", -time.Hour, 61 * time.Second, 0, outbound.NotAfter},
		{"monotonic limit of the caller passed", 0, 11 * time.Second, 10 * time.Second, outbound.NotAfter},
		{"monotonic limit of the caller not passed", 0, 9 * time.Second, 10 * time.Second, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := newStopClock()
				nw := &network{t: t, serve: answering(ok)}
				nw.dialing = func(context.Context) error { clock.shift(c.wall, c.mono); return nil }
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Clock = clock })
				r := create("http://api.example.com")
				r.Timeout = time.Hour
				if c.within != 0 {
					r.NotAfterMonotonic = clock.Monotonic() + c.within
				}
				_, err := client.Do(t.Context(), r)
				if c.class == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				wantFailure(t, err, c.class, outbound.NotSent)
				if requests(nw.wire()) != 0 {
					t.Errorf("on the wire: %q", nw.wire())
				}
			})
		})
	}
}

func TestNotAfterAlreadyPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering(ok)}
		c := newClient(t, nw, nil)
		r := create("http://api.example.com")
		for _, r.NotAfter = range []time.Time{time.Now().Add(-time.Nanosecond), time.Unix(-1<<40, 0)} {
			_, err := c.Do(t.Context(), r)
			wantFailure(t, err, outbound.NotAfter, outbound.NotSent)
		}
		if len(nw.addrs) != 0 {
			t.Error("a connection was opened")
		}
		r.NotAfter = time.Unix(1<<40, 0) // far enough to overflow a Duration
		if _, err := c.Do(t.Context(), r); err != nil {
			t.Error(err)
		}
	})
}

// A kept-alive connection dies under the request. The control shows that
// net/http alone would send it twice.
func TestDeadConnectionMakesNoSecondRequest(t *testing.T) {
	// serve answers the first request of each connection and swallows the second.
	serve := func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		if readRequest(br) {
			_, _ = io.WriteString(c, ok)
		}
		readRequest(br)
	}
	swallow := func(_ int, c net.Conn) { readRequest(bufio.NewReader(c)) }

	t.Run("control", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			nw := &network{t: t, serve: serve}
			tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return nw.dial(ctx, network, addr, anywhere)
			}}
			defer tr.CloseIdleConnections()
			for range 2 {
				req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://api.example.com", strings.NewReader("x"))
				req.Header.Set("Idempotency-Key", "k")
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if n := requests(nw.wire()); n != 3 {
				t.Errorf("net/http wrote %d requests for 2 calls: the hazard this package closes is gone", n)
			}
		})
	})
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = serve
		c := newClient(t, nw, secure)
		if _, err := c.Do(t.Context(), outbound.Request{Method: "GET", URL: base}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // each on a connection of its own, though an idle one exists
			if _, err := c.Do(t.Context(), create(base)); err != nil {
				t.Fatal(err)
			}
		}
		nw.serve = swallow
		_, err := c.Do(t.Context(), create(base))
		wantFailure(t, err, outbound.Reset, outbound.SentUnknown)
		if w := nw.wire(); len(w) != 4 || requests(w) != 4 {
			t.Errorf("%d connections, %d requests", len(w), requests(w))
		}
	})
}

func TestFailureBeforeTheFirstByte(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, c := range []struct {
		name    string
		dialing func(context.Context, context.CancelFunc) error
		base    string
		class   outbound.Class
	}{
		{"dns", func(context.Context, context.CancelFunc) error {
			return &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}
		}, "http://api.example.com", outbound.DNS},
		{"refused", func(context.Context, context.CancelFunc) error { return refused }, "http://api.example.com", outbound.Dial},
		{"dial timeout", func(ctx context.Context, _ context.CancelFunc) error { <-ctx.Done(); return ctx.Err() }, "http://api.example.com", outbound.Timeout},
		{"cancelled in dial", func(ctx context.Context, cancel context.CancelFunc) error { cancel(); return ctx.Err() }, "http://api.example.com", outbound.Canceled},
		{"cancelled in dial that succeeds", func(_ context.Context, cancel context.CancelFunc) error { cancel(); return nil }, "http://api.example.com", outbound.Canceled},
		{"certificate", func(context.Context, context.CancelFunc) error { return nil }, "https://other.example.com", outbound.TLS},
	} {
		for _, side := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", c.name, side), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: answering(ok)}
					client := newClient(t, nw, func(cfg *outbound.Config) {
						if strings.HasPrefix(c.base, "https") {
							cfg.TLS = nw.secure()
						}
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					nw.dialing = func(ctx context.Context) error { return c.dialing(ctx, cancel) }
					r := create(c.base)
					if !side {
						r = outbound.Request{Method: "GET", URL: c.base}
					}
					_, err := client.Do(ctx, r)
					if !side && c.name == "cancelled in dial that succeeds" {
						// net/http may have handed over the connection just before.
						if f, isFailure := errors.AsType[*outbound.Failure](err); !isFailure || f.Class != c.class {
							t.Errorf("got %v", err)
						}
						return
					}
					wantFailure(t, err, c.class, outbound.NotSent)
					if w := strings.Join(nw.wire(), ""); w != "" {
						t.Errorf("on the wire: %q", w)
					}
					synctest.Wait()
				})
			})
		}
	}
}

func TestFailureAfterTheFirstByte(t *testing.T) {
	head := "HTTP/1.1 202 Accepted\r\nLocation: /v1/jobs/7\r\n"
	for _, c := range []struct {
		name   string
		raw    string
		class  outbound.Class
		status int // of the partial answer
		body   string
	}{
		{"no answer", "", outbound.Reset, 0, ""},
		{"cut in status line", "HTTP/1.1 2", outbound.Protocol, 0, ""},
		{"cut in headers", head, outbound.Reset, 0, ""},
		{"not HTTP", "SSH-2.0-x\r\n", outbound.Protocol, 0, ""},
		{"bad length", head + "Content-Length: x\r\n\r\n", outbound.Protocol, 0, ""},
		{"two lengths", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", outbound.Protocol, 0, ""},
		{"headers too large", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", outbound.HeaderTooLarge, 0, ""},
		{"informational without end", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 3000), outbound.HeaderTooLarge, 0, ""},
		{"change of protocol", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", outbound.Protocol, 101, ""},
		{"body cut", head + "Content-Length: 10\r\n\r\n{\"id\"", outbound.BodyCut, 202, `{"id"`},
		{"chunk cut", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n", outbound.BodyCut, 202, `{"id"`},
		{"chunk malformed", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", outbound.BodyCut, 202, ""},
		{"body too large", head + "Content-Length: 21\r\n\r\n123456789012345678901", outbound.BodyTooLarge, 202, "12345678901234567890"},
		{"body too large, in one chunk", head + "Transfer-Encoding: chunked\r\n\r\n15\r\n123456789012345678901\r\n0\r\n\r\n", outbound.BodyTooLarge, 202, "12345678901234567890"},
		{"body too large, in many chunks", head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 21) + "0\r\n\r\n", outbound.BodyTooLarge, 202, strings.Repeat("x", 20)},
		{"body too large, chunks without end", head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 1<<12), outbound.BodyTooLarge, 202, strings.Repeat("x", 20)},
		{"body too large, no length", head + "\r\n123456789012345678901", outbound.BodyTooLarge, 202, "12345678901234567890"},
	} {
		for _, side := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", c.name, side), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nw := &network{t: t, serve: once(c.raw)}
					client := newClient(t, nw, nil)
					r := create("http://api.example.com")
					if !side {
						r = outbound.Request{Method: "GET", URL: "http://api.example.com"}
					}
					r.MaxBody = 20
					a, err := client.Do(t.Context(), r)
					wantFailure(t, err, c.class, outbound.SentUnknown)
					if a.Status != c.status || string(a.Body) != c.body || a.Truncated != (c.status != 0) || a.SentAt.IsZero() {
						t.Errorf("answer: %+v", a)
					}
					if c.status == 202 && a.Header.Get("Location") != "/v1/jobs/7" {
						t.Error("evidence lost: no Location")
					}
					if n := requests(nw.wire()); n != 1 {
						t.Errorf("%d requests", n)
					}
				})
			})
		}
	}
}

func TestTimeIsBounded(t *testing.T) {
	drip := func(s string) func(int, net.Conn) {
		return func(_ int, c net.Conn) {
			readRequest(bufio.NewReader(c))
			for i := range len(s) {
				time.Sleep(900 * time.Millisecond)
				if _, err := io.WriteString(c, s[i:i+1]); err != nil {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		name   string
		serve  func(int, net.Conn)
		status int
	}{
		{"silence", func(_ int, c net.Conn) { _, _ = io.Copy(io.Discard, c) }, 0},
		{"request not read", func(_ int, c net.Conn) { time.Sleep(time.Hour) }, 0},
		{"headers byte by byte", drip("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100)), 0},
		{"body byte by byte", drip("HTTP/1.1 200 \r\n\r\n" + strings.Repeat("x", 100)), 200},
		{"informational for ever", drip(strings.Repeat("HTTP/1.1 103 \r\n\r\n", 10)), 0},
	} {
		for _, side := range []bool{true, false} {
			for _, base := range []string{"http", "https"} {
				t.Run(fmt.Sprintf("%s/%s/%v", c.name, base, side), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						nw := &network{t: t, serve: c.serve}
						client := newClient(t, nw, func(cfg *outbound.Config) {
							if base == "https" {
								cfg.TLS = nw.secure()
							}
						})
						r := create(base + "://api.example.com")
						if !side {
							r = outbound.Request{Method: "GET", URL: r.URL, Timeout: r.Timeout}
						}
						begin := time.Now()
						a, err := client.Do(t.Context(), r)
						sent := outbound.SentUnknown
						if c.name == "request not read" && base == "https" {
							sent = outbound.NotSent // no handshake
							if d := time.Since(begin); d != outbound.DefaultDialTimeout {
								t.Errorf("took %v", d)
							}
						} else if d := time.Since(begin); d != r.Timeout {
							t.Errorf("took %v", d)
						}
						wantFailure(t, err, outbound.Timeout, sent)
						if a.Status != c.status {
							t.Errorf("status %d", a.Status)
						}
						time.Sleep(2 * time.Hour) // lets the provider end
					})
				})
			}
		}
	}
}

func TestCancelInFlight(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		ctx, cancel := context.WithCancel(t.Context())
		nw.serve = func(_ int, c net.Conn) {
			readRequest(bufio.NewReader(c))
			cancel()
			_, _ = io.Copy(io.Discard, c)
		}
		c := newClient(t, nw, secure)
		_, err := c.Do(ctx, create(base))
		wantFailure(t, err, outbound.Canceled, outbound.SentUnknown)
	})
}

// A load balancer that answers before it was asked has answered nothing.
func TestAnswerBeforeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: func(_ int, c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}}
		clock := newStopClock()
		c := newClient(t, nw, func(cfg *outbound.Config) { cfg.Clock = clock })
		r := create("http://api.example.com")
		// Two readings each by the limits and by the checks before and after the
		// dial; the seventh is Write's own.
		clock.stop = func(n int) {
			if n == 7 {
				time.Sleep(time.Second)
			}
		}
		a, err := c.Do(t.Context(), r)
		wantFailure(t, err, outbound.Protocol, outbound.NotSent)
		if a.Status != 0 {
			t.Errorf("status %d", a.Status)
		}
		time.Sleep(time.Minute)
		if w := nw.wire(); w[0] != "" {
			t.Errorf("on the wire: %q", w)
		}
	})
}

// net/http alone loses such an answer when the write fails first.
func TestAnswerBeforeTheWholeRequest(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = func(_ int, c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 2000))
			_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
		}
		nw.conn = func(c net.Conn) net.Conn { return &faulty{Conn: c, lag: time.Second} } // the write fails first
		c := newClient(t, nw, secure)
		r := create(base)
		r.Body = bytes.Repeat([]byte("y"), 1<<20)
		a, err := c.Do(t.Context(), r)
		if err != nil || a.Status != 413 || string(a.Body) != "no" {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

package outbound_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// repeatable is a create that the provider deduplicates.
func repeatable(url string) outbound.Request {
	r := create(url)
	r.Repeatable = true
	return r
}

// dying is the client's end of a connection that dies in its second request's
// Write, or the first after armed.
type dying struct {
	net.Conn
	armed *atomic.Bool
	takes int // bytes it still takes
}

func (d *dying) ReadNow(p []byte) (int, error) { return d.Conn.(*end).ReadNow(p) }

func (d *dying) Write(p []byte) (int, error) {
	if !d.armed.Load() {
		return d.Conn.Write(p)
	}
	n, _ := d.Conn.Write(p[:min(d.takes, len(p))])
	d.Close()
	return n, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
}

// Every moment at which a connection that was kept can die under a call, and
// what the call says. In each row the first read leaves its connection behind.
func TestDeathsOfAKeptConnection(t *testing.T) {
	// second answers one request and does what it is told with the next.
	second := func(then func(br *bufio.Reader, c net.Conn)) func(int, net.Conn) {
		return func(n int, c net.Conn) {
			br := bufio.NewReader(c)
			if n > 1 {
				then = func(br *bufio.Reader, c net.Conn) { readRequest(br); _, _ = io.WriteString(c, ok) }
			} else if readRequest(br) {
				_, _ = io.WriteString(c, ok)
			}
			then(br, c)
		}
	}
	reads := func(raw string) func(*bufio.Reader, net.Conn) {
		return func(br *bufio.Reader, c net.Conn) {
			readRequest(br)
			_, _ = io.WriteString(c, raw)
		}
	}
	for _, c := range []struct {
		name   string
		then   func(br *bufio.Reader, c net.Conn)
		takes  int // of the second request, in Write; -1: all
		class  outbound.Class
		sent   outbound.Sent
		status int
		conns  int // that were opened
		seen   int // whole request heads that reached the provider, the first read's among them
	}{
		// Seen before a byte is written: the call takes a new connection, by itself.
		{"closed while it is idle", func(*bufio.Reader, net.Conn) {}, -1, "", 0, 200, 2, 2},
		{"told off while it is idle", func(br *bufio.Reader, c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			readRequest(br)
		}, -1, "", 0, 200, 2, 2},
		// In Write. No byte taken is proof, one is doubt.
		{"nothing taken", reads(ok), 0, outbound.Reset, outbound.NotSent, 0, 1, 1},
		{"one byte taken", reads(ok), 1, outbound.Reset, outbound.SentUnknown, 0, 1, 1},
		{"half written", reads(ok), 60, outbound.Reset, outbound.SentUnknown, 0, 1, -1},
		// After it.
		{"before the answer", reads(""), -1, outbound.Reset, outbound.SentUnknown, 0, 1, 2},
		{"in the status line", reads("HTTP/1.1 2"), -1, outbound.Protocol, outbound.SentUnknown, 0, 1, 2},
		{"in the headers", reads("HTTP/1.1 202 X\r\nLocation: /v1\r\n"), -1, outbound.Reset, outbound.SentUnknown, 0, 1, 2},
		{"in an informational answer", reads("HTTP/1.1 103 X\r\n\r\n"), -1, outbound.Reset, outbound.SentUnknown, 0, 1, 2},
		{"in the body", reads("HTTP/1.1 202 X\r\nContent-Length: 9\r\n\r\n{"), -1, outbound.BodyCut, outbound.SentUnknown, 202, 1, 2},
		{"after the answer", reads(ok), -1, "", 0, 200, 1, 2},
	} {
		for kind, request := range map[string]func(string) outbound.Request{
			"read":       func(base string) outbound.Request { return outbound.Request{Method: "GET", URL: base} },
			"repeatable": repeatable,
		} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
					var armed atomic.Bool
					nw.serve = second(c.then)
					if c.takes >= 0 {
						nw.conn = func(inner net.Conn) net.Conn { return &dying{inner, &armed, c.takes} }
					}
					client := newClient(t, nw, secure)
					if _, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: base}); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					armed.Store(true)
					a, err := client.Do(t.Context(), request(base))
					if c.class == "" {
						if err != nil {
							t.Error(err)
						}
					} else {
						wantFailure(t, err, c.class, c.sent)
					}
					if a.Status != c.status || a.SentAt.IsZero() != (c.sent == outbound.NotSent) {
						t.Errorf("answer: %+v", a)
					}
					synctest.Wait()
					w := nw.wire()
					if len(w) != c.conns || c.seen >= 0 && requests(w) != c.seen {
						t.Errorf("%d connections, %d requests on %q; want %d and %d", len(w), requests(w), w, c.conns, c.seen)
					}
					if c.name == "nothing taken" && strings.Count(w[0], "\r\n\r\n") != 1 {
						t.Errorf("said to be not sent, yet %q came", w[0])
					}
				})
			})
		}
	}
}

// As TestStopAnywhere, with a connection that was kept: the worker is stopped
// for an hour right before any one of the clock readings of a call on it.
func TestStopAnywhereOnAKeptConnection(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		refused, sent := 0, 0
		for k := 1; ; k++ {
			run := &network{t: t, cert: nw.cert, serve: answering(ok)}
			clock := newStopClock()
			c := newClient(t, run, func(c *outbound.Config) { secure(c); c.Clock = clock })
			if _, err := c.Do(t.Context(), repeatable(base)); err != nil {
				t.Fatal(err)
			}
			before := len(run.wire()[0])
			first, stopped := clock.readings, false
			clock.stop = func(n int) {
				if n == first+k {
					stopped = true
					time.Sleep(time.Hour)
				}
			}
			r := repeatable(base)
			r.Timeout = 2 * time.Hour
			r.Body = bytes.Repeat([]byte("y"), 100_000)
			a, err := c.Do(t.Context(), r)
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			var f *outbound.Failure
			switch {
			case errors.As(err, &f) && f.Sent == outbound.NotSent:
				refused++
				if f.Class != outbound.NotAfter || !a.SentAt.IsZero() || len(strings.Join(run.wire(), "")) != before {
					t.Errorf("stop %d: %v, yet %q came", k, err, run.wire())
				}
			case err != nil:
				t.Errorf("stop %d: %v", k, err)
			default:
				if sent++; a.SentAt.After(r.NotAfter) {
					t.Errorf("stop %d: sent %v after the last moment", k, a.SentAt.Sub(r.NotAfter))
				}
			}
			if !stopped {
				break
			}
		}
		if refused < 3 || sent < 3 {
			t.Errorf("%d refused, %d sent: the sweep shows nothing", refused, sent)
		}
	})
}

// Which connection a call takes after another one: the one that was kept, or its own.
func TestWhatAKeptConnectionIsUsedFor(t *testing.T) {
	const base = "http://api.example.com"
	get := func(url string) outbound.Request { return outbound.Request{Method: "GET", URL: url} }
	with := func(r outbound.Request, ref string) outbound.Request {
		r.Credential = outbound.Credential{Ref: "env:" + ref, In: outbound.InHeader, Name: "X-Key"}
		return r
	}
	for _, c := range []struct {
		name   string
		header string // of each answer
		first  outbound.Request
		wait   time.Duration
		then   outbound.Request
		conns  int
	}{
		{"read, read", "", get(base), 0, get(base + "/other"), 1},
		{"read, repeatable", "", get(base), 0, repeatable(base), 1},
		{"repeatable, read", "", repeatable(base), 0, get(base), 1},
		{"read, create", "", get(base), 0, create(base), 2},
		{"create, read", "", create(base), 0, get(base), 2},
		{"repeatable within a second", "", get(base), time.Second, repeatable(base), 1},
		{"repeatable after it", "", get(base), time.Second + 1, repeatable(base), 2},
		{"read within 30 s", "", get(base), 29 * time.Second, get(base), 1},
		{"read after them", "", get(base), 31 * time.Second, get(base), 2},
		{"read before the provider closes", "Keep-Alive: timeout=5, max=100\r\n", get(base), 4 * time.Second, get(base), 1},
		{"read in the second before it", "Keep-Alive: max=100, timeout=5\r\n", get(base), 4*time.Second + 1, get(base), 2},
		{"provider closes at once", "Keep-Alive: timeout=1\r\n", get(base), 0, get(base), 2},
		{"provider keeps longer than we do", "Keep-Alive: timeout=600\r\n", get(base), 31 * time.Second, get(base), 2},
		{"what it says cannot be read", "Keep-Alive: timeout=soon\r\n", get(base), 29 * time.Second, get(base), 1},
		{"the same credential", "", with(get(base), "A"), 0, with(get(base), "A"), 1},
		{"another account's", "", with(get(base), "A"), 0, with(get(base), "B"), 2},
		{"none after one", "", with(get(base), "A"), 0, get(base), 2},
		{"one that stays here", "", get(base), 0, outbound.Request{Method: "GET", URL: base, Credential: outbound.Credential{Ref: "env:A", In: outbound.Nowhere}}, 1},
		{"another host", "", get(base), 0, get("http://b.example.com"), 2},
		{"another port", "", get(base), 0, get(base + ":81"), 2},
		{"the port that goes without saying", "", get(base), 0, get(base + ":80"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(strings.Replace(ok, "\r\n", "\r\n"+c.header, 1))}
				client := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = secrets{"A": "secret-of-a", "B": "secret-of-b"} })
				for i, r := range []outbound.Request{c.first, c.then} {
					r.NotAfter = map[bool]time.Time{true: time.Now().Add(time.Minute)}[r.SideEffect]
					if a, err := client.Do(t.Context(), r); err != nil || string(a.Body) != "ok" {
						t.Errorf("call %d: %+v, %v", i, a, err)
					}
					if i == 0 {
						time.Sleep(c.wait)
						synctest.Wait()
					}
				}
				if w := nw.wire(); len(w) != c.conns || requests(w) != 2 {
					t.Errorf("%d connections for %d requests, want %d", len(w), requests(w), c.conns)
				}
			})
		})
	}
}

// A rotated credential does not go where the old one went.
func TestRotationTakesAnotherConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering(ok)}
		key := secrets{"KEY": "the first value"}
		c := newClient(t, nw, func(cfg *outbound.Config) { cfg.Resolve = key })
		r := outbound.Request{Method: "GET", URL: "http://api.example.com", Credential: outbound.Credential{Ref: "env:KEY", In: outbound.InBasic, Format: "u:{}"}}
		for _, key["KEY"] = range []string{"the first value", "the second value", "the second value"} {
			if _, err := c.Do(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if w := nw.wire(); len(w) != 2 || requests(w[:1]) != 1 {
			t.Errorf("on the wire: %q", w)
		}
	})
}

// A connection is replaced after five minutes of work.
func TestKeptConnectionsHaveALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering(ok)}
		c := newClient(t, nw, nil)
		for range 86 { // at 0 s, 7 s … 595 s; the second connection begins at 301 s
			if _, err := c.Do(t.Context(), outbound.Request{Method: "GET", URL: "http://api.example.com"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(7 * time.Second)
		}
		if w := nw.wire(); len(w) != 2 {
			t.Errorf("%d connections in ten minutes", len(w))
		}
	})
}

// What cannot be looked at before a request carries one only.
func TestConnectionWithoutALook(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = answering(ok)
		nw.conn = func(c net.Conn) net.Conn { return &faulty{Conn: c} }
		c := newClient(t, nw, secure)
		for range 2 {
			if _, err := c.Do(t.Context(), outbound.Request{Method: "GET", URL: base}); err != nil {
				t.Fatal(err)
			}
		}
		if w := nw.wire(); len(w) != 2 || !strings.Contains(w[0], "\r\nConnection: close\r\n") {
			t.Errorf("on the wire: %q", w)
		}
	})
}

// The number of idle connections is bounded for one place and in all, and Close
// ends them, also the one of a call that is under way then.
func TestIdleConnectionsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name         string
		places, each int
		left         int
	}{
		{"one place", 1, 40, 32},
		{"many places", 20, 16, 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var open atomic.Int32
				nw := &network{t: t}
				nw.serve = func(n int, conn net.Conn) {
					open.Add(1)
					defer open.Add(-1)
					br := bufio.NewReader(conn)
					for readRequest(br) {
						time.Sleep(time.Second) // so that each call has its own
						_, _ = io.WriteString(conn, ok)
					}
				}
				client := newClient(t, nw, nil)
				call := func(host int) {
					if _, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: fmt.Sprintf("http://h%d.example.com", host)}); err != nil {
						t.Error(err)
					}
				}
				var calls sync.WaitGroup
				for host := range c.places {
					for range c.each {
						calls.Go(func() { call(host) })
					}
				}
				calls.Wait()
				synctest.Wait()
				if n := int(open.Load()); n != c.left {
					t.Errorf("%d idle connections, want %d", n, c.left)
				}
				time.Sleep(46 * time.Second)
				synctest.Wait()
				if n := open.Load(); n != 0 {
					t.Errorf("%d idle connections after 46 s", n)
				}
				calls.Go(func() { call(0) })
				call(0)
				calls.Go(func() { call(0) })
				time.Sleep(time.Second / 2)
				client.Close()
				calls.Wait()
				synctest.Wait()
				if n := open.Load(); n != 0 {
					t.Errorf("%d connections after Close", n)
				}
			})
		})
	}
}

// A long body is written while the answer is read; the connection is kept only
// where all of it was written.
func TestLongBodyOnAKeptConnection(t *testing.T) {
	both(t, func(t *testing.T, nw *network, secure func(*outbound.Config), base string) {
		nw.serve = answeringLater(ok)
		c := newClient(t, nw, secure)
		r := repeatable(base)
		r.Body = bytes.Repeat([]byte("y"), 1<<20)
		for range 3 {
			if a, err := c.Do(t.Context(), r); err != nil || string(a.Body) != "ok" {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		if w := nw.wire(); len(w) != 1 || requests(w) != 3 {
			t.Errorf("%d connections, %d requests", len(w), requests(w))
		}
		// An answer before the whole body, which nobody reads any more.
		nw.serve = func(_ int, c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 2000))
			_, _ = io.WriteString(c, ok)
			time.Sleep(time.Minute)
		}
		c.Close()
		c = newClient(t, nw, secure)
		if a, err := c.Do(t.Context(), r); err != nil || string(a.Body) != "ok" {
			t.Errorf("%+v, %v", a, err)
		}
		nw.serve = answeringLater(ok)
		if _, err := c.Do(t.Context(), r); err != nil || len(nw.wire()) != 3 {
			t.Errorf("%v, %d connections", err, len(nw.wire()))
		}
		time.Sleep(time.Hour) // lets the provider end
	})
}

// On sockets: a connection that was reset or closed while idle costs nothing,
// and under many calls at once each gets its own answer.
func TestKeptSockets(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprint(secure), func(t *testing.T) {
			var conns atomic.Int32
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				_, _ = fmt.Fprintf(w, "%s %s", r.URL.Path, body)
			}))
			srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns.Add(1)
				}
			}
			start := srv.Start
			if secure {
				start = srv.StartTLS
			}
			start()
			defer srv.Close()
			client := newClient(t, &network{t: t}, func(cfg *outbound.Config) {
				cfg.Dial = outbound.SystemDialer(nil)
				cfg.Policy.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				if secure {
					cfg.TLS = srv.Client().Transport.(*http.Transport).TLSClientConfig
				}
			})
			call := func(i int) {
				r := repeatable(srv.URL + fmt.Sprintf("/%d", i))
				r.Body = fmt.Appendf(nil, "b%d", i)
				if i%2 == 0 {
					r = outbound.Request{Method: "GET", URL: r.URL}
				}
				a, err := client.Do(t.Context(), r)
				if want := fmt.Sprintf("/%d %s", i, r.Body); err != nil || string(a.Body) != want {
					t.Errorf("%q, %v, want %q", a.Body, err, want)
				}
			}
			for i := range 20 {
				call(i)
			}
			if n := conns.Load(); n > 2 { // one, unless the machine stood still for a second
				t.Errorf("%d connections for 20 calls", n)
			}
			var calls sync.WaitGroup
			for w := range 8 {
				calls.Go(func() {
					for i := range 50 {
						call(100*w + i)
					}
				})
			}
			calls.Wait()
			srv.CloseClientConnections()
			for i := range 20 {
				call(i)
			}
		})
	}
}

package outbound_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// destinations that nobody may be led to, as a link may spell them.
var private = []string{
	"127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
	"198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "168.63.129.16",
	"[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]",
	"[64:ff9b::7f00:1]", "[64:ff9b::808:808]", "[64:ff9b:1::1]", "[fd00::1]", "[fe80::1]", "[ff02::1]", "[fec0::1]",
	"[2002:7f00:1::]", "[2001::1]", "[2001:db8::1]", "[fd00:ec2::254]",
	// Numbers that some resolvers take for an address.
	"0x7f000001", "0X7F.1", "2130706433", "0177.0.0.1", "127.1", "127.0.0.1.", "127.0.0.01", "256.256.256.256", "name.0x7f", "1.",
}

var public = []string{
	"93.184.216.34", "[2606:2800:220:1::1]", "[::ffff:93.184.216.34]", "files.example.com", "files.example.com.", "0x7f000001.example.com", "a1", "1.2.3.4.com",
}

// Where nobody is trusted, a refused destination sees no connection, and the
// failure names the address and is one of policy.
func TestPolicyOnAddresses(t *testing.T) {
	for _, side := range []bool{false, true} {
		for _, host := range private {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(ok)}
				r := outbound.Request{Method: "GET", URL: "http://" + host + "/latest/meta-data?token=hidden", Trusted: []string{"http://api.example.com"}}
				if side {
					r.SideEffect, r.NotAfter = true, time.Now().Add(time.Minute)
				}
				a, err := newClient(t, nw, nil).Do(t.Context(), r)
				wantFailure(t, err, outbound.DestinationRefused, outbound.NotSent)
				if len(nw.wire()) != 0 || a.Status != 0 || len(a.Body) != 0 || !a.SentAt.IsZero() {
					t.Errorf("%s: %d connections, %+v", host, len(nw.wire()), a)
				}
				// A mapped address is named as what it is.
				name := strings.ReplaceAll(strings.Trim(host, "[]"), "::ffff:7f00:1", "127.0.0.1")
				if text := err.Error(); !strings.Contains(text, strings.TrimPrefix(name, "::ffff:")) || strings.Contains(text, "hidden") || strings.Contains(text, "meta-data") {
					t.Errorf("%s: %v", host, text)
				}
				if text := words(err); !strings.HasSuffix(text, "; if it is the provider's, serve --allow-network allows it") || strings.Contains(text, "policy") {
					t.Errorf("%s: %v", host, text)
				}
			})
		}
		for _, host := range public {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(ok)}
				r := outbound.Request{Method: "GET", URL: "http://" + host}
				if side {
					r.SideEffect, r.NotAfter = true, time.Now().Add(time.Minute)
				}
				if _, err := newClient(t, nw, nil).Do(t.Context(), r); err != nil {
					t.Errorf("%s: %v", host, err)
				}
			})
		}
	}
}

// What the operator chose may be anywhere: as origin, or as a network.
func TestPolicyLetsTheOperatorChoose(t *testing.T) {
	for _, c := range []struct {
		name, url string
		trusted   []string
		allow     []string
		refused   bool
	}{
		{"origin", "http://127.0.0.1:8080/x", []string{"http://127.0.0.1:8080"}, nil, false},
		{"origin in an unusual spelling", "http://localhost.:81/", []string{"http://localhost.:81"}, nil, false},
		{"another port", "http://127.0.0.1:8081/x", []string{"http://127.0.0.1:8080"}, nil, true},
		{"another scheme", "http://127.0.0.1:443/x", []string{"https://127.0.0.1"}, nil, true},
		{"another name for it", "http://[::ffff:127.0.0.1]:8080/x", []string{"http://127.0.0.1:8080"}, nil, true},
		{"network", "http://10.1.2.3/", nil, []string{"192.168.0.0/16", "10.1.0.0/16"}, false},
		{"mapped into a network", "http://[::ffff:10.1.2.3]/", nil, []string{"10.1.0.0/16"}, false},
		{"beside the network", "http://10.2.0.1/", nil, []string{"10.1.0.0/16", "fd00::/8"}, true},
		{"IPv6 network", "http://[fd00:1::9]/", nil, []string{"10.1.0.0/16", "fd00:1::/64"}, false},
		{"translated", "http://[64:ff9b::5db8:d822]/", nil, []string{"64:ff9b::/96"}, false},
		{"one address", "http://169.254.169.254/", nil, []string{"169.254.169.254/32"}, false},
		{"name in an allowed network", "http://inside.example/", nil, []string{"10.0.0.0/8"}, false},
		{"name", "http://inside.example/", nil, nil, true},
		{"name that is an origin", "http://inside.example/", []string{"http://inside.example"}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, serve: answering(ok), hosts: map[string][]string{"inside.example": {"10.9.9.9"}, "localhost.": {"127.0.0.1"}}}
				client := newClient(t, nw, func(cfg *outbound.Config) {
					for _, n := range c.allow {
						p, err := outbound.ParseNetwork(n)
						if err != nil {
							t.Fatal(err)
						}
						cfg.Policy.Allow = append(cfg.Policy.Allow, p)
					}
				})
				for _, r := range []outbound.Request{create(c.url), {Method: "GET", URL: c.url}} {
					r.Trusted = c.trusted
					_, err := client.Do(t.Context(), r)
					if c.refused {
						wantFailure(t, err, outbound.DestinationRefused, outbound.NotSent)
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A name that had a public address a moment ago leads to a private one now.
func TestPolicyWhereANameMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: once(ok), hosts: map[string][]string{"moves.example": {"93.184.216.34", "127.0.0.1", "93.184.216.34"}}}
		client := newClient(t, nw, nil)
		get := outbound.Request{Method: "GET", URL: "http://moves.example/"}
		for i, refused := range []bool{false, true, false} {
			_, err := client.Do(t.Context(), get)
			synctest.Wait() // the connection has ended; the next read dials
			if refused {
				wantFailure(t, err, outbound.DestinationRefused, outbound.NotSent)
			} else if err != nil {
				t.Errorf("read %d: %v", i, err)
			}
		}
		if n := len(nw.wire()); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// The same host and port, kept alive for one use, is not taken for the other.
func TestPolicySharesNoConnection(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			nw := &network{t: t, serve: answering(ok), hosts: map[string][]string{"inside.example": {"10.0.0.1"}}}
			client := newClient(t, nw, nil)
			for i, trusted := range []bool{first, !first, first, !first} {
				r := outbound.Request{Method: "GET", URL: "http://inside.example/"}
				if trusted {
					r.Trusted = []string{"http://inside.example"}
				}
				_, err := client.Do(t.Context(), r)
				synctest.Wait()
				if !trusted {
					wantFailure(t, err, outbound.DestinationRefused, outbound.NotSent)
				} else if err != nil {
					t.Errorf("read %d: %v", i, err)
				}
			}
			if w := nw.wire(); len(w) != 1 || requests(w) != 2 {
				t.Errorf("%d connections, %d requests; want both trusted reads on one", len(w), requests(w))
			}
		})
	}
}

func TestPolicyOnRedirects(t *testing.T) {
	const base = "http://api.internal"
	for _, c := range []struct {
		name    string
		answers map[string]string // where each host and path redirects to; "" answers
		refused bool
		seen    int // requests
	}{
		{"to a public host", map[string]string{"api.internal/": "http://cdn.example.com/x", "cdn.example.com/x": ""}, false, 2},
		{"to a private address", map[string]string{"api.internal/": "http://169.254.169.254/latest"}, true, 1},
		{"to loopback by another spelling", map[string]string{"api.internal/": "http://0x7f000001/"}, true, 1},
		{"to a name of a private address", map[string]string{"api.internal/": "http://inside.example/"}, true, 1},
		{"by a public host to a private address", map[string]string{"api.internal/": "http://cdn.example.com/x", "cdn.example.com/x": "http://[::1]/"}, true, 2},
		{"to another trusted origin", map[string]string{"api.internal/": "http://files.internal:81/x", "files.internal:81/x": ""}, false, 2},
		{"back to the trusted origin by others", map[string]string{"api.internal/": "http://cdn.example.com/x", "cdn.example.com/x": "http://api.internal/admin"}, true, 2},
		{"to another port of a trusted host", map[string]string{"api.internal/": "http://api.internal:22/"}, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nw := &network{t: t, hosts: map[string][]string{"api.internal": {"10.0.0.1"}, "files.internal": {"10.0.0.2"}, "inside.example": {"10.0.0.3"}}}
				nw.serve = func(_ int, conn net.Conn) {
					br := bufio.NewReader(conn)
					for {
						req, err := http.ReadRequest(br)
						if err != nil {
							return
						}
						switch to, known := c.answers[req.Host+req.RequestURI]; {
						case !known:
							t.Errorf("unexpected %s%s", req.Host, req.RequestURI)
						case to == "":
							_, _ = io.WriteString(conn, ok)
						default:
							fmt.Fprintf(conn, "HTTP/1.1 302 X\r\nLocation: %s\r\nContent-Length: 6\r\n\r\nmoved!", to)
						}
					}
				}
				a, err := newClient(t, nw, nil).Do(t.Context(), outbound.Request{
					Method: "GET", URL: base + "/", FollowRedirects: 3, Trusted: []string{base, "http://files.internal:81"},
				})
				if c.refused {
					// The first hop has left.
					wantFailure(t, err, outbound.DestinationRefused, outbound.SentUnknown)
					if text := err.Error(); !strings.Contains(text, "policy (nothing was sent there; ") || strings.Contains(text, "policy (may have been sent)") {
						t.Errorf("what was refused is told as seen: %s", text)
					}
					if a.Status != 0 || len(a.Body) != 0 {
						t.Errorf("%+v", a)
					}
				} else if err != nil || string(a.Body) != "ok" {
					t.Errorf("%+v, %v", a, err)
				}
				if n := requests(nw.wire()); n != c.seen {
					t.Errorf("%d requests, want %d", n, c.seen)
				}
			})
		})
	}
}

// A dialer that does not ask cannot lead anywhere that is not trusted.
func TestPolicyOverADialerThatDoesNotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := &network{t: t, serve: answering(ok)}
		client := newClient(t, nw, func(cfg *outbound.Config) {
			cfg.Dial = func(ctx context.Context, network, addr string, _ outbound.Control) (net.Conn, error) {
				return nw.dial(ctx, network, addr, anywhere)
			}
		})
		r := create("http://api.example.com")
		_, err := client.Do(t.Context(), r)
		wantFailure(t, err, outbound.Dial, outbound.NotSent)
		synctest.Wait()
		if n := requests(nw.wire()); n != 0 {
			t.Errorf("%d requests", n)
		}
		r.Trusted = []string{"http://api.example.com"}
		if _, err := client.Do(t.Context(), r); err != nil {
			t.Error(err)
		}
	})
}

func TestParseNetwork(t *testing.T) {
	for _, c := range []struct{ in, says string }{
		{"10.0.0.0/8", ""},
		{"0.0.0.0/0", ""},
		{"192.168.7.9/32", ""},
		{"fd00::/8", ""},
		{"64:ff9b::/96", ""},
		{"", `"" is not a network`},
		{"10.0.0.0", "is not a network: want ADDRESS/BITS"},
		{"10.0.0.0/33", "is not a network"},
		{"10.0/8", "is not a network"},
		{"localhost/8", "is not a network"},
		{"fe80::1%eth0/64", "is not a network"},
		{"10.1.2.3/8", "write 10.0.0.0/8 for the network or 10.1.2.3/32 for the address"},
		{"fd00::1/8", "write fd00::/8 for the network or fd00::1/128 for the address"},
		{"::ffff:10.0.0.0/104", "IPv4 network in IPv6 spelling"},
		{strings.Repeat("9", 100), strings.Repeat("9", 60) + `" is not`},
	} {
		_, err := outbound.ParseNetwork(c.in)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: %v", c.in, err)
		}
	}
	_, err := outbound.New(outbound.Config{
		Dial: outbound.SystemDialer(nil), Clock: outbound.NewSystemClock(), Resolve: secrets{},
		Policy: outbound.Policy{Allow: []netip.Prefix{{}}},
	})
	if err == nil {
		t.Error("a network that is none was accepted")
	}
}

// Real sockets and the real resolver, which asks a name server in memory: what
// is refused is not connected to.
func TestPolicyOnRealSockets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	names := &nameServer{addresses: map[string][4]byte{"inside.example.": {127, 0, 0, 1}}}
	client := newClient(t, &network{t: t}, func(cfg *outbound.Config) {
		cfg.Dial = outbound.SystemDialer(&net.Resolver{PreferGo: true, Dial: names.dial})
	})
	defer names.wait()
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f000001", "127.1", "inside.example", "inside.example."} {
		url := "http://" + host + ":" + port
		for _, r := range []outbound.Request{create(url), {Method: "GET", URL: url}} {
			r.Timeout = 10 * time.Second
			_, err := client.Do(t.Context(), r)
			wantFailure(t, err, outbound.DestinationRefused, outbound.NotSent)
		}
	}
	if names.asked("inside.example.") == 0 {
		t.Error("the name was not looked up, so the test shows nothing about it")
	}
	// The first connection in the listener's queue is the trusted one.
	answered := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			answered <- err.Error()
			return
		}
		defer c.Close()
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			answered <- err.Error()
			return
		}
		_, _ = io.WriteString(c, ok)
		answered <- req.RequestURI
	}()
	origin := "http://inside.example:" + port
	if _, err := client.Do(t.Context(), outbound.Request{Method: "GET", URL: origin + "/trusted", Trusted: []string{origin}, Timeout: 10 * time.Second}); err != nil {
		t.Error(err)
	}
	if path := <-answered; path != "/trusted" {
		t.Errorf("the listener saw %q first", path)
	}
}

// nameServer answers A questions over a stream, RFC 1035, and knows no other type.
type nameServer struct {
	addresses map[string][4]byte
	serving   sync.WaitGroup
	mu        sync.Mutex // guards questions
	questions []string
}

func (s *nameServer) wait() { s.serving.Wait() }

func (s *nameServer) asked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, q := range s.questions {
		if q == name {
			n++
		}
	}
	return n
}

func (s *nameServer) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	s.serving.Go(func() {
		defer server.Close()
		for s.answer(server) == nil {
		}
	})
	return client, nil
}

func (s *nameServer) answer(c net.Conn) error {
	var length uint16
	if err := binary.Read(c, binary.BigEndian, &length); err != nil {
		return err
	}
	q := make([]byte, length)
	if _, err := io.ReadFull(c, q); err != nil {
		return err
	}
	name, at := "", 12
	for at < len(q) && q[at] != 0 {
		n := int(q[at])
		name += string(q[at+1:at+1+n]) + "."
		at += 1 + n
	}
	at++
	if at+4 > len(q) {
		return errors.New("short question")
	}
	kind := binary.BigEndian.Uint16(q[at:])
	s.mu.Lock()
	s.questions = append(s.questions, name)
	s.mu.Unlock()
	ip, known := s.addresses[name]
	head := []byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}
	a := append(head, q[12:at+4]...)
	switch {
	case !known:
		a[3] = 0x83 // no such name
	case kind == 1:
		a[7] = 1
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		a = append(a, ip[:]...)
	}
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
	return err
}

func words(err error) string {
	f, _ := errors.AsType[*outbound.Failure](err)
	return f.Words()
}

// The advice is not cut off where a real dialer's words and the hop before stand
// before it: 300 bytes of a message are shown.
func TestRefusalKeepsItsAdvice(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://[::1]:8443/files/result?signature=hidden", http.StatusFound)
	}))
	defer srv.Close()
	c, err := outbound.New(outbound.Config{
		Dial: outbound.SystemDialer(nil), Clock: outbound.NewSystemClock(), Resolve: secrets{}, AllowHTTP: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Do(t.Context(), outbound.Request{Method: "GET", URL: srv.URL, FollowRedirects: 1, Trusted: []string{srv.URL}})
	wantFailure(t, err, outbound.DestinationRefused, outbound.SentUnknown)
	if text := words(err); len(text) > 300 || !strings.HasSuffix(text, "connect to [::1]:8443: address ::1 is not public; if it is the provider's, serve --allow-network allows it") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

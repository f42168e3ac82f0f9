package outbound_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // net/http logs unasked answers there, which one test provokes
	goleak.VerifyTestMain(m)
}

// network is an in-memory provider: each dial makes a pipe, serve plays the
// other end. Memory does not freeze fake time as sockets do.
type network struct {
	t *testing.T
	// serve plays connection number n, counted from 1; over TLS it sees plain text.
	serve func(n int, c net.Conn)
	// dialing runs inside the dial, before the connection exists.
	dialing func(ctx context.Context) error
	// conn may wrap the client's end.
	conn func(net.Conn) net.Conn
	cert *tls.Certificate // set by secure
	// hosts are the addresses of names, public if there is none; one that is a
	// list has another at each dial.
	hosts map[string][]string

	mu    sync.Mutex // guards the fields below
	conns []*received
	addrs []string
	asked []string // addresses that the client was asked about
}

// received is what one connection carried to the provider, after decryption,
// and when the first byte came.
type received struct {
	net.Conn
	mu    sync.Mutex
	bytes []byte
	first time.Time
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && len(r.bytes) == 0 {
		r.first = time.Now()
	}
	r.bytes = append(r.bytes, p[:n]...)
	return n, err
}

func (r *received) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.bytes)
}

// anywhere lets everything be dialled.
func anywhere(context.Context, string, string, syscall.RawConn) error { return nil }

// resolve gives the IP address and port of addr.
func (nw *network) resolve(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		nw.t.Error(err)
	}
	nw.mu.Lock()
	defer nw.mu.Unlock()
	ip := "93.184.216.34"
	if list := nw.hosts[host]; len(list) > 0 {
		ip = list[0]
		if len(list) > 1 {
			nw.hosts[host] = list[1:]
		}
	} else if literal, err := netip.ParseAddr(host); err == nil {
		ip = literal.String() // sockets write a mapped one as IPv4
	}
	to := net.JoinHostPort(ip, port)
	nw.asked = append(nw.asked, to)
	return to
}

func (nw *network) dial(ctx context.Context, _, addr string, control outbound.Control) (net.Conn, error) {
	if nw.dialing != nil {
		if err := nw.dialing(ctx); err != nil {
			return nil, err
		}
	}
	if err := control(ctx, "tcp4", nw.resolve(addr), nil); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	client, server := pipe()
	end := net.Conn(server)
	if nw.cert != nil {
		end = tls.Server(server, &tls.Config{
			Certificates: []tls.Certificate{*nw.cert},
			NextProtos:   []string{"h2", "http/1.1"},
		})
	}
	r := &received{Conn: end}
	nw.mu.Lock()
	nw.conns, nw.addrs = append(nw.conns, r), append(nw.addrs, addr)
	n, serve := len(nw.conns), nw.serve
	nw.mu.Unlock()
	go func() {
		serve(n, r)
		if tc, secure := end.(*tls.Conn); secure {
			if s := tc.ConnectionState(); s.HandshakeComplete && s.NegotiatedProtocol != "http/1.1" {
				nw.t.Errorf("negotiated %q", s.NegotiatedProtocol)
			}
		}
		end.Close()
	}()
	if nw.conn != nil {
		client = nw.conn(client)
	}
	return client, nil
}

// faulty is the client's end of a connection with faults.
type faulty struct {
	net.Conn
	lag       time.Duration // between a Read's data and its return
	stayAlive bool          // Close does nothing
}

func (f *faulty) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	time.Sleep(f.lag)
	return n, err
}

func (f *faulty) Close() error {
	if f.stayAlive {
		return nil
	}
	return f.Conn.Close()
}

// wire is all that reached the provider, one text per connection.
func (nw *network) wire() []string {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	var all []string
	for _, r := range nw.conns {
		all = append(all, r.text())
	}
	return all
}

func (nw *network) firstByte() time.Time {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	for _, r := range nw.conns {
		r.mu.Lock()
		at := r.first
		r.mu.Unlock()
		if !at.IsZero() {
			return at
		}
	}
	return time.Time{}
}

// secure makes the provider speak TLS and returns the client's side of it.
func (nw *network) secure() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		nw.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"api.example.com"},
		NotBefore:    time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), // fake time begins in 2000
		NotAfter:     time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		nw.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		nw.t.Fatal(err)
	}
	nw.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{RootCAs: pool}
}

// answering serves any number of requests per connection with the same bytes.
func answering(raw string) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		for {
			if !readRequest(br) {
				return
			}
			if _, err := io.WriteString(c, raw); err != nil {
				return
			}
		}
	}
}

// answeringLater does so a moment after the whole request has come: by then whoever
// wrote it knows that it is written.
func answeringLater(raw string) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		for readRequest(br) {
			time.Sleep(time.Millisecond)
			if _, err := io.WriteString(c, raw); err != nil {
				return
			}
		}
	}
}

func readRequest(br *bufio.Reader) bool {
	req, err := http.ReadRequest(br)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// once serves one request and ends the connection.
func once(raw string) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		if readRequest(bufio.NewReader(c)) {
			_, _ = io.WriteString(c, raw)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// stopClock is the system clock with faults: stop runs at the beginning of
// each reading (a process can be stopped right before it), the offsets shift one clock
// against the other.
type stopClock struct {
	outbound.SystemClock
	mu         sync.Mutex
	readings   int
	stop       func(reading int)
	wall, mono time.Duration
}

func newStopClock() *stopClock { return &stopClock{SystemClock: outbound.NewSystemClock()} }

func (c *stopClock) reading() (wall, mono time.Duration) {
	c.mu.Lock()
	c.readings++
	n, stop := c.readings, c.stop
	c.mu.Unlock()
	if stop != nil {
		stop(n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.mono
}

func (c *stopClock) Now() time.Time {
	d, _ := c.reading()
	return c.SystemClock.Now().Add(d)
}

func (c *stopClock) Monotonic() time.Duration {
	_, d := c.reading()
	return c.SystemClock.Monotonic() + d
}

func (c *stopClock) shift(wall, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.mono = wall, mono
}

// secrets resolves from a map.
type secrets map[string]string

func (s secrets) Resolve(_ context.Context, ref string) (outbound.Secret, error) {
	return outbound.References{LookupEnv: func(name string) (string, bool) { v, ok := s[name]; return v, ok }}.Resolve(context.Background(), ref)
}

func newClient(t *testing.T, nw *network, change func(*outbound.Config)) *outbound.Client {
	t.Helper()
	cfg := outbound.Config{Dial: nw.dial, Clock: outbound.NewSystemClock(), Resolve: secrets{}, AllowHTTP: true}
	if change != nil {
		change(&cfg)
	}
	c, err := outbound.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// create is a call with side effects that may leave within a minute.
func create(url string) outbound.Request {
	return outbound.Request{
		Method: "POST", URL: url, Body: []byte(`{"prompt":"x"}`), SideEffect: true,
		Header:   []outbound.Header{{Name: "Idempotency-Key", Value: "k1"}, {Name: "Content-Type", Value: "application/json"}},
		NotAfter: time.Now().Add(time.Minute), Timeout: 30 * time.Second,
	}
}

func wantFailure(t *testing.T, err error, class outbound.Class, sent outbound.Sent) {
	t.Helper()
	f, isFailure := errors.AsType[*outbound.Failure](err)
	if !isFailure {
		t.Fatalf("error is %T %v, want *Failure %s", err, err, class)
	}
	if f.Class != class || f.Sent != sent {
		t.Errorf("got %s, %s (%v); want %s, %s", f.Class, f.Sent, f, class, sent)
	}
}

// requests counts request lines on the wire.
func requests(wire []string) int {
	n := 0
	for _, w := range wire {
		n += strings.Count(w, " HTTP/1.1\r\n")
	}
	return n
}

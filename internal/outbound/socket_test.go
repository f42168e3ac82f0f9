package outbound_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// Real sockets, whose errors memory does not have. No test here waits on time.
func TestRealSockets(t *testing.T) {
	listen := func(t *testing.T, serve func(*net.TCPConn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serve(c.(*net.TCPConn))
				c.Close()
			}
		}()
		t.Cleanup(func() { _ = l.Close(); <-done })
		return "http://" + l.Addr().String()
	}
	dialing := func(cfg *outbound.Config) {
		cfg.Dial = outbound.SystemDialer(nil)
		cfg.Policy.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}

	t.Run("reset after the request", func(t *testing.T) {
		url := listen(t, func(c *net.TCPConn) {
			readRequest(bufio.NewReader(c))
			_ = c.SetLinger(0)
		})
		_, err := newClient(t, &network{t: t}, dialing).Do(t.Context(), create(url))
		wantFailure(t, err, outbound.Reset, outbound.SentUnknown)
	})
	t.Run("closed after the request", func(t *testing.T) {
		url := listen(t, func(c *net.TCPConn) { readRequest(bufio.NewReader(c)) })
		_, err := newClient(t, &network{t: t}, dialing).Do(t.Context(), create(url))
		wantFailure(t, err, outbound.Reset, outbound.SentUnknown)
	})
	t.Run("reset in the body", func(t *testing.T) {
		url := listen(t, func(c *net.TCPConn) {
			readRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 202 X\r\nContent-Length: 9\r\n\r\n{")
		})
		a, err := newClient(t, &network{t: t}, dialing).Do(t.Context(), create(url))
		wantFailure(t, err, outbound.BodyCut, outbound.SentUnknown)
		if a.Status != 202 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url := "http://" + l.Addr().String()
		_ = l.Close()
		_, err = newClient(t, &network{t: t}, dialing).Do(t.Context(), create(url))
		wantFailure(t, err, outbound.Dial, outbound.NotSent)
	})
	t.Run("TLS server of net/http", func(t *testing.T) {
		var seen atomic.Int32
		srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if r.ProtoMajor == 1 && string(b) == `{"prompt":"x"}` {
				seen.Add(1)
			}
			w.WriteHeader(http.StatusAccepted)
		}))
		defer srv.Close()
		c := newClient(t, &network{t: t}, func(cfg *outbound.Config) {
			dialing(cfg)
			cfg.TLS = srv.Client().Transport.(*http.Transport).TLSClientConfig
		})
		for range 3 { // the later ones resume the TLS session
			if a, err := c.Do(t.Context(), create(srv.URL)); err != nil || a.Status != 202 {
				t.Errorf("%+v, %v", a, err)
			}
		}
		if seen.Load() != 3 {
			t.Errorf("%d requests", seen.Load())
		}
	})
}

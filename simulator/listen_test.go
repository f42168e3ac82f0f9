package simulator_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// pair is both ends of a memory connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l := simulator.NewMemoryListener()
	accepted := make(chan net.Conn)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	client, err := l.DialContext(t.Context(), "tcp", "any:80")
	if err != nil {
		t.Fatal(err)
	}
	return client, <-accepted
}

func TestMemoryConnData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t)
		sent := bytes.Repeat([]byte("0123456789"), 50_000) // more than the window
		go func() {
			if n, err := a.Write(sent); n != len(sent) || err != nil {
				t.Errorf("write: %d %v", n, err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to a closed peer: %v", err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
	})
}

func TestMemoryConnDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t)
		defer a.Close()
		defer b.Close()
		start := time.Now()
		buf := make([]byte, 1)
		read := func(want time.Duration) {
			t.Helper()
			if _, err := a.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || !isTimeout(err) {
				t.Errorf("read: %v", err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("after %v, want %v", got, want)
			}
		}
		set := func(c net.Conn, at time.Duration) {
			t.Helper()
			if err := c.SetDeadline(start.Add(at)); err != nil {
				t.Fatal(err)
			}
		}
		set(a, 10*time.Minute)
		read(10 * time.Minute)
		read(10 * time.Minute)            // it stays expired
		set(a, 30*time.Minute)            // until it is moved
		go func() { set(a, time.Hour) }() // also under a read that waits
		read(time.Hour)
		go func() {
			time.Sleep(time.Minute)
			set(a, -time.Hour) // into the past: at once
		}()
		set(a, 100*time.Hour)
		read(61 * time.Minute)

		// Taken away: the read waits for data.
		if err := a.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(24 * time.Hour)
			_, _ = b.Write([]byte("x"))
		}()
		if n, err := a.Read(buf); n != 1 || err != nil {
			t.Errorf("read: %d %v", n, err)
		}

		// A write that finds no room expires too, and says what it sent.
		if err := b.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Write(make([]byte, 100_000)); n != 64<<10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %d %v", n, err)
		}
	})
}

func TestMemoryListenerDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := simulator.NewMemoryListener()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.DialContext(ctx, "tcp", "x:80"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial with nobody accepting: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.DialContext(t.Context(), "tcp", "x:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial after close: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after close: %v", err)
		}
	})
}

// TestMemoryKeepAlive: connections may be reused, and half-read bodies and
// timeouts of the whole client work as on sockets.
func TestMemoryKeepAlive(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		w.sim.Mount("", simulator.Example, simulator.On(simulator.Status, simulator.Nth(2), simulator.DelayAfter(time.Hour)))
		dials := 0
		tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return w.mem.DialContext(ctx, network, addr)
		}}
		defer tr.CloseIdleConnections()
		w.client = &http.Client{Transport: tr, Timeout: time.Minute}
		id := w.create("", "k").field("job_id")
		w.want(200, w.call("GET", "/v1/jobs/"+id, ""))
		w.equal("one connection", dials, 1)
		a := w.call("GET", "/v1/jobs/"+id, "")
		if !isTimeout(a.err) || a.took != time.Minute {
			t.Errorf("%v after %v", a.err, a.took)
		}
		w.want(200, w.call("GET", "/v1/jobs/"+id, ""))
		w.equal("another one", dials, 2)
	})
}

// TestTCP runs the transport faults on real sockets.
func TestTCP(t *testing.T) {
	sim := simulator.New(simulator.Config{Seed: 7})
	defer sim.Close()
	gate := simulator.NewGate()
	sim.Mount("/p", simulator.Example,
		simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.DropAnswer{Reset: true}),
		simulator.On(simulator.Create, simulator.NthOfToken(2), simulator.NeverReceive{}),
		simulator.On(simulator.Create, simulator.NthOfToken(3), simulator.CutBody{}),
		simulator.On(simulator.Create, simulator.NthOfToken(4), simulator.HoldAfter{Gate: gate}),
	)
	root, err := sim.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(ctx context.Context) (int, string, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", root+"/p/v1/jobs", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.GetBody = nil // or net/http sends a POST with this header twice
		req.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	if _, _, err := post(t.Context()); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("dropped answer: %v, want a reset", err)
	}
	if _, _, err := post(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("never received: %v, want EOF", err)
	}
	if status, body, err := post(t.Context()); status != 200 || body == "" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %d %q %v", status, body, err)
	}
	// The client gives up while it is held, and calls again at once: not two
	// calls at the same time.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		gate.WaitArrived(1, t.Context().Done())
		cancel()
	}()
	if _, _, err := post(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	status, body, err := post(t.Context())
	if status != 200 || err != nil || !strings.Contains(body, `"replayed":true`) {
		t.Errorf("last: %d %q %v", status, body, err)
	}
	gate.Release()
	if n := sim.MaxAtOnce("k"); n != 1 {
		t.Errorf("%d calls at once, want 1", n)
	}
	if n := sim.DuplicateCount(); n != 0 || len(sim.Jobs()) != 1 {
		t.Errorf("%d duplicates, %d jobs", n, len(sim.Jobs()))
	}
	sim.Close()
	if _, _, err := post(t.Context()); err == nil {
		t.Error("answered after Close")
	}
	if _, err := sim.Listen("256.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "listen for the simulator on 256.0.0.1:0") {
		t.Errorf("listen on nonsense: %v", err)
	}
}

package journal

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// plain gives asks over a server without streams, inside the caller's bubble.
func plain(t *testing.T) (*asks, *server.Server) {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	a := &asks{lost: make(chan struct{})}
	list, err := options(Config{Dial: s.InProcessConn}, a.disconnected)
	if err != nil {
		t.Fatal(err)
	}
	if a.conn, err = nats.Connect("", list...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.conn.Close()
		synctest.Wait()
		s.Shutdown()
		s.WaitForShutdown()
		time.Sleep(10 * time.Second)
	})
	return a, s
}

// answers has the subject answered with the request's own words, each later by
// what it says.
func answers(t *testing.T, a *asks, subject string) {
	t.Helper()
	_, err := a.conn.Subscribe(subject, func(m *nats.Msg) {
		after, err := time.ParseDuration(string(m.Data))
		if err != nil {
			t.Error(err)
		}
		time.AfterFunc(after, func() { _ = m.Respond(m.Data) })
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, a *asks, subject, words string) (string, error) {
	t.Helper()
	m, err := a.request(t.Context(), &nats.Msg{Subject: subject, Data: []byte(words)}, answerLimit)
	if err != nil {
		return "", err
	}
	return string(m.Data), nil
}

func TestRequests(t *testing.T) {
	bubble := func(name string, f func(t *testing.T, a *asks, s *server.Server)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := plain(t)
				f(t, a, s)
			})
		})
	}
	bubble("one address serves one after the other", func(t *testing.T, a *asks, _ *server.Server) {
		answers(t, a, "echo")
		for _, words := range []string{"0s", "1ms", "4s"} {
			if got, err := ask(t, a, "echo", words); got != words || err != nil {
				t.Errorf("%q, %v for %q", got, err, words)
			}
		}
		if len(a.ones) != 1 || a.conn.NumSubscriptions() != 2 {
			t.Errorf("%d addresses, %d subscriptions", len(a.ones), a.conn.NumSubscriptions())
		}
	})
	bubble("a late answer is nobody's", func(t *testing.T, a *asks, _ *server.Server) {
		answers(t, a, "echo")
		if got, err := ask(t, a, "echo", "5001ms"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := ask(t, a, "echo", "3s"); got != "3s" || err != nil { // the late one comes meanwhile
			t.Errorf("%q, %v", got, err)
		}
	})
	bubble("nor is one that nobody waits for any more", func(t *testing.T, a *asks, _ *server.Server) {
		answers(t, a, "echo")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := a.request(ctx, &nats.Msg{Subject: "echo", Data: []byte("2s")}, answerLimit); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if got, err := ask(t, a, "echo", "4s"); got != "4s" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
	bubble("nobody listens", func(t *testing.T, a *asks, _ *server.Server) {
		if _, err := ask(t, a, "echo", "0s"); !errors.Is(err, nats.ErrNoResponders) {
			t.Error(err)
		}
	})
	bubble("the connection is lost", func(t *testing.T, a *asks, s *server.Server) {
		answers(t, a, "echo")
		began := time.Now()
		time.AfterFunc(time.Second, s.Shutdown)
		if _, err := ask(t, a, "echo", "4s"); !errors.Is(err, nats.ErrDisconnected) || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
	bubble("the connection is closed", func(t *testing.T, a *asks, _ *server.Server) {
		answers(t, a, "echo")
		time.AfterFunc(time.Second, a.conn.Close)
		if _, err := ask(t, a, "echo", "4s"); err == nil {
			t.Error("an answer came")
		}
		if _, err := ask(t, a, "echo", "0s"); !errors.Is(err, nats.ErrConnectionClosed) {
			t.Error(err)
		}
	})
}

func TestAcknowledged(t *testing.T) {
	for _, c := range []struct {
		answer string
		want   uint64
		err    error // nil with want 0: any
	}{
		{`{"stream":"LEDGER","seq":18446744073709551615}`, 18446744073709551615, nil},
		{`{"stream":"LEDGER", "seq":7, "duplicate":true}`, 7, nil},
		{`{"stream":"LEDGER","domain":"d","seq":7}`, 7, nil},
		{`{"stream":"HISTORY","seq":7}`, 0, nil},
		{`{"stream":"LEDGERS","seq":7}`, 0, nil},
		{`{"stream":"LEDGER","seq":-7}`, 0, ErrUnanswered},
		{`{"stream":"LEDGER","seq":7`, 0, ErrUnanswered},
		{`{"seq":7}`, 0, ErrUnanswered},
		{``, 0, ErrUnanswered},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"LEDGER","seq":0}`, 0, ErrWrongSequence},
		{`{"error":{"code":503,"err_code":10077,"description":"disk full"}}`, 0, ErrUnanswered},
	} {
		got, err := acknowledged([]byte(c.answer), Ledger)
		if got != c.want || (err == nil) != (c.want > 0) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", c.answer, got, err)
		}
	}
}

// The short way reads nothing that encoding/json reads otherwise.
func FuzzAcknowledged(f *testing.F) {
	f.Add([]byte(`{"stream":"LEDGER","seq":7}`))
	f.Add([]byte(`{"stream":"LEDGER","seq":07}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := acknowledged(data, Ledger)
		var ack jetstream.PubAck
		if wrong := json.Unmarshal(data, &ack); err == nil && (wrong != nil || ack.Sequence != got || ack.Stream != string(Ledger)) {
			t.Errorf("%q: %d, the library %+v, %v", data, got, ack, wrong)
		}
	})
}

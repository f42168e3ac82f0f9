package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts an embedded server inside the caller's bubble.
func startServer(t *testing.T) *broker.Broker {
	t.Helper()
	b, err := broker.Start(broker.Config{Dir: t.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval, SyncEvery: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		brokertest.End(t, b)
	})
	return b
}

func connect(t *testing.T, b *broker.Broker) *journal.NATS {
	t.Helper()
	n, err := journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Name: "test", Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func provisioned(t *testing.T) *journal.NATS {
	t.Helper()
	n := connect(t, startServer(t))
	if err := n.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) journal.Store { return provisioned(t) })
}

func TestProvisionTwiceAndAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, run := range []string{"one", "two"} {
			b, err := broker.Start(broker.Config{Dir: dir, Run: run, Now: time.Now, Sync: broker.SyncAlways})
			if err != nil {
				t.Fatal(err)
			}
			n, err := journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Replicas: 1})
			if err != nil {
				t.Fatal(err)
			}
			if run == "one" {
				if err := n.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "stream LEDGER") {
					t.Errorf("check without streams: %v", err)
				}
			}
			for range 2 {
				if err := n.Provision(t.Context()); err != nil {
					t.Error(err)
				}
			}
			n.Close()
			brokertest.End(t, b)
		}
	})
}

// What someone with administration rights can do to a ledger is seen.
func TestLoosenedStreamsAreNamed(t *testing.T) {
	for _, c := range []struct {
		stream, field string
		change        func(*jetstream.StreamConfig)
	}{
		{"LEDGER", "max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 }},
		{"LEDGER", "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		{"LEDGER", "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		{"LEDGER", "max_msg_size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 10 }},
		{"LEDGER", "allow_msg_ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
		{"LEDGER", "discard", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }},
		{"LEDGER", "sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }},
		{"CONTROL", "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		{"WAKEUPS", "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }},
		{"WEBHOOKS", "discard_new_per_subject", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = false }},
		{"PAYLOADS", "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		{"INTENTS", "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 << 30 }},
		{"INTENTS", "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }},
		{"INTENTS", "allow_rollup_hdrs", func(c *jetstream.StreamConfig) { c.AllowRollup = true }},
		{"VERDICTS", "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = 0 }},
		{"HISTORY", "republish", func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: "copy.>"}
		}},
	} {
		t.Run(c.stream+" "+c.field, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startServer(t)
				n := connect(t, b)
				if err := n.Provision(t.Context()); err != nil {
					t.Fatal(err)
				}
				admin, err := nats.Connect("", nats.InProcessServer(inProcess(b.InProcess)))
				if err != nil {
					t.Fatal(err)
				}
				defer admin.Close()
				js, err := jetstream.New(admin)
				if err != nil {
					t.Fatal(err)
				}
				stream, err := js.Stream(t.Context(), c.stream)
				if err != nil {
					t.Fatal(err)
				}
				config := stream.CachedInfo().Config
				c.change(&config)
				if _, err := js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
				for what, err := range map[string]error{"check": n.Check(t.Context()), "provision": n.Provision(t.Context())} {
					var d *journal.DriftError
					if !errors.As(err, &d) || d.Stream != c.stream || !strings.Contains(err.Error(), c.field) {
						t.Errorf("%s: %v, want %s named", what, err, c.field)
					}
				}
			})
		})
	}
}

// A directory of an earlier version lacks what came later. It is given that, and
// nothing else is touched.
func TestStreamsThatCameLaterAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startServer(t)
		n := connect(t, b)
		if err := n.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		before, err := n.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: "facts.0.01.op_a", Data: []byte("kept")})
		if err != nil {
			t.Fatal(err)
		}
		admin, err := nats.Connect("", nats.InProcessServer(inProcess(b.InProcess)))
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		js, err := jetstream.New(admin)
		if err != nil {
			t.Fatal(err)
		}
		for _, later := range []journal.Stream{journal.Intents, journal.Verdicts} {
			if err := js.DeleteStream(t.Context(), string(later)); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Check(t.Context()); !errors.Is(err, journal.ErrNotProvisioned) || !strings.Contains(err.Error(), "INTENTS") {
			t.Errorf("who makes no streams says: %v", err)
		}
		for range 2 {
			if err := n.Provision(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := n.Last(t.Context(), journal.Ledger, "facts.0.01.op_a"); err != nil || m.Sequence != before {
			t.Errorf("the ledger: %+v %v", m, err)
		}
	})
}

// An agent can fill neither the disk nor the others' room, and no header of its does
// more than store.
func TestIntentsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := provisioned(t)
		publish := func(size int, header map[string][]string) error {
			_, err := n.Publish(t.Context(), journal.Intents, journal.Outgoing{Subject: "intents.alice.k1", Header: header, Data: make([]byte, size)})
			return err
		}
		if err := publish(1<<20, nil); err != nil {
			t.Error(err)
		}
		if err := publish(journal.IntentSize+1, nil); err == nil {
			t.Error("one that is too large was taken")
		}
		for name, value := range map[string]string{
			"Nats-Rollup": "all", "Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-TTL": "1s", "Nats-Batch-Id": "x", "Nats-Incr": "1",
		} {
			header := map[string][]string{name: {value}}
			if name == "Nats-Schedule" {
				header["Nats-Schedule-Target"] = []string{"intents.bob.k1"}
			}
			if name == "Nats-Batch-Id" {
				header["Nats-Batch-Sequence"], header["Nats-Batch-Commit"] = []string{"1"}, []string{"1"}
			}
			if err := publish(1, header); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
		for i := 1; ; i++ {
			if err := publish(0, nil); err != nil {
				if i != 10_000 || !errors.Is(err, journal.ErrSubjectFull) {
					t.Errorf("after %d: %v", i, err)
				}
				break
			}
		}
		if _, err := n.Publish(t.Context(), journal.Intents, journal.Outgoing{Subject: "intents.bob.k2"}); err != nil {
			t.Errorf("another has no room: %v", err)
		}
	})
}

type inProcess func() (net.Conn, error)

func (f inProcess) InProcessConn() (net.Conn, error) { return f() }

func TestServerWithoutJetStreamIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
			time.Sleep(10 * time.Second)
		})
		_, err = journal.Connect(t.Context(), journal.Config{Dial: s.InProcessConn, Replicas: 1})
		if !errors.Is(err, journal.ErrNoJetStream) {
			t.Fatalf("got %v", err)
		}
	})
}

// A server of an older line says so in its first words; nothing is asked of it.
func TestServerThatIsTooOldIsRefused(t *testing.T) {
	for version, refused := range map[string]bool{"2.14.9": true, "1.99.0": true, "nonsense": true, "": true} {
		dial := func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer func() { _ = theirs.Close() }()
				if _, err := fmt.Fprintf(theirs, "INFO {\"server_id\":\"x\",\"version\":%q,\"headers\":true,\"max_payload\":8388608}\r\n", version); err != nil {
					return
				}
				for lines := bufio.NewScanner(theirs); lines.Scan(); {
					if lines.Text() == "PING" {
						if _, err := io.WriteString(theirs, "PONG\r\n"); err != nil {
							return
						}
					}
				}
			}()
			return ours, nil
		}
		_, err := journal.Connect(t.Context(), journal.Config{Dial: dial, Replicas: 1})
		if errors.Is(err, journal.ErrServerTooOld) != refused {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

func TestServerWithSmallMessagesIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := server.NewServer(&server.Options{
			DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 64 << 10,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
			time.Sleep(10 * time.Second)
		})
		_, err = journal.Connect(t.Context(), journal.Config{Dial: s.InProcessConn, Replicas: 1})
		if err == nil || !strings.Contains(err.Error(), "max_payload") {
			t.Fatalf("got %v", err)
		}
	})
}

// A publish while the server is away fails then and does not land later.
func TestNothingIsBufferedWhileTheServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		begin := func(run string) *broker.Broker {
			b, err := broker.Start(broker.Config{Dir: dir, Run: run, Now: time.Now, Sync: broker.SyncAlways})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		var running atomic.Pointer[broker.Broker]
		b := begin("one")
		running.Store(b)
		n, err := journal.Connect(t.Context(), journal.Config{Dial: func() (net.Conn, error) { return running.Load().InProcess() }, Replicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := n.Read(t.Context(), journal.Ledger, "facts.>", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Next(t.Context(), time.Second); !errors.Is(err, journal.ErrNoMessage) {
			t.Fatal(err)
		}
		brokertest.Stop(t, b)
		synctest.Wait()
		m := journal.Outgoing{Subject: "facts.0.01.op_a"}
		if _, err := n.Publish(t.Context(), journal.Ledger, m); !errors.Is(err, journal.ErrUnanswered) {
			t.Errorf("publish without server: %v", err)
		}
		b = begin("two")
		running.Store(b)
		time.Sleep(10 * time.Second)
		if _, err := n.Last(t.Context(), journal.Ledger, "facts.>"); !errors.Is(err, journal.ErrNoMessage) {
			t.Errorf("after the server came back: %v, want no message", err)
		}
		// Cursors go on with the new server.
		if sequence, err := n.Publish(t.Context(), journal.Ledger, m); err != nil || sequence != 1 {
			t.Errorf("publish after the return: %d, %v", sequence, err)
		}
		if got, err := c.Next(t.Context(), time.Minute); err != nil || got.Sequence != 1 {
			t.Errorf("cursor after the return: %+v, %v", got, err)
		}
		n.Close()
		brokertest.End(t, b)
	})
}

// A stream that no server takes writes to is no reason to ask what became of
// them: an append waits for one and goes on at once.
func TestAppendGoesOnAsSoonAsSomebodyTakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := connect(t, startServer(t))
		_, err := n.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: "facts.0.01.op_a"})
		if !errors.Is(err, journal.ErrNobody) || !errors.Is(err, journal.ErrUnanswered) {
			t.Fatalf("publish without stream: %v", err)
		}
		reads := &countingReads{Store: n}
		var took time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, outcome, err := newJournal(reads).Create(t.Context(), intent("op_a")); err != nil || outcome != journal.Stored {
				t.Errorf("%v, %v", outcome, err)
			}
		}()
		time.Sleep(7 * time.Second)
		if got := reads.next.Load(); got != 0 {
			t.Errorf("the ledger was read %d times before it was there", got)
		}
		began := time.Now()
		if err := n.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
		if took = time.Since(began); took > 250*time.Millisecond {
			t.Errorf("it went on after %s", took)
		}
	})
}

// countingReads counts them.
type countingReads struct {
	journal.Store
	next atomic.Int64
}

func (c *countingReads) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	c.next.Add(1)
	return c.Store.Next(ctx, s, subject, from)
}

// restricted starts a server on which "reader" may not make consumers.
func restricted(t *testing.T) func(user string) *journal.NATS {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "reader", Password: "reader", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.>"}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		synctest.Wait()
		s.Shutdown()
		s.WaitForShutdown()
		time.Sleep(10 * time.Second)
	})
	return func(user string) *journal.NATS {
		n, err := journal.Connect(t.Context(), journal.Config{URLs: "nats://" + user + ":" + user + "@here", Dial: s.InProcessConn, Replicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n
	}
}

// A cursor reads on where no consumer can be had, as while servers choose who
// makes them.
func TestCursorWithoutConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		as := restricted(t)
		admin, reader := as("admin"), as("reader")
		if err := admin.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := reader.Read(t.Context(), journal.Ledger, "facts.>", 1)
		if err != nil {
			t.Fatal(err)
		}
		put := func() {
			if _, err := admin.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: "facts.0.01.op_a"}); err != nil {
				t.Error(err)
			}
		}
		put()
		for want := range uint64(3) {
			if got, err := c.Next(t.Context(), time.Minute); err != nil || got.Sequence != want+1 {
				t.Fatalf("message %d: %+v, %v", want+1, got, err)
			}
			if want < 2 {
				time.AfterFunc(time.Second, put)
			}
		}
		began := time.Now()
		if _, err := c.Next(t.Context(), 3*time.Second); !errors.Is(err, journal.ErrNoMessage) || time.Since(began) > 9*time.Second {
			t.Errorf("at the end: %v after %s", err, time.Since(began))
		}
	})
}

// A request that nobody answered is sent again, and the first answer to any of
// them counts, however slow.
func TestRepeatedRequests(t *testing.T) {
	for name, lag := range map[string]time.Duration{"at once": 0, "slower than it is asked again": 1200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial := startServer(t).InProcess
				conn, err := nats.Connect("", nats.InProcessServer(inProcess(dial)))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				asked := 0
				_, err = conn.Subscribe("ask", func(m *nats.Msg) {
					if asked++; asked > 3 {
						time.AfterFunc(lag, func() { _ = m.Respond([]byte("yes")) })
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
				defer stop()
				answer, err := journal.Repeat(ctx, conn, "ask", nil)
				if err != nil || string(answer.Data) != "yes" {
					t.Fatalf("%v, %v", answer, err)
				}
				if took := time.Since(began); took < 1500*time.Millisecond+lag || took > 1600*time.Millisecond+lag {
					t.Errorf("answered after %s, by the fourth request, want %s", took, 1500*time.Millisecond+lag)
				}
				short, stop := context.WithTimeout(t.Context(), 700*time.Millisecond)
				defer stop()
				if _, err := journal.Repeat(short, conn, "nobody", nil); err == nil {
					t.Error("an answer from nobody")
				}
			})
		})
	}
}

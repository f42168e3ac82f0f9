package journal_test

import (
	"bufio"
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
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts an embedded server inside the caller's bubble.
func startServer(t *testing.T) *broker.Broker {
	t.Helper()
	b, err := broker.Start(broker.Config{Dir: t.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		synctest.Wait() // the server sleeps under a lock when it stops, and somebody may wait for that
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		// Some of the server's loops look only now and then whether it ended.
		time.Sleep(10 * time.Second)
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
			synctest.Wait()
			if err := b.Stop(); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
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
		synctest.Wait()
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
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
		synctest.Wait()
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
	})
}

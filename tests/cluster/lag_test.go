package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// A server that lags answers a direct read with what it has. None of ours is one:
// the stream's leader answers, also whoever is connected to the server that lags.
func laggingFollower(t *testing.T, c *cluster, account string) {
	const operation, subject = "op_lag", "direct.a"
	leader := c.leaderOf(t, account, journal.Ledger)
	laggard := c.others(leader)[0]
	near, far := newJournal(c.connect(t, account, leader)), newJournal(c.connect(t, account, laggard))

	// The control: a stream that allows direct reads, as none of ours does.
	conn, err := nats.Connect(c.url(account, laggard))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "DIRECT", Subjects: []string{"direct.*"}, Replicas: nodes, AllowDirect: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := nats.Connect(c.url(account, leader))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(writer.Close)
	write := func(data string) {
		if _, err := writer.Request(subject, []byte(data), soon); err != nil {
			t.Fatal(err)
		}
	}
	// Any server may be asked, and only the answer of this one is not held.
	read := func() (data string) {
		eventually(t, "a direct read is answered", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), impatient)
			defer cancel()
			m, err := direct.GetLastMsgForSubject(ctx, subject)
			if err != nil {
				return false
			}
			data = string(m.Data)
			return true
		})
		return data
	}
	eventually(t, "the one who lags leads no stream", func() bool {
		elsewhere := true
		for _, s := range append(journal.Streams(), "DIRECT") {
			at := c.leader(account, s)
			if at == laggard {
				_ = c.servers[at].JetStreamStepdownStream(account, string(s)) // looked at again
			}
			elsewhere = elsewhere && at >= 0 && at != laggard
		}
		return elsewhere
	})
	write("old")
	eventually(t, "every server has the old value", func() bool { return read() == "old" })

	s := create(t, near, operation)
	reading := facts(t, far, operation)
	tenure, err := near.TakeOver(t.Context(), journal.Partition(operation))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := reading.Next(t.Context(), 0); err != nil || e.Sequence != s.Sequence {
		t.Fatal(e.Sequence, err)
	}

	c.isolate(laggard, account)
	defer c.heal(account)
	write("new")
	s, outcome, err := near.Append(t.Context(), s, permit("permit"))
	if err != nil || outcome != journal.Stored {
		t.Fatal(outcome, err)
	}
	if err := tenure.Wake(t.Context(), journal.Wake{Operation: operation, Provider: "example", Version: s.Sequence, At: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "old" {
		t.Fatalf("a direct read gave %q: nobody lags here", got)
	}
	// After some seconds the laggard misses its leader and may refuse to answer.
	answered := func(what string, read func() error) {
		t.Helper()
		eventually(t, what+" is answered", func() bool {
			err := read()
			return err == nil || errors.Is(err, journal.ErrNoOperation) || errors.Is(err, journal.ErrNoMessage)
		})
	}
	var current projections.State
	answered("the current state", func() (err error) { current, err = far.Current(t.Context(), operation); return err })
	if current.Sequence != s.Sequence || current.Facts != 2 {
		t.Errorf("current state is that of fact %d, want %d", current.Sequence, s.Sequence)
	}
	var lines []journal.Line
	answered("the timeline", func() (err error) { lines, err = far.Timeline(t.Context(), operation); return err })
	if len(lines) != 2 || lines[1].Entry.Event.ID != "permit" {
		t.Errorf("the timeline has %d facts", len(lines))
	}
	var pending journal.Wake
	answered("the pending wake-up", func() (err error) { pending, _, err = far.PendingWake(t.Context(), operation); return err })
	if pending.Version != s.Sequence {
		t.Errorf("pending wake-up of version %d, want %d", pending.Version, s.Sequence)
	}
	// Also a projector whose reader has heard nothing asks the leader.
	var next projections.Entry
	answered("the next fact", func() (err error) { next, err = reading.Next(t.Context(), 0); return err })
	if next.Sequence != s.Sequence {
		t.Errorf("next fact is %d, want %d", next.Sequence, s.Sequence)
	}
	if got := read(); got != "old" {
		t.Errorf("a direct read gave %q: nobody lagged here", got)
	}
}

// facts reads those of an operation's partition, in a tenure that is over.
func facts(t *testing.T, j *journal.Journal, operation string) *journal.Facts {
	t.Helper()
	tenure, err := j.TakeOver(t.Context(), journal.Partition(operation))
	if err != nil {
		t.Fatal(err)
	}
	reading, err := tenure.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reading.Close(); err != nil {
			t.Error(err)
		}
	})
	return reading
}

// A leader that was cut off goes on for ten to twenty seconds and answers reads
// with what it has, while another is chosen and takes writes. Whoever is connected
// to it must draw no conclusion from what it does not have: not that a fact can
// still be first, and not that the ledger has lost any.
func deposedLeader(t *testing.T, c *cluster, account string) {
	for n := range 3 {
		if deposed(t, c, account, n) || t.Failed() {
			return
		}
		t.Log("the old leader gave up before it could be asked: once more")
	}
	t.Error("the old leader always gave up before it could be asked: this test showed nothing")
}

func deposed(t *testing.T, c *cluster, account string, n int) (asked bool) {
	operation, known := fmt.Sprintf("op_deposed%d", n), fmt.Sprintf("op_known%d", n)
	old := c.leaderOf(t, account, journal.Ledger)
	store := func(i int) (*counted, *journal.Journal) {
		s := &counted{Store: c.connect(t, account, i), limit: impatient}
		return s, newJournal(s)
	}
	_, near := store(c.others(old)[0])
	storeA, a := store(old)
	storeB, b := store(old)
	first, second := create(t, near, operation), create(t, near, known)
	arrived := c.arrivals(t, account, old, subjectOf(operation))

	c.isolate(old, account)
	defer c.heal(account)
	ctx, cancel := context.WithTimeout(t.Context(), 3*soon)
	defer cancel()
	// A permit that the old leader takes in and can never commit.
	early := inBackground(ctx, a, first, "early", false)
	eventually(t, "the old leader has a copy", func() bool { return arrived() >= 1 && storeA.unanswered.Load() >= 1 })
	// These wait until another leader is chosen.
	if _, outcome, err := near.Append(ctx, first, permit("permit")); err != nil || outcome != journal.Stored {
		t.Fatal(outcome, err)
	}
	second, outcome, err := near.Append(ctx, second, evidence("wish"))
	if err != nil || outcome != journal.Stored {
		t.Fatal(outcome, err)
	}
	// Either leader may have been asked for the newest state.
	if second.Facts != 2 {
		t.Fatalf("stored, and the state has %d facts", second.Facts)
	}
	// To whoever has seen that, the old leader's ledger ends too early.
	late := inBackground(ctx, b, second, "late", true)
	leads := func() bool { return c.servers[old].JetStreamIsStreamLeader(account, string(journal.Ledger)) }
	eventually(t, "the old leader refuses it, or gives up", func() bool { return storeB.wrong.Load() >= 2 || len(late) > 0 || !leads() })
	asked = storeB.wrong.Load() >= 2
	if len(late) > 0 {
		e := <-late
		late <- e
		if e.err != nil {
			t.Errorf("concluded %s, %v from what a leader without followers has", e.outcome, e.err)
		}
	}
	c.heal(account)
	if e := end(t, early); e.err != nil || e.outcome != journal.Superseded {
		t.Errorf("the early permit ended in %s, %v", e.outcome, e.err)
	}
	if e := end(t, late); e.err != nil || e.outcome != journal.Stored {
		t.Errorf("the late evidence ended in %s, %v", e.outcome, e.err)
	}
	for operation, want := range map[string][]string{operation: {"permit"}, known: {"wish", "late"}} {
		if ids := ledgerIDs(t, near, operation); !slices.Equal(ids[1:], want) {
			t.Errorf("%s holds %v, want %v", operation, ids, want)
		}
	}
	return asked
}

package wire

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// bench is one process's reader over a store that another process writes to.
type bench struct {
	t      *testing.T
	store  *memory.Store
	down   atomic.Bool // reads fail in the reader's process
	holds  *holds
	writer *journal.Journal
	log    bytes.Buffer
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, store: memory.New(memory.Config{Now: time.Now})}
	faulty := memory.Inject(b.store, func(memory.Call) memory.Fault {
		if b.down.Load() {
			return memory.Fault{Kind: memory.Unavailable}
		}
		return memory.Fault{}
	})
	clock := NewSystemClock()
	b.writer = journalOver(b.store, clock, 0, nil)
	b.holds = &holds{journal: journalOver(faulty, clock, 0, nil), clock: clock, log: slog.New(slog.NewTextHandler(&b.log, nil))}
	return b
}

func (b *bench) change(provider string, fact events.ServiceFact) {
	b.t.Helper()
	facts, err := b.writer.HoldFacts(b.t.Context(), provider)
	if err != nil {
		b.t.Fatal(err)
	}
	h := projections.Hold{Provider: provider}
	for _, f := range facts {
		h = projections.FoldHold(h, f)
	}
	if _, outcome, err := b.writer.AppendHold(b.t.Context(), h, events.ServiceEvent{Source: "/test", Fact: fact}); err != nil || outcome != journal.Stored {
		b.t.Fatal(outcome, err)
	}
}

func (b *bench) place(provider string, scope events.HoldScope) {
	b.change(provider, &events.HoldPlaced{Scope: scope, Who: "alice"})
}

func TestHoldsBeforeTheFirstReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.down.Store(true)
		if _, _, known := b.holds.count(); known || b.holds.permits() == nil || b.holds.hold("example").Scope != workflow.HoldAll {
			t.Error("something may leave, or is counted, although nothing was read")
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.holds.begin(ctx) }()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("began without a reading: %v", err)
		default:
		}
		if b.holds.permits() == nil || b.holds.hold("example").Scope != workflow.HoldAll {
			t.Error("something may leave although nothing could be read")
		}
		b.place("example", events.HoldCreates)
		b.down.Store(false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := b.holds.permits(); err != nil || b.holds.hold("example").Scope != workflow.HoldCreates || b.holds.hold("other").Scope != workflow.HoldNone {
			t.Error(err, b.holds.hold("example"), b.holds.hold("other"))
		}
		stop()
		b.down.Store(true)
		if err := (&holds{journal: b.holds.journal, clock: b.holds.clock, log: b.holds.log}).begin(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
	})
}

// A hold counts within a second of its acknowledgement to another process, and
// where the store does not answer nothing with side effects is permitted after
// ten.
func TestHoldsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.holds.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.holds.follow(ctx) }()
		is := func(provider string, want workflow.HoldScope) {
			t.Helper()
			if got := b.holds.hold(provider); got.Scope != want || (want != "") != (got.Reason == events.DeferHold) {
				t.Errorf("%s has %+v, want %q", provider, got, want)
			}
		}
		counted := func(creates, all int, known bool) {
			t.Helper()
			if c, a, k := b.holds.count(); c != creates || a != all || k != known {
				t.Errorf("counted %d, %d, %t, want %d, %d, %t", c, a, k, creates, all, known)
			}
		}
		is("example", workflow.HoldNone)
		counted(0, 0, true)
		b.place("example", events.HoldCreates)
		time.Sleep(holdsEvery + time.Millisecond)
		is("example", workflow.HoldCreates)
		is("other", workflow.HoldNone)
		b.place("", events.HoldAll)
		time.Sleep(holdsEvery + time.Millisecond)
		is("example", workflow.HoldAll)
		is("other", workflow.HoldAll)
		if d := b.holds.hold("other").Detail; !strings.Contains(d, "all providers") || !strings.Contains(d, "alice") {
			t.Errorf("detail %q", d)
		}
		counted(1, 1, true)
		b.change("", &events.HoldReleased{Who: "bob"})
		time.Sleep(holdsEvery + time.Millisecond)
		is("example", workflow.HoldCreates)
		is("other", workflow.HoldNone)

		counted(1, 0, true)

		// A hold placed while this process cannot read.
		b.down.Store(true)
		b.place("other", events.HoldAll)
		began := time.Now()
		for b.holds.permits() == nil {
			if time.Since(began) > holdsTrusted {
				t.Fatal("calls are still permitted")
			}
			time.Sleep(100 * time.Millisecond)
		}
		is("example", workflow.HoldCreates) // what was read last
		counted(0, 0, false)
		b.down.Store(false)
		time.Sleep(holdsEvery + time.Millisecond)
		is("other", workflow.HoldAll)
		if err := b.holds.permits(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, says := range []string{"a hold is in force", "scope=all", "by=alice", "a hold is over", "could not be read"} {
			if !strings.Contains(b.log.String(), says) {
				t.Errorf("the log does not say %q", says)
			}
		}
	})
}

// A stream that lost its end and grew again to the same length is read anew.
func TestHoldsOfAStreamThatLostItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.place("example", events.HoldAll)
		if err := b.holds.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		restored := memory.New(memory.Config{Now: time.Now})
		b.holds.journal = journalOver(restored, NewSystemClock(), 0, nil)
		b.writer = b.holds.journal
		b.place("other", events.HoldCreates)
		if err := b.holds.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a, o := b.holds.hold("example").Scope, b.holds.hold("other").Scope; a != workflow.HoldNone || o != workflow.HoldCreates {
			t.Errorf("example %q, other %q", a, o)
		}
	})
}

// What cannot be read holds, and says so.
func TestUnreadableHoldIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if _, err := b.store.Publish(t.Context(), journal.Control, journal.Outgoing{Subject: "control.hold-example", Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if err := b.holds.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h := b.holds.hold("example"); h.Scope != workflow.HoldAll || !strings.Contains(h.Detail, "cannot be read") {
			t.Errorf("%+v", h)
		}
	})
}

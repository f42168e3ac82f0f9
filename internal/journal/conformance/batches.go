package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// RunBatches is the part of the suite for every [journal.Store].
func RunBatches(t *testing.T, open func(t *testing.T) journal.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, journal.Store)
	}{
		{"all or nothing", batchWhole},
		{"a subject twice", batchTwice},
		{"on which streams", batchStreams},
		{"one message per subject", batchSingle},
		{"how many", batchMany},
		{"ended context", batchEnded},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.test(t, open(t)) })
		})
	}
}

func batchWhole(t *testing.T, s journal.Store) {
	before := put(t, s, journal.Ledger, text("facts.0.01.op_a", "first"))
	list := []journal.Outgoing{
		guarded(text("facts.0.01.op_a", "second"), "", before),
		guarded(text("facts.0.01.op_b", "first"), "", 0),
		{Subject: "facts.0.02.op_c", Header: map[string][]string{"ce-id": {"x"}}},
	}
	for i := range 2 {
		stale := append([]journal.Outgoing(nil), list...)
		stale[i].Guard = &journal.Guard{Sequence: 77}
		if _, err := s.PublishBatch(t.Context(), journal.Ledger, stale); !errors.Is(err, journal.ErrWrongSequence) {
			t.Fatalf("guard %d does not hold: %v", i, err)
		}
		absent(t, s, journal.Ledger, "facts.0.01.op_b")
		absent(t, s, journal.Ledger, "facts.0.02.op_c")
		if m := last(t, s, journal.Ledger, "facts.0.01.op_a"); m.Sequence != before {
			t.Fatalf("a refused batch left %+v", m)
		}
	}
	sequences, err := s.PublishBatch(t.Context(), journal.Ledger, list)
	if err != nil || len(sequences) != len(list) {
		t.Fatalf("%v, %v", sequences, err)
	}
	for i, want := range list {
		m := last(t, s, journal.Ledger, want.Subject)
		if m.Sequence != sequences[i] || m.Sequence != before+uint64(i)+1 || string(m.Data) != string(want.Data) {
			t.Errorf("message %d: %+v, said to be at %d", i, m, sequences[i])
		}
	}
	if m := last(t, s, journal.Ledger, "facts.0.02.op_c"); len(m.Header["ce-id"]) != 1 || m.Header["ce-id"][0] != "x" {
		t.Errorf("header %v", m.Header)
	}
	if len(list[2].Header) != 1 {
		t.Errorf("the caller's header was changed: %v", list[2].Header)
	}
	// The very same again: every guard is stale, its own included.
	if _, err := s.PublishBatch(t.Context(), journal.Ledger, list); !errors.Is(err, journal.ErrWrongSequence) {
		t.Errorf("the batch again: %v", err)
	}
}

func batchTwice(t *testing.T, s journal.Store) {
	list := []journal.Outgoing{guarded(text("facts.0.01.op_a", "1"), "", 0), guarded(text("facts.0.01.op_a", "2"), "", 1)}
	if _, err := s.PublishBatch(t.Context(), journal.Ledger, list); !errors.Is(err, journal.ErrInFlight) {
		t.Fatalf("got %v", err)
	}
	absent(t, s, journal.Ledger, "facts.>")
}

func batchStreams(t *testing.T, s journal.Store) {
	for name, subjects := range map[journal.Stream][2]string{
		journal.Ledger:   {"facts.0.01.op_a", "facts.0.01.op_b"},
		journal.Control:  {"control.a", "control.b"},
		journal.Payloads: {"payloads.a", "payloads.b"},
	} {
		if _, err := s.PublishBatch(t.Context(), name, []journal.Outgoing{{Subject: subjects[0]}, {Subject: subjects[1]}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Not synced on one node, which the server allows only without batches.
	for name, subjects := range map[journal.Stream][2]string{
		journal.History: {"history.1.01.op_a", "history.1.01.op_b"},
		journal.Wakeups: {"wake.op_a", "wake.op_b"},
		journal.Index:   {"ref.p.a", "ref.p.b"},
	} {
		if _, err := s.PublishBatch(t.Context(), name, []journal.Outgoing{{Subject: subjects[0]}, {Subject: subjects[1]}}); err == nil || errors.Is(err, journal.ErrUnanswered) {
			t.Errorf("%s: %v", name, err)
		}
		absent(t, s, name, subjects[0])
	}
}

func batchSingle(t *testing.T, s journal.Store) {
	put(t, s, journal.Payloads, text("payloads.a", "a"))
	list := []journal.Outgoing{guarded(text("payloads.b", "b"), "", 0), guarded(text("payloads.a", "a"), "", 0)}
	if _, err := s.PublishBatch(t.Context(), journal.Payloads, list); !errors.Is(err, journal.ErrWrongSequence) {
		t.Fatalf("got %v", err)
	}
	absent(t, s, journal.Payloads, "payloads.b")
}

func batchMany(t *testing.T, s journal.Store) {
	list := make([]journal.Outgoing, 1001)
	for i := range list {
		list[i] = guarded(text(fmt.Sprintf("facts.0.01.op_%d", i), "x"), "", 0)
	}
	if _, err := s.PublishBatch(t.Context(), journal.Ledger, list); err == nil || errors.Is(err, journal.ErrUnanswered) {
		t.Errorf("1,001 messages: %v", err)
	}
	absent(t, s, journal.Ledger, "facts.>")
	if sequences, err := s.PublishBatch(t.Context(), journal.Ledger, list[:1000]); err != nil || sequences[999] != sequences[0]+999 {
		t.Errorf("1,000 messages: %v", err)
	}
	if sequences, err := s.PublishBatch(t.Context(), journal.Ledger, list[1000:]); err != nil || len(sequences) != 1 {
		t.Errorf("one message: %v, %v", sequences, err)
	}
}

func batchEnded(t *testing.T, s journal.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.PublishBatch(ctx, journal.Ledger, []journal.Outgoing{text("facts.0.01.op_a", ""), text("facts.0.01.op_b", "")})
	if !errors.Is(err, journal.ErrUnanswered) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

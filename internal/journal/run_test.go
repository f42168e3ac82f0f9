package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// recordsOf folds what the tenure has to record.
func recordsOf(t *testing.T, j *journal.Journal, tenure *journal.Tenure) []projections.Record {
	t.Helper()
	facts, err := tenure.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := facts.Close(); err != nil {
			t.Error(err)
		}
	}()
	var list []projections.Record
	states := map[string]projections.State{}
	for {
		e, err := facts.Next(t.Context(), 0)
		if errors.Is(err, journal.ErrNoMessage) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		s, some := states[e.Event.Operation]
		if before, err := j.Recorded(t.Context(), e.Event.Operation); !some && err == nil {
			s = before.State
		}
		s, r := projections.Fold(s, e)
		states[e.Event.Operation] = s
		list = append(list, r)
	}
}

// inOrder checks that each fact of the operations has one record, in the ledger's
// order.
func inOrder(t *testing.T, store journal.Store, partition int, operations []string) {
	t.Helper()
	j := newJournal(store)
	facts := 0
	for _, operation := range operations {
		lines, err := j.Timeline(t.Context(), operation)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if l.Record == nil {
				t.Fatalf("fact %d of %s has no record", l.Entry.Sequence, operation)
			}
			facts++
		}
	}
	last, records := uint64(0), 0
	for from := uint64(1); ; {
		m, err := store.Next(t.Context(), journal.History, fmt.Sprintf("history.1.%02d.*", partition), from)
		if errors.Is(err, journal.ErrNoMessage) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		from = m.Sequence + 1
		if strings.HasSuffix(m.Subject, ".takeover") {
			continue
		}
		var r projections.Record
		if err := codec.Unmarshal(m.Data, &r); err != nil {
			t.Fatal(err)
		}
		if r.Sequence <= last {
			t.Fatalf("record %d is of fact %d, behind that of %d", records, r.Sequence, last)
		}
		last = r.Sequence
		records++
	}
	if records != facts {
		t.Fatalf("%d records for %d facts", records, facts)
	}
}

// manyFacts makes operations of one partition with three facts each, in turn.
func manyFacts(t *testing.T, store journal.Store, n int) (int, []string) {
	t.Helper()
	j := newJournal(store)
	partition, operations := onePartition(n)
	states := map[string]projections.State{}
	for range 3 {
		for _, operation := range operations {
			s, some := states[operation]
			if !some {
				states[operation] = create(t, j, operation)
				continue
			}
			var err error
			if states[operation], _, err = j.Append(t.Context(), s, evidence()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return partition, operations
}

// A run of records fails in each way, once and twice: each fact gets one record,
// in order.
func TestRunFails(t *testing.T) {
	kinds := []memory.Fault{
		{},
		{Kind: memory.Undone},
		{Kind: memory.Done},
		{Kind: memory.Part},
		{Kind: memory.Late},
		{Kind: memory.Late, After: 1},
		{Kind: memory.Late, After: 5},
		{Kind: memory.InFlight},
		{Kind: memory.Unavailable},
	}
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := manyFacts(t, store, 5)
		for _, first := range kinds {
			for _, second := range kinds {
				count := 0
				faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
					// The run, and what settles it.
					if c.Stream != journal.History || c.Op != memory.OpRun && (count == 0 || c.Op != memory.OpPublish) {
						return memory.Fault{}
					}
					switch count++; count {
					case 1:
						return first
					case 2:
						return second
					}
					return memory.Fault{}
				})
				j := newJournal(faulty)
				tenure := take(t, j, partition)
				list := recordsOf(t, j, tenure)
				if err := tenure.CommitRun(t.Context(), list); err != nil {
					t.Fatalf("%v, %v: %v", first, second, err)
				}
				if want := list[len(list)-1].Sequence; tenure.Position() != want {
					t.Fatalf("%v, %v: position %d, want %d", first, second, tenure.Position(), want)
				}
				faulty.Land(t.Context())
				inOrder(t, store, partition, operations)
				for i, operation := range operations { // the next run, or a single record
					if s, err := j.Current(t.Context(), operation); err != nil {
						t.Fatal(err)
					} else if _, _, err := newJournal(store).Append(t.Context(), s, evidence()); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						if err := tenure.CommitRun(t.Context(), recordsOf(t, j, tenure)[:1]); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	})
}

// A run of a tenure whose partition was taken meanwhile lands nowhere behind the
// one that took it, and its owner hears of that.
func TestRunIsFenced(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := manyFacts(t, store, 5)
		plain := newJournal(store)
		old := take(t, plain, partition)
		list := recordsOf(t, plain, old)
		never := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpRun {
				return memory.Fault{Kind: memory.Late, After: 1 << 30}
			}
			return memory.Fault{}
		})
		slow := take(t, newJournal(never), partition)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := slow.CommitRun(ctx, list); err == nil || errors.Is(err, journal.ErrFenced) {
			t.Fatalf("a run without an answer: %v", err)
		}
		if err := old.CommitRun(t.Context(), list); !errors.Is(err, journal.ErrFenced) {
			t.Fatalf("an old run: %v", err)
		}
		// A crash in the middle of a run left its first records.
		broken := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpRun {
				return memory.Fault{Kind: memory.Part}
			}
			return memory.Fault{}
		})
		crashed := take(t, newJournal(broken), partition)
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if err := crashed.CommitRun(ctx, list); err == nil {
			t.Fatal("no error")
		}
		fresh := take(t, plain, partition)
		rest := recordsOf(t, plain, fresh)
		if err := fresh.CommitRun(t.Context(), rest); err != nil {
			t.Fatal(err)
		}
		never.Land(t.Context())
		for what, err := range map[string]error{
			"old":     old.CommitRun(t.Context(), list),
			"slow":    slow.CommitRun(t.Context(), list),
			"crashed": crashed.CommitRun(t.Context(), list),
			"wakes": old.WakeRun(t.Context(), []journal.Wake{
				{Operation: operations[0], Provider: "example", Version: 1, At: time.Now().Add(time.Hour)},
				{Operation: operations[1], Provider: "example", Version: 1, At: time.Now().Add(time.Hour)},
			}),
		} {
			if !errors.Is(err, journal.ErrFenced) {
				t.Errorf("%s: %v", what, err)
			}
		}
		inOrder(t, store, partition, operations)
		if _, found, err := plain.PendingWake(t.Context(), operations[0]); err != nil || found {
			t.Error("a wake-up of an old tenure", err)
		}
	})
}

// A run of wake-ups fails in each way: each is there once, and an unanswered one
// does not land over a newer one.
func TestRunOfWakeUpsFails(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := onePartition(6)
		for i, kind := range []memory.Kind{memory.None, memory.Undone, memory.Done, memory.Part, memory.Late, memory.InFlight, memory.Unavailable} {
			count := 0
			faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
				if c.Op != memory.OpRun {
					return memory.Fault{}
				}
				count++
				return memory.Fault{Kind: kind, After: 1 << 30}
			})
			tenure := take(t, newJournal(faulty), partition)
			at := time.Now().Add(time.Duration(i+1) * time.Hour)
			var list []journal.Wake
			for _, operation := range operations {
				list = append(list, journal.Wake{Operation: operation, Provider: "example", Version: uint64(10 * (i + 1)), At: at})
			}
			list[3].At = time.Time{} // none any more
			if err := tenure.WakeRun(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			if count != 1 {
				t.Fatalf("%d runs", count)
			}
			list[0].Version++
			if err := tenure.Wake(t.Context(), list[0]); err != nil {
				t.Fatal(err)
			}
			faulty.Land(t.Context())
			for n, want := range list {
				w, found, err := newJournal(store).PendingWake(t.Context(), want.Operation)
				if err != nil || found != (n != 3) || found && (w.Version != want.Version || !w.At.Equal(at)) {
					t.Fatalf("fault %d: %+v, %v, %v; want %+v", kind, w, found, err, want)
				}
			}
		}
	})
}

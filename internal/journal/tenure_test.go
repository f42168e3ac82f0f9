package journal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// onePartition gives n operation ids of the partition of the first.
func onePartition(n int) (int, []string) {
	list := []string{"op_0"}
	p := journal.Partition("op_0")
	for i := 1; len(list) < n; i++ {
		if id := fmt.Sprintf("op_%d", i); journal.Partition(id) == p {
			list = append(list, id)
		}
	}
	return p, list
}

func take(t *testing.T, j *journal.Journal, partition int) *journal.Tenure {
	t.Helper()
	tenure, err := j.TakeOver(t.Context(), partition)
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// project folds and commits what the partition holds, as a projector would,
// with a wake-up at the given time for each record.
func project(t *testing.T, j *journal.Journal, tenure *journal.Tenure, wake func(projections.State) *journal.Wake) int {
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
	states := map[string]projections.State{}
	for n := 0; ; n++ {
		e, err := facts.Next(t.Context(), 0)
		if errors.Is(err, journal.ErrNoMessage) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		operation := e.Event.Operation
		s, ok := states[operation]
		if !ok {
			if before, err := j.Recorded(t.Context(), operation); err == nil {
				s = before.State
			} else if !errors.Is(err, journal.ErrNoOperation) {
				t.Fatal(err)
			}
		}
		var r projections.Record
		s, r = projections.Fold(s, e)
		states[operation] = s
		if err := commit(t.Context(), tenure, r, wake(s)); err != nil {
			t.Fatalf("commit of fact %d: %v", e.Sequence, err)
		}
	}
}

func inAMinute(s projections.State) *journal.Wake {
	return &journal.Wake{Operation: s.Operation, Provider: "example", Version: s.Sequence, At: time.Now().Add(time.Minute)}
}

func TestProjectionResumesWhereTheHistoryEnds(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		partition, operations := onePartition(3)
		a, b := create(t, j, operations[0]), create(t, j, operations[1])
		elsewhere := "op_elsewhere"
		if journal.Partition(elsewhere) == partition {
			t.Fatal("choose another id")
		}
		create(t, j, elsewhere)

		first := take(t, j, partition)
		if first.Position() != 0 {
			t.Fatalf("position %d in an empty history", first.Position())
		}
		if n := project(t, j, first, inAMinute); n != 2 || first.Position() != b.Sequence {
			t.Fatalf("projected %d facts to %d", n, first.Position())
		}
		a, _, err := j.Append(t.Context(), a, evidence())
		if err != nil {
			t.Fatal(err)
		}
		// Current is ahead of the history and equal to it afterwards.
		ahead, err := j.Current(t.Context(), operations[0])
		if err != nil || ahead.Sequence != a.Sequence || ahead.Facts != 2 {
			t.Fatal(ahead.Sequence, err)
		}
		second := take(t, j, partition)
		third := take(t, j, partition) // take-over records repeat the position
		if second.Position() != b.Sequence || third.Position() != b.Sequence {
			t.Fatalf("positions %d, %d, want %d", second.Position(), third.Position(), b.Sequence)
		}
		if n := project(t, j, third, inAMinute); n != 1 || third.Position() != a.Sequence {
			t.Fatalf("projected %d facts to %d", n, third.Position())
		}
		after, err := j.Current(t.Context(), operations[0])
		if err != nil {
			t.Fatal(err)
		}
		x, y := projections.Record{State: ahead}, projections.Record{State: after}
		if string(codec.Marshal(&x)) != string(codec.Marshal(&y)) {
			t.Fatal("the state read from the history is not the one folded locally")
		}
		lines, err := j.Timeline(t.Context(), operations[0])
		if err != nil || len(lines) != 2 || lines[0].Record == nil || lines[1].Record == nil || lines[1].Record.Sequence != a.Sequence {
			t.Fatalf("timeline %+v, %v", lines, err)
		}
		if w, found, err := j.PendingWake(t.Context(), operations[0]); err != nil || !found || w.Version != a.Sequence {
			t.Fatal(w, found, err)
		}
	})
}

// The old projector is stopped at any point; whatever it sends afterwards, or
// sent before and lands afterwards, changes nothing.
func TestAnOldTenureIsFenced(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := onePartition(1)
		plain := newJournal(store)
		s := create(t, plain, operations[0])
		old := take(t, plain, partition)
		record := func() projections.Record {
			e, err := plain.Timeline(t.Context(), operations[0])
			if err != nil {
				t.Fatal(err)
			}
			_, r := projections.Fold(projections.State{}, e[0].Entry)
			return r
		}()
		stale := &journal.Wake{Operation: s.Operation, Provider: "example", Version: 1, At: time.Now().Add(time.Hour)}

		// A projector whose writes are all unanswered and land much later.
		never := memory.Inject(store, func(c memory.Call) memory.Fault {
			if (c.Op == memory.OpPublish || c.Op == memory.OpRun) && c.Subject != fmt.Sprintf("epoch.%02d", partition) && c.Subject != fmt.Sprintf("history.1.%02d.takeover", partition) {
				return memory.Fault{Kind: memory.Late, After: 1 << 30}
			}
			return memory.Fault{}
		})
		slow := take(t, newJournal(never), partition)
		for what, try := range map[string]func(context.Context) error{
			"commit": func(ctx context.Context) error { return commit(ctx, slow, record, nil) },
			"wake":   func(ctx context.Context) error { return slow.Wake(ctx, *stale) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := try(ctx); !errors.Is(err, journal.ErrUnknown) {
				t.Fatalf("%s without answers: %v", what, err)
			}
			cancel()
		}

		fresh := take(t, plain, partition)
		if n := project(t, plain, fresh, inAMinute); n != 1 {
			t.Fatalf("projected %d", n)
		}
		never.Land(t.Context())
		for what, err := range map[string]error{
			"old commit":           commit(t.Context(), old, record, nil),
			"old commit and wake":  commit(t.Context(), old, record, stale),
			"old wake":             old.Wake(t.Context(), *stale),
			"old cancel":           old.Wake(t.Context(), journal.Wake{Operation: s.Operation}),
			"slow commit and wake": commit(t.Context(), slow, record, stale),
		} {
			if !errors.Is(err, journal.ErrFenced) {
				t.Errorf("%s: %v", what, err)
			}
		}
		w, found, err := plain.PendingWake(t.Context(), s.Operation)
		if err != nil || !found || w.Version != s.Sequence || w.At.Equal(stale.At) {
			t.Fatalf("pending wake-up %+v, %v, %v", w, found, err)
		}
		page, err := plain.Records(t.Context(), journal.Place{}, 10, func(*projections.Record) bool { return true })
		if err != nil || len(page.Records) != 1 {
			t.Fatalf("%d records, %v", len(page.Records), err)
		}
		if err := fresh.Wake(t.Context(), journal.Wake{Operation: s.Operation}); err != nil {
			t.Fatalf("the new tenure: %v", err)
		}
	})
}

// Each write of a projector's work fails undone, done, late, in flight or is
// refused, alone and in pairs; what stands afterwards is always the same.
func TestEveryStepOfAProjectorFails(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		// Take-over: epoch, record. Three commits: schedule, due now, cancel,
		// each with its record.
		const writes = 8
		kinds := []memory.Fault{
			{Kind: memory.Undone}, {Kind: memory.Done}, {Kind: memory.Late}, {Kind: memory.Late, After: 2}, {Kind: memory.InFlight}, {Kind: memory.Unavailable},
		}
		n := 0
		for step := range writes {
			for _, first := range kinds {
				for _, second := range []*memory.Fault{nil, {Kind: memory.Done}, {Kind: memory.Late}, {Kind: memory.Undone}} {
					n++
					operation := fmt.Sprintf("op_%d", n)
					count := 0
					faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
						if c.Op != memory.OpPublish && c.Op != memory.OpRun {
							return memory.Fault{}
						}
						count++
						switch {
						case count == step+1:
							return first
						case count == step+2 && second != nil:
							return *second
						}
						return memory.Fault{}
					})
					faultyProjection(t, store, faulty, operation)
					if count < writes {
						t.Fatalf("only %d writes were made", count)
					}
				}
			}
		}
	})
}

func faultyProjection(t *testing.T, store journal.Store, faulty *memory.Faulty, operation string) {
	t.Helper()
	plain := newJournal(store)
	s := create(t, plain, operation)
	for range 2 {
		var err error
		if s, _, err = plain.Append(t.Context(), s, evidence()); err != nil {
			t.Fatal(err)
		}
	}
	j := newJournal(faulty)
	tenure := take(t, j, journal.Partition(operation))
	soon := time.Now().Add(time.Hour)
	facts := 0
	project(t, j, tenure, func(s projections.State) *journal.Wake {
		if s.Operation != operation {
			return nil
		}
		w := journal.Wake{Operation: operation, Provider: "example", Version: s.Sequence}
		switch facts++; facts {
		case 1:
			w.At = soon
		case 2:
			w.At = time.Now()
		}
		return &w
	})
	faulty.Land(t.Context())
	synctest.Wait()

	// The cancel left no schedule; the due message of the second stands.
	w, found, err := plain.PendingWake(t.Context(), operation)
	if err != nil || !found || w.Version != s.Sequence-1 {
		t.Fatalf("%s: pending %+v, %v, %v", operation, w, found, err)
	}
	if m, err := store.Last(t.Context(), journal.Wakeups, "wake."+operation); !errors.Is(err, journal.ErrNoMessage) {
		t.Fatalf("%s: a schedule is left: %+v, %v", operation, m, err)
	}
	lines, err := plain.Timeline(t.Context(), operation)
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for from := uint64(1); ; {
		subject := fmt.Sprintf("history.1.%02d.%s", journal.Partition(operation), operation)
		m, err := store.Next(t.Context(), journal.History, subject, from)
		if errors.Is(err, journal.ErrNoMessage) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		records++
		from = m.Sequence + 1
	}
	if records != len(lines) || slices.ContainsFunc(lines, func(l journal.Line) bool { return l.Record == nil }) {
		t.Fatalf("%s: %d records for %d facts", operation, records, len(lines))
	}
	// The tenure goes on.
	if err := tenure.Wake(t.Context(), journal.Wake{Operation: operation}); err != nil {
		t.Fatal(err)
	}
}

// A wake-up that was not answered does not land over the newer one that was
// sent after it.
func TestAnUnansweredWakeDoesNotLandOverANewerOne(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		faulty := memory.Inject(store, script(journal.Wakeups,
			memory.Fault{}, // epoch
			memory.Fault{Kind: memory.Late, After: 1 << 30},
		))
		j := newJournal(faulty)
		create(t, j, "op_0")
		tenure := take(t, j, journal.Partition("op_0"))
		for version, after := range []time.Duration{time.Minute, time.Hour} {
			w := journal.Wake{Operation: "op_0", Provider: "example", Version: uint64(version + 1), At: time.Now().Add(after)}
			if err := tenure.Wake(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		faulty.Land(t.Context())
		if w, found, err := j.PendingWake(t.Context(), "op_0"); err != nil || !found || w.Version != 2 {
			t.Fatalf("pending %+v, %v, %v", w, found, err)
		}
	})
}

// Takers at once: at most one stays, and a later one always can.
func TestTakersAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := onePartition(1)
		plain := newJournal(store)
		create(t, plain, operations[0])
		for round := range 10 {
			var tenures [3]*journal.Tenure
			var group sync.WaitGroup
			for i := range tenures {
				group.Go(func() {
					tenure, err := newJournal(store).TakeOver(t.Context(), partition)
					if err != nil && !errors.Is(err, journal.ErrFenced) {
						t.Errorf("take over: %v", err)
					}
					tenures[i] = tenure
				})
			}
			group.Wait()
			working := 0
			for _, tenure := range tenures {
				if tenure == nil {
					continue
				}
				w := journal.Wake{Operation: operations[0], Provider: "example", Version: uint64(round), At: time.Now().Add(time.Hour)}
				switch err := tenure.Wake(t.Context(), w); {
				case err == nil:
					working++
				case !errors.Is(err, journal.ErrFenced):
					t.Fatal(err)
				}
			}
			if working > 1 {
				t.Fatalf("%d tenures of one partition work", working)
			}
		}
		project(t, plain, take(t, plain, partition), func(projections.State) *journal.Wake { return nil })
	})
}

func TestWakeUpsBecomeLeases(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		partition, operations := onePartition(3)
		tenure := take(t, j, partition)
		leases, err := j.Leases(t.Context(), "example")
		if err != nil {
			t.Fatal(err)
		}
		fetch := func(wait time.Duration, want ...string) []*journal.Lease {
			t.Helper()
			list, err := leases.Fetch(t.Context(), 10, max(wait, 10*time.Millisecond)) // a server's queue hears late
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range list {
				got = append(got, fmt.Sprintf("%s@%d", l.Operation, l.Version))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("leased %v, want %v", got, want)
			}
			return list
		}
		wake := func(w journal.Wake) {
			t.Helper()
			w.Provider = "example"
			if err := tenure.Wake(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		a, b, c := operations[0], operations[1], operations[2]
		at := time.Now().Add(time.Minute + 123456789*time.Nanosecond)
		wake(journal.Wake{Operation: a, Version: 1, At: at})
		wake(journal.Wake{Operation: b, Version: 2, At: time.Now().Add(100 * time.Millisecond)}) // sooner than a schedule
		wake(journal.Wake{Operation: c, Version: 3, At: at})
		wake(journal.Wake{Operation: c, Version: 4}) // never
		now := fetch(0, b+"@2")[0]
		if now.Provider != "example" || now.Delivered != 1 || time.Until(now.At) > 100*time.Millisecond {
			t.Fatalf("%+v", now)
		}
		if err := now.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := fetch(2*time.Minute, a+"@1")[0]
		if late := l.Fired.Sub(at); late < 0 || late > journal.ScheduleFloor+time.Millisecond || !l.At.Equal(at) {
			t.Fatalf("fired %s late, at %s", late, l.At)
		}
		// While it is leased it counts as present.
		if w, found, err := j.PendingWake(t.Context(), a); err != nil || !found || w.Version != 1 || !w.At.Equal(at) || w.Provider != "example" {
			t.Fatal(w, found, err)
		}
		// A newer schedule beside the leased message.
		wake(journal.Wake{Operation: a, Version: 5, At: time.Now().Add(time.Hour)})
		if w, _, err := j.PendingWake(t.Context(), a); err != nil || w.Version != 5 {
			t.Fatal(w, err)
		}
		if err := l.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w, found, err := j.PendingWake(t.Context(), a); err != nil || !found || w.Version != 5 {
			t.Fatal(w, found, err)
		}
		// Due now replaces the schedule.
		wake(journal.Wake{Operation: a, Version: 6, At: time.Now()})
		l = fetch(0, a+"@6")[0]
		time.Sleep(journal.LeaseTime - time.Second)
		if err := l.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		fetch(0)
		time.Sleep(journal.LeaseTime)
		again := fetch(0, a+"@6")[0]
		if again.Delivered != 2 {
			t.Fatalf("delivered %d", again.Delivered)
		}
		if err := again.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w, found, err := j.PendingWake(t.Context(), a); err != nil || found {
			t.Fatal(w, found, err)
		}
		// A body nobody can read still wakes.
		if _, err := store.Publish(t.Context(), journal.Wakeups, journal.Outgoing{Subject: "due.example." + c, Data: []byte("?")}); err != nil {
			t.Fatal(err)
		}
		fetch(0, c+"@0")
	})
}

func TestRecordsListTheLastOfEachOperation(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		partition, operations := onePartition(5)
		empty, err := j.Records(t.Context(), journal.Place{}, 10, func(*projections.Record) bool { return true })
		if err != nil || len(empty.Records) != 0 || empty.Next != (journal.Place{}) {
			t.Fatalf("%+v, %v", empty, err)
		}
		for _, o := range operations {
			create(t, j, o)
		}
		tenure := take(t, j, partition)
		none := func(projections.State) *journal.Wake { return nil }
		project(t, j, tenure, none)
		s, err := j.Current(t.Context(), operations[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := j.Append(t.Context(), s, evidence()); err != nil {
			t.Fatal(err)
		}
		project(t, j, tenure, none)
		take(t, j, partition)

		var got []string
		page := journal.Page{}
		for calls := 0; ; calls++ {
			page, err = j.Records(t.Context(), page.Next, 2, func(r *projections.Record) bool { return r.State.Operation != operations[3] })
			if err != nil || len(page.Records) > 2 || calls > 10 {
				t.Fatal(len(page.Records), err)
			}
			for _, r := range page.Records {
				got = append(got, r.State.Operation)
			}
			if page.Next == (journal.Place{}) {
				break
			}
		}
		if want := []string{operations[1], operations[4], operations[2], operations[0]}; !slices.Equal(got, want) {
			t.Fatalf("listed %v, want %v", got, want)
		}
	})
}

// An operation that moves while a listing goes from page to page is listed once, at the
// place that it had, as it stands by then.
func TestRecordsOfWhatMovesMeanwhile(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		partition, operations := onePartition(5)
		for _, o := range operations[:4] {
			create(t, j, o)
		}
		tenure := take(t, j, partition)
		none := func(projections.State) *journal.Wake { return nil }
		project(t, j, tenure, none)
		move := func(operation string) {
			s, err := j.Current(t.Context(), operation)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := j.Append(t.Context(), s, evidence()); err != nil {
				t.Fatal(err)
			}
			project(t, j, tenure, none)
		}
		move(operations[1]) // two records before it begins: the listing comes by it twice
		var got []string
		facts := map[string]uint64{}
		page := journal.Page{}
		for calls := 0; ; calls++ {
			var err error
			page, err = j.Records(t.Context(), page.Next, 1, func(*projections.Record) bool { return true })
			if err != nil || calls > 20 {
				t.Fatal(calls, err)
			}
			for _, r := range page.Records {
				got = append(got, r.State.Operation)
				facts[r.State.Operation] = r.State.Facts
			}
			if page.Next == (journal.Place{}) {
				break
			}
			if calls == 0 {
				move(operations[1]) // it was listed
				move(operations[0]) // it was not
				move(operations[0])
				create(t, j, operations[4])
				project(t, j, tenure, none)
			}
		}
		if want := []string{operations[1], operations[3], operations[2], operations[0]}; !slices.Equal(got, want) {
			t.Errorf("listed %v, want %v", got, want)
		}
		if facts[operations[0]] != 3 {
			t.Errorf("what moved is listed with %d facts, want 3", facts[operations[0]])
		}
	})
}

func TestPartitionsAreChecked(t *testing.T) {
	j := newJournal(memory.New(memory.Config{Now: time.Now}))
	for _, p := range []int{-1, journal.Partitions} {
		if _, err := j.TakeOver(t.Context(), p); err == nil {
			t.Errorf("partition %d was accepted", p)
		}
	}
	// For ever: a changed function would cut every operation off from its facts.
	for id, want := range map[string]int{"op_a": 3, "op_b": 15, "op_0": 12} {
		if got := journal.Partition(id); got != want {
			t.Errorf("partition of %s is %d, want %d", id, got, want)
		}
	}
}

// A second taker goes all the way between the first one's epoch and its
// record. Each then has one stream of the two: the first must see it.
func TestATakerOvertakenHalfWayIsFenced(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		plain := newJournal(store)
		var second *journal.Tenure
		slow := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpPublish && c.Stream == journal.History && second == nil {
				second = take(t, plain, 7)
			}
			return memory.Fault{}
		})
		if _, err := newJournal(slow).TakeOver(t.Context(), 7); !errors.Is(err, journal.ErrFenced) || second == nil {
			t.Fatalf("got %v, want fenced", err)
		}
	})
}

// One operation's life at the journal on the double: what a simulation pays.
func BenchmarkLifeOnTheDouble(b *testing.B) {
	for i := range b.N {
		now := time.Unix(1, 0)
		store := memory.New(memory.Config{Now: func() time.Time { return now }})
		j := journal.New(journal.Options{
			Store: store, Now: func() time.Time { return now }, NewID: func() string { return "id" },
			Sleep: func(_ context.Context, d time.Duration) error { now = now.Add(d); return nil },
		})
		operation := fmt.Sprintf("op_%d", i)
		tenure, err := j.TakeOver(b.Context(), journal.Partition(operation))
		if err != nil {
			b.Fatal(err)
		}
		facts, err := tenure.Facts(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		leases, err := j.Leases(b.Context(), "example")
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := j.Create(b.Context(), intent(operation)); err != nil {
			b.Fatal(err)
		}
		var projected projections.State
		for n := range 6 {
			e, err := facts.Next(b.Context(), 0)
			if err != nil {
				b.Fatal(err)
			}
			var r projections.Record
			projected, r = projections.Fold(projected, e)
			w := &journal.Wake{Operation: operation, Provider: "example", Version: e.Sequence, At: now.Add(time.Minute)}
			if err := commit(b.Context(), tenure, r, w); err != nil {
				b.Fatal(err)
			}
			now = now.Add(2 * time.Minute)
			list, err := leases.Fetch(b.Context(), 1, 0)
			if err != nil || len(list) != 1 {
				b.Fatal(len(list), err)
			}
			s, err := j.Current(b.Context(), operation)
			if err != nil {
				b.Fatal(err)
			}
			next := evidence()
			if n%2 == 0 {
				next = permit(uint64(n))
			}
			if _, _, err := j.Append(b.Context(), s, next); err != nil {
				b.Fatal(err)
			}
			if err := list[0].Ack(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// cutOff is a store whose leader of one stream has no followers any more: until
// then it has what it had when it was made, and takes nothing.
type cutOff struct {
	journal.Store
	stream journal.Stream
	until  time.Time
	had    map[string]journal.Message // by subject, the last
	beside bool                       // another leader takes writes, and this one answers reads
}

func (c *cutOff) is(s journal.Stream) bool { return s == c.stream && time.Now().Before(c.until) }

func (c *cutOff) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	if c.is(s) && !c.beside {
		return 0, journal.ErrWrongSequence
	}
	return c.Store.Publish(ctx, s, m)
}

func (c *cutOff) Last(ctx context.Context, s journal.Stream, subject string) (journal.Message, error) {
	if !c.is(s) {
		return c.Store.Last(ctx, s, subject)
	}
	m, ok := c.had[subject]
	if !ok {
		return m, journal.ErrNoMessage
	}
	return m, nil
}

func (c *cutOff) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	if c.is(s) {
		return journal.Message{}, journal.ErrNoMessage
	}
	return c.Store.Next(ctx, s, subject, from)
}

// A leader that was cut off takes no partition from its projector and no fact from
// the ledger, as long as it can be one.
func TestALeaderThatWasCutOffIsNotBelieved(t *testing.T) {
	const believed = 15 * time.Second // no leader is one for longer without followers
	onBoth(t, func(t *testing.T, store journal.Store) {
		partition, operations := onePartition(1)
		j := newJournal(store)
		s := create(t, j, operations[0])
		take(t, j, partition)
		epoch := "epoch." + journal.PartitionName(partition)
		before, err := store.Last(t.Context(), journal.Wakeups, epoch)
		if err != nil {
			t.Fatal(err)
		}
		for name, had := range map[string]map[string]journal.Message{"an earlier epoch": {epoch: before}, "no epoch": nil} {
			leader := &cutOff{Store: store, stream: journal.Wakeups, had: had}
			tenure := take(t, newJournal(leader), partition)
			leader.until = time.Now().Add(believed)
			if err := tenure.Wake(t.Context(), *inAMinute(s)); err != nil {
				t.Errorf("%s for %s: %v", name, believed, err)
			}
			// WAKEUPS has lost it: the tenure ends, but it was taken by nobody.
			leader.until = time.Now().Add(time.Hour)
			if err := tenure.Wake(t.Context(), *inAMinute(s)); err == nil || errors.Is(err, journal.ErrFenced) {
				t.Errorf("%s for good: %v", name, err)
			}
		}
		newest, _, err := j.Append(t.Context(), s, evidence())
		if err != nil {
			t.Fatal(err)
		}
		for _, beside := range []bool{false, true} {
			for _, e := range []events.Event{permit(1), evidence()} {
				leader := &cutOff{Store: store, stream: journal.Ledger, until: time.Now().Add(believed), beside: beside}
				facts := newest.Facts
				var outcome journal.Outcome
				if newest, outcome, err = newJournal(leader).Append(t.Context(), newest, e); err != nil || outcome != journal.Stored {
					t.Errorf("%s: %s, %v", e.Fact.Type(), outcome, err)
				}
				if newest.Facts != facts+1 {
					t.Errorf("%s is stored, and not in the state returned", e.Fact.Type())
				}
			}
		}
	})
}

// commit is what a projector does for one fact: the wake-up, if Next moved, goes
// before the record.
func commit(ctx context.Context, t *journal.Tenure, r projections.Record, w *journal.Wake) error {
	if w != nil {
		if err := t.Wake(ctx, *w); err != nil {
			return err
		}
	}
	return t.CommitRun(ctx, []projections.Record{r})
}

package journal_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// desk is a journal with a board, over a store whose reads of the ledger are
// counted.
type desk struct {
	*journal.Journal
	board *journal.Board
	reads atomic.Int64
}

func newDesk(alone bool, fault func(memory.Call) memory.Fault) *desk {
	d := &desk{board: journal.NewBoard(alone)}
	store := memory.Inject(memory.New(memory.Config{Now: time.Now}), func(c memory.Call) memory.Fault {
		if c.Op == memory.OpNext || c.Op == memory.OpLast {
			d.reads.Add(1)
		}
		if fault == nil {
			return memory.Fault{}
		}
		return fault(c)
	})
	d.Journal = journal.New(journal.Options{
		Store: store, Now: time.Now, Sleep: sleepFor, Board: d.board,
		NewID: func() string { return fmt.Sprintf("id%d", ids.Add(1)) },
	})
	return d
}

// projected folds the operation's facts onto the slate as a projector would, so
// long after they were stored.
func (d *desk) projected(t *testing.T, slate *journal.Slate, operation string, late time.Duration) {
	tenure, err := d.TakeOver(t.Context(), journal.Partition(operation))
	if err != nil {
		t.Error(err)
		return
	}
	facts, err := tenure.Facts(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	s := projections.State{}
	for {
		e, err := facts.Next(t.Context(), time.Hour)
		if err != nil {
			return
		}
		if sleepFor(t.Context(), late) != nil {
			return
		}
		s, _ = projections.Fold(s, e)
		slate.Put(s)
	}
}

func TestBoardShowsTheNewest(t *testing.T) {
	for _, c := range []struct {
		name  string
		alone bool
		late  time.Duration // of the projector
		reads bool          // whether an append reads its fact back
		waits time.Duration
	}{
		{"at once", true, time.Millisecond, false, time.Millisecond},
		{"not alone", false, time.Millisecond, false, time.Millisecond},
		{"the projector is too slow", true, time.Minute, true, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(c.alone, nil)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go d.projected(t, d.board.Slate(journal.Partition("op_1")), "op_1", c.late)
				synctest.Wait()
				before, began := d.reads.Load(), time.Now()
				s := create(t, d.Journal, "op_1")
				if read := d.reads.Load() > before; read != c.reads {
					t.Errorf("reads back: %t", read)
				}
				if took := time.Since(began); took != c.waits {
					t.Errorf("waited for %s", took)
				}
				s, outcome, err := d.Append(ctx, s, permit(1))
				if err != nil || outcome != journal.Stored || s.Sequence != 2 || s.Creates.Made != 1 {
					t.Fatalf("%d %s %v", s.Sequence, outcome, err)
				}
				// Whoever reads gets what a leader would have given.
				now, err := d.Current(ctx, "op_1")
				if err != nil || now.Sequence != 2 {
					t.Errorf("current %d, %v", now.Sequence, err)
				}
				if now, err = d.Catch(ctx, projections.State{Operation: "op_1"}); err != nil || now.Sequence != 2 {
					t.Errorf("caught up to %d, %v", now.Sequence, err)
				}
			})
		})
	}
}

// A board that is behind answers whoever decides, and nobody who was told more.
func TestBoardBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(true, nil)
		slate := d.board.Slate(journal.Partition("op_1"))
		first := create(t, d.Journal, "op_1") // waits in vain, and reads
		slate.Put(first)
		second, _, err := d.Append(t.Context(), first, permit(1))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := d.Known(t.Context(), "op_1", 0); err != nil || s.Sequence != first.Sequence {
			t.Errorf("known: %d, %v", s.Sequence, err)
		}
		if s, err := d.Known(t.Context(), "op_1", second.Sequence); err != nil || s.Sequence != second.Sequence {
			t.Errorf("known from there on: %d, %v", s.Sequence, err)
		}
		if s, err := d.Current(t.Context(), "op_1"); err != nil || s.Sequence != second.Sequence {
			t.Errorf("current: %d, %v", s.Sequence, err)
		}
		// A permit decided on what is behind is refused, and the state is then new.
		s, outcome, err := d.Append(t.Context(), first, permit(1))
		if err != nil || outcome != journal.Superseded || s.Sequence != second.Sequence {
			t.Errorf("permit: %d %s %v", s.Sequence, outcome, err)
		}
		// The next tenure has come to the first fact only: what was acknowledged
		// before it began counts.
		slate.Close()
		slate = d.board.Slate(journal.Partition("op_1"))
		slate.Put(first)
		if s, err := d.Current(t.Context(), "op_1"); err != nil || s.Sequence != second.Sequence {
			t.Errorf("current in the next tenure: %d, %v", s.Sequence, err)
		}
		slate.Put(second)
		slate.Put(first) // never back
		before := d.reads.Load()
		if s, err := d.Current(t.Context(), "op_1"); err != nil || s.Sequence != second.Sequence || d.reads.Load() != before {
			t.Errorf("current on the board: %d, %v, %d reads", s.Sequence, err, d.reads.Load()-before)
		}
		// Nothing is left of a tenure that has ended, and its holder writes no more.
		slate.Close()
		slate.Put(first)
		if s, err := d.Known(t.Context(), "op_1", 0); err != nil || s.Sequence != second.Sequence || d.reads.Load() == before {
			t.Errorf("known after the tenure: %d, %v", s.Sequence, err)
		}
	})
}

// Where another fact came first, or nobody knows whether ours is stored, the
// ledger is asked, whatever the board has.
func TestBoardIsNotAskedInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(true, script(journal.Ledger, memory.Fault{}, memory.Fault{Kind: memory.Done}))
		slate := d.board.Slate(journal.Partition("op_1"))
		first := create(t, d.Journal, "op_1")
		slate.Put(first)
		before := d.reads.Load()
		s, outcome, err := d.Append(t.Context(), first, permit(1))
		if err != nil || outcome != journal.Stored || s.Sequence != 2 || d.reads.Load() == before {
			t.Errorf("%d %s %v", s.Sequence, outcome, err)
		}
		s, outcome, err = d.Append(t.Context(), first, evidence())
		if err != nil || outcome != journal.Stored || s.Sequence != 3 {
			t.Errorf("evidence behind another: %d %s %v", s.Sequence, outcome, err)
		}
	})
}

// A tenure that ends lets go of who waits for it.
func TestBoardEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(true, nil)
		slate := d.board.Slate(journal.Partition("op_1"))
		time.AfterFunc(100*time.Millisecond, slate.Close)
		began := time.Now()
		create(t, d.Journal, "op_1")
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("waited for %s", took)
		}
		// And without a tenure nobody waits.
		if _, _, err := d.Append(t.Context(), projections.State{Operation: "op_1"}, evidence()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("waited for %s", took)
		}
	})
}

// The board holds what moved last: so many states and no more.
func TestBoardForgets(t *testing.T) {
	board := journal.NewBoard(false)
	slate := board.Slate(0)
	put := func(i int, sequence uint64, live bool) {
		s := projections.State{Operation: fmt.Sprintf("op_%d", i), Sequence: sequence}
		if live {
			s.NextLook = time.Unix(1, 0)
		}
		slate.Put(s)
	}
	there := func(i int) bool {
		_, ok := slate.State(fmt.Sprintf("op_%d", i))
		return ok
	}
	for i := range 1024 {
		put(i, 1, true)
	}
	put(0, 2, true) // moves
	put(5000, 1, true)
	if !there(0) || there(1) || !there(2) || !there(5000) {
		t.Error("it was not the one that has not moved for longest that went")
	}
	for i := range 1024 {
		put(i, 3, false) // ends
	}
	if there(0) || there(959) || !there(960) || !there(1023) || !there(5000) {
		t.Error("of those that have ended not the last 64 are there")
	}
}

// An error of a read after the append says what it always said.
func TestBoardErrorAfterStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		d := newDesk(true, func(c memory.Call) memory.Fault {
			if broken && c.Op == memory.OpNext {
				return memory.Fault{Kind: memory.Unavailable}
			}
			return memory.Fault{}
		})
		d.board.Slate(journal.Partition("op_1"))
		broken = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, outcome, err := d.Create(ctx, intent("op_1"))
		if err == nil || outcome != journal.Stored || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s %v", outcome, err)
		}
	})
}

// What is kept in a smaller form comes back as it was put, and no older state in
// its place, in whatever order operations move and end.
func TestBoardKeepsWhatItPacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slate := journal.NewBoard(true).Slate(3)
		want := map[string]projections.State{}
		n := rapid.IntRange(1, 300).Draw(t, "operations")
		for step := range rapid.IntRange(1, 1000).Draw(t, "steps") {
			// By a generator of its own: a thousand draws of rapid's take long.
			i := int(uint32(step*step+7*step)*2654435761>>16) % n
			s := want[fmt.Sprint("op_", i)]
			s.Operation = fmt.Sprint("op_", i)
			s.Sequence = uint64(step + 1)
			s.Phase, s.Recent = projections.PhaseObserving, []uint64{uint64(step)}
			s.Job.ID = fmt.Sprint("job-", i)
			s.NextLook = time.Unix(int64(step), 5).UTC()
			if step%17 == 0 {
				s.NextLook = time.Time{}
			}
			slate.Put(s)
			want[s.Operation] = s
			older := s
			older.Sequence--
			slate.Put(older)
			if got, ok := slate.State(s.Operation); !ok || got.Sequence != s.Sequence {
				t.Fatalf("just put at %d: %d, %v", s.Sequence, got.Sequence, ok)
			}
			if hot := slate.Unpacked(); hot > journal.BoardHot {
				t.Fatalf("%d states are not packed, at most %d", hot, journal.BoardHot)
			}
		}
		for operation, s := range want {
			got, ok := slate.State(operation)
			if !ok && s.NextLook.IsZero() {
				continue // forgotten
			}
			if !ok || !reflect.DeepEqual(got, s) {
				t.Fatalf("%s: got %+v, %v\nwant %+v", operation, got, ok, s)
			}
		}
	})
}

// Who parks and who writes a name see each other also where the board says that
// nothing is parked.
func TestBoardKnowsThatNothingIsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(true, nil)
		name := journal.JobName("j-1")
		look := func(want int, reads bool) {
			t.Helper()
			before := d.reads.Load()
			list, err := d.Parked(t.Context(), "example", name)
			if err != nil || len(list) != want {
				t.Errorf("%d parked, %v, want %d", len(list), err, want)
			}
			if read := d.reads.Load() > before; read != reads {
				t.Errorf("asked the store: %t", read)
			}
		}
		all := func(want int) {
			t.Helper()
			if list, err := d.Parked(t.Context(), "", ""); err != nil || len(list) != want {
				t.Errorf("%d parked in all, %v, want %d", len(list), err, want)
			}
		}
		look(0, true) // nobody has looked yet
		all(0)
		look(0, false)
		a := journal.Arrival{Provider: "example", Key: "k", Time: time.Now()}
		a.Fact.JobID = "j-1"
		if err := d.Park(t.Context(), a, time.Hour); err != nil {
			t.Fatal(err)
		}
		look(1, true)
		all(1)
		look(1, true) // one is there
		if err := d.Unpark(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		look(0, true) // nobody has looked since
		all(0)
		look(0, false)
	})
	// Others may park where this process does not write everything.
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(false, nil)
		if _, err := d.Parked(t.Context(), "", ""); err != nil {
			t.Fatal(err)
		}
		before := d.reads.Load()
		if _, err := d.Parked(t.Context(), "example", journal.JobName("j-1")); err != nil || d.reads.Load() == before {
			t.Error("did not ask")
		}
	})
}

// What a create needs is at hand once, and stored.
func TestBoardKeepsInputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(true, nil)
		read := func(data []byte) (asked bool) {
			t.Helper()
			before := d.reads.Load()
			got, err := d.Payload(t.Context(), events.Sum(data))
			if err != nil || string(got) != string(data) {
				t.Errorf("%q, %v", got, err)
			}
			return d.reads.Load() > before
		}
		small, large := []byte("small"), make([]byte, 9<<10)
		for _, data := range [][]byte{small, large} {
			digest, err := d.PutPayload(t.Context(), data)
			if err != nil {
				t.Fatal(err)
			}
			d.Keep(digest, data)
		}
		if read(small) || !read(small) || !read(large) {
			t.Error("the small one is at hand once, the large one never")
		}
	})
}

// A draft is stored once, by whoever was first, and what fails is done by the one
// who needs it.
func TestBoardDrafts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes, slow, refuse := atomic.Int64{}, time.Duration(0), false
		d := newDesk(true, func(c memory.Call) memory.Fault {
			if c.Op != memory.OpPublish || c.Stream != journal.Payloads {
				return memory.Fault{}
			}
			if time.Sleep(slow); refuse {
				return memory.Fault{Kind: memory.Unavailable}
			}
			writes.Add(1)
			return memory.Fault{}
		})
		put := func(data []byte, want int64) {
			t.Helper()
			before := writes.Load()
			digest, err := d.PutPayload(t.Context(), data)
			if err != nil || digest != events.Sum(data) {
				t.Errorf("%s, %v", digest, err)
			}
			if n := writes.Load() - before; n != want {
				t.Errorf("%d writes, want %d", n, want)
			}
			if got, err := d.Payload(t.Context(), digest); err != nil || string(got) != string(data) {
				t.Errorf("%q, %v", got, err)
			}
		}
		d.Draft(t.Context(), []byte("drafted"))
		put([]byte("drafted"), 0)

		slow = time.Second / 2
		for range 2 {
			go d.Draft(t.Context(), []byte("under way"))
		}
		synctest.Wait()
		put([]byte("under way"), 1) // by the draft, which it waits for

		refuse = true
		d.Draft(t.Context(), []byte("refused"))
		refuse, slow = false, 0
		put([]byte("refused"), 1)

		large := make([]byte, 9<<10)
		d.Draft(t.Context(), large)
		put(large, 1)

		none := journal.New(journal.Options{Store: memory.New(memory.Config{Now: time.Now}), Now: time.Now, Sleep: sleepFor, NewID: func() string { return "id" }})
		none.Draft(t.Context(), []byte("nobody"))
		if _, err := none.Payload(t.Context(), events.Sum([]byte("nobody"))); !errors.Is(err, journal.ErrNoPayload) {
			t.Errorf("without a board: %v", err)
		}
	})
}

// A claim that this process made is not asked for again, unless it was replaced.
func TestBoardKnowsItsClaims(t *testing.T) {
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(alone, nil)
			reclaim := func(operation, want string) (asked bool) {
				t.Helper()
				before := d.reads.Load()
				owner, later, err := d.Reclaim(t.Context(), "example", "main", "j-1", operation)
				if err != nil || owner != want || later != "" {
					t.Errorf("%s, %s, %v, want %s", owner, later, err, want)
				}
				return d.reads.Load() > before
			}
			claim := func(operation, want string) {
				t.Helper()
				if owner, err := d.Claim(t.Context(), "example", "main", "j-1", operation); err != nil || owner != want {
					t.Errorf("%s, %v, want %s", owner, err, want)
				}
			}
			claim("op_1", events.ClaimOwn)
			if reclaim("op_1", "op_1") == alone {
				t.Errorf("alone %t: asked %t", alone, !alone)
			}
			claim("op_2", "op_1")
			if !reclaim("op_2", "op_1") {
				t.Error("the other's claim was not asked for")
			}
			// op_2 has a fact that calls the job its own, op_1 none.
			if _, _, err := d.Create(t.Context(), events.Event{ID: "i", Source: "/test", Operation: "op_2", Fact: &events.IntentRecorded{
				Principal: "p", Provider: "example", Account: "main", Adopt: "j-1",
			}}); err != nil {
				t.Fatal(err)
			}
			if !reclaim("op_2", "op_2") || !reclaim("op_1", "op_2") {
				t.Error("a claim that was replaced was not asked for")
			}
		})
	}
}

// slowIndex answers writes to INDEX late.
type slowIndex struct {
	journal.Store
	slow func(journal.Outgoing)
}

func (s slowIndex) Publish(ctx context.Context, st journal.Stream, m journal.Outgoing) (uint64, error) {
	n, err := s.Store.Publish(ctx, st, m)
	if st == journal.Index && err == nil {
		s.slow(m)
	}
	return n, err
}

// A claim whose answer comes after another operation, which has the job by a fact, was
// put in its place is not taken for one that stands.
func TestClaimAnsweredLate(t *testing.T) {
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := slowIndex{memory.New(memory.Config{Now: time.Now}), func(m journal.Outgoing) {
				if string(m.Data) == "op_a" {
					time.Sleep(50 * time.Millisecond)
				}
			}}
			j := journal.New(journal.Options{Store: store, Now: time.Now, Sleep: sleepFor, Board: journal.NewBoard(alone), NewID: func() string { return "x" }})
			// op_b holds the job by a fact; INDEX has lost it.
			if _, _, err := j.Create(t.Context(), events.Event{ID: "i", Source: "/t", Operation: "op_b", Fact: &events.IntentRecorded{Principal: "p", Provider: "example", Account: "main", Adopt: "j-1"}}); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				_, _ = j.Claim(t.Context(), "example", "main", "j-1", "op_a") // INDEX says the same by then
				close(done)
			}()
			time.Sleep(10 * time.Millisecond)
			if owner, _, err := j.Reclaim(t.Context(), "example", "main", "j-1", "op_b"); err != nil || owner != "op_b" { // a sweep
				t.Errorf("%s, %v", owner, err)
			}
			<-done
			// op_a's fact now says that the job is its own.
			if _, _, err := j.Create(t.Context(), events.Event{ID: "i2", Source: "/t", Operation: "op_a", Fact: &events.IntentRecorded{Principal: "p", Provider: "example", Account: "main", Adopt: "j-1"}}); err != nil {
				t.Fatal(err)
			}
			owner, later, err := j.Reclaim(t.Context(), "example", "main", "j-1", "op_a") // the projection of that fact
			if owner != "op_b" || later != "op_a" {
				t.Errorf("alone %t: projection of a's fact: owner %s, later %q, %v: want op_b, contested op_a", alone, owner, later, err)
			}
		})
	}
}

// earlyIndex tells of writes to INDEX before they are made.
type earlyIndex struct {
	journal.Store
	before func(journal.Outgoing)
}

func (s earlyIndex) Publish(ctx context.Context, st journal.Stream, m journal.Outgoing) (uint64, error) {
	if st == journal.Index {
		s.before(m)
	}
	return s.Store.Publish(ctx, st, m)
}

// A claim that its owner makes once more while it is taken away is not taken for one
// that stands.
func TestClaimAgainWhileItIsTaken(t *testing.T) {
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var j *journal.Journal
			store := earlyIndex{memory.New(memory.Config{Now: time.Now}), func(m journal.Outgoing) {
				if string(m.Data) == "op_b" && m.Guard != nil && m.Guard.Sequence > 0 {
					if o, err := j.Claim(t.Context(), "example", "main", "j-1", "op_a"); err != nil || o != events.ClaimOwn {
						t.Error(o, err)
					}
				}
			}}
			j = journal.New(journal.Options{Store: store, Now: time.Now, Sleep: sleepFor, Board: journal.NewBoard(alone), NewID: func() string { return "x" }})
			if _, _, err := j.Create(t.Context(), events.Event{ID: "i", Source: "/t", Operation: "op_b", Fact: &events.IntentRecorded{Principal: "p", Provider: "example", Account: "main", Adopt: "j-1"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := j.Claim(t.Context(), "example", "main", "j-1", "op_a"); err != nil { // who claimed it died before its fact
				t.Fatal(err)
			}
			if owner, _, err := j.Reclaim(t.Context(), "example", "main", "j-1", "op_b"); err != nil || owner != "op_b" {
				t.Error(owner, err)
			}
			if _, _, err := j.Create(t.Context(), events.Event{ID: "i2", Source: "/t", Operation: "op_a", Fact: &events.IntentRecorded{Principal: "p", Provider: "example", Account: "main", Adopt: "j-1"}}); err != nil {
				t.Fatal(err)
			}
			owner, later, err := j.Reclaim(t.Context(), "example", "main", "j-1", "op_a")
			if owner != "op_b" || later != "op_a" {
				t.Errorf("alone %t: owner %s, later %q, %v: want op_b, contested op_a", alone, owner, later, err)
			}
		})
	}
}

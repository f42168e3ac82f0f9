package journal_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// Whatever becomes of the write of a claim that is made ahead, or withdrawn, what is
// answered is so: a claim that was given is in INDEX, one that was withdrawn is free for
// everybody, and what another has claimed since stays.
func TestClaimsAhead(t *testing.T) {
	for _, kind := range []memory.Kind{memory.None, memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		t.Run(fmt.Sprint("kind ", kind), func(t *testing.T) {
			now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
			store := memory.New(memory.Config{Now: func() time.Time { return now }})
			fault := false
			faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
				if fault && c.Op == memory.OpPublish {
					fault = false
					return memory.Fault{Kind: kind, After: 1}
				}
				return memory.Fault{}
			})
			n := 0
			j := journal.New(journal.Options{
				Store: faulty, Now: func() time.Time { return now }, NewID: func() string { n++; return fmt.Sprint("n", n) },
				Sleep: func(ctx context.Context, d time.Duration) error { now = now.Add(d); return ctx.Err() },
			})
			never := func(string, time.Time) (bool, error) { return false, nil }
			always := func(string, time.Time) (bool, error) { return true, nil }
			ahead := func(operation string, lapsed func(string, time.Time) (bool, error), want string) *journal.Provisional {
				t.Helper()
				fault = true
				claim, owner, err := j.ClaimAhead(t.Context(), "example", "main", "j", operation, lapsed)
				if fault = false; err != nil || owner != want || (claim != nil) != (want == "") {
					t.Fatalf("%s: %q, %v", operation, owner, err)
				}
				return claim
			}
			holds := func(want string) {
				t.Helper()
				owner, _, err := j.Holder(t.Context(), "example", "main", "j")
				of, owned, err2 := j.Owner(t.Context(), "example", "main", "j")
				if err != nil || err2 != nil || owner != want || of != want || owned != (want != "") {
					t.Fatalf("%q, %q, %v, %v, want %q", owner, of, err, err2, want)
				}
			}
			withdraw := func(claim *journal.Provisional) {
				t.Helper()
				fault = true
				if err := j.Withdraw(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				fault = false
			}
			first := ahead("op_a", never, "")
			holds("op_a")
			ahead("op_b", never, "op_a")
			second := ahead("op_a", never, "") // the same request again
			withdraw(first)                    // which the one before does not know of
			holds("op_a")
			withdraw(second)
			holds("")
			third := ahead("op_b", never, "")
			withdraw(second) // again, and too late
			holds("op_b")
			ahead("op_c", always, "")
			withdraw(third)
			holds("op_c")
			// A worker's claim is no claim ahead, and takes what is withdrawn.
			withdraw(ahead("op_c", never, ""))
			fault = true
			if owner, err := j.Claim(t.Context(), "example", "main", "j", "op_w"); err != nil || owner != events.ClaimOwn {
				t.Fatal(owner, err)
			}
			holds("op_w")
			if owner, err := j.Claim(t.Context(), "example", "main", "j", "op_x"); err != nil || owner != "op_w" {
				t.Error(owner, err)
			}
		})
	}
}

// The facts since a time are those stored at it or later, wherever in the ledger that is.
func TestFactsSince(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 7, 8} {
		begin := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
		now := begin
		j := journal.New(journal.Options{
			Store: memory.New(memory.Config{Now: func() time.Time { return now }}), Now: func() time.Time { return now },
			Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }, NewID: func() string { return "x" },
		})
		for i := range n { // two in each second
			now = begin.Add(time.Duration(i/2) * time.Second)
			if _, _, err := j.Create(t.Context(), events.Event{ID: "i", Source: "/t", Operation: fmt.Sprint("op_", i), Fact: &events.IntentRecorded{Principal: "p", Provider: "example", Account: "main"}}); err != nil {
				t.Fatal(err)
			}
		}
		for second := -1; second <= n; second++ {
			facts, err := j.FactsSince(t.Context(), begin.Add(time.Duration(second)*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for ; ; got++ {
				f, err := facts.NextStored(t.Context(), 0)
				if err != nil {
					break
				}
				if !f.Is(events.TypeIntentRecorded) || f.Is(events.TypeCreateAttempted) {
					t.Error("it is taken for another type")
				}
			}
			if want := max(0, n-2*max(0, second)); got != want {
				t.Errorf("%d facts, since second %d: %d, want %d", n, second, got, want)
			}
			if err := facts.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

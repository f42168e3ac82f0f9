package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// Whatever answers are lost or late and whoever else appends meanwhile, all facts are
// stored or none, and what is answered is so.
func TestAppendAllKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		clock := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
		end := clock.Add(20 * time.Second)
		now := func() time.Time { return clock }
		store := memory.New(memory.Config{Now: now})
		var others func()
		unread := rapid.Bool().Draw(r, "reads fail")
		faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpNext && unread {
				return memory.Fault{Kind: memory.Unavailable}
			}
			if c.Op != memory.OpBatch {
				return memory.Fault{}
			}
			if others != nil && rapid.IntRange(0, 3).Draw(r, "others") == 0 {
				others()
			}
			kind := rapid.SampledFrom([]memory.Kind{memory.None, memory.None, memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late}).Draw(r, "fault")
			return memory.Fault{Kind: kind, After: rapid.IntRange(0, 3).Draw(r, "after")}
		})
		n := 0
		options := journal.Options{Now: now, NewID: func() string { n++; return fmt.Sprintf("id%d", n) }, Sleep: func(ctx context.Context, d time.Duration) error {
			if clock = clock.Add(d); clock.After(end) {
				return context.DeadlineExceeded
			}
			return ctx.Err()
		}}
		options.Store = faulty
		j := journal.New(options)
		options.Store = store
		other := journal.New(options)
		paused := func(name string) events.Event {
			return events.Event{ID: name, Source: "/ingest/1", Time: now(), Actor: "alice", Fact: &events.OperationPaused{Who: "alice"}}
		}
		var states []projections.State
		var list []events.Event
		for i := range rapid.IntRange(1, 4).Draw(r, "operations") {
			s := projections.State{Operation: fmt.Sprintf("op_%d", i)}
			intent := events.Event{ID: fmt.Sprintf("own%d", i), Source: "/ingest/1", Operation: s.Operation, Time: now(), Actor: "alice", Fact: &events.IntentRecorded{Principal: "alice", Provider: "example", Account: "default", Rules: projections.Rules}}
			if rapid.Bool().Draw(r, "there") {
				intent.ID = fmt.Sprintf("first%d", i)
				var err error
				if s, _, err = other.Create(t.Context(), intent); err != nil {
					r.Fatal(err)
				}
				intent = paused(fmt.Sprintf("own%d", i))
			}
			states, list = append(states, s), append(list, intent)
		}
		others = func() {
			s := states[rapid.IntRange(0, len(states)-1).Draw(r, "whose")]
			e := paused(options.NewID())
			if s.Facts == 0 {
				e = list[0]
				e.ID, e.Operation = options.NewID(), s.Operation
				e.Fact = &events.IntentRecorded{Principal: "alice", Provider: "example", Account: "default", Rules: projections.Rules}
			}
			_, _, _ = other.Append(t.Context(), s, e)
		}
		after, outcome, err := j.AppendAll(t.Context(), states, list)
		others = nil
		faulty.Land(t.Context())
		own := 0
		for i, s := range states {
			lines, _ := other.Timeline(t.Context(), s.Operation)
			for _, line := range lines {
				if line.Entry.Event.ID == list[i].ID {
					own++
				}
			}
		}
		switch {
		case own != 0 && own != len(list):
			r.Fatalf("%d of %d are stored", own, len(list))
		case outcome == journal.Stored && own == 0, outcome == journal.Superseded && own > 0:
			r.Fatalf("%s: %d of %d are stored", outcome, own, len(list))
		case outcome == journal.Stored && err == nil:
			for i, s := range after {
				if s.Operation != states[i].Operation || s.Facts <= states[i].Facts {
					r.Fatalf("%s has %d facts, had %d", s.Operation, s.Facts, states[i].Facts)
				}
			}
		case err != nil && outcome == journal.Unsettled && own > 0:
			if !errors.Is(err, journal.ErrUnknown) {
				r.Fatalf("stored, and the error says that it is not: %v", err)
			}
		}
	})
}

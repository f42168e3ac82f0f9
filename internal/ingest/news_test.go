package ingest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

type handClock struct{ now time.Time }

func (c *handClock) Now() time.Time { return c.now }

func (c *handClock) Sleep(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	return ctx.Err()
}

func (c *handClock) SleepOr(ctx context.Context, d time.Duration, _ <-chan struct{}) error {
	return c.Sleep(ctx, d)
}

// A fact that does not follow on what is known is not folded: the operation is read
// again, since a fact before it was missed.
func TestNewsWithAGap(t *testing.T) {
	ctx := t.Context()
	clock := &handClock{time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)}
	j := journal.New(journal.Options{Store: memory.New(memory.Config{Now: clock.Now}), Now: clock.Now, Sleep: clock.Sleep, NewID: func() string { return "id" }})
	s, _, err := j.Create(ctx, events.Event{ID: "a", Source: "/ingest/1", Operation: "op_1", Time: clock.now, Actor: "alice", Fact: &events.IntentRecorded{Principal: "alice", Provider: "example", Account: "default", Rules: projections.Rules}})
	if err != nil {
		t.Fatal(err)
	}
	n := newNews(j, clock, slog.New(slog.DiscardHandler))
	topic, leave := n.join("op_1")
	defer leave()
	if _, _, _, err := topic.look(ctx, j, false); err != nil {
		t.Fatal(err)
	}
	for _, fact := range []events.Fact{&events.OperationPaused{Who: "alice"}, &events.OperationResumed{Who: "alice"}} {
		if s, _, err = j.Append(ctx, s, events.Event{ID: string(fact.Type()), Source: "/ingest/1", Time: clock.now, Actor: "alice", Fact: fact}); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := j.Timeline(ctx, "op_1")
	if err != nil {
		t.Fatal(err)
	}
	if lines[2].Entry.Unreadable != nil {
		t.Fatal(lines[2].Entry.Unreadable)
	}
	topic.add(lines[2].Entry) // the second was missed
	list, whole, known, _, err := topic.after(ctx, j, 1, false)
	if err != nil || whole || len(list) > 0 || known.Facts != 3 {
		t.Errorf("%v: %d told, whole %t, %d facts", err, len(list), whole, known.Facts)
	}
	if list, whole, _, _, _ = topic.after(ctx, j, 3, false); !whole || len(list) > 0 {
		t.Errorf("%d told, whole %t", len(list), whole)
	}
}

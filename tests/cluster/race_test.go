package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

func event(id string, fact events.Fact) events.Event {
	return events.Event{ID: id, Source: "/test", Fact: fact}
}

func intent(operation string) events.Event {
	e := event(operation+"-intent", &events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: "main", Rules: projections.Rules,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour},
		Policy:    events.Policy{PollInterval: time.Minute, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: 10 * time.Second, MaxAttempts: 5},
		Promises:  events.Promises{Guarantee: events.Deduplicated},
	})
	e.Operation = operation
	return e
}

func permit(id string) events.Event {
	return event(id, &events.CreateAttempted{Attempt: events.Attempt{
		Number: 1, Timeout: 10 * time.Second, NotAfter: time.Now().Add(10 * time.Second), Owner: id,
	}})
}

func evidence(id string) events.Event { return event(id, &events.CancelRequested{Who: "alice"}) }

func create(t *testing.T, j *journal.Journal, operation string) projections.State {
	t.Helper()
	s, outcome, err := j.Create(t.Context(), intent(operation))
	if err != nil || outcome != journal.Stored {
		t.Fatalf("create %s: %v, %v", operation, outcome, err)
	}
	return s
}

// ledgerIDs lists the fact ids of an operation in order and fails on a broken
// chain.
func ledgerIDs(t *testing.T, j *journal.Journal, operation string) (list []string) {
	t.Helper()
	var lines []journal.Line
	eventually(t, "the timeline is read", func() (read bool) {
		var err error
		lines, err = j.Timeline(t.Context(), operation)
		return err == nil
	})
	head := events.ChainStart(operation)
	for _, l := range lines {
		if l.Entry.Unreadable != nil || l.Entry.Event.Previous != head {
			t.Fatalf("fact %d of %s: chain broken or unreadable: %v", l.Entry.Sequence, operation, l.Entry.Unreadable)
		}
		head = l.Entry.Digest
		list = append(list, l.Entry.Event.ID)
	}
	return list
}

// counted counts how the leader answered, and can shorten how long an answer is
// waited for.
type counted struct {
	journal.Store
	limit time.Duration // 0 is the store's own

	inFlight, wrong, unanswered atomic.Int64
}

func (c *counted) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.limit == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.limit)
}

func (c *counted) Last(ctx context.Context, s journal.Stream, subject string) (journal.Message, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.Store.Last(ctx, s, subject)
}

func (c *counted) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.Store.Next(ctx, s, subject, from)
}

func (c *counted) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	sequence, err := c.Store.Publish(ctx, s, m)
	c.count(err)
	return sequence, err
}

func (c *counted) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	sequences, err := c.Store.PublishBatch(ctx, s, list)
	c.count(err)
	return sequences, err
}

func (c *counted) PublishRun(ctx context.Context, s journal.Stream, guard journal.Guard, list []journal.Outgoing) (uint64, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	sequence, err := c.Store.PublishRun(ctx, s, guard, list)
	c.count(err)
	return sequence, err
}

func (c *counted) count(err error) {
	switch {
	case errors.Is(err, journal.ErrInFlight):
		c.inFlight.Add(1)
	case errors.Is(err, journal.ErrWrongSequence):
		c.wrong.Add(1)
	case errors.Is(err, journal.ErrUnanswered):
		c.unanswered.Add(1)
	}
}

// Authors on three servers decide on one state at the same time. Whoever the
// leader answers with "another write in flight" has learned nothing, and ends in
// stored or superseded all the same.
func race(t *testing.T, c *cluster, account string) {
	const operations, authors = 6, 9
	var stores [nodes]*counted
	for i := range nodes {
		stores[i] = &counted{Store: c.connect(t, account, i)}
	}
	reader := newJournal(stores[0])
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for n := range operations {
		operation := fmt.Sprintf("op_race%d", n)
		s := create(t, reader, operation)
		var group sync.WaitGroup
		var permits, wishes [authors]journal.Outcome
		var failed [authors]error
		begin := make(chan struct{})
		for i := range authors {
			j := newJournal(stores[i%nodes])
			group.Go(func() {
				<-begin
				newest, outcome, err := j.Append(ctx, s, permit(fmt.Sprintf("%s-permit-%d", operation, i)))
				if permits[i], failed[i] = outcome, err; err != nil {
					return
				}
				_, wishes[i], failed[i] = j.Append(ctx, newest, evidence(fmt.Sprintf("%s-wish-%d", operation, i)))
			})
		}
		close(begin)
		group.Wait()
		if err := errors.Join(failed[:]...); err != nil {
			t.Fatal(err)
		}
		ids := ledgerIDs(t, reader, operation)
		winners := 0
		for i := range authors {
			stands := slices.Contains(ids, fmt.Sprintf("%s-permit-%d", operation, i))
			if stored := permits[i] == journal.Stored; stored != stands {
				t.Errorf("%s: permit %d ended in %s, in the ledger: %v", operation, i, permits[i], stands)
			} else if stored {
				winners++
			}
			if wishes[i] != journal.Stored {
				t.Errorf("%s: evidence %d ended in %s", operation, i, wishes[i])
			}
		}
		if winners != 1 {
			t.Errorf("%s: %d permits stored on one state", operation, winners)
		}
		// The intent, one permit, each piece of evidence; none of them twice.
		slices.Sort(ids)
		if want := 2 + authors; len(ids) != want || len(slices.Compact(ids)) != want {
			t.Errorf("%s holds %d facts, want %d different ones: %v", operation, len(ids), want, ids)
		}
	}
	var inFlight, wrong int64
	for _, s := range stores {
		inFlight += s.inFlight.Load()
		wrong += s.wrong.Load()
	}
	t.Logf("%d answers said in flight, %d wrong sequence", inFlight, wrong)
	if inFlight == 0 {
		t.Error("no answer said that another write was in flight: this test showed nothing")
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/projections"
)

// BenchmarkRebuild derives a history from b.N facts, three an operation, on an
// embedded store: what a new generation costs, with wake-ups and names.
func BenchmarkRebuild(b *testing.B) {
	server, err := broker.Start(broker.Config{Dir: b.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	store, err := journal.Connect(b.Context(), journal.Config{Dial: server.InProcess, Name: "bench", Replicas: 1, Group: journal.GroupPolicy{Off: true}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(store.Close)
	if err := store.Provision(b.Context()); err != nil {
		b.Fatal(err)
	}
	const batch = 200
	for from := 0; from < b.N; from += 3 * batch {
		tails := make([]*journal.Tail, batch)
		for i := range tails {
			tails[i] = &journal.Tail{Operation: fmt.Sprintf("op_%d", from+i)}
		}
		now := time.Now()
		for step := range 3 {
			facts := make([]events.Event, batch)
			for i := range facts {
				facts[i] = events.Event{ID: fmt.Sprintf("%d-%d-%d", from, i, step), Source: "/bench", Time: now, Fact: fact(step, tails[i], now)}
			}
			if err := journal.Fill(b.Context(), store, tails, facts); err != nil {
				b.Fatal(err)
			}
		}
	}
	clock := wire.NewSystemClock()
	var ids atomic.Uint64
	newID := func() string { return fmt.Sprintf("id%d", ids.Add(1)) }
	j := journal.New(journal.Options{Store: store, Now: time.Now, Sleep: clock.Sleep, NewID: newID, Board: journal.NewBoard(true)})
	p := projector.New(projector.Config{
		Journal: j, Clock: clock, NewID: newID, Log: slog.New(slog.DiscardHandler), Source: "/bench", Build: "bench", Alone: true,
	})
	partitions := make([]int, journal.Partitions)
	for i := range partitions {
		partitions[i] = i
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	b.ResetTimer()
	if err := p.Run(ctx, partitions, stop); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "facts/s")
}

func fact(step int, t *journal.Tail, now time.Time) events.Fact {
	switch step {
	case 0:
		return &events.IntentRecorded{
			Principal: "p", Provider: "example", Account: "default", Token: "token-" + t.Operation, Rules: projections.Rules,
			Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Cancel: time.Hour, Collect: time.Hour},
			Policy:    events.Policy{PollInterval: time.Hour, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: 30 * time.Second, MaxAttempts: 3},
		}
	case 1:
		return &events.CreateAttempted{Attempt: events.Attempt{Number: 1, Origin: "https://example", Account: "default", NotAfter: now.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "p/r"}}
	}
	return &events.CreateAnswered{
		Attempt: 1, Outcome: events.CreateAccepted, JobID: "job-" + t.Operation, Remote: "queued", Claim: events.ClaimOwn,
		Call: events.Call{AsOf: t.Sequence, LeftAt: now, Status: 202},
	}
}

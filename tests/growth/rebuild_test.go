package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/projections"
)

// BenchmarkDerive derives everything from b.N facts alone, those of standard jobs,
// on an embedded store: a first start on a ledger.
func BenchmarkDerive(b *testing.B) {
	l := fill(b, b.N)
	l.measure(b, journal.FirstGeneration)
}

// BenchmarkRebuild derives the next generation of a history from b.N facts, where
// wake-ups and names are there.
func BenchmarkRebuild(b *testing.B) {
	l := fill(b, b.N)
	l.derive(b, journal.FirstGeneration)
	l.measure(b, journal.FirstGeneration+1)
}

type ledger struct {
	store *journal.NATS
	facts int
}

// fill makes a ledger of at least n facts: of jobs that were done 200 at once.
func fill(b *testing.B, n int) ledger {
	b.Helper()
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
	l := ledger{store: store}
	for ; l.facts < n; l.facts += steps * batch {
		tails := make([]*journal.Tail, batch)
		for i := range tails {
			tails[i] = &journal.Tail{Operation: fmt.Sprintf("op_%d", l.facts+i)}
		}
		now := time.Now()
		for step := range steps {
			facts := make([]events.Event, batch)
			for i := range facts {
				facts[i] = events.Event{ID: fmt.Sprintf("%d-%d-%d", l.facts, i, step), Source: "/bench", Time: now, Fact: fact(step, tails[i], now)}
			}
			if err := journal.Fill(b.Context(), store, tails, facts); err != nil {
				b.Fatal(err)
			}
		}
	}
	return l
}

// measure reports facts a second, and what a fact costs of the processors, which
// does not hang on what else runs on the machine.
func (l ledger) measure(b *testing.B, g journal.Generation) {
	b.Helper()
	began := spent(b)
	b.ResetTimer()
	l.derive(b, g)
	b.StopTimer()
	b.ReportMetric(float64(l.facts)/b.Elapsed().Seconds(), "facts/s")
	b.ReportMetric(float64((spent(b)-began).Microseconds())/float64(l.facts), "cpu-µs/fact")
}

// spent is the processor time of this process so far.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// derive runs a projector until it is ready.
func (l ledger) derive(b *testing.B, g journal.Generation) {
	b.Helper()
	clock := wire.NewSystemClock()
	var ids atomic.Uint64
	newID := func() string { return fmt.Sprintf("id%d-%d", g, ids.Add(1)) }
	j := journal.New(journal.Options{
		Store: l.store, Now: time.Now, Sleep: clock.Sleep, NewID: newID, Board: journal.NewBoard(true), Generation: g,
	})
	p := projector.New(projector.Config{
		Journal: j, Clock: clock, NewID: newID, Log: slog.New(slog.DiscardHandler), Source: "/bench", Build: "bench", Alone: true,
	})
	partitions := make([]int, journal.Partitions)
	for i := range partitions {
		partitions[i] = i
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	if err := p.Run(ctx, partitions, stop); err != nil {
		b.Fatal(err)
	}
}

// steps is how many facts a standard job has.
const steps = 7

func fact(step int, t *journal.Tail, now time.Time) events.Fact {
	call := events.Call{AsOf: t.Sequence, LeftAt: now, Status: 200, RequestID: "req-" + t.Operation}
	job := "job-" + t.Operation
	switch step {
	case 0:
		return &events.IntentRecorded{
			Principal: "p", Provider: "example", Account: "default", Token: "token-" + t.Operation, Rules: projections.Rules,
			Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Cancel: time.Hour, Collect: time.Hour},
			Policy:    events.Policy{PollInterval: time.Second, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: 30 * time.Second, MaxAttempts: 3},
			Promises:  events.Promises{Guarantee: events.Deduplicated, Cancels: true, HasResult: true},
		}
	case 1:
		return &events.CreateAttempted{Attempt: events.Attempt{Number: 1, Origin: "https://example", Account: "default", NotAfter: now.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "p/r"}}
	case 2:
		call.Status = 202
		return &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: job, Remote: "queued", Claim: events.ClaimOwn, Call: call}
	case 3, 4:
		return &events.JobObserved{JobID: job, Remote: "running", State: events.ClassRunning, Claim: events.ClaimOwn, Prompt: "due", Call: call}
	case 5:
		return &events.JobObserved{JobID: job, Remote: "succeeded", State: events.ClassSucceeded, Claim: events.ClaimOwn, Prompt: "due", Call: call}
	}
	return &events.ResultCollected{Payload: events.Sum([]byte(job)), Size: 1024, MediaType: "application/json", Call: call}
}

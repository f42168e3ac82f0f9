package journal_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// BenchmarkCurrent reads the state of one operation of many from a server in
// this process: one that is projected, and one whose newest fact is not.
func BenchmarkCurrent(b *testing.B) {
	server, err := broker.Start(broker.Config{Dir: b.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval})
	if err != nil {
		b.Fatal(err)
	}
	n, err := journal.Connect(b.Context(), journal.Config{Dial: server.InProcess, Replicas: 1, Group: journal.GroupPolicy{Off: true}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		n.Close()
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	if err := n.Provision(b.Context()); err != nil {
		b.Fatal(err)
	}
	var ids atomic.Int64
	j := journal.New(journal.Options{
		Store: n, Now: time.Now, NewID: func() string { return fmt.Sprintf("id-%d", ids.Add(1)) },
		Sleep: func(context.Context, time.Duration) error { return context.Canceled },
	})

	const operations = 200
	name := func(i int) string { return fmt.Sprintf("op_%d", i%operations) }
	tenures := map[int]*journal.Tenure{}
	for i := range operations {
		intent := &events.IntentRecorded{Principal: "team-a", Provider: "example", Account: "main", Rules: projections.Rules, Payload: events.Sum([]byte(name(i)))}
		s, _, err := j.Create(b.Context(), events.Event{Source: "/bench", Operation: name(i), Fact: intent})
		if err != nil {
			b.Fatal(err)
		}
		partition := journal.Partition(name(i))
		if tenures[partition] == nil {
			if tenures[partition], err = j.TakeOver(b.Context(), partition); err != nil {
				b.Fatal(err)
			}
		}
		r := projections.Record{Sequence: s.Sequence, Type: events.TypeIntentRecorded, Rules: projections.Rules, State: s}
		if err := tenures[partition].CommitRun(b.Context(), []projections.Record{r}); err != nil {
			b.Fatal(err)
		}
	}
	read := func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := j.Current(b.Context(), name(i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("projected", read)
	for i := range operations {
		s, err := j.Current(b.Context(), name(i))
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := j.Append(b.Context(), s, events.Event{Source: "/bench", Fact: &events.CancelRequested{Who: "team-a"}}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("one-behind", read)
}

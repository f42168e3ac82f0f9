package journal_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// counting counts what reaches the server.
type counting struct {
	journal.Store
	alone, batches atomic.Int64
}

func (c *counting) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	c.alone.Add(1)
	return c.Store.Publish(ctx, s, m)
}

func (c *counting) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	c.batches.Add(1)
	return c.Store.PublishBatch(ctx, s, list)
}

// BenchmarkAppend is first facts of operations, 300 bytes each, by clients who
// each wait for one to be stored before the next. TMPDIR says on which disk.
func BenchmarkAppend(b *testing.B) {
	for _, mode := range []broker.Sync{broker.SyncAlways, broker.SyncInterval} {
		for _, grouping := range []string{"singly", "grouped", "grouped-in-memory"} {
			for _, clients := range []int{1, 16, 64, 256} {
				b.Run(fmt.Sprintf("sync=%s/%s/clients=%d", mode, grouping, clients), func(b *testing.B) {
					benchmarkAppend(b, mode, journal.GroupPolicy{Off: grouping == "singly"}, grouping == "grouped-in-memory", clients)
				})
			}
		}
	}
}

func benchmarkAppend(b *testing.B, mode broker.Sync, policy journal.GroupPolicy, inMemory bool, clients int) {
	server, err := broker.Start(broker.Config{Dir: b.TempDir(), Run: "run", Now: time.Now, Sync: mode})
	if err != nil {
		b.Fatal(err)
	}
	n, err := journal.Connect(b.Context(), journal.Config{Dial: server.InProcess, Replicas: 1, Group: journal.GroupPolicy{Off: true}})
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Provision(b.Context()); err != nil {
		b.Fatal(err)
	}
	if inMemory {
		if ok, err := server.StageInMemory(string(journal.Ledger), string(journal.Payloads)); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	count := &counting{Store: n}
	g := journal.Group(count, policy)
	data := make([]byte, 300)
	var next atomic.Int64
	took := make([][]time.Duration, clients)
	b.ResetTimer()
	var wait sync.WaitGroup
	for c := range clients {
		wait.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				began := time.Now()
				_, err := g.Publish(context.Background(), journal.Ledger, journal.Outgoing{
					Subject: fmt.Sprintf("facts.0.%02d.op_%d", i%32, i), Data: data, Guard: &journal.Guard{},
				})
				if err != nil {
					b.Error(err)
					return
				}
				took[c] = append(took[c], time.Since(began))
			}
		})
	}
	wait.Wait()
	b.StopTimer()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(count.alone.Load())/float64(b.N), "singles/append")
	b.ReportMetric(float64(count.batches.Load())/float64(b.N), "batches/append")
	b.ReportMetric(0, "ns/op")
	g.Close()
	n.Close()
	if err := server.Stop(); err != nil {
		b.Error(err)
	}
}

package simulation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// batch is how many seeds share a server: its start costs as much as several
// of them. Each seed has a provider and operations of its own.
const batch = 32

// onServer plays seeds one after the other on one embedded server in a bubble.
func onServer(t *testing.T, seeds []uint64, tracing bool, each func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.Start(broker.Config{Dir: t.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval, SyncEvery: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer brokertest.End(t, b)
		n, err := journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Name: "simulation", Replicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if err := n.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, seed := range seeds {
			w := run(meaning(seed), n, bubbleClock{}, tracing)
			each(w)
			if len(w.broken) > 0 {
				return // what it left behind is no ground for others
			}
		}
	})
}

func TestServer(t *testing.T) {
	if *oneSeed != 0 {
		onServer(t, []uint64{*oneSeed}, true, func(w *world) {
			t.Log(w.report())
			if len(w.broken) > 0 {
				t.Fail()
			}
		})
		return
	}
	runs := *serverRuns
	if runs == 0 {
		runs = batch
		if testing.Short() {
			runs = 8
		}
	}
	last := *firstSeed + uint64(runs)
	steps, done, failures := 0, 0, uint64(0)
	for next := *firstSeed; next < last && failures < *enough; {
		var seeds []uint64
		for ; next < last && len(seeds) < batch; next++ {
			seeds = append(seeds, next)
		}
		var failed *world
		onServer(t, seeds, false, func(w *world) {
			steps += w.steps
			done++
			if len(w.broken) > 0 {
				failed = w
				next = w.cfg.Seed + 1
			}
		})
		if done%(16*batch) == 0 {
			t.Logf("%d runs", done)
		}
		if failed == nil {
			continue
		}
		failures++
		t.Errorf("seed %d on the server: %s", failed.cfg.Seed, strings.Join(failed.broken, "; "))
		if failures == 1 && *serverRuns == 0 {
			onServer(t, []uint64{failed.cfg.Seed}, true, func(w *world) {
				t.Errorf("%s\nplay it again: go test ./tests/simulation -run TestServer -v -args -seed=%d", w.report(), w.cfg.Seed)
			})
		}
	}
	t.Logf("%d runs, %d steps", done, steps)
}

// Package simulation shows that no schedule loses or doubles a job.
//
// A seed is one run of the production code: journal, projector, poller and
// fold, unmodified, on the memory double or on the embedded server, with a
// model of the provider behind it. Several pollers and projectors, a caller
// and a webhook role are actors of which exactly one does something at a time.
// At every touch of the world the seed says who goes on, who is stopped and
// for how long, which process dies, which acknowledgement is lost and which
// write lands late. Then the faults end, and when everything has come to rest
// the ledger, the history, the wire and the provider are compared.
//
// The same seed gives the same run. A failure prints the seed, what it means
// and the whole trace; `go test ./tests/simulation -args -seed=N` plays it
// again.
//
// Limits: the outbound client, webhook signatures and the keys of addresses are
// not part of it (the webhook role here is a model that appends what it is given);
// the provider keeps the promises of its contract. On the memory double the
// limit of a stopping worker (Config.Record) does not run, since that clock is
// the machine's.
package simulation

import (
	"bufio"
	"crypto/sha256"
	"flag"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

var (
	memoryRuns = flag.Int("memory-runs", 0, "seeds to run on the memory double; 0: a number for CI")
	serverRuns = flag.Int("server-runs", 0, "seeds to run on the embedded server; 0: a number for CI")
	oneSeed    = flag.Uint64("seed", 0, "run only this seed, with its trace")
	firstSeed  = flag.Uint64("first", 1, "the first of the seeds")
	enough     = flag.Uint64("enough", 5, "failures after which no more seeds are run")
)

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(1000) // runs are short and leave much
	goleak.VerifyTestMain(m)
}

func newSource(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x73696d)) }

// meaning says which seeds run many operations, and which run without faults.
func meaning(seed uint64) config { return configure(seed, seed%20 == 0, seed%50 == 1) }

func start() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }

func onMemory(cfg config, tracing bool) *world {
	c := &virtualClock{now: start()}
	late := rand.New(rand.NewPCG(cfg.Seed, 0x6c617465))
	store := memory.New(memory.Config{
		Now:  c.Now,
		Late: func(string) time.Duration { return time.Duration(late.Int64N(int64(journal.ScheduleFloor))) },
	})
	return run(cfg, store, c, tracing)
}

func TestMemory(t *testing.T) {
	if *oneSeed != 0 {
		w := onMemory(meaning(*oneSeed), true)
		t.Log(w.report())
		if len(w.broken) > 0 {
			t.Fail()
		}
		return
	}
	runs := *memoryRuns
	if runs == 0 {
		runs = 600
		if testing.Short() {
			runs = 100
		}
	}
	var next, failures atomic.Uint64
	next.Store(*firstSeed)
	last := *firstSeed + uint64(runs)
	began := time.Now()
	var steps atomic.Uint64
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{} // guarded by mu
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed >= last || failures.Load() >= *enough {
					return
				}
				cfg := meaning(seed)
				w := onMemory(cfg, false)
				steps.Add(uint64(w.steps))
				mu.Lock()
				for what, n := range w.seen {
					seen[what] += n
				}
				mu.Unlock()
				if seed%5000 == 0 {
					t.Logf("seed %d after %s", seed, time.Since(began).Round(time.Second))
				}
				if len(w.broken) > 0 {
					failures.Add(1)
					if *memoryRuns > 0 || failures.Load() > 1 {
						t.Errorf("seed %d: %s", seed, strings.Join(w.broken, "; "))
						continue
					}
					again := onMemory(cfg, true)
					t.Errorf("%s\nplay it again: go test ./tests/simulation -run TestMemory -v -args -seed=%d", again.report(), seed)
				}
			}
		})
	}
	group.Wait()
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%7d %s", seen[what], what)
	}
	if runs >= 500 && failures.Load() == 0 {
		// A simulation in which something never happens proves nothing about it.
		for _, row := range strings.Fields("1 3 3a 3b 4 8 9 10 11 12 13 14 15 16 17 19 20 21 22 24 25 26 27 28 28a 29 31 32 35 36 37 39 40 41 41a 41b 42 42a 42b") {
			if seen["row "+row] == 0 {
				t.Errorf("no run came to row %s of the transition table", row)
			}
		}
		for _, what := range []string{"hold creates", "hold all", "create again", "prepare again"} {
			if seen[what] == 0 {
				t.Errorf("no run had a %s", what)
			}
		}
	}
	t.Logf("%d runs, %d steps, %s", min(next.Load(), last)-*firstSeed, steps.Load(), time.Since(began).Round(time.Millisecond))
}

// The same seed gives the same trace to the byte.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		cfg := meaning(seed * 7)
		a, b := onMemory(cfg, true), onMemory(cfg, true)
		if sha256.Sum256([]byte(a.trace.String())) != sha256.Sum256([]byte(b.trace.String())) {
			t.Errorf("seed %d: two runs differ", cfg.Seed)
		}
		if a.trace.Len() < 500 {
			t.Errorf("seed %d: nothing happened", cfg.Seed)
		}
	}
}

// Seeds that once showed a defect are played first, every time.
func TestKeptSeeds(t *testing.T) {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), " ")
		if text == "" || text == "#" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("seeds.txt: %v", err)
		}
		for _, local := range []bool{false, true} {
			cfg := meaning(seed)
			cfg.Local = local
			if w := onMemory(cfg, false); len(w.broken) > 0 {
				t.Errorf("seed %d, local %t: %s", seed, local, strings.Join(w.broken, "; "))
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

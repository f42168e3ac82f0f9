package fleet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/fleet"
)

const (
	atOnce    = 3
	perSecond = 12
	// lasts is how long the provider works on each request at least.
	lasts = 150 * time.Millisecond
)

// crowd is how many requests the provider worked on at the same time at most. It
// counts none for longer than the provider is known to have worked on it, so that
// a late note of an answer makes no crowd.
func crowd(list []simulator.Request) (most int) {
	type edge struct {
		at   time.Time
		step int
	}
	var edges []edge
	for _, r := range list {
		end := r.At.Add(lasts)
		if !r.Done.IsZero() && r.Done.Before(end) { // its caller went away
			end = r.Done
		}
		edges = append(edges, edge{r.At, 1}, edge{end, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.step - b.step
	})
	now := 0
	for _, e := range edges {
		now += e.step
		most = max(most, now)
	}
	return most
}

// busiest is how many requests arrived within any second at most.
func busiest(list []simulator.Request) (most int) {
	first := 0
	for i, r := range list {
		for r.At.Sub(list[first].At) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// Two pollers share an account that allows three calls at once and twelve requests
// a second. Webhooks come in a storm, each poller is replaced, then one is killed.
// The provider never sees more, and what the killed one held comes back.
func TestLimitsAtTheProvider(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{
		Waits: append(hurried(), "webhook:\n", fmt.Sprintf("limits:\n  concurrency: %d\n  per_second: %d\nwebhook:\n", atOnce, perSecond)),
		Plan:  simulator.Steps(1500*time.Millisecond, "queued", "running", "running", "succeeded"),
		Rules: []simulator.Rule{simulator.On(simulator.Any, simulator.Always(), simulator.DelayAfter(lasts))},
	})
	f.Start("webhooks")
	f.Start("ingest")
	f.Start("projector")
	pollers := []*fleet.Process{f.Start("poller"), f.Start("poller")}

	var ids []string
	submit := func(n int) {
		for range n {
			ids = append(ids, f.Submit(fmt.Sprintf("k%d", len(ids))).ID)
		}
	}
	var storm sync.WaitGroup
	calm := make(chan struct{})
	storm.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-calm:
				return
			case <-tick.C:
			}
			if jobs := f.Example.Jobs(); len(jobs) > 0 {
				f.Example.Notify(jobs[n%len(jobs)].ID)
			}
		}
	})
	defer storm.Wait()
	defer sync.OnceFunc(func() { close(calm) })()

	submit(12)
	for i, old := range pollers {
		before := f.Sim.Count(simulator.Filter{})
		f.Until(fleet.Patience, "the provider is asked", func() bool { return f.Sim.Count(simulator.Filter{}) >= before+20 })
		if code, _ := old.Stop(); code != 0 {
			t.Errorf("poller stopped with %d\n%s", code, old.Log())
		}
		pollers[i] = f.Start("poller")
		submit(4)
	}
	const account = `{account="default",provider="example"}`
	held := func(p *fleet.Process) float64 { return p.Series("counterfoil_account_slots_held" + account) }
	f.Until(fleet.Patience, "each poller has slots", func() bool { return held(pollers[0]) > 0 && held(pollers[1]) > 0 })
	submit(4)
	pollers[0].Kill()
	killed := time.Now()
	// Its message counts for the longest call, 3 s, and 15 s. There is always more to
	// do than the other's own slots allow.
	f.Until(18*time.Second+10*time.Second, "the other poller has all slots", func() bool {
		if pollers[1].Series("counterfoil_account_calls_waiting"+account) < 2*atOnce {
			submit(3)
		}
		return held(pollers[1]) == atOnce
	})
	t.Logf("the other poller had all slots %s after the kill", time.Since(killed).Round(100*time.Millisecond))
	for _, id := range ids {
		f.Await(id, journal.LeaseTime+fleet.Patience, "succeeded")
	}
	list := f.Sim.Requests(simulator.Filter{})
	slices.SortFunc(list, func(a, b simulator.Request) int { return a.At.Compare(b.At) })
	most, inSecond := crowd(list), busiest(list)
	t.Logf("%d requests, %d at once and %d in the busiest second at the most; %d webhooks", len(list), most, inSecond, len(f.Sim.Deliveries()))
	if most != atOnce {
		t.Errorf("%d requests at once at the most, want %d", most, atOnce)
	}
	if inSecond > perSecond || inSecond < perSecond/2 {
		t.Errorf("%d requests in the busiest second, want at most %d and not much less", inSecond, perSecond)
	}
	f.Promises(ids...)
}

package cases_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// Each operation is limited ten times, and how its waits grow is seen on each.
// They rest for each other meanwhile, in fact after fact, and the more the more
// of them there are: ten operations show the waits, and the thirty of the case
// are in the next test.
func TestFC10ThrottledWithoutRetryAfter(t *testing.T) {
	const (
		operations = 10
		workers    = 16 // two for each provider and more: fewer would ask for work all the time
		name       = "hurried"
		base       = 500 * time.Millisecond
		most       = 5 * time.Second
	)
	contract := builtin(t, "example", name, "  backoff: 1s\n  backoff_max: 1m\n", "  backoff: 500ms\n  backoff_max: 5s\n")
	inHouse(t, harness.Options{Workers: workers, Contracts: map[string]string{name + ".yaml": contract}}, func(t *testing.T, h *harness.House) {
		// Each read takes a while, so that calls could pile up.
		h.Mount(simulator.Example, name, simulator.Options{},
			simulator.On(simulator.Status, simulator.FirstOfJob(10), simulator.Reply(429)),
			simulator.On(simulator.Status, simulator.Always(), simulator.DelayBefore(200*time.Millisecond)))
		var ids []string
		for i := range operations {
			key := fmt.Sprintf("op-%02d", i)
			ids = append(ids, h.Submit(key, name, params(key)).ID)
		}
		for _, id := range ids {
			if op := waitLong(t, h, id, time.Hour); op.State != "succeeded" {
				t.Fatalf("%s is %s, %s", id, op.State, op.Reason)
			}
			limited := facts(h, id, "observation.failed")
			if len(limited) != 10 {
				t.Fatalf("%d limited reads in the history of %s, want 10", len(limited), id)
			}
			for _, e := range limited {
				if e.Fields["class"] != "throttled" || e.Fields["status"] != "429" {
					t.Errorf("the limit is not visible: %v", e.Fields)
				}
			}
			never(t, h, id, "failed", "quarantined")
		}
		for _, job := range jobs(t, h, operations) {
			waits := gaps(h.Sim.Requests(simulator.Filter{Call: simulator.Status, Job: job.ID}))
			if len(waits) != 10 {
				t.Errorf("%d reads of job %s, want 11", len(waits)+1, job.ID)
			}
			// From base to most, each less a tenth at most.
			least := base
			for i, gap := range waits {
				if gap < least-least/10 {
					t.Errorf("wait %d of job %s is %s, want %s", i+1, job.ID, gap, least)
				}
				least = min(2*least, most)
			}
		}
		if n := mostAtOnce(h.Sim.Requests(simulator.Filter{Mount: "/" + name})); n > workers || n < workers/4 {
			t.Errorf("%d calls to the provider at once, want at most %d and some", n, workers)
		}
		keptPromises(t, h, ids...)
	})
}

// The case as it is written: thirty at once, each refused ten times, under the
// contract's own waits. How the waits of each grow is in the test above; here each
// wait is at least what the operation's own count asks for, whatever the others
// have met.
func TestFC10ThirtyAtOnce(t *testing.T) {
	const operations, refusals = 30, 10
	inHouse(t, harness.Options{Workers: 16}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{},
			simulator.On(simulator.Status, simulator.FirstOfJob(refusals), simulator.Reply(429)))
		var ids []string
		for i := range operations {
			key := fmt.Sprintf("op-%02d", i)
			ids = append(ids, h.Submit(key, "example", params(key)).ID)
		}
		for _, id := range ids {
			if op := waitLong(t, h, id, 12*time.Hour); op.State != "succeeded" {
				t.Fatalf("%s is %s, %s", id, op.State, op.Reason)
			}
			if n := len(facts(h, id, "observation.failed")); n != refusals {
				t.Errorf("%d limited reads in the history of %s, want %d", n, id, refusals)
			}
		}
		for _, job := range jobs(t, h, operations) {
			waits := gaps(h.Sim.Requests(simulator.Filter{Call: simulator.Status, Job: job.ID}))
			if len(waits) != refusals {
				t.Fatalf("%d reads of job %s, want %d", len(waits)+1, job.ID, refusals+1)
			}
			least := time.Second // the contract's, doubling up to a minute
			for i, gap := range waits {
				if gap < least-least/10 {
					t.Errorf("wait %d of job %s is %s, want %s", i+1, job.ID, gap, least)
				}
				least = min(2*least, time.Minute)
			}
			if first, last := waits[0], waits[refusals-1]; last < 10*first && last < 50*time.Second {
				t.Errorf("job %s: the waits do not grow: %s", job.ID, waits)
			}
		}
		keptPromises(t, h, ids...)
	})
}

// Once one operation is limited the others of the account slow down too: of the
// operations that are due while the provider refuses, few ask, and the others
// rest with that in their history.
func TestFC10ThrottlingIsShared(t *testing.T) {
	const operations, refusals = 30, 10
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{},
			simulator.On(simulator.Status, simulator.First(refusals), simulator.Reply(429)),
			simulator.On(simulator.Status, simulator.Always(), simulator.DelayBefore(20*time.Millisecond)))
		var ids []string
		for i := range operations {
			key := fmt.Sprintf("op-%02d", i)
			ids = append(ids, h.Submit(key, "example", params(key)).ID)
			time.Sleep(40 * time.Millisecond) // their reads are due one after the other
		}
		rested, limited := 0, 0
		for _, id := range ids {
			if op := waitLong(t, h, id, time.Hour); op.State != "succeeded" {
				t.Fatalf("%s is %s, %s", id, op.State, op.Reason)
			}
			limited += len(facts(h, id, "observation.failed"))
			for _, e := range facts(h, id, "step.deferred") {
				if e.Fields["reason"] != "throttled" {
					t.Errorf("%s rests for %v", id, e.Fields)
				}
				rested++
			}
		}
		if limited != refusals {
			t.Errorf("%d refused reads in the histories, want %d", limited, refusals)
		}
		if rested < operations/2 {
			t.Errorf("%d rests of %d operations are recorded", rested, operations)
		}
		// Thirty reads are due within 1.2 s, so alone the operations would be refused
		// ten times within half of that. Each refusal but those that were on their
		// way puts the whole account off.
		reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
		if took := reads[refusals-1].At.Sub(reads[0].At); took < time.Second {
			t.Errorf("%d refusals within %s", refusals, took)
		}
		jobs(t, h, operations)
		keptPromises(t, h, ids...)
	})
}

// mostAtOnce is the largest number of requests that were under way together.
func mostAtOnce(list []simulator.Request) int {
	type edge struct {
		at   time.Time
		step int
	}
	var edges []edge
	for _, r := range list {
		edges = append(edges, edge{r.At, 1}, edge{r.Done, -1})
	}
	slices.SortStableFunc(edges, func(a, b edge) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.step - b.step // one that ends makes room for one that begins
	})
	now, most := 0, 0
	for _, e := range edges {
		now += e.step
		most = max(most, now)
	}
	return most
}

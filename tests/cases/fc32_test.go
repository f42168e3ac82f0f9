package cases_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-32: creates that take longer than a lease.
func TestFC32CreateOutlastsLease(t *testing.T) {
	const operations, takes = 50, 40 * time.Second
	if takes <= journal.LeaseTime {
		t.Fatal("the create is shorter than a lease")
	}
	took := map[int]time.Duration{}
	for _, c := range []struct {
		name    string
		pollers int
		beats   bool
	}{
		{"one instance", 1, true},
		{"two instances", 2, true},
		{"two instances, no lease is ever extended", 2, false},
	} {
		variant(t, c.name, func(t *testing.T) {
			var again atomic.Int64 // wake-ups that were delivered before
			h := harness.New(t, harness.Options{
				Pollers: c.pollers,
				Edit:    edited(t, "example", "request_timeout: 30s", "request_timeout: 2m", "poll_interval: {default: 2s,", "poll_interval: {default: 10s,"),
				ThroughPoller: func(_ string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller) {
					if c.beats {
						return store, call
					}
					counted := delivering{store, func(list []journal.Delivery) {
						for _, d := range list {
							if d.Delivered() > 1 {
								again.Add(1)
							}
						}
					}}
					return hookedStore{&hooks{extend: func() error { return errors.New("not extended") }}, counted}, call
				},
			})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "succeeded")},
				simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(takes)))
			var ids []string
			for i := range operations {
				ids = append(ids, h.Submit(fmt.Sprintf("k%d", i), "example", fmt.Sprintf(`{"n":%d}`, i)).ID)
			}
			started := time.Now()
			for _, id := range ids {
				want(t, "state", await(h, id, time.Hour, 2*time.Second).State, "succeeded")
			}
			if c.beats {
				took[c.pollers] = time.Since(started)
			}
			if !c.beats && again.Load() == 0 {
				t.Error("nothing was delivered again")
			}
			creates := map[string]int{}
			for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Create}) {
				creates[r.Token]++
			}
			want(t, "operations with creates", len(creates), operations)
			for token, n := range creates {
				want(t, "creates of "+token, n, 1)
			}
			want(t, "jobs", len(h.Sim.Jobs()), operations)
			invariants(t, h, ids...)
		})
	}
	if two, one := took[2], took[1]; two > one*7/10 {
		t.Errorf("two instances took %s, one took %s", two, one)
	}
}

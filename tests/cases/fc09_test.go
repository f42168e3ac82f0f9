package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/projections"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// The smallest base the contract language allows, and a cap that the doubled
// base oversteps by nearly as much as it can: from 1280 ms to 2560.
const (
	smallestBackoff = 10 * time.Millisecond
	cappedBackoff   = 1300 * time.Millisecond
)

func TestFC09BackoffGrowsToItsCap(t *testing.T) {
	const name = "impatient"
	contract := builtin(t, "example", name, "  backoff: 1s\n  backoff_max: 1m\n", "  backoff: 10ms\n  backoff_max: 1300ms\n")
	inHouse(t, harness.Options{Contracts: map[string]string{name + ".yaml": contract}}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, name, simulator.Options{}, simulator.On(simulator.Status, simulator.FirstOfJob(120), simulator.Reply(503)))
		op := h.Submit("patience", name, params("patience"))
		done := waitLong(t, h, op.ID, 10*time.Minute)
		if done.State != "succeeded" {
			t.Fatalf("state %s, reason %s", done.State, done.Reason)
		}
		reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
		if len(reads) != 121 {
			t.Errorf("%d status reads, want 121", len(reads))
		}
		bound := smallestBackoff
		for i, gap := range gaps(reads) {
			// Short by a tenth at most, late by what a timer may be late.
			if low, high := bound-bound/10, bound+500*time.Millisecond; gap < low || gap > high {
				t.Errorf("wait %d is %s, want %s to %s", i+1, gap, low, high)
			}
			bound = min(2*bound, cappedBackoff)
		}
		if bound != cappedBackoff {
			t.Errorf("the bound ended at %s", bound)
		}
		jobs(t, h, 1)
		keptPromises(t, h, op.ID)
	})
}

// An operation whose stored counters stand at 10,000. Nothing but a history of
// 10,000 failures makes one, so the state of a real one is taken and its
// counters set; the schedule follows from the state alone.
func TestFC09CounterOfTenThousand(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		op := h.Submit("counter", "example", params("counter"))
		state, err := h.Journal.Current(t.Context(), op.ID)
		if err != nil {
			t.Fatal(err)
		}
		const most = time.Minute // pacing.backoff_max of the contract
		now := time.Now()
		within := func(what string, s projections.State) {
			t.Helper()
			next, ok := projections.Next(s)
			if wait := next.Sub(now); !ok || wait < most-most/10 || wait > most {
				t.Errorf("%s: the next look comes after %s, want up to a tenth less than %s", what, wait, most)
			}
		}
		for _, n := range []uint64{7, 63, 64, 65, 10_000, 1 << 63} {
			s := state
			s.Creates.Streak, s.Creates.Rested = n, now
			within("creates", s)
			s = state
			s.Phase, s.Job = projections.PhaseObserving, projections.Job{ID: "job_1", At: now}
			s.Pace.Failures, s.Pace.LastRead, s.Pace.LastFailed = n, now, true
			within("status reads", s)
			s = state
			s.Phase, s.Job, s.Dates.Collect = projections.PhaseResultCollecting, projections.Job{ID: "job_1", At: now}, now.Add(time.Hour)
			s.Pace.Collects, s.Pace.LastCollect = n, now
			within("results", s)
		}
		keptPromises(t, h, op.ID)
	})
}

// waitLong waits with few reads, where much time passes.
func waitLong(t *testing.T, h *harness.House, id string, limit time.Duration) client.Operation {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Second) {
		op, err := h.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if op.Done || time.Now().After(end) {
			return op
		}
	}
}

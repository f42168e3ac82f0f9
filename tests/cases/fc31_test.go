package cases_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-31: what a killed process held is taken up by the next.
func TestFC31KilledAtTheLimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const workers, operations = 8, 12
		h := harness.New(t, harness.Options{Workers: workers})
		m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(2*time.Second, "running", "succeeded")},
			simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(20*time.Second)))
		var ids []string
		for i := range operations {
			ids = append(ids, h.Submit(fmt.Sprintf("k%d", i), "example", fmt.Sprintf(`{"n":%d}`, i)).ID)
		}
		time.Sleep(5 * time.Second)
		// A worker may be waiting for the wake-ups of each of the other providers.
		full := func(when string, n int) {
			t.Helper()
			if least := workers - 3; n < least || n > workers {
				t.Errorf("%d calls at once %s, want %d to %d", n, when, least, workers)
			}
		}
		full("before the kill", atOnce(h.Sim.Requests(simulator.Filter{Call: simulator.Create}), time.Now()))
		h.Kill()
		m.Clear()
		m.Add(simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(2*time.Second)))
		h.Start()
		restarted := time.Now()
		picked := map[string]bool{}
		for len(picked) < operations && time.Since(restarted) < journal.LeaseTime+5*time.Second {
			time.Sleep(time.Second)
			for _, id := range ids {
				if line := h.Timeline(id); line[len(line)-1].Time.After(restarted) {
					picked[id] = true
				}
			}
		}
		if len(picked) < operations {
			t.Errorf("%d of %d picked up within a lease", len(picked), operations)
		}
		for _, id := range ids {
			want(t, "state", await(h, id, 5*time.Minute, time.Second).State, "succeeded")
		}
		later := slices.DeleteFunc(h.Sim.Requests(simulator.Filter{Call: simulator.Create}), func(r simulator.Request) bool { return r.At.Before(restarted) })
		full("after the restart", atOnce(later, time.Time{}))
		want(t, "jobs", len(h.Sim.Jobs()), operations)
		invariants(t, h, ids...)
	})
}

// atOnce is the largest number of requests under way at one time; those not
// answered yet are until now.
func atOnce(list []simulator.Request, now time.Time) int {
	most := 0
	for _, at := range list {
		n := 0
		for _, r := range list {
			done := r.Done
			if done.IsZero() {
				done = now
			}
			if !r.At.After(at.At) && done.After(at.At) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// FC-31: killed during the last attempt that is allowed.
func TestFC31KilledInTheLastAttempt(t *testing.T) {
	lastOfTwo := func(name, text string) string {
		return edited(t, "example", "attempts: {default: 10,", "attempts: {default: 2,")(name,
			edited(t, "example-lookup", "attempts: {default: 10,", "attempts: {default: 2,")(name, text))
	}
	// begin kills the service while the second create is under way; the first one
	// did not arrive.
	begin := func(t *testing.T, provider string, second simulator.Fault) (*harness.House, client.Operation) {
		h := harness.New(t, harness.Options{Edit: lastOfTwo})
		h.Mount(simulator.Dialect(provider), provider, simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")},
			simulator.On(simulator.Create, simulator.Nth(1), simulator.NeverReceive{}),
			simulator.On(simulator.Create, simulator.Nth(2), second))
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: provider, Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Create: "5m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * time.Minute); h.Sim.Count(simulator.Filter{Call: simulator.Create}) < 2; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no second attempt\n%s", h.Story(op.ID))
			}
		}
		time.Sleep(time.Second)
		h.Kill()
		h.Start()
		return h, op
	}

	variant(t, "arrived, with a look-up", func(t *testing.T) {
		h, op := begin(t, "example-lookup", simulator.DelayAfter(10*time.Second))
		op = await(h, op.ID, 10*time.Minute, time.Second)
		want(t, "state", op.State, "succeeded")
		if h.Sim.Count(simulator.Filter{Call: simulator.List}) == 0 {
			t.Error("nothing was looked up")
		}
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 2)
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})

	variant(t, "arrived nowhere, with a look-up", func(t *testing.T) {
		// It hangs on its way for good.
		h, op := begin(t, "example-lookup", simulator.HoldBefore{Gate: simulator.NewGate()})
		op = await(h, op.ID, 10*time.Minute, time.Second)
		want(t, "state", op.State, "failed")
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 2)
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 0)
	})

	variant(t, "with a token only", func(t *testing.T) {
		h, op := begin(t, "example", simulator.DelayAfter(10*time.Second))
		waiting, err := h.Client.Get(t.Context(), op.ID)
		if err != nil || waiting.NextLook == nil {
			t.Fatalf("nobody says when it goes on: %v %s", err, waiting.Raw)
		}
		op = await(h, op.ID, 10*time.Minute, time.Second)
		// Nobody can tell and the attempts are spent: it stops and asks.
		want(t, "state", op.State, "quarantined")
		want(t, "kind", op.Quarantine, "unknown")
		if !slices.ContainsFunc(op.Allowed, func(a client.AllowedAction) bool { return slices.Contains(a.Decisions, "retry_create") }) {
			t.Errorf("no decision is offered: %s", op.Raw)
		}
		if _, err := h.Client.Decide(t.Context(), op.ID, op.Version, "d", client.Decision{Kind: "retry_create"}); err != nil {
			t.Fatal(err)
		}
		op = await(h, op.ID, time.Minute, time.Second)
		want(t, "state after the decision", op.State, "succeeded")
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})
}

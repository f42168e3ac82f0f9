package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC11NotFoundAfterCreate(t *testing.T) {
	for _, c := range []struct {
		dialect simulator.Dialect
		created int // status of the create's answer
		params  string
	}{
		{simulator.Example, 202, params("late")},
		{simulator.Replicate, 201, `{"correlation": "late", "version": "v1", "input": {"prompt": "a counterfoil"}}`},
	} {
		t.Run("for three reads, "+string(c.dialect), func(t *testing.T) {
			inHouse(t, harness.Options{Builtin: []string{string(c.dialect)}}, func(t *testing.T, h *harness.House) {
				h.Mount(c.dialect, string(c.dialect), simulator.Options{Plan: simulator.StepsPerRead("queued", "running", "succeeded")},
					simulator.On(simulator.Status, simulator.FirstOfJob(3), simulator.Reply(404)))
				op := h.Submit("late", string(c.dialect), c.params)
				h.Wait(op.ID, 5*time.Minute, "succeeded")
				if got := h.Sim.Requests(simulator.Filter{Call: simulator.Create})[0].Status; got != c.created {
					t.Errorf("the create was answered %d, want %d", got, c.created)
				}
				if n := len(facts(h, op.ID, "observation.failed")); n != 3 {
					t.Errorf("%d failed reads, want 3", n)
				}
				inOrder(t, h, op.ID, "observation.failed", "observation.failed", "observation.failed", "job.observed", "job.observed", "result.collected")
				never(t, h, op.ID, "failed", "quarantined")
				oneCreate(t, h)
				keptPromises(t, h, op.ID)
			})
		})
	}
	for _, dialect := range []simulator.Dialect{simulator.Example, simulator.ExampleLookup, simulator.ExampleAsk} {
		t.Run("beyond the grace, "+string(dialect), func(t *testing.T) {
			inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
				const grace = 30 * time.Second // promises.not_found_grace
				m := h.Mount(dialect, string(dialect), simulator.Options{})
				gone := m.Add(simulator.On(simulator.Status, simulator.Always(), simulator.Reply(404)))
				op := h.Submit("gone", string(dialect), params("gone"))
				lost := h.Wait(op.ID, 5*time.Minute)
				if lost.State != "quarantined" || lost.Quarantine != "lost" || lost.Reason != "job_not_found" || lost.Terminal {
					t.Errorf("state %s %s, reason %s, terminal %t", lost.State, lost.Quarantine, lost.Reason, lost.Terminal)
				}
				misses := facts(h, op.ID, "observation.failed")
				if at := lost.Since.Sub(misses[0].Time); at < grace || len(misses) < 4 {
					t.Errorf("it counted as lost %s and %d reads after the first miss, want at least %s and 3 more", at, len(misses), grace)
				}
				for _, e := range misses {
					if e.Fields["class"] != "not_found" || e.Fields["status"] != "404" {
						t.Errorf("a miss is recorded as %v", e.Fields)
					}
				}
				oneCreate(t, h)
				// It is not given up: found again, it goes on (docs/BEHAVIOUR.md).
				gone()
				h.Wait(op.ID, 5*time.Minute, "succeeded")
				never(t, h, op.ID, "failed", "cancelled", "abandoned")
				oneCreate(t, h)
				keptPromises(t, h, op.ID)
			})
		})
	}
	t.Run("resumed by a decision", func(t *testing.T) {
		inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
			m := h.Mount(simulator.Example, "example", simulator.Options{})
			gone := m.Add(simulator.On(simulator.Status, simulator.Always(), simulator.Reply(404)))
			op := h.Submit("gone", "example", params("gone"))
			lost := h.Wait(op.ID, 5*time.Minute)
			gone()
			if _, err := h.Client.Decide(t.Context(), op.ID, lost.Version, "resume-it", client.Decision{Kind: "resume", Why: "the provider is back"}); err != nil {
				t.Fatal(err)
			}
			h.Wait(op.ID, 10*time.Second, "succeeded")
			oneCreate(t, h)
			keptPromises(t, h, op.ID)
		})
	})
}

func oneCreate(t *testing.T, h *harness.House) {
	t.Helper()
	if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
		t.Errorf("%d creates, want 1", n)
	}
	jobs(t, h, 1)
}

package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-21: a cancel that is never confirmed has an end of its own.
func TestFC21NeverConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")},
			simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelForever))
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Cancel: "1m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		h.Wait(op.ID, time.Minute, "observing")
		asked := time.Now()
		if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
			t.Fatal(err)
		}
		op = await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", op.State, "cancellation_unconfirmed")
		want(t, "reason", op.Reason, "cancel_deadline")
		if op.Cancel == nil || !op.Cancel.Wished {
			t.Errorf("the wish is not shown: %s", op.Raw)
		}
		if late := op.Since.Sub(asked) - time.Minute; late < 0 || late > 3*time.Second {
			t.Errorf("ended %s after the confirmation's deadline", late)
		}
		want(t, "remote state", op.Job.RemoteState, "cancelling")
		want(t, "cancels at the provider", h.Sim.Count(simulator.Filter{Call: simulator.Cancel}), 1)
		calls := h.Sim.Count(simulator.Filter{})
		time.Sleep(3 * time.Minute)
		want(t, "calls after the end", h.Sim.Count(simulator.Filter{}), calls)
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})
}

// FC-21: a provider that hangs does not hold up that end.
func TestFC21HangsWhileCancelling(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")},
			simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelForever))
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Cancel: "1m", Result: "10s"},
		})
		if err != nil {
			t.Fatal(err)
		}
		h.Wait(op.ID, time.Minute, "observing")
		asked := time.Now()
		if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
			t.Fatal(err)
		}
		h.Wait(op.ID, time.Minute, "cancelling")
		m.Add(simulator.On(simulator.Status, simulator.Always(), simulator.DelayBefore(time.Hour)))
		op = await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", op.State, "cancellation_unconfirmed")
		if late := op.Since.Sub(asked) - time.Minute; late < 0 || late > 3*time.Second {
			t.Errorf("ended %s after the confirmation's deadline\n%s", late, h.Story(op.ID))
		}
		invariants(t, h, op.ID)
	})
}

// FC-21, variant: the job is gone after the cancel.
func TestFC21GoneAfterCancel(t *testing.T) {
	for _, c := range []struct {
		name, promise     string
		state, reason, is string
	}{
		{"nothing promised", "", "quarantined", "job_not_found", "lost"},
		{"gone_confirms_cancel", "  gone_confirms_cancel: true\n", "cancelled", "job_gone", ""},
	} {
		variant(t, c.name, func(t *testing.T) {
			h := harness.New(t, harness.Options{Edit: edited(t, "example", "promises:\n", "promises:\n"+c.promise)})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")},
				simulator.On(simulator.Cancel, simulator.Always(), simulator.CancelVanish))
			op := h.Submit("k", "example", `{"n":1}`)
			h.Wait(op.ID, time.Minute, "observing")
			if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
				t.Fatal(err)
			}
			op = await(h, op.ID, 15*time.Minute, time.Second)
			want(t, "state", op.State, c.state)
			want(t, "reason", op.Reason, c.reason)
			want(t, "quarantine", op.Quarantine, c.is)
			// The evidence: at least three reads that did not find it, over the grace.
			gone := factsOf(h, op.ID, "observation.failed")
			if len(gone) < 3 {
				t.Fatalf("%d reads that did not find the job\n%s", len(gone), h.Story(op.ID))
			}
			for _, e := range gone {
				want(t, "class", e.Fields["class"], "not_found")
				want(t, "status", e.Fields["status"], "404")
			}
			if over := gone[len(gone)-1].Time.Sub(gone[0].Time); over < 30*time.Second {
				t.Errorf("evidence over %s only", over)
			}
			want(t, "what ended it", gone[len(gone)-1].To, c.state)
			invariants(t, h, op.ID)
			want(t, "jobs", len(h.Sim.Jobs()), 1)
		})
	}
}

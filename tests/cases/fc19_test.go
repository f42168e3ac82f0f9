package cases_test

import (
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// cancelEarly submits to a provider whose create takes 3 s and asks for the
// cancel at 1 s, before any job id is known.
func cancelEarly(t *testing.T, h *harness.House, provider string) client.Operation {
	t.Helper()
	plan := simulator.Plan{Steps: []simulator.Step{{State: "running"}}, CancelAfter: 5 * time.Second}
	h.Mount(simulator.Dialect(provider), provider, simulator.Options{Plan: plan},
		simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayAfter(3*time.Second)))
	op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
		Provider: provider, Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Create: "1m30s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if op, err = h.Client.Cancel(t.Context(), op.ID, "changed my mind"); err != nil {
		t.Fatal(err)
	}
	if op.Cancel == nil || !op.Cancel.Wished || op.Job != nil || op.State != "create_pending" {
		t.Fatalf("after the cancel: %s", op.Raw)
	}
	return op
}

// FC-19: a wish to cancel waits for the job's id.
func TestFC19CancelBeforeID(t *testing.T) {
	variant(t, "id arrives", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		op := cancelEarly(t, h, "example")
		for time.Since(op.Started) < 2900*time.Millisecond {
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			if now.State != "create_pending" || now.Cancel == nil || !now.Cancel.Wished {
				t.Fatalf("before the id: %s", now.Raw)
			}
			time.Sleep(100 * time.Millisecond)
		}
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "cancelled")
		confirmedCancel(t, h, op)
		invariants(t, h, op.ID)
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
	})

	variant(t, "the answer is lost", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running"}}}},
			simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayAfter(3*time.Second), simulator.DropAnswer{}))
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Create: "1m30s"},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
			t.Fatal(err)
		}
		op = await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", op.State, "quarantined")
		want(t, "kind", op.Quarantine, "unknown")
		if op.Cancel == nil || !op.Cancel.Wished {
			t.Errorf("the wish is not shown: %s", op.Raw)
		}
		want(t, "creates by automation", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
		invariants(t, h, op.ID)
	})

	variant(t, "restart, with a look-up", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		op := cancelEarly(t, h, "example-lookup")
		time.Sleep(time.Second)
		h.Kill()
		h.Start()
		now, err := h.Client.Get(t.Context(), op.ID)
		if err != nil || now.Cancel == nil || !now.Cancel.Wished || now.State == "cancelled" {
			t.Fatalf("after the restart: %v %s", err, now.Raw)
		}
		op = await(h, op.ID, 3*time.Minute, time.Second)
		want(t, "state", op.State, "cancelled")
		confirmedCancel(t, h, op)
		invariants(t, h, op.ID)
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
	})

	variant(t, "restart, the create arrives after it", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running"}}}},
			simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayBefore(20*time.Second)))
		op := h.Submit("k", "example-lookup", `{"n":1}`)
		time.Sleep(time.Second)
		if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		h.Kill()
		h.Start()
		op = await(h, op.ID, 3*time.Minute, time.Second)
		want(t, "state", op.State, "cancelled")
		confirmedCancel(t, h, op)
		invariants(t, h, op.ID)
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
	})

	variant(t, "restart, with a token only", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		op := cancelEarly(t, h, "example")
		time.Sleep(time.Second)
		h.Kill()
		h.Start()
		op = await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", op.State, "quarantined")
		want(t, "kind", op.Quarantine, "unknown")
		if op.Cancel == nil || !op.Cancel.Wished {
			t.Errorf("the wish is not shown: %s", op.Raw)
		}
		if !slices.ContainsFunc(op.Allowed, func(a client.AllowedAction) bool {
			return a.Action == "decide" && slices.Contains(a.Decisions, "retry_create")
		}) {
			t.Fatalf("retry_create is not offered: %v", op.Allowed)
		}
		want(t, "creates before the decision", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
		op, err := h.Client.Decide(t.Context(), op.ID, op.Version, "d", client.Decision{Kind: "retry_create", Why: "to cancel it"})
		if err != nil {
			t.Fatal(err)
		}
		op = h.Wait(op.ID, time.Minute, "accepted", "observing")
		if _, err := h.Client.Cancel(t.Context(), op.ID, "as decided"); err != nil {
			t.Fatal(err)
		}
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "cancelled")
		confirmedCancel(t, h, op)
		invariants(t, h, op.ID)
	})
}

// confirmedCancel checks that one cancel reached the one job and that the
// operation was called cancelled only after the provider's word.
func confirmedCancel(t *testing.T, h *harness.House, op client.Operation) {
	t.Helper()
	jobs := h.Sim.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs", len(jobs))
	}
	want(t, "cancels at the job", jobs[0].Cancels, 1)
	last := jobs[0].Changes[len(jobs[0].Changes)-1]
	want(t, "the job's end", last.State, "cancelled")
	if op.Since.Before(last.At) {
		t.Errorf("cancelled at %s, confirmed at %s only", op.Since, last.At)
	}
	for _, e := range h.Timeline(op.ID) {
		if e.To == "cancelled" && e.Time.Before(last.At) {
			t.Errorf("%s of %s says cancelled", e.Type, e.Time)
		}
	}
}

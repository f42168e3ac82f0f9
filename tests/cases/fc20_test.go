package cases_test

import (
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-20: a cancel of what has ended changes nothing and asks nobody.
func TestFC20CancelOfEnded(t *testing.T) {
	for _, c := range []struct {
		name, ends string
		status     int
	}{
		{"succeeded", "succeeded", 409},
		{"failed", "failed", 409},
	} {
		variant(t, c.name, func(t *testing.T) {
			h := harness.New(t, harness.Options{})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", c.ends)})
			op := h.Submit("k", "example", `{"n":1}`)
			op = h.Wait(op.ID, time.Minute)
			want(t, "state", op.State, c.ends)
			body := ""
			if c.ends == "succeeded" {
				body = resultOf(t, h, op.ID)
			}
			calls, facts := h.Sim.Count(simulator.Filter{}), len(h.Timeline(op.ID))
			_, err := h.Client.Cancel(t.Context(), op.ID, "too late")
			p := problemOf(t, err)
			want(t, "code", p.Code, "already_terminal")
			want(t, "status", p.Status, c.status)
			want(t, "state in the problem", p.State, c.ends)
			time.Sleep(time.Minute)
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "state and all else", string(now.Raw), string(op.Raw))
			want(t, "facts", len(h.Timeline(op.ID)), facts)
			want(t, "provider calls", h.Sim.Count(simulator.Filter{}), calls)
			if c.ends == "succeeded" {
				want(t, "result", resultOf(t, h, op.ID), body)
			}
			invariants(t, h, op.ID)
		})
	}

	variant(t, "cancelled", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")})
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
			t.Fatal(err)
		}
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "cancelled")
		calls, facts := h.Sim.Count(simulator.Filter{}), len(h.Timeline(op.ID))
		again, err := h.Client.Cancel(t.Context(), op.ID, "again")
		if err != nil {
			t.Fatalf("a cancel of a cancelled operation: %v", err)
		}
		want(t, "answer", string(again.Raw), string(op.Raw))
		time.Sleep(time.Minute)
		want(t, "facts", len(h.Timeline(op.ID)), facts)
		want(t, "provider calls", h.Sim.Count(simulator.Filter{}), calls)
		invariants(t, h, op.ID)
	})
}

// FC-20: ten cancels at once are one.
func TestFC20ParallelCancels(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Pollers: 2})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Plan{
			Steps: []simulator.Step{{State: "running"}}, CancelAfter: 5 * time.Second,
		}})
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		var all sync.WaitGroup
		answers := make([]client.Operation, 10)
		for i := range answers {
			all.Go(func() {
				var err error
				if answers[i], err = h.Client.Cancel(t.Context(), op.ID, "why "+string(rune('0'+i))); err != nil {
					t.Errorf("cancel %d: %v", i, err)
				}
			})
		}
		all.Wait()
		for i, a := range answers {
			if a.ID != op.ID || a.Cancel == nil || !a.Cancel.Wished || (a.State != "cancel_requested" && a.State != "cancelling") {
				t.Errorf("answer %d: %s", i, a.Raw)
			}
		}
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "cancelled")
		want(t, "cancels at the provider", h.Sim.Count(simulator.Filter{Call: simulator.Cancel}), 1)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
		invariants(t, h, op.ID)
	})
}

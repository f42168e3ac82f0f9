package cases_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// place holds a provider, or all of them.
func place(t *testing.T, h *harness.House, provider, scope string) {
	t.Helper()
	if _, placed, err := h.Client.PlaceHold(t.Context(), client.HoldWish{Provider: provider, Scope: scope, Why: "an incident"}); err != nil || !placed {
		t.Fatalf("hold %s: placed %v, %v", scope, placed, err)
	}
}

func release(t *testing.T, h *harness.House, provider string) {
	t.Helper()
	if _, err := h.Client.ReleaseHold(t.Context(), provider, "it is over"); err != nil {
		t.Fatal(err)
	}
}

// long submits an operation that waits for its job for a day.
func long(t *testing.T, h *harness.House, provider, key string) client.Operation {
	t.Helper()
	op, _, err := h.Client.Submit(t.Context(), key, client.Submission{
		Provider: provider, Params: []byte(params(key)), Deadlines: &client.Deadlines{Create: "24h", Result: "48h"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// Under a hold on creates not one create arrives, through a restart and a kill
// -9, while what is under way goes on and other providers are not touched. The
// release lets them go on.
func TestHoldCreates(t *testing.T) {
	inHouse(t, harness.Options{Workers: 16}, func(t *testing.T, h *harness.House) {
		plan := simulator.Options{Plan: simulator.Steps(2*time.Minute, "queued", "running", "succeeded")}
		h.Mount(simulator.Example, "example", plan)
		h.Mount(simulator.ExampleLookup, "example-lookup", plan)
		follows := long(t, h, "example", "follows")
		cancelled := long(t, h, "example", "cancelled")
		h.Wait(follows.ID, time.Minute, "observing")
		h.Wait(cancelled.ID, time.Minute, "observing")

		place(t, h, "example", client.HoldCreates)
		var held []string
		quiet := func(when string, wait time.Duration) {
			t.Helper()
			time.Sleep(wait)
			for _, id := range held {
				if n := len(facts(h, id, "create.attempted")); n != 0 {
					t.Fatalf("%s: %d creates were permitted\n%s", when, n, h.Story(id))
				}
			}
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Create, Mount: "/example"}); n != 2 {
				t.Fatalf("%s: %d creates arrived, want the 2 from before", when, n)
			}
		}
		held = append(held, long(t, h, "example", "one").ID, long(t, h, "example", "two").ID)
		quiet("at once", 2*time.Minute)
		if _, err := h.Client.Cancel(t.Context(), cancelled.ID, "not needed"); err != nil {
			t.Fatal(err)
		}
		h.Wait(cancelled.ID, 10*time.Minute, "cancelled")
		h.Wait(follows.ID, 10*time.Minute, "succeeded")
		other := long(t, h, "example-lookup", "other")
		h.Wait(other.ID, time.Minute, "observing")

		op, err := h.Client.Get(t.Context(), held[0])
		if err != nil || op.State != "create_pending" {
			t.Fatal(op.State, err)
		}
		deferred := facts(h, held[0], "step.deferred")
		if len(deferred) == 0 || deferred[0].Fields["reason"] != "provider_on_hold" {
			t.Fatalf("not deferred for the hold\n%s", h.Story(held[0]))
		}

		h.Stop()
		h.Start()
		held = append(held, long(t, h, "example", "three").ID)
		quiet("after a restart", 5*time.Minute)
		h.Kill()
		h.Start()
		held = append(held, long(t, h, "example", "four").ID)
		quiet("after a kill", 5*time.Minute)
		list, err := h.Client.Holds(t.Context())
		if err != nil || len(list) != 1 || list[0].Provider != "example" || list[0].Why != "an incident" || list[0].By != "tester" {
			t.Fatal(list, err)
		}

		release(t, h, "example")
		for _, id := range held {
			h.Wait(id, time.Minute, "observing")
		}
		for _, id := range held {
			h.Wait(id, 10*time.Minute, "succeeded")
		}
		keptPromises(t, h, append(held, follows.ID, cancelled.ID, other.ID)...)
	})
}

// A hold on all calls to all providers: nothing arrives at all, deadlines run
// on, and a kill at the very moment of its acknowledgement does not lose it.
func TestHoldAll(t *testing.T) {
	inHouse(t, harness.Options{Workers: 16}, func(t *testing.T, h *harness.House) {
		plan := simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "running", "succeeded")}
		h.Mount(simulator.Example, "example", plan)
		h.Mount(simulator.ExampleLookup, "example-lookup", plan)
		op, _, err := h.Client.Submit(t.Context(), "follows", client.Submission{
			Provider: "example", Params: []byte(params("follows")), Deadlines: &client.Deadlines{Result: "20m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		survives := long(t, h, "example", "survives")
		h.Wait(op.ID, time.Minute, "observing")
		h.Wait(survives.ID, time.Minute, "observing")

		place(t, h, "example", client.HoldCreates)
		place(t, h, "", client.HoldAll) // the stronger counts
		h.Kill()
		h.Start()
		time.Sleep(30 * time.Second) // what had left is answered
		before := h.Sim.Count(simulator.Filter{})
		held := long(t, h, "example-lookup", "held")
		late, _, err := h.Client.Submit(t.Context(), "late", client.Submission{
			Provider: "example-lookup", Params: []byte(params("late")), Deadlines: &client.Deadlines{Create: "10m", Result: "20m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(22 * time.Minute)
		if n := h.Sim.Count(simulator.Filter{}); n != before {
			t.Fatalf("%d requests arrived under the hold", n-before)
		}
		h.Wait(op.ID, time.Minute, "result_timed_out")
		h.Wait(late.ID, time.Minute, "failed")

		// The provider's own hold is weaker and still there.
		release(t, h, "")
		h.Wait(survives.ID, 5*time.Minute, "succeeded")
		h.Wait(held.ID, time.Minute, "observing")
		resting := long(t, h, "example", "resting")
		time.Sleep(3 * time.Minute)
		if n := len(facts(h, resting.ID, "create.attempted")); n != 0 {
			t.Errorf("%d creates were permitted under the weaker hold", n)
		}
		release(t, h, "example")
		h.Wait(resting.ID, time.Minute, "observing")
		keptPromises(t, h, op.ID, survives.ID, held.ID, late.ID, resting.ID)
	})
}

// A hold that another process placed counts here within the second, and while
// the holds cannot be read nothing with side effects leaves.
func TestHoldOfAnotherProcess(t *testing.T) {
	var blind atomic.Bool // reads of the end of CONTROL fail
	o := harness.Options{Workers: 16, Through: func(store journal.Store) journal.Store {
		return memory.Inject(store, func(c memory.Call) memory.Fault {
			if blind.Load() && c.Op == memory.OpLast && c.Subject == "control.*" {
				return memory.Fault{Kind: memory.Unavailable}
			}
			return memory.Fault{}
		})
	}}
	inHouse(t, o, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "succeeded")})
		elsewhere := func(fact events.ServiceFact) {
			t.Helper()
			list, err := h.Journal.HoldFacts(t.Context(), "example")
			if err != nil {
				t.Fatal(err)
			}
			hold := projections.Hold{Provider: "example"}
			for _, f := range list {
				hold = projections.FoldHold(hold, f)
			}
			if _, outcome, err := h.Journal.AppendHold(t.Context(), hold, events.ServiceEvent{Source: "/ingest/elsewhere", Fact: fact}); err != nil || outcome != journal.Stored {
				t.Fatal(outcome, err)
			}
		}
		creates := func(want int) {
			t.Helper()
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != want {
				t.Fatalf("%d creates arrived, want %d", n, want)
			}
		}
		elsewhere(&events.HoldPlaced{Scope: events.HoldCreates, Who: "somebody"})
		time.Sleep(1100 * time.Millisecond)
		one := long(t, h, "example", "one")
		time.Sleep(3 * time.Minute)
		creates(0)
		elsewhere(&events.HoldReleased{Who: "somebody"})
		h.Wait(one.ID, time.Minute, "observing")
		creates(1)

		// The service goes blind; a hold is placed; nobody here can know.
		blind.Store(true)
		time.Sleep(11 * time.Second)
		elsewhere(&events.HoldPlaced{Scope: events.HoldCreates, Who: "somebody"})
		two := long(t, h, "example", "two")
		time.Sleep(3 * time.Minute)
		creates(1)
		h.Wait(one.ID, time.Minute, "succeeded") // reads go on

		// Started blind, it asks nobody anything.
		h.Stop()
		before := h.Sim.Count(simulator.Filter{})
		h.Start()
		time.Sleep(3 * time.Minute)
		if n := h.Sim.Count(simulator.Filter{}); n != before {
			t.Fatalf("%d requests arrived before the holds were read", n-before)
		}
		blind.Store(false)
		time.Sleep(3 * time.Minute)
		creates(1) // the hold is seen now
		elsewhere(&events.HoldReleased{Who: "somebody"})
		h.Wait(two.ID, 2*time.Minute, "observing")
		keptPromises(t, h, one.ID, two.ID)
	})
}

// A paused operation sends no create and collects no result, through a restart
// and a kill, while reads, cancels and deadlines go on.
func TestPause(t *testing.T) {
	inHouse(t, harness.Options{Workers: 16}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(2*time.Minute, "queued", "running", "succeeded")})
		pause := func(id string) {
			t.Helper()
			op, err := h.Client.Pause(t.Context(), id, "the account is being moved")
			if err != nil || op.Paused == nil || op.Paused.By != "tester" {
				t.Fatal(op.Paused, err)
			}
		}
		resume := func(id string) {
			t.Helper()
			if op, err := h.Client.Resume(t.Context(), id, ""); err != nil || op.Paused != nil {
				t.Fatal(op.Paused, err)
			}
		}
		collects := long(t, h, "example", "collects")
		cancels := long(t, h, "example", "cancels")
		h.Wait(collects.ID, time.Minute, "observing")
		h.Wait(cancels.ID, time.Minute, "observing")
		pause(collects.ID)
		pause(cancels.ID)
		place(t, h, "", client.HoldCreates) // so that it is paused before its create
		waits := long(t, h, "example", "waits")
		pause(waits.ID)
		release(t, h, "")

		if _, err := h.Client.Cancel(t.Context(), cancels.ID, ""); err != nil {
			t.Fatal(err)
		}
		h.Wait(cancels.ID, 10*time.Minute, "cancelled")
		h.Wait(collects.ID, 10*time.Minute, "result_collecting")
		h.Stop()
		h.Start()
		time.Sleep(3 * time.Minute)
		h.Kill()
		h.Start()
		time.Sleep(3 * time.Minute)
		if n := len(facts(h, waits.ID, "create.attempted")); n != 0 {
			t.Errorf("%d creates were permitted while paused", n)
		}
		if n := h.Sim.Count(simulator.Filter{Call: simulator.Result}); n != 0 {
			t.Errorf("%d reads of the result while paused", n)
		}
		was(t, h, collects.ID, "result_collecting")
		resume(waits.ID)
		resume(collects.ID)
		h.Wait(collects.ID, time.Minute, "succeeded")
		h.Wait(waits.ID, time.Minute, "observing")

		var problem *client.Problem
		if _, err := h.Client.Pause(t.Context(), collects.ID, ""); !errors.As(err, &problem) || problem.Code != "already_terminal" {
			t.Errorf("pausing what has ended: %v", err)
		}
		keptPromises(t, h, collects.ID, cancels.ID, waits.ID)
	})
}

package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-17: the deadline ends a read that hangs, also the one that is made because
// of it.
func TestFC17DeadlineEndsHangingRead(t *testing.T) {
	for _, c := range []struct {
		name  string
		first int // the first read that hangs; one every 2 s
		fault simulator.Fault
	}{
		{"no headers", 1, simulator.DelayBefore(time.Hour)},
		{"one byte at a time", 1, simulator.SlowBody{Every: 3 * time.Second}},
		{"no headers at the deadline", 5, simulator.DelayBefore(time.Hour)},
		{"one byte at a time at the deadline", 5, simulator.SlowBody{Every: 3 * time.Second}},
	} {
		variant(t, c.name, func(t *testing.T) {
			h := harness.New(t, harness.Options{})
			m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "running", "succeeded")})
			const deadline = 10 * time.Second
			slow, _, err := h.Client.Submit(t.Context(), "slow", client.Submission{
				Provider: "example", Params: []byte(`{"n":0}`), Deadlines: &client.Deadlines{Result: deadline.String()},
			})
			if err != nil {
				t.Fatal(err)
			}
			job := h.Wait(slow.ID, 5*time.Second, "accepted", "observing").Job.ID
			m.Add(simulator.On(simulator.Status, simulator.Match{Job: job, By: simulator.PerJob, From: c.first}, c.fault))
			var others []string
			for _, key := range []string{"a", "b", "c"} {
				others = append(others, h.Submit(key, "example", `{"n":"`+key+`"}`).ID)
			}
			slow = h.Wait(slow.ID, time.Minute)
			want(t, "state", slow.State, "result_timed_out")
			if late := slow.Since.Sub(slow.Started) - deadline; late < 0 || late > 3*time.Second {
				t.Errorf("the deadline's outcome came %s after it\n%s", late, h.Story(slow.ID))
			}
			// A minute on nothing has been asked about the slow job, and what hung
			// was given up when the operation stopped.
			time.Sleep(time.Minute)
			reads := 0
			for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Status}) {
				switch {
				case r.Job == job && r.At.After(slow.Since):
					t.Errorf("a read of the stopped operation at %s", r.At)
				case r.Job == job && strings.HasPrefix(c.name, "one byte") && r.At.Sub(slow.Started) > 7*time.Second && r.Done.Sub(slow.Since) > 3*time.Second:
					t.Errorf("the read of %s was held until %s", r.At, r.Done)
				case r.Job != job && r.At.Before(slow.Since):
					reads++
				}
			}
			if reads < 12 { // every 2 s for each of the three others
				t.Errorf("%d reads of the other jobs until the deadline", reads)
			}
			for _, id := range others {
				want(t, "other operation", await(h, id, 3*time.Minute, time.Second).State, "succeeded")
			}
			invariants(t, h, append(others, slow.ID)...)
		})
	}
}

// FC-17: one provider that hangs with more operations than there are workers
// holds up nobody else's.
func TestFC17OtherProvidersGoOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const workers = 16 // each of the built-in contracts has one of its own
		h := harness.New(t, harness.Options{Workers: workers})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")},
			simulator.On(simulator.Status, simulator.Always(), simulator.DelayBefore(time.Hour)))
		h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{Plan: simulator.Steps(30*time.Second, "running", "succeeded")})
		var ids []string
		for i := range 2 * workers {
			ids = append(ids, h.Submit(fmt.Sprintf("k%d", i), "example", fmt.Sprintf(`{"n":%d}`, i)).ID)
		}
		time.Sleep(5 * time.Second) // by now every worker they can get hangs
		op := h.Submit("other", "example-lookup", `{"n":1}`)
		op = await(h, op.ID, 2*time.Minute, time.Second)
		want(t, "state", op.State, "succeeded")
		last := op.Started
		for _, r := range h.Sim.Requests(simulator.Filter{Mount: "/example-lookup"}) {
			if gap := r.At.Sub(last); gap > 3*time.Second {
				t.Errorf("%s came %s after the call before", r.Call, gap)
			}
			last = r.At
		}
		invariants(t, h, append(ids, op.ID)...)
	})
}

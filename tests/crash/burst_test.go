package crash_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// burst is how many webhooks and how many cancels arrive at once.
const burst = 20

// TestBurst lets webhooks and cancels arrive in numbers while a call to the
// provider is held, with two pollers: each of them could wake another owner, and
// none may bring a second call with side effects about.
func TestBurst(t *testing.T) {
	for _, one := range []struct {
		name  string
		call  simulator.Call
		fault func(*simulator.Gate) simulator.Fault
		state string
	}{
		{"during a create that has not arrived", simulator.Create, func(g *simulator.Gate) simulator.Fault { return simulator.HoldBefore{Gate: g} }, "cancelled"},
		{"during a create that is being answered", simulator.Create, func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} }, "cancelled"},
		{"during a status read", simulator.Status, func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} }, "cancelled"},
		{"during a cancel", simulator.Cancel, func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} }, "cancelled"},
		{"during a result", simulator.Result, func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} }, "succeeded"},
	} {
		t.Run(one.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := simulator.NewGate()
				defer gate.Release()
				r := newRig(t, harness.Options{Pollers: 2, Webhooks: true})
				options := short("running")
				if one.call == simulator.Result {
					options = short("running", "succeeded")
				}
				r.mount = r.Mount(simulator.Example, "example", options,
					simulator.On(one.call, simulator.Nth(1), one.fault(gate)))
				op := r.submit("burst")
				if one.call == simulator.Cancel {
					r.Wait(op.ID, time.Minute, "observing")
					if _, err := r.Client.Cancel(t.Context(), op.ID, "first"); err != nil {
						t.Fatal(err)
					}
				}
				gate.WaitArrived(1, t.Context().Done())

				var all sync.WaitGroup
				for range burst {
					all.Go(func() {
						if jobs := r.Sim.Jobs(); len(jobs) > 0 {
							r.mount.Notify(jobs[0].ID)
						}
					})
					all.Go(func() {
						// Refused where the result is being read: that is an answer too.
						if _, err := r.Client.Cancel(t.Context(), op.ID, "burst"); err != nil && one.call != simulator.Result {
							t.Error(err)
						}
					})
				}
				all.Wait()
				time.Sleep(5 * time.Second) // within the request's time; whoever was woken has acted
				if n := r.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
					t.Errorf("%d creates on the wire while the call is held, want 1", n)
				}
				if one.call == simulator.Create || one.call == simulator.Cancel {
					calls := r.Sim.Count(simulator.Filter{Call: simulator.Create}) + r.Sim.Count(simulator.Filter{Call: simulator.Cancel})
					want := 1
					if one.call == simulator.Cancel {
						want = 2 // the create before it
					}
					if calls != want {
						t.Errorf("%d calls with side effects while one is held, want %d", calls, want)
					}
				}
				gate.Release()
				r.ends(op.ID, "burst", one.state)
				if n := r.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
					t.Errorf("%d creates on the wire, want 1", n)
				}
				if jobs := r.Sim.Jobs(); r.Sim.CreatesOnWire(jobs[0].Key) != 1 || r.Sim.MaxAtOnce(jobs[0].Key) != 1 {
					t.Errorf("%d creates and %d calls at once", r.Sim.CreatesOnWire(jobs[0].Key), r.Sim.MaxAtOnce(jobs[0].Key))
				}
				told := 0
				for _, e := range r.Timeline(op.ID) {
					if strings.HasPrefix(e.Type, "webhook.received") {
						told++
					}
				}
				// A create that has not arrived has no job to tell about yet.
				arrived := one.call == simulator.Create && strings.Contains(one.name, "not arrived")
				if !arrived && told < burst {
					t.Errorf("%d webhooks are facts, want %d", told, burst)
				}
			})
		})
	}
}

package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC08RetryAfterBeyondAllBounds(t *testing.T) {
	const most = time.Minute // pacing.poll_max of the contract
	for _, text := range []string{"9999999999", "99999999999999999999", "2147483648"} {
		t.Run(text, func(t *testing.T) {
			inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
				h.Mount(simulator.Example, "example", simulator.Options{},
					simulator.On(simulator.Status, simulator.Always(), simulator.ReplyRetry(429, simulator.RetryAfter{Text: text})))
				const deadline = 5*time.Minute + 17*time.Second
				op, _, err := h.Client.Submit(t.Context(), "far", client.Submission{
					Provider: "example", Params: []byte(params("far")), Deadlines: &client.Deadlines{Result: deadline.String()},
				})
				if err != nil {
					t.Fatal(err)
				}
				for time.Since(op.Started) < deadline-4*time.Second {
					time.Sleep(3 * time.Second)
					now, err := h.Client.Get(t.Context(), op.ID)
					if err != nil {
						t.Fatal(err)
					}
					if now.NextLook == nil || now.NextLook.After(time.Now().Add(most)) {
						t.Fatalf("the next look is at %v, it is %s", now.NextLook, time.Now())
					}
				}
				waits := gaps(h.Sim.Requests(simulator.Filter{Call: simulator.Status}))
				if len(waits) != 5 {
					t.Errorf("%d waits until the deadline, want 5", len(waits))
				}
				for i, gap := range waits {
					if gap < most || gap > most+time.Second {
						t.Errorf("wait %d is %s, want the cap %s", i+1, gap, most)
					}
				}
				done := h.Wait(op.ID, time.Minute)
				if done.State != "result_timed_out" || done.Reason != "result_deadline" {
					t.Errorf("state %s, reason %s", done.State, done.Reason)
				}
				if at := done.Since.Sub(op.Started); at < deadline || at > deadline+time.Second {
					t.Errorf("the deadline fired after %s, want %s", at, deadline)
				}
				jobs(t, h, 1)
				keptPromises(t, h, op.ID)
			})
		})
	}
}

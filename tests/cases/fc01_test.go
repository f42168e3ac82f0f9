package cases_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// late makes the answers to the matched creates come after the create's time
// limit, which is 30 s in the built-in contracts. The job is stored at once.
func late(m simulator.Match) simulator.Rule {
	return simulator.On(simulator.Create, m, simulator.DelayAfter(time.Minute))
}

func TestFC01CreateAnsweredTooLate(t *testing.T) {
	for _, dialect := range []simulator.Dialect{simulator.Example, simulator.ExampleLookup} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Run("one", func(t *testing.T) {
				inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
					h.Mount(dialect, string(dialect), simulator.Options{}, late(simulator.NthOfToken(1)))
					op := h.Submit("one", string(dialect), params("one"))
					time.Sleep(45 * time.Second) // the time limit is over, the answer not there
					now, err := h.Client.Get(t.Context(), op.ID)
					if err != nil {
						t.Fatal(err)
					}
					if now.State != "create_unknown" || now.Reason != "create_outcome_unknown" || now.Done || now.Attempts.Unresolved != 1 {
						t.Errorf("after the time limit: state %s, reason %s, done %t, %d unresolved", now.State, now.Reason, now.Done, now.Attempts.Unresolved)
					}
					done := h.Wait(op.ID, 5*time.Minute, "succeeded")
					job := jobs(t, h, 1)[0]
					if done.Job == nil || done.Job.ID != job.ID {
						t.Errorf("it continued with job %+v, want %s", done.Job, job.ID)
					}
					never(t, h, op.ID, "failed", "quarantined")
					keptPromises(t, h, op.ID)
				})
			})
			t.Run("twenty", func(t *testing.T) {
				inHouse(t, harness.Options{Workers: 32}, func(t *testing.T, h *harness.House) {
					half := simulator.Match{From: 1, To: 20, Every: 2}
					h.Mount(dialect, string(dialect), simulator.Options{}, late(half))
					twenty(t, h, string(dialect))
					if n := h.Sim.Count(simulator.Filter{Call: simulator.Create, Fault: "delay-after"}); n != 10 {
						t.Errorf("%d creates were answered late, want 10", n)
					}
				})
			})
		})
	}
	// With neither token nor look-up nobody can find the job; what the case asks
	// for holds as far as it can: not failed, no second create, it asks.
	t.Run("nobody can tell", func(t *testing.T) {
		inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.ExampleAsk, "example-ask", simulator.Options{}, late(simulator.Always()))
			op := h.Submit("ask", "example-ask", params("ask"))
			now := h.Wait(op.ID, 2*time.Minute)
			if now.State != "quarantined" || now.Quarantine != "unknown" || now.Reason != "create_outcome_unknown" {
				t.Errorf("state %s %s, reason %s", now.State, now.Quarantine, now.Reason)
			}
			job := jobs(t, h, 1)[0]
			if _, err := h.Client.Decide(t.Context(), op.ID, now.Version, "adopt-it", client.Decision{Kind: "adopt", JobID: job.ID, Why: "seen in the provider's console"}); err != nil {
				t.Fatal(err)
			}
			h.Wait(op.ID, time.Minute, "succeeded")
			jobs(t, h, 1)
			never(t, h, op.ID, "failed")
			keptPromises(t, h, op.ID)
		})
	})
}

// twenty submits twenty operations at once and waits until all have succeeded,
// each with a job of its own.
func twenty(t *testing.T, h *harness.House, provider string) {
	t.Helper()
	type answer struct {
		op  client.Operation
		err error
	}
	answers := make(chan answer)
	for i := range 20 {
		go func() {
			key := fmt.Sprintf("op-%02d", i)
			op, _, err := h.Client.Submit(t.Context(), key, client.Submission{Provider: provider, Params: []byte(params(key))})
			answers <- answer{op, err}
		}()
	}
	var ids []string
	for range 20 {
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		ids = append(ids, a.op.ID)
	}
	owner, unknown := map[string]string{}, 0
	for _, id := range ids {
		op := h.Wait(id, 10*time.Minute, "succeeded")
		for _, e := range facts(h, id, "create.answered") {
			if e.To == "create_unknown" {
				unknown++
			}
		}
		if op.Job == nil || owner[op.Job.ID] != "" {
			t.Fatalf("%s has job %+v, which also belongs to %s", id, op.Job, owner[op.Job.ID])
		}
		owner[op.Job.ID] = id
		never(t, h, id, "failed", "quarantined")
	}
	for _, job := range jobs(t, h, 20) {
		if owner[job.ID] == "" {
			t.Errorf("job %s belongs to no operation", job.ID)
		}
	}
	if unknown != 10 {
		t.Errorf("%d of the creates left their outcome unknown, want the 10 that were answered late", unknown)
	}
	keptPromises(t, h, ids...)
}

package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// lookupSection lets a contract ask for jobs by our reference.
const lookupSection = `
lookup:
  answers: exact
  conclusive: true
  path: /v1/jobs
  query:
    client_reference: "{client_reference}"
  read:
    items: body.jobs
    next: body.?next
    job_id: item.job_id
    exact: item.?client_reference.orValue("") == client_reference

cancel:
`

func TestFC02ConflictOnOurOwnRetry(t *testing.T) {
	lost := simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.ReplyStored(500))
	t.Run("a: the conflict names the job", func(t *testing.T) {
		const name = "names-first"
		contract := builtin(t, "example", name, "second_create: returns_first", "second_create: names_first")
		inHouse(t, harness.Options{Contracts: map[string]string{name + ".yaml": contract}}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, name, simulator.Options{}, lost, simulator.On(simulator.Create, simulator.Always(), simulator.Conflict{WithID: true}))
			op := h.Submit("a", name, params("a"))
			done := h.Wait(op.ID, 5*time.Minute, "succeeded")
			job := jobs(t, h, 1)[0]
			if done.Job == nil || done.Job.ID != job.ID {
				t.Errorf("adopted %+v, want %s", done.Job, job.ID)
			}
			inOrder(t, h, op.ID, "create.attempted", "create.answered/ambiguous", "create.attempted", "create.answered/conflict", "job.observed")
			adopted := facts(h, op.ID, "create.answered")[1]
			if adopted.Fields["job_id"] != job.ID || adopted.Fields["claim"] != "own" || adopted.To != "accepted" || adopted.Fields["status"] != "409" {
				t.Errorf("the conflict's entry is %+v", adopted)
			}
			was(t, h, op.ID, "create_unknown")
			never(t, h, op.ID, "failed", "quarantined")
			sameToken(t, h)
			keptPromises(t, h, op.ID)
		})
	})
	// The contract promises that a second create gives the first job; the
	// provider only says that there is one.
	t.Run("b: the conflict names nothing, the look-up does", func(t *testing.T) {
		const name = "refuses"
		contract := builtin(t, "example", name, "\ncancel:\n", lookupSection)
		inHouse(t, harness.Options{Contracts: map[string]string{name + ".yaml": contract}}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, name, simulator.Options{WithList: true}, lost, simulator.On(simulator.Create, simulator.Always(), simulator.Conflict{}))
			op := h.Submit("b", name, params("b"))
			done := h.Wait(op.ID, 5*time.Minute, "succeeded")
			job := jobs(t, h, 1)[0]
			if done.Job == nil || done.Job.ID != job.ID {
				t.Errorf("adopted %+v, want %s", done.Job, job.ID)
			}
			inOrder(t, h, op.ID, "create.attempted", "create.answered/ambiguous", "create.attempted", "create.answered/conflict", "lookup.answered/found", "job.observed")
			conflict := facts(h, op.ID, "create.answered")[1]
			if conflict.Fields["job_id"] != "" || conflict.To != "reconciliation" {
				t.Errorf("the conflict's entry is %+v", conflict)
			}
			adopted := facts(h, op.ID, "lookup.answered")[0]
			if adopted.Fields["job_1"] != job.ID || adopted.Fields["job_1_exact"] != "true" || adopted.Fields["job_1_claim"] != "own" || adopted.To != "accepted" {
				t.Errorf("the look-up's entry is %+v", adopted)
			}
			never(t, h, op.ID, "failed", "quarantined")
			sameToken(t, h)
			keptPromises(t, h, op.ID)
		})
	})
	// Where the contract says that a second create is refused, none is sent.
	t.Run("b: a refusal that is known looks up instead", func(t *testing.T) {
		const name = "refuses"
		contract := builtin(t, "example", name, "\ncancel:\n", lookupSection, "second_create: returns_first\n  window: 24h\n", "second_create: refused\n")
		inHouse(t, harness.Options{Contracts: map[string]string{name + ".yaml": contract}}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, name, simulator.Options{WithList: true}, lost, simulator.On(simulator.Create, simulator.Always(), simulator.Conflict{}))
			op := h.Submit("b", name, params("b"))
			h.Wait(op.ID, 5*time.Minute, "succeeded")
			jobs(t, h, 1)
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
				t.Errorf("%d creates, want 1", n)
			}
			inOrder(t, h, op.ID, "create.attempted", "create.answered/ambiguous", "lookup.answered/found", "job.observed")
			never(t, h, op.ID, "failed", "quarantined")
			keptPromises(t, h, op.ID)
		})
	})
}

// sameToken checks that there were two creates with one token.
func sameToken(t *testing.T, h *harness.House) {
	t.Helper()
	creates := h.Sim.Requests(simulator.Filter{Call: simulator.Create})
	if len(creates) != 2 || creates[0].Token == "" || creates[0].Token != creates[1].Token {
		t.Errorf("creates %+v, want two with one token", creates)
	}
}

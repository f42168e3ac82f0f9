package workflow_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/workflow"
)

// BenchmarkDecide decides a create and a status read.
func BenchmarkDecide(b *testing.B) {
	y := newStory()
	y.put(standard())
	w := workflow.World{
		Now: epoch.Add(time.Minute), Owner: "poller-1/run",
		Target: workflow.Target{Origin: "https://api.example.com", Account: "main", Credential: "env:KEY", Identity: "3f2a"},
	}
	decide := func(b *testing.B) {
		s := y.s
		b.ReportAllocs()
		for b.Loop() {
			if d := workflow.Decide(s, w); d.Effect == nil {
				b.Fatal("nothing is due")
			}
		}
	}
	b.Run("create", decide)
	y.put(&events.CreateAttempted{Attempt: events.Attempt{
		Number: 1, Origin: w.Target.Origin, Account: "main", Identity: "3f2a", NotAfter: epoch.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: w.Owner,
	}}, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "job_1", Claim: events.ClaimOwn, Call: events.Call{AsOf: 2, Status: 202}})
	b.Run("read", decide)
}

package cases_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC12FailureInsideSuccess(t *testing.T) {
	t.Run("status", func(t *testing.T) {
		inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, "example", simulator.Options{}, simulator.On(simulator.Status, simulator.Always(), simulator.Answer{
				Status: 200, Body: `{"status":"Failed","error":{"code":"Q1","message":"no room"}}`,
			}))
			op := h.Submit("full", "example", params("full"))
			done := h.Wait(op.ID, 5*time.Minute, "failed")
			if done.Outcome != "failed" || done.Reason != "provider_failed" {
				t.Errorf("outcome %s, reason %s", done.Outcome, done.Reason)
			}
			if done.Problem == nil || done.Problem.Code != "Q1" || done.Problem.Message != "no room" {
				t.Errorf("the agent reads %+v", done.Problem)
			}
			if done.Job == nil || done.Job.RemoteState != "Failed" {
				t.Errorf("the provider's word is %+v", done.Job)
			}
			last := facts(h, op.ID, "job.observed")
			if e := last[len(last)-1]; e.Fields["code"] != "Q1" || e.Fields["message"] != "no room" || e.Fields["remote_state"] != "Failed" {
				t.Errorf("the history has %v", e.Fields)
			}
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Result}); n != 0 {
				t.Errorf("the result was fetched %d times", n)
			}
			var p *client.Problem
			if _, err := h.Client.Result(t.Context(), op.ID); !errors.As(err, &p) || p.Code != "no_result" || p.Provider == nil || p.Provider.Code != "Q1" {
				t.Errorf("the result is answered by %+v", err)
			}
			oneCreate(t, h)
			keptPromises(t, h, op.ID)
		})
	})

	onlyError := simulator.On(simulator.Create, simulator.Always(), simulator.Answer{
		Status: 200, Body: `{"error":{"code":"Q1","message":"no room"}}`,
	})
	for _, dialect := range []simulator.Dialect{simulator.Example, simulator.ExampleLookup, simulator.ExampleAsk} {
		// The built-in contracts say that such an answer proves that no job was made.
		t.Run("create, a refusal by "+string(dialect), func(t *testing.T) {
			inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
				h.Mount(dialect, string(dialect), simulator.Options{}, onlyError)
				op := h.Submit("full", string(dialect), params("full"))
				done := h.Wait(op.ID, 5*time.Minute, "failed")
				if done.Reason != "refused" || done.Job != nil || done.Problem == nil || done.Problem.Code != "Q1" || done.Problem.Message != "no room" {
					t.Errorf("reason %s, job %+v, problem %+v", done.Reason, done.Job, done.Problem)
				}
				never(t, h, op.ID, "accepted", "observing")
				if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
					t.Errorf("%d creates, want 1", n)
				}
				jobs(t, h, 0)
				keptPromises(t, h, op.ID)
			})
		})
		// A contract that has no rule for it leaves the outcome open.
		t.Run("create, no rule in "+string(dialect), func(t *testing.T) {
			const rule = "\n      || (status in [200, 201, 202] && given(body.?error) && !given(body.?job_id))"
			edit := func(name, text string) string { return strings.ReplaceAll(text, rule, "") }
			inHouse(t, harness.Options{Edit: edit}, func(t *testing.T, h *harness.House) {
				h.Mount(dialect, string(dialect), simulator.Options{}, onlyError)
				op, _, err := h.Client.Submit(t.Context(), "full", client.Submission{
					Provider: string(dialect), Params: []byte(params("full")), Deadlines: &client.Deadlines{Create: "5m", Result: "10m"},
				})
				if err != nil {
					t.Fatal(err)
				}
				done := waitLong(t, h, op.ID, 30*time.Minute)
				if !done.Done || done.Job != nil {
					t.Errorf("state %s, job %+v: it must end or ask, without a job", done.State, done.Job)
				}
				answered := facts(h, op.ID, "create.answered")
				if len(answered) == 0 || answered[0].Fields["outcome"] != "ambiguous" || answered[0].Fields["code"] != "Q1" {
					t.Errorf("the create was read as %+v", answered)
				}
				if done.Problem == nil || done.Problem.Code != "Q1" {
					t.Errorf("the agent reads %+v", done.Problem)
				}
				never(t, h, op.ID, "accepted", "observing", "cancelling")
				jobs(t, h, 0)
				keptPromises(t, h, op.ID)
			})
		})
	}
}

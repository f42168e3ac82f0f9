package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-16: a status read that is not authorised says nothing about the job.
func TestFC16Unauthorised(t *testing.T) {
	variant(t, "until a fresh credential", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		o := simulator.Options{Plan: simulator.Steps(10*time.Second, "running", "succeeded")}
		m := h.Mount(simulator.Example, "example", o)
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		o.Auth = simulator.Auth{Bearer: "fresh-token", WrongStatus: 401}
		m.Configure(o)
		shown := false
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			if now.Done || now.State != "observing" {
				t.Fatalf("the 401 moved the operation to %s (%s)", now.State, now.Reason)
			}
			shown = shown || now.Problem != nil && now.Problem.Class == "unauthorized"
		}
		if !shown {
			t.Error("the problem was never visible on the operation")
		}
		refused(t, h, op.ID, "401")
		h.SetSecret("HARNESS_TOKEN", "fresh-token")
		op = h.Wait(op.ID, 2*time.Minute)
		want(t, "state", op.State, "succeeded")
		if op.Problem != nil {
			t.Errorf("a problem that is over is still shown: %+v", op.Problem)
		}
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})

	variant(t, "credential gone for a while", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(10*time.Second, "running", "succeeded")})
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		h.SetSecret("HARNESS_TOKEN", "")
		time.Sleep(5 * time.Second)
		calls := h.Sim.Count(simulator.Filter{})
		waiting := h.Submit("k2", "example", `{"n":2}`) // its create must wait for the credential
		time.Sleep(25 * time.Second)
		for _, id := range []string{op.ID, waiting.ID} {
			now, err := h.Client.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if now.Done || now.NextLook == nil {
				t.Errorf("without a credential: %s", now.Raw)
			}
		}
		want(t, "calls without a credential", h.Sim.Count(simulator.Filter{}), calls)
		h.SetSecret("HARNESS_TOKEN", harness.Token)
		for _, id := range []string{op.ID, waiting.ID} {
			want(t, "state", await(h, id, 3*time.Minute, time.Second).State, "succeeded")
		}
		invariants(t, h, op.ID, waiting.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 2)
	})

	// A secret that cannot be put into a header is as good as none: the create
	// rests, and nothing is permitted that would not leave.
	variant(t, "credential that cannot be sent", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.StepsPerRead("running", "succeeded")})
		h.SetSecret("HARNESS_TOKEN", "of two\nlines")
		op := h.Submit("k", "example", `{"n":1}`)
		time.Sleep(20 * time.Second)
		now := h.Wait(op.ID, 0, "create_pending")
		if !strings.Contains(now.Because, "credential_missing") {
			t.Errorf("the reason for people is %q", now.Because)
		}
		want(t, "permits", len(factsOf(h, op.ID, "create.attempted")), 0)
		rests := factsOf(h, op.ID, "step.deferred")
		if len(rests) == 0 || !strings.Contains(rests[0].Fields["detail"], "cannot stand in a header") {
			t.Errorf("rests: %+v", rests)
		}
		h.SetSecret("HARNESS_TOKEN", harness.Token)
		want(t, "state", await(h, op.ID, 3*time.Minute, time.Second).State, "succeeded")
		want(t, "jobs", len(h.Sim.Jobs()), 1)
		invariants(t, h, op.ID)
	})

	// Where a credential's file lies is no business of callers.
	variant(t, "credential file that is not there", func(t *testing.T) {
		const path = "/no-such-directory/of-the-operator/key"
		h := harness.New(t, harness.Options{Credentials: filed("example", []string{"default: {credential: file:" + path + "}"})})
		h.Mount(simulator.Example, "example", simulator.Options{})
		op := h.Submit("k", "example", `{"n":1}`)
		time.Sleep(5 * time.Second)
		rests := factsOf(h, op.ID, "step.deferred")
		if len(rests) == 0 || !strings.Contains(rests[0].Fields["detail"], "credential file:[path]: ") {
			t.Errorf("rests: %+v", rests)
		}
		now, err := h.Client.Get(t.Context(), op.ID)
		if err != nil {
			t.Fatal(err)
		}
		if story := h.Story(op.ID) + string(now.Raw); strings.Contains(story, "no-such-directory") {
			t.Errorf("the path is shown:\n%s", story)
		}
	})

	variant(t, "until the credentials file names another", func(t *testing.T) {
		h := harness.New(t, harness.Options{
			Credentials: filed("example", []string{"default: {credential: env:STALE}"}),
			Secrets:     map[string]string{"STALE": "stale", "FRESH": "fresh"},
		})
		o := simulator.Options{Plan: simulator.Steps(10*time.Second, "running", "succeeded"), Auth: simulator.Auth{Bearer: "stale"}}
		m := open(h, simulator.Example, "example", o)
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		o.Auth = simulator.Auth{Bearer: "fresh", WrongStatus: 401}
		m.Configure(o)
		time.Sleep(30 * time.Second)
		now := h.Wait(op.ID, 0, "observing")
		if now.Problem == nil || now.Problem.Class != "unauthorized" {
			t.Errorf("the problem shown is %+v", now.Problem)
		}
		refused(t, h, op.ID, "401")
		h.SetCredentials(filed("example", []string{"default: {credential: env:FRESH}"}))
		now = h.Wait(op.ID, 2*time.Minute)
		want(t, "state", now.State, "succeeded")
		if now.Problem != nil {
			t.Errorf("a problem that is over is still shown: %+v", now.Problem)
		}
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})

	// The same of the other calls: a result that is not authorised is not a
	// result that is gone, and a look-up that is not authorised is no proof that
	// there is no job.
	variant(t, "result", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{}, simulator.On(simulator.Result, simulator.FirstOfJob(4), simulator.Reply(401)))
		op := h.Submit("k", "example", `{"n":1}`)
		done := await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", done.State, "succeeded")
		failed := factsOf(h, op.ID, "result.failed")
		want(t, "refused collections", len(failed), 4)
		for _, e := range failed {
			want(t, "class", e.Fields["class"], "unauthorized")
		}
		invariants(t, h, op.ID)
	})
	variant(t, "look-up", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{},
			simulator.On(simulator.Create, simulator.Nth(1), simulator.DropAnswer{}),
			simulator.On(simulator.List, simulator.Match{To: 4}, simulator.Reply(401)))
		op := h.Submit("k", "example-lookup", `{"n":1}`)
		done := await(h, op.ID, 20*time.Minute, time.Second)
		want(t, "state", done.State, "succeeded")
		want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
		failed := 0
		for _, e := range factsOf(h, op.ID, "lookup.answered") {
			if e.Fields["outcome"] == "failed" {
				want(t, "class", e.Fields["class"], "unauthorized")
				failed++
			}
		}
		want(t, "refused look-ups", failed, 4)
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})

	variant(t, "for ever", func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		o := simulator.Options{Plan: simulator.Steps(10*time.Second, "running", "succeeded")}
		m := h.Mount(simulator.Example, "example", o)
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Result: "3m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		h.Wait(op.ID, time.Minute, "observing")
		o.Auth = simulator.Auth{Bearer: "another-token"} // 403
		m.Configure(o)
		op = await(h, op.ID, 5*time.Minute, time.Second)
		want(t, "state", op.State, "result_timed_out")
		if late := op.Since.Sub(op.Started) - 3*time.Minute; late < 0 || late > 3*time.Second {
			t.Errorf("ended %s after the deadline", late)
		}
		if op.Problem == nil {
			t.Fatal("no problem is shown")
		}
		want(t, "reason", op.Reason, "result_deadline")
		want(t, "why", op.Problem.Class, "unauthorized")
		if !strings.Contains(op.Because, "not authorised") {
			t.Errorf("the reason for people is %q", op.Because)
		}
		refused(t, h, op.ID, "403")
		want(t, "terminal", op.Terminal, false)
		invariants(t, h, op.ID)
	})
}

// refused checks that the reads that failed are in the history, all with the
// status, and that there were several.
func refused(t *testing.T, h *harness.House, id, status string) {
	t.Helper()
	failed := factsOf(h, id, "observation.failed")
	if len(failed) < 3 {
		t.Errorf("%d reads were refused, want more\n%s", len(failed), h.Story(id))
	}
	for _, e := range failed {
		want(t, "status of the refused read", e.Fields["status"], status)
		want(t, "class of the refused read", e.Fields["class"], "unauthorized")
	}
}

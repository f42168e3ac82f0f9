package cases_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-22: the job has succeeded but its result is not there yet.
func TestFC22ResultComesLater(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")},
			simulator.On(simulator.Result, simulator.FirstOfJob(2), simulator.Reply(404)),
			simulator.On(simulator.Result, simulator.NthOfJob(3), simulator.ReplyEmpty(200)))
		op := h.Submit("k", "example", `{"n":1}`)
		for end := time.Now().Add(time.Minute); !op.Done && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			var err error
			if op, err = h.Client.Get(t.Context(), op.ID); err != nil {
				t.Fatal(err)
			}
			if (op.State == "succeeded" || op.Result != nil) && h.Sim.Count(simulator.Filter{Call: simulator.Result}) < 4 {
				t.Fatalf("succeeded without a result: %s", op.Raw)
			}
			if !op.Done {
				_, err := h.Client.Result(t.Context(), op.ID)
				want(t, "code while it is not there", problemOf(t, err).Code, "result_not_ready")
			}
		}
		want(t, "state", op.State, "succeeded")
		want(t, "failed fetches in the history", len(factsOf(h, op.ID, "result.failed")), 3)
		want(t, "collected", len(factsOf(h, op.ID, "result.collected")), 1)
		if op.Result == nil || op.Result.Size == 0 {
			t.Errorf("result: %s", op.Raw)
		}
		if body := resultOf(t, h, op.ID); len(body) == 0 {
			t.Error("the result is empty")
		}
		fetches := h.Sim.Requests(simulator.Filter{Call: simulator.Result})
		want(t, "fetches", len(fetches), 4)
		for i, least := range map[int]time.Duration{1: 900 * time.Millisecond, 2: 1800 * time.Millisecond, 3: 3600 * time.Millisecond} {
			if gap := fetches[i].At.Sub(fetches[i-1].At); gap < least || gap > 2*least {
				t.Errorf("wait before fetch %d is %s, want %s or a little more", i+1, gap, least)
			}
		}
		noEmptyPayload(t, h)
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})
}

// FC-22: the limit of the retries.
func TestFC22ResultNeverComes(t *testing.T) {
	for name, fault := range map[string]simulator.Fault{
		"empty": simulator.ReplyEmpty(200), "hangs": simulator.DelayBefore(time.Hour), "not there": simulator.Reply(404),
	} {
		variant(t, name, func(t *testing.T) { neverComes(t, fault) })
	}
}

func neverComes(t *testing.T, fault simulator.Fault) {
	h := harness.New(t, harness.Options{})
	h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "succeeded")},
		simulator.On(simulator.Result, simulator.Always(), fault))
	op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
		Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Collect: "2m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	collecting := h.Wait(op.ID, time.Minute, "result_collecting")
	op = await(h, op.ID, 4*time.Minute, time.Second)
	want(t, "state", op.State, "result_unavailable")
	want(t, "reason", op.Reason, "collect_deadline")
	if late := op.Since.Sub(collecting.Since) - 2*time.Minute; late < 0 || late > 3*time.Second {
		t.Errorf("ended %s after the limit", late)
	}
	want(t, "collected", len(factsOf(h, op.ID, "result.collected")), 0)
	noEmptyPayload(t, h)
	invariants(t, h, op.ID)
}

// FC-22, where failed jobs may have output: trouble with fetching it does not
// hide why the job failed.
func TestFC22FailedWithoutOutput(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: edited(t, "example", "promises:\n", "promises:\n  partial_results: true\n")})
		plan := simulator.Steps(time.Second, "running", "failed")
		plan.Code, plan.Message = "Q1", "no room"
		h.Mount(simulator.Example, "example", simulator.Options{Plan: plan}, simulator.On(simulator.Result, simulator.Always(), simulator.Reply(404)))
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: []byte(`{"n":1}`), Deadlines: &client.Deadlines{Collect: "20s"},
		})
		if err != nil {
			t.Fatal(err)
		}
		op = await(h, op.ID, 2*time.Minute, time.Second)
		want(t, "state", op.State, "failed")
		if op.Problem == nil || op.Problem.Code != "Q1" || op.Problem.Message != "no room" {
			t.Errorf("problem: %+v\n%s", op.Problem, h.Story(op.ID))
		}
		if n := len(factsOf(h, op.ID, "result.failed")); n < 2 {
			t.Errorf("%d fetches failed in the history", n)
		}
		invariants(t, h, op.ID)
	})
}

// noEmptyPayload checks that no body of zero bytes was stored.
func noEmptyPayload(t *testing.T, h *harness.House) {
	t.Helper()
	sum := sha256.Sum256(nil)
	if _, err := h.Store.Last(t.Context(), journal.Payloads, "payloads."+hex.EncodeToString(sum[:])); !errors.Is(err, journal.ErrNoMessage) {
		t.Errorf("an empty payload is stored, or cannot be told: %v", err)
	}
}

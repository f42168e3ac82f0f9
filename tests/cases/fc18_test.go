package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-18: every operation has a result deadline.
func TestFC18DefaultDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")})
		op := h.Submit("k", "example", `{"n":1}`)
		// docs/CONTRACTS.md: 24h unless the contract or the caller says otherwise.
		if op.Deadlines.Result == nil || !op.Deadlines.Result.Equal(op.Started.Add(24*time.Hour)) {
			t.Fatalf("the record shows result deadline %v for a start at %v", op.Deadlines.Result, op.Started)
		}
		intent := factsOf(h, op.ID, "intent.recorded")
		want(t, "intents", len(intent), 1)
		want(t, "stored deadline", intent[0].Fields["deadline_result"], "1 day")
		h.Wait(op.ID, time.Minute, "observing")
		// The service is down for most of the day, which is quicker to play.
		h.Stop()
		time.Sleep(24*time.Hour - 2*time.Minute)
		h.Start()
		want(t, "state before the deadline", h.Wait(op.ID, time.Minute, "observing").State, "observing")
		op = await(h, op.ID, 3*time.Minute, time.Second)
		want(t, "state", op.State, "result_timed_out")
		want(t, "reason", op.Reason, "result_deadline")
		if late := op.Since.Sub(op.Started) - 24*time.Hour; late < 0 || late > 3*time.Second {
			t.Errorf("ended %s after the deadline", late)
		}
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})
}

// FC-18: a deadline that is over or beyond the maximum is refused before
// anything is stored or sent.
func TestFC18RefusedDeadlines(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{})
		for _, wish := range []string{"0", "0s", "-1s", "-0s", "-5d", "1999-12-31T23:59:59Z", "2000-01-01T00:00:00Z", "365000d", "8760000h", "3000-01-01T00:00:00Z", "2199-01-01T00:00:00Z", "2000-01-01T01:00:00", "31d"} {
			for _, which := range []string{"result", "create", "cancel", "collect"} {
				if wish == "31d" && which != "result" {
					continue
				}
				a := ask(t, h, "POST", "/v1/operations", `{"provider":"example","params":{},"deadlines":{"`+which+`":"`+wish+`"}}`, "Idempotency-Key", `"k-`+which+wish+`"`)
				want(t, which+" "+wish+": status", a.status, 422)
				want(t, which+" "+wish+": media type", a.header.Get("Content-Type"), "application/problem+json")
				if !strings.Contains(a.body, `"/deadlines/`+which+`"`) {
					t.Errorf("%s %s: the problem does not name the field: %s", which, wish, a.body)
				}
			}
		}
		time.Sleep(time.Minute)
		want(t, "calls to the provider", h.Sim.Count(simulator.Filter{}), 0)
		if m, err := h.Store.Last(t.Context(), journal.Ledger, "facts.>"); err == nil {
			t.Errorf("a fact was stored: %s", m.Subject)
		}
		list, err := h.Client.List(t.Context(), client.Filter{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("%d operations, %v", len(list.Items), err)
		}
		invariants(t, h)
	})
}

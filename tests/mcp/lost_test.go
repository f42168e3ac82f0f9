package mcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// forgetful is an agent that hears every second answer only, and follows the retry
// rules: what it did not hear it asks again, in the same words.
type forgetful struct {
	*raw
	calls, lost int
}

// heard is what the agent needs of an operation.
type heard struct {
	ID       string
	State    string
	Version  uint64
	Original int `json:"original_status"`
}

func (f *forgetful) call(tool, arguments string) heard {
	f.t.Helper()
	var document heard
	for range 10 {
		r := f.ask("tools/call", tool, fmt.Sprintf(`"name": %q, "arguments": %s`, tool, arguments))
		if f.calls++; f.calls%2 == 1 {
			f.lost++ // the service did it, and nobody heard
			continue
		}
		var result struct {
			Structured json.RawMessage `json:"structuredContent"`
			IsError    bool
		}
		if r.Error != nil || json.Unmarshal(r.Result, &result) != nil || result.IsError {
			f.t.Fatalf("%s %s: %s %+v", tool, arguments, r.Result, r.Error)
		}
		if err := json.Unmarshal(result.Structured, &document); err != nil {
			f.t.Fatal(err)
		}
		return document
	}
	f.t.Fatal("no answer is ever heard")
	return document
}

// One operation for each intent, one job for each operation and one decision for
// each choice, although every second answer is lost.
func TestEverySecondAnswerIsLost(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")})
		h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")})
		h.Mount(simulator.Example, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		f := &forgetful{raw: &raw{t: t, h: h, key: h.Bearer, meta: declaresNone}}
		ids := map[string]bool{}
		submit := func(key, provider string) string {
			op := f.call("submit_operation", fmt.Sprintf(`{"idempotency_key": %q, "provider": %q, "params": {"correlation": %[1]q}}`, key, provider))
			if op.Original != 202 { // what was heard is the answer to the second try
				t.Errorf("%s: the first answer was %d", key, op.Original)
			}
			ids[op.ID] = true
			return op.ID
		}
		for i := range 5 {
			if op := f.call("wait_operation", fmt.Sprintf(`{"id": %q, "wait_seconds": 50}`, submit(fmt.Sprintf("good-%d", i), "example"))); op.State != "succeeded" {
				t.Errorf("%s is %s", op.ID, op.State)
			}
		}
		cancelled := submit("cancelled", "example-lookup")
		h.Wait(cancelled, time.Minute, "observing")
		if op := f.call("cancel_operation", fmt.Sprintf(`{"id": %q, "idempotency_key": "c"}`, cancelled)); op.Original != 202 {
			t.Errorf("the wish to cancel: %+v", op)
		}
		if op := f.call("wait_operation", fmt.Sprintf(`{"id": %q, "wait_seconds": 50}`, cancelled)); op.State != "cancelled" {
			t.Errorf("%s is %s\n%s", op.ID, op.State, h.Story(op.ID))
		}
		stopped := submit("stopped", "example-ask")
		op := f.call("wait_operation", fmt.Sprintf(`{"id": %q, "wait_seconds": 50}`, stopped))
		if op = f.call("decide_operation", fmt.Sprintf(`{"id": %q, "idempotency_key": "d", "version": %d, "kind": "abandon"}`, stopped, op.Version)); op.State != "abandoned" || op.Original != 201 {
			t.Errorf("decided: %+v", op)
		}
		if len(ids) != 7 || f.lost < 15 {
			t.Errorf("%d operations for 7 intents, %d answers lost", len(ids), f.lost)
		}
		if d := h.Sim.Duplicates(); len(d) > 0 || len(h.Sim.Jobs()) != 7 {
			t.Errorf("%d jobs, more than one for %v", len(h.Sim.Jobs()), d)
		}
		for id := range ids {
			once := map[string]int{}
			for _, e := range h.Timeline(id) {
				name, _, _ := strings.Cut(strings.TrimPrefix(e.Type, "dev.counterfoil."), ".v")
				once[name]++
			}
			for _, name := range []string{"intent.recorded", "cancel.requested", "decision.made"} {
				if once[name] > 1 {
					t.Errorf("%s of %s is there %d times", name, id, once[name])
				}
			}
		}
	})
}

package cases_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-04: the same submit again while the first is being stored.
func TestFC04OverlappingSubmits(t *testing.T) {
	slow := func(s journal.Stream, m journal.Outgoing) {
		if s == journal.Ledger && strings.HasPrefix(kind(m), "intent.recorded") {
			time.Sleep(2 * time.Second)
		}
	}
	for name, k := range map[string]*hooks{
		"slow to store": {publish: func(_ context.Context, s journal.Stream, m journal.Outgoing) error { slow(s, m); return nil }},
		"slow to say":   {stored: func(s journal.Stream, m journal.Outgoing) error { slow(s, m); return nil }},
	} {
		variant(t, name, func(t *testing.T) {
			h := harness.New(t, harness.Options{Through: func(s journal.Store) journal.Store { return hookedStore{k, s} }})
			h.Mount(simulator.Example, "example", simulator.Options{})
			const callers = 3
			answers := make([]answer, callers)
			var all sync.WaitGroup
			begun := time.Now()
			for i := range callers {
				all.Go(func() {
					time.Sleep(time.Duration(i) * 500 * time.Millisecond)
					answers[i] = ask(t, h, "POST", "/v1/operations", `{"provider":"example","params":{"n":1}}`, "Idempotency-Key", `"k"`)
				})
			}
			all.Wait()
			if took := time.Since(begun); took < 2*time.Second {
				t.Errorf("all were answered after %s: the store was not slow, nothing overlapped", took)
			}
			id, fresh := operationIn(t, answers[0]), 0
			for i, a := range answers {
				// docs/BEHAVIOUR.md: each gets the operation, nobody a 409.
				if a.status < 200 || a.status > 299 || !strings.Contains(a.body, `"id":"`+id+`"`) {
					t.Errorf("answer %d: %d %s", i, a.status, a.body)
				}
				if a.header.Get("Idempotent-Replayed") != "true" {
					want(t, "status of the answer that is no replay", a.status, 202)
					fresh++
				}
			}
			want(t, "answers that are no replay", fresh, 1)
			want(t, "intents", len(factsOf(h, id, "intent.recorded")), 1)
			want(t, "state", h.Wait(id, time.Minute).State, "succeeded")
			list, err := h.Client.List(t.Context(), client.Filter{})
			if err != nil || len(list.Items) != 1 {
				t.Errorf("%d operations, %v", len(list.Items), err)
			}
			want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
			invariants(t, h, id)
		})
	}
}

// operationIn reads the operation's id in an answer.
func operationIn(t *testing.T, a answer) string {
	t.Helper()
	var op struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(a.body), &op); err != nil || op.ID == "" {
		t.Fatalf("no operation in %d %s: %v", a.status, a.body, err)
	}
	return op.ID
}

// FC-04 for what changes an operation: the same cancel, and the same decision,
// again while the first is being stored. One fact, and nobody is told to come back.
func TestFC04OverlappingActs(t *testing.T) {
	for path, c := range map[string]struct{ fact, body, match string }{
		"cancel":    {"cancel.requested", `{"why":"not wanted"}`, ""},
		"decisions": {"decision.made", `{"kind":"extend","deadline":"result","until":"2h"}`, `"v1"`},
	} {
		variant(t, path, func(t *testing.T) {
			slow := &hooks{publish: func(_ context.Context, s journal.Stream, m journal.Outgoing) error {
				if s == journal.Ledger && strings.HasPrefix(kind(m), c.fact) {
					time.Sleep(2 * time.Second)
				}
				return nil
			}}
			h := harness.New(t, harness.Options{NoPoller: true, Through: func(s journal.Store) journal.Store { return hookedStore{slow, s} }})
			h.Mount(simulator.Example, "example", simulator.Options{})
			id := h.Submit("k", "example", params("k")).ID
			answers := make([]answer, 3)
			var all sync.WaitGroup
			for i := range answers {
				all.Go(func() {
					time.Sleep(time.Duration(i) * 500 * time.Millisecond)
					header := []string{"Idempotency-Key", `"once"`}
					if c.match != "" {
						header = append(header, "If-Match", c.match)
					}
					answers[i] = ask(t, h, "POST", "/v1/operations/"+id+"/"+path, c.body, header...)
				})
			}
			all.Wait()
			for i, a := range answers {
				if a.status < 200 || a.status > 299 || !strings.Contains(a.body, `"id":"`+id+`"`) {
					t.Errorf("answer %d: %d %s", i, a.status, a.body)
				}
			}
			want(t, "facts", len(factsOf(h, id, c.fact)), 1)
		})
	}
}

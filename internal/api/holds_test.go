package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// TestEveryStepOfAHold: the process dies at a write, which was done or was not.
// Afterwards the hold is in force or is not, whole, and the operator who asks
// again has it once.
func TestEveryStepOfAHold(t *testing.T) {
	for failing, step := range []string{"reason", "fact"} {
		for _, kind := range []memory.Kind{memory.Undone, memory.Done, memory.Late} {
			t.Run(fmt.Sprintf("%s %d", step, kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.clock.real = true
					dead, writes := false, 0
					faulty := memory.Inject(h.store, func(c memory.Call) memory.Fault {
						if dead {
							return memory.Fault{Kind: memory.Unavailable}
						}
						if c.Op == memory.OpPublish {
							if writes++; writes == failing+1 {
								dead = true
								return memory.Fault{Kind: kind}
							}
						}
						return memory.Fault{}
					})
					header := map[string]string{"Idempotency-Key": "hold-1"}
					const body = `{"provider":"example","scope":"creates","why":"an incident"}`
					w := h.over(faulty).do("alice", "POST", "/v1/holds", header, body)
					var p ingest.Problem
					if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 503 || p.Code != ingest.CodeUnavailable || !p.Retryable {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
					faulty.Land(t.Context())
					list, err := h.over(h.store).journal.Holds(t.Context())
					stored := failing == 1 && kind != memory.Undone
					if err != nil || (len(list) == 1) != stored {
						t.Fatalf("after the crash %v, %v", list, err)
					}
					w = h.do("alice", "POST", "/v1/holds", header, body)
					if want := map[bool]int{true: 200, false: 201}[stored]; w.Code != want {
						t.Errorf("the retry answered %d, want %d: %s", w.Code, want, w.Body)
					}
					if got := w.Header().Get("Idempotent-Replayed"); (got == "true") != stored {
						t.Errorf("replayed: %q", got)
					}
					if !strings.Contains(w.Body.String(), "an incident") {
						t.Errorf("no reason: %s", w.Body)
					}
					facts, err := h.journal.HoldFacts(t.Context(), "example")
					if err != nil || len(facts) != 1 {
						t.Fatalf("%d facts, %v; want 1", len(facts), err)
					}
					if list, err := h.journal.Holds(t.Context()); err != nil || len(list) != 1 || list[0].Scope != events.HoldCreates {
						t.Errorf("in force: %v, %v", list, err)
					}
				})
			})
		}
	}
}

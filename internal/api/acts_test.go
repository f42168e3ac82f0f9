package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// TestEveryStepOfAnAct: the store goes away at each write of what changes an
// operation, having done it or not. The retry with the same key leaves one fact,
// and a later one is a replay that names the first status.
func TestEveryStepOfAnAct(t *testing.T) {
	for _, act := range []struct {
		path, body, other, match string
		fact                     events.Type
		status                   int
		state                    string // of the job; "" for none seen
		writes                   int
	}{
		{"cancel", `{"why":"not wanted"}`, `{"why":"in the way"}`, "", events.TypeCancelRequested, 202, "", 2},
		{"pause", `{"why":"a look"}`, `{}`, "", events.TypeOperationPaused, 200, "", 2},
		{"decisions", `{"kind":"abandon","why":"given up"}`, `{"kind":"extend","deadline":"result","until":"3h"}`, `"v3"`, events.TypeDecisionMade, 201, "", 2},
		{"input", `{"question":"q4","input":{"answer":"yes"}}`, `{"question":"q4","input":{"answer":"no"}}`, "", events.TypeInputSubmitted, 202, "input_required", 2},
		// The first write is the claim of the job.
		{"cleanup", `{"why":"not needed any more"}`, `{"why":"of another job","job_id":"job-2"}`, "", events.TypeCleanupRequested, 202, "failed", 3},
	} {
		for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done} {
			for failing := 1; failing <= act.writes; failing++ {
				t.Run(fmt.Sprintf("%s kind %d at write %d", act.path, kind, failing), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := newHarness(t)
						h.clock.real = true
						armed, dead, writes := false, false, 0
						faulty := memory.Inject(h.store, func(c memory.Call) memory.Fault {
							if dead {
								return memory.Fault{Kind: memory.Unavailable}
							}
							if armed && (c.Op == memory.OpPublish || c.Op == memory.OpBatch) {
								if writes++; writes == failing {
									dead = true
									return memory.Fault{Kind: kind}
								}
							}
							return memory.Fault{}
						})
						h.over(faulty).do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{}}`)
						h.play("attempted")
						h.play("accepted job-1")
						if act.state != "" {
							h.play("observed " + act.state)
						}
						// The key that named the operation may name this, too.
						header := map[string]string{"Idempotency-Key": "k", "If-Match": act.match}
						at := "/v1/operations/" + h.op + "/" + act.path
						armed = true
						w := h.do("alice", "POST", at, header, act.body)
						var p ingest.Problem
						if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 503 || p.Code != ingest.CodeUnavailable || p.RetryWith != ingest.RetrySameKey {
							t.Fatalf("%d %s", w.Code, w.Body)
						}
						armed, dead = false, false // the store is back
						stored := facts(h, act.fact) == 1
						if stored != (failing == act.writes && kind == memory.Done) {
							t.Fatalf("stored: %v", stored)
						}
						for try := range 2 {
							w = h.do("alice", "POST", at, header, act.body)
							status, replay := act.status, stored || try > 0
							if replay {
								status = http.StatusOK
							}
							var v ingest.View
							if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != status || (w.Header().Get("Idempotent-Replayed") == "true") != replay ||
								(v.OriginalStatus == act.status) != replay {
								t.Errorf("try %d answered %d, want %d: %s", try, w.Code, status, w.Body)
							}
							if n := facts(h, act.fact); n != 1 {
								t.Errorf("%d facts", n)
							}
						}
						w = h.do("alice", "POST", at, header, act.other)
						if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Code != ingest.CodeKeyReused || p.Operation != h.op || p.RetryWith != ingest.RetryNever {
							t.Errorf("another request under the key: %d %s", w.Code, w.Body)
						}
					})
				})
			}
		}
	}
}

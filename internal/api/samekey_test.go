package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// TestAnsweredKeysNeverAct: whoever asks for what is so already has that as the answer, and
// has it for ever. Once it is so no more the same request under the same key acts no more
// than any other replay does, another request under it is refused, and another key acts. The
// store goes away at each write of the answered request, having done it or not.
func TestAnsweredKeysNeverAct(t *testing.T) {
	type harnessed func(*harness)
	ask := func(key, path, body string) harnessed {
		return func(h *harness) {
			h.t.Helper()
			if w := h.do("alice", "POST", strings.ReplaceAll(path, "{op}", h.op), map[string]string{"Idempotency-Key": key}, body); w.Code >= 300 {
				h.t.Fatalf("%s under %s: %d %s", path, key, w.Code, w.Body)
			}
		}
	}
	play := func(lines ...string) harnessed {
		return func(h *harness) {
			h.t.Helper()
			for _, line := range lines {
				h.play(line)
			}
		}
	}
	const (
		op    = "/v1/operations/{op}"
		hold  = `{"provider":"example","scope":"creates","why":"an incident"}`
		holds = "/v1/holds"
	)
	for _, c := range []struct {
		name, path, body, other string
		before, undone          []harnessed // it is so already; it is so no more
		status                  int         // of the answer
		stands                  func(*harness) string
		want, acted             string // what stands after undone, and once another key has asked again
		writes                  int
	}{
		{
			"cancel", op + "/cancel", `{"why":"not wanted"}`, `{"why":"in the way"}`,
			[]harnessed{play("accepted job-1"), ask("first", op+"/cancel", "")},
			[]harnessed{func(h *harness) {
				h.fact(&events.CancelAttempted{Attempt: events.Attempt{Number: 1, NotAfter: h.clock.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "1/run"}})
				h.fact(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAcknowledged, Call: events.Call{LeftAt: h.clock.Now(), Status: 202}})
				time.Sleep(time.Hour)
				h.play("passed cancel")
				s, err := h.journal.Current(h.t.Context(), h.op)
				if err != nil {
					h.t.Fatal(err)
				}
				header := map[string]string{"Idempotency-Key": "go-on", "If-Match": fmt.Sprintf(`"v%d"`, s.Facts)}
				if w := h.do("alice", "POST", "/v1/operations/"+h.op+"/decisions", header, `{"kind":"resume"}`); w.Code != 201 {
					h.t.Fatalf("%s: %d %s", s.Phase, w.Code, w.Body)
				}
			}},
			202, func(h *harness) string { return string(h.view("alice", h.op).State) }, "observing", "cancel_requested", 2,
		},
		{
			"pause", op + "/pause", `{"why":"a look"}`, `{}`,
			[]harnessed{ask("first", op+"/pause", "")},
			[]harnessed{ask("undo", op+"/resume", "")},
			200, func(h *harness) string { return fmt.Sprint(h.view("alice", h.op).Paused != nil) }, "false", "true", 2,
		},
		{
			"resume", op + "/resume", `{"why":"it is well"}`, `{}`,
			nil,
			[]harnessed{ask("undo", op+"/pause", "")},
			200, func(h *harness) string { return fmt.Sprint(h.view("alice", h.op).Paused != nil) }, "true", "false", 2,
		},
		{
			"hold", holds, hold, strings.Replace(hold, "creates", "all", 1),
			[]harnessed{ask("first", holds, strings.Replace(hold, "an incident", "the first", 1))},
			[]harnessed{ask("undo", holds+"/release", `{"provider":"example","why":"it is over"}`)},
			200, func(h *harness) string {
				list, err := h.journal.Holds(h.t.Context())
				if err != nil {
					h.t.Fatal(err)
				}
				return fmt.Sprint(len(list))
			}, "0", "1", 2,
		},
		{
			// Its job is another one by then.
			"cleanup", op + "/cleanup", `{"why":"not needed"}`, `{"why":"of another job","job_id":"job-2"}`,
			[]harnessed{play("accepted job-1", "observed failed"), ask("first", op+"/cleanup", ""), func(h *harness) { h.sent(events.CallDone) }},
			nil,
			200, func(h *harness) string { return fmt.Sprint(facts(h, events.TypeCleanupAttempted)) }, "1", "1", 2,
		},
	} {
		for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done} {
			for failing := 1; failing <= c.writes; failing++ {
				t.Run(fmt.Sprintf("%s kind %d at write %d", c.name, kind, failing), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := newHarness(t)
						h.clock.real = true
						armed, dead, writes := false, false, 0
						h.over(memory.Inject(h.store, func(call memory.Call) memory.Fault {
							if dead {
								return memory.Fault{Kind: memory.Unavailable}
							}
							if armed && (call.Op == memory.OpPublish || call.Op == memory.OpBatch) {
								if writes++; writes == failing {
									dead = true
									return memory.Fault{Kind: kind}
								}
							}
							return memory.Fault{}
						}))
						h.submitted("alice", "k")
						h.play("attempted")
						for _, step := range c.before {
							step(h)
						}
						request := func(key, body string) (*answerOf, ingest.View) {
							w := h.do("alice", "POST", strings.ReplaceAll(c.path, "{op}", h.op), map[string]string{"Idempotency-Key": key}, body)
							got, view := &answerOf{status: w.Code}, ingest.View{}
							if err := json.Unmarshal(w.Body.Bytes(), got); err != nil {
								t.Fatal(err)
							}
							if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil && w.Code < 300 {
								t.Fatal(err)
							}
							if (w.Header().Get("Idempotent-Replayed") == "true") != (view.OriginalStatus != 0) {
								t.Errorf("%v %s", w.Header(), w.Body)
							}
							return got, view
						}
						was := c.stands(h)
						armed = true
						if got, _ := request("second", c.body); got.status != 503 {
							t.Fatalf("while the store is away: %+v", got)
						}
						armed, dead = false, false
						if got, view := request("second", c.body); got.status != c.status && view.OriginalStatus != c.status || c.stands(h) != was {
							t.Fatalf("answered %+v and %d, %s stands", got, view.OriginalStatus, c.stands(h))
						}
						for _, step := range c.undone {
							step(h)
						}
						if got := c.stands(h); got != c.want {
							t.Fatalf("%s stands, want %s", got, c.want)
						}
						n := h.stored()
						if got, view := request("second", c.body); got.status != 200 || view.OriginalStatus != c.status {
							t.Errorf("sent again: %+v, original status %d", got, view.OriginalStatus)
						}
						if got, _ := request("second", c.other); got.Code != ingest.CodeKeyReused {
							t.Errorf("another request under the key: %+v", got)
						}
						if got := c.stands(h); got != c.want || h.stored() != n {
							t.Errorf("%s stands, and %d messages more are stored", got, h.stored()-n)
						}
						request("third", c.body)
						if got := c.stands(h); got != c.acted {
							t.Errorf("another key: %s stands, want %s", got, c.acted)
						}
					})
				})
			}
		}
	}
}

// TestCancelledTakesNoKeys: a cancel of what is cancelled is answered and not recorded, since
// nothing can act on it any more.
func TestCancelledTakesNoKeys(t *testing.T) {
	h := newHarness(t)
	h.submitted("alice", "k")
	if v, _, status := h.tell("alice", "cancel", "c1", ""); status != 200 || v.State != projections.PhaseCancelled {
		t.Fatalf("%d %+v", status, v)
	}
	n := h.stored()
	for range 2 {
		if v, _, status := h.tell("alice", "cancel", "c2", ""); status != 200 || v.State != projections.PhaseCancelled || v.OriginalStatus != 0 || h.stored() != n {
			t.Errorf("%d %+v", status, v)
		}
	}
}

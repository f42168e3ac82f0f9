package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func (h *harness) view(as, id string) (view ingest.View) {
	h.t.Helper()
	w := h.request(as, "GET", "/v1/operations/"+id, nil, "")
	if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil || w.Code != 200 {
		h.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return view
}

func naming(member, id, more string) string {
	return fmt.Sprintf(`{"provider":"example","params":{"kind":"render"},%q:%q%s}`, member, id, more)
}

// TestLinked: an operation may name another once that has a job or has ended, both show
// it, and overlap is allowed by those alone who say so.
func TestLinked(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		free  bool
		state projections.Phase
	}{
		{"pending", nil, false, projections.PhaseCreatePending},
		{"create open", []string{"attempted"}, false, projections.PhaseCreatePending},
		{"create unknown", []string{"attempted", "lost"}, false, projections.PhaseCreateUnknown},
		{"quarantined", []string{"attempted", "lost", "passed result"}, false, projections.PhaseQuarantined},
		{"accepted", []string{"attempted", "accepted job-1"}, true, projections.PhaseAccepted},
		{"failed", []string{"attempted", "accepted job-1", "observed failed"}, true, projections.PhaseFailed},
		{"cancelled before", []string{"cancel"}, true, projections.PhaseCancelled},
		{"abandoned in doubt", []string{"attempted", "lost", "abandon"}, false, projections.PhaseAbandoned},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			old := h.submitted("alice", "old")
			for _, line := range c.lines {
				switch line {
				case "passed result":
					h.play("advance 25h")
					h.play(line)
				case "cancel":
					h.do("alice", "POST", "/v1/operations/"+old+"/cancel", map[string]string{"Idempotency-Key": "c"}, "")
				case "abandon":
					v := h.view("alice", old)
					h.do("alice", "POST", "/v1/operations/"+old+"/decisions", map[string]string{"Idempotency-Key": "d", "If-Match": fmt.Sprintf(`"v%d"`, v.Version)}, `{"kind":"abandon"}`)
				default:
					h.play(line)
				}
			}
			before := h.view("alice", old)
			if before.State != c.state {
				t.Fatalf("it is %s", before.State)
			}
			for member, shown := range map[string]func(ingest.View) []string{
				"replaces": func(v ingest.View) []string { return v.ReplacedBy }, "retry_of": func(v ingest.View) []string { return v.RetriedBy },
			} {
				facts, intents := h.stored(), h.intents()
				dry, _, _ := h.submit("alice", "new-"+member, naming(member, old, `,"validate_only":true`))
				if n := h.stored(); n != facts {
					t.Errorf("%d messages are stored", n-facts)
				}
				w, made, p := h.submit("alice", "new-"+member, naming(member, old, ""))
				if !c.free {
					if w.Code != 409 || dry.Code != 409 || p.Code != ingest.CodeMayStillCreate || p.Operation != old || p.State != c.state || p.Errors[0].Field != "/"+member || !p.Retryable {
						t.Errorf("%s: %d %s", member, w.Code, w.Body)
					}
					if n := h.intents(); len(shown(h.view("alice", old))) > 0 || n != intents {
						t.Errorf("%s: it was linked, %d intents", member, n)
					}
					w, made, _ = h.submit("alice", "new-"+member, naming(member, old, `,"allow_overlap":true`))
				}
				if w.Code != 202 || made.Replaces+made.RetryOf != old {
					t.Fatalf("%s: %d %s", member, w.Code, w.Body)
				}
				after := h.view("alice", old)
				if got := shown(after); len(got) != 1 || got[0] != made.ID || after.State != before.State || after.NextPollAfter != before.NextPollAfter {
					t.Errorf("%s: %+v", member, after)
				}
				more := ""
				if !c.free {
					more = `,"allow_overlap":true`
				}
				if w, again, _ := h.submit("alice", "new-"+member, naming(member, old, more)); w.Code != 200 || again.ID != made.ID {
					t.Errorf("%s: its replay: %d %s", member, w.Code, w.Body)
				}
				if line := h.do("alice", "GET", "/v1/operations/"+old+"/timeline", nil, "").Body.String(); !strings.Contains(line, made.ID) || strings.Contains(line, "overlap_allowed") == c.free {
					t.Errorf("%s: %s", member, line)
				}
			}
			h.project() // history has it, too
			if v := h.view("alice", old); len(v.ReplacedBy) != 1 || len(v.RetriedBy) != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// What is not the caller's cannot be named, and what makes no sense is refused.
func TestLinkedRefused(t *testing.T) {
	h := newHarness(t)
	old := h.submitted("alice", "old")
	for _, c := range []struct{ as, body, field string }{
		{"bob", naming("replaces", old, ""), "/replaces"},
		{"bob", naming("retry_of", old, `,"allow_overlap":true`), "/retry_of"},
		{"alice", naming("replaces", "op_none", ""), "/replaces"},
		{"alice", naming("replaces", "no.id", ""), "/replaces"},
		{"alice", naming("retry_of", old, `,"replaces":"`+old+`"`), "/retry_of"},
		{"alice", naming("session", "s", `,"allow_overlap":true`), "/allow_overlap"},
	} {
		if w, _, p := h.submit(c.as, "k", c.body); w.Code != 422 || p.Code != ingest.CodeInvalid || p.Errors[0].Field != c.field {
			t.Errorf("%s %s: %d %s", c.as, c.body, w.Code, w.Body)
		}
	}
	if n := h.intents(); n != 1 {
		t.Errorf("%d intents", n)
	}
	header := map[string]string{"ce-specversion": "1.0", "ce-type": ingest.EventSubmit, "ce-source": "/agent", "ce-id": "1"}
	if w := h.do("alice", "POST", eventPath, header, naming("replaces", old, "")); w.Code != 409 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Two items of a batch may name one operation, and those of an atomic one are linked with
// the whole or not at all.
func TestLinkedBatch(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		h := newHarness(t)
		old := h.submitted("alice", "old")
		item := `{"operation":` + naming("replaces", old, "") + `}`
		status, _, v, p := h.batch("alice", "b", batchOf(mode, goodItem, item, item))
		if mode == "atomic" && (status != 409 || p.Code != ingest.CodeMayStillCreate || h.intents() != 1) || mode == "independent" && v.Refused != 2 {
			t.Errorf("%s: %d %+v %+v", mode, status, v, p)
		}
		h.op = old
		h.play("attempted")
		h.play("accepted job-1")
		_, _, v, p = h.batch("alice", "b", batchOf(mode, goodItem, item, item))
		if v.Refused != 0 || h.intents() != 4 {
			t.Fatalf("%s: %+v %+v", mode, v, p)
		}
		got := h.view("alice", old).ReplacedBy
		if len(got) != 2 || strings.Join(got, " ") != v.Items[1].Operation.ID+" "+v.Items[2].Operation.ID && mode == "atomic" {
			t.Errorf("%s: %v", mode, got)
		}
	}
}

// TestLinkedStoreFails: the store goes away at each write, having done it or not. The
// link is on both or on none, and the same request makes it both.
func TestLinkedStoreFails(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 2; failing++ { // the payload and the facts
			t.Run(fmt.Sprintf("kind %d at write %d", kind, failing), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.clock.real = true
					store := h.dying(kind, failing)
					old := h.submitted("alice", "old")
					h.play("attempted")
					h.play("accepted job-1")
					store.arm()
					if w, _, p := h.submit("alice", "new", naming("replaces", old, "")); w.Code != 503 || p.RetryWith != ingest.RetrySameKey {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
					store.back(t.Context())
					if links := len(h.view("alice", old).ReplacedBy); links != h.intents()-1 {
						t.Errorf("%d links and %d intents", links, h.intents())
					}
					w, made, _ := h.submit("alice", "new", naming("replaces", old, ""))
					if got := h.view("alice", old).ReplacedBy; w.Code > 202 || h.intents() != 2 || len(got) != 1 || got[0] != made.ID {
						t.Errorf("%d %s: %v, %d intents", w.Code, w.Body, got, h.intents())
					}
				})
			})
		}
	}
}

// Requests under several keys that name one operation at once are all linked, while that
// moves on.
func TestLinkedOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		old := h.submitted("alice", "old")
		h.play("attempted")
		h.play("accepted job-1")
		var group sync.WaitGroup
		for i := range 6 {
			for range 2 {
				group.Go(func() {
					w := h.request("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": fmt.Sprint("n", i)}, naming("retry_of", old, ""))
					if w.Code > 202 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
		}
		group.Wait()
		if got := h.view("alice", old).RetriedBy; len(got) != 6 || h.intents() != 7 {
			t.Errorf("%v, %d intents", got, h.intents())
		}
	})
}

// Two processes at once, with batches among the requests: all are linked.
func TestLinkedFromTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		old := h.submitted("alice", "old")
		h.play("attempted")
		h.play("accepted job-1")
		other := h.twin()
		var group sync.WaitGroup
		ask := func(one *harness, key, target, body string) {
			group.Go(func() {
				if w := one.request("alice", "POST", target, map[string]string{"Idempotency-Key": key}, body); w.Code > 202 {
					t.Errorf("%s: %d %s", key, w.Code, w.Body)
				}
			})
		}
		for i := range 30 {
			for _, one := range []*harness{h, other} { // under the same key, too
				ask(one, fmt.Sprint("n", i), "/v1/operations", naming("retry_of", old, ""))
				if i%10 == 0 {
					ask(one, fmt.Sprint("b", i), "/v1/operations:batch", `{"mode":"atomic","items":[{"operation":`+naming("retry_of", old, "")+`},{"operation":`+naming("replaces", old, "")+`}]}`)
				}
			}
		}
		group.Wait()
		links := map[events.Link]bool{} // an operation shows the newest alone
		lines, err := h.journal.Timeline(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if f, ok := l.Entry.Event.Fact.(*events.OperationLinked); ok {
				for _, link := range f.Links {
					if links[link] {
						t.Errorf("%s is linked twice", link.Operation)
					}
					links[link] = true
				}
			}
		}
		if len(links) != 36 || h.intents() != 37 {
			t.Errorf("%d links, %d intents", len(links), h.intents())
		}
	})
}

// What is beaten at every try says so, by a code that says that nothing is recorded, and
// goes through with the same key once the operation is left alone.
func TestMovingAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true
		old := h.submitted("alice", "old")
		h.play("attempted")
		h.play("accepted job-1")
		straight, moving, hooks := h.journal, false, 0
		h.over(memory.Inject(h.store, func(c memory.Call) memory.Fault {
			if moving && c.Op == memory.OpBatch {
				hooks++
				s, err := straight.Current(context.Background(), old)
				if err == nil {
					_, _, err = straight.Append(context.Background(), s, events.Event{ID: fmt.Sprint("hook", hooks), Source: "/webhooks/1", Fact: &events.WebhookReceived{Scheme: "test"}})
				}
				if err != nil {
					t.Error(err)
				}
			}
			return memory.Fault{}
		}))
		for target, body := range map[string]string{
			"/v1/operations":        naming("retry_of", old, ""),
			"/v1/operations:batch":  `{"mode":"atomic","items":[{"operation":` + naming("replaces", old, "") + `}]}`,
			"/v1/operations:cancel": `{"mode":"atomic","items":[{"id":"` + old + `"}]}`,
		} {
			moving = true
			before := h.intents()
			w := h.do("alice", "POST", target, map[string]string{"Idempotency-Key": "k"}, body)
			var p ingest.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 409 || p.Code != ingest.CodeMoving || !p.Retryable || p.RetryWith != ingest.RetrySameKey || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: %d %s", target, w.Code, w.Body)
			}
			if h.intents() != before {
				t.Errorf("%s recorded something", target)
			}
			moving = false
			if w := h.do("alice", "POST", target, map[string]string{"Idempotency-Key": "k"}, body); w.Code != 202 {
				t.Errorf("%s: %d %s", target, w.Code, w.Body)
			}
		}
	})
}

package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// cancels asks and reads the answer, or the problem.
func (h *harness) cancels(as, key, body string) (status int, replayed bool, view ingest.BatchView, p ingest.Problem) {
	h.t.Helper()
	w := h.do(as, "POST", "/v1/operations:cancel", map[string]string{"Idempotency-Key": key}, body)
	var err error
	if w.Code < 300 {
		err = json.Unmarshal(w.Body.Bytes(), &view)
	} else {
		err = json.Unmarshal(w.Body.Bytes(), &p)
	}
	if err != nil {
		h.t.Fatalf("%v: %d %s", err, w.Code, w.Body)
	}
	return w.Code, w.Header().Get("Idempotent-Replayed") == "true", view, p
}

func cancelOf(mode, why string, ids ...string) string {
	var items []string
	for _, id := range ids {
		items = append(items, fmt.Sprintf(`{"id":%q}`, id))
	}
	if why != "" {
		why = fmt.Sprintf(`"why":%q,`, why)
	}
	return fmt.Sprintf(`{"mode":%q,%s"items":[%s]}`, mode, why, strings.Join(items, ","))
}

// TestCancelBatchModes: of a pending operation, one with a job, one that has ended and one
// of another principal, as the mode says.
func TestCancelBatchModes(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		h := newHarness(t)
		foreign := h.submitted("bob", "b")
		ended := h.submitted("alice", "ended")
		for _, line := range []string{"attempted", "accepted job-1", "observed failed"} {
			h.play(line)
		}
		running := h.submitted("alice", "running")
		h.play("attempted")
		h.play("accepted job-2")
		pending := h.submitted("alice", "pending")
		before := h.stored()
		status, _, v, p := h.cancels("alice", "c", cancelOf(mode, "enough", pending, running, ended, foreign))
		if mode == "atomic" {
			if status != 409 || p.Code != ingest.CodeAlreadyTerminal || len(p.Errors) != 2 || p.Errors[0].Field != "/items/2" || p.Errors[1].Field != "/items/3" {
				t.Errorf("%d %+v", status, p)
			}
			if n := h.stored(); n != before {
				t.Errorf("%d messages were stored", n-before)
			}
			status, _, v, p = h.cancels("alice", "c", cancelOf(mode, "enough", pending, running))
			if status != 202 || v.Recorded != 2 || fmt.Sprint(statuses(v)) != "[200 202]" {
				t.Errorf("%d %+v %+v", status, v, p)
			}
		} else if status != 200 || v.Recorded != 2 || v.Refused != 2 || fmt.Sprint(statuses(v)) != "[200 202 409 404]" || v.Items[3].Problem.Code != ingest.CodeNotFound || v.Transaction == "" {
			t.Errorf("%d %+v", status, v)
		}
		if a, b := h.view("alice", pending), h.view("alice", running); a.State != projections.PhaseCancelled || b.State != projections.PhaseCancelRequested {
			t.Errorf("%s: %s and %s", mode, a.State, b.State)
		}
		stored := h.stored()
		status, replayed, v, _ := h.cancels("alice", "c", cancelOf(mode, "enough", pending, running))
		if status != 200 || !replayed || v.Replayed != 2 || v.Items[1].Operation.OriginalStatus != 202 {
			t.Errorf("%s: %d %+v", mode, status, v)
		}
		// The same key of a cancel alone is the same wish, and another reason is another.
		if w := h.do("alice", "POST", "/v1/operations/"+running+"/cancel", map[string]string{"Idempotency-Key": "c"}, `{"why":"enough"}`); w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		status, _, v, p = h.cancels("alice", "c", cancelOf(mode, "other", pending))
		if mode == "atomic" && (status != 422 || p.Code != ingest.CodeKeyReused) || mode == "independent" && v.Items[0].Problem.Code != ingest.CodeKeyReused {
			t.Errorf("%s: %d %+v %+v", mode, status, v, p)
		}
		// What is wished already has its wish, and the other key is kept; what is cancelled
		// keeps none.
		if status, _, v, _ := h.cancels("alice", "d", cancelOf(mode, "", pending, running)); status > 202 || v.Refused != 0 {
			t.Errorf("%s: %d %+v", mode, status, v)
		}
		if n := h.stored(); n != stored+1 {
			t.Errorf("%s: %d messages more", mode, n-stored)
		}
	}
}

func TestCancelBatchRefused(t *testing.T) {
	h := newHarness(t)
	op := h.submitted("alice", "a")
	many := strings.Split(strings.TrimSuffix(strings.Repeat(op+"\n", ingest.MaxBatch+1), "\n"), "\n")
	for _, c := range []struct {
		body   string
		status int
		field  string
	}{
		{`{}`, 422, "/items"},
		{cancelOf("some", "", op), 422, "/mode"},
		{cancelOf("atomic", "", op, op), 422, "/items/1/id"},
		{cancelOf("atomic", "", "no.id"), 422, "/items/0/id"},
		{`{"mode":"atomic","items":[{}]}`, 422, "/items/0/id"},
		{`{"mode":"atomic","items":[{"id":"` + op + `","if_match":"seven"}]}`, 422, "/items/0/if_match"},
		{`{"mode":"atomic","items":[{"id":"` + op + `","idempotency_key":" "}]}`, 422, "/items/0/idempotency_key"},
		{`{"items":[{"id":"` + op + `"}],"why":"` + strings.Repeat("x", ingest.MaxWhy+1) + `"}`, 422, "/why"},
		{cancelOf("atomic", "", many...), 413, "/items"},
		{`{"mode":"atomic","items":[{"id":"` + op + `","if_match":"v9"}]}`, 412, "/items/0"},
		{cancelOf("atomic", "", "op_none"), 404, "/items/0"},
	} {
		if status, _, _, p := h.cancels("alice", "c", c.body); status != c.status || p.Errors[0].Field != c.field {
			t.Errorf("%.80s: %d %+v", c.body, status, p)
		}
	}
	if status, _, _, p := h.cancels("submitter", "c", cancelOf("independent", "", op)); status != 403 || p.Code != ingest.CodeForbidden {
		t.Errorf("%d %+v", status, p)
	}
	// By itself each is refused alone, and stands in no other's way.
	other := h.submitted("alice", "other")
	mixed := `{"items":[{"id":"` + other + `"},{},{"id":""},{"id":null},{"id":"no.id"},{"id":"` + other + `"},{"id":"` + op + `","if_match":"seven"},{"id":"op_none","idempotency_key":" "}]}`
	status, _, v, _ := h.cancels("alice", "mixed", mixed)
	if status != 200 || v.Recorded != 1 || v.Refused != 7 || v.Items[0].Operation == nil || v.Items[0].Operation.Cancel == nil {
		t.Fatalf("%d %+v", status, v)
	}
	for i, field := range []string{"id", "id", "id", "id", "id", "if_match", "idempotency_key"} {
		if it := v.Items[i+1]; it.Status != 422 || it.Index != i+1 || it.Problem == nil || it.Problem.Errors[0].Field != fmt.Sprintf("/items/%d/%s", i+1, field) {
			t.Errorf("item %d: %+v", i+1, it)
		}
	}
	keyed := `{"items":[{"id":"` + op + `","idempotency_key":"own","if_match":"\"v1\""}]}`
	if _, _, v, _ := h.cancels("alice", "c", keyed); v.Recorded != 1 || v.Items[0].Key != "own" {
		t.Errorf("%+v", v)
	}
}

// TestCancelBatchStoreFails: the store goes away at each write of an atomic one, having
// done it or not. All wishes are recorded or none, and the same request makes that all.
func TestCancelBatchStoreFails(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 2; failing++ { // the reason and the wishes
			t.Run(fmt.Sprintf("kind %d at write %d", kind, failing), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.clock.real = true
					store := h.dying(kind, failing)
					list := []string{h.submitted("alice", "1"), h.submitted("alice", "2"), h.submitted("alice", "3")}
					body := cancelOf("atomic", "enough", list...)
					store.arm()
					if status, _, _, p := h.cancels("alice", "c", body); status != 503 || p.RetryWith != ingest.RetrySameKey {
						t.Fatalf("%d %+v", status, p)
					}
					store.back(t.Context())
					cancelled := func() (n int) {
						for _, id := range list {
							if h.view("alice", id).State == projections.PhaseCancelled {
								n++
							}
						}
						return n
					}
					n := cancelled()
					status, replayed, v, p := h.cancels("alice", "c", body)
					if n != 0 && n != 3 || replayed != (n == 3) || status > 202 || v.Refused > 0 || cancelled() != 3 {
						t.Errorf("with %d: %d %+v %+v", n, status, v, p)
					}
				})
			})
		}
	}
}

// Requests with one key that overlap, while others ask for single ones, leave one wish on
// each.
func TestCancelBatchOverlaps(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.clock.real = true
			list := []string{h.submitted("alice", "1"), h.submitted("alice", "2"), h.submitted("alice", "3")}
			var group sync.WaitGroup
			for range 6 {
				group.Go(func() {
					w := h.request("alice", "POST", "/v1/operations:cancel", map[string]string{"Idempotency-Key": "c"}, cancelOf(mode, "enough", list...))
					var v ingest.BatchView
					if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code > 202 || v.Refused > 0 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			group.Wait()
			for _, id := range list {
				if text := h.request("alice", "GET", "/v1/operations/"+id+"/timeline", nil, "").Body.String(); strings.Count(text, `"type":"cancel.requested.v1"`) != 1 || h.view("alice", id).State != projections.PhaseCancelled {
					t.Errorf("%s", text)
				}
			}
		})
	}
}

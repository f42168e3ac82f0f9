package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

const goodItem = `{"operation":{"provider":"example","params":{"kind":"render"}}}`

func batchOf(mode string, items ...string) string {
	return fmt.Sprintf(`{"mode":%q,"items":[%s]}`, mode, strings.Join(items, ","))
}

// intents counts the operations of the ledger.
func (h *harness) intents() int {
	n := 0
	for from := uint64(1); ; {
		m, err := h.store.Next(context.Background(), journal.Ledger, ">", from)
		if err != nil {
			return n
		}
		if slices.Contains(m.Header["ce-type"], events.TypePrefix+string(events.TypeIntentRecorded)) {
			n++
		}
		from = m.Sequence + 1
	}
}

// batch asks and reads the answer, or the problem.
func (h *harness) batch(as, key, body string) (status int, replayed bool, view ingest.BatchView, p ingest.Problem) {
	h.t.Helper()
	w := h.do(as, "POST", "/v1/operations:batch", map[string]string{"Idempotency-Key": key}, body)
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

func statuses(v ingest.BatchView) (out []int) {
	for _, item := range v.Items {
		out = append(out, item.Status)
	}
	return out
}

func ids(v ingest.BatchView) (out []string) {
	for _, item := range v.Items {
		id := ""
		if item.Operation != nil {
			id = item.Operation.ID
		}
		out = append(out, id)
	}
	return out
}

// Five items, the third invalid, the fourth for no provider: as the mode says, and the
// answer says what was done.
func TestBatchModes(t *testing.T) {
	bad, none := `{"operation":{"provider":"example","params":{"kind":"no such"},"max_cost":"-1"}}`, `{"operation":{"provider":"nobody","params":{}}}`
	items := []string{goodItem, goodItem, bad, none, goodItem}
	for _, mode := range []string{`{"items":[` + strings.Join(items, ",") + `]}`, batchOf("independent", items...)} {
		h := newHarness(t)
		status, replayed, v, _ := h.batch("alice", "b", mode)
		if status != 200 || replayed || v.Mode != ingest.Independent || v.Transaction == "" || fmt.Sprint(statuses(v)) != "[202 202 422 422 202]" || v.Recorded != 3 || v.Refused != 2 {
			t.Errorf("%d %+v", status, v)
		}
		if p := v.Items[2].Problem; p == nil || p.Code != ingest.CodeInvalid || p.Errors[0].Field != "/items/2/operation/max_cost" {
			t.Errorf("%+v", p)
		}
		if p := v.Items[3].Problem; p == nil || p.Code != ingest.CodeUnknownProvider || v.Items[3].Index != 3 {
			t.Errorf("%+v", p)
		}
		if n := h.intents(); n != 3 {
			t.Errorf("%d intents", n)
		}
		// The whole again, with what was refused corrected: only that is recorded.
		first := ids(v)
		status, replayed, v, _ = h.batch("alice", "b", batchOf("independent", goodItem, goodItem, goodItem, goodItem, goodItem))
		if status != 200 || replayed || fmt.Sprint(statuses(v)) != "[200 200 202 202 200]" || v.Items[0].Operation.OriginalStatus != 202 {
			t.Errorf("%d %v", status, statuses(v))
		}
		if again := ids(v); again[0] != first[0] || again[1] != first[1] || again[4] != first[4] {
			t.Errorf("%v, was %v", again, first)
		}
		if status, replayed, v, _ = h.batch("alice", "b", batchOf("independent", goodItem, goodItem, goodItem, goodItem, goodItem)); status != 200 || !replayed || v.Replayed != 5 {
			t.Errorf("%d replayed %t %v", status, replayed, statuses(v))
		}
		if n := h.intents(); n != 5 {
			t.Errorf("%d intents", n)
		}
	}
	h := newHarness(t)
	status, _, _, p := h.batch("alice", "b", batchOf("atomic", items...))
	fields := ""
	for _, e := range p.Errors {
		fields += e.Field + " "
	}
	if status != 422 || !strings.Contains(fields, "/items/2/operation/max_cost") || !strings.Contains(fields, "/items/3/operation/provider") || strings.Contains(fields, "/items/1") {
		t.Errorf("%d %+v", status, p)
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	status, replayed, v, _ := h.batch("alice", "b", batchOf("atomic", goodItem, goodItem, goodItem))
	if status != 202 || replayed || v.Mode != ingest.Atomic || fmt.Sprint(statuses(v)) != "[202 202 202]" {
		t.Errorf("%d %+v", status, v)
	}
	if status, replayed, v, _ = h.batch("alice", "b", batchOf("atomic", goodItem, goodItem, goodItem)); status != 200 || !replayed || v.Replayed != 3 {
		t.Errorf("%d %+v", status, v)
	}
	if n := h.intents(); n != 3 {
		t.Errorf("%d intents", n)
	}
}

// What is no batch is refused whole, and so is one of another size, mode or content
// under the key.
func TestBatchRefused(t *testing.T) {
	h := newHarness(t)
	many := strings.Split(strings.TrimSuffix(strings.Repeat(goodItem+"\n", ingest.MaxBatch+1), "\n"), "\n")
	for _, c := range []struct {
		body   string
		status int
		code   ingest.Code
		field  string
	}{
		{batchOf("atomic"), 422, ingest.CodeInvalid, "/items"},
		{`{}`, 422, ingest.CodeInvalid, "/items"},
		{batchOf("atomic", many...), 413, ingest.CodeBatchTooLarge, "/items"},
		{batchOf("some", goodItem), 422, ingest.CodeInvalid, "/mode"},
		{batchOf("atomic", `{"idempotency_key":"k","operation":{}}`), 422, ingest.CodeInvalid, "/items/0/idempotency_key"},
		{batchOf("atomic", `{"key":"k","operation":{}}`), 422, ingest.CodeInvalid, "/items/0/key"},
		{batchOf("atomic", `{}`), 422, ingest.CodeInvalid, "/items/0/operation"},
		{batchOf("atomic", `{"operation":{"provider":"example","provider":"example","params":{}}}`), 400, ingest.CodeDuplicateKey, ""},
		{batchOf("atomic", `{"operation":{"provider":"example","params":{"n":1e400}}}`), 422, ingest.CodeNumberOutOfRange, ""},
	} {
		status, _, _, p := h.batch("alice", "b", c.body)
		if status != c.status || p.Code != c.code || c.field != "" && (len(p.Errors) == 0 || p.Errors[0].Field != c.field) {
			t.Errorf("%.80s: %d %+v", c.body, status, p)
		}
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	// What is recorded in a place stays what it is, whatever else is said beside it: the
	// same is a replay, another is refused, and another mode or size does nothing anew.
	other := strings.Replace(goodItem, "render", "upscale", 1)
	for _, mode := range []string{"independent", "atomic"} {
		another := map[string]string{"independent": "atomic", "atomic": "independent"}[mode]
		status, _, first, p := h.batch("alice", mode, batchOf(mode, goodItem, other, goodItem))
		if status > 202 || first.Recorded != 3 {
			t.Fatalf("%d %+v %+v", status, first, p)
		}
		for _, body := range []string{batchOf(another, goodItem, other, goodItem), batchOf(mode, goodItem), batchOf(another, goodItem, other)} {
			status, replayed, v, _ := h.batch("alice", mode, body)
			if status != 200 || !replayed || v.Recorded > 0 || !slices.Equal(ids(v), ids(first)[:len(v.Items)]) {
				t.Errorf("%s: %d %+v", body, status, v)
			}
		}
		for _, body := range []string{batchOf(mode, goodItem, goodItem, goodItem), batchOf(another, other, goodItem)} {
			status, _, v, p := h.batch("alice", mode, body)
			if v.Mode == ingest.Independent || status == 422 {
				if status == 422 && (p.Code != ingest.CodeKeyReused || p.Operation == "") || status != 422 && (v.Refused == 0 || v.Recorded > 0) {
					t.Errorf("%s: %d %+v %+v", body, status, v, p)
				}
				continue
			}
			t.Errorf("%s: %d %+v", body, status, v)
		}
		// Another principal's key is another key.
		if status, _, v, _ := h.batch("bob", mode, batchOf(mode, other)); status > 202 || v.Recorded != 1 {
			t.Errorf("%d %+v", status, v)
		}
	}
	if n := h.intents(); n != 8 {
		t.Errorf("%d intents", n)
	}
	// A submit alone has another place than any item, whatever its key.
	alone := h.submitted("alice", "alone")
	if _, _, v, _ := h.batch("alice", "alone", batchOf("atomic", goodItem)); v.Recorded != 1 || ids(v)[0] == alone {
		t.Errorf("%+v", v)
	}
	foreign := strings.Replace(goodItem, "example", "replicate", 1)
	if status, _, _, p := h.batch("guest", "g", batchOf("atomic", goodItem, foreign)); status != 403 || p.Code != ingest.CodeAccountNotAllowed || p.Errors[0].Field != "/items/1/operation/account" {
		t.Errorf("%d %+v", status, p)
	}
	if _, _, v, _ := h.batch("guest", "g", batchOf("independent", goodItem, foreign)); fmt.Sprint(statuses(v)) != "[202 403]" {
		t.Errorf("%+v", v)
	}
	h.full = true
	if status, _, _, p := h.batch("alice", "no-room", batchOf("atomic", goodItem)); status != 503 || p.Code != ingest.CodeStorageLow {
		t.Errorf("%d %+v", status, p)
	}
	if status, replayed, _, _ := h.batch("alice", "atomic", batchOf("atomic", goodItem, other, goodItem)); status != 200 || !replayed {
		t.Errorf("a replay without room: %d", status)
	}
}

// TestBatchStoreFails: the store goes away at each write of an atomic batch, having
// done it or not. All are recorded or none, and the same request makes that all.
func TestBatchStoreFails(t *testing.T) {
	item := func(i int) string { return strings.Replace(goodItem, `"render"`, fmt.Sprintf(`"render","n":%d`, i), 1) }
	body := batchOf("atomic", item(1), item(2), item(3))
	for _, kind := range []memory.Kind{memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 4; failing++ { // three payloads and the batch
			t.Run(fmt.Sprintf("kind %d at write %d", kind, failing), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t)
					h.clock.real = true
					store := h.dying(kind, failing)
					store.arm()
					status, _, _, p := h.batch("alice", "b", body)
					if status != 503 || p.Code != ingest.CodeUnavailable || !p.Retryable || p.RetryWith != ingest.RetrySameKey {
						t.Fatalf("%d %+v", status, p)
					}
					n := h.intents()
					if n != 0 && n != 3 {
						t.Fatalf("%d intents", n)
					}
					store.back(t.Context())
					n = h.intents()
					status, replayed, v, p := h.batch("alice", "b", body)
					if replayed != (n == 3) || status != map[bool]int{false: 202, true: 200}[n == 3] || len(v.Items) != 3 {
						t.Errorf("with %d recorded: %d %+v %+v", n, status, v, p)
					}
					if n := h.intents(); n != 3 {
						t.Errorf("%d intents", n)
					}
				})
			})
		}
	}
}

// Requests with one key that overlap make one set of operations, whichever of them is
// answered as new.
func TestBatchOverlaps(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.clock.real = true
			var mu sync.Mutex
			all := map[string]int{}
			recorded := 0
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					w := h.do("alice", "POST", "/v1/operations:batch", map[string]string{"Idempotency-Key": "b"}, batchOf(mode, goodItem, goodItem, goodItem))
					var v ingest.BatchView
					if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != http.StatusOK && w.Code != http.StatusAccepted || v.Refused > 0 {
						t.Errorf("%d %s", w.Code, w.Body)
					}
					mu.Lock()
					defer mu.Unlock()
					all[fmt.Sprint(ids(v))]++
					recorded += v.Recorded
				})
			}
			group.Wait()
			if len(all) != 1 || recorded != 3 || h.intents() != 3 {
				t.Errorf("%s: %v, %d answered as new", mode, all, recorded)
			}
		})
	}
}

// A body of a submit that stands where its element should be is told what an element has.
func TestBatchElementNamesItsMembers(t *testing.T) {
	h := newHarness(t)
	status, _, _, p := h.batch("alice", "k", batchOf("atomic", goodItem, `{"provider":"example","params":{}}`))
	if status != 422 || len(p.Errors) != 1 || p.Errors[0].Field != "/items/1/provider" || p.Errors[0].Code != ingest.FieldUnknown ||
		!slices.Equal(p.Errors[0].Allowed, []string{"operation"}) {
		t.Errorf("%d %+v", status, p)
	}
	if n := h.intents(); n != 0 {
		t.Errorf("%d operations are recorded", n)
	}
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

const plain = `{"provider":"example","params":{"kind":"render"}}`

func limits(w *httptest.ResponseRecorder) string { return w.Header().Get("RateLimit") }

func (h *harness) several(as, key, body string) (w *httptest.ResponseRecorder, view ingest.BatchView) {
	h.t.Helper()
	w = h.do(as, "POST", "/v1/operations:batch", map[string]string{"Idempotency-Key": key}, body)
	_ = json.Unmarshal(w.Body.Bytes(), &view) // or it is a problem
	return w, view
}

func items(n int) string {
	return strings.TrimSuffix(strings.Repeat(`{"operation":`+plain+`},`, n), ",")
}

// A principal begins as many operations as its quota has and is refused one more, which
// burns nothing: neither what is wrong, nor what is only looked at, nor what was there
// before counts, and the same key goes through when it is time.
func TestSubmitRate(t *testing.T) {
	h := newHarness(t)
	h.quotas = ingest.Quotas{Submits: 3}
	for i := range 3 {
		w, _, _ := h.submit("alice", fmt.Sprint("k", i), plain)
		want := fmt.Sprintf(`"submit";r=%d;t=20`, 2-i)
		if w.Code != 202 || limits(w) != want || w.Header().Get("RateLimit-Policy") != `"submit";q=3;w=60, "open";q=1000000` {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		// Neither a bad request nor a validation takes any.
		for _, body := range []string{`{"provider":"example"}`, `{"validate_only":true,` + plain[1:]} {
			if w, _, _ := h.submit("alice", "other", body); limits(w) != want {
				t.Errorf("%s: %d %s", body, w.Code, limits(w))
			}
		}
	}
	before := h.stored()
	for _, body := range []string{plain, `{"validate_only":true,` + plain[1:]} {
		w, _, p := h.submit("alice", "k3", body)
		if w.Code != 429 || p.Code != ingest.CodeRateExceeded || !p.Retryable || p.RetryWith != ingest.RetrySameKey || w.Header().Get("Retry-After") != "20" || p.RetryAfter != 20 ||
			!slices.Equal(p.Violated, []ingest.Policy{ingest.PolicySubmit}) || !strings.Contains(w.Body.String(), `"violated-policies":["submit"]`) || limits(w) != `"submit";r=0;t=20` {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	if n := h.stored(); n != before {
		t.Errorf("a refusal stored %d messages", n-before)
	}
	// What is recorded is found, whatever the quota says.
	if w, _, _ := h.submit("alice", "k1", plain); w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" || limits(w) != `"submit";r=0;t=20` {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w, _, _ := h.submit("bob", "k", plain); w.Code != 202 {
		t.Errorf("another principal: %d %s", w.Code, w.Body)
	}
	h.play("advance 19s")
	if w, _, _ := h.submit("alice", "k3", plain); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	h.play("advance 1s")
	if w, _, _ := h.submit("alice", "k3", plain); w.Code != 202 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !slices.Equal(h.exceeded, []ingest.Policy{"submit", "submit"}) { // not that of validate_only
		t.Errorf("counted %v", h.exceeded)
	}
}

// What the store did not take, or is not known to have, uses nothing up: the same key goes
// through once it answers.
func TestNothingRecordedUsesNothing(t *testing.T) {
	for _, at := range []journal.Stream{journal.Payloads, journal.Ledger} {
		for _, body := range []string{plain, `{"mode":"atomic","items":[` + items(1) + `]}`} {
			target := "/v1/operations"
			if body != plain {
				target += ":batch"
			}
			h := newHarness(t)
			h.quotas = ingest.Quotas{Submits: 1}
			dead := true
			h.over(memory.Inject(h.store, func(c memory.Call) memory.Fault {
				if dead && c.Stream == at && (c.Op == memory.OpPublish || c.Op == memory.OpBatch) {
					return memory.Fault{Kind: memory.Unavailable}
				}
				return memory.Fault{}
			}))
			if w := h.do("alice", "POST", target, map[string]string{"Idempotency-Key": "k"}, body); w.Code != 503 || limits(w) != `"submit";r=1` {
				t.Errorf("%s without %s: %d %v", target, at, w.Code, w.Header())
			}
			dead = false
			if w := h.do("alice", "POST", target, map[string]string{"Idempotency-Key": "k"}, body); w.Code != 202 {
				t.Errorf("%s: %d %s", target, w.Code, w.Body)
			}
		}
	}
}

// A batch takes for what is new in it. For all or none it takes all or nothing, and one that
// no wait would let in is told so; else each item is for itself.
func TestBatchQuotas(t *testing.T) {
	h := newHarness(t)
	h.quotas = ingest.Quotas{Submits: 4}
	if w, _ := h.several("alice", "a", `{"mode":"atomic","items":[`+items(3)+`]}`); w.Code != 202 || limits(w) != `"submit";r=1;t=15` {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if w, _ := h.several("alice", "a", `{"mode":"atomic","items":[`+items(3)+`]}`); w.Code != 200 || limits(w) != `"submit";r=1;t=15` {
		t.Errorf("the same again: %d %v", w.Code, w.Header())
	}
	for _, dry := range []string{"", `"validate_only":true,`} {
		w, _ := h.several("alice", "b", `{`+dry+`"mode":"atomic","items":[`+items(2)+`]}`)
		if w.Code != 429 || w.Header().Get("Retry-After") != "15" || limits(w) != `"submit";r=1;t=15` {
			t.Errorf("%s: %d %v %s", dry, w.Code, w.Header(), w.Body)
		}
		if w, _ := h.several("alice", "c", `{`+dry+`"mode":"atomic","items":[`+items(5)+`]}`); w.Code != 413 || !strings.Contains(w.Body.String(), `"values":{"items":5,"limit":4}`) {
			t.Errorf("%s: %d %s", dry, w.Code, w.Body)
		}
	}
	if w, dry := h.several("alice", "d", `{"validate_only":true,"items":[`+items(3)+`]}`); w.Code != 200 || dry.Valid != 1 || dry.Refused != 2 || dry.Items[2].Status != 429 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, wet := h.several("alice", "d", `{"items":[`+items(3)+`]}`)
	if w.Code != 200 || wet.Recorded != 1 || wet.Refused != 2 || limits(w) != `"submit";r=0;t=15` {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	h.play("advance 30s")
	if w, wet := h.several("alice", "d", `{"items":[`+items(3)+`]}`); w.Code != 200 || wet.Recorded != 2 || wet.Replayed != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An event is an intent like any other.
func TestEventQuotas(t *testing.T) {
	h := newHarness(t)
	h.quotas = ingest.Quotas{Submits: 1}
	header := func(id string) map[string]string {
		return map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/a", "ce-type": ingest.EventSubmit}
	}
	for id, want := range map[string]int{"1": 202} {
		if w := h.do("alice", "POST", "/v1/events", header(id), plain); w.Code != want || limits(w) != `"submit";r=0;t=60` {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	if w := h.do("alice", "POST", "/v1/events", header("2"), plain); w.Code != 429 || w.Header().Get("Retry-After") != "60" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	event := func(id string) string {
		return `{"specversion":"1.0","id":"` + id + `","source":"/a","type":"` + ingest.EventSubmit + `","data":` + plain + `}`
	}
	w := h.do("alice", "POST", "/v1/events", map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "["+event("1")+","+event("2")+"]")
	var out ingest.EventsView
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 || limits(w) == "" {
		t.Fatalf("%v %d %v %s", err, w.Code, w.Header(), w.Body)
	}
	if out.Items[0].Status != 200 || out.Items[1].Status != 429 || out.Items[1].Problem.RetryAfter != 60 {
		t.Errorf("%s", w.Body)
	}
}

// Many at once, in all ways, do not begin more than the quota has.
func TestRateHoldsAtOnce(t *testing.T) {
	h := newHarness(t)
	h.quotas = ingest.Quotas{Submits: 20}
	codes := make(chan int, 60)
	for i := range 60 {
		go func() {
			r := map[string]string{"Idempotency-Key": strconv.Itoa(i % 40)} // 20 keys twice
			codes <- h.request("alice", "POST", "/v1/operations", r, plain).Code
		}()
	}
	count := map[int]int{}
	for range 60 {
		count[<-codes]++
	}
	if count[202] != 20 || count[200]+count[429] != 40 {
		t.Errorf("%v", count)
	}
}

// openOf gives what capabilities say is left of the quota of open operations; -1: not known.
func (h *harness) openOf(as string) int {
	h.t.Helper()
	w := h.do(as, "GET", "/v1/capabilities", nil, "")
	var c ingest.Capabilities
	if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || len(c.Quotas) != 2 || c.Quotas[1].Policy != ingest.PolicyOpen {
		h.t.Fatalf("%v %s", err, w.Body)
	}
	if c.Quotas[1].Remaining == nil {
		return -1
	}
	return *c.Quotas[1].Remaining
}

// The number of open operations is that of the history, and of what was begun here and is
// not in it yet: with two processes over one store, and after a restart.
func TestOpenOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true // the bubble's
		h.quotas = ingest.Quotas{Open: 3}
		other := h.twin()
		var stops []context.CancelFunc
		run := func(s *ingest.Service) {
			ctx, stop := context.WithCancel(t.Context())
			go s.RunOpen(ctx)
			stops = append(stops, stop)
		}
		defer func() {
			for _, stop := range stops {
				stop()
			}
			synctest.Wait()
		}()
		if n := h.openOf("alice"); n != -1 {
			t.Errorf("%d left before anything was counted", n)
		}
		old := h.submitted("alice", "k0")
		run(h.service)
		synctest.Wait()
		if n := h.openOf("alice"); n != 2 { // it is in no history yet
			t.Errorf("%d left", n)
		}
		h.project()
		synctest.Wait()
		run(other.service)
		synctest.Wait()
		if a, b := h.openOf("alice"), other.openOf("alice"); a != 2 || b != 2 {
			t.Errorf("%d and %d left", a, b)
		}
		h.submitted("alice", "k1")
		other.submitted("alice", "k2")
		// Each knows of its own at once, and of the other's once the history has it.
		if a, b := h.openOf("alice"), other.openOf("alice"); a != 1 || b != 1 {
			t.Errorf("%d and %d left", a, b)
		}
		h.project()
		synctest.Wait()
		for _, one := range []*harness{h, other} {
			for _, body := range []string{plain, `{"validate_only":true,` + plain[1:]} {
				w, _, p := one.submit("alice", "k3", body)
				if w.Code != 429 || p.Code != ingest.CodeTooManyOpen || w.Header().Get("Retry-After") != "10" || !strings.HasSuffix(limits(w), `, "open";r=0`) || p.Values["open"] != float64(3) {
					t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
				}
			}
		}
		if w, _ := h.several("alice", "b", `{"mode":"atomic","items":[`+items(4)+`]}`); w.Code != 413 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// One that is begun anew counts all of it.
		again := h.twin()
		run(again.service)
		synctest.Wait()
		if w, _, _ := again.submit("alice", "k3", plain); w.Code != 429 {
			t.Errorf("after a restart: %d", w.Code)
		}
		if w, _, _ := again.submit("bob", "k3", plain); w.Code != 202 {
			t.Errorf("another principal: %d", w.Code)
		}
		h.op = old
		for _, line := range []string{"attempted", "accepted job-1", "observed failed", "project"} {
			h.play(line)
		}
		synctest.Wait()
		for _, one := range []*harness{h, other, again} {
			if n := one.openOf("alice"); n != 1 {
				t.Errorf("%d left after one has ended", n)
			}
		}
		if w, _, _ := h.submit("alice", "k3", plain); w.Code != 202 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// twin is another process over the same store, with the same keys.
func (h *harness) twin() *harness {
	h.t.Helper()
	t := &harness{t: h.t, clock: h.clock, store: h.store, quotas: h.quotas, ids: h.ids + "twin-", log: &bytes.Buffer{}, bearer: map[string]string{}}
	return t.over(h.store)
}

// The tag of capabilities says nothing of what is left.
func TestQuotasInCapabilities(t *testing.T) {
	h := newHarness(t)
	h.quotas = ingest.Quotas{Submits: 100}
	tag := func() string { return h.do("alice", "GET", "/v1/capabilities", nil, "").Header().Get("ETag") }
	first := tag()
	h.submitted("alice", "k")
	h.play("advance " + (10 * time.Millisecond).String())
	w := h.do("alice", "GET", "/v1/capabilities", nil, "")
	if !strings.Contains(w.Body.String(), `"quotas":[{"policy":"submit","limit":100,"window_s":60,"remaining":99,"more_in_s":1},{"policy":"open","limit":1000000}]`) {
		t.Errorf("%s", w.Body)
	}
	if w.Header().Get("ETag") != first {
		t.Error("what is left moves the tag")
	}
	if h.quotas.Submits = 99; tag() == first {
		t.Error("another limit has the same tag")
	}
	if w := h.do("", "GET", "/v1/capabilities", nil, ""); strings.Contains(w.Body.String(), `"quotas"`) {
		t.Errorf("without a key: %s", w.Body)
	}
}

// What a principal spends is bounded over a day: of all processes together, over a restart,
// and by no more than what is recorded.
func TestCostQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.clock.real = true // the bubble's
		ten, _ := contract.ParseDecimal("10")
		h.quotas = ingest.Quotas{Costs: map[string]contract.Decimal{"USD": ten}}
		other := h.twin()
		var stops []context.CancelFunc
		run := func(s *ingest.Service) {
			ctx, stop := context.WithCancel(t.Context())
			go s.RunCosts(ctx)
			stops = append(stops, stop)
		}
		defer func() {
			for _, stop := range stops {
				stop()
			}
			synctest.Wait()
		}()
		dollars := func(n int) string {
			return fmt.Sprintf(`{"provider":"example","params":{"copies":%d}}`, 4*n)
		}
		dry := func(body string) string { return `{"validate_only":true,` + body[1:] }
		refused := func(what string, w *httptest.ResponseRecorder, code ingest.Code, left string) {
			t.Helper()
			var p ingest.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Code != code || p.Status != w.Code || !slices.Equal(p.Violated, []ingest.Policy{"cost-USD"}) || left != "" && p.Values["left"] != left {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
			if after, err := strconv.Atoi(w.Header().Get("Retry-After")); (w.Code == 429) != (err == nil && after > 0) {
				t.Errorf("%s: Retry-After %q", what, w.Header().Get("Retry-After"))
			}
		}
		// While nobody knows what was spent no quota is exceeded: the first wait for it
		// together, and those after them no more.
		for _, body := range []string{dollars(4), dry(dollars(4))} {
			began := time.Now()
			for range 2 {
				w, _, p := h.submit("alice", "k", body)
				if w.Code != 503 || p.Code != ingest.CodeUnavailable || !p.Retryable || p.RetryWith != ingest.RetrySameKey || w.Header().Get("Retry-After") != "2" || p.Violated != nil {
					t.Errorf("while it is counted: %d %v %s", w.Code, w.Header(), w.Body)
				}
			}
			if waited := time.Since(began); body == dollars(4) != (waited == 5*time.Second) || waited > 5*time.Second {
				t.Errorf("%s: waited %s", body, waited)
			}
		}
		if w, v := h.several("alice", "b0", batchOf("independent", `{"operation":`+dollars(1)+`}`)); w.Code != 200 || v.Refused != 1 || v.Items[0].Problem.Code != ingest.CodeUnavailable {
			t.Errorf("a batch while it is counted: %d %s", w.Code, w.Body)
		}
		run(h.service)
		synctest.Wait()
		w, _, _ := h.submit("alice", "k", dollars(4))
		if w.Code != 202 || !strings.HasSuffix(limits(w), `, "cost-USD";r=6`) || !strings.HasSuffix(w.Header().Get("RateLimit-Policy"), `, "cost-USD";q=10;w=86400`) {
			t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		if w, _, _ := h.submit("alice", "k", dollars(4)); w.Code != 200 {
			t.Errorf("a replay: %d", w.Code)
		}
		// Who comes first after a start waits until it is counted, and hears what is so.
		run(other.service)
		w, _, _ = other.submit("alice", "x", dollars(7))
		refused("the first after a start", w, ingest.CodeCostQuota, "6")
		for _, one := range []*harness{h, other} {
			for _, body := range []string{dollars(7), dry(dollars(7))} {
				w, _, _ := one.submit("alice", "x", body)
				refused("more than is left", w, ingest.CodeCostQuota, "6")
			}
			w, _, _ := one.submit("alice", "x", dollars(11))
			refused("more than there is", w, ingest.CodeCostAboveQuota, "")
		}
		item := func(n int) string { return `{"operation":` + dollars(n) + `}` }
		w, _ = h.several("alice", "b", batchOf("atomic", item(5), item(2)))
		refused("a batch", w, ingest.CodeCostQuota, "6")
		for _, body := range []string{dry(batchOf("independent", item(4), item(4), item(2))), batchOf("independent", item(4), item(4), item(2))} {
			if _, v := other.several("alice", "b", body); v.Refused != 1 {
				t.Errorf("%+v", v)
			}
		}
		synctest.Wait()
		if w, _, _ := h.submit("bob", "k", dollars(10)); w.Code != 202 {
			t.Errorf("another principal: %d %s", w.Code, w.Body)
		}
		again := h.twin()
		run(again.service)
		for _, one := range []*harness{h, other, again} {
			w, _, _ := one.submit("alice", "y", dollars(3))
			refused("after a restart", w, ingest.CodeCostQuota, "")
		}
		time.Sleep(ingest.CostWindow + 10*time.Minute)
		if w, _, _ := again.submit("alice", "y", dollars(10)); w.Code != 202 {
			t.Errorf("the next day: %d %s", w.Code, w.Body)
		}
	})
}

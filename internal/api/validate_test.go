package api

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// submit asks with the key and reads the operation, or the problem.
func (h *harness) submit(as, key, body string) (w *httptest.ResponseRecorder, view ingest.View, p ingest.Problem) {
	h.t.Helper()
	w = h.do(as, "POST", "/v1/operations", map[string]string{"Idempotency-Key": key}, body)
	var err error
	if w.Code < 300 {
		err = json.Unmarshal(w.Body.Bytes(), &view)
	} else {
		err = json.Unmarshal(w.Body.Bytes(), &p)
	}
	if err != nil {
		h.t.Fatalf("%v: %d %s", err, w.Code, w.Body)
	}
	return w, view, p
}

// TestValidateOnly: what validate_only shows is what the submit then records, it stores
// nothing, and it uses no key up.
func TestValidateOnly(t *testing.T) {
	const rest = `"provider":"example","params":{"kind":"render"},"deadlines":{"create":"5m"},"tags":{"a":"b"}}`
	h := newHarness(t)
	w, shown, _ := h.submit("alice", "k", `{"validate_only":true,`+rest)
	if w.Code != 200 || w.Header().Get("Location") != "" || w.Header().Get("ETag") != "" || w.Header().Get("Content-Location") != "" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	if v := shown.Validation; v == nil || v.Would != ingest.WouldRecord || v.Status != 202 || len(shown.Allowed) > 0 || shown.NextPollAfter != 0 || shown.Version != 0 {
		t.Errorf("%+v", shown)
	}
	if got := h.do("alice", "GET", "/v1/operations/"+shown.ID, nil, ""); got.Code != 404 {
		t.Errorf("it is there: %d", got.Code)
	}
	// Another body under the key may follow, since it is not used up.
	w, made, _ := h.submit("alice", "k", `{`+rest)
	if w.Code != 202 || made.Validation != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if made.ID != shown.ID || made.State != shown.State || made.Account != shown.Account || made.Guarantee != shown.Guarantee ||
		!made.Deadlines.Create.Equal(*shown.Deadlines.Create) || !made.Deadlines.Result.Equal(*shown.Deadlines.Result) || fmt.Sprint(made.Tags) != fmt.Sprint(shown.Tags) {
		t.Errorf("shown %+v\nmade  %+v", shown, made)
	}
	before := h.stored()
	for _, body := range []string{`{"validate_only":true,` + rest, `{"session":"s","validate_only":true,` + rest} {
		w, again, _ := h.submit("alice", "k", body)
		if w.Code != 200 || again.Validation == nil || again.Validation.Would != ingest.WouldReplay || again.Validation.Status != 200 || again.Version != made.Version {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if w, _, p := h.submit("alice", "k", `{"validate_only":true,"provider":"example","params":{"kind":"upscale"}}`); w.Code != 422 || p.Code != ingest.CodeKeyReused {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// It is no part of the fingerprint: false is a submit, and its replay is one without.
	if w, _, _ := h.submit("alice", "k", `{"validate_only":false,`+rest); w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := h.stored(); n != before {
		t.Errorf("%d messages more", n-before)
	}
}

// What would be refused is refused in the same words, with validate_only or without.
func TestValidateOnlyRefuses(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct{ as, rest string }{
		{"alice", `"provider":"nobody","params":{}}`},
		{"alice", `"provider":"example","account":"other","params":{}}`},
		{"guest", `"provider":"replicate","params":{}}`},
		{"nothing", `"provider":"example","params":{}}`},
		{"alice", `"provider":"replicate","params":{}}`},
		{"alice", `"provider":"example","params":{},"max_cost":"-1"}`},
		{"alice", `"provider":"example","params":{},"deadlines":{"create":"1ms"}}`},
		{"alice", `"provider":"example","params":{},"not_before":"2027-12-01T09:00:00Z"}`},
		{"alice", `"provider":"example","params":{},"replaces":"op_none"}`},
	} {
		dry, _, _ := h.submit(c.as, "k", `{"validate_only":true,`+c.rest)
		wet, _, _ := h.submit(c.as, "k", `{`+c.rest)
		if dry.Code < 400 || dry.Body.String() != wet.Body.String() {
			t.Errorf("%s\n%s\n%s", c.rest, dry.Body, wet.Body)
		}
	}
	h.full = true
	if w, _, p := h.submit("alice", "k", `{"validate_only":true,"provider":"example","params":{}}`); w.Code != 503 || p.Code != ingest.CodeStorageLow {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
}

// The warnings are of what the operation would be taken with.
func TestValidateOnlyWarns(t *testing.T) {
	h := newHarness(t)
	codes := func(body string) (list []ingest.WarningCode) {
		t.Helper()
		w, view, _ := h.submit("alice", "k", body)
		if w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, warning := range view.Validation.Warnings {
			if warning.Message == "" {
				t.Error("a warning without words")
			}
			list = append(list, warning.Code)
		}
		return list
	}
	if got := codes(`{"validate_only":true,"provider":"example","params":{}}`); len(got) > 0 {
		t.Errorf("%v", got)
	}
	if got := codes(`{"validate_only":true,"provider":"example-ask","params":{}}`); !slices.Contains(got, ingest.WarnAskAfterLoss) {
		t.Errorf("%v", got)
	}
	h.do("alice", "POST", "/v1/holds", map[string]string{"Idempotency-Key": "h"}, `{"provider":"example-ask","scope":"creates","why":"x"}`)
	if got := codes(`{"validate_only":true,"provider":"example-ask","params":{}}`); slices.Contains(got, ingest.WarnUnusable) {
		t.Errorf("an account that can be used: %v", got)
	}
	h.unusable = map[string]ingest.Unusable{"example-ask/default": ingest.UnusableUnresolved}
	if got := codes(`{"validate_only":true,"provider":"example-ask","params":{}}`); !slices.Contains(got, ingest.WarnUnusable) {
		t.Errorf("an account that cannot be used: %v", got)
	}
	if got := codes(`{"validate_only":true,"provider":"example-ask","params":{}}`); !slices.Contains(got, ingest.WarnHeld) {
		t.Errorf("%v", got)
	}
	if got := codes(`{"validate_only":true,"provider":"example","params":{}}`); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// A batch is validated as a whole, and each item as its mode says.
func TestValidateOnlyBatch(t *testing.T) {
	dry := func(mode string, items ...string) string {
		return strings.Replace(batchOf(mode, items...), "{", `{"validate_only":true,`, 1)
	}
	bad := `{"operation":{"provider":"nobody","params":{}}}`
	for _, mode := range []string{"independent", "atomic"} {
		h := newHarness(t)
		status, replayed, v, _ := h.batch("alice", "b", dry(mode, goodItem, goodItem))
		if status != 200 || replayed || !v.ValidateOnly || v.Valid != 2 || v.Recorded != 0 || fmt.Sprint(statuses(v)) != "[200 200]" || v.Items[0].Operation.Validation.Status != 202 {
			t.Errorf("%s: %d %+v", mode, status, v)
		}
		status, _, v, p := h.batch("alice", "b", dry(mode, goodItem, bad))
		if mode == "atomic" && (status != 422 || p.Code != ingest.CodeUnknownProvider) || mode == "independent" && (status != 200 || v.Valid != 1 || v.Refused != 1) {
			t.Errorf("%s: %d %+v %+v", mode, status, v, p)
		}
		if n := h.stored(); n != 0 {
			t.Errorf("%s: %d messages are stored", mode, n)
		}
		if status, _, v, _ := h.batch("alice", "b", batchOf(mode, goodItem, goodItem)); status > 202 || v.Recorded != 2 {
			t.Errorf("%s: %d %+v", mode, status, v)
		}
		if status, replayed, v, _ := h.batch("alice", "b", dry(mode, goodItem, goodItem)); status != 200 || replayed || v.Valid != 0 || v.Replayed != 2 || v.Items[1].Operation.Validation.Would != ingest.WouldReplay {
			t.Errorf("%s: %d %+v", mode, status, v)
		}
		one := strings.Replace(goodItem, `"provider"`, `"validate_only":true,"provider"`, 1)
		_, _, v, p = h.batch("alice", "c", batchOf(mode, goodItem, one))
		if mode == "independent" {
			p = *v.Items[1].Problem
		}
		if p.Code != ingest.CodeInvalid || p.Errors[0].Field != "/items/1/operation/validate_only" {
			t.Errorf("%s: %+v", mode, p)
		}
	}
}

// An event says it in its data, as a body does.
func TestValidateOnlyEvent(t *testing.T) {
	h := newHarness(t)
	header := map[string]string{"ce-specversion": "1.0", "ce-type": ingest.EventSubmit, "ce-source": "/agent", "ce-id": "1"}
	body := `{"validate_only":true,"provider":"example","params":{}}`
	if w := h.do("alice", "POST", eventPath, header, body); w.Code != 200 || w.Header().Get("Location") != "" || !strings.Contains(w.Body.String(), `"would":"record"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	event := `{"specversion":"1.0","type":"` + ingest.EventSubmit + `","source":"/agent","id":"1","data":` + body + `}`
	w := h.do("alice", "POST", eventPath, map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "["+event+"]")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"status":200,"operation"`) || !strings.Contains(w.Body.String(), `"would":"record"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
}

// What a dry run of a batch says of each item, the batch then does: also of two items that
// adopt one job, of which one alone can have it, and beside what is recorded already.
func TestValidateOnlyBatchAdopts(t *testing.T) {
	item := func(job string) string { return `{"operation":` + strings.Replace(adopting, "job-7", job, 1) + `}` }
	h := newHarness(t)
	if _, _, v, _ := h.batch("alice", "b", batchOf("independent", item("job-1"))); v.Recorded != 1 {
		t.Fatalf("%+v", v)
	}
	list := []string{item("job-1"), item("job-2"), item("job-2"), item("job-3"), item("job-1")}
	_, _, dry, _ := h.batch("alice", "b", strings.Replace(batchOf("independent", list...), "{", `{"validate_only":true,`, 1))
	_, _, wet, _ := h.batch("alice", "b", batchOf("independent", list...))
	if dry.Valid != 2 || dry.Replayed != 1 || dry.Refused != 2 || wet.Recorded != 2 || wet.Replayed != 1 || wet.Refused != 2 {
		t.Fatalf("dry %+v\nwet %+v", dry, wet)
	}
	for _, v := range []ingest.BatchView{dry, wet} {
		refused := 0
		for _, i := range []int{1, 2, 4} {
			p := v.Items[i].Problem
			if p == nil {
				continue
			}
			if refused++; p.Code != ingest.CodeJobOwned || p.Errors[0].Field != fmt.Sprintf("/items/%d/operation/adopt/job_id", i) {
				t.Errorf("%+v", p)
			}
		}
		if refused != 2 {
			t.Errorf("%d are refused", refused)
		}
	}
}

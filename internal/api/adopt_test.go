package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const adopting = `{"provider":"example","params":{},"adopt":{"job_id":"job-7"}}`

// due decides what a worker would do now.
func (h *harness) due(id string) workflow.Decision {
	h.t.Helper()
	s, err := h.journal.Current(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return workflow.Decide(s, workflow.World{Now: h.clock.Now(), Target: workflow.Target{Origin: "http://127.0.0.1:8787", Account: "default"}})
}

// TestAdopt: a job that was created elsewhere is followed, read before anything is said of
// it, cancelled if that is wished, and never created.
func TestAdopt(t *testing.T) {
	h := newHarness(t)
	dry, shown, _ := h.submit("alice", "k", strings.Replace(adopting, "{", `{"validate_only":true,`, 1))
	if n := h.stored(); dry.Code != 200 || n != 0 || shown.Job == nil || !shown.Job.Adopted {
		t.Fatalf("%d %s, %d messages are stored", dry.Code, dry.Body, n)
	}
	w, v, _ := h.submit("alice", "k", adopting)
	if w.Code != 202 || v.State != projections.PhaseAccepted || v.Job == nil || v.Job.ID != "job-7" || !v.Job.Adopted || v.Attempts.Permitted != 0 || v.WaitingFor != "read" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	h.play("advance 2s")
	if read, ok := h.due(v.ID).Effect.(workflow.ReadStatus); !ok || read.JobID != "job-7" || read.Claim {
		t.Errorf("%+v is due", h.due(v.ID))
	}
	if w, again, _ := h.submit("alice", "k", adopting); w.Code != 200 || again.ID != v.ID {
		t.Errorf("its replay: %d %s", w.Code, w.Body)
	}
	h.op = v.ID
	h.play("observed running")
	if got := h.view("alice", v.ID); got.State != projections.PhaseObserving || !got.Job.Adopted {
		t.Errorf("%+v", got)
	}
	// Another operation, of whomever, is refused the job.
	for _, who := range []string{"alice", "bob"} {
		for _, body := range []string{adopting, strings.Replace(adopting, "{", `{"validate_only":true,`, 1)} {
			if w, _, p := h.submit(who, "other", body); w.Code != 409 || p.Code != ingest.CodeJobOwned || p.Operation != "" || p.Errors[0].Field != "/adopt/job_id" {
				t.Errorf("%s: %d %s", who, w.Code, w.Body)
			}
		}
	}
	if w := h.do("alice", "POST", "/v1/operations/"+v.ID+"/cancel", map[string]string{"Idempotency-Key": "c"}, ""); w.Code != 202 || !strings.Contains(w.Body.String(), `"cancel_requested"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := h.intents(); n != 1 {
		t.Errorf("%d intents", n)
	}
}

// A contract that finds a job by a link alone cannot read one that it did not create.
func TestAdoptUnderAContractThatCannotRead(t *testing.T) {
	h := newHarness(t)
	src, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const link, path = "  url: job.status_url\n", "  path: /v1/jobs/{job.id}\n"
	if n := strings.Count(string(src), link+path); n != 1 {
		t.Fatalf("the contract has it %d times", n)
	}
	if h.known["example"], err = contract.Parse("example.yaml", []byte(strings.Replace(string(src), link+path, link, 1))); err != nil {
		t.Fatal(err)
	}
	before := h.stored()
	for name, body := range map[string]string{"alone": adopting, "only checked": strings.Replace(adopting, "{", `{"validate_only":true,`, 1)} {
		w, _, p := h.submit("alice", "k", body)
		if w.Code != 422 || p.Code != ingest.CodeInvalid || len(p.Errors) != 1 || p.Errors[0].Field != "/adopt" || p.Errors[0].Code != ingest.FieldNotAllowed || p.Errors[0].Values["provider"] != "example" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	w := h.do("alice", "POST", "/v1/operations:batch", map[string]string{"Idempotency-Key": "b"}, `{"mode":"atomic","items":[{"operation":`+adopting+`}]}`)
	if w.Code != 422 || !strings.Contains(w.Body.String(), `"/items/0/operation/adopt"`) {
		t.Errorf("in a batch: %d %s", w.Code, w.Body)
	}
	if n := h.stored(); n != before {
		t.Errorf("%d messages were stored", n-before)
	}
	if w, _, _ := h.submit("alice", "k", strings.Replace(adopting, `,"adopt":{"job_id":"job-7"}`, "", 1)); w.Code != 202 {
		t.Errorf("without it, under the key: %d %s", w.Code, w.Body)
	}
}

// A job that there is not is lost, as one is that goes away.
func TestAdoptNothing(t *testing.T) {
	h := newHarness(t)
	_, v, _ := h.submit("alice", "k", adopting)
	h.op = v.ID
	for range 3 {
		h.play("advance 10m")
		s, err := h.journal.Current(t.Context(), v.ID)
		if err != nil {
			t.Fatal(err)
		}
		h.fact(&events.ObservationFailed{Call: events.Call{AsOf: s.Sequence, LeftAt: h.clock.Now(), Status: 404, Class: events.ErrorNotFound}})
	}
	if got := h.view("alice", v.ID); got.State != projections.PhaseQuarantined || got.Quarantine != projections.QuarantineLost || got.Attempts.Permitted != 0 {
		t.Errorf("%+v", got)
	}
	for range 50 {
		if fact := h.due(v.ID).Fact; fact != nil && fact.Type() == events.TypeCreateAttempted {
			t.Fatal("a create is due")
		}
		h.play("advance 30m")
	}
}

// What cannot be adopted is refused, with its field.
func TestAdoptRefused(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct{ body, field string }{
		{strings.Replace(adopting, `"job-7"`, `""`, 1), "/adopt/job_id"},
		{strings.Replace(adopting, `"job_id":"job-7"`, ``, 1), "/adopt/job_id"},
		{strings.Replace(adopting, `"job-7"`, `7`, 1), "/adopt/job_id"},
		{strings.Replace(adopting, `"job_id"`, `"job"`, 1), "/adopt/job"},
		{strings.Replace(adopting, `job-7`, strings.Repeat("x", 1025), 1), "/adopt/job_id"},
		{strings.Replace(adopting, "{", `{"not_before":"2026-12-01T09:10:00Z",`, 1), "/not_before"},
	} {
		if w, _, p := h.submit("alice", "k", c.body); w.Code != 422 || p.Errors[0].Field != c.field {
			t.Errorf("%.90s: %d %s", c.body, w.Code, w.Body)
		}
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
}

// Items of a batch that adopt one job are refused before any of them claims it.
func TestAdoptBatch(t *testing.T) {
	h := newHarness(t)
	item := `{"operation":` + adopting + `}`
	dry := strings.Replace(batchOf("atomic", item, item), "{", `{"validate_only":true,`, 1)
	for _, body := range []string{dry, batchOf("atomic", item, item)} {
		if status, _, _, p := h.batch("alice", "b", body); status != 422 || p.Errors[0].Field != "/items/1/operation/adopt/job_id" {
			t.Errorf("%d %+v", status, p)
		}
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	if status, _, v, p := h.batch("alice", "b", batchOf("atomic", item, goodItem)); status != 202 || v.Recorded != 2 {
		t.Errorf("%d %+v", status, p)
	}
	if _, _, v, _ := h.batch("alice", "c", batchOf("independent", item, goodItem)); fmt.Sprint(statuses(v)) != "[409 202]" || v.Items[0].Problem.Code != ingest.CodeJobOwned {
		t.Errorf("%+v", v)
	}
}

// TestAdoptStoreFails: the store goes away at each write, having done it or not: the
// claim comes before the fact, and the same request finds both.
func TestAdoptStoreFails(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 3; failing++ { // the payload, the claim and the fact
			h := newHarness(t)
			writes, dead := 0, false
			faulty := memory.Inject(h.store, func(c memory.Call) memory.Fault {
				if dead {
					return memory.Fault{Kind: memory.Unavailable}
				}
				if c.Op == memory.OpPublish || c.Op == memory.OpBatch {
					if writes++; writes == failing {
						dead = true
						return memory.Fault{Kind: kind}
					}
				}
				return memory.Fault{}
			})
			h.over(faulty)
			if w, _, p := h.submit("alice", "k", adopting); w.Code != 503 || p.RetryWith != ingest.RetrySameKey {
				t.Fatalf("kind %d at write %d: %d %s", kind, failing, w.Code, w.Body)
			}
			dead, writes = false, 10
			faulty.Land(t.Context())
			w, v, _ := h.submit("alice", "k", adopting)
			owner, owned, err := h.journal.Owner(t.Context(), "example", "default", "job-7")
			if w.Code > 202 || h.intents() != 1 || owner != v.ID || !owned || err != nil {
				t.Errorf("kind %d at write %d: %d %s, the job is %s's (%v)", kind, failing, w.Code, w.Body, owner, err)
			}
		}
	}
}

// TestNotBefore: nothing is sent before the time, the operation says so, and a cancel
// before it is a cancel.
func TestNotBefore(t *testing.T) {
	h := newHarness(t)
	at := h.clock.Now().Add(20 * time.Minute)
	body := fmt.Sprintf(`{"provider":"example","params":{"kind":"render"},"not_before":%q}`, at.Format(time.RFC3339))
	w, v, _ := h.submit("alice", "k", body)
	if w.Code != 202 || v.NotBefore == nil || !v.NotBefore.Equal(at) || v.NextLook == nil || !v.NextLook.Equal(at) || v.WaitingFor != "create" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if d := h.due(v.ID); d.Fact != nil || !d.Until.Equal(at) {
		t.Errorf("%+v is due", d)
	}
	h.play("advance 20m")
	if d := h.due(v.ID); d.Fact == nil || d.Fact.Type() != events.TypeCreateAttempted {
		t.Errorf("%+v is due", d)
	}
	_, v, _ = h.submit("alice", "c", strings.Replace(body, at.Format(time.RFC3339), h.clock.Now().Add(time.Minute).Format(time.RFC3339), 1))
	if w := h.do("alice", "POST", "/v1/operations/"+v.ID+"/cancel", map[string]string{"Idempotency-Key": "c"}, ""); w.Code != 200 || h.view("alice", v.ID).State != projections.PhaseCancelled {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
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

func adoptingJob(job string) string { return strings.Replace(adopting, "job-7", job, 1) }

func adoptingAll(mode string, jobs ...string) string {
	var items []string
	for _, job := range jobs {
		items = append(items, `{"operation":`+adoptingJob(job)+`}`)
	}
	return batchOf(mode, items...)
}

// holder gives the operation that has a job by INDEX, "" for none, and fails unless it is
// the only one that has it by a fact, if any has.
func (h *harness) holder(job string) string {
	h.t.Helper()
	owner, _, err := h.journal.Holder(h.t.Context(), "example", "default", job)
	if err != nil {
		h.t.Fatal(err)
	}
	facts, err := h.journal.AllFacts(h.t.Context(), 1)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = facts.Close() }() // only read
	var by []string
	for {
		e, err := facts.Next(h.t.Context(), 0)
		if err != nil {
			break
		}
		if f, ok := e.Event.Fact.(*events.IntentRecorded); ok && f.Adopt == job {
			by = append(by, e.Event.Operation)
		}
	}
	if len(by) > 1 || len(by) == 1 && by[0] != owner {
		h.t.Errorf("%s is held by %v by facts, and by %q", job, by, owner)
	}
	return owner
}

// slowIndex has two processes meet between their looks at a job and their claims of it.
type slowIndex struct{ journal.Store }

func (s slowIndex) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	if stream == journal.Index {
		time.Sleep(10 * time.Millisecond)
	}
	return s.Store.Publish(ctx, stream, m)
}

// Two batches for all or none that adopt the same jobs in opposite order, at the same moment:
// one gets all of them and the other nothing. In one process and in two.
func TestAdoptBatchesCross(t *testing.T) {
	for _, apart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.clock.real = true
			other := h
			if apart {
				h.over(slowIndex{h.store})
				other = h.twin()
				other.over(slowIndex{h.store})
			}
			for round := range 20 {
				one, two := fmt.Sprint("a", round), fmt.Sprint("b", round)
				var group sync.WaitGroup
				var codes [2]int
				for i, jobs := range [][]string{{one, two}, {two, one}} {
					group.Go(func() {
						asks := []*harness{h, other}[i]
						codes[i] = asks.request([]string{"alice", "bob"}[i], "POST", "/v1/operations:batch", map[string]string{"Idempotency-Key": fmt.Sprint("k", round)}, adoptingAll("atomic", jobs...)).Code
					})
				}
				group.Wait()
				if codes[0]+codes[1] != 202+409 {
					t.Fatalf("round %d: %v", round, codes)
				}
				if h.holder(one) == "" || h.holder(two) == "" {
					t.Errorf("round %d: the jobs are %q's and %q's", round, h.holder(one), h.holder(two))
				}
			}
		})
	}
}

// A batch that is refused holds no job: what it would have adopted can be adopted at once,
// by anybody and by the same request.
func TestAdoptRefusedHoldsNothing(t *testing.T) {
	h := newHarness(t)
	if w, _, _ := h.submit("bob", "k", adoptingJob("b")); w.Code != 202 {
		t.Fatal(w.Code)
	}
	// It is found taken when it is claimed: when it was looked at it was free.
	taken := false
	h.over(memory.Inject(h.store, func(c memory.Call) memory.Fault {
		if c.Op == memory.OpPublish && c.Stream == journal.Index && !taken {
			taken = true
			if claim, err := h.journal.Claim(context.Background(), "example", "default", "c", h.view("bob", h.op).ID); err != nil || claim != events.ClaimOwn {
				t.Error(claim, err)
			}
		}
		return memory.Fault{}
	}))
	for range 2 {
		taken = false
		status, _, _, p := h.batch("alice", "x", adoptingAll("atomic", "c", "a"))
		if status != 409 || p.Code != ingest.CodeJobOwned || p.Errors[0].Field != "/items/0/operation/adopt/job_id" || !strings.Contains(p.Detail, "nothing was recorded") {
			t.Fatalf("%d %+v", status, p)
		}
		if owner := h.holder("a"); owner != "" {
			t.Errorf("%s has a", owner)
		}
	}
	taken = true
	if w, _, _ := h.submit("guest", "k", adoptingJob("a")); w.Code != 202 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, _, v, _ := h.batch("alice", "y", adoptingAll("atomic", "d", "e")); v.Recorded != 2 || h.holder("d") != v.Items[0].Operation.ID {
		t.Errorf("%+v", v)
	}
}

// TestAdoptBatchDies: the store goes away at each write of a batch that adopts two jobs, having
// done it or not. Whoever comes next, that request again or another one in the opposite
// order, gets both jobs or none; and once the claims have lapsed none is locked to nobody.
func TestAdoptBatchDies(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 4; failing++ { // the payload, two claims and the facts
			for _, first := range []string{"the other at once", "the other later", "the same at once", "the same later"} {
				h := newHarness(t)
				store := h.dying(kind, failing)
				store.arm()
				if status, _, _, p := h.batch("alice", "k", adoptingAll("atomic", "a", "b")); status != 503 {
					t.Fatalf("kind %d at write %d: %d %+v", kind, failing, status, p)
				}
				store.back(t.Context())
				recorded := h.intents()
				if recorded != 0 && recorded != 2 {
					t.Fatalf("kind %d at write %d: %d intents", kind, failing, recorded)
				}
				same := func() int { s, _, _, _ := h.batch("alice", "k", adoptingAll("atomic", "a", "b")); return s }
				other := func() int { s, _, _, _ := h.batch("bob", "k", adoptingAll("atomic", "b", "a")); return s }
				at := func(what string, got int, want ...int) {
					t.Helper()
					if !slices.Contains(want, got) {
						t.Errorf("kind %d at write %d, %s first: %s is answered %d, want %v", kind, failing, first, what, got, want)
					}
				}
				switch first {
				case "the other at once":
					if got := other(); recorded == 2 {
						at("the other", got, 409)
					} else if at("the other", got, 202, 409); got == 409 { // the claims count yet
						h.play("advance 61s")
						at("the other later", other(), 202)
					}
				case "the other later":
					h.play("advance 61s")
					at("the other", other(), map[int]int{0: 202, 2: 409}[recorded])
				case "the same at once", "the same later":
					if first == "the same later" {
						h.play("advance 61s")
					}
					at("the same", same(), map[int]int{0: 202, 2: 200}[recorded])
					at("the other", other(), 409)
				}
				switch h.holder("a") {
				case ingest.OperationID("in_test", "alice", "k\x000"):
					at("the same in the end", same(), 200)
				case ingest.OperationID("in_test", "bob", "k\x001"):
					at("the same in the end", same(), 409)
				default:
					t.Errorf("kind %d at write %d, %s first: a is %q's", kind, failing, first, h.holder("a"))
				}
				if h.intents() != 2 || h.holder("b") == "" {
					t.Errorf("kind %d at write %d, %s first: %d intents, b is %q's", kind, failing, first, h.intents(), h.holder("b"))
				}
			}
		}
	}
}

// TestAdoptClaimsLapse: what could not be withdrawn is free after a minute, for the adoption of
// another operation; what an operation has that is recorded never is, whether or not a fact says so.
func TestAdoptClaimsLapse(t *testing.T) {
	h := newHarness(t)
	worker := h.submitted("bob", "w")
	// By a poller that died before its fact.
	if _, err := h.journal.Claim(t.Context(), "example", "default", "b", worker); err != nil {
		t.Fatal(err)
	}
	claimed, _, err := h.journal.ClaimAhead(t.Context(), "example", "default", "a", ingest.OperationID("in_test", "alice", "gone"), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when, job string) {
		t.Helper()
		for _, body := range []string{adoptingJob(job), strings.Replace(adoptingJob(job), "{", `{"validate_only":true,`, 1)} {
			if w, _, p := h.submit("guest", "g-"+job, body); w.Code != 409 || p.Code != ingest.CodeJobOwned {
				t.Errorf("%s: %d %s", when, w.Code, w.Body)
			}
		}
	}
	h.play("advance 60s")
	refused("within a minute", "a")
	h.play("advance 1s")
	if w, _, _ := h.submit("guest", "g", strings.Replace(adoptingJob("a"), "{", `{"validate_only":true,`, 1)); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, taken, _ := h.submit("guest", "g", adoptingJob("a"))
	if w.Code != 202 || h.holder("a") != taken.ID {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	// Its claimant comes back and gives up what is no longer its own, then asks again.
	if err := h.journal.Withdraw(t.Context(), claimed); err != nil {
		t.Error(err)
	}
	if w, _, _ := h.submit("alice", "gone", adoptingJob("a")); w.Code != 409 || h.holder("a") != taken.ID {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.play("advance 1h")
	refused("of an operation that is recorded", "b")
	// Who was stopped with its claim for longer than that, and records its operation now: it is
	// the later one, whose job is contested.
	if _, _, err := h.journal.Create(t.Context(), events.Event{
		ID: "late", Source: "/ingest/2", Operation: claimed.Operation(), Time: h.clock.Now(), Actor: "alice",
		Fact: &events.IntentRecorded{Principal: "alice", Provider: "example", Account: "default", Adopt: "a", Rules: projections.Rules},
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, id := range []string{claimed.Operation(), taken.ID} {
			owner, later, err := h.journal.Reclaim(t.Context(), "example", "default", "a", id)
			if err != nil || owner != taken.ID || id == claimed.Operation() && later != id {
				t.Errorf("for %s: %s, later %q, %v", id, owner, later, err)
			}
		}
	}
}

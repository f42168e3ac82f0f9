package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// further is an operation whose job is in that state.
func further(t *testing.T, state string) *harness {
	t.Helper()
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example","params":{"n":1}}`)
	for _, line := range []string{"attempted", "accepted job-1", "observed " + state} {
		h.play(line)
	}
	return h
}

// tell asks for something under a key and gives the operation, or the problem.
func (h *harness) tell(as, path, key, body string) (v ingest.View, p ingest.Problem, status int) {
	h.t.Helper()
	w := h.request(as, "POST", "/v1/operations/"+h.op+"/"+path, map[string]string{"Idempotency-Key": key}, body)
	err := json.Unmarshal(w.Body.Bytes(), &v)
	if w.Code >= 300 {
		v, err = ingest.View{}, json.Unmarshal(w.Body.Bytes(), &p)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return v, p, w.Code
}

// answer says yes, or whatever members have, to what the job asks now.
func (h *harness) answer(members string) string {
	return fmt.Sprintf(`{"question":%q,"input":{%s}}`, h.question(), members)
}

// question is the name of what the job asks now.
func (h *harness) question() string {
	h.t.Helper()
	var v ingest.View
	if err := json.Unmarshal(h.do("alice", "GET", "/v1/operations/"+h.op, nil, "").Body.Bytes(), &v); err != nil {
		h.t.Fatal(err)
	}
	if v.Input == nil {
		return ""
	}
	return v.Input.Question
}

// sent does what a worker would about an input or a cleanup that is due.
func (h *harness) sent(outcome events.CallOutcome) {
	h.t.Helper()
	s, err := h.journal.Current(h.t.Context(), h.op)
	if err != nil {
		h.t.Fatal(err)
	}
	a := events.Attempt{NotAfter: h.clock.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "1/run"}
	call := events.Call{AsOf: s.Sequence + 1, LeftAt: h.clock.Now(), Status: 409, Class: events.ErrorRefused, Code: "no", Message: "because of https://x.test/?token=canary-word"}
	if outcome == events.CallDone {
		call.Class, call.Code, call.Message = "", "", ""
	}
	if s.Input.Due {
		a.Number = s.Inputs.Made + 1
		h.fact(&events.InputAttempted{Attempt: a})
		h.fact(&events.InputAnswered{Attempt: a.Number, Outcome: outcome, Call: call})
		return
	}
	a.Number = s.Cleanups.Made + 1
	h.fact(&events.CleanupAttempted{Attempt: a})
	h.fact(&events.CleanupAnswered{Attempt: a.Number, Outcome: outcome, Call: call})
}

func actions(v ingest.View) string {
	var list []string
	for _, a := range v.Allowed {
		list = append(list, a.Action)
	}
	return strings.Join(list, " ")
}

// An answer is taken where the job waits for one, one after the other, and what is
// shown of it is what was seen.
func TestAnswers(t *testing.T) {
	h := further(t, "running")
	if _, p, status := h.tell("alice", "input", "early", `{"input":{"answer":"yes"}}`); status != 409 || p.Code != ingest.CodeInputNotWanted || p.State != projections.PhaseObserving {
		t.Errorf("%d %+v", status, p)
	}
	h.play("observed input_required")
	for body, field := range map[string]string{`{}`: "/input", `{"input":null}`: "/input", `{"input":[1]}`: "/input", `{"input":"yes"}`: "/input", `{"input":{},"why":"x"}`: "/why", `{"input":{}}`: "/question", `{"input":{},"question":""}`: "/question", `{"input":{},"question":"` + strings.Repeat("q", 65) + `"}`: "/question"} {
		if _, p, status := h.tell("alice", "input", "bad", body); status != 422 || len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: %d %+v", body, status, p)
		}
	}
	if _, p, status := h.tell("alice", "input", "bad", `{"input":{"a":1,"a":2}}`); status != 400 || p.Code != ingest.CodeDuplicateKey {
		t.Errorf("%d %+v", status, p)
	}
	// The key is a member's, whoever it belongs to; who may not decide may not answer.
	if _, p, status := h.tell("mate", "input", "i", `{"input":{}}`); status != 403 && status != 404 {
		t.Errorf("%d %+v", status, p)
	}
	// Reads that say the same leave the question what it is, whatever they do to the version.
	first := h.question()
	if w := h.do("alice", "GET", "/v1/operations/"+h.op, nil, ""); !strings.Contains(w.Body.String(), `"because":"the job waits for an answer"`) {
		t.Error(w.Body)
	}
	if h.play("observed input_required"); first == "" || h.question() != first {
		t.Errorf("question %q became %q", first, h.question())
	}
	for _, other := range []string{"q1", "q999", "Q" + first[1:], first + "0", "first <b>"} {
		if _, p, status := h.tell("alice", "input", "i1", fmt.Sprintf(`{"question":%q,"input":{"answer":"yes"}}`, other)); status != 409 || p.Code != ingest.CodeQuestionDiffers || p.Values["waiting"] != first || p.Retryable || !strings.Contains(p.Detail, first) {
			t.Errorf("%s: %d %+v", other, status, p)
		}
	}
	v, _, status := h.tell("alice", "input", "i1", fmt.Sprintf(`{"question":%q,"input":{ "answer":"yes", "n":1.50}}`, first))
	if status != 202 || v.Input == nil || v.Input.Given == nil || v.Input.Given.Status != projections.CallWaiting || v.Input.Given.By != "alice" || strings.Contains(actions(v), "input") {
		t.Errorf("%d %+v %s", status, v.Input, actions(v))
	}
	s, err := h.journal.Current(t.Context(), h.op)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := h.journal.Payload(t.Context(), s.Input.Payload); err != nil || string(text) != `{ "answer":"yes", "n":1.50}` {
		t.Errorf("kept %s, %v", text, err)
	}
	if _, p, status := h.tell("alice", "input", "i2", h.answer(`"answer":"no"`)); status != 409 || p.Code != ingest.CodeInputNotWanted {
		t.Errorf("a second answer: %d %+v", status, p)
	}
	h.sent(events.CallRefused)
	w := h.do("alice", "GET", "/v1/operations/"+h.op, nil, "")
	if !strings.Contains(w.Body.String(), `"given":{"status":"refused"`) || !strings.Contains(w.Body.String(), `"code":"no"`) || strings.Contains(w.Body.String(), "canary-word") {
		t.Error(w.Body)
	}
	if _, p, status := h.tell("alice", "input", "i3", h.answer(`"answer":"no"`)); status != 409 || p.Code != ingest.CodeInputNotWanted {
		t.Errorf("before anybody has looked: %d %+v", status, p)
	}
	h.play("observed input_required")
	// An answer was passed on: it asks anew.
	if _, p, status := h.tell("alice", "input", "i3", fmt.Sprintf(`{"question":%q,"input":{"answer":"no"}}`, first)); status != 409 || p.Code != ingest.CodeQuestionDiffers || p.Values["waiting"] != h.question() {
		t.Errorf("the answer to what was asked before: %d %+v", status, p)
	}
	if v, _, status := h.tell("alice", "input", "i3", h.answer(`"answer":"no"`)); status != 202 || v.Input.Given.Number != 2 {
		t.Errorf("%d %+v", status, v.Input)
	}
	h.sent(events.CallDone)
	h.play("observed running")
	for body, want := range map[string]int{
		`{"question":%q,"input":{"n":1.5,"answer":"yes"}}`:         200, // the same, in other words
		`{"input":{"n":1.5e0, "answer":"\u0079es"},"question":%q}`: 200,
		`{"question":%q,"input":{"n":1.51,"answer":"yes"}}`:        422,
		`{"question":"%s0","input":{"n":1.5,"answer":"yes"}}`:      422,
	} {
		if strings.Contains(body, "%s") {
			body = strings.ReplaceAll(body, "%s", first)
		} else {
			body = fmt.Sprintf(body, first)
		}
		if _, p, status := h.tell("alice", "input", "i1", body); status != want || status == 422 && p.Code != ingest.CodeKeyReused {
			t.Errorf("%s: %d %+v", body, status, p)
		}
	}
	if v, _, status := h.tell("alice", "input", "i1", fmt.Sprintf(`{"question":%q,"input":{ "answer":"yes", "n":1.50}}`, first)); status != 200 || v.OriginalStatus != 202 || v.Input.Given.Status != projections.CallDone || v.Input.Text != "" {
		t.Errorf("sent again: %d %+v", status, v.Input)
	}
	h.play("observed failed")
	if _, p, status := h.tell("alice", "input", "late", `{"input":{}}`); status != 409 || p.Code != ingest.CodeAlreadyTerminal {
		t.Errorf("%d %+v", status, p)
	}
}

// Several who answer at once are one answer.
func TestOneOfSeveralAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := further(t, "input_required")
		h.clock.real = true
		var mu sync.Mutex
		asks := h.question()
		seen := map[int]int{}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				w := h.request("alice", "POST", "/v1/operations/"+h.op+"/input", map[string]string{"Idempotency-Key": fmt.Sprint("k", i)}, fmt.Sprintf(`{"question":%q,"input":{"n":%d}}`, asks, i))
				mu.Lock()
				defer mu.Unlock()
				seen[w.Code]++
			})
		}
		all.Wait()
		if seen[202] != 1 || seen[409] != 7 || facts(h, events.TypeInputSubmitted) != 1 {
			t.Errorf("%v, %d facts", seen, facts(h, events.TypeInputSubmitted))
		}
	})
}

// A cleanup is taken of what has ended or stopped, of the operation's jobs alone, and
// claims nothing that was not seen.
func TestCleanups(t *testing.T) {
	h := further(t, "running")
	if _, p, status := h.tell("alice", "cleanup", "early", ""); status != 409 || p.Code != ingest.CodeCleanupNotAllowed {
		t.Errorf("%d %+v", status, p)
	}
	h.play("observed failed")
	if _, p, status := h.tell("alice", "cleanup", "c", `{"job_id":"job-9"}`); status != 422 || p.Errors[0].Field != "/job_id" || !slices.Equal(p.Errors[0].Allowed, []string{"job-1"}) {
		t.Errorf("%d %+v", status, p)
	}
	// One that is gone to another operation by a webhook is not ours to remove.
	h.fact(&events.WebhookReceived{EventID: "e", JobID: "job-7", Exact: true})
	if owner, err := h.journal.Claim(t.Context(), "example", "default", "job-7", "op_other"); err != nil || owner != events.ClaimOwn {
		t.Fatal(owner, err)
	}
	if _, p, status := h.tell("alice", "cleanup", "c", `{"job_id":"job-7"}`); status != 409 || p.Code != ingest.CodeJobOwned {
		t.Errorf("%d %+v", status, p)
	}
	v, _, status := h.tell("alice", "cleanup", "c1", `{"why":"not needed"}`)
	if status != 202 || v.State != projections.PhaseFailed || !v.Terminal || v.Cleanup == nil || v.Cleanup.Status != projections.CallWaiting || v.Cleanup.JobID != "job-1" || len(v.Cleanup.Removed) > 0 || v.NextPollAfter == 0 {
		t.Errorf("%d %+v", status, v.Cleanup)
	}
	// Under way already: nothing is recorded under the key, and nothing is claimed.
	if _, p, status := h.tell("alice", "cleanup", "c2", ""); status != 409 || p.Code != ingest.CodeCleanupUnderWay || !p.Retryable || p.RetryAfter == 0 || facts(h, events.TypeCleanupRequested) != 1 {
		t.Errorf("%d %+v, %d facts", status, p, facts(h, events.TypeCleanupRequested))
	}
	h.fact(&events.JobObserved{JobID: "job-8", Claim: events.ClaimOwn, State: events.ClassRunning, Remote: "running"})
	if _, p, status := h.tell("alice", "cleanup", "c3", `{"job_id":"job-8"}`); status != 409 || p.Code != ingest.CodeCleanupUnderWay || p.Values["job"] != "job-1" {
		t.Errorf("another job meanwhile: %d %+v", status, p)
	}
	h.sent(events.CallRefused)
	var shown ingest.View
	get := func() {
		t.Helper()
		shown = ingest.View{} // members that are gone must not stay
		if err := json.Unmarshal(h.do("alice", "GET", "/v1/operations/"+h.op, nil, "").Body.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
	}
	if get(); shown.Cleanup.Status != projections.CallRefused || len(shown.Cleanup.Removed) > 0 || shown.Cleanup.Problem == nil || actions(shown) != "cleanup" || !slices.Equal(shown.Allowed[0].Jobs, []string{"job-1", "job-7", "job-8"}) {
		t.Errorf("%+v %+v", shown.Cleanup, shown.Allowed)
	}
	h.tell("alice", "cleanup", "c2", `{"why":"again"}`) // it has recorded nothing so far
	if _, p, status := h.tell("alice", "cleanup", "c2", `{"why":"still"}`); status != 422 || p.Code != ingest.CodeKeyReused {
		t.Errorf("%d %+v", status, p)
	}
	h.sent(events.CallDone)
	if get(); shown.Cleanup.Status != projections.CallDone || !slices.Equal(shown.Cleanup.Removed, []string{"job-1"}) || shown.State != projections.PhaseFailed {
		t.Errorf("%+v", shown.Cleanup)
	}
	// Done is done, under whichever key, and the key is kept.
	if _, _, status := h.tell("alice", "cleanup", "c5", ""); status != 200 || facts(h, events.TypeCleanupRequested) != 3 || facts(h, events.TypeCleanupAttempted) != 2 {
		t.Errorf("%d, %d facts", status, facts(h, events.TypeCleanupRequested))
	}
	if v, _, status := h.tell("mate", "cleanup", "c6", `{"job_id":"job-8"}`); status == 202 {
		t.Errorf("a mate of nobody cleans up: %+v", v)
	}
	if v, _, status := h.tell("alice", "cleanup", "c6", `{"job_id":"job-8"}`); status != 202 || v.Cleanup.JobID != "job-8" || !slices.Equal(v.Cleanup.Removed, []string{"job-1"}) {
		t.Errorf("of a stray job: %d %+v", status, v.Cleanup)
	}
	// What was done stays done while another one is under way.
	if _, _, status := h.tell("alice", "cleanup", "c7", ""); status != 200 || facts(h, events.TypeCleanupRequested) != 5 {
		t.Errorf("%d, %d facts", status, facts(h, events.TypeCleanupRequested))
	}
}

// A cleanup that names no job is of the job that the operation had when it was
// recorded: sent again after a person gave the operation another one, it is neither
// another request nor one about that job.
func TestCleanupOfTheJobOfThen(t *testing.T) {
	h := further(t, "running")
	for range 3 {
		h.play("advance 10m")
		s, err := h.journal.Current(t.Context(), h.op)
		if err != nil {
			t.Fatal(err)
		}
		h.fact(&events.ObservationFailed{JobID: "job-1", Prompt: "due", Call: events.Call{
			AsOf: s.Sequence, LeftAt: h.clock.Now(), Status: 404, Class: events.ErrorNotFound,
		}})
	}
	v, _, status := h.tell("alice", "cleanup", "c", `{"why":"gone"}`)
	if status != 202 || v.State != projections.PhaseQuarantined || v.Cleanup.JobID != "job-1" {
		t.Fatalf("%d %s %+v", status, v.State, v.Cleanup)
	}
	h.sent(events.CallDone)
	decide := map[string]string{"Idempotency-Key": "d", "If-Match": fmt.Sprintf(`"v%d"`, h.view("alice", h.op).Version)}
	if w := h.request("alice", "POST", "/v1/operations/"+h.op+"/decisions", decide, `{"kind":"adopt","job_id":"job-9","why":"it is this one"}`); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{`{"why":"gone"}`, `{"job_id":"job-1","why":"gone"}`} {
		w := h.request("alice", "POST", "/v1/operations/"+h.op+"/cleanup", map[string]string{"Idempotency-Key": "c"}, body)
		if w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" || facts(h, events.TypeCleanupRequested) != 1 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if _, p, status := h.tell("alice", "cleanup", "c", `{"job_id":"job-9","why":"gone"}`); status != 422 || p.Code != ingest.CodeKeyReused {
		t.Errorf("%d %+v", status, p)
	}
}

// A provider without such calls: none is taken, and capabilities say so.
func TestNoFurtherCalls(t *testing.T) {
	h := newHarness(t)
	h.do("alice", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "k"}, `{"provider":"example-ask","params":{}}`)
	if _, p, status := h.tell("alice", "input", "i", `{"input":{}}`); status != 409 || p.Code != ingest.CodeInputUnsupported {
		t.Errorf("%d %+v", status, p)
	}
	h.do("alice", "POST", "/v1/operations/"+h.op+"/cancel", map[string]string{"Idempotency-Key": "x"}, "")
	if v, p, status := h.tell("alice", "cleanup", "c", ""); status != 409 || p.Code != ingest.CodeCleanupUnsupported || actions(v) != "" {
		t.Errorf("%d %+v", status, p)
	}
	var c ingest.Capabilities
	if err := json.Unmarshal(h.do("alice", "GET", "/v1/capabilities", nil, "").Body.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range c.Providers {
		got[p.Name] = p.Input + " " + p.Cleanup
	}
	if got["example"] != "repeatable repeatable" || got["example-ask"] != "none none" {
		t.Errorf("%v", got)
	}
	h.do("guest", "POST", "/v1/operations", map[string]string{"Idempotency-Key": "g"}, `{"provider":"example","params":{}}`)
	s, err := h.journal.Current(t.Context(), h.op)
	if err != nil || s.Rulebook() != 2 || !s.Intent.Offers.Input {
		t.Errorf("%v, rules %d, offers %+v", err, s.Rulebook(), s.Intent.Offers)
	}
}

// Of several who ask for a cleanup at once one is recorded, and nobody else is told so.
func TestOneOfSeveralCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := further(t, "failed")
		h.clock.real = true
		var mu sync.Mutex
		seen := map[string]int{}
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				w := h.request("alice", "POST", "/v1/operations/"+h.op+"/cleanup", map[string]string{"Idempotency-Key": fmt.Sprint("k", i)}, fmt.Sprintf(`{"why":"%d"}`, i))
				var p ingest.Problem
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[fmt.Sprint(w.Code, p.Code)]++
			})
		}
		all.Wait()
		if seen["202"] != 1 || seen["409"+string(ingest.CodeCleanupUnderWay)] != 4 || facts(h, events.TypeCleanupRequested) != 1 {
			t.Errorf("%v, %d facts", seen, facts(h, events.TypeCleanupRequested))
		}
	})
}

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func policyOf(t testing.TB, text string) *contract.Policy {
	t.Helper()
	p, err := contract.ParsePolicy("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asking has the harness demand an approval of what is tagged so.
func (h *harness) asking() *harness {
	h.policy = policyOf(h.t, `
policy: 1
approval:
  - {name: tagged, when: '"ask" in tags', why: what is tagged is looked at}
  - {name: deep, when: params.size > 3}
`)
	return h
}

const tagged = `{"provider":"example","params":{"size":1},"tags":{"ask":"1"}`

// waiting submits what has to be approved.
func (h *harness) waiting(as, key, more string) ingest.View {
	h.t.Helper()
	w, v, _ := h.submit(as, key, tagged+more+"}")
	if w.Code != 202 || v.State != projections.PhaseApprovalPending {
		h.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return v
}

// approval is the body of one, over what waits.
func (h *harness) approval(kind string) string {
	h.t.Helper()
	return fmt.Sprintf(`{"kind":%q,"digest":%q,"why":"seen"}`, kind, h.toApprove())
}

// toApprove is the digest of what waits.
func (h *harness) toApprove() string {
	h.t.Helper()
	s, err := h.journal.Current(h.t.Context(), h.op)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Intent.ToApprove(h.op).String()
}

func (h *harness) decide(as, key, match, body string) (*httptest.ResponseRecorder, ingest.View, ingest.Problem) {
	h.t.Helper()
	w := h.request(as, "POST", "/v1/operations/"+h.op+"/decisions", map[string]string{"Idempotency-Key": key, "If-Match": match}, body)
	var v ingest.View
	var p ingest.Problem
	var err error
	if w.Code < 300 {
		err = json.Unmarshal(w.Body.Bytes(), &v)
	} else {
		err = json.Unmarshal(w.Body.Bytes(), &p)
	}
	if err != nil {
		h.t.Fatalf("%v: %d %s", err, w.Code, w.Body)
	}
	return w, v, p
}

func decisionsOf(v ingest.View) (list []events.DecisionKind) {
	for _, a := range v.Allowed {
		list = append(list, a.Decisions...)
	}
	return list
}

// What a rule demands waits, says what for and who may let it out, and begins its time
// when it is let out.
func TestApproval(t *testing.T) {
	h := newHarness(t).asking()
	v := h.waiting("bob", "k", `,"deadlines":{"create":"1h","approval":"2d"},"not_before":"2026-12-01T09:30:00Z"`)
	a := v.Approval
	if a == nil || a.State != ingest.ApprovalPending || len(a.Digest) != 64 || a.Params != events.Sum([]byte(`{"size":1}`)).String() ||
		len(a.Demands) != 1 || a.Demands[0] != (ingest.DemandView{Rule: "tagged", Why: "what is tagged is looked at"}) {
		t.Fatalf("%+v", a)
	}
	if v.WaitingFor != "approval" || !strings.Contains(v.Because, "tagged") || v.DecisionURL != "/operations/"+v.ID || v.Done || v.NextPollAfter == 0 ||
		v.Deadlines.Approval == nil || v.Deadlines.Create != nil {
		t.Errorf("%+v", v)
	}
	for as, want := range map[string][]events.DecisionKind{
		"bob": {events.DecideAbandon, events.DecideExtend}, "approver": {ingest.Approve, ingest.Deny}, "mate": nil,
		"admin": {events.DecideAbandon, events.DecideExtend, ingest.Approve, ingest.Deny},
	} {
		if got := decisionsOf(h.view(as, v.ID)); !slices.Equal(got, want) {
			t.Errorf("%s is told %v", as, got)
		}
	}
	page := h.do("approver", "GET", "/operations/"+v.ID, nil, "").Body.String()
	for _, text := range []string{a.Digest, "tagged", "counterfoil approve " + v.ID, "counterfoil deny " + v.ID} {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %s", text)
		}
	}
	h.op = v.ID
	h.play("advance 20h")
	w, after, _ := h.decide("approver", "a", `"v1"`, h.approval("approve"))
	if w.Code != 201 || after.State != projections.PhaseCreatePending || after.Approval.State != ingest.ApprovalGranted || after.Approval.By != "approver" || after.Approval.Digest != a.Digest {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if want := h.clock.Now().Add(time.Hour); after.Deadlines.Create == nil || !after.Deadlines.Create.Equal(want) {
		t.Errorf("the create deadline is %v, want %v", after.Deadlines.Create, want)
	}
	line := h.do("bob", "GET", "/v1/operations/"+v.ID+"/timeline", nil, "").Body.String()
	for _, text := range []string{`"approved":"` + a.Digest, `"why_text":"seen"`, `"approval_rule":"tagged"`, `"approving_policy":"` + h.policy.Digest.String()} {
		if !strings.Contains(line, text) {
			t.Errorf("the timeline lacks %s: %s", text, line)
		}
	}
	h.project() // history has it, too
	if v := h.view("bob", v.ID); v.Approval.By != "approver" || v.DecisionURL != "" {
		t.Errorf("%+v", v.Approval)
	}
	// The rest goes as ever, and what needs none says nothing of it.
	h.play("attempted")
	h.play("accepted job-1")
	if w, v, _ := h.submit("bob", "k2", `{"provider":"example","params":{"size":3}}`); w.Code != 202 || v.Approval != nil || v.State != projections.PhaseCreatePending {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// A rule that cannot be evaluated demands one, and says what was wrong.
	if w, v, _ := h.submit("bob", "k3", `{"provider":"example","params":{}}`); w.Code != 202 || v.State != projections.PhaseApprovalPending ||
		len(v.Approval.Demands) != 1 || v.Approval.Demands[0].Rule != "deep" || !strings.Contains(v.Approval.Demands[0].Failed, "no such key") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Each refusal has its own code, and none records anything.
func TestApprovalRefused(t *testing.T) {
	h := newHarness(t).asking()
	h.key("boss", "bob", false, time.Time{}, ingest.ScopeAdmin) // another key of the submitter
	h.key("blind", "blind", false, time.Time{}, ingest.ScopeApprove)
	h.key("reader", "reader", false, time.Time{}, ingest.ScopeReadAll)
	v := h.waiting("bob", "k", "")
	good := h.approval("approve")
	other := fmt.Sprintf(`{"kind":"approve","digest":%q}`, events.Sum([]byte("x")))
	before := h.stored()
	for _, c := range []struct {
		as, match, body string
		status          int
		code            ingest.Code
	}{
		{"bob", `"v1"`, good, 403, ingest.CodeSelfApproval},
		{"boss", `"v1"`, good, 403, ingest.CodeSelfApproval},
		{"boss", `"v1"`, strings.Replace(good, "approve", "deny", 1), 403, ingest.CodeSelfApproval},
		{"reader", `"v1"`, good, 403, ingest.CodeForbidden},
		{"blind", `"v1"`, good, 403, ingest.CodeForbidden},
		{"alice", `"v1"`, good, 403, ingest.CodeForbidden},
		{"nothing", `"v1"`, good, 403, ingest.CodeForbidden},
		{"approver", `"v2"`, good, 412, ingest.CodeStale},
		{"approver", "", good, 428, ingest.CodePrecondition},
		{"approver", `"v1"`, other, 409, ingest.CodeApprovalDiffers},
		{"approver", `"v1"`, `{"kind":"approve"}`, 422, ingest.CodeInvalid},
		{"approver", `"v1"`, `{"kind":"deny","digest":"xyz"}`, 422, ingest.CodeInvalid},
		{"bob", `"v1"`, `{"kind":"abandon","digest":"` + v.Approval.Digest + `"}`, 422, ingest.CodeInvalid},
		{"approver", `"v1"`, `{"kind":"abandon"}`, 403, ingest.CodeForbidden},
	} {
		w, _, p := h.decide(c.as, "a", c.match, c.body)
		if w.Code != c.status || p.Code != c.code {
			t.Errorf("%s with %s %s: %d %s", c.as, c.match, c.body, w.Code, w.Body)
		}
		if c.code == ingest.CodeApprovalDiffers && (p.Values["waiting"] != v.Approval.Digest || p.Operation != v.ID) {
			t.Errorf("%s", w.Body)
		}
		if c.code == ingest.CodeForbidden && c.as == "reader" && p.Requires != ingest.ScopeApprove {
			t.Errorf("%s", w.Body)
		}
	}
	// Whoever does not see it cannot tell it from one that is not there.
	for _, who := range []string{"alice", "nothing", "blind"} {
		_, _, there := h.decide(who, "a", `"v1"`, good)
		h.op = h.op[:len(h.op)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(h.op, "0")]
		_, _, none := h.decide(who, "a", `"v1"`, good)
		h.op = v.ID
		if there.Code != none.Code || there.Detail != none.Detail || there.Requires != none.Requires || there.Operation != "" || there.State != "" {
			t.Errorf("%s: %+v, of none %+v", who, there, none)
		}
	}
	if n := h.stored(); n != before {
		t.Errorf("%d messages were stored", n-before)
	}
	// Where nothing waits there is nothing to approve.
	if w, _, _ := h.decide("approver", "a", `"v1"`, strings.Replace(good, "approve", "deny", 1)); w.Code != 201 {
		t.Fatal(w.Code, w.Body)
	}
	if w, _, p := h.decide("approver", "b", `"v2"`, good); w.Code != 409 || p.Code != ingest.CodeAlreadyTerminal {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if v := h.view("bob", v.ID); v.State != projections.PhaseAbandoned || v.Reason != projections.ReasonApprovalDenied || v.Approval.State != ingest.ApprovalDenied || v.Approval.By != "approver" {
		t.Errorf("%+v", v)
	}
	h.submit("bob", "other", `{"provider":"example","params":{"size":1}}`)
	if w, _, p := h.decide("approver", "b", `"v1"`, h.approval("approve")); w.Code != 409 || p.Code != ingest.CodeDecisionNotAllowed {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// While it waits it can be cancelled, expire or be abandoned, and then nothing lets it out.
func TestApprovalLapses(t *testing.T) {
	for how, want := range map[string]projections.Reason{"cancel": projections.ReasonCancelledUnsent, "expire": projections.ReasonApprovalExpired, "abandon": projections.ReasonDecided} {
		h := newHarness(t).asking()
		v := h.waiting("bob", "k", "")
		switch how {
		case "cancel":
			if w := h.do("bob", "POST", "/v1/operations/"+v.ID+"/cancel", map[string]string{"Idempotency-Key": "c"}, ""); w.Code != 200 {
				t.Fatal(w.Code, w.Body)
			}
		case "expire":
			h.play("advance 168h")
			h.play("passed approval")
		case "abandon":
			if w, _, _ := h.decide("bob", "d", `"v1"`, `{"kind":"abandon"}`); w.Code != 201 {
				t.Fatal(w.Code, w.Body)
			}
		}
		if v = h.view("bob", v.ID); !v.Terminal || v.Reason != want || v.Approval.State != ingest.ApprovalLapsed || v.Approval.By != "" || v.DecisionURL != "" {
			t.Errorf("%s: %+v", how, v)
		}
		if w, _, p := h.decide("approver", "a", `"v2"`, h.approval("approve")); w.Code != 409 || p.Code != ingest.CodeAlreadyTerminal {
			t.Errorf("%s: %d %s", how, w.Code, w.Body)
		}
	}
}

// An approval is of the very state that was looked at: of two at once, and of one and a
// cancel, one counts and the other is told.
func TestApprovalsRace(t *testing.T) {
	for _, rival := range []string{"deny", "cancel"} {
		for range 20 {
			h := newHarness(t).asking()
			h.key("second", "second", false, time.Time{}, ingest.ScopeReadAll, ingest.ScopeApprove)
			v := h.waiting("bob", "k", "")
			approve, deny := h.approval("approve"), h.approval("deny")
			var all sync.WaitGroup
			var first, second *httptest.ResponseRecorder
			at := "/v1/operations/" + v.ID
			all.Go(func() {
				first = h.request("approver", "POST", at+"/decisions", map[string]string{"Idempotency-Key": "a", "If-Match": `"v1"`}, approve)
			})
			all.Go(func() {
				if rival == "cancel" {
					second = h.request("bob", "POST", at+"/cancel", map[string]string{"Idempotency-Key": "c"}, "")
					return
				}
				second = h.request("second", "POST", at+"/decisions", map[string]string{"Idempotency-Key": "b", "If-Match": `"v1"`}, deny)
			})
			all.Wait()
			granted := facts(h, events.TypeApprovalGranted)
			if granted+facts(h, events.TypeApprovalDenied) > 1 || (first.Code == 201) != (granted == 1) {
				t.Fatalf("%s: %d %s; %d %s", rival, first.Code, first.Body, second.Code, second.Body)
			}
			if after := h.view("bob", v.ID); !after.Terminal && (rival == "deny" || granted == 0) && after.State != projections.PhaseCreatePending {
				t.Errorf("%s: it is %s", rival, after.State)
			}
			if rival == "deny" && second.Code == 201 == (first.Code == 201) {
				t.Errorf("both or none: %d %d", first.Code, second.Code)
			}
			if first.Code != 201 && first.Code != 412 && first.Code != 409 {
				t.Errorf("%d %s", first.Code, first.Body)
			}
		}
	}
}

// A job that is to be adopted is claimed with the approval: what waits, or was denied, keeps
// it from nobody.
func TestApprovalAdopts(t *testing.T) {
	h := newHarness(t).asking()
	const adopt = `,"adopt":{"job_id":"job-7"}`
	first, second := h.waiting("bob", "k1", adopt), h.waiting("bob", "k2", adopt)
	owner := func() string {
		id, _, err := h.journal.Owner(t.Context(), "example", "default", "job-7")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	h.project()
	if owner() != "" {
		t.Fatalf("job-7 is %s's before anything is approved", owner())
	}
	h.op = first.ID
	if w, _, _ := h.decide("approver", "d", `"v1"`, h.approval("deny")); w.Code != 201 {
		t.Fatal(w.Code, w.Body)
	}
	h.op = second.ID
	w, v, _ := h.decide("approver", "a", `"v1"`, h.approval("approve"))
	if w.Code != 201 || v.State != projections.PhaseAccepted || !v.Job.Adopted || owner() != second.ID {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	h.project()
	// One that was submitted before the job came to somebody is told when it is approved.
	third := h.waiting("bob", "k3", `,"adopt":{"job_id":"job-8"}`)
	if w, _, _ := h.submit("alice", "k", `{"provider":"example","params":{"size":1},"adopt":{"job_id":"job-8"}}`); w.Code != 202 {
		t.Fatal(w.Code, w.Body)
	}
	h.op = third.ID
	if w, _, p := h.decide("approver", "a3", `"v1"`, h.approval("approve")); w.Code != 409 || p.Code != ingest.CodeJobOwned || p.Operation != third.ID {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if v := h.view("bob", third.ID); v.State != projections.PhaseApprovalPending {
		t.Errorf("it is %s", v.State)
	}
}

// A link stands from the submit on, and an operation that waits may still create.
func TestApprovalLinks(t *testing.T) {
	h := newHarness(t).asking()
	old := h.waiting("bob", "old", "")
	if w, _, p := h.submit("bob", "new", naming("replaces", old.ID, "")); w.Code != 409 || p.Code != ingest.CodeMayStillCreate || p.State != projections.PhaseApprovalPending {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.op = old.ID
	if w, _, _ := h.decide("approver", "d", `"v1"`, h.approval("deny")); w.Code != 201 {
		t.Fatal(w.Code, w.Body)
	}
	next := h.waiting("bob", "new", `,"retry_of":"`+old.ID+`"`)
	if got := h.view("bob", old.ID).RetriedBy; !slices.Equal(got, []string{next.ID}) {
		t.Errorf("retried by %v", got)
	}
}

// Items of a batch wait each by itself, and are recorded all or none where that is asked for.
func TestApprovalInBatch(t *testing.T) {
	for _, mode := range []string{"independent", "atomic"} {
		h := newHarness(t).asking()
		item := `{"operation":` + tagged + `}}`
		free := `{"operation":{"provider":"example","params":{"size":1}}}`
		_, _, v, p := h.batch("bob", "b", batchOf(mode, item, free))
		if v.Recorded != 2 || v.Items[0].Operation.State != projections.PhaseApprovalPending || v.Items[1].Operation.State != projections.PhaseCreatePending {
			t.Fatalf("%s: %+v %+v", mode, v, p)
		}
		h.op = v.Items[0].Operation.ID
		if w, _, _ := h.decide("approver", "a", `"v1"`, h.approval("approve")); w.Code != 201 {
			t.Error(w.Code, w.Body)
		}
		if _, replayed, again, _ := h.batch("bob", "b", batchOf(mode, item, free)); !replayed || again.Items[0].Operation.State != projections.PhaseCreatePending {
			t.Errorf("%s: %+v", mode, again)
		}
	}
}

// What a policy says now is for what comes now: a replay is not looked at again, and
// validate_only says what would be.
func TestApprovalPolicyChanges(t *testing.T) {
	h := newHarness(t)
	dry := `{"validate_only":true,` + tagged[1:] + "}"
	if w, v, _ := h.submit("bob", "dry", dry); w.Code != 200 || v.Approval != nil {
		t.Fatal(w.Code, w.Body)
	}
	if w, v, _ := h.submit("bob", "free", tagged+"}"); w.Code != 202 || v.State != projections.PhaseCreatePending {
		t.Fatal(w.Code, w.Body)
	}
	h.asking()
	w, shown, _ := h.submit("bob", "dry", dry)
	if w.Code != 200 || shown.Approval == nil || !slices.ContainsFunc(shown.Validation.Warnings, func(w ingest.Warning) bool { return w.Code == ingest.WarnApproval }) {
		t.Fatal(w.Code, w.Body)
	}
	if v := h.waiting("bob", "dry", ""); v.Approval.Digest != shown.Approval.Digest {
		t.Errorf("validate_only showed %s, and it is %s", shown.Approval.Digest, v.Approval.Digest)
	}
	if w, v, _ := h.submit("bob", "free", tagged+"}"); w.Code != 200 || v.Approval != nil {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.policy = nil
	if w, v, _ := h.submit("bob", "dry", tagged+"}"); w.Code != 200 || v.State != projections.PhaseApprovalPending {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestEveryStepOfAnApproval: the store goes away at each write, having done it or not. The
// operation waits, or is let out once, and the retry with the same key says which.
func TestEveryStepOfAnApproval(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.InFlight, memory.Undone, memory.Done, memory.Late} {
		for failing := 1; failing <= 3; failing++ { // the reason, the claim of the job, the fact
			for _, verb := range []string{"approve", "deny"} {
				if verb == "deny" && failing == 3 {
					continue // it claims nothing
				}
				t.Run(fmt.Sprintf("%s kind %d at write %d", verb, kind, failing), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := newHarness(t).asking()
						h.clock.real = true
						store := h.dying(kind, failing)
						v := h.waiting("bob", "k", `,"adopt":{"job_id":"job-7"}`)
						body, fact := h.approval(verb), events.TypeApprovalGranted
						if verb == "deny" {
							fact = events.TypeApprovalDenied
						}
						store.arm()
						if w, _, p := h.decide("approver", "a", `"v1"`, body); w.Code != 503 || p.RetryWith != ingest.RetrySameKey {
							t.Fatalf("%d %s", w.Code, w.Body)
						}
						store.back(t.Context())
						stored := facts(h, fact)
						if state := h.view("bob", v.ID).State; (state == projections.PhaseApprovalPending) != (stored == 0) {
							t.Errorf("%d facts, and it is %s", stored, state)
						}
						for try := range 2 {
							w, after, _ := h.decide("approver", "a", `"v1"`, body)
							replay := stored > 0 || try > 0
							if w.Code != map[bool]int{false: http.StatusCreated, true: http.StatusOK}[replay] || (w.Header().Get("Idempotent-Replayed") == "true") != replay ||
								after.State == projections.PhaseApprovalPending || facts(h, fact) != 1 {
								t.Errorf("try %d answered %d: %s", try, w.Code, w.Body)
							}
						}
						other := map[string]string{"approve": "deny", "deny": "approve"}[verb]
						for _, body := range []string{strings.Replace(body, verb, other, 1), strings.Replace(body, "seen", "not seen", 1)} {
							if w, _, p := h.decide("approver", "a", `"v2"`, body); p.Code != ingest.CodeKeyReused || p.Operation != v.ID {
								t.Errorf("another request under the key: %d %s", w.Code, w.Body)
							}
						}
					})
				})
			}
		}
	}
}

// Whoever approves reads what was sent, byte for byte, under the digest that the operation
// names.
func TestParams(t *testing.T) {
	h := newHarness(t).asking()
	const params = `{ "size": 1,  "text":"é\u00e9" }`
	w, v, _ := h.submit("bob", "k", `{"tags":{"ask":"1"},"provider":"example","params":`+params+"}")
	if w.Code != 202 {
		t.Fatal(w.Code, w.Body)
	}
	at := "/v1/operations/" + v.ID + "/params"
	etag := `"` + v.Approval.Params + `"`
	got := h.do("approver", "GET", at, nil, "")
	if got.Code != 200 || got.Body.String() != params || got.Header().Get("ETag") != etag || got.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", got.Code, got.Header(), got.Body)
	}
	if got := h.do("approver", "GET", at, map[string]string{"If-None-Match": etag}, ""); got.Code != 304 || got.Body.Len() > 0 {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}

// TestAllowedOfAnApprovalIsHonest: of an operation that waits each caller can do what it is
// told that it can, and nothing else, before and after it is let out.
func TestAllowedOfAnApprovalIsHonest(t *testing.T) {
	done, refused := 0, 0
	for _, as := range []string{"bob", "mate", "auditor", "approver", "admin"} {
		for _, kind := range append(ingest.Decisions(), "cancel", "pause") {
			for _, granted := range []bool{false, true} {
				h := newHarness(t).asking()
				v := h.waiting("bob", "k", "")
				body := map[string]string{
					"approve": h.approval("approve"), "deny": h.approval("deny"), "extend": `{"kind":"extend","deadline":"approval","until":"9d"}`,
					"adopt": `{"kind":"adopt","job_id":"j"}`, "mark_cancelled": `{"kind":"mark_cancelled","evidence":"x"}`,
				}[kind]
				if body == "" {
					body = fmt.Sprintf(`{"kind":%q}`, kind)
				}
				if granted {
					if w, _, _ := h.decide("approver", "a", `"v1"`, h.approval("approve")); w.Code != 201 {
						t.Fatal(w.Code, w.Body)
					}
					body = strings.Replace(body, `"approval"`, `"create"`, 1)
				}
				seen := h.view(as, v.ID)
				told := slices.Contains(decisionsOf(seen), events.DecisionKind(kind)) || slices.ContainsFunc(seen.Allowed, func(a ingest.Allowed) bool { return a.Action == kind })
				at, header := "/v1/operations/"+v.ID+"/decisions", map[string]string{"Idempotency-Key": "d", "If-Match": fmt.Sprintf(`"v%d"`, seen.Version)}
				if kind == "cancel" || kind == "pause" {
					at, body = "/v1/operations/"+v.ID+"/"+kind, ""
				}
				w := h.request(as, "POST", at, header, body)
				if (w.Code < 300) != told {
					t.Errorf("%s of %s, granted %t: told %t, got %d %s", kind, as, granted, told, w.Code, w.Body)
				}
				if told {
					done++
				} else {
					refused++
				}
			}
		}
	}
	if done < 10 || refused < 10 {
		t.Errorf("%d done and %d refused show little", done, refused)
	}
}

package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// key makes a key for a principal and keeps it under a name. No scopes at all is
// a line without the member.
func (h *harness) key(name, principal string, operator bool, expires time.Time, scopes ...ingest.Scope) {
	h.t.Helper()
	key, bearer, err := ingest.NewKey(rand.Reader, principal, operator, h.clock.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	key.Scopes, key.Expires, key.Team = scopes, expires, h.team
	if err := ingest.AddKey(h.keys, key); err != nil {
		h.t.Fatal(err)
	}
	h.bearer[name] = bearer
}

// TestCapabilitiesAreHonest holds what each caller is told against what it gets:
// each allowed: true works, and each allowed: false is refused with the very
// reason given. The keys are those of one scope each, some of several, and those
// that say nothing of scopes.
func TestCapabilitiesAreHonest(t *testing.T) {
	callers := map[string][]ingest.Scope{
		"nothing-at-all": {}, "unstated": nil, "operator": nil, "guest": nil,
		"team-agent": {"submit:example/*", ingest.ScopeCancel, ingest.ScopeReadTeam},
		"one-place":  {"submit:example-ask/default", ingest.ScopeReadOwn},
		"any-place":  {"submit:*/default", ingest.ScopeDecide},
		"elsewhere":  {"submit:replicate/other"},
		"everything": append(ingest.UnstatedScopes(), ingest.ScopeAdmin),
	}
	for _, s := range ingest.PlainScopes() {
		callers["only-"+strings.ReplaceAll(string(s), ":", "-")] = []ingest.Scope{s}
	}
	allowed, refused, foreseen := map[string]int{}, map[string]int{}, map[contract.Foresight]int{}
	unusable := map[bool]int{}
	for name, scopes := range callers {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.doctor = doctor.New(doctor.Config{
				Build: "test", Now: h.clock.Now, Journal: h.journal, Call: &nobody{}, Clocks: doctor.NewClocks(), Sync: "always",
				Accounts: func(context.Context) []doctor.Account { return nil },
				Contract: func(context.Context, events.Digest) (*contract.Contract, error) { return nil, nil }, //nolint:nilnil // never asked for
			})
			h.team = "red"
			h.policy = policyOf(t, `
policy: 1
approval:
  - {name: replicate, when: provider == "replicate"}
  - {name: asking, when: 'guarantee == "ask_after_loss" && has(params.input)'}
`)
			h.unusable = map[string]ingest.Unusable{"example/default": ingest.UnusableNoCredential}
			h.over(h.store)
			h.key("other", "other", false, time.Time{})
			h.key("caller", name, name == "operator", time.Time{}, scopes...)
			h.key("full", name, true, time.Time{}) // another of the same principal, which prepares things
			n := 0
			submit := func(as, provider, account string) *answerOf {
				n++
				return h.ask(as, "POST", "/v1/operations", map[string]string{"Idempotency-Key": fmt.Sprint("k", n)},
					fmt.Sprintf(`{"provider":%q,"account":%q,"params":{"input":{}}}`, provider, account))
			}
			check := func(what string, told ingest.Verdict, got *answerOf) {
				t.Helper()
				switch {
				case told.Allowed && got.status < 300:
					allowed[what]++
				case !told.Allowed && got.status == 403 && got.Code == told.Reason && got.Requires == told.Requires && told.Reason != "":
					refused[what]++
				default:
					t.Errorf("%s: told %+v, got %d %s %s", what, told, got.status, got.Code, got.Requires)
				}
			}
			var told ingest.Capabilities
			if w := h.do("caller", "GET", "/v1/capabilities", nil, ""); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &told) != nil || told.Caller.Principal != name {
				t.Fatal(w.Code, w.Body)
			}
			for _, p := range told.Providers {
				for _, s := range p.Submit {
					got := submit("caller", p.Name, s.Account)
					check("submit", s.Verdict, got)
					if s.Unusable != h.unusable[p.Name+"/"+s.Account] {
						t.Errorf("%s/%s: told that it is unusable: %q", p.Name, s.Account, s.Unusable)
					}
					if s.Unusable != "" {
						unusable[s.Allowed]++
					}
					waits := got.State == projections.PhaseApprovalPending
					if s.Allowed && (s.Approval == contract.Always && !waits || s.Approval == contract.Never && waits || waits && len(s.Rules) == 0) {
						t.Errorf("%s: told %s by %v, got %s", p.Name, s.Approval, s.Rules, got.State)
					}
					foreseen[s.Approval]++
					if s.Allowed != slices.Contains(p.Accounts, s.Account) {
						t.Errorf("account %s of %s is in one list and not in the other", s.Account, p.Name)
					}
				}
			}
			for _, a := range told.Actions {
				submit("full", "example", "default")
				body, header := "", map[string]string{"Idempotency-Key": a.Action}
				switch a.Action {
				case "result":
					for _, line := range []string{"attempted", "accepted job-1", "observed succeeded", `collected {"ok":true}`} {
						h.play(line)
					}
				case "resume":
					h.do("full", "POST", "/v1/operations/"+h.op+"/pause", map[string]string{"Idempotency-Key": "p"}, "")
				case "input":
					for _, line := range []string{"attempted", "accepted job-2", "observed input_required"} {
						h.play(line)
					}
					s, err := h.journal.Current(t.Context(), h.op)
					if err != nil {
						t.Fatal(err)
					}
					body = fmt.Sprintf(`{"question":"q%d","input":{"answer":"yes"}}`, s.Input.Question)
				case "cleanup":
					for _, line := range []string{"attempted", "accepted job-3", "observed failed"} {
						h.play(line)
					}
				case "decide":
					body, header["If-Match"] = `{"kind":"abandon"}`, `"v1"`
				case "cancel_several":
					body = `{"items":[{"id":"` + h.op + `"}]}`
				case "approve":
					submit("other", "replicate", "default")
					body, header["If-Match"] = h.approval("approve"), `"v1"`
				case "hold":
					body = `{"provider":"example","scope":"all","why":"x"}`
				case "release":
					h.do("full", "POST", "/v1/holds", map[string]string{"Idempotency-Key": "h"}, `{"provider":"example","scope":"creates","why":"x"}`)
					body = `{"provider":"example","why":"x"}`
				}
				method := a.Method
				if a.Action == "watch" || a.Action == "feed" {
					method = http.MethodHead // which is answered as the stream would begin
				}
				check(a.Action, a.Verdict, h.ask("caller", method, strings.Replace(a.Href, "{id}", h.op, 1), header, body))
			}
			if len(told.Actions) != 23 {
				t.Errorf("%d actions", len(told.Actions))
			}
		})
	}
	if len(unusable) != 2 {
		t.Errorf("told of accounts that cannot be used, by whether a submit is taken: %v", unusable)
	}
	if len(foreseen) != 3 {
		t.Errorf("told of approvals: %v", foreseen)
	}
	// Each was both allowed and refused to somebody, or it shows nothing.
	for what := range allowed {
		if refused[what] == 0 {
			t.Errorf("%s was refused to nobody", what)
		}
	}
	for what := range refused {
		if allowed[what] == 0 {
			t.Errorf("%s was allowed to nobody", what)
		}
	}
}

// answerOf is what an answer says of a refusal.
type answerOf struct {
	status   int
	Code     ingest.Code       `json:"code"`
	Requires ingest.Scope      `json:"requires"`
	State    projections.Phase `json:"state"`
}

func (h *harness) ask(as, method, target string, header map[string]string, body string) *answerOf {
	h.t.Helper()
	w := h.do(as, method, target, header, body)
	got := &answerOf{status: w.Code}
	if err := json.Unmarshal(w.Body.Bytes(), got); err != nil && w.Code >= 300 {
		h.t.Fatal(err)
	}
	return got
}

// Without a key there is what is the same for everybody, and nothing of anybody. A
// key that is not good is refused and not taken for none.
func TestPublicCapabilities(t *testing.T) {
	h := newHarness(t)
	h.key("short", "alice", false, h.clock.Now().Add(time.Hour))
	w := h.do("", "GET", "/v1/capabilities", nil, "")
	text := w.Body.String()
	if w.Code != 200 || w.Header().Get("Vary") != "Authorization" || !strings.Contains(w.Header().Get("Cache-Control"), "private") {
		t.Fatal(w.Code, w.Header(), text)
	}
	for _, name := range append(builtin(t).Providers(), "alice", "default", `"providers"`, `"actions"`, `"caller"`) {
		if strings.Contains(text, name) {
			t.Errorf("anybody is told %s: %s", name, text)
		}
	}
	var shown ingest.Capabilities
	if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil || !shown.KeyRequired || !slices.Contains(shown.Documents, "/openapi.json") || len(shown.States) == 0 {
		t.Errorf("%v: %s", err, text)
	}
	for _, at := range shown.Documents {
		if w := h.do("", "GET", at, nil, ""); w.Code != http.StatusOK {
			t.Errorf("%s: %d", at, w.Code)
		}
	}
	mine := h.do("alice", "GET", "/v1/capabilities", nil, "")
	for as, etag := range map[string]string{"": w.Header().Get("ETag"), "alice": mine.Header().Get("ETag")} {
		again := h.do(as, "GET", "/v1/capabilities", map[string]string{"If-None-Match": etag}, "")
		if again.Code != 304 || again.Body.Len() > 0 || again.Header().Get("Vary") != "Authorization" || again.Header().Get("ETag") != etag || etag == "" {
			t.Errorf("as %q with %s: %d %v", as, etag, again.Code, again.Header())
		}
	}
	if w := h.do("alice", "GET", "/v1/capabilities", map[string]string{"If-None-Match": w.Header().Get("ETag")}, ""); w.Code != 200 {
		t.Errorf("what anybody is told is taken for what alice is: %d", w.Code)
	}
	// Who may be told when its key ends is told; afterwards it is nobody.
	if w := h.do("short", "GET", "/v1/capabilities", nil, ""); !strings.Contains(w.Body.String(), `"expires":"2026-12-01T10:00:00Z"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.play("advance 1h")
	for _, as := range []string{"short", "nobody"} {
		if w := h.do(as, "GET", "/v1/capabilities", nil, ""); w.Code != 401 {
			t.Errorf("%s: %d %s", as, w.Code, w.Body)
		}
	}
	if !strings.Contains(h.log.String(), "key_state=expired") {
		t.Error("the log does not say that the key has expired")
	}
}

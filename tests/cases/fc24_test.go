package cases_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// keyed are the ways a credential goes to a provider: how the contract says it,
// what the simulator asks for, and the secret behind the reference.
func keyed() map[string]struct {
	contract, secret string
	auth             simulator.Auth
} {
	return map[string]struct {
		contract, secret string
		auth             simulator.Auth
	}{
		"bearer": {"  header: Authorization\n  format: Bearer {secret}\n", harness.Token, simulator.Auth{Bearer: harness.Token}},
		"header": {"  header: X-Api-Key\n", harness.Token, simulator.Auth{Header: "X-Api-Key", Value: harness.Token}},
		"query":  {"  query: key\n", harness.Token, simulator.Auth{Query: "key", Value: harness.Token}},
		"basic": {
			"  basic: true\n", "user:" + harness.Token,
			simulator.Auth{Header: "Authorization", Value: "Basic dXNlcjpoYXJuZXNzLXByb3ZpZGVyLXRva2Vu"},
		},
	}
}

// linksWith is the example contract with results behind links, which need the
// credential if its own says so.
func linksWith(t *testing.T, credential string, needed bool) func(name, text string) string {
	links := byLink(t)
	return func(name, text string) string {
		text = edited(t, "example", "  header: Authorization\n  format: Bearer {secret}\n", credential)(name, links(name, text))
		if needed {
			text = edited(t, "example", "  repeat: safe\n  links:", "  repeat: safe\n  link_credential: true\n  links:")(name, text)
		}
		return text
	}
}

// carried says whether any of the token is in what arrived.
func carried(r simulator.Request) bool {
	all := r.Query
	for name, values := range r.Header {
		if name == "Authorization" || name == "Cookie" || name == "X-Api-Key" {
			return true
		}
		all += strings.Join(values, " ")
	}
	return strings.Contains(all, harness.Token) || strings.Contains(all, "dXNlcjpo")
}

// FC-24: a result link on another origin is fetched without the credential. The
// simulator refuses one there with 400.
func TestFC24LinkElsewhere(t *testing.T) {
	for _, origin := range []string{
		"http://files.example.com", "http://files.example.com:8443", "http://provider.test:8080", "http://files.provider.test", "http://provider.test.example.com",
	} {
		for how, k := range keyed() {
			if how != "bearer" && origin != "http://files.example.com" {
				continue // one place is enough for each of the others
			}
			variant(t, origin+" by "+how, func(t *testing.T) {
				h := harness.New(t, harness.Options{
					Edit: linksWith(t, k.contract, true), Secrets: map[string]string{"KEY": k.secret},
					Accounts: map[string]poller.Account{"example": {BaseURL: "http://provider.test/example", Credential: "env:KEY"}},
				})
				h.Sim.Mount("/example", simulator.Example).Configure(simulator.Options{
					Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: time.Hour, LinkBase: origin, Auth: k.auth,
				})
				op := h.Submit("k", "example", `{"n":1}`)
				op = h.Wait(op.ID, time.Minute)
				want(t, "state", op.State, "succeeded")
				if body := resultOf(t, h, op.ID); !strings.Contains(body, `"output":"done"`) {
					t.Errorf("result: %s", body)
				}
				elsewhere := 0
				for _, r := range h.Sim.Requests(simulator.Filter{}) {
					switch there := r.Host != "provider.test"; {
					case there && carried(r):
						t.Errorf("%s got the credential: %s?%s %v", r.Host, r.Path, r.Query, r.Header)
					case there:
						elsewhere++
					case !carried(r):
						t.Errorf("the provider did not get the credential at %s", r.Path)
					}
				}
				want(t, "requests elsewhere", elsewhere, 1)
				invariants(t, h, op.ID)
			})
		}
	}
}

// FC-24: a link of the provider's own origin that redirects. Only requests that
// never left the origin carry the credential.
func TestFC24Redirect(t *testing.T) {
	for _, c := range []struct {
		name string
		// through are the links that are redirected to, one by the other.
		through []string
		bare    []int // requests, from the link on, that may not carry it
	}{
		{"another host", []string{"http://files.example.com/example/v1/files/a/out-0"}, []int{1}},
		{"another port", []string{"//provider.test:8443/example/v1/files/a/out-0"}, []int{1}},
		{"a subdomain", []string{"http://files.provider.test/example/v1/files/a/out-0"}, []int{1}},
		{"the same origin, then another", []string{"/example/v1/files/a/out-0", "http://files.example.com/example/v1/files/b/out-0"}, []int{2}},
		{"another and back", []string{"http://files.example.com/example/v1/files/a/out-0", "http://provider.test/example/v1/files/b/out-0"}, []int{1, 2}},
		{"the same origin", []string{"out-1", "HTTP://PROVIDER.test:80/example/v1/files/b/out-0"}, nil},
	} {
		for how, k := range keyed() {
			if how != "bearer" && c.name != "another and back" {
				continue
			}
			variant(t, c.name+" by "+how, func(t *testing.T) {
				h := harness.New(t, harness.Options{
					Edit: linksWith(t, k.contract, true), Secrets: map[string]string{"KEY": k.secret},
					Accounts: map[string]poller.Account{"example": {BaseURL: "http://provider.test/example", Credential: "env:KEY"}},
				})
				var rules []simulator.Rule
				for i, to := range c.through {
					rules = append(rules, simulator.On(simulator.Result, simulator.Nth(i+1), simulator.Answer{
						Status: http.StatusFound, Header: http.Header{"Location": {to}, "Set-Cookie": {"session=" + harness.Token}},
						Body: `{"output":"elsewhere"}`,
					}))
				}
				rules = append(rules, simulator.On(simulator.Result, simulator.Nth(len(c.through)+1), simulator.Answer{
					Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"output":"done"}`,
				}))
				h.Sim.Mount("/example", simulator.Example, rules...).Configure(simulator.Options{
					Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: time.Hour, Auth: k.auth,
				})
				op := h.Submit("k", "example", `{"n":1}`)
				op = h.Wait(op.ID, time.Minute)
				want(t, "state", op.State, "succeeded")
				// What is at the end of the way, and not the body of a redirect.
				want(t, "result", ask(t, h, "GET", "/v1/operations/"+op.ID+"/result", "").body, `{"output":"done"}`)
				fetches := h.Sim.Requests(simulator.Filter{Call: simulator.Result})
				want(t, "requests for the file", len(fetches), len(c.through)+1)
				bare := map[int]bool{}
				for _, i := range c.bare {
					bare[i] = true
				}
				for i, r := range fetches {
					if has := carried(r); has == bare[i] {
						t.Errorf("request %d, to %s: credential there %v\n%s %v", i, r.Host, has, r.Query, r.Header)
					}
					if r.Header.Get("Cookie") != "" {
						t.Error("a cookie was kept")
					}
				}
				invariants(t, h, op.ID)
			})
		}
	}
}

// FC-24: where links need no credential none goes along, at the provider neither.
func TestFC24LinkThatNeedsNone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t)})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: time.Hour})
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Result}) {
			if carried(r) {
				t.Errorf("the credential went to %s", r.Path)
			}
		}
		invariants(t, h, op.ID)
	})
}

// FC-24: a link that brings a user and password of its own is not followed, and
// neither is shown.
func TestFC24LinkWithUser(t *testing.T) {
	for _, origin := range []string{"http://someone:s3cretword@files.example.com", "http://provider.test@files.example.com"} {
		variant(t, origin, func(t *testing.T) {
			h := harness.New(t, harness.Options{Edit: byLink(t)})
			h.Mount(simulator.Example, "example", simulator.Options{
				Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: time.Hour, LinkBase: origin,
			})
			op := h.Submit("k", "example", `{"n":1}`)
			h.Wait(op.ID, time.Minute, "result_collecting")
			time.Sleep(10 * time.Second)
			failures := factsOf(h, op.ID, "result.failed")
			if len(failures) == 0 || failures[0].Fields["class"] != "unreadable" {
				t.Errorf("failures %v", failures)
			}
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Result}); n != 0 {
				t.Errorf("the link was followed %d times", n)
			}
			if story := h.Story(op.ID); strings.Contains(story, "s3cretword") {
				t.Errorf("the password is in the history:\n%s", story)
			}
			invariants(t, h, op.ID)
		})
	}
}

package cases_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-15: a link is resolved as RFC 3986 says, against the address that gave it.
func TestFC15Location(t *testing.T) {
	for _, c := range []struct{ name, location, path, query string }{
		{"relative", "{id}", "/v1/{id}", ""},
		{"up", "../jobs/{id}", "/jobs/{id}", ""},
		{"absolute path and query", "/v1/jobs/{id}?x=1%2F2", "/v1/jobs/{id}", "x=1%2F2"},
		{"query as written", "/v1/jobs/{id}?b=2&a=x+y%2f&&c&a=~%7E", "/v1/jobs/{id}", "b=2&a=x+y%2f&&c&a=~%7E"},
		{"same host", "//provider.test/v1/jobs/{id}", "/v1/jobs/{id}", ""},
		{"default port", "http://provider.test:80/v1/jobs/{id}", "/v1/jobs/{id}", ""},
	} {
		variant(t, c.name, func(t *testing.T) {
			h := harness.New(t, harness.Options{Accounts: map[string]poller.Account{"example": account("http://provider.test")}})
			// Only the header names the address, and only the one under test leads there.
			m := h.Sim.Mount("", simulator.Example, simulator.On(simulator.Create, simulator.Always(), simulator.Links{Location: c.location}))
			m.Configure(simulator.Options{Plan: simulator.Steps(3*time.Second, "running", "succeeded"), Auth: simulator.Auth{Bearer: harness.Token}})
			op := h.Submit("k", "example", `{"n":1}`)
			op = h.Wait(op.ID, time.Minute)
			want(t, "state", op.State, "succeeded")
			reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
			if len(reads) == 0 {
				t.Fatal("no status read")
			}
			for _, r := range reads {
				want(t, "path", r.Path, strings.ReplaceAll(c.path, "{id}", op.Job.ID))
				want(t, "query", r.Query, c.query)
				want(t, "credential", r.Header.Get("Authorization"), "Bearer "+harness.Token)
			}
			invariants(t, h, op.ID)
		})
	}
}

// FC-15: an id out of a body is one path segment, whatever it holds.
func TestFC15AwkwardID(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: edited(t, "example",
			"    status_url: headers[?\"location\"].orValue(text(body.?status_url))\n", "",
			"  url: job.status_url\n", "")})
		h.Mount(simulator.Example, "example", simulator.Options{IDs: simulator.IDAwkward, Plan: simulator.Steps(3*time.Second, "running", "succeeded")})
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		for _, part := range []string{"/", "?", ".."} {
			if !strings.Contains(op.Job.ID, part) {
				t.Fatalf("the id %q does not hold %q", op.Job.ID, part)
			}
		}
		for call, after := range map[simulator.Call]string{simulator.Status: "", simulator.Result: "/result"} {
			requests := h.Sim.Requests(simulator.Filter{Call: call})
			if len(requests) == 0 {
				t.Fatalf("no %s call", call)
			}
			for _, r := range requests {
				segment, ok := strings.CutPrefix(r.Path, "/example/v1/jobs/")
				segment, ok2 := strings.CutSuffix(segment, after)
				if name, err := url.PathUnescape(segment); !ok || !ok2 || err != nil || strings.ContainsAny(segment, "/?") || name != op.Job.ID {
					t.Errorf("%s went to %s", call, r.Path)
				}
				want(t, "query", r.Query, "")
				want(t, "job", r.Job, op.Job.ID)
			}
		}
		invariants(t, h, op.ID)
	})
}

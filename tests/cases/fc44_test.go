package cases_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// secretOfTheTarget is what an address that must not be reached would answer.
const secretOfTheTarget = "content-of-the-target"

// linkedTo runs an operation whose result is a link to that origin, where the
// same simulator answers as everywhere, and gives it back when it is over or
// reports a failure of policy.
func linkedTo(t *testing.T, h *harness.House, origin string, rules ...simulator.Rule) client.Operation {
	t.Helper()
	h.Mount(simulator.Example, "example", simulator.Options{
		Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: 24 * time.Hour, LinkBase: origin,
		Result: func(simulator.Job) (string, []byte) {
			return "application/json", []byte(`{"output":"` + secretOfTheTarget + `"}`)
		},
	}, rules...)
	op := h.Submit("k", "example", `{"n":1}`)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		var err error
		if op, err = h.Client.Get(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		if op.Done || op.Problem != nil && op.Problem.Class == "policy" {
			return op
		}
	}
	t.Fatalf("neither over nor refused:\n%s", h.Story(op.ID))
	return op
}

// refusedByPolicy checks that the operation says so, and that nothing of the
// target is in it or has seen a request.
func refusedByPolicy(t *testing.T, h *harness.House, op client.Operation, address string, targets ...string) {
	t.Helper()
	if op.State != "result_collecting" && op.State != "result_unavailable" {
		t.Errorf("state %s: the job is done and its result is not here", op.State)
	}
	if op.Problem == nil || op.Problem.Class != "policy" || !strings.Contains(op.Problem.Message, address) {
		t.Errorf("problem %+v, want a policy failure about %s", op.Problem, address)
	}
	tried := 0
	for _, f := range factsOf(h, op.ID, "result.failed") {
		if f.Fields["class"] == "policy" {
			tried++
		}
	}
	if tried == 0 {
		t.Errorf("no failure of class policy in the history\n%s", h.Story(op.ID))
	}
	shown, err := json.Marshal([]any{op, h.Timeline(op.ID)})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), secretOfTheTarget) {
		t.Errorf("content of the target is shown: %s", shown)
	}
	for _, r := range h.Sim.Requests(simulator.Filter{}) {
		for _, target := range targets {
			if r.Host == target {
				t.Fatalf("a request reached %s: %s %s", target, r.Method, r.Path)
			}
		}
	}
	invariants(t, h, op.ID)
}

// FC-44: a result link leads to no address that is not public.
func TestFC44LinkInside(t *testing.T) {
	names := map[string][]string{"inside.example": {"10.0.0.8"}, "six.example": {"fd00::8"}, "localhost": {"::1"}}
	for _, c := range []struct{ host, address string }{
		{"127.0.0.1", "127.0.0.1"},
		{"127.0.0.1:8080", "127.0.0.1"},
		{"[::1]", "::1"},
		{"[::ffff:127.0.0.1]", "127.0.0.1"},
		{"0x7f000001", "0x7f000001"},
		{"2130706433", "2130706433"},
		{"127.0.0.1.", "127.0.0.1."},
		{"169.254.169.254", "169.254.169.254"},
		{"0.0.0.0", "0.0.0.0"},
		{"[64:ff9b::7f00:1]", "64:ff9b::7f00:1"},
		{"[fd00::1]", "fd00::1"},
		{"224.0.0.1", "224.0.0.1"},
		{"localhost", "::1"},
		{"inside.example", "10.0.0.8"},
		{"six.example", "fd00::8"},
	} {
		variant(t, c.host, func(t *testing.T) {
			h := harness.New(t, harness.Options{Edit: byLink(t), Names: names})
			op := linkedTo(t, h, "http://"+c.host)
			refusedByPolicy(t, h, op, c.address, c.host)
		})
	}
}

// FC-44: a refusal is tried again, as the configuration may change, until the
// time for collecting is over.
func TestFC44Ends(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t)})
		op := linkedTo(t, h, "http://127.0.0.1")
		op = await(h, op.ID, 2*time.Hour, time.Minute)
		want(t, "state", op.State, "result_unavailable")
		refusedByPolicy(t, h, op, "127.0.0.1", "127.0.0.1")
	})
}

// FC-44: the address counts that is dialled, not one that was looked up before.
func TestFC44NameThatMoves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t), Names: map[string][]string{"moves.example": {"93.184.216.34", "127.0.0.1"}}})
		op := linkedTo(t, h, "http://moves.example", simulator.On(simulator.Result, simulator.Nth(1), simulator.DropAnswer{}))
		refusedByPolicy(t, h, op, "127.0.0.1")
		want(t, "requests while the name was public", h.Sim.Count(simulator.Filter{Host: "moves.example"}), 1)
	})
}

// FC-44: a public host that redirects there.
func TestFC44RedirectInside(t *testing.T) {
	for _, c := range []struct{ name, location, host, address string }{
		{"loopback", "http://127.0.0.1/example/v1/x", "127.0.0.1", "127.0.0.1"},
		{"metadata", "http://169.254.169.254/latest/meta-data", "169.254.169.254", "169.254.169.254"},
		{"mapped", "//[::ffff:7f00:1]/", "[::ffff:7f00:1]", "127.0.0.1"},
		{"number", "http://0x7f000001/", "0x7f000001", "0x7f000001"},
		{"name", "http://inside.example/", "inside.example", "10.0.0.8"},
	} {
		for from, origin := range map[string]string{"of the provider": "", "elsewhere": "http://files.example.com"} {
			variant(t, c.name+" by a link "+from, func(t *testing.T) {
				h := harness.New(t, harness.Options{Edit: byLink(t), Names: map[string][]string{"inside.example": {"10.0.0.8"}}})
				op := linkedTo(t, h, origin, simulator.On(simulator.Result, simulator.Always(),
					simulator.Answer{Status: http.StatusFound, Header: http.Header{"Location": {c.location}}, Body: "moved"}))
				refusedByPolicy(t, h, op, c.address, c.host)
				if n := h.Sim.Count(simulator.Filter{Call: simulator.Result}); n == 0 {
					t.Error("the redirecting host was not asked, so the test shows nothing")
				}
			})
		}
	}
}

// FC-44: what the configuration allows is reached: a network, and the
// provider's own origin wherever that is.
func TestFC44Allowed(t *testing.T) {
	fetched := func(t *testing.T, h *harness.House, op client.Operation) {
		t.Helper()
		want(t, "state", op.State, "succeeded")
		if body := resultOf(t, h, op.ID); !strings.Contains(body, secretOfTheTarget) {
			t.Errorf("result: %s", body)
		}
		invariants(t, h, op.ID)
	}
	for host, network := range map[string]string{
		"127.0.0.1": "127.0.0.0/8", "[::1]": "::1/128", "[::ffff:127.0.0.1]": "127.0.0.1/32", "inside.example": "10.0.0.0/24",
	} {
		variant(t, host, func(t *testing.T) {
			h := harness.New(t, harness.Options{
				Edit: byLink(t), Names: map[string][]string{"inside.example": {"10.0.0.8"}},
				Policy: outbound.Policy{Allow: []netip.Prefix{netip.MustParsePrefix(network)}},
			})
			fetched(t, h, linkedTo(t, h, "http://"+host))
		})
	}
	variant(t, "the provider's own origin", func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t), Names: map[string][]string{"provider.test": {"127.0.0.1"}}})
		fetched(t, h, linkedTo(t, h, ""))
	})
	variant(t, "an origin of the contract", func(t *testing.T) {
		links := byLink(t)
		h := harness.New(t, harness.Options{
			Edit: func(name, text string) string {
				return edited(t, "example", "credential:\n", "origins: [http://files.inside:8080]\ncredential:\n")(name, links(name, text))
			},
			Names: map[string][]string{"files.inside": {"10.0.0.8"}},
		})
		fetched(t, h, linkedTo(t, h, "http://files.inside:8080"))
	})
	variant(t, "not another port of the provider's host", func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t), Names: map[string][]string{"provider.test": {"127.0.0.1"}}})
		op := linkedTo(t, h, "http://provider.test:8080")
		refusedByPolicy(t, h, op, "127.0.0.1", "provider.test:8080")
	})
}

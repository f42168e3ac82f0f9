package cases_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC05KeyOfAnotherRequest(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{})
		body := func(provider, action string, n int) string {
			return fmt.Sprintf(`{"provider": %q, "action": %q, "params": {"correlation": "k", "n": %d}}`, provider, action, n)
		}
		refused := func(key, body string) client.Problem {
			t.Helper()
			a := post(t, h, "/v1/operations", key, body)
			defer func() { _ = a.Body.Close() }()
			var p client.Problem
			if err := json.NewDecoder(a.Body).Decode(&p); err != nil {
				t.Fatal(err)
			}
			if a.StatusCode < 400 || a.StatusCode > 499 || p.Status != a.StatusCode {
				t.Errorf("status %d, in the body %d; want 4xx", a.StatusCode, p.Status)
			}
			if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %q", got)
			}
			if p.Type == "" || p.Type == "about:blank" {
				t.Errorf("the problem has no type: %+v", p)
			}
			return p
		}
		h.Submit("k", "example", params("k"))
		first, _, err := h.Client.Submit(t.Context(), "k2", client.Submission{Provider: "example", Action: "render", Params: []byte(`{"correlation": "k", "n": 1}`)})
		if err != nil {
			t.Fatal(err)
		}
		mismatches := map[string]client.Problem{
			"changed parameter": refused("k2", body("example", "render", 2)),
			"other action":      refused("k2", body("example", "upscale", 1)),
			"other provider":    refused("k2", body("example-lookup", "render", 1)),
		}
		for name, p := range mismatches {
			if p.Code != "idempotency_key_reused" || p.Type != mismatches["changed parameter"].Type || p.Operation != first.ID || p.Retryable {
				t.Errorf("%s: %+v", name, p)
			}
		}
		// Told apart from an invalid request, also by type. A duplicate in flight
		// has no problem at all: it gets the operation (docs/BEHAVIOUR.md, FC-04).
		for name, p := range map[string]client.Problem{
			"invalid field":    refused("k3", `{"provider": "example", "params": {}, "colour": "red"}`),
			"unknown provider": refused("k3", body("nobody", "render", 1)),
			"no JSON":          refused("k3", `{`),
		} {
			if p.Type == mismatches["changed parameter"].Type || p.Code == "idempotency_key_reused" {
				t.Errorf("%s has the type of a mismatch: %+v", name, p)
			}
		}
		now, err := h.Client.Get(t.Context(), first.ID)
		if err != nil || now.Version != first.Version || now.State != "create_pending" || now.Provider != "example" {
			t.Errorf("the first operation is now version %d %s %s, was %d, error %v", now.Version, now.State, now.Provider, first.Version, err)
		}
		if n := h.Sim.Count(simulator.Filter{}); n != 0 {
			t.Errorf("%d calls to providers", n)
		}
		time.Sleep(time.Second) // the listing is of the history, which follows the ledger
		list, err := h.Client.List(t.Context(), client.Filter{})
		if err != nil || len(list.Items) != 2 {
			t.Errorf("%d operations, want 2, error %v", len(list.Items), err)
		}
		// What was accepted goes on as if nothing had been asked meanwhile.
		h.Poller("late")
		h.Wait(first.ID, time.Minute, "succeeded")
		jobs(t, h, 2)
		if n := h.Sim.Count(simulator.Filter{Mount: "/example-lookup"}); n != 0 {
			t.Errorf("%d calls to the other provider", n)
		}
	})
}

// FC-05 for what changes an operation: a key that recorded a cancel or a decision
// records no other on that operation, and says which one it is. On another
// operation the key is free.
func TestFC05KeyOfAnotherAct(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		for path, bodies := range map[string][2]string{
			"cancel":    {`{"why":"not wanted"}`, `{"why":"in the way"}`},
			"pause":     {`{"why":"a look"}`, `{"why":"a longer look"}`},
			"decisions": {`{"kind":"extend","deadline":"result","until":"2h"}`, `{"kind":"abandon"}`},
		} {
			first, second := h.Submit("first"+path, "example", params(path)).ID, h.Submit("second"+path, "example", params(path+"2")).ID
			act := func(id, body string) answer {
				t.Helper()
				return ask(t, h, "POST", "/v1/operations/"+id+"/"+path, body, "Idempotency-Key", `"k"`, "If-Match", `"v1"`)
			}
			if a := act(first, bodies[0]); a.status > 299 {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			before := len(h.Timeline(first))
			var p client.Problem
			a := act(first, bodies[1])
			if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 422 || p.Code != "idempotency_key_reused" || p.Operation != first || p.RetryWith != "never" {
				t.Errorf("%s under another body: %d %s", path, a.status, a.body)
			}
			want(t, path+": facts", len(h.Timeline(first)), before)
			if a := act(second, bodies[1]); a.status > 299 || a.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s of another operation: %d %s", path, a.status, a.body)
			}
		}
		want(t, "calls to the provider", h.Sim.Count(simulator.Filter{}), 0)
	})
}

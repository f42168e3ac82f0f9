package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// byLink makes the example contract fetch results by the link that a status
// answer gives.
func byLink(t *testing.T) func(name, text string) string {
	return edited(t, "example", `result:
  from: request
  path: /v1/jobs/{job.id}/result
  repeat: safe
  read:
    not_ready: status in [404, 409]
    expired: status == 410
  checks:
    - name: json
      json: true
`, `result:
  from: status
  repeat: safe
  links: "[body.?result_url.orValue('')].filter(l, l != '')"
  link_checks:
    - name: json
      json: true
`)
}

// FC-23: what is kept is the content, not a link that runs out.
func TestFC23ShortLivedLink(t *testing.T) {
	variant(t, "read later", func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t)})
		h.Mount(simulator.Example, "example", simulator.Options{
			Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: 5 * time.Second,
		})
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		time.Sleep(time.Minute)
		calls := h.Sim.Count(simulator.Filter{})
		if body := resultOf(t, h, op.ID); !strings.Contains(body, `"output":"done"`) {
			t.Errorf("result: %s", body)
		}
		want(t, "calls for the agent's read", h.Sim.Count(simulator.Filter{}), calls)
		invariants(t, h, op.ID)
	})

	variant(t, "run out before the first fetch", func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: byLink(t)})
		h.Mount(simulator.Example, "example", simulator.Options{
			Plan: simulator.Steps(time.Second, "running", "succeeded"), LinkTTL: 5 * time.Second,
		}, simulator.On(simulator.Result, simulator.Nth(1), simulator.DelayBefore(6*time.Second)))
		op := h.Submit("k", "example", `{"n":1}`)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")
		fetches := h.Sim.Requests(simulator.Filter{Call: simulator.Result})
		if len(fetches) != 2 {
			t.Fatalf("%d fetches\n%s", len(fetches), h.Story(op.ID))
		}
		want(t, "first fetch", fetches[0].Status, 403)
		want(t, "second fetch", fetches[1].Status, 200)
		if fetches[0].Path+fetches[0].Query == fetches[1].Path+fetches[1].Query {
			t.Error("the old link was used again")
		}
		fresh := 0
		for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Status}) {
			if r.At.After(fetches[0].Done) && !r.At.After(fetches[1].At) {
				fresh++
			}
		}
		want(t, "status reads between the two", fresh, 1)
		failed := factsOf(h, op.ID, "result.failed")
		want(t, "failures in the history", len(failed), 1)
		want(t, "class", failed[0].Fields["class"], "expired")
		want(t, "state after it", failed[0].To, "result_collecting")
		if body := resultOf(t, h, op.ID); !strings.Contains(body, `"output":"done"`) {
			t.Errorf("result: %s", body)
		}
		invariants(t, h, op.ID)
	})
}

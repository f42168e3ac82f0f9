package cases_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-41: numbers keep their digits on the way there and back.
func TestFC41Numbers(t *testing.T) {
	texts := map[string]string{"a": "9007199254740991", "b": "1.0", "c": "1e2", "d": "0.1"}
	const params = `{"a":9007199254740991,"b":1.0,"c":1e2,"d":0.1,"e":"9223372036854775807"}`
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{Edit: edited(t, "example",
			"    status_url: headers[?\"location\"].orValue(text(body.?status_url))\n", "",
			"  url: job.status_url\n", "")})
		h.Mount(simulator.Example, "example", simulator.Options{
			IDs: simulator.IDNumber, Echo: true, Plan: simulator.Steps(3*time.Second, "running", "succeeded"),
		})
		op := h.Submit("k", "example", params)
		op = h.Wait(op.ID, time.Minute)
		want(t, "state", op.State, "succeeded")

		const id = "9007199254740993"
		reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
		if len(reads) == 0 {
			t.Error("no status read")
		}
		for _, r := range reads {
			want(t, "status URL", r.Path, "/example/v1/jobs/"+id)
		}
		want(t, "job id", op.Job.ID, id)
		for _, name := range []string{"create.answered", "job.observed"} {
			list := factsOf(h, op.ID, name)
			if len(list) == 0 {
				t.Errorf("no %s in the history", name)
			}
			for _, e := range list {
				want(t, "job id in the history", e.Fields["job_id"], id)
			}
		}
		creates := h.Sim.Requests(simulator.Filter{Call: simulator.Create})
		want(t, "creates", len(creates), 1)
		check := func(what string, doc []byte) {
			t.Helper()
			var m map[string]json.RawMessage
			if err := json.Unmarshal(doc, &m); err != nil {
				t.Fatalf("%s: %v in %s", what, err, doc)
			}
			for name, text := range texts {
				want(t, what+": "+name, string(m[name]), text)
			}
			want(t, what+": e", string(m["e"]), `"9223372036854775807"`)
		}
		check("the provider's request", creates[0].Body)
		// The provider's echo, as the agent gets it.
		var result struct {
			Request json.RawMessage `json:"request"`
		}
		if err := json.Unmarshal([]byte(resultOf(t, h, op.ID)), &result); err != nil {
			t.Fatal(err)
		}
		check("the result's echo", result.Request)
		// What we keep of the caller's request and of the provider's answer.
		kept, echoed := false, false
		for from := uint64(1); ; {
			m, err := h.Store.Next(t.Context(), journal.Payloads, "payloads.>", from)
			if err != nil {
				break
			}
			kept = kept || string(m.Data) == params
			from = m.Sequence + 1
		}
		for from := uint64(1); ; {
			m, err := h.Store.Next(t.Context(), journal.Ledger, "facts.>", from)
			if err != nil {
				break
			}
			echoed = echoed || bytes.Contains(m.Data, []byte(`"b":1.0,"c":1e2,"d":0.1`)) && bytes.Contains(m.Data, []byte(`"job_id":`+id))
			from = m.Sequence + 1
		}
		want(t, "the caller's bytes are kept", kept, true)
		want(t, "the provider's bytes are kept", echoed, true)
		invariants(t, h, op.ID)
	})
}

// FC-41: an id that a look-up or a webhook gives as a number keeps its digits.
func TestFC41NumericIDFound(t *testing.T) {
	for _, webhooks := range []bool{false, true} {
		variant(t, map[bool]string{false: "look-up", true: "webhook"}[webhooks], func(t *testing.T) {
			h := harness.New(t, harness.Options{Webhooks: webhooks, Edit: edited(t, "example-lookup",
				"    status_url: headers[?\"location\"].orValue(text(body.?status_url))\n", "",
				"    status_url: item.?status_url\n", "", "  url: job.status_url\n", "")})
			rules := []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.DropAnswer{})}
			if webhooks {
				rules = append(rules, simulator.On(simulator.List, simulator.Always(), simulator.Reply(500)))
			}
			h.Mount(simulator.ExampleLookup, "example-lookup", simulator.Options{
				IDs: simulator.IDNumber, Plan: simulator.Steps(3*time.Second, "running", "succeeded"),
			}, rules...)
			op := h.Submit("k", "example-lookup", `{"n":1}`)
			op = await(h, op.ID, 5*time.Minute, time.Second)
			want(t, "state", op.State, "succeeded")
			want(t, "job id", op.Job.ID, "9007199254740993")
			reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
			if len(reads) == 0 {
				t.Error("no status read")
			}
			for _, r := range reads {
				want(t, "status URL", r.Path, "/example-lookup/v1/jobs/9007199254740993")
			}
			want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
			want(t, "jobs", len(h.Sim.Jobs()), 1)
			invariants(t, h, op.ID)
		})
	}
}

// FC-41: a number that cannot be told from its neighbours is refused.
func TestFC41NumberOutOfRange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{})
		// The last two are doubles themselves; other integers round to the same.
		for _, n := range []string{"9223372036854775807", "-9223372036854775808", "9007199254740992"} {
			_, _, err := h.Client.Submit(t.Context(), "k", client.Submission{Provider: "example", Params: []byte(`{"deep":{"n":` + n + `}}`)})
			p := problemOf(t, err)
			want(t, n+": status", p.Status, 422)
			want(t, n+": code", p.Code, "number_out_of_range")
			if len(p.Errors) != 1 || p.Errors[0].Field != "/params/deep/n" {
				t.Errorf("%s: fields: %+v", n, p.Errors)
			}
		}
		time.Sleep(time.Minute)
		for stream, subject := range map[journal.Stream]string{journal.Ledger: "facts.>", journal.History: "history.>"} {
			if m, err := h.Store.Last(t.Context(), stream, subject); err == nil && !strings.HasSuffix(m.Subject, ".takeover") {
				t.Errorf("stored on %s: %s", stream, m.Subject)
			}
		}
		for from := uint64(1); ; {
			m, err := h.Store.Next(t.Context(), journal.Payloads, "payloads.>", from)
			if err != nil {
				break
			}
			if bytes.Contains(m.Data, []byte(`"deep"`)) {
				t.Error("the refused parameters are stored")
			}
			from = m.Sequence + 1
		}
		want(t, "calls to the provider", h.Sim.Count(simulator.Filter{}), 0)
		// The key is free: nothing was recorded under it.
		op := h.Submit("k", "example", `{"deep":{"n":"9223372036854775807"}}`)
		want(t, "as a string", h.Wait(op.ID, time.Minute).State, "succeeded")
		invariants(t, h, op.ID)
	})
}

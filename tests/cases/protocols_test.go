package cases_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// toolAnswer is what a tool answered: an operation, or a problem.
type toolAnswer struct {
	client.Operation
	Problem *ingest.Problem // nil: no error
	Text    string
}

// tool calls a tool of the Model Context Protocol.
func tool(t *testing.T, h *harness.House, name, arguments string) toolAnswer {
	t.Helper()
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, name, arguments)
	a := ask(t, h, "POST", "/mcp", message, "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", name)
	text := a.body
	if _, data, ok := strings.Cut(text, "data: "); ok { // as an event of a stream
		text, _, _ = strings.Cut(data, "\n")
	}
	var answer struct {
		Result *struct {
			Error      bool            `json:"isError"`
			Structured json.RawMessage `json:"structuredContent"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Result == nil {
		t.Fatalf("%s: %d %s %v", name, a.status, a.body, err)
	}
	out := toolAnswer{Text: string(answer.Result.Structured)}
	if answer.Result.Error {
		out.Problem = &ingest.Problem{}
		if err := json.Unmarshal(answer.Result.Structured, out.Problem); err != nil {
			t.Fatalf("%s: %s %v", name, a.body, err)
		}
		return out
	}
	if err := json.Unmarshal(answer.Result.Structured, &out.Operation); err != nil {
		t.Fatalf("%s: %s %v", name, a.body, err)
	}
	return out
}

// FC-18 by MCP and NATS: the default deadline is on the record, and one that is over or
// beyond the maximum is refused by the same problem before anything is stored or sent.
func TestFC18ByEveryProtocol(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(0, "running")})
		for i, wish := range []string{"0s", "-1s", "2000-01-01T00:00:00Z", "365000d", "31d"} {
			body := `{"provider":"example","params":{},"deadlines":{"result":"` + wish + `"}}`
			id := fmt.Sprint("bad-", i)
			publish(t, h, id, "", body)
			for name, p := range map[string]*ingest.Problem{
				"NATS": verdict(t, h, id).Problem,
				"MCP":  tool(t, h, "submit_operation", `{"idempotency_key":"`+id+`",`+body[1:]).Problem,
			} {
				if p == nil || p.Status != 422 || p.Code != ingest.CodeInvalid || len(p.Errors) != 1 || p.Errors[0].Field != "/deadlines/result" {
					t.Errorf("%s by %s: %+v", wish, name, p)
				}
			}
		}
		time.Sleep(time.Minute)
		want(t, "calls to the provider", h.Sim.Count(simulator.Filter{}), 0)
		if m, err := h.Store.Last(t.Context(), journal.Ledger, "facts.>"); !errors.Is(err, journal.ErrNoMessage) {
			t.Errorf("a fact was stored: %s %v", m.Subject, err)
		}

		publish(t, h, "good", "", `{"provider":"example","params":{"n":1}}`)
		v := verdict(t, h, "good")
		if v.Operation == nil {
			t.Fatalf("by NATS: %+v", v.Problem)
		}
		called := tool(t, h, "submit_operation", `{"idempotency_key":"good","provider":"example","params":{"n":2}}`)
		if called.Problem != nil {
			t.Fatalf("by MCP: %s", called.Text)
		}
		for name, id := range map[string]string{"NATS": v.Operation.ID, "MCP": called.ID} {
			op := h.Wait(id, time.Minute, "observing")
			if op.Deadlines.Result == nil || !op.Deadlines.Result.Equal(op.Started.Add(24*time.Hour)) {
				t.Errorf("by %s: the record shows result deadline %v for a start at %v", name, op.Deadlines.Result, op.Started)
			}
			want(t, name+": stored deadline", factsOf(h, id, "intent.recorded")[0].Fields["deadline_result"], "1 day")
		}
		// The same end as by HTTP: the service is down for most of the day.
		h.Stop()
		time.Sleep(24*time.Hour - 2*time.Minute)
		h.Start()
		for _, id := range []string{v.Operation.ID, called.ID} {
			op := await(h, id, 4*time.Minute, time.Second)
			want(t, "state", op.State, "result_timed_out")
			if got := tool(t, h, "get_operation", `{"id":"`+id+`"}`); got.State != "result_timed_out" || got.Reason != "result_deadline" {
				t.Errorf("by MCP it is %s", got.Text)
			}
		}
		invariants(t, h, v.Operation.ID, called.ID)
	})
}

// FC-19 by NATS and MCP: an intent that came by NATS is cancelled by a tool before its
// job's id is known; the wish waits for the id and outlives a restart.
func TestFC19ByEveryProtocol(t *testing.T) {
	for name, restart := range map[string]bool{"id arrives": false, "restart": true} {
		variant(t, name, func(t *testing.T) {
			h := harness.New(t, harness.Options{})
			provider := "example"
			if restart {
				provider = "example-lookup"
			}
			h.Mount(simulator.Dialect(provider), provider, simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running"}}, CancelAfter: 5 * time.Second}},
				simulator.On(simulator.Create, simulator.Nth(1), simulator.DelayAfter(3*time.Second)))
			publish(t, h, "1", "", `{"provider":"`+provider+`","params":{"n":1},"deadlines":{"create":"1m30s"}}`)
			v := verdict(t, h, "1")
			if v.Operation == nil {
				t.Fatalf("%+v", v.Problem)
			}
			id := v.Operation.ID
			time.Sleep(time.Second)
			arguments := `{"id":"` + id + `","idempotency_key":"c","why":"changed my mind"}`
			asked := tool(t, h, "cancel_operation", arguments)
			if asked.Problem != nil || asked.Cancel == nil || !asked.Cancel.Wished || asked.Job != nil || asked.State != "create_pending" {
				t.Fatalf("after the cancel: %s", asked.Text)
			}
			if restart {
				time.Sleep(time.Second)
				h.Kill()
				h.Start()
			}
			now := tool(t, h, "get_operation", `{"id":"`+id+`"}`)
			if now.Cancel == nil || !now.Cancel.Wished || now.State == "cancelled" {
				t.Fatalf("later: %s", now.Text)
			}
			// The call again, as by an agent that lost the answer.
			if again := tool(t, h, "cancel_operation", arguments); again.Problem != nil || again.Cancel == nil || !again.Cancel.Wished {
				t.Errorf("again: %s", again.Text)
			}
			op := await(h, id, 3*time.Minute, time.Second)
			want(t, "state", op.State, "cancelled")
			confirmedCancel(t, h, op)
			want(t, "wishes", len(factsOf(h, id, "cancel.requested")), 1)
			want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
			// The event again names the operation as it now stands.
			publish(t, h, "1", "", `{"provider":"`+provider+`","params":{"n":1},"deadlines":{"create":"1m30s"}}`)
			for range 600 {
				if v = verdict(t, h, "1"); v.Replayed {
					break
				}
				time.Sleep(100 * time.Millisecond) // of fake time
			}
			if !v.Replayed || v.Operation == nil || v.Operation.ID != id || v.Operation.State != "cancelled" {
				t.Errorf("the event again: %+v", v)
			}
			invariants(t, h, id)
		})
	}
}

// FC-20 by MCP: a cancel of what has ended changes nothing and asks nobody, and ten at
// once are one.
func TestFC20ByMCP(t *testing.T) {
	for _, ends := range []string{"succeeded", "failed"} {
		variant(t, ends, func(t *testing.T) {
			h := harness.New(t, harness.Options{})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", ends)})
			op := h.Submit("k", "example", `{"n":1}`)
			want(t, "state", h.Wait(op.ID, time.Minute).State, ends)
			before := tool(t, h, "get_operation", `{"id":"`+op.ID+`"}`).Text
			calls, facts := h.Sim.Count(simulator.Filter{}), len(h.Timeline(op.ID))
			got := tool(t, h, "cancel_operation", `{"id":"`+op.ID+`","idempotency_key":"c"}`)
			if p := got.Problem; p == nil || p.Code != ingest.CodeAlreadyTerminal || p.Status != 409 || string(p.State) != ends || p.RetryWith != ingest.RetryNever {
				t.Errorf("got %s", got.Text)
			}
			time.Sleep(time.Minute)
			want(t, "state and all else", tool(t, h, "get_operation", `{"id":"`+op.ID+`"}`).Text, before)
			want(t, "facts", len(h.Timeline(op.ID)), facts)
			want(t, "provider calls", h.Sim.Count(simulator.Filter{}), calls)
			invariants(t, h, op.ID)
		})
	}

	variant(t, "at once, and when cancelled", func(t *testing.T) {
		h := harness.New(t, harness.Options{Pollers: 2})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running"}}, CancelAfter: 5 * time.Second}})
		op := h.Submit("k", "example", `{"n":1}`)
		h.Wait(op.ID, time.Minute, "observing")
		var all sync.WaitGroup
		answers := make([]toolAnswer, 10)
		for i := range answers {
			all.Go(func() {
				answers[i] = tool(t, h, "cancel_operation", fmt.Sprintf(`{"id":%q,"idempotency_key":"c%d"}`, op.ID, i))
			})
		}
		all.Wait()
		for i, a := range answers {
			if a.Problem != nil || a.ID != op.ID || a.Cancel == nil || !a.Cancel.Wished || a.State != "cancel_requested" && a.State != "cancelling" {
				t.Errorf("answer %d: %s", i, a.Text)
			}
		}
		want(t, "state", h.Wait(op.ID, time.Minute).State, "cancelled")
		want(t, "cancels at the provider", h.Sim.Count(simulator.Filter{Call: simulator.Cancel}), 1)
		facts, calls := len(h.Timeline(op.ID)), h.Sim.Count(simulator.Filter{})
		if again := tool(t, h, "cancel_operation", `{"id":"`+op.ID+`","idempotency_key":"late"}`); again.Problem != nil || again.State != "cancelled" {
			t.Errorf("of a cancelled one: %s", again.Text)
		}
		time.Sleep(time.Minute)
		want(t, "facts", len(h.Timeline(op.ID)), facts)
		want(t, "provider calls", h.Sim.Count(simulator.Filter{}), calls)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
		invariants(t, h, op.ID)
	})
}

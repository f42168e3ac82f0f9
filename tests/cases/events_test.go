package cases_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

const submitType = "dev.counterfoil.operation.submit.v1"

// publish stores an event in INTENTS, as the server does for the agent whose key it is.
func publish(t *testing.T, h *harness.House, id, key, data string) {
	t.Helper()
	keyID, _, _ := strings.Cut(strings.TrimPrefix(h.Bearer, "cf_"), ".")
	header := map[string][]string{"ce-specversion": {"1.0"}, "ce-type": {submitType}, "ce-source": {"/a"}, "ce-id": {id}}
	if key != "" {
		header["ce-idempotencykey"] = []string{key}
	}
	if _, err := h.Store.Publish(t.Context(), journal.Intents, journal.Outgoing{Subject: "intents.tester." + keyID, Header: header, Data: []byte(data)}); err != nil {
		t.Fatal(err)
	}
}

// verdict reads the answer to an event.
func verdict(t *testing.T, h *harness.House, id string) ingest.IntentVerdict {
	t.Helper()
	for range 600 {
		m, err := h.Store.Last(t.Context(), journal.Verdicts, "verdicts.tester."+intake.Token("/a", id))
		if errors.Is(err, journal.ErrNoMessage) {
			time.Sleep(100 * time.Millisecond) // of fake time
			continue
		}
		var v ingest.IntentVerdict
		if err == nil {
			err = json.Unmarshal(m.Data, &v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	t.Fatalf("no verdict on %s came within a minute", id)
	return ingest.IntentVerdict{}
}

// FC-05 and FC-06 by every protocol: the same intent under the same key as JSON, as
// an event by HTTP in each mode, as an event on NATS and as a call of an MCP tool is
// one operation, with one fingerprint; another intent under the key is refused by all.
func TestFC06OneIntentByEveryProtocol(t *testing.T) {
	const body = `{"provider":"example","action":"render","params":{"correlation":"k","n":1}}`
	const again = `{"params":{"n":1.0,"correlation":"k"},"action":"render","provider":"example"}`
	const other = `{"provider":"example","action":"render","params":{"correlation":"k","n":2}}`
	envelope := func(id, data string) string {
		return fmt.Sprintf(`{"specversion":"1.0","type":%q,"source":"/a","id":%q,"idempotencykey":"k","data":%s}`, submitType, id, data)
	}
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		ways := map[string]func(id, data string) string{
			"JSON": func(_, data string) string {
				return ask(t, h, "POST", "/v1/operations", data, "Idempotency-Key", "k").body
			},
			"binary": func(id, data string) string {
				return ask(t, h, "POST", "/v1/events", data, "ce-specversion", "1.0", "ce-type", submitType, "ce-source", "/a", "ce-id", id, "ce-idempotencykey", "k").body
			},
			"structured": func(id, data string) string {
				return ask(t, h, "POST", "/v1/events", envelope(id, data), "Content-Type", "application/cloudevents+json").body
			},
			"batch": func(id, data string) string {
				return ask(t, h, "POST", "/v1/events", "["+envelope(id, data)+"]", "Content-Type", "application/cloudevents-batch+json").body
			},
			"MCP": func(_, data string) string {
				message := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"submit_operation","arguments":{"idempotency_key":"k",` + data[1:] +
					`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
				return ask(t, h, "POST", "/mcp", message, "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "submit_operation").body
			},
			"NATS": func(id, data string) string {
				publish(t, h, id, "k", data)
				text, err := json.Marshal(verdict(t, h, id))
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			},
		}
		publish(t, h, "first", "k", body)
		first := verdict(t, h, "first")
		if first.Status != 202 || first.Operation == nil {
			t.Fatalf("the first: %+v", first)
		}
		for name, way := range ways {
			if text := way(name, again); !strings.Contains(text, first.Operation.ID) || strings.Contains(text, "idempotency_key_reused") {
				t.Errorf("%s: the same intent: %s", name, text)
			}
			if text := way(name+" other", other); !strings.Contains(text, "idempotency_key_reused") {
				t.Errorf("%s: another intent: %s", name, text)
			}
		}
		want(t, "intents", len(factsOf(h, first.Operation.ID, "intent.recorded")), 1)
		// Without a key an event is named by its source and id, by either protocol.
		publish(t, h, "unnamed", "", body)
		unnamed := verdict(t, h, "unnamed")
		a := ask(t, h, "POST", "/v1/events", again, "ce-specversion", "1.0", "ce-type", submitType, "ce-source", "/a", "ce-id", "unnamed")
		if unnamed.Operation == nil || unnamed.Operation.ID == first.Operation.ID || a.status != 200 || !strings.Contains(a.body, unnamed.Operation.ID) {
			t.Errorf("without a key: %+v, by HTTP %d %s", unnamed, a.status, a.body)
		}
	})
}

// FC-04 over NATS: the same event again while the first is being taken up is one
// operation.
func TestFC04OverlappingIntents(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		for range 20 {
			publish(t, h, "1", "", `{"provider":"example","params":{"correlation":"k","n":1}}`)
		}
		v := verdict(t, h, "1")
		if v.Operation == nil {
			t.Fatalf("got %+v", v)
		}
		want(t, "state", h.Wait(v.Operation.ID, time.Minute).State, "succeeded")
		want(t, "intents", len(factsOf(h, v.Operation.ID, "intent.recorded")), 1)
		for range 600 {
			if _, err := h.Store.Last(t.Context(), journal.Intents, "intents.*.*"); errors.Is(err, journal.ErrNoMessage) {
				break
			}
			time.Sleep(100 * time.Millisecond) // of fake time
		}
		if _, err := h.Store.Last(t.Context(), journal.Intents, "intents.*.*"); !errors.Is(err, journal.ErrNoMessage) {
			t.Errorf("intents are left: %v", err)
		}
	})
}

package mcp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// raw sends messages as no client of the SDK does.
type raw struct {
	t    *testing.T
	h    *harness.House
	key  string
	n    int
	meta string // of each request
}

const (
	declaresTasks = `"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}`
	onlyTasks     = `"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}`
	declaresNone  = `"io.modelcontextprotocol/clientCapabilities": {}`
)

type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// ask makes one request. name is what the headers say the request is about.
func (c *raw) ask(method, name, params string) reply {
	c.t.Helper()
	c.n++
	body := fmt.Sprintf(`{"jsonrpc": "2.0", "id": %d, "method": %q, "params": {%s, "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"}, %s}}}`, c.n, method, params, c.meta)
	status, media, text := c.post(body, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name})
	var r reply
	if strings.HasPrefix(media, "text/event-stream") {
		text = lastEvent(c.t, text)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		c.t.Fatalf("%s: %d %s", method, status, text)
	}
	return r
}

func (c *raw) post(body string, header map[string]string) (status int, media, text string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	a, err := c.h.HTTP.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	answer, err := io.ReadAll(a.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return a.StatusCode, a.Header.Get("Content-Type"), string(answer)
}

func lastEvent(t *testing.T, text string) string {
	t.Helper()
	last := ""
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			last = data
		}
	}
	return last
}

// shownTask is what the extension says of a task.
type shownTask struct {
	ResultType    string  `json:"resultType"`
	ID            string  `json:"taskId"`
	Status        string  `json:"status"`
	StatusMessage string  `json:"statusMessage"`
	Created       string  `json:"createdAt"`
	Updated       string  `json:"lastUpdatedAt"`
	TTL           *int    `json:"ttlMs"`
	Poll          float64 `json:"pollIntervalMs"`
	Result        *struct {
		ResultType string `json:"resultType"`
		Content    []struct{ Type, Text string }
		Structured struct {
			State  string
			Code   string
			Output *struct{ Text string }
		} `json:"structuredContent"`
		IsError bool `json:"isError"`
	} `json:"result"`
	Inputs map[string]struct {
		Method string
		Params struct {
			Mode   string
			Schema struct {
				Properties map[string]struct {
					Enum []string `json:"enum"`
				} `json:"properties"`
			} `json:"requestedSchema"`
		} `json:"params"`
	} `json:"inputRequests"`
}

func (c *raw) task(method, id, more string) shownTask {
	c.t.Helper()
	r := c.ask(method, id, fmt.Sprintf(`"taskId": %q%s`, id, more))
	if r.Error != nil {
		c.t.Fatalf("%s: %+v", method, r.Error)
	}
	return c.read(r)
}

func (c *raw) read(r reply) shownTask {
	c.t.Helper()
	var s shownTask
	if err := json.Unmarshal(r.Result, &s); err != nil {
		c.t.Fatalf("%s: %v", r.Result, err)
	}
	for _, member := range []string{"ttlMs"} {
		if s.ID != "" && !strings.Contains(string(r.Result), `"`+member+`":null`) {
			c.t.Errorf("%s is not null in %s", member, r.Result)
		}
	}
	return s
}

func (c *raw) submit(key, provider, account string) shownTask {
	c.t.Helper()
	r := c.ask("tools/call", "submit_operation", fmt.Sprintf(
		`"name": "submit_operation", "arguments": {"idempotency_key": %q, "provider": %q, "account": %q, "params": {"correlation": %[1]q}}`, key, provider, account))
	if r.Error != nil {
		c.t.Fatalf("submit: %+v", r.Error)
	}
	return c.read(r)
}

// until polls as it is told to until the status is the wanted one.
func (c *raw) until(id, status string) shownTask {
	c.t.Helper()
	for range 100 {
		s := c.task("tasks/get", id, "")
		if s.Status == status {
			return s
		}
		if s.Poll <= 0 {
			c.t.Fatalf("%s is %s, not %s, and no poll is suggested", id, s.Status, status)
		}
		time.Sleep(time.Duration(s.Poll) * time.Millisecond)
	}
	c.t.Fatalf("%s does not come to %s\n%s", id, status, c.h.Story(id))
	return shownTask{}
}

// A task goes from its creation to a result, an outcome that failed, and a
// cancellation, as the extension says.
func TestTaskToItsEnd(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		plan := func(states ...string) simulator.Options {
			return simulator.Options{Plan: simulator.Steps(5*time.Second, states...)}
		}
		h.Mount(simulator.Example, "example", plan("queued", "running", "succeeded"))
		h.Mount(simulator.ExampleLookup, "example-lookup", plan("queued", "failed"))
		c := &raw{t: t, h: h, key: h.Bearer, meta: declaresTasks}
		made := c.submit("good", "example", "default")
		if made.ResultType != "task" || made.Status != "working" || made.ID == "" || made.Created == "" || made.Updated == "" || made.Inputs != nil {
			t.Fatalf("made: %+v", made)
		}
		if again := c.submit("good", "example", "default"); again.ID != made.ID || again.ResultType != "task" {
			t.Errorf("the same submit again: %+v", again)
		}
		if now := c.task("tasks/get", made.ID, ""); now.ResultType != "complete" || now.ID != made.ID {
			t.Errorf("tasks/get right after: %+v", now)
		}
		end := c.until(made.ID, "completed")
		if r := end.Result; r == nil || r.ResultType != "complete" || r.IsError || r.Structured.State != "succeeded" || r.Structured.Output == nil || r.Structured.Output.Text == "" || len(r.Content) != 1 {
			t.Errorf("completed: %+v", end)
		}
		failed := c.until(c.submit("bad", "example-lookup", "default").ID, "completed")
		if r := failed.Result; r == nil || !r.IsError || r.Structured.Code != "no_result" || r.Structured.State != "failed" {
			t.Errorf("a failure of the provider: %+v", failed)
		}
		wished := c.submit("wish", "example", "default")
		if ack := c.task("tasks/cancel", wished.ID, ""); ack.ResultType != "complete" || ack.ID != "" {
			t.Errorf("tasks/cancel: %+v", ack)
		}
		c.task("tasks/cancel", wished.ID, "") // again, and it is heard again
		c.until(wished.ID, "cancelled")
		c.task("tasks/cancel", made.ID, "") // too late, and only heard
		if r := c.ask("tools/call", "submit_operation", `"name": "submit_operation", "arguments": {"provider": "example", "params": {}}`); r.Error != nil || !strings.Contains(string(r.Result), "idempotency_key_missing") || !strings.Contains(string(r.Result), `"resultType":"complete"`) {
			t.Errorf("a refused submit: %s %+v", r.Result, r.Error)
		}
	})
}

// A stopped operation asks for a decision on the very state that is shown, once.
func TestTaskAsksForADecision(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		c := &raw{t: t, h: h, key: h.Bearer, meta: declaresTasks}
		id := c.submit("k", "example-ask", "default").ID
		stopped := c.until(id, "input_required")
		key := ""
		for name, input := range stopped.Inputs {
			key = name
			if input.Method != "elicitation/create" || input.Params.Mode != "form" || len(input.Params.Schema.Properties["decision"].Enum) == 0 {
				t.Errorf("input request: %+v", input)
			}
		}
		op, err := h.Client.Get(t.Context(), id)
		if err != nil || key != fmt.Sprintf("q-%d", op.Sequence) || len(stopped.Inputs) != 1 {
			t.Fatalf("keys of %+v; the operation's newest sequence is %d", stopped.Inputs, op.Sequence)
		}
		answer := func(key, response string) shownTask {
			t.Helper()
			return c.task("tasks/update", id, fmt.Sprintf(`, "inputResponses": {%q: %s}`, key, response))
		}
		// What is not asked, and what is declined, changes nothing.
		answer("q-1", `{"action": "accept", "content": {"decision": "abandon"}}`)
		answer("other", `{"action": "accept", "content": {"decision": "abandon"}}`)
		answer(key, `{"action": "decline"}`)
		if now := c.task("tasks/get", id, ""); now.Status != "input_required" {
			t.Errorf("after answers to nothing: %+v", now)
		}
		bad := c.ask("tasks/update", id, fmt.Sprintf(`"taskId": %q, "inputResponses": {%q: {"action": "accept", "content": {"decision": "explode"}}}`, id, key))
		if bad.Error == nil || bad.Error.Code != -32602 || !strings.Contains(string(bad.Error.Data), `"validation_failed"`) {
			t.Errorf("a decision there is not: %+v", bad.Error)
		}
		if ack := answer(key, `{"action": "accept", "content": {"decision": "abandon", "why": "a trial", "job_id": "", "accept_risk": false}}`); ack.ResultType != "complete" {
			t.Errorf("tasks/update: %+v", ack)
		}
		answer(key, `{"action": "accept", "content": {"decision": "abandon", "why": "a trial"}}`) // its answer was lost
		end := c.until(id, "completed")
		if r := end.Result; r == nil || !r.IsError || r.Structured.State != "abandoned" {
			t.Errorf("abandoned: %+v", end)
		}
		n := 0
		for _, e := range h.Timeline(id) {
			if strings.Contains(e.Type, "decision.made") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d decisions\n%s", n, h.Story(id))
		}
		// Through a client that cannot ask anybody the task goes on working, and says so.
		c.meta = onlyTasks
		second := c.submit("k2", "example-ask", "default").ID
		h.Wait(second, time.Minute, "quarantined")
		if now := c.task("tasks/get", second, ""); now.Status != "working" || now.Inputs != nil || !strings.Contains(now.StatusMessage, "decide_operation") {
			t.Errorf("without forms: %+v", now)
		}
	})
}

// Tasks are for those who declare the extension, and only their own.
func TestTasksAreGuarded(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		c := &raw{t: t, h: h, key: h.Bearer, meta: declaresTasks}
		id := c.submit("k", "example", "default").ID
		stranger := &raw{t: t, h: h, key: addKey(t, h, "stranger"), meta: declaresTasks}
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			unknown := c.ask(method, "op_none", `"taskId": "op_none"`)
			foreign := stranger.ask(method, id, fmt.Sprintf(`"taskId": %q`, id))
			invalid := c.ask(method, "x", `"taskId": "op.>"`)
			missing := c.ask(method, "x", `"more": 1`)
			for name, r := range map[string]reply{"unknown": unknown, "foreign": foreign, "invalid": invalid, "missing": missing} {
				if r.Error == nil || r.Error.Code != -32602 || r.Error.Message != unknown.Error.Message {
					t.Errorf("%s of an %s id: %s %+v", method, name, r.Result, r.Error)
				}
			}
			plain := &raw{t: t, h: h, key: h.Bearer, meta: declaresNone}
			if r := plain.ask(method, id, fmt.Sprintf(`"taskId": %q`, id)); r.Error == nil || r.Error.Code != -32021 || !strings.Contains(string(r.Error.Data), `"io.modelcontextprotocol/tasks":{}`) {
				t.Errorf("%s without the extension: %s %+v", method, r.Result, r.Error)
			}
		}
		if op, err := h.Client.Get(t.Context(), id); err != nil || op.Cancel != nil {
			t.Errorf("a stranger's cancel came through: %+v %v", op.Cancel, err)
		}
		for _, method := range []string{"tasks/list", "tasks/result"} {
			if r := c.ask(method, "x", `"taskId": "x"`); r.Error == nil || r.Error.Code != -32601 {
				t.Errorf("%s: %+v", method, r.Error)
			}
		}
		// What is only tried out is no task.
		tried := c.ask("tools/call", "submit_operation", `"name": "submit_operation", "arguments": {"idempotency_key": "tried", "provider": "example", "params": {}, "validate_only": true}`)
		if !strings.Contains(string(tried.Result), `"resultType":"complete"`) || strings.Contains(string(tried.Result), "taskId") || !strings.Contains(string(tried.Result), `"validation":`) {
			t.Errorf("tried out: %s %+v", tried.Result, tried.Error)
		}
		// A wish for a task, as of an older revision, is none.
		plain := &raw{t: t, h: h, key: h.Bearer, meta: declaresNone}
		r := plain.ask("tools/call", "submit_operation", `"name": "submit_operation", "task": {"ttl": 1}, "arguments": {"idempotency_key": "k", "provider": "example", "params": {"correlation": "k"}}`)
		if !strings.Contains(string(r.Result), `"resultType":"complete"`) || strings.Contains(string(r.Result), "taskId") {
			t.Errorf("without the extension: %s", r.Result)
		}
	})
}

// What is no message of the protocol is a problem too.
func TestEnvelopesAreStrict(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		c := &raw{t: t, h: h, key: h.Bearer}
		const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_operation","arguments":{"id":"op_x"}}}`
		for _, e := range []struct {
			name, body string
			header     map[string]string
			status     int
			code       string
		}{
			{"nothing", ``, nil, 400, "malformed_json"},
			{"half a message", call[:40], nil, 400, "malformed_json"},
			{"two messages", call + call, nil, 400, "malformed_json"},
			{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", nil, 400, "malformed_json"},
			{"a method twice", strings.Replace(call, `"id":1`, `"id":1,"method":"tools/list"`, 1), nil, 400, "duplicate_key"},
			{"arguments twice", strings.Replace(call, `"name":`, `"arguments":{},"name":`, 1), nil, 400, "duplicate_key"},
			{"a number", `7`, nil, 400, "protocol_error"},
			{"no JSON-RPC", `{"id":1}`, nil, 400, "protocol_error"},
			{"wants no stream", call, map[string]string{"Accept": "application/json"}, 400, "protocol_error"},
			{"an unknown version", call, map[string]string{"Mcp-Protocol-Version": "1999-01-01"}, 400, "protocol_error"},
			{"nested beyond measure", strings.Repeat(`{"a":`, 20000), nil, 400, "malformed_json"},
		} {
			status, media, text := c.post(e.body, e.header)
			var p struct {
				Code   string
				Status int
			}
			if err := json.Unmarshal([]byte(text), &p); err != nil || status != e.status || p.Code != e.code || media != "application/problem+json" {
				t.Errorf("%s: %d %s %s", e.name, status, media, text)
			}
		}
		// Nothing tells of changes, so nothing stays open for them.
		c.meta = declaresNone
		if r := c.ask("subscriptions/listen", "", `"notifications": {"toolsListChanged": true}`); r.Error == nil || r.Error.Code != -32601 {
			t.Errorf("a subscription: %s %+v", r.Result, r.Error)
		}
		// A name twice within the arguments is for the tool to refuse.
		_, _, text := c.post(strings.Replace(call, `{"id":"op_x"}`, `{"id":"op_x","id":"op_y"}`, 1), nil)
		if !strings.Contains(text, `"isError":true`) || !strings.Contains(text, "duplicate_key") {
			t.Errorf("an argument twice: %s", text)
		}
	})
}

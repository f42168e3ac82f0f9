// Package mcp_test drives a whole installation through the Model Context
// Protocol: the SDK's own client against /mcp, and raw messages for what no Go
// client knows.
package mcp_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const endpoint = "http://counterfoil.test/mcp"

// inHouse runs a test against an installation of its own, in fake time.
func inHouse(t *testing.T, o harness.Options, run func(t *testing.T, h *harness.House)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Correlate = true
		run(t, harness.New(t, o))
	})
}

// bearer adds the key to what a client sends.
type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.next.RoundTrip(r)
}

// connect opens a session of the SDK's client.
func connect(t *testing.T, h *harness.House, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return connectAs(t, h, h.Bearer, o)
}

func connectAs(t *testing.T, h *harness.House, key string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: bearer{key, h.HTTP.Transport}}, DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// call calls a tool whose answer is decoded into into. It gives the result.
func call(t *testing.T, s *mcp.ClientSession, name string, arguments any, into any) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	decode(t, r, into)
	described(t, s, name, r)
	return r
}

// described checks that the tool's output schema describes what it answered.
func described(t *testing.T, s *mcp.ClientSession, name string, r *mcp.CallToolResult) {
	t.Helper()
	tool := listed(t, s, name)
	if tool == nil {
		return
	}
	var schema jsonschema.Schema
	remarshal(t, tool.OutputSchema, &schema)
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatalf("output schema of %s: %v", name, err)
	}
	if err := resolved.Validate(r.StructuredContent); err != nil {
		t.Errorf("%s answers what its schema does not describe: %v", name, err)
	}
	// One of the two it is, and not by saying nothing of either.
	which := schema.AnyOf[0]
	if r.IsError {
		which = schema.AnyOf[1]
	}
	if len(which.Required) == 0 {
		t.Errorf("the output schema of %s demands nothing", name)
	}
	// Members that come later are no breach.
	later := map[string]any{}
	remarshal(t, r.StructuredContent, &later)
	later["of_tomorrow"] = 1
	for _, v := range later {
		if inner, ok := v.(map[string]any); ok {
			inner["of_tomorrow"] = "x"
		}
	}
	if err := resolved.Validate(later); err != nil {
		t.Errorf("%s could not answer more than it does today: %v", name, err)
	}
	if resolved, err = which.Resolve(nil); err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(r.StructuredContent); err != nil {
		t.Errorf("%s, failed %v: %v", name, r.IsError, err)
	}
}

func remarshal(t *testing.T, from, into any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// listed is the tool as it is described to the caller; nil if it is not.
func listed(t *testing.T, s *mcp.ClientSession, name string) *mcp.Tool {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		if tool.Name == name {
			return tool
		}
	}
	return nil
}

// decode reads the structured content, which must be what the text says.
func decode(t *testing.T, r *mcp.CallToolResult, into any) {
	t.Helper()
	structured, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	text := r.Content[0].(*mcp.TextContent).Text
	var a, b any
	if json.Unmarshal(structured, &a) != nil || json.Unmarshal([]byte(text), &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("the text is not the structured content:\n%s\n%s", text, structured)
	}
	if err := json.Unmarshal(structured, into); err != nil {
		t.Fatalf("%s: %v", structured, err)
	}
}

func object(text string) json.RawMessage { return json.RawMessage(text) }

// One agent does everything an agent does.
func TestAgentTakesAnOperationToItsResult(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(20*time.Second, "queued", "running", "succeeded")})
		var heard []string
		s := connect(t, h, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			heard = append(heard, r.Params.Message)
		}})
		if v := s.InitializeResult().ProtocolVersion; v != "2026-07-28" {
			t.Errorf("protocol version %s", v)
		}
		var can struct {
			Providers []struct{ Name string }
			Decisions []string
		}
		call(t, s, "get_capabilities", nil, &can)
		if len(can.Providers) != 3 || len(can.Decisions) == 0 {
			t.Errorf("capabilities: %+v", can)
		}
		var op client.Operation
		arguments := object(`{"idempotency_key": "report-17", "provider": "example", "params": {"correlation": "a", "n": 1}, "session": "s"}`)
		call(t, s, "submit_operation", arguments, &op)
		if op.ID == "" || op.Done {
			t.Fatalf("submitted: %+v", op)
		}
		// A lost answer: the same call again.
		var again client.Operation
		if call(t, s, "submit_operation", arguments, &again); again.ID != op.ID || again.OriginalStatus != 202 {
			t.Errorf("the same call again: %s, its first status %d", again.ID, again.OriginalStatus)
		}
		var early client.Problem
		if r := call(t, s, "get_result", object(`{"id": "`+op.ID+`"}`), &early); !r.IsError || early.Code != "result_not_ready" || !early.Retryable {
			t.Errorf("an early get_result: %+v", early)
		}
		params := &mcp.CallToolParams{Name: "wait_operation", Arguments: object(`{"id": "` + op.ID + `", "wait_seconds": 55}`)}
		params.SetProgressToken("token")
		r, err := s.CallTool(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		decode(t, r, &op)
		if op.State != "succeeded" || !op.Done {
			t.Fatalf("waited: %s\n%s", op.State, h.Story(op.ID))
		}
		synctest.Wait()
		if len(heard) < 2 || !slices.ContainsFunc(heard, func(m string) bool { return strings.HasPrefix(m, "observing") }) {
			t.Errorf("progress heard: %q", heard)
		}
		var result struct {
			Text      string `json:"text"`
			Included  bool   `json:"included"`
			MediaType string `json:"media_type"`
			SHA256    string `json:"sha256"`
			Size      int    `json:"size"`
			Href      string `json:"href"`
		}
		call(t, s, "get_result", object(`{"id": "`+op.ID+`"}`), &result)
		if !result.Included || result.SHA256 != op.Result.SHA256 || len(result.Text) != result.Size || result.Href != "/v1/operations/"+op.ID+"/result" {
			t.Errorf("result: %+v", result)
		}
		whole := result.Size
		result.Text = ""
		if call(t, s, "get_result", object(`{"id": "`+op.ID+`", "max_bytes": 1}`), &result); result.Included || result.Text != "" || result.Size != whole {
			t.Errorf("a result beyond the bound: %+v", result)
		}
		var line struct{ Entries []struct{ Type string } }
		if call(t, s, "get_timeline", object(`{"id": "`+op.ID+`"}`), &line); len(line.Entries) < 4 {
			t.Errorf("timeline: %+v", line)
		}
		var page struct{ Items []client.Operation }
		if call(t, s, "list_operations", object(`{"session": "s"}`), &page); len(page.Items) != 1 || page.Items[0].ID != op.ID {
			t.Errorf("list: %+v", page)
		}
		var late client.Problem
		if r := call(t, s, "cancel_operation", object(`{"id": "`+op.ID+`", "idempotency_key": "c"}`), &late); !r.IsError || late.Code != "already_terminal" {
			t.Errorf("a late cancel: %+v", late)
		}
		if n := len(h.Sim.Jobs()); n != 1 {
			t.Errorf("%d jobs at the provider", n)
		}
	})
}

// The same intent by HTTP and by MCP is one operation.
func TestSameIntentHasSameFingerprint(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		s := connect(t, h, nil)
		op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
			Provider: "example", Params: object(`{"correlation":"a","big":1.50,"text":"caf\u00e9 <&>"}`), Tags: map[string]string{"b": "2", "a": "1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		var same struct {
			ID       string
			Original int `json:"original_status"`
		}
		call(t, s, "submit_operation", object(`{"tags": {"a": "1", "b": "2"}, "idempotency_key": "k", "params": {"text": "café <&>", "big": 15e-1, "correlation": "a"},
			"provider": "example", "session": "another"}`), &same)
		if same.ID != op.ID || same.Original != 202 {
			t.Errorf("by MCP it is %s, by HTTP %s", same.ID, op.ID)
		}
		var p client.Problem
		if r := call(t, s, "submit_operation", object(`{"idempotency_key": "k", "provider": "example", "params": {"correlation": "b"}}`), &p); !r.IsError || p.Code != "idempotency_key_reused" || p.Operation != op.ID {
			t.Errorf("another intent under the key: %+v", p)
		}
	})
}

// Every refusal is a problem document that says what to do.
func TestRefusalsAreProblems(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		s := connect(t, h, nil)
		for _, c := range []struct{ tool, arguments, code, field string }{
			{"submit_operation", `{"provider": "example", "params": {}}`, "idempotency_key_missing", "/idempotency_key"},
			{"submit_operation", `{"idempotency_key": "a b", "provider": "example", "params": {}}`, "idempotency_key_invalid", "/idempotency_key"},
			{"submit_operation", `{"idempotency_key": 7, "provider": "example", "params": {}}`, "validation_failed", "/idempotency_key"},
			{"submit_operation", `{"idempotency_key": "a", "provider": "example", "params": {}, "colour": 1}`, "validation_failed", "/colour"},
			{"submit_operation", `{"idempotency_key": "a", "provider": "example", "params": {"n": 9007199254740993}}`, "number_out_of_range", "/params/n"},
			{"submit_operation", `{"idempotency_key": "a", "provider": "nobody", "params": {}}`, "unknown_provider", "/provider"},
			{"get_operation", `{}`, "validation_failed", "/id"},
			{"get_operation", `{"id": "op_x", "more": 1}`, "validation_failed", "/more"},
			{"get_operation", `{"id": "op_x"}`, "not_found", ""},
			{"get_operation", `{"id": "op.>"}`, "invalid_id", "id"},
			{"get_operation", `7`, "validation_failed", ""},
			{"wait_operation", `{"id": "op_x", "wait_seconds": 56}`, "validation_failed", "/wait_seconds"},
			{"wait_operation", `{"id": "op_x", "wait_seconds": -1}`, "validation_failed", "/wait_seconds"},
			{"list_operations", `{"limit": 201}`, "validation_failed", "/limit"},
			{"list_operations", `{"state": "nowhere"}`, "validation_failed", "state"},
			{"list_operations", `{"tags": {"A": "b"}}`, "validation_failed", "tag"},
			{"list_operations", `{"tags": {"a": 1}}`, "validation_failed", "/tags/a"},
			{"list_operations", `{"client_reference": "a", "cursor": "x"}`, "validation_failed", "client_reference"},
			{"list_operations", `{"cursor": "x"}`, "cursor_invalid", ""},
			{"cancel_operation", `{"id": "op_x"}`, "idempotency_key_missing", "/idempotency_key"},
			{"cancel_operation", `{"idempotency_key": "x"}`, "validation_failed", "/id"},
			{"decide_operation", `{"id": "op_x", "idempotency_key": "d", "kind": "abandon"}`, "precondition_required", "/version"},
			{"decide_operation", `{"id": "op_x", "idempotency_key": "d", "version": 1, "kind": "explode"}`, "validation_failed", "/kind"},
			{"get_result", `{"id": "op_x", "max_bytes": 1048577}`, "validation_failed", "/max_bytes"},
			{"get_timeline", `{"id": "op_x", "limit": 201}`, "validation_failed", "/limit"},
			{"get_capabilities", `{"all": true}`, "validation_failed", "/all"},
		} {
			var p client.Problem
			r := call(t, s, c.tool, object(c.arguments), &p)
			field := ""
			if len(p.Errors) > 0 {
				field = p.Errors[0].Field
			}
			if !r.IsError || p.Code != c.code || field != c.field || p.Status < 400 || p.Title == "" || p.Hint == "" {
				t.Errorf("%s %s: %s at %q, want %s at %q: %+v", c.tool, c.arguments, p.Code, field, c.code, c.field, p)
			}
		}
		if n := h.Sim.Count(simulator.Filter{}); n != 0 {
			t.Errorf("%d calls to providers", n)
		}
	})
}

// A stopped operation says what may be decided, and is decided once.
func TestDecideOnce(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		s := connect(t, h, nil)
		var op client.Operation
		call(t, s, "submit_operation", object(`{"idempotency_key": "k", "provider": "example-ask", "params": {"correlation": "a"}}`), &op)
		call(t, s, "wait_operation", object(`{"id": "`+op.ID+`"}`), &op)
		if op.State != "quarantined" || !op.Done || op.Terminal {
			t.Fatalf("%s\n%s", op.State, h.Story(op.ID))
		}
		decision := fmt.Sprintf(`{"id": %q, "idempotency_key": "d", "version": %d, "kind": "abandon", "why": "it was a trial"}`, op.ID, op.Version)
		var after client.Operation
		if call(t, s, "decide_operation", object(decision), &after); after.State != "abandoned" {
			t.Errorf("decided: %s", after.State)
		}
		if call(t, s, "decide_operation", object(decision), &after); after.OriginalStatus != 201 {
			t.Error("the same decision again is not a replay")
		}
		var p client.Problem
		if call(t, s, "decide_operation", object(strings.Replace(decision, `"d"`, `"e"`, 1)), &p); p.Code != "stale" {
			t.Errorf("another decision on a version that is over: %+v", p)
		}
	})
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// The wait ends with its client, with its time, and with the service.
func TestWaitIsBounded(t *testing.T) {
	log := &lines{}
	inHouse(t, harness.Options{Log: log.logger()}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")})
		s := connect(t, h, nil)
		var op client.Operation
		call(t, s, "submit_operation", object(`{"idempotency_key": "k", "provider": "example", "params": {"correlation": "a"}}`), &op)
		op = h.Wait(op.ID, time.Minute, "observing")
		begun := time.Now()
		call(t, s, "wait_operation", object(`{"id": "`+op.ID+`", "wait_seconds": 10}`), &op)
		if took := time.Since(begun); took < 9*time.Second || took > 11*time.Second || op.Done {
			t.Errorf("a wait of 10 s took %s, done %v", took, op.Done)
		}
		begun = time.Now()
		call(t, s, "wait_operation", object(`{"id": "`+op.ID+`"}`), &op)
		if took := time.Since(begun); took < 24*time.Second || took > 26*time.Second {
			t.Errorf("a wait without a time took %s", took)
		}
		// The client leaves: nobody waits any more at the service either.
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		told := strings.Count(log.String(), "tool=wait_operation")
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "wait_operation", Arguments: object(`{"id": "` + op.ID + `"}`)}); err == nil {
			t.Error("a cancelled wait answered")
		}
		time.Sleep(time.Second)
		if n := strings.Count(log.String(), "tool=wait_operation"); n != told+1 {
			t.Errorf("%d waits were over before, %d are a second after the client left", told, n)
		}
		// The service stops: it tells what it knows.
		begun = time.Now()
		var took time.Duration
		var err error
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "wait_operation", Arguments: object(`{"id": "` + op.ID + `", "wait_seconds": 55}`)})
			took = time.Since(begun)
		}()
		time.Sleep(3 * time.Second)
		h.Stop()
		if <-waited; err != nil || took < 2*time.Second || took > 5*time.Second {
			t.Errorf("a wait at a service that stops after 3 s took %s, error %v", took, err)
		}
	})
}

// A log says which tool was called by whom, about which operation, and nothing of
// what was said.
func TestArgumentsAreNotLogged(t *testing.T) {
	log := &lines{}
	inHouse(t, harness.Options{Log: log.logger(), NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		s := connect(t, h, nil)
		var op client.Operation
		call(t, s, "submit_operation", object(`{"idempotency_key": "canary-key", "provider": "example", "params": {"correlation": "canary-param"}, "session": "canary-session"}`), &op)
		var p client.Problem
		call(t, s, "submit_operation", object(`{"idempotency_key": "canary-key", "provider": "canary-provider", "params": {}, "canary-member": 1}`), &p)
		call(t, s, "get_operation", object(`{"id": "canary id"}`), &p)
		call(t, s, "cancel_operation", object(`{"id": "`+op.ID+`", "idempotency_key": "canary-cancel", "why": "canary-why"}`), &op)
		raw := &raw{t: t, h: h, key: h.Bearer, meta: declaresTasks}
		raw.ask("tasks/get", "canary-task", `"taskId": "canary-task"`)
		raw.post(`{"canary-envelope": 1, "canary-envelope": 2}`, nil)
		raw.post(`{"jsonrpc": "2.0", "id": 1, "method": "canary-method", "params": {}}`, nil)
		synctest.Wait()
	})
	for _, want := range []string{"tool=submit_operation", "principal=tester", "operation=op_", "code=validation_failed", "tool=cancel_operation"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in the log", want)
		}
	}
	if strings.Contains(log.String(), "canary") {
		t.Errorf("what a caller said is in the log:\n%s", log)
	}
}

// Tools say what they do, and their lists are nobody else's.
func TestToolList(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		s := connect(t, h, nil)
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if list.CacheScope != "private" {
			t.Errorf("the list's cache scope is %q", list.CacheScope)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
			if tool.Annotations == nil || !tool.Annotations.IdempotentHint || tool.OutputSchema == nil || tool.Description == "" {
				t.Errorf("%s is not described: %+v", tool.Name, tool)
			}
			changes := strings.Contains(tool.Description, "same idempotency_key")
			if tool.Annotations.ReadOnlyHint == changes {
				t.Errorf("%s: read only %v, retry rule %v", tool.Name, tool.Annotations.ReadOnlyHint, changes)
			}
		}
		slices.Sort(names)
		want := []string{
			"cancel_operation", "decide_operation", "get_capabilities", "get_operation", "get_result", "get_timeline", "list_operations", "submit_operation", "wait_operation",
		}
		if !slices.Equal(names, want) {
			t.Errorf("tools %v", names)
		}
	})
}

// addKey makes a key of the principal with the scopes, or the usual ones.
func addKey(t *testing.T, h *harness.House, principal string, scopes ...ingest.Scope) string {
	t.Helper()
	key, bearer, err := ingest.NewKey(rand.Reader, principal, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if len(scopes) > 0 {
		key.Scopes = scopes
	}
	if err := ingest.AddKey(filepath.Join(h.Dir(), "keys.jsonl"), key); err != nil {
		t.Fatal(err)
	}
	return bearer
}

// A key sees the tools it has a scope for; a tool it does not see refuses it, and
// says what it takes.
func TestToolsFollowScopes(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		op := h.Submit("k", "example", `{"correlation": "k"}`)
		reads := []string{"get_capabilities", "get_operation", "get_result", "get_timeline", "list_operations", "wait_operation"}
		for scope, tools := range map[ingest.Scope][]string{
			ingest.ScopeReadOwn:               reads,
			ingest.ScopeCancel:                {"cancel_operation", "get_capabilities"},
			ingest.ScopeDecide:                {"decide_operation", "get_capabilities"},
			ingest.SubmitScope("example", ""): {"get_capabilities", "submit_operation"},
			ingest.ScopeAdmin:                 append([]string{"cancel_operation", "decide_operation"}, reads...),
		} {
			key := addKey(t, h, "tester", scope)
			s := connectAs(t, h, key, nil)
			list, err := s.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
			}
			slices.Sort(names)
			if slices.Sort(tools); !slices.Equal(names, tools) {
				t.Errorf("%s: tools %v, want %v", scope, names, tools)
			}
			for tool, arguments := range map[string]string{
				"submit_operation": fmt.Sprintf(`{"idempotency_key": %q, "provider": "example", "params": {"correlation": %[1]q}}`, "s-"+scope),
				"get_operation":    `{"id": "` + op.ID + `"}`,
				"cancel_operation": `{"id": "` + op.ID + `", "idempotency_key": "c", "version": 99}`,
				"decide_operation": `{"id": "` + op.ID + `", "idempotency_key": "d", "version": 99, "kind": "abandon"}`,
			} {
				var p struct {
					Code     string
					Requires string
				}
				r := call(t, s, tool, object(arguments), &p)
				forbidden := r.IsError && p.Code == "forbidden" && p.Requires != ""
				if sees := slices.Contains(tools, tool); sees == forbidden {
					t.Errorf("%s: %s is listed: %v; its answer: %+v", scope, tool, sees, p)
				}
			}
		}
	})
}

// The input schemas name what the service reads, no more and no less.
func TestInputSchemasAreWhatIsRead(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
		s := connect(t, h, nil)
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			var p client.Problem
			arguments := `{"id": "op_x", "idempotency_key": "k", "version": 1, "colour": 1}`
			if tool.Name == "decide_operation" { // without a kind nothing is read but who is to be asked
				arguments = strings.Replace(arguments, "{", `{"kind": "abandon", `, 1)
			}
			call(t, s, tool.Name, object(arguments), &p)
			read := map[string]bool{}
			for _, e := range p.Errors {
				for _, name := range e.Allowed {
					read[name] = true
				}
			}
			var schema jsonschema.Schema
			remarshal(t, tool.InputSchema, &schema)
			for _, name := range []string{"id", "idempotency_key", "version"} {
				delete(read, name)
				if _, ok := schema.Properties[name]; ok {
					read[name] = true
				}
			}
			for name := range schema.Properties {
				if !read[name] {
					t.Errorf("%s describes %s, which is not read", tool.Name, name)
				}
				delete(read, name)
			}
			if len(read) > 0 {
				t.Errorf("%s reads %v, which it does not describe", tool.Name, read)
			}
			for _, name := range schema.Required {
				if schema.Properties[name] == nil {
					t.Errorf("%s requires %s, which it does not describe", tool.Name, name)
				}
			}
		}
	})
}

// A decision without a kind is the user's, on the very state that the form shows.
func TestUserIsAsked(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
		stopped := func(key string) client.Operation {
			t.Helper()
			op := h.Submit(key, "example-ask", `{"correlation": "`+key+`"}`)
			return h.Wait(op.ID, time.Minute, "quarantined")
		}
		var shown []*mcp.ElicitParams
		var answer func() *mcp.ElicitResult
		s := connect(t, h, &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			shown = append(shown, r.Params)
			return answer(), nil
		}})
		op := stopped("a")
		abandon := func() *mcp.ElicitResult {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": "abandon", "why": "a trial"}}
		}
		answer = abandon
		decide := func(op client.Operation, key string) json.RawMessage {
			return object(`{"id": "` + op.ID + `", "idempotency_key": "` + key + `"}`)
		}
		var after client.Operation
		if call(t, s, "decide_operation", decide(op, "d"), &after); after.State != "abandoned" {
			t.Errorf("decided: %+v", after)
		}
		var form struct {
			Properties map[string]struct{ Enum []string }
			Required   []string
		}
		remarshal(t, shown[0].RequestedSchema, &form)
		if len(shown) != 1 || !strings.Contains(shown[0].Message, op.ID) || !slices.Contains(form.Properties["decision"].Enum, "abandon") || !slices.Equal(form.Required, []string{"decision"}) {
			t.Errorf("asked %d times, %+v %+v", len(shown), shown[0], form)
		}
		// What is over is not asked about.
		var p client.Problem
		if r := call(t, s, "decide_operation", decide(op, "e"), &p); !r.IsError || p.Code != "already_terminal" || len(shown) != 1 {
			t.Errorf("after the end: %+v", p)
		}
		// A user who does not want to decides nothing.
		op = stopped("b")
		answer = func() *mcp.ElicitResult { return &mcp.ElicitResult{Action: "decline"} }
		var declined struct {
			State    string
			Declined bool
		}
		if call(t, s, "decide_operation", decide(op, "d"), &declined); declined.State != "quarantined" || !declined.Declined {
			t.Errorf("declined: %+v", declined)
		}
		// While the user thinks somebody else decides: another state, and another question,
		// or none.
		answer = func() *mcp.ElicitResult {
			if _, err := h.Client.Decide(t.Context(), op.ID, op.Version, "other", client.Decision{Kind: "abandon"}); err != nil {
				t.Error(err)
			}
			return abandon()
		}
		if r := call(t, s, "decide_operation", decide(op, "d"), &p); !r.IsError || p.Code != "already_terminal" {
			t.Errorf("decided on a state that is over: %+v", p)
		}
		// The answer to the user's decision was lost, and is sent again.
		op = stopped("c")
		c := &raw{t: t, h: h, key: h.Bearer, meta: `"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}`}
		params := `"name": "decide_operation", "arguments": {"id": "` + op.ID + `", "idempotency_key": "d"}`
		asked := c.ask("tools/call", "decide_operation", params)
		key := fmt.Sprintf("q-%d", op.Sequence)
		if !strings.Contains(string(asked.Result), `"resultType":"input_required"`) || !strings.Contains(string(asked.Result), `"`+key+`":{`) {
			t.Fatalf("asked: %s %+v", asked.Result, asked.Error)
		}
		said := params + `, "inputResponses": {"` + key + `": {"action": "accept", "content": {"decision": "abandon"}}}`
		first := c.ask("tools/call", "decide_operation", said)
		second := c.ask("tools/call", "decide_operation", said)
		if !strings.Contains(string(first.Result), `"state":"abandoned"`) || !strings.Contains(string(second.Result), `"original_status":201`) {
			t.Errorf("first %s\nsecond %s", first.Result, second.Result)
		}
		// The state moved on under the question, and can still be decided: the user is
		// asked about the new one.
		op = stopped("d")
		params = `"name": "decide_operation", "arguments": {"id": "` + op.ID + `", "idempotency_key": "d"}`
		if _, err := h.Client.Pause(t.Context(), op.ID, "a while"); err != nil {
			t.Fatal(err)
		}
		late := c.ask("tools/call", "decide_operation", params+fmt.Sprintf(`, "inputResponses": {"q-%d": {"action": "accept", "content": {"decision": "abandon"}}}`, op.Sequence))
		now, err := h.Client.Get(t.Context(), op.ID)
		if err != nil || now.State != "quarantined" || !strings.Contains(string(late.Result), fmt.Sprintf(`"q-%d":{`, now.Sequence)) {
			t.Errorf("an answer to a question that is over: %s, the operation is %s, error %v", late.Result, now.State, err)
		}
		// A client that cannot ask is told so.
		c.meta = declaresNone
		if r := c.ask("tools/call", "decide_operation", params); !strings.Contains(string(r.Result), "cannot ask its user") || !strings.Contains(string(r.Result), `"/kind"`) {
			t.Errorf("a client that cannot ask: %s %+v", r.Result, r.Error)
		}
	})
}

// An approval is another principal's, over the digest of what waits, with a kind or by a
// form that shows it; whoever submitted it is refused.
func TestApproval(t *testing.T) {
	const rules = "policy: 1\napproval:\n  - {name: all, when: 'true', why: everything is looked at}\n"
	inHouse(t, harness.Options{Rules: rules}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{})
		boss := addKey(t, h, "boss", ingest.ScopeApprove, ingest.ScopeReadAll)
		var shown []*mcp.ElicitParams
		s := connectAs(t, h, boss, &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			shown = append(shown, r.Params)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": "approve", "why": "seen"}}, nil
		}})
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil || !slices.ContainsFunc(tools.Tools, func(t *mcp.Tool) bool { return t.Name == "decide_operation" }) {
			t.Fatalf("%v %v", tools, err)
		}
		var op, after client.Operation
		own := connect(t, h, nil)
		call(t, own, "submit_operation", object(`{"idempotency_key": "a", "provider": "example", "params": {"correlation": "a"}}`), &op)
		if op.State != "approval_pending" || op.Approval.Demands[0].Rule != "all" {
			t.Fatalf("%+v", op)
		}
		decide := func(more string) json.RawMessage {
			return object(`{"id": "` + op.ID + `", "idempotency_key": "d"` + more + `}`)
		}
		var p client.Problem
		approve := fmt.Sprintf(`, "version": %d, "kind": "approve", "digest": %q`, op.Version, op.Approval.Digest)
		if r := call(t, own, "decide_operation", decide(approve), &p); !r.IsError || p.Code != "self_approval" {
			t.Errorf("its own: %+v", p)
		}
		if r := call(t, s, "decide_operation", decide(strings.ReplaceAll(approve, op.Approval.Digest[:8], "00000000")), &p); !r.IsError || p.Code != "approval_differs" {
			t.Errorf("another digest: %+v", p)
		}
		call(t, s, "decide_operation", decide(""), &after)
		if after.Approval == nil || after.Approval.State != "granted" || after.Approval.By != "boss" || len(shown) != 1 || !strings.Contains(shown[0].Message, op.Approval.Digest) {
			t.Fatalf("%+v, asked %d times", after, len(shown))
		}
		h.Wait(op.ID, time.Hour, "succeeded")
		// With a kind there is no question, and a denial ends it unsent.
		call(t, own, "submit_operation", object(`{"idempotency_key": "b", "provider": "example", "params": {"correlation": "b"}}`), &op)
		deny := fmt.Sprintf(`, "version": %d, "kind": "deny", "digest": %q`, op.Version, op.Approval.Digest)
		if call(t, s, "decide_operation", decide(deny), &after); after.State != "abandoned" || after.Reason != "approval_denied" || after.Attempts.Permitted != 0 || len(shown) != 1 {
			t.Errorf("%+v", after)
		}
	})
}

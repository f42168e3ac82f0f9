package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
)

// speak starts counterfoil mcp beside the agent, as an agent does.
func speak(t testing.TB, server, key string) (*mcp.ClientSession, *exec.Cmd, *strings.Builder) {
	t.Helper()
	cmd := exec.Command("counterfoil", "mcp")
	cmd.Env = append(os.Environ(), "COUNTERFOIL_SERVER="+server, "COUNTERFOIL_KEY="+key)
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("connect: %v\n%s", err, stderr)
	}
	return s, cmd, stderr
}

func tool(t *testing.T, s *mcp.ClientSession, name, arguments string, into any) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(arguments)})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := json.Unmarshal([]byte(r.Content[0].(*mcp.TextContent).Text), into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return r
}

// An agent takes an operation to its result through the process beside it, and is
// told what it needs when the service is gone.
func TestMCPOnStandardInputAndOutput(t *testing.T) {
	st, err := newStage(filepath.Join(t.TempDir(), "data"), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	if st.contracts, err = hurried(); err != nil {
		t.Fatal(err)
	}
	const quick = 100 * time.Millisecond
	st.mount("example", "default", steps(quick, "queued", "running", "succeeded"))
	st.mount("example-ask", "lost", steps(quick, "running", "succeeded"),
		simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true}))
	if err := st.open(context.Background()); err != nil {
		t.Fatal(err)
	}
	st.work("1", nil)
	server := "http://" + st.local.listener.Addr().String()
	s, cmd, stderr := speak(t, server, st.bearer)

	var op struct {
		ID       string
		State    string
		Done     bool
		Version  int
		Original int `json:"original_status"`
		Code     string
		Type     string
	}
	const submit = `{"idempotency_key": "\"odd\" key"}`
	if r := tool(t, s, "submit_operation", submit, &op); !r.IsError || op.Code != "idempotency_key_invalid" || op.Type != server+"/errors/idempotency_key_invalid" {
		t.Errorf("a key there cannot be: %+v", op)
	}
	tool(t, s, "submit_operation", `{"idempotency_key": "k", "provider": "example", "params": {"n": 1.50}}`, &op)
	first := op.ID
	if tool(t, s, "submit_operation", `{"params": {"n": 1.5}, "provider": "example", "idempotency_key": "k"}`, &op); op.ID != first || op.Original != 202 {
		t.Errorf("the same again: %+v", op)
	}
	if tool(t, s, "wait_operation", `{"id": "`+first+`", "wait_seconds": 30}`, &op); op.State != "succeeded" {
		t.Fatalf("waited: %+v", op)
	}
	var result struct {
		Text, SHA256, Href string
		Included           bool
		Size               int
	}
	if tool(t, s, "get_result", `{"id": "`+first+`"}`, &result); !result.Included || result.Text == "" || len(result.SHA256) != 64 || result.Href != server+"/v1/operations/"+first+"/result" {
		t.Errorf("result: %+v", result)
	}
	if tool(t, s, "get_result", `{"id": "`+first+`", "max_bytes": 1}`, &result); result.Included || result.Size < 2 {
		t.Errorf("a result beyond the bound: %+v", result)
	}
	tool(t, s, "submit_operation", `{"idempotency_key": "l", "provider": "example-ask", "account": "lost", "params": {}}`, &op)
	lost := op.ID
	tool(t, s, "wait_operation", `{"id": "`+lost+`", "wait_seconds": 30}`, &op)
	decision := fmt.Sprintf(`{"id": %q, "idempotency_key": "d", "version": %d, "kind": "abandon"}`, lost, op.Version)
	if tool(t, s, "decide_operation", decision, &op); op.State != "abandoned" {
		t.Errorf("decided: %+v", op)
	}
	for name, arguments := range map[string]string{
		"get_operation": `{"id": "` + first + `"}`, "get_timeline": `{"id": "` + first + `", "limit": 2}`, "list_operations": `{"limit": 1}`, "get_capabilities": `{}`,
	} {
		var answer map[string]json.RawMessage
		if r := tool(t, s, name, arguments, &answer); r.IsError {
			t.Errorf("%s: %v", name, answer)
		}
	}
	for name, code := range map[string]string{"cancel_operation": "already_terminal", "get_result": "no_result"} {
		arguments := `{"id": "` + lost + `"}`
		if name == "cancel_operation" {
			arguments = `{"id": "` + lost + `", "idempotency_key": "c"}`
		}
		var p struct{ Code, Title, Hint string }
		if r := tool(t, s, name, arguments, &p); !r.IsError || p.Code != code || p.Title == "" || p.Hint == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if err := st.stop(); err != nil {
		t.Fatal(err)
	}
	var gone struct {
		Code      string
		Detail    string
		Retryable bool
	}
	if r := tool(t, s, "submit_operation", `{"idempotency_key": "m", "provider": "example", "params": {}}`, &gone); !r.IsError || gone.Code != "store_unavailable" || !gone.Retryable || !strings.Contains(gone.Detail, "same idempotency_key") {
		t.Errorf("without a service: %+v", gone)
	}
	if err := s.Close(); err != nil {
		t.Errorf("the process ended with %v\n%s", err, stderr)
	}
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != exitOK {
		t.Errorf("the process is %v\n%s", cmd.ProcessState, stderr)
	}
	if _, secret, _ := strings.Cut(st.bearer, "."); strings.Contains(stderr.String(), secret) {
		t.Errorf("the key is on stderr: %s", stderr)
	}
}

// A signal ends it, whatever its input does.
func TestMCPEndsWithASignal(t *testing.T) {
	s, cmd, stderr := speak(t, "http://127.0.0.1:1", "cf_x.y")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait() // the process went away
	_ = s.Close()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() == -1 {
		t.Errorf("the process is %v\n%s", cmd.ProcessState, stderr)
	}
}

// BenchmarkMCPCall is one get_operation over loopback, at /mcp of a service on the
// embedded store and through counterfoil mcp in front of it, beside a GET of the
// same operation. It reports the median.
func BenchmarkMCPCall(b *testing.B) {
	st, err := newStage(filepath.Join(b.TempDir(), "data"), quiet())
	if err != nil {
		b.Fatal(err)
	}
	defer st.close()
	st.mount("example", "default", steps(time.Hour, "running"))
	if err := st.open(context.Background()); err != nil {
		b.Fatal(err)
	}
	st.work("1", nil)
	server := "http://" + st.local.listener.Addr().String()
	c, err := client.New(server, st.bearer, nil)
	if err != nil {
		b.Fatal(err)
	}
	op, _, err := c.Submit(b.Context(), "k", client.Submission{Provider: "example"})
	if err != nil {
		b.Fatal(err)
	}
	sessions := map[string]*mcp.ClientSession{}
	over := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	if sessions["http"], err = over.Connect(b.Context(), &mcp.StreamableClientTransport{
		Endpoint: server + "/mcp", DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Transport: bearerTransport(st.bearer)},
	}, nil); err != nil {
		b.Fatal(err)
	}
	sessions["stdio"], _, _ = speak(b, server, st.bearer)
	measure := func(name string, call func(context.Context) error) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				begun := time.Now()
				if err := call(b.Context()); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/p50")
		})
	}
	for _, name := range []string{"http", "stdio"} {
		measure(name, func(ctx context.Context) error {
			r, err := sessions[name].CallTool(ctx, &mcp.CallToolParams{Name: "get_operation", Arguments: json.RawMessage(`{"id": "` + op.ID + `"}`)})
			if err == nil && r.IsError {
				err = errors.New(r.Content[0].(*mcp.TextContent).Text)
			}
			return err
		})
	}
	measure("GET", func(ctx context.Context) error {
		_, err := c.Get(ctx, op.ID)
		return err
	})
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}
	if err := st.stop(); err != nil {
		b.Error(err)
	}
}

// bearerTransport adds the key to what a client sends.
type bearerTransport string

func (key bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(key))
	return http.DefaultTransport.RoundTrip(r)
}

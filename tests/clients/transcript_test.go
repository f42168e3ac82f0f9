package clients

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

var update = flag.Bool("update", false, "rewrite the transcript in docs/CLIENTS.md")

// The transcript in the docs is a real run: an agent whose every second answer is lost
// ends with one operation and one job for each of its intents.
func TestTranscript(t *testing.T) {
	s := serve(t)
	proxy, err := stand.NewProxy(s.address, stand.Faults{Lose: true})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	transport := &http.Transport{DisableKeepAlives: true} // a transport may try again by itself
	c, err := client.New(proxy.URL, s.key, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	c = c.Retrying(client.Retry{First: time.Millisecond})
	ctx := t.Context()

	var out strings.Builder
	names := map[string]string{}
	seen := 0
	// step shows what the agent wants, what went over the wire, and what it then knows.
	// How often a wait is sent depends on the moment, so that a line is shown once.
	step := func(want string, do func() (string, error)) {
		t.Helper()
		knows, err := do()
		if err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		fmt.Fprintf(&out, "agent: %s\n", want)
		var lines []string
		for _, a := range proxy.Requests()[seen:] {
			seen++
			line := fmt.Sprintf("  %-4s %s", a.Method, a.Path)
			if a.Key != "" {
				line += "  key " + a.Key
			}
			line += fmt.Sprintf("  -> %d", a.Status)
			if a.Replayed {
				line += " replayed"
			}
			if a.Lost {
				line += ", the answer is lost"
			}
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
		fmt.Fprintf(&out, "%s\n  => %s\n", strings.Join(lines, "\n"), knows)
	}
	submit := func(key string, params string, name string) func() (string, error) {
		return func() (string, error) {
			op, _, err := c.Submit(ctx, key, client.Submission{Provider: "example", Params: json.RawMessage(params)})
			names[op.ID] = name
			return op.ID, err
		}
	}
	id := func(name string) string {
		for id, n := range names {
			if n == name {
				return id
			}
		}
		return ""
	}
	step("submit report 17", submit("report-17", `{"correlation":"r17"}`, "op_A"))
	step("submit report 18", submit("report-18", `{"correlation":"r18"}`, "op_B"))
	step("it starts again, and submits report 17 once more", submit("report-17", `{"correlation":"r17"}`, "op_A"))
	for _, name := range []string{"op_A", "op_B"} {
		step("wait for "+name, func() (string, error) {
			op, err := c.Wait(ctx, id(name))
			return op.State, err
		})
	}
	step("read the result of op_A", func() (string, error) {
		for {
			r, err := c.Result(ctx, id("op_A"))
			if err != nil {
				return "", err
			}
			text, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			if err == nil && len(text) > 0 {
				return r.MediaType + ", as its digest says", nil
			}
		}
	})
	operations := 0
	for _, err := range s.direct.Operations(ctx, client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		operations++
	}
	fmt.Fprintf(&out, "2 intents, %d operations, %d jobs at the provider\n", operations, len(s.sim.Jobs()))
	if operations != 2 || len(s.sim.Jobs()) != 2 || len(names) != 2 {
		t.Errorf("%d operations, %d jobs, %v", operations, len(s.sim.Jobs()), names)
	}
	text := out.String()
	for id, name := range names {
		text = strings.ReplaceAll(text, id, name)
	}

	const path, begin, end = "../../docs/CLIENTS.md", "<!-- transcript: written by tests/clients -->\n```text\n", "```\n<!-- end -->"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(doc), begin)
	was, after, closed := strings.Cut(rest, end)
	switch {
	case !found || !closed:
		t.Fatalf("%s has no place for the transcript", path)
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+text+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case was != text:
		t.Errorf("the transcript in %s is otherwise; go test ./tests/clients -run Transcript -update rewrites it. Got:\n%s", path, text)
	}
}

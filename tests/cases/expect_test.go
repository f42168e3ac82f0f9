package cases_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// What a caller expects of a result is one of its checks: where it does not hold, or
// cannot be evaluated, the operation stops with the result kept, and says which rule it was.
func TestExpectation(t *testing.T) {
	items := make([]string, 20_000)
	for i := range items {
		items[i] = `{"price": 3}`
	}
	many := `{"items": [` + strings.Join(items, ",") + `]}`
	for _, c := range []struct {
		name, params, media, result, expect string
		detail                              string // "" where it holds
	}{
		{"holds", `"budget": 10`, "application/json", `{"total": 9.5, "pages": [1, 2]}`, `result.total <= params.budget && size(result.pages) == 2`, ""},
		{"does not hold", `"budget": 9`, "application/json", `{"total": 9.5}`, `result.total <= params.budget`, "does not hold"},
		{"a member that lacks", `"budget": 9`, "application/json", `{}`, `result.total <= params.budget`, "cannot be evaluated: no such key: total"},
		{"a member that may lack", `"a": 1`, "application/json", `{}`, `result.?total.orValue(0) == 0 && job_class == "succeeded"`, ""},
		{"of another type", `"budget": 9`, "application/json", `{"total": "9"}`, `result.total <= params.budget`, "no such overload"},
		{"lines", `"rows": [1, 2, 3]`, "application/jsonl", "{}\n{}\n\n{}\n", `result_lines == size(params.rows) && media_type == "application/jsonl" && result_size == 10`, ""},
		{"looks into what is no JSON", `"a": 1`, "text/csv", "a,b\n", `result.total == 1`, "the result cannot be read as JSON"},
		{"costs too much", `"a": 1`, "application/json", many, `result.items.all(a, result.items.all(b, a.price == b.price))`, "actual cost limit exceeded"},
		{"looks through many", `"a": 1`, "application/json", `{"items": [` + strings.Join(items[:3000], ",") + `]}`, `result.items.all(a, a.price <= 3)`, ""},
	} {
		variant(t, c.name, func(t *testing.T) {
			h := harness.New(t, harness.Options{Correlate: true, Edit: func(_, text string) string {
				return strings.Replace(text, "  checks:\n    - name: json\n      json: true\n", "", 1)
			}})
			h.Mount(simulator.Example, "example", simulator.Options{Result: func(simulator.Job) (string, []byte) { return c.media, []byte(c.result) }})
			op, _, err := h.Client.Submit(t.Context(), "k", client.Submission{
				Provider: "example", Params: json.RawMessage(`{"correlation": "k", ` + c.params + `}`), Expect: c.expect,
			})
			if err != nil || op.Expect != c.expect {
				t.Fatalf("%+v %v", op, err)
			}
			if c.detail == "" {
				op = h.Wait(op.ID, time.Hour, "succeeded")
			} else {
				op = h.Wait(op.ID, time.Hour, "result_validation_failed")
			}
			check := op.Result.Checks[len(op.Result.Checks)-1]
			if check.Name != "expect" || check.Passed != (c.detail == "") || !strings.Contains(check.Detail, c.detail) {
				t.Fatalf("%+v", op.Result)
			}
			if c.detail == "" {
				return
			}
			// The result is kept, and a person may take it.
			var p *client.Problem
			if _, err := h.Client.Result(t.Context(), op.ID); !errors.As(err, &p) || p.Code != "result_not_accepted" {
				t.Errorf("%v", err)
			}
			if _, err := h.Client.Decide(t.Context(), op.ID, op.Version, "d", client.Decision{Kind: "accept_result"}); err != nil {
				t.Fatal(err)
			}
			h.Wait(op.ID, time.Minute, "succeeded")
		})
	}
}

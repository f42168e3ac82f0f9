package mcp_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// Tools meet the same quotas, and an agent is told beforehand what it has left.
func TestQuotas(t *testing.T) {
	inHouse(t, harness.Options{NoPoller: true, Credentials: "credentials: 1\nquotas:\n  tester: {submits_per_minute: 1, open_operations: 5}\n"}, func(t *testing.T, h *harness.House) {
		s := connect(t, h, nil)
		submit := func(key string) json.RawMessage {
			return object(`{"idempotency_key": "` + key + `", "provider": "example", "params": {}}`)
		}
		var first, again client.Operation
		call(t, s, "submit_operation", submit("a"), &first)
		var p client.Problem
		if r := call(t, s, "submit_operation", submit("b"), &p); !r.IsError || p.Code != "rate_exceeded" || p.Status != 429 || p.RetryWith != "same_key" {
			t.Errorf("%+v", p)
		}
		if call(t, s, "submit_operation", submit("a"), &again); again.ID != first.ID || first.ID == "" {
			t.Errorf("a replay gave %s", again.ID)
		}
		var c struct {
			Quotas []struct {
				Policy    string `json:"policy"`
				Limit     int    `json:"limit"`
				Remaining int    `json:"remaining"`
			} `json:"quotas"`
		}
		r := call(t, s, "get_capabilities", object(`{}`), &c)
		described(t, s, "get_capabilities", r)
		if len(c.Quotas) != 2 || c.Quotas[0].Limit != 1 || c.Quotas[0].Remaining != 0 || c.Quotas[1].Limit != 5 || c.Quotas[1].Remaining != 4 {
			t.Errorf("%+v", c)
		}
	})
}

// list_operations filters as GET /v1/operations does, by tags and by the caller's own
// name for what it asked.
func TestListFilters(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		s := connect(t, h, nil)
		var ops [2]client.Operation
		for i := range ops {
			call(t, s, "submit_operation", object(fmt.Sprintf(
				`{"idempotency_key": "k%d", "provider": "example", "params": {}, "client_reference": "order %d", "tags": {"run": "r%d", "team": "billing"}}`, i, i, i)), &ops[i])
		}
		time.Sleep(time.Minute)
		for arguments, want := range map[string][]string{
			`{"tags": {"team": "billing"}}`:                          {ops[0].ID, ops[1].ID},
			`{"tags": {"team": "billing", "run": "r1"}}`:             {ops[1].ID},
			`{"client_reference": "order 0"}`:                        {ops[0].ID},
			`{"client_reference": "order 0", "tags": {"run": "r1"}}`: {},
			`{"client_reference": "order 2"}`:                        {},
		} {
			var page struct{ Items []client.Operation }
			call(t, s, "list_operations", object(arguments), &page)
			got := []string{}
			for _, op := range page.Items {
				got = append(got, op.ID)
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", arguments, got, want)
			}
		}
	})
}

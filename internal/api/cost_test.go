package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/projections"
)

// A bound is held against what the contract says, exactly, and before anything is recorded.
func TestMaxCost(t *testing.T) {
	h := newHarness(t)
	with := func(copies, more string) string {
		return `{"provider":"example","params":{"copies":` + copies + `}` + more + `}`
	}
	for _, c := range []struct {
		name, body string
		code       ingest.Code // "" where it is taken
		cost       string
	}{
		{"below", with("4", `,"max_cost":"1.000001"`), "", "1"},
		{"at the bound", with("4", `,"max_cost":"1.00"`), "", "1"},
		{"above", with("4", `,"max_cost":"0.999999"`), ingest.CodeCostExceeded, ""},
		{"nothing may be spent", with("1", `,"max_cost":"0"`), ingest.CodeCostExceeded, ""},
		{"no bound", with("7", ""), "", "1.75"},
		{"not known, no bound", with(`"many"`, ""), "", ""},
		{"not known", with(`"many"`, `,"max_cost":"100"`), ingest.CodeCostUnknown, ""},
		{"a contract without", `{"provider":"example-ask","params":{},"max_cost":"100"}`, ingest.CodeCostUnknown, ""},
		{"no bound, a contract without", `{"provider":"example-ask","params":{}}`, "", ""},
		{"adopted", with("1", `,"max_cost":"100","adopt":{"job_id":"j"}`), ingest.CodeInvalid, ""},
	} {
		before := h.stored()
		for _, dry := range []string{`{"validate_only":true,`, "{"} {
			w, v, p := h.submit("alice", strings.ReplaceAll(c.name, " ", "-"), dry+c.body[1:])
			switch {
			case c.code != "":
				if w.Code != 422 || p.Code != c.code || p.Errors[0].Field != "/max_cost" || h.stored() != before {
					t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
				}
				if c.code == ingest.CodeCostExceeded && (p.Values["unit"] != "USD" || p.Values["cost"] == nil || p.Values["max_cost"] == nil) {
					t.Errorf("%s: %v", c.name, p.Values)
				}
			case w.Code > 202 || (v.Cost == nil) != (c.cost == "") || v.Cost != nil && (v.Cost.Amount != c.cost || v.Cost.Unit != "USD" || strings.Contains(c.body, "max_cost") != (v.Cost.Max != "")):
				t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
			}
		}
	}
	// In a batch and in an event it is the same.
	dear := `{"operation":` + with("4", `,"max_cost":"0.5"`) + `}`
	status, _, v, p := h.batch("alice", "b", batchOf("independent", goodItem, dear))
	if status != 200 || v.Recorded != 1 || v.Items[1].Problem.Code != ingest.CodeCostExceeded || v.Items[1].Problem.Errors[0].Field != "/items/1/operation/max_cost" {
		t.Errorf("%d %+v %+v", status, v, p)
	}
	if status, _, _, p := h.batch("alice", "c", batchOf("atomic", goodItem, dear)); status != 422 || p.Code != ingest.CodeCostExceeded {
		t.Errorf("%d %+v", status, p)
	}
	header := map[string]string{"ce-specversion": "1.0", "ce-type": ingest.EventSubmit, "ce-source": "/agent", "ce-id": "1"}
	if w := h.do("alice", "POST", eventPath, header, with("4", `,"max_cost":"0.5"`)); w.Code != 422 || !strings.Contains(w.Body.String(), `"cost_exceeds_max"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, made, _ := h.submit("alice", "last", with("2", `,"max_cost":"9.90"`))
	if line := h.do("alice", "GET", "/v1/operations/"+made.ID+"/timeline", nil, "").Body.String(); w.Code != 202 || !strings.Contains(line, `"cost":"0.5"`) || !strings.Contains(line, `"max_cost":"9.90"`) {
		t.Errorf("%d %s", w.Code, line)
	}
}

// A rule may ask for the cost; where it is not known the rule demands an approval.
func TestApprovalByCost(t *testing.T) {
	h := newHarness(t)
	h.policy = policyOf(t, `
policy: 1
approval: [{name: dear, when: 'cost_unit == "USD" && exceeds(cost, "1") || cost == ""'}]
`)
	for copies, want := range map[string]projections.Phase{"4": projections.PhaseCreatePending, "5": projections.PhaseApprovalPending, `"many"`: projections.PhaseApprovalPending} {
		w, v, _ := h.submit("bob", "k"+events.Sum([]byte(copies)).String(), `{"provider":"example","params":{"copies":`+copies+`}}`)
		if w.Code != 202 || v.State != want || want == projections.PhaseApprovalPending && !slices.ContainsFunc(v.Approval.Demands, func(d ingest.DemandView) bool { return d.Rule == "dear" }) {
			t.Errorf("%s: %d %s", copies, w.Code, w.Body)
		}
	}
}

package api

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
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

// unreckoned are parameters of example for which its contract cannot say the cost.
var unreckoned = []string{`"many"`, "-1", "1e3", "1.5", "null", "[1]"}

// The rule that docs/POLICY.md prints cannot be got round by making the cost unknown. Where
// a contract says nothing of costs it does not hold.
func TestUnknownCostDemandsApproval(t *testing.T) {
	h := newHarness(t)
	const rule = `cost_unit == "USD" && exceeds(cost, "50")`
	text, err := os.ReadFile("../../docs/POLICY.md")
	if err != nil || !strings.Contains(strings.ReplaceAll(string(text), "\n", " "), rule) {
		t.Fatalf("docs/POLICY.md does not print the rule, %v", err)
	}
	h.policy = policyOf(t, "\npolicy: 1\napproval: [{name: dear, when: '"+rule+"'}]\n")
	if w, v, _ := h.submit("bob", "none", `{"provider":"example-ask","params":{}}`); w.Code != 202 || v.State != projections.PhaseCreatePending {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w, v, _ := h.submit("bob", "cheap", `{"provider":"example","params":{"copies":200}}`); w.Code != 202 || v.State != projections.PhaseCreatePending {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for i, copies := range unreckoned {
		body := `{"provider":"example","params":{"copies":` + copies + `}}`
		w, v, p := h.submit("bob", fmt.Sprint("k", i), body)
		if w.Code == 422 && p.Code != ingest.CodeCostUnknown {
			continue // no such parameters at all
		}
		if w.Code != 202 || v.State != projections.PhaseApprovalPending || v.Approval.Demands[0].Failed == "" || v.Cost != nil {
			t.Errorf("%s: %d %s", copies, w.Code, w.Body)
		}
		if _, v, _ := h.submit("bob", fmt.Sprint("d", i), `{"validate_only":true,`+body[1:]); v.State != projections.PhaseApprovalPending {
			t.Errorf("%s, dry: %s", copies, v.State)
		}
		item := `{"operation":` + body + `}`
		if _, _, v, _ := h.batch("bob", fmt.Sprint("b", i), batchOf("independent", item)); v.Items[0].Operation.State != projections.PhaseApprovalPending {
			t.Errorf("%s, in a batch: %+v", copies, v)
		}
	}
}

// A quota of costs cannot be got round by making the cost unknown, by whatever way in.
func TestUnknownCostUnderQuota(t *testing.T) {
	h := newHarness(t)
	ten, _ := contract.ParseDecimal("10")
	before := h.stored()
	for i, copies := range unreckoned {
		h.quotas = ingest.Quotas{Costs: map[string]contract.Decimal{"USD": ten}}
		body := `{"provider":"example","params":{"copies":` + copies + `}}`
		for _, one := range []string{body, `{"validate_only":true,` + body[1:]} {
			w, _, p := h.submit("alice", fmt.Sprint("k", i), one)
			if w.Code != 422 || p.Errors[0].Field != "/params" && p.Code == ingest.CodeCostUnknown {
				t.Errorf("%s: %d %s", copies, w.Code, w.Body)
			}
		}
		item := `{"operation":` + body + `}`
		if _, _, v, _ := h.batch("alice", fmt.Sprint("b", i), batchOf("independent", item)); v.Refused != 1 {
			t.Errorf("%s, in a batch: %+v", copies, v)
		}
		if status, _, _, _ := h.batch("alice", fmt.Sprint("b", i), batchOf("atomic", item)); status != 422 {
			t.Errorf("%s, for all or none: %d", copies, status)
		}
		header := map[string]string{"ce-specversion": "1.0", "ce-type": ingest.EventSubmit, "ce-source": "/agent", "ce-id": fmt.Sprint(i)}
		if w := h.do("alice", "POST", eventPath, header, body); w.Code != 422 {
			t.Errorf("%s, as an event: %d %s", copies, w.Code, w.Body)
		}
	}
	if w, _, p := h.submit("alice", "many", `{"provider":"example","params":{"copies":"many"}}`); p.Code != ingest.CodeCostUnknown || p.Values["unit"] != "USD" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if h.stored() != before {
		t.Error("something was recorded")
	}
	// Of what has no such quota, or is there, nothing has to be known.
	if w, _, _ := h.submit("alice", "none", `{"provider":"example-ask","params":{}}`); w.Code != 202 {
		t.Errorf("a contract without a cost: %d %s", w.Code, w.Body)
	}
	if w, _, _ := h.submit("alice", "adopt", `{"provider":"example","params":{"copies":"many"},"adopt":{"job_id":"j"}}`); w.Code != 202 {
		t.Errorf("adopted: %d %s", w.Code, w.Body)
	}
	h.quotas = ingest.Quotas{Costs: map[string]contract.Decimal{"EUR": ten}}
	if w, _, _ := h.submit("alice", "other", `{"provider":"example","params":{"copies":"many"}}`); w.Code != 202 {
		t.Errorf("a quota of another unit: %d %s", w.Code, w.Body)
	}
}

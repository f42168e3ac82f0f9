package contract

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
)

// Edits of a policy and what its author is told: the file, the rule and the place.
func TestPolicyProblems(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":      {"", "policy.yaml:1:1: the file is empty"},
		"no version": {"approval: []\n", "policy.yaml:1:1: policy: is missing: give policy: 1, the version of the language"},
		"newer":      {"policy: 2\n", "policy.yaml:1:9: policy: is version 2; this program reads 1"},
		"unknown":    {"policy: 1\nquota: []\n", "policy.yaml:2:1: quota: unknown field; known here: policy, approval"},
		"no list":    {"policy: 1\napproval: {}\n", "policy.yaml:2:11: approval: must be a list of name, when and why"},
		"two files":  {"policy: 1\n---\npolicy: 1\n", "policy.yaml:2:1: one file holds one policy; there is a second document"},
		"no name": {
			"policy: 1\napproval:\n  - when: 'true'\n",
			"policy.yaml:3:5: approval[0].name: is missing",
		},
		"bad name": {
			"policy: 1\napproval:\n  - {name: 'a b', when: 'true'}\n",
			"policy.yaml:3:12: approval[0].name: must be 1 to 64 of a-z, 0-9, _ and -",
		},
		"twice": {
			"policy: 1\napproval:\n  - {name: a, when: 'true'}\n  - {name: a, when: 'true'}\n",
			"policy.yaml:4:12: approval[1].name: is used already: \"a\"",
		},
		"no condition": {
			"policy: 1\napproval:\n  - name: a\n",
			"policy.yaml:3:5: approval[0].when: is missing",
		},
		"long": {
			"policy: 1\napproval:\n  - {name: a, when: 'true', why: " + strings.Repeat("x", 201) + "}\n",
			"policy.yaml:3:34: approval[0].why: must be one line of at most 200 bytes",
		},
		"unknown variable": {
			"policy: 1\napproval:\n  - name: big\n    when: acount == \"x\"\n",
			"policy.yaml:4:11: approval[big].when: undeclared reference to 'acount' (did you mean 'account'?)\n    acount == \"x\"\n    ^",
		},
		"wrong type": {
			"policy: 1\napproval:\n  - name: big\n    when: size(principal)\n",
			"policy.yaml:4:11: approval[big].when: gives int, must give true or false\n    size(principal)\n    ^",
		},
		"no comparison": {
			"policy: 1\napproval:\n  - name: big\n    when: cost > 5\n",
			"policy.yaml:4:16: approval[big].when: found no matching overload for '_>_' applied to '(string, int)'\n    cost > 5\n         ^",
		},
		"missing as false": {
			"policy: 1\napproval:\n  - name: big\n    when: params.?size\n",
			"policy.yaml:4:11: approval[big].when: gives optional_type(dyn), must give true or false; a missing field is never false: end it with .orValue(false) or .hasValue()\n    params.?size\n    ^",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePolicy("policy.yaml", []byte(c.text))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	many := "policy: 1\napproval:\n" + strings.Repeat("  - {}\n", MaxRules+1)
	if _, err := ParsePolicy("policy.yaml", []byte(many)); err == nil || !strings.Contains(err.Error(), "has 33 rules; at most 32") {
		t.Error(err)
	}
}

const somePolicy = `
policy: 1
approval:
  - {name: account, when: account == "production"}
  - {name: dear, when: 'cost_unit == "USD" && exceeds(cost, "12.5")', why: more than usual}
  - {name: agents, when: 'team == "agents" && !("admin" in scopes)'}
  - {name: tagged, when: 'tags[?"risk"].orValue("") == "high"'}
  - {name: deep, when: params.size > 3}
  - {name: adopted, when: adopt != ""}
  - {name: endless, when: '[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, a+b+c+d+params.size > 0))))'}
`

func demands(p *Policy, a Asked) string {
	var list []string
	for _, d := range p.Demands(a) {
		text := d.Rule
		if d.Failed != "" {
			text += "!"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

// A rule demands where it holds, and where it cannot be evaluated or costs too much.
func TestPolicyDemands(t *testing.T) {
	p, err := ParsePolicy("policy.yaml", []byte(somePolicy))
	if err != nil {
		t.Fatal(err)
	}
	plain := Asked{Principal: "a", Provider: "example", Account: "default", Params: []byte(`{"size":1}`), Cost: "1", Unit: "EUR"}
	for _, c := range []struct {
		name   string
		change func(*Asked)
		want   string
	}{
		{"plain", func(*Asked) {}, "endless!"},
		{"account", func(a *Asked) { a.Account = "production" }, "account endless!"},
		{"cheap", func(a *Asked) { a.Unit, a.Cost = "USD", "12.500000" }, "endless!"},
		{"dear", func(a *Asked) { a.Unit, a.Cost = "USD", "12.500001" }, "dear endless!"},
		{"cost not known", func(a *Asked) { a.Unit, a.Cost = "USD", "" }, "dear! endless!"},
		{"agents", func(a *Asked) { a.Team, a.Scopes = "agents", []string{"cancel"} }, "agents endless!"},
		{"admin", func(a *Asked) { a.Team, a.Scopes = "agents", []string{"admin"} }, "endless!"},
		{"tagged", func(a *Asked) { a.Tags = []events.Tag{{Name: "risk", Value: "high"}} }, "tagged endless!"},
		{"no size", func(a *Asked) { a.Params = []byte(`{}`) }, "deep! endless!"},
		{"size is text", func(a *Asked) { a.Params = []byte(`{"size":"x"}`) }, "deep! endless!"},
		{"a size beyond 64 bits", func(a *Asked) { a.Params = []byte(`{"size":99999999999999999999}`) }, "deep! endless!"},
		{"adopted", func(a *Asked) { a.Adopt = "j" }, "adopted endless!"},
		{"no JSON", func(a *Asked) { a.Params = []byte(`{`) }, "account! dear! agents! tagged! deep! adopted! endless!"},
	} {
		a := plain
		if c.change(&a); demands(p, a) != c.want {
			t.Errorf("%s: %q, want %q", c.name, demands(p, a), c.want)
		}
	}
	list := p.Demands(plain)
	if !strings.Contains(list[0].Failed, "cost limit exceeded") {
		t.Errorf("%+v", list)
	}
	if (*Policy)(nil).Demands(plain) != nil {
		t.Error("no policy demands something")
	}
}

// What is foreseen comes to be: always and never hold whatever is asked for.
func TestPolicyForesees(t *testing.T) {
	rules := []string{
		`account == "b"`, `team == "x"`, `params.n > 1`, `has(params.n)`, `"t" in tags`, `adopt != "" && account == "a"`, `true`, `false`, `principal == "p" || params.n == 2`,
		`1/0 == 1`, `cost != "" && exceeds(cost, "3")`, `guarantee == "ask_after_loss"`, `"admin" in scopes`, `operator`, `retry_of != "" || replaces != "" || allow_overlap`, `exceeds(max_cost, "1")`, `action == "x"`,
	}
	rapid.Check(t, func(t *rapid.T) {
		text := "policy: 1\napproval:\n  - {name: r, when: account == \"c\"}\n"
		for i, rule := range rapid.SliceOfNDistinct(rapid.SampledFrom(rules), 0, 4, rapid.ID[string]).Draw(t, "rules") {
			text += "  - {name: r" + string(rune('a'+i)) + ", when: '" + rule + "'}\n"
		}
		p, err := ParsePolicy("p", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
		a := Asked{
			Principal: pick("principal", "p", "q"), Team: pick("team", "", "x"), Provider: "example", Account: pick("account", "a", "b"),
			Operator: rapid.Bool().Draw(t, "operator"), Guarantee: events.Guarantee(pick("guarantee", "ask_after_loss", "deduplicated")),
		}
		if rapid.Bool().Draw(t, "admin") {
			a.Scopes = []string{"admin"}
		}
		foreseen, names := p.Foresee(a)
		full := a
		full.Action, full.Adopt, full.Replaces, full.MaxCost = pick("action", "", "x"), pick("adopt", "", "j"), pick("replaces", "", "o"), pick("max", "", "2")
		full.Params, full.Cost = []byte(pick("params", `{}`, `{"n":1}`, `{"n":2}`)), pick("cost", "", "1", "5")
		if rapid.Bool().Draw(t, "tagged") {
			full.Tags = []events.Tag{{Name: "t"}}
		}
		got := p.Demands(full)
		if foreseen == Always && len(got) == 0 || foreseen == Never && len(got) > 0 {
			t.Fatalf("%s\nforeseen %s of %+v, and %+v demands %v", text, foreseen, a, full, got)
		}
		for _, d := range got {
			found := false
			for _, name := range names {
				found = found || name == d.Rule
			}
			if !found {
				t.Fatalf("%s\nrule %s demands and was not named: %v", text, d.Rule, names)
			}
		}
	})
}

func TestDecimal(t *testing.T) {
	for _, s := range []string{"", ".", "1.", ".5", "-1", "+1", "1e3", " 1", "1234567890123456", "1.1234567", "1.2.3", "0x1", "١"} {
		if d, ok := ParseDecimal(s); ok {
			t.Errorf("%q is read as %s", s, d)
		}
	}
	for s, want := range map[string]string{"0": "0", "00012.500": "12.5", "999999999999999.999999": "999999999999999.999999", "0.000001": "0.000001", "3.0": "3"} {
		if d, ok := ParseDecimal(s); !ok || d.String() != want {
			t.Errorf("%q is read as %s, %v", s, d, ok)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (Decimal, uint64) {
			n := rapid.Uint64Range(0, 1e12).Draw(t, name)
			d := Decimal{n / microPerWhole, n % microPerWhole}
			if again, ok := ParseDecimal(d.String()); !ok || again != d {
				t.Fatalf("%v is read back as %v", d, again)
			}
			return d, n
		}
		a, m := draw("a")
		b, n := draw("b")
		sum := Decimal{(m + n) / microPerWhole, (m + n) % microPerWhole}
		if a.Plus(b) != sum || (a.Compare(b) < 0) != (m < n) || (a.Compare(b) == 0) != (m == n) {
			t.Fatalf("%s and %s: %s, %d", a, b, a.Plus(b), a.Compare(b))
		}
	})
}

// No text makes the parser or the rules panic, and what is taken is taken again alike.
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{
		somePolicy, "policy: 1\n", "policy: 1\napproval:\n  - {name: a, when: 'true'}\n", "policy: 1\napproval: [{name: a, when: x, why: {}}]", "policy: 1\napproval: [1, [], {}]",
		"- 1", "&a [*a]", "policy: !!binary AA==", "policy: 1\napproval:\n- name: a\n  when: >-\n    principal\n     == \"x\"\n", "\x00", "{",
	} {
		f.Add([]byte(s))
	}
	asked := Asked{Principal: "a", Params: []byte(`{"size":1}`)}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePolicy("p", text)
		if err != nil {
			return
		}
		p.Foresee(asked)
		again, err := ParsePolicy("p", text)
		if err != nil || !reflect.DeepEqual(p.Demands(asked), again.Demands(asked)) {
			t.Fatalf("read twice: %v", err)
		}
	})
}

package contract

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
)

// A policy is the operator's file of rules on what is asked for. Its form is described
// in docs/POLICY.md.

const (
	// PolicyVersion is the language of policies that this package reads.
	PolicyVersion = 1
	// MaxRules is how many rules a policy may have.
	MaxRules = 32

	maxWhyOfRule = 200 // bytes of a rule's words
)

// Policy is a policy file, checked. It is not changed after [ParsePolicy] and safe for
// concurrent use. Nil has no rules.
type Policy struct {
	Digest events.Digest // of the file's bytes

	rules []rule
}

type rule struct {
	name, why string
	when      *expression
	partly    cel.Program // the same, where some of it is not known
}

// Asked is a submit as the rules see it.
type Asked struct {
	Principal, Team string   // who asks; "" for no team
	Scopes          []string // of its key
	Operator        bool     // the operator's right of its key
	Provider        string
	Account         string

	Action   string
	Params   []byte
	Tags     []events.Tag
	Adopt    string // the job to follow instead of creating one; "" for none
	Replaces string // operations; "" for none
	RetryOf  string
	// Overlap says that two jobs at once are acceptable.
	Overlap bool
	// MaxCost and Cost are decimals, "" where there is none; Unit is that of Cost.
	MaxCost, Cost, Unit string
	// Guarantee is what holds after a create whose answer was lost.
	Guarantee events.Guarantee
}

// known are the variables that say who asks and where it is to go, and not what for.
func (a Asked) known() map[string]any {
	scopes := a.Scopes
	if scopes == nil {
		scopes = []string{}
	}
	return map[string]any{
		"principal": a.Principal, "team": a.Team, "scopes": scopes, "operator": a.Operator,
		"provider": a.Provider, "account": a.Account, "guarantee": string(a.Guarantee),
	}
}

func (a Asked) vars() (map[string]any, error) {
	params, err := decode(a.Params)
	if err != nil {
		return nil, fmt.Errorf("the parameters cannot be read: %w", err)
	}
	tags := map[string]string{}
	for _, t := range a.Tags {
		tags[t.Name] = t.Value
	}
	vars := a.known()
	for name, value := range map[string]any{
		"action": a.Action, "params": params, "tags": tags, "adopt": a.Adopt, "replaces": a.Replaces, "retry_of": a.RetryOf,
		"allow_overlap": a.Overlap, "max_cost": a.MaxCost, "cost": a.Cost, "cost_unit": a.Unit,
	} {
		vars[name] = value
	}
	return vars, nil
}

// unknownBefore are the variables that a submit brings.
func unknownBefore() []*cel.AttributePatternType {
	var list []*cel.AttributePatternType
	for _, name := range []string{"action", "params", "tags", "adopt", "replaces", "retry_of", "allow_overlap", "max_cost", "cost", "cost_unit"} {
		list = append(list, cel.AttributePattern(name))
	}
	return list
}

func newPolicyScope() (*cel.Env, error) {
	base, err := newBase()
	if err != nil {
		return nil, err
	}
	text, words := cel.StringType, cel.MapType(cel.StringType, cel.StringType)
	return base.Extend(
		cel.Variable("principal", text), cel.Variable("team", text), cel.Variable("scopes", cel.ListType(text)), cel.Variable("operator", cel.BoolType),
		cel.Variable("provider", text), cel.Variable("account", text), cel.Variable("guarantee", text),
		cel.Variable("action", text), cel.Variable("params", cel.DynType), cel.Variable("tags", words),
		cel.Variable("adopt", text), cel.Variable("replaces", text), cel.Variable("retry_of", text), cel.Variable("allow_overlap", cel.BoolType),
		cel.Variable("max_cost", text), cel.Variable("cost", text), cel.Variable("cost_unit", text),
		cel.Function("exceeds", cel.Overload("exceeds_string_string", []*cel.Type{text, text}, cel.BoolType, cel.BinaryBinding(exceeds))),
	)
}

// exceeds compares amounts exactly. What is none is an error, so that a cost that is
// not known never passes for a small one.
func exceeds(a, b ref.Val) ref.Val {
	var amounts [2]Decimal
	for i, v := range []ref.Val{a, b} {
		s, ok := v.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(v)
		}
		if amounts[i], ok = ParseDecimal(string(s)); !ok {
			return types.NewErr("exceeds(): %q is no amount", clip(string(s), 40))
		}
	}
	return types.Bool(amounts[0].Compare(amounts[1]) > 0)
}

// ParsePolicy reads a policy file. On error it is a *ParseError with all problems found.
// file is the name shown in problems.
func ParsePolicy(file string, src []byte) (*Policy, error) {
	d := &document{file: file, holds: "policy"}
	root := d.read(src)
	if root == nil {
		return nil, d.err()
	}
	env, err := newPolicyScope()
	if err != nil {
		// The declarations are constants: they are wrong for every file or none.
		panic(fmt.Sprintf("contract: scope of policies: %v", err))
	}
	p := &Policy{Digest: events.Sum(src)}
	top := d.section(root, "", "policy", "approval")
	if top.node != nil && top.need("policy", fmt.Sprintf(": give policy: %d, the version of the language", PolicyVersion)) {
		if v := top.text("policy"); v != "" && v != fmt.Sprint(PolicyVersion) {
			d.addf(top.value["policy"], "policy", "is version %s; this program reads %d", clip(v, 20), PolicyVersion)
		}
	}
	p.rules = d.rules(env, top, "approval")
	if err := d.err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (d *document) rules(env *cel.Env, s section, name string) []rule {
	n := s.value[name]
	if n == nil {
		return nil
	}
	if !d.plain(n, name) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		d.addf(n, name, "must be a list of name, when and why")
		return nil
	}
	if len(n.Content) > MaxRules {
		d.addf(n, name, "has %d rules; at most %d are allowed", len(n.Content), MaxRules)
		return nil
	}
	var list []rule
	for i, item := range n.Content {
		field := fmt.Sprintf("%s[%d]", name, i)
		c := d.section(item, field, "name", "when", "why")
		if c.node == nil || c.node.Kind != yaml.MappingNode {
			continue
		}
		r := rule{name: c.text("name"), why: strings.TrimSpace(c.text("why"))}
		if c.need("name", "") && !ValidName(r.name) {
			d.addf(c.value["name"], c.at("name"), "must be 1 to 64 of a-z, 0-9, _ and -")
		} else if slices.ContainsFunc(list, func(o rule) bool { return o.name == r.name }) {
			d.addf(c.value["name"], c.at("name"), "is used already: %q", r.name)
		}
		if len(r.why) > maxWhyOfRule || strings.ContainsFunc(r.why, func(c rune) bool { return c < ' ' }) {
			d.addf(c.value["why"], c.at("why"), "must be one line of at most %d bytes", maxWhyOfRule)
		}
		// A rule's name says which it is, where problems are told of.
		if r.name != "" && ValidName(r.name) {
			field = fmt.Sprintf("%s[%s]", name, r.name)
		}
		if c.need("when", "") {
			r.when = d.expression(env, c.value["when"], field+".when", boolean)
		}
		if r.when != nil {
			r.partly = partly(env, r.when.source)
		}
		list = append(list, r)
	}
	return list
}

// partly compiles what compiled before, for evaluation with unknowns.
func partly(env *cel.Env, source string) cel.Program {
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit), cel.EvalOptions(cel.OptPartialEval))
	if err != nil {
		return nil
	}
	return program
}

// Rules gives the names of the rules, in the order of the file.
func (p *Policy) Rules() []string {
	if p == nil {
		return nil
	}
	var list []string
	for _, r := range p.rules {
		list = append(list, r.name)
	}
	return list
}

// Demands gives the rules that want what is asked for approved, in the order of the
// file. One that cannot be evaluated, or costs too much, is one of them and says so.
func (p *Policy) Demands(a Asked) []events.Demand {
	if p == nil || len(p.rules) == 0 {
		return nil
	}
	vars, err := a.vars()
	var list []events.Demand
	for _, r := range p.rules {
		failed := ""
		demands := true
		switch {
		case err != nil:
			failed = err.Error()
		default:
			demands, failed = r.when.holds(r.when.program, vars)
		}
		if demands || failed != "" {
			list = append(list, events.Demand{Rule: r.name, Why: r.why, Failed: failed})
		}
	}
	return list
}

// holds evaluates a condition. failed says why it could not be.
func (e *expression) holds(program cel.Program, vars any) (holds bool, failed string) {
	v, _, err := program.Eval(vars)
	if err == nil {
		if b, ok := v.(types.Bool); ok {
			return bool(b), ""
		}
		err = fmt.Errorf("gives %s, must give true or false", v.Type().TypeName())
	}
	text := strings.TrimPrefix(err.Error(), "operation cancelled: ")
	return false, clip(string(canonical.RedactLinks([]byte(text))), maxWhyOfRule)
}

// Foresight is what can be said of a rule before what is asked for is known.
type Foresight string

// What it can be.
const (
	Always  Foresight = "always"
	Depends Foresight = "depends" // on what is asked for
	Never   Foresight = "never"
)

// Foresee says whether what the caller asks of the account will need an approval, and
// which rules may demand it. Of a only who asks and where it goes counts.
func (p *Policy) Foresee(a Asked) (Foresight, []string) {
	if p == nil {
		return Never, nil
	}
	out := Never
	var names []string
	vars, err := cel.PartialVars(a.known(), unknownBefore()...)
	for _, r := range p.rules {
		says := Depends
		if err == nil && r.partly != nil {
			v, _, failed := r.partly.Eval(vars)
			switch {
			case types.IsUnknown(v):
			case failed != nil: // which demands one
				says = Always
			case v == types.False:
				says = Never
			case v == types.True:
				says = Always
			}
		}
		if says == Never {
			continue
		}
		names = append(names, r.name)
		if out != Always {
			out = says
		}
	}
	return out, names
}

package contract

import (
	"bytes"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"

	"github.com/counterfoil/counterfoil/events"
)

const (
	// ExpectCheck names the check of a caller's expectation.
	ExpectCheck = "expect"

	// expectCost bounds one evaluation of an expectation, in CEL's cost units. It is more
	// than a contract's expressions have: it is made once, and looks through whole results.
	expectCost = 100_000

	maxExpectProblems = 8
)

// Expectation is a caller's rule on the result. It is not changed after it was read and
// safe for concurrent use.
type Expectation struct{ e *expression }

// ExpectProblem is what is wrong with an expectation, and where.
type ExpectProblem struct {
	Message string
	At      int // character, from 1
}

// Expectation reads an expectation: an expression in CEL, of one line, that gives
// true or false over the result and the parameters (docs/API.md). It is typed here, and
// its problems are given in their order.
func (c *Contract) Expectation(source string) (*Expectation, []ExpectProblem) {
	if strings.TrimSpace(source) == "" {
		return nil, []ExpectProblem{{"the expression is empty", 1}}
	}
	if len(source) > maxExpression {
		return nil, []ExpectProblem{{fmt.Sprintf("the expression has %d bytes; at most %d are allowed", len(source), maxExpression), 1}}
	}
	ast, issues := c.expect.Compile(source)
	if issues.Err() != nil {
		var list []ExpectProblem
		for _, e := range issues.Errors() {
			if len(list) == maxExpectProblems {
				break
			}
			list = append(list, ExpectProblem{clip(strings.ReplaceAll(e.Message, " (in container '')", ""), 300), max(e.Location.Column(), 0) + 1})
		}
		return nil, list
	}
	if !boolean.accepts(ast.OutputType()) {
		hint := ""
		if isOptional(ast.OutputType()) {
			hint = "; a missing field is never false: end it with .orValue(false) or .hasValue()"
		}
		return nil, []ExpectProblem{{fmt.Sprintf("gives %s, must give %s%s", cel.FormatCELType(ast.OutputType()), boolean, hint), 1}}
	}
	program, err := c.expect.Program(ast, cel.CostLimit(expectCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, []ExpectProblem{{clip(err.Error(), 200), 1}}
	}
	uses := map[string]bool{}
	for _, r := range ast.NativeRep().ReferenceMap() {
		if r.Name != "" {
			uses[r.Name] = true
		}
	}
	return &Expectation{&expression{"expect", source, boolean, program, uses}}, nil
}

// NeedsParams says whether the expectation looks at the parameters.
func (x *Expectation) NeedsParams() bool { return x.e.uses["params"] }

// Expected is what an expectation is held against.
type Expected struct {
	Params    []byte // as the caller sent them; nil where they cannot be had
	Result    []byte // of several files the list of them, see [WriteFiles]
	MediaType string
	Class     events.Class // of the job's last state
}

// Check holds the result against the expectation. What cannot be evaluated, or costs too
// much, is a failed check that says so. The expectation itself is in the intent.
func (x *Expectation) Check(in Expected) events.Check {
	failed := func(detail string) events.Check { return events.Check{Name: ExpectCheck, Detail: detail} }
	vars := map[string]any{
		"result_size": int64(len(in.Result)), "result_lines": lines(in.Result), "media_type": in.MediaType, "job_class": string(in.Class),
	}
	for name, body := range map[string][]byte{"params": in.Params, "result": in.Result} {
		what := map[string]string{"params": "the parameters", "result": "the result"}[name]
		if !x.e.uses[name] {
			continue
		}
		if len(body) > maxChecked {
			return failed(fmt.Sprintf("%s has more than %d bytes and was not looked into", what, maxChecked))
		}
		v, err := decode(body)
		if err != nil {
			return failed(fmt.Sprintf("%s cannot be read as JSON: %s", what, clip(reason(err), 100)))
		}
		vars[name] = v
	}
	holds, why := x.e.holds(x.e.program, vars)
	switch {
	case why != "":
		return failed("cannot be evaluated: " + why)
	case !holds:
		return failed("does not hold")
	}
	return events.Check{Name: ExpectCheck, Passed: true}
}

// lines counts those that are not empty.
func lines(body []byte) int64 {
	n := int64(0)
	for line := range bytes.Lines(body) {
		if len(bytes.TrimSpace(line)) > 0 {
			n++
		}
	}
	return n
}

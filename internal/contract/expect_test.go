package contract

import (
	"fmt"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
)

// An expectation is typed where it is asked for, and each problem has its place.
func TestExpectationProblems(t *testing.T) {
	c := parse(t, edited(t, "example-ask", "", ""))
	for source, want := range map[string]string{
		"":                                  "[{the expression is empty 1}]",
		"  ":                                "[{the expression is empty 1}]",
		"a nice picture":                    "[{Syntax error: mismatched input 'nice' expecting <EOF> 3}]",
		"reslt.total < 5":                   "[{undeclared reference to 'reslt' (did you mean 'result'?) 1}]",
		"result_size":                       "[{gives int, must give true or false 1}]",
		"result.?ok":                        "[{gives optional_type(dyn), must give true or false; a missing field is never false: end it with .orValue(false) or .hasValue() 1}]",
		`media_type == 5 && nope`:           "[{found no matching overload for '_==_' applied to '(string, int)' 12} {undeclared reference to 'nope' 20}]",
		"status == 200":                     "[{undeclared reference to 'status' 1}]",
		strings.Repeat("(", 5000):           "[{the expression has 5000 bytes; at most 4096 are allowed 1}]",
		"result.matches('(a{1000}){1000}')": "",
	} {
		x, problems := c.Expectation(source)
		if got := fmt.Sprint(problems); want != "" && got != want || (x == nil) != (len(problems) > 0) {
			t.Errorf("%.40q: %s, want %s", source, got, want)
		}
	}
	if _, problems := c.Expectation(strings.Repeat("x1 && ", 50) + "true"); len(problems) != maxExpectProblems {
		t.Errorf("%d problems", len(problems))
	}
	if x, _ := c.Expectation("result == params"); !x.NeedsParams() {
		t.Error("it looks at the parameters")
	}
	if x, _ := c.Expectation("result == 'params'"); x.NeedsParams() {
		t.Error("it does not look at the parameters")
	}
}

// A check is true, or false, or says why it is neither; the last two fail.
func TestExpectationChecks(t *testing.T) {
	contract := parse(t, edited(t, "example-ask", "", ""))
	for _, c := range []struct{ source, params, result, want string }{
		{"result.a == params.a", `{"a":9007199254740993}`, `{"a":9007199254740993}`, ""},
		{"result.a == params.a", `{"a":9007199254740993}`, `{"a":9007199254740992}`, "does not hold"},
		{"result.a == 1", `{}`, `{}`, "cannot be evaluated: no such key: a"},
		{"result.a == 1", `{}`, `not JSON`, "the result cannot be read as JSON"},
		{"result.a == 1", `{}`, `{"a":1,"a":1}`, "the result cannot be read as JSON"},
		{"result.a == 1", `{}`, ``, "the result cannot be read as JSON"},
		{"result_size == 0", `{}`, ``, ""},
		{"params.a == 1", ``, `{}`, "the parameters cannot be read as JSON"},
		{"result.a > 1", `{}`, `{"a":123456789012345678901234567890}`, "no such overload"},
		{"result.a == 1", `{}`, `{"a":1,"x":"` + strings.Repeat("x", maxChecked) + `"}`, "the result has more than 8388608 bytes and was not looked into"},
		{"result_size > 1", `{}`, strings.Repeat("x", maxChecked+1), ""},
		{"result.ok", `{}`, `{"ok":"yes"}`, "must give true or false"},
		{"result.a.all(x, result.a.all(y, result.a.all(z, x+y+z > 0)))", `{}`, `{"a":[` + strings.Repeat("1,", 100) + `1]}`, "cannot be evaluated: actual cost limit exceeded"},
	} {
		x, problems := contract.Expectation(c.source)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		got := x.Check(Expected{Params: []byte(c.params), Result: []byte(c.result), MediaType: "application/json", Class: events.ClassSucceeded})
		if got.Name != ExpectCheck || got.Passed != (c.want == "") || !strings.Contains(got.Detail, c.want) {
			t.Errorf("%s of %.40s: %+v, want %q", c.source, c.result, got, c.want)
		}
	}
}

// No text and no result makes it panic.
func FuzzExpectation(f *testing.F) {
	for _, s := range []string{"result.a == params.a", "result.?a.orValue(1) > 0", "size(result) > 0 && media_type.matches('^a')", "has(result.a)", "result", "", "[1].map(x, result)[0].b", "decimal(result, 2) == text(params)", "a nice picture"} {
		f.Add(s, []byte(`{"a":1}`), []byte(`{"a":[1,{}]}`))
	}
	c := parse(f, edited(f, "example-ask", "", ""))
	f.Fuzz(func(t *testing.T, source string, params, result []byte) {
		x, problems := c.Expectation(source)
		if (x == nil) == (len(problems) == 0) {
			t.Fatal("neither good nor bad")
		}
		if x == nil {
			return
		}
		if got := x.Check(Expected{Params: params, Result: result}); got.Passed == (got.Detail != "") {
			t.Fatalf("%+v", got)
		}
	})
}

package contract

import (
	"errors"
	"strings"
	"testing"
)

// What cannot be evaluated, or is no amount, is no cost, and never one of nothing.
func TestCost(t *testing.T) {
	c := parse(t, edited(t, "example", "decimal(25 * params.?copies.orValue(1), 2)", ">-\n    params.how == 'each' ? decimal(25 * params.?copies.orValue(1), 2) : text(params.?price)"))
	for params, want := range map[string]string{
		`{"how":"each"}`: "0.25", `{"how":"each","copies":3}`: "0.75", `{"how":"each","copies":0}`: "0", `{"how":"each","copies":400000000}`: "100000000",
		`{"how":"","price":"12.50"}`: "12.5", `{"how":"","price":12.5}`: "12.5", `{"how":"","price":7}`: "7", `{"how":"","price":"999999999999999.999999"}`: "999999999999999.999999",
	} {
		if got, unit, err := c.Cost([]byte(params)); err != nil || got.String() != want || unit != "USD" {
			t.Errorf("%s costs %s %s, %v", params, got, unit, err)
		}
	}
	for params, want := range map[string]string{
		`{}`: "no such key", `[]`: "", `{`: "cannot be read", `{"how":"each","copies":-1}`: "below 0", `{"how":"each","copies":1.5}`: "no such overload",
		`{"how":"each","copies":"3"}`: "no such overload", `{"how":"each","copies":9223372036854775807}`: "overflow",
		`{"how":""}`: `gives ""`, `{"how":"","price":"-1"}`: `gives "-1"`, `{"how":"","price":1e300}`: "must give a decimal", `{"how":"","price":0.0000001}`: "must give a decimal",
		`{"how":"","price":"1 USD"}`: "must give a decimal",
	} {
		got, unit, err := c.Cost([]byte(params))
		var e *EvalError
		if !errors.As(err, &e) || e.Field != "cost.amount" || !strings.Contains(err.Error(), want) || got != (Decimal{}) || unit != "" {
			t.Errorf("%s costs %s %s, %v", params, got, unit, err)
		}
	}
	if _, _, err := parse(t, edited(t, "example-ask", "", "")).Cost([]byte(`{}`)); !errors.Is(err, ErrNoCost) {
		t.Error(err)
	}
}

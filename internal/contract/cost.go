package contract

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// ErrNoCost says that the contract does not say what a job costs.
var ErrNoCost = errors.New("the contract does not say what a job costs")

// costRule is what a contract says of the cost of a job.
type costRule struct {
	unit   string // "USD"
	amount *expression
}

func (p *parser) cost(root section) {
	if !root.has("cost") {
		return
	}
	s := p.d.section(root.value["cost"], "cost", "unit", "amount")
	if s.node == nil {
		return
	}
	rule := &costRule{unit: s.text("unit"), amount: s.expression(p.env.params, "amount", text)}
	if s.need("unit", ": the currency or unit of the amount, such as USD") && !ValidUnit(rule.unit) {
		p.d.addf(s.value["unit"], "cost.unit", "must be 1 to 16 letters, digits, _ and -")
	}
	s.need("amount", ": an expression over params that gives a decimal as text, or a whole number")
	p.c.cost = rule
}

// ValidUnit says whether a text can be the unit of a cost: 1 to 16 letters, digits, _ and -.
func ValidUnit(s string) bool {
	return len(s) >= 1 && len(s) <= 16 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

// CostUnit is the currency or unit of costs; "" where the contract does not say what a
// job costs.
func (c *Contract) CostUnit() string {
	if c.cost == nil {
		return ""
	}
	return c.cost.unit
}

// Cost is what one job with these parameters costs, as the contract says, and in which
// unit. The error is [ErrNoCost] where it does not say so, and otherwise an [EvalError]:
// what cannot be evaluated is no cost, and not one of nothing.
func (c *Contract) Cost(params []byte) (Decimal, string, error) {
	if c.cost == nil {
		return Decimal{}, "", ErrNoCost
	}
	e := c.cost.amount
	value, err := decode(params)
	if err != nil {
		return Decimal{}, "", e.errorf("the parameters cannot be read: %v", err)
	}
	amount, err := e.text(&names{params: value})
	if err != nil {
		return Decimal{}, "", err
	}
	d, ok := ParseDecimal(amount)
	if !ok {
		return Decimal{}, "", e.errorf("gives %q, must give a decimal with at most %d digits before and %d after the point", clip(amount, 40), DecimalWhole, DecimalFraction)
	}
	return d, c.cost.unit, nil
}

// priced says what jobs cost.
func (c *Contract) priced() []string {
	if c.cost == nil {
		return []string{"The contract does not say what a job costs, so max_cost is refused and no quota of costs counts it."}
	}
	return []string{fmt.Sprintf("A job costs {%s} %s, before it is created; a caller's max_cost and quotas in that unit are held against it.", c.cost.amount.source, c.cost.unit)}
}

// decimal writes n / 10^digits exactly, so that amounts need no floats.
func decimal(n, digits ref.Val) ref.Val {
	count, ok := n.(types.Int)
	places, both := digits.(types.Int)
	switch {
	case !ok || !both:
		return types.MaybeNoSuchOverloadErr(n)
	case count < 0:
		return types.NewErr("decimal(): %d is below 0", int64(count))
	case places < 0 || places > DecimalFraction:
		return types.NewErr("decimal(): %d digits after the point; 0 to %d are allowed", int64(places), DecimalFraction)
	}
	s := fmt.Sprintf("%0*d", int(places)+1, int64(count))
	if places == 0 {
		return types.String(s)
	}
	at := len(s) - int(places)
	return types.String(s[:at] + "." + s[at:])
}

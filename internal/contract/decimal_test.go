package contract_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/internal/contract"
)

// What was added can be taken away again, and nothing goes below nothing.
func TestMinus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) contract.Decimal {
			d, ok := contract.ParseDecimal(rapid.StringMatching(`[0-9]{1,15}(\.[0-9]{1,6})?`).Draw(t, name))
			if !ok {
				t.Fatal("not a decimal")
			}
			return d
		}
		a, b := draw("a"), draw("b")
		if got := a.Plus(b).Minus(b); got != a {
			t.Errorf("%s + %s - %s is %s", a, b, b, got)
		}
		if got := a.Minus(a.Plus(b)); got != (contract.Decimal{}) {
			t.Errorf("%s below nothing", got)
		}
	})
}

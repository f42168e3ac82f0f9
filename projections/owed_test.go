package projections

import (
	"strings"
	"testing"
)

// An owed look-up says what it is owed for, and not that there were creates which
// there were not.
func TestWhyOwed(t *testing.T) {
	one := Tries{List: []Try{{Number: 1, Status: AttemptAnswered}}}
	for _, c := range []struct {
		s    State
		says string
	}{
		{State{Creates: Tries{List: []Try{{Number: 1}, {Number: 2}}}}, "more than one create"},
		{State{Creates: one, LookupBroke: true}, "did not see every page"},
		{State{Creates: one}, "the create may have arrived"},
	} {
		if got := c.s.whyOwed(); !strings.Contains(got, c.says) {
			t.Errorf("%q, want %q", got, c.says)
		}
	}
}

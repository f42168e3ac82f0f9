package poller

import (
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// What was expected before there were rules stays words, which nothing checks; and what
// cannot be checked fails, with the result collected all the same.
func TestExpectations(t *testing.T) {
	const result = `{"answer": 42}`
	for name, c := range map[string]struct {
		form   uint64
		expect string
		lost   bool // the parameters
		want   string
		phase  projections.Phase
	}{
		"words":                {events.ExpectWords, "a nice answer", false, "", projections.PhaseSucceeded},
		"holds":                {events.ExpectRule, "result.answer == 42 && params.input.a == 1", false, "passed", projections.PhaseSucceeded},
		"does not hold":        {events.ExpectRule, "result.answer == 41", false, "does not hold", projections.PhaseResultValidationFailed},
		"parameters lost":      {events.ExpectRule, "result.answer == 42 && params.input.a == 1", true, "not stored any more", projections.PhaseResultValidationFailed},
		"parameters not asked": {events.ExpectRule, "result.answer == 42", true, "passed", projections.PhaseSucceeded},
		"of a later program":   {events.ExpectRule, "result.answer in later", false, "cannot read the expectation", projections.PhaseResultValidationFailed},
		"in a later form":      {events.ExpectRule + 1, "result.answer == 42", false, "does not know the form", projections.PhaseResultValidationFailed},
	} {
		bubble(t, name, func(t *testing.T) {
			h := newHouse(t, changes{intent: func(i *events.IntentRecorded) {
				i.Expect, i.ExpectForm = c.expect, c.form
				if c.lost {
					i.Payload = events.Sum([]byte("lost"))
				}
			}})
			h.accept()
			h.finish()
			h.caller.then(says(200, result))
			h.attend()
			r := last[*events.ResultCollected](h)
			got := ""
			for _, check := range r.Checks {
				if check.Name == "expect" {
					if got = check.Detail; check.Passed {
						got = "passed"
					}
				}
			}
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("checks %+v", r.Checks)
			}
			if s := h.state(); s.Phase != c.phase || s.Result.Payload != events.Sum([]byte(result)) {
				t.Errorf("it is %s, %s", s.Phase, s.Reason)
			}
		})
	}
}

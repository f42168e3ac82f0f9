package runbook

import (
	"fmt"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// lasting is how many tries in a row must have failed before somebody should look:
// one or two are the weather. What is not authorised does not heal by itself, so
// there one is enough.
const lasting = 3

// Trouble is what goes wrong in asking the provider about an operation.
type Trouble struct {
	Class events.ErrorClass
	Words string // what failed, how often, and what its class means
	Lasts bool   // somebody should look, though the operation may go on by itself
}

// TroubleOf gives the trouble of a state that has not ended; false if the last
// answer was as hoped for.
func TroubleOf(s projections.State) (Trouble, bool) {
	t := Trouble{Class: s.Problem.Class}
	if t.Class == events.ErrorNone || s.Phase.Terminal() {
		return Trouble{}, false
	}
	var n uint64 // in a row
	one, many := "status read", "status reads"
	switch {
	case s.Phase == projections.PhaseResultCollecting || s.Phase == projections.PhaseResultUnavailable:
		n, one, many = s.Pace.Collects, "attempt to collect the result", "attempts to collect the result"
	case s.Job.ID != "":
		n = s.Pace.Failures
	case s.Phase == projections.PhaseCreatePending:
		n, one, many = max(s.Creates.Streak, s.Prepares.Streak, 1), "call", "calls"
	default: // a create or a look-up: they are not counted together
		t.Words = "a call failed: " + ClassWords(t.Class)
		if t.Class == events.ErrorUnanswered {
			t.Words = "a call was left open: " + ClassWords(t.Class)
		}
		t.Lasts = t.Class == events.ErrorUnauthorized
		return t, true
	}
	switch {
	case n == 0: // it was in something that is over
		return Trouble{}, false
	case t.Class == events.ErrorUnanswered: // whether those before it were, is not known
		t.Words = "the last call was left open: " + ClassWords(t.Class)
	case n == 1:
		t.Words = fmt.Sprintf("the last %s failed: %s", one, ClassWords(t.Class))
	default:
		t.Words = fmt.Sprintf("the last %d %s failed: %s", n, many, ClassWords(t.Class))
	}
	t.Lasts = n >= lasting || t.Class == events.ErrorUnauthorized
	return t, true
}

// ClassWords is a class of trouble in plain words.
func ClassWords(c events.ErrorClass) string {
	switch c {
	case events.ErrorNone:
		return "nothing"
	case events.ErrorTransport:
		return "no connection, or it broke"
	case events.ErrorTimeout:
		return "no whole answer in time"
	case events.ErrorThrottled:
		return "the provider asked to slow down"
	case events.ErrorServer:
		return "an error of the provider's own"
	case events.ErrorUnauthorized:
		return "not authorised"
	case events.ErrorNotFound:
		return "not found"
	case events.ErrorRefused:
		return "refused"
	case events.ErrorUnreadable:
		return "an answer that the contract cannot read"
	case events.ErrorTooLarge:
		return "an answer that is too large"
	case events.ErrorNotAfter:
		return "its last moment had passed before it left"
	case events.ErrorNoCredential:
		return "no credential that can be used"
	case events.ErrorPolicy:
		return "a destination or redirect that is not allowed"
	case events.ErrorExpired:
		return "no longer offered"
	case events.ErrorInternal:
		return "it could not be made"
	case events.ErrorUnanswered:
		return "nobody recorded an answer, and the request may have arrived"
	}
	return string(c) // of a later version
}

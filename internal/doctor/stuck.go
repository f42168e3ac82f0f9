package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/runbook"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	maxPages = 10  // of the history, each a bounded scan
	maxOpen  = 500 // operations that have something to come, to be looked at
	maxStuck = 100 // to be reported
	// A wake-up may be leased by a worker that died (30 s) and waited for.
	lateAfter = 2 * time.Minute
)

// operations finds those that wait for a person, rest, or are late.
func (v *visit) operations() {
	j := v.d.cfg.Journal
	var at journal.Place
	for range maxPages {
		page, err := j.Records(v.ctx, at, maxOpen-len(v.open), func(r *projections.Record) bool {
			return open(&r.State)
		})
		if err != nil {
			v.add("operations", "", Fail, err.Error(), "see that the store answers")
			return
		}
		for i := range page.Records {
			v.open = append(v.open, page.Records[i].State)
		}
		if at = page.Next; at == (journal.Place{}) || len(v.open) >= maxOpen {
			break
		}
	}
	if at != (journal.Place{}) {
		v.cut = append(v.cut, fmt.Sprintf("operations: the newest part of the history was searched and %s found; older ones may be open too", count(len(v.open), "open one was", "open ones were")))
	}
	stopped, resting, late, failing, unknown, more := 0, 0, 0, 0, 0, 0
	for i := range v.open {
		c, ok := v.stands(v.open[i])
		if !ok {
			continue
		}
		if len(v.stuck) >= maxStuck {
			more++
			continue
		}
		// What is reported is read again: it may have moved on meanwhile.
		now, err := j.Current(v.ctx, v.open[i].Operation)
		if err != nil {
			c.Seen += "; its newest facts could not be read: " + err.Error()
		} else if c, ok = v.stands(now); !ok {
			continue
		}
		switch {
		case c.Name == nameLate:
			late++
		case c.Name == nameRests:
			resting++
		case c.Name == nameFails:
			failing++
		case c.Name == nameUnknown:
			unknown++
		default:
			stopped++
		}
		v.stuck = append(v.stuck, c)
	}
	if more > 0 {
		v.cut = append(v.cut, fmt.Sprintf("operations: %d more that do not go on are not listed; counterfoil list --state STATE has them", more))
	}
	status := OK
	seen := fmt.Sprintf("%s looked at: %d waiting for a person, %d resting, %d late", count(len(v.open), "open operation", "open operations"), stopped, resting, late)
	if failing > 0 {
		seen += fmt.Sprintf(", %d whose calls fail", failing)
	}
	if unknown > 0 {
		seen += fmt.Sprintf(", %d in a state unknown to the contract", unknown)
	}
	switch {
	case late > 0:
		status = Fail
	case stopped+resting+failing+unknown+more > 0:
		status = Warn
	}
	v.add("operations", "", status, seen)
}

// open reports whether something is to come of an operation: it has not ended, or a
// call is due after its end, a cleanup or the last look-up for stray jobs.
func open(s *projections.State) bool { return !s.Phase.Terminal() || !s.NextLook.IsZero() }

// Kinds of operations that do not go on.
const (
	nameStopped  = "stopped"
	nameApproval = "unapproved"
	nameRests    = "resting"
	nameLate     = "late"
	nameUnknown  = "unknown state"
	nameFails    = "failing" // it goes on by itself, and each time in vain
)

// stands says why an operation does not go on, if it does not.
func (v *visit) stands(s projections.State) (Check, bool) {
	c := Check{Subject: s.Operation}
	// A decision needs a key of the principal.
	where := s.Intent.Provider + "/" + s.Intent.Account + " of " + s.Intent.Principal + ", " + string(s.Phase)
	if s.Quarantine != "" {
		where += " (" + string(s.Quarantine) + ")"
	}
	switch {
	case !open(&s):
		return c, false
	case s.Phase.Stopped():
		c.Name, c.Status = nameStopped, Warn
		c.Seen = fmt.Sprintf("%s since %s: %s", where, clock(s.Since), reasonWords(s))
		if trouble, ok := runbook.TroubleOf(s); ok {
			c.Seen += "; " + trouble.Words + said(s)
		}
		c.Do = runbook.Lines(runbook.Steps(s))
		c.Runbook = "docs/runbooks/" + runbook.Of(s).Page()
		return c, true
	case s.Phase == projections.PhaseApprovalPending && v.at.Sub(s.NextLook) <= lateAfter:
		var rules []string
		for _, d := range s.Intent.Demands {
			rules = append(rules, d.Rule)
		}
		c.Name, c.Status = nameApproval, Warn
		c.Seen = fmt.Sprintf("%s since %s, until %s: rule %s of the policy demands an approval", where, clock(s.Since), clock(s.Dates.Approval), strings.Join(rules, ", "))
		c.Do = []string{"counterfoil approve " + s.Operation + ", or deny, with a key of another principal that has the scope approve"}
		return c, true
	case s.Pace.Deferred != "" && s.Pace.DeferUntil.After(v.at):
		c.Name, c.Status = nameRests, Warn
		c.Seen = fmt.Sprintf("%s, deferred until %s: %s", where, clock(s.Pace.DeferUntil), s.Pace.Deferred)
		c.Do = []string{v.deferredHelp(s, s.Pace.Deferred)}
		return c, true
	case s.Pace.Resting != "" && s.Pace.RestCreates.After(v.at) && strings.HasSuffix(s.Because, string(s.Pace.Resting)):
		c.Name, c.Status = nameRests, Warn
		c.Seen = fmt.Sprintf("%s, creates deferred: %s", where, s.Pace.Resting)
		c.Do = []string{v.deferredHelp(s, s.Pace.Resting)}
		return c, true
	case s.Paused && !s.Phase.Terminal():
		c.Name, c.Status = nameRests, Warn
		c.Seen = where + ", paused: creates and collections rest"
		c.Do = []string{"counterfoil resume " + s.Operation}
		return c, true
	case !s.NextLook.IsZero() && v.at.Sub(s.NextLook) > lateAfter:
		c.Name, c.Status = nameLate, Fail
		c.Seen = fmt.Sprintf("%s, was due at %s, %s ago, to %s: %s", where, clock(s.NextLook), span(v.at.Sub(s.NextLook)), s.WaitingFor, s.Because)
		c.Do = []string{"look in the service's log for this operation; if all workers are busy, raise --workers", "counterfoil timeline " + s.Operation}
		return c, true
	case s.Phase.Terminal():
		return c, false // calls after the end are bounded
	}
	if trouble, ok := runbook.TroubleOf(s); ok && trouble.Lasts {
		c.Name, c.Status = nameFails, Warn
		c.Seen = where + ": " + trouble.Words + said(s)
		c.Do = []string{v.failingHelp(s, trouble.Class), "counterfoil timeline " + s.Operation}
		return c, true
	}
	if s.Job.Class == events.ClassUnknown && s.Job.Remote != "" {
		c.Name, c.Status = nameUnknown, Warn
		c.Seen = fmt.Sprintf("%s: the provider says %q, and the contract does not know what that means; the job is watched on", where, excerpt(s.Job.Remote))
		if !s.Dates.Result.IsZero() {
			c.Seen += " until " + clock(s.Dates.Result)
		}
		c.Do = []string{
			"find out from the provider what it means, and add it to the classes of the contract: operations submitted after that know it, this one keeps the contract it began with",
			"counterfoil timeline " + s.Operation,
		}
		return c, true
	}
	return c, false
}

// excerpt is a provider's text as it can be shown.
func excerpt(text string) string {
	const limit = 200 // bytes
	return httprule.Excerpt(canonical.RedactLinks([]byte(text)), limit)
}

// said is what the last answer that failed said, as far as it has words.
func said(s projections.State) string {
	if s.Problem.Class == events.ErrorUnanswered {
		return "" // nobody's words but ours
	}
	text := s.Problem.Message
	if !strings.HasPrefix(text, s.Problem.Code) {
		text = strings.TrimSpace(s.Problem.Code + " " + text)
	}
	if text == "" {
		return ""
	}
	return " (" + excerpt(text) + ")"
}

// failingHelp says what ends failures of a class.
func (v *visit) failingHelp(s projections.State, class events.ErrorClass) string {
	account := s.Intent.Provider + "/" + s.Intent.Account
	switch class {
	case events.ErrorUnauthorized:
		return "put a credential that is valid behind the reference of " + account + "; it is read anew for each call, and nothing else ends this before the deadline"
	case events.ErrorNoCredential:
		return "put a credential behind the reference of " + account + "; see credential above"
	case events.ErrorTransport, events.ErrorTimeout:
		return "see that this machine reaches the provider; counterfoil doctor --probe tries it"
	case events.ErrorThrottled:
		return "nothing: the provider asked to come back later"
	case events.ErrorPolicy:
		if s.Problem.Code == string(outbound.DestinationRefused) {
			return "if the address is the provider's own, allow it: serve --allow-network ADDRESS/BITS, or name its origin in the contract; if it is not, find out why the provider's answers lead there"
		}
		return "the provider's answer leads elsewhere: see that the base URL of " + account + " is the provider's"
	case events.ErrorNotFound, events.ErrorRefused, events.ErrorUnreadable, events.ErrorTooLarge, events.ErrorExpired:
		return "see that the base URL of " + account + " is the provider's and its contract fits; counterfoil doctor --probe asks it"
	case events.ErrorInternal:
		return "see that the contract and the account of " + account + " are as they were when it was submitted"
	case events.ErrorUnanswered:
		return "find out what ended the service, or kept it from its store, while the call was open"
	case events.ErrorNotAfter:
		return "see that this machine has time to work: its calls come to leave when their last moment has passed"
	case events.ErrorNone, events.ErrorServer:
	}
	return "look at the provider's status page"
}

// reasonWords says why a stopped operation stopped.
func reasonWords(s projections.State) string {
	text := string(s.Reason)
	if text == "" {
		text = s.Because
	}
	if n := len(projections.Candidates(s)); n > 0 {
		text += ", " + count(n, "job may be its own", "jobs may be its own")
	}
	return text
}

// deferredHelp says what ends a deferral.
func (v *visit) deferredHelp(s projections.State, why events.DeferReason) string {
	account := s.Intent.Provider + "/" + s.Intent.Account
	switch why {
	case events.DeferNoCredential:
		return "put a credential behind the reference of " + account + ", or chmod 600 its file if others can read it: the timeline's detail says which; it is read anew for each call"
	case events.DeferTargetChanged:
		if s.Phase == projections.PhaseCreatePending && s.Creates.Unresolved() == 0 {
			return "leave one credential and base URL at " + account + ": they changed again since the input was uploaded, and it is uploaded anew for each"
		}
		return "put the credential and base URL of " + account + " back to those of its create until it is settled: another account knows nothing of it"
	case events.DeferThrottled:
		return "nothing: the provider asked to come back later"
	case events.DeferLimit:
		return "nothing, if that is meant: more is asked for than the limits of " + account + " let through (limits in the credentials file, or its contract); raise them if the provider allows it"
	case events.DeferHold:
		release := "counterfoil release"
		if slices.Contains(v.held, s.Intent.Provider) { // and not by the hold on all
			release += " --provider " + s.Intent.Provider
		}
		return release + ", once the reason for the hold is gone"
	case events.DeferStorageLow:
		return "make room where the data directory is, see disk above"
	case events.DeferNoContract:
		return "run the program version that recorded it, or see contract above"
	}
	return "see what its timeline says: counterfoil timeline " + s.Operation
}

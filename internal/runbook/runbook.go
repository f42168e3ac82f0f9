// Package runbook says what helps an operation in which automation rests: one
// list for notices, the doctor and the pages in docs/runbooks.
//
// A list begins with a look, because nothing is to be decided before one. Its
// commands can be run as they stand, with two bounds. What only a person knows (a
// job's id, what shows a cancellation) is never in a command, not as a placeholder
// either: a command that lacks it is refused, and the list says where it comes
// from. And no command accepts the risk of a second job: whoever does, writes so.
package runbook

import (
	"slices"
	"strings"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// Rest is a phase, and the kind where it is quarantined, in which automation rests.
type Rest struct {
	Phase projections.Phase
	Kind  projections.Quarantine
}

// Rests lists them all.
func Rests() []Rest {
	return []Rest{
		{projections.PhaseResultTimedOut, ""},
		{projections.PhaseCancellationUnconfirmed, ""},
		{projections.PhaseResultUnavailable, ""},
		{projections.PhaseResultValidationFailed, ""},
		{projections.PhaseQuarantined, projections.QuarantineUnknown},
		{projections.PhaseQuarantined, projections.QuarantineLost},
		{projections.PhaseQuarantined, projections.QuarantineConflict},
		{projections.PhaseQuarantined, projections.QuarantineUnreadable},
	}
}

// Of gives the rest of a state that is stopped.
func Of(s projections.State) Rest { return Rest{s.Phase, s.Quarantine} }

// Page is the name of the rest's page in docs/runbooks.
func (r Rest) Page() string {
	name := string(r.Phase)
	if r.Kind != "" {
		name += "-" + string(r.Kind)
	}
	return strings.ReplaceAll(name, "_", "-") + ".md"
}

// Step is one thing that helps.
type Step struct {
	When    string // what must be so, as a person sees it; empty for the look
	Command string // as it can be run; empty where none helps
	Add     string // what the command still lacks, and where that comes from
}

// String is the step on one line.
func (s Step) String() string {
	text := s.Command
	if s.Add != "" {
		text += ", with " + s.Add
	}
	if s.When == "" || text == "" {
		return s.When + text
	}
	return s.When + ": " + text
}

// Lines gives each step on a line.
func Lines(steps []Step) []string {
	list := make([]string, 0, len(steps))
	for _, s := range steps {
		list = append(list, s.String())
	}
	return list
}

// maxNamed bounds how many candidates are named.
const maxNamed = 3

// Steps lists what helps a stopped operation, in the order in which to think of
// it. Decisions that the state does not allow now are left out. None for an
// operation that is not stopped.
func Steps(s projections.State) []Step {
	if !s.Phase.Stopped() {
		return nil
	}
	list := slices.DeleteFunc(Of(s).steps(s), func(st step) bool {
		if st.decides == "" {
			return false
		}
		ok, _ := projections.Allowed(s, st.decides)
		return !ok
	})
	steps := make([]Step, 0, len(list))
	for _, st := range list {
		steps = append(steps, st.Step)
	}
	return steps
}

// step is a Step and the decision that it is, if it is one.
type step struct {
	Step
	decides events.DecisionKind
}

func (r Rest) steps(s projections.State) []step {
	run := func(verb string) step { return step{Step: Step{Command: "counterfoil " + verb + " " + s.Operation}} }
	decide := func(when string, choice events.DecisionKind, add string) step {
		return step{Step{when, "counterfoil decide " + s.Operation + " " + string(choice) + " --why '...'", add}, choice}
	}
	adopt := func(when string) step { return decide(when, events.DecideAdopt, "--job and "+jobSource(s)) }
	cancelled := func(when string) step {
		return decide(when, events.DecideMarkCancelled, "--evidence and what shows it")
	}
	abandon := func(when string) step { return decide(when, events.DecideAbandon, "") }
	const consoleCancelled = "The console shows it cancelled"

	switch r.Phase { // the others do not rest
	case projections.PhaseResultTimedOut:
		cancel := run("cancel")
		cancel.When, cancel.Command = "It is not wanted any more", cancel.Command+" --why '...'"
		return []step{run("get"), decide(again(s, "It is only slow"), events.DecideResume, ""), cancel, abandon("Nobody cares")}
	case projections.PhaseCancellationUnconfirmed:
		return []step{
			run("timeline"), decide(again(s, "Look once more and follow it"), events.DecideResume, ""),
			cancelled(consoleCancelled), abandon("It does not matter"),
		}
	case projections.PhaseResultUnavailable:
		retry := decide(again(s, "The cause is repaired"), events.DecideRetryCollection, "")
		if s.Reason == projections.ReasonResultLost {
			retry.When = "The provider still has it, though it may be read once only"
		}
		return []step{run("timeline"), retry, abandon("The provider does not have it any more")}
	case projections.PhaseResultValidationFailed:
		return []step{
			run("get"), decide("It was cut off or came too early", events.DecideRetryCollection, ""),
			decide("The result is good and the check too strict", events.DecideAcceptResult, ""), abandon("It is useless"),
		}
	case projections.PhaseQuarantined:
	default:
		return nil
	}
	switch r.Kind {
	case projections.QuarantineUnknown:
		return []step{
			run("get"), adopt("You found the job"),
			decide("There is certainly none", events.DecideRetryCreate, ""), abandon("It is not wanted any more"),
		}
	case projections.QuarantineLost:
		return []step{
			run("timeline"), decide("The cause is repaired", events.DecideResume, ""), adopt("It has another id"),
			cancelled(consoleCancelled), abandon("It is gone"),
		}
	case projections.QuarantineConflict:
		return []step{
			run("timeline"), adopt("One of the jobs is this operation's"),
			cancelled("The job in question is cancelled in the console"), abandon("The other operation has the only job"),
		}
	case projections.QuarantineUnreadable:
		newer := step{Step: Step{When: "It was a downgrade: stop, and run the newer version again"}}
		return []step{
			run("timeline"), newer, adopt("You know the job"),
			cancelled("You know that it was cancelled"), abandon("It is not worth it"),
		}
	}
	return []step{run("timeline")}
}

// again is when to look again: where reads failed, the job may be as slow as it
// likes, what made them fail comes first.
func again(s projections.State, otherwise string) string {
	trouble, some := TroubleOf(s)
	switch {
	case !some, trouble.Class == events.ErrorUnanswered: // nothing of the provider's is to be repaired
		return otherwise
	case trouble.Class == events.ErrorUnauthorized, trouble.Class == events.ErrorNoCredential:
		return "There is a valid credential behind " + s.Intent.Provider + "/" + s.Intent.Account + " again (" + trouble.Words + ")"
	}
	return "What made it fail is repaired (" + trouble.Words + ")"
}

// jobSource says where the id of a job to adopt comes from. Candidates are named
// for comparison only: a look-up found them without our exact reference. A job that a
// webhook named with it is ours, as far as that webhook is believed.
func jobSource(s projections.State) string {
	text := "its id as the provider's own console shows it"
	if job := s.Hint.JobID; s.Hint.Exact && job != s.Job.ID && plain(job) {
		text += "; a webhook with our reference named " + job
	}
	named := slices.Clone(s.Candidates[:min(len(s.Candidates), maxNamed)])
	if len(named) == 0 || slices.ContainsFunc(named, func(id string) bool { return !plain(id) }) {
		return text
	}
	text += "; look-ups named " + strings.Join(named, ", ")
	if len(s.Candidates) > len(named) {
		text += ", …"
	}
	return text
}

// plain says whether a provider's id can stand in a line as it is.
func plain(id string) bool {
	for _, c := range []byte(id) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !ok {
			return false
		}
	}
	return id != "" && id[0] != '-' && len(id) <= 128
}

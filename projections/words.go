package projections

import (
	"strings"

	"github.com/counterfoil/counterfoil/events"
)

// Why is Because for people: where that is a code, or names one, it says what the code
// means, and after a deferral who can do something about it. Codes stay in the record.
func (s *State) Why() string {
	if code, ok := strings.CutPrefix(s.Because, deferredPrefix); ok {
		return s.Because + ": " + deferWords(events.DeferReason(code))
	}
	if which, ok := strings.CutPrefix(s.Because, deadlinePrefix); ok {
		return "nothing else is due before its " + which + " deadline passes"
	}
	if s.Because == string(s.Reason) {
		return s.Reason.Words()
	}
	return s.Because
}

// Words says what the reason means, as a sentence without its full stop. A reason of a
// later version is its own word.
func (r Reason) Words() string {
	switch r {
	case ReasonNeverSent:
		return "no create was sent before its deadline"
	case ReasonRefused:
		return "the provider refused the create"
	case ReasonNotCreated:
		return "no create made a job, and none will be sent any more"
	case ReasonApprovalDenied:
		return "the approval was denied"
	case ReasonApprovalExpired:
		return "nobody approved it before the deadline"
	case ReasonProviderFailed:
		return "the provider says that the job failed"
	case ReasonProviderExpired:
		return "the provider says that the job expired"
	case ReasonProviderCancel:
		return "the provider says that the job was cancelled; nobody had asked for it here"
	case ReasonCancelConfirmed:
		return "the provider confirmed that the job was cancelled"
	case ReasonCancelledUnsent:
		return "it was cancelled before any create was sent"
	case ReasonGone:
		return "the job is gone, which this provider does with a job that was cancelled"
	case ReasonJobLost:
		return "the provider does not find the job any more"
	case ReasonCreateUnknown:
		return "a create was sent, and it is not known whether it made a job"
	case ReasonJobConflict:
		return "it is not settled which job is this operation's: there is more than one, or another operation has it"
	case ReasonResultDeadline:
		return "the job had not ended when the deadline for its result passed"
	case ReasonCancelDeadline:
		return "the provider did not confirm the cancel before the deadline"
	case ReasonCollectDeadline:
		return "the job ended, and its result could not be read before the deadline"
	case ReasonResultLost:
		return "the result can be read only once, and what that read gave is not known"
	case ReasonCheckFailed:
		return "the result was read and failed a check"
	case ReasonDecided:
		return "somebody decided so"
	case ReasonFactUnreadable:
		return "this version of the program cannot read one of its facts"
	case ReasonDuplicateFact:
		return "the same fact was there before"
	case ReasonSecondIntent:
		return "the operation has an intent already"
	case ReasonNotApplicable:
		return "it does not fit the state"
	case ReasonAttemptOpen:
		return "a call is under way"
	case ReasonTooEarly:
		return "it comes too early"
	case ReasonTooLate:
		return "it comes too late"
	case ReasonStale:
		return "it was made on an older state"
	case ReasonTerminal:
		return "the operation has ended"
	case ReasonRiskUnstated:
		return "a second job cannot be excluded, and nobody accepted that"
	case ReasonBadDecision:
		return "the decision lacks what its kind needs"
	case ReasonBadApproval:
		return "it approves something else, or what its author submitted"
	case ReasonJobOwned:
		return "the job belongs to another operation"
	case ReasonChainBroken:
		return "it does not follow the fact before it"
	case ReasonUnreadable:
		return "this version of the program cannot read it"
	case ReasonNoPermit:
		return "no fact permitted the call that it answers"
	}
	return string(r)
}

// deferWords says why a step rests, and what ends that.
func deferWords(r events.DeferReason) string {
	const operator = "; the operator has to put that right, and counterfoil doctor says how"
	switch r {
	case events.DeferThrottled:
		return "the provider asked to come back later; it goes on by itself"
	case events.DeferLimit:
		return "the account's limit of calls is reached; it goes on by itself"
	case events.DeferHold:
		return "calls to the provider are held; it goes on once an operator releases the hold"
	case events.DeferNoCredential:
		return "the account has no credential that can be used" + operator
	case events.DeferTargetChanged:
		return "the address or credential of the account is another than its calls began with" + operator
	case events.DeferNoContract:
		return "the contract that it was recorded with is not to be had" + operator
	case events.DeferStorageLow:
		return "there is too little room for new jobs" + operator
	}
	return "for a reason that this version of the program does not know"
}

package events

// PrepareOutcome is how a preparation ended, as far as its author knows.
type PrepareOutcome string

// Outcomes of a preparation.
const (
	PrepareDone      PrepareOutcome = "done"
	PrepareRejected  PrepareOutcome = "rejected"  // with class throttled: for now only
	PrepareNotSent   PrepareOutcome = "not_sent"  // proved: no byte left
	PrepareAmbiguous PrepareOutcome = "ambiguous" // anything else
	PreparePresumed  PrepareOutcome = "presumed"  // by another worker, for an attempt left open
)

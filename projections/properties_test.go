package projections

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// A checker holds the rules of DESIGN §5 and §6 against every fact folded.
type checker struct {
	t interface {
		Helper()
		Fatalf(format string, a ...any)
	}
	driven bool      // the facts come from steps, not from an enemy
	over   uint64    // the newest answer that the job had when it waited no longer
	vain   [2]uint64 // calls of the newest input and of the newest cleanup, in a row, that could not be sent
	named  []string  // jobs that webhooks named with our reference
	states []State
	bytes  [][]byte // of those states, when they were new
}

func (c *checker) step(before State, e Entry, after State, r Record) {
	c.t.Helper()
	fact := e.Event.Fact
	bad := func(format string, a ...any) {
		c.t.Helper()
		c.t.Fatalf("%s: "+format, append([]any{string(before.Phase) + " meets " + string(r.Type) + " by " + r.Row}, a...)...)
	}

	_, hasNext := Next(after)
	if len(c.bytes) < 60 { // long polls say the same again and again
		c.value(before, e, after, r, bad)
	}

	// Rule 5: always recorded; refused by verdict and a stable code.
	if after.Facts != before.Facts+1 || after.Sequence != e.Sequence || r.From != before.Phase || r.To != after.Phase {
		bad("the record does not tell what happened")
	}
	if (r.Verdict == Rejected) != (after.Refused == before.Refused+1) {
		bad("%s, and %d facts refused after %d", r.Verdict, after.Refused, before.Refused)
	}
	if r.Verdict == Rejected && !slices.Contains(refusals(), r.Reason) {
		bad("rejected for %q", r.Reason)
	}
	if r.Verdict != Applied && r.Row != "rule 7" && after.Phase != before.Phase {
		bad("%s, and the phase became %s", r.Verdict, after.Phase)
	}

	// Row 36, and: live means looked at.
	if before.Phase.Terminal() && after.Phase != before.Phase {
		bad("a terminal phase became %s", after.Phase)
	}
	if after.Phase.Live() && !hasNext {
		bad("%s has no next look", after.Phase)
	}

	// An attempt that may be running is left alone.
	open := 0
	for _, tries := range []Tries{after.Prepares, after.Creates, after.Cancels, after.Results, after.Inputs, after.Cleanups} {
		n := 0
		for _, t := range tries.List {
			if t.Status == AttemptOpen {
				n++
			}
		}
		if n > 1 {
			bad("%d attempts of one kind are open", n)
		}
		open += n
	}
	if c.driven && open > 1 {
		bad("%d attempts are open", open)
	}
	if _, try := after.Presumable(); try != nil {
		if steps := Steps(after); len(steps) != 1 || steps[0].Kind != StepPresume || steps[0].At.Before(try.NotAfter.Add(try.Timeout)) {
			bad("an attempt is open and the steps are %+v", steps)
		}
	}

	c.further(before, e, after, r, bad)
	entered := after.Phase != before.Phase || after.Quarantine != before.Quarantine
	decided := func(kind events.DecisionKind) bool {
		d, ok := fact.(*events.DecisionMade)
		return ok && d.Choice == kind
	}
	p := after.Intent.Promises

	// Rule 1.
	if entered && after.Phase == PhaseResultCollecting {
		o, read := fact.(*events.JobObserved)
		a, answered := fact.(*events.CreateAnswered)
		switch {
		case read && o.JobID == after.Job.ID, answered && a.Outcome == events.CreateCompleted, decided(events.DecideRetryCollection):
		default:
			bad("collecting without a status read or a synchronous result")
		}
	}
	if entered && after.Phase == PhaseSucceeded {
		o, read := fact.(*events.JobObserved)
		a, answered := fact.(*events.CreateAnswered)
		result, collected := fact.(*events.ResultCollected)
		switch {
		case collected && !slices.ContainsFunc(result.Checks, func(c events.Check) bool { return !c.Passed }) && after.Outcome == OutcomeSuccess:
		case read && !p.HasResult && (o.State == events.ClassSucceeded || o.State == events.ClassPartial):
		case answered && !p.HasResult && a.Outcome == events.CreateCompleted:
		case decided(events.DecideAcceptResult) && before.Phase == PhaseResultValidationFailed:
		default:
			bad("succeeded by it")
		}
	}
	// Rule 8: a quarantine is explained. That evidence ends it is TestQuarantineEndsOnEvidence.
	if after.Phase == PhaseQuarantined && (after.Quarantine == "" || after.Reason == "" || after.WaitingFor == "" || after.Because == "") {
		bad("quarantined without a kind, a reason or what it waits for: %q %q %q %q", after.Quarantine, after.Reason, after.WaitingFor, after.Because)
	}
	// Rule 2.
	if entered && after.Phase == PhaseCancelled {
		o, read := fact.(*events.JobObserved)
		switch {
		case read && o.State == events.ClassCancelled && o.JobID == after.Job.ID:
		case before.Phase == PhaseResultCollecting && before.Outcome == OutcomeCancelled:
		case before.Phase == PhaseCancelling && p.GoneConfirmsCancel && after.Reason == ReasonGone && before.Pace.NotFound >= 2:
		case decided(events.DecideMarkCancelled):
		case after.Reason == ReasonCancelledUnsent && !after.Creates.everLeft() && after.Cancel.Wished && after.Job.ID == "":
		default:
			bad("cancelled by it, for %s", after.Reason)
		}
	}
	// Rule 3: a second create only where it cannot make a second job, or the risk was taken.
	if a, ok := fact.(*events.CreateAttempted); ok && r.Verdict == Applied && before.Creates.Unresolved() > 0 {
		ends := before.Creates.List[0].OpenedAt.Add(p.TokenWindow - after.Intent.Policy.RequestTimeout - p.Settle - after.Intent.Policy.ClockDifference)
		holds := p.Guarantee == events.Deduplicated && (p.TokenWindow == 0 || !a.NotAfter.After(ends))
		if !holds && !before.RiskAccepted {
			bad("a second create while one is unresolved")
		}
		if before.Cancel.Wished || before.Paused || before.Dates.CreatePassed {
			bad("a create against a wish, a pause or the deadline")
		}
	}
	// A create that needs something has it.
	at := func(a events.Attempt) Round { return Round{Origin: a.Origin, Account: a.Account, Identity: a.Identity} }
	made := Round{Origin: before.Round.Origin, Account: before.Round.Account, Identity: before.Round.Identity}
	if a, ok := fact.(*events.CreateAttempted); ok && r.Verdict == Applied && p.Prepares > 0 && (before.Ready < p.Prepares || made != at(a.Attempt)) {
		bad("a create as %+v after %d of %d preparations as %+v", at(a.Attempt), before.Ready, p.Prepares, made)
	}
	if a, ok := fact.(*events.PrepareAttempted); ok && r.Verdict == Applied {
		again := made != at(a.Attempt)
		switch {
		case before.Phase != PhaseCreatePending, before.Cancel.Wished, before.Paused,
			!again && a.Step != before.Ready, again && a.Step != 0:
			bad("preparation %d as %+v, and %d are done as %+v", a.Step, at(a.Attempt), before.Ready, made)
		case again && before.Creates.Unresolved() > 0 && !before.RiskAccepted:
			bad("preparations begin again, and a create that relied on them is unresolved")
		case again && (after.Ready > 0 || len(after.Prepared) > 0 || len(after.Prepares.List) != 1):
			bad("%d preparations are done as somebody else", after.Ready)
		}
	}
	// Rule 3: what could take something back counts only from who knew it.
	if r.Row != "33" && r.Row != "rule 7" && before.Phase != PhaseNone {
		asOf, negative := uint64(math.MaxUint64), false
		switch f := fact.(type) {
		case *events.JobObserved:
			switch f.State {
			case events.ClassSucceeded, events.ClassPartial, events.ClassFailed, events.ClassCancelled, events.ClassExpired:
			case events.ClassQueued, events.ClassRunning, events.ClassInputRequired, events.ClassUnknown:
				asOf, negative = f.AsOf, before.Job.ID != ""
			}
		case *events.ObservationFailed:
			asOf, negative = f.AsOf, true
		case *events.LookupAnswered:
			asOf, negative = f.AsOf, !slices.ContainsFunc(f.Jobs, func(j events.FoundJob) bool { return j.Exact })
		default: // no other fact can take something back
		}
		if negative && asOf < before.Changed && entered {
			bad("stale evidence moved it to %s", after.Phase)
		}
	}
	// Rule 3: proof of absence.
	if r.Row == "12" {
		for _, t := range before.Creates.List {
			if earliest := t.NotAfter.Add(t.Timeout + p.Settle + after.Intent.Policy.ClockDifference); fact.(*events.LookupAnswered).LeftAt.Before(earliest) {
				bad("absent, although attempt %d could still act", t.Number)
			}
		}
	}
	// Rule 6: no job that is ours is forgotten.
	if a, ok := fact.(*events.CreateAnswered); ok && slices.Contains([]events.CreateOutcome{events.CreateAccepted, events.CreateCompleted, events.CreateConflict}, a.Outcome) && a.JobID != "" && a.Claim == events.ClaimOwn && before.Phase != PhaseNone && r.Row != "rule 7" && r.Reason != ReasonDuplicateFact {
		if a.JobID != after.Job.ID && !slices.Contains(after.Strays, a.JobID) {
			bad("job %s is ours and the state does not know it", a.JobID)
		}
	}
	// Rule 6: whoever looks sees each job that a webhook named with our reference. By
	// version 1 of the rules another hint, or none, has the one before forgotten.
	if after.Rulebook() < 2 && before.Hint.JobID != "" && before.Hint != after.Hint {
		c.named = nil
	}
	if f, ok := fact.(*events.WebhookReceived); ok && f.Exact && f.JobID != "" && slices.Contains([]string{"33", "36", "37"}, r.Row) && r.Reason != ReasonTooLate {
		c.named = append(c.named, f.JobID)
	}
	for _, job := range c.named {
		open, left := slices.Contains(Candidates(after), job), slices.Contains(Unfollowed(after), job)
		if job != after.Job.ID && !open && !left {
			bad("a webhook named job %s, and nobody is shown it", job)
		}
		if job == after.Job.ID && (open || left) {
			bad("job %s is followed, and shown as a candidate %t, as a stray %t", job, open, left)
		}
	}
	// Rule 4: a job of another operation is not followed.
	if after.Job.ID != "" && after.Job.ID != before.Job.ID && !decided(events.DecideAdopt) {
		switch f := fact.(type) {
		case *events.CreateAnswered:
			if f.Claim != events.ClaimOwn {
				bad("bound to a job claimed by %q", f.Claim)
			}
		case *events.JobObserved:
			if f.Claim != events.ClaimOwn {
				bad("bound to a job claimed by %q", f.Claim)
			}
		case *events.LookupAnswered:
			if i := slices.IndexFunc(f.Jobs, func(j events.FoundJob) bool { return j.ID == after.Job.ID }); !f.Jobs[i].Exact || f.Jobs[i].Claim != events.ClaimOwn {
				bad("bound to %+v", f.Jobs[i])
			}
		case *events.IntentRecorded, *events.ApprovalGranted:
		default:
			bad("bound to job %s by it", after.Job.ID)
		}
	}
	if before.Quarantine == QuarantineConflict && entered && r.Row != "rule 7" {
		if _, ok := fact.(*events.DecisionMade); !ok {
			bad("a conflict was cleared without a decision")
		}
	}
	// Retry-After.
	if most := e.Time.Add(after.Intent.Policy.PollMax); before.Phase != PhaseNone && after.Intent.Policy.PollMax > 0 && !after.Pace.RetryAt.Equal(before.Pace.RetryAt) && after.Pace.RetryAt.After(most) {
		bad("a pause until %v, later than %v", after.Pace.RetryAt, most)
	}
	// A deadline that came too early.
	if d, ok := fact.(*events.DeadlinePassed); ok && r.Reason == ReasonTooEarly && !after.Dates.RetryAt.Equal(before.Dates.RetryAt) {
		f := &folding{s: &after}
		missing := f.date(d.Which).Sub(e.Time)
		if later := after.Dates.RetryAt; later.Before(e.Time.Add(max(missing, 10*time.Second))) {
			bad("%v missing, asked again at %v", missing, later)
		}
	}
}

// further holds what inputs and cleanups may do: a call only where somebody asked for
// it, a second one only where repeating is safe or nothing came of the first, none
// that stays due and is never looked at, and nothing at all by the rules of version 1.
func (c *checker) further(before State, e Entry, after State, r Record, bad func(string, ...any)) {
	c.t.Helper()
	kinds := []StepKind{}
	for _, step := range Steps(after) {
		kinds = append(kinds, step.Kind)
	}
	_, waits := after.Presumable()
	for _, due := range []struct {
		due  bool
		kind StepKind
	}{{after.Input.Due, StepInput}, {after.Cleanup.Due, StepCleanup}} {
		if due.due && waits == nil && !slices.Contains(kinds, due.kind) || !due.due && slices.Contains(kinds, due.kind) {
			bad("%s is due: %t, and the steps are %v", due.kind, due.due, kinds)
		}
	}
	if after.Input.Due && after.Phase != PhaseInputRequired || after.Input.Wanted && after.Phase != PhaseInputRequired {
		bad("an input is due or wanted in %s: %+v", after.Phase, after.Input)
	}
	if q := after.Input.Question; q != 0 && (after.Phase != PhaseInputRequired || q > after.Sequence || q < before.Input.Question) {
		bad("question %d in %s at %d, before it %d", q, after.Phase, after.Sequence, before.Input.Question)
	}
	same := before.Phase == PhaseInputRequired && before.Job.InputURL == after.Job.InputURL && before.Job.InputText == after.Job.InputText
	switch q := before.Input.Question; {
	case q == 0 || q != after.Input.Question: // none was asked, or it has changed
		if answered, ok := e.Event.Fact.(*events.InputAnswered); q != 0 && same && after.Phase == PhaseInputRequired && !ok {
			bad("question %d became %d although the job says the same: %+v", q, after.Input.Question, answered)
		}
	case !same:
		bad("question %d goes on although the job asks something else", q)
	case before.InputStatus() != CallDone && after.InputStatus() == CallDone && before.Inputs.Open() != nil:
		bad("question %d goes on although an answer was passed on", q)
	}
	if before.Input.Number == after.Input.Number && !before.Input.Due && after.Input.Due && after.Input.Over {
		bad("answer %d is due again although the job asks something else", after.Input.Number)
	}
	if before.Phase == PhaseInputRequired && after.Phase != PhaseInputRequired {
		c.over = after.Input.Number
	}
	c.inVain(before, e, after, r, bad)
	switch e.Event.Fact.(type) {
	case *events.InputAttempted:
		switch {
		case r.Verdict != Applied:
		case before.Input.Number <= c.over:
			bad("answer %d was permitted again after the job had gone on", before.Input.Number)
		case before.Phase != PhaseInputRequired, !before.Input.Due, before.InputStatus() == CallDone:
			bad("an input that is %s was permitted", before.InputStatus())
		case len(before.Inputs.List) > 0 && !before.Intent.Offers.RepeatInput:
			bad("an input that may have arrived was permitted again")
		}
	case *events.CleanupAttempted:
		switch {
		case r.Verdict != Applied:
		case before.Phase.Live(), !before.Cleanup.Due, before.CleanupStatus() == CallDone, before.Quarantine == QuarantineConflict:
			bad("a cleanup that is %s was permitted", before.CleanupStatus())
		case len(before.Cleanups.List) > 0 && !before.Intent.Promises.RepeatCleanup:
			bad("a cleanup that may have arrived was permitted again")
		}
	case *events.InputSubmitted, *events.InputAnswered, *events.CleanupRequested, *events.CleanupAnswered: // cleanups never move it, inputs by what is read then
		if r.Row != "rule 7" && (before.Phase != after.Phase || before.Quarantine != after.Quarantine || before.Outcome != after.Outcome) {
			bad("it moved the operation to %s %s", after.Phase, after.Outcome)
		}
	default: // the others are not about them
	}
	none := func(s State) bool {
		return s.InputStatus() == CallNone && s.CleanupStatus() == CallNone && !s.Input.Wanted && s.Input.Question == 0 && s.Inputs.Made+s.Cleanups.Made == 0
	}
	if (after.Rulebook() < 2 || after.Intent.Offers == (events.Offers{})) && !none(after) {
		bad("version %d of the rules, offers %+v: %+v %+v", after.Rulebook(), after.Intent.Offers, after.Input, after.Cleanup)
	}
	if want := max(1, after.Rulebook()); r.Rules != want {
		bad("the record says rules %d, the operation keeps %d", r.Rules, want)
	}
}

// inVain counts what could not be sent, by the facts alone, and holds that what was
// given up is not due again before somebody asks again.
func (c *checker) inVain(before State, e Entry, after State, r Record, bad func(string, ...any)) {
	c.t.Helper()
	answered := func(n *uint64, a *Asked, tries *Tries, attempt uint64, outcome events.CallOutcome, class events.ErrorClass) {
		try, vain := tries.find(attempt), outcome == events.CallNotSent || outcome == events.CallRefused && class == events.ErrorThrottled
		switch {
		case r.Row == "rule 7", r.Reason == ReasonDuplicateFact:
		case try == nil:
			if attempt == 0 && outcome == events.CallNotSent && a.Due {
				*n++
			}
		case try.OwnClosed, outcome == events.CallPresumed && try.Status != AttemptOpen: // that is settled
		case vain:
			*n++
		case attempt == tries.Made:
			*n = 0
		}
	}
	switch f := e.Event.Fact.(type) {
	case *events.InputAnswered:
		answered(&c.vain[0], &before.Input.Asked, &before.Inputs, f.Attempt, f.Outcome, f.Class)
	case *events.CleanupAnswered:
		answered(&c.vain[1], &before.Cleanup.Asked, &before.Cleanups, f.Attempt, f.Outcome, f.Class)
	default: // no other fact answers one of them
	}
	if before.Input.Number != after.Input.Number {
		c.vain[0] = 0
	}
	if before.Cleanup.Number != after.Cleanup.Number {
		c.vain[1] = 0
	}
	most := max(after.Intent.Policy.MaxAttempts, 1)
	if after.Input.Due && c.vain[0] >= most || after.Cleanup.Due && c.vain[1] >= most {
		bad("it is due after %d in a row that could not be sent, of %d: input %t, cleanup %t", c.vain, most, after.Input.Due, after.Cleanup.Due)
	}
}

// value holds §6: Fold is deterministic, its results are values that survive
// storage, and a repeated fact changes nothing but the count of facts.
func (c *checker) value(before State, e Entry, after State, r Record, bad func(string, ...any)) {
	c.t.Helper()
	stateBytes, recordBytes := codec.Marshal(&after), codec.Marshal(&r)
	again, r2 := Fold(before, e)
	if !bytes.Equal(codec.Marshal(&again), stateBytes) || !bytes.Equal(codec.Marshal(&r2), recordBytes) {
		bad("a second fold gives other bytes")
	}
	var s2 State
	if err := codec.Unmarshal(stateBytes, &s2); err != nil {
		bad("the state cannot be read again: %v", err)
	}
	if !bytes.Equal(codec.Marshal(&s2), stateBytes) {
		bad("the state changes when it is read and written")
	}
	var r3 Record
	if err := codec.Unmarshal(recordBytes, &r3); err != nil || !bytes.Equal(codec.Marshal(&r3), recordBytes) {
		bad("the record does not survive storage: %v", err)
	}
	next, hasNext := Next(after)
	if stored, ok := Next(s2); ok != hasNext || !stored.Equal(next) {
		bad("a stored state looks at %v, the state itself at %v", stored, next)
	}
	c.states, c.bytes = append(c.states, after), append(c.bytes, stateBytes)

	repeat := e
	repeat.Sequence++
	repeat.Time = e.Time.Add(time.Minute)
	repeat.Event.Previous = after.Head
	twice, rr := Fold(after, repeat)
	if r.Reason != ReasonUnreadable && r.Reason != ReasonChainBroken {
		if rr.Verdict != Noted || rr.Reason != ReasonDuplicateFact {
			bad("repeated, it is %s for %q", rr.Verdict, rr.Reason)
		}
		twice.Sequence, twice.Facts, twice.Head, twice.Recent = after.Sequence, after.Facts, after.Head, after.Recent
		if !bytes.Equal(codec.Marshal(&twice), stateBytes) {
			bad("repeated, it changes the state")
		}
	}
}

// end looks at every state once more: none may have changed since, and folding
// all again from nothing gives the same.
func (c *checker) end(l *ledger) {
	c.t.Helper()
	for i := range c.states {
		if !bytes.Equal(codec.Marshal(&c.states[i]), c.bytes[i]) {
			c.t.Fatalf("a later fold changed state %d", i)
		}
	}
	var s State
	var r Record
	for i, e := range l.entries {
		s, r = Fold(s, e)
		if i == len(c.bytes) {
			break
		}
		if !bytes.Equal(codec.Marshal(&s), c.bytes[i]) || !bytes.Equal(codec.Marshal(&r), codec.Marshal(&l.records[i])) {
			c.t.Fatalf("replaying the first %d facts gives another state", i+1)
		}
	}
}

// spoil changes what a fact says at random, within what its type can say.
func spoil(t *rapid.T, l *ledger, fact events.Fact, now time.Time) events.Fact {
	jobs := []string{"j1", "j1", "j2", "j3", ""}
	claims := []string{events.ClaimOwn, events.ClaimOwn, "", "op_other"}
	number := func(tries Tries) uint64 { return rapid.Uint64Range(1, tries.Made+1).Draw(t, "number") }
	next := func(tries Tries) events.Attempt {
		n := tries.Made + 1
		if rapid.IntRange(0, 9).Draw(t, "wrong number") == 0 {
			n = rapid.Uint64Range(0, n+1).Draw(t, "number")
		}
		return events.Attempt{Number: n, Identity: rapid.SampledFrom([]string{"", "", "", "id-2"}).Draw(t, "as"), NotAfter: now.Add(time.Duration(rapid.IntRange(-60, 600).Draw(t, "not after")) * time.Second), Timeout: time.Duration(rapid.IntRange(0, 60).Draw(t, "timeout")) * time.Second}
	}
	call := func(c *events.Call) {
		c.AsOf = l.seq - min(l.seq, rapid.Uint64Range(0, 3).Draw(t, "behind"))
		c.LeftAt = now.Add(-time.Duration(rapid.IntRange(-5, 120).Draw(t, "left")) * time.Second)
		if rapid.IntRange(0, 9).Draw(t, "waits") == 0 {
			c.RetryAt = now.Add(time.Duration(rapid.Int64().Draw(t, "wait")))
		}
	}
	job := func() string { return rapid.SampledFrom(jobs).Draw(t, "job") }
	claim := func() string { return rapid.SampledFrom(claims).Draw(t, "claim") }
	switch f := fact.(type) {
	case *events.PrepareAttempted:
		return &events.PrepareAttempted{Step: rapid.Uint64Range(0, l.s.Ready+1).Draw(t, "step"), Attempt: next(l.s.Prepares)}
	case *events.PrepareAnswered:
		g := *f
		g.Attempt, g.Step = number(l.s.Prepares), rapid.Uint64Range(0, l.s.Ready+1).Draw(t, "step")
		call(&g.Call)
		return &g
	case *events.CreateAttempted:
		return &events.CreateAttempted{Attempt: next(l.s.Creates)}
	case *events.CancelAttempted:
		return &events.CancelAttempted{Attempt: next(l.s.Cancels)}
	case *events.ResultAttempted:
		return &events.ResultAttempted{Attempt: next(l.s.Results)}
	case *events.InputAttempted:
		return &events.InputAttempted{Attempt: next(l.s.Inputs)}
	case *events.CleanupAttempted:
		return &events.CleanupAttempted{Attempt: next(l.s.Cleanups)}
	case *events.InputAnswered:
		g := *f
		g.Attempt = number(l.s.Inputs)
		call(&g.Call)
		return &g
	case *events.CleanupAnswered:
		g := *f
		g.Attempt = number(l.s.Cleanups)
		call(&g.Call)
		return &g
	case *events.CleanupRequested:
		return &events.CleanupRequested{Who: f.Who, JobID: job(), Claim: claim()}
	case *events.CreateAnswered:
		g := *f
		g.Attempt, g.JobID, g.Claim = number(l.s.Creates), job(), claim()
		call(&g.Call)
		return &g
	case *events.CancelAnswered:
		g := *f
		g.Attempt = number(l.s.Cancels)
		call(&g.Call)
		return &g
	case *events.ResultFailed:
		g := *f
		g.Attempt = number(l.s.Results)
		call(&g.Call)
		return &g
	case *events.LookupAnswered:
		g := *f
		call(&g.Call)
		return &g
	case *events.JobObserved:
		g := *f
		g.JobID, g.Claim = job(), claim()
		call(&g.Call)
		return &g
	case *events.ObservationFailed:
		g := *f
		call(&g.Call)
		return &g
	case *events.ResultCollected:
		g := *f
		call(&g.Call)
		return &g
	case *events.DecisionMade:
		g := *f
		g.JobID, g.Claim = job(), claim()
		g.Until = now.Add(time.Duration(rapid.IntRange(-100, 10000).Draw(t, "until")) * time.Second)
		g.Which = rapid.SampledFrom([]events.Deadline{events.DeadlineCreate, events.DeadlineResult, events.DeadlineCancel, events.DeadlineCollect, events.DeadlineApproval}).Draw(t, "which")
		return &g
	case *events.StepDeferred:
		return &events.StepDeferred{
			Until:   now.Add(time.Duration(rapid.IntRange(-100, 10000).Draw(t, "until")) * time.Second),
			Reason:  rapid.SampledFrom([]events.DeferReason{events.DeferHold, events.DeferThrottled, events.DeferNoCredential}).Draw(t, "reason"),
			Creates: rapid.Bool().Draw(t, "creates only"),
		}
	case *events.IntentRecorded, *events.ApprovalGranted, *events.ApprovalDenied, *events.JobContested, *events.WebhookReceived, *events.CancelRequested,
		*events.InputSubmitted, *events.DeadlinePassed, *events.OperationPaused, *events.OperationResumed, *events.TagsChanged, *events.OperationLinked, *events.NotificationAttempted, *events.NotificationAnswered,
		*events.Unknown:
	}
	return fact
}

// The rules hold whatever facts arrive, in whatever order, also from enemies.
func TestRulesHoldForAnyFacts(t *testing.T) {
	facts := everyFact()
	byType := map[events.Type][]events.Fact{}
	var types []events.Type
	for _, f := range facts {
		if byType[f.Type()] == nil {
			types = append(types, f.Type())
		}
		byType[f.Type()] = append(byType[f.Type()], f)
	}
	likely := []events.Type{
		events.TypePrepareAttempted, events.TypePrepareAnswered,
		events.TypeCreateAttempted, events.TypeCreateAnswered, events.TypeCreateAnswered, events.TypeLookupAnswered, events.TypeJobObserved, events.TypeCancelRequested,
		events.TypeCancelAttempted, events.TypeCancelAnswered, events.TypeResultCollected, events.TypeDeadlinePassed, events.TypeDecisionMade, events.TypeWebhookReceived,
		events.TypeJobObserved, events.TypeInputSubmitted, events.TypeInputAttempted, events.TypeInputAnswered,
		events.TypeCleanupRequested, events.TypeCleanupAttempted, events.TypeCleanupAnswered,
	}
	rapid.Check(t, func(t *rapid.T) {
		c := &checker{t: t}
		l := newLedger()
		l.check = c.step
		now := epoch
		if rapid.IntRange(0, 9).Draw(t, "no intent") > 0 {
			intent := drawIntent(t)
			if rapid.IntRange(0, 3).Draw(t, "rules of 0.1.0") == 0 {
				intent.Rules = 1
			}
			l.fold(now, intent)
		}
		for range rapid.IntRange(1, 40).Draw(t, "facts") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 1, 5, 30, 90, 600, 4000, -3}).Draw(t, "seconds")) * time.Second)
			name := rapid.SampledFrom(likely).Draw(t, "type")
			if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
				name = rapid.SampledFrom(types).Draw(t, "other type")
			}
			if name == (&events.Unknown{Name: "x.v1"}).Type() && rapid.IntRange(0, 3).Draw(t, "unknown") > 0 {
				continue
			}
			e := l.entry(now, spoil(t, l, rapid.SampledFrom(byType[name]).Draw(t, "fact"), now))
			switch rapid.IntRange(0, 60).Draw(t, "damage") {
			case 0:
				e.Unreadable = events.ErrMalformed
			case 1:
				e.Event.Previous = events.Sum([]byte("forged"))
			}
			l.append(e)
		}
		c.end(l)
	})
}

// FC-09: the wait grows to the cap, no wait is shorter than the lower bound of
// the one before, and at the cap it stays, for any counter.
func TestBackoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := State{Operation: rapid.String().Draw(t, "operation")}
		s.Intent.Policy.BackoffBase = time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base"))
		s.Intent.Policy.BackoffMax = s.Intent.Policy.BackoffBase + time.Duration(rapid.Int64Range(0, math.MaxInt64-int64(time.Hour)).Draw(t, "above"))
		if rapid.Bool().Draw(t, "usual") {
			s.Intent.Policy.BackoffMax = min(s.Intent.Policy.BackoffMax, s.Intent.Policy.BackoffBase+time.Hour)
		}
		most := s.Intent.Policy.BackoffMax
		nominal := s.Intent.Policy.BackoffBase
		counters := []uint64{10_000, 1 << 40, math.MaxUint64}
		for n := uint64(1); n <= 120; n++ {
			wait := s.backoff(n)
			if wait > nominal || wait < nominal-nominal/10 {
				t.Fatalf("wait %d is %v, want %v less up to a tenth", n, wait, nominal)
			}
			if again := s.backoff(n); again != wait {
				t.Fatalf("wait %d is %v, then %v", n, wait, again)
			}
			if nominal > most/2 {
				nominal = most
			} else {
				nominal *= 2
			}
		}
		if nominal == most {
			for _, n := range counters {
				if wait := s.backoff(n); wait > most || wait < most-most/10 {
					t.Fatalf("wait %d is %v, want the cap %v less up to a tenth", n, wait, most)
				}
			}
		}
	})
	var s State
	if wait := s.backoff(math.MaxUint64); wait != 0 { // no policy: must end, and soon
		t.Errorf("without a policy the wait is %v", wait)
	}
}

// Two operations that failed together do not come back together.
func TestBackoffSpreads(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 100 {
		s := State{Operation: string(rune('a'+i%26)) + string(rune('a'+i/26))}
		s.Intent.Policy = standard().Policy
		seen[s.backoff(9)] = true
	}
	if len(seen) < 80 {
		t.Errorf("100 operations wait %d different times", len(seen))
	}
}

// No length of time in an intent or a fact makes a state that cannot be stored.
func TestFarTimes(t *testing.T) {
	far := time.Date(2261, 12, 31, 0, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger()
		c := &checker{t: t}
		l.check = c.step
		intent := standard()
		length := func(label string) time.Duration { return time.Duration(rapid.Int64Min(0).Draw(t, label)) }
		intent.NeedsApproval = rapid.Bool().Draw(t, "approval")
		intent.NotBefore = far
		intent.Deadlines = events.Deadlines{Approval: length("a"), Create: length("c"), Result: length("r"), Cancel: length("x"), Collect: length("o")}
		intent.Policy = events.Policy{PollInterval: length("i"), PollMax: length("m"), BackoffBase: length("b"), BackoffMax: length("bm"), RequestTimeout: length("t"), MaxAttempts: 3, ClockDifference: length("d")}
		intent.Promises.Settle, intent.Promises.TokenWindow = length("s"), length("w")
		l.fold(epoch, intent)
		l.fold(epoch, &events.ApprovalGranted{})
		l.fold(epoch, &events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: far, Timeout: length("timeout")}})
		l.fold(epoch, &events.CreateAnswered{Attempt: 1, Outcome: rapid.SampledFrom([]events.CreateOutcome{events.CreateAmbiguous, events.CreateNotSent}).Draw(t, "outcome"), Call: events.Call{AsOf: l.seq, LeftAt: far, RetryAt: far}})
		l.fold(epoch, &events.LookupAnswered{Outcome: events.LookupFailed, Call: events.Call{AsOf: l.seq, LeftAt: far, RetryAt: far}})
		l.fold(epoch, &events.StepDeferred{Until: far})
		e := l.entry(epoch, &events.DeadlinePassed{Which: events.DeadlineCreate})
		e.Event.Time = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
		l.append(e)
		c.end(l)
	})
}

// Bytes from anywhere, read as facts and folded, never stop the fold.
func FuzzFold(f *testing.F) {
	types := []events.Type{
		events.TypeIntentRecorded, events.TypeApprovalGranted, events.TypeCreateAttempted, events.TypeCreateAnswered, events.TypeLookupAnswered, events.TypeJobObserved,
		events.TypeObservationFailed, events.TypeJobContested, events.TypeWebhookReceived, events.TypeCancelRequested, events.TypeCancelAttempted, events.TypeCancelAnswered,
		events.TypeResultAttempted, events.TypeResultCollected, events.TypeResultFailed, events.TypeDeadlinePassed, events.TypeDecisionMade, events.TypeStepDeferred,
		events.TypeOperationPaused, events.TypeInputAnswered, events.TypeTagsChanged, events.TypePrepareAttempted, events.TypePrepareAnswered, events.TypeOperationLinked,
		events.TypeInputSubmitted, events.TypeInputAttempted, events.TypeCleanupRequested, events.TypeCleanupAttempted, events.TypeCleanupAnswered,
	}
	// One fact is its type, the length of its data and the data.
	pack := func(facts ...events.Fact) []byte {
		var b []byte
		for _, fact := range facts {
			data := codec.Marshal(fact)
			b = append(b, byte(slices.Index(types, fact.Type())), byte(len(data)>>8), byte(len(data)))
			b = append(b, data...)
		}
		return b
	}
	intent := standard()
	f.Add(pack(intent, &events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: epoch}}, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j", Claim: "own"},
		&events.JobObserved{JobID: "j", State: events.ClassSucceeded}, &events.ResultCollected{}))
	f.Add(pack(intent, &events.CreateAttempted{Attempt: events.Attempt{Number: 1}}, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAmbiguous},
		&events.LookupAnswered{Outcome: events.LookupFound, Jobs: []events.FoundJob{{ID: "j"}}}, &events.DecisionMade{Choice: events.DecideAdopt, JobID: "j", Claim: "own"}, &events.CancelRequested{}))
	f.Add([]byte{0, 0, 1, 0x80, 16, 0, 1, 0x80, 99, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newLedger()
		c := &checker{t: t}
		l.check = c.step
		now := epoch
		for len(b) >= 3 && l.seq < 50 {
			name, size := types[int(b[0])%len(types)], int(b[1])<<8|int(b[2])
			size = min(size, len(b)-3)
			data := b[3 : 3+size]
			b = b[3+size:]
			now = now.Add(time.Duration(size) * time.Second)
			fact := events.New(name)
			e := Entry{}
			if err := codec.Unmarshal(data, fact); err != nil {
				e = l.entry(now, &events.TagsChanged{})
				e.Unreadable = err
			} else {
				if i, ok := fact.(*events.IntentRecorded); ok {
					i.Rules = Rules // operations of a later version are left alone
				}
				e = l.entry(now, fact)
			}
			l.append(e)
		}
		c.end(l)
	})
}

// Rule 8: whatever came between, positive evidence of the one job ends a
// quarantine over an unknown create.
func TestQuarantineEndsOnEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger()
		intent := drawIntent(t)
		intent.NeedsApproval, intent.Adopt = false, ""
		intent.Promises = events.Promises{Guarantee: events.AskAfterLoss, Cancels: rapid.Bool().Draw(t, "cancels"), HasResult: true}
		intent.Deadlines = events.Deadlines{Create: time.Hour, Result: 2 * time.Hour, Cancel: time.Hour, Collect: time.Hour}
		now := epoch
		l.fold(now, intent)
		l.fold(now, &events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: now.Add(time.Second), Timeout: time.Second, Owner: "w"}})
		l.fold(now, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAmbiguous, Call: events.Call{AsOf: l.seq, Class: events.ErrorTimeout}})
		if l.s.Phase != PhaseQuarantined || l.s.Quarantine != QuarantineUnknown || l.s.Reason == "" || l.s.Because == "" || l.s.WaitingFor == "" {
			t.Fatalf("%s %q, because %q, waits for %q", l.s.Phase, l.s.Quarantine, l.s.Because, l.s.WaitingFor)
		}
		for range rapid.IntRange(0, 12).Draw(t, "between") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "seconds")) * time.Second)
			call := events.Call{AsOf: l.seq, LeftAt: now, Class: events.ErrorServer}
			l.fold(now, rapid.SampledFrom([]events.Fact{
				&events.LookupAnswered{Outcome: events.LookupFailed, Call: call},
				&events.LookupAnswered{Outcome: events.LookupAbsent, Call: call},
				&events.LookupAnswered{Outcome: events.LookupFound, Jobs: []events.FoundJob{{ID: "perhaps"}}, Call: call},
				&events.CancelRequested{Who: "alice"},
				&events.OperationPaused{Who: "alice"},
				&events.OperationResumed{Who: "alice"},
				&events.WebhookReceived{EventID: "e"},
				&events.DeadlinePassed{Which: events.DeadlineResult},
			}).Draw(t, "fact"))
		}
		if l.s.Phase != PhaseQuarantined || l.s.Quarantine != QuarantineUnknown {
			t.Fatalf("nothing was learnt and it is %s %q", l.s.Phase, l.s.Quarantine)
		}
		switch rapid.IntRange(0, 2).Draw(t, "evidence") {
		case 0:
			l.fold(now, &events.LookupAnswered{Outcome: events.LookupFound, Jobs: []events.FoundJob{{ID: "ours", Exact: true, Claim: events.ClaimOwn}}})
		case 1:
			l.fold(now, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "ours", Claim: events.ClaimOwn})
		case 2:
			l.fold(now, &events.WebhookReceived{EventID: "named", JobID: "ours", Exact: true})
			l.fold(now, &events.JobObserved{JobID: "ours", Claim: events.ClaimOwn, State: events.ClassRunning, Call: events.Call{AsOf: l.seq}})
		}
		if l.s.Phase == PhaseQuarantined || l.s.Job.ID != "ours" {
			t.Fatalf("our job was named and it is %s %q with job %q", l.s.Phase, l.s.Quarantine, l.s.Job.ID)
		}
	})
}

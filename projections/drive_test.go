package projections

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
)

// A driver plays poller, provider and people against Fold and Next: it takes
// the first due step and folds what might come of it, at once. So it finds
// what a table cannot show: a step that stays due after it was taken, and a
// live operation that nothing ever ends.
type driver struct {
	*ledger
	t        *rapid.T
	now      time.Time // the poller's clock, which is ahead of the ledger's
	trace    []string
	bad      bool   // the provider never says anything good
	people   int    // facts by others still to come
	identity string // of the credential
}

// most repetitions at one instant: a step may need a permit, its answer, a read and a
// deadline, each twice. A poller whose clock is ahead of the ledger's finds what it did
// due again until the wait that doubles is longer than that, after a create and again
// after the next. A circle has no end.
const mostAtOnce = 40

func (d *driver) put(fact events.Fact) Record {
	r := d.fold(d.now.Add(-d.ahead), fact)
	next, _ := Next(d.s)
	d.trace = append(d.trace, fmt.Sprintf("%v %s asof %d: %s by %s: %s -> %s %s %s| next %v",
		d.now.Sub(epoch), TriggerOf(fact), d.seq-1, r.Verdict, r.Row, r.From, r.To, d.s.Quarantine, r.Reason, next.Sub(epoch)))
	return r
}

func (d *driver) fail(format string, a ...any) {
	n := len(d.trace)
	d.t.Fatalf("%s\npromises %+v policy %+v\n%s", fmt.Sprintf(format, a...), d.s.Intent.Promises, d.s.Intent.Policy, strings.Join(d.trace[max(0, n-40):], "\n"))
}

func pick[T any](d *driver, label string, good, bad []T) T {
	if d.bad {
		return rapid.SampledFrom(bad).Draw(d.t, label)
	}
	return rapid.SampledFrom(append(append([]T(nil), good...), bad...)).Draw(d.t, label)
}

func (d *driver) call(class events.ErrorClass) events.Call {
	c := events.Call{AsOf: d.seq, LeftAt: d.now, Class: class}
	if class == events.ErrorNoCredential || class == events.ErrorPolicy {
		c.LeftAt = time.Time{} // nothing left
	}
	if rapid.IntRange(0, 9).Draw(d.t, "retry-after") == 0 {
		c.RetryAt = d.now.Add(rapid.SampledFrom([]time.Duration{-time.Minute, time.Second, time.Minute, 100 * time.Hour}).Draw(d.t, "wait"))
	}
	return c
}

func (d *driver) class() events.ErrorClass {
	return rapid.SampledFrom([]events.ErrorClass{
		events.ErrorTransport, events.ErrorTimeout, events.ErrorThrottled, events.ErrorNotFound, events.ErrorNoCredential, events.ErrorUnreadable,
	}).Draw(d.t, "class")
}

func (d *driver) attempt(tries *Tries) events.Attempt {
	a := events.Attempt{Number: tries.Made + 1, NotAfter: d.now.Add(d.s.Intent.Policy.RequestTimeout), Timeout: d.s.Intent.Policy.RequestTimeout, Owner: "poller-1/r", Identity: d.identity}
	if tries == &d.s.Creates && d.s.Creates.Unresolved() > 0 && !d.s.RiskAccepted {
		if ends, bounded := d.s.WindowEnds(); bounded && ends.Before(a.NotAfter) {
			a.NotAfter = ends
		}
	}
	return a
}

// possible says whether a decider would still take the step at this time.
func (d *driver) possible(step Step) bool {
	if step.Kind != StepCreate && step.Kind != StepPrepare {
		return true
	}
	if over := d.s.Dates.Create; !d.now.Before(over) {
		return false
	}
	if d.s.Creates.Unresolved() > 0 && !d.s.RiskAccepted {
		ends, bounded := d.s.WindowEnds()
		return !bounded || d.now.Before(ends)
	}
	return true
}

func (d *driver) died() bool { return rapid.IntRange(0, 5).Draw(d.t, "worker dies") == 0 }

func (d *driver) take(step Step) {
	s := &d.s
	job := s.Job.ID
	if job == "" {
		job = "j-1"
	}
	switch step.Kind {
	case StepPrepare:
		if s.Creates.Unresolved() == 0 && rapid.IntRange(0, 9).Draw(d.t, "rotates") == 0 {
			d.identity += "'"
		}
		next := s.Ready
		if a := d.attempt(&s.Prepares); !s.Round.Serves(a.Origin, a.Account, a.Identity) {
			next = 0
		}
		if r := d.put(&events.PrepareAttempted{Step: next, Attempt: d.attempt(&s.Prepares)}); r.Verdict != Applied {
			if d.ahead == 0 {
				d.fail("a preparation was due and possible, but its permit is %s", r.Verdict)
			}
			return
		}
		if d.died() {
			return
		}
		a := &events.PrepareAnswered{Attempt: s.Prepares.Made, Step: s.Ready, Call: d.call("")}
		a.Outcome = pick(d, "prepare", []events.PrepareOutcome{events.PrepareDone, events.PrepareDone},
			[]events.PrepareOutcome{events.PrepareAmbiguous, events.PrepareNotSent, events.PrepareRejected, "later"})
		if a.Outcome == events.PrepareRejected {
			a.Class = rapid.SampledFrom([]events.ErrorClass{events.ErrorRefused, events.ErrorThrottled, events.ErrorThrottled}).Draw(d.t, "refusal")
		}
		d.put(a)
	case StepPresume:
		kind, try := s.Presumable()
		switch kind {
		case events.TypePrepareAttempted:
			d.put(&events.PrepareAnswered{Attempt: try.Number, Step: s.Ready, Outcome: events.PreparePresumed, Call: d.call("")})
		case events.TypeCreateAttempted:
			d.put(&events.CreateAnswered{Attempt: try.Number, Outcome: events.CreatePresumed, Call: d.call("")})
		case events.TypeCancelAttempted:
			d.put(&events.CancelAnswered{Attempt: try.Number, Outcome: events.CancelPresumed, Call: d.call("")})
		case events.TypeInputAttempted:
			d.put(&events.InputAnswered{Attempt: try.Number, Outcome: events.CallPresumed, Call: d.call("")})
		case events.TypeCleanupAttempted:
			d.put(&events.CleanupAnswered{Attempt: try.Number, Outcome: events.CallPresumed, Call: d.call("")})
		default:
			d.put(&events.ResultFailed{Attempt: try.Number, Outcome: events.ResultPresumed, Call: d.call("")})
		}
	case StepCreate:
		if s.Intent.Promises.Prepares > 0 && s.Creates.Unresolved() == 0 && rapid.IntRange(0, 9).Draw(d.t, "rotates") == 0 {
			d.identity += "'"
			if r := d.put(&events.CreateAttempted{Attempt: d.attempt(&s.Creates)}); r.Verdict == Applied {
				d.fail("a create left with what another made")
			}
		}
		if a := d.attempt(&s.Prepares); s.Intent.Promises.Prepares > 0 && !s.Round.Serves(a.Origin, a.Account, a.Identity) {
			d.take(Step{Kind: StepPrepare})
			return
		}
		if r := d.put(&events.CreateAttempted{Attempt: d.attempt(&s.Creates)}); r.Verdict != Applied {
			if d.ahead == 0 { // with other clocks a permit may come too late
				d.fail("a create was due and possible, but its permit is %s", r.Verdict)
			}
			return
		}
		if d.died() {
			return
		}
		a := &events.CreateAnswered{Attempt: s.Creates.Made, Call: d.call("")}
		a.Outcome = pick(d, "create", []events.CreateOutcome{events.CreateAccepted, events.CreateAccepted, events.CreateCompleted},
			[]events.CreateOutcome{events.CreateAmbiguous, events.CreateNotSent, events.CreateInProgress, events.CreateConflict, events.CreateRejected, "later"})
		switch a.Outcome {
		case events.CreateAccepted:
			a.JobID, a.Claim = job, events.ClaimOwn
		case events.CreateRejected:
			a.Class = rapid.SampledFrom([]events.ErrorClass{events.ErrorRefused, events.ErrorThrottled, events.ErrorThrottled}).Draw(d.t, "refusal")
		}
		d.put(a)
	case StepLookup:
		l := &events.LookupAnswered{Conclusive: s.Intent.Promises.LookupConclusive, Call: d.call("")}
		l.Outcome = pick(d, "lookup", []events.LookupOutcome{events.LookupFound}, []events.LookupOutcome{events.LookupAbsent, events.LookupFailed, "later"})
		if d.bad && rapid.Bool().Draw(d.t, "inconclusive") {
			l.Conclusive = false
		}
		switch l.Outcome {
		case events.LookupFound:
			l.Jobs = []events.FoundJob{{ID: job, Exact: s.Intent.Promises.Lookup == events.LookupExact, Claim: events.ClaimOwn}}
		case events.LookupFailed:
			l.Call = d.call(d.class())
		}
		d.put(l)
	case StepRead:
		if d.bad && rapid.Bool().Draw(d.t, "read fails") || !d.bad && rapid.IntRange(0, 4).Draw(d.t, "read fails") == 0 {
			d.put(&events.ObservationFailed{JobID: step.JobID, Call: d.call(d.class())})
			return
		}
		claim := rapid.SampledFrom([]string{events.ClaimOwn, events.ClaimOwn, ""}).Draw(d.t, "claim")
		d.put(&events.JobObserved{JobID: step.JobID, Claim: claim, Call: d.call(""), InputText: pick(d, "asks", []string{""}, []string{"this", "that"}), State: pick(d, "class",
			[]events.Class{events.ClassSucceeded, events.ClassFailed, events.ClassCancelled, events.ClassPartial, events.ClassExpired},
			[]events.Class{events.ClassRunning, events.ClassQueued, events.ClassUnknown, events.ClassInputRequired, "later"})})
	case StepCancel:
		if r := d.put(&events.CancelAttempted{Attempt: d.attempt(&s.Cancels)}); r.Verdict != Applied {
			d.fail("a cancel was due, but its permit is %s", r.Verdict)
		}
		if d.died() {
			return
		}
		d.put(&events.CancelAnswered{Attempt: s.Cancels.Made, Call: d.call(""), Outcome: pick(d, "cancel",
			[]events.CancelOutcome{events.CancelAcknowledged, events.CancelConfirmed},
			[]events.CancelOutcome{events.CancelTooLate, events.CancelRefused, events.CancelUnsupported, events.CancelNotSent, events.CancelAmbiguous, "later"})})
	case StepCollect:
		number := uint64(0)
		if !s.Intent.Promises.RepeatResult {
			if r := d.put(&events.ResultAttempted{Attempt: d.attempt(&s.Results)}); r.Verdict != Applied {
				d.fail("a collection was due, but its permit is %s", r.Verdict)
			}
			if d.died() {
				return
			}
			number = s.Results.Made
		}
		if !d.bad && rapid.Bool().Draw(d.t, "collected") {
			d.put(&events.ResultCollected{Attempt: number, Checks: []events.Check{{Name: "c", Passed: rapid.Bool().Draw(d.t, "check")}}, Call: d.call("")})
			return
		}
		d.put(&events.ResultFailed{Attempt: number, Call: d.call(d.class()), Outcome: rapid.SampledFrom([]events.ResultOutcome{
			events.ResultNotSent, events.ResultNotSent, events.ResultError, events.ResultAmbiguous, "later",
		}).Draw(d.t, "result")})
	case StepDeadline:
		d.put(&events.DeadlinePassed{Which: step.Which})
	case StepInput:
		if r := d.put(&events.InputAttempted{Attempt: d.attempt(&s.Inputs)}); r.Verdict != Applied {
			d.fail("an input was due, but its permit is %s", r.Verdict)
		}
		if d.died() {
			return
		}
		a := &events.InputAnswered{Attempt: s.Inputs.Made, Outcome: d.further(), Call: d.call("")}
		if a.Outcome == events.CallRefused {
			a.Class = rapid.SampledFrom([]events.ErrorClass{events.ErrorRefused, events.ErrorThrottled}).Draw(d.t, "refusal")
		}
		d.put(a)
	case StepCleanup:
		if rapid.IntRange(0, 9).Draw(d.t, "credential") == 0 {
			d.put(&events.CleanupAnswered{Outcome: events.CallNotSent, Call: d.call(events.ErrorNoCredential)})
			return
		}
		if r := d.put(&events.CleanupAttempted{Attempt: d.attempt(&s.Cleanups)}); r.Verdict != Applied && d.ahead == 0 {
			d.fail("a cleanup was due, but its permit is %s", r.Verdict)
		}
		if s.Cleanups.Open() == nil || d.died() {
			return
		}
		a := &events.CleanupAnswered{Attempt: s.Cleanups.Made, Outcome: d.further(), Call: d.call("")}
		if a.Outcome == events.CallRefused {
			a.Class = rapid.SampledFrom([]events.ErrorClass{events.ErrorRefused, events.ErrorThrottled}).Draw(d.t, "refusal")
		}
		d.put(a)
	}
}

func (d *driver) further() events.CallOutcome {
	return pick(d, "outcome", []events.CallOutcome{events.CallDone, events.CallDone},
		[]events.CallOutcome{events.CallRefused, events.CallNotSent, events.CallAmbiguous, "later"})
}

// cleanUp asks for a cleanup of a job, which may not be one to be cleaned up.
func (d *driver) cleanUp() Record {
	jobs := append([]string{d.s.Job.ID, "j-9"}, d.s.Strays...)
	return d.put(&events.CleanupRequested{Who: "team-a", JobID: rapid.SampledFrom(jobs).Draw(d.t, "of"), Claim: events.ClaimOwn})
}

// other folds a fact nobody was waiting for.
func (d *driver) other() {
	s := &d.s
	switch rapid.IntRange(0, 13).Draw(d.t, "other") {
	case 10, 11, 12:
		d.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer"))})
	case 13:
		d.cleanUp()
	case 0, 1:
		d.put(&events.CancelRequested{Who: "team-a"})
	case 2:
		d.put(&events.WebhookReceived{JobID: rapid.SampledFrom([]string{"j-1", "j-1", "", "j-2"}).Draw(d.t, "job"), Exact: rapid.Bool().Draw(d.t, "exact")})
	case 3:
		d.put(&events.OperationPaused{})
	case 4:
		d.put(&events.OperationResumed{})
	case 5: // a late answer by an attempt's own worker
		if n := len(s.Creates.List); n > 0 {
			d.put(&events.CreateAnswered{Attempt: s.Creates.List[rapid.IntRange(0, n-1).Draw(d.t, "which")].Number, Call: d.call(""), JobID: "", Outcome: rapid.SampledFrom([]events.CreateOutcome{
				events.CreateAmbiguous, events.CreateNotSent, events.CreateRejected, events.CreateInProgress,
			}).Draw(d.t, "late")})
		}
	case 6:
		d.put(&events.StepDeferred{Until: d.now.Add(time.Minute), Reason: events.DeferHold, Creates: rapid.Bool().Draw(d.t, "creates only")})
	default:
		choice := rapid.SampledFrom([]events.DecisionKind{
			events.DecideExtend, events.DecideExtend, events.DecideAdopt, events.DecideRetryCreate, events.DecideRetryCreate,
			events.DecideResume, events.DecideRetryCollection, events.DecideMarkCancelled,
		}).Draw(d.t, "decision")
		d.put(&events.DecisionMade{
			Choice: choice, JobID: rapid.SampledFrom([]string{"j-1", "j-3"}).Draw(d.t, "adopted"), Claim: events.ClaimOwn,
			Which: rapid.SampledFrom([]events.Deadline{events.DeadlineCreate, events.DeadlineResult, events.DeadlineCancel, events.DeadlineCollect}).Draw(d.t, "deadline"),
			Until: d.now.Add(time.Hour), AcceptRisk: rapid.Bool().Draw(d.t, "risk"), Evidence: events.Sum([]byte("e")),
		})
	}
}

func drawIntent(t *rapid.T) *events.IntentRecorded {
	i := standard()
	p := &i.Promises
	p.Guarantee = rapid.SampledFrom([]events.Guarantee{events.Deduplicated, events.Recoverable, events.AskAfterLoss}).Draw(t, "guarantee")
	p.Lookup = rapid.SampledFrom([]events.Lookup{events.LookupNone, events.LookupCandidates, events.LookupExact}).Draw(t, "lookup kind")
	p.LookupConclusive = p.Lookup == events.LookupExact && rapid.Bool().Draw(t, "conclusive")
	p.TokenWindow = rapid.SampledFrom([]time.Duration{0, 10 * time.Minute, 24 * time.Hour}).Draw(t, "window")
	for _, flag := range []*bool{
		&p.RefusalIsProof, &p.Strict, &p.WebhookNamesJob, &p.GoneConfirmsCancel, &p.Cancels, &p.HasResult,
		&p.PartialResults, &p.RepeatCancel, &p.RepeatResult, &i.NeedsApproval,
		&i.Offers.Input, &i.Offers.RepeatInput, &i.Offers.Cleanup, &p.RepeatCleanup,
	} {
		*flag = rapid.Bool().Draw(t, "promise")
	}
	p.Prepares = rapid.SampledFrom([]uint64{0, 0, 1, 2}).Draw(t, "prepares")
	i.Policy.MaxAttempts = rapid.Uint64Range(0, 6).Draw(t, "attempts")
	i.Policy.PollInterval = time.Minute
	i.Policy.ClockDifference = rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "clock difference")
	i.Deadlines.Approval = time.Hour
	if rapid.IntRange(0, 9).Draw(t, "adopts") == 0 {
		i.Adopt = "j-1"
	}
	return i
}

// An operation never turns in a circle at one instant, and one that is live
// ends or stops by itself whatever the provider, the workers and people do.
func TestDriven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &driver{ledger: newLedger(), t: t, now: epoch, bad: rapid.Bool().Draw(t, "bad"), people: rapid.IntRange(0, 8).Draw(t, "people")}
		intent := drawIntent(t)
		if intent.Policy.ClockDifference > 0 {
			d.ahead = rapid.SampledFrom([]time.Duration{0, 3 * time.Second, 8 * time.Second, 25 * time.Second, -20 * time.Second}).Draw(t, "skew")
		}
		checks := &checker{t: t, driven: true}
		d.check = checks.step
		d.put(intent)
		if intent.NeedsApproval && rapid.Bool().Draw(t, "approved") {
			d.put(&events.ApprovalGranted{Who: "boss"})
		}
		atOnce := 0
		for n := 0; ; n++ {
			if d.s.Phase.Live() && len(Steps(d.s)) == 0 {
				d.fail("live without a next look")
			}
			if d.people > 0 && rapid.IntRange(0, 4).Draw(t, "someone") == 0 {
				d.people--
				d.other()
				atOnce = 0
				continue
			}
			if ok, _ := TakesInput(d.s); ok && d.people > 0 && rapid.Bool().Draw(t, "answers") {
				d.people--
				d.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer"))})
				continue
			}
			next, more := Next(d.s)
			if !more && d.people > 0 && len(Cleanable(d.s)) > 0 {
				d.people--
				d.cleanUp()
				continue
			}
			if !more {
				break
			}
			if next.Before(epoch.Add(-time.Minute)) {
				d.fail("the next look is at %v", next)
			}
			if n > 5000 {
				d.fail("still %s after %d steps and %v", d.s.Phase, n, d.now.Sub(epoch))
			}
			if next.After(d.now) {
				d.now, atOnce = next, 0
			} else if atOnce++; atOnce > mostAtOnce {
				d.fail("turns in a circle")
			}
			if due := Due(d.s, d.now)[0]; due.Kind != StepDeadline && due.Kind != StepPresume && due.Prompt != "deadline" && rapid.IntRange(0, 19).Draw(t, "defers") == 0 {
				d.put(&events.StepDeferred{Until: d.now.Add(30 * time.Second), Reason: events.DeferThrottled})
				if next, _ := Next(d.s); !next.After(d.now) && Due(d.s, d.now)[0].Kind != StepDeadline {
					d.fail("deferred, and due all the same")
				}
				continue
			}
			taken := false
			for _, step := range Due(d.s, d.now) {
				if d.possible(step) {
					d.take(step)
					taken = true
					break
				}
			}
			if !taken { // nothing due is possible any more: wait for what comes next
				until := d.now.Add(time.Hour)
				for _, step := range Steps(d.s) {
					if step.At.After(d.now) && step.At.Before(until) {
						until = step.At
					}
				}
				d.put(&events.StepDeferred{Until: until, Reason: events.DeferHold})
				if next, _ := Next(d.s); !next.After(d.now) {
					d.fail("nothing due is possible, and it stays due after a deferral")
				}
			}
		}
		if d.s.Phase.Live() {
			d.fail("live, and never looked at again")
		}
		checks.end(d.ledger)
	})
}

// A poller ahead of the ledger finds the read at the result deadline due and
// cannot send it: it must not find it due again at once.
func TestUnsentReadAtTheResultDeadline(t *testing.T) {
	l := newLedger()
	l.ahead = 20 * time.Second
	intent := standard()
	intent.Policy.ClockDifference = 30 * time.Second
	l.fold(epoch, intent)
	l.fold(epoch, &events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: epoch.Add(time.Minute), Timeout: time.Second}})
	l.fold(epoch, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j1", Claim: events.ClaimOwn})
	deadline := l.s.Dates.Result
	now, reads := deadline, 0 // the poller's clock
	for ; now.Before(deadline.Add(l.ahead)) && reads < 100; reads++ {
		l.fold(now.Add(-l.ahead), &events.ObservationFailed{JobID: "j1", Call: events.Call{AsOf: l.seq, Class: events.ErrorNoCredential}})
		next, _ := Next(l.s)
		now = latest(now, next)
	}
	if reads > 8 {
		t.Errorf("%d reads until the ledger's clock reached the deadline", reads)
	}
}

package workflow_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// drawStory folds facts in no sensible order, some of them what Decide itself
// asks for, so that many states come up that no table names.
func drawStory(t *rapid.T) *story {
	y := newStory()
	flag := rapid.Bool()
	i := standard(skew(rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "clock difference")))
	p := &i.Promises
	p.Guarantee = rapid.SampledFrom([]events.Guarantee{events.Deduplicated, events.Recoverable, events.AskAfterLoss}).Draw(t, "guarantee")
	p.Lookup = rapid.SampledFrom([]events.Lookup{events.LookupNone, events.LookupCandidates, events.LookupExact}).Draw(t, "lookup")
	p.LookupConclusive = p.Lookup == events.LookupExact && flag.Draw(t, "conclusive")
	p.TokenWindow = rapid.SampledFrom([]time.Duration{0, 3 * time.Minute}).Draw(t, "window")
	for _, b := range []*bool{&p.RepeatResult, &p.RepeatCancel, &p.HasResult, &p.PartialResults, &p.WebhookNamesJob, &p.RefusalIsProof, &i.Offers.Input, &i.Offers.RepeatInput, &i.Offers.Cleanup, &p.RepeatCleanup} {
		*b = flag.Draw(t, "promise")
	}
	p.Prepares = rapid.SampledFrom([]uint64{0, 0, 1}).Draw(t, "prepares")
	y.put(i)
	if p.Prepares > 0 && flag.Draw(t, "prepared") {
		y.put(&events.PrepareAttempted{Attempt: permit(1, 0)}, &events.PrepareAnswered{Attempt: 1, Outcome: rapid.SampledFrom([]events.PrepareOutcome{
			events.PrepareDone, events.PrepareDone, events.PrepareAmbiguous, events.PrepareNotSent,
		}).Draw(t, "prepare"), Call: y.heard("")})
	}
	switch begin := rapid.IntRange(0, 6).Draw(t, "begins"); begin {
	case 0:
	case 1:
		y.put(attempted(1, 0))
		y.answered(1, events.CreateAmbiguous)
	default:
		y.put(attempted(1, 0))
		y.answered(1, events.CreateAccepted)
		if begin == 3 {
			y.put(&events.CancelRequested{Who: "team-a"})
		}
		if begin == 4 {
			y.observed(events.ClassSucceeded)
		}
		if begin == 5 {
			y.observed(events.ClassInputRequired)
			y.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer"))})
		}
		if begin == 6 {
			y.observed(events.ClassCancelled)
			y.put(&events.CleanupRequested{Who: "team-a", JobID: y.s.Job.ID, Claim: events.ClaimOwn})
		}
	}
	for range rapid.IntRange(0, 14).Draw(t, "facts") {
		y.at += rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second, time.Minute, 40 * time.Minute}).Draw(t, "passes")
		switch rapid.IntRange(0, 15).Draw(t, "fact") {
		case 12:
			y.observed(events.ClassInputRequired)
			y.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer"))})
		case 13:
			y.put(&events.CleanupRequested{Who: "team-a", JobID: y.s.Job.ID, Claim: events.ClaimOwn})
		case 14:
			y.put(&events.InputAnswered{Attempt: y.s.Inputs.Made, Call: y.heard(""), Outcome: rapid.SampledFrom([]events.CallOutcome{
				events.CallDone, events.CallAmbiguous, events.CallNotSent,
			}).Draw(t, "input")})
		case 15:
			y.put(&events.CleanupAnswered{Attempt: y.s.Cleanups.Made, Call: y.heard(""), Outcome: rapid.SampledFrom([]events.CallOutcome{
				events.CallDone, events.CallAmbiguous, events.CallNotSent,
			}).Draw(t, "cleanup")})
		case 0, 1, 2, 3:
			w := drawWorld(t, y)
			w.Now = epoch.Add(y.at)
			if d := workflow.Decide(y.s, w); d.Fact != nil {
				y.put(d.Fact)
			}
		case 4, 5:
			a := &events.CreateAnswered{Attempt: y.s.Creates.Made, Call: y.heard(""), Outcome: rapid.SampledFrom([]events.CreateOutcome{
				events.CreateAccepted, events.CreateCompleted, events.CreateRejected, events.CreateConflict,
				events.CreateInProgress, events.CreateNotSent, events.CreateAmbiguous, events.CreatePresumed,
			}).Draw(t, "create")}
			if a.Outcome == events.CreateAccepted {
				a.JobID, a.Claim = "j-1", events.ClaimOwn
			}
			y.put(a)
		case 6:
			y.observed(rapid.SampledFrom([]events.Class{events.ClassRunning, events.ClassSucceeded, events.ClassFailed, events.ClassCancelled}).Draw(t, "state"))
		case 7:
			y.put(&events.CancelRequested{Who: "team-a"})
		case 8:
			y.put(&events.CancelAnswered{Attempt: y.s.Cancels.Made, Call: y.heard(""), Outcome: rapid.SampledFrom([]events.CancelOutcome{
				events.CancelAcknowledged, events.CancelAmbiguous, events.CancelNotSent,
			}).Draw(t, "cancel")})
		case 9:
			y.put(&events.ResultFailed{Attempt: y.s.Results.Made, Call: y.heard(""), Outcome: rapid.SampledFrom([]events.ResultOutcome{
				events.ResultNotSent, events.ResultAmbiguous, events.ResultError,
			}).Draw(t, "result")})
		case 10:
			y.put(&events.LookupAnswered{Outcome: rapid.SampledFrom([]events.LookupOutcome{events.LookupAbsent, events.LookupFailed}).Draw(t, "lookup"), Call: y.heard("")})
		case 11:
			y.put(&events.DecisionMade{
				Choice: rapid.SampledFrom([]events.DecisionKind{events.DecideRetryCreate, events.DecideResume, events.DecideRetryCollection, events.DecideAbandon}).Draw(t, "choice"),
				Who:    "operator", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence, AcceptRisk: flag.Draw(t, "risk"),
			})
		}
	}
	return y
}

// drawPrepared is an operation of which some preparations are done, as one or
// two identities in turn.
func drawPrepared(t *rapid.T) *story {
	y := newStory()
	i := standard()
	i.Promises.Prepares = rapid.Uint64Range(1, 3).Draw(t, "needed")
	if rapid.Bool().Draw(t, "deduplicated") {
		deduplicated(i)
	}
	if rapid.Bool().Draw(t, "cannot look up") {
		noLookup(i)
	}
	y.put(i)
	rounds(t, y)
	if y.s.Ready < i.Promises.Prepares || rapid.Bool().Draw(t, "nothing left") {
		return y
	}
	// A create that may have made a job, whose risk is accepted or not.
	a := permit(1, 0)
	a.Identity = y.s.Round.Identity
	y.put(&events.CreateAttempted{Attempt: a})
	y.answered(1, events.CreateAmbiguous)
	y.at = rapid.SampledFrom([]time.Duration{0, 10 * time.Second, 3 * time.Minute}).Draw(t, "later")
	decide := func() {
		if y.s.Phase != projections.PhaseQuarantined {
			y.put(&events.DeadlinePassed{Which: events.DeadlineCreate}, &events.DeadlinePassed{Which: events.DeadlineResult})
		}
		y.put(&events.DecisionMade{
			Choice: events.DecideRetryCreate, Who: "operator", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence, AcceptRisk: rapid.Bool().Draw(t, "risk"),
		})
	}
	decide()
	rounds(t, y)
	for range rapid.IntRange(0, 2).Draw(t, "more") {
		switch rapid.IntRange(0, 4).Draw(t, "fact") {
		case 0:
			y.answered(1, events.CreateInProgress)
		case 1:
			y.put(&events.LookupAnswered{Outcome: events.LookupAbsent, Call: y.heard("")})
		case 2:
			again := permit(y.s.Prepares.Made+1, y.at)
			again.Identity = "id-2"
			y.put(&events.PrepareAttempted{Attempt: again}, &events.PrepareAnswered{Attempt: again.Number, Outcome: events.PrepareRejected, Call: y.heard(events.ErrorRefused)})
		case 3:
			decide()
		case 4:
			rounds(t, y)
		}
	}
	return y
}

// rounds does some preparations, as one or two identities in turn.
func rounds(t *rapid.T, y *story) {
	needed := y.s.Intent.Promises.Prepares
	for range rapid.IntRange(1, 2).Draw(t, "rounds") {
		identity := rapid.SampledFrom([]string{"id-1", "id-2"}).Draw(t, "as")
		first := y.s.Ready
		if y.s.Round.Identity != identity {
			first = 0
		}
		for step := first; step < rapid.Uint64Range(first, needed).Draw(t, "done"); step++ {
			y.prepare(step, identity)
		}
	}
}

func drawTarget(t *rapid.T) workflow.Target {
	w := workflow.World{Target: here}
	if change := rapid.SampledFrom([]target{nil, elsewhere, another, rotated}).Draw(t, "target"); change != nil {
		change(&w)
	}
	return w.Target
}

func drawWorld(t *rapid.T, y *story) workflow.World {
	w := workflow.World{
		Now:   epoch.Add(y.at + rapid.SampledFrom([]time.Duration{0, 1, time.Second, time.Minute, 4 * time.Minute, time.Hour, 5 * time.Hour}).Draw(t, "now")),
		Owner: "poller-2/new", Target: here, Held: rapid.IntRange(0, 5).Draw(t, "held") == 0,
	}
	if ahead := rapid.SampledFrom([]time.Duration{0, 0, time.Second, 15 * time.Second, 2 * time.Minute}).Draw(t, "ahead"); ahead > 0 {
		w.Ledger = w.Now.Add(-ahead)
	}
	w.Hold = workflow.Hold{
		Scope:  rapid.SampledFrom([]workflow.HoldScope{"", "", "", "", workflow.HoldCreates, workflow.HoldAll}).Draw(t, "hold"),
		Reason: rapid.SampledFrom([]events.DeferReason{events.DeferHold, events.DeferStorageLow}).Draw(t, "hold for"),
	}
	w.Throttled = w.Now.Add(rapid.SampledFrom([]time.Duration{-time.Hour, -time.Second, -time.Minute, 0, time.Minute}).Draw(t, "throttled"))
	change := rapid.SampledFrom([]target{nil, nil, nil, nil, missing, elsewhere, another, rotated, dead}).Draw(t, "world")
	if change != nil {
		change(&w)
	}
	return w
}

// preparesAgain counts apart from other preparations.
const preparesAgain projections.StepKind = "prepare again"

// What Decide may never do, in any state and any world.
func TestEffectsNeedPermits(t *testing.T) {
	// A generator that reaches no permit or no effect of a kind proves nothing.
	seen := map[projections.StepKind]int{}
	for range 3 { // 100 draws miss one of the kinds now and then
		rapid.Check(t, func(t *rapid.T) {
			begun := drawStory(t)
			for range 8 {
				y := *begun
				check(t, &y, drawWorld(t, &y), seen)
			}
			prepared := drawPrepared(t)
			now := epoch.Add(prepared.at + rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(t, "now"))
			check(t, prepared, workflow.World{Now: now, Owner: "poller-2/new", Target: drawTarget(t)}, seen)
		})
	}
	for _, k := range []projections.StepKind{projections.StepPrepare, preparesAgain, projections.StepCreate, projections.StepLookup, projections.StepRead, projections.StepCancel, projections.StepCollect, projections.StepInput, projections.StepCleanup} {
		if seen[k] == 0 {
			t.Errorf("no draw led to %s", k)
		}
	}
}

func check(t *rapid.T, y *story, w workflow.World, seen map[projections.StepKind]int) {
	d := workflow.Decide(y.s, w)
	ledger := w.Now
	if !w.Ledger.IsZero() {
		ledger = w.Ledger
	}
	if d.Effect != nil {
		seen[d.Step.Kind]++
	}
	permitted := func(a events.Attempt, permit events.Fact, made uint64) {
		t.Helper()
		var stored events.Attempt
		switch f := permit.(type) {
		case *events.PrepareAttempted:
			stored = f.Attempt
		case *events.CreateAttempted:
			stored = f.Attempt
		case *events.CancelAttempted:
			stored = f.Attempt
		case *events.ResultAttempted:
			stored = f.Attempt
		case *events.InputAttempted:
			stored = f.Attempt
		case *events.CleanupAttempted:
			stored = f.Attempt
		default:
			t.Fatalf("%s has no permit: %s", d.Step.Kind, describe(d))
		}
		switch {
		case stored != a:
			t.Fatalf("permitted %+v, attempted %+v", stored, a)
		case !a.NotAfter.After(w.Now):
			t.Fatalf("not after %v, at %v: %s", a.NotAfter, w.Now, describe(d))
		case a.NotAfter.After(w.Now.Add(y.s.Intent.Policy.RequestTimeout)):
			t.Fatalf("may leave until %v, decided at %v", a.NotAfter, w.Now)
		case a.Number != made+1, a.Owner != w.Owner, a.Origin != w.Target.Origin, a.Account != w.Target.Account, a.Identity != w.Target.Identity:
			t.Fatalf("attempt %+v in %+v", a, w)
		case w.Held, w.Target.Missing != "":
			t.Fatalf("%s although held %v, missing %q", d.Step.Kind, w.Held, w.Target.Missing)
		}
		if _, open := y.s.Presumable(); open != nil {
			t.Fatalf("%s while attempt %d is open", d.Step.Kind, open.Number)
		}
	}
	switch e := d.Effect.(type) {
	case nil:
	case workflow.SendPrepare:
		permitted(e.Attempt, d.Fact, y.s.Prepares.Made)
		next := y.s.Ready
		if !y.s.Round.Serves(w.Target.Origin, w.Target.Account, w.Target.Identity) {
			next = 0
			if y.s.Ready > 0 {
				seen[preparesAgain]++
			}
		}
		if f := d.Fact.(*events.PrepareAttempted); f.Step != e.Step || e.Step != next || w.Hold.Scope != workflow.HoldNone {
			t.Fatalf("prepares %d as %+v after %d as %+v under %+v", e.Step, w.Target, y.s.Ready, y.s.Round, w.Hold)
		}
	case workflow.SendCreate:
		if w.Hold.Scope != workflow.HoldNone || y.s.Ready < y.s.Intent.Promises.Prepares {
			t.Fatalf("creates under %+v after %d preparations", w.Hold, y.s.Ready)
		}
		if y.s.Intent.Promises.Prepares > 0 && !y.s.Round.Serves(w.Target.Origin, w.Target.Account, w.Target.Identity) {
			t.Fatalf("creates as %+v with what was prepared as %+v", w.Target, y.s.Round)
		}
		permitted(e.Attempt, d.Fact, y.s.Creates.Made)
		if e.Attempt.Request != e.Stored {
			t.Fatalf("stored %v, permitted %v", e.Stored, e.Attempt.Request)
		}
		for _, try := range y.s.Creates.List {
			if try.Unresolved() && !y.s.RiskAccepted && (try.Origin != w.Target.Origin || try.Account != w.Target.Account || try.Identity != w.Target.Identity) {
				t.Fatalf("creates as %+v beside unresolved %+v", w.Target, try)
			}
		}
		if y.s.Cancel.Wished && !y.s.RiskAccepted {
			t.Fatal("creates although a cancel is wished")
		}
	case workflow.SendCancel:
		permitted(e.Attempt, d.Fact, y.s.Cancels.Made)
	case workflow.SendInput:
		permitted(e.Attempt, d.Fact, y.s.Inputs.Made)
		if y.s.Phase != projections.PhaseInputRequired || e.Payload != y.s.Input.Payload || e.Number != y.s.Input.Number {
			t.Fatalf("sends input %d in %s, given is %+v", e.Number, y.s.Phase, y.s.Input)
		}
	case workflow.SendCleanup:
		permitted(e.Attempt, d.Fact, y.s.Cleanups.Made)
		if y.s.Phase.Live() || e.JobID != y.s.Cleanup.JobID {
			t.Fatalf("cleans up after %s in %s, asked for is %+v", e.JobID, y.s.Phase, y.s.Cleanup)
		}
	case workflow.CollectResult:
		if e.Attempt != nil {
			permitted(*e.Attempt, d.Fact, y.s.Results.Made)
		} else if d.Fact != nil || !y.s.Intent.Promises.RepeatResult {
			t.Fatalf("collects without a permit: %s", describe(d))
		}
	case workflow.ReadStatus:
		for _, try := range y.s.Creates.List {
			if e.Claim && try.Unresolved() && !y.s.RiskAccepted && w.Target.Missing == "" && try.Identity != w.Target.Identity {
				t.Fatalf("reads a job it does not own as %+v beside unresolved %+v", w.Target, try)
			}
		}
		if d.Fact != nil || e.JobID == "" || e.Timeout <= 0 || e.Timeout > y.s.Intent.Policy.RequestTimeout {
			t.Fatalf("%+v", e)
		}
	case workflow.LookUp:
		if d.Fact != nil || e.Timeout <= 0 {
			t.Fatalf("%+v", e)
		}
	}
	// A hold of everything and a busy provider let nothing out but, in the latter
	// case, the read a deadline waits for.
	if last := d.Step.Kind == projections.StepRead && d.Step.Prompt == "deadline"; d.Effect != nil && (w.Hold.Scope == workflow.HoldAll || w.Throttled.After(ledger) && !last) {
		t.Fatalf("%s under hold %q, throttled until %v, now %v", describe(d), w.Hold.Scope, w.Throttled, ledger)
	}
	switch {
	case d.Fact == nil && d.Effect == nil && d.Step.Kind != "":
		t.Fatalf("a step without work: %s", describe(d))
	case d.Fact == nil && d.Effect == nil && !d.Until.IsZero() && !d.Until.After(ledger):
		t.Fatalf("nothing to do, and again at %v, which is not after %v", d.Until, ledger)
	case d.Step.At.After(ledger):
		t.Fatalf("%s is due at %v, now is %v", d.Step.Kind, d.Step.At, ledger)
	case y.s.Phase.Stopped() && d.Effect != nil && !slices.Contains([]projections.StepKind{projections.StepRead, projections.StepLookup, projections.StepCleanup}, d.Step.Kind):
		t.Fatalf("%s: %s", y.s.Phase, describe(d))
	}
	// The permit it asks for is one the fold takes, if the time is the ledger's.
	if d.Fact != nil && d.Effect != nil && !ledger.Before(epoch.Add(y.at)) {
		y.at = ledger.Sub(epoch)
		if r := y.put(d.Fact); r.Verdict != projections.Applied {
			t.Fatalf("the permit for %s in %s is %s: %s", d.Step.Kind, r.From, r.Verdict, r.Reason)
		}
	}
}

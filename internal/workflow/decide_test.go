package workflow_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// epoch is the time 0s of every test.
var epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// story folds facts as a ledger would.
type story struct {
	s    projections.State
	head events.Digest
	at   time.Duration // of the next fact
}

func newStory() *story { return &story{head: events.ChainStart("op_test")} }

func (y *story) put(facts ...events.Fact) projections.Record {
	var r projections.Record
	for _, fact := range facts {
		at := epoch.Add(y.at)
		e := events.Event{
			ID: "f-" + strconv.FormatUint(y.s.Facts+1, 10), Source: "/test/1", Operation: "op_test", Time: at, Previous: y.head, Fact: fact,
		}
		_, _, digest := events.Encode(e)
		y.s, r = projections.Fold(y.s, projections.Entry{Sequence: y.s.Sequence + 1, Time: at, Event: e, Digest: digest})
		y.head = digest
	}
	return r
}

func standard(change ...func(*events.IntentRecorded)) *events.IntentRecorded {
	i := &events.IntentRecorded{
		Principal: "team-a", Provider: "example", Account: "main", Token: "tok-1", Rules: projections.Rules,
		Deadlines: events.Deadlines{Approval: 24 * time.Hour, Create: time.Hour, Result: 4 * time.Hour, Cancel: 30 * time.Minute, Collect: time.Hour},
		Policy: events.Policy{
			PollInterval: 10 * time.Second, PollMax: 10 * time.Minute, BackoffBase: time.Second, BackoffMax: 5 * time.Minute,
			RequestTimeout: 30 * time.Second, MaxAttempts: 5,
		},
		Promises: events.Promises{
			Guarantee: events.Recoverable, Settle: 20 * time.Second, Lookup: events.LookupExact, LookupConclusive: true,
			NotFoundGrace: time.Minute, Cancels: true, HasResult: true, RepeatResult: true,
		},
	}
	for _, f := range change {
		f(i)
	}
	return i
}

func deduplicated(i *events.IntentRecorded) { i.Promises.Guarantee = events.Deduplicated }
func once(i *events.IntentRecorded)         { i.Promises.RepeatResult = false }
func preparing(i *events.IntentRecorded)    { i.Promises.Prepares = 1 }
func preparingTwo(i *events.IntentRecorded) { i.Promises.Prepares = 2 }

func noLookup(i *events.IntentRecorded) {
	i.Promises.Lookup, i.Promises.LookupConclusive = events.LookupNone, false
}

func skew(d time.Duration) func(*events.IntentRecorded) {
	return func(i *events.IntentRecorded) { i.Policy.ClockDifference = d }
}

var here = workflow.Target{Origin: "https://api.example", Account: "main", Credential: "env:KEY", Identity: "id-1"}

func permit(n uint64, at time.Duration) events.Attempt {
	return events.Attempt{
		Number: n, Request: events.Sum([]byte("first")), Origin: here.Origin, Account: here.Account, Credential: here.Credential, Identity: here.Identity,
		NotAfter: epoch.Add(at + 30*time.Second), Timeout: 30 * time.Second, Owner: "poller-1/old",
	}
}

func attempted(n uint64, at time.Duration) events.Fact {
	return &events.CreateAttempted{Attempt: permit(n, at)}
}

// heard is what a call that left at this time carries.
func (y *story) heard(class events.ErrorClass) events.Call {
	return events.Call{AsOf: y.s.Sequence, LeftAt: epoch.Add(y.at), Class: class}
}

func (y *story) answered(n uint64, o events.CreateOutcome) {
	a := &events.CreateAnswered{Attempt: n, Outcome: o, Call: y.heard("")}
	if o == events.CreateAccepted {
		a.JobID, a.Claim = "j-1", events.ClaimOwn
	}
	y.put(a)
}

func (y *story) observed(c events.Class) {
	y.put(&events.JobObserved{JobID: "j-1", State: c, Remote: string(c), Call: y.heard("")})
}

// prepare permits and does a preparation as that identity.
func (y *story) prepare(step uint64, identity string) {
	a := permit(y.s.Prepares.Made+1, y.at)
	a.Identity = identity
	y.put(&events.PrepareAttempted{Step: step, Attempt: a}, &events.PrepareAnswered{Attempt: a.Number, Step: step, Outcome: events.PrepareDone, Call: y.heard("")})
}

// The beginnings many cases share.
func pending(y *story, change ...func(*events.IntentRecorded)) { y.put(standard(change...)) }

func unknown(y *story, change ...func(*events.IntentRecorded)) {
	pending(y, change...)
	y.put(attempted(1, 0))
	y.answered(1, events.CreateAmbiguous)
}

func accepted(y *story, change ...func(*events.IntentRecorded)) {
	pending(y, change...)
	y.put(attempted(1, 0))
	y.answered(1, events.CreateAccepted)
}

func collecting(y *story, change ...func(*events.IntentRecorded)) {
	accepted(y, change...)
	y.observed(events.ClassSucceeded)
}

// asked is a job that waits, and gets an answer.
func asked(y *story, change ...func(*events.IntentRecorded)) {
	accepted(y, append(change, offering)...)
	y.observed(events.ClassInputRequired)
	y.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer"))})
}

// left is a job that has ended, of which a cleanup was asked for.
func left(y *story, change ...func(*events.IntentRecorded)) {
	accepted(y, append(change, offering)...)
	y.observed(events.ClassFailed)
	y.put(&events.CleanupRequested{Who: "team-a", JobID: "j-1", Claim: events.ClaimOwn})
}

func offering(i *events.IntentRecorded) { i.Offers = events.Offers{Input: true, Cleanup: true} }

func cancelling(y *story, change ...func(*events.IntentRecorded)) {
	accepted(y, change...)
	y.put(&events.CancelRequested{Who: "team-a"}, &events.CancelAttempted{Attempt: permit(1, y.at)})
	y.put(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAcknowledged, Call: y.heard("")})
}

func lost(y *story) {
	accepted(y)
	for range 4 {
		y.at += time.Minute
		y.put(&events.ObservationFailed{JobID: "j-1", Call: y.heard(events.ErrorNotFound)})
	}
}

// stuck is an operation whose create deadline passed while nobody could say
// what became of it.
func stuck(y *story) {
	unknown(y, func(i *events.IntentRecorded) {
		i.Promises.LookupConclusive, i.Promises.Lookup = false, events.LookupCandidates
	})
	y.at = time.Minute
	y.put(&events.LookupAnswered{Outcome: events.LookupFound, Jobs: []events.FoundJob{{ID: "j-7"}}, Call: y.heard("")})
}

func abandon(y *story) events.Fact {
	return &events.DecisionMade{Choice: events.DecideAbandon, Who: "operator", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence}
}

// describe writes a decision as one line: the step, the fact, the effect, the
// time; times as they stand to the epoch.
func describe(d workflow.Decision) string {
	since := func(t time.Time) string { return t.Sub(epoch).String() }
	var parts []string
	add := func(format string, a ...any) { parts = append(parts, fmt.Sprintf(format, a...)) }
	if d.Step.Kind != "" {
		add("%s", d.Step.Kind)
	}
	attempt := func(a events.Attempt) string {
		return fmt.Sprintf("#%d not after %s", a.Number, since(a.NotAfter))
	}
	switch f := d.Fact.(type) {
	case nil:
	case *events.PrepareAttempted:
		add("permit preparation %d, %s", f.Step, attempt(f.Attempt))
	case *events.PrepareAnswered:
		add("%s %d #%d", projections.TriggerOf(f), f.Step, f.Attempt)
	case *events.CreateAttempted:
		add("permit %s", attempt(f.Attempt))
	case *events.CancelAttempted:
		add("permit %s", attempt(f.Attempt))
	case *events.ResultAttempted:
		add("permit %s", attempt(f.Attempt))
	case *events.InputAttempted:
		add("permit %s", attempt(f.Attempt))
	case *events.CleanupAttempted:
		add("permit %s", attempt(f.Attempt))
	case *events.InputAnswered:
		add("%s/%s #%d", projections.TriggerOf(f), f.Outcome, f.Attempt)
	case *events.CleanupAnswered:
		add("%s/%s #%d: %s, %s", projections.TriggerOf(f), f.Outcome, f.Attempt, f.Class, f.Message)
	case *events.CreateAnswered:
		add("%s #%d gone=%v", projections.TriggerOf(f), f.Attempt, f.OwnerGone)
	case *events.CancelAnswered:
		add("%s #%d", projections.TriggerOf(f), f.Attempt)
	case *events.ResultFailed:
		add("%s #%d", projections.TriggerOf(f), f.Attempt)
	case *events.StepDeferred:
		only := ""
		if f.Creates {
			only = " creates only"
		}
		add("deferred until %s%s: %s, %s", since(f.Until.Round(time.Second)), only, f.Reason, f.Detail)
	case *events.LookupAnswered:
		add("%s: %s, %s", projections.TriggerOf(f), f.Class, f.Message)
	default:
		add("%s", projections.TriggerOf(f))
	}
	switch e := d.Effect.(type) {
	case nil:
	case workflow.SendPrepare:
		add("send preparation %d", e.Step)
	case workflow.SendCreate:
		if e.Stored.IsZero() {
			add("send create")
		} else {
			add("send the stored create")
		}
	case workflow.SendCancel:
		add("send cancel")
	case workflow.SendInput:
		add("send input %d", e.Number)
	case workflow.SendCleanup:
		add("send cleanup of %s", e.JobID)
	case workflow.ReadStatus:
		add("read %s for %s within %s", e.JobID, e.Prompt, e.Timeout)
		if e.Claim {
			add("claim")
		}
	case workflow.LookUp:
		add("look up within %s", e.Timeout)
	case workflow.CollectResult:
		add("collect within %s", e.Timeout)
	}
	if d.Held {
		add("held")
	}
	if !d.Until.IsZero() {
		add("wait until %s", since(d.Until))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

type target func(*workflow.World)

func missing(w *workflow.World)   { w.Target.Missing = "no key" }
func elsewhere(w *workflow.World) { w.Target.Origin = "https://other.example" }
func another(w *workflow.World)   { w.Target.Account = "second" }
func rotated(w *workflow.World)   { w.Target.Identity = "id-2" }
func held(w *workflow.World)      { w.Held = true }
func onHold(scope workflow.HoldScope) target {
	return func(w *workflow.World) {
		w.Hold = workflow.Hold{Scope: scope, Reason: events.DeferHold, Detail: "why"}
	}
}

func busy(w *workflow.World) { w.Throttled = w.Now.Add(time.Minute) }
func dead(w *workflow.World) { w.Gone = func(owner string) bool { return owner == "poller-1/old" } }

func TestDecide(t *testing.T) {
	cases := []struct {
		name  string
		phase projections.Phase
		make  func(*story)
		now   time.Duration
		world target
		want  string
	}{
		{"no facts", projections.PhaseNone, func(*story) {}, 0, nil, "nothing"},
		{"approval: waits", projections.PhaseApprovalPending, func(y *story) { pending(y, func(i *events.IntentRecorded) { i.NeedsApproval = true }) }, time.Hour, nil, "wait until 24h0m0s"},
		{"approval: over", projections.PhaseApprovalPending, func(y *story) { pending(y, func(i *events.IntentRecorded) { i.NeedsApproval = true }) }, 24 * time.Hour, nil, "deadline; deadline.passed/approval"},

		{"pending: creates", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, nil, "create; permit #1 not after 30s; send create"},
		{"pending: not before", projections.PhaseCreatePending, func(y *story) { pending(y, func(i *events.IntentRecorded) { i.NotBefore = epoch.Add(time.Minute) }) }, 0, nil, "wait until 1m0s"},
		{"pending: too late for a create, waits for its deadline", projections.PhaseCreatePending, func(y *story) { pending(y, skew(5*time.Second)) }, time.Hour - 5*time.Second, nil, "wait until 1h0m0s"},
		{"pending: create deadline", projections.PhaseCreatePending, func(y *story) { pending(y) }, time.Hour, nil, "deadline; deadline.passed/create"},
		{"pending: paused", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(&events.OperationPaused{Who: "o"}) }, time.Minute, nil, "wait until 1h0m0s"},
		{"pending: creates held", projections.PhaseCreatePending, func(y *story) { pending(y) }, time.Minute, held, "held; wait until 1h0m0s"},
		{"pending: creates held, the deadline is not", projections.PhaseCreatePending, func(y *story) { pending(y) }, time.Hour, held, "deadline; deadline.passed/create"},
		{"pending: credential missing", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, missing, "create; deferred until 1s: credential_missing, no key"},
		{"pending: nothing unresolved pins no target", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, elsewhere, "create; permit #1 not after 30s; send create"},
		{"pending: after not_sent it waits", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(attempted(1, 0)); y.answered(1, events.CreateNotSent) }, 0, nil, "wait until 967.968832ms"},
		{"pending: a webhook names the job first", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(&events.WebhookReceived{JobID: "j-1", Exact: true}) }, 0, nil, "read; read j-1 for webhook within 30s; claim"},
		{"pending: attempt open", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(attempted(1, 0)) }, time.Second, nil, "wait until 1m5s"},
		{"pending: attempt open, owner gone", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(attempted(1, 0)) }, time.Second, dead, "presume; create.answered/presumed #1 gone=true"},
		{"pending: attempt open too long", projections.PhaseCreatePending, func(y *story) { pending(y); y.put(attempted(1, 0)) }, 65 * time.Second, nil, "presume; create.answered/presumed #1 gone=false"},
		{"pending: attempt open, clocks differ", projections.PhaseCreatePending, func(y *story) { pending(y, skew(5*time.Second)); y.put(attempted(1, 0)) }, 65 * time.Second, nil, "wait until 1m10s"},

		{"pending: prepares first", projections.PhaseCreatePending, func(y *story) { pending(y, preparing) }, 0, nil, "prepare; permit preparation 0, #1 not after 30s; send preparation 0"},
		{"pending: a preparation is open too long", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.put(&events.PrepareAttempted{Attempt: permit(1, 0)}) }, 65 * time.Second, nil, "presume; prepare.answered/presumed 0 #1"},
		{"pending: prepared", projections.PhaseCreatePending, func(y *story) {
			pending(y, preparing)
			y.put(&events.PrepareAttempted{Attempt: permit(1, 0)}, &events.PrepareAnswered{Attempt: 1, Outcome: events.PrepareDone, Call: y.heard("")})
		}, 0, nil, "create; permit #1 not after 30s; send create"},
		{"pending: prepared as somebody else", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1") }, time.Second, rotated, "prepare; permit preparation 0, #2 not after 31s; send preparation 0"},
		{"pending: prepared elsewhere", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1") }, time.Second, elsewhere, "prepare; permit preparation 0, #2 not after 31s; send preparation 0"},
		{"pending: prepared for another account", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1") }, time.Second, another, "prepare; permit preparation 0, #2 not after 31s; send preparation 0"},
		{"pending: half prepared as somebody else", projections.PhaseCreatePending, func(y *story) { pending(y, preparingTwo); y.prepare(0, "id-1") }, time.Second, rotated, "prepare; permit preparation 0, #2 not after 31s; send preparation 0"},
		{"pending: half prepared", projections.PhaseCreatePending, func(y *story) { pending(y, preparingTwo); y.prepare(0, "id-1") }, time.Second, nil, "prepare; permit preparation 1, #2 not after 31s; send preparation 1"},
		{"pending: prepared as somebody else, and creates on hold", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1") }, 0, func(w *workflow.World) { rotated(w); onHold(workflow.HoldCreates)(w) }, "create; deferred until 1h0m0s creates only: provider_on_hold, why"},
		{"pending: prepared as somebody else, and creates held", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1") }, 0, func(w *workflow.World) { rotated(w); held(w) }, "held; wait until 1h0m0s"},
		{"pending: the identity changes back and forth", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1"); y.prepare(0, "id-2") }, 0, nil, "prepare; deferred until 1s: target_changed, what was prepared is elsewhere, and was made again before"},
		{"pending: and prepares again after a while", projections.PhaseCreatePending, func(y *story) { pending(y, preparing); y.prepare(0, "id-1"); y.prepare(0, "id-2") }, time.Second, nil, "prepare; permit preparation 0, #3 not after 31s; send preparation 0"},
		{"pending: too late to prepare again", projections.PhaseCreatePending, func(y *story) { pending(y, preparing, skew(5*time.Second)); y.prepare(0, "id-1") }, time.Hour - 5*time.Second, rotated, "wait until 1h0m0s"},
		{"pending: prepared again, the create is another", projections.PhaseCreatePending, func(y *story) {
			pending(y, preparing)
			y.prepare(0, "id-1")
			y.put(attempted(1, 0))
			y.answered(1, events.CreateAmbiguous)
			y.at = 2 * time.Minute
			y.put(&events.LookupAnswered{Outcome: events.LookupAbsent, Conclusive: true, Call: y.heard("")})
			y.prepare(0, "id-2")
		}, 2 * time.Minute, rotated, "create; permit #2 not after 2m30s; send create"},
		{"unknown: prepared, and the credential changed", projections.PhaseCreateUnknown, func(y *story) {
			pending(y, preparing, deduplicated)
			y.prepare(0, "id-1")
			y.put(attempted(1, 0))
			y.answered(1, events.CreateAmbiguous)
		}, time.Minute, rotated, "create; deferred until 1m1s: target_changed, credential differs from the unresolved attempt's"},
		{"pending: prepared, and the risk is taken as somebody else", projections.PhaseCreatePending, func(y *story) {
			pending(y, preparing, noLookup)
			y.prepare(0, "id-1")
			y.put(attempted(1, 0))
			y.answered(1, events.CreateAmbiguous)
			y.put(&events.DecisionMade{Choice: events.DecideRetryCreate, Who: "operator", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence, AcceptRisk: true})
		}, 0, rotated, "prepare; permit preparation 0, #2 not after 30s; send preparation 0"},
		{"pending: a preparation without a credential", projections.PhaseCreatePending, func(y *story) { pending(y, preparing) }, 0, missing, "prepare; deferred until 1s: credential_missing, no key"},
		{"pending: a preparation on hold", projections.PhaseCreatePending, func(y *story) { pending(y, preparing) }, 0, onHold(workflow.HoldCreates), "prepare; deferred until 1h0m0s creates only: provider_on_hold, why"},
		{"pending: creates on hold", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, onHold(workflow.HoldCreates), "create; deferred until 1h0m0s creates only: provider_on_hold, why"},
		{"pending: all on hold", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, onHold(workflow.HoldAll), "create; deferred until 1h0m0s: provider_on_hold, why"},
		{"pending: the deadline passes on hold", projections.PhaseCreatePending, func(y *story) { pending(y) }, time.Hour, onHold(workflow.HoldAll), "deadline; deadline.passed/create"},
		{"pending: others were told to slow down", projections.PhaseCreatePending, func(y *story) { pending(y) }, 0, busy, "create; deferred until 1m0s: throttled, the provider asked the account to slow down"},
		{"unknown: creates on hold, then the look-up goes on", projections.PhaseCreateUnknown, func(y *story) {
			unknown(y, deduplicated)
			y.put(&events.StepDeferred{Until: epoch.Add(time.Hour), Reason: events.DeferHold, Creates: true})
		}, time.Minute, onHold(workflow.HoldCreates), "lookup; look up within 30s"},
		{"unknown: all on hold", projections.PhaseCreateUnknown, func(y *story) { unknown(y) }, time.Minute, onHold(workflow.HoldAll), "lookup; deferred until 1h1m0s: provider_on_hold, why"},
		{"accepted: reads while creates are on hold", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, onHold(workflow.HoldCreates), "read; read j-1 for due within 30s"},
		{"accepted: all on hold", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, onHold(workflow.HoldAll), "read; deferred until 1h0m10s: provider_on_hold, why"},
		{"accepted: others were told to slow down", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, busy, "read; deferred until 1m10s: throttled, the provider asked the account to slow down"},
		{"observing: the last read is made although the provider is busy", projections.PhaseObserving, func(y *story) { accepted(y); y.observed(events.ClassRunning) }, 4 * time.Hour, busy, "read; read j-1 for deadline within 2s"},
		{"stopped: a look at what was asked for rests on hold", projections.PhaseResultTimedOut, func(y *story) {
			accepted(y)
			y.at = 4 * time.Hour
			y.observed(events.ClassRunning)
			y.put(&events.DeadlinePassed{Which: events.DeadlineResult}, &events.WebhookReceived{JobID: "j-1"})
		}, 4 * time.Hour, onHold(workflow.HoldAll), "read; deferred until 5h0m0s: provider_on_hold, why"},

		{"unknown: repeats where deduplicated", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, nil, "create; permit #2 not after 1m30s; send the stored create"},
		{"unknown: settles first", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Second, nil, "wait until 20s"},
		{"unknown: looks up where recoverable", projections.PhaseCreateUnknown, func(y *story) { unknown(y) }, time.Minute, nil, "lookup; look up within 30s"},
		{"unknown: window over, falls through to the look-up", projections.PhaseCreateUnknown, func(y *story) {
			unknown(y, deduplicated, func(i *events.IntentRecorded) { i.Promises.TokenWindow = 3 * time.Minute })
		}, 2*time.Minute + 10*time.Second, nil, "lookup; look up within 30s"},
		{"unknown: origin changed", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, elsewhere, "create; deferred until 1m1s: target_changed, origin differs from the unresolved attempt's"},
		{"unknown: account changed", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, another, "create; deferred until 1m1s: target_changed, account differs from the unresolved attempt's"},
		{"unknown: credential changed", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, rotated, "create; deferred until 1m1s: target_changed, credential differs from the unresolved attempt's"},
		{"unknown: credential missing", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, missing, "create; deferred until 1m1s: credential_missing, no key"},
		{"unknown: a job that a webhook named is not read as somebody else", projections.PhaseCreateUnknown, func(y *story) {
			unknown(y, noLookup, deduplicated)
			y.put(&events.WebhookReceived{JobID: "j-1", Exact: true})
		}, 0, rotated, "read; deferred until 1s: target_changed, credential differs from the unresolved attempt's"},
		{"quarantined: nor there", projections.PhaseQuarantined, func(y *story) {
			unknown(y, noLookup)
			y.put(&events.WebhookReceived{JobID: "j-1", Exact: true})
		}, 0, rotated, "read; observation.failed/other"},
		{"unknown: look-up elsewhere", projections.PhaseCreateUnknown, func(y *story) { unknown(y) }, time.Minute, elsewhere, "lookup; deferred until 1m1s: target_changed, origin differs from the unresolved attempt's"},
		{"unknown: look-up without credential", projections.PhaseCreateUnknown, func(y *story) { unknown(y) }, time.Minute, missing, "lookup; deferred until 1m1s: credential_missing, no key"},
		{"quarantined, unknown: nothing can tell", projections.PhaseQuarantined, func(y *story) { unknown(y, noLookup) }, time.Minute, nil, "nothing"},
		{"unknown: cancel wished, no create", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated, noLookup); y.put(&events.CancelRequested{Who: "a"}) }, time.Minute, nil, "wait until 1h0m0s"},
		{"unknown: creates held, falls through to the look-up", projections.PhaseCreateUnknown, func(y *story) { unknown(y, deduplicated) }, time.Minute, held, "lookup; look up within 30s; held"},
		{"reconciliation: looks up again", projections.PhaseReconciliation, func(y *story) {
			unknown(y)
			y.at = time.Second
			y.put(&events.LookupAnswered{Outcome: events.LookupAbsent, Call: y.heard("")})
		}, 90 * time.Second, nil, "lookup; look up within 30s"},
		{"reconciliation: a nameless conflict is looked up before it is repeated", projections.PhaseReconciliation, func(y *story) { pending(y, deduplicated); y.put(attempted(1, 0)); y.answered(1, events.CreateConflict) }, time.Minute, nil, "lookup; look up within 30s"},

		{"accepted: reads", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, nil, "read; read j-1 for due within 30s"},
		{"accepted: not yet", projections.PhaseAccepted, func(y *story) { accepted(y) }, 9 * time.Second, nil, "wait until 10s"},
		{"accepted: a webhook prompts", projections.PhaseAccepted, func(y *story) { accepted(y); y.at = time.Second; y.put(&events.WebhookReceived{JobID: "j-1"}) }, time.Second, nil, "read; read j-1 for webhook within 30s"},
		{"accepted: reads although the credential is missing, so that the failure is told", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, missing, "read; read j-1 for due within 30s"},
		{"accepted: the target may change", projections.PhaseAccepted, func(y *story) { accepted(y) }, 10 * time.Second, elsewhere, "read; read j-1 for due within 30s"},
		{"observing: the read is cut at the result deadline", projections.PhaseObserving, func(y *story) { accepted(y); y.observed(events.ClassRunning) }, 4*time.Hour - 5*time.Second, nil, "read; read j-1 for due within 5s"},
		{"observing: the read after the deadline is short", projections.PhaseObserving, func(y *story) { accepted(y); y.observed(events.ClassRunning) }, 4 * time.Hour, nil, "read; read j-1 for deadline within 2s"},
		{"observing: deadline after that read", projections.PhaseObserving, func(y *story) { accepted(y); y.at = 4 * time.Hour; y.observed(events.ClassRunning) }, 4 * time.Hour, nil, "deadline; deadline.passed/result"},
		{"observing: owed look-up", projections.PhaseObserving, func(y *story) {
			unknown(y, deduplicated)
			y.at = time.Minute
			y.put(attempted(2, y.at))
			y.answered(2, events.CreateAccepted)
			y.observed(events.ClassRunning)
			y.at = 3 * time.Minute
			y.observed(events.ClassRunning)
		}, 3 * time.Minute, nil, "lookup; look up within 30s"},
		{"input required: reads", projections.PhaseInputRequired, func(y *story) { accepted(y); y.observed(events.ClassInputRequired) }, 10 * time.Second, nil, "read; read j-1 for due within 30s"},

		{"cancel requested: cancels", projections.PhaseCancelRequested, func(y *story) { accepted(y); y.put(&events.CancelRequested{Who: "a"}) }, 0, nil, "cancel; permit #1 not after 30s; send cancel"},
		{"cancel requested: credential missing", projections.PhaseCancelRequested, func(y *story) { accepted(y); y.put(&events.CancelRequested{Who: "a"}) }, 0, missing, "cancel; deferred until 1s: credential_missing, no key"},
		{"cancel requested: attempt open", projections.PhaseCancelRequested, func(y *story) {
			accepted(y)
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
		}, time.Second, nil, "wait until 1m5s"},
		{"cancel requested: attempt open, owner gone", projections.PhaseCancelRequested, func(y *story) {
			accepted(y)
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
		}, time.Second, dead, "presume; cancel.answered/presumed #1"},
		{"cancel requested: attempt open too long", projections.PhaseCancelRequested, func(y *story) {
			accepted(y)
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
		}, 65 * time.Second, nil, "presume; cancel.answered/presumed #1"},
		{"cancel requested: after an ambiguous cancel it reads", projections.PhaseCancelRequested, func(y *story) {
			accepted(y)
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
			y.put(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAmbiguous, Call: y.heard("")})
		}, 0, nil, "read; read j-1 for cancel within 30s"},
		{"cancel requested: repeated where that is safe, cut at the cancel deadline", projections.PhaseCancelRequested, func(y *story) {
			accepted(y, skew(5*time.Second), func(i *events.IntentRecorded) { i.Promises.RepeatCancel = true })
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
			y.put(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAmbiguous, Call: y.heard("")})
			y.at = 10 * time.Second
			y.observed(events.ClassRunning)
		}, 30*time.Minute - 15*time.Second, nil, "cancel; permit #2 not after 29m55s; send cancel"},
		{"cancel requested: too late to repeat, reads", projections.PhaseCancelRequested, func(y *story) {
			accepted(y, skew(5*time.Second), func(i *events.IntentRecorded) { i.Promises.RepeatCancel = true })
			y.put(&events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: permit(1, 0)})
			y.put(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelAmbiguous, Call: y.heard("")})
			y.at = 10 * time.Second
			y.observed(events.ClassRunning)
		}, 30*time.Minute - 5*time.Second, nil, "read; read j-1 for due within 5s"},
		{"cancel requested: cancels held", projections.PhaseCancelRequested, func(y *story) { accepted(y); y.put(&events.CancelRequested{Who: "a"}) }, 0, held, "held; wait until 4h0m0s"},
		{"cancelling: reads", projections.PhaseCancelling, func(y *story) { cancelling(y) }, 0, nil, "read; read j-1 for cancel within 30s"},
		{"cancelling: deadline", projections.PhaseCancelling, func(y *story) { cancelling(y) }, 30 * time.Minute, nil, "deadline; deadline.passed/cancel"},

		{"collecting: at once", projections.PhaseResultCollecting, func(y *story) { collecting(y) }, 0, nil, "collect; collect within 30s"},
		{"collecting: credential missing", projections.PhaseResultCollecting, func(y *story) { collecting(y) }, 0, missing, "collect; deferred until 1s: credential_missing, no key"},
		{"collecting once: with a permit", projections.PhaseResultCollecting, func(y *story) { collecting(y, once) }, 0, nil, "collect; permit #1 not after 30s; collect within 30s"},
		{"collecting once: credential missing", projections.PhaseResultCollecting, func(y *story) { collecting(y, once) }, 0, missing, "collect; deferred until 1s: credential_missing, no key"},
		{"collecting once: cut at the deadline less the clock difference", projections.PhaseResultCollecting, func(y *story) { collecting(y, once, skew(5*time.Second)) }, time.Hour - 15*time.Second, nil, "collect; permit #1 not after 59m55s; collect within 30s"},
		{"collecting once: too late, waits for the deadline", projections.PhaseResultCollecting, func(y *story) { collecting(y, once, skew(5*time.Second)) }, time.Hour - 5*time.Second, nil, "wait until 1h0m0s"},
		{"collecting once: attempt open", projections.PhaseResultCollecting, func(y *story) { collecting(y, once); y.put(&events.ResultAttempted{Attempt: permit(1, 0)}) }, time.Second, nil, "wait until 1m5s"},
		{"collecting once: attempt open, owner gone", projections.PhaseResultCollecting, func(y *story) { collecting(y, once); y.put(&events.ResultAttempted{Attempt: permit(1, 0)}) }, time.Second, dead, "presume; result.failed/presumed #1"},
		{"collecting: deadline", projections.PhaseResultCollecting, func(y *story) { collecting(y) }, time.Hour, nil, "deadline; deadline.passed/collect"},
		{"collecting: held only where reading changes something", projections.PhaseResultCollecting, func(y *story) { collecting(y) }, 0, held, "collect; collect within 30s"},
		{"collecting once: held", projections.PhaseResultCollecting, func(y *story) { collecting(y, once) }, 0, held, "held; wait until 1h0m0s"},
		{"collecting: paused", projections.PhaseResultCollecting, func(y *story) { collecting(y); y.put(&events.OperationPaused{Who: "o"}) }, 0, nil, "wait until 1h0m0s"},

		{"timed out: rests", projections.PhaseResultTimedOut, func(y *story) {
			accepted(y)
			y.at = 4 * time.Hour
			y.observed(events.ClassRunning)
			y.put(&events.DeadlinePassed{Which: events.DeadlineResult})
		}, 5 * time.Hour, nil, "nothing"},
		{"timed out: a webhook prompts one read", projections.PhaseResultTimedOut, func(y *story) {
			accepted(y)
			y.at = 4 * time.Hour
			y.observed(events.ClassRunning)
			y.put(&events.DeadlinePassed{Which: events.DeadlineResult}, &events.WebhookReceived{JobID: "j-1"})
		}, 5 * time.Hour, nil, "read; read j-1 for webhook within 30s"},
		{"cancellation unconfirmed: rests", projections.PhaseCancellationUnconfirmed, func(y *story) {
			cancelling(y)
			y.observed(events.ClassRunning)
			y.at = 30 * time.Minute
			y.put(&events.DeadlinePassed{Which: events.DeadlineCancel})
		}, time.Hour, nil, "nothing"},
		{"result unavailable: rests", projections.PhaseResultUnavailable, func(y *story) {
			collecting(y)
			y.at = time.Hour
			y.put(&events.DeadlinePassed{Which: events.DeadlineCollect})
		}, 2 * time.Hour, nil, "nothing"},
		{"validation failed: rests", projections.PhaseResultValidationFailed, func(y *story) {
			collecting(y)
			y.put(&events.ResultCollected{Payload: events.Sum(nil), Checks: []events.Check{{Name: "c"}}})
		}, 2 * time.Hour, nil, "nothing"},
		{"quarantined, conflict: rests", projections.PhaseQuarantined, func(y *story) { accepted(y); y.put(&events.JobContested{JobID: "j-1", Owner: "op_other"}) }, time.Hour, nil, "nothing"},
		{"quarantined, unreadable: rests", projections.PhaseQuarantined, func(y *story) { pending(y); y.put(&events.Unknown{Name: "job.teleported.v1", Data: []byte{0x80}}) }, time.Hour, nil, "nothing"},
		{"quarantined, conflict: an open attempt is closed all the same", projections.PhaseQuarantined, func(y *story) {
			pending(y)
			y.put(attempted(1, 0), &events.JobContested{JobID: "j-1", Owner: "op_other"})
		}, time.Second, dead, "presume; create.answered/presumed #1 gone=true"},
		{"quarantined, lost: reads slowly", projections.PhaseQuarantined, lost, 30 * time.Minute, nil, "read; read j-1 for due within 30s"},
		{"quarantined, unknown: looks up slowly", projections.PhaseQuarantined, stuck, 2 * time.Hour, nil, "lookup; look up within 30s"},
		{"quarantined, unknown: look-up elsewhere", projections.PhaseQuarantined, stuck, 2 * time.Hour, elsewhere, "lookup; lookup.answered/failed: policy, origin differs from the unresolved attempt's"},
		{"quarantined, unknown: look-up without credential", projections.PhaseQuarantined, stuck, 2 * time.Hour, missing, "lookup; lookup.answered/failed: no_credential, no key"},

		{"succeeded", projections.PhaseSucceeded, func(y *story) {
			collecting(y)
			y.put(&events.ResultCollected{Payload: events.Sum(nil), Checks: []events.Check{{Name: "c", Passed: true}}})
		}, time.Hour, nil, "nothing"},
		{"failed", projections.PhaseFailed, func(y *story) { pending(y); y.put(attempted(1, 0)); y.answered(1, events.CreateRejected) }, time.Hour, nil, "nothing"},
		{"cancelled", projections.PhaseCancelled, func(y *story) { pending(y); y.put(&events.CancelRequested{Who: "a"}) }, time.Hour, nil, "nothing"},
		{"abandoned", projections.PhaseAbandoned, func(y *story) { pending(y); y.put(abandon(y)) }, time.Hour, nil, "nothing"},
		{"abandoned: looks once more for strays", projections.PhaseAbandoned, func(y *story) { unknown(y); y.put(abandon(y)) }, time.Hour, nil, "lookup; look up within 30s"},
		{"abandoned: strays elsewhere", projections.PhaseAbandoned, func(y *story) { unknown(y); y.put(abandon(y)) }, time.Hour, rotated, "lookup; lookup.answered/failed: policy, credential differs from the unresolved attempt's"},
		{"input: passed on", projections.PhaseInputRequired, func(y *story) { asked(y) }, time.Second, nil, "input; permit #1 not after 31s; send input 1"},
		{"input: not after the result deadline", projections.PhaseInputRequired, func(y *story) { asked(y, skew(5*time.Second)) }, 4*time.Hour - 20*time.Second, nil, "input; permit #1 not after 3h59m55s; send input 1"},
		{"input: too late to leave", projections.PhaseInputRequired, func(y *story) { asked(y, skew(5*time.Second)) }, 4*time.Hour - 2*time.Second, nil, "read; read j-1 for due within 2s"},
		{"input: no credential", projections.PhaseInputRequired, func(y *story) { asked(y) }, time.Second, missing, "input; deferred until 2s: credential_missing, no key"},
		{"input: held", projections.PhaseInputRequired, func(y *story) { asked(y) }, time.Second, func(w *workflow.World) { w.Held = true }, "held; wait until 10s"},
		{"input: on hold as cancels are", projections.PhaseInputRequired, func(y *story) { asked(y) }, time.Second, func(w *workflow.World) {
			w.Hold = workflow.Hold{Scope: workflow.HoldAll, Reason: events.DeferHold}
		}, "input; deferred until 1h0m1s: provider_on_hold, "},
		{"input: creates alone on hold", projections.PhaseInputRequired, func(y *story) { asked(y) }, time.Second, func(w *workflow.World) {
			w.Hold = workflow.Hold{Scope: workflow.HoldCreates, Reason: events.DeferHold}
		}, "input; permit #1 not after 31s; send input 1"},
		{"input: its owner is gone", projections.PhaseInputRequired, func(y *story) { asked(y); y.put(&events.InputAttempted{Attempt: permit(1, 0)}) }, time.Second, dead, "presume; input.answered/presumed #1"},
		{"input: may be running", projections.PhaseInputRequired, func(y *story) { asked(y); y.put(&events.InputAttempted{Attempt: permit(1, 0)}) }, time.Second, nil, "wait until 1m5s"},
		{"cleanup: of one that has ended", projections.PhaseFailed, func(y *story) { left(y) }, time.Second, nil, "cleanup; permit #1 not after 31s; send cleanup of j-1"},
		{"cleanup: no credential", projections.PhaseFailed, func(y *story) { left(y) }, time.Second, missing, "cleanup; cleanup.answered/not_sent #0: no_credential, no key"},
		{"cleanup: on hold as cancels are", projections.PhaseFailed, func(y *story) { left(y) }, time.Second, func(w *workflow.World) {
			w.Hold = workflow.Hold{Scope: workflow.HoldAll, Reason: events.DeferHold}
		}, "cleanup; deferred until 1h0m1s: provider_on_hold, "},
		{"cleanup: held", projections.PhaseFailed, func(y *story) { left(y) }, time.Second, func(w *workflow.World) { w.Held = true }, "held"},
		{"cleanup: its owner is gone", projections.PhaseFailed, func(y *story) { left(y); y.put(&events.CleanupAttempted{Attempt: permit(1, 0)}) }, time.Second, dead, "presume; cleanup.answered/presumed #1: unanswered, no answer was recorded by poller-1/old, and the request may have arrived"},
		{"cleanup: may be running", projections.PhaseFailed, func(y *story) { left(y); y.put(&events.CleanupAttempted{Attempt: permit(1, 0)}) }, time.Minute, nil, "wait until 1m5s"},
		{"abandoned with an attempt open: nobody need wait for it", projections.PhaseAbandoned, func(y *story) { pending(y); y.put(attempted(1, 0)); y.put(abandon(y)) }, time.Second, dead, "wait until 1m20s"},
	}
	phases, kinds := map[projections.Phase]bool{}, map[projections.StepKind]bool{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			y := newStory()
			c.make(y)
			if y.s.Phase != c.phase {
				t.Fatalf("the story ends in %s (%s), want %s", y.s.Phase, y.s.Reason, c.phase)
			}
			w := workflow.World{Now: epoch.Add(c.now), Owner: "poller-2/new", Target: here}
			if c.world != nil {
				c.world(&w)
			}
			d := workflow.Decide(y.s, w)
			phases[c.phase], kinds[d.Step.Kind] = true, true
			if got := describe(d); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			// Work is data: deciding again gives the same.
			if diff := cmp.Diff(d, workflow.Decide(y.s, w)); diff != "" {
				t.Errorf("decided otherwise the second time: %s", diff)
			}
		})
	}
	for _, p := range allPhases() {
		if !phases[p] {
			t.Errorf("no case for %s", p)
		}
	}
	for _, k := range []projections.StepKind{
		projections.StepPresume, projections.StepCreate, projections.StepLookup, projections.StepRead,
		projections.StepCancel, projections.StepCollect, projections.StepDeadline, projections.StepInput, projections.StepCleanup,
	} {
		if !kinds[k] {
			t.Errorf("no case for step %s", k)
		}
	}
}

func allPhases() []projections.Phase {
	return []projections.Phase{
		projections.PhaseNone, projections.PhaseApprovalPending, projections.PhaseCreatePending, projections.PhaseCreateUnknown,
		projections.PhaseReconciliation, projections.PhaseAccepted, projections.PhaseObserving, projections.PhaseInputRequired,
		projections.PhaseCancelRequested, projections.PhaseCancelling, projections.PhaseResultCollecting, projections.PhaseResultTimedOut,
		projections.PhaseCancellationUnconfirmed, projections.PhaseResultUnavailable, projections.PhaseResultValidationFailed,
		projections.PhaseQuarantined, projections.PhaseSucceeded, projections.PhaseFailed, projections.PhaseCancelled, projections.PhaseAbandoned,
	}
}

// What is written down about an attempt is the target of this moment, and the
// request of a repeat is the one that was stored first.
func TestAttemptCarriesItsTarget(t *testing.T) {
	y := newStory()
	unknown(y, deduplicated)
	now := epoch.Add(time.Minute)
	d := workflow.Decide(y.s, workflow.World{Now: now, Owner: "poller-2/new", Target: here})
	want := events.Attempt{
		Number: 2, Request: events.Sum([]byte("first")), Origin: here.Origin, Account: "main", Credential: "env:KEY", Identity: "id-1",
		NotAfter: now.Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "poller-2/new",
	}
	fact, _ := d.Fact.(*events.CreateAttempted)
	effect, _ := d.Effect.(workflow.SendCreate)
	if fact == nil || !cmp.Equal(fact.Attempt, want) || !cmp.Equal(effect.Attempt, want) || effect.Stored != want.Request {
		t.Errorf("fact %+v\neffect %+v\nwant %+v", fact, effect, want)
	}
}

// A repeat never sends stored bytes to another origin than they name: where an
// earlier attempt is settled or its risk accepted, a new origin gets a request
// of its own.
func TestStoredRequestStaysWithItsOrigin(t *testing.T) {
	covered := func(y *story) {
		unknown(y, deduplicated)
		y.at = 2 * time.Minute
		y.put(&events.LookupAnswered{Outcome: events.LookupAbsent, Conclusive: true, Call: y.heard("")})
	}
	risked := func(y *story) {
		unknown(y, noLookup)
		y.at = time.Hour + time.Minute
		y.put(&events.DeadlinePassed{Which: events.DeadlineCreate})
		y.put(&events.DecisionMade{Choice: events.DecideRetryCreate, Who: "operator", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence, AcceptRisk: true})
	}
	for name, begin := range map[string]func(*story){"covered": covered, "risk accepted": risked} {
		t.Run(name, func(t *testing.T) {
			y := newStory()
			begin(y)
			if y.s.Phase != projections.PhaseCreatePending {
				t.Fatalf("%s %s", y.s.Phase, y.s.Reason)
			}
			decide := func(origin string) workflow.SendCreate {
				to := here
				to.Origin = origin
				d := workflow.Decide(y.s, workflow.World{Now: epoch.Add(y.at + time.Minute), Owner: "p/r", Target: to})
				e, ok := d.Effect.(workflow.SendCreate)
				if !ok {
					t.Fatalf("to %s: %s", origin, describe(d))
				}
				if e.Attempt.Origin != origin || e.Attempt.Request != e.Stored {
					t.Errorf("to %s: %+v", origin, e)
				}
				return e
			}
			if e := decide(here.Origin); e.Stored != events.Sum([]byte("first")) {
				t.Error("the same origin gets other bytes")
			}
			if e := decide("https://other.example"); !e.Stored.IsZero() {
				t.Error("bytes made for one origin go to it under the name of another")
			}
		})
	}
}

// Every phase is reached by TestDecide; here every step's own not_after bound.
func TestNotAfterIsTheEarliest(t *testing.T) {
	window := func(d time.Duration) func(*events.IntentRecorded) {
		return func(i *events.IntentRecorded) { deduplicated(i); i.Promises.TokenWindow = d }
	}
	for _, c := range []struct {
		name string
		make func(*story)
		now  time.Duration
		want time.Duration // 0: no create
	}{
		{"the request timeout", func(y *story) { pending(y) }, 0, 30 * time.Second},
		{"the create deadline", func(y *story) { pending(y) }, time.Hour - 10*time.Second, time.Hour},
		{"the create deadline less the clock difference", func(y *story) { pending(y, skew(4*time.Second)) }, time.Hour - 10*time.Second, time.Hour - 4*time.Second},
		{"nothing at the create deadline less the clock difference", func(y *story) { pending(y, skew(4*time.Second)) }, time.Hour - 4*time.Second, 0},
		{"a nanosecond before it", func(y *story) { pending(y, skew(4*time.Second)) }, time.Hour - 4*time.Second - 1, time.Hour - 4*time.Second},
		// The window counts from the first attempt and leaves room for timeout, settling and clocks.
		{"the token's window", func(y *story) { unknown(y, window(3*time.Minute)) }, 2 * time.Minute, 2*time.Minute + 10*time.Second},
		{"the window less the clock difference", func(y *story) { unknown(y, window(3*time.Minute), skew(3*time.Second)) }, 2 * time.Minute, 2*time.Minute + 7*time.Second},
		{"nothing at the window's end", func(y *story) { unknown(y, window(3*time.Minute)) }, 2*time.Minute + 10*time.Second, 0},
		{"no window before the first attempt", func(y *story) { pending(y, window(time.Minute)) }, 5 * time.Minute, 5*time.Minute + 30*time.Second},
		{"no window where the risk is accepted", func(y *story) {
			unknown(y, noLookup, window(time.Minute))
			y.at = time.Hour + time.Minute
			y.put(&events.DeadlinePassed{Which: events.DeadlineCreate})
			y.put(&events.DecisionMade{Choice: events.DecideRetryCreate, Who: "o", Why: events.Sum([]byte("why")), Sequence: y.s.Sequence, AcceptRisk: true})
		}, time.Hour + 2*time.Minute, time.Hour + 2*time.Minute + 30*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := newStory()
			c.make(y)
			d := workflow.Decide(y.s, workflow.World{Now: epoch.Add(c.now), Owner: "p/r", Target: here})
			e, ok := d.Effect.(workflow.SendCreate)
			switch {
			case c.want == 0 && ok:
				t.Errorf("creates: %s", describe(d))
			case c.want != 0 && !ok:
				t.Errorf("does not create: %s", describe(d))
			case ok && !e.Attempt.NotAfter.Equal(epoch.Add(c.want)):
				t.Errorf("not after %s, want %s", e.Attempt.NotAfter.Sub(epoch), c.want)
			}
		})
	}
}

func TestPresumeNamesTheAttempt(t *testing.T) {
	y := newStory()
	pending(y)
	y.put(attempted(1, 0))
	kind, try := y.s.OpenAttempt()
	fact := workflow.Presume(y.s, kind, try, true)
	want := &events.CreateAnswered{
		Attempt: 1, Outcome: events.CreatePresumed, OwnerGone: true,
		Call: events.Call{
			AsOf: y.s.Sequence, Class: events.ErrorUnanswered,
			Message: "no answer was recorded by poller-1/old, and the request may have arrived",
		},
	}
	if diff := cmp.Diff(want, fact); diff != "" {
		t.Error(diff)
	}
	if slices.Contains([]events.Type{events.TypeCancelAttempted, events.TypeResultAttempted}, kind) {
		t.Error(kind)
	}
}

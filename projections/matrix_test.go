package projections

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// allPhases in the order of the design.
func allPhases() []Phase {
	return []Phase{
		PhaseNone, PhaseApprovalPending, PhaseCreatePending, PhaseCreateUnknown, PhaseReconciliation,
		PhaseAccepted, PhaseObserving, PhaseInputRequired, PhaseCancelRequested, PhaseCancelling, PhaseResultCollecting,
		PhaseResultTimedOut, PhaseCancellationUnconfirmed, PhaseResultUnavailable, PhaseResultValidationFailed, PhaseQuarantined,
		PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned,
	}
}

// Why a fact may be refused: the closed list.
func refusals() []Reason {
	return []Reason{
		ReasonDuplicateFact, ReasonSecondIntent, ReasonNotApplicable, ReasonAttemptOpen, ReasonTooEarly, ReasonTooLate, ReasonStale, ReasonTerminal,
		ReasonRiskUnstated, ReasonBadDecision, ReasonBadApproval, ReasonJobOwned, ReasonChainBroken, ReasonUnreadable, ReasonNoPermit,
	}
}

// Why a phase may be entered: the closed list.
func entries() []Reason {
	return []Reason{
		"", ReasonNeverSent, ReasonRefused, ReasonNotCreated, ReasonApprovalDenied, ReasonApprovalExpired, ReasonProviderFailed, ReasonProviderExpired,
		ReasonProviderCancel, ReasonCancelConfirmed, ReasonCancelledUnsent, ReasonGone, ReasonJobLost, ReasonCreateUnknown, ReasonJobConflict,
		ReasonResultDeadline, ReasonCancelDeadline, ReasonCollectDeadline, ReasonResultLost, ReasonCheckFailed, ReasonDecided, ReasonFactUnreadable,
	}
}

const (
	nowSequence = 100 // of the fact being folded
	changedAt   = 50  // sequence the state last changed at
	questionAt  = 40  // sequence at which the job was first seen to ask
)

// variants gives the states of one phase: promises, attempts, wish, pause,
// hint, deadlines passed, kinds of quarantine. They need not be reachable:
// Fold is total.
func variants(p Phase) []State {
	now := epoch.Add(2 * time.Hour)
	try := func(n uint64, status AttemptStatus) Try {
		return Try{Number: n, Status: status, Sequence: n, OpenedAt: epoch, NotAfter: epoch.Add(30 * time.Second), Timeout: 30 * time.Second, OwnClosed: status != AttemptOpen && status != AttemptPresumed, ClosedAt: epoch}
	}
	covered := try(1, AttemptAmbiguous)
	covered.Covered = true
	creates := [][]Try{
		nil,
		{try(1, AttemptOpen)},
		{try(1, AttemptPresumed)},
		{try(1, AttemptAmbiguous)},
		{try(1, AttemptConflict)},
		{try(1, AttemptRejected)},
		{covered},
		{try(1, AttemptPresumed), try(2, AttemptOpen)},
		{try(1, AttemptPresumed), try(2, AttemptRejected)},
	}
	promises := map[string]func(*events.Promises){
		"recoverable": func(*events.Promises) {},
		"deduplicated": func(p *events.Promises) {
			p.Guarantee, p.RefusalIsProof, p.RepeatCancel = events.Deduplicated, true, true
		},
		"candidates": func(p *events.Promises) {
			p.Lookup, p.LookupConclusive, p.PartialResults, p.RepeatResult = events.LookupCandidates, false, true, false
		},
		"nothing": func(p *events.Promises) {
			*p = events.Promises{Guarantee: events.AskAfterLoss, WebhookNamesJob: false, GoneConfirmsCancel: true}
		},
	}
	kinds := []Quarantine{""}
	if p == PhaseQuarantined {
		kinds = []Quarantine{QuarantineConflict, QuarantineUnknown, QuarantineLost, QuarantineUnreadable}
	}
	s0 := State{Phase: p}
	if !s0.inC() && p != PhaseQuarantined {
		creates = [][]Try{nil, {try(1, AttemptPresumed), try(2, AttemptOpen)}}
	}
	masks := []int{0, 3, 14}
	if p == PhaseQuarantined || p.Terminal() {
		masks = []int{0, 7}
	}
	var list []State
	names := []string{"recoverable", "deduplicated", "candidates", "nothing"}
	if p.Terminal() {
		names = names[:1]
	}
	for _, name := range names {
		for _, kind := range kinds {
			for _, tries := range creates {
				for _, bits := range masks {
					wish, passed, hint, openCancel := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
					s := State{Operation: "op_test", Sequence: nowSequence - 1, Facts: 9, Head: events.Sum([]byte("head")), Phase: p, Quarantine: kind, Since: epoch, Changed: changedAt, Started: epoch}
					if p == PhaseNone {
						s.Facts = 0
						s.Head = events.Digest{}
					}
					s.Intent = *standard()
					promises[name](&s.Intent.Promises)
					s.Creates = Tries{List: tries, Made: uint64(len(tries))}
					s.Cancel.Wished = wish
					late := now.Add(time.Hour)
					if passed {
						late = now.Add(-time.Minute)
					}
					s.Dates = Dates{Approval: late, Create: late, Result: late, Cancel: late, Collect: late}
					switch p {
					case PhaseNone, PhaseApprovalPending, PhaseCreatePending, PhaseCreateUnknown, PhaseReconciliation:
					case PhaseQuarantined:
						if kind == QuarantineLost || kind == QuarantineConflict {
							s.Job = Job{ID: "j1", At: epoch}
						}
					default:
						s.Job = Job{ID: "j1", At: epoch}
						s.Outcome = OutcomeSuccess
					}
					if hint {
						s.Hint = Hint{JobID: "j1", Exact: true}
						s.Pace.NotFound, s.Pace.NotFoundSince = 2, epoch
						s.Pace.LastReadLeft = now
					}
					if openCancel {
						s.Cancels = Tries{List: []Try{try(1, AttemptOpen)}, Made: 1}
						s.Results = Tries{List: []Try{try(1, AttemptOpen)}, Made: 1}
					}
					list = append(list, s)
					if len(tries) == 0 && bits == 0 && (name == "recoverable" || name == "deduplicated") {
						list = append(list, offering(s, try)...)
					}
					if len(tries) > 0 || bits != 0 && bits != 3 {
						continue
					}
					for ready, prepares := range [][]Try{nil, {try(1, AttemptOpen)}, {try(1, AttemptPresumed), try(2, AttemptOpen)}} {
						s := clone(s)
						s.Intent.Promises.Prepares, s.Ready = 2, uint64(ready%2)
						s.Prepares = Tries{List: prepares, Made: uint64(len(prepares))}
						list = append(list, s)
					}
					for _, s.Ready = range []uint64{1, 2} { // made as somebody
						s.Intent.Promises.Prepares, s.Round = 2, Round{Identity: "id-1", Sequence: 1, Began: epoch}
						list = append(list, s)
					}
				}
			}
		}
	}
	return list
}

// offering gives what may be of inputs and cleanups in a state of a provider that
// takes both: asked for, on its way, lost.
func offering(s State, try func(uint64, AttemptStatus) Try) (list []State) {
	if !slices.Contains(cleansUpIn(), s.Phase) && s.Phase != PhaseInputRequired && s.Phase != PhaseObserving {
		return nil
	}
	s.Intent.Offers = events.Offers{Input: true, RepeatInput: s.Intent.Promises.RepeatCancel, Cleanup: true}
	s.Intent.Promises.RepeatCleanup = s.Intent.Promises.RepeatCancel
	if s.Phase == PhaseInputRequired {
		s.Input.Wanted, s.Input.Question = true, questionAt
	}
	list = append(list, clone(s))
	for _, tries := range [][]Try{nil, {try(1, AttemptOpen)}, {try(1, AttemptPresumed)}, {try(1, AttemptAmbiguous), try(2, AttemptOpen)}} {
		s := clone(s)
		asked := Asked{By: "team-a", At: epoch, Number: 1, Due: len(tries) == 0}
		s.Input, s.Cleanup = Input{Asked: asked, Question: questionAt}, Cleanup{Asked: asked, JobID: "j1"}
		s.Inputs = Tries{List: tries, Made: uint64(len(tries))}
		s.Cleanups = s.Inputs
		if s.Phase == PhaseInputRequired {
			s.Cleanup, s.Cleanups = Cleanup{}, Tries{}
		} else {
			s.Input, s.Inputs = Input{}, Tries{}
		}
		list = append(list, s)
	}
	return list
}

// everyFact gives each type with each outcome, and what a guard can look at.
func everyFact() []events.Fact {
	now := epoch.Add(2 * time.Hour)
	var list []events.Fact
	add := func(f ...events.Fact) { list = append(list, f...) }
	calls := []events.Call{{AsOf: nowSequence - 1, LeftAt: now}, {AsOf: changedAt - 1, LeftAt: epoch}}
	attempt := events.Attempt{Number: 1, NotAfter: now, Timeout: 30 * time.Second}
	second, third := attempt, attempt
	second.Number, third.Number = 2, 3
	someone, another := attempt, attempt
	someone.Identity, another.Identity = "id-1", "id-2"
	adopting := standard()
	adopting.Adopt = "j1"
	asking := standard()
	asking.NeedsApproval = true
	add(standard(), adopting, asking, &events.ApprovalGranted{}, &events.ApprovalDenied{})
	for _, a := range []events.Attempt{attempt, second, third, someone, another} {
		add(&events.PrepareAttempted{Attempt: a}, &events.PrepareAttempted{Step: 1, Attempt: a})
		add(&events.CreateAttempted{Attempt: a}, &events.CancelAttempted{Attempt: a}, &events.ResultAttempted{Attempt: a})
	}
	add(&events.CleanupAttempted{Attempt: attempt}, &events.InputAttempted{Attempt: attempt}, &events.NotificationAttempted{Attempt: attempt})
	add(&events.CleanupAttempted{Attempt: second}, &events.InputAttempted{Attempt: second})
	for i, call := range calls {
		throttled := call
		throttled.Class = events.ErrorThrottled
		for _, n := range []uint64{1, 2, 9} {
			if i > 0 { // answers to an attempt count at any age
				break
			}
			for _, o := range []events.CreateOutcome{
				events.CreateAccepted, events.CreateCompleted, events.CreateRejected, events.CreateConflict, events.CreateInProgress,
				events.CreateNotSent, events.CreateAmbiguous, events.CreatePresumed, "later",
			} {
				add(&events.CreateAnswered{Attempt: n, Outcome: o, Call: call})
				switch o {
				case events.CreateAccepted, events.CreateCompleted, events.CreateConflict:
					for _, claim := range []string{events.ClaimOwn, "", "op_other"} {
						add(&events.CreateAnswered{Attempt: n, Outcome: o, JobID: "j1", Claim: claim, Call: call})
					}
					add(&events.CreateAnswered{Attempt: n, Outcome: o, JobID: "j2", Claim: events.ClaimOwn, Call: call},
						&events.CreateAnswered{Attempt: n, Outcome: o, JobID: "j1", Claim: events.ClaimOwn, EchoDiffer: true, Call: call})
				case events.CreateRejected:
					add(&events.CreateAnswered{Attempt: n, Outcome: o, Call: throttled})
				}
			}
			for _, o := range []events.PrepareOutcome{
				events.PrepareDone, events.PrepareRejected, events.PrepareNotSent, events.PrepareAmbiguous, events.PreparePresumed, "later",
			} {
				add(&events.PrepareAnswered{Attempt: n, Outcome: o, Call: call}, &events.PrepareAnswered{Attempt: n, Step: 1, Outcome: o, Call: throttled})
			}
			for _, o := range []events.CancelOutcome{
				events.CancelAcknowledged, events.CancelConfirmed, events.CancelTooLate, events.CancelRefused, events.CancelUnsupported,
				events.CancelNotSent, events.CancelAmbiguous, events.CancelPresumed, "later",
			} {
				add(&events.CancelAnswered{Attempt: n, Outcome: o, Call: call})
			}
			for _, o := range []events.CallOutcome{events.CallDone, events.CallRefused, events.CallNotSent, events.CallAmbiguous, events.CallPresumed} {
				add(&events.CleanupAnswered{Attempt: n, Outcome: o, Call: call}, &events.InputAnswered{Attempt: n, Outcome: o, Call: call})
			}
			add(&events.CleanupAnswered{Attempt: n, Outcome: events.CallRefused, Call: throttled}, &events.CleanupAnswered{Outcome: events.CallNotSent, Call: call})
			for _, o := range []events.ResultOutcome{events.ResultNotSent, events.ResultAmbiguous, events.ResultPresumed, events.ResultError, "later"} {
				add(&events.ResultFailed{Attempt: n, Outcome: o, Call: call})
			}
		}
		for _, jobs := range [][]events.FoundJob{ // each may be gathered by someone who knew less

			{{ID: "j1", Exact: true, Claim: events.ClaimOwn}},
			{{ID: "j1", Exact: true}},
			{{ID: "j1", Exact: true, Claim: "op_other"}},
			{{ID: "j2", Exact: true, Claim: events.ClaimOwn}},
			{{ID: "j1", Exact: true, Claim: events.ClaimOwn}, {ID: "j2", Exact: true, Claim: events.ClaimOwn}},
			{{ID: "j3"}},
			{{ID: "j3", Claim: "op_other"}},
			{{ID: "j3"}, {ID: "j1", Exact: true, Claim: events.ClaimOwn}},
			nil,
		} {
			add(&events.LookupAnswered{Outcome: events.LookupFound, Jobs: jobs, Call: call})
		}
		add(&events.LookupAnswered{Outcome: events.LookupAbsent, Conclusive: true, Call: call}, &events.LookupAnswered{Outcome: events.LookupAbsent, Call: call},
			&events.LookupAnswered{Outcome: events.LookupFailed, Call: call}, &events.LookupAnswered{Outcome: "later", Call: call})
		for _, class := range []events.Class{
			events.ClassQueued, events.ClassRunning, events.ClassInputRequired, events.ClassSucceeded, events.ClassPartial,
			events.ClassFailed, events.ClassCancelled, events.ClassExpired, events.ClassUnknown, "later",
		} {
			for _, job := range []events.JobObserved{{JobID: "j1", Claim: events.ClaimOwn}, {JobID: "j1"}, {JobID: "j1", Claim: "op_other"}, {JobID: "j2", Claim: events.ClaimOwn}} {
				job.State, job.Call = class, call
				add(&job)
			}
		}
		notFound := call
		notFound.Class = events.ErrorNotFound
		add(&events.ObservationFailed{JobID: "j1", Call: call}, &events.ObservationFailed{JobID: "j1", Call: notFound},
			&events.ResultCollected{Attempt: 1, Checks: []events.Check{{Name: "c", Passed: true}}, Call: call},
			&events.ResultCollected{Attempt: 9, Checks: []events.Check{{Name: "c"}}, Call: call},
			&events.CleanupAnswered{Attempt: 1, Call: call}, &events.InputAnswered{Attempt: 1, Call: call}, &events.NotificationAnswered{Attempt: 1, Call: call})
	}
	add(&events.JobContested{JobID: "j1"}, &events.JobContested{JobID: "j2"},
		&events.WebhookReceived{}, &events.WebhookReceived{JobID: "j1"}, &events.WebhookReceived{JobID: "j1", Exact: true}, &events.WebhookReceived{JobID: "j2", Exact: true},
		&events.CancelRequested{}, &events.CleanupRequested{}, &events.InputSubmitted{}, &events.InputSubmitted{Question: questionAt}, &events.InputSubmitted{Question: questionAt + 1},
		&events.CleanupRequested{JobID: "j1", Claim: events.ClaimOwn}, &events.CleanupRequested{JobID: "j1", Claim: "op_other"})
	for _, which := range []events.Deadline{events.DeadlineApproval, events.DeadlineCreate, events.DeadlineResult, events.DeadlineCancel, events.DeadlineCollect, "later"} {
		add(&events.DeadlinePassed{Which: which})
	}
	for _, choice := range []events.DecisionKind{
		events.DecideAbandon, events.DecideExtend, events.DecideAdopt, events.DecideRetryCreate, events.DecideResume,
		events.DecideRetryCollection, events.DecideAcceptResult, events.DecideMarkCancelled, "later",
	} {
		add(&events.DecisionMade{Choice: choice},
			&events.DecisionMade{Choice: choice, JobID: "j1", Claim: events.ClaimOwn, Which: events.DeadlineResult, Until: now.Add(time.Hour), Evidence: events.Sum(nil), AcceptRisk: true},
			&events.DecisionMade{Choice: choice, JobID: "j1", Claim: "op_other", Which: "later", Until: epoch})
	}
	add(&events.JobObserved{JobID: "j1", State: events.ClassExpired, NoResult: true, Call: calls[0]},
		&events.StepDeferred{Until: now.Add(time.Hour), Reason: events.DeferHold, Creates: true})
	add(&events.StepDeferred{Until: now.Add(time.Minute)}, &events.OperationPaused{}, &events.OperationResumed{}, &events.TagsChanged{}, &events.OperationLinked{Links: []events.Link{{Kind: events.LinkRetriedBy, Operation: "op_b"}}}, &events.Unknown{Name: "x.v1"})
	return list
}

// matching gives the rows of the table that match, each looked at on a copy of
// its own, since guards may note things.
func matching(s State, e Entry, rows []Row) []string {
	var ids []string
	start := func() *folding {
		c := clone(s)
		f := &folding{s: &c, e: e, fact: e.Event.Fact}
		f.on = TriggerOf(f.fact)
		f.closeAttempt()
		f.keepTime()
		return f
	}
	base := start()
	for i := range rows {
		r := &rows[i]
		if r.From != nil && !slices.Contains(r.From, s.Phase) || r.On != nil && !slices.Contains(r.On, base.on) {
			continue
		}
		if r.matches(start()) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// Every phase and variant meets every fact and outcome: at most one row of the
// table applies, Fold gives one of three verdicts, with a reason of the closed
// lists, and leaves the state it was given alone. What it does is printed as
// one line for each phase and trigger, for people to read.
func TestEveryStateMeetsEveryFact(t *testing.T) {
	now := epoch.Add(2 * time.Hour)
	facts := everyFact()
	rows := transitions
	seenTypes := map[events.Type]bool{}
	usedRows := map[string]bool{}
	lines := map[string]map[string]bool{}
	var order []string
	folds := 0
	for _, p := range allPhases() {
		for _, s := range variants(p) {
			before := clone(s)
			for _, fact := range facts {
				seenTypes[fact.Type()] = true
				e := Entry{Sequence: nowSequence, Time: now, Event: events.Event{ID: "f-x", Source: "/t", Operation: "op_test", Time: now, Previous: s.Head, Fact: fact}}
				if s.Facts == 0 {
					e.Event.Previous = events.ChainStart("op_test")
				}
				after, r := Fold(s, e)
				folds++
				where := fmt.Sprintf("%s meets %s", p, TriggerOf(fact))
				if r.Row != "rule 7" {
					ids := matching(s, e, rows)
					if len(ids) > 1 {
						t.Fatalf("%s: rows %v all apply\n%+v\n%+v", where, ids, s, fact)
					}
					if len(ids) == 1 && r.Row != "33" && r.Row != ids[0] {
						t.Fatalf("%s: row %s applies, Fold took %s", where, ids[0], r.Row)
					}
				}
				usedRows[r.Row] = true
				switch r.Verdict {
				case Applied:
					if !slices.Contains(entries(), r.Reason) {
						t.Fatalf("%s: applied for %q", where, r.Reason)
					}
				case Noted:
					if r.Reason != "" && !slices.Contains(refusals(), r.Reason) {
						t.Fatalf("%s: noted for %q", where, r.Reason)
					}
				case Rejected:
					if !slices.Contains(refusals(), r.Reason) {
						t.Fatalf("%s: rejected for %q", where, r.Reason)
					}
				default:
					t.Fatalf("%s: verdict %q", where, r.Verdict)
				}
				if r.Verdict != Applied && r.Row != "rule 7" && after.Phase != p {
					t.Fatalf("%s: %s, but the phase is %s", where, r.Verdict, after.Phase)
				}
				if fact.Kind() == events.Permit && r.Verdict == Noted {
					t.Fatalf("%s: a permit that did nothing is %s, want rejected", where, r.Verdict)
				}
				if p.Terminal() && after.Phase != p {
					t.Fatalf("%s: a terminal phase became %s", where, after.Phase)
				}
				if !slices.Contains(entries(), after.Reason) {
					t.Fatalf("%s: phase reason %q", where, after.Reason)
				}
				if after.Phase.Live() && len(Steps(after)) == 0 {
					t.Fatalf("%s: %s has no next look", where, after.Phase)
				}
				if (after.Phase == PhaseQuarantined) != (after.Quarantine != "") {
					t.Fatalf("%s: %s with quarantine %q", where, after.Phase, after.Quarantine)
				}
				to := string(after.Phase)
				if after.Quarantine != "" {
					to += "(" + string(after.Quarantine) + ")"
				}
				if after.Phase == p && after.Quarantine == s.Quarantine {
					to = "="
				}
				outcome := fmt.Sprintf("%s>%s", r.Row, to)
				if r.Verdict != Applied {
					outcome = string(r.Verdict)
					if r.Row != "0" {
						outcome += " by " + r.Row
					}
					if r.Reason != "" {
						outcome += ":" + string(r.Reason)
					}
				}
				from := string(p)
				if s.Quarantine != "" {
					from += "(" + string(s.Quarantine) + ")"
				}
				key := orNone(from) + "\t" + string(TriggerOf(fact))
				if lines[key] == nil {
					lines[key] = map[string]bool{}
					order = append(order, key)
				}
				lines[key][outcome] = true
			}
			if !reflect.DeepEqual(s, before) {
				t.Fatalf("Fold changed a state of %s it was given", p)
			}
		}
	}
	for i := range rows {
		if !usedRows[rows[i].ID] {
			t.Errorf("row %s never applied", rows[i].ID)
		}
	}
	for _, name := range []events.Type{
		events.TypeIntentRecorded, events.TypeApprovalGranted, events.TypeApprovalDenied, events.TypePrepareAttempted, events.TypePrepareAnswered, events.TypeCreateAttempted, events.TypeCreateAnswered,
		events.TypeLookupAnswered, events.TypeJobObserved, events.TypeObservationFailed, events.TypeJobContested, events.TypeWebhookReceived,
		events.TypeCancelRequested, events.TypeCancelAttempted, events.TypeCancelAnswered, events.TypeResultAttempted, events.TypeResultCollected,
		events.TypeResultFailed, events.TypeCleanupRequested, events.TypeCleanupAttempted, events.TypeCleanupAnswered, events.TypeInputSubmitted,
		events.TypeInputAttempted, events.TypeInputAnswered, events.TypeDeadlinePassed, events.TypeDecisionMade, events.TypeStepDeferred,
		events.TypeOperationPaused, events.TypeOperationResumed, events.TypeTagsChanged, events.TypeOperationLinked, events.TypeNotificationAttempted, events.TypeNotificationAnswered,
	} {
		if !seenTypes[name] {
			t.Errorf("no state met %s", name)
		}
	}
	t.Logf("%d folds", folds)

	var b strings.Builder
	b.WriteString("# What each phase does with each fact, over all variants: row>phase (= is unchanged), or the verdict and its reason.\n" +
		"# Facts that are only ever noted without a reason are left out.\n")
	slices.SortStableFunc(order, func(x, y string) int { // by phase in its order, then by trigger
		px, py := strings.Split(x, "\t")[0], strings.Split(y, "\t")[0]
		return slices.Index(phaseOrder(), strings.Split(px, "(")[0]) - slices.Index(phaseOrder(), strings.Split(py, "(")[0])
	})
	last := ""
	for _, key := range groupByPhase(order) {
		outcomes := make([]string, 0, len(lines[key]))
		for o := range lines[key] {
			outcomes = append(outcomes, o)
		}
		slices.Sort(outcomes)
		if len(outcomes) == 1 && outcomes[0] == "noted" {
			continue
		}
		phase, trigger, _ := strings.Cut(key, "\t")
		if phase != last {
			fmt.Fprintf(&b, "\n%s\n", phase)
			last = phase
		}
		fmt.Fprintf(&b, "  %-28s %s\n", trigger, strings.Join(outcomes, "  "))
	}
	path := filepath.Join("testdata", "matrix.txt")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		got, was := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(got), len(was)) {
			if got[i] != was[i] {
				t.Fatalf("%s:%d changed:\n got %s\nwant %s", path, i+1, got[i], was[i])
			}
		}
		t.Fatalf("%s has %d lines, want %d", path, len(got), len(was))
	}
}

func phaseOrder() []string {
	var list []string
	for _, p := range allPhases() {
		list = append(list, orNone(string(p)))
	}
	return list
}

// groupByPhase keeps phases together, kinds of quarantine apart.
func groupByPhase(keys []string) []string {
	var phases []string
	by := map[string][]string{}
	for _, key := range keys {
		phase, _, _ := strings.Cut(key, "\t")
		if by[phase] == nil {
			phases = append(phases, phase)
		}
		by[phase] = append(by[phase], key)
	}
	var out []string
	for _, phase := range phases {
		out = append(out, by[phase]...)
	}
	return out
}

// clone is a state that shares nothing with s which a fold writes to.
func clone(s State) State {
	s.own()
	return s
}

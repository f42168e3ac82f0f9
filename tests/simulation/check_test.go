package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	maxSteps = 400_000       // of one run
	maxRest  = 3 * time.Hour // after the last fault
)

// run plays one seed to its end and gives what was violated.
func run(cfg config, store journal.Store, c clock, tracing bool) *world {
	w := &world{cfg: cfg, store: store, clock: c, tracing: tracing, seen: map[string]int{}, working: map[int]*actor{}}
	w.rng = newSource(cfg.Seed)
	w.began = c.Now()
	w.journal = journal.New(journal.Options{
		Store: store, Now: c.Now, NewID: func() string { return "judge" },
		Sleep: func(context.Context, time.Duration) error { return errors.New("the judge does not wait") },
	})
	w.provider = newProvider(w)
	contracts, err := library()
	if err != nil {
		w.violate("contracts: %v", err)
		return w
	}
	one := contracts[cfg.variant()]
	if one == nil {
		w.violate("no contract %q", cfg.variant())
		return w
	}
	w.operations(one)
	w.populate(one)
	if cfg.Plain {
		w.heal()
	} else {
		if cfg.Identity > 0 {
			from := w.between(0, cfg.Faults)
			w.after(from, func() { w.rotate("identity-2") })
			w.after(from+w.between(time.Second, 2*time.Minute), func() { w.rotate("identity-1") })
		}
		w.edges()
		w.after(cfg.Faults, w.heal)
	}
	// Long enough for every deadline, then until nothing more is due.
	least := w.began.Add(cfg.Faults + time.Minute)
	most := w.began.Add(cfg.Faults + maxRest)
	for {
		w.step()
		now := w.clock.Now()
		if len(w.broken) > 0 {
			break
		}
		if w.resting && now.After(least) && w.rested() {
			break
		}
		if w.steps > maxSteps || now.After(most) {
			w.violate("after %s and %d steps it does not come to rest:%s", now.Sub(w.began), w.steps, w.restless())
			break
		}
	}
	w.judge()
	for _, p := range w.processes {
		w.crash(p, 0)
	}
	return w
}

// caughtUp gives the operation's state and whether the projector has recorded
// all of it.
func (w *world) caughtUp(op *operation) (projections.State, bool) {
	if op.folded.Sequence < op.newest {
		op.folded.Operation = op.id
		s, err := w.journal.Catch(context.Background(), op.folded)
		if err != nil {
			w.violate("read %s: %v", op.id, err)
		}
		op.folded = s
	}
	return op.folded, op.facts > 0 && op.facts == op.records
}

// rested says whether nothing more will happen by itself.
func (w *world) rested() bool {
	if !w.healthy || len(w.provider.webhooks) > 0 {
		return false
	}
	for _, op := range w.ops {
		if !op.submitted || (!op.cancel.IsZero() && !op.cancelled) {
			return false
		}
		s, ok := w.caughtUp(op)
		if !ok {
			return false
		}
		if _, more := projections.Next(s); more {
			return false
		}
	}
	for _, q := range w.provider.wire {
		if q.ended.IsZero() {
			return false
		}
	}
	return true
}

// restless names what still goes on.
func (w *world) restless() string {
	var b strings.Builder
	for _, op := range w.ops {
		s, _ := w.caughtUp(op)
		if next, more := projections.Next(s); more || op.facts != op.records {
			fmt.Fprintf(&b, " %s is %s, %s at %s, %d facts, %d records;", op.id, s.Phase, s.Because, next.Sub(w.began), op.facts, op.records)
		}
	}
	return b.String()
}

// attention checks that an operation that has a next look, and whose newest
// fact is projected by a tenure that has swept since, has a wake-up no later than that look, scheduled, due or
// leased. A process with timers may owe it for a while, and what one that is gone
// owed is for the next tenure's sweep. It is asked whenever nothing runs.
func (w *world) attention() {
	for _, op := range w.ops {
		s, ok := w.caughtUp(op)
		if !ok || op.unswept {
			continue
		}
		holder := w.working[journal.Partition(op.id)]
		if w.cfg.Local && (holder == nil || !holder.swept || holder.work.Owes(op.id)) {
			continue
		}
		// Who was dead is back by then, and has taken over.
		if now := w.clock.Now(); w.healthy && now.After(w.healed.Add(4*time.Minute)) && workflow.Released(s, now, workflow.Hold{}) != nil {
			w.violate("%s still rests, %s, long after the last hold", op.id, s.Because)
		}
		next, some := projections.Next(s)
		if !some {
			if s.Phase.Live() {
				w.violate("%s is %s and has no next look", op.id, s.Phase)
			}
			continue
		}
		if why := stuck(s); why != "" {
			w.violate("%s is %s and waits for a deadline only: %s", op.id, s.Phase, why)
		}
		_, err := w.store.Last(context.Background(), journal.Wakeups, "due."+w.name()+"."+op.id)
		if err == nil {
			continue // due, or leased: it comes again when the lease ends
		}
		wake, found, err := w.journal.PendingWake(context.Background(), op.id)
		switch {
		case err != nil:
			w.violate("wake-up of %s: %v", op.id, err)
		case !found:
			w.violate("%s is %s, its next look is %s, and no wake-up exists", op.id, s.Phase, next.Sub(w.began))
		case wake.At.After(next.Add(w.grace())):
			w.violate("%s is %s, its next look is %s, and its wake-up comes at %s", op.id, s.Phase, next.Sub(w.began), wake.At.Sub(w.began))
		}
	}
}

// grace is by how much later than the next look a wake-up may come.
func (w *world) grace() time.Duration {
	if !w.cfg.Local {
		return 0
	}
	return 2 * 90 * time.Second
}

// stuck says why an operation without a job could go on and does not.
func stuck(s projections.State) string {
	switch s.Phase {
	case projections.PhaseCreatePending, projections.PhaseCreateUnknown, projections.PhaseReconciliation:
	default:
		return ""
	}
	if s.Cancel.Wished || s.Paused || s.Dates.CreatePassed {
		return ""
	}
	for _, step := range projections.Steps(s) {
		if step.Kind != projections.StepDeadline {
			return ""
		}
	}
	left := uint64(len(s.Creates.List)) < max(s.Intent.Policy.MaxAttempts, 1)
	if s.Ready < s.Intent.Promises.Prepares {
		left = uint64(len(s.Prepares.List)) < max(s.Intent.Policy.MaxAttempts, 1)
	}
	switch {
	case s.Creates.Unresolved() == 0 && left:
		return "nothing may have been made and no create is due"
	case s.Creates.Unresolved() > 0 && s.Intent.Promises.Lookup != events.LookupNone:
		return "an attempt is unresolved and no look-up is due"
	}
	return ""
}

// judge checks what must hold at the end.
func (w *world) judge() {
	bound := map[string]string{}
	for _, op := range w.ops {
		s, _ := w.caughtUp(op)
		w.seen["end "+string(s.Phase)+" "+string(s.Quarantine)]++
		if s.Phase.Live() {
			w.violate("%s is still %s at the end", op.id, s.Phase)
		}
		if s.Quarantine == projections.QuarantineUnreadable {
			w.violate("%s has a fact that cannot be read", op.id)
		}
		list, verdicts := w.judgeHistory(op)
		w.judgeWire(op, s)
		w.judgeFurther(op, s)
		w.judgeTries(op, s, list, verdicts)
		w.judgeJobs(op, s, list, verdicts)
		w.judgeNamed(op, s, list, verdicts)
		if s.Job.ID != "" {
			if other, twice := bound[s.Job.ID]; twice {
				w.violate("%s is bound to %s and to %s", s.Job.ID, other, op.id)
			}
			bound[s.Job.ID] = op.id
		}
		if w.cfg.Plain && s.Phase != projections.PhaseSucceeded {
			w.violate("%s is %s (%s) although nothing went wrong", op.id, s.Phase, s.Reason)
		}
	}
	w.judgeSeen()
}

// judgeHistory folds the ledger again, compares, and gives the facts.
func (w *world) judgeHistory(op *operation) (list []events.Event, verdicts []projections.Verdict) {
	ctx := context.Background()
	facts := fmt.Sprintf("facts.0.%02d.%s", op.partition, op.id)
	history := fmt.Sprintf("history.1.%02d.%s", op.partition, op.id)
	s := projections.State{Operation: op.id}
	previous := events.ChainStart(op.id)
	record := uint64(1)
	known := map[uint64]projections.State{} // after each fact
	for {
		m, err := w.store.Next(ctx, journal.Ledger, facts, s.Sequence+1)
		if err != nil {
			break
		}
		event, digest, err := events.Decode(m.Header, m.Data)
		if err != nil {
			w.violate("%s: fact %d cannot be read: %v", op.id, m.Sequence, err)
			return list, verdicts
		}
		if event.Previous != previous {
			w.violate("%s: fact %d does not follow the one before", op.id, m.Sequence)
		}
		previous = digest
		before := s.Phase
		w.judgePermit(op, s, event)
		known[s.Sequence] = s
		w.judgeLook(op, known, event)
		var want projections.Record
		s, want = projections.Fold(s, projections.Entry{Sequence: m.Sequence, Time: m.Time, Event: event, Digest: digest})
		want.Build = "simulation"
		if w.tracing {
			w.logf("  %s %6d %-22s %s", m.Time.Sub(w.began).Round(time.Millisecond), m.Sequence, event.Fact.Type(), describe(want, event))
		}
		if before.Terminal() && s.Phase != before {
			w.violate("%s left %s for %s", op.id, before, s.Phase)
		}
		have, err := w.store.Next(ctx, journal.History, history, record)
		switch {
		case err != nil:
			w.violate("%s: fact %d has no record", op.id, m.Sequence)
		case !bytes.Equal(codec.Marshal(&want), have.Data):
			w.violate("%s: the record of fact %d is not what the fold gives", op.id, m.Sequence)
		}
		record = have.Sequence + 1
		list, verdicts = append(list, event), append(verdicts, want.Verdict)
		w.seen["row "+want.Row]++
	}
	if _, err := w.store.Next(ctx, journal.History, history, record); !errors.Is(err, journal.ErrNoMessage) {
		w.violate("%s has more records than facts", op.id)
	}
	return list, verdicts
}

// judgeLook checks that no status was read and nothing looked up before it was due
// in the state that the worker knew, by the ledger's time: as far as its process
// can know that.
func (w *world) judgeLook(op *operation, known map[uint64]projections.State, e events.Event) {
	var call events.Call
	kind := projections.StepRead
	switch f := e.Fact.(type) {
	case *events.JobObserved:
		call = f.Call
	case *events.ObservationFailed:
		call = f.Call
	case *events.LookupAnswered:
		call, kind = f.Call, projections.StepLookup
	default:
		return
	}
	if call.LeftAt.IsZero() {
		return
	}
	left := call.LeftAt
	for _, p := range w.processes {
		if sourceOf(p) == e.Source {
			left = left.Add(-p.skew)
		}
	}
	var due time.Time
	for _, step := range projections.Steps(known[call.AsOf]) {
		if step.Kind == kind && (due.IsZero() || step.At.Before(due)) {
			due = step.At
		}
	}
	if early := due.Sub(left); due.IsZero() || early > linkTime {
		w.violate("%s: a %s left at %s by the ledger's time, and is due at %s", op.id, kind, left.Sub(w.began), due.Sub(w.began))
	}
}

func describe(r projections.Record, e events.Event) string {
	return fmt.Sprintf("%-8s row %-4s %s -> %s %s | %s %+v", r.Verdict, r.Row, r.From, r.To, r.Reason, e.Source, e.Fact)
}

// edges lets credentials change and operators hold and release.
func (w *world) edges() {
	cfg := w.cfg
	for n := range cfg.Rotations {
		name := fmt.Sprintf("identity-%d", 3+n)
		from := w.between(0, cfg.Faults)
		w.after(from, func() { w.rotate(name) })
		if w.chance(0.7) { // put back: what waits for the old one goes on
			w.after(from+w.between(time.Second, 2*time.Minute), func() { w.rotate("identity-1") })
		}
	}
	for range cfg.Holds {
		from := w.between(0, cfg.Faults)
		w.after(from, func() { w.place(workflow.HoldCreates) })
		if cfg.HoldAll && w.chance(0.5) {
			w.after(from, func() { w.place(workflow.HoldAll) })
		}
		w.after(from+w.between(time.Second, 3*time.Minute), w.release)
	}
}

func (w *world) rotate(name string) {
	w.logf("the credential is %s", name)
	w.provider.identity = name
	w.provider.changes++
}

func (w *world) place(scope workflow.HoldScope) {
	if w.healthy {
		return
	}
	w.logf("hold: %s", scope)
	if w.hold.Scope == workflow.HoldNone {
		w.heldAt = w.clock.Now()
	}
	if scope == workflow.HoldAll && w.hold.Scope != workflow.HoldAll {
		w.heldAllAt = w.clock.Now()
	}
	w.hold = workflow.Hold{Scope: scope, Reason: events.DeferHold, Detail: "drill"}
	w.seen["hold "+string(scope)]++
}

func (w *world) release() {
	w.logf("hold: released")
	w.hold = workflow.Hold{}
	// A projector asks once a second, which an idle one here does when it is told.
	w.hint(w.clock.Now())
	w.after(1100*time.Millisecond, func() { w.hint(w.clock.Now()) })
}

// judgeHold checks that nothing leaves under a hold but what was permitted
// before it.
func (w *world) judgeHold(q *request) {
	if !q.effect {
		return
	}
	since := w.heldAt
	switch {
	case w.hold.Scope == workflow.HoldNone, w.hold.Scope == workflow.HoldCreates && q.kind != "create" && q.kind != "prepare":
		return
	case q.kind != "create" && q.kind != "prepare":
		since = w.heldAllAt
	}
	if after := w.clock.Now().Sub(since); after > q.r.Timeout {
		w.violate("%s: a %s left %s after the hold", q.operation, q.kind, after)
	}
}

// judgePermit checks that nobody else asks for what an unresolved attempt may
// have made, and that a create has what it needs.
func (w *world) judgePermit(op *operation, before projections.State, e events.Event) {
	if f, ok := e.Fact.(*events.PrepareAttempted); ok && f.Step == 0 && before.Ready > 0 {
		w.seen["prepare again"]++
		if f.Identity == before.Round.Identity {
			w.violate("%s: preparations begin again as %s, who made them", op.id, f.Identity)
		}
	}
	f, ok := e.Fact.(*events.CreateAttempted)
	if !ok {
		return
	}
	if f.Number > 1 {
		w.seen["create again"]++
	}
	for _, t := range before.Creates.List {
		if t.Unresolved() && !before.RiskAccepted && t.Identity != f.Identity {
			w.violate("%s: create %d is permitted as %s beside an unresolved one of %s", op.id, f.Number, f.Identity, t.Identity)
		}
	}
}

// judgeWire checks what was sent.
func (w *world) judgeWire(op *operation, s projections.State) {
	var calls []*request
	creates, prepared := 0, false
	var first *request
	for _, q := range w.provider.wire {
		if q.operation != op.id {
			continue
		}
		prepared = prepared || q.kind == "prepare"
		if q.kind == "create" {
			creates++
			url := func(q *request) string {
				if prepared { // another upload came between, and only the query names it
					path, _, _ := strings.Cut(q.r.URL, "?")
					return path
				}
				return q.r.URL
			}
			if first != nil && (!bytes.Equal(first.r.Body, q.r.Body) || url(first) != url(q) || !slices.Equal(untraced(first.r.Header), untraced(q.r.Header))) {
				w.violate("%s: two creates differ: %s %s %v and %s %s %v", op.id, first.r.URL, first.r.Body, first.r.Header, q.r.URL, q.r.Body, q.r.Header)
			}
			if first == nil || prepared {
				first, prepared = q, false
			}
		}
		if (q.kind == "create" || q.kind == "cancel") && !q.effect {
			w.violate("%s: a %s was sent as if it changed nothing", op.id, q.kind)
		}
		if q.effect {
			calls = append(calls, q)
		}
	}
	if s.Round.Again > uint64(w.provider.changes) {
		w.violate("%s: preparations began again %d times after %d changes of the credential", op.id, s.Round.Again, w.provider.changes)
	}
	if uint64(creates) > s.Creates.Made {
		w.violate("%s: %d creates were sent and %d permitted", op.id, creates, s.Creates.Made)
	}
	for i, a := range calls {
		for _, b := range calls[i+1:] {
			end := a.ended
			if end.IsZero() || end.After(a.deadline) {
				end = a.deadline // its own client gives up then, however long it is stopped
			}
			if b.left.Before(end) {
				w.violate("%s: %s of %s left at %s while %s of %s was on the wire until %s", op.id,
					b.kind, b.actor, b.left.Sub(w.began), a.kind, a.actor, end.Sub(w.began))
			}
		}
	}
}

// judgeFurther checks that an answer which may have arrived, and a cleanup, went out
// again only where that is safe, and that nothing is said to be removed that is not.
func (w *world) judgeFurther(op *operation, s projections.State) {
	left := map[string]int{}
	for _, q := range w.provider.wire {
		if q.operation != op.id || !slices.Contains([]string{"input", "cleanup"}, q.kind) {
			continue
		}
		name := q.kind
		for _, h := range q.r.Header {
			if q.kind == "input" && h.Name == "Idempotency-Key" {
				name += " " + h.Value
			}
		}
		if q.answer == nil || q.answer.Status != http.StatusTooManyRequests { // that one did nothing, and said so
			left[name]++
		}
		if !q.effect {
			w.violate("%s: an %s was sent as if it changed nothing", op.id, q.kind)
		}
	}
	for name, n := range left {
		switch {
		case strings.HasPrefix(name, "input") && n > 1 && !op.intent.Offers.RepeatInput:
			w.violate("%s: an answer that may have arrived was sent %d times", op.id, n)
		case name == "cleanup" && uint64(n) > s.Cleanup.Number && !op.intent.Promises.RepeatCleanup:
			w.violate("%s: %d cleanups were asked for and %d sent", op.id, s.Cleanup.Number, n)
		}
		if n > 1 {
			w.seen[name[:5]+" again"]++
		}
	}
	for _, id := range s.Cleanup.Done {
		if j := w.provider.byID[id]; j == nil || !j.gone {
			w.violate("%s says that %s is removed", op.id, id)
		}
	}
	if s.Cleanup.Due || s.Cleanups.Open() != nil || s.Input.Due || s.Inputs.Open() != nil {
		w.violate("%s: input %s, cleanup %s at the end", op.id, s.InputStatus(), s.CleanupStatus())
	}
	w.seen["input "+string(s.InputStatus())]++
	w.seen["cleanup "+string(s.CleanupStatus())]++
}

// judgeTries checks that what cannot be sent is given up.
func (w *world) judgeTries(op *operation, s projections.State, list []events.Event, verdicts []projections.Verdict) {
	type row struct{ vain, newest uint64 } // calls in a row that were not sent, the newest call
	var inputs, cleanups row
	tried := func(r *row, number uint64, what string) {
		if r.newest = number; r.vain >= max(s.Intent.Policy.MaxAttempts, 1) {
			w.violate("%s: %s is tried again after %d that were not sent", op.id, what, r.vain)
		}
	}
	answered := func(r *row, number uint64, outcome events.CallOutcome, call events.Call) {
		switch {
		case outcome == events.CallNotSent, outcome == events.CallRefused && call.Class == events.ErrorThrottled:
			r.vain++
		case number == r.newest: // late word of an earlier one ends no row
			r.vain = 0
		}
	}
	for i, e := range list {
		if verdicts[i] != projections.Applied {
			continue
		}
		switch f := e.Fact.(type) {
		case *events.InputSubmitted:
			inputs.vain = 0
		case *events.InputAttempted:
			tried(&inputs, f.Number, "an answer")
		case *events.InputAnswered:
			answered(&inputs, f.Attempt, f.Outcome, f.Call)
		case *events.CleanupRequested:
			cleanups.vain = 0
		case *events.CleanupAttempted:
			tried(&cleanups, f.Number, "a cleanup")
		case *events.CleanupAnswered:
			answered(&cleanups, f.Attempt, f.Outcome, f.Call)
		default: // asks for nothing that is in question here
		}
	}
}

// judgeJobs compares the operation with what the provider has.
func (w *world) judgeJobs(op *operation, s projections.State, list []events.Event, verdicts []projections.Verdict) {
	var made []*job
	for _, j := range w.provider.jobs {
		if j.operation == op.id {
			made = append(made, j)
		}
	}
	guarantee := op.intent.Promises.Guarantee
	if len(made) > 1 && !op.risked {
		w.violate("%s (%s) made %d jobs", op.id, guarantee, len(made))
	}
	known := func(id string) bool { return s.Job.ID == id || slices.Contains(projections.Unfollowed(s), id) }
	// An end that says that nothing was made.
	if s.Phase.Terminal() && s.Job.ID == "" && !op.decided {
		for _, j := range made {
			if !known(j.id) {
				w.violate("%s is %s (%s) without a job, and the provider has %s", op.id, s.Phase, s.Reason, j.id)
			}
		}
	}
	if guarantee != events.AskAfterLoss && s.Phase == projections.PhaseAbandoned && op.intent.Promises.Lookup == events.LookupExact && !gaveUp(s, list, verdicts) {
		for _, j := range made {
			if !known(j.id) && !j.gone {
				w.violate("%s is abandoned and the provider's %s is not listed as stray", op.id, j.id)
			}
		}
	}
	if s.Phase == projections.PhaseQuarantined && s.Quarantine == projections.QuarantineConflict && !op.decided && !op.robbed {
		w.violate("%s is in conflict: %v", op.id, s.Strays)
	}
	mine := w.provider.byID[s.Job.ID]
	if s.Job.ID != "" && mine == nil {
		w.violate("%s follows %s, which does not exist", op.id, s.Job.ID)
		return
	}
	marked, accepted, mistaken := false, false, false
	for i, e := range list {
		d, ok := e.Fact.(*events.DecisionMade)
		if !ok || verdicts[i] != projections.Applied {
			continue
		}
		marked = marked || d.Choice == events.DecideMarkCancelled
		accepted = accepted || d.Choice == events.DecideAcceptResult
		// Of candidates without our reference a human may choose another's job.
		mistaken = mistaken || d.Choice == events.DecideAdopt && mine != nil && d.JobID == mine.id && mine.operation != op.id
	}
	if s.Phase == projections.PhaseCancelled && !marked {
		for _, j := range made {
			// A second job, whose risk was accepted, may never be known.
			mayBeOther := (op.risked || mistaken) && j.id != s.Job.ID
			if !j.gone && j.state != "cancelled" && !mayBeOther && !slices.Contains(s.Strays, j.id) {
				w.violate("%s is cancelled and %s is %s", op.id, j.id, j.state)
			}
		}
	}
	if s.Phase == projections.PhaseSucceeded {
		w.judgeSuccess(op, s, mine, list, accepted)
	}
	w.judgeCandidates(op, s, made, list)
	for _, j := range w.provider.foreign {
		if s.Job.ID == j.id || slices.Contains(s.Candidates, j.id) {
			w.violate("%s names %s, which is older than its first attempt", op.id, j.id)
		}
	}
}

// gaveUp says whether the operation, abandoned, looked as often as it does when nobody
// tells it anything. Others may have spoken in between.
func gaveUp(s projections.State, list []events.Event, verdicts []projections.Verdict) bool {
	looked := 0
	for i, e := range list {
		switch f := e.Fact.(type) {
		case *events.DecisionMade:
			if verdicts[i] == projections.Applied {
				looked = 0
			}
		case *events.LookupAnswered:
			if looked++; f.Outcome != events.LookupFailed && !f.LeftAt.Before(s.ConclusiveAt()) {
				return false
			}
		default: // no other fact ends it, or looks
		}
	}
	return looked >= 5
}

// shown says whether whoever looks at the operation sees the job.
func shown(s projections.State, job string) bool {
	return s.Job.ID == job || slices.Contains(projections.Candidates(s), job) || slices.Contains(projections.Unfollowed(s), job)
}

// judgeNamed checks that whoever looks at the operation sees each job that a webhook
// named by our reference, whatever became of it.
func (w *world) judgeNamed(op *operation, s projections.State, list []events.Event, verdicts []projections.Verdict) {
	adopted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch f := list[i].Fact.(type) {
		case *events.DecisionMade:
			adopted = adopted || f.Choice == events.DecideAdopt && verdicts[i] == projections.Applied
		case *events.WebhookReceived:
			if adopted && s.Rulebook() < 2 { // those rules know only the job that was adopted then
				return
			}
			if f.Exact && f.JobID != "" && !shown(s, f.JobID) && !w.ownedElsewhere(op, f.JobID) {
				w.violate("%s is %s and does not show %s, which a webhook named", op.id, s.Phase, f.JobID)
			}
		default: // no other fact names one, or has one forgotten
		}
	}
}

// judgeCandidates checks that whoever has to decide is shown the jobs that a
// look-up without our reference named.
func (w *world) judgeCandidates(op *operation, s projections.State, made []*job, list []events.Event) {
	if s.Phase != projections.PhaseQuarantined || s.Quarantine != projections.QuarantineUnknown ||
		op.intent.Promises.Lookup != events.LookupCandidates || op.decided {
		return
	}
	looked := slices.ContainsFunc(list, func(e events.Event) bool {
		l, ok := e.Fact.(*events.LookupAnswered)
		return ok && l.Outcome != events.LookupFailed && l.LeftAt.After(s.ConclusiveAt())
	})
	for _, j := range made {
		if looked && !j.gone && !slices.Contains(projections.Candidates(s), j.id) && !w.ownedElsewhere(op, j.id) {
			w.violate("%s looked for candidates and does not list %s", op.id, j.id)
		}
	}
}

func (w *world) ownedElsewhere(op *operation, id string) bool {
	owner, owned, err := w.journal.Owner(context.Background(), w.name(), "main", id)
	return err == nil && owned && owner != op.id
}

// judgeSuccess wants the read that saw the end and the result that was kept.
func (w *world) judgeSuccess(op *operation, s projections.State, mine *job, list []events.Event, accepted bool) {
	read, kept := false, false
	for _, e := range list {
		if fact, ok := e.Fact.(*events.JobObserved); ok && fact.JobID == s.Job.ID {
			read = read || fact.State == events.ClassSucceeded || fact.State == events.ClassPartial
		}
		if fact, ok := e.Fact.(*events.CreateAnswered); ok {
			read = read || fact.Outcome == events.CreateCompleted
		}
		if fact, ok := e.Fact.(*events.ResultCollected); ok {
			passed := !slices.ContainsFunc(fact.Checks, func(c events.Check) bool { return !c.Passed })
			kept = kept || passed || accepted
		}
	}
	if !read || mine.state != "succeeded" {
		w.violate("%s is succeeded, read %v, and %s is %s", op.id, read, mine.id, mine.state)
	}
	if !op.intent.Promises.HasResult {
		return
	}
	if !kept {
		w.violate("%s is succeeded without a result", op.id)
		return
	}
	body, err := w.journal.Payload(context.Background(), s.Result.Payload)
	if err != nil {
		w.violate("result of %s: %v", op.id, err)
		return
	}
	if !accepted && !bytes.Contains(body, []byte(mine.id)) {
		w.violate("%s has another job's result: %.100s", op.id, body)
	}
}

// judgeSeen checks that no job an actor was told of, and lived on to record,
// is unknown to its operation.
func (w *world) judgeSeen() {
	for _, seen := range w.provider.confirmed {
		op := w.operation(seen.operation)
		s, _ := w.caughtUp(op)
		j := w.provider.byID[seen.job]
		if shown(s, seen.job) || j == nil || w.ownedElsewhere(op, seen.job) {
			continue
		}
		w.violate("%s was told of %s and does not know it (%s)", op.id, seen.job, s.Phase)
	}
}

// report is what is printed for a seed that failed.
func (w *world) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\nconfig %s\n", w.cfg.Seed, w.cfg)
	if w.tracing {
		b.WriteString(w.trace.String())
	}
	for _, v := range w.broken {
		fmt.Fprintf(&b, "VIOLATION %s\n", v)
	}
	return b.String()
}

// untraced leaves out the header that names the one call.
func untraced(header []outbound.Header) []outbound.Header {
	return slices.DeleteFunc(slices.Clone(header), func(h outbound.Header) bool { return h.Name == "Traceparent" })
}

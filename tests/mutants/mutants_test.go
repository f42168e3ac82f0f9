// Package mutants shows that the simulation can fail: it takes one protection
// at a time out of the source and asks for a seed that notices.
//
// A mutant is a textual change, laid over the tree for one build of the
// simulation (go build -overlay); the tree itself is not touched. Text that is
// no longer there is a failure, never a skip. `go test ./tests/mutants` plays a
// few, `make mutants` all of them.
//
// Not here, because other guards make up for them: row 9 over an attempt that an
// absence covers (20,000 seeds saw no difference: the next permit follows within
// moments and its answer leads to the same phase), as_of alone in row 12 (the time
// at which the look-up left is stricter), a create before its upload (the
// contract cannot build it), and an author that takes what the board has for the
// newest (its permit then opens nothing, and it decides again). Acknowledging by a
// state older than the wake-up lost an operation before there were timers; with
// them nobody waits for that wake-up, and internal/poller TestAckRule shows it. Nor a
// sweep that believes in wake-ups of what its tenure caught up with, which no seed came to
// in some minutes: internal/projector TestSweepBelievesInNothingOfWhatMoved shows it. Nor that a
// read makes an answer due again that was given up, which one seed in some 300,000 comes
// to: projections TestGivenUpStaysGivenUp shows it.
package mutants

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var all = flag.Bool("all", false, "play every mutant, not only those that fall at once")

// edit replaces one piece of text, which must be there exactly once.
type edit struct{ file, old, new string }

type mutant struct {
	name  string
	why   string // what it takes away
	quick bool   // falls within a second or two
	runs  int    // seeds within which it must fall
	edits []edit
}

const (
	appendFile    = "internal/journal/append.go"
	tenureFile    = "internal/journal/tenure.go"
	pollerFile    = "internal/poller/poller.go"
	callsFile     = "internal/poller/calls.go"
	projectorFile = "internal/projector/projector.go"
	stepFile      = "internal/projector/step.go"
	releaseFile   = "internal/projector/release.go"
	decideFile    = "internal/workflow/decide.go"
	tableFile     = "projections/table.go"
	guardsFile    = "projections/guards.go"
	foldFile      = "projections/fold.go"
	stateFile     = "projections/state.go"
	nextFile      = "projections/next.go"
	furtherFile   = "projections/further.go"
	namedFile     = "projections/named.go"
)

// ackRule is the line that every wrong rule of acknowledging replaces.
const ackRule = `if !ok || next.After(lease.At()) && !lease.At().IsZero() {`

// neverFenced takes the newest take-over record for one's own before each run.
const neverFenced = `if m, err := t.lastOf(ctx, History, t.fence()); err == nil {
			t.taken = m.Sequence
		}
		last, err := t.j.store.PublishRun(`

func mutants() []mutant {
	return []mutant{
		{
			name: "dropped-evidence", why: "what was seen is dropped when another fact came first", quick: true, runs: 3000,
			edits: []edit{{appendFile, `if outcome == Stored || e.Fact.Kind() == events.Permit {`, `if outcome == Stored || outcome == Superseded {`}},
		},
		{
			name: "ack-without-comparing", why: "a wake-up is acknowledged although the next look is the time it carries", quick: true, runs: 3000,
			edits: []edit{{pollerFile, ackRule, `if !ok || !next.IsZero() {`}},
		},
		{
			name: "ack-on-progress", why: "a wake-up is acknowledged because its worker stored something, wherever the next look is", runs: 20000,
			edits: []edit{{pollerFile, ackRule, `if !ok || last.sequence > 0 || next.After(lease.At()) {`}},
		},
		{
			name: "ack-while-standing", why: "a wake-up is acknowledged because the next look is another time, although it is earlier and the wake-up stands for it", quick: true, runs: 3000,
			edits: []edit{{pollerFile, ackRule, `if !ok || !next.Equal(lease.At()) {`}},
		},
		{
			name: "board-ahead", why: "an author puts on the board what it is about to append", quick: true, runs: 3000,
			edits: []edit{{appendFile, "		at, beaten, err := j.appendAt(ctx, s, e)\n", `		if p := &j.board; *p != nil && s.Facts > 0 {
			ahead, _ := projections.Fold(s, projections.Entry{Sequence: s.Sequence + 1, Time: j.now(), Event: e})
			part := &(*p).parts[Partition(s.Operation)]
			part.mu.Lock()
			holder := part.holder
			part.mu.Unlock()
			if holder != nil {
				holder.Put(ahead)
			}
		}
		at, beaten, err := j.appendAt(ctx, s, e)
`}},
		},
		{
			name: "own-clock", why: "what is due is judged by a clock that is ahead of the ledger's", quick: true, runs: 3000,
			edits: []edit{{pollerFile, `return at.Add(-max(p.cfg.Ahead(), 0))`, `return at`}},
		},
		{
			name: "unfenced-projector", why: "neither epoch nor partition sequence keeps a stopped projector out", quick: true, runs: 3000,
			edits: []edit{
				{tenureFile, `Guard: &Guard{Subject: t.filter(), Sequence: t.last},`, `Guard: nil,`},
				{tenureFile, `last, err := t.j.store.PublishRun(`, neverFenced},
				{tenureFile, `m.Guard = &Guard{Subject: epochSubject(t.partition), Sequence: t.epoch}`, `m.Guard = nil`},
			},
		},
		{
			name: "unfenced-wake-ups", why: "a stopped projector's wake-up replaces a newer one", runs: 20000,
			edits: []edit{{tenureFile, `m.Guard = &Guard{Subject: epochSubject(t.partition), Sequence: t.epoch}`, `m.Guard = nil`}},
		},
		{
			name: "history-before-wake-up", why: "a crash between the two forgets the wake-up", runs: 3000,
			edits: []edit{
				{
					stepFile,
					"	return w.publish(ctx, list)\n",
					"	if err := w.flush(ctx, 0); err != nil {\n		return err\n	}\n	return w.publish(ctx, list)\n",
				},
			},
		},
		{
			name: "unfenced-run", why: "the records of a run are let in whoever has the partition", quick: true, runs: 3000,
			edits: []edit{{tenureFile, `last, err := t.j.store.PublishRun(`, neverFenced}},
		},
		{
			name: "run-again", why: "a run that was not answered is sent again without asking what of it landed", quick: true, runs: 3000,
			edits: []edit{{tenureFile, `if err := t.renew(ctx); err != nil {`, `if err := error(nil); err != nil {`}},
		},
		{
			name: "run-not-renewed", why: "what landed of a run is asked for, but the rest of it can land later", runs: 20000,
			edits: []edit{{
				tenureFile, `err = t.writeHistory(ctx, takeover, codec.Marshal(&takeoverRecord{position: t.position, tenure: t.id}))
		if err == nil {
			t.taken = t.last`, `if err == nil {`,
			}},
		},
		{
			name: "absent-while-open", why: "an empty look-up that knew nothing of an open attempt permits another", runs: 20000,
			edits: []edit{
				{guardsFile, ` || s.Creates.Unresolved() == 0 || s.Creates.Open() != nil {`, ` || s.Creates.Unresolved() == 0 {`},
				{guardsFile, `return f.covers(l.AsOf) && !l.LeftAt.Before(s.ConclusiveAt())`, `return !l.LeftAt.Before(s.ConclusiveAt())`},
				{
					tableFile, `ID: "12", From: []Phase{PhaseCreateUnknown, PhaseReconciliation, PhaseQuarantined},`,
					`ID: "12", From: inCOrQuarantined(),`,
				},
				{stateFile, `if end := t.NotAfter.Add(t.Timeout); end.After(at) {`, `if end := t.NotAfter.Add(t.Timeout); end.After(at) && t.Status != AttemptOpen {`},
			},
		},
		{
			name: "absent-before-settled", why: "an empty look-up counts before the last request has settled", quick: true, runs: 3000,
			edits: []edit{{guardsFile, `return f.covers(l.AsOf) && !l.LeftAt.Before(s.ConclusiveAt())`, `return f.covers(l.AsOf)`}},
		},
		{
			name: "settled-without-clock-difference", why: "two clocks are taken for one", runs: 20000,
			edits: []edit{{stateFile, `return at.Add(s.Intent.Promises.Settle).Add(s.Intent.Policy.ClockDifference)`, `return at.Add(s.Intent.Promises.Settle)`}},
		},
		{
			name: "late-request", why: "a stopped worker sends long after its permit ran out", runs: 5000,
			edits: []edit{{callsFile, `request.SideEffect, request.NotAfter = true, guard.NotAfter`, `request.SideEffect, request.NotAfter = true, guard.NotAfter.AddDate(1, 0, 0)`}},
		},
		{
			name: "token-window", why: "a token is repeated when the provider may have forgotten it", runs: 20000,
			edits: []edit{
				{decideFile, `notAfter = earliest(notAfter, ends)`, `_ = ends`},
				{guardsFile, `return !bounded || !notAfter.After(ends)`, `return !bounded || !notAfter.After(ends) || true`},
			},
		},
		{
			name: "no-claim", why: "a created job is not claimed", quick: true, runs: 3000,
			edits: []edit{{callsFile, "		if fact.JobID != \"\" {\n			if fact.Claim, err = p.claim(ctx, s, fact.JobID); err != nil {\n				return s, err\n			}\n", "		if fact.JobID != \"\" {\n			if fact.Claim = events.ClaimOwn; err != nil {\n				return s, err\n			}\n"}},
		},
		{
			name: "permit-anywhere", why: "a permit is appended whatever came before it", runs: 1000,
			edits: []edit{{
				appendFile, "	return j.store.Publish(ctx, Ledger, Outgoing{\n		Subject: subject, Header: header, Data: data, Guard: &Guard{Sequence: expected},\n	})",
				"	guard := &Guard{Sequence: expected}\n	if e.Fact.Kind() == events.Permit && expected > 0 {\n		guard = nil\n	}\n	return j.store.Publish(ctx, Ledger, Outgoing{\n		Subject: subject, Header: header, Data: data, Guard: guard,\n	})",
			}},
		},
		{
			name: "effect-before-permit", why: "the request leaves although the permit was beaten", runs: 20000,
			edits: []edit{
				{callsFile, `if err != nil || outcome != journal.Stored {`, `if outcome != journal.Stored {
		return s, true, nil
	}
	if err != nil {`},
			},
		},
		{
			name: "hold-ignored", why: "creates leave although an operator holds them", runs: 3000,
			edits: []edit{
				{decideFile, `case w.Hold.covers(step):`, `case w.Hold.covers(step) && step.Kind != projections.StepCreate:`},
				{callsFile, `if p.hold(s).Rests(fact) {`, `if p.hold(s).Rests(fact) && fact.Type() != events.TypeCreateAttempted {`},
			},
		},
		{
			name: "hold-never-over", why: "nobody ends the rest of operations whose hold is over", runs: 3000,
			edits: []edit{{releaseFile, `if fact == nil {`, `if fact == nil || s.Operation != "" {`}},
		},
		{
			name: "another-identity", why: "another credential repeats what an unresolved create may have made", runs: 20000,
			edits: []edit{{decideFile, `case t.Identity != w.Target.Identity:`, `case t.Identity != w.Target.Identity && step.Kind != projections.StepCreate:`}},
		},
		{
			name: "another-identity-prepared", why: "a create leaves with what another credential uploaded", runs: 5000,
			edits: []edit{
				{decideFile, `if s.Intent.Promises.Prepares > 0 && !serves(s, w) {`, `if s.Intent.Promises.Prepares > 0 && !serves(s, w) && s.Operation == "" {`},
				{guardsFile, `s.Ready >= s.Intent.Promises.Prepares && s.Round.Serves(a.Origin, a.Account, a.Identity)`, `s.Ready >= s.Intent.Promises.Prepares && a.Number > 0`},
			},
		},
		{
			name: "older-jobs", why: "jobs from before the first attempt are taken for candidates", runs: 3000,
			edits: []edit{{callsFile, `if !j.Exact && !j.CreatedAt.IsZero() && j.CreatedAt.Before(from) {`, `if !j.Exact && !j.CreatedAt.IsZero() && j.CreatedAt.Before(from.AddDate(-1, 0, 0)) {`}},
		},
		{
			name: "presumed-early", why: "an attempt is presumed while its request may be on the wire", runs: 3000,
			edits: []edit{{stateFile, `return t.NotAfter.Add(t.Timeout).Add(presumeMargin)`, `return t.OpenedAt.Add(t.Timeout / 2)`}},
		},
		{
			name: "presumed-without-clock-difference", why: "a fast clock presumes a worker that is still sending", runs: 10000,
			edits: []edit{{nextFile, `at := t.GoneAt().Add(s.Intent.Policy.ClockDifference)`, `at := t.GoneAt()`}},
		},
		{
			name: "no-owed-look-up", why: "a stray job is not looked for once more", runs: 20000,
			edits: []edit{{foldFile, `s.OwedLookup = s.OwedLookup || s.Phase.Live() || s.Pace.Lookups < owedLookupTries`, `s.OwedLookup = false`}},
		},
		{
			name: "cancel-acknowledged", why: "a cancel counts as done when it is acknowledged", runs: 3000,
			edits: []edit{{tableFile, `f.enter(PhaseCancelling, "")`, `f.enter(PhaseCancelled, ReasonCancelConfirmed)`}},
		},
		{
			name: "input-again", why: "an answer that may have arrived is sent again although that is not promised to be safe", runs: 5000,
			edits: []edit{{furtherFile, `!s.Input.Over && s.Intent.Offers.RepeatInput &&`, `!s.Input.Over &&`}},
		},
		{
			name: "cleanup-again", why: "a cleanup that may have arrived is sent again although that is not promised to be safe", runs: 5000,
			edits: []edit{{furtherFile, `s.Cleanup.Due = s.Intent.Promises.RepeatCleanup && `, `s.Cleanup.Due = `}},
		},
		{
			name: "cleanup-for-ever", why: "a cleanup that cannot be sent is tried without end", runs: 5000,
			edits: []edit{{furtherFile, `		s.Cleanup.Due = !s.givenUp(&s.Cleanups)`, `		s.Cleanup.Due = true`}},
		},
		{
			name: "answer-for-ever", why: "an answer that cannot be sent is tried without end", runs: 20000,
			edits: []edit{{furtherFile, `		s.Input.Due = !s.givenUp(&s.Inputs)`, `		s.Input.Due = true`}},
		},
		{
			name: "hidden-job", why: "nobody is shown the job that a webhook named", quick: true, runs: 3000,
			edits: []edit{{namedFile, `if !s.Hint.Exact || s.Hint.JobID == s.Job.ID ||`, `if s.Hint.Exact || s.Hint.JobID == s.Job.ID ||`}},
		},
		{
			name: "forgotten-cleanup", why: "an operation that has ended is not looked at again", quick: true, runs: 3000,
			edits: []edit{{nextFile, "	case PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned:\n		l.owed(s)\n		l.cleanup(s)\n", "	case PhaseSucceeded, PhaseFailed, PhaseCancelled, PhaseAbandoned:\n		l.owed(s)\n"}},
		},
	}
}

var (
	seedLine = regexp.MustCompile(`seed (\d+): `)
	runsLine = regexp.MustCompile(`(\d+) runs, \d+ steps`)
)

func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			overlay := write(t, root, m)
			if !*all && (!m.quick || testing.Short()) {
				return // its text is still there, which is what was checked
			}
			play(t, root, m, overlay)
		})
	}
}

// write makes the overlay and fails if the source has changed under the mutant.
func write(t *testing.T, root string, m mutant) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		from := path
		if done, twice := replace[path]; twice {
			from = done
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has %d times the text this mutant changes: %q", e.file, n, e.old)
		}
		to := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		if err := os.WriteFile(to, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// play builds the simulation with the mutant and runs it until a seed fails.
func play(t *testing.T, root string, m mutant, overlay string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "simulation.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, "./tests/simulation")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), binary, "-test.run=^TestMemory$", "-test.v", "-test.timeout=0",
		"-memory-runs="+strconv.Itoa(m.runs), "-enough=1")
	run.Dir = filepath.Join(root, "tests", "simulation")
	out, err := run.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Fatalf("%d runs noticed nothing: %s", m.runs, m.why)
	case !errors.As(err, &exit):
		t.Fatal(err)
	}
	text := string(out)
	if len(text) > 4000 {
		text = text[:4000]
	}
	seed, runs := seedLine.FindStringSubmatch(text), runsLine.FindStringSubmatch(string(out))
	if seed == nil || runs == nil {
		t.Fatalf("it failed for another reason:\n%s", text)
	}
	first, _, _ := strings.Cut(text[strings.Index(text, seed[0]):], "\n")
	t.Logf("%s: found after %s runs: %.300s", m.why, runs[1], first)
}

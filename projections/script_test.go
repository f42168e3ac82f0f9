package projections

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

var update = flag.Bool("update", false, "rewrite expectations in testdata")

// epoch is the time 0s of every script and property.
var epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// A ledger is one operation with everything folded so far. It gives facts the
// envelope, sequence and chain that a journal would.
type ledger struct {
	s       State
	folder  Folder // as a projector uses it, beside Fold in the checks
	seq     uint64
	head    events.Digest
	ids     int
	ahead   time.Duration // authors' clock before the ledger's
	entries []Entry
	records []Record
	check   func(before State, e Entry, after State, r Record) // of each fact; may be nil
}

func newLedger() *ledger { return &ledger{head: events.ChainStart("op_test")} }

func (l *ledger) entry(at time.Time, fact events.Fact) Entry {
	l.ids++
	e := events.Event{
		ID: "f-" + strconv.Itoa(l.ids), Source: "/test/1", Operation: "op_test", Time: at.Add(l.ahead), Previous: l.head, Fact: fact,
	}
	_, _, digest := events.Encode(e)
	return Entry{Sequence: l.seq + 1, Time: at, Event: e, Digest: digest}
}

func (l *ledger) append(e Entry) Record {
	before := l.s
	var r Record
	l.s, r = l.folder.Fold(l.s, e)
	if l.check != nil {
		l.check(before, e, l.s, r)
	}
	l.seq, l.head = e.Sequence, e.Digest
	l.entries = append(l.entries, e)
	l.records = append(l.records, r)
	return r
}

func (l *ledger) fold(at time.Time, fact events.Fact) Record { return l.append(l.entry(at, fact)) }

// standard is the intent scripts and properties start from: every promise that
// makes things simple, none that hides something.
func standard() *events.IntentRecorded {
	return &events.IntentRecorded{
		Principal: "team-a", Provider: "example", Account: "main", Token: "tok-1", Rules: Rules,
		Deadlines: events.Deadlines{Approval: 7 * 24 * time.Hour, Create: time.Hour, Result: 4 * time.Hour, Cancel: 30 * time.Minute, Collect: time.Hour},
		Policy: events.Policy{
			PollInterval: 10 * time.Second, PollMax: 10 * time.Minute, BackoffBase: time.Second, BackoffMax: 5 * time.Minute,
			RequestTimeout: 30 * time.Second, MaxAttempts: 5,
		},
		Promises: events.Promises{
			Guarantee: events.Recoverable, Settle: 20 * time.Second, Lookup: events.LookupExact, LookupConclusive: true,
			NotFoundGrace: time.Minute, Cancels: true, HasResult: true, RepeatResult: true,
		},
	}
}

// A script is lines of "TIME FACT [outcome] [key=value|flag …]" after one line
// "set …" that changes the standard intent. What follows "=>" is expected.
type script struct {
	t      *testing.T
	l      *ledger
	intent *events.IntentRecorded
}

func (s *script) duration(text string) time.Duration {
	s.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) set(words []string) {
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		p, po, d := &s.intent.Promises, &s.intent.Policy, &s.intent.Deadlines
		on := value == "" || value == "yes"
		switch key {
		case "guarantee":
			p.Guarantee = events.Guarantee(value)
		case "lookup":
			p.Lookup = events.Lookup(value)
		case "window":
			p.TokenWindow = s.duration(value)
		case "settle":
			p.Settle = s.duration(value)
		case "grace":
			p.NotFoundGrace = s.duration(value)
		case "conclusive":
			p.LookupConclusive = on
		case "strict":
			p.Strict = on
		case "refusal_is_proof":
			p.RefusalIsProof = on
		case "webhook_names_job":
			p.WebhookNamesJob = on
		case "gone_confirms":
			p.GoneConfirmsCancel = on
		case "cancels":
			p.Cancels = on
		case "result":
			p.HasResult = on
		case "partial":
			p.PartialResults = on
		case "repeat_cancel":
			p.RepeatCancel = on
		case "input":
			s.intent.Offers.Input = on
		case "repeat_input":
			s.intent.Offers.Input, s.intent.Offers.RepeatInput = on, on
		case "cleanup":
			s.intent.Offers.Cleanup = on
		case "repeat_cleanup":
			s.intent.Offers.Cleanup, p.RepeatCleanup = on, on
		case "rules":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			s.intent.Rules = n
		case "repeat_result":
			p.RepeatResult = on
		case "prepares":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			p.Prepares = n
		case "attempts":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			po.MaxAttempts = n
		case "clock":
			po.ClockDifference = s.duration(value)
		case "create":
			d.Create = s.duration(value)
		case "results":
			d.Result = s.duration(value)
		case "approval":
			s.intent.NeedsApproval = on
		case "adopt":
			s.intent.Adopt = value
		case "not_before":
			s.intent.NotBefore = epoch.Add(s.duration(value))
		default:
			s.t.Fatalf("set: no %q", key)
		}
	}
}

// args are the words after a fact's name.
type args struct {
	s       *script
	at      time.Time
	outcome string
	m       map[string]string
}

func (a args) has(key string) bool { _, ok := a.m[key]; return ok }

func (a args) num(key string, otherwise uint64) uint64 {
	if !a.has(key) {
		return otherwise
	}
	n, err := strconv.ParseUint(a.m[key], 10, 64)
	if err != nil {
		a.s.t.Fatal(err)
	}
	return n
}

func (a args) time(key string, otherwise time.Time) time.Time {
	if !a.has(key) {
		return otherwise
	}
	return epoch.Add(a.s.duration(a.m[key]))
}

func (a args) call() events.Call {
	return events.Call{
		AsOf: a.num("asof", a.s.l.seq), LeftAt: a.time("left", a.at), Class: events.ErrorClass(a.m["class"]), RetryAt: a.time("retry", time.Time{}),
	}
}

func (a args) attempt(tries *Tries) events.Attempt {
	return events.Attempt{
		Number: a.num("n", tries.Made+1), NotAfter: a.time("notafter", a.at.Add(30*time.Second)), Timeout: 30 * time.Second, Owner: "poller-1/r1",
		Identity: a.m["as"],
	}
}

// over is the digest of what waits, or of something else, where it is said.
func (a args) over() events.Digest {
	switch a.m["over"] {
	case "this":
		return a.s.l.s.Intent.ToApprove(a.s.l.s.Operation)
	case "another":
		return a.s.l.s.Intent.ToApprove("op_other")
	}
	return events.Digest{}
}

func (a args) fact(name string) events.Fact {
	st := &a.s.l.s
	last := func(t *Tries) uint64 { return a.num("n", t.Made) }
	switch name {
	case "intent":
		return a.s.intent
	case "approval.granted":
		return &events.ApprovalGranted{Who: cmp.Or(a.m["who"], "boss"), Approved: a.over()}
	case "approval.denied":
		return &events.ApprovalDenied{Who: cmp.Or(a.m["who"], "boss"), Denied: a.over()}
	case "prepare.attempted":
		return &events.PrepareAttempted{Step: a.num("step", st.Ready), Attempt: a.attempt(&st.Prepares)}
	case "prepare.answered":
		f := &events.PrepareAnswered{Attempt: last(&st.Prepares), Step: a.num("step", st.Ready), Outcome: events.PrepareOutcome(a.outcome), Call: a.call()}
		if f.Outcome == events.PrepareDone {
			f.Values = []events.Tag{{Name: "file", Value: a.m["file"]}}
		}
		return f
	case "create.attempted":
		return &events.CreateAttempted{Attempt: a.attempt(&st.Creates)}
	case "create.answered":
		return &events.CreateAnswered{
			Attempt: last(&st.Creates), Outcome: events.CreateOutcome(a.outcome), JobID: a.m["job"], Claim: a.m["claim"],
			EchoDiffer: a.has("echo_differs"), Call: a.call(),
		}
	case "lookup.answered":
		f := &events.LookupAnswered{Outcome: events.LookupOutcome(a.outcome), Conclusive: a.has("conclusive"), Call: a.call()}
		for job := range strings.SplitSeq(a.m["jobs"], ",") {
			if job == "" {
				continue
			}
			parts := strings.Split(job+"::", ":")
			f.Jobs = append(f.Jobs, events.FoundJob{ID: parts[0], Exact: parts[1] == "exact", Claim: parts[2]})
		}
		return f
	case "job.observed":
		return &events.JobObserved{
			JobID: a.m["job"], Claim: a.m["claim"], State: events.Class(a.outcome), Remote: a.outcome, NoResult: a.has("no_result"), Call: a.call(),
			InputText: a.m["text"], InputURL: a.m["url"],
		}
	case "observation.failed":
		c := a.call()
		c.Class = events.ErrorClass(a.outcome)
		return &events.ObservationFailed{JobID: a.m["job"], Call: c}
	case "job.contested":
		return &events.JobContested{JobID: a.m["job"], Owner: "op_other"}
	case "webhook":
		return &events.WebhookReceived{JobID: a.m["job"], Exact: a.has("exact")}
	case "cancel.requested":
		return &events.CancelRequested{Who: "team-a"}
	case "cancel.attempted":
		return &events.CancelAttempted{Attempt: a.attempt(&st.Cancels)}
	case "cancel.answered":
		return &events.CancelAnswered{Attempt: last(&st.Cancels), Outcome: events.CancelOutcome(a.outcome), Call: a.call()}
	case "result.attempted":
		return &events.ResultAttempted{Attempt: a.attempt(&st.Results)}
	case "result.collected":
		return &events.ResultCollected{
			Attempt: last(&st.Results), Payload: events.Sum([]byte("result")), Size: 6,
			Checks: []events.Check{{Name: "schema", Passed: !a.has("check_fails")}}, Call: a.call(),
		}
	case "result.failed":
		return &events.ResultFailed{Attempt: last(&st.Results), Outcome: events.ResultOutcome(a.outcome), Call: a.call()}
	case "input.submitted":
		return &events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("answer")), Question: a.num("question", 0)}
	case "input.attempted":
		return &events.InputAttempted{Attempt: a.attempt(&st.Inputs)}
	case "input.answered":
		if !st.Intent.Offers.Input { // of nobody's attempt
			return &events.InputAnswered{Attempt: 1, Outcome: events.CallOutcome(a.outcome)}
		}
		return &events.InputAnswered{Attempt: a.num("n", max(st.Inputs.Made, 1)), Outcome: events.CallOutcome(a.outcome), Call: a.call()}
	case "cleanup.requested":
		f := &events.CleanupRequested{Who: "team-a", JobID: st.Job.ID, Claim: events.ClaimOwn}
		if a.has("job") {
			f.JobID = a.m["job"]
		}
		if a.has("claim") {
			f.Claim = a.m["claim"]
		}
		return f
	case "cleanup.attempted":
		return &events.CleanupAttempted{Attempt: a.attempt(&st.Cleanups)}
	case "cleanup.answered":
		return &events.CleanupAnswered{Attempt: last(&st.Cleanups), Outcome: events.CallOutcome(a.outcome), Call: a.call()}
	case "deadline.passed":
		return &events.DeadlinePassed{Which: events.Deadline(a.outcome)}
	case "decision":
		f := &events.DecisionMade{
			Choice: events.DecisionKind(a.outcome), Who: "operator", JobID: a.m["job"], Claim: a.m["claim"],
			Which: events.Deadline(a.m["which"]), Until: a.time("until", time.Time{}), AcceptRisk: a.has("risk"),
		}
		if a.has("evidence") {
			f.Evidence = events.Sum([]byte("letter"))
		}
		return f
	case "step.deferred":
		f := &events.StepDeferred{Until: a.time("until", time.Time{}), Reason: events.DeferHold, Creates: a.has("creates")}
		if a.has("reason") {
			f.Reason = events.DeferReason(a.m["reason"])
		}
		return f
	case "operation.paused":
		return &events.OperationPaused{Who: "operator"}
	case "operation.resumed":
		return &events.OperationResumed{Who: "operator"}
	case "tags.changed":
		return &events.TagsChanged{Who: "team-a", Tags: []events.Tag{{Name: "a", Value: "b"}}}
	case "operation.linked":
		return &events.OperationLinked{Who: "team-a", Links: []events.Link{{Kind: events.LinkReplacedBy, Operation: "op_b"}}}
	case "unknown":
		return &events.Unknown{Name: "job.teleported.v1", Data: []byte{0x80}}
	}
	a.s.t.Fatalf("no fact %q", name)
	return nil
}

func (s *script) line(text string) string {
	s.t.Helper()
	words := strings.Fields(text)
	a := args{s: s, at: epoch.Add(s.duration(words[0])), m: map[string]string{}}
	for i, w := range words[2:] {
		key, value, assigned := strings.Cut(w, "=")
		if i == 0 && !assigned {
			a.outcome = key
		}
		a.m[key] = value
	}
	var r Record
	switch words[1] {
	case "unreadable":
		e := s.l.entry(a.at, &events.TagsChanged{})
		e.Event = events.Event{}
		e.Digest, e.Unreadable = events.Digest{}, errors.New("malformed")
		r = s.l.append(e)
	case "repeat": // the newest fact once more, as a journal that lost an acknowledgement might
		e := s.l.entry(a.at, s.l.entries[len(s.l.entries)-1].Event.Fact)
		e.Event.ID = s.l.entries[len(s.l.entries)-1].Event.ID
		r = s.l.append(e)
	case "chain_broken":
		e := s.l.entry(a.at, &events.TagsChanged{})
		e.Event.Previous = events.Sum([]byte("another"))
		r = s.l.append(e)
	default:
		r = s.l.fold(a.at, a.fact(words[1]))
	}
	return s.expectation(r)
}

func (s *script) expectation(r Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s by %s: %s", r.Verdict, r.Row, orNone(string(r.To)))
	st := &s.l.s
	if st.Quarantine != "" {
		fmt.Fprintf(&b, "(%s)", st.Quarantine)
	}
	if r.Reason != "" {
		fmt.Fprintf(&b, ", %s", r.Reason)
	}
	if st.Phase == r.From && st.Reason != "" && st.Reason != r.Reason {
		fmt.Fprintf(&b, ", as before %s", st.Reason)
	}
	for i, step := range Steps(*st) {
		b.WriteString([]string{" | next ", ", "}[min(i, 1)])
		b.WriteString(string(step.Kind))
		switch {
		case step.Which != "":
			b.WriteString(" " + string(step.Which))
		case step.Kind == StepRead:
			b.WriteString(" " + step.JobID + " (" + step.Prompt + ")")
		}
		fmt.Fprintf(&b, " at %v", step.At.Sub(epoch).Round(time.Second/10))
	}
	if st.Cancel.Wished {
		b.WriteString(" | wished")
		for _, flag := range []struct {
			on   bool
			name string
		}{{st.Cancel.Impossible, " impossible"}, {st.Cancel.TooLate, " too late"}, {st.Cancel.Repeat, " repeat"}} {
			if flag.on {
				b.WriteString(flag.name)
			}
		}
	}
	if st.Job.ID != "" {
		b.WriteString(" | job " + st.Job.ID)
	}
	if st.Round.Identity != "" {
		fmt.Fprintf(&b, " | as %s", st.Round.Identity)
		if st.Round.Again > 0 {
			fmt.Fprintf(&b, ", again %d", st.Round.Again)
		}
	}
	for _, v := range st.Prepared {
		b.WriteString(" | " + v.Name + " " + v.Value)
	}
	if list := Candidates(*st); len(list) > 0 {
		b.WriteString(" | candidates " + strings.Join(list, " "))
	}
	if status := st.InputStatus(); status != CallNone {
		fmt.Fprintf(&b, " | input %d %s", st.Input.Number, status)
	}
	if st.Input.Wanted {
		b.WriteString(" | input wanted")
	}
	if st.Input.Question != 0 {
		fmt.Fprintf(&b, " | question %d", st.Input.Question)
	}
	if status := st.CleanupStatus(); status != CallNone {
		fmt.Fprintf(&b, " | cleanup %d of %s %s", st.Cleanup.Number, st.Cleanup.JobID, status)
	}
	if list := Unfollowed(*st); len(list) > 0 {
		b.WriteString(" | strays " + strings.Join(list, " "))
	}
	return b.String()
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// play runs a script file and compares, or rewrites, its expectations.
func play(t *testing.T, path string) *ledger {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, []byte("# ")) {
		t.Errorf("%s: the first line must say what the script guards", path)
	}
	s := &script{t: t, l: newLedger(), intent: standard()}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "    => "):
			continue
		case line == "", strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
		case strings.HasPrefix(line, "set "):
			s.set(strings.Fields(line)[1:])
			out.WriteString(line + "\n")
		case line == "again": // a new operation from here
			s.l, s.intent = newLedger(), standard()
			out.WriteString(line + "\n")
		default:
			out.WriteString(line + "\n    => " + s.line(line) + "\n")
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return s.l
	}
	if out.String() == string(b) {
		return s.l
	}
	got, want := strings.Split(out.String(), "\n"), strings.Split(string(b), "\n")
	for i := range got {
		if i >= len(want) || got[i] != want[i] {
			t.Errorf("%s:%d:\n got %s\nwant %s", path, i+1, got[i], slices.Concat(want, make([]string, len(got)))[i])
		}
	}
	return s.l
}

func playAll(t *testing.T, directory string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", directory, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata/%s: %v", directory, err)
	}
	rows := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			play(t, file)
			for line := range strings.Lines(string(b)) {
				if _, rest, found := strings.Cut(line, " by "); found && strings.HasPrefix(line, "    => ") {
					row, _, _ := strings.Cut(rest, ":")
					rows[row] = true
				}
			}
		})
	}
	return rows
}

// Every row of the table, and the rules around it, as scripts.
func TestRows(t *testing.T) {
	rows := playAll(t, "rows")
	for _, row := range transitions {
		if !rows[row.ID] {
			t.Errorf("row %s is in no script", row.ID)
		}
	}
	for _, id := range []string{"0", "33", "rule 7"} {
		if !rows[id] {
			t.Errorf("row %s is in no script", id)
		}
	}
}

// The table of what is due when (DESIGN §5.1), as scripts.
func TestNext(t *testing.T) { playAll(t, "next") }

// Schedules that once lost or doubled a job, stranded an operation or turned
// in a circle.
func TestSchedules(t *testing.T) { playAll(t, "schedules") }

package projector

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func (h *hall) lose(s journal.Stream) { h.store.Store.(*memory.Store).Lose(s) }

func (h *hall) owner(job string) string {
	h.t.Helper()
	owner, _, err := h.journal.Owner(h.t.Context(), "example", "main", job)
	if err != nil {
		h.t.Fatal(err)
	}
	return owner
}

func (h *hall) facts(operation string, of events.Type) (list []events.Fact) {
	h.t.Helper()
	lines, err := h.journal.Timeline(h.t.Context(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range lines {
		if l.Entry.Event.Fact.Type() == of {
			list = append(list, l.Entry.Event.Fact)
		}
	}
	return list
}

// tenure is a fresh hold on one partition that has caught up and was swept.
func (h *hall) tenure(partition int) {
	h.t.Helper()
	w := h.open(h.projector(), partition)
	defer w.Close()
	h.catchUp(w)
	if err := w.Sweep(h.t.Context(), false); err != nil {
		h.t.Fatal(err)
	}
	h.catchUp(w)
}

func labelled(i *events.IntentRecorded) {
	i.ClientReference, i.Token, i.Session, i.Reference = "cfref", "token", "my session", "my reference"
}

// What the intent names is in INDEX before the first wake-up, and the jobs that
// facts call their own before the record of the fact.
func TestNamesComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		w := h.swept(h.projector(), partition)
		defer w.Close()
		h.create(ops[0], labelled)
		refuse := errors.New("refused")
		h.store.failing(func(s journal.Stream, subject string) error {
			if s == journal.Wakeups && subject != fmt.Sprintf("epoch.%02d", partition) {
				return refuse
			}
			return nil
		})
		if _, err := w.Step(t.Context(), 0); !errors.Is(err, refuse) {
			t.Fatal(err)
		}
		h.store.failing(nil)
		for _, reference := range []string{"cfref", "token"} {
			if got, ok, err := h.journal.Referred(t.Context(), "example", reference); got != ops[0] || !ok || err != nil {
				t.Error(reference, got, ok, err)
			}
		}
		for _, label := range []string{"my session", journal.ReferenceLabel("my reference")} {
			if got, more, err := h.journal.Labelled(t.Context(), "alice", label); !slices.Equal(got, ops) || more || err != nil {
				t.Error(label, got, more, err)
			}
		}

		// A job whose claim was lost before its fact was projected.
		h.accept(ops[0], "j-1")
		w = h.swept(h.projector(), partition)
		defer w.Close()
		if h.owner("j-1") != ops[0] {
			t.Error("the job is not claimed")
		}
	})
}

// Every entry comes back from the facts when INDEX is lost, also those of
// operations that have ended; but not what was claimed and never said in a fact.
func TestIndexIsDerivedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(4)
		ended, live, given, left := ops[0], ops[1], ops[2], ops[3]
		for i, op := range ops {
			h.create(op, labelled, func(r *events.IntentRecorded) {
				r.ClientReference, r.Token = fmt.Sprint("ref-", i), fmt.Sprint("token-", i)
				r.Offers.Cleanup, r.Rules = true, projections.RulesFor(events.Offers{Cleanup: true})
			})
			time.Sleep(time.Second)
		}
		h.accept(ended, "j-ended")
		h.put(ended, &events.DecisionMade{Choice: events.DecideAbandon, Who: "o", Why: events.Sum([]byte("why")), Sequence: h.state(ended).Sequence})
		h.accept(live, "j-live")
		h.put(live, &events.LookupAnswered{ // a second job of ours
			Outcome: events.LookupFound, Jobs: []events.FoundJob{{ID: "j-stray", Exact: true, Claim: events.ClaimOwn}},
			Call: events.Call{AsOf: h.state(live).Sequence, LeftAt: time.Now()},
		})
		h.put(given, &events.DecisionMade{Choice: events.DecideAdopt, JobID: "j-adopted", Claim: events.ClaimOwn, Who: "o", Why: events.Sum([]byte("why")), Sequence: h.state(given).Sequence})
		// Named by a webhook with our reference, and claimed by nobody.
		h.put(given, &events.WebhookReceived{EventID: "e", JobID: "j-named", Exact: true})
		// Named likewise, and claimed by who has it cleaned up: behind the end, and before it.
		h.put(ended, &events.WebhookReceived{EventID: "late", JobID: "j-late", Exact: true})
		h.put(ended, &events.CleanupRequested{Who: "o", JobID: "j-late", Claim: events.ClaimOwn})
		h.put(left, &events.WebhookReceived{EventID: "early", JobID: "j-early", Exact: true})
		h.put(left, &events.DecisionMade{Choice: events.DecideAbandon, Who: "o", Why: events.Sum([]byte("why")), Sequence: h.state(left).Sequence})
		h.put(left, &events.CleanupRequested{Who: "o", JobID: "j-early", Claim: events.ClaimOwn})
		h.tenure(partition)
		if s := h.state(left); s.Cleanup.JobID != "j-early" {
			t.Fatalf("%+v", s.Cleanup)
		}
		if s := h.state(live); !slices.Contains(s.Strays, "j-stray") {
			t.Fatalf("%+v", s.Strays)
		}
		check := func(when string) {
			for job, want := range map[string]string{"j-ended": ended, "j-live": live, "j-stray": live, "j-adopted": given, "j-named": "", "j-late": ended, "j-early": left} {
				if got := h.owner(job); got != want {
					t.Errorf("%s: %s belongs to %q, want %q", when, job, got, want)
				}
			}
			for i, op := range ops {
				if got, _, err := h.journal.Referred(t.Context(), "example", fmt.Sprint("token-", i)); got != op || err != nil {
					t.Error(when, got, err)
				}
			}
			newest := []string{ops[3], ops[2], ops[1], ops[0]}
			if got, _, err := h.journal.Labelled(t.Context(), "alice", "my session"); !slices.Equal(got, newest) || err != nil {
				t.Errorf("%s: %v %v", when, got, err)
			}
		}
		check("before")
		h.lose(journal.Index)
		facts := h.state(live).Facts
		h.tenure(partition)
		check("after")
		if h.state(live).Facts != facts {
			t.Error("deriving INDEX again appended something")
		}
	})
}

// Two operations hold one job by facts, because INDEX was lost in between. The
// later by the ledger is contested, whichever is swept first, and told once.
func TestTheLaterIsContested(t *testing.T) {
	// Two partitions, so that either can be first.
	var ops []string
	for i := 0; len(ops) < 2; i++ {
		op := fmt.Sprint("op_", i)
		if len(ops) == 0 || journal.Partition(op) != journal.Partition(ops[0]) {
			ops = append(ops, op)
		}
	}
	for _, ended := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			for _, first := range []int{0, 1} {
				t.Run(fmt.Sprintf("earlier ended %v, lost again %v, swept first %d", ended, lost, first), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := newHall(t)
						earlier, later := ops[0], ops[1]
						h.create(later) // the order of the intents says nothing
						h.create(earlier)
						h.accept(earlier, "j-1")
						if ended {
							h.put(earlier, &events.DecisionMade{Choice: events.DecideAbandon, Who: "o", Why: events.Sum([]byte("why")), Sequence: h.state(earlier).Sequence})
						}
						h.tenure(journal.Partition(earlier))
						h.lose(journal.Index)
						// A worker of the later one claims before any sweep, and says so.
						if claim, err := h.journal.Claim(t.Context(), "example", "main", "j-1", later); claim != events.ClaimOwn || err != nil {
							t.Fatal(claim, err)
						}
						h.accept(later, "j-1")
						if lost {
							h.lose(journal.Index)
						}
						for i := range 4 {
							h.tenure(journal.Partition(ops[(first+i)%2]))
						}
						if got := h.owner("j-1"); got != earlier {
							t.Errorf("the job belongs to %s", got)
						}
						contests := h.facts(later, events.TypeJobContested)
						if len(contests) != 1 || contests[0].(*events.JobContested).Owner != earlier || contests[0].(*events.JobContested).JobID != "j-1" {
							t.Errorf("%d contests: %+v", len(contests), contests)
						}
						if n := len(h.facts(earlier, events.TypeJobContested)); n != 0 {
							t.Errorf("the earlier one is contested %d times", n)
						}
						if s := h.state(later); s.Quarantine != projections.QuarantineConflict {
							t.Errorf("the later one is %s %s", s.Phase, s.Quarantine)
						}
						if s := h.state(earlier); s.Phase == projections.PhaseQuarantined {
							t.Error("the earlier one is quarantined")
						}
					})
				})
			}
		}
	}
}

// A claim whose fact never came gives way to a fact.
func TestClaimWithoutFactGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		h.create(ops[0])
		h.accept(ops[0], "j-1")
		if _, err := h.journal.Claim(t.Context(), "example", "main", "j-1", "op_nobody"); err != nil {
			t.Fatal(err)
		}
		h.tenure(partition)
		if got := h.owner("j-1"); got != ops[0] {
			t.Error(got)
		}
		if s := h.state(ops[0]); s.Phase != projections.PhaseAccepted {
			t.Error(s.Phase, s.Quarantine)
		}
	})
}

// A state that names a job no fact claims takes it from nobody.
func TestUnclaimedJobIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(2)
		h.create(ops[0])
		h.create(ops[1])
		h.accept(ops[0], "j-1")
		// The provider gives the second the first one's job.
		h.put(ops[1], &events.CreateAttempted{Attempt: attempted("p/r")},
			&events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j-1", Claim: ops[0], Call: events.Call{LeftAt: time.Now()}})
		h.tenure(partition)
		h.lose(journal.Index)
		h.tenure(partition)
		if got := h.owner("j-1"); got != ops[0] {
			t.Error(got)
		}
		if n := len(h.facts(ops[0], events.TypeJobContested)); n != 0 {
			t.Error("contested")
		}
	})
}

func arrival(key, job, reference string) journal.Arrival {
	return journal.Arrival{
		Provider: "example", Key: key, Accounts: []string{"main"}, Reference: reference, Time: time.Now(),
		Fact: events.WebhookReceived{EventID: key, JobID: job, Remote: "running"},
	}
}

// What is parked under a name is noted when the name is learnt, before the
// record of the fact that tells it, and once, whatever crashes in between.
func TestParkedIsCollected(t *testing.T) {
	for _, c := range []struct {
		name           string
		job, reference string
		accounts       []string
		noted          bool
	}{
		{"by job", "j-1", "", []string{"main"}, true},
		{"by reference", "", "cfref", []string{"other", "main"}, true},
		{"by both", "j-1", "token", []string{"main"}, true},
		{"of another account", "j-1", "cfref", []string{"other"}, false},
		{"of another job", "j-2", "", []string{"main"}, false},
		{"of nothing", "", "", []string{"main"}, false},
	} {
		for _, crash := range []string{"", "append", "unpark", "wake", "record"} {
			t.Run(c.name+" "+crash, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHall(t)
					partition, ops := partitioned(1)
					a := arrival("e-1", c.job, c.reference)
					a.Accounts = c.accounts
					if err := h.journal.Park(t.Context(), a, time.Hour); err != nil {
						t.Fatal(err)
					}
					h.create(ops[0], labelled)
					h.accept(ops[0], "j-1")
					refuse := errors.New("refused")
					h.store.failing(func(s journal.Stream, subject string) error {
						what := map[journal.Stream]string{journal.Ledger: "append", journal.History: "record", journal.Wakeups: "wake"}[s]
						switch {
						case s == journal.Index && len(subject) > 7 && subject[:7] == "parked.":
							what = "unpark"
						case len(subject) > 6 && subject[:6] == "epoch.", len(subject) > 9 && subject[len(subject)-9:] == ".takeover":
							return nil
						}
						if what == crash {
							return refuse
						}
						return nil
					})
					w := h.open(h.projector(), partition)
					for {
						if more, err := w.Step(t.Context(), 0); err != nil || !more {
							break
						}
					}
					w.Close()
					h.store.failing(nil)
					h.tenure(partition)
					h.tenure(partition)
					want := 0
					if c.noted {
						want = 1
					}
					if n := len(h.facts(ops[0], events.TypeWebhookReceived)); n != want {
						t.Errorf("noted %d times, want %d", n, want)
					}
					left, err := h.journal.Parked(t.Context(), "", "")
					if err != nil || c.noted != (len(left) == 0) {
						t.Errorf("%d are parked: %v", len(left), err)
					}
					if s := h.state(ops[0]); c.noted && (s.Phase != projections.PhaseAccepted || s.Prompt.Why != "webhook") {
						t.Error(s.Phase, s.Prompt)
					}
					time.Sleep(time.Hour + 3*time.Second)
					if left, err := h.journal.Parked(t.Context(), "", ""); len(left) != 0 || err != nil {
						t.Errorf("%d do not expire: %v", len(left), err)
					}
				})
			})
		}
	}
}

// The sweep looks parked events up again: one that was parked too late for
// whoever wrote the name, because both crashed.
func TestSweepLooksParkedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		h.create(ops[0], labelled)
		h.accept(ops[0], "j-1")
		h.tenure(partition)
		if err := h.journal.Park(t.Context(), arrival("e-1", "j-1", ""), time.Hour); err != nil {
			t.Fatal(err)
		}
		h.tenure(1)
		if n := len(h.facts(ops[0], events.TypeWebhookReceived)); n != 0 && partition != 1 {
			t.Fatal("another partition's sweep did it")
		}
		h.tenure(0)
		if n := len(h.facts(ops[0], events.TypeWebhookReceived)); n != 1 {
			t.Errorf("noted %d times", n)
		}
	})
}

// An event that matches several operations is noted on each and binds none.
func TestSeveralMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(2)
		h.create(ops[0], labelled)
		h.put(ops[0], &events.CreateAttempted{Attempt: attempted("p/r")})
		h.create(ops[1], func(i *events.IntentRecorded) { i.Account = "second" })
		if claim, err := h.journal.Claim(t.Context(), "example", "second", "j-1", ops[1]); claim != events.ClaimOwn || err != nil {
			t.Fatal(claim, err)
		}
		h.accept(ops[1], "j-1")
		a := arrival("e-1", "j-1", "cfref")
		a.Accounts = []string{"main", "second"}
		if err := h.journal.Park(t.Context(), a, time.Hour); err != nil {
			t.Fatal(err)
		}
		h.tenure(partition)
		for _, op := range ops {
			list := h.facts(op, events.TypeWebhookReceived)
			if len(list) != 1 || list[0].(*events.WebhookReceived).Exact {
				t.Errorf("%s: %+v", op, list)
			}
		}
		if s := h.state(ops[0]); s.Hint.JobID != "" || s.Job.ID != "" {
			t.Errorf("bound: %+v %+v", s.Hint, s.Job)
		}
		if s := h.state(ops[1]); s.Prompt.Why != "webhook" || s.Phase != projections.PhaseAccepted {
			t.Error(s.Phase, s.Prompt)
		}
	})
}

package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

// onBoth runs a test in a bubble on the double and on the embedded server.
func onBoth(t *testing.T, test func(*testing.T, journal.Store)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, memory.New(memory.Config{Now: time.Now, Late: func(string) time.Duration { return 100 * time.Millisecond }}))
		})
	})
	t.Run("server", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, provisioned(t)) })
	})
}

var ids atomic.Uint64 // test ids need only differ

func newJournal(s journal.Store) *journal.Journal {
	return journal.New(journal.Options{
		Store: s, Now: time.Now, Sleep: sleepFor,
		NewID: func() string { return fmt.Sprintf("id%d", ids.Add(1)) },
	})
}

func sleepFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func event(fact events.Fact) events.Event {
	return events.Event{ID: fmt.Sprintf("e%d", ids.Add(1)), Source: "/test", Fact: fact}
}

func intent(operation string) events.Event {
	e := event(&events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: "main", Rules: projections.Rules,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour},
		Policy:    events.Policy{PollInterval: time.Minute, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: 10 * time.Second, MaxAttempts: 5},
		Promises:  events.Promises{Guarantee: events.Deduplicated},
	})
	e.Operation = operation
	return e
}

func permit(number uint64) events.Event {
	return event(&events.CreateAttempted{Attempt: events.Attempt{
		Number: number, Timeout: 10 * time.Second, NotAfter: time.Now().Add(10 * time.Second), Owner: "test",
	}})
}

func evidence() events.Event { return event(&events.CancelRequested{Who: "alice"}) }

func create(t *testing.T, j *journal.Journal, operation string) projections.State {
	t.Helper()
	s, outcome, err := j.Create(t.Context(), intent(operation))
	if err != nil || outcome != journal.Stored {
		t.Fatalf("create %s: %v, %v", operation, outcome, err)
	}
	return s
}

// ledgerIDs lists the fact ids of an operation in order and fails on a broken
// chain.
func ledgerIDs(t *testing.T, j *journal.Journal, operation string) []string {
	t.Helper()
	lines, err := j.Timeline(t.Context(), operation)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	head := events.ChainStart(operation)
	for _, l := range lines {
		if l.Entry.Unreadable != nil || l.Entry.Event.Previous != head {
			t.Fatalf("fact %d of %s: chain broken or unreadable: %v", l.Entry.Sequence, operation, l.Entry.Unreadable)
		}
		head = l.Entry.Digest
		list = append(list, l.Entry.Event.ID)
	}
	return list
}

// script answers the writes of one stream with the given faults, in order, and
// lets everything else through.
func script(stream journal.Stream, faults ...memory.Fault) func(memory.Call) memory.Fault {
	var mu sync.Mutex
	return func(c memory.Call) memory.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Op != memory.OpPublish || c.Stream != stream || len(faults) == 0 {
			return memory.Fault{}
		}
		f := faults[0]
		faults = faults[1:]
		return f
	}
}

// all combinations of up to three faults of a write.
func faultRuns() [][]memory.Fault {
	kinds := []memory.Fault{
		{Kind: memory.Undone}, {Kind: memory.Done}, {Kind: memory.Late}, {Kind: memory.Late, After: 1}, {Kind: memory.InFlight}, {Kind: memory.Unavailable},
	}
	var runs [][]memory.Fault
	for _, a := range kinds {
		runs = append(runs, []memory.Fault{a})
		for _, b := range kinds {
			runs = append(runs, []memory.Fault{a, b})
		}
	}
	return runs
}

func TestAppendEndsInStoredWhateverTheAnswersAre(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		for i, run := range faultRuns() {
			for kind, make := range map[string]func() events.Event{"permit": func() events.Event { return permit(1) }, "evidence": evidence} {
				operation := fmt.Sprintf("op_%s%d", kind, i)
				plain := newJournal(store)
				before := create(t, plain, operation)
				faulty := memory.Inject(store, script(journal.Ledger, run...))
				e := make()
				s, outcome, err := newJournal(faulty).Append(t.Context(), before, e)
				if err != nil || outcome != journal.Stored {
					t.Fatalf("%s under %v: %v, %v", kind, run, outcome, err)
				}
				faulty.Land(t.Context())
				if got := ledgerIDs(t, plain, operation); len(got) != 2 || got[1] != e.ID {
					t.Fatalf("%s under %v: the ledger holds %v, want %s once", kind, run, got, e.ID)
				}
				now, err := plain.Current(t.Context(), operation)
				if err != nil || now.Sequence != s.Sequence || now.Head != s.Head || now.Phase != s.Phase {
					t.Fatalf("%s under %v: state returned %d, current %d, %v", kind, run, s.Sequence, now.Sequence, err)
				}
			}
		}
	})
}

// Another fact gets in between the state and the append, while the append's
// own answers are lost in every way.
func TestConflictsDropPermitsAndKeepEvidence(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		runs := append(faultRuns(), nil)
		for i, run := range runs {
			operation := fmt.Sprintf("op_%d", i)
			plain := newJournal(store)
			stale := create(t, plain, operation)
			other := evidence()
			if _, outcome, err := plain.Append(t.Context(), stale, other); err != nil || outcome != journal.Stored {
				t.Fatal(outcome, err)
			}

			faulty := memory.Inject(store, script(journal.Ledger, run...))
			p := permit(1)
			s, outcome, err := newJournal(faulty).Append(t.Context(), stale, p)
			if err != nil || outcome != journal.Superseded || s.Facts != 2 {
				t.Fatalf("permit under %v: %v, %v, state of %d facts", run, outcome, err, s.Facts)
			}
			faulty.Land(t.Context())

			faulty = memory.Inject(store, script(journal.Ledger, run...))
			e := evidence()
			s, outcome, err = newJournal(faulty).Append(t.Context(), stale, e)
			if err != nil || outcome != journal.Stored || s.Facts != 3 {
				t.Fatalf("evidence under %v: %v, %v, state of %d facts", run, outcome, err, s.Facts)
			}
			faulty.Land(t.Context())
			// A second author of the same evidence does not store it again.
			if _, outcome, err = plain.Append(t.Context(), stale, e); err != nil || outcome != journal.Stored {
				t.Fatalf("same evidence again: %v, %v", outcome, err)
			}
			if got := ledgerIDs(t, plain, operation); !slices.Equal(got[1:], []string{other.ID, e.ID}) {
				t.Fatalf("under %v the ledger holds %v", run, got)
			}
		}
	})
}

func TestLoserOfACreateGetsTheWinner(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		for i, run := range append(faultRuns(), nil) {
			operation := fmt.Sprintf("op_%d", i)
			plain := newJournal(store)
			winner := create(t, plain, operation)
			faulty := memory.Inject(store, script(journal.Ledger, run...))
			s, outcome, err := newJournal(faulty).Create(t.Context(), intent(operation))
			if err != nil || outcome != journal.Superseded || s.Head != winner.Head {
				t.Fatalf("under %v: %v, %v", run, outcome, err)
			}
			faulty.Land(t.Context())
			if got := ledgerIDs(t, plain, operation); len(got) != 1 {
				t.Fatalf("under %v the ledger holds %v", run, got)
			}
		}
	})
}

func TestDoubtAtTheEndOfTheContextIsSaid(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		plain := newJournal(store)
		s := create(t, plain, "op_a")
		down := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpPublish {
				return memory.Fault{Kind: memory.Late, After: 1 << 30}
			}
			return memory.Fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e := evidence()
		_, outcome, err := newJournal(down).Append(ctx, s, e)
		if outcome != journal.Unsettled || !errors.Is(err, journal.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v, %v", outcome, err)
		}
		// It lands after all, and its author's next try finds it.
		down.Land(t.Context())
		after, outcome, err := plain.Append(t.Context(), s, e)
		if err != nil || outcome != journal.Stored || after.Facts != 2 {
			t.Fatalf("%v, %v, %d facts", outcome, err, after.Facts)
		}

		// Refused and never in doubt: nothing is stored, and it says no more.
		refusing := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpPublish {
				return memory.Fault{Kind: memory.Unavailable}
			}
			return memory.Fault{}
		})
		_, outcome, err = newJournal(refusing).Append(t.Context(), after, evidence())
		if outcome != journal.Unsettled || err == nil || errors.Is(err, journal.ErrUnknown) {
			t.Fatalf("refused: %v, %v", outcome, err)
		}
	})
}

func TestReadFailuresAfterAnAppendAreWaitedOut(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		s := create(t, newJournal(store), "op_a")
		reads := 0
		flaky := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpNext {
				if reads++; reads < 4 {
					return memory.Fault{Kind: memory.Unavailable}
				}
			}
			return memory.Fault{}
		})
		s, outcome, err := newJournal(flaky).Append(t.Context(), s, evidence())
		if err != nil || outcome != journal.Stored || s.Facts != 2 {
			t.Fatalf("%v, %v, %d facts", outcome, err, s.Facts)
		}
		blind := memory.Inject(store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpNext {
				return memory.Fault{Kind: memory.Unavailable}
			}
			return memory.Fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, outcome, err := newJournal(blind).Append(ctx, s, permit(1)); err == nil || outcome != journal.Stored {
			t.Fatalf("stored but not read back: %v, %v", outcome, err)
		}
	})
}

func TestLedgerBehindTheStateIsSaid(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		s := create(t, j, "op_a")
		s.Sequence += 5
		if _, _, err := j.Append(t.Context(), s, evidence()); !errors.Is(err, journal.ErrLedgerBehind) {
			t.Fatalf("got %v", err)
		}
		s.Operation = "op_lost"
		if _, _, err := j.Append(t.Context(), s, permit(1)); !errors.Is(err, journal.ErrLedgerBehind) {
			t.Fatalf("got %v", err)
		}
	})
}

// Many authors at once, with random faults: every stored permit stands right
// behind the state it was decided on, no superseded one is in the ledger, each
// piece of evidence is in it once.
func TestConcurrentAppendsKeepTheModel(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		const authors, rounds, operations = 8, 25, 3
		plain := newJournal(store)
		for o := range operations {
			create(t, plain, fmt.Sprintf("op_%d", o))
		}
		type made struct {
			e       events.Event
			behind  events.Digest
			outcome journal.Outcome
		}
		results := make([][]made, authors)
		faulties := make([]*memory.Faulty, authors)
		var group sync.WaitGroup
		for a := range authors {
			r := rand.New(rand.NewPCG(1, uint64(a)))
			faulties[a] = memory.Inject(store, func(c memory.Call) memory.Fault {
				if c.Op != memory.OpPublish && r.IntN(10) > 0 || r.IntN(3) > 0 {
					return memory.Fault{}
				}
				return memory.Fault{Kind: memory.Kind(r.IntN(6)), After: r.IntN(3)}
			})
			j := newJournal(faulties[a])
			group.Go(func() {
				for range rounds {
					operation := fmt.Sprintf("op_%d", r.IntN(operations))
					s, err := plain.Current(t.Context(), operation)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
					e := evidence()
					if r.IntN(2) == 0 {
						e = permit(1)
					}
					e.Operation = operation
					after, outcome, err := j.Append(t.Context(), s, e)
					if err != nil || outcome == journal.Unsettled {
						t.Errorf("append: %v, %v", outcome, err)
						return
					}
					if after.Sequence <= s.Sequence {
						t.Errorf("state went from %d to %d", s.Sequence, after.Sequence)
					}
					results[a] = append(results[a], made{e, s.Head, outcome})
				}
			})
		}
		group.Wait()
		for _, f := range faulties {
			f.Land(t.Context())
		}
		count := map[string]int{}
		behind := map[string]events.Digest{}
		for o := range operations {
			operation := fmt.Sprintf("op_%d", o)
			ledgerIDs(t, plain, operation)
			lines, err := plain.Timeline(t.Context(), operation)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				count[l.Entry.Event.ID]++
				behind[l.Entry.Event.ID] = l.Entry.Event.Previous
			}
		}
		superseded := 0
		for _, list := range results {
			for _, m := range list {
				want := 1
				if m.outcome == journal.Superseded {
					want = 0
					superseded++
				}
				if count[m.e.ID] != want {
					t.Errorf("%s %s ended %v and is %d times in the ledger", m.e.Fact.Type(), m.e.ID, m.outcome, count[m.e.ID])
				}
				if m.e.Fact.Kind() == events.Permit && want == 1 && behind[m.e.ID] != m.behind {
					t.Errorf("permit %s stands behind another fact than it was decided on", m.e.ID)
				}
			}
		}
		if superseded == 0 {
			t.Error("no author met another: the test shows nothing")
		}
	})
}

func TestUnreadableFactsStopNothingButTheirOperation(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		s := create(t, j, "op_a")
		for _, m := range []journal.Outgoing{
			{Data: []byte("no fact")},
			{Header: map[string][]string{"ce-id": {"x"}}, Data: []byte{0xc1}},
		} {
			m.Subject = fmt.Sprintf("facts.0.%02d.op_a", journal.Partition("op_a"))
			if _, err := store.Publish(t.Context(), journal.Ledger, m); err != nil {
				t.Fatal(err)
			}
		}
		foreign := evidence()
		foreign.Operation = "op_other"
		header, data, _ := events.Encode(foreign)
		if _, err := store.Publish(t.Context(), journal.Ledger, journal.Outgoing{
			Subject: fmt.Sprintf("facts.0.%02d.op_a", journal.Partition("op_a")), Header: header, Data: data,
		}); err != nil {
			t.Fatal(err)
		}
		s, err := j.Catch(t.Context(), s)
		if err != nil || s.Facts != 4 || s.Operation != "op_a" || s.Quarantine != projections.QuarantineUnreadable {
			t.Fatalf("%v: %d facts, phase %s", err, s.Facts, s.Phase)
		}
		if _, outcome, err := j.Append(t.Context(), s, evidence()); err != nil || outcome != journal.Stored {
			t.Fatal(outcome, err)
		}
		again, err := j.Current(t.Context(), "op_a")
		if err != nil || again.Facts != 5 {
			t.Fatal(again.Facts, err)
		}
	})
}

func TestClaims(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		for i, run := range append(faultRuns(), nil) {
			job := fmt.Sprintf("job/%d with *.> and spaces", i)
			plain := newJournal(store)
			if _, found, err := plain.Owner(t.Context(), "example", "main", job); found || err != nil {
				t.Fatal(found, err)
			}
			faulty := memory.Inject(store, script(journal.Index, run...))
			for _, c := range []struct{ operation, want string }{{"op_a", events.ClaimOwn}, {"op_a", events.ClaimOwn}, {"op_b", "op_a"}} {
				claim, err := newJournal(faulty).Claim(t.Context(), "example", "main", job, c.operation)
				if err != nil || claim != c.want {
					t.Fatalf("%s under %v: %q, %v", c.operation, run, claim, err)
				}
			}
			faulty.Land(t.Context())
			if owner, found, err := plain.Owner(t.Context(), "example", "main", job); owner != "op_a" || !found || err != nil {
				t.Fatalf("owner %q, %v, %v", owner, found, err)
			}
			// Another account's job of the same name is another job.
			if claim, err := plain.Claim(t.Context(), "example", "other", job, "op_b"); claim != events.ClaimOwn || err != nil {
				t.Fatal(claim, err)
			}
		}
	})
}

func TestWebhooksAreStoredOnceAndHandedOutUntilAcknowledged(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		plain := newJournal(store)
		header := map[string][]string{"Webhook-Id": {"a\r\nNats-Rollup: all", "b"}, "Nats-Rollup": {"all"}}
		for i, run := range [][]memory.Fault{nil, {{Kind: memory.Done}}, {{Kind: memory.Undone}}, {{Kind: memory.Unavailable}}, {{Kind: memory.Late}}} {
			key := fmt.Sprintf("msg %d.*", i)
			faulty := memory.Inject(store, script(journal.Webhooks, run...))
			fresh, err := newJournal(faulty).StoreWebhook(t.Context(), "example", key, header, []byte(key))
			if wantError := len(run) > 0 && run[0].Kind != memory.Done; wantError != (err != nil) || fresh == wantError {
				t.Fatalf("under %v: fresh %v, %v", run, fresh, err)
			}
			faulty.Land(t.Context())
			if fresh, err = plain.StoreWebhook(t.Context(), "example", key, header, []byte(key)); err != nil || fresh && err == nil && (len(run) == 0 || run[0].Kind == memory.Done || run[0].Kind == memory.Late) {
				t.Fatalf("again after %v: fresh %v, %v", run, fresh, err)
			}
		}
		queue, err := plain.Webhooks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // a server's queue hears late
		list, err := queue.Fetch(t.Context(), 10, 0)
		if err != nil || len(list) != 5 {
			t.Fatalf("%d webhooks, %v", len(list), err)
		}
		for _, w := range list {
			if w.Provider != "example" || w.Key != string(w.Body) || w.Delivered != 1 || w.Header["Nats-Rollup"][0] != "all" ||
				!slices.Equal(w.Header["Webhook-Id"], []string{"a  Nats-Rollup: all", "b"}) {
				t.Fatalf("%+v", w)
			}
			if err := w.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		if list, err = queue.Fetch(t.Context(), 10, 0); err != nil || len(list) != 0 {
			t.Fatalf("%d webhooks after their acknowledgement, %v", len(list), err)
		}
	})
}

func TestPayloads(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		plain := newJournal(store)
		large := make([]byte, 1<<20+777)
		for i := range large {
			large[i] = byte(i * i >> 3)
		}
		for i, run := range append(faultRuns(), nil) {
			sizes := []int{0, 512<<10 + 1}
			if i%12 == 0 { // the server writes them all
				sizes = []int{1, 512 << 10, len(large)}
			}
			for _, size := range sizes {
				data := append([]byte(fmt.Sprint(i)), large[:size]...)
				faulty := memory.Inject(store, script(journal.Payloads, run...))
				d, err := newJournal(faulty).PutPayload(t.Context(), data)
				if err != nil || d != events.Sum(data) {
					t.Fatalf("put %d bytes under %v: %v", size, run, err)
				}
				faulty.Land(t.Context())
				if _, err := plain.PutPayload(t.Context(), data); err != nil {
					t.Fatalf("put again: %v", err)
				}
				if got, err := plain.Payload(t.Context(), d); err != nil || string(got) != string(data) {
					t.Fatalf("read %d bytes: %d, %v", size, len(got), err)
				}
			}
		}
		missing := events.Sum([]byte("missing"))
		if _, err := plain.Payload(t.Context(), missing); !errors.Is(err, journal.ErrNoPayload) {
			t.Fatalf("missing: %v", err)
		}
		if _, err := store.Publish(t.Context(), journal.Payloads, journal.Outgoing{Subject: "payloads." + missing.String(), Data: []byte("other")}); err != nil {
			t.Fatal(err)
		}
		if _, err := plain.Payload(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "another digest") {
			t.Fatalf("changed bytes: %v", err)
		}
	})
}

func TestNamesThatWouldChangeASubjectAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Now: time.Now})
		j := newJournal(store)
		for _, bad := range []string{"", "a.b", "*", ">", "Op", "op a", "takeover", strings.Repeat("a", 65), "ä", "op\n"} {
			_, currentErr := j.Current(t.Context(), bad)
			_, _, createErr := j.Create(t.Context(), intent(bad))
			_, timelineErr := j.Timeline(t.Context(), bad)
			_, _, pendingErr := j.PendingWake(t.Context(), bad)
			_, claimErr := j.Claim(t.Context(), "example", "main", "job", bad)
			checks := []error{currentErr, createErr, timelineErr, pendingErr, claimErr}
			if bad != "takeover" { // a provider may have that name
				_, leasesErr := j.Leases(t.Context(), bad)
				_, webhookErr := j.StoreWebhook(t.Context(), bad, "key", nil, nil)
				_, accountErr := j.Claim(t.Context(), "example", bad, "job", "op_a")
				_, _, ownerErr := j.Owner(t.Context(), bad, "main", "job")
				checks = append(checks, leasesErr, webhookErr, accountErr, ownerErr)
			}
			for i, err := range checks {
				if !errors.Is(err, journal.ErrBadName) {
					t.Errorf("check %d of %q: %v", i, bad, err)
				}
			}
		}
	})
}

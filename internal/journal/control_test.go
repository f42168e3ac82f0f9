package journal_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func placed(scope events.HoldScope) events.ServiceEvent {
	return events.ServiceEvent{
		ID: fmt.Sprintf("e%d", ids.Add(1)), Source: "/test", Actor: "alice",
		Fact: &events.HoldPlaced{Scope: scope, Who: "alice", KeyID: "k1", Why: events.Sum([]byte("why"))},
	}
}

func released() events.ServiceEvent {
	return events.ServiceEvent{ID: fmt.Sprintf("e%d", ids.Add(1)), Source: "/test", Fact: &events.HoldReleased{Who: "bob"}}
}

// hold folds the facts of one hold as they are stored.
func hold(t *testing.T, j *journal.Journal, provider string) projections.Hold {
	t.Helper()
	facts, err := j.HoldFacts(t.Context(), provider)
	if err != nil {
		t.Fatal(err)
	}
	h := projections.Hold{Provider: provider}
	for _, f := range facts {
		h = projections.FoldHold(h, f)
	}
	return h
}

func addHold(t *testing.T, j *journal.Journal, provider string, e events.ServiceEvent) projections.Hold {
	t.Helper()
	h, outcome, err := j.AppendHold(t.Context(), hold(t, j, provider), e)
	if err != nil || outcome != journal.Stored {
		t.Fatal(outcome, err)
	}
	return h
}

func scopes(t *testing.T, j *journal.Journal) []string {
	t.Helper()
	list, err := j.Holds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range list {
		out = append(out, h.Provider+":"+string(h.Scope))
	}
	return out
}

func TestHoldsAreKept(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		end, err := j.ControlEnd(t.Context())
		if err != nil || end != (journal.ControlEnd{}) || len(scopes(t, j)) != 0 {
			t.Fatal(end, err, scopes(t, j))
		}
		if err := j.RememberProvider(t.Context(), "hold"); err != nil { // a name like the subject's
			t.Fatal(err)
		}
		for _, c := range []struct {
			provider string
			e        events.ServiceEvent
			want     []string
		}{
			{"two", placed("creates"), []string{"two:creates"}},
			{"", placed("creates"), []string{":creates", "two:creates"}},
			{"one", placed("all"), []string{":creates", "two:creates", "one:all"}},
			{"two", placed("all"), []string{":creates", "two:all", "one:all"}},
			{"", released(), []string{"two:all", "one:all"}},
			{"two", released(), []string{"one:all"}},
			{"hold", placed("all"), []string{"one:all", "hold:all"}},
		} {
			before := end
			h := addHold(t, j, c.provider, c.e)
			if got := scopes(t, j); !slices.Equal(got, c.want) {
				t.Fatalf("holds %v, want %v", got, c.want)
			}
			if again := hold(t, j, c.provider); again != h {
				t.Fatalf("the hold is %+v, was answered as %+v", again, h)
			}
			if end, err = j.ControlEnd(t.Context()); err != nil || end == before || end.Sequence != h.Sequence {
				t.Fatalf("the end is %+v, %v, was %+v", end, err, before)
			}
		}
		one := hold(t, j, "one")
		if one.Who != "alice" || one.KeyID != "k1" || one.Why != events.Sum([]byte("why")) || one.Since.IsZero() || one.Facts != 1 {
			t.Fatalf("%+v", one)
		}
		if list, err := j.Providers(t.Context()); err != nil || !slices.Equal(list, []string{"hold"}) {
			t.Fatal("a hold is taken for a provider", list, err)
		}
	})
}

// Each fact goes in at the sequence of the hold it was decided on, whatever the
// answers to the write are, and once.
func TestAppendHoldEndsInStoredOrSuperseded(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		for i, run := range faultRuns() {
			provider := fmt.Sprintf("p%d", i)
			plain := newJournal(store)
			first := addHold(t, plain, provider, placed("creates"))
			faulty := memory.Inject(store, script(journal.Control, run...))
			e := placed("all")
			h, outcome, err := newJournal(faulty).AppendHold(t.Context(), first, e)
			if err != nil || outcome != journal.Stored || h.Scope != events.HoldAll {
				t.Fatalf("under %v: %+v, %v, %v", run, h, outcome, err)
			}
			faulty.Land(t.Context())
			if now := hold(t, plain, provider); now != h || now.Facts != 2 || now.Unreadable != "" {
				t.Fatalf("under %v: %+v, answered as %+v", run, now, h)
			}
			// The same state again: another came first, nothing is stored.
			faulty = memory.Inject(store, script(journal.Control, run...))
			after, outcome, err := newJournal(faulty).AppendHold(t.Context(), first, released())
			faulty.Land(t.Context())
			if err != nil || outcome != journal.Superseded || after != h || hold(t, plain, provider) != h {
				t.Fatalf("a stale release under %v: %+v, %v, %v", run, after, outcome, err)
			}
		}
	})
}

func TestHoldsPlacedAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		var wait sync.WaitGroup
		var mu sync.Mutex
		stored := 0
		for range 8 {
			wait.Go(func() {
				h, outcome, err := j.AppendHold(t.Context(), projections.Hold{Provider: "example"}, placed("creates"))
				mu.Lock()
				defer mu.Unlock()
				if err != nil || h.Scope != events.HoldCreates {
					t.Error(h, outcome, err)
				}
				if outcome == journal.Stored {
					stored++
				}
			})
		}
		wait.Wait()
		if h := hold(t, j, "example"); stored != 1 || h.Facts != 1 {
			t.Errorf("%d stored, %d facts; want 1 and 1", stored, h.Facts)
		}
	})
}

// What is no fact holds everything of its subject and nothing of another's.
func TestUnreadableHoldsHold(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		addHold(t, j, "one", placed("creates"))
		later := placed("creates")
		later.Subject = events.HoldSubject("two")
		header, data, _ := events.EncodeService(later)
		header["ce-type"] = []string{"dev.counterfoil.hold.placed.v9"}
		for _, m := range []journal.Outgoing{
			{Subject: "control.hold-one", Data: []byte("no fact")},
			{Subject: "control.hold-two", Header: header, Data: data},
		} {
			if _, err := store.Publish(t.Context(), journal.Control, m); err != nil {
				t.Fatal(err)
			}
		}
		if got := scopes(t, j); !slices.Equal(got, []string{"one:all", "two:all"}) {
			t.Fatal(got)
		}
		for _, provider := range []string{"one", "two"} {
			if h := addHold(t, j, provider, released()); h.Scope != events.HoldNone || h.Unreadable != "" {
				t.Fatalf("a release behind it: %+v", h)
			}
		}
		if got := scopes(t, j); len(got) != 0 {
			t.Fatal(got)
		}
	})
}

func TestHoldNamesAreChecked(t *testing.T) {
	j := newJournal(memory.New(memory.Config{Now: time.Now}))
	for _, bad := range []string{"a.b", "*", ">", "A", "a b"} {
		if _, err := j.HoldFacts(t.Context(), bad); !errors.Is(err, journal.ErrBadName) {
			t.Errorf("%q: %v", bad, err)
		}
		if _, _, err := j.AppendHold(t.Context(), projections.Hold{Provider: bad}, placed("all")); !errors.Is(err, journal.ErrBadName) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What is known of keys is theirs alone: no hold and no provider, each at the
// sequence it was decided on.
func TestKeysAreKept(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		if err := j.RememberProvider(t.Context(), "key-a"); err != nil { // a name like the subject's
			t.Fatal(err)
		}
		addHold(t, j, "a", placed("creates"))
		fact := func(team string) events.ServiceEvent {
			return events.ServiceEvent{
				ID: fmt.Sprintf("e%d", ids.Add(1)), Source: "/test",
				Fact: &events.KeyChanged{KeyID: "a", Principal: "alice", Scopes: []string{"read:own"}, Team: team},
			}
		}
		add := func(r journal.KeyRecord, e events.ServiceEvent, want journal.Outcome) {
			t.Helper()
			if outcome, err := j.AppendKey(t.Context(), r, e); err != nil || outcome != want {
				t.Fatal(outcome, err)
			}
		}
		known := func(team string) journal.KeyRecord {
			t.Helper()
			list, err := j.Keys(t.Context())
			if r := list["a"]; err != nil || len(list) != 1 || r.ID != "a" || r.Fact == nil || r.Fact.Team != team || r.Fact.Principal != "alice" {
				t.Fatalf("%+v, %v", list, err)
			}
			return list["a"]
		}
		add(journal.KeyRecord{ID: "a"}, fact("one"), journal.Stored)
		first := known("one")
		add(journal.KeyRecord{ID: "a"}, fact("two"), journal.Superseded) // another process was first
		known("one")
		add(first, fact("two"), journal.Stored)
		add(first, fact("three"), journal.Superseded)
		last := known("two")
		// One of a later version is no fact to this one, and the next follows it.
		if err := func() error {
			header, data, _ := events.EncodeService(fact("x"))
			header["ce-type"] = []string{"dev.counterfoil.key.changed.v9"}
			_, err := store.Publish(t.Context(), journal.Control, journal.Outgoing{Subject: "control.key-a", Header: header, Data: data})
			return err
		}(); err != nil {
			t.Fatal(err)
		}
		list, err := j.Keys(t.Context())
		if r, ok := list["a"]; err != nil || !ok || r.Fact != nil {
			t.Fatalf("%+v, %v", list, err)
		}
		add(last, fact("three"), journal.Superseded)
		add(list["a"], fact("three"), journal.Stored)
		known("three")
		if list, err := j.Providers(t.Context()); err != nil || !slices.Equal(list, []string{"key-a"}) {
			t.Fatal("a key is taken for a provider", list, err)
		}
		if got := scopes(t, j); !slices.Equal(got, []string{"a:creates"}) {
			t.Fatalf("holds %v", got)
		}
		if _, err := j.AppendKey(t.Context(), journal.KeyRecord{ID: "a.b"}, fact("x")); err == nil {
			t.Error("an id with a dot became part of a subject")
		}
	})
}

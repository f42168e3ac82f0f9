package projections_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// holdEntry makes the next entry of a hold as its author would.
func holdEntry(h projections.Hold, fact events.ServiceFact, at time.Time) projections.HoldEntry {
	e := events.ServiceEvent{ID: "f", Source: "/ingest/1", Subject: events.HoldSubject(h.Provider), Time: at, Previous: h.Head, Fact: fact}
	if h.Facts == 0 {
		e.Previous = events.ChainStart(e.Subject)
	}
	_, _, digest := events.EncodeService(e)
	return projections.HoldEntry{Sequence: h.Sequence + 1, Time: at, Event: e, Digest: digest}
}

func TestFoldHold(t *testing.T) {
	at := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	place := func(scope events.HoldScope, who string) events.ServiceFact {
		return &events.HoldPlaced{Scope: scope, Who: who}
	}
	release := &events.HoldReleased{Who: "carol"}
	for _, c := range []struct {
		name  string
		facts []events.ServiceFact
		scope events.HoldScope
		who   string
		since int // index of the fact that set it
	}{
		{"nothing", nil, events.HoldNone, "", 0},
		{"placed", []events.ServiceFact{place("creates", "alice")}, events.HoldCreates, "alice", 0},
		{"placed twice", []events.ServiceFact{place("creates", "alice"), place("creates", "bob")}, events.HoldCreates, "alice", 0},
		{"made stronger", []events.ServiceFact{place("creates", "alice"), place("all", "bob")}, events.HoldAll, "bob", 1},
		{"made weaker", []events.ServiceFact{place("all", "alice"), place("creates", "bob")}, events.HoldCreates, "bob", 1},
		{"released", []events.ServiceFact{place("all", "alice"), release}, events.HoldNone, "", 0},
		{"released twice", []events.ServiceFact{place("all", "alice"), release, release}, events.HoldNone, "", 0},
		{"released first", []events.ServiceFact{release, place("all", "alice")}, events.HoldAll, "alice", 1},
		{"placed again", []events.ServiceFact{place("all", "alice"), release, place("all", "bob")}, events.HoldAll, "bob", 2},
		{"a scope of a later version", []events.ServiceFact{place("reads", "alice")}, events.HoldAll, "alice", 0},
		{"no scope", []events.ServiceFact{place("", "alice")}, events.HoldAll, "alice", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := projections.Hold{Provider: "example"}
			for i, f := range c.facts {
				h = projections.FoldHold(h, holdEntry(h, f, at.Add(time.Duration(i)*time.Minute)))
			}
			if h.Scope != c.scope || h.Who != c.who || h.Unreadable != "" || h.Facts != uint64(len(c.facts)) {
				t.Errorf("got %+v", h)
			}
			want := time.Time{}
			if c.scope != events.HoldNone {
				want = at.Add(time.Duration(c.since) * time.Minute)
			}
			if !h.Since.Equal(want) {
				t.Errorf("since %s, want %s", h.Since, want)
			}
		})
	}
}

// What cannot be read holds everything, until somebody says otherwise behind it.
func TestFoldHoldUnreadable(t *testing.T) {
	at := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	base := projections.FoldHold(projections.Hold{}, holdEntry(projections.Hold{}, &events.HoldPlaced{Scope: "creates", Who: "alice"}, at))
	next := func(change func(*projections.HoldEntry)) projections.HoldEntry {
		e := holdEntry(base, &events.HoldReleased{Who: "mallory"}, at.Add(time.Minute))
		change(&e)
		return e
	}
	for name, e := range map[string]projections.HoldEntry{
		"unreadable": next(func(e *projections.HoldEntry) { e.Unreadable = events.ErrUnknownType }),
		"chain":      next(func(e *projections.HoldEntry) { e.Event.Previous = events.Sum([]byte("other")) }),
		"subject":    next(func(e *projections.HoldEntry) { e.Event.Subject = "providers/example" }),
		"no fact":    next(func(e *projections.HoldEntry) { e.Event.Fact = nil }),
	} {
		h := projections.FoldHold(base, e)
		if h.Scope != events.HoldAll || h.Unreadable == "" || h.Who != "" || !h.Since.Equal(e.Time) {
			t.Errorf("%s: %+v", name, h)
		}
		placed := projections.FoldHold(h, holdEntry(h, &events.HoldPlaced{Scope: "all", Who: "alice"}, at.Add(time.Hour)))
		if placed.Scope != events.HoldAll || placed.Unreadable != "" || placed.Who != "alice" {
			t.Errorf("%s, then placed: %+v", name, placed)
		}
		if free := projections.FoldHold(h, holdEntry(h, &events.HoldReleased{Who: "alice"}, at.Add(time.Hour))); free.Scope != events.HoldNone || free.Unreadable != "" {
			t.Errorf("%s, then released: %+v", name, free)
		}
	}
}

// Whatever facts come in whatever order: the fold says something, says it twice
// the same, leaves nothing open that it could not read, and never lets one
// provider's hold touch another's.
func TestHoldProperties(t *testing.T) {
	scopes := []events.HoldScope{"", "creates", "all", "later"}
	at := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		providers := []string{"", "one", "two"}
		held := map[string]projections.Hold{}
		entries := map[string][]projections.HoldEntry{}
		for _, p := range providers {
			held[p] = projections.Hold{Provider: p}
		}
		for i := range rapid.IntRange(0, 20).Draw(t, "facts") {
			p := rapid.SampledFrom(providers).Draw(t, "provider")
			before := held[p]
			var fact events.ServiceFact = &events.HoldReleased{Who: "bob"}
			placed := rapid.Bool().Draw(t, "placed")
			if placed {
				fact = &events.HoldPlaced{Scope: rapid.SampledFrom(scopes).Draw(t, "scope"), Who: "alice"}
			}
			e := holdEntry(before, fact, at.Add(time.Duration(i)*time.Second))
			broken := rapid.IntRange(0, 5).Draw(t, "broken") == 0
			if broken {
				e.Unreadable = errors.New("broken")
			}
			others := map[string]projections.Hold{}
			for _, other := range providers {
				others[other] = held[other]
			}
			h := projections.FoldHold(before, e)
			held[p], entries[p] = h, append(entries[p], e)
			switch {
			case h != projections.FoldHold(before, e):
				t.Fatal("the same fact folds to two holds")
			case h.Sequence != e.Sequence || h.Head != e.Digest || h.Facts != before.Facts+1:
				t.Fatalf("%+v does not end at the fact", h)
			case broken && h.Scope != events.HoldAll, placed && h.Scope == events.HoldNone:
				t.Fatalf("%+v holds nothing", h)
			case !broken && !placed && h.Scope != events.HoldNone:
				t.Fatalf("%+v is not released", h)
			case (h.Scope == events.HoldNone) != h.Since.IsZero():
				t.Fatalf("%+v: scope and time do not agree", h)
			}
			for _, other := range providers {
				if other != p && held[other] != others[other] {
					t.Fatalf("a fact of %q changed the hold of %q", p, other)
				}
			}
		}
		for _, p := range providers {
			again := projections.Hold{Provider: p}
			for _, e := range entries[p] {
				again = projections.FoldHold(again, e)
			}
			if again != held[p] {
				t.Fatalf("folded again: %+v, was %+v", again, held[p])
			}
		}

		// The stronger of the provider's own and the one on all counts, in
		// whatever order they are listed.
		list := projections.Holds{held[""], held["one"], held["two"]}
		want := held["one"].Scope
		if projections.StrongerHold(held[""].Scope, want) {
			want = held[""].Scope
		}
		if got := list.For("one"); got.Scope != want {
			t.Fatalf("%q counts, want %q", got.Scope, want)
		}
		slices.Reverse(list)
		if got := list.For("one"); got.Scope != want {
			t.Fatalf("%q counts the other way round, want %q", got.Scope, want)
		}
		if got := list.For("unnamed").Scope; got != held[""].Scope {
			t.Fatalf("a provider without a hold of its own has %q, want %q", got, held[""].Scope)
		}
	})
}

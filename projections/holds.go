package projections

import (
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
)

// Hold is what is believed about the hold on one provider, or on all of them.
// It is a value; FoldHold never changes the one it was given.
type Hold struct {
	Provider string           // "" is the hold on all providers
	Scope    events.HoldScope // none before the first fact and once released
	Since    time.Time        // message time of the fact that set the scope; zero without a scope
	Who      string           // principal that set it
	KeyID    string           // with which of its keys
	Why      events.Digest    // reason in PAYLOADS

	// Unreadable says why a fact of the hold could not be read; "" if all
	// could, or one was read after it.
	Unreadable string

	Sequence uint64        // in CONTROL, of the newest fact folded
	Facts    uint64        // facts folded
	Head     events.Digest // chain digest of the newest fact
}

// HoldEntry is one fact of a hold with its place in CONTROL.
type HoldEntry struct {
	Sequence uint64
	Time     time.Time // the server's
	Event    events.ServiceEvent
	Digest   events.Digest
	// Unreadable says why Event could not be read; nil if it was.
	Unreadable error
}

// FoldHold folds one fact into a hold. It is total and deterministic. A fact
// that cannot be read, is of an unknown type or breaks the chain might have been
// a hold of any scope: it holds everything until a fact behind it is read.
func FoldHold(h Hold, e HoldEntry) Hold {
	before := h
	if h.Facts == 0 {
		before.Head = events.ChainStart(events.HoldSubject(h.Provider))
	}
	h.Sequence, h.Head, h.Facts = e.Sequence, e.Digest, h.Facts+1
	why := ""
	switch {
	case e.Unreadable != nil:
		why = e.Unreadable.Error()
	case e.Event.Subject != events.HoldSubject(h.Provider):
		why = fmt.Sprintf("a fact about %.80q", e.Event.Subject)
	case e.Event.Previous != before.Head:
		why = "the fact does not follow the one before it"
	}
	if why != "" {
		return h.set(events.HoldAll, e.Time, "", "", events.Digest{}, why)
	}
	switch f := e.Event.Fact.(type) {
	case *events.HoldPlaced:
		scope := f.Scope
		if scope != events.HoldCreates {
			scope = events.HoldAll // also for a scope of a later version
		}
		if scope == before.Scope && before.Unreadable == "" {
			return h // placed twice: the first one counts
		}
		return h.set(scope, e.Time, f.Who, f.KeyID, f.Why, "")
	case *events.HoldReleased:
		return h.set(events.HoldNone, time.Time{}, "", "", events.Digest{}, "")
	case *events.KeyChanged: // no fact of a hold
	}
	return h.set(events.HoldAll, e.Time, "", "", events.Digest{}, "the fact is missing")
}

func (h Hold) set(scope events.HoldScope, since time.Time, who, key string, why events.Digest, unreadable string) Hold {
	h.Scope, h.Since, h.Who, h.KeyID, h.Why, h.Unreadable = scope, since, who, key, why, unreadable
	return h
}

// Holds are the holds in force, at most one for each provider and one for all.
type Holds []Hold

// For gives the hold that counts for a provider: its own or that on all
// providers, whichever is stronger; its own of two that are equal. A hold
// without a scope says that nothing is held.
func (l Holds) For(provider string) Hold {
	best := Hold{Provider: provider}
	for _, h := range l {
		if h.Provider != "" && h.Provider != provider {
			continue
		}
		if StrongerHold(h.Scope, best.Scope) || h.Scope == best.Scope && h.Provider == provider {
			best = h
		}
	}
	return best
}

// StrongerHold says whether a rests more than b.
func StrongerHold(a, b events.HoldScope) bool { return strength(a) > strength(b) }

func strength(s events.HoldScope) int {
	switch s {
	case events.HoldNone:
		return 0
	case events.HoldCreates:
		return 1
	case events.HoldAll:
		return 2
	}
	return 2 // of a later version
}

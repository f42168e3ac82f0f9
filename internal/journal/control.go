package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// Subjects on CONTROL of the facts of holds: one for the hold on all providers,
// one for each provider's own.
const (
	holdSubject = "control.hold"
	holdPrefix  = holdSubject + "-"
)

func holdSubjectOf(provider string) string {
	if provider == "" {
		return holdSubject
	}
	return holdPrefix + provider
}

// heldIn gives the provider of a subject on CONTROL, "" for all of them.
func heldIn(subject string) (provider string, ok bool) {
	if subject == holdSubject {
		return "", true
	}
	return strings.CutPrefix(subject, holdPrefix)
}

func checkHeld(provider string) error {
	if provider == "" {
		return nil
	}
	return checkName("provider", provider)
}

// holdEntry reads a message of CONTROL. What is no fact stays an entry: the
// fold says what it means.
func holdEntry(m Message) projections.HoldEntry {
	e, digest, err := events.DecodeService(m.Header, m.Data)
	if err != nil {
		// The next fact links to it all the same.
		e = events.ServiceEvent{}
		if _, d, bad := events.Decode(m.Header, m.Data); bad == nil {
			digest = d
		} else {
			digest = rawDigest(m)
		}
	}
	return projections.HoldEntry{Sequence: m.Sequence, Time: m.Time, Event: e, Digest: digest, Unreadable: err}
}

// HoldFacts gives all facts of the hold on a provider, or on all of them,
// oldest first.
func (j *Journal) HoldFacts(ctx context.Context, provider string) ([]projections.HoldEntry, error) {
	if err := checkHeld(provider); err != nil {
		return nil, err
	}
	var list []projections.HoldEntry
	err := j.each(ctx, Control, holdSubjectOf(provider), func(m Message) error {
		list = append(list, holdEntry(m))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read hold: %w", err)
	}
	return list, nil
}

// Holds gives the holds in force, that on all providers first, then in the
// order in which providers were first held.
func (j *Journal) Holds(ctx context.Context) (projections.Holds, error) {
	var order []string
	held := map[string]projections.Hold{"": {}}
	err := j.each(ctx, Control, "control.*", func(m Message) error {
		provider, ok := heldIn(m.Subject)
		if !ok {
			return nil
		}
		h, known := held[provider]
		if !known {
			h.Provider = provider
			order = append(order, provider)
		}
		held[provider] = projections.FoldHold(h, holdEntry(m))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	var list projections.Holds
	for _, provider := range append([]string{""}, order...) {
		if h := held[provider]; h.Scope != events.HoldNone {
			list = append(list, h)
		}
	}
	return list, nil
}

// AppendHold appends one fact to the hold given, at the very sequence it was
// folded from or not at all, and returns the newest hold. An id, a time, the
// subject and the link to the preceding fact are filled in. Errors and outcomes
// are those of Append for a permit.
func (j *Journal) AppendHold(ctx context.Context, h projections.Hold, e events.ServiceEvent) (projections.Hold, Outcome, error) {
	if err := checkHeld(h.Provider); err != nil {
		return h, Unsettled, err
	}
	e.Subject = events.HoldSubject(h.Provider)
	if e.ID == "" {
		e.ID = j.newID()
	}
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	e.Previous = h.Head
	if h.Facts == 0 {
		e.Previous = events.ChainStart(e.Subject)
	}
	subject := holdSubjectOf(h.Provider)
	header, data, _ := events.EncodeService(e)
	// A crash before the append leaves the hold as it was, and a reason that
	// nothing refers to. A crash after it leaves the hold in force, or released,
	// for every process that reads it; whoever asked asks again and finds it.
	_, other, err := j.place(ctx, Control, subject, h.Sequence,
		func() (uint64, error) {
			return j.store.Publish(ctx, Control, Outgoing{Subject: subject, Header: header, Data: data, Guard: &Guard{Sequence: h.Sequence}})
		},
		func(m Message) bool { return holdEntry(m).Event.ID == e.ID })
	if err != nil {
		return h, Unsettled, fmt.Errorf("append %s of %s: %w", e.Fact.Type(), e.Subject, err)
	}
	outcome := Stored
	if other != nil {
		outcome = Superseded
	}
	for {
		var m Message
		err := j.retry(ctx, subject, func() (err error) {
			m, err = j.store.Next(ctx, Control, subject, h.Sequence+1)
			return err
		})
		if errors.Is(err, ErrNoMessage) {
			return h, outcome, nil
		}
		if err != nil {
			return h, outcome, fmt.Errorf("read %s after an append: %w", e.Subject, err)
		}
		h = projections.FoldHold(h, holdEntry(m))
	}
}

// ControlEnd names the newest message of CONTROL. Two that are equal say that
// nothing was appended in between, also where the stream lost its end and grew
// again.
type ControlEnd struct {
	Sequence uint64
	Time     time.Time // the server's
}

// ControlEnd gives the end of CONTROL, the zero one if it is empty.
func (j *Journal) ControlEnd(ctx context.Context) (ControlEnd, error) {
	m, err := j.store.Last(ctx, Control, "control.*")
	if errors.Is(err, ErrNoMessage) {
		return ControlEnd{}, nil
	}
	if err != nil {
		return ControlEnd{}, fmt.Errorf("read the end of %s: %w", Control, err)
	}
	return ControlEnd{Sequence: m.Sequence, Time: m.Time}, nil
}

package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/projections"
)

// Arrival is one verified delivery on its way to the operations it is about.
type Arrival struct {
	Provider string
	Key      string // dedupe key of the delivery in WEBHOOKS
	// Accounts are those whose secret it was signed with: it speaks of no other.
	Accounts []string
	// Operation is what its address names, if the address counts (only the
	// provider was given its key), Reference what its body names us by; both may
	// be empty. The job is in the fact.
	Operation string
	Reference string
	Time      time.Time // when it was stored
	Fact      events.WebhookReceived
}

// Fields implements codec.Record.
func (a *Arrival) Fields(v *codec.Visitor) {
	codec.Text(v, "p", &a.Provider)
	codec.Text(v, "k", &a.Key)
	codec.Texts(v, "ac", &a.Accounts)
	codec.Text(v, "o", &a.Operation)
	codec.Text(v, "r", &a.Reference)
	codec.Time(v, "t", &a.Time)
	codec.Nested(v, "f", &a.Fact)
}

// FactID is the id of the delivery's fact in an operation, whoever appends it.
func (a *Arrival) FactID(operation string) string {
	h := sha256.New()
	for _, part := range []string{a.Provider, a.Key, operation} {
		fmt.Fprintf(h, "%d %s ", len(part), part)
	}
	return "webhook-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// JobName and ReferenceName are what an event is parked under.
func JobName(job string) string { return token("job", job) }

// ReferenceName is JobName for one of our references.
func ReferenceName(reference string) string { return token("ref", reference) }

// names lists what the delivery is parked under. One that names nothing can
// match no operation ever; it is parked to be seen, until it expires.
func (a *Arrival) names() []string {
	var list []string
	if a.Fact.JobID != "" {
		list = append(list, JobName(a.Fact.JobID))
	}
	if a.Reference != "" {
		list = append(list, ReferenceName(a.Reference))
	}
	if list == nil {
		list = append(list, token("nothing"))
	}
	return list
}

func (a *Arrival) subjects() []string {
	list := a.names()
	for i, name := range list {
		list[i] = "parked." + a.Provider + "." + name + "." + token(a.Key)
	}
	return list
}

// Park keeps an event that matches no operation for those that come to know its
// job or reference later. It expires so long after it was stored; one that is
// older already is not kept. Whoever parks looks for operations again
// afterwards, and whoever writes a name reads what is parked under it: whichever
// comes second sees the first.
func (j *Journal) Park(ctx context.Context, a Arrival, keep time.Duration) error {
	if err := checkName("provider", a.Provider); err != nil {
		return err
	}
	left := a.Time.Add(keep).Sub(j.now())
	if left <= 0 {
		return nil
	}
	j.board.parking()
	return j.park(ctx, &a, codec.Marshal(&a), left)
}

// Unpark takes an event out that an operation has noted. A crash before it
// leaves the event parked, and the sweep finds it noted.
func (j *Journal) Unpark(ctx context.Context, a Arrival) error {
	// An empty entry says that it is gone, and then is gone itself.
	return j.park(ctx, &a, nil, time.Second)
}

func (j *Journal) park(ctx context.Context, a *Arrival, data []byte, life time.Duration) error {
	for _, subject := range a.subjects() {
		if data == nil {
			if _, err := j.store.Last(ctx, Index, subject); errors.Is(err, ErrNoMessage) {
				continue
			}
		}
		m := Outgoing{Subject: subject, Header: map[string][]string{ExpiresHeader: {Expires(life)}}, Data: data}
		// A crash between the two names leaves the delivery unacknowledged, and
		// the next holder parks it under both. A copy that lands late is found
		// noted by the sweep.
		if err := j.put(ctx, Index, m); err != nil {
			return fmt.Errorf("park webhook of %s: %w", a.Provider, err)
		}
	}
	return nil
}

// put stores an unguarded message for certain. More than one copy may land.
func (j *Journal) put(ctx context.Context, s Stream, m Outgoing) error {
	refusals := 0
	for attempt := 0; ; attempt++ {
		_, err := j.store.Publish(ctx, s, m)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrInFlight) && !errors.Is(err, ErrUnanswered) {
			if refusals++; refusals >= maxRefusals {
				return err
			}
		}
		if sleepErr := j.sleep(ctx, backoff(m.Subject, attempt)); sleepErr != nil {
			return errors.Join(sleepErr, err)
		}
	}
}

// Parked gives what is parked under a name, of all names if it is "".
func (j *Journal) Parked(ctx context.Context, provider, name string) ([]Arrival, error) {
	filter := "parked." + provider + "." + name + ".*"
	parks := uint64(0)
	switch {
	case name == "":
		filter = "parked.*.*.*"
		if j.board != nil {
			parks = j.board.parks.Load() // before the look: what is parked from here on counts
		}
	case j.board.nothingParked():
		return nil, nil
	}
	var list []Arrival
	err := j.each(ctx, Index, filter, func(m Message) error {
		var a Arrival
		// An empty one was taken out. One that cannot be read is nobody's to wait
		// for; the delivery itself is in WEBHOOKS.
		if err := codec.Unmarshal(m.Data, &a); err == nil && a.Provider != "" {
			list = append(list, a)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read parked webhooks: %w", err)
	}
	if name == "" && len(list) == 0 && j.board != nil {
		j.board.quiet.Store(parks + 1)
	}
	return list, nil
}

// Deliver notes the event on every operation it is about, as INDEX stands now,
// and says how many those are. With one it counts as exact; with several it is
// noted on each and binds none. again says that it may have been noted before.
//
// A crash after some of the notes leaves the event undelivered, and whoever
// delivers it next finds those.
func (j *Journal) Deliver(ctx context.Context, a Arrival, source string, again bool) (int, error) {
	targets, err := j.targets(ctx, &a)
	if err != nil {
		return 0, err
	}
	for _, s := range targets {
		id := a.FactID(s.Operation)
		if again {
			noted, err := j.has(ctx, s.Operation, id)
			if err != nil {
				return 0, err
			}
			if noted {
				continue
			}
		}
		fact := a.Fact
		// A signed reference that is another operation's outweighs address and job.
		fact.Exact = len(targets) == 1 && (a.Reference == "" || a.Reference == s.Intent.ClientReference || a.Reference == s.Intent.Token)
		e := events.Event{ID: id, Source: source, Time: a.Time, Actor: a.Provider, Fact: &fact}
		if _, outcome, err := j.Append(ctx, s, e); err != nil {
			return 0, fmt.Errorf("record webhook for %s (%s): %w", s.Operation, outcome, err)
		}
	}
	return len(targets), nil
}

// targets gives the operations an event is about: the one its address names,
// the one its reference names, and the owners of its job.
func (j *Journal) targets(ctx context.Context, a *Arrival) ([]projections.State, error) {
	var ids []string
	if a.Fact.JobID != "" {
		owners, err := j.owners(ctx, a.Provider, a.Fact.JobID, a.Accounts)
		if err != nil {
			return nil, err
		}
		// First, so that an owner's note is never the one that is missing.
		ids = append(ids, owners...)
	}
	if a.Reference != "" {
		id, ok, err := j.Referred(ctx, a.Provider, a.Reference)
		if err != nil {
			return nil, err
		}
		if ok {
			ids = append(ids, id)
		}
	}
	if a.Operation != "" {
		ids = append(ids, a.Operation)
	}
	var list []projections.State
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			continue
		}
		s, err := j.Current(ctx, id)
		switch {
		case errors.Is(err, ErrNoOperation), errors.Is(err, ErrBadName):
			continue // a claim without facts, or an address of nothing: there is nobody to tell
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", id, err)
		}
		if s.Intent.Provider == a.Provider && slices.Contains(a.Accounts, s.Intent.Account) {
			list = append(list, s)
		}
	}
	return list, nil
}

// has says whether the operation has the fact.
func (j *Journal) has(ctx context.Context, operation, id string) (bool, error) {
	found := errors.New("found")
	err := j.each(ctx, Ledger, factSubject(operation), func(m Message) error {
		if entry(m).Event.ID == id {
			return found
		}
		return nil
	})
	if errors.Is(err, found) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a webhook of %s: %w", operation, err)
	}
	return false, nil
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// LeaseTime is how long a fired wake-up belongs to who fetched it, from
// delivery or the last Extend on.
const LeaseTime = 30 * time.Second

// Wake says when an operation next needs attention.
type Wake struct {
	Operation string
	Provider  string    // may be empty where At is zero
	Version   uint64    // ledger sequence of the state it was derived from
	At        time.Time // for when it is set: Next of that state plus the grace; zero: never, a pending one is cancelled
}

// Fields implements codec.Record: what travels in a wake-up's body.
func (w *Wake) Fields(v *codec.Visitor) {
	codec.Uint(v, "v", &w.Version)
	codec.Time(v, "at", &w.At)
}

func wakeSubject(operation string) string { return "wake." + operation }

func dueSubject(provider, operation string) string { return "due." + provider + "." + operation }

func (w *Wake) check() error {
	if err := checkOperation(w.Operation); err != nil {
		return err
	}
	if w.At.IsZero() {
		return nil
	}
	return checkName("provider", w.Provider)
}

// message is the wake-up as it goes out. One that is due sooner than a
// schedule can fire goes to its target directly and cancels what is pending in
// the same write; its owner waits out what remains.
func (w *Wake) message(now time.Time) Outgoing {
	body := codec.Marshal(w)
	if !w.At.After(now.Add(ScheduleFloor)) {
		return Outgoing{
			Subject: dueSubject(w.Provider, w.Operation), Data: body,
			Header: map[string][]string{SchedulerHeader: {wakeSubject(w.Operation)}, NextHeader: {NextPurge}},
		}
	}
	return Outgoing{
		Subject: wakeSubject(w.Operation), Data: body,
		Header: map[string][]string{
			ScheduleHeader: {ScheduleAt(w.At)}, TargetHeader: {dueSubject(w.Provider, w.Operation)},
		},
	}
}

// wakeIn reads a wake-up. An unreadable one still wakes: it has version 0 and
// no time, so that its owner looks at the state.
func wakeIn(m Message) Wake {
	var w Wake
	if err := codec.Unmarshal(m.Data, &w); err != nil {
		w = Wake{}
	}
	subject := m.Subject
	if target := headerValue(m.Header, TargetHeader); target != "" {
		subject = target
	}
	w.Provider, w.Operation, _ = strings.Cut(strings.TrimPrefix(subject, "due."), ".")
	return w
}

// PendingWake gives the newest wake-up that is scheduled or due for the
// operation, leased ones included; false means none.
func (j *Journal) PendingWake(ctx context.Context, operation string) (Wake, bool, error) {
	if err := checkOperation(operation); err != nil {
		return Wake{}, false, err
	}
	var newest Wake
	found := false
	// The schedule is read first: one that fires in between is then seen as due.
	for _, subject := range []string{wakeSubject(operation), "due.*." + operation} {
		m, err := j.store.Last(ctx, Wakeups, subject)
		if errors.Is(err, ErrNoMessage) {
			continue
		}
		if err != nil {
			return Wake{}, false, fmt.Errorf("look up wake-up of %s: %w", operation, err)
		}
		if w := wakeIn(m); !found || w.Version > newest.Version {
			newest, found = w, true
		}
	}
	return newest, found, nil
}

// Leases hands the due operations of one provider to pollers.
type Leases struct{ queue Queue }

// Leases joins the queue that all pollers of a provider share.
func (j *Journal) Leases(ctx context.Context, provider string) (*Leases, error) {
	if err := checkName("provider", provider); err != nil {
		return nil, err
	}
	q, err := j.store.Queue(ctx, QueueConfig{
		Stream: Wakeups, Durable: "due-" + provider, Filter: "due." + provider + ".*", AckWait: LeaseTime,
	})
	if err != nil {
		return nil, err
	}
	return &Leases{q}, nil
}

// Fetch leases up to limit operations, waiting at most wait for the first. A
// poller asks for no more than it has free workers: the lease runs at once.
func (l *Leases) Fetch(ctx context.Context, limit int, wait time.Duration) ([]*Lease, error) {
	list, err := l.queue.Fetch(ctx, limit, wait)
	if err != nil {
		return nil, err
	}
	out := make([]*Lease, 0, len(list))
	for _, d := range list {
		out = append(out, &Lease{Wake: wakeIn(d.Message()), Fired: d.Message().Time, Delivered: d.Delivered(), delivery: d})
	}
	return out, nil
}

// A Lease is a fired wake-up that belongs to its holder for LeaseTime. It
// saves effort and fences nothing.
type Lease struct {
	Wake
	Fired     time.Time // when the message became due at the server
	Delivered uint64    // how often it was handed out
	delivery  Delivery
}

// Extend starts the lease anew. It succeeds without effect if the wake-up was
// replaced by a newer one.
func (l *Lease) Extend(ctx context.Context) error { return l.delivery.Extend(ctx) }

// Ack removes the wake-up. It is allowed only when Next of a state that is no
// older than Version is later than At, or none: for that state the projector
// publishes another, and else it may leave this one alone (DESIGN §10).
func (l *Lease) Ack(ctx context.Context) error { return l.delivery.Ack(ctx) }

// Release hands the wake-up out again at once.
func (l *Lease) Release(ctx context.Context) error { return l.delivery.Release(ctx) }

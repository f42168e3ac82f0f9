package simulation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
)

var errInjected = errors.New("injected fault")

// store is the journal's port as one actor sees it: a point before and after
// every call, and faults in between.
type store struct {
	a *actor
}

func (a *actor) journal() *journal.Journal {
	return journal.New(journal.Options{Store: &store{a}, Now: a.Now, Sleep: a.Sleep, NewID: a.newID, Board: a.p.board, Await: a.await})
}

// land is a write as the server sees it, with what the world notes of it.
func (w *world) land(s journal.Stream, m journal.Outgoing) (uint64, error) {
	sequence, err := w.store.Publish(context.Background(), s, m)
	if err != nil {
		return sequence, err
	}
	w.note(s, m, sequence)
	return sequence, nil
}

// note notes what was stored.
func (w *world) note(s journal.Stream, m journal.Outgoing, sequence uint64) {
	w.moved = true
	switch s {
	case journal.Ledger:
		w.ledgerMoves++
		op := w.operation(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		op.newest = sequence
		op.facts++
		w.claimed(op, m)
	case journal.History:
		if id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]; id != "takeover" {
			w.operation(id).records++
		}
	case journal.Wakeups:
		if strings.HasPrefix(m.Subject, "due.") {
			w.wakeMoves++
		}
		if list := m.Header[journal.ScheduleHeader]; len(list) > 0 {
			at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(list[0], "@at "))
			if err == nil {
				if floor := w.clock.Now().Add(journal.ScheduleFloor); at.Before(floor) {
					at = floor
				}
				w.hint(at)
				w.hint(at.Add(journal.ScheduleFloor + time.Millisecond))
			}
		}
	}
}

// claimed checks that a job belongs to an operation before a fact of it says so: the
// other way round two operations may both be told that it is theirs.
func (w *world) claimed(op *operation, m journal.Outgoing) {
	event, _, err := events.Decode(m.Header, m.Data)
	if err != nil {
		return // judged with the history
	}
	for _, job := range journal.OwnJobs(event.Fact) {
		owner, owned, err := w.journal.Owner(context.Background(), w.name(), "main", job)
		if err != nil || !owned || owner != op.id {
			w.violate("%s says that %s is its own, and it is %q's: %v", op.id, job, owner, err)
		}
	}
}

// land is a write of this actor, now or later. An operation whose newest record is
// of a tenure that has not swept may have no wake-up yet.
func (s *store) land(stream journal.Stream) func(journal.Outgoing) (uint64, error) {
	w, unswept := s.a.w, !s.a.swept
	return func(m journal.Outgoing) (uint64, error) {
		sequence, err := w.land(stream, m)
		if id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]; err == nil && stream == journal.History && id != "takeover" {
			w.operation(id).unswept = unswept
		}
		return sequence, err
	}
}

func (s *store) Publish(_ context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	land := s.land(stream)
	sequences, err := s.publish(stream, m.Subject, func() ([]uint64, error) {
		sequence, err := land(m)
		return []uint64{sequence}, err
	})
	if len(sequences) == 0 {
		return 0, err
	}
	return sequences[0], err
}

// PublishBatch has the faults of one write, and none in between.
func (s *store) PublishBatch(_ context.Context, stream journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	w := s.a.w
	return s.publish(stream, "a batch with "+list[0].Subject, func() ([]uint64, error) {
		sequences, err := w.store.PublishBatch(context.Background(), stream, list)
		for i, sequence := range sequences {
			w.note(stream, list[i], sequence)
		}
		return sequences, err
	})
}

// publish is a write with a point before and after it, and perhaps a fault.
func (s *store) publish(stream journal.Stream, subject string, land func() ([]uint64, error)) ([]uint64, error) {
	a, w := s.a, s.a.w
	careful := stream == journal.Ledger || stream == journal.Wakeups || stream == journal.History
	a.point(careful)
	defer a.point(careful)
	if w.faulty(w.cfg.Store) {
		kind := w.rng.IntN(10)
		w.logf("%s publish %s: fault %d", a.name, subject, kind)
		switch {
		case kind < 2: // refused
			return nil, fmt.Errorf("publish: %w", errInjected)
		case kind < 4: // lost on the way there
			return nil, fmt.Errorf("publish: %w: %w", journal.ErrUnanswered, errInjected)
		case kind < 7: // lost on the way back
			if _, err := land(); err != nil {
				w.logf("  not stored: %v", err)
			}
			return nil, fmt.Errorf("publish: %w: %w", journal.ErrUnanswered, errInjected)
		case kind < 9: // late
			w.after(w.between(0, pick(w, 100*time.Millisecond, 10*time.Second, 3*time.Minute)), func() {
				_, err := land()
				w.logf("late write of %s on %s lands: %v", a.name, subject, err)
			})
			return nil, fmt.Errorf("publish: %w: %w", journal.ErrUnanswered, errInjected)
		default:
			return nil, fmt.Errorf("publish: %w: %w", journal.ErrInFlight, errInjected)
		}
	}
	sequences, err := land()
	if w.tracing && stream != journal.Payloads {
		w.logf("%s publish %s: %d %v", a.name, subject, sequences, err)
	}
	return sequences, err
}

// PublishRun goes message by message, with a point and the faults of a write at
// each of them. What is late is the rest of the run from there on.
func (s *store) PublishRun(_ context.Context, stream journal.Stream, guard journal.Guard, list []journal.Outgoing) (uint64, error) {
	a, w := s.a, s.a.w
	a.point(true)
	defer a.point(true)
	land, last := s.land(stream), uint64(0)
	for i, m := range list {
		if i > 0 {
			a.point(true)
		}
		m.Guard = &guard
		if !w.faulty(w.cfg.Store / 2) {
			sequence, err := land(m)
			w.logf("%s run %s: %d %v", a.name, m.Subject, sequence, err)
			if err != nil {
				return 0, err
			}
			last = sequence
			continue
		}
		kind := w.rng.IntN(10)
		w.logf("%s run %s: fault %d", a.name, m.Subject, kind)
		switch {
		case kind < 2: // refused
			return 0, fmt.Errorf("publish: %w", errInjected)
		case kind < 5: // lost on the way there
		case kind < 9: // late
			w.after(w.between(0, pick(w, 100*time.Millisecond, 10*time.Second, 3*time.Minute)), func() {
				for _, m := range list[i:] {
					m.Guard = &guard
					_, err := land(m)
					w.logf("late write of %s on %s lands: %v", a.name, m.Subject, err)
					if err != nil {
						return
					}
				}
			})
		default:
			return 0, fmt.Errorf("publish: %w: %w", journal.ErrInFlight, errInjected)
		}
		return 0, fmt.Errorf("publish: %w: %w", journal.ErrUnanswered, errInjected)
	}
	if w.faulty(w.cfg.Store / 2) {
		w.logf("%s run: its answer is lost", a.name)
		return 0, fmt.Errorf("publish: %w: %w", journal.ErrUnanswered, errInjected)
	}
	return last, nil
}

// read makes a call that changes nothing.
func (s *store) read(do func() error) error {
	s.a.point(false)
	if s.a.w.faulty(s.a.w.cfg.Store / 4) {
		return fmt.Errorf("read: %w", errInjected)
	}
	return do()
}

func (s *store) Last(ctx context.Context, stream journal.Stream, subject string) (m journal.Message, err error) {
	err = s.read(func() error { m, err = s.a.w.store.Last(ctx, stream, subject); return err })
	return m, err
}

func (s *store) Next(ctx context.Context, stream journal.Stream, subject string, from uint64) (m journal.Message, err error) {
	err = s.read(func() error { m, err = s.a.w.store.Next(ctx, stream, subject, from); return err })
	return m, err
}

func (s *store) Newest(ctx context.Context, stream journal.Stream, subject string, do func(journal.Message) error) error {
	var list []journal.Message
	err := s.read(func() error {
		return s.a.w.store.Newest(ctx, stream, subject, func(m journal.Message) error { list = append(list, m); return nil })
	})
	for _, m := range list {
		if err := do(m); err != nil {
			return err
		}
	}
	return err
}

func (s *store) Read(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	c := &cursor{s: s}
	err := s.read(func() (err error) { c.inner, err = s.a.w.store.Read(ctx, stream, subject, from); return err })
	if err != nil {
		return nil, err
	}
	return c, nil
}

type cursor struct {
	s     *store
	inner journal.Cursor
}

func (c *cursor) Next(ctx context.Context, wait time.Duration) (m journal.Message, err error) {
	err = c.s.read(func() error { m, err = c.inner.Next(ctx, wait); return err })
	return m, err
}

// Close is no point: it also runs while a stack unwinds.
func (c *cursor) Close() error { return c.inner.Close() }

func (s *store) Queue(ctx context.Context, q journal.QueueConfig) (journal.Queue, error) {
	out := &queue{s: s, wait: q.AckWait}
	err := s.read(func() (err error) { out.inner, err = s.a.w.store.Queue(ctx, q); return err })
	if err != nil {
		return nil, err
	}
	return out, nil
}

type queue struct {
	s     *store
	inner journal.Queue
	wait  time.Duration
}

func (q *queue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	a, w := q.s.a, q.s.a.w
	a.point(false)
	list, err := q.inner.Fetch(ctx, limit, wait)
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		// A server's timer rounds up.
		w.hint(w.clock.Now().Add(q.wait + time.Millisecond))
		w.hint(w.clock.Now().Add(q.wait + 100*time.Millisecond))
	}
	defer a.point(false)
	if len(list) > 0 && w.faulty(w.cfg.Store) {
		w.logf("%s fetch: deliveries lost", a.name)
		return nil, fmt.Errorf("fetch: %w", errInjected)
	}
	out := make([]journal.Delivery, 0, len(list))
	for _, d := range list {
		out = append(out, &delivery{d, q})
	}
	return out, nil
}

type delivery struct {
	journal.Delivery
	q *queue
}

// on makes a call on a lease: it may be lost on either way.
func (d *delivery) on(what string, do func() error) error {
	a, w := d.q.s.a, d.q.s.a.w
	a.point(what == "ack")
	defer a.point(false)
	if w.faulty(w.cfg.Store) {
		w.moved = true
		done := w.chance(0.5)
		if done {
			_ = do() // nobody hears the answer
		}
		w.logf("%s %s: unanswered, done %v", a.name, what, done)
		return fmt.Errorf("%s: %w", what, errInjected)
	}
	w.moved = true
	err := do()
	w.logf("%s %s %s: %v", a.name, what, d.Message().Subject, err)
	w.hint(w.clock.Now().Add(d.q.wait + time.Millisecond))
	return err
}

func (d *delivery) Extend(ctx context.Context) error {
	return d.on("extend", func() error { return d.Delivery.Extend(ctx) })
}

func (d *delivery) Ack(ctx context.Context) error {
	return d.on("ack", func() error { return d.Delivery.Ack(ctx) })
}

func (d *delivery) Release(ctx context.Context) error {
	return d.on("release", func() error { return d.Delivery.Release(ctx) })
}

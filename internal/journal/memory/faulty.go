package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// ErrInjected is wrapped by every error a [Faulty] makes up.
var ErrInjected = errors.New("injected fault")

// Kind is what goes wrong with one call.
type Kind uint8

// The kinds of fault.
const (
	// None lets the call through.
	None Kind = iota
	// Unavailable does nothing and says so: a refused write, a failed read.
	Unavailable
	// Undone does nothing and leaves the caller in doubt: for a write
	// ErrUnanswered, otherwise as Unavailable.
	Undone
	// Done does it and leaves the caller in doubt. A fetch leases its messages
	// and loses them.
	Done
	// Late leaves the caller in doubt and does the write afterwards, with the
	// guard it had. Other calls: as Undone.
	Late
	// InFlight answers a write with ErrInFlight and does nothing.
	InFlight
	// Part stores the first half of a run and leaves the caller in doubt. Other
	// calls: as Undone.
	Part
)

// Op names a call.
type Op string

// The calls.
const (
	OpPublish Op = "publish"
	OpBatch   Op = "batch" // the subject is that of its first message
	OpRun     Op = "run"   // likewise
	OpLast    Op = "last"
	OpNext    Op = "next"
	OpNewest  Op = "newest"
	OpRead    Op = "read"
	OpCursor  Op = "cursor"
	OpQueue   Op = "queue"
	OpFetch   Op = "fetch"
	OpExtend  Op = "extend"
	OpAck     Op = "ack"
	OpRelease Op = "release"
)

// Call is one call to a store. Subject is the filter for reads and queues.
type Call struct {
	Op      Op
	Stream  journal.Stream
	Subject string
}

// Fault is the answer to a [Call].
type Fault struct {
	Kind Kind
	// After is for Late: how many more writes pass before this one lands. With
	// 0 it lands before the next one.
	After int
}

// Faulty injects faults into a store.
type Faulty struct {
	inner  journal.Store
	decide func(Call) Fault

	mu   sync.Mutex
	late []late // guarded by mu
}

type late struct {
	stream journal.Stream
	guard  *journal.Guard     // of a run
	list   []journal.Outgoing // more than one: a batch or a run
	after  int
}

func (l late) land(ctx context.Context, inner journal.Store) {
	// Nobody hears the answer.
	switch {
	case l.guard != nil:
		_, _ = inner.PublishRun(ctx, l.stream, *l.guard, l.list)
		return
	case len(l.list) == 1:
		_, _ = inner.Publish(ctx, l.stream, l.list[0])
		return
	}
	_, _ = inner.PublishBatch(ctx, l.stream, l.list)
}

// Inject wraps a store. decide is called once for each call, by the goroutine
// that makes it.
func Inject(inner journal.Store, decide func(Call) Fault) *Faulty {
	return &Faulty{inner: inner, decide: decide}
}

// Land makes every late write land now, in the order in which they were made.
// A write whose guard no longer holds is lost, as it is at the server.
func (f *Faulty) Land(ctx context.Context) {
	f.mu.Lock()
	list := f.late
	f.late = nil
	f.mu.Unlock()
	for _, l := range list {
		l.land(ctx, f.inner)
	}
}

// landDue counts one write and lands what has waited long enough.
func (f *Faulty) landDue(ctx context.Context) {
	f.mu.Lock()
	var due, rest []late
	for _, l := range f.late {
		if l.after--; l.after < 0 {
			due = append(due, l)
		} else {
			rest = append(rest, l)
		}
	}
	f.late = rest
	f.mu.Unlock()
	for _, l := range due {
		l.land(context.WithoutCancel(ctx), f.inner)
	}
}

// Publish implements [journal.Store].
func (f *Faulty) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	f.landDue(ctx)
	fault := f.decide(Call{OpPublish, s, m.Subject})
	switch fault.Kind {
	case None:
		return f.inner.Publish(ctx, s, m)
	case Unavailable:
		return 0, fmt.Errorf("publish on %s: %w", m.Subject, ErrInjected)
	case InFlight:
		return 0, fmt.Errorf("publish on %s: %w: %w", m.Subject, journal.ErrInFlight, ErrInjected)
	case Undone, Part:
	case Late:
		f.mu.Lock()
		f.late = append(f.late, late{stream: s, list: []journal.Outgoing{m}, after: fault.After})
		f.mu.Unlock()
	case Done:
		if _, err := f.inner.Publish(ctx, s, m); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("publish on %s: %w: %w", m.Subject, journal.ErrUnanswered, ErrInjected)
}

// PublishBatch implements [journal.Store].
func (f *Faulty) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	f.landDue(ctx)
	fault := f.decide(Call{OpBatch, s, list[0].Subject})
	switch fault.Kind {
	case None:
		return f.inner.PublishBatch(ctx, s, list)
	case Unavailable:
		return nil, fmt.Errorf("publish a batch on %s: %w", s, ErrInjected)
	case InFlight:
		return nil, fmt.Errorf("publish a batch on %s: %w: %w", s, journal.ErrInFlight, ErrInjected)
	case Undone, Part:
	case Late:
		f.mu.Lock()
		f.late = append(f.late, late{stream: s, list: list, after: fault.After})
		f.mu.Unlock()
	case Done:
		if _, err := f.inner.PublishBatch(ctx, s, list); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("publish a batch on %s: %w: %w", s, journal.ErrUnanswered, ErrInjected)
}

// PublishRun implements [journal.Store].
func (f *Faulty) PublishRun(ctx context.Context, s journal.Stream, guard journal.Guard, list []journal.Outgoing) (uint64, error) {
	f.landDue(ctx)
	if len(list) == 0 {
		return f.inner.PublishRun(ctx, s, guard, list)
	}
	fault := f.decide(Call{OpRun, s, list[0].Subject})
	switch fault.Kind {
	case None:
		return f.inner.PublishRun(ctx, s, guard, list)
	case Unavailable:
		return 0, fmt.Errorf("publish a run on %s: %w", s, ErrInjected)
	case InFlight:
		return 0, fmt.Errorf("publish a run on %s: %w: %w", s, journal.ErrInFlight, ErrInjected)
	case Undone:
	case Late:
		f.mu.Lock()
		f.late = append(f.late, late{stream: s, guard: &guard, list: list, after: fault.After})
		f.mu.Unlock()
	case Part:
		if half := list[:len(list)/2]; len(half) > 0 {
			if _, err := f.inner.PublishRun(ctx, s, guard, half); err != nil {
				return 0, err
			}
		}
	case Done:
		if _, err := f.inner.PublishRun(ctx, s, guard, list); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("publish a run on %s: %w: %w", s, journal.ErrUnanswered, ErrInjected)
}

// hit runs do unless the fault prevents it.
func (f *Faulty) hit(c Call, do func() error) error {
	switch f.decide(c).Kind {
	case None:
		return do()
	case Done:
		if err := do(); err != nil {
			return err
		}
	case Unavailable, Undone, Late, InFlight, Part:
	}
	return fmt.Errorf("%s %s: %w", c.Op, c.Subject, ErrInjected)
}

// Last implements [journal.Store].
func (f *Faulty) Last(ctx context.Context, s journal.Stream, subject string) (m journal.Message, err error) {
	err = f.hit(Call{OpLast, s, subject}, func() error { m, err = f.inner.Last(ctx, s, subject); return err })
	return m, err
}

// Next implements [journal.Store].
func (f *Faulty) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (m journal.Message, err error) {
	err = f.hit(Call{OpNext, s, subject}, func() error { m, err = f.inner.Next(ctx, s, subject, from); return err })
	return m, err
}

// Newest implements [journal.Store].
func (f *Faulty) Newest(ctx context.Context, s journal.Stream, subject string, do func(journal.Message) error) error {
	return f.hit(Call{OpNewest, s, subject}, func() error { return f.inner.Newest(ctx, s, subject, do) })
}

// Read implements [journal.Store].
func (f *Faulty) Read(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	c := &faultyCursor{faults: f, call: Call{OpCursor, s, subject}}
	err := f.hit(Call{OpRead, s, subject}, func() (err error) { c.inner, err = f.inner.Read(ctx, s, subject, from); return err })
	if err != nil {
		return nil, err
	}
	return c, nil
}

type faultyCursor struct {
	faults *Faulty
	inner  journal.Cursor
	call   Call
}

// Next never loses a message it took from the inner cursor: that would be a
// defect no store has. A fault here comes before the read.
func (c *faultyCursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	if c.faults.decide(c.call).Kind != None {
		return journal.Message{}, fmt.Errorf("%s %s: %w", c.call.Op, c.call.Subject, ErrInjected)
	}
	return c.inner.Next(ctx, wait)
}

func (c *faultyCursor) Close() error { return c.inner.Close() }

// Queue implements [journal.Store].
func (f *Faulty) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	q := &faultyQueue{faults: f, config: c}
	err := f.hit(Call{OpQueue, c.Stream, c.Filter}, func() (err error) { q.inner, err = f.inner.Queue(ctx, c); return err })
	if err != nil {
		return nil, err
	}
	return q, nil
}

type faultyQueue struct {
	faults *Faulty
	inner  journal.Queue
	config journal.QueueConfig
}

func (q *faultyQueue) Fetch(ctx context.Context, limit int, wait time.Duration) (list []journal.Delivery, err error) {
	var inner []journal.Delivery
	err = q.faults.hit(Call{OpFetch, q.config.Stream, q.config.Filter}, func() error {
		inner, err = q.inner.Fetch(ctx, limit, wait)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, d := range inner {
		list = append(list, &faultyDelivery{d, q.faults, q.config.Stream})
	}
	return list, nil
}

type faultyDelivery struct {
	journal.Delivery
	faults *Faulty
	stream journal.Stream
}

func (d *faultyDelivery) Extend(ctx context.Context) error {
	return d.faults.hit(Call{OpExtend, d.stream, d.Message().Subject}, func() error { return d.Delivery.Extend(ctx) })
}

func (d *faultyDelivery) Ack(ctx context.Context) error {
	return d.faults.hit(Call{OpAck, d.stream, d.Message().Subject}, func() error { return d.Delivery.Ack(ctx) })
}

func (d *faultyDelivery) Release(ctx context.Context) error {
	return d.faults.hit(Call{OpRelease, d.stream, d.Message().Subject}, func() error { return d.Delivery.Release(ctx) })
}

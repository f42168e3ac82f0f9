package crash_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// mode is what happens at a durable step.
type mode string

const (
	// One write fails; the process lives.
	refused mode = "refused" // not stored, and said so
	undone  mode = "undone"  // not stored, no answer
	done    mode = "done"    // stored, no answer
	late    mode = "late"    // no answer, and stored before the next write

	// The store is out of reach for a while from the step on; the process lives.
	awayUndone mode = "away undone"
	awayDone   mode = "away done"

	// The process dies there and is started again.
	dieUndone mode = "die undone"
	dieDone   mode = "die done"
)

func modes() []mode {
	return []mode{refused, undone, done, late, awayUndone, awayDone, dieUndone, dieDone}
}

// away is longer than a lease and than the 10 s for which a worker goes on
// trying to record what it saw.
const away = 45 * time.Second

var (
	errDead = errors.New("this process is dead")
	errAway = errors.New("the store is out of reach")
)

// step is one durable step of a run: the n-th of its label.
type step struct {
	label string
	n     int
	after string // the fact stored before it in the clean run
	next  string // of a payload or claim: the step that relies on it there
}

func (s step) String() string {
	name := fmt.Sprintf("%s %d", s.label, s.n)
	switch {
	case s.next != "":
		name += " (before " + s.next + ")"
	case s.after != "":
		name += " (after " + s.after + ")"
	}
	return name
}

// world stands between the service and the store over any number of starts. It
// lists the durable steps and makes one of them go wrong.
type world struct {
	now func() time.Time

	mu     sync.Mutex
	steps  []step         // guarded by mu, as all below
	counts map[string]int // by label
	fact   string         // the newest stored
	armed  step
	mode   mode
	hit    bool
	back   time.Time // when the store can be reached again
	life   *life     // of the process that runs now

	lose   bool           // leases cannot be extended
	leased map[string]int // deliveries by operation
	frozen map[*queue]bool
	queues []*queue

	// before, if set, is called ahead of each publish, not under mu.
	before func(label string, stream journal.Stream, m journal.Outgoing)
}

func newWorld() *world {
	return &world{now: time.Now, counts: map[string]int{}, leased: map[string]int{}, frozen: map[*queue]bool{}}
}

// arm begins a new run in which the step goes wrong; the zero step means none.
func (w *world) arm(s step, m mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps, w.counts, w.fact = nil, map[string]int{}, ""
	w.armed, w.mode, w.hit = s, m, false
}

func (w *world) seen() []step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]step(nil), w.steps...)
}

func (w *world) wasHit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hit
}

func (w *world) dead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.life != nil && w.life.dead
}

func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.life.dead = true
}

func (w *world) onPublish(f func(label string, stream journal.Stream, m journal.Outgoing)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

func (w *world) loseLeases(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose = on
}

// fetched is how often a wake-up of the operation was handed out.
func (w *world) fetched(operation string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leased[operation]
}

// freeze keeps every worker that has joined the wake-ups so far from being
// handed more of them.
func (w *world) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queues {
		w.frozen[q] = q.stream == journal.Wakeups
	}
}

// through is harness.Options.Through: a new process over the store.
func (w *world) through(inner journal.Store) journal.Store {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.life = &life{w: w, inner: inner}
	return w.life
}

// enter counts a step and says what is to happen at it.
func (w *world) enter(l *life, label string) mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.dead || w.now().Before(w.back) {
		return ""
	}
	w.counts[label]++
	s := step{label: label, n: w.counts[label], after: w.fact}
	w.steps = append(w.steps, s)
	if label != w.armed.label || s.n != w.armed.n || w.hit {
		return ""
	}
	w.hit = true
	switch w.mode {
	case awayUndone:
		w.back = w.now().Add(away)
	case dieUndone:
		l.dead = true
	case refused, undone, done, late, awayDone, dieDone:
	}
	return w.mode
}

// leave is called when the step was done.
func (w *world) leave(l *life, label string, m mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if fact, ok := strings.CutPrefix(label, "fact "); ok {
		w.fact = fact
	}
	switch m {
	case awayDone:
		w.back = w.now().Add(away)
	case dieDone:
		l.dead = true
	case refused, undone, done, late, awayUndone, dieUndone:
	}
}

// label names a write.
func label(s journal.Stream, m journal.Outgoing) string {
	switch s {
	case journal.Ledger:
		return "fact " + factName(m.Header["ce-type"])
	case journal.History:
		if strings.HasSuffix(m.Subject, ".takeover") {
			return "take-over"
		}
		var r projections.Record
		if err := codec.Unmarshal(m.Data, &r); err != nil {
			return "unreadable record"
		}
		return "history of " + factName([]string{string(r.Type)})
	case journal.Wakeups:
		switch {
		case strings.HasPrefix(m.Subject, "due."):
			return "wake-up due"
		case strings.HasPrefix(m.Subject, "wake."):
			return "wake-up scheduled"
		case m.Header[journal.SchedulerHeader] != nil:
			return "wake-up cancelled"
		}
		return "epoch"
	case journal.Index:
		switch kind, _, _ := strings.Cut(m.Subject, "."); {
		case kind == "ref":
			return "reference"
		case kind == "client":
			return "label"
		case kind == "parked" && len(m.Data) == 0:
			return "unpark"
		case kind == "parked":
			return "park"
		}
		return "claim"
	case journal.Payloads:
		return "payload"
	case journal.Webhooks:
		return "webhook"
	case journal.Control:
		return "control"
	}
	return string(s)
}

// factName shortens dev.counterfoil.create.attempted.v1 to create.attempted.
func factName(types []string) string {
	if len(types) != 1 {
		return "without type"
	}
	name := strings.TrimPrefix(types[0], "dev.counterfoil.")
	if i := strings.LastIndex(name, ".v"); i > 0 {
		name = name[:i]
	}
	return name
}

// life is one process's view of the store.
type life struct {
	w     *world
	inner journal.Store
	dead  bool // guarded by w.mu
	late  []func(context.Context)
}

// check fails where the process is dead or the store out of reach.
func (l *life) check() error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	switch {
	case l.dead:
		return errDead
	case l.w.now().Before(l.w.back):
		return errAway
	}
	return nil
}

func (l *life) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	var n atomic.Uint64 // a late one is stored when nobody asks any more
	err := l.publish(ctx, s, m, func(ctx context.Context) error {
		sequence, err := l.inner.Publish(ctx, s, m)
		n.Store(sequence)
		return err
	})
	return n.Load(), err
}

// publish does one call, whose first message names it, or breaks it off.
func (l *life) publish(ctx context.Context, s journal.Stream, m journal.Outgoing, do func(context.Context) error) error {
	if err := l.check(); err != nil {
		return err
	}
	l.w.mu.Lock()
	waiting, before := l.late, l.w.before
	l.late = nil
	l.w.mu.Unlock()
	for _, land := range waiting {
		land(ctx)
	}
	name := label(s, m)
	if before != nil {
		before(name, s, m)
	}
	what := l.w.enter(l, name)
	if err := l.check(); err != nil {
		return err
	}
	unanswered := fmt.Errorf("publish on %s: %w", m.Subject, journal.ErrUnanswered)
	switch what {
	case refused:
		return fmt.Errorf("publish on %s: refused", m.Subject)
	case undone:
		return unanswered
	case late:
		l.w.mu.Lock()
		l.late = append(l.late, func(ctx context.Context) {
			_ = do(context.WithoutCancel(ctx)) // nobody hears the answer
		})
		l.w.mu.Unlock()
		return unanswered
	case done, awayUndone, awayDone, dieUndone, dieDone:
	}
	err := do(ctx)
	if err == nil {
		l.w.leave(l, name, what)
	}
	if dead := l.check(); dead != nil {
		return errors.Join(unanswered, dead)
	}
	if what == done && err == nil {
		return unanswered
	}
	return err
}

// PublishBatch is one call.
func (l *life) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	var sequences atomic.Pointer[[]uint64] // as above
	err := l.publish(ctx, s, list[0], func(ctx context.Context) error {
		stored, err := l.inner.PublishBatch(ctx, s, list)
		sequences.Store(&stored)
		return err
	})
	if err != nil {
		return nil, err
	}
	return *sequences.Load(), nil
}

// PublishRun takes each message for a call of its own: a run is broken off at
// each of them.
func (l *life) PublishRun(ctx context.Context, s journal.Stream, guard journal.Guard, list []journal.Outgoing) (n uint64, err error) {
	for _, m := range list {
		m.Guard = &guard
		if n, err = l.Publish(ctx, s, m); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (l *life) Last(ctx context.Context, s journal.Stream, subject string) (journal.Message, error) {
	if err := l.check(); err != nil {
		return journal.Message{}, err
	}
	return l.inner.Last(ctx, s, subject)
}

func (l *life) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	if err := l.check(); err != nil {
		return journal.Message{}, err
	}
	return l.inner.Next(ctx, s, subject, from)
}

func (l *life) Newest(ctx context.Context, s journal.Stream, subject string, do func(journal.Message) error) error {
	if err := l.check(); err != nil {
		return err
	}
	return l.inner.Newest(ctx, s, subject, do)
}

func (l *life) Read(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	c, err := l.inner.Read(ctx, s, subject, from)
	if err != nil {
		return nil, err
	}
	return &cursor{l, c}, nil
}

type cursor struct {
	l     *life
	inner journal.Cursor
}

// Next never loses a message: a fault comes before the read, or waits for the
// next one.
func (c *cursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	if err := c.l.check(); err != nil {
		return journal.Message{}, err
	}
	return c.inner.Next(ctx, wait)
}

func (c *cursor) Close() error { return c.inner.Close() }

func (l *life) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	q, err := l.inner.Queue(ctx, c)
	if err != nil {
		return nil, err
	}
	out := &queue{l, q, c.Stream}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.queues = append(l.w.queues, out)
	return out, nil
}

type queue struct {
	l      *life
	inner  journal.Queue
	stream journal.Stream
}

func (q *queue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	if err := q.l.check(); err != nil {
		return nil, err
	}
	q.l.w.mu.Lock()
	frozen := q.l.w.frozen[q]
	q.l.w.mu.Unlock()
	if frozen {
		return nil, errAway
	}
	list, err := q.inner.Fetch(ctx, limit, wait)
	if dead := q.l.check(); dead != nil {
		return nil, dead // what was leased is lost with the process
	}
	out := make([]journal.Delivery, 0, len(list))
	for _, d := range list {
		subject := d.Message().Subject
		q.l.w.mu.Lock()
		q.l.w.leased[subject[strings.LastIndexByte(subject, '.')+1:]]++
		q.l.w.mu.Unlock()
		out = append(out, &delivery{d, q.l, "ack of " + map[journal.Stream]string{
			journal.Wakeups: "wake-up", journal.Webhooks: "webhook",
		}[q.stream]})
	}
	return out, err
}

type delivery struct {
	journal.Delivery
	l     *life
	label string
}

func (d *delivery) Ack(ctx context.Context) error {
	what := d.l.w.enter(d.l, d.label)
	if err := d.l.check(); err != nil {
		return err
	}
	switch what {
	case refused, undone, late:
		return errAway
	case done, awayUndone, awayDone, dieUndone, dieDone:
	}
	err := d.Delivery.Ack(ctx)
	d.l.w.leave(d.l, d.label, what)
	if dead := d.l.check(); dead != nil {
		return dead
	}
	if what == done && err == nil {
		return errAway
	}
	return err
}

func (d *delivery) Extend(ctx context.Context) error {
	if err := d.l.check(); err != nil {
		return err
	}
	d.l.w.mu.Lock()
	lose := d.l.w.lose
	d.l.w.mu.Unlock()
	if lose {
		return errAway
	}
	return d.Delivery.Extend(ctx)
}

func (d *delivery) Release(ctx context.Context) error {
	if err := d.l.check(); err != nil {
		return err
	}
	return d.Delivery.Release(ctx)
}

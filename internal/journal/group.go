package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

const (
	// What the writes that wait may hold of memory, for each stream; who comes
	// when it is full waits for room. An empty write counts as writeOverhead.
	roomBytes     = 64 << 20
	writeOverhead = 4 << 10

	settleReads = 8 // at once, after a batch was refused
)

// grouped lists the streams whose writes are grouped: those that are synced and
// written at each step of an operation.
func grouped() []Stream { return []Stream{Ledger, Payloads} }

// Grouped is a group commit over a store: writes to LEDGER and PAYLOADS that
// come while others are under way go together as batches, by a [GroupPolicy].
// To its callers it is a Store as any other. It may be shared between
// goroutines.
//
// A write ends as it would have alone. If a batch is refused, nothing of it is
// stored: the leader is asked which of its writes were beaten, those are told
// so, and the others are sent again in halves, in the end alone. If a batch is
// not answered, each of its writes is unanswered, and the journal settles each.
//
// A caller whose context ends is told that its write is unanswered, and the
// others go on: what waits is taken out, what is under way may be stored.
type Grouped struct {
	Store // reads, queues, and writes to other streams

	inner Store
	limit time.Duration // of one write, its waiting included
	lines map[Stream]*line
	work  sync.WaitGroup // batches under way
}

// Group makes a group commit. Close ends it.
func Group(inner Store, p GroupPolicy) *Grouped {
	g := &Grouped{Store: inner, inner: inner, limit: answerLimit, lines: map[Stream]*line{}}
	if p.Off {
		return g
	}
	for _, s := range grouped() {
		l := &line{group: g, stream: s, room: semaphore.NewWeighted(roomBytes), queue: newLineup(p), emptied: make(chan struct{}, 1)}
		l.timer = time.AfterFunc(time.Hour, l.wake)
		l.timer.Stop()
		g.lines[s] = l
	}
	return g
}

// line is one stream's.
type line struct {
	group  *Grouped
	stream Stream
	room   *semaphore.Weighted // of bytes

	mu      sync.Mutex // guards what follows
	queue   *lineup
	hints   hints
	closed  bool
	timer   *time.Timer   // asks the queue again
	emptied chan struct{} // hears when a closed line is idle
}

// errClosed is told to writes that come after the end.
var errClosed = errors.New("the store is closed")

// Close takes no more writes and waits until those that are there have ended.
func (g *Grouped) Close() {
	g.drain(answerLimit)
	g.work.Wait()
}

// drain takes no more writes and waits, not for longer than limit, for those
// that are there.
func (g *Grouped) drain(limit time.Duration) {
	end := time.NewTimer(limit)
	defer end.Stop()
	for _, l := range g.lines {
		l.mu.Lock()
		l.closed = true
		idle := l.queue.idle()
		l.mu.Unlock()
		if idle {
			continue
		}
		select {
		case <-l.emptied:
		case <-end.C:
			return
		}
	}
}

// Publish implements [Store].
func (g *Grouped) Publish(ctx context.Context, s Stream, m Outgoing) (uint64, error) {
	l := g.lines[s]
	if l == nil || m.Guard != nil && m.Guard.Subject != "" && m.Guard.Subject != m.Subject {
		return g.inner.Publish(ctx, s, m)
	}
	return l.publish(ctx, m)
}

func (l *line) publish(ctx context.Context, m Outgoing) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.group.limit)
	defer cancel()
	unanswered := func(err error) error { return fmt.Errorf("publish on %s: %w: %w", m.Subject, ErrUnanswered, err) }

	size := sizeOf(m)
	held := min(int64(size)+writeOverhead, roomBytes)
	if err := l.room.Acquire(ctx, held); err != nil {
		return 0, unanswered(err)
	}
	defer l.room.Release(held)
	if sequence := l.beaten(ctx, m); sequence > 0 {
		return 0, wrong(m, sequence)
	}

	a := &appending{m: m, size: size, out: make(chan verdict, 1)}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return 0, fmt.Errorf("publish on %s: %w", m.Subject, errClosed)
	}
	l.queue.join(a, time.Now())
	l.pump()
	l.mu.Unlock()

	var v verdict
	select {
	case v = <-a.out:
	case <-ctx.Done():
		l.mu.Lock()
		if l.queue.leave(a) {
			l.pump()
			l.mu.Unlock()
			return 0, unanswered(ctx.Err())
		}
		// Under way: in a batch, which goes on without us, or told to go alone or
		// how it ended in this very moment.
		select {
		case v = <-a.out:
		default:
			v = verdict{err: unanswered(ctx.Err())}
		}
		l.mu.Unlock()
	}
	if !v.alone {
		return v.sequence, v.err
	}
	sequence, err := l.group.inner.Publish(ctx, l.stream, m)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(l.queue.endedAlone(a, sequence, time.Now()), sequence)
	l.hints.note(m.Subject, sequence)
	l.pump()
	return sequence, err
}

func sizeOf(m Outgoing) int {
	size := len(m.Subject) + len(m.Data)
	for name, values := range m.Header {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	return size
}

func wrong(m Outgoing, sequence uint64) error {
	return fmt.Errorf("publish on %s: %w: %d", m.Subject, ErrWrongSequence, sequence)
}

// beaten gives the sequence of a message that came before m by its guard, if
// this process knows of one; 0 otherwise. It asks the leader, so that no
// answer rests on memory. One such write would have a whole batch refused.
func (l *line) beaten(ctx context.Context, m Outgoing) uint64 {
	if m.Guard == nil {
		return 0
	}
	l.mu.Lock()
	hint := l.hints.last(m.Subject)
	l.mu.Unlock()
	if hint <= m.Guard.Sequence {
		return 0
	}
	found, err := l.group.inner.Next(ctx, l.stream, m.Subject, m.Guard.Sequence+1)
	if err != nil {
		return 0 // the write itself finds out
	}
	return found.Sequence
}

// pump sends what the queue lets go. The mutex is held.
func (l *line) pump() {
	batch, alone, again := l.queue.next(time.Now())
	for _, a := range alone {
		a.out <- verdict{alone: true}
	}
	if len(batch) > 0 {
		l.group.work.Add(1)
		go l.commit(batch)
	}
	if again > 0 {
		l.timer.Reset(again)
	}
	if l.closed && l.queue.idle() {
		l.timer.Stop()
		select {
		case l.emptied <- struct{}{}:
		default:
		}
	}
}

func (l *line) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pump()
}

// tell answers those whose guards name an earlier sequence than the one that
// was just stored. The mutex is held.
func (l *line) tell(beaten []*appending, sequence uint64) {
	for _, a := range beaten {
		a.out <- verdict{err: wrong(a.m, sequence)}
	}
}

// end answers one write of a batch. The mutex is held.
func (l *line) end(a *appending, v verdict) {
	a.out <- v
	l.tell(l.queue.ended(a, v.sequence), v.sequence)
	l.hints.note(a.m.Subject, v.sequence)
}

// commit brings one batch to its end.
func (l *line) commit(batch []*appending) {
	defer l.group.work.Done()
	l.send(batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.over()
	l.pump()
}

// send stores the writes as one batch, or settles why it could not. A crash at
// any point leaves the whole batch stored or nothing of it, and none of its
// writes answered: their authors ask the leader for each.
func (l *line) send(batch []*appending) {
	batch = l.present(batch)
	l.mu.Lock()
	few := len(batch) < max(l.queue.least(time.Now()), 2)
	if few {
		l.scatter(batch)
	}
	l.mu.Unlock()
	if few {
		return
	}
	// The batch's own time, not that of any caller.
	ctx, cancel := context.WithTimeout(context.Background(), l.group.limit)
	defer cancel()
	list := make([]Outgoing, len(batch))
	for i, a := range batch {
		list[i] = a.m
	}
	began := time.Now()
	sequences, err := l.group.inner.PublishBatch(ctx, l.stream, list)
	if l.answered(batch, sequences, err, began) {
		return
	}
	if errors.Is(err, ErrWrongSequence) {
		batch = l.settle(ctx, batch)
	}
	half := len(batch) / 2
	l.send(batch[:half])
	l.send(batch[half:])
}

// answered ends a batch by its answer. False means that some of its writes may
// not be stored as things are, and nothing is.
func (l *line) answered(batch []*appending, sequences []uint64, err error, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.queue.committed(len(batch), sent, time.Now())
		for i, a := range batch {
			l.end(a, verdict{sequence: sequences[i]})
		}
	case errors.Is(err, ErrWrongSequence), errors.Is(err, ErrInFlight):
		return false
	case errors.Is(err, ErrUnanswered):
		l.queue.failed()
		for _, a := range batch {
			l.end(a, verdict{err: fmt.Errorf("publish on %s: %w", a.m.Subject, err)})
		}
	default:
		// Refused for what one of them is, or for what a batch is. Alone each
		// hears its own.
		l.queue.failed()
		l.scatter(batch)
	}
	return true
}

// present leaves out those whose callers wait no more.
func (l *line) present(batch []*appending) []*appending {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*appending
	for _, a := range batch {
		if a.gone {
			l.tell(l.queue.ended(a, 0), 0)
			continue
		}
		list = append(list, a)
	}
	return list
}

// scatter sends writes of a batch alone. The mutex is held.
func (l *line) scatter(batch []*appending) {
	for _, a := range batch {
		if a.gone {
			l.tell(l.queue.ended(a, 0), 0)
			continue
		}
		l.queue.loosen(a, time.Now())
		a.out <- verdict{alone: true}
	}
}

// settle asks the leader which writes of a refused batch were beaten, tells
// them, and gives the others.
func (l *line) settle(ctx context.Context, batch []*appending) []*appending {
	first := make([]uint64, len(batch))
	var reads errgroup.Group
	reads.SetLimit(settleReads)
	for i, a := range batch {
		if a.m.Guard == nil {
			continue
		}
		reads.Go(func() error {
			if m, err := l.group.inner.Next(ctx, l.stream, a.m.Subject, a.m.Guard.Sequence+1); err == nil {
				first[i] = m.Sequence
			}
			return nil // what could not be read is sent again
		})
	}
	_ = reads.Wait() // none of them fails
	l.mu.Lock()
	defer l.mu.Unlock()
	var rest []*appending
	for i, a := range batch {
		if first[i] == 0 {
			rest = append(rest, a)
			continue
		}
		a.out <- verdict{err: wrong(a.m, first[i])}
		l.tell(l.queue.ended(a, first[i]), first[i])
		l.hints.note(a.m.Subject, first[i])
	}
	return rest
}

// hints remembers the last sequences this process saw stored, of some
// thousands of subjects. They are to be verified.
type hints struct{ of lately[uint64] }

func (h *hints) note(subject string, sequence uint64) {
	if sequence > h.last(subject) {
		h.of.note(subject, sequence)
	}
}

func (h *hints) last(subject string) uint64 { return h.of.get(subject) }

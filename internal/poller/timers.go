package poller

import (
	"container/heap"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// An operation that its worker left undone is handed out again after a wait
	// that doubles from the first to the last.
	againFirst = time.Second
	againLast  = 30 * time.Second
	// fallbackEvery is how often a worker with timers looks for wake-ups of the
	// server.
	fallbackEvery = 5 * time.Second
)

// Timers know when the operations of the partitions that this process projects
// are due, and hand them to its workers (DESIGN §10). They are a quicker copy of
// what the wake-ups say: lost with the process, and filled again by the sweeps
// of the next. Safe for concurrent use. One operation takes about 100 bytes.
//
// A lease of theirs lasts as long as a wake-up's unless it is extended, and
// fences as little.
type Timers struct {
	now func() time.Time

	mu     sync.Mutex // guards everything below
	timed  map[string]*timed
	queues map[string]*queue // by provider
	leases uint32
}

// timed is one operation that is looked at again.
type timed struct {
	operation string
	queue     *queue
	at        int64 // when it is handed out next, in ns since 1970; while it is leased, the lease's end
	next      int64 // what the newest state says; 0: not at all
	version   uint64
	index     int // in the queue
	lease     uint32
	partition uint8
	tries     uint8 // that left it undone in a row
}

// queue is what one provider's workers wait for, the earliest first.
type queue struct {
	list    []*timed
	changed chan struct{} // closed when another is the earliest; nil if nobody waits
}

func (q *queue) Len() int           { return len(q.list) }
func (q *queue) Less(i, j int) bool { return q.list[i].at < q.list[j].at }
func (q *queue) Swap(i, j int) {
	q.list[i], q.list[j] = q.list[j], q.list[i]
	q.list[i].index, q.list[j].index = i, j
}

func (q *queue) Push(x any) {
	e := x.(*timed)
	e.index = len(q.list)
	q.list = append(q.list, e)
}

func (q *queue) Pop() any {
	last := q.list[len(q.list)-1]
	q.list[len(q.list)-1] = nil
	q.list = q.list[:len(q.list)-1]
	return last
}

// NewTimers makes timers without operations. now is the process's clock.
func NewTimers(now func() time.Time) *Timers {
	return &Timers{now: now, timed: map[string]*timed{}, queues: map[string]*queue{}}
}

// Due says how an operation of a partition stands. An older state than was said
// before, or the same, changes nothing.
func (t *Timers) Due(partition int, s projections.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.timed[s.Operation]
	if e == nil {
		if s.NextLook.IsZero() {
			return
		}
		q := t.queueLocked(s.Intent.Provider)
		// A copy: a decoded state's strings are parts of one, which would stay as a whole.
		e = &timed{operation: strings.Clone(s.Operation), queue: q, partition: uint8(partition), at: nanos(s.NextLook), next: nanos(s.NextLook), version: s.Sequence}
		t.timed[e.operation] = e
		heap.Push(q, e)
		q.tell(e)
		return
	}
	e.partition = uint8(partition)
	if s.Sequence <= e.version {
		return
	}
	e.version, e.next, e.tries = s.Sequence, nanos(s.NextLook), 0
	if e.lease == 0 { // else its worker lets go first
		t.setLocked(e, e.next)
	}
}

// nanos is a time since 1970; 0 means none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(t.UnixNano(), 1)
}

func (t *Timers) queueLocked(provider string) *queue {
	q := t.queues[provider]
	if q == nil {
		q = &queue{}
		t.queues[strings.Clone(provider)] = q
	}
	return q
}

// setLocked moves an operation, or takes it out where there is no time.
func (t *Timers) setLocked(e *timed, at int64) {
	if at == 0 {
		heap.Remove(e.queue, e.index)
		delete(t.timed, e.operation)
		return
	}
	e.at = at
	heap.Fix(e.queue, e.index)
	e.queue.tell(e)
}

// tell wakes who waits if the operation is the earliest now.
func (q *queue) tell(e *timed) {
	if e.index == 0 && q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// Left takes the operations of a partition out: its tenure has ended, and who
// has it now attends to them. A lease that is out ends by itself.
func (t *Timers) Left(partition int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for operation, e := range t.timed {
		if e.partition == uint8(partition) {
			heap.Remove(e.queue, e.index)
			delete(t.timed, operation)
		}
	}
}

// Fetch hands out the due operations of one provider, the longest due first.
func (t *Timers) Fetch(provider string) Fetch {
	return func(ctx context.Context, limit int, wait time.Duration) ([]Lease, error) {
		end := t.now().Add(wait)
		for {
			now := t.now()
			list, next, changed := t.take(provider, limit, now)
			left := end.Sub(now)
			if len(list) > 0 || left <= 0 {
				return list, nil
			}
			if !next.IsZero() {
				left = min(left, next.Sub(now))
			}
			timer := time.NewTimer(left)
			select {
			case <-changed:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
}

// take leases what is due, or gives when the first will be, zero for none, and
// what is closed when that changes.
func (t *Timers) take(provider string, limit int, now time.Time) (list []Lease, next time.Time, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queueLocked(provider)
	for len(q.list) > 0 && len(list) < limit {
		e := q.list[0]
		if e.at > now.UnixNano() {
			break
		}
		if t.leases++; t.leases == 0 {
			t.leases++
		}
		e.lease = t.leases
		e.at = now.Add(journal.LeaseTime).UnixNano()
		heap.Fix(q, 0)
		list = append(list, &timerLease{timers: t, timed: e, lease: e.lease, at: time.Unix(0, e.next).UTC(), version: e.version})
	}
	if len(list) > 0 {
		return list, time.Time{}, nil
	}
	if len(q.list) > 0 {
		next = time.Unix(0, q.list[0].at)
	}
	if q.changed == nil {
		q.changed = make(chan struct{})
	}
	return nil, next, q.changed
}

// timerLease is an operation handed out by timers.
type timerLease struct {
	timers  *Timers
	timed   *timed
	lease   uint32
	at      time.Time
	version uint64
}

func (l *timerLease) Operation() string { return l.timed.operation }
func (l *timerLease) At() time.Time     { return l.at }
func (l *timerLease) Version() uint64   { return l.version }

// heldLocked says whether the lease is still this one.
func (l *timerLease) heldLocked() bool {
	return l.timed.lease == l.lease && l.timers.timed[l.timed.operation] == l.timed
}

// Extend starts the lease anew.
func (l *timerLease) Extend(context.Context) error {
	t := l.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.heldLocked() {
		t.setLocked(l.timed, t.now().Add(journal.LeaseTime).UnixNano())
	}
	return nil
}

// Delivered is 1: a lease that ended counts for nothing here.
func (l *timerLease) Delivered() uint64 { return 1 }

// Release hands the operation out again at once.
func (l *timerLease) Release(context.Context) error {
	t := l.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.heldLocked() {
		l.timed.lease = 0
		t.setLocked(l.timed, l.timed.next)
	}
	return nil
}

// Ack does nothing: there is no message behind the lease.
func (l *timerLease) Ack(context.Context) error { return nil }

// Left sets the time at which the operation is due again: that of the newest
// state known here or to the worker. If nothing was done although it was due, it
// is tried again after a while.
func (l *timerLease) Left(s projections.State, err error) {
	t, e := l.timers, l.timed
	t.mu.Lock()
	defer t.mu.Unlock()
	if !l.heldLocked() {
		return
	}
	e.lease = 0
	seen := s.Sequence >= e.version
	if s.Sequence > e.version {
		e.version, e.next = s.Sequence, nanos(s.NextLook)
	}
	now := t.now()
	if e.next == 0 || err == nil && (!seen || e.next > now.UnixNano()) {
		e.tries = 0
		t.setLocked(e, e.next)
		return
	}
	wait := min(againFirst<<e.tries, againLast)
	if e.tries < 10 {
		e.tries++
	}
	t.setLocked(e, max(e.next, now.Add(wait).UnixNano()))
}

// WithFallback gives leases of timers, and now and then looks for those of the
// server's wake-ups: what a timer missed. It is for one goroutine.
func WithFallback(timers, wakeups Fetch, now func() time.Time) Fetch {
	var looked time.Time
	more := false // there was one when we looked last; the timers' turn is in between
	return func(ctx context.Context, limit int, wait time.Duration) ([]Lease, error) {
		if more {
			more = false
			looked = time.Time{}
			if list, err := timers(ctx, limit, 0); len(list) > 0 || err != nil {
				return list, err
			}
		}
		left := looked.Add(fallbackEvery).Sub(now())
		if left <= 0 {
			list, err := wakeups(ctx, limit, 0)
			looked, left = now(), fallbackEvery
			if more = len(list) > 0; more {
				return list, nil
			}
			if err != nil {
				// The timers go on; what they hand out meets the same store.
				list, _ := timers(ctx, limit, 0)
				return list, err
			}
		}
		return timers(ctx, limit, min(wait, left))
	}
}

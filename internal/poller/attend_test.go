package poller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

// A lease is acked if and only if the next look is another time than the one
// it carries, or none.
func TestAckRule(t *testing.T) {
	bubble(t, "the next look moved", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		time.Sleep(2 * time.Second)
		h.caller.then(says(200, `{"state": "running"}`))
		if l, _ := h.attend(); l.acked.Load() != 1 {
			t.Errorf("acked %d times", l.acked.Load())
		}
	})
	bubble(t, "there is none", func(t *testing.T) {
		h := newHouse(t, changes{})
		l := h.due()
		h.put(&events.CancelRequested{Who: "team-a"})
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 1 {
			t.Error(err, l.acked.Load())
		}
	})
	bubble(t, "a wake-up of an older state", func(t *testing.T) {
		h := newHouse(t, changes{})
		l := h.due()
		h.accept()
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 1 {
			t.Error(err, l.acked.Load())
		}
		same(t, h.take())
	})
	// That is what a leader of the ledger gives that was cut off. Acked by it, the
	// operation would be forgotten until the next sweep.
	bubble(t, "a state older than the wake-up", func(t *testing.T) {
		h := newHouse(t, changes{})
		l := h.due()
		h.put(&events.CancelRequested{Who: "team-a"})
		l.version, l.delivered = h.s.Sequence+1, lags-1
		if err := h.poller.Attend(t.Context(), l); err == nil || l.acked.Load() != 0 {
			t.Error(err, l.acked.Load())
		}
		// Or the ledger has lost something: a wake-up from it does not go round for ever.
		l.delivered = lags
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 1 {
			t.Error(err, l.acked.Load())
		}
	})
	bubble(t, "a short remainder is waited out", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		l := h.due()
		time.Sleep(time.Until(l.at) - 2*time.Second)
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			if !time.Now().Equal(l.at) {
				t.Errorf("asked %s early", time.Until(l.at))
			}
			return answered(r, 200, `{"state": "running"}`), nil
		})
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 1 {
			t.Error(err, l.acked.Load())
		}
	})
	bubble(t, "a long remainder is left to the lease", func(t *testing.T) {
		h := newHouse(t, changes{intent: func(i *events.IntentRecorded) { i.Policy.PollInterval = time.Minute }})
		h.accept()
		l := h.due()
		began := time.Now()
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 0 || time.Since(began) != 0 {
			t.Error(err, l.acked.Load(), time.Since(began))
		}
	})
	bubble(t, "news while waiting out a remainder", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		l := h.due()
		time.Sleep(time.Until(l.at) - time.Second)
		go func() {
			time.Sleep(time.Second / 2)
			h.put(&events.JobObserved{JobID: "j-1", State: events.ClassRunning, Call: events.Call{AsOf: 3, LeftAt: time.Now()}})
		}()
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 1 {
			t.Error(err, l.acked.Load())
		}
		if len(h.caller.sent) != 0 {
			t.Error("read again what was read meanwhile")
		}
	})
	bubble(t, "an open attempt of another is left alone", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.put(&events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: time.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "p/r"}})
		h.take()
		l, trail := h.attend()
		same(t, trail)
		if l.acked.Load() != 0 {
			t.Error("acked")
		}
	})
	bubble(t, "rules of a later version", func(t *testing.T) {
		h := newHouse(t, changes{intent: func(i *events.IntentRecorded) { i.Rules = projections.Rules + 1 }})
		l := &lease{operation: operation}
		if err := h.poller.Attend(t.Context(), l); err != nil || l.acked.Load() != 0 {
			t.Error(err, l.acked.Load())
		}
		same(t, h.take())
	})
	bubble(t, "no such operation", func(t *testing.T) {
		h := newHouse(t, changes{})
		l := &lease{operation: "op_none"}
		if err := h.poller.Attend(t.Context(), l); !errors.Is(err, journal.ErrNoOperation) || l.acked.Load() != 0 {
			t.Error(err, l.acked.Load())
		}
	})
}

// Two leases of one operation in one process never attend at once, and the
// second finds what the first did. A read shows it: no permit would stop a
// second one.
func TestTwoLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		due := h.due()
		time.Sleep(time.Until(due.at))
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			time.Sleep(5 * time.Second)
			return answered(r, 200, `{"state": "running"}`), nil
		})
		leases := []*lease{{operation: operation, at: due.at}, {operation: operation, at: due.at}, {operation: operation, at: due.at}}
		var group sync.WaitGroup
		for _, l := range leases {
			group.Go(func() {
				if err := h.poller.Attend(t.Context(), l); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // one reads, the others wait for it
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if err := h.poller.Attend(ctx, due); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("one that is stopped while it waits: %v after %s", err, time.Since(began))
		}
		group.Wait()
		if len(h.caller.sent) != 1 {
			t.Errorf("%d reads", len(h.caller.sent))
		}
		for i, l := range leases {
			if l.acked.Load() != 1 {
				t.Errorf("lease %d was acked %d times", i, l.acked.Load())
			}
		}
		if len(h.poller.busy) != 0 {
			t.Error("an operation stays busy")
		}
	})
}

// A lease is extended for as long as it is worked on, and no longer.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			time.Sleep(25 * time.Second)
			return answered(r, 201, accepts), nil
		}, says(200, `{"state": "running"}`))
		l := h.due()
		h.poller.serve(t.Context(), l)
		if l.extended.Load() != 2 {
			t.Errorf("extended %d times in 25 s", l.extended.Load())
		}
		time.Sleep(time.Minute)
		if l.extended.Load() != 2 {
			t.Error("extended although nobody works on it")
		}
	})
}

// However the leases of a process lie to each other in time, none of them goes
// without for longer than a beat.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		beats := &h.poller.beats
		var list []*held
		for range 8 {
			list = append(list, beats.hold(t.Context(), &beaten{t: t, last: time.Now()}))
			time.Sleep(3 * time.Second)
		}
		for i, l := range list {
			time.Sleep(time.Minute)
			beats.leave(l)
			if n := l.lease.(*beaten).extended.Load(); n < int64(6*(i+1)) || n > int64(12*(i+1)+8) {
				t.Errorf("lease %d was extended %d times", i, n)
			}
		}
		if len(beats.held) > 0 || beats.stop != nil {
			t.Error("something goes on")
		}
		// One that hangs stops no other, and its end is waited for.
		hangs := beats.hold(t.Context(), &beaten{t: t, last: time.Now(), hangs: true})
		other := &beaten{t: t, last: time.Now()}
		goes := beats.hold(t.Context(), other)
		time.Sleep(time.Minute)
		beats.leave(hangs)
		beats.leave(goes)
		if other.extended.Load() < 5 {
			t.Errorf("extended %d times beside one that hangs", other.extended.Load())
		}
	})
}

// beaten is a lease that is not left alone for longer than a beat.
type beaten struct {
	lease
	t     *testing.T
	last  time.Time
	hangs bool
}

func (b *beaten) Extend(ctx context.Context) error {
	b.extended.Add(1)
	if since := time.Since(b.last); since > 10*time.Second {
		b.t.Errorf("extended after %s", since)
	}
	b.last = time.Now()
	if b.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

func TestRun(t *testing.T) {
	bubble(t, "no more leases than workers", func(t *testing.T) {
		h := newHouse(t, changes{})
		var leased, most atomic.Int64
		fetch := func(ctx context.Context, limit int, _ time.Duration) ([]Lease, error) {
			if limit != 1 {
				t.Errorf("fetches %d", limit)
			}
			most.Store(max(most.Load(), leased.Add(1)))
			// An operation that nobody knows: work that is over at once, but for
			// the time its lease takes to be looked at.
			return []Lease{&slow{lease: lease{operation: operation}, done: func() { leased.Add(-1) }}}, nil
		}
		h.put(&events.CancelRequested{Who: "team-a"})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.poller.Run(ctx, []Fetch{fetch, fetch, fetch}, 2); err != nil {
			t.Error(err)
		}
		if most.Load() != 2 {
			t.Errorf("%d leases at once with 2 workers", most.Load())
		}
	})
	bubble(t, "waits long with a worker of its own, and a moment with one of all", func(t *testing.T) {
		for _, c := range []struct {
			providers, workers int
			want               []time.Duration
		}{
			{3, 5, []time.Duration{waitShared}},
			{3, 6, []time.Duration{waitOwn, waitShared}},
			{1, 1, []time.Duration{waitShared}},
		} {
			h := newHouse(t, changes{})
			waits := map[time.Duration]bool{}
			var mu sync.Mutex
			fetch := func(ctx context.Context, _ int, wait time.Duration) ([]Lease, error) {
				mu.Lock()
				waits[wait] = true
				mu.Unlock()
				time.Sleep(time.Second)
				// Busy for longer than the next fetch takes, so that both are used.
				return []Lease{&slow{lease: lease{operation: operation}, done: func() { time.Sleep(5 * time.Second) }}}, nil
			}
			h.put(&events.CancelRequested{Who: "team-a"})
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			if err := h.poller.Run(ctx, slices.Repeat([]Fetch{fetch}, c.providers), c.workers); err != nil {
				t.Error(err)
			}
			stop()
			if got := slices.SortedFunc(maps.Keys(waits), func(a, b time.Duration) int { return int(b - a) }); !slices.Equal(got, c.want) {
				t.Errorf("%d workers for %d providers wait %v, want %v", c.workers, c.providers, got, c.want)
			}
		}
	})
	bubble(t, "a store that does not answer is asked again", func(t *testing.T) {
		h := newHouse(t, changes{})
		asked := 0
		fetch := func(context.Context, int, time.Duration) ([]Lease, error) {
			asked++
			return nil, errors.New("store is gone")
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer stop()
		if err := h.poller.Run(ctx, []Fetch{fetch}, 1); err != nil || asked != 11 {
			t.Errorf("%v, asked %d times in 10 s", err, asked)
		}
	})
	bubble(t, "stops when the last worker is done", func(t *testing.T) {
		h := newHouse(t, changes{})
		due, handed := h.due(), false
		fetch := func(ctx context.Context, _ int, _ time.Duration) ([]Lease, error) {
			if handed {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			handed = true
			return []Lease{due}, nil
		}
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			stop()
			time.Sleep(3 * time.Second) // a call that cannot be broken off
			return answered(r, 201, accepts), nil
		})
		if err := h.poller.Run(ctx, []Fetch{fetch}, 2); err != nil {
			t.Error(err)
		}
		same(t, h.take(), "create.attempted", "POST /v1/jobs", "claim", "create.answered")
		if due.acked.Load() != 0 {
			t.Error("acked by a worker that was stopped")
		}
	})
	bubble(t, "over the journal's own leases", func(t *testing.T) {
		h := newHouse(t, changes{})
		tenure, err := h.journal.TakeOver(t.Context(), journal.Partition(operation))
		if err != nil {
			t.Fatal(err)
		}
		at, _ := projections.Next(h.s)
		if err := tenure.Wake(t.Context(), journal.Wake{Operation: operation, Provider: "example", Version: h.s.Sequence, At: at}); err != nil {
			t.Fatal(err)
		}
		leases, err := h.journal.Leases(t.Context(), "example")
		if err != nil {
			t.Fatal(err)
		}
		h.caller.then(says(201, accepts))
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.poller.Run(ctx, []Fetch{FromJournal(leases)}, 1); err != nil {
			t.Error(err)
		}
		if _, pending, err := h.journal.PendingWake(t.Context(), operation); pending || err != nil {
			t.Error("the wake-up is still there", err)
		}
		if s := h.state(); s.Job.ID != "j-1" {
			t.Error(s.Phase)
		}
	})
}

// slow takes a second to be acked.
type slow struct {
	lease
	done func()
}

func (l *slow) Ack(context.Context) error {
	time.Sleep(time.Second)
	l.done()
	return nil
}

// An attempt whose process is proved to be gone is closed at once.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{config: func(c *Config) { c.Gone = func(owner string) bool { return owner == "poller-1/r0" } }})
		h.put(&events.CreateAttempted{Attempt: events.Attempt{
			Number: 1, Origin: "https://api.example", Account: "main", Identity: "id-1",
			NotAfter: time.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "poller-1/r0",
		}})
		h.take()
		_, trail := h.attend()
		same(t, trail, "create.answered")
		if f := last[*events.CreateAnswered](h); f.Outcome != events.CreatePresumed || !f.OwnerGone {
			t.Errorf("%+v", f)
		}
	})
}

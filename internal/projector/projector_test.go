package projector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hall is a store with a tap on what is written to the derived streams.
type hall struct {
	t       *testing.T
	store   *tapped
	journal *journal.Journal
	log     *strings.Builder // of the projectors
	ids     atomic.Uint64
}

// tapped keeps a trail of the writes to HISTORY and WAKEUPS and can fail them.
type tapped struct {
	journal.Store

	mu    sync.Mutex
	trail []string
	fail  func(journal.Stream, string) error
}

func (s *tapped) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if err := fail(stream, m.Subject); err != nil {
			return 0, err
		}
	}
	n, err := s.Store.Publish(ctx, stream, m)
	if err != nil {
		return n, err
	}
	what := ""
	switch {
	case strings.HasPrefix(m.Subject, "epoch.") && len(m.Header) > 0:
		what = "cancel " + m.Header[journal.SchedulerHeader][0]
	case stream == journal.Wakeups && !strings.HasPrefix(m.Subject, "epoch."):
		what = m.Subject
	case stream == journal.History && !strings.HasSuffix(m.Subject, ".takeover"):
		what = "record " + m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	}
	if what != "" {
		s.mu.Lock()
		s.trail = append(s.trail, what)
		s.mu.Unlock()
	}
	return n, nil
}

// PublishRun goes message by message, as it does at a server.
func (s *tapped) PublishRun(ctx context.Context, stream journal.Stream, guard journal.Guard, list []journal.Outgoing) (n uint64, err error) {
	for _, m := range list {
		m.Guard = &guard
		if n, err = s.Publish(ctx, stream, m); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (s *tapped) failing(f func(journal.Stream, string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func (clock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newHall(t *testing.T) *hall {
	h := &hall{t: t, store: &tapped{Store: memory.New(memory.Config{Now: time.Now})}, log: &strings.Builder{}}
	h.journal = journal.New(journal.Options{Store: h.store, Now: time.Now, Sleep: clock{}.Sleep, NewID: h.id})
	return h
}

func (h *hall) id() string { return fmt.Sprintf("id-%d", h.ids.Add(1)) }

func (h *hall) projector(change ...func(*Config)) *Projector {
	c := Config{
		Journal: h.journal, Clock: clock{}, NewID: h.id, Source: "/projector/1", Build: "test-build",
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(h.log, io.Discard), nil)),
	}
	for _, f := range change {
		f(&c)
	}
	return New(c)
}

func (h *hall) take() []string {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	list := h.store.trail
	h.store.trail = nil
	return list
}

func intent() *events.IntentRecorded {
	return &events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: "main", Rules: projections.Rules,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Cancel: time.Hour, Collect: time.Hour},
		Policy:    events.Policy{PollInterval: time.Minute, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: 10 * time.Second, MaxAttempts: 5},
		Promises:  events.Promises{Guarantee: events.Deduplicated, Cancels: true, HasResult: true},
	}
}

func (h *hall) create(operation string, change ...func(*events.IntentRecorded)) {
	h.t.Helper()
	i := intent()
	for _, f := range change {
		f(i)
	}
	if _, outcome, err := h.journal.Create(context.Background(), events.Event{ID: h.id(), Source: "/test", Operation: operation, Fact: i}); err != nil || outcome != journal.Stored {
		h.t.Fatal(outcome, err)
	}
}

func (h *hall) put(operation string, facts ...events.Fact) {
	h.t.Helper()
	for _, fact := range facts {
		s := h.state(operation)
		if _, outcome, err := h.journal.Append(context.Background(), s, events.Event{ID: h.id(), Source: "/test", Fact: fact}); err != nil || outcome != journal.Stored {
			h.t.Fatal(outcome, err)
		}
	}
}

func (h *hall) state(operation string) projections.State {
	h.t.Helper()
	s, err := h.journal.Current(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func attempted(owner string) events.Attempt {
	return events.Attempt{Number: 1, Origin: "https://a", Account: "main", NotAfter: time.Now().Add(10 * time.Second), Timeout: 10 * time.Second, Owner: owner}
}

func (h *hall) accept(operation, job string) {
	h.t.Helper()
	h.put(operation, &events.CreateAttempted{Attempt: attempted("p/r")})
	h.put(operation, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: job, Claim: events.ClaimOwn, Call: events.Call{AsOf: h.state(operation).Sequence, LeftAt: time.Now()}})
}

// swept is open of a partition, caught up with and swept.
func (h *hall) swept(p *Projector, partition int) *Work {
	h.t.Helper()
	w := h.open(p, partition)
	h.catchUp(w)
	if err := w.Sweep(h.t.Context(), false); err != nil {
		h.t.Fatal(err)
	}
	return w
}

// open takes a partition over and begins work.
func (h *hall) open(p *Projector, partition int) *Work {
	h.t.Helper()
	tenure, err := h.journal.TakeOver(h.t.Context(), partition)
	if err != nil {
		h.t.Fatal(err)
	}
	w, err := p.Open(h.t.Context(), tenure)
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

// catchUp projects what is there.
func (h *hall) catchUp(w *Work) {
	h.t.Helper()
	for {
		more, err := w.Step(h.t.Context(), 0)
		if err != nil {
			h.t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

func (h *hall) pending(operation string) (journal.Wake, bool) {
	h.t.Helper()
	w, ok, err := h.journal.PendingWake(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	return w, ok
}

func (h *hall) lease() *journal.Lease {
	h.t.Helper()
	q, err := h.journal.Leases(h.t.Context(), "example")
	if err != nil {
		h.t.Fatal(err)
	}
	list, err := q.Fetch(h.t.Context(), 1, 0)
	if err != nil || len(list) != 1 {
		h.t.Fatalf("%d leases, %v", len(list), err)
	}
	return list[0]
}

// partitioned gives operations of one partition.
func partitioned(n int) (int, []string) {
	list := []string{"op_0"}
	p := journal.Partition("op_0")
	for i := 1; len(list) < n; i++ {
		if id := fmt.Sprintf("op_%d", i); journal.Partition(id) == p {
			list = append(list, id)
		}
	}
	return p, list
}

func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// For each fact the wake-up goes first, and only where the next look moved.
func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		op := ops[0]
		w := h.swept(h.projector(), partition)
		defer w.Close()
		step := func(want ...string) {
			t.Helper()
			if more, err := w.Step(t.Context(), 0); !more || err != nil {
				t.Fatal(more, err)
			}
			same(t, h.take(), want...)
		}
		h.create(op)
		step("due.example."+op, "record "+op) // due at once
		if err := h.lease().Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.put(op, &events.TagsChanged{Who: "alice", Tags: []events.Tag{{Name: "a", Value: "b"}}})
		step("record " + op) // where the next look did not move
		h.put(op, &events.CreateAttempted{Attempt: attempted("p/r")})
		step("wake."+op, "record "+op) // to presume the attempt
		h.put(op, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j-1", Claim: events.ClaimOwn, Call: events.Call{AsOf: h.state(op).Sequence, LeftAt: time.Now()}})
		step("wake."+op, "record "+op) // to read the job
		at, _ := projections.Next(h.state(op))
		if pending, ok := h.pending(op); !ok || !pending.At.Equal(at) || pending.Version != h.state(op).Sequence {
			t.Errorf("%+v, %v", pending, ok)
		}
		h.put(op, &events.JobContested{JobID: "j-1", Owner: "op_other"})
		step("cancel wake."+op, "record "+op) // none any more
		if _, ok := h.pending(op); ok {
			t.Error("a wake-up stays")
		}
		if more, err := w.Step(t.Context(), 0); more || err != nil {
			t.Error(more, err)
		}
		if r, err := h.journal.Recorded(t.Context(), op); err != nil || r.Build != "test-build" || r.State.Sequence != h.state(op).Sequence || r.To != projections.PhaseQuarantined {
			t.Errorf("%+v %v", r, err)
		}
		began := time.Now()
		if more, err := w.Step(t.Context(), 3*time.Second); more || err != nil || time.Since(began) != 3*time.Second {
			t.Error(more, err, time.Since(began))
		}
	})
}

// A crash between wake-up and record: the next tenure makes both again.
func TestCrashBetweenWakeAndRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		w := h.swept(h.projector(), partition)
		h.create(ops[0])
		h.store.failing(func(s journal.Stream, _ string) error {
			if s == journal.History {
				return errors.New("refused")
			}
			return nil
		})
		if _, err := w.Step(t.Context(), 0); err == nil {
			t.Fatal("no error")
		}
		w.Close()
		same(t, h.take(), "due.example."+ops[0])
		h.store.failing(nil)
		w = h.swept(h.projector(), partition)
		defer w.Close()
		same(t, h.take(), "record "+ops[0], "due.example."+ops[0])
	})
}

// What is caught up with gets records, and its names and wake-ups by the sweep;
// a crash before that leaves them to the next tenure's.
func TestCrashBeforeTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(2)
		for _, op := range ops {
			h.create(op, func(i *events.IntentRecorded) { i.ClientReference = "ref-" + op })
		}
		h.put(ops[1], &events.CancelRequested{Who: "a"}) // over
		w := h.open(h.projector(), partition)
		h.catchUp(w)
		w.Close()
		same(t, h.take(), "record "+ops[0], "record "+ops[1], "record "+ops[1])
		named := func(want bool) {
			t.Helper()
			for _, op := range ops {
				if got, ok, err := h.journal.Referred(t.Context(), "example", "ref-"+op); ok != want || ok && got != op || err != nil {
					t.Error(op, got, ok, err)
				}
			}
		}
		named(false)
		w = h.swept(h.projector(), partition)
		defer w.Close()
		same(t, h.take(), "due.example."+ops[0])
		named(true)
	})
}

// A wake-up that stands by the newest state may be acknowledged by one that was
// passed over: it is written anew.
func TestSweepBelievesInNothingOfWhatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		op := ops[0]
		old := h.swept(h.projector(), partition)
		h.create(op, func(i *events.IntentRecorded) { i.NotBefore = time.Now().Add(time.Hour) })
		h.catchUp(old)
		old.Close()
		h.put(op, &events.TagsChanged{Who: "alice"}) // which moves no look
		h.take()
		w := h.swept(h.projector(), partition)
		defer w.Close()
		same(t, h.take(), "record "+op, "wake."+op)
		h.put(op, &events.TagsChanged{Who: "bob"})
		h.catchUp(w)
		same(t, h.take(), "record "+op)
	})
}

func TestSweep(t *testing.T) {
	const op = "op_0"
	// begun is a hall with one operation projected to its end.
	begun := func(t *testing.T, make func(*hall), change ...func(*Config)) (*hall, *Work) {
		t.Helper()
		h := newHall(t)
		w := h.swept(h.projector(change...), journal.Partition(op))
		t.Cleanup(w.Close)
		h.create(op)
		h.catchUp(w)
		make(h)
		h.catchUp(w)
		h.take()
		return h, w
	}
	sweep := func(t *testing.T, w *Work, orphans bool) {
		t.Helper()
		if err := w.Sweep(t.Context(), orphans); err != nil {
			t.Fatal(err)
		}
	}
	nothing := func(*hall) {}
	bubble(t, "nothing is missing", func(t *testing.T) {
		h, w := begun(t, func(h *hall) { h.accept(op, "j-1") })
		for range 2 {
			sweep(t, w, false)
			sweep(t, w, true)
		}
		same(t, h.take())
	})
	bubble(t, "a lost schedule", func(t *testing.T) {
		h, w := begun(t, func(h *hall) { h.accept(op, "j-1") })
		if err := h.lease().Ack(t.Context()); err != nil { // of the create
			t.Fatal(err)
		}
		before, _ := h.pending(op)
		// The stream forgets it, as it may on power loss.
		if err := w.tenure.Wake(t.Context(), journal.Wake{Operation: op}); err != nil {
			t.Fatal(err)
		}
		if _, ok := h.pending(op); ok {
			t.Fatal("still there")
		}
		h.take()
		sweep(t, w, false)
		same(t, h.take(), "wake."+op)
		if after, ok := h.pending(op); !ok || !after.At.Equal(before.At) || after.Version != before.Version {
			t.Errorf("%+v, was %+v", after, before)
		}
	})
	bubble(t, "a wake-up of an older state", func(t *testing.T) {
		h, w := begun(t, func(h *hall) { h.accept(op, "j-1") })
		if err := w.tenure.Wake(t.Context(), journal.Wake{Operation: op, Provider: "example", Version: 1, At: time.Now().Add(10 * time.Hour)}); err != nil {
			t.Fatal(err)
		}
		h.take()
		sweep(t, w, false)
		same(t, h.take(), "wake."+op)
	})
	bubble(t, "an acked wake-up that is due", func(t *testing.T) {
		h, w := begun(t, nothing)
		if err := h.lease().Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
		sweep(t, w, false)
		same(t, h.take(), "due.example."+op)
	})
	bubble(t, "leased counts as present, unless leases are nobody's", func(t *testing.T) {
		h, w := begun(t, nothing)
		h.lease()
		sweep(t, w, false)
		same(t, h.take())
		sweep(t, w, true)
		same(t, h.take(), "due.example."+op)
		h.lease() // at once, and not after the first lease's end
	})
	bubble(t, "an operation that is over has none", func(t *testing.T) {
		h, w := begun(t, func(h *hall) { h.put(op, &events.CancelRequested{Who: "a"}) })
		sweep(t, w, true)
		same(t, h.take())
	})
	bubble(t, "rules of a later version are left alone", func(t *testing.T) {
		h := newHall(t)
		h.create(op, func(i *events.IntentRecorded) { i.Rules = projections.Rules + 1 })
		w := h.open(h.projector(), journal.Partition(op))
		defer w.Close()
		h.catchUp(w)
		h.take()
		sweep(t, w, true)
		same(t, h.take())
	})
	gone := func(c *Config) { c.Gone = func(owner string) bool { return owner == "p/dead" } }
	for name, c := range map[string]struct {
		make func(*hall)
		want func(events.Fact) bool
	}{
		"create": {
			func(h *hall) { h.put(op, &events.CreateAttempted{Attempt: attempted("p/dead")}) },
			func(f events.Fact) bool {
				a, ok := f.(*events.CreateAnswered)
				return ok && a.Outcome == events.CreatePresumed && a.OwnerGone
			},
		},
		"cancel": {
			func(h *hall) {
				h.accept(op, "j-1")
				h.put(op, &events.CancelRequested{Who: "a"}, &events.CancelAttempted{Attempt: attempted("p/dead")})
			},
			func(f events.Fact) bool {
				a, ok := f.(*events.CancelAnswered)
				return ok && a.Outcome == events.CancelPresumed
			},
		},
		"result": {
			func(h *hall) {
				h.accept(op, "j-1")
				h.put(op, &events.JobObserved{JobID: "j-1", State: events.ClassSucceeded, Call: events.Call{AsOf: h.state(op).Sequence, LeftAt: time.Now()}})
				h.put(op, &events.ResultAttempted{Attempt: attempted("p/dead")})
			},
			func(f events.Fact) bool {
				a, ok := f.(*events.ResultFailed)
				return ok && a.Outcome == events.ResultPresumed
			},
		},
		"create of an operation given up": {
			func(h *hall) {
				h.put(op, &events.CreateAttempted{Attempt: attempted("p/dead")})
				s := h.state(op)
				h.put(op, &events.DecisionMade{Choice: events.DecideAbandon, Who: "o", Why: events.Sum([]byte("why")), Sequence: s.Sequence})
			},
			func(f events.Fact) bool {
				a, ok := f.(*events.CreateAnswered)
				return ok && a.Outcome == events.CreatePresumed
			},
		},
	} {
		bubble(t, "the owner of an attempt is gone: "+name, func(t *testing.T) {
			h, w := begun(t, c.make, gone)
			before := h.state(op)
			sweep(t, w, false)
			lines, err := h.journal.Timeline(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if newest := lines[len(lines)-1].Entry.Event; !c.want(newest.Fact) || newest.Source != "/projector/1" {
				t.Errorf("%+v", newest)
			}
			h.catchUp(w)
			after := h.state(op)
			if _, open := after.OpenAttempt(); open != nil || after.Facts != before.Facts+1 {
				t.Errorf("%+v", open)
			}
			sweep(t, w, false)
			if h.state(op).Facts != after.Facts {
				t.Error("presumed twice")
			}
		})
	}
	bubble(t, "the owner of an attempt may live", func(t *testing.T) {
		h, w := begun(t, func(h *hall) { h.put(op, &events.CreateAttempted{Attempt: attempted("p/alive")}) }, gone)
		before := h.state(op).Facts
		sweep(t, w, true)
		if h.state(op).Facts != before {
			t.Error("presumed")
		}
	})
}

// A fact that nobody can read stops its operation and no other.
func TestUnreadableFact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(2)
		h.create(ops[0])
		if _, err := h.store.Publish(t.Context(), journal.Ledger, journal.Outgoing{
			Subject: fmt.Sprintf("facts.0.%02d.%s", partition, ops[0]), Data: []byte("garbage"),
		}); err != nil {
			t.Fatal(err)
		}
		h.create(ops[1])
		w := h.swept(h.projector(), partition)
		defer w.Close()
		want := []string{"record " + ops[0], "record " + ops[0], "record " + ops[1], "due.example." + ops[1]}
		same(t, h.take(), want...)
		if s := h.state(ops[0]); s.Quarantine != projections.QuarantineUnreadable || s.Facts != 2 {
			t.Errorf("%s %s, %d facts", s.Phase, s.Quarantine, s.Facts)
		}
		if r, err := h.journal.Recorded(t.Context(), ops[1]); err != nil || r.State.Phase != projections.PhaseCreatePending {
			t.Error(r.State.Phase, err)
		}
		if err := w.Sweep(t.Context(), true); err != nil {
			t.Error(err)
		}
		same(t, h.take(), "due.example."+ops[1]) // for the other alone
	})
}

// Whoever was overtaken writes nothing more, neither record nor wake-up.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(2)
		old := h.swept(h.projector(), partition)
		defer old.Close()
		h.create(ops[0])
		h.catchUp(old)
		h.create(ops[1])
		young := h.open(h.projector(), partition)
		defer young.Close()
		h.take()
		if _, err := old.Step(t.Context(), 0); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("the old one steps on: %v", err)
		}
		if err := old.Sweep(t.Context(), true); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("the old one sweeps on: %v", err)
		}
		same(t, h.take())
		h.catchUp(young)
		same(t, h.take(), "record "+ops[1])
	})
}

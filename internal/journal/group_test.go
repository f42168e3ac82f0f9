package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/conformance"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// eager groups whatever waits.
var eager = journal.GroupPolicy{Least: 2, Linger: time.Millisecond}

// ungrouped is the embedded server, for a group commit that the test makes.
func ungrouped(t *testing.T) *journal.NATS {
	t.Helper()
	n, err := journal.Connect(t.Context(), journal.Config{Dial: startServer(t).InProcess, Replicas: 1, Group: journal.GroupPolicy{Off: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if err := n.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// onBothBatchers is onBoth for what stands below a group commit.
func onBothBatchers(t *testing.T, test func(*testing.T, journal.Store)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, memory.New(memory.Config{Now: time.Now})) })
	})
	t.Run("server", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, ungrouped(t)) })
	})
}

func groupOver(t *testing.T, inner journal.Store, p journal.GroupPolicy) *journal.Grouped {
	t.Helper()
	g := journal.Group(inner, p)
	t.Cleanup(g.Close)
	return g
}

func TestGroupedConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		conformance.Run(t, func(t *testing.T) journal.Store {
			return groupOver(t, memory.New(memory.Config{Now: time.Now}), eager)
		})
	})
	t.Run("server", func(t *testing.T) {
		conformance.Run(t, func(t *testing.T) journal.Store { return groupOver(t, ungrouped(t), eager) })
	})
}

func TestBatchConformance(t *testing.T) {
	conformance.RunBatches(t, func(t *testing.T) journal.Store { return ungrouped(t) })
}

// watched sees the batches and can hold writes back.
type watched struct {
	journal.Store
	hold func(list []journal.Outgoing) // before it is passed on; nil: not

	mu    sync.Mutex
	sizes []int               // of the writes in the order in which they were sent; 1: alone
	under map[string]struct{} // subjects
	twice bool                // a subject was under way twice
}

func (w *watched) enter(list []journal.Outgoing) {
	w.mu.Lock()
	w.sizes = append(w.sizes, len(list))
	if w.under == nil {
		w.under = map[string]struct{}{}
	}
	for _, m := range list {
		_, is := w.under[m.Subject]
		w.twice = w.twice || is
		w.under[m.Subject] = struct{}{}
	}
	w.mu.Unlock()
	if w.hold != nil {
		w.hold(list)
	}
}

func (w *watched) leave(list []journal.Outgoing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range list {
		delete(w.under, m.Subject)
	}
}

func (w *watched) sent() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sizes)
}

func (w *watched) Publish(ctx context.Context, s journal.Stream, m journal.Outgoing) (uint64, error) {
	list := []journal.Outgoing{m}
	w.enter(list)
	defer w.leave(list)
	return w.Store.Publish(ctx, s, m)
}

func (w *watched) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	w.enter(list)
	defer w.leave(list)
	return w.Store.PublishBatch(ctx, s, list)
}

// written is how one write of a test ended.
type written struct {
	sequence uint64
	err      error
}

// crowd makes a batch of all the messages: they come while others, which it
// makes too, are held back, one alone and two in a batch. meanwhile runs when
// all wait.
func crowd(t *testing.T, w *watched, p journal.GroupPolicy, s journal.Stream, list []journal.Outgoing, contexts map[int]context.Context, meanwhile func(*journal.Grouped)) []written {
	t.Helper()
	gate := make(chan struct{})
	w.hold = func([]journal.Outgoing) { <-gate }
	g := groupOver(t, w, p)
	var group sync.WaitGroup
	subject := func(i int) string {
		if s == journal.Payloads {
			return fmt.Sprintf("payloads.first%d", i)
		}
		return fmt.Sprintf("facts.0.00.first%d", i)
	}
	for i := range 3 {
		group.Go(func() {
			if _, err := g.Publish(t.Context(), s, journal.Outgoing{Subject: subject(i)}); err != nil {
				t.Errorf("first: %v", err)
			}
		})
		synctest.Wait()
	}
	out := make([]written, len(list))
	for i, m := range list {
		ctx := contexts[i]
		if ctx == nil {
			ctx = t.Context()
		}
		group.Go(func() { out[i].sequence, out[i].err = g.Publish(ctx, s, m) })
		synctest.Wait() // in order
	}
	if meanwhile != nil {
		meanwhile(g)
	}
	close(gate)
	group.Wait()
	return out
}

func takeTime([]journal.Outgoing) { time.Sleep(time.Millisecond) }

func sleepABit() { time.Sleep(100 * time.Millisecond); synctest.Wait() }

func facts(n int) []journal.Outgoing {
	list := make([]journal.Outgoing, n)
	for i := range list {
		list[i] = journal.Outgoing{Subject: fmt.Sprintf("facts.0.01.op_%d", i), Data: fmt.Append(nil, i), Guard: &journal.Guard{}}
	}
	return list
}

func inStream(t *testing.T, s journal.Store, name journal.Stream, subject string) []journal.Message {
	t.Helper()
	var list []journal.Message
	for from := uint64(1); ; {
		m, err := s.Next(t.Context(), name, subject, from)
		if errors.Is(err, journal.ErrNoMessage) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
		from = m.Sequence + 1
	}
}

func TestWritesThatWaitGoTogether(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		w := &watched{Store: store}
		list := facts(40)
		for i, got := range crowd(t, w, eager, journal.Ledger, list, nil, nil) {
			if got.err != nil {
				t.Fatalf("write %d: %v", i, got.err)
			}
			m, err := store.Last(t.Context(), journal.Ledger, list[i].Subject)
			if err != nil || m.Sequence != got.sequence || string(m.Data) != fmt.Sprint(i) {
				t.Fatalf("write %d is said to be at %d: %+v, %v", i, got.sequence, m, err)
			}
		}
		if sizes := w.sent(); !slices.Contains(sizes, 40) {
			t.Errorf("sent as %v, want one batch of 40", sizes)
		}
	})
}

// Bounds of a batch by number and by bytes.
func TestBatchesAreBounded(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		w := &watched{Store: store}
		list := facts(40)
		list[20].Data = make([]byte, 200<<10)
		p := eager
		p.Most, p.Bytes = 16, 100<<10
		for i, got := range crowd(t, w, p, journal.Ledger, list, nil, nil) {
			if got.err != nil {
				t.Fatalf("write %d: %v", i, got.err)
			}
		}
		if most := slices.Max(w.sent()); most != 16 {
			t.Errorf("sent as %v, want batches of at most 16", w.sent())
		}
	})
}

// One write whose guard does not hold has the batch refused. It alone hears so.
func TestOneConflictInABatch(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		for _, at := range []int{0, 17, 39} {
			list := facts(40)
			for i := range list {
				list[i].Subject += fmt.Sprintf("_%d", at)
			}
			// By another process: this one does not know.
			if _, err := store.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: list[at].Subject}); err != nil {
				t.Fatal(err)
			}
			w := &watched{Store: store}
			for i, got := range crowd(t, w, eager, journal.Ledger, list, nil, nil) {
				switch {
				case i == at && !errors.Is(got.err, journal.ErrWrongSequence):
					t.Errorf("the beaten write %d: %v", i, got.err)
				case i != at && got.err != nil:
					t.Errorf("write %d: %v", i, got.err)
				}
				if n := len(inStream(t, store, journal.Ledger, list[i].Subject)); n != 1 {
					t.Errorf("%s is there %d times", list[i].Subject, n)
				}
			}
			sizes := w.sent()
			if i := slices.Index(sizes, 40); i < 0 || !slices.Equal(sizes[i:], []int{40, 19, 20}) {
				t.Errorf("conflict at %d: sent as %v, want 40, then its other 39 in halves", at, sizes)
			}
		}
	})
}

// A guard ahead of its subject names no message that came first: the halves
// find the write it is on.
func TestAGuardAheadIsFoundInHalves(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		w := &watched{Store: store}
		list := facts(32)
		list[9].Guard = &journal.Guard{Sequence: 1 << 40}
		for i, got := range crowd(t, w, eager, journal.Ledger, list, nil, nil) {
			if i == 9 != errors.Is(got.err, journal.ErrWrongSequence) || i != 9 && got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
		}
	})
}

// What goes wrong with a batch as a whole: every append of it ends in stored
// and is in the ledger once.
func TestABatchGoesWrong(t *testing.T) {
	for _, fault := range []memory.Fault{
		{Kind: memory.Undone}, {Kind: memory.Done}, {Kind: memory.Late}, {Kind: memory.Late, After: 3}, {Kind: memory.InFlight}, {Kind: memory.Unavailable},
	} {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			onBothBatchers(t, func(t *testing.T, store journal.Store) {
				var hit atomic.Int64
				faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
					if c.Op == memory.OpBatch && hit.Add(1) <= 3 {
						return fault
					}
					return memory.Fault{}
				})
				j := newJournal(groupOver(t, &watched{Store: faulty, hold: takeTime}, eager))
				var group sync.WaitGroup
				for i := range 60 {
					group.Go(func() {
						if _, outcome, err := j.Create(t.Context(), intent(fmt.Sprintf("op_%d", i))); err != nil || outcome != journal.Stored {
							t.Errorf("operation %d: %v, %v", i, outcome, err)
						}
						if _, err := j.PutPayload(t.Context(), fmt.Append(nil, i%20)); err != nil {
							t.Errorf("payload %d: %v", i, err)
						}
					})
				}
				group.Wait()
				faulty.Land(t.Context())
				if hit.Load() == 0 {
					t.Fatal("there was no batch: the test shows nothing")
				}
				if n := len(inStream(t, store, journal.Ledger, "facts.>")); n != 60 {
					t.Errorf("%d facts, want 60", n)
				}
				if n := len(inStream(t, store, journal.Payloads, "payloads.>")); n != 20 {
					t.Errorf("%d payloads, want 20", n)
				}
			})
		})
	}
}

// Many authors over one group commit, with random faults at single writes, at
// batches and at reads.
func TestGroupedAppendsKeepTheModel(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		const authors, rounds, operations = 24, 20, 12
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(3, 4))
		faulty := memory.Inject(store, func(c memory.Call) memory.Fault {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != memory.OpPublish && c.Op != memory.OpBatch && r.IntN(10) > 0 || r.IntN(4) > 0 {
				return memory.Fault{}
			}
			return memory.Fault{Kind: memory.Kind(r.IntN(6)), After: r.IntN(3)}
		})
		w := &watched{Store: faulty, hold: takeTime}
		g := groupOver(t, w, eager)
		plain, j := newJournal(store), newJournal(g)
		for o := range operations {
			create(t, plain, fmt.Sprintf("op_%d", o))
		}
		type made struct {
			e       events.Event
			behind  events.Digest
			outcome journal.Outcome
		}
		results := make([][]made, authors)
		var group sync.WaitGroup
		for a := range authors {
			r := rand.New(rand.NewPCG(2, uint64(a)))
			group.Go(func() {
				for range rounds {
					s, err := plain.Current(t.Context(), fmt.Sprintf("op_%d", r.IntN(operations)))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
					e := evidence()
					if r.IntN(2) == 0 {
						e = permit(1)
					}
					e.Operation = s.Operation
					_, outcome, err := j.Append(t.Context(), s, e)
					if err != nil || outcome == journal.Unsettled {
						t.Errorf("append: %v, %v", outcome, err)
						return
					}
					results[a] = append(results[a], made{e, s.Head, outcome})
				}
			})
		}
		group.Wait()
		faulty.Land(t.Context())
		count := map[string]int{}
		behind := map[string]events.Digest{}
		for o := range operations {
			operation := fmt.Sprintf("op_%d", o)
			ledgerIDs(t, plain, operation)
			lines, err := plain.Timeline(t.Context(), operation)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				count[l.Entry.Event.ID]++
				behind[l.Entry.Event.ID] = l.Entry.Event.Previous
			}
		}
		for _, m := range slices.Concat(results...) {
			want := 1
			if m.outcome == journal.Superseded {
				want = 0
			}
			if count[m.e.ID] != want {
				t.Errorf("%s %s ended %v and is %d times in the ledger", m.e.Fact.Type(), m.e.ID, m.outcome, count[m.e.ID])
			}
			if m.e.Fact.Kind() == events.Permit && want == 1 && behind[m.e.ID] != m.behind {
				t.Errorf("permit %s stands behind another fact than it was decided on", m.e.ID)
			}
		}
		if slices.Max(w.sent()) < 2 || w.twice {
			t.Errorf("batches of at most %d; a subject under way twice: %v", slices.Max(w.sent()), w.twice)
		}
	})
}

// One subject, one process: the writes reach the server in the order in which
// they came, one at a time, and those that cannot hold any more do not.
func TestOneSubjectKeepsItsOrder(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		w := &watched{Store: store}
		list := facts(30)
		for i := 10; i < 20; i++ {
			list[i] = journal.Outgoing{Subject: "facts.0.01.same", Data: fmt.Append(nil, i)}
		}
		list[20] = journal.Outgoing{Subject: "facts.0.01.same", Guard: &journal.Guard{}}
		out := crowd(t, w, eager, journal.Ledger, list, nil, nil)
		for i, got := range out {
			if i == 20 != errors.Is(got.err, journal.ErrWrongSequence) || i != 20 && got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
		}
		for i, m := range inStream(t, store, journal.Ledger, "facts.0.01.same") {
			if string(m.Data) != fmt.Sprint(i+10) {
				t.Errorf("place %d has write %s", i, m.Data)
			}
		}
		if w.twice {
			t.Error("the subject was under way twice at once")
		}
	})
}

// The end of one caller's context is its own affair.
func TestOneCallerLeaves(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		waits, stop := context.WithCancel(t.Context())
		list := facts(20)
		w := &watched{Store: store}
		out := crowd(t, w, eager, journal.Ledger, list, map[int]context.Context{7: waits}, func(*journal.Grouped) {
			stop()
			synctest.Wait()
		})
		for i, got := range out {
			if i == 7 != (errors.Is(got.err, journal.ErrUnanswered) && errors.Is(got.err, context.Canceled)) || i != 7 && got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
		}
		if n := len(inStream(t, store, journal.Ledger, list[7].Subject)); n != 0 {
			t.Error("it was taken out before it was sent, and is there")
		}

		// While its batch is under way: the batch goes on, and so it is stored.
		list = facts(20)
		for i := range list {
			list[i].Subject += "_b"
		}
		leaves, leave := context.WithCancel(t.Context())
		gate := make(chan struct{})
		held := &watched{Store: store, hold: func(l []journal.Outgoing) {
			if len(l) == 20 {
				<-gate
			}
		}}
		once := sync.OnceFunc(func() { close(gate) })
		defer once()
		outer := &watched{Store: held}
		out = crowd(t, outer, eager, journal.Ledger, list, map[int]context.Context{7: leaves}, func(*journal.Grouped) {
			go func() {
				time.Sleep(time.Second)
				leave()
				time.Sleep(time.Second)
				once()
			}()
		})
		for i, got := range out {
			if i == 7 != (errors.Is(got.err, journal.ErrUnanswered) && errors.Is(got.err, context.Canceled)) || i != 7 && got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
			if n := len(inStream(t, store, journal.Ledger, list[i].Subject)); n != 1 {
				t.Errorf("write %d is there %d times", i, n)
			}
		}
	})
}

// Closing waits for what is there and takes no more.
func TestCloseDrains(t *testing.T) {
	onBothBatchers(t, func(t *testing.T, store journal.Store) {
		w := &watched{Store: store}
		var closed atomic.Bool
		out := crowd(t, w, eager, journal.Ledger, facts(20), nil, func(g *journal.Grouped) {
			go func() {
				g.Close()
				closed.Store(true)
			}()
			sleepABit()
			if closed.Load() {
				t.Error("closed while writes wait")
			}
			if _, err := g.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: "facts.0.01.late"}); err == nil || errors.Is(err, journal.ErrUnanswered) {
				t.Errorf("a write after the end: %v", err)
			}
		})
		for i, got := range out {
			if got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
		}
		synctest.Wait()
		if !closed.Load() {
			t.Error("not closed although all is done")
		}
	})
}

// What waits is bounded: who comes when it is full waits for room, as long as
// its context allows.
func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{Now: time.Now})
		w := &watched{Store: store}
		list := facts(10)
		for i := range list {
			list[i].Data = make([]byte, 8<<20)
		}
		reached := func() (n int) {
			for i := range list {
				n += len(inStream(t, store, journal.Ledger, list[i].Subject))
			}
			return n
		}
		ctx, cancel := context.WithCancel(t.Context())
		contexts := map[int]context.Context{8: ctx}
		out := crowd(t, w, eager, journal.Ledger, list, contexts, func(*journal.Grouped) {
			cancel()
			synctest.Wait()
			if n := reached(); n != 0 {
				t.Errorf("%d were sent past those that are held", n)
			}
		})
		for i, got := range out {
			if i == 8 != errors.Is(got.err, journal.ErrUnanswered) || i != 8 && got.err != nil {
				t.Errorf("write %d: %v", i, got.err)
			}
		}
		if n := reached(); n != 9 {
			t.Errorf("%d were stored, want 9", n)
		}
	})
}

// The server is stopped while batches are under way and comes back: every
// append ends in stored and is in the ledger once.
func TestServerStopsUnderBatches(t *testing.T) {
	reconnecting(t, func(t *testing.T) {
		dir := t.TempDir()
		begin := func(run string) *broker.Broker {
			b, err := broker.Start(broker.Config{Dir: dir, Run: run, Now: time.Now, Sync: broker.SyncAlways})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		var running atomic.Pointer[broker.Broker]
		b := begin("one")
		running.Store(b)
		n, err := journal.Connect(t.Context(), journal.Config{
			Dial: func() (net.Conn, error) { return running.Load().InProcess() }, Replicas: 1, Group: eager,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		j := newJournal(n)
		const authors, each = 40, 20
		var stored atomic.Int64
		var group sync.WaitGroup
		for a := range authors {
			group.Go(func() {
				for i := range each {
					if _, outcome, err := j.Create(t.Context(), intent(fmt.Sprintf("op_%d_%d", a, i))); err != nil || outcome != journal.Stored {
						t.Errorf("%d %d: %v, %v", a, i, outcome, err)
					}
					stored.Add(1)
				}
			})
		}
		for stored.Load() < authors*each/4 {
			time.Sleep(time.Microsecond)
		}
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		if stored.Load() == authors*each {
			t.Error("all was stored before the server stopped: the test shows nothing")
		}
		time.Sleep(20 * time.Second)
		b = begin("two")
		running.Store(b)
		group.Wait()
		facts := inStream(t, n, journal.Ledger, "facts.>")
		if len(facts) != authors*each {
			t.Errorf("%d facts, want %d", len(facts), authors*each)
		}
		batches := 0
		for _, m := range facts {
			if len(m.Header["Nats-Batch-Id"]) > 0 {
				batches++
			}
		}
		if batches == 0 {
			t.Error("nothing went in a batch: the test shows nothing")
		}
		n.Close()
		brokertest.End(t, b)
	})
}

// reconnecting runs a test in a bubble in which a connection is lost and comes
// back. The client library keeps timers for reuse when it reconnects, and one of
// another bubble ends the process: a sync.Pool is empty after two collections.
func reconnecting(t *testing.T, test func(*testing.T)) {
	t.Helper()
	forget := func() { runtime.GC(); runtime.GC() }
	forget()
	defer forget()
	synctest.Test(t, test)
}

// cutting ends its connection at the commit of a batch: before it is passed on,
// or after.
type cutting struct {
	net.Conn
	after bool
	left  *atomic.Int64 // how many more times
	seen  []byte        // the last bytes written
}

var commitLine = []byte("Nats-Batch-Commit: 1")

func (c *cutting) Write(b []byte) (int, error) {
	c.seen = append(c.seen, b...)
	hit := bytes.Contains(c.seen, commitLine)
	c.seen = c.seen[max(0, len(c.seen)-len(commitLine)+1):]
	if !hit || c.left.Add(-1) < 0 {
		return c.Conn.Write(b)
	}
	if c.after {
		if n, err := c.Conn.Write(b); err != nil {
			return n, err
		}
	}
	_ = c.Close() // the break is what is wanted
	return 0, errors.New("cut")
}

// The connection breaks at the commit of a batch, before the server has it and
// after: every append ends in stored and is in the ledger once.
func TestTheConnectionBreaksUnderABatch(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after=%v", after), func(t *testing.T) {
			reconnecting(t, func(t *testing.T) {
				b := startServer(t)
				var left atomic.Int64
				n, err := journal.Connect(t.Context(), journal.Config{
					Replicas: 1, Group: journal.GroupPolicy{Off: true},
					Dial: func() (net.Conn, error) {
						conn, err := b.InProcess()
						return &cutting{Conn: conn, after: after, left: &left}, err
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(n.Close)
				if err := n.Provision(t.Context()); err != nil {
					t.Fatal(err)
				}
				left.Store(3)
				w := &watched{Store: n, hold: takeTime}
				j := newJournal(groupOver(t, w, eager))
				var group sync.WaitGroup
				for i := range 60 {
					group.Go(func() {
						if _, outcome, err := j.Create(t.Context(), intent(fmt.Sprintf("op_%d", i))); err != nil || outcome != journal.Stored {
							t.Errorf("operation %d: %v, %v", i, outcome, err)
						}
					})
				}
				group.Wait()
				if n := len(inStream(t, connect(t, b), journal.Ledger, "facts.>")); n != 60 {
					t.Errorf("%d facts, want 60", n)
				}
				if left.Load() == 3 {
					t.Error("the connection was not cut: the test shows nothing")
				}
			})
		})
	}
}

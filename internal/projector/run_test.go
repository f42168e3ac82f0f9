package projector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// running starts a projector and gives what ends it and waits for its end.
func (h *hall) running(p *Projector, partitions []int, ready func()) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, partitions, ready) }()
	return func() error {
		cancel()
		return <-done
	}
}

func TestRun(t *testing.T) {
	bubble(t, "ready once all have caught up and were swept", func(t *testing.T) {
		h := newHall(t)
		var partitions []int
		ops := []string{"op_0", "op_1", "op_2", "op_3"}
		for _, op := range ops {
			h.create(op)
			partitions = append(partitions, journal.Partition(op))
		}
		readies := 0
		stop := h.running(h.projector(), partitions, func() {
			readies++
			for _, op := range ops {
				if _, err := h.journal.Recorded(context.Background(), op); err != nil {
					t.Errorf("ready without %s: %v", op, err)
				}
			}
		})
		synctest.Wait()
		if readies != 1 {
			t.Errorf("ready %d times", readies)
		}
		h.create("op_0_more")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if readies != 1 {
			t.Error("ready again")
		}
	})
	bubble(t, "not ready while one cannot catch up; then it can", func(t *testing.T) {
		h := newHall(t)
		h.create("op_0")
		broken := true
		h.store.failing(func(s journal.Stream, subject string) error {
			if broken && s == journal.History && strings.HasSuffix(subject, ".op_0") {
				return errors.New("refused")
			}
			return nil
		})
		ready := false
		stop := h.running(h.projector(), []int{journal.Partition("op_0")}, func() { ready = true })
		time.Sleep(time.Minute)
		synctest.Wait()
		if ready {
			t.Error("ready without a record")
		}
		if !strings.Contains(h.log.String(), "starts over") {
			t.Errorf("log: %s", h.log)
		}
		h.store.mu.Lock()
		broken = false
		h.store.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !ready {
			t.Error("not ready")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if r, err := h.journal.Recorded(context.Background(), "op_0"); err != nil || r.Sequence != 1 {
			t.Error(r.Sequence, err)
		}
	})
	bubble(t, "follows the ledger and sweeps at intervals", func(t *testing.T) {
		h := newHall(t)
		stop := h.running(h.projector(func(c *Config) { c.Sweep = time.Minute }), []int{journal.Partition("op_0")}, func() {})
		time.Sleep(10 * time.Second)
		h.create("op_0")
		synctest.Wait()
		same(t, h.take(), "due.example.op_0", "record op_0")
		if err := h.lease().Ack(t.Context()); err != nil { // lost
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		same(t, h.take())
		time.Sleep(11 * time.Second)
		synctest.Wait()
		same(t, h.take(), "due.example.op_0")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "alone, the first sweep gives nobody's leases out again, later ones do not", func(t *testing.T) {
		h := newHall(t)
		h.create("op_0")
		p := func() *Projector { return h.projector(func(c *Config) { c.Alone, c.Sweep = true, time.Second }) }
		stop := h.running(p(), []int{journal.Partition("op_0")}, func() {})
		synctest.Wait()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		h.lease()
		h.take()
		stop = h.running(p(), []int{journal.Partition("op_0")}, func() {})
		synctest.Wait()
		same(t, h.take(), "due.example.op_0")
		h.lease()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		same(t, h.take())
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "a partition that was taken over is left, the others go on", func(t *testing.T) {
		h := newHall(t)
		lost, kept := "op_0", "op_1"
		if journal.Partition(lost) == journal.Partition(kept) {
			t.Fatal("choose other ids")
		}
		stop := h.running(h.projector(), []int{journal.Partition(lost), journal.Partition(kept)}, func() {})
		synctest.Wait()
		young := h.swept(h.projector(), journal.Partition(lost))
		defer young.Close()
		h.create(lost)
		h.create(kept)
		synctest.Wait()
		same(t, h.take(), "due.example."+kept, "record "+kept)
		if !strings.Contains(h.log.String(), "taken over by another") {
			t.Errorf("log: %s", h.log)
		}
		h.catchUp(young)
		same(t, h.take(), "due.example."+lost, "record "+lost)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "ready although a partition was taken over before it caught up", func(t *testing.T) {
		h := newHall(t)
		h.create("op_0")
		var young *Work
		first := true
		h.store.failing(func(s journal.Stream, subject string) error {
			if s == journal.History && strings.HasSuffix(subject, ".op_0") && first {
				first = false
				young = h.open(h.projector(), journal.Partition("op_0"))
			}
			return nil
		})
		ready := false
		stop := h.running(h.projector(), []int{journal.Partition("op_0"), journal.Partition("op_1")}, func() { ready = true })
		time.Sleep(time.Minute)
		synctest.Wait()
		if young == nil {
			t.Fatal("not taken over")
		}
		defer young.Close()
		if !ready {
			t.Error("never ready: the partition is another's to catch up with")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "a store that is gone ends with the context", func(t *testing.T) {
		h := newHall(t)
		h.store.failing(func(journal.Stream, string) error { return errors.New("gone") })
		stop := h.running(h.projector(), []int{0, 1}, func() { t.Error("ready") })
		time.Sleep(5 * time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What an old tenure could not see answered is not projected twice.
func TestRecordedButUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		partition, ops := partitioned(1)
		h.create(ops[0])
		h.put(ops[0], &events.TagsChanged{Who: "a"})
		w := h.open(h.projector(), partition)
		h.catchUp(w)
		w.Close()
		h.take()
		w = h.swept(h.projector(), partition)
		defer w.Close()
		h.take()
		h.put(ops[0], &events.CancelRequested{Who: "a"})
		h.catchUp(w)
		r, err := h.journal.Recorded(t.Context(), ops[0])
		if err != nil || r.State.Facts != 3 || r.To != projections.PhaseCancelled {
			t.Errorf("%+v %v", r, err)
		}
		same(t, h.take(), "cancel wake."+ops[0], "record "+ops[0])
	})
}

// At the start the partitions that have something to catch up with read the ledger
// together, once, and go on by themselves.
func TestPartitionsCatchUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		store := &readers{Store: h.store}
		h.journal = journal.New(journal.Options{Store: store, Now: time.Now, Sleep: clock{}.Sleep, NewID: h.id})
		var ops []string
		for i := range 40 {
			op := fmt.Sprintf("op_%d", i)
			ops = append(ops, op)
			h.create(op)
		}
		for _, op := range ops {
			h.put(op, &events.TagsChanged{Who: "alice"})
		}
		all := make([]int, journal.Partitions)
		for i := range all {
			all[i] = i
		}
		ready := false
		stop := h.running(h.projector(), all, func() { ready = true })
		synctest.Wait()
		if !ready {
			t.Fatal("not ready")
		}
		if n := store.all.Load(); n != 1 {
			t.Errorf("the ledger was read %d times as a whole, want once", n)
		}
		for _, op := range ops {
			if r, err := h.journal.Recorded(t.Context(), op); err != nil || r.State.Facts != 2 {
				t.Errorf("%s: %d facts, %v", op, r.State.Facts, err)
			}
			h.put(op, &events.TagsChanged{Who: "bob"})
		}
		synctest.Wait()
		for _, op := range ops {
			if r, err := h.journal.Recorded(t.Context(), op); err != nil || r.State.Facts != 3 {
				t.Errorf("%s: %d facts, %v", op, r.State.Facts, err)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// readers counts who reads the ledger as a whole.
type readers struct {
	journal.Store
	all atomic.Int64
}

func (r *readers) Read(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	if s == journal.Ledger && subject == ">" {
		r.all.Add(1)
	}
	return r.Store.Read(ctx, s, subject, from)
}

package projector

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// counting counts what is read as a whole.
type counting struct {
	journal.Store
	whole atomic.Int64
}

func (c *counting) Newest(ctx context.Context, s journal.Stream, subject string, do func(journal.Message) error) error {
	if s == journal.History {
		c.whole.Add(1)
	}
	return c.Store.Newest(ctx, s, subject, do)
}

// The partitions of a process sweep together, at the start and each time after,
// and read the history once.
func TestPartitionsSweepTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: memory.New(memory.Config{Now: time.Now})}
		var n atomic.Int64
		newID := func() string { return "id" + strconv.FormatInt(n.Add(1), 10) }
		j := journal.New(journal.Options{Store: store, Now: time.Now, Sleep: clock{}.Sleep, NewID: newID})
		p := New(Config{
			Journal: j, Clock: clock{}, NewID: newID, Log: slog.New(slog.DiscardHandler), Source: "/p", Build: "t", Alone: true,
			Sweep: time.Minute,
		})
		partitions := make([]int, journal.Partitions)
		for i := range partitions {
			partitions[i] = i
		}
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		ready := make(chan struct{})
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, partitions, func() { close(ready) }) }()
		<-ready
		if took := time.Since(began); took > 0 || store.whole.Load() != 1 {
			t.Errorf("ready after %s, the history was read %d times, want at once and once", took, store.whole.Load())
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if n := store.whole.Load(); n != 2 {
			t.Errorf("after the second sweep it was read %d times, want 2", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// counts notes when a partition was counted.
type counts struct {
	*tally
	at []time.Time
}

func (c *counts) Counted(p string, open map[Standing]int) {
	c.tally.Counted(p, open)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
}

// A sweep for which nobody waits takes its time, and what comes meanwhile is
// projected.
func TestRoundsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		h := newHall(t)
		partition, ops := partitioned(n + 1)
		for _, op := range ops[:n] {
			h.create(op)
		}
		d := &told{at: map[string]time.Time{}}
		c := &counts{tally: newTally()}
		began := time.Now()
		ready := make(chan struct{})
		stop := h.running(h.projector(withTimers(d), func(cfg *Config) { cfg.Observe = c }), []int{partition}, func() { close(ready) })
		<-ready
		if took := time.Since(began); took > 0 {
			t.Errorf("ready after %s", took)
		}
		d.take()
		time.Sleep(n * time.Second / roundRate / 2)
		h.create(ops[n])
		time.Sleep(time.Millisecond)
		if len(d.take()) == 0 {
			t.Error("what came during the sweep was not projected")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(c.at) != 2 || c.at[1].Sub(c.at[0]) < n*time.Second/roundRate-roundRest {
			t.Errorf("counted at %v, began at %s", c.at, began)
		}
		open := 0
		for _, n := range c.counts(journal.PartitionName(partition)) {
			open += n
		}
		if open != n+1 {
			t.Errorf("%d are open, want %d", open, n+1)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPace(t *testing.T) {
	for _, c := range []struct {
		name   string
		last   int  // states of the round before
		waited bool // for by one of the members
		want   time.Duration
	}{
		{"few", 100, false, 4 * time.Second},
		{"many", 10 * roundRate * 120, false, 400 * time.Millisecond},
		{"somebody waits", 100, true, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := New(Config{Clock: clock{}})
			p.rounds.states = c.last
			step := func() error { return nil }
			r := &round{members: map[string]*member{"00": {meanwhile: step}, "01": {meanwhile: step}}}
			if c.waited {
				r.members["01"].meanwhile = nil
			}
			began, pace := time.Now(), p.pace(r)
			for range 4 * roundRate {
				if err := pace(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took < c.want-roundRest || took > c.want {
				t.Errorf("took %s, want %s", took, c.want)
			}
			if p.rounds.states != 4*roundRate {
				t.Errorf("noted %d states", p.rounds.states)
			}
		})
	}
}

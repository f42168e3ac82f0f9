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

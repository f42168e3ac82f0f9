package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// spare is what may be allocated beside what is in use before it is collected,
	// within the bounds in percent of that. Small heaps so cost no more time than with
	// Go's own setting, and large ones, of which the embedded server's indexes and
	// blocks are most, less memory. A limit in bytes would be right for one number of
	// operations and stop the service at another: see docs/PERFORMANCE.md.
	spare                 = 64 << 20 // bytes
	leastSpare, mostSpare = 50, 100  // percent

	heapEvery = time.Second

	// giveBackEvery is how often it is asked whether the process holds so much more
	// than after it gave memory back last. A sweep reads whole streams, whose blocks
	// the server keeps for 10 s; then nothing may happen for minutes that has the
	// runtime collect and return them.
	giveBackEvery = 30 * time.Second
	giveBackLeast = 48 << 20 // bytes
)

// thrift gives back what the process holds from the system but does not need.
type thrift struct {
	held  uint64 // after it gave back last, or less
	again bool   // that helped: the server may have let go of its blocks by now
}

// look gives back where what is held has grown, or where that helped the last time.
// free costs a garbage collection.
func (t *thrift) look(holds func() uint64, free func()) {
	now := holds()
	if now < t.held+giveBackLeast && !t.again {
		t.held = min(now, t.held)
		return
	}
	free()
	t.held = holds()
	t.again = t.held+giveBackLeast <= now
}

// holds is what the process has from the system.
func holds() uint64 {
	list := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(list)
	return list[0].Value.Uint64() - list[1].Value.Uint64()
}

// keepHeapSmall sets how soon garbage is collected, until ctx ends. What is set in
// the environment counts, and then it does nothing.
func keepHeapSmall(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	every := time.NewTicker(heapEvery)
	defer every.Stop()
	// Not known: an earlier run in this process may have set it.
	now, live := 0, []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	memory, asked := thrift{held: holds()}, time.Now()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		if time.Since(asked) > giveBackEvery {
			memory.look(holds, debug.FreeOSMemory)
			asked = time.Now()
		}
		metrics.Read(live)
		if percent := spareFor(live[0].Value.Uint64()); percent != now {
			debug.SetGCPercent(percent)
			now = percent
		}
	}
}

// spareFor gives the spare memory in percent of what is in use, in steps: setting it stops
// the process for a moment.
func spareFor(live uint64) int {
	const step = 10
	percent := spare * 100 / max(live, 1) / step * step
	return int(min(max(percent, leastSpare), mostSpare))
}

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
	giveBackMost  = 96 << 20 // bytes
)

// giveBack returns what the process holds from the system but does not need, where
// that has grown since it held so much, and once again the next time, when the
// server has let go of its blocks. It gives what is held then. Each time costs a
// garbage collection.
func giveBack(held uint64, again bool) (uint64, bool) {
	now := holds()
	if now < held+giveBackMost && !again {
		return min(now, held), false
	}
	debug.FreeOSMemory()
	return holds(), !again
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
	held, again, asked := holds(), false, time.Now()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		if time.Since(asked) > giveBackEvery {
			held, again = giveBack(held, again)
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

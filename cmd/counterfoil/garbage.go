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
)

// keepHeapSmall sets how soon garbage is collected, until ctx ends. What is set in
// the environment counts, and then it does nothing.
func keepHeapSmall(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	every := time.NewTicker(heapEvery)
	defer every.Stop()
	now, live := mostSpare, []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
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

// Package disk keeps a reserve of free space: while less is left, nothing new is
// begun, so that what is under way can still be written down.
//
// Limits. The space is asked for at intervals, so a reserve must hold what is
// written in one of them. What the reserve cannot do is make room: that is a
// person's work.
package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Every is how often the free space is asked for.
const Every = 5 * time.Second

// ErrUnknown says that this system does not tell the free space.
var ErrUnknown = errors.New("the free space of a directory is not known on this system")

// Clock is the watcher's time. Sleep returns early with ctx's error.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Config of a [Reserve]. All fields are required but Least.
type Config struct {
	Free  func() (uint64, error) // bytes that this process may still write
	Least uint64                 // bytes; 0 keeps no reserve
	Clock Clock
	Log   *slog.Logger
}

// Reserve says whether less is free than must be. It is safe for concurrent use.
type Reserve struct {
	cfg Config

	mu    sync.Mutex
	free  uint64    // as last asked; guarded by mu, as the rest
	err   error     // why it could not be asked
	low   bool      // less than the reserve, and not yet enough above it again
	since time.Time // when low last changed
}

// New asks for the free space once and begins with what it learns.
func New(ctx context.Context, cfg Config) *Reserve {
	r := &Reserve{cfg: cfg, since: cfg.Clock.Now()}
	r.Look(ctx)
	return r
}

// Run asks again and again until ctx ends, which is not an error.
func (r *Reserve) Run(ctx context.Context) error {
	for r.cfg.Clock.Sleep(ctx, Every) == nil {
		r.Look(ctx)
	}
	return nil
}

// Look asks for the free space now. Going below the reserve is an error in the
// log and coming back a line of information, one each: it comes back only an
// eighth above the reserve, so that it does not flap about the edge. Where the
// space cannot be asked for, what was known stands.
func (r *Reserve) Look(ctx context.Context) {
	free, err := r.cfg.Free()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.err == nil {
			r.cfg.Log.WarnContext(ctx, "the free space of the data directory cannot be asked for", "error", err)
		}
		r.err = err
		return
	}
	r.err, r.free = nil, free
	low := free < r.cfg.Least
	if r.low && free < r.cfg.Least+r.cfg.Least/8 {
		low = true
	}
	if low == r.low {
		return
	}
	r.low, r.since = low, r.cfg.Clock.Now()
	if low {
		r.cfg.Log.ErrorContext(ctx, "the disk is low: no new operations and no creates until there is room; answers, webhooks, cancels and results are stored while there is any room",
			"free_bytes", free, "reserve_bytes", r.cfg.Least)
		return
	}
	r.cfg.Log.InfoContext(ctx, "the disk has room again", "free_bytes", free, "reserve_bytes", r.cfg.Least)
}

// Low says whether nothing new may be begun.
func (r *Reserve) Low() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.low
}

// Free gives the bytes that were free when last asked, and why it could not be
// asked since, if it could not.
func (r *Reserve) Free() (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.free, r.err
}

// Least is the reserve in bytes; 0 means that none is kept.
func (r *Reserve) Least() uint64 { return r.cfg.Least }

// Size reads a number of bytes: digits, and one of KiB, MiB, GiB and TiB or
// nothing behind them.
func Size(text string) (uint64, error) {
	digits, factor := text, uint64(1)
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if d, ok := strings.CutSuffix(text, unit); ok {
			digits, factor = d, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("size %.40q: want a number of bytes, or one with KiB, MiB, GiB or TiB, as 512MiB", text)
	}
	return n * factor, nil
}

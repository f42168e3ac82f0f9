package ingest

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// open counts the operations of each principal that have not ended: those that the
// history has, as it is told, and those that this process has begun and the history
// does not have yet. The mutex of quotas guards it.
type open struct {
	parts   map[string]map[string]int // by partition, or whatever else is told of as a whole, and principal
	expects map[string]expected       // operations that are on their way into the history
	by      map[string]int            // of what stands in either, by principal
}

// expected is an operation that counts once, by however many requests it is begun.
type expected struct {
	principal string
	requests  int
}

func newOpen() open {
	return open{parts: map[string]map[string]int{}, expects: map[string]expected{}, by: map[string]int{}}
}

func (o *open) add(principal string, n int) {
	if o.by[principal] += n; o.by[principal] == 0 {
		delete(o.by, principal)
	}
}

// wholeHistory stands for all partitions, where they are followed as one.
const wholeHistory = "*"

// count gives how many are open. It is not known before all of the history was counted.
func (o *open) count(principal string) (n int, known bool) {
	_, whole := o.parts[wholeHistory]
	return max(0, o.by[principal]), whole || len(o.parts) >= journal.Partitions
}

func (o *open) expect(operation, principal string) {
	e := o.expects[operation]
	if e.requests == 0 {
		e.principal = principal
		o.add(principal, 1)
	}
	e.requests++
	o.expects[operation] = e
}

// release says that one request did not record the operation.
func (o *open) release(operation string) {
	switch e := o.expects[operation]; e.requests {
	case 0: // the history has it
	case 1:
		o.forget(operation)
	default:
		e.requests--
		o.expects[operation] = e
	}
}

// forget says that the history has it, or will not.
func (o *open) forget(operation string) {
	if e, known := o.expects[operation]; known {
		delete(o.expects, operation)
		o.add(e.principal, -1)
	}
}

func (o *open) counted(part string, by map[string]int) {
	o.left(part)
	now := make(map[string]int, len(by))
	for principal, n := range by {
		now[strings.Clone(principal)] = n
		o.add(principal, n)
	}
	o.parts[part] = now
}

func (o *open) left(part string) {
	for principal, n := range o.parts[part] {
		o.add(principal, -n)
	}
	delete(o.parts, part)
}

func (o *open) moved(part, operation, principal string, n int) {
	o.forget(operation)
	by := o.parts[part]
	if by == nil || n == 0 {
		return // what moves before the first count is in it
	}
	principal = strings.Clone(principal)
	if by[principal] += n; by[principal] == 0 {
		delete(by, principal)
	}
	o.add(principal, n)
}

// OpenCounted is told how many operations of a partition have not ended, by principal, and
// OpenMoved what has changed since, once the history has it; OpenLeft that nobody tells of
// the partition any more. Where another process projects, [Service.RunOpen] follows the
// history instead. Until all partitions are counted no quota of open operations is applied.
func (v *Service) OpenCounted(partition string, by map[string]int) {
	v.quotas.mu.Lock()
	defer v.quotas.mu.Unlock()
	v.quotas.open.counted(partition, by)
}

// OpenMoved is part of [Service.OpenCounted].
func (v *Service) OpenMoved(partition string, before, after projections.Phase, operation, principal string) {
	n := 0
	if before != projections.PhaseNone && !before.Terminal() {
		n--
	}
	if !after.Terminal() {
		n++
	}
	v.quotas.mu.Lock()
	defer v.quotas.mu.Unlock()
	v.quotas.open.moved(partition, operation, principal, n)
}

// OpenLeft is part of [Service.OpenCounted].
func (v *Service) OpenLeft(partition string) {
	v.quotas.mu.Lock()
	defer v.quotas.mu.Unlock()
	v.quotas.open.left(partition)
}

const (
	openAgain = time.Second // the pause after the history could not be read
	openWait  = 15 * time.Second
)

// RunOpen follows the history for the numbers of open operations, until ctx ends: once
// from its beginning, and then as it grows. It keeps 16 bytes or so for each open operation.
func (v *Service) RunOpen(ctx context.Context) {
	f := openFollower{seed: maphash.MakeSeed(), open: map[uint64]uint32{}, numbers: map[string]uint32{}}
	var records *journal.Records
	defer func() {
		if records != nil {
			_ = records.Close() // the store lets go of it by itself
		}
	}()
	counted := false
	for ctx.Err() == nil {
		var err error
		if records == nil {
			records, err = v.cfg.Journal.AllRecords(ctx)
		}
		wait := openWait
		if !counted {
			wait = 0
		}
		var r projections.Record
		if err == nil {
			r, err = records.Next(ctx, wait)
		}
		switch {
		case err == nil && counted:
			principal, n := f.move(&r)
			v.quotas.mu.Lock()
			v.quotas.open.moved(wholeHistory, r.State.Operation, principal, n)
			v.quotas.mu.Unlock()
		case err == nil:
			f.move(&r)
			v.quotas.mu.Lock()
			v.quotas.open.forget(r.State.Operation) // the count will have it
			v.quotas.mu.Unlock()
		case errors.Is(err, journal.ErrNoMessage) && !counted:
			counted = true
			v.OpenCounted(wholeHistory, f.count())
		case errors.Is(err, journal.ErrNoMessage), ctx.Err() != nil:
		default:
			v.cfg.Log.WarnContext(ctx, "the history could not be followed; what has ended meanwhile still counts against the quotas of open operations", "error", err)
			if v.cfg.Clock.Sleep(ctx, openAgain) != nil {
				return
			}
		}
	}
}

// openFollower knows which operations are open, by sums of their ids. Records may come again.
type openFollower struct {
	seed       maphash.Seed
	open       map[uint64]uint32 // the number of the principal
	numbers    map[string]uint32
	principals []string
}

// move takes a record in, and says whose operation was opened (1) or ended (-1) by it.
func (f *openFollower) move(r *projections.Record) (principal string, n int) {
	sum := maphash.String(f.seed, r.State.Operation)
	_, was := f.open[sum]
	switch ended := r.State.Phase.Terminal(); {
	case ended && was:
		delete(f.open, sum)
		n = -1
	case !ended && !was:
		number, known := f.numbers[r.State.Intent.Principal]
		if !known {
			number = uint32(len(f.principals)) //nolint:gosec // there are as many as a keys file holds
			f.principals = append(f.principals, r.State.Intent.Principal)
			f.numbers[r.State.Intent.Principal] = number
		}
		f.open[sum] = number
		n = 1
	}
	return r.State.Intent.Principal, n
}

func (f *openFollower) count() map[string]int {
	by := map[string]int{}
	for _, number := range f.open {
		by[f.principals[number]]++
	}
	return by
}

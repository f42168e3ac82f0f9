package projector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// catchAtOnce facts are recorded in one run while a tenure catches up, and
	// stepAtOnce of those that have come meanwhile later: each waits for the names
	// of the others.
	catchAtOnce = 400
	stepAtOnce  = 32

	// Where timers attend to the operations, others of this process learn of a fact
	// from the board, and records wait up to linger for more, so that a run of them
	// costs as much as one did. lingerMost of them wait for no more, nor does one that
	// comes alone: lists are made from the history.
	linger     = 100 * time.Millisecond
	lingerMost = 64
)

// Step projects the next facts, waiting for the first at most so long. It says
// whether there was one. Where it was not to wait and there is none, all are
// recorded.
func (w *Work) Step(ctx context.Context, wait time.Duration) (bool, error) {
	if err := w.release(ctx); err != nil {
		return false, err
	}
	if err := w.pay(ctx); err != nil {
		return false, err
	}
	if err := w.flush(ctx, w.lingers()); err != nil {
		return false, err
	}
	first, err := w.next(ctx, w.Patience(wait))
	switch {
	case errors.Is(err, journal.ErrNoMessage):
		left := w.lingers()
		if wait <= 0 {
			left = 0
		}
		if err := w.flush(ctx, left); err != nil {
			return false, err
		}
		if len(w.records) == 0 {
			w.p.cfg.Observe.Behind(w.tenure.Partition(), time.Time{}) // it has caught up, if it had to
		}
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read partition %s: %w", w.tenure.Partition(), err)
	}
	if len(w.records) == 0 {
		w.p.cfg.Observe.Behind(w.tenure.Partition(), first.Time)
	}
	most := catchAtOnce
	if w.counted {
		most = stepAtOnce
	}
	entries := append(w.entries[:0], first)
	for len(entries) < most {
		e, err := w.next(ctx, -1)
		if err != nil {
			break // there is none, or the next step meets the error
		}
		entries = append(entries, e)
	}
	if !w.counted {
		return true, w.catchUp(ctx, entries) // more is likely to wait
	}
	w.entries = entries[:0] // most steps are of one fact, and each would make room anew
	defer clear(entries)
	if err := w.project(ctx, entries); err != nil {
		return false, err
	}
	if err := w.flush(ctx, w.lingers()); err != nil {
		return false, err
	}
	if len(w.records) == 0 {
		w.p.cfg.Observe.Behind(w.tenure.Partition(), time.Time{})
	}
	return true, nil
}

// fold folds one fact. It says no if it is projected already, by a tenure whose
// commit we did not see answered.
func (w *Work) fold(before projections.State, entry projections.Entry) (after projections.State, record projections.Record, fresh bool) {
	if entry.Sequence <= before.Sequence {
		return before, record, false
	}
	after, record = w.folder.Fold(before, entry)
	record.Build = w.p.cfg.Build
	if after.Phase.Stopped() && standing(before) != standing(after) {
		w.p.cfg.Observe.Stopped(after, true)
		w.rests = true
	}
	if after.Job.Class == events.ClassUnknown && (before.Job.Class != events.ClassUnknown || before.Job.Remote != after.Job.Remote) {
		w.p.cfg.Observe.Unmapped(after)
	}
	return after, record, true
}

// catchUp records facts before the tenure's first sweep, and nothing else: the
// sweep writes the names and wake-ups of every operation that lack. A crash
// before it leaves records without them, and the next tenure sweeps, too.
func (w *Work) catchUp(ctx context.Context, entries []projections.Entry) error {
	records := make([]projections.Record, 0, len(entries))
	for _, entry := range entries {
		operation := entry.Event.Operation
		before, ok := w.caught.state(operation)
		if !ok {
			var err error
			if before, err = w.recorded(ctx, operation); err != nil {
				return err
			}
		}
		after, record, fresh := w.fold(before, entry)
		if !fresh {
			continue
		}
		records = append(records, record)
		w.caught.put(after)
		if entry.Unreadable == nil {
			for _, job := range journal.OwnJobs(entry.Event.Fact) {
				w.own[operation] = job
			}
		}
		if after.NextLook.IsZero() {
			delete(w.standing, operation)
		} else {
			// A worker may acknowledge what is pending by any of these states.
			w.standing[kept(operation)] = unwritten
		}
	}
	return w.record(ctx, records)
}

// project folds facts of a partition that was swept, and writes their names and
// wake-ups. Their records wait for flush.
func (w *Work) project(ctx context.Context, entries []projections.Entry) error {
	wakes := map[string]int{} // by operation: where in list
	var list []journal.Wake
	now := w.p.cfg.Clock.Now()
	for _, entry := range entries {
		operation := entry.Event.Operation
		before, err := w.state(ctx, operation)
		if err != nil {
			return err
		}
		after, record, fresh := w.fold(before, entry)
		if !fresh {
			continue
		}
		// Outside names come before wake-up and history: no call that could carry one
		// out leaves before it is written down. A crash in between leaves names
		// without a record, and the next tenure's sweep finds them.
		if err := w.index(ctx, after, entry); err != nil {
			return fmt.Errorf("index %s of %s: %w", record.Type, operation, err)
		}
		// From here on others of this process act on the fact. They would have found
		// it in the ledger; its names are written, and what wakes the operation again
		// is derived by the next tenure if we get no further.
		w.board.Put(after)
		w.due(after)
		// One that did not stand at any of the states is written for the last.
		at, some := wakes[operation]
		switch wake := w.wake(before, after); {
		case some:
			list[at] = w.wakeOf(after)
		case wake == nil:
		case w.owe(before, after, now):
		default:
			wakes[operation] = len(list)
			list = append(list, *wake)
		}
		if len(w.records) == 0 {
			w.lingering, w.alone = now, now.Sub(w.folded) > linger
		}
		w.folded = now
		w.records = append(w.records, record)
		w.moves = append(w.moves, move{before, after})
		if w.since != nil { // a sweep may read what was recorded before
			moved := w.since[operation]
			if moved == nil {
				moved = &since{before: standing(before)}
				w.since[kept(operation)] = moved
			}
			moved.after, moved.principal = standing(after), after.Intent.Principal
		}
	}
	// The wake-ups go first. A crash here leaves them without their records; whoever
	// they wake folds the tail itself, and the next tenure derives them again.
	return w.publish(ctx, list)
}

// publish writes wake-ups and notes for when they are set.
func (w *Work) publish(ctx context.Context, list []journal.Wake) error {
	if err := w.tenure.WakeRun(ctx, list); err != nil {
		return fmt.Errorf("wake %d operations of partition %s: %w", len(list), w.tenure.Partition(), err)
	}
	for _, wake := range list {
		w.stand(wake.Operation, wake.At)
	}
	return nil
}

// lingers is how long records may wait for more: not at all where the history is
// how others learn of a fact, nor where none came shortly before, or an operation
// has come to rest, which is told again after a crash until it is recorded.
func (w *Work) lingers() time.Duration {
	if w.p.cfg.Timers == nil || w.rests || w.alone {
		return 0
	}
	return linger
}

// flush writes the records that have waited so long, and all if they are many. A
// crash before it leaves facts that the next tenure catches up with, whose sweep
// compares their names and wake-ups.
func (w *Work) flush(ctx context.Context, waited time.Duration) error {
	if len(w.records) == 0 || len(w.records) < lingerMost && waited > 0 && w.p.cfg.Clock.Now().Sub(w.lingering) < waited {
		return nil
	}
	if err := w.record(ctx, w.records); err != nil {
		return err
	}
	for _, m := range w.moves {
		w.p.cfg.Observe.Moved(w.tenure.Partition(), m.before, m.after)
		w.rest(m.after)
	}
	clear(w.moves)
	clear(w.records)
	w.moves, w.records, w.rests = w.moves[:0], w.records[:0], false
	return nil
}

// move is what one fact did to an operation.
type move struct{ before, after projections.State }

// record appends to the history.
func (w *Work) record(ctx context.Context, records []projections.Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := w.tenure.CommitRun(ctx, records); err != nil {
		return fmt.Errorf("project %d facts of partition %s: %w", len(records), w.tenure.Partition(), err)
	}
	return nil
}

// state gives the operation's state as last folded.
func (w *Work) state(ctx context.Context, operation string) (projections.State, error) {
	for i := len(w.moves) - 1; i >= 0; i-- {
		if w.moves[i].after.Operation == operation {
			return w.moves[i].after, nil
		}
	}
	if s, ok := w.board.State(operation); ok {
		return s, nil
	}
	return w.recorded(ctx, operation)
}

func (w *Work) recorded(ctx context.Context, operation string) (projections.State, error) {
	record, err := w.p.cfg.Journal.Recorded(ctx, operation)
	switch {
	case errors.Is(err, journal.ErrNoOperation):
		return projections.State{}, nil
	case err != nil:
		return projections.State{}, fmt.Errorf("read history of %s: %w", operation, err)
	}
	return record.State, nil
}

// recentHalf bounds each half of the states that are kept while catching up.
const recentHalf = 512

// recent keeps states that moved lately: those of the young half, and of the one
// before it.
type recent struct{ young, old map[string]projections.State }

func (r *recent) state(operation string) (projections.State, bool) {
	if s, ok := r.young[operation]; ok {
		return s, true
	}
	s, ok := r.old[operation]
	return s, ok
}

func (r *recent) put(s projections.State) {
	if r.young == nil || len(r.young) >= recentHalf {
		r.old, r.young = r.young, make(map[string]projections.State, recentHalf)
	}
	r.young[s.Operation] = s
}

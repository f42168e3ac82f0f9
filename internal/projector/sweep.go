package projector

import (
	"context"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// sweepAtOnce operations are compared at once: what is missing of their
	// wake-ups is published in one run.
	sweepAtOnce = 64
	// namesAtOnce operations of a partition have their names compared at once.
	namesAtOnce = 8
)

// Sweep compares the partition's operations with their wake-ups and index
// entries and makes those that are missing: what power loss took from the
// streams that are derived, and what an earlier run of this program left
// leased or running. The entries of operations that have ended are looked at in
// the first sweep of a tenure. A wake-up that is leased counts as present,
// unless orphans says that leases are nobody's.
func (w *Work) Sweep(ctx context.Context, orphans bool) error {
	survey, err := w.p.cfg.Journal.Survey(ctx)
	if err != nil {
		return fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), err)
	}
	return w.sweepAll(ctx, survey, w.tenure.States(ctx), orphans, 1)
}

// sweepTogether is Sweep in a round with the other partitions of this process. It
// says when the round began.
func (w *Work) sweepTogether(ctx context.Context, orphans bool) (began time.Time, err error) {
	m := w.p.join(ctx, w.tenure.Partition())
	defer m.leave()
	select {
	case <-m.ready:
	case <-ctx.Done():
		return began, ctx.Err()
	}
	if m.failed != nil {
		return began, fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), m.failed)
	}
	states := m.walk
	if m.survey == nil {
		states = w.tenure.States(ctx)
	}
	return m.began, w.sweepAll(ctx, m.survey, states, orphans, namesAtOnce)
}

// sweepAll compares all states, and the names of several operations at once if
// names is above 1.
func (w *Work) sweepAll(ctx context.Context, survey *journal.Survey, states iter.Seq2[projections.State, error], orphans bool, names int) error {
	w.caught = recent{}
	defer func() { w.own = map[string]string{} }()
	open := map[Standing]int{}
	list := make([]projections.State, 0, sweepAtOnce)
	some := func() error {
		if err := w.reindexAll(ctx, list, survey, names); err != nil {
			return err
		}
		if err := w.sweepSome(ctx, list, survey, orphans); err != nil {
			return err
		}
		for _, s := range list {
			w.rest(s)
			if s.Phase.Stopped() {
				w.p.cfg.Observe.Stopped(s, false)
			}
			if !s.Phase.Terminal() {
				open[standing(s)]++
			}
		}
		list = list[:0]
		return nil
	}
	for s, err := range states {
		if err != nil {
			return fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), err)
		}
		if list = append(list, s); len(list) < sweepAtOnce {
			continue
		}
		if err := some(); err != nil {
			return err
		}
	}
	if err := some(); err != nil {
		return err
	}
	// Nothing of the partition was recorded meanwhile: this goroutine would have
	// done it.
	w.p.cfg.Observe.Counted(w.tenure.Partition(), open)
	w.counted = true
	return w.sweepParked(ctx)
}

// reindexAll compares the names of operations, those of ended ones in the
// tenure's first sweep.
func (w *Work) reindexAll(ctx context.Context, list []projections.State, survey *journal.Survey, atOnce int) error {
	one := func(ctx context.Context, s projections.State) error {
		if err := w.reindex(ctx, s, survey); err != nil {
			return fmt.Errorf("sweep %s: %w", s.Operation, err)
		}
		return nil
	}
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, s := range list {
		switch {
		case s.Rulebook() > projections.Rules, w.counted && s.Phase.Terminal():
		case atOnce <= 1:
			if err := one(ctx, s); err != nil {
				return err
			}
		case w.moved(s) || !surveyed(s, survey):
			group.Go(func() error { return one(within, s) })
		}
	}
	return group.Wait()
}

// sweepSome compares operations, whose names are written, with their wake-ups.
func (w *Work) sweepSome(ctx context.Context, states []projections.State, survey *journal.Survey, orphans bool) error {
	var list []journal.Wake
	for _, s := range states {
		if s.Rulebook() > projections.Rules {
			continue
		}
		wake, err := w.sweep(ctx, s, survey, orphans)
		if err != nil {
			return fmt.Errorf("sweep %s: %w", s.Operation, err)
		}
		if wake != nil {
			list = append(list, *wake)
		}
	}
	if err := w.tenure.WakeRun(ctx, list); err != nil {
		return fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), err)
	}
	for _, wake := range list {
		w.stand(wake.Operation, wake.At)
	}
	return nil
}

// sweep gives the wake-up that an operation lacks, nil if none.
func (w *Work) sweep(ctx context.Context, s projections.State, survey *journal.Survey, orphans bool) (*journal.Wake, error) {
	if kind, attempt := s.OpenAttempt(); attempt != nil && w.p.cfg.Gone(attempt.Owner) {
		// Nobody can answer it any more, so nobody need wait for its end.
		return nil, w.append(ctx, s, workflow.Presume(s, kind, attempt, true))
	}
	if s.NextLook.IsZero() {
		if _, pending := survey.Wake(s.Operation); !pending || w.counted {
			return nil, nil
		}
		// The tenure that recorded this state did not cancel it, perhaps.
		wake := w.wakeOf(s)
		return &wake, nil
	}
	w.due(s)
	// What a worker acknowledges by a state that was caught up with is written anew,
	// whatever is still to be seen of it.
	if !w.moved(s) && (!orphans || s.NextLook.After(w.p.cfg.Clock.Now())) {
		if pending, ok := survey.Wake(s.Operation); ok && w.newest(s.Operation, pending.At) && w.stands(pending.At, s.NextLook) {
			w.stand(s.Operation, pending.At)
			return nil, nil
		}
		pending, ok, err := w.p.cfg.Journal.PendingWake(ctx, s.Operation)
		if err != nil {
			return nil, fmt.Errorf("look for its wake-up: %w", err)
		}
		if ok && w.stands(pending.At, s.NextLook) {
			w.stand(s.Operation, pending.At)
			return nil, nil
		}
	}
	wake := w.wakeOf(s)
	return &wake, nil
}

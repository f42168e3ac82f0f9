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
	// sweepStep is how long a partition waits for its next fact before it asks
	// whether the round that it waits for has been read.
	sweepStep = 20 * time.Millisecond
	// narrowMost is how many operations a process may have caught up with for a
	// narrow sweep; with more a survey saves effort.
	narrowMost = 1000
)

// Sweep compares the partition's operations with their wake-ups and index
// entries and makes those that are missing: what power loss took from the
// streams that are derived, and what an earlier run of this program left
// leased or running. The entries of operations that have ended are looked at in
// the first sweep of a tenure. A wake-up that is leased counts as present,
// unless orphans says that leases are nobody's.
//
// Between the operations it projects what comes meanwhile, once the tenure was
// swept before; of what moves so only the names are compared.
func (w *Work) Sweep(ctx context.Context, orphans bool) error {
	if err := w.flush(ctx, 0); err != nil {
		return err
	}
	w.since = map[string]*since{}
	survey, err := w.p.cfg.Journal.Survey(ctx)
	if err != nil {
		return fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), err)
	}
	return w.sweepAll(ctx, comparing{survey: survey, orphans: orphans, atOnce: 1}, w.tenure.States(ctx))
}

// Begin is the narrow first sweep where the process has timers, of this partition
// alone. A Sweep follows it.
func (w *Work) Begin(ctx context.Context) error {
	return w.sweepAll(ctx, comparing{narrow: true, atOnce: 1}, w.tenure.States(ctx))
}

// sweepTogether is Sweep in a round with the other partitions of this process. It
// says when the round began.
func (w *Work) sweepTogether(ctx context.Context, orphans bool) (began time.Time, err error) {
	if err := w.flush(ctx, 0); err != nil {
		return began, err
	}
	w.since = map[string]*since{}
	behind := len(w.own) + len(w.standing)
	m := w.p.join(ctx, w.tenure.Partition(), !w.counted && w.p.cfg.Timers != nil, behind, w.meanwhile(ctx))
	defer m.leave()
	for waiting := true; waiting; {
		if w.counted {
			select {
			case <-m.ready:
				waiting = false
			default:
				if _, err := w.Step(ctx, sweepStep); err != nil {
					return began, err
				}
			}
			continue
		}
		select {
		case <-m.ready:
			waiting = false
		case <-ctx.Done():
			return began, ctx.Err()
		}
	}
	if m.failed != nil {
		return began, fmt.Errorf("sweep partition %s: %w", w.tenure.Partition(), m.failed)
	}
	states := m.walk
	if m.survey == nil && !m.narrow {
		states = w.tenure.States(ctx)
	}
	return m.began, w.sweepAll(ctx, comparing{m.survey, orphans, m.narrow, namesAtOnce}, states)
}

// meanwhile projects while the round waits; nil before the tenure may.
func (w *Work) meanwhile(ctx context.Context) func() error {
	if !w.counted {
		return nil
	}
	return func() error {
		_, err := w.Step(ctx, sweepStep)
		return err
	}
}

// comparing is with what a sweep compares states.
type comparing struct {
	survey  *journal.Survey
	orphans bool
	// narrow is the first sweep of a process with timers: it tells them of all
	// operations, and compares those alone that were caught up with. The sweep
	// behind it compares the others.
	narrow bool
	atOnce int // operations whose names are compared at once
}

// since is an operation that moved while a sweep was under way.
type since struct {
	before, after Standing // before is without a phase if it is new
	principal     string   // of the operation, which does not change
	met           bool     // by the sweep, since it moved
}

// sweepAll compares all states.
func (w *Work) sweepAll(ctx context.Context, c comparing, states iter.Seq2[projections.State, error]) error {
	w.caught = recent{}
	defer func() { w.own, w.since = map[string]string{}, nil }()
	open, owned := map[Standing]int{}, map[string]int{}
	list := make([]projections.State, 0, sweepAtOnce)
	some := func() error {
		if w.counted {
			for {
				if more, err := w.Step(ctx, -1); err != nil {
					return err
				} else if !more {
					break
				}
			}
		}
		if err := w.reindexAll(ctx, list, c); err != nil {
			return err
		}
		if err := w.sweepSome(ctx, list, c); err != nil {
			return err
		}
		for _, s := range list {
			if moved := w.since[s.Operation]; moved != nil {
				moved.met = true
				continue
			}
			w.rest(s)
			if s.Phase.Stopped() {
				w.p.cfg.Observe.Stopped(s, false)
			}
			if !s.Phase.Terminal() {
				open[standing(s)]++
				owned[s.Intent.Principal]++
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
	if err := w.flush(ctx, 0); err != nil { // what moved is counted here
		return err
	}
	for _, moved := range w.since {
		if !moved.met && moved.before.Phase != "" && !moved.before.Phase.Terminal() {
			open[moved.before]-- // it was counted there
			owned[moved.principal]--
		}
		if !moved.after.Phase.Terminal() {
			open[moved.after]++
			owned[moved.principal]++
		}
	}
	w.p.cfg.Observe.Owned(w.tenure.Partition(), owned)
	w.p.cfg.Observe.Counted(w.tenure.Partition(), open)
	w.counted = true
	w.compared = w.compared || !c.narrow
	return w.sweepParked(ctx)
}

// reindexAll compares the names of operations, those of ended ones in the
// tenure's first sweep.
func (w *Work) reindexAll(ctx context.Context, list []projections.State, c comparing) error {
	one := func(ctx context.Context, s projections.State) error {
		if err := w.reindex(ctx, s, c.survey); err != nil {
			return fmt.Errorf("sweep %s: %w", s.Operation, err)
		}
		return nil
	}
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(c.atOnce)
	for _, s := range list {
		switch {
		case s.Rulebook() > projections.Rules, w.compared && s.Phase.Terminal(), c.narrow && !w.moved(s):
		case c.atOnce <= 1:
			if err := one(ctx, s); err != nil {
				return err
			}
		case w.moved(s) || !surveyed(s, c.survey):
			group.Go(func() error { return one(within, s) })
		}
	}
	return group.Wait()
}

// sweepSome compares operations, whose names are written, with their wake-ups.
func (w *Work) sweepSome(ctx context.Context, states []projections.State, c comparing) error {
	var list []journal.Wake
	for _, s := range states {
		if s.Rulebook() > projections.Rules || w.since[s.Operation] != nil {
			continue
		}
		wake, err := w.sweep(ctx, s, c)
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
func (w *Work) sweep(ctx context.Context, s projections.State, c comparing) (*journal.Wake, error) {
	if kind, attempt := s.OpenAttempt(); attempt != nil && w.p.cfg.Gone(attempt.Owner) {
		// Nobody can answer it any more, so nobody need wait for its end.
		return nil, w.append(ctx, s, workflow.Presume(s, kind, attempt, true))
	}
	if s.NextLook.IsZero() {
		if _, pending := c.survey.Wake(s.Operation); !pending || w.compared {
			return nil, nil
		}
		// The tenure that recorded this state did not cancel it, perhaps.
		wake := w.wakeOf(s)
		return &wake, nil
	}
	w.due(s)
	if c.narrow && !w.moved(s) {
		return nil, nil
	}
	if w.Owes(s.Operation) {
		return nil, nil // whatever is pending may be acknowledged by an earlier state
	}
	// What a worker acknowledges by a state that was caught up with is written anew,
	// whatever is still to be seen of it.
	if !w.moved(s) && (!c.orphans || s.NextLook.After(w.p.cfg.Clock.Now())) {
		if pending, ok := c.survey.Wake(s.Operation); ok && w.newest(s.Operation, pending.At) && w.stands(pending.At, s.NextLook) {
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

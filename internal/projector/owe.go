package projector

import (
	"context"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// credit is how long a wake-up may be owed where timers attend to the operation.
// It is set for a grace after the look, so that written within that time it fires
// when it would have; an operation that ends sooner never has one.
const credit = 60 * time.Second

// payMost wake-ups are written in one run.
const payMost = 64

// owe lets the wake-up of a state wait, and says no where it is to be written at
// once. A crash leaves an operation without a wake-up that stands: the first sweep
// of the next tenure writes it, as it tells the timers of it.
func (w *Work) owe(before, after projections.State, now time.Time) bool {
	if w.p.cfg.Timers == nil || after.Rulebook() > projections.Rules {
		return false
	}
	operation := after.Operation
	if before.Facts == 0 {
		w.standing[kept(operation)] = none
	}
	if after.NextLook.IsZero() {
		if w.standing[operation] != none {
			return false // one may be pending, to be cancelled
		}
		w.stand(operation, time.Time{})
		return true
	}
	if _, some := w.owed[operation]; !some {
		w.owed[kept(operation)] = now
		if len(w.owed) == 1 {
			w.payday = now.Add(credit)
		}
	}
	return true
}

// pay writes the wake-ups that were owed long enough. A crash on the way leaves the
// others as one before it does.
func (w *Work) pay(ctx context.Context) error {
	now := w.p.cfg.Clock.Now()
	if len(w.owed) == 0 || now.Before(w.payday) {
		return nil
	}
	var list []journal.Wake
	w.payday = now.Add(credit)
	for operation, since := range w.owed {
		if due := since.Add(credit); due.After(now) {
			if due.Before(w.payday) {
				w.payday = due
			}
			continue
		}
		s, err := w.state(ctx, operation)
		if err != nil {
			return err
		}
		list = append(list, w.wakeOf(s))
		if len(list) == payMost {
			w.payday = now // the others follow
			break
		}
	}
	return w.publish(ctx, list)
}

// Owes says whether the operation's wake-up is yet to be written. Its timer attends
// to it, and so does the sweep of the next tenure.
func (w *Work) Owes(operation string) bool {
	_, owed := w.owed[operation]
	return owed
}

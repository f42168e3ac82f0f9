package projector

import (
	"context"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// releaseEvery is how often a projector asks whether the hold under which one of
// its operations rests is over.
const releaseEvery = time.Second

// rest keeps whether the operation rests under a hold.
func (w *Work) rest(s projections.State) {
	if workflow.Released(s, w.p.cfg.Clock.Now(), workflow.Hold{}) == nil {
		delete(w.resting, s.Operation)
		return
	}
	w.resting[s.Operation] = s
}

// Patience is how long the work may wait for the next fact: a hold that ends is
// told by nobody, and records and wake-ups do not wait longer.
func (w *Work) Patience(left time.Duration) time.Duration {
	if left <= 0 {
		return left
	}
	if len(w.resting) > 0 {
		left = min(left, releaseEvery)
	}
	now := w.p.cfg.Clock.Now()
	if len(w.records) > 0 {
		left = min(left, w.lingering.Add(w.lingers()).Sub(now))
	}
	if len(w.owed) > 0 {
		left = min(left, w.payday.Sub(now))
	}
	return max(left, 0)
}

// release ends the rest of operations whose hold is over. A crash in between
// leaves the others resting; the next tenure's sweep finds them.
func (w *Work) release(ctx context.Context) error {
	now := w.p.cfg.Clock.Now()
	if len(w.resting) == 0 || now.Before(w.released.Add(releaseEvery)) {
		return nil
	}
	w.released = now
	for operation, s := range w.resting {
		hold := workflow.Hold{}
		if w.p.cfg.Hold != nil {
			hold = w.p.cfg.Hold(s.Intent.Provider)
		}
		fact := workflow.Released(s, now, hold)
		if fact == nil {
			continue
		}
		if err := w.append(ctx, s, fact); err != nil {
			return fmt.Errorf("end the rest of %s: %w", operation, err)
		}
		// The fact comes back and says how the operation stands.
		delete(w.resting, operation)
	}
	return nil
}

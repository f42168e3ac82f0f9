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

// patience is how long the work may wait for the next fact: a hold that ends is
// told by nobody.
func (w *Work) patience(left time.Duration) time.Duration {
	if len(w.resting) == 0 {
		return left
	}
	return min(left, releaseEvery)
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

package poller

import (
	"context"
	"errors"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// Nothing can be done with an operation while the store does not answer, as while
// its servers choose who leads. It is asked again so often, for so long: longer
// than an election takes. A lease that is let go comes back later than that.
const (
	steadyEvery = 250 * time.Millisecond
	steadyTime  = 20 * time.Second
)

// steadily repeats a read that is not answered.
func (p *Poller) steadily(ctx context.Context, read func() error) error {
	var end time.Time
	for {
		err := read()
		if !errors.Is(err, journal.ErrUnread) || ctx.Err() != nil {
			return err
		}
		now := p.cfg.Clock.Now()
		if end.IsZero() {
			end = now.Add(steadyTime)
		}
		if !now.Before(end) || p.cfg.Clock.Sleep(ctx, steadyEvery) != nil {
			return err
		}
	}
}

// catch folds what is newer than the state.
func (p *Poller) catch(ctx context.Context, s projections.State) (projections.State, error) {
	newest := s
	err := p.steadily(ctx, func() (err error) {
		newest, err = p.cfg.Journal.Catch(ctx, s)
		return err
	})
	return newest, err
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/counterfoil/counterfoil/projections"
)

// States walks the last projected state of every operation of the partition.
// What it gives is never older than the walk's beginning.
func (t *Tenure) States(ctx context.Context) iter.Seq2[projections.State, error] {
	return func(yield func(projections.State, error) bool) {
		enough := errors.New("enough")
		err := t.j.store.Newest(ctx, History, t.filter(), func(m Message) error {
			if strings.HasSuffix(m.Subject, "."+takeover) {
				return nil
			}
			r, err := decodeRecord(m)
			if err != nil {
				return err
			}
			if !yield(r.State, nil) {
				return enough
			}
			return nil
		})
		if err != nil && !errors.Is(err, enough) {
			yield(projections.State{}, fmt.Errorf("read history of partition %s: %w", t.partition, err))
		}
	}
}

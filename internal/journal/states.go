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
// It reads the subjects first and each state when its turn comes, so what it
// gives is never older than the walk's beginning.
func (t *Tenure) States(ctx context.Context) iter.Seq2[projections.State, error] {
	return func(yield func(projections.State, error) bool) {
		subjects, err := t.subjects(ctx)
		if err != nil {
			yield(projections.State{}, err)
			return
		}
		for _, subject := range subjects {
			m, err := t.lastOf(ctx, History, subject)
			if err != nil {
				yield(projections.State{}, err)
				return
			}
			r, err := decodeRecord(m)
			if err != nil {
				yield(projections.State{}, err)
				return
			}
			if !yield(r.State, nil) {
				return
			}
		}
	}
}

// subjects lists the partition's subjects in HISTORY but the take-over's.
func (t *Tenure) subjects(ctx context.Context) (_ []string, err error) {
	cursor, err := t.j.store.Read(ctx, History, t.filter(), 1)
	if err != nil {
		return nil, fmt.Errorf("read history of partition %s: %w", t.partition, err)
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	var list []string
	seen := map[string]bool{}
	for {
		m, err := cursor.Next(ctx, 0)
		if errors.Is(err, ErrNoMessage) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read history of partition %s: %w", t.partition, err)
		}
		if !seen[m.Subject] && !strings.HasSuffix(m.Subject, "."+takeover) {
			seen[m.Subject] = true
			list = append(list, m.Subject)
		}
	}
}

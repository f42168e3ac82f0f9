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
		err := t.j.newestRecords(ctx, t.filter(), func(m Message) error {
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

// newestRecords gives the last record of every operation.
func (j *Journal) newestRecords(ctx context.Context, filter string, do func(Message) error) error {
	records := func(m Message) error {
		if strings.HasSuffix(m.Subject, "."+takeover) {
			return nil
		}
		return do(m)
	}
	err := j.store.Newest(ctx, History, filter, records)
	if !errors.Is(err, ErrPiecemeal) {
		return err
	}
	// The subjects first and each record when its turn comes.
	subjects, err := j.subjects(ctx, filter)
	if err != nil {
		return err
	}
	for _, subject := range subjects {
		var m Message
		err := j.retry(ctx, subject, func() (err error) { m, err = j.store.Last(ctx, History, subject); return err })
		if err == nil {
			err = records(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// subjects lists the subjects of the history that the filter matches.
func (j *Journal) subjects(ctx context.Context, filter string) (list []string, err error) {
	cursor, err := j.store.Read(ctx, History, filter, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	seen := map[string]bool{}
	for {
		m, err := cursor.Next(ctx, 0)
		if errors.Is(err, ErrNoMessage) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if !seen[m.Subject] {
			seen[m.Subject] = true
			list = append(list, m.Subject)
		}
	}
}

// A StateRecord is a state that is yet to be read from its record.
type StateRecord struct{ m Message }

// State reads it.
func (r StateRecord) State() (projections.State, error) {
	record, err := decodeRecord(r.m)
	return record.State, err
}

// AllStates gives the last record of every operation of a partition, or of all
// with "*", with the name of its partition, as [Tenure.States] does.
func (j *Journal) AllStates(ctx context.Context, partition string, do func(partition string, r StateRecord) error) error {
	err := j.newestRecords(ctx, j.generation.subjects(partition), func(m Message) error {
		return do(strings.Split(m.Subject, ".")[2], StateRecord{m})
	})
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	return nil
}

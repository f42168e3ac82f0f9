package journal

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/projections"
)

// Records walks the records of all partitions in the order in which they were written.
// It belongs to one goroutine.
type Records struct{ cursor Cursor }

// AllRecords begins with the first record of the generation.
func (j *Journal) AllRecords(ctx context.Context) (*Records, error) {
	c, err := j.store.Read(ctx, History, j.generation.subjects("*"), 1)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	return &Records{c}, nil
}

// Next gives the next record; ErrNoMessage says that none came within wait, or, with a
// wait of 0, that none is there. After an error in reading it stands where it stood.
func (r *Records) Next(ctx context.Context, wait time.Duration) (projections.Record, error) {
	for {
		m, err := r.cursor.Next(ctx, wait)
		if err != nil {
			return projections.Record{}, err
		}
		if !strings.HasSuffix(m.Subject, "."+takeover) {
			return decodeRecord(m)
		}
	}
}

// Close ends the reading.
func (r *Records) Close() error { return r.cursor.Close() }

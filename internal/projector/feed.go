package projector

import (
	"context"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// feedAhead is how many facts a partition may be behind the others.
const feedAhead = 512

// feed reads the ledger once for the partitions of a process that have something
// to catch up with at its start: a reader for each would have the server look
// through all of it as many times.
type feed struct {
	mu      sync.Mutex // guards what follows
	awaited map[string]bool
	members map[string]*fed // by partition
	begun   bool
	full    chan struct{} // closed when all have come
}

// fed is one partition's part.
type fed struct {
	from  uint64 // of its first fact that is not projected
	facts chan journal.StoredFact
	gone  chan struct{} // closed when nobody listens any more
}

func newFeed(partitions []int) *feed {
	f := &feed{awaited: map[string]bool{}, members: map[string]*fed{}, full: make(chan struct{})}
	for _, p := range partitions {
		f.awaited[journal.PartitionName(p)] = true
	}
	return f
}

// come says where a partition's facts begin, 0 if it needs none. Without a feed for
// it the answer is nil: it reads by itself.
func (f *feed) come(partition string, from uint64) *fed {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.awaited[partition] {
		return nil
	}
	delete(f.awaited, partition)
	var m *fed
	if from > 0 && !f.begun {
		m = &fed{from: from, facts: make(chan journal.StoredFact, feedAhead), gone: make(chan struct{})}
		f.members[partition] = m
	}
	if len(f.awaited) == 0 {
		close(f.full)
	}
	return m
}

// lead reads up to the end of the ledger. Where it ends early, each partition goes
// on by itself.
func (f *feed) lead(ctx context.Context, j *journal.Journal, clock Clock) {
	waiting, stop := context.WithCancel(ctx)
	late := make(chan struct{})
	go func() {
		_ = clock.Sleep(waiting, gatherAll) // or all have come
		close(late)
	}()
	select {
	case <-f.full:
	case <-late:
	}
	stop()
	<-late
	f.mu.Lock()
	f.begun = true
	members, from := f.members, uint64(0)
	f.mu.Unlock()
	for _, m := range members {
		defer close(m.facts)
		if from == 0 || m.from < from {
			from = m.from
		}
	}
	if len(members) <= roundFew {
		return
	}
	facts, err := j.AllFacts(ctx, from)
	if err != nil {
		return
	}
	defer func() { _ = facts.Close() }() // the server lets go of it by itself
	for {
		fact, err := facts.NextStored(ctx, 0)
		if err != nil {
			return
		}
		m := members[fact.Partition()]
		if m == nil || fact.Sequence() < m.from {
			continue
		}
		select {
		case m.facts <- fact:
		case <-m.gone:
		case <-ctx.Done():
			return
		}
	}
}

// next gives the next fact, of the feed while there is one.
func (w *Work) next(ctx context.Context, wait time.Duration) (projections.Entry, error) {
	if w.fed == nil {
		return w.facts.Next(ctx, wait)
	}
	if wait < 0 {
		select {
		case fact, more := <-w.fed.facts:
			if more {
				return fact.Entry(), nil
			}
		default:
		}
		return projections.Entry{}, journal.ErrNoMessage
	}
	select {
	case fact, more := <-w.fed.facts:
		if more {
			return fact.Entry(), nil
		}
	case <-ctx.Done():
		return projections.Entry{}, ctx.Err()
	}
	w.leaveFeed()
	facts, err := w.tenure.Facts(ctx) // what has come since
	if err != nil {
		return projections.Entry{}, err
	}
	w.facts = facts // that before read nothing
	return w.facts.Next(ctx, wait)
}

func (w *Work) leaveFeed() {
	if w.fed != nil {
		close(w.fed.gone)
		w.fed = nil
	}
}

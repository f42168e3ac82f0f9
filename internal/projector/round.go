package projector

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// gatherAll bounds how long a round waits for all partitions that are expected,
	// gatherSome how long where nobody knows how many will come.
	gatherAll  = 5 * time.Second
	gatherSome = 200 * time.Millisecond
	// roundAhead is how many records a partition may be behind the others.
	roundAhead = 256
	// roundFew partitions are read one by one.
	roundFew = 4

	// roundRate is how many states a second are read where nobody waits for the
	// end: the server keeps each block of the history in memory for 10 s after it was
	// read. roundTime is how long a round may take so, with more of them.
	roundRate = 2500
	roundTime = 2 * time.Minute
	roundRest = 20 * time.Millisecond // of it at a time, at least
)

// rounds lets the partitions of a process sweep together: WAKEUPS, INDEX and
// HISTORY are then read once for all of them. What is read began after each
// one's tenure, and of what moves meanwhile no wake-up is compared.
type rounds struct {
	mu       sync.Mutex // guards everything below
	expected int        // partitions that come to each round; 0: not known
	states   int        // of the last round
	open     *round     // takes members
	reading  sync.WaitGroup
}

type round struct {
	members map[string]*member // by partition
	full    chan struct{}      // closed when all that are expected are there
}

// member is one partition's part of a round.
type member struct {
	survey *journal.Survey
	began  time.Time
	failed error
	ready  chan struct{} // closed when those three are set
	narrow bool          // as all ask for; set before ready is closed
	// meanwhile is called again and again by walk while nothing has come; nil: it waits.
	meanwhile func() error
	behind    int // operations that it caught up with
	records   chan journal.StateRecord
	gone      chan struct{} // closed when nobody listens any more
	err       error         // set before records is closed
}

// expect says that so many partitions more come to each round.
func (s *rounds) expect(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected += n
	s.fullLocked()
}

func (s *rounds) fullLocked() {
	if r := s.open; r != nil && s.expected > 0 && len(r.members) >= s.expected {
		close(r.full)
		s.open = nil
	}
}

// join takes part in the next round. The member's walk must be done, or leave
// called.
func (p *Projector) join(ctx context.Context, partition string, narrow bool, behind int, meanwhile func() error) *member {
	s := &p.rounds
	m := &member{narrow: narrow, behind: behind, meanwhile: meanwhile, ready: make(chan struct{}), records: make(chan journal.StateRecord, roundAhead), gone: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.open
	if r == nil {
		r = &round{members: map[string]*member{}, full: make(chan struct{})}
		s.open = r
		limit := gatherSome
		if s.expected > 0 {
			limit = gatherAll
		}
		s.reading.Go(func() { p.lead(ctx, r, limit) })
	}
	r.members[partition] = m
	s.fullLocked()
	return m
}

// lead reads for the members of a round, in the context of the one that began
// it: its end is an error to the others, who begin another.
func (p *Projector) lead(ctx context.Context, r *round, limit time.Duration) {
	waiting, stop := context.WithCancel(ctx)
	late := make(chan struct{})
	p.rounds.reading.Go(func() {
		_ = p.cfg.Clock.Sleep(waiting, limit) // or all are there
		close(late)
	})
	select {
	case <-r.full:
	case <-late:
	}
	stop()
	p.rounds.mu.Lock()
	if p.rounds.open == r {
		p.rounds.open = nil
	}
	p.rounds.mu.Unlock()
	began := p.cfg.Clock.Now()
	narrow, behind := true, 0
	for _, m := range r.members {
		narrow = narrow && m.narrow
		behind += m.behind
	}
	narrow = narrow && behind <= narrowMost
	var survey *journal.Survey
	var err error
	if !narrow {
		survey, err = p.cfg.Journal.Survey(ctx)
	}
	if err == nil {
		// Where nothing is parked, nobody asks for one name after the other.
		_, err = p.cfg.Journal.Parked(ctx, "", "")
	}
	for _, m := range r.members {
		m.survey, m.began, m.failed, m.narrow = survey, began, err, narrow
		close(m.ready)
	}
	pace := p.pace(r)
	filters := []string{"*"}
	if len(r.members) <= roundFew {
		filters = slices.Sorted(maps.Keys(r.members))
	}
	for _, filter := range filters {
		if err != nil || survey == nil && !narrow { // then each asks for its own
			break
		}
		err = p.cfg.Journal.AllStates(ctx, filter, func(partition string, record journal.StateRecord) error {
			m := r.members[partition]
			if m == nil {
				return nil
			}
			if err := pace(ctx); err != nil {
				return err
			}
			select {
			case m.records <- record:
			case <-m.gone:
			case <-ctx.Done():
				return ctx.Err()
			}
			return nil
		})
	}
	for _, m := range r.members {
		m.err = err
		close(m.records)
	}
}

// pace gives what is called for each state of a round. Where all members have
// swept before it sees to it that the states come at a rate.
func (p *Projector) pace(r *round) func(context.Context) error {
	s := &p.rounds
	s.mu.Lock()
	rate := max(roundRate, s.states*int(time.Second)/int(roundTime))
	s.states = 0
	s.mu.Unlock()
	for _, m := range r.members {
		if m.meanwhile == nil {
			rate = 0
		}
	}
	began, n := p.cfg.Clock.Now(), 0
	return func(ctx context.Context) error {
		n++
		s.mu.Lock()
		s.states = n
		s.mu.Unlock()
		if rate == 0 {
			return nil
		}
		if early := began.Add(time.Duration(n) * time.Second / time.Duration(rate)).Sub(p.cfg.Clock.Now()); early >= roundRest {
			return p.cfg.Clock.Sleep(ctx, early)
		}
		return nil
	}
}

// next gives the next record, and false at the end.
func (m *member) next() (record journal.StateRecord, more bool, err error) {
	for m.meanwhile != nil {
		select {
		case record, more = <-m.records:
			return record, more, nil
		default:
			if err := m.meanwhile(); err != nil {
				return record, false, err
			}
		}
	}
	record, more = <-m.records
	return record, more, nil
}

// walk gives the partition's states.
func (m *member) walk(yield func(projections.State, error) bool) {
	for {
		record, more, err := m.next()
		if !more && err == nil {
			break
		}
		var s projections.State
		if err == nil {
			s, err = record.State()
		}
		if !yield(s, err) || err != nil {
			return
		}
	}
	if m.err != nil {
		yield(projections.State{}, m.err)
	}
}

// leave lets the round go on without this partition.
func (m *member) leave() { close(m.gone) }

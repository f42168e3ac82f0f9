package projector

import (
	"context"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// gatherTime bounds how long the first sweep of a start waits for other
// partitions that have not caught up.
const gatherTime = 5 * time.Second

// surveys lets the sweeps of all partitions of a process share what they read of
// WAKEUPS and INDEX. A sweep takes none that began before its tenure or before
// the sweep before it: what it says of a partition was written by this tenure or
// one before, and whatever was acknowledged away since has its reason in the
// ledger (DESIGN §10).
type surveys struct {
	mu     sync.Mutex // guards everything below
	begun  uint64
	latest *surveying
	users  map[*surveyor]struct{}
}

type surveying struct {
	number uint64
	done   chan struct{}
	result *journal.Survey
	err    error
}

// surveyor is one tenure's use of the surveys.
type surveyor struct {
	all  *surveys
	used uint64 // number of the last that is too old; guarded by all.mu
}

func (s *surveys) join() *surveyor {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &surveyor{all: s, used: s.begun}
	if s.users == nil {
		s.users = map[*surveyor]struct{}{}
	}
	s.users[u] = struct{}{}
	return u
}

func (u *surveyor) leave() {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	delete(u.all.users, u)
	u.all.forgetLocked()
}

// forgetLocked lets go of a survey that every tenure has used.
func (s *surveys) forgetLocked() {
	if s.latest == nil {
		return
	}
	for u := range s.users {
		if u.used < s.latest.number {
			return
		}
	}
	s.latest = nil
}

// take gives a survey that began after the last one it gave, and after join.
func (u *surveyor) take(ctx context.Context, read func(context.Context) (*journal.Survey, error)) (*journal.Survey, error) {
	s := u.all
	for {
		s.mu.Lock()
		one := s.latest
		own := one == nil || one.number <= u.used
		if own {
			s.begun++
			one = &surveying{number: s.begun, done: make(chan struct{})}
			s.latest = one
		}
		s.mu.Unlock()
		if own {
			one.result, one.err = read(ctx)
			close(one.done)
		}
		select {
		case <-one.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		s.mu.Lock()
		u.used = max(u.used, one.number)
		s.forgetLocked()
		s.mu.Unlock()
		// Where another read it, its end may have been the other's.
		if one.err == nil || own {
			return one.result, one.err
		}
	}
}

// gathering lets the first sweeps of a start begin together, so that one survey
// serves them all.
type gathering struct {
	mu   sync.Mutex
	left int // guarded by mu
	all  chan struct{}
}

func newGathering(n int) *gathering { return &gathering{left: n, all: make(chan struct{})} }

// arrive is called once for each.
func (g *gathering) arrive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left--; g.left == 0 {
		close(g.all)
	}
}

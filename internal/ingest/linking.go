package ingest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// An operation that names others is recorded at the very states of those that were
// checked. So of a hundred requests that name one at once, each in a write of its own, all
// but one would be beaten, read again and be beaten by the next, and whoever else wants to
// write to that operation, as a wish to cancel, with them. Therefore those of one process
// take turns at it, and whoever has the turn records all that wait by then: a hundred come
// to a few writes. Other writers, and other processes, are still met; who is beaten waits a
// growing time before the next try.

const (
	linkedAtOnce = 64 // operations in one write

	// Who was beaten waits about this long before the second try, and longer with
	// each, up to about a second.
	beatenBase = 4 * time.Millisecond
	beatenMax  = time.Second
)

// retryMoving is what a caller waits after operations moved all the time.
const retryMoving = time.Second

// moving refuses what was beaten at every try. None of it is stored nor can be any more.
func moving() *Refusal {
	return &Refusal{Code: CodeMoving, RetryAfter: retryMoving, Detail: "operations that this is about, or names, were written to by others at every try"}
}

// beaten waits before another try. Two who were beaten at once do not wait equally long: who
// tells them apart.
func (v *Service) beaten(ctx context.Context, who string, try int) error {
	d := min(beatenBase<<min(try, 16), beatenMax)
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", v.cfg.Source, who, try)
	return v.cfg.Clock.Sleep(ctx, d/2+time.Duration(h.Sum64()%uint64(d)))
}

// linking keeps the turns at operations that are named, and who waits for one.
type linking struct {
	mu      sync.Mutex // guards what follows
	turns   map[string]*turn
	waiting map[string][]*linkRequest // by the operations that they name
}

// turn is one at a time, in the order in which they come.
type turn struct {
	users int // guarded by the mutex of linking
	free  chan struct{}
}

func newLinking() *linking {
	return &linking{turns: map[string]*turn{}, waiting: map[string][]*linkRequest{}}
}

// take waits for the turns at operations, which are sorted, so that nobody waits for one who
// waits for him. It ends early once done is closed; ok is false then.
func (l *linking) take(ctx context.Context, operations []string, done <-chan struct{}) (release func(), ok bool, err error) {
	var taken []func()
	release = func() {
		for _, r := range taken {
			r()
		}
	}
	for _, id := range operations {
		l.mu.Lock()
		t := l.turns[id]
		if t == nil {
			t = &turn{free: make(chan struct{}, 1)}
			t.free <- struct{}{}
			l.turns[id] = t
		}
		t.users++
		l.mu.Unlock()
		leave := func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if t.users--; t.users == 0 {
				delete(l.turns, id)
			}
		}
		select {
		case <-t.free:
			taken = append(taken, func() { t.free <- struct{}{}; leave() })
		case <-done:
			leave()
			release()
			return nil, false, nil
		case <-ctx.Done():
			leave()
			release()
			return nil, false, ctx.Err()
		}
	}
	return release, true, nil
}

// linkRequest is a submit that names other operations, on its way.
type linkRequest struct {
	r          SubmitRequest
	submission *Submission
	id         string
	plan       plan

	done     chan struct{} // closed once what follows is known
	state    projections.State
	replayed bool
	err      error
}

func (q *linkRequest) settle(s projections.State, replayed bool, err error) {
	q.state, q.replayed, q.err = s, replayed, err
	close(q.done)
}

// named are the operations that a plan names, sorted.
func (p plan) named() (list []string) {
	for _, b := range p.before {
		list = append(list, b.state.Operation)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// recordLinked records an operation that names others, with all that wait to be recorded
// with the same ones. A caller who leaves meanwhile may be recorded all the same, as one
// whose answer is lost.
func (v *Service) recordLinked(ctx context.Context, r SubmitRequest, s *Submission, id string, p plan) (View, bool, error) {
	q := &linkRequest{r: r, submission: s, id: id, plan: p, done: make(chan struct{})}
	named := p.named()
	key := strings.Join(named, " ")
	v.linking.mu.Lock()
	v.linking.waiting[key] = append(v.linking.waiting[key], q)
	v.linking.mu.Unlock()
	for {
		release, ok, err := v.linking.take(ctx, named, q.done)
		if err != nil {
			v.linking.leave(key, q)
			return View{}, false, fmt.Errorf("submit %s: wait for those that name the same operation: %w", id, err)
		}
		if ok {
			v.linkSome(ctx, key)
			release()
		}
		select {
		case <-q.done:
			switch {
			case q.err != nil:
				return View{}, false, q.err
			case q.replayed:
				return v.adopt(r.Caller, q.state, p.intent.Fingerprint)
			}
			return v.view(r.Caller, q.state), false, nil
		default: // there were too many before it
		}
	}
}

// leave takes a request out that nobody waits for, unless it is being recorded.
func (l *linking) leave(key string, q *linkRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[key] = slices.DeleteFunc(l.waiting[key], func(other *linkRequest) bool { return other == q })
	if len(l.waiting[key]) == 0 {
		delete(l.waiting, key)
	}
}

// next gives those who have waited longest, of two under one key the first.
func (l *linking) next(key string) (list []*linkRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]bool{}
	l.waiting[key] = slices.DeleteFunc(l.waiting[key], func(q *linkRequest) bool {
		if seen[q.id] || len(list) == linkedAtOnce {
			return false
		}
		seen[q.id] = true
		list = append(list, q)
		return true
	})
	if len(l.waiting[key]) == 0 {
		delete(l.waiting, key)
	}
	return list
}

// linkSome records those who wait. Some of them are others' requests, which do not end
// when the caller leaves whose turn it is.
func (v *Service) linkSome(ctx context.Context, key string) {
	within := context.WithoutCancel(ctx)
	if at, limited := ctx.Deadline(); limited {
		var stop context.CancelFunc
		within, stop = context.WithDeadline(within, at)
		defer stop()
	}
	list := v.linking.next(key)
	settled := func(q *linkRequest) bool {
		select {
		case <-q.done:
			return true
		default:
			return false
		}
	}
	defer func() { // whatever happens here, nobody waits for ever
		for _, q := range list {
			if !settled(q) {
				q.settle(projections.State{}, false, fmt.Errorf("submit %s: it was not recorded", q.id))
			}
		}
	}()
	for try := 0; try < batchTries && len(list) > 0; try++ {
		if try > 0 {
			if err := v.beaten(within, key, try); err != nil {
				break
			}
			// Another request under its key came first, or an operation moved that it names.
			v.lookAgain(within, list)
			list = slices.DeleteFunc(list, settled)
		}
		again := v.tryLink(within, list)
		list = slices.DeleteFunc(list, settled)
		if !again {
			return
		}
	}
	for _, q := range list {
		q.settle(projections.State{}, false, moving())
	}
}

// remembered is how operations are read that several requests name: once.
func (v *Service) remembered(ctx context.Context) func(id string) (projections.State, error) {
	states := map[string]projections.State{}
	return func(id string) (projections.State, error) {
		if s, known := states[id]; known {
			return s, nil
		}
		s, err := v.cfg.Journal.Current(ctx, id)
		if err == nil {
			states[id] = s
		}
		return s, err
	}
}

// lookAgain settles those that are recorded, and those that may not be recorded any more.
func (v *Service) lookAgain(ctx context.Context, list []*linkRequest) {
	read := v.remembered(ctx)
	for _, q := range list {
		found, err := v.cfg.Journal.Find(ctx, q.id)
		switch {
		case err == nil:
			q.settle(found, true, nil)
			continue
		case !errors.Is(err, journal.ErrNoOperation):
			q.settle(found, false, fmt.Errorf("submit %s: %w", q.id, err))
			continue
		}
		if q.plan.before, err = v.predecessorsBy(read, q.r.Caller, q.submission, q.id); err != nil {
			q.settle(found, false, err)
		}
	}
}

// tryLink records all of the list, or says that it was beaten. A crash before the write
// leaves none of its facts, after it all; each caller's retry finds which by its key.
func (v *Service) tryLink(ctx context.Context, list []*linkRequest) (again bool) {
	if len(list) == 0 {
		return false
	}
	all := v.together(list[0].r.Caller.Principal) // that of the operations named, and so of all
	for _, q := range list {
		all.add(projections.State{Operation: q.id}, v.intentEvent(q.r, q.id, q.plan.intent))
	}
	for _, q := range list {
		all.link(q.plan.before)
	}
	after, outcome, err := v.cfg.Journal.AppendAll(ctx, all.states, all.facts)
	if err == nil && outcome == journal.Superseded {
		return true
	}
	for i, q := range list {
		switch {
		case err != nil:
			q.settle(projections.State{}, false, fmt.Errorf("submit %s: %w", q.id, err))
		default:
			q.settle(after[i], false, nil)
		}
	}
	return false
}

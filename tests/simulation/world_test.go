package simulation

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/workflow"
)

// world is one run: a store, a provider and actors that live in one thread of
// time. Exactly one of them does something at any moment; which one, and how
// long it stands still first, is drawn from the seed.
type world struct {
	cfg   config
	rng   *rand.Rand
	clock clock
	began time.Time

	store    journal.Store // of all, without faults
	journal  *journal.Journal
	provider *provider

	processes []*process
	actors    []*actor
	ready     []*actor // of this step
	events    timeline
	wakeHints []time.Time // when a schedule may fire or a lease may end

	// How often something was stored that the idle wait for.
	ledgerMoves, wakeMoves uint64

	working map[int]*actor // by partition, who projects it
	vacated uint64         // how often somebody ceased to

	hold              workflow.Hold // as operators placed it
	heldAt, heldAllAt time.Time
	healed            time.Time

	healthy bool
	moved   bool // something was stored or acknowledged since attention was checked
	resting bool // nobody has anything to do at this moment
	ids     uint64
	steps   int
	ops     []*operation

	tracing bool
	trace   strings.Builder
	broken  []string       // violations seen while running
	seen    map[string]int // rows of the table and ends, for the coverage
}

// clock is the time of the world, without anybody's skew.
type clock interface {
	Now() time.Time
	// passTo lets time pass; a time gone by is not an error.
	passTo(at time.Time)
}

// virtualClock is the time of a world on the memory double.
type virtualClock struct{ now time.Time }

func (c *virtualClock) Now() time.Time { return c.now }

func (c *virtualClock) passTo(at time.Time) {
	if at.After(c.now) {
		c.now = at
	}
}

// bubbleClock is the time of a synctest bubble, which passes while all sleep.
type bubbleClock struct{}

func (bubbleClock) Now() time.Time { return time.Now() }

func (bubbleClock) passTo(at time.Time) { time.Sleep(time.Until(at)) }

// event is something outside of every actor that happens at its time exactly.
type event struct {
	at    time.Time
	order uint64
	do    func()
}

type timeline struct {
	list []event
	next uint64
}

func (t *timeline) Len() int { return len(t.list) }

func (t *timeline) Less(i, j int) bool {
	a, b := t.list[i], t.list[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.order < b.order
}
func (t *timeline) Swap(i, j int) { t.list[i], t.list[j] = t.list[j], t.list[i] }
func (t *timeline) Push(x any)    { t.list = append(t.list, x.(event)) }

func (t *timeline) Pop() any {
	last := t.list[len(t.list)-1]
	t.list = t.list[:len(t.list)-1]
	return last
}

func (w *world) at(at time.Time, do func()) {
	w.events.next++
	heap.Push(&w.events, event{at, w.events.next, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.clock.Now().Add(d), do) }

// advance lets time pass and what happens by itself happen.
func (w *world) advance(to time.Time) {
	for len(w.events.list) > 0 && !w.events.list[0].at.After(to) {
		e := heap.Pop(&w.events).(event)
		w.clock.passTo(e.at)
		e.do()
	}
	w.clock.passTo(to)
}

func (w *world) logf(format string, args ...any) {
	if w.tracing {
		fmt.Fprintf(&w.trace, "%12.6f ", w.clock.Now().Sub(w.began).Seconds())
		fmt.Fprintf(&w.trace, format, args...)
		w.trace.WriteByte('\n')
	}
}

func (w *world) violate(format string, args ...any) {
	if len(w.broken) < 20 {
		w.broken = append(w.broken, fmt.Sprintf(format, args...))
	}
	w.logf("VIOLATION "+format, args...)
}

// chance draws once. A chance of zero draws nothing, so that a fault that is
// switched off does not shift the rest of a run.
func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// faulty is chance while faults are allowed.
func (w *world) faulty(p float64) bool { return !w.healthy && w.chance(p) }

func (w *world) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(w.rng.Int64N(int64(high-low)))
}

func pick[T any](w *world, list ...T) T { return list[w.rng.IntN(len(list))] }

// process is what crashes as one.
type process struct {
	name   string
	skew   time.Duration
	local  bool // it projects and attends
	run    int
	alive  bool
	start  func(*process) []*actor
	live   []*actor
	board  *journal.Board // of this run; nil: it knows nothing by itself
	timers *timers        // likewise
}

// sourceOf names the process in the facts of its pollers.
func sourceOf(p *process) string { return "/poller/" + p.name }

// linkTime is how long an answer of the ledger to a question for the time takes.
const linkTime = 50 * time.Millisecond

// ahead is what the process knows of its clock, which it compared with the
// ledger's before it began.
func (p *process) ahead() time.Duration { return max(p.skew-linkTime, 0) }

func (w *world) boot(p *process) {
	p.run++
	p.alive = true
	p.board, p.timers = nil, nil
	if w.cfg.Local && p.local {
		p.board = journal.NewBoard(!w.cfg.Cluster)
		p.timers = w.timers(p)
	}
	w.logf("%s starts, run %d", p.name, p.run)
	p.live = p.start(p)
	w.actors = append(w.actors, p.live...)
}

// crash ends every actor of a process where it stands. Nothing of theirs runs
// any more but the unwinding of their stacks, which may touch nothing.
func (w *world) crash(p *process, restart time.Duration) {
	w.logf("%s crashes, run %d", p.name, p.run)
	p.alive = false
	for _, a := range p.live {
		a.kill()
	}
	p.live = nil
	if restart > 0 {
		w.after(restart, func() { w.boot(p) })
	}
}

// killed unwinds the stack of an actor whose process crashed.
type killed struct{}

// actor is one thread of one process.
type actor struct {
	w    *world
	p    *process
	name string

	resume func() (struct{}, bool)
	yield  func(struct{}) bool
	done   bool
	dead   bool
	failed any // a panic of its own

	until   time.Time // not before
	stopped time.Time // by the system, between two instructions
	moved   func() uint64
	seen    uint64 // of moved when it began to wait
	careful bool   // the point it stands at is one where a stop hurts most

	lease    poller.Lease
	nextBeat time.Time
	beating  bool

	swept bool // a projector, in its present tenure
	work  *projector.Work

	call      *request // on the wire
	attending string
	saw       []sighting // answers of this Attend
}

func (w *world) actor(p *process, name string, body func(*actor)) *actor {
	a := &actor{w: w, p: p, name: fmt.Sprintf("%s/%s/run-%d", p.name, name, p.run)}
	a.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					a.failed = fmt.Sprintf("%v\n%s", r, debug.Stack())
				}
			}
		}()
		a.yield = yield
		if !a.dead {
			body(a)
		}
	})
	return a
}

func (a *actor) kill() {
	if a.call != nil {
		a.call.over(a.w.clock.Now())
		a.call = nil
	}
	a.w.provider.lost(a)
	a.dead = true
	if !a.done {
		a.step()
	}
}

// step lets the actor go on to its next point.
func (a *actor) step() {
	_, more := a.resume()
	a.done = !more
	if a.failed != nil {
		panic(fmt.Sprintf("%s: %v", a.name, a.failed))
	}
}

// point is a place between two instructions that touch the world. The actor
// can be stopped here, or end.
func (a *actor) point(careful bool) {
	if a.dead {
		panic(killed{})
	}
	a.careful = careful
	a.yield(struct{}{})
	if a.dead {
		panic(killed{})
	}
	a.beat()
}

// pause waits without being stopped for longer than that by itself; the lease
// is extended meanwhile, as the poller's own goroutine does.
func (a *actor) pause(until time.Time, ended func() bool) {
	for a.w.clock.Now().Before(until) && (ended == nil || !ended()) {
		a.until = until
		if a.lease != nil && a.nextBeat.Before(until) {
			a.until = a.nextBeat
		}
		a.point(false)
	}
	a.until = time.Time{}
}

// await waits until something of the own process happened, or for so long.
func (a *actor) await(_ context.Context, reached <-chan struct{}, limit time.Duration) {
	happened := func() uint64 {
		select {
		case <-reached:
			return 1
		default:
			return 0
		}
	}
	for end := a.w.clock.Now().Add(limit); happened() == 0 && a.w.clock.Now().Before(end); {
		a.until = end
		if a.lease != nil && a.nextBeat.Before(end) {
			a.until = a.nextBeat
		}
		a.moved, a.seen = happened, 0
		a.point(true)
		a.moved = nil
	}
	a.until = time.Time{}
}

// idle waits until a store moved, or something may have become due.
func (a *actor) idle(moved func() uint64, most time.Duration) {
	a.until = a.w.clock.Now().Add(most)
	for _, hint := range a.w.wakeHints {
		if hint.After(a.w.clock.Now()) && hint.Before(a.until) {
			a.until = hint
		}
	}
	a.moved, a.seen = moved, moved()
	a.point(false)
	a.moved, a.until = nil, time.Time{}
}

// hint wakes the idle when something may have become due.
func (w *world) hint(at time.Time) {
	now := w.clock.Now()
	kept := w.wakeHints[:0]
	for _, h := range w.wakeHints {
		if h.After(now) {
			kept = append(kept, h)
		}
	}
	w.wakeHints = append(kept, at)
	for _, a := range w.actors {
		if a.moved != nil && at.Before(a.until) {
			a.until = at
		}
	}
}

// beat extends the lease when it is time.
func (a *actor) beat() {
	if a.lease == nil || a.beating || a.w.clock.Now().Before(a.nextBeat) {
		return
	}
	a.beating = true
	_ = a.lease.Extend(context.Background())
	a.nextBeat = a.w.clock.Now().Add(10 * time.Second)
	a.beating = false
}

// Now is the actor's own clock.
func (a *actor) Now() time.Time { return a.w.clock.Now().Add(a.p.skew) }

// Sleep implements the clocks of poller, projector and journal.
func (a *actor) Sleep(ctx context.Context, d time.Duration) error {
	a.pause(a.w.clock.Now().Add(max(d, 0)), nil)
	return ctx.Err()
}

func (a *actor) newID() string {
	a.w.ids++
	return fmt.Sprintf("s%d-%d", a.w.cfg.Seed, a.w.ids)
}

func (a *actor) runnable(now time.Time) bool {
	if a.stopped.After(now) {
		return false
	}
	return !a.until.After(now) || (a.moved != nil && a.moved() != a.seen)
}

// step lets one actor take one step, or time pass to the next thing that
// happens.
func (w *world) step() {
	w.steps++
	now := w.clock.Now()
	ready := w.ready[:0]
	var soonest time.Time
	sooner := func(at time.Time) {
		if soonest.IsZero() || at.Before(soonest) {
			soonest = at
		}
	}
	kept := w.actors[:0]
	for _, a := range w.actors {
		if a.done {
			continue
		}
		kept = append(kept, a)
		switch {
		case a.runnable(now):
			ready = append(ready, a)
		case a.stopped.After(now):
			sooner(a.stopped)
		default:
			sooner(a.until)
		}
	}
	w.actors = kept
	w.ready = ready
	w.resting = len(ready) == 0
	if w.resting {
		if w.moved {
			w.attention()
			w.moved = false
		}
		if len(w.events.list) > 0 {
			sooner(w.events.list[0].at)
		}
		if soonest.IsZero() {
			soonest = now.Add(time.Minute)
		}
		w.advance(soonest)
		return
	}
	a := ready[w.rng.IntN(len(ready))]
	a.step()
	w.fate(a)
	if w.chance(0.3) {
		w.advance(w.clock.Now().Add(w.between(0, 10*time.Millisecond)))
	}
}

// fate says what befalls an actor at the point it has reached.
func (w *world) fate(a *actor) {
	if w.healthy || a.done {
		return
	}
	c := w.cfg
	stop, crash := c.Stop, c.Crash
	if a.careful {
		stop, crash = stop*8, crash*8
	}
	if w.chance(crash) {
		w.crash(a.p, w.between(0, pick(w, time.Second, 20*time.Second, 2*time.Minute)))
		return
	}
	if w.chance(stop) {
		d := w.longStop()
		a.stopped = w.clock.Now().Add(d)
		w.logf("%s is stopped for %s", a.name, d.Round(time.Millisecond))
	}
}

func (w *world) longStop() time.Duration {
	switch n := w.rng.IntN(100); {
	case n < 35:
		return w.between(time.Millisecond, time.Second)
	case n < 60:
		return w.between(time.Second, 15*time.Second)
	case n < 80:
		return w.between(15*time.Second, time.Minute)
	default:
		return w.between(time.Minute, 6*time.Minute)
	}
}

// heal ends all faults: who is stopped goes on, and who is dead comes back.
func (w *world) heal() {
	w.healthy, w.healed = true, w.clock.Now()
	w.logf("no more faults")
	w.release()
	for _, a := range w.actors {
		a.stopped = time.Time{}
	}
}

package poller

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// keepEvery is how often the slots of an account in use are compared with the
	// store, and so how soon another process gives one up.
	keepEvery = 500 * time.Millisecond
	// lineWait is how long an operation stands in line, its lease held meanwhile;
	// afterwards, or where lineLength others stand there, it is recorded as resting.
	lineWait   = 10 * time.Second
	lineLength = 64
	// restMost is how long such a rest is at most.
	restMost = time.Minute
)

// line is where the calls to one account that has limits wait for their turn.
// Those that cannot wait for long stand before the others.
type line struct {
	p                 *Poller
	provider, account string
	store             journal.AccountSlots // where slots are shared
	seen              uint64               // of the store; the keeper's own

	mu       sync.Mutex // guards what follows
	slots    *budget.Slots
	waiting  []*waiter
	used     uint64        // calls so far
	gap      time.Duration // between two calls, on average
	begun    time.Duration // when the last one was
	promised time.Duration // until when the rests reach that were given out
	pause    time.Duration // until when the provider asked for a pause; to be told
}

type waiter struct {
	urgent bool
	wake   context.CancelFunc // of its present sleep
}

// turn is one call's place in a slot.
type turn struct {
	l    *line
	slot int
	last budget.Moment // at which the request may leave
}

// Use is how far the limits of one account are used in this process.
type Use struct {
	Provider, Account string
	Slots             int // there are, in all processes together
	Held, Busy        int // of them here
	Waiting           int // calls
	Calls             uint64
}

// Uses lists the accounts that have limits and were called.
func (p *Poller) Uses() []Use {
	var list []Use
	for _, l := range p.allLines() {
		l.mu.Lock()
		held, busy := l.slots.Held()
		list = append(list, Use{l.provider, l.account, l.slots.Limits().Slots(), held, busy, len(l.waiting), l.used})
		l.mu.Unlock()
	}
	return list
}

func (p *Poller) allLines() []*line {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*line, 0, len(p.lines))
	for _, l := range p.lines {
		if l != nil {
			list = append(list, l)
		}
	}
	return list
}

// moment is now on both clocks.
func (p *Poller) moment() budget.Moment {
	now := p.cfg.Clock.Now()
	if p.cfg.Monotonic != nil {
		return budget.Moment{Monotonic: p.cfg.Monotonic(), Wall: now.Round(0)}
	}
	return budget.Moment{Monotonic: now.Sub(p.began), Wall: now.Round(0)}
}

// lineOf gives the line of an account, nil if it has no limits.
func (p *Poller) lineOf(provider, account string) (*line, error) {
	if p.cfg.Limits == nil {
		return nil, nil
	}
	limits := p.cfg.Limits(provider, account)
	p.mu.Lock()
	l := p.lines[provider+"/"+account]
	p.mu.Unlock()
	if l == nil && limits.None() {
		return nil, nil
	}
	if l == nil {
		made := &line{p: p, provider: provider, account: account}
		if p.cfg.Process == "" {
			made.slots = budget.Alone(limits, budget.Moment{Monotonic: p.start}, p.cfg.Fresh)
		} else {
			var err error
			if made.store, err = p.cfg.Journal.SlotsOf(provider, account); err != nil {
				return nil, err
			}
			made.slots = budget.New(limits, p.cfg.Process)
		}
		p.mu.Lock()
		if l = p.lines[provider+"/"+account]; l == nil { // nobody was quicker
			p.lines[provider+"/"+account], l = made, made
		}
		p.mu.Unlock()
	}
	l.mu.Lock()
	l.slots.Change(limits, p.moment())
	l.mu.Unlock()
	if limits.None() {
		return nil, nil // taken away since; what is under way ends as it began
	}
	return l, nil
}

// get waits for a turn, so long at most; nil without an error if none came. It
// also says whether it waited. The worker's place is another's meanwhile.
func (l *line) get(ctx context.Context, timeout time.Duration, urgent bool, limit time.Duration) (_ *turn, waited bool, err error) {
	w := &waiter{urgent: urgent}
	end := l.p.moment().Monotonic + min(limit, math.MaxInt64/4)
	for {
		now := l.p.moment()
		l.mu.Lock()
		if l.before(w) == 0 {
			if slot, last, ok := l.slots.Start(now, timeout); ok {
				l.leave(w)
				l.count(now)
				l.mu.Unlock()
				return &turn{l, slot, last}, waited, nil
			}
		}
		sleep := end - now.Monotonic
		if !waited && (sleep <= 0 || !urgent && len(l.waiting) >= lineLength) || sleep <= 0 {
			l.leave(w)
			l.mu.Unlock()
			return nil, waited, nil
		}
		if !waited {
			l.join(w)
		}
		if at, ok := l.slots.Ready(); ok && at > now.Monotonic && l.before(w) == 0 {
			sleep = min(sleep, at-now.Monotonic)
		}
		asleep, wake := context.WithCancel(ctx)
		w.wake = wake
		l.mu.Unlock()
		if !waited {
			l.p.nudge()
		}
		waited = true
		err := awayFrom(ctx, func() error {
			_ = l.p.cfg.Clock.Sleep(asleep, sleep) // woken, or it is time to look again
			wake()
			return ctx.Err()
		})
		if err != nil {
			l.mu.Lock()
			l.leave(w)
			l.mu.Unlock()
			return nil, true, err
		}
	}
}

// before counts those whose turn comes before the waiter's. The mutex is held.
func (l *line) before(w *waiter) int {
	if i := slices.Index(l.waiting, w); i >= 0 {
		return i
	}
	return l.place(w)
}

// place is where the waiter would stand. The mutex is held.
func (l *line) place(w *waiter) int {
	if !w.urgent {
		return len(l.waiting)
	}
	i := slices.IndexFunc(l.waiting, func(o *waiter) bool { return !o.urgent })
	if i < 0 {
		return len(l.waiting)
	}
	return i
}

func (l *line) join(w *waiter) { l.waiting = slices.Insert(l.waiting, l.place(w), w) }

// leave takes the waiter out of the line and lets the first look again. The
// mutex is held.
func (l *line) leave(w *waiter) {
	l.waiting = slices.DeleteFunc(l.waiting, func(o *waiter) bool { return o == w })
	l.wakeFirst()
}

func (l *line) wakeFirst() {
	if len(l.waiting) > 0 && l.waiting[0].wake != nil {
		l.waiting[0].wake()
	}
}

// count takes note of a call that begins. The mutex is held.
func (l *line) count(now budget.Moment) {
	if l.used++; l.used > 1 {
		l.gap += (now.Monotonic - l.begun - l.gap) / 8
	}
	l.begun = now.Monotonic
}

// rest gives the time after which an operation that found the line too long is
// to come back: each another, as far apart as the calls begin.
func (l *line) rest() time.Duration {
	now := l.p.moment().Monotonic
	l.mu.Lock()
	defer l.mu.Unlock()
	gap := max(min(l.gap, time.Second), 10*time.Millisecond)
	if limits := l.slots.Limits(); limits.Requests > 0 {
		gap = max(gap, limits.Per/time.Duration(limits.Requests))
	}
	if l.promised < now || l.promised > now+restMost {
		l.promised = now + min(time.Duration(len(l.waiting))*gap, restMost/2)
	}
	l.promised += gap
	return min(l.promised-now, restMost)
}

// done ends a call.
func (t *turn) done() {
	now := t.l.p.moment()
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	t.l.slots.End(t.slot, now)
	t.l.wakeFirst()
}

// unused gives back a turn, if there is one, in which nothing was asked of the
// provider.
func (t *turn) unused() {
	if t == nil {
		return
	}
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	t.l.slots.Unused(t.slot, t.l.p.moment())
	t.l.wakeFirst()
}

// again waits until the call may go on with another request.
func (t *turn) again(ctx context.Context) error {
	now := t.l.p.moment()
	t.l.mu.Lock()
	at := t.l.slots.Again(t.slot, now)
	t.l.mu.Unlock()
	if at <= now.Monotonic {
		return ctx.Err()
	}
	return awayFrom(ctx, func() error { return t.l.p.cfg.Clock.Sleep(ctx, at-now.Monotonic) })
}

// turnFor gives the turn of the request that is about to be sent: the one that was
// waited for, or for a further page or file one of its own, before the others.
func (p *Poller) turnFor(ctx context.Context, s projections.State, c *calls, timeout time.Duration) (*turn, error) {
	if t := c.turn; t != nil {
		c.turn = nil
		return t, nil
	}
	l, err := p.lineOf(s.Intent.Provider, s.Intent.Account)
	if l == nil || err != nil {
		return nil, err
	}
	t, _, err := l.get(ctx, timeout, true, math.MaxInt64)
	return t, err
}

// bound lets the request leave no later than its slot is held for.
func (t *turn) bound(r *outbound.Request) {
	r.Again = t.again
	if t.last.Monotonic == math.MaxInt64 {
		return
	}
	if r.NotAfter.IsZero() || t.last.Wall.Before(r.NotAfter) {
		r.NotAfter = t.last.Wall
	}
	if t.l.p.cfg.Monotonic != nil && (r.NotAfterMonotonic == 0 || t.last.Monotonic < r.NotAfterMonotonic) {
		r.NotAfterMonotonic = t.last.Monotonic
	}
}

// queue gets the turn of the call that was decided on. Without a turn and an
// error the operation rests, or is to be decided on again.
func (p *Poller) queue(ctx, work context.Context, s projections.State, d workflow.Decision) (*turn, projections.State, bool, error) {
	l, err := p.lineOf(s.Intent.Provider, s.Intent.Account)
	if l == nil || err != nil {
		return nil, s, true, err
	}
	now := p.ledger(p.cfg.Clock.Now())
	limit, urgent := lineWait, cannotWait(d.Step)
	deadline := false
	for _, step := range projections.Steps(s) {
		// A deadline goes on while its operation stands in line.
		if left := step.At.Sub(now); step.Kind == projections.StepDeadline && left > 0 && left < limit {
			limit, deadline = left, true
		}
	}
	t, waited, err := l.get(ctx, timeoutOf(d.Effect), urgent, limit)
	switch {
	case err != nil:
		return nil, s, false, err
	case t == nil && !urgent && !deadline:
		s, _, err = p.append(work, s, &events.StepDeferred{
			Until: p.ledger(p.cfg.Clock.Now()).Add(l.rest()), Reason: events.DeferLimit,
			Detail: "the account's own limit is reached: " + l.limits().String(),
		})
		return nil, s, false, err
	case !waited && t != nil:
		return t, s, true, nil
	}
	// What was decided before is old by now: the last moment of its call, above all.
	if s, err = p.catch(ctx, s); err != nil {
		t.unused()
		return nil, s, false, err
	}
	return t, s, false, nil
}

func (l *line) limits() budget.Limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots.Limits()
}

// cannotWait says which calls go before the others and are not put off: a cancel
// and the one read that a deadline waits for.
func cannotWait(step projections.Step) bool {
	return step.Kind == projections.StepCancel || step.Kind == projections.StepRead && step.Prompt == "deadline"
}

// timeoutOf is how long the effect's call takes at most.
func timeoutOf(effect workflow.Effect) time.Duration {
	switch e := effect.(type) {
	case workflow.SendPrepare:
		return e.Attempt.Timeout
	case workflow.SendCreate:
		return e.Attempt.Timeout
	case workflow.SendCancel:
		return e.Attempt.Timeout
	case workflow.SendInput:
		return e.Attempt.Timeout
	case workflow.SendCleanup:
		return e.Attempt.Timeout
	case workflow.ReadStatus:
		return e.Timeout
	case workflow.LookUp:
		return e.Timeout
	case workflow.CollectResult:
		return e.Timeout
	}
	return 0
}

// nudge lets the keeper look at the slots now.
func (p *Poller) nudge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakeKeeper != nil {
		p.wakeKeeper()
	}
	p.nudged = true
}

// Keep holds the slots that are shared with other processes until ctx ends, and
// then gives them up as their calls end. Without it none is taken. A process that dies leaves them to the others when their life is
// over.
func (p *Poller) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		asleep, wake := context.WithCancel(ctx)
		if p.wakeKeeper = wake; p.nudged {
			wake()
		}
		p.nudged = false
		p.mu.Unlock()
		_ = p.cfg.Clock.Sleep(asleep, keepEvery)
		wake()
		for _, l := range p.allLines() {
			l.keep(ctx, false)
		}
	}
	last, stop := outlive(ctx, p.cfg.Drain+p.cfg.Record)
	defer stop()
	for last.Err() == nil {
		held := 0
		for _, l := range p.allLines() {
			l.keep(last, true)
			l.mu.Lock()
			n, busy := l.slots.Held()
			held += n + busy
			l.mu.Unlock()
		}
		if held == 0 || p.cfg.Clock.Sleep(last, keepEvery/5) != nil {
			return
		}
	}
}

// keep compares one account's slots with the store and writes what has to be
// written. Without an answer nothing is renewed, and calls end before the slots
// count no more.
func (l *line) keep(ctx context.Context, stopping bool) {
	l.mu.Lock()
	held, busy := l.slots.Held()
	idle := held+busy+len(l.waiting) == 0 && l.pause == 0
	l.mu.Unlock()
	if idle {
		return
	}
	news, seen, err := l.store.News(ctx, l.seen)
	now := l.p.moment()
	l.mu.Lock()
	for _, n := range news {
		switch {
		case n.Want != "":
			l.slots.SeeWant(n.Want, now)
		case n.Pause > 0:
			if n.Note.Holder != l.p.cfg.Process && l.seen > 0 { // an old one is nobody's any more
				l.p.paused(l.provider, l.account, n.Pause)
			}
		default:
			l.slots.See(n.Slot, n.Sequence, n.Note, now)
		}
	}
	l.seen = seen
	if err != nil {
		l.mu.Unlock()
		l.p.cfg.Log.DebugContext(ctx, "the slots could not be read", "provider", l.provider, "error", err)
		return
	}
	sent := l.p.moment()
	writes, want := l.slots.Plan(sent, len(l.waiting), stopping)
	pause := l.pause - sent.Monotonic
	l.pause = 0
	l.mu.Unlock()
	for _, w := range writes {
		sequence, err := l.store.Write(ctx, w)
		if err != nil {
			l.p.cfg.Log.DebugContext(ctx, "a slot was not written", "provider", l.provider, "error", err)
			continue
		}
		now := l.p.moment()
		l.mu.Lock()
		l.slots.Wrote(w, sequence, sent, now)
		l.wakeFirst()
		l.mu.Unlock()
	}
	if want {
		err = l.store.Want(ctx, l.p.cfg.Process)
	}
	if pause > 0 {
		err = l.store.Pause(ctx, l.p.cfg.Process, pause)
	}
	if err != nil {
		l.p.cfg.Log.DebugContext(ctx, "the other pollers were not told", "provider", l.provider, "error", err)
	}
}

// paused takes up that another process was told to slow down.
func (p *Poller) paused(provider, account string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.paces[provider+"/"+account]
	if known == nil {
		known = &pace{streak: 1}
		p.paces[provider+"/"+account] = known
	}
	if until := p.cfg.Clock.Now().Add(d); until.After(known.until) {
		known.until, known.wait = until, d
	}
}

// tellPause lets the other processes know until when the account is to rest.
func (p *Poller) tellPause(provider, account string, d time.Duration) {
	p.mu.Lock()
	l := p.lines[provider+"/"+account]
	p.mu.Unlock()
	if l == nil || p.cfg.Process == "" {
		return
	}
	l.mu.Lock()
	l.pause = max(l.pause, p.moment().Monotonic+d)
	l.mu.Unlock()
	p.nudge()
}

// post is the place of a worker that it may leave to another while it waits.
type post struct{ own, shared, place chan struct{} }

type postKey struct{}

func atPost(ctx context.Context, p *post) context.Context {
	return context.WithValue(ctx, postKey{}, p)
}

// awayFrom waits while another uses the worker's place, and has it again when it
// returns. Where ctx has ended it goes on without one, to its end.
func awayFrom(ctx context.Context, wait func() error) error {
	post, ok := ctx.Value(postKey{}).(*post)
	if !ok || post.place == nil {
		return wait()
	}
	post.place <- struct{}{}
	err := wait()
	post.place = take(ctx, post.own, post.shared)
	return err
}

// leave gives the place back at the end.
func (p *post) leave() {
	if p.place != nil {
		p.place <- struct{}{}
	}
}

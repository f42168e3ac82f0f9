// Package poller does the step that is due with a provider and records what it
// did and saw.
//
// A wake-up leases an operation. The worker reads its current state, decides,
// stores the permit, makes the call, stores what came of it, and goes on until
// nothing is due. The lease only saves effort; what keeps two workers from
// sending twice is that a permit is stored at the expected sequence or not at
// all. What a crash leaves at each step stands beside the step.
package poller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// Caller makes one exchange with a provider. An error is always an
// *outbound.Failure, and one that says NotSent is proof.
type Caller interface {
	Do(ctx context.Context, r outbound.Request) (outbound.Answer, error)
	CredentialIdentity(ctx context.Context, cr outbound.Credential) (string, error)
}

// Account is where the calls of one (provider, account) go and as whom.
type Account struct {
	BaseURL    string // "" for the contract's own
	Credential string // reference, "" where none is needed
	// Missing says why nothing may go under this account for now: it is not
	// configured any more. "" if it may.
	Missing string
}

// Directory gives contracts by the digest an operation recorded, and accounts
// as they are configured now.
type Directory interface {
	Contract(ctx context.Context, digest events.Digest) (*contract.Contract, error)
	Account(provider, account string) (Account, error)
}

// Lease is an operation that needs attention, held by this worker for a while.
type Lease interface {
	Operation() string
	// At is the time for which the wake-up was set.
	At() time.Time
	// Version is the ledger sequence of the state it was derived from. Who knows
	// only an older one must not let it go.
	Version() uint64
	// Delivered counts how often the wake-up was handed out, this time included.
	Delivered() uint64
	Extend(ctx context.Context) error
	Ack(ctx context.Context) error
	// Release hands the operation to another worker at once.
	Release(ctx context.Context) error
	// Left tells that the worker has let go, of which state it knew last and what
	// kept it from going on.
	Left(s projections.State, err error)
}

// Clock is the worker's time. Sleep returns early with ctx's error.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Config of a Poller. All fields but Gone, Monotonic, Permits, Hold, Observe, Ahead,
// Patience, Beat, Record and Drain are required.
type Config struct {
	Journal   *journal.Journal
	Call      Caller
	Directory Directory
	Clock     Clock
	NewID     func() string
	Log       *slog.Logger

	// Callback gives the address a provider may call for an operation, "" for
	// none.
	Callback func(provider, account, operation string) string

	// Source is the CloudEvents source of this worker's facts, "/poller/1".
	Source string
	// Owner names this worker and the run of its process in every attempt.
	Owner string
	// Gone says whether an owner is proved to be gone (workflow.World).
	Gone func(owner string) bool

	// Monotonic is the clock of the outbound client that no setting of the wall
	// clock moves. Nil leaves a permit's last moment to the wall clock alone.
	Monotonic func() time.Duration

	// Permits says why no call with side effects may be permitted now, if none
	// may: the streams are not what they were, or the clock is off. Evidence and
	// reads go on. Nil means that nothing forbids them.
	Permits func() error

	// Observe is told of every exchange with a provider once it is over. It must
	// return at once. Nil means that nobody wants to know.
	Observe func(Exchange)

	// Hold says what rests for a provider. Nil means nothing.
	Hold func(provider string) workflow.Hold

	// Limits gives what may be asked of an account at once and in a stretch of
	// time. Nil means anything.
	Limits func(provider, account string) budget.Limits
	// Process is the name under which this process holds its part of the limits
	// among others, its alone; "" if it is the only one that calls providers.
	Process string
	// Fresh says that no process before it can have made a call, where it is the
	// only one.
	Fresh bool

	// Ahead is by how much Clock is known to be ahead of the ledger's, which dates
	// the facts; 0 or more. What is due is judged without it. Nil means 0.
	Ahead func() time.Duration

	// Patience is how long a worker waits out the remainder of a wake-up that
	// came early; a longer one is left to the lease's end. Default 2 s.
	Patience time.Duration
	// Beat is how often a lease is extended while it is worked on. Default 10 s.
	Beat time.Duration
	// Record bounds how long a worker that is being stopped goes on trying to
	// store what it has seen. Default 10 s.
	Record time.Duration
	// Drain is how long a worker that is being stopped goes on with the step that
	// is under way before it is broken off: a create whose answer nobody waits for
	// has an unknown outcome. 0 breaks it off at once.
	Drain time.Duration
}

// Exchange is one call to a provider and how it went at the level of HTTP. The
// strings are few and fixed but for the provider's name.
type Exchange struct {
	Provider string
	Step     projections.StepKind // what was due when it was made
	Outcome  string               // "2xx" to "5xx", or the failure's class
	Took     time.Duration
}

// Poller works on leased operations. It is safe for concurrent use.
type Poller struct {
	cfg Config

	mu sync.Mutex
	// busy holds a channel for each operation this process works on, closed
	// when it is done: a second lease of one operation waits for the first.
	// Guarded by mu.
	busy map[string]chan struct{}
	// paces holds what each (provider, account) said about being asked too
	// often. Guarded by mu.
	paces map[string]*pace
	// lines holds the accounts that have limits, once they are called. Guarded by
	// mu, as what follows.
	lines      map[string]*line
	wakeKeeper context.CancelFunc
	nudged     bool

	beats beats
	bases bases

	began time.Time     // when it was made, where there is no monotonic clock
	start time.Duration // the same on the monotonic clock
}

// New makes a Poller.
func New(cfg Config) *Poller {
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Second
	}
	if cfg.Beat == 0 {
		cfg.Beat = 10 * time.Second
	}
	if cfg.Record == 0 {
		cfg.Record = 10 * time.Second
	}
	p := &Poller{cfg: cfg, busy: map[string]chan struct{}{}, paces: map[string]*pace{}, lines: map[string]*line{}, began: cfg.Clock.Now()}
	p.start = p.moment().Monotonic
	p.beats = beats{clock: cfg.Clock, every: cfg.Beat, failed: func(ctx context.Context, lease Lease, err error) {
		// The lease may be lost. The next permit will tell: it fails on
		// its expected sequence if another worker has moved on.
		cfg.Log.WarnContext(ctx, "lease not extended", "operation", lease.Operation(), "error", err)
	}}
	return p
}

// Fetch gives up to limit leases of one provider, waiting so long for the
// first; none is not an error.
type Fetch func(ctx context.Context, limit int, wait time.Duration) ([]Lease, error)

// lags is at which delivery a wake-up is believed to be made from facts that the
// ledger has lost: after two leases, for longer than a leader that was cut off
// answers for it.
const lags = 3

// How long a fetch waits for the first wake-up, and holds a free worker
// meanwhile: one that the others could use is held for a moment only.
const (
	waitOwn    = 5 * time.Second
	waitShared = 100 * time.Millisecond
)

// Run works with so many workers until ctx ends, which is not an error; it
// returns when the last worker is done. Where there are two for each provider
// or more, each provider has one of its own and shares the others, so that one
// whose calls hang does not stop the rest. It fetches no more leases than it
// has free workers, since a lease runs from its delivery.
func (p *Poller) Run(ctx context.Context, providers []Fetch, workers int) error {
	own := 0
	if workers >= 2*len(providers) {
		own = 1
	}
	shared := places(workers - own*len(providers))
	var group errgroup.Group
	crew := newCrew(&group)
	for _, fetch := range providers {
		group.Go(func() error {
			p.feed(ctx, crew, fetch, places(own), shared)
			return nil
		})
	}
	return group.Wait()
}

// places holds one token for each free worker.
func places(n int) chan struct{} {
	c := make(chan struct{}, n)
	for range n {
		c <- struct{}{}
	}
	return c
}

// take waits for a free worker, the provider's own first, and gives where it
// is to be put back; nil if ctx ends.
func take(ctx context.Context, own, shared chan struct{}) chan struct{} {
	select {
	case <-own:
		return own
	default:
	}
	select {
	case <-own:
		return own
	case <-shared:
		return shared
	case <-ctx.Done():
		return nil
	}
}

// feed hands one provider's leases to free workers.
func (p *Poller) feed(ctx context.Context, crew *crew, fetch Fetch, own, shared chan struct{}) {
	for {
		place := take(ctx, own, shared)
		if ctx.Err() != nil { // also where a worker was free: nothing is leased any more
			return
		}
		wait := waitShared
		if place == own {
			wait = waitOwn
		}
		leases, err := p.next(ctx, fetch, wait)
		if err != nil && ctx.Err() == nil {
			// Nothing was leased, so nothing is lost: the wake-ups stay where
			// they are until the store answers again.
			p.cfg.Log.WarnContext(ctx, "no wake-up could be fetched", "error", err)
			_ = p.cfg.Clock.Sleep(ctx, time.Second) // the next round sees ctx
		}
		if len(leases) == 0 {
			place <- struct{}{}
			continue
		}
		crew.give(ctx, p, task{leases, &post{own, shared, place}})
	}
}

// serve attends to one lease and extends it meanwhile, also while stopping.
func (p *Poller) serve(stopping context.Context, lease Lease) {
	ctx := context.WithoutCancel(stopping)
	h := p.beats.hold(ctx, lease)
	s, err := p.see(stopping, lease)
	p.beats.leave(h)
	if err != nil && !errors.Is(err, context.Canceled) {
		// The lease ends by itself and the wake-up is delivered again.
		p.cfg.Log.ErrorContext(ctx, "operation left to its next lease", "operation", lease.Operation(), "trace", traceOf(s), "error", err)
	}
}

// Attend does what is due for the leased operation until nothing is. It acks
// the lease only if the operation's next look is later than the time for which
// the wake-up was set, or none: then another wake-up exists or will be made from
// the facts. Otherwise it waits out a short remainder or leaves the lease to
// its end, after which the wake-up comes again. So it does with a state older than
// the wake-up, which a leader of the ledger gives that was cut off: by it the only
// wake-up there is would be acked. When ctx ends it finishes the step that is under
// way, within Drain, and gives the lease back.
func (p *Poller) Attend(ctx context.Context, lease Lease) error {
	_, err := p.see(ctx, lease)
	return err
}

// traceOf is for the log; "" where the state could not be read.
func traceOf(s projections.State) string {
	if s.Operation == "" {
		return ""
	}
	return s.TraceID()
}

// see is Attend, and gives the state that the worker knew last.
func (p *Poller) see(ctx context.Context, lease Lease) (projections.State, error) {
	s, err := p.attend(ctx, lease)
	if err != nil && ctx.Err() != nil {
		p.release(ctx, lease)
	}
	lease.Left(s, err)
	return s, err
}

func (p *Poller) attend(ctx context.Context, lease Lease) (s projections.State, err error) {
	leave, err := p.enter(ctx, lease.Operation())
	if err != nil {
		return s, err
	}
	defer leave()
	err = p.steadily(ctx, func() (err error) {
		s, err = p.cfg.Journal.Known(ctx, lease.Operation(), lease.Version())
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read state of %s: %w", lease.Operation(), err)
	}
	if s.Rulebook() > projections.Rules {
		return s, nil // a newer version made it and must attend to it; not acked
	}
	var last struct {
		sequence uint64
		repeats  int
		refused  uint64
		refusals int
	}
	last.refused = s.Refused
	work, stop := ctx, context.CancelFunc(func() {})
	if p.cfg.Drain > 0 {
		work, stop = outlive(ctx, p.cfg.Drain)
	}
	defer stop()
	var mine *turn // of the account's limits, for the next call
	defer func() { mine.unused() }()
	for {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		d, c, err := p.decide(ctx, s)
		if err != nil {
			return s, err
		}
		if d.Effect != nil && mine == nil {
			// Before the permit: what is permitted must not wait.
			var ready bool
			if mine, s, ready, err = p.queue(ctx, work, s, d); err != nil {
				return s, fmt.Errorf("turn of %s: %w", s.Operation, err)
			} else if !ready {
				continue
			}
		}
		if d.Effect == nil {
			mine.unused()
			mine = nil
		}
		if d.Fact == nil && d.Effect == nil {
			next, ok := projections.Next(s)
			if !ok || next.After(lease.At()) && !lease.At().IsZero() {
				if s.Sequence < lease.Version() && lease.Delivered() < lags {
					return s, fmt.Errorf("the ledger ends before the fact %d that the wake-up was made from", lease.Version())
				}
				return s, lease.Ack(ctx)
			}
			if d.Held {
				return s, fmt.Errorf("no call with side effects is permitted: %w", c.held)
			}
			wait := d.Until.Sub(p.ledger(p.cfg.Clock.Now()))
			if d.Until.IsZero() || wait > p.cfg.Patience {
				return s, nil
			}
			if err := p.cfg.Clock.Sleep(ctx, wait); err != nil {
				return s, err
			}
			if s, err = p.catch(ctx, s); err != nil {
				return s, fmt.Errorf("read news of %s: %w", s.Operation, err)
			}
			continue
		}
		c.turn, mine = mine, nil
		s, err = p.perform(work, s, c, d)
		c.turn.unused() // if nothing was sent
		if err != nil {
			return s, fmt.Errorf("%s of %s: %w", d.Step.Kind, lease.Operation(), err)
		}
		if s.Sequence == last.sequence {
			// Work that leaves no fact would be repeated at once, for ever.
			if last.repeats++; last.repeats > 2 {
				return s, fmt.Errorf("%s of %s leaves no fact", d.Step.Kind, lease.Operation())
			}
			continue
		}
		last.sequence, last.repeats = s.Sequence, 0
		if s.Refused == last.refused {
			last.refusals = 0
			continue
		}
		// By the ledger's clock the step is over or not due, and by ours it is.
		if last.refused, last.refusals = s.Refused, last.refusals+1; last.refusals > 2 {
			return s, fmt.Errorf("%s of %s is refused each time", d.Step.Kind, lease.Operation())
		}
	}
}

// enter waits until no other worker of this process attends to the operation.
func (p *Poller) enter(ctx context.Context, operation string) (leave func(), err error) {
	for {
		p.mu.Lock()
		other, taken := p.busy[operation]
		if !taken {
			done := make(chan struct{})
			p.busy[operation] = done
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				delete(p.busy, operation)
				p.mu.Unlock()
				close(done)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// decide looks at the worker's surroundings and asks the pure core.
func (p *Poller) decide(ctx context.Context, s projections.State) (workflow.Decision, *calls, error) {
	c, err := p.calls(ctx, s)
	if err != nil {
		return workflow.Decision{}, nil, err
	}
	d := workflow.Decide(s, workflow.World{
		Now: c.now, Ledger: p.ledger(c.now), Owner: p.cfg.Owner, Target: c.target, Gone: p.cfg.Gone, Held: c.held != nil,
		Hold: p.hold(s), Throttled: p.ledger(p.throttled(s, c.now)),
	})
	c.provider, c.step = s.Intent.Provider, d.Step.Kind
	if c.unusable != nil {
		d = c.without(s, d)
	}
	return d, c, nil
}

// ledger is the ledger's time at a time of the worker's clock, as far as is known;
// never later than that.
func (p *Poller) ledger(at time.Time) time.Time {
	if p.cfg.Ahead == nil || at.IsZero() {
		return at
	}
	return at.Add(-max(p.cfg.Ahead(), 0))
}

// hold gives what rests for the operation's provider.
func (p *Poller) hold(s projections.State) workflow.Hold {
	if p.cfg.Hold == nil {
		return workflow.Hold{}
	}
	return p.cfg.Hold(s.Intent.Provider)
}

// perform appends the decision's fact and, if it is a permit that the fold
// applied, attempts the effect.
func (p *Poller) perform(ctx context.Context, s projections.State, c *calls, d workflow.Decision) (projections.State, error) {
	switch effect := d.Effect.(type) {
	case nil:
		// A crash before the append leaves the step due; after it, the step is
		// recorded and the redelivered wake-up finds a newer state.
		s, _, err := p.append(ctx, s, d.Fact)
		return s, err
	case workflow.SendPrepare:
		return p.prepare(ctx, s, c, effect)
	case workflow.SendCreate:
		return p.create(ctx, s, c, effect)
	case workflow.SendCancel:
		return p.cancel(ctx, s, c, effect)
	case workflow.SendInput:
		return p.input(ctx, s, c, effect)
	case workflow.SendCleanup:
		return p.cleanup(ctx, s, c, effect)
	case workflow.ReadStatus:
		return p.read(ctx, s, c, effect)
	case workflow.LookUp:
		return p.lookUp(ctx, s, c, effect)
	case workflow.CollectResult:
		return p.collect(ctx, s, c, effect)
	}
	panic(fmt.Sprintf("poller: effect %T is not known", d.Effect))
}

// append stores a fact on behalf of this worker.
func (p *Poller) append(ctx context.Context, s projections.State, fact events.Fact) (projections.State, journal.Outcome, error) {
	return p.cfg.Journal.Append(ctx, s, events.Event{
		ID: p.cfg.NewID(), Source: p.cfg.Source, Operation: s.Operation, Time: p.cfg.Clock.Now(),
		Fact: fact,
	})
}

// record stores evidence of something that has happened, see outlive.
func (p *Poller) record(ctx context.Context, s projections.State, fact events.Fact) (projections.State, error) {
	ctx, stop := p.outlive(ctx)
	defer stop()
	s, _, err := p.append(ctx, s, fact)
	return s, err
}

// outlive gives a context that ends Record after ctx has ended, and not before:
// what was seen must not be lost to a shutdown, and evidence is tried until it
// is in as long as there is none.
func (p *Poller) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return outlive(ctx, p.cfg.Record)
}

// FromJournal gives the leases of one provider as the journal hands them out.
func FromJournal(leases *journal.Leases) Fetch {
	return func(ctx context.Context, limit int, wait time.Duration) ([]Lease, error) {
		list, err := leases.Fetch(ctx, limit, wait)
		out := make([]Lease, 0, len(list))
		for _, l := range list {
			out = append(out, leased{l})
		}
		return out, err
	}
}

type leased struct{ lease *journal.Lease }

func (l leased) Operation() string                { return l.lease.Operation }
func (l leased) At() time.Time                    { return l.lease.At }
func (l leased) Version() uint64                  { return l.lease.Version }
func (l leased) Delivered() uint64                { return l.lease.Delivered }
func (l leased) Extend(ctx context.Context) error { return l.lease.Extend(ctx) }
func (l leased) Ack(ctx context.Context) error    { return l.lease.Ack(ctx) }
func (l leased) Left(projections.State, error)    {}

func (l leased) Release(ctx context.Context) error { return l.lease.Release(ctx) }

package simulation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// operation is one request of the simulated caller.
type operation struct {
	id        string
	partition int
	intent    *events.IntentRecorded
	params    []byte
	submit    time.Time
	cancel    time.Time // zero: never
	submitted bool
	cancelled bool

	risked  bool // a decision accepted that a second job may be made
	decided bool
	adopted bool
	robbed  bool // somebody may have given a job of it to another operation

	newest         uint64            // fact in the ledger
	facts, records int               // stored of it
	unswept        bool              // its newest record is of a tenure that has not swept since
	folded         projections.State // of the ledger, by the judge
}

func (w *world) name() string { return fmt.Sprintf("p%d", w.cfg.Seed) }

// operations draws what the caller will ask for. All of one run share a
// provider and an account; half of many have the same parameters.
func (w *world) operations(c *contract.Contract) {
	cfg := w.cfg
	policy, err := c.Policy(events.Policy{
		PollInterval: cfg.Interval, RequestTimeout: cfg.Timeout, MaxAttempts: cfg.Attempts, ClockDifference: cfg.Difference,
	})
	if err != nil {
		panic(err)
	}
	deadlines, err := c.Deadlines(events.Deadlines{Create: cfg.Create, Result: cfg.Result, Cancel: cfg.Cancel, Collect: cfg.Collect})
	if err != nil {
		panic(err)
	}
	promises, offers := c.Promises(cfg.Webhooks), c.Offers()
	if cfg.Upload {
		promises.Prepares = 1
	}
	promises.Settle = cfg.Held + cfg.Late
	promises.TokenWindow = cfg.Window
	promises.GoneConfirmsCancel, promises.PartialResults = cfg.GoneConfirms, cfg.Partial
	promises.Strict = cfg.Strict && promises.LookupConclusive
	if cfg.NoResult {
		promises.HasResult = false
	}
	if cfg.NoRepeatCancel {
		promises.RepeatCancel = false
	}
	offers.RepeatInput, promises.RepeatCleanup = offers.RepeatInput && !cfg.OnceInput, promises.RepeatCleanup && !cfg.OnceCleanup
	key := []byte("instance key of the simulation")
	home := int(cfg.Seed % journal.Partitions)
	for i := range cfg.Ops {
		op := &operation{params: []byte(`{"version":"v1","input":{"n":1}}`)}
		if i%2 == 1 {
			op.params = fmt.Appendf(nil, `{"version":"v1","input":{"n":%d}}`, i)
		}
		for n := 0; op.id == ""; n++ {
			id := fmt.Sprintf("op_%d_%d_%d", cfg.Seed, i, n)
			if p := journal.Partition(id); p == home || (i%3 == 2 && p == (home+1)%journal.Partitions) {
				op.id, op.partition = id, p
			}
		}
		fingerprint := events.Digest(sha256.Sum256([]byte(op.id)))
		token, reference := c.Identifiers(key, op.id, fingerprint)
		op.intent = &events.IntentRecorded{
			Principal: "alice", Provider: w.name(), Account: "main", Contract: c.Digest,
			Fingerprint: fingerprint, Payload: events.Sum(op.params), PayloadSize: uint64(len(op.params)),
			Token: token, ClientReference: reference, Deadlines: deadlines, Policy: policy, Promises: promises, Offers: offers, Rules: projections.RulesFor(offers),
		}
		op.submit = w.clock.Now().Add(w.between(0, 2*time.Second))
		if cfg.Many {
			op.submit = w.clock.Now().Add(w.between(0, cfg.Faults/2))
		}
		if w.chance(cfg.Cancels) {
			op.cancel = op.submit.Add(w.between(0, pick(w, time.Second, 20*time.Second, 2*time.Minute)))
		}
		w.ops = append(w.ops, op)
	}
}

func (w *world) partitions() []int {
	var list []int
	for _, op := range w.ops {
		if !slices.Contains(list, op.partition) {
			list = append(list, op.partition)
		}
	}
	return list
}

func (w *world) operation(id string) *operation {
	for _, op := range w.ops {
		if op.id == id {
			return op
		}
	}
	panic("simulation: operation " + id + " was not asked for")
}

// directory implements poller.Directory.
type directory struct{ c *contract.Contract }

func (d directory) Contract(context.Context, events.Digest) (*contract.Contract, error) {
	return d.c, nil
}

func (d directory) Account(string, string) (poller.Account, error) {
	return poller.Account{BaseURL: providerURL, Credential: "env:KEY"}, nil
}

// lease implements poller.Lease over the journal's own.
type lease struct{ *journal.Lease }

func (l *lease) Operation() string             { return l.Lease.Wake.Operation }
func (l *lease) At() time.Time                 { return l.Lease.Wake.At }
func (l *lease) Version() uint64               { return l.Lease.Wake.Version }
func (l *lease) Delivered() uint64             { return l.Lease.Delivered }
func (l *lease) Left(projections.State, error) {}

// timers are those of one run of a process, and tell the world when they move.
type timers struct {
	*poller.Timers
	w     *world
	p     *process
	moves uint64
}

func (w *world) timers(p *process) *timers {
	return &timers{Timers: poller.NewTimers(func() time.Time { return w.clock.Now().Add(p.skew - p.ahead()) }), w: w, p: p}
}

func (t *timers) Due(partition int, s projections.State) {
	t.Timers.Due(partition, s)
	t.moves++
	if !s.NextLook.IsZero() {
		t.w.hint(s.NextLook.Add(t.p.ahead() - t.p.skew))
	}
}

// gone says whether an owner is proved to be gone: an earlier run of the one
// process that holds everything.
func (w *world) gone(p *process) func(string) bool {
	if w.cfg.Cluster {
		return nil
	}
	return func(owner string) bool {
		_, text, ok := strings.Cut(owner, "/run-")
		run, err := strconv.Atoi(text)
		return ok && err == nil && run < p.run
	}
}

// holds is what every process knows of holds, at once.
func (w *world) holds(string) workflow.Hold { return w.hold }

func (w *world) poller(p *process, name string, c *contract.Contract) *actor {
	return w.actor(p, name, func(a *actor) {
		j := a.journal()
		worker := poller.New(poller.Config{
			Journal: j, Call: &caller{a}, Directory: directory{c}, Clock: a, NewID: a.newID, Log: slog.New(slog.DiscardHandler),
			Callback: func(_, _, _ string) string { return "" },
			Source:   sourceOf(p), Owner: a.name, Gone: w.gone(p), Hold: w.holds, Ahead: p.ahead,
		})
		var leases *journal.Leases
		for leases == nil {
			var err error
			if leases, err = j.Leases(context.Background(), w.name()); err != nil {
				_ = a.Sleep(context.Background(), time.Second)
			}
		}
		fetch, moved, patience := fromJournal(leases), func() uint64 { return w.wakeMoves }, 30*time.Second
		if p.timers != nil {
			fetch = poller.WithFallback(p.timers.Fetch(w.name()), fetch, a.Now)
			moved, patience = func() uint64 { return p.timers.moves }, 5*time.Second
		}
		for {
			list, err := fetch(context.Background(), 1, 0)
			if err != nil {
				_ = a.Sleep(context.Background(), time.Second)
			}
			if len(list) == 0 {
				if err == nil {
					a.idle(moved, patience)
				}
				continue
			}
			for _, l := range list {
				a.attend(worker, l)
			}
		}
	})
}

func fromJournal(leases *journal.Leases) poller.Fetch {
	return func(ctx context.Context, limit int, wait time.Duration) (out []poller.Lease, err error) {
		list, err := leases.Fetch(ctx, limit, wait)
		for _, l := range list {
			out = append(out, &lease{l})
		}
		return out, err
	}
}

func (a *actor) attend(worker *poller.Poller, l poller.Lease) {
	w := a.w
	from := "timers"
	if woken, ok := l.(*lease); ok {
		from = fmt.Sprintf("delivery %d", woken.Delivered())
	}
	w.logf("%s leases %s, %s, at %s", a.name, l.Operation(), from, l.At().Sub(w.began))
	a.lease, a.nextBeat, a.attending = l, w.clock.Now().Add(10*time.Second), l.Operation()
	err := worker.Attend(context.Background(), l)
	a.lease, a.attending = nil, ""
	if err == nil {
		w.provider.confirmed = append(w.provider.confirmed, a.saw...)
	}
	w.logf("%s leaves %s: %v", a.name, l.Operation(), err)
	a.saw = nil
}

// projectorActor works on one partition, for one tenure after the other, as
// Projector.Run does.
func (w *world) projector(p *process, name string, partition int) *actor {
	return w.actor(p, name, func(a *actor) {
		j := a.journal()
		c := projector.Config{
			Journal: j, Clock: a, NewID: a.newID, Log: slog.New(slog.DiscardHandler),
			Source: "/projector/" + name, Build: "simulation", Gone: w.gone(p), Alone: !w.cfg.Cluster, Hold: w.holds,
		}
		if p.timers != nil {
			c.Timers = p.timers
		}
		pr := projector.New(c)
		ctx := context.Background()
		first := true
		for {
			err := a.tenure(ctx, j, pr, partition, &first)
			w.logf("%s: tenure of %d ends: %v", a.name, partition, err)
			wait := time.Second
			if errors.Is(err, journal.ErrFenced) && !w.healthy {
				// Another has it. It is taken back at a moment nobody expects.
				wait = w.between(0, 40*time.Second)
			}
			_ = a.Sleep(ctx, wait)
			// Once all is well, as with an elected seat: it is the other's for as
			// long as the other works on it, and nobody's when both were fenced.
			for w.healthy && w.working[partition] != nil {
				a.idle(func() uint64 { return w.vacated }, time.Hour)
			}
		}
	})
}

func (a *actor) tenure(ctx context.Context, j *journal.Journal, pr *projector.Projector, partition int, first *bool) error {
	w := a.w
	t, err := j.TakeOver(ctx, partition)
	if err != nil {
		return err
	}
	w.logf("%s has partition %d", a.name, partition)
	w.working[partition] = a
	a.swept = false
	defer func() {
		if w.working[partition] == a {
			delete(w.working, partition)
			w.vacated++
		}
	}()
	work, err := pr.Open(ctx, t)
	if err != nil {
		return err
	}
	defer work.Close()
	a.work = work
	for {
		busy, err := work.Step(ctx, 0)
		if err != nil {
			return err
		}
		if busy {
			continue
		}
		if a.p.timers != nil && !a.swept {
			if err := work.Begin(ctx); err != nil {
				return err
			}
		}
		if err := work.Sweep(ctx, !w.cfg.Cluster && *first && a.p.timers == nil); err != nil {
			return err
		}
		*first = false
		a.swept = true
		for _, op := range w.ops {
			// The sweep of one that was overtaken says nothing about what came since.
			if journal.Partition(op.id) == partition && w.working[partition] == a {
				op.unswept = false
			}
		}
		for end := a.Now().Add(5 * time.Minute); a.Now().Before(end); {
			busy, err := work.Step(ctx, 0)
			if err != nil {
				return err
			}
			if !busy {
				a.idle(func() uint64 { return w.ledgerMoves }, work.Patience(end.Sub(a.Now())))
			}
		}
	}
}

// caller submits, cancels and decides, each at least once: who does not know
// whether it happened does it again.
func (w *world) caller(p *process) *actor {
	return w.actor(p, "caller", func(a *actor) {
		j := a.journal()
		ctx := context.Background()
		for {
			worked := false
			for _, op := range w.ops {
				now := w.clock.Now()
				switch {
				case !op.submitted && !op.submit.After(now):
					worked = true
					op.submitted = a.submit(ctx, j, op)
				case op.submitted && !op.cancelled && !op.cancel.IsZero() && !op.cancel.After(now):
					worked = true
					op.cancelled = a.wish(ctx, j, op)
				}
			}
			if worked {
				continue
			}
			next := w.clock.Now().Add(10 * time.Minute)
			for _, op := range w.ops {
				if !op.submitted && op.submit.Before(next) {
					next = op.submit
				}
				if op.submitted && !op.cancelled && !op.cancel.IsZero() && op.cancel.Before(next) {
					next = op.cancel
				}
			}
			if w.cfg.Decides {
				next = w.clock.Now().Add(min(next.Sub(w.clock.Now()), w.between(5*time.Second, time.Minute)))
				a.decisions(ctx, j)
			}
			if w.cfg.Asks+w.cfg.Cleans > 0 {
				next = w.clock.Now().Add(min(next.Sub(w.clock.Now()), w.between(5*time.Second, 40*time.Second)))
				a.further(ctx, j)
			}
			if w.cfg.Pauses > 0 && !w.healthy {
				next = w.clock.Now().Add(min(next.Sub(w.clock.Now()), w.between(5*time.Second, time.Minute)))
				a.pauses(ctx, j)
			}
			a.pause(next, nil)
		}
	})
}

func (a *actor) submit(ctx context.Context, j *journal.Journal, op *operation) bool {
	if _, err := j.PutPayload(ctx, op.params); err != nil {
		return false
	}
	s, outcome, err := j.Create(ctx, events.Event{
		ID: a.newID(), Source: "/ingest", Operation: op.id, Time: a.Now(), Actor: "alice", Fact: op.intent,
	})
	if err != nil && outcome != journal.Stored {
		a.w.logf("submit %s: %v", op.id, err)
		return false
	}
	a.w.logf("submitted %s: %s, %s", op.id, outcome, s.Phase)
	return true
}

func (a *actor) wish(ctx context.Context, j *journal.Journal, op *operation) bool {
	s, err := j.Current(ctx, op.id)
	if err != nil {
		return false
	}
	if a.w.cfg.Seed%2 == 0 && s.Phase.Terminal() {
		return true
	}
	_, outcome, err := j.Append(ctx, s, events.Event{
		ID: "cancel-" + op.id, Source: "/ingest", Time: a.Now(), Actor: "alice", Fact: &events.CancelRequested{Who: "alice"},
	})
	a.w.logf("cancel of %s: %s %v", op.id, outcome, err)
	return outcome == journal.Stored
}

// decisions settles some of what automation must not settle.
func (a *actor) decisions(ctx context.Context, j *journal.Journal) {
	w := a.w
	for _, op := range w.ops {
		if !op.submitted || !w.chance(0.3) {
			continue
		}
		s, err := j.Current(ctx, op.id)
		if err != nil || !s.Phase.Stopped() {
			continue
		}
		d := &events.DecisionMade{Who: "alice", Sequence: s.Sequence}
		d.Choice = pick(w, events.DecideAbandon, events.DecideExtend, events.DecideAdopt, events.DecideRetryCreate,
			events.DecideResume, events.DecideRetryCollection, events.DecideAcceptResult, events.DecideMarkCancelled)
		if ok, _ := projections.Allowed(s, d.Choice); !ok {
			continue
		}
		switch d.Choice {
		case events.DecideExtend:
			d.Which, d.Until = events.DeadlineResult, a.Now().Add(w.cfg.Result)
		case events.DecideAdopt:
			jobs := append(projections.Candidates(s), projections.Unfollowed(s)...)
			if len(jobs) == 0 {
				continue
			}
			d.JobID = jobs[w.rng.IntN(len(jobs))]
			if mine := w.provider.byID[d.JobID]; mine != nil && mine.operation != op.id {
				w.operation(mine.operation).robbed = true // whether it comes to it or not
			}
			if d.Claim, err = j.Claim(ctx, s.Intent.Provider, s.Intent.Account, d.JobID, op.id); err != nil {
				continue
			}
		case events.DecideRetryCreate:
			d.AcceptRisk = w.chance(0.5)
		case events.DecideMarkCancelled:
			d.Evidence = events.Sum([]byte("seen"))
		case events.DecideAbandon, events.DecideResume, events.DecideRetryCollection, events.DecideAcceptResult:
		}
		// Whether it is stored or not: from here on a decision may stand.
		op.decided = true
		op.risked = op.risked || d.AcceptRisk
		op.adopted = op.adopted || d.Choice == events.DecideAdopt
		_, outcome, err := j.Append(ctx, s, events.Event{
			ID: a.newID(), Source: "/ingest", Time: a.Now(), Actor: "alice", Fact: d,
		})
		w.logf("decision %s on %s: %s %v", d.Choice, op.id, outcome, err)
	}
}

// further answers what jobs wait for, and has removed what they left, as ingest does:
// on the very state that was looked at, or not at all.
func (a *actor) further(ctx context.Context, j *journal.Journal) {
	w := a.w
	for _, op := range w.ops {
		if !op.submitted || !w.chance(0.7) {
			continue
		}
		s, err := j.Current(ctx, op.id)
		if err != nil {
			continue
		}
		e := events.Event{Source: "/ingest", Time: a.Now(), Actor: "alice"}
		jobs := projections.Cleanable(s)
		switch ok, _ := projections.TakesInput(s); {
		case ok:
			answer := fmt.Appendf(nil, `{"to":%q}`, s.Job.InputText)
			if _, err := j.PutPayload(ctx, answer); err != nil {
				continue
			}
			e.ID = fmt.Sprintf("input-%s-%d", op.id, s.Input.Number+1)
			e.Fact = &events.InputSubmitted{Who: "alice", Payload: events.Sum(answer), Question: s.Input.Question}
		case len(jobs) > 0 && s.Cleanup.Number < 3 && w.chance(w.cfg.Cleans):
			f := &events.CleanupRequested{Who: "alice", JobID: jobs[w.rng.IntN(len(jobs))]}
			if f.Claim, err = j.Claim(ctx, s.Intent.Provider, s.Intent.Account, f.JobID, op.id); err != nil || f.Claim != events.ClaimOwn {
				continue
			}
			e.ID = fmt.Sprintf("cleanup-%s-%d", op.id, s.Cleanup.Number+1)
			e.Fact = f
		default:
			continue
		}
		_, outcome, err := j.AppendAll(ctx, []projections.State{s}, []events.Event{e})
		w.logf("%s of %s: %s %v", e.Fact.Type(), op.id, outcome, err)
	}
}

// pauses lets some operations rest and others go on.
func (a *actor) pauses(ctx context.Context, j *journal.Journal) {
	w := a.w
	for _, op := range w.ops {
		if !op.submitted || !w.chance(w.cfg.Pauses) {
			continue
		}
		s, err := j.Current(ctx, op.id)
		if err != nil || s.Phase.Terminal() {
			continue
		}
		var fact events.Fact = &events.OperationPaused{Who: "alice"}
		if s.Paused {
			fact = &events.OperationResumed{Who: "alice"}
		}
		_, outcome, err := j.Append(ctx, s, events.Event{ID: a.newID(), Source: "/ingest", Time: a.Now(), Actor: "alice", Fact: fact})
		w.logf("%s of %s: %s %v", fact.Type(), op.id, outcome, err)
	}
}

// callbacks is the webhook role: it takes deliveries as they come and appends
// each as a fact with an id made from its key. One that was not acknowledged
// comes again.
func (w *world) callbacks(p *process) *actor {
	return w.actor(p, "hook", func(a *actor) {
		j := a.journal()
		ctx := context.Background()
		for {
			if len(w.provider.webhooks) == 0 || w.provider.webhooks[0].at.After(w.clock.Now()) {
				next := w.clock.Now().Add(10 * time.Minute)
				if len(w.provider.webhooks) > 0 {
					next = w.provider.webhooks[0].at
				}
				a.until = next
				a.point(false)
				a.until = time.Time{}
				continue
			}
			h := w.provider.webhooks[0]
			if !a.deliver(ctx, j, h) {
				_ = a.Sleep(ctx, 5*time.Second)
				continue
			}
			w.provider.webhooks = slices.DeleteFunc(w.provider.webhooks, func(x webhook) bool { return x == h })
		}
	})
}

func (a *actor) deliver(ctx context.Context, j *journal.Journal, h webhook) bool {
	s, err := j.Current(ctx, h.operation)
	if errors.Is(err, journal.ErrNoOperation) {
		return true
	}
	if err != nil {
		return false
	}
	exact := s.Intent.Promises.WebhookNamesJob
	if !exact {
		owner, owned, err := j.Owner(ctx, s.Intent.Provider, s.Intent.Account, h.job)
		if err != nil {
			return false
		}
		exact = owned && owner == h.operation
	}
	_, outcome, err := j.Append(ctx, s, events.Event{
		ID: "wh_" + h.key, Source: "/webhooks", Time: a.Now(),
		Fact: &events.WebhookReceived{EventID: h.key, Scheme: "test", Remote: h.state, JobID: h.job, Exact: exact},
	})
	a.w.logf("webhook %s for %s, %s is %s: %s %v", h.key, h.operation, h.job, h.state, outcome, err)
	return outcome == journal.Stored
}

// populate makes the processes.
func (w *world) populate(c *contract.Contract) {
	cfg := w.cfg
	skew := func() time.Duration {
		if !cfg.Cluster {
			return 0
		}
		half := cfg.Difference / 2
		return pick(w, -half, half, w.between(-half, half))
	}
	workers := func(p *process, n int) (actors []*actor) {
		for i := range n {
			actors = append(actors, w.poller(p, fmt.Sprintf("worker-%d", i), c))
		}
		return actors
	}
	projectors := func(p *process) (actors []*actor) {
		for _, n := range w.partitions() {
			actors = append(actors, w.projector(p, fmt.Sprintf("partition-%d", n), n))
		}
		return actors
	}
	var list []*process
	add := func(p *process) { list = append(list, p) }
	edges := true // callers and webhooks come to processes of their own
	switch {
	case cfg.Cluster && cfg.Local:
		for i := range max(cfg.Pollers, cfg.Projectors) {
			add(&process{name: fmt.Sprintf("node-%d", i), skew: skew(), local: i < cfg.Projectors, start: func(p *process) []*actor {
				actors := workers(p, 1)
				if p.local {
					actors = append(actors, projectors(p)...)
				}
				return actors
			}})
		}
	case cfg.Cluster:
		for i := range cfg.Pollers {
			add(&process{name: fmt.Sprintf("poller-%d", i), skew: skew(), start: func(p *process) []*actor {
				return []*actor{w.poller(p, "worker", c)}
			}})
		}
		for i := range cfg.Projectors {
			add(&process{name: fmt.Sprintf("projector-%d", i), skew: skew(), start: projectors})
		}
	case cfg.Local:
		edges = false
		add(&process{name: "counterfoil", local: true, start: func(p *process) []*actor {
			return append(append(workers(p, cfg.Pollers), projectors(p)...), w.caller(p), w.callbacks(p))
		}})
	default:
		add(&process{name: "counterfoil", start: func(p *process) []*actor {
			return append(workers(p, cfg.Pollers), projectors(p)...)
		}})
	}
	if edges {
		add(&process{name: "ingest", skew: skew(), start: func(p *process) []*actor { return []*actor{w.caller(p)} }})
		add(&process{name: "callbacks", skew: skew(), start: func(p *process) []*actor { return []*actor{w.callbacks(p)} }})
	}
	w.processes = list
	for _, p := range list {
		w.boot(p)
	}
}

package index_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/signature"
	"github.com/counterfoil/counterfoil/internal/webhook"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/projections"
)

const hookSecret = "race-hook-secret"

type directory struct{ c *contract.Contract }

func (d directory) Current(string) (*contract.Contract, bool) { return d.c, true }
func (d directory) WebhookSecrets(string) []webhook.Secret {
	return []webhook.Secret{{Account: "default", Reference: "env:HOOK"}}
}

// what happens to one side at one of its calls to the store.
type what string

const (
	waits      what = "waits"       // until the other side is through
	diesBefore what = "dies before" // the call is not made, nor any later one
	diesAfter  what = "dies after"  // the call is made and not answered
)

var errDead = errors.New("this process is dead")

// side is one process's view of the store.
type side struct {
	journal.Store

	mu      sync.Mutex
	counts  bool // from now on
	n, at   int
	what    what
	dead    bool
	reached chan struct{} // closed at the call, if it waits there
	resume  chan struct{}
	acked   chan struct{} // closed when a webhook was acknowledged
	once    sync.Once
}

func newSide(s journal.Store, at int, w what) *side {
	return &side{Store: s, at: at, what: w, reached: make(chan struct{}), resume: make(chan struct{}), acked: make(chan struct{})}
}

func (s *side) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts = true
}

// came says whether the side ever came to its call.
func (s *side) came() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n >= s.at
}

// call makes one call to the store, or does to it what is to be done.
func (s *side) call(do func() error) error {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return errDead
	}
	here := false
	if s.counts {
		s.n++
		here = s.n == s.at
	}
	if here && s.what != waits {
		s.dead = true
	}
	s.mu.Unlock()
	switch {
	case here && s.what == waits:
		close(s.reached)
		<-s.resume
	case here && s.what == diesBefore:
		close(s.reached)
		return errDead
	case here && s.what == diesAfter:
		_ = do() // nobody hears the answer
		close(s.reached)
		return errDead
	}
	return do()
}

func (s *side) Publish(ctx context.Context, name journal.Stream, m journal.Outgoing) (n uint64, err error) {
	err = s.call(func() (err error) { n, err = s.Store.Publish(ctx, name, m); return err })
	return n, err
}

func (s *side) PublishBatch(ctx context.Context, name journal.Stream, list []journal.Outgoing) (n []uint64, err error) {
	err = s.call(func() (err error) { n, err = s.Store.PublishBatch(ctx, name, list); return err })
	return n, err
}

func (s *side) PublishRun(ctx context.Context, name journal.Stream, guard journal.Guard, list []journal.Outgoing) (n uint64, err error) {
	for _, m := range list { // each is a call of its own, so that a run is left at each of its messages
		m.Guard = &guard
		if n, err = s.Publish(ctx, name, m); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (s *side) Last(ctx context.Context, name journal.Stream, subject string) (m journal.Message, err error) {
	err = s.call(func() (err error) { m, err = s.Store.Last(ctx, name, subject); return err })
	return m, err
}

func (s *side) Next(ctx context.Context, name journal.Stream, subject string, from uint64) (m journal.Message, err error) {
	err = s.call(func() (err error) { m, err = s.Store.Next(ctx, name, subject, from); return err })
	return m, err
}

func (s *side) Newest(ctx context.Context, name journal.Stream, subject string, do func(journal.Message) error) error {
	var list []journal.Message
	err := s.call(func() error {
		return s.Store.Newest(ctx, name, subject, func(m journal.Message) error { list = append(list, m); return nil })
	})
	for _, m := range list {
		if err := do(m); err != nil {
			return err
		}
	}
	return err
}

func (s *side) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	q, err := s.Store.Queue(ctx, c)
	return queue{q, s}, err
}

type queue struct {
	journal.Queue
	s *side
}

func (q queue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	q.s.mu.Lock()
	dead := q.s.dead
	q.s.mu.Unlock()
	if dead {
		<-ctx.Done() // a dead process fetches nothing
		return nil, errDead
	}
	list, err := q.Queue.Fetch(ctx, limit, wait)
	for i, d := range list {
		list[i] = delivery{d, q.s}
	}
	return list, err
}

type delivery struct {
	journal.Delivery
	s *side
}

func (d delivery) Ack(ctx context.Context) error {
	err := d.s.call(func() error { return d.Delivery.Ack(ctx) })
	if err == nil {
		d.s.once.Do(func() { close(d.s.acked) })
	}
	return err
}

// place is one store and what happened in it so far.
type place struct {
	t     *testing.T
	store journal.Store
	j     *journal.Journal // past all that goes wrong
	n     int              // operations made
}

func (p *place) journalOver(s journal.Store) *journal.Journal {
	clock := wire.NewSystemClock()
	return journal.New(journal.Options{Store: s, Now: time.Now, Sleep: func(ctx context.Context, d time.Duration) error {
		if s, ok := s.(*side); ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.dead {
				return errDead // it waits for nothing any more
			}
		}
		return clock.Sleep(ctx, d)
	}, NewID: wire.NewID})
}

func inMemory(t *testing.T) *place {
	p := &place{t: t, store: memory.New(memory.Config{Now: time.Now})}
	p.j = p.journalOver(p.store)
	return p
}

func embedded(t *testing.T) *place {
	b, err := broker.Start(broker.Config{Dir: t.TempDir(), Run: wire.NewID(), Now: time.Now, Sync: broker.SyncInterval, SyncEvery: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	n, err := journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Name: "race", Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Close()
		brokertest.End(t, b)
	})
	p := &place{t: t, store: n}
	p.j = p.journalOver(n)
	return p
}

// race is one operation whose create is being answered, and the event about its
// job.
type race struct {
	*place
	op, job, body string
}

func (p *place) race(byReference bool) race {
	p.n++
	r := race{place: p, op: fmt.Sprintf("op_%d", p.n), job: fmt.Sprintf("job-%d", p.n)}
	r.body = fmt.Sprintf(`{"event_id":"e-%d","job_id":%q,"state":"running"}`, p.n, r.job)
	if byReference {
		r.body = fmt.Sprintf(`{"event_id":"e-%d","job_id":%q,"state":"running","client_reference":"cf%s"}`, p.n, r.job, r.op)
	}
	return r
}

func (r race) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r race) intent() {
	_, _, err := r.j.Create(r.t.Context(), events.Event{Source: "/ingest/1", Operation: r.op, Fact: &events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: "default", Rules: projections.Rules, ClientReference: "cf" + r.op,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Collect: time.Hour},
		Policy:    events.Policy{PollInterval: time.Hour, PollMax: time.Hour, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: time.Hour, MaxAttempts: 3},
		Promises:  events.Promises{Guarantee: events.AskAfterLoss, HasResult: true, Cancels: true, WebhookNamesJob: true},
	}})
	r.must(err)
}

func (r race) permit() {
	s, err := r.j.Current(r.t.Context(), r.op)
	r.must(err)
	_, _, err = r.j.Append(r.t.Context(), s, events.Event{Source: "/poller/1", Fact: &events.CreateAttempted{
		Attempt: events.Attempt{Number: 1, NotAfter: time.Now().Add(time.Hour), Timeout: time.Hour},
	}})
	r.must(err)
}

// answer is the side of the engine: the worker that has the answer claims the
// job and says so, and the projector projects it. It goes on where an earlier one
// died.
func (r race) answer(store journal.Store) error {
	ctx := r.t.Context()
	j := r.journalOver(store)
	s, err := j.Current(ctx, r.op)
	if err != nil {
		return err
	}
	if s.Job.ID == "" {
		fact := &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: r.job, Call: events.Call{AsOf: s.Sequence, LeftAt: time.Now()}}
		if fact.Claim, err = j.Claim(ctx, "example", "default", r.job, r.op); err != nil {
			return err
		}
		if _, _, err := j.Append(ctx, s, events.Event{ID: "answer-" + r.op, Source: "/poller/1", Fact: fact}); err != nil {
			return err
		}
	}
	return r.project(store)
}

func (r race) project(store journal.Store) error {
	ctx := r.t.Context()
	j := r.journalOver(store)
	p := projector.New(projector.Config{
		Journal: j, Clock: wire.NewSystemClock(), NewID: wire.NewID, Log: slog.New(slog.DiscardHandler), Source: "/projector/1", Build: "test",
	})
	tenure, err := j.TakeOver(ctx, journal.Partition(r.op))
	if err != nil {
		return err
	}
	w, err := p.Open(ctx, tenure)
	if err != nil {
		return err
	}
	defer w.Close()
	// Swept first, as if the facts came afterwards: then their names are written as
	// they are projected.
	if err := w.Sweep(ctx, false); err != nil {
		return err
	}
	for {
		more, err := w.Step(ctx, 0)
		if err != nil || !more {
			return err
		}
	}
}

// hook is the side of the provider's event: it is posted, and the role makes a
// fact of it or parks it. What was not taken is sent again.
func (r race) hook(s *side) error {
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	source, err := contracts.FS.ReadFile("example.yaml")
	r.must(err)
	c, err := contract.Parse("example.yaml", source)
	r.must(err)
	receiver := webhook.New(webhook.Config{
		Journal: r.journalOver(s), Directory: directory{c}, Clock: wire.NewSystemClock(), Log: slog.New(slog.DiscardHandler), Source: "/webhooks/1",
		Secrets: outbound.References{LookupEnv: func(string) (string, bool) { return hookSecret, true }},
	})
	done := make(chan error, 1)
	go func() { done <- receiver.Run(ctx) }()
	synctest.Wait() // it has looked at what was stored before, and waits
	s.arm()
	signed, err := signature.Sign(signature.Scheme{Name: signature.HMACSHA256Hex, Header: "X-Signature", Prefix: "sha256="}, hookSecret, []byte(r.body), "", time.Now())
	r.must(err)
	header := map[string][]string{}
	for name, value := range signed {
		header[name] = []string{value}
	}
	fresh, err := receiver.Receive(ctx, "example", webhook.Address{}, signature.Delivery{Header: header, Body: []byte(r.body)})
	if err == nil && fresh {
		select {
		case <-s.acked:
		case <-s.reached:
			if s.what == waits {
				<-s.acked
			}
		}
	} else if err == nil {
		// It was stored before, by a process that died: it comes when its lease
		// ends, if it was not acknowledged.
		time.Sleep(time.Minute)
	}
	stop()
	if s := <-done; s != nil {
		return s
	}
	return err
}

// check holds what stands at the end against what must: the event is noted once,
// the job is the operation's, nothing waits, and a read is due at once.
func (r race) check(name string) {
	r.t.Helper()
	ctx := r.t.Context()
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	lines, err := r.j.Timeline(ctx, r.op)
	r.must(err)
	noted, applied := 0, 0
	for _, l := range lines {
		if l.Entry.Event.Fact.Type() == events.TypeWebhookReceived {
			noted++
			if l.Record == nil {
				problem("a webhook is not projected")
			} else if l.Record.Verdict == projections.Applied {
				applied++
			}
		}
	}
	// Two holders of a lease may both append; the fold notes the second.
	if applied != 1 || noted > 2 {
		problem("noted %d times, %d of them applied", noted, applied)
	}
	s, err := r.j.Current(ctx, r.op)
	r.must(err)
	if s.Phase != projections.PhaseAccepted || s.Job.ID != r.job {
		problem("%s %s with job %q", s.Phase, s.Quarantine, s.Job.ID)
	}
	if next, some := projections.Next(s); !some || next.After(time.Now()) || s.Prompt.Why != "webhook" {
		problem("no read is due: %s, asked by %q", next, s.Prompt.Why)
	}
	if wake, some, err := r.j.PendingWake(ctx, r.op); err != nil || !some || wake.At.After(time.Now()) {
		problem("no wake-up: %+v %v %v", wake, some, err)
	}
	if owner, _, err := r.j.Owner(ctx, "example", "default", r.job); owner != r.op || err != nil {
		problem("the job belongs to %q, %v", owner, err)
	}
	parked, err := r.j.Parked(ctx, "example", journal.JobName(r.job))
	r.must(err)
	if len(parked) != 0 {
		problem("%d are still parked", len(parked))
	}
	if problems != nil {
		for _, l := range lines {
			problems = append(problems, fmt.Sprintf("%T %+v", l.Entry.Event.Fact, l.Entry.Event.Fact))
		}
		r.t.Errorf("%s:\n%s", name, strings.Join(problems, "\n"))
	}
}

// settle lets the projector and the sweep do what is theirs after a crash.
func (r race) settle() {
	r.must(r.project(r.store))
}

// TestRace lets an event that names a job alone meet the answer that makes the
// job known. One side stops, or dies, at each of its calls to the store; the
// other goes through meanwhile; then the first goes on, or is started again.
// Whichever comes second sees the first, and a read is due at once.
func TestRace(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *place{"memory": inMemory, "embedded server": embedded} {
		for _, byReference := range []bool{false, true} {
			for _, w := range []what{waits, diesBefore, diesAfter} {
				kind := "by job"
				if byReference {
					kind = "by reference"
				}
				t.Run(fmt.Sprintf("%s/%s/the event's side %s", name, kind, w), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { eventStops(t, open(t), byReference, w) })
				})
				t.Run(fmt.Sprintf("%s/%s/the answer's side %s", name, kind, w), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { answerStops(t, open(t), byReference, w) })
				})
			}
		}
	}
}

// mostCalls is more than either side makes.
const mostCalls = 200

func eventStops(t *testing.T, p *place, byReference bool, w what) {
	for at := 1; ; at++ {
		r := p.race(byReference)
		r.intent()
		r.must(r.project(p.store))
		r.permit()
		s := newSide(p.store, at, w)
		done := make(chan error, 1)
		go func() { done <- r.hook(s) }()
		select {
		case <-s.reached:
		case <-s.acked:
		}
		r.must(r.answer(p.store))
		came := s.came()
		close(s.resume)
		err := <-done
		if came && w != waits {
			// It is started again, and the provider sends again what was not taken.
			err = r.hook(newSide(p.store, 0, waits))
		}
		r.must(err)
		r.settle()
		r.check(fmt.Sprintf("call %d", at))
		if !came {
			if at-1 < 6 { // stored, its body, looked for, parked, looked for again, acknowledged
				t.Errorf("the event's side makes %d calls: not every step was tried", at-1)
			}
			return
		}
		if at > mostCalls {
			t.Fatal("the event's side does not end")
		}
	}
}

func answerStops(t *testing.T, p *place, byReference bool, w what) {
	for at := 1; ; at++ {
		r := p.race(byReference)
		r.intent()
		r.permit() // the intent is projected by this side too
		s := newSide(p.store, at, w)
		s.arm()
		done := make(chan error, 1)
		go func() { done <- r.answer(s) }()
		var err error
		finished := false
		select {
		case <-s.reached:
		case err = <-done:
			finished = true
		}
		r.must(r.hook(newSide(p.store, 0, waits)))
		came := s.came()
		close(s.resume)
		if !finished {
			err = <-done
		}
		if came && w != waits {
			err = r.answer(p.store)
		}
		r.must(err)
		r.settle()
		r.check(fmt.Sprintf("call %d", at))
		if !came {
			if at < 15 {
				t.Errorf("the answer's side makes %d calls: not every step was tried", at-1)
			}
			return
		}
		if at > mostCalls {
			t.Fatal("the answer's side does not end")
		}
	}
}

package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
)

// errKilled is what a killed worker's every touch of the world gives.
var errKilled = errors.New("this worker was killed")

// mortal stands between one worker and the world and can cut all of it at
// once, as kill -9 does: nothing more is stored, acknowledged or sent, and a
// call under way loses its connection. What the worker had stored stays.
type mortal struct {
	// dieAfter, if set, is asked after each stored fact, by its CloudEvents
	// type; true kills the worker before it learns that the fact was stored.
	dieAfter func(factType string) bool

	// single lets the worker have one lease in its life, so that it takes no
	// other operation's with it.
	single  bool
	fetched atomic.Bool

	// onDeath cuts the worker's connection; set before the worker runs.
	onDeath func()

	once sync.Once
	dead chan struct{}
}

func newMortal() *mortal { return &mortal{dead: make(chan struct{})} }

func (m *mortal) kill() {
	m.once.Do(func() {
		close(m.dead)
		if m.onDeath != nil {
			m.onDeath()
		}
	})
}

func (m *mortal) killed() bool {
	select {
	case <-m.dead:
		return true
	default:
		return false
	}
}

// wrap gives the worker's view of store and providers.
func (m *mortal) wrap(store journal.Store, call poller.Caller) (journal.Store, poller.Caller) {
	return mortalStore{m, store}, mortalCaller{m, call}
}

// live runs do with a context that ends with the worker.
func live[T any](ctx context.Context, m *mortal, do func(context.Context) (T, error)) (T, error) {
	var none T
	if m.killed() {
		return none, errKilled
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-m.dead:
			stop()
		case <-ended:
		}
	}()
	v, err := do(ctx)
	if m.killed() {
		return none, errKilled
	}
	return v, err
}

type mortalStore struct {
	m     *mortal
	inner journal.Store
}

func (s mortalStore) Publish(ctx context.Context, stream journal.Stream, out journal.Outgoing) (uint64, error) {
	return live(ctx, s.m, func(ctx context.Context) (uint64, error) {
		n, err := s.inner.Publish(ctx, stream, out)
		if err == nil && stream == journal.Ledger && s.m.dieAfter != nil {
			if kind := out.Header["ce-type"]; len(kind) == 1 && s.m.dieAfter(kind[0]) {
				s.m.kill()
			}
		}
		return n, err
	})
}

func (s mortalStore) PublishRun(ctx context.Context, stream journal.Stream, guard journal.Guard, list []journal.Outgoing) (uint64, error) {
	return live(ctx, s.m, func(ctx context.Context) (uint64, error) { return s.inner.PublishRun(ctx, stream, guard, list) })
}

func (s mortalStore) PublishBatch(ctx context.Context, stream journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	return live(ctx, s.m, func(ctx context.Context) ([]uint64, error) { return s.inner.PublishBatch(ctx, stream, list) })
}

func (s mortalStore) Last(ctx context.Context, stream journal.Stream, subject string) (journal.Message, error) {
	return live(ctx, s.m, func(ctx context.Context) (journal.Message, error) { return s.inner.Last(ctx, stream, subject) })
}

func (s mortalStore) Next(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Message, error) {
	return live(ctx, s.m, func(ctx context.Context) (journal.Message, error) { return s.inner.Next(ctx, stream, subject, from) })
}

func (s mortalStore) Newest(ctx context.Context, stream journal.Stream, subject string, do func(journal.Message) error) error {
	_, err := live(ctx, s.m, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.inner.Newest(ctx, stream, subject, do)
	})
	return err
}

func (s mortalStore) Read(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	return live(ctx, s.m, func(ctx context.Context) (journal.Cursor, error) { return s.inner.Read(ctx, stream, subject, from) })
}

func (s mortalStore) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	return live(ctx, s.m, func(ctx context.Context) (journal.Queue, error) {
		q, err := s.inner.Queue(ctx, c)
		return mortalQueue{s.m, q}, err
	})
}

type mortalQueue struct {
	m     *mortal
	inner journal.Queue
}

func (q mortalQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	return live(ctx, q.m, func(ctx context.Context) ([]journal.Delivery, error) {
		if q.m.single && q.m.fetched.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		list, err := q.inner.Fetch(ctx, limit, wait)
		if len(list) > 0 {
			q.m.fetched.Store(true)
		}
		for i := range list {
			list[i] = mortalDelivery{q.m, list[i]}
		}
		return list, err
	})
}

type mortalDelivery struct {
	m     *mortal
	inner journal.Delivery
}

func (d mortalDelivery) Message() journal.Message { return d.inner.Message() }
func (d mortalDelivery) Delivered() uint64        { return d.inner.Delivered() }

func (d mortalDelivery) Extend(ctx context.Context) error { return d.touch(ctx, d.inner.Extend) }
func (d mortalDelivery) Ack(ctx context.Context) error    { return d.touch(ctx, d.inner.Ack) }
func (d mortalDelivery) Release(ctx context.Context) error {
	return d.touch(ctx, d.inner.Release)
}

func (d mortalDelivery) touch(ctx context.Context, do func(context.Context) error) error {
	_, err := live(ctx, d.m, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

type mortalCaller struct {
	m     *mortal
	inner poller.Caller
}

func (c mortalCaller) Do(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
	answer, err := live(ctx, c.m, func(ctx context.Context) (outbound.Answer, error) { return c.inner.Do(ctx, r) })
	if errors.Is(err, errKilled) {
		err = &outbound.Failure{Class: outbound.Canceled, Err: err}
	}
	return answer, err
}

func (c mortalCaller) CredentialIdentity(ctx context.Context, cr outbound.Credential) (string, error) {
	return live(ctx, c.m, func(ctx context.Context) (string, error) { return c.inner.CredentialIdentity(ctx, cr) })
}

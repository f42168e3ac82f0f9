package harness

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// errKilled is what a killed service's every touch of the store gives.
var errKilled = errors.New("the service was killed")

// life is one run of the service.
type life struct{ over atomic.Bool }

func (l *life) end() { l.over.Store(true) }

// live runs do unless the run is over, and hides its outcome if it ended
// meanwhile: what was stored stays, but nobody learns of it.
func live[T any](l *life, do func() (T, error)) (T, error) {
	var none T
	if l.over.Load() {
		return none, errKilled
	}
	v, err := do()
	if l.over.Load() {
		return none, errKilled
	}
	return v, err
}

// mortal is the store as one run of the service sees it.
type mortal struct {
	life  *life
	inner journal.Store
}

func (m mortal) Publish(ctx context.Context, s journal.Stream, out journal.Outgoing) (uint64, error) {
	return live(m.life, func() (uint64, error) { return m.inner.Publish(ctx, s, out) })
}

func (m mortal) PublishRun(ctx context.Context, s journal.Stream, guard journal.Guard, list []journal.Outgoing) (uint64, error) {
	return live(m.life, func() (uint64, error) { return m.inner.PublishRun(ctx, s, guard, list) })
}

func (m mortal) PublishBatch(ctx context.Context, s journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	return live(m.life, func() ([]uint64, error) { return m.inner.PublishBatch(ctx, s, list) })
}

func (m mortal) Last(ctx context.Context, s journal.Stream, subject string) (journal.Message, error) {
	return live(m.life, func() (journal.Message, error) { return m.inner.Last(ctx, s, subject) })
}

func (m mortal) Next(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Message, error) {
	return live(m.life, func() (journal.Message, error) { return m.inner.Next(ctx, s, subject, from) })
}

func (m mortal) Newest(ctx context.Context, s journal.Stream, subject string, do func(journal.Message) error) error {
	_, err := live(m.life, func() (struct{}, error) { return struct{}{}, m.inner.Newest(ctx, s, subject, do) })
	return err
}

func (m mortal) Read(ctx context.Context, s journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	return live(m.life, func() (journal.Cursor, error) { return m.inner.Read(ctx, s, subject, from) })
}

func (m mortal) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	return live(m.life, func() (journal.Queue, error) {
		q, err := m.inner.Queue(ctx, c)
		return mortalQueue{m.life, q}, err
	})
}

type mortalQueue struct {
	life  *life
	inner journal.Queue
}

func (q mortalQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	return live(q.life, func() ([]journal.Delivery, error) {
		list, err := q.inner.Fetch(ctx, limit, wait)
		for i := range list {
			list[i] = mortalDelivery{q.life, list[i]}
		}
		return list, err
	})
}

type mortalDelivery struct {
	life *life
	journal.Delivery
}

func (d mortalDelivery) Extend(ctx context.Context) error { return d.touch(ctx, d.Delivery.Extend) }
func (d mortalDelivery) Ack(ctx context.Context) error    { return d.touch(ctx, d.Delivery.Ack) }
func (d mortalDelivery) Release(ctx context.Context) error {
	return d.touch(ctx, d.Delivery.Release)
}

func (d mortalDelivery) touch(ctx context.Context, do func(context.Context) error) error {
	_, err := live(d.life, func() (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	readBatch = 512              // messages asked for at once
	readPull  = 30 * time.Second // one request for them
	readIdle  = time.Minute      // after which the server forgets an unused cursor
	// readBeat is how often a server elsewhere says that it still has the request;
	// one that was stopped is noticed after two.
	readBeat = 2 * time.Second
	// Where no consumer can be had the leader is asked so often, and for a consumer
	// again after so long.
	readAsk     = 250 * time.Millisecond
	readWithout = 5 * time.Second
	readCome    = time.Second // in which a message comes that the server has for us
	// readSure is how long a wait must be for the leader to be asked at its end.
	readSure = time.Second
)

const everything = ">" // as a filter

// natsCursor reads through a consumer without acknowledgements. Such a
// consumer does not say when a message was lost on the way, so its own count
// is checked on every message, and an idle cursor asks the leader.
type natsCursor struct {
	store  *NATS
	stream Stream
	filter string
	next   uint64 // stream sequence of the next message at the earliest

	consumer jetstream.Consumer // nil: to be made
	count    uint64             // consumer sequence of its last message
	pending  uint64             // how many it had behind that
	batch    <-chan jetstream.Msg
	result   jetstream.MessageBatch
	cancel   context.CancelFunc // ends the batch
	without  time.Time          // until when it goes on without a consumer
}

// Read implements [Store].
func (n *NATS) Read(_ context.Context, s Stream, subject string, from uint64) (Cursor, error) {
	return &natsCursor{store: n, stream: s, filter: subject, next: max(from, 1)}, nil
}

func (c *natsCursor) Next(ctx context.Context, wait time.Duration) (Message, error) {
	if m, ok := c.buffered(); ok {
		return m, nil
	}
	switch {
	case wait < 0:
		return Message{}, ErrNoMessage
	case wait == 0:
		return c.now(ctx)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if c.batch == nil && time.Until(c.without) <= 0 {
			if err := c.pull(ctx); err != nil {
				if ctx.Err() != nil {
					return Message{}, fmt.Errorf("read %s: %w", c.filter, err)
				}
				// While servers choose who makes consumers there is none; the stream's
				// own leader may well be there.
				c.without = time.Now().Add(readWithout)
			}
		}
		var again <-chan time.Time
		if c.batch == nil {
			if m, err := c.ask(ctx); !errors.Is(err, ErrNoMessage) && !errors.Is(err, ErrUnread) {
				return m, err
			}
			again = time.After(readAsk)
		}
		select {
		case <-again:
		case m, open := <-c.batch:
			if !open {
				c.endBatch()
				continue
			}
			if out, ok := c.take(m); ok {
				return out, nil
			}
		case <-timer.C:
			if wait < readSure {
				return Message{}, ErrNoMessage
			}
			// What the consumer lost at its end no later message reveals.
			return c.ask(ctx)
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// now gives what is there now: what the consumer has for us, or else what the
// leader says comes next.
func (c *natsCursor) now(ctx context.Context) (Message, error) {
	var timer *time.Timer
	for c.pending > 0 {
		if c.batch == nil {
			if err := c.pull(ctx); err != nil {
				c.pending = 0 // the leader is asked
				break
			}
		}
		if timer == nil {
			timer = time.NewTimer(readCome)
			defer timer.Stop()
		}
		select {
		case m, open := <-c.batch:
			if !open {
				c.endBatch()
				continue
			}
			if out, ok := c.take(m); ok {
				return out, nil
			}
		case <-timer.C:
			c.pending = 0
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
	m, err := c.ask(ctx)
	if err == nil && c.batch == nil {
		// Where there is one there are more: they come by themselves.
		if err := c.pull(ctx); err != nil {
			c.forget() // the leader is asked again
		}
	}
	return m, err
}

// ask reads the next message without the consumer, whose copy is skipped if it
// comes after all.
func (c *natsCursor) ask(ctx context.Context) (Message, error) {
	m, err := c.store.Next(ctx, c.stream, c.filter, c.next)
	if err == nil {
		c.next = m.Sequence + 1
	}
	return m, err
}

func (c *natsCursor) buffered() (Message, bool) {
	for c.batch != nil {
		select {
		case m, open := <-c.batch:
			if !open {
				c.endBatch()
				return Message{}, false
			}
			if out, ok := c.take(m); ok {
				return out, true
			}
		default:
			return Message{}, false
		}
	}
	return Message{}, false
}

// take accepts a message that is the consumer's next and not seen yet. After a
// gap the consumer is made anew from where we stand.
func (c *natsCursor) take(m jetstream.Msg) (Message, bool) {
	meta, err := m.Metadata()
	if err != nil || meta.Sequence.Consumer != c.count+1 {
		c.forget()
		return Message{}, false
	}
	c.count++
	c.pending = meta.NumPending
	if meta.Sequence.Stream < c.next {
		return Message{}, false
	}
	c.next = meta.Sequence.Stream + 1
	return message(m, meta), true
}

func message(m jetstream.Msg, meta *jetstream.MsgMetadata) Message {
	return Message{
		Subject: m.Subject(), Sequence: meta.Sequence.Stream, Time: meta.Timestamp.UTC(),
		Header: m.Headers(), Data: m.Data(),
	}
}

func (c *natsCursor) pull(ctx context.Context) error {
	if c.consumer == nil {
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		filter := c.filter
		if filter == everything { // the server then compares none
			filter = ""
		}
		consumer, err := c.store.js.CreateConsumer(ctx, string(c.stream), jetstream.ConsumerConfig{
			FilterSubject:     filter,
			DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
			OptStartSeq:       c.next,
			AckPolicy:         jetstream.AckNonePolicy,
			MemoryStorage:     true,
			Replicas:          1,
			InactiveThreshold: readIdle,
		})
		if err != nil {
			return err
		}
		c.consumer, c.count, c.pending = consumer, 0, consumer.CachedInfo().NumPending
	}
	// The batch outlives this call: what it brings later is for the next one.
	// Close ends it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readPull)
	options := []jetstream.FetchOpt{jetstream.FetchContext(ctx)}
	if c.store.elsewhere {
		options = append(options, jetstream.FetchHeartbeat(readBeat))
	}
	result, err := c.consumer.Fetch(readBatch, options...)
	if err != nil {
		cancel()
		c.forget()
		return err
	}
	c.result, c.batch, c.cancel = result, result.Messages(), cancel
	return nil
}

// endBatch is called when a batch has brought all it will. One that ended by
// its time is the rule; any other error may mean that the consumer is gone.
func (c *natsCursor) endBatch() {
	err := c.result.Error()
	c.cancel()
	c.batch, c.result, c.cancel = nil, nil, nil
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		c.consumer, c.pending = nil, 0
	}
}

// forget leaves the consumer to the server, which removes it when idle.
func (c *natsCursor) forget() {
	if c.cancel != nil {
		c.cancel()
	}
	c.batch, c.result, c.cancel, c.consumer, c.pending = nil, nil, nil, nil, 0
}

// Close implements [Cursor].
func (c *natsCursor) Close() error {
	consumer := c.consumer
	c.forget()
	if consumer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	err := c.store.js.DeleteConsumer(ctx, string(c.stream), consumer.CachedInfo().Name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("close reading of %s: %w", c.filter, err)
	}
	return nil
}

// natsQueue is a durable pull consumer.
type natsQueue struct {
	store  *NATS
	config QueueConfig

	mu       sync.Mutex
	consumer jetstream.Consumer // guarded by mu; nil: to be joined again
	silent   time.Time          // since when it has no leader, zero: it has one; guarded by mu
}

const (
	// A consumer without a leader is asked again so often. One that has none for
	// longer than an election takes may be gone, and is made again.
	leaderAgain = 200 * time.Millisecond
	leaderless  = 12 * time.Second
)

// noLeader says that a consumer has no leader at the moment, or another from now
// on. Who makes consumers may have none either, so it is kept.
func noLeader(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrConsumerLeadershipChanged) || errors.Is(err, jetstream.ErrServerShutdown)
}

// Queue implements [Store].
func (n *NATS) Queue(ctx context.Context, c QueueConfig) (Queue, error) {
	q := &natsQueue{store: n, config: c}
	if _, err := q.join(ctx); err != nil {
		return nil, err
	}
	return q, nil
}

func (q *natsQueue) join(ctx context.Context) (jetstream.Consumer, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.consumer != nil {
		return q.consumer, nil
	}
	config := jetstream.ConsumerConfig{
		Durable:       q.config.Durable,
		FilterSubject: q.config.Filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       q.config.AckWait,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		MaxDeliver:    -1,
		MaxAckPending: -1, // counts no concurrency: a replaced message frees its slot while its holder works
	}
	if q.config.From > 1 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, q.config.From
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	consumer, err := q.store.js.CreateOrUpdateConsumer(ctx, string(q.config.Stream), config)
	if err != nil {
		return nil, fmt.Errorf("join queue %s of stream %s: %w", q.config.Durable, q.config.Stream, err)
	}
	q.consumer = consumer
	return consumer, nil
}

// failed has the consumer joined again, unless it only has no leader.
func (q *natsQueue) failed(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if noLeader(err) {
		if q.silent.IsZero() {
			q.silent = time.Now()
		}
		if time.Since(q.silent) < leaderless {
			return
		}
	}
	q.consumer, q.silent = nil, time.Time{}
}

func (q *natsQueue) answered() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.silent = time.Time{}
}

// Fetch implements [Queue].
func (q *natsQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]Delivery, error) {
	for end := time.Now().Add(wait); ; {
		list, err := q.fetchWaiting(ctx, limit, time.Until(end))
		if !noLeader(err) || time.Until(end) < leaderAgain || !pause(ctx, leaderAgain) {
			return list, err
		}
	}
}

func (q *natsQueue) fetchWaiting(ctx context.Context, limit int, wait time.Duration) ([]Delivery, error) {
	list, err := q.fetch(ctx, limit, 0)
	if err != nil || len(list) > 0 || wait <= 0 {
		return list, err
	}
	// A waiting request is for one: the server would go on leasing messages to
	// a larger one after we returned with the first.
	list, err = q.fetch(ctx, 1, wait)
	if err != nil || len(list) == 0 || limit == 1 {
		return list, err
	}
	more, err := q.fetch(ctx, limit-1, 0)
	if err != nil {
		return list, nil // what is leased must reach the caller; the next call meets the error again
	}
	return append(list, more...), nil
}

func (q *natsQueue) fetch(ctx context.Context, limit int, wait time.Duration) ([]Delivery, error) {
	consumer, err := q.join(ctx)
	if err != nil {
		return nil, err
	}
	var batch jetstream.MessageBatch
	if wait > 0 {
		pull, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		batch, err = consumer.Fetch(limit, jetstream.FetchContext(pull))
	} else {
		batch, err = consumer.FetchNoWait(limit)
	}
	if err != nil {
		q.failed(err)
		return nil, fmt.Errorf("fetch from queue %s: %w", q.config.Durable, err)
	}
	var list []Delivery
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("fetch from queue %s: %w", q.config.Durable, err)
		}
		list = append(list, &natsDelivery{msg: m, message: message(m, meta), delivered: meta.NumDelivered})
	}
	err = batch.Error()
	switch {
	case len(list) > 0, err == nil:
		q.answered()
		return list, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return nil, nil
	}
	q.failed(err)
	return nil, fmt.Errorf("fetch from queue %s: %w", q.config.Durable, err)
}

type natsDelivery struct {
	msg       jetstream.Msg
	message   Message
	delivered uint64
}

func (d *natsDelivery) Message() Message  { return d.message }
func (d *natsDelivery) Delivered() uint64 { return d.delivered }

func (d *natsDelivery) Extend(context.Context) error {
	return d.answer("extend lease of", d.msg.InProgress())
}

func (d *natsDelivery) Ack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return d.answer("acknowledge", d.msg.DoubleAck(ctx))
}

func (d *natsDelivery) Release(context.Context) error {
	return d.answer("release", d.msg.Nak())
}

// answer takes it for done when this handle gave its final answer before: the
// library says so only of one that succeeded.
func (d *natsDelivery) answer(what string, err error) error {
	if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, d.message.Subject, err)
}

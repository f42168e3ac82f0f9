package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	newestBatch  = 1000    // messages of one request to a consumer
	directBatch  = 1000    // of one to the stream, which the server answers before anything else of the connection
	directBytes  = 1 << 20 // likewise
	statusNone   = "404"
	statusEnd    = "204"
	statusHeader = "Status"
)

// Newest implements [Store].
func (n *NATS) Newest(ctx context.Context, s Stream, subject string, do func(Message) error) error {
	c, err := n.info(ctx, s)
	if err == nil {
		switch {
		case c.Replicas != 1 || !c.AllowDirect:
			// A consumer may be at a replica that lags, and so may a direct read.
			err = ErrPiecemeal
		case c.Retention == jetstream.WorkQueuePolicy:
			// It lets nobody read but its queues. It has one message for each subject.
			err = n.newestDirect(ctx, s, subject, do)
		default:
			err = n.newestConsumer(ctx, s, subject, c.MaxMsgsPerSubject == 1, do)
		}
	}
	if err != nil {
		return fmt.Errorf("read the newest of %s: %w", subject, err)
	}
	return nil
}

// newestConsumer has the stream's one server send them.
func (n *NATS) newestConsumer(ctx context.Context, s Stream, subject string, replaced bool, do func(Message) error) (err error) {
	ask, cancel := context.WithTimeout(ctx, answerLimit)
	consumer, err := n.js.CreateConsumer(ask, string(s), jetstream.ConsumerConfig{
		FilterSubject:     subject,
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: readIdle,
	})
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
		defer cancel()
		if e := n.js.DeleteConsumer(gone, string(s), consumer.CachedInfo().Name); e != nil && err == nil && !errors.Is(e, jetstream.ErrConsumerNotFound) {
			err = e
		}
	}()
	// Those that were the newest when the consumer was made come first. What is written
	// meanwhile would follow, for as long as anybody writes. Where a message replaces
	// the one before it, that is gone, and what replaced it is to be waited for.
	for count, left := uint64(0), consumer.CachedInfo().NumPending; left > 0; {
		pull, cancel := context.WithTimeout(ctx, answerLimit)
		batch, err := consumer.Fetch(int(min(left, newestBatch)), jetstream.FetchContext(pull))
		if err != nil {
			cancel()
			return err
		}
		came := false
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err == nil && meta.Sequence.Consumer != count+1 {
				err = errors.New("a message was lost on the way")
			}
			if err == nil {
				err = do(message(m, meta))
			}
			if err != nil {
				cancel()
				return err
			}
			came = true
			count, left = count+1, left-1
			if replaced {
				left = meta.NumPending
			}
		}
		cancel()
		if err := batch.Error(); err != nil && !came {
			return err
		}
	}
	return nil
}

// newestDirect asks the stream's one server for its messages themselves.
func (n *NATS) newestDirect(ctx context.Context, s Stream, subject string, do func(Message) error) error {
	for from := uint64(1); from > 0; {
		var err error
		if from, err = n.directBatch(ctx, s, subject, from, do); err != nil {
			return err
		}
	}
	return nil
}

// directBatch gives the sequence to go on at, 0 at the end.
func (n *NATS) directBatch(ctx context.Context, s Stream, subject string, from uint64, do func(Message) error) (next uint64, err error) {
	inbox := n.conn.NewInbox()
	answers, err := n.conn.SubscribeSync(inbox)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answers.Unsubscribe() }() // it fails with the connection, which the next request meets
	if err := answers.SetPendingLimits(-1, -1); err != nil {
		return 0, err
	}
	body, err := json.Marshal(struct {
		Sequence uint64 `json:"seq"`
		Subject  string `json:"next_by_subj"`
		Batch    int    `json:"batch"`
		Bytes    int    `json:"max_bytes"`
	}{from, subject, directBatch, directBytes})
	if err != nil {
		return 0, err
	}
	if err := n.conn.PublishRequest(apiPrefix+"DIRECT.GET."+string(s), inbox, body); err != nil {
		return 0, err
	}
	for last := uint64(0); ; {
		limit, cancel := context.WithTimeout(ctx, answerLimit)
		raw, err := answers.NextMsgWithContext(limit)
		cancel()
		if err != nil {
			return 0, err
		}
		switch status := raw.Header.Get(statusHeader); status {
		case "":
		case statusNone:
			return 0, nil
		case statusEnd:
			if told := raw.Header.Get(jetstreamLast); told != strconv.FormatUint(last, 10) {
				return 0, fmt.Errorf("a message was lost on the way: %d came last, %.20q was sent", last, told)
			}
			if raw.Header.Get(jetstreamPending) == "0" {
				return 0, nil
			}
			return last + 1, nil
		default:
			return 0, fmt.Errorf("the server answered %.80q", status+" "+raw.Header.Get("Description"))
		}
		// Each names the one before it.
		if before := raw.Header.Get(jetstreamLast); before != strconv.FormatUint(last, 10) {
			return 0, fmt.Errorf("a message was lost on the way: %d came last, %.20q was sent", last, before)
		}
		m, err := directMessage(raw)
		if err != nil {
			return 0, err
		}
		last = m.Sequence
		if err := do(m); err != nil {
			return 0, err
		}
	}
}

const (
	jetstreamSubject = "Nats-Subject"
	jetstreamSeq     = "Nats-Sequence"
	jetstreamTime    = "Nats-Time-Stamp"
	jetstreamLast    = "Nats-Last-Sequence"
	jetstreamPending = "Nats-Num-Pending"
	jetstreamStream  = "Nats-Stream"
)

func directMessage(raw *nats.Msg) (Message, error) {
	sequence, err := strconv.ParseUint(raw.Header.Get(jetstreamSeq), 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("read an answer's sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, raw.Header.Get(jetstreamTime))
	if err != nil {
		return Message{}, fmt.Errorf("read an answer's time: %w", err)
	}
	m := Message{Subject: raw.Header.Get(jetstreamSubject), Sequence: sequence, Time: at.UTC(), Data: raw.Data}
	for _, name := range []string{jetstreamStream, jetstreamSubject, jetstreamSeq, jetstreamTime, jetstreamLast, jetstreamPending} {
		delete(raw.Header, name)
	}
	if len(raw.Header) > 0 {
		m.Header = raw.Header
	}
	return m, nil
}

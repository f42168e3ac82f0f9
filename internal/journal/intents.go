package journal

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// IntentSize bounds an intent in bytes, headers included.
	IntentSize = 1<<20 + 64<<10
	// VerdictAge is how long a verdict can be read, and what was kept aside.
	VerdictAge = 7 * 24 * time.Hour
	// RejectedMost is how many messages are kept aside of one principal; the next one
	// takes the place of the oldest.
	RejectedMost = 64

	intentAckWait = 30 * time.Second
	intentQueue   = "intents"

	reasonHeader = "Counterfoil-Reason"   // why a message is kept aside
	intentHeader = "Counterfoil-Sequence" // of the message in INTENTS
	intentPrefix = "Intent-"              // before the message's own header names
)

// An Intent is a message that an agent stored, leased for 30 s. Whose it is says its
// subject, which the server let only that agent write to.
type Intent struct {
	Principal string
	Key       string // id of the API key that the agent was let in by
	Header    map[string][]string
	Data      []byte
	Sequence  uint64    // as the agent was told
	Time      time.Time // when it was stored
	Delivered uint64    // how often it was handed out
	delivery  Delivery
}

// Ack is due when the verdict is stored. It is not handed out again.
func (i *Intent) Ack(ctx context.Context) error { return i.delivery.Ack(ctx) }

// Release hands it out again at once.
func (i *Intent) Release(ctx context.Context) error { return i.delivery.Release(ctx) }

// IntentQueue hands intents to the ingest roles until they are acknowledged.
type IntentQueue struct{ queue Queue }

// Intents joins the queue that all ingest roles share.
func (j *Journal) Intents(ctx context.Context) (*IntentQueue, error) {
	q, err := j.store.Queue(ctx, QueueConfig{Stream: Intents, Durable: intentQueue, Filter: "intents.*.*", AckWait: intentAckWait})
	if err != nil {
		return nil, err
	}
	return &IntentQueue{q}, nil
}

// Fetch leases up to limit intents, waiting at most wait for the first.
func (q *IntentQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]*Intent, error) {
	list, err := q.queue.Fetch(ctx, limit, wait)
	if err != nil {
		return nil, err
	}
	out := make([]*Intent, 0, len(list))
	for _, d := range list {
		m := d.Message()
		i := &Intent{Header: m.Header, Data: m.Data, Sequence: m.Sequence, Time: m.Time, Delivered: d.Delivered(), delivery: d}
		i.Principal, i.Key, _ = strings.Cut(strings.TrimPrefix(m.Subject, "intents."), ".")
		out = append(out, i)
	}
	return out, nil
}

// StoreVerdict stores the answer to an intent under a token of the principal's, in
// the place of an earlier one.
//
// It is not asked what an unanswered write came to: the intent comes again, and its
// verdict is written again.
func (j *Journal) StoreVerdict(ctx context.Context, principal, token string, header map[string][]string, body []byte) error {
	for what, name := range map[string]string{"principal": principal, "verdict": token} {
		if err := checkName(what, name); err != nil {
			return err
		}
	}
	_, err := j.store.Publish(ctx, Verdicts, Outgoing{Subject: "verdicts." + principal + "." + token, Header: header, Data: body})
	if err != nil {
		return fmt.Errorf("store a verdict for %s: %w", principal, err)
	}
	return nil
}

// KeepAside stores an intent that is none, for people to look at: the last
// RejectedMost of each principal, for VerdictAge.
func (j *Journal) KeepAside(ctx context.Context, i *Intent, reason string) error {
	if err := checkName("principal", i.Principal); err != nil {
		return err
	}
	header := map[string][]string{reasonHeader: {oneLine(reason)}, intentHeader: {strconv.FormatUint(i.Sequence, 10)}}
	for name, values := range i.Header {
		// Under a prefix, so that no sender can steer the server by a header.
		for _, v := range values {
			header[intentPrefix+name] = append(header[intentPrefix+name], oneLine(v))
		}
	}
	m := Outgoing{Subject: "rejected." + i.Principal + "." + strconv.FormatUint(i.Sequence%RejectedMost, 10), Header: header, Data: i.Data}
	if _, err := j.store.Publish(ctx, Verdicts, m); err != nil {
		return fmt.Errorf("keep an intent of %s aside: %w", i.Principal, err)
	}
	return nil
}

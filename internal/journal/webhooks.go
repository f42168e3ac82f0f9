package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	webhookAckWait = 30 * time.Second
	webhookQueue   = "webhooks"

	deliveryHeader = "Counterfoil-Delivery" // made once per StoreWebhook, so that it knows its own
	keyHeader      = "Counterfoil-Key"      // the dedupe key as given
	webhookPrefix  = "Http-"                // before the delivery's own header names
)

// StoreWebhook stores one verified delivery under its dedupe key, for ever
// once. fresh is false if it was stored before. On an error the provider must
// be told to try again: it may or may not be stored.
func (j *Journal) StoreWebhook(ctx context.Context, provider, dedupeKey string, header map[string][]string, body []byte) (fresh bool, err error) {
	if err := checkName("provider", provider); err != nil {
		return false, err
	}
	m := Outgoing{
		Subject: "webhooks." + provider + "." + token(dedupeKey),
		Header:  map[string][]string{deliveryHeader: {j.newID()}, keyHeader: {oneLine(dedupeKey)}},
		Data:    body,
	}
	for name, values := range header {
		// Under a prefix, so that no sender can steer the server by a header.
		for _, v := range values {
			m.Header[webhookPrefix+name] = append(m.Header[webhookPrefix+name], oneLine(v))
		}
	}
	// A crash after this write leaves the delivery for the queue; the provider,
	// who got no answer, sends it again and it is refused as stored.
	_, err = j.store.Publish(ctx, Webhooks, m)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrSubjectFull):
		return false, nil
	case errors.Is(err, ErrUnanswered), errors.Is(err, ErrInFlight):
		stored, readErr := j.store.Last(ctx, Webhooks, m.Subject)
		if readErr == nil {
			return headerValue(stored.Header, deliveryHeader) == m.Header[deliveryHeader][0], nil
		}
	}
	return false, fmt.Errorf("store webhook of %s: %w", provider, err)
}

// oneLine makes a value fit for a header line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\r' || r == '\n' {
			return ' '
		}
		return r
	}, s)
}

// A Webhook is one stored delivery, leased for 30 s.
type Webhook struct {
	Provider  string
	Key       string // dedupe key
	Header    map[string][]string
	Body      []byte
	Sequence  uint64
	Time      time.Time // when it was stored
	Delivered uint64    // how often the queue handed it out
	delivery  Delivery
}

// Ack is due when the delivery is a fact or parked. It is not handed out again.
func (w *Webhook) Ack(ctx context.Context) error { return w.delivery.Ack(ctx) }

// Extend starts the lease anew.
func (w *Webhook) Extend(ctx context.Context) error { return w.delivery.Extend(ctx) }

// Release hands it out again at once.
func (w *Webhook) Release(ctx context.Context) error { return w.delivery.Release(ctx) }

// WebhookQueue hands stored deliveries to the webhook role until acknowledged.
type WebhookQueue struct{ queue Queue }

// Webhooks joins the queue that all webhook roles share.
func (j *Journal) Webhooks(ctx context.Context) (*WebhookQueue, error) {
	q, err := j.store.Queue(ctx, QueueConfig{
		Stream: Webhooks, Durable: webhookQueue, Filter: "webhooks.*.*", AckWait: webhookAckWait,
	})
	if err != nil {
		return nil, err
	}
	return &WebhookQueue{q}, nil
}

// Fetch leases up to limit deliveries, waiting at most wait for the first.
func (q *WebhookQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]*Webhook, error) {
	list, err := q.queue.Fetch(ctx, limit, wait)
	if err != nil {
		return nil, err
	}
	out := make([]*Webhook, 0, len(list))
	for _, d := range list {
		w := webhookIn(d.Message())
		w.Delivered, w.delivery = d.Delivered(), d
		out = append(out, w)
	}
	return out, nil
}

func webhookIn(m Message) *Webhook {
	w := &Webhook{
		Key: headerValue(m.Header, keyHeader), Header: map[string][]string{}, Body: m.Data, Sequence: m.Sequence, Time: m.Time,
	}
	w.Provider, _, _ = strings.Cut(strings.TrimPrefix(m.Subject, "webhooks."), ".")
	for name, values := range m.Header {
		if own, ok := strings.CutPrefix(name, webhookPrefix); ok {
			w.Header[own] = values
		}
	}
	return w
}

// RecentWebhooks walks the newest stored deliveries, newest first, no more than
// limit. They are not leased: no method of theirs may be called.
func (j *Journal) RecentWebhooks(ctx context.Context, limit int, do func(*Webhook) (more bool, err error)) error {
	m, err := j.store.Last(ctx, Webhooks, "webhooks.*.*")
	for n := 0; err == nil && n < limit; n++ {
		more, err := do(webhookIn(m))
		if err != nil || !more || m.Sequence == 1 {
			return err
		}
		// Nothing is ever removed, so the one before is there.
		m, err = j.store.Next(ctx, Webhooks, "webhooks.*.*", m.Sequence-1)
		if err != nil {
			return fmt.Errorf("read stored webhooks: %w", err)
		}
	}
	if err != nil && !errors.Is(err, ErrNoMessage) {
		return fmt.Errorf("read stored webhooks: %w", err)
	}
	return nil
}

package simulator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// hookTimeout bounds one delivery of a webhook.
const hookTimeout = 10 * time.Second

// A Delivery is one attempt to post a webhook. It is made once and not tried
// again.
type Delivery struct {
	At       time.Time // when it was sent
	Mount    string
	Job      string
	State    string
	EventID  string
	URL      string
	Header   http.Header
	Body     []byte
	Fault    string // as in Request
	Status   int    // answered; 0 with Err
	Err      error
	Answered time.Time
}

// Deliveries returns the webhooks sent so far, in the order they were answered.
func (s *Simulator) Deliveries() []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deliveries)
}

// Notify sends a webhook for the job's present state, as one more event. It
// reports whether one is sent: the job has a callback and Webhooks is set.
func (m *Mount) Notify(id string) bool {
	s := m.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	j := m.jobs[id]
	if j == nil || j.callback == "" || s.hooks == nil || !s.beginLocked() {
		return false
	}
	j.advance(s.now())
	ev := j.eventLocked(Change{j.state, s.now()})
	go func() {
		defer s.work.Done()
		s.deliver(ev)
	}()
	return true
}

// event is a webhook ready to be sent.
type event struct {
	delivery Delivery
	repeat   int
	drop     bool
	later    bool
	delay    time.Duration
}

// startCourier starts the goroutine that sends a job's webhooks; it ends with
// the job or with Close. The Simulator is locked.
func (s *Simulator) startCourier(j *job) {
	if j.callback == "" || s.hooks == nil || !s.beginLocked() {
		return
	}
	j.kick = make(chan struct{}, 1)
	go func() {
		defer s.work.Done()
		s.courier(j)
	}()
}

// courier sends the events of one job in order: it sleeps until the plan moves
// the job, or until a call does.
func (s *Simulator) courier(j *job) {
	var held []event // reordered: sent after the next one
	for {
		s.mu.Lock()
		j.advance(s.now())
		var events []event
		for _, change := range j.outbox {
			if j.wants(change.State) {
				events = append(events, j.eventLocked(change))
			}
		}
		j.outbox = nil
		over := Terminal(j.state) || j.gone
		next, timed := j.next()
		pause := next.Sub(s.now())
		s.mu.Unlock()

		for _, ev := range events {
			switch {
			case ev.later:
				held = append(held, ev)
				continue
			case ev.delay > 0:
				s.deliverLate(ev)
			default:
				s.deliver(ev)
			}
			for _, h := range held {
				s.deliver(h)
			}
			held = nil
		}
		if over {
			for _, h := range held {
				s.deliver(h)
			}
			// A change made by Move after the end is not reported.
			return
		}
		var timer <-chan time.Time
		var t *time.Timer
		if timed {
			// At least a millisecond, should the clock lag behind the timer.
			t = time.NewTimer(max(pause, time.Millisecond))
			timer = t.C
		}
		select {
		case <-timer:
		case <-j.kick:
		case <-s.done:
		}
		if t != nil {
			t.Stop()
		}
		select {
		case <-s.done:
			return
		default:
		}
	}
}

// wants applies Replicate's webhook_events_filter. OpenAI and Stripe tell of
// ends alone.
func (j *job) wants(state string) bool {
	if d := j.mount.dialect; d == OpenAIBatches || d == StripeReporting {
		return Terminal(state)
	}
	if len(j.events) == 0 {
		return true
	}
	if Terminal(state) {
		return slices.Contains(j.events, "completed")
	}
	return slices.Contains(j.events, "start") || slices.Contains(j.events, "logs")
}

// eventLocked makes the event of a change and what the rules do to it.
func (j *job) eventLocked(change Change) event {
	m, s := j.mount, j.mount.sim
	j.eventSeq++
	id := s.hash("event", m.base, j.id, strconv.Itoa(j.eventSeq))
	c := &call{sim: s, mount: m, job: j, entry: &Request{}, origin: j.origin}
	ev := event{repeat: 1, delivery: Delivery{
		Mount:   m.base,
		Job:     j.id,
		State:   change.State,
		EventID: "evt_" + hex.EncodeToString(id[:8]),
		URL:     j.callback,
		Header:  http.Header{"Content-Type": {"application/json"}},
	}}
	c.faults = m.matchLocked(Webhook, scope{
		job: j.id, token: j.token, key: j.key, now: s.now(), made: j.created, known: true,
	})
	if f, ok := find[WebhookDrop](c.faults); ok {
		c.noteLocked(f.fault())
		ev.drop = true
	}
	if f, ok := find[WebhookRepeat](c.faults); ok {
		c.noteLocked(f.fault())
		ev.repeat = int(f)
	}
	if f, ok := find[WebhookReorder](c.faults); ok {
		c.noteLocked(f.fault())
		ev.later = true
	}
	if f, ok := find[WebhookDelay](c.faults); ok {
		c.noteLocked(f.fault())
		ev.delay = time.Duration(f)
	}
	d := &ev.delivery
	at := strconv.FormatInt(m.clock().Unix(), 10)
	standard := false
	switch {
	case m.dialect == Replicate && m.options.StandardWebhooks:
		standard = true
		d.Body = c.prediction(j).encode()
	case m.dialect == OpenAIBatches:
		standard = true
		var data, doc document
		data.set("id", j.idValue())
		doc.set("id", d.EventID)
		doc.set("object", "event")
		doc.set("created_at", c.unix(change.At))
		doc.set("type", "batch."+batchWord(change.State))
		doc.set("data", data)
		d.Body = doc.encode()
	case m.dialect == StripeReporting:
		d.Body = c.runEvent(j, d.EventID, change.State, change.At)
		d.Header["Stripe-Signature"] = []string{"t=" + at + ",v1=" + hex.EncodeToString(s.mac(fmt.Appendf(nil, "%s.%s", at, d.Body)))}
	default:
		var doc document
		doc.set("event_id", d.EventID)
		doc.set("type", "job."+change.State)
		doc.set("job_id", j.idValue())
		doc.set("state", c.word(change.State))
		if j.reference != "" {
			doc.set("client_reference", j.reference)
		}
		d.Body = doc.encode()
	}
	if standard {
		d.Header["Webhook-Id"] = []string{d.EventID}
		d.Header["Webhook-Timestamp"] = []string{at}
		d.Header["Webhook-Signature"] = []string{"v1," + base64.StdEncoding.EncodeToString(
			s.mac(fmt.Appendf(nil, "%s.%s.%s", d.EventID, at, d.Body)))}
	}
	d.Header.Set("X-Signature", "sha256="+hex.EncodeToString(s.mac(d.Body)))
	d.Fault = c.entry.Fault
	return ev
}

func (s *Simulator) mac(b []byte) []byte {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(b)
	return mac.Sum(nil)
}

// deliverEarly sends the new job's first event and waits for its answer. It
// reports whether there was one to send.
func (s *Simulator) deliverEarly(c *call) bool {
	s.mu.Lock()
	j := c.job
	if j == nil || j.callback == "" || s.hooks == nil {
		s.mu.Unlock()
		return false
	}
	ev := j.eventLocked(Change{j.state, j.updated()})
	ev.delivery.Fault = join(ev.delivery.Fault, EarlyWebhook{}.fault())
	s.mu.Unlock()
	s.deliver(ev)
	return true
}

// deliverLate sends an event after its delay, beside the courier.
func (s *Simulator) deliverLate(ev event) {
	if !s.begin() {
		return
	}
	go func() {
		defer s.work.Done()
		if s.wait(ev.delay, nil) {
			s.deliver(ev)
		}
	}()
}

// deliver posts an event as often as it is to be repeated.
func (s *Simulator) deliver(ev event) {
	if ev.drop {
		return
	}
	for range ev.repeat {
		d := ev.delivery
		d.At = s.now()
		d.Status, d.Err = s.post(d)
		d.Answered = s.now()
		s.mu.Lock()
		s.deliveries = append(s.deliveries, d)
		s.mu.Unlock()
	}
}

func (s *Simulator) post(d Delivery) (int, error) {
	ctx, cancel := context.WithTimeout(closing{s.done}, hookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(d.Body))
	if err != nil {
		return 0, fmt.Errorf("make the webhook for job %s: %w", d.Job, err)
	}
	req.Header = d.Header.Clone()
	resp, err := s.hooks.Do(req)
	if err != nil {
		return 0, fmt.Errorf("post the webhook for job %s: %w", d.Job, err)
	}
	// Read to the end for the sake of the connection; the content says nothing.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// closing is a context that ends when done closes.
type closing struct{ done <-chan struct{} }

func (closing) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c closing) Done() <-chan struct{}     { return c.done }
func (closing) Value(any) any               { return nil }

func (c closing) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// WebhookClient is a client for Config.Webhooks that gives up after 5 s and
// follows no redirect, as providers do. Its idle connections end by themselves.
func WebhookClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       5 * time.Second,
	}
}

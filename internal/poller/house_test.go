package poller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a poller over an empty store with one operation in it.
type house struct {
	t        *testing.T
	store    *tapped
	journal  *journal.Journal
	contract *contract.Contract
	poller   *Poller
	caller   *caller
	clock    *clock
	s        projections.State
	trail    *trail
	ids      atomic.Uint64
}

// trail is what happened, in order.
type trail struct {
	mu   sync.Mutex
	list []string
}

func (l *trail) add(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprintf(format, a...))
}

func (l *trail) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// tapped tells the trail what is written and lets a test act around a write.
type tapped struct {
	journal.Store
	trail  *trail
	before func(journal.Stream, journal.Outgoing) error
	after  func(journal.Stream, journal.Outgoing)
}

func kindOf(m journal.Outgoing) string {
	kind := ""
	for name, values := range m.Header {
		if strings.EqualFold(name, "ce-type") {
			kind = strings.TrimPrefix(values[0], events.TypePrefix)
		}
	}
	kind, _, _ = strings.Cut(kind, ".v")
	return kind
}

func (s *tapped) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	if s.before != nil {
		if err := s.before(stream, m); err != nil {
			return 0, err
		}
	}
	n, err := s.Store.Publish(ctx, stream, m)
	if err == nil {
		switch kind := kindOf(m); {
		case kind != "":
			s.trail.add("%s", kind)
		case stream == journal.Index:
			s.trail.add("claim")
		}
		if s.after != nil {
			s.after(stream, m)
		}
	}
	return n, err
}

// clock is the bubble's, moved.
type clock struct{ ahead time.Duration }

func (c *clock) Now() time.Time { return time.Now().Add(c.ahead) }

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// caller answers as scripted, and fails the test if it is asked more often.
type caller struct {
	t     *testing.T
	trail *trail

	mu       sync.Mutex
	script   []func(context.Context, outbound.Request) (outbound.Answer, error)
	sent     []outbound.Request
	identity func() (string, error)
}

func (c *caller) Do(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
	c.mu.Lock()
	c.sent = append(c.sent, r)
	if len(c.script) == 0 {
		c.mu.Unlock()
		c.t.Errorf("an unexpected %s %s", r.Method, r.URL)
		return outbound.Answer{}, &outbound.Failure{Class: outbound.Dial, Sent: outbound.NotSent}
	}
	next := c.script[0]
	c.script = c.script[1:]
	c.mu.Unlock()
	c.trail.add("%s %s", r.Method, strings.TrimPrefix(r.URL, "https://api.example"))
	return next(ctx, r)
}

func (c *caller) CredentialIdentity(context.Context, outbound.Credential) (string, error) {
	if c.identity != nil {
		return c.identity()
	}
	return "id-1", nil
}

func (c *caller) then(f ...func(context.Context, outbound.Request) (outbound.Answer, error)) {
	c.script = append(c.script, f...)
}

func answered(r outbound.Request, status int, body string) outbound.Answer {
	return outbound.Answer{
		Status: status, Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"req-7"}},
		Body: []byte(body), URL: r.URL, SentAt: time.Now(), AnsweredAt: time.Now(),
	}
}

func says(status int, body string) func(context.Context, outbound.Request) (outbound.Answer, error) {
	return func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
		return answered(r, status, body), nil
	}
}

func breaks(class outbound.Class, sent outbound.Sent) func(context.Context, outbound.Request) (outbound.Answer, error) {
	return func(context.Context, outbound.Request) (outbound.Answer, error) {
		return outbound.Answer{}, &outbound.Failure{Class: class, Sent: sent, Err: errors.New("as scripted")}
	}
}

// Directory is the house itself: one contract, one account.
func (h *house) Contract(context.Context, events.Digest) (*contract.Contract, error) {
	return h.contract, nil
}

func (h *house) Account(string, string) (Account, error) {
	return Account{BaseURL: "https://api.example", Credential: "env:KEY"}, nil
}

// lease counts what is done with it.
type lease struct {
	operation string
	at        time.Time
	version   uint64
	delivered uint64
	extended  atomic.Int64
	acked     atomic.Int64
	released  atomic.Int64
}

func (l *lease) Operation() string            { return l.operation }
func (l *lease) At() time.Time                { return l.at }
func (l *lease) Version() uint64              { return l.version }
func (l *lease) Delivered() uint64            { return l.delivered }
func (l *lease) Extend(context.Context) error { l.extended.Add(1); return nil }

func (l *lease) Release(context.Context) error { l.released.Add(1); return nil }
func (l *lease) Left(projections.State, error) {}

// Ack does nothing for a worker that was stopped, as the real one.
func (l *lease) Ack(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.acked.Add(1)
	return nil
}

type changes struct {
	contract string // name of a built-in one
	replace  []string
	intent   func(*events.IntentRecorded)
	config   func(*Config)
}

const operation = "op_test"

func newHouse(t *testing.T, c changes) *house {
	t.Helper()
	l := &trail{}
	h := &house{t: t, trail: l, clock: &clock{}, caller: &caller{t: t, trail: l}}
	h.store = &tapped{Store: memory.New(memory.Config{Now: time.Now}), trail: l}
	if c.contract == "" {
		c.contract = "example"
	}
	raw, err := contracts.FS.ReadFile(c.contract + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i := 0; i < len(c.replace); i += 2 {
		if !strings.Contains(text, c.replace[i]) {
			t.Fatalf("%s has no %q", c.contract, c.replace[i])
		}
		text = strings.Replace(text, c.replace[i], c.replace[i+1], 1)
	}
	if h.contract, err = contract.Parse(c.contract+".yaml", []byte(text)); err != nil {
		t.Fatal(err)
	}
	h.journal = h.other()
	config := Config{
		Journal: h.journal, Call: h.caller, Directory: h, Clock: h.clock, NewID: h.id, Log: slog.New(slog.DiscardHandler),
		Callback: func(_, _, _ string) string { return "" }, Source: "/poller/1", Owner: "poller-1/r1",
	}
	if c.config != nil {
		c.config(&config)
	}
	h.poller = New(config)

	payload, err := h.journal.PutPayload(t.Context(), []byte(`{"input": {"a": 1}}`))
	if err != nil {
		t.Fatal(err)
	}
	intent := &events.IntentRecorded{
		Principal: "team-a", Provider: "example", Account: "main", Rules: projections.Rules, Payload: payload,
		Token: "tok-1", ClientReference: "ref-1", Promises: h.contract.Promises(false), Offers: h.contract.Offers(),
	}
	if intent.Deadlines, err = h.contract.Deadlines(events.Deadlines{}); err != nil {
		t.Fatal(err)
	}
	if intent.Policy, err = h.contract.Policy(events.Policy{}); err != nil {
		t.Fatal(err)
	}
	if c.intent != nil {
		c.intent(intent)
	}
	s, outcome, err := h.journal.Create(t.Context(), events.Event{ID: "intent", Source: "/test", Operation: operation, Time: time.Now(), Fact: intent})
	if err != nil || outcome != journal.Stored {
		t.Fatal(outcome, err)
	}
	h.s = s
	l.list = nil
	return h
}

func (h *house) id() string { return fmt.Sprintf("id-%d", h.ids.Add(1)) }

// other is a journal of another worker.
func (h *house) other() *journal.Journal {
	return journal.New(journal.Options{Store: h.store, Now: time.Now, Sleep: h.clock.Sleep, NewID: h.id})
}

// put appends as somebody else.
func (h *house) put(facts ...events.Fact) {
	h.t.Helper()
	for _, fact := range facts {
		h.state()
		s, outcome, err := h.other().Append(context.Background(), h.s, events.Event{ID: h.id(), Source: "/other", Fact: fact})
		if err != nil || outcome != journal.Stored {
			h.t.Fatal(outcome, err)
		}
		h.s = s
	}
}

func (h *house) state() projections.State {
	h.t.Helper()
	s, err := h.other().Current(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	h.s = s
	return s
}

// due is a lease as the projector would have made it.
func (h *house) due() *lease {
	s := h.state()
	at, _ := projections.Next(s)
	return &lease{operation: operation, at: at, version: s.Sequence}
}

// attend works on a lease and gives the trail of it.
func (h *house) attend() (*lease, []string) {
	h.t.Helper()
	l := h.due()
	if err := h.poller.Attend(h.t.Context(), l); err != nil {
		h.t.Fatalf("%v\n%v", err, h.trail.all())
	}
	return l, h.take()
}

func (h *house) take() []string {
	h.trail.mu.Lock()
	defer h.trail.mu.Unlock()
	list := h.trail.list
	h.trail.list = nil
	return list
}

// last gives the newest fact of a type.
func last[F events.Fact](h *house) F {
	h.t.Helper()
	lines, err := h.other().Timeline(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, line := range slices.Backward(lines) {
		if f, ok := line.Entry.Event.Fact.(F); ok {
			return f
		}
	}
	var none F
	h.t.Fatalf("no %T in the ledger", none)
	return none
}

// accept leads the operation to a job, without the poller.
func (h *house) accept(more ...events.Fact) {
	h.t.Helper()
	a := events.Attempt{
		Number: 1, Request: events.Sum([]byte("r")), Origin: "https://api.example", Account: "main", Credential: "env:KEY", Identity: "id-1",
		NotAfter: time.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "poller-0/r0",
	}
	h.put(&events.CreateAttempted{Attempt: a})
	h.put(&events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j-1", Claim: events.ClaimOwn, Call: events.Call{AsOf: h.s.Sequence, LeftAt: time.Now()}})
	h.put(more...)
	h.take()
}

// finish leads an accepted operation to the collection of its result.
func (h *house) finish() {
	h.t.Helper()
	h.put(&events.JobObserved{JobID: "j-1", State: events.ClassSucceeded, Remote: "succeeded", Call: events.Call{AsOf: h.s.Sequence, LeftAt: time.Now()}})
	h.take()
}

func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

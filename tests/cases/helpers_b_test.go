package cases_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// inBubble runs a case on fake time.
func inBubble(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, run)
}

// variant is inBubble as a subtest.
func variant(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
}

// edited gives a contract edit that replaces text of one contract; a text that
// is not there fails the case.
func edited(t *testing.T, contract string, pairs ...string) func(name, text string) string {
	t.Helper()
	return func(name, text string) string {
		if name != contract+".yaml" {
			return text
		}
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(text, pairs[i]) {
				t.Errorf("contract %s does not hold %q", contract, pairs[i])
			}
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
		return text
	}
}

// invariants checks what holds in every case: no operation made two jobs at a
// provider or had two calls with side effects on their way at once, and every
// operation a caller was told of is there, each with a job of its own.
func invariants(t *testing.T, h *harness.House, accepted ...string) {
	t.Helper()
	if d := h.Sim.Duplicates(); len(d) > 0 {
		t.Errorf("operations with more than one job: %v", d)
	}
	if n := h.Sim.MaxAtOnceAny(); n > 1 {
		t.Errorf("%d calls with side effects of one operation at once", n)
	}
	owner := map[string]string{}
	for _, id := range accepted {
		op, err := h.Client.Get(t.Context(), id)
		if err != nil {
			t.Errorf("the accepted operation %s is lost: %v", id, err)
			continue
		}
		if op.Job == nil {
			continue
		}
		if other, taken := owner[op.Job.ID]; taken {
			t.Errorf("job %s belongs to %s and %s", op.Job.ID, other, id)
		}
		owner[op.Job.ID] = id
	}
	if n := len(h.Sim.Jobs()); n > len(accepted) {
		t.Errorf("%d jobs for %d operations", n, len(accepted))
	}
	for id := range owner {
		if !slices.ContainsFunc(h.Sim.Jobs(), func(j simulator.Job) bool { return j.ID == id }) {
			t.Errorf("job %s is at no provider", id)
		}
	}
}

// factsOf gives the entries of the operation's timeline whose type starts with
// the name: "create.answered".
func factsOf(h *harness.House, id, name string) []client.Entry {
	h.T.Helper()
	return slices.DeleteFunc(h.Timeline(id), func(e client.Entry) bool { return !strings.HasPrefix(e.Type, name) })
}

// await is House.Wait with a look every step: for long waits.
func await(h *harness.House, id string, limit, step time.Duration, states ...string) client.Operation {
	h.T.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(step) {
		op, err := h.Client.Get(h.T.Context(), id)
		if err != nil {
			h.T.Fatalf("get %s: %v", id, err)
		}
		if slices.Contains(states, op.State) || len(states) == 0 && op.Done {
			return op
		}
		if time.Now().After(end) {
			h.T.Fatalf("%s is %s (%s) after %s, want %v\n%s", id, op.State, op.Reason, limit, states, h.Story(id))
		}
	}
}

// want fails unless the two are equal.
func want[T comparable](t *testing.T, what string, have, wanted T) {
	t.Helper()
	if have != wanted {
		t.Errorf("%s: %v, want %v", what, have, wanted)
	}
}

// problemOf gives the problem document behind a client's error.
func problemOf(t *testing.T, err error) *client.Problem {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) {
		t.Fatalf("not a problem document: %v", err)
	}
	return p
}

// answer is a plain HTTP answer of the service.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask makes a plain HTTP request to the service, with the caller's key.
func ask(t *testing.T, h *harness.House, method, path, body string, header ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://counterfoil.test"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.Bearer)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := h.HTTP.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// resultOf reads an operation's result whole.
func resultOf(t *testing.T, h *harness.House, id string) string {
	t.Helper()
	r, err := h.Client.Result(t.Context(), id)
	if err != nil {
		t.Fatalf("result of %s: %v", id, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("result of %s: %v", id, err)
	}
	return string(text)
}

// account is where the simulated providers' contract finds its provider.
func account(base string) poller.Account {
	return poller.Account{BaseURL: base, Credential: "env:HARNESS_TOKEN"}
}

// errCut is what every touch of the world gives after a cut.
var errCut = errors.New("cut off by the test")

// hooks are asked before each touch of the store; an error is the answer.
type hooks struct {
	// touch is asked before everything.
	touch func(ctx context.Context) error
	// read is asked before anything is read of a stream.
	read func() error
	// publish is asked before a message is stored, stored after it was.
	publish func(ctx context.Context, s journal.Stream, m journal.Outgoing) error
	stored  func(s journal.Stream, m journal.Outgoing) error
	// extend is asked before a lease is extended.
	extend func() error
}

func (k *hooks) before(ctx context.Context) error {
	if k.touch == nil {
		return nil
	}
	return k.touch(ctx)
}

func (k *hooks) beforeRead(ctx context.Context) error {
	if err := k.before(ctx); err != nil || k.read == nil {
		return err
	}
	return k.read()
}

// kind is the fact's type in a message of the ledger, "create.attempted.v1".
func kind(m journal.Outgoing) string {
	if v := m.Header["ce-type"]; len(v) == 1 {
		return strings.TrimPrefix(v[0], "dev.counterfoil.")
	}
	return ""
}

type hookedStore struct {
	k     *hooks
	inner journal.Store
}

func (s hookedStore) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	if err := s.k.before(ctx); err != nil {
		return 0, err
	}
	if s.k.publish != nil {
		if err := s.k.publish(ctx, stream, m); err != nil {
			return 0, err
		}
	}
	n, err := s.inner.Publish(ctx, stream, m)
	if err == nil && s.k.stored != nil {
		if err := s.k.stored(stream, m); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (s hookedStore) PublishBatch(ctx context.Context, stream journal.Stream, list []journal.Outgoing) ([]uint64, error) {
	if err := s.k.before(ctx); err != nil {
		return nil, err
	}
	for _, m := range list {
		if s.k.publish == nil {
			break
		}
		if err := s.k.publish(ctx, stream, m); err != nil {
			return nil, err
		}
	}
	n, err := s.inner.PublishBatch(ctx, stream, list)
	for _, m := range list {
		if err != nil || s.k.stored == nil {
			break
		}
		err = s.k.stored(stream, m)
	}
	return n, err
}

func (s hookedStore) PublishRun(ctx context.Context, stream journal.Stream, guard journal.Guard, list []journal.Outgoing) (n uint64, err error) {
	for _, m := range list { // each by itself: then the hooks see it
		m.Guard = &guard
		if n, err = s.Publish(ctx, stream, m); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (s hookedStore) Last(ctx context.Context, stream journal.Stream, subject string) (journal.Message, error) {
	if err := s.k.beforeRead(ctx); err != nil {
		return journal.Message{}, err
	}
	return s.inner.Last(ctx, stream, subject)
}

func (s hookedStore) Next(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Message, error) {
	if err := s.k.beforeRead(ctx); err != nil {
		return journal.Message{}, err
	}
	return s.inner.Next(ctx, stream, subject, from)
}

func (s hookedStore) Newest(ctx context.Context, stream journal.Stream, subject string, do func(journal.Message) error) error {
	if err := s.k.beforeRead(ctx); err != nil {
		return err
	}
	return s.inner.Newest(ctx, stream, subject, do)
}

func (s hookedStore) Read(ctx context.Context, stream journal.Stream, subject string, from uint64) (journal.Cursor, error) {
	if err := s.k.beforeRead(ctx); err != nil {
		return nil, err
	}
	c, err := s.inner.Read(ctx, stream, subject, from)
	if err != nil {
		return nil, err
	}
	return hookedCursor{s.k, c}, nil
}

func (s hookedStore) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	if err := s.k.before(ctx); err != nil {
		return nil, err
	}
	q, err := s.inner.Queue(ctx, c)
	if err != nil {
		return nil, err
	}
	return hookedQueue{s.k, q}, nil
}

type hookedCursor struct {
	k     *hooks
	inner journal.Cursor
}

func (c hookedCursor) Next(ctx context.Context, wait time.Duration) (journal.Message, error) {
	if err := c.k.before(ctx); err != nil {
		return journal.Message{}, err
	}
	return c.inner.Next(ctx, wait)
}

func (c hookedCursor) Close() error { return c.inner.Close() }

type hookedQueue struct {
	k     *hooks
	inner journal.Queue
}

func (q hookedQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	if err := q.k.before(ctx); err != nil {
		return nil, err
	}
	list, err := q.inner.Fetch(ctx, limit, wait)
	if err != nil {
		return nil, err
	}
	// A process that was killed while it waited has got nothing.
	if err := q.k.before(ctx); err != nil {
		return nil, err
	}
	for i := range list {
		list[i] = hookedDelivery{q.k, list[i]}
	}
	return list, nil
}

type hookedDelivery struct {
	k *hooks
	journal.Delivery
}

func (d hookedDelivery) Extend(ctx context.Context) error {
	if err := d.k.before(ctx); err != nil {
		return err
	}
	if d.k.extend != nil {
		if err := d.k.extend(); err != nil {
			return err
		}
	}
	return d.Delivery.Extend(ctx)
}

func (d hookedDelivery) Ack(ctx context.Context) error {
	if err := d.k.before(ctx); err != nil {
		return err
	}
	return d.Delivery.Ack(ctx)
}

func (d hookedDelivery) Release(ctx context.Context) error {
	if err := d.k.before(ctx); err != nil {
		return err
	}
	return d.Delivery.Release(ctx)
}

// hookedCaller asks before and after each call to a provider.
type hookedCaller struct {
	before func(ctx context.Context, r outbound.Request)
	after  func(ctx context.Context, r outbound.Request)
	inner  poller.Caller
}

func (c hookedCaller) Do(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
	if c.before != nil {
		c.before(ctx, r)
	}
	a, err := c.inner.Do(ctx, r)
	if c.after != nil {
		c.after(ctx, r)
	}
	return a, err
}

func (c hookedCaller) CredentialIdentity(ctx context.Context, cr outbound.Credential) (string, error) {
	return c.inner.CredentialIdentity(ctx, cr)
}

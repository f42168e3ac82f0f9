package poller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

const accepts = `{"job_id": "j-1", "state": "queued"}`

// The order of everything that is written and sent: request, permit, call,
// claim, fact. The example contract reads the result again where that is safe.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			s := h.state()
			kind, open := s.OpenAttempt()
			if kind != events.TypeCreateAttempted || !open.NotAfter.Equal(r.NotAfter) || !r.SideEffect || r.Credential.Identity != "id-1" || r.Credential.Ref != "env:KEY" {
				t.Errorf("request %+v under %s %+v", r, kind, open)
			}
			if _, err := h.journal.Payload(t.Context(), open.Request); err != nil {
				t.Errorf("the permit names a request that is not stored: %v", err)
			}
			return answered(r, 201, accepts), nil
		})
		l, trail := h.attend()
		same(t, trail, "create.attempted", "POST /v1/jobs", "claim", "create.answered")
		if l.acked.Load() != 1 {
			t.Error("not acked although the next look is another")
		}
		f := last[*events.CreateAnswered](h)
		if f.Outcome != events.CreateAccepted || f.Claim != events.ClaimOwn || f.RequestID != "req-7" || string(f.Inline) != accepts || f.AsOf != 2 {
			t.Errorf("%+v", f)
		}

		time.Sleep(2 * time.Second)
		h.caller.then(says(200, `{"job_id": "j-1", "state": "succeeded"}`), says(200, `{"answer": 42}`))
		_, trail = h.attend()
		same(t, trail, "GET /v1/jobs/j-1", "job.observed", "GET /v1/jobs/j-1/result", "result.collected")
		r := last[*events.ResultCollected](h)
		if body, err := h.journal.Payload(t.Context(), r.Payload); err != nil || string(body) != `{"answer": 42}` || r.Size != 14 || r.MediaType != "application/json" {
			t.Errorf("%+v, %q, %v", r, body, err)
		}
		if s := h.state(); s.Phase != projections.PhaseSucceeded {
			t.Error(s.Phase, s.Reason)
		}
	})
}

// stored calls f after the first fact of this type was stored, before its
// author knows.
func (h *house) stored(kind string, f func()) {
	h.store.after = func(_ journal.Stream, m journal.Outgoing) {
		if kindOf(m) == kind {
			h.store.after = nil
			f()
		}
	}
}

// Nothing is sent unless the permit was stored at its sequence, the fold
// opened it, and nobody has given it up.
func TestNothingIsSentWithoutAPermit(t *testing.T) {
	bubble(t, "superseded by a cancel", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.store.before = func(_ journal.Stream, m journal.Outgoing) error {
			if kindOf(m) == "create.attempted" {
				h.store.before = nil
				h.put(&events.CancelRequested{Who: "team-a"})
			}
			return nil
		}
		_, trail := h.attend()
		same(t, trail, "cancel.requested")
		if s := h.state(); s.Phase != projections.PhaseCancelled {
			t.Error(s.Phase)
		}
	})
	bubble(t, "superseded by another worker's permit", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.store.before = func(_ journal.Stream, m journal.Outgoing) error {
			if kindOf(m) == "create.attempted" {
				h.store.before = nil
				h.put(&events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: time.Now().Add(30 * time.Second), Timeout: 30 * time.Second, Owner: "poller-2/r"}})
			}
			return nil
		}
		_, trail := h.attend()
		same(t, trail, "create.attempted")
		if s := h.state(); s.Creates.Open() == nil || s.Creates.Open().Owner != "poller-2/r" {
			t.Errorf("%+v", s.Creates)
		}
	})
	bubble(t, "the store does not take it", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.store.before = func(_ journal.Stream, m journal.Outgoing) error {
			if kindOf(m) == "create.attempted" {
				return errors.New("store is gone")
			}
			return nil
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.poller.Attend(ctx, h.due()); err == nil {
			t.Error("no error")
		}
		same(t, h.take())
	})
	bubble(t, "held", func(t *testing.T) {
		why := errors.New("streams drifted")
		h := newHouse(t, changes{config: func(c *Config) { c.Permits = func() error { return why } }})
		l := h.due()
		if err := h.poller.Attend(t.Context(), l); !errors.Is(err, why) || l.acked.Load() != 0 {
			t.Errorf("%v, acked %d times", err, l.acked.Load())
		}
		same(t, h.take())
	})
	bubble(t, "held from now on", func(t *testing.T) {
		why, asked := errors.New("streams drifted"), 0
		h := newHouse(t, changes{config: func(c *Config) {
			c.Permits = func() error {
				if asked++; asked > 1 {
					return why
				}
				return nil
			}
		}})
		if err := h.poller.Attend(t.Context(), h.due()); !errors.Is(err, why) {
			t.Error(err)
		}
		same(t, h.take())
	})
	bubble(t, "held, but reads and deadlines go on", func(t *testing.T) {
		h := newHouse(t, changes{config: func(c *Config) { c.Permits = func() error { return errors.New("drift") } }})
		h.accept()
		time.Sleep(2 * time.Second)
		h.caller.then(says(200, `{"state": "running"}`))
		_, trail := h.attend()
		same(t, trail, "GET /v1/jobs/j-1", "job.observed")
	})
	bubble(t, "refused by the fold, whose clock is the ledger's", func(t *testing.T) {
		h := newHouse(t, changes{intent: func(i *events.IntentRecorded) { i.Deadlines.Create = time.Minute }})
		time.Sleep(2 * time.Minute)
		h.clock.ahead = -90 * time.Second
		if err := h.poller.Attend(t.Context(), h.due()); err == nil {
			t.Error("a worker whose clock is wrong says nothing")
		}
		for _, step := range h.take() {
			if step != "create.attempted" {
				t.Errorf("%s", step)
			}
		}
		if s := h.state(); len(s.Creates.List) != 0 || s.Refused == 0 || s.Refused > 5 {
			t.Errorf("%d refused, %+v", s.Refused, s.Creates)
		}
	})
}

// A worker that finds itself given up before it sent anything says so: nobody
// else can know.
func TestPresumedBeforeSending(t *testing.T) {
	bubble(t, "create", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.stored("create.attempted", func() {
			h.put(&events.CreateAnswered{Attempt: 1, Outcome: events.CreatePresumed, OwnerGone: true})
		})
		// It is closed as not sent, and made again after a wait.
		_, trail := h.attend()
		same(t, trail[:3], "create.attempted", "create.answered", "create.answered")
		f := last[*events.CreateAnswered](h)
		if f.Outcome != events.CreateNotSent || f.Attempt != 1 || f.Class != events.ErrorNotAfter {
			t.Errorf("%+v", f)
		}
		if s := h.state(); s.Creates.NotSent != 1 || s.Creates.Unresolved() != 0 || len(h.caller.sent) != 0 {
			t.Errorf("%+v, %d sent", s.Creates, len(h.caller.sent))
		}
	})
	bubble(t, "cancel", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept(&events.CancelRequested{Who: "team-a"})
		h.stored("cancel.attempted", func() { h.put(&events.CancelAnswered{Attempt: 1, Outcome: events.CancelPresumed}) })
		h.caller.then(says(200, `{"state": "running"}`)) // a presumed cancel is followed by a read
		h.attend()
		if f := last[*events.CancelAnswered](h); f.Outcome != events.CancelNotSent {
			t.Errorf("%+v", f)
		}
		for _, r := range h.caller.sent {
			if r.SideEffect {
				t.Errorf("sent %s %s", r.Method, r.URL)
			}
		}
	})
	bubble(t, "result", func(t *testing.T) {
		h := newHouse(t, changes{replace: []string{"/result\n  repeat: safe", "/result\n  repeat: once"}})
		h.accept()
		h.finish()
		h.stored("result.attempted", func() { h.put(&events.ResultFailed{Attempt: 1, Outcome: events.ResultPresumed}) })
		_, trail := h.attend()
		same(t, trail, "result.attempted", "result.failed", "result.failed")
		if f := last[*events.ResultFailed](h); f.Outcome != events.ResultNotSent || f.Attempt != 1 || len(h.caller.sent) != 0 {
			t.Errorf("%+v, sent %d", f, len(h.caller.sent))
		}
	})
}

// What a failure proves, and nothing more: only NotSent closes an attempt as
// not sent.
func TestFailures(t *testing.T) {
	for _, class := range outbound.Classes() {
		if errorClass(class) == events.ErrorNone {
			t.Errorf("%s counts as no error", class)
		}
		for _, sent := range []outbound.Sent{outbound.NotSent, outbound.SentUnknown} {
			bubble(t, string(class)+" "+sent.String(), func(t *testing.T) {
				create, cancel, result := events.CreateAmbiguous, events.CancelAmbiguous, events.ResultAmbiguous
				if sent == outbound.NotSent {
					create, cancel, result = events.CreateNotSent, events.CancelNotSent, events.ResultNotSent
				}
				call := func(c events.Call) {
					t.Helper()
					if c.Class != errorClass(class) || c.Code != string(class) || c.Message == "" || c.AsOf == 0 {
						t.Errorf("%+v", c)
					}
				}
				h := newHouse(t, changes{})
				h.caller.then(breaks(class, sent))
				if _, trail := h.attend(); len(trail) != 3 {
					t.Errorf("%q", trail)
				}
				f := last[*events.CreateAnswered](h)
				if call(f.Call); f.Outcome != create {
					t.Errorf("create is %s", f.Outcome)
				}

				h = newHouse(t, changes{})
				h.accept(&events.CancelRequested{Who: "team-a"})
				h.caller.then(breaks(class, sent))
				if sent != outbound.NotSent {
					h.caller.then(says(200, `{"state": "running"}`))
				}
				h.attend()
				g := last[*events.CancelAnswered](h)
				if call(g.Call); g.Outcome != cancel {
					t.Errorf("cancel is %s", g.Outcome)
				}

				h = newHouse(t, changes{replace: []string{"/result\n  repeat: safe", "/result\n  repeat: once"}})
				h.accept()
				h.finish()
				h.caller.then(breaks(class, sent))
				h.attend()
				r := last[*events.ResultFailed](h)
				if call(r.Call); r.Outcome != result || r.Attempt != 1 {
					t.Errorf("result is %s of %d", r.Outcome, r.Attempt)
				}

				h = newHouse(t, changes{})
				h.accept()
				time.Sleep(2 * time.Second)
				h.caller.then(breaks(class, sent))
				h.attend()
				o := last[*events.ObservationFailed](h)
				if call(o.Call); o.LeftAt.IsZero() {
					t.Error("a read that was begun has no time")
				}
			})
		}
	}
	bubble(t, "an error of another type proves nothing", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(func(context.Context, outbound.Request) (outbound.Answer, error) {
			return outbound.Answer{}, errors.New("no failure")
		})
		h.attend()
		if f := last[*events.CreateAnswered](h); f.Outcome != events.CreateAmbiguous {
			t.Errorf("%+v", f)
		}
	})
}

// A repeat sends the first attempt's bytes, whatever the parameters give now.
func TestStoredRequestIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
		h.attend()
		first := h.caller.sent[0]
		h.poller.cfg.Callback = func(_, _, _ string) string { return "https://hooks.example/later" }
		time.Sleep(time.Until(h.due().at))
		h.caller.then(says(201, accepts))
		h.attend()
		second := h.caller.sent[1]
		if second.URL != first.URL || string(second.Body) != string(first.Body) || len(second.Header) != len(first.Header) || second.NotAfter.Equal(first.NotAfter) {
			t.Errorf("first %+v\nthen %+v", first, second)
		}
		if s := h.state(); s.Creates.Made != 2 || s.Creates.List[0].Request != s.Creates.List[1].Request {
			t.Errorf("%+v", s.Creates)
		}
	})
}

func TestClaimOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		if owner, err := h.journal.Claim(t.Context(), "example", "main", "j-1", "op_other"); err != nil || owner != events.ClaimOwn {
			t.Fatal(owner, err)
		}
		h.take()
		h.caller.then(says(201, accepts))
		_, trail := h.attend()
		same(t, trail, "create.attempted", "POST /v1/jobs", "create.answered")
		if f := last[*events.CreateAnswered](h); f.Claim != "op_other" {
			t.Errorf("%+v", f)
		}
		if s := h.state(); s.Quarantine != projections.QuarantineConflict {
			t.Error(s.Phase)
		}
	})
}

// What was seen is stored although the worker is being stopped, for a while.
func TestEvidenceOutlivesTheWorker(t *testing.T) {
	bubble(t, "an answer", func(t *testing.T) {
		h := newHouse(t, changes{})
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			stop()
			return answered(r, 201, accepts), nil
		})
		_ = h.poller.Attend(ctx, h.due()) // ends with the context
		same(t, h.take(), "create.attempted", "POST /v1/jobs", "claim", "create.answered")
	})
	bubble(t, "a failure", func(t *testing.T) {
		h := newHouse(t, changes{})
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(context.Context, outbound.Request) (outbound.Answer, error) {
			stop()
			return outbound.Answer{}, &outbound.Failure{Class: outbound.Canceled, Sent: outbound.NotSent}
		})
		_ = h.poller.Attend(ctx, h.due())
		if f := last[*events.CreateAnswered](h); f.Outcome != events.CreateNotSent {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "files of a result", func(t *testing.T) {
		h := newHouse(t, changes{contract: "replicate"})
		h.accept()
		h.finish()
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(says(200, `{"id": "j-1", "status": "succeeded", "output": "https://files.example/a?sig=1"}`),
			func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
				stop()
				return answered(r, 200, "data"), nil
			})
		_ = h.poller.Attend(ctx, h.due())
		last[*events.ResultCollected](h)
	})
	bubble(t, "not for ever", func(t *testing.T) {
		h := newHouse(t, changes{})
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			h.store.before = func(journal.Stream, journal.Outgoing) error { return journal.ErrUnanswered }
			stop()
			return answered(r, 201, accepts), nil
		})
		began := time.Now()
		err := h.poller.Attend(ctx, h.due())
		if took := time.Since(began); err == nil || took < 10*time.Second || took > 11*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

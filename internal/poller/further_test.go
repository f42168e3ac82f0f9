package poller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

const yes = `{"answer": "yes", "n": 1.50}`

// ask leads the operation to a job that waits, and gives it an answer.
func (h *house) ask() {
	h.t.Helper()
	h.accept()
	payload, err := h.journal.PutPayload(h.t.Context(), []byte(yes))
	if err != nil {
		h.t.Fatal(err)
	}
	h.put(&events.JobObserved{JobID: "j-1", State: events.ClassInputRequired, Remote: "waiting", Call: events.Call{AsOf: h.s.Sequence, LeftAt: time.Now()}})
	h.put(&events.InputSubmitted{Who: "team-a", Payload: payload})
	h.take()
}

// leave leads the operation to its end, and asks for a cleanup.
func (h *house) leave(jobs ...string) {
	h.t.Helper()
	h.accept()
	h.put(&events.JobObserved{JobID: "j-1", State: events.ClassFailed, Remote: "failed", Call: events.Call{AsOf: h.s.Sequence, LeftAt: time.Now()}})
	h.put(&events.JobObserved{JobID: "j-2", Claim: events.ClaimOwn, State: events.ClassRunning, Call: events.Call{AsOf: h.s.Sequence}})
	for _, job := range append(jobs, "j-1")[:1] {
		h.put(&events.CleanupRequested{Who: "team-a", JobID: job, Claim: events.ClaimOwn})
	}
	h.take()
}

// until attends to the operation when it is next due.
func (h *house) until() []string {
	h.t.Helper()
	time.Sleep(time.Until(h.due().at))
	_, trail := h.attend()
	return trail
}

// An answer is passed on once, byte by byte; where the provider's answer is lost, a
// read says whether the job waits still, and the very same goes again.
func TestInput(t *testing.T) {
	bubble(t, "lost, and sent again", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.ask()
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown), says(200, `{"state": "waiting"}`))
		_, trail := h.attend()
		same(t, trail, "input.attempted", "POST /v1/jobs/j-1/input", "input.answered", "GET /v1/jobs/j-1", "job.observed")
		h.caller.then(says(200, `{"state": "running"}`), says(200, `{"state": "running"}`))
		same(t, h.until(), "input.attempted", "POST /v1/jobs/j-1/input", "input.answered", "GET /v1/jobs/j-1", "job.observed")
		first, second := h.caller.sent[0], h.caller.sent[2]
		token := func(r outbound.Request) string {
			i := slices.IndexFunc(r.Header, func(h outbound.Header) bool { return h.Name == "Idempotency-Key" })
			return r.Header[i].Value
		}
		if string(first.Body) != yes || string(second.Body) != yes || token(first) != token(second) || token(first) == "tok-1" || token(first) == "" {
			t.Errorf("%s %s\n%s %s", token(first), first.Body, token(second), second.Body)
		}
		if !first.SideEffect || first.Repeatable || first.Credential.Identity != "id-1" || !first.NotAfter.Equal(last[*events.InputAttempted](h).NotAfter.Add(-second.NotAfter.Sub(first.NotAfter))) {
			t.Errorf("%+v", first)
		}
		if s := h.state(); s.Phase != projections.PhaseObserving || s.InputStatus() != projections.CallDone || s.Inputs.Made != 2 {
			t.Errorf("%s, input %s, %+v", s.Phase, s.InputStatus(), s.Inputs)
		}
		// Another answer is named otherwise.
		if s := h.state(); inputToken(s, 1) != token(first) || inputToken(s, 2) == token(first) {
			t.Error("the token does not name the answer")
		}
	})
	bubble(t, "refused", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.ask()
		h.caller.then(says(409, `{"code": "not_waiting", "detail": "it goes on"}`), says(200, `{"state": "running"}`))
		h.attend()
		f := last[*events.InputAnswered](h)
		if s := h.state(); f.Outcome != events.CallRefused || f.Code != "not_waiting" || s.InputStatus() != projections.CallRefused || s.Input.Problem.Message != "it goes on" {
			t.Errorf("%+v, %s", f, s.InputStatus())
		}
	})
	bubble(t, "once", func(t *testing.T) {
		h := newHouse(t, changes{replace: []string{"{input_token}\"\n  repeat: safe", "{input_token}\"\n  repeat: once"}})
		h.ask()
		h.caller.then(breaks(outbound.Timeout, outbound.SentUnknown), says(200, `{"state": "waiting"}`))
		h.attend()
		for range 3 {
			h.caller.then(says(200, `{"state": "waiting"}`))
			same(t, h.until(), "GET /v1/jobs/j-1", "job.observed")
		}
		if s := h.state(); s.InputStatus() != projections.CallUnknown || !s.Input.Wanted {
			t.Errorf("%s %+v", s.InputStatus(), s.Input)
		}
	})
	bubble(t, "given up before it was made", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.ask()
		h.stored("input.attempted", func() { h.put(&events.InputAnswered{Attempt: 1, Outcome: events.CallPresumed}) })
		h.caller.then(says(200, `{"state": "running"}`))
		h.attend()
		for _, r := range h.caller.sent {
			if r.SideEffect {
				t.Errorf("sent %s %s", r.Method, r.URL)
			}
		}
		if f := last[*events.InputAnswered](h); f.Outcome != events.CallNotSent || f.Attempt != 1 {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "beaten by a cancel", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.ask()
		h.store.before = beat(h, "input.attempted", &events.CancelRequested{Who: "team-a"})
		h.caller.then(says(202, `{"state": "cancelled"}`), says(200, `{"state": "cancelled"}`))
		_, trail := h.attend()
		same(t, trail, "cancel.requested", "cancel.attempted", "POST /v1/jobs/j-1/cancel", "cancel.answered", "GET /v1/jobs/j-1", "job.observed")
		if s := h.state(); s.InputStatus() != projections.CallDropped {
			t.Error(s.InputStatus())
		}
	})
	bubble(t, "of which no request can be made", func(t *testing.T) {
		h := newHouse(t, changes{
			replace: []string{"input:\n  path: /v1/jobs/{job.id}/input\n", "input:\n  path: /v1/jobs/{job.id}/input/{input.choice}\n"},
			intent:  func(i *events.IntentRecorded) { i.Policy.MaxAttempts = 3 },
		})
		h.ask()
		for h.state(); h.s.InputStatus() == projections.CallWaiting && h.s.Facts < 30; h.state() {
			h.caller.script = nil
			h.caller.then(says(200, `{"state": "waiting"}`), says(200, `{"state": "waiting"}`))
			h.until()
		}
		f := last[*events.InputAnswered](h)
		if s := h.state(); f.Attempt != 0 || f.Class != events.ErrorInternal || f.Message == "" || s.InputStatus() != projections.CallNotSent || s.Inputs.Made != 0 {
			t.Errorf("%+v, %s", f, s.InputStatus())
		}
	})
	bubble(t, "that is gone", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.accept()
		h.put(&events.JobObserved{JobID: "j-1", State: events.ClassInputRequired, Call: events.Call{AsOf: h.s.Sequence, LeftAt: time.Now()}})
		h.put(&events.InputSubmitted{Who: "team-a", Payload: events.Sum([]byte("never stored"))})
		h.take()
		_, trail := h.attend()
		same(t, trail, "input.answered")
	})
}

// beat appends a fact just before a permit of this type is stored.
func beat(h *house, kind string, fact events.Fact) func(journal.Stream, journal.Outgoing) error {
	return func(_ journal.Stream, m journal.Outgoing) error {
		if kindOf(m) == kind {
			h.store.before = nil
			h.put(fact)
		}
		return nil
	}
}

// A cleanup of an operation that has ended, also of a stray job.
func TestCleanup(t *testing.T) {
	bubble(t, "lost, and sent again", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.leave()
		h.caller.then(breaks(outbound.Reset, outbound.SentUnknown))
		_, trail := h.attend()
		same(t, trail, "cleanup.attempted", "DELETE /v1/jobs/j-1", "cleanup.answered")
		h.caller.then(says(404, `{"code": "job_not_found"}`))
		same(t, h.until(), "cleanup.attempted", "DELETE /v1/jobs/j-1", "cleanup.answered")
		s := h.state()
		if s.Phase != projections.PhaseFailed || s.CleanupStatus() != projections.CallDone || !slices.Equal(s.Cleanup.Done, []string{"j-1"}) {
			t.Errorf("%s, cleanup %s %+v", s.Phase, s.CleanupStatus(), s.Cleanup)
		}
		if _, more := projections.Next(s); more {
			t.Error("it is looked at again")
		}
		if r := h.caller.sent[0]; !r.SideEffect || !r.Repeatable || r.Body != nil {
			t.Errorf("%+v", r)
		}
	})
	bubble(t, "of a stray job", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.leave("j-2")
		h.caller.then(says(204, ""))
		_, trail := h.attend()
		same(t, trail, "cleanup.attempted", "DELETE /v1/jobs/j-2", "cleanup.answered")
	})
	bubble(t, "once", func(t *testing.T) {
		h := newHouse(t, changes{replace: []string{"cleanup:\n  path: /v1/jobs/{job.id}\n  repeat: safe", "cleanup:\n  path: /v1/jobs/{job.id}\n  repeat: once"}})
		h.leave()
		h.caller.then(breaks(outbound.Timeout, outbound.SentUnknown))
		h.attend()
		s := h.state()
		if _, more := projections.Next(s); more || s.CleanupStatus() != projections.CallUnknown || s.Cleanup.Problem.Class != events.ErrorTimeout {
			t.Errorf("%s %+v", s.CleanupStatus(), s.Cleanup)
		}
	})
	bubble(t, "given up before it was made", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.leave()
		h.stored("cleanup.attempted", func() { h.put(&events.CleanupAnswered{Attempt: 1, Outcome: events.CallPresumed}) })
		_, trail := h.attend()
		same(t, trail, "cleanup.attempted", "cleanup.answered", "cleanup.answered")
		if f := last[*events.CleanupAnswered](h); f.Outcome != events.CallNotSent || len(h.caller.sent) != 0 {
			t.Errorf("%+v", f)
		}
	})
	bubble(t, "without a contract it is given up in the end", func(t *testing.T) {
		h := newHouse(t, changes{intent: func(i *events.IntentRecorded) { i.Policy.MaxAttempts = 3 }})
		h.leave()
		h.poller.cfg.Directory = gone{h}
		for range 3 {
			same(t, h.until(), "cleanup.answered")
		}
		s := h.state()
		if _, more := projections.Next(s); more || s.CleanupStatus() != projections.CallNotSent || s.Cleanup.Problem.Code != string(events.DeferNoContract) {
			t.Errorf("%s %+v", s.CleanupStatus(), s.Cleanup)
		}
	})
	bubble(t, "is recorded although the worker is stopped", func(t *testing.T) {
		h := newHouse(t, changes{})
		h.leave()
		ctx, stop := context.WithCancel(t.Context())
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			stop()
			return answered(r, 204, ""), nil
		})
		_ = h.poller.Attend(ctx, h.due())
		if f := last[*events.CleanupAnswered](h); f.Outcome != events.CallDone {
			t.Errorf("%+v", f)
		}
	})
}

// gone is a directory that has lost the account.
type gone struct{ *house }

func (gone) Account(string, string) (Account, error) {
	return Account{}, errors.New("there is no such account")
}

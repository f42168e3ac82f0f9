package poller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// uploads gives a contract with an upload that the create needs.
func uploads() changes {
	const begin = "create:\n  path: /v1/jobs\n  headers:\n"
	return changes{
		replace: []string{begin, `create:
  prepare:
    - name: upload
      repeat: safe
      path: /v1/files
      body: params
      read:
        done: status == 201
        rejected: status == 422
        values:
          file: body.?id
  path: /v1/jobs
  headers:
    X-Input: "{prepared.file}"
`},
		intent: func(i *events.IntentRecorded) { i.Promises.Prepares = 1 },
	}
}

// The upload has a permit of its own and comes first; what it gave goes into the
// create, whose bytes are fixed only then.
func TestPreparationComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, uploads())
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			if kind, open := openOf(h); kind != events.TypePrepareAttempted || !r.SideEffect || !open.NotAfter.Equal(r.NotAfter) {
				t.Errorf("uploads under %s %+v", kind, open)
			}
			return answered(r, 201, `{"id": "file-1"}`), nil
		}, func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			if got := header(r, "X-Input"); got != "file-1" {
				t.Errorf("the create names the file %q", got)
			}
			return answered(r, 201, accepts), nil
		})
		_, trail := h.attend()
		same(t, trail, "prepare.attempted", "POST /v1/files", "prepare.answered", "create.attempted", "POST /v1/jobs", "claim", "create.answered")
	})
}

func openOf(h *house) (events.Type, *projections.Try) {
	s := h.state()
	return s.OpenAttempt()
}

func header(r outbound.Request, name string) string {
	for _, h := range r.Header {
		if strings.EqualFold(h.Name, name) {
			return h.Value
		}
	}
	return ""
}

func failure(class events.ErrorClass, at time.Time) contract.Failure {
	return contract.Failure{Class: class, RetryAt: at}
}

// Whatever becomes of an upload, the create does not leave without it.
func TestPreparationFails(t *testing.T) {
	type script = func(context.Context, outbound.Request) (outbound.Answer, error)
	for name, c := range map[string]struct {
		first  script
		facts  string // of the first attendance
		second bool   // made again, and then everything is well
		ends   projections.Phase
	}{
		"not sent":            {breaks(outbound.Dial, outbound.NotSent), "not_sent", true, projections.PhaseAccepted},
		"answer lost":         {breaks(outbound.Reset, outbound.SentUnknown), "ambiguous", true, projections.PhaseAccepted},
		"done without a file": {says(201, `{"id": ""}`), "ambiguous", true, projections.PhaseAccepted},
		"a page":              {says(200, `<html>welcome</html>`), "ambiguous", true, projections.PhaseAccepted},
		"an error":            {says(500, `{"error": "no"}`), "ambiguous", true, projections.PhaseAccepted},
		"too often":           {says(429, `{"error": "slow down"}`), "ambiguous", true, projections.PhaseAccepted},
		"never":               {says(422, `{"error": "too long"}`), "rejected", false, projections.PhaseFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, uploads())
				h.caller.then(c.first)
				h.attend()
				if got := last[*events.PrepareAnswered](h); string(got.Outcome) != c.facts {
					t.Errorf("%+v", got)
				}
				if c.second {
					h.caller.then(says(201, `{"id": "file-2"}`), says(201, accepts))
					for len(h.caller.script) > 0 {
						time.Sleep(time.Until(h.due().at))
						h.attend()
					}
				}
				if s := h.state(); s.Phase != c.ends {
					t.Errorf("%s (%s)", s.Phase, s.Reason)
				}
				for _, r := range h.caller.sent[:len(h.caller.sent)-1] {
					if !strings.HasSuffix(r.URL, "/v1/files") {
						t.Errorf("%s left too early", r.URL)
					}
				}
			})
		})
	}
}

// A worker that was given up for dead before its upload left says so, and makes
// no upload that nobody waits for.
func TestPreparationGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, uploads())
		h.stored("prepare.attempted", func() {
			s := h.state()
			kind, open := s.OpenAttempt()
			h.put(workflow.Presume(s, kind, open, false))
		})
		h.attend()
		if len(h.caller.sent) != 0 {
			t.Fatalf("sent %v", h.caller.sent)
		}
		if got := last[*events.PrepareAnswered](h); got.Outcome != events.PrepareNotSent {
			t.Errorf("%+v", got)
		}
	})
}

// What one operation hears about being asked too often holds for its account:
// the next operation rests without a call, and that is in its history.
func TestThrottlingIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		s := h.state()
		begun := time.Now()
		throttled := outbound.Answer{Status: 429, SentAt: begun}
		h.poller.heard(s, throttled, failure(events.ErrorThrottled, time.Time{}))
		h.poller.heard(s, throttled, failure(events.ErrorThrottled, time.Time{})) // asked before the answer came: one complaint
		h.attend()
		if len(h.caller.sent) != 0 {
			t.Fatalf("sent %v", h.caller.sent)
		}
		d := last[*events.StepDeferred](h)
		if wait := d.Until.Sub(begun); d.Reason != events.DeferThrottled || wait < 900*time.Millisecond || wait > 2*time.Second {
			t.Errorf("%+v", d)
		}

		other := s
		other.Intent.Account = "second"
		if at := h.poller.throttled(other, begun); !at.IsZero() {
			t.Errorf("another account rests until %v", at)
		}

		// Complaints in a row grow; an answer takes one step back.
		waits := []time.Duration{}
		for range 5 {
			time.Sleep(time.Until(h.poller.paces["example/main"].until) + time.Millisecond)
			h.poller.heard(s, outbound.Answer{Status: 429, SentAt: time.Now()}, failure(events.ErrorThrottled, time.Time{}))
			waits = append(waits, h.poller.paces["example/main"].wait)
		}
		for i := 1; i < len(waits); i++ {
			if waits[i] < waits[i-1]*3/2 {
				t.Errorf("waits %v", waits)
			}
		}
		for range 6 {
			time.Sleep(10 * time.Minute)
			h.poller.heard(s, outbound.Answer{Status: 200, SentAt: time.Now()}, failure("", time.Time{}))
		}
		if len(h.poller.paces) != 0 {
			t.Errorf("still at %+v", h.poller.paces["example/main"])
		}

		// The provider's own word counts, no further than the longest wait.
		for _, c := range []struct{ says, want time.Duration }{{20 * time.Second, 20 * time.Second}, {time.Hour * 1000, s.Intent.Policy.PollMax}, {-time.Minute, 0}} {
			h.poller.paces = map[string]*pace{}
			now := time.Now()
			h.poller.heard(s, outbound.Answer{Status: 429, SentAt: now}, failure(events.ErrorThrottled, now.Add(c.says)))
			if got := h.poller.paces["example/main"].until.Sub(now); got < 0 || got != c.want && c.want > 0 {
				t.Errorf("told %v, rests %v", c.says, got)
			}
		}
	})
}

// Many that rest come back one after the other.
func TestThrottledComeBackApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		s := h.state()
		now := time.Now()
		h.poller.heard(s, outbound.Answer{Status: 429, SentAt: now}, failure(events.ErrorThrottled, now.Add(time.Minute)))
		seen := map[time.Duration]int{}
		for i := range 100 {
			s.Operation = fmt.Sprintf("op_%d", i)
			at := h.poller.throttled(s, now).Sub(now)
			if at < time.Minute || at > 2*time.Minute {
				t.Errorf("comes back after %v", at)
			}
			seen[at.Truncate(6*time.Second)]++
		}
		if len(seen) < 8 {
			t.Errorf("100 come back at %v", seen)
		}
	})
}

// Under a hold nothing leaves, and its end ends the rest.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hold workflow.Hold
		h := newHouse(t, changes{config: func(c *Config) {
			c.Hold = func(provider string) workflow.Hold {
				if provider != "example" {
					t.Errorf("asked about %q", provider)
				}
				return hold
			}
		}})
		hold = workflow.Hold{Scope: workflow.HoldCreates, Reason: events.DeferHold, Detail: "maintenance"}
		h.attend()
		if d := last[*events.StepDeferred](h); len(h.caller.sent) != 0 || !d.Creates || d.Reason != events.DeferHold || d.Detail != "maintenance" {
			t.Fatalf("%+v, sent %v", d, h.caller.sent)
		}
		if fact := workflow.Released(h.state(), time.Now(), hold); fact != nil {
			t.Errorf("released under the hold: %+v", fact)
		}
		hold = workflow.Hold{}
		h.put(workflow.Released(h.state(), time.Now(), hold))
		h.caller.then(says(201, accepts))
		h.attend()
		if s := h.state(); s.Phase != projections.PhaseAccepted {
			t.Errorf("%s (%s)", s.Phase, s.Because)
		}
	})
}

// Every call carries the operation's trace, and a span of its own.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{})
		h.caller.then(says(201, accepts))
		h.attend()
		time.Sleep(time.Minute)
		h.caller.then(says(200, `{"job_id": "j-1", "state": "running"}`))
		h.attend()
		trace := h.state().Trace
		spans := map[string]bool{}
		for _, r := range h.caller.sent {
			parts := strings.Split(header(r, "Traceparent"), "-")
			if len(parts) != 4 || parts[0] != "00" || parts[1] != trace || len(trace) != 32 || len(parts[2]) != 16 || parts[3] != "01" {
				t.Errorf("trace %s, sent %v", trace, parts)
			}
			spans[parts[2]] = true
		}
		if len(spans) != 2 {
			t.Errorf("spans %v", spans)
		}
	})
}

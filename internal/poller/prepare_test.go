package poller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
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

// rotated is a credential whose identity a test changes, and a provider with
// files that only the identity that uploaded them can name.
type rotated struct {
	t       *testing.T
	now     string
	owner   map[string]string // identities by file
	creates int
}

func rotating(h *house) *rotated {
	p := &rotated{t: h.t, now: "id-1", owner: map[string]string{}}
	h.caller.identity = func() (string, error) { return p.now, nil }
	return p
}

func (p *rotated) upload(_ context.Context, r outbound.Request) (outbound.Answer, error) {
	if r.Credential.Identity != p.now {
		return outbound.Answer{}, &outbound.Failure{Class: outbound.CredentialChanged, Sent: outbound.NotSent, Err: errors.New("rotated")}
	}
	id := fmt.Sprintf("file-%d", len(p.owner)+1)
	p.owner[id] = p.now
	return answered(r, 201, fmt.Sprintf(`{"id": %q}`, id)), nil
}

func (p *rotated) create(_ context.Context, r outbound.Request) (outbound.Answer, error) {
	if r.Credential.Identity != p.now {
		return outbound.Answer{}, &outbound.Failure{Class: outbound.CredentialChanged, Sent: outbound.NotSent, Err: errors.New("rotated")}
	}
	p.creates++
	if file := header(r, "X-Input"); p.owner[file] != p.now {
		p.t.Errorf("a create as %s names %s of %q", p.now, file, p.owner[file])
	}
	return answered(r, 201, accepts), nil
}

// answers what comes, an upload or a create.
func (p *rotated) any(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
	if strings.HasSuffix(r.URL, "/v1/files") {
		return p.upload(ctx, r)
	}
	return p.create(ctx, r)
}

// What one credential uploaded is not there for another: the upload is made
// again, whenever the change comes, and the create names the new one.
func TestPreparedAsAnother(t *testing.T) {
	again := []string{"prepare.attempted", "POST /v1/files", "prepare.answered"}
	created := []string{"create.attempted", "POST /v1/jobs", "claim", "create.answered"}
	for name, c := range map[string]struct {
		at    string // the fact after which the credential changes
		trail []string
	}{
		"uploaded":           {"prepare.answered", slices.Concat(again, again, created)},
		"before it left":     {"prepare.attempted", slices.Concat(again, again, created)},
		"before the create":  {"create.attempted", slices.Concat(again, []string{"create.attempted", "POST /v1/jobs", "create.answered"}, again, created)},
		"not before the job": {"create.answered", slices.Concat(again, created)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, uploads())
				p := rotating(h)
				h.stored(c.at, func() { p.now = "id-2" })
				h.caller.then(p.any, p.any, p.any, p.any, p.any, p.any)
				var trail []string
				for s := h.state(); s.Phase == projections.PhaseCreatePending; s = h.state() {
					time.Sleep(time.Until(h.due().at))
					_, more := h.attend()
					trail = append(trail, more...)
				}
				same(t, trail, c.trail...)
				if s := h.state(); s.Phase != projections.PhaseAccepted || p.creates != 1 {
					t.Errorf("%s (%s) after %d creates", s.Phase, s.Reason, p.creates)
				}
			})
		})
	}
}

// A worker that dies at any step of preparing again leaves what the next one
// goes on from, as whoever the credential is by then.
func TestPreparedAsAnotherCrash(t *testing.T) {
	type crash struct {
		kind string // of the fact
		nth  int
		done bool // the fact is stored
	}
	for _, c := range []crash{
		{"prepare.attempted", 2, false},
		{"prepare.attempted", 2, true},
		{"prepare.answered", 2, false},
		{"prepare.answered", 2, true},
		{"create.attempted", 1, false},
		{"create.attempted", 1, true},
	} {
		for _, then := range []string{"id-2", "id-1", "id-3"} {
			t.Run(fmt.Sprintf("%s %d stored %v, then %s", c.kind, c.nth, c.done, then), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHouse(t, changes{replace: uploads().replace, intent: uploads().intent, config: func(c *Config) { c.Record = time.Second }})
					p := rotating(h)
					h.caller.then(p.any, p.any, p.any, p.any, p.any, p.any, p.any, p.any)
					ctx, die := context.WithCancel(t.Context())
					n, dead := 0, false
					h.store.before = func(_ journal.Stream, m journal.Outgoing) error {
						if kindOf(m) == c.kind {
							n++
						}
						if n == c.nth && !c.done {
							dead = true
						}
						if dead {
							die()
							return journal.ErrUnanswered
						}
						return nil
					}
					h.store.after = func(_ journal.Stream, m journal.Outgoing) {
						if kindOf(m) == "prepare.answered" && p.now == "id-1" {
							p.now = "id-2"
						}
						if n == c.nth && kindOf(m) == c.kind {
							dead = true
							die()
						}
					}
					l := h.due()
					_ = h.poller.Attend(ctx, l) // as far as it comes
					if !dead {
						t.Fatal("the step never came")
					}
					h.store.before, h.store.after = nil, nil
					p.now = then
					for s := h.state(); s.Phase == projections.PhaseCreatePending; s = h.state() {
						time.Sleep(time.Until(h.due().at))
						h.attend()
					}
					// Of a create that may have left, the look-ups and the token tell more.
					if s := h.state(); (c.kind != "create.attempted" || !c.done) && (s.Phase != projections.PhaseAccepted || p.creates != 1) {
						t.Errorf("%s (%s) after %d creates", s.Phase, s.Reason, p.creates)
					}
				})
			})
		}
	}
}

// A credential that changes all the time is not answered with uploads without
// end: they become rarer, and the create deadline ends them.
func TestPreparingAgainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, changes{replace: uploads().replace, intent: func(i *events.IntentRecorded) {
			i.Promises.Prepares, i.Deadlines.Create = 1, time.Hour
		}})
		p := rotating(h)
		n := 1
		h.store.after = func(_ journal.Stream, m journal.Outgoing) {
			if kindOf(m) == "prepare.answered" {
				n++
				p.now = fmt.Sprintf("id-%d", n)
			}
		}
		begun := time.Now()
		for s := h.state(); s.Phase == projections.PhaseCreatePending; s = h.state() {
			h.caller.then(p.any, p.any)
			time.Sleep(time.Until(h.due().at))
			h.attend()
		}
		s := h.state()
		took := time.Since(begun)
		if s.Phase != projections.PhaseFailed || s.Reason != projections.ReasonNeverSent || took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("%s (%s) after %s", s.Phase, s.Reason, took)
		}
		if most := 2 + 10 + int(time.Hour/(s.Intent.Policy.BackoffMax*9/10)); p.creates != 0 || len(p.owner) < 5 || len(p.owner) > most {
			t.Errorf("%d uploads, at most %d, and %d creates", len(p.owner), most, p.creates)
		}
		if d := last[*events.StepDeferred](h); d.Reason != events.DeferTargetChanged {
			t.Errorf("%+v", d)
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
		s := h.state()
		trace := s.TraceID()
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

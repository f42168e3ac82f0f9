package projections

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/events"
)

// Whatever comes of each of its calls, and however late their workers speak, an answer
// or a cleanup that could not be sent as often as it may is not due again before
// somebody asks again: the checker counts, and the number of calls is bounded.
func TestGivenUpStaysGivenUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tries := rapid.Uint64Range(1, 4).Draw(t, "attempts")
		cleans := rapid.Bool().Draw(t, "cleanup")
		intent := standard()
		intent.Policy.MaxAttempts = tries
		intent.Offers = events.Offers{Input: true, RepeatInput: true, Cleanup: true}
		intent.Promises.RepeatCleanup = true
		checks := &checker{t: t}
		l := newLedger()
		l.check = checks.step
		now := epoch
		l.fold(now, intent)
		l.fold(now, &events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: now.Add(time.Minute), Timeout: time.Second}})
		l.fold(now, &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAccepted, JobID: "j1", Claim: events.ClaimOwn})
		read := func(class events.Class) {
			l.fold(now, &events.JobObserved{JobID: "j1", State: class, Call: events.Call{AsOf: l.seq}})
		}
		asked, tried, due := &l.s.Input.Asked, &l.s.Inputs, func() bool { return l.s.Input.Due }
		if cleans {
			asked, tried, due = &l.s.Cleanup.Asked, &l.s.Cleanups, func() bool { return l.s.Cleanup.Due }
			read(events.ClassFailed)
			l.fold(now, &events.CleanupRequested{Who: "alice", JobID: "j1", Claim: events.ClaimOwn})
		} else {
			read(events.ClassInputRequired)
			l.fold(now, &events.InputSubmitted{Who: "alice", Payload: events.Sum([]byte("yes"))})
		}
		answer := func(attempt uint64, outcome events.CallOutcome, class events.ErrorClass) {
			call := events.Call{AsOf: l.seq, Class: class}
			if cleans {
				l.fold(now, &events.CleanupAnswered{Attempt: attempt, Outcome: outcome, Call: call})
				return
			}
			l.fold(now, &events.InputAnswered{Attempt: attempt, Outcome: outcome, Call: call})
		}
		if asked.Number != 1 || !due() {
			t.Fatalf("asked for, and not due: %+v", asked)
		}
		calls := uint64(0)
		for range 200 {
			now = now.Add(time.Minute)
			if open := tried.Open(); open != nil {
				switch rapid.IntRange(0, 5).Draw(t, "comes to") {
				case 0, 1, 2:
					answer(open.Number, events.CallNotSent, events.ErrorTransport)
				case 3:
					answer(open.Number, events.CallRefused, events.ErrorThrottled)
				case 4:
					answer(open.Number, events.CallAmbiguous, events.ErrorTimeout)
				case 5:
					answer(open.Number, events.CallPresumed, events.ErrorUnanswered)
				}
				continue
			}
			if n := len(tried.List); n > 0 && rapid.IntRange(0, 3).Draw(t, "late") == 0 {
				answer(tried.List[rapid.IntRange(0, n-1).Draw(t, "of")].Number, events.CallAmbiguous, events.ErrorTimeout)
			}
			if !cleans {
				read(events.ClassInputRequired)
			}
			if !due() {
				continue
			}
			attempt := events.Attempt{Number: tried.Made + 1, NotAfter: now.Add(time.Second), Timeout: time.Second}
			var permit events.Fact = &events.InputAttempted{Attempt: attempt}
			if cleans {
				permit = &events.CleanupAttempted{Attempt: attempt}
			}
			if r := l.fold(now, permit); r.Verdict != Applied {
				t.Fatalf("it is due and its permit is %s: %s", r.Verdict, r.Reason)
			}
			calls++
		}
		// Each that left begins a row anew, and that many may leave.
		if due() || calls > tries*tries+tries {
			t.Fatalf("of %d tries it made %d calls, and more are due: %t", tries, calls, due())
		}
	})
}

package projector

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/workflow"
)

// The end of a hold is what ends the rest of the operations under it, also where
// nobody was there when it ended.
func TestRelease(t *testing.T) {
	for _, c := range []struct {
		name    string
		rest    events.StepDeferred
		hold    workflow.HoldScope
		becomes workflow.HoldScope
		ends    bool
	}{
		{"a hold of creates", events.StepDeferred{Reason: events.DeferHold, Creates: true}, workflow.HoldCreates, workflow.HoldNone, true},
		{"a hold of all", events.StepDeferred{Reason: events.DeferHold}, workflow.HoldAll, workflow.HoldNone, true},
		{"a hold of all that becomes one of creates", events.StepDeferred{Reason: events.DeferHold}, workflow.HoldAll, workflow.HoldCreates, true},
		{"a hold of creates that becomes one of all", events.StepDeferred{Reason: events.DeferHold, Creates: true}, workflow.HoldCreates, workflow.HoldAll, false},
		{"too little room", events.StepDeferred{Reason: events.DeferStorageLow, Creates: true}, workflow.HoldCreates, workflow.HoldNone, true},
		{"a busy provider", events.StepDeferred{Reason: events.DeferThrottled}, workflow.HoldCreates, workflow.HoldNone, false},
	} {
		for _, restarted := range []bool{false, true} {
			bubble(t, c.name+map[bool]string{true: ", after a restart"}[restarted], func(t *testing.T) {
				h := newHall(t)
				var scope atomic.Value
				scope.Store(c.hold)
				started := func() func() error {
					return h.running(h.projector(func(f *Config) {
						f.Hold = func(string) workflow.Hold {
							return workflow.Hold{Scope: scope.Load().(workflow.HoldScope), Reason: c.rest.Reason}
						}
					}), []int{journal.Partition("op_0")}, func() {})
				}
				stop := started()
				h.create("op_0")
				synctest.Wait()
				rest := c.rest
				rest.Until = time.Now().Add(time.Hour)
				h.put("op_0", &rest)
				time.Sleep(10 * time.Second)
				resting := h.state("op_0")
				if wake, ok := h.pending("op_0"); !ok || !wake.At.Equal(rest.Until) {
					t.Fatalf("under the hold: %+v, because %s", wake, resting.Because)
				}
				if restarted {
					if err := stop(); err != nil {
						t.Fatal(err)
					}
					scope.Store(c.becomes)
					stop = started()
				}
				scope.Store(c.becomes)
				time.Sleep(2 * releaseEvery)
				synctest.Wait()
				s := h.state("op_0")
				wake, ok := h.pending("op_0")
				if ended := s.Facts > resting.Facts; ended != c.ends || !ok || wake.At.After(time.Now()) == c.ends {
					t.Errorf("%d facts after %d, woken at %v, now %v", s.Facts, resting.Facts, wake.At, time.Now())
				}
				time.Sleep(time.Minute)
				if again := h.state("op_0"); again.Facts != s.Facts {
					t.Errorf("%d facts after %d", again.Facts, s.Facts)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

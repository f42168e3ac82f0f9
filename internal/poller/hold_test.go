package poller

import (
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/workflow"
)

// A hold that is placed after a create was decided, and before its permit is
// stored, stops it.
func TestHoldPlacedBeforeThePermit(t *testing.T) {
	for _, scope := range []workflow.HoldScope{workflow.HoldCreates, workflow.HoldAll} {
		t.Run(string(scope), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				h := newHouse(t, changes{config: func(c *Config) {
					c.Hold = func(string) workflow.Hold {
						if asked++; asked == 1 {
							return workflow.Hold{}
						}
						return workflow.Hold{Scope: scope, Reason: events.DeferHold, Detail: "just now"}
					}
				}})
				h.attend()
				if len(h.caller.sent) != 0 {
					t.Errorf("%d calls left", len(h.caller.sent))
				}
				s := h.state()
				if _, open := s.OpenAttempt(); open != nil || len(s.Creates.List) != 0 {
					t.Errorf("a permit was stored: %+v", s.Creates)
				}
				if d := last[*events.StepDeferred](h); d.Reason != events.DeferHold || d.Detail != "just now" {
					t.Errorf("deferred as %+v", d)
				}
			})
		})
	}
}

func TestHoldRests(t *testing.T) {
	creates := []events.Fact{&events.CreateAttempted{}, &events.PrepareAttempted{}}
	others := []events.Fact{&events.CancelAttempted{}, &events.ResultAttempted{}}
	for scope, want := range map[workflow.HoldScope][2]bool{
		workflow.HoldNone: {false, false}, workflow.HoldCreates: {true, false}, workflow.HoldAll: {true, true},
	} {
		for i, list := range [][]events.Fact{creates, others} {
			for _, f := range list {
				if got := (workflow.Hold{Scope: scope}).Rests(f); got != want[i] {
					t.Errorf("%s under %q rests: %v", f.Type(), scope, got)
				}
			}
		}
	}
}

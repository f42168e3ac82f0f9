package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/conformance"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, late := range map[string]func(string) time.Duration{
		"on time": nil,
		"late":    func(string) time.Duration { return journal.ScheduleFloor },
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(*testing.T) journal.Store {
				return memory.New(memory.Config{Now: time.Now, Late: late})
			})
		})
	}
}

// Without faults the wrapper is the store it wraps.
func TestFaultlessWrapperConforms(t *testing.T) {
	conformance.Run(t, func(*testing.T) journal.Store {
		inner := memory.New(memory.Config{Now: time.Now})
		return memory.Inject(inner, func(memory.Call) memory.Fault { return memory.Fault{} })
	})
}

func TestBatchConformance(t *testing.T) {
	conformance.RunBatches(t, func(*testing.T) journal.Store { return memory.New(memory.Config{Now: time.Now}) })
	conformance.RunBatches(t, func(*testing.T) journal.Store {
		return memory.Inject(memory.New(memory.Config{Now: time.Now}), func(memory.Call) memory.Fault { return memory.Fault{} })
	})
}

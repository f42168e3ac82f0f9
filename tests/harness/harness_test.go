package harness_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPlainOperationAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "running", "succeeded")})
		op := h.Submit("plain", "example", `{"n": 1}`)
		h.Wait(op.ID, time.Minute, "observing")
		h.Stop()
		time.Sleep(10 * time.Minute)
		h.Start()
		h.Wait(op.ID, 5*time.Minute, "succeeded")
		if n := len(h.Sim.Jobs()); n != 1 {
			t.Errorf("%d jobs, want 1", n)
		}
	})
}

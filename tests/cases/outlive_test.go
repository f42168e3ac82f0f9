package cases_test

import (
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// An operation is followed to its end by the contract it was recorded with,
// also when that contract's file is gone after a restart.
func TestOperationOutlivesItsContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, err := fs.ReadFile(contracts.FS, "example.yaml")
		if err != nil {
			t.Fatal(err)
		}
		own := strings.Replace(string(text), "name: example\n", "name: gone\nbase_url: http://provider.test/gone\n#", 1)
		own = strings.Replace(own, "\nbase_url: http://127.0.0.1:8787\n", "\n", 1)
		own = strings.Replace(own, "credential:\n  header: Authorization\n  format: Bearer {secret}\n", "credential: none\n", 1)
		h := harness.New(t, harness.Options{Contracts: map[string]string{"gone.yaml": own}})
		m := h.Mount(simulator.Example, "gone", simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "running", "succeeded")})
		m.Configure(simulator.Options{Plan: simulator.Steps(time.Minute, "queued", "running", "succeeded")})
		op := h.Submit("k", "gone", `{"n": 1}`)
		h.Wait(op.ID, 10*time.Minute, "observing")
		h.Stop()
		h.SetContracts(nil)
		h.Start()
		h.Wait(op.ID, 10*time.Minute, "succeeded")
		if n := len(h.Sim.Jobs()); n != 1 {
			t.Errorf("%d jobs, want 1", n)
		}
	})
}

// After a death in the middle of a create that nothing can tell of, the
// operation asks as soon as the process is proved gone, and not an hour later
// at the create deadline.
func TestProvedDeathAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		gate := simulator.NewGate()
		defer gate.Release()
		h.Mount(simulator.ExampleAsk, "example-ask", simulator.Options{},
			simulator.On(simulator.Create, simulator.Nth(1), simulator.HoldAfter{Gate: gate}))
		op := h.Submit("k", "example-ask", `{"n": 1}`)
		if !gate.WaitArrived(1, t.Context().Done()) {
			t.Fatal("no create arrived")
		}
		h.Kill()
		h.Start()
		got := h.Wait(op.ID, 10*time.Second, "quarantined")
		if got.Quarantine != "unknown" {
			t.Errorf("quarantined as %q, want unknown\n%s", got.Quarantine, h.Story(op.ID))
		}
	})
}

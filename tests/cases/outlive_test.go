package cases_test

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/journal"
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
		// Nothing that is said of it denies that the request may have arrived.
		if p := got.Problem; p == nil || p.Class != "unanswered" || !strings.HasSuffix(p.Message, ", and the request may have arrived") {
			t.Errorf("the problem is %+v", p)
		}
	})
}

// An answer in hand is stored however long the store takes to come back: it is
// the only word there is of a job under ask_after_loss.
func TestAnswerOutlastsStoreTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var from, until time.Time
		refused := 0
		h := harness.New(t, harness.Options{Through: func(s journal.Store) journal.Store {
			return hookedStore{&hooks{publish: func(_ context.Context, stream journal.Stream, m journal.Outgoing) error {
				if kind := m.Header["ce-type"]; stream != journal.Ledger || len(kind) != 1 || !strings.Contains(kind[0], "create.answered") {
					return nil
				}
				if from.IsZero() {
					from = time.Now()
					until = from.Add(45 * time.Second)
				}
				if time.Now().Before(until) {
					refused++
					return journal.ErrUnanswered
				}
				return nil
			}}, s}
		}})
		h.Mount(simulator.ExampleAsk, "example-ask", simulator.Options{})
		op := h.Submit("k", "example-ask", `{"n": 1}`)
		h.Wait(op.ID, 10*time.Minute, "succeeded")
		if refused == 0 {
			t.Error("the store was never in trouble")
		}
		if n := len(h.Sim.Jobs()); n != 1 {
			t.Errorf("%d jobs, want 1", n)
		}
	})
}

// A job that says the same at every poll does not fill the disk.
func TestPollsThatSayNothingNewAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		payloads := 0
		h := harness.New(t, harness.Options{Through: func(s journal.Store) journal.Store {
			return hookedStore{&hooks{stored: func(stream journal.Stream, _ journal.Outgoing) error {
				if stream == journal.Payloads {
					payloads++
				}
				return nil
			}}, s}
		}})
		var rules []simulator.Rule
		for n := range 100 { // another body each time
			rules = append(rules, simulator.On(simulator.Status, simulator.Nth(n+1), simulator.HugeMessage(20_000+n)))
		}
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(2*time.Minute, "running", "succeeded")}, rules...)
		op := h.Submit("k", "example", `{"n": 1}`)
		h.Wait(op.ID, time.Minute, "observing")
		before := payloads
		time.Sleep(90 * time.Second)
		if reads := h.Sim.Count(simulator.Filter{Call: simulator.Status}); reads < 10 {
			t.Fatalf("%d status reads, want many", reads)
		}
		if payloads > before+1 {
			t.Errorf("%d bodies were kept that say nothing new", payloads-before)
		}
		h.Wait(op.ID, 10*time.Minute, "succeeded")
	})
}

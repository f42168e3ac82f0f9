package cases_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC03TokenBelongsToTheOperation(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault simulator.Fault
	}{
		{"reset before the provider looks", simulator.NeverReceive{Reset: true}},
		{"reset after the job was stored", simulator.DropAnswer{Reset: true}},
	} {
		t.Run("token, "+c.name, func(t *testing.T) {
			afterKill(t, simulator.Example, "example", c.fault, func(r simulator.Request) string { return r.Header.Get("Idempotency-Key") })
		})
		// Here the reference derived from the token takes its place.
		t.Run("reference, "+c.name, func(t *testing.T) {
			afterKill(t, simulator.ExampleLookup, "example-lookup", c.fault, func(r simulator.Request) string { return r.Token })
		})
	}
}

// afterKill runs two operations whose first create is reset, with a kill before
// the second attempt.
func afterKill(t *testing.T, dialect simulator.Dialect, name string, fault simulator.Fault, tokenOf func(simulator.Request) string) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(dialect, name, simulator.Options{}, simulator.On(simulator.Create, simulator.NthOfToken(1), simulator.DelayBefore(5*time.Second), fault))
		ids := []string{
			h.Submit("first", name, params("first")).ID,
			h.Submit("second", name, params("second")).ID,
		}
		time.Sleep(time.Second)
		// While the first attempts are under way the ledger has what they carry.
		stored := map[string]string{}
		for _, id := range ids {
			intent, at := recorded(t, h, id)
			if attempt := facts(h, id, "create.attempted"); len(attempt) != 1 || attempt[0].Time.Before(at) {
				t.Errorf("the attempt %+v is older than the token, of %s", attempt, at)
			}
			stored[intent.Token], stored[intent.ClientReference] = id, id
		}
		first := h.Sim.Requests(simulator.Filter{Call: simulator.Create})
		if len(first) != 2 {
			t.Fatalf("%d creates, want 2", len(first))
		}
		for _, r := range first {
			if stored[tokenOf(r)] == "" {
				t.Errorf("a create left with token %q, which is not in the ledger", tokenOf(r))
			}
		}
		if tokenOf(first[0]) == tokenOf(first[1]) {
			t.Errorf("two operations share the token %s", tokenOf(first[0]))
		}
		for _, id := range ids {
			h.Wait(id, 10*time.Second, "create_unknown")
		}
		h.Kill()
		if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 2 {
			t.Fatalf("%d creates before the kill, want 2", n)
		}
		time.Sleep(3 * time.Second)
		h.Start()
		for _, id := range ids {
			h.Wait(id, 10*time.Minute, "succeeded")
		}

		// Every create and every look-up carried one of the two, byte for byte.
		seen := map[string]int{}
		for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.Create}) {
			seen[tokenOf(r)]++
		}
		for _, r := range h.Sim.Requests(simulator.Filter{Call: simulator.List}) {
			q, err := url.ParseQuery(r.Query)
			if err != nil {
				t.Fatal(err)
			}
			seen[q.Get("client_reference")]++
		}
		if len(seen) != 2 || seen[tokenOf(first[0])] < 2 || seen[tokenOf(first[1])] < 2 {
			t.Errorf("tokens and their use %v; the first attempts carried %q and %q", seen, tokenOf(first[0]), tokenOf(first[1]))
		}
		jobs(t, h, 2)
		keptPromises(t, h, ids...)
	})
}

// recorded is the operation's intent as the ledger has it, and since when.
func recorded(t *testing.T, h *harness.House, id string) (*events.IntentRecorded, time.Time) {
	t.Helper()
	lines, err := h.Journal.Timeline(t.Context(), id)
	if err != nil || len(lines) == 0 {
		t.Fatalf("the ledger of %s has %d facts, error %v", id, len(lines), err)
	}
	intent, ok := lines[0].Entry.Event.Fact.(*events.IntentRecorded)
	if !ok {
		t.Fatalf("the first fact of %s is a %T", id, lines[0].Entry.Event.Fact)
	}
	return intent, lines[0].Entry.Time
}

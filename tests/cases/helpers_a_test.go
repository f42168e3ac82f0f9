package cases_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// inHouse runs a case against an installation of its own, in fake time.
func inHouse(t *testing.T, o harness.Options, run func(t *testing.T, h *harness.House)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Correlate = true
		run(t, harness.New(t, o))
	})
}

// params are parameters that name the operation to the simulator.
func params(name string) string { return fmt.Sprintf(`{"correlation": %q, "n": 1}`, name) }

// keptPromises checks what holds in every case: one operation never leads to
// two provider jobs, nor to two creates or cancels at once, and each operation
// that was answered as accepted is there with the fact that accepted it.
func keptPromises(t *testing.T, h *harness.House, ids ...string) {
	t.Helper()
	if len(ids) == 0 {
		t.Fatal("no operation was accepted")
	}
	if d := h.Sim.Duplicates(); len(d) > 0 {
		t.Errorf("operations with more than one job: %v", d)
	}
	if n := h.Sim.MaxAtOnceAny(); n > 1 {
		t.Errorf("%d calls with side effects of one operation at once", n)
	}
	for _, id := range ids {
		if _, err := h.Client.Get(t.Context(), id); err != nil {
			t.Errorf("operation %s is lost: %v", id, err)
		}
		if line := h.Timeline(id); len(line) == 0 || factName(line[0].Type) != "intent.recorded" {
			t.Errorf("the history of %s does not begin with its intent", id)
		}
	}
}

// jobs checks how many jobs all providers made.
func jobs(t *testing.T, h *harness.House, want int) []simulator.Job {
	t.Helper()
	list := h.Sim.Jobs()
	if len(list) != want {
		t.Errorf("%d jobs at the provider, want %d", len(list), want)
	}
	return list
}

// factName is a fact's name without prefix and version.
func factName(factType string) string {
	name := strings.TrimPrefix(factType, "dev.counterfoil.")
	name, _, _ = strings.Cut(name, ".v")
	return name
}

// facts are the entries of one kind.
func facts(h *harness.House, id, name string) []client.Entry {
	var list []client.Entry
	for _, e := range h.Timeline(id) {
		if factName(e.Type) == name {
			list = append(list, e)
		}
	}
	return list
}

// inOrder checks that the facts happened in this order, others between them
// allowed. Each is a kind, or kind/outcome.
func inOrder(t *testing.T, h *harness.House, id string, want ...string) {
	t.Helper()
	i := 0
	for _, e := range h.Timeline(id) {
		if i == len(want) {
			break
		}
		if name := factName(e.Type); want[i] == name || want[i] == name+"/"+e.Fields["outcome"] {
			i++
		}
	}
	if i < len(want) {
		t.Errorf("no %s in its place in the history:\n%s", want[i], h.Story(id))
	}
}

// never checks that the operation was in none of these states.
func never(t *testing.T, h *harness.House, id string, states ...string) {
	t.Helper()
	for _, e := range h.Timeline(id) {
		for _, state := range states {
			if e.To == state {
				t.Errorf("%s was %s:\n%s", id, state, h.Story(id))
			}
		}
	}
}

// was checks that the operation was in the state at some time.
func was(t *testing.T, h *harness.House, id, state string) {
	t.Helper()
	for _, e := range h.Timeline(id) {
		if e.To == state {
			return
		}
	}
	t.Errorf("%s was never %s:\n%s", id, state, h.Story(id))
}

// builtin is a built-in contract's text under another name, with parts replaced;
// each must be there once.
func builtin(t *testing.T, from, name string, replace ...string) string {
	t.Helper()
	raw, err := contracts.FS.ReadFile(from + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i, pairs := 0, append([]string{"name: " + from + "\n", "name: " + name + "\n"}, replace...); i < len(pairs); i += 2 {
		if n := strings.Count(text, pairs[i]); n != 1 {
			t.Fatalf("%q is %d times in contract %s, want once", pairs[i], n, from)
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// post makes one POST to the service.
func post(t *testing.T, h *harness.House, path, key, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://counterfoil.test"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.Bearer)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	answer, err := h.HTTP.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// gaps are the waits between the arrivals of the requests.
func gaps(list []simulator.Request) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(list); i++ {
		out = append(out, list[i].At.Sub(list[i-1].At))
	}
	return out
}

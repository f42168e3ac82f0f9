package cases_test

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// A hundred operations that try one again, asked for at the same moment, are all recorded
// and linked, and a wish to cancel that one gets through among them.
func TestManyRetriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "running"}}}})
		old := h.Submit("old", "example", `{"n":1}`)
		h.Wait(old.ID, time.Minute, "observing")
		const many = 100
		var group sync.WaitGroup
		var mu sync.Mutex
		made := map[string]bool{} // guarded by mu
		ask := func(what, path, key, body string) {
			answer := post(t, h, path, key, body)
			defer func() { _ = answer.Body.Close() }() // only read
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != 202 {
				t.Errorf("%s: %v %s %.300s", what, err, answer.Status, text)
			}
			var shown struct {
				ID      string `json:"id"`
				RetryOf string `json:"retry_of"`
			}
			mu.Lock()
			defer mu.Unlock()
			if json.Unmarshal(text, &shown) == nil && shown.RetryOf == old.ID {
				made[shown.ID] = true
			}
		}
		for i := range many {
			group.Go(func() {
				ask(fmt.Sprint("retry ", i), "/v1/operations", fmt.Sprint("retry-", i), fmt.Sprintf(`{"provider":"example","params":{"n":%d},"retry_of":%q}`, i, old.ID))
			})
			if i == many/4 {
				group.Go(func() { ask("cancel", "/v1/operations/"+old.ID+"/cancel", "c", `{"why":"enough"}`) })
			}
		}
		group.Wait()
		want(t, "operations that name it", len(made), many)
		if n := len(facts(h, old.ID, "operation.linked")); n > many/2 {
			t.Errorf("%d facts link them: each has a write of its own", n)
		}
	})
}

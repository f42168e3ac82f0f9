package cases_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// A principal has no more operations under way than its quota says, before and after a
// restart, whether the projector tells ingest or ingest follows the history as it does
// where it is a process of its own; and the quota is what the credentials file says now.
func TestQuotaOfOpenOperations(t *testing.T) {
	for _, woken := range []bool{false, true} {
		t.Run(fmt.Sprint("apart=", woken), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quota := func(n int) string {
					return filed("example", []string{"default: {credential: env:KEY}"}, fmt.Sprintf("quotas:\n  \"*\": {open_operations: %d}\n", n))
				}
				h := harness.New(t, harness.Options{Credentials: quota(2), Secrets: map[string]string{"KEY": "k"}, Woken: woken})
				open(h, simulator.Example, "example", simulator.Options{Plan: simulator.Plan{Steps: []simulator.Step{{State: "queued"}, {After: time.Hour, State: "succeeded"}}}})
				refused := func(when, key string) {
					t.Helper()
					answer := post(t, h, "/v1/operations", key, `{"provider":"example","params":{"n":1}}`)
					defer func() { _ = answer.Body.Close() }() // only read
					text, err := io.ReadAll(answer.Body)
					if err != nil || answer.StatusCode != 429 || !strings.Contains(string(text), `"code":"too_many_open"`) || answer.Header.Get("Retry-After") != "10" {
						t.Errorf("%s: %v %s %s", when, err, answer.Status, text)
					}
				}
				first := h.Submit("k1", "example", `{"n":1}`)
				second := h.Submit("k2", "example", `{"n":1}`)
				time.Sleep(time.Minute)
				refused("two are open", "k3")
				if again := h.Submit("k1", "example", `{"n":1}`); again.ID != first.ID {
					t.Errorf("a replay gave %s", again.ID)
				}
				h.Stop()
				h.Start()
				time.Sleep(time.Minute)
				refused("after a restart", "k3")
				h.SetCredentials(quota(3))
				time.Sleep(2 * time.Second)
				third := h.Submit("k3", "example", `{"n":1}`)
				time.Sleep(time.Minute)
				refused("three are open", "k4")
				for _, id := range []string{first.ID, second.ID, third.ID} {
					await(h, id, 3*time.Hour, time.Minute)
				}
				time.Sleep(time.Minute)
				h.Submit("k4", "example", `{"n":1}`)
			})
		})
	}
}

// What a principal may spend in a day is counted from the ledger, also after a restart, and by
// what the credentials file says of the principal and, where it says nothing, of all.
func TestQuotaOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{
			NoPoller:    true,
			Credentials: filed("example", []string{"default: {credential: env:KEY}"}, "quotas:\n  \"*\": {cost_per_day: {USD: 99, EUR: 0}}\n  tester: {cost_per_day: {USD: \"1.25\"}}\n"), Secrets: map[string]string{"KEY": "k"},
		})
		submit := func(key string, copies int) (status int, text string) {
			t.Helper()
			answer := post(t, h, "/v1/operations", key, fmt.Sprintf(`{"provider":"example","params":{"copies":%d}}`, copies))
			defer func() { _ = answer.Body.Close() }() // only read
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, string(body)
		}
		if status, text := submit("k", 3); status != 202 {
			t.Fatalf("%d %s", status, text)
		}
		for range 2 { // the second time after a restart
			if status, text := submit("other", 3); status != 429 || !strings.Contains(text, `"code":"cost_quota_exceeded"`) || !strings.Contains(text, `"left":"0.5"`) {
				t.Errorf("%d %s", status, text)
			}
			h.Stop()
			h.Start()
			submit("other", 3)
			time.Sleep(time.Minute)
		}
		if status, text := submit("other", 6); status != 422 || !strings.Contains(text, `"code":"cost_above_quota"`) {
			t.Errorf("%d %s", status, text)
		}
	})
}

package cases_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// A job that somebody made at the provider is followed to its end and its result is
// collected; one that there is not is lost. Neither is created.
func TestAdoptAJobMadeElsewhere(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "running", "succeeded")})
		r := httptest.NewRequest(http.MethodPost, "/example/v1/jobs", strings.NewReader(`{"correlation":"elsewhere","n":1}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+harness.Token)
		w := httptest.NewRecorder()
		h.Sim.ServeHTTP(w, r)
		list := jobs(t, h, 1)
		if len(list) == 0 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		submit := func(key, job string) client.Operation {
			t.Helper()
			a := post(t, h, "/v1/operations", key, `{"provider":"example","params":{},"adopt":{"job_id":"`+job+`"}}`)
			defer func() { _ = a.Body.Close() }()
			var op client.Operation
			if err := json.NewDecoder(a.Body).Decode(&op); err != nil || a.StatusCode != http.StatusAccepted {
				t.Fatalf("%d %v", a.StatusCode, err)
			}
			return op
		}
		there, gone := submit("there", list[0].ID), submit("gone", "job-that-is-not")
		done := h.Wait(there.ID, 10*time.Minute, "succeeded")
		if done.Job == nil || !done.Job.Adopted || done.Result == nil || done.Attempts.Permitted != 0 {
			t.Errorf("%+v", done)
		}
		if lost := h.Wait(gone.ID, time.Hour, "quarantined"); string(lost.Quarantine) != "lost" || lost.Attempts.Permitted != 0 {
			t.Errorf("%+v", lost)
		}
		if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
			t.Errorf("%d creates, of which one was not ours", n)
		}
	})
}

// What a refused batch would have adopted is free, at once and when the entry that says so
// has gone from the store.
func TestAdoptAfterARefusedBatch(t *testing.T) {
	for _, wait := range []time.Duration{0, 2 * time.Minute} {
		inHouse(t, harness.Options{NoPoller: true}, func(t *testing.T, h *harness.House) {
			adopt := func(job string) string { return `{"provider":"example","params":{},"adopt":{"job_id":"` + job + `"}}` }
			ask := func(path, key, body string, want int) {
				t.Helper()
				a := post(t, h, path, key, body)
				defer func() { _ = a.Body.Close() }()
				if text, err := io.ReadAll(a.Body); err != nil || a.StatusCode != want {
					t.Errorf("%d, want %d: %v %s", a.StatusCode, want, err, text)
				}
			}
			free := h.Service.Journal()
			// The job is claimed by whoever came first between the look and the claim.
			claim, owner, err := free.ClaimAhead(t.Context(), "example", "default", "a", "op_refused", func(string, time.Time) (bool, error) { return false, nil })
			if err != nil || owner != "" {
				t.Fatal(owner, err)
			}
			ask("/v1/operations", "before", adopt("a"), 409)
			ask("/v1/operations:batch", "batch", `{"mode":"atomic","items":[{"operation":`+adopt("b")+`},{"operation":`+adopt("a")+`}]}`, 409)
			if err := free.Withdraw(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			time.Sleep(wait)
			ask("/v1/operations:batch", "batch", `{"mode":"atomic","items":[{"operation":`+adopt("b")+`},{"operation":`+adopt("a")+`}]}`, 202)
			ask("/v1/operations", "behind", adopt("b"), 409)
		})
	}
}

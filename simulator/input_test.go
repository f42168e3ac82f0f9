package simulator_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
)

// A job that waits goes on with an input, once for each key; one that has ended can be
// removed, and is gone then.
func TestInputAndCleanup(t *testing.T) {
	bubble(t, simulator.Config{}, func(w *world) {
		m := w.sim.Mount("/a", simulator.Example).Configure(simulator.Options{Plan: simulator.Steps(time.Second, "running", "waiting", "waiting", "succeeded")})
		w.create("/a", "k")
		at := "/a/v1/jobs/" + m.Jobs()[0].ID
		says := func(method, path, key, body string, status int, words string) {
			t.Helper()
			if a := w.want(status, w.call(method, at+path, body, "Idempotency-Key", key)); !strings.Contains(a.body, words) {
				t.Errorf("%s %s: %s, want %s", method, path, a.body, words)
			}
		}
		says("POST", "/input", "i1", `{}`, 409, "not_waiting")
		says("DELETE", "", "", "", 409, "not_ended")
		time.Sleep(time.Hour)
		says("GET", "", "", "", 200, "question 1")
		says("POST", "/input", "i1", `[]`, 400, "invalid_body")
		says("POST", "/input", "i1", `{"answer":"yes"}`, 200, "waiting")
		says("POST", "/input", "i1", `{"answer":"yes"}`, 200, "waiting")
		says("GET", "", "", "", 200, "question 2")
		says("POST", "/input", "i2", `{"answer":"no"}`, 200, "succeeded")
		says("DELETE", "", "", "", 204, "")
		says("DELETE", "", "", "", 404, "job_not_found")
		if j := m.Jobs()[0]; !slices.Equal(j.Inputs, []string{`{"answer":"yes"}`, `{"answer":"no"}`}) || j.Cleanups != 1 || !j.Gone {
			t.Errorf("%+v", j)
		}
	})
}

package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-36, for reads and waits: who waits for what has ended is not kept, whether it
// has just ended or long ago, and who waits for what never was is told so.
func TestFC36WaitsForWhatIsOver(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(5*time.Second, "running", "succeeded")})
		id := h.Submit("fc36", "example", params("fc36")).ID
		at := "/v1/operations/" + id
		a := ask(t, h, "GET", at+"?wait=55&until=terminal", "")
		if a.status != 200 || !strings.Contains(a.body, `"state":"succeeded"`) || !strings.Contains(a.body, `"terminal":true`) {
			t.Fatalf("the wait for the end: %d %s", a.status, a.body)
		}
		etag := a.header.Get("ETag")
		for _, age := range []time.Duration{0, 30 * time.Minute} {
			time.Sleep(age)
			start := time.Now()
			for _, c := range []struct {
				path   string
				header []string
				status int
			}{
				{"", nil, 200},
				{"?wait=55", nil, 200},
				{"?wait=55&until=terminal", nil, 200},
				{"", []string{"Prefer", "wait=55"}, 200},
				{"", []string{"Prefer", "wait=55", "If-None-Match", etag}, 304},
				{"?wait=55&after=1", nil, 200},
			} {
				a := ask(t, h, "GET", at+c.path, "", c.header...)
				if a.status != c.status || a.header.Get("ETag") != etag {
					t.Errorf("after %s, %s %v: %d with %s, want %d with %s", age, c.path, c.header, a.status, a.header.Get("ETag"), c.status, etag)
				}
				if a.header.Get("Retry-After") != "" {
					t.Errorf("after %s, %s %v: it says when to come back, and there is nothing to come for", age, c.path, c.header)
				}
				if c.status == 200 && (!strings.Contains(a.body, `"done":true`) || !strings.Contains(a.body, `"next_poll_after":0`)) {
					t.Errorf("after %s, %s: %s", age, c.path, a.body)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("who asked %s after the end was kept for %s", age, took)
			}
		}
		start := time.Now()
		for _, path := range []string{"", "?wait=55", "?wait=55&until=terminal", "/timeline", "/result"} {
			a := ask(t, h, "GET", "/v1/operations/op_never"+path, "", "Prefer", "wait=55")
			if a.status != 404 || a.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(a.body, `"code":"not_found"`) {
				t.Errorf("what never was%s: %d %s", path, a.status, a.body)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("who asked for what never was was kept for %s", took)
		}
	})
}

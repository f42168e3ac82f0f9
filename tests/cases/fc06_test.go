package cases_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC06ResubmitAttaches(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Minute, "running", "succeeded")})
		// Spelling and order of the members are the caller's; the bytes are the same each time.
		const good, bad = `{ "params": {"n": 1.0, "correlation": "good"},  "provider": "example" }`, `{"provider": "example", "params": {"correlation": "bad"}}`
		dropped(t, h, "good", good)
		a := again(t, h, "good", good, "observing") // (a) while running
		h.Wait(a.ID, 5*time.Minute, "succeeded")
		b := again(t, h, "good", good, "succeeded") // (b) after success

		m.Configure(simulator.Options{Auth: simulator.Auth{Bearer: harness.Token}, Plan: simulator.Plan{
			Steps: []simulator.Step{{State: "running"}, {State: "failed", After: time.Second}}, Code: "Q7", Message: "no paper",
		}})
		dropped(t, h, "bad", bad)
		time.Sleep(time.Minute)
		c := again(t, h, "bad", bad, "failed") // (c) after failure
		if c.Problem == nil || c.Problem.Code != "Q7" {
			t.Errorf("the replay of the failed operation has problem %+v", c.Problem)
		}
		again(t, h, "bad", bad, "failed")
		if a.ID != b.ID || a.ID == c.ID {
			t.Errorf("ids %s, %s, %s", a.ID, b.ID, c.ID)
		}
		// Also from a later run of the service.
		h.Stop()
		h.Start()
		if d := again(t, h, "good", good, "succeeded"); d.ID != a.ID {
			t.Errorf("after a restart the id is %s, was %s", d.ID, a.ID)
		}
		if n := h.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 2 {
			t.Errorf("%d creates for two operations", n)
		}
		jobs(t, h, 2)
		keptPromises(t, h, a.ID, c.ID)
	})
}

// dropped submits and goes away without reading the answer.
func dropped(t *testing.T, h *harness.House, key, body string) {
	t.Helper()
	conn, err := h.HTTP.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "counterfoil.test:80")
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST /v1/operations HTTP/1.1\r\nHost: counterfoil.test\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nIdempotency-Key: %q\r\nContent-Length: %d\r\n\r\n%s", h.Bearer, key, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(11 * time.Second) // it is answered by now, and no read is due at this moment
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// again submits the same and checks that the answer is the operation as it is.
func again(t *testing.T, h *harness.House, key, body, state string) client.Operation {
	t.Helper()
	a := post(t, h, "/v1/operations", key, body)
	defer func() { _ = a.Body.Close() }()
	raw, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode < 200 || a.StatusCode > 299 || a.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("status %d, replayed %q: %s", a.StatusCode, a.Header.Get("Idempotent-Replayed"), raw)
	}
	var op client.Operation
	if err := json.Unmarshal(raw, &op); err != nil {
		t.Fatal(err)
	}
	if op.State != state {
		t.Errorf("the replay shows state %s, want %s", op.State, state)
	}
	now, err := h.Client.Get(t.Context(), op.ID)
	if err != nil || now.Version != op.Version {
		t.Errorf("the replay has version %d, the operation %d, error %v", op.Version, now.Version, err)
	}
	return op
}

// FC-06 for what changes an operation: the answers to a decision and to a cancel
// are lost. The same again finds what was done, while it is under way, after the
// end, and from a later run of the service.
func TestFC06ActsAgain(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")})
		id := h.Submit("k", "example", params("k")).ID
		h.Wait(id, time.Minute, "observing")
		op, err := h.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		acts := []struct{ path, body, match, fact, original string }{
			{"decisions", `{"kind":"extend","deadline":"result","until":"20h"}`, fmt.Sprintf(`"v%d"`, op.Version), "decision.made", `"original_status":201`},
			{"cancel", `{"why":"not wanted"}`, "", "cancel.requested", `"original_status":202`},
		}
		try := func(i int, replay bool) answer {
			t.Helper()
			act := acts[i]
			header := []string{"Idempotency-Key", `"once"`}
			if act.match != "" {
				header = append(header, "If-Match", act.match)
			}
			a := ask(t, h, "POST", "/v1/operations/"+id+"/"+act.path, act.body, header...)
			if a.status > 299 || (a.header.Get("Idempotent-Replayed") == "true") != replay || strings.Contains(a.body, act.original) != replay {
				t.Errorf("%s, a replay %v: %d %s", act.path, replay, a.status, a.body)
			}
			want(t, act.fact, len(factsOf(h, id, act.fact)), 1)
			return a
		}
		try(0, false)
		try(0, true)
		try(1, false)
		try(1, true)
		h.Wait(id, 5*time.Minute, "cancelled")
		want(t, "cancels", h.Sim.Count(simulator.Filter{Call: simulator.Cancel}), 1)
		h.Stop()
		h.Start()
		for i := range acts {
			if a := try(i, true); !strings.Contains(a.body, `"state":"cancelled"`) {
				t.Errorf("the replay does not show the end: %s", a.body)
			}
		}
		want(t, "cancels", h.Sim.Count(simulator.Filter{Call: simulator.Cancel}), 1)
	})
}

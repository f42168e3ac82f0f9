package cases_test

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// A job waits for what a person has to give: the caller is told where, whole, until the
// job goes on, and nobody else is.
func TestInputIsHandedOver(t *testing.T) {
	log := &page.Page{}
	inHouse(t, harness.Options{Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Contracts: map[string]string{"asks.yaml": builtin(t, "example", "asks",
		"    progress: body.?progress\n", "    progress: body.?progress\n    input_url: body.?confirm\n")}}, func(t *testing.T, h *harness.House) {
		waiting := simulator.Answer{
			Status: 200, Header: http.Header{"Content-Type": {"application/json"}},
			Body: `{"state":"waiting","confirm":"https://provider.test/confirm?token=canary-hand-over","question":"Is <b>this</b> what you want?"}`,
		}
		h.Mount(simulator.Example, "asks", simulator.Options{Plan: simulator.Steps(20*time.Second, "running", "succeeded")},
			simulator.On(simulator.Status, simulator.Match{By: simulator.PerJob, From: 2, To: 5}, waiting))
		id := h.Submit("k", "asks", params("k")).ID
		h.Wait(id, time.Minute, "input_required")
		at := "/v1/operations/" + id
		a := ask(t, h, "GET", at, "")
		if want := `"input":{"url":"https://provider.test/confirm?token=canary-hand-over","text":"Is this what you want?","question":"q`; !strings.Contains(a.body, want) {
			t.Errorf("no %s in %s", want, a.body)
		}
		if shown := ask(t, h, "GET", "/operations/"+id, ""); !strings.Contains(shown.body, `<a href="https://provider.test/confirm?token=canary-hand-over" rel="noopener noreferrer">`) {
			t.Error(shown.body)
		}
		h.Wait(id, 2*time.Minute, "succeeded")
		if a := ask(t, h, "GET", at, ""); strings.Contains(a.body, `"input"`) {
			t.Errorf("it is still asked for: %s", a.body)
		}
		if line := ask(t, h, "GET", at+"/timeline", ""); strings.Contains(line.body, "canary-hand-over") || !strings.Contains(line.body, `"input_url":"https://provider.test/confirm?`) {
			t.Error(line.body)
		}
		if strings.Contains(log.String(), "canary-hand-over") {
			t.Error("the link is in the log")
		}
		keptPromises(t, h, id)
	})
}

// A job asks twice and takes each answer once, although the first goes astray and the
// provider's word on it is lost; what it left is removed once although the word on that
// is lost. Nothing is claimed that was not seen.
func TestInputAndCleanup(t *testing.T) {
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		m := h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(20*time.Second, "running", "waiting", "running", "waiting", "succeeded")},
			simulator.On(simulator.Input, simulator.NthOfJob(1), simulator.NeverReceive{Reset: true}),
			simulator.On(simulator.Input, simulator.NthOfJob(2), simulator.DropAnswer{Reset: true}),
			simulator.On(simulator.Cleanup, simulator.NthOfJob(1), simulator.DropAnswer{Reset: true}))
		id := h.Submit("k", "example", params("k")).ID
		op := h.Wait(id, time.Minute, "input_required")
		if op.Input == nil || !strings.Contains(op.Input.Text, "question 1") || op.Input.Given != nil {
			t.Errorf("%+v", op.Input)
		}
		if _, err := h.Client.Keyed("c0").Cleanup(t.Context(), id, "", ""); problemOf(t, err).Code != "cleanup_not_allowed" {
			t.Errorf("a cleanup of a job that waits: %v", err)
		}
		first := op   // as two people see it
		for range 2 { // its own answer may be lost, too: the same key says the same
			if op, err := h.Client.Keyed("i1").Answer(t.Context(), first, []byte(`{"answer": "yes", "n": 1.50}`)); err != nil || op.Input.Given == nil || op.Input.Given.Number != 1 {
				t.Fatalf("%v %+v", err, op.Input)
			}
		}
		if op = h.Wait(id, 2*time.Minute, "observing"); op.Input == nil || op.Input.Given.Status != client.AskedUnknown {
			t.Errorf("the job goes on, and nobody said that it took the answer: %+v", op.Input)
		}
		if op = h.Wait(id, time.Minute, "input_required"); !strings.Contains(op.Input.Text, "question 2") {
			t.Errorf("%+v", op.Input)
		}
		// The other one is slow, and its answer is to the first question: it reaches nobody.
		if _, err := h.Client.Keyed("i1b").Answer(t.Context(), first, []byte(`{"answer":"yes, all of it"}`)); problemOf(t, err).Code != "question_differs" || problemOf(t, err).Retryable {
			t.Errorf("an answer to what was asked before: %v", err)
		}
		if first.Input.Question == "" || op.Input.Question == first.Input.Question {
			t.Errorf("the questions are %q and %q", first.Input.Question, op.Input.Question)
		}
		if again, err := h.Client.Keyed("i1").Answer(t.Context(), first, []byte(`{"n": 1.5, "answer": "yes"}`)); err != nil || again.OriginalStatus != 202 {
			t.Errorf("the first answer, again: %v %d", err, again.OriginalStatus)
		}
		if _, err := h.Client.Keyed("i2").Answer(t.Context(), op, []byte(`{"answer":"no"}`)); err != nil {
			t.Fatal(err)
		}
		if op = h.Wait(id, 2*time.Minute, "succeeded"); op.Input == nil || op.Input.Given.Status != client.AskedDone || op.Input.Given.Number != 2 {
			t.Errorf("%+v", op.Input)
		}
		if op, err := h.Client.Keyed("c1").Cleanup(t.Context(), id, "", "not needed any more"); err != nil || op.State != "succeeded" || op.Cleanup.Status == client.AskedDone {
			t.Errorf("%v %+v", err, op.Cleanup)
		}
		for end := time.Now().Add(time.Minute); op.Cleanup == nil || op.Cleanup.Status != client.AskedDone; time.Sleep(time.Second) {
			var err error
			if op, err = h.Client.Get(t.Context(), id); err != nil || time.Now().After(end) {
				t.Fatalf("%v %+v\n%s", err, op.Cleanup, h.Story(id))
			}
		}
		j := m.Jobs()[0]
		if !slices.Equal(j.Inputs, []string{`{"answer":"yes","n":1.50}`, `{"answer":"no"}`}) || j.Cleanups != 1 || !j.Gone || op.State != "succeeded" || len(op.Cleanup.Removed) != 1 {
			t.Errorf("%+v\n%+v", j, op)
		}
		sent := map[simulator.Call]int{}
		for _, r := range h.Sim.Requests(simulator.Filter{}) {
			sent[r.Call]++
		}
		if sent[simulator.Input] != 3 || sent[simulator.Cleanup] != 2 || sent[simulator.Create] != 1 {
			t.Errorf("%v\n%s", sent, h.Story(id))
		}
		// The result is here, whatever was removed there.
		if a := ask(t, h, "GET", "/v1/operations/"+id+"/result", ""); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		keptPromises(t, h, id)
	})
}

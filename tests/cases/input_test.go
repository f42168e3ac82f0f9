package cases_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// A job waits for what a person has to give: the caller is told where, whole, until the
// job goes on, and nobody else is.
func TestInputIsHandedOver(t *testing.T) {
	log := &page.Page{}
	inHouse(t, harness.Options{Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Contracts: map[string]string{"asks.yaml": builtin(t, "example", "asks",
		"  cancelled: [cancelled]\n", "  cancelled: [cancelled]\n  input_required: [waiting]\n",
		"    progress: body.?progress\n", "    progress: body.?progress\n    input_url: body.?confirm\n    input_text: body.?question\n")}}, func(t *testing.T, h *harness.House) {
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
		if want := `"input":{"url":"https://provider.test/confirm?token=canary-hand-over","text":"Is this what you want?"}`; !strings.Contains(a.body, want) {
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

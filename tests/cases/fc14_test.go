package cases_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// FC-14: an answer that cannot be read is not the end of the job.
func TestFC14UnreadableAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := harness.New(t, harness.Options{})
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(8*time.Second, "running", "succeeded")},
			simulator.On(simulator.Status, simulator.Nth(2), simulator.ReplyHTML(504)),
			simulator.On(simulator.Status, simulator.Nth(3), simulator.NeverReceive{Reset: true}),
			simulator.On(simulator.Status, simulator.Nth(4), simulator.ReplyEmpty(502)))
		op := h.Submit("k", "example", `{"n":1}`)
		seen := map[string]bool{}
		for end := time.Now().Add(2 * time.Minute); !op.Done && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			var err error
			if op, err = h.Client.Get(t.Context(), op.ID); err != nil {
				t.Fatal(err)
			}
			if mark := markup(string(op.Raw)); mark != "" {
				t.Fatalf("the agent sees %q of the page: %s", mark, op.Raw)
			}
			if op.Problem != nil {
				if len(op.Problem.Message) > 500 {
					t.Fatalf("the excerpt has %d bytes: %s", len(op.Problem.Message), op.Problem.Message)
				}
				seen[op.Problem.Class] = true
			}
		}
		want(t, "state", op.State, "succeeded")
		for _, class := range []string{"server", "transport"} {
			if !seen[class] {
				t.Errorf("the operation never showed a problem of class %s, only %v", class, seen)
			}
		}
		failures := factsOf(h, op.ID, "observation.failed")
		want(t, "bad answers in the history", len(failures), 3)
		for _, e := range failures {
			want(t, "state after a bad answer", e.To, "observing")
		}
		timeline := ask(t, h, "GET", "/v1/operations/"+op.ID+"/timeline", "").body
		if mark := markup(timeline); mark != "" {
			t.Errorf("the timeline holds %q: %s", mark, timeline)
		}
		// Waits double from 1 s, each shortened by at most a tenth.
		reads := h.Sim.Requests(simulator.Filter{Call: simulator.Status})
		for i, least := range map[int]time.Duration{2: 900 * time.Millisecond, 3: 1800 * time.Millisecond, 4: 3600 * time.Millisecond} {
			if gap := reads[i].At.Sub(reads[i-1].At); gap < least || gap > 2*least {
				t.Errorf("wait before status read %d is %s, want %s or a little more", i+1, gap, least)
			}
		}
		invariants(t, h, op.ID)
		want(t, "jobs", len(h.Sim.Jobs()), 1)
	})
}

// markup gives what a text has of an HTML page, also where the brackets were
// spelled otherwise; "" if nothing.
func markup(text string) string {
	text = strings.ToLower(text)
	for _, mark := range []string{"<", `\u003c`, "‹", "&lt;", "html>", "h1>", "doctype"} {
		if strings.Contains(text, mark) {
			return mark
		}
	}
	return ""
}

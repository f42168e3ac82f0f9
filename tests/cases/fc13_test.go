package cases_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

func TestFC13WordsOutsideTheList(t *testing.T) {
	t.Run("on_hold, then succeeded", func(t *testing.T) {
		lines := &page.Page{}
		log := slog.New(slog.NewJSONHandler(lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
		inHouse(t, harness.Options{Log: log}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.StepsPerRead("queued", "on_hold", "on_hold", "succeeded")})
			op := h.Submit("hold", "example", params("hold"))
			now := h.Wait(op.ID, time.Minute, "observing")
			if !strings.Contains(now.Because, `the provider says "on_hold", and the contract does not know what that means`) {
				t.Errorf("the reason for people is %q", now.Because)
			}
			if now.Job == nil || now.Job.RemoteState != "on_hold" || now.Job.Class != "unknown" || now.Done {
				t.Errorf("the agent sees job %+v, done %t", now.Job, now.Done)
			}
			h.Wait(op.ID, 5*time.Minute, "succeeded")
			var told []string
			for _, line := range strings.Split(lines.String(), "\n") {
				if strings.Contains(line, `"state":"on_hold"`) {
					told = append(told, line)
				}
			}
			if len(told) != 1 || !strings.Contains(told[0], op.ID) || !strings.Contains(told[0], `"trace":"`+events.OperationTrace(op.ID)) || !strings.Contains(told[0], `"WARN"`) {
				t.Errorf("told of it by %q", told)
			}
			seen := facts(h, op.ID, "job.observed")
			if len(seen) != 3 {
				t.Fatalf("%d observations, want 3", len(seen))
			}
			for _, e := range seen[:2] {
				if e.Fields["remote_state"] != "on_hold" || e.Fields["class"] != "unknown" || e.To != "observing" {
					t.Errorf("the unknown word is recorded as %+v", e)
				}
			}
			oneCreate(t, h)
			keptPromises(t, h, op.ID)
		})
	})
	t.Run("on_hold for ever", func(t *testing.T) {
		inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.StepsPerRead("queued", "on_hold")})
			op, _, err := h.Client.Submit(t.Context(), "hold", client.Submission{
				Provider: "example", Params: []byte(params("hold")), Deadlines: &client.Deadlines{Result: "3m"},
			})
			if err != nil {
				t.Fatal(err)
			}
			done := waitLong(t, h, op.ID, 10*time.Minute)
			if done.State != "result_timed_out" || done.Reason != "result_deadline" {
				t.Errorf("state %s, reason %s", done.State, done.Reason)
			}
			if at := done.Since.Sub(op.Started); at < 3*time.Minute || at > 3*time.Minute+2*time.Second {
				t.Errorf("it ended after %s, want the deadline, 3m", at)
			}
			if !strings.Contains(done.Because, `"on_hold"`) {
				t.Errorf("the reason for people is %q, want the last word in it", done.Because)
			}
			if done.Job == nil || done.Job.RemoteState != "on_hold" || done.Job.Class != "unknown" {
				t.Errorf("the agent sees job %+v", done.Job)
			}
			oneCreate(t, h)
			keptPromises(t, h, op.ID)
		})
	})
	// docs/CONTRACTS.md, States: blanks around a word and the case of ASCII
	// letters do not count; the word itself is kept as it came.
	for _, c := range []struct {
		name string
		word simulator.StateWord
		raw  func(string) string
	}{
		{"upper case", simulator.StateWord{Upper: true}, strings.ToUpper},
		{"blanks", simulator.StateWord{Pad: "  "}, func(s string) string { return "  " + s + "  " }},
		{"both", simulator.StateWord{Upper: true, Pad: "\t "}, func(s string) string { return "\t " + strings.ToUpper(s) + "\t " }},
	} {
		t.Run("known words, "+c.name, func(t *testing.T) {
			inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
				h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.StepsPerRead("queued", "running", "succeeded")},
					simulator.On(simulator.Status, simulator.Always(), c.word))
				op := h.Submit("words", "example", params("words"))
				h.Wait(op.ID, 5*time.Minute, "succeeded")
				lines, err := h.Journal.Timeline(t.Context(), op.ID)
				if err != nil {
					t.Fatal(err)
				}
				var words []string
				for _, line := range lines {
					if o, ok := line.Entry.Event.Fact.(*events.JobObserved); ok {
						words = append(words, o.Remote)
						if o.State == events.ClassUnknown {
							t.Errorf("%q was not recognised", o.Remote)
						}
					}
				}
				if len(words) != 2 || words[0] != c.raw("running") || words[1] != c.raw("succeeded") {
					t.Errorf("the ledger has the words %q", words)
				}
				oneCreate(t, h)
				keptPromises(t, h, op.ID)
			})
		})
	}
	// Anything else than ASCII case and blanks makes another word: never a
	// crash, never an end.
	t.Run("words that only look known", func(t *testing.T) {
		for _, word := range []string{"succeeded.", "suc ceeded", "ſucceeded", "", "null", strings.Repeat("x", 10_000), "<b>succeeded</b>"} {
			inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
				h.Mount(simulator.Example, "example", simulator.Options{},
					simulator.On(simulator.Status, simulator.First(2), simulator.Answer{Status: 200, Body: `{"state": "` + word + `"}`}))
				op := h.Submit("words", "example", params("words"))
				time.Sleep(3 * time.Second)
				now, err := h.Client.Get(t.Context(), op.ID)
				if n := h.Sim.Count(simulator.Filter{Call: simulator.Status}); n == 0 {
					t.Errorf("the word %.40q was not read", word)
				}
				if err != nil || now.Done || now.Terminal {
					t.Errorf("after the word %.40q: state %s, done %t, error %v", word, now.State, now.Done, err)
				}
				h.Wait(op.ID, 5*time.Minute, "succeeded")
				oneCreate(t, h)
				keptPromises(t, h, op.ID)
			})
		}
	})
}

package index_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

const (
	identical = 20
	body      = `{"version":"v1","input":{"prompt":"the same for all"}}`
)

var seeds = flag.Uint64("seeds", 2, "how many seeds TestIdenticalCreates plays, from 0")

// TestIdenticalCreates submits the same request 20 times to a provider that
// takes no token and can only list what looks alike, and loses most answers.
// The list has pages, fails, shows jobs late, shows those of somebody else and
// those of the time before. No job is bound to two operations and none by guess:
// each ends asking, or with a job that an answer, a webhook at its own address,
// or a person gave it.
//
// `go test ./tests/index -args -seeds=20` plays more of them.
func TestIdenticalCreates(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { identicalCreates(t, seed) })
		})
	}
}

func identicalCreates(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 20))
	hooks := seed%2 == 1
	h := harness.New(t, harness.Options{
		Builtin:  []string{"replicate"},
		Webhooks: hooks,
		Secrets:  map[string]string{"HARNESS_HOOK": "whsec_" + base64.StdEncoding.EncodeToString([]byte(harness.HookSecret))},
	})
	options := simulator.Options{
		Plan: simulator.Steps(time.Minute, simulator.Queued, simulator.Running, simulator.Succeeded), StandardWebhooks: true,
		PageSize: 4 + rng.IntN(6), ListDelay: time.Duration(rng.IntN(3)) * 10 * time.Second,
	}
	m := h.Mount(simulator.Replicate, "replicate", options, trouble(rng)...)
	old := map[string]bool{} // jobs of the time before
	for range rng.IntN(12) {
		old[m.Plant(time.Hour, simulator.Running, []byte(body)).ID] = true
	}
	foreign := map[string]bool{} // made by somebody else meanwhile
	var ids []string
	for i := range identical {
		op, _, err := h.Client.Submit(t.Context(), fmt.Sprint("key-", i), client.Submission{
			Provider: "replicate", Params: json.RawMessage(body), Deadlines: &client.Deadlines{Create: "3m", Result: "15m"},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, op.ID)
		if rng.IntN(5) == 0 {
			foreign[m.Plant(0, simulator.Running, []byte(body)).ID] = true
		}
	}
	ended := func() bool {
		for _, id := range ids {
			if op, err := h.Client.Get(t.Context(), id); err != nil || !op.Done {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(3 * time.Hour); !ended(); time.Sleep(10 * time.Second) {
		if time.Now().After(end) {
			t.Fatal("some never end")
		}
	}
	check := verdict{t: t, h: h, hooks: hooks, old: old}
	check.all(ids, nil)
	if check.pages < 2 {
		t.Errorf("no look-up read more than %d pages", check.pages)
	}
	if n := h.Sim.Count(simulator.Filter{Mount: m.Base(), Call: simulator.Create}); n != identical {
		t.Errorf("%d creates were sent, want %d", n, identical)
	}

	// People decide, by the candidates they are shown and by chance. The first to
	// name a job has it.
	decided := map[string]string{}
	for _, id := range ids {
		op, err := h.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if op.State != "quarantined" || len(op.Candidates) == 0 {
			continue
		}
		job := op.Candidates[rng.IntN(len(op.Candidates))]
		// A candidate can have turned out since to be another operation's.
		owner, taken, err := h.Journal.Owner(t.Context(), "replicate", "default", job)
		if err != nil {
			t.Fatal(err)
		}
		taken = taken && owner != id
		_, err = h.Client.Decide(t.Context(), id, op.Version, "decide-"+id, client.Decision{Kind: "adopt", JobID: job, Why: "test"})
		if taken == (err == nil) {
			t.Errorf("%s is given to %s, taken before: %v, answer %v", job, id, taken, err)
		}
		if err == nil {
			decided[id] = job
		}
	}
	time.Sleep(2 * time.Minute)
	check.all(ids, decided)
	t.Logf("%d bound by answer or webhook, %d by people, %d ask, %d failed; the longest look-up had %d pages",
		check.evident, check.byPeople, check.asking, check.failed, check.pages)
}

// trouble chooses what becomes of each create and of the list.
func trouble(rng *rand.Rand) []simulator.Rule {
	var rules []simulator.Rule
	for n := 1; n <= identical; n++ {
		var faults []simulator.Fault
		switch k := rng.IntN(10); {
		case k < 1: // answered
		case k < 3:
			faults = append(faults, simulator.NeverReceive{Reset: true})
		case k < 4:
			faults = append(faults, simulator.CutBody{Bytes: 5})
		case k < 5:
			faults = append(faults, simulator.ReplyStored(502))
		default:
			faults = append(faults, simulator.DropAnswer{Reset: true})
		}
		if rng.IntN(3) == 0 {
			faults = append(faults, simulator.ListLate(time.Duration(rng.IntN(5))*time.Minute))
		}
		rules = append(rules, simulator.On(simulator.Create, simulator.Nth(n), faults...))
	}
	return append(rules,
		simulator.On(simulator.List, simulator.Match{Every: 7}, simulator.Reply(503)),
		simulator.On(simulator.List, simulator.Match{Every: 11}, simulator.CutBody{Bytes: 30}),
		simulator.On(simulator.Webhook, simulator.Chance(0.5), simulator.WebhookDrop{}),
	)
}

// verdict holds what became of the operations against what may.
type verdict struct {
	t     *testing.T
	h     *harness.House
	hooks bool
	old   map[string]bool

	pages                             int
	evident, byPeople, asking, failed int
}

func (v *verdict) all(ids []string, decided map[string]string) {
	v.t.Helper()
	v.evident, v.byPeople, v.asking, v.failed = 0, 0, 0, 0
	owner := map[string]string{}
	callbacks := map[string]string{}
	for _, j := range v.h.Sim.Jobs() {
		callbacks[j.ID] = j.Callback
	}
	for _, id := range ids {
		op, err := v.h.Client.Get(v.t.Context(), id)
		if err != nil {
			v.t.Fatal(err)
		}
		answered, hooked, offered := v.evidence(id)
		for _, job := range offered {
			if v.old[job] {
				v.t.Errorf("%s was shown %s, which is older than its create", id, job)
			}
		}
		if op.Job == nil {
			switch {
			case op.State == "quarantined" && op.Quarantine == "unknown":
				v.asking++
			case op.State == "failed" && (op.Reason == "never_sent" || op.Reason == "refused"):
				v.failed++
			default:
				v.t.Errorf("%s ends %s %s (%s) without a job\n%s", id, op.State, op.Quarantine, op.Reason, v.h.Story(id))
			}
			continue
		}
		job := op.Job.ID
		if other, twice := owner[job]; twice {
			v.t.Errorf("%s is bound to %s and %s", job, other, id)
		}
		owner[job] = id
		switch {
		case answered == job, slices.Contains(hooked, job):
			v.evident++
			if v.hooks && !strings.Contains(callbacks[job], "/"+id+"?key=") {
				v.t.Errorf("%s is bound to %s, and was made for %s", job, id, callbacks[job])
			}
		case decided[id] == job:
			v.byPeople++
		default:
			v.t.Errorf("%s is bound to %s by guess\n%s", job, id, v.h.Story(id))
		}
	}
}

// numbered are the fields of a look-up that hold jobs.
var numbered = regexp.MustCompile(`^job_[0-9]+$`)

// evidence reads the timeline: the job of the answer, those of webhooks that
// count as exact, and those of look-ups.
func (v *verdict) evidence(id string) (answered string, hooked, offered []string) {
	for _, e := range v.h.Timeline(id) {
		switch {
		case strings.HasPrefix(e.Type, "create.answered") && e.Fields["claim"] == "own":
			answered = e.Fields["job_id"]
		case strings.HasPrefix(e.Type, "webhook.received") && e.Fields["exact"] == "true":
			hooked = append(hooked, e.Fields["job_id"])
		case strings.HasPrefix(e.Type, "lookup.answered"):
			pages := 0
			if _, err := fmt.Sscan(e.Fields["pages"], &pages); err != nil {
				v.t.Errorf("pages %q", e.Fields["pages"])
			}
			v.pages = max(v.pages, pages)
			for name, job := range e.Fields {
				if numbered.MatchString(name) {
					offered = append(offered, job)
				}
			}
		}
	}
	return answered, hooked, offered
}

package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/fleet"
)

// hurried are waits with which a killed process's create is presumed, and asked
// for again, while a test can wait for it.
func hurried() []string {
	return []string{
		"  settle: 30s\n", "  settle: 1s\n",
		"{default: 2s, min: 10ms, max: 1h}", "{default: 1s, min: 10ms, max: 1h}",
		"  backoff: 1s\n", "  backoff: 250ms\n",
		"  request_timeout: 30s\n", "  request_timeout: 3s\n",
	}
}

// pair starts two instances of each role.
func pair(f *fleet.Fleet) map[string][]*fleet.Process {
	list := map[string][]*fleet.Process{}
	for range 2 {
		for _, role := range []string{"webhooks", "ingest", "projector", "poller"} {
			list[role] = append(list[role], f.Start(role))
		}
	}
	return list
}

// Two of each role share the work. One of each is killed in the middle of a
// burst; nothing is lost, nothing is done twice, and the others go on.
func TestKillOneOfEach(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{Waits: hurried(), Plan: simulator.Steps(time.Second, "queued", "running", "running", "succeeded")})
	roles := pair(f)
	f.Until(fleet.Patience, "each projector has half of the partitions", func() bool {
		return roles["projector"][0].Partitions() == 16 && roles["projector"][1].Partitions() == 16
	})
	const operations = 200
	var ids []string
	for i := range operations {
		if i == operations/2 {
			for _, list := range roles {
				list[0].Kill()
			}
		}
		ids = append(ids, f.Submit(fmt.Sprintf("k%d", i)).ID)
	}
	killed := time.Now()
	f.Until(journal.SeatTime+2*time.Second, "the other projector has all partitions", func() bool {
		return roles["projector"][1].Partitions() == journal.Partitions
	})
	for _, id := range ids {
		if op := f.Await(id, journal.LeaseTime+fleet.Patience, "succeeded"); op.Job == nil {
			t.Errorf("%s succeeded without a job", id)
		}
	}
	t.Logf("%d operations done %s after the kill", operations, time.Since(killed).Round(100*time.Millisecond))
	f.Promises(ids...)
}

// A rolling restart: each instance is told to stop while calls are under way. It
// finishes them, gives up what it holds, and nobody waits for a lease to end.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{
		// The calls' own time is longer here: none may come to its end.
		Waits: append(hurried()[:6:6], "  request_timeout: 30s\n", "  request_timeout: 20s\n"),
		Plan:  simulator.Steps(500*time.Millisecond, "queued", "running", "succeeded"),
		Rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(2*time.Second))},
	})
	roles := pair(f)
	var ids []string
	submit := func(n int) {
		for range n {
			ids = append(ids, f.Submit(fmt.Sprintf("k%d", len(ids))).ID)
		}
	}
	for i, role := range []string{"poller", "projector", "webhooks", "ingest"} {
		submit(8)
		f.Until(fleet.Patience, "creates are under way", func() bool { return f.Sim.Count(simulator.Filter{Call: simulator.Create}) > 8*i })
		old := roles[role][0]
		if code, took := old.Stop(); code != 0 || took > 15*time.Second {
			t.Errorf("%s stopped with %d after %s\n%s", role, code, took, old.Log())
		}
		submit(8)
		f.Start(role)
	}
	for _, id := range ids {
		// No more than the job itself and a create or two take: no lease ran out.
		f.Await(id, 20*time.Second, "succeeded")
		for _, e := range f.Timeline(id) {
			if e.Fields["outcome"] == "ambiguous" || e.Fields["outcome"] == "presumed" {
				t.Errorf("%s: %s is %s", id, e.Type, e.Fields["outcome"])
			}
		}
	}
	f.Promises(ids...)
	if n := f.Sim.Count(simulator.Filter{Call: simulator.Create}); n != len(ids) {
		t.Errorf("%d creates for %d operations", n, len(ids))
	}
}

// The server is killed and comes back: all roles find it again by themselves.
func TestServerComesBack(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{Waits: hurried(), Plan: simulator.Steps(time.Second, "running", "succeeded")})
	roles := pair(f)
	ids := []string{f.Submit("before").ID}
	f.Await(ids[0], fleet.Patience, "accepted", "observing", "succeeded")
	f.Server.Kill()
	time.Sleep(3 * time.Second) // longer than a connection is tried for
	f.StartServer()
	ids = append(ids, f.Submit("after").ID)
	for _, id := range ids {
		f.Await(id, journal.LeaseTime+fleet.Patience, "succeeded")
	}
	for role, list := range roles {
		for _, p := range list {
			if log := p.Log(); !strings.Contains(log, "store connection lost") || !strings.Contains(log, "store connection regained") {
				t.Errorf("%s does not say that the store was away and came back:\n%s", role, log)
			}
			f.Until(fleet.Patience, role+" is ready again", func() bool { return strings.HasPrefix(p.Admin("/readyz"), `{"status":"ok"`) })
		}
	}
	f.Promises(ids...)
}

package cases_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/fleet"
)

// The cases about two processes that share one store, with real processes on a
// real server. The same cases on fake time, with more variants, stand in the
// files named after them.

var programs fleet.Programs

// FC-04: the same submit at two instances, while the store answers nobody.
func TestFC04TwoProcesses(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{Plan: simulator.Steps(0, "succeeded")})
	for _, role := range []string{"ingest", "ingest", "projector", "poller"} {
		f.Start(role)
	}
	f.Server.Signal(syscall.SIGSTOP)
	const callers = 4
	answers := make([]client.Operation, callers)
	replayed := make([]bool, callers)
	var all sync.WaitGroup
	for i := range callers { // in turn at either instance
		all.Go(func() {
			for end := time.Now().Add(fleet.Patience); ; time.Sleep(200 * time.Millisecond) {
				op, again, err := f.Client.Submit(t.Context(), "k", client.Submission{Provider: "example", Params: json.RawMessage(`{"correlation":"k"}`)})
				if err == nil {
					answers[i], replayed[i] = op, again
					return
				}
				if p := problemOf(t, err); !p.Retryable || time.Now().After(end) {
					t.Errorf("caller %d: %v", i, err)
					return
				}
			}
		})
	}
	time.Sleep(2 * time.Second) // all are in the middle of it
	f.Server.Signal(syscall.SIGCONT)
	all.Wait()
	fresh := 0
	for i, op := range answers {
		want(t, fmt.Sprintf("operation of caller %d", i), op.ID, answers[0].ID)
		if !replayed[i] {
			fresh++
		}
	}
	// One whose answer was lost with a broken connection asked again and was told
	// of a replay; never do two hear that theirs was the first.
	if fresh > 1 {
		t.Errorf("%d answers are no replay", fresh)
	}
	f.Await(answers[0].ID, fleet.Patience, "succeeded")
	list, err := f.Client.List(t.Context(), client.Filter{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d operations, %v", len(list.Items), err)
	}
	intents := 0
	for _, e := range f.Timeline(answers[0].ID) {
		if strings.HasPrefix(e.Type, "intent.recorded") {
			intents++
		}
	}
	want(t, "intents", intents, 1)
	want(t, "creates", f.Sim.Count(simulator.Filter{Call: simulator.Create}), 1)
	f.Promises(answers[0].ID)
}

// FC-30: a process that owns two operations is suspended for longer than its
// lease, in the middle of a read of one and the create of the other; another takes
// over and finishes both; then the first goes on.
func TestFC30TwoProcesses(t *testing.T) {
	const beat = 10 * time.Second // of pollers, as shipped
	t.Parallel()
	f := fleet.New(t, &programs, fleet.Options{
		Waits: []string{"  settle: 30s\n", "  settle: 1s\n", "  request_timeout: 30s\n", "  request_timeout: 5s\n"},
		Plan:  simulator.Steps(5*time.Second, "running", "succeeded"),
		Rules: []simulator.Rule{
			simulator.On(simulator.Status, simulator.Nth(2), simulator.DelayAfter(4*time.Second)),
			simulator.On(simulator.Create, simulator.Nth(2), simulator.DelayAfter(4*time.Second)),
		},
	})
	f.Start("ingest")
	f.Start("projector")
	first := f.Start("poller")
	reading := f.Submit("reading").ID
	f.Until(fleet.Patience, "the second read arrives", func() bool { return f.Sim.Count(simulator.Filter{Call: simulator.Status}) == 2 })
	creating := f.Submit("creating").ID
	f.Until(fleet.Patience, "the second create arrives", func() bool { return f.Sim.Count(simulator.Filter{Call: simulator.Create}) == 2 })
	first.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	f.Start("poller")
	ids := []string{reading, creating}
	before := map[string]int{}
	jobs := map[string]string{}
	var taken time.Duration
	for _, id := range ids {
		op := f.Await(id, 2*journal.LeaseTime+fleet.Patience, "succeeded")
		jobs[id], before[id] = op.Job.ID, len(f.Timeline(id))
		if id == reading {
			taken = time.Since(stopped)
		}
	}
	// The attempt is presumed when it can no longer be running; the read waits for the
	// lease, which was extended a beat before the stop at the earliest.
	if taken < journal.LeaseTime-beat {
		t.Errorf("the read was taken over %s after its owner was stopped: its lease had not ended", taken)
	}
	first.Signal(syscall.SIGCONT)
	f.Until(fleet.Patience, "the owner that was stopped says what it saw", func() bool { return len(f.Timeline(creating)) > before[creating] })
	time.Sleep(3 * time.Second) // whatever else it would write
	for _, id := range ids {
		op := f.Get(id)
		want(t, "state after the return", op.State, "succeeded")
		want(t, "job after the return", op.Job.ID, jobs[id])
		at, owners := "", map[string]bool{}
		all := f.Timeline(id)
		for i, e := range all {
			want(t, e.Type+" goes on from", e.From, at)
			at = e.To
			if e.Source == "" {
				t.Errorf("%s names no author", e.Type)
			}
			if strings.HasPrefix(e.Source, "/poller/") {
				owners[e.Source] = true
			}
			if i >= before[id] {
				want(t, "verdict of the late "+e.Type, e.Verdict, "noted")
				want(t, "the late "+e.Type+" moves to", e.To, e.From)
			}
		}
		want(t, "owners in the history", len(owners), 2)
	}
	f.Promises(ids...)
}

// FC-32: creates that take longer than a lease, and more of them than one
// process has workers for.
func TestFC32TwoProcesses(t *testing.T) {
	t.Parallel()
	const operations, takes = 50, journal.LeaseTime + 5*time.Second
	f := fleet.New(t, &programs, fleet.Options{
		Waits: []string{"  request_timeout: 30s\n", "  request_timeout: 2m\n"},
		Plan:  simulator.Steps(0, "succeeded"),
		Rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(takes))},
	})
	f.Start("ingest")
	f.Start("projector")
	for range 2 {
		f.Start("poller", "--workers", "40")
	}
	var ids []string
	for i := range operations {
		ids = append(ids, f.Submit(fmt.Sprintf("k%d", i)).ID)
	}
	owners := map[string]int{}
	for _, id := range ids {
		f.Await(id, takes+fleet.Patience, "succeeded")
		for _, e := range f.Timeline(id) {
			if strings.HasPrefix(e.Type, "create.attempted") {
				owners[e.Source]++
			}
		}
	}
	// One alone has not enough workers for all of them within one create's time.
	want(t, "processes that made creates", len(owners), 2)
	list := f.Sim.Requests(simulator.Filter{Call: simulator.Create})
	want(t, "creates", len(list), operations)
	if d := list[len(list)-1].At.Sub(list[0].At); d >= takes {
		t.Errorf("the last create left %s after the first: two processes do no more than one", d)
	}
	f.Promises(ids...)
}

// FC-33: the store is gone for 30 s just when work is handed out, to all
// processes at once.
func TestFC33TwoProcesses(t *testing.T) {
	t.Parallel()
	const operations, outage = 20, 30 * time.Second
	f := fleet.New(t, &programs, fleet.Options{
		Waits: []string{"  request_timeout: 30s\n", "  request_timeout: 5s\n", "  settle: 30s\n", "  settle: 1s\n"},
		Plan:  simulator.Steps(3*time.Second, "running", "succeeded"),
	})
	var roles []*fleet.Process
	for range 2 {
		for _, role := range []string{"ingest", "projector", "poller"} {
			roles = append(roles, f.Start(role))
		}
	}
	var ids []string
	for i := range operations {
		ids = append(ids, f.Submit(fmt.Sprintf("k%d", i)).ID)
	}
	f.Until(fleet.Patience, "work is handed out", func() bool { return f.Sim.Count(simulator.Filter{Call: simulator.Create}) > 0 })
	f.Server.Signal(syscall.SIGSTOP)
	time.Sleep(outage)
	f.Server.Signal(syscall.SIGCONT)
	for _, id := range ids {
		if op := f.Get(id); !op.Done && op.NextLook == nil {
			t.Errorf("%s is %s and nobody says when it goes on", id, op.State)
		}
	}
	for _, id := range ids {
		f.Await(id, 2*journal.LeaseTime+fleet.Patience, "succeeded")
	}
	for _, p := range roles {
		if log := p.Log(); !strings.Contains(log, `"level":"WARN"`) && !strings.Contains(log, `"level":"ERROR"`) {
			t.Errorf("a log says nothing of the outage:\n%s", log)
		}
	}
	f.Promises(ids...)
}

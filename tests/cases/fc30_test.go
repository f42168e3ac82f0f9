package cases_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// stopped suspends a worker as SIGSTOP does: from stop on, whoever passes waits
// for resume, whatever its context says.
type stopped struct {
	mu      sync.Mutex
	resumed chan struct{} // nil: runs
	reached bool
}

func (s *stopped) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.reached { // once in a case
		s.reached, s.resumed = true, make(chan struct{})
	}
}

func (s *stopped) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.resumed)
	s.resumed = nil
}

func (s *stopped) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed != nil
}

func (s *stopped) pass() {
	s.mu.Lock()
	wait := s.resumed
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

// around makes one poller pass here at each touch of the store and around each
// call; it stops before it stores a fact of the type, and before or after a call.
func (s *stopped) around(poller1, publish string, before, after func(outbound.Request) bool) func(string, journal.Store, poller.Caller) (journal.Store, poller.Caller) {
	at := func(stops func(outbound.Request) bool) func(context.Context, outbound.Request) {
		return func(_ context.Context, r outbound.Request) {
			if stops != nil && stops(r) {
				s.stop()
			}
			s.pass()
		}
	}
	return func(name string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller) {
		if name != poller1 {
			return store, call
		}
		k := &hooks{
			touch: func(context.Context) error { s.pass(); return nil },
			publish: func(_ context.Context, stream journal.Stream, m journal.Outgoing) error {
				if stream == journal.Ledger && publish != "" && strings.HasPrefix(kind(m), publish) {
					s.stop()
				}
				s.pass()
				return nil
			},
		}
		return hookedStore{k, store}, hookedCaller{before: at(before), after: at(after), inner: call}
	}
}

// FC-30: an owner that was stopped for longer than its lease comes back.
func TestFC30SuspendedOwner(t *testing.T) {
	create := func(r outbound.Request) bool { return r.SideEffect && strings.HasSuffix(r.URL, "/v1/jobs") }
	read := func(r outbound.Request) bool { return r.Method == "GET" && !strings.HasSuffix(r.URL, "/result") }
	result := func(r outbound.Request) bool { return r.Method == "GET" && strings.HasSuffix(r.URL, "/result") }
	for _, c := range []struct {
		name     string
		publish  string // stops before this fact is stored
		before   func(outbound.Request) bool
		after    func(outbound.Request) bool
		creates  int
		lateFact string // what it still writes after it was resumed; "" nothing
	}{
		{name: "before the permit", publish: "create.attempted", creates: 1},
		{name: "before the create leaves", before: create, creates: 1, lateFact: "create.answered"},
		{name: "before the create is recorded", after: create, creates: 2, lateFact: "create.answered"},
		{name: "before a read is recorded", after: read, creates: 1, lateFact: "job.observed"},
		{name: "before a result is recorded", after: result, creates: 1, lateFact: "result.collected"},
	} {
		variant(t, c.name, func(t *testing.T) {
			s := &stopped{}
			h := harness.New(t, harness.Options{ThroughPoller: s.around("poller-1", c.publish, c.before, c.after)})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(10*time.Second, "running", "succeeded")})
			op := h.Submit("k", "example", `{"n":1}`)
			for end := time.Now().Add(time.Minute); !s.isStopped(); time.Sleep(100 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the owner was not stopped\n%s", h.Story(op.ID))
				}
			}
			h.Poller("poller-2")
			op = await(h, op.ID, 5*time.Minute, time.Second)
			want(t, "state", op.State, "succeeded")
			before := h.Timeline(op.ID)
			body := resultOf(t, h, op.ID)

			s.resume()
			time.Sleep(time.Minute)
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "state after the return", now.State, "succeeded")
			if now.Problem != nil {
				t.Errorf("problem after the return: %+v", now.Problem)
			}
			want(t, "job after the return", now.Job.ID, op.Job.ID)
			want(t, "result after the return", resultOf(t, h, op.ID), body)
			all := h.Timeline(op.ID)
			late := all[len(before):]
			if c.lateFact == "" && len(late) > 0 || c.lateFact != "" && len(late) != 1 {
				t.Errorf("facts after the return: %d\n%s", len(late), h.Story(op.ID))
			}
			for _, e := range late {
				want(t, "late fact", strings.HasPrefix(e.Type, c.lateFact), true)
				want(t, "late fact's verdict", e.Verdict, "noted")
				want(t, "late fact's author", e.Source, "/poller/poller-1")
			}
			oneWay(t, h, all)
			want(t, "creates", h.Sim.Count(simulator.Filter{Call: simulator.Create}), c.creates)
			want(t, "jobs", len(h.Sim.Jobs()), 1)
			invariants(t, h, op.ID)
		})
	}
}

// FC-30: the same with the owner of a cancel.
func TestFC30SuspendedInCancel(t *testing.T) {
	cancel := func(r outbound.Request) bool { return strings.HasSuffix(r.URL, "/cancel") }
	for _, c := range []struct {
		name    string
		publish string
		before  func(outbound.Request) bool
		after   func(outbound.Request) bool
		most    int // cancels at the provider
		late    int // facts that it still writes after it was resumed
	}{
		{name: "before the permit", publish: "cancel.attempted", most: 1},
		{name: "before it leaves", before: cancel, most: 1, late: 1},
		{name: "before it is recorded", after: cancel, most: 2, late: 1}, // repeating is promised to be safe
	} {
		variant(t, c.name, func(t *testing.T) {
			s := &stopped{}
			h := harness.New(t, harness.Options{ThroughPoller: s.around("poller-1", c.publish, c.before, c.after)})
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Plan{
				Steps: []simulator.Step{{State: "running"}}, CancelAfter: 3 * time.Second,
			}})
			op := h.Submit("k", "example", `{"n":1}`)
			h.Wait(op.ID, time.Minute, "observing")
			if _, err := h.Client.Cancel(t.Context(), op.ID, ""); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); !s.isStopped(); time.Sleep(100 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("the owner was not stopped\n%s", h.Story(op.ID))
				}
			}
			h.Poller("poller-2")
			op = await(h, op.ID, 5*time.Minute, time.Second)
			want(t, "state", op.State, "cancelled")
			before := len(h.Timeline(op.ID))
			s.resume()
			time.Sleep(time.Minute)
			now, err := h.Client.Get(t.Context(), op.ID)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "state after the return", now.State, "cancelled")
			at, all := "", h.Timeline(op.ID)
			for _, e := range all {
				want(t, e.Type+" goes on from", e.From, at)
				at = e.To
			}
			want(t, "facts after the return", len(all)-before, c.late)
			for _, e := range all[before:] {
				want(t, "late fact", strings.HasPrefix(e.Type, "cancel.answered"), true)
				want(t, "late fact's verdict", e.Verdict, "noted")
				want(t, "late fact's author", e.Source, "/poller/poller-1")
			}
			if n := h.Sim.Count(simulator.Filter{Call: simulator.Cancel}); n < 1 || n > c.most {
				t.Errorf("%d cancels at the provider, want 1 to %d\n%s", n, c.most, h.Story(op.ID))
			}
			want(t, "jobs", len(h.Sim.Jobs()), 1)
			invariants(t, h, op.ID)
		})
	}
}

// oneWay checks that each entry goes on from where the one before it ended,
// that no state is entered twice after the job was accepted, and that pollers'
// entries name their owner.
func oneWay(t *testing.T, h *harness.House, all []client.Entry) {
	t.Helper()
	order := []string{"", "create_pending", "create_unknown", "reconciliation", "accepted", "observing", "result_collecting", "succeeded"}
	at := ""
	owners := map[string]bool{}
	for _, e := range all {
		want(t, e.Type+" goes on from", e.From, at)
		if slices.Index(order, e.To) < slices.Index(order, e.From) {
			t.Errorf("%s steps back from %s to %s", e.Type, e.From, e.To)
		}
		if e.Verdict != "applied" {
			want(t, e.Type+", not applied, moves to", e.To, e.From)
		}
		at = e.To
		if e.Type != "intent.recorded.v1" && !strings.HasPrefix(e.Source, "/poller/poller-") {
			t.Errorf("%s has author %q", e.Type, e.Source)
		}
		owners[e.Source] = true
		if strings.HasSuffix(e.Type, ".attempted.v1") {
			owner, _, _ := strings.Cut(e.Fields["owner"], "/")
			want(t, "owner of "+e.Type, "/poller/"+owner, e.Source)
		}
	}
	want(t, "poller-2 took over", owners["/poller/poller-2"], true)
}

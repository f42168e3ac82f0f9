package projector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// tally keeps what an observer is told, as whoever measures would.
type tally struct {
	mu      sync.Mutex
	open    map[string]map[Standing]int
	owned   map[string]map[string]int
	behind  map[string]time.Time
	stalled map[string]int
	left    []string
	stopped []string

	unmapped []string
}

func newTally() *tally {
	return &tally{open: map[string]map[Standing]int{}, owned: map[string]map[string]int{}, behind: map[string]time.Time{}, stalled: map[string]int{}}
}

func (c *tally) Behind(p string, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind[p] = since
}

func (c *tally) Stalled(p string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled[p]++
}

func (c *tally) Left(p string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, p)
}

func (c *tally) Unmapped(s projections.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmapped = append(c.unmapped, s.Operation+" "+s.Job.Remote)
}

func (c *tally) Stopped(s projections.State, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	word := "again "
	if fresh {
		word = "fresh "
	}
	c.stopped = append(c.stopped, word+s.Operation+" "+string(s.Phase))
}

func (c *tally) Owned(p string, open map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owned[p] = maps.Clone(open)
}

func (c *tally) Counted(p string, open map[Standing]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[p] = maps.Clone(open)
	all, owned := 0, 0
	for _, n := range open {
		all += n
	}
	for _, n := range c.owned[p] {
		owned += n
	}
	if all != owned {
		c.open[p][Standing{Phase: "owned otherwise"}] = owned
	}
}

func (c *tally) Moved(p string, before, after projections.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before.Phase != projections.PhaseNone {
		c.open[p][standing(before)]--
	}
	if !after.Phase.Terminal() {
		c.open[p][standing(after)]++
	}
}

// counts gives the standings that somebody has.
func (c *tally) counts(p string) map[Standing]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[Standing]int{}
	for s, n := range c.open[p] {
		if n != 0 {
			out[s] = n
		}
	}
	return out
}

func (c *tally) rests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.stopped)
	c.stopped = nil
	slices.Sort(list)
	return list
}

// conflict brings an operation to rest.
func (h *hall) conflict(operation string) {
	h.t.Helper()
	s, err := h.journal.Current(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, _, err := h.journal.Append(context.Background(), s, events.Event{ID: h.id(), Source: "/test", Fact: &events.JobContested{JobID: "j-1", Owner: "op_other"}}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hall) abandon(operation string) {
	h.t.Helper()
	s, err := h.journal.Current(context.Background(), operation)
	if err != nil {
		h.t.Fatal(err)
	}
	fact := &events.DecisionMade{Choice: events.DecideAbandon, Who: "alice", Sequence: s.Sequence}
	if _, _, err := h.journal.Append(context.Background(), s, events.Event{ID: h.id(), Source: "/test", Fact: fact}); err != nil {
		h.t.Fatal(err)
	}
}

// What is open is counted right from the first count on: over what moves, a
// restart, a store that does not answer, and a take-over.
func TestObserve(t *testing.T) {
	pending, conflict := Standing{Phase: projections.PhaseCreatePending}, Standing{projections.PhaseQuarantined, projections.QuarantineConflict}
	const partition = 6
	name := journal.PartitionName(partition)
	ops := inPartition(partition, 4)
	want := func(t *testing.T, c *tally, what string, counts map[Standing]int) {
		t.Helper()
		synctest.Wait()
		// Nothing waits, however long no fact has come.
		c.mu.Lock()
		since := c.behind[name]
		c.mu.Unlock()
		if !since.IsZero() {
			t.Errorf("%s: behind since %s", what, since)
		}
		if got := c.counts(name); !maps.Equal(got, counts) {
			t.Errorf("%s: open %v, want %v", what, got, counts)
		}
	}
	bubble(t, "", func(t *testing.T) {
		h := newHall(t)
		first := newTally()
		h.create(ops[0])
		stop := h.running(h.projector(func(c *Config) { c.Observe = first }), []int{partition}, func() {})
		want(t, first, "at the start", map[Standing]int{pending: 1})
		h.create(ops[1])
		h.create(ops[2])
		h.conflict(ops[1])
		want(t, first, "moved", map[Standing]int{pending: 2, conflict: 1})
		if got := first.rests(); !slices.Equal(got, []string{"fresh " + ops[1] + " quarantined"}) {
			t.Errorf("rests %q", got)
		}
		h.abandon(ops[2])
		want(t, first, "ended", map[Standing]int{pending: 1, conflict: 1})
		if err := stop(); err != nil {
			t.Fatal(err)
		}

		// What happens while nobody projects is in the next run's first count.
		h.conflict(ops[0])
		h.create(ops[3])
		second := newTally()
		stop = h.running(h.projector(func(c *Config) { c.Observe = second }), []int{partition}, func() {})
		want(t, second, "after a restart", map[Standing]int{pending: 1, conflict: 2})
		rests := []string{"again " + ops[0] + " quarantined", "again " + ops[1] + " quarantined", "fresh " + ops[0] + " quarantined"}
		slices.Sort(rests)
		if got := second.rests(); !slices.Equal(got, rests) {
			t.Errorf("rests %q", got)
		}

		// While the store takes no record, the partition is behind, and a rest is
		// told of before its record: what is told twice is not lost.
		h.store.failing(func(s journal.Stream, _ string) error {
			if s == journal.History {
				return errors.New("no room")
			}
			return nil
		})
		began := time.Now()
		h.abandon(ops[1])
		time.Sleep(time.Minute)
		second.mu.Lock()
		if second.stalled[name] < 2 || second.behind[name].IsZero() || second.behind[name].After(began) {
			t.Errorf("stalled %d times, behind since %s, want %s", second.stalled[name], second.behind[name], began)
		}
		second.mu.Unlock()
		h.store.failing(nil)
		time.Sleep(time.Minute)
		want(t, second, "when it answers again", map[Standing]int{pending: 1, conflict: 1})
		second.mu.Lock()
		if !second.behind[name].IsZero() {
			t.Errorf("still behind since %s", second.behind[name])
		}
		second.mu.Unlock()

		third := newTally()
		stopThird := h.running(h.projector(func(c *Config) { c.Observe = third }), []int{partition}, func() {})
		want(t, third, "after a take-over", map[Standing]int{pending: 1, conflict: 1})
		h.conflict(ops[3])
		want(t, third, "in the new tenure", map[Standing]int{conflict: 2})
		if err := stopThird(); err != nil {
			t.Error(err)
		}
		h.abandon(ops[3]) // the one before is fenced by now, and is told so by what it tries to write
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(second.left, []string{name}) || len(third.left) != 0 {
			t.Errorf("left %q and %q", second.left, third.left)
		}
	})
}

// inPartition gives operations of one partition.
func inPartition(partition, n int) []string {
	var list []string
	for i := 0; len(list) < n; i++ {
		if op := fmt.Sprintf("op_%d", i); journal.Partition(op) == partition {
			list = append(list, op)
		}
	}
	return list
}

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// authors append one fact after the other to operations of their own until stop is
// closed; every fact counts as stored when the journal says so.
type authors struct {
	group sync.WaitGroup

	mu     sync.Mutex
	stored map[string][]string // ids by operation; guarded by mu
	last   time.Time           // of the newest of them; guarded by mu
	errs   []error             // guarded by mu
}

func (a *authors) run(ctx context.Context, t *testing.T, stop <-chan struct{}, j *journal.Journal, operation string) {
	s := create(t, j, operation)
	a.group.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			id := fmt.Sprintf("%s-%d", operation, n)
			newest, outcome, err := j.Append(ctx, s, evidence(id))
			a.mu.Lock()
			if err != nil || outcome != journal.Stored {
				a.errs = append(a.errs, fmt.Errorf("%s: %s, %w", id, outcome, err))
				a.mu.Unlock()
				return
			}
			a.stored[operation] = append(a.stored[operation], id)
			a.last = time.Now()
			a.mu.Unlock()
			s = newest
		}
	})
}

func (a *authors) count() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ids := range a.stored {
		n += len(ids)
	}
	return n
}

// moving waits until every author has stored further facts and says how long that
// took.
func (a *authors) moving(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	before := map[string]int{}
	a.mu.Lock()
	for operation, ids := range a.stored {
		before[operation] = len(ids)
	}
	a.mu.Unlock()
	return within(t, limit, "every author goes on", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for operation, n := range before {
			if len(a.stored[operation]) < n+2 && len(a.errs) == 0 {
				return false
			}
		}
		return true
	})
}

// check compares the ledger with what the authors were told.
func (a *authors) check(t *testing.T, j *journal.Journal) {
	t.Helper()
	for _, err := range a.errs {
		t.Error(err)
	}
	for operation, want := range a.stored {
		if have := ledgerIDs(t, j, operation); !slices.Equal(have[1:], want) {
			t.Errorf("%s holds %v, its author stored %v", operation, have, want)
		}
	}
}

// The leader of the ledger gives way in the middle of appends, several times.
func leaderStepsDown(t *testing.T, c *cluster, account string) {
	a := &authors{stored: map[string][]string{}}
	stop := make(chan struct{})
	for i := range nodes {
		store := &counted{Store: c.connect(t, account, i), limit: impatient}
		a.run(t.Context(), t, stop, newJournal(store), fmt.Sprintf("op_step%d", i))
	}
	for range 3 {
		a.moving(t, soon)
		old := c.leaderOf(t, account, journal.Ledger)
		if err := c.servers[old].JetStreamStepdownStream(account, string(journal.Ledger)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another leads", func() bool { at := c.leader(account, journal.Ledger); return at >= 0 && at != old })
	}
	a.moving(t, soon)
	close(stop)
	a.group.Wait()
	t.Logf("%d facts", a.count())
	a.check(t, newJournal(c.connect(t, account, 0)))
}

// The server that leads the ledger is stopped in the middle of appends, while
// authors are connected to it and to the others. How soon they go on is shown here
// and measured on containers by make cluster-test.
func leaderIsStopped(t *testing.T, c *cluster, account string) {
	a := &authors{stored: map[string][]string{}}
	stop := make(chan struct{})
	for i := range nodes {
		// Each knows all servers and begins at another.
		url := c.url(account, i) + "," + c.url(account, (i+1)%nodes) + "," + c.url(account, (i+2)%nodes)
		a.run(t.Context(), t, stop, newJournal(connect(t, url)), fmt.Sprintf("op_stop%d", i))
	}
	a.moving(t, soon)
	old := c.leaderOf(t, account, journal.Ledger)
	c.servers[old].Shutdown()
	took := a.moving(t, soon)
	close(stop)
	a.group.Wait()
	t.Logf("%d facts; every author went on %s after the leader was stopped", a.count(), took)
	a.check(t, newJournal(c.connect(t, account, c.others(old)[0])))
}

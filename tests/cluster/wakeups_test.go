package cluster_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Wake-ups on three replicas: one fires at its time, what replaced it does not
// bring it back, and an acknowledged one is gone. A new leader of WAKEUPS goes on
// with what the one before it had.
func wakesUp(t *testing.T, c *cluster, account string) {
	j := newJournal(c.connect(t, account, 0))
	partition := journal.Partition("op_wake")
	tenure, err := j.TakeOver(t.Context(), partition)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := newJournal(c.connect(t, account, 1)).Leases(t.Context(), "example")
	if err != nil {
		t.Fatal(err)
	}
	wake := func(version uint64, at time.Time) {
		t.Helper()
		if err := tenure.Wake(t.Context(), journal.Wake{Operation: "op_wake", Provider: "example", Version: version, At: at}); err != nil {
			t.Fatal(err)
		}
	}
	// fetch waits for one: just made, a queue may have no leader, and its leader may
	// go.
	fetch := func() (lease *journal.Lease) {
		t.Helper()
		eventually(t, "a wake-up is handed out", func() bool {
			list, err := leases.Fetch(t.Context(), 1, time.Second)
			if err != nil || len(list) == 0 {
				return false
			}
			lease = list[0]
			return true
		})
		return lease
	}
	wake(1, time.Now().Add(time.Hour))
	at := time.Now().Add(2 * time.Second)
	wake(2, at)
	old := c.leaderOf(t, account, journal.Wakeups)
	if err := c.servers[old].JetStreamStepdownStream(account, string(journal.Wakeups)); err != nil {
		t.Fatal(err)
	}
	lease := fetch()
	if lease.Version != 2 || lease.Fired.Before(at) {
		t.Errorf("version %d fired %s after its time", lease.Version, lease.Fired.Sub(at))
	}
	// Replaced while it is leased: handed out at once, and the first holder's
	// acknowledgement takes nothing away.
	wake(3, time.Now())
	newer := fetch()
	if newer.Version != 3 || newer.Delivered != 1 {
		t.Errorf("version %d, delivery %d", newer.Version, newer.Delivered)
	}
	if err := lease.Ack(t.Context()); err != nil {
		t.Error(err)
	}
	if w, found, err := j.PendingWake(t.Context(), "op_wake"); err != nil || !found || w.Version != 3 {
		t.Errorf("pending is version %d, %v, %v", w.Version, found, err)
	}
	if err := newer.Ack(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "the acknowledged one is gone", func() bool {
		_, found, err := j.PendingWake(t.Context(), "op_wake")
		return err == nil && !found
	})
	if list, err := leases.Fetch(t.Context(), 1, impatient); err != nil || len(list) > 0 {
		t.Errorf("handed out again: %d, %v", len(list), err)
	}
}

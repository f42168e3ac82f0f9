package cluster_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// impatient is how long the late tests wait for an answer.
const impatient = 300 * time.Millisecond

// arrivals counts the copies of messages that reach a server on a subject,
// whatever its stream makes of them.
func (c *cluster) arrivals(t *testing.T, account string, i int, subject string) func() int {
	t.Helper()
	conn, err := nats.Connect(c.url(account, i))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	var count atomic.Int64
	if _, err := conn.Subscribe(subject, func(*nats.Msg) { count.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() int { return int(count.Load()) }
}

type ended struct {
	state   projections.State
	outcome journal.Outcome
	err     error
}

// inBackground appends and gives the end when it comes.
func inBackground(ctx context.Context, j *journal.Journal, s projections.State, id string, wish bool) chan ended {
	done := make(chan ended, 1)
	e := permit(id)
	if wish {
		e = evidence(id)
	}
	go func() {
		newest, outcome, err := j.Append(ctx, s, e)
		done <- ended{newest, outcome, err}
	}()
	return done
}

func end(t *testing.T, done <-chan ended) ended {
	t.Helper()
	select {
	case e := <-done:
		return e
	case <-time.After(soon):
		t.Fatalf("the append has not ended within %s", soon)
		return ended{}
	}
}

// unended fails if the append concluded anything.
func unended(t *testing.T, done <-chan ended) {
	t.Helper()
	select {
	case e := <-done:
		t.Fatalf("concluded %s, %v while its copies were on their way", e.outcome, e.err)
	default:
	}
}

// subjectOf is where an operation's facts go.
func subjectOf(operation string) string { return "facts.*.*." + operation }

// What an author sends is held on its way from the server it is connected to. It
// can ask the stream's leader meanwhile, who has nothing, and must not conclude
// from this that there will be nothing.
func heldOnTheWay(t *testing.T, c *cluster, account string) {
	leader := c.leaderOf(t, account, journal.Ledger)
	far := c.others(leader)[0]
	near := newJournal(c.connect(t, account, leader))
	store := &counted{Store: c.connect(t, account, far), limit: impatient}
	j := newJournal(store)
	way := c.links[[2]int{min(leader, far), max(leader, far)}]
	// With its consensus held too, the far server stands for election after 4 s.
	held := func(t *testing.T, operation string, f func(s projections.State, arrived func() int)) {
		s := create(t, near, operation)
		arrived := c.arrivals(t, account, leader, subjectOf(operation))
		store.unanswered.Store(0)
		way.hold(account)
		defer way.release(account)
		f(s, arrived)
	}
	sent := func(t *testing.T, n int64) {
		eventually(t, "copies are under way", func() bool { return store.unanswered.Load() >= n })
	}

	t.Run("it lands later", func(t *testing.T) {
		held(t, "op_later", func(s projections.State, arrived func() int) {
			done := inBackground(t.Context(), j, s, "permit", false)
			sent(t, 2)
			unended(t, done)
			if n := arrived(); n != 0 {
				t.Fatalf("%d copies arrived: nothing is late here", n)
			}
			way.release(account)
			if e := end(t, done); e.err != nil || e.outcome != journal.Stored {
				t.Fatalf("%s, %v", e.outcome, e.err)
			}
			eventually(t, "both copies arrive", func() bool { return arrived() >= 2 })
			create(t, near, "op_later_fence")
			if ids := ledgerIDs(t, near, "op_later"); !slices.Equal(ids, []string{"op_later-intent", "permit"}) {
				t.Fatalf("the ledger holds %v", ids)
			}
		})
	})
	t.Run("another comes first", func(t *testing.T) {
		held(t, "op_first", func(s projections.State, arrived func() int) {
			done := inBackground(t.Context(), j, s, "permit", false)
			sent(t, 1)
			unended(t, done)
			if _, outcome, err := near.Append(t.Context(), s, permit("other")); err != nil || outcome != journal.Stored {
				t.Fatal(outcome, err)
			}
			// It is settled now, although its copies are still under way.
			if e := end(t, done); e.err != nil || e.outcome != journal.Superseded {
				t.Fatalf("%s, %v", e.outcome, e.err)
			}
			before := arrived()
			way.release(account)
			eventually(t, "a copy arrives", func() bool { return arrived() > before })
			create(t, near, "op_first_fence")
			if ids := ledgerIDs(t, near, "op_first"); !slices.Equal(ids, []string{"op_first-intent", "other"}) {
				t.Fatalf("the ledger holds %v", ids)
			}
		})
	})
	t.Run("evidence that is beaten", func(t *testing.T) {
		held(t, "op_beaten", func(s projections.State, arrived func() int) {
			done := inBackground(t.Context(), j, s, "wish", true)
			sent(t, 1)
			if _, outcome, err := near.Append(t.Context(), s, permit("other")); err != nil || outcome != journal.Stored {
				t.Fatal(outcome, err)
			}
			sent(t, 2)
			unended(t, done)
			way.release(account)
			if e := end(t, done); e.err != nil || e.outcome != journal.Stored {
				t.Fatalf("%s, %v", e.outcome, e.err)
			}
			eventually(t, "copies for both places arrive", func() bool { return arrived() >= 3 })
			create(t, near, "op_beaten_fence")
			if ids := ledgerIDs(t, near, "op_beaten"); !slices.Equal(ids, []string{"op_beaten-intent", "other", "wish"}) {
				t.Fatalf("the ledger holds %v", ids)
			}
		})
	})
	t.Run("its author cannot wait", func(t *testing.T) {
		held(t, "op_unknown", func(s projections.State, _ func() int) {
			ctx, cancel := context.WithCancel(t.Context())
			done := inBackground(ctx, j, s, "permit", false)
			sent(t, 1)
			cancel()
			if e := end(t, done); e.outcome != journal.Unsettled || !errors.Is(e.err, journal.ErrUnknown) {
				t.Fatalf("%s, %v; want it to be unknown", e.outcome, e.err)
			}
			if ids := ledgerIDs(t, near, "op_unknown"); len(ids) != 1 {
				t.Fatalf("the ledger holds %v", ids)
			}
			way.release(account)
			eventually(t, "what was called unknown lands", func() bool { return len(ledgerIDs(t, near, "op_unknown")) == 2 })
		})
	})
}

// A connection is lost with messages in it that the server gets all the same,
// after the author has gone on over another.
func lostConnection(t *testing.T, c *cluster, account string) {
	entrance := newLink(t)
	t.Cleanup(entrance.close)
	address := "nats://" + account + ":" + account + "@" + entrance.address()
	near := newJournal(c.connect(t, account, 0))

	// lose runs act while the messages it sends are held, then moves its connection
	// to another server. It returns what delivers the held ones, when act is through.
	lose := func(t *testing.T, label string, j *journal.Journal, store *counted, act func() error) (deliver func()) {
		store.unanswered.Store(0)
		entrance.hold(label)
		done := make(chan error, 1)
		go func() { done <- act() }()
		eventually(t, "a copy is under way", func() bool { return store.unanswered.Load() >= 1 })
		entrance.leadTo(c.servers[1].Addr().String(), label+" again")
		entrance.leave(label)
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(soon):
			t.Fatalf("not through within %s over the new connection", soon)
		}
		return func() { entrance.release(label) }
	}
	enter := func(t *testing.T, label string) (*journal.Journal, *counted) {
		entrance.leadTo(c.servers[0].Addr().String(), label)
		store := &counted{Store: connect(t, address), limit: impatient}
		return newJournal(store), store
	}

	t.Run("ledger", func(t *testing.T) {
		const operation = "op_lost"
		s := create(t, near, operation)
		arrived := c.arrivals(t, account, 0, subjectOf(operation))
		j, store := enter(t, "ledger")
		var outcome journal.Outcome
		deliver := lose(t, "ledger", j, store, func() (err error) {
			_, outcome, err = j.Append(t.Context(), s, permit("permit"))
			return err
		})
		if outcome != journal.Stored {
			t.Fatalf("ended in %s", outcome)
		}
		before := arrived()
		deliver()
		eventually(t, "the first copy arrives", func() bool { return arrived() > before })
		create(t, near, "op_lost_fence") // on the same way, so behind it
		if ids := ledgerIDs(t, near, operation); !slices.Equal(ids, []string{operation + "-intent", "permit"}) {
			t.Fatalf("the ledger holds %v", ids)
		}
	})
	// The first copy of a wake-up must not land over a newer wake-up, which no guard
	// on its own subject could prevent once that has fired.
	t.Run("wake-ups", func(t *testing.T) {
		const operation = "op_wake"
		create(t, near, operation)
		arrived := c.arrivals(t, account, 0, "wake."+operation)
		j, store := enter(t, "wakeups")
		tenure, err := j.TakeOver(t.Context(), journal.Partition(operation))
		if err != nil {
			t.Fatal(err)
		}
		wake := func(version uint64, after time.Duration) journal.Wake {
			return journal.Wake{Operation: operation, Provider: "example", Version: version, At: time.Now().Add(after)}
		}
		deliver := lose(t, "wakeups", j, store, func() error { return tenure.Wake(t.Context(), wake(1, time.Hour)) })
		if err := tenure.Wake(t.Context(), wake(2, 2*time.Hour)); err != nil {
			t.Fatal(err)
		}
		before := arrived()
		deliver()
		eventually(t, "the first copy arrives", func() bool { return arrived() > before })
		// On the same way, so behind it.
		fence, err := near.TakeOver(t.Context(), journal.Partition("op_other"))
		if err != nil {
			t.Fatal(err)
		}
		if err := fence.Wake(t.Context(), journal.Wake{Operation: "op_other", Provider: "example", Version: 1, At: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if w, found, err := near.PendingWake(t.Context(), operation); err != nil || !found || w.Version != 2 {
			t.Fatalf("pending is version %d, %v, %v; want 2", w.Version, found, err)
		}
		// The tenure goes on.
		if err := tenure.Wake(t.Context(), wake(3, time.Hour)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("history", func(t *testing.T) {
		const operation = "op_record"
		create(t, near, operation)
		arrived := c.arrivals(t, account, 0, "history.*.*."+operation)
		j, store := enter(t, "history")
		tenure, err := j.TakeOver(t.Context(), journal.Partition(operation))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := near.Timeline(t.Context(), operation)
		if err != nil {
			t.Fatal(err)
		}
		_, record := projections.Fold(projections.State{}, lines[0].Entry)
		deliver := lose(t, "history", j, store, func() error { return tenure.CommitRun(t.Context(), []projections.Record{record}) })
		before := arrived()
		deliver()
		eventually(t, "the first copy arrives", func() bool { return arrived() > before })
		fence, err := near.TakeOver(t.Context(), journal.Partition(operation)) // behind it
		if err != nil {
			t.Fatal(err)
		}
		if fence.Position() != record.Sequence {
			t.Fatalf("position %d, want %d", fence.Position(), record.Sequence)
		}
		n := 0
		for from := uint64(1); ; n++ {
			m, err := store.Next(t.Context(), journal.History, "history.*.*."+operation, from)
			if errors.Is(err, journal.ErrNoMessage) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			from = m.Sequence + 1
		}
		if n != 1 {
			t.Fatalf("%d records of one fact", n)
		}
	})
}

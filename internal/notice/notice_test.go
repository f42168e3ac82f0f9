package notice

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a store with operations that rest, and what their tellers said.
type desk struct {
	t       *testing.T
	store   *tapped
	journal *journal.Journal
	ids     atomic.Uint64
	log     safe

	mu   sync.Mutex
	told []Notice
}

type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// tapped can fail a write of the ledger, undone or done.
type tapped struct {
	journal.Store
	fail func(kind string) (undone, done error)
}

func (s *tapped) Publish(ctx context.Context, stream journal.Stream, m journal.Outgoing) (uint64, error) {
	if s.fail == nil || stream != journal.Ledger {
		return s.Store.Publish(ctx, stream, m)
	}
	kind := ""
	for name, v := range m.Header {
		if strings.EqualFold(name, "ce-type") {
			kind = v[0]
		}
	}
	undone, done := s.fail(kind)
	if undone != nil {
		return 0, undone
	}
	n, err := s.Store.Publish(ctx, stream, m)
	if done != nil {
		return 0, done
	}
	return n, err
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, store: &tapped{Store: memory.New(memory.Config{Now: time.Now})}}
	sleep := func(ctx context.Context, wait time.Duration) error {
		select {
		case <-time.After(wait):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.journal = journal.New(journal.Options{Store: d.store, Now: time.Now, Sleep: sleep, NewID: d.id})
	return d
}

func (d *desk) id() string { return fmt.Sprintf("id-%d", d.ids.Add(1)) }

// rests makes an operation that rests in conflict.
func (d *desk) rests(operation string) projections.State {
	d.t.Helper()
	s, _, err := d.journal.Create(context.Background(), events.Event{ID: d.id(), Source: "/test", Operation: operation, Fact: &events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: "main", Rules: projections.Rules,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Cancel: time.Hour, Collect: time.Hour},
	}})
	if err != nil {
		d.t.Fatal(err)
	}
	return d.put(s, &events.JobContested{JobID: "j-1", Owner: "op_other"})
}

func (d *desk) put(s projections.State, fact events.Fact) projections.State {
	d.t.Helper()
	s, outcome, err := d.journal.Append(context.Background(), s, events.Event{ID: d.id(), Source: "/test", Fact: fact})
	if err != nil || outcome != journal.Stored {
		d.t.Fatal(outcome, err)
	}
	return s
}

func (d *desk) state(operation string) projections.State {
	d.t.Helper()
	s, err := d.journal.Current(context.Background(), operation)
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

// teller is a run of the process: earlier ones are gone.
func (d *desk) teller(run string, act func(context.Context, Notice) Ran) *Teller {
	return New(Config{
		Journal: d.journal, Now: time.Now, NewID: d.id, Log: slog.New(slog.NewTextHandler(&d.log, nil)),
		Source: "/notifier/" + run, Owner: "notifier/" + run, Gone: func(o string) bool { return o < "notifier/"+run },
		Run: func(ctx context.Context, document []byte) Ran {
			var n Notice
			if err := json.Unmarshal(document, &n); err != nil {
				d.t.Error(err)
			}
			d.mu.Lock()
			d.told = append(d.told, n)
			d.mu.Unlock()
			if act != nil {
				return act(ctx, n)
			}
			return Ran{Outcome: events.CallDone}
		},
	})
}

func (d *desk) running(t *Teller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := t.Run(ctx); err != nil {
			d.t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// said gives what was told since, as "attempt id".
func (d *desk) said() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for _, n := range d.told {
		list = append(list, fmt.Sprintf("%d %s", n.Attempt, n.ID))
	}
	d.told = nil
	return list
}

func (d *desk) want(what string, want ...string) {
	d.t.Helper()
	synctest.Wait()
	if got := d.said(); !slices.Equal(got, want) {
		d.t.Errorf("%s: told %q, want %q\n%s", what, got, want, d.log.String())
	}
}

// facts gives the operation's notices as the ledger has them.
func (d *desk) facts(operation string) []string {
	d.t.Helper()
	lines, err := d.journal.Timeline(context.Background(), operation)
	if err != nil {
		d.t.Fatal(err)
	}
	var list []string
	for _, line := range lines {
		switch f := line.Entry.Event.Fact.(type) {
		case *events.NotificationAttempted:
			list = append(list, fmt.Sprintf("attempted %d", f.Number))
		case *events.NotificationAnswered:
			list = append(list, fmt.Sprintf("answered %d %s", f.Attempt, f.Outcome))
		default: // not about notices
		}
	}
	return list
}

func bubble(t *testing.T, name string, f func(*testing.T, *desk)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, newDesk(t)) }) })
}

func TestTell(t *testing.T) {
	bubble(t, "once, however often it is heard of", func(t *testing.T, d *desk) {
		teller := d.teller("r1", nil)
		stop := d.running(teller)
		s := d.rests("op_1")
		teller.Stopped(s, true)
		teller.Stopped(s, true)
		d.want("fresh", "1 op_1/1")
		teller.Stopped(d.state("op_1"), false)
		d.want("by a sweep", []string{}...)
		stop()
		later := d.teller("r2", nil)
		stop = d.running(later)
		later.Stopped(d.state("op_1"), false)
		later.Stopped(s, true) // the record was not written and is derived again
		d.want("by the next run", []string{}...)
		stop()
		if got, want := d.facts("op_1"), []string{"attempted 1", "answered 1 done"}; !slices.Equal(got, want) {
			t.Errorf("facts %q, want %q", got, want)
		}
	})
	bubble(t, "another rest is other news", func(t *testing.T, d *desk) {
		teller := d.teller("r1", nil)
		stop := d.running(teller)
		defer stop()
		s := d.rests("op_1")
		teller.Stopped(s, true)
		synctest.Wait()
		s = d.put(d.state("op_1"), &events.DecisionMade{Choice: events.DecideAdopt, JobID: "j-1", Claim: events.ClaimOwn})
		s = d.put(s, &events.JobContested{JobID: "j-1", Owner: "op_third"})
		teller.Stopped(s, true)
		d.want("twice", "1 op_1/1", "1 op_1/2")
	})
	bubble(t, "not of what has moved on", func(t *testing.T, d *desk) {
		teller := d.teller("r1", nil)
		s := d.rests("op_1")
		teller.Stopped(s, true)
		d.put(s, &events.DecisionMade{Choice: events.DecideAbandon})
		defer d.running(teller)()
		d.want("abandoned before its turn", []string{}...)
		if !strings.Contains(d.log.String(), "level=ERROR msg=\"operation stopped") {
			t.Error("the log does not have it")
		}
	})
	bubble(t, "a command that fails is in the log and the ledger, and is not run again", func(t *testing.T, d *desk) {
		teller := d.teller("r1", func(context.Context, Notice) Ran { return Ran{events.CallRefused, "exit status 7"} })
		defer d.running(teller)()
		teller.Stopped(d.rests("op_1"), true)
		d.want("failed", "1 op_1/1")
		teller.Stopped(d.state("op_1"), false)
		d.want("swept", []string{}...)
		if !strings.Contains(d.log.String(), "exit status 7") || !slices.Equal(d.facts("op_1"), []string{"attempted 1", "answered 1 refused"}) {
			t.Error(d.log.String(), d.facts("op_1"))
		}
	})
	bubble(t, "a decision comes first", func(t *testing.T, d *desk) {
		teller := d.teller("r1", nil)
		s := d.rests("op_1")
		once := false
		d.store.fail = func(kind string) (error, error) {
			if strings.HasPrefix(kind, "dev.counterfoil.notification.attempted") && !once {
				once = true
				d.put(s, &events.DecisionMade{Choice: events.DecideAbandon})
			}
			return nil, nil
		}
		defer d.running(teller)()
		teller.Stopped(s, true)
		d.want("abandoned while it was permitted", []string{}...)
	})
}

// A process that dies at any step has told once or tells again, and no more than
// once again, and a second death ends it.
func TestCrash(t *testing.T) {
	dead := errors.New("dead")
	// until runs a teller to its death at a step: nothing it does afterwards is stored.
	until := func(d *desk, run, kind string, done bool, s projections.State, fresh bool) {
		died := false
		d.store.fail = func(k string) (error, error) {
			if died {
				return dead, nil
			}
			if strings.HasPrefix(k, "dev.counterfoil."+kind) {
				died = true
				if done {
					return nil, journal.ErrUnanswered
				}
				return dead, nil
			}
			return nil, nil
		}
		teller := d.teller(run, func(context.Context, Notice) Ran {
			if kind == "command" {
				died = true
			}
			return Ran{Outcome: events.CallDone}
		})
		stop := d.running(teller)
		teller.Stopped(s, fresh)
		time.Sleep(time.Minute)
		stop()
		d.store.fail = nil
	}
	bubble(t, "before the permit", func(t *testing.T, d *desk) {
		until(d, "r1", "notification.attempted", false, d.rests("op_1"), true)
		d.want("by the dead", []string{}...)
		next := d.teller("r2", nil)
		defer d.running(next)()
		next.Stopped(d.state("op_1"), false)
		d.want("by the next run", "1 op_1/1")
	})
	for _, c := range []struct{ name, kind string }{{"in the command", "command"}, {"at the answer", "notification.answered"}} {
		kind := c.kind
		bubble(t, c.name, func(t *testing.T, d *desk) {
			until(d, "r1", kind, false, d.rests("op_1"), true)
			d.want("by the dead", "1 op_1/1")
			until(d, "r2", kind, false, d.state("op_1"), false)
			d.want("by the next, that dies too", "2 op_1/1")
			next := d.teller("r3", nil)
			stop := d.running(next)
			next.Stopped(d.state("op_1"), false)
			d.want("by the third", []string{}...)
			next.Stopped(d.state("op_1"), false)
			d.want("and later", []string{}...)
			stop()
			want := []string{"attempted 1", "attempted 2", "answered 2 presumed"}
			if got := d.facts("op_1"); !slices.Equal(got, want) {
				t.Errorf("facts %q, want %q", got, want)
			}
			if !strings.Contains(d.log.String(), "begun twice and never ended") {
				t.Error(d.log.String())
			}
		})
	}
	bubble(t, "stopped in order while the command runs", func(t *testing.T, d *desk) {
		teller := d.teller("r1", func(ctx context.Context, _ Notice) Ran { <-ctx.Done(); return Ran{events.CallAmbiguous, "killed"} })
		stop := d.running(teller)
		teller.Stopped(d.rests("op_1"), true)
		synctest.Wait()
		stop()
		d.want("cut off", "1 op_1/1")
		next := d.teller("r2", nil)
		defer d.running(next)()
		next.Stopped(d.state("op_1"), false)
		d.want("repeated", "2 op_1/1")
	})
	bubble(t, "of somebody who may be alive, only once it cannot be running", func(t *testing.T, d *desk) {
		until(d, "r2", "command", false, d.rests("op_1"), true)
		d.want("by the silent", "1 op_1/1")
		other := d.teller("r1", nil) // knows nothing of r2
		defer d.running(other)()
		other.Stopped(d.state("op_1"), false) // 60 s have passed of 30 + 30 + 5
		d.want("too early", []string{}...)
		time.Sleep(6 * time.Second)
		other.Stopped(d.state("op_1"), false)
		d.want("then", "2 op_1/1")
	})
}

// A thousand rests at once run two commands at a time, and all are told of.
func TestStorm(t *testing.T) {
	bubble(t, "", func(t *testing.T, d *desk) {
		var running, peak atomic.Int64
		teller := d.teller("r1", func(context.Context, Notice) Ran {
			n := running.Add(1)
			for {
				p := peak.Load()
				if n <= p || peak.CompareAndSwap(p, n) {
					break
				}
			}
			time.Sleep(time.Second)
			running.Add(-1)
			return Ran{Outcome: events.CallDone}
		})
		defer d.running(teller)()
		began := time.Now()
		for i := range 1000 {
			teller.Stopped(d.rests(fmt.Sprintf("op_%d", i)), true)
		}
		if time.Since(began) != 0 {
			t.Errorf("whoever reports a rest waited %s", time.Since(began))
		}
		time.Sleep(10 * time.Minute)
		if got := d.said(); len(got) != 1000 || peak.Load() != 2 {
			t.Errorf("%d told, %d at once", len(got), peak.Load())
		}
	})
}

// Without a command there is the line, and no fact.
func TestLogOnly(t *testing.T) {
	bubble(t, "", func(t *testing.T, d *desk) {
		teller := New(Config{Journal: d.journal, Now: time.Now, NewID: d.id, Log: slog.New(slog.NewJSONHandler(&d.log, nil))})
		teller.Stopped(d.rests("op_1"), true)
		teller.Stopped(d.state("op_1"), false)
		if err := teller.Run(t.Context()); err != nil {
			t.Error(err)
		}
		var line map[string]any
		if err := json.Unmarshal([]byte(d.log.String()), &line); err != nil { // one line and no more
			t.Fatalf("%v\n%s", err, d.log.String())
		}
		for name, want := range map[string]string{
			"level": "ERROR", "operation": "op_1", "phase": "quarantined", "kind": "conflict", "reason": "job_conflict", "provider": "example",
			"account": "main", "runbook": base + "quarantined-conflict.md", "command": "counterfoil timeline op_1",
		} {
			if line[name] != want {
				t.Errorf("%s is %v, want %s", name, line[name], want)
			}
		}
		if got := d.facts("op_1"); len(got) != 0 {
			t.Error(got)
		}
	})
}

// A notice says what went wrong in asking, in our words; those of the provider
// are not in it.
func TestNoticeSaysTheCause(t *testing.T) {
	s := projections.State{Operation: "op_1", Phase: projections.PhaseResultTimedOut, Reason: projections.ReasonResultDeadline}
	s.Job.ID, s.Pace.Failures = "j-1", 40
	s.Problem = projections.Problem{Class: events.ErrorUnauthorized, Message: "words of the provider"}
	n := Of(s)
	if n.Problem != events.ErrorUnauthorized || n.Cause != "the last 40 status reads failed: not authorised" {
		t.Errorf("%+v", n)
	}
	if line := fmt.Sprint(n.attributes()...); !strings.Contains(line, n.Cause) || strings.Contains(line+string(n.document()), "words of") {
		t.Errorf("%s\n%s", line, n.document())
	}
	s.Problem = projections.Problem{}
	if text := string(Of(s).document()); strings.Contains(text, "problem") || strings.Contains(text, "cause") {
		t.Error(text)
	}
}

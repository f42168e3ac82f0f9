package crash_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// row is a row of docs/CRASHES.md that a single failed step does not bring
// about: it needs two parties, or something from outside at a certain moment.
type row struct {
	name     string // as in the table
	provider string // "example" if empty
	house    harness.Options
	options  simulator.Options // a plan of three short steps if there is none
	rules    []simulator.Rule
	hold     func(*simulator.Gate) simulator.Rule
	play     func(t *testing.T, r *rig, gate *simulator.Gate)
}

func TestSubmit(t *testing.T) {
	rows(t,
		row{name: "two submits of one key at once", play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			ids := make([]string, 20)
			var all sync.WaitGroup
			for i := range ids {
				all.Go(func() {
					op, _, err := r.Client.Submit(t.Context(), "both", submission("example", "both"))
					if err != nil {
						t.Error(err)
					}
					ids[i] = op.ID
				})
			}
			all.Wait()
			slices.Sort(ids)
			if ids = slices.Compact(ids); len(ids) != 1 {
				t.Fatalf("operations %v", ids)
			}
			_, _, err := r.Client.Submit(t.Context(), "both", submission("example", "something else"))
			var problem *client.Problem
			if !errors.As(err, &problem) || problem.Code != "idempotency_key_reused" {
				t.Errorf("the same key for another request: %v", err)
			}
			r.ends(ids[0], "both", "succeeded")
			r.facts(ids[0], "intent.recorded", 1)
		}},
	)
}

func TestLedgerAndProjector(t *testing.T) {
	rows(t,
		row{name: "wake-up seen before its history record", play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			open := make(chan struct{})
			r.w.onPublish(func(label string, _ journal.Stream, _ journal.Outgoing) {
				if strings.HasPrefix(label, "history of ") {
					<-open
				}
			})
			op := r.submit("early")
			synctest.Wait()
			if records, err := r.records(op.ID); err != nil || len(records) != 0 {
				t.Fatalf("%d records, %v", len(records), err)
			}
			if n := r.jobs("early"); n != 1 {
				t.Errorf("%d jobs before the first record, want 1", n)
			}
			close(open)
			r.ends(op.ID, "early", "succeeded")
		}},
		row{name: "projector stopped, partition taken over, the old one comes back", play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			stopped, open, once := make(chan struct{}), make(chan struct{}), sync.Once{}
			r.w.onPublish(func(label string, _ journal.Stream, _ journal.Outgoing) {
				first := false
				if label == "history of create.answered" {
					once.Do(func() { first = true })
				}
				if first {
					close(stopped)
					<-open
				}
			})
			op := r.submit("taken")
			<-stopped
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- r.Service.RunProjector(ctx, func() { close(ready) }) }()
			<-ready
			close(open)
			r.ends(op.ID, "taken", "succeeded")
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}},
		row{name: "a fact that cannot be read", options: short("running"), play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			bad := r.submit("bad")
			r.Wait(bad.ID, time.Minute, "observing")
			// One neighbour in the same partition, of as many as that takes.
			var near client.Operation
			for i := 0; near.ID == "" || journal.Partition(near.ID) != journal.Partition(bad.ID); i++ {
				near = r.submit(fmt.Sprintf("near-%d", i))
			}
			subject := fmt.Sprintf("facts.0.%02d.%s", journal.Partition(bad.ID), bad.ID)
			if _, err := r.Store.Publish(t.Context(), journal.Ledger, journal.Outgoing{Subject: subject, Data: []byte("no fact")}); err != nil {
				t.Fatal(err)
			}
			if op := r.Wait(bad.ID, time.Minute, "quarantined"); op.Quarantine != "unreadable" {
				t.Errorf("quarantined as %s", op.Quarantine)
			}
			if _, err := r.Client.Cancel(t.Context(), near.ID, "end"); err != nil {
				t.Fatal(err)
			}
			r.Wait(near.ID, time.Minute, "cancelled")
			r.check(near.ID)
		}},
	)
}

func TestCreate(t *testing.T) {
	list := []row{
		{name: "permit not stored, another fact came first", play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			once := sync.Once{}
			r.w.onPublish(func(label string, _ journal.Stream, m journal.Outgoing) {
				if label != "fact create.attempted" {
					return
				}
				once.Do(func() {
					if _, err := r.Client.Cancel(t.Context(), m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], "first"); err != nil {
						t.Error(err)
					}
				})
			})
			op := r.submit("beaten")
			r.Wait(op.ID, time.Minute, "cancelled")
			if n := r.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 0 {
				t.Errorf("%d creates on the wire, want none", n)
			}
			r.facts(op.ID, "create.attempted", 0)
			r.check(op.ID)
		}},
		{
			name: "answer seen, ledger moved on", options: short("running"),
			hold: func(g *simulator.Gate) simulator.Rule {
				return simulator.On(simulator.Create, simulator.Nth(1), simulator.HoldAfter{Gate: g})
			},
			play: func(t *testing.T, r *rig, gate *simulator.Gate) {
				op := r.submit("moved")
				gate.WaitArrived(1, t.Context().Done())
				if _, err := r.Client.Cancel(t.Context(), op.ID, "meanwhile"); err != nil {
					t.Fatal(err)
				}
				gate.Release()
				r.ends(op.ID, "moved", "cancelled")
				if order := r.order(op.ID, "cancel.requested", "create.answered"); !order {
					t.Error("the cancel is not before the answer")
				}
			},
		},
		{
			name: "lease lost while working", house: harness.Options{Pollers: 2, Edit: slowRequests},
			hold: func(g *simulator.Gate) simulator.Rule {
				return simulator.On(simulator.Create, simulator.Nth(1), simulator.HoldAfter{Gate: g})
			},
			play: func(t *testing.T, r *rig, gate *simulator.Gate) {
				r.w.loseLeases(true)
				op := r.submit("lost")
				gate.WaitArrived(1, t.Context().Done())
				time.Sleep(80 * time.Second) // two leases
				if n := r.w.fetched(op.ID); n < 2 {
					t.Errorf("the wake-up was leased %d times: nothing was lost", n)
				}
				gate.Release()
				r.ends(op.ID, "lost", "succeeded")
				if n := r.Sim.Count(simulator.Filter{Call: simulator.Create}); n != 1 {
					t.Errorf("%d creates on the wire, want 1", n)
				}
			},
		},
	}
	for _, provider := range []string{"example", "example-lookup", "example-ask"} {
		for at, hold := range map[string]func(*simulator.Gate) simulator.Fault{
			"on its way":     func(g *simulator.Gate) simulator.Fault { return simulator.HoldBefore{Gate: g} },
			"being answered": func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} },
		} {
			list = append(list, row{
				name: "request under way, " + at + ", " + provider, provider: provider,
				hold: func(g *simulator.Gate) simulator.Rule {
					return simulator.On(simulator.Create, simulator.Nth(1), hold(g))
				},
				play: func(t *testing.T, r *rig, gate *simulator.Gate) {
					sub := submission(provider, "killed")
					sub.Deadlines = &client.Deadlines{Create: "2m"} // ends the wait of a contract that can only ask
					op, _, err := r.Client.Submit(t.Context(), "killed", sub)
					if err != nil {
						t.Fatal(err)
					}
					r.key = "killed"
					gate.WaitArrived(1, t.Context().Done())
					r.restart()
					gate.Release()
					if provider == "example-ask" {
						if op = r.Wait(op.ID, 10*time.Minute); op.State != "quarantined" || op.Quarantine != "unknown" {
							t.Errorf("%s %s, want to be asked", op.State, op.Quarantine)
						}
						time.Sleep(time.Minute) // it asks at once; the request that was on its way acts in its own time
						if err := adopt(t.Context(), r, op); err != nil {
							t.Fatal(err)
						}
					}
					r.ends(op.ID, "killed", "succeeded")
				},
			})
		}
	}
	rows(t, list...)
}

func TestFollowCancelCollect(t *testing.T) {
	list := []row{
		{
			name: "status read by two owners", house: harness.Options{Edit: slowRequests},
			options: simulator.Options{Plan: simulator.Steps(time.Hour, "running", "succeeded")},
			hold: func(g *simulator.Gate) simulator.Rule {
				return simulator.On(simulator.Status, simulator.Nth(1), simulator.HoldAfter{Gate: g})
			},
			play: func(t *testing.T, r *rig, gate *simulator.Gate) {
				op := r.submit("twice")
				gate.WaitArrived(1, t.Context().Done()) // "running" is about to be said
				job := r.Sim.Jobs()[0].ID
				// The lease cannot be extended, and another owner gets the next one.
				r.w.loseLeases(true)
				r.w.freeze()
				r.Poller("other")
				r.mount.Move(job, "succeeded")
				r.Wait(op.ID, 40*time.Second, "succeeded")
				gate.Release()
				synctest.Wait()
				r.ends(op.ID, "twice", "succeeded")
				late := 0
				for _, e := range r.Timeline(op.ID) {
					if strings.HasPrefix(e.Type, "job.observed") && e.Fields["class"] == "running" && e.Verdict == "noted" {
						late++
					}
				}
				if late != 1 {
					t.Errorf("%d late observations noted, want 1\n%s", late, r.Story(op.ID))
				}
			},
		},
		{
			name: "result is read while a cancel lands",
			hold: func(g *simulator.Gate) simulator.Rule {
				return simulator.On(simulator.Result, simulator.Nth(1), simulator.HoldAfter{Gate: g})
			},
			play: func(t *testing.T, r *rig, gate *simulator.Gate) {
				op := r.submit("too-late")
				gate.WaitArrived(1, t.Context().Done())
				_, err := r.Client.Cancel(t.Context(), op.ID, "too late")
				var problem *client.Problem
				if err != nil && !errors.As(err, &problem) {
					t.Fatal(err)
				}
				gate.Release()
				if op = r.ends(op.ID, "too-late", "succeeded"); err == nil && (op.Cancel == nil || !op.Cancel.TooLate) {
					t.Errorf("the wish is not shown as too late: %+v", op.Cancel)
				}
				if n := r.Sim.Count(simulator.Filter{Call: simulator.Cancel}); n != 0 {
					t.Errorf("%d cancels on the wire, want none", n)
				}
			},
		},
	}
	for at, hold := range map[string]func(*simulator.Gate) simulator.Fault{
		"sent": func(g *simulator.Gate) simulator.Fault { return simulator.HoldBefore{Gate: g} },
		"done": func(g *simulator.Gate) simulator.Fault { return simulator.HoldAfter{Gate: g} },
	} {
		list = append(list, row{
			name: "cancel.attempted stored, cancel " + at, options: short("running"),
			hold: func(g *simulator.Gate) simulator.Rule {
				return simulator.On(simulator.Cancel, simulator.Nth(1), hold(g))
			},
			play: func(t *testing.T, r *rig, gate *simulator.Gate) {
				op := r.submit("cancelled")
				r.Wait(op.ID, time.Minute, "observing")
				if _, err := r.Client.Cancel(t.Context(), op.ID, "now"); err != nil {
					t.Fatal(err)
				}
				gate.WaitArrived(1, t.Context().Done())
				r.restart()
				gate.Release()
				r.ends(op.ID, "cancelled", "cancelled")
			},
		})
	}
	rows(t, list...)
}

func TestWebhooks(t *testing.T) {
	rows(t,
		row{
			name: "received, not stored", house: harness.Options{Webhooks: true},
			rules: []simulator.Rule{simulator.On(simulator.Webhook, simulator.Always(), simulator.WebhookRepeat(2))},
			play: func(t *testing.T, r *rig, _ *simulator.Gate) {
				r.w.arm(step{label: "webhook", n: 1}, refused)
				op := r.submit("hooks")
				r.ends(op.ID, "hooks", "succeeded")
				list := r.Sim.Deliveries()
				if len(list) < 2 || list[0].Status < 500 || list[1].Status/100 != 2 || list[0].EventID != list[1].EventID {
					t.Errorf("deliveries %+v, want one refused and then taken", list)
				}
				seen := map[string]int{}
				for _, d := range list {
					seen[d.EventID]++
				}
				r.facts(op.ID, "webhook.received", len(seen))
			},
		},
		row{
			name: "arrived before the job id is known", house: harness.Options{Webhooks: true},
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.EarlyWebhook{}, simulator.DelayAfter(time.Second))},
			play: func(t *testing.T, r *rig, _ *simulator.Gate) {
				op := r.submit("soon")
				r.ends(op.ID, "soon", "succeeded")
				if !r.order(op.ID, "webhook.received", "create.answered") {
					t.Errorf("no webhook came before the answer\n%s", r.Story(op.ID))
				}
			},
		},
		row{
			name: "arrived before the job id is known, answer lost", house: harness.Options{Webhooks: true},
			rules: []simulator.Rule{simulator.On(simulator.Create, simulator.Nth(1), simulator.EarlyWebhook{}, simulator.DropAnswer{Reset: true})},
			play: func(t *testing.T, r *rig, _ *simulator.Gate) {
				op := r.submit("only")
				r.ends(op.ID, "only", "succeeded")
			},
		},
	)
}

func TestMachineAndDisk(t *testing.T) {
	long := simulator.Options{Plan: simulator.Steps(10*time.Second, "queued", "running", "succeeded")}
	list := []row{{
		name: "ledger lost, identity kept", options: long,
		play: func(t *testing.T, r *rig, _ *simulator.Gate) {
			op := r.submit("again")
			r.Wait(op.ID, time.Minute, "observing")
			r.damage("")
			if _, err := r.Client.Get(t.Context(), op.ID); err == nil {
				t.Fatal("the ledger is still there")
			}
			if next := r.submit("again"); next.ID != op.ID {
				t.Errorf("the key gives %s, before %s", next.ID, op.ID)
			}
			r.ends(op.ID, "again", "succeeded")
		},
	}}
	for _, streams := range [][]journal.Stream{{journal.Wakeups}, {journal.Index}, {journal.History}, {journal.Wakeups, journal.Index, journal.History}} {
		list = append(list, row{
			name: fmt.Sprint("power loss, derived streams gone ", streams), options: long,
			play: func(t *testing.T, r *rig, _ *simulator.Gate) {
				ended := r.submit("ended")
				r.ends(ended.ID, "ended", "succeeded")
				live := r.submit("open")
				r.Wait(live.ID, time.Minute, "observing")
				var names []string
				for _, s := range streams {
					names = append(names, string(s))
				}
				r.damage(names...)
				for _, problem := range r.settled(live.ID) {
					t.Error(problem)
				}
				if slices.Contains(streams, journal.Index) {
					for i, want := range []string{ended.ID, live.ID} {
						owner, owned, err := r.Journal.Owner(t.Context(), "example", "default", r.Sim.Jobs()[i].ID)
						if err != nil || !owned || owner != want {
							t.Errorf("job %d belongs to %q, %v, %v", i, owner, owned, err)
						}
					}
				}
				r.ends(live.ID, "open", "succeeded")
				r.check(ended.ID)
			},
		})
	}
	rows(t, list...)
}

// slowRequests lets a request take longer than a lease.
func slowRequests(_, text string) string {
	return strings.ReplaceAll(text, "request_timeout: 30s", "request_timeout: 2m")
}

// rows plays each row in a bubble of its own.
func rows(t *testing.T, list ...row) {
	for _, one := range list {
		t.Run(one.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				provider := one.provider
				if provider == "" {
					provider = "example"
				}
				if one.options.Plan.Steps == nil {
					one.options = short("queued", "running", "succeeded")
				}
				gate := simulator.NewGate()
				defer gate.Release()
				if one.hold != nil {
					one.rules = append(one.rules, one.hold(gate))
				}
				one.house.Woken = true
				r := newRig(t, one.house)
				r.mount = r.Mount(dialect(provider), provider, one.options, one.rules...)
				one.play(t, r, gate)
			})
		})
	}
}

func (r *rig) submit(key string) client.Operation {
	r.t.Helper()
	op, _, err := r.Client.Submit(r.t.Context(), key, submission("example", key))
	if err != nil {
		r.t.Fatalf("submit %s: %v", key, err)
	}
	return op
}

// ends waits for the end and checks what has to hold at every one: the state,
// one job, and what audit says.
func (r *rig) ends(id, key, state string) client.Operation {
	r.t.Helper()
	op := r.Wait(id, 20*time.Minute, state)
	if n := r.jobs(key); n != 1 {
		r.t.Errorf("%d jobs, want 1", n)
	}
	r.check(id)
	return op
}

// check audits the operation, once what follows its end is over.
func (r *rig) check(id string) {
	r.t.Helper()
	time.Sleep(40 * time.Second) // longer than a lease that nobody ends
	synctest.Wait()
	if n := r.Sim.MaxAtOnceAny(); n > 1 {
		r.t.Errorf("%d calls with side effects at once", n)
	}
	if problems := r.audit(id); len(problems) > 0 {
		r.t.Errorf("%v\n%s", errors.Join(problems...), r.Story(id))
	}
}

// facts counts the operation's facts of a type.
func (r *rig) facts(id, kind string, want int) {
	r.t.Helper()
	n := 0
	for _, e := range r.Timeline(id) {
		if strings.HasPrefix(e.Type, kind+".") {
			n++
		}
	}
	if n != want {
		r.t.Errorf("%d facts %s, want %d\n%s", n, kind, want, r.Story(id))
	}
}

// order says whether the first fact of one type is before the first of another.
func (r *rig) order(id, first, second string) bool {
	at := func(kind string) int {
		return slices.IndexFunc(r.Timeline(id), func(e client.Entry) bool { return strings.HasPrefix(e.Type, kind+".") })
	}
	return at(first) >= 0 && at(first) < at(second)
}

// damage kills the process and removes streams from its disk, or with no names
// the whole store, before the next start.
func (r *rig) damage(streams ...string) {
	r.t.Helper()
	r.w.kill()
	r.Stop()
	remove := func(path string) {
		if err := os.RemoveAll(path); err != nil {
			r.t.Fatal(err)
		}
	}
	store := filepath.Join(r.Dir(), "jetstream")
	if streams[0] == "" {
		remove(store)
	} else {
		for _, name := range streams {
			found, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", name))
			if err != nil || len(found) != 1 {
				r.t.Fatalf("stream %s is at %v, %v", name, found, err)
			}
			remove(found[0])
		}
	}
	r.Start()
	synctest.Wait()
}

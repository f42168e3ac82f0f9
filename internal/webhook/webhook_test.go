package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/signature"
	"github.com/counterfoil/counterfoil/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret      = "canary-secret"
	otherSecret = "canary-other-secret"

	addressSecret = "canary-address-secret"
)

type clock struct{}

func (clock) Now() time.Time { return time.Now() } // the bubble's

func (clock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type directory struct {
	c *contract.Contract
	b *bench
}

func (d directory) Current(name string) (*contract.Contract, bool) { return d.c, name == "example" }
func (d directory) WebhookSecrets(string) []Secret {
	if d.b.secrets != nil {
		return d.b.secrets
	}
	return []Secret{{Account: "default", Reference: "env:HOOK"}}
}

// bench is a receiver over a store whose faults the test sets.
type bench struct {
	t       *testing.T
	store   *memory.Store
	fault   func(memory.Call) memory.Fault // nil: none
	mu      sync.Mutex
	journal *journal.Journal
	r       *Receiver
	log     bytes.Buffer
	n       int
	secrets []Secret // nil: one of the default account
}

func newBench(t *testing.T) *bench {
	t.Helper()
	src, err := contracts.FS.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Its create sends the callback address, so a contract may say so.
	src = bytes.Replace(src, []byte("  job_id: body.?job_id\n  state: body.?state\n"), []byte("  job_id: body.?job_id\n  state: body.?state\n  reference_in_url: true\n"), 1)
	c, err := contract.Parse("example.yaml", src)
	if err != nil || !c.Webhook.InURL {
		t.Fatal(err)
	}
	b := &bench{t: t, store: memory.New(memory.Config{Now: time.Now})}
	faulty := memory.Inject(b.store, func(c memory.Call) memory.Fault {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fault == nil {
			return memory.Fault{}
		}
		return b.fault(c)
	})
	b.journal = journal.New(journal.Options{Store: faulty, Now: time.Now, Sleep: clock{}.Sleep, NewID: func() string {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.n++
		return fmt.Sprintf("id%d", b.n)
	}})
	b.r = New(Config{
		Journal: b.journal, Directory: directory{c, b}, Clock: clock{}, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Source: "/webhooks/1",
		AddressKey: []byte(addressSecret),
		Secrets: outbound.References{LookupEnv: func(name string) (string, bool) {
			if name == "OTHER" {
				return otherSecret, true
			}
			return secret, true
		}},
	})
	return b
}

func (b *bench) setFault(f func(memory.Call) memory.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

// operation makes one that follows a job, or has no answer to its create.
func (b *bench) operation(id, job string) {
	b.t.Helper()
	b.operationOf("default", id, job)
}

func (b *bench) operationOf(account, id, job string) {
	b.t.Helper()
	ctx := b.t.Context()
	s, _, err := b.journal.Create(ctx, events.Event{Source: "/ingest/1", Operation: id, Fact: &events.IntentRecorded{
		Principal: "alice", Provider: "example", Account: account, Rules: projections.Rules, ClientReference: "cf" + id,
		Deadlines: events.Deadlines{Create: time.Hour, Result: 24 * time.Hour, Collect: time.Hour},
		Policy:    events.Policy{PollInterval: time.Minute, PollMax: time.Minute, BackoffBase: time.Second, BackoffMax: time.Minute, RequestTimeout: time.Minute, MaxAttempts: 3},
		Promises:  events.Promises{Guarantee: events.Deduplicated, HasResult: true, Cancels: true},
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	answer := &events.CreateAnswered{Attempt: 1, Outcome: events.CreateAmbiguous, Call: events.Call{AsOf: s.Sequence}}
	if job != "" {
		answer.Outcome, answer.JobID = events.CreateAccepted, job
		if answer.Claim, err = b.journal.Claim(ctx, "example", account, job, id); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, f := range []events.Fact{
		&events.CreateAttempted{Attempt: events.Attempt{Number: 1, NotAfter: time.Now().Add(time.Minute), Timeout: time.Minute}},
		answer,
	} {
		if s, _, err = b.journal.Append(ctx, s, events.Event{Source: "/poller/1", Fact: f}); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) send(operation, body string) (bool, error) {
	b.t.Helper()
	return b.sendSigned(operation, body, secret)
}

// jobSubject is where a job is claimed, found by claiming another store's.
func (b *bench) jobSubject(job string) string {
	b.t.Helper()
	s := memory.New(memory.Config{Now: time.Now})
	j := journal.New(journal.Options{Store: s, Now: time.Now, Sleep: clock{}.Sleep, NewID: func() string { return "id" }})
	if _, err := j.Claim(b.t.Context(), "example", "default", job, "op_1"); err != nil {
		b.t.Fatal(err)
	}
	m, err := s.Last(b.t.Context(), journal.Index, "job.>")
	if err != nil {
		b.t.Fatal(err)
	}
	return m.Subject
}

func (b *bench) sendSigned(operation, body, secret string) (bool, error) {
	b.t.Helper()
	signed, err := signature.Sign(signature.Scheme{Name: signature.HMACSHA256Hex, Header: "X-Signature", Prefix: "sha256="}, secret, []byte(body), "", time.Now())
	if err != nil {
		b.t.Fatal(err)
	}
	header := map[string][]string{"X-Forwarded-For": {"canary-header"}}
	for name, value := range signed {
		header[name] = []string{value}
	}
	return b.r.Receive(b.t.Context(), "example", b.address(operation), signature.Delivery{Header: header, Body: []byte(body)})
}

// address is the one that the provider was given for an operation.
func (b *bench) address(operation string) Address {
	a := Address{Operation: operation}
	if s, err := b.journal.Current(b.t.Context(), operation); err == nil {
		a.Key = AddressKey([]byte(addressSecret), "example", s.Intent.Account, operation)
	}
	return a
}

// run lets the role work for a while of the bubble's time.
func (b *bench) run(d time.Duration) {
	ctx, stop := context.WithTimeout(b.t.Context(), d)
	defer stop()
	if err := b.r.Run(ctx); err != nil {
		b.t.Error(err)
	}
}

func (b *bench) hooks(operation string) (list []*events.WebhookReceived, state projections.State) {
	b.t.Helper()
	lines, err := b.journal.Timeline(b.t.Context(), operation)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range lines {
		if f, ok := l.Entry.Event.Fact.(*events.WebhookReceived); ok {
			list = append(list, f)
		}
	}
	if state, err = b.journal.Current(b.t.Context(), operation); err != nil {
		b.t.Fatal(err)
	}
	return list, state
}

const running = `{"event_id":"e1","type":"job.running","job_id":"job-1","state":"running","client_reference":"cfop_1"}`

// TestOnce: one event, however often it is sent, is one fact and one look.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "job-1")
		for i := range 20 {
			if fresh, err := b.send("op_1", running); err != nil || fresh != (i == 0) {
				t.Errorf("delivery %d: fresh %v, %v", i+1, fresh, err)
			}
		}
		b.run(time.Minute)
		b.run(time.Minute) // a restart
		list, s := b.hooks("op_1")
		if len(list) != 1 || !list[0].Exact || list[0].JobID != "job-1" || list[0].Remote != "running" || list[0].EventID != "e1" {
			t.Errorf("facts %+v", list)
		}
		if s.Prompt.Why != "webhook" || s.Phase != projections.PhaseAccepted {
			t.Errorf("phase %s, prompt %q", s.Phase, s.Prompt.Why)
		}
		// A delivery without an event id is told apart by its body.
		for _, body := range []string{`{"job_id":"job-1","state":"running"}`, `{"job_id":"job-1","state":"running"}`, `{"job_id":"job-1","state":"failed"}`} {
			if _, err := b.send("op_1", body); err != nil {
				t.Error(err)
			}
		}
		b.run(time.Minute)
		if list, _ := b.hooks("op_1"); len(list) != 3 {
			t.Errorf("%d facts, want 3", len(list))
		}
	})
}

// lastCall is at least the number of calls to the store that one delivery takes.
const lastCall = 14

// TestCrash: the process dies at each call to the store after a delivery was
// taken, the call done or not. A new one makes exactly one effective fact.
func TestCrash(t *testing.T) {
	for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done} {
		// Joining, fetching, reading four facts, the owner, the body, the append
		// and what follows it, the ack: 13 calls. Beyond the last nothing fails.
		for at := 1; at <= lastCall; at++ {
			t.Run(fmt.Sprintf("kind %d at call %d", kind, at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					b.operation("op_1", "job-1")
					if _, err := b.send("op_1", running); err != nil {
						t.Fatal(err)
					}
					calls := 0
					b.setFault(func(memory.Call) memory.Fault {
						switch calls++; {
						case calls < at:
							return memory.Fault{}
						case calls == at:
							return memory.Fault{Kind: kind}
						}
						return memory.Fault{Kind: memory.Unavailable}
					})
					b.run(10 * time.Second)
					if at == lastCall && calls < at {
						t.Errorf("only %d calls were made: the last steps were not tried", calls)
					}
					b.setFault(nil)
					b.run(2 * time.Minute)
					list, s := b.hooks("op_1")
					if len(list) != 1 || s.Prompt.Why != "webhook" {
						t.Errorf("%d facts, prompt %q\n%s", len(list), s.Prompt.Why, b.log.String())
					}
					if strings.Contains(b.log.String(), "canary") {
						t.Error(b.log.String())
					}
				})
			})
		}
	}
}

// TestStoreDoubt: a delivery is taken only if it is stored for certain.
func TestStoreDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "job-1")
		fail := memory.Undone
		b.setFault(func(c memory.Call) memory.Fault {
			if c.Stream == journal.Webhooks && c.Op == memory.OpPublish {
				return memory.Fault{Kind: fail}
			}
			return memory.Fault{}
		})
		if fresh, err := b.send("op_1", running); err == nil || fresh {
			t.Error("an unstored delivery was taken")
		}
		fail = memory.Done
		if fresh, err := b.send("op_1", running); err != nil || !fresh {
			t.Errorf("a delivery whose acknowledgement was lost: %v %v", fresh, err)
		}
	})
}

// TestForeignJob: the address is not signed. A delivery for one operation's job,
// sent to the address of another, is noted on both and stops neither.
func TestForeignJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "job-1")
		b.operation("op_2", "job-2")
		if _, err := b.send("op_2", `{"event_id":"e1","job_id":"job-1","state":"running"}`); err != nil {
			t.Fatal(err)
		}
		// The true one is not kept out by it.
		if fresh, err := b.send("op_1", `{"event_id":"e1","job_id":"job-1","state":"running"}`); err != nil || !fresh {
			t.Error(fresh, err)
		}
		b.run(time.Minute)
		two, s := b.hooks("op_2")
		if len(two) != 1 || two[0].Exact || s.Phase != projections.PhaseAccepted || s.Job.ID != "job-2" {
			t.Errorf("facts %+v, phase %s, job %s", two, s.Phase, s.Job.ID)
		}
		one, s := b.hooks("op_1")
		if len(one) != 2 || s.Phase != projections.PhaseAccepted {
			t.Errorf("facts %+v, phase %s", one, s.Phase)
		}
	})
}

// TestSecondJob: a job nobody owns, named at our address, is a second one.
func TestSecondJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "job-1")
		if _, err := b.send("op_1", `{"event_id":"e1","job_id":"job-9","client_reference":"cfop_1"}`); err != nil {
			t.Fatal(err)
		}
		b.run(time.Minute)
		if _, s := b.hooks("op_1"); s.Phase != projections.PhaseQuarantined || s.Quarantine != projections.QuarantineConflict {
			t.Errorf("phase %s %s", s.Phase, s.Quarantine)
		}
	})
}

func TestRefused(t *testing.T) {
	b := newBench(t)
	b.operation("op_1", "job-1")
	unsigned := signature.Delivery{Header: map[string][]string{"X-Signature": {"sha256=00"}}, Body: []byte("{}")}
	for _, c := range []struct {
		provider, operation string
		want                error
	}{
		{"nobody", "op_1", ErrUnknown}, {"example", "op_1", ErrSignature}, {"example", "", ErrSignature}, {"example", "op_2", ErrSignature}, {"example", "*.>", ErrSignature},
	} {
		if _, err := b.r.Receive(t.Context(), c.provider, b.address(c.operation), unsigned); !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v", c.provider, c.operation, err)
		}
	}
	if _, err := b.send("op_1", strings.Repeat(" ", MaxBody+1)); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err := b.store.Last(t.Context(), journal.Webhooks, ">"); !errors.Is(err, journal.ErrNoMessage) {
		t.Error("something was stored")
	}
}

// TestWithoutOperation: one event at addresses that name no operation is one
// delivery, never refused, and is matched by what it says; or parked.
func TestWithoutOperation(t *testing.T) {
	for _, c := range []struct {
		name, body string
		noted      []string
		exact      bool
	}{
		{"job and reference", running, []string{"op_1"}, true},
		{"job", `{"event_id":"e1","job_id":"job-1","state":"running"}`, []string{"op_1"}, true},
		{"reference", `{"event_id":"e1","client_reference":"cfop_2"}`, []string{"op_2"}, true},
		{"reference and a job nobody owns", `{"event_id":"e1","job_id":"job-2","client_reference":"cfop_2"}`, []string{"op_2"}, true},
		{"reference of one, job of another", `{"event_id":"e1","job_id":"job-1","client_reference":"cfop_2"}`, []string{"op_1", "op_2"}, false},
		{"job, and a reference nobody has", `{"event_id":"e1","job_id":"job-1","client_reference":"cfother"}`, []string{"op_1"}, false},
		{"unknown", `{"event_id":"e1","job_id":"job-9","client_reference":"cfother"}`, nil, false},
		{"nothing", `{"event_id":"e1"}`, nil, false},
		{"unreadable", `{`, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.operation("op_1", "job-1")
				b.operation("op_2", "")
				for _, op := range []string{"op_1", "op_2"} {
					if _, err := b.journal.NameReference(t.Context(), "example", "cf"+op, op); err != nil {
						t.Fatal(err)
					}
				}
				for i, address := range []string{"", "op_none", "*.>", ""} {
					if fresh, err := b.send(address, c.body); err != nil || fresh != (i == 0) {
						t.Errorf("%q: fresh %v, %v", address, fresh, err)
					}
				}
				b.run(time.Minute)
				b.run(time.Minute) // a restart looks at it again
				for _, op := range []string{"op_1", "op_2"} {
					list, s := b.hooks(op)
					if want := slices.Contains(c.noted, op); len(list) != 0 != want || len(list) > 1 || want && list[0].Exact != c.exact {
						t.Errorf("%s: %+v", op, list)
					}
					if s.Phase == projections.PhaseQuarantined {
						t.Errorf("%s is %s", op, s.Quarantine)
					}
				}
				parked, err := b.journal.Parked(t.Context(), "", "")
				if err != nil || len(parked) == 0 != (c.noted != nil) {
					t.Errorf("%d parked, %v", len(parked), err)
				}
				// The contract's longest result deadline is 30 days.
				time.Sleep(31 * 24 * time.Hour)
				b.run(time.Minute)
				if parked, err = b.journal.Parked(t.Context(), "", ""); err != nil || len(parked) != 0 {
					t.Errorf("%d are parked for ever, %v", len(parked), err)
				}
			})
		})
	}
}

// TestAccounts: a delivery speaks for those accounts alone whose secret it was
// signed with.
func TestAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.secrets = []Secret{{"default", "env:HOOK"}, {"second", "env:OTHER"}, {"third", "env:OTHER"}}
		for _, account := range []string{"default", "second", "third"} {
			b.operationOf(account, "op_"+account, "job-1")
		}
		check := func(when string, want map[string][]bool) {
			t.Helper()
			b.run(time.Minute)
			for op, exact := range want {
				list, _ := b.hooks("op_" + op)
				var got []bool
				for _, f := range list {
					got = append(got, f.Exact)
				}
				if !slices.Equal(got, exact) {
					t.Errorf("%s: %s has %v, want %v", when, op, got, exact)
				}
			}
		}
		const body = `{"event_id":"e1","job_id":"job-1","state":"running"}`
		if _, err := b.send("", body); err != nil {
			t.Fatal(err)
		}
		check("one account", map[string][]bool{"default": {true}, "second": nil, "third": nil})
		// The same event id of other accounts is another event. Two share a secret.
		if fresh, err := b.sendSigned("", body, otherSecret); err != nil || !fresh {
			t.Fatal(fresh, err)
		}
		check("two accounts", map[string][]bool{"default": {true}, "second": {false}, "third": {false}})
		// The address of an operation of an account that did not sign names none.
		if _, err := b.sendSigned("op_default", `{"event_id":"e2","job_id":"job-8"}`, otherSecret); err != nil {
			t.Fatal(err)
		}
		check("foreign address", map[string][]bool{"default": {true}, "second": {false}, "third": {false}})
		if _, err := b.sendSigned("", body, "neither"); !errors.Is(err, ErrSignature) {
			t.Error(err)
		}
	})
}

// TestParkedAgain: power loss took what was parked, and the delivery was
// acknowledged because it was.
func TestParkedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "")
		if _, err := b.send("", `{"event_id":"e1","job_id":"job-1"}`); err != nil {
			t.Fatal(err)
		}
		b.run(time.Minute)
		b.store.Lose(journal.Index)
		b.run(time.Minute)
		if parked, err := b.journal.Parked(t.Context(), "example", journal.JobName("job-1")); err != nil || len(parked) != 1 {
			t.Errorf("%d are parked, %v", len(parked), err)
		}
		// And one whose job is known by then is noted.
		b.store.Lose(journal.Index)
		if _, err := b.journal.Claim(t.Context(), "example", "default", "job-1", "op_1"); err != nil {
			t.Fatal(err)
		}
		b.run(time.Minute)
		if list, _ := b.hooks("op_1"); len(list) != 1 {
			t.Errorf("%d facts", len(list))
		}
	})
}

// TestCrashWithoutOperation is TestCrash for an event that has to be parked: it
// is parked, or noted by whoever learns the job, and in the end noted once.
func TestCrashWithoutOperation(t *testing.T) {
	const last = 60 // more calls than one delivery takes
	for _, kind := range []memory.Kind{memory.Unavailable, memory.Undone, memory.Done} {
		for _, known := range []bool{false, true} {
			for at := 1; at <= last; at++ {
				t.Run(fmt.Sprintf("kind %d at call %d, job known %v", kind, at, known), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := newBench(t)
						b.operation("op_1", "")
						if _, err := b.send("", `{"event_id":"e1","job_id":"job-1"}`); err != nil {
							t.Fatal(err)
						}
						calls, known, acked := 0, known, false
						b.setFault(func(c memory.Call) memory.Fault {
							acked = acked || c.Op == memory.OpAck
							// The job becomes known at the very moment at which the event is
							// parked, and whoever wrote it looked before.
							if calls++; known && c.Op == memory.OpPublish && c.Stream == journal.Index {
								known = false
								if _, err := b.store.Publish(t.Context(), journal.Index, journal.Outgoing{Subject: b.jobSubject("job-1"), Data: []byte("op_1")}); err != nil {
									t.Error(err)
								}
							}
							switch {
							case calls < at:
								return memory.Fault{}
							case calls == at:
								return memory.Fault{Kind: kind}
							}
							return memory.Fault{Kind: memory.Unavailable}
						})
						b.run(10 * time.Second)
						if at == last && (!acked || calls >= last) {
							t.Errorf("acked %v in %d calls: not every step was tried", acked, calls)
						}
						b.setFault(nil)
						b.run(2 * time.Minute)
						list, s := b.hooks("op_1")
						parked, err := b.journal.Parked(t.Context(), "", "")
						if err != nil {
							t.Fatal(err)
						}
						owner, owned, err := b.journal.Owner(t.Context(), "example", "default", "job-1")
						if err != nil {
							t.Fatal(err)
						}
						if owned != (owner == "op_1" && len(list) == 1 && len(parked) == 0 && s.Hint.JobID == "job-1") || !owned && (len(parked) != 1 || len(list) != 0) {
							t.Errorf("%d facts, %d parked, owned %v\n%s", len(list), len(parked), owned, b.log.String())
						}
					})
				})
			}
		}
	}
}

// TestNothingSecretIsKept: links lose their queries, unsigned headers stay out.
func TestNothingSecretIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_1", "job-1")
		if _, err := b.send("op_1", `{"event_id":"e1","job_id":"job-1","output":"https://u:canary-user@x.test/f?sig=canary-query"}`); err != nil {
			t.Fatal(err)
		}
		b.run(time.Minute)
		for _, s := range journal.Streams() {
			for from := uint64(1); ; {
				m, err := b.store.Next(t.Context(), s, ">", from)
				if err != nil {
					break
				}
				if text := fmt.Sprint(m.Header, string(m.Data)); strings.Contains(text, "canary") {
					t.Errorf("%s holds %s", s, text)
				}
				from = m.Sequence + 1
			}
		}
	})
}

// accounts has a secret of its own for each account.
type accounts struct{ directory }

func (accounts) WebhookSecrets(string) []Secret {
	return []Secret{{Account: "gone", Reference: "env:GONE"}, {Account: "default", Reference: "env:DEFAULT"}, {Account: "other", Reference: "env:OTHER"}}
}

// A delivery counts for operations of the account whose secret it was signed
// with. While a secret cannot be had, a delivery that no other fits may be
// signed with that one, and must come again.
func TestEachAccountHasItsSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.operation("op_a", "job-a")
		values := map[string]string{"GONE": "gone", "DEFAULT": "default", "OTHER": "other"}
		b.r.cfg.Directory = accounts{b.r.cfg.Directory.(directory)}
		b.r.cfg.Secrets = outbound.References{LookupEnv: func(name string) (string, bool) { v, ok := values[name]; return v, ok }}
		send := func(secret string) error {
			body := `{"event_id":"e-` + secret + `","type":"job.updated","job_id":"job-a","state":"running"}`
			signed, err := signature.Sign(signature.Scheme{Name: signature.HMACSHA256Hex, Header: "X-Signature", Prefix: "sha256="}, secret, []byte(body), "", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			header := map[string][]string{}
			for name, value := range signed {
				header[name] = []string{value}
			}
			_, err = b.r.Receive(t.Context(), "example", b.address("op_a"), signature.Delivery{Header: header, Body: []byte(body)})
			return err
		}
		if err := send("default"); err != nil {
			t.Errorf("signed with its account's secret: %v", err)
		}
		if err := send("other"); err != nil { // taken, but not for this operation: see below
			t.Errorf("signed with another account's secret: %v", err)
		}
		if err := send("nobody"); !errors.Is(err, ErrSignature) {
			t.Errorf("signed with no account's secret: %v", err)
		}
		delete(values, "GONE")
		if err := send("default"); err != nil {
			t.Errorf("while another account's secret is gone: %v", err)
		}
		if err := send("nobody"); err == nil || errors.Is(err, ErrSignature) || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "account gone: credential env:GONE: not set") {
			t.Errorf("while a secret is gone: %v", err)
		}
		// Two accounts may have one secret.
		values["GONE"], values["OTHER"] = "gone", "default"
		if err := send("default"); err != nil {
			t.Errorf("signed with the secret of two accounts: %v", err)
		}
		b.run(time.Minute)
		list, _ := b.hooks("op_a")
		for _, f := range list {
			if f.EventID != "e-default" {
				t.Errorf("noted: %+v", f)
			}
		}
		if len(list) == 0 {
			t.Error("nothing is noted")
		}
	})
}

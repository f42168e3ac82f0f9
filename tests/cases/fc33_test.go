package cases_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
	"github.com/counterfoil/counterfoil/tests/page"
)

// FC-33: what the service needs fails for 30 s just when work is handed out.
func TestFC33DependencyFails(t *testing.T) {
	const operations, outage = 20, 30 * time.Second
	for _, c := range []struct {
		name string
		// fails says which touches of the store fail during the outage: all, or
		// those that store on a stream.
		stream journal.Stream
		whole  bool // for the whole service, not the pollers alone
		err    error
		lands  bool // what is stored lands, only the answer is lost
		reads  bool // reads fail, and all else works: also giving a lease back
	}{
		{name: "store of the pollers", err: errCut},
		{name: "ledger takes nothing", stream: journal.Ledger, err: errCut},
		{name: "ledger does not answer", stream: journal.Ledger, err: journal.ErrUnanswered, lands: true},
		{name: "payloads take nothing", stream: journal.Payloads, err: errCut},
		{name: "index takes nothing", stream: journal.Index, err: errCut},
		{name: "nothing can be read", err: errCut, reads: true},
		{name: "store of all roles", err: errCut, whole: true},
	} {
		variant(t, c.name, func(t *testing.T) {
			var from time.Time // when the outage began
			hit := 0           // touches of the store that failed
			var mu sync.Mutex
			begin := func() {
				mu.Lock()
				defer mu.Unlock()
				if from.IsZero() {
					from = time.Now()
				}
			}
			out := func() bool {
				mu.Lock()
				defer mu.Unlock()
				fails := !from.IsZero() && time.Since(from) < outage
				if fails {
					hit++
				}
				return fails
			}
			var armed atomic.Bool
			through := func(store journal.Store) journal.Store {
				k := &hooks{}
				switch {
				case c.reads:
					k.read = func() error {
						if out() {
							return c.err
						}
						return nil
					}
				case c.stream == "":
					k.touch = func(context.Context) error {
						if out() {
							return c.err
						}
						return nil
					}
				case c.lands:
					k.stored = func(s journal.Stream, _ journal.Outgoing) error {
						if s == c.stream && out() {
							return c.err
						}
						return nil
					}
				default:
					k.publish = func(_ context.Context, s journal.Stream, _ journal.Outgoing) error {
						if s == c.stream && out() {
							return c.err
						}
						return nil
					}
				}
				return hookedStore{k, store}
			}
			log := &page.Page{}
			o := harness.Options{
				Pollers: 2, Log: slog.New(slog.NewTextHandler(log, nil)),
				ThroughPoller: func(_ string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller) {
					inner := delivering{store, func([]journal.Delivery) {
						if armed.Load() {
							begin()
						}
					}}
					if c.whole {
						return inner, call
					}
					return through(inner), call
				},
			}
			if c.whole {
				o.Through = through
			}
			h := harness.New(t, o)
			h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(3*time.Second, "running", "succeeded")},
				simulator.On(simulator.Create, simulator.Always(), simulator.DelayAfter(100*time.Millisecond)))
			var ids []string
			for i := range operations {
				if i == operations/2 {
					armed.Store(true)
				}
				ids = append(ids, submitted(t, h, fmt.Sprintf("k%d", i), fmt.Sprintf(`{"n":%d}`, i)))
			}
			time.Sleep(outage + time.Second)
			mu.Lock()
			began, hits := !from.IsZero(), hit
			mu.Unlock()
			want(t, "the outage happened", began, true)
			if hits == 0 {
				t.Error("nothing failed during the outage")
			}
			for _, id := range ids {
				op, err := h.Client.Get(t.Context(), id)
				if err != nil {
					t.Fatalf("after the outage: %v", err)
				}
				if !op.Done && op.NextLook == nil {
					t.Errorf("%s is %s and nobody says when it goes on", id, op.State)
				}
			}
			// By their leases, and not by the sweep that finds lost wake-ups after 5 min.
			for _, id := range ids {
				want(t, "state", await(h, id, 3*journal.LeaseTime, time.Second).State, "succeeded")
			}
			if text := log.String(); !strings.Contains(text, "level=WARN") && !strings.Contains(text, "level=ERROR") && !c.lands {
				t.Errorf("the log says nothing of it:\n%s", text)
			}
			want(t, "jobs", len(h.Sim.Jobs()), operations)
			invariants(t, h, ids...)
		})
	}
}

// submitted submits until it is told that the operation is accepted.
func submitted(t *testing.T, h *harness.House, key, params string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		op, _, err := h.Client.Submit(t.Context(), key, client.Submission{Provider: "example", Params: []byte(params)})
		if err == nil {
			return op.ID
		}
		if p := problemOf(t, err); !p.Retryable || time.Now().After(end) {
			t.Fatalf("submit %s: %v", key, err)
		}
	}
}

// delivering tells which wake-ups are handed out.
type delivering struct {
	journal.Store
	delivered func([]journal.Delivery)
}

func (d delivering) Queue(ctx context.Context, c journal.QueueConfig) (journal.Queue, error) {
	q, err := d.Store.Queue(ctx, c)
	return deliveringQueue{q, d.delivered}, err
}

type deliveringQueue struct {
	journal.Queue
	delivered func([]journal.Delivery)
}

func (q deliveringQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]journal.Delivery, error) {
	list, err := q.Queue.Fetch(ctx, limit, wait)
	if len(list) > 0 {
		q.delivered(list)
	}
	return list, err
}

package crash_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

// rig is an installation whose durable steps can go wrong.
type rig struct {
	*harness.House
	t     *testing.T
	w     *world
	mount *simulator.Mount
	key   string // of the operation under way
	woken bool   // its workers go by wake-ups alone
}

func newRig(t *testing.T, o harness.Options) *rig {
	t.Helper()
	w := newWorld()
	o.Through = w.through
	r := &rig{House: harness.New(t, o), t: t, w: w, woken: o.Woken || o.Pollers > 1}
	synctest.Wait() // until the workers have joined their queues
	return r
}

// restart kills the process, if it is not dead yet, and starts another.
func (r *rig) restart() {
	r.t.Helper()
	r.w.kill()
	r.Stop()
	r.Start()
	synctest.Wait()
}

// rotateOnUpload changes the provider's key once in each run, ahead of the first
// fact that says that an upload is done.
func (r *rig) rotateOnUpload(o simulator.Options) {
	var mu sync.Mutex
	done := map[string]bool{} // runs by key; guarded by mu
	r.w.onPublish(func(label string, _ journal.Stream, _ journal.Outgoing) {
		mu.Lock()
		defer mu.Unlock()
		if label != "fact prepare.answered" || done[r.key] {
			return
		}
		done[r.key] = true
		key := fmt.Sprintf("%s-%d", harness.Token, len(done))
		r.SetSecret("HARNESS_TOKEN", key)
		o.Auth = simulator.Auth{Bearer: key}
		r.mount.Configure(o)
	})
}

// submission is what each run asks for; the name is its key too, and what the
// simulator tells operations apart by.
func submission(provider, name string) client.Submission {
	var request any = map[string]string{"correlation": name}
	if provider == "openai-batches" {
		request = map[string]any{
			"requests": []any{map[string]any{"custom_id": name, "method": "POST", "url": "/v1/responses", "body": map[string]any{}}},
			"endpoint": "/v1/responses", "completion_window": "24h", "metadata": map[string]string{"correlation": name},
		}
	}
	params, err := json.Marshal(request)
	if err != nil {
		panic(err) // a map of strings
	}
	return client.Submission{Provider: provider, Params: params}
}

// audit holds what is stored of an operation against the laws: the chain is
// unbroken, the history is the fold of the ledger with one record per fact,
// and a live operation has a wake-up at the time the fold gives.
func (r *rig) audit(id string) (problems []error) {
	ctx := context.Background()
	lines, err := r.Journal.Timeline(ctx, id)
	if err != nil {
		return []error{err}
	}
	records, err := r.records(id)
	if err != nil {
		return []error{err}
	}
	if len(records) != len(lines) {
		problems = append(problems, fmt.Errorf("%d history records for %d facts", len(records), len(lines)))
	}
	previous := events.ChainStart(id)
	var s projections.State
	uploader := "" // who made the newest preparation
	for i, line := range lines {
		e := line.Entry
		if e.Unreadable != nil {
			problems = append(problems, fmt.Errorf("fact %d: %w", e.Sequence, e.Unreadable))
		}
		if e.Event.Previous != previous {
			problems = append(problems, fmt.Errorf("fact %d, %s, does not continue the chain", e.Sequence, e.Event.Fact.Type()))
		}
		previous = e.Digest
		var want projections.Record
		s, want = projections.Fold(s, e)
		switch fact := e.Event.Fact.(type) {
		case *events.PrepareAttempted:
			uploader = fact.Identity
		case *events.CreateAttempted:
			if want.Verdict == projections.Applied && s.Intent.Promises.Prepares > 0 && fact.Identity != uploader {
				problems = append(problems, fmt.Errorf("fact %d: a create goes as %s with what %s uploaded", e.Sequence, fact.Identity, uploader))
			}
		default: // nothing that leaves
		}
		if i < len(records) {
			want.Build = records[i].Build
			if !bytes.Equal(codec.Marshal(&want), codec.Marshal(&records[i])) {
				problems = append(problems, fmt.Errorf("record of fact %d, %s, is not what the fold gives", e.Sequence, want.Type))
			}
		}
	}
	return append(problems, r.auditWake(s)...)
}

// grace is by how much later than the next look a wake-up may come.
func (r *rig) grace() time.Duration {
	if r.woken {
		return 0
	}
	return 3 * time.Minute
}

func (r *rig) auditWake(s projections.State) []error {
	next, some := projections.Next(s)
	pending, found, err := r.Journal.PendingWake(context.Background(), s.Operation)
	switch {
	case err != nil:
		return []error{err}
	case s.Phase.Live() && !some:
		return []error{fmt.Errorf("%s is live and will never be looked at", s.Phase)}
	case some && !found:
		return []error{fmt.Errorf("%s is due at %s and has no wake-up", s.Phase, next.Format(time.TimeOnly))}
	case some && pending.At.Before(next), some && pending.At.After(next.Add(r.grace())):
		return []error{fmt.Errorf("%s is due at %s and its wake-up is for %s", s.Phase, next.Format(time.TimeOnly), pending.At.Format(time.TimeOnly))}
	case !some && found:
		return []error{fmt.Errorf("%s is not due and has a wake-up for %s", s.Phase, pending.At.Format(time.TimeOnly))}
	}
	return nil
}

// records reads the operation's history in order, take-overs left out.
func (r *rig) records(id string) (list []projections.Record, err error) {
	ctx := context.Background()
	c, err := r.Store.Read(ctx, journal.History, fmt.Sprintf("history.1.%02d.%s", journal.Partition(id), id), 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for {
		m, err := c.Next(ctx, 0)
		if errors.Is(err, journal.ErrNoMessage) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		var one projections.Record
		if err := codec.Unmarshal(m.Data, &one); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
}

// settled says what is wrong with a live operation after a restart, once
// everything has come to rest.
func (r *rig) settled(id string) []error {
	synctest.Wait()
	s, err := r.Journal.Current(context.Background(), id)
	if errors.Is(err, journal.ErrNoOperation) {
		return nil
	}
	if err != nil {
		return []error{err}
	}
	if _, some := projections.Next(s); !some {
		return nil // a lease of the dead process may still stand
	}
	if !r.woken {
		// A process with timers may owe the wake-up for a minute; its timer attends to the
		// operation meanwhile, which then ends in time.
		_, found, err := r.Journal.PendingWake(context.Background(), id)
		switch {
		case err != nil:
			return []error{err}
		case !found:
			return nil
		}
	}
	return r.auditWake(s)
}

// jobs counts the jobs the provider made for a key.
func (r *rig) jobs(key string) int {
	n := 0
	for _, j := range r.Sim.Jobs() {
		if strings.Contains(string(j.Body), `"`+key+`"`) {
			n++
		}
	}
	return n
}

package poller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

// counted is a provider that counts what reaches it.
type counted struct {
	mu     sync.Mutex
	now    int
	most   int
	came   []time.Time
	byWhom map[string]int
}

func (c *counted) call(whom string, takes time.Duration) {
	before := rand.N(takes + 1) //nolint:gosec // how long it is on its way
	time.Sleep(before)
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.came = append(c.came, time.Now())
	c.byWhom[whom]++
	c.mu.Unlock()
	time.Sleep(takes - before)
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.came)
}

// inAny is the largest number of arrivals within any stretch shorter than per.
func (c *counted) inAny(per time.Duration) (most int) {
	slices.SortFunc(c.came, time.Time.Compare)
	for i, j := 0, 0; i < len(c.came); i++ {
		for c.came[i].Sub(c.came[j]) >= per {
			j++
		}
		most = max(most, i-j+1)
	}
	return most
}

// TestLimitsAmongProcesses lets three pollers on one store ask as much as they
// can while they are replaced one after the other, and the store goes away.
func TestLimitsAmongProcesses(t *testing.T) {
	for _, limits := range []budget.Limits{
		{Concurrency: 4},
		{Concurrency: 2},
		{Concurrency: 5, Requests: 25, Per: time.Second},
		{Requests: 60, Per: time.Minute},
	} {
		bubble(t, limits.String(), func(t *testing.T) {
			var down atomic.Bool
			store := memory.Inject(memory.New(memory.Config{Now: time.Now}), func(c memory.Call) memory.Fault {
				if down.Load() {
					return memory.Fault{Kind: memory.Undone}
				}
				return memory.Fault{}
			})
			provider := &counted{byWhom: map[string]int{}}
			start := func(name string) (stop func()) {
				j := journal.New(journal.Options{Store: store, Now: time.Now, Sleep: (&clock{}).Sleep, NewID: func() string { return name }})
				p := New(Config{
					Journal: j, Clock: &clock{}, Log: slog.New(slog.DiscardHandler), Process: name, Drain: 5 * time.Second,
					Limits: func(string, string) budget.Limits { return limits },
				})
				ctx, cancel := context.WithCancel(t.Context())
				var group sync.WaitGroup
				group.Go(func() { p.Keep(ctx) })
				for range 20 {
					group.Go(func() {
						for ctx.Err() == nil {
							l, err := p.lineOf("example", "main")
							if err != nil {
								t.Error(err)
								return
							}
							turn, _, err := l.get(ctx, 5*time.Second, false, time.Hour)
							if err != nil {
								return // told to stop
							}
							provider.call(name, rand.N(200*time.Millisecond)) //nolint:gosec // not for secrets
							turn.done()
						}
					})
				}
				return func() {
					cancel()
					group.Wait()
				}
			}
			stops := []func(){start("a0"), start("b0"), start("c0")}
			for round := range 3 {
				for i := range stops {
					time.Sleep(20 * time.Second)
					stops[i]()
					stops[i] = start(fmt.Sprintf("%c%d", 'a'+i, round+1))
				}
			}
			time.Sleep(20 * time.Second)
			down.Store(true)
			time.Sleep(40 * time.Second)
			before := provider.count()
			time.Sleep(10 * time.Second)
			if n := provider.count() - before; n > 0 {
				t.Errorf("%d requests while the store was away for longer than a hold", n)
			}
			down.Store(false)
			// A slot whose holder fell silent starts as used up, and so does its next
			// holder's: within a period or two everybody has had a turn.
			time.Sleep(time.Minute + 3*limits.Per)
			for _, stop := range stops {
				stop()
			}
			if most := provider.most; most > limits.Slots() || limits.Requests == 0 && most < limits.Slots() {
				t.Errorf("%d calls at once at the most, want %d", most, limits.Slots())
			}
			if limits.Requests > 0 {
				n := provider.inAny(limits.Per)
				t.Logf("%d requests in the busiest %s of %d in all", n, limits.Per, len(provider.came))
				if n > limits.Requests {
					t.Errorf("%d requests within %s, want at most %d", n, limits.Per, limits.Requests)
				}
			}
			for _, name := range []string{"a3", "b3", "c3"} {
				if provider.byWhom[name] == 0 {
					t.Errorf("%s had no turn: %v", name, provider.byWhom)
				}
			}
		})
	}
}

// limited is a house whose account has one slot, and that slot is taken.
func limited(t *testing.T, c changes) (*house, *turn) {
	t.Helper()
	c.config = func(config *Config) {
		config.Limits = func(string, string) budget.Limits { return budget.Limits{Concurrency: 1} }
		config.Fresh = true
	}
	h := newHouse(t, c)
	l, err := h.poller.lineOf("example", "main")
	if err != nil {
		t.Fatal(err)
	}
	taken, _, err := l.get(t.Context(), time.Minute, false, 0)
	if err != nil || taken == nil {
		t.Fatal(taken, err)
	}
	return h, taken
}

// TestTurnBeforePermit: nothing is permitted while it waits for its turn, and
// what is permitted then leaves at once, with a last moment of then.
func TestTurnBeforePermit(t *testing.T) {
	bubble(t, "create", func(t *testing.T) {
		h, taken := limited(t, changes{})
		go func() {
			time.Sleep(8 * time.Second)
			if list := h.trail.all(); len(list) > 0 {
				t.Errorf("while waiting: %v", list)
			}
			taken.done()
		}()
		begun := time.Now()
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			if waited := time.Since(begun); waited != 8*time.Second || !r.NotAfter.After(time.Now().Add(20*time.Second)) {
				t.Errorf("left after %s, may leave until %s", waited, r.NotAfter)
			}
			return outbound.Answer{}, &outbound.Failure{Class: outbound.Dial, Sent: outbound.NotSent, Err: errors.New("as scripted")}
		})
		h.attend()
		if u := h.poller.Uses(); len(u) != 1 || u[0].Busy != 0 || u[0].Waiting != 0 || u[0].Calls != 2 {
			t.Errorf("%+v", u)
		}
	})
	bubble(t, "none comes", func(t *testing.T) {
		h, taken := limited(t, changes{})
		begun := time.Now()
		h.attend()
		d := last[*events.StepDeferred](h)
		if d.Reason != events.DeferLimit || time.Since(begun) != lineWait || !d.Until.After(time.Now()) || d.Until.After(time.Now().Add(restMost)) {
			t.Errorf("%+v after %s", d, time.Since(begun))
		}
		taken.done()
	})
	bubble(t, "a cancel does not rest", func(t *testing.T) {
		h, taken := limited(t, changes{})
		h.accept()
		time.Sleep(2 * time.Second)
		h.attend()
		h.put(&events.CancelRequested{Who: "team-a"})
		time.AfterFunc(15*time.Second, taken.done)
		begun := time.Now()
		h.caller.then(func(_ context.Context, r outbound.Request) (outbound.Answer, error) {
			if waited := time.Since(begun); waited != 15*time.Second || !r.SideEffect {
				t.Errorf("%s %s after %s", r.Method, r.URL, waited)
			}
			return outbound.Answer{}, &outbound.Failure{Class: outbound.Dial, Sent: outbound.NotSent, Err: errors.New("as scripted")}
		})
		h.attend()
		if h.state(); last[*events.CancelAttempted](h).Number != 1 {
			t.Error("no cancel was sent")
		}
	})
}

// TestWaitingTakesNoWorker: with one worker and an account that waits, another
// account's operation is attended to.
func TestWaitingTakesNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, taken := limited(t, changes{})
		place := places(1)
		other := make(chan struct{})
		<-place
		post := &post{own: make(chan struct{}), shared: place, place: place}
		go func() {
			if take(t.Context(), nil, place) == nil {
				t.Error("no worker was free")
			}
			close(other)
			place <- struct{}{}
			taken.done()
		}()
		h.caller.then(breaks(outbound.Dial, outbound.NotSent))
		if err := h.poller.Attend(atPost(t.Context(), post), h.due()); err != nil {
			t.Fatal(err)
		}
		<-other
		if post.place == nil || len(place) != 0 {
			t.Error("the worker is not back at its place")
		}
	})
}

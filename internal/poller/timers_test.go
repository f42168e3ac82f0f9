package poller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// look is a state of an operation that is looked at so long from now; negative
// means never.
func look(operation string, version uint64, in time.Duration) projections.State {
	s := projections.State{Operation: operation, Sequence: version, Intent: events.IntentRecorded{Provider: "example"}}
	if in >= 0 {
		s.NextLook = time.Now().Add(in)
	}
	return s
}

func fetched(t *testing.T, fetch Fetch, wait time.Duration) (names string, list []Lease) {
	t.Helper()
	list, err := fetch(t.Context(), 10, wait)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range list {
		all = append(all, l.Operation())
	}
	return strings.Join(all, " "), list
}

func TestTimers(t *testing.T) {
	const never = -1
	for _, c := range []struct {
		name string
		play func(t *testing.T, timers *Timers, next func(wait time.Duration, want string) []Lease)
	}{
		{"in order, at their times and never early", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			began := time.Now()
			timers.Due(1, look("b", 1, 2*time.Second))
			timers.Due(1, look("a", 2, time.Second))
			timers.Due(2, look("c", 3, never))
			timers.Due(2, look("d", 4, 0))
			next(0, "d")
			next(0, "")
			next(time.Minute, "a")
			if took := time.Since(began); took != time.Second {
				t.Errorf("a came after %s", took)
			}
			l := next(time.Minute, "b")
			if took := time.Since(began); took != 2*time.Second || !l[0].At().Equal(time.Now()) || l[0].Version() != 1 {
				t.Errorf("b came after %s: %s, %d", took, l[0].At(), l[0].Version())
			}
			next(3*time.Second, "")
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("waited till %s", took)
			}
		}},
		{"one that becomes the earliest is not slept over", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, time.Hour))
			time.AfterFunc(time.Second, func() { timers.Due(1, look("b", 2, time.Second)) })
			began := time.Now()
			next(time.Minute, "b")
			if took := time.Since(began); took != 2*time.Second {
				t.Errorf("came after %s", took)
			}
		}},
		{"another provider's are not handed out", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			if names, _ := fetched(t, timers.Fetch("other"), time.Second); names != "" {
				t.Error(names)
			}
			next(0, "a")
		}},
		{"an older state changes nothing, a newer one moves", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 5, time.Second))
			timers.Due(1, look("a", 4, 0))
			timers.Due(1, look("a", 5, 0))
			next(0, "")
			timers.Due(1, look("a", 6, never))
			next(time.Minute, "")
			timers.Due(1, look("a", 7, time.Second))
			next(time.Minute, "a")
		}},
		{"leased once, and again when the lease ends", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			began := time.Now()
			first := next(0, "a")
			next(20*time.Second, "")
			if err := first[0].Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			second := next(time.Hour, "a")
			if took := time.Since(began); took != 20*time.Second+journal.LeaseTime {
				t.Errorf("again after %s", took)
			}
			// The first holder has nothing to say any more.
			first[0].Left(look("a", 9, never), nil)
			if err := first[0].Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			second[0].Left(look("a", 1, 0), nil)
			next(time.Minute, "a")
		}},
		{"done: what the worker knew last counts, whoever says it first", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			l := next(0, "a")
			done := look("a", 3, time.Second)
			l[0].Left(done, nil)
			timers.Due(1, look("a", 2, 0)) // the projector is behind
			next(0, "")
			next(time.Minute, "a")[0].Left(look("a", 4, never), nil)
			next(time.Hour, "")
			if len(timers.timed) != 0 || len(timers.queues["example"].list) != 0 {
				t.Error("one that is not looked at any more is kept")
			}
		}},
		{"a fact that came meanwhile is attended to at once", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			l := next(0, "a")
			timers.Due(1, look("a", 9, 0))
			next(0, "") // leased
			l[0].Left(look("a", 3, time.Hour), nil)
			next(0, "a")
		}},
		{"left undone: again after a growing while", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			l := next(0, "a")
			for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30} {
				var failure error
				if i%2 == 0 {
					failure = errors.New("no answer")
				}
				began := time.Now()
				l[0].Left(look("a", 1, 0), failure)
				l = next(time.Hour, "a")
				if took := time.Since(began); took != want*time.Second {
					t.Errorf("try %d after %s, want %ds", i, took, want)
				}
			}
			// A newer fact forgets that.
			timers.Due(1, look("a", 2, 0))
			l[0].Left(look("a", 2, 0), errors.New("no answer"))
			began := time.Now()
			next(time.Hour, "a")
			if took := time.Since(began); took != time.Second {
				t.Errorf("after a fact: %s", took)
			}
		}},
		{"a partition that was left", func(t *testing.T, timers *Timers, next func(time.Duration, string) []Lease) {
			timers.Due(1, look("a", 1, 0))
			timers.Due(2, look("b", 2, time.Second))
			timers.Due(1, look("c", 3, time.Second))
			l := next(0, "a")
			timers.Left(1)
			l[0].Left(look("a", 4, 0), nil)
			next(time.Minute, "b")
			timers.Due(1, look("a", 1, 0)) // taken again
			next(0, "a")
		}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			timers := NewTimers(time.Now)
			fetch := timers.Fetch("example")
			c.play(t, timers, func(wait time.Duration, want string) []Lease {
				t.Helper()
				names, list := fetched(t, fetch, wait)
				if names != want {
					t.Errorf("fetched %q, want %q", names, want)
				}
				return list
			})
		})
	}
}

func TestTimersEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if list, err := NewTimers(time.Now).Fetch("example")(ctx, 1, time.Hour); len(list) != 0 || !errors.Is(err, context.Canceled) {
			t.Error(list, err)
		}
	})
}

// Wake-ups of the server are looked for now and then, and drained beside the
// timers' work.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timers := NewTimers(time.Now)
		var asked []time.Duration
		left, failure := 0, error(nil)
		began := time.Now()
		fetch := WithFallback(timers.Fetch("example"), func(_ context.Context, _ int, wait time.Duration) ([]Lease, error) {
			asked = append(asked, time.Since(began))
			if wait != 0 {
				t.Errorf("waits %s for wake-ups", wait)
			}
			if left == 0 {
				return nil, failure
			}
			left--
			return []Lease{&lease{operation: fmt.Sprintf("woken-%d", left)}}, nil
		}, time.Now)
		next := func(wait time.Duration, want string) {
			t.Helper()
			names, _ := fetched(t, fetch, wait)
			if names != want {
				t.Errorf("fetched %q, want %q", names, want)
			}
		}
		next(time.Second, "")
		next(time.Second, "")
		time.Sleep(3 * time.Second)
		left = 3
		timers.Due(1, look("a", 1, 0))
		next(0, "woken-2")
		next(0, "a")
		timers.Due(1, look("b", 1, 0))
		next(0, "woken-1")
		next(0, "b")
		next(0, "woken-0")
		next(0, "")
		if want := []time.Duration{0, 5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}; !slices.Equal(asked, want) {
			t.Errorf("asked after %v", asked)
		}
		// A store that does not answer takes nothing from the timers.
		time.Sleep(6 * time.Second)
		failure = errors.New("no answer")
		timers.Due(1, look("c", 1, 0))
		if list, err := fetch(t.Context(), 1, 0); !errors.Is(err, failure) || len(list) != 1 {
			t.Error(list, err)
		}
	})
}

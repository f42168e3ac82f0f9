package projector

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// told keeps what timers are told.
type told struct {
	mu   sync.Mutex
	list []string
	at   map[string]time.Time
}

func (d *told) Due(partition int, s projections.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, fmt.Sprintf("%d: %s %d", partition, s.Operation, s.Sequence))
	d.at[s.Operation] = s.NextLook
}

func (d *told) Left(partition int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, fmt.Sprintf("%d: left", partition))
}

func (d *told) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.list
	d.list = nil
	return list
}

func withTimers(d *told) func(*Config) { return func(c *Config) { c.Timers = d } }

// With timers a wake-up stands from the next look to twice the grace behind it.
func TestWakeUpStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		d := &told{at: map[string]time.Time{}}
		partition, ops := partitioned(1)
		op := ops[0]
		w := h.swept(h.projector(withTimers(d)), partition)
		defer w.Close()
		step := func(want ...string) {
			t.Helper()
			h.catchUp(w)
			same(t, h.take(), want...)
		}
		h.create(op)
		step("wake."+op, "record "+op)
		pending, _ := h.pending(op)
		if want := h.state(op).NextLook.Add(grace); !pending.At.Equal(want) {
			t.Errorf("set for %s, want %s", pending.At, want)
		}
		// The open attempt is waited for 25 s, and the job read after a minute.
		h.accept(op, "j-1")
		step("record "+op, "record "+op)
		if now, _ := h.pending(op); !now.At.Equal(pending.At) {
			t.Errorf("moved to %s", now.At)
		}
		// Told each time, whatever stands.
		same(t, d.take(), fmt.Sprintf("%d: %s 1", partition, op), fmt.Sprintf("%d: %s 2", partition, op), fmt.Sprintf("%d: %s 3", partition, op))
		if !d.at[op].Equal(h.state(op).NextLook) {
			t.Errorf("due at %s", d.at[op])
		}
		observed := func(word string, class events.Class) {
			h.put(op, &events.JobObserved{JobID: "j-1", Claim: events.ClaimOwn, Remote: word, State: class, Call: events.Call{AsOf: h.state(op).Sequence, LeftAt: time.Now()}})
		}
		// A look that lies behind it takes another.
		time.Sleep(time.Minute)
		observed("running", events.ClassRunning)
		step("wake."+op, "record "+op)
		// One that comes much sooner, too.
		h.put(op, &events.StepDeferred{Until: time.Now().Add(time.Hour), Reason: events.DeferThrottled})
		step("wake."+op, "record "+op)
		h.put(op, &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		step("wake."+op, "record "+op)
		// None is cancelled, and a look after that has one again.
		h.put(op, &events.JobContested{JobID: "j-1", Owner: "op_other"})
		step("cancel wake."+op, "record "+op)
		h.put(op, &events.CancelRequested{Who: "alice"})
		step("record " + op)
	})
}

// A tenure knows nothing of what the one before published, whichever grace that
// had, until its sweep has looked.
func TestWakeUpsOfAnotherTenure(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after bool // with timers
		look          time.Duration
		writes        bool // the sweep
	}{
		{"both with timers", true, true, 0, false},
		{"with timers, then without", true, false, 0, true},
		{"without, then with timers", false, true, 0, false},
		{"both without", false, false, 0, false},
		{"the look has moved meanwhile", true, true, 4 * time.Minute, true},
	} {
		bubble(t, c.name, func(t *testing.T) {
			h := newHall(t)
			d := &told{at: map[string]time.Time{}}
			change := func(timers bool) []func(*Config) {
				if timers {
					return []func(*Config){withTimers(d)}
				}
				return nil
			}
			partition, ops := partitioned(1)
			op := ops[0]
			old := h.swept(h.projector(change(c.before)...), partition)
			h.create(op, func(i *events.IntentRecorded) { i.NotBefore = time.Now().Add(30 * time.Minute) })
			h.catchUp(old)
			old.Close()
			if c.look > 0 {
				// Its next look moves behind what stands, and nobody has projected it.
				h.put(op, &events.StepDeferred{Until: time.Now().Add(30*time.Minute + c.look), Reason: events.DeferThrottled})
			}
			h.take()
			d.take()
			w := h.open(h.projector(change(c.after)...), partition)
			defer w.Close()
			h.catchUp(w)
			if c.look > 0 {
				same(t, h.take(), "record "+op)
			}
			if err := w.Sweep(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			var want []string
			if c.writes {
				want = []string{"wake." + op}
			}
			same(t, h.take(), want...)
			pending, ok := h.pending(op)
			if !ok || !w.stands(pending.At, h.state(op).NextLook) {
				t.Errorf("set for %s, look at %s", pending.At, h.state(op).NextLook)
			}
			if told := len(d.take()) > 0; told != c.after {
				t.Errorf("timers were told: %t", told)
			}
			// What the sweep found it need not write again.
			h.put(op, &events.CancelRequested{Who: "alice"})
			h.catchUp(w)
			same(t, h.take(), "cancel wake."+op, "record "+op)
		})
	}
}

// Who ends a tenure takes its operations from the timers.
func TestTimersAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		d := &told{at: map[string]time.Time{}}
		partition := journal.Partition("op_0")
		stop := h.running(h.projector(withTimers(d)), []int{partition}, func() {})
		synctest.Wait() // it has swept
		h.create("op_0")
		synctest.Wait()
		same(t, d.take(), fmt.Sprintf("%d: op_0 1", partition))
		if err := stop(); err != nil {
			t.Error(err)
		}
		same(t, d.take(), fmt.Sprintf("%d: left", partition))
		stop = h.running(h.projector(withTimers(d)), []int{partition}, func() {})
		synctest.Wait()
		same(t, d.take(), fmt.Sprintf("%d: op_0 1", partition))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

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

// timed is the work on the partition of one operation, with timers.
func timed(t *testing.T) (h *hall, d *told, w *Work, operation string) {
	h, d = newHall(t), &told{at: map[string]time.Time{}}
	partition, ops := partitioned(1)
	return h, d, h.swept(h.projector(withTimers(d)), partition), ops[0]
}

func withTimers(d *told) func(*Config) { return func(c *Config) { c.Timers = d } }

// With timers a wake-up stands from the next look to twice the grace behind it, and
// one that is needed is written when it has been owed for a while.
func TestWakeUpStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, d, w, op := timed(t)
		defer w.Close()
		step := func(want ...string) {
			t.Helper()
			h.catchUp(w)
			same(t, h.take(), want...)
		}
		paid := func() {
			t.Helper()
			time.Sleep(credit - time.Nanosecond)
			step()
			time.Sleep(time.Nanosecond)
			step("wake." + op)
			pending, _ := h.pending(op)
			if want := h.state(op).NextLook.Add(grace); !pending.At.Equal(want) {
				t.Errorf("set for %s, want %s", pending.At, want)
			}
		}
		h.create(op)
		step("record " + op)
		paid()
		pending, _ := h.pending(op)
		// The open attempt is waited for 25 s, and the job read after a minute.
		h.accept(op, "j-1")
		step("record "+op, "record "+op)
		if now, _ := h.pending(op); !now.At.Equal(pending.At) {
			t.Errorf("moved to %s", now.At)
		}
		// Told each time, whatever stands.
		partition := journal.Partition(op)
		same(t, d.take(), fmt.Sprintf("%d: %s 1", partition, op), fmt.Sprintf("%d: %s 2", partition, op), fmt.Sprintf("%d: %s 3", partition, op))
		if !d.at[op].Equal(h.state(op).NextLook) {
			t.Errorf("due at %s", d.at[op])
		}
		paid()
		// A look that lies behind it takes another.
		h.put(op, &events.StepDeferred{Until: time.Now().Add(time.Hour), Reason: events.DeferThrottled})
		step("record " + op)
		paid()
		// One that comes much sooner, too.
		h.put(op, &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		step("record " + op)
		paid()
		// None is cancelled, and a look after that has one again.
		h.put(op, &events.JobContested{JobID: "j-1", Owner: "op_other"})
		step("cancel wake."+op, "record "+op)
		h.put(op, &events.CancelRequested{Who: "alice"})
		step("record " + op)
	})
}

// An operation that ends before its wake-up is due to be written has none, and none
// to be cancelled; a tenure that ends before leaves it to the next one's sweep.
func TestOwedWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		d := &told{at: map[string]time.Time{}}
		partition, ops := partitioned(payMost + 10)
		short, list := ops[0], ops[1:]
		w := h.swept(h.projector(withTimers(d)), partition)
		h.create(short)
		h.accept(short, "j-short")
		h.catchUp(w)
		h.put(short, &events.JobContested{JobID: "j-short", Owner: "op_other"})
		h.catchUp(w)
		time.Sleep(2 * credit)
		h.catchUp(w)
		same(t, h.take(), "record "+short, "record "+short, "record "+short, "record "+short)
		if len(w.owed) != 0 || len(w.standing) != 0 {
			t.Errorf("owed %v, standing %v", w.owed, w.standing)
		}

		for _, op := range list {
			h.create(op)
			h.accept(op, "j-"+op)
		}
		h.catchUp(w)
		h.take()
		w.Close()
		w = h.swept(h.projector(withTimers(d)), partition)
		if n := len(h.take()); n != len(list) {
			t.Errorf("the next tenure's sweep wrote %d, want %d", n, len(list))
		}
		for _, op := range list {
			h.put(op, &events.StepDeferred{Until: time.Now().Add(time.Hour), Reason: events.DeferThrottled})
		}
		h.catchUp(w)
		h.take()
		time.Sleep(credit)
		if _, err := w.Step(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if n := len(h.take()); n != payMost {
			t.Errorf("wrote %d at once, want %d", n, payMost)
		}
		h.catchUp(w)
		if n := len(h.take()); n != len(list)-payMost || len(w.owed) != 0 {
			t.Errorf("wrote %d then, and %d are owed", n, len(w.owed))
		}
		for _, op := range list {
			if pending, ok := h.pending(op); !ok || !w.stands(pending.At, h.state(op).NextLook) {
				t.Errorf("%s is set for %s, look at %s", op, pending.At, h.state(op).NextLook)
			}
		}
		w.Close()
	})
}

// With timers records wait for more. Whoever works in the process knows the fact
// before.
func TestRecordsLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		d := &told{at: map[string]time.Time{}}
		c := newTally()
		partition, ops := partitioned(lingerMost)
		w := h.swept(h.projector(withTimers(d), func(cfg *Config) { cfg.Observe = c }), partition)
		defer w.Close()
		step := func(wait time.Duration, want bool) {
			t.Helper()
			if more, err := w.Step(t.Context(), wait); more != want || err != nil {
				t.Fatal(more, err)
			}
		}
		name := journal.PartitionName(partition)
		// One that comes alone does not wait: lists are made from the history.
		h.create(ops[2])
		step(time.Second, true)
		same(t, h.take(), "record "+ops[2])
		d.take()
		time.Sleep(linger)
		h.create(ops[0])
		step(time.Second, true)
		same(t, h.take())
		same(t, d.take(), fmt.Sprintf("%d: %s 2", partition, ops[0]))
		if s, ok := w.board.State(ops[0]); !ok || s.Sequence != 2 {
			t.Errorf("on the board: %t, %d", ok, s.Sequence)
		}
		if c.behind[name].IsZero() {
			t.Error("it is not behind")
		}
		// It waits no longer because another comes.
		time.Sleep(linger / 2)
		h.create(ops[1])
		step(time.Second, true)
		began := time.Now()
		step(time.Second, false)
		if waited := time.Since(began); waited != linger/2 {
			t.Errorf("waited %s, want %s", waited, linger/2)
		}
		same(t, h.take(), "record "+ops[0], "record "+ops[1])
		if !c.behind[name].IsZero() {
			t.Error("it is behind")
		}
		// Many do not wait.
		for _, op := range ops[3:] {
			h.create(op)
		}
		h.put(ops[0], &events.StepDeferred{Until: time.Now().Add(time.Hour), Reason: events.DeferThrottled})
		h.put(ops[0], &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		h.put(ops[0], &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		step(time.Second, true)
		same(t, h.take())
		step(time.Second, true)
		if n := len(h.take()); n != lingerMost {
			t.Errorf("%d records, want %d", n, lingerMost)
		}
		// Nor one that comes to rest, which is told again until it is recorded.
		h.put(ops[1], &events.JobContested{JobID: "j-1", Owner: "op_other"})
		step(time.Second, true)
		same(t, h.take(), "record "+ops[1])
		// A sweep begins with none that wait.
		h.put(ops[0], &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		step(time.Second, true)
		same(t, h.take())
		if err := w.Sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if list := h.take(); len(list) == 0 || list[0] != "record "+ops[0] {
			t.Errorf("%q", list)
		}
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
			if c.before {
				time.Sleep(credit)
				h.catchUp(old)
			}
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

// Who ends a tenure takes its operations from the timers; who begins one tells them
// of all, in the narrow first sweep and in the one behind it.
func TestTimersAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(t)
		d := &told{at: map[string]time.Time{}}
		partition := journal.Partition("op_0")
		stop := h.running(h.projector(withTimers(d)), []int{partition}, func() {})
		time.Sleep(time.Second) // both sweeps are over: the second polls for what it reads
		h.create("op_0")
		synctest.Wait()
		due := fmt.Sprintf("%d: op_0 1", partition)
		same(t, d.take(), due)
		if err := stop(); err != nil {
			t.Error(err)
		}
		same(t, d.take(), fmt.Sprintf("%d: left", partition))
		stop = h.running(h.projector(withTimers(d)), []int{partition}, func() {})
		time.Sleep(time.Second)
		same(t, d.take(), due, due)
		if err := stop(); err != nil {
			t.Error(err)
		}
		same(t, d.take(), fmt.Sprintf("%d: left", partition))
	})
}

// A wake-up that stood for an earlier state alone may be acknowledged by a worker that
// knew another; what is owed since is written, though the sweep finds one that stands.
func TestASweepLeavesWhatIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, w, op := timed(t)
		defer w.Close()
		h.create(op)
		h.catchUp(w)
		time.Sleep(credit)
		h.catchUp(w)
		h.put(op, &events.StepDeferred{Until: time.Now().Add(time.Hour), Reason: events.DeferThrottled})
		h.put(op, &events.StepDeferred{Until: time.Now(), Reason: events.DeferThrottled})
		h.catchUp(w)
		if pending, ok := h.pending(op); !ok || !w.stands(pending.At, h.state(op).NextLook) || !w.Owes(op) {
			t.Fatalf("pending %t, %s, owed %t", ok, pending.At, w.Owes(op))
		}
		h.take()
		if err := w.Sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		same(t, h.take())
		time.Sleep(credit)
		h.catchUp(w)
		same(t, h.take(), "wake."+op)
	})
}

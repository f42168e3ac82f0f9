package budget

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// world is a store, a provider and some processes on true time. Each process
// has clocks of its own, is stopped, dies and comes back under another name;
// messages to the store are lost, or land late, or their answers are lost.
type world struct {
	t      *testing.T
	r      *rand.Rand
	limits Limits
	now    time.Duration // true time

	sequence uint64
	stored   map[int]stored
	late     []late
	want     stored
	away     bool // the store answers nobody

	procs []*proc
	under []*call // at the provider
	came  []time.Duration
	most  int
}

type stored struct {
	sequence uint64
	data     []byte
}

type late struct {
	at time.Duration
	w  Write
}

type proc struct {
	name      string
	s         *Slots
	skew      time.Duration // of the wall clock
	offset    time.Duration // of the monotonic clock
	stopped   time.Duration // until then
	seen      uint64
	tick      time.Duration
	waiting   int
	answers   []func() // of the store, heard when it runs again
	calls     []*call
	completed int
}

type call struct {
	slot    int
	last    Moment
	leaves  time.Duration // true time at which the process comes to send it
	left    bool
	arrives time.Duration
	ends    time.Duration // at the provider
	timeout time.Duration
	hangs   time.Duration // how long it is under way
}

func (w *world) moment(p *proc) Moment {
	return Moment{Monotonic: w.now + p.offset, Wall: time.Unix(1_800_000_000, 0).Add(w.now + p.skew)}
}

func (w *world) begin() *proc {
	name := fmt.Sprintf("p%d", w.r.Uint32())
	return &proc{
		name: name, s: New(w.limits, name), offset: time.Duration(w.r.Int64N(int64(time.Hour))),
		skew: time.Duration(w.r.Int64N(int64(time.Hour))) - 30*time.Minute, tick: w.now,
	}
}

func (w *world) store(x Write) (uint64, bool) {
	if w.stored[x.Slot].sequence != x.Expected {
		return 0, false
	}
	w.sequence++
	w.stored[x.Slot] = stored{w.sequence, codec.Marshal(&x.Note)}
	return w.sequence, true
}

func (w *world) keep(p *proc) {
	if w.away {
		return
	}
	for n, m := range w.stored {
		if m.sequence > p.seen {
			var note Note
			if err := codec.Unmarshal(m.data, &note); err != nil {
				w.t.Fatal(err)
			}
			p.s.See(n, m.sequence, note, w.moment(p))
		}
	}
	if w.want.sequence > p.seen {
		p.s.SeeWant(string(w.want.data), w.moment(p))
	}
	p.seen = w.sequence
	sent := w.moment(p)
	writes, want := p.s.Plan(sent, p.waiting, false)
	for _, x := range writes {
		switch w.r.IntN(12) {
		case 0: // lost
		case 1: // its answer is lost
			w.store(x)
		case 2:
			w.late = append(w.late, late{w.now + time.Duration(w.r.Int64N(int64(90*time.Second))), x})
		case 3: // stopped before it hears the answer
			if sequence, ok := w.store(x); ok {
				p.stopped = max(p.stopped, w.now+time.Duration(w.r.Int64N(int64(40*time.Second))))
				p.answers = append(p.answers, func() { p.s.Wrote(x, sequence, sent, w.moment(p)) })
			}
		default:
			if sequence, ok := w.store(x); ok {
				p.s.Wrote(x, sequence, sent, w.moment(p))
			}
		}
	}
	if want {
		w.sequence++
		w.want = stored{w.sequence, []byte(p.name)}
	}
}

func (w *world) step() {
	w.now += 50 * time.Millisecond
	for i := 0; i < len(w.late); i++ {
		if w.late[i].at <= w.now {
			w.store(w.late[i].w)
			w.late = slices.Delete(w.late, i, i+1)
			i--
		}
	}
	for _, p := range w.procs {
		if p.stopped > w.now {
			continue
		}
		for _, hear := range p.answers {
			hear()
		}
		p.answers = nil
		// What would have left while it was stopped did not; what ended, it hears of now.
		for i := 0; i < len(p.calls); i++ {
			c := p.calls[i]
			switch {
			case !c.left && c.leaves <= w.now:
				if c.last.passed(w.moment(p)) {
					p.s.End(c.slot, w.moment(p))
					p.calls = slices.Delete(p.calls, i, i+1)
					i--
					continue
				}
				c.left = true
				c.ends = w.now + c.hangs
				c.arrives = w.now + time.Duration(w.r.Int64N(int64(c.hangs)+1))
				w.under = append(w.under, c)
				if c.hangs == c.timeout { // and again once it has left
					p.stopped = w.now + time.Duration(w.r.Int64N(int64(40*time.Second)))
				}
			case c.left && c.ends <= w.now:
				p.s.End(c.slot, w.moment(p))
				p.completed++
				p.calls = slices.Delete(p.calls, i, i+1)
				i--
			}
		}
		for p.waiting > 0 {
			timeout := time.Duration(1+w.r.Int64N(int64(10*time.Second)/int64(time.Millisecond))) * time.Millisecond
			n, last, ok := p.s.Start(w.moment(p), timeout)
			if !ok {
				break
			}
			p.waiting--
			hangs := time.Duration(w.r.Int64N(int64(timeout)))
			if w.r.IntN(3) > 0 {
				hangs = min(hangs, 100*time.Millisecond)
			}
			if w.r.IntN(40) == 0 { // begun, and stopped before it is sent
				hangs = timeout
				p.stopped = w.now + time.Duration(w.r.Int64N(int64(40*time.Second)))
			}
			p.calls = append(p.calls, &call{slot: n, last: last, leaves: w.now, timeout: timeout, hangs: hangs})
		}
		if w.now >= p.tick && p.stopped <= w.now {
			p.tick = w.now + 500*time.Millisecond
			w.keep(p)
		}
		if w.r.IntN(2500) == 0 { // between any two instructions: a call may be begun and not sent
			p.stopped = w.now + time.Duration(w.r.Int64N(int64(90*time.Second)))
		}
	}
	w.check()
}

func (w *world) check() {
	w.under = slices.DeleteFunc(w.under, func(c *call) bool {
		if c.arrives <= w.now && c.arrives >= 0 {
			w.came = append(w.came, c.arrives)
			c.arrives = -1
		}
		return c.ends <= w.now
	})
	w.most = max(w.most, len(w.under))
	if len(w.under) > w.limits.Slots() {
		w.t.Fatalf("at %s: %d calls at once, want at most %d", w.now, len(w.under), w.limits.Slots())
	}
}

// mostIn is the largest number of times within any stretch shorter than per.
func mostIn(times []time.Duration, per time.Duration) (most int) {
	slices.Sort(times)
	for i, j := 0, 0; i < len(times); i++ {
		for times[i]-times[j] >= per {
			j++
		}
		most = max(most, i-j+1)
	}
	return most
}

// TestNeverAbove is the promise: whatever is stopped, lost or late, and however
// far the clocks are apart. It also counts that the world really does these
// things to the processes, or it would prove little.
func TestNeverAbove(t *testing.T) {
	var total, full, windows int
	for seed := range uint64(250) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // not for secrets
		limits := Limits{Concurrency: 1 + r.IntN(5)}
		switch r.IntN(3) {
		case 1:
			limits.Requests, limits.Per = 1+r.IntN(20), time.Second
		case 2:
			limits.Requests, limits.Per = 1+r.IntN(90), time.Minute
		}
		w := &world{t: t, r: r, limits: limits, stored: map[int]stored{}}
		for range 2 + r.IntN(2) {
			w.procs = append(w.procs, w.begin())
		}
		for range 6000 { // five minutes
			for i, p := range w.procs {
				if r.IntN(4) == 0 && p.waiting < 30 {
					p.waiting++
				}
				if r.IntN(1500) == 0 { // kill -9: its connections end, its slots stay
					for _, c := range p.calls {
						c.ends = w.now
					}
					w.procs[i] = w.begin()
				}
			}
			if r.IntN(600) == 0 {
				w.away = !w.away
			}
			w.step()
		}
		total += len(w.came)
		if w.most == limits.Slots() {
			full++
		}
		if limits.Requests > 0 {
			if n := mostIn(w.came, limits.Per); n > limits.Requests {
				t.Fatalf("seed %d: %d requests within %s, want at most %d", seed, n, limits.Per, limits.Requests)
			} else if 4*n >= 3*limits.Requests {
				windows++
			}
		}
	}
	t.Logf("%d requests; the calls at once were used up in %d of 250 worlds, most of the requests in %d", total, full, windows)
	if total < 15_000 || full < 100 || windows < 20 {
		t.Error("the worlds do too little to say anything")
	}
}

// TestEverybodyGetsSome: once nothing goes wrong any more, every process makes
// calls, also where there are more of them than slots.
func TestEverybodyGetsSome(t *testing.T) {
	for _, limits := range []Limits{{Concurrency: 1}, {Concurrency: 2}, {Concurrency: 5}, {Concurrency: 4, Requests: 40, Per: time.Second}} {
		t.Run(limits.String(), func(t *testing.T) {
			w := &world{t: t, r: rand.New(rand.NewPCG(7, 7)), limits: limits, stored: map[int]stored{}} //nolint:gosec // not for secrets
			for range 3 {
				w.procs = append(w.procs, w.begin())
			}
			for range 4000 {
				for _, p := range w.procs {
					p.waiting = 10
					p.stopped = 0
				}
				w.step()
			}
			for _, p := range w.procs {
				t.Logf("%s: %d calls", p.name, p.completed)
				if p.completed < 10 {
					t.Errorf("%s made %d calls in 200 s", p.name, p.completed)
				}
			}
		})
	}
}

// TestOnesOwnPart: one process on its own gets all slots and the whole of the
// requests, but for what counting by the ends of calls costs.
func TestOnesOwnPart(t *testing.T) {
	limits := Limits{Concurrency: 4, Requests: 200, Per: time.Second}
	s := Alone(limits, Moment{}, true)
	made := 0
	for now := time.Duration(0); now < 10*time.Second; now += time.Millisecond {
		for {
			n, _, ok := s.Start(Moment{Monotonic: now}, time.Second)
			if !ok {
				break
			}
			s.End(n, Moment{Monotonic: now})
			made++
		}
	}
	if made < 1800 || made > 2000 {
		t.Errorf("%d requests in 10 s, want close to 2000 and not above", made)
	}
	s = Alone(limits, Moment{Monotonic: time.Second}, false)
	if _, _, ok := s.Start(Moment{Monotonic: time.Second}, time.Second); ok {
		t.Error("a request at once after a process that may have used all")
	}
	if at, ok := s.Ready(); !ok || at != 2*time.Second {
		t.Errorf("ready at %s %t, want at 2s", at, ok)
	}
}

// TestChange: fewer slots are not used from then on, and a new measure starts
// with nothing.
func TestChange(t *testing.T) {
	now := Moment{Monotonic: time.Minute}
	s := Alone(Limits{Concurrency: 3}, now, true)
	for range 3 {
		if _, _, ok := s.Start(now, time.Second); !ok {
			t.Fatal("no slot")
		}
	}
	s.Change(Limits{Concurrency: 2, Requests: 2, Per: time.Second}, now)
	for n := range 3 {
		s.End(n, now)
	}
	if _, _, ok := s.Start(now, time.Second); ok {
		t.Error("a request at once by a measure that is new")
	}
	now = now.Add(time.Second)
	for n := range 3 {
		if _, _, ok := s.Start(now, time.Second); ok != (n < 2) {
			t.Errorf("call %d begins: %t", n+1, ok)
		}
	}
	s.Change(Limits{Concurrency: 4}, now)
	for n := range 3 {
		if _, _, ok := s.Start(now, time.Second); ok != (n < 2) {
			t.Errorf("with four, call %d more begins: %t", n+1, ok)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		l     Limits
		slots int
		words string
	}{
		{Limits{}, 0, "not limited"},
		{Limits{Concurrency: 1}, 1, "at most 1 call at once"},
		{Limits{Concurrency: 8, Requests: 60, Per: time.Minute}, 8, "at most 8 calls at once, at most 60 requests in any minute"},
		{Limits{Concurrency: 8, Requests: 5, Per: time.Second}, 5, "at most 5 calls at once, at most 5 requests in any second"},
		{Limits{Requests: 1, Per: time.Second}, 1, "at most 1 call at once, at most 1 request in any second"},
		{Limits{Requests: 100, Per: time.Second}, 16, "at most 16 calls at once, at most 100 requests in any second"},
	} {
		if c.l.Slots() != c.slots || c.l.String() != c.words {
			t.Errorf("%+v: %d slots, %q", c.l, c.l.Slots(), c.l)
		}
		sum := 0
		for n := range c.slots {
			sum += c.l.quota(n)
		}
		if sum != c.l.Requests {
			t.Errorf("%+v: the parts are %d together", c.l, sum)
		}
	}
}

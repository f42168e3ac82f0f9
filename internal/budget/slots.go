package budget

import (
	"math"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// How slots are held. A message lives for the longest call and slack; it is
// renewed when less than renewal would be left after such a call. A call's
// time-out ends at least margin before the message counts no more, which is more
// than two clocks can come apart meanwhile.
const (
	slack    = 15 * time.Second
	renewal  = 6 * time.Second
	margin   = 2 * time.Second
	idle     = 5 * time.Second  // an unused slot is held so long
	rotation = 10 * time.Second // and a used one, where there are more processes than slots
	wanted   = 3 * time.Second  // how long a want of another process counts
	longest  = 24 * time.Hour   // of any call
)

// Note is the message of one slot, or of one process that wants more.
type Note struct {
	Holder string        // process; "" if the slot was given up
	Life   time.Duration // how long it counts after it was first seen
	Used   []Used        // of a slot that was given up
}

// Fields implements codec.Record.
func (n *Note) Fields(v *codec.Visitor) {
	codec.Text(v, "h", &n.Holder)
	codec.Duration(v, "l", &n.Life)
	codec.List(v, "u", &n.Used)
}

// Moment is one moment on two clocks. The monotonic one cannot be set, the wall
// clock moves on while the machine sleeps.
type Moment struct {
	Monotonic time.Duration
	Wall      time.Time
}

// Add gives the moment so much later.
func (m Moment) Add(d time.Duration) Moment {
	return Moment{m.Monotonic + d, m.Wall.Add(d)}
}

// passed says whether the moment lies before now on either clock.
func (m Moment) passed(now Moment) bool {
	return now.Monotonic > m.Monotonic || !m.Wall.IsZero() && now.Wall.After(m.Wall)
}

// Slots are the slots of one account as one process knows them.
type Slots struct {
	limits Limits
	self   string // "" alone: every slot is held for ever
	slots  []slot
	call   time.Duration // the longest call so far
	wants  []want
	pause  time.Duration // nothing is taken before
}

type slot struct {
	sequence uint64 // of its newest message that is known; 0: none
	note     Note
	since    time.Duration // when that message was seen first

	held   bool
	taken  time.Duration // when it was
	until  Moment        // no call may be under way after
	busy   bool
	leaves bool          // given up after the call that is under way
	used   time.Duration // when its last call ended, or it was taken
	share  share
}

type want struct {
	holder string
	seen   time.Duration
}

// New knows the slots of a process by that name, which is its alone.
func New(l Limits, self string) *Slots {
	s := &Slots{limits: l, self: self, slots: make([]slot, l.Slots())}
	for n := range s.slots {
		s.slots[n].share = share{quota: l.quota(n), per: l.Per}
	}
	return s
}

// Alone holds all slots for ever, for a process that no other shares them with.
// fresh says that no process before it can have made a call; otherwise what it
// may have made counts.
func Alone(l Limits, now Moment, fresh bool) *Slots {
	s := New(l, "")
	for n := range s.slots {
		one := &s.slots[n]
		one.held, one.until = true, Moment{Monotonic: math.MaxInt64}
		if !fresh {
			one.share.exhaust(now.Monotonic)
		}
	}
	return s
}

// Limits are those in force.
func (s *Slots) Limits() Limits { return s.limits }

// Change puts other limits in force. Slots that there are too many of are given
// up; what was used of the others is not known by the new measure and counts as
// all of it.
func (s *Slots) Change(l Limits, now Moment) {
	if l == s.limits {
		return
	}
	measured := l.Requests != s.limits.Requests || l.Per != s.limits.Per || l.Slots() != s.limits.Slots()
	s.limits = l
	for n := range max(len(s.slots), l.Slots()) {
		if n == len(s.slots) {
			s.slots = append(s.slots, slot{})
			if s.self == "" {
				s.slots[n].held, s.slots[n].until = true, Moment{Monotonic: math.MaxInt64}
			}
		}
		if one := &s.slots[n]; measured && n < l.Slots() {
			one.share = share{quota: l.quota(n), per: l.Per}
			one.share.exhaust(now.Monotonic)
		}
	}
}

// Held counts the slots that are held here, and those of them in use.
func (s *Slots) Held() (held, busy int) {
	for _, one := range s.slots {
		if one.held {
			held++
		}
		if one.busy {
			busy++
		}
	}
	return held, busy
}

// Start begins a call that takes no longer than timeout. It gives the slot, and the last
// moment at which the request may leave. Not ok: no slot is free for it now.
func (s *Slots) Start(now Moment, timeout time.Duration) (n int, last Moment, ok bool) {
	s.call = min(max(s.call, timeout), longest)
	for n := range s.slots[:s.limits.Slots()] {
		one := &s.slots[n]
		if !one.free() || one.share.ready() > now.Monotonic {
			continue
		}
		last := one.last(timeout)
		if last.passed(now) {
			continue
		}
		one.busy = true
		return n, last, true
	}
	return 0, Moment{}, false
}

// last is the last moment at which a call may leave.
func (one *slot) last(timeout time.Duration) Moment {
	if one.until.Monotonic == math.MaxInt64 {
		return one.until
	}
	return one.until.Add(-timeout)
}

func (one *slot) free() bool { return one.held && !one.busy && !one.leaves }

// Ready is when a slot that is held and free may begin the next request by its
// part of them; false if there is none.
func (s *Slots) Ready() (at time.Duration, ok bool) {
	for n := range s.slots[:s.limits.Slots()] {
		if one := &s.slots[n]; one.free() && (!ok || one.share.ready() < at) {
			at, ok = one.share.ready(), true
		}
	}
	return at, ok
}

// Again counts the request that has ended in a slot, whose call goes on with
// another one, and says when that may begin.
func (s *Slots) Again(n int, now Moment) time.Duration {
	s.slots[n].share.end(now.Monotonic, 1)
	return s.slots[n].share.ready()
}

// End ends a call.
func (s *Slots) End(n int, now Moment) {
	one := &s.slots[n]
	one.share.end(now.Monotonic, 1)
	one.busy, one.used = false, now.Monotonic
}

// Unused ends a call that asked nothing.
func (s *Slots) Unused(n int, now Moment) { s.slots[n].busy, s.slots[n].used = false, now.Monotonic }

// See takes up a message of a slot. now is after it was read.
func (s *Slots) See(n int, sequence uint64, note Note, now Moment) {
	if n < 0 || n >= len(s.slots) || sequence <= s.slots[n].sequence {
		return
	}
	one := &s.slots[n]
	if note.Holder != s.self {
		// Ours counted no more, or it could not have been taken.
		one.held = false
	}
	one.sequence, one.note, one.since = sequence, note, now.Monotonic
}

// SeeWant takes up that a process wants more slots than it can get.
func (s *Slots) SeeWant(holder string, now Moment) {
	if holder == s.self || holder == "" {
		return
	}
	s.wants = slices.DeleteFunc(s.wants, func(w want) bool { return w.holder == holder })
	s.wants = append(s.wants, want{holder, now.Monotonic})
}

// Write is a message to store: at the expected sequence, or not at all.
type Write struct {
	Slot     int
	Expected uint64
	Note     Note
}

// Plan says what to write, and whether to tell the others that more is wanted
// than there is. waiting is how many calls wait for a slot. Slots that are given
// up count as given up from here on, whatever becomes of the message.
func (s *Slots) Plan(now Moment, waiting int, stopping bool) (writes []Write, want bool) {
	if s.self == "" {
		return nil, false
	}
	s.yield(now, waiting)
	available := 0
	for n := range s.slots {
		one := &s.slots[n]
		if !one.held {
			continue
		}
		unused := waiting == 0 && now.Monotonic-one.used >= idle
		if !one.busy && (one.leaves || stopping || unused || n >= s.limits.Slots()) {
			one.held, one.leaves = false, false
			writes = append(writes, Write{n, one.sequence, Note{Used: one.share.leave(now.Monotonic)}})
			continue
		}
		if s.short(one, now) {
			writes = append(writes, s.write(n))
		}
		if one.free() && one.share.ready() <= now.Monotonic {
			available++
		}
	}
	if stopping {
		return writes, false
	}
	missing := waiting - available
	for n := range s.slots[:s.limits.Slots()] {
		if missing <= 0 {
			break
		}
		if s.canTake(n, now) && s.mayTake(now, len(writes)) {
			writes = append(writes, s.write(n))
			missing--
		}
	}
	return writes, missing > 0
}

// short says whether a hold has to be renewed for the next call.
func (s *Slots) short(one *slot, now Moment) bool {
	return one.until.Add(-s.call - renewal).passed(now)
}

func (s *Slots) write(n int) Write {
	return Write{n, s.slots[n].sequence, Note{Holder: s.self, Life: s.life()}}
}

// life is how long a message counts that is written now.
func (s *Slots) life() time.Duration { return s.call + slack }

// canTake says whether nobody holds the slot: no message was ever stored, it was
// given up, it is our own whose answer was lost, or it was seen for as long as it
// counts. Its holder sent it before it was stored, and it was stored before it
// was seen.
func (s *Slots) canTake(n int, now Moment) bool {
	one := &s.slots[n]
	switch {
	case one.held || one.busy:
		return false
	case one.sequence == 0, one.note.Holder == "", one.note.Holder == s.self:
		return true
	}
	return now.Monotonic-one.since >= min(max(one.note.Life, 0), longest+slack)
}

// mayTake leaves a slot that comes free to a process that has fewer.
func (s *Slots) mayTake(now Moment, taking int) bool {
	if now.Monotonic < s.pause {
		return false
	}
	mine, _ := s.Held()
	for _, w := range s.wants {
		if now.Monotonic-w.seen < wanted && s.count(w.holder) < mine+taking {
			return false
		}
	}
	return true
}

// count is how many slots another process holds, as far as is known.
func (s *Slots) count(holder string) (n int) {
	for _, one := range s.slots {
		if one.note.Holder == holder {
			n++
		}
	}
	return n
}

// yield gives slots to processes that want some and have fewer.
func (s *Slots) yield(now Moment, waiting int) {
	s.wants = slices.DeleteFunc(s.wants, func(w want) bool { return now.Monotonic-w.seen >= wanted })
	mine := 0
	for n := range s.slots {
		if s.slots[n].held && !s.slots[n].leaves {
			mine++
		}
	}
	for _, w := range s.wants {
		theirs := s.count(w.holder)
		n := s.leaver()
		if n < 0 {
			return
		}
		one := &s.slots[n]
		turn := theirs == 0 && now.Monotonic-one.taken >= rotation // more processes than slots
		if mine-theirs >= 2 || turn || waiting == 0 && !one.busy {
			one.leaves = true
			mine--
			if turn {
				s.pause = now.Monotonic + wanted
			}
		}
	}
}

// leaver is the slot to part with: one that is not in use if there is one, held
// longest; -1 if none is held.
func (s *Slots) leaver() int {
	best := -1
	for n := range s.slots {
		one := &s.slots[n]
		if !one.held || one.leaves {
			continue
		}
		if best < 0 || s.slots[best].busy && !one.busy || s.slots[best].busy == one.busy && one.taken < s.slots[best].taken {
			best = n
		}
	}
	return best
}

// Wrote takes up that a write was stored at a sequence. sent is before it was
// sent, now after the answer.
func (s *Slots) Wrote(w Write, sequence uint64, sent, now Moment) {
	if w.Slot >= len(s.slots) {
		return
	}
	one := &s.slots[w.Slot]
	if sequence <= one.sequence {
		return // a newer one was seen meanwhile
	}
	before, ours := one.note, one.held
	one.sequence, one.note, one.since = sequence, w.Note, now.Monotonic
	if w.Note.Holder == "" {
		return
	}
	one.until = sent.Add(w.Note.Life - margin)
	if ours {
		return // nobody else had it since it was written before
	}
	switch {
	case w.Expected == 0: // never held by anybody
	case before.Holder == "":
		one.share.resume(now.Monotonic, before.Used)
	default:
		one.share.exhaust(now.Monotonic)
	}
	one.held, one.leaves, one.taken, one.used = true, false, now.Monotonic, now.Monotonic
}

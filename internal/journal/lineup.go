package journal

import (
	"math"
	"slices"
	"time"
)

// A GroupPolicy says how writes are grouped. A zero field means its default.
type GroupPolicy struct {
	// Off sends every write alone, at once: right where the server does not
	// wait for the disk, since on one node each batch makes it do so.
	Off bool
	// Least is how many writes a batch has at least; fewer go singly. The
	// default is measured: as many as take longer one by one than in a batch.
	Least int
	// Most is how many writes a batch has at most, up to 1,000, which is the
	// server's own limit. Default 400.
	Most int
	// Bytes is how many bytes of subjects, headers and data a batch has at most;
	// a single write may have more. Default 1 MiB.
	Bytes int
	// Linger is how long a write may be kept back for others to join it while
	// so many come that a batch fills. Default 10 ms; negative means not at all.
	Linger time.Duration
}

const (
	groupMost   = 400
	groupBytes  = 1 << 20
	groupLinger = 10 * time.Millisecond

	// Until both ways were measured, low so that they are. A batch on one node
	// costs four fsyncs and two synced writes and the files around them, or with
	// its staging in memory one fsync.
	firstLeast = 8
	lowLeast   = 2
	highLeast  = 64
	// An estimate of what a batch costs loses half of itself in this time, so
	// that one bad moment does not end batches for ever.
	costHalfLife = 10 * time.Second
	// Answers come in bunches, so that one single write says little.
	singleWeight = 1.0 / 128
	batchWeight  = 1.0 / 8
	// What each write adds to a batch's time.
	batchEach = 20 * time.Microsecond

	inFlight     = 4 // single writes at once, at most: the server takes one after the other
	rateWindow   = 50 * time.Millisecond
	quietFloor   = 500 * time.Microsecond
	firstAbstain = 50 * time.Millisecond
	longestPause = time.Second
	busyShare    = 0.5
)

func (p GroupPolicy) withDefaults() GroupPolicy {
	if p.Most <= 0 {
		p.Most = groupMost
	}
	if p.Bytes <= 0 {
		p.Bytes = groupBytes
	}
	if p.Linger == 0 {
		p.Linger = groupLinger
	}
	return p
}

// A lineup decides what goes into the next batch of one stream, and what goes
// alone. It does no I/O and asks no clock, and belongs to whoever holds its
// owner's mutex.
//
// Rules. One batch is under way at a time, and while it is, everything waits.
// A subject is under way at most once, in a batch or alone; those that come for
// it meanwhile follow in order. What waits goes as a batch if it is at least as
// many as one batch costs in single writes, otherwise singly, several at once.
type lineup struct {
	policy GroupPolicy

	ready   []*appending            // each the first of its subject, in order
	bytes   int                     // of ready
	blocked map[string][]*appending // by subject, behind one that is ready or under way
	taken   map[string]bool         // subjects that are ready or under way

	batch bool // one is under way
	alone int  // single writes under way
	limit int  // of the next batch: halves with each unanswered one, doubles with each good one

	single    average   // what the server takes for a single write
	grouped   average   // what it takes for a batch besides its writes
	groupedAt time.Time // when that was measured last
	lastDone  time.Time // of a single write

	rate      float64 // writes a second, over rateWindow
	came      time.Time
	abstain   time.Duration // how long not to linger after it did not fill a batch
	noLinger  time.Time     // until then
	lingering bool
}

// An appending is one write on its way.
type appending struct {
	m    Outgoing
	size int
	came time.Time
	sent time.Time    // alone
	out  chan verdict // of one
	gone bool         // its caller waits no more
}

// A verdict is what becomes of an appending: it is to be sent alone by its
// caller, or how it ended.
type verdict struct {
	alone    bool
	sequence uint64
	err      error
}

func newLineup(p GroupPolicy) *lineup {
	p = p.withDefaults()
	return &lineup{policy: p, limit: p.Most, blocked: map[string][]*appending{}, taken: map[string]bool{}}
}

// join takes a write in.
func (l *lineup) join(a *appending, now time.Time) {
	a.came = now
	if !l.came.IsZero() {
		l.rate *= math.Exp(-float64(now.Sub(l.came)) / float64(rateWindow))
	}
	l.rate += 1 / rateWindow.Seconds()
	l.came = now
	if l.taken[a.m.Subject] {
		l.blocked[a.m.Subject] = append(l.blocked[a.m.Subject], a)
		return
	}
	l.admit(a)
}

func (l *lineup) admit(a *appending) {
	l.taken[a.m.Subject] = true
	l.ready = append(l.ready, a)
	l.bytes += a.size
}

// leave takes a write out whose caller waits no more. False means that it is
// under way.
func (l *lineup) leave(a *appending) bool {
	a.gone = true
	if i := slices.Index(l.ready, a); i >= 0 {
		l.ready = slices.Delete(l.ready, i, i+1)
		l.bytes -= a.size
		l.free(a.m.Subject)
		return true
	}
	list := l.blocked[a.m.Subject]
	i := slices.Index(list, a)
	if i < 0 {
		return false
	}
	l.block(a.m.Subject, slices.Delete(list, i, i+1))
	return true
}

func (l *lineup) block(subject string, list []*appending) {
	if len(list) == 0 {
		delete(l.blocked, subject)
		return
	}
	l.blocked[subject] = list
}

// free lets the next of a subject come forward.
func (l *lineup) free(subject string) {
	delete(l.taken, subject)
	if list := l.blocked[subject]; len(list) > 0 {
		l.block(subject, list[1:])
		l.admit(list[0])
	}
}

// next gives what to send now: a batch, or writes to be sent alone, or nothing.
// With again above 0 it is to be asked once more after that time at the latest;
// otherwise the next join or end is soon enough.
func (l *lineup) next(now time.Time) (batch, alone []*appending, again time.Duration) {
	if l.batch || len(l.ready) == 0 {
		return nil, nil, 0
	}
	least := l.least(now)
	if wait := l.linger(now, least); wait > 0 {
		return nil, nil, wait
	}
	if n := l.fits(min(l.limit, l.policy.Most)); len(l.ready) >= least && n > 1 {
		l.batch = true
		return l.take(n), nil, 0
	}
	// Where a batch costs little more than one write, only one goes alone.
	alone = l.take(l.fits(min(inFlight, least-1) - l.alone))
	l.goAlone(alone, now)
	return nil, alone, 0
}

func (l *lineup) goAlone(list []*appending, now time.Time) {
	for _, a := range list {
		a.sent = now
		l.alone++
	}
}

// fits is how many of the first most writes the bytes of a batch allow, one at
// least.
func (l *lineup) fits(most int) int {
	n, bytes := 0, 0
	for n < most && n < len(l.ready) && (n == 0 || bytes+l.ready[n].size <= l.policy.Bytes) {
		bytes += l.ready[n].size
		n++
	}
	return n
}

// take cuts n writes off the front.
func (l *lineup) take(n int) []*appending {
	list := slices.Clone(l.ready[:n])
	l.ready = slices.Delete(l.ready, 0, n)
	for _, a := range list {
		l.bytes -= a.size
	}
	return list
}

// least is how many writes make a batch worth it: what it was told, or as many
// as take as long singly.
func (l *lineup) least(now time.Time) int {
	if l.policy.Least > 0 {
		return max(l.policy.Least, 2)
	}
	single, grouped := l.single.value(), l.grouped.value()
	if single <= 0 || grouped <= 0 {
		return firstLeast
	}
	grouped *= math.Exp2(-float64(now.Sub(l.groupedAt)) / float64(costHalfLife))
	return int(min(max(math.Ceil(grouped/single), lowLeast), highLeast))
}

// linger is how much longer to wait for more to come. It waits only while so
// many come that the time allowed fills a batch and that alone they would keep the
// server busy, ends when they stop coming, and is given up for a while when it did
// not fill one, as with a few callers who all wait for their answers.
func (l *lineup) linger(now time.Time, least int) time.Duration {
	full := len(l.ready) >= min(l.limit, l.policy.Most) || l.bytes >= l.policy.Bytes
	allowed := l.policy.Linger.Seconds()
	// While single writes leave the server idle for half of its time, a write is
	// done sooner alone than with those that it would wait for.
	busy := l.single.value() == 0 || l.rate*l.single.value() >= busyShare*float64(time.Second)
	if !full && allowed > 0 && busy && l.rate*allowed >= float64(least) && !now.Before(l.noLinger) {
		quiet := max(time.Duration(4/l.rate*float64(time.Second)), quietFloor)
		end := l.ready[0].came.Add(l.policy.Linger)
		if stop := l.came.Add(quiet); stop.Before(end) {
			end = stop
		}
		if now.Before(end) {
			l.lingering = true
			return end.Sub(now)
		}
	}
	if l.lingering {
		l.lingering = false
		if len(l.ready) >= least {
			l.abstain = 0
		} else {
			l.abstain = min(max(2*l.abstain, firstAbstain), longestPause)
			l.noLinger = now.Add(l.abstain)
		}
	}
	return 0
}

// ended notes that a write is under way no more: stored at a sequence, or 0. It
// gives those that waited behind it and cannot be stored any more, because
// their guards name an earlier sequence; they are out.
func (l *lineup) ended(a *appending, sequence uint64) []*appending {
	var beaten []*appending
	subject := a.m.Subject
	if sequence > 0 {
		var rest []*appending
		for _, b := range l.blocked[subject] {
			if b.m.Guard != nil && b.m.Guard.Sequence < sequence {
				beaten = append(beaten, b)
			} else {
				rest = append(rest, b)
			}
		}
		l.block(subject, rest)
	}
	l.free(subject)
	return beaten
}

// endedAlone is ended for a write that went alone.
func (l *lineup) endedAlone(a *appending, sequence uint64, now time.Time) []*appending {
	l.alone--
	if sequence > 0 {
		l.single.add(now.Sub(l.begun(a.sent)), singleWeight)
	}
	l.lastDone = now
	return l.ended(a, sequence)
}

// begun is when the server began with what was sent at a time: it takes one
// thing after the other, so behind single writes it is when the last of them
// was done.
func (l *lineup) begun(sent time.Time) time.Time {
	if l.lastDone.After(sent) {
		return l.lastDone
	}
	return sent
}

// loosen turns a write of the batch into one that goes alone.
func (l *lineup) loosen(a *appending, now time.Time) { l.goAlone([]*appending{a}, now) }

// committed notes that the server stored a batch of that size.
func (l *lineup) committed(size int, sent, now time.Time) {
	l.limit = min(2*l.limit, l.policy.Most)
	l.grouped.add(max(now.Sub(l.begun(sent))-time.Duration(size)*batchEach, batchEach), batchWeight)
	l.groupedAt = now
}

// failed halves the next batches.
func (l *lineup) failed() { l.limit = max(l.limit/2, 2) }

// over notes that no batch is under way any more.
func (l *lineup) over() { l.batch = false }

// idle says whether nothing waits and nothing is under way.
func (l *lineup) idle() bool { return len(l.taken) == 0 }

// average is a mean in which older samples count less and less.
type average struct{ sum, weight float64 }

// add gives the sample a weight of 1 and takes a part of all others'.
func (a *average) add(sample time.Duration, part float64) {
	a.sum = a.sum*(1-part) + float64(sample)
	a.weight = a.weight*(1-part) + 1
}

// value is the mean in nanoseconds, 0 before the first sample.
func (a *average) value() float64 {
	if a.weight == 0 {
		return 0
	}
	return a.sum / a.weight
}

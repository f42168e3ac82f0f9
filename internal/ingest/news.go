package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// newsKept facts of a watched operation are kept for those who are a little
	// behind; who is further behind reads its timeline.
	newsKept = 64
	// newsIdle is how long the ledger is followed with nobody left who waits.
	newsIdle = 30 * time.Second
	// newsAgain is the pause after the ledger could not be read.
	newsAgain = time.Second
	// newsLook is how often somebody who waits looks for himself although the ledger
	// is followed for him.
	newsLook = 15 * time.Second
	// newsLate is how much later than its end a wait may be answered, where the store
	// takes its time: one look is made there.
	newsLate = 2 * time.Second
)

// news follows the ledger for all who wait for something to happen to an
// operation, while there is anybody. It keeps nothing that the ledger does not
// have: while it cannot read, they look for themselves at intervals.
//
// An operation is read once for all who wait for it, and each of its facts is
// folded once.
type news struct {
	journal *journal.Journal
	clock   Clock
	log     *slog.Logger

	mu        sync.Mutex        // guards what follows
	topics    map[string]*topic // by operation
	following bool              // every fact from now on reaches its topic
	wanted    chan struct{}     // holds one when somebody waits and nothing follows
}

// topic is an operation that somebody waits for.
type topic struct {
	operation string
	users     int // guarded by the mutex of news

	mu    turnstile          // guards what follows, also while it is read
	state *projections.State // never changed, so that all may hold it
	known bool               // state is as the ledger has it, but for facts that are on their way to add
	shown uint64             // the version that last changed what is shown, as far as that is known; no lower
	items []*Happening       // the newest; all there are behind from
	from  uint64             // ledger sequence
	grown chan struct{}      // closed when something is added, or is not known any more
}

// turnstile is a lock that whoever cannot wait for ever may give up on: who has it may be
// waiting for a store that does not answer.
type turnstile chan struct{}

func newTurnstile() turnstile { return make(turnstile, 1) }

func (t turnstile) lock()   { t <- struct{}{} }
func (t turnstile) unlock() { <-t }

func (t turnstile) lockUntil(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Happening is one fact of a watched operation and how it left it. It is shared
// between all who watch.
type Happening struct {
	Entry Entry
	After *projections.State // not to be changed

	once sync.Once
	text []byte
	err  error
}

// Text gives what write makes of it, which is called once for all who watch.
func (h *Happening) Text(write func(*Happening) ([]byte, error)) ([]byte, error) {
	h.once.Do(func() { h.text, h.err = write(h) })
	return h.text, h.err
}

func newNews(j *journal.Journal, clock Clock, log *slog.Logger) *news {
	return &news{journal: j, clock: clock, log: log, topics: map[string]*topic{}, wanted: make(chan struct{}, 1)}
}

// join takes part in what is known of an operation. leave must be called.
func (n *news) join(operation string) (t *topic, leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t = n.topics[operation]
	if t == nil {
		t = &topic{operation: strings.Clone(operation), mu: newTurnstile(), state: &projections.State{}, grown: make(chan struct{})}
		n.topics[t.operation] = t
	}
	t.users++
	if !n.following {
		select {
		case n.wanted <- struct{}{}:
		default:
		}
	}
	return t, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(n.topics, t.operation)
		}
	}
}

// followed says whether news reach those who wait without their looking.
func (n *news) followed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.following
}

// run follows the ledger while somebody waits, until ctx ends.
func (n *news) run(ctx context.Context) {
	for {
		select {
		case <-n.wanted:
		case <-ctx.Done():
			return
		}
		if err := n.follow(ctx); err != nil && ctx.Err() == nil {
			n.log.WarnContext(ctx, "the ledger could not be followed; who waits looks for himself meanwhile", "error", err)
			if n.clock.Sleep(ctx, newsAgain) != nil {
				return
			}
			n.want()
		}
	}
}

// want asks for the ledger to be followed, where somebody waits.
func (n *news) want() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.topics) == 0 || n.following {
		return
	}
	select {
	case n.wanted <- struct{}{}:
	default:
	}
}

// follow reads the ledger from its end on, until nobody has waited for a while.
func (n *news) follow(ctx context.Context) error {
	end, err := n.journal.LedgerEnd(ctx)
	if err != nil {
		return err
	}
	facts, err := n.journal.AllFacts(ctx, end+1)
	if err != nil {
		return err
	}
	defer func() { _ = facts.Close() }() // the store lets go of it by itself
	// What was read of an operation before may miss a fact that came since and is not
	// behind the end: it is read again. What is read from here on misses none.
	n.follows(true)
	defer n.follows(false)
	for quiet := n.clock.Now(); ; {
		fact, err := facts.NextStored(ctx, newsLook)
		switch {
		case errors.Is(err, journal.ErrNoMessage):
		case err != nil:
			return err
		default:
			if t := n.topic(fact.Operation()); t != nil {
				t.add(fact.Entry())
			}
		}
		switch now := n.clock.Now(); {
		case n.waited():
			quiet = now
		case now.Sub(quiet) >= newsIdle && n.rest():
			return nil
		}
	}
}

// follows says whether every fact reaches its topic from now on, and has all who wait
// look for themselves once.
func (n *news) follows(now bool) {
	n.mu.Lock()
	n.following = now
	list := slices.Collect(maps.Values(n.topics))
	n.mu.Unlock()
	for _, t := range list {
		t.forget()
	}
}

func (n *news) topic(operation string) *topic {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.topics[operation]
}

func (n *news) waited() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.topics) > 0
}

// rest ends the following unless somebody has come.
func (n *news) rest() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.topics) > 0 {
		return false
	}
	n.following = false
	return true
}

// add folds a fact that was read from the ledger.
func (t *topic) add(e projections.Entry) {
	t.mu.lock()
	defer t.mu.unlock()
	if t.known && e.Sequence <= t.state.Sequence {
		return
	}
	if !t.known || e.Unreadable != nil || e.Event.Previous != t.state.Head {
		// Whoever waits reads it whole: what does not say what it follows on may follow
		// on a fact that was missed.
		t.known = false
		t.wake()
		return
	}
	before := t.state
	after, record := projections.Fold(*before, e)
	t.state = &after
	t.told(before)
	t.items = append(t.items, &Happening{Entry: entryOf(e, record), After: t.state})
	if over := len(t.items) - newsKept; over > 0 {
		t.from = t.items[over-1].Entry.Sequence
		t.items = slices.Delete(t.items, 0, over)
	}
	t.wake()
}

// told compares what is shown with what was before; mu is held. Where nothing was known
// all of it is taken for new. It is done once for all who wait.
func (t *topic) told(before *projections.State) {
	if before.Facts == 0 || !reflect.DeepEqual(shownOf(*before), shownOf(*t.state)) {
		t.shown = t.state.Facts
	}
}

// shownOf is what callers are shown of an operation, but for its bookkeeping: how many
// facts there are, when it is looked at next, how often something was read or failed, in
// whose words, and when the provider touched its job last.
func shownOf(s projections.State) View {
	v := ViewOf(s, time.Time{})
	v.Version, v.Sequence, v.NextPollAfter, v.NextLook, v.Because = 0, 0, 0, nil, s.Why()
	if v.Job != nil {
		v.Job.UpdatedAt = nil
	}
	if v.Problem != nil {
		v.Problem.Message = "" // a time-out names a port of its own each time
	}
	return v
}

// forget has the operation read anew.
func (t *topic) forget() {
	t.mu.lock()
	defer t.mu.unlock()
	t.known = false
	t.wake()
}

// wake tells all who wait; mu is held.
func (t *topic) wake() {
	close(t.grown)
	t.grown = make(chan struct{})
}

// look gives the operation as it stands, and the version that last changed what is shown of
// it. Where fresh is set what is known of it does not do, since nobody may follow the ledger.
func (t *topic) look(ctx context.Context, j *journal.Journal, fresh bool) (s *projections.State, shown uint64, grown <-chan struct{}, err error) {
	if err := t.mu.lockUntil(ctx); err != nil {
		return nil, 0, nil, err
	}
	defer t.mu.unlock()
	if err := t.learn(ctx, j, fresh); err != nil {
		return nil, 0, nil, err
	}
	return t.state, t.shown, t.grown, nil
}

// learn reads the operation unless it is known; mu is held, so that one reads for all.
func (t *topic) learn(ctx context.Context, j *journal.Journal, fresh bool) (err error) {
	if t.known && !fresh {
		return nil
	}
	Aside(func() { err = t.read(ctx, j) })
	return err
}

func (t *topic) read(ctx context.Context, j *journal.Journal) error {
	var s projections.State
	var err error
	if t.state.Facts > 0 {
		s, err = j.Catch(ctx, *t.state)
	} else {
		s, err = j.Current(ctx, t.operation)
	}
	if err != nil {
		return err
	}
	moved := s.Sequence != t.state.Sequence
	if moved {
		// What came in between is in the timeline.
		t.items, t.from = nil, s.Sequence
	}
	if before := t.state; moved || before.Facts == 0 {
		t.state = &s
		t.told(before)
	}
	t.known = true
	if moved {
		t.wake() // the ledger's reader has nothing to add to it, and others wait
	}
	return nil
}

// after gives what happened behind a ledger sequence; whole is false where that is
// to be read from the timeline.
func (t *topic) after(ctx context.Context, j *journal.Journal, sequence uint64, fresh bool) (list []*Happening, whole bool, s *projections.State, grown <-chan struct{}, err error) {
	if err := t.mu.lockUntil(ctx); err != nil {
		return nil, false, nil, nil, err
	}
	defer t.mu.unlock()
	if err := t.learn(ctx, j, fresh); err != nil {
		return nil, false, nil, nil, err
	}
	if sequence < t.from {
		return nil, false, t.state, t.grown, nil
	}
	for i, h := range t.items {
		if h.Entry.Sequence > sequence {
			list = slices.Clone(t.items[i:])
			break
		}
	}
	return list, true, t.state, t.grown, nil
}

// wait has the wait know the operation once it is enough for who asks, or as it stands
// when the time ends. Nothing is held meanwhile but what all who wait for the operation
// share.
func (n *news) wait(ctx context.Context, w *Waiting) (enough bool, err error) {
	if w.enough() || w.state.Phase.Terminal() {
		return w.enough(), nil // a terminal operation is worth no wait
	}
	had := w.state.Facts
	t, leave := n.join(w.state.Operation)
	defer leave()
	end := n.clock.Now().Add(min(w.r.Wait, MaxWait))
	for gap := firstGap; ; gap = min(gap*3/2, longestGap) {
		looking, stop := context.WithTimeout(ctx, max(end.Sub(n.clock.Now()), 0)+newsLate)
		now, shown, grown, err := t.look(looking, n.journal, !n.followed())
		stop()
		switch {
		case err != nil && ctx.Err() != nil:
			return false, nil // the caller left or the server stops: what is known is the answer
		case err != nil:
			return false, fmt.Errorf("read news of %s: %w", w.r.ID, err)
		case now.Facts >= w.state.Facts:
			w.state = now
		}
		if w.enough() && shown > had {
			return true, nil
		}
		left := end.Sub(n.clock.Now())
		if left <= 0 || w.state.Phase.Terminal() || n.await(ctx, min(gap, left), left, grown) != nil {
			return false, nil // as above
		}
	}
}

// await waits until grown is closed, at most left; or at most gap where nobody follows
// the ledger. The error is ctx's.
func (n *news) await(ctx context.Context, gap, left time.Duration, grown <-chan struct{}) error {
	d := gap
	// Asked for behind the taking of grown, which is closed when the following ends.
	if n.followed() {
		d = min(newsLook, left)
	}
	if err := n.clock.SleepOr(ctx, d, grown); err != nil {
		return err
	}
	return ctx.Err()
}

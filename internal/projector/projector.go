// Package projector folds the ledger into history and wake-ups.
//
// One projector works on a partition at a time. Whoever takes a partition over
// fences the one before: every write of its tenure is guarded by the epoch and
// by the partition's last history record, so a projector that was stopped and
// resumes writes nothing over newer records. It catches up with the ledger by
// history records alone, and then sweeps: names and wake-ups of all operations are
// compared with their states. From then on it folds for each fact the state,
// publishes the wake-up if the next look moved, and then appends the history
// record: a crash between the two leaves a wake-up without its record, whose
// reader folds the ledger's tail itself, and the next tenure sweeps. With timers
// both may wait: records for more of them, wake-ups until an operation has shown
// that it needs one.
package projector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// Clock is the projector's time. Sleep returns early with ctx's error.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Standing is where an operation stands: its phase, and the kind where it is
// quarantined.
type Standing struct {
	Phase      projections.Phase
	Quarantine projections.Quarantine
}

// Observer is told what becomes of the partitions. Its methods must return at
// once; each partition calls from one goroutine.
type Observer interface {
	// Behind says that a fact stored at that time is read and not yet recorded;
	// the zero time, that none is.
	Behind(partition string, since time.Time)
	// Stalled says that the partition cannot be projected for now.
	Stalled(partition string)
	// Left says that another projector has the partition.
	Left(partition string)
	// Stopped is told of a state in which automation rests: fresh, before the
	// record that says so is written, so that a crash repeats it; or again by
	// every sweep.
	Stopped(s projections.State, fresh bool)
	// Unmapped is told of a job whose state, as the provider now says it, the
	// contract does not know: when it comes to say so and before the record, so
	// that a crash repeats it.
	Unmapped(s projections.State)
	// Counted gives how many of the partition's operations have not ended. Moved
	// says what has changed since: after is recorded. A partition is counted at
	// the beginning of each tenure and by every sweep, and what moves before the
	// first count is in it. Owned gives how many of those that Counted counts each
	// principal has, just before it.
	Owned(partition string, open map[string]int)
	Counted(partition string, open map[Standing]int)
	Moved(partition string, before, after projections.State)
}

// unobserved is the Observer where nobody wants to know.
type unobserved struct{}

func (unobserved) Behind(string, time.Time)                           {}
func (unobserved) Stalled(string)                                     {}
func (unobserved) Left(string)                                        {}
func (unobserved) Stopped(projections.State, bool)                    {}
func (unobserved) Unmapped(projections.State)                         {}
func (unobserved) Owned(string, map[string]int)                       {}
func (unobserved) Counted(string, map[Standing]int)                   {}
func (unobserved) Moved(string, projections.State, projections.State) {}

// Config of a Projector. All fields but Gone, Sweep, Hold, Timers and
// Observe are required.
type Config struct {
	Journal *journal.Journal
	Clock   Clock
	NewID   func() string
	Log     *slog.Logger

	Source string // CloudEvents source of this projector's facts, "/projector/1"
	Build  string // program version, written into every record

	// Gone says whether the owner of an attempt is proved to be gone; its
	// operations are attended to at once instead of when the attempt can no
	// longer be running.
	Gone func(owner string) bool
	// Alone says that this process holds all roles of the installation, so that
	// a wake-up still leased at the start is leased by nobody. Its first sweep
	// publishes those again instead of waiting for the leases to end.
	Alone bool
	// Sweep is how often live operations are compared with their wake-ups.
	// Default 5 minutes.
	Sweep time.Duration

	// Hold says what rests for a provider, as the pollers see it; nil means
	// nothing. Its end is what ends the rest of operations under it.
	Hold func(provider string) workflow.Hold

	// Timers are told when operations are due by a process that attends to them
	// itself; wake-ups are the fallback then, and stand longer. Nil where others
	// attend to them.
	Timers Timers

	// Observe is told what becomes of the partitions; nil tells nobody.
	Observe Observer
}

// Timers are told of the operations of the partitions held. Their methods must
// return at once; each partition calls from one goroutine.
type Timers interface {
	// Due says how an operation stands, whose look comes at its NextLook.
	Due(partition int, s projections.State)
	// Left says that the partition is not held any more.
	Left(partition int)
}

// grace is by how much wake-ups are set later than the look they are for where
// timers attend to it (DESIGN §10).
const grace = 90 * time.Second

// Projector projects partitions.
type Projector struct {
	cfg    Config
	rounds rounds
	feed   *feed // set by Run
}

// New makes a Projector.
func New(cfg Config) *Projector {
	if cfg.Sweep == 0 {
		cfg.Sweep = 5 * time.Minute
	}
	if cfg.Gone == nil {
		cfg.Gone = func(string) bool { return false }
	}
	if cfg.Observe == nil {
		cfg.Observe = unobserved{}
	}
	return &Projector{cfg: cfg}
}

// Run takes the partitions over and projects them until ctx ends, which is not
// an error. A partition that another projector takes over is left to it, with
// a line in the log. ready is called once every partition has caught up with
// the ledger and was swept, or was left to another projector.
func (p *Projector) Run(ctx context.Context, partitions []int, ready func()) error {
	caught := make(chan struct{}, len(partitions))
	group, ctx := errgroup.WithContext(ctx)
	defer p.rounds.reading.Wait()
	p.rounds.expect(len(partitions))
	p.feed = newFeed(partitions)
	p.rounds.reading.Go(func() { p.feed.lead(ctx, p.cfg.Journal, p.cfg.Clock) })
	for _, partition := range partitions {
		group.Go(func() error {
			behind := true
			err := p.partition(ctx, partition, func() { behind = false; caught <- struct{}{} })
			p.rounds.expect(-1)
			p.feed.come(journal.PartitionName(partition), 0) // if it never came
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, journal.ErrFenced):
				if behind {
					caught <- struct{}{} // it is the other's to catch up with
				}
				p.cfg.Log.WarnContext(ctx, "partition was taken over by another projector", "partition", partition)
				return nil
			}
			return err
		})
	}
	group.Go(func() error {
		for range partitions {
			select {
			case <-caught:
			case <-ctx.Done():
				return nil
			}
		}
		ready()
		return nil
	})
	return group.Wait()
}

// partition projects one partition for one tenure after the other: a store
// that does not answer ends a tenure, and the next begins with a take-over.
func (p *Projector) partition(ctx context.Context, partition int, caught func()) error {
	name := journal.PartitionName(partition)
	for {
		p.cfg.Observe.Stalled(name) // until it has caught up
		err := p.tenure(ctx, partition, &caught)
		if errors.Is(err, journal.ErrFenced) {
			p.cfg.Observe.Left(name)
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		p.cfg.Log.ErrorContext(ctx, "projection of a partition starts over", "partition", partition, "error", err)
		if err := p.cfg.Clock.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (p *Projector) tenure(ctx context.Context, partition int, caught *func()) error {
	t, err := p.cfg.Journal.TakeOver(ctx, partition)
	if err != nil {
		return fmt.Errorf("take over partition %d: %w", partition, err)
	}
	w, err := p.Open(ctx, t)
	if err != nil {
		return err
	}
	defer w.Close()
	from, err := t.Ahead(ctx)
	if err != nil {
		return err
	}
	w.fed = p.feed.come(t.Partition(), from)
	// With timers nobody waits for wake-ups, and whose leases they have is no matter.
	orphans := p.cfg.Alone && p.cfg.Timers == nil
	for {
		busy, err := w.Step(ctx, 0)
		switch {
		case err != nil:
			return err
		case busy:
			continue
		}
		began, err := w.sweepTogether(ctx, orphans && *caught != nil)
		if err != nil {
			return err
		}
		if *caught != nil {
			(*caught)()
			*caught = nil
		}
		if !w.compared {
			continue
		}
		for end := began.Add(p.cfg.Sweep); ; {
			left := end.Sub(p.cfg.Clock.Now())
			if left <= 0 {
				break
			}
			if _, err := w.Step(ctx, left); err != nil {
				return err
			}
		}
	}
}

// Both are before every look, so that they do not stand.
const (
	unwritten = math.MinInt64     // one was needed while the tenure caught up
	none      = math.MinInt64 + 1 // the operation is younger than the tenure, which wrote none
)

// Work is one tenure of one partition at work. It belongs to one goroutine.
type Work struct {
	p      *Projector
	tenure *journal.Tenure
	facts  *journal.Facts
	fed    *fed           // by whom facts come first; nil: by nobody
	board  *journal.Slate // what the process knows of the partition

	// standing holds for when the wake-up of an operation is set that this tenure
	// published or found, in ns since 1970; unwritten or none. What is not here does
	// not stand.
	standing map[string]int64

	// What is known of the facts that were caught up with, until the sweep behind
	// them: the states that moved last, and by operation a job that one of its facts
	// calls its own.
	caught recent
	own    map[string]string

	// What is folded and not recorded yet, and since when the first of it waits.
	moves     []move
	records   []projections.Record
	lingering time.Time
	rests     bool      // an operation among them has come to rest
	alone     bool      // none had come shortly before the first
	folded    time.Time // when a fact was folded last

	// owed holds since when an operation has needed a wake-up that is not written
	// yet; the first of them is due at payday.
	owed   map[string]time.Time
	payday time.Time

	// Room that the steps use one after the other.
	entries []projections.Entry
	folder  projections.Folder

	resting  map[string]projections.State // of those that rest under a hold
	released time.Time                    // when their holds were asked for last

	counted  bool // by this tenure, whose first sweep has ended
	compared bool // all names and wake-ups, by a sweep of this tenure
	// since holds by operation what moved since the sweep under way began; nil: none
	// is.
	since map[string]*since
}

// Open starts work where the partition's last history record stands.
func (p *Projector) Open(ctx context.Context, t *journal.Tenure) (*Work, error) {
	facts, err := t.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read partition %s: %w", t.Partition(), err)
	}
	return &Work{
		p: p, tenure: t, facts: facts, board: t.Slate(),
		standing: map[string]int64{}, owed: map[string]time.Time{}, own: map[string]string{}, resting: map[string]projections.State{},
	}, nil
}

// Close takes the partition's states off the board and lets go of what the store
// holds for the work.
func (w *Work) Close() {
	w.leaveFeed()
	w.board.Close()
	if w.p.cfg.Timers != nil {
		w.p.cfg.Timers.Left(w.tenure.Number())
	}
	if err := w.facts.Close(); err != nil {
		w.p.cfg.Log.Debug("cursor of a partition was not closed", "error", err)
	}
}

func standing(s projections.State) Standing { return Standing{s.Phase, s.Quarantine} }

// due tells the timers how an operation stands.
func (w *Work) due(s projections.State) {
	if w.p.cfg.Timers != nil && s.Rulebook() <= projections.Rules {
		w.p.cfg.Timers.Due(w.tenure.Number(), s)
	}
}

// wake gives the wake-up to publish: one whenever the last does not stand for
// the next look, a cancelled one when there is none any more.
func (w *Work) wake(before, after projections.State) *journal.Wake {
	switch {
	case after.NextLook.IsZero() && before.NextLook.IsZero():
		return nil // cancelled before that was recorded
	case !after.NextLook.IsZero():
		if at, some := w.standing[after.Operation]; some && w.stands(time.Unix(0, at), after.NextLook) {
			return nil
		}
	}
	wake := w.wakeOf(after)
	return &wake
}

// grace is 0 where a wake-up is what an operation waits for.
func (w *Work) grace() time.Duration {
	if w.p.cfg.Timers == nil {
		return 0
	}
	return grace
}

// stands says whether a wake-up set for that time serves a look: it does not
// come before it, nor too long after. A worker that it wakes acknowledges it only
// if the look is later, and then it does not stand.
func (w *Work) stands(at, look time.Time) bool {
	return !at.Before(look) && !at.After(look.Add(2*w.grace()))
}

// wakeOf is the wake-up of a state, or cancels what is pending where it has no
// next look.
func (w *Work) wakeOf(s projections.State) journal.Wake {
	wake := journal.Wake{Operation: s.Operation, Provider: s.Intent.Provider, Version: s.Sequence}
	if !s.NextLook.IsZero() {
		wake.At = s.NextLook.Add(w.grace())
	}
	return wake
}

// stand notes for when the wake-up of an operation is set, or that it has none.
func (w *Work) stand(operation string, at time.Time) {
	delete(w.owed, operation)
	if at.IsZero() {
		delete(w.standing, operation)
		return
	}
	w.standing[kept(operation)] = at.UnixNano()
}

// kept gives a key to keep an operation under. The strings of a decoded state are
// parts of one, which would stay as a whole; a map takes over the key that it is
// given each time.
func kept(operation string) string { return strings.Clone(operation) }

// moved says whether facts of the operation were caught up with and it was not
// swept since.
func (w *Work) moved(s projections.State) bool { return w.standing[s.Operation] == unwritten }

// newest says whether a wake-up that a survey found can be the newest: this tenure
// has written none since, as far as it knows of one at all.
func (w *Work) newest(operation string, at time.Time) bool {
	known, some := w.standing[operation]
	return !some || known == at.UnixNano()
}

// append stores evidence on behalf of this projector. The fact comes back as
// the partition's next.
func (w *Work) append(ctx context.Context, s projections.State, fact events.Fact) error {
	_, _, err := w.p.cfg.Journal.Append(ctx, s, events.Event{
		ID: w.p.cfg.NewID(), Source: w.p.cfg.Source, Operation: s.Operation, Time: w.p.cfg.Clock.Now(), Fact: fact,
	})
	return err
}

package notice

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	most       = 2                // times one rest is told, the repeat after a crash included
	margin     = 5 * time.Second  // after a command's last possible end
	recordTime = 10 * time.Second // to store how a command ended, also while stopping
	maxQueue   = 10_000           // operations that wait to be told of; the sweep offers the rest again
	decisions  = 10               // attempts to get the permit in while the ledger moves on
)

// Ran is how a command ended.
type Ran struct {
	Outcome events.CallOutcome // done, refused, not_sent or ambiguous
	Detail  string             // "exit status 1", and the end of what it wrote
}

// Config of a [Teller]. All fields but Run, Gone, Workers and Timeout are required.
type Config struct {
	Journal *journal.Journal
	Now     func() time.Time
	NewID   func() string
	Log     *slog.Logger

	Source string // CloudEvents source of this role's facts, "/notifier/run"
	Owner  string // names this role and run in every attempt
	// Gone says whether an owner is proved to be gone.
	Gone func(owner string) bool

	// Run tells somebody; it ends when ctx does. Nil: the log is all there is, and
	// no fact is written.
	Run func(ctx context.Context, document []byte) Ran
	// Workers is how many commands run at once. Default 2: a storm of rests makes
	// a queue, not a storm of processes.
	Workers int
	// Timeout of one command. Default 30 s.
	Timeout time.Duration
}

// Teller tells of operations that came to rest. It is safe for concurrent use.
type Teller struct {
	cfg    Config
	signal chan struct{} // has one token if the queue may hold something

	mu      sync.Mutex
	queue   []string        // operations to tell of, in order; guarded by mu
	waiting map[string]bool // those in the queue or at work; guarded by mu
}

// New makes a Teller.
func New(cfg Config) *Teller {
	if cfg.Workers == 0 {
		cfg.Workers = 2
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Gone == nil {
		cfg.Gone = func(string) bool { return false }
	}
	return &Teller{cfg: cfg, signal: make(chan struct{}, 1), waiting: map[string]bool{}}
}

// Stopped hears of an operation that rests: fresh where a fact just brought it
// there and its record is not written yet, otherwise because a sweep met it. It
// returns at once.
func (t *Teller) Stopped(s projections.State, fresh bool) {
	if s.Rulebook() > projections.Rules {
		return
	}
	if fresh {
		// A crash between this line and the record repeats it.
		t.cfg.Log.Error("operation stopped and waits for a decision", Of(s).attributes()...)
	}
	if t.cfg.Run == nil || (!fresh && !t.owed(s)) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[s.Operation] || len(t.queue) >= maxQueue {
		return // the next sweep offers it again
	}
	t.waiting[s.Operation] = true
	t.queue = append(t.queue, s.Operation)
	t.wake()
}

// wake puts a token where workers wait. Whoever takes an operation and leaves more
// puts it back.
func (t *Teller) wake() {
	select {
	case t.signal <- struct{}{}:
	default:
	}
}

// owed says whether somebody has yet to be told of the state's rest, or it is not
// known that they were.
func (t *Teller) owed(s projections.State) bool {
	n := s.Notice
	return s.Phase.Stopped() && (n.Told == 0 || n.Open && (t.cfg.Gone(n.Owner) || t.cfg.Now().After(n.Until.Add(margin))))
}

// Run tells of what it hears until ctx ends, which is not an error.
func (t *Teller) Run(ctx context.Context) error {
	if t.cfg.Run == nil {
		return nil
	}
	var group errgroup.Group
	for range t.cfg.Workers {
		group.Go(func() error {
			for {
				operation, ok := t.take(ctx)
				if !ok {
					return nil
				}
				err := t.tell(ctx, operation)
				t.mu.Lock()
				delete(t.waiting, operation)
				t.mu.Unlock()
				if err != nil && ctx.Err() == nil {
					// Whatever was stored is in the state, and the next sweep goes by that.
					t.cfg.Log.WarnContext(ctx, "a notice is left to the next sweep", "operation", operation, "error", err)
				}
			}
		})
	}
	return group.Wait()
}

func (t *Teller) take(ctx context.Context) (string, bool) {
	for {
		select {
		case <-ctx.Done():
			return "", false
		case <-t.signal:
		}
		t.mu.Lock()
		if len(t.queue) == 0 {
			t.mu.Unlock()
			continue
		}
		operation := t.queue[0]
		if t.queue = t.queue[1:]; len(t.queue) > 0 {
			t.wake()
		}
		t.mu.Unlock()
		return operation, ctx.Err() == nil
	}
}

// tell tells of one operation, if it still rests and nobody was told.
//
// A crash before the permit leaves the rest untold, and the first sweep of the
// next run offers it. A crash after it, before, during or after the command,
// leaves a notice without an answer: the next run repeats it once. Not for ever,
// since it may be the notice that brings the machine down.
func (t *Teller) tell(ctx context.Context, operation string) error {
	for range decisions {
		s, err := t.cfg.Journal.Current(ctx, operation)
		if err != nil {
			return err
		}
		if !t.owed(s) {
			return nil
		}
		if s.Notice.Told >= most {
			t.cfg.Log.ErrorContext(ctx, "a notice was begun twice and never ended; it is not repeated", Of(s).attributes()...)
			return t.answer(ctx, s, Ran{Outcome: events.CallPresumed})
		}
		notice := Of(s)
		document := notice.document()
		now := t.cfg.Now()
		permit := &events.NotificationAttempted{Attempt: events.Attempt{
			Number: s.Notice.Made + 1, Request: events.Sum(document), Origin: "exec:",
			NotAfter: now.Add(t.cfg.Timeout), Timeout: t.cfg.Timeout, Owner: t.cfg.Owner,
		}}
		s, outcome, err := t.append(ctx, s, permit)
		if err != nil {
			return err
		}
		if outcome != journal.Stored || !s.Notice.Open || s.Notice.Made != permit.Number {
			continue // something came first; decide afresh
		}
		limited, stop := context.WithTimeout(ctx, t.cfg.Timeout)
		ran := t.cfg.Run(limited, document)
		stop()
		if ctx.Err() != nil && ran.Outcome != events.CallDone {
			// It was cut off by our stopping. Without an answer the next run repeats it.
			return nil
		}
		if ran.Outcome != events.CallDone {
			t.cfg.Log.ErrorContext(ctx, "the notice's command failed", "operation", operation, "trace", s.TraceID(), "attempt", notice.Attempt,
				"outcome", string(ran.Outcome), "detail", ran.Detail)
		}
		return t.answer(ctx, s, ran)
	}
	t.cfg.Log.WarnContext(ctx, "the ledger moved on too often for a notice to be permitted", "operation", operation)
	return nil
}

// answer closes the newest notice.
func (t *Teller) answer(ctx context.Context, s projections.State, ran Ran) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer stop()
	_, _, err := t.append(ctx, s, &events.NotificationAnswered{
		Attempt: s.Notice.Made, Outcome: ran.Outcome, Call: events.Call{AsOf: s.Sequence},
	})
	return err
}

func (t *Teller) append(ctx context.Context, s projections.State, fact events.Fact) (projections.State, journal.Outcome, error) {
	return t.cfg.Journal.Append(ctx, s, events.Event{
		ID: t.cfg.NewID(), Source: t.cfg.Source, Operation: s.Operation, Time: t.cfg.Now(), Fact: fact,
	})
}

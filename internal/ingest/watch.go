package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// StreamLimits bounds the streams of one process. A field that is 0 means its default.
type StreamLimits struct {
	Most   int // at once, of all principals; 12,000
	MostOf int // of one principal; 6,000
	// Feeds is how many of them may be of more than one operation, which read the ledger
	// each for itself; 64.
	Feeds int
	// Replay is how many facts of the ledger such a one may begin behind its end; 100,000.
	Replay uint64
}

// OrDefault fills what is not given.
func (l StreamLimits) OrDefault() StreamLimits {
	return StreamLimits{cmp.Or(l.Most, 12_000), cmp.Or(l.MostOf, 6_000), cmp.Or(l.Feeds, 64), cmp.Or(l.Replay, 100_000)}
}

const retryStreams = 10 * time.Second

// streams counts those that are open.
type streams struct {
	limits StreamLimits

	mu    sync.Mutex // guards what follows
	all   int
	feeds int
	by    map[string]int // by principal
}

// open takes a place for a stream, to be given back by done.
func (s *streams) open(principal string, feed bool) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refusal := &Refusal{Code: CodeTooManyStreams, RetryAfter: retryStreams}
	switch {
	case feed && s.feeds >= s.limits.Feeds:
		refusal.Detail = "as many streams of all operations are open as there may be"
		return nil, refusal
	case s.all >= s.limits.Most:
		refusal.Detail = "as many streams are open as there may be"
		return nil, refusal
	case s.by[principal] >= s.limits.MostOf:
		refusal.Detail = "as many streams of yours are open as there may be"
		return nil, refusal
	}
	count := func(n int) {
		s.all += n
		if feed {
			s.feeds += n
		}
		if s.by[principal] += n; s.by[principal] == 0 {
			delete(s.by, principal)
		}
	}
	count(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		count(-1)
	}, nil
}

// WatchRequest asks for a stream of what happens to an operation.
type WatchRequest struct {
	Caller Caller
	ID     string
	// After is the ledger sequence of the last fact that the caller has, if Resume is
	// set; 0 has all there are told.
	After  uint64
	Resume bool
}

// Watch is a stream of what happens to one operation, for one caller. It belongs to
// one goroutine and must be closed.
type Watch struct {
	// First shows the operation as it stood at the beginning, if the stream does not go on
	// from where the caller was: as a snapshot, or as a reset where what the caller has is
	// no fact of this operation.
	First *Shown
	// Over says that the operation has ended and the caller has all of it.
	Over bool

	v      *Service
	caller Caller
	topic  *topic
	cursor uint64 // what was told so far, as a ledger sequence
	last   *projections.State
	close  func()
}

// Shown is an event that is no fact: how an operation stands.
type Shown struct {
	Name     string // EventSnapshot, EventReset or EventEnded
	Sequence uint64 // of the operation's newest fact in the ledger
	Text     []byte // a CloudEvent
}

// Watch begins a stream. A caller who resumes is told every fact behind the one it
// names; another begins with the operation as it stands.
func (v *Service) Watch(ctx context.Context, r WatchRequest) (w *Watch, err error) {
	Aside(func() { w, err = v.watch(ctx, r) })
	return w, err
}

func (v *Service) watch(ctx context.Context, r WatchRequest) (*Watch, error) {
	s, err := v.load(ctx, r.Caller, r.ID, ActRead)
	if err != nil {
		return nil, err
	}
	done, err := v.streams.open(r.Caller.Principal, false)
	if err != nil {
		return nil, err
	}
	t, leave := v.news.join(s.Operation)
	w := &Watch{v: v, caller: r.Caller, topic: t, cursor: s.Sequence, last: &s, close: func() { leave(); done() }}
	switch known, err := v.isFactOf(ctx, s, r.After); {
	case err != nil:
		w.Close()
		return nil, err
	case r.Resume && known:
		w.cursor = r.After
		w.Over = s.Phase.Terminal() && r.After == s.Sequence
	default:
		name := EventSnapshot
		if r.Resume {
			name = EventReset
		}
		if w.First, err = w.shown(name); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// isFactOf says whether a ledger sequence is that of a fact of the operation, or 0.
func (v *Service) isFactOf(ctx context.Context, s projections.State, sequence uint64) (bool, error) {
	if sequence == 0 || sequence == s.Sequence {
		return true, nil
	}
	if sequence > s.Sequence {
		return false, nil
	}
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return false, fmt.Errorf("resume the stream of %s: %w", s.Operation, err)
	}
	return slices.ContainsFunc(lines, func(l journal.Line) bool { return l.Entry.Sequence == sequence }), nil
}

// Close ends the stream.
func (w *Watch) Close() { w.close() }

// Trace is the operation's trace id.
func (w *Watch) Trace() string { return w.last.Trace }

// Ended shows how the operation ended.
func (w *Watch) Ended() (e *Shown, err error) {
	Aside(func() { e, err = w.shown(EventEnded) })
	return e, err
}

// shown tells how the operation stands behind what was told.
func (w *Watch) shown(name string) (*Shown, error) {
	view := w.v.view(w.caller, *w.last)
	id := fmt.Sprintf("%s/v%d/%s", view.ID, view.Version, name)
	text, err := json.Marshal(event(id, w.v.cfg.Source, name, view.ID, w.v.cfg.Clock.Now().UTC(), view))
	return &Shown{name, view.Sequence, text}, err
}

// Next gives what has happened since, in order, waiting for it at most so long; none
// is not an error. ended says that the operation had ended behind what was told.
func (w *Watch) Next(ctx context.Context, wait time.Duration) (list []*Happening, ended bool, err error) {
	end := w.v.cfg.Clock.Now().Add(wait)
	for gap := firstGap; ; gap = min(gap*3/2, longestGap) {
		looking, stop := context.WithTimeout(ctx, max(end.Sub(w.v.cfg.Clock.Now()), 0)+newsLate)
		list, whole, s, grown, err := w.topic.after(looking, w.v.cfg.Journal, w.cursor, !w.v.news.followed())
		if err == nil && !whole {
			Aside(func() { list, s, err = w.v.told(looking, w.topic.operation, w.cursor) })
		}
		stop()
		if err != nil {
			return nil, false, fmt.Errorf("read news of %s: %w", w.topic.operation, err)
		}
		w.last = s
		if len(list) > 0 {
			w.cursor = list[len(list)-1].Entry.Sequence
			w.last = list[len(list)-1].After
		}
		if ended := w.last.Phase.Terminal(); ended || len(list) > 0 {
			return list, ended, nil
		}
		left := end.Sub(w.v.cfg.Clock.Now())
		if left <= 0 {
			return nil, false, nil
		}
		if err := w.v.news.await(ctx, min(gap, left), left, grown); err != nil {
			return nil, false, err
		}
	}
}

// told reads what happened to an operation behind a sequence from its facts.
func (v *Service) told(ctx context.Context, operation string, after uint64) (list []*Happening, last *projections.State, err error) {
	lines, err := v.cfg.Journal.Timeline(ctx, operation)
	if err != nil {
		return nil, nil, err
	}
	last = &projections.State{}
	for _, line := range lines {
		s, record := projections.Fold(*last, line.Entry)
		last = &s
		if line.Record != nil {
			record = *line.Record // what was believed then
		}
		if line.Entry.Sequence > after {
			list = append(list, &Happening{Entry: entryOf(line.Entry, record), After: last})
		}
	}
	return list, last, nil
}

// Standing is how an operation stands, in short.
type Standing struct {
	ID         string                 `json:"id"`
	Provider   string                 `json:"provider"`
	State      projections.Phase      `json:"state"`
	Terminal   bool                   `json:"terminal"`
	Done       bool                   `json:"done"`
	Quarantine projections.Quarantine `json:"quarantine,omitempty"`
	Outcome    projections.Outcome    `json:"outcome,omitempty"`
	Reason     projections.Reason     `json:"reason,omitempty"`
	Version    uint64                 `json:"version"`
}

func standingOf(s projections.State) Standing {
	return Standing{
		ID: s.Operation, Provider: s.Intent.Provider, State: s.Phase, Terminal: s.Phase.Terminal(), Done: s.Phase.Terminal() || s.Phase.Stopped(),
		Quarantine: s.Quarantine, Outcome: s.Outcome, Reason: s.Reason, Version: s.Facts,
	}
}

// CloudEvent is a fact as it is told to callers: CloudEvents 1.0, JSON format.
type CloudEvent struct {
	SpecVersion string    `json:"specversion"`
	ID          string    `json:"id"`
	Source      string    `json:"source"`
	Type        string    `json:"type"`
	Subject     string    `json:"subject"` // operation id
	Time        time.Time `json:"time"`    // the ledger's
	MediaType   string    `json:"datacontenttype"`
	Data        any       `json:"data"`
}

// FactData is the data of a fact's event.
type FactData struct {
	Entry     *Entry   `json:"entry,omitempty"`
	Operation Standing `json:"operation"` // as the fact left it
}

// Event is the fact as an event, with the texts of people read. It is made once for
// all who watch.
func (v *Service) Event(ctx context.Context, h *Happening) ([]byte, error) {
	return h.Text(func(h *Happening) ([]byte, error) {
		e := h.Entry
		var err error
		if e.Fields, err = v.withTexts(ctx, e.Fields); err != nil {
			return nil, fmt.Errorf("read texts of fact %d: %w", e.Sequence, err)
		}
		return json.Marshal(event(e.ID, e.Source, string(e.Type), h.After.Operation, e.Time, FactData{&e, standingOf(*h.After)}))
	})
}

// Names of events that are not facts: how an operation stands when a stream begins,
// begins anew, and ends.
const (
	EventSnapshot = "operation.snapshot.v1"
	EventReset    = "operation.reset.v1"
	EventEnded    = "operation.ended.v1"
)

func event(id, source, name, operation string, at time.Time, data any) CloudEvent {
	return CloudEvent{"1.0", id, source, events.TypePrefix + name, operation, at, "application/json", data}
}

// FeedRequest asks for a stream of what happens to all operations of the caller, or to
// those of others that it may see.
type FeedRequest struct {
	Caller   Caller
	Of       Of     // whose operations
	Provider string // "": all
	// After and Resume are as in [WatchRequest]; without Resume it begins now.
	After  uint64
	Resume bool
}

// Feed is a stream of what happens to a caller's operations. It belongs to one
// goroutine and must be closed.
type Feed struct {
	v      *Service
	r      FeedRequest
	list   ListRequest // says whose operations are told
	facts  *journal.Facts
	cursor uint64
	others owners
	close  func()
}

// owners holds whose operations were met lately.
type owners struct{ young, old map[string]bool }

const ownersHalf = 4096

func (o *owners) of(operation string, ask func() (bool, error)) (bool, error) {
	for _, m := range []map[string]bool{o.young, o.old} {
		if mine, known := m[operation]; known {
			return mine, nil
		}
	}
	mine, err := ask()
	if err != nil {
		return false, err
	}
	if o.young == nil || len(o.young) >= ownersHalf {
		o.old, o.young = o.young, make(map[string]bool, 64)
	}
	o.young[operation] = mine
	return mine, nil
}

// Feed begins a stream.
func (v *Service) Feed(ctx context.Context, r FeedRequest) (*Feed, error) {
	if r.Provider != "" && !contract.ValidName(r.Provider) {
		return nil, Refuse(badName("provider"))
	}
	list := ListRequest{Caller: r.Caller, Of: r.Of}
	action, problem := list.whose()
	if problem != nil {
		return nil, Refuse(*problem)
	}
	if refusal := v.May(r.Caller, Right{Action: action}); refusal != nil {
		return nil, refusal
	}
	end, err := v.cfg.Journal.LedgerEnd(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin a stream: %w", err)
	}
	switch {
	case !r.Resume:
		r.After = end
	case r.After > end:
		return nil, &Refusal{Code: CodeCursorInvalid, Detail: "no fact has this number yet"}
	case end-r.After > v.streams.limits.Replay:
		return nil, &Refusal{Code: CodeCursorExpired, Detail: "more facts have come since than a stream tells again"}
	}
	done, err := v.streams.open(r.Caller.Principal, true)
	if err != nil {
		return nil, err
	}
	facts, err := v.cfg.Journal.AllFacts(ctx, r.After+1)
	if err != nil {
		done()
		return nil, fmt.Errorf("begin a stream: %w", err)
	}
	return &Feed{v: v, r: r, list: list, facts: facts, cursor: r.After, close: func() {
		_ = facts.Close() // the store lets go of it by itself
		done()
	}}, nil
}

// At is the ledger sequence behind which nothing was told yet.
func (f *Feed) At() uint64 { return f.cursor }

// Close ends the stream.
func (f *Feed) Close() { f.close() }

// Told is one event of a feed.
type Told struct {
	Sequence uint64 // of the fact in the ledger, where a stream is resumed
	Type     string // of the event
	Text     []byte
}

// Next gives the next fact of an operation of the caller, with the operation as it
// stands by now, waiting at most so long; none is not an error.
func (f *Feed) Next(ctx context.Context, wait time.Duration) (*Told, error) {
	end := f.v.cfg.Clock.Now().Add(wait)
	for {
		left := end.Sub(f.v.cfg.Clock.Now())
		if left < 0 {
			return nil, nil
		}
		told, more, err := f.next(ctx, max(left, time.Millisecond))
		if told != nil || err != nil || !more {
			return told, err
		}
	}
}

// next looks at one fact, which may be one that is not told; more is false where none came.
// A store that hangs is not waited for longer than a stream may be silent.
func (f *Feed) next(ctx context.Context, wait time.Duration) (told *Told, more bool, err error) {
	ctx, stop := context.WithTimeout(ctx, wait+newsLate)
	defer stop()
	fact, err := f.facts.NextStored(ctx, wait)
	if errors.Is(err, journal.ErrNoMessage) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the ledger: %w", err)
	}
	f.cursor = fact.Sequence()
	told, err = f.tell(ctx, fact)
	return told, true, err
}

func (f *Feed) tell(ctx context.Context, fact journal.StoredFact) (*Told, error) {
	operation := fact.Operation()
	mine, err := f.others.of(operation, func() (bool, error) {
		s, err := f.v.cfg.Journal.Known(ctx, operation, fact.Sequence())
		return f.list.shows(s.Intent.Principal) && (f.r.Provider == "" || s.Intent.Provider == f.r.Provider), err
	})
	if err != nil || !mine {
		return nil, err
	}
	s, err := f.v.cfg.Journal.Known(ctx, operation, fact.Sequence())
	if err != nil {
		return nil, err
	}
	e := fact.Entry()
	name := "unreadable.v1"
	if e.Event.Fact != nil {
		name = string(e.Event.Fact.Type())
	}
	text, err := json.Marshal(event(e.Event.ID, e.Event.Source, name, operation, e.Time.UTC(), FactData{Operation: standingOf(s)}))
	return &Told{Sequence: fact.Sequence(), Type: events.TypePrefix + name, Text: text}, err
}

package journal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
	"github.com/counterfoil/counterfoil/projections"
)

// Outcome is how an append ended. It holds also beside an error.
type Outcome uint8

// Outcomes of an append.
const (
	// Unsettled comes with an error only.
	Unsettled Outcome = iota
	// Stored says that the fact is in the ledger.
	Stored
	// Superseded says that another fact came first. The permit is not in the
	// ledger and never will be: decide afresh from the state returned.
	Superseded
)

func (o Outcome) String() string {
	switch o {
	case Unsettled:
		return "unsettled"
	case Stored:
		return "stored"
	case Superseded:
		return "superseded"
	}
	return "impossible"
}

// Current gives the operation's state: its last history record and the newer
// facts folded onto it. The record may lag, the ledger does not. Where this
// process alone writes, its board may be asked instead (see [Board]).
func (j *Journal) Current(ctx context.Context, operation string) (projections.State, error) {
	if s := j.board.newest(operation); s != nil {
		return *s, nil
	}
	record, err := j.Recorded(ctx, operation)
	if err != nil && !errors.Is(err, ErrNoOperation) {
		return projections.State{}, err
	}
	s := record.State
	s.Operation = operation
	s, err = j.Catch(ctx, s)
	if err != nil {
		return projections.State{}, err
	}
	if s.Facts == 0 {
		return projections.State{}, fmt.Errorf("%w: %s", ErrNoOperation, operation)
	}
	return s, nil
}

// Find is Current for an operation that most likely does not exist.
func (j *Journal) Find(ctx context.Context, operation string) (projections.State, error) {
	if err := checkOperation(operation); err != nil {
		return projections.State{}, err
	}
	_, err := j.store.Next(ctx, Ledger, factSubject(operation), 1)
	switch {
	case errors.Is(err, ErrNoMessage):
		return projections.State{}, fmt.Errorf("%w: %s", ErrNoOperation, operation)
	case err != nil:
		return projections.State{}, fmt.Errorf("look for %s: %w", operation, err)
	}
	return j.Current(ctx, operation)
}

// Recorded gives the operation's last history record, or ErrNoOperation if
// nothing of it was projected yet.
func (j *Journal) Recorded(ctx context.Context, operation string) (projections.Record, error) {
	if err := checkOperation(operation); err != nil {
		return projections.Record{}, err
	}
	m, err := j.store.Last(ctx, History, j.recordSubject(operation))
	if errors.Is(err, ErrNoMessage) {
		return projections.Record{}, fmt.Errorf("%w: no record of %s", ErrNoOperation, operation)
	}
	if err != nil {
		return projections.Record{}, fmt.Errorf("read last record of %s: %w", operation, err)
	}
	return decodeRecord(m)
}

func decodeRecord(m Message) (projections.Record, error) {
	var r projections.Record
	if err := codec.Unmarshal(m.Data, &r); err != nil {
		return projections.Record{}, fmt.Errorf("read record %d of %s: %w", m.Sequence, m.Subject, err)
	}
	return r, nil
}

// Catch folds the facts that are newer than the state.
func (j *Journal) Catch(ctx context.Context, s projections.State) (projections.State, error) {
	if newest := j.board.newest(s.Operation); newest != nil && newest.Sequence >= s.Sequence {
		return *newest, nil
	}
	return j.catch(ctx, s, func(projections.Entry) {})
}

func (j *Journal) catch(ctx context.Context, s projections.State, saw func(projections.Entry)) (projections.State, error) {
	if err := checkOperation(s.Operation); err != nil {
		return s, err
	}
	subject := factSubject(s.Operation)
	for {
		m, err := j.store.Next(ctx, Ledger, subject, s.Sequence+1)
		if errors.Is(err, ErrNoMessage) {
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("read facts of %s after %d: %w", s.Operation, s.Sequence, err)
		}
		e := entry(m)
		s, _ = projections.Fold(s, e)
		saw(e)
	}
}

// entry reads a message of the ledger. What is no fact, or one of another
// operation, stays an entry: the fold stops that operation and says why.
func entry(m Message) projections.Entry {
	operation := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	e, digest, err := events.Decode(m.Header, m.Data)
	if err == nil && e.Operation != operation {
		err = fmt.Errorf("%w: fact of %.80q under the subject of %s", events.ErrMalformed, e.Operation, operation)
	}
	if err != nil {
		e, digest = events.Event{Operation: operation}, rawDigest(m)
	}
	return projections.Entry{Sequence: m.Sequence, Time: m.Time, Event: e, Digest: digest, Unreadable: err}
}

// rawDigest links the fact after an unreadable one to its bytes: what the
// author sent, without the headers that steer the server.
func rawDigest(m Message) events.Digest {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		if strings.HasPrefix(strings.ToLower(name), "ce-") {
			fmt.Fprintf(h, "%q%q", name, m.Header[name])
		}
	}
	h.Write(m.Data)
	return events.Digest(h.Sum(nil))
}

// Create appends an operation's first fact. Superseded means that the
// operation exists; the state is then the winner's.
func (j *Journal) Create(ctx context.Context, e events.Event) (projections.State, Outcome, error) {
	return j.Append(ctx, projections.State{Operation: e.Operation}, e)
}

// Append appends one fact to the operation of the state and returns the newest
// state, which includes the fact if it was stored. An id, a time and the link
// to the preceding fact are filled in; an id must be the caller's own where
// the fact can be authored twice.
//
// A permit goes in at the very sequence of the state given or not at all.
// Evidence goes in: behind facts that came first, and once, if the facts that
// the state did not have include it already.
//
// An error with outcome Stored says that only the newest state could not be
// read. Otherwise an error that wraps ErrUnknown leaves it open whether the
// fact is stored; any other says that it is not.
func (j *Journal) Append(ctx context.Context, s projections.State, e events.Event) (projections.State, Outcome, error) {
	if err := checkOperation(s.Operation); err != nil {
		return s, Unsettled, err
	}
	e.Operation = s.Operation
	if e.ID == "" {
		e.ID = j.newID()
	}
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	for {
		// A crash before the append leaves nothing. A crash after it leaves the
		// fact without wake-up and history, which the projector derives; its
		// author's next owner finds it in the ledger.
		at, beaten, err := j.appendAt(ctx, s, e)
		if err != nil {
			return s, Unsettled, fmt.Errorf("append %s to %s: %w", e.Fact.Type(), s.Operation, err)
		}
		if !beaten {
			// Nothing lies between the state given and the fact, so whatever the board
			// says from there on is newer and includes it.
			if newest := j.after(ctx, s.Operation, at); newest != nil {
				return *newest, Stored, nil
			}
		}
		known := false
		err = j.retry(ctx, s.Operation, func() (err error) {
			s, err = j.catch(ctx, s, func(newer projections.Entry) { known = known || newer.Event.ID == e.ID })
			if err == nil && s.Sequence < at {
				// While a leader that was cut off answers beside the new one, it can be
				// asked although the other took the fact.
				err = fmt.Errorf("the ledger ends before fact %d, which it has", at)
			}
			return err
		})
		outcome := Stored
		if beaten {
			outcome = Superseded
			if e.Fact.Kind() == events.Evidence && known {
				outcome = Stored
			}
		}
		if err != nil {
			if outcome == Superseded && e.Fact.Kind() == events.Evidence {
				outcome = Unsettled
			}
			return s, outcome, fmt.Errorf("read %s after an append: %w", s.Operation, err)
		}
		if outcome == Stored || e.Fact.Kind() == events.Permit {
			return s, outcome, nil
		}
		// Evidence that was beaten: no copy sent so far can land any more, since
		// all expect what is no longer last. It is linked to the newest fact.
	}
}

// appendAt settles one append at the state's sequence. It gives the sequence of
// the fact that is next there, and whether that is another.
func (j *Journal) appendAt(ctx context.Context, s projections.State, e events.Event) (at uint64, beaten bool, err error) {
	e.Previous = s.Head
	if s.Facts == 0 {
		e.Previous = events.ChainStart(s.Operation)
	}
	subject := factSubject(s.Operation)
	at, other, err := j.place(ctx, Ledger, subject, s.Sequence,
		func() (uint64, error) { return j.appendFact(ctx, subject, s.Sequence, e) },
		func(m Message) bool { return entry(m).Event.ID == e.ID })
	if other != nil {
		return other.Sequence, true, err
	}
	return at, false, err
}

// appendFact is the one way into the ledger.
func (j *Journal) appendFact(ctx context.Context, subject string, expected uint64, e events.Event) (uint64, error) {
	header, data, _ := events.Encode(e)
	return j.store.Publish(ctx, Ledger, Outgoing{
		Subject: subject, Header: header, Data: data, Guard: &Guard{Sequence: expected},
	})
}

// Line is one fact of a timeline. Record is nil while the projector has not
// come to it.
type Line struct {
	Entry  projections.Entry
	Record *projections.Record
}

// Timeline gives all facts of an operation in order, with their verdicts.
func (j *Journal) Timeline(ctx context.Context, operation string) ([]Line, error) {
	if err := checkOperation(operation); err != nil {
		return nil, err
	}
	var lines []Line
	err := j.each(ctx, Ledger, factSubject(operation), func(m Message) error {
		lines = append(lines, Line{Entry: entry(m)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoOperation, operation)
	}
	err = j.each(ctx, History, j.recordSubject(operation), func(m Message) error {
		r, err := decodeRecord(m)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(lines, r.Sequence, func(l Line, sequence uint64) int {
			switch {
			case l.Entry.Sequence < sequence:
				return -1
			case l.Entry.Sequence > sequence:
				return 1
			}
			return 0
		})
		if found {
			lines[i].Record = &r
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lines, nil
}

func (j *Journal) each(ctx context.Context, s Stream, subject string, do func(Message) error) error {
	for from := uint64(1); ; {
		m, err := j.store.Next(ctx, s, subject, from)
		if errors.Is(err, ErrNoMessage) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s from %d: %w", subject, from, err)
		}
		if err := do(m); err != nil {
			return err
		}
		from = m.Sequence + 1
	}
}

// maxScan bounds one call of Records, whatever it finds.
const maxScan = 2000

// Place is where a listing goes on; the zero place is its beginning.
type Place struct {
	Before uint64 // what is looked at next lies before this sequence of the history
	Top    uint64 // the newest sequence when the listing began
}

// Page is a part of a listing. Next is where the next part goes on; the zero place
// ends.
type Page struct {
	Records []projections.Record
	Next    Place
}

// Records lists the last record of operations as far as keep wants them, newest first
// by what was their last record when the listing began. It looks at a bounded number
// of records, so that a page may be short, or empty, with more to come. An operation
// that moves meanwhile keeps its place and is listed as it stands then; one that began
// meanwhile is not listed.
func (j *Journal) Records(ctx context.Context, at Place, limit int, keep func(*projections.Record) bool) (Page, error) {
	all := j.generation.subjects("*")
	if at == (Place{}) {
		m, err := j.store.Last(ctx, History, all)
		if errors.Is(err, ErrNoMessage) {
			return Page{}, nil
		}
		if err != nil {
			return Page{}, fmt.Errorf("list records: %w", err)
		}
		at = Place{Before: m.Sequence + 1, Top: m.Sequence}
	}
	var page Page
	seen := map[string]bool{}
	for scanned := 0; at.Before > 1 && scanned < maxScan && len(page.Records) < limit; scanned++ {
		at.Before--
		m, err := j.store.Next(ctx, History, all, at.Before)
		if err != nil && !errors.Is(err, ErrNoMessage) {
			return Page{}, fmt.Errorf("list records before %d: %w", at.Before, err)
		}
		if err != nil || m.Sequence != at.Before || seen[m.Subject] || strings.HasSuffix(m.Subject, "."+takeover) {
			continue
		}
		seen[m.Subject] = true
		last, err := j.lastListed(ctx, m, at.Top)
		if err != nil {
			return Page{}, fmt.Errorf("list records before %d: %w", at.Before, err)
		}
		if last == nil {
			continue
		}
		r, err := decodeRecord(*last)
		if err != nil {
			return Page{}, err
		}
		if keep(&r) {
			page.Records = append(page.Records, r)
		}
	}
	if at.Before > 1 {
		page.Next = at
	}
	return page, nil
}

// lastListed gives the last record of the operation of m, or nil if the listing met
// the operation before it came to m.
func (j *Journal) lastListed(ctx context.Context, m Message, top uint64) (*Message, error) {
	last, err := j.store.Last(ctx, History, m.Subject)
	switch {
	case err != nil:
		return nil, err
	case last.Sequence == m.Sequence:
		return &m, nil
	case last.Sequence <= top:
		return nil, nil
	}
	// It moved. The listing met it at the newest of its records that there was.
	next, err := j.store.Next(ctx, History, m.Subject, m.Sequence+1)
	switch {
	case err != nil:
		return nil, err
	case next.Sequence <= top:
		return nil, nil
	}
	return &last, nil
}

// LedgerEnd is the sequence of the ledger's newest fact, 0 if it is empty.
func (j *Journal) LedgerEnd(ctx context.Context) (uint64, error) {
	m, err := j.store.Last(ctx, Ledger, "facts.>")
	if errors.Is(err, ErrNoMessage) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the ledger's end: %w", err)
	}
	return m.Sequence, nil
}

// LedgerTime is the message time of the ledger's newest fact, for comparing a
// process's clock with the server's. False means an empty ledger.
func (j *Journal) LedgerTime(ctx context.Context) (time.Time, bool, error) {
	m, err := j.store.Last(ctx, Ledger, "facts.>")
	if errors.Is(err, ErrNoMessage) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read the ledger's newest time: %w", err)
	}
	return m.Time, true, nil
}

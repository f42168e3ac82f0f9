package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// AppendAll appends one fact to each of several operations, at the very sequences of
// the states given: all of them or none. An operation may occur once. Stored gives the
// newest states, which include the facts, in the same order; Superseded that one
// operation or more has moved, and then none of the facts is stored or can be any more.
// Ids, times and links are filled in as by [Journal.Append].
//
// An error with outcome Stored says that only a newest state could not be read. Otherwise
// an error that wraps ErrUnknown leaves it open whether all facts are stored or none; any
// other says that none is.
func (j *Journal) AppendAll(ctx context.Context, states []projections.State, list []events.Event) ([]projections.State, Outcome, error) {
	messages, ids := make([]Outgoing, len(list)), make([]string, len(list))
	for i, e := range list {
		s := states[i]
		if err := checkOperation(s.Operation); err != nil {
			return nil, Unsettled, err
		}
		e.Operation, e.Previous = s.Operation, s.Head
		if s.Facts == 0 {
			e.Previous = events.ChainStart(s.Operation)
		}
		if e.ID == "" {
			e.ID = j.newID()
		}
		if e.Time.IsZero() {
			e.Time = j.now()
		}
		ids[i] = e.ID
		m := Outgoing{Subject: factSubject(s.Operation), Guard: &Guard{Sequence: s.Sequence}}
		m.Header, m.Data, _ = events.Encode(e)
		messages[i] = m
	}
	sequences, err := j.placeAll(ctx, messages, ids)
	switch {
	case err != nil:
		return nil, Unsettled, fmt.Errorf("append to %d operations at once: %w", len(list), err)
	case sequences == nil:
		return nil, Superseded, nil
	}
	after := make([]projections.State, len(list))
	for i, s := range states {
		if newest := j.after(ctx, s.Operation, sequences[i]); newest != nil {
			after[i] = *newest
			continue
		}
		err := j.retry(ctx, s.Operation, func() (err error) {
			after[i], err = j.catch(ctx, s, func(projections.Entry) {})
			if err == nil && after[i].Sequence < sequences[i] {
				err = fmt.Errorf("the ledger ends before fact %d, which it has", sequences[i])
			}
			return err
		})
		if err != nil {
			return nil, Stored, fmt.Errorf("read %s after an append: %w", s.Operation, err)
		}
	}
	return after, Stored, nil
}

// placeAll stores guarded messages of the ledger for certain, all or none, by the rule of
// place. It returns their sequences, or nil where another came first at one guard or
// more. One own message shows that all are stored, one of another's that none can be.
func (j *Journal) placeAll(ctx context.Context, list []Outgoing, ids []string) ([]uint64, error) {
	doubt, refusals := false, 0
	for attempt := 0; ; attempt++ {
		// A crash before, during or after this write leaves all of them stored or none:
		// whoever repeats the request finds which.
		sequences, err := j.store.PublishBatch(ctx, Ledger, list)
		if err == nil {
			return sequences, nil
		}
		wrong := errors.Is(err, ErrWrongSequence)
		switch {
		case errors.Is(err, ErrNobody):
			refusals = 0
		case wrong || errors.Is(err, ErrInFlight) || errors.Is(err, ErrUnanswered):
			refusals = 0
			doubt = doubt || !wrong
			found, beaten, readErr := j.firstBehind(ctx, list, ids)
			switch {
			case readErr != nil:
				err = errors.Join(err, readErr)
			case beaten:
				return nil, nil
			case found != nil:
				return found, nil
			}
		default:
			if refusals++; refusals >= maxRefusals {
				return nil, unsure(doubt, err)
			}
		}
		if sleepErr := j.sleep(ctx, backoff(list[0].Subject, attempt)); sleepErr != nil {
			return nil, unsure(doubt, errors.Join(sleepErr, err))
		}
	}
}

// firstBehind reads what is first behind each guard: the sequences of the own messages
// where they are all there, or whether another's is. Neither is known where nothing has
// come, or where not all of what has is to be read yet.
func (j *Journal) firstBehind(ctx context.Context, list []Outgoing, ids []string) (sequences []uint64, beaten bool, err error) {
	for i, m := range list {
		found, err := j.store.Next(ctx, Ledger, m.Subject, m.Guard.Sequence+1)
		switch {
		case errors.Is(err, ErrNoMessage):
		case err != nil:
			return nil, false, err
		case entry(found).Event.ID != ids[i]:
			return nil, true, nil
		default:
			sequences = append(sequences, found.Sequence)
		}
	}
	if len(sequences) < len(list) {
		return nil, false, nil
	}
	return sequences, false, nil
}

package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// wish is one cancel of several that are asked for at once.
type wish struct {
	field   string // where it is in the body
	id, key string
	own     bool // the key is its own, and not that of the whole
	version uint64
	wrong   []FieldError // what it cannot be asked for by
}

// CancelBatch is [Service.Cancel] for several operations. Keys are looked up on each
// operation, so that of the whole stands for items without one. replayed says that the
// keys had asked for all of it before.
//
// With mode atomic an error means that no wish was recorded, or that it is not known; the
// same request finds out. With mode independent each item has its own answer.
func (v *Service) CancelBatch(ctx context.Context, r BatchRequest) (view BatchView, replayed bool, err error) {
	if r.Key == "" {
		return BatchView{}, false, keyMissing()
	}
	mode, wishes, why, err := decodeCancels(r)
	if err != nil {
		return BatchView{}, false, err
	}
	if refusal := v.May(r.Caller, Right{Action: ActCancel}); refusal != nil {
		return BatchView{}, false, refusal // it may cancel none, and the store is not asked
	}
	view = BatchView{Mode: mode, Transaction: mode.Words()}
	if mode == Atomic {
		view.Items, err = v.cancelAll(ctx, r, wishes, why)
		if err != nil {
			return BatchView{}, false, err
		}
	} else {
		view.Items = v.cancelEach(ctx, r, wishes, why)
	}
	for i := range view.Items {
		it := &view.Items[i]
		if it.Index = i; wishes[i].own {
			it.Key = wishes[i].key
		}
		switch {
		case it.err != nil:
			p := r.Problem(it.err)
			it.Problem, it.Status = &p, p.Status
			view.Refused++
		case it.Operation.OriginalStatus != 0:
			it.Replayed, it.Status = true, statusDone
			view.Replayed++
		default:
			it.Status = CancelStatus(*it.Operation)
			view.Recorded++
		}
	}
	return view, view.Replayed == len(wishes), nil
}

func decodeCancels(r BatchRequest) (mode Mode, wishes []wish, why string, err error) {
	var b CancelBatchBody
	empty, err := decodeStrict(r.Body, &b)
	if err == nil {
		err = empty.outside("/items").refused()
	}
	if err != nil {
		return "", nil, "", err
	}
	if why, err = reason(b.Why); err != nil {
		return "", nil, "", err
	}
	mode, problems := modeOf(b.Mode)
	switch {
	case len(b.Items) == 0:
		problems = append(problems, Wrong("/items", FieldRequired, "must have at least one item", nil))
	case len(b.Items) > MaxBatch:
		return "", nil, "", tooManyItems(len(b.Items))
	}
	if len(problems) > 0 {
		return "", nil, "", Refuse(problems...)
	}
	first := map[string]int{}
	for i, e := range b.Items {
		w := wish{field: itemField(i), key: r.Key}
		switch other, twice := first[text(e.ID)]; {
		case e.ID == nil || *e.ID == "":
			w.wrong = append(w.wrong, Wrong(w.field+"/id", FieldRequired, "must be given", nil))
		case checkID("id", *e.ID) != nil:
			w.wrong = append(w.wrong, Wrong(w.field+"/id", FieldNotAllowed, "must be an operation id: {min} to {max} of a-z, 0-9 and _", Values{"min": 1, "max": maxID}))
		case twice:
			w.wrong = append(w.wrong, Wrong(w.field+"/id", FieldDuplicate, "is that of item {first}, too", Values{"first": other}))
		default:
			w.id = *e.ID
			first[w.id] = i
		}
		if e.Key != nil {
			key, err := ParseKey([]string{*e.Key})
			if err != nil {
				w.wrong = append(w.wrong, Wrong(w.field+"/idempotency_key", FieldMalformed, "must be {least} to {limit} visible ASCII characters", Values{"least": 1, "limit": MaxKey}))
			}
			w.key, w.own = key, err == nil
		}
		if e.IfMatch != nil {
			version, err := ParseVersion(*e.IfMatch)
			if err != nil || version == 0 {
				w.wrong = append(w.wrong, FieldError{Field: w.field + "/if_match", Code: FieldMalformed, Message: `must be the ETag of the operation, or its version such as "v7"`})
			}
			w.version = version
		}
		wishes = append(wishes, w)
		problems = append(problems, w.wrong...)
	}
	if mode == Atomic && len(problems) > 0 {
		return "", nil, "", Refuse(problems...)
	}
	return mode, wishes, why, nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// cancelEach asks for each by itself.
func (v *Service) cancelEach(ctx context.Context, r BatchRequest, wishes []wish, why string) []BatchItem {
	out := make([]BatchItem, len(wishes))
	var group errgroup.Group
	group.SetLimit(batchAtOnce)
	for i, w := range wishes {
		if len(w.wrong) > 0 {
			out[i].err = Refuse(w.wrong...)
			continue
		}
		group.Go(func() error {
			view, err := v.cancel(ctx, CancelRequest{Caller: r.Caller, ID: w.id, Key: w.key, Version: w.version}, why)
			if out[i].err = err; err == nil {
				out[i].Operation = &view
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	return out
}

// cancelAll asks for all or none. What needs no wish any more stands in the way of none.
func (v *Service) cancelAll(ctx context.Context, r BatchRequest, wishes []wish, why string) ([]BatchItem, error) {
	for try := range batchTries {
		if try > 0 {
			if err := v.beaten(ctx, r.Key, try); err != nil {
				return nil, fmt.Errorf("cancel %d operations: %w", len(wishes), err)
			}
		}
		out, again, err := v.tryCancelAll(ctx, r, wishes, why)
		if err != nil || !again {
			return out, err
		}
	}
	return nil, moving()
}

// standing is how a wish stands before it is recorded.
type standing struct {
	state    projections.State
	fact     *events.CancelRequested
	original int  // the status of the first answer, where the key had asked before
	idle     bool // nothing is to be recorded
}

func (v *Service) tryCancelAll(ctx context.Context, r BatchRequest, wishes []wish, why string) (out []BatchItem, again bool, err error) {
	list, errs := make([]standing, len(wishes)), make([]error, len(wishes))
	var group errgroup.Group
	group.SetLimit(batchAtOnce)
	for i, w := range wishes {
		group.Go(func() error {
			list[i], errs[i] = v.wishOn(ctx, CancelRequest{Caller: r.Caller, ID: w.id, Key: w.key, Version: w.version}, why)
			return nil
		})
	}
	_ = group.Wait() // none fails
	var refused refusals
	for i, err := range errs {
		refused.add(i, err)
	}
	if err := refused.whole(); err != nil {
		return nil, false, err
	}
	all := v.together(r.Caller.Principal)
	place := map[int]int{}
	for i, s := range list {
		if !s.idle {
			place[i] = len(all.facts)
			all.add(s.state, v.wishEvent(r.Caller, s))
		}
	}
	after := []projections.State{}
	if len(all.facts) > 0 {
		// The text before the facts that name it, as of one cancel.
		if err := v.keep(ctx, why); err != nil {
			return nil, false, err
		}
		// A crash before this write leaves no wish, after it all of them; the same
		// request finds which, by its key on each operation.
		var outcome journal.Outcome
		after, outcome, err = v.cfg.Journal.AppendAll(ctx, all.states, all.facts)
		switch {
		case err != nil:
			return nil, false, fmt.Errorf("cancel %d operations: %w", len(wishes), err)
		case outcome == journal.Superseded:
			return nil, true, nil
		}
	}
	out = make([]BatchItem, len(wishes))
	for i, s := range list {
		if at, wished := place[i]; wished {
			s.state = after[at]
		}
		view := replayOf(v.view(r.Caller, s.state), s.original)
		out[i].Operation = &view
	}
	return out, false, nil
}

// wishOn says what a wish to cancel comes to in the state of its operation.
func (v *Service) wishOn(ctx context.Context, r CancelRequest, why string) (standing, error) {
	s, err := v.load(ctx, r.Caller, r.ID, ActCancel)
	if err != nil {
		return standing{}, err
	}
	out := standing{state: s, fact: &events.CancelRequested{Who: r.Caller.Principal, Key: hashKey(r.Caller, r.Key), Why: digestOf(why)}}
	// The key is looked up first: what a retry finds may have ended since, or be at
	// another version.
	if out.original, err = v.wishedBefore(ctx, s, out.fact); out.original != 0 || err != nil {
		out.idle = true
		return out, err
	}
	if err := r.unsaid.refused(); err != nil {
		return out, err
	}
	switch refusal := cancelRefusal(s); {
	case refusal != nil:
		return out, refusal
	case r.Version != 0 && r.Version != s.Facts:
		return out, stale(s)
	}
	// Where a wish is served, one under another key is recorded all the same: it was
	// answered as one, so sent again it must find that, and not begin a cancel anew once the
	// first has come to nothing. Nothing acts on what is cancelled, by whatever key.
	out.idle = s.Phase == projections.PhaseCancelled
	return out, nil
}

// wishEvent is the fact of a wish. Tries of one request at the same moment make the same
// fact, by its id, so that one of them stores it and the others find it stored.
func (v *Service) wishEvent(caller Caller, s standing) events.Event {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s key %s", s.state.Operation, s.fact.Key))
	return events.Event{
		ID: "cancel-" + hex.EncodeToString(sum[:16]), Source: v.cfg.Source, Time: v.cfg.Clock.Now(),
		Actor: caller.Principal, Fact: s.fact,
	}
}

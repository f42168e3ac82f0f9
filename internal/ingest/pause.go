package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/projections"
)

// PauseRequest asks to pause one operation, or to end its pause.
type PauseRequest struct {
	Caller  Caller
	ID      string
	Body    []byte // {"why": …} or empty
	Key     string // as ParseKey gave it; required
	Version uint64 // optional: only if the operation is still at this version
}

// PauseView is who paused an operation and when.
type PauseView struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// Pause rests the creates and collections of one operation until its pause is
// ended. Cancels, look-ups, reads and deadlines go on. One that is paused
// already stays as it is, and the key is recorded: sent again after somebody ended
// the pause, it pauses nothing. replayed says that the key had paused it before.
func (v *Service) Pause(ctx context.Context, r PauseRequest) (view View, replayed bool, err error) {
	return v.setPaused(ctx, r, true)
}

// Resume ends the pause of an operation; one that is not paused stays as it is.
// It is not the decision of kind resume, which watches a job again after a
// deadline.
func (v *Service) Resume(ctx context.Context, r PauseRequest) (view View, replayed bool, err error) {
	return v.setPaused(ctx, r, false)
}

func (v *Service) setPaused(ctx context.Context, r PauseRequest, paused bool) (View, bool, error) {
	if r.Key == "" {
		return View{}, false, keyMissing()
	}
	var body WhyBody
	var empty unsaid
	if len(r.Body) > 0 {
		var err error
		if empty, err = decodeStrict(r.Body, &body); err != nil {
			return View{}, false, err
		}
	}
	why, err := reason(body.Why)
	if err != nil {
		return View{}, false, err
	}
	s, err := v.load(ctx, r.Caller, r.ID, ActPause)
	if err != nil {
		return View{}, false, err
	}
	var fact events.Fact = &events.OperationResumed{Who: r.Caller.Principal, Why: digestOf(why)}
	if paused {
		fact = &events.OperationPaused{Who: r.Caller.Principal, Why: digestOf(why)}
	}
	// The fact's id is the request's: a retry finds what it did, also where the
	// operation was resumed, or paused, since.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s key %s", s.Operation, hashKey(r.Caller, r.Key)))
	id := "pause-" + hex.EncodeToString(sum[:16])
	if done, err := v.pausedBefore(ctx, s, id, fact); done || err != nil {
		return replayOf(v.view(r.Caller, s), statusDone), done, err
	}
	if err := empty.refused(); err != nil {
		return View{}, false, err
	}
	switch refusal := pauseRefusal(s); {
	case refusal != nil:
		return View{}, false, refusal
	case r.Version != 0 && r.Version != s.Facts:
		return View{}, false, stale(s)
	}
	// The text before the fact that names it: a crash in between leaves bytes
	// that nothing refers to.
	if err := v.keep(ctx, why); err != nil {
		return View{}, false, err
	}
	// A crash before the append leaves the operation as it was, and the caller
	// asks again. After it the operation rests, or is due at once.
	s, outcome, err := v.cfg.Journal.Append(ctx, s, events.Event{
		ID: id, Source: v.cfg.Source, Time: v.cfg.Clock.Now(), Actor: r.Caller.Principal, Fact: fact,
	})
	if err != nil {
		return View{}, false, fmt.Errorf("%s of %s (%s): %w", fact.Type(), r.ID, outcome, err)
	}
	// Another request under the key may have been the one that stored it.
	if _, err := v.pausedBefore(ctx, s, id, fact); err != nil {
		return View{}, false, err
	}
	if s.Phase.Terminal() && s.Paused != paused { // it ended meanwhile
		return View{}, false, pauseRefusal(s)
	}
	return v.view(r.Caller, s), false, nil
}

// pausedBefore says whether the caller's key has made this very request before.
func (v *Service) pausedBefore(ctx context.Context, s projections.State, id string, want events.Fact) (bool, error) {
	lines, err := v.cfg.Journal.Timeline(ctx, s.Operation)
	if err != nil {
		return false, fmt.Errorf("pause %s: %w", s.Operation, err)
	}
	for _, line := range lines {
		if line.Entry.Event.ID != id || line.Entry.Event.Fact == nil {
			continue
		}
		if have := line.Entry.Event.Fact; have.Type() != want.Type() || pauseReason(have) != pauseReason(want) {
			return false, keyReused(s, "this Idempotency-Key paused or resumed this operation in another way")
		}
		return true, nil
	}
	return false, nil
}

func pauseReason(f events.Fact) events.Digest {
	if p, ok := f.(*events.OperationPaused); ok {
		return p.Why
	}
	if r, ok := f.(*events.OperationResumed); ok {
		return r.Why
	}
	return events.Digest{}
}

// pauseRefusal says why a pause makes no sense in the state, or nil.
func pauseRefusal(s projections.State) *Refusal {
	r := &Refusal{Operation: s.Operation, Trace: s.TraceID(), State: s.Phase}
	switch {
	case s.Rulebook() > projections.Rules:
		r.Code, r.Detail = CodeNewerVersion, "this operation keeps rules that this program does not know"
	case s.Phase.Terminal():
		r.Code = CodeAlreadyTerminal
		r = r.Say("the operation ended as {state}; there is nothing left to rest", nil)
	default:
		return nil
	}
	return r
}

func pauseView(s projections.State) *PauseView {
	if !s.Paused || s.Phase.Terminal() {
		return nil
	}
	return &PauseView{By: s.PausedBy, Since: s.PausedAt.UTC()}
}

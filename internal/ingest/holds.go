package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// HoldView is one hold as operators see it.
type HoldView struct {
	// Provider is "" for the hold on all providers.
	Provider string           `json:"provider,omitempty"`
	Scope    events.HoldScope `json:"scope"` // creates or all; "" once released
	By       string           `json:"by,omitempty"`
	KeyID    string           `json:"key_id,omitempty"`
	Why      string           `json:"why,omitempty"`
	Since    *time.Time       `json:"since,omitempty"`
	// Unreadable says why everything is held although nobody asked for it: a
	// fact of this hold cannot be read. A release, or a hold, puts it right.
	Unreadable     string `json:"unreadable,omitempty"`
	OriginalStatus int    `json:"original_status,omitempty" doc:"Only in the answer to a request that its Idempotency-Key had recorded before: the HTTP status of its first answer."`
	// Was is the hold that this request ended, or put another in place of.
	Was *HoldView `json:"was,omitempty"`
}

// HoldList are the holds in force.
type HoldList struct {
	Holds []HoldView `json:"holds"`
}

// HoldRequest asks to place or to release a hold.
type HoldRequest struct {
	Caller Caller
	Body   []byte
	Key    string // as ParseKey gave it; required
}

// Holds lists the holds in force.
func (v *Service) Holds(ctx context.Context, caller Caller) (HoldList, error) {
	if refusal := v.May(caller, Right{Action: ActHolds}); refusal != nil {
		return HoldList{}, refusal
	}
	list, err := v.cfg.Journal.Holds(ctx)
	if err != nil {
		return HoldList{}, err
	}
	out := HoldList{Holds: []HoldView{}}
	for _, h := range list {
		view, err := v.holdView(ctx, h)
		if err != nil {
			return HoldList{}, err
		}
		out.Holds = append(out.Holds, view)
	}
	return out, nil
}

// Hold places a hold on a provider, or on all of them. The same hold again
// changes nothing: the first one, with who placed it and why, stays. A stronger
// one takes the place of a weaker; the other way round only if the request says
// so, since in an incident two people may act at once. placed is false if
// nothing was recorded; replayed says that the key had placed it before.
func (v *Service) Hold(ctx context.Context, r HoldRequest) (view HoldView, placed, replayed bool, err error) {
	if refusal := v.May(r.Caller, Right{Action: ActHold}); refusal != nil {
		return HoldView{}, false, false, refusal
	}
	if r.Key == "" {
		return HoldView{}, false, false, keyMissing()
	}
	var body HoldBody
	if _, err := decodeStrict(r.Body, &body); err != nil {
		return HoldView{}, false, false, err
	}
	provider, why, problems := readHeld(body.Provider, body.Why)
	scope := events.HoldScope("")
	scopes := []string{string(events.HoldCreates), string(events.HoldAll)}
	switch {
	case body.Scope == nil || *body.Scope == "":
		problems = append(problems, Wrong("/scope", FieldRequired, "must be given", nil, scopes...))
	case !slices.Contains(scopes, *body.Scope):
		problems = append(problems, Wrong("/scope", FieldNotAllowed, "is not a scope", nil, scopes...))
	default:
		scope = events.HoldScope(*body.Scope)
	}
	if len(problems) > 0 {
		return HoldView{}, false, false, Refuse(problems...)
	}
	if err := v.checkProvider(ctx, provider); err != nil {
		return HoldView{}, false, false, err
	}
	fact := &events.HoldPlaced{
		Scope: scope, Who: r.Caller.Principal, KeyID: r.Caller.KeyID, Key: hashKey(r.Caller, r.Key), Why: digestOf(why),
	}
	h, before, placed, original, err := v.changeHold(ctx, r, provider, why, fact, func(h projections.Hold) (done bool, refusal *Refusal) {
		switch {
		case h.Unreadable != "":
			return false, nil
		case h.Scope == scope:
			return true, nil
		case projections.StrongerHold(h.Scope, scope) && (body.Replace == nil || !*body.Replace):
			r := &Refusal{Code: CodeHoldStronger}
			return false, r.Say("{by} holds all calls to {held} since {since}", Values{"by": h.Who, "held": heldName(provider), "since": h.Since.UTC().Format(time.RFC3339)})
		}
		return false, nil
	})
	if err != nil {
		return HoldView{}, false, false, err
	}
	if view, err = v.holdView(ctx, h); err != nil {
		return HoldView{}, false, false, err
	}
	replayed = original != 0
	if view.OriginalStatus = original; placed && before.Scope != events.HoldNone {
		was, err := v.holdView(ctx, before)
		if err != nil {
			return HoldView{}, false, false, err
		}
		view.Was = &was
	}
	return view, placed, replayed, nil
}

// Release ends the hold on a provider, or the one on all of them; holds on
// single providers are not touched by the latter. Where nothing is held it says
// so. The answer is the hold that was released.
func (v *Service) Release(ctx context.Context, r HoldRequest) (view HoldView, replayed bool, err error) {
	if refusal := v.May(r.Caller, Right{Action: ActHold}); refusal != nil {
		return HoldView{}, false, refusal
	}
	if r.Key == "" {
		return HoldView{}, false, keyMissing()
	}
	var body ReleaseBody
	if _, err := decodeStrict(r.Body, &body); err != nil {
		return HoldView{}, false, err
	}
	provider, why, problems := readHeld(body.Provider, body.Why)
	if len(problems) > 0 {
		return HoldView{}, false, Refuse(problems...)
	}
	fact := &events.HoldReleased{Who: r.Caller.Principal, KeyID: r.Caller.KeyID, Key: hashKey(r.Caller, r.Key), Why: digestOf(why)}
	h, before, released, original, err := v.changeHold(ctx, r, provider, why, fact, func(h projections.Hold) (bool, *Refusal) {
		if h.Scope == events.HoldNone {
			r := &Refusal{Code: CodeNotHeld}
			return false, r.Say("there is no hold on {held}", Values{"held": heldName(provider)})
		}
		return false, nil
	})
	if err != nil {
		return HoldView{}, false, err
	}
	view, err = v.holdView(ctx, h)
	if err != nil {
		return HoldView{}, false, err
	}
	if released {
		was, err := v.holdView(ctx, before)
		if err != nil {
			return HoldView{}, false, err
		}
		view.Was = &was
	}
	if view.OriginalStatus = original; original != 0 {
		view.OriginalStatus = statusDone
	}
	return view, original != 0, nil
}

// holdTries bounds how often a fact that another one beat is decided anew.
const holdTries = 8

// changeHold appends the fact unless judge refuses. It gives the hold after and before,
// whether that changed, and the status that the key's first request was answered with, 0 if
// there was none. Where judge says that nothing is to be done the fact changes nothing and
// is there for its key, which must place nothing once somebody has released what it found.
func (v *Service) changeHold(
	ctx context.Context, r HoldRequest, provider, why string, fact events.ServiceFact, judge func(projections.Hold) (done bool, refusal *Refusal),
) (after, before projections.Hold, changed bool, original int, err error) {
	for range holdTries {
		facts, err := v.cfg.Journal.HoldFacts(ctx, provider)
		if err != nil {
			return after, before, false, 0, err
		}
		h := projections.Hold{Provider: provider}
		for _, f := range facts {
			then := h
			h = projections.FoldHold(h, f)
			// The key is looked up first: a retry must find what it did, also where
			// somebody has released or placed the hold since.
			same, refusal := sameHold(f.Event.Fact, fact)
			if refusal != nil {
				return after, before, false, 0, refusal
			}
			switch {
			case !same:
			case then.Scope == h.Scope && then.Unreadable == "":
				original = statusDone
			default:
				original = statusCreated
			}
		}
		if original != 0 {
			v.holdsChanged(ctx)
			return h, h, false, original, nil
		}
		done, refusal := judge(h)
		if refusal != nil {
			return after, before, false, 0, refusal
		}
		// The reason before the fact that names it: a crash in between leaves
		// bytes that nothing refers to, and no hold.
		if err := v.keep(ctx, why); err != nil {
			return after, before, false, 0, err
		}
		// A crash before the append changes nothing. After it the hold is what
		// was asked for, in every process that reads it; the caller, who has no
		// answer, asks again and is told so.
		next, outcome, err := v.cfg.Journal.AppendHold(ctx, h, events.ServiceEvent{
			ID: v.cfg.NewID(), Source: v.cfg.Source, Time: v.cfg.Clock.Now(), Actor: r.Caller.Principal, Fact: fact,
		})
		if err != nil {
			return after, before, false, 0, fmt.Errorf("change the hold on %s (%s): %w", heldName(provider), outcome, err)
		}
		if outcome == journal.Superseded {
			continue
		}
		v.holdsChanged(ctx)
		return next, h, !done, 0, nil
	}
	return after, before, false, 0, fmt.Errorf("change the hold on %s: others changed it %d times meanwhile", heldName(provider), holdTries)
}

// holdsChanged makes this process read the holds before the caller is answered,
// so that a hold that was acknowledged here is in force here.
func (v *Service) holdsChanged(ctx context.Context) {
	if v.cfg.HoldsChanged != nil {
		v.cfg.HoldsChanged(ctx)
	}
}

// sameHold says whether a stored fact was made by the same request as the new
// one, by the caller's key. Another request under the key is refused.
func sameHold(stored, want events.ServiceFact) (bool, *Refusal) {
	reused := &Refusal{Code: CodeKeyReused, Detail: "this Idempotency-Key recorded something else about this hold"}
	key, who, why := holdAuthor(stored)
	wantKey, wantWho, wantWhy := holdAuthor(want)
	if wantKey == "" || key != wantKey || who != wantWho {
		return false, nil
	}
	if why != wantWhy || stored.Type() != want.Type() {
		return false, reused
	}
	if a, ok := stored.(*events.HoldPlaced); ok && a.Scope != want.(*events.HoldPlaced).Scope {
		return false, reused
	}
	return true, nil
}

func holdAuthor(f events.ServiceFact) (key, who string, why events.Digest) {
	switch f := f.(type) {
	case *events.HoldPlaced:
		return f.Key, f.Who, f.Why
	case *events.HoldReleased:
		return f.Key, f.Who, f.Why
	case *events.KeyChanged: // no fact of a hold
	}
	return "", "", events.Digest{} // could not be read
}

// readHeld reads what both requests have.
func readHeld(provider, why *string) (name, text string, problems []FieldError) {
	if provider != nil {
		if name = *provider; !contract.ValidName(name) {
			problems = append(problems, Wrong("/provider", FieldNotAllowed, "must be {min} to {max} of a-z, 0-9, _ and -; leave it out for all providers", Values{"min": 1, "max": maxName}))
		}
	}
	if why != nil {
		text = *why
	}
	if strings.TrimSpace(text) == "" {
		problems = append(problems, Wrong("/why", FieldRequired, "must say why, for whoever finds the hold", nil))
	} else if problem := textProblem(text, MaxWhy); problem != nil {
		problems = append(problems, problem.at("/why"))
	}
	return name, text, problems
}

// checkProvider refuses a provider that this installation never had: a misspelt
// name would hold nothing.
func (v *Service) checkProvider(ctx context.Context, provider string) error {
	known := v.cfg.Directory.Providers()
	if provider == "" || slices.Contains(known, provider) {
		return nil
	}
	ever, err := v.cfg.Journal.Providers(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(ever, provider) {
		return nil // its operations are followed to their end
	}
	return unknownProvider(provider, known)
}

func heldName(provider string) string {
	if provider == "" {
		return "all providers"
	}
	return "provider " + provider
}

func (v *Service) holdView(ctx context.Context, h projections.Hold) (HoldView, error) {
	view := HoldView{Provider: h.Provider, Scope: h.Scope, By: h.Who, KeyID: h.KeyID, Since: moment(h.Since), Unreadable: h.Unreadable}
	if h.Why.IsZero() {
		return view, nil
	}
	text, err := v.cfg.Journal.Payload(ctx, h.Why)
	switch {
	case errors.Is(err, journal.ErrNoPayload): // erased
	case err != nil:
		return HoldView{}, fmt.Errorf("read the reason of the hold on %s: %w", heldName(h.Provider), err)
	default:
		view.Why = string(text)
	}
	return view, nil
}

package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// ValidationView says what the same request without validate_only would do. Nothing was
// recorded, and the key is as unused as before.
type ValidationView struct {
	Would    Would     `json:"would" enum:"record,replay" doc:"record: a new operation, which this one shows as it would be. replay: nothing, since the key named this operation before."`
	Status   int       `json:"status" doc:"The HTTP status that it would be answered with."`
	Warnings []Warning `json:"warnings" doc:"What it would be taken with, and is worth knowing before."`
}

// Would is what a request would do.
type Would string

// What it can do.
const (
	WouldRecord Would = "record"
	WouldReplay Would = "replay"
)

// Warning is something worth knowing that keeps nobody from submitting.
type Warning struct {
	Code    WarningCode `json:"code"`
	Message string      `json:"message"`
}

// WarningCode is a warning's name for machines.
type WarningCode string

// The codes of warnings.
const (
	WarnAskAfterLoss WarningCode = "create_may_stop_and_ask"
	WarnNoCancel     WarningCode = "cancel_unsupported"
	WarnResultOnce   WarningCode = "result_is_read_once"
	WarnHeld         WarningCode = "provider_on_hold"
	WarnApproval     WarningCode = "approval_needed"
	WarnUnusable     WarningCode = "account_unusable"
)

// validate says what a submit would do. It takes the same way as a submit as far as
// that writes nothing.
func (v *Service) validate(ctx context.Context, r SubmitRequest, s *Submission, id string, fingerprint events.Digest) (View, error) {
	found, err := v.cfg.Journal.Find(ctx, id)
	switch {
	case err == nil:
		return v.wouldReplay(r.Caller, found, fingerprint)
	case !errors.Is(err, journal.ErrNoOperation):
		return View{}, fmt.Errorf("validate %s: %w", id, err)
	}
	return v.wouldRecord(ctx, r, s, id, fingerprint)
}

func (v *Service) wouldReplay(caller Caller, found projections.State, fingerprint events.Digest) (View, error) {
	view, _, err := v.adopt(caller, found, fingerprint)
	view.OriginalStatus = 0 // it is an answer to another request
	view.Validation = &ValidationView{Would: WouldReplay, Status: statusDone, Warnings: []Warning{}}
	return view, err
}

func (v *Service) wouldRecord(ctx context.Context, r SubmitRequest, s *Submission, id string, fingerprint events.Digest) (View, error) {
	if refusal := v.full(); refusal != nil {
		return View{}, refusal
	}
	p, err := v.intent(ctx, r, s, id, fingerprint)
	if err != nil {
		return View{}, err
	}
	if err := v.would(ctx, r.Caller, []order{orderOf(id, p.intent)}, false); err != nil {
		return View{}, err
	}
	intent := p.intent
	intent.Payload = events.Sum(s.Params)
	e := v.intentEvent(r, id, intent)
	e.Previous = events.ChainStart(id)
	state, _ := projections.Fold(projections.State{Operation: id}, projections.Entry{Sequence: 1, Time: e.Time, Event: e})
	view := v.view(r.Caller, state)
	// There is nothing yet that could be read, tagged or acted on.
	view.Allowed, view.Version, view.Sequence, view.NextPollAfter = []Allowed{}, 0, 0, 0
	view.Validation = &ValidationView{Would: WouldRecord, Status: statusSubmitted}
	view.Validation.Warnings, err = v.warnings(ctx, state)
	return view, err
}

func (v *Service) warnings(ctx context.Context, s projections.State) ([]Warning, error) {
	list := []Warning{}
	add := func(when bool, code WarningCode, message string) {
		if when {
			list = append(list, Warning{code, message})
		}
	}
	p := s.Intent.Promises
	holds, err := v.cfg.Journal.Holds(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the holds: %w", err)
	}
	held := false
	for _, h := range holds {
		held = held || h.Provider == "" || h.Provider == s.Intent.Provider
	}
	add(held, WarnHeld, "An operator holds calls to this provider: the operation would be recorded and rest, and its deadlines would pass meanwhile.")
	add(s.Intent.NeedsApproval, WarnApproval, "A rule demands an approval: the operation would be recorded and wait in approval_pending until another principal grants it.")
	if why := v.unusable(ctx, s.Intent.Provider, s.Intent.Account); why != "" {
		add(true, WarnUnusable, "The account cannot be used for now: "+why.words()+". The operation would be recorded and rest until the operator has put it right, and its deadlines would pass meanwhile.")
	}
	add(p.Guarantee == events.AskAfterLoss, WarnAskAfterLoss, "If the answer to the create is lost, the operation stops and somebody has to decide.")
	add(!p.Cancels, WarnNoCancel, "The provider has no way to cancel a job: a cancel counts only until the create is sent.")
	add(p.HasResult && !p.RepeatResult, WarnResultOnce, "The provider gives the result once: if its answer is lost, so is the result.")
	return list, nil
}

// validateBatch says what each item of a batch would do. With mode atomic one that would be
// refused refuses the whole, as it would be.
func (v *Service) validateBatch(ctx context.Context, r BatchRequest, mode Mode, items []item) ([]BatchItem, error) {
	out := make([]BatchItem, len(items))
	errs := make([]error, len(items))
	var group errgroup.Group
	group.SetLimit(batchAtOnce)
	for i := range items {
		group.Go(func() error {
			it := &items[i]
			var view View
			switch err := it.err; {
			case err != nil:
				errs[i] = err
				return nil
			case it.found != nil:
				view, errs[i] = v.wouldReplay(r.Caller, *it.found, it.fingerprint)
			default:
				view, errs[i] = v.wouldRecord(ctx, r.one(), &it.submission, it.id, it.fingerprint)
			}
			if errs[i] == nil {
				out[i].Operation = &view
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	refused := refusals{inside: "/operation"}
	var fresh []int
	for i := range items {
		if errs[i] == nil && items[i].found == nil {
			fresh = append(fresh, i)
		}
	}
	if mode != Atomic {
		validateAdoptions(items, fresh, errs)
		fresh = slices.DeleteFunc(fresh, func(i int) bool { return errs[i] != nil })
		v.validateQuotas(ctx, r.Caller, ordersOf(items, out, fresh), fresh, errs)
	}
	for i, err := range errs {
		out[i].err = within(err, items[i].field)
	}
	if mode != Atomic {
		return out, nil
	}
	twiceAdopted(items, fresh, &refused)
	for i, err := range errs {
		refused.add(i, err)
	}
	if err := refused.whole(); err != nil {
		return nil, err
	}
	if err := v.would(ctx, r.Caller, ordersOf(items, out, fresh), true); err != nil {
		return nil, err
	}
	return out, nil
}

// validateAdoptions refuses items that adopt a job that one before them adopts, in the words
// in which they will be refused. Which of them gets the job is not settled: items are
// recorded side by side.
func validateAdoptions(items []item, fresh []int, errs []error) {
	first := map[[3]string]bool{}
	for _, i := range fresh {
		s := &items[i].submission
		job := [3]string{s.Provider, s.Account, s.Adopt}
		if s.Adopt != "" && first[job] {
			errs[i] = jobOwned("/adopt/job_id")
		}
		first[job] = true
	}
}

// validateQuotas refuses what the quotas have no room for once the items before it are
// recorded. Which those are is not settled: items are recorded side by side.
func (v *Service) validateQuotas(ctx context.Context, caller Caller, orders []order, fresh []int, errs []error) {
	var taken []order
	for n, i := range fresh {
		with := append(taken, orders[n]) //nolint:gocritic // it becomes taken if there is room
		if err := v.would(ctx, caller, with, false); err != nil {
			errs[i] = err
			continue
		}
		taken = with
	}
}

// ordersOf is what the items would be recorded as.
func ordersOf(items []item, out []BatchItem, fresh []int) []order {
	orders := make([]order, len(fresh))
	for n, i := range fresh {
		orders[n].operation = items[i].id
		if c := out[i].Operation.Cost; c != nil {
			orders[n].cost, orders[n].unit = c.Amount, c.Unit
		}
	}
	return orders
}

package projector

import (
	"context"
	"fmt"
	"slices"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/projections"
)

// sweeper is the partition whose holder looks parked events up again: they
// belong to none.
const sweeper = "00"

// index writes the outside names that one fact gives its operation, and then
// collects what is parked under them. A webhook role parks and then looks for
// names: whichever comes second sees the first.
func (w *Work) index(ctx context.Context, s projections.State, e projections.Entry) error {
	if e.Unreadable != nil || s.Rulebook() > projections.Rules {
		return nil
	}
	if _, intent := e.Event.Fact.(*events.IntentRecorded); intent && s.Facts == 1 {
		if err := w.name(ctx, s, nil, false); err != nil {
			return err
		}
	}
	for _, job := range journal.OwnJobs(e.Event.Fact) {
		if err := w.hold(ctx, s, job); err != nil {
			return err
		}
	}
	return nil
}

// name writes what the intent names: the references that the provider gets from
// us, and the caller's own label, which is for the caller to look up: no
// provider's event is matched by it. What a survey has is left out; a sweep without
// one asks first, since most is there.
func (w *Work) name(ctx context.Context, s projections.State, survey *journal.Survey, swept bool) error {
	for _, reference := range references(s) {
		if survey.Refers(s.Intent.Provider, reference, s.Operation) {
			continue
		}
		if survey == nil && swept {
			known, named, err := w.p.cfg.Journal.Referred(ctx, s.Intent.Provider, reference)
			if err != nil {
				return err
			}
			if named && known == s.Operation {
				continue
			}
		}
		own, err := w.p.cfg.Journal.NameReference(ctx, s.Intent.Provider, reference, s.Operation)
		if err != nil {
			return err
		}
		if !own { // two operations under one reference: the instance key is not what it was
			w.p.cfg.Log.ErrorContext(ctx, "a reference is another operation's already", "operation", s.Operation, "trace", s.TraceID())
			continue
		}
		if err := w.collect(ctx, s.Intent.Provider, journal.ReferenceName(reference)); err != nil {
			return err
		}
	}
	for _, label := range labels(s) {
		if survey.Labels(s.Intent.Principal, label, s.Operation) {
			continue
		}
		if err := w.p.cfg.Journal.Label(ctx, s.Intent.Principal, label, s.Operation, s.Started); err != nil {
			return err
		}
	}
	return nil
}

// labels are the caller's own, by which it finds the operation.
func labels(s projections.State) (list []string) {
	if s.Intent.Session != "" {
		list = append(list, s.Intent.Session)
	}
	if s.Intent.Reference != "" {
		list = append(list, journal.ReferenceLabel(s.Intent.Reference))
	}
	return list
}

func references(s projections.State) []string {
	return slices.DeleteFunc([]string{s.Intent.ClientReference, s.Intent.Token}, func(r string) bool { return r == "" })
}

// hold makes sure that INDEX gives a job to the operation whose fact calls it
// its own, or to one that said so earlier; then the later one is told.
func (w *Work) hold(ctx context.Context, s projections.State, job string) error {
	owner, later, err := w.p.cfg.Journal.Reclaim(ctx, s.Intent.Provider, s.Intent.Account, job, s.Operation)
	if err != nil {
		return fmt.Errorf("claim its job again: %w", err)
	}
	if later != "" {
		// A crash before this leaves the later one untold; its own sweep tells it.
		if err := w.p.cfg.Journal.Contest(ctx, later, job, owner, w.p.cfg.Source); err != nil {
			return fmt.Errorf("contest the job of %s: %w", later, err)
		}
	}
	return w.collect(ctx, s.Intent.Provider, journal.JobName(job))
}

// collect notes what was parked under a name on the operations it is about.
// A crash in between leaves it parked, and noted on some, which is found.
func (w *Work) collect(ctx context.Context, provider, name string) error {
	list, err := w.p.cfg.Journal.Parked(ctx, provider, name)
	if err != nil {
		return err
	}
	return w.deliver(ctx, list)
}

func (w *Work) deliver(ctx context.Context, list []journal.Arrival) error {
	for _, a := range list {
		n, err := w.p.cfg.Journal.Deliver(ctx, a, w.p.cfg.Source, true)
		if err != nil {
			return fmt.Errorf("deliver a parked webhook: %w", err)
		}
		if n == 0 {
			continue // of another account: it stays until it expires
		}
		if err := w.p.cfg.Journal.Unpark(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// reindex writes the names of an operation again that INDEX has lost, in the
// order in which they were first written.
func (w *Work) reindex(ctx context.Context, s projections.State, survey *journal.Survey) error {
	if err := w.name(ctx, s, survey, true); err != nil {
		return err
	}
	if w.moved(s) {
		// Who wrote a name of it may have died before looking what is parked.
		for _, reference := range references(s) {
			if err := w.collect(ctx, s.Intent.Provider, journal.ReferenceName(reference)); err != nil {
				return err
			}
		}
		for _, job := range jobs(s) {
			if err := w.collect(ctx, s.Intent.Provider, journal.JobName(job)); err != nil {
				return err
			}
		}
	}
	for _, job := range jobs(s) {
		if survey.Owns(s.Intent.Provider, s.Intent.Account, job, s.Operation) {
			continue
		}
		if w.own[s.Operation] == job { // a fact says so: the ledger need not be asked
			owner, err := w.p.cfg.Journal.Claim(ctx, s.Intent.Provider, s.Intent.Account, job, s.Operation)
			if err != nil {
				return err
			}
			if owner == events.ClaimOwn {
				if err := w.collect(ctx, s.Intent.Provider, journal.JobName(job)); err != nil {
					return err
				}
				continue
			}
		} else if survey == nil {
			owner, owned, err := w.p.cfg.Journal.Owner(ctx, s.Intent.Provider, s.Intent.Account, job)
			if err != nil {
				return err
			}
			if owned && owner == s.Operation {
				continue
			}
		}
		if err := w.hold(ctx, s, job); err != nil {
			return err
		}
	}
	return nil
}

// surveyed says whether a survey has all names of the operation.
func surveyed(s projections.State, survey *journal.Survey) bool {
	if survey == nil {
		return false
	}
	for _, reference := range references(s) {
		if !survey.Refers(s.Intent.Provider, reference, s.Operation) {
			return false
		}
	}
	for _, job := range jobs(s) {
		if !survey.Owns(s.Intent.Provider, s.Intent.Account, job, s.Operation) {
			return false
		}
	}
	return !slices.ContainsFunc(labels(s), func(label string) bool { return !survey.Labels(s.Intent.Principal, label, s.Operation) })
}

// jobs lists those that the operation has or had.
func jobs(s projections.State) []string {
	return slices.DeleteFunc(append([]string{s.Job.ID}, s.Strays...), func(job string) bool { return job == "" })
}

// sweepParked looks for operations again for everything that is parked.
func (w *Work) sweepParked(ctx context.Context) error {
	if w.tenure.Partition() != sweeper {
		return nil
	}
	list, err := w.p.cfg.Journal.Parked(ctx, "", "")
	if err != nil {
		return err
	}
	return w.deliver(ctx, list)
}

package ingest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/journal"
)

const (
	// CostWindow is the time over which costs are summed up. What an operation costs
	// leaves the sum up to costGrain later.
	CostWindow = 24 * time.Hour
	costGrain  = 5 * time.Minute

	costAgain = time.Second // the pause after the ledger could not be read
	costWait  = 15 * time.Second
	// costPatience is how long after it was begun to count what was spent requests wait for
	// it, and retryCounting how long a caller waits that was told to come again.
	costPatience  = 5 * time.Second
	retryCounting = 2 * time.Second
)

// spent sums up what the operations of principals cost that were begun within CostWindow,
// as the ledger has them, and those that this process is about to record. It is known only
// where the ledger is followed, which is begun by the first who has such a quota. The mutex
// of quotas guards it.
type spent struct {
	known   bool
	counted chan struct{}              // closed once it is known
	wanted  chan struct{}              // holds one once somebody has such a quota
	since   time.Time                  // when that was
	sums    map[purse][]portion        // oldest first
	pending map[string]pendingCost     // by operation
	waiting map[purse]contract.Decimal // of what is pending
}

// purse is what costs in one unit are taken from.
type purse struct{ principal, unit string }

// portion is what was spent in one grain of time.
type portion struct {
	from   time.Time
	amount contract.Decimal
}

// pendingCost is that of an operation, which counts once however many requests begin it.
type pendingCost struct {
	purse    purse
	amount   contract.Decimal
	requests int
}

func newSpent() spent {
	return spent{
		counted: make(chan struct{}), wanted: make(chan struct{}, 1), sums: map[purse][]portion{}, pending: map[string]pendingCost{}, waiting: map[purse]contract.Decimal{},
	}
}

// order is an operation that is about to be begun, and what it costs; "" if nobody knows.
type order struct{ operation, cost, unit string }

func orderOf(id string, intent *events.IntentRecorded) order {
	return order{id, intent.Cost, intent.CostUnit}
}

// costsOf sums orders up by unit.
func costsOf(orders []order) map[string]contract.Decimal {
	var sums map[string]contract.Decimal
	for _, o := range orders {
		if amount, ok := contract.ParseDecimal(o.cost); ok {
			if sums == nil {
				sums = map[string]contract.Decimal{}
			}
			sums[o.unit] = sums[o.unit].Plus(amount)
		}
	}
	return sums
}

// want has the ledger followed.
func (s *spent) want(now time.Time) {
	if s.known || !s.since.IsZero() {
		return
	}
	s.since = now
	s.wanted <- struct{}{} // there is room for the only one
}

// learn says that the ledger was read to its end.
func (s *spent) learn() {
	if !s.known {
		s.known = true
		close(s.counted)
	}
}

// sum gives what was spent by now.
func (s *spent) sum(p purse, now time.Time) contract.Decimal {
	total := s.waiting[p]
	list := s.sums[p]
	for len(list) > 0 && !now.Before(list[0].from.Add(costGrain+CostWindow)) {
		list = list[1:]
	}
	if s.sums[p] = list; len(list) == 0 {
		delete(s.sums, p)
	}
	for _, one := range list {
		total = total.Plus(one.amount)
	}
	return total
}

// until is after how long so much of what was spent has left the sum.
func (s *spent) until(p purse, much contract.Decimal, now time.Time) time.Duration {
	for _, one := range s.sums[p] {
		if much = much.Minus(one.amount); much == (contract.Decimal{}) {
			return max(one.from.Add(costGrain+CostWindow).Sub(now), time.Second)
		}
	}
	return costGrain // what is pending comes first, and nobody knows when
}

func (s *spent) expect(p string, o order) {
	amount, ok := contract.ParseDecimal(o.cost)
	if !ok {
		return
	}
	c := s.pending[o.operation]
	if c.requests == 0 {
		c.purse, c.amount = purse{p, o.unit}, amount
		s.waiting[c.purse] = s.waiting[c.purse].Plus(amount)
	}
	c.requests++
	s.pending[o.operation] = c
}

// release says that one request did not record the operation, forget that the ledger has it.
func (s *spent) release(operation string) {
	if c, known := s.pending[operation]; known && c.requests > 1 {
		c.requests--
		s.pending[operation] = c
		return
	}
	s.forget(operation)
}

func (s *spent) forget(operation string) {
	c, known := s.pending[operation]
	if !known {
		return
	}
	delete(s.pending, operation)
	if s.waiting[c.purse] = s.waiting[c.purse].Minus(c.amount); s.waiting[c.purse] == (contract.Decimal{}) {
		delete(s.waiting, c.purse)
	}
}

// add takes in an intent that the ledger has.
func (s *spent) add(operation string, intent *events.IntentRecorded, at time.Time) {
	s.forget(operation)
	amount, ok := contract.ParseDecimal(intent.Cost)
	if !ok {
		return
	}
	p := purse{strings.Clone(intent.Principal), strings.Clone(intent.CostUnit)}
	from := at.Truncate(costGrain)
	list := s.sums[p]
	if n := len(list); n > 0 && !list[n-1].from.Before(from) { // or it comes a little late
		list[n-1].amount = list[n-1].amount.Plus(amount)
		return
	}
	s.sums[p] = append(list, portion{from, amount})
}

// RunCosts follows the ledger for what operations cost, from CostWindow ago, once somebody
// has a quota of costs, until ctx ends.
func (v *Service) RunCosts(ctx context.Context) {
	select {
	case <-v.quotas.spent.wanted:
	case <-ctx.Done():
		return
	}
	var facts *journal.Facts
	defer func() {
		if facts != nil {
			_ = facts.Close() // the store lets go of it by itself
		}
	}()
	known := false
	for ctx.Err() == nil {
		var err error
		if facts == nil {
			facts, err = v.cfg.Journal.FactsSince(ctx, v.cfg.Clock.Now().Add(-CostWindow-costGrain))
		}
		wait := costWait
		if !known {
			wait = 0
		}
		var fact journal.StoredFact
		if err == nil {
			fact, err = facts.NextStored(ctx, wait)
		}
		switch {
		case err == nil && fact.Is(events.TypeIntentRecorded):
			e := fact.Entry()
			if intent, ok := e.Event.Fact.(*events.IntentRecorded); ok {
				v.quotas.mu.Lock()
				v.quotas.spent.add(fact.Operation(), intent, e.Time)
				v.quotas.mu.Unlock()
			}
		case err == nil:
		case errors.Is(err, journal.ErrNoMessage) && !known:
			known = true
			v.quotas.mu.Lock()
			v.quotas.spent.learn()
			v.quotas.mu.Unlock()
		case errors.Is(err, journal.ErrNoMessage), ctx.Err() != nil:
		default:
			v.cfg.Log.WarnContext(ctx, "the ledger could not be followed; what others spend meanwhile is not counted here", "error", err)
			if v.cfg.Clock.Sleep(ctx, costAgain) != nil {
				return
			}
		}
	}
}

package ingest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/contract"
)

// Policy is the name of a quota in RateLimit fields, problems and capabilities. Names
// are for ever.
type Policy string

// The quotas of a principal.
const (
	PolicySubmit Policy = "submit" // new operations in SubmitWindow
	PolicyOpen   Policy = "open"   // operations that have not ended
	// PolicyCost is what operations cost that were begun in CostWindow. There is one for
	// each unit, whose name follows: cost-USD.
	PolicyCost Policy = "cost"
)

// Policies lists them.
func Policies() []Policy { return []Policy{PolicySubmit, PolicyOpen, PolicyCost} }

func costPolicy(unit string) Policy { return PolicyCost + Policy("-"+unit) }

const (
	// SubmitWindow is the time over which new operations are counted.
	SubmitWindow = time.Minute

	// MaxSubmits and MaxOpen bound what can be configured, DefaultSubmits and
	// DefaultOpen are what holds where nothing is.
	MaxSubmits     = 10_000_000
	DefaultSubmits = 300_000
	MaxOpen        = 100_000_000
	DefaultOpen    = 1_000_000

	// retryOpen is what a caller waits while too many of its operations are open:
	// nobody knows when one ends.
	retryOpen = 10 * time.Second
)

// Quotas bounds what one principal may begin. A field that is 0 means its default.
type Quotas struct {
	// Submits is how many operations may be begun in SubmitWindow, and at once: what
	// is used comes back evenly.
	Submits int
	// Open is how many operations may be under way.
	Open int
	// Costs bounds, by unit, what the operations begun in CostWindow may cost together. A
	// unit that is not there is not bounded.
	Costs map[string]contract.Decimal
}

// OrDefault fills what is not given.
func (q Quotas) OrDefault() Quotas {
	if q.Submits == 0 {
		q.Submits = DefaultSubmits
	}
	if q.Open == 0 {
		q.Open = DefaultOpen
	}
	return q
}

// QuotaView is one quota of the caller's principal and what is left of it.
type QuotaView struct {
	Policy Policy `json:"policy" doc:"Its name in RateLimit fields and violated-policies. submit: operations begun; open: operations that have not ended; cost-UNIT: what those begun cost."`
	Limit  int    `json:"limit" doc:"Of costs without their fraction, as remaining."`
	Unit   string `json:"unit,omitempty" doc:"Of costs."`
	Amount string `json:"amount,omitempty" doc:"The limit of costs, as a decimal."`
	Left   string `json:"amount_left,omitempty" doc:"What is left of it, as a decimal; absent while it is not known."`
	Window int    `json:"window_s,omitempty" doc:"The time that the limit is over, in seconds; absent: there is none."`
	// Remaining is what may be begun at once; nil while it is not known.
	Remaining *int `json:"remaining,omitempty" doc:"How many more may be begun now, here; absent while it is not known."`
	More      int  `json:"more_in_s,omitempty" doc:"Seconds until there is one more; absent: nothing is used, or nobody knows."`
}

// quotas keeps what principals have used. What they submitted lately is known of this
// process alone and forgotten by a restart; what they have open is told to it, see
// [Service.OpenCounted], and is what the history has and what is on its way there.
type quotas struct {
	of  func(principal string) Quotas
	now func() time.Time

	mu    sync.Mutex // guards what follows
	used  map[string]*usage
	open  open
	spent spent
}

// usage is what a principal has used of its submits: it shrinks evenly, by the limit in
// each window.
type usage struct {
	count float64
	at    time.Time // when it was so
}

func newQuotas(of func(string) Quotas, now func() time.Time) *quotas {
	if of == nil {
		of = func(string) Quotas { return Quotas{} }
	}
	return &quotas{of: of, now: now, used: map[string]*usage{}, open: newOpen(), spent: newSpent()}
}

// usageLocked gives what is used by now. A clock that is set back gives nothing back.
func (q *quotas) usageLocked(principal string, limit int, now time.Time) *usage {
	u := q.used[principal]
	if u == nil {
		u = &usage{}
		q.used[principal] = u
	}
	if passed := now.Sub(u.at); passed > 0 {
		u.count = max(0, u.count-float64(limit)*float64(passed)/float64(SubmitWindow))
	}
	u.at = now
	return u
}

// left is how many more there are, until after how long there are n. What a division
// leaves over must not make a caller wait for one that is there.
func (u *usage) left(limit int) int { return max(0, int(math.Floor(float64(limit)-u.count+1e-6))) }

func (u *usage) until(limit, n int) time.Duration {
	over := u.count + float64(n) - float64(limit)
	if over <= 1e-6 {
		return 0
	}
	return time.Duration(math.Ceil(over / float64(limit) * float64(SubmitWindow)))
}

// bounded is what bounds a principal's costs, by unit.
func (q *quotas) bounded(principal string) map[string]contract.Decimal { return q.of(principal).Costs }

// fitsLocked refuses n operations that no quota would ever let be begun in one write.
func (q *quotas) fitsLocked(principal string, orders []order) *Refusal {
	have, n := q.of(principal).OrDefault(), len(orders)
	costs := costsOf(orders)
	for _, unit := range slices.Sorted(maps.Keys(have.Costs)) {
		if limit := have.Costs[unit]; costs[unit].Compare(limit) > 0 {
			r := &Refusal{Code: CodeCostAboveQuota, Violated: []Policy{costPolicy(unit)}}
			return r.Say("it would cost {cost} {unit}; all that you begin in {window_s} s may cost {limit}",
				Values{"cost": costs[unit].String(), "unit": unit, "window_s": int(CostWindow.Seconds()), "limit": limit.String()})
		}
	}
	limit := min(have.Submits, have.Open)
	if n <= limit {
		return nil
	}
	values := Values{"items": n, "limit": limit}
	r := &Refusal{Code: CodeBatchTooLarge, Errors: []FieldError{Wrong("/items", FieldOutOfBounds, "has {items} new items; your quotas let {limit} be begun in one write", values)}}
	return r.Say("the request has {items} new items; your quotas let {limit} be begun in one write", values)
}

// checkLocked refuses to begin operations, where a quota does not allow it.
func (q *quotas) checkLocked(principal string, orders []order) *Refusal {
	have, n := q.of(principal).OrDefault(), len(orders)
	u := q.usageLocked(principal, have.Submits, q.now())
	wait := u.until(have.Submits, n)
	if opened, known := q.open.count(principal); known && opened+n > have.Open {
		r := &Refusal{Code: CodeTooManyOpen, RetryAfter: max(retryOpen, wait), Violated: []Policy{PolicyOpen}}
		if wait > 0 {
			r.Violated = []Policy{PolicySubmit, PolicyOpen}
		}
		return r.Say("{open} of your operations have not ended; the limit is {limit}", Values{"open": opened, "limit": have.Open})
	}
	if wait > 0 {
		r := &Refusal{Code: CodeRateExceeded, RetryAfter: wait, Violated: []Policy{PolicySubmit}}
		return r.Say("you may begin {limit} operations in {window_s} s, and {remaining} now",
			Values{"limit": have.Submits, "window_s": int(SubmitWindow.Seconds()), "remaining": u.left(have.Submits)})
	}
	return q.affordLocked(principal, have.Costs, costsOf(orders))
}

// affordLocked refuses what a quota of costs has no room for.
func (q *quotas) affordLocked(principal string, limits, costs map[string]contract.Decimal) *Refusal {
	now := q.now()
	if len(limits) > 0 {
		q.spent.want(now)
	}
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		limit, bounded := limits[unit]
		if !bounded {
			continue
		}
		if !q.spent.known { // no quota is exceeded, as far as anybody knows
			r := &Refusal{Code: CodeUnavailable, RetryAfter: retryCounting}
			return r.Say("nothing was recorded: what was spent of {limit} {unit} in {window_s} s is still being summed up",
				Values{"limit": limit.String(), "unit": unit, "window_s": int(CostWindow.Seconds())})
		}
		sum := q.spent.sum(purse{principal, unit}, now)
		if over := sum.Plus(costs[unit]).Minus(limit); over != (contract.Decimal{}) {
			r := &Refusal{Code: CodeCostQuota, Violated: []Policy{costPolicy(unit)}, RetryAfter: q.spent.until(purse{principal, unit}, over, now)}
			return r.Say("it would cost {cost} {unit}, and {left} is left of {limit} in {window_s} s",
				Values{"cost": costs[unit].String(), "unit": unit, "left": limit.Minus(sum).String(), "limit": limit.String(), "window_s": int(CostWindow.Seconds())})
		}
	}
	return nil
}

// would is what begin would say to the last of the operations, or to all of them in one
// write. It takes nothing.
func (q *quotas) would(principal string, orders []order, whole bool) *Refusal {
	if len(orders) == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	one := orders
	if !whole {
		one = orders[len(orders)-1:]
	}
	if refusal := q.fitsLocked(principal, one); refusal != nil {
		return refusal
	}
	return q.checkLocked(principal, orders)
}

// begin takes what the operations need, or refuses all of them. settle must be called with
// whether they were recorded: of what was not, or is not known to be, everything is given
// back, so that a store that does not answer uses up nobody's quota.
func (q *quotas) begin(principal string, orders ...order) (settle func(recorded bool), refused *Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if refusal := q.fitsLocked(principal, orders); refusal != nil {
		return nil, refusal
	}
	if refusal := q.checkLocked(principal, orders); refusal != nil {
		return nil, refusal
	}
	q.used[principal].count += float64(len(orders))
	for _, o := range orders {
		q.open.expect(o.operation, principal)
		q.spent.expect(principal, o)
	}
	return func(recorded bool) {
		if recorded {
			return
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		u := q.used[principal]
		u.count = max(0, u.count-float64(len(orders)))
		for _, o := range orders {
			q.open.release(o.operation)
			q.spent.release(o.operation)
		}
	}, nil
}

// views show the quotas of a principal.
func (q *quotas) views(principal string) []QuotaView {
	q.mu.Lock()
	defer q.mu.Unlock()
	have := q.of(principal).OrDefault()
	u := q.usageLocked(principal, have.Submits, q.now())
	left := u.left(have.Submits)
	submit := QuotaView{Policy: PolicySubmit, Limit: have.Submits, Window: int(SubmitWindow.Seconds()), Remaining: &left}
	if left < have.Submits {
		submit.More = wholeSeconds(u.until(have.Submits, left+1))
	}
	opened := QuotaView{Policy: PolicyOpen, Limit: have.Open}
	if n, known := q.open.count(principal); known {
		room := max(0, have.Open-n)
		opened.Remaining = &room
	}
	list := []QuotaView{submit, opened}
	for _, unit := range slices.Sorted(maps.Keys(have.Costs)) {
		q.spent.want(q.now())
		limit := have.Costs[unit]
		c := QuotaView{Policy: costPolicy(unit), Unit: unit, Amount: limit.String(), Limit: whole(limit), Window: int(CostWindow.Seconds())}
		if q.spent.known {
			left := limit.Minus(q.spent.sum(purse{principal, unit}, q.now()))
			n := whole(left)
			c.Left, c.Remaining = left.String(), &n
		}
		list = append(list, c)
	}
	return list
}

// whole is an amount without its fraction, which has at most 15 digits.
func whole(d contract.Decimal) int { return int(min(d.Whole(), math.MaxInt64)) } //nolint:gosec // it is bounded

// counting says that it is not known yet what was spent, and for how long a request waits
// for that.
func (q *quotas) counting(refusal *Refusal) (counted <-chan struct{}, wait time.Duration) {
	if refusal == nil || refusal.Code != CodeUnavailable {
		return nil, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.spent.counted, min(q.spent.since.Add(costPatience).Sub(q.now()), costPatience) // a clock may be set back
}

// await asks a quota again once what was spent is known, where that was why it refused.
// Waits end together, costPatience after the count began, so that many requests, or a
// batch of many items, wait no longer than one.
func (v *Service) await(ctx context.Context, ask func() *Refusal) error {
	refusal := ask()
	if counted, wait := v.quotas.counting(refusal); wait > 0 {
		if err := v.cfg.Clock.SleepOr(ctx, wait, counted); err != nil {
			return fmt.Errorf("wait until what was spent is summed up: %w", err)
		}
		refusal = ask()
	}
	if refusal != nil {
		return refusal
	}
	return nil
}

// would is what begin would say.
func (v *Service) would(ctx context.Context, caller Caller, orders []order, whole bool) error {
	return v.await(ctx, func() *Refusal { return v.quotas.would(caller.Principal, orders, whole) })
}

// begin takes what the operations need of their principal's quotas.
func (v *Service) begin(ctx context.Context, caller Caller, orders ...order) (settle func(recorded bool), err error) {
	var refusal *Refusal
	err = v.await(ctx, func() *Refusal {
		settle, refusal = v.quotas.begin(caller.Principal, orders...)
		return refusal
	})
	if refusal != nil {
		for _, p := range refusal.Violated {
			if strings.HasPrefix(string(p), string(PolicyCost)+"-") {
				p = PolicyCost
			}
			v.cfg.Exceeded(p)
		}
	}
	return settle, err
}

// Quotas shows what the caller's principal may begin, and what is left of it.
func (v *Service) Quotas(caller Caller) []QuotaView { return v.quotas.views(caller.Principal) }

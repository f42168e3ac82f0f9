package ingest

import (
	"math"
	"sync"
	"time"
)

// Policy is the name of a quota in RateLimit fields, problems and capabilities. Names
// are for ever.
type Policy string

// The quotas of a principal.
const (
	PolicySubmit Policy = "submit" // new operations in SubmitWindow
	PolicyOpen   Policy = "open"   // operations that have not ended
)

// Policies lists them.
func Policies() []Policy { return []Policy{PolicySubmit, PolicyOpen} }

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
	Policy Policy `json:"policy" enum:"submit,open" doc:"Its name in RateLimit fields and violated-policies. submit: operations begun; open: operations that have not ended."`
	Limit  int    `json:"limit"`
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

	mu   sync.Mutex // guards what follows
	used map[string]*usage
	open open
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
	return &quotas{of: of, now: now, used: map[string]*usage{}, open: newOpen()}
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

// fitsLocked refuses n operations that no quota would ever let be begun in one write.
func (q *quotas) fitsLocked(principal string, n int) *Refusal {
	have := q.of(principal).OrDefault()
	limit := min(have.Submits, have.Open)
	if n <= limit {
		return nil
	}
	values := Values{"items": n, "limit": limit}
	r := &Refusal{Code: CodeBatchTooLarge, Errors: []FieldError{Wrong("/items", FieldOutOfBounds, "has {items} new items; your quotas let {limit} be begun in one write", values)}}
	return r.Say("the request has {items} new items; your quotas let {limit} be begun in one write", values)
}

// checkLocked refuses to begin n operations more, where a quota does not allow it.
func (q *quotas) checkLocked(principal string, n int) *Refusal {
	have := q.of(principal).OrDefault()
	u := q.usageLocked(principal, have.Submits, q.now())
	wait := u.until(have.Submits, n)
	if opened, known := q.open.count(principal); known && opened+n > have.Open {
		r := &Refusal{Code: CodeTooManyOpen, RetryAfter: max(retryOpen, wait), Violated: []Policy{PolicyOpen}}
		if wait > 0 {
			r.Violated = []Policy{PolicySubmit, PolicyOpen}
		}
		return r.Say("{open} of your operations have not ended; {limit} may be under way", Values{"open": opened, "limit": have.Open})
	}
	if wait > 0 {
		r := &Refusal{Code: CodeRateExceeded, RetryAfter: wait, Violated: []Policy{PolicySubmit}}
		return r.Say("you may begin {limit} operations in {window_s} s, and {remaining} now",
			Values{"limit": have.Submits, "window_s": int(SubmitWindow.Seconds()), "remaining": u.left(have.Submits)})
	}
	return nil
}

// would is what begin would say to the last of n operations, or to all of them in one
// write. It takes nothing.
func (q *quotas) would(principal string, n int, whole bool) *Refusal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if whole {
		if refusal := q.fitsLocked(principal, n); refusal != nil {
			return refusal
		}
	}
	return q.checkLocked(principal, n)
}

// begin takes what the operations need, or refuses all of them. settle must be called with
// whether they were recorded: of what was not, or is not known to be, everything is given
// back, so that a store that does not answer uses up nobody's quota.
func (q *quotas) begin(principal string, operations ...string) (settle func(recorded bool), refused *Refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if refusal := q.fitsLocked(principal, len(operations)); refusal != nil {
		return nil, refusal
	}
	if refusal := q.checkLocked(principal, len(operations)); refusal != nil {
		return nil, refusal
	}
	q.used[principal].count += float64(len(operations))
	for _, id := range operations {
		q.open.expect(id, principal)
	}
	return func(recorded bool) {
		if recorded {
			return
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		u := q.used[principal]
		u.count = max(0, u.count-float64(len(operations)))
		for _, id := range operations {
			q.open.release(id)
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
	return []QuotaView{submit, opened}
}

// begin takes what the operations need of their principal's quotas.
func (v *Service) begin(caller Caller, operations ...string) (settle func(recorded bool), err error) {
	settle, refusal := v.quotas.begin(caller.Principal, operations...)
	if refusal != nil {
		for _, p := range refusal.Violated {
			v.cfg.Exceeded(p)
		}
		return nil, refusal
	}
	return settle, nil
}

// Quotas shows what the caller's principal may begin, and what is left of it.
func (v *Service) Quotas(caller Caller) []QuotaView { return v.quotas.views(caller.Principal) }

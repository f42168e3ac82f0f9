// Package budget counts the calls to one account of a provider, in one process
// or shared among several, so that there are never more at once and never more
// in any stretch of time than the provider allows.
//
// What is shared are slots, numbered from 0. A slot is one call at once and its
// part of the requests. It is held by one process by a message in the store that
// counts for a while and is renewed while the slot is used.
//
// The package is pure: it is told the time and what the store holds, and says
// what to write. Specifications: DESIGN §11, Budgets.
//
// Guarantees, with any number of processes, whatever is lost or late and however
// long one of them is stopped:
//
//   - Two processes never hold one slot at the same time. A holder counts its hold
//     from before its message was sent, on clocks that see a stop; another takes
//     the slot only after it has seen the same message for the whole life that the
//     message names, by its own monotonic clock. No two clocks are compared.
//   - A call is begun only if its time-out ends before the hold does.
//   - In any stretch of the length Per, no more than the slot's part of the
//     requests arrive, however long each is under way: a request counts until
//     that time after it has ended. A new holder knows of none of the requests
//     before it, and so begins with nothing, or with what the one before left it.
//
// Limit: a provider that is still busy with a request when its time-out is over
// is asked for the next one all the same.
package budget

import (
	"fmt"
	"time"
)

// Bounds of the limits.
const (
	// MaxSlots is the most calls at once that can be asked for; each is a message.
	MaxSlots = 64
	// MaxRequests is the most requests in one stretch of time.
	MaxRequests = 100_000
	// unlimitedSlots divide the requests where no number of calls at once is given.
	unlimitedSlots = 16
)

// Limits are what may be asked of one account of a provider. Zero: anything.
type Limits struct {
	Concurrency int           // calls at once; 0: not given
	Requests    int           // in each stretch of Per; 0: not given
	Per         time.Duration // a second or a minute
}

// None says that nothing is limited.
func (l Limits) None() bool { return l.Concurrency == 0 && l.Requests == 0 }

// Slots is how many calls there may be at once. With fewer requests than that
// there are no more than requests, since each slot has at least one.
func (l Limits) Slots() int {
	switch {
	case l.None():
		return 0
	case l.Concurrency == 0:
		return min(unlimitedSlots, l.Requests)
	case l.Requests == 0:
		return l.Concurrency
	}
	return min(l.Concurrency, l.Requests)
}

// quota is slot n's part of the requests; 0 means no limit. All parts together
// are the whole.
func (l Limits) quota(n int) int {
	if l.Requests == 0 {
		return 0
	}
	part := l.Requests / l.Slots()
	if n < l.Requests%l.Slots() {
		part++
	}
	return part
}

// String says it in words: "at most 4 calls at once, at most 60 requests in any
// minute".
func (l Limits) String() string {
	if l.None() {
		return "not limited"
	}
	text := fmt.Sprintf("at most %s at once", count(l.Slots(), "call"))
	if l.Requests > 0 {
		text += fmt.Sprintf(", at most %s in any %s", count(l.Requests, "request"), span(l.Per))
	}
	return text
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func span(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	}
	return d.String()
}

package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/outbound"
)

// maxClocks bounds the origins whose clocks are remembered; the one heard of
// longest ago goes first.
const maxClocks = 256

// Clocks remembers how far the clocks of providers were from ours when they
// last answered. It asks nobody. It is safe for concurrent use.
type Clocks struct {
	mu       sync.Mutex
	readings map[string]Reading // by origin; guarded by mu
}

// Reading is what the newest answer of an origin said of its clock.
type Reading struct {
	At time.Time // by our clock
	// Ahead is how far its clock is proved to be from ours, negative if it is
	// behind: a Date header counts whole seconds, and an answer takes its time.
	// 0 says that they may agree.
	Ahead time.Duration
}

// NewClocks makes a Clocks.
func NewClocks() *Clocks { return &Clocks{readings: map[string]Reading{}} }

// Through gives a Caller that passes everything on and notes what the answers
// say of the time.
func (c *Clocks) Through(call Caller) Caller { return listening{call, c} }

type listening struct {
	Caller
	clocks *Clocks
}

func (l listening) Do(ctx context.Context, r outbound.Request) (outbound.Answer, error) {
	a, err := l.Caller.Do(ctx, r)
	l.clocks.note(a)
	return a, err
}

func (c *Clocks) note(a outbound.Answer) {
	// An answer from a cache tells the time at which it was made.
	if a.Date.IsZero() || a.SentAt.IsZero() || a.AnsweredAt.IsZero() || a.Header.Get("Age") != "" {
		return
	}
	origin, err := httprule.Origin(a.URL)
	if err != nil {
		return
	}
	r := Reading{At: a.AnsweredAt}
	if ahead := a.Date.Sub(a.AnsweredAt); ahead > 0 {
		r.Ahead = ahead
	} else if behind := a.SentAt.Sub(a.Date.Add(time.Second)); behind > 0 {
		r.Ahead = -behind
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, known := c.readings[origin]; known && old.At.After(r.At) {
		return
	} else if !known && len(c.readings) >= maxClocks {
		c.forgetLocked()
	}
	c.readings[origin] = r
}

func (c *Clocks) forgetLocked() {
	oldest := ""
	for origin, r := range c.readings {
		if oldest == "" || r.At.Before(c.readings[oldest].At) {
			oldest = origin
		}
	}
	delete(c.readings, oldest)
}

// Of gives the newest reading of an origin.
func (c *Clocks) Of(origin string) (Reading, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.readings[origin]
	return r, ok
}

const (
	// A job is taken to be older than a create by the provider's clock, so that
	// a difference of seconds already matters.
	clockWarn = 5 * time.Second
	// What signatures of webhooks tolerate.
	clockFail = 5 * time.Minute
)

// providerClocks reports what the providers' newest answers said. It calls
// nobody.
func (v *visit) providerClocks(accounts []Account) {
	seen := map[string]bool{}
	for _, a := range accounts {
		origin := a.origin()
		if origin == "" || seen[origin] {
			continue
		}
		seen[origin] = true
		r, ok := v.d.cfg.Clocks.Of(origin)
		if !ok {
			if a.Unusable == "" {
				v.add("clock", a.Provider, Unseen, "no answer of "+origin+" has told its time since the start")
			}
			continue
		}
		age := "its answer of " + span(v.d.cfg.Now().Sub(r.At)) + " ago"
		far, where := r.Ahead, "ahead"
		if far < 0 {
			far, where = -far, "behind"
		}
		text := fmt.Sprintf("the clock of %s is %s %s by %s", origin, span(far), where, age)
		const fix = "set this machine's clock by a time server; if it is right, tell the provider"
		switch {
		case far >= clockFail:
			v.add("clock", a.Provider, Fail, text+": webhooks it signs with a time are refused, and its lists date jobs wrongly", fix)
		case far >= clockWarn:
			v.add("clock", a.Provider, Warn, text+": jobs in its lists seem older or younger than they are", fix)
		case far > 0:
			v.add("clock", a.Provider, OK, text)
		default:
			v.add("clock", a.Provider, OK, "the clock of "+origin+" agrees by "+age)
		}
	}
}

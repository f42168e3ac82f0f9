package poller

import (
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/projections"
)

// pace is what one account of a provider said about being asked too often: one
// operation hears it, and the others of the account need not be told again. It
// is this process's own, but where the account's limits are shared the others
// are told. It is lost with it; the next answer says it again.
type pace struct {
	until  time.Time     // not to be asked before
	wait   time.Duration // how long that was
	streak uint64        // waits in a row after which it was still too often
}

// heard takes note of an answer. Those to requests that left before a wait began
// belong to the same complaint. Without a time from the provider the wait is
// the operation's own backoff, longer each time; each answer that is not a
// complaint takes one step back, so that a limit is approached and not jumped at.
func (p *Poller) heard(s projections.State, a outbound.Answer, r contract.Failure) {
	if a.Status == 0 {
		return
	}
	if wait := p.hear(s, a, r); wait > 0 {
		p.tellPause(s.Intent.Provider, s.Intent.Account, wait)
	}
}

// hear does it, and gives how long a new wait is; 0 if there is none.
func (p *Poller) hear(s projections.State, a outbound.Answer, r contract.Failure) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := s.Intent.Provider + "/" + s.Intent.Account
	known := p.paces[key]
	if r.Class != events.ErrorThrottled {
		if known != nil && a.SentAt.After(known.until) {
			if known.streak--; known.streak == 0 {
				delete(p.paces, key)
			}
		}
		return 0
	}
	if known == nil {
		known = &pace{}
		p.paces[key] = known
	}
	now := p.cfg.Clock.Now()
	if known.streak == 0 || a.SentAt.After(known.until) {
		known.streak++
	}
	wait := s.Backoff(known.streak)
	if !r.RetryAt.IsZero() {
		wait = min(max(r.RetryAt.Sub(now), 0), s.Intent.Policy.PollMax)
	}
	if until := now.Add(wait); until.After(known.until) {
		known.until, known.wait = until, wait
		return wait
	}
	return 0
}

// throttled is when the operation may ask again after its account was told to
// slow down; zero if it was not. Each operation comes back at a time of its own,
// or all would ask at once and be told again.
func (p *Poller) throttled(s projections.State, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.paces[s.Intent.Provider+"/"+s.Intent.Account]
	if known == nil || !known.until.After(now) {
		return time.Time{}
	}
	return known.until.Add(s.Spread(known.wait))
}

package outbound

import (
	"sync"
	"time"
)

// Bounds on kept connections. They are constants, since what they guard against
// does not differ between installations.
const (
	// restForReads is how long a connection may have been idle to be used for a read.
	restForReads = 30 * time.Second
	// restForEffects is the same for a call with side effects: less than any
	// server is known to keep one idle as shipped (2 s and 5 s are common), so
	// that the call does not cross the server's closing.
	restForEffects = time.Second
	// longestLife is when a connection is replaced though it works, so that a
	// moved name, a new certificate or another trust is met in bounded time.
	longestLife = 5 * time.Minute
	// restPerPlace and restInAll bound how many are idle.
	restPerPlace = 32
	restInAll    = 256
)

// pool keeps idle connections. It is safe for concurrent use.
type pool struct {
	clock Clock

	mu     sync.Mutex           // guards the fields below
	idle   map[place][]*carrier // each list in the order in which they came to rest
	count  int
	closed bool
	sweep  *time.Timer // runs while one is idle
}

func newPool(clock Clock) *pool { return &pool{clock: clock, idle: map[place][]*carrier{}} }

// take gives the connection that came to rest last, if it has not rested longer
// than the call allows; nil if there is none. The caller owns it and looks
// whether it is quiet.
func (p *pool) take(at place, rest time.Duration) *carrier {
	now := momentOf(p.clock)
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[at]
	if len(list) == 0 {
		return nil
	}
	// Where this one has rested too long, the others have; expire closes them.
	c := list[len(list)-1]
	if now.since(c.rests) > c.rest(rest) || now.mono-c.born > longestLife {
		return nil
	}
	return p.drop(at, len(list)-1)
}

// rest is how long a connection may be idle where a call allows limit: a
// provider that says when it closes is not met in its last second, nor, with
// less than that, at all.
func (c *carrier) rest(limit time.Duration) time.Duration {
	if c.patience == 0 {
		return limit
	}
	return min(limit, max(c.patience-time.Second, 0))
}

// put takes a connection back after an exchange.
func (p *pool) put(c *carrier) {
	c.rests = momentOf(p.clock)
	if c.rests.mono-c.born > longestLife || c.rest(restForReads) == 0 {
		c.Close()
		return
	}
	var excess *carrier
	p.mu.Lock()
	switch {
	case p.closed:
		excess = c
	default:
		if len(p.idle[c.place]) >= restPerPlace {
			excess = p.drop(c.place, 0)
		} else if p.count >= restInAll {
			excess = p.drop(p.oldest(), 0)
		}
		p.idle[c.place] = append(p.idle[c.place], c)
		p.count++
		if p.sweep == nil {
			p.sweep = time.AfterFunc(restForReads, p.expire)
		}
	}
	p.mu.Unlock()
	if excess != nil {
		excess.Close()
	}
}

// drop takes one out of its list. mu is held.
func (p *pool) drop(at place, i int) *carrier {
	list := p.idle[at]
	c := list[i]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = nil
	if list = list[:len(list)-1]; len(list) == 0 {
		delete(p.idle, at)
	} else {
		p.idle[at] = list
	}
	p.count--
	return c
}

// oldest is the place of the one that rests longest. mu is held.
func (p *pool) oldest() (at place) {
	var longest *carrier
	for key, list := range p.idle {
		if c := list[0]; longest == nil || c.rests.wall.Before(longest.rests.wall) {
			at, longest = key, c
		}
	}
	return at
}

// expire closes what no call would take any more.
func (p *pool) expire() {
	now := momentOf(p.clock)
	var over []*carrier
	p.mu.Lock()
	for at := range p.idle {
		for i := 0; i < len(p.idle[at]); {
			c := p.idle[at][i]
			if now.since(c.rests) < c.rest(restForReads) && now.mono-c.born < longestLife {
				i++
				continue
			}
			over = append(over, p.drop(at, i))
		}
	}
	p.sweep = nil
	if p.count > 0 && !p.closed {
		p.sweep = time.AfterFunc(restForReads/2, p.expire)
	}
	p.mu.Unlock()
	for _, c := range over {
		c.Close()
	}
}

// close drops all that is idle, and from now on what comes back.
func (p *pool) close() {
	p.mu.Lock()
	all := p.idle
	p.idle, p.count, p.closed = map[place][]*carrier{}, 0, true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	p.mu.Unlock()
	for _, list := range all {
		for _, c := range list {
			c.Close()
		}
	}
}

package api

import (
	"context"
	"sync"

	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// dying is a store that goes away at one write, having done it or not.
type dying struct {
	*memory.Faulty
	mu           sync.Mutex // guards what follows
	armed, dead  bool
	writes, last int
}

// dying has the harness use such a store. Nothing happens before it is armed.
func (h *harness) dying(kind memory.Kind, at int) *dying {
	d := &dying{last: at}
	d.Faulty = memory.Inject(h.store, func(c memory.Call) memory.Fault {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.dead {
			return memory.Fault{Kind: memory.Unavailable}
		}
		if d.armed && (c.Op == memory.OpPublish || c.Op == memory.OpBatch) {
			if d.writes++; d.writes == d.last {
				d.dead = true
				return memory.Fault{Kind: kind}
			}
		}
		return memory.Fault{}
	})
	h.over(d.Faulty)
	return d
}

// arm counts writes from now on.
func (d *dying) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = true
}

// back has the store answer again, and what was late lands.
func (d *dying) back(ctx context.Context) {
	d.mu.Lock()
	d.armed, d.dead = false, false
	d.mu.Unlock()
	d.Land(ctx)
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

const (
	// holdsEvery is how often a process reads the holds, and so how late it
	// hears of one that another process placed, while the store answers.
	holdsEvery = time.Second
	// holdsTrusted is how long it goes by what it read. Afterwards it permits no
	// call with side effects until it has read them again: nobody can know what
	// was placed meanwhile. A hold that was acknowledged is in force in every
	// process after at most this long.
	holdsTrusted = 10 * time.Second
)

// holds is what this process knows of the holds in CONTROL.
type holds struct {
	journal *journal.Journal
	clock   Clock
	log     *slog.Logger

	mu sync.Mutex         // held while reading, so that an older reading never replaces a newer
	at journal.ControlEnd // of CONTROL when it was read; guarded by mu

	known atomic.Pointer[knownHolds] // nil until the first reading
}

type knownHolds struct {
	list projections.Holds
	asOf time.Duration // monotonic time at which the newest reading began
}

// read reads the holds if CONTROL has another end than at the reading before,
// also one that it lost and grew again, as under a server that was restored.
func (h *holds) read(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	began := h.clock.Monotonic()
	end, err := h.journal.ControlEnd(ctx)
	if err != nil {
		return err
	}
	known := h.known.Load()
	if known != nil && end == h.at {
		h.known.Store(&knownHolds{list: known.list, asOf: began})
		return nil
	}
	// What is appended from here on is read or not; the next reading sees that
	// the end is another.
	list, err := h.journal.Holds(ctx)
	if err != nil {
		return err
	}
	h.tell(ctx, known, list)
	h.at = end
	h.known.Store(&knownHolds{list: list, asOf: began})
	return nil
}

// tell writes down what this process goes by from here on.
func (h *holds) tell(ctx context.Context, before *knownHolds, list projections.Holds) {
	was := map[string]projections.Hold{}
	if before != nil {
		for _, hold := range before.list {
			was[hold.Provider] = hold
		}
	}
	for _, hold := range list {
		if was[hold.Provider] != hold {
			h.log.WarnContext(ctx, "a hold is in force", "provider", named(hold.Provider), "scope", string(hold.Scope),
				"by", hold.Who, "since", hold.Since, "unreadable", hold.Unreadable)
		}
		delete(was, hold.Provider)
	}
	for provider := range was {
		h.log.WarnContext(ctx, "a hold is over", "provider", named(provider))
	}
}

func named(provider string) string {
	if provider == "" {
		return "all"
	}
	return provider
}

// begin returns when the holds are known for the first time, or ctx ends.
func (h *holds) begin(ctx context.Context) error {
	for {
		err := h.read(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			h.log.ErrorContext(ctx, "nothing is asked of any provider until the holds can be read", "error", err)
		}
		if sleepErr := h.clock.Sleep(ctx, holdsEvery); sleepErr != nil {
			return errors.Join(sleepErr, err)
		}
	}
}

// follow reads the holds again and again until ctx ends. Of several that follow
// in one process one reads.
func (h *holds) follow(ctx context.Context) error {
	for {
		if known := h.known.Load(); known == nil || h.clock.Monotonic()-known.asOf >= holdsEvery/2 {
			// A reading that hangs is given up, or the next could not begin.
			limited, stop := context.WithTimeout(ctx, holdsTrusted)
			err := h.read(limited)
			stop()
			if err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "the holds could not be read", "error", err)
			}
		}
		if h.clock.Sleep(ctx, holdsEvery) != nil {
			return nil
		}
	}
}

// permits says why no call with side effects may be permitted, if the holds were
// read too long ago.
func (h *holds) permits() error {
	known := h.known.Load()
	if known == nil {
		return errors.New("the holds were not read yet")
	}
	if age := h.clock.Monotonic() - known.asOf; age > holdsTrusted {
		return fmt.Errorf("the holds could not be read for %s: nobody knows what was placed meanwhile", age.Round(time.Second))
	}
	return nil
}

// count gives how many holds are in force by scope; known is false while they
// are not read, or were read too long ago.
func (h *holds) count() (creates, all int, known bool) {
	if h.permits() != nil {
		return 0, 0, false
	}
	for _, hold := range h.known.Load().list {
		switch hold.Scope {
		case events.HoldNone:
		case events.HoldCreates:
			creates++
		case events.HoldAll:
			all++
		}
	}
	return creates, all, true
}

// hold gives what rests for a provider. Everything does before the first
// reading; after it, the last one counts.
func (h *holds) hold(provider string) workflow.Hold {
	known := h.known.Load()
	if known == nil {
		return workflow.Hold{Scope: workflow.HoldAll, Reason: events.DeferHold, Detail: "the holds were not read yet"}
	}
	hold := known.list.For(provider)
	if hold.Scope == events.HoldNone {
		return workflow.Hold{}
	}
	of, by := "all calls to ", ", placed by "+hold.Who
	scope := workflow.HoldAll
	if hold.Scope == events.HoldCreates {
		of, scope = "creates with ", workflow.HoldCreates
	}
	on := "all providers"
	if hold.Provider != "" {
		on = "provider " + hold.Provider
	}
	if hold.Unreadable != "" {
		by = ", since a fact of the hold cannot be read"
	}
	return workflow.Hold{Scope: scope, Reason: events.DeferHold, Detail: of + on + " are on hold" + by}
}

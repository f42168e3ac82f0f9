package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// Provisioning is what makes the streams of a store elsewhere. It is the one
// place that needs the right to administer streams.
type Provisioning struct {
	Store    Store
	Replicas int    // 1 or 3
	Identity string // file; "": none is looked at
}

// Provisioned is what it came to.
type Provisioned struct {
	Installation string // id; "" if no identity was named
	Generation   uint64 // of the history that counts
}

// Run makes the streams that are missing, compares all of them and the history
// with the ledger, and makes the identity where none is and the ledger is empty.
// A crash in between leaves some of it; running it again makes the rest.
func (p Provisioning) Run(ctx context.Context, log *slog.Logger) (done Provisioned, err error) {
	if p.Replicas != 1 && p.Replicas != 3 {
		return done, usage("--replicas is %d: want 1 or 3", p.Replicas)
	}
	n, err := p.connect(ctx, log)
	if err != nil {
		return done, err
	}
	defer n.Close()
	if err := makeStreams(ctx, log, n.Provision); err != nil {
		var drift *journal.DriftError
		if errors.As(err, &drift) {
			return done, &Error{Err: err, Hint: "a stream is not as it must be, and provisioning changes none that is there: put the named setting back; the number of replicas is for ever"}
		}
		return done, &Error{Err: err, Hint: "making streams needs the right to administer them, and as many servers as replicas"}
	}
	if err := n.MakeSeats(ctx); err != nil {
		return done, err
	}
	clock := wire.NewSystemClock()
	j := journal.New(journal.Options{Store: n, Now: clock.Now, Sleep: clock.Sleep, NewID: wire.NewID})
	g, began, err := j.CurrentGeneration(ctx)
	if err != nil {
		return done, err
	}
	if began {
		log.ErrorContext(ctx, "the history was ahead of the ledger: it is derived anew", "generation", uint64(g))
	}
	done.Generation = uint64(g)
	if p.Identity == "" {
		return done, nil
	}
	_, used, err := j.LedgerTime(ctx)
	if err != nil {
		return done, err
	}
	id, err := wire.LoadIdentityFile(p.Identity, rand.Reader, clock.Now(), !used)
	if errors.Is(err, wire.ErrNoIdentity) {
		return done, &Error{Err: err, Hint: "put the identity back from its backup: with another one the same requests would make second jobs"}
	}
	done.Installation = id.Installation
	return done, err
}

// Nodes that have just started answer nothing about streams until they have chosen
// a leader among them, and then know each other one by one; how long that is waited
// for, and how often it is asked.
const (
	electionPatience = time.Minute
	electionPause    = 2 * time.Second
)

// connect connects, and asks again as long as the servers are there and silent.
func (p Provisioning) connect(ctx context.Context, log *slog.Logger) (n *journal.NATS, err error) {
	err = patiently(ctx, log, "they do not speak of streams yet", func() error {
		n, err = p.Store.Connect(ctx, "counterfoil provision", p.Replicas, nil, log)
		return err
	}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) })
	return n, err
}

// makeStreams makes the streams, and again as long as nodes are missing.
func makeStreams(ctx context.Context, log *slog.Logger, provision func(context.Context) error) error {
	return patiently(ctx, log, "they do not know of as many nodes as there are to be replicas yet", func() error {
		return provision(ctx)
	}, func(err error) bool { return errors.Is(err, journal.ErrTooFewNodes) })
}

// patiently tries again what fails for now, while the patience lasts.
func patiently(ctx context.Context, log *slog.Logger, why string, try func() error, forNow func(error) bool) error {
	for end := time.Now().Add(electionPatience); ; {
		err := try()
		if err == nil || !forNow(err) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		log.WarnContext(ctx, "the servers are asked again", "why", why, "error", err)
		select {
		case <-time.After(electionPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/api"
	"github.com/counterfoil/counterfoil/internal/canonical"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// maxLag is how far a partition may be behind before the service counts as not
// ready.
const maxLag = 30 * time.Second

// watched is what is seen of a running service from outside: measured, checked
// and told of.
type watched struct {
	metrics *telemetry.Metrics
	health  *telemetry.Health
	reserve *disk.Reserve // nil: none is kept
	teller  *notice.Teller
}

// watch makes the parts that the roles are built with.
func watch(ctx context.Context, cfg Config, holds func() (creates, all int, known bool)) *watched {
	w := &watched{}
	measure := telemetry.Config{Build: cfg.Build, Now: cfg.Clock.Now, Holds: holds, Shared: cfg.Seats != nil, Fsyncs: cfg.Fsyncs}
	if cfg.FreeSpace != nil {
		w.reserve = disk.New(ctx, disk.Config{Free: cfg.FreeSpace, Least: cfg.DiskReserve, Clock: cfg.Clock, Log: cfg.Log})
		measure.Disk = w.reserve
	}
	w.metrics = telemetry.New(measure)
	return w
}

// full says whether the disk's reserve is reached.
func (w *watched) full() bool { return w.reserve != nil && w.reserve.Low() }

// hold is what rests for want of room.
func (w *watched) hold(string) workflow.Hold {
	if !w.full() {
		return workflow.Hold{}
	}
	return workflow.Hold{Scope: workflow.HoldCreates, Reason: events.DeferStorageLow, Detail: "the disk's reserve is reached: creates rest until there is room"}
}

// watchRoles makes the parts that need the roles.
func (s *Service) watchRoles() {
	s.teller = notice.New(notice.Config{
		Journal: s.journal, Now: s.cfg.Clock.Now, NewID: NewID, Log: s.cfg.Log,
		Source: "/notifier/" + s.cfg.Run, Owner: "notifier/" + s.cfg.Run, Gone: s.gone, Run: s.cfg.Tell,
	})
	s.health = telemetry.NewHealth(s.checks(), s.cfg.Clock.Now, s.cfg.Log)
}

// checks lists what must be well. Their texts are for anybody.
func (s *Service) checks() []telemetry.Check {
	list := []telemetry.Check{
		{
			Name: "store", Required: true, Do: "The store does not answer, or cannot write. See the log; is the disk full, slow or gone?",
			Look: func(ctx context.Context) error {
				if s.cfg.Failing != nil {
					if err := s.cfg.Failing(); err != nil {
						return err
					}
				}
				_, _, err := s.journal.LedgerTime(ctx)
				return err
			},
		},
		{
			Name: "streams", Required: true, Do: "A stream is not as it was provisioned, or could not be compared. The log names the setting to put back; until then no call with side effects is made.",
			Look: func(context.Context) error { return s.drifted() },
		},
	}
	if s.cfg.StoreTime != nil && s.cfg.ClockDifference > 0 {
		list = append(list, telemetry.Check{
			Name: "clock", Required: true, Do: "This process's clock is off from the store's by more than it may be. Set both by the same time server; the log says by how much. Until then this process makes no call with side effects.",
			Look: func(context.Context) error { return s.clockOff() },
		})
	}
	if s.cfg.Roles.Any(Projector | Poller) {
		list = append(list, telemetry.Check{
			Name: "holds", Required: true, Do: "Nobody can know which calls operators hold. See the log; until the holds are read no call with side effects is made.",
			Look: func(context.Context) error { return s.holds.permits() },
		})
	}
	if s.cfg.Roles.Any(Projector) {
		list = append(list, telemetry.Check{
			Name: "partitions", Required: true, Do: "Facts are not being recorded. Shortly after a start this passes; otherwise see the log for the partition and its error.",
			Look: func(context.Context) error {
				n, lag := s.metrics.Projected()
				// Who shares them cannot see what others hold; what nobody here can
				// stand for counts as a lag.
				if s.cfg.Seats == nil && n < journal.Partitions || lag > maxLag {
					return fmt.Errorf("%d of %d partitions are projected, the slowest is %s behind", n, journal.Partitions, lag.Round(time.Millisecond))
				}
				return nil
			},
		})
	}
	if s.cfg.Keys != nil {
		list = append(list, telemetry.Check{
			Name: "keys", Required: true, Do: "The file of API keys cannot be read or is wrong, so nobody gets in. The log names the line.",
			Look: func(context.Context) error {
				_, err := s.cfg.Keys.Authenticate(nil)
				var broken *ingest.KeysError
				if errors.As(err, &broken) {
					return err
				}
				return nil
			},
		})
	}
	if s.cfg.Credentials != nil {
		list = append(list, fileCheck("credentials", "The credentials file as it is now is not in use; the version before it is. It is wrong, or being written, or new: then it counts once it has been left alone for 10 s. The log says which.",
			s.cfg.Credentials.Status))
	}
	if s.cfg.Rules != nil {
		list = append(list, fileCheck("policy", "The policy file as it is now is not in use; the rules before it are. It is wrong, or being written, or new: then it counts once it has been left alone for 10 s. The log says which.",
			s.cfg.Rules.Status))
	}
	if s.reserve != nil {
		list = append(list, telemetry.Check{
			Name: "disk", Do: "Less is free than the reserve: make room where the data directory is. Until then new operations are refused and no create is sent; everything else goes on while there is any room.",
			Look: func(context.Context) error {
				free, err := s.reserve.Free()
				if s.reserve.Low() {
					return errors.Join(fmt.Errorf("%d bytes are free, the reserve is %d", free, s.reserve.Least()), err)
				}
				return err
			},
		})
	}
	return list
}

// fileCheck says whether a file that is followed is in use as it is.
func fileCheck(name, do string, look func() FileStatus) telemetry.Check {
	return telemetry.Check{
		Name: name, Do: do,
		Where: func() string {
			status := look()
			if status.Where == "" && !status.Writing.IsZero() {
				return "being written"
			}
			return status.Where
		},
		Look: func(context.Context) error {
			switch status := look(); {
			case status.Problem != "":
				return errors.New(status.Problem)
			case !status.Writing.IsZero():
				return fmt.Errorf("%s is being written in place", status.Path)
			}
			return nil
		},
	}
}

// RunAdmin serves metrics and health to whoever runs the service until ctx ends,
// if there is a listener for it. It answers before the service is ready.
func (s *Service) RunAdmin(ctx context.Context) error {
	if s.cfg.Admin == nil {
		return nil
	}
	return api.Serve(ctx, s.cfg.Admin, telemetry.Admin(s.health, s.metrics), s.cfg.Log, s.metrics.Refused)
}

// runWatch looks at the disk and tells of operations that rest, until ctx ends.
func (s *Service) runWatch(ctx context.Context) error {
	var group errgroup.Group
	if s.reserve != nil {
		group.Go(func() error { return s.reserve.Run(ctx) })
	}
	group.Go(func() error { return s.teller.Run(ctx) })
	return group.Wait()
}

// observer passes on what becomes of the partitions: to the metrics, to whoever
// is told of what rests, and as a line for what begins and ends.
type observer struct {
	*telemetry.Metrics
	s *Service
}

var _ projector.Observer = observer{}

// Stopped implements [projector.Observer].
func (o observer) Stopped(s projections.State, fresh bool) { o.s.teller.Stopped(s, fresh) }

// Unmapped implements [projector.Observer]. The word is the provider's: it is cut
// and cleaned.
func (o observer) Unmapped(s projections.State) {
	o.Metrics.Unmapped(s)
	const limit = 64 // bytes
	o.s.cfg.Log.Warn("the provider says a state that the contract does not know; the job is watched on",
		"operation", s.Operation, "trace", s.TraceID(), "provider", s.Intent.Provider, "account", s.Intent.Account,
		"state", httprule.Excerpt(canonical.RedactLinks([]byte(s.Job.Remote)), limit), "contract", s.Intent.Contract.String())
}

// Owned implements [projector.Observer]. Where this process does not project everything
// it follows the history for that: see runDoors.
func (o observer) Owned(partition string, open map[string]int) {
	if o.s.cfg.Local {
		o.s.ingest.OpenCounted(partition, open)
	}
}

// Left implements [projector.Observer].
func (o observer) Left(partition string) {
	o.Metrics.Left(partition)
	if o.s.cfg.Local {
		o.s.ingest.OpenLeft(partition)
	}
}

// Moved implements [projector.Observer].
func (o observer) Moved(partition string, before, after projections.State) {
	o.Metrics.Moved(partition, before, after)
	if o.s.cfg.Local {
		o.s.ingest.OpenMoved(partition, before.Phase, after.Phase, after.Operation, after.Intent.Principal)
	}
	about := func() []any { // for few facts
		return []any{
			"operation", after.Operation, "trace", after.TraceID(), "provider", after.Intent.Provider, "account", after.Intent.Account, "principal", after.Intent.Principal,
		}
	}
	switch {
	case before.Phase == projections.PhaseNone:
		o.s.cfg.Log.Info("operation recorded", about()...)
	case after.Phase.Terminal() && !before.Phase.Terminal():
		o.s.cfg.Log.Info("operation ended", append(about(), "phase", string(after.Phase), "reason", string(after.Reason))...)
	}
}

// timed measures how late wake-ups reach a worker.
func (s *Service) timed(fetch poller.Fetch) poller.Fetch {
	return func(ctx context.Context, limit int, wait time.Duration) ([]poller.Lease, error) {
		list, err := fetch(ctx, limit, wait)
		for _, lease := range list {
			s.metrics.Woken(lease.At())
		}
		return list, err
	}
}

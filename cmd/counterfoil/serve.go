package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// options is everything that can be configured of a service in one process.
type options struct {
	launch.Options
	Data        string
	Sync        string
	DiskReserve string // "": none, and the free space is not asked for
	Profile     string // directory for profiles, of the bench; "": none
	Agents      agents
}

// embeddedFlags are about the embedded store, which there is none of with --nats.
var embeddedFlags = []string{"data", "sync", "disk-reserve", "profile", "nats-listen", "nats-listen-cert", "nats-listen-key"}

func (a *app) serveCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service, on an embedded store or on a NATS cluster",
		Long: `Run the service with all its roles in one process, on an embedded store in a
data directory. The first start makes an API key and prints it once.

Back up DATA/identity.json apart from the data: with it, a lost ledger still
gives the same ids and tokens for the same requests.

With --nats it runs all roles on a store elsewhere, beside any number of others.
counterfoil provision makes the streams there. --identity and --keys name files
then; the commands ingest, projector, poller and webhooks run one role each.

Which secret belongs to which account of which provider is said in a credentials
file, and by --credential, --hook-secret and --base-url, which win over it. All
of them hold references, never a secret: env:NAME or file:PATH, and others must
not be able to read the files. Secrets and the credentials file may change while
it runs. See docs/CREDENTIALS.md.

A policy file (--policy) says which requests another principal has to approve
before anything is sent; it may change while it runs, too. See docs/POLICY.md.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := launch.Log(a.stderr, o.LogLevel)
			if err != nil {
				return err
			}
			if o.Store.URLs == "" && o.Profile != "" {
				return a.serveProfiled(cmd.Context(), o, log)
			}
			if o.Store.URLs == "" {
				return a.serve(cmd.Context(), o, log)
			}
			for _, name := range embeddedFlags {
				if cmd.Flags().Changed(name) {
					return usage("--%s is about the embedded store and does not go with --nats", name)
				}
			}
			return launch.Serve(cmd.Context(), o.Options, 0, log, a.stdout)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Data, "data", "counterfoil-data", "data directory")
	flags.StringVar(&o.Sync, "sync", "always", "always: nothing acknowledged is lost on power loss; interval: the last second may be")
	flags.StringVar(&o.DiskReserve, "disk-reserve", "1GiB", "free space kept for what is under way: below it new operations are refused and no create is sent; 0 for none")
	flags.StringVar(&o.Profile, "profile", "", "directory for a CPU and an allocation profile, written at SIGUSR1 or at the end")
	_ = flags.MarkHidden("profile") // it is defined just above
	o.Agents.flags(flags)
	o.Flags(flags, wire.AllRoles)
	flags.Lookup("credentials").Usage = "credentials file (default DATA/credentials.yaml, if it is there)"
	o.AwayFlags(flags, wire.AllRoles)
	return cmd
}

// serveProfiled is serve with profiles of the process.
func (a *app) serveProfiled(ctx context.Context, o options, log *slog.Logger) error {
	wait, err := profiled(ctx, o.Profile)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = a.serve(ctx, o, log)
	stop()
	return errors.Join(err, wait())
}

func (a *app) serve(ctx context.Context, o options, log *slog.Logger) error {
	if o.Identity != "" || o.Keys != "" || o.Intents {
		return usage("--identity, --keys and --nats-agents go with --nats: the embedded store has the files in its data directory, and --nats-listen lets agents in")
	}
	for {
		l, err := open(ctx, o, nil, log, nil)
		if err != nil {
			return roomHint(o.Data, err)
		}
		if l.newKey != "" {
			fmt.Fprintf(a.stdout, "API key of principal %s, printed this once: %s\n", firstPrincipal, l.newKey)
		}
		// Where callers and scrapers will look for it again.
		o.Listen = l.listener.Addr().String()
		if admin := l.setup.Config.Admin; admin != nil {
			o.AdminListen = admin.Addr().String()
		}
		if at := l.broker.AgentsURL(); at != "" {
			fmt.Fprintf(a.stdout, "agents on %s\n", at)
			o.Agents.again(at)
		}
		running, stop := context.WithCancelCause(ctx)
		var beside sync.WaitGroup
		beside.Go(func() { keepHeapSmall(running) })
		beside.Go(func() { l.mend(running, o, stop) })
		err = l.setup.Run(running, l.service, a.stdout)
		mended := context.Cause(running) == errStoreStuck && ctx.Err() == nil //nolint:errorlint // the cause itself
		stop(nil)
		beside.Wait()
		err = errors.Join(err, l.close())
		if !mended {
			return roomHint(o.Data, err)
		}
		if err != nil { // who waits for such a store is not answered in time
			log.WarnContext(ctx, "the run did not end in order", "error", err)
		}
	}
}

// errStoreStuck ends a run whose store stays unable to write although the disk
// has room.
var errStoreStuck = errors.New("the store has to be started again")

const (
	mendAfter = 5 * time.Second  // of failures while there is room
	mendEvery = 10 * time.Second // a run lasts at least
	// mendRoom is the free space in bytes without which a start is pointless. The
	// reserve may be none.
	mendRoom = 16 << 20
)

// mend ends the run with errStoreStuck when the embedded store could not write,
// and there is room again: a server on a disk that was full stays unable to write
// to what it had open until it is started again. What was not acknowledged is
// judged by the same code as after a crash.
func (l *local) mend(ctx context.Context, o options, stop context.CancelCauseFunc) {
	clock, log := l.setup.Config.Clock, l.setup.Config.Log
	began, stuck := clock.Now(), time.Time{}
	for told := false; clock.Sleep(ctx, time.Second) == nil; {
		now := clock.Now()
		failed := l.broker.Failing()
		free, err := disk.Free(o.Data)
		if failed == nil {
			stuck, told = time.Time{}, false
			continue
		}
		if !told {
			log.ErrorContext(ctx, "the store cannot write; it is started again once the disk has room", "error", failed, "free_bytes", free)
			told = true
		}
		if err != nil || free < mendRoom {
			stuck = time.Time{}
			continue
		}
		if stuck.IsZero() {
			stuck = now
		}
		if now.Sub(stuck) >= mendAfter && now.Sub(began) >= mendEvery {
			log.ErrorContext(ctx, "the store still cannot write although the disk has room: it is started again", "error", failed, "free_bytes", free)
			stop(errStoreStuck)
			return
		}
	}
}

// local is a service and its embedded store, in this process.
type local struct {
	broker   *broker.Broker
	nats     *journal.NATS
	door     *journal.Door // of agents; nil if none are let in
	setup    *launch.Setup
	service  *wire.Service
	listener net.Listener
	newKey   string // bearer key, if this start made one
}

const (
	firstPrincipal  = "local"
	keysName        = "keys.jsonl"
	credentialsName = broker.CredentialsName
)

// open starts the store and builds the service over it. builtin replaces the
// built-in contracts if it is not nil; change may alter the
// configuration, for demonstrations and drills. What can be refused is refused
// before the data directory is touched, but for the credentials file in it.
func open(ctx context.Context, o options, builtin fs.FS, log *slog.Logger, change func(*wire.Config)) (_ *local, err error) {
	if builtin == nil {
		builtin = contracts.FS
	}
	if o.Sync != string(broker.SyncAlways) && o.Sync != string(broker.SyncInterval) {
		return nil, usage("--sync is %q: want always or interval", o.Sync)
	}
	var reserve uint64
	if o.DiskReserve != "" {
		if reserve, err = disk.Size(o.DiskReserve); err != nil {
			return nil, usage("--disk-reserve: %w", err)
		}
	}
	let, err := o.Agents.broker()
	if err != nil {
		return nil, err
	}
	setup, err := launch.Prepare(ctx, o.Options, wire.AllRoles, builtin, log)
	if err != nil {
		return nil, err
	}
	config := &setup.Config
	l := &local{setup: setup, listener: config.Listener}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	now := config.Clock.Now
	l.broker, err = broker.Start(broker.Config{Dir: o.Data, Run: config.Run, Now: now, Sync: broker.Sync(o.Sync), Agents: let.config(), Logger: log})
	if err != nil {
		return nil, dataHint(err)
	}
	if o.CredsFile == "" {
		// Not before the directory is known to be ours: a file of that name in
		// another is not for us, and it is the directory that is wrong.
		if err := setup.Follow(filepath.Join(o.Data, credentialsName), true); err != nil {
			return nil, err
		}
	}
	l.nats, err = journal.Connect(ctx, journal.Config{
		Dial: l.broker.InProcess, Name: "counterfoil", Replicas: 1, Logger: log,
		// A batch waits for the disk even where single writes do not.
		Group: journal.GroupPolicy{Off: o.Sync == string(broker.SyncInterval)},
	})
	if err != nil {
		return nil, err
	}
	if err := l.nats.Provision(ctx); err != nil {
		return nil, err
	}
	if o.Sync == string(broker.SyncAlways) {
		config.Fsyncs = func() uint64 {
			alone, batches := l.nats.Commits()
			return alone + batches*l.broker.BatchFsyncs()
		}
		inMemory, err := l.broker.StageInMemory(string(journal.Ledger), string(journal.Payloads))
		if err != nil {
			return nil, err
		}
		log.Debug("group commit", "staged_in_memory", inMemory)
	}
	if err := l.nats.Check(ctx); err != nil {
		return nil, &coded{exitFailure, "a stream was changed from outside: put the named setting back", err}
	}
	_, used, err := journal.New(journal.Options{Store: l.nats, Now: now, Sleep: config.Clock.Sleep, NewID: wire.NewID}).LedgerTime(ctx)
	if err != nil {
		return nil, err
	}
	config.Identity, err = wire.LoadIdentity(o.Data, rand.Reader, now(), !used)
	if errors.Is(err, wire.ErrNoIdentity) {
		return nil, &coded{exitFailure, "put identity.json back from its backup: with another one the same requests would make second jobs", err}
	}
	if err != nil {
		return nil, err
	}
	if config.Keys, err = l.keys(filepath.Join(o.Data, keysName), now()); err != nil {
		return nil, err
	}
	config.Store, config.Check, config.StoreTime, config.Sync = l.nats, l.nats.Check, l.nats.Time, o.Sync
	config.Gone, config.Alone, config.Local, config.Failing = l.broker.Gone, true, true, l.broker.Failing
	config.DiskReserve, config.Intents = reserve, let.agents != nil
	if o.DiskReserve != "" {
		config.FreeSpace = func() (uint64, error) { return disk.Free(o.Data) }
	}
	if change != nil {
		change(config)
	}
	if l.service, err = wire.New(ctx, *config); err != nil {
		return nil, err
	}
	if let.agents != nil {
		// Before agents are let in: until then nobody takes what they publish.
		l.door, err = journal.OpenDoor(journal.Config{Dial: l.broker.InProcess, Name: "counterfoil door", Logger: log})
		if err != nil {
			return nil, err
		}
	}
	let.open(l.service)
	return l, nil
}

// keys opens the keys file. At the first start it makes one key: a crash
// between writing and printing it leaves a key that nobody knows, and removing
// the file makes another.
func (l *local) keys(path string, now time.Time) (*ingest.Keys, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		key, bearer, err := ingest.NewKey(rand.Reader, firstPrincipal, true, now)
		if err != nil {
			return nil, err
		}
		if err := ingest.AddKey(path, key); err != nil {
			return nil, err
		}
		l.newKey = bearer
	}
	return ingest.OpenKeys(path, time.Now)
}

// close lets go of everything, in the reverse order of opening.
func (l *local) close() error {
	errs := []error{l.setup.Close()}
	if l.door != nil {
		l.door.Close()
	}
	if l.nats != nil {
		l.nats.Close()
	}
	if l.broker != nil {
		errs = append(errs, l.broker.Stop())
	}
	return errors.Join(errs...)
}

// roomHint says what helps where the disk of the data directory is full, whatever
// failed there.
func roomHint(dir string, err error) error {
	var hinted *coded
	if err == nil || errors.As(err, &hinted) {
		return err
	}
	if free, unknown := disk.Free(dir); unknown != nil || free >= mendRoom {
		return err
	}
	return &coded{exitFailure, "make room where the data directory is, and start it again", err}
}

func dataHint(err error) error {
	var locked *broker.LockedError
	switch {
	case errors.As(err, &locked):
		return &coded{exitFailure, "one process at a time uses a data directory; stop the other, or name another with --data", err}
	case errors.Is(err, broker.ErrForeign):
		return &coded{exitFailure, "name an empty or new directory with --data", err}
	case errors.Is(err, syscall.ENOTDIR):
		return &coded{exitFailure, "name a directory with --data, also one that is not there yet", err}
	case errors.Is(err, broker.ErrNewer):
		return &coded{exitFailure, "run the program version that wrote it, or a newer one", err}
	}
	return err
}

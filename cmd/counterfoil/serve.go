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
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// options is everything that can be configured of a service in one process.
type options struct {
	Data        string
	Listen      string
	Sync        string
	Workers     int
	Contracts   string
	CredsFile   string   // "": credentials.yaml in Data, if it is there
	BaseURLs    []string // PROVIDER[/ACCOUNT]=URL
	Credentials []string // PROVIDER[/ACCOUNT]=REFERENCE
	HookSecrets []string // PROVIDER=REFERENCE
	PublicURL   string
	AllowHTTP   bool
	Networks    []string // CIDR
	LogLevel    string
	AdminListen string // "": no metrics
	DiskReserve string // "": none, and the free space is not asked for
	NotifyExec  string // "": the log is all there is
	Profile     string // directory for profiles, of the bench; "": none
}

func (a *app) serveCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service on an embedded store",
		Long: `Run the service with all its roles in one process, on an embedded store in a
data directory. The first start makes an API key and prints it once.

Back up DATA/identity.json apart from the data: with it, a lost ledger still
gives the same ids and tokens for the same requests.

Which secret belongs to which account of which provider is said in a credentials
file, and by --credential, --hook-secret and --base-url, which win over it. All
of them hold references, never a secret: env:NAME or file:PATH, and others must
not be able to read the files. Secrets and the credentials file may change while
it runs. See docs/CREDENTIALS.md.`,
		Args: exactly(0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Profile != "" {
				return a.serveProfiled(cmd.Context(), o)
			}
			return a.serve(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Data, "data", "counterfoil-data", "data directory")
	flags.StringVar(&o.Listen, "listen", "127.0.0.1:7766", "address of the HTTP interface")
	flags.StringVar(&o.Sync, "sync", "always", "always: nothing acknowledged is lost on power loss; interval: the last second may be")
	flags.IntVar(&o.Workers, "workers", 32, "provider calls at once, 1 to 1024")
	flags.StringVar(&o.Contracts, "contracts", "", "directory of your own contracts; one of a built-in name replaces it")
	flags.StringVar(&o.CredsFile, "credentials", "", "credentials file (default DATA/credentials.yaml, if it is there)")
	flags.StringArrayVar(&o.BaseURLs, "base-url", nil, "PROVIDER[/ACCOUNT]=URL instead of the contract's, repeatable")
	flags.StringArrayVar(&o.Credentials, "credential", nil, "PROVIDER[/ACCOUNT]=env:NAME or file:PATH, repeatable")
	flags.StringArrayVar(&o.HookSecrets, "hook-secret", nil, "PROVIDER=env:NAME or file:PATH that signs its webhooks, repeatable")
	flags.StringVar(&o.PublicURL, "public-url", "", "where providers reach this service for webhooks")
	flags.BoolVar(&o.AllowHTTP, "allow-http", false, "call providers by plain http, where credentials can be read on the way")
	flags.StringArrayVar(&o.Networks, "allow-network", nil, "ADDRESS/BITS that links and redirects of answers may lead to, beside public addresses, repeatable")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.AdminListen, "admin-listen", "127.0.0.1:7767", "address of /metrics, /readyz and /healthz, which ask for no key; '' for none")
	flags.StringVar(&o.DiskReserve, "disk-reserve", "1GiB", "free space kept for what is under way: below it new operations are refused and no create is sent; 0 for none")
	flags.StringVar(&o.NotifyExec, "notify-exec", "", "program to run, without a shell, for each operation that stops; a JSON object comes on its standard input")
	flags.StringVar(&o.Profile, "profile", "", "directory for a CPU and an allocation profile, written at SIGUSR1 or at the end")
	_ = flags.MarkHidden("profile") // it is defined just above
	return cmd
}

// serveProfiled is serve with profiles of the process.
func (a *app) serveProfiled(ctx context.Context, o options) error {
	wait, err := profiled(ctx, o.Profile)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = a.serve(ctx, o)
	stop()
	return errors.Join(err, wait())
}

func (a *app) serve(ctx context.Context, o options) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return usage("--log-level is %q: want debug, info, warn or error", o.LogLevel)
	}
	log := slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: inUTC}))
	l, err := open(ctx, o, nil, log, nil)
	if err != nil {
		return err
	}
	if l.newKey != "" {
		fmt.Fprintf(a.stdout, "API key of principal %s, printed this once: %s\n", firstPrincipal, l.newKey)
	}
	for _, p := range l.service.Providers(ctx) {
		log.Info("provider", "name", p.Name, "guarantee", string(p.Guarantee), "account", p.Account, "unusable", p.Unusable)
	}
	if l.admin != nil {
		log.Info("metrics and health", "address", l.admin.Addr().String())
	}
	err = l.service.Run(ctx, func() {
		fmt.Fprintf(a.stdout, "ready on http://%s\n", l.listener.Addr())
	})
	return errors.Join(err, l.close())
}

// inUTC gives the log's times the zone that every other time has that leaves.
func inUTC(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}

// local is a service and its embedded store, in this process.
type local struct {
	broker   *broker.Broker
	nats     *journal.NATS
	service  *wire.Service
	listener net.Listener
	admin    net.Listener // nil: none
	newKey   string       // bearer key, if this start made one
}

const (
	firstPrincipal  = "local"
	keysName        = "keys.jsonl"
	credentialsName = "credentials.yaml"
)

// open starts the store and builds the service over it. builtin replaces the
// built-in contracts if it is not nil; change may alter the
// configuration, for demonstrations and drills. What can be refused is refused
// before the data directory is touched, but for the credentials file in it.
func open(ctx context.Context, o options, builtin fs.FS, log *slog.Logger, change func(*wire.Config)) (_ *local, err error) {
	if builtin == nil {
		builtin = contracts.FS
	}
	accounts, hooks, err := o.accounts()
	if err != nil {
		return nil, err
	}
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	parsed, sources, err := wire.LoadContracts(builtin, o.Contracts)
	if err != nil {
		return nil, &coded{exitUsage, "", err}
	}
	for name := range accounts {
		provider, _, _ := strings.Cut(name, "/")
		if parsed[provider] == nil {
			return nil, usage("no contract is named %q: --base-url and --credential name a provider", provider)
		}
	}
	for provider := range hooks {
		if parsed[provider] == nil || parsed[provider].Webhook == nil {
			return nil, usage("--hook-secret: no contract named %q has webhooks", provider)
		}
	}
	clock := wire.NewSystemClock()
	follow := func(path string, optional bool) (*wire.Credentials, error) {
		file, err := wire.OpenCredentials(wire.CredentialsConfig{
			Path: path, Optional: optional, Contracts: parsed, AllowHTTP: o.AllowHTTP, Now: clock.Now, Log: log,
		})
		if err != nil {
			return nil, &coded{exitUsage, "docs/CREDENTIALS.md has the form of the file", err}
		}
		return file, nil
	}
	var credentials *wire.Credentials
	if o.CredsFile != "" {
		if credentials, err = follow(o.CredsFile, false); err != nil {
			return nil, err
		}
	}
	if o.Workers < 1 || o.Workers > 1024 {
		return nil, usage("--workers is %d: want 1 to 1024", o.Workers)
	}
	reserve, tell, err := o.incidents()
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, &coded{exitUsage, "--listen names another address", fmt.Errorf("listen: %w", err)}
	}
	l := &local{listener: listener}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if o.AdminListen != "" {
		if l.admin, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.AdminListen); err != nil {
			return nil, &coded{exitUsage, "a second server needs its own --admin-listen: name another address, or '' for no metrics", fmt.Errorf("listen for metrics: %w", err)}
		}
	}
	run := wire.NewID()
	l.broker, err = broker.Start(broker.Config{Dir: o.Data, Run: run, Now: clock.Now, Sync: broker.Sync(o.Sync), Logger: log})
	if err != nil {
		return nil, dataHint(err)
	}
	if o.CredsFile == "" {
		// Not before the directory is known to be ours: a file of that name in
		// another is not for us, and it is the directory that is wrong.
		if credentials, err = follow(filepath.Join(o.Data, credentialsName), true); err != nil {
			return nil, err
		}
	}
	l.nats, err = journal.Connect(ctx, journal.Config{Dial: l.broker.InProcess, Name: "counterfoil", Replicas: 1, Logger: log})
	if err != nil {
		return nil, err
	}
	if err := l.nats.Provision(ctx); err != nil {
		return nil, err
	}
	if err := l.nats.Check(ctx); err != nil {
		return nil, &coded{exitFailure, "a stream was changed from outside: put the named setting back", err}
	}
	_, used, err := journal.New(journal.Options{Store: l.nats, Now: clock.Now, Sleep: clock.Sleep, NewID: wire.NewID}).LedgerTime(ctx)
	if err != nil {
		return nil, err
	}
	identity, err := wire.LoadIdentity(o.Data, rand.Reader, clock.Now(), !used)
	if errors.Is(err, wire.ErrNoIdentity) {
		return nil, &coded{exitFailure, "put identity.json back from its backup: with another one the same requests would make second jobs", err}
	}
	if err != nil {
		return nil, err
	}
	keys, err := l.keys(filepath.Join(o.Data, keysName), clock.Now())
	if err != nil {
		return nil, err
	}
	config := wire.Config{
		Store: l.nats, Clock: clock, Log: log, Build: build(),
		Run: run, Gone: l.broker.Gone, Alone: true,
		Identity: identity, Contracts: parsed, Sources: sources,
		Accounts: accounts, HookSecrets: hooks, Credentials: credentials, PublicURL: o.PublicURL,
		Keys: keys, Listener: listener, Workers: o.Workers,
		Resolve: outbound.SystemReferences(), AllowHTTP: o.AllowHTTP,
		Check: l.nats.Check, Sync: o.Sync, StoreTime: l.nats.Time,
		Dial: outbound.SystemDialer(nil), Policy: policy,
		Admin: l.admin, DiskReserve: reserve, Tell: tell,
	}
	if o.DiskReserve != "" {
		config.FreeSpace = func() (uint64, error) { return disk.Free(o.Data) }
	}
	if change != nil {
		change(&config)
	}
	l.service, err = wire.New(ctx, config)
	return l, err
}

// told are the variables of our environment that the notice's command gets. The
// others may be credentials.
var told = [...]string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// incidents reads the flags about the disk and about who is told.
func (o options) incidents() (reserve uint64, tell func(context.Context, []byte) notice.Ran, err error) {
	if o.DiskReserve != "" {
		if reserve, err = disk.Size(o.DiskReserve); err != nil {
			return 0, nil, usage("--disk-reserve: %w", err)
		}
	}
	if o.NotifyExec == "" {
		return reserve, nil, nil
	}
	var environment []string
	for _, name := range told {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+value)
		}
	}
	if tell, err = notice.Command(o.NotifyExec, environment); err != nil {
		return 0, nil, &coded{exitUsage, "--notify-exec names one program that can be run, without arguments", fmt.Errorf("--notify-exec: %w", err)}
	}
	return reserve, tell, nil
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
	return ingest.OpenKeys(path)
}

// close lets go of everything, in the reverse order of opening.
func (l *local) close() error {
	var errs []error
	if err := l.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	if l.admin != nil {
		if err := l.admin.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if l.nats != nil {
		l.nats.Close()
	}
	if l.broker != nil {
		errs = append(errs, l.broker.Stop())
	}
	return errors.Join(errs...)
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

// policy reads the networks that links and redirects may lead to.
func (o options) policy() (p outbound.Policy, err error) {
	for _, text := range o.Networks {
		network, bad := outbound.ParseNetwork(text)
		if bad != nil {
			err = errors.Join(err, usage("--allow-network: %w", bad))
		}
		p.Allow = append(p.Allow, network)
	}
	return p, err
}

// accounts reads the flags that name providers and accounts.
func (o options) accounts() (map[string]poller.Account, map[string]string, error) {
	accounts, hooks := map[string]poller.Account{}, map[string]string{}
	each := func(flag string, list []string, set func(name, value string)) error {
		for _, item := range list {
			name, value, ok := strings.Cut(item, "=")
			if !ok || name == "" || value == "" {
				return usage("%s: want PROVIDER[/ACCOUNT]=VALUE", flag) // not quoted: it may hold a secret by mistake
			}
			set(name, value)
		}
		return nil
	}
	var wrong error
	err := errors.Join(
		each("--base-url", o.BaseURLs, func(name, value string) {
			if _, err := httprule.Origin(value); err != nil {
				wrong = errors.Join(wrong, usage("--base-url of %s: %w", name, err))
			}
			if strings.HasPrefix(strings.ToLower(value), "http:") && !o.AllowHTTP {
				wrong = errors.Join(wrong, usage("--base-url of %s is plain http, where a credential can be read on the way: give --allow-http if that is meant", name))
			}
			account := accounts[name]
			account.BaseURL = value
			accounts[name] = account
		}),
		each("--credential", o.Credentials, func(name, value string) {
			if !wire.ValidReference(value) { // not quoted: the likeliest mistake is the credential itself
				wrong = errors.Join(wrong, usage("--credential of %s: want env:NAME or file:PATH", name))
			}
			account := accounts[name]
			account.Credential = value
			accounts[name] = account
		}),
		each("--hook-secret", o.HookSecrets, func(name, value string) {
			if !wire.ValidReference(value) {
				wrong = errors.Join(wrong, usage("--hook-secret of %s: want env:NAME or file:PATH", name))
			}
			hooks[name] = value
		}),
	)
	if o.PublicURL != "" {
		if _, bad := httprule.Origin(o.PublicURL); bad != nil {
			wrong = errors.Join(wrong, usage("--public-url: %w", bad))
		}
	}
	if o.Sync != string(broker.SyncAlways) && o.Sync != string(broker.SyncInterval) {
		wrong = errors.Join(wrong, usage("--sync is %q: want always or interval", o.Sync))
	}
	return accounts, hooks, errors.Join(err, wrong)
}

// Package launch turns a command line into running roles: the flags that the
// commands share, the files they name, the connection to a store that runs
// elsewhere, and the main function of the commands that hold one role.
//
// Guarantees. What can be refused is refused before anything is opened, with an
// error that names the flag. A process on a store elsewhere makes no stream and
// changes none: it compares them and refuses to start where one is missing or
// was loosened. No secret of a file or reference is in an error or a log line.
//
// Limits. The embedded store is not linked here; the command that holds all
// roles brings it.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/disk"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// Error is a refusal to start that says what to do.
type Error struct {
	Usage bool   // the command line is wrong, or what it names
	Hint  string // what to do; "" where the error says it
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func usage(format string, args ...any) error {
	return &Error{Usage: true, Err: fmt.Errorf(format, args...)}
}

// Interrupted is the exit code of a program that was told twice to stop.
const Interrupted = 130

// UntilStopped gives a context that ends with the first SIGINT or SIGTERM. The
// second one ends the program at once.
func UntilStopped() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals // the second one does not wait
		os.Exit(Interrupted)
	}()
	return ctx
}

// Build names the program's version: that of its module, else its revision.
func Build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

// Log writes JSON lines of that level and above, with times in UTC.
func Log(to io.Writer, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, usage("--log-level is %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: least, ReplaceAttr: inUTC})), nil
}

// inUTC gives the log's times the zone that every other time has that leaves.
func inUTC(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}

// Setup is what the flags and the files they name say, read and found good.
type Setup struct {
	// Config lacks the store and what comes with it.
	Config wire.Config

	options Options
	parsed  map[string]*contract.Contract
}

// resultRoom reads --result-room. Below the least not even what is free of it fits.
func resultRoom(text string) (int64, error) {
	const least, most = 16 << 20, 1 << 40
	n, err := disk.Size(text)
	if err != nil {
		return 0, usage("--result-room: %w", err)
	}
	if n < least || n > most {
		return 0, usage("--result-room is %s: want 16MiB to 1TiB", text)
	}
	return int64(n), nil
}

// Prepare reads what the flags name, as far as the roles need it, and opens the
// doors' listeners. builtin holds the built-in contracts. Close undoes it.
func Prepare(ctx context.Context, o Options, roles wire.Roles, builtin fs.FS, log *slog.Logger) (_ *Setup, err error) {
	clock := wire.NewSystemClock()
	s := &Setup{options: o, Config: wire.Config{
		Roles: roles, Clock: clock, Log: log, Build: Build(), Run: wire.NewID(),
		PublicURL: o.PublicURL, Workers: o.Workers, AllowHTTP: o.AllowHTTP,
		Resolve: outbound.SystemReferences(), Dial: outbound.SystemDialer(nil),
	}}
	c := &s.Config
	if roles.Any(wire.Ingest | wire.Poller | wire.Webhooks) {
		if err := s.providers(builtin); err != nil {
			return nil, err
		}
	}
	if roles.Any(wire.Ingest) && o.PolicyFile != "" {
		if c.Rules, err = wire.OpenPolicy(wire.PolicyConfig{Path: o.PolicyFile, Now: clock.Now, Log: log}); err != nil {
			return nil, &Error{true, "docs/POLICY.md has the form of the file; counterfoil policy check looks at one", err}
		}
	}
	if roles.Any(wire.Poller) && (o.Workers < 1 || o.Workers > 1024) {
		return nil, usage("--workers is %d: want 1 to 1024", o.Workers)
	}
	if roles.Any(wire.Poller) && o.ResultRoom != "" {
		if c.ResultRoom, err = resultRoom(o.ResultRoom); err != nil {
			return nil, err
		}
	}
	if roles.Any(wire.Projector) {
		if c.Tell, err = o.tell(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if roles.Any(wire.Ingest | wire.Webhooks) {
		if c.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen); err != nil {
			return nil, &Error{true, "--listen names another address", fmt.Errorf("listen: %w", err)}
		}
	}
	if o.AdminListen != "" {
		if c.Admin, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.AdminListen); err != nil {
			return nil, &Error{true, "a second server needs its own --admin-listen: name another address, or '' for no metrics", fmt.Errorf("listen for metrics: %w", err)}
		}
	}
	return s, nil
}

// providers reads contracts, accounts and where calls may lead.
func (s *Setup) providers(builtin fs.FS) (err error) {
	o, c := s.options, &s.Config
	if c.Accounts, c.HookSecrets, err = o.accounts(); err != nil {
		return err
	}
	if c.Policy, err = o.policy(); err != nil {
		return err
	}
	if s.parsed, c.Sources, err = wire.LoadContracts(builtin, o.Contracts); err != nil {
		return &Error{Usage: true, Err: err}
	}
	c.Contracts = s.parsed
	for name := range c.Accounts {
		provider, _, _ := strings.Cut(name, "/")
		if s.parsed[provider] == nil {
			return usage("no contract is named %q: --base-url and --credential name a provider", provider)
		}
	}
	for provider := range c.HookSecrets {
		if s.parsed[provider] == nil || s.parsed[provider].Webhook == nil {
			return usage("--hook-secret: no contract named %q has webhooks", provider)
		}
	}
	if o.CredsFile != "" {
		return s.Follow(o.CredsFile, false)
	}
	return nil
}

// Follow takes up a credentials file. optional says that there may be none.
func (s *Setup) Follow(path string, optional bool) (err error) {
	s.Config.Credentials, err = wire.OpenCredentials(wire.CredentialsConfig{
		Path: path, Optional: optional, Contracts: s.parsed, AllowHTTP: s.options.AllowHTTP,
		Now: s.Config.Clock.Now, Log: s.Config.Log,
	})
	if err != nil {
		return &Error{true, "docs/CREDENTIALS.md has the form of the file", err}
	}
	return nil
}

// Close closes the listeners, which Run does too.
func (s *Setup) Close() error {
	var errs []error
	for _, l := range []net.Listener{s.Config.Listener, s.Config.Admin} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// files reads the identity and the keys where the roles need them.
func (s *Setup) files(roles wire.Roles) (err error) {
	o, c := s.options, &s.Config
	if roles.Any(wire.Ingest | wire.Poller | wire.Webhooks) {
		if o.Identity == "" {
			return usage("--identity: name the identity file of this installation, the same for every role")
		}
		if c.Identity, err = wire.ReadIdentity(o.Identity); err != nil {
			return &Error{Err: err, Hint: "counterfoil provision --identity makes it for an empty ledger; otherwise put it back from its backup: with another one the same requests would make second jobs"}
		}
	}
	if roles.Any(wire.Ingest) {
		if o.Keys == "" {
			return usage("--keys: name the file of API keys")
		}
		if c.Keys, err = ingest.OpenKeys(o.Keys, c.Clock.Now); err != nil {
			return &Error{Err: err, Hint: "counterfoil key add --keys FILE makes it with a first key"}
		}
	}
	return nil
}

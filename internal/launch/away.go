package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/wire"
)

const (
	maxCreds                    = 16 << 10 // bytes of a NATS credentials file
	leastDifference             = time.Second
	mostDifference              = 5 * time.Minute
	mostDrain                   = 10 * time.Minute
	storeHint                   = "--nats, --nats-creds and --nats-ca say where the servers are and who we are to them; the servers need JetStream"
	provisionHint               = "counterfoil provision makes the streams, with the credentials of whoever may administer them"
	natsSchemes, natsTLSSchemes = "nats ws", "tls wss"
)

// Connect connects to the servers named. replicas is for those who provision; 0
// takes the number that the streams were provisioned with. regained is called
// when a lost connection is there again; nil calls nobody.
func (s *Store) Connect(ctx context.Context, name string, replicas int, regained func(), log *slog.Logger) (*journal.NATS, error) {
	config, err := s.config(name, log)
	if err != nil {
		return nil, err
	}
	config.Replicas, config.Regained = replicas, regained
	n, err := journal.Connect(ctx, config)
	if err != nil {
		return nil, &Error{Err: err, Hint: storeHint}
	}
	return n, nil
}

// door takes what agents publish there.
func (s *Store) door(name string, log *slog.Logger) (*journal.Door, error) {
	config, err := s.config(name, log)
	if err != nil {
		return nil, err
	}
	d, err := journal.OpenDoor(config)
	if err != nil {
		return nil, &Error{Err: err, Hint: storeHint}
	}
	return d, nil
}

// config is how the servers are reached.
func (s *Store) config(name string, log *slog.Logger) (journal.Config, error) {
	if err := s.check(); err != nil {
		return journal.Config{}, err
	}
	config := journal.Config{URLs: s.URLs, Name: name, Logger: log}
	var err error
	if config.TLS, err = s.tls(); err != nil {
		return journal.Config{}, err
	}
	if s.Creds != "" {
		config.Credentials = func() ([]byte, error) {
			text, _, err := outbound.ReadPrivate(s.Creds, maxCreds)
			if err != nil {
				return nil, fmt.Errorf("--nats-creds: %w", err)
			}
			return text, nil
		}
	}
	return config, nil
}

// check refuses URLs with secrets in them and ones that are none.
func (s *Store) check() error {
	if s.URLs == "" {
		return usage("--nats: name the servers, as in nats://host:4222")
	}
	for _, text := range strings.Split(s.URLs, ",") {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || !strings.Contains(natsSchemes+" "+natsTLSSchemes, u.Scheme):
			return usage("--nats: want nats://HOST:PORT or tls://HOST:PORT, comma separated") // not quoted: it may hold a password
		case u.User != nil:
			return usage("--nats holds a user or a password, which everyone on the machine can read: put credentials into a file and name it with --nats-creds")
		}
	}
	if (s.Cert == "") != (s.Key == "") {
		return usage("--nats-cert and --nats-key go together")
	}
	return nil
}

// tls gives what the flags say of certificates, nil if nothing. Our own is read
// at each connection, so that a renewed one counts.
func (s *Store) tls() (*tls.Config, error) {
	if s.CA == "" && s.Cert == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA != "" {
		text, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, usage("--nats-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, usage("--nats-ca: %s holds no certificate in PEM", s.CA)
		}
	}
	if s.Cert != "" {
		own := func() (*tls.Certificate, error) {
			cert, err := os.ReadFile(s.Cert)
			if err != nil {
				return nil, usage("--nats-cert: %w", err)
			}
			key, _, err := outbound.ReadPrivate(s.Key, maxCreds)
			if err != nil {
				return nil, usage("--nats-key: %w", err)
			}
			defer clear(key)
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				return nil, usage("--nats-cert and --nats-key: %w", err)
			}
			return &pair, nil
		}
		if _, err := own(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() }
	}
	return config, nil
}

// away is a set of roles on a store that runs elsewhere.
type away struct {
	service *wire.Service
	setup   *Setup
	nats    *journal.NATS
	door    *journal.Door // of agents; nil if none are let in
}

// open makes the roles ready to run. It refuses streams that are missing or not
// as they were provisioned.
func open(ctx context.Context, o Options, roles wire.Roles, builtin fs.FS, log *slog.Logger) (_ *away, err error) {
	roles = roles.OrAll()
	if o.ClockDifference < leastDifference || o.ClockDifference > mostDifference {
		return nil, usage("--clock-difference is %s: want %s to %s", o.ClockDifference, leastDifference, mostDifference)
	}
	if roles.Any(wire.Poller) && (o.Drain < 0 || o.Drain > mostDrain) {
		return nil, usage("--drain is %s: want 0s to %s", o.Drain, mostDrain)
	}
	setup, err := Prepare(ctx, o, roles, builtin, log)
	if err != nil {
		return nil, err
	}
	a := &away{setup: setup}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	if err := setup.files(roles); err != nil {
		return nil, err
	}
	c := &setup.Config
	regained := make(chan struct{}, 1)
	again := func() {
		select {
		case regained <- struct{}{}:
		default: // one is waiting already
		}
	}
	if a.nats, err = o.Store.Connect(ctx, "counterfoil "+c.Run, 0, again, log); err != nil {
		return nil, err
	}
	if err := a.nats.Check(ctx); err != nil {
		return nil, checkHint(err)
	}
	c.Store, c.Check, c.Regained, c.StoreTime = a.nats, a.nats.Check, regained, a.nats.Time
	c.Intents = o.Intents
	c.ClockDifference, c.Seats, c.Drain = o.ClockDifference, seats{a.nats}, o.Drain
	if a.service, err = wire.New(ctx, *c); err != nil {
		return nil, err
	}
	if roles.Any(wire.Ingest) && o.Intents {
		if a.door, err = o.Store.door("counterfoil door "+c.Run, log); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func checkHint(err error) error {
	var drift *journal.DriftError
	switch {
	case errors.Is(err, journal.ErrNotProvisioned):
		return &Error{Err: err, Hint: provisionHint}
	case errors.As(err, &drift):
		return &Error{Err: err, Hint: "a stream was changed: whoever administers the streams puts the named setting back"}
	}
	return err
}

// Run runs the roles until ctx ends. out hears when they do their work.
func (s *Setup) Run(ctx context.Context, service *wire.Service, out io.Writer) error {
	c := &s.Config
	for _, p := range service.Providers(ctx) {
		c.Log.InfoContext(ctx, "provider", "name", p.Name, "guarantee", string(p.Guarantee), "account", p.Account, "unusable", p.Unusable)
	}
	if c.Admin != nil {
		c.Log.InfoContext(ctx, "metrics and health", "address", c.Admin.Addr().String())
	}
	return service.Run(ctx, func() {
		if c.Listener == nil {
			fmt.Fprintln(out, "ready")
			return
		}
		fmt.Fprintf(out, "ready on http://%s\n", c.Listener.Addr())
	})
}

// seats is the journal's election as the projector wants it.
type seats struct{ nats *journal.NATS }

func (s seats) TakeSeat(ctx context.Context, partition int) (projector.Seat, error) {
	seat, err := s.nats.TakeSeat(ctx, partition)
	if err != nil {
		return nil, err
	}
	return seat, nil
}

// close lets go of everything.
func (a *away) close() error {
	err := a.setup.Close()
	if a.door != nil {
		a.door.Close()
	}
	if a.nats != nil {
		a.nats.Close()
	}
	return err
}

// Command is a command that holds some roles and no store. It writes to out when its
// roles do their work, and its log to logs.
func Command(use, short, long string, roles wire.Roles, out, logs io.Writer) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Version: Build(),
		SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("got %d arguments: want none", len(args))
			}
			return nil
		},
		PersistentPreRunE: Given,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := Log(logs, o.LogLevel)
			if err != nil {
				return err
			}
			return Serve(cmd.Context(), o, roles, log, out)
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	o.Flags(cmd.Flags(), roles)
	o.AwayFlags(cmd.Flags(), roles)
	return cmd
}

// Main is the program of a command that holds some roles and no store: it reads
// the command line, runs them, and gives the exit code.
func Main(use, short, long string, roles wire.Roles) int {
	cmd := Command(use, short, long, roles, os.Stdout, os.Stderr)
	err := cmd.ExecuteContext(UntilStopped())
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", use, err)
	var with *Error
	if !errors.As(err, &with) {
		return 1
	}
	if with.Hint != "" {
		fmt.Fprintf(os.Stderr, "hint: %s\n", with.Hint)
	}
	if with.Usage {
		return 2
	}
	return 1
}

// Serve opens the roles, runs them until ctx ends, and lets go.
func Serve(ctx context.Context, o Options, roles wire.Roles, log *slog.Logger, out io.Writer) error {
	a, err := open(ctx, o, roles, contracts.FS, log)
	if err != nil {
		return err
	}
	return errors.Join(a.setup.Run(ctx, a.service, out), a.close())
}

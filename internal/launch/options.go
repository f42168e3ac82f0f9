package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/counterfoil/counterfoil/internal/httprule"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// Options is what can be said to roles on the command line, whatever store they
// run on. Which of it a role needs is said by Flags.
type Options struct {
	Listen      string
	AdminListen string // "": no metrics
	LogLevel    string

	Workers     int
	ResultRoom  string   // as 512MiB; "": the default
	Contracts   string   // directory
	CredsFile   string   // credentials file
	PolicyFile  string   // rules on what is asked for; "": none
	BaseURLs    []string // PROVIDER[/ACCOUNT]=URL
	Credentials []string // PROVIDER[/ACCOUNT]=REFERENCE
	HookSecrets []string // PROVIDER=REFERENCE
	PublicURL   string
	AllowHTTP   bool
	Networks    []string // CIDR
	NotifyExec  string   // "": the log is all there is

	Store Store
	// Of a process on a store elsewhere.
	Identity        string // file
	Keys            string // file
	Intents         bool   // the servers let agents in
	ClockDifference time.Duration
	Drain           time.Duration
}

// Store is where a store that runs elsewhere is reached.
type Store struct {
	URLs  string // comma separated; "": none
	Creds string // file: NATS credentials, or a bare nkey seed
	CA    string // file of certificates the servers' must lead to
	Cert  string // file of our own certificate
	Key   string // file of its key
}

// Flags registers the flags that the roles have, whatever store they run on.
func (o *Options) Flags(f *pflag.FlagSet, roles wire.Roles) {
	if roles.Any(wire.Ingest | wire.Webhooks) {
		f.StringVar(&o.Listen, "listen", "127.0.0.1:7766", "address of the HTTP interface")
	}
	if roles.Any(wire.Ingest | wire.Poller | wire.Webhooks) {
		f.StringVar(&o.Contracts, "contracts", "", "directory of your own contracts; one of a built-in name replaces it")
		f.StringVar(&o.CredsFile, "credentials", "", "credentials file: which secret belongs to which account of which provider")
		f.StringArrayVar(&o.BaseURLs, "base-url", nil, "PROVIDER[/ACCOUNT]=URL instead of the contract's, repeatable")
		f.StringArrayVar(&o.Credentials, "credential", nil, "PROVIDER[/ACCOUNT]=env:NAME or file:PATH, repeatable")
		f.StringArrayVar(&o.HookSecrets, "hook-secret", nil, "PROVIDER=env:NAME or file:PATH that signs its webhooks, repeatable")
		f.StringVar(&o.PublicURL, "public-url", "", "where providers reach this service for webhooks")
		f.BoolVar(&o.AllowHTTP, "allow-http", false, "call providers by plain http, where credentials can be read on the way")
	}
	if roles.Any(wire.Ingest) {
		f.StringVar(&o.PolicyFile, "policy", "", "policy file: which requests another principal has to approve before anything is sent; see docs/POLICY.md")
	}
	if roles.Any(wire.Poller) {
		f.IntVar(&o.Workers, "workers", 32, "provider calls at once, 1 to 1024")
		f.StringVar(&o.ResultRoom, "result-room", "512MiB", "memory for results that are being fetched, all together, at least 16MiB; see docs/OPERATIONS.md")
		f.StringArrayVar(&o.Networks, "allow-network", nil, "ADDRESS/BITS that links and redirects of answers may lead to, beside public addresses, repeatable")
	}
	if roles.Any(wire.Projector) {
		f.StringVar(&o.NotifyExec, "notify-exec", "", "program to run, without a shell, for each operation that stops; a JSON object comes on its standard input")
	}
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.AdminListen, "admin-listen", "127.0.0.1:7767", "address of /metrics, /readyz and /healthz, which ask for no key; '' for none")
	f.Lookup("admin-listen").Annotations = map[string][]string{emptyMeans: {"none"}}
}

// Flags registers the flags that say where the store is.
func (s *Store) Flags(f *pflag.FlagSet) {
	f.StringVar(&s.URLs, "nats", "", "URL[,URL] of NATS servers that hold the streams")
	f.StringVar(&s.Creds, "nats-creds", "", "file with the NATS credentials, or with a bare nkey seed")
	f.StringVar(&s.CA, "nats-ca", "", "file of certificates that the servers' must lead to, PEM; turns TLS on")
	f.StringVar(&s.Cert, "nats-cert", "", "file of our certificate for the servers, PEM")
	f.StringVar(&s.Key, "nats-key", "", "file of its key, PEM")
}

// AwayFlags registers the flags of a process on a store elsewhere.
func (o *Options) AwayFlags(f *pflag.FlagSet, roles wire.Roles) {
	o.Store.Flags(f)
	if roles.Any(wire.Ingest | wire.Poller | wire.Webhooks) {
		f.StringVar(&o.Identity, "identity", "", "identity file of the installation, the same for every role (with --nats)")
	}
	if roles.Any(wire.Ingest) {
		f.StringVar(&o.Keys, "keys", "", "file of API keys (with --nats)")
		f.BoolVar(&o.Intents, "nats-agents", false, "the servers let agents in (counterfoil nats-users): take what they publish, and say so in the description of the API (with --nats)")
	}
	if roles.Any(wire.Poller) {
		f.DurationVar(&o.Drain, "drain", 20*time.Second, "how long calls under way may go on once it is told to stop, 0s to 10m (with --nats)")
	}
	f.DurationVar(&o.ClockDifference, "clock-difference", 30*time.Second, "what the clocks of two processes may differ by, 1s to 5m (with --nats)")
}

// told are the variables of our environment that the notice's command gets. The
// others may be credentials.
var told = [...]string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// tell reads who is told of what comes to rest.
func (o *Options) tell() (func(context.Context, []byte) notice.Ran, error) {
	if o.NotifyExec == "" {
		return nil, nil
	}
	var environment []string
	for _, name := range told {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+value)
		}
	}
	tell, err := notice.Command(o.NotifyExec, environment)
	if err != nil {
		return nil, &Error{true, "--notify-exec names one program that can be run, without arguments", fmt.Errorf("--notify-exec: %w", err)}
	}
	return tell, nil
}

// policy reads the networks that links and redirects may lead to.
func (o *Options) policy() (p outbound.Policy, err error) {
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
func (o *Options) accounts() (map[string]poller.Account, map[string]string, error) {
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
	return accounts, hooks, errors.Join(err, wrong)
}

// Package wire builds running roles from a configuration.
//
// It owns what the roles share and none of them may: the clock, randomness, the
// process's run id, credentials by reference, and the order of starting and
// stopping. Starting: provision and check the streams, keep the contracts, take
// over the partitions, then open the doors. Stopping: close the doors, let
// workers record what they have seen, then let go.
package wire

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/api"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/doctor"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/mcpapi"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/projector"
	"github.com/counterfoil/counterfoil/internal/webhook"
	"github.com/counterfoil/counterfoil/internal/workflow"
	"github.com/counterfoil/counterfoil/projections"
)

// Clock is the process's time.
type Clock interface {
	Now() time.Time
	Monotonic() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
	SleepOr(ctx context.Context, d time.Duration, woken <-chan struct{}) error
}

// SystemClock is the machine's clock.
type SystemClock struct{ outbound.SystemClock }

// NewSystemClock gives the machine's clock.
func NewSystemClock() SystemClock { return SystemClock{outbound.NewSystemClock()} }

// Sleep waits, or returns ctx's error.
func (c SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	return c.SleepOr(ctx, d, nil)
}

// SleepOr sleeps until woken is closed, d has passed, or ctx ends, which is the error.
func (SystemClock) SleepOr(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NewID gives 20 random characters of a-z and 2-7: 100 bits.
func NewID() string {
	var b [13]byte
	_, _ = rand.Read(b[:]) // never fails; it ends the process instead
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))[:20]
}

// Config is what runs. Every field is required unless it says otherwise.
type Config struct {
	Store journal.Store
	Clock Clock
	Log   *slog.Logger
	Build string // program version, for history records and the version header

	// Run is the id of this run of the process. Gone says whether a run is
	// proved to be over; nil where nothing proves it.
	Run  string
	Gone func(run string) bool
	// Alone says that this process holds all roles of the installation.
	Alone bool
	// Roles are those that run here; zero means all. What only other roles need
	// may be left out: the identity, contracts and accounts where the projector
	// runs alone, Keys without Ingest, Listener without Ingest and Webhooks.
	Roles Roles
	// Local says that this process projects and that its one poller goes by what
	// the projector knows (DESIGN §9). False where pollers stand for processes of
	// their own.
	Local bool

	Identity  Identity
	Contracts map[string]*contract.Contract
	Sources   map[string][]byte // the contracts' bytes by name
	// Accounts by "provider/account", or by "provider" for all of its accounts.
	Accounts map[string]poller.Account
	// HookSecrets are credential references by provider; a provider without
	// one cannot call back.
	HookSecrets map[string]string
	// Credentials is the credentials file, for what Accounts and HookSecrets do
	// not say. Nil means none.
	Credentials *Credentials
	// Rules is the policy file, for Ingest. Nil means none.
	Rules *PolicyFile
	// PublicURL is where providers reach this service; "" if they cannot.
	PublicURL string

	Keys *ingest.Keys
	// Intents says that agents can reach INTENTS: it is told in the description.
	Intents  bool
	Listener net.Listener // of the HTTP interface; closed by Run
	Workers  int          // provider calls at once, all providers together

	// ResultRoom is what results that are being fetched take in memory, all together,
	// in bytes: outbound.Config.Room. 0: its default.
	ResultRoom int64

	Resolve   outbound.CredentialResolver
	Dial      outbound.Dialer
	AllowHTTP bool // providers by plain http
	// Policy is about links and redirects to origins that neither a contract nor
	// an account names. Zero: public addresses only.
	Policy outbound.Policy

	// Check says what of the streams is not as it was provisioned; it is asked
	// every minute, and whenever Regained gives something. Nil where nobody else
	// can change them.
	Check func(ctx context.Context) error
	// Regained gives something when the connection to the store was lost and
	// is there again; nil where that cannot be.
	Regained <-chan struct{}

	// Sync is how the store writes, always or interval; "" where that cannot be
	// seen. It is only reported.
	Sync string
	// Fsyncs is how often the store asked the disk to keep what callers wait for;
	// nil where it cannot be known.
	Fsyncs func() uint64
	// Failing says why the store can write no more; nil where that cannot be asked.
	Failing func() error
	// StoreTime is the store's clock as it is now; nil where it cannot be asked.
	StoreTime func(ctx context.Context) (time.Time, error)

	// ClockDifference is what clocks of two processes may differ by; 0 where
	// one process holds all roles.
	ClockDifference time.Duration

	// Seats elects which process projects which partition. Nil: this one projects
	// all of them.
	Seats projector.Seats
	// Drain is how long calls to providers that are under way may go on when the
	// process is told to stop; 0 breaks them off at once.
	Drain time.Duration

	// Admin is where metrics and health are served; closed by Run. Nil: nowhere.
	Admin net.Listener
	// FreeSpace gives the bytes that are free where the store writes. Below
	// DiskReserve nothing new is begun. Nil keeps no reserve.
	FreeSpace   func() (uint64, error)
	DiskReserve uint64
	// Tell tells people of an operation that came to rest (package notice); nil
	// leaves it at the log.
	Tell func(ctx context.Context, document []byte) notice.Ran

	// Through wraps what one poller uses, for demonstrations and drills that
	// kill it. Nil leaves it as it is.
	Through func(name string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller, error)
}

// Service is a configured set of roles. Its parts can be run one by one, which
// is how demonstrations and drills kill and replace a worker.
type Service struct {
	cfg       Config
	journal   *journal.Journal
	catalogue *Catalogue
	outbound  *outbound.Client
	ingest    *ingest.Service
	hooks     *webhook.Receiver
	clocks    *doctor.Clocks // of providers
	holds     *holds

	*watched

	generation journal.Generation
	board      *journal.Board // nil unless Local
	timers     *poller.Timers // nil unless Local

	// forbidden is why no permits are taken; nil while the streams are sound and the
	// clock is right.
	forbidden atomic.Pointer[forbidden]
	// ahead is by how much this process's clock was certainly ahead of the
	// store's when they were last compared, in ns; 0 or more.
	ahead atomic.Int64
}

// New builds the roles over a provisioned store.
func New(ctx context.Context, cfg Config) (*Service, error) {
	var s *Service // the series are read when it runs
	watched := watch(ctx, cfg, func() (creates, all int, known bool) { return s.holds.count() })
	cfg.Store = watched.metrics.Store(cfg.Store)
	cfg.Roles = cfg.Roles.OrAll()
	generation, err := generationOf(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s = &Service{cfg: cfg, watched: watched, generation: generation, clocks: doctor.NewClocks()}
	if cfg.Local {
		s.board = journal.NewBoard(cfg.Alone)
		s.timers = poller.NewTimers(func() time.Time { return cfg.Clock.Now().Add(-s.aheadBy()) })
	}
	s.journal = journalOver(cfg.Store, cfg.Clock, generation, s.board)
	if s.catalogue, err = NewCatalogue(ctx, s.journal, cfg.Contracts, cfg.Sources, cfg.Accounts, cfg.HookSecrets, cfg.Credentials, cfg.PublicURL); err != nil {
		return nil, err
	}
	if cfg.Roles.Any(Ingest|Poller|Webhooks) && len(cfg.Identity.Key) == 0 {
		return nil, errors.New("no identity is given, from which ids and keys are derived")
	}
	s.outbound, err = outbound.New(outbound.Config{
		Dial: cfg.Dial, Clock: cfg.Clock, Resolve: cfg.Resolve, AllowHTTP: cfg.AllowHTTP, Policy: cfg.Policy,
		UserAgent: "counterfoil/" + cfg.Build, IdentityKey: cfg.Identity.derive("credential identities 1"), MaxResponse: 1 << 30,
		Room: cfg.ResultRoom,
	})
	if err != nil {
		return nil, err
	}
	for _, provider := range s.catalogue.Providers() {
		// Before an operation can name it: a crash here leaves a name without
		// operations.
		if err := s.journal.RememberProvider(ctx, provider); err != nil {
			return nil, err
		}
	}
	s.holds = &holds{journal: s.journal, clock: cfg.Clock, log: cfg.Log}
	var bound func(provider, account, operation string) (baseURL, callbackURL string)
	var unusable func(ctx context.Context, provider, account string) ingest.Unusable
	if s.board != nil {
		bound = s.bound
		unusable = func(ctx context.Context, provider, account string) ingest.Unusable {
			why, _ := s.unusable(ctx, provider, account)
			return why
		}
	}
	s.ingest = ingest.New(ingest.Config{
		Bound: bound, Unusable: unusable, Journal: s.journal, Directory: s.catalogue, Clock: cfg.Clock, NewID: NewID, Build: cfg.Build,
		Installation: cfg.Identity.Installation, Key: cfg.Identity.Key,
		Source: "/ingest/" + cfg.Run, ClockDifference: cfg.ClockDifference, Full: s.full, HoldsChanged: s.holdsChanged,
		Policy: cfg.Rules.Policy, Quotas: s.catalogue.Quotas, Exceeded: s.metrics.Exceeded, Log: cfg.Log,
	})
	s.hooks = webhook.New(webhook.Config{
		Journal: s.journal, Directory: s.catalogue, Secrets: cfg.Resolve, Clock: cfg.Clock, Log: cfg.Log,
		Source: "/webhooks/" + cfg.Run, AddressKey: cfg.Identity.derive(webhookAddresses),
	})
	s.tellCredentials(ctx)
	cfg.Credentials.onChange(func() { s.tellCredentials(context.WithoutCancel(ctx)) })
	s.watchRoles()
	return s, nil
}

// generationOf gives the generation of the history to work on.
func generationOf(ctx context.Context, cfg Config) (journal.Generation, error) {
	j := journalOver(cfg.Store, cfg.Clock, 0, nil)
	if !cfg.Alone {
		// Whoever provisions the streams compares and begins a new one.
		return j.RecordedGeneration(ctx)
	}
	// Before anything is appended: power loss may have taken facts that the
	// history has seen.
	generation, began, err := j.CurrentGeneration(ctx)
	if began {
		cfg.Log.ErrorContext(ctx, "the history was ahead of the ledger, as after power loss without synced writes: it is derived anew", "generation", uint64(generation))
	}
	return generation, err
}

// RunDoors serves callers and providers until ctx ends, as far as the roles
// here do, and makes facts of what providers delivered.
func (s *Service) RunDoors(ctx context.Context) error {
	open := make(chan struct{})
	close(open)
	return s.runDoors(ctx, open)
}

// runDoors is RunDoors where the other roles do their work only once open is
// closed. Until then it says so, and how the service is.
func (s *Service) runDoors(ctx context.Context, open <-chan struct{}) error {
	options := api.Options{Log: s.cfg.Log, Now: s.cfg.Clock.Now, Ready: s.health.Ready, Open: open, Refused: s.metrics.Refused, Build: s.cfg.Build, Intents: s.cfg.Intents}
	group, ctx := errgroup.WithContext(ctx)
	if s.cfg.Roles.Any(Webhooks) {
		options.Webhooks = s.hooks
		group.Go(func() error {
			select {
			case <-open:
				return s.hooks.Run(ctx)
			case <-ctx.Done():
				return nil
			}
		})
	}
	if s.cfg.Roles.Any(Ingest) {
		group.Go(func() error { s.ingest.Run(ctx); return nil })
		group.Go(func() error { s.ingest.RunCosts(ctx); return nil })
		if !s.cfg.Local { // else the projector tells
			group.Go(func() error { s.ingest.RunOpen(ctx); return nil })
		}
		options.Service, options.Keys, options.Doctor = s.ingest, s.keys(), s.Doctor()
		options.MCP = mcpapi.NewHandler(mcpapi.Options{
			Build: s.cfg.Build, Log: s.cfg.Log, Now: s.cfg.Clock.Now, Stopping: ctx, Refused: s.metrics.Refused,
		}, s.ingest)
		if public, err := url.Parse(s.cfg.PublicURL); err == nil && public.Host != "" {
			options.Hosts = []string{public.Host}
		}
		group.Go(func() error {
			select {
			case <-open:
				return s.intake().Run(ctx)
			case <-ctx.Done():
				return nil
			}
		})
		group.Go(func() error { return s.cfg.Keys.RunUses(ctx, s.cfg.Clock, s.cfg.Log) })
		group.Go(func() error {
			select {
			case <-open:
				return s.ingest.RunKeys(ctx, s.cfg.Keys, s.cfg.Log)
			case <-ctx.Done():
				return nil
			}
		})
	}
	group.Go(func() error {
		return api.Serve(ctx, s.cfg.Listener, api.Handler(options), s.cfg.Log, s.metrics.Refused)
	})
	return group.Wait()
}

// Agent gives who the bearer of a key is, for a server that lets agents in.
func (s *Service) Agent(bearer string) (ingest.Caller, error) {
	// HTTP takes blanks around it for none of it. Here they are a part of what was sent.
	if strings.TrimSpace(bearer) != bearer {
		return ingest.Caller{}, ingest.Unauthenticated()
	}
	return s.keys().Authenticate([]string{"Bearer " + bearer})
}

// AgentStill gives what a key may do now that was let in before.
func (s *Service) AgentStill(principal, key string) (ingest.Caller, error) {
	return s.keys().Counts(principal, key)
}

func (s *Service) keys() denying { return denying{s.cfg.Keys, s.cfg.Credentials.table} }

// intake answers what agents publish on NATS.
func (s *Service) intake() *intake.Role {
	return intake.New(intake.Config{
		Journal: s.journal, Service: s.ingest, Caller: s.keys().Known,
		Clock: s.cfg.Clock, Log: s.cfg.Log, Source: "/ingest/" + s.cfg.Run, Count: s.metrics.Intent, Refused: s.metrics.Refused,
	})
}

func journalOver(store journal.Store, clock Clock, g journal.Generation, board *journal.Board) *journal.Journal {
	return journal.New(journal.Options{Store: store, Now: clock.Now, Sleep: clock.Sleep, NewID: NewID, Generation: g, Board: board})
}

// Provider is what can be said of one provider and account before anything is
// asked of it.
type Provider struct {
	Name      string
	Account   string
	Guarantee events.Guarantee
	Unusable  string // why its calls will not leave; "" if nothing is known
}

// Providers lists the configured ones by name, each with its default account
// and those that were configured beside it.
func (s *Service) Providers(ctx context.Context) []Provider {
	var list []Provider
	for _, name := range s.catalogue.Providers() {
		c, _ := s.catalogue.Current(name)
		for _, account := range s.catalogue.Accounts(name) {
			_, why := s.unusable(ctx, name, account)
			list = append(list, Provider{Name: name, Account: account, Guarantee: c.Guarantee(), Unusable: why})
		}
	}
	return list
}

// unusable says why calls to an account will not leave, for callers and in the words for
// the operator, which name the reference; both are "" if nothing is known.
func (s *Service) unusable(ctx context.Context, provider, account string) (ingest.Unusable, string) {
	c, ok := s.catalogue.Current(provider)
	if !ok {
		return "", ""
	}
	a, _ := s.catalogue.Account(provider, account) // it has no other error than none
	base := c.BaseURL
	if a.BaseURL != "" {
		base = a.BaseURL
	}
	switch {
	case strings.HasPrefix(strings.ToLower(base), "http:") && !s.cfg.AllowHTTP:
		return ingest.UnusablePlainHTTP, "its base URL is plain http: give --allow-http, or another base URL"
	case c.Credential.Place != contract.PlaceNone && a.Credential == "":
		return ingest.UnusableNoCredential, "no credential is configured: name one in credentials.yaml or with --credential"
	case a.Credential != "":
		if _, err := s.cfg.Resolve.Resolve(ctx, a.Credential); err != nil {
			return ingest.UnusableUnresolved, err.Error()
		}
	}
	return "", ""
}

// Journal is the service's journal.
func (s *Service) Journal() *journal.Journal { return s.journal }

// Run runs the roles until ctx ends or one of them fails. ready is called when
// they do their work: where this process is alone, every partition is projected
// up to the ledger's end by then.
func (s *Service) Run(ctx context.Context, ready func()) error {
	defer s.outbound.Close()
	check := s.checkFirst(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.RunChecks(ctx, check) })
	group.Go(func() error { return s.RunAdmin(ctx) })
	projected, joined := make(chan struct{}), make(chan struct{})
	if s.cfg.Roles.Any(Projector) {
		group.Go(func() error { return s.RunProjector(ctx, func() { close(projected) }) })
	} else {
		close(projected) // elsewhere, and no start waits for it
	}
	if s.cfg.Roles.Any(Poller) {
		group.Go(func() error {
			// Nothing is asked of a provider before the derived streams have been
			// compared with the ledger.
			select {
			case <-projected:
			case <-ctx.Done():
				return nil
			}
			return s.runPoller(ctx, s.instance(), func() { close(joined) })
		})
	} else {
		close(joined)
	}
	open := make(chan struct{})
	if s.cfg.Roles.Any(Ingest | Webhooks) {
		// The kernel takes connections from the start on: who comes early would wait
		// for an answer for as long as it takes.
		group.Go(func() error { return s.runDoors(ctx, open) })
	}
	group.Go(func() error {
		for _, first := range []chan struct{}{projected, joined} {
			select {
			case <-first:
			case <-ctx.Done():
				return nil
			}
		}
		close(open)
		ready()
		return nil
	})
	return group.Wait()
}

// holdsChanged makes a hold that was placed or released here count here. Where
// that fails, the reading that follows does it, and until then holdsTrusted.
func (s *Service) holdsChanged(ctx context.Context) {
	if err := s.holds.read(ctx); err != nil {
		s.cfg.Log.WarnContext(ctx, "the holds could not be read", "error", err)
	}
}

// hold gives what rests for a provider, by an operator's word or for want of
// room, whichever is more.
func (s *Service) hold(provider string) workflow.Hold {
	placed, room := s.holds.hold(provider), s.watched.hold(provider)
	if projections.StrongerHold(events.HoldScope(room.Scope), events.HoldScope(placed.Scope)) {
		return room
	}
	return placed
}

// instance names this process's poller. Where others run elsewhere it is the
// run's id, so that the ledger tells them apart.
func (s *Service) instance() string {
	if s.cfg.Alone {
		return "1"
	}
	return s.cfg.Run
}

// mayPermit says why a poller may permit no call with side effects.
func (s *Service) mayPermit() error { return errors.Join(s.permits(), s.holds.permits()) }

// RunProjector projects all partitions, or its share of them, and tells of what comes to rest.
func (s *Service) RunProjector(ctx context.Context, ready func()) error {
	partitions := make([]int, journal.Partitions)
	for i := range partitions {
		partitions[i] = i
	}
	cfg := projector.Config{
		Journal: s.journal, Clock: s.cfg.Clock, NewID: NewID, Log: s.cfg.Log,
		Source: "/projector/" + s.cfg.Run, Build: s.cfg.Build, Gone: s.gone, Alone: s.cfg.Alone,
		Hold: s.hold, Observe: observer{s.metrics, s},
	}
	if s.timers != nil {
		cfg.Timers = s.timers
	}
	p := projector.New(cfg)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.holds.follow(ctx) })
	group.Go(func() error {
		if s.cfg.Seats != nil {
			return p.RunShared(ctx, partitions, s.cfg.Seats, ready)
		}
		return p.Run(ctx, partitions, ready)
	})
	group.Go(func() error { return s.runWatch(ctx) })
	return group.Wait()
}

// RunPoller runs one poller under a name of its own. joined is called once
// wake-ups would reach it.
func (s *Service) RunPoller(ctx context.Context, name string, joined func()) error {
	return s.runPoller(ctx, name, joined)
}

// runPoller calls joined once wake-ups would reach it.
func (s *Service) runPoller(ctx context.Context, name string, joined func()) error {
	store, call := s.cfg.Store, poller.Caller(s.clocks.Through(s.outbound))
	if s.cfg.Through != nil {
		var err error
		if store, call, err = s.cfg.Through(name, store, call); err != nil {
			return fmt.Errorf("start poller %s: %w", name, err)
		}
	}
	j := journalOver(store, s.cfg.Clock, s.generation, s.board)
	// A process that shares the limits counts its part in the store; one that is
	// alone counts what a run before it may have asked for.
	process, fresh := name+"/"+s.cfg.Run, false
	if s.cfg.Alone {
		_, used, err := j.LedgerTime(ctx)
		if err != nil {
			return err
		}
		process, fresh = "", !used
	}
	p := poller.New(poller.Config{
		Limits: s.catalogue.Calls, Process: process, Fresh: fresh,
		Journal: j, Call: call, Directory: s.catalogue, Clock: s.cfg.Clock, NewID: NewID, Log: s.cfg.Log,
		Callback: s.callback, Source: "/poller/" + name, Owner: name + "/" + s.cfg.Run, Gone: s.gone,
		Permits: s.mayPermit, Drain: s.cfg.Drain, Monotonic: s.cfg.Clock.Monotonic, Hold: s.hold, Observe: s.metrics.Exchange,
		Ahead: s.aheadBy,
	})
	s.metrics.Limited(p.Uses)
	providers := &attended{s: s, journal: j, poller: p, joined: map[string]bool{}}
	first, err := providers.begin(ctx)
	switch {
	case ctx.Err() != nil:
		return nil // told to stop before it had begun
	case err != nil:
		return err
	}
	// Before the first lease: what is held is known before anything can leave.
	if err := s.holds.begin(ctx); err != nil {
		return nil //nolint:nilerr // ctx ended first
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.holds.follow(ctx) })
	group.Go(func() error { return p.Run(ctx, first, s.cfg.Workers) })
	joined()
	if !s.cfg.Alone {
		group.Go(func() error {
			p.Keep(ctx)
			return nil
		})
		group.Go(func() error { return providers.follow(ctx) })
	}
	return group.Wait()
}

// gone says whether the run named in an owner is proved to be over.
func (s *Service) gone(owner string) bool {
	_, run, ok := strings.Cut(owner, "/")
	return ok && s.cfg.Gone != nil && s.cfg.Gone(run)
}

// webhookAddresses is what the keys of callback addresses are derived for. With
// another, addresses that providers hold count as none.
const webhookAddresses = "webhook addresses 1"

// bound says where an operation's calls go and where the provider may call back. For
// an account that cannot be used it is the contract's: a create is built, and
// never sent so.
func (s *Service) bound(provider, account, operation string) (baseURL, callbackURL string) {
	if a, err := s.catalogue.Account(provider, account); err == nil {
		baseURL = a.BaseURL
	}
	return baseURL, s.callback(provider, account, operation)
}

// callback is the address a provider may call for an operation. Its key is in
// the query, which bodies lose before they are stored.
func (s *Service) callback(provider, account, operation string) string {
	if !s.catalogue.Reachable(provider, account) {
		return ""
	}
	return strings.TrimRight(s.cfg.PublicURL, "/") + "/hooks/" + provider + "/" + operation +
		"?key=" + webhook.AddressKey(s.cfg.Identity.derive(webhookAddresses), provider, account, operation)
}

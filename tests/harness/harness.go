// Package harness runs a whole installation inside a testing/synctest bubble:
// the real embedded store on a directory of its own, all roles, the HTTP
// interface on an in-memory listener, and the simulator as every provider. Time
// is the bubble's, so hours of waiting take no time.
//
// Tests use it from outside: through the HTTP interface, the simulator's log,
// and the facts in the ledger. Everything must be made inside the bubble.
package harness

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/broker/brokertest"
	"github.com/counterfoil/counterfoil/internal/contract"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/notice"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/simulator"
)

// Token is the credential the simulated providers ask for.
const Token = "harness-provider-token"

// HookSecret is what they sign webhooks with.
const HookSecret = "harness-hook-secret"

// Options of a House. The zero value is a service with the three example
// contracts and one poller.
type Options struct {
	// Contracts are further contracts, by file name, as a user's directory
	// holds them.
	Contracts map[string]string
	// Builtin are the built-in contracts that are there; nil means the three
	// examples. Each takes time to start, and asks for work in fake time too.
	Builtin []string
	// Edit changes the text of every contract before it is read.
	Edit func(name, text string) string
	// Through wraps the store the service uses, to inject faults.
	Through func(journal.Store) journal.Store
	// ThroughPoller wraps what one poller uses, by its name.
	ThroughPoller func(name string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller)
	// Pollers is how many pollers run, each with its own name; 0 means 1.
	Pollers int
	// Woken lets pollers go by wake-ups alone, as those of other processes do. It
	// is so anyway where there are several or ThroughPoller is set: they stand for
	// processes.
	Woken bool
	// NoPoller starts none; Poller starts one.
	NoPoller bool
	// Webhooks lets providers call back.
	Webhooks bool
	// SharedHooks makes them call one address for all operations, as those do
	// that know no address for each job.
	SharedHooks bool
	// Secrets are further values behind env: references.
	Secrets map[string]string
	// Accounts are further accounts, or replacements.
	Accounts map[string]poller.Account
	// Names are the addresses of host names, one for each dial, the last for all
	// further ones. Every other name has a public address. The simulator answers
	// at all of them.
	Names map[string][]string
	// Policy is where links and redirects may lead beside public addresses.
	Policy outbound.Policy
	// Credentials is the text of a credentials file. With one, no account and no
	// webhook secret is configured but what it and Accounts say.
	Credentials string
	// Rules is the text of a policy file; "" for none.
	Rules string
	// Log is where the service's log goes; nil means nowhere.
	Log *slog.Logger
	// Workers is how many provider calls run at once; 0 means enough that each
	// provider has a worker of its own. With fewer than two for each the workers
	// ask for work all the time, which makes an hour of fake time a long one.
	Workers int
	// FreeSpace and DiskReserve are as in wire.Config; nil keeps no reserve.
	FreeSpace   func() (uint64, error)
	DiskReserve uint64
	// Tell is told of operations that come to rest, beside the log.
	Tell func(ctx context.Context, document []byte) notice.Ran
	// Correlate makes the simulator tell operations apart by the member
	// "correlation" of the create's body and not by their token, so that a
	// changed token is seen as a duplicate.
	Correlate bool
}

// House is a running installation.
type House struct {
	T      testing.TB
	Sim    *simulator.Simulator
	Client *client.Client
	HTTP   *http.Client // to the service, with any header
	Admin  *http.Client // to its metrics and health
	Bearer string
	Broker *broker.Broker
	Store  journal.Store // past the faults
	// Journal reads what the service wrote, past the faults.
	Journal *journal.Journal
	Service *wire.Service

	options Options
	texts   memFS                         // of the contracts, as they were read last
	parsed  map[string]*contract.Contract // from texts
	sources map[string][]byte             // of them
	dir     string
	door    *simulator.MemoryListener // of the simulator
	nats    *journal.NATS
	stop    context.CancelFunc
	group   *errgroup.Group
	ctx     context.Context //nolint:containedctx // the run's own, ended by Stop
	life    *life           // of the running service

	mu      sync.Mutex
	workers map[string]context.CancelFunc
	secrets map[string]string // behind env: references; guarded by mu
	dials   map[string]int    // by host name; guarded by mu
}

// New starts an installation and a simulator. It stops at the test's end.
func New(t testing.TB, o Options) *House {
	t.Helper()
	h := &House{T: t, options: o, dir: t.TempDir(), dials: map[string]int{}}
	h.secrets = map[string]string{"HARNESS_TOKEN": Token, "HARNESS_HOOK": HookSecret}
	maps.Copy(h.secrets, o.Secrets)
	var hooks *http.Client
	if o.Webhooks {
		hooks = &http.Client{Transport: lateDial{h}}
	}
	h.Sim = simulator.New(simulator.Config{Now: time.Now, Seed: 1, Webhooks: hooks, WebhookSecret: []byte(HookSecret), CorrelateAlways: o.Correlate})
	h.door = h.Sim.ListenMemory()
	h.Start()
	t.Cleanup(func() {
		h.Sim.Close()
		h.Stop()
		brokertest.Outlast()
	})
	return h
}

// publicAddress is that of a name for which a test gives none.
const publicAddress = "93.184.216.34"

// dial connects to the simulator after it has asked about the address that the
// name has here, as sockets do.
func (h *House) dial(ctx context.Context, network, addr string, control outbound.Control) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ip := publicAddress
	if literal, err := netip.ParseAddr(host); err == nil {
		ip = literal.Unmap().String()
	} else if list := h.options.Names[host]; len(list) > 0 {
		h.mu.Lock()
		ip = list[min(h.dials[host], len(list)-1)]
		h.dials[host]++
		h.mu.Unlock()
	}
	if err := control(ctx, network, net.JoinHostPort(ip, port), nil); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return h.door.DialContext(ctx, network, addr)
}

// lateDial sends webhooks to the service as it runs now.
type lateDial struct{ h *House }

func (l lateDial) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.h.options.SharedHooks {
		r = r.Clone(r.Context())
		r.URL.Path = path.Dir(r.URL.Path)
	}
	return l.h.HTTP.Transport.RoundTrip(r)
}

// Mount makes a well-behaved simulated provider for the contract's default
// account; its options and rules can be changed while it runs. The contract's
// calls go to it from the next Start on, so mount first, or mount under a name
// of the built-in contracts, whose accounts are configured already.
func (h *House) Mount(dialect simulator.Dialect, name string, o simulator.Options, rules ...simulator.Rule) *simulator.Mount {
	o.Auth = simulator.Auth{Bearer: Token}
	m := h.Sim.Mount("/"+name, dialect, rules...)
	m.Configure(o)
	return m
}

// seen lets a test see each answer as it comes.
var seen = client.Retry{Tries: 1}

// Start starts the service on the House's directory, as after a stop.
func (h *House) Start() {
	h.T.Helper()
	must := func(err error) {
		h.T.Helper()
		if err != nil {
			h.T.Fatalf("start the service: %v", err)
		}
	}
	o := h.options
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	clock := wire.NewSystemClock()
	run := wire.NewID()
	var err error
	h.Broker, err = broker.Start(broker.Config{Dir: h.dir, Run: run, Now: time.Now, Sync: broker.SyncInterval, SyncEvery: 24 * time.Hour})
	must(err)
	h.nats, err = journal.Connect(h.ctx, journal.Config{Dial: h.Broker.InProcess, Name: "harness", Replicas: 1})
	must(err)
	must(h.nats.Provision(h.ctx))
	h.Store = h.nats
	h.Journal = journal.New(journal.Options{Store: h.nats, Now: time.Now, Sleep: clock.Sleep, NewID: wire.NewID})
	store := journal.Store(h.nats)
	if o.Through != nil {
		store = o.Through(store)
	}
	h.life = &life{}
	store = mortal{h.life, store}

	// A contract is not changed once it is read, so a restart may take the one
	// from before where the text is the same; to read them takes a third of a start.
	if texts := h.contracts(); h.parsed == nil || !maps.Equal(texts, h.texts) {
		h.parsed, h.sources, err = wire.LoadContracts(texts.fs(), "")
		must(err)
		h.texts = texts
	}
	parsed, sources := maps.Clone(h.parsed), maps.Clone(h.sources)
	accounts := map[string]poller.Account{}
	if o.Credentials != "" {
		h.SetCredentials(o.Credentials)
	}
	file, err := wire.OpenCredentials(wire.CredentialsConfig{
		Path: h.credentialsPath(), Optional: true, Contracts: parsed, AllowHTTP: true, Now: time.Now, Log: log,
	})
	must(err)
	var rules *wire.PolicyFile
	if o.Rules != "" {
		path := filepath.Join(h.dir, "policy.yaml")
		must(os.WriteFile(path, []byte(o.Rules), 0o600))
		rules, err = wire.OpenPolicy(wire.PolicyConfig{Path: path, Now: time.Now, Log: log})
		must(err)
	}
	for name := range parsed {
		if o.Credentials != "" {
			continue
		}
		accounts[name] = poller.Account{BaseURL: "http://provider.test/" + name, Credential: "env:HARNESS_TOKEN"}
	}
	maps.Copy(accounts, o.Accounts)

	_, used, err := h.Journal.LedgerTime(h.ctx)
	must(err)
	identity, err := wire.LoadIdentity(h.dir, strings.NewReader(strings.Repeat("harness identity", 8)), time.Now(), !used)
	must(err)
	keyFile := filepath.Join(h.dir, "keys.jsonl")
	if _, err := os.Stat(keyFile); errors.Is(err, fs.ErrNotExist) {
		key, bearer, err := ingest.NewKey(strings.NewReader(strings.Repeat("harness key", 16)), "tester", true, time.Now())
		must(err)
		must(ingest.AddKey(keyFile, key))
		h.Bearer = bearer
	}
	keys, err := ingest.OpenKeys(keyFile, time.Now)
	must(err)

	listener, admin := simulator.NewMemoryListener(), simulator.NewMemoryListener()
	config := wire.Config{
		Store: store, Clock: clock, Log: log, Build: "test", Run: run, Gone: h.Broker.Gone, Alone: true,
		Local:    !o.Woken && o.ThroughPoller == nil && o.Pollers <= 1,
		Identity: identity, Contracts: parsed, Sources: sources, Accounts: accounts, Credentials: file, Rules: rules,
		Admin: admin, FreeSpace: o.FreeSpace, DiskReserve: o.DiskReserve, Tell: o.Tell,
		Keys: keys, Listener: listener, Workers: cmp.Or(max(o.Workers, 0), 2*len(parsed)+4),
		Resolve: outbound.References{
			LookupEnv: func(name string) (string, bool) {
				h.mu.Lock()
				defer h.mu.Unlock()
				v, ok := h.secrets[name]
				return v, ok
			},
			ReadFile: func(string, int64) ([]byte, error) { return nil, fs.ErrNotExist },
		},
		Dial: h.dial, AllowHTTP: true, Policy: o.Policy,
		Check: h.nats.Check, Sync: string(broker.SyncInterval), StoreTime: h.nats.Time,
	}
	if o.Webhooks {
		config.PublicURL, config.HookSecrets = "http://counterfoil.test", map[string]string{}
		for name := range parsed {
			if o.Credentials != "" {
				continue
			}
			config.HookSecrets[name] = "env:HARNESS_HOOK"
		}
	}
	if through := o.ThroughPoller; through != nil {
		config.Through = func(name string, store journal.Store, call poller.Caller) (journal.Store, poller.Caller, error) {
			store, call = through(name, store, call)
			return store, call, nil
		}
	}
	h.Service, err = wire.New(h.ctx, config)
	must(err)
	h.HTTP, h.Admin = listener.Client(), admin.Client()
	h.Client, err = client.New("http://counterfoil.test", h.Bearer, h.HTTP)
	must(err)
	h.Client = h.Client.Retrying(seen)

	h.group, h.ctx = errgroup.WithContext(h.ctx)
	h.workers = map[string]context.CancelFunc{}
	ready := make(chan struct{})
	h.group.Go(func() error { return h.Service.RunProjector(h.ctx, func() { close(ready) }) })
	h.group.Go(func() error { return h.Service.RunDoors(h.ctx) })
	h.group.Go(func() error { return h.Service.RunAdmin(h.ctx) })
	select {
	case <-ready:
	case <-h.ctx.Done():
		h.T.Fatalf("the service did not start: %v", h.group.Wait())
	}
	if !o.NoPoller {
		for i := range max(o.Pollers, 1) {
			h.Poller("poller-" + string(rune('1'+i)))
		}
	}
}

// Dir is the data directory.
func (h *House) Dir() string { return h.dir }

func (h *House) contracts() memFS {
	out := memFS{}
	list := h.options.Builtin
	if list == nil {
		list = []string{"example", "example-lookup", "example-ask"}
	}
	names, err := fs.Glob(contracts.FS, "*.yaml")
	if err != nil {
		h.T.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(list, strings.TrimSuffix(name, ".yaml")) {
			continue
		}
		text, err := fs.ReadFile(contracts.FS, name)
		if err != nil {
			h.T.Fatal(err)
		}
		out[name] = string(text)
	}
	maps.Copy(out, h.options.Contracts)
	if h.options.Edit != nil {
		for name, text := range out {
			out[name] = h.options.Edit(name, text)
		}
	}
	return out
}

// Poller starts one more poller, and returns when wake-ups reach it, or after a
// second in which they did not: a store may be at fault from the start.
func (h *House) Poller(name string) {
	ctx, stop := context.WithCancel(h.ctx)
	h.mu.Lock()
	h.workers[name] = stop
	h.mu.Unlock()
	joined := make(chan struct{})
	h.group.Go(func() error { return h.Service.RunPoller(ctx, name, func() { close(joined) }) })
	select {
	case <-joined:
	case <-time.After(time.Second):
	case <-h.ctx.Done():
	}
}

// StopPoller asks a poller to stop; it still records what it has seen.
func (h *House) StopPoller(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers[name]()
}

// SetSecret installs a fresh value behind env:name, as a rotation does.
func (h *House) SetSecret(name, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secrets[name] = value
}

func (h *House) credentialsPath() string { return filepath.Join(h.dir, "credentials.yaml") }

// SetCredentials renames a new credentials file into place, which takes effect
// within a second, and which a later Start finds.
func (h *House) SetCredentials(text string) {
	h.T.Helper()
	path := h.credentialsPath()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		h.T.Fatal(err)
	}
	// A file that was written long ago is whole, and counts at the next look.
	if err := os.Chtimes(path+".new", time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		h.T.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		h.T.Fatal(err)
	}
	if h.options.Credentials != "" {
		h.options.Credentials = text
	}
}

// AddKey makes an API key of the principal, and gives a client with it and its
// id.
func (h *House) AddKey(principal string) (c *client.Client, id string) {
	h.T.Helper()
	key, bearer, err := ingest.NewKey(rand.Reader, principal, false, time.Now())
	if err == nil {
		err = ingest.AddKey(filepath.Join(h.dir, "keys.jsonl"), key)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	if c, err = client.New("http://counterfoil.test", bearer, h.HTTP); err != nil {
		h.T.Fatal(err)
	}
	return c.Retrying(seen), key.ID
}

// Stop stops the service; the simulator goes on. Start starts it again.
func (h *House) Stop() {
	h.T.Helper()
	if err := h.Abandon(); err != nil && !errors.Is(err, context.Canceled) {
		h.T.Errorf("the service stopped with an error: %v", err)
	}
}

// Abandon stops as Stop does and gives the service's error instead of failing:
// a service whose store was cut off by Options.Through stops with one.
func (h *House) Abandon() error {
	if h.stop == nil {
		return nil
	}
	h.stop()
	h.stop = nil
	err := h.group.Wait()
	h.HTTP.CloseIdleConnections()
	h.Admin.CloseIdleConnections()
	h.nats.Close()
	brokertest.Stop(h.T, h.Broker)
	return err
}

// Kill ends the service as kill -9 does: nothing that it still tries reaches the
// store, and its connections are cut. Start starts it again.
func (h *House) Kill() {
	h.life.end()
	h.stop()
	h.stop = nil
	_ = h.group.Wait() // a killed process reports nothing
	h.HTTP.CloseIdleConnections()
	h.Admin.CloseIdleConnections()
	h.nats.Close()
	brokertest.Stop(h.T, h.Broker)
}

// Submit asks for an operation with the parameters given as JSON text.
func (h *House) Submit(key, provider, params string) client.Operation {
	h.T.Helper()
	op, _, err := h.Client.Submit(h.T.Context(), key, client.Submission{Provider: provider, Params: json.RawMessage(params)})
	if err != nil {
		h.T.Fatalf("submit %s: %v", key, err)
	}
	return op
}

// Wait waits until the operation is in one of the states, or done if none are
// given, at most so long in the bubble's time. A state must last: it looks every
// 100 ms, and after 10 s every second.
func (h *House) Wait(id string, limit time.Duration, states ...string) client.Operation {
	h.T.Helper()
	var op client.Operation
	start, step := time.Now(), 100*time.Millisecond
	for end := start.Add(limit); ; time.Sleep(step) {
		if time.Since(start) >= 10*time.Second {
			step = time.Second
		}
		var err error
		if op, err = h.Client.Get(h.T.Context(), id); err != nil {
			h.T.Fatalf("get %s: %v", id, err)
		}
		if len(states) == 0 && op.Done {
			return op
		}
		for _, state := range states {
			if op.State == state {
				return op
			}
		}
		if time.Now().After(end) {
			h.T.Fatalf("%s is %s (%s) after %s, want %v\n%s", id, op.State, op.Reason, limit, states, h.Story(id))
		}
	}
}

// Timeline reads the operation's facts.
func (h *House) Timeline(id string) []client.Entry {
	h.T.Helper()
	list, err := h.Client.Timeline(h.T.Context(), id, 0)
	if err != nil {
		h.T.Fatalf("timeline of %s: %v", id, err)
	}
	return list
}

// Story is the operation's timeline as text, for failures.
func (h *House) Story(id string) string {
	var b strings.Builder
	for _, e := range h.Timeline(id) {
		text, _ := json.Marshal(e.Fields)
		b.WriteString(e.Time.Format("15:04:05.000") + " " + e.Type + " " + e.From + " -> " + e.To + " " + e.Verdict + " " + e.Reason + " " + string(text) + "\n")
	}
	return b.String()
}

// SetContracts replaces the further contracts from the next Start on.
func (h *House) SetContracts(files map[string]string) { h.options.Contracts = files }

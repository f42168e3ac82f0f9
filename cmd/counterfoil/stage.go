package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/launch"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/simulator"
)

// stage is a whole installation for demonstrations and drills: the service on
// an embedded store in a directory, its HTTP interface on a loopback port, the
// simulator as every provider, and workers that can be killed one by one.
type stage struct {
	dir       string
	contracts fs.FS             // nil for the built-in ones
	hooks     map[string]string // webhook secrets by provider
	log       *slog.Logger
	policy    string // file; "" for none

	sim      *simulator.Simulator
	simURL   string
	filesURL string                      // another port, where Stripe's result files are
	mounts   map[string]*simulator.Mount // by "provider/account"

	local  *local
	client *client.Client
	bearer string // of the first start; later starts use it again

	ctx   context.Context //nolint:containedctx // the run's own; ended by stop
	end   context.CancelFunc
	group *errgroup.Group

	mu      sync.Mutex
	workers map[string]*mortal // guarded by mu
	running map[string]context.CancelFunc
	token   string // guarded by mu: what the service has as credential
}

const (
	stageToken   = "stage-token"   // what the simulated providers ask for
	rotatedToken = "rotated-token" // what a drill puts in its place
	stageSecret  = "stage-secret"  // what they sign webhooks with

	stageCredential = "STAGE_TOKEN" // the variable with the credential

	// filesOrigin is the host of result files as a built-in contract spells it.
	filesOrigin = "https://files.stripe.com"
)

// newStage makes the simulated providers; open starts the service over them.
func newStage(dir string, log *slog.Logger) (*stage, error) {
	s := &stage{dir: dir, log: log, mounts: map[string]*simulator.Mount{}, token: stageToken}
	s.sim = simulator.New(simulator.Config{
		Now: time.Now, Seed: 1, Webhooks: simulator.WebhookClient(),
		WebhookSecret: []byte(stageSecret), CorrelateAlways: true,
	})
	for _, url := range []*string{&s.simURL, &s.filesURL} {
		var err error
		if *url, err = s.sim.Listen("127.0.0.1:0"); err != nil {
			s.sim.Close()
			return nil, fmt.Errorf("start the simulated providers: %w", err)
		}
	}
	return s, nil
}

// hurry gives the service the built-in contracts with short waits, and with the
// simulated host of result files for the real one.
func (s *stage) hurry() error {
	files, err := hurried()
	if err != nil {
		return err
	}
	for _, file := range files {
		file.Data = bytes.ReplaceAll(file.Data, []byte(filesOrigin), []byte(s.filesURL))
	}
	s.contracts = files
	return nil
}

// rotate changes the credential the service has.
func (s *stage) rotate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// mount makes an account at a provider that has its own options and rules.
func (s *stage) mount(provider, account string, o simulator.Options, rules ...simulator.Rule) *simulator.Mount {
	o.Auth = simulator.Auth{Bearer: stageToken}
	if simulator.Dialect(provider) == simulator.StripeReporting {
		o.LinkBase = s.filesURL
	}
	m := s.sim.Mount("/"+provider+"/"+account, simulator.Dialect(provider), rules...)
	m.Configure(o)
	s.mounts[provider+"/"+account] = m
	return m
}

// open starts the store, the projector and the doors. Workers start with work.
func (s *stage) open(ctx context.Context) error {
	o := options{Data: s.dir, Sync: "always", Options: launch.Options{Listen: "127.0.0.1:0", Workers: 16, AllowHTTP: true, PolicyFile: s.policy}}
	for name := range s.mounts {
		o.BaseURLs = append(o.BaseURLs, name+"="+s.simURL+"/"+name)
		o.Credentials = append(o.Credentials, name+"=env:"+stageCredential)
	}
	s.workers, s.running = map[string]*mortal{}, map[string]context.CancelFunc{}
	l, err := open(ctx, o, s.contracts, s.log, func(c *wire.Config) {
		values := map[string]string{}
		c.HookSecrets = map[string]string{}
		for provider, secret := range s.hooks {
			name := "STAGE_SECRET_" + strings.ReplaceAll(provider, "-", "_")
			c.HookSecrets[provider], values[name] = "env:"+name, secret
		}
		c.Resolve = outbound.References{
			LookupEnv: func(name string) (string, bool) {
				if name == stageCredential {
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.token, true
				}
				v, ok := values[name]
				return v, ok
			},
			ReadFile: func(string, int64) ([]byte, error) { return nil, fs.ErrNotExist },
		}
		c.PublicURL = "http://" + c.Listener.Addr().String()
		c.Through = s.through
		c.Local = false // its workers stand for processes of their own
	})
	if err != nil {
		return err
	}
	s.local = l
	if l.newKey != "" {
		s.bearer = l.newKey
	}
	if s.client, err = client.New(s.url(), s.bearer, nil); err != nil {
		return errors.Join(err, l.close())
	}
	s.ctx, s.end = context.WithCancel(ctx)
	s.group, s.ctx = errgroup.WithContext(s.ctx)
	ready := make(chan struct{})
	s.group.Go(func() error { return l.service.RunProjector(s.ctx, func() { close(ready) }) })
	s.group.Go(func() error { return l.service.RunDoors(s.ctx) })
	select {
	case <-ready:
		return nil
	case <-s.ctx.Done():
		return errors.Join(errors.New("the service did not start"), s.stop())
	}
}

// url is where the service of the last start answers.
func (s *stage) url() string { return "http://" + s.local.listener.Addr().String() }

// through gives a worker a connection of its own to the store, which dies with
// it, as a process's connection does.
func (s *stage) through(name string, _ journal.Store, call poller.Caller) (journal.Store, poller.Caller, error) {
	own, err := journal.Connect(s.ctx, journal.Config{Dial: s.local.broker.InProcess, Name: "worker-" + name, Replicas: 1})
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.workers[name]
	m.onDeath = own.Close
	store, call := m.wrap(own, call)
	return store, call, nil
}

// work starts a worker under a name. With dieAfter it has one lease in its life
// and may be killed after each fact it stores (see mortal).
func (s *stage) work(name string, dieAfter func(factType string) bool) *mortal {
	m := newMortal()
	m.dieAfter, m.single = dieAfter, dieAfter != nil
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.workers[name], s.running[name] = m, stop
	s.mu.Unlock()
	s.group.Go(func() error {
		err := s.local.service.RunPoller(ctx, name, func() {})
		if m.killed() {
			return nil
		}
		m.kill() // it has ended; its connection goes with it
		return err
	})
	s.group.Go(func() error {
		select {
		case <-m.dead:
			stop()
		case <-ctx.Done():
		}
		return nil
	})
	return m
}

// stop ends the service as a clean stop does. The simulated providers go on.
func (s *stage) stop() error {
	s.end()
	err := s.group.Wait()
	return errors.Join(err, s.local.close())
}

// close ends everything; the directory stays.
func (s *stage) close() { s.sim.Close() }

// quiet is where the service's log goes unless somebody wants to see it.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// tempDir makes a directory that remove takes away.
func tempDir(purpose string) (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "counterfoil-"+purpose+"-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for the %s: %w", purpose, err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

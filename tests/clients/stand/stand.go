// Package stand runs a whole service on loopback ports for clients that are tried
// against it: the embedded store, every role, the HTTP interface, the simulator as the
// providers, and a [Proxy] in front that loses answers. Waits of the contracts are
// short, and time is real.
package stand

import (
	"bytes"
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
	"testing/fstest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/poller"
	"github.com/counterfoil/counterfoil/internal/wire"
	"github.com/counterfoil/counterfoil/simulator"
)

// Token is the credential that the simulated providers ask for.
const Token = "stand-provider-token"

// Stand is a running service.
type Stand struct {
	URL string // of the service
	Key string // of an operator
	Sim *simulator.Simulator

	dir    string
	stop   context.CancelFunc
	group  *errgroup.Group
	nats   *journal.NATS
	broker *broker.Broker
}

// Provide makes simulated providers of jobs that take about this long each: example,
// which gives the first job again for the same key, and example-ask, whose accounts
// include one, lost, that accepts every job and never answers.
func Provide(took time.Duration) (*simulator.Simulator, string, error) {
	sim := simulator.New(simulator.Config{Now: time.Now, Seed: 1, CorrelateAlways: true})
	plan := simulator.Options{Auth: simulator.Auth{Bearer: Token}, Plan: simulator.Steps(took/2, "running", "succeeded")}
	sim.Mount("/example", simulator.Example).Configure(plan)
	sim.Mount("/ask", simulator.ExampleAsk).Configure(plan)
	sim.Mount("/lost", simulator.ExampleAsk, simulator.On(simulator.Create, simulator.Always(), simulator.DropAnswer{Reset: true})).Configure(plan)
	url, err := sim.Listen("127.0.0.1:0")
	if err != nil {
		sim.Close()
		return nil, "", fmt.Errorf("start the simulated providers: %w", err)
	}
	return sim, url, nil
}

// Contracts are the built-in contracts that the stand uses, with short waits.
func Contracts() (fstest.MapFS, error) {
	out := fstest.MapFS{}
	for _, name := range []string{"example.yaml", "example-ask.yaml"} {
		text, err := fs.ReadFile(contracts.FS, name)
		if err != nil {
			return nil, err
		}
		for from, to := range map[string]string{
			"{default: 2s, min: 10ms": "{default: 50ms, min: 10ms", "backoff: 1s": "backoff: 50ms", "settle: 30s": "settle: 200ms", "request_timeout: 30s": "request_timeout: 5s",
		} {
			text = bytes.ReplaceAll(text, []byte(from), []byte(to))
		}
		out[name] = &fstest.MapFile{Data: text, Mode: 0o444}
	}
	return out, nil
}

// Start starts a service in a directory of its own. Stop ends it.
func Start(took time.Duration) (_ *Stand, err error) {
	s := &Stand{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "counterfoil-stand-"); err != nil {
		return nil, err
	}
	providers := ""
	if s.Sim, providers, err = Provide(took); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	run, clock := wire.NewID(), wire.NewSystemClock()
	if s.broker, err = broker.Start(broker.Config{Dir: s.dir, Run: run, Now: time.Now, Sync: broker.SyncInterval, SyncEvery: time.Hour}); err != nil {
		return nil, err
	}
	if s.nats, err = journal.Connect(ctx, journal.Config{Dial: s.broker.InProcess, Name: "stand", Replicas: 1}); err != nil {
		return nil, err
	}
	if err = s.nats.Provision(ctx); err != nil {
		return nil, err
	}
	files, err := Contracts()
	if err != nil {
		return nil, err
	}
	parsed, sources, err := wire.LoadContracts(files, "")
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	credentials, err := wire.OpenCredentials(wire.CredentialsConfig{
		Path: filepath.Join(s.dir, "credentials.yaml"), Optional: true, Contracts: parsed, AllowHTTP: true, Now: time.Now, Log: log,
	})
	if err != nil {
		return nil, err
	}
	identity, err := wire.LoadIdentity(s.dir, rand.Reader, time.Now(), true)
	if err != nil {
		return nil, err
	}
	keyFile := filepath.Join(s.dir, "keys.jsonl")
	key, bearer, err := ingest.NewKey(rand.Reader, "agent", true, time.Now())
	if err == nil {
		err = ingest.AddKey(keyFile, key)
	}
	if err != nil {
		return nil, err
	}
	keys, err := ingest.OpenKeys(keyFile, time.Now)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.URL, s.Key = "http://"+listener.Addr().String(), bearer
	account := func(path string) poller.Account {
		return poller.Account{BaseURL: providers + path, Credential: "env:TOKEN"}
	}
	service, err := wire.New(ctx, wire.Config{
		Store: s.nats, Clock: clock, Log: log, Build: "test", Run: run, Gone: s.broker.Gone, Alone: true, Local: true,
		Identity: identity, Contracts: parsed, Sources: sources, Credentials: credentials, Keys: keys, Listener: listener, Workers: 8,
		Accounts:  map[string]poller.Account{"example": account("/example"), "example-ask": account("/ask"), "example-ask/lost": account("/lost")},
		AllowHTTP: true, Dial: outbound.SystemDialer(nil), Check: s.nats.Check, Sync: string(broker.SyncInterval), StoreTime: s.nats.Time,
		Resolve: outbound.References{
			LookupEnv: func(name string) (string, bool) { return Token, name == "TOKEN" },
			ReadFile:  func(string, int64) ([]byte, error) { return nil, fs.ErrNotExist },
		},
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s.group, ctx = errgroup.WithContext(ctx)
	ready := make(chan struct{})
	s.group.Go(func() error { return service.Run(ctx, func() { close(ready) }) })
	select {
	case <-ready:
		return s, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the service did not start: %w", s.group.Wait())
	}
}

// Stop ends the service and removes what it kept.
func (s *Stand) Stop() error {
	var err error
	if s.stop != nil {
		s.stop()
	}
	if s.group != nil {
		err = s.group.Wait()
	}
	if s.nats != nil {
		s.nats.Close()
	}
	if s.broker != nil {
		err = errors.Join(err, s.broker.Stop())
	}
	if s.Sim != nil {
		s.Sim.Close()
	}
	if errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "\n") {
		err = nil // it was told to
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

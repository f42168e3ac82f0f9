package main

import (
	"crypto/tls"
	"errors"
	"net/url"
	"os"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/outbound"
	"github.com/counterfoil/counterfoil/internal/wire"
)

// agents is where agents may connect to the embedded store.
type agents struct {
	Listen    string // "": nowhere
	Cert, Key string // files
}

func (o *agents) flags(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "nats-listen", "", "address where agents publish intents by NATS, as 127.0.0.1:4222; their API keys let them in. Left out: nowhere")
	f.StringVar(&o.Cert, "nats-listen-cert", "", "certificate (PEM) shown there; an address that other hosts reach needs one")
	f.StringVar(&o.Key, "nats-listen-key", "", "its private key (PEM), readable by nobody else")
}

// again has the next start take the address that this one was given.
func (o *agents) again(at string) {
	if u, err := url.Parse(at); err == nil {
		o.Listen = u.Host
	}
}

// admission lets agents in once there is a service that knows them.
type admission struct {
	agents  *broker.Agents // nil: none are let in
	service atomic.Pointer[wire.Service]
}

const maxCertificate = 64 << 10 // bytes of a key's file

func (o *agents) broker() (*admission, error) {
	let := &admission{}
	switch {
	case o.Listen == "" && o.Cert == "" && o.Key == "":
		return let, nil
	case o.Listen == "":
		return nil, usage("--nats-listen-cert and --nats-listen-key go with --nats-listen")
	case (o.Cert == "") != (o.Key == ""):
		return nil, usage("--nats-listen-cert and --nats-listen-key go together")
	}
	let.agents = &broker.Agents{Listen: o.Listen, Admit: let.admit, Still: let.still}
	if o.Cert != "" {
		// Read at each connection, so that a renewed one counts.
		own := func() (*tls.Certificate, error) {
			key, _, err := outbound.ReadPrivate(o.Key, maxCertificate)
			if err != nil {
				return nil, usage("--nats-listen-key: %w", err)
			}
			defer clear(key)
			cert, err := os.ReadFile(o.Cert)
			if err != nil {
				return nil, usage("--nats-listen-cert: %w", err)
			}
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				return nil, usage("--nats-listen-cert and --nats-listen-key: %w", err)
			}
			return &pair, nil
		}
		if _, err := own(); err != nil {
			return nil, err
		}
		let.agents.TLS = &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		}
	}
	if err := let.agents.Check(); err != nil {
		return nil, usage("--nats-listen: %w", err)
	}
	return let, nil
}

func (l *admission) config() *broker.Agents { return l.agents }

// open lets agents in whom the service knows.
func (l *admission) open(s *wire.Service) { l.service.Store(s) }

var errNotYet = errors.New("nobody is let in yet")

func (l *admission) admit(key string) (broker.Agent, error) {
	s := l.service.Load()
	if s == nil {
		return broker.Agent{}, errNotYet
	}
	return agentOf(s.Agent(key))
}

// still keeps those whom nobody can check: their intents wait, too.
func (l *admission) still(a broker.Agent) (broker.Agent, error) {
	now, err := agentOf(l.service.Load().AgentStill(a.Principal, a.Key))
	var unknown *ingest.KeysError
	if errors.As(err, &unknown) {
		return a, nil
	}
	return now, err
}

func agentOf(c ingest.Caller, err error) (broker.Agent, error) {
	if err != nil {
		return broker.Agent{}, err
	}
	return broker.Agent{
		Principal: c.Principal, Key: c.KeyID, Submits: c.May(ingest.Right{Action: ingest.ActSubmit}) == nil,
		Reads: c.May(ingest.Right{Action: ingest.ActRead}) == nil, Expires: c.Expires,
	}, nil
}

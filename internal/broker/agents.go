package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Agents let agents in over a socket. Each key has an account of its own in the
// server, so that no subject of the store or of another agent is in reach of it,
// whatever it sends: not as the subject of a message, nor as the address of an
// answer, which the server would publish there in its own name. Three subjects lead
// out of it, and the server makes their other ends:
//
//   - intents.<principal> is offers.<principal>.<key> of the store, which a door takes
//     (package journal);
//   - $JS.API.DIRECT.GET.VERDICTS.verdicts.<principal>.<token> reads a verdict;
//   - verdicts.<principal>.<token> is told as it is stored.
//
// Beyond that its permissions allow its own inboxes and nothing else, so that it
// hears of what is refused. No agent makes a consumer: one of the kind that is pushed
// would deliver to any subject, in the server's name.
type Agents struct {
	// Listen is the address "host:port"; port 0 takes a free one. One that other
	// hosts reach needs TLS: keys are sent as they are.
	Listen string
	// TLS is what the server shows of itself; nil: none.
	TLS *tls.Config
	// Admit gives who a key belongs to. On any error nobody is let in.
	Admit func(key string) (Agent, error)
	// Still gives the same anew for one that was let in, by what is known now. On an
	// error, or where it differs, the agent is cut off. It is asked every second.
	Still func(Agent) (Agent, error)
}

// Agent is what a key may do here.
type Agent struct {
	Principal, Key string // 1 to 64 of a-z, 0-9, _ and -
	Submits        bool   // may publish intents
	Reads          bool   // may read the verdicts of its principal
	Expires        time.Time
}

const (
	stillEvery = time.Second
	mostConns  = 4096
	mostSubs   = 4096 // of one connection; the store's own has some hundreds
)

// Check says what is wrong with the address and what belongs to it.
func (a *Agents) Check() error {
	host, text, err := net.SplitHostPort(a.Listen)
	if err != nil {
		return fmt.Errorf("address for agents %q: %w", a.Listen, err)
	}
	if _, err := strconv.ParseUint(text, 10, 16); err != nil {
		return fmt.Errorf("address for agents %q: port %q is not between 0 and 65535", a.Listen, text)
	}
	if ip := net.ParseIP(host); a.TLS == nil && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("address for agents %q: other hosts can reach it, and keys are sent as they are: give a certificate, or a loopback IP address", a.Listen)
	}
	if a.Admit == nil || a.Still == nil {
		return errors.New("nobody says who agents are")
	}
	return nil
}

// options has the server listen for agents.
func (a *Agents) options(o *server.Options, gate *gate) error {
	host, text, err := net.SplitHostPort(a.Listen)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	} else {
		// The server would say so only after all of the time that it has to get ready.
		l, err := net.Listen("tcp", a.Listen) //nolint:noctx // it does not wait
		if err != nil {
			return fmt.Errorf("listen for agents: %w", err)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("listen for agents: %w", err)
		}
	}
	o.Host, o.Port, o.DontListen = host, port, false
	o.MaxConn, o.MaxSubs = mostConns, mostSubs
	if a.TLS != nil {
		o.TLSConfig, o.TLS = a.TLS, true
		o.TLSTimeout = float64(server.TLS_TIMEOUT) / float64(time.Second)
		o.AllowNonTLS = false
	}
	o.CustomClientAuthentication = gate
	return nil
}

// gate lets connections in. It implements server.Authentication.
type gate struct {
	agents *Agents

	mu     sync.Mutex
	server *server.Server   // nil until it may let agents in; guarded by mu
	known  map[uint64]Agent // by the connection's id; guarded by mu

	stop chan struct{}
	done sync.WaitGroup
}

func newGate(a *Agents) *gate {
	return &gate{agents: a, known: map[uint64]Agent{}, stop: make(chan struct{})}
}

// open lets agents in from now on.
func (g *gate) open(s *server.Server) error {
	store := s.GlobalAccount()
	services, streams := journal.AgentExports()
	for _, subject := range services {
		if err := store.AddServiceExport(subject, nil); err != nil {
			return fmt.Errorf("let agents reach %s: %w", subject, err)
		}
	}
	for _, subject := range streams {
		if err := store.AddStreamExport(subject, nil); err != nil {
			return fmt.Errorf("let agents reach %s: %w", subject, err)
		}
	}
	g.mu.Lock()
	g.server = s
	g.mu.Unlock()
	g.done.Go(g.watch)
	return nil
}

func (g *gate) close() {
	close(g.stop)
	g.done.Wait()
}

// watch cuts off whoever may no longer be here.
func (g *gate) watch() {
	ticker := time.NewTicker(stillEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			g.sweep()
		case <-g.stop:
			return
		}
	}
}

func (g *gate) sweep() {
	g.mu.Lock()
	list := make(map[uint64]Agent, len(g.known))
	for id, a := range g.known {
		list[id] = a
	}
	g.mu.Unlock()
	for id, a := range list {
		gone := g.server.GetClient(id) == nil
		if !gone {
			now, err := g.agents.Still(a)
			if err == nil && now.same(a) {
				continue
			}
			_ = g.server.DisconnectClientByID(id) // it fails where the connection has ended
		}
		g.mu.Lock()
		delete(g.known, id)
		g.mu.Unlock()
	}
}

func (a Agent) same(b Agent) bool {
	return a.Principal == b.Principal && a.Key == b.Key && a.Submits == b.Submits && a.Reads == b.Reads && a.Expires.Equal(b.Expires)
}

// Check implements server.Authentication.
func (g *gate) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	if from := c.RemoteAddress(); from != nil && from.Network() == pipeNetwork {
		return true // the store's own connections, which come by no socket
	}
	g.mu.Lock()
	s := g.server
	g.mu.Unlock()
	if s == nil {
		return false
	}
	o := c.GetOpts()
	key := o.Token
	if key == "" {
		key = o.Password
	}
	a, err := g.agents.Admit(key)
	if err != nil {
		return false
	}
	// A name beside the key must be one of its own, so that nobody believes to be
	// somebody else.
	if o.Username != "" && o.Username != a.Principal && o.Username != a.Key {
		return false
	}
	account, err := g.account(s, a)
	if err != nil {
		s.Errorf("no account for an agent: %v", err)
		return false
	}
	may := journal.SubjectsOf(a.Principal, a.Key)
	publish, subscribe := may.Permissions(a.Submits, a.Reads)
	g.mu.Lock()
	g.known[c.GetID()] = a
	g.mu.Unlock()
	c.RegisterUser(&server.User{
		Username: a.Principal, Account: account, ConnectionDeadline: a.Expires,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: publish},
			Subscribe: &server.SubjectPermission{Allow: subscribe},
		},
	})
	return true
}

// pipeNetwork is what net.Pipe says of its ends.
const pipeNetwork = "pipe"

// account is that of the key, made when it is first let in.
func (g *gate) account(s *server.Server, a Agent) (*server.Account, error) {
	g.mu.Lock() // two connections of one key make one
	defer g.mu.Unlock()
	name := "AGENT." + a.Principal + "." + a.Key
	if account, err := s.LookupAccount(name); err == nil {
		return account, nil
	}
	account, err := s.RegisterAccount(name)
	if err != nil {
		return nil, err
	}
	store := s.GlobalAccount()
	may := journal.SubjectsOf(a.Principal, a.Key)
	return account, errors.Join(
		account.AddServiceImport(store, may.Intents, may.Offered),
		account.AddServiceImport(store, may.Direct, may.Direct),
		account.AddStreamImport(store, may.Verdicts, ""),
	)
}

// AgentsURL is where agents connect, or "" if none can.
func (b *Broker) AgentsURL() string {
	if b.gate == nil {
		return ""
	}
	return b.server.ClientURL()
}

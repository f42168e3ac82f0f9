// Package broker runs the embedded NATS server with JetStream on a data
// directory of its own.
//
// One process at a time holds a directory: the lock is flock(2) on a file in
// it, so it ends with the process, however that ends. Each start is a run with
// an id, written to the directory before the server starts, so that a later
// run knows which owners named in the ledger are gone for certain.
//
// Limits: one node, no replicas, Unix only. A directory on a network file
// system whose flock does not reach other hosts is not protected.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Sync says when the server asks the disk to keep what it acknowledged.
type Sync string

// The two modes of DESIGN §3.
const (
	// SyncAlways loses nothing acknowledged, on power loss either.
	SyncAlways Sync = "always"
	// SyncInterval can lose the last second on power loss; the death of the
	// process loses nothing.
	SyncInterval Sync = "interval"
)

const (
	syncEvery = time.Second // SyncInterval
	// derivedEvery is the same with SyncAlways, where only the derived streams are
	// left to be synced: the server holds up their writes meanwhile, for 5 to 15 ms
	// on a common disk, and creates wait for them.
	derivedEvery = 5 * time.Second
	readyLimit   = 30 * time.Second // recovery of 5 million subjects took 8 s
	batchSyncs   = 6                // see BatchFsyncs
	maxPayload   = 2 << 20          // bytes; a history record is at most 1 MiB, headers come on top
	// unlimited is more than any disk or memory has, in bytes. Left alone, the server
	// takes three quarters of what is free when it starts, none on a full disk, and
	// refuses writes beyond it until it is started again, whatever room there is then.
	// The reserve is what limits here, and after it the disk itself.
	unlimited = 1 << 62
)

// Config is how to start. Every field but SyncEvery, Listen and Logger is required.
type Config struct {
	// Dir is the data directory. It is made if it does not exist. One that
	// holds anything without our marker file is refused.
	Dir string
	// Run is the id of this run: new, random, without spaces.
	Run string
	// Now is the wall clock, for the times in the run file.
	Now func() time.Time
	// Sync is SyncAlways or SyncInterval.
	Sync Sync
	// SyncEvery is how often the disk is asked for what is not synced before it is
	// acknowledged. Zero: every second, and every 5 s beside SyncAlways. Tests whose
	// clock runs ahead of the disk set it.
	SyncEvery time.Duration
	// Listen is a loopback address "host:port" for other programs of the same
	// user; port 0 takes a free one. Empty means no socket at all. The server
	// asks nobody who they are.
	Listen string
	// Agents are let in over a socket of their own. Nil: none are. It does not go
	// with Listen.
	Agents *Agents
	// Logger gets the server's own messages. Nil means none.
	Logger *slog.Logger
}

func (c Config) validate() error {
	var problems []error
	if c.Dir == "" {
		problems = append(problems, errors.New("no data directory given"))
	}
	if !validRun(c.Run) {
		problems = append(problems, fmt.Errorf("run id %q: want 1 to 64 letters, digits, hyphens or underscores", c.Run))
	}
	if c.Now == nil {
		problems = append(problems, errors.New("no clock given"))
	}
	if c.Sync != SyncAlways && c.Sync != SyncInterval {
		problems = append(problems, fmt.Errorf("sync %q: want %q or %q", c.Sync, SyncAlways, SyncInterval))
	}
	if c.Listen != "" {
		if _, _, err := loopback(c.Listen); err != nil {
			problems = append(problems, err)
		}
	}
	if c.Agents != nil {
		if c.Listen != "" {
			problems = append(problems, errors.New("one server listens at one address: for agents, or for anybody on this host"))
		}
		problems = append(problems, c.Agents.Check())
	}
	return errors.Join(problems...)
}

// loopback splits an address and refuses one that other hosts can reach.
func loopback(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: %w", address, err)
	}
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsLoopback() {
		return "", 0, fmt.Errorf("listen address %q: the store asks nobody who they are, so only a loopback IP address is accepted", address)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: port %q is not between 0 and 65535", address, text)
	}
	return host, int(number), nil
}

// A Broker is a running server and the lock on its directory.
type Broker struct {
	dir    *directory
	path   string // of the directory
	staged string // directory in memory, see StageInMemory; "" if there is none
	server *server.Server
	said   *messages
	gate   *gate // nil: no agents are let in

	inMemory bool // batches are staged there

	stop sync.Once
	err  error // of the one Stop
}

// Start takes the directory and starts the server. It returns a *LockedError
// if another process has the directory, and errors that wrap ErrForeign or
// ErrNewer if it is not one this program may touch.
func Start(c Config) (*Broker, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("start the store: %w", err)
	}
	dir, err := open(c.Dir, c.Run, c.Now)
	if err != nil {
		return nil, fmt.Errorf("start the store: %w", err)
	}
	var g *gate
	if c.Agents != nil {
		g = newGate(c.Agents)
	}
	s, said, err := serve(c, g)
	if err != nil {
		// The run stays without its stop line: to the next start this is a run
		// that did not end well, which is what it was.
		return nil, errors.Join(fmt.Errorf("start the store in %s: %w", c.Dir, err), dir.release())
	}
	return &Broker{dir: dir, path: c.Dir, server: s, said: said, gate: g}, nil
}

func serve(c Config, g *gate) (*server.Server, *messages, error) {
	every := syncEvery
	if c.Sync == SyncAlways {
		every = derivedEvery
	}
	if c.SyncEvery > 0 {
		every = c.SyncEvery
	}
	options := &server.Options{
		ServerName:             "counterfoil",
		JetStream:              true,
		StoreDir:               filepath.Join(c.Dir, storeName),
		SyncAlways:             c.Sync == SyncAlways,
		SyncInterval:           every,
		JetStreamMaxStore:      unlimited,
		JetStreamMaxMemory:     unlimited,
		MaxPayload:             maxPayload,
		DontListen:             c.Listen == "",
		NoSigs:                 true,
		DisableJetStreamBanner: true,
		DisableShortFirstPing:  true,
	}
	if c.Listen != "" {
		host, port, err := loopback(c.Listen)
		if err != nil {
			return nil, nil, err
		}
		options.Host, options.Port = host, port
		if port == 0 {
			options.Port = server.RANDOM_PORT
		}
	}
	if g != nil {
		if err := c.Agents.options(options, g); err != nil {
			return nil, nil, err
		}
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, nil, err
	}
	said := &messages{to: c.Logger, now: c.Now, streams: filepath.Join(c.Dir, storeName, streamsName)}
	s.SetLogger(said, false, false)
	s.Start()
	if !s.ReadyForConnections(readyLimit) || !s.JetStreamEnabled() {
		s.Shutdown()
		s.WaitForShutdown()
		if fatal := said.fatal(); fatal != "" {
			return nil, nil, errors.New(fatal)
		}
		return nil, nil, fmt.Errorf("the server was not ready within %s", readyLimit)
	}
	if g != nil {
		if err := g.open(s); err != nil {
			s.Shutdown()
			s.WaitForShutdown()
			return nil, nil, err
		}
	}
	return s, said, nil
}

// InProcess opens a connection to the server that uses no socket.
func (b *Broker) InProcess() (net.Conn, error) { return b.server.InProcessConn() }

// URL is where other programs on this host reach the server, or "" if it does
// not listen.
func (b *Broker) URL() string {
	if b.server.Addr() == nil || b.gate != nil {
		return ""
	}
	return b.server.ClientURL()
}

// Run is the id of this run.
func (b *Broker) Run() string { return b.dir.run }

// LastRun is the run before this one: its id, empty at the first start, and
// whether it was stopped in order. After one that was not, the derived streams
// may lack their tail.
func (b *Broker) LastRun() (id string, clean bool) { return b.dir.last, b.dir.clean }

// Gone says whether the run with this id is known to have ended: it is an
// earlier run on this directory, and its lock is ours now. False means not
// known.
func (b *Broker) Gone(run string) bool {
	_, earlier := b.dir.earlier[run]
	return earlier
}

// BatchFsyncs is how often the disk is asked for one atomic batch: for the
// stream's own file, and, unless batches are staged in memory, for the staging
// directory twice, for two files in it and for the staged block.
func (b *Broker) BatchFsyncs() uint64 {
	if b.inMemory {
		return 1
	}
	return batchSyncs
}

// Failing says why the server can write to a stream no more, as after its disk
// was full; nil if it can, or has not tried. A server stays so until it is started
// again, and does not answer writers meanwhile.
func (b *Broker) Failing() error {
	for _, e := range b.server.Healthz(&server.HealthzOptions{Details: true}).Errors {
		switch {
		case e.Type == server.HealthzErrorJetStream:
			// It turns itself off where it may not write, or cannot write a state file.
			return fmt.Errorf("the server has turned its store off: %s", e.Error)
		case strings.Contains(e.Error, writeError):
			return errors.New(e.Error)
		}
		// The rest says nothing of this: a connection is given a millisecond, and a
		// stream that is missing is noticed where streams are compared.
	}
	// A stream that failed to write what it had taken before, or by itself, shows it
	// only once somebody writes to it.
	if text := b.said.writeError(); text != "" {
		return errors.New(text)
	}
	return nil
}

// Stop ends the server, notes that this run ended in order, and lets go of the
// directory. Connections should be closed before. A second call returns what
// the first did.
func (b *Broker) Stop() error {
	b.stop.Do(func() {
		if b.gate != nil {
			b.gate.close()
		}
		b.server.Shutdown()
		b.server.WaitForShutdown()
		// A crash before this line makes the run count as not ended in order,
		// and the next start compares more than it had to.
		b.err = errors.Join(b.unstage(), b.dir.note("stop"), b.dir.release())
	})
	return b.err
}

// messages passes the server's log on and keeps its last fatal message, which
// is the only place where the server says why it did not start, and its first one
// of a stream that could not write, which it cannot be asked for.
type messages struct {
	to      *slog.Logger
	now     func() time.Time
	streams string // the directory with one for each stream

	mu     sync.Mutex
	last   string // guarded by mu
	failed string // guarded by mu
	// Of what connections from outside gave cause for; guarded by mu.
	since time.Time // when the minute began
	told  int       // in it
	left  int       // out since something was told
}

// aboutMost is how many lines in a minute the log has about connections from outside:
// whoever reaches the socket can have the server write one at any time.
const aboutMost = 20

// fromOutside says whether a message is about a connection that came by a socket. The
// server puts its address and number first; those of our own have no address.
func fromOutside(text string) bool {
	address, _, found := strings.Cut(text, " - cid:")
	return found && address != pipeNetwork
}

// lets says whether one more message about such a connection is told, and how many were
// not since the last one.
func (m *messages) lets() (left int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.now(); now.Sub(m.since) >= time.Minute || now.Before(m.since) {
		m.since, m.told = now, 0
	}
	if m.told >= aboutMost {
		m.left++
		return 0, false
	}
	left, m.left = m.left, 0
	m.told++
	return left, true
}

// authError is in the server's words for a client that was not let in.
const authError = "authentication error"

// writeError is in the server's words for what it could not write, in its log and
// its health.
const writeError = "write error"

// writeError gives the message about it; "" if there was none.
func (m *messages) writeError() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

func (m *messages) fatal() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

func (m *messages) say(level slog.Level, format string, args []any) {
	if m.to == nil {
		return
	}
	text := fmt.Sprintf(format, args...)
	if i := strings.Index(text, authError); i >= 0 {
		// It goes on with what the client said its name was, which may be a key.
		level, text = slog.LevelWarn, text[:i+len(authError)]
	}
	// The server gives no context with its messages.
	ctx := context.Background()
	if level < slog.LevelWarn || !fromOutside(text) {
		m.to.Log(ctx, level, "nats server", "text", text)
		return
	}
	// What others do wrong is no failure of ours.
	if left, ok := m.lets(); ok {
		m.to.Log(ctx, slog.LevelWarn, "nats server, about a connection from outside", "text", text, "left_out_before", left)
	}
}

func (m *messages) Noticef(format string, args ...any) { m.say(slog.LevelDebug, format, args) }
func (m *messages) Warnf(format string, args ...any)   { m.say(slog.LevelWarn, format, args) }
func (m *messages) Debugf(format string, args ...any)  { m.say(slog.LevelDebug, format, args) }
func (m *messages) Tracef(format string, args ...any)  { m.say(slog.LevelDebug, format, args) }

func (m *messages) Errorf(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); m.ofStream(text) {
		m.mu.Lock()
		m.failed = cmp.Or(m.failed, text)
		m.mu.Unlock()
	}
	m.say(slog.LevelError, format, args)
}

// ofStream says whether the message is that a stream could not write. Batches
// have such files too, which come and go, see StageInMemory.
func (m *messages) ofStream(text string) bool {
	rest, found := strings.CutPrefix(text, "Filestore [")
	name, rest, _ := strings.Cut(rest, "]")
	if !found || !strings.Contains(rest, writeError) {
		return false
	}
	_, err := os.Stat(filepath.Join(m.streams, name))
	return err == nil
}

// Fatalf does not end the process: Start reports the message instead.
func (m *messages) Fatalf(format string, args ...any) {
	m.mu.Lock()
	m.last = fmt.Sprintf(format, args...)
	m.mu.Unlock()
	m.say(slog.LevelError, format, args)
}

// remove is for the paths that give up before anything was written.
func closeQuietly(f *os.File) { _ = f.Close() } // it was only read, or its lock ends here

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/counterfoil/counterfoil/internal/journal"
)

const (
	nodes = 3
	// soon is how long a test waits for what must happen before it fails. On a busy
	// machine elections take their time.
	soon = 30 * time.Second
)

// cluster is three servers, each joined to the others by links.
type cluster struct {
	servers [nodes]*server.Server
	links   map[[2]int]*link // by the two servers, the lower number first
}

// start begins a cluster with these accounts, a user of the same name in each.
func start(t *testing.T, accounts ...string) *cluster {
	t.Helper()
	c := &cluster{links: map[[2]int]*link{}}
	dir := t.TempDir()
	for i := range nodes {
		for j := range i {
			c.links[[2]int{j, i}] = newLink(t)
		}
	}
	// A server without any route to ask for refuses to be one of a cluster. The
	// first has nobody before it, asks itself, notices, and leaves it.
	c.links[[2]int{0, 0}] = newLink(t)
	t.Cleanup(func() {
		for _, k := range c.links {
			k.close()
		}
	})
	for i := range nodes {
		s := c.boot(t, dir, i, accounts)
		c.servers[i] = s
		eventually(t, "routes are listened for", func() bool { return s.ClusterAddr() != nil })
		for pair, k := range c.links {
			if pair[0] == i {
				k.leadTo(s.ClusterAddr().String(), "")
			}
		}
	}
	for i, s := range c.servers {
		if !s.ReadyForConnections(soon) {
			t.Fatalf("server %d is not ready", i)
		}
	}
	eventually(t, "the servers choose a leader", func() bool {
		return c.find(func(s *server.Server) bool { return s.JetStreamIsLeader() }) >= 0
	})
	return c
}

// boot starts one server. It asks those before it for routes, through the links,
// one for each account.
func (c *cluster) boot(t *testing.T, dir string, i int, accounts []string) *server.Server {
	t.Helper()
	var routes, sections []string
	for j := range max(i, 1) {
		routes = append(routes, "nats-route://"+c.links[[2]int{j, i}].address())
	}
	for _, name := range accounts {
		// With the consensus of its streams on its own connection, an account can
		// lose it while its requests to the servers go on.
		sections = append(sections, fmt.Sprintf("%[1]s: { jetstream: { cluster_traffic: owner }, users: [ { user: %[1]s, password: %[1]s } ] }", name))
	}
	// Told of each other, servers would go past the links. What they advertise leads
	// nowhere.
	text := fmt.Sprintf(`
		server_name: node%d
		listen: "127.0.0.1:-1"
		jetstream: { store_dir: %q, max_mem: 64M, max_file: 64G }
		system_account: SYS
		accounts: { SYS: { users: [ { user: system, password: system } ] }, %s }
		cluster: { name: test, listen: "127.0.0.1:-1", no_advertise: true, advertise: "127.0.0.1:1", accounts: [ %s ], routes: [ %s ] }
	`, i, filepath.Join(dir, fmt.Sprint(i)), strings.Join(sections, ", "), strings.Join(accounts, ", "), strings.Join(routes, ", "))
	file := filepath.Join(dir, fmt.Sprintf("node%d.conf", i))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs, options.NoLog = true, os.Getenv("CLUSTER_TEST_LOG") == ""
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CLUSTER_TEST_LOG") != "" {
		options.Debug = true
		s.ConfigureLogger()
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// find gives the first server for which it holds, or -1.
func (c *cluster) find(holds func(*server.Server) bool) int {
	for i, s := range c.servers {
		if s.Running() && holds(s) {
			return i
		}
	}
	return -1
}

// leader is which server leads the stream, by what it says itself; -1 is none.
func (c *cluster) leader(account string, s journal.Stream) int {
	return c.find(func(n *server.Server) bool { return n.JetStreamIsStreamLeader(account, string(s)) })
}

// leaderOf waits until there is one.
func (c *cluster) leaderOf(t *testing.T, account string, s journal.Stream) int {
	t.Helper()
	at := -1
	eventually(t, fmt.Sprintf("%s has a leader", s), func() bool {
		at = c.leader(account, s)
		return at >= 0
	})
	return at
}

// others are the servers but this one.
func (c *cluster) others(not int) (list []int) {
	for i := range nodes {
		if i != not {
			list = append(list, i)
		}
	}
	return list
}

// isolate keeps the account's streams on one server from those on the others.
func (c *cluster) isolate(i int, account string) {
	for pair, k := range c.links {
		if pair[0] == i || pair[1] == i {
			k.hold(account)
		}
	}
}

// heal delivers everything that was kept back.
func (c *cluster) heal(account string) {
	for _, k := range c.links {
		k.release(account)
	}
}

func (c *cluster) url(account string, i int) string {
	return "nats://" + account + ":" + account + "@" + c.servers[i].Addr().String()
}

// connect opens a store as a client of one server.
func (c *cluster) connect(t *testing.T, account string, i int) *journal.NATS {
	t.Helper()
	return connect(t, c.url(account, i))
}

func connect(t *testing.T, url string) *journal.NATS {
	t.Helper()
	n, err := journal.Connect(t.Context(), journal.Config{URLs: url, Name: t.Name(), Replicas: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// provision makes the account's streams.
func (c *cluster) provision(t *testing.T, account string) {
	t.Helper()
	n := c.connect(t, account, 0)
	// A cluster that has just begun refuses at times.
	var err error
	eventually(t, "streams are made", func() bool {
		err = n.Provision(t.Context())
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test if it does not hold soon.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	within(t, soon, what, holds)
}

func within(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	for begin := time.Now(); ; {
		if holds() {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func newJournal(s journal.Store) *journal.Journal {
	var last atomic.Uint64
	prefix := fmt.Sprintf("j%p-", &last)
	return journal.New(journal.Options{
		Store: s, Now: time.Now, Sleep: sleepFor,
		NewID: func() string { return prefix + fmt.Sprint(last.Add(1)) },
	})
}

func sleepFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

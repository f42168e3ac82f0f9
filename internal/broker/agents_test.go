package broker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/internal/broker"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// doorman knows alice, bob, and a reader of alice's who may not submit.
type doorman struct {
	mu      sync.Mutex
	revoked map[string]bool // by key; guarded by mu
	end     time.Time       // of a key that expires
}

func (d *doorman) Admit(key string) (broker.Agent, error) {
	who, ok := map[string]broker.Agent{
		"cf_k1.alice": {Principal: "alice", Key: "k1", Submits: true, Reads: true},
		"cf_k2.bob":   {Principal: "bob", Key: "k2", Submits: true, Reads: true},
		"cf_k3.read":  {Principal: "alice", Key: "k3", Reads: true},
		"cf_k4.write": {Principal: "alice", Key: "k4", Submits: true},
		"cf_k5.none":  {Principal: "alice", Key: "k5"},
		"cf_k6.brief": {Principal: "alice", Key: "k6", Submits: true, Expires: d.end},
	}[key]
	if !ok {
		return broker.Agent{}, errors.New("nobody")
	}
	return d.Still(who)
}

func (d *doorman) Still(a broker.Agent) (broker.Agent, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.revoked[a.Key] {
		return broker.Agent{}, errors.New("revoked")
	}
	return a, nil
}

// port is a server with streams and a socket for agents.
type port struct {
	t       *testing.T
	url     string
	dial    func() (net.Conn, error)
	store   *journal.NATS
	door    *journal.Door
	doorman *doorman
	log     *syncBuilder
	tls     *tls.Config  // of clients
	skip    atomic.Int64 // what its clock is ahead
}

type syncBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuilder) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuilder) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func openPort(t *testing.T, server, client *tls.Config) *port {
	t.Helper()
	p := &port{t: t, doorman: &doorman{revoked: map[string]bool{}}, log: &syncBuilder{}, tls: client}
	b, err := broker.Start(broker.Config{
		Dir: t.TempDir(), Run: "run", Now: func() time.Time { return time.Now().Add(time.Duration(p.skip.Load())) }, Sync: broker.SyncInterval, Logger: slog.New(slog.NewTextHandler(p.log, nil)),
		Agents: &broker.Agents{Listen: "127.0.0.1:0", TLS: server, Admit: p.doorman.Admit, Still: p.doorman.Still},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	p.url = b.AgentsURL()
	if p.store, err = journal.Connect(t.Context(), journal.Config{Dial: b.InProcess, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.store.Close)
	if err := p.store.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.dial = b.InProcess
	p.door = p.open()
	return p
}

// open opens a door beside those that are open.
func (p *port) open() *journal.Door {
	p.t.Helper()
	d, err := journal.OpenDoor(journal.Config{Dial: p.dial, Logger: slog.New(slog.NewTextHandler(p.log, nil))})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(d.Close)
	return d
}

// agent is a client of the public library, as agents have it.
type agent struct {
	*nats.Conn
	t      *testing.T
	errs   chan error
	closed chan struct{}
}

func (p *port) connect(options ...nats.Option) (*agent, error) {
	a := &agent{t: p.t, errs: make(chan error, 100), closed: make(chan struct{})}
	options = append(options,
		nats.NoReconnect(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.errs <- err }),
		nats.ClosedHandler(func(*nats.Conn) { close(a.closed) }))
	if p.tls != nil {
		options = append(options, nats.Secure(p.tls))
	}
	var err error
	if a.Conn, err = nats.Connect(p.url, options...); err == nil {
		p.t.Cleanup(a.Close)
	}
	return a, err
}

func (p *port) as(key string) *agent {
	p.t.Helper()
	a, err := p.connect(nats.Token(key))
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// violates runs do and wants the server to refuse what it asks for.
func (a *agent) violates(what string, do func() error) {
	a.t.Helper()
	for len(a.errs) > 0 {
		if err := <-a.errs; !errors.Is(err, nats.ErrPermissionViolation) {
			a.t.Errorf("before %s: %v", what, err)
		}
	}
	if err := do(); err != nil {
		a.t.Errorf("%s: %v", what, err)
	}
	if err := a.Flush(); err != nil {
		a.t.Errorf("%s: %v", what, err)
	}
	select {
	case err := <-a.errs:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			a.t.Errorf("%s: %v", what, err)
		}
	case <-time.After(10 * time.Second):
		a.t.Errorf("%s: was not refused", what)
	}
}

func (p *port) messages(s journal.Stream) int {
	n := 0
	for from := uint64(1); ; n++ {
		m, err := p.store.Next(p.t.Context(), s, ">", from)
		if err != nil {
			return n
		}
		from = m.Sequence + 1
	}
}

func (p *port) all() string {
	var list []string
	for _, s := range journal.Streams() {
		list = append(list, fmt.Sprintf("%s %d", s, p.messages(s)))
	}
	return strings.Join(list, ", ")
}

func TestAgentPublishesItsOwnIntents(t *testing.T) {
	p := openPort(t, nil, nil)
	for name, options := range map[string][]nats.Option{
		"token": {nats.Token("cf_k1.alice")}, "principal": {nats.UserInfo("alice", "cf_k1.alice")}, "key id": {nats.UserInfo("k1", "cf_k1.alice")},
	} {
		a, err := p.connect(append(options, nats.CustomInboxPrefix("_INBOX.alice"))...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		js, err := jetstream.New(a.Conn)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "intents.alice", Header: nats.Header{"ce-id": {name}}, Data: []byte("x")})
		if err != nil || ack.Stream != "INTENTS" {
			t.Fatalf("%s: %+v %v", name, ack, err)
		}
		// The server wrote the key into the subject, which no agent can.
		m, err := p.store.Last(t.Context(), journal.Intents, "intents.*.*")
		if err != nil || m.Subject != "intents.alice.k1" || m.Sequence != ack.Sequence || m.Header["ce-id"][0] != name {
			t.Errorf("%s: stored %+v %v", name, m, err)
		}
	}
	for name, options := range map[string][]nats.Option{
		"nobody": nil, "wrong": {nats.Token("cf_k1.bob")}, "empty": {nats.Token("")}, "another's name": {nats.UserInfo("bob", "cf_k1.alice")},
		"key as the name": {nats.UserInfo("cf_k1.alice-canary", "x")}, "bare nkey": {nats.UserInfo("k1", "")},
	} {
		if _, err := p.connect(options...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if strings.Contains(p.log.String(), "canary") {
		t.Errorf("the log has what a client said: %s", p.log)
	}
}

// TestAgentReadsItsOwnVerdicts as they come and later, and no others.
func TestAgentReadsItsOwnVerdicts(t *testing.T) {
	p := openPort(t, nil, nil)
	alice, bob := p.as("cf_k1.alice"), p.as("cf_k2.bob")
	live, err := alice.SubscribeSync("verdicts.alice.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := alice.Flush(); err != nil {
		t.Fatal(err)
	}
	j := journal.New(journal.Options{Store: p.store, Now: time.Now, Sleep: func(context.Context, time.Duration) error { return nil }, NewID: func() string { return "x" }})
	for _, who := range []string{"alice", "bob"} {
		if err := j.StoreVerdict(t.Context(), who, "h", map[string][]string{"ce-id": {"1"}}, []byte("for "+who)); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := live.NextMsg(10 * time.Second); err != nil || string(m.Data) != "for alice" {
		t.Errorf("as it came: %v %v", m, err)
	}
	const direct = "$JS.API.DIRECT.GET.VERDICTS."
	if m, err := alice.Request(direct+"verdicts.alice.h", nil, 10*time.Second); err != nil || string(m.Data) != "for alice" || m.Header.Get("Nats-Subject") != "verdicts.alice.h" {
		t.Errorf("later: %+v %v", m, err)
	}
	if m, err := alice.Request(direct+"verdicts.alice.none", nil, 10*time.Second); err != nil || m.Header.Get("Status") != "404" {
		t.Errorf("none: %+v %v", m, err)
	}
	// A wildcard in place of the token stays among its own.
	for _, token := range []string{"*", ">"} {
		if m, err := alice.Request(direct+"verdicts.alice."+token, nil, 10*time.Second); err != nil || strings.Contains(string(m.Data), "bob") {
			t.Errorf("%s: %+v %v", token, m, err)
		}
	}
	// What is asked for in the body does not lead past the subject.
	for _, ask := range []string{`{"last_by_subj":"verdicts.bob.h"}`, `{"multi_last":["verdicts.bob.h"]}`, `{"seq":2}`, `{"next_by_subj":"verdicts.bob.h"}`} {
		if m, err := alice.Request(direct+"verdicts.alice.h", []byte(ask), 10*time.Second); err != nil || strings.Contains(string(m.Data), "bob") {
			t.Errorf("%s: %+v %v", ask, m, err)
		}
	}
	for what, do := range map[string]func() error{
		"read of another's verdict":      func() error { return alice.PublishRequest(direct+"verdicts.bob.h", "_INBOX.x", nil) },
		"read of all verdicts":           func() error { return alice.PublishRequest(direct[:len(direct)-1], "_INBOX.x", []byte(`{"seq":2}`)) },
		"read by a wildcard":             func() error { return alice.PublishRequest(direct+"verdicts.*.h", "_INBOX.x", nil) },
		"read of what was rejected":      func() error { return alice.PublishRequest(direct+"rejected.alice.1", "_INBOX.x", nil) },
		"subscription to another's":      func() error { _, err := alice.SubscribeSync("verdicts.bob.*"); return err },
		"subscription to everybody's":    func() error { _, err := alice.SubscribeSync("verdicts.>"); return err },
		"subscription to everything":     func() error { _, err := alice.SubscribeSync(">"); return err },
		"subscription to what is stored": func() error { _, err := bob.SubscribeSync("facts.>"); return err },
	} {
		a := alice
		if strings.Contains(what, "stored") {
			a = bob
		}
		a.violates(what, do)
	}
}

// TestEverythingElseIsClosed to an agent, by the subject of a message and by the
// address of its answer.
func TestEverythingElseIsClosed(t *testing.T) {
	p := openPort(t, nil, nil)
	alice, reader := p.as("cf_k1.alice"), p.as("cf_k3.read")
	before := p.all()
	for _, subject := range []string{
		"intents.bob", "intents.alice.k1", "intents.bob.k2", "intents.alice.k3", "verdicts.alice.h", "rejected.alice.1",
		"facts.0.01.op_a", "history.1.01.op_a", "wake.op_a", "due.example.op_a", "epoch.01", "control.hold", "job.example.default.h", "ref.example.h",
		"webhooks.example.k", "payloads.abc", "slot.example.default.0",
		"$JS.API.INFO", "$JS.API.STREAM.INFO.LEDGER", "$JS.API.STREAM.INFO.VERDICTS", "$JS.API.STREAM.DELETE.INTENTS", "$JS.API.STREAM.MSG.GET.VERDICTS",
		"$JS.API.STREAM.PURGE.INTENTS", "$JS.API.STREAM.CREATE.MINE", "$JS.API.DIRECT.GET.LEDGER.facts.0.01.op_a",
		"$JS.API.CONSUMER.CREATE.VERDICTS.mine.verdicts.alice.*", "$JS.API.CONSUMER.CREATE.INTENTS", "$JS.API.CONSUMER.MSG.NEXT.INTENTS.intents",
		"$JS.ACK.INTENTS.intents.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.ACCOUNT.x.CONNECT", "_INBOX.bob.x",
	} {
		alice.violates("publish on "+subject, func() error { return alice.PublishRequest(subject, "_INBOX.alice.x", []byte("{}")) })
	}
	reader.violates("an intent without the right to submit", func() error { return reader.Publish("intents.alice", nil) })
	for _, key := range []string{"cf_k4.write", "cf_k5.none"} {
		blind := p.as(key)
		blind.violates("a verdict without the right to read", func() error { return blind.Publish("$JS.API.DIRECT.GET.VERDICTS.verdicts.alice.h", nil) })
		blind.violates("verdicts without the right to read", func() error { _, err := blind.SubscribeSync("verdicts.alice.*"); return err })
		blind.violates("another's intent", func() error { return blind.Publish("intents.bob", nil) })
		blind.violates("a fact", func() error { return blind.Publish("facts.0.01.op_a", nil) })
	}

	// The server answers where it is told to, and never in the store's subjects.
	bob := p.as("cf_k2.bob")
	overheard, err := bob.SubscribeSync("_INBOX.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := bob.Flush(); err != nil {
		t.Fatal(err)
	}
	var last uint64
	for _, reply := range []string{
		"facts.0.01.op_a", "control.hold", "wake.op_a", "intents.bob.k2", "verdicts.bob.h", "payloads.abc", "webhooks.example.k", "$JS.API.STREAM.DELETE.INTENTS", "_INBOX.bob.x",
	} {
		for _, subject := range []string{"intents.alice", "$JS.API.DIRECT.GET.VERDICTS.verdicts.alice.h"} {
			if err := alice.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
		// Whatever was made of those is there before the answer to this one.
		js, err := jetstream.New(alice.Conn)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), "intents.alice", nil)
		if err != nil {
			t.Fatalf("after an answer to %s: %v", reply, err)
		}
		last = ack.Sequence
	}
	if m, err := overheard.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("bob was told %s: %s", m.Subject, m.Data)
	}
	if after := p.all(); after != strings.Replace(before, "INTENTS 0", fmt.Sprintf("INTENTS %d", last), 1) || last < 10 {
		t.Errorf("stored before: %s\nafter: %s", before, after)
	}
	if m, err := p.store.Last(t.Context(), journal.Intents, "intents.bob.*"); err == nil {
		t.Errorf("in bob's name: %+v", m)
	}
}

// TestAgentsDoNotFillTheLog: what they are refused is no failure of ours, and is told
// some times in a minute.
func TestAgentsDoNotFillTheLog(t *testing.T) {
	p := openPort(t, nil, nil)
	alice := p.as("cf_k1.alice")
	const tries = 60
	for n := range tries {
		if err := alice.Publish(fmt.Sprintf("facts.0.01.op_%d", n), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := alice.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if _, err := p.connect(nats.Token("cf_k1.wrong")); !errors.Is(err, nats.ErrAuthorization) {
			t.Fatal(err)
		}
	}
	text := p.log.String()
	if n := strings.Count(text, "Violation"); n < 1 || n > 20 {
		t.Errorf("%d lines tell of violations:\n%.2000s", n, text)
	}
	if lines := strings.Count(text, "about a connection from outside"); lines > 20 || strings.Contains(text, "level=ERROR") {
		t.Errorf("%d lines:\n%.2000s", lines, text)
	}
	// In the next minute there is one again, which says what was left out.
	p.skip.Store(int64(time.Minute))
	if _, err := p.connect(nats.Token("cf_k1.wrong")); !errors.Is(err, nats.ErrAuthorization) {
		t.Fatal(err)
	}
	if text := p.log.String(); !strings.Contains(text, fmt.Sprintf("left_out_before=%d", tries+40-20)) {
		t.Errorf("nothing says what was left out:\n%.4000s", text[max(0, len(text)-1000):])
	}
}

// TestRevokedKeyIsCutOff while it is connected, and not let in again.
func TestRevokedKeyIsCutOff(t *testing.T) {
	p := openPort(t, nil, nil)
	alice, bob := p.as("cf_k1.alice"), p.as("cf_k2.bob")
	p.doorman.mu.Lock()
	p.doorman.revoked["k1"] = true
	p.doorman.mu.Unlock()
	select {
	case <-alice.closed:
	case <-time.After(20 * time.Second):
		t.Fatal("it was not cut off")
	}
	if _, err := p.connect(nats.Token("cf_k1.alice")); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("it was let in again: %v", err)
	}
	if err := bob.Flush(); err != nil {
		t.Errorf("another was cut off, too: %v", err)
	}
}

// TestKeyThatExpiresIsCutOff at its end, without anybody being asked.
func TestKeyThatExpiresIsCutOff(t *testing.T) {
	p := openPort(t, nil, nil)
	p.doorman.end = time.Now().Add(time.Second)
	brief := p.as("cf_k6.brief")
	select {
	case <-brief.closed:
		if time.Now().Before(p.doorman.end) {
			t.Error("it was cut off too early")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it was not cut off")
	}
}

func TestAgentsByTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	p := openPort(t, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool})
	js, err := jetstream.New(p.as("cf_k1.alice").Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "intents.alice", nil); err != nil {
		t.Error(err)
	}
	p.tls = nil
	if _, err := p.connect(nats.Token("cf_k1.alice")); err == nil {
		t.Error("a client without TLS was let in")
	}
}

func TestAgentsNeedWhatTheyNeed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	admit := (&doorman{}).Admit
	still := (&doorman{}).Still
	for name, c := range map[string]struct {
		agents broker.Agents
		listen string
		want   string
	}{
		"a public address without TLS": {broker.Agents{Listen: "0.0.0.0:0", Admit: admit, Still: still}, "", "certificate"},
		"a name without TLS":           {broker.Agents{Listen: "localhost:0", Admit: admit, Still: still}, "", "certificate"},
		"no port":                      {broker.Agents{Listen: "127.0.0.1", Admit: admit, Still: still}, "", "port"},
		"a port that is none":          {broker.Agents{Listen: "127.0.0.1:x", Admit: admit, Still: still}, "", "65535"},
		"an address that is taken":     {broker.Agents{Listen: taken.Addr().String(), Admit: admit, Still: still}, "", "listen for agents"},
		"nobody to ask":                {broker.Agents{Listen: "127.0.0.1:0"}, "", "who agents are"},
		"two addresses":                {broker.Agents{Listen: "127.0.0.1:0", Admit: admit, Still: still}, "127.0.0.1:0", "one address"},
	} {
		_, err := broker.Start(broker.Config{Dir: t.TempDir(), Run: "run", Now: time.Now, Sync: broker.SyncInterval, Listen: c.listen, Agents: &c.agents})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// rolesMay is what the roles need together to publish on; tests/cluster/drive has it
// for each. docs/NATS.md says what agents add to it for ingest.
const rolesMay = `"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.>",
  "facts.>", "payloads.*", "control.*", "job.>", "verdicts.*.*", "rejected.*.*", "history.>", "wake.*", "due.>", "epoch.*", "ref.>", "client.>", "parked.>", "slot.>", "webhooks.>",
  "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.DELETE.>", "$JS.API.CONSUMER.UNPIN.>", "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>",
  "intents.*.*", "_R_.>"`

// newNkey writes a seed and gives its public key.
func newNkey(t *testing.T, path string) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err = errors.Join(err, os.WriteFile(path, seed, 0o600)); err != nil {
		t.Fatal(err)
	}
	return public
}

// natsCluster starts three servers with the accounts, each in its directory, and gives
// their URLs.
func natsCluster(t *testing.T, dir, accounts string) []string {
	t.Helper()
	var ports []int
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var routes, urls []string
	for _, p := range ports {
		routes = append(routes, fmt.Sprintf("\"nats-route://127.0.0.1:%d\"", p))
	}
	var list []*server.Server
	for i, p := range ports {
		file := filepath.Join(dir, fmt.Sprintf("nats-%d.conf", i))
		if err := os.WriteFile(file, fmt.Appendf(nil, "server_name: n%d\nlisten: \"127.0.0.1:-1\"\nmax_payload: 2MB\njetstream { store_dir: %q, max_file: 64G }\ncluster { name: c, listen: \"127.0.0.1:%d\", routes: [%s] }\naccounts {\n%s\n}\n",
			i, filepath.Join(dir, fmt.Sprint("store", i)), p, strings.Join(routes, ", "), accounts), 0o600); err != nil {
			t.Fatal(err)
		}
		options, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Fatal(err)
		}
		options.NoSigs, options.NoLog = true, true
		s, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		list = append(list, s)
	}
	limit := time.Now().Add(60 * time.Second)
	for _, s := range list {
		if !s.ReadyForConnections(time.Until(limit)) {
			t.Fatal("a server is not ready")
		}
		urls = append(urls, s.ClientURL())
	}
	for ; ; time.Sleep(50 * time.Millisecond) {
		for _, s := range list {
			if s.JetStreamIsLeader() {
				return urls
			}
		}
		if time.Now().After(limit) {
			t.Fatal("the servers choose no leader")
		}
	}
}

// TestAgentsOnACluster: on three servers, with the accounts that nats-users writes and
// roles that may do what they need and no more, agents are answered, whichever server
// each is connected to, and reach nothing else.
func TestAgentsOnACluster(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	command := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs, func(string) string { return "" }); code != 0 {
			t.Fatalf("%v: %d %s", args, code, errs.String())
		}
		return out.String()
	}
	for _, who := range []string{"alice", "bob"} {
		command("principal", "create", who, "--keys", in("keys"))
	}
	agents := command("nats-users", "--keys", in("keys"), "--seeds", in("seeds"))
	var exports strings.Builder
	for line := range strings.Lines(agents) {
		if text, ok := strings.CutPrefix(line, "#   "); ok {
			exports.WriteString(text)
		}
	}
	admin, roles := newNkey(t, in("admin.nk")), newNkey(t, in("roles.nk"))
	urls := natsCluster(t, dir, fmt.Sprintf("COUNTERFOIL: {\n jetstream: enabled\n users: [ { nkey: %s }, { nkey: %s, permissions: { publish: { allow: [%s] }, subscribe: { allow: [\"_INBOX.>\", \"offers.*.*\"] } } } ]\n%s\n}\n%s",
		admin, roles, rolesMay, exports.String(), agents))
	command("provision", "--nats", urls[0], "--nats-creds", in("admin.nk"), "--replicas", "3", "--identity", in("identity.json"))

	ctx, stop := context.WithCancel(t.Context())
	out, to := io.Pipe()
	done := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		code := run(ctx, []string{
			"serve", "--nats", urls[1], "--nats-creds", in("roles.nk"), "--nats-agents", "--identity", in("identity.json"), "--keys", in("keys"),
			"--listen", "127.0.0.1:0", "--admin-listen", "", "--log-level", "error",
		}, to, &errs, func(string) string { return "" })
		_ = to.CloseWithError(io.EOF)
		done <- code
	}()
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = strings.HasPrefix(lines.Text(), "ready")
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, out)
	}()
	defer func() {
		stop()
		if code := <-done; code != 0 || errs.Len() > 0 {
			t.Errorf("serve ended with %d: %s", code, errs.String())
		}
		<-rest
	}()
	if !ready {
		t.Fatal("serve is not ready")
	}

	refused := make(chan error, 1000)
	connect := func(url, who string) *nats.Conn {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(in("seeds"), who+"-*.nk"))
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		by, err := nats.NkeyOptionFromSeed(list[0])
		if err != nil {
			t.Fatal(err)
		}
		conn, err := nats.Connect(url, by, nats.NoReconnect(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	for _, url := range urls {
		if conn, err := nats.Connect(url); !errors.Is(err, nats.ErrAuthorization) {
			if err == nil {
				conn.Close()
			}
			t.Errorf("without a credential: %v", err)
		}
	}

	alice, bob := connect(urls[2], "alice"), connect(urls[0], "bob")
	overheard, err := bob.SubscribeSync("_INBOX.bob.>")
	if err = errors.Join(err, bob.Flush()); err != nil {
		t.Fatal(err)
	}
	told := map[string]*nats.Subscription{}
	for who, conn := range map[string]*nats.Conn{"alice": alice, "bob": connect(urls[1], "bob")} {
		if told[who], err = conn.SubscribeSync("verdicts." + who + ".*"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "intents." + who, Data: []byte(`{"provider":"example","params":{}}`), Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-type": {"dev.counterfoil.operation.submit.v1"}, "ce-source": {"/a"}, "ce-id": {"1"}, "Nats-Msg-Id": {"same"},
		}})
		if err != nil || ack.Stream != string(journal.Intents) || ack.Duplicate {
			t.Fatalf("%s: %+v %v", who, ack, err)
		}
	}
	for who, sub := range told {
		m, err := sub.NextMsg(60 * time.Second)
		if err != nil {
			t.Fatalf("no verdict for %s: %v", who, err)
		}
		var v ingest.IntentVerdict
		if err := json.Unmarshal(m.Data, &v); err != nil || v.Status != 202 || v.Operation == nil {
			t.Errorf("%s: %s %v", who, m.Data, err)
		}
		if who == "alice" {
			// Any replica answers, also one that lags.
			subject := "$JS.API.DIRECT.GET.VERDICTS." + m.Subject
			for limit := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				m, err = alice.Request(subject, nil, 20*time.Second)
				if err != nil || m.Header.Get("Status") == "" || time.Now().After(limit) {
					break
				}
			}
			if err != nil || !strings.Contains(string(m.Data), v.Operation.ID) {
				t.Errorf("read later: %v %v", m, err)
			}
		}
	}

	// Nothing else can be published, and no answer leads anywhere.
	for _, subject := range []string{
		"intents.bob", "intents.alice.k", "offers.alice.k", "offers.bob.k", "verdicts.alice.h", "facts.0.01.op_a", "control.hold", "wake.op_a", "slot.example.default.0",
		"_R_.a.b", "$JS.API.INFO", "$JS.API.STREAM.INFO.LEDGER", "$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.DELETE.INTENTS", "$JS.API.DIRECT.GET.VERDICTS.verdicts.bob.h",
		"$JS.API.DIRECT.GET.VERDICTS.rejected.alice.1", "$JS.API.CONSUMER.CREATE.VERDICTS.x", "$JS.ACK.INTENTS.intents.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "_INBOX.bob.x",
	} {
		if err := errors.Join(alice.PublishRequest(subject, "_INBOX.alice.x", []byte("{}")), alice.Flush()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", subject, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s was not refused", subject)
		}
	}
	for _, subject := range []string{"verdicts.bob.*", "verdicts.>", ">", "facts.>", "offers.>", "_R_.>"} {
		if _, err := alice.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", subject, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s was not refused", subject)
		}
	}
	store, err := journal.Connect(t.Context(), journal.Config{URLs: urls[0], Replicas: 3, Credentials: func() ([]byte, error) { return os.ReadFile(in("admin.nk")) }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, reply := range []string{"facts.0.01.op_a", "control.hold", "wake.op_a", "verdicts.bob.h", "offers.bob.k", "payloads.abc", "_INBOX.bob.x"} {
		for _, subject := range []string{"intents.alice", "$JS.API.DIRECT.GET.VERDICTS.verdicts.alice.h"} {
			if err := alice.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	js, err := jetstream.New(alice)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "intents.alice", nil); err != nil { // whatever was made of those is there
		t.Fatal(err)
	}
	for stream, subject := range map[journal.Stream]string{
		journal.Ledger: "facts.0.01.op_a", journal.Control: "control.hold", journal.Wakeups: "wake.op_a", journal.Verdicts: "verdicts.bob.h", journal.Payloads: "payloads.abc",
	} {
		if m, err := store.Last(t.Context(), stream, subject); !errors.Is(err, journal.ErrNoMessage) {
			t.Errorf("an answer is in %s: %+v %v", stream, m, err)
		}
	}
	if m, err := overheard.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("bob was told %s: %s", m.Subject, m.Data)
	}
}

// TestTheGlobalAccountExportsNothing: what docs/NATS.md says of it is the server's.
func TestTheGlobalAccountExportsNothing(t *testing.T) {
	services, _ := journal.AgentExports()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "accounts { \"$G\": { exports: [ { service: %q } ] } }\n", services[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ProcessConfigFile(file); err == nil || !strings.Contains(err.Error(), "$G") {
		t.Errorf("the server takes it: %v", err)
	}
}

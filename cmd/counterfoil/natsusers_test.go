package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// natsUsersOf runs the command and gives what it printed.
func natsUsersOf(t *testing.T, keys, seeds string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"nats-users", "--keys", keys, "--seeds", seeds}, &out, &errs, func(string) string { return "" }); code != 0 {
		t.Fatalf("nats-users: %d %s", code, errs.String())
	}
	return out.String()
}

// TestNATSUsers has a server elsewhere take what the command writes, and agents with
// the seeds do what they may and not what they may not.
func TestNATSUsers(t *testing.T) {
	dir := t.TempDir()
	keys, seeds := filepath.Join(dir, "keys.jsonl"), filepath.Join(dir, "seeds")
	create := func(args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append(append([]string{"principal", "create"}, args...), "--keys", keys), &out, &errs, func(string) string { return "" }); code != 0 {
			t.Fatalf("principal create: %d %s", code, errs.String())
		}
	}
	create("alice")
	create("bob", "--scope", "read:own")
	create("carol", "--scope", "submit:*/*")
	agents := natsUsersOf(t, keys, seeds)
	if again := natsUsersOf(t, keys, seeds); again != agents {
		t.Errorf("written again it is another:\n%s\n%s", agents, again)
	}
	seedOf := func(principal string) string {
		list, err := filepath.Glob(filepath.Join(seeds, principal+"-*.nk"))
		if err != nil || len(list) != 1 {
			t.Fatalf("seeds of %s: %v %v", principal, list, err)
		}
		info, err := os.Stat(list[0])
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", list[0], info.Mode(), err)
		}
		text, err := os.ReadFile(list[0])
		if err != nil || strings.Contains(agents, strings.TrimSpace(string(text))) {
			t.Errorf("the configuration has a seed: %v", err)
		}
		return list[0]
	}

	admin, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := admin.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := admin.Seed()
	if err != nil {
		t.Fatal(err)
	}
	// The exports are what the first lines ask for.
	var exports []string
	for line := range strings.Lines(agents) {
		if text, ok := strings.CutPrefix(line, "#   "); ok {
			exports = append(exports, text)
		}
	}
	config := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(filepath.Join(dir, "agents"), []byte(agents), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, "listen: \"127.0.0.1:-1\"\nmax_payload: 2MB\njetstream { store_dir: %q }\naccounts {\n  COUNTERFOIL: {\n    jetstream: enabled\n    users: [ { nkey: %s } ]\n%s  }\n  include \"agents\"\n}\n",
		filepath.Join(dir, "store"), public, strings.Join(exports, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(config)
	if err != nil {
		t.Fatalf("the server cannot read it: %v\n%s", err, agents)
	}
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	store, err := journal.Connect(t.Context(), journal.Config{
		URLs: s.ClientURL(), Replicas: 1, Credentials: func() ([]byte, error) { return bytes.Clone(seed), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	door, err := journal.OpenDoor(journal.Config{URLs: s.ClientURL(), Credentials: func() ([]byte, error) { return bytes.Clone(seed), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()

	connect := func(principal string) (*nats.Conn, chan error) {
		t.Helper()
		who, err := nats.NkeyOptionFromSeed(seedOf(principal))
		if err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 10)
		conn, err := nats.Connect(s.ClientURL(), who, nats.NoReconnect(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn, refused
	}
	alice, refused := connect("alice")
	js, err := jetstream.New(alice)
	if err != nil {
		t.Fatal(err)
	}
	if err := alice.PublishRequest("intents.alice", "control.hold", nil); err != nil { // its answer goes nowhere
		t.Fatal(err)
	}
	ack, err := js.Publish(t.Context(), "intents.alice", []byte("x"))
	if err != nil || ack.Stream != string(journal.Intents) {
		t.Fatalf("%+v %v", ack, err)
	}
	if m, err := store.Last(t.Context(), journal.Intents, "intents.*.*"); err != nil || !strings.HasPrefix(m.Subject, "intents.alice.") || string(m.Data) != "x" {
		t.Errorf("%+v %v", m, err)
	}
	if _, err := store.Last(t.Context(), journal.Control, "control.hold"); !errors.Is(err, journal.ErrNoMessage) {
		t.Errorf("an answer of the server's is in CONTROL: %v", err)
	}
	if _, err := store.Publish(t.Context(), journal.Verdicts, journal.Outgoing{Subject: "verdicts.alice.h", Data: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	if m, err := alice.Request("$JS.API.DIRECT.GET.VERDICTS.verdicts.alice.h", nil, 10*time.Second); err != nil || string(m.Data) != "v" {
		t.Errorf("a verdict: %v %v", m, err)
	}
	bob, bobRefused := connect("bob")
	carol, carolRefused := connect("carol")
	for _, c := range []struct {
		conn    *nats.Conn
		refused chan error
		subject string
	}{
		{alice, refused, "intents.bob"},
		{alice, refused, "facts.0.01.op_a"},
		{alice, refused, "$JS.API.STREAM.INFO.LEDGER"},
		{alice, refused, "$JS.API.DIRECT.GET.VERDICTS.verdicts.bob.h"},
		{carol, carolRefused, "$JS.API.DIRECT.GET.VERDICTS.verdicts.carol.h"},
		{carol, carolRefused, "intents.bob"},
		{bob, bobRefused, "intents.bob"},
		{bob, bobRefused, "intents.alice"},
	} {
		if err := errors.Join(c.conn.Publish(c.subject, nil), c.conn.Flush()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-c.refused:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", c.subject, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s was not refused", c.subject)
		}
	}

	var errs bytes.Buffer
	if code := run(t.Context(), []string{"principal", "revoke", "alice", "--keys", keys}, &bytes.Buffer{}, &errs, func(string) string { return "" }); code != 0 {
		t.Fatalf("principal revoke: %d %s", code, errs.String())
	}
	if after := natsUsersOf(t, keys, seeds); strings.Contains(after, "alice") || !strings.Contains(after, "bob") {
		t.Errorf("after alice was revoked:\n%s", after)
	}
}

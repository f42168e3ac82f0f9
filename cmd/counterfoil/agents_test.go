package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/internal/ingest"
	"github.com/counterfoil/counterfoil/internal/intake"
)

// servedWithAgents runs serve with a socket for agents, and gives where that is, where
// HTTP is, and what ends it.
func servedWithAgents(t *testing.T, data string, more ...string) (agents, web string, end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan int, 1)
	go func() {
		args := append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--admin-listen", "", "--log-level", "error", "--nats-listen", "127.0.0.1:0", "--sync", "interval"}, more...)
		code := run(ctx, args, in, io.Discard, func(string) string { return "" })
		_ = in.CloseWithError(io.EOF)
		done <- code
	}()
	lines := bufio.NewScanner(out)
	for web == "" && lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "agents on "); ok {
			agents = at
		}
		if at, ok := strings.CutPrefix(lines.Text(), "ready on "); ok {
			web = at
		}
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, out)
	}()
	if agents == "" || web == "" {
		t.Fatalf("serve ended with %d", <-done)
	}
	end = func() {
		stop()
		if code := <-done; code != 0 {
			t.Errorf("serve ended with %d", code)
		}
		<-rest
	}
	return agents, web, end
}

// keyFor makes a principal and gives its key.
func keyFor(t *testing.T, data, principal string, more ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), append([]string{"principal", "create", principal, "--data", data}, more...), &out, &errs, func(string) string { return "" }); code != 0 {
		t.Fatalf("principal create: %d %s", code, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// TestAgentsByNATS is an agent's way by NATS alone: publish, read the verdict as it
// comes and later, and be cut off when the key is revoked.
func TestAgentsByNATS(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	at, web, end := servedWithAgents(t, data)
	defer func() { end() }()
	alice, bob := keyFor(t, data, "alice"), keyFor(t, data, "bob", "--scope", "read:own")

	const body = `{"provider":"example","params":{"n":1}}`
	event := func(id string) *nats.Msg {
		return &nats.Msg{Subject: "intents.alice", Data: []byte(body), Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-type": {"dev.counterfoil.operation.submit.v1"}, "ce-source": {"/agents/a"}, "ce-id": {id}, "ce-datacontenttype": {"application/json"},
		}}
	}
	closed := make(chan struct{})
	conn, err := nats.Connect(at, nats.UserInfo("alice", alice), nats.CustomInboxPrefix("_INBOX.alice"), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	verdicts, err := conn.SubscribeSync("verdicts.alice.*")
	if err != nil {
		t.Fatal(err)
	}
	next := func() ingest.IntentVerdict {
		t.Helper()
		m, err := verdicts.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var v ingest.IntentVerdict
		if err := json.Unmarshal(m.Data, &v); err != nil || m.Header.Get("ce-type") != ingest.EventVerdict {
			t.Fatalf("%s %v", m.Data, err)
		}
		return v
	}
	ack, err := js.PublishMsg(t.Context(), event("1"))
	if err != nil {
		t.Fatal(err)
	}
	first := next()
	if first.Status != 202 || first.Operation == nil || first.Sequence != ack.Sequence || first.ID != "1" {
		t.Fatalf("the verdict: %+v", first)
	}
	if _, err := js.PublishMsg(t.Context(), event("1")); err != nil {
		t.Fatal(err)
	}
	if again := next(); again.Status != 200 || !again.Replayed || again.Operation.ID != first.Operation.ID {
		t.Errorf("the same event again: %+v", again)
	}
	// Later, by another connection, after a restart of the service.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web+"/v1/events", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{
		"Authorization": {"Bearer " + alice}, "Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/agents/a"},
		"Ce-Type": {"dev.counterfoil.operation.submit.v1"},
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	http.DefaultClient.CloseIdleConnections()
	if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != 200 || !strings.Contains(string(text), first.Operation.ID) {
		t.Errorf("the same event by HTTP: %d %s %v", answer.StatusCode, text, err)
	}
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "intents.alice", Data: []byte("no event")}); err != nil {
		t.Fatal(err)
	}
	if v := next(); v.Problem == nil || v.Problem.Code != "validation_failed" || v.Problem.Status != 422 {
		t.Errorf("no event: %+v", v)
	}
	m, err := conn.Request("$JS.API.DIRECT.GET.VERDICTS.verdicts.alice."+intake.Token("/agents/a", "1"), nil, 10*time.Second)
	if err != nil || !strings.Contains(string(m.Data), first.Operation.ID) {
		t.Errorf("read later: %v %v", m, err)
	}

	// A key that may not submit cannot publish.
	refused := make(chan error, 1)
	other, err := nats.Connect(at, nats.Token(bob), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := errors.Join(other.Publish("intents.bob", []byte(body)), other.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("got %v", err)
	}

	var errs bytes.Buffer
	if code := run(t.Context(), []string{"principal", "revoke", "alice", "--data", data}, io.Discard, &errs, func(string) string { return "" }); code != 0 {
		t.Fatalf("principal revoke: %d %s", code, errs.String())
	}
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the revoked key was not cut off")
	}
	if _, err := nats.Connect(at, nats.Token(alice)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("it was let in again: %v", err)
	}
}

// TestAgentsKeyIsTheWholeOfIt: one with a blank before or behind it is another.
func TestAgentsKeyIsTheWholeOfIt(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	at, _, end := servedWithAgents(t, data)
	defer end()
	key := keyFor(t, data, "alice")
	for _, text := range []string{key + " ", " " + key, key + "\n", key + "\u00a0", "Bearer " + key, ""} {
		for name, option := range map[string]nats.Option{"token": nats.Token(text), "password": nats.UserInfo("alice", text)} {
			if conn, err := nats.Connect(at, option); !errors.Is(err, nats.ErrAuthorization) {
				if err == nil {
					conn.Close()
				}
				t.Errorf("%s %q: %v", name, text[:max(0, len(text)-len(key))], err)
			}
		}
	}
	conn, err := nats.Connect(at, nats.Token(key))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestAgentsWithOneMessageID: both intents are answered, whoever had the id before.
func TestAgentsWithOneMessageID(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	at, _, end := servedWithAgents(t, data)
	defer end()
	operations := map[string]string{}
	var acks []jetstream.PubAckFuture
	var verdicts []*nats.Subscription
	for _, who := range []string{"alice", "bob"} {
		conn, err := nats.Connect(at, nats.Token(keyFor(t, data, who)), nats.NoReconnect())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		told, err := conn.SubscribeSync("verdicts." + who + ".*")
		if err = errors.Join(err, conn.Flush()); err != nil {
			t.Fatal(err)
		}
		verdicts = append(verdicts, told)
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		// The option by which libraries set the header.
		ack, err := js.PublishMsgAsync(&nats.Msg{Subject: "intents." + who, Data: []byte(`{"provider":"example","params":{"n":1}}`), Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-type": {"dev.counterfoil.operation.submit.v1"}, "ce-source": {"/a"}, "ce-id": {"1"},
		}}, jetstream.WithMsgID("1"), jetstream.WithExpectStream("INTENTS"))
		if err != nil {
			t.Fatal(err)
		}
		acks = append(acks, ack)
	}
	for i, told := range verdicts {
		select {
		case ack := <-acks[i].Ok():
			if ack.Duplicate {
				t.Errorf("%+v", ack)
			}
		case err := <-acks[i].Err():
			t.Fatal(err)
		case <-time.After(20 * time.Second):
			t.Fatal("no acknowledgement came")
		}
		m, err := told.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var v ingest.IntentVerdict
		if err := json.Unmarshal(m.Data, &v); err != nil || v.Status != 202 || v.Operation == nil {
			t.Fatalf("%s: %s %v", m.Subject, m.Data, err)
		}
		operations[v.Operation.ID] = m.Subject
	}
	if len(operations) != 2 {
		t.Errorf("got %v", operations)
	}
}

func TestAgentFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"public without a certificate": {[]string{"--nats-listen", "0.0.0.0:0"}, "certificate"},
		"a certificate alone":          {[]string{"--nats-listen", "127.0.0.1:0", "--nats-listen-cert", "x"}, "go together"},
		"a certificate for nothing":    {[]string{"--nats-listen-cert", "x", "--nats-listen-key", "x"}, "--nats-listen"},
		"no such files":                {[]string{"--nats-listen", "127.0.0.1:0", "--nats-listen-cert", "x", "--nats-listen-key", "x"}, "--nats-listen-key"},
		"on a store elsewhere":         {[]string{"--nats", "nats://127.0.0.1:1", "--nats-listen", "127.0.0.1:0"}, "--nats-listen is about the embedded store"},
	} {
		var errs bytes.Buffer
		args := append([]string{"serve"}, c.args...)
		if !strings.Contains(name, "elsewhere") {
			args = append(args, "--data", filepath.Join(t.TempDir(), "data"))
		}
		code := run(t.Context(), args, io.Discard, &errs, func(string) string { return "" })
		if code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%s: %d %s, want %q", name, code, errs.String(), c.want)
		}
	}
}

// TestTryItByNATS does what docs/NATS.md has people try, with its subjects, headers and
// body, so that the lines there stay true.
func TestTryItByNATS(t *testing.T) {
	manual, err := os.ReadFile("../../docs/NATS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(manual), "\n## Try it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	find := func(pattern string) []string {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(section)
		if found == nil {
			t.Fatalf("docs/NATS.md has no %s", pattern)
		}
		return found[1:]
	}
	event := find(`source=(\S+) id=(\S+)`)
	values := strings.NewReplacer("$source", event[0], "$id", event[1])
	request := find(`nats request (\S+) '(.*)' --raw`)
	m := &nats.Msg{Subject: request[0], Data: []byte(request[1]), Header: nats.Header{}}
	for _, one := range regexp.MustCompile(`-H "?([a-z-]+):([^ "\n]+)`).FindAllStringSubmatch(section, -1) {
		m.Header.Add(one[1], values.Replace(one[2]))
	}
	read := strings.NewReplacer("$token", intake.Token(event[0], event[1])).Replace(find(`nats request "\\([^"]*)" '' --raw`)[0])

	data := filepath.Join(t.TempDir(), "data")
	at, _, end := servedWithAgents(t, data)
	defer end()
	conn, err := nats.Connect(at, nats.Token(keyFor(t, data, "local")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	verdicts, err := conn.SubscribeSync("verdicts.local.*")
	if err != nil {
		t.Fatal(err)
	}
	for n, status := range []int{202, 200} {
		ack, err := conn.RequestMsg(m, 20*time.Second)
		if err != nil || string(ack.Data) != fmt.Sprintf(`{"stream":"INTENTS","seq":%d}`, n+1) {
			t.Fatalf("acknowledged by %+v, %v", ack, err)
		}
		if _, err := verdicts.NextMsg(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		// Whoever listens has it as it is published, which is a moment before it is stored.
		var v ingest.IntentVerdict
		for end := time.Now().Add(20 * time.Second); v.Sequence != uint64(n+1); {
			answer, err := conn.Request(read, nil, 20*time.Second)
			if err != nil || time.Now().After(end) {
				t.Fatalf("%+v, %v", v, err)
			}
			if answer.Header.Get("Status") == "404" {
				continue
			}
			if err := json.Unmarshal(answer.Data, &v); err != nil {
				t.Fatalf("%s, %v", answer.Data, err)
			}
		}
		if v.Status != status || v.ID != event[1] || v.Operation == nil {
			t.Errorf("%+v", v)
		}
	}
}

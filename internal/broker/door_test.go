package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// intent publishes as agents do and gives the acknowledgement.
func (a *agent) intent(principal string, header nats.Header, data string) (*jetstream.PubAck, error) {
	a.t.Helper()
	js, err := jetstream.New(a.Conn)
	if err != nil {
		a.t.Fatal(err)
	}
	return js.PublishMsg(a.t.Context(), &nats.Msg{Subject: "intents." + principal, Header: header, Data: []byte(data)})
}

// TestMessageIDSuppressesNothing: an id that another agent used a moment ago does not
// have an intent dropped and acknowledged.
func TestMessageIDSuppressesNothing(t *testing.T) {
	p := openPort(t, nil, nil)
	alice, bob := p.as("cf_k1.alice"), p.as("cf_k2.bob")
	seen := map[uint64]bool{}
	for n := range 5 {
		for _, name := range []string{"Nats-Msg-Id", "nats-msg-id"} {
			for who, a := range map[string]*agent{"alice": alice, "bob": bob} {
				ack, err := a.intent(who, nats.Header{name: {"same"}, "ce-id": {"1"}}, fmt.Sprint(n))
				if err != nil || ack.Duplicate || ack.Stream != "INTENTS" || seen[ack.Sequence] {
					t.Fatalf("%s: %+v %v", who, ack, err)
				}
				seen[ack.Sequence] = true
				m, err := p.store.Next(t.Context(), journal.Intents, "intents.*.*", ack.Sequence)
				if err != nil || m.Sequence != ack.Sequence || !strings.HasPrefix(m.Subject, "intents."+who+".") || len(m.Header) != 1 {
					t.Fatalf("%s: stored %+v %v", who, m, err)
				}
			}
		}
	}
	if n := p.messages(journal.Intents); n != 20 {
		t.Errorf("%d intents are stored, want 20", n)
	}
}

// TestDoorKeepsWhatIsTheSenders and nothing that is addressed to the server.
func TestDoorKeepsWhatIsTheSenders(t *testing.T) {
	p := openPort(t, nil, nil)
	alice := p.as("cf_k1.alice")
	want := nats.Header{
		"ce-id": {"a%20b"}, "Ce-Type": {"t"}, "ce-many": {"1", "2"}, "content-type": {"application/json"}, "Traceparent": {"00-1-2-01"}, "X-Own": {" spaced "},
		"natsy": {"its own"},
	}
	sent := maps.Clone(want)
	sent["Nats-Msg-Id"], sent["Nats-Expected-Stream"] = []string{"x"}, []string{"INTENTS"}
	sent["Nats-Trace-Dest"] = []string{"$JS.API.DIRECT.GET.VERDICTS.verdicts.alice.t"}
	if _, err := alice.intent("alice", sent, "body"); err != nil {
		t.Fatal(err)
	}
	m, err := p.store.Last(t.Context(), journal.Intents, "intents.alice.k1")
	if err != nil || string(m.Data) != "body" {
		t.Fatalf("%+v %v", m, err)
	}
	want["X-Own"] = []string{"spaced"} // blanks around a value are none of it
	if !maps.EqualFunc(m.Header, want, slices.Equal[[]string]) {
		t.Errorf("stored %v, want %v", m.Header, want)
	}
	// Without an address for the answer it is stored all the same.
	if err := errors.Join(alice.Publish("intents.alice", []byte("unanswered")), alice.Flush()); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.intent("alice", nil, "after"); err != nil {
		t.Fatal(err)
	}
	if n := p.messages(journal.Intents); n != 3 {
		t.Errorf("%d intents are stored, want 3", n)
	}
	if p.messages(journal.Ledger) != 0 {
		t.Error("a trace is in the ledger")
	}
}

// TestHeadersForTheServerAreRefused, and the answers tell nothing of the stream.
func TestHeadersForTheServerAreRefused(t *testing.T) {
	p := openPort(t, nil, nil)
	alice, bob := p.as("cf_k1.alice"), p.as("cf_k2.bob")
	headers := map[string]string{
		"Nats-Expected-Last-Sequence": "7000", "Nats-Expected-Last-Subject-Sequence": "7000", "Nats-Expected-Last-Msg-Id": "x",
		"Nats-Expected-Last-Subject-Sequence-Subject": "intents.bob.k2", "Nats-Expected-Stream": "LEDGER", "Nats-TTL": "1s", "Nats-Rollup": "all",
		"Nats-Schedule": "@at 2100-01-01T00:00:00Z", "Nats-Incr": "1", "Nats-Batch-Id": "b", "nats-rollup": "sub", "Nats-Some-Day": "1",
	}
	answers := func() map[string]string {
		out := map[string]string{}
		for name, value := range headers {
			ack, err := alice.intent("alice", nats.Header{name: {value}}, "x")
			var api *jetstream.APIError
			if err == nil || ack != nil || !errors.As(err, &api) || api.Code != 400 {
				t.Errorf("%s: %+v %v", name, ack, err)
				continue
			}
			out[name] = err.Error()
		}
		return out
	}
	before := answers()
	for range 3 {
		if _, err := bob.intent("bob", nats.Header{"Nats-Msg-Id": {"secret"}}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if after := answers(); !maps.Equal(after, before) {
		t.Errorf("the answers tell of bob's intents:\n%v\n%v", before, after)
	}
	if n := p.messages(journal.Intents); n != 3 {
		t.Errorf("%d intents are stored, want 3", n)
	}
	// What the server itself refuses comes through as it is.
	_, err := alice.intent("alice", nil, strings.Repeat("x", journal.IntentSize+1))
	var api *jetstream.APIError
	if !errors.As(err, &api) || api.ErrorCode != 10054 {
		t.Errorf("too much: %v", err)
	}
}

// TestNobodyIsAcknowledgedWithoutADoor, and each message goes through one of several.
func TestNobodyIsAcknowledgedWithoutADoor(t *testing.T) {
	p := openPort(t, nil, nil)
	alice := p.as("cf_k1.alice")
	beside := p.open()
	for n := range 50 {
		if ack, err := alice.intent("alice", nil, "x"); err != nil || ack.Sequence != uint64(n+1) {
			t.Fatalf("%d: %+v %v", n, ack, err)
		}
	}
	p.door.Close()
	if ack, err := alice.intent("alice", nil, "x"); err != nil || ack.Sequence != 51 {
		t.Fatalf("with one door: %+v %v", ack, err)
	}
	beside.Close()
	if _, err := alice.Request("intents.alice", []byte("x"), 10*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("without a door: %v", err)
	}
	p.open()
	if ack, err := alice.intent("alice", nil, "x"); err != nil || ack.Sequence != 52 {
		t.Errorf("with a door again: %+v %v", ack, err)
	}
}

// TestManyIntentsAtOnce are each stored and acknowledged, once and in their order.
func TestManyIntentsAtOnce(t *testing.T) {
	p := openPort(t, nil, nil)
	const each = 3000
	alice := p.as("cf_k1.alice")
	js, err := jetstream.New(alice.Conn, jetstream.WithPublishAsyncMaxPending(each))
	if err != nil {
		t.Fatal(err)
	}
	acks := make([]jetstream.PubAckFuture, each)
	for n := range acks {
		if acks[n], err = js.PublishAsync("intents.alice", fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	for n, future := range acks {
		select {
		case ack := <-future.Ok():
			if ack.Sequence != uint64(n+1) {
				t.Fatalf("%d: %+v", n, ack)
			}
		case err := <-future.Err():
			t.Fatalf("%d: %v", n, err)
		case <-time.After(30 * time.Second):
			t.Fatalf("%d was not answered", n)
		}
	}
	if m, err := p.store.Last(t.Context(), journal.Intents, "intents.alice.k1"); err != nil || string(m.Data) != fmt.Sprint(each-1) {
		t.Errorf("the last: %+v %v", m, err)
	}
}

// TestFloodIsRefused and not acknowledged, what is acknowledged is stored, and the door
// goes on.
func TestFloodIsRefused(t *testing.T) {
	p := openPort(t, nil, nil)
	const each = 60 // of 1 MiB
	data := []byte(strings.Repeat("x", 1<<20))
	acknowledged := map[uint64]bool{}
	var futures []jetstream.PubAckFuture
	var publishers sync.WaitGroup
	var mu sync.Mutex
	for who, key := range map[string]string{"alice": "cf_k1.alice", "bob": "cf_k2.bob"} {
		js, err := jetstream.New(p.as(key).Conn, jetstream.WithPublishAsyncMaxPending(each))
		if err != nil {
			t.Fatal(err)
		}
		publishers.Go(func() {
			for range each {
				future, err := js.PublishAsync("intents."+who, data, jetstream.WithRetryAttempts(0))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				futures = append(futures, future)
				mu.Unlock()
			}
		})
	}
	publishers.Wait()
	limit, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for _, future := range futures {
		select {
		case ack := <-future.Ok():
			if acknowledged[ack.Sequence] {
				t.Errorf("%d is acknowledged twice", ack.Sequence)
			}
			acknowledged[ack.Sequence] = true
		case err := <-future.Err():
			var api *jetstream.APIError
			if !errors.As(err, &api) || api.Code != 429 || api.ErrorCode != 10167 {
				t.Errorf("refused: %v", err)
			}
		case <-limit.Done(): // it was dropped, as on a machine that is busy
		}
	}
	if len(acknowledged) == 0 {
		t.Error("none was stored")
	}
	for sequence := range acknowledged {
		if m, err := p.store.Next(t.Context(), journal.Intents, "intents.*.*", sequence); err != nil || m.Sequence != sequence {
			t.Errorf("%d is acknowledged and not stored: %v", sequence, err)
		}
	}
	if _, err := p.as("cf_k1.alice").intent("alice", nil, "after"); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// TestDoorAnswersAgentsAlone: an address that is not the server's own is none.
func TestDoorAnswersAgentsAlone(t *testing.T) {
	p := openPort(t, nil, nil)
	inside, err := nats.Connect("", nats.InProcessServer(pipe(p.dial)))
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	before := p.messages(journal.Control)
	if err := errors.Join(inside.PublishRequest("offers.alice.k1", "control.hold", []byte("x")), inside.Flush()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.as("cf_k1.alice").intent("alice", nil, "after"); err != nil {
		t.Fatal(err)
	}
	if p.messages(journal.Intents) != 2 || p.messages(journal.Control) != before {
		t.Errorf("stored: %s", p.all())
	}

	// Nobody stores intents: no acknowledgement, but an answer.
	js, err := jetstream.New(inside)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "INTENTS"); err != nil {
		t.Fatal(err)
	}
	m, err := p.as("cf_k1.alice").Request("intents.alice", []byte("x"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Error struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error.Code != 503 {
		t.Errorf("without the stream: %s %v", m.Data, err)
	}
}

// pipe implements the client library's interface.
type pipe func() (net.Conn, error)

func (p pipe) InProcessConn() (net.Conn, error) { return p() }

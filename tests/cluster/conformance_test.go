package cluster_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/conformance"
)

// What the journal relies on holds of a store on three replicas too.
func conforms(t *testing.T, c *cluster, account string) {
	n := 0
	conformance.RunLive(t, func(t *testing.T) journal.Store {
		if n++; n > 1 {
			c.empty(t, account)
			c.provision(t, account)
		}
		return c.connect(t, account, n%nodes)
	})
}

// empty removes the account's streams that hold or held something.
func (c *cluster) empty(t *testing.T, account string) {
	t.Helper()
	conn, err := nats.Connect(c.url(account, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range journal.Streams() {
		stream, err := js.Stream(t.Context(), string(s))
		if err != nil {
			t.Fatal(err)
		}
		if stream.CachedInfo().State.LastSeq == 0 {
			continue // untouched
		}
		if err := js.DeleteStream(t.Context(), string(s)); err != nil {
			t.Fatal(err)
		}
	}
}

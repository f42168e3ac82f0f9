// Package brokertest stops an embedded server within a bubble of fake time.
package brokertest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/broker"
)

// lastLook is longer than any of the server's loops sleeps before it looks
// whether the server ended.
const lastLook = 10 * time.Second

// Stop stops a server that the bubble goes on without. The server ends what is
// under way in it first: it sleeps while it holds a lock when it stops, and time
// stands still in a bubble for as long as somebody waits for a lock.
func Stop(t testing.TB, b *broker.Broker) {
	t.Helper()
	synctest.Wait()
	if err := b.Stop(); err != nil {
		t.Errorf("stop the store: %v", err)
	}
}

// End stops the server as the last thing in a bubble, 10 s of its time before
// its end: some of the server's loops look only now and then whether it ended,
// and no time passes in a bubble whose test has returned.
func End(t testing.TB, b *broker.Broker) {
	t.Helper()
	Stop(t, b)
	Outlast()
}

// Outlast lets the time pass that End lets pass, for a bubble whose server was
// stopped otherwise.
func Outlast() { time.Sleep(lastLook) }

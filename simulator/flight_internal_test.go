package simulator

import "testing"

// TestFlightGoneAtOnce: a memory connection tells that its client has left
// before the server has noticed.
func TestFlightGoneAtOnce(t *testing.T) {
	client, server := newMemoryPair()
	f := flight{conn: server, left: make(chan struct{})}
	if f.gone() {
		t.Error("gone while connected")
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if !f.gone() {
		t.Error("not gone after the client closed")
	}
}

package api

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Providers need no key, so whoever knows an address can send a body there and take
// its time. What all of them hold together is bounded; who comes beyond it is asked to
// deliver again, which providers do, and operations are polled meanwhile.
const (
	mostDeliveries = 1024
	mostDelivered  = 64 << 20         // bytes of bodies, as far as they have come
	deliveryTime   = 10 * time.Second // for the whole of a body
	deliverAgain   = 5 * time.Second  // what a sender is told to wait
)

// room is what deliveries hold that are being taken.
type room struct {
	mu         sync.Mutex
	deliveries int   // guarded by mu
	bytes      int64 // guarded by mu
}

// delivery is one delivery's part of the room. It belongs to one goroutine.
type delivery struct {
	room  *room
	bytes int64
}

// enter gives a part, or a refusal.
func (r *room) enter() (*delivery, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deliveries >= mostDeliveries {
		return nil, noRoom().Say("at most {max} deliveries are taken at once", ingest.Values{"max": mostDeliveries})
	}
	r.deliveries++
	return &delivery{room: r}, nil
}

func noRoom() *ingest.Refusal {
	return &ingest.Refusal{Code: ingest.CodeTooManyDeliveries, RetryAfter: deliverAgain}
}

// leave gives the part back.
func (d *delivery) leave() {
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	d.room.deliveries--
	d.room.bytes -= d.bytes
}

var errNoRoom = errors.New("no room for more bytes of deliveries")

// reading counts what is read. What there is no room for ends it.
func (d *delivery) reading(from io.Reader) io.Reader { return &countedReader{d, from} }

type countedReader struct {
	d    *delivery
	from io.Reader
}

// Read implements io.Reader.
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if n == 0 {
		return n, err
	}
	c.d.room.mu.Lock()
	defer c.d.room.mu.Unlock()
	if c.d.room.bytes+int64(n) > mostDelivered {
		return 0, errNoRoom
	}
	c.d.room.bytes += int64(n)
	c.d.bytes += int64(n)
	return n, err
}

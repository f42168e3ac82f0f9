package journal

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Unpacked counts the live states of the slate's partition that are kept as they
// are.
func (s *Slate) Unpacked() int {
	n := 0
	for p := s.part.live.first; p != nil; p = p.next {
		if p.state != nil {
			n++
		}
	}
	return n
}

// BoardHot is the bound of Unpacked.
const BoardHot = boardHot

// Repeat sends a request until it is answered.
func Repeat(ctx context.Context, conn *nats.Conn, subject string, body []byte) (*nats.Msg, error) {
	return repeat(ctx, conn, subject, body)
}

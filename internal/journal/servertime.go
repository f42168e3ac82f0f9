package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Time is the server's clock when it answers, for comparing a process's clock
// with the one that dates all facts.
func (n *NATS) Time(ctx context.Context) (time.Time, error) {
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		Time  time.Time           `json:"ts"`
	}
	err := n.ask(ctx, "STREAM.INFO."+string(Ledger), struct{}{}, &answer)
	switch {
	case err == nil && answer.Error != nil:
		err = answer.Error
	case err == nil && answer.Time.IsZero():
		err = fmt.Errorf("the answer has no time")
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the store's clock: %w", err)
	}
	return answer.Time, nil
}

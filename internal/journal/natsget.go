package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// directly is a read without the JSON and base64 of [NATS.get]. Where a stream
// has replicas any of them may answer it, and they lag; our streams allow it only
// where there is one, which is the leader. refused says that the server does not
// answer so for the stream: it has replicas, or it is not there.
func (n *NATS) directly(ctx context.Context, s Stream, request any) (m Message, refused bool, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return Message{}, false, err
	}
	answer, err := n.asks.request(ctx, &nats.Msg{Subject: apiPrefix + "DIRECT.GET." + string(s), Data: body}, answerLimit)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return Message{}, true, nil
	case err != nil:
		return Message{}, false, fmt.Errorf("read from stream %s: %w: %w", s, ErrUnread, err)
	}
	switch status := answer.Header.Get(statusHeader); status {
	case "":
	case statusNone:
		return Message{}, false, ErrNoMessage
	default:
		return Message{}, false, fmt.Errorf("read from stream %s: the server answered %.80q", s, status+" "+answer.Header.Get("Description"))
	}
	if m, err = directMessage(answer); err != nil {
		return Message{}, false, fmt.Errorf("read from stream %s: %w", s, err)
	}
	return m, false, nil
}

package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	keptAddresses = 256 // of a kind, idle

	noResponders = "503" // status of the server's answer where nobody listens

	ackHead, ackMiddle, ackTail = `{"stream":"`, `","seq":`, "}"
)

// asks sends requests and waits for their answers. The library's own requests
// have an address each, which the server looks up anew each time, and their
// answers go through one goroutine more, a context and a timer. Here who asks
// borrows an address that stays, under which one request is under way at most.
type asks struct {
	conn *nats.Conn

	mu   sync.Mutex    // guards what follows
	ones addresses     // for one answer
	many addresses     // for those to the messages of a run
	lost chan struct{} // closed when the connection is lost: no answer comes any more
}

// addresses are those that nobody uses, the one that was used last at the end.
type addresses []*address

// address is where answers come: to one request at a time, or to the messages of
// one run. To subscribe costs the server as much as several messages, so it stays.
// One whose answers did not all come is given up: a late one must not be taken
// for the answer to the next.
type address struct {
	inbox   string
	sub     *nats.Subscription
	answers chan *nats.Msg
	timer   *time.Timer // of a request
}

// request sends m, whose reply address it sets, and gives the one answer, for
// which it waits for limit at most. After an error nobody knows whether m
// arrived.
func (a *asks) request(ctx context.Context, m *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	one, lost, err := a.take(&a.ones, "", 1)
	if err != nil {
		return nil, err
	}
	m.Reply = one.inbox
	if err := a.conn.PublishMsg(m); err != nil {
		one.drop()
		return nil, err
	}
	one.timer.Reset(limit)
	select {
	case answer := <-one.answers:
		one.timer.Stop()
		a.put(&a.ones, one)
		if len(answer.Data) == 0 && answer.Header.Get(statusHeader) == noResponders {
			return nil, nats.ErrNoResponders
		}
		return answer, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-one.timer.C:
		err = context.DeadlineExceeded
	case <-lost:
		err = nats.ErrDisconnected
	}
	one.drop()
	return nil, err
}

// take gives an address that nobody uses, where the server may send so many answers
// to the inbox and what follows it, and what is closed when none can come any more.
func (a *asks) take(idle *addresses, below string, answers int) (*address, <-chan struct{}, error) {
	a.mu.Lock()
	lost := a.lost
	if last := len(*idle) - 1; last >= 0 {
		one := (*idle)[last]
		*idle = (*idle)[:last]
		a.mu.Unlock()
		return one, lost, nil
	}
	a.mu.Unlock()
	one := &address{inbox: a.conn.NewInbox(), answers: make(chan *nats.Msg, answers), timer: time.NewTimer(time.Hour)}
	one.timer.Stop()
	var err error
	one.sub, err = a.conn.ChanSubscribe(one.inbox+below, one.answers)
	return one, lost, err
}

// put takes back one whose answers have all come.
func (a *asks) put(idle *addresses, one *address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(*idle) < keptAddresses {
		*idle = append(*idle, one)
		return
	}
	one.drop()
}

func (one *address) drop() {
	one.timer.Stop()
	_ = one.sub.Unsubscribe() // it fails where the connection is closed, and the address with it
}

// disconnected ends the requests that are under way.
func (a *asks) disconnected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.lost)
	a.lost = make(chan struct{})
}

// acknowledged reads the answer to a single write.
func acknowledged(data []byte, s Stream) (uint64, error) {
	// Nearly all are exactly so, and encoding/json takes as long as the rest of a write.
	if rest, ok := bytes.CutPrefix(data, []byte(ackHead)); ok {
		if rest, ok = bytes.CutPrefix(rest, []byte(s)); ok {
			if rest, ok = bytes.CutPrefix(rest, []byte(ackMiddle)); ok {
				rest, ok = bytes.CutSuffix(rest, []byte(ackTail))
				if sequence, err := strconv.ParseUint(string(rest), 10, 64); ok && err == nil && rest[0] != '0' {
					return sequence, nil
				}
			}
		}
	}
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Stream   string              `json:"stream"`
		Sequence uint64              `json:"seq"`
	}
	err := json.Unmarshal(data, &answer)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: read the server's answer: %w", ErrUnanswered, err)
	case answer.Error != nil:
		return 0, classify(answer.Error)
	case answer.Stream == "":
		return 0, fmt.Errorf("%w: %w", ErrUnanswered, errNoAck)
	case answer.Stream != string(s):
		return 0, fmt.Errorf("stream %s took it, want %s", answer.Stream, s)
	}
	return answer.Sequence, nil
}

var errNoAck = errors.New("the server's answer is no acknowledgement")

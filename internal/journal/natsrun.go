package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How a stream takes a run.
const (
	runFast   int32 = iota + 1 // one server: in order, ended by the first that is refused
	runAtomic                  // several: all or nothing
)

// errRunEnded says that the server took a part of a run only.
var errRunEnded = errors.New("the run was broken off")

// PublishRun implements [Store].
func (n *NATS) PublishRun(ctx context.Context, s Stream, guard Guard, list []Outgoing) (uint64, error) {
	if len(list) == 0 || len(list) > RunMost {
		return 0, fmt.Errorf("publish a run on %s: %d messages, want 1 to %d", s, len(list), RunMost)
	}
	if len(list) == 1 {
		m := list[0]
		m.Guard = &guard
		return direct{n}.Publish(ctx, s, m)
	}
	ctx, cancel := context.WithTimeout(ctx, n.limit)
	defer cancel()
	way, err := n.runWay(ctx, s)
	if err != nil {
		return 0, fmt.Errorf("publish a run on %s: %w", s, err)
	}
	if way == runAtomic {
		guarded := make([]Outgoing, len(list))
		copy(guarded, list)
		guarded[0].Guard = &guard
		sequences, err := n.PublishBatch(ctx, s, guarded)
		if err != nil {
			return 0, err
		}
		return sequences[len(sequences)-1], nil
	}
	last, err := n.fastRun(ctx, s, guard, list)
	if err != nil {
		return 0, fmt.Errorf("publish a run on %s: %w", s, err)
	}
	return last, nil
}

// runWay asks once for each stream. It cannot change.
func (n *NATS) runWay(ctx context.Context, s Stream) (int32, error) {
	if way, ok := n.runs.Load(s); ok {
		return way.(int32), nil
	}
	c, err := n.info(ctx, s)
	if err != nil {
		return 0, err
	}
	var way int32
	switch {
	case c.AllowBatchPublish && c.Replicas == 1:
		way = runFast
	case c.AllowAtomicPublish:
		way = runAtomic
	default:
		return 0, fmt.Errorf("stream %s takes no runs", s)
	}
	n.runs.Store(s, way)
	return way, nil
}

// The parts of a reply subject by which the server knows a message's place.
const (
	runStart  = ".0.$FI"
	runAppend = ".1.$FI"
	runCommit = ".2.$FI"
	// runFlow is after how many messages the server tells how far it is, of which
	// nothing here makes use: a run is short.
	runFlow = ".1000.fail."
)

// fastRun is a fast batch of the server in the mode that fails at a gap: it
// stores message after message, and nothing more after one that is refused or
// did not come.
func (n *NATS) fastRun(ctx context.Context, s Stream, guard Guard, list []Outgoing) (uint64, error) {
	one, lost, err := n.asks.take(&n.asks.many, ".>", 2*RunMost+2) // the server sends no more for one run
	if err != nil {
		return 0, classify(err)
	}
	id := n.batches.next()
	last, err := n.run(ctx, s, guard, list, one, lost, id)
	if err != nil {
		one.drop() // more answers may come
		return 0, err
	}
	n.asks.put(&n.asks.many, one)
	return last, nil
}

// run is one run under an address of its own. It has heard all that there is to
// hear if it gives no error.
func (n *NATS) run(ctx context.Context, s Stream, guard Guard, list []Outgoing, one *address, lost <-chan struct{}, id string) (uint64, error) {
	place := one.inbox + "." + id + runFlow
	for i, m := range list {
		m.Guard = &guard
		out := wireMessage(m)
		what := runAppend
		switch i {
		case 0:
			what = runStart
		case len(list) - 1:
			what = runCommit
		}
		out.Reply = place + strconv.Itoa(i+1) + what
		// One that fails here, too, ends what the server takes.
		if err := n.conn.PublishMsg(out); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrUnanswered, err)
		}
	}
	for first := error(nil); ; {
		var raw *nats.Msg
		select {
		case raw = <-one.answers:
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %w", ErrUnanswered, ctx.Err())
		case <-lost:
			return 0, fmt.Errorf("%w: %w", ErrUnanswered, nats.ErrDisconnected)
		}
		if raw.Header.Get(statusHeader) == noResponders { // of one of them; others may have been taken
			return 0, fmt.Errorf("%w: %w", ErrUnanswered, nats.ErrNoResponders)
		}
		a, err := readRunAnswer(raw.Data)
		switch {
		case err != nil:
			return 0, err
		case a.Type == "gap" && first == nil:
			first = fmt.Errorf("%w: %w: a message was lost on the way", ErrUnanswered, errRunEnded)
		case a.Error != nil && first == nil:
			first = classify(a.Error)
		}
		switch {
		case a.Type != "":
			// How far it is, or why it goes no further: its end follows.
		case a.Batch == id && a.Stream == string(s) && a.Count == len(list) && first == nil:
			return a.Sequence, nil
		case a.Batch == id && first == nil:
			return 0, fmt.Errorf("%w: %w at %d of %d", ErrUnanswered, errRunEnded, a.Count, len(list))
		case first == nil:
			return 0, fmt.Errorf("%w: the answer is for batch %q on stream %s, not for %q", ErrUnanswered, a.Batch, a.Stream, id)
		default:
			return 0, first
		}
	}
}

type runAnswer struct {
	Type     string              `json:"type"` // empty at the end
	Error    *jetstream.APIError `json:"error"`
	Stream   string              `json:"stream"`
	Sequence uint64              `json:"seq"`
	Batch    string              `json:"batch"`
	Count    int                 `json:"count"`
}

func readRunAnswer(data []byte) (a runAnswer, err error) {
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("%w: read the server's answer: %w", ErrUnanswered, err)
	}
	return a, nil
}

package journal

import (
	"context"
	"fmt"

	"github.com/counterfoil/counterfoil/events"
)

// Tail is the end of an operation's facts in a ledger that is being filled. One
// with an operation only has none yet.
type Tail struct {
	Operation string
	Sequence  uint64 // of the newest fact
	head      events.Digest
}

// Fill appends one fact to each of several operations, all in one commit, and
// moves their tails on. It makes ledgers to measure on: nobody else may write to
// these operations, an operation may occur once, and after an error it is open
// what is stored, so that the ledger is for nothing.
func Fill(ctx context.Context, store Store, tails []*Tail, facts []events.Event) error {
	list := make([]Outgoing, len(facts))
	heads := make([]events.Digest, len(facts))
	for i, e := range facts {
		t := tails[i]
		if err := checkOperation(t.Operation); err != nil {
			return err
		}
		e.Operation, e.Previous = t.Operation, t.head
		if t.Sequence == 0 {
			e.Previous = events.ChainStart(t.Operation)
		}
		m := Outgoing{Subject: factSubject(t.Operation), Guard: &Guard{Sequence: t.Sequence}}
		m.Header, m.Data, heads[i] = events.Encode(e)
		list[i] = m
	}
	sequences, err := store.PublishBatch(ctx, Ledger, list)
	if err != nil {
		return fmt.Errorf("fill the ledger: %w", err)
	}
	for i, t := range tails {
		t.Sequence, t.head = sequences[i], heads[i]
	}
	return nil
}

// FillPayloads stores payloads in one commit. None may be there yet, and each
// must fit into one message.
func FillPayloads(ctx context.Context, store Store, payloads [][]byte) ([]events.Digest, error) {
	list := make([]Outgoing, len(payloads))
	digests := make([]events.Digest, len(payloads))
	for i, data := range payloads {
		digests[i] = events.Sum(data)
		list[i] = Outgoing{Subject: payloadSubject(digests[i]), Data: data, Guard: &Guard{}}
	}
	if _, err := store.PublishBatch(ctx, Payloads, list); err != nil {
		return nil, fmt.Errorf("fill the payloads: %w", err)
	}
	return digests, nil
}

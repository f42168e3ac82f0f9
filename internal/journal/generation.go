package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Generation names a history that was derived from the ledger. History is never
// rewritten: one that the ledger does not bear out is left as it is, as evidence
// of what was believed, and the next generation is derived beside it.
type Generation uint64

// FirstGeneration is the generation of a new installation.
const FirstGeneration Generation = 1

// historyRebuilt is the subject on CONTROL that says from where on which
// generation counts. The newest message's data is its number.
const historyRebuilt = "control.history_rebuilt"

// CurrentGeneration gives the generation that counts. It compares the end of
// every partition's history with the ledger first: where power loss under
// sync interval took facts that the history has seen, the history is ahead of
// the ledger, and facts that come now would be taken for projected ones. Then a
// new generation begins, and began is true.
//
// It must be called before anything is appended, by the process that is alone
// with the streams or holds the provisioning right. A crash after the new
// generation was recorded leaves it empty; the projectors fill it.
func (j *Journal) CurrentGeneration(ctx context.Context) (g Generation, began bool, err error) {
	g, m, err := j.recordedGeneration(ctx)
	if err != nil {
		return 0, false, err
	}
	for p := range Partitions {
		borne, err := j.borneOut(ctx, g, partitionToken(p))
		if err != nil {
			return 0, false, fmt.Errorf("compare the history of partition %d with the ledger: %w", p, err)
		}
		if borne {
			continue
		}
		next := g + 1
		data := strconv.FormatUint(uint64(next), 10)
		_, other, err := j.place(ctx, Control, historyRebuilt, m.Sequence,
			func() (uint64, error) {
				return j.store.Publish(ctx, Control, Outgoing{Subject: historyRebuilt, Data: []byte(data), Guard: &Guard{Sequence: m.Sequence}})
			},
			func(stored Message) bool { return string(stored.Data) == data })
		if err != nil {
			return 0, false, fmt.Errorf("record generation %d of the history: %w", next, err)
		}
		if other != nil {
			return 0, false, fmt.Errorf("record generation %d of the history: another process recorded %.20q meanwhile", next, other.Data)
		}
		return next, true, nil
	}
	return g, false, nil
}

// RecordedGeneration gives the generation that CONTROL names, and compares
// nothing: for processes beside others.
func (j *Journal) RecordedGeneration(ctx context.Context) (Generation, error) {
	g, _, err := j.recordedGeneration(ctx)
	return g, err
}

// recordedGeneration gives the message that says so too, the zero one if none
// does.
func (j *Journal) recordedGeneration(ctx context.Context) (Generation, Message, error) {
	m, err := j.store.Last(ctx, Control, historyRebuilt)
	if errors.Is(err, ErrNoMessage) {
		return FirstGeneration, Message{}, nil
	}
	if err != nil {
		return 0, Message{}, fmt.Errorf("read the generation of the history: %w", err)
	}
	n, err := strconv.ParseUint(string(m.Data), 10, 64)
	if err != nil || n <= uint64(FirstGeneration) {
		return 0, Message{}, fmt.Errorf("generation record %d of %s holds %.20q, want a number above 1", m.Sequence, historyRebuilt, m.Data)
	}
	return Generation(n), m, nil
}

// borneOut says whether the newest record of a partition stands on a fact that
// the ledger has, at that sequence and with that digest.
func (j *Journal) borneOut(ctx context.Context, g Generation, partition string) (bool, error) {
	filter := g.subjects(partition)
	m, err := j.store.Last(ctx, History, filter)
	if errors.Is(err, ErrNoMessage) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	position, err := positionIn(m)
	if err != nil || position == 0 {
		return err == nil, err
	}
	fact, err := j.store.Next(ctx, Ledger, "facts."+segment+"."+partition+".*", position)
	if errors.Is(err, ErrNoMessage) || (err == nil && fact.Sequence != position) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if strings.HasSuffix(m.Subject, "."+takeover) {
		return true, nil // it has no digest; a fact of the partition at its position must do
	}
	r, err := decodeRecord(m)
	if err != nil {
		return false, err
	}
	return entry(fact).Digest == r.State.Head, nil
}

// subjects is the filter of a partition's history.
func (g Generation) subjects(partition string) string {
	return "history." + strconv.FormatUint(uint64(g), 10) + "." + partition + ".*"
}

// subject is where one record of a partition goes.
func (g Generation) subject(partition, name string) string {
	return "history." + strconv.FormatUint(uint64(g), 10) + "." + partition + "." + name
}

package journal

import (
	"context"
	"fmt"
	"strings"

	"github.com/counterfoil/counterfoil/events"
)

// keyPrefix stands before a key's id in the subjects on CONTROL of the facts about
// keys.
const keyPrefix = "control.key-"

// KeyRecord is what CONTROL last says of one key.
type KeyRecord struct {
	ID string
	// Fact is nil where there is none, or the newest one cannot be read.
	Fact *events.KeyChanged

	sequence uint64        // of the newest fact
	head     events.Digest // its chain digest
}

// Keys gives what CONTROL last says of each key it knows, by id.
func (j *Journal) Keys(ctx context.Context) (map[string]KeyRecord, error) {
	list := map[string]KeyRecord{}
	err := j.each(ctx, Control, "control.*", func(m Message) error {
		id, ok := strings.CutPrefix(m.Subject, keyPrefix)
		if !ok {
			return nil
		}
		entry := holdEntry(m) // reads any service fact
		record := KeyRecord{ID: id, sequence: m.Sequence, head: entry.Digest}
		if fact, ok := entry.Event.Fact.(*events.KeyChanged); ok && entry.Event.Subject == events.KeySubject(id) {
			record.Fact = fact
		}
		list[id] = record
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what is known of keys: %w", err)
	}
	return list, nil
}

// AppendKey appends a fact about the key behind the record given, or not at all. A
// record with nothing but an id is that of a key that CONTROL does not know. An id,
// a time, the subject and the link are filled in. Errors and outcomes are those of
// Append for a permit.
func (j *Journal) AppendKey(ctx context.Context, r KeyRecord, e events.ServiceEvent) (Outcome, error) {
	if err := checkName("key", r.ID); err != nil {
		return Unsettled, err
	}
	if e.ID == "" {
		e.ID = j.newID()
	}
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	e.Subject, e.Previous = events.KeySubject(r.ID), r.head
	if r.sequence == 0 {
		e.Previous = events.ChainStart(e.Subject)
	}
	subject := keyPrefix + r.ID
	header, data, _ := events.EncodeService(e)
	// A crash before the append leaves CONTROL behind the keys file, and the next
	// start appends it. A crash after it leaves it said once.
	_, other, err := j.place(ctx, Control, subject, r.sequence,
		func() (uint64, error) {
			return j.store.Publish(ctx, Control, Outgoing{Subject: subject, Header: header, Data: data, Guard: &Guard{Sequence: r.sequence}})
		},
		func(m Message) bool { return holdEntry(m).Event.ID == e.ID })
	switch {
	case err != nil:
		return Unsettled, fmt.Errorf("append %s of %s: %w", e.Fact.Type(), e.Subject, err)
	case other != nil:
		return Superseded, nil
	}
	return Stored, nil
}

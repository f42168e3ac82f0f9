package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

func refSubject(provider, reference string) string {
	return "ref." + provider + "." + token(reference)
}

// NameReference writes down that a reference we gave the provider is the
// operation's. References are derived from the operation under the instance
// key, so that one names one operation: the first to be written stands, and for
// another one the answer is false.
func (j *Journal) NameReference(ctx context.Context, provider, reference, operation string) (bool, error) {
	if err := errors.Join(checkName("provider", provider), checkOperation(operation)); err != nil {
		return false, err
	}
	subject := refSubject(provider, reference)
	// A crash before this write leaves the operation unprojected, and the next
	// tenure writes it. It comes before the wake-up, and so before any call that
	// could carry the reference out.
	_, other, err := j.place(ctx, Index, subject, 0,
		func() (uint64, error) {
			return j.store.Publish(ctx, Index, Outgoing{Subject: subject, Data: []byte(operation), Guard: &Guard{}})
		},
		func(m Message) bool { return string(m.Data) == operation })
	if err != nil {
		return false, fmt.Errorf("name reference of %s: %w", operation, err)
	}
	return other == nil, nil
}

// Referred gives the operation a reference names; false means none.
func (j *Journal) Referred(ctx context.Context, provider, reference string) (string, bool, error) {
	if err := checkName("provider", provider); err != nil {
		return "", false, err
	}
	m, err := j.store.Last(ctx, Index, refSubject(provider, reference))
	if errors.Is(err, ErrNoMessage) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up a reference: %w", err)
	}
	operation, err := ownerIn(m)
	return operation, err == nil, err
}

// ReferenceLabel is the label of a caller's own reference. A session's label has no line
// feed, so the two never are the same.
func ReferenceLabel(reference string) string { return "reference\n" + reference }

// MaxLabelled is how many operations one label of a caller names, the newest.
const MaxLabelled = 64

// labelled is what a caller's label stands for: any number of operations can
// carry it, so the entry names the newest of them, newest first.
type labelled struct {
	list []labelledOne
	more bool // older ones were left out
}

type labelledOne struct {
	operation string
	started   time.Time
}

// Fields implements codec.Record.
func (l *labelled) Fields(v *codec.Visitor) {
	codec.List(v, "o", &l.list)
	codec.Bool(v, "m", &l.more)
}

// Fields implements codec.Record.
func (o *labelledOne) Fields(v *codec.Visitor) {
	codec.Text(v, "i", &o.operation)
	codec.Time(v, "t", &o.started)
}

// add says whether the entry changed.
func (l *labelled) add(one labelledOne) bool {
	newer := func(a, b labelledOne) int {
		if c := b.started.Compare(a.started); c != 0 {
			return c
		}
		return strings.Compare(a.operation, b.operation)
	}
	at, found := slices.BinarySearchFunc(l.list, one, newer)
	if found || at == MaxLabelled && l.more {
		return false
	}
	l.list = slices.Insert(l.list, at, one)
	if len(l.list) > MaxLabelled {
		l.list, l.more = l.list[:MaxLabelled], true
	}
	return true
}

func labelSubject(principal, label string) string { return "client." + principal + "." + token(label) }

// Label writes down that a caller gave the operation a label of its own, which
// started at that time. The order in which operations are labelled does not
// matter.
func (j *Journal) Label(ctx context.Context, principal, label, operation string, started time.Time) error {
	if err := errors.Join(checkName("principal", principal), checkOperation(operation)); err != nil {
		return err
	}
	subject := labelSubject(principal, label)
	for {
		entry, sequence, err := j.labelled(ctx, subject)
		if err != nil {
			return err
		}
		if !entry.add(labelledOne{operation, started.UTC()}) {
			return nil
		}
		data := codec.Marshal(&entry)
		// A crash before this write leaves the operation unprojected, and the next
		// tenure writes it.
		_, other, err := j.place(ctx, Index, subject, sequence,
			func() (uint64, error) {
				return j.store.Publish(ctx, Index, Outgoing{Subject: subject, Data: data, Guard: &Guard{Sequence: sequence}})
			},
			func(m Message) bool { return string(m.Data) == string(data) })
		if err != nil {
			return fmt.Errorf("label %s: %w", operation, err)
		}
		if other == nil {
			return nil
		}
	}
}

// Labelled gives the operations that carry a caller's label, newest first. more
// says that there are older ones, which only a list of all operations shows.
func (j *Journal) Labelled(ctx context.Context, principal, label string) (operations []string, more bool, err error) {
	if err := checkName("principal", principal); err != nil {
		return nil, false, err
	}
	entry, _, err := j.labelled(ctx, labelSubject(principal, label))
	for _, one := range entry.list {
		operations = append(operations, one.operation)
	}
	return operations, entry.more, err
}

func (j *Journal) labelled(ctx context.Context, subject string) (l labelled, sequence uint64, err error) {
	m, err := j.store.Last(ctx, Index, subject)
	switch {
	case errors.Is(err, ErrNoMessage):
		return l, 0, nil
	case err != nil:
		return l, 0, fmt.Errorf("look up a label: %w", err)
	}
	if err := codec.Unmarshal(m.Data, &l); err != nil {
		l = labelled{} // it is derived, and written anew
	}
	return l, m.Sequence, nil
}

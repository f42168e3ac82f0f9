package journal

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/codec"
)

// Survey is what WAKEUPS and INDEX held when it was made, read as a whole: a
// sweep that finds all of its operations in it asks for none of them. What it
// does not know may be there all the same, and is to be asked for. It takes about
// 100 bytes an operation.
type Survey struct {
	wakes map[mark]seenWake
	names map[mark]struct{}
}

// mark is the beginning of a digest: of a subject, or of one and what it names.
type mark [16]byte

func markOf(parts ...string) mark {
	var room [256]byte
	text := room[:0]
	for _, p := range parts {
		text = append(append(text, p...), 0) // in no subject and no operation
	}
	sum := sha256.Sum256(text)
	return mark(sum[:16])
}

type seenWake struct {
	at      int64 // ns since 1970
	version uint64
}

// Survey reads WAKEUPS and INDEX. It gives nil, which knows nothing, where they
// cannot be read as a whole.
func (j *Journal) Survey(ctx context.Context) (*Survey, error) {
	s := &Survey{wakes: map[mark]seenWake{}, names: map[mark]struct{}{}}
	// The schedules are read first: one that fires in between is then seen as due.
	for _, filter := range []string{"wake.*", "due.*.*"} {
		if err := j.store.Newest(ctx, Wakeups, filter, func(m Message) error { s.wake(m); return nil }); err != nil {
			return nil, unlessPiecemeal(err)
		}
	}
	for _, filter := range []string{"ref.*.*", "job.*.*.*", "client.*.*"} {
		if err := j.store.Newest(ctx, Index, filter, func(m Message) error {
			if !withdrawn(m) {
				s.name(m)
			}
			return nil
		}); err != nil {
			return nil, unlessPiecemeal(err)
		}
	}
	return s, nil
}

func unlessPiecemeal(err error) error {
	if errors.Is(err, ErrPiecemeal) {
		return nil
	}
	return err
}

func (s *Survey) wake(m Message) {
	w := wakeIn(m)
	if w.At.IsZero() {
		return // not to be read: whoever asks finds out
	}
	at := markOf(w.Operation)
	if have, some := s.wakes[at]; !some || w.Version > have.version {
		s.wakes[at] = seenWake{w.At.UnixNano(), w.Version}
	}
}

func (s *Survey) name(m Message) {
	if !strings.HasPrefix(m.Subject, "client.") {
		s.names[markOf(m.Subject, string(m.Data))] = struct{}{}
		return
	}
	var l labelled
	if codec.Unmarshal(m.Data, &l) != nil {
		return // it is written anew by who finds out
	}
	for _, one := range l.list {
		s.names[markOf(m.Subject, one.operation)] = struct{}{}
	}
}

func (s *Survey) named(subject, operation string) bool {
	if s == nil {
		return false
	}
	_, ok := s.names[markOf(subject, operation)]
	return ok
}

// Wake gives the newest wake-up that was scheduled or due for the operation.
func (s *Survey) Wake(operation string) (Wake, bool) {
	if s == nil {
		return Wake{}, false
	}
	w, ok := s.wakes[markOf(operation)]
	return Wake{Operation: operation, Version: w.version, At: time.Unix(0, w.at).UTC()}, ok
}

// Refers says whether the reference names the operation.
func (s *Survey) Refers(provider, reference, operation string) bool {
	return s.named(refSubject(provider, reference), operation)
}

// Owns says whether the job is the operation's.
func (s *Survey) Owns(provider, account, job, operation string) bool {
	return s.named(jobSubject(provider, account, job), operation)
}

// Labels says whether the caller's label names the operation.
func (s *Survey) Labels(principal, label, operation string) bool {
	return s.named(labelSubject(principal, label), operation)
}

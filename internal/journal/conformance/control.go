package conformance

import (
	"errors"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// controlKeeps shows what holds rest on: every message of a subject stays, in
// order, each let in by the one before it, and the newest of the stream is seen
// at once and tells an end from another.
func controlKeeps(t *testing.T, s journal.Store) {
	const all, one = "control.hold", "control.hold-example"
	absent(t, s, journal.Control, "control.*")
	first := put(t, s, journal.Control, guarded(text(all, "placed"), "", 0))
	time.Sleep(time.Millisecond)
	refused(t, s, journal.Control, guarded(text(all, "placed by another"), "", 0), journal.ErrWrongSequence)
	// A name is not a prefix: the hold on one provider is not the one on all.
	other := put(t, s, journal.Control, guarded(text(one, "placed"), "", 0))
	put(t, s, journal.Control, text("control.provider-example", "example"))
	if m := last(t, s, journal.Control, all); m.Sequence != first || string(m.Data) != "placed" {
		t.Fatalf("last of %s is %d %q", all, m.Sequence, m.Data)
	}
	before := last(t, s, journal.Control, "control.*")
	time.Sleep(time.Millisecond)
	second := put(t, s, journal.Control, guarded(text(all, "released"), "", first))
	refused(t, s, journal.Control, guarded(text(all, "placed late"), "", first), journal.ErrWrongSequence)
	if end := last(t, s, journal.Control, "control.*"); end.Sequence != second || !end.Time.After(before.Time) {
		t.Fatalf("the end is %d at %s, was %d at %s", end.Sequence, end.Time, before.Sequence, before.Time)
	}
	var list []uint64
	for from := uint64(1); ; {
		m, err := s.Next(t.Context(), journal.Control, all, from)
		if errors.Is(err, journal.ErrNoMessage) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m.Sequence)
		from = m.Sequence + 1
	}
	if len(list) != 2 || list[0] != first || list[1] != second {
		t.Fatalf("%s holds %v, want %d and %d", all, list, first, second)
	}
	if m := last(t, s, journal.Control, one); m.Sequence != other {
		t.Fatalf("last of %s is %d, want %d", one, m.Sequence, other)
	}
}

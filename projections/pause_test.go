package projections

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// Who paused an operation first, and when, is kept until the pause ends.
func TestWhoPaused(t *testing.T) {
	l := newLedger()
	l.fold(epoch, standard())
	l.fold(epoch.Add(time.Second), &events.OperationPaused{Who: "alice"})
	l.fold(epoch.Add(time.Minute), &events.OperationPaused{Who: "bob"})
	if !l.s.Paused || l.s.PausedBy != "alice" || !l.s.PausedAt.Equal(epoch.Add(time.Second)) {
		t.Errorf("paused %v by %q at %s", l.s.Paused, l.s.PausedBy, l.s.PausedAt)
	}
	var back State
	if err := codec.Unmarshal(codec.Marshal(&l.s), &back); err != nil || back.PausedBy != "alice" || !back.PausedAt.Equal(l.s.PausedAt) {
		t.Errorf("kept as %q at %s, %v", back.PausedBy, back.PausedAt, err)
	}
	l.fold(epoch.Add(time.Hour), &events.OperationResumed{Who: "carol"})
	if l.s.Paused || l.s.PausedBy != "" || !l.s.PausedAt.IsZero() {
		t.Errorf("resumed, and paused %v by %q at %s", l.s.Paused, l.s.PausedBy, l.s.PausedAt)
	}
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// runOf gives n records of as many operations.
func runOf(n int, data string) []journal.Outgoing {
	list := make([]journal.Outgoing, n)
	for i := range list {
		list[i] = text(fmt.Sprintf("history.1.01.op_%d", i), data)
	}
	return list
}

func runInOrder(t *testing.T, s journal.Store) {
	fence := put(t, s, journal.History, text("history.1.01.takeover", ""))
	guard := journal.Guard{Subject: "history.1.01.takeover", Sequence: fence}
	list := runOf(journal.RunMost-1, "x")
	list = append(list, text("history.1.01.op_0", "again"))
	for _, part := range [][]journal.Outgoing{list[:1], list[1:3], list[3:]} {
		before := last(t, s, journal.History, "history.1.01.*").Sequence
		n, err := s.PublishRun(t.Context(), journal.History, guard, part)
		if err != nil || n != before+uint64(len(part)) {
			t.Fatalf("run of %d behind %d: %d, %v", len(part), before, n, err)
		}
		for i, want := range part {
			m, err := s.Next(t.Context(), journal.History, "history.1.01.*", before+1+uint64(i))
			if err != nil || m.Subject != want.Subject || string(m.Data) != string(want.Data) {
				t.Fatalf("message %d: %+v, %v", i, m, err)
			}
		}
	}
	if list[0].Guard != nil {
		t.Error("the caller's messages were changed")
	}
	if n, err := s.PublishRun(t.Context(), journal.History, guard, list[:2]); err != nil || n == 0 {
		t.Errorf("the same again: %d, %v", n, err)
	}
	if _, err := s.PublishRun(t.Context(), journal.History, guard, append(list, list[0])); err == nil {
		t.Error("a run that is too long was taken")
	}
	if _, err := s.PublishRun(t.Context(), journal.History, guard, nil); err == nil {
		t.Error("an empty run was taken")
	}
}

func runGuard(t *testing.T, s journal.Store) {
	old := put(t, s, journal.History, text("history.1.01.takeover", "1"))
	put(t, s, journal.History, text("history.1.02.takeover", ""))
	now := put(t, s, journal.History, text("history.1.01.takeover", "2"))
	for _, sequence := range []uint64{old, now - 1, now + 1, 0} {
		for _, n := range []int{1, 2, 100} {
			guard := journal.Guard{Subject: "history.1.01.takeover", Sequence: sequence}
			if _, err := s.PublishRun(t.Context(), journal.History, guard, runOf(n, "x")); !errors.Is(err, journal.ErrWrongSequence) {
				t.Fatalf("run of %d behind %d: %v", n, sequence, err)
			}
			absent(t, s, journal.History, "history.1.01.op_0")
			absent(t, s, journal.History, "history.1.01.op_1")
		}
	}
	guard := journal.Guard{Subject: "history.1.01.takeover", Sequence: now}
	if _, err := s.PublishRun(t.Context(), journal.History, guard, runOf(100, "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PublishRun(t.Context(), journal.History, journal.Guard{Subject: "history.1.03.takeover"}, runOf(3, "y")); err != nil {
		t.Fatalf("nothing there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.PublishRun(ctx, journal.History, guard, runOf(2, "z")); !errors.Is(err, journal.ErrUnanswered) && !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func runWakes(t *testing.T, s journal.Store) {
	epoch := put(t, s, journal.Wakeups, text("epoch.01", "1"))
	guard := journal.Guard{Subject: "epoch.01", Sequence: epoch}
	at := time.Now().Add(time.Hour)
	for range 2 { // each replaces the one before
		list := make([]journal.Outgoing, 50)
		for i := range list {
			list[i] = journal.Outgoing{
				Subject: fmt.Sprintf("wake.op_%d", i), Data: []byte{byte(i)},
				Header: map[string][]string{journal.ScheduleHeader: {journal.ScheduleAt(at)}, journal.TargetHeader: {fmt.Sprintf("due.p.op_%d", i)}},
			}
		}
		// Due already: it goes to its target, and cancels.
		list[49] = journal.Outgoing{Subject: "due.p.op_49", Header: map[string][]string{journal.SchedulerHeader: {"wake.op_49"}, journal.NextHeader: {journal.NextPurge}}}
		if _, err := s.PublishRun(t.Context(), journal.Wakeups, guard, list); err != nil {
			t.Fatal(err)
		}
		for i := range 49 {
			if m := last(t, s, journal.Wakeups, fmt.Sprintf("wake.op_%d", i)); len(m.Data) != 1 || m.Data[0] != byte(i) {
				t.Fatalf("wake-up %d: %+v", i, m)
			}
		}
		absent(t, s, journal.Wakeups, "wake.op_49")
		last(t, s, journal.Wakeups, "due.p.op_49")
	}
	put(t, s, journal.Wakeups, text("epoch.01", "2"))
	if _, err := s.PublishRun(t.Context(), journal.Wakeups, guard, []journal.Outgoing{text("wake.op_x", ""), text("wake.op_y", "")}); !errors.Is(err, journal.ErrWrongSequence) {
		t.Fatalf("under an epoch gone by: %v", err)
	}
	absent(t, s, journal.Wakeups, "wake.op_x")
}

func runNowhere(t *testing.T, s journal.Store) {
	for name, subjects := range map[journal.Stream][2]string{
		journal.Webhooks: {"webhooks.p.a", "webhooks.p.b"}, journal.Slots: {"slot.p.a.1", "slot.p.a.2"},
		journal.Verdicts: {"verdicts.p.a", "verdicts.p.b"},
	} {
		list := []journal.Outgoing{text(subjects[0], ""), text(subjects[1], "")}
		if _, err := s.PublishRun(t.Context(), name, journal.Guard{Subject: "x.y"}, list); err == nil || errors.Is(err, journal.ErrUnanswered) {
			t.Errorf("%s: %v", name, err)
		}
		absent(t, s, name, subjects[0])
	}
}

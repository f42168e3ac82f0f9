package journal_test

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

func TestSlotsAreMessages(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) journal.Store{
		"memory": func(*testing.T) journal.Store { return memory.New(memory.Config{Now: time.Now}) },
		"server": func(t *testing.T) journal.Store { return provisioned(t) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := open(t)
				j := newJournal(store)
				a, err := j.SlotsOf("example", "main")
				if err != nil {
					t.Fatal(err)
				}
				other, err := j.SlotsOf("example", "other")
				if err != nil {
					t.Fatal(err)
				}
				held := budget.Note{Holder: "p1", Life: 45 * time.Second}
				left := budget.Note{Used: []budget.Used{{Ago: time.Second, Count: 3}}}
				first := write(t, a, budget.Write{Slot: 2, Note: held})
				if _, err := a.Write(t.Context(), budget.Write{Slot: 2, Note: budget.Note{Holder: "p2"}}); !errors.Is(err, journal.ErrWrongSequence) {
					t.Fatalf("a held slot was taken: %v", err)
				}
				write(t, other, budget.Write{Slot: 2, Note: held})
				news, at, err := a.News(t.Context(), 0)
				if want := []journal.SlotNews{{Slot: 2, Sequence: first, Note: held}}; err != nil || !reflect.DeepEqual(news, want) {
					t.Fatalf("got %+v, %v; want %+v", news, err, want)
				}
				second := write(t, a, budget.Write{Slot: 2, Expected: first, Note: left})
				if err := errors.Join(a.Want(t.Context(), "p2"), a.Pause(t.Context(), "p2", time.Minute)); err != nil {
					t.Fatal(err)
				}
				if _, err := store.Publish(t.Context(), journal.Slots, journal.Outgoing{Subject: "slot.example.main.3", Data: []byte("?")}); err != nil {
					t.Fatal(err)
				}
				if _, err := store.Publish(t.Context(), journal.Slots, journal.Outgoing{Subject: "slot.example.main.later"}); err != nil {
					t.Fatal(err)
				}
				news, at, err = a.News(t.Context(), at)
				if err != nil || len(news) != 4 || news[0].Sequence != second || !reflect.DeepEqual(news[0].Note, left) ||
					news[1].Want != "p2" || news[1].Slot != -1 || news[2].Pause != time.Minute || news[3].Slot != 3 || news[3].Note.Holder == "" {
					t.Fatalf("got %+v, %v", news, err)
				}
				if news, _, err = a.News(t.Context(), at); err != nil || len(news) != 0 {
					t.Fatalf("again: %+v, %v", news, err)
				}
			})
		})
	}
	if _, err := newJournal(memory.New(memory.Config{Now: time.Now})).SlotsOf("a.b", "x"); !errors.Is(err, journal.ErrBadName) {
		t.Errorf("a name that changes a subject: %v", err)
	}
}

func write(t *testing.T, a journal.AccountSlots, w budget.Write) uint64 {
	t.Helper()
	sequence, err := a.Write(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return sequence
}

package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/internal/budget"
	"github.com/counterfoil/counterfoil/internal/codec"
)

// Last tokens of subjects that are no slot.
const (
	wantToken  = "want"  // a process wants more slots than it can get
	pauseToken = "pause" // the provider asked for a pause
)

// An AccountSlots is the shared slots of one account of a provider, as messages
// of SLOTS. It holds no state and may be shared between goroutines.
type AccountSlots struct {
	j      *Journal
	prefix string
}

// SlotsOf gives the shared slots of an account.
func (j *Journal) SlotsOf(provider, account string) (AccountSlots, error) {
	if err := errors.Join(checkName("provider", provider), checkName("account", account)); err != nil {
		return AccountSlots{}, err
	}
	return AccountSlots{j, "slot." + provider + "." + account + "."}, nil
}

// SlotNews is one message that is new: of a slot, of a process that wants more,
// or of a pause that the provider asked one of them for.
type SlotNews struct {
	Slot     int // -1 if it is none's
	Sequence uint64
	Note     budget.Note
	Want     string        // the process, "" if it is none
	Pause    time.Duration // from when it was read, at most; 0: none
}

// News gives what was stored since a sequence, which is 0 at first, and the
// sequence to go on from. With an error what it gave counts all the same.
func (a AccountSlots) News(ctx context.Context, since uint64) (list []SlotNews, at uint64, err error) {
	for at = since; ; {
		m, err := a.j.store.Next(ctx, Slots, a.prefix+"*", at+1)
		if errors.Is(err, ErrNoMessage) {
			return list, at, nil
		}
		if err != nil {
			return list, at, fmt.Errorf("read the slots %s: %w", a.prefix, err)
		}
		at = m.Sequence
		var note budget.Note
		if err := codec.Unmarshal(m.Data, &note); err != nil {
			// Of a version that nobody here knows: nobody's to take.
			note = budget.Note{Holder: "unreadable", Life: 24 * time.Hour}
		}
		news := SlotNews{Slot: -1, Sequence: m.Sequence}
		switch name := strings.TrimPrefix(m.Subject, a.prefix); name {
		case wantToken:
			news.Want = note.Holder
		case pauseToken:
			news.Pause, news.Note = note.Life, note
		default:
			n, err := strconv.Atoi(name)
			if err != nil || n < 0 {
				continue
			}
			news.Slot, news.Note = n, note
		}
		list = append(list, news)
	}
}

// Write stores a message of a slot at its expected sequence. It is sent once: an
// error leaves open whether it is stored, and the next News tells. A crash after
// it leaves a slot that nobody uses until its life is over.
func (a AccountSlots) Write(ctx context.Context, w budget.Write) (uint64, error) {
	sequence, err := a.j.store.Publish(ctx, Slots, Outgoing{
		Subject: a.prefix + strconv.Itoa(w.Slot), Data: codec.Marshal(&w.Note), Guard: &Guard{Sequence: w.Expected},
	})
	if err != nil {
		return 0, fmt.Errorf("write slot %d: %w", w.Slot, err)
	}
	return sequence, nil
}

// Want tells the other processes that this one wants more slots than there are
// free. One that is lost is told again.
func (a AccountSlots) Want(ctx context.Context, holder string) error {
	return a.tell(ctx, wantToken, budget.Note{Holder: holder})
}

// Pause tells the other processes for how long the provider asked for a pause.
func (a AccountSlots) Pause(ctx context.Context, holder string, d time.Duration) error {
	return a.tell(ctx, pauseToken, budget.Note{Holder: holder, Life: d})
}

func (a AccountSlots) tell(ctx context.Context, what string, note budget.Note) error {
	if _, err := a.j.store.Publish(ctx, Slots, Outgoing{Subject: a.prefix + what, Data: codec.Marshal(&note)}); err != nil {
		return fmt.Errorf("tell %s%s: %w", a.prefix, what, err)
	}
	return nil
}

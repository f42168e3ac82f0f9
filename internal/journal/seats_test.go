package journal_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// One process has the seat of a partition; another has it at once if the first
// leaves, and after SeatTime if the first falls silent.
func TestSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startServer(t)
		first, second := connect(t, b), connect(t, b)
		if err := first.Provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := first.TakeSeat(t.Context(), 3); !errors.Is(err, journal.ErrNotProvisioned) {
			t.Fatalf("a seat that was not made: %v", err)
		}
		for range 2 { // again changes nothing
			if err := first.MakeSeats(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		seat, err := first.TakeSeat(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		other, err := second.TakeSeat(t.Context(), 4)
		if err != nil {
			t.Fatalf("the seat of another partition: %v", err)
		}
		type took struct {
			seat *journal.Seat
			at   time.Time
		}
		taken := make(chan took, 1)
		stand := func(n *journal.NATS) {
			go func() {
				s, err := n.TakeSeat(t.Context(), 3)
				if err != nil {
					t.Error(err)
				}
				taken <- took{s, time.Now()}
			}()
		}
		stand(second)
		time.Sleep(time.Minute)
		select {
		case <-taken:
			t.Fatal("two have one seat")
		case <-seat.Lost():
			t.Fatal("lost although it was held")
		default:
		}
		if n, err := seat.Others(t.Context()); err != nil || n != 1 {
			t.Errorf("%d wait, %v", n, err)
		}
		if n, err := other.Others(t.Context()); err != nil || n != 0 {
			t.Errorf("%d wait where nobody does, %v", n, err)
		}

		left := time.Now()
		for range 2 {
			if err := seat.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		}
		now := <-taken
		if wait := now.at.Sub(left); wait > time.Second {
			t.Errorf("left, and taken %s later", wait)
		}

		third := connect(t, b)
		stand(third)
		time.Sleep(10 * time.Second)
		silent := time.Now()
		second.Close() // as one that was killed
		<-now.seat.Lost()
		if err := now.seat.Leave(t.Context()); err != nil {
			t.Errorf("leaving a lost seat: %v", err)
		}
		now = <-taken
		if wait := now.at.Sub(silent); wait > journal.SeatTime+2*time.Second {
			t.Errorf("fell silent, and taken %s later", wait)
		}
		if err := now.seat.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		<-other.Lost()
		if err := other.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

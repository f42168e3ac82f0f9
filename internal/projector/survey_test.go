package projector

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Sweeps share a survey that began after their tenures, use none twice, and the
// last to use one lets go of it.
func TestSurveysAreShared(t *testing.T) {
	var all surveys
	read := 0
	one := func(context.Context) (*journal.Survey, error) { read++; return &journal.Survey{}, nil }
	take := func(u *surveyor) {
		t.Helper()
		if s, err := u.take(t.Context(), one); s == nil || err != nil {
			t.Fatal(s, err)
		}
	}
	a, b := all.join(), all.join()
	take(a)
	take(b)
	if read != 1 || all.latest != nil {
		t.Fatalf("two that began together: %d read, and kept: %v", read, all.latest != nil)
	}
	take(a)
	late := all.join()
	take(late) // what a has is older than this tenure
	if read != 3 {
		t.Fatalf("one that began later: %d read, want 3", read)
	}
	take(b)
	if read != 3 {
		t.Fatalf("a newer one serves who waited: %d read", read)
	}
	a.leave()
	if all.latest != nil {
		t.Fatal("it is kept though nobody will ask")
	}
}

// A survey that failed for another's reason is made again; an own failure is told.
func TestFailedSurveyIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all surveys
		a, b := all.join(), all.join()
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := a.take(ctx, func(ctx context.Context) (*journal.Survey, error) { <-ctx.Done(); return nil, ctx.Err() })
			failed <- err
		}()
		synctest.Wait()
		served := make(chan error)
		go func() {
			_, err := b.take(t.Context(), func(context.Context) (*journal.Survey, error) { return &journal.Survey{}, nil })
			served <- err
		}()
		synctest.Wait()
		stop()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		broken := errors.New("broken")
		if _, err := b.take(t.Context(), func(context.Context) (*journal.Survey, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

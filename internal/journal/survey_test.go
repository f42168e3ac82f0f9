package journal_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// A survey knows what stands, and nothing else.
func TestSurvey(t *testing.T) {
	onBoth(t, func(t *testing.T, store journal.Store) {
		j := newJournal(store)
		ctx := t.Context()
		tenure, err := j.TakeOver(ctx, journal.Partition("op_a"))
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Hour)
		for _, w := range []journal.Wake{
			{Operation: "op_a", Provider: "example", Version: 3, At: at.Add(time.Hour)},
			{Operation: "op_a", Provider: "example", Version: 7, At: at},
			{Operation: "op_due", Provider: "example", Version: 2, At: time.Now()},
		} {
			if err := tenure.Wake(ctx, w); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := j.Claim(ctx, "example", "main", "job-1", "op_a"); err != nil {
			t.Fatal(err)
		}
		if _, err := j.NameReference(ctx, "example", "ref-1", "op_a"); err != nil {
			t.Fatal(err)
		}
		if err := j.Label(ctx, "p", "session", "op_a", at); err != nil {
			t.Fatal(err)
		}
		s, err := j.Survey(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := s.Wake("op_a"); !ok || !w.At.Equal(at) || w.Version != 7 {
			t.Errorf("scheduled: %+v %v", w, ok)
		}
		if w, ok := s.Wake("op_due"); !ok || w.Version != 2 {
			t.Errorf("due: %+v %v", w, ok)
		}
		if _, ok := s.Wake("op_b"); ok {
			t.Error("it knows a wake-up that nobody wrote")
		}
		for what, c := range map[string]struct{ got, want bool }{
			"own job":             {s.Owns("example", "main", "job-1", "op_a"), true},
			"another's job":       {s.Owns("example", "main", "job-1", "op_b"), false},
			"job of an account":   {s.Owns("example", "other", "job-1", "op_a"), false},
			"own reference":       {s.Refers("example", "ref-1", "op_a"), true},
			"another's reference": {s.Refers("example", "ref-1", "op_b"), false},
			"own label":           {s.Labels("p", "session", "op_a"), true},
			"another's label":     {s.Labels("p", "session", "op_b"), false},
		} {
			if c.got != c.want {
				t.Errorf("%s: %v", what, c.got)
			}
		}
		var none *journal.Survey
		if _, ok := none.Wake("op_a"); ok || none.Owns("example", "main", "job-1", "op_a") {
			t.Error("no survey knows something")
		}
	})
}

package journal_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// What is written while the newest of a stream are read does not prolong it.
func TestNewestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := provisioned(t)
		put := func(i int) {
			if _, err := n.Publish(t.Context(), journal.History, journal.Outgoing{Subject: fmt.Sprintf("history.1.00.op_%d", i), Data: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 1500 {
			put(i)
		}
		enough := errors.New("enough")
		count := 0
		err := n.Newest(t.Context(), journal.History, "history.1.*.*", func(m journal.Message) error {
			if count++; count >= 12000 {
				return enough
			}
			put(count % 1500) // as fast as it is read
			return nil
		})
		if err != nil || count != 1500 {
			t.Errorf("%d messages of 1500 operations, %v", count, err)
		}
	})
}

// Where a message replaces the one before it, what is written while the newest are read
// comes later and is not left out.
func TestNewestOfWhatIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := provisioned(t)
		put := func(i int) {
			if _, err := n.Publish(t.Context(), journal.Index, journal.Outgoing{Subject: fmt.Sprintf("job.p.a.j%d", i), Data: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2500 {
			put(i)
		}
		seen := map[string]bool{}
		count := 0
		err := n.Newest(t.Context(), journal.Index, "job.*.*.*", func(m journal.Message) error {
			seen[m.Subject] = true
			if count++; count == 1 {
				for i := range 400 {
					put(i) // given already or on the way
				}
				for i := 2400; i < 2500; i++ {
					put(i) // not given yet
				}
			}
			return nil
		})
		if err != nil || len(seen) != 2500 {
			t.Errorf("%d of 2500 subjects came, %v", len(seen), err)
		}
	})
}

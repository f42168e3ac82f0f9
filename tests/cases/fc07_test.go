package cases_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/harness"
)

func TestFC07RetryAfterAsDate(t *testing.T) {
	layouts := map[string]string{"IMF-fixdate": simulator.IMFFixdate, "RFC 850": simulator.RFC850, "asctime": simulator.Asctime}
	const ahead = 8 * time.Second
	for name, layout := range layouts {
		t.Run("ahead, "+name, func(t *testing.T) {
			// The date itself says when; the clocks agree.
			reads := retriedAfter(t, 1, simulator.Answer{Status: 503, RetryAfter: simulator.RetryAfter{In: ahead, Layout: layout}})
			first, second := reads[0], reads[1]
			until := first.At.Add(ahead).Truncate(time.Second)
			if second.At.Before(until) || second.At.After(until.Add(2*time.Second)) {
				t.Errorf("the next poll came at %s, want %s", second.At, until)
			}
		})
		t.Run("past, "+name, func(t *testing.T) {
			reads := retriedAfter(t, 3, simulator.Answer{Status: 503, RetryAfter: simulator.RetryAfter{In: -time.Hour, Layout: layout}})
			// As if the header were not there: the backoff of 1 s, doubled each
			// time, less a tenth at most.
			least := 900 * time.Millisecond
			for i, gap := range gaps(reads) {
				if gap < least || gap > 2*least {
					t.Errorf("wait %d is %s, want %s or a little more", i+1, gap, least)
				}
				least *= 2
			}
		})
		for _, skew := range []time.Duration{-90 * time.Second, 90 * time.Second} {
			t.Run("clock off by "+skew.String()+", "+name, func(t *testing.T) {
				// Measured against the provider's own Date: by our clock the date is
				// 82 s in the past, or 98 s ahead.
				reads := retriedAfter(t, 1, simulator.Answer{Status: 503, DateSkew: skew, RetryAfter: simulator.RetryAfter{In: ahead, Layout: layout}})
				if gap := reads[1].At.Sub(reads[0].At); gap < ahead || gap > ahead+2*time.Second {
					t.Errorf("the next poll came after %s, want %s", gap, ahead)
				}
			})
		}
	}
}

// retriedAfter runs an operation whose first status reads get the answer, and
// gives these reads and the one after them, which finds the job succeeded.
func retriedAfter(t *testing.T, times int, a simulator.Answer) (reads []simulator.Request) {
	t.Helper()
	inHouse(t, harness.Options{}, func(t *testing.T, h *harness.House) {
		h.Mount(simulator.Example, "example", simulator.Options{Plan: simulator.Steps(time.Second, "running", "succeeded")},
			simulator.On(simulator.Status, simulator.FirstOfJob(times), a))
		op := h.Submit("date", "example", params("date"))
		h.Wait(op.ID, 5*time.Minute, "succeeded")
		reads = h.Sim.Requests(simulator.Filter{Call: simulator.Status})
		if len(reads) != times+1 {
			t.Fatalf("%d status reads, want %d: no loop, none lost\n%s", len(reads), times+1, h.Story(op.ID))
		}
		for _, e := range facts(h, op.ID, "observation.failed") {
			if e.Fields["retry_at"] == "" {
				t.Errorf("the wait asked for is not in the history:\n%s", h.Story(op.ID))
			}
		}
		jobs(t, h, 1)
		keptPromises(t, h, op.ID)
	})
	return reads
}

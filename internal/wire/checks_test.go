package wire

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/outbound"
)

// Before anything is permitted the process knows how its clock stands to the store's:
// no permit if it is off, and what is due is judged by the store's time, but never
// later than that.
func TestClocksAreComparedFirst(t *testing.T) {
	const (
		allowed = 30 * time.Second
		trip    = 200 * time.Millisecond // for the question, and the same for the answer
	)
	for _, c := range []struct {
		name  string
		off   time.Duration // of our clock from the store's
		err   error
		ahead time.Duration
		why   string // why nothing is permitted
		wait  time.Duration
	}{
		{"as the store's", 0, nil, 0, "", checkEvery},
		{"ahead by less than the way there", trip / 2, nil, 0, "", checkEvery},
		{"ahead", 10 * time.Second, nil, 10*time.Second - trip, "", checkEvery},
		{"behind", -10 * time.Second, nil, 0, "", checkEvery},
		{"too far ahead", time.Minute, nil, time.Minute - trip, "off by 59.8s", checkEvery},
		{"too far behind", -time.Minute, nil, 0, "off by 59.8s", checkEvery},
		{"no answer", 0, errors.New("no answer"), 0, "no answer", checkAgain},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &Service{cfg: Config{
					Clock: SystemClock{outbound.SystemClock{}}, ClockDifference: allowed, Log: slog.New(slog.NewTextHandler(&log, nil)),
					StoreTime: func(context.Context) (time.Time, error) {
						time.Sleep(trip)
						at := time.Now().Add(-c.off)
						time.Sleep(trip)
						return at, c.err
					},
				}}
				wait := s.checkFirst(t.Context())
				if ahead := s.aheadBy(); ahead != c.ahead || wait != c.wait {
					t.Errorf("ahead %s and again after %s, want %s and %s", ahead, wait, c.ahead, c.wait)
				}
				err := s.permits()
				if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(log.String(), c.why)) {
					t.Errorf("permits: %v, want %q; logged %q", err, c.why, log.String())
				}
				// Whoever looks is told of the clock where it is the clock, and of the rest else.
				off := strings.HasPrefix(c.why, "off by")
				if (s.clockOff() != nil) != off || (s.drifted() != nil) != (c.why != "" && !off) {
					t.Errorf("the clock: %v, the rest: %v", s.clockOff(), s.drifted())
				}
			})
		})
	}
}

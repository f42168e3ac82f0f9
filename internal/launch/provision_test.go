package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/counterfoil/counterfoil/internal/journal"
)

// Nodes that have just started are given the time to find each other, and no other
// failure is tried again.
func TestNodesThatAreMissing(t *testing.T) {
	few := fmt.Errorf("create stream LEDGER: %w", journal.ErrTooFewNodes)
	other := errors.New("not permitted")
	for _, c := range []struct {
		name string
		err  func(try int) error
		want error
		took time.Duration
	}{
		{"all there", func(int) error { return nil }, nil, 0},
		{"one comes later", func(try int) error {
			if try < 4 {
				return few
			}
			return nil
		}, nil, 3 * electionPause},
		{"one never comes", func(int) error { return few }, journal.ErrTooFewNodes, electionPatience + electionPause},
		{"something else", func(int) error { return other }, other, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				begun, tries := time.Now(), 0
				err := makeStreams(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), func(context.Context) error {
					tries++
					return c.err(tries)
				})
				if !errors.Is(err, c.want) || time.Since(begun) != c.took || strings.Count(log.String(), "asked again") != tries-1 && c.want == nil {
					t.Errorf("%v after %s and %d tries, want %v after %s: %s", err, time.Since(begun), tries, c.want, c.took, log.String())
				}
			})
		})
	}
}

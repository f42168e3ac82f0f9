package disk

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func (clock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// It goes low below the reserve, comes back an eighth above it, and says each
// once. What cannot be asked changes nothing.
func TestReserve(t *testing.T) {
	var log bytes.Buffer
	free, broken := uint64(100), error(nil)
	r := New(t.Context(), Config{
		Free:  func() (uint64, error) { return free, broken },
		Least: 80, Clock: clock{}, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for _, step := range []struct {
		free   uint64
		broken error
		low    bool
		lines  int
	}{
		{100, nil, false, 0},
		{80, nil, false, 0},
		{79, nil, true, 1},
		{10, nil, true, 1},
		{80, nil, true, 1},
		{89, nil, true, 1},
		{0, errors.New("no answer"), true, 2},
		{0, errors.New("no answer"), true, 2},
		{90, nil, false, 3},
		{81, nil, false, 3},
		{0, nil, true, 4},
	} {
		free, broken = step.free, step.broken
		r.Look(t.Context())
		if lines := strings.Count(log.String(), "\n"); r.Low() != step.low || lines != step.lines {
			t.Fatalf("%d free (%v): low %v, %d lines in the log; want %v, %d\n%s", step.free, step.broken, r.Low(), lines, step.low, step.lines, log.String())
		}
		if _, err := r.Free(); !errors.Is(err, step.broken) {
			t.Errorf("error %v, want %v", err, step.broken)
		}
	}
	for _, want := range []string{"level=ERROR msg=\"the disk is low", "level=INFO msg=\"the disk has room again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

func TestNoReserve(t *testing.T) {
	r := New(t.Context(), Config{Free: func() (uint64, error) { return 0, nil }, Clock: clock{}, Log: slog.New(slog.DiscardHandler)})
	if r.Low() {
		t.Error("low without a reserve")
	}
}

func TestRunAsksAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		r := New(t.Context(), Config{
			Free:  func() (uint64, error) { asked++; return 0, nil },
			Least: 1, Clock: clock{}, Log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithTimeout(t.Context(), 4*Every+time.Second)
		defer stop()
		if err := r.Run(ctx); err != nil || asked != 5 {
			t.Error(err, asked)
		}
	})
}

// The system's own word: something is free here, and nothing where nothing is.
func TestFree(t *testing.T) {
	if n, err := Free(t.TempDir()); err != nil || n == 0 {
		t.Error(n, err)
	}
	if _, err := Free(t.TempDir() + "/missing"); err == nil {
		t.Error("space in a directory that does not exist")
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "17": 17, "4KiB": 4096, "512MiB": 512 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40} {
		if n, err := Size(text); err != nil || n != want {
			t.Errorf("%s: %d %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1GB", "1 GiB", "GiB", "1.5GiB", "9999999TiB", "99999999999999999999", "0x10"} {
		if n, err := Size(text); err == nil {
			t.Errorf("%q is taken as %d", text, n)
		}
	}
}

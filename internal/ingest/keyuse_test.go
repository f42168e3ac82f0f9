package ingest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// turns is a clock of which each Sleep lasts until a turn is given; the time is
// moved by hand.
type turns struct {
	now  time.Time
	turn chan struct{}
}

func (c *turns) Now() time.Time { return c.now }

func (c *turns) Sleep(ctx context.Context, _ time.Duration) error {
	select {
	case <-c.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *turns) SleepOr(ctx context.Context, d time.Duration, _ <-chan struct{}) error {
	return c.Sleep(ctx, d)
}

func present(t *testing.T, k *Keys, bearer string) {
	t.Helper()
	if _, err := k.Authenticate([]string{"Bearer " + bearer}); err != nil {
		t.Fatal(err)
	}
}

func TestExpiry(t *testing.T) {
	clock := &turns{now: time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)}
	key, bearer := newKey(t, rand.NewChaCha8([32]byte{6}), "night", false)
	key.Expires = clock.now.Add(time.Hour)
	path := filepath.Join(t.TempDir(), "keys")
	addKeys(t, path, key)
	keys, err := OpenKeys(path, clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	clock.now = key.Expires.Add(-time.Nanosecond)
	present(t, keys, bearer)
	clock.now = key.Expires
	_, err = keys.Authenticate([]string{"Bearer " + bearer})
	var late, wrong *Refusal
	if !errors.As(err, &late) {
		t.Fatal(err)
	}
	// Whoever asks is told what one with a wrong secret is told; the log has more.
	_, err = keys.Authenticate([]string{"Bearer " + bearer + "x"})
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	if a, b := ProblemOf(late, "/", ""), ProblemOf(wrong, "/", ""); !bytes.Equal(a.JSON(), b.JSON()) {
		t.Errorf("an expired key is told %s, a wrong one %s", a.JSON(), b.JSON())
	}
	if late.Key != key.ID || late.KeyState != "expired" || wrong.Key != "" {
		t.Errorf("the log gets %q %q, of a wrong secret %q", late.Key, late.KeyState, wrong.Key)
	}
}

func TestKeyUses(t *testing.T) {
	start := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	clock := &turns{now: start, turn: make(chan struct{})}
	random := rand.NewChaCha8([32]byte{7})
	one, bearer1 := newKey(t, random, "a", false)
	two, bearer2 := newKey(t, random, "b", false)
	path := filepath.Join(t.TempDir(), "keys")
	addKeys(t, path, one, two)
	open := func() *Keys {
		k, err := OpenKeys(path, clock.Now)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	noted := func(id string, want time.Time) {
		t.Helper()
		uses, err := KeyUses(path)
		if err != nil || !uses[id].Equal(want) {
			t.Errorf("%s was used at %v, %v; want %v", id, uses[id], err, want)
		}
	}
	here, there := open(), open() // two processes
	present(t, here, bearer1)
	if _, err := os.Stat(path + ".used"); !os.IsNotExist(err) {
		t.Error("a request wrote the note:", err)
	}
	if err := here.noteUses(); err != nil {
		t.Fatal(err)
	}
	noted(one.ID, start)
	noted(two.ID, time.Time{})

	// Each process adds its own, and an earlier use takes nothing back.
	present(t, there, bearer1)
	clock.now = start.Add(time.Hour)
	present(t, here, bearer1)
	if err := here.noteUses(); err != nil {
		t.Fatal(err)
	}
	present(t, there, bearer2)
	if err := there.noteUses(); err != nil {
		t.Fatal(err)
	}
	noted(one.ID, clock.now)
	noted(two.ID, clock.now)

	// A note that is damaged is made anew.
	if err := os.WriteFile(path+".used", []byte("{\"id\":\n\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	present(t, here, bearer2)
	if err := here.noteUses(); err != nil {
		t.Fatal(err)
	}
	noted(two.ID, clock.now)

	// What could not be noted is noted later: told once, and nobody is kept out.
	clock.now = start.Add(2 * time.Hour)
	if err := os.Remove(path + ".used"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+".used/in-the-way", 0o700); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- here.RunUses(ctx, clock, slog.New(slog.NewTextHandler(&log, nil))) }()
	present(t, here, bearer1)
	clock.turn <- struct{}{}
	clock.turn <- struct{}{}
	clock.turn <- struct{}{} // the second note has failed by then
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "cannot be noted"); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
	if err := os.RemoveAll(path + ".used"); err != nil {
		t.Fatal(err)
	}
	if err := here.noteUses(); err != nil {
		t.Fatal(err)
	}
	noted(one.ID, clock.now)
}

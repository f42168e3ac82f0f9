package ingest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
	"github.com/counterfoil/counterfoil/internal/journal/memory"
)

// keyFacts are the facts about keys in the order in which they were stored.
func keyFacts(t *testing.T, store journal.Store) []string {
	t.Helper()
	var list []string
	for from := uint64(1); ; {
		m, err := store.Next(t.Context(), journal.Control, ">", from)
		if err != nil {
			return list
		}
		from = m.Sequence + 1
		e, _, err := events.DecodeService(m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		f, ok := e.Fact.(*events.KeyChanged)
		if !ok || m.Subject != "control.key-"+f.KeyID || e.Subject != "keys/"+f.KeyID {
			t.Fatalf("%s has %T of %s", m.Subject, e.Fact, e.Subject)
		}
		list = append(list, fmt.Sprintf("%s %s %v operator=%v disabled=%v removed=%v ends=%v",
			f.Principal, f.Team, f.Scopes, f.Operator, f.Disabled, f.Removed, !f.Expires.IsZero()))
	}
}

type recorder struct {
	t     *testing.T
	store *memory.Store
	path  string
	clock *turns
	n     int
}

// start runs one process's recording over the store until stop is called.
func (r *recorder) start(store journal.Store, log *bytes.Buffer) (stop func()) {
	r.t.Helper()
	keys, err := OpenKeys(r.path, r.clock.Now)
	if err != nil {
		r.t.Fatal(err)
	}
	newID := func() string { r.n++; return fmt.Sprint("e", r.n) }
	j := journal.New(journal.Options{Store: store, Now: r.clock.Now, NewID: newID, Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }})
	v := New(Config{Journal: j, Clock: r.clock, NewID: newID, Source: "/ingest/1"})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() { done <- v.RunKeys(ctx, keys, slog.New(slog.NewTextHandler(log, nil))) }()
	r.clock.turn <- struct{}{} // the first look is over
	return func() {
		r.t.Helper()
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

func TestKeysAreRecorded(t *testing.T) {
	clock := &turns{now: time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC), turn: make(chan struct{})}
	r := &recorder{t: t, path: filepath.Join(t.TempDir(), "keys"), clock: clock, store: memory.New(memory.Config{Now: clock.Now})}
	var log bytes.Buffer
	random := rand.NewChaCha8([32]byte{8})
	one, bearer := newKey(t, random, "local", true)
	two, _ := newKey(t, random, "night", false)
	two.Scopes, two.Team, two.Expires = []Scope{ScopeReadTeam}, "blue", clock.now.Add(time.Hour)
	addKeys(t, r.path, one)

	const plain = "local  [submit:*/* cancel decide read:own] operator=true disabled=false removed=false ends=false"
	want := []string{plain}
	holds := func(what string) {
		t.Helper()
		if got := keyFacts(t, r.store); !slices.Equal(got, want) {
			t.Fatalf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	stop := r.start(r.store, &log)
	holds("at the start")
	clock.turn <- struct{}{}
	holds("while nothing changes")

	addKeys(t, r.path, two)
	clock.turn <- struct{}{} // which ends a rest; the next one begins after the look
	clock.turn <- struct{}{}
	want = append(want, "night blue [read:team] operator=false disabled=false removed=false ends=true")
	holds("after a key was made")
	stop()

	// Another start says nothing that is said; what changed meanwhile it says once.
	r.start(r.store, &log)()
	holds("at the next start")
	if _, err := DisableKey(r.path, two.ID); err != nil {
		t.Fatal(err)
	}
	r.start(r.store, &log)()
	want = append(want, "night blue [read:team] operator=false disabled=true removed=false ends=true")
	holds("at a start after a change")

	// A store that loses the answer, or the write, of an append: said once.
	third, _ := newKey(t, random, "third", false)
	for i, kind := range []memory.Kind{memory.Undone, memory.Done} {
		third.Team = fmt.Sprint("t", i)
		third.ID = fmt.Sprint("third-", i)
		addKeys(t, r.path, third)
		failed := false
		faulty := memory.Inject(r.store, func(c memory.Call) memory.Fault {
			if c.Op == memory.OpPublish && !failed {
				failed = true
				return memory.Fault{Kind: kind}
			}
			return memory.Fault{}
		})
		r.start(faulty, &log)()
		for range i { // the team of the principal is that of its last line
			want = append(want, "third t1 [submit:*/* cancel decide read:own] operator=false disabled=false removed=false ends=false")
		}
		want = append(want, fmt.Sprintf("third t%d [submit:*/* cancel decide read:own] operator=false disabled=false removed=false ends=false", i))
		if !failed {
			t.Fatal("nothing was broken")
		}
		holds(fmt.Sprint("with fault ", kind))
	}

	// A line that is taken out.
	if err := changeKeys(r.path, func(list []Key) ([]Key, error) { return list[:3], nil }); err != nil {
		t.Fatal(err)
	}
	r.start(r.store, &log)()
	// The team falls back to what is left, and the other key is gone.
	want = append(want,
		"third t0 [submit:*/* cancel decide read:own] operator=false disabled=false removed=false ends=false",
		"third  [] operator=false disabled=false removed=true ends=false")
	holds("after a line was taken out")
	r.start(r.store, &log)()
	holds("at the start after that")

	// Nothing of a secret is in it.
	_, secret, _ := strings.Cut(bearer, ".")
	for from := uint64(1); ; {
		m, err := r.store.Next(t.Context(), journal.Control, ">", from)
		if err != nil {
			break
		}
		from = m.Sequence + 1
		if text := string(m.Data); strings.Contains(text, secret) || strings.Contains(text, one.SHA256) {
			t.Errorf("%s has what is secret", m.Subject)
		}
	}
	if log.Len() > 0 {
		t.Error(log.String())
	}
}

package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/counterfoil/counterfoil/events"
	"github.com/counterfoil/counterfoil/internal/journal"
)

// keysEvery is how often the keys file is looked at for what is to be recorded.
const keysEvery = 10 * time.Second

// RunKeys records in CONTROL what the keys file says of each key, at the start and
// whenever the file is another: never digests. Nobody is let in or kept out by it.
// It returns nil when ctx ends.
//
// A change that came and went between two looks is not recorded, nor one that a
// crash came before, until the next start compares again. A process with another
// file records that at its own start and changes, and so no two of them go on
// correcting each other.
func (v *Service) RunKeys(ctx context.Context, keys *Keys, log *slog.Logger) error {
	var recorded stamp
	told := ""
	for {
		list, teams, now, err := keys.snapshot()
		if err == nil && now != recorded {
			if err = v.recordKeys(ctx, list, teams); err == nil {
				recorded = now
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		// A file that cannot be read is told of wherever somebody wants in; here, once.
		switch {
		case err == nil:
			told = ""
		case err.Error() != told:
			told = err.Error()
			log.WarnContext(ctx, "what the keys file says cannot be recorded; it is tried again", "error", err)
		}
		if err := v.cfg.Clock.Sleep(ctx, keysEvery); err != nil {
			return nil //nolint:nilerr // ctx ended
		}
	}
}

// snapshot gives the keys as the file has them now. What it gives is not changed
// any more.
func (k *Keys) snapshot() (map[string]Key, Teams, stamp, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return nil, nil, stamp{}, &KeysError{err}
	}
	return k.keys, k.teams, k.stamp, nil
}

// recordKeys appends a fact for every key of which CONTROL says something else. Of
// two processes that do it at once one is first, and the other finds it said, or
// says at its next change what its own file has.
func (v *Service) recordKeys(ctx context.Context, list map[string]Key, teams Teams) error {
	known, err := v.cfg.Journal.Keys(ctx)
	if err != nil {
		return err
	}
	want := map[string]*events.KeyChanged{}
	for id, k := range list {
		fact := &events.KeyChanged{
			KeyID: id, Principal: k.Principal, Operator: k.Operates(), Team: teams[k.Principal], Expires: k.Expires.UTC(), Disabled: k.Disabled,
		}
		for _, s := range k.May() {
			fact.Scopes = append(fact.Scopes, string(s))
		}
		want[id] = fact
	}
	for id, r := range known {
		if want[id] == nil && (r.Fact == nil || !r.Fact.Removed) {
			want[id] = &events.KeyChanged{KeyID: id, Removed: true}
			if r.Fact != nil {
				want[id].Principal = r.Fact.Principal
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		r, ok := known[id]
		if !ok {
			r = journal.KeyRecord{ID: id}
		}
		if r.Fact != nil && reflect.DeepEqual(r.Fact, want[id]) {
			continue
		}
		outcome, err := v.cfg.Journal.AppendKey(ctx, r, events.ServiceEvent{
			ID: v.cfg.NewID(), Source: v.cfg.Source, Time: v.cfg.Clock.Now(), Fact: want[id],
		})
		if err != nil {
			return fmt.Errorf("record key %s (%s): %w", id, outcome, err)
		}
	}
	return nil
}

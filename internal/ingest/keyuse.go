package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

const (
	usesSuffix = ".used"     // after the name of the keys file
	usesEvery  = time.Minute // at most so often are uses noted
)

// use is one line of the file beside a keys file.
type use struct {
	ID   string    `json:"id"`
	Used time.Time `json:"used"` // by the clock of the process that let the key in
}

// KeyUses says when each key of the keys file was last let in, as far as it was
// noted: up to a minute of it, or more after a crash, may be missing. Nothing is
// decided by it, so a note that cannot be read is as good as none.
func KeyUses(path string) (map[string]time.Time, error) {
	uses := map[string]time.Time{}
	f, err := os.Open(path + usesSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return uses, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read when keys were used: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, maxKeysFile))
	if err != nil {
		return nil, fmt.Errorf("read when keys were used: %w", err)
	}
	for line := range bytes.Lines(text) {
		var u use
		if err := json.Unmarshal(line, &u); err == nil && u.Used.After(uses[u.ID]) {
			uses[u.ID] = u.Used
		}
	}
	return uses, nil
}

// RunUses notes beside the keys file, once a minute and at its end, when each key
// was last let in. It returns nil when ctx ends. A note that cannot be written is
// told once and tried again: nobody is kept out for it.
//
// A crash loses what was not noted yet and leaves the note before it.
func (k *Keys) RunUses(ctx context.Context, clock Clock, log *slog.Logger) error {
	told := false
	for {
		ended := clock.Sleep(ctx, usesEvery) != nil
		err := k.noteUses()
		if err != nil && !told {
			log.WarnContext(ctx, "when keys were last used cannot be noted beside the keys file", "error", err,
				"hint", "let the service write to that directory, or leave it: only the listing of keys lacks it")
		}
		told = err != nil
		if ended {
			return nil
		}
	}
}

// noteUses merges what is not noted yet into the file. Of several processes on one
// keys file each adds its own; the later time counts.
func (k *Keys) noteUses() (err error) {
	k.mu.Lock()
	fresh := k.used
	k.used = map[string]time.Time{}
	known := k.keys
	k.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	defer func() {
		if err == nil {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for id, at := range fresh {
			if at.After(k.used[id]) {
				k.used[id] = at
			}
		}
	}()
	lock, err := os.OpenFile(k.path+usesSuffix+".lock", os.O_RDWR|os.O_CREATE, keyFileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which gives up the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	uses, err := KeyUses(k.path)
	if err != nil {
		uses = map[string]time.Time{}
	}
	for id, at := range fresh {
		if at.After(uses[id]) {
			uses[id] = at
		}
	}
	var text bytes.Buffer
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		if _, ok := known[id]; !ok {
			continue // its line was taken out of the keys file
		}
		line, err := json.Marshal(use{id, uses[id].UTC().Truncate(time.Second)})
		if err != nil {
			return err
		}
		text.Write(line)
		text.WriteByte('\n')
	}
	// A crash before the rename leaves the note before; the next one has both.
	return replaceFile(k.path+usesSuffix, text.Bytes())
}

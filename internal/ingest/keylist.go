package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// ErrNoKey says that the file has no key of an id.
var ErrNoKey = errors.New("no such key")

// ListKeys gives the keys of the file in its order, each with its right as it
// counts.
func ListKeys(path string) ([]Key, error) {
	list, err := readKeys(path)
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	return list, nil
}

// DisableKey disables a key; one that is disabled already stays so. A service
// that runs sees it at the next request. A crash leaves the key as it was or
// disabled, also after a power loss once DisableKey has returned.
func DisableKey(path, id string) (Key, error) {
	var found Key
	err := changeKeys(path, func(list []Key) ([]Key, error) {
		for i := range list {
			if list[i].ID == id {
				list[i].Disabled = true
				found = list[i]
				return list, nil
			}
		}
		return nil, fmt.Errorf("%w: %.80q", ErrNoKey, id)
	})
	if err != nil {
		return Key{}, fmt.Errorf("disable a key in %s: %w", path, err)
	}
	return found, nil
}

// changeKeys replaces the file by what change makes of its keys. A file that is
// not there has none. One process at a time: of two changes made from the same
// file the later would undo the earlier, and that may have been a revocation.
func changeKeys(path string, change func([]Key) ([]Key, error)) (err error) {
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, keyFileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which gives up the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	list, err := readKeys(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if list, err = change(list); err != nil {
		return err
	}
	text, err := keysText(list)
	if err != nil {
		return err
	}
	if err := replaceFile(path, text); err != nil {
		return err
	}
	// The new name survives a power loss, not only the bytes.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func keysText(list []Key) ([]byte, error) {
	var text bytes.Buffer
	for _, k := range list {
		line, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		text.Write(line)
		text.WriteByte('\n')
	}
	return text.Bytes(), nil
}

// ErrNoPrincipal says that the file has no key of a principal.
var ErrNoPrincipal = errors.New("no such principal")

// RevokePrincipal disables every key of a principal, all in one change of the
// file, and gives them. Its operations stay its own. Crashes leave the file as it
// was or all of them disabled.
func RevokePrincipal(path, principal string) ([]Key, error) {
	var found []Key
	err := changeKeys(path, func(list []Key) ([]Key, error) {
		for i := range list {
			if list[i].Principal == principal {
				list[i].Disabled = true
				found = append(found, list[i])
			}
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%w: %.80q", ErrNoPrincipal, principal)
		}
		return list, nil
	})
	if err != nil {
		return nil, fmt.Errorf("revoke a principal in %s: %w", path, err)
	}
	return found, nil
}

// ParseExpiry reads when a key ends: "90d", "12h", or a time with a zone. It must
// be later than now.
func ParseExpiry(text string, now time.Time) (time.Time, error) {
	wish, problem := parseWish(text)
	if problem != nil {
		return time.Time{}, errors.New(problem.Message)
	}
	at := wish.At
	if at.IsZero() {
		if wish.Length > longestExpiry {
			return time.Time{}, fmt.Errorf("must be at most %s from now; leave it out for a key that does not end", span(longestExpiry))
		}
		at = now.Add(wish.Length)
	}
	if !at.After(now) {
		return time.Time{}, fmt.Errorf("must be later than now, %s", now.UTC().Format(time.RFC3339))
	}
	return at.UTC().Truncate(time.Second), nil
}

const longestExpiry = 100 * 365 * 24 * time.Hour

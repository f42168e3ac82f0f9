package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	var text bytes.Buffer
	for _, k := range list {
		line, err := json.Marshal(k)
		if err != nil {
			return err
		}
		text.Write(line)
		text.WriteByte('\n')
	}
	if err := replaceFile(path, text.Bytes()); err != nil {
		return err
	}
	// The new name survives a power loss, not only the bytes.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Inspection is what can be said of a data directory from outside.
type Inspection struct {
	Made   bool   // it has our marker
	Locked bool   // a process holds it
	PID    int    // of that process, as the lock file says; 0 if it does not
	Run    string // the newest run; "" if there was none
	Clean  bool   // that run ended in order
}

// Inspect looks at a data directory and changes nothing in it. It asks for the
// lock and gives it back at once; a service that starts in that very moment is
// told that the directory is in use. One that is not ours, or newer than this
// program, is an error, as at a start.
func Inspect(path string) (Inspection, error) {
	var i Inspection
	if err := checkOurs(path); err != nil {
		return i, err
	}
	if _, err := os.Stat(filepath.Join(path, formatName)); err != nil {
		return i, nil //nolint:nilerr // an empty directory: nothing was made yet
	}
	i.Made = true
	text, err := os.ReadFile(filepath.Join(path, runsName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return i, fmt.Errorf("read runs of data directory: %w", err)
	}
	_, i.Run, i.Clean = earlierRuns(text)
	lock, err := os.Open(filepath.Join(path, lockName))
	if errors.Is(err, os.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return i, fmt.Errorf("open lock of data directory: %w", err)
	}
	defer closeQuietly(lock)
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		i.Locked, i.PID = true, readPID(lock)
	case err != nil:
		return i, fmt.Errorf("lock data directory %s: %w", path, err)
	}
	return i, nil
}

//go:build linux || darwin || freebsd

package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Free gives the bytes an unprivileged process may still write below the
// directory. Quotas of a user or project are not seen.
func Free(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("ask for the free space of the data directory: %w", err)
	}
	// The fields' types differ between systems; FreeBSD's may be negative.
	return uint64(max(int64(s.Bavail), 0)) * uint64(s.Bsize), nil
}

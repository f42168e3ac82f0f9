package outbound

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ReadPrivate reads at most limit+1 bytes of a file that only this process's
// user may read, following links to what is really read. It is for secrets and
// for what says where they are.
//
// Refused: what is not a regular file, what everyone can read, and what the
// group can change. What the group can read is refused too, unless the file
// belongs to another user and this process is not root: mounted secrets belong
// to root and are lent by the group, so that is the only way in. Errors name the
// path and what to run, never content.
func ReadPrivate(path string, limit int64) ([]byte, fs.FileInfo, error) {
	// Without O_NONBLOCK, opening a pipe waits for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of what was opened, whatever the path leads to by now
	if err != nil {
		return nil, nil, err
	}
	if err := private(path, info, os.Geteuid()); err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	return text, info, err
}

func private(path string, info fs.FileInfo, user int) error {
	const others, groupWrite, groupRead = 0o007, 0o020, 0o040
	mode := info.Mode()
	stat, known := info.Sys().(*syscall.Stat_t)
	lent := known && user != 0 && int64(stat.Uid) != int64(user)
	switch {
	case !mode.IsRegular():
		return errors.New("not a regular file")
	case mode.Perm()&(others|groupWrite) != 0, mode.Perm()&groupRead != 0 && !lent:
		return fmt.Errorf("%s can be read or changed by others (mode %04o): run chmod 600 on it, or mount it with mode 0400", path, mode.Perm())
	}
	return nil
}

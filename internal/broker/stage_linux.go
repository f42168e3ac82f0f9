package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	memoryDir  = "/dev/shm"
	leastStage = 16 << 20 // bytes that must be free there
)

// StageInMemory lets the server stage atomic batches of these streams in memory
// and says whether it does now. The streams must be there, and nothing else may
// use the broker meanwhile.
//
// On one node the server writes each batch to files of its own before it commits
// it, and syncs those files and their directory, five times in all, so that a
// batch is whole or not there also after power loss. Nobody here needs that:
// each message has its own guard, and none is acknowledged before the stream's
// own file is synced. So the directory it stages in is put on a file system in
// memory, where a sync costs nothing.
//
// A crash of the process leaves the staged files in memory, and the next start
// of the server finishes the batch from them (read in its source). After power loss they are gone,
// and the first part of a batch that was being committed may stay; none of it
// was acknowledged. Where there is no such file system, or it is full, or the
// server keeps its batches elsewhere one day, nothing changes: a batch that
// cannot be staged is refused, and its writes go singly.
func (b *Broker) StageInMemory(streams ...string) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(memoryDir, &s); err != nil || s.Type != unix.TMPFS_MAGIC || s.Bavail*uint64(s.Bsize) < leastStage {
		return false, nil //nolint:nilerr // there is no such place
	}
	root, err := filepath.Abs(b.path)
	if err != nil {
		return false, fmt.Errorf("stage batches in memory: %w", err)
	}
	// By the directory, whose lock we hold: what a run that was killed left is
	// found, and by now the server has made use of it.
	sum := sha256.Sum256([]byte(root))
	stage := filepath.Join(memoryDir, fmt.Sprintf("counterfoil-%d-%s", os.Getuid(), hex.EncodeToString(sum[:8])))
	if err := os.RemoveAll(stage); err != nil {
		return false, nil //nolint:nilerr // another user's: we do not go there
	}
	if err := os.Mkdir(stage, 0o700); err != nil {
		return false, nil //nolint:nilerr // as above
	}
	b.staged = stage
	for _, name := range streams {
		if err := os.Mkdir(filepath.Join(stage, name), 0o700); err != nil {
			return false, fmt.Errorf("stage batches in memory: %w", err)
		}
		link := filepath.Join(root, storeName, streamsName, name, "batches")
		// The server removes its own when it starts; one that is not empty, or of a
		// batch under way, stays.
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, nil //nolint:nilerr // as it was
		}
		if err := os.Symlink(filepath.Join(stage, name), link); err != nil {
			return false, fmt.Errorf("stage batches in memory: %w", err)
		}
	}
	b.inMemory = true
	return true, nil
}

// unstage removes what is in memory, after the server has stopped.
func (b *Broker) unstage() error {
	if b.staged == "" {
		return nil
	}
	if err := os.RemoveAll(b.staged); err != nil {
		return fmt.Errorf("remove staged batches: %w", err)
	}
	return nil
}

package outbound

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// owned is a file of a mode and an owner.
type owned struct {
	mode fs.FileMode
	uid  uint32
}

func (o owned) Name() string       { return "key" }
func (o owned) Size() int64        { return 1 }
func (o owned) Mode() fs.FileMode  { return o.mode }
func (o owned) ModTime() time.Time { return time.Time{} }
func (o owned) IsDir() bool        { return o.mode.IsDir() }
func (o owned) Sys() any           { return &syscall.Stat_t{Uid: o.uid} }

// Who may read a secret beside us: only the group it is lent to, and only where
// that is our one way in.
func TestPrivate(t *testing.T) {
	const us, other, root = 1000, 1001, 0
	for _, c := range []struct {
		mode  fs.FileMode
		owner uint32
		user  int
		ok    bool
	}{
		{0o600, us, us, true},
		{0o400, us, us, true},
		{0o700, us, us, true},
		{0o640, us, us, false},   // we can make it 0600
		{0o440, root, us, true},  // a mounted secret
		{0o440, other, us, true}, // lent by another user
		{0o460, root, us, false}, // a group that can change it
		{0o444, root, us, false}, // everyone
		{0o601, us, us, false},
		{0o602, us, us, false},
		{0o440, root, root, false},
		{0o440, other, root, false}, // root needs no group to read it
		{0o400, other, root, true},
		{0o400 | fs.ModeNamedPipe, us, us, false},
		{0o700 | fs.ModeDir, us, us, false},
		{0o600 | fs.ModeDevice, us, us, false},
	} {
		if err := private("/the/key", owned{c.mode, c.owner}, c.user); (err == nil) != c.ok {
			t.Errorf("mode %v of %d, read by %d: %v", c.mode, c.owner, c.user, err)
		}
	}
}

func TestReadPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("SECR3T"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, info, err := ReadPrivate(path, 3)
	if err != nil || string(text) != "SECR" || info.Size() != 6 {
		t.Errorf("%q, %v, %v", text, info, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		text, _, err := ReadPrivate(p, 100)
		if text != nil || err == nil || !strings.Contains(err.Error(), "(mode 0644): run chmod 600") || strings.Contains(err.Error(), "SECR3T") {
			t.Errorf("%s: %q, %v", p, text, err)
		}
		s, err := SystemReferences().Resolve(t.Context(), "file:"+p)
		if !s.Empty() || err == nil || !strings.Contains(err.Error(), "credential file:"+p) {
			t.Errorf("resolved %s: %v", p, err)
		}
	}
	pipe := path + ".pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadPrivate(pipe, 100); err == nil || err.Error() != "not a regular file" {
		t.Errorf("a pipe: %v", err)
	}
}

package crash_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// smallDisk is a directory on a file system of its own of so many bytes. A process
// with a mount namespace of its own holds it and ends with the test, so that
// nothing stays mounted whatever becomes of that. It needs root, or a system
// that lets anybody make user namespaces.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	at := t.TempDir()
	holder := exec.Command("sh", "-c", `mount --make-rprivate / && mount -t tmpfs -o "size=$1" counterfoil "$2" && echo mounted && exec cat`, "sh", fmt.Sprint(bytes), at)
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		holder.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		holder.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		holder.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	holder.Stderr = os.Stderr
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatalf("a process with a mount namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends with its input
		_ = holder.Wait()
	})
	said := make([]byte, len("mounted\n"))
	if _, err := io.ReadFull(out, said); err != nil {
		t.Fatalf("mount a file system of %d bytes, as root or in a user namespace: %v", bytes, err)
	}
	// What it sees there is reached from outside through its root.
	return filepath.Join(fmt.Sprintf("/proc/%d/root", holder.Process.Pid), at)
}

// fill takes all the room that is left in the directory, and gives the file it
// takes it with.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // whatever was written
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return name
}

//go:build unix

package notice

import (
	"os/exec"
	"syscall"
)

// alone gives the command a process group of its own, which is killed whole: what
// it started does not outlive its time, unless it left the group.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

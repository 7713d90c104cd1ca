package process

import (
	"os/exec"
	"syscall"
)

// Supported reports whether shards can be shown here: the provider of processes runs on Linux.
const Supported = true

// Unsupported is why not.
const Unsupported = ""

// apart has a program run in a process group of its own, so that what a terminal sends to this
// one does not reach it, and end with this process, however that ends.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// pause stops a process where it stands (SIGSTOP), wake lets it go on, and kill ends it.
func pause(pid int) error { return syscall.Kill(-pid, syscall.SIGSTOP) }
func wake(pid int) error  { return syscall.Kill(-pid, syscall.SIGCONT) }
func kill(pid int) error  { return syscall.Kill(-pid, syscall.SIGKILL) }

// Alive reports whether a process has this pid.
func Alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

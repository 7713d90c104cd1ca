package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often a process is looked at that another process started.
const lookEvery = 100 * time.Millisecond

// group has a signal go to the whole process group of a pidfd (PIDFD_SIGNAL_PROCESS_GROUP,
// since Linux 6.9).
const group = 1 << 2

// supported reports an error where processes cannot be told apart.
func supported() error {
	if _, err := boot(); err != nil {
		return fmt.Errorf("process: this system does not tell its boots apart: %w", err)
	}
	return nil
}

var boot = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
})

// errGone is matched where no process has a pid any more, or the one that has it ended.
var errGone = errors.New("process: it is gone")

// look returns the process that runs with a pid now. An error that matches errGone says that
// there is none; any other one that nobody could look, and nothing about the process.
func look(pid int) (running, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return running{}, errGone
	}
	if err != nil {
		return running{}, fmt.Errorf("process: look at pid %d: %w", pid, err)
	}
	// The name in parentheses can hold anything (proc_pid_stat(5)).
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return running{}, fmt.Errorf("process: what the system says of pid %d cannot be read", pid)
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return running{}, fmt.Errorf("process: what the system says of pid %d cannot be read", pid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	here, problem := boot()
	if err != nil || problem != nil {
		return running{}, fmt.Errorf("process: look at pid %d: %w", pid, errors.Join(err, problem))
	}
	is := running{PID: pid, Start: start, Boot: here}
	switch fields[0] {
	case "X":
		return running{}, errGone
	case "Z":
		// Its first thread ended. The process did when all of them have: its pidfd is readable
		// then (pidfd_open(2)).
		switch ended, err := over(pid); {
		case err != nil:
			return running{}, err
		case ended:
			return running{}, errGone
		}
	}
	return is, nil
}

// over reports whether all threads of a process have ended.
func over(pid int) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("process: hold pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("process: ask whether pid %d ended: %w", pid, err)
	}
	return n > 0, nil
}

// alive reports whether this very process may run still: it does not if it is gone, or if
// another one has its pid. While nobody can look it may, so that none is started beside it.
func alive(r running) bool {
	if r.PID <= 0 {
		return false
	}
	is, err := look(r.PID)
	return err == nil && is == r || err != nil && !errors.Is(err, errGone)
}

// signal asks a process to end, or kills it, and its process group with it. Of one that is gone there is nothing
// to do. The pid is held by a file descriptor while it is looked at, so that no other process
// can take it in between.
func signal(r running, kill bool) error {
	if r.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process: hold pid %d: %w", r.PID, err)
	}
	defer unix.Close(fd)
	is, err := look(r.PID)
	if err != nil && !errors.Is(err, errGone) {
		return err // it may be another one
	}
	if err != nil || is != r {
		return nil
	}
	s := unix.SIGTERM
	if kill {
		s = unix.SIGKILL
	}
	err = unix.PidfdSendSignal(fd, s, nil, group)
	if errors.Is(err, unix.EINVAL) { // an older kernel
		err = unix.PidfdSendSignal(fd, s, nil, 0)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process: signal pid %d: %w", r.PID, err)
	}
	return nil
}

// gate waits for a line on file descriptor 3, and becomes the command then. If the provider
// is gone before, there is no line, and no command.
const gate = `read -r go <&3 && exec 3<&- && exec "$@"`

// child is a process that this one started.
type child struct {
	running running
	door    *os.File
	ended   chan struct{} // closed when it ended
	how     string        // it did; written before ended is closed
}

// start makes the process that becomes the command with [child.begin].
func start(profile Profile, dir string, env []string) (*child, error) {
	command := profile.Command
	// Found now: a command that is not there is an error, and not a process that fails.
	program, err := exec.LookPath(command[0])
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	inner, door, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	defer inner.Close()
	// Appended to: what follows a cut begins at the file's start again.
	output, err := os.OpenFile(filepath.Join(dir, outputFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		door.Close()
		return nil, fmt.Errorf("process: %w", err)
	}
	defer output.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", gate, "sh", program}, command[1:]...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, output, output, []*os.File{inner}
	// The provider's own settings are not for what it runs.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FEALTY_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	// A session of its own: what ends the provider does not end its machines.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		door.Close()
		return nil, fmt.Errorf("process: %w", err)
	}
	// It cannot be gone: it is not waited for yet, and has a place in /proc.
	is, problem := look(cmd.Process.Pid)
	c := &child{running: is, door: door, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = cmd.Wait() // ProcessState says how it ended
		c.how = cmd.ProcessState.String()
	}()
	if problem == nil {
		problem = boundFiles(is.PID, profile.MaxFileBytes)
	}
	if problem != nil {
		c.abandon()
		return nil, fmt.Errorf("process: pid %d was started: %w", cmd.Process.Pid, problem)
	}
	return c, nil
}

// boundFiles bounds each file that a process writes from now on, and what it starts. Without a
// bound of its own it keeps the provider's; it cannot have a wider one than that.
func boundFiles(pid int, limit int64) error {
	if limit == 0 {
		return nil
	}
	var had unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &had); err != nil {
		return fmt.Errorf("read the bound on its files: %w", err)
	}
	most := min(uint64(limit), had.Max)
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		return fmt.Errorf("bound its files: %w", err)
	}
	return nil
}

// begin lets the process become its command.
func (c *child) begin() {
	_, _ = c.door.WriteString("go\n") // one that is gone is seen by who watches it
	c.door.Close()
}

// abandon ends a process that never became its command.
func (c *child) abandon() {
	c.door.Close()
	<-c.ended
}

// cutOutput bounds what a machine's command wrote: of more than [MaxOutput] the end is kept in a
// file beside it, in the place of what was kept before, and the command goes on with an empty
// one. Output in that moment is lost. The folder is the command's own, so that whatever else it
// put there in the place of these files is left alone.
func cutOutput(dir string) error {
	const own = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	output, err := os.OpenFile(filepath.Join(dir, outputFile), os.O_RDWR|own, 0)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	defer output.Close()
	info, err := output.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() <= MaxOutput {
		return err
	}
	kept, err := os.OpenFile(filepath.Join(dir, keptFile), os.O_CREATE|os.O_WRONLY|own, 0o600)
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	defer kept.Close()
	if info, err := kept.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("process: %s is no file", kept.Name()))
	}
	// Neither file is made longer by a command that writes on and on.
	end := io.NewSectionReader(output, info.Size()-KeptOutput, KeptOutput)
	if err := kept.Truncate(0); err != nil {
		return fmt.Errorf("process: %w", err)
	}
	if _, err := io.Copy(kept, end); err != nil {
		return fmt.Errorf("process: %w", err)
	}
	return output.Truncate(0)
}

func removeAll(dir string) error { return os.RemoveAll(dir) }

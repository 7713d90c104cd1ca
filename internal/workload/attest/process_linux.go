package attest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fealty-io/fealty/internal/workload"
)

// Process is a process that opened a connection. It is safe for concurrent use. Close it.
type Process struct {
	pid      int32
	uid, gid uint32
	handle   *os.File // pidfd
	program  program  // that it ran when it connected; zero if that could not be read
	hashes   *Hashes
}

// MaxFiles is how many files this process may have open; 0: the system does not say.
func MaxFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<30))
}

// OpenProcess returns the process on the other end of conn, a unix socket. Hashes are shared.
// Errors match [ErrGone] where it has ended.
func OpenProcess(conn net.Conn, hashes *Hashes) (*Process, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.New("attest: not a connection of the operating system")
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("attest: %w", err)
	}
	p := &Process{hashes: hashes}
	var cerr error
	if err := rc.Control(func(fd uintptr) { cerr = p.ask(int(fd)) }); err != nil {
		return nil, fmt.Errorf("attest: %w", err)
	}
	if cerr != nil {
		return nil, cerr
	}
	// As early as can be: from now on it may not become another program.
	if f, err := p.stat(); err == nil {
		p.program = f.program()
	}
	// Linux 6.16 gives a handle also on a process that has ended.
	if !p.alive() {
		p.Close()
		return nil, fmt.Errorf("attest: process %d: %w", p.pid, ErrGone)
	}
	return p, nil
}

// ask asks the kernel who connected (unix(7)). SO_PEERPIDFD (Linux 6.5) gives a handle on that
// very process. Before, the number is opened, which another process could have taken since the
// connection was made: a handle on a process that has ended shows, but one on its successor does
// not, within that moment.
func (p *Process) ask(fd int) error {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("attest: the system does not tell who is on the other end: %w", err)
	}
	p.pid, p.uid, p.gid = c.Pid, c.Uid, c.Gid
	handle, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		handle, err = unix.PidfdOpen(int(p.pid), 0)
	}
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA):
		return fmt.Errorf("attest: process %d: %w", p.pid, ErrGone)
	case err != nil:
		return fmt.Errorf("attest: process %d: %w", p.pid, err)
	}
	unix.CloseOnExec(handle)
	p.handle = os.NewFile(uintptr(handle), "pidfd")
	return nil
}

// Close gives the handle back.
func (p *Process) Close() error { return p.handle.Close() }

// PID is the number of the process.
func (p *Process) PID() int32 { return p.pid }

// UID is the user that it ran as when it connected.
func (p *Process) UID() uint32 { return p.uid }

// GID is the group that it ran as when it connected.
func (p *Process) GID() uint32 { return p.gid }

// alive reports whether the process runs. As long as it does, nobody else has its number.
func (p *Process) alive() bool {
	var ended bool
	raw, err := p.handle.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(fds, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			ended = err != nil || n > 0
			return
		}
	})
	return err == nil && !ended
}

func (p *Process) proc(name string) string { return fmt.Sprintf("/proc/%d/%s", p.pid, name) }

// stat tells which program the process runs.
func (p *Process) stat() (file, error) {
	info, err := os.Stat(p.proc("exe"))
	if err != nil {
		return file{}, err
	}
	return fileOf(info), nil
}

func fileOf(info os.FileInfo) file {
	s := info.Sys().(*syscall.Stat_t)
	return file{dev: uint64(s.Dev), ino: s.Ino, size: s.Size, mtime: s.Mtim.Nano(), ctime: s.Ctim.Nano()}
}

// Facts returns those facts that the kernel says of the process now which are wanted. Errors match
// [ErrGone] or [ErrOther], or the context's.
func (p *Process) Facts(ctx context.Context, want workload.Want) (workload.Facts, error) {
	f := workload.Facts{PID: p.pid, UID: p.uid, GID: p.gid}
	// Before anything is read, and so before the last look at whether it runs: this was of the process.
	runs, err := p.stat()
	same := runs.program() == p.program
	if want != (workload.Want{}) {
		f.Unread = make(map[string]string)
		p.read(ctx, want, &f, runs, err)
	}
	if ctx.Err() != nil {
		return workload.Facts{}, ctx.Err()
	}
	// All that was read was of this process if it still runs.
	if !p.alive() {
		return workload.Facts{}, fmt.Errorf("attest: process %d: %w", p.pid, ErrGone)
	}
	if want != (workload.Want{}) { // and of this program, if it still runs that
		after, err := p.stat()
		same = same && (err != nil && p.program == program{} || after.program() == p.program)
	}
	if !same {
		return workload.Facts{}, fmt.Errorf("attest: process %d: %w", p.pid, ErrOther)
	}
	return f, nil
}

// read reads what is wanted of a process that runs a program, or of which that cannot be read.
func (p *Process) read(ctx context.Context, want workload.Want, f *workload.Facts, runs file, unreadable error) {
	if want.Path {
		err := unreadable
		if err == nil {
			f.Path, err = p.path()
		}
		if err != nil {
			f.Unread["path"] = reason(err)
		}
	}
	if want.SHA256 {
		err := unreadable
		if err == nil {
			f.SHA256, err = p.hash(ctx, runs)
		}
		if err != nil {
			f.Unread["sha256"] = reason(err)
		}
	}
	if want.Placed {
		if cgroups, err := readSome(p.proc("cgroup")); err != nil {
			f.Unread["unit"], f.Unread["container"] = reason(err), reason(err)
		} else {
			f.Unit, f.Container = placed(cgroups)
		}
	}
}

var (
	errReplaced  = errors.New("its file was replaced or removed since it started: start it again")
	errContainer = errors.New("it has files of its own, as in a container, where a path can be anybody's")
)

// path is that of the executable, as this process sees files.
func (p *Process) path() (string, error) {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return "", err
	}
	theirs, err := os.Readlink(p.proc("ns/mnt"))
	if err != nil {
		return "", err
	}
	if ours != theirs {
		return "", errContainer
	}
	path, err := os.Readlink(p.proc("exe"))
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(path, " (deleted)") {
		return "", errReplaced
	}
	return path, nil
}

func (p *Process) hash(ctx context.Context, id file) (string, error) {
	return p.hashes.of(ctx, id, func() (*os.File, error) { return os.Open(p.proc("exe")) }, func(f *os.File) (file,
		error) {
		info, err := f.Stat()
		if err != nil {
			return file{}, err
		}
		return fileOf(info), nil
	})
}

func readSome(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	return string(b), err
}

// reason is why something was not read, without a path that has the number in it.
func reason(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	if errors.Is(err, os.ErrPermission) {
		return "the agent may not look: run it as root, or as the user of the process"
	}
	return err.Error()
}

// FindProcess returns a running process by its number, for an operator who asks about it.
func FindProcess(pid int32, hashes *Hashes) (*Process, error) {
	handle, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("attest: process %d: %w", pid, ErrGone)
	case err != nil:
		return nil, fmt.Errorf("attest: process %d: %w", pid, err)
	}
	unix.CloseOnExec(handle)
	p := &Process{pid: pid, handle: os.NewFile(uintptr(handle), "pidfd"), hashes: hashes}
	info, err := os.Stat(p.proc("")) // is owned by whom the process runs as (proc(5))
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("attest: process %d: %w", pid, ErrGone)
	}
	s := info.Sys().(*syscall.Stat_t)
	p.uid, p.gid = s.Uid, s.Gid
	if f, err := p.stat(); err == nil {
		p.program = f.program()
	}
	return p, nil
}

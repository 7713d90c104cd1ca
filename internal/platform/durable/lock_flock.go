//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// lockFile takes the flock(2) of name, which is among locks until it is closed. The descriptor is a bare one: an os.File
// has a finalizer, and a caller who drops the Closer would lose the lock at some
// garbage collection.
func lockFile(name string, locks *Locks) (io.Closer, error) {
	for {
		// The locked file is also written to: a link in its place, in a directory
		// that others write to, must not choose the file.
		fd, err := retry(func() (int, error) {
			return syscall.Open(name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_NOFOLLOW|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0o600)
		})
		if err != nil {
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		_, err = retry(func() (int, error) { return 0, syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
		if errors.Is(err, syscall.EWOULDBLOCK) {
			locked := &LockedError{Name: name, PID: holder(fd)}
			// The holder looks there, and says that somebody came: see [Locks.TellNewcomers]. A disk that is full keeps it from that.
			_, _ = syscall.Pwrite(fd, line(syscall.Getpid()), lineBytes)
			syscall.Close(fd)
			return nil, locked
		}
		if err != nil {
			syscall.Close(fd)
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}

		// If someone deleted the file between our open and our lock, we hold a
		// lock on a file without a name, which excludes nobody.
		var ours, named syscall.Stat_t
		if err := syscall.Fstat(fd, &ours); err != nil {
			syscall.Close(fd)
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		if err := syscall.Stat(name, &named); err != nil || named.Ino != ours.Ino || named.Dev != ours.Dev {
			unlock(fd)
			continue
		}

		// The pid is for the message of those who come second. If it cannot be
		// written (a full disk), the lock holds all the same.
		if err := syscall.Ftruncate(fd, 0); err == nil {
			syscall.Pwrite(fd, line(syscall.Getpid()), 0)
		}
		return locks.hold(&flock{fd: fd, name: name, since: time.Now(), locks: locks}), nil
	}
}

// A lock file has two lines of this length: the pid of its holder, and that of the last process that was refused it.
const lineBytes = 32

func line(pid int) []byte { return fmt.Appendf(nil, "%-*d\n", lineBytes-1, pid) }

type flock struct {
	name  string
	since time.Time
	locks *Locks // that it is among; nil: none

	mu     sync.Mutex
	closed bool // guarded by mu
	fd     int
}

// Close releases the lock. Closing again does nothing: the number of the
// descriptor may belong to another file by then.
func (l *flock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.locks.letGo(l)
	return unlock(l.fd)
}

// unlock releases the lock and closes fd. To close it is not enough: a process that this one starts just now has the
// descriptor too until it runs its program, and with it the lock.
func unlock(fd int) error {
	_, err := retry(func() (int, error) { return 0, syscall.Flock(fd, syscall.LOCK_UN) })
	return errors.Join(err, syscall.Close(fd))
}

// refused returns the pid of the last process that was refused the lock since it was asked before; 0 if there was none.
func (l *flock) refused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0
	}
	pid := pidAt(l.fd, lineBytes)
	if pid != 0 {
		_ = syscall.Ftruncate(l.fd, lineBytes) // who comes just now is not told of: told is that somebody comes, not how many
	}
	return pid
}

// Holder says who holds the lock of name; nil if nobody does. It makes no file and
// writes to none. To look, it takes the lock itself, shared, for an instant: who
// calls Lock just then is told that it is held.
func Holder(name string) (*LockedError, error) {
	fd, err := retry(func() (int, error) {
		return syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	})
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "look at the lock", Path: name, Err: err}
	}
	defer unlock(fd)
	_, err = retry(func() (int, error) { return 0, syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &LockedError{Name: name, PID: holder(fd)}, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "look at the lock", Path: name, Err: err}
	}
	return nil, nil
}

// holder reads the pid of the holder in a lock file; 0 if there is none.
func holder(fd int) int { return pidAt(fd, 0) }

func pidAt(fd int, offset int64) int {
	var buf [lineBytes]byte
	n, err := syscall.Pread(fd, buf[:], offset)
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	pid, err := strconv.Atoi(string(bytes.TrimSpace(first)))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

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
)

// lockFile takes the flock(2) of name. The descriptor is a bare one: an os.File
// has a finalizer, and a caller who drops the Closer would lose the lock at some
// garbage collection.
func lockFile(name string) (io.Closer, error) {
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
			syscall.Close(fd)
			continue
		}

		// The pid is for the message of those who come second. If it cannot be
		// written (a full disk), the lock holds all the same.
		if err := syscall.Ftruncate(fd, 0); err == nil {
			syscall.Pwrite(fd, fmt.Appendf(nil, "%d\n", syscall.Getpid()), 0)
		}
		return &flock{fd: fd}, nil
	}
}

type flock struct {
	once sync.Once
	fd   int
}

// Close releases the lock. Closing again does nothing: the number of the
// descriptor may belong to another file by then.
func (l *flock) Close() error {
	var err error
	l.once.Do(func() { err = syscall.Close(l.fd) })
	return err
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
	defer syscall.Close(fd)
	_, err = retry(func() (int, error) { return 0, syscall.Flock(fd, syscall.LOCK_SH|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &LockedError{Name: name, PID: holder(fd)}, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "look at the lock", Path: name, Err: err}
	}
	return nil, nil
}

// holder reads the pid in a lock file; 0 if there is none.
func holder(fd int) int {
	var buf [20]byte
	n, err := syscall.Pread(fd, buf[:], 0)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(buf[:n])))
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

//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package durable

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

func lockFile(name string, _ *Locks) (io.Closer, error) {
	return nil, &fs.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}

// Holder says who holds the lock of name; here nobody can.
func Holder(name string) (*LockedError, error) {
	return nil, &fs.PathError{Op: "look at the lock", Path: name, Err: errors.ErrUnsupported}
}

// flock is a lock; here there is none.
type flock struct {
	name  string
	since time.Time
}

func (l *flock) refused() int { return 0 }

package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// ErrLocked is matched by every *LockedError.
var ErrLocked = errors.New("database is open in another process")

// LockedError says that the database is open already, in another process or a
// second time in this one. It matches [ErrLocked].
type LockedError struct {
	Path string // of the database
	PID  int    // of the holder; 0 if it is not known
}

func (e *LockedError) Error() string {
	who := "another process"
	switch {
	case e.PID == os.Getpid():
		return fmt.Sprintf("store: %s is already open in this process: "+
			"share that store instead of opening it twice", e.Path)
	case e.PID != 0:
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("store: %s is in use by %s: stop it first, "+
		"or use PostgreSQL or etcd to run several coordinators", e.Path, who)
}

func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// lockFile takes the lock of the database at path until the returned Closer is
// closed or the process ends, however it ends. It syncs the directory, so that
// the database's own name lasts too.
func lockFile(path string, locks *durable.Locks) (io.Closer, error) {
	lock, err := locks.OS().Lock(path + ".lock")
	if held, ok := errors.AsType[*durable.LockedError](err); ok {
		return nil, &LockedError{Path: path, PID: held.PID}
	}
	return lock, err
}

// Holder says who has the database at path open; nil if nobody has. It changes
// nothing there (durable.Holder).
func Holder(path string) (*LockedError, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	held, err := durable.Holder(path + ".lock")
	if held == nil || err != nil {
		return nil, err
	}
	return &LockedError{Path: path, PID: held.PID}, nil
}

// CheckFilesystem returns a *[FilesystemError] if dir is on a file system where
// [Open] makes no database.
func CheckFilesystem(dir string) error { return checkFilesystem(dir) }

// FilesystemError says that the database lies where locks and shared memory do
// not hold across machines.
type FilesystemError struct {
	Path string // directory of the database
	Type string // kind of file system
}

func (e *FilesystemError) Error() string {
	return fmt.Sprintf("store: %s is on a network file system (%s), where SQLite loses data: "+
		"use a local disk, or PostgreSQL or etcd", e.Path, e.Type)
}

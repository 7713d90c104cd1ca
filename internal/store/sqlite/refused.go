package sqlite

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"modernc.org/sqlite"

	"github.com/fealty-io/fealty/internal/store"
)

// Primary result codes, from https://sqlite.org/rescode.html.
const (
	sqlitePerm     = 3
	sqliteBusy     = 5
	sqliteLocked   = 6
	sqliteReadOnly = 8
	sqliteIOErr    = 10
	sqliteCorrupt  = 11
	sqliteFull     = 13
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

// codeOf returns the primary result code of an error of SQLite; 0 of any other.
func codeOf(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// leftNothing reports whether a failed commit certainly did not reach the disk
// as a whole. SQLite writes the frame that completes a transaction last, so one
// that found no room is incomplete.
func leftNothing(err error) bool {
	code := codeOf(err)
	return code == sqliteFull || code == sqliteBusy
}

// isFull reports whether err is of a disk without space.
func isFull(err error) bool {
	return codeOf(err) == sqliteFull || errors.Is(err, syscall.ENOSPC)
}

// refusal returns err, with which a transaction failed, as a [store.RefusedError] if it
// is known why nothing can be written.
func (db *database) refusal(err error) error {
	var reason store.Reason
	switch code := codeOf(err); {
	case store.ReasonOf(err) != 0:
		return err
	case code == sqliteFull, errors.Is(err, syscall.ENOSPC):
		reason = store.NoSpace
	case code == sqlitePerm, errors.Is(err, fs.ErrPermission):
		reason = store.Forbidden
	case code == sqliteReadOnly, code == sqliteIOErr && readOnlyDisk(filepath.Dir(db.path)):
		reason = store.ReadOnly // SQLite does not say of an error of the disk which it was
	case code == sqliteIOErr, code == sqliteCantOpen:
		reason = store.DiskFailed
	default:
		return err
	}
	return &store.RefusedError{Reason: reason, Err: err}
}

// outage returns err as a [store.OutageError] if it is known why a call was not answered: another process
// holds the file's lock, or the file cannot be read.
func outage(err error) error {
	switch code := codeOf(err); code {
	case sqliteBusy, sqliteLocked:
		return store.NewOutage(store.Locked, err.Error(), err)
	case sqlitePerm, sqliteIOErr, sqliteCorrupt, sqliteCantOpen, sqliteNotADB:
		return store.NewOutage(store.Unreadable, err.Error(), err)
	}
	return err
}

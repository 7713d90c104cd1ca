// Package durable keeps on disk what package fence decides by: the epoch of a holder, and
// the term that a member believes.
//
// The package promises:
//
//   - An epoch that was handed out is never handed out again, and none below it; a term that
//     was obeyed is never forgotten. That holds after a crash of the process, of the system
//     or of the power, and for a second process with the same directory. Both are on disk
//     before [OpenEpoch] or [Term.Check] returns.
//   - A file that is missing, damaged or at its end is an error that says how to mend it.
//     No counter starts at the beginning by itself, as that is how a zombie is made.
//   - A directory that was copied gives two processes one epoch; they differ in their
//     incarnation, and a receiver obeys one of them. See [fence.Lineage].
//
// A directory belongs to one process for as long as that lives. It must be on a disk that
// keeps what it acknowledged.
package durable

import (
	"errors"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/durable"
)

var (
	// ErrLocked is matched when another process has the directory.
	ErrLocked = files.ErrLocked

	// ErrMissing is matched when there is no file, and nobody said that there is none yet.
	ErrMissing = errors.New("no state of before")

	// ErrCorrupt is matched when a file is not what was written.
	ErrCorrupt = errors.New("damaged")

	// ErrExhausted is [fence.ErrExhausted].
	ErrExhausted = fence.ErrExhausted
)

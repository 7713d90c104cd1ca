// Package durable keeps on disk what package fence decides by: the epoch of a holder, the
// term that a member believes, and the marks of a receiver.
//
// The package promises:
//
//   - An epoch that was handed out is never handed out again, and none below it; a term that
//     was obeyed is never forgotten. That holds after a crash of the process, of the system
//     or of the power, and for a second process with the same directory. Both are on disk
//     before [OpenEpoch] or [Term.Check] returns.
//   - A mark is on disk before the attempt acts, and a promise before it is answered:
//     [Ledger.Admit] and [Ledger.Promise] return nil no earlier. A claim that could not be
//     saved is not admitted, and none is until the file was written anew ([ErrBroken]).
//   - A file that is missing, damaged or at its end is an error that says how to mend it.
//     No counter starts at the beginning by itself, as that is how a zombie is made.
//   - The end of a ledger that a power cut tore was never acknowledged, and is dropped. A
//     ledger in which any bit has changed is refused, its last frame included.
//   - A directory that was copied gives two processes one epoch; they differ in their
//     incarnation, and a receiver obeys one of them. See [fence.Lineage].
//
// A directory belongs to one process for as long as that lives. It must be on a disk that
// keeps what it acknowledged. If one lost whole sectors at the end of a ledger, or the file
// is an older copy, that looks like a ledger to which less was written: nobody notices, and
// the receiver admits again what it has forgotten, until it hears of the newer holder or is
// promised the newer assignment. [MendLedger] is for those who put an older copy back.
//
// Epochs and ledgers begin in the same three ways: enrolled once ([EnrolEpoch],
// [EnrolLedger]), opened at each start, and mended when somebody decided so ([MendEpoch],
// [MendLedger]). Options say what is known beside the file.
package durable

import (
	"errors"

	files "github.com/fealty-io/fealty/internal/platform/durable"
)

var (
	// ErrLocked is matched when another process has the directory.
	ErrLocked = files.ErrLocked

	// ErrMissing is matched when there is no file, and nobody said that there is none yet.
	ErrMissing = errors.New("no state of before")

	// ErrCorrupt is matched when a file is not what was written.
	ErrCorrupt = errors.New("damaged")
)

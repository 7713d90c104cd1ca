// Package store defines where a cluster's durable truth lives: a small map from
// keys to values under one global revision, and the promises that every engine
// of it keeps. Engines (sqlite, postgres, etcd) are packages of their own, each
// alone with its driver; package storetest holds the one suite that they pass.
//
// # Promises
//
//   - Atomic. All conditions of a [Tx] hold and all its writes happen, or nothing
//     happens.
//   - Durable. An acknowledged write survives a crash of the process and of the
//     machine; nothing is acknowledged before.
//   - Ordered. Each commit takes a revision higher than all before it, and
//     readers see commits in the order of their revisions. Get, List, Commit and
//     Outcome are linearizable over all handles of one database.
//   - Never back. An entry's version is the revision that wrote it, so a key that
//     was deleted and written again never regains a version it had.
//   - Honest about failure. An error of Commit or CompareAndSwap matches
//     [ErrUnknownOutcome] if and only if the write may have happened or may yet
//     happen. Any other error means that nothing was written.
//   - No clocks. No promise depends on a wall clock; retention is measured on the
//     engine's own monotonic time.
//
// Left to the caller: what is in a value, and that it was not altered by
// someone with access to the database ([Authenticator]); that only a leader
// writes (a [Condition] on the leader's entry in every Tx); polling now and
// then beside a watch, which is a hint.
//
// # Ownership of bytes
//
// A store keeps no reference to what it is given: keys and values may be reused
// as soon as a call returns, whatever it returns. The bytes that a store
// returns belong to the caller.
package store

import (
	"context"
	"io"
	"iter"
)

// Revision orders the commits of one database. Revisions grow and may skip
// numbers; 0 is before all of them.
type Revision uint64

// MaxRevision is the highest revision a database can reach. It is the highest
// integer that JSON readers keep exact, and leaves ten bits of an int64 free,
// which engines use to number the changes in a commit.
const MaxRevision Revision = 1<<53 - 1

// Entry is one key and its value.
type Entry struct {
	Key   string
	Value []byte

	// Version is the revision of the commit that wrote the value; 0 means that
	// the key does not exist, and Value is nil.
	Version Revision
}

// Listing is a consistent view of the keys under one prefix.
type Listing struct {
	// Revision is the newest commit that the view includes. Changes after it
	// follow the view without gap or overlap.
	Revision Revision

	// Entries are sorted by key, bytewise.
	Entries []Entry
}

// Change is what one commit did to the keys under a prefix. A commit is never
// split over two changes, so its Revision is where to resume.
type Change struct {
	Revision Revision
	Put      []Entry  // in the order of the Tx; each Version equals Revision
	Delete   []string // keys that existed and no longer do, in the order of the Tx
}

// KV is the least that history and recovery need: a few small, globally
// consistent keys.
//
// Every method refuses a malformed key with a *[KeyError], and fails with
// [ErrClosed] after the store was closed.
type KV interface {
	// Get returns the entry of key, or [ErrNotFound].
	Get(ctx context.Context, key string) (Entry, error)

	// CompareAndSwap writes value if the version of key is still old; 0 means
	// that it must not exist. It returns the new version.
	//
	// Errors: a *[ConflictError], matching [ErrConflict], if someone was first;
	// [ErrUnknownOutcome] if the write may have happened: Get before going on.
	CompareAndSwap(ctx context.Context, key string, old Revision, value []byte) (Revision, error)

	// Watch yields the entry of key as it is now, and again after it changed,
	// until ctx ends. A key that does not exist is an entry of version 0.
	//
	// It is level-triggered: of several changes in a row only the last may be
	// seen, and the same entry may come twice after a lost connection. It is a
	// hint: who depends on the value also polls now and then.
	//
	// A pair with an error is the last one; it is ctx's error when ctx ended.
	Watch(ctx context.Context, key string) iter.Seq2[Entry, error]
}

// Store adds atomic transactions over many keys at one global revision.
type Store interface {
	KV

	// List returns all entries whose key starts with prefix, at one revision.
	// The empty prefix lists everything.
	List(ctx context.Context, prefix string) (Listing, error)

	// Commit applies tx and returns its revision, once it is durable.
	//
	// A Tx whose ID was applied before is not applied again: Commit returns the
	// revision of the first time. So after ErrUnknownOutcome, a Tx with an ID may
	// simply be committed again.
	//
	// Errors, none of which wrote anything: a *[ConflictError], matching
	// [ErrConflict], if a condition does not hold; [ErrInvalid] if tx breaks a
	// limit or reuses the ID of a different Tx; [ErrVoided] if Outcome was asked
	// for the ID first; ctx's error if it ended before the commit began.
	//
	// [ErrUnknownOutcome]: tx may have been applied or may still be. Resolve with
	// Outcome, by committing it again, or by reading.
	Commit(ctx context.Context, tx Tx) (Revision, error)

	// Outcome returns the revision at which the Tx with this ID was applied.
	// [ErrNotFound] is final: it was not applied, and never will be, because a
	// Commit that is still on its way will find its ID voided.
	//
	// Engines remember IDs as long as changes (see Changes). Ask within minutes:
	// of an ID that was forgotten, ErrNotFound says nothing.
	Outcome(ctx context.Context, txID string) (Revision, error)

	// Changes yields the commits after the given revision that touched a key
	// under prefix: each once, whole, in order. It then waits for more until ctx
	// ends. To follow from now on, List first and pass the Listing's Revision.
	//
	// A pair with an error is the last one. A *[CompactedError], matching
	// [ErrCompacted], means that the changes asked for are no longer kept, or
	// that after lies in the future (the database was restored): List again and
	// go on from there. Engines keep changes for an hour or 1,000,000 commits,
	// whichever is less, and within a bound in bytes.
	Changes(ctx context.Context, prefix string, after Revision) iter.Seq2[Change, error]

	// Close ends watches with ErrClosed, waits for calls that are under way, and
	// frees what the store holds. Closing twice is harmless.
	io.Closer
}

// Raiser is implemented by engines whose revisions can be made to start above
// a floor, so that versions from before a restore never come again.
type Raiser interface {
	// Raise makes the next commit take a revision above floor. It never lowers
	// the revision. Errors: [ErrNotEmpty] unless the store holds no entries;
	// [ErrInvalid] above half of MaxRevision.
	Raise(ctx context.Context, floor Revision) error
}

// Lifter is implemented by engines that raise a store over what it holds, too: after it
// went back, the versions that were given since must not come again.
type Lifter interface {
	Raiser

	// Lift is Raise, whatever the store holds: entries keep their versions, and the next
	// commit takes a revision above floor. Errors: [ErrInvalid], as of Raise.
	Lift(ctx context.Context, floor Revision) error
}

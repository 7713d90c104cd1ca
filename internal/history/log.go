package history

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
)

// HeadKey is the key of the head record in the store.
const HeadKey = "history/latest"

// BlobKey returns the key of the blob with this hash: a transition, a manifest, or a part of a long
// manifest. Under the hash of one that is in parts is their index (package chunk). Earlier releases kept
// every manifest whole, and it is read as it is.
func BlobKey(hash [32]byte) string { return fmt.Sprintf("history/blob/%x", hash) }

// attempts bounds how often a write is tried again after its outcome stayed
// unknown. Each try is settled by a read; the caller goes on from there.
const attempts = 6

// ErrEmpty: the store has no history; the cluster was never set up.
var ErrEmpty = errors.New("no history in the store")

// A ConflictError says that the head moved before an append, which therefore did
// not happen and never will. It matches [store.ErrConflict].
type ConflictError struct {
	Want Hash // the head that was to be extended; zero: none
	Head Record
	// Head is as the store gave it, unverified: Load and Verify before use.
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("history: the head is %v at index %d, not %v: someone else was first; look at their change and sign for the new head", e.Head.Hash, e.Head.Index, e.Want)
}

// Is reports whether target is [store.ErrConflict].
func (e *ConflictError) Is(target error) bool { return target == store.ErrConflict }

// A BlobError says that the store does not hold a blob as its name promises.
type BlobError struct {
	Hash    Hash
	Missing bool // else it was altered
}

func (e *BlobError) Error() string {
	what := "was altered"
	if e.Missing {
		what = "is missing"
	}
	return fmt.Sprintf("history: blob %v %s: restore the store from a backup, or repair it from a copy of the blob", e.Hash, what)
}

// A Log is the history in a store. It holds no state: any number of them, in any
// number of processes, may work on one store.
type Log struct {
	kv store.KV
}

// New returns the log in kv.
func New(kv store.KV) *Log { return &Log{kv: kv} }

// Head returns the head record as the store has it, unverified, and the version
// of its key. Errors: [ErrEmpty]; [ErrEncoding]; those of the store.
func (l *Log) Head(ctx context.Context) (Record, store.Revision, error) {
	e, err := l.kv.Get(ctx, HeadKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Record{}, 0, ErrEmpty
	case err != nil:
		return Record{}, 0, fmt.Errorf("history: reading the head: %w", err)
	}
	r, err := DecodeRecord(e.Value)
	return r, e.Version, err
}

// Load reads the whole history, unverified: from the head back to genesis, and
// the manifests. Errors: [ErrEmpty]; a [*BlobError]; [ErrEncoding]; [ErrUnverified]
// if it is out of bounds; those of the store.
func (l *Log) Load(ctx context.Context) (*History, error) {
	return l.load(ctx, Hash{})
}

// Follow returns the history at the head, verified under transactionKey like by
// [Verify], and reads and replays only what came after known. known may be nil,
// and its head may be no link any more: then everything is replayed, and
// [Verified.CheckMark] says whether to accept that.
//
// Errors: those of [Log.Load] and [Verify].
func (l *Log) Follow(ctx context.Context, known *Verified, transactionKey ed25519.PublicKey) (*Verified, error) {
	var stop Hash
	if known != nil {
		stop = known.record.Hash
	}
	h, err := l.load(ctx, stop)
	if err != nil {
		return nil, err
	}
	if known == nil || len(h.Links) > 0 && !follows(h.Links[0], stop) {
		return Verify(h, transactionKey)
	}
	r := &replay{history: h, key: transactionKey, known: known}
	if err := r.checkHead(); err != nil {
		return nil, err
	}
	next := known.clone()
	next.trusted = transactionKey
	return replayLinks(next, h, r.record, nil)
}

// follows reports whether the encoded link names previous as the one before.
func follows(raw []byte, previous Hash) bool {
	t, err := Decode(raw)
	return err == nil && t.Previous == previous
}

// load reads the links from the head back to genesis or, if it comes first, to
// the child of the link stop.
func (l *Log) load(ctx context.Context, stop Hash) (*History, error) {
	e, err := l.kv.Get(ctx, HeadKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, ErrEmpty
	case err != nil:
		return nil, fmt.Errorf("history: reading the head: %w", err)
	}
	head, err := DecodeRecord(e.Value)
	if err != nil {
		return nil, err
	}
	h := &History{Head: e.Value, Version: e.Version, Manifests: make(map[manifest.Hash][]byte)}
	total := 0
	count := func(n int) error {
		if total += n; total > MaxHistoryBytes || len(h.Links) > MaxTransitions {
			return &VerifyError{Rule: "bounds", Detail: fmt.Sprintf("more than %d transitions or %d bytes", MaxTransitions, MaxHistoryBytes)}
		}
		return nil
	}
	for next := head.Hash; !next.IsZero() && next != stop; {
		raw, err := l.blob(ctx, next)
		if err != nil {
			return nil, err
		}
		t, err := Decode(raw)
		if err != nil {
			return nil, err
		}
		h.Links = append(h.Links, raw)
		if err := count(len(raw)); err != nil {
			return nil, err
		}
		if _, ok := h.Manifests[t.Manifest]; !ok {
			data, err := l.blob(ctx, Hash(t.Manifest))
			if err != nil {
				return nil, err
			}
			h.Manifests[t.Manifest] = data
			if err := count(len(data)); err != nil {
				return nil, err
			}
		}
		next = t.Previous
	}
	slices.Reverse(h.Links)
	return h, nil
}

// blob returns a transition or a manifest.
func (l *Log) blob(ctx context.Context, hash Hash) ([]byte, error) {
	value, err := l.value(ctx, hash)
	if err != nil {
		return nil, err
	}
	whole, err := chunk.Join(hash, value, store.MaxValueBytes,
		func(part chunk.Hash) ([]byte, error) { return l.value(ctx, part) })
	part, ok := errors.AsType[*chunk.Error](err)
	switch {
	case err == nil:
		return whole, nil
	case ok && part.Err != nil:
		return nil, part.Err
	case ok && part.Part != chunk.Hash{}:
		return nil, &BlobError{Hash: part.Part}
	}
	return nil, &BlobError{Hash: hash}
}

// value returns what is kept under a hash.
func (l *Log) value(ctx context.Context, hash Hash) ([]byte, error) {
	e, err := l.kv.Get(ctx, BlobKey(hash))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, &BlobError{Hash: hash, Missing: true}
	case err != nil:
		return nil, fmt.Errorf("history: reading blob %v: %w", hash, err)
	}
	return e.Value, nil
}

// Append writes t, which sets m, as the child of base's head and returns the
// history with it. base is nil for a genesis. key is the transaction key.
//
// The order is the proof: everything is checked, then the blobs are written,
// then the head is swapped. The caller has made the new mesh CA key before, and
// keeps it unless the error says that the transition is not in the history:
//
//   - [*ConflictError]: it is not and never will be. Load, verify, decide again.
//   - [store.ErrUnknownOutcome]: the head was swapped, or may yet be. Keep the key,
//     and call Append again with the same arguments: that settles it, whoever
//     moved the head meanwhile.
//   - any other error: this call changed nothing that counts. An outcome that an
//     earlier call left unknown stays so.
//
// If t was followed by another transition before its outcome could be read, it
// is in the history nonetheless, and Append succeeds with a Version of 0.
func (l *Log) Append(ctx context.Context, base *Verified, t *Transition, m *manifest.Manifest, key crypto.Signer) (*Verified, error) {
	next, err := base.Extend(t, m)
	if err != nil {
		return nil, err
	}
	raw, err := t.Encode()
	if err != nil {
		return nil, err
	}
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("history: the transaction key is a %T, want Ed25519", key.Public())
	}
	if len(next.keys) == 0 {
		next.keys, next.trusted = []ed25519.PublicKey{public}, public
	}
	if !next.TransactionKey().Equal(public) {
		return nil, &VerifyError{Rule: "head-signature", Index: t.Index, Detail: "it would be signed by another transaction key than that of the newest seed"}
	}
	next.record, err = signRecord(t, next.Current().Hash, key)
	if err != nil {
		return nil, err
	}
	for _, blob := range [...][]byte{m.Bytes(), raw} {
		if err := l.putBlob(ctx, blob); err != nil {
			return nil, err
		}
	}
	next.version, err = l.swap(ctx, base, next)
	if err != nil {
		return nil, err
	}
	return next, nil
}

// putBlob writes a blob under its hash, a long one in parts, which come before their index. It does
// not matter who wrote it.
func (l *Log) putBlob(ctx context.Context, blob []byte) error {
	value, list := chunk.Split(blob)
	if value == nil {
		value = blob
	}
	for _, part := range list {
		if err := l.putValue(ctx, hashOf(part), part); err != nil {
			return err
		}
	}
	return l.putValue(ctx, hashOf(blob), value)
}

// putValue writes what is kept under the hash of a blob or of a part.
func (l *Log) putValue(ctx context.Context, hash Hash, value []byte) error {
	var err error
	for range attempts {
		if _, err = l.kv.CompareAndSwap(ctx, BlobKey(hash), 0, value); err == nil {
			return nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome) {
			break
		}
		_, readErr := l.blob(ctx, hash)
		if readErr == nil {
			return nil
		}
		if altered, ok := errors.AsType[*BlobError](readErr); !ok || !altered.Missing {
			return readErr
		}
	}
	if store.ReasonOf(err) != 0 && !errors.Is(err, store.ErrUnknownOutcome) {
		return fmt.Errorf("history: writing blob %v: nothing has changed: %w", hash, err)
	}
	// The head was not touched, so an unknown outcome of a blob is a failure like
	// any other: it must not match store.ErrUnknownOutcome.
	return fmt.Errorf("history: writing blob %v: %v: try again, nothing has changed", hash, err)
}

// swap moves the head from base to next and returns its version.
func (l *Log) swap(ctx context.Context, base, next *Verified) (store.Revision, error) {
	var old store.Revision
	var want Hash
	if base != nil {
		old, want = base.version, base.record.Hash
		if old == 0 {
			// Not known: never the "must not exist" that 0 means to a store.
			head, version, err := l.Head(ctx)
			if err != nil {
				return 0, err
			}
			if head.Hash == want {
				old = version
			}
		}
	}
	mine := next.record.Encode()
	unknown := false
	var err error
	for range attempts {
		if base != nil && old == 0 {
			err = store.ErrConflict
		} else {
			var version store.Revision
			if version, err = l.kv.CompareAndSwap(ctx, HeadKey, old, mine); err == nil {
				return version, nil
			}
		}
		unknown = unknown || errors.Is(err, store.ErrUnknownOutcome)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome) {
			break
		}
		// Conflict or unknown: the head says whose it is.
		e, readErr := l.kv.Get(ctx, HeadKey)
		switch {
		case readErr == nil && bytes.Equal(e.Value, mine):
			return e.Version, nil
		case readErr == nil && e.Version != old:
			// Moved on, so that our swap, however late, can no longer happen; but it
			// may have happened before the head that we see.
			return l.overtaken(ctx, e, want, next)
		case readErr != nil && !errors.Is(readErr, store.ErrNotFound):
			// Even after a mere conflict: an earlier Append may have succeeded unseen.
			return 0, l.undecided(next, true, errors.Join(err, readErr))
		}
		// The head is still the old one, and a swap whose answer was lost may yet
		// arrive. Reading can never settle that; swapping again does: one of the two
		// succeeds and the other conflicts.
	}
	// A conflict on a head that reads as the old one is a store that contradicts
	// itself: nothing is known then.
	return 0, l.undecided(next, unknown || errors.Is(err, store.ErrConflict), err)
}

// undecided reports a swap that did not succeed: unknown if any try may have
// happened or may yet.
func (l *Log) undecided(next *Verified, unknown bool, cause error) error {
	if unknown {
		return fmt.Errorf("history: it is not known whether %v became the head: keep its mesh CA key and append it again: %w", next.record.Hash, withUnknown(cause))
	}
	return fmt.Errorf("history: the head was not moved to %v: %w", next.record.Hash, cause)
}

// withUnknown makes cause match store.ErrUnknownOutcome if it does not already:
// the last of several tries may have failed in another way than the first.
func withUnknown(cause error) error {
	if errors.Is(cause, store.ErrUnknownOutcome) {
		return cause
	}
	return fmt.Errorf("%w: %v", store.ErrUnknownOutcome, cause)
}

// overtaken decides, with the head at e, whether next is an ancestor of it.
func (l *Log) overtaken(ctx context.Context, e store.Entry, want Hash, next *Verified) (store.Revision, error) {
	head, err := DecodeRecord(e.Value)
	if err != nil {
		return 0, l.undecided(next, true, err)
	}
	target := next.record
	if head.Hash == target.Hash {
		return e.Version, nil
	}
	at := head.Hash
	for range MaxTransitions {
		if at.IsZero() || at == want {
			break
		}
		raw, err := l.blob(ctx, at)
		if err != nil {
			return 0, l.undecided(next, true, err)
		}
		t, err := Decode(raw)
		if err != nil {
			return 0, l.undecided(next, true, err)
		}
		if t.Previous == target.Hash {
			return 0, nil
		}
		if t.Index <= target.Index {
			break // indices fall towards genesis: next cannot come any more
		}
		at = t.Previous
	}
	return 0, &ConflictError{Want: want, Head: head}
}

package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
)

// IntentKey is where a restore leaves its [Intent], until a coordinator has carried it
// out. No MAC is possible without the seed: what is there is a claim, and the signatures
// in it are what counts.
const IntentKey = "restore/intent"

const (
	intentSchema = "fealty.restore/v1"

	maxIntentBytes = 64 << 10
)

// An Intent says that a store is a restored one: from which backup, and at which
// clocks its history goes on. It is written by who restores and holds no seed; the
// first coordinator that does makes the transition of it.
type Intent struct {
	Header  Header
	Trailer Trailer

	// Index and AuthorityEpoch are those of the restore transition.
	Index, AuthorityEpoch uint64
	// Floor is what the revisions of the store are above. No record of it stays: the engine
	// counts on from there, and the signed epoch of the transition is a floor of its own.
	Floor store.Revision
	// At is when the restore began, by the clock of who restores, and Reason why.
	At     time.Time
	Reason string
	// InPlace says that no backup was restored: the store goes on from what it holds.
	InPlace bool
	// Whole says that every entry of the backup is in the store.
	Whole bool
	// Signatures are the signers' over [Intent.Transition], as far as they are there.
	Signatures []history.Signature
}

type wireIntent struct {
	Schema         string          `json:"schema"`
	Header         []byte          `json:"header"`
	Trailer        []byte          `json:"trailer"`
	Index          uint64          `json:"index,string"`
	AuthorityEpoch uint64          `json:"authority_epoch,string"`
	Floor          store.Revision  `json:"floor,string"`
	At             time.Time       `json:"at"`
	Reason         string          `json:"reason"`
	InPlace        bool            `json:"in_place,omitzero"`
	Whole          bool            `json:"whole"`
	Signatures     []wireSignature `json:"signatures"`
}

type wireSignature struct {
	Key       manifest.Key `json:"key"`
	Signature []byte       `json:"signature"`
}

// Encode returns the bytes of i, as the store has them.
func (i *Intent) Encode() ([]byte, error) {
	header, err := i.Header.encode()
	if err != nil {
		return nil, err
	}
	w := wireIntent{intentSchema, header, i.Trailer.Encode(), i.Index, i.AuthorityEpoch, i.Floor, i.At.UTC().Truncate(time.Second), i.Reason, i.InPlace, i.Whole, []wireSignature{}}
	for _, s := range i.Signatures {
		w.Signatures = append(w.Signatures, wireSignature{s.Key, s.Signature[:]})
	}
	return json.Marshal(w)
}

// DecodeIntent reads what Encode returns. Errors match [ErrVersion] or [ErrAltered].
func DecodeIntent(raw []byte) (*Intent, error) {
	var w wireIntent
	if len(raw) > maxIntentBytes {
		return nil, fmt.Errorf("backup: an intent of %d bytes, at most %d are allowed: %w", len(raw), maxIntentBytes, ErrAltered)
	}
	if err := json.Unmarshal(raw, &w, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("backup: the intent: %w: %w", err, ErrVersion)
	}
	if w.Schema != intentSchema {
		return nil, fmt.Errorf("backup: an intent of schema %.64q, and this release reads %q: %w", w.Schema, intentSchema, ErrVersion)
	}
	i := &Intent{Index: w.Index, AuthorityEpoch: w.AuthorityEpoch, Floor: w.Floor, At: w.At, Reason: w.Reason, InPlace: w.InPlace, Whole: w.Whole}
	var err error
	if i.Header, err = decodeHeader(w.Header); err != nil {
		return nil, fmt.Errorf("backup: the intent: %w", err)
	}
	if i.Trailer, err = DecodeTrailer(w.Trailer); err != nil {
		return nil, err
	}
	if !i.Trailer.of(i.Header) {
		return nil, fmt.Errorf("backup: the intent has the header of one backup and the end of another: %w", ErrAltered)
	}
	if len(w.Signatures) > manifest.MaxSigners || len(i.Reason) > history.MaxReasonBytes {
		return nil, fmt.Errorf("backup: the intent has more than it may: %w", ErrAltered)
	}
	for _, s := range w.Signatures {
		if len(s.Signature) != len(history.Signature{}.Signature) {
			return nil, fmt.Errorf("backup: a signature of %d bytes in the intent: %w", len(s.Signature), ErrAltered)
		}
		i.Signatures = append(i.Signatures, history.Signature{Key: s.Key, Signature: [64]byte(s.Signature)})
	}
	return i, nil
}

// Head returns the head that the restored history goes on from, as the header names it.
func (i *Intent) Head() (history.Record, error) { return history.DecodeRecord(i.Header.Head) }

// Transition returns the restore transition after v that i asks for. MeshCAKey is the
// caller's to fill in.
func (i *Intent) Transition(v *history.Verified) *history.Transition {
	t, _ := v.Next(history.KindRestore, v.Manifest())
	t.Index, t.AuthorityEpoch, t.Reason, t.Backup = i.Index, i.AuthorityEpoch, i.Reason, history.Hash(i.Trailer.Digest)
	t.Signatures = slices.Clone(i.Signatures)
	return t
}

// Errors of a restore.
var (
	// ErrOccupied: the store holds something else.
	ErrOccupied = errors.New("the store is not empty")
	// ErrOtherRestore: another restore was begun in the store, or ended.
	ErrOtherRestore = errors.New("the store belongs to another restore")
	// ErrClockBehind: the clock of who restores is before the backup.
	ErrClockBehind = errors.New("the clock of this machine is behind")
	// ErrNoFloor: the engine of the store cannot start above a revision.
	ErrNoFloor = errors.New("the store cannot start above the revisions of before")
)

// clockTolerance is how far the clock of who restores may be behind that of who made
// the backup, and commitRate what the revisions of a store grow by in a second at most.
const (
	clockTolerance = 2 * time.Minute
	commitRate     = 10_000
)

// Plan returns the intent to restore c at now, without signatures. Its clocks are
// above all that the field can have seen: what was counted up one by one since the
// backup, and what an earlier restore began at the time of then.
func Plan(c *Contents, now time.Time, reason string) (*Intent, error) {
	if now.Before(c.Header.CreatedAt.Add(-clockTolerance)) {
		return nil, fmt.Errorf("backup: it is %s here, and the backup was made at %s: %w", now.UTC().Format(time.RFC3339), c.Header.CreatedAt.UTC().Format(time.RFC3339), ErrClockBehind)
	}
	t := c.History.Restore(now, history.Hash(c.Trailer.Digest))
	since := uint64(max(now.Sub(c.Header.CreatedAt), 0)/time.Second) + 3600
	floor := max(uint64(now.Unix()), uint64(c.Header.Revision)+since*commitRate, t.AuthorityEpoch)
	return &Intent{
		Header: c.Header, Trailer: c.Trailer, Index: t.Index, AuthorityEpoch: t.AuthorityEpoch,
		Floor: store.Revision(floor), At: now.UTC().Truncate(time.Second), Reason: reason,
	}, nil
}

// Ahead reports whether a clock of i is above that of plan, which is of now. A restore
// that just begins has no such intent: clocks that run away are never caught again.
func (i *Intent) Ahead(plan *Intent) bool {
	return i.Index > plan.Index || i.AuthorityEpoch > plan.AuthorityEpoch || i.Floor > plan.Floor
}

// sameBackup reports whether both are of one backup.
func (i *Intent) sameBackup(o *Intent) bool { return i.Trailer == o.Trailer }

// merge adds the signatures of o that i does not have.
func (i *Intent) merge(signatures []history.Signature) {
	for _, s := range signatures {
		if !slices.ContainsFunc(i.Signatures, func(have history.Signature) bool { return have.Key == s.Key }) {
			i.Signatures = append(i.Signatures, s)
		}
	}
}

// ReadIntent returns the intent in a store with its version; nil if there is none.
func ReadIntent(ctx context.Context, kv store.KV) (*Intent, store.Revision, error) {
	e, err := kv.Get(ctx, IntentKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	i, err := DecodeIntent(e.Value)
	return i, e.Version, err
}

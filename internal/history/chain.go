package history

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
)

// A History is a chain as it was read, believed by nobody yet: see [Verify].
type History struct {
	Head    []byte         // the encoded head record
	Version store.Revision // of the head in the store; 0 if it came from elsewhere

	// Links are the encoded transitions, genesis first.
	Links [][]byte

	// Manifests are the exact bytes of each manifest that a link names.
	Manifests map[manifest.Hash][]byte
}

// A Link is a verified transition with its name.
type Link struct {
	Transition
	Hash Hash
}

// Verified is a chain that passed every rule, and the state that it leads to. It
// is immutable; what its methods return must not be written to.
type Verified struct {
	record   Record
	version  store.Revision
	links    []Link // at least one
	manifest *manifest.Manifest
	seen     meshKeys
	keys     []ed25519.PublicKey // the transaction key of each seed; empty: of the first one, nobody said
	trusted  ed25519.PublicKey   // what the caller of Verify believes
}

// TransactionKey returns the key that signs the head: that of the newest seed.
func (v *Verified) TransactionKey() ed25519.PublicKey {
	if len(v.keys) == 0 {
		return nil
	}
	return v.keys[len(v.keys)-1]
}

// TransactionKeys returns the transaction key of each seed, oldest first. Each signed
// the head while its seed was in force, the last one signs it now.
func (v *Verified) TransactionKeys() []ed25519.PublicKey { return slices.Clone(v.keys) }

// Reseeds returns the links that brought a new seed into force, oldest first.
func (v *Verified) Reseeds() []Link {
	var out []Link
	for _, l := range v.links {
		if l.Reseed != nil {
			out = append(out, l)
		}
	}
	return out
}

// lastReseed returns the newest of them, or nil.
func (v *Verified) lastReseed() *Reseed {
	for i := len(v.links) - 1; i >= 0; i-- {
		if r := v.links[i].Reseed; r != nil {
			return r
		}
	}
	return nil
}

// length returns the number of links of v, which may be nil.
func (v *Verified) length() int {
	if v == nil {
		return 0
	}
	return len(v.links)
}

// Head returns the signed head record.
func (v *Verified) Head() Record { return v.record }

// Version returns the version of the head in the store, for transactions that
// are to fail when it moved. It is 0, which never matches, where it is not known.
func (v *Verified) Version() store.Revision { return v.version }

// Current returns the last link.
func (v *Verified) Current() *Link { return &v.links[len(v.links)-1] }

// Manifest returns the manifest in force.
func (v *Verified) Manifest() *manifest.Manifest { return v.manifest }

// Links returns the whole chain, genesis first.
func (v *Verified) Links() []Link { return v.links }

// MeshCAKeys returns the mesh CA key of each authority epoch, oldest first.
func (v *Verified) MeshCAKeys() []MeshCAKey {
	var out []MeshCAKey
	for i := range v.links {
		k := MeshCAKey{v.links[i].AuthorityEpoch, v.links[i].MeshCAKey}
		if len(out) == 0 || out[len(out)-1] != k {
			out = append(out, k)
		}
	}
	return out
}

// A MeshCAKey is the one key that signs SVIDs in an authority epoch (I9).
type MeshCAKey struct {
	AuthorityEpoch uint64
	Key            identity.KeyID
}

type meshKeys map[identity.KeyID]uint64 // the epoch of each mesh CA key

// A VerifyError says which link broke which rule.
type VerifyError struct {
	Rule   string // the rule's stable name
	Index  uint64 // of the link; 0 if it is not about one
	Detail string // what was found, and what was expected
}

func (e *VerifyError) Error() string {
	at := ""
	if e.Index > 0 {
		at = fmt.Sprintf(" at index %d", e.Index)
	}
	return fmt.Sprintf("history: rule %s is broken%s: %s: do not use this history, and find out who wrote it", e.Rule, at, e.Detail)
}

// ErrUnverified is matched by every [*VerifyError].
var ErrUnverified = errors.New("history does not verify")

// Is reports whether target is [ErrUnverified].
func (e *VerifyError) Is(target error) bool { return target == ErrUnverified }

// Verify replays h from genesis to head. transactionKey is what the caller
// trusts: it derives from the seed that it holds, or was pinned. The error is a
// [*VerifyError] for the first rule that is broken.
//
// It may be the key of an earlier seed than the newest: it signed the head before
// the reseed, and from there the signers authorize the next key. A caller that acts
// on a history with the keys of a seed compares [Verified.TransactionKey] with
// them: a seed that was replaced must not.
func Verify(h *History, transactionKey ed25519.PublicKey) (*Verified, error) {
	if len(transactionKey) != ed25519.PublicKeySize {
		return nil, &VerifyError{Rule: "head-signature", Detail: fmt.Sprintf("a transaction key of %d bytes, want %d", len(transactionKey), ed25519.PublicKeySize)}
	}
	r := &replay{history: h, key: transactionKey}
	if err := r.checkHead(); err != nil {
		return nil, err
	}
	return replayLinks(&Verified{seen: make(meshKeys), trusted: transactionKey}, h, r.record, nil)
}

// replayLinks checks the links of h one after the other on top of v, which it
// changes, and then that they lead to the head.
func replayLinks(v *Verified, h *History, head Record, o *outlining) (*Verified, error) {
	for _, raw := range h.Links {
		s := &step{raw: raw, before: v, manifests: h.Manifests, outline: o}
		if err := s.check(uint64(len(v.links) + 1)); err != nil {
			return nil, err
		}
		v.add(s)
		o.passed(&s.link)
	}
	v.record, v.version = head, h.Version
	if len(v.keys) == 0 {
		v.keys = []ed25519.PublicKey{v.trusted} // which signed the head
	}
	for _, rule := range endRules {
		if detail := rule.find(v); detail != "" {
			return nil, &VerifyError{Rule: rule.Name, Detail: detail}
		}
	}
	return v, nil
}

// add appends a link that was checked.
func (v *Verified) add(s *step) {
	v.links = append(v.links, s.link)
	v.manifest = s.manifest
	v.seen[s.link.MeshCAKey] = s.link.AuthorityEpoch
	if r := s.link.Reseed; r != nil {
		if len(v.keys) == 0 {
			v.keys = append(v.keys, bytes.Clone(r.PreviousKey[:]))
		}
		v.keys = append(v.keys, bytes.Clone(r.TransactionKey[:]))
	}
}

// clone returns a copy of v that links can be added to; v may be nil.
func (v *Verified) clone() *Verified {
	if v == nil {
		return &Verified{seen: make(meshKeys)}
	}
	return &Verified{record: v.record, version: v.version, links: slices.Clip(v.links), manifest: v.manifest, seen: maps.Clone(v.seen),
		keys: slices.Clip(v.keys), trusted: v.trusted}
}

// Extend returns v as it would be with one link more, checked like any other; v may be nil. Nothing
// says that t is in the history: the record is that of v. Errors: [*VerifyError].
func (v *Verified) Extend(t *Transition, m *manifest.Manifest) (*Verified, error) {
	raw, err := t.Encode()
	if err != nil {
		return nil, err
	}
	next := v.clone()
	if len(next.links) >= MaxTransitions {
		return nil, &VerifyError{Rule: "bounds", Index: t.Index, Detail: fmt.Sprintf("the history has %d transitions already, the most that are allowed", len(next.links))}
	}
	s := &step{raw: raw, before: next, manifests: map[manifest.Hash][]byte{m.Hash(): m.Bytes()}}
	if err := s.check(t.Index); err != nil {
		return nil, err
	}
	next.add(s)
	next.version = 0
	return next, nil
}

// With returns v and one link more, which sets m, checked like any other. Nothing is
// written, and its head is signed by nobody: it shows what [Log.Append] would make.
func (v *Verified) With(t *Transition, m *manifest.Manifest) (*Verified, error) {
	next, err := v.Extend(t, m)
	if err == nil {
		next.record = Record{Hash: next.Current().Hash, Index: t.Index, AuthorityEpoch: t.AuthorityEpoch}
	}
	return next, err
}

// Genesis returns the first transition, for the manifest m. The caller fills in
// MeshCAKey, Salt, ShareCommitments and Reason.
func Genesis(m *manifest.Manifest) *Transition {
	return &Transition{Index: 1, AuthorityEpoch: 1, Kind: KindGenesis, Manifest: m.Hash(), SeedEpoch: 1, Threshold: m.Seed.Threshold}
}

// Next returns the transition of kind that sets m after v, with all that
// follows from v and m filled in, and whether authority moves. If it does, the
// caller puts the hash of a new mesh CA key in MeshCAKey, which is zero then; if
// kind is reshare or reseed, or m changes the seed's owners or threshold, new
// ShareCommitments, nil then; if kind is reseed, a new Salt, and [Verified.ReseedTo]
// in Reseed. Reason and Signatures are always the caller's.
//
// Rekey keeps the manifest: m is that in force. For a restore see [Verified.Restore].
func (v *Verified) Next(kind Kind, m *manifest.Manifest) (t *Transition, moves bool) {
	c := v.Current()
	moves = authorityMoves(kind, v.manifest, m)
	t = &Transition{
		Index: c.Index + 1, Previous: c.Hash, AuthorityEpoch: c.AuthorityEpoch, Kind: kind, Manifest: m.Hash(),
		SeedEpoch: c.SeedEpoch, Threshold: m.Seed.Threshold,
	}
	if moves {
		t.AuthorityEpoch++
	} else {
		t.MeshCAKey = c.MeshCAKey
	}
	if kind == KindReseed {
		t.SeedEpoch++
	} else {
		t.Salt = c.Salt
	}
	if !sharesChange(kind, v.manifest, m) {
		t.ShareCommitments = c.ShareCommitments
	}
	return t, moves
}

// SeedKeys are the public keys of a new seed.
type SeedKeys struct {
	Root                       identity.KeyID // hash of the root CA's public key
	ConfigRoot, TransactionKey ed25519.PublicKey
}

// ReseedTo returns what a reseed after v to a seed with these keys says of them.
// previous is the root CA key in force.
func (v *Verified) ReseedTo(previous identity.KeyID, next SeedKeys) *Reseed {
	r := &Reseed{Cluster: v.manifest.Cluster, PreviousRoot: previous, Root: next.Root, PreviousSignature: v.record.Signature}
	copy(r.ConfigRoot[:], next.ConfigRoot)
	copy(r.TransactionKey[:], next.TransactionKey)
	copy(r.PreviousKey[:], v.TransactionKey())
	return r
}

// Restore returns the transition that goes on from v after the restore of a backup at now: its
// index and epoch are above every mark made until then. The caller fills in
// MeshCAKey, Reason and Signatures.
func (v *Verified) Restore(now time.Time, backup Hash) *Transition {
	t, _ := v.Next(KindRestore, v.Manifest())
	t.Backup = backup
	floor := max(uint64(max(now.Unix(), 0)), restoreFloor)
	t.Index = max(t.Index, floor)
	t.AuthorityEpoch = max(t.AuthorityEpoch, floor)
	return t
}

// restoreFloor is a time, in Unix seconds, before any restore: an index below it
// cannot be above the marks in the field (docs/explanation/recovery.md#a-database-that-was-brought-back).
const restoreFloor = 1_700_000_000

// authorityMoves reports whether a transition of kind from one manifest to the
// next takes a new epoch and mesh CA key (docs/explanation/trust.md#3-the-set-and-the-history).
func authorityMoves(kind Kind, before, after *manifest.Manifest) bool {
	switch kind {
	case KindGenesis, KindRekey, KindReseed, KindRestore:
		return true
	case KindReshare:
		return before.Hash() != after.Hash() && len(manifest.AuthorityMoves(before, after)) > 0
	default:
		return len(manifest.AuthorityMoves(before, after)) > 0
	}
}

// sharesChange reports whether the seed's shares are made anew.
func sharesChange(kind Kind, before, after *manifest.Manifest) bool {
	return kind == KindReshare || kind == KindReseed ||
		slices.Contains(manifest.AuthorityMoves(before, after), manifest.AuthoritySeed)
}

// A Mark is the highest head that someone has seen. Keep it on disk: who
// forgets it can be shown an older history.
type Mark struct {
	AuthorityEpoch uint64 `json:"authority_epoch,string"`
	Index          uint64 `json:"index,string"`
	Hash           Hash   `json:"hash"`
}

// Mark returns the mark of v's head.
func (v *Verified) Mark() Mark {
	return Mark{v.record.AuthorityEpoch, v.record.Index, v.record.Hash}
}

// Errors that a [*MarkError] matches.
var (
	ErrRollback = errors.New("history went back")
	ErrFork     = errors.New("history was forked")
)

// A MarkError says that a history does not lead through a mark.
type MarkError struct {
	Seen, Shown Mark
	cause       error
}

func (e *MarkError) Error() string {
	return fmt.Sprintf("history: %v: epoch %d, index %d (%v) was seen before, and now the head is epoch %d, index %d (%v): "+
		"refuse it and find out whether the store was restored without a restore transition, or replaced",
		e.cause, e.Seen.AuthorityEpoch, e.Seen.Index, e.Seen.Hash, e.Shown.AuthorityEpoch, e.Shown.Index, e.Shown.Hash)
}

// Is reports whether target is [ErrRollback] or [ErrFork], whichever it is.
func (e *MarkError) Is(target error) bool { return target == e.cause }

// CheckMark reports whether v goes on from seen; the zero Mark has seen nothing.
// The head that was seen must be a link of v, except that a restore link of a
// higher authority epoch, which the signers signed, may stand for it: then
// restored is true, for the record. Errors: [*MarkError].
func (v *Verified) CheckMark(seen Mark) (restored bool, err error) {
	if seen == (Mark{}) {
		return false, nil
	}
	for i := len(v.links) - 1; i >= 0; i-- {
		l := &v.links[i]
		if l.Hash == seen.Hash && l.Index == seen.Index && l.AuthorityEpoch == seen.AuthorityEpoch {
			return restored, nil
		}
		if l.Kind == KindRestore && l.AuthorityEpoch > seen.AuthorityEpoch {
			restored = true
		}
	}
	if restored {
		return true, nil
	}
	shown := v.Mark()
	cause := ErrFork
	if shown.AuthorityEpoch < seen.AuthorityEpoch || shown.AuthorityEpoch == seen.AuthorityEpoch && shown.Index < seen.Index {
		cause = ErrRollback
	}
	return false, &MarkError{Seen: seen, Shown: shown, cause: cause}
}

// CheckMarkBy is [Verified.CheckMark] for who also remembers the signers of then: a
// restore link stands for the mark only if their threshold signed it. So a backup of
// before a change of signers, and a signer of then, are not enough. Without keys every
// restore link of v will do.
func (v *Verified) CheckMarkBy(seen Mark, signers manifest.Signers) (restored bool, err error) {
	if restored, err = v.CheckMark(seen); err != nil || !restored || len(signers.Keys) == 0 {
		return restored, err
	}
	for i := len(v.links) - 1; i >= 0; i-- {
		l := &v.links[i]
		if l.Hash == seen.Hash {
			return true, nil
		}
		if l.Kind == KindRestore && l.AuthorityEpoch > seen.AuthorityEpoch && l.signedBy(signers) {
			return true, nil
		}
	}
	return false, &MarkError{Seen: seen, Shown: v.Mark(), cause: ErrFork}
}

// A SeenHead is a mark, and who the signers were at it: no other head takes its place
// but one that goes on from it, or one that they restored.
type SeenHead struct {
	Mark
	Signers *SeenSigners `json:"signers,omitempty"` // nil: written by an earlier release
}

// SeenSigners are the signers at a mark.
type SeenSigners struct {
	Threshold int            `json:"threshold"`
	Keys      []manifest.Key `json:"keys"`
}

// Seen returns v's head with its signers.
func (v *Verified) Seen() SeenHead {
	signers := &SeenSigners{Threshold: v.manifest.Signers.Threshold}
	for _, k := range v.manifest.Signers.Keys {
		signers.Keys = append(signers.Keys, k.Key)
	}
	return SeenHead{v.Mark(), signers}
}

// Accepts reports whether v may take the place of what was seen, as
// [Verified.CheckMarkBy] says.
func (h SeenHead) Accepts(v *Verified) (restored bool, err error) {
	return v.CheckMarkBy(h.Mark, h.signers())
}

// signers returns who they were, or none.
func (h SeenHead) signers() manifest.Signers {
	var out manifest.Signers
	if h.Signers != nil {
		out.Threshold = h.Signers.Threshold
		for _, k := range h.Signers.Keys {
			out.Keys = append(out.Keys, manifest.Signer{Key: k})
		}
	}
	return out
}

// signedBy reports whether the threshold of signers signed t; signatures by others are
// of no matter.
func (t *Transition) signedBy(signers manifest.Signers) bool {
	known := slices.DeleteFunc(slices.Clone(t.Signatures), func(s Signature) bool {
		return !slices.ContainsFunc(signers.Keys, func(k manifest.Signer) bool { return k.Key == s.Key })
	})
	have, err := countSigners(&manifest.Manifest{Signers: signers}, t.Statement(), known)
	return err == nil && have >= max(signers.Threshold, 1)
}

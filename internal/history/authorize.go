package history

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// ErrUnauthorized is matched by every [*UnauthorizedError].
var ErrUnauthorized = errors.New("not authorized by the signers")

// An UnauthorizedError says which signatures are missing or wrong.
type UnauthorizedError struct {
	Have, Need int           // distinct signers that signed, and the threshold
	Key        *manifest.Key // the signature at fault, if one is
	Why        string        // what is wrong with it
	Foreign    bool          // it is by no signer of the manifest in force
}

func (e *UnauthorizedError) Error() string {
	if e.Key != nil {
		return fmt.Sprintf("history: the signature by %v %s: sign the statement for the current head with a key of the manifest in force", *e.Key, e.Why)
	}
	return fmt.Sprintf("history: %d of the signers of the manifest in force have signed, %d must: collect more signatures", e.Have, e.Need)
}

// Is reports whether target is [ErrUnauthorized].
func (e *UnauthorizedError) Is(target error) bool { return target == ErrUnauthorized }

// SetStatement returns the bytes that signers sign to set the manifest next
// after the transition current; see [Transition.Statement].
func SetStatement(next manifest.Hash, current Hash) []byte {
	return StatementOf(KindSet, next, current)
}

// StatementOf returns the bytes that signers sign to bring next into force by a
// transition of kind, a set, reshare or reseed, after the transition current; see
// [Transition.Statement].
func StatementOf(kind Kind, next manifest.Hash, current Hash) []byte {
	return (&Transition{Kind: kind, Manifest: next, Previous: current}).Statement()
}

// Statement returns the bytes that the signers of the manifest in force sign to
// authorize t:
//
//	"fealty history statement v1" 0x00 | len(kind) (1) | kind |
//	manifest (32) | previous (32) | index (8) | authority epoch (8) | backup (32)
//
// with numbers big endian. It names the link before, so that it authorizes
// nothing at another head, and the kind, so that consent to one is not consent
// to another. Index and epoch are 0 but for restore, where they are the choice
// of the signers; elsewhere they follow from the link before. The backup is there
// for a restore alone: backups at one head differ in what is banned.
//
// A reseed has another statement, [trust.RootChange]: it names the new keys too,
// and nodes that do not read the history verify it for themselves. It is nil for a
// reseed whose parts can be nobody's; nothing authorizes that.
func (t *Transition) Statement() []byte {
	if t.Kind == KindReseed {
		statement, err := t.RootChange().Statement()
		if err != nil {
			return nil
		}
		return statement
	}
	b := append([]byte("fealty history statement v1\x00"), byte(len(t.Kind)))
	b = append(b, t.Kind...)
	b = append(b, t.Manifest[:]...)
	b = append(b, t.Previous[:]...)
	var index, epoch uint64
	if t.Kind == KindRestore {
		index, epoch = t.Index, t.AuthorityEpoch
	}
	b = binary.BigEndian.AppendUint64(b, index)
	b = binary.BigEndian.AppendUint64(b, epoch)
	if t.Kind == KindRestore {
		b = append(b, t.Backup[:]...)
	}
	return b
}

// RootChange returns what the signers of a reseed sign; the zero value for the
// other kinds.
func (t *Transition) RootChange() trust.RootChange {
	if t.Kind != KindReseed || t.Reseed == nil {
		return trust.RootChange{}
	}
	r := t.Reseed
	return trust.RootChange{
		ClusterID: r.Cluster, Index: t.Index, Previous: snapshot.Digest(t.Previous), Manifest: snapshot.Digest(t.Manifest),
		AuthorityEpoch: t.AuthorityEpoch, SeedEpoch: t.SeedEpoch, PreviousRoot: r.PreviousRoot, Root: r.Root,
		ConfigRoot: bytes.Clone(r.ConfigRoot[:]), TransactionKey: bytes.Clone(r.TransactionKey[:]),
	}
}

// SignedRootChange returns the change of root that t makes, with the signers'
// signatures, as nodes verify it; nil for the other kinds.
func (t *Transition) SignedRootChange() (*trust.SignedRootChange, error) {
	if t.Kind != KindReseed {
		return nil, nil
	}
	change, err := t.RootChange().Encode()
	if err != nil {
		return nil, err
	}
	out := &trust.SignedRootChange{Change: change}
	for _, s := range t.Signatures {
		out.Signatures = append(out.Signatures, trust.SignerSignature{Key: s.Key, Signature: s.Signature})
	}
	return out, nil
}

// Authorize reports whether signatures over statement reach the threshold of the
// signers of inForce. A key counts once. A signature by a stranger, or one that
// does not verify, is an error even above the threshold: it is a mistake, or an
// attempt, and would stay in the history for ever.
//
// Errors: [*UnauthorizedError].
func Authorize(inForce *manifest.Manifest, statement []byte, signatures []Signature) error {
	have, err := countSigners(inForce, statement, signatures)
	if err != nil {
		return err
	}
	if need := inForce.Signers.Threshold; have < need {
		return &UnauthorizedError{Have: have, Need: need}
	}
	return nil
}

func countSigners(inForce *manifest.Manifest, statement []byte, signatures []Signature) (int, error) {
	if len(statement) == 0 {
		return 0, &UnauthorizedError{Need: inForce.Signers.Threshold} // there is nothing that they could have signed
	}
	known := make(map[manifest.Key]bool, len(inForce.Signers.Keys))
	for _, s := range inForce.Signers.Keys {
		known[s.Key] = true
	}
	signed := make(map[manifest.Key]bool, len(signatures))
	for i := range signatures {
		s := &signatures[i]
		switch {
		case !known[s.Key]:
			return 0, &UnauthorizedError{Need: inForce.Signers.Threshold, Key: &s.Key, Why: "is by no signer of the manifest in force", Foreign: true}
		case !ed25519.Verify(s.Key.Public(), statement, s.Signature[:]):
			return 0, &UnauthorizedError{Need: inForce.Signers.Threshold, Key: &s.Key, Why: "does not verify"}
		}
		signed[s.Key] = true
	}
	return len(signed), nil
}

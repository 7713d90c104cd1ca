package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// RootChange says that a cluster has another root from now on. It is what the
// signers of the manifest in force sign to authorize a reseed, so that neither a
// coordinator nor who kept an old seed can move the root alone. It names the place
// in the history that it is for: at another place it authorizes nothing.
type RootChange struct {
	ClusterID      string
	Index          uint64          // of the transition that makes the change
	Previous       snapshot.Digest // the transition before it
	Manifest       snapshot.Digest // the manifest that it sets
	AuthorityEpoch uint64          // that it begins
	SeedEpoch      uint64          // that it begins; at least 2

	PreviousRoot identity.KeyID // the root CA key that leaves
	Root         identity.KeyID // the root CA key that comes

	ConfigRoot     ed25519.PublicKey // signs trust bundles from now on
	TransactionKey ed25519.PublicKey // signs the head of the history from now on
}

func (r *RootChange) walk(c *canonical.Codec) {
	version := schemaVersion
	c.Begin()
	c.Member("authority_epoch")
	c.Number64(&r.AuthorityEpoch)
	c.Member("cluster_id")
	c.Text(&r.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("config_root_key")
	c.Blob((*[]byte)(&r.ConfigRoot), ed25519.PublicKeySize)
	c.Member("index")
	c.Number64(&r.Index)
	c.Member("manifest")
	c.Fixed(r.Manifest[:])
	c.Member("previous")
	c.Fixed(r.Previous[:])
	c.Member("previous_root")
	c.Fixed(r.PreviousRoot[:])
	c.Member("root")
	c.Fixed(r.Root[:])
	c.Member("schema_version")
	c.Number(&version, 1<<15)
	c.Member("seed_epoch")
	c.Number64(&r.SeedEpoch)
	c.Member("transaction_key")
	c.Blob((*[]byte)(&r.TransactionKey), ed25519.PublicKeySize)
	c.End()
	if c.Err() == nil && version != schemaVersion {
		c.Fail("schema version %d, supported is %d", version, schemaVersion)
	}
}

func (r *RootChange) fault() string {
	switch {
	case identity.CheckCluster(r.ClusterID) != nil:
		return fmt.Sprintf("cluster_id %.80q is no cluster", r.ClusterID)
	case !inVersions(r.AuthorityEpoch) || r.AuthorityEpoch < 2 || !inVersions(r.SeedEpoch) || r.SeedEpoch < 2 ||
		!inVersions(r.Index) || r.Index < 2:
		return fmt.Sprintf("index %d, authority epoch %d, seed epoch %d: a root changes after the first",
			r.Index, r.AuthorityEpoch, r.SeedEpoch)
	case r.Previous.IsZero() || r.Manifest.IsZero():
		return "it names no place in the history"
	case r.PreviousRoot.IsZero() || r.Root.IsZero() || r.PreviousRoot == r.Root:
		return "it does not name two roots"
	case len(r.ConfigRoot) != ed25519.PublicKeySize || len(r.TransactionKey) != ed25519.PublicKeySize ||
		bytes.Equal(r.ConfigRoot, r.TransactionKey):
		return "it does not name two keys of 32 bytes"
	}
	return ""
}

// Encode returns the canonical bytes of r, which [SignedRootChange] carries.
// Errors say which part no change of root can have.
func (r RootChange) Encode() ([]byte, error) {
	if msg := r.fault(); msg != "" {
		return nil, fmt.Errorf("snapshot: change of root: %s", msg)
	}
	encoded, err := encode(r.walk)
	if err != nil {
		return nil, fmt.Errorf("snapshot: change of root: %w", err)
	}
	return encoded, nil
}

// Statement returns the bytes that signers sign: the pre-authentication encoding of r under
// fealty/root-change/v1. Errors are those of Encode.
func (r RootChange) Statement() ([]byte, error) {
	encoded, err := r.Encode()
	if err != nil {
		return nil, err
	}
	return internalsnapshot.PAE(internalsnapshot.TypeRootChange, r.ClusterID, encoded), nil
}

// DecodeRootChange reads the canonical bytes of a change of root, which nobody
// vouches for yet: it is for people who are asked to sign them. Errors match
// snapshot.ErrMalformed.
func DecodeRootChange(data []byte) (RootChange, error) {
	var r RootChange
	if len(data) > internalsnapshot.MaxRecord {
		return r, fmt.Errorf("snapshot: a change of root of %d bytes, limit %d: %w",
			len(data), internalsnapshot.MaxRecord, snapshot.ErrMalformed)
	}
	if err := decode(data, r.walk); err != nil {
		return RootChange{}, fmt.Errorf("snapshot: change of root: %w: %w", err, snapshot.ErrMalformed)
	}
	if msg := r.fault(); msg != "" {
		return RootChange{}, fmt.Errorf("snapshot: change of root: %s: %w", msg, snapshot.ErrMalformed)
	}
	return r, nil
}

// A SignerSignature is one signer's, with its Ed25519 key.
type SignerSignature struct {
	Key       [ed25519.PublicKeySize]byte
	Signature [ed25519.SignatureSize]byte
}

// SignedRootChange is a change of root as it travels: exact bytes, and signatures.
type SignedRootChange struct {
	Change     []byte
	Signatures []SignerSignature
}

// Marshal returns the encoding of s for the wire. It fails with snapshot.ErrMalformed if a
// part exceeds its limit.
func (s *SignedRootChange) Marshal() ([]byte, error) {
	if len(s.Change) > internalsnapshot.MaxRecord || len(s.Signatures) > internalsnapshot.MaxSigners {
		return nil, fmt.Errorf("snapshot: a change of root of %d bytes with %d signatures, limits %d and %d: %w",
			len(s.Change), len(s.Signatures), internalsnapshot.MaxRecord, internalsnapshot.MaxSigners, snapshot.ErrMalformed)
	}
	out := append(binary.BigEndian.AppendUint16([]byte(internalsnapshot.ChangeMagic), uint16(len(s.Change))), s.Change...)
	return appendSignatures(out, s.Signatures), nil
}

// UnmarshalRootChange reads what Marshal wrote. It copies. Errors match
// snapshot.ErrMalformed.
func UnmarshalRootChange(data []byte) (*SignedRootChange, error) {
	r := canonical.NewParts(data)
	if r.Take(len(internalsnapshot.ChangeMagic)) != internalsnapshot.ChangeMagic {
		return nil, fmt.Errorf("snapshot: not an encoded change of root (want %q first): %w",
			internalsnapshot.ChangeMagic, snapshot.ErrMalformed)
	}
	s := &SignedRootChange{Change: r.Bytes(2, internalsnapshot.MaxRecord)}
	s.Signatures = takeSignatures(r)
	r.Finish()
	if r.Fault() != "" {
		return nil, fmt.Errorf("snapshot: an encoded change of root with %s: %w", r.Fault(), snapshot.ErrMalformed)
	}
	return s, nil
}

// verify returns the change if the threshold of signers signed it for cluster. The
// signatures are checked before anything is parsed. A signature of a stranger, or
// one that does not verify, counts for nothing.
func (s *SignedRootChange) verify(cluster string, signers *snapshot.Signers) (RootChange, error) {
	if s == nil || len(s.Change) == 0 || len(s.Change) > internalsnapshot.MaxRecord ||
		len(s.Signatures) > internalsnapshot.MaxSigners {
		return RootChange{}, refuse(checkLimits, "the change of root or its list of signatures is missing or above its limit")
	}
	statement := internalsnapshot.PAE(internalsnapshot.TypeRootChange, cluster, s.Change)
	signed := 0
	for _, k := range signers.Keys {
		for i := range s.Signatures {
			sig := &s.Signatures[i]
			if bytes.Equal(sig.Key[:], k.Key) && ed25519.Verify(k.Key, statement, sig.Signature[:]) {
				signed++
				break
			}
		}
	}
	if signers.Threshold < 1 || signed < signers.Threshold {
		return RootChange{}, refuse(checkSignature, fmt.Sprintf("%d of the signers that this node knows have signed the change of root, %d must",
			signed, signers.Threshold))
	}
	var r RootChange
	if err := decode(s.Change, r.walk); err != nil {
		return RootChange{}, refuse(checkSchema, "change of root: "+err.Error())
	}
	if msg := r.fault(); msg != "" {
		return RootChange{}, refuse(checkSchema, "change of root: "+msg)
	}
	if r.ClusterID != cluster {
		return RootChange{}, refuse(checkCluster, fmt.Sprintf("the change of root is of cluster %.80q", r.ClusterID))
	}
	return r, nil
}

// ErrNoRootChange is matched when none of the changes leads away from the root
// that a node pins.
var ErrNoRootChange = fmt.Errorf("%w: no change of root leads away from the pinned one", snapshot.ErrRejected)

// VerifyRootChanges returns where the root that a node pins went: changes are those
// of its cluster, in the order of the history, and bundle is its newest trust
// bundle, whose signers it believes. Those before pin came into force are passed
// over. From there each must follow on the one before, and be signed by the
// threshold of bundle's signers.
//
// A change at a place of the history that the bundle has seen taken is refused: it
// was signed and never made, or it is one that was replayed. Errors match
// snapshot.ErrRejected; ErrNoRootChange if pin did not change.
func VerifyRootChanges(changes []*SignedRootChange, bundle *snapshot.Verified, pin identity.KeyID) (RootChange, error) {
	held, ok := bundle.TrustBundle()
	if !ok {
		return RootChange{}, fmt.Errorf("snapshot: VerifyRootChanges needs a trust bundle")
	}
	if len(changes) > internalsnapshot.MaxRootChanges {
		return RootChange{}, refuse(checkLimits, fmt.Sprintf("%d changes of root, limit %d", len(changes), internalsnapshot.MaxRootChanges))
	}
	at := RootChange{ClusterID: held.ClusterID, Index: held.Head.Index, AuthorityEpoch: held.AuthorityEpoch, Root: pin}
	found, why := false, error(nil)
	for _, s := range changes {
		next, err := s.verify(held.ClusterID, &held.Signers)
		if err != nil {
			why = err // one of before our signers were those; or not a genuine one
			continue
		}
		if next.PreviousRoot != at.Root {
			continue
		}
		switch {
		case next.AuthorityEpoch <= at.AuthorityEpoch:
			return RootChange{}, refuse(checkEpoch, fmt.Sprintf("a change of root to authority epoch %d, and %d is known",
				next.AuthorityEpoch, at.AuthorityEpoch))
		case next.Index <= at.Index:
			return RootChange{}, refuse(checkVersion, fmt.Sprintf("a change of root at index %d of the history, which is known to lead to %d without it",
				next.Index, at.Index))
		case !found && next.Index == at.Index+1 && next.Previous != held.Head.Hash:
			return RootChange{}, refuse(checkVersion, fmt.Sprintf("a change of root after another transition at index %d than the one that is known",
				at.Index))
		case found && next.SeedEpoch <= at.SeedEpoch:
			return RootChange{}, refuse(checkVersion, fmt.Sprintf("seed epoch %d follows %d", next.SeedEpoch, at.SeedEpoch))
		}
		at, found = next, true
	}
	switch {
	case found:
		return at, nil
	case why != nil:
		return RootChange{}, fmt.Errorf("%w: %w", ErrNoRootChange, why)
	}
	return RootChange{}, ErrNoRootChange
}

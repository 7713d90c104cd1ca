// Package snapshotauthor composes and signs snapshots, and does what else a coordinator does with them and a receiver
// never: it makes trees and patches, drops what is revoked from contents, and reads what is not signed yet.
package snapshotauthor

import (
	"crypto"
	"crypto/ed25519"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshotdoor"
	"github.com/fealty-io/fealty/snapshot"
)

// Draft is a snapshot that is composed and not yet signed.
type Draft interface {
	// Header returns the header, with what Compose filled in.
	Header() snapshot.Header

	// HeaderBytes returns the exact bytes to sign and store. Do not modify them.
	HeaderBytes() []byte

	// ContentBytes returns the exact content to store. Do not modify it.
	ContentBytes() []byte

	// Leaf returns the header's leaf for a Tree.
	Leaf() snapshot.Digest

	// Sign signs the header of a trust bundle itself, with one or, during a
	// rotation, two Ed25519 keys. Other scopes are signed by publication.
	Sign(keys ...crypto.Signer) (*snapshot.Signed, error)

	// Publish signs a tree of this snapshot alone: what a replica does that serves a
	// join before the next publication. The record is the caller's but for its tree;
	// its generation must not be that of any other record, see Record.
	Publish(r snapshot.Record, keys ...crypto.Signer) (*snapshot.Signed, error)
}

var compose = snapshotdoor.Compose.(func(snapshot.Header, snapshot.Content) (any, error))

// Compose makes the canonical bytes of a snapshot of content, once: what is
// stored, signed and sent is these bytes. It fills in SnapshotID, SchemaVersion,
// ScopeType, ContentHash and ContentSize of h, and refuses what a node would
// refuse whatever signed it: a subject that the scope does not allow, content
// that is not valid for its schema, grants beyond the header, a raw secret, a
// size above the limit. Errors match ErrRejected and say which check.
func Compose(h snapshot.Header, content snapshot.Content) (Draft, error) {
	d, err := compose(h, content)
	if err != nil {
		return nil, err
	}
	return d.(Draft), nil
}

// Tree is an RFC 6962 Merkle tree over leaves. It is immutable.
//
// The levels are kept whole, so that a proof is a copy of one hash per level: a
// publication of 100,000 headers proves each of them. RFC 6962 splits n leaves
// at the largest power of two below n; pairing neighbours and carrying an odd
// last one up gives the same tree.
type Tree interface {
	// Size returns the number of leaves.
	Size() uint64

	// Root returns the root hash; the zero Digest for a tree without leaves, which
	// no record can carry.
	Root() snapshot.Digest

	// Proof returns the proof of leaf i.
	Proof(i int) (snapshot.Proof, error)

	// AppendProof appends the hashes of the proof of leaf i to dst. A million proofs
	// at once cost more memory than time: stream them through one buffer.
	AppendProof(dst []snapshot.Digest, i int) ([]snapshot.Digest, error)
}

var newTree = snapshotdoor.NewTree.(func([]snapshot.Digest) any)

// NewTree returns the tree over leaves in this order. The order is the caller's;
// it should not come from a map, so that equal input gives an equal root.
func NewTree(leaves []snapshot.Digest) Tree { return newTree(leaves).(Tree) }

var steps = snapshotdoor.Steps.(func() ([]int, []string, []string))

// Rule is one step of snapshot.Verify.
type Rule struct {
	Check  int    // the number in a RejectedError; 0 for limits
	Name   string // what has to hold
	Source string // where that is written
}

// Rules returns the steps of snapshot.Verify in the order in which they are taken. The first
// that does not hold refuses a snapshot, and the later ones are not taken.
func Rules() []Rule {
	numbers, rules, sources := steps()
	out := make([]Rule, len(numbers))
	for i := range out {
		out[i] = Rule{numbers[i], rules[i], sources[i]}
	}
	return out
}

// The functions of package snapshot that are not public.
var (
	// LeafOf returns the leaf of a header's exact bytes: the RFC 6962 leaf hash of
	// PAE(TypeSnapshot, cluster, header).
	LeafOf = snapshotdoor.LeafOf.(func(cluster string, header []byte) snapshot.Digest)

	// Diff returns the patch that makes result of base, both contents of scope. It is
	// false if the whole is to be sent: the scope has no increments, one of the two is
	// not a content of it, they do not differ, or the patch would not be shorter than
	// result.
	Diff = snapshotdoor.Diff.(func(scope snapshot.Scope, base, result []byte) (patch []byte, ok bool))

	// RevokedKinds returns the kinds, sorted.
	RevokedKinds = snapshotdoor.RevokedKinds.(func() []string)

	// RevocationsIn is cosigned.RevocationsOf for who makes the bundle.
	RevocationsIn = snapshotdoor.RevocationsIn.(func(
		b snapshot.TrustBundle, more ...snapshot.Revocations,
	) snapshot.Revocations)

	// Without returns content without what r revokes for the node me, or for all if me is
	// zero. A compiler that leaves out what is revoked tells every node the same thing
	// that the node would leave out itself.
	Without = snapshotdoor.WithoutRevoked.(func(
		content snapshot.Content, r snapshot.Revocations, me identity.ID,
	) snapshot.Content)

	// ReadAssignment reads the content of a service_assignment that was verified before, or is its
	// signer's own: nothing is checked but its form.
	ReadAssignment = snapshotdoor.ReadAssignment.(func(raw []byte) (*snapshot.ServiceAssignment, error))

	// ParseDigest reads 64 lower case hex digits.
	ParseDigest = snapshotdoor.ParseDigest.(func(s string) (snapshot.Digest, error))
)

var signRoot = snapshotdoor.SignRoot.(func(string, ed25519.PublicKey, uint64, time.Time, crypto.Signer) ([]byte, error))

// RootStatement says which config root key a cluster has. A node that pins the root CA gets the key from it: see
// snapshot.VerifyRoot.
type RootStatement struct {
	ClusterID  string
	ConfigRoot ed25519.PublicKey
	SeedEpoch  uint64 // of the seed that both keys come from; within 1 and 2^53
	IssuedAt   time.Time
}

// Sign returns the statement as it travels, signed with the root CA's P-256 key.
func (s RootStatement) Sign(root crypto.Signer) ([]byte, error) {
	return signRoot(s.ClusterID, s.ConfigRoot, s.SeedEpoch, s.IssuedAt, root)
}

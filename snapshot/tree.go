package snapshot

import (
	"fmt"

	"github.com/fealty-io/fealty/internal/snapshot"
	"golang.org/x/mod/sumdb/tlog"
)

// LeafOf returns the leaf of a header's exact bytes: the RFC 6962 leaf hash of their
// pre-authentication encoding, with the type fealty/snapshot/v1.
func LeafOf(cluster string, header []byte) Digest {
	return Digest(tlog.RecordHash(snapshot.PAE(snapshot.TypeSnapshot, cluster, header)))
}

// Tree is an RFC 6962 Merkle tree over leaves, which [NewTree] makes: a [Record] signs its
// root. It is immutable; the zero Tree has no leaves.
//
// The levels are kept whole, so that a proof is a copy of one hash per level: a
// publication of 100,000 headers proves each of them. RFC 6962 splits n leaves
// at the largest power of two below n; pairing neighbours and carrying an odd
// last one up gives the same tree.
type Tree struct {
	levels [][]tlog.Hash // leaves first, the root last
}

// NewTree returns the tree over leaves in this order. The order is the caller's;
// it should not come from a map, so that equal input gives an equal root.
func NewTree(leaves []Digest) *Tree {
	level := make([]tlog.Hash, len(leaves))
	for i, l := range leaves {
		level[i] = tlog.Hash(l)
	}
	t := &Tree{levels: [][]tlog.Hash{level}}
	for len(level) > 1 {
		up := make([]tlog.Hash, 0, (len(level)+1)/2)
		for i := 0; i+1 < len(level); i += 2 {
			up = append(up, tlog.NodeHash(level[i], level[i+1]))
		}
		if len(level)%2 == 1 {
			up = append(up, level[len(level)-1])
		}
		t.levels = append(t.levels, up)
		level = up
	}
	return t
}

// Size returns the number of leaves.
func (t *Tree) Size() uint64 {
	if len(t.levels) == 0 {
		return 0
	}
	return uint64(len(t.levels[0]))
}

// Root returns the root hash; the zero Digest for a tree without leaves, which
// no record can carry.
func (t *Tree) Root() Digest {
	if t.Size() == 0 {
		return Digest{}
	}
	return Digest(t.levels[len(t.levels)-1][0])
}

// Proof returns the proof of leaf i.
func (t *Tree) Proof(i int) (Proof, error) {
	hashes, err := t.AppendProof(nil, i)
	if err != nil {
		return Proof{}, err
	}
	return Proof{Index: uint64(i), Hashes: hashes}, nil
}

// AppendProof appends the hashes of the proof of leaf i to dst. A million proofs
// at once cost more memory than time: stream them through one buffer.
func (t *Tree) AppendProof(dst []Digest, i int) ([]Digest, error) {
	if i < 0 || uint64(i) >= t.Size() {
		return nil, fmt.Errorf("snapshot: no leaf %d in a tree of %d", i, t.Size())
	}
	for _, level := range t.levels[:len(t.levels)-1] {
		if sibling := i ^ 1; sibling < len(level) {
			dst = append(dst, Digest(level[sibling]))
		}
		i /= 2
	}
	return dst, nil
}

// fault says why p does not show that leaf is in the tree of r, or "".
func (p Proof) fault(leaf Digest, r *Record) string {
	if r.TreeSize == 0 || r.TreeSize > 1<<snapshot.MaxProof || p.Index >= r.TreeSize {
		return fmt.Sprintf("index %d in a tree of %d", p.Index, r.TreeSize)
	}
	path := make(tlog.RecordProof, len(p.Hashes))
	for i, h := range p.Hashes {
		path[i] = tlog.Hash(h)
	}
	if err := tlog.CheckRecord(path, int64(r.TreeSize), tlog.Hash(r.Root), int64(p.Index), tlog.Hash(leaf)); err != nil {
		return "the inclusion proof does not lead from the header to the record's root"
	}
	return ""
}

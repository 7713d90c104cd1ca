package publication_test

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// wantTree checks that a tree is the plain one over leaves: its root, and proofs of leaves.
func wantTree(t *rapid.T, tree *publication.Tree, leaves []snapshot.Digest) {
	t.Helper()
	plain := snapshot.NewTree(leaves)
	if tree.Size() != len(leaves) || snapshot.Digest(tree.Root()) != plain.Root() {
		t.Fatalf("a tree of %d leaves has another root than the plain one of %d", tree.Size(), len(leaves))
	}
	for i := 0; i < len(leaves); i += 1 + len(leaves)/20 {
		proof, err := tree.Proof(i)
		want, _ := plain.Proof(i)
		if err != nil || len(proof) != len(want.Hashes) {
			t.Fatalf("leaf %d of %d: %d hashes, want %d (%v)", i, len(leaves), len(proof), len(want.Hashes), err)
		}
		record := make(tlog.RecordProof, len(proof))
		for k, h := range proof {
			if record[k] = tlog.Hash(h); snapshot.Digest(h) != want.Hashes[k] {
				t.Fatalf("leaf %d of %d: hash %d of its proof is another", i, len(leaves), k)
			}
		}
		if err := tlog.CheckRecord(record, int64(len(leaves)), tlog.Hash(tree.Root()), int64(i), tlog.Hash(leaves[i])); err != nil {
			t.Fatalf("leaf %d of %d: %v", i, len(leaves), err)
		}
	}
	if _, err := tree.Proof(len(leaves)); err == nil {
		t.Fatal("it proves a leaf that there is not")
	}
}

// Whatever leaves are put, inserted and removed, the tree that is made from the one before is the plain one of RFC 6962
// over the leaves, it is hashed in proportion to what changed, and the one before stays as it was.
func TestTreeThatChanges(t *testing.T) {
	testlane.Checks(t, 60, 2000)
	rapid.Check(t, func(t *rapid.T) {
		number := 0
		fresh := func() snapshot.Digest {
			number++
			return snapshot.Digest(sha256.Sum256(fmt.Append(nil, number)))
		}
		var leaves []snapshot.Digest
		for range rapid.SampledFrom([]int{0, 1, 2, 3, 63, 64, 65, 127, 128, 130, 700, 4097}).Draw(t, "size") {
			leaves = append(leaves, fresh())
		}
		at := func(i int) [sha256.Size]byte { return leaves[i] }
		tree := new(publication.Tree).With(len(leaves), nil, 0, at)
		wantTree(t, tree, leaves)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			before, was := tree, slices.Clone(leaves)
			changed := make(map[int]bool)
			if len(leaves) > 0 {
				for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(leaves)-1), 0, 5).Draw(t, "put") {
					leaves[i], changed[i] = fresh(), true
				}
			}
			from := len(leaves)
			for range rapid.SampledFrom([]int{0, 0, 1, 2, 70}).Draw(t, "insert") {
				i := rapid.IntRange(0, len(leaves)).Draw(t, "at")
				leaves, from = slices.Insert(leaves, i, fresh()), min(from, i)
			}
			for range rapid.SampledFrom([]int{0, 0, 1, 2, 70}).Draw(t, "remove") {
				if len(leaves) > 0 {
					i := rapid.IntRange(0, len(leaves)-1).Draw(t, "at")
					leaves, from = slices.Delete(leaves, i, i+1), min(from, i)
				}
			}
			var below []int
			for i := range from {
				if changed[i] {
					below = append(below, i)
				}
			}
			asked := -1
			tree = before.With(len(leaves), below, from, func(i int) [sha256.Size]byte {
				if i <= asked || i < from && !changed[i] {
					t.Fatalf("leaf %d is asked for after %d", i, asked)
				}
				asked = i
				return leaves[i]
			})
			wantTree(t, tree, leaves)
			wantTree(t, before, was)
			if len(leaves) == len(was) && from == len(leaves) && tree.Hashed() > len(below)*bits.Len(uint(len(leaves))) {
				t.Fatalf("%d of %d leaves changed, and %d nodes were hashed", len(below), len(leaves), tree.Hashed())
			}
		}
	})
}

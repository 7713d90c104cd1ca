package publication

import (
	"crypto/sha256"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// tileWidth is how many nodes of a level lie in one piece of memory. A change copies the tiles
// that it writes to, and a reference to each of the others.
const tileWidth = 64

// Tree is an RFC 6962 Merkle tree for leaves that change: [Tree.With] makes another one, and
// hashes only what is above the leaves that are not the same. It is immutable, so that who reads
// it is not disturbed by who makes the next one. The zero Tree has no leaves.
//
// Each level pairs neighbours of the one below, and carries an odd last one up. That is the tree of
// RFC 6962, which splits n leaves at the largest power of two below n.
type Tree struct {
	size   int
	levels [][]*tile // leaves first, the root last
	hashed int
}

// tile has nodes of one level that are next to each other. What is past the end of the level is
// not looked at.
type tile [tileWidth]tlog.Hash

// With returns the tree over size leaves that leaf tells: those at the indices in changed, which are
// sorted and below from, and all at from and above. The others are as they are in t, which
// has as many leaves as from at least. It asks for each once at most, in their order.
func (t *Tree) With(size int, changed []int, from int, leaf func(int) [sha256.Size]byte) *Tree {
	next := &Tree{size: size}
	if size == 0 {
		return next
	}
	leaves := newTileWriter(t.level(0), size)
	var written []int
	write := func(i int) {
		if h := tlog.Hash(leaf(i)); i >= t.size || *node(leaves.nodes, i) != h {
			leaves.write(i, h)
			written = append(written, i)
		}
	}
	for _, i := range changed {
		write(i)
	}
	for i := from; i < size; i++ {
		write(i)
	}
	nodes := leaves.nodes
	for n, count := 0, size; ; n++ {
		next.levels = append(next.levels, nodes)
		if count == 1 {
			return next
		}
		if size != t.size && (len(written) == 0 || written[len(written)-1] != count-1) {
			// The last one has another neighbour now, or none.
			written = append(written, count-1)
		}
		up := newTileWriter(t.level(n+1), (count+1)/2)
		above := written[:0]
		for _, i := range written {
			parent := i / 2
			if k := len(above); k > 0 && above[k-1] == parent {
				continue
			}
			above = append(above, parent)
			h := *node(nodes, 2*parent)
			if 2*parent+1 < count {
				h = tlog.NodeHash(h, *node(nodes, 2*parent+1))
				next.hashed++
			}
			up.write(parent, h)
		}
		written, nodes, count = above, up.nodes, (count+1)/2
	}
}

// level returns the tiles of a level; nil: the tree is not so high.
func (t *Tree) level(n int) []*tile {
	if n >= len(t.levels) {
		return nil
	}
	return t.levels[n]
}

func node(tiles []*tile, i int) *tlog.Hash { return &tiles[i/tileWidth][i%tileWidth] }

// tileWriter writes to a level, and leaves the tiles of the one that it comes from as they are.
type tileWriter struct {
	from, nodes []*tile
}

func newTileWriter(from []*tile, size int) *tileWriter {
	w := &tileWriter{from, make([]*tile, (size+tileWidth-1)/tileWidth)}
	copy(w.nodes, from)
	return w
}

func (w *tileWriter) write(i int, h tlog.Hash) {
	n := i / tileWidth
	switch {
	case w.nodes[n] == nil:
		w.nodes[n] = new(tile)
	case n < len(w.from) && w.nodes[n] == w.from[n]:
		own := *w.from[n]
		w.nodes[n] = &own
	}
	*node(w.nodes, i) = h
}

// Size returns the number of leaves.
func (t *Tree) Size() int { return t.size }

// Hashed returns how many nodes were hashed to make the tree from the one before it.
func (t *Tree) Hashed() int { return t.hashed }

// Root returns the root hash; zero for a tree without leaves, which no record can carry.
func (t *Tree) Root() [sha256.Size]byte {
	if t.size == 0 {
		return [sha256.Size]byte{}
	}
	return *node(t.levels[len(t.levels)-1], 0)
}

// Proof returns the hashes of the inclusion proof of leaf i, from the leaf to the root.
func (t *Tree) Proof(i int) ([][sha256.Size]byte, error) {
	if i < 0 || i >= t.size {
		return nil, fmt.Errorf("no leaf %d in a tree of %d", i, t.size)
	}
	out := make([][sha256.Size]byte, 0, len(t.levels)-1)
	for n, count := 0, t.size; count > 1; n, count = n+1, (count+1)/2 {
		if sibling := i ^ 1; sibling < count {
			out = append(out, *node(t.levels[n], sibling))
		}
		i /= 2
	}
	return out, nil
}

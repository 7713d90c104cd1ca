package publication

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Where a header is a leaf of the tree follows from the headers alone, so that whoever has all of them makes the same tree.
// In the order of their paths, one that comes or goes shifts all leaves behind it. So the leaves of many headers lie in
// bins: a header belongs to one by the hash of its path, as in a hash table, and who comes shifts the others of its bin.
// How many bins there are stands in publication/state. A path has one leaf, since headers are kept by their paths.

const (
	// binSlots is how many leaves a bin has. Those that no header of the bin takes are holes. They are a file of a mirror, or
	// a part of one: there a header stays in its file while others come and go.
	binSlots = 64
	// binMost and binLeast bound the headers of a bin, on average: with more or fewer, all are placed anew in as many bins as
	// have up to binMost each. With binMost, one header in some 1,300 finds no slot in its bin.
	binMost  = 48
	binLeast = 12
	// maxBins bounds the bins: with holes, the tree has no more leaves than a mirror may have (mirror.MaxHeaders).
	maxBins = 1 << 13
	// binsFrom is from how many headers on there are bins. Below half of it there are none any more: to hash all leaves anew
	// costs less than a signature.
	binsFrom = 1024
)

// hole is the leaf in a slot without a header: that of RFC 6962 for an entry without bytes, which no header is.
var hole = tlog.RecordHash(nil)

// binsFor returns how many bins there are for n headers, after there were some; 0: leaves are in the order of paths.
// There are bins from a number of headers on.
func binsFor(were, n, from int) int {
	switch {
	case n == 0, n < from/2, n > maxBins*binMost, were == 0 && (n < from || n > maxBins*binMost/2):
		return 0
	case were > 0 && were*binLeast <= n && n <= were*binMost:
		return were
	}
	return 1 << bits.Len(uint((n-1)/binMost))
}

// isBins reports whether there can be so many bins; 0: none.
func isBins(n int) bool { return n == 0 || n > 0 && n <= maxBins && n&(n-1) == 0 }

// bins are headers where they are leaves of a tree. They are immutable: what a step makes of them shares with them all bins
// that it did not touch. Without lists there are none.
type bins struct {
	lists [][]*Published // of each bin, sorted by path; those from binSlots on are in over
	over  []*Published   // those that find no slot, sorted by path: the leaves behind all bins
}

// binOf returns which of n bins a path belongs to.
func binOf(path HeaderPath, n int) int {
	sum := sha256.Sum256([]byte(path.String()))
	return int(binary.BigEndian.Uint32(sum[:]) & uint32(n-1))
}

// newBins places headers, which are sorted by path, in n bins.
func newBins(n int, list headers) bins {
	x := bins{lists: make([][]*Published, n)}
	for _, h := range list.all() {
		k := binOf(h.HeaderPath, n)
		x.lists[k] = append(x.lists[k], h)
		if len(x.lists[k]) > binSlots {
			x.over = append(x.over, h)
		}
	}
	return x
}

// size returns the number of leaves.
func (x bins) size() int { return len(x.lists)*binSlots + len(x.over) }

// leaf tells leaf i.
func (x bins) leaf(i int) [sha256.Size]byte {
	n := i / binSlots
	if n >= len(x.lists) {
		return x.over[i-len(x.lists)*binSlots].Leaf
	}
	if bin := x.lists[n]; i%binSlots < len(bin) {
		return bin[i%binSlots].Leaf
	}
	return hole
}

// find returns which leaf the header at a path is, which is one of x.
func (x bins) find(path HeaderPath) int {
	n := binOf(path, len(x.lists))
	if i, _ := findIn(x.lists[n], path); i < binSlots {
		return n*binSlots + i
	}
	i, _ := findIn(x.over, path)
	return len(x.lists)*binSlots + i
}

// with returns x after edits, each of another path. changed are the leaves, sorted, that may be others than before, below
// from; from there on all may be.
func (x bins) with(edits []edit) (next bins, changed []int, from int) {
	next = bins{slices.Clone(x.lists), x.over}
	of := make(map[int][]edit)
	for _, e := range edits {
		n := binOf(e.path, len(x.lists))
		of[n] = append(of[n], e)
	}
	over := false // other headers find no slot, or others that find none are at these paths
	for n, edits := range of {
		bin := slices.Clone(x.lists[n])
		for _, e := range edits {
			i, had := findIn(bin, e.path)
			switch {
			case e.put != nil && had:
				bin[i] = e.put
			case e.put != nil:
				bin = slices.Insert(bin, i, e.put)
			case had:
				bin = slices.Delete(bin, i, i+1)
			}
		}
		next.lists[n] = bin
		over = over || max(len(bin), len(x.lists[n])) > binSlots
		for i := range min(max(len(bin), len(x.lists[n])), binSlots) {
			changed = append(changed, n*binSlots+i)
		}
	}
	slices.Sort(changed)
	if !over {
		return next, changed, next.size()
	}
	var more []*Published // of these bins
	for n := range of {
		if bin := next.lists[n]; len(bin) > binSlots {
			more = append(more, bin[binSlots:]...)
		}
	}
	slices.SortFunc(more, comparePublished)
	next.over = make([]*Published, 0, len(x.over)+len(more))
	for _, h := range x.over {
		if of[binOf(h.HeaderPath, len(x.lists))] != nil {
			continue
		}
		for len(more) > 0 && comparePublished(more[0], h) < 0 {
			next.over, more = append(next.over, more[0]), more[1:]
		}
		next.over = append(next.over, h)
	}
	next.over = append(next.over, more...)
	return next, changed, len(x.lists) * binSlots
}

func comparePublished(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) }

package publication

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// leavesOf returns the leaves of the tree of p, and checks that each header is one of them, that no two are the same one, and
// that all others are holes.
func leavesOf(t interface{ Fatalf(string, ...any) }, p *View) []snapshot.Digest {
	leaves := slices.Repeat([]snapshot.Digest{snapshot.Digest(hole)}, p.Tree.Size())
	taken := make(map[int]HeaderPath)
	for i, h := range p.Headers() {
		n := p.LeafOf(i)
		if n < 0 || n >= len(leaves) {
			t.Fatalf("%s is leaf %d of %d", h.HeaderPath, n, len(leaves))
		}
		if other, ok := taken[n]; ok {
			t.Fatalf("%s and %s are leaf %d", h.HeaderPath, other, n)
		}
		taken[n], leaves[n] = h.HeaderPath, h.Leaf
	}
	return leaves
}

// numbered is a header whose leaf is of a number.
func numbered(member string, number int) *Published {
	return &Published{HeaderPath: RuntimePath("data/" + member), Leaf: sha256.Sum256(fmt.Append(nil, number))}
}

// Whatever comes, goes and changes, headers have leaves of their own, which follow from the headers there are and not from how they
// came. Who comes or goes moves the others of its bin, and of those who find no slot; nobody else. Few leaves are hashed.
func TestBins(t *testing.T) {
	testlane.Checks(t, 60, 2000)
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.SampledFrom([]int{1, 2, 8}).Draw(t, "bins")
		most := rapid.SampledFrom([]int{20, 100, 700}).Draw(t, "members") // so that some bins overflow, or all
		number := 0
		model := make(map[HeaderPath]*Published)
		sorted := func() (x headers) {
			edits := editsOf(slices.Collect(maps.Values(model)), nil)
			x, _, _ = x.with(edits)
			return x
		}
		at := newBins(count, sorted())
		tree := new(Tree).With(at.size(), nil, 0, at.leaf)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			was, before, beforeTree := maps.Clone(model), at, tree
			put, drop := make(map[HeaderPath]*Published), make(map[HeaderPath]bool)
			for range rapid.SampledFrom([]int{0, 1, 2, 200}).Draw(t, "puts") {
				number++
				h := numbered(fmt.Sprint(rapid.IntRange(0, most).Draw(t, "member")), number)
				put[h.HeaderPath], model[h.HeaderPath] = h, h
			}
			for range rapid.SampledFrom([]int{0, 1, 2, 200}).Draw(t, "drops") {
				if path := numbered(fmt.Sprint(rapid.IntRange(0, most).Draw(t, "member")), 0).HeaderPath; put[path] == nil {
					drop[path] = true
					delete(model, path)
				}
			}
			edits := editsOf(slices.Collect(maps.Values(put)), drop)
			var changed []int
			var from int
			at, changed, from = at.with(edits)
			asked := 0
			tree = tree.With(at.size(), changed, from, func(i int) [sha256.Size]byte { asked++; return at.leaf(i) })

			touched := make(map[int]bool) // bins
			for _, e := range edits {
				touched[binOf(e.path, count)] = true
			}
			fresh := newBins(count, sorted())
			if at.size() != fresh.size() || !slices.Equal(at.over, fresh.over) {
				t.Fatalf("%d leaves, and %d where all are placed at once", at.size(), fresh.size())
			}
			taken := make(map[int]bool)
			for path, h := range model {
				i := at.find(path)
				if taken[i] || at.leaf(i) != h.Leaf || i != fresh.find(path) {
					t.Fatalf("%s is leaf %d, or another's", path, i)
				}
				taken[i] = true
				if was[path] != nil && !touched[binOf(path, count)] && i < count*binSlots && before.find(path) != i {
					t.Fatalf("%s moves to leaf %d, and nobody of its bin came or went", path, i)
				}
			}
			leaves := make([]snapshot.Digest, at.size())
			for i := range leaves {
				if leaves[i] = at.leaf(i); !taken[i] && leaves[i] != snapshot.Digest(hole) {
					t.Fatalf("leaf %d is nobody's, and no hole", i)
				}
			}
			if snapshot.Digest(tree.Root()) != snapshot.NewTree(leaves).Root() || tree.Size() != len(leaves) {
				t.Fatalf("the tree of %d leaves is not the plain one of %d", tree.Size(), len(leaves))
			}
			if most := binSlots * len(touched); len(before.over)+len(at.over) == 0 && (asked > most ||
				tree.Hashed() > 2*most+len(touched)*bits.Len(uint(len(leaves)))) {
				t.Fatalf("%d bins of %d changed, %d leaves are looked at, and %d nodes are hashed", len(touched), count, asked, tree.Hashed())
			}
			for path, h := range was { // what was before is as it was
				if i := before.find(path); before.leaf(i) != h.Leaf {
					t.Fatalf("%s was leaf %d, and is not any more", path, i)
				}
			}
			if again := new(Tree).With(before.size(), nil, 0, before.leaf); again.Root() != beforeTree.Root() {
				t.Fatal("the tree before is another one")
			}
		}
	})
}

// The number of bins follows how many headers there are, at a distance: there are at most 5.4 leaves for a header but in the
// smallest trees, nothing is placed anew for one who comes and goes, and no tree is larger than a mirror may have.
func TestBinsFor(t *testing.T) {
	t.Parallel()
	const from = binsFrom
	for _, tt := range []struct{ were, n, want int }{
		{0, 0, 0}, {0, from - 1, 0}, {0, from, 32}, {32, from / 2, 32}, {32, from/2 - 1, 0}, {16, from / 2, 16}, {1, 0, 0},
		{32, 32 * binMost, 32}, {32, 32*binMost + 1, 64}, {64, 64 * binLeast, 64}, {64, 64*binLeast - 1, 16},
		{maxBins, maxBins * binMost, maxBins}, {maxBins, maxBins*binMost + 1, 0}, {0, maxBins * binMost, 0},
		{0, maxBins*binMost/2 + 1, 0}, {0, maxBins * binMost / 2, maxBins / 2}, {0, 1 << 40, 0},
	} {
		if got := binsFor(tt.were, tt.n, from); got != tt.want {
			t.Errorf("%d bins for %d headers after %d, want %d", got, tt.n, tt.were, tt.want)
		}
	}
	for _, n := range []int{1, 2, 3, 48, 49, 97} {
		if got := binsFor(0, n, 1); got < 1 || n > got*binMost || got > 1 && n <= got*binMost/2 {
			t.Errorf("%d bins for %d headers", got, n)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		were, n := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n = max(0, n+rapid.SampledFrom([]int{1, -1, 100, -100, 5000, -5000, 100_000, -100_000}).Draw(t, "more"))
			now := binsFor(were, n, from)
			if !isBins(now) {
				t.Fatalf("%d bins", now)
			}
			if now > 0 && (n > now*binMost || n < now*binLeast || n < from/2 || now*binSlots+n > mirror.MaxHeaders) {
				t.Fatalf("%d bins for %d headers", now, n)
			}
			if now != were { // one more or less changes nothing
				for _, n := range []int{n - 1, n + 1} {
					if back := binsFor(now, n, from); back != now && back == were {
						t.Fatalf("%d bins for %d headers, and %d again for %d", now, n, back, n)
					}
				}
			}
			were = now
		}
	})
	for n, want := range map[int]bool{-1: false, 0: true, 1: true, 3: false, maxBins: true, 2 * maxBins: false, -1 << 63: false} {
		if isBins(n) != want {
			t.Errorf("that there can be %d bins is %v", n, !want)
		}
	}
}

// Headers find their bins alike: with as many in a bin as there may be on average, few find no slot.
func TestBinsAreEven(t *testing.T) {
	t.Parallel()
	const count = 256
	list := make([]*Published, count*binMost)
	for i := range list {
		list[i] = numbered(fmt.Sprintf("n-%06d", i), i)
	}
	if p := newView(record.Versioned[Record]{Value: Record{Bins: count}}, list, nil); len(p.bins.over) > len(list)/400 {
		t.Errorf("%d of %d headers find no slot in their bins", len(p.bins.over), len(list))
	}
}

// A path that is there twice, or a number of bins that no leader writes, makes another tree than the one that is signed, and no
// process ends by it.
func TestNoPathHasTwoLeaves(t *testing.T) {
	t.Parallel()
	var list []*Published
	for i := range 100 {
		list = append(list, numbered(fmt.Sprintf("n-%06d", i), i))
	}
	of := func(count int, list []*Published) *View {
		return newView(record.Versioned[Record]{Value: Record{Bins: count}}, list, nil)
	}
	for _, count := range []int{0, 1, 4} {
		want := of(count, list)
		leavesOf(t, want)
		twice := *list[7]
		twice.packed, twice.Leaf = !twice.packed, snapshot.Digest{1}
		if of(count, slices.Insert(slices.Clone(list), 7, &twice)).Tree.Root() == want.Tree.Root() {
			t.Errorf("%d bins: a path that is there twice makes the same tree", count)
		}
		if p, _ := want.with([]*Published{&twice}, nil, nil, true, min(count, 1)); p.Len() != len(list) {
			t.Errorf("%d bins: there are %d headers after one took its own place", count, p.Len())
		}
	}
	plain := of(0, list).Tree.Root()
	for _, count := range []int{-1, 3, 2 * maxBins, 1 << 62} {
		if of(count, list).Tree.Root() != plain {
			t.Errorf("%d bins", count)
		}
	}
	if p := of(4, nil); p.Tree.Size() != 0 {
		t.Error("without headers, there are leaves")
	}
}

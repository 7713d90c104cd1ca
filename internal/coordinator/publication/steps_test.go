package publication

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// hashOf is the name of a content.
func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// wantView checks that a publication that steps made is the one that is made of its headers and contents at
// once, as it is where it is read: each header where it is found, with its leaf there in the plain tree.
func wantView(t *rapid.T, got *View, list []*Published, contents map[string]*stored) {
	t.Helper()
	want := newView(record.Versioned[Record]{Value: Record{Bins: len(got.bins.lists)}}, list, contents)
	leaves := leavesOf(t, got)
	at := 0
	for i, h := range got.Headers() {
		if i != at || i >= len(list) || h != list[i] || got.Header(i) != h {
			t.Fatalf("header %d of %d is another than the one at %d", i, len(list), at)
		}
		if j, ok := got.Find(h.HeaderPath); !ok || j != i {
			t.Fatalf("header %d is found at %d: %v", i, j, ok)
		}
		if got.LeafOf(i) != want.LeafOf(i) {
			t.Fatalf("header %d is leaf %d, and %d where all are placed at once", i, got.LeafOf(i), want.LeafOf(i))
		}
		at++
	}
	if got.Len() != len(list) || at != len(list) {
		t.Fatalf("%d headers, and %d in pages, of %d", got.Len(), at, len(list))
	}
	for _, p := range got.headers.pages {
		if len(p.headers) == 0 || len(p.headers) > 2*pageHeaders {
			t.Fatalf("a page of %d headers", len(p.headers))
		}
	}
	if root := snapshot.NewTree(leaves).Root(); snapshot.Digest(got.Tree.Root()) != root || snapshot.Digest(want.Tree.Root()) != root {
		t.Fatalf("the root over %d headers is not the one of the plain tree", len(list))
	}
	if !maps.Equal(maps.Collect(got.groups.all()), maps.Collect(want.groups.all())) ||
		!maps.Equal(maps.Collect(got.parts.all()), maps.Collect(want.parts.all())) || got.divided != want.divided ||
		got.packed != want.packed {
		t.Fatal("groups, parts or what is packed are counted in another way")
	}
	if !maps.EqualFunc(maps.Collect(got.contents.all()), maps.Collect(want.contents.all()), func(a, b *stored) bool {
		return string(a.raw) == string(b.raw) && (a.raw == nil) == (b.raw == nil) && slices.Equal(a.parts, b.parts) && a.uses == b.uses
	}) {
		t.Fatal("contents are kept in another way")
	}
}

// Whatever is put, replaced and dropped, the publication after a step is the one that reading it makes, the step says
// what of contents is to be written and what is left over, and the publication before stays as it was.
func TestSteps(t *testing.T) {
	testlane.Checks(t, 40, 1000)
	long := make([]byte, chunk.MaxBytes+100)
	rapid.Check(t, func(t *rapid.T) {
		number := uint64(0)
		most := rapid.SampledFrom([]int{3, 40, 400}).Draw(t, "members")
		path := func() HeaderPath {
			n := rapid.IntRange(0, most).Draw(t, "member")
			if n%7 == 0 {
				return groupPath(snapshot.ScopeRoutePolicy, hashOf(fmt.Append(nil, n)))
			}
			return nodePath(nodeScopes()[n%2], fmt.Sprintf("data/n%05d", n))
		}
		content := func() []byte {
			n := rapid.IntRange(0, 9).Draw(t, "content")
			if n < 2 { // of which parts are the same
				return append(slices.Clone(long), byte(n))
			}
			return fmt.Append(nil, n)
		}
		at := &View{}
		at = newView(at.State, nil, nil)
		kept, headers := make(map[string]*stored), make(map[HeaderPath]*Published) // the model
		sorted := func() []*Published {
			return slices.SortedFunc(maps.Values(headers), func(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) })
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			before, was, wasKept := at, sorted(), maps.Clone(kept)
			divides := rapid.IntRange(0, 3).Draw(t, "divides") > 0
			put, drop := make(map[HeaderPath]*Published), make(map[HeaderPath]bool)
			raws, contents := make(map[string][]byte), make(map[string][]byte)
			for range rapid.SampledFrom([]int{0, 1, 3, 300}).Draw(t, "puts") {
				number++
				raw := content()
				h := &Published{HeaderPath: path(), Header: HeaderRecord{Content: hashOf(raw), ConfigVersion: number,
					Group: hashOf(fmt.Append(nil, number%3))}, Leaf: sha256.Sum256(fmt.Append(nil, number))}
				h.packed = rapid.Bool().Draw(t, "packed")
				if rapid.Bool().Draw(t, "base") { // which may be one that was lost
					h.Header.Base = hashOf(content())
				}
				put[h.HeaderPath], headers[h.HeaderPath], raws[h.Header.Content] = h, h, raw
			}
			for _, h := range put { // a generation puts each header once, and brings what these name
				contents[h.Header.Content] = raws[h.Header.Content]
			}
			for range rapid.SampledFrom([]int{0, 1, 3, 300}).Draw(t, "drops") {
				if p := path(); put[p] == nil {
					drop[p] = true
					delete(headers, p)
				}
			}
			var changes step
			from := rapid.SampledFrom([]int{0, 1, 20, 20}).Draw(t, "bins from")
			at, changes = before.with(slices.Collect(maps.Values(put)), drop, contents, divides, from)
			if n := len(headers); len(at.bins.lists) != 0 && (from == 0 || n < from/2) || len(at.bins.lists) == 0 && n >= max(from, 1) && from > 0 {
				t.Fatalf("%d bins for %d headers, from %d on", len(at.bins.lists), n, from)
			}

			used := make(map[string]bool)
			for _, h := range headers {
				used[h.Header.Content], used[h.Header.Base] = true, true
			}
			for hash, raw := range contents {
				if used[hash] && kept[hash] == nil {
					kept[hash] = &stored{raw: raw}
					if _, list := chunk.Split(raw); divides {
						for _, part := range list {
							kept[hash].parts = append(kept[hash].parts, hashOf(part))
						}
					}
				}
			}
			for hash, c := range kept {
				if !used[hash] {
					delete(kept, hash)
				} else if !divides {
					kept[hash] = &stored{raw: c.raw}
				}
			}
			wantView(t, at, sorted(), kept)
			wantView(t, before, was, wasKept)
			fresh, retired := make(map[string]bool), make(map[string]bool)
			for hash, c := range kept {
				if o := wasKept[hash]; o == nil || (o.parts == nil) != (c.parts == nil) {
					fresh[hash] = true
				}
			}
			for hash, c := range wasKept {
				if n := kept[hash]; n == nil || (n.parts == nil) != (c.parts == nil) {
					retired[hash] = true
				}
			}
			asSet := func(list []string) map[string]bool {
				out := make(map[string]bool)
				for _, hash := range list {
					out[hash] = true
				}
				return out
			}
			if !maps.Equal(asSet(changes.fresh), fresh) || !maps.Equal(asSet(changes.retired), retired) {
				t.Fatalf("the step has %d fresh contents and %d retired ones, want %d and %d", len(changes.fresh),
					len(changes.retired), len(fresh), len(retired))
			}
		}
	})
}

// A table is a map, whatever the keys have in common, and one that was made from another leaves it as it was.
func TestTable(t *testing.T) {
	testlane.Checks(t, 60, 2000)
	rapid.Check(t, func(t *rapid.T) {
		key := func() string {
			n := rapid.IntRange(0, 200).Draw(t, "key")
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0: // alike, but for their ends
				return fmt.Sprintf("%060d", 0) + fmt.Sprintf("%04x", n)
			case 1:
				return "" // what has no group
			}
			return hashOf(fmt.Append(nil, n))
		}
		var got table[int]
		want := make(map[string]int)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			before, were := got, maps.Clone(want)
			k := key()
			if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
				got = got.without(k)
				delete(want, k)
			} else {
				want[k] = len(k) + len(want) + 1
				got = got.with(k, want[k])
			}
			if got.len() != len(want) || !maps.Equal(maps.Collect(got.all()), want) || before.len() != len(were) {
				t.Fatalf("%d keys, want %d", got.len(), len(want))
			}
			if v, ok := got.get(k); ok != (want[k] != 0) || v != want[k] {
				t.Fatalf("%q has %d, %v", k, v, ok)
			}
			if !maps.Equal(maps.Collect(before.all()), were) {
				t.Fatal("the one before is another one")
			}
		}
	})
}

// A queue yields what is in it, sorted, whatever came and went.
func TestQueue(t *testing.T) {
	testlane.Checks(t, 60, 2000)
	rapid.Check(t, func(t *rapid.T) {
		q, want := queue{paths: make(map[string]bool)}, make(map[string]bool)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			path := fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "path"))
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				q.add(path)
				want[path] = true
			case 1:
				q.remove(path)
				delete(want, path)
			case 2:
				if got := slices.Collect(q.all()); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
					t.Fatalf("it has %v, want %v", got, want)
				}
			}
		}
	})
}

package publication

import (
	"cmp"
	"iter"
	"slices"
	"sort"
)

// headers are those of a publication, sorted by path: without bins the leaves of its tree, in this order. They lie in
// pages, and are immutable: what a step makes of them shares with them all pages that it did not touch.
type headers struct {
	pages []page // none is empty
	n     int
}

type page struct {
	first   int // the index of its first header
	headers []*Published
}

// pageHeaders is about how many headers a page has: it is split where it would have more than twice
// as many.
const pageHeaders = 64

// at returns header i.
func (x headers) at(i int) *Published {
	p := &x.pages[x.pageAt(i)]
	return p.headers[i-p.first]
}

func (x headers) pageAt(i int) int {
	n, found := slices.BinarySearchFunc(x.pages, i, func(p page, i int) int { return cmp.Compare(p.first, i) })
	if !found {
		n--
	}
	return n
}

// pageOf returns the page in which a path is, if it is in one: the last that begins with it or before it,
// or the first.
func (x headers) pageOf(path HeaderPath) int {
	n := sort.Search(len(x.pages), func(n int) bool { return compareHeaders(x.pages[n].headers[0].HeaderPath, path) > 0 })
	return max(0, n-1)
}

// find returns the index of a header.
func (x headers) find(path HeaderPath) (int, bool) {
	if x.n == 0 {
		return 0, false
	}
	p := &x.pages[x.pageOf(path)]
	i, ok := findIn(p.headers, path)
	return p.first + i, ok
}

func findIn(list []*Published, path HeaderPath) (int, bool) {
	return slices.BinarySearchFunc(list, path,
		func(h *Published, path HeaderPath) int { return compareHeaders(h.HeaderPath, path) })
}

// all yields the headers with their indices, in their order.
func (x headers) all() iter.Seq2[int, *Published] {
	return func(yield func(int, *Published) bool) {
		for _, p := range x.pages {
			for i, h := range p.headers {
				if !yield(p.first+i, h) {
					return
				}
			}
		}
	}
}

// leaves returns what tells the leaves of the tree. It is fast where it is asked in their order.
func (x headers) leaves() func(int) [32]byte {
	n := 0
	return func(i int) [32]byte {
		if p := &x.pages[n]; i < p.first || i >= p.first+len(p.headers) {
			if n++; n == len(x.pages) || i < x.pages[n].first || i >= x.pages[n].first+len(x.pages[n].headers) {
				n = x.pageAt(i)
			}
		}
		return x.pages[n].headers[i-x.pages[n].first].Leaf
	}
}

// edit puts a header at a path, or drops it.
type edit struct {
	path HeaderPath
	put  *Published // nil: it is dropped
}

// editsOf returns what puts some headers and drops others, sorted. A header that is put is not dropped.
func editsOf(put []*Published, drop map[HeaderPath]bool) []edit {
	edits := make([]edit, 0, len(put)+len(drop))
	for _, h := range put {
		edits = append(edits, edit{h.HeaderPath, h})
	}
	for path := range drop {
		edits = append(edits, edit{path, nil})
	}
	slices.SortFunc(edits, func(a, b edit) int {
		return cmp.Or(compareHeaders(a.path, b.path), cmp.Compare(rank(a), rank(b)))
	})
	return slices.CompactFunc(edits, func(a, b edit) bool { return a.path == b.path })
}

func rank(e edit) int {
	if e.put != nil {
		return 0
	}
	return 1
}

// with returns x after edits, which are sorted. changed are the indices, sorted, of headers that took the place of
// others, below from; from there on headers are at other indices than before.
func (x headers) with(edits []edit) (next headers, changed []int, from int) {
	m := merging{shifted: -1}
	done := 0 // pages
	for len(edits) > 0 {
		n := x.pageOf(edits[0].path)
		of := page{}
		if n < len(x.pages) {
			m.pages, of = append(m.pages, x.pages[done:n]...), x.pages[n]
		}
		done = n + 1
		end := len(edits)
		if done < len(x.pages) { // what comes before the next page
			until := x.pages[done].headers[0].HeaderPath
			end, _ = slices.BinarySearchFunc(edits, until, func(e edit, path HeaderPath) int { return compareHeaders(e.path, path) })
		}
		m.merge(of, edits[:end])
		edits = edits[end:]
	}
	if done < len(x.pages) {
		m.pages = append(m.pages, x.pages[done:]...)
	}
	next.pages = m.pages
	for i := range next.pages {
		next.pages[i].first = next.n
		next.n += len(next.pages[i].headers)
	}
	if m.shifted < 0 {
		m.shifted = next.n
	}
	return next, m.changed, m.shifted
}

// merging is a step in the making.
type merging struct {
	pages   []page
	changed []int
	shifted int // the first index at which headers came or went; negative: none so far
}

// merge adds the page that becomes of another one by edits of it.
func (m *merging) merge(of page, edits []edit) {
	list := make([]*Published, 0, len(of.headers)+len(edits))
	rest, at := of.headers, of.first // the index of the first of the rest
	for _, e := range edits {
		n, had := findIn(rest, e.path)
		list, rest, at = append(list, rest[:n]...), rest[n:], at+n
		switch {
		case e.put == nil && !had:
			continue
		case e.put != nil && had:
			if m.shifted < 0 {
				m.changed = append(m.changed, at)
			}
		case m.shifted < 0:
			m.shifted = at
		}
		if e.put != nil {
			list = append(list, e.put)
		}
		if had {
			rest, at = rest[1:], at+1
		}
	}
	list = append(list, rest...)
	if len(list) == 0 {
		return
	}
	if k := len(m.pages); k > 0 && len(list) < pageHeaders/2 && len(list)+len(m.pages[k-1].headers) <= 2*pageHeaders {
		m.pages[k-1].headers = slices.Concat(m.pages[k-1].headers, list)
		return
	}
	if len(list) <= 2*pageHeaders {
		m.pages = append(m.pages, page{headers: list})
		return
	}
	for part := range slices.Chunk(list, (len(list)+len(list)/pageHeaders-1)/(len(list)/pageHeaders)) {
		m.pages = append(m.pages, page{headers: part})
	}
}

package publication

import (
	"iter"
	"slices"
)

// table maps hex digits to values: a tree whose nodes have a child for each digit. It is immutable:
// what a step makes of it shares with it all but the nodes on the way to what changed. The zero table
// is empty.
type table[V any] struct {
	root *tableNode[V]
	n    int
}

// tableNode has either children or entries.
type tableNode[V any] struct {
	children *[16]*tableNode[V]
	entries  []tableEntry[V]
}

type tableEntry[V any] struct {
	key   string
	value V
}

const (
	// tableEntries bounds the entries of a node, from which on it has children.
	tableEntries = 16
	// tableDepth bounds the children of children: below it, a node has any number of entries.
	tableDepth = 16
)

// digit is that of a key at a depth. Keys are hashes; others are not in proportion, and found too.
func digit(key string, depth int) int {
	if depth >= len(key) {
		return 0
	}
	if c := key[depth]; c >= 'a' {
		return int(c-'a'+10) & 15
	}
	return int(key[depth]) & 15
}

// len returns how many keys there are.
func (t table[V]) len() int { return t.n }

// get returns the value of a key, and whether there is one.
func (t table[V]) get(key string) (value V, ok bool) {
	node := t.root
	for depth := 0; node != nil; depth++ {
		if node.children == nil {
			if i := node.find(key); i >= 0 {
				return node.entries[i].value, true
			}
			break
		}
		node = node.children[digit(key, depth)]
	}
	return value, false
}

func (x *tableNode[V]) find(key string) int {
	return slices.IndexFunc(x.entries, func(e tableEntry[V]) bool { return e.key == key })
}

// with returns t with a value for a key.
func (t table[V]) with(key string, value V) table[V] {
	root, added := t.root.with(tableEntry[V]{key, value}, 0)
	if added {
		t.n++
	}
	return table[V]{root, t.n}
}

func (x *tableNode[V]) with(e tableEntry[V], depth int) (next *tableNode[V], added bool) {
	if x == nil {
		return &tableNode[V]{entries: []tableEntry[V]{e}}, true
	}
	if x.children != nil {
		children := *x.children
		at := &children[digit(e.key, depth)]
		*at, added = (*at).with(e, depth+1)
		return &tableNode[V]{children: &children}, added
	}
	if i := x.find(e.key); i >= 0 {
		entries := slices.Clone(x.entries)
		entries[i] = e
		return &tableNode[V]{entries: entries}, false
	}
	entries := append(slices.Clip(x.entries), e)
	if len(entries) <= tableEntries || depth >= tableDepth {
		return &tableNode[V]{entries: entries}, true
	}
	next = &tableNode[V]{children: new([16]*tableNode[V])}
	for _, e := range entries {
		at := &next.children[digit(e.key, depth)]
		*at, _ = (*at).with(e, depth+1)
	}
	return next, true
}

// without returns t without a key.
func (t table[V]) without(key string) table[V] {
	if _, ok := t.get(key); !ok {
		return t
	}
	return table[V]{t.root.without(key, 0), t.n - 1}
}

// without returns the node without a key that it has; nil if nothing is left.
func (x *tableNode[V]) without(key string, depth int) *tableNode[V] {
	if x.children == nil {
		if len(x.entries) == 1 {
			return nil
		}
		i := x.find(key)
		return &tableNode[V]{entries: slices.Concat(x.entries[:i], x.entries[i+1:])}
	}
	children := *x.children
	at := &children[digit(key, depth)]
	*at = (*at).without(key, depth+1)
	if children == [16]*tableNode[V]{} {
		return nil
	}
	return &tableNode[V]{children: &children}
}

// all yields keys and values, in no order that follows from the keys.
func (t table[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) { t.root.all(yield) }
}

func (x *tableNode[V]) all(yield func(string, V) bool) bool {
	if x == nil {
		return true
	}
	for _, e := range x.entries {
		if !yield(e.key, e.value) {
			return false
		}
	}
	if x.children != nil {
		for _, child := range x.children {
			if !child.all(yield) {
				return false
			}
		}
	}
	return true
}

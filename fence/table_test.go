// Inside the package: hashes are drawn anew in each process, and here many names have one.
package fence

import (
	"fmt"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// A table finds what was put into it and not removed, whatever the hashes are.
func TestTable(t *testing.T) {
	var all [100]string
	for i := range all {
		all[i] = fmt.Sprint("m-", i)
	}
	rapid.Check(t, func(t *rapid.T) {
		var s shard
		model := make(map[string]uint64)
		few := rapid.Uint32Range(1, 40).Draw(t, "hashes")
		hash := func(name string) (h uint32) {
			for _, c := range name {
				h = h*31 + uint32(c)
			}
			return h % few * 0x01000001 // some differ in what no small table looks at
		}
		names := rapid.IntRange(0, len(all))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 60).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					if model[name] == 0 {
						model[name] = uint64(len(model) + 1)
						s.add(hash(name), name, mark{sequence: model[name]})
					}
				}
			},
			"remove": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 30).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					delete(model, name)
					s.remove(hash(name), name)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for r := range s.all() {
					if n++; model[r.name] != r.first.sequence {
						t.Fatalf("it has %s with %d, want %d", r.name, r.first.sequence, model[r.name])
					}
				}
				if n != len(model) || s.used != n {
					t.Fatalf("it has %d, and counts %d, want %d", n, s.used, len(model))
				}
				for _, name := range all {
					r := s.find(hash(name), name)
					if (r != nil) != (model[name] != 0) || r != nil && r.first.sequence != model[name] {
						t.Fatalf("%s is %v, want %d", name, r, model[name])
					}
				}
			},
		})
	})
}

// Places follow one another from piece to piece, and a resource is one line of a cache.
func TestPieces(t *testing.T) {
	n, at := uint32(0), uint32(0)
	for place := range uint32(10_000) {
		if gotN, gotAt := piece(place); gotN != n || gotAt != at {
			t.Fatalf("place %d is at %d of piece %d, want %d of %d", place, gotAt, gotN, at, n)
		}
		if at++; at == smallest<<min(n, 5) {
			n, at = n+1, 0
		}
	}
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return // it is less there
	}
	if size := unsafe.Sizeof(resource{}); size != 64 {
		t.Errorf("a resource has %d bytes", size)
	}
	if size := unsafe.Sizeof(shard{}); size != 128 {
		t.Errorf("a shard has %d bytes", size)
	}
}

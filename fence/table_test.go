// Inside the package: hashes are drawn anew in each process, and here many names have one.
package fence

import (
	"fmt"
	"hash/maphash"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// A table finds what was put into it and not removed, with its marks, whatever the hashes are.
func TestTable(t *testing.T) {
	var all [100]string
	for i := range all {
		all[i] = fmt.Sprint("m-", i)
	}
	rapid.Check(t, func(t *rapid.T) {
		model, others, last := make(map[string]uint64), make(map[string][]uint64), uint64(0)
		few := rapid.Uint32Range(1, 40).Draw(t, "hashes")
		hash := func(name string) (h uint64) {
			for _, c := range name {
				h = h*31 + uint64(c)
			}
			// Some differ in their tags alone, and some in their slots alone.
			h %= uint64(few)
			return h%5 | h/5<<(64-shardBits-5)
		}
		var s shard
		names := rapid.IntRange(0, len(all))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 60).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					if model[name] == 0 {
						last++
						model[name] = last
						s.add(hash(name), name, mark{sequence: model[name]})
					}
				}
			},
			"remove": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 30).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					delete(model, name)
					delete(others, name)
					s.remove(hash(name), name)
				}
			},
			"marks of others": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "many") {
					name := all[names.Draw(t, "name")%len(all)]
					if r := s.find(hash(name), name); r != nil {
						last++
						s.addMark(r, mark{sequence: last})
						others[name] = append(others[name], last)
					}
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
					if r == nil {
						continue
					}
					var marks []uint64
					for m := range s.marks(r) {
						marks = append(marks, m.sequence)
					}
					if !slices.Equal(marks, append([]uint64{model[name]}, others[name]...)) {
						t.Fatalf("%s has marks %v, want %d and %v", name, marks, model[name], others[name])
					}
				}
			},
		})
	})
}

// However many there are, a pair takes at most 64 bytes beside the strings of holder and
// resource, where there are as many as a shard has of 1,000,000; and a resource is one line of
// a cache.
func TestTableIsFull(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return // it is less there
	}
	size := unsafe.Sizeof(resource{})
	if size != 64 {
		t.Errorf("a resource has %d bytes", size)
	}
	if size := unsafe.Sizeof(shard{}); size != 128 {
		t.Errorf("a shard has %d bytes", size)
	}
	seed := maphash.MakeSeed()
	var s shard
	for n := range 20_000 {
		name := fmt.Sprint("machine-", n)
		s.add(maphash.String(seed, name), name, mark{sequence: 1})
		if n < 1000 {
			continue // some bytes for each of few are few
		}
		if each := float64(len(s.slots)*int(size)+len(s.tags))/float64(n+1) - 2*16; each > 64 {
			t.Fatalf("each of %d takes %.1f bytes", n+1, each)
		}
	}
}

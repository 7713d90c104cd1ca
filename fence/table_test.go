// Inside the package: hashes are drawn anew in each process, and here many names have one.
package fence

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// A table finds what was put into it and not removed, with its marks, whatever the hashes are.
func TestTable(t *testing.T) {
	var all [100]string
	for i := range all {
		if all[i] = fmt.Sprintf("m-%02d", i); i%3 == 0 {
			all[i] += strings.Repeat("-long", 4+i%2)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		model, others, last := make(map[string]uint64), make(map[string][]uint64), uint64(0)
		// These secrets are none. The hash of a short name is its bytes, turned: some names differ
		// in their tags alone, some in their groups alone, and some in neither.
		secret := hashing{b: 1 << rapid.IntRange(0, 63).Draw(t, "turned"), c: 4<<56 | 1, long: maphash.MakeSeed()}
		few := rapid.Uint64Range(1, 40).Draw(t, "hashes")
		want := func(name string) *wanted {
			var w wanted
			if secret.want(&w, name); w.key.long() {
				w.key.a = uint64(name[3]) % few << (64 - shardBits - 5)
				w.hash = w.key.a
			}
			return &w
		}
		s := shard{secret: &secret}
		names := rapid.IntRange(0, len(all))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 60).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					if model[name] == 0 {
						last++
						model[name] = last
						s.add(want(name), mark{sequence: model[name]})
					}
				}
			},
			"remove": func(t *rapid.T) {
				first := names.Draw(t, "name")
				for n := range rapid.IntRange(1, 30).Draw(t, "many") {
					name := all[(first+n)%len(all)]
					delete(model, name)
					delete(others, name)
					s.remove(want(name))
				}
			},
			"marks of others": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "many") {
					name := all[names.Draw(t, "name")%len(all)]
					if r := s.find(want(name)); r != nil {
						last++
						s.addMark(name, mark{sequence: last})
						others[name] = append(others[name], last)
					}
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for r := range s.all() {
					name := s.name(r)
					if n++; model[name] != r.first.sequence {
						t.Fatalf("it has %s with %d, want %d", name, r.first.sequence, model[name])
					}
				}
				long := 0
				for name := range model {
					if len(name) > inKey {
						long += len(name)
					}
				}
				if len(s.long) != long+s.gone || 8*s.gone > len(s.long) {
					t.Fatalf("it keeps %d bytes of long names, %d of them of no resource, want %d", len(s.long), s.gone, long)
				}
				if n != len(model) || s.used != n {
					t.Fatalf("it has %d, and counts %d, want %d", n, s.used, len(model))
				}
				for _, name := range all {
					r := s.find(want(name))
					if (r != nil) != (model[name] != 0) || r != nil && r.first.sequence != model[name] {
						t.Fatalf("%s is %v, want %d", name, r, model[name])
					}
					if r == nil {
						continue
					}
					var marks []uint64
					for m := range s.marks(r, name) {
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

// Names that differ in one byte, or in how many zeros are at an end of them, are two resources,
// and each has its name again; of any length, and with one hash.
func TestTableTellsNamesApart(t *testing.T) {
	secret := hashing{long: maphash.MakeSeed()} // short names with a word of zeros have hash 0
	s := shard{secret: &secret}
	for n := 1; n <= 2*inKey; n++ {
		same := strings.Repeat("\x00", n)
		names := []string{same}
		for at := range n {
			names = append(names, same[:at]+"x"+same[at+1:], same[:at]+"\xff"+same[at+1:])
		}
		for i, name := range names {
			var w wanted
			if secret.want(&w, name); s.find(&w) != nil {
				t.Fatalf("%q is there before it was added", name)
			}
			if s.add(&w, mark{sequence: uint64(n*100 + i)}); s.name(s.find(&w)) != name {
				t.Fatalf("%q has the name %q", name, s.name(s.find(&w)))
			}
		}
		for i, name := range names {
			var w wanted
			if secret.want(&w, name); s.find(&w).first.sequence != uint64(n*100+i) {
				t.Fatalf("%q is another one", name)
			}
		}
	}
}

// However many there are, a pair takes at most 64 bytes beside two strings, and the bytes of the
// resource's, where there are as many as a shard has of 1,000,000; and a resource is one line
// of a cache.
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
	for _, form := range []string{"machine-%d", "7d444840-9dc0-11d1-b245-5ffdce%06d"} {
		secret := newHashing()
		s := shard{secret: &secret}
		for n := range 20_000 {
			var w wanted
			secret.want(&w, fmt.Sprintf(form, n))
			if s.add(&w, mark{sequence: 1}); n < 1000 {
				continue // some bytes for each of few are few
			}
			taken := len(s.slots)*int(size) + 8*len(s.tags) + cap(s.long)
			if each := float64(taken)/float64(n+1) - float64(2*16+len(w.name)); each > 64 {
				t.Fatalf("each of %d as %s takes %.1f bytes", n+1, w.name, each)
			}
		}
	}
}

package fence

import (
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"
)

// The check of a ledger with many pairs is mostly a wait for memory, so what it reads lies
// together: a slot of a table, and a resource with its first mark, which is one line of the
// processor's cache. Names of holders and domains, of which there are fewer, are kept once.

// mark is the mark of one holder, within its resource.
type mark struct {
	holder   uint32 // in Ledger.holders
	domain   uint32 // of the resource, in Ledger.domains; here as there is room, and in its first mark alone
	epoch    Epoch
	sequence uint64
	digest   Digest
}

func (m *mark) mark() Mark { return Mark{m.epoch, m.sequence, m.digest} }

func (m *mark) set(is Mark) { m.epoch, m.sequence, m.digest = is.Epoch, is.Sequence, is.Digest }

// raise is set, unless the mark would go down.
func (m *mark) raise(is Mark) {
	if is.Epoch > m.epoch || is.Epoch == m.epoch && is.Sequence > m.sequence {
		m.set(is)
	}
}

// resource is what is known of one, in 64 bytes. It has a mark at least.
type resource struct {
	name  string
	first mark
	rest  *[]mark // of other holders; nil: there are none
}

func (r *resource) marks() iter.Seq[*mark] {
	return func(yield func(*mark) bool) {
		if !yield(&r.first) || r.rest == nil {
			return
		}
		for i := range *r.rest {
			if !yield(&(*r.rest)[i]) {
				return
			}
		}
	}
}

// shard is a part of the resources: a table with open addressing and linear probing.
type shard struct {
	mu     sync.Mutex
	slots  []uint64                  // hash<<32 | place+1, or 0; a power of two of them; guarded by mu, as all here
	used   int                       // slots that are not 0
	places [][]resource              // they never move
	next   uint32                    // the place after all that were ever used
	free   []uint32                  // places of resources that are gone
	_      [128 - 8 - 24*3 - 16]byte // the next shard's mutex is in another line
}

// Places lie in pieces: the first has 32, each further one twice as many until it has 1,024,
// and from then on as many. A small ledger takes little room, and a large one few pointers.
const (
	smallest, largest = 32, 1024
	inGrowing         = largest - smallest // places in the pieces below the largest
)

// piece returns in which piece a place is, and where in it.
func piece(place uint32) (n, at uint32) {
	if place >= inGrowing {
		place -= inGrowing
		return 5 + place/largest, place % largest
	}
	n = uint32(bits.Len32(place/smallest+1)) - 1
	return n, place + smallest - smallest<<n
}

func (s *shard) at(place uint32) *resource {
	n, at := piece(place)
	return &s.places[n][at]
}

// find returns the resource of this hash and name; nil if there is none. Names are
// compared: two may have one hash.
func (s *shard) find(hash uint32, name string) *resource {
	if i, ok := s.slot(hash, name); ok {
		return s.at(uint32(s.slots[i]) - 1)
	}
	return nil
}

func (s *shard) slot(hash uint32, name string) (uint32, bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	mask := uint32(len(s.slots) - 1)
	for i := hash & mask; s.slots[i] != 0; i = (i + 1) & mask {
		if uint32(s.slots[i]>>32) == hash && s.at(uint32(s.slots[i])-1).name == name {
			return i, true
		}
	}
	return 0, false
}

// add returns a new resource, which the shard does not have yet, with its first mark.
func (s *shard) add(hash uint32, name string, first mark) {
	if 4*(s.used+1) > 3*len(s.slots) {
		before := s.slots
		s.slots = make([]uint64, max(8, 2*len(before)))
		for _, slot := range before {
			if slot != 0 {
				s.put(slot)
			}
		}
	}
	var place uint32
	if last := len(s.free) - 1; last >= 0 {
		place, s.free = s.free[last], s.free[:last]
	} else {
		if n, at := piece(s.next); at == 0 {
			s.places = append(s.places, make([]resource, smallest<<min(n, 5)))
		}
		place = s.next
		s.next++
	}
	*s.at(place) = resource{name: name, first: first}
	s.put(uint64(hash)<<32 | uint64(place+1))
	s.used++
}

// put fills a slot that is free.
func (s *shard) put(slot uint64) {
	mask := uint32(len(s.slots) - 1)
	i := uint32(slot>>32) & mask
	for s.slots[i] != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = slot
}

// remove forgets a resource.
func (s *shard) remove(hash uint32, name string) {
	hole, ok := s.slot(hash, name)
	if !ok {
		return
	}
	place := uint32(s.slots[hole]) - 1
	*s.at(place) = resource{}
	s.free = append(s.free, place)
	s.used--
	// Those that were put behind it because this slot was taken move up, so that they are found.
	mask := uint32(len(s.slots) - 1)
	for i := (hole + 1) & mask; s.slots[i] != 0; i = (i + 1) & mask {
		wanted := uint32(s.slots[i]>>32) & mask
		if (i-wanted)&mask >= (i-hole)&mask {
			s.slots[hole], hole = s.slots[i], i
		}
	}
	s.slots[hole] = 0
}

func (s *shard) all() iter.Seq[*resource] {
	return func(yield func(*resource) bool) {
		for _, slot := range s.slots {
			if slot != 0 && !yield(s.at(uint32(slot)-1)) {
				return
			}
		}
	}
}

// names gives each name a number, from 1, and keeps what is known of it. Names are never
// forgotten. By its number one is read without a lock; numbers are guarded by Ledger.mu.
type names[T any] struct {
	numbers map[string]uint32
	known   atomic.Pointer[[]*named[T]] // the one of number n at n-1; it grows at its end
}

type named[T any] struct {
	name string
	is   T
}

// number returns the number of a name; 0 if there is none, or it is "".
func (n *names[T]) number(name string) uint32 { return n.numbers[name] }

// add returns the number of a name, which has one from now on; of "" it is 0.
func (n *names[T]) add(name string) uint32 {
	if name == "" {
		return 0
	}
	if number := n.numbers[name]; number != 0 {
		return number
	}
	if n.numbers == nil {
		n.numbers = make(map[string]uint32)
	}
	var known []*named[T]
	if before := n.known.Load(); before != nil {
		known = *before
	}
	known = append(known, &named[T]{name: name})
	n.known.Store(&known)
	n.numbers[name] = uint32(len(known))
	return uint32(len(known))
}

// at returns what is known under a number; nil under 0.
func (n *names[T]) at(number uint32) *T {
	if number == 0 {
		return nil
	}
	return &(*n.known.Load())[number-1].is
}

func (n *names[T]) nameOf(number uint32) string {
	if number == 0 {
		return ""
	}
	return (*n.known.Load())[number-1].name
}

func (n *names[T]) all() iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) {
		for name, number := range n.numbers {
			if !yield(name, n.at(number)) {
				return
			}
		}
	}
}

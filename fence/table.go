package fence

import (
	"iter"
	"sync"
	"sync/atomic"
)

// The check of a ledger with many pairs is mostly a wait for memory, so what it reads is
// little, and lies together: a byte of a table that stays in the cache, the resource with its
// first mark, which is one line of it, and the name that has to be the same. Names of holders
// and domains, of which there are fewer, are kept once.

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

// resource is what is known of one, in 64 bytes. It has a name and a mark at least.
type resource struct {
	name  string
	first mark
	hash  uint32 // slotHash of it: its name is not looked at where a table grows
	rest  uint32 // n for the marks of other holders in shard.rest at n-1; 0: there are none
}

// shard is a part of the resources: a table with open addressing and linear probing. Of each
// slot there is a tag, a byte of the hash, so that those that a search passes by are bytes of
// one line, and the first resource that it looks at is nearly always the one.
type shard struct {
	mu    sync.Mutex
	tags  []uint8                  // of the slots, 0 where one is free; guarded by mu, as all here
	slots []resource               // as many
	used  int                      // slots that are not free
	rest  [][]mark                 // of resources that have marks of several holders, all but the first
	free  []uint32                 // places in rest that no resource has any more
	_     [128 - 8 - 24*4 - 8]byte // the next shard's mutex is in another line
}

// The highest bits of a hash tell shards apart, those below them slots, and the lowest are
// the tag.
const shardBits = 6

func shardHash(hash uint64) int   { return int(hash >> (64 - shardBits)) }
func slotHash(hash uint64) uint32 { return uint32(hash >> (32 - shardBits)) }
func tagOf(hash uint64) uint8     { return max(1, uint8(hash)) }

// find returns the resource of this hash and name; nil if there is none. Names are
// compared: two may have one hash.
func (s *shard) find(hash uint64, name string) *resource {
	if i, ok := s.slot(hash, name); ok {
		return &s.slots[i]
	}
	return nil
}

func (s *shard) slot(hash uint64, name string) (int, bool) {
	tags := s.tags
	if len(tags) == 0 {
		return 0, false
	}
	for i, tag := s.home(slotHash(hash)), tagOf(hash); tags[i] != 0; i = s.next(i) {
		if tags[i] == tag && s.slots[i].name == name {
			return i, true
		}
	}
	return 0, false
}

// home returns the slot in which a search begins.
func (s *shard) home(hash uint32) int { return int(uint64(hash) * uint64(len(s.tags)) >> 32) }

func (s *shard) next(i int) int {
	if i++; i < len(s.tags) {
		return i
	}
	return 0
}

// add puts a new resource, which the shard does not have yet, there with its first mark.
func (s *shard) add(hash uint64, name string, first mark) {
	if 8*(s.used+1) > 7*len(s.tags) {
		s.grow()
	}
	s.put(tagOf(hash), resource{name: name, first: first, hash: slotHash(hash)})
	s.used++
}

// grow makes a quarter more slots. If it doubled them, half of them would be free, and a
// slot is large.
func (s *shard) grow() {
	tags, slots := s.tags, s.slots
	n := max(8, len(slots)+len(slots)/4)
	s.tags, s.slots = make([]uint8, n), make([]resource, n)
	for i, tag := range tags {
		if tag != 0 {
			s.put(tag, slots[i])
		}
	}
}

// put fills a slot that is free.
func (s *shard) put(tag uint8, r resource) {
	i := s.home(r.hash)
	for s.tags[i] != 0 {
		i = s.next(i)
	}
	s.tags[i], s.slots[i] = tag, r
}

// remove forgets a resource.
func (s *shard) remove(hash uint64, name string) {
	hole, ok := s.slot(hash, name)
	if !ok {
		return
	}
	s.used--
	if rest := s.slots[hole].rest; rest != 0 {
		s.rest[rest-1] = nil
		s.free = append(s.free, rest)
	}
	// Those that were put behind it because this slot was taken move up, so that they are found.
	behind := func(i, slot int) int { return (i - slot + len(s.tags)) % len(s.tags) }
	for i := s.next(hole); s.tags[i] != 0; i = s.next(i) {
		if wanted := s.home(s.slots[i].hash); behind(i, wanted) >= behind(i, hole) {
			s.tags[hole], s.slots[hole] = s.tags[i], s.slots[i]
			hole = i
		}
	}
	s.tags[hole], s.slots[hole] = 0, resource{}
}

// addMark gives a resource the mark of one more holder.
func (s *shard) addMark(r *resource, m mark) {
	if r.rest == 0 {
		if last := len(s.free) - 1; last >= 0 {
			r.rest, s.free = s.free[last], s.free[:last]
		} else {
			s.rest = append(s.rest, nil)
			r.rest = uint32(len(s.rest))
		}
	}
	s.rest[r.rest-1] = append(s.rest[r.rest-1], m)
}

// others returns the marks of a resource but its first.
func (s *shard) others(r *resource) []mark {
	if r.rest == 0 {
		return nil
	}
	return s.rest[r.rest-1]
}

func (s *shard) marks(r *resource) iter.Seq[*mark] {
	return func(yield func(*mark) bool) {
		if !yield(&r.first) {
			return
		}
		others := s.others(r)
		for i := range others {
			if !yield(&others[i]) {
				return
			}
		}
	}
}

func (s *shard) all() iter.Seq[*resource] {
	return func(yield func(*resource) bool) {
		for i, tag := range s.tags {
			if tag != 0 && !yield(&s.slots[i]) {
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

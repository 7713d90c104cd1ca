package fence

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/signed"
)

// The check of a ledger with many pairs is mostly a wait for memory. So a resource is one line
// of it, with its name and its first mark, and what leads there is a byte of a table that stays
// in the cache if it can. And a check is few instructions: the processor, which waits for a
// resource, has begun to wait for the next one meanwhile. Names of holders and domains, of
// which there are fewer, are kept once.

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

// admitted sets the mark to an attempt.
func (m *mark) admitted(t *Token) { m.set(Mark{t.Epoch, t.Sequence, t.Digest}) }

// below reports whether an attempt of this number comes after the mark.
func (m *mark) below(epoch Epoch, sequence uint64) bool {
	return epoch > m.epoch || epoch == m.epoch && sequence > m.sequence
}

// raise is set, unless the mark would go down.
func (m *mark) raise(is Mark) {
	if m.below(is.Epoch, is.Sequence) {
		m.set(is)
	}
}

// resource is what is known of one, in 64 bytes. It has a name and a mark at least.
type resource struct {
	key   key
	first mark
}

// key is the name of a resource, so that it is compared in three words. Of one of 16 to 23
// bytes they are its first 8, the 8 after them, and its last 7 with the length above them; of
// one of 8 to 15 bytes its first 8, its last 8, and the length; of a shorter one its bytes, 0,
// and the length. A longer one has no room: it is a hash, where it is in shard.long, and its
// length and isLong.
type key struct{ a, b, c uint64 }

const (
	inKey  = 23 // bytes for which there is room
	isLong = 0xff << 56
)

func (k key) long() bool { return k.c >= isLong }

// length is that of a long name.
func (k key) length() uint64 { return k.c &^ isLong }

// short returns the name that is in the key.
func (k key) short() string {
	var b [24]byte
	n, word := k.c>>56, binary.LittleEndian.PutUint64
	switch {
	case n >= 16:
		word(b[n-8:], k.c<<8)
		word(b[8:], k.b)
	case n >= 8:
		word(b[n-8:], k.b)
	}
	word(b[:], k.a)
	return string(b[:n])
}

// wanted is a resource that a shard is asked for.
type wanted struct {
	key  key // without b if it is long
	hash uint64
	name string
}

// hashing has the secret of a ledger's hashes: nobody can choose names that have one.
type hashing struct {
	a, b, c uint64
	long    maphash.Seed
}

func newHashing() hashing {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	word := binary.LittleEndian.Uint64
	return hashing{word(b[:]), word(b[8:]), word(b[16:]), maphash.MakeSeed()}
}

// want sets w to what a resource is found by.
func (h *hashing) want(w *wanted, name string) {
	k, n := &w.key, uint64(len(name))
	w.name, k.b, k.c = name, 0, n<<56
	switch {
	case n > inKey:
		// One above MaxName is malformed, and is not read to its end.
		k.a, k.c = maphash.String(h.long, name[:min(n, signed.MaxName)]), isLong|n
	case n >= 16:
		k.a, k.b, k.c = word(name), word(name[8:]), word(name[n-8:])>>8|n<<56
	case n >= 8:
		k.a, k.b = word(name), word(name[n-8:])
	default:
		k.a = 0
		for i := range n {
			k.a |= uint64(name[i]) << (8 * i)
		}
	}
	w.hash = h.hash(*k)
}

// hash returns the hash of a key: its words are mixed in the way of wyhash, as maps of Go do
// where a processor has nothing better.
func (h *hashing) hash(k key) uint64 {
	if k.long() {
		return k.a
	}
	return mix(k.c^h.c, mix(k.a^h.a, k.b^h.b))
}

func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// word returns the first 8 bytes of s.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// shard is a part of the resources: a table with open addressing, in groups of eight slots.
// Of each slot there is a tag, a byte of the hash, so that a search looks at those of a group
// at once, and the first resource that it looks at is nearly always the one. One that found
// its group full is in the next that was not.
type shard struct {
	mu     sync.Mutex
	tags   []uint64                   // of the groups, a byte for each slot, 0 where it is free; guarded by mu, as all here
	slots  []resource                 // eight times as many
	used   int                        // slots that are not free
	others map[string][]mark          // of resources that have marks of several holders, all but the first
	long   []byte                     // the names that have no room in their keys
	gone   int                        // bytes of long that are of no resource any more
	secret *hashing                   // the ledger's
	_      [128 - 8 - 24*3 - 8*4]byte // the next shard's mutex is in another line
}

// The highest bits of a hash tell shards apart, those below them groups, and the lowest are
// the tag.
const shardBits = 6

func groupHash(hash uint64) uint64 { return hash << shardBits >> 32 }
func tagOf(hash uint64) uint64     { return max(1, hash&0xff) }

// home returns the group in which a search begins.
func (s *shard) home(hash uint64) int { return int(groupHash(hash) * uint64(len(s.tags)) >> 32) }

func (s *shard) next(g int) int {
	if g++; g < len(s.tags) {
		return g
	}
	return 0
}

const (
	eachByte = 0x0101010101010101
	low7     = 0x7f * eachByte
)

// zeros has the highest bit of each byte of x set that is zero, and no other.
func zeros(x uint64) uint64 { return ^(x&low7 + low7 | x | low7) }

// firstOf returns which byte of zeros is the first.
func firstOf(zeros uint64) int { return bits.TrailingZeros64(zeros) / 8 }

// find returns a resource; nil if there is none.
func (s *shard) find(w *wanted) *resource {
	r, _ := s.slot(w)
	return r
}

func (s *shard) slot(w *wanted) (*resource, int) {
	tags, wants := s.tags, tagOf(w.hash)*eachByte
	for g := s.home(w.hash); g < len(tags); g = s.next(g) {
		for same := zeros(tags[g] ^ wants); same != 0; same &= same - 1 {
			i := 8*g + firstOf(same)
			if r := &s.slots[i]; s.is(r, w) {
				return r, i
			}
		}
		if zeros(tags[g]) != 0 {
			break
		}
	}
	return nil, 0
}

// is reports whether r is wanted. Names are compared: two may have one hash.
func (s *shard) is(r *resource, w *wanted) bool {
	if !w.key.long() {
		return r.key == w.key
	}
	return r.key.a == w.key.a && r.key.c == w.key.c && string(s.text(r)) == w.name
}

// text returns a long name.
func (s *shard) text(r *resource) []byte { return s.long[r.key.b:][:r.key.length()] }

func (s *shard) name(r *resource) string {
	if r.key.long() {
		return string(s.text(r))
	}
	return r.key.short()
}

// add puts a new resource, which the shard does not have yet, there with its first mark.
func (s *shard) add(w *wanted, first mark) {
	if s.used++; s.used > 7*len(s.tags) {
		s.grow()
	}
	r := resource{w.key, first}
	if r.key.long() {
		r.key.b = s.keep(w.name)
	}
	s.put(&r)
}

// keep returns where a long name is from now on.
func (s *shard) keep(name string) uint64 {
	if free := cap(s.long) - len(s.long); free < len(name) {
		// Append would take a quarter more.
		s.long = append(make([]byte, 0, len(s.long)+len(s.long)/16+signed.MaxName), s.long...)
	}
	s.long = append(s.long, name...)
	return uint64(len(s.long) - len(name))
}

// grow makes a quarter more groups. If it doubled them, half of the slots would be free, and a
// slot is large.
func (s *shard) grow() {
	tags, slots := s.tags, s.slots
	n := len(tags) + max(1, len(tags)/4)
	s.tags, s.slots = make([]uint64, n), make([]resource, 8*n)
	for i := range slots {
		if tagAt(tags, i) != 0 {
			s.put(&slots[i])
		}
	}
}

// tagAt returns the tag of a slot.
func tagAt(tags []uint64, i int) uint64 { return tags[i/8] >> (i % 8 * 8) & 0xff }

// fill sets a slot and its tag.
func (s *shard) fill(i int, tag uint64, r resource) {
	at := i % 8 * 8
	s.tags[i/8], s.slots[i] = s.tags[i/8]&^(0xff<<at)|tag<<at, r
}

// put fills a slot that is free.
func (s *shard) put(r *resource) {
	hash := s.secret.hash(r.key)
	g := s.home(hash)
	for zeros(s.tags[g]) == 0 {
		g = s.next(g)
	}
	s.fill(8*g+firstOf(zeros(s.tags[g])), tagOf(hash), *r)
}

// remove forgets a resource.
func (s *shard) remove(w *wanted) {
	r, hole := s.slot(w)
	if r == nil {
		return
	}
	s.used--
	delete(s.others, w.name)
	if w.key.long() {
		s.gone += len(w.name)
	}
	// One of those that are behind it because its group was full moves up, so that it is found;
	// and then one that is behind that.
	full := func(g int) bool { return zeros(s.tags[g]) == 0 }
	for g, more := hole/8, full(hole/8); more; {
		g = s.next(g)
		more = full(g)
		for i := 8 * g; i < 8*g+8; i++ {
			home := s.home(s.secret.hash(s.slots[i].key))
			if tagAt(s.tags, i) != 0 && s.behind(home, g) >= s.behind(hole/8, g) {
				s.fill(hole, tagAt(s.tags, i), s.slots[i])
				hole = i
				break
			}
		}
	}
	s.fill(hole, 0, resource{})
	s.pack()
}

// behind returns how many groups to is behind from.
func (s *shard) behind(from, to int) int { return (to - from + len(s.tags)) % len(s.tags) }

// pack drops the long names that are of no resource any more, once they are an eighth.
func (s *shard) pack() {
	if 8*s.gone <= len(s.long) {
		return
	}
	long := make([]byte, 0, len(s.long)-s.gone)
	for r := range s.all() {
		if r.key.long() {
			text := s.text(r)
			r.key.b, long = uint64(len(long)), append(long, text...)
		}
	}
	s.long, s.gone = long, 0
}

// addMark gives a resource the mark of one more holder.
func (s *shard) addMark(name string, m mark) {
	if s.others == nil {
		s.others = make(map[string][]mark)
	}
	s.others[name] = append(s.others[name], m)
}

// marks are those of a resource of this name.
func (s *shard) marks(r *resource, name string) iter.Seq[*mark] {
	return func(yield func(*mark) bool) {
		if !yield(&r.first) {
			return
		}
		others := s.others[name]
		for i := range others {
			if !yield(&others[i]) {
				return
			}
		}
	}
}

func (s *shard) all() iter.Seq[*resource] {
	return func(yield func(*resource) bool) {
		for i := range s.slots {
			if tagAt(s.tags, i) != 0 && !yield(&s.slots[i]) {
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
	return &n.named(number).is
}

// named returns what has a number, which is not 0.
func (n *names[T]) named(number uint32) *named[T] { return (*n.known.Load())[number-1] }

func (n *names[T]) nameOf(number uint32) string {
	if number == 0 {
		return ""
	}
	return n.named(number).name
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

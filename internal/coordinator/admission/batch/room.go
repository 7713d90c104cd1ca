package batch

// A Size is how many calls the next batch of a line has.
type Size struct{ most, now int }

// NewSize returns the size of a line's first batch.
func NewSize(most int) Size { return Size{most, most} }

// Next returns how many calls the next batch has at most.
func (s Size) Next() int { return s.now }

// After returns the size after a batch of n calls. One that was spoiled by a call that
// nobody can name is halved; after any other the size grows back.
func (s Size) After(n int, spoiled bool) Size {
	if spoiled {
		s.now = max(1, min(n, s.now)/2)
	} else {
		s.now = min(s.most, 2*s.now)
	}
	return s
}

// A Room is what a transaction has room for. Each of those that share it has keys for
// itself alone: two that have one in common go one after the other.
type Room struct {
	left  int
	owner map[string]int
}

// NewRoom returns the room for so many operations.
func NewRoom(ops int) *Room { return &Room{ops, make(map[string]int)} }

// Take reserves room for the operations of one caller, who owns the given keys, and reports
// whether there was enough.
func (r *Room) Take(who, ops int, keys []string) bool {
	if ops > r.left {
		return false
	}
	for _, k := range keys {
		if _, ok := r.owner[k]; ok {
			return false
		}
	}
	for _, k := range keys {
		r.owner[k] = who
	}
	r.left -= ops
	return true
}

// Owner returns whose a key is.
func (r *Room) Owner(key string) (who int, ok bool) {
	who, ok = r.owner[key]
	return who, ok
}

package mesh

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Limits bound a limiter.
type Limits struct {
	// Slots are how many may stand in it at once. Zero or less: one.
	Slots int
	// Bytes bound what they hold together. Zero: nobody counts.
	Bytes int64
	// Newest has the newest give way, and not the oldest: for who waits for a turn, and
	// comes nearer to it by waiting.
	Newest bool
	// Kept are how many of the slots may be of those who do not give way. Zero: three
	// quarters, so that some room is always one that can be had.
	Kept int
}

// Limiter is a bounded number of slots that are given up to newcomers.
//
// Nobody is refused for being late: when it is full, one of those in it gives way. It is one of the
// network with the most slots, so that a crowd pushes out itself, and who comes from elsewhere finds
// room. An address is an IPv4 address or the /64 of an IPv6 address, which is what one customer has;
// a network a /24 or /48.
type Limiter struct {
	limits Limits

	mu     sync.Mutex
	slots  []*Slot           // oldest first; guarded by mu
	groups map[string]*group // by address and by network, none of them empty; guarded by mu
	bytes  int64             // guarded by mu
	kept   int               // guarded by mu
}

// group are the slots of one address, or of one network.
type group struct {
	name  string
	n     int   // guarded by Limiter.mu
	bytes int64 // guarded by Limiter.mu
}

// Slot is one slot of a limiter.
type Slot struct {
	limiter         *Limiter
	address, around *group
	yield           func()
	bytes           int64 // guarded by limiter.mu
	spoke, kept     bool  // guarded by limiter.mu
	left            bool  // guarded by limiter.mu
}

// NewLimiter returns an empty one.
func NewLimiter(l Limits) *Limiter {
	l.Slots = max(l.Slots, 1)
	if l.Kept == 0 {
		l.Kept = l.Slots * 3 / 4
	}
	return &Limiter{limits: l, groups: make(map[string]*group)}
}

// Enter takes a slot for who comes from address, which [Address] returned. yield is
// called, without a lock and at most once, if the slot is to be given up; who gets it
// then leaves as ever. It is nil, false if nobody gives way.
func (l *Limiter) Enter(address string, yield func()) (*Slot, bool) {
	l.mu.Lock()
	p := &Slot{limiter: l, address: l.group(address), around: l.group("network " + Network(address)), yield: yield}
	l.slots = append(l.slots, p)
	var out *Slot
	if len(l.slots) > l.limits.Slots {
		if out = l.out(p, func(g *group) int64 { return int64(g.n) }); out == nil {
			out = p
		}
		l.drop(out)
	}
	l.mu.Unlock()
	switch out {
	case nil:
	case p:
		return nil, false
	default:
		out.yield()
	}
	return p, true
}

// group counts one more slot of name. The caller holds mu.
func (l *Limiter) group(name string) *group {
	g := l.groups[name]
	if g == nil {
		g = &group{name: name}
		l.groups[name] = g
	}
	g.n++
	return g
}

// out returns who gives way to newest: of the network with the most, of the address
// there with the most, who said nothing before who did, the oldest first, or the newest.
// Nil: nobody does. The caller holds mu.
func (l *Limiter) out(newest *Slot, most func(*group) int64) *Slot {
	var out *Slot
	for _, p := range l.slots {
		if p.kept || p == newest && !l.limits.Newest {
			continue
		}
		if out == nil || before(p, out, most) || l.limits.Newest && !before(out, p, most) {
			out = p
		}
	}
	return out
}

// before reports whether p gives way before q, whoever came first.
func before(p, q *Slot, most func(*group) int64) bool {
	if a, b := most(p.around), most(q.around); a != b {
		return a > b
	}
	if a, b := most(p.address), most(q.address); a != b {
		return a > b
	}
	return !p.spoke && q.spoke
}

// drop takes a slot away. The caller holds mu.
func (l *Limiter) drop(p *Slot) {
	i := slices.Index(l.slots, p)
	l.slots = slices.Delete(l.slots, i, i+1)
	for _, g := range []*group{p.address, p.around} {
		g.bytes -= p.bytes
		if g.n--; g.n == 0 {
			delete(l.groups, g.name)
		}
	}
	if p.kept {
		l.kept--
	}
	l.bytes -= p.bytes
	p.left = true
}

// Len returns how many slots are taken, and how many bytes are held in them.
func (l *Limiter) Len() (slots int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.slots), l.bytes
}

// Spoke notes that something came from who has the slot: those from whom nothing came
// give way first.
func (p *Slot) Spoke() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	p.spoke = true
}

// Hold counts n more bytes, and has those give way who hold the most of the network that
// holds the most while all together hold too many. It reports whether p still stands.
func (p *Slot) Hold(n int64) bool {
	l := p.limiter
	l.mu.Lock()
	if p.left {
		l.mu.Unlock()
		return false
	}
	for _, b := range []*int64{&p.bytes, &p.address.bytes, &p.around.bytes, &l.bytes} {
		*b += n
	}
	var out []*Slot
	for l.limits.Bytes > 0 && l.bytes > l.limits.Bytes {
		worst := l.heaviest()
		if worst == nil {
			worst = p // all others are kept, and so may p be: what is too much is too much
		}
		l.drop(worst)
		out = append(out, worst)
	}
	stands := !p.left
	l.mu.Unlock()
	for _, w := range out {
		if w != p {
			w.yield()
		}
	}
	return stands
}

// heaviest returns who gives way for what it holds. The caller holds mu.
func (l *Limiter) heaviest() *Slot {
	var out *Slot
	for _, p := range l.slots {
		if p.kept || p.bytes == 0 {
			continue
		}
		switch {
		case out == nil, p.around.bytes > out.around.bytes:
			out = p
		case p.around.bytes == out.around.bytes && p.bytes > out.bytes:
			out = p
		}
	}
	return out
}

// Keep has p give way no more. It is false if p is gone, or as many are kept as may be.
func (p *Slot) Keep() bool {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case p.left:
		return false
	case p.kept:
		return true
	case l.kept >= l.limits.Kept:
		return false
	}
	p.kept = true
	l.kept++
	return true
}

// Release ends what Keep began.
func (p *Slot) Release() {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.kept && !p.left {
		p.kept = false
		l.kept--
	}
}

// Leave gives the slot back. It may be called more than once.
func (p *Slot) Leave() {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.left {
		l.drop(p)
	}
}

// Address returns what of a remote address, "HOST:PORT" or "HOST", counts as one
// address.
func Address(remote string) string {
	host := remote
	if at, err := netip.ParseAddrPort(remote); err == nil {
		host = at.Addr().String()
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

// Network returns the network that an address belongs to.
func Network(address string) string {
	if p, err := netip.ParsePrefix(address); err == nil {
		return netip.PrefixFrom(p.Addr(), 48).Masked().String()
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return netip.PrefixFrom(ip, 24).Masked().String()
}

// Package crowd decides who gives way when more have come than there is room for.
//
// Nobody is refused for being late: a line that is full has one of those in it give
// way. It is one of the network with the most places, so that a crowd pushes out
// itself, and who comes from elsewhere finds room. An address is an IPv4 address or
// the /64 of an IPv6 address, which is what one customer has; a network a /24 or /48.
package crowd

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Limits bound a line.
type Limits struct {
	// Places are how many may stand in it at once. Zero or less: one.
	Places int
	// Bytes bound what they hold together. Zero: nobody counts.
	Bytes int64
	// Newest has the newest give way, and not the oldest: for who waits for a turn, and
	// comes nearer to it by waiting.
	Newest bool
	// Kept are how many of the places may be of those who do not give way. Zero: three
	// quarters, so that some room is always one that can be had.
	Kept int
}

// Line is a bounded number of places that are given up to newcomers.
type Line struct {
	limits Limits

	mu     sync.Mutex
	places []*Place          // oldest first; guarded by mu
	groups map[string]*group // by address and by network, none of them empty; guarded by mu
	bytes  int64             // guarded by mu
	kept   int               // guarded by mu
}

// group are the places of one address, or of one network.
type group struct {
	name  string
	n     int   // guarded by Line.mu
	bytes int64 // guarded by Line.mu
}

// Place is one place in a line.
type Place struct {
	line            *Line
	address, around *group
	yield           func()
	bytes           int64 // guarded by line.mu
	spoke, kept     bool  // guarded by line.mu
	left            bool  // guarded by line.mu
}

// NewLine returns an empty line.
func NewLine(l Limits) *Line {
	l.Places = max(l.Places, 1)
	if l.Kept == 0 {
		l.Kept = l.Places * 3 / 4
	}
	return &Line{limits: l, groups: make(map[string]*group)}
}

// Enter takes a place for who comes from address, which [Address] returned. yield is
// called, without a lock and at most once, if the place is to be given up; who gets it
// then leaves as ever. It is nil, false if nobody gives way.
func (l *Line) Enter(address string, yield func()) (*Place, bool) {
	l.mu.Lock()
	p := &Place{line: l, address: l.group(address), around: l.group("network " + Network(address)), yield: yield}
	l.places = append(l.places, p)
	var out *Place
	if len(l.places) > l.limits.Places {
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

// group counts one more place of name. The caller holds mu.
func (l *Line) group(name string) *group {
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
func (l *Line) out(newest *Place, most func(*group) int64) *Place {
	var out *Place
	for _, p := range l.places {
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
func before(p, q *Place, most func(*group) int64) bool {
	if a, b := most(p.around), most(q.around); a != b {
		return a > b
	}
	if a, b := most(p.address), most(q.address); a != b {
		return a > b
	}
	return !p.spoke && q.spoke
}

// drop takes a place away. The caller holds mu.
func (l *Line) drop(p *Place) {
	i := slices.Index(l.places, p)
	l.places = slices.Delete(l.places, i, i+1)
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

// Len returns how many places are taken, and how many bytes are held in them.
func (l *Line) Len() (places int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.places), l.bytes
}

// Spoke notes that something came from who has the place: those from whom nothing came
// give way first.
func (p *Place) Spoke() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	p.spoke = true
}

// Hold counts n more bytes, and has those give way who hold the most of the network that
// holds the most while all together hold too many. It reports whether p still stands.
func (p *Place) Hold(n int64) bool {
	l := p.line
	l.mu.Lock()
	if p.left {
		l.mu.Unlock()
		return false
	}
	for _, b := range []*int64{&p.bytes, &p.address.bytes, &p.around.bytes, &l.bytes} {
		*b += n
	}
	var out []*Place
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
func (l *Line) heaviest() *Place {
	var out *Place
	for _, p := range l.places {
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
func (p *Place) Keep() bool {
	l := p.line
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
func (p *Place) Release() {
	l := p.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.kept && !p.left {
		p.kept = false
		l.kept--
	}
}

// Leave gives the place back. It may be called more than once.
func (p *Place) Leave() {
	l := p.line
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

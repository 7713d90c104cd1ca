package mesh

import "net"

// SourceOf is what connections from an address are counted by.
var SourceOf = sourceOf

// Live returns how many connections stand.
func (g *Guard) Live() int {
	g.live.mu.Lock()
	defer g.live.mu.Unlock()
	return len(g.live.conns)
}

// Unwatched has the guard watch no connections: what it refuses then, it refuses call by call.
func (g *Guard) Unwatched() {
	g.live.mu.Lock()
	defer g.live.mu.Unlock()
	g.live.watched = true
}

// StandForever registers a connection that never ends by itself, as one on a unix socket.
func (g *Guard) StandForever(conn net.Conn) net.Conn {
	c := &liveConn{Conn: conn, raw: conn}
	c.read.Store(true)
	g.stand(&Info{conn: c})
	return c
}

// Taken returns how many slots are taken and how many holders are remembered.
func (g *Guard) Taken() (handshakes, conns, strangers, holders int) {
	count := func(p *slots) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		holders += len(p.taking)
		return p.taken
	}
	return count(g.handshakes), count(g.conns), count(g.strangers), holders
}

// Running returns how many calls are counted on c.
func (c *Conn) Running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, g := range append(c.retired, c.current) {
		if g != nil {
			n += g.calls
		}
	}
	return n
}

// Reasons lists the reasons of the table.
func Reasons() []Reason {
	var rs []Reason
	for _, r := range reasons {
		rs = append(rs, r.Reason)
	}
	return rs
}

// Limits of a guard that has none of its own, and how an error of a peer is read.
const (
	DefaultGrace          = defaultGrace
	DefaultMaxPerIdentity = defaultMaxPerIdentity
	DefaultStrangerIdle   = defaultStrangerIdle
)

var FromStatus = fromStatus

// Shared is what runs the calls of one that a pool gave out.
func (c *Conn) Shared() *Conn { return c.shared }

// Len returns how many connections of a pool did not end.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// MaxPooled bounds a pool.
const MaxPooled = maxPooled

// Calls returns how many calls run, and for the end of how many of them somebody waits.
func (g *Guard) Calls() (all, waited int) {
	g.live.mu.Lock()
	defer g.live.mu.Unlock()
	for c := range g.live.conns {
		c.mu.Lock()
		all, waited = all+c.calls.all, waited+len(c.calls.waited)
		c.mu.Unlock()
	}
	return all, waited
}

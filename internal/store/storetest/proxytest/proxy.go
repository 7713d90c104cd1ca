// Package proxytest stands between a client and its server, and loses what
// passes, as networks do: requests, answers, both, or the connection.
package proxytest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Fate is what a proxy does to a connection once it sees its trigger.
type Fate int

// These are lost; a cut is seen by both ends, at once or when they speak.
const (
	Pass        Fate = iota
	LoseAnswer       // what the server says from then on
	LoseRequest      // what the client says, the trigger included
	LoseBoth         // what either says, the trigger included
	CutAfter         // the connection, once the request went through
	CutBefore        // the connection, with the request
	Hold             // nothing yet: what the client says, the trigger included, waits for Release; answers are lost
)

// Proxy passes connections on to a server. A connection that loses something
// stays open on both sides: neither hears that the other is gone.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*pair]struct{}                    // guarded by mu
	trigger []byte                                // what the client has to say; guarded by mu
	fate    Fate                                  // of the connection then; guarded by mu
	alone   bool                                  // all others lose everything then; guarded by mu
	spare   int                                   // times that the trigger is to be overlooked; guarded by mu
	filter  func(data []byte) (keep, rest []byte) // of what servers say; guarded by mu
	hole    bool                                  // new connections lose everything; guarded by mu
	closed  bool                                  // there are no new connections; guarded by mu
	said    time.Time                             // when a client last said something; guarded by mu
	held    *pair                                 // whose request waits; guarded by mu
	wait    []byte                                // that request; guarded by mu
}

type pair struct {
	client, server net.Conn
	mu             sync.Mutex
	toServer       bool // guarded by mu
	toClient       bool // guarded by mu
}

// New listens on loopback and passes connections on to target. It ends with the
// test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, conns: map[*pair]struct{}{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.CutAll()
		p.running.Wait()
	})
	return p
}

// Addr is where it listens, as HOST:PORT.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// When gives the next connection whose client says trigger the given fate, after
// it was said so many times; later ones pass.
func (p *Proxy) When(times int, trigger []byte, f Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare, p.trigger, p.fate, p.alone = times, bytes.Clone(trigger), f, false
}

// AloneWhen is When, and a BlackHole for all other connections from the moment on in
// which the trigger is said: a client that is quick to connect again says no more.
func (p *Proxy) AloneWhen(times int, trigger []byte, f Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare, p.trigger, p.fate, p.alone = times, bytes.Clone(trigger), f, true
}

// Pending reports whether the trigger was not seen yet.
func (p *Proxy) Pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fate != Pass
}

// Release lets the request pass that was held, and the connection from then on.
// Its maker may be gone.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		return
	}
	p.held.pass(true, true)
	p.held.server.Write(p.wait) // it may be too late for that
	p.held, p.wait = nil, nil
}

// Quiet returns for how long no client has said anything.
func (p *Proxy) Quiet() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.said)
}

// Filter takes parts out of what servers say from now on. It gets what was said
// along with the rest that it left the last time.
func (p *Proxy) Filter(f func(data []byte) (keep, rest []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = f
}

// Freeze makes all connections there are lose everything, both ways.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.pass(false, false)
	}
}

// BlackHole is Freeze, also for the connections to come, until Heal.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	p.hole = true
	p.mu.Unlock()
	p.Freeze()
}

// Refuse ends all connections there are, and those to come as soon as they are made,
// until Heal.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CutAll()
}

// Heal lets connections pass that are made from now on. Those that lost
// something are cut: what they carried cannot be made good.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.hole, p.closed = false, false
	p.mu.Unlock()
	p.CutAll()
}

// CutAll ends all connections there are.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.client.Close()
		c.server.Close()
		delete(p.conns, c)
	}
}

func (c *pair) pass(toServer, toClient bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.toServer, c.toClient = toServer, toClient
}

func (c *pair) passes() (toServer, toClient bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.toServer, c.toClient
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		c := &pair{client: client, server: server}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			client.Close()
			server.Close()
			continue
		}
		c.toServer, c.toClient = !p.hole, !p.hole
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.running.Go(func() { p.requests(c) })
		p.running.Go(func() { p.answers(c) })
	}
}

// ended closes the other side too, unless the connection loses what passes.
func (p *Proxy) ended(c *pair) {
	if a, b := c.passes(); a && b {
		c.client.Close()
		c.server.Close()
	}
}

func (p *Proxy) requests(c *pair) {
	defer p.ended(c)
	buf := make([]byte, 64<<10)
	var tail []byte
	for {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		tail = append(tail, buf[:n]...)
		p.mu.Lock()
		p.said = time.Now()
		f := Pass
		if p.fate != Pass && bytes.Contains(tail, p.trigger) {
			if p.spare--; p.spare < 0 {
				f, p.fate = p.fate, Pass
				if p.alone {
					p.hole = true
					for other := range p.conns {
						if other != c {
							other.pass(false, false)
						}
					}
				}
			}
			tail = tail[:0]
		}
		// Bytes that could be the beginning of the trigger.
		tail = append(tail[:0], tail[max(0, len(tail)-max(0, len(p.trigger)-1)):]...)
		p.mu.Unlock()
		switch f {
		case LoseRequest:
			c.pass(false, true)
		case LoseAnswer, CutAfter: // a server that is fast would answer before the cut
			c.pass(true, false)
		case LoseBoth:
			c.pass(false, false)
		case Hold:
			c.pass(false, false)
			p.mu.Lock()
			p.held, p.wait = c, bytes.Clone(buf[:n])
			p.mu.Unlock()
		case CutBefore:
			c.client.Close()
			c.server.Close()
			return
		}
		p.mu.Lock()
		waits := p.held == c
		if waits && f != Hold {
			p.wait = append(p.wait, buf[:n]...)
		}
		p.mu.Unlock()
		if waits {
			continue
		}
		if to, _ := c.passes(); to {
			if _, err := c.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if f == CutAfter {
			c.client.Close() // the server goes on
			return
		}
	}
}

func (p *Proxy) answers(c *pair) {
	defer p.ended(c)
	buf := make([]byte, 64<<10)
	var rest []byte // what a filter left
	for {
		n, err := c.server.Read(buf)
		if err != nil {
			return
		}
		out := buf[:n]
		p.mu.Lock()
		filter := p.filter
		p.mu.Unlock()
		if filter != nil {
			out, rest = filter(append(rest, out...))
		}
		if _, to := c.passes(); to {
			if _, err := c.client.Write(out); err != nil {
				return
			}
		}
	}
}

//go:build linux

package pgtest

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"testing"
)

// Fate is what a proxy does to a connection once it sees its trigger.
type Fate int

// What is lost; what is cut is seen by both ends, at once or when they speak.
const (
	Pass        Fate = iota
	LoseAnswer       // what the server says from then on
	LoseRequest      // what the client says, the trigger included
	LoseBoth         // what either says, the trigger included
	CutAfter         // the connection, once the request went through
	CutBefore        // the connection, with the request
)

// Proxy stands between a store and its server. A connection that loses something
// stays open on both sides: neither hears that the other is gone.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu       sync.Mutex
	conns    map[*pair]struct{} // guarded by mu
	trigger  []byte             // what the client has to say; guarded by mu
	fate     Fate               // of the connection then; guarded by mu
	spare    int                // times that the trigger is to be overlooked; guarded by mu
	deafened bool               // notices are dropped; guarded by mu
}

type pair struct {
	client, server net.Conn
	mu             sync.Mutex
	toServer       bool // guarded by mu
	toClient       bool // guarded by mu
}

// NewProxy listens on loopback and passes connections on to target. It ends with
// the test.
func NewProxy(t testing.TB, target string) *Proxy {
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

// When gives the next connection whose client executes the prepared statement
// the given fate; later ones pass.
func (p *Proxy) When(statement string, f Fate) { p.WhenAgain(0, statement, f) }

// WhenAgain is When, after so many times.
func (p *Proxy) WhenAgain(times int, statement string, f Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spare = times
	// As it stands in a Bind message, after the portal's empty name.
	p.trigger, p.fate = []byte("\x00"+statement+"\x00"), f
}

// Pending reports whether the trigger was not seen yet.
func (p *Proxy) Pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fate != Pass
}

// Deafen drops all notices from now on, as a pooler does.
func (p *Proxy) Deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deafened = true
}

// Freeze makes all connections there are lose everything, both ways.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.pass(false, false)
	}
}

// CutAll ends all connections there are.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.client.Close()
		c.server.Close()
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
		c := &pair{client: client, server: server, toServer: true, toClient: true}
		p.mu.Lock()
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
		f := Pass
		if p.fate != Pass && bytes.Contains(tail, p.trigger) {
			if p.spare--; p.spare < 0 {
				f, p.fate = p.fate, Pass
			}
		}
		p.mu.Unlock()
		// What could be the beginning of the trigger; no more, or one that was there
		// before would be taken for the next.
		tail = append(tail[:0], tail[max(0, len(tail)-len("\x00fealty_begin")):]...)
		switch f {
		case LoseRequest:
			c.pass(false, true)
		case LoseAnswer:
			c.pass(true, false)
		case LoseBoth:
			c.pass(false, false)
		case CutBefore:
			c.client.Close()
			c.server.Close()
			return
		}
		if to, _ := c.passes(); to {
			if _, err := c.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if f == CutAfter {
			c.client.Close()
			c.pass(true, false) // the server goes on
			return
		}
	}
}

func (p *Proxy) answers(c *pair) {
	defer p.ended(c)
	buf := make([]byte, 64<<10)
	var rest []byte // an incomplete message
	for {
		n, err := c.server.Read(buf)
		if err != nil {
			return
		}
		out := buf[:n]
		p.mu.Lock()
		deaf := p.deafened
		p.mu.Unlock()
		if deaf {
			out, rest = withoutNotices(append(rest, out...))
		}
		if _, to := c.passes(); to {
			if _, err := c.client.Write(out); err != nil {
				return
			}
		}
	}
}

// withoutNotices returns the whole messages of data but notices, and what is
// left. A message is a type, a length that counts itself, and the body.
func withoutNotices(data []byte) (keep, rest []byte) {
	for len(data) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(data[1:]))
		if len(data) < n {
			break
		}
		if data[0] != 'A' {
			keep = append(keep, data[:n]...)
		}
		data = data[n:]
	}
	return keep, bytes.Clone(data)
}

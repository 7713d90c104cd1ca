package coordinatortest

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// Network is what a fleet meets over in memory, where time can be virtual: a wait for it is one of a bubble of
// testing/synctest, whose time goes on. The zero value is ready.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener // guarded by mu
}

// pipeBytes is how much of a connection is under way in one direction.
const pipeBytes = 16 << 10

// listener is the end of one coordinator.
type listener struct {
	*bufconn.Listener
	on   *Network
	addr net.TCPAddr
	of   *Process
}

func (l *listener) Addr() net.Addr { return &l.addr }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, of: l.of, local: &l.addr, remote: clientAddr}, nil
}

func (l *listener) Close() error {
	l.on.mu.Lock()
	if l.on.listeners[l.addr.String()] == l {
		delete(l.on.listeners, l.addr.String())
	}
	l.on.mu.Unlock()
	return l.Listener.Close()
}

// listen takes the address of the n-th coordinator for a process.
func (n *Network) listen(number int, of *Process) *listener {
	l := &listener{Listener: bufconn.Listen(pipeBytes), on: n, addr: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7000 + number}, of: of}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	n.listeners[l.addr.String()] = l
	return l
}

var clientAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 9000}

// Dial connects a process to addr; nil stands for people and members.
func (n *Network) Dial(from *Process) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		n.mu.Lock()
		l := n.listeners[addr]
		n.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("connect to %s: nobody listens", addr)
		}
		c, err := l.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, of: from, local: clientAddr, remote: &l.addr}, nil
	}
}

// conn is one end of a connection. Data that comes in waits while its process stands still.
type conn struct {
	net.Conn
	of            *Process
	local, remote net.Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.StandStill()
	return n, err
}

// Nobody is a local socket that no operator is at. Make it with [NewNobody].
type Nobody struct{ done chan struct{} }

// NewNobody returns one that is open.
func NewNobody() Nobody { return Nobody{make(chan struct{})} }

// Accept waits until it is closed.
func (n Nobody) Accept() (net.Conn, error) { <-n.done; return nil, net.ErrClosed }

// Addr is no address.
func (n Nobody) Addr() net.Addr { return &net.UnixAddr{Name: "local", Net: "unix"} }

// Close ends Accept. It may be called again.
func (n Nobody) Close() error {
	select {
	case <-n.done:
	default:
		close(n.done)
	}
	return nil
}

// Process is one of a coordinator in memory. It can stand still, as one that SIGSTOP came to: nothing reaches it, and its calls
// of the store do not go on. Its clock does.
type Process struct {
	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on; nil: it goes; guarded by mu
}

// Freeze has the process stand still until [Process.Thaw].
func (p *Process) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Thaw has the process go on.
func (p *Process) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// StandStill waits until the process goes on.
func (p *Process) StandStill() {
	if p == nil {
		return
	}
	p.mu.Lock()
	frozen := p.frozen
	p.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

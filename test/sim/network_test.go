package sim_test

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// network is the listeners of a fleet, by address. All of it is in memory: a wait for it
// is one of the bubble, whose time goes on.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener // guarded by mu
}

// pipeBytes is how much of a connection is under way in one direction.
const pipeBytes = 16 << 10

// listener is the end of one coordinator.
type listener struct {
	*bufconn.Listener
	on   *network
	addr net.TCPAddr
	of   *process
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
func (n *network) listen(number int, of *process) *listener {
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

// dial connects a process to addr; nil stands for people and members.
func (n *network) dial(from *process) func(context.Context, string) (net.Conn, error) {
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
	of            *process
	local, remote net.Addr
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.standStill()
	return n, err
}

// nobody is the local socket of a coordinator that no operator is at.
type nobody struct{ done chan struct{} }

func (n nobody) Accept() (net.Conn, error) { <-n.done; return nil, net.ErrClosed }
func (n nobody) Addr() net.Addr            { return &net.UnixAddr{Name: "local", Net: "unix"} }

func (n nobody) Close() error {
	select {
	case <-n.done:
	default:
		close(n.done)
	}
	return nil
}

// process can stand still, as one that SIGSTOP came to: nothing reaches it, and its calls
// of the store do not go on. Its clock does.
type process struct {
	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on; nil: it goes; guarded by mu
}

func (p *process) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// standStill waits until the process goes on.
func (p *process) standStill() {
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

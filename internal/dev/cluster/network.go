package cluster

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// network is all that lies between one member and the coordinators.
type network struct {
	c *Cluster

	mu    sync.Mutex
	down  bool                  // nobody is reached, and the member is told so; guarded by mu
	holes map[string]bool       // coordinators to and from which everything is lost; guarded by mu
	conns map[*netConn]struct{} // open ones; guarded by mu
}

// networkOf returns the network of a member, which outlives its agent.
func (c *Cluster) networkOf(member string) *network {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.networks[member]
	if n == nil {
		n = &network{c: c, holes: make(map[string]bool), conns: make(map[*netConn]struct{})}
		c.networks[member] = n
	}
	return n
}

// dial connects the member to where the coordinator with this address is now: another
// program may have taken the old one while the cluster was down. It does not touch
// whom the member trusts.
func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	name := ""
	if r := n.c.at(addr); r != nil {
		name, addr = r.name, n.c.addressOf(r)
	}
	n.mu.Lock()
	down, hole := n.down, n.holes[name]
	n.mu.Unlock()
	switch {
	case down:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ENETUNREACH}
	case hole:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := &netConn{Conn: raw, n: n, to: name}
	n.mu.Lock()
	n.conns[conn] = struct{}{}
	n.mu.Unlock()
	return conn, nil
}

func (n *network) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}

// setDown ends what is open, and has nobody be reached until it is up again.
func (n *network) setDown(down bool) {
	n.mu.Lock()
	n.down = down
	n.mu.Unlock()
	if down {
		n.c.means.Note("", "a member's network cut in process")
		n.reset(func(*netConn) bool { return true })
	}
}

// setHole has everything between the member and a coordinator be lost without a word,
// as behind a cable that was pulled. Connections open meanwhile are of no use after.
func (n *network) setHole(coordinator string, hole bool) {
	n.mu.Lock()
	if hole {
		n.c.means.Note(coordinator, "lost to a member in process")
		n.holes[coordinator] = true
	} else {
		delete(n.holes, coordinator)
	}
	n.mu.Unlock()
	if !hole {
		n.reset(func(c *netConn) bool { return c.to == coordinator })
	}
}

// reset closes connections.
func (n *network) reset(which func(*netConn) bool) {
	n.mu.Lock()
	var ended []*netConn
	for conn := range n.conns {
		if which(conn) {
			ended = append(ended, conn)
		}
	}
	n.mu.Unlock()
	for _, conn := range ended {
		_ = conn.Close()
	}
}

// netConn is a connection of a member, through its network.
type netConn struct {
	net.Conn
	n  *network
	to string
}

func (c *netConn) lost() bool {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	return c.n.holes[c.to]
}

func (c *netConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.lost() {
			return n, err
		}
	}
}

func (c *netConn) Write(b []byte) (int, error) {
	if c.lost() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *netConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

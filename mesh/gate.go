package mesh

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/mesh"
)

// Limits that a [GateConfig] leaves at zero.
const (
	defaultMaxSockets        = 1024
	defaultMaxHellos         = 1024
	defaultGateHandshakes    = 256
	defaultHandshakeRate     = 500
	defaultHandshakeBurst    = 1000
	defaultGateStrangers     = 256
	defaultStrangerBytes     = 96 << 10
	defaultAllStrangersBytes = 8 << 20
)

// Times and bounds of a gate.
const (
	// helloTime bounds the header of a proxy and the first message of a handshake
	// together, turnTime the wait for the handshake to begin, and flightTime the rest.
	helloTime  = 2 * time.Second
	turnTime   = 3 * time.Second
	flightTime = 3 * time.Second
	// turnsPerCPU is how many handshakes compute at once.
	turnsPerCPU = 4
	// fileShare is the part of the files that a process may have open which sockets
	// take that said nothing yet.
	fileShare = 4
)

// GateConfig bounds what clients cost before they proved who they are. Where there is no
// room for one more, one of the network with the most connections gives way: an IPv4 /24
// or an IPv6 /48.
type GateConfig struct {
	// MaxSockets bounds the connections whose first message is not whole; it is at most
	// a quarter of the files that the process may have open. MaxHellos bounds those
	// that wait for their handshake to begin, and MaxHandshakes the handshakes under
	// way. Zero means 1,024, 1,024 and 256.
	MaxSockets, MaxHellos, MaxHandshakes int

	// HandshakeRate is the handshakes per second that clients of one network begin, and
	// HandshakeBurst how many at once. Zero means 500 and
	// 1,000.
	HandshakeRate, HandshakeBurst int

	// MaxStrangers bounds the connections that stand without a verified client
	// certificate. Zero means 256.
	MaxStrangers int

	// StrangerBytes bounds the headers and data that one of them sends of its calls that are
	// open, and AllStrangersBytes those of all of them. Zero means
	// 96 KiB and 8 MiB.
	StrangerBytes, AllStrangersBytes int64

	// Proxies are the addresses of load balancers. A connection from one of them has to begin
	// with a header of the PROXY protocol, version 2, which names the client behind it. From
	// any other address such a header is an error of the protocol.
	Proxies []netip.Prefix
}

// Gate makes the handshakes of a listener before any server sees its connections, and
// hands those with an accepted certificate to one server, and those of strangers to
// another, which can be given limits of its own. Both servers are made with the guard's
// [Guard.ServerOptions]. Put one before a server that strangers can reach and have to call,
// for example to join: without it a server bounds them by [GuardConfig] alone.
type Gate struct {
	guard    *Guard
	listener net.Listener
	cfg      GateConfig

	sockets, hellos, handshakes, strangers *mesh.Limiter

	begins  *mesh.RateLimiter
	turns   *mesh.FairQueue
	members *handed
	others  *handed
}

// NewGate returns a gate before l. It starts nothing.
func (g *Guard) NewGate(l net.Listener, cfg GateConfig) (*Gate, error) {
	if min(int64(min(cfg.MaxSockets, cfg.MaxHellos, cfg.MaxHandshakes, cfg.HandshakeRate, cfg.HandshakeBurst, cfg.MaxStrangers)),
		cfg.StrangerBytes, cfg.AllStrangersBytes) < 0 {
		return nil, errors.New("mesh: a limit of GateConfig is negative; leave it at zero for the default")
	}
	cfg.MaxSockets = cmp.Or(cfg.MaxSockets, defaultMaxSockets)
	if files := maxFiles(); files > 0 {
		cfg.MaxSockets = max(1, min(cfg.MaxSockets, files/fileShare))
	}
	cfg.MaxHellos = cmp.Or(cfg.MaxHellos, defaultMaxHellos)
	cfg.MaxHandshakes = cmp.Or(cfg.MaxHandshakes, defaultGateHandshakes)
	cfg.MaxStrangers = cmp.Or(cfg.MaxStrangers, defaultGateStrangers)
	cfg.HandshakeRate = cmp.Or(cfg.HandshakeRate, defaultHandshakeRate)
	cfg.HandshakeBurst = cmp.Or(cfg.HandshakeBurst, defaultHandshakeBurst)
	cfg.StrangerBytes = cmp.Or(cfg.StrangerBytes, defaultStrangerBytes)
	return &Gate{
		guard: g, listener: l, cfg: cfg,
		sockets:    mesh.NewLimiter(mesh.Limits{Slots: cfg.MaxSockets}),
		hellos:     mesh.NewLimiter(mesh.Limits{Slots: cfg.MaxHellos, Newest: true}),
		handshakes: mesh.NewLimiter(mesh.Limits{Slots: cfg.MaxHandshakes}),
		strangers: mesh.NewLimiter(mesh.Limits{Slots: cfg.MaxStrangers,
			Bytes: cmp.Or(cfg.AllStrangersBytes, defaultAllStrangersBytes)}),
		begins:  mesh.NewRateLimiter(cfg.HandshakeRate, cfg.HandshakeBurst, turnTime),
		turns:   mesh.NewFairQueue(turnsPerCPU * runtime.GOMAXPROCS(0)),
		members: newHanded(l.Addr()), others: newHanded(l.Addr()),
	}, nil
}

// Members returns the listener of connections with an accepted certificate.
func (g *Gate) Members() net.Listener { return g.members }

// Strangers returns the listener of all other connections.
func (g *Gate) Strangers() net.Listener { return g.others }

// Run takes connections until ctx ends or the listener fails. It closes the listener, and
// the connections that were handed to no server.
func (g *Gate) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer g.members.Close()
	defer g.others.Close()
	return accept(ctx, g.listener, func(raw net.Conn) {
		c := &coming{gate: g, raw: raw, from: raw.RemoteAddr(), gone: make(chan struct{})}
		if err := c.enter(g.sockets, g.cfg.MaxSockets, true); err != nil {
			g.guard.refused(err)
			raw.Close()
			return
		}
		all.Go(func() { c.serve(ctx) })
	})
}

// accept hands each connection of l to take, until ctx ends, whose error it returns then, or l
// fails. It closes l.
func accept(ctx context.Context, l net.Listener, take func(net.Conn)) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var pause time.Duration
	for {
		raw, err := l.Accept()
		var temporary interface{ Temporary() bool } // such as too many open files
		switch {
		case ctx.Err() != nil:
			if err == nil {
				raw.Close()
			}
			return ctx.Err()
		case errors.As(err, &temporary) && temporary.Temporary():
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return err
		}
		pause = 0
		take(raw)
	}
}

// coming is a connection on its way through the gate. It has a slot of one limiter at a time.
type coming struct {
	gate *Gate
	raw  net.Conn
	from net.Addr // who the client is
	slot *mesh.Slot
	gone chan struct{} // closed when it gave way
	full *FullError    // why; written once, before gone is closed
	once sync.Once
	// handed says that a server has it: then nobody else tells that it gave way.
	handed atomic.Bool
}

// enter gives back the slot that the connection has, for one of another limiter.
func (c *coming) enter(l *mesh.Limiter, limit int, handshakes bool) error {
	full := &FullError{Limit: limit, Handshakes: handshakes, Strangers: !handshakes}
	slot, ok := l.Enter(mesh.Address(c.from.String()), func() {
		c.once.Do(func() {
			c.full = full
			close(c.gone)
			if c.handed.Load() {
				c.gate.guard.refused(full)
			}
		})
		c.raw.Close()
	})
	c.leave()
	if !ok {
		return full
	}
	c.slot = slot
	return nil
}

func (c *coming) leave() {
	if c.slot != nil {
		c.slot.Leave()
		c.slot = nil
	}
}

// serve brings the connection to a server, or closes it.
func (c *coming) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { c.raw.Close() })
	conn, err := c.secure(ctx)
	if err == nil {
		to := c.gate.others
		if conn.info.Peer.Leaf != nil {
			to = c.gate.members
		}
		c.handed.Store(true)
		if stop() && to.hand(ctx, conn) {
			return
		}
		conn.info.conn.sever()
		return
	}
	stop()
	c.leave()
	c.raw.Close()
	select {
	case <-c.gone:
		err = c.full
	default:
	}
	c.gate.guard.refused(err)
}

// secure reads who the client is and what it says first, waits for its turn, and shakes
// hands.
func (c *coming) secure(ctx context.Context) (*shaken, error) {
	g := c.gate
	head, err := c.hello()
	if err != nil {
		if isNetwork(err) {
			return nil, err
		}
		return nil, g.guard.failed(&HandshakeError{Reason: Protocol, Endpoint: c.from.String()})
	}
	done, err := c.turn(ctx)
	if err != nil {
		return nil, err
	}
	begun := &begunConn{Conn: c.raw, from: c.from, head: head, waits: done, left: maxFlightBytes}
	defer done()
	if err := c.raw.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	shaking, cancel := context.WithTimeout(ctx, min(g.guard.cfg.HandshakeTimeout, flightTime))
	defer cancel()
	info, err := g.guard.secure(shaking, begun, nextProtos)
	if err != nil {
		return nil, err
	}
	begun.settled = true
	conn := info.conn
	if info.Peer.Leaf != nil {
		free, err := g.guard.admit(info.Peer, begun)
		if err != nil {
			return nil, err
		}
		c.leave()
		conn.free, conn.quota = free, memberQuota()
	} else {
		if err := c.enter(g.strangers, g.cfg.MaxStrangers, false); err != nil {
			return nil, err
		}
		conn.quota = strangerQuota(c.slot, g.cfg.StrangerBytes)
		conn.free, c.slot = c.slot.Leave, nil
	}
	keepAlive(c.raw)
	g.guard.stand(info)
	return &shaken{conn, info}, nil
}

// hello reads what the client says first, after what a proxy says for it.
func (c *coming) hello() ([]byte, error) {
	if err := c.raw.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return nil, err
	}
	var r io.Reader = c.raw
	var buffered *bufio.Reader
	if isProxy(c.gate.cfg.Proxies, c.from) {
		buffered = bufio.NewReaderSize(c.raw, 512)
		r = buffered
		from, err := proxied(buffered)
		if err != nil {
			return nil, err
		}
		if from != nil {
			c.from = from
			if err := c.enter(c.gate.sockets, c.gate.cfg.MaxSockets, true); err != nil {
				return nil, err
			}
		}
	}
	head, err := readHello(r, c.slot.Spoke)
	if err == nil && buffered != nil && buffered.Buffered() > 0 {
		rest, _ := buffered.Peek(buffered.Buffered()) // it is there
		head = append(head, rest...)
	}
	return head, err
}

// turn waits until the handshake may begin. done says that it computes no more, and may
// be called more than once.
func (c *coming) turn(ctx context.Context) (done func(), err error) {
	g := c.gate
	if err := c.enter(g.hellos, g.cfg.MaxHellos, true); err != nil {
		return nil, err
	}
	c.slot.Spoke()
	network := mesh.Network(mesh.Address(c.from.String()))
	now := time.Now()
	wait, ok := g.begins.Reserve(network, now)
	if !ok {
		return nil, &FullError{Limit: g.cfg.HandshakeBurst, Handshakes: true, Of: network}
	}
	timer := time.NewTimer(wait.DelayFrom(now))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.gone:
		wait.Cancel()
		return nil, c.full
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	late := time.NewTimer(turnTime)
	defer late.Stop()
	turn := g.turns.Ask(network)
	select {
	case <-turn:
	case <-late.C:
		err = &FullError{Limit: g.cfg.MaxHellos, Handshakes: true}
	case <-c.gone:
		err = c.full
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		g.turns.Withdraw(network, turn)
		return nil, err
	}
	done = sync.OnceFunc(g.turns.GiveBack)
	if err := c.enter(g.handshakes, g.cfg.MaxHandshakes, true); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// shaken is a connection whose handshake was made before a server took it.
type shaken struct {
	net.Conn
	info *Info
}

// handed is a listener of connections that come from the gate.
type handed struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newHanded(addr net.Addr) *handed {
	h := &handed{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

// hand gives conn to who accepts next, and reports whether somebody did.
func (h *handed) hand(ctx context.Context, conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.closed:
	case <-ctx.Done():
	}
	return false
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error   { h.close(); return nil }
func (h *handed) Addr() net.Addr { return h.addr }

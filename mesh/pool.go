package mesh

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// Pool shares connections to sets of endpoints. The zero value is ready for use; Close it when
// done. It may be used by several goroutines.
//
// A target is a set of endpoints that each prove the expected identity, or one of several: a gRPC
// target such as dns:///name:port, or a list, static:///host:port,host:port. Calls go in turn to
// the endpoints that are ready. One whose handshake fails is skipped and stays in the set: it is
// tried again, at first after 200 milliseconds and at last every 10 seconds, and is used once it
// proves itself. A call fails with a [*NoEndpointsError] only when each endpoint failed. The answers
// of discovery are hints: an endpoint that it calls plain ([MarkSecure]) is left out, and any other
// is believed when it proved itself. Of a set, 1,024 addresses are used.
type Pool struct {
	// Options are those of each connection, and are not changed once one was asked for. A
	// service config among Options.GRPC has to ask for the balancing policy mesh_ready.
	Options Options

	mu     sync.Mutex
	conns  []*Conn        // that did not end; guarded by mu
	closed bool           // guarded by mu
	run    sync.WaitGroup // the goroutine of each that was ever started; none is added once closed
}

// maxPooled bounds the connections of a pool, each to one set of endpoints.
const maxPooled = 256

var errPoolFull = status.Errorf(codes.ResourceExhausted, "mesh: the pool has %d connections, which is the limit: "+
	"close those that are not needed", maxPooled)

// Dial returns a client of target, as the function [Dial] does. All that ask for the same target,
// source and expectation share its connections; a connection is of one fingerprint of the source's
// material, and the first call after a change takes a fresh one. Two sources that cannot change are
// the same if their fingerprints are. Two others are not, as one may ban a peer that the other
// still trusts. Close leaves the client: with the last one to leave, its connections are closed once no
// call runs on them.
//
// Errors are those of the function [Dial], [ErrClosed], and one with code ResourceExhausted: a
// pool has at most 256 clients that differ.
func (p *Pool) Dial(target string, src credential.Source, expect credential.Expect) (*Conn, error) {
	c, err := newClient(target, src, expect, p.Options.told())
	if err != nil {
		return nil, err
	}
	c.balanced, c.pool, c.key, c.holders = true, p, keyOf(target, src, expect), 1
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	for _, other := range p.conns {
		if other.key.same(c.key) && other.hold() {
			return &Conn{shared: other}, nil
		}
	}
	if len(p.conns) >= maxPooled {
		return nil, errPoolFull
	}
	p.conns = append(p.conns, c)
	c.start()
	p.run.Go(func() { <-c.done })
	return &Conn{shared: c}, nil
}

// Close ends all calls of all connections, and waits for their goroutines.
func (p *Pool) Close() error {
	p.mu.Lock()
	all := slices.Clone(p.conns)
	p.closed = true
	p.mu.Unlock()
	var err error
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	p.run.Wait()
	return err
}

// poolKey is what two clients agree in that share connections.
type poolKey struct {
	target      string
	source      credential.Source // nil for one that cannot change
	fingerprint [32]byte          // of the material of one that cannot change, if it has any
	expect      credential.Expect
}

func keyOf(target string, src credential.Source, expect credential.Expect) poolKey {
	k := poolKey{target: target, source: src, expect: expect}
	if src.Changed() == nil {
		k.source = nil
		if m, err := src.Current(context.Background()); err == nil {
			k.fingerprint = m.Fingerprint()
		}
	}
	return k
}

func (k poolKey) same(other poolKey) bool {
	if k.target != other.target || k.fingerprint != other.fingerprint || !k.expect.Equal(other.expect) {
		return false
	}
	// Of a source that cannot be compared, nobody knows whether it is the same.
	return k.source == nil && other.source == nil ||
		k.source != nil && other.source != nil && reflect.TypeOf(k.source).Comparable() && k.source == other.source
}

// hold has one more hold c, unless it ended.
func (c *Conn) hold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := c.closed.Load()
	if !closed {
		c.holders++
	}
	return !closed
}

// leave has one less hold what runs the calls of c, once.
func (c *Conn) leave() {
	if c.closed.Swap(true) {
		return
	}
	c.shared.mu.Lock()
	c.shared.holders--
	c.shared.mu.Unlock()
	// At once, so that the next to ask for the same gets a fresh connection: this one may be
	// left because it is of no use.
	if !c.shared.abandoned() {
		c.shared.live.wake() // once no call runs
	}
}

// abandoned reports whether nobody holds c and no call runs; then it has ended.
func (c *Conn) abandoned() bool {
	c.mu.Lock()
	cur := c.current
	if c.pool == nil || c.closed.Load() || c.holders > 0 || len(c.retired) > 0 || cur != nil && cur.calls > 0 {
		c.mu.Unlock()
		return false
	}
	c.closed.Store(true)
	c.mu.Unlock()
	if cur != nil {
		cur.cc.Close()
	}
	c.stop()
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.pool.conns = slices.DeleteFunc(c.pool.conns, func(other *Conn) bool { return other == c })
	return true
}

// told returns o with a log, for a client of several endpoints: those that are rejected are logged.
func (o Options) told() Options {
	o.Log = cmp.Or(o.Log, slog.Default())
	return o
}

// MarkSecure returns e with what discovery says of it, for a resolver of your own: it speaks TLS,
// or it does not. A client with credentials leaves out an endpoint that does not, and trusts neither.
func MarkSecure(e resolver.Endpoint, secure bool) resolver.Endpoint {
	return balancer.MarkSecure(e, secure)
}

// ClientOptions returns what a client of grpc.NewClient needs to call servers that prove expect
// under the bundle of src, whichever endpoints its target leads to. Its calls are balanced, and
// fail, as those of a [Pool]. When the source changes they take fresh connections, and those that
// run end on the earlier ones. While a connection stands a goroutine runs.
//
// options.GRPC are the last of them, and other options may follow. None sets credentials or a
// dialer, and a service config asks for the balancing policy mesh_ready. Errors are those of
// [Dial].
func ClientOptions(src credential.Source, expect credential.Expect, options Options) ([]grpc.DialOption, error) {
	c, err := newClient("", src, expect, options.told())
	if err != nil {
		return nil, err
	}
	c.balanced = true
	g := &generation{c: c}
	own := append(g.options(), grpc.WithChainUnaryInterceptor(g.unary), grpc.WithChainStreamInterceptor(g.stream))
	return append(own, options.GRPC...), nil
}

// unary explains errors as [Conn.Invoke] does.
func (g *generation) unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var k invocation
	return g.explain(invoke(ctx, method, request, reply, cc, k.options(opts)...), &k.peer, cc.Target())
}

// stream explains errors as [Conn.NewStream] does.
func (g *generation) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	var k invocation
	s, err := open(ctx, desc, cc, method, k.options(opts)...)
	if err != nil {
		return nil, g.explain(err, &k.peer, cc.Target())
	}
	return &clientStream{s, g, &k.peer, cc.Target()}, nil
}

var errAdvertisesPlain = errors.New(balancer.Plain)

// Resolved takes note of the set that is balanced over.
func (c clientCredentials) Resolved(addresses []string, left []balancer.LeftOut) {
	g := c.g
	g.attempts.Keep(addresses)
	for _, l := range left {
		if l.Why == balancer.Plain {
			g.attempts.Ended(l.Address, &EndpointError{l.Address, errAdvertisesPlain})
		}
	}
	g.c.journal.Resolved(addresses, left)
}

// Mark changes with the material, unless a generation of its own is made for each.
func (c clientCredentials) Mark() (mark any, changed <-chan struct{}) {
	g := c.g
	if g.superseded != nil {
		return nil, nil
	}
	changed = g.c.src.Changed() // before the source is asked
	if m, err := g.c.src.Current(context.Background()); err == nil {
		g.mark.Store(new(m.Fingerprint()))
	}
	if last := g.mark.Load(); last != nil {
		return *last, changed
	}
	return nil, changed
}

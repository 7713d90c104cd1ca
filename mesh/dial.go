// Package mesh connects processes by who they are, not by where they run.
//
// [Dial] opens gRPC connections to an address, and keeps them only if the other
// end proves the expected identity. [Guard] stands before the calls of a server:
// it shakes hands, says who is calling, and ends what an expired or banned peer
// has open. [Gate] bounds what a stranger's handshake costs, before a server sees the
// connection. These are its promises:
//
//   - A connection without an expected identity cannot be made by mistake: only
//     packages of this module can ask for one, to join or to recover, by a name of its own.
//   - A failed handshake is a [*HandshakeError] with a [Reason], also in what a
//     call returns; a plain network failure never is. Errors show no key material
//     and nothing that a stranger sent.
//   - Fresh material is used by the next call. Calls that run are not disturbed
//     (I18); [Info] tells a long stream when to move.
//   - Connections do not outlive trust, at either end: they end with the peer's
//     certificate, and when the bundle bans the peer.
//
// The rights of a peer are decided elsewhere.
package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Options change how [Dial] connects.
type Options struct {
	// Dialer opens a connection to one address. Nil means TCP. No proxy is used.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	// Now is the clock that expiry is compared with. Nil means time.Now.
	Now func() time.Time

	// GRPC are further options. They must not set credentials or a dialer.
	GRPC []grpc.DialOption

	// OnFailure is called with each handshake that failed, from several goroutines. It
	// must not block. Nil: failures are not reported.
	OnFailure func(*HandshakeError)

	// Log gets one line when an endpoint is rejected, or for another reason than
	// before, when it is healed, and when the endpoints that are left out change; at
	// most 64 at once and one a second. Nil means slog.Default() for a [Pool], for
	// [ClientOptions] and for an [HTTPTransport], whose calls may go well meanwhile,
	// and no line for [Dial], whose calls fail and say why.
	Log *slog.Logger

	// Lookup returns the endpoints, each host:port, that a host:port of a URL leads
	// to. It is for an [HTTPTransport] alone: gRPC has resolvers. Nil means DNS, or,
	// with a Dialer, that one knows.
	Lookup func(ctx context.Context, addr string) ([]string, error)
}

// complete fills in what is nil.
func (o Options) complete() Options {
	if o.Dialer == nil {
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// journal returns what writes to Log; nil without one.
func (o Options) journal() *balancer.Journal {
	if o.Log == nil {
		return nil
	}
	return balancer.NewJournal(o.Log)
}

// ErrClosed is what calls get after [Conn.Close].
var ErrClosed = status.Error(codes.Canceled, "mesh: the connection was closed by its owner")

// Conn is a client's connections to one target under one expectation. Give it to
// generated clients. It follows its source: the first call after a change that the
// source tells of, or 5 milliseconds after one that it notices when it is asked, takes
// a fresh connection, calls that run stay where they are, and what they no longer
// need is closed.
type Conn struct {
	target string
	src    credential.Source // nil if pinned
	recent recentMaterial    // the same, as calls ask it
	expect credential.Expect
	pin    Pin
	opts   Options
	live   *liveSet

	journal  *balancer.Journal // of endpoints' rejections; nil: nobody reads one
	balanced bool              // calls go to each endpoint that is ready; else to the first
	shared   *Conn             // what runs the calls of one that a Pool gave out; else nil

	roll chan struct{} // buffered, 1: held by who changes generations; a channel, because the source may do I/O

	mu      sync.Mutex
	current *generation   // nil before the first call; guarded by mu
	retired []*generation // superseded, with calls that run; guarded by mu
	pool    *Pool         // whose it is: it ends when nobody holds it and no call runs; else nil; set once
	key     poolKey       // within the pool; set once
	holders int           // guarded by mu

	closed atomic.Bool // set under mu, except for what a Pool gave out: that has only been left
	stop   context.CancelFunc
	done   chan struct{} // closed when watch has returned
}

// generation is one gRPC client that was made with one material.
type generation struct {
	c          *Conn
	cc         *grpc.ClientConn
	material   *credential.Material // nil if pinned
	attempts   balancer.Record
	superseded chan struct{} // closed when a fresher generation took over; nil: a client that has but this one

	mark  atomic.Pointer[[32]byte] // the last fingerprint, of a client that has but this one
	calls int                      // that run; guarded by Conn.mu
}

// Dial returns a client of target, a gRPC target such as host:port, or a list,
// static:///host:port,host:port, of which it uses the first good one; a [Pool]
// uses all of them. The server must prove expect under the bundle of src; the
// address counts for nothing. It connects on the first call. Close it when done:
// it runs a goroutine.
//
// Errors: credential.ErrNoExpectation, or an expectation that can never be met.
// A source without material yet is none; calls fail until it has some.
func Dial(target string, src credential.Source, expect credential.Expect, opts Options) (*Conn, error) {
	c, err := newClient(target, src, expect, opts)
	if err != nil {
		return nil, err
	}
	c.start()
	return c, nil
}

// newClient returns what Dial does, and does not start it.
func newClient(target string, src credential.Source, expect credential.Expect, opts Options) (*Conn, error) {
	if src == nil {
		return nil, errors.New("mesh: a client needs a source: without a bundle nobody can be verified")
	}
	cluster := ""
	if m, err := src.Current(context.Background()); err == nil && m.Bundle() != nil {
		cluster = m.Bundle().Cluster()
	}
	if err := expect.Validate(cluster); err != nil {
		return nil, err
	}
	c := newConn(target, opts)
	c.src, c.expect, c.journal, c.recent.source = src, expect, c.opts.journal(), src
	return c, nil
}

func newConn(target string, opts Options) *Conn {
	return &Conn{target: target, opts: opts.complete(), live: newLiveSet(), roll: make(chan struct{}, 1), done: make(chan struct{})}
}

func (c *Conn) start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() {
		defer close(c.done)
		c.watch(ctx)
	}()
}

// watch follows the source and the clock until ctx ends.
func (c *Conn) watch(ctx context.Context) {
	for {
		var changed <-chan struct{}
		var bundle *identity.Bundle
		if c.src != nil {
			changed = c.src.Changed() // before the source is asked
			bundle = c.follow(ctx)
		}
		c.live.sweep(c.opts.Now(), bundle, 0)
		c.reap()
		if c.abandoned() || !c.live.nap(ctx, c.opts.Now, changed) {
			return
		}
	}
}

// follow retires the current generation if the source has fresher material, and
// returns the bundle to judge servers by: the last good one where the source
// fails.
func (c *Conn) follow(ctx context.Context) *identity.Bundle {
	c.mu.Lock()
	cur := c.current
	c.mu.Unlock()
	if cur == nil {
		return nil // no connection stands
	}
	c.refresh(ctx) // an error shows on the next call
	m, err := c.src.Current(ctx)
	if err != nil {
		m = cur.material
	}
	return m.Bundle()
}

// refresh makes the current generation one of the source's current material.
// Where the source fails, the last good one stays.
func (c *Conn) refresh(ctx context.Context) error {
	select {
	case c.roll <- struct{}{}:
		defer func() { <-c.roll }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	// Asked again by the goroutine that holds roll: of two that saw a change, the one with
	// the older answer must not come second.
	m, err := c.material(ctx)
	c.mu.Lock()
	cur, closed := c.current, c.closed.Load()
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case err != nil && cur != nil, err == nil && cur != nil && !differs(cur.material, m):
		return nil
	case err != nil:
		return &sourceError{err}
	}
	next, err := c.generation(m)
	if err != nil {
		return err
	}
	if !c.install(next) {
		next.cc.Close()
		return ErrClosed
	}
	return nil
}

// install makes next current, unless c is closed.
func (c *Conn) install(next *generation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return false
	}
	if c.current != nil {
		close(c.current.superseded)
		c.retired = append(c.retired, c.current)
		c.live.wake() // reap it, if no call runs on it
	}
	c.current = next
	return true
}

func (c *Conn) material(ctx context.Context) (*credential.Material, error) {
	if c.src == nil {
		return nil, nil
	}
	return c.src.Current(ctx)
}

func differs(a, b *credential.Material) bool {
	return a != b && (a == nil || b == nil || a.Fingerprint() != b.Fingerprint())
}

// sourceError says that there is no material to connect with.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "mesh: no connection without material: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }
func (e *sourceError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// generation makes a client of m. It does not connect yet.
func (c *Conn) generation(m *credential.Material) (*generation, error) {
	g := &generation{c: c, material: m, superseded: make(chan struct{})}
	if _, err := c.tlsConfig(m, nil); errors.Is(err, credential.ErrNoMaterial) {
		return nil, &sourceError{err}
	} else if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	cc, err := grpc.NewClient(c.target, append(g.options(), c.opts.GRPC...)...)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "mesh: target %s: %v", c.target, err)
	}
	g.cc = cc
	return g, nil
}

// options returns how gRPC makes the connections of g.
func (g *generation) options() []grpc.DialOption {
	options := []grpc.DialOption{
		// Discovery gives a hint; a service config from DNS would be an order.
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 10 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithTransportCredentials(clientCredentials{g}),
		// A dialer of our own also keeps gRPC from using a proxy of the environment.
		grpc.WithContextDialer(g.dial),
		grpc.WithResolvers(balancer.Static{}),
	}
	if g.c.balanced {
		options = append(options, grpc.WithDefaultServiceConfig(balancer.ServiceConfig))
	}
	return options
}

func (c *Conn) tlsConfig(m *credential.Material, onVerified func(identity.Verified)) (*tls.Config, error) {
	opts := credential.ClientOptions{NextProtos: nextProtos, OnVerified: onVerified}
	if c.src == nil {
		return c.pin.ClientTLS(c.opts.Now, opts)
	}
	if m == nil || m.Bundle() == nil {
		return nil, credential.ErrNoMaterial
	}
	return credential.ClientTLS(credential.Static(m), c.expect, opts)
}

func (c *Conn) expected() string {
	if c.src == nil {
		return c.pin.String()
	}
	return c.expect.String()
}

// acquire returns the generation that a call runs on; release it.
func (c *Conn) acquire(ctx context.Context) (*generation, error) {
	var m *credential.Material
	var err error
	if c.src != nil {
		m, err = c.recent.get(ctx)
	}
	c.mu.Lock()
	if c.current == nil || err == nil && differs(c.current.material, m) {
		c.mu.Unlock()
		if err := c.refresh(ctx); err != nil {
			return nil, err
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, ErrClosed
	}
	c.current.calls++
	return c.current, nil
}

func (c *Conn) release(g *generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.calls--
	if g.calls == 0 && (g != c.current || c.pool != nil && c.holders == 0) {
		c.live.wake()
	}
}

// reap closes what was superseded and runs no calls.
func (c *Conn) reap() {
	c.mu.Lock()
	var idle []*generation
	c.retired = slices.DeleteFunc(c.retired, func(g *generation) bool {
		if g.calls > 0 {
			return false
		}
		idle = append(idle, g)
		return true
	})
	c.mu.Unlock()
	for _, g := range idle {
		g.cc.Close()
	}
}

// Close ends all calls and waits for the goroutine of c. One that a [Pool] gave out is left
// instead: it begins no more calls, and those that run go on.
func (c *Conn) Close() error {
	if c.shared != nil {
		c.leave()
		return nil
	}
	c.mu.Lock()
	if c.closed.Load() {
		c.mu.Unlock()
		<-c.done
		return nil
	}
	c.closed.Store(true)
	all := c.retired
	if c.current != nil {
		all = append(all, c.current)
	}
	c.retired = nil
	c.mu.Unlock()

	c.stop()
	<-c.done
	var err error
	for _, g := range all {
		err = errors.Join(err, g.cc.Close())
	}
	return err
}

// Invoke runs a unary call. When no endpoint could be used, its error is a
// [*NoEndpointsError].
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.shared != nil {
		if c.closed.Load() {
			return ErrClosed
		}
		return c.shared.Invoke(ctx, method, args, reply, opts...)
	}
	g, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	defer c.release(g)
	var k invocation
	err = g.cc.Invoke(ctx, method, args, reply, k.options(opts)...)
	return g.explain(err, &k.peer, c.target)
}

// invocation is who answered a call, and room for the option that asks gRPC for it.
type invocation struct {
	peer peer.Peer
	room [2]grpc.CallOption // one is that of generated code
}

func (k *invocation) options(opts []grpc.CallOption) []grpc.CallOption {
	return append(append(k.room[:0], opts...), grpc.Peer(&k.peer))
}

// NewStream opens a stream. Its context tells by [FromContext] which connection
// it runs on and when to leave it. Errors are those of [Conn.Invoke].
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.shared != nil {
		if c.closed.Load() {
			return nil, ErrClosed
		}
		return c.shared.NewStream(ctx, desc, method, opts...)
	}
	g, err := c.acquire(ctx)
	if err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { c.release(g) })
	var k invocation
	s, err := g.cc.NewStream(ctx, desc, method, append(k.options(opts), grpc.OnFinish(func(error) { release() }))...)
	if err != nil {
		release()
		return nil, g.explain(err, &k.peer, c.target)
	}
	return &clientStream{s, g, &k.peer, c.target}, nil
}

// clientStream explains the errors of a stream whose connection was lost before
// the server saw it, and that found no other.
type clientStream struct {
	grpc.ClientStream
	g      *generation
	p      *peer.Peer // filled by gRPC when the stream ends, which precedes each error below
	target string
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		return nil
	}
	return s.g.explain(err, s.p, s.target)
}

// explain adds to an error of a call what is known about the endpoints, if the
// call reached none of them.
func (g *generation) explain(err error, p *peer.Peer, target string) error {
	if err == nil || p.Addr != nil {
		return err
	}
	code := status.Code(err)
	if code != codes.Unavailable && code != codes.DeadlineExceeded {
		return err
	}
	failures := g.attempts.Failures()
	if len(failures) == 0 {
		return err
	}
	return &NoEndpointsError{Target: target, Failures: failures, code: code}
}

// dial opens one connection and remembers how that went.
func (g *generation) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := g.c.opts.Dialer(ctx, addr)
	if err != nil {
		g.failed(ctx, addr, err)
		return nil, err
	}
	g.attempts.Dialed(addr, conn)
	return conn, nil
}

// failed remembers a failure of endpoint and returns the error to pass on, which
// for a network failure is err.
func (g *generation) failed(ctx context.Context, endpoint string, err error) error {
	if h, ok := errors.AsType[*HandshakeError](err); ok {
		g.attempts.Ended(endpoint, h)
		h.note(g.c.journal)
		if f := g.c.opts.OnFailure; f != nil {
			f(h)
		}
		return h
	}
	if !errors.Is(ctx.Err(), context.Canceled) { // else it was us who gave up
		g.attempts.Ended(endpoint, &EndpointError{endpoint, err})
	}
	return err
}

// clientCredentials makes the connections of one generation.
type clientCredentials struct{ g *generation }

func (c clientCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (c clientCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing: names of servers are not looked at.
func (c clientCredentials) OverrideServerName(string) error { return nil }

// ServerHandshake refuses: these are a client's.
func (c clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("mesh: the credentials of a client cannot serve; use a Guard")
}

// ClientHandshake shakes hands and checks who is there.
func (c clientCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g := c.g
	endpoint := g.attempts.Take(raw)
	conn, info, err := g.secure(ctx, raw, endpoint)
	if err != nil {
		raw.Close()
		return nil, nil, g.failed(ctx, endpoint, classify(err, clientSide, endpoint, g.c.expected()))
	}
	return conn, info, nil
}

func (g *generation) secure(ctx context.Context, raw net.Conn, endpoint string) (net.Conn, *Info, error) {
	// The freshest, not the generation's: a generation that is still being used
	// after it was superseded must not open a connection on what is going away.
	var superseded <-chan struct{} = g.superseded
	if g.superseded == nil {
		superseded = g.c.src.Changed() // before the source is asked
	}
	m, err := g.c.material(ctx)
	if err != nil {
		m = g.material
	}
	var verified identity.Verified
	cfg, err := g.c.tlsConfig(m, func(v identity.Verified) { verified = v })
	if err != nil {
		return nil, nil, err
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != nextProtos[0] {
		return nil, nil, errNoALPN
	}
	info := &Info{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		Peer:           identity.Peer{ID: verified.ID, Err: verified.IDErr, Leaf: verified.Leaf, Key: verified.Key, Addr: endpoint},
		state:          state,
		secured:        true,
		superseded:     superseded,
	}
	live := &liveConn{raw: raw, peer: info.Peer}
	live.Conn = &answeredConn{Conn: conn, first: func(err error) error { return g.answered(endpoint, err) }}
	if !verified.ID.IsZero() { // an ephemeral certificate's dates mean nothing
		live.expires = earliest(state.PeerCertificates)
		live.issuers = keysOf(state.PeerCertificates[1:])
	}
	info.expires = live.expires
	if m != nil {
		info.expires = sooner(info.expires, m.NotAfter())
	}
	info.conn = live
	if g.c.live.add(live, g.c.opts.Now()) && g.superseded == nil {
		go g.c.live.follow(g.c.src, g.c.opts.Now)
	}
	g.c.live.wake() // a ban may have come, and been acted on, while we shook hands
	return live, info, nil
}

// answered takes the result of the first read on a connection, which in TLS 1.3 is
// where a client learns whether its certificate was accepted (RFC 8446 §4.4.4:
// its side of the handshake ended before the server looked). It returns the error
// to pass on.
func (g *generation) answered(endpoint string, err error) error {
	if err == nil {
		g.attempts.Ended(endpoint, nil)
		g.c.journal.Healed(endpoint)
		return nil
	}
	if isAlert(err) {
		err = &HandshakeError{Reason: ClientRejected, Endpoint: endpoint, Expected: g.c.expected()}
	} else {
		err = classify(err, clientSide, endpoint, g.c.expected())
	}
	return g.failed(context.Background(), endpoint, err)
}

// answeredConn tells first how the first read of application bytes ended.
type answeredConn struct {
	net.Conn
	first func(error) error
	asked atomic.Bool // first has been told
}

func (c *answeredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 && err == nil || c.asked.Load() || c.asked.Swap(true) {
		return n, err
	}
	if n > 0 {
		c.first(nil)
		return n, err
	}
	return n, c.first(err)
}

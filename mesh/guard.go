package mesh

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// nextProtos is what gRPC speaks (RFC 9113 §3.2).
var nextProtos = []string{"h2"}

// Limits that a [GuardConfig] leaves at zero.
const (
	defaultMaxConns            = 16384
	defaultMaxPerIdentity      = 16
	defaultMaxStrangers        = 1024
	defaultStrangersPerSource  = 64
	defaultStrangerIdle        = 15 * time.Second
	defaultMaxHandshakes       = 1024
	defaultHandshakesPerSource = 64
	defaultGrace               = 250 * time.Millisecond
)

// callWorkers is how many goroutines a server keeps for its calls, for each processor. A call
// that finds none of them free has one of its own, as without them: they save calls the growth of
// a fresh stack, which is a tenth of what a small one costs. Each of many has its turn so seldom
// that its stack has been shrunk by then, and is no better.
const callWorkers = 4

// GuardConfig says how a server proves itself and whom it lets in.
type GuardConfig struct {
	// Source gives the material that the server presents and verifies clients by.
	// Required.
	Source credential.Source

	// Clients is who may call, by [credential.ExactID], [credential.AnyOf], [credential.AnyOfKind] or
	// [credential.AnyNamed]: every other call is refused with a [*DeniedError] before a handler or a later
	// interceptor sees it, also one of a client without a certificate. It does not apply to processes
	// about which Local decides. The zero value refuses nobody: then handlers decide, by [identity.FromContext].
	Clients credential.Expect

	// SendRoot adds the root to the presented chain, for joiners that know its hash.
	SendRoot bool

	// Local decides about the processes behind connections on unix sockets, which
	// speak no TLS. Nil: unix sockets are treated as any other connection.
	Local func(identity.Local) bool

	// Now is the clock that expiry is compared with. Nil means time.Now.
	Now func() time.Time

	// HandshakeTimeout bounds a handshake. Zero means 10 seconds.
	HandshakeTimeout time.Duration

	// Grace is how long the calls of a connection that is cut have to return before
	// it is closed, so that their callers learn why. Zero means 250 milliseconds.
	Grace time.Duration

	// MaxConns bounds the connections that stand at once with a verified client
	// certificate or on a unix socket that Local decides about, and MaxPerIdentity
	// those of one identity, or of one key that identifies nobody. Zero means
	// 16,384 and 16.
	MaxConns, MaxPerIdentity int

	// MaxStrangers bounds the connections that stand without a verified client
	// certificate, and StrangersPerSource those from one source: an IPv4 address or
	// a /64 of IPv6. Zero means 1,024 and 64.
	MaxStrangers, StrangersPerSource int

	// StrangerIdle is how long a connection without a verified client certificate
	// stands while no call runs on it. Zero means 15 seconds.
	StrangerIdle time.Duration

	// MaxHandshakes bounds the handshakes that are under way at once, and
	// HandshakesPerSource those with one source. Zero means 1,024 and 64.
	MaxHandshakes, HandshakesPerSource int

	// OnFailure is called with each handshake that failed; plain network failures are
	// none. OnRefused is called with the reason for each connection that was refused
	// otherwise: a [*FullError], the error of the source, or, on a unix socket, which
	// process Local refused; and with a [*DeniedError] for each call that Clients
	// refuses. OnCut is called for each connection that is cut. They are called from
	// several goroutines and must not block. Nil: nothing is reported.
	OnFailure func(*HandshakeError)
	OnRefused func(error)
	OnCut     func(identity.Peer, *CutError)
}

// Guard is what stands before the calls of a gRPC server: it makes the
// connections, puts an [identity.Peer] into the context of each call, and serves
// nobody whose certificate ended or was banned.
//
// New calls of such a peer are refused at once. Calls that run are ended, and
// the connection closed, within a second of the end of a certificate, and as soon
// as the source has a bundle with the ban. The result of a call just before that
// still arrives, and so does the answer of a unary call when it is the root of its
// caller that was replaced. Other rotation ends nothing (I18). Nobody has to start
// that: a goroutine of the guard runs for as long as a connection stands.
//
// Members, strangers and handshakes have separate slots, so that none of them
// takes those of another. Connections of strangers that do not call are closed.
//
// A client without a certificate is served, as Insecure; one that is verified
// without identifying anybody too, as Unidentified. The server's
// authorization says what they may call.
type Guard struct {
	cfg        GuardConfig
	live       *liveSet
	cutting    sync.Mutex                      // held from a cut until OnCut was told of it
	bundle     atomic.Pointer[identity.Bundle] // the last that the source gave
	calls      recentMaterial                  // the source, as calls ask it
	meshCAs    sharedCerts                     // of the chains of connections
	handshakes *slots                          // under way, by source
	conns      *slots                          // standing, of members by identity, and local ones
	strangers  *slots                          // standing without a certificate, by source
}

// NewGuard checks cfg and returns a guard. It starts nothing before the first connection.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	if cfg.Source == nil {
		return nil, errors.New("mesh: GuardConfig.Source is missing: a server needs material to prove itself with")
	}
	if min(cfg.MaxConns, cfg.MaxPerIdentity, cfg.MaxStrangers, cfg.StrangersPerSource, cfg.MaxHandshakes, cfg.HandshakesPerSource) < 0 ||
		min(cfg.HandshakeTimeout, cfg.Grace, cfg.StrangerIdle) < 0 {
		return nil, errors.New("mesh: a limit of GuardConfig is negative; leave it at zero for the default")
	}
	if !cfg.Clients.Equal(credential.Expect{}) {
		if err := cfg.Clients.Validate(""); err != nil {
			return nil, fmt.Errorf("mesh: GuardConfig.Clients: %w", err)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.HandshakeTimeout = cmp.Or(cfg.HandshakeTimeout, mesh.HandshakeTimeout)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.StrangerIdle = cmp.Or(cfg.StrangerIdle, defaultStrangerIdle)
	return &Guard{
		cfg: cfg, live: newLiveSet(), calls: recentMaterial{source: cfg.Source},
		handshakes: newSlots(cmp.Or(cfg.MaxHandshakes, defaultMaxHandshakes),
			cmp.Or(cfg.HandshakesPerSource, defaultHandshakesPerSource),
			FullError{Handshakes: true}),
		conns: newSlots(cmp.Or(cfg.MaxConns, defaultMaxConns), cmp.Or(cfg.MaxPerIdentity, defaultMaxPerIdentity),
			FullError{}),
		strangers: newSlots(cmp.Or(cfg.MaxStrangers, defaultMaxStrangers),
			cmp.Or(cfg.StrangersPerSource, defaultStrangersPerSource),
			FullError{Strangers: true}),
	}, nil
}

// ServerOptions returns what a gRPC server needs to stand behind the guard. Give
// them before any other interceptor: those that follow find the peer in the
// context. The server keeps a few goroutines for calls from its making until it is
// stopped; grpc.NumStreamWorkers after these options says how many.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.NumStreamWorkers(uint32(callWorkers * runtime.GOMAXPROCS(0))),
		grpc.Creds(g.Credentials()),
		grpc.ChainUnaryInterceptor(g.Unary),
		grpc.ChainStreamInterceptor(g.Stream),
	}
}

// stand registers a connection, and sees that somebody watches for as long as one stands.
func (g *Guard) stand(i *Info) {
	i.carry()
	if g.live.add(i.conn, g.cfg.Now()) {
		go g.watch()
	}
}

// watch cuts connections when their time comes or the source changes, until none stands.
func (g *Guard) watch() {
	ctx := context.Background() // connections end it, and nothing else may
	for {
		changed := g.cfg.Source.Changed() // before Sweep asks for the material
		g.Sweep(ctx)
		if g.live.unwatched() {
			return
		}
		g.live.nap(ctx, g.cfg.Now, changed)
	}
}

// Sweep looks at each connection once: it cuts those that may not be served any
// more, and closes those that were cut and had their grace and those of
// strangers that do not call. When it returns OnCut was told of all that is cut.
func (g *Guard) Sweep(ctx context.Context) {
	g.cutting.Lock()
	defer g.cutting.Unlock()
	g.told(g.live.sweep(g.cfg.Now(), g.beliefs(g.cfg.Source.Current(ctx)), g.cfg.Grace))
}

func (g *Guard) told(cuts []cutConn) {
	if g.cfg.OnCut == nil {
		return
	}
	for _, c := range cuts {
		g.cfg.OnCut(c.conn.peer, c.why)
	}
}

// beliefs returns the bundle of what the source gave, or the last good one while it
// fails. Nil bans nobody, and is all that ephemeral material has.
func (g *Guard) beliefs(m *credential.Material, err error) *identity.Bundle {
	if err != nil {
		return g.bundle.Load()
	}
	b := m.Bundle()
	if g.bundle.Load() != b {
		g.bundle.Store(b)
	}
	return b
}

// Credentials returns the transport credentials alone, for a server that chains
// [Guard.Unary] and [Guard.Stream] itself.
func (g *Guard) Credentials() credentials.TransportCredentials { return guardCredentials{g} }

// guardCredentials makes a server's connections.
type guardCredentials struct{ g *Guard }

func (c guardCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (c guardCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing: names of servers are not looked at.
func (c guardCredentials) OverrideServerName(string) error { return nil }

// ClientHandshake refuses: a guard stands before a server.
func (c guardCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("mesh: a Guard's credentials are for servers; use Dial")
}

// ServerHandshake shakes hands and registers the connection. gRPC calls it on a
// goroutine of its own for each connection.
func (c guardCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g := c.g
	if s, ok := raw.(*shaken); ok { // of a gate
		return s.info.conn, s.info, nil
	}
	var (
		info *Info
		free func()
		err  error
	)
	if g.cfg.Local != nil && raw.LocalAddr().Network() == "unix" {
		info, err = g.local(raw)
	} else {
		info, err = g.shake(raw, nextProtos)
	}
	if err == nil {
		if free, err = g.admit(info.Peer, raw); err != nil {
			raw.Close()
		}
	}
	if err != nil {
		return nil, nil, g.refused(err)
	}
	info.conn.free = free
	g.stand(info)
	return info.conn, info, nil
}

// shake is secure in one of the slots for handshakes.
func (g *Guard) shake(raw net.Conn, protos []string) (*Info, error) {
	free, err := g.handshakes.take(sourceOf(raw.RemoteAddr()))
	if err != nil {
		raw.Close()
		return nil, err
	}
	defer free()
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.HandshakeTimeout)
	defer cancel()
	return g.secure(ctx, raw, protos)
}

// admit takes a slot for a connection that p made; free gives it back.
func (g *Guard) admit(p identity.Peer, raw net.Conn) (free func(), err error) {
	switch {
	case p.Local != nil:
		return g.conns.take("")
	case p.Leaf == nil:
		return g.strangers.take(sourceOf(raw.RemoteAddr()))
	case p.ID.IsZero():
		return g.conns.take(p.Key.String())
	}
	return g.conns.take(p.ID.String())
}

// refused tells about a refusal that nobody was told of yet, and returns it.
func (g *Guard) refused(err error) error {
	if _, ok := errors.AsType[*HandshakeError](err); !ok && !isNetwork(err) && g.cfg.OnRefused != nil {
		g.cfg.OnRefused(err)
	}
	return err
}

// failed tells about a handshake that failed, and returns why.
func (g *Guard) failed(err *HandshakeError) error {
	if g.cfg.OnFailure != nil {
		g.cfg.OnFailure(err)
	}
	return err
}

// secure shakes hands until ctx ends, for the first of protos. It closes raw if that comes to
// nothing.
func (g *Guard) secure(ctx context.Context, raw net.Conn, protos []string) (*Info, error) {
	addr := raw.RemoteAddr().String()
	var (
		verified identity.Verified
		under    *credential.Material
	)
	// A config for each connection, so that its hook knows which one it is.
	cfg := credential.ServerTLS(g.cfg.Source, credential.ServerOptions{
		SendRoot:   g.cfg.SendRoot,
		NextProtos: protos,
		OnVerified: func(m *credential.Material, v identity.Verified) { under, verified = m, v },
	})
	conn := tls.Server(raw, cfg)
	err := conn.HandshakeContext(ctx)
	state := conn.ConnectionState()
	if agreed := state.NegotiatedProtocol; err == nil && agreed != protos[0] && (agreed != "" || protos[0] == nextProtos[0]) {
		err = errNoALPN // of HTTP/1.1 nobody needs to say that it is that
	}
	if err != nil {
		err = classify(err, serverSide, addr, "")
		if failed, ok := errors.AsType[*HandshakeError](err); ok {
			g.failed(failed)
			linger(raw)
		}
		raw.Close()
		return nil, err
	}
	info := &Info{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		Peer:           identity.Peer{Addr: addr},
		state:          state,
		secured:        true,
	}
	live := &liveConn{Conn: conn, raw: raw}
	if under != nil {
		// In the slice that the connection itself keeps for as long as it stands: its own copy of a
		// certificate that thousands share would be a tenth of what it takes.
		for i, cert := range state.PeerCertificates[1:] {
			state.PeerCertificates[1+i] = g.meshCAs.of(cert)
		}
		info.Peer.ID, info.Peer.Err = verified.ID, verified.IDErr
		info.Peer.Leaf, info.Peer.Key = verified.Leaf, verified.Key
		live.expires = earliest(state.PeerCertificates)
		live.issuers = keysOf(state.PeerCertificates[1:])
		if len(state.PeerCertificates) > 1 {
			live.meshCA = state.PeerCertificates[1]
		}
		info.expires = sooner(live.expires, under.NotAfter())
	} else {
		live.idle = g.cfg.StrangerIdle
	}
	live.peer = info.Peer
	info.conn = live
	return info, nil
}

// errNoALPN is an error of the protocol: gRPC needs HTTP/2, agreed on in the
// handshake.
var errNoALPN = errors.New("mesh: the peer did not agree on HTTP/2")

// Bounds of linger.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
)

// linger lets a refused client read why. The client has sent its first request
// already; closing with unread bytes would reset the connection, and the reset
// overtakes the alert.
func linger(raw net.Conn) {
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		io.CopyN(io.Discard, raw, lingerBytes)
	}
}

// Unary is the interceptor of unary calls.
func (g *Guard) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call, err := g.enter(ctx, true)
	if err != nil {
		return nil, err
	}
	defer g.leave(call)
	resp, err := handler(call, req)
	return resp, call.info.conn.because(err)
}

// Stream is the interceptor of streams.
func (g *Guard) Stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	call, err := g.enter(ss.Context(), false)
	if err != nil {
		return err
	}
	defer g.leave(call)
	return call.info.conn.because(handler(srv, &guardedStream{ss, call, g}))
}

// enter decides about one call and registers it.
func (g *Guard) enter(ctx context.Context, unary bool) (*call, error) {
	info, ok := FromContext(ctx)
	if !ok || info.conn == nil {
		info = &Info{conn: new(liveConn)} // not the guard's, which has nothing against it
		if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
			info.Peer.Addr = from.Addr.String()
		}
		info.carry()
	}
	return g.enterOn(ctx, info, unary)
}

// enterOn is enter for a call on a connection of the guard's.
func (g *Guard) enterOn(ctx context.Context, info *Info, unary bool) (*call, error) {
	c := info.conn
	now := g.cfg.Now()
	if why := c.verdict(now, g.beliefs(g.calls.get(ctx))); why != nil {
		g.strike(c, why, now)
		return nil, why
	}
	if err := g.denied(info.Peer); err != nil {
		return nil, g.refused(err)
	}
	call := &call{Context: ctx, info: info, unary: unary}
	if err := c.begin(call); err != nil {
		return nil, err
	}
	return call, nil
}

// denied says why p may not call, or nil. Whom the cluster is of was checked as its chain was verified.
func (g *Guard) denied(p identity.Peer) error {
	switch {
	case g.cfg.Clients.Equal(credential.Expect{}), p.Local != nil && g.cfg.Local != nil:
		return nil
	case p.Identified() && g.cfg.Clients.Check(p.ID) == nil:
		return nil
	}
	return &DeniedError{Peer: p}
}

// DeniedError says that a caller is none of those in [GuardConfig.Clients]. What it says to the caller does not
// tell who they are.
type DeniedError struct{ Peer identity.Peer }

func (e *DeniedError) Error() string {
	switch {
	case e.Peer.Identified():
		return fmt.Sprintf("mesh: %s may not call here: ask whoever runs the server whom it serves", e.Peer.ID)
	case e.Peer.Leaf != nil:
		return fmt.Sprintf("mesh: the caller's certificate identifies nobody: %v", e.Peer.Err)
	}
	return "mesh: a call here takes a certificate that identifies a member"
}

// GRPCStatus is Unauthenticated for a caller without a certificate, and PermissionDenied for others. In HTTP it is
// 401, and 403.
func (e *DeniedError) GRPCStatus() *status.Status {
	code := codes.PermissionDenied
	if e.Peer.Leaf == nil {
		code = codes.Unauthenticated
	}
	return status.New(code, e.Error())
}

func (g *Guard) leave(c *call) { c.info.conn.end(c, g.cfg.Now) }

// strike cuts a connection that was found out between sweeps.
func (g *Guard) strike(c *liveConn, why *CutError, now time.Time) {
	g.cutting.Lock()
	defer g.cutting.Unlock()
	// The call that found it out still has to return: grace, even without others.
	if c.strike(why, now, g.cfg.Grace) {
		g.live.settle(c, now.Add(g.cfg.Grace))
		g.told([]cutConn{{c, why}})
	}
}

// guardedStream passes nothing on once its connection is cut or its peer's
// certificate ended, even to a handler that does not look at its context.
type guardedStream struct {
	grpc.ServerStream
	call *call
	g    *Guard
}

func (s *guardedStream) Context() context.Context { return s.call }

func (s *guardedStream) SendMsg(m any) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (s *guardedStream) RecvMsg(m any) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return s.call.info.conn.because(err)
	}
	return s.check() // it may have waited long
}

func (s *guardedStream) check() error {
	c := s.call.info.conn
	if cut := c.cut.Load(); cut != nil {
		return cut
	}
	// Time alone: bans come with a change of the source, on which the guard's watch acts.
	now := s.g.cfg.Now()
	if why := c.verdict(now, nil); why != nil {
		s.g.strike(c, why, now)
		return why
	}
	return nil
}

package mesh_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const cluster = "prod.example"

// The service under test: Its method Who answers with the caller's id, or,
// asked with a text, is unavailable and says it. Talk
// sends one message first, as a join does, then echoes. Deaf and Listen send one
// message too and then wait for unblock without a look at their contexts; Deaf
// then sends, Listen receives.
const (
	whoMethod    = "/test.Mesh/Who"
	talkMethod   = "/test.Mesh/Talk"
	deafMethod   = "/test.Mesh/Deaf"
	listenMethod = "/test.Mesh/Listen"
)

type service struct {
	mu    sync.Mutex
	peers []identity.Peer // of each call, in order; guarded by mu

	onWho   func(context.Context)        // what Who does before it answers; nil: nothing
	onTalk  func(context.Context) []byte // what Talk says first; nil: "hello"
	block   chan struct{}                // closed by unblock
	unblock func()
	ended   chan error  // buffered: what ended each Talk
	heard   chan []byte // buffered: what Listen received
}

func newService() *service {
	s := &service{block: make(chan struct{}), ended: make(chan error, 64), heard: make(chan []byte, 64)}
	s.unblock = sync.OnceFunc(func() { close(s.block) })
	return s
}

func (s *service) saw(ctx context.Context) identity.Peer {
	p := identity.FromContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = append(s.peers, p)
	return p
}

func (s *service) last() identity.Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[len(s.peers)-1]
}

func (s *service) talk(ss grpc.ServerStream) (err error) {
	defer func() { s.ended <- context.Cause(ss.Context()) }()
	s.saw(ss.Context())
	first := []byte("hello")
	if s.onTalk != nil {
		first = s.onTalk(ss.Context())
	}
	if err := ss.SendMsg(wrapperspb.Bytes(first)); err != nil {
		return err
	}
	got := make(chan error, 1)
	for {
		var m wrapperspb.BytesValue
		go func() { got <- ss.RecvMsg(&m) }()
		select {
		case <-ss.Context().Done():
			return ss.Context().Err()
		case err := <-got:
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := ss.SendMsg(&m); err != nil {
				return err
			}
		}
	}
}

var desc = grpc.ServiceDesc{
	ServiceName: "test.Mesh",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Who", Handler: func(srv any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
		var in wrapperspb.BytesValue
		if err := dec(&in); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, _ any) (any, error) {
			if len(in.GetValue()) > 0 {
				return nil, status.Error(codes.Unavailable, string(in.GetValue()))
			}
			p := srv.(*service).saw(ctx)
			if do := srv.(*service).onWho; do != nil {
				do(ctx)
			}
			return wrapperspb.Bytes([]byte(p.ID.String())), nil
		}
		if chain == nil {
			return handler(ctx, &in)
		}
		return chain(ctx, &in, &grpc.UnaryServerInfo{Server: srv, FullMethod: whoMethod}, handler)
	}}},
	Streams: []grpc.StreamDesc{
		{StreamName: "Talk", ServerStreams: true, ClientStreams: true, Handler: func(srv any, ss grpc.ServerStream) error { return srv.(*service).talk(ss) }},
		{StreamName: "Deaf", ServerStreams: true, ClientStreams: true, Handler: func(srv any, ss grpc.ServerStream) error {
			if err := ss.SendMsg(wrapperspb.Bytes(nil)); err != nil {
				return err
			}
			<-srv.(*service).block
			return ss.SendMsg(wrapperspb.Bytes([]byte("too late")))
		}},
		{StreamName: "Listen", ServerStreams: true, ClientStreams: true, Handler: func(srv any, ss grpc.ServerStream) error {
			if err := ss.SendMsg(wrapperspb.Bytes(nil)); err != nil {
				return err
			}
			<-srv.(*service).block
			var m wrapperspb.BytesValue
			if err := ss.RecvMsg(&m); err != nil {
				return err
			}
			srv.(*service).heard <- m.GetValue()
			return nil
		}},
	},
}

// serving is a server behind a guard.
type serving struct {
	*service
	guard    *mesh.Guard
	addr     string
	failures chan *mesh.HandshakeError
	refusals chan error
	cuts     chan *mesh.CutError
}

// serve runs a guarded server on ln until the test ends.
func serve(tb testing.TB, ln net.Listener, cfg mesh.GuardConfig) *serving {
	tb.Helper()
	return serveGuarded(tb, ln, cfg, func(*mesh.Guard) {})
}

// serveUnswept is serve without a watch of the connections: what the guard refuses then,
// it refuses call by call.
func serveUnswept(tb testing.TB, ln net.Listener, cfg mesh.GuardConfig) *serving {
	tb.Helper()
	return serveGuarded(tb, ln, cfg, (*mesh.Guard).Unwatched)
}

func serveGuarded(tb testing.TB, ln net.Listener, cfg mesh.GuardConfig, prepare func(*mesh.Guard)) *serving {
	tb.Helper()
	s := &serving{service: newService(), addr: ln.Addr().String(), failures: make(chan *mesh.HandshakeError, 64), refusals: make(chan error, 64), cuts: make(chan *mesh.CutError, 64)}
	cfg.OnFailure = func(e *mesh.HandshakeError) { s.failures <- e }
	cfg.OnRefused = func(err error) { s.refusals <- err }
	cfg.OnCut = func(_ identity.Peer, e *mesh.CutError) { s.cuts <- e }
	g, err := mesh.NewGuard(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	prepare(g)
	s.guard = g
	server := grpc.NewServer(g.ServerOptions()...)
	server.RegisterService(&desc, s.service)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(ln) })
	tb.Cleanup(func() {
		s.unblock()
		server.Stop()
		wg.Wait()
	})
	return s
}

func loopback(tb testing.TB) net.Listener {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}

// nobody is an address of loopback on which nobody listens, whoever asks for a port of any number meanwhile.
func nobody(tb testing.TB) string {
	tb.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}

// inMemory returns a listener for synctest bubbles and the options to dial it.
func inMemory() (net.Listener, mesh.Options) {
	ln := bufconn.Listen(1 << 16)
	return ln, mesh.Options{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }}
}

func dial(tb testing.TB, target string, src credential.Source, expect credential.Expect, opts mesh.Options) *mesh.Conn {
	tb.Helper()
	c, err := mesh.Dial(target, src, expect, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

func who(tb testing.TB, c grpc.ClientConnInterface, opts ...grpc.CallOption) (string, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out wrapperspb.BytesValue
	err := c.Invoke(ctx, whoMethod, wrapperspb.Bytes(nil), &out, opts...)
	return string(out.GetValue()), err
}

// talk opens a stream and reads its first message.
func talk(tb testing.TB, c grpc.ClientConnInterface, method string) (grpc.ClientStream, []byte, error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	st, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return nil, nil, err
	}
	var m wrapperspb.BytesValue
	err = st.RecvMsg(&m)
	return st, m.GetValue(), err
}

// echo sends one message and waits for it to come back.
func echo(st grpc.ClientStream, text string) error {
	if err := st.SendMsg(wrapperspb.Bytes([]byte(text))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var m wrapperspb.BytesValue
	if err := st.RecvMsg(&m); err != nil {
		return err
	}
	if string(m.GetValue()) != text {
		return errors.New("echo says " + string(m.GetValue()))
	}
	return nil
}

func material(tb testing.TB, a *pkitest.Authority, kind identity.Kind, name string, opts ...pkitest.IssueOption) *credential.Material {
	tb.Helper()
	chain, key := a.Issue(tb, a.ID(tb, kind, name), opts...)
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func trustOnly(tb testing.TB, b *identity.Bundle) *credential.Material {
	tb.Helper()
	m, err := credential.NewMaterial(credential.MaterialConfig{Bundle: b})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func banning(a *pkitest.Authority, ids ...identity.ID) *identity.Bundle {
	return a.Bundle(func(c *identity.BundleConfig) { c.BannedIDs = slices.Clone(ids) })
}

// sans edits a template to carry exactly these identities.
func sans(ids ...identity.ID) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, id := range ids {
			c.URIs = append(c.URIs, id.URL())
		}
	}
}

// receive waits for one value, for as long as a loaded machine may need.
func receive[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(2 * time.Minute):
		tb.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// clock is a clock that stands until it is set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

// standing tells apart what a server knows of a peer.
func standing(p identity.Peer) string {
	switch {
	case p.Identified():
		return "identified"
	case p.Err != nil || p.Leaf != nil:
		return "unidentified"
	}
	return "insecure"
}

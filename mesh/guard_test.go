package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A server is told who calls: a stranger, a member, or somebody verified who
// identifies nobody. All three connect.
func TestStandings(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	id := a.ID(t, identity.Data, "n1")
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	raw := func(edit func(*x509.Certificate)) *tls.Config {
		chain, key := a.IssueRaw(t, edit)
		return &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, InsecureSkipVerify: true}
	}
	for _, tc := range []struct {
		name string
		cfg  *tls.Config
		want string // see standing
		id   identity.ID
	}{
		{"no certificate", &tls.Config{InsecureSkipVerify: true}, "insecure", identity.ID{}},
		{"member", raw(sans(id)), "identified", id},
		{"no SAN", raw(sans()), "unidentified", identity.ID{}},
		{"two SANs", raw(sans(id, a.ID(t, identity.Admin, "root"))), "unidentified", identity.ID{}},
		{"foreign SAN", raw(sans(foreign.ID(t, identity.Data, "n1"))), "unidentified", identity.ID{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cc, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(tc.cfg)))
			if err != nil {
				t.Fatal(err)
			}
			defer cc.Close()
			if _, err := who(t, cc); err != nil {
				t.Fatal(err)
			}
			p := s.last()
			if standing(p) != tc.want || p.ID != tc.id || p.Addr == "" || (p.Leaf == nil) != (tc.want == "insecure") {
				t.Fatalf("unary peer %v, standing %v, want %v", p, standing(p), tc.want)
			}
			if _, _, err := talk(t, cc, talkMethod); err != nil {
				t.Fatal(err)
			}
			if why := p.Err; errors.Is(why, identity.ErrNoIdentity) != (tc.want == "unidentified") {
				t.Fatalf("the handler is told why: %v", why)
			}
			if p := s.last(); standing(p) != tc.want || p.ID != tc.id {
				t.Fatalf("stream peer %v, standing %v, want %v", p, standing(p), tc.want)
			}
		})
	}
}

// Behind a server without these credentials every caller is insecure, whatever
// it claims, and has no channel to bind a proof to.
func TestPlaintextIsInsecure(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	g, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	if err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{Port: 7}})
	ctx = identity.NewContext(ctx, identity.Peer{ID: a.ID(t, identity.Admin, "me")}) // smuggled in
	_, err = g.Unary(ctx, nil, nil, func(ctx context.Context, _ any) (any, error) {
		if p := identity.FromContext(ctx); standing(p) != "insecure" || p.Addr != ":7" {
			t.Errorf("peer %v", p)
		}
		if _, ok := proof.ConnectionState(ctx); ok {
			t.Error("plaintext has a TLS state")
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Both ends of a stream find the same exporter value, of that very connection,
// before the client has said anything.
func TestChannelBinding(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	export := func(ctx context.Context) []byte {
		cs, ok := proof.ConnectionState(ctx)
		if !ok {
			t.Error("no TLS state")
			return nil
		}
		b, err := cs.ExportKeyingMaterial("EXPORTER-fealty-test", nil, 32)
		if err != nil {
			t.Error(err)
		}
		return b
	}
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), SendRoot: true})
	s.onTalk = export
	seen := map[string]bool{}
	for _, connect := range []func() (*mesh.Conn, error){
		func() (*mesh.Conn, error) {
			return mesh.DialPinned(s.addr, pinned.Root(cluster, a.Root().KeyID()), mesh.Options{})
		},
		func() (*mesh.Conn, error) {
			return mesh.Dial(s.addr, credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
		},
	} {
		c, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		st, theirs, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if ours := export(st.Context()); len(ours) != 32 || string(ours) != string(theirs) {
			t.Fatal("the two ends have different bindings")
		}
		seen[string(theirs)] = true
		// The same for a unary call, by grpc.Peer.
		var p peer.Peer
		if _, err := who(t, c, grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		info, ok := p.AuthInfo.(*mesh.Info)
		if !ok || info.Peer.ID != a.ID(t, identity.Coordinator, "c1") {
			t.Fatalf("unary peer %+v", info)
		}
	}
	if len(seen) != 2 {
		t.Fatal("two connections share a binding")
	}
}

// Connections whose chains have the same mesh CA keep one copy of it. Each has its own leaf, and of another
// mesh CA another copy.
func TestConnectionsShareTheMeshCA(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	members := []*credential.Material{material(t, a, identity.Data, "n1"), material(t, a, identity.Data, "n2")}
	a.AddMeshCA(t)
	members = append(members, material(t, a, identity.Data, "n3"))
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	var chains [][]*x509.Certificate
	s.onWho = func(ctx context.Context) {
		state, _ := proof.ConnectionState(ctx)
		chains = append(chains, state.PeerCertificates)
	}
	for _, m := range members {
		c := dial(t, s.addr, credential.Static(trusting(t, a, m)), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
		if id, err := who(t, c); err != nil || id != m.ID().String() {
			t.Fatalf("%s called, and the server saw %q: %v", m.ID(), id, err)
		}
	}
	for i, chain := range chains {
		if len(chain) < 2 || !chain[0].Equal(members[i].Chain()[0]) || !chain[1].Equal(members[i].Chain()[1]) {
			t.Fatalf("connection %d has another chain than its client", i)
		}
	}
	if chains[0][1] != chains[1][1] {
		t.Error("two connections keep a copy each of their mesh CA")
	}
	if chains[2][1] == chains[0][1] {
		t.Error("a connection keeps another mesh CA than its own")
	}
}

// A ban ends what the peer has open, and keeps it out; nobody else notices.
func TestBanCutsAtOnce(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	s := serve(t, loopback(t), mesh.GuardConfig{Source: src})
	bad, good := material(t, a, identity.Data, "bad"), material(t, a, identity.Data, "good")
	expect := credential.AnyOfKind(identity.Coordinator)
	badConn := dial(t, s.addr, credential.Static(bad), expect, mesh.Options{})
	goodConn := dial(t, s.addr, credential.Static(good), expect, mesh.Options{})
	badStream, _, err := talk(t, badConn, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	deaf, _, err := talk(t, badConn, deafMethod)
	if err != nil {
		t.Fatal(err)
	}
	goodStream, _, err := talk(t, goodConn, talkMethod)
	if err != nil {
		t.Fatal(err)
	}

	if err := src.Trust(banning(a, bad.ID())); err != nil {
		t.Fatal(err)
	}
	var m wrapperspb.BytesValue
	if err := badStream.RecvMsg(&m); status.Code(err) != codes.PermissionDenied {
		t.Fatalf("the banned stream ended with %v", err)
	}
	cause := receive(t, s.ended, "the handler to end")
	if cut, ok := errors.AsType[*mesh.CutError](cause); !ok || cut.Reason != mesh.PeerBanned || cut.ID != bad.ID() {
		t.Fatalf("the handler's context ended because of %v", cause)
	}
	// A handler that does not look at its context loses the connection. After how long, is told by
	// TestFoundOutByACall, in virtual time.
	over := make(chan error, 1)
	go func() { over <- deaf.RecvMsg(new(wrapperspb.BytesValue)) }()
	if err := receive(t, over, "the ban to end what a deaf handler serves"); err == nil {
		t.Fatal("a banned peer is still served by a deaf handler")
	}
	if cut := receive(t, s.cuts, "the cut"); cut.Reason != mesh.PeerBanned {
		t.Fatal(cut)
	}
	if _, err := who(t, badConn); !rejected(err, mesh.ClientRejected) {
		t.Fatalf("coming back: %v", err)
	}
	if e := receive(t, s.failures, "the refusal"); e.Reason != mesh.PeerUntrusted || e.Rule != "banned-id" {
		t.Fatalf("the server says %v", e)
	}
	if err := echo(goodStream, "still here"); err != nil {
		t.Fatalf("another peer's stream: %v", err)
	}
}

// A banned mesh CA key ends the connections of all it signed for.
func TestBannedIssuerCuts(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	n1 := material(t, a, identity.Data, "n1") // by the first mesh CA
	stolen := a.MeshCA().KeyID()
	a.AddMeshCA(t)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	s := serve(t, loopback(t), mesh.GuardConfig{Source: src})
	c := dial(t, s.addr, credential.Static(trusting(t, a, n1)), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	st, _, err := talk(t, c, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.BannedKeys = []identity.KeyID{stolen} })); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
}

// trusting returns m with the authority's bundle of now.
func trusting(tb testing.TB, a *pkitest.Authority, m *credential.Material) *credential.Material {
	tb.Helper()
	n, err := credential.NewMaterial(credential.MaterialConfig{Chain: m.Chain(), Key: m.Key(), Bundle: a.Bundle()})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// Rotation of the server's own material, roots added, mesh keys withdrawn: none
// of it ends a stream (I18).
func TestServerRotationCutsNothing(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	other := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	s := serve(t, loopback(t), mesh.GuardConfig{Source: src})
	c := dial(t, s.addr, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	st, _, err := talk(t, c, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func() error{
		func() error { return src.Adopt(material(t, a, identity.Coordinator, "c1")) },
		func() error {
			return src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.Roots = append(c.Roots, other.Root().Cert) }))
		},
		func() error { return src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.MeshKeys = nil })) },
		func() error { return src.Trust(other.Bundle()) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		s.guard.Sweep(t.Context())
		if err := echo(st, "x"); err != nil {
			t.Fatal(err)
		}
	}
}

// In virtual time: a stream that is idle when its peer's certificate ends is cut
// within a second, and told why; before, for all of its hour, it is not.
func TestExpiryCutsLiveStream(t *testing.T) {
	for _, method := range []string{talkMethod, deafMethod} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pkitest.NewAuthority(t, cluster)
				ln, opts := inMemory()
				s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
				// Another connection, which ends much later, must not set the pace.
				if _, err := who(t, dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Data, "n2")), credential.AnyOfKind(identity.Coordinator), opts)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				m := material(t, a, identity.Data, "n1", pkitest.WithTTL(time.Hour))
				c := dial(t, "passthrough:///c1", credential.Static(m), credential.AnyOfKind(identity.Coordinator), opts)
				st, _, err := talk(t, c, method)
				if err != nil {
					t.Fatal(err)
				}
				info, ok := mesh.FromContext(st.Context())
				if !ok || !info.Expires().Equal(m.NotAfter()) {
					t.Fatalf("the client is told to move by %v, want %v", info.Expires(), m.NotAfter())
				}
				if method == talkMethod {
					time.Sleep(time.Until(m.NotAfter()))
					if err := echo(st, "last minute"); err != nil {
						t.Fatalf("cut before the end: %v", err)
					}
				}
				err = st.RecvMsg(&wrapperspb.BytesValue{})
				late := time.Since(m.NotAfter())
				if err == nil || late <= 0 || late > time.Second {
					t.Fatalf("cut %v after the end of the certificate, with %v", late, err)
				}
				if method == talkMethod && status.Code(err) != codes.Unauthenticated {
					t.Fatalf("cut with %v, want Unauthenticated", err)
				}
				if cut := <-s.cuts; cut.Reason != mesh.CertificateExpired || !cut.NotAfter.Equal(m.NotAfter()) {
					t.Fatal(cut)
				}
			})
		})
	}
}

// A new call is refused by the clock alone, also where nobody runs the guard.
func TestExpiredCallIsRefused(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	clock := newClock()
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Now: clock.now})
	m := material(t, a, identity.Data, "n1", pkitest.WithTTL(time.Hour))
	c := dial(t, s.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	clock.set(m.NotAfter())
	if _, err := who(t, c); err != nil {
		t.Fatalf("at the very end: %v", err)
	}
	clock.set(m.NotAfter().Add(time.Millisecond))
	if _, err := who(t, c); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("a millisecond later: %v", err)
	}
}

// A stream that nobody sweeps carries nothing past the end of the certificate.
func TestExpiredStreamCarriesNothing(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	clock := newClock()
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Now: clock.now})
	m := material(t, a, identity.Data, "n1", pkitest.WithTTL(time.Hour))
	expect := credential.AnyOfKind(identity.Coordinator)
	heard, _, err := talk(t, dial(t, s.addr, credential.Static(m), expect, mesh.Options{}), talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	told, _, err := talk(t, dial(t, s.addr, credential.Static(m), expect, mesh.Options{}), deafMethod)
	if err != nil {
		t.Fatal(err)
	}
	clock.set(m.NotAfter().Add(time.Millisecond))
	if err := echo(heard, "x"); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("a message from the peer: %v", err)
	}
	s.unblock()
	if err := told.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("a message to the peer: %v", err)
	}
}

// In the grace of a cut, a handler that does not look at its context can neither
// send nor receive.
func TestCutStreamCarriesNothing(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{Source: src, Grace: time.Hour})
	m := material(t, a, identity.Data, "n1")
	c := dial(t, s.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	told, _, err := talk(t, c, deafMethod)
	if err != nil {
		t.Fatal(err)
	}
	heard, _, err := talk(t, c, listenMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Trust(banning(a, m.ID())); err != nil {
		t.Fatal(err)
	}
	s.guard.Sweep(t.Context())
	if err := heard.SendMsg(wrapperspb.Bytes([]byte("order"))); err != nil {
		t.Fatal(err)
	}
	s.unblock()
	for name, st := range map[string]grpc.ClientStream{"to": told, "from": heard} {
		if err := st.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a message %s the peer: %v", name, err)
		}
	}
	select {
	case m := <-s.heard:
		t.Errorf("the handler heard %q", m)
	default:
	}
}

// A connection that is cut stays cut, even if the ban is lifted while its calls
// have their grace: it may be closed at any moment.
func TestCutIsFinal(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{Source: src, Grace: time.Hour})
	m := material(t, a, identity.Data, "n1")
	c := dial(t, s.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if _, _, err := talk(t, c, deafMethod); err != nil { // has its grace
		t.Fatal(err)
	}
	for _, b := range []*identity.Bundle{banning(a, m.ID()), a.Bundle()} {
		if err := src.Trust(b); err != nil {
			t.Fatal(err)
		}
		s.guard.Sweep(t.Context())
		if _, err := who(t, c); status.Code(err) != codes.PermissionDenied {
			t.Fatalf("with %d bans: %v", len(b.BannedIDs()), err)
		}
	}
}

// With a source that does not tell of its changes, the next call finds out, and
// the connection ends after the grace of what runs on it.
func TestFoundOutByACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		server := material(t, a, identity.Coordinator, "c1")
		src := &flaky{m: server}
		serve(t, ln, mesh.GuardConfig{Source: src})
		m := material(t, a, identity.Data, "n1")
		c := dial(t, "passthrough:///c1", credential.Static(m), credential.AnyOfKind(identity.Coordinator), opts)
		st, _, err := talk(t, c, deafMethod)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		issued := credential.NewIssued(server)
		if err := issued.Trust(banning(a, m.ID())); err != nil {
			t.Fatal(err)
		}
		now, err := issued.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		src.set(now)
		start := time.Now()
		if _, err := who(t, c); status.Code(err) != codes.PermissionDenied {
			t.Fatal(err)
		}
		if err := st.RecvMsg(&wrapperspb.BytesValue{}); err == nil {
			t.Fatal("the stream goes on")
		}
		if took := time.Since(start); took < mesh.DefaultGrace || took > mesh.DefaultGrace+time.Millisecond {
			t.Fatalf("closed after %v, want the grace", took)
		}
	})
}

// replaced is the bundle after another root took the place of a's, which vouches for
// members alone from then on.
func replaced(tb testing.TB, a *pkitest.Authority) *identity.Bundle {
	next := pkitest.NewAuthority(tb, cluster)
	return a.Bundle(func(c *identity.BundleConfig) {
		c.RetiredRoots, c.Roots = c.Roots, []*x509.Certificate{next.Root().Cert}
		c.MeshKeys = append(c.MeshKeys, next.MeshCA().KeyID())
	})
}

// A call that changes the root of its own caller is answered, however long it takes from
// there. Nothing else is: no stream, and no other call. The connection ends with the
// answer, and without one when the time for it is over.
func TestRootRetiredByACall(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, stands time.Duration
		answered      bool
	}{
		"in time": {3 * time.Second, 3*time.Second + mesh.DefaultGrace, true},
		"never":   {time.Minute, 10 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pkitest.NewAuthority(t, cluster)
				ln, opts := inMemory()
				src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
				s := serve(t, ln, mesh.GuardConfig{Source: src})
				s.onWho = func(context.Context) {
					if err := src.Trust(replaced(t, a)); err != nil {
						t.Error(err)
					}
					time.Sleep(tc.takes)
				}
				c := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Admin, "me")), credential.AnyOfKind(identity.Coordinator), opts)
				deaf, _, err := talk(t, c, deafMethod)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				asked := make(chan error, 1)
				go func() { _, err := who(t, c); asked <- err }()
				synctest.Wait()
				if cut := receive(t, s.cuts, "the cut"); cut.Reason != mesh.RootRetired {
					t.Fatal(cut)
				}
				if _, err := who(t, c); status.Code(err) != codes.Unauthenticated {
					t.Errorf("another call: %v", err)
				}
				if err := <-asked; (err == nil) != tc.answered {
					t.Errorf("the call that did it: %v", err)
				}
				if err := deaf.RecvMsg(&wrapperspb.BytesValue{}); err == nil {
					t.Error("the stream goes on")
				}
				if took := time.Since(start); took < tc.stands || took > tc.stands+time.Millisecond {
					t.Errorf("the connection stood for %v, want %v", took, tc.stands)
				}
				time.Sleep(tc.takes) // the handler ends
			})
		})
	}
}

// heldConn is a connection whose writes wait for hold, if there is one.
type heldConn struct {
	net.Conn
	hold *atomic.Pointer[chan struct{}]
}

func (c heldConn) Write(p []byte) (int, error) {
	if hold := c.hold.Load(); hold != nil {
		<-*hold
	}
	return c.Conn.Write(p)
}

type heldListener struct {
	net.Listener
	hold atomic.Pointer[chan struct{}]
}

func (l *heldListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return heldConn{c, &l.hold}, nil
}

// An answer that is on its way when the connection is cut arrives: the call is over, and
// what it came to is not written yet.
func TestAnswerOnItsWay(t *testing.T) {
	for name, bundle := range map[string]func(testing.TB, *pkitest.Authority) *identity.Bundle{
		"root": replaced,
		"ban": func(tb testing.TB, a *pkitest.Authority) *identity.Bundle {
			return banning(a, a.ID(tb, identity.Admin, "me"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pkitest.NewAuthority(t, cluster)
				ln, opts := inMemory()
				held := &heldListener{Listener: ln}
				src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
				s := serveUnswept(t, held, mesh.GuardConfig{Source: src})
				hold := make(chan struct{})
				c := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Admin, "me")), credential.AnyOfKind(identity.Coordinator), opts)
				if _, err := who(t, c); err != nil {
					t.Fatal(err)
				}
				s.onWho = func(context.Context) { held.hold.Store(&hold) }
				asked := make(chan error, 1)
				go func() { _, err := who(t, c); asked <- err }()
				synctest.Wait()
				if err := src.Trust(bundle(t, a)); err != nil {
					t.Fatal(err)
				}
				s.guard.Sweep(t.Context())
				held.hold.Store(nil)
				close(hold)
				if err := <-asked; err != nil {
					t.Error(err)
				}
				time.Sleep(2 * mesh.DefaultGrace)
				s.guard.Sweep(t.Context())
				if _, err := who(t, c); err == nil {
					t.Error("the connection stands")
				}
			})
		})
	}
}

// While the source fails, the last bans it gave stay in force.
func TestBansOutliveAFailingSource(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	issued := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	m := material(t, a, identity.Data, "n1")
	now, err := issued.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	src := &flaky{m: now}
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{Source: src, Grace: time.Hour})
	c := dial(t, s.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if _, err := who(t, c); err != nil {
		t.Fatal(err)
	}
	if err := issued.Trust(banning(a, m.ID())); err != nil {
		t.Fatal(err)
	}
	if now, err = issued.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	src.set(now)
	// Somebody else's call brings the ban in; then the source fails.
	if _, err := who(t, dial(t, s.addr, credential.Static(material(t, a, identity.Data, "n2")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})); err != nil {
		t.Fatal(err)
	}
	src.set(nil)
	if _, err := who(t, c); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
}

func TestMaxConns(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), MaxConns: 2, MaxStrangers: 1})
	expect := credential.AnyOfKind(identity.Coordinator)
	stranger := func() *mesh.Conn {
		return dial(t, s.addr, credential.Static(trustOnly(t, a.Bundle())), expect, mesh.Options{})
	}
	first := stranger()
	if _, err := who(t, first); err != nil {
		t.Fatal(err)
	}
	second := stranger()
	if _, err := who(t, second); err == nil {
		t.Fatal("a second stranger is let in")
	}
	second.Close() // else it takes the slot that the first leaves
	if full, ok := errors.AsType[*mesh.FullError](receive(t, s.refusals, "the refusal")); !ok || !full.Strangers || full.Limit != 1 {
		t.Fatalf("refused with %v", full)
	}
	var members []*mesh.Conn
	for _, name := range []string{"n1", "n2"} {
		c := dial(t, s.addr, credential.Static(material(t, a, identity.Data, name)), expect, mesh.Options{})
		if _, err := who(t, c); err != nil {
			t.Fatalf("a member is kept out by strangers: %v", err)
		}
		members = append(members, c)
	}
	last := dial(t, s.addr, credential.Static(material(t, a, identity.Data, "n3")), expect, mesh.Options{})
	if _, err := who(t, last); err == nil {
		t.Fatal("a third member is let in")
	}
	if full, ok := errors.AsType[*mesh.FullError](receive(t, s.refusals, "the refusal")); !ok || full.Strangers || full.Limit != 2 {
		t.Fatalf("refused with %v", full)
	}
	// Places are given back, both sorts.
	patiently := func(c *mesh.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := c.Invoke(ctx, whoMethod, wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}, grpc.WaitForReady(true)); err != nil {
			t.Fatalf("after a slot became free: %v", err)
		}
	}
	members[0].Close()
	patiently(last)
	first.Close()
	patiently(stranger())
}

// Where gRPC gives up between the handshake and its first read, it closes the
// raw connection alone; the slot is given back all the same. So it is when a
// handshake fails.
func TestPlacesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		g, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), MaxConns: 1, MaxStrangers: 1})
		if err != nil {
			t.Fatal(err)
		}
		// shake is one connection up to the moment at which gRPC would take over.
		shake := func(protos ...string) error {
			client, server := net.Pipe()
			go tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: protos}).Handshake()
			_, _, err := g.Credentials().ServerHandshake(server)
			server.Close()
			client.Close()
			return err
		}
		for range 3 {
			if err := shake(); !rejected(err, mesh.Protocol) {
				t.Fatal(err)
			}
		}
		for range 3 {
			if err := shake("h2"); err != nil {
				t.Fatal(err)
			}
			if full, ok := errors.AsType[*mesh.FullError](shake("h2")); !ok || !full.Strangers {
				t.Fatal("the slot was not taken")
			}
			time.Sleep(11 * time.Second)
			if handshakes, conns, strangers, holders := g.Taken(); handshakes+conns+strangers+holders != 0 {
				t.Fatalf("%d handshakes, %d connections, %d strangers, %d holders are left", handshakes, conns, strangers, holders)
			}
		}
	})
}

func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		silent, err := opts.Dialer(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := silent.Read(make([]byte, 1)); err == nil {
			t.Fatal("the server speaks first")
		}
		if took := time.Since(start); took != internalmesh.HandshakeTimeout {
			t.Fatalf("a silent client held its slot for %v", took)
		}
	})
}

// A refused client gets to read why: the server ends its own side first, and
// takes in what the client had sent, for a bounded time, so that no reset
// overtakes the alert.
func TestRefusedClientReadsWhy(t *testing.T) {
	for _, patient := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := pkitest.NewAuthority(t, cluster)
			inner, opts := inMemory()
			ln := &halfListener{Listener: inner, conns: make(chan *halfConn, 1)}
			s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
			chain, key := a.IssueRaw(t, sans(a.ID(t, identity.Data, "n1")), pkitest.Expired())
			raw, err := opts.Dialer(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
			const early = 32 << 10 // some of it is read with the handshake
			if _, err := c.Write(make([]byte, early)); err != nil {
				t.Fatal(err)
			}
			if e := <-s.failures; e.Reason != mesh.Expired {
				t.Fatal(e)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
				t.Fatalf("the client reads %v", err)
			}
			server := <-ln.conns
			start := time.Now()
			if !patient {
				raw.Close()
			}
			<-server.closed
			took := time.Since(start)
			if server.drained < early/2 {
				t.Errorf("closed with only %d of %d bytes read", server.drained, early)
			}
			if patient && (took <= 0 || took > time.Second) || !patient && took != 0 {
				t.Errorf("patient %v: closed after %v", patient, took)
			}
		})
	}
}

// halfListener accepts connections that can be closed for writing alone.
type halfListener struct {
	net.Listener
	conns chan *halfConn
}

func (l *halfListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	h := &halfConn{Conn: c, closed: make(chan struct{})}
	l.conns <- h
	return h, nil
}

// halfConn counts what is read after its writing side was closed.
type halfConn struct {
	net.Conn
	half    bool // owned by the server's goroutine until closed
	drained int  // likewise
	once    sync.Once
	closed  chan struct{}
}

func (c *halfConn) CloseWrite() error { c.half = true; return nil }
func (c *halfConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.half {
		c.drained += n
	}
	return n, err
}
func (c *halfConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestNewGuardChecks(t *testing.T) {
	src := credential.Static(nil)
	for name, cfg := range map[string]mesh.GuardConfig{
		"no source": {}, "negative limit": {Source: src, MaxConns: -1}, "negative grace": {Source: src, Grace: -1},
		"negative strangers": {Source: src, MaxStrangers: -1}, "negative strangers of a source": {Source: src, StrangersPerSource: -1},
		"negative connections of an identity": {Source: src, MaxPerIdentity: -1}, "negative idleness": {Source: src, StrangerIdle: -1},
		"negative handshakes": {Source: src, MaxHandshakes: -1}, "negative handshakes of a source": {Source: src, HandshakesPerSource: -1},
		"negative timeout": {Source: src, HandshakeTimeout: -1},
	} {
		if _, err := mesh.NewGuard(cfg); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// rejected reports whether err holds a handshake error with that reason.
func rejected(err error, r mesh.Reason) bool {
	e, ok := errors.AsType[*mesh.HandshakeError](err)
	return ok && e.Reason == r
}

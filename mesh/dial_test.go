package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/wait"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// listener runs handle for each connection until the test ends.
func listener(tb testing.TB, handle func(net.Conn)) string {
	tb.Helper()
	ln := loopback(tb)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * time.Minute))
				handle(c)
			})
		}
	})
	tb.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// tlsListener shakes hands with cfg and then reads until the client leaves.
func tlsListener(tb testing.TB, cfg *tls.Config) string {
	return listener(tb, func(c net.Conn) {
		s := tls.Server(c, cfg)
		if s.Handshake() == nil {
			io.Copy(io.Discard, s)
		}
	})
}

func serverCert(tb testing.TB, a *pkitest.Authority, edit func(*x509.Certificate), opts ...pkitest.IssueOption) *tls.Config {
	tb.Helper()
	chain, key := a.IssueRaw(tb, edit, opts...)
	return &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, NextProtos: []string{"h2"}}
}

// Each reason that a client can meet, against real listeners, as a unary call
// and as a stream.
func TestHandshakeReasons(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	c1 := a.ID(t, identity.Coordinator, "c1")
	me := material(t, a, identity.Data, "n1")
	expect := credential.ExactID(c1)
	reach := func(addr string) func(mesh.Options) (*mesh.Conn, error) {
		return func(o mesh.Options) (*mesh.Conn, error) { return mesh.Dial(addr, credential.Static(me), expect, o) }
	}
	with := func(cfg *tls.Config) func(mesh.Options) (*mesh.Conn, error) { return reach(tlsListener(t, cfg)) }
	old := serverCert(t, a, sans(c1))
	old.MaxVersion = tls.VersionTLS12
	noALPN := serverCert(t, a, sans(c1))
	noALPN.NextProtos = nil
	otherALPN := serverCert(t, a, sans(c1))
	otherALPN.NextProtos = []string{"http/1.1"}
	banned := a.ID(t, identity.Coordinator, "bad")
	distrust, err := credential.NewMaterial(credential.MaterialConfig{Bundle: banning(a, banned)})
	if err != nil {
		t.Fatal(err)
	}
	chain, key := a.Issue(t, c1)
	refusing, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: banning(a, me.ID())})
	if err != nil {
		t.Fatal(err)
	}
	byPin := func(addr string, p pinned.Pin) func(mesh.Options) (*mesh.Conn, error) {
		return func(o mesh.Options) (*mesh.Conn, error) { return mesh.DialPinned(addr, p, o) }
	}
	guarded := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), SendRoot: true})

	rows := []struct {
		name    string
		connect func(mesh.Options) (*mesh.Conn, error)
		want    mesh.Reason
		rule    string
		typed   error // errors.Is through everything; nil: nothing to find
	}{
		{"other root", with(serverCert(t, foreign, sans(c1))), mesh.PeerUntrusted, "root-known", identity.ErrUntrusted},
		{"banned", func(o mesh.Options) (*mesh.Conn, error) {
			return mesh.Dial(tlsListener(t, serverCert(t, a, sans(banned))), credential.Static(distrust), credential.AnyOfKind(identity.Coordinator), o)
		}, mesh.PeerUntrusted, "banned-id", identity.ErrBanned},
		{"CA as leaf", with(serverCert(t, a, func(c *x509.Certificate) { sans(c1)(c); c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign })), mesh.PeerUntrusted, "", identity.ErrProfile},
		{"root pin", byPin(guarded.addr, pinned.Root(cluster, foreign.Root().KeyID())), mesh.PeerUntrusted, "", pinned.ErrMismatch},
		{"leaf pin", byPin(guarded.addr, pinned.Leaf(foreign.Root().KeyID())), mesh.PeerUntrusted, "", pinned.ErrMismatch},
		{"other name", with(serverCert(t, a, sans(a.ID(t, identity.Coordinator, "c2")))), mesh.IdentityMismatch, "", nil},
		{"other kind", with(serverCert(t, a, sans(a.ID(t, identity.Shard, "c1")))), mesh.IdentityMismatch, "", nil},
		{"no SAN", with(serverCert(t, a, sans())), mesh.NoIdentity, "", identity.ErrNoIdentity},
		{"two SANs", with(serverCert(t, a, sans(c1, c1))), mesh.NoIdentity, "", identity.ErrNoIdentity},
		{"foreign SAN", with(serverCert(t, a, sans(foreign.ID(t, identity.Coordinator, "c1")))), mesh.NoIdentity, "", identity.ErrNoIdentity},
		{"expired", with(serverCert(t, a, sans(c1), pkitest.Expired())), mesh.Expired, "", identity.ErrExpired},
		{"not yet valid", with(serverCert(t, a, sans(c1), pkitest.NotYetValid())), mesh.Expired, "", identity.ErrExpired},
		{"server refuses us", func(o mesh.Options) (*mesh.Conn, error) {
			s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(refusing)})
			return mesh.Dial(s.addr, credential.Static(me), expect, o)
		}, mesh.ClientRejected, "", nil},
		{"plain crypto/tls refuses us", func(o mesh.Options) (*mesh.Conn, error) {
			cfg := serverCert(t, a, sans(c1))
			cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			// Reads what the client sent before it closes, so that no reset overtakes the alert.
			addr := listener(t, func(c net.Conn) {
				tls.Server(c, cfg).Handshake()
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			})
			return mesh.Dial(addr, credential.Static(me), expect, o)
		}, mesh.ClientRejected, "", nil},
		{"TLS 1.2", with(old), mesh.Protocol, "", nil},
		{"no ALPN", with(noALPN), mesh.Protocol, "", nil},
		{"other ALPN", with(otherALPN), mesh.Protocol, "", nil},
		{"not TLS", reach(listener(t, func(c net.Conn) { io.WriteString(c, "220 mail.example ESMTP\r\n"); io.Copy(io.Discard, c) })), mesh.Protocol, "", nil},
		{"server without material", func(o mesh.Options) (*mesh.Conn, error) {
			s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.NewIssued(nil)})
			return mesh.Dial(s.addr, credential.Static(me), expect, o)
		}, mesh.Protocol, "", nil},
	}
	covered := map[mesh.Reason]bool{mesh.ServerRejected: true} // see TestServerSideReasons
	for _, tc := range rows {
		covered[tc.want] = true
		t.Run(tc.name, func(t *testing.T) {
			told := make(chan *mesh.HandshakeError, 64)
			c, err := tc.connect(mesh.Options{OnFailure: func(e *mesh.HandshakeError) { told <- e }})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, unary := who(t, c)
			_, _, stream := talk(t, c, talkMethod)
			for kind, err := range map[string]error{"unary": unary, "stream": stream} {
				e, ok := errors.AsType[*mesh.HandshakeError](err)
				if !ok || e.Reason != tc.want || e.Endpoint == "" || e.Expected == "" {
					t.Fatalf("%s: %v (%T), want reason %s", kind, err, err, tc.want)
				}
				if tc.rule != "" && e.Rule != tc.rule {
					t.Errorf("%s: rule %q, want %q", kind, e.Rule, tc.rule)
				}
				if tc.typed != nil && !errors.Is(err, tc.typed) {
					t.Errorf("%s: %v does not match %v", kind, err, tc.typed)
				}
				if none, ok := errors.AsType[*mesh.NoEndpointsError](err); !ok || len(none.Failures) != 1 {
					t.Errorf("%s: %v is no NoEndpointsError of one endpoint", kind, err)
				}
				if code := status.Code(err); code != codes.Unavailable {
					t.Errorf("%s: code %v", kind, code)
				}
				carried := mesh.FromStatus(status.Convert(err))
				if len(carried) != 1 || carried[0].Error() != e.Error() {
					t.Errorf("%s: the status carries %v", kind, carried)
				}
				redacted(t, err)
			}
			if e := receive(t, told, "OnFailure"); e.Reason != tc.want {
				t.Errorf("OnFailure was told %v", e)
			}
		})
	}
	for _, r := range mesh.Reasons() {
		if !covered[r] {
			t.Errorf("no row refuses with %s", r)
		}
	}
}

// redacted fails if an error shows what libraries say, or what the peer sent.
func redacted(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*mesh.HandshakeError](err)
	if !ok {
		t.Fatal(err)
	}
	j, jerr := json.Marshal(e)
	if jerr != nil {
		t.Fatal(jerr)
	}
	var back mesh.HandshakeError
	if err := json.Unmarshal(j, &back); err != nil || back.Error() != e.Error() {
		t.Errorf("JSON loses something: %s: %v", j, err)
	}
	for _, text := range []string{err.Error(), status.Convert(err).Message(), string(j), fmt.Sprintf("%v %+v %s", e, e, err)} {
		for _, bad := range []string{"tls:", "x509:", "remote error", "desc =", "transport:", "0x", "/c2", "other.example", "mail.example", "BEGIN"} {
			if strings.Contains(text, bad) {
				t.Errorf("%q shows %q", text, bad)
			}
		}
	}
}

// The name of the server's side of a failed handshake.
func TestServerSideReasons(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	client := func(cfg *tls.Config) func(net.Conn) {
		cfg.NextProtos = []string{"h2"}
		return func(c net.Conn) {
			s := tls.Client(c, cfg)
			if s.Handshake() == nil {
				s.Read(make([]byte, 1))
			}
		}
	}
	with := func(a *pkitest.Authority, id identity.ID, opts ...pkitest.IssueOption) *tls.Config {
		chain, key := a.IssueRaw(t, sans(id), opts...)
		return &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, InsecureSkipVerify: true}
	}
	for _, tc := range []struct {
		name   string
		client func(net.Conn)
		want   mesh.Reason
	}{
		{"other root", client(with(foreign, foreign.ID(t, identity.Data, "n1"))), mesh.PeerUntrusted},
		{"expired", client(with(a, a.ID(t, identity.Data, "n1"), pkitest.Expired())), mesh.Expired},
		{"client refuses us", client(&tls.Config{RootCAs: x509.NewCertPool(), ServerName: "c1"}), mesh.ServerRejected},
		{"TLS 1.2", client(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}), mesh.Protocol},
		{"plaintext", func(c net.Conn) {
			io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			c.Read(make([]byte, 64))
		}, mesh.Protocol},
		{"no ALPN", func(c net.Conn) {
			s := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			s.Handshake()
			s.Read(make([]byte, 1))
		}, mesh.Protocol},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(2 * time.Minute))
			tc.client(c)
			e := receive(t, s.failures, "the server's account")
			c.Close()
			if e.Reason != tc.want || e.Endpoint != c.LocalAddr().String() {
				t.Fatalf("the server says %v, want %s", e, tc.want)
			}
			redacted(t, e)
		})
	}
	// Comings and goings are no failures.
	for range 3 {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if _, err := who(t, dial(t, s.addr, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-s.failures:
		t.Fatalf("a port scan is reported as %v", e)
	default:
	}
}

// A plain network failure is never reported as a handshake failure, also where a
// handshake failed at the same endpoint before.
func TestNetworkFailureIsNoHandshakeFailure(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	me := credential.Static(material(t, a, identity.Data, "n1"))
	expect := credential.AnyOfKind(identity.Coordinator)
	gone := nobody(t)
	good := serverCert(t, a, sans(a.ID(t, identity.Coordinator, "c1")))
	reset := func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }
	for _, tc := range []struct {
		name string
		addr string
	}{
		{"refused", gone},
		{"closed at once", listener(t, func(c net.Conn) {})},
		{"closed in the handshake", listener(t, func(c net.Conn) { c.Read(make([]byte, 1024)) })},
		{"reset in the handshake", listener(t, func(c net.Conn) { c.Read(make([]byte, 1024)); reset(c) })},
		{"closed after the handshake", listener(t, func(c net.Conn) { tls.Server(c, good).Handshake() })},
		{"reset after the handshake", listener(t, func(c net.Conn) { tls.Server(c, good).Handshake(); reset(c) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, tc.addr, me, expect, mesh.Options{OnFailure: func(e *mesh.HandshakeError) { t.Errorf("OnFailure: %v", e) }})
			_, err := who(t, c)
			if h, ok := errors.AsType[*mesh.HandshakeError](err); ok || status.Code(err) != codes.Unavailable {
				t.Fatalf("%v (%v)", err, h)
			}
			if e, ok := errors.AsType[*mesh.EndpointError](err); !ok || e.Endpoint != tc.addr {
				t.Fatalf("%v names no endpoint", err)
			}
		})
	}
	t.Run("silent until the deadline", func(t *testing.T) {
		c := dial(t, listener(t, func(c net.Conn) { io.Copy(io.Discard, c) }), me, expect, mesh.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := c.Invoke(ctx, whoMethod, wrapperspb.Bytes(nil), &wrapperspb.BytesValue{})
		if h, ok := errors.AsType[*mesh.HandshakeError](err); ok || status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("%v (%v)", err, h)
		}
	})
}

// In virtual time: an endpoint that failed its handshake heals when it is put
// right, and one that then goes away is a network failure again.
func TestEndpointHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		other := pkitest.NewAuthority(t, cluster)
		src := credential.NewIssued(material(t, other, identity.Coordinator, "c1"))
		ln, opts := inMemory()
		serve(t, ln, mesh.GuardConfig{Source: src})
		var down atomic.Bool
		inner := opts.Dialer
		opts.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no route")}
			}
			return inner(ctx, addr)
		}
		c := dial(t, "passthrough:///c1", credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator), opts)
		if _, err := who(t, c); !rejected(err, mesh.PeerUntrusted) {
			t.Fatal(err)
		}
		down.Store(true)
		time.Sleep(time.Minute)
		_, err := who(t, c)
		if _, ok := errors.AsType[*mesh.HandshakeError](err); ok || err == nil {
			t.Fatalf("while it is away: %v", err)
		}
		down.Store(false)
		if err := src.Adopt(material(t, a, identity.Coordinator, "c1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := who(t, c); err != nil {
			t.Fatalf("after it was put right: %v", err)
		}
	})
}

// The call after a change runs on the new material; the stream before it stays
// where it is, is told, and its connection goes when it ends (I18).
func TestClientRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		first, second := material(t, a, identity.Data, "n1"), material(t, a, identity.Data, "n1")
		src := credential.NewIssued(first)
		c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)
		st, _, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if p := s.last(); p.Key != first.Pin() {
			t.Fatalf("the first stream runs on %v", p)
		}
		info, ok := mesh.FromContext(st.Context())
		if !ok || info.Superseded() == nil {
			t.Fatal("the stream cannot learn that it is superseded")
		}
		select {
		case <-info.Superseded():
			t.Fatal("superseded before a change")
		default:
		}
		if err := src.Adopt(second); err != nil {
			t.Fatal(err)
		}
		receive(t, info.Superseded(), "the stream to be told")
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		if p := s.last(); p.Key != second.Pin() {
			t.Fatal("a call after the change runs on the old material")
		}
		if err := echo(st, "undisturbed"); err != nil {
			t.Fatalf("the running stream: %v", err)
		}
		moved, _, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if p := s.last(); p.Key != second.Pin() {
			t.Fatal("a stream after the change runs on the old material")
		}
		if n := s.guard.Live(); n != 2 {
			t.Fatalf("%d connections, want the old and the new", n)
		}
		if err := st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := st.RecvMsg(&wrapperspb.BytesValue{}); err != io.EOF {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := s.guard.Live(); n != 1 {
			t.Fatalf("%d connections, want the old one to go with its last stream", n)
		}
		if err := echo(moved, "on the new one"); err != nil {
			t.Fatal(err)
		}
	})
}

// Equal material is the same material, and a failing source keeps what there was.
func TestNoNeedlessConnections(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	s := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
	m := material(t, a, identity.Data, "n1")
	src := &flaky{m: m}
	c := dial(t, s.addr, src, credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	for _, now := range []*credential.Material{m, trusting(t, a, m), nil, m} {
		src.set(now)
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.guard.Live(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
	// A source that does not tell is followed by the next call.
	next := material(t, a, identity.Data, "n1")
	src.set(next)
	if _, err := who(t, c); err != nil || s.last().Key != next.Pin() {
		t.Fatalf("%v, on %v", err, s.last())
	}
	empty := dial(t, s.addr, credential.NewIssued(nil), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if _, err := who(t, empty); !errors.Is(err, credential.ErrNoMaterial) || status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

// flaky is a source that fails while it holds nothing.
type flaky struct {
	mu sync.Mutex
	m  *credential.Material
}

func (f *flaky) set(m *credential.Material) { f.mu.Lock(); f.m = m; f.mu.Unlock() }
func (f *flaky) Changed() <-chan struct{}   { return nil }
func (f *flaky) Current(context.Context) (*credential.Material, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.m == nil {
		return nil, errors.New("the source is down")
	}
	return f.m, nil
}

// A client, too, leaves a server that is banned, and one whose certificate ends.
func TestClientCutsServer(t *testing.T) {
	t.Run("banned", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := pkitest.NewAuthority(t, cluster)
			ln, opts := inMemory()
			server := material(t, a, identity.Coordinator, "c1")
			serve(t, ln, mesh.GuardConfig{Source: credential.Static(server)})
			src := credential.NewIssued(material(t, a, identity.Data, "n1"))
			c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)
			st, _, err := talk(t, c, talkMethod)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := src.Trust(banning(a, server.ID())); err != nil {
				t.Fatal(err)
			}
			if err := st.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.Unavailable || time.Since(start) > 5*time.Second {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			if _, err := who(t, c); !errors.Is(err, identity.ErrBanned) {
				t.Fatalf("the next call: %v", err)
			}
		})
	})
	t.Run("expired", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := pkitest.NewAuthority(t, cluster)
			ln, opts := inMemory()
			server := material(t, a, identity.Coordinator, "c1", pkitest.WithTTL(time.Hour))
			serve(t, ln, mesh.GuardConfig{Source: credential.Static(server)})
			c := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), opts)
			st, _, err := talk(t, c, talkMethod)
			if err != nil {
				t.Fatal(err)
			}
			if info, _ := mesh.FromContext(st.Context()); !info.Expires().Equal(server.NotAfter()) {
				t.Fatalf("told to move by %v", info.Expires())
			}
			err = st.RecvMsg(&wrapperspb.BytesValue{})
			if late := time.Since(server.NotAfter()); err == nil || late <= 0 || late > time.Second {
				t.Fatalf("cut %v after the end: %v", late, err)
			}
			if _, err := who(t, c); !rejected(err, mesh.Expired) {
				t.Fatalf("the next call: %v", err)
			}
		})
	})
}

// A ban that arrives while a handshake with the banned server is under way
// strikes the connection that comes of it, also beside another that stands.
func TestBanDuringHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		goodLn, opts := inMemory()
		badLn, badOpts := inMemory()
		bad := material(t, a, identity.Coordinator, "bad")
		serve(t, goodLn, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		serve(t, badLn, mesh.GuardConfig{Source: credential.Static(bad)})
		gate := make(chan struct{})
		var dials atomic.Int32
		toGood := opts.Dialer
		opts.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				return toGood(ctx, addr)
			}
			c, err := badOpts.Dialer(ctx, addr)
			return &gatedConn{Conn: c, gate: gate}, err
		}
		src := credential.NewIssued(material(t, a, identity.Data, "n1"))
		c := dial(t, "passthrough:///c", src, credential.AnyOfKind(identity.Coordinator), opts)
		first, _, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if err := src.Adopt(material(t, a, identity.Data, "n1")); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			st, _, err := talk(t, c, talkMethod)
			if err == nil {
				err = st.RecvMsg(&wrapperspb.BytesValue{})
			}
			ended <- err
		}()
		synctest.Wait()
		if err := src.Trust(banning(a, bad.ID())); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		close(gate)
		if err := <-ended; err == nil || time.Since(start) > 5*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		if err := echo(first, "undisturbed"); err != nil {
			t.Fatal(err)
		}
	})
}

// A call that started before a change, and connects after it, connects with the
// newest material: what it started with is going away.
func TestConnectsWithTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		gate := make(chan struct{})
		inner := opts.Dialer
		opts.Dialer = func(ctx context.Context, addr string) (net.Conn, error) { <-gate; return inner(ctx, addr) }
		src := credential.NewIssued(material(t, a, identity.Data, "n1"))
		c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)
		answered := make(chan error, 1)
		go func() { _, err := who(t, c); answered <- err }()
		synctest.Wait()
		newest := material(t, a, identity.Data, "n1")
		if err := src.Adopt(newest); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(gate)
		if err := <-answered; err != nil || s.last().Key != newest.Pin() {
			t.Fatalf("%v, on %v, want %s", err, s.last(), newest.Pin())
		}
	})
}

// Of several endpoints, the failure of one explains nothing about a call that
// reached another, and is forgotten when it heals.
func TestSeveralEndpoints(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	other := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, other, identity.Coordinator, "c1"))
	heals := serve(t, loopback(t), mesh.GuardConfig{Source: src})
	good := serve(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c2"))})
	gone := nobody(t)
	at := func(addrs ...string) resolver.State {
		var s resolver.State
		for _, addr := range addrs {
			s.Addresses = append(s.Addresses, resolver.Address{Addr: addr})
		}
		return s
	}
	names := manual.NewBuilderWithScheme("several")
	names.InitialState(at(heals.addr, good.addr))
	c := dial(t, "several:///x", credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator),
		mesh.Options{GRPC: []grpc.DialOption{grpc.WithResolvers(names)}})
	ask := func(text string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		return c.Invoke(ctx, whoMethod, wrapperspb.Bytes([]byte(text)), &wrapperspb.BytesValue{})
	}
	if err := ask(""); err != nil {
		t.Fatalf("with one good endpoint: %v", err)
	}
	if err := ask("busy"); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "busy" {
		t.Fatalf("what the server said became %v", err)
	}
	names.UpdateState(at(heals.addr, gone))
	var none *mesh.NoEndpointsError
	if err := ask(""); !errors.As(err, &none) || len(none.Failures) != 2 || !rejected(err, mesh.PeerUntrusted) {
		t.Fatalf("with none: %v", err)
	}
	if !slices.IsSortedFunc(none.Failures, func(a, b error) int { return strings.Compare(endpoint(a), endpoint(b)) }) {
		t.Errorf("not sorted: %v", none)
	}
	if err := src.Adopt(material(t, a, identity.Coordinator, "c1")); err != nil {
		t.Fatal(err)
	}
	if err := c.Invoke(t.Context(), whoMethod, wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("after one healed: %v", err)
	}
	names.UpdateState(at(gone))
	var err error
	wait.Until(t, "gRPC leaves the old address", func() bool { err = ask(""); return err != nil })
	if !errors.As(err, &none) || len(none.Failures) != 1 || rejected(err, mesh.PeerUntrusted) {
		t.Fatalf("after the healed one left: %v", err)
	}
}

func endpoint(err error) string {
	if h, ok := err.(*mesh.HandshakeError); ok {
		return h.Endpoint
	}
	return err.(*mesh.EndpointError).Endpoint
}

// gatedConn reads nothing until its gate opens.
type gatedConn struct {
	net.Conn
	gate chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) { <-c.gate; return c.Conn.Read(p) }

// A coordinator serves an ephemeral key until it is initialized, then its
// identity, on one listener; connections from before live on.
func TestEphemeralBecomesIdentity(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	eph, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	src := credential.NewIssued(eph)
	s := serve(t, loopback(t), mesh.GuardConfig{Source: src, SendRoot: true})
	setup, err := mesh.DialPinned(s.addr, pinned.Leaf(eph.Pin()), mesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer setup.Close()
	st, _, err := talk(t, setup, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	if p := s.last(); standing(p) != "insecure" {
		t.Fatalf("peer %v", p)
	}
	if err := src.Adopt(material(t, a, identity.Coordinator, "c1")); err != nil {
		t.Fatal(err)
	}
	if err := echo(st, "x"); err != nil {
		t.Fatal(err)
	}
	member := dial(t, s.addr, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if _, err := who(t, member); err != nil {
		t.Fatal(err)
	}
	if p := s.last(); p.ID != a.ID(t, identity.Data, "n1") {
		t.Fatalf("peer %v", p)
	}
}

func TestDialRefusesAtConstruction(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.Static(material(t, a, identity.Data, "n1"))
	other, err := identity.New("other.example", identity.Coordinator, "c1")
	if err != nil {
		t.Fatal(err)
	}
	for name, dial := range map[string]func() (*mesh.Conn, error){
		"no expectation": func() (*mesh.Conn, error) { return mesh.Dial("h:1", src, credential.Expect{}, mesh.Options{}) },
		"other cluster":  func() (*mesh.Conn, error) { return mesh.Dial("h:1", src, credential.ExactID(other), mesh.Options{}) },
		"no source":      func() (*mesh.Conn, error) { return mesh.Dial("h:1", nil, credential.ExactID(other), mesh.Options{}) },
		"no pin":         func() (*mesh.Conn, error) { return mesh.DialPinned("h:1", pinned.Pin{}, mesh.Options{}) },
	} {
		if c, err := dial(); err == nil || c != nil {
			t.Errorf("%s: dialed", name)
		}
	}
}

// Close ends calls and leaves no goroutine, which the bubble checks.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		src := credential.NewIssued(material(t, a, identity.Data, "n1"))
		c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)
		st, _, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if err := src.Adopt(material(t, a, identity.Data, "n1")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := st.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.Canceled {
			t.Fatalf("a stream after Close: %v", err)
		}
		if _, err := who(t, c); !errors.Is(err, mesh.ErrClosed) {
			t.Fatalf("a call after Close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Calls, streams, rotation and bans of others at once: no call fails, and in the
// end one connection stands.
func TestRotationUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln, opts := inMemory()
		serverSrc := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
		s := serve(t, ln, mesh.GuardConfig{Source: serverSrc})
		src := credential.NewIssued(material(t, a, identity.Data, "n1"))
		c := dial(t, "passthrough:///c1", src, credential.AnyOfKind(identity.Coordinator), opts)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := who(t, c); err != nil {
						t.Errorf("call: %v", err)
						return
					}
				}
			})
		}
		for i := range 10 {
			if err := src.Adopt(material(t, a, identity.Data, "n1")); err != nil {
				t.Error(err)
			}
			if err := serverSrc.Adopt(material(t, a, identity.Coordinator, "c1")); err != nil {
				t.Error(err)
			}
			if err := serverSrc.Trust(banning(a, a.ID(t, identity.Data, fmt.Sprintf("other%d", i)))); err != nil {
				t.Error(err)
			}
			if _, err := who(t, c); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		wg.Wait()
		synctest.Wait()
		if n := s.guard.Live(); n != 1 {
			t.Fatalf("%d connections stand", n)
		}
	})
}

// An option of a caller's that fails a call before it starts keeps nothing open.
func TestFailingInterceptor(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	refuse := errors.New("not now")
	ln, opts := inMemory()
	ln.Close()
	opts.GRPC = []grpc.DialOption{grpc.WithStreamInterceptor(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
		return nil, refuse
	})}
	c := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), opts)
	if _, _, err := talk(t, c, talkMethod); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	if n := c.Running(); n != 0 {
		t.Fatalf("%d calls run", n)
	}
}

// The table of reasons is complete, and says something.
func TestReasonsTable(t *testing.T) {
	rs := mesh.Reasons()
	for _, r := range []mesh.Reason{mesh.PeerUntrusted, mesh.IdentityMismatch, mesh.NoIdentity, mesh.Expired, mesh.ClientRejected, mesh.ServerRejected, mesh.Protocol} {
		if !slices.Contains(rs, r) {
			t.Errorf("%s is not in the table", r)
		}
		text := (&mesh.HandshakeError{Reason: r, Endpoint: "h:1", Expected: "x"}).Error()
		if !strings.Contains(text, string(r)) || !strings.Contains(text, "h:1") || !strings.Contains(text, "expected x") || strings.Contains(text, "the handshake failed") {
			t.Errorf("%s reads %q", r, text)
		}
	}
}

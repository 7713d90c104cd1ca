package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// spot is an endpoint where a good server stands, but for what is wrong with it until it is
// mended.
type spot struct {
	*service
	name   string
	addr   string
	want   mesh.Reason // why it is rejected; none: it is good
	wrong  atomic.Pointer[func(net.Conn)]
	shaken atomic.Int64 // handshakes that were begun
	served atomic.Int64 // calls of Who
	guard  *mesh.Guard
	stop   func()
}

func (s *spot) mend() { s.wrong.Store(nil) }

// spotCredentials are those of the guard, but for what is wrong.
type spotCredentials struct {
	credentials.TransportCredentials
	at *spot
}

func (c spotCredentials) Clone() credentials.TransportCredentials { return c }

func (c spotCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.at.shaken.Add(1)
	if wrong := c.at.wrong.Load(); wrong != nil {
		raw.SetDeadline(time.Now().Add(2 * time.Minute))
		(*wrong)(raw)
		raw.Close()
		return nil, nil, credentials.ErrConnDispatched
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

// withTLS is wrong in what it shows.
func withTLS(cfg *tls.Config) func(net.Conn) {
	return func(raw net.Conn) {
		if s := tls.Server(raw, cfg); s.Handshake() == nil {
			io.Copy(io.Discard, s)
		}
	}
}

// withoutTLS speaks first, and no TLS.
func withoutTLS(raw net.Conn) {
	io.WriteString(raw, "220 mail.example ESMTP\r\n")
	io.Copy(io.Discard, raw)
}

// newSpot runs one until the test ends. wrong may be nil.
func newSpot(tb testing.TB, name string, cfg mesh.GuardConfig, want mesh.Reason, wrong func(net.Conn)) *spot {
	tb.Helper()
	g, err := mesh.NewGuard(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ln := loopback(tb)
	s := &spot{service: newService(), name: name, addr: ln.Addr().String(), want: want, guard: g}
	s.onWho = func(context.Context) { s.served.Add(1) }
	if wrong != nil {
		s.wrong.Store(&wrong)
	}
	server := grpc.NewServer(grpc.Creds(spotCredentials{g.Credentials(), s}),
		grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
	server.RegisterService(&desc, s.service)
	var running sync.WaitGroup
	running.Go(func() { server.Serve(ln) })
	s.stop = sync.OnceFunc(func() {
		s.unblock()
		server.Stop()
		running.Wait()
	})
	tb.Cleanup(s.stop)
	return s
}

// badSpots are endpoints of c1, one for each way to be wrong.
func badSpots(tb testing.TB, a *pkitest.Authority, cfg mesh.GuardConfig) []*spot {
	tb.Helper()
	c1 := a.ID(tb, identity.Coordinator, "c1")
	foreign := pkitest.NewAuthority(tb, cluster)
	shows := func(by *pkitest.Authority, edit func(*x509.Certificate), opts ...pkitest.IssueOption) func(net.Conn) {
		return withTLS(serverCert(tb, by, edit, opts...))
	}
	return []*spot{
		newSpot(tb, "wrong CA", cfg, mesh.PeerUntrusted, shows(foreign, sans(c1))),
		newSpot(tb, "wrong identity", cfg, mesh.IdentityMismatch, shows(a, sans(a.ID(tb, identity.Coordinator, "c2")))),
		newSpot(tb, "expired", cfg, mesh.Expired, shows(a, sans(c1), pkitest.Expired())),
		newSpot(tb, "no SAN", cfg, mesh.NoIdentity, shows(a, sans())),
		newSpot(tb, "two SANs", cfg, mesh.NoIdentity, shows(a, sans(c1, c1))),
		newSpot(tb, "no TLS", cfg, mesh.Protocol, withoutTLS),
	}
}

// static is the target of these endpoints.
func static(spots ...*spot) string {
	var addrs []string
	for _, s := range spots {
		addrs = append(addrs, s.addr)
	}
	return "static:///" + strings.Join(addrs, ",")
}

// pooled asks pool for a client until the test ends.
func pooled(tb testing.TB, pool *mesh.Pool, target string, src credential.Source, expect credential.Expect) *mesh.Conn {
	tb.Helper()
	c, err := pool.Dial(target, src, expect)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// newPool returns a pool that is closed when the test ends.
func newPool(tb testing.TB, opts mesh.Options) *mesh.Pool {
	tb.Helper()
	p := &mesh.Pool{Options: opts}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

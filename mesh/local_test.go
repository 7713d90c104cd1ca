package mesh_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// socket returns a short path: t.TempDir can be too long for a socket.
func socket(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "mesh")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "admin.sock")
}

func listenUnix(tb testing.TB, path string) net.Listener {
	tb.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}

// The kernel says who is on a unix socket: this process. It is no identity, and
// no channel to bind to.
func TestLocal(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	path := socket(t)
	s := serve(t, listenUnix(t, path), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Local: localsocket.OwnUser})
	cc, err := mesh.DialLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := who(t, cc); err != nil {
		t.Fatal(err)
	}
	p := s.last()
	want := identity.Local{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if p.Local == nil || *p.Local != want || standing(p) != "insecure" || p.Addr != "unix:"+path {
		t.Fatalf("peer %+v, local %+v, want %+v", p, p.Local, want)
	}
	st, _, err := talk(t, cc, talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := proof.ConnectionState(st.Context()); ok {
		t.Fatal("a unix socket has a TLS state")
	}
	info, ok := mesh.FromContext(st.Context())
	if !ok || info.AuthType() != "local" || info.Peer.Local == nil || info.Peer.Local.PID != want.PID {
		t.Fatalf("the client sees %+v", info)
	}
}

func TestLocalRefuses(t *testing.T) {
	path := socket(t)
	serve(t, listenUnix(t, path), mesh.GuardConfig{Source: credential.Static(nil), Local: func(identity.Local) bool { return false }})
	cc, err := mesh.DialLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := who(t, cc); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

// Without a policy for local processes a unix socket speaks TLS like any other,
// and a TCP connection is never local.
func TestLocalOnlyWhereAsked(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.Static(material(t, a, identity.Coordinator, "c1"))
	path := socket(t)
	serve(t, listenUnix(t, path), mesh.GuardConfig{Source: src})
	cc, err := mesh.DialLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := who(t, cc); err == nil {
		t.Fatal("plaintext is served on a unix socket without a policy")
	}
	c := dial(t, "passthrough:///x", credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{
		Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}})
	if _, err := who(t, c); err != nil {
		t.Fatalf("TLS over a unix socket: %v", err)
	}

	s := serve(t, loopback(t), mesh.GuardConfig{Source: src, Local: func(identity.Local) bool { return true }})
	plain, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(plaintext{}))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := who(t, plain); err == nil {
		t.Fatal("plaintext is served over TCP")
	}
}

func TestSocketPathLimit(t *testing.T) {
	for path, ok := range map[string]bool{"": false, "/run/x.sock": true, "/" + strings.Repeat("x", 106): true, "/" + strings.Repeat("x", 107): false} {
		err := localsocket.CheckPath(path)
		if (err == nil) != ok {
			t.Errorf("%d bytes: %v", len(path), err)
		}
		if _, derr := mesh.DialLocal(path); (derr == nil) != ok {
			t.Errorf("DialLocal of %d bytes: %v", len(path), derr)
		}
	}
	// The limit is the kernel's.
	dir := filepath.Dir(socket(t))
	long := filepath.Join(dir, strings.Repeat("x", 107-len(dir)-1))
	listenUnix(t, long).Close()
	if ln, err := net.Listen("unix", long+"x"); err == nil {
		ln.Close()
		t.Error("the kernel takes a longer path than CheckSocketPath")
	}
}

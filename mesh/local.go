package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// localError says why a connection on a unix socket was refused.
type localError struct {
	Path  string
	Local *identity.Local // nil if the system did not tell
	Err   error           // why it did not
}

func (e *localError) Error() string {
	if e.Local != nil {
		return fmt.Sprintf("mesh: a process of user %d (pid %d) is not allowed on socket %s: run as the user that owns it, or as root", e.Local.UID, e.Local.PID, e.Path)
	}
	return fmt.Sprintf("mesh: the system does not tell who is on the other end of socket %s: %v", e.Path, e.Err)
}

// Unwrap returns why the system did not tell.
func (e *localError) Unwrap() error { return e.Err }

// local shakes no hands: the kernel vouches for the process on the other end.
func (g *Guard) local(raw net.Conn) (*Info, error) {
	info, err := localInfo(raw, g.cfg.Local)
	if err != nil {
		raw.Close()
		return nil, err
	}
	info.conn = &liveConn{Conn: raw, raw: raw, peer: info.Peer}
	return info, nil
}

// localInfo asks the kernel which process is on the other end, and allow whether it may
// connect.
func localInfo(raw net.Conn, allow func(identity.Local) bool) (*Info, error) {
	path := raw.LocalAddr().String()
	if remote := raw.RemoteAddr().String(); path == "" || path == "@" {
		path = remote
	}
	sc, ok := raw.(syscall.Conn)
	if !ok {
		return nil, &localError{Path: path, Err: errors.New("not a connection of the operating system")}
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, &localError{Path: path, Err: err}
	}
	var l identity.Local
	var lerr error
	if err := rc.Control(func(fd uintptr) { l, lerr = peerCredentials(int(fd)) }); err != nil {
		return nil, &localError{Path: path, Err: err}
	}
	if lerr != nil {
		return nil, &localError{Path: path, Err: lerr}
	}
	if !allow(l) {
		return nil, &localError{Path: path, Local: &l}
	}
	return &Info{
		// Bytes stay in the kernel.
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		Peer:           identity.Peer{Local: &l, Addr: "unix:" + path},
	}, nil
}

// DialLocal returns a client of the server on the unix socket at path, which
// must be a process of our own user or of root. It connects on the first call.
func DialLocal(path string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := localsocket.CheckPath(path); err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+path, append([]grpc.DialOption{
		grpc.WithTransportCredentials(localCredentials{}),
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}),
	}, opts...)...)
}

// localCredentials are a client's on a unix socket.
type localCredentials struct{}

func (localCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "local"}
}
func (c localCredentials) Clone() credentials.TransportCredentials { return c }
func (localCredentials) OverrideServerName(string) error           { return nil }

func (localCredentials) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, err := localInfo(raw, localsocket.OwnUser)
	if err != nil {
		raw.Close()
		return nil, nil, err
	}
	return raw, info, nil
}

func (localCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("mesh: these credentials are for clients; use a Guard")
}

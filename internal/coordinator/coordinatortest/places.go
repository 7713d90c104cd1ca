package coordinatortest

import (
	"context"
	"net"

	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/mesh"
)

// StrangerFrom returns a connection to f from the i-th of many addresses, each of which
// is in a network of its own.
func StrangerFrom(f *Fleet, i int) *mesh.Conn {
	f.T.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+i/250), byte(i%250), 1)}}
	conn, err := mesh.DialPinned(f.Addr, pinned.Unproven(),
		mesh.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}})
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return conn
}

// Stranger returns a connection to f of somebody who shows no certificate, and knows the root.
func Stranger(f *Fleet) Conn {
	f.T.Helper()
	conn, err := mesh.DialPinned(f.Addr, pinned.Root(Cluster, f.Pin()),
		mesh.Options{Now: f.Clock})
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return conn
}

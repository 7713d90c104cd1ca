package mesh

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/fealty-io/fealty/identity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Info is what is known about one connection. gRPC carries it as the AuthInfo
// of a peer: on a server in the context of a call, on a client in that of a
// stream, and in what grpc.Peer fills.
type Info struct {
	credentials.CommonAuthInfo

	// Peer is who is on the other end.
	Peer identity.Peer

	state      tls.ConnectionState
	secured    bool // state is of a TLS connection
	expires    time.Time
	superseded <-chan struct{}
	conn       *liveConn
	carried    context.Context // has Peer, for calls; see carry
}

// carry puts Peer where the context of each call finds it.
func (i *Info) carry() { i.carried = identity.NewContext(context.Background(), i.Peer) }

// AuthType returns "tls" or "local".
func (i *Info) AuthType() string {
	if i.secured {
		return "tls"
	}
	return "local"
}

// ConnectionState returns the state of the TLS connection, whose exporter binds
// a proof to it (RFC 8446 §7.5). It is false on a unix socket.
func (i *Info) ConnectionState() (tls.ConnectionState, bool) { return i.state, i.secured }

// Expires returns when the first certificate of either side ends: a stream must
// have moved to a fresh connection before, or it is cut. Zero: never.
func (i *Info) Expires() time.Time { return i.expires }

// Superseded returns a channel that is closed once this process has fresher
// material than the connection was made with: from then on a call takes a fresh
// connection, and a long stream should reopen at a moment that suits it. It is
// nil, which blocks for ever, on a server.
func (i *Info) Superseded() <-chan struct{} { return i.superseded }

// Keep has the connection of a client without a certificate stand from now on while
// others of its kind give way: its client has shown what is worth looking at. It is false
// if the connection gave way already, or if as many are kept as may be; release ends it.
// Of all other connections it is true.
func (i *Info) Keep() (release func(), ok bool) {
	if i.conn == nil || i.conn.quota == nil || i.conn.quota.slot == nil {
		return func() {}, true
	}
	return i.conn.quota.slot.Release, i.conn.quota.slot.Keep()
}

// Grant allows a client without a certificate to send n bytes more on this connection.
func (i *Info) Grant(n int64) {
	if i.conn != nil && i.conn.quota != nil {
		i.conn.quota.allowance.Add(n)
	}
}

// FromContext returns what is known about the connection of a call: in a
// server's handler, or with the context of a client's stream.
func FromContext(ctx context.Context) (*Info, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	i, ok := p.AuthInfo.(*Info)
	return i, ok
}

// earliest returns the first end of a certificate in chain, or zero.
func earliest(chain []*x509.Certificate) time.Time {
	var t time.Time
	for _, c := range chain {
		t = sooner(t, c.NotAfter)
	}
	return t
}

// sooner returns the earlier of two times, of which zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func keysOf(chain []*x509.Certificate) []identity.KeyID {
	keys := make([]identity.KeyID, len(chain))
	for i, c := range chain {
		keys[i] = identity.KeyOf(c)
	}
	return keys
}

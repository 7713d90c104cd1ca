package node

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/mesh"
)

// Dial returns a gRPC client of target, which is host:port, a target of [Node.PeerDirectory] or
// another one of gRPC. The server there has to prove expect; the address counts for nothing. It is
// [mesh.Dial] with the node's source: close it when done.
func (n *Node) Dial(target string, expect credential.Expect) (*mesh.Conn, error) {
	return mesh.Dial(target, n.Source(), expect, n.meshOptions())
}

// NewPool returns a pool that knows the targets of [Node.PeerDirectory] and says in the node's log
// which endpoints are rejected, and why. Give [mesh.Pool.Dial] the node's [Node.Source]; close it
// when done.
func (n *Node) NewPool() *mesh.Pool {
	options := n.meshOptions()
	options.Log = n.log
	return &mesh.Pool{Options: options}
}

func (n *Node) meshOptions() mesh.Options {
	return mesh.Options{Now: n.now, GRPC: []grpc.DialOption{grpc.WithResolvers(n.PeerDirectory())}}
}

// NewServer returns a gRPC server that is this member to its clients, and stands behind a
// [mesh.Guard]: a handler finds who is calling by [identity.FromContext], a caller whose
// certificate ended, or that the trust bundle bans, is refused, and what it has open is ended. A client
// without a certificate is served, and is not [identity.Peer.Identified]: the handler, or a chained interceptor
// in options, decides what that means. options set no credentials, and no interceptor that is
// not chained: grpc.UnaryInterceptor and grpc.StreamInterceptor run before the guard.
func (n *Node) NewServer(options ...grpc.ServerOption) (*grpc.Server, error) {
	guard, err := n.guard()
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(append(guard.ServerOptions(), options...)...), nil
}

// NewServerFor is [Node.NewServer] for clients that are expected, such as [credential.AnyOfKind] of shards: each other
// call is refused with a [*mesh.DeniedError] before the handler, also that of a client without a certificate. It
// fails where clients expects nobody.
func (n *Node) NewServerFor(clients credential.Expect, options ...grpc.ServerOption) (*grpc.Server, error) {
	guard, err := n.guardFor(clients)
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(append(guard.ServerOptions(), options...)...), nil
}

// NewHTTPTransport returns an [http.RoundTripper] to servers that prove expect, whatever the
// host in the URL. See [mesh.NewHTTPTransport].
func (n *Node) NewHTTPTransport(expect credential.Expect) (*mesh.HTTPTransport, error) {
	return mesh.NewHTTPTransport(n.Source(), expect, mesh.Options{Now: n.now, Log: n.log})
}

// ServeHTTP serves s on l as this member until ctx ends, behind a [mesh.Guard]: a handler finds
// who is calling by [identity.FromContext] in the request's context. See [mesh.ServeHTTP].
func (n *Node) ServeHTTP(ctx context.Context, l net.Listener, s *http.Server) error {
	guard, err := n.guard()
	if err != nil {
		l.Close()
		return err
	}
	return mesh.ServeHTTP(ctx, guard, l, s)
}

// ServeHTTPFor is [Node.ServeHTTP] for clients that are expected, as [Node.NewServerFor]: others are answered 401
// without a certificate, and 403 with one.
func (n *Node) ServeHTTPFor(ctx context.Context, clients credential.Expect, l net.Listener, s *http.Server) error {
	guard, err := n.guardFor(clients)
	if err != nil {
		l.Close()
		return err
	}
	return mesh.ServeHTTP(ctx, guard, l, s)
}

func (n *Node) guardFor(clients credential.Expect) (*mesh.Guard, error) {
	// Not by what a guard makes of the zero value, which is to serve everybody.
	if err := clients.Validate(n.ID().Cluster()); err != nil {
		return nil, fmt.Errorf("node: the clients of a server: %w", err)
	}
	return mesh.NewGuard(mesh.GuardConfig{Source: n.Source(), Now: n.now, Clients: clients})
}

func (n *Node) guard() (*mesh.Guard, error) {
	return mesh.NewGuard(mesh.GuardConfig{Source: n.Source(), Now: n.now})
}

// Package meshgate bounds what clients of a server cost before they proved who they are, for the servers of this
// module. A program of others has the bounds of mesh.GuardConfig.
package meshgate

import (
	"context"
	"net"

	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/meshdoor"
	"github.com/fealty-io/fealty/mesh"
)

// Config has the bounds. The zero value is good.
type Config = internalmesh.GateConfig

// Gate makes the handshakes of a listener before any server sees its connections, and hands those with an accepted
// certificate to one server, and those of strangers to another, which can be given limits of its own. Both servers use
// the guard's Credentials, and stand behind its interceptors.
type Gate interface {
	// Run takes connections until ctx ends or the listener fails. It closes the listener, and the connections that were
	// handed to no server.
	Run(ctx context.Context) error

	// Members returns the listener of connections with an accepted certificate.
	Members() net.Listener

	// Strangers returns the listener of all other connections.
	Strangers() net.Listener
}

var newGate = meshdoor.NewGate.(func(*mesh.Guard, net.Listener, Config) (any, error))

// New returns a gate before l and g. It starts nothing.
func New(g *mesh.Guard, l net.Listener, cfg Config) (Gate, error) {
	gate, err := newGate(g, l, cfg)
	if err != nil {
		return nil, err
	}
	return gate.(Gate), nil
}

// ListenMembers returns the connections of l whose clients proved a certificate, behind a gate: what a client costs
// before that is bounded, and one that has none is closed. Give it to a server with the guard's ServerOptions. It ends,
// and closes l, when ctx ends or l fails; wait returns once it did, with what l failed with.
var ListenMembers = meshdoor.ListenMembers.(func(ctx context.Context, g *mesh.Guard, l net.Listener, cfg Config) (
	members net.Listener, wait func() error, err error))

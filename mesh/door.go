package mesh

import (
	"context"
	"net"

	"github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/meshdoor"
)

// Joining needs more than what is public, and so do the servers of this module; nobody else does. See package meshdoor.
func init() {
	meshdoor.NewGate = func(g *Guard, l net.Listener, cfg mesh.GateConfig) (any, error) { return g.newGate(l, cfg) }
	meshdoor.ListenMembers = func(ctx context.Context, g *Guard, l net.Listener, cfg mesh.GateConfig) (
		net.Listener, func() error, error) {
		return g.listenMembers(ctx, l, cfg)
	}
	meshdoor.DialPinned = func(target string, pin any, opts Options) *Conn {
		c := newConn(target, opts)
		c.pin = pin.(pinned)
		c.start()
		return c
	}
}

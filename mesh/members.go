package mesh

import (
	"context"
	"net"
	"sync"

	"github.com/fealty-io/fealty/identity"
)

// ListenMembers returns the connections of l whose clients proved a certificate, behind a gate:
// what a client costs before that is bounded, and one that has none is closed. Give it to a
// server with [Guard.ServerOptions]. It ends, and closes l, when ctx ends or l fails; wait
// returns once it did, with what l failed with.
func (g *Guard) ListenMembers(ctx context.Context, l net.Listener, cfg GateConfig) (members net.Listener,
	wait func() error, err error) {
	gate, err := g.NewGate(l, cfg)
	if err != nil {
		return nil, nil, err
	}
	var running sync.WaitGroup
	var failed error
	running.Go(func() { failed = gate.Run(ctx) })
	running.Go(func() {
		for {
			conn, err := gate.Strangers().Accept()
			if err != nil {
				return // the gate has ended
			}
			_ = g.refused(&DeniedError{Peer: identity.Peer{Addr: conn.RemoteAddr().String()}}) // told, to nobody but the server
			conn.Close()
		}
	})
	return gate.Members(), func() error {
		running.Wait()
		if ctx.Err() != nil {
			return nil
		}
		return failed
	}, nil
}

package proof

import (
	"context"
	"crypto/tls"

	"github.com/fealty-io/fealty/mesh"
)

// ConnectionState returns the TLS state of the very connection that a call runs on, to which a proof is bound. It is
// false for plaintext and unix sockets: a proof must then end the call.
func ConnectionState(ctx context.Context) (tls.ConnectionState, bool) {
	i, ok := mesh.FromContext(ctx)
	if !ok {
		return tls.ConnectionState{}, false
	}
	return i.ConnectionState()
}

package mesh

import (
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
)

// Pin is how a process knows a server before it has a trust bundle: by the SHA-256 of a public key that it learned on a
// trusted way, such as from a join token. The zero Pin is refused.
type Pin = pinned.Pin

// PinError says how a server differs from a [Pin]. It stands behind a [*HandshakeError].
type PinError = pinned.Error

// RootPin names the root key of cluster: the server has to be a coordinator of it, by a chain that verifies to that root.
func RootPin(cluster string, root identity.KeyID) Pin { return pinned.Root(cluster, root) }

// LeafPin names the key of a server that has no identity yet, as credential.NewEphemeral makes it.
func LeafPin(leaf identity.KeyID) Pin { return pinned.Leaf(leaf) }

// DialPinned returns a client of target as [Dial] does, which trusts nothing but p, and presents no certificate.
func DialPinned(target string, p Pin, opts Options) (*Conn, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := newConn(target, opts)
	c.pin = p
	c.start()
	return c, nil
}

// Package pinned verifies a server by a key that was learned on a trusted way, for a process that has no trust bundle
// yet.
package pinned

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// ErrMismatch is matched by every [*Error].
var ErrMismatch = errors.New("credential: the server does not match the pin")

// Error says how a server differs from a pin. Either the pin is of another
// cluster or coordinator, or somebody is in between.
type Error struct {
	Pin    Pin
	Detail string
	// Key is what the server showed in place of the pinned key; zero if it showed another
	// number of certificates than who has such a key does.
	Key identity.KeyID
	// Cluster is the one that the server's certificate names, if that is another than the
	// pin's. Nothing proves it.
	Cluster string
}

func (e *Error) Error() string {
	return fmt.Sprintf("credential: %s, expected %s: check that the token or pin is of this cluster, and do not "+
		"go on if it is", e.Detail, e.Pin)
}

// Is makes every Error match [ErrMismatch].
func (e *Error) Is(target error) bool { return target == ErrMismatch }

// Pin is how a process knows a server before it has a trust bundle: by the hash
// of a key, learned on a trusted way. The zero Pin is refused.
type Pin struct {
	leaf    bool   // key is the leaf's, and cluster is blank; else key is the root's
	nobody  bool   // whoever answers will do, and the rest is blank
	cluster string // of the coordinator
	key     identity.KeyID
}

// Root names the root key of cluster. The server must present leaf, mesh CA
// and root (credential.ServerOptions.SendRoot); the root must have that key, the chain must
// verify to it, and the leaf must identify a coordinator of cluster.
func Root(cluster string, root identity.KeyID) Pin { return Pin{cluster: cluster, key: root} }

// Leaf names the key of an ephemeral certificate (credential.NewEphemeral), which is
// all that a coordinator has before its cluster is initialized. Only the key
// counts: its holder proves in the handshake that it has it.
func Leaf(leaf identity.KeyID) Pin { return Pin{leaf: true, key: leaf} }

// Unproven names nobody: whoever answers is taken, and known as nobody. It is for
// calls in which the server proves itself later, over the channel binding of the
// very connection, such as the recovery of a seed: before that proof a caller must
// send nothing that it would not tell a stranger, and believe nothing. And it is for
// what is public and verifies by its own signatures, such as a change of root.
func Unproven() Pin { return Pin{nobody: true} }

// Validate reports whether p names anything, or is [Unproven].
func (p Pin) Validate() error {
	if p.nobody {
		return nil
	}
	if p.key.IsZero() {
		return errors.New("credential: the pin is blank: give the SHA-256 of the public key that the server must have")
	}
	if !p.leaf {
		if err := identity.CheckCluster(p.cluster); err != nil {
			return fmt.Errorf("credential: the pin's cluster: %w", err)
		}
	}
	return nil
}

// Cluster is the one whose root is pinned; blank for other pins.
func (p Pin) Cluster() string { return p.cluster }

// String names what is pinned. A pin is no secret.
func (p Pin) String() string {
	if p.nobody {
		return "anybody, who proves itself later"
	}
	if !p.leaf {
		return fmt.Sprintf("a coordinator of %s under root key %s", p.cluster, p.key)
	}
	return fmt.Sprintf("key %s", p.key)
}

// ClientTLS returns a config for a client that trusts nothing but p; with
// [Unproven], nothing at all. It presents no certificate. Nil now means time.Now;
// expiry is compared for a root pin only.
//
// Errors of the handshake: [*Error] for another key, and those of credential.ClientTLS.
func (p Pin) ClientTLS(now func() time.Time, opts credential.ClientOptions) (*tls.Config, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	return internalidentity.ClientTLS(opts.NextProtos, func(cs tls.ConnectionState) error {
		v, err := p.verify(cs.PeerCertificates, now())
		if err != nil {
			return err
		}
		if opts.OnVerified != nil {
			opts.OnVerified(v)
		}
		return nil
	}), nil
}

func (p Pin) verify(chain []*x509.Certificate, now time.Time) (identity.Verified, error) {
	if p.nobody {
		return identity.Verified{IDErr: identity.ErrNoIdentity, Leaf: chain[0], Key: identity.KeyOf(chain[0])}, nil
	}
	if p.leaf {
		if len(chain) != 1 {
			return identity.Verified{}, &Error{Pin: p, Detail: fmt.Sprintf("the server sent %d certificates instead of one "+
				"self-signed", len(chain))}
		}
		key := identity.KeyOf(chain[0])
		if key != p.key {
			return identity.Verified{}, &Error{Pin: p, Detail: "the server has key " + key.String(), Key: key}
		}
		return identity.Verified{IDErr: identity.ErrNoIdentity, Leaf: chain[0], Key: key}, nil
	}
	if len(chain) != 3 {
		return identity.Verified{}, &Error{Pin: p, Detail: fmt.Sprintf("the server sent %d certificates instead of leaf, "+
			"mesh CA and root", len(chain))}
	}
	root := chain[2]
	if key := identity.KeyOf(root); key != p.key {
		refused := &Error{Pin: p, Detail: "the server has root key " + key.String(), Key: key}
		if id, err := identity.FromCertificate(chain[0]); err == nil && id.Cluster() != p.cluster {
			refused.Cluster = id.Cluster()
		}
		return identity.Verified{}, refused
	}
	bundle, err := identity.NewBundle(identity.BundleConfig{Cluster: p.cluster, Roots: []*x509.Certificate{root}})
	if err != nil {
		return identity.Verified{}, err
	}
	v, err := bundle.Verify(chain, now)
	if err != nil {
		return identity.Verified{}, err
	}
	if v.IDErr != nil {
		return identity.Verified{}, v.IDErr
	}
	if err := credential.AnyOfKind(identity.Coordinator).Check(v.ID); err != nil {
		return identity.Verified{}, err
	}
	return v, nil
}

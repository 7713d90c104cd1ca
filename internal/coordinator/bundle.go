package coordinator

import (
	"crypto/ed25519"
	"crypto/x509"
	"slices"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// bundleAuthority is under what a trust bundle is made: one head of the history, and the
// keys that sign under it. It is made once for each head, since the links of the history
// are encoded for it, and nobody changes it afterwards.
type bundleAuthority struct {
	Manifest *manifest.Manifest // in force
	Head     history.Link
	Root     *x509.Certificate
	MeshKey  identity.KeyID // of the mesh CA key in force

	Links       [][]byte // the newest transitions of the history, oldest first; see recentLinks
	RootChanges [][]byte // the changes of root that led to the head, oldest first, as signed
	RootEpoch   uint64   // the authority epoch that the last of them began; 0: none

	// ConfigRoot gives the key that signs trust bundles, and ConfigKey the nth config
	// signing key; the first is 1. Both sign and give their public key, and nothing else
	// of what they derive from. They panic once that was wiped.
	ConfigRoot func() keyring.Signer
	ConfigKey  func(n uint32) keyring.Signer
}

// PublicRoot returns the public config root key.
func (a *bundleAuthority) PublicRoot() ed25519.PublicKey {
	return a.ConfigRoot().Public().(ed25519.PublicKey)
}

// PublicKey returns the nth public config signing key.
func (a *bundleAuthority) PublicKey(n uint32) ed25519.PublicKey {
	return a.ConfigKey(n).Public().(ed25519.PublicKey)
}

// KeyID returns the id of the nth config signing key.
func (a *bundleAuthority) KeyID(n uint32) string { return snapshot.KeyIDOf(a.PublicKey(n)) }

// Bounds of the transitions that go before each trust bundle. Who missed more asks for them.
const (
	maxRecentLinks  = 16
	recentLinkBytes = 128 << 10
)

// recentLinks returns the newest transitions of a history, encoded, oldest first: at most
// 16, and of 128 KiB together unless the newest alone is larger.
func recentLinks(v *history.Verified) [][]byte {
	links, size := v.Links(), 0
	var out [][]byte
	for i := len(links) - 1; i >= 0 && len(out) < maxRecentLinks; i-- {
		raw, err := links[i].Encode()
		if err != nil {
			break // it was decoded
		}
		if size += len(raw); size > recentLinkBytes && len(out) > 0 {
			break
		}
		out = append(out, raw)
	}
	slices.Reverse(out)
	return out
}

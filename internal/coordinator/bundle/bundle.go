// Package bundle makes the trust bundle of a cluster: it reads what is stored, compiles it and signs it (I11). Which
// bundle is in force, package current says.
//
// The trust bundle says whom a cluster believes: roots, mesh CA keys and config signing keys,
// and what is banned and revoked. It is compiled of an [Input], which is the [State] and the
// bans in the store, under an [Authority], which is one head of the history and handles of
// the keys that sign under it; what comes out is a [View].
//
// This package keeps one half of I11 (no node goes back to an older trust state; docs/explanation/failure-model.md): every
// change of what a bundle says is a new version of the State, and that version is the bundle's own, so that of two bundles of one authority
// epoch the one with the higher version says what was decided later. The content depends
// on Input and head alone, so that all coordinators make equal bytes of a version. Which bundle
// is in force is for the caller to say, by [View.Newer].
//
// A bundle is canonical JSON (RFC 8785), signed with Ed25519 (RFC 8032 §5.1); its certificates are
// those of the fleet's own authority (RFC 5280 §4).
//
// Nothing but [Read] does I/O, and nothing here holds a secret: a handle signs and gives its
// public key.
package bundle

import (
	"crypto/ed25519"
	"crypto/x509"
	"slices"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Authority is under what a trust bundle is made: one head of the history and the
// keys that sign under it. It is made once for each head, since the links of the history
// are encoded for it, and nobody changes it afterwards.
type Authority struct {
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
	// TokenKey gives the key that signs JWT-SVIDs beside the nth config signing key.
	TokenKey func(n uint32) keyring.Signer
}

// PublicRoot returns the public config root key.
func (a *Authority) PublicRoot() ed25519.PublicKey {
	return a.ConfigRoot().Public().(ed25519.PublicKey)
}

// PublicKey returns the nth public config signing key.
func (a *Authority) PublicKey(n uint32) ed25519.PublicKey {
	return a.ConfigKey(n).Public().(ed25519.PublicKey)
}

// KeyID returns the id of the nth config signing key.
func (a *Authority) KeyID(n uint32) string { return snapshot.KeyIDOf(a.PublicKey(n)) }

// Bounds of the transitions that go before each trust bundle. A member that missed more asks for them.
const (
	maxRecentLinks  = 16
	recentLinkBytes = 128 << 10
)

// RecentLinks returns the newest transitions of a history, encoded, oldest first: at most
// 16, and of 128 KiB together unless the newest alone is larger.
func RecentLinks(v *history.Verified) [][]byte {
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

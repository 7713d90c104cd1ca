package identity

import (
	"crypto/x509"
	"slices"

	"github.com/fealty-io/fealty/internal/identity"
)

// The tests compare and count these, and nobody else needs them.
var (
	Encoding    = identity.Encoding
	Scan        = scan
	ParseSlowly = parseSlowly
)

// MaxCheckedMeshCAs bounds what CheckedMeshCAs returns.
const MaxCheckedMeshCAs = maxCheckedMeshCAs

// CheckedMeshCAs returns the mesh CAs that b remembers, the newest first.
func CheckedMeshCAs(b *Bundle) []*x509.Certificate {
	var all []*x509.Certificate
	if list := b.checked.list.Load(); list != nil {
		for _, checked := range slices.Clone(*list) {
			all = append(all, checked.cert)
		}
	}
	return all
}

// AddChecked has b remember c, as if it had checked it.
func AddChecked(b *Bundle, c *x509.Certificate) { b.checked.add(c) }

// The profiles and the rules.
var (
	ChainRules    = allChainRules
	OperatorRules = allOperatorRules
	LeafProfile   = identity.LeafProfile
	MeshCAProfile = identity.MeshCAProfile
	RootProfile   = identity.RootProfile
)

type (
	Profile = identity.Profile
	IDError = idError
)

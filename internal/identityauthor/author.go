// Package identityauthor does with identities what a coordinator, a member and the command line do, and a program of
// others never: it judges certificates before they count, and names of clusters and keys before there is an identity.
package identityauthor

import (
	"crypto"
	"crypto/x509"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identitydoor"
)

// The functions. Their errors are those of package identity.
var (
	// Kinds returns every kind, in the order in which they are documented.
	Kinds = identitydoor.Kinds.(func() []identity.Kind)

	// CheckCluster reports whether name can be a cluster's name: see identity.New.
	// Errors match identity.ErrInvalidID.
	CheckCluster = identitydoor.CheckCluster.(func(name string) error)

	// CheckLeaf reports whether c, which must come from a parser, is of the profile of leaves and in date at now.
	// Signatures are not looked at: see identity.Bundle.Verify. Errors: *identity.ChainError of the first rule that
	// refuses.
	CheckLeaf = identitydoor.CheckLeaf.(func(c *x509.Certificate, now time.Time) error)

	// CheckMeshCA is CheckLeaf for mesh CAs.
	CheckMeshCA = identitydoor.CheckMeshCA.(func(c *x509.Certificate, now time.Time) error)

	// CheckRoot reports whether c is of the profile of roots and in date at now, and, because a root vouches for
	// itself, of its signature.
	CheckRoot = identitydoor.CheckRoot.(func(c *x509.Certificate, now time.Time) error)

	// CheckUnsignedRoot is CheckRoot before the root has its signature: for whoever is about to make it.
	CheckUnsignedRoot = identitydoor.CheckUnsignedRoot.(func(c *x509.Certificate, now time.Time) error)

	// URIs returns the URI SANs of c, byte for byte as they were signed; none for a certificate without any. It is
	// for who shows or matches names: an identity is what identity.FromCertificate says, and never one of several.
	// Errors: *identity.SANError, for names that cannot be read.
	URIs = identitydoor.URIs.(func(c *x509.Certificate) ([]string, error))

	// KeyOfPublic returns the id of pub, which is equal to that of a certificate for it. It fails for types that
	// crypto/x509 cannot encode.
	KeyOfPublic = identitydoor.KeyOfPublic.(func(pub crypto.PublicKey) (identity.KeyID, error))

	// ParseKeyID reads what identity.KeyID.String prints: 64 lowercase hexadecimal digits.
	ParseKeyID = identitydoor.ParseKeyID.(func(s string) (identity.KeyID, error))

	// VoucherOf returns the member that vouches for a workload, and the key that it asked with. A coordinator writes
	// both into the common name of the workload's certificate, as "<kind>/<name> <key id>": the workload is believed as
	// long as neither is banned, so that what ends a member ends what it vouched for.
	//
	// Leaf must have been verified (identity.Bundle.Verify refuses a workload without a voucher). Otherwise the error
	// says that leaf is of no workload, or was not minted by a cluster.
	VoucherOf = identitydoor.VoucherOf.(func(leaf *x509.Certificate) (identity.ID, identity.KeyID, error))

	newOperatorRoots = identitydoor.NewOperatorRoots.(func(certs []*x509.Certificate) (any, error))
)

// OperatorRoots are the trust anchors of a PKI that an operator runs: cert-manager, a corporate CA. Chains to them are
// verified as RFC 5280 says, and not by the profile of the cluster's own certificates: they were minted by somebody
// else. Immutable.
//
// The worth of such a chain is the caller's to know. A cluster's own edges take none.
type OperatorRoots interface {
	// Certificates returns a copy of the list of roots, sorted by their DER.
	Certificates() []*x509.Certificate

	// Verify reports whether chain, its leaf first, leads to one of the roots at now, and may be used for all of
	// usages. Errors: *identity.ChainError of the first rule that refuses.
	Verify(chain []*x509.Certificate, now time.Time, usages ...x509.ExtKeyUsage) error

	// VerifyAccepted is Verify for a chain that is in use already: what rules refuse that came after a release which
	// took it is returned as newer, and is no error.
	VerifyAccepted(chain []*x509.Certificate, now time.Time, usages ...x509.ExtKeyUsage) (
		newer *identity.ChainError, err error)
}

// NewOperatorRoots returns the roots certs, 1 to 64 certificates of CAs. They may be intermediates, and out of date:
// that shows when they are used.
func NewOperatorRoots(certs []*x509.Certificate) (OperatorRoots, error) {
	roots, err := newOperatorRoots(certs)
	if err != nil {
		return nil, err
	}
	return roots.(OperatorRoots), nil
}

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
	// Errors: *identity.IDError, matching identity.ErrInvalidID.
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
)

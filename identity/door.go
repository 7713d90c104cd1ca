package identity

import (
	"crypto/x509"

	"github.com/fealty-io/fealty/internal/identitydoor"
)

// Issuers of certificates need more than what is public, and nobody else does; see package identitydoor.
func init() {
	identitydoor.Kinds = kinds
	identitydoor.CheckCluster = checkCluster
	identitydoor.CheckLeaf = checkLeaf
	identitydoor.CheckMeshCA = checkMeshCA
	identitydoor.CheckRoot = checkRoot
	identitydoor.CheckUnsignedRoot = checkUnsignedRoot
	identitydoor.URIs = uriNames
	identitydoor.KeyOfPublic = keyOfPublic
	identitydoor.ParseKeyID = parseKeyID
	identitydoor.VoucherOf = voucherOfLeaf
	identitydoor.NewOperatorRoots = func(certs []*x509.Certificate) (any, error) { return newOperatorRoots(certs) }
}

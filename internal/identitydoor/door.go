// Package identitydoor is how internal/identityauthor reaches what package identity keeps for itself.
//
// Certificates are minted by the rules that verify them, so both are one package; but who mints is this module alone.
// So identity sets these functions when a program starts, and identityauthor, which knows their types, calls them.
package identitydoor

// The functions, each as identityauthor declares it.
var (
	Kinds, CheckCluster, KeyOfPublic, ParseKeyID, URIs   any
	VoucherOf, NewOperatorRoots                          any
	CheckLeaf, CheckMeshCA, CheckRoot, CheckUnsignedRoot any
)

// Package snapshotdoor is how internal/snapshotmember and internal/trust reach what package snapshot keeps for
// itself. It sets these functions when a program starts, and those packages, which know their types, call them.
// Where one of them returns any, that is a type of snapshot without a public name.
package snapshotdoor

// The functions, each as its caller declares it.
var (
	Refuse, WalkRevoked, FaultOfRevoked, NewRevocations any

	FreshnessAt, VerifyHeader, RecheckHeader any
	RevocationsOf, Effective, ClaimsOf       any
)

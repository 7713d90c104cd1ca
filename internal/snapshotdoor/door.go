// Package snapshotdoor is how internal/snapshotauthor, internal/snapshotmember and internal/trust
// reach what package snapshot keeps for itself.
//
// Composing a snapshot asks the checks that verify one, so both are one package; but who composes is this module alone.
// So snapshot sets these functions when a program starts, and those packages, which know their types, call them.
// Where one of them returns any, that is a type of snapshot without a public name.
package snapshotdoor

// The functions, each as its caller declares it.
var (
	Compose, NewTree, LeafOf, Diff, Steps       any
	RevokedKinds, RevocationsIn, WithoutRevoked any
	ReadAssignment, ParseDigest, SignRoot       any

	Refuse, WalkRevoked, FaultOfRevoked, NewRevocations any

	FreshnessAt, VerifyHeader, RecheckHeader any
	RevocationsOf, Effective, ClaimsOf       any
)

// Package snapshotdoor is how internal/snapshotauthor reaches what package snapshot keeps for itself.
//
// Composing a snapshot asks the checks that verify one, so both are one package; but who composes is this module alone.
// So snapshot sets these functions when a program starts, and snapshotauthor, which knows their types, calls them.
// Where one of them returns any, that is a type of snapshot without a public name.
package snapshotdoor

// The functions, each as snapshotauthor declares it.
var (
	Compose, NewTree, LeafOf, Diff, Steps       any
	RevokedKinds, RevocationsIn, WithoutRevoked any
	ReadAssignment, ParseSubject                any
	DecodeRootChange, DecodeEmergency           any
)

// Package snapshotdoor is how internal/snapshotmember reaches what package snapshot keeps for
// itself. It sets these functions when a program starts, and that package, which knows their types, calls them.
// Where one of them returns any, that is a type of snapshot without a public name.
package snapshotdoor

// The functions, each as its caller declares it.
var (
	FreshnessAt, VerifyHeader, RecheckHeader any
	RevocationsOf, Effective, ClaimsOf       any
)

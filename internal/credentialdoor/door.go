// Package credentialdoor is how internal/pinned and internal/pki/enterprise reach what package credential keeps for itself.
//
// Material that a coordinator has before its cluster is there, and that of a proof, are made of what all material is
// made of; but this module alone makes any. So credential sets these functions when a program starts, and those
// packages, which know their types, call them.
package credentialdoor

// The functions, each as its caller declares it.
var ClientTLS, NewEphemeral, ProofFiles any

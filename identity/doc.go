// Package identity says who is on the other end of a connection.
//
// An identity is a SPIFFE id of the form
//
//	spiffe://<cluster>/<kind>/<name>
//
// and a peer proves it with a certificate chain that this package verifies. Four
// promises:
//
//   - [FromCertificate] alone makes an identity of URI SANs. A certificate with zero or
//     several of them, or with one that is not exactly of the form above,
//     identifies nobody.
//   - [Bundle.Verify] accepts the certificates that a Fealty cluster mints and no
//     others: the chain has a fixed length, and leaf, mesh CA and root each pass a
//     table of rules (profile). It never looks at the system's roots, and its work
//     is bounded whatever it is given: at most three certificates and two signatures, or
//     three when a bundle first accepts a mesh CA.
//   - A certificate that is verified and yet identifies nobody is told apart from
//     one that is refused: see [Verified].
//   - The rules that verify a certificate also lint it before it is signed, so that
//     an authority cannot mint what its own cluster refuses.
//
// The package does no I/O, starts no goroutine and reads no clock: callers pass the
// time. The rights of an identity are decided elsewhere, and so is revocation beyond
// the bans that a [Bundle] carries.
package identity

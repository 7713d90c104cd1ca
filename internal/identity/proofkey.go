package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"fmt"
)

// Bounds of an RSA key in an operator's own PKI, in bits. Verifying by a longer one takes time that a peer must
// not choose; crypto/tls has the same bound.
const (
	MinRSABits = 2048
	MaxRSABits = 8192
)

// CheckProofKey returns what is wrong with a key that is to make an x509 proof, and "" if it can: ECDSA on P-256 or
// P-384, Ed25519, and RSA of [MinRSABits] to [MaxRSABits]. A proof signs a SHA-512 and names no hash, so that
// each key has one form of signature. Certificates under P-521 are verified, and prove nothing.
func CheckProofKey(pub crypto.PublicKey) string {
	const want = "; a proof is made with ECDSA on P-256 or P-384, with Ed25519, or with RSA of 2048 to 8192 bits"
	switch key := pub.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return ""
		}
		return "an ECDSA key on " + key.Curve.Params().Name + want
	case ed25519.PublicKey:
		if len(key) == ed25519.PublicKeySize {
			return ""
		}
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < MinRSABits || n > MaxRSABits {
			return fmt.Sprintf("an RSA key of %d bits%s", n, want)
		}
		return ""
	}
	return "a key of another kind" + want
}

package proof

import "crypto/ed25519"

// statement is what a coordinator signs with its enrolment key.
type statement interface {
	Digest() ([64]byte, error)
}

// proveBy signs what s says with an enrolment key. The claim is the key as a manifest
// names it. It fails as the digest does.
func proveBy(key ed25519.PrivateKey, s statement) (claim string, evidence []byte, err error) {
	d, err := s.Digest()
	if err != nil {
		return "", nil, err
	}
	return KeyClaim(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, d[:]), nil
}

// checkBy checks evidence that [proveBy] made of s, and returns the selector that is
// proven. Errors: that of the digest; [*FormatError] for a malformed claim; otherwise
// refused.
func checkBy(s statement, claim string, evidence []byte, refused error) (selector string, err error) {
	d, err := s.Digest()
	if err != nil {
		return "", err
	}
	if len(claim) > MaxClaimBytes {
		return "", &FormatError{TypeKey, "claim", "it is too long"}
	}
	key, err := ParseKeyClaim(claim)
	if err != nil {
		return "", err
	}
	if len(evidence) != ed25519.SignatureSize || !ed25519.Verify(key, d[:], evidence) {
		return "", refused
	}
	return "key:" + claim, nil
}

package proof

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/fealty-io/fealty/identity"
)

// TypeKey is the proof by a key that the manifest names: a signature by it.
const TypeKey = "key"

// keyPrefix begins the claim of a key proof.
const keyPrefix = "ed25519:"

// KeyClaim returns "ed25519:<base64>", the way a key is written in claims and in
// manifests: standard base64 with padding.
func KeyClaim(key ed25519.PublicKey) string {
	return keyPrefix + base64.StdEncoding.EncodeToString(key)
}

// ParseKeyClaim reads what [KeyClaim] writes and nothing else: a key has one
// spelling, so that comparing claims compares keys. It refuses the keys for
// which anybody can make a signature. The error is a [*FormatError].
func ParseKeyClaim(claim string) (ed25519.PublicKey, error) {
	encoded, ok := strings.CutPrefix(claim, keyPrefix)
	if !ok {
		return nil, &FormatError{TypeKey, "claim", `it does not begin with "ed25519:"`}
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	// The decoder skips line breaks and ignores loose bits; encoding again shows both.
	if err != nil || len(raw) != ed25519.PublicKeySize || KeyClaim(raw) != claim {
		return nil, &FormatError{TypeKey, "claim", `"ed25519:" must be followed by the 32 bytes of the key in standard base64, 44 characters`}
	}
	if lowOrder(raw) {
		return nil, &FormatError{TypeKey, "claim", "it names a point of low order: everybody can sign for it"}
	}
	return raw, nil
}

// lowOrder reports whether key encodes a point of order 1, 2, 4 or 8. The scalar
// of a signature's equation then has at most eight effects, and a signature that
// verifies is found without any private key. RFC 8032 §5.1.7 leaves the check to
// the caller, and crypto/ed25519 makes none.
func lowOrder(key []byte) bool {
	masked := [32]byte(key)
	masked[31] &= 0x7f // the sign bit of x: both signs are of low order, or none
	switch hex.EncodeToString(masked[:]) {
	case "0000000000000000000000000000000000000000000000000000000000000000", // order 4
		"0100000000000000000000000000000000000000000000000000000000000000", // order 1
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05", // order 8
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a", // order 8
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // order 2
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // 0, written as p
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f": // 1, written as p+1
		return true
	}
	return false
}

// NewKeyProver returns a prover that signs with key, in either role.
func NewKeyProver(key ed25519.PrivateKey) Prover {
	return keyProver{func() ed25519.PrivateKey { return key }}
}

// keyProver holds its key in a function to keep it out of what prints the prover:
// see Secret.
type keyProver struct{ key func() ed25519.PrivateKey }

func (p keyProver) Prove(_ context.Context, t Transcript) (Evidence, error) {
	d, err := t.Digest()
	if err != nil {
		return Evidence{}, err
	}
	key := p.key()
	return Evidence{Type: TypeKey, Claim: KeyClaim(key.Public().(ed25519.PublicKey)), Evidence: ed25519.Sign(key, d[:])}, nil
}

// NewKeyVerifier returns the verifier of [TypeKey]. It proves the claim itself, as
// selector "key:ed25519:<base64>": whether that key counts is for the manifest to
// say.
func NewKeyVerifier() Verifier { return keyVerifier{} }

// errKeyRefused is the answer to a wrong signature.
var errKeyRefused = &refusal{"the key proof is not a signature by the claimed key over this channel: prove with the private key that the manifest names, and connect without a proxy that terminates TLS"}

type keyVerifier struct{}

func (keyVerifier) Type() string { return TypeKey }

func (keyVerifier) Verify(_ context.Context, t Transcript, e Evidence) (Proven, error) {
	d, err := t.Digest()
	if err != nil {
		return Proven{}, err
	}
	if err := e.checkShape(TypeKey); err != nil {
		return Proven{}, err
	}
	pub, err := ParseKeyClaim(e.Claim)
	if err != nil {
		return Proven{}, err
	}
	if !ed25519.Verify(pub, d[:], e.Evidence) {
		return Proven{}, errKeyRefused
	}
	id, err := identity.KeyOfPublic(pub)
	if err != nil {
		return Proven{}, err
	}
	return newProven(t, TypeKey, id, "key:"+e.Claim), nil
}

// checkShape checks what proofs of types token and key have in common: sizes, an
// Ed25519 signature, and no public key beside it.
func (e Evidence) checkShape(want string) error {
	if err := e.checkSize(); err != nil {
		return err
	}
	if e.Type != want {
		return &UnknownTypeError{Type: e.Type, Known: []string{want}}
	}
	if len(e.Evidence) != ed25519.SignatureSize {
		return &FormatError{want, "evidence", "an Ed25519 signature has 64 bytes"}
	}
	if len(e.PublicKey) != 0 {
		return &FormatError{want, "public key", "it must be empty"}
	}
	return nil
}

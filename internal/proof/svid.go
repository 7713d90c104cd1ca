package proof

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
)

// TypeSVID is the proof by the key that was last certified for a member, for a
// member whose certificate ran out.
const TypeSVID = "svid"

// NewSVIDProver returns a prover that signs with the last certified key of the
// member. The key is ECDSA P-256 or Ed25519; with another one, every Prove fails.
func NewSVIDProver(kind identity.Kind, name string, key crypto.Signer) Prover {
	return svidProver{kind, name, func() crypto.Signer { return key }}
}

// svidProver holds its key in a function: see Secret.
type svidProver struct {
	kind identity.Kind
	name string
	key  func() crypto.Signer
}

func (p svidProver) Prove(_ context.Context, t Transcript) (Evidence, error) {
	d, err := t.Digest()
	if err != nil {
		return Evidence{}, err
	}
	pub, err := x509.MarshalPKIXPublicKey(p.key().Public())
	if err != nil {
		return Evidence{}, fmt.Errorf("marshal the member's public key: %w", err)
	}
	sig, err := signDigest(p.key(), d, memberKeys)
	if err != nil {
		return Evidence{}, fmt.Errorf("sign with the last certified key of %s/%s: %w", p.kind, p.name, err)
	}
	return Evidence{Type: TypeSVID, Claim: string(p.kind) + "/" + p.name, Evidence: sig, PublicKey: pub}, nil
}

// SVIDLookup returns the key that was last certified for a member, and the older
// ones that are remembered. An error that matches [ErrNotFound] means that there
// is no such member, any other that nobody can tell now. Grace and bans are for
// the caller to judge, after the proof.
type SVIDLookup func(ctx context.Context, kind identity.Kind, name string) (current identity.KeyID, older []identity.KeyID, err error)

// NewSVIDVerifier returns the verifier of [TypeSVID]; the selector is
// "svid:<kind>/<name>". It panics without a lookup.
//
// The evidence is a signature over the digest: pure Ed25519 (RFC 8032 §5.1), or
// ECDSA on P-256 as ASN.1 DER with the digest truncated to 32 bytes (FIPS 186-5
// §6.4) and s in the lower half, because (r, s) and (r, n-s) are otherwise two
// spellings of one signature.
//
// A proof by an older key of the member fails with a [*CloneError], one for
// another key or a member that does not exist with one fixed error.
func NewSVIDVerifier(lookup SVIDLookup) Verifier {
	if lookup == nil {
		panic("proof: NewSVIDVerifier without a lookup")
	}
	return &svidVerifier{lookup}
}

// CloneError says that a proof was made with a key of the member that was
// replaced since: a copy of the member from before its last renewal is at large,
// or the member was restored from one. Its receiver raises an alarm.
type CloneError struct {
	Kind    identity.Kind
	Name    string
	Key     identity.KeyID // that was proven
	Current identity.KeyID // that should have been
}

func (e *CloneError) Error() string {
	return fmt.Sprintf("%s/%s was proven with key %s, which was replaced since by %s: a copy of this member is running, or it was restored from an old disk; stop the copy, or have an admin run: fealty member replace %s",
		e.Kind, e.Name, e.Key, e.Current, e.Name)
}

// Is makes a CloneError match [ErrRefused].
func (e *CloneError) Is(target error) bool { return target == ErrRefused }

// errSVIDRefused is the one answer to a wrong signature, a foreign key and a
// member that does not exist.
var errSVIDRefused = &refusal{"the svid proof is not accepted: it is not a signature over this channel by the key that was last certified for that member; join again with another proof, and connect without a proxy that terminates TLS"}

type svidVerifier struct{ lookup SVIDLookup }

func (*svidVerifier) Type() string { return TypeSVID }

func (v *svidVerifier) Verify(ctx context.Context, t Transcript, e Evidence) (Proven, error) {
	d, err := t.Digest()
	if err != nil {
		return Proven{}, err
	}
	if err := e.checkSize(); err != nil {
		return Proven{}, err
	}
	if e.Type != TypeSVID {
		return Proven{}, &UnknownTypeError{Type: e.Type, Known: []string{TypeSVID}}
	}
	kind, name, err := parseMember(t.Cluster, e.Claim)
	if err != nil {
		return Proven{}, err
	}
	pub, err := parseSigningKey(e.PublicKey)
	if err != nil {
		return Proven{}, err
	}
	id, err := identity.KeyOfPublic(pub)
	if err != nil {
		return Proven{}, err
	}
	// The signature first: a stranger without one does not reach the lookup, and
	// an older key is called a clone only to who holds it.
	if !verifyDigest(pub, d, e.Evidence) {
		return Proven{}, errSVIDRefused
	}
	current, older, err := v.lookup(ctx, kind, name)
	switch {
	case errors.Is(err, ErrNotFound):
		return Proven{}, errSVIDRefused
	case err != nil:
		return Proven{}, &LookupError{TypeSVID, err}
	case id == current:
		p := newProven(t, TypeSVID, id, "svid:"+e.Claim)
		p.kind, p.name = kind, name
		return p, nil
	case slices.Contains(older, id):
		return Proven{}, &CloneError{Kind: kind, Name: name, Key: id, Current: current}
	}
	return Proven{}, errSVIDRefused
}

// parseMember splits "<kind>/<name>" and accepts what identity accepts.
func parseMember(cluster, claim string) (identity.Kind, string, error) {
	kind, name, ok := strings.Cut(claim, "/")
	if !ok {
		return "", "", &FormatError{TypeSVID, "claim", "want <kind>/<name>"}
	}
	id, err := identity.New(cluster, identity.Kind(kind), name)
	if err != nil {
		return "", "", &FormatError{TypeSVID, "claim", "it names no possible member: " + err.Error()}
	}
	return id.Kind(), id.Name(), nil
}

// parseSigningKey accepts the key types that Fealty certifies, in DER.
func parseSigningKey(der []byte) (crypto.PublicKey, error) {
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, &FormatError{TypeSVID, "public key", "it is not a DER SubjectPublicKeyInfo of a known type"}
	}
	switch key := parsed.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return nil, &FormatError{TypeSVID, "public key", "of the ECDSA curves only P-256 is accepted"}
		}
	case ed25519.PublicKey:
		if lowOrder(key) {
			return nil, &FormatError{TypeSVID, "public key", "it is a point of low order: everybody can sign for it"}
		}
	default:
		return nil, &FormatError{TypeSVID, "public key", "only ECDSA P-256 and Ed25519 are accepted"}
	}
	// One spelling for one key. The parser takes more than one: it aligns a BIT
	// STRING with unused bits, for one.
	if again, err := x509.MarshalPKIXPublicKey(parsed); err != nil || !bytes.Equal(again, der) {
		return nil, &FormatError{TypeSVID, "public key", "it is not in its canonical encoding"}
	}
	return parsed, nil
}

// memberKeys reports whether pub is of a type that Fealty certifies.
func memberKeys(pub crypto.PublicKey) bool {
	switch key := pub.(type) {
	case *ecdsa.PublicKey:
		return key.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return true
	}
	return false
}

// signDigest signs d with a key that allowed accepts: pure Ed25519 (RFC 8032 §5.1);
// ECDSA in DER with s in the lower half; RSASSA-PSS with SHA-512 and a salt of its
// length (RFC 8017 §8.1).
func signDigest(key crypto.Signer, d [64]byte, allowed func(crypto.PublicKey) bool) ([]byte, error) {
	if !allowed(key.Public()) {
		return nil, fmt.Errorf("a key of type %T, or of its size, cannot make this proof", key.Public())
	}
	switch pub := key.Public().(type) {
	case *ecdsa.PublicKey:
		der, err := key.Sign(rand.Reader, d[:], crypto.SHA512)
		if err != nil {
			return nil, err
		}
		return lowerS(pub.Curve, der)
	case *rsa.PublicKey:
		return key.Sign(rand.Reader, d[:], pssOptions())
	}
	return key.Sign(rand.Reader, d[:], crypto.Hash(0))
}

func pssOptions() *rsa.PSSOptions {
	return &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA512}
}

// verifyDigest is the reverse of signDigest. Which keys are allowed is checked
// before.
func verifyDigest(key crypto.PublicKey, d [64]byte, sig []byte) bool {
	switch pub := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(pub, d[:], sig)
	case *ecdsa.PublicKey:
		lower, err := lowerS(pub.Curve, sig)
		return err == nil && bytes.Equal(lower, sig) && ecdsa.VerifyASN1(pub, d[:], sig)
	case *rsa.PublicKey:
		return rsa.VerifyPSS(pub, crypto.SHA512, d[:], sig, pssOptions()) == nil
	}
	return false
}

// ecdsaSignature is ECDSA-Sig-Value of RFC 3279 §2.2.3.
type ecdsaSignature struct{ R, S *big.Int }

// lowerS returns the signature with the smaller of s and n-s, in DER. Of a
// signature in that form, DER being unique, it returns the very bytes.
func lowerS(curve elliptic.Curve, der []byte) ([]byte, error) {
	var sig ecdsaSignature
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		return nil, fmt.Errorf("not an ECDSA signature in DER: %w", err)
	}
	n := curve.Params().N
	if negated := new(big.Int).Sub(n, sig.S); negated.Cmp(sig.S) < 0 {
		sig.S = negated
	}
	return asn1.Marshal(sig)
}

// Package pki makes a cluster's certificates: root, mesh CAs, and the leaves that
// members hold (X509-SVIDs).
//
// Promises:
//
//   - A key signs nothing but what the profiles of package identity accept, and
//     what was asked for. The lint runs on the very bytes to be signed, inside the
//     signer, so that there is no way around it and no template that encodes to
//     something else.
//   - Nothing in a certificate signing request but its key is believed.
//   - The root certificate is a function of key, cluster and start time: every
//     coordinator that derives the key makes the same bytes.
//   - No certificate outlives its issuer's.
//
// Other packages decide who may have which certificate. The package does no I/O and
// reads no clock: callers pass the time.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// ErrLint is matched by every [*LintError].
var ErrLint = errors.New("certificate refused before signing")

// LintError says which rule refused a certificate before it was signed. Refusals
// by the profiles of package identity are its *identity.ChainError instead.
type LintError struct {
	Rule    string // stable: a metric label
	Section string // where the rule is written
	Detail  string
}

func (e *LintError) Error() string {
	return fmt.Sprintf("pki: not signed, rule %s (%s): %s", e.Rule, e.Section, e.Detail)
}

// Is reports that a LintError matches [ErrLint].
func (e *LintError) Is(target error) bool { return target == ErrLint }

// guardedSigner signs certificates that pass lint, and nothing else. It is what
// x509.CreateCertificate gets for a key, and gets the signed part in full.
type guardedSigner struct {
	key           crypto.Signer
	deterministic bool
	lint          func(*x509.Certificate) error

	linted *x509.Certificate // what lint accepted, without its signature
}

var _ crypto.MessageSigner = (*guardedSigner)(nil)

func (s *guardedSigner) Public() crypto.PublicKey { return s.key.Public() }

// Sign refuses: a digest cannot be linted.
func (s *guardedSigner) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("pki: this key signs certificates only, not digests")
}

// SignMessage implements [crypto.MessageSigner] for tbs, a TBSCertificate in DER.
func (s *guardedSigner) SignMessage(rand io.Reader, tbs []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts.HashFunc() != crypto.SHA256 {
		return nil, fmt.Errorf("pki: asked to sign with %v, want SHA-256", opts.HashFunc())
	}
	c, err := unsigned(tbs)
	if err != nil {
		return nil, err
	}
	if err := s.lint(c); err != nil {
		return nil, err
	}
	s.linted = c
	digest := crypto.SHA256.New()
	digest.Write(tbs)
	if s.deterministic {
		rand = nil // RFC 6979
	}
	return s.key.Sign(rand, digest.Sum(nil), crypto.SHA256)
}

// unsigned parses a TBSCertificate, with an empty signature of ECDSA with SHA-256
// in the place of the real one.
func unsigned(tbs []byte) (*x509.Certificate, error) {
	// An empty BIT STRING.
	rest := []byte{0x03, 0x01, 0x00}
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		b.AddBytes(ecdsaWithSHA256)
		b.AddBytes(rest)
	})
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("pki: encoding a certificate to lint it: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: the template encodes to what cannot be parsed: %w", err)
	}
	return c, nil
}

// certify signs tbs, a TBSCertificate in DER, and returns the certificate parsed. It checks the signature that it got
// against s.Public, which callers have compared with the issuer's key: a faulty signer shows here, and what it made
// would tell of the key.
func (s *guardedSigner) certify(tbs []byte) (*x509.Certificate, error) {
	signature, err := s.SignMessage(rand.Reader, tbs, crypto.SHA256)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(tbs)
	if pub, ok := s.Public().(*ecdsa.PublicKey); !ok || !ecdsa.VerifyASN1(pub, digest[:], signature) {
		return nil, errors.New("pki: what the key signed does not verify: nothing is issued with it")
	}
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		b.AddBytes(ecdsaWithSHA256)
		b.AddASN1BitString(signature)
	})
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("pki: encoding a certificate: %w", err)
	}
	// The signed part was parsed for the lint; only these two are new. Parsing all
	// of it again costs a twentieth of a leaf.
	s.linted.Raw, s.linted.Signature = der, signature
	return s.linted, nil
}

// sign makes a certificate from template, signed by s, and returns it parsed.
// crypto/x509 checks the signature that it got against s.Public, which callers have
// compared with issuer's key: a faulty signer shows here.
func sign(rand io.Reader, template, issuer *x509.Certificate, pub crypto.PublicKey, s *guardedSigner) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand, template, issuer, pub, s)
	if err != nil {
		return nil, err
	}
	var body, tbs cryptobyte.String
	var signature []byte
	outer := cryptobyte.String(der)
	if !outer.ReadASN1(&body, asn1.SEQUENCE) || !outer.Empty() || !body.ReadASN1Element(&tbs, asn1.SEQUENCE) ||
		!body.SkipASN1(asn1.SEQUENCE) || !body.ReadASN1BitStringAsBytes(&signature) || !body.Empty() {
		return nil, errors.New("pki: what was signed is no certificate")
	}
	if s.linted == nil || !bytes.Equal(tbs, s.linted.RawTBSCertificate) {
		return nil, errors.New("pki: what was signed is not what was linted")
	}
	s.linted.Raw, s.linted.Signature = der, signature // as in certify
	return s.linted, nil
}

// checkCAKey wants the P-256 key of certificate c, or of anything if c is nil.
func checkCAKey(key crypto.Signer, c *x509.Certificate) (*ecdsa.PublicKey, error) {
	if key == nil {
		return nil, errors.New("pki: no key")
	}
	pub, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, fmt.Errorf("pki: the key of a CA is of type %T, want ECDSA P-256", key.Public())
	}
	if c != nil && !pub.Equal(c.PublicKey) {
		return nil, errors.New("pki: the key is not that of the certificate")
	}
	return pub, nil
}

package proof

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

// VouchLabel is the label of what the key of a certificate signs for a coordinator.
const VouchLabel = "fealty-coordinator-x509-v1"

// vouchDigest is what the key of a certificate signs: SHA-512 over the parts
//
//	VouchLabel, claim, said
//
// each preceded by its length as in [Transcript.Digest]. claim names the enrolment key,
// "ed25519:<base64>", and said is the digest of what that key signs: with it the
// certificate speaks for the same channel, purpose, role and head.
func vouchDigest(claim string, said [64]byte) [64]byte {
	return digest([]byte(VouchLabel), []byte(claim), said[:])
}

// Vouch signs, with the certificate of an operator's PKI, that what an enrolment key
// signs is said by who holds that certificate. It is made for the very digest that the
// enrolment key signs, and is worth nothing without that signature. The encoding is that
// of evidence of [TypeX509].
func Vouch(c X509Credential, claim string, said [64]byte) ([]byte, error) {
	chain, err := pathOf(c.Chain)
	if err != nil {
		return nil, err
	}
	if c.Key == nil {
		return nil, errors.New("there is no private key to prove the certificate with")
	}
	if k, ok := c.Key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !k.Equal(chain[0].PublicKey) {
		return nil, errors.New("the private key is not that of the certificate: replace both together")
	}
	sig, err := signDigest(c.Key, vouchDigest(claim, said), operatorKeys)
	if err != nil {
		return nil, fmt.Errorf("sign with the key of the certificate: %w", err)
	}
	return encodeX509(chain, sig)
}

// errVouchRefused is the answer to a wrong signature.
var errVouchRefused = &refusal{"what vouches for the enrolment key is not a signature by the certificate's key over the same: whoever answers does not hold that key, or a proxy terminates TLS in between"}

// A Coordinator is what one showed of itself: its enrolment key, and a certificate of an
// operator's PKI if it showed one too. The zero value matches no entry.
type Coordinator struct {
	claim string              // its enrolment key, "ed25519:<base64>"
	chain []*x509.Certificate // leaf first, without the root; nil without a certificate
}

// ClaimedCoordinator is what one says that it will show, and has not proven: good for
// deciding whether to go on, and for nothing else. Errors: [*FormatError].
func ClaimedCoordinator(claim string, certificates [][]byte) (Coordinator, error) {
	c := Coordinator{claim: claim}
	if len(certificates) > MaxX509Chain {
		return Coordinator{}, &FormatError{TypeX509, "evidence", fmt.Sprintf("it has %d certificates, at most %d are looked at", len(certificates), MaxX509Chain)}
	}
	for i, der := range certificates {
		if len(der) > internalidentity.MaxCertificateBytes {
			return Coordinator{}, &FormatError{TypeX509, "evidence", fmt.Sprintf("certificate %d is larger than %d bytes",
				i+1, internalidentity.MaxCertificateBytes)}
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return Coordinator{}, &FormatError{TypeX509, "evidence", fmt.Sprintf("certificate %d cannot be read", i+1)}
		}
		c.chain = append(c.chain, cert)
	}
	return c, nil
}

// OwnCoordinator is this process: the key and the certificate that it would show. Without
// a certificate chain is nil.
func OwnCoordinator(claim string, chain []*x509.Certificate) (Coordinator, error) {
	if len(chain) == 0 {
		return Coordinator{claim: claim}, nil
	}
	path, err := pathOf(chain)
	return Coordinator{claim, path}, err
}

// ProvenCoordinator is who proved the enrolment key of selector, "key:ed25519:<base64>",
// over said, with what [Vouch] made of it; vouch is empty for who showed no certificate.
// The certificate's key is proven then: whether a manifest believes the certificate is
// for [Coordinator.Match] to say.
//
// Errors: [*FormatError], [*TooLargeError]; otherwise one that matches [ErrRefused].
func ProvenCoordinator(selector string, said [64]byte, vouch []byte) (Coordinator, error) {
	claim, ok := strings.CutPrefix(selector, "key:")
	if !ok {
		return Coordinator{}, errVouchRefused
	}
	if len(vouch) == 0 {
		return Coordinator{claim: claim}, nil
	}
	if len(vouch) > MaxEvidenceBytes {
		return Coordinator{}, &TooLargeError{Part: "evidence", Got: len(vouch), Max: MaxEvidenceBytes}
	}
	chain, sig, err := decodeX509(vouch)
	if err != nil {
		return Coordinator{}, err
	}
	if leaf := chain[0]; !operatorKeys(leaf.PublicKey) || !verifyDigest(leaf.PublicKey, vouchDigest(claim, said), sig) {
		return Coordinator{}, errVouchRefused
	}
	return Coordinator{claim, chain}, nil
}

// Key is its enrolment key, "ed25519:<base64>".
func (c Coordinator) Key() string { return c.claim }

// Certificates are those that it shows, DER, leaf first; nil without any.
func (c Coordinator) Certificates() [][]byte {
	var out [][]byte
	for _, cert := range c.chain {
		out = append(out, cert.Raw)
	}
	return out
}

// InDate returns the time closest to now at which its certificate is in date: a
// coordinator that took it in time goes on as itself, and it is for others to refuse it.
func (c Coordinator) InDate(now time.Time) time.Time {
	for _, cert := range c.chain {
		if now.After(cert.NotAfter) {
			now = cert.NotAfter
		}
	}
	return now
}

// Match returns the entry of kind coordinator in m that admits it. Its key comes first,
// and then its certificate is not looked at; the certificate counts if a root of m
// vouches for it at now. The error is a [*NotAdmittedError].
func (c Coordinator) Match(m *manifest.Manifest, now time.Time) (manifest.Match, error) {
	refused := &NotAdmittedError{Key: c.claim}
	if c.claim == "" {
		return manifest.Match{}, refused
	}
	if found, ok := m.Match(identity.Coordinator, []string{"key:" + c.claim}); ok {
		return found, nil
	}
	for i := range m.Admit {
		e := &m.Admit[i]
		if e.Kind != identity.Coordinator {
			continue
		}
		for _, p := range e.Match {
			if p.Family() == manifest.FamilyX509 {
				refused.Wanted = append(refused.Wanted, e.Name+" ("+p.String()+")")
			}
		}
	}
	if len(c.chain) == 0 || len(refused.Wanted) == 0 {
		return manifest.Match{}, refused
	}
	refused.Certificate = true
	roots, err := OperatorRoots(m)
	if err != nil || roots == nil {
		refused.Untrusted = &CertificateError{Issuer: c.chain[len(c.chain)-1].Issuer.String(), Err: &identity.ChainError{
			Certificate: "leaf", Rule: "root", Reason: identity.ErrUntrusted, Detail: "the manifest names no roots for x509",
		}}
		return manifest.Match{}, refused
	}
	selectors, err := provenNames(roots, c.chain, now)
	if err != nil {
		if e, ok := errors.AsType[*CertificateError](err); ok {
			refused.Untrusted = e
		}
		return manifest.Match{}, refused
	}
	found, ok := m.Match(identity.Coordinator, selectors)
	if !ok {
		refused.Shows = selectors
		return manifest.Match{}, refused
	}
	return found, nil
}

// NotAdmittedError says why no entry of kind coordinator admits who showed itself.
type NotAdmittedError struct {
	Key string // its enrolment key
	// Wanted are the entries that admit by x509, as "NAME (SELECTOR)".
	Wanted []string
	// Certificate: it showed one, and the manifest admits some coordinator by x509.
	Certificate bool
	// Untrusted is why no root of the manifest vouches for its certificate. Its text is
	// for who looks at the own certificate, and for the log.
	Untrusted *CertificateError
	// Shows are the names of a certificate that is believed.
	Shows []string
}

// Error says no more than who showed it knows, and what the entries are not: it goes to
// strangers.
func (e *NotAdmittedError) Error() string {
	text := fmt.Sprintf("no entry of kind coordinator names its key %s in the manifest", e.Key)
	switch {
	case !e.Certificate:
		return text
	case e.Untrusted == nil:
		return text + ", nor what its certificate shows: " + document.Shown(strings.Join(e.Shows, ", "))
	case e.Untrusted.Err.Reason == identity.ErrExpired:
		return text + ", and its certificate is out of date"
	}
	return text + ", and no root of the manifest vouches for its certificate"
}

// Unwrap returns why the certificate is not believed, if it is not.
func (e *NotAdmittedError) Unwrap() error {
	if e.Untrusted == nil {
		return nil
	}
	return e.Untrusted
}

// OperatorRoots returns the roots of m's x509 proof; nil if it has none.
func OperatorRoots(m *manifest.Manifest) (*identity.OperatorRoots, error) {
	if m.Proofs.X509 == nil {
		return nil, nil
	}
	var certs []*x509.Certificate
	for _, der := range m.Proofs.X509.RootsDER {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	return identity.NewOperatorRoots(certs)
}

// provenNames returns what chain shows under roots at now. The error is a
// [*CertificateError] for a chain that is refused.
func provenNames(roots *identity.OperatorRoots, chain []*x509.Certificate, now time.Time) ([]string, error) {
	leaf := chain[0]
	if err := roots.Verify(chain, now, x509.ExtKeyUsageClientAuth); err != nil {
		refused, ok := errors.AsType[*identity.ChainError](err)
		if !ok {
			return nil, err
		}
		return nil, &CertificateError{refused, chain[len(chain)-1].Issuer.String()}
	}
	selectors := x509Selectors(leaf)
	if len(selectors) > MaxX509Selectors {
		return nil, &CertificateError{Issuer: leaf.Issuer.String(), Err: &identity.ChainError{Certificate: "leaf", Rule: "names", Section: "RFC 5280 §4.2.1.6", Reason: identity.ErrProfile,
			Detail: fmt.Sprintf("it has %d names, at most %d are looked at", len(selectors), MaxX509Selectors)}}
	}
	return slices.Clip(selectors), nil
}

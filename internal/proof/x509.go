package proof

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

// TypeX509 is the proof by a certificate of an operator's own PKI: its chain, and a
// signature by its key.
const TypeX509 = "x509"

// Limits of an x509 proof beside [MaxEvidenceBytes], which the chain and the
// signature share.
const (
	// MaxX509Chain is how many certificates are sent: the leaf, and the CAs up to but
	// without the root.
	MaxX509Chain = internalidentity.MaxOperatorChain - 1

	// MaxX509Selectors bounds what one certificate shows: a member's record holds all
	// of it.
	MaxX509Selectors = 16

	maxSelectorBytes = 512 // no entry of a manifest can name more
)

// X509Credential is what an x509 proof is made with.
type X509Credential struct {
	// Chain is the leaf and its issuers, in any order after the leaf; roots and what
	// does not belong to it are left out of the proof.
	Chain []*x509.Certificate
	// Key is the leaf's: ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits.
	Key crypto.Signer
}

// NewX509Prover returns a prover that signs with what current returns, which is asked
// for each proof: certificates of an operator's PKI rotate. It panics without current.
func NewX509Prover(current func(context.Context) (X509Credential, error)) Prover {
	if current == nil {
		panic("proof: NewX509Prover without a credential")
	}
	return x509Prover{current}
}

type x509Prover struct {
	current func(context.Context) (X509Credential, error)
}

func (p x509Prover) Prove(ctx context.Context, t Transcript) (Evidence, error) {
	d, err := t.Digest()
	if err != nil {
		return Evidence{}, err
	}
	if t.Role != Candidate {
		return Evidence{}, &TranscriptError{"role", "is not that of a candidate: a seed proves itself by the cluster's own certificate"}
	}
	c, err := p.current(ctx)
	if err != nil {
		return Evidence{}, fmt.Errorf("take the certificate to prove with: %w", err)
	}
	chain, err := pathOf(c.Chain)
	if err != nil {
		return Evidence{}, err
	}
	if c.Key == nil {
		return Evidence{}, errors.New("there is no private key to prove the certificate with")
	}
	if k, ok := c.Key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !k.Equal(chain[0].PublicKey) {
		return Evidence{}, errors.New("the private key is not that of the certificate: replace both together")
	}
	sig, err := signDigest(c.Key, d, operatorKeys)
	if err != nil {
		return Evidence{}, fmt.Errorf("sign with the key of the certificate: %w", err)
	}
	evidence, err := encodeX509(chain, sig)
	if err != nil {
		return Evidence{}, err
	}
	return Evidence{Type: TypeX509, Evidence: evidence}, nil
}

// pathOf returns the leaf and its issuers up to but without the root.
func pathOf(chain []*x509.Certificate) ([]*x509.Certificate, error) {
	if len(chain) == 0 || slices.Contains(chain, nil) {
		return nil, errors.New("there is no certificate to prove")
	}
	path := chain[:1:1]
	for rest := slices.Clone(chain[1:]); len(path) <= len(chain); {
		last := path[len(path)-1]
		i := slices.IndexFunc(rest, func(c *x509.Certificate) bool {
			return string(c.RawSubject) == string(last.RawIssuer) && string(c.RawSubject) != string(c.RawIssuer) && last.CheckSignatureFrom(c) == nil
		})
		if i < 0 {
			break
		}
		path, rest = append(path, rest[i]), slices.Delete(rest, i, i+1)
	}
	if len(path) > MaxX509Chain {
		return nil, fmt.Errorf("the chain has %d certificates without its root, at most %d can be proven", len(path), MaxX509Chain)
	}
	return path, nil
}

// The evidence is the one encoding of a chain and a signature:
//
//	1 byte   number of certificates, 1 to MaxX509Chain
//	each:    2 bytes length, big endian; that many of DER
//	2 bytes  length of the signature; the signature
func encodeX509(chain []*x509.Certificate, sig []byte) ([]byte, error) {
	out := []byte{byte(len(chain))}
	for _, c := range chain {
		out = appendPart(out, c.Raw)
	}
	out = appendPart(out, sig)
	if len(out) > MaxEvidenceBytes {
		return nil, &TooLargeError{Part: "evidence", Got: len(out), Max: MaxEvidenceBytes}
	}
	return out, nil
}

func appendPart(out, part []byte) []byte {
	// A part that needs more bytes makes the whole too large, which is looked at last.
	return append(binary.BigEndian.AppendUint16(out, uint16(len(part))), part...)
}

// decodeX509 reads what encodeX509 writes and nothing else. Errors: [*FormatError].
func decodeX509(raw []byte) (chain []*x509.Certificate, sig []byte, err error) {
	bad := func(format string, args ...any) ([]*x509.Certificate, []byte, error) {
		return nil, nil, &FormatError{TypeX509, "evidence", fmt.Sprintf(format, args...)}
	}
	part := func() (p []byte, ok bool) {
		if len(raw) < 2 {
			return nil, false
		}
		n := int(binary.BigEndian.Uint16(raw))
		if n == 0 || len(raw) < 2+n {
			return nil, false
		}
		p, raw = raw[2:2+n], raw[2+n:]
		return p, true
	}
	if len(raw) == 0 || raw[0] == 0 || raw[0] > MaxX509Chain {
		return bad("it begins with the number of certificates, 1 to %d", MaxX509Chain)
	}
	n := int(raw[0])
	raw = raw[1:]
	for i := range n {
		der, ok := part()
		if !ok || len(der) > internalidentity.MaxCertificateBytes {
			return bad("certificate %d is cut short, or larger than %d bytes", i+1, internalidentity.MaxCertificateBytes)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return bad("certificate %d cannot be read", i+1)
		}
		chain = append(chain, c)
	}
	sig, ok := part()
	if !ok {
		return bad("the signature is cut short")
	}
	if len(raw) != 0 {
		return bad("%d bytes follow the signature", len(raw))
	}
	return chain, sig, nil
}

// NewX509Verifier returns the verifier of [TypeX509], which takes chains to one of
// roots that are in date by now and made for client authentication. Nil now means
// time.Now.
//
// It proves the names of the leaf, as the manifest writes them: at most
// [MaxX509Selectors] of x509:subject:CN=…, x509:dns:… and x509:uri:….
//
//   - A subject with several common names has none: which one counts would be a
//     matter of taste. The same goes for several URIs (X509-SVID §2).
//   - A name that no entry could spell, that holds what is not printed, or that would
//     be escaped in a subject (RFC 4514 §2.4), is left out.
//   - A certificate without any proves a key and nothing else: it admits nobody.
//
// Errors, beside those of [Verifier]: [*CertificateError], which matches [ErrRefused].
func NewX509Verifier(roots *identity.OperatorRoots, now func() time.Time) Verifier {
	if roots == nil {
		panic("proof: NewX509Verifier without roots")
	}
	if now == nil {
		now = time.Now
	}
	return &x509Verifier{roots, now}
}

// CertificateError says which rule refused the certificate of an x509 proof. Its text
// is for the log of who verified: of an untrusted chain it may name a root.
type CertificateError struct {
	Err *identity.ChainError
	// Issuer is who the last certificate of the chain says issued it. The candidate
	// chose it.
	Issuer string
}

func (e *CertificateError) Error() string {
	return "the certificate of the x509 proof: " + e.Err.Error()
}

// Is makes a CertificateError match [ErrRefused].
func (e *CertificateError) Is(target error) bool { return target == ErrRefused }

// Unwrap returns the rule's refusal.
func (e *CertificateError) Unwrap() error { return e.Err }

// errX509Refused is the answer to a wrong signature.
var errX509Refused = &refusal{"the x509 proof is not a signature by the certificate's key over this channel: prove with the private key of the certificate, and connect without a proxy that terminates TLS"}

type x509Verifier struct {
	roots *identity.OperatorRoots
	now   func() time.Time
}

func (*x509Verifier) Type() string { return TypeX509 }

func (v *x509Verifier) Verify(_ context.Context, t Transcript, e Evidence) (Proven, error) {
	d, err := t.Digest()
	if err != nil {
		return Proven{}, err
	}
	if err := e.checkSize(); err != nil {
		return Proven{}, err
	}
	switch {
	case e.Type != TypeX509:
		return Proven{}, &UnknownTypeError{Type: e.Type, Known: []string{TypeX509}}
	case e.Claim != "":
		return Proven{}, &FormatError{TypeX509, "claim", "it must be empty: the certificate says whose it is"}
	case len(e.PublicKey) != 0:
		return Proven{}, &FormatError{TypeX509, "public key", "it must be empty: it is in the certificate"}
	}
	chain, sig, err := decodeX509(e.Evidence)
	if err != nil {
		return Proven{}, err
	}
	leaf := chain[0]
	selectors, err := provenNames(v.roots, chain, v.now())
	if err != nil {
		return Proven{}, err
	}
	if t.Role != Candidate || !operatorKeys(leaf.PublicKey) || !verifyDigest(leaf.PublicKey, d, sig) {
		return Proven{}, errX509Refused
	}
	return newProven(t, TypeX509, identity.KeyOf(leaf), selectors...), nil
}

// operatorKeys reports whether pub can make an x509 proof.
func operatorKeys(pub crypto.PublicKey) bool {
	if key, ok := pub.(ed25519.PublicKey); ok && lowOrder(key) {
		return false
	}
	return internalidentity.CheckProofKey(pub) == ""
}

var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3} // RFC 5280 appendix A.1

// x509Selectors returns the names of leaf that an entry can match, sorted, without
// repetition.
func x509Selectors(leaf *x509.Certificate) []string {
	var out []string
	add := func(prefix, value string, ok func(string) bool) {
		if value == "" || len(prefix)+len(value) > maxSelectorBytes || strings.Contains(value, "*") || !ok(value) {
			return
		}
		// The manifest's own reader gives the canonical form. No entry can match what
		// it cannot read.
		if p, err := manifest.ParsePattern(prefix + value); err == nil && !p.IsGlob() {
			out = append(out, p.String())
		}
	}
	var common []string
	for _, a := range leaf.Subject.Names {
		if a.Type.Equal(oidCommonName) {
			name, _ := a.Value.(string)
			common = append(common, name)
		}
	}
	if len(common) == 1 {
		add("x509:subject:CN=", common[0], plainName)
	}
	for _, name := range leaf.DNSNames {
		add("x509:dns:", name, hostName)
	}
	if uris, err := identity.URIs(leaf); err == nil && len(uris) == 1 {
		add("x509:uri:", uris[0], plainURI)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// plainName reports whether a common name reads the same to everybody.
func plainName(s string) bool {
	return utf8.ValidString(s) && !document.Invisible(s) && !strings.ContainsAny(s, `,+"\<>;=`) && !strings.HasPrefix(s, "#") &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}

// hostName reports whether s has the form of a host's name (RFC 1123 §2.1;
// underscores are in use).
func hostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return false
		}
	}
	return true
}

// plainURI reports whether s has only characters that a URI is written with (RFC
// 3986 §2).
func plainURI(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", r) })
}

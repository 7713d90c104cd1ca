package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// MaxCSRBytes bounds a certificate signing request in DER. One that [NewCSR] makes
// has less than 250.
const MaxCSRBytes = 8 << 10

// ErrCSR is matched by every [*CSRError].
var ErrCSR = errors.New("certificate signing request refused")

// CSRError says which rule refused a certificate signing request.
type CSRError struct {
	Rule    string // stable: a metric label
	Section string // the standard's section that the rule comes from
	Detail  string // what was found; never text of the request
}

func (e *CSRError) Error() string {
	return fmt.Sprintf("pki: certificate signing request refused by rule %s (%s): %s: send a request for an ECDSA P-256 or Ed25519 key, signed by it, and with nothing else inside", e.Rule, e.Section, e.Detail)
}

// Is reports that a CSRError matches [ErrCSR].
func (e *CSRError) Is(target error) bool { return target == ErrCSR }

// csrRule is a row of the table: check returns "" or what is wrong.
type csrRule struct {
	name, section string
	check         func(csr *x509.CertificateRequest) string
}

// csrRules are checked in this order: cheap ones first, the signature last. Each
// row sees a request that passed the rows above it.
var csrRules = []csrRule{
	{"version", "RFC 2986 §4.1", func(csr *x509.CertificateRequest) string {
		if csr.Version != 0 {
			return "its version is not 1"
		}
		return ""
	}},
	{"nothing-else", "RFC 2986 §4.2", func(csr *x509.CertificateRequest) string {
		// encoding/asn1 skips what follows the last member of a sequence.
		if !threeParts(csr.Raw) {
			return "it has more than its three parts"
		}
		return ""
	}},
	{"no-subject", "I1: names come from the manifest", func(csr *x509.CertificateRequest) string {
		if !bytes.Equal(csr.RawSubject, []byte{0x30, 0x00}) {
			return "it asks for a subject, and names come from the manifest alone"
		}
		return ""
	}},
	{"no-attributes", "RFC 2985 §5.4.2, I1: names come from the manifest", func(csr *x509.CertificateRequest) string {
		// Read from the signed bytes: crypto/x509 skips the attributes that it does
		// not know.
		if !attributesEmpty(csr.RawTBSCertificateRequest) {
			return "it has attributes, such as an extension request with names, and names come from the manifest alone"
		}
		return ""
	}},
	{"public-key", "RFC 5480 §2.1.1, RFC 8410 §3", func(csr *x509.CertificateRequest) string {
		switch key := csr.PublicKey.(type) {
		case *ecdsa.PublicKey:
			if key.Curve != elliptic.P256() {
				return "its key is on the curve " + key.Curve.Params().Name + ", want P-256"
			}
		case ed25519.PublicKey:
		default:
			return fmt.Sprintf("its key is of the kind %v, want ECDSA or Ed25519", csr.PublicKeyAlgorithm)
		}
		return ""
	}},
	{"key-encoding", "RFC 5280 §4.1.2.7", func(csr *x509.CertificateRequest) string {
		// Another encoding would give the key another id, and slip past a ban.
		der, err := x509.MarshalPKIXPublicKey(csr.PublicKey)
		if err != nil || !bytes.Equal(der, csr.RawSubjectPublicKeyInfo) {
			return "its key is not in its usual encoding"
		}
		return ""
	}},
	{"key-order", "RFC 8032 §5.1.7", func(csr *x509.CertificateRequest) string {
		if key, ok := csr.PublicKey.(ed25519.PublicKey); ok && lowOrder(key) {
			return "its key is a point of low order, for which everybody can sign"
		}
		return ""
	}},
	{"signature-algorithm", "RFC 5758 §3.2, RFC 8410 §3", func(csr *x509.CertificateRequest) string {
		want := x509.ECDSAWithSHA256
		if _, ok := csr.PublicKey.(ed25519.PublicKey); ok {
			want = x509.PureEd25519
		}
		if csr.SignatureAlgorithm != want {
			return fmt.Sprintf("it is signed with %v, want %v for its key", csr.SignatureAlgorithm, want)
		}
		return ""
	}},
	{"signature", "RFC 2986 §4.2", func(csr *x509.CertificateRequest) string {
		if err := csr.CheckSignature(); err != nil {
			return "its signature is not by its key"
		}
		return ""
	}},
}

// CSR is a PKCS #10 request that was parsed once. Nothing but its key is believed.
type CSR struct{ request *x509.CertificateRequest }

// OpenCSR parses a request in DER (RFC 2986) and believes nothing of it: only [CSR.Key] checks it. So
// who needs no more than to know which key it is about, until something else is verified, has not paid for a
// signature.
//
// Errors: [*CSRError], for what has no key because it is no request.
func OpenCSR(der []byte) (CSR, error) {
	if len(der) > MaxCSRBytes {
		return CSR{}, &CSRError{"size", "limit", fmt.Sprintf("%d bytes, at most %d are allowed", len(der), MaxCSRBytes)}
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return CSR{}, &CSRError{"encoding", "RFC 2986 §4", "it is no PKCS #10 request in DER"}
	}
	return CSR{csr}, nil
}

// SPKI returns the SubjectPublicKeyInfo in the request, in DER: the key that it is about, whoever
// holds it and whatever else is in the request. The caller does not change it.
func (c CSR) SPKI() []byte { return c.request.RawSubjectPublicKeyInfo }

// Key returns the public key of the request after checking that the sender holds the private key: an
// *ecdsa.PublicKey of P-256 or an ed25519.PublicKey, whose one encoding [CSR.SPKI] is. Nothing else in a request
// is believed, so anything else in it is refused: the sender would think that it got what it asked for.
//
// Errors: [*CSRError].
func (c CSR) Key() (crypto.PublicKey, error) {
	for _, rule := range csrRules {
		if detail := rule.check(c.request); detail != "" {
			return nil, &CSRError{rule.name, rule.section, detail}
		}
	}
	return c.request.PublicKey, nil
}

// ParseCSR is [OpenCSR] and [CSR.Key].
func ParseCSR(der []byte) (crypto.PublicKey, error) {
	csr, err := OpenCSR(der)
	if err != nil {
		return nil, err
	}
	return csr.Key()
}

// NewCSR makes the request that [ParseCSR] accepts, in DER.
func NewCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("pki: making a certificate signing request: %w", err)
	}
	return der, nil
}

// threeParts reads a CertificationRequest: info, algorithm, signature.
func threeParts(der []byte) bool {
	s := cryptobyte.String(der)
	var body cryptobyte.String
	return s.ReadASN1(&body, asn1.SEQUENCE) && s.Empty() &&
		body.SkipASN1(asn1.SEQUENCE) && body.SkipASN1(asn1.SEQUENCE) && body.SkipASN1(asn1.BIT_STRING) && body.Empty()
}

// attributesEmpty reads the end of a CertificationRequestInfo: version, subject,
// subjectPKInfo, and attributes [0], which must be there and hold nothing.
func attributesEmpty(info []byte) bool {
	s := cryptobyte.String(info)
	var body, attributes cryptobyte.String
	return s.ReadASN1(&body, asn1.SEQUENCE) && s.Empty() &&
		body.SkipASN1(asn1.INTEGER) && body.SkipASN1(asn1.SEQUENCE) && body.SkipASN1(asn1.SEQUENCE) &&
		body.ReadASN1(&attributes, asn1.Tag(0).ContextSpecific().Constructed()) &&
		attributes.Empty() && body.Empty()
}

// lowOrder reports whether key encodes a point of order 1, 2, 4 or 8. For such a
// key signatures are found without a private key, and crypto/ed25519 does not
// refuse it.
func lowOrder(key ed25519.PublicKey) bool {
	masked := [ed25519.PublicKeySize]byte(key)
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

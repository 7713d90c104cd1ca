// Package certtest has the parts of which the throwaway certificates of tests are made: keys, serial numbers, names as
// they are spelled, and signatures. Package identity/identitytest, for programs of others, and internal/pki/pkitest both
// stand on it. It is for tests alone, and takes the testing.TB of one.
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"

	"github.com/fealty-io/fealty/internal/identity"
)

// NewKey makes a P-256 key.
func NewKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("make a key: %v", err)
	}
	return key
}

// NewSerial returns a random positive number of 16 bytes (RFC 5280, section 4.1.2.2).
func NewSerial(tb testing.TB) *big.Int {
	tb.Helper()
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		tb.Fatalf("make a serial number: %v", err)
	}
	raw[0] = raw[0]&0x7f | 0x40
	return new(big.Int).SetBytes(raw)
}

// Sign signs template for pub and parses the result.
func Sign(tb testing.TB, template, issuer *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, pub, key)
	if err != nil {
		tb.Fatalf("sign a certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatalf("parse the certificate that was signed: %v", err)
	}
	return cert
}

// SubjectKeyID returns the identifier that every certificate for pub carries.
func SubjectKeyID(tb testing.TB, pub crypto.PublicKey) []byte {
	tb.Helper()
	id, err := identity.SubjectKeyID(pub)
	if err != nil {
		tb.Fatalf("name a key: %v", err)
	}
	return id
}

// AltNames returns a subject alternative name extension that holds exactly these URIs, spelled as given: crypto/x509 takes
// URLs, which write themselves anew.
func AltNames(uris ...string) pkix.Extension {
	names := make([]asn1.RawValue, len(uris))
	for i, uri := range uris {
		// uniformResourceIdentifier [6] (RFC 5280, section 4.2.1.6).
		names[i] = asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(uri)}
	}
	value, err := asn1.Marshal(names)
	if err != nil {
		panic("certtest: " + err.Error())
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: value}
}

package pkitest

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"
)

// PKI is an operator's own: a root and an intermediate CA that signs leaves, of a usual
// shape that is not the cluster's.
type PKI struct {
	Root, Intermediate CA
	now                func() time.Time
}

// NewPKI makes a PKI. A nil now means time.Now.
func NewPKI(tb testing.TB, name string, now func() time.Time) *PKI {
	tb.Helper()
	if now == nil {
		now = time.Now
	}
	p := &PKI{now: now}
	p.Root = p.CA(tb, name+" root", nil, nil)
	p.Intermediate = p.CA(tb, name+" intermediate", &p.Root, nil)
	return p
}

// CA makes another CA under parent; nil means that it signs itself. edit may be nil.
func (p *PKI) CA(tb testing.TB, name string, parent *CA, edit func(*x509.Certificate)) CA {
	tb.Helper()
	key := NewKey(tb)
	template := &x509.Certificate{
		SerialNumber: NewSerial(tb), Subject: pkix.Name{CommonName: name, Organization: []string{"acme"}},
		NotBefore: p.now().Add(-time.Hour).Truncate(time.Second),
		NotAfter:  p.now().Add(1000 * 24 * time.Hour).Truncate(time.Second),
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	if edit != nil {
		edit(template)
	}
	if parent == nil {
		return CA{Sign(tb, template, template, key.Public(), key), key}
	}
	return CA{Sign(tb, template, parent.Cert, key.Public(), parent.Key), key}
}

// Issue makes a leaf over key, signed by the intermediate, with what edit puts into its
// template; nil is nothing. It returns the leaf and the intermediate.
func (p *PKI) Issue(tb testing.TB, key crypto.Signer, edit func(*x509.Certificate)) []*x509.Certificate {
	tb.Helper()
	return p.IssueBy(tb, p.Intermediate, key, edit)
}

// IssueBy is Issue by another CA, which follows in the chain.
func (p *PKI) IssueBy(tb testing.TB, ca CA, key crypto.Signer, edit func(*x509.Certificate)) []*x509.Certificate {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber:          NewSerial(tb),
		NotBefore:             p.now().Add(-time.Minute).Truncate(time.Second),
		NotAfter:              p.now().Add(24 * time.Hour).Truncate(time.Second),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if edit != nil {
		edit(template)
	}
	return []*x509.Certificate{Sign(tb, template, ca.Cert, key.Public(), ca.Key), ca.Cert}
}

// PEM returns certificates as a file holds them.
func PEM(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// KeyPEM returns a private key as a file holds it, in PKCS #8.
func KeyPEM(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatalf("pkitest: encoding a key: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

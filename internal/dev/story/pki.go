package story

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"path/filepath"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// PKI is an operator's own, as small as one can be: a root that signs leaves. It lives
// as long as the story.
type PKI struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewPKI makes one, whose root has a name.
func NewPKI(name string) (*PKI, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	return &PKI{root, key}, err
}

// PKISet is what a process of an operator's PKI has in files, in PEM.
type PKISet struct {
	Cert, Key []byte
	CA        []byte // the root that it believes
}

// Identity issues a certificate of a process with a SPIFFE id, for both ends of a connection.
func (p *PKI) Identity(id string) (PKISet, error) {
	u, err := url.Parse(id)
	if err != nil {
		return PKISet{}, err
	}
	return p.issue(&x509.Certificate{URIs: []*url.URL{u},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}})
}

// Files issues a certificate for a host and writes it to dir, as a PKI's own agent
// would.
func (p *PKI) Files(dir, host string) (credential.FilePaths, error) {
	s, err := p.issue(&x509.Certificate{DNSNames: []string{host},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return credential.FilePaths{}, err
	}
	if err := durable.OS().MkdirAll(dir); err != nil {
		return credential.FilePaths{}, err
	}
	paths := PKIFiles(dir)
	for _, f := range []struct {
		path string
		data []byte
	}{{paths.Cert, s.Cert}, {paths.Key, s.Key}, {paths.CA, s.CA}} {
		if err := durable.OS().WriteFile(f.path, f.data); err != nil {
			return credential.FilePaths{}, err
		}
	}
	return paths, nil
}

// PKIFiles are the names of the files in a folder.
func PKIFiles(dir string) credential.FilePaths {
	return credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
}

// issue completes a template, and signs it for a new key.
func (p *PKI) issue(template *x509.Certificate) (PKISet, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return PKISet{}, err
	}
	template.SerialNumber, template.NotBefore = big.NewInt(2), time.Now().Add(-time.Minute)
	template.NotAfter, template.KeyUsage = time.Now().Add(time.Hour), x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, p.root, key.Public(), p.key)
	if err != nil {
		return PKISet{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return PKISet{}, err
	}
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	return PKISet{block("CERTIFICATE", der), block("PRIVATE KEY", private), p.RootPEM()}, nil
}

// RootPEM is its root.
func (p *PKI) RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.Raw})
}

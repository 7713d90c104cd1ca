// Package pki is an operator's own PKI, as small as one can be: a root that signs leaves.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/durable"
)

// PKI is an operator's own, as small as one can be: a root that signs leaves. It lives
// as long as the story.
type PKI struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes one, whose root has a name.
func New(name string) (*PKI, error) {
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

// Files issues a certificate for a host and writes it to dir, as a PKI's own agent
// would.
func (p *PKI) Files(dir, host string) (credential.FilePaths, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return credential.FilePaths{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.root, key.Public(), p.key)
	if err != nil {
		return credential.FilePaths{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return credential.FilePaths{}, err
	}
	if err := durable.OS().MkdirAll(dir); err != nil {
		return credential.FilePaths{}, err
	}
	paths := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
	for _, f := range []struct {
		path, block string
		der         []byte
	}{{paths.Cert, "CERTIFICATE", der}, {paths.Key, "PRIVATE KEY", private}, {paths.CA, "CERTIFICATE", p.root.Raw}} {
		err := durable.OS().WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.block, Bytes: f.der}))
		if err != nil {
			return credential.FilePaths{}, err
		}
	}
	return paths, nil
}

// RootPEM is its root.
func (p *PKI) RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.Raw})
}

package credential_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
)

// A test of your own program makes its certificates with crypto/x509: a CA that is thrown away,
// and a leaf with the identity as its one URI.
func ExampleNewMaterial() {
	issue := func() (*credential.Material, error) {
		caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
			NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
			BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
		der, err := x509.CreateCertificate(rand.Reader, template, template, caKey.Public(), caKey)
		if err != nil {
			return nil, err
		}
		ca, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now.Add(-time.Minute),
			NotAfter:              now.Add(time.Hour),
			BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			URIs:        []*url.URL{{Scheme: "spiffe", Host: "test.example", Path: "/data/node-a"}}}
		if der, err = x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey); err != nil {
			return nil, err
		}
		if leaf, err = x509.ParseCertificate(der); err != nil {
			return nil, err
		}
		bundle, err := identity.NewOperatorBundle("test.example", []*x509.Certificate{ca})
		if err != nil {
			return nil, err
		}
		return credential.NewMaterial(credential.MaterialConfig{Chain: []*x509.Certificate{leaf}, Key: key,
			Bundle: bundle})
	}
	m, err := issue()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID())
	// Output:
	// spiffe://test.example/data/node-a
}

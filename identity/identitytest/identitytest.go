// Package identitytest makes throwaway certificates for tests of programs that go by identity: a CA of a cluster, and
// leaves of it with the URI names that a test wants, as values or as three files: certificates, key and root.
//
// It is for tests alone. Its keys are made for one test and are worth nothing outside it: nothing here is
// configured, renewed or revoked. A program that imports it says so by importing package testing too.
package identitytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identity/certtest"
)

// How long what is made here lasts. All of it begins a minute ago, so that a clock that is read in between
// does not matter.
const (
	rootLife = 365 * 24 * time.Hour
	meshLife = 24 * time.Hour
	leafLife = time.Hour
	backdate = time.Minute
)

// CA is the trust of one cluster: a root, and the mesh CA under it that signs leaves. It may be used by several
// goroutines.
type CA struct {
	cluster         string
	root, mesh      *x509.Certificate
	rootKey, signer *ecdsa.PrivateKey
}

// NewCA makes the CA of a cluster, which is a trust domain such as prod.example.
func NewCA(tb testing.TB, cluster string) *CA {
	tb.Helper()
	c := &CA{cluster: cluster, rootKey: certtest.NewKey(tb), signer: certtest.NewKey(tb)}
	template := authority(tb, "root of "+cluster, rootLife, 1, &c.rootKey.PublicKey)
	c.root = certtest.Sign(tb, template, template, &c.rootKey.PublicKey, c.rootKey)
	c.mesh = certtest.Sign(tb, authority(tb, "mesh CA of "+cluster, meshLife, 0, &c.signer.PublicKey), c.root, &c.signer.PublicKey,
		c.rootKey)
	return c
}

// Root returns the root, which is what a client or server of a test trusts.
func (c *CA) Root() *x509.Certificate { return c.root }

// Bundle returns the bundle of a member of the cluster.
func (c *CA) Bundle(tb testing.TB) *identity.Bundle {
	tb.Helper()
	b, err := identity.NewBundle(identity.BundleConfig{Cluster: c.cluster, Roots: []*x509.Certificate{c.root},
		MeshKeys: []identity.KeyID{identity.KeyOf(c.mesh)}})
	if err != nil {
		tb.Fatalf("identitytest: the bundle of %s: %v", c.cluster, err)
	}
	return b
}

// Leaf says what a certificate is to be.
type Leaf struct {
	// URIs are its URI names, as they are spelled here: one SPIFFE id for a member, such as
	// spiffe://prod.example/data/node-a, and none, several or something else for a certificate that
	// identifies nobody. They are not checked.
	URIs []string

	// NotBefore and NotAfter are its time. Zero: a minute ago, and an hour after that.
	NotBefore, NotAfter time.Time
}

// Issue makes a certificate and its key, and returns it with the mesh CA that signed it: what a TLS peer
// presents. It is one for servers and for clients, as members serve and dial with one certificate.
func (c *CA) Issue(tb testing.TB, leaf Leaf) ([]*x509.Certificate, crypto.Signer) {
	tb.Helper()
	if leaf.NotBefore.IsZero() {
		leaf.NotBefore = time.Now().Add(-backdate)
	}
	if leaf.NotAfter.IsZero() {
		leaf.NotAfter = leaf.NotBefore.Add(leafLife)
	}
	key := certtest.NewKey(tb)
	template := &x509.Certificate{SerialNumber: certtest.NewSerial(tb), Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, SubjectKeyId: certtest.SubjectKeyID(tb, &key.PublicKey)}
	if len(leaf.URIs) > 0 {
		template.ExtraExtensions = []pkix.Extension{certtest.AltNames(leaf.URIs...)}
	}
	return []*x509.Certificate{certtest.Sign(tb, template, c.mesh, &key.PublicKey, c.signer), c.mesh}, key
}

// Files are the paths of a certificate, its key and its root, in the form in which programs of Fealty take them.
type Files struct {
	Cert string // the leaf and its mesh CA
	Key  string // its private key, with mode 0600
	CA   string // the root
}

// WriteFiles makes a certificate as [CA.Issue] does, and writes it into dir, which is there, as tls.crt, tls.key and
// ca.crt. Files of these names are overwritten, as by a renewal in place.
func (c *CA) WriteFiles(tb testing.TB, dir string, leaf Leaf) Files {
	tb.Helper()
	chain, key := c.Issue(tb, leaf)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatalf("identitytest: write a key: %v", err)
	}
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	for path, blocks := range map[string][]*pem.Block{
		files.Cert: {{Type: "CERTIFICATE", Bytes: chain[0].Raw}, {Type: "CERTIFICATE", Bytes: chain[1].Raw}},
		files.Key:  {{Type: "PRIVATE KEY", Bytes: der}},
		files.CA:   {{Type: "CERTIFICATE", Bytes: c.root.Raw}},
	} {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			tb.Fatalf("identitytest: %v", err)
		}
	}
	return files
}

// authority is the template of a CA.
func authority(tb testing.TB, name string, life time.Duration, pathLen int, key *ecdsa.PublicKey) *x509.Certificate {
	tb.Helper()
	begins := time.Now().Add(-backdate)
	return &x509.Certificate{SerialNumber: certtest.NewSerial(tb), Subject: pkix.Name{CommonName: name}, NotBefore: begins,
		NotAfter: begins.Add(life), KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLen: pathLen, MaxPathLenZero: pathLen == 0, SubjectKeyId: certtest.SubjectKeyID(tb, key)}
}

package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// fuzzNow lies in the validity of everything in a fuzzWorld.
var fuzzNow = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// fuzzWorld is a cluster that is the same in every process, byte for byte: keys derive
// from labels and signatures are deterministic (crypto.Signer with a nil random source).
func fuzzWorld(f *testing.F) *world {
	f.Helper()
	rootKey, meshKey, leafKey := fixedKey(f, "root"), fixedKey(f, "mesh"), fixedKey(f, "leaf")
	mint := func(name string, n int64, issuer *x509.Certificate, key, signer *ecdsa.PrivateKey, edit func(*x509.Certificate)) *x509.Certificate {
		ski, err := internalidentity.SubjectKeyID(key.Public())
		if err != nil {
			f.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: name}, SubjectKeyId: ski,
			NotBefore: fuzzNow.Add(-time.Hour), NotAfter: fuzzNow.Add(time.Hour),
			BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		}
		edit(template)
		if issuer == nil {
			issuer = template
		}
		der, err := x509.CreateCertificate(nil, template, issuer, key.Public(), signer)
		if err != nil {
			f.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			f.Fatal(err)
		}
		return c
	}
	w := &world{now: fuzzNow, leafKey: leafKey}
	w.root.Key, w.mesh.Key = rootKey, meshKey
	w.root.Cert = mint("root", 1, nil, rootKey, rootKey, func(c *x509.Certificate) { c.MaxPathLen = 1 })
	w.mesh.Cert = mint("mesh CA", 2, w.root.Cert, meshKey, rootKey, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	w.leaf = mint("leaf", 3, w.mesh.Cert, leafKey, meshKey, func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "prod.example", Path: "/shard/eu-1"}}
	})
	b, err := identity.NewBundle(identity.BundleConfig{
		Cluster: "prod.example", Roots: []*x509.Certificate{w.root.Cert}, MeshKeys: []identity.KeyID{w.mesh.KeyID()},
	})
	if err != nil {
		f.Fatal(err)
	}
	w.bundle = b
	return w
}

// FuzzVerify gives Verify chains of any bytes. Nobody but the cluster signs, so that
// what is accepted says what one of the cluster's own certificates says.
func FuzzVerify(f *testing.F) {
	w := fuzzWorld(f)
	for _, chain := range [][]*x509.Certificate{
		w.chain(false), w.chain(true), {w.leaf}, {w.leaf, w.root.Cert}, {w.mesh.Cert, w.root.Cert}, {w.leaf, w.leaf, w.root.Cert},
		{w.root.Cert, w.mesh.Cert, w.leaf},
	} {
		var der []byte
		for _, c := range chain {
			der = append(der, c.Raw...)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		chain, err := x509.ParseCertificates(der)
		if err != nil {
			return
		}
		v, err := w.bundle.Verify(chain, fuzzNow)
		if err != nil {
			return
		}
		if !isGood(chain, w) || v.ID.String() != "spiffe://prod.example/shard/eu-1" {
			t.Fatalf("accepted a chain that nobody minted: %+v", v)
		}
	})
}

// FuzzVerifyMinted has the mesh CA sign leaves of any bytes, as if it had lost its mind.
// An accepted certificate must keep every promise of the profile, told here in other words, and
// must please crypto/x509 too.
func FuzzVerifyMinted(f *testing.F) {
	w := fuzzWorld(f)
	f.Add(w.leaf.RawTBSCertificate)
	for _, flaw := range flaws {
		if flaw.levels == cas || flaw.levels == mesh || flaw.levels == root || flaw.rule == "public-key" || flaw.rule == "signature-algorithm" || flaw.rule == "parsed" {
			continue
		}
		forged := w.apart(f, leaf)
		flaw.edit(f, forged, nil)
		if c, err := x509.ParseCertificate(forged.sign(f)); err == nil {
			f.Add(c.RawTBSCertificate)
		}
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(w.root.Cert)
	between.AddCert(w.mesh.Cert)
	f.Fuzz(func(t *testing.T, body []byte) {
		forged := w.apart(t, leaf)
		c, err := x509.ParseCertificate(forged.signBytes(t, body))
		if err != nil {
			return
		}
		v, err := w.bundle.Verify([]*x509.Certificate{c, w.mesh.Cert}, fuzzNow)
		if err != nil {
			return
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: fuzzNow, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("crypto/x509 refuses it: %v", err)
		}
		_, isEd25519 := c.PublicKey.(ed25519.PublicKey)
		ec, isECDSA := c.PublicKey.(*ecdsa.PublicKey)
		for promise, kept := range map[string]bool{
			"end entity":                     c.BasicConstraintsValid && !c.IsCA && c.KeyUsage == x509.KeyUsageDigitalSignature,
			"both usages":                    len(c.ExtKeyUsage) == 2 && len(c.UnknownExtKeyUsage) == 0 && slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth),
			"serial number":                  c.SerialNumber.Sign() > 0 && len(c.SerialNumber.Bytes()) <= 20,
			"key":                            isEd25519 || isECDSA && ec.Curve == p256,
			"key ids":                        len(c.SubjectKeyId) == 20 && bytes.Equal(c.AuthorityKeyId, w.mesh.Cert.SubjectKeyId),
			"lifetime":                       c.NotAfter.Sub(c.NotBefore) <= internalidentity.MaxLeafLifetime,
			"in date":                        !fuzzNow.Before(c.NotBefore) && !fuzzNow.After(c.NotAfter),
			"nothing critical":               len(c.UnhandledCriticalExtensions) == 0 && len(c.Extensions) <= 6,
			"no constraints":                 len(c.PermittedDNSDomains) == 0 && len(c.PermittedURIDomains) == 0 && len(c.ExcludedDNSDomains) == 0,
			"no email":                       len(c.EmailAddresses) == 0,
			"bounded":                        len(c.Raw) <= internalidentity.MaxCertificateBytes && len(c.URIs)+len(c.DNSNames)+len(c.IPAddresses) <= internalidentity.MaxAltNames,
			"an id, or an error, never both": (v.IDErr == nil) != v.ID.IsZero(),
			"an id is the one URI":           v.IDErr != nil || len(c.URIs) == 1 && c.URIs[0].String() == v.ID.String() && v.ID.Cluster() == "prod.example",
		} {
			if !kept {
				t.Errorf("%s: promise broken", promise)
			}
		}
	})
}

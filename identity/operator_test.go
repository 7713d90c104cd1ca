package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func generated[K crypto.Signer](t *testing.T) func(K, error) K {
	return func(key K, err error) K {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
}

// Each rule refuses a chain that all the others accept.
func TestOperatorRules(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	stranger := pkitest.NewPKI(t, "corp", nil) // of the same names
	key := pkitest.NewKey(t)
	rsa2048 := generated[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	p224 := generated[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	leaf := func(edit func(*x509.Certificate)) []*x509.Certificate { return pki.Issue(t, key, edit) }
	long := func(n int) []*x509.Certificate {
		ca := pki.Intermediate
		issuers := []*x509.Certificate{ca.Cert}
		for range n - 2 {
			ca = pki.CA(t, "one more", &ca, nil)
			issuers = slices.Insert(issuers, 0, ca.Cert)
		}
		return append(pki.IssueBy(t, ca, key, nil)[:1], issuers...)
	}
	cramped := pki.CA(t, "for servers only", &pki.Root, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	limited := pki.CA(t, "of one domain", &pki.Root, func(c *x509.Certificate) {
		c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"corp.example"}, true
	})
	last := pki.CA(t, "last", &pki.Root, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	below := pki.CA(t, "below", &last, nil)
	old := pki.CA(t, "old", &pki.Root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	template := *pki.Intermediate.Cert
	template.SerialNumber = pkitest.NewSerial(t)
	again := pkitest.Sign(t, &template, pki.Intermediate.Cert, pki.Intermediate.Key.Public(), pki.Intermediate.Key) // by itself
	// forge edits a certificate that by signed in a way in which no template can.
	forge := func(c *x509.Certificate, by pkitest.CA, edit func(*forged)) *x509.Certificate {
		f := takeApart(t, c, by.Key)
		edit(f)
		out, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	forgedLeaf := func(edit func(*forged)) []*x509.Certificate {
		return []*x509.Certificate{forge(leaf(nil)[0], pki.Intermediate, edit), pki.Intermediate.Cert}
	}
	forgedCA := func(edit func(*forged)) []*x509.Certificate {
		ca := pki.CA(t, "odd", &pki.Root, nil)
		ca.Cert = forge(ca.Cert, pki.Root, edit)
		return pki.IssueBy(t, ca, key, nil)
	}
	noName := asn1.RawValue{FullBytes: []byte{0x30, 0}}
	constraints := []byte{0x30, 0x0a, 0xa0, 0x08, 0x30, 0x06, 0x82, 0x04, 'c', 'o', 'r', 'p'} // permitted: DNS corp
	usages, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 1}, {1, 3, 6, 1, 5, 5, 7, 3, 2}, {1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	nameless := pki.Root
	nameless.Cert = forge(pki.Root.Cert, pki.Root, func(f *forged) { f.Subject, f.Issuer, f.Serial = noName, noName, new(big.Int) })
	// A trust anchor is believed by its name and key: what else it says of itself is not looked at.
	loose := pki.CA(t, "loose", nil, nil)
	loose.Cert = forge(loose.Cert, loose, func(f *forged) {
		f.set(oidBC, false, f.value(oidBC)...)
		f.set(oidKU, false, f.value(oidKU)...)
	})
	// But for that it may not sign.
	torn := pki.CA(t, "torn", nil, nil)
	torn.Cert = forge(torn.Cert, torn, func(f *forged) { f.set(oidKU, true, 0x03, 0x02, 0x07, 0x80) }) // digitalSignature alone
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{pki.Root.Cert, nameless.Cert, loose.Cert, torn.Cert})
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{}
	for _, tc := range []struct {
		name   string
		chain  []*x509.Certificate
		rule   string // "" is accepted
		reason error
	}{
		{"leaf and intermediate", leaf(nil), "", nil},
		{"with the root", append(leaf(nil), pki.Root.Cert), "", nil},
		{"directly under the root", pki.IssueBy(t, pki.Root, key, nil)[:1], "", nil},
		{"as long as allowed", long(internalidentity.MaxOperatorChain), "", nil},
		{"another type of key", pki.Issue(t, rsa2048, nil), "", nil},
		{"within the name constraint", pki.IssueBy(t, limited, key, func(c *x509.Certificate) { c.DNSNames = []string{"a.corp.example"} }), "", nil},
		{"without key identifiers", []*x509.Certificate{forge(leaf(nil)[0], pki.Intermediate, func(f *forged) {
			f.drop(oidSKI)
			f.drop(oidAKI)
		}), pki.Intermediate.Cert}, "", nil},
		{"CAs without key identifiers", forgedCA(func(f *forged) {
			f.drop(oidSKI)
			f.drop(oidAKI)
		}), "", nil},
		{"no subject, and other names that are not critical", []*x509.Certificate{forge(
			leaf(func(c *x509.Certificate) { c.DNSNames = []string{"a.corp.example"} })[0], pki.Intermediate,
			func(f *forged) { f.set(oidSAN, false, f.value(oidSAN)...) }), pki.Intermediate.Cert}, "", nil},
		{"a root whose extensions contradict: a CA that may not sign", pki.IssueBy(t, torn, key, nil)[:1], "path", identity.ErrUntrusted},
		{"a root whose CA extensions are not critical", pki.IssueBy(t, loose, key, nil)[:1], "", nil},
		{"a usage of somebody's", forgedLeaf(func(f *forged) { f.set(oidEKU, false, usages...) }), "", nil},
		{"serial number 0", forgedLeaf(func(f *forged) { f.Serial = new(big.Int) }), "serial-number", identity.ErrProfile},
		{"serial number of 21 bytes", forgedLeaf(func(f *forged) { f.Serial = new(big.Int).Lsh(big.NewInt(1), 160) }), "serial-number", identity.ErrProfile},
		{"serial number of a CA", forgedCA(func(f *forged) { f.Serial = new(big.Int) }), "serial-number", identity.ErrProfile},
		{"no issuer", []*x509.Certificate{forge(leaf(nil)[0], nameless, func(f *forged) { f.Issuer = noName })}, "names", identity.ErrProfile},
		{"a CA without a name", forgedCA(func(f *forged) { f.Subject = noName }), "names", identity.ErrProfile},
		{"name constraints of a leaf", forgedLeaf(func(f *forged) { f.set(oidNC, true, constraints...) }), "name-constraints", identity.ErrProfile},
		{"name constraints that are not critical", forgedCA(func(f *forged) { f.set(oidNC, false, constraints...) }), "name-constraints", identity.ErrProfile},
		{"an unknown usage that is critical", forgedLeaf(func(f *forged) { f.set(oidEKU, true, usages...) }), "critical-usages", identity.ErrProfile},
		{"nothing", nil, "chain-length", identity.ErrProfile},
		{"too long", long(internalidentity.MaxOperatorChain + 1), "chain-length", identity.ErrProfile},
		{"too large", leaf(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Value: make([]byte, internalidentity.MaxCertificateBytes)}}
		}), "parsed", identity.ErrProfile},
		{"nil", []*x509.Certificate{nil}, "parsed", identity.ErrProfile},
		{"foreign issuer", []*x509.Certificate{leaf(nil)[0], cramped.Cert}, "in-order", identity.ErrProfile},
		{"root twice", append(leaf(nil), pki.Root.Cert, pki.Root.Cert), "in-order", identity.ErrProfile},
		{"two of one CA", []*x509.Certificate{leaf(nil)[0], again, pki.Intermediate.Cert}, "in-order", identity.ErrProfile},
		{"the CA itself", []*x509.Certificate{pki.Intermediate.Cert}, "not-a-ca", identity.ErrProfile},
		{"a root itself", []*x509.Certificate{pki.Root.Cert}, "not-a-ca", identity.ErrProfile},
		{"no digital signature", leaf(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), "key-usage", identity.ErrProfile},
		{"no key usage", leaf(func(c *x509.Certificate) { c.KeyUsage = 0 }), "key-usage", identity.ErrProfile},
		{"server only", leaf(func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }), "extended-key-usage", identity.ErrProfile},
		{"no extended key usage", leaf(func(c *x509.Certificate) { c.ExtKeyUsage = nil }), "extended-key-usage", identity.ErrProfile},
		{"any extended key usage", leaf(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }), "extended-key-usage", identity.ErrProfile},
		{"P-224", pki.Issue(t, p224, nil), "public-key", identity.ErrProfile},
		{"expired", leaf(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), "in-date", identity.ErrExpired},
		{"not yet valid", leaf(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), "in-date", identity.ErrExpired},
		{"expired intermediate", pki.IssueBy(t, old, key, nil), "in-date", identity.ErrExpired},
		{"wrong CA", stranger.Issue(t, key, nil), "path", identity.ErrUntrusted},
		{"wrong CA and our root", append(stranger.Issue(t, key, nil), pki.Root.Cert), "path", identity.ErrUntrusted},
		{"intermediate missing", leaf(nil)[:1], "path", identity.ErrUntrusted},
		{"beyond the path length", append(pki.IssueBy(t, below, key, nil), last.Cert), "path", identity.ErrProfile},
		{"outside the name constraint", pki.IssueBy(t, limited, key, func(c *x509.Certificate) { c.DNSNames = []string{"a.evil.example"} }), "path", identity.ErrProfile},
		{"unknown critical extension", leaf(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
		}), "path", identity.ErrUntrusted},
		{"issuer excludes clients", pki.IssueBy(t, cramped, key, nil), "path", identity.ErrProfile},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := roots.Verify(tc.chain, time.Now(), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
			if tc.rule == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e, ok := errors.AsType[*identity.ChainError](err)
			if !ok || e.Rule != tc.rule || e.Reason != tc.reason {
				t.Fatalf("Verify = %v, want a refusal by %s (%v)", err, tc.rule, tc.reason)
			}
			if e.Reason == identity.ErrExpired && (e.NotAfter.IsZero() || e.Now.IsZero()) {
				t.Errorf("times are missing: %+v", e)
			}
			refused[tc.rule] = true
		})
	}
	for _, r := range identity.OperatorRules() {
		if !refused[r.Name] || r.Section == "" {
			t.Errorf("rule %+v has no section, or no chain that it refuses", r)
		}
	}
}

func TestOperatorRootsAreCAs(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	leaf := pki.Issue(t, pkitest.NewKey(t), nil)[0]
	for name, certs := range map[string][]*x509.Certificate{
		"none": nil, "a leaf": {leaf}, "nil": {nil}, "too many": slices.Repeat([]*x509.Certificate{pki.Root.Cert}, internalidentity.MaxOperatorRoots+1),
	} {
		if r, err := identity.NewOperatorRoots(certs); err == nil {
			t.Errorf("%s: accepted as %v", name, r)
		}
	}
	var none *identity.OperatorRoots
	if err := none.Verify(pki.Issue(t, pkitest.NewKey(t), nil), time.Now()); !errors.Is(err, identity.ErrUntrusted) || none.Certificates() != nil {
		t.Errorf("without roots: %v", err)
	}
}

// The identity of a chain of an operator's PKI is its one URI SAN of the cluster.
func TestOperatorBundle(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	b, err := identity.NewOperatorBundle("prod.example", []*x509.Certificate{pki.Root.Cert})
	if err != nil {
		t.Fatal(err)
	}
	id := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for _, tc := range []struct {
		name string
		uris []*url.URL
		want string
		san  string
	}{
		{"one", []*url.URL{id("spiffe://prod.example/provider/aws")}, "spiffe://prod.example/provider/aws", ""},
		{"none", nil, "", "absent"},
		{"two", []*url.URL{id("spiffe://prod.example/provider/aws"), id("spiffe://prod.example/provider/gcp")}, "", "several"},
		{"foreign", []*url.URL{id("spiffe://dev.example/provider/aws")}, "", "foreign"},
		{"another scheme", []*url.URL{id("https://prod.example/provider/aws")}, "", "malformed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := b.Verify(pki.Issue(t, pkitest.NewKey(t), func(c *x509.Certificate) { c.URIs = tc.uris }), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			san, _ := errors.AsType[*identity.SANError](v.IDErr)
			if v.ID.String() != tc.want || (san != nil) != (tc.san != "") || san != nil && san.Reason != tc.san || v.Leaf == nil || v.Key.IsZero() {
				t.Errorf("verified %+v", v)
			}
		})
	}
	if _, err := b.Verify(pkitest.NewPKI(t, "corp", nil).Issue(t, pkitest.NewKey(t), nil), time.Now()); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("another PKI of the same names: %v", err)
	}
	if _, err := b.Verify(nil, time.Now()); !errors.Is(err, identity.ErrProfile) {
		t.Errorf("no chain: %v", err)
	}
	// The cluster's own bundle takes none of these, whatever its roots are.
	a := pkitest.NewAuthority(t, "prod.example")
	if _, err := a.Bundle().Verify(pki.Issue(t, pkitest.NewKey(t), nil), time.Now()); err == nil {
		t.Error("a cluster's bundle accepted an operator's certificate")
	}
	same, err := identity.NewOperatorBundle("prod.example", []*x509.Certificate{a.Root().Cert})
	if err != nil {
		t.Fatal(err)
	}
	strict, err := identity.NewBundle(identity.BundleConfig{Cluster: "prod.example", Roots: []*x509.Certificate{a.Root().Cert}})
	if err != nil {
		t.Fatal(err)
	}
	if same.Fingerprint() == strict.Fingerprint() {
		t.Error("bundles that believe different things have one fingerprint")
	}
}

func TestURIsAreVerbatim(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	c := pki.Issue(t, pkitest.NewKey(t), func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{pkitest.AltNames("SPIFFE://Corp.example/x#", "b:c")}
	})[0]
	if got, err := identity.URIs(c); err != nil || !slices.Equal(got, []string{"SPIFFE://Corp.example/x#", "b:c"}) {
		t.Errorf("URIs = %q, %v", got, err)
	}
	if got, err := identity.URIs(pki.Root.Cert); err != nil || len(got) != 0 {
		t.Errorf("URIs of a root = %q, %v", got, err)
	}
}

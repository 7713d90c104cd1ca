package proof

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// corp is a PKI, and the verifier that knows its root.
type corp struct {
	*pkitest.PKI
	verifier Verifier
}

func newCorp(t testing.TB) corp {
	t.Helper()
	pki := pkitest.NewPKI(t, "corp", nil)
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{pki.Root.Cert})
	if err != nil {
		t.Fatal(err)
	}
	return corp{pki, NewX509Verifier(roots, nil)}
}

func named(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.CommonName = name }
}

// prove makes a proof over tr without the prover's own checks.
func (c corp) prove(t testing.TB, tr Transcript, chain []*x509.Certificate, key crypto.Signer) Evidence {
	t.Helper()
	d, err := tr.Digest()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := signDigest(key, d, func(crypto.PublicKey) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	raw, err := encodeX509(chain, sig)
	if err != nil {
		t.Fatal(err)
	}
	return Evidence{Type: TypeX509, Evidence: raw}
}

// A certificate shows what a manifest can name, and nothing that reads in two ways.
func TestX509Selectors(t *testing.T) {
	c := newCorp(t)
	uri := func(s string) pkix.Extension { return pkitest.AltNames(s) }
	subject := func(names ...any) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			var rdns pkix.RDNSequence
			for _, n := range names {
				rdns = append(rdns, pkix.RelativeDistinguishedNameSET{{Type: oidCommonName, Value: n}})
			}
			der, err := asn1.Marshal(rdns)
			if err != nil {
				t.Fatal(err)
			}
			c.RawSubject = der
		}
	}
	bmp := asn1.RawValue{Tag: 30, Bytes: []byte{0, 'n', 0, 'o', 0, 'd', 0, 'e'}} // BMPString, UTF-16
	for _, tc := range []struct {
		name string
		edit func(*x509.Certificate)
		want []string
	}{
		{"common name", named("node-c"), []string{"x509:subject:CN=node-c"}},
		{"common name beside others", func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "node-c", Organization: []string{"acme"}, SerialNumber: "7"}
		}, []string{"x509:subject:CN=node-c"}},
		{"letters of the world", named("näbe ж"), []string{"x509:subject:CN=näbe ж"}},
		{"another string type", subject(bmp), []string{"x509:subject:CN=node"}},
		{"no common name", func(c *x509.Certificate) { c.Subject = pkix.Name{Organization: []string{"acme"}} }, nil},
		{"empty subject", func(*x509.Certificate) {}, nil},
		{"two common names", subject("node-a", "node-b"), nil},
		{"one common name twice", subject("node-a", "node-a"), nil},
		{"NUL", subject("node-c\x00.evil"), nil},
		{"line break", subject("node-c\n"), nil},
		{"escape", subject("node\x1b[2J"), nil},
		{"bidirectional override", subject("node\u202ec"), nil},
		{"zero width", subject("node\u200bc"), nil},
		{"a Hangul filler", subject("node\u3164"), nil},
		{"no-break space", subject("node\u00a0c"), nil},
		{"replacement character", subject("node\ufffdc"), nil},
		{"space at the end", subject("node-c "), nil},
		{"several parts", subject("node-c,O=acme"), nil},
		{"equals", subject("CN=node-c"), nil},
		{"escaped by RFC 4514", subject(`node\c`), nil},
		{"star", subject("node-*"), nil},
		{"too long", subject(strings.Repeat("x", 500)), nil},

		{"DNS names", func(c *x509.Certificate) { c.DNSNames = []string{"b.example", "A.example", "a.EXAMPLE"} }, []string{"x509:dns:a.example", "x509:dns:b.example"}},
		{"wildcard", func(c *x509.Certificate) { c.DNSNames = []string{"*.example", "x.example"} }, []string{"x509:dns:x.example"}},
		{"no DNS names", func(c *x509.Certificate) {
			c.DNSNames = []string{"a b.example", "a/b", "a:b", "a..b", "b.", "x\x01y"}
		}, nil},
		{"addresses and mail show nothing", func(c *x509.Certificate) {
			c.IPAddresses, c.EmailAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}, []string{"a@b.example"}
		}, nil},

		{"URI", func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{uri("spiffe://corp.example/node/c")} }, []string{"x509:uri:spiffe://corp.example/node/c"}},
		{"URI, verbatim", func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{uri("SPIFFE://Corp.example/node/%63")}
		}, []string{"x509:uri:SPIFFE://Corp.example/node/%63"}},
		{"two URIs", func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{pkitest.AltNames("spiffe://corp.example/node/c", "spiffe://corp.example/node/d")}
		}, nil},
		{"one URI twice", func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{pkitest.AltNames("spiffe://corp.example/node/c", "spiffe://corp.example/node/c")}
		}, nil},
		{"two URIs beside a name", func(c *x509.Certificate) {
			c.Subject.CommonName = "node-c"
			c.ExtraExtensions = []pkix.Extension{pkitest.AltNames("spiffe://corp.example/node/c", "spiffe://corp.example/node/d")}
		}, []string{"x509:subject:CN=node-c"}},
		{"no authority", func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{uri("urn:node:c")} }, nil},
		{"star in a URI", func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{uri("spiffe://corp.example/*")} }, nil},

		{"as many as allowed", func(c *x509.Certificate) { c.DNSNames = many(MaxX509Selectors) }, manySelectors(MaxX509Selectors)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key, tr := newP256(t), newTranscript(t)
			p, err := c.verifier.Verify(t.Context(), tr, c.prove(t, tr, c.Issue(t, key, tc.edit), key))
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Selectors(); !slices.Equal(got, tc.want) {
				t.Fatalf("selectors %q, want %q", got, tc.want)
			}
			for _, s := range p.Selectors() {
				if pattern, err := manifest.ParsePattern(s); err != nil || pattern.String() != s {
					t.Errorf("%q is not as the manifest writes it: %q, %v", s, pattern, err)
				}
			}
			if p.Type() != TypeX509 || p.KeyID() != keyID(t, key.Public()) || p.TokenID() != "" {
				t.Errorf("proved %+v", p)
			}
		})
	}
}

func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("n%02d.example", i))
	}
	return out
}

func manySelectors(n int) []string {
	out := many(n)
	for i := range out {
		out[i] = "x509:dns:" + out[i]
	}
	return out
}

func TestX509Refused(t *testing.T) {
	c := newCorp(t)
	stranger := pkitest.NewPKI(t, "corp", nil)
	key, other := newP256(t), newP256(t)
	good := c.Issue(t, key, named("node-c"))
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		chain []*x509.Certificate
		key   crypto.Signer
		rule  string // of a CertificateError; "": the fixed refusal
	}{
		{"signed by another key", good, other, ""},
		{"somebody else's certificate of the same name", c.Issue(t, other, named("node-c")), key, ""},
		{"wrong CA", stranger.Issue(t, key, named("node-c")), key, "path"},
		{"wrong CA, our intermediate", []*x509.Certificate{stranger.Issue(t, key, named("node-c"))[0], c.Intermediate.Cert}, key, "path"},
		{"signed by itself", []*x509.Certificate{pkitest.Sign(t, loneTemplate(t), loneTemplate(t), key.Public(), key)}, key, "path"},
		{"expired", c.Issue(t, key, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), key, "in-date"},
		{"not yet valid", c.Issue(t, key, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), key, "in-date"},
		{"a server's", c.Issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), key, "extended-key-usage"},
		{"for any purpose", c.Issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = nil }), key, "extended-key-usage"},
		{"a CA", []*x509.Certificate{c.Intermediate.Cert}, c.Intermediate.Key, "not-a-ca"},
		{"the root", []*x509.Certificate{c.Root.Cert}, c.Root.Key, "not-a-ca"},
		{"weak RSA", c.Issue(t, small, named("node-c")), key, "public-key"},
		{"P-521", c.Issue(t, p521, named("node-c")), p521, ""},
		{"too many names", c.Issue(t, key, func(c *x509.Certificate) { c.DNSNames = many(MaxX509Selectors + 1) }), key, "names"},
		{"intermediate missing", good[:1], key, "path"},
		{"chain the wrong way round", []*x509.Certificate{good[1], good[0]}, c.Intermediate.Key, "in-order"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTranscript(t)
			p, err := c.verifier.Verify(t.Context(), tr, c.prove(t, tr, tc.chain, tc.key))
			if !errors.Is(err, ErrRefused) || !p.IsZero() {
				t.Fatalf("Verify = %+v, %v; want a refusal", p, err)
			}
			refused, ok := errors.AsType[*CertificateError](err)
			if ok != (tc.rule != "") || ok && refused.Err.Rule != tc.rule {
				t.Fatalf("refused with %v, want rule %q", err, tc.rule)
			}
		})
	}
}

func loneTemplate(t *testing.T) *x509.Certificate {
	t.Helper()
	return &x509.Certificate{
		SerialNumber: pkitest.NewSerial(t), Subject: pkix.Name{CommonName: "node-c"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// A CA may certify a key for which anybody can sign: a signature by it shows nothing.
func TestX509LowOrderKey(t *testing.T) {
	c := newCorp(t)
	weak := ed25519.PublicKey(make([]byte, 32))
	weak[0] = 1 // the neutral element
	template := loneTemplate(t)
	leaf := pkitest.Sign(t, template, c.Intermediate.Cert, weak, c.Intermediate.Key)
	tr := newTranscript(t)
	sig := make([]byte, 64)
	sig[0] = 1 // R = A, s = 0
	d, _ := tr.Digest()
	if !ed25519.Verify(weak, d[:], sig) {
		t.Fatal("the forgery does not verify: the test shows nothing")
	}
	raw, err := encodeX509([]*x509.Certificate{leaf, c.Intermediate.Cert}, sig)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.verifier.Verify(t.Context(), tr, Evidence{Type: TypeX509, Evidence: raw}); !errors.Is(err, ErrRefused) {
		t.Fatalf("Verify = %+v, %v", p, err)
	}
}

func TestX509EvidenceHasOneForm(t *testing.T) {
	c := newCorp(t)
	key, tr := newP256(t), newTranscript(t)
	good := c.prove(t, tr, c.Issue(t, key, named("node-c")), key)
	first := int(good.Evidence[1])<<8 + int(good.Evidence[2])
	edited := func(edit func([]byte) []byte) []byte { return edit(bytes.Clone(good.Evidence)) }
	for name, raw := range map[string][]byte{
		"empty":                  {},
		"no certificate":         {0, 0, 1, 7},
		"too many certificates":  edited(func(b []byte) []byte { b[0] = MaxX509Chain + 1; return b }),
		"one certificate less":   edited(func(b []byte) []byte { b[0]--; return b }),
		"one certificate more":   edited(func(b []byte) []byte { b[0]++; return b }),
		"a byte after":           append(bytes.Clone(good.Evidence), 0),
		"a byte less":            good.Evidence[:len(good.Evidence)-1],
		"only the count":         {1},
		"no certificate in it":   {1, 0, 0, 0, 1, 7},
		"garbage":                {1, 0, 3, 1, 2, 3, 0, 1, 7},
		"a byte in certificates": edited(func(b []byte) []byte { return slices.Insert(b, 3+first, 0) }),
		"certificate too large":  append([]byte{1, 0x20, 0x01}, make([]byte, internalidentity.MaxCertificateBytes+4)...),
		"no signature":           good.Evidence[:len(good.Evidence)-72],
	} {
		e := good
		e.Evidence = raw
		_, err := c.verifier.Verify(t.Context(), tr, e)
		if name == "one certificate less" && errors.Is(err, ErrRefused) {
			continue // the certificate is read as the signature
		}
		if f, ok := errors.AsType[*FormatError](err); !ok || f.Part != "evidence" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for part, e := range map[string]Evidence{
		"claim":      {Type: TypeX509, Claim: "node-c", Evidence: good.Evidence},
		"public key": {Type: TypeX509, Evidence: good.Evidence, PublicKey: spki(t, key.Public())},
	} {
		if _, err := c.verifier.Verify(t.Context(), tr, e); err == nil {
			t.Errorf("a %s is accepted beside the certificate", part)
		} else if f, ok := errors.AsType[*FormatError](err); !ok || f.Part != part {
			t.Errorf("%s: %v", part, err)
		}
	}
	if _, err := c.verifier.Verify(t.Context(), tr, good); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

func TestX509Prover(t *testing.T) {
	c := newCorp(t)
	key := newP256(t)
	chain := c.Issue(t, key, named("node-c"))
	ca := c.Intermediate
	long := []*x509.Certificate{ca.Cert}
	for i := range MaxX509Chain {
		ca = c.CA(t, fmt.Sprintf("one more %d", i), &ca, nil)
		long = slices.Insert(long, 0, ca.Cert)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	fat := c.CA(t, "fat", &c.Root, func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Value: make([]byte, MaxEvidenceBytes)}}
	})
	for _, tc := range []struct {
		name string
		with X509Credential
		ok   bool
	}{
		{"as it is", X509Credential{chain, key}, true},
		{"with the root", X509Credential{append(slices.Clone(chain), c.Root.Cert), key}, true},
		{"in another order, with others", X509Credential{[]*x509.Certificate{chain[0], c.Root.Cert, ca.Cert, chain[1]}, key}, true},
		{"no certificate", X509Credential{nil, key}, false},
		{"no key", X509Credential{chain, nil}, false},
		{"another key", X509Credential{chain, newP256(t)}, false},
		{"a hole", X509Credential{[]*x509.Certificate{nil}, key}, false},
		{"too long", X509Credential{append(c.IssueBy(t, ca, key, nil), long[1:]...), key}, false},
		{"too large", X509Credential{c.IssueBy(t, fat, key, nil), key}, false},
		{"P-521", X509Credential{c.Issue(t, p521, nil), p521}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTranscript(t)
			e, err := NewX509Prover(fixedX509(tc.with)).Prove(t.Context(), tr)
			if (err == nil) != tc.ok {
				t.Fatalf("Prove: %v", err)
			}
			if !tc.ok {
				return
			}
			if _, err := c.verifier.Verify(t.Context(), tr, e); err != nil {
				t.Fatal(err)
			}
			if sent, _, _ := decodeX509(e.Evidence); len(sent) != 2 {
				t.Errorf("%d certificates were sent, want leaf and intermediate", len(sent))
			}
		})
	}
	cause := errors.New("the files are gone")
	_, err = NewX509Prover(func(context.Context) (X509Credential, error) { return X509Credential{}, cause }).Prove(t.Context(), newTranscript(t))
	if !errors.Is(err, cause) {
		t.Errorf("Prove = %v, want the source's error", err)
	}
	seed := newTranscript(t)
	seed.Role = Seed
	if _, err := NewX509Prover(fixedX509(X509Credential{chain, key})).Prove(t.Context(), seed); err == nil {
		t.Error("proved as a seed")
	}
	if _, err := c.verifier.Verify(t.Context(), seed, c.prove(t, seed, chain, key)); !errors.Is(err, ErrRefused) {
		t.Errorf("a seed's proof: %v", err)
	}
}

// fuzzCorp is the same in every process of a fuzz run, byte for byte.
func fuzzCorp(f *testing.F) (Verifier, []*x509.Certificate, ed25519.PrivateKey) {
	f.Helper()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rootKey, key := ed25519.NewKeyFromSeed(sequence(0, 32)), ed25519.NewKeyFromSeed(sequence(64, 32))
	mint := func(n int64, template, issuer *x509.Certificate, pub ed25519.PublicKey) *x509.Certificate {
		template.SerialNumber, template.NotBefore, template.NotAfter, template.BasicConstraintsValid = big.NewInt(n), now.Add(-time.Hour), now.Add(time.Hour), true
		if issuer == nil {
			issuer = template
		}
		return pkitest.Sign(f, template, issuer, pub, rootKey)
	}
	root := mint(1, &x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}, nil, rootKey.Public().(ed25519.PublicKey))
	leaf := mint(2, &x509.Certificate{
		Subject: pkix.Name{CommonName: "node-c"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "corp.example", Path: "/node/c"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, root, key.Public().(ed25519.PublicKey))
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{root})
	if err != nil {
		f.Fatal(err)
	}
	return NewX509Verifier(roots, func() time.Time { return now }), []*x509.Certificate{leaf, root}, key
}

// For any message, only the one right proof is accepted, in its one form.
func FuzzX509(f *testing.F) {
	verifier, chain, key := fuzzCorp(f)
	tr := Transcript{Candidate, cluster, sequence(0, 32), sequence(32, 32), spki(f, key.Public())}
	right := corp{}.prove(f, tr, chain[:1], key).Evidence
	if p, err := verifier.Verify(f.Context(), tr, Evidence{Type: TypeX509, Evidence: right}); err != nil {
		f.Fatal(p, err)
	}
	f.Add(right)
	f.Add(corp{}.prove(f, tr, chain, key).Evidence)
	f.Add(right[:len(right)/2])
	f.Add([]byte{1, 0, 1, 0x30, 0, 1, 0x30})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if sent, sig, err := decodeX509(raw); err == nil {
			again, err := encodeX509(sent, sig)
			if len(raw) <= MaxEvidenceBytes && (err != nil || !bytes.Equal(again, raw)) {
				t.Fatalf("%x was read, and is written as %x, %v", raw, again, err)
			}
		} else if !errors.As(err, new(*FormatError)) {
			t.Fatalf("error of type %T: %v", err, err)
		}
		p, err := verifier.Verify(t.Context(), tr, Evidence{Type: TypeX509, Evidence: raw})
		switch {
		case err == nil:
			if !bytes.Contains(raw, chain[0].Raw) || !slices.Equal(p.Selectors(), []string{"x509:subject:CN=node-c", "x509:uri:spiffe://corp.example/node/c"}) {
				t.Fatalf("accepted %x as %+v", raw, p)
			}
		case !p.IsZero():
			t.Fatalf("refused with %v and proved %+v", err, p)
		case !errors.Is(err, ErrRefused) && !errors.As(err, new(*FormatError)) && !errors.As(err, new(*TooLargeError)):
			t.Fatalf("error of type %T: %v", err, err)
		}
	})
}

// A CA may put anything into a leaf: what it shows is a selector of the manifest
// without a star, of printed characters, and there are few.
func FuzzX509Selectors(f *testing.F) {
	for _, s := range []string{"node-c", "a\x00b", "*.x", "spiffe://a/b", "http://[::1", "ü", strings.Repeat("x", 600)} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, cn, dns, uri string) {
		san := append([]byte{0x82, 0}, dns...)
		if len(dns) > 100 || len(uri) > 100 {
			return
		}
		san[1] = byte(len(dns))
		san = append(append(san, 0x86, byte(len(uri))), uri...)
		value, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: san})
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{
			Subject: pkix.Name{Names: []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: cn}}}, DNSNames: []string{dns},
			Extensions: []pkix.Extension{{Id: []int{2, 5, 29, 17}, Value: value}},
		}
		got := x509Selectors(leaf)
		if len(got) > 3 || !slices.IsSorted(got) {
			t.Fatalf("%q", got)
		}
		for _, s := range got {
			p, err := manifest.ParsePattern(s)
			if err != nil || p.IsGlob() || p.String() != s || p.Family() != manifest.FamilyX509 || strings.ContainsAny(s, "*\x00\n\r\x1b\x7f") {
				t.Fatalf("%q: %v", s, err)
			}
		}
	})
}

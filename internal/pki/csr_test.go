package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// rawCSR is a request by hand, for what crypto/x509 would not write.
type rawCSR struct {
	version   int
	key       crypto.Signer
	spki      []byte // nil: that of key
	attribute []byte // content of attributes [0]
	moreInfo  []byte // after the attributes
	more      []byte // after the signature
	signature []byte // nil: by key
}

func element(tag byte, parts ...[]byte) []byte {
	content := slices.Concat(parts...)
	der, err := asn1.Marshal(asn1.RawValue{Class: int(tag >> 6), Tag: int(tag & 0x1f), IsCompound: tag&0x20 != 0, Bytes: content})
	if err != nil {
		panic(err)
	}
	return der
}

func (r rawCSR) der(t testing.TB) []byte {
	t.Helper()
	spki := r.spki
	if spki == nil {
		var err error
		if spki, err = x509.MarshalPKIXPublicKey(r.key.Public()); err != nil {
			t.Fatal(err)
		}
	}
	info := element(0x30, element(0x02, []byte{byte(r.version)}), []byte{0x30, 0}, spki, element(0xa0, r.attribute), r.moreInfo)
	algorithm, opts, message := []byte{0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70}, crypto.SignerOpts(crypto.Hash(0)), info
	if _, ok := r.key.(*ecdsa.PrivateKey); ok {
		algorithm = []byte{0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02}
		digest := sha256.Sum256(info)
		opts, message = crypto.SHA256, digest[:]
	}
	signature := r.signature
	if signature == nil {
		var err error
		if signature, err = r.key.Sign(rand.Reader, message, opts); err != nil {
			t.Fatal(err)
		}
	}
	return element(0x30, info, algorithm, element(0x03, []byte{0}, signature), r.more)
}

func request(t testing.TB, key crypto.Signer, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func p256(t testing.TB) *ecdsa.PrivateKey { return pkitest.NewKey(t) }

func TestParseCSR(t *testing.T) {
	for name, key := range map[string]crypto.Signer{"P-256": p256(t), "Ed25519": pkitest.NewEd25519Key(t)} {
		der, err := pki.NewCSR(key)
		if err != nil {
			t.Fatal(err)
		}
		for form, der := range map[string][]byte{"NewCSR": der, "by hand": rawCSR{key: key}.der(t)} {
			got, err := pki.ParseCSR(der)
			if err != nil {
				t.Errorf("%s, %s: %v", name, form, err)
				continue
			}
			if !key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(got) {
				t.Errorf("%s, %s: another key", name, form)
			}
			if len(der) >= 250 {
				t.Errorf("%s, %s: %d bytes", name, form, len(der))
			}
		}
	}
}

// badCSRs has requests that must be refused, with the rule that does it.
func badCSRs(t testing.TB) []struct {
	name, rule string
	der        []byte
} {
	key, ed := p256(t), pkitest.NewEd25519Key(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, edGood := request(t, key, x509.CertificateRequest{}), request(t, ed, x509.CertificateRequest{})
	flipped := slices.Clone(edGood)
	flipped[len(flipped)-5] ^= 1
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	var parts struct{ Algorithm, Key asn1.RawValue }
	if _, err := asn1.Unmarshal(spki, &parts); err != nil {
		t.Fatal(err)
	}
	spiffe := &url.URL{Scheme: "spiffe", Host: "prod.example", Path: "/admin/alice"}
	attribute := func(oid asn1.ObjectIdentifier, value ...byte) []byte {
		id, err := asn1.Marshal(oid)
		if err != nil {
			t.Fatal(err)
		}
		return element(0x30, id, element(0x31, value))
	}
	extensionRequest := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}

	// For the key 1, the neutral point, R = 1 and S = 0 sign every message.
	neutral := ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...))
	neutralSPKI, err := x509.MarshalPKIXPublicKey(neutral)
	if err != nil {
		t.Fatal(err)
	}

	type bad = struct {
		name, rule string
		der        []byte
	}
	return []bad{
		{"empty", "encoding", nil},
		{"garbage", "encoding", []byte("garbage")},
		{"cut short", "encoding", good[:len(good)-1]},
		{"trailing byte", "encoding", append(slices.Clone(good), 0)},
		{"PEM", "encoding", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: good})},
		{"indefinite length", "encoding", slices.Concat([]byte{0x30, 0x80}, good[3:], []byte{0, 0})},
		{"above 8 KiB", "size", append(slices.Clone(good), make([]byte, pki.MaxCSRBytes)...)},
		{"above 8 KiB in an attribute", "size", rawCSR{key: key, attribute: attribute(extensionRequest, make([]byte, pki.MaxCSRBytes)...)}.der(t)},
		{"version 2", "version", rawCSR{version: 1, key: key}.der(t)},
		{"more after the signature", "nothing-else", rawCSR{key: key, more: element(0x04, []byte("more"))}.der(t)},
		{"common name", "no-subject", request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin"}})},
		{"organization", "no-subject", request(t, key, x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"acme"}}})},
		{"URI SAN", "no-attributes", request(t, key, x509.CertificateRequest{URIs: []*url.URL{spiffe}})},
		{"DNS SAN", "no-attributes", request(t, key, x509.CertificateRequest{DNSNames: []string{"a.example"}})},
		{"IP SAN", "no-attributes", request(t, ed, x509.CertificateRequest{IPAddresses: []net.IP{{10, 0, 0, 1}}})},
		{"e-mail SAN", "no-attributes", request(t, key, x509.CertificateRequest{EmailAddresses: []string{"a@b"}})},
		{"CA extension", "no-attributes", request(t, key, x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}})},
		{"unknown extension", "no-attributes", request(t, key, x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}})},
		{"empty extension request", "no-attributes", rawCSR{key: key, attribute: attribute(extensionRequest, 0x30, 0)}.der(t)},
		{"challenge password", "no-attributes", rawCSR{key: key, attribute: attribute(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}, 0x0c, 1, 'x')}.der(t)},
		{"unknown attribute", "no-attributes", rawCSR{key: key, attribute: attribute(asn1.ObjectIdentifier{1, 2, 3, 4}, 5, 0)}.der(t)},
		{"more after the attributes", "no-attributes", rawCSR{key: key, moreInfo: element(0x04, []byte("more"))}.der(t)},
		{"RSA", "public-key", request(t, rsaKey, x509.CertificateRequest{})},
		{"P-384", "public-key", request(t, p384, x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256})},
		{"unknown key", "public-key", rawCSR{key: key, spki: element(0x30, element(0x30, element(0x06, []byte{0x2b, 0x65, 0x71})), element(0x03, make([]byte, 58)))}.der(t)},
		{"more after the key", "key-encoding", rawCSR{key: key, spki: element(0x30, parts.Algorithm.FullBytes, parts.Key.FullBytes, []byte{5, 0})}.der(t)},
		{"neutral point", "key-order", rawCSR{key: ed, spki: neutralSPKI, signature: slices.Concat(neutral, make([]byte, 32))}.der(t)},
		{"SHA-512", "signature-algorithm", request(t, key, x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA512})},
		{"SHA-384", "signature-algorithm", request(t, key, x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA384})},
		{"signed by another key", "signature", rawCSR{key: p256(t), spki: spki}.der(t)},
		{"changed signature", "signature", flipped},
	}
}

func TestParseCSRRefuses(t *testing.T) {
	refused := map[string]bool{}
	for _, bad := range badCSRs(t) {
		key, err := pki.ParseCSR(bad.der)
		var refusal *pki.CSRError
		if !errors.As(err, &refusal) || !errors.Is(err, pki.ErrCSR) || key != nil {
			t.Errorf("%s: %v, %v", bad.name, key, err)
			continue
		}
		if refusal.Rule != bad.rule {
			t.Errorf("%s: refused by %s, want %s", bad.name, refusal.Rule, bad.rule)
		}
		if refusal.Section == "" || refusal.Detail == "" {
			t.Errorf("%s: %+v", bad.name, refusal)
		}
		if strings.Contains(err.Error(), "admin") || strings.Contains(err.Error(), "acme") {
			t.Errorf("%s: the error repeats what the request says: %v", bad.name, err)
		}
		refused[bad.rule] = true
	}
	for _, rule := range pki.CSRRules() {
		if !refused[rule] {
			t.Errorf("rule %s has no case that it refuses", rule)
		}
	}
}

// Without the rule for it, the neutral point passes: crypto/ed25519 lets it.
// A request that is opened says which key it is about, and no more: only a check of all rules gives the key to certify.
func TestOpenCSRBelievesNothing(t *testing.T) {
	key := p256(t)
	der, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for _, spoiled := range []bool{false, true} {
		if spoiled {
			der[len(der)-1] ^= 1 // of its signature
		}
		csr, err := pki.OpenCSR(der)
		if err != nil || !bytes.Equal(csr.SPKI(), spki) {
			t.Fatalf("spoiled %v: %v, about %x", spoiled, err, csr.SPKI())
		}
		if got, err := csr.Key(); spoiled != errors.Is(err, pki.ErrCSR) || spoiled != (got == nil) {
			t.Errorf("spoiled %v: %v, %v", spoiled, got, err)
		}
	}
	for _, der := range [][]byte{nil, []byte("garbage"), make([]byte, pki.MaxCSRBytes+1)} {
		if _, err := pki.OpenCSR(der); !errors.Is(err, pki.ErrCSR) {
			t.Errorf("%d bytes that are no request: %v", len(der), err)
		}
	}
}

func TestNeutralPointSignsEverything(t *testing.T) {
	neutral := ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...))
	if !ed25519.Verify(neutral, []byte("anything"), slices.Concat(neutral, make([]byte, 32))) {
		t.Error("crypto/ed25519 refuses the neutral point by now: the rule key-order can go")
	}
}

func FuzzParseCSR(f *testing.F) {
	for _, bad := range badCSRs(f) {
		f.Add(bad.der)
	}
	for _, key := range []crypto.Signer{p256(f), pkitest.NewEd25519Key(f)} {
		der, err := pki.NewCSR(key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	issuer, now := newIssuer(f), time.Now()
	id := mustID(f, identity.Data, "node-a")
	f.Fuzz(func(t *testing.T, der []byte) {
		key, err := pki.ParseCSR(der)
		if err != nil {
			if !errors.Is(err, pki.ErrCSR) || key != nil {
				t.Fatalf("%v, %v", key, err)
			}
			return
		}
		// Only a key and a proof that the sender has it pass, so a leaf for it can
		// be issued and nothing else can be read from it.
		csr, err := x509.ParseCertificateRequest(der)
		if err != nil || csr.CheckSignature() != nil || len(csr.Subject.Names)+len(csr.Extensions) != 0 || !bytes.HasSuffix(csr.RawTBSCertificateRequest, []byte{0xa0, 0}) {
			t.Fatalf("accepted %x: %v", der, err)
		}
		canonical, err := x509.MarshalPKIXPublicKey(key)
		if err != nil || !bytes.Contains(der, canonical) {
			t.Fatalf("another key than in the request: %v", err)
		}
		if _, err := issuer.Issue(pki.Request{PublicKey: key, ID: id, TTL: time.Hour}, now); err != nil {
			t.Fatal(err)
		}
	})
}

package identity_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

var p256 = elliptic.P256()

// keys are made once per test that needs them: an RSA key costs more than all others.
type keys struct {
	p256, other *ecdsa.PrivateKey
	p384        *ecdsa.PrivateKey
	rsa         *rsa.PrivateKey
	ed25519     crypto.Signer
}

func newKeys(t testing.TB) *keys {
	t.Helper()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return &keys{pkitest.NewKey(t), pkitest.NewKey(t), p384, r, pkitest.NewEd25519Key(t)}
}

// flaw is one thing that can be wrong with a certificate of some level.
type flaw struct {
	name   string
	levels string // which of "leaf", "mesh CA" and "root" it is a flaw of
	rule   string // the rule that must refuse; "parser" if crypto/x509 already does
	edit   func(t testing.TB, f *forged, k *keys)
}

const (
	leaf = "leaf"
	mesh = "mesh CA"
	root = "root"

	all    = leaf + ", " + mesh + ", " + root
	issued = leaf + ", " + mesh
	cas    = mesh + ", " + root
)

// dated sets the validity, relative to now.
func dated(from, to time.Duration) func(testing.TB, *forged, *keys) {
	return func(t testing.TB, f *forged, _ *keys) {
		now := time.Now().Truncate(time.Second)
		f.Validity = validity(t, now.Add(from), now.Add(to))
	}
}

func extend(id asn1.ObjectIdentifier, critical bool, value ...byte) func(testing.TB, *forged, *keys) {
	return func(_ testing.TB, f *forged, _ *keys) { f.set(id, critical, value...) }
}

func without(id asn1.ObjectIdentifier) func(testing.TB, *forged, *keys) {
	return func(_ testing.TB, f *forged, _ *keys) { f.drop(id) }
}

func serial(n *big.Int) func(testing.TB, *forged, *keys) {
	return func(_ testing.TB, f *forged, _ *keys) { f.Serial = n }
}

func bit(n uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), n) }

const day = 24 * time.Hour

var (
	serverAuth = []byte{0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01}
	clientAuth = []byte{0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02}
	emailUsage = []byte{0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x04}
	anyUsage   = []byte{0x06, 0x04, 0x55, 0x1d, 0x25, 0x00}
	caTrue     = []byte{0x30, 0x03, 0x01, 0x01, 0xff}
	caPath0    = []byte{0x30, 0x06, 0x01, 0x01, 0xff, 0x02, 0x01, 0x00}
	caPath1    = []byte{0x30, 0x06, 0x01, 0x01, 0xff, 0x02, 0x01, 0x01}
	caPath2    = []byte{0x30, 0x06, 0x01, 0x01, 0xff, 0x02, 0x01, 0x02}
	// permitted: DNS names under .example
	dnsConstraint = append([]byte{0x30, 0x0e, 0xa0, 0x0c, 0x30, 0x0a, 0x82, 0x08}, ".example"...)
)

func sequence(parts ...[]byte) []byte {
	content := bytes.Join(parts, nil)
	if len(content) > 127 {
		panic("too long for one length byte")
	}
	return append([]byte{0x30, byte(len(content))}, content...)
}

func san(tag byte, value string) []byte {
	return sequence(append([]byte{tag, byte(len(value))}, value...))
}

var flaws = []flaw{
	// Version, serial number.
	{"version 1 with extensions", all, "version", func(_ testing.TB, f *forged, _ *keys) { f.Version = 0 }},
	{"version 2 with extensions", all, "version", func(_ testing.TB, f *forged, _ *keys) { f.Version = 1 }},
	{"version 4", all, "parser", func(_ testing.TB, f *forged, _ *keys) { f.Version = 3 }},
	{"version 1", all, "version", func(_ testing.TB, f *forged, _ *keys) { f.Version, f.Extensions = 0, nil }},
	{"serial zero", all, "serial-number", serial(big.NewInt(0))},
	{"serial negative", all, "parser", serial(big.NewInt(-7))},
	{"serial of 21 octets", all, "serial-number", serial(bit(160))},
	{"serial of 20 octets and a sign octet", all, "serial-number", serial(bit(159))},
	{"serial of 1000 octets", all, "serial-number", serial(bit(8000 - 1))},

	// Signature algorithms.
	{"signed with ECDSA-SHA384", all, "signature-algorithm", func(_ testing.TB, f *forged, _ *keys) {
		f.signWith(f.signer, ecdsaSHA384, crypto.SHA384)
	}},
	{"signed with ECDSA-SHA1", all, "signature-algorithm", func(_ testing.TB, f *forged, _ *keys) {
		f.signWith(f.signer, ecdsaSHA1, crypto.SHA1)
	}},
	{"signed with Ed25519", all, "signature-algorithm", func(_ testing.TB, f *forged, k *keys) {
		f.signWith(k.ed25519, pureEd25519, 0)
	}},
	{"signed with RSA", all, "signature-algorithm", func(_ testing.TB, f *forged, k *keys) {
		f.signWith(k.rsa, rsaSHA256, crypto.SHA256)
	}},

	// Encoding: what the parser passes over.
	{"issuer unique id", all, "encoding", func(_ testing.TB, f *forged, _ *keys) {
		f.IssuerUID = asn1.BitString{Bytes: []byte{1}, BitLength: 8}
	}},
	{"subject unique id", all, "encoding", func(_ testing.TB, f *forged, _ *keys) {
		f.SubjectUID = asn1.BitString{Bytes: []byte{1}, BitLength: 8}
	}},
	{"field behind the extensions", all, "encoding", func(_ testing.TB, f *forged, _ *keys) { f.After = asn1.NullRawValue }},
	{"field behind the signature", all, "encoding", func(_ testing.TB, f *forged, _ *keys) { f.after = true }},
	{"algorithm with NULL parameters", all, "encoding", func(_ testing.TB, f *forged, _ *keys) {
		f.Algorithm.Parameters = asn1.NullRawValue
	}},
	{"time of this century as GeneralizedTime", all, "encoding", func(t testing.TB, f *forged, _ *keys) {
		now := time.Now().UTC()
		f.Validity = raw(t, struct {
			NotBefore time.Time `asn1:"generalized"`
			NotAfter  time.Time `asn1:"generalized"`
		}{now.Add(-time.Hour), now.Add(time.Hour)})
	}},

	// Names.
	{"empty issuer", all, "issuer", func(t testing.TB, f *forged, _ *keys) { f.Issuer = raw(t, pkix.RDNSequence{}) }},
	{"issuer of 600 bytes", all, "issuer", func(t testing.TB, f *forged, _ *keys) { f.Issuer = commonName(t, strings.Repeat("i", 600)) }},
	{"subject of 600 bytes", issued, "subject", func(t testing.TB, f *forged, _ *keys) { f.Subject = commonName(t, strings.Repeat("s", 600)) }},
	{"subject is an organization", leaf, "subject", func(t testing.TB, f *forged, _ *keys) {
		f.Subject = dn(t, asn1.ObjectIdentifier{2, 5, 4, 10}, "org")
	}},
	{"two common names", leaf, "subject", func(t testing.TB, f *forged, _ *keys) {
		cn := asn1.ObjectIdentifier{2, 5, 4, 3}
		f.Subject = raw(t, pkix.RDNSequence{{{Type: cn, Value: "a"}}, {{Type: cn, Value: "b"}}})
	}},
	{"empty subject", cas, "subject", func(t testing.TB, f *forged, _ *keys) { f.Subject = raw(t, pkix.RDNSequence{}) }},
	{"subject of its issuer", mesh, "not-self-issued", func(_ testing.TB, f *forged, _ *keys) { f.Subject = f.Issuer }},
	{"subject of another than its issuer", root, "self-issued", func(t testing.TB, f *forged, _ *keys) { f.Subject = commonName(t, "other") }},

	// Validity.
	{"ends before it begins", all, "lifetime", dated(time.Hour, -time.Hour)},
	{"no lifetime", all, "lifetime", dated(0, 0)},
	{"399 days", leaf, "lifetime", dated(-time.Hour, 399*day)},
	{"801 days", mesh, "lifetime", dated(-time.Hour, 801*day)},
	{"101 years", root, "lifetime", dated(-time.Hour, 101*366*day)},
	{"expired", all, "expired", dated(-3*time.Hour, -time.Hour)},
	{"not yet valid", all, "not-yet-valid", dated(time.Hour, 3*time.Hour)},

	// Public keys.
	{"RSA key", all, "public-key", func(t testing.TB, f *forged, k *keys) { f.rekey(t, k.rsa) }},
	{"P-384 key", all, "public-key", func(t testing.TB, f *forged, k *keys) { f.rekey(t, k.p384) }},
	{"Ed25519 key", cas, "public-key", func(t testing.TB, f *forged, k *keys) { f.rekey(t, k.ed25519) }},
	{"unknown key algorithm", all, "key-encoding", func(t testing.TB, f *forged, _ *keys) {
		f.PublicKey = raw(t, struct {
			A pkix.AlgorithmIdentifier
			K asn1.BitString
		}{pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 3, 4}}, asn1.BitString{Bytes: []byte{1, 2, 3}, BitLength: 24}})
	}},
	{"key with a field behind it", all, "key-encoding", func(t testing.TB, f *forged, _ *keys) {
		var spki struct {
			A, K  asn1.RawValue
			After asn1.RawValue `asn1:"optional"`
		}
		if _, err := asn1.Unmarshal(f.PublicKey.FullBytes, &spki); err != nil {
			t.Fatal(err)
		}
		spki.After = asn1.NullRawValue
		f.PublicKey = raw(t, spki)
	}},

	// Key identifiers.
	{"no subject key id", all, "subject-key-id", without(oidSKI)},
	{"subject key id of its own choice", all, "subject-key-id", extend(oidSKI, false, 0x04, 0x03, 1, 2, 3)},
	{"subject key id with bytes behind it", all, "subject-key-id", func(_ testing.TB, f *forged, _ *keys) {
		f.set(oidSKI, false, append(f.value(oidSKI), 5, 0)...)
	}},
	{"critical subject key id", all, "parser", func(_ testing.TB, f *forged, _ *keys) { f.set(oidSKI, true, f.value(oidSKI)...) }},
	{"no authority key id", issued, "authority-key-id", without(oidAKI)},
	{"empty authority key id", all, "authority-key-id", extend(oidAKI, false, 0x30, 0x00)},
	{"authority key id of another key", root, "authority-key-id", extend(oidAKI, false, append([]byte{0x30, 22, 0x80, 20}, make([]byte, 20)...)...)},
	{"authority key id with a serial number", issued, "authority-key-id", func(_ testing.TB, f *forged, _ *keys) {
		v := append(f.value(oidAKI), 0x82, 1, 1)
		v[1] += 3
		f.set(oidAKI, false, v...)
	}},
	{"critical authority key id", issued, "parser", func(_ testing.TB, f *forged, _ *keys) { f.set(oidAKI, true, f.value(oidAKI)...) }},

	// Basic constraints.
	{"leaf is a CA", leaf, "basic-constraints", extend(oidBC, true, caTrue...)},
	{"leaf is a CA of path length 0", leaf, "basic-constraints", extend(oidBC, true, caPath0...)},
	{"no basic constraints", all, "basic-constraints", without(oidBC)},
	{"basic constraints not critical", all, "basic-constraints", func(_ testing.TB, f *forged, _ *keys) { f.set(oidBC, false, f.value(oidBC)...) }},
	{"CA:FALSE spelled out", leaf, "basic-constraints", extend(oidBC, true, 0x30, 0x03, 0x01, 0x01, 0x00)},
	{"not a CA", cas, "basic-constraints", extend(oidBC, true, 0x30, 0x00)},
	{"no path length", cas, "basic-constraints", extend(oidBC, true, caTrue...)},
	{"mesh CA of path length 1", mesh, "basic-constraints", extend(oidBC, true, caPath1...)},
	{"root of path length 0", root, "basic-constraints", extend(oidBC, true, caPath0...)},
	{"path length 2", cas, "basic-constraints", extend(oidBC, true, caPath2...)},

	// Key usages.
	{"no key usage", all, "key-usage", without(oidKU)},
	{"key usage not critical", all, "key-usage", func(_ testing.TB, f *forged, _ *keys) { f.set(oidKU, false, f.value(oidKU)...) }},
	{"leaf signs certificates", leaf, "key-usage", extend(oidKU, true, 0x03, 0x02, 0x02, 0x84)},
	{"leaf enciphers keys", leaf, "key-usage", extend(oidKU, true, 0x03, 0x02, 0x05, 0xa0)},
	{"empty key usage", all, "key-usage", extend(oidKU, true, 0x03, 0x01, 0x00)},
	{"CA signs CRLs", cas, "key-usage", extend(oidKU, true, 0x03, 0x02, 0x01, 0x06)},
	{"CA signs anything", cas, "key-usage", extend(oidKU, true, 0x03, 0x02, 0x02, 0x84)},
	{"CA signs no certificates", cas, "key-usage", extend(oidKU, true, 0x03, 0x02, 0x07, 0x80)},
	{"no extended key usage", leaf, "ext-key-usage", without(oidEKU)},
	{"server auth alone", leaf, "ext-key-usage", extend(oidEKU, false, sequence(serverAuth)...)},
	{"client auth alone", leaf, "ext-key-usage", extend(oidEKU, false, sequence(clientAuth)...)},
	{"client auth twice", leaf, "ext-key-usage", extend(oidEKU, false, sequence(clientAuth, clientAuth)...)},
	{"a third extended key usage", leaf, "ext-key-usage", extend(oidEKU, false, sequence(serverAuth, clientAuth, emailUsage)...)},
	{"any extended key usage", leaf, "ext-key-usage", extend(oidEKU, false, sequence(anyUsage)...)},
	{"critical extended key usage", leaf, "ext-key-usage", extend(oidEKU, true, sequence(serverAuth, clientAuth)...)},
	{"extended key usage in a CA", cas, "extensions", extend(oidEKU, false, sequence(serverAuth, clientAuth)...)},

	// Names of the subject.
	{"critical names beside a subject", leaf, "subject-alt-name", func(_ testing.TB, f *forged, _ *keys) { f.set(oidSAN, true, f.value(oidSAN)...) }},
	{"names not critical without a subject", leaf, "subject-alt-name", func(t testing.TB, f *forged, _ *keys) { f.Subject = raw(t, pkix.RDNSequence{}) }},
	{"no names at all", leaf, "subject-alt-name", func(t testing.TB, f *forged, _ *keys) {
		f.Subject = raw(t, pkix.RDNSequence{})
		f.drop(oidSAN)
	}},
	{"empty list of names", leaf, "subject-alt-name", extend(oidSAN, false, 0x30, 0x00)},
	{"an email address", leaf, "subject-alt-name", extend(oidSAN, false, san(0x81, "a@b.example")...)},
	{"a registered id", leaf, "subject-alt-name", extend(oidSAN, false, san(0x88, "\x2a\x03")...)},
	{"a directory name", leaf, "subject-alt-name", extend(oidSAN, false, san(0xa4, "\x30\x00")...)},
	{"a constructed URI", leaf, "subject-alt-name", extend(oidSAN, false, san(0xa6, "spiffe://prod.example/shard/eu-1")...)},
	{"bytes behind the names", leaf, "subject-alt-name", func(_ testing.TB, f *forged, _ *keys) {
		f.set(oidSAN, false, append(f.value(oidSAN), 5, 0)...)
	}},
	{"65 names", leaf, "subject-alt-name", func(_ testing.TB, f *forged, _ *keys) {
		f.set(oidSAN, false, pkitest.AltNames(strings.Split(strings.Repeat("spiffe://prod.example/shard/a ", 65), " ")[:65]...).Value...)
	}},
	{"names of a CA", cas, "extensions", extend(oidSAN, false, san(0x86, "spiffe://prod.example")...)},

	// Other extensions.
	{"name constraints", all, "name-constraints", extend(oidNC, true, dnsConstraint...)},
	{"name constraints not critical", all, "name-constraints", extend(oidNC, false, dnsConstraint...)},
	{"unknown critical extension", all, "extensions", extend(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, true, 5, 0)},
	{"unknown extension", all, "extensions", extend(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, false, 5, 0)},
	{"certificate policies", all, "extensions", extend(asn1.ObjectIdentifier{2, 5, 29, 32}, false, 0x30, 0x08, 0x30, 0x06, 0x06, 0x04, 0x55, 0x1d, 0x20, 0x00)},
	{"an extension twice", all, "parser", func(_ testing.TB, f *forged, _ *keys) { f.Extensions = append(f.Extensions, f.Extensions[0]) }},
	{"too big", all, "parsed", func(t testing.TB, f *forged, _ *keys) {
		f.set(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, false, make([]byte, internalidentity.MaxCertificateBytes)...)
	}},
}

var profiles = map[string]identity.Profile{
	leaf: identity.LeafProfile(), mesh: identity.MeshCAProfile(), root: identity.RootProfile(),
}

var checks = map[string]func(*x509.Certificate, time.Time) *internalidentity.Refusal{
	leaf: internalidentity.CheckLeaf, mesh: internalidentity.CheckMeshCA, root: internalidentity.CheckRoot,
}

// Every flaw is refused by its rule, every rule has a flaw that only it refuses, and no
// chain with a flawed certificate in it is accepted.
func TestEveryRuleRefuses(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	for level, p := range profiles {
		if p.Name() != level {
			t.Fatalf("profile of %s is named %s", level, p.Name())
		}
		refused := map[string]bool{}
		for _, flaw := range flaws {
			if !strings.Contains(flaw.levels, level) {
				continue
			}
			t.Run(level+"/"+flaw.name, func(t *testing.T) {
				f := w.apart(t, level)
				flaw.edit(t, f, k)
				c, err := x509.ParseCertificate(f.sign(t))
				if err != nil {
					if flaw.rule != "parser" {
						t.Fatalf("the parser refused it, want rule %s: %v", flaw.rule, err)
					}
					return
				}
				refusal := checks[level](c, time.Now())
				if refusal == nil {
					t.Fatalf("accepted, want rule %s", flaw.rule)
				}
				if refusal.Certificate != level || refusal.Rule != flaw.rule {
					t.Fatalf("refused as %s by %s, want %s by %s: %v", refusal.Certificate, refusal.Rule, level, flaw.rule, refusal.Detail)
				}
				refused[refusal.Rule] = true
				w.mustRefuse(t, level, c)
			})
		}
		for _, r := range p.Rules() {
			if r.Name == "" || r.Section == "" {
				t.Errorf("%s: rule %+v lacks a name or a section", level, r)
			}
			if !refused[r.Name] {
				t.Errorf("%s: rule %s has no flaw that it refuses", level, r.Name)
			}
		}
	}
}

// mustRefuse puts c in its place in a chain that is good otherwise.
func (w *world) mustRefuse(t *testing.T, level string, c *x509.Certificate) {
	t.Helper()
	for _, withRoot := range []bool{false, true} {
		chain := w.chain(withRoot)
		switch {
		case level == leaf:
			chain[0] = c
		case level == mesh:
			chain[1] = c
		case withRoot:
			chain[2] = c
		default:
			continue
		}
		if v, err := w.bundle.Verify(chain, time.Now()); err == nil {
			t.Fatalf("accepted in a chain: %+v", v)
		}
	}
	if level != root {
		return
	}
	cfg := w.authority.BundleConfig()
	cfg.Roots = []*x509.Certificate{c}
	b, err := identity.NewBundle(cfg)
	if err != nil {
		return
	}
	// A root that is out of date may be in a bundle: then its chains are refused.
	if _, err := b.Verify(w.chain(false), time.Now()); !errors.Is(err, identity.ErrExpired) {
		t.Fatalf("as the root of a bundle: %v, want ErrExpired", err)
	}
}

// An unedited certificate, taken apart and put together, is still good: what the tests
// above see refused is refused for the flaw.
func TestForgeryWithoutFlawIsAccepted(t *testing.T) {
	w := newWorld(t)
	var chain []*x509.Certificate
	for _, level := range []string{leaf, mesh, root} {
		c, err := x509.ParseCertificate(w.apart(t, level).sign(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := checks[level](c, time.Now()); err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	cfg := w.authority.BundleConfig()
	cfg.Roots = chain[2:]
	b, err := identity.NewBundle(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Verify(chain, time.Now()); err != nil {
		t.Fatal(err)
	}
}

func TestRootOfAnotherKeyIsNotSelfSigned(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	f := w.apart(t, root)
	f.signWith(k.other, ecdsaSHA256, crypto.SHA256)
	c, err := x509.ParseCertificate(f.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	if r := internalidentity.CheckRoot(c, time.Now()); r == nil || r.Rule != "self-signed" {
		t.Fatalf("CheckRoot = %v, want rule self-signed", r)
	}
	var refusal *identity.ChainError
	cfg := w.authority.BundleConfig()
	cfg.Roots = append(cfg.Roots, c)
	if _, err := identity.NewBundle(cfg); !errors.As(err, &refusal) || refusal.Rule != "self-signed" {
		t.Fatalf("NewBundle = %v, want rule self-signed", err)
	}
}

// Shapes that the profile leaves to the authority.
func TestProfileAccepts(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name, level string
		edit        func(f *forged)
	}{
		{"empty subject, critical names", leaf, func(f *forged) {
			f.Subject = raw(t, pkix.RDNSequence{})
			f.set(oidSAN, true, f.value(oidSAN)...)
		}},
		{"client auth first", leaf, func(f *forged) { f.set(oidEKU, false, sequence(clientAuth, serverAuth)...) }},
		{"no names but a subject", leaf, func(f *forged) { f.drop(oidSAN) }},
		{"serial of 20 octets", leaf, func(f *forged) { f.Serial = bit(158) }},
		{"398 days", leaf, func(f *forged) { dated(-day, 397*day)(t, f, nil) }},
		{"a name of several attributes", mesh, func(f *forged) {
			f.Subject = raw(t, pkix.Name{CommonName: "mesh", Organization: []string{"org"}}.ToRDNSequence())
		}},
		{"own authority key id", root, func(f *forged) {
			ski := f.value(oidSKI)[2:]
			f.set(oidAKI, false, append([]byte{0x30, 22, 0x80, 20}, ski...)...)
		}},
	} {
		f := w.apart(t, tc.level)
		tc.edit(f)
		c, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if r := checks[tc.level](c, time.Now()); r != nil {
			t.Errorf("%s: %v", tc.name, r)
		}
	}
}

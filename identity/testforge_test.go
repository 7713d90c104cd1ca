package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

var (
	oidSKI = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidKU  = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSAN = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBC  = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidNC  = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidAKI = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidEKU = asn1.ObjectIdentifier{2, 5, 29, 37}

	ecdsaSHA256 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	ecdsaSHA384 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}
	ecdsaSHA1   = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}
	pureEd25519 = asn1.ObjectIdentifier{1, 3, 101, 112}
	rsaSHA256   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
)

// tbs is a certificate's signed part with every field within reach, those included
// that crypto/x509 does not write.
type tbs struct {
	Version    int `asn1:"optional,explicit,default:0,tag:0"`
	Serial     *big.Int
	Algorithm  pkix.AlgorithmIdentifier
	Issuer     asn1.RawValue
	Validity   asn1.RawValue
	Subject    asn1.RawValue
	PublicKey  asn1.RawValue
	IssuerUID  asn1.BitString   `asn1:"optional,tag:1"`
	SubjectUID asn1.BitString   `asn1:"optional,tag:2"`
	Extensions []pkix.Extension `asn1:"omitempty,optional,explicit,tag:3"`
	After      asn1.RawValue    `asn1:"optional"`
}

// forged is a certificate that is taken apart, edited, and signed again by its issuer,
// so that nothing but the edit is wrong with it.
type forged struct {
	tbs
	signer crypto.Signer
	hash   crypto.Hash
	broken bool // flip a bit of the signature
	after  bool // put a field behind the signature

	// own is the key of the certificate itself, if it is a CA and the edit changed it.
	own crypto.Signer
}

func takeApart(t testing.TB, c *x509.Certificate, signer crypto.Signer) *forged {
	t.Helper()
	f := &forged{signer: signer, hash: crypto.SHA256}
	if rest, err := asn1.Unmarshal(c.RawTBSCertificate, &f.tbs); err != nil || len(rest) != 0 {
		t.Fatalf("taking a certificate apart: %v, %d bytes left", err, len(rest))
	}
	return f
}

// sign returns the certificate in DER. It signs deterministically.
func (f *forged) sign(t testing.TB) []byte {
	t.Helper()
	body, err := asn1.Marshal(f.tbs)
	if err != nil {
		t.Fatalf("encoding a forged certificate: %v", err)
	}
	return f.signBytes(t, body)
}

func (f *forged) signBytes(t testing.TB, body []byte) []byte {
	t.Helper()
	digest := body
	if f.hash != 0 {
		h := f.hash.New()
		h.Write(body)
		digest = h.Sum(nil)
	}
	signature, err := f.signer.Sign(nil, digest, f.hash)
	if err != nil {
		t.Fatalf("signing a forged certificate: %v", err)
	}
	if f.broken {
		signature[len(signature)-1] ^= 1
	}
	whole := struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
		After     asn1.RawValue `asn1:"optional"`
	}{
		TBS:       asn1.RawValue{FullBytes: body},
		Algorithm: f.Algorithm,
		Signature: asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)},
	}
	if f.after {
		whole.After = asn1.NullRawValue
	}
	der, err := asn1.Marshal(whole)
	if err != nil {
		t.Fatalf("encoding a forged certificate: %v", err)
	}
	return der
}

func (f *forged) set(id asn1.ObjectIdentifier, critical bool, value ...byte) {
	ext := pkix.Extension{Id: id, Critical: critical, Value: value}
	if i := f.find(id); i >= 0 {
		f.Extensions[i] = ext
		return
	}
	f.Extensions = append(f.Extensions, ext)
}

func (f *forged) drop(id asn1.ObjectIdentifier) {
	if i := f.find(id); i >= 0 {
		f.Extensions = slices.Delete(f.Extensions, i, i+1)
	}
}

func (f *forged) value(id asn1.ObjectIdentifier) []byte {
	if i := f.find(id); i >= 0 {
		return slices.Clone(f.Extensions[i].Value)
	}
	return nil
}

func (f *forged) find(id asn1.ObjectIdentifier) int {
	return slices.IndexFunc(f.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(id) })
}

// name sets a distinguished name of one attribute.
func dn(t testing.TB, attr asn1.ObjectIdentifier, value string) asn1.RawValue {
	return raw(t, pkix.RDNSequence{{{Type: attr, Value: value}}})
}

func commonName(t testing.TB, value string) asn1.RawValue {
	return dn(t, asn1.ObjectIdentifier{2, 5, 4, 3}, value)
}

func raw(t testing.TB, v any) asn1.RawValue {
	t.Helper()
	der, err := asn1.Marshal(v)
	if err != nil {
		t.Fatalf("encoding %T: %v", v, err)
	}
	return asn1.RawValue{FullBytes: der}
}

func validity(t testing.TB, notBefore, notAfter time.Time) asn1.RawValue {
	return raw(t, struct{ NotBefore, NotAfter time.Time }{notBefore.UTC(), notAfter.UTC()})
}

// rekey gives the certificate the key pub, and the subject key id that goes with it.
func (f *forged) rekey(t testing.TB, key crypto.Signer) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	f.PublicKey = asn1.RawValue{FullBytes: der}
	ski, err := internalidentity.SubjectKeyID(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	f.set(oidSKI, false, append([]byte{0x04, byte(len(ski))}, ski...)...)
	f.own = key
}

// signWith makes another key sign, naming its algorithm.
func (f *forged) signWith(key crypto.Signer, algorithm asn1.ObjectIdentifier, hash crypto.Hash) {
	f.signer, f.hash = key, hash
	f.Algorithm = pkix.AlgorithmIdentifier{Algorithm: algorithm}
	if algorithm.Equal(rsaSHA256) {
		f.Algorithm.Parameters = asn1.NullRawValue
	}
}

// algorithmFor returns how key signs.
func algorithmFor(key crypto.Signer) (asn1.ObjectIdentifier, crypto.Hash) {
	switch key.(type) {
	case ed25519.PrivateKey:
		return pureEd25519, 0
	case *rsa.PrivateKey:
		return rsaSHA256, crypto.SHA256
	}
	return ecdsaSHA256, crypto.SHA256
}

// world is a cluster whose certificates the tests edit.
type world struct {
	authority *pkitest.Authority
	bundle    *identity.Bundle
	now       time.Time
	root      pkitest.CA
	mesh      pkitest.CA
	leaf      *x509.Certificate
	leafKey   crypto.Signer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	a := pkitest.NewAuthority(t, "prod.example")
	chain, key := a.Issue(t, a.ID(t, identity.Shard, "eu-1"))
	return &world{
		authority: a, bundle: a.Bundle(), now: time.Now(),
		root: a.Root(), mesh: a.MeshCA(), leaf: chain[0], leafKey: key,
	}
}

func (w *world) chain(withRoot bool) []*x509.Certificate {
	chain := []*x509.Certificate{w.leaf, w.mesh.Cert}
	if withRoot {
		chain = append(chain, w.root.Cert)
	}
	return chain
}

// apart returns the certificate of that level ("leaf", "mesh CA", "root") taken apart.
func (w *world) apart(t testing.TB, level string) *forged {
	switch level {
	case "leaf":
		return takeApart(t, w.leaf, w.mesh.Key)
	case "mesh CA":
		return takeApart(t, w.mesh.Cert, w.root.Key)
	}
	return takeApart(t, w.root.Cert, w.root.Key)
}

// fixedKey derives the same P-256 key on every run: a fuzzer's workers are processes of
// their own, and its inputs outlive them.
func fixedKey(t testing.TB, label string) *ecdsa.PrivateKey {
	t.Helper()
	sum := sha256.Sum256([]byte("identity fuzz " + label))
	key, err := ecdsa.ParseRawPrivateKey(p256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return key
}

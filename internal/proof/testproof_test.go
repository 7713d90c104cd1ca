package proof

import (
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
	"fmt"
	"math/big"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

const cluster = "prod.example"

// scheme is one type of proof with everything that both sides need.
type scheme struct {
	name     string
	prover   Prover
	stranger Prover // claims the same, with a key of its own
	verifier Verifier
	want     Proven // but for what comes from the transcript

	// malleate returns evidence with another spelling of the signature in it.
	malleate func(*testing.T, []byte) []byte
}

func onCurve(c elliptic.Curve) func(*testing.T, []byte) []byte {
	return func(t *testing.T, sig []byte) []byte { return malleate(t, c, sig) }
}

func newEd25519(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newP256(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keyID(t testing.TB, pub crypto.PublicKey) identity.KeyID {
	t.Helper()
	id, err := identity.KeyOfPublic(pub)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func spki(t testing.TB, pub crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func random32(t testing.TB) []byte {
	b := make([]byte, 32)
	rand.Read(b)
	return b
}

// newTranscript is what an honest candidate fills.
func newTranscript(t testing.TB) Transcript {
	t.Helper()
	return Transcript{
		Role:      Candidate,
		Cluster:   cluster,
		Nonce:     random32(t),
		Binding:   random32(t),
		PublicKey: spki(t, newP256(t).Public()),
	}
}

func newJoinToken(t testing.TB) JoinToken {
	t.Helper()
	token, err := NewJoinToken(nil, JoinToken{
		Cluster:   cluster,
		Addresses: []string{"10.0.0.1:7600", "[2001:db8::1]:7600"},
		Pin:       identity.KeyID{1},
		Expires:   time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func tokenScheme(t testing.TB) scheme {
	t.Helper()
	token := newJoinToken(t)
	stranger := newJoinToken(t)
	stranger.ID = token.ID
	pub := token.PublicKey()
	return scheme{
		name:     "token",
		prover:   NewTokenProver(token),
		stranger: NewTokenProver(stranger),
		verifier: NewTokenVerifier(func(_ context.Context, id string) (ed25519.PublicKey, string, error) {
			if id != token.ID {
				return nil, "", fmt.Errorf("token %s: %w", id, ErrNotFound)
			}
			return pub, "edge-pool", nil
		}),
		malleate: onCurve(nil),
		want:     Proven{typ: "token", selectors: []string{"token:edge-pool"}, tokenID: token.ID, keyID: keyID(t, pub)},
	}
}

// claimant signs with one key and claims another.
type claimant struct {
	Prover
	claim string
}

func (c claimant) Prove(ctx context.Context, t Transcript) (Evidence, error) {
	e, err := c.Prover.Prove(ctx, t)
	e.Claim = c.claim
	return e, err
}

func keyScheme(t testing.TB) scheme {
	t.Helper()
	key := newEd25519(t)
	claim := KeyClaim(key.Public().(ed25519.PublicKey))
	return scheme{
		name:     "key",
		prover:   NewKeyProver(key),
		stranger: claimant{NewKeyProver(newEd25519(t)), claim},
		verifier: NewKeyVerifier(),
		malleate: onCurve(nil),
		want:     Proven{typ: "key", selectors: []string{"key:" + claim}, keyID: keyID(t, key.Public())},
	}
}

func svidScheme(t testing.TB, name string, current, other crypto.Signer) scheme {
	t.Helper()
	id := keyID(t, current.Public())
	return scheme{
		name:     name,
		malleate: onCurve(curveOf(current)),
		prover:   NewSVIDProver(identity.Data, "node-c", current),
		stranger: NewSVIDProver(identity.Data, "node-c", other),
		verifier: NewSVIDVerifier(func(_ context.Context, kind identity.Kind, name string) (identity.KeyID, []identity.KeyID, error) {
			if kind != identity.Data || name != "node-c" {
				return identity.KeyID{}, nil, ErrNotFound
			}
			return id, nil, nil
		}),
		want: Proven{typ: "svid", selectors: []string{"svid:data/node-c"}, kind: identity.Data, name: "node-c", keyID: id},
	}
}

func curveOf(key crypto.Signer) elliptic.Curve {
	if ec, ok := key.Public().(*ecdsa.PublicKey); ok {
		return ec.Curve
	}
	return nil
}

// fixedX509 always proves with c.
func fixedX509(c X509Credential) func(context.Context) (X509Credential, error) {
	return func(context.Context) (X509Credential, error) { return c, nil }
}

func x509Scheme(t testing.TB, name string, key, other crypto.Signer) scheme {
	t.Helper()
	pki := pkitest.NewPKI(t, "corp", nil)
	names := func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "node-c", Organization: []string{"acme"}}
		c.DNSNames = []string{"Node-C.example"}
	}
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{pki.Root.Cert})
	if err != nil {
		t.Fatal(err)
	}
	chain := pki.Issue(t, key, names)
	return scheme{
		name:   name,
		prover: NewX509Prover(fixedX509(X509Credential{append(chain, pki.Root.Cert), key})),
		// Of the same names, by a PKI that is called the same.
		stranger: NewX509Prover(fixedX509(X509Credential{pkitest.NewPKI(t, "corp", nil).Issue(t, other, names), other})),
		verifier: NewX509Verifier(roots, nil),
		want:     Proven{typ: "x509", selectors: []string{"x509:dns:node-c.example", "x509:subject:CN=node-c"}, keyID: keyID(t, key.Public())},
		malleate: func(t *testing.T, evidence []byte) []byte {
			chain, sig, err := decodeX509(evidence)
			if err != nil {
				t.Fatal(err)
			}
			if rsaKey, ok := key.Public().(*rsa.PublicKey); ok {
				// s + n represents the same number; it has one bit more.
				sum := new(big.Int).Add(new(big.Int).SetBytes(sig), rsaKey.N)
				sig = sum.Bytes()
			} else {
				sig = malleate(t, curveOf(key), sig)
			}
			out, err := encodeX509(chain, sig)
			if err != nil {
				t.Fatal(err)
			}
			return out
		},
	}
}

// rsa2048 is made once: it takes long, and every scheme is made often.
var rsa2048 = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newRSA(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa2048()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// schemes returns every type of proof, with every type of key.
func schemes(t testing.TB) []scheme {
	t.Helper()
	return []scheme{
		tokenScheme(t),
		keyScheme(t),
		svidScheme(t, "svid-p256", newP256(t), newP256(t)),
		svidScheme(t, "svid-ed25519", newEd25519(t), newEd25519(t)),
		x509Scheme(t, "x509-p256", newP256(t), newP256(t)),
		x509Scheme(t, "x509-p384", p384(t), p384(t)),
		x509Scheme(t, "x509-ed25519", newEd25519(t), newEd25519(t)),
		x509Scheme(t, "x509-rsa", newRSA(t), newRSA(t)),
	}
}

func (s scheme) prove(t testing.TB, tr Transcript) Evidence {
	t.Helper()
	e, err := s.prover.Prove(t.Context(), tr)
	if err != nil {
		t.Fatalf("%s: Prove: %v", s.name, err)
	}
	return e
}

// strangers are verifiers of every type that know nobody.
func strangers() []Verifier {
	return []Verifier{
		NewKeyVerifier(),
		NewTokenVerifier(func(context.Context, string) (ed25519.PublicKey, string, error) { return nil, "", ErrNotFound }),
		NewSVIDVerifier(func(context.Context, identity.Kind, string) (identity.KeyID, []identity.KeyID, error) {
			return identity.KeyID{}, nil, ErrNotFound
		}),
		&x509Verifier{now: time.Now},
	}
}

// verify checks through a registry that knows every type.
func (s scheme) verify(t testing.TB, tr Transcript, e Evidence) (Proven, error) {
	t.Helper()
	verifiers := []Verifier{s.verifier}
	for _, other := range strangers() {
		if other.Type() != s.verifier.Type() {
			verifiers = append(verifiers, other)
		}
	}
	p, err := NewRegistry(verifiers...).Verify(t.Context(), tr, e)
	if err != nil && !reflect.DeepEqual(p, Proven{}) {
		t.Fatalf("%s: refused with %v, and yet proved %+v", s.name, err, p)
	}
	return p, err
}

// changes calls try once for each way of changing one field of *v, which is a
// struct of strings and byte slices, and undoes the change. A field of another
// type fails the test, so that none is forgotten.
func changes[T any](t *testing.T, v *T, try func(field, change string)) {
	t.Helper()
	fields := reflect.TypeFor[T]()
	for i := range fields.NumField() {
		name, value := fields.Field(i).Name, reflect.ValueOf(v).Elem().Field(i)
		old := reflect.ValueOf(value.Interface())
		attempt := func(change string, to any) {
			value.Set(reflect.ValueOf(to).Convert(value.Type()))
			try(name, change)
			value.Set(old)
		}
		var text string
		switch {
		case value.Kind() == reflect.String:
			text = value.String()
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Uint8:
			text = string(value.Bytes())
		default:
			t.Fatalf("field %s is a %s: say here how it is changed", name, value.Type())
		}
		for j := range len(text) {
			flipped := []byte(text)
			flipped[j] ^= 1
			attempt(fmt.Sprintf("byte %d", j), flipped)
		}
		attempt("longer", []byte(text+"x"))
		if text != "" {
			attempt("empty", []byte{})
			attempt("shorter", []byte(text[:len(text)-1]))
			attempt("twice", []byte(text+text))
		}
	}
}

func p384(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func marshalSignature(t testing.TB, r, s int64) []byte {
	t.Helper()
	der, err := asn1.Marshal(ecdsaSignature{big.NewInt(r), big.NewInt(s)})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// subjectPublicKeyInfo is RFC 5280 §4.1.2.7.
type subjectPublicKeyInfo struct {
	Algorithm pkix.AlgorithmIdentifier
	Key       asn1.BitString
}

func marshalSPKI(t testing.TB, info subjectPublicKeyInfo) []byte {
	t.Helper()
	der, err := asn1.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// withNullParameters spells an Ed25519 key with parameters, which RFC 8410 §3
// forbids.
func withNullParameters(t testing.TB, key ed25519.PublicKey) []byte {
	t.Helper()
	return marshalSPKI(t, subjectPublicKeyInfo{
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 3, 101, 112}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: key, BitLength: 8 * len(key)},
	})
}

// withUnusedBits spells an Ed25519 key whose first bit is 0 without that bit.
func withUnusedBits(t testing.TB) []byte {
	t.Helper()
	key := newEd25519(t).Public().(ed25519.PublicKey)
	for key[0] >= 0x80 {
		key = newEd25519(t).Public().(ed25519.PublicKey)
	}
	shifted := new(big.Int).Lsh(new(big.Int).SetBytes(key), 1)
	der := marshalSPKI(t, subjectPublicKeyInfo{
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 3, 101, 112}},
		asn1.BitString{Bytes: shifted.FillBytes(make([]byte, 32)), BitLength: 255},
	})
	if parsed, err := x509.ParsePKIXPublicKey(der); err != nil || !key.Equal(parsed) {
		t.Fatalf("the other spelling is not one any more: %v", err)
	}
	return der
}

// compressed spells a P-256 key with a compressed point (SEC 1 §2.3.3).
func compressed(t testing.TB, key *ecdsa.PublicKey) []byte {
	t.Helper()
	var info subjectPublicKeyInfo
	if _, err := asn1.Unmarshal(spki(t, key), &info); err != nil {
		t.Fatal(err)
	}
	point := info.Key.Bytes
	short := append([]byte{2 + point[64]&1}, point[1:33]...)
	info.Key = asn1.BitString{Bytes: short, BitLength: 8 * len(short)}
	return marshalSPKI(t, info)
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

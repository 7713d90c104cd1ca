package jwtsvid_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/jwtsvid"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "test.example"

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// signer is a config signing key, as the trust bundle lists it.
func signer(t testing.TB) (ed25519.PrivateKey, snapshot.ConfigKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return private, snapshot.ConfigKey{Algorithm: internalsnapshot.AlgorithmTree, Key: public,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
}

func tokenKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, token any, by ed25519.PrivateKey) jwtsvid.Statement {
	t.Helper()
	s, err := jwtsvid.SignKey(cluster, token, by)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A key counts while the trust bundle lists the key that signed for it, and for nothing else.
func TestVerify(t *testing.T) {
	t.Parallel()
	private, listed := signer(t)
	stranger, _ := signer(t)
	token := tokenKey(t, elliptic.P256())
	good := sign(t, token.Public(), private)
	for _, tc := range []struct {
		name    string
		edit    func(s *jwtsvid.Statement, k *snapshot.ConfigKey)
		cluster string
		at      time.Time
		ok      bool
	}{
		{name: "good", ok: true},
		{name: "at its first moment", at: listed.NotBefore, ok: true},
		{name: "before it", at: listed.NotBefore.Add(-1)},
		{name: "at its end", at: listed.NotAfter},
		{name: "revoked", edit: func(_ *jwtsvid.Statement, k *snapshot.ConfigKey) { k.Revoked = true }},
		{name: "another algorithm", edit: func(_ *jwtsvid.Statement, k *snapshot.ConfigKey) { k.Algorithm = "x" }},
		{name: "a short signer", edit: func(_ *jwtsvid.Statement, k *snapshot.ConfigKey) { k.Key = k.Key[:31] }},
		{name: "of another cluster", cluster: "other.example"},
		{name: "of a stranger", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) { *s = sign(t, token.Public(), stranger) }},
		{name: "of a stranger under a listed name", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Signature = sign(t, token.Public(), stranger).Signature
		}},
		{name: "another key under its signature", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Key, _ = x509.MarshalPKIXPublicKey(tokenKey(t, elliptic.P256()).Public())
		}},
		{name: "no signature", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) { s.Signature = nil }},
		{name: "a long signature", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) { s.Signature = append(s.Signature, 0) }},
		{name: "no signer", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) { s.Signer = "" }},
		{name: "another curve", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			*s = sign(t, tokenKey(t, elliptic.P384()).Public(), private)
		}},
		{name: "another kind of key", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			*s = sign(t, private.Public(), private)
		}},
		{name: "no key", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Key, s.Signature = nil, ed25519.Sign(private, internalsnapshot.PAE(internalsnapshot.TypeTokenKey, cluster, nil))
		}},
		{name: "a long key", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Key = make([]byte, 257)
			s.Signature = ed25519.Sign(private, internalsnapshot.PAE(internalsnapshot.TypeTokenKey, cluster, s.Key))
		}},
		{name: "more behind the key", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Key = append(bytes.Clone(s.Key), 0)
			s.Signature = ed25519.Sign(private, internalsnapshot.PAE(internalsnapshot.TypeTokenKey, cluster, s.Key))
		}},
		{name: "a signature over something else", edit: func(s *jwtsvid.Statement, _ *snapshot.ConfigKey) {
			s.Signature = ed25519.Sign(private, internalsnapshot.PAE("x", cluster, s.Key))
		}},
	} {
		s, k, of, at := good, listed, cluster, now
		s.Signature = bytes.Clone(s.Signature)
		if tc.edit != nil {
			tc.edit(&s, &k)
		}
		if tc.cluster != "" {
			of = tc.cluster
		}
		if !tc.at.IsZero() {
			at = tc.at
		}
		keys, refused := jwtsvid.VerifyKeys(of, []jwtsvid.Statement{s}, []snapshot.ConfigKey{k}, at)
		if len(keys) == 1 != tc.ok || len(keys)+len(refused) != 1 {
			t.Errorf("%s: %v, %v", tc.name, keys, refused)
		}
		if tc.ok && (!keys[0].Public.Equal(token.Public()) || keys[0].ID != jwtsvid.IDOf(s.Key) ||
			!keys[0].NotAfter.Equal(listed.NotAfter)) {
			t.Errorf("%s: %+v", tc.name, keys[0])
		}
	}
	// One that is listed twice counts if it counts once, and what is refused hides nothing else.
	revoked := listed
	revoked.Revoked = true
	keys, refused := jwtsvid.VerifyKeys(cluster, []jwtsvid.Statement{{}, good}, []snapshot.ConfigKey{revoked, listed}, now)
	if len(keys) != 1 || len(refused) != 1 {
		t.Errorf("%v, %v", keys, refused)
	}
	if keys, _ := jwtsvid.VerifyKeys(cluster, make([]jwtsvid.Statement, jwtsvid.MaxStatements), nil, now); len(keys) != 0 {
		t.Error(keys)
	}
	many := append(make([]jwtsvid.Statement, jwtsvid.MaxStatements), good)
	if keys, refused := jwtsvid.VerifyKeys(cluster, many, []snapshot.ConfigKey{listed}, now); len(keys) != 0 || len(refused) != 1 {
		t.Errorf("too many: %v, %v", keys, refused)
	}
	if _, err := jwtsvid.SignKey(cluster, token.Public(), token); err == nil {
		t.Error("signed by a key that is no config signing key")
	}
}

// A key counts only if it is one that a listed key signed for, whatever is sent.
func FuzzVerify(f *testing.F) {
	private, listed := signer(f)
	good := sign(f, tokenKey(f, elliptic.P256()).Public(), private)
	raw, err := json.Marshal([]jwtsvid.Statement{good})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`[{}]`))
	f.Add([]byte(`[{"key":"AA==","signer":"x","signature":"AA=="}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var statements []jwtsvid.Statement
		if json.Unmarshal(raw, &statements) != nil {
			return
		}
		keys, refused := jwtsvid.VerifyKeys(cluster, statements, []snapshot.ConfigKey{listed}, now)
		if len(keys)+len(refused) != len(statements) && len(statements) <= jwtsvid.MaxStatements {
			t.Fatalf("%d statements: %d keys, %d refused", len(statements), len(keys), len(refused))
		}
		for _, k := range keys {
			if k.ID != jwtsvid.IDOf(good.Key) {
				t.Fatalf("key %s, which nobody signed for", k.ID)
			}
		}
	})
}

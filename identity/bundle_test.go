package identity_test

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func keyID(n byte) identity.KeyID { return identity.KeyID{31: n} }

// keyIDs returns n distinct key ids.
func keyIDs(n int) []identity.KeyID {
	ids := make([]identity.KeyID, n)
	for i := range ids {
		ids[i] = identity.KeyID{0: 1, 29: byte(i >> 16), 30: byte(i >> 8), 31: byte(i)}
	}
	return ids
}

func TestNewBundleRefuses(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	foreign := pkitest.NewAuthority(t, "dev.example").ID(t, identity.Shard, "s")
	leafOf, _ := a.Issue(t, a.ID(t, identity.Shard, "s"))
	for name, edit := range map[string]func(*identity.BundleConfig){
		"no cluster":          func(c *identity.BundleConfig) { c.Cluster = "" },
		"no root":             func(c *identity.BundleConfig) { c.Roots = nil },
		"nil root":            func(c *identity.BundleConfig) { c.Roots = []*x509.Certificate{nil} },
		"mesh CA as root":     func(c *identity.BundleConfig) { c.Roots = append(c.Roots, a.MeshCA().Cert) },
		"leaf as root":        func(c *identity.BundleConfig) { c.Roots = append(c.Roots, leafOf[0]) },
		"too many roots":      func(c *identity.BundleConfig) { c.Roots = slices.Repeat(c.Roots, internalidentity.MaxRoots+1) },
		"blank mesh key":      func(c *identity.BundleConfig) { c.MeshKeys = append(c.MeshKeys, identity.KeyID{}) },
		"too many mesh keys":  func(c *identity.BundleConfig) { c.MeshKeys = keyIDs(internalidentity.MaxMeshKeys + 1) },
		"blank banned id":     func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{{}} },
		"foreign banned id":   func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{foreign} },
		"blank banned key":    func(c *identity.BundleConfig) { c.BannedKeys = []identity.KeyID{{}} },
		"too many bannedkeys": func(c *identity.BundleConfig) { c.BannedKeys = keyIDs(internalidentity.MaxBans + 1) },
	} {
		cfg := a.BundleConfig()
		edit(&cfg)
		if b, err := identity.NewBundle(cfg); err == nil || b != nil {
			t.Errorf("%s: accepted", name)
		}
	}
	cfg := a.BundleConfig()
	cfg.MeshKeys = keyIDs(internalidentity.MaxMeshKeys)
	if _, err := identity.NewBundle(cfg); err != nil {
		t.Errorf("the most mesh keys that are allowed: %v", err)
	}
}

func TestBundleKeepsNothingOfItsConfig(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	id := a.ID(t, identity.Shard, "s")
	chain, _ := a.Issue(t, id)
	cfg := a.BundleConfig()
	cfg.BannedIDs, cfg.BannedKeys = []identity.ID{a.ID(t, identity.Shard, "other")}, []identity.KeyID{keyID(1)}
	b, err := identity.NewBundle(cfg)
	if err != nil {
		t.Fatal(err)
	}
	was := b.Fingerprint()
	// Neither the slices given nor those returned are the bundle's own.
	cfg.MeshKeys[0], cfg.BannedIDs[0], cfg.Roots[0] = keyID(9), id, nil
	b.MeshKeys()[0], b.BannedIDs()[0], b.BannedKeys()[0], b.Roots()[0] = keyID(9), id, keyID(9), nil
	if _, err := b.Verify(chain, time.Now()); err != nil {
		t.Error(err)
	}
	if b.Fingerprint() != was || b.Banned(id, keyID(9)) || b.Roots()[0] == nil || b.MeshKeys()[0] != a.MeshCA().KeyID() ||
		b.BannedIDs()[0] == id || b.BannedKeys()[0] != keyID(1) {
		t.Error("the bundle changed")
	}
}

func TestBanned(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	bad, good := a.ID(t, identity.Shard, "bad"), a.ID(t, identity.Shard, "good")
	b := a.Bundle(func(c *identity.BundleConfig) {
		c.BannedIDs, c.BannedKeys = []identity.ID{bad}, []identity.KeyID{keyID(1)}
	})
	for _, tc := range []struct {
		id   identity.ID
		key  identity.KeyID
		want bool
	}{
		{bad, keyID(2), true}, {good, keyID(1), true}, {bad, keyID(1), true}, {good, keyID(2), false},
		{identity.ID{}, identity.KeyID{}, false}, {identity.ID{}, keyID(1), true},
	} {
		if got := b.Banned(tc.id, tc.key); got != tc.want {
			t.Errorf("Banned(%v, %v) = %v, want %v", tc.id, tc.key, got, tc.want)
		}
	}
}

// The fingerprint is that of what a bundle says: not of the order, and of everything.
func TestBundleFingerprint(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	other := pkitest.NewAuthority(t, "prod.example")
	base := func() identity.BundleConfig {
		cfg := a.BundleConfig()
		cfg.Roots = append(cfg.Roots, other.Root().Cert)
		cfg.MeshKeys = append(cfg.MeshKeys, keyID(1), keyID(2))
		cfg.BannedIDs = []identity.ID{a.ID(t, identity.Shard, "a"), a.ID(t, identity.Shard, "b")}
		cfg.BannedKeys = []identity.KeyID{keyID(3), keyID(4)}
		return cfg
	}
	print := func(edit func(*identity.BundleConfig)) [32]byte {
		cfg := base()
		edit(&cfg)
		b, err := identity.NewBundle(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return b.Fingerprint()
	}
	want := print(func(*identity.BundleConfig) {})
	for name, edit := range map[string]func(*identity.BundleConfig){
		"reversed": func(c *identity.BundleConfig) {
			slices.Reverse(c.Roots)
			slices.Reverse(c.MeshKeys)
			slices.Reverse(c.BannedIDs)
			slices.Reverse(c.BannedKeys)
		},
		"repeated": func(c *identity.BundleConfig) {
			c.Roots, c.MeshKeys = slices.Repeat(c.Roots, 2), slices.Repeat(c.MeshKeys, 2)
			c.BannedIDs, c.BannedKeys = slices.Repeat(c.BannedIDs, 2), slices.Repeat(c.BannedKeys, 2)
		},
	} {
		if print(edit) != want {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	seen := map[[32]byte]string{want: "unchanged"}
	for name, edit := range map[string]func(*identity.BundleConfig){
		"cluster":        func(c *identity.BundleConfig) { c.Cluster, c.BannedIDs = "dev.example", nil },
		"another root":   func(c *identity.BundleConfig) { c.Roots[1] = pkitest.NewAuthority(t, "prod.example").Root().Cert },
		"another ban":    func(c *identity.BundleConfig) { c.BannedIDs[1] = a.ID(t, identity.Shard, "c") },
		"another key":    func(c *identity.BundleConfig) { c.BannedKeys[1] = keyID(5) },
		"a root less":    func(c *identity.BundleConfig) { c.Roots = c.Roots[:1] },
		"a mesh key":     func(c *identity.BundleConfig) { c.MeshKeys[0] = keyID(7) },
		"no mesh keys":   func(c *identity.BundleConfig) { c.MeshKeys = nil },
		"a banned id":    func(c *identity.BundleConfig) { c.BannedIDs = c.BannedIDs[:1] },
		"no banned ids":  func(c *identity.BundleConfig) { c.BannedIDs = nil },
		"no banned keys": func(c *identity.BundleConfig) { c.BannedKeys = nil },
		// Without bans of ids in between, only the lists' lengths tell these two apart.
		"a mesh key more": func(c *identity.BundleConfig) {
			c.MeshKeys, c.BannedIDs, c.BannedKeys = keyIDs(3)[:2], nil, keyIDs(3)[2:]
		},
		"a banned key more": func(c *identity.BundleConfig) {
			c.MeshKeys, c.BannedIDs, c.BannedKeys = keyIDs(3)[:1], nil, keyIDs(3)[1:]
		},
		"a mesh key is banned instead": func(c *identity.BundleConfig) {
			c.BannedKeys, c.MeshKeys = append(c.BannedKeys, keyID(2)), c.MeshKeys[:2]
		},
	} {
		got := print(edit)
		if was, ok := seen[got]; ok {
			t.Errorf("%s: the fingerprint of %s", name, was)
		}
		seen[got] = name
	}
}

func TestKeyID(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	chain, key := a.Issue(t, a.ID(t, identity.Shard, "s"))
	of, err := identity.KeyOfPublic(key.Public())
	if err != nil || of != identity.KeyOf(chain[0]) || of.IsZero() {
		t.Fatalf("KeyOfPublic = %v, %v, KeyOf = %v", of, err, identity.KeyOf(chain[0]))
	}
	if back, err := identity.ParseKeyID(of.String()); err != nil || back != of || len(of.String()) != 64 {
		t.Errorf("ParseKeyID(%v) = %v, %v", of, back, err)
	}
	var read identity.KeyID
	if text, err := of.MarshalText(); err != nil || read.UnmarshalText(text) != nil || read != of {
		t.Errorf("as text %q, %v, read as %v", text, err, read)
	}
	if !identity.KeyOf(nil).IsZero() || !identity.KeyOf(&x509.Certificate{PublicKey: key.Public()}).IsZero() {
		t.Error("a certificate that was not parsed has a key id")
	}
	for _, bad := range []any{nil, "key", struct{}{}} {
		if _, err := identity.KeyOfPublic(bad); err == nil {
			t.Errorf("KeyOfPublic(%T): no error", bad)
		}
		if _, err := internalidentity.SubjectKeyID(bad); err == nil {
			t.Errorf("SubjectKeyID(%T): no error", bad)
		}
	}
	hexed := keyID(0xab).String()
	for _, bad := range []string{"", "ab", hexed[2:], hexed + "00", hexed[:62] + "AB", hexed[:62] + "zz", " " + hexed[1:]} {
		k := keyID(5)
		if err := k.UnmarshalText([]byte(bad)); err == nil || k != keyID(5) {
			t.Errorf("UnmarshalText(%q) = %v, %v", bad, k, err)
		}
	}
	if keyID(1).Compare(keyID(2)) >= 0 || keyID(1).Compare(keyID(1)) != 0 {
		t.Error("Compare does not order")
	}
}

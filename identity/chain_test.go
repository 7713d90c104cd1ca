package identity_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func TestVerifyAcceptsWhatAnAuthorityMints(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	first := a.MeshCA()
	a.AddMeshCA(t)
	b := a.Bundle()
	for _, kind := range identity.Kinds() {
		id := a.ID(t, kind, "eu-1")
		for name, opts := range map[string][]pkitest.IssueOption{
			"P-256":       nil,
			"Ed25519":     {pkitest.WithKey(pkitest.NewEd25519Key(t))},
			"DNS names":   {pkitest.WithDNSNames("a.example", "*.b.example")},
			"old mesh CA": {pkitest.WithMeshCA(first)},
		} {
			chain, _ := a.Issue(t, id, opts...)
			for _, chain := range [][]*x509.Certificate{chain, append(chain, a.Root().Cert)} {
				v, err := b.Verify(chain, time.Now())
				if err != nil {
					t.Fatalf("%s, %s: %v", kind, name, err)
				}
				if v.ID != id || v.IDErr != nil || v.Leaf != chain[0] || v.Key != identity.KeyOf(chain[0]) {
					t.Fatalf("%s, %s: got %+v", kind, name, v)
				}
				p := v.Peer("192.0.2.1:1")
				if !p.Identified() || p.ID != id || p.Addr != "192.0.2.1:1" {
					t.Fatalf("%s, %s: peer %+v", kind, name, p)
				}
			}
		}
	}
}

// A chain can be verified and identify nobody: a server must be able to tell that
// caller why each call is refused.
func TestVerifiedWithoutIdentity(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	b := a.Bundle()
	foreign := pkitest.NewAuthority(t, "dev.example").ID(t, identity.Coordinator, "c1")
	for _, tc := range []struct {
		name string
		uris []string
		want string
	}{
		{"none", nil, "absent"},
		{"two", []string{"spiffe://prod.example/shard/a", "spiffe://prod.example/shard/b"}, "several"},
		{"the same twice", []string{"spiffe://prod.example/shard/a", "spiffe://prod.example/shard/a"}, "several"},
		{"one of ours and a web address", []string{"spiffe://prod.example/shard/a", "https://prod.example"}, "several"},
		{"a web address", []string{"https://prod.example/shard/a"}, "malformed"},
		{"no kind", []string{"spiffe://prod.example/king/a"}, "malformed"},
		{"no path", []string{"spiffe://prod.example"}, "malformed"},
		{"another cluster", []string{foreign.String()}, "foreign"},
		// Parts that parsing the URI would hide.
		{"empty fragment", []string{"spiffe://prod.example/shard/a#"}, "malformed"},
		{"empty query", []string{"spiffe://prod.example/shard/a?"}, "malformed"},
		{"scheme in capitals", []string{"SPIFFE://prod.example/shard/a"}, "malformed"},
		{"escaped letter", []string{"spiffe://prod.example/shard/%61"}, "malformed"},
		{"trailing slash", []string{"spiffe://prod.example/shard/a/"}, "malformed"},
		{"dot segment", []string{"spiffe://prod.example/shard/../admin/a"}, "malformed"},
		{"user", []string{"spiffe://root@prod.example/shard/a"}, "malformed"},
		{"port", []string{"spiffe://prod.example:443/shard/a"}, "malformed"},
	} {
		chain, _ := a.IssueRaw(t, func(c *x509.Certificate) {
			if tc.uris != nil {
				c.ExtraExtensions = append(c.ExtraExtensions, pkitest.AltNames(tc.uris...))
			}
		})
		v, err := b.Verify(chain, time.Now())
		if err != nil {
			t.Errorf("%s: refused: %v", tc.name, err)
			continue
		}
		san, ok := errors.AsType[*identity.SANError](v.IDErr)
		if !ok || san.Reason != tc.want || san.Count != len(tc.uris) || !errors.Is(v.IDErr, identity.ErrNoIdentity) || !v.ID.IsZero() {
			t.Errorf("%s: got %v, %+v, want %s", tc.name, v.ID, v.IDErr, tc.want)
		}
		if p := v.Peer(""); p.Identified() || p.Err == nil {
			t.Errorf("%s: peer is %v", tc.name, p)
		}
		// A foreign coordinator is no coordinator of ours: the mesh CA must be listed.
		none := a.Bundle(func(cfg *identity.BundleConfig) { cfg.MeshKeys = nil })
		_, err = none.Verify(chain, time.Now())
		refused, ok := errors.AsType[*identity.ChainError](err)
		if !ok || !errors.Is(err, identity.ErrUntrusted) {
			t.Errorf("%s: without mesh keys: %v, want ErrUntrusted", tc.name, err)
			continue
		}
		presented, cluster := "", ""
		if tc.want == "foreign" {
			presented, cluster = "dev.example", "prod.example"
		}
		if refused.Presented != presented || refused.Cluster != cluster {
			t.Errorf("%s: the chain is told to be of %q and not %q, want %q and %q", tc.name, refused.Presented, refused.Cluster, presented, cluster)
		}
	}
}

// Who meets a chain of another cluster learns which one it names, under whatever root; of
// one of its own cluster, and of one that names none, nothing.
func TestPresentedCluster(t *testing.T) {
	b := pkitest.NewAuthority(t, "prod.example").Bundle()
	for cluster, want := range map[string]string{"dev.example": "dev.example", "prod.example": ""} {
		other := pkitest.NewAuthority(t, cluster)
		chain, _ := other.Issue(t, other.ID(t, identity.Coordinator, "c1"))
		_, err := b.Verify(chain, time.Now())
		if e, ok := errors.AsType[*identity.ChainError](err); !ok || e.Presented != want || e.Rule != "root-known" {
			t.Errorf("%s: %+v, want it told as %q", cluster, e, want)
		}
	}
	for _, chain := range [][]*x509.Certificate{nil, {nil}, {{}}} {
		_, err := b.Verify(chain, time.Now())
		if e, ok := errors.AsType[*identity.ChainError](err); !ok || e.Presented != "" {
			t.Errorf("%v: %v", chain, err)
		}
	}
}

// Every rule about a whole chain refuses a chain that is good otherwise.
func TestEveryChainRuleRefuses(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	a := w.authority
	leafID, leafKey := a.ID(t, identity.Shard, "eu-1"), identity.KeyOf(w.leaf)
	ban := func(keys ...identity.KeyID) func(*identity.BundleConfig) {
		return func(cfg *identity.BundleConfig) { cfg.BannedKeys = keys }
	}
	stranger := pkitest.NewAuthority(t, a.Cluster())
	strange, _ := stranger.Issue(t, leafID)
	second := a.AddMeshCA(t)
	resign := func(level string, edit func(f *forged)) *x509.Certificate {
		f := w.apart(t, level)
		edit(f)
		c, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	huge := resign(leaf, func(f *forged) { f.Subject = commonName(t, strings.Repeat("a", internalidentity.MaxCertificateBytes)) })

	coordinator, _ := a.Issue(t, a.ID(t, identity.Coordinator, "c1"))
	admin, _ := a.Issue(t, a.ID(t, identity.Admin, "alice"))
	reader, _ := a.Issue(t, a.ID(t, identity.Readonly, "bob"))
	vouched, _ := a.Issue(t, a.ID(t, identity.Workload, "billing/api"))
	named := func(kind identity.Kind, name string) []*x509.Certificate {
		chain, _ := a.Issue(t, a.ID(t, kind, "billing"), pkitest.WithTemplate(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: name}
		}))
		return chain
	}
	key := (identity.KeyID{1}).String()
	// Another root took the place of ours.
	succeeded := func(cfg *identity.BundleConfig) {
		cfg.Roots, cfg.RetiredRoots = []*x509.Certificate{stranger.Root().Cert}, cfg.Roots
	}

	cases := []struct {
		rule, name string
		reason     error
		chain      []*x509.Certificate
		edit       func(*identity.BundleConfig)
	}{
		{"chain-length", "nothing", identity.ErrProfile, nil, nil},
		{"chain-length", "leaf alone", identity.ErrProfile, w.chain(false)[:1], nil},
		{"chain-length", "a certificate too many", identity.ErrProfile, append(w.chain(true), w.root.Cert), nil},
		{"chain-length", "a thousand too many", identity.ErrProfile, append(w.chain(true), make([]*x509.Certificate, 1000)...), nil},
		{"parsed", "nil leaf", identity.ErrProfile, []*x509.Certificate{nil, w.mesh.Cert}, nil},
		{"parsed", "nil mesh CA", identity.ErrProfile, []*x509.Certificate{w.leaf, nil}, nil},
		{"parsed", "template", identity.ErrProfile, []*x509.Certificate{{}, w.mesh.Cert}, nil},
		{"parsed", "huge leaf", identity.ErrProfile, []*x509.Certificate{huge, w.mesh.Cert}, nil},
		{"root-is-ours", "root of another authority of that name", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.mesh.Cert, stranger.Root().Cert}, nil},
		{"root-is-ours", "mesh CA twice", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.mesh.Cert, w.mesh.Cert}, nil},
		{"root-is-ours", "another root of the bundle", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.mesh.Cert, stranger.Root().Cert},
			func(cfg *identity.BundleConfig) { cfg.Roots = append(cfg.Roots, stranger.Root().Cert) }},
		{"root-known", "mesh CA and root swapped", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.root.Cert, w.mesh.Cert}, nil},
		{"root-known", "mesh CA of another name's issuer", identity.ErrUntrusted,
			[]*x509.Certificate{w.leaf, resign(mesh, func(f *forged) { f.Issuer = commonName(t, "other") })}, nil},
		{"root-known", "another authority of that name", identity.ErrUntrusted, strange, nil},
		{"root-known", "leaf and mesh CA swapped", identity.ErrUntrusted, []*x509.Certificate{w.mesh.Cert, w.leaf}, nil},
		{"root-known", "leaf twice", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.leaf}, nil},
		{"root-known", "leaf and root", identity.ErrUntrusted, []*x509.Certificate{w.leaf, w.root.Cert}, nil},
		{"issuer-name", "leaf of another name's issuer", identity.ErrUntrusted,
			[]*x509.Certificate{resign(leaf, func(f *forged) { f.Issuer = commonName(t, "other") }), w.mesh.Cert}, nil},
		{"issuer-key-id", "leaf of another mesh CA of that name", identity.ErrUntrusted, []*x509.Certificate{w.leaf, second.Cert}, nil},
		{"mesh-ca-signature", "mesh CA signed by another key", identity.ErrUntrusted,
			[]*x509.Certificate{w.leaf, resign(mesh, func(f *forged) { f.signWith(k.other, ecdsaSHA256, crypto.SHA256) })}, nil},
		{"leaf-signature", "leaf signed by another key", identity.ErrUntrusted,
			[]*x509.Certificate{resign(leaf, func(f *forged) { f.signWith(k.other, ecdsaSHA256, crypto.SHA256) }), w.mesh.Cert}, nil},
		{"leaf-signature", "leaf with a bit of its signature flipped", identity.ErrUntrusted,
			[]*x509.Certificate{resign(leaf, func(f *forged) { f.broken = true }), w.mesh.Cert}, nil},
		{"leaf-signature", "leaf signed by the root", identity.ErrUntrusted,
			[]*x509.Certificate{resign(leaf, func(f *forged) { f.signer = w.root.Key }), w.mesh.Cert}, nil},
		{"banned-key", "key of the leaf", identity.ErrBanned, w.chain(false), ban(leafKey)},
		{"banned-key", "key of the mesh CA", identity.ErrBanned, w.chain(true), ban(w.mesh.KeyID())},
		{"banned-key", "key of the root", identity.ErrBanned, w.chain(false), ban(w.root.KeyID())},
		{"banned-id", "identity", identity.ErrBanned, w.chain(false), func(cfg *identity.BundleConfig) { cfg.BannedIDs = []identity.ID{leafID} }},
		{"root-retired", "coordinator under a retired root, its mesh CA listed", identity.ErrUntrusted, coordinator, succeeded},
		{"root-retired", "admin under a retired root, its mesh CA listed", identity.ErrUntrusted, admin, succeeded},
		{"root-retired", "readonly under a retired root, its mesh CA listed", identity.ErrUntrusted, reader, succeeded},
		{"root-retired", "coordinator under a retired root, with the root", identity.ErrUntrusted, append(slices.Clone(coordinator), w.root.Cert), succeeded},
		{"mesh-ca-accepted", "member under a retired root, by a mesh CA that is not listed", identity.ErrUntrusted, w.chain(false), func(cfg *identity.BundleConfig) {
			succeeded(cfg)
			cfg.MeshKeys = []identity.KeyID{stranger.MeshCA().KeyID()}
		}},
		{"banned-key", "key of a retired root", identity.ErrBanned, w.chain(false), func(cfg *identity.BundleConfig) {
			succeeded(cfg)
			cfg.BannedKeys = []identity.KeyID{w.root.KeyID()}
		}},
		{"voucher", "workload that nobody vouches for", identity.ErrProfile, named(identity.Workload, ""), func(*identity.BundleConfig) {}},
		{"voucher", "workload with another name", identity.ErrProfile, named(identity.Workload, "leaf"), func(*identity.BundleConfig) {}},
		{"voucher", "workload without a key", identity.ErrProfile, named(identity.Workload, "data/n1"), func(*identity.BundleConfig) {}},
		{"voucher", "workload with a key that is none", identity.ErrProfile, named(identity.Workload, "data/n1 "+key[1:]), func(*identity.BundleConfig) {}},
		{"voucher", "workload of a member of no kind", identity.ErrProfile, named(identity.Workload, "king/n1 "+key), func(*identity.BundleConfig) {}},
		{"voucher", "workload of a member without a name", identity.ErrProfile, named(identity.Workload, "data/ "+key), func(*identity.BundleConfig) {}},
		{"voucher", "workload that another one vouches for", identity.ErrProfile, named(identity.Workload, "workload/w "+key), func(*identity.BundleConfig) {}},
		{"voucher", "workload with two keys", identity.ErrProfile, named(identity.Workload, "data/n1 "+key+" "+key), func(*identity.BundleConfig) {}},
		{"voucher", "workload with a second blank", identity.ErrProfile, named(identity.Workload, "data/n1  "+key), func(*identity.BundleConfig) {}},
		{"voucher-banned", "member that vouches for a workload", identity.ErrBanned, vouched, func(cfg *identity.BundleConfig) {
			cfg.BannedIDs = []identity.ID{a.ID(t, identity.Data, "voucher")}
		}},
		{"voucher-banned", "key of the member that vouches for a workload", identity.ErrBanned, vouched, ban(identity.KeyID{1})},
		{"banned-id", "workload", identity.ErrBanned, vouched, func(cfg *identity.BundleConfig) {
			cfg.BannedIDs = []identity.ID{a.ID(t, identity.Workload, "billing/api")}
		}},
		{"mesh-ca-accepted", "no mesh key", identity.ErrUntrusted, w.chain(false), func(cfg *identity.BundleConfig) { cfg.MeshKeys = nil }},
		{"mesh-ca-accepted", "another mesh key", identity.ErrUntrusted, w.chain(true), func(cfg *identity.BundleConfig) { cfg.MeshKeys = []identity.KeyID{second.KeyID()} }},
		{"mesh-ca-accepted", "the root's key as a mesh key", identity.ErrUntrusted, w.chain(true), func(cfg *identity.BundleConfig) { cfg.MeshKeys = []identity.KeyID{w.root.KeyID()} }},
	}
	refused := map[string]bool{}
	for _, tc := range cases {
		b := w.bundle
		if tc.edit != nil {
			b = a.Bundle(tc.edit)
		}
		v, err := b.Verify(tc.chain, time.Now())
		refusal, ok := errors.AsType[*identity.ChainError](err)
		if !ok || refusal.Rule != tc.rule || !errors.Is(err, tc.reason) || v != (identity.Verified{}) {
			t.Errorf("%s: got %+v, %v, want rule %s, %v", tc.name, v, err, tc.rule, tc.reason)
			continue
		}
		refused[tc.rule] = true
	}
	for _, r := range identity.ChainRules() {
		if r.Section == "" || !refused[r.Name] {
			t.Errorf("rule %+v has no section, or no chain that it refuses", r)
		}
	}
}

func TestCoordinatorNeedsOnlyARoot(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	b := a.Bundle(func(cfg *identity.BundleConfig) { cfg.MeshKeys = nil })
	for _, kind := range identity.Kinds() {
		chain, _ := a.Issue(t, a.ID(t, kind, "x"))
		_, err := b.Verify(chain, time.Now())
		if accepted := err == nil; accepted != (kind == identity.Coordinator) {
			t.Errorf("%s without a listed mesh key: %v", kind, err)
		}
	}
}

// Both bounds are part of the validity, and a refusal keeps them with the clock's time.
func TestValidityIsCheckedAtEveryLevel(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		c     *x509.Certificate
		level string
	}{{w.leaf, leaf}, {w.mesh.Cert, mesh}, {w.root.Cert, root}} {
		for _, at := range []struct {
			now  time.Time
			rule string // of a check of this certificate alone
		}{
			{tc.c.NotBefore.Add(-time.Nanosecond), "not-yet-valid"},
			{tc.c.NotBefore, ""},
			{tc.c.NotAfter, ""},
			{tc.c.NotAfter.Add(time.Nanosecond), "expired"},
		} {
			refusal := checks[tc.level](tc.c, at.now)
			switch {
			case at.rule == "" && refusal != nil:
				t.Errorf("%s at %v: %v", tc.level, at.now, refusal)
			case at.rule == "":
			case refusal == nil || refusal.Rule != at.rule || refusal.Reason != identity.ErrExpired:
				t.Errorf("%s at %v: %v, want rule %s", tc.level, at.now, refusal, at.rule)
			case !refusal.Now.Equal(at.now) || !refusal.NotBefore.Equal(tc.c.NotBefore) || !refusal.NotAfter.Equal(tc.c.NotAfter):
				t.Errorf("%s at %v: times are %v to %v at %v", tc.level, at.now, refusal.NotBefore, refusal.NotAfter, refusal.Now)
			}
		}
	}
	// The leaf goes first, then the mesh CA, then the root.
	for _, at := range []struct {
		now  time.Time
		want string
	}{{w.leaf.NotAfter.Add(1), leaf}, {w.leaf.NotBefore.Add(-1), leaf}} {
		_, err := w.bundle.Verify(w.chain(true), at.now)
		if refusal, ok := errors.AsType[*identity.ChainError](err); !ok || refusal.Certificate != at.want || refusal.Reason != identity.ErrExpired {
			t.Errorf("chain at %v: %v, want the %s out of date", at.now, err, at.want)
		}
	}
	for _, level := range []string{mesh, root} {
		f := w.apart(t, level)
		dated(-2*time.Hour, -time.Hour)(t, f, nil)
		c, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatal(err)
		}
		chain, b := []*x509.Certificate{w.leaf, c}, w.bundle
		if level == root {
			chain = w.chain(true)
			chain[2] = c
			b = w.authority.Bundle(func(cfg *identity.BundleConfig) { cfg.Roots = []*x509.Certificate{c} })
		}
		_, err = b.Verify(chain, time.Now())
		if refusal, ok := errors.AsType[*identity.ChainError](err); !ok || refusal.Certificate != level || refusal.Reason != identity.ErrExpired {
			t.Errorf("expired %s: %v", level, err)
		}
		if level == root {
			// The same root issued again, beside the old one, carries its chains on.
			b = w.authority.Bundle(func(cfg *identity.BundleConfig) { cfg.Roots = append(cfg.Roots, c) })
			for _, chain := range [][]*x509.Certificate{w.chain(false), chain} {
				if _, err := b.Verify(chain, time.Now()); err != nil {
					t.Errorf("beside an expired root of the same key: %v", err)
				}
			}
		}
	}
}

// An expired certificate that is banned too shows as banned: renewing it cannot help.
func TestBanOutweighsExpiry(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	id := a.ID(t, identity.Shard, "eu-1")
	chain, _ := a.Issue(t, id, pkitest.Expired())
	b := a.Bundle(func(cfg *identity.BundleConfig) { cfg.BannedIDs = []identity.ID{id} })
	if _, err := b.Verify(chain, time.Now()); !errors.Is(err, identity.ErrBanned) {
		t.Fatalf("got %v, want ErrBanned", err)
	}
	if _, err := a.Bundle().Verify(chain, time.Now()); !errors.Is(err, identity.ErrExpired) {
		t.Fatalf("got %v, want ErrExpired", err)
	}
}

func TestNoBundleTrustsNobody(t *testing.T) {
	w := newWorld(t)
	for _, b := range []*identity.Bundle{nil, {}} {
		if _, err := b.Verify(w.chain(false), time.Now()); !errors.Is(err, identity.ErrUntrusted) {
			t.Errorf("%v: %v, want ErrUntrusted", b, err)
		}
		if b.Banned(identity.ID{}, identity.KeyID{}) || b.Cluster() != "" || b.Roots() != nil || b.MeshKeys() != nil ||
			b.BannedIDs() != nil || b.BannedKeys() != nil || b.Fingerprint() != [32]byte{} {
			t.Errorf("%v says something", b)
		}
	}
}

// generatedChains is how many invalid chains TestGeneratedChains makes.
const generatedChains = 2500

// TestGeneratedChains makes chains with a flaw at one or two levels, or with
// certificates in the wrong place, or both. Certificates below a new key are signed with it,
// so that the flaws are all that is wrong. None may be accepted.
func TestGeneratedChains(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	levels := []string{leaf, mesh, root}
	of := map[string][]flaw{}
	for _, flaw := range flaws {
		for _, level := range levels {
			if strings.Contains(flaw.levels, level) {
				of[level] = append(of[level], flaw)
			}
		}
	}
	stranger := pkitest.NewAuthority(t, "prod.example")
	strangers, _ := stranger.Issue(t, w.authority.ID(t, identity.Coordinator, "c1"))
	strangers = append(strangers, stranger.Root().Cert)
	random := rand.New(rand.NewPCG(1, 2))
	byRule := map[string]int{}
	// One bundle remembers the good mesh CA all along, the other one nothing.
	warmed, now := w.authority.Bundle(), w.now
	warm(t, warmed, w.chain(true), now)

	// build flaws the levels that flawed says, from the root down. It is nil if the
	// parser refuses a certificate.
	build := func(flawed map[int]bool) (chain []*x509.Certificate, did []string) {
		chain = w.chain(true)
		signers := []crypto.Signer{w.mesh.Key, w.root.Key, w.root.Key}
		resign := false
		for _, i := range []int{2, 1, 0} {
			if !flawed[i] && !resign {
				continue
			}
			f := w.apart(t, levels[i])
			if resign {
				algorithm, hash := algorithmFor(signers[i])
				f.signWith(signers[i], algorithm, hash)
				resign = false
			}
			if flawed[i] {
				flaw := of[levels[i]][random.IntN(len(of[levels[i]]))]
				did = append(did, levels[i]+": "+flaw.name)
				flaw.edit(t, f, k)
			}
			if f.own != nil && i > 0 {
				signers[i-1], resign = f.own, true
			}
			c, err := x509.ParseCertificate(f.sign(t))
			if err != nil {
				byRule["parser"]++
				return nil, nil
			}
			chain[i] = c
		}
		return chain, did
	}

	for n := range generatedChains {
		flawed := map[int]bool{}
		if n%4 != 0 {
			flawed[[]int{0, 0, 1, 1, 2}[random.IntN(5)]] = true
			flawed[random.IntN(4)] = true // 3 is no level
		}
		chain, did := build(flawed)
		if chain == nil {
			continue
		}
		if (flawed[0] || flawed[1]) && random.IntN(2) == 0 {
			chain = chain[:2]
		}
		if len(did) == 0 || random.IntN(8) == 0 {
			chain = mangle(random, chain, strangers)
			did = append(did, fmt.Sprintf("mangled to %d", len(chain)))
		}
		if isGood(chain, w) { // such as without its root
			continue
		}
		v, err := w.authority.Bundle().Verify(chain, now)
		refusal, ok := errors.AsType[*identity.ChainError](err)
		if !ok {
			t.Fatalf("chain %d accepted: %v: %+v", n, did, v)
		}
		_, err = warmed.Verify(chain, now)
		if again, ok := errors.AsType[*identity.ChainError](err); !ok || again.Error() != refusal.Error() {
			t.Fatalf("chain %d, %v: %v, with a remembered mesh CA %v", n, did, refusal, err)
		}
		byRule[refusal.Rule]++
	}
	t.Logf("refused by %v", byRule)
	for _, p := range []identity.Profile{identity.LeafProfile(), identity.MeshCAProfile()} {
		for _, r := range p.Rules() {
			if byRule[r.Name] == 0 {
				t.Errorf("rule %s refused nothing: the generator is too narrow", r.Name)
			}
		}
	}
}

// mangle reorders, duplicates, drops, adds or exchanges certificates.
func mangle(random *rand.Rand, chain, strangers []*x509.Certificate) []*x509.Certificate {
	chain = slices.Clone(chain)
	i, j := random.IntN(len(chain)), random.IntN(len(chain))
	switch random.IntN(5) {
	case 0:
		j = (i + 1) % len(chain)
		chain[i], chain[j] = chain[j], chain[i]
	case 1:
		chain[i] = chain[(i+1)%len(chain)]
	case 2:
		chain = append(chain[:i], chain[i+1:]...)
	case 3:
		chain = append(chain, chain[j])
	case 4:
		chain[i] = strangers[j]
	}
	return chain
}

// isGood reports whether the signed parts are those of the good chain.
func isGood(chain []*x509.Certificate, w *world) bool {
	good := w.chain(len(chain) == 3)
	if len(chain) != len(good) {
		return false
	}
	for i := range chain {
		if !bytes.Equal(chain[i].RawTBSCertificate, good[i].RawTBSCertificate) {
			return false
		}
	}
	return true
}

// Every refusal says what to do, and matches its own reason alone.
func TestReasons(t *testing.T) {
	for reason, advice := range map[error]string{
		identity.ErrUntrusted: "trust bundle", identity.ErrExpired: "clocks", identity.ErrBanned: "lift the ban", identity.ErrProfile: "own CA",
	} {
		err := &identity.ChainError{Certificate: "leaf", Rule: "r", Section: "s", Detail: "d", Reason: reason}
		if !strings.Contains(err.Error(), advice) || !strings.HasPrefix(err.Error(), "leaf refused by rule r (s): d: ") {
			t.Errorf("%v: %v", reason, err)
		}
		for _, other := range []error{identity.ErrUntrusted, identity.ErrExpired, identity.ErrBanned, identity.ErrProfile, identity.ErrNoIdentity} {
			if errors.Is(err, other) != (other == reason) {
				t.Errorf("%v: Is(%v) = %v", reason, other, errors.Is(err, other))
			}
		}
	}
	var zero identity.Profile
	if r := zero.Check(newWorld(t).leaf, time.Now()); r == nil || r.Reason != identity.ErrProfile {
		t.Errorf("the zero Profile: %v, want ErrProfile", r)
	}
}

// A retired root goes on to vouch for members whose mesh CA is listed, so that a
// change of root cuts nobody, and for nothing else.
func TestRetiredRoot(t *testing.T) {
	old, now := pkitest.NewAuthority(t, "prod.example"), pkitest.NewAuthority(t, "prod.example")
	cfg := identity.BundleConfig{
		Cluster: "prod.example", Roots: []*x509.Certificate{now.Root().Cert}, RetiredRoots: []*x509.Certificate{old.Root().Cert},
		MeshKeys: []identity.KeyID{old.MeshCA().KeyID()},
	}
	b, err := identity.NewBundle(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range identity.Kinds() {
		for name, a := range map[string]*pkitest.Authority{"old": old, "new": now} {
			chain, _ := a.Issue(t, a.ID(t, kind, "x"))
			for _, chain := range [][]*x509.Certificate{chain, append(slices.Clone(chain), a.Root().Cert)} {
				_, err := b.Verify(chain, time.Now())
				rules := kind == identity.Coordinator || kind == identity.Admin || kind == identity.Readonly
				want := !rules && name == "old" || kind == identity.Coordinator && name == "new"
				if accepted := err == nil; accepted != want {
					t.Errorf("%s under the %s root: %v", kind, name, err)
				}
			}
			if rules := kind == identity.Coordinator || kind == identity.Admin || kind == identity.Readonly; b.Outlived(a.ID(t, kind, "x"), chain[1]) != (rules && name == "old") {
				t.Errorf("%s under the %s root: whether its chain ended is told wrong", kind, name)
			}
		}
	}
	// Whether a root is retired is part of what a bundle says.
	both := cfg
	both.Roots, both.RetiredRoots = append(slices.Clone(cfg.Roots), cfg.RetiredRoots...), nil
	other, err := identity.NewBundle(both)
	if err != nil {
		t.Fatal(err)
	}
	if other.Fingerprint() == b.Fingerprint() {
		t.Error("one fingerprint for a root that counts and one that is retired")
	}
	twice := cfg
	twice.Roots = append(slices.Clone(cfg.Roots), cfg.RetiredRoots...)
	if _, err := identity.NewBundle(twice); err == nil {
		t.Error("a root that counts and is retired at once was taken")
	}
}

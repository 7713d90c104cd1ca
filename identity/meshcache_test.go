package identity_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// warm has b accept chain, and remember its mesh CA.
func warm(t testing.TB, b *identity.Bundle, chain []*x509.Certificate, now time.Time) {
	t.Helper()
	if _, err := b.Verify(chain, now); err != nil {
		t.Fatalf("warming up: %v", err)
	}
	if !remembers(b, chain[1]) {
		t.Fatal("an accepted mesh CA is not remembered")
	}
}

func remembers(b *identity.Bundle, c *x509.Certificate) bool {
	return slices.ContainsFunc(identity.CheckedMeshCAs(b), c.Equal)
}

// wantRefused wants the refusal of a bundle that remembers nothing.
func wantRefused(t testing.TB, name string, b *identity.Bundle, chain []*x509.Certificate, now time.Time, certificate, rule string) {
	t.Helper()
	before := len(identity.CheckedMeshCAs(b))
	v, err := b.Verify(chain, now)
	refusal, ok := errors.AsType[*identity.ChainError](err)
	if !ok || refusal.Certificate != certificate || refusal.Rule != rule || v != (identity.Verified{}) {
		t.Errorf("%s: got %+v, %v, want the %s refused by %s", name, v, err, certificate, rule)
	}
	if after := len(identity.CheckedMeshCAs(b)); after != before {
		t.Errorf("%s: a refusal took the remembered mesh CAs from %d to %d", name, before, after)
	}
}

// reminted returns the mesh CA after edit, signed again by its root.
func (w *world) reminted(t testing.TB, edit func(*forged)) *x509.Certificate {
	t.Helper()
	f := w.apart(t, mesh)
	edit(f)
	c, err := x509.ParseCertificate(f.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// No other bytes pass for a mesh CA that is remembered, whichever bit is flipped, of what
// was signed or of the signature.
func TestRememberedMeshCAIsItsBytes(t *testing.T) {
	w := newWorld(t)
	warm(t, w.bundle, w.chain(false), w.now)
	parsed := 0
	for i := range len(w.mesh.Cert.Raw) * 8 {
		der := bytes.Clone(w.mesh.Cert.Raw)
		der[i/8] ^= 1 << (i % 8)
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		parsed++
		if v, err := w.bundle.Verify([]*x509.Certificate{w.leaf, c}, w.now); err == nil {
			t.Fatalf("bit %d flipped: accepted: %+v", i, v)
		}
	}
	if parsed < 1000 {
		t.Errorf("only %d changed certificates could be parsed", parsed)
	}
	if n := len(identity.CheckedMeshCAs(w.bundle)); n != 1 {
		t.Errorf("%d mesh CAs are remembered, want the good one alone", n)
	}
	warm(t, w.bundle, w.chain(true), w.now)
}

// Everything that is not the mesh CA's own profile and signature is decided anew.
func TestRememberedMeshCAIsNotTrustedBlindly(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	a := w.authority
	stranger := pkitest.NewAuthority(t, a.Cluster())
	resigned := func(key crypto.Signer) *x509.Certificate {
		f := w.apart(t, leaf)
		f.signWith(key, ecdsaSHA256, crypto.SHA256)
		c, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	b := a.Bundle(func(cfg *identity.BundleConfig) { cfg.Roots = append(cfg.Roots, stranger.Root().Cert) })
	warm(t, b, w.chain(true), w.now)
	wantRefused(t, "leaf of a stranger's key", b, []*x509.Certificate{resigned(k.other), w.mesh.Cert}, w.now, leaf, "leaf-signature")
	wantRefused(t, "another root sent with it", b, []*x509.Certificate{w.leaf, w.mesh.Cert, stranger.Root().Cert}, w.now, root, "root-is-ours")
	wantRefused(t, "the same mesh CA, signed by a stranger", b,
		[]*x509.Certificate{w.leaf, w.reminted(t, func(f *forged) { f.signWith(k.other, ecdsaSHA256, crypto.SHA256) })}, w.now, mesh, "mesh-ca-signature")
	wantRefused(t, "the same mesh CA, signed by another root of the bundle", b,
		[]*x509.Certificate{w.leaf, w.reminted(t, func(f *forged) { f.signWith(stranger.Root().Key, ecdsaSHA256, crypto.SHA256) })}, w.now, mesh, "mesh-ca-signature")
	wantRefused(t, "in place of a leaf", b, []*x509.Certificate{w.mesh.Cert, w.mesh.Cert}, w.now, leaf, "lifetime")
	wantRefused(t, "in place of a root", b, []*x509.Certificate{w.leaf, w.mesh.Cert, w.mesh.Cert}, w.now, root, "root-is-ours")

	// A bundle knows nothing of what another one remembers.
	wantRefused(t, "a bundle of another root", stranger.Bundle(), w.chain(false), w.now, mesh, "root-known")
	for name, edit := range map[string]func(*identity.BundleConfig){
		"key of the mesh CA": func(cfg *identity.BundleConfig) { cfg.BannedKeys = []identity.KeyID{w.mesh.KeyID()} },
		"key of the root":    func(cfg *identity.BundleConfig) { cfg.BannedKeys = []identity.KeyID{w.root.KeyID()} },
		"key of the leaf":    func(cfg *identity.BundleConfig) { cfg.BannedKeys = []identity.KeyID{identity.KeyOf(w.leaf)} },
	} {
		banning := a.Bundle(edit)
		wantRefused(t, name, banning, w.chain(false), w.now, "chain", "banned-key")
		if name == "key of the leaf" {
			other, _ := a.Issue(t, a.ID(t, identity.Shard, "eu-2"))
			warm(t, banning, other, w.now)
			wantRefused(t, name+", and the mesh CA is remembered", banning, w.chain(false), w.now, "chain", "banned-key")
		}
	}
	banned := a.ID(t, identity.Shard, "eu-1")
	banning := a.Bundle(func(cfg *identity.BundleConfig) { cfg.BannedIDs = []identity.ID{banned} })
	other, _ := a.Issue(t, a.ID(t, identity.Shard, "eu-2"))
	warm(t, banning, other, w.now)
	wantRefused(t, "banned identity", banning, w.chain(false), w.now, leaf, "banned-id")
}

// A coordinator's chain brings in a mesh CA that is not listed. It must not carry others.
func TestRememberedMeshCAMustBeListed(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	b := a.Bundle(func(cfg *identity.BundleConfig) { cfg.MeshKeys = nil })
	coordinator, _ := a.Issue(t, a.ID(t, identity.Coordinator, "c1"))
	warm(t, b, coordinator, time.Now())
	for _, kind := range identity.Kinds() {
		if kind != identity.Coordinator {
			chain, _ := a.Issue(t, a.ID(t, kind, "x"))
			wantRefused(t, string(kind), b, chain, time.Now(), mesh, "mesh-ca-accepted")
		}
	}
	nobody, _ := a.IssueRaw(t, func(*x509.Certificate) {})
	wantRefused(t, "no identity", b, nobody, time.Now(), mesh, "mesh-ca-accepted")
}

func TestRememberedMeshCAExpires(t *testing.T) {
	w := newWorld(t)
	// The leaf and the root live longer than this mesh CA, on both ends.
	begin, end := w.now.Add(-10*time.Second).Truncate(time.Second), w.now.Add(time.Hour).Truncate(time.Second)
	short := w.reminted(t, func(f *forged) { f.Validity = validity(t, begin, end) })
	for _, chain := range [][]*x509.Certificate{{w.leaf, short}, {w.leaf, short, w.root.Cert}} {
		b := w.authority.Bundle()
		for _, now := range []time.Time{begin.Add(-time.Nanosecond), end.Add(time.Nanosecond)} {
			if _, err := b.Verify(chain, now); !errors.Is(err, identity.ErrExpired) || len(identity.CheckedMeshCAs(b)) != 0 {
				t.Errorf("%v at %v: %d remembered", err, now, len(identity.CheckedMeshCAs(b)))
			}
		}
		for _, now := range []time.Time{begin, end} {
			warm(t, b, chain, now)
		}
		wantRefused(t, "before its time", b, chain, begin.Add(-time.Nanosecond), mesh, "not-yet-valid")
		wantRefused(t, "after its time", b, chain, end.Add(time.Nanosecond), mesh, "expired")
	}
	// The dates of the root count too, and of roots for the same key only the one in date.
	f := w.apart(t, root)
	f.Validity = validity(t, w.now.Add(-time.Hour), end)
	old, err := x509.ParseCertificate(f.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	b := w.authority.Bundle(func(cfg *identity.BundleConfig) { cfg.Roots = []*x509.Certificate{old} })
	warm(t, b, w.chain(false), w.now)
	wantRefused(t, "after the root's time", b, w.chain(false), end.Add(time.Nanosecond), root, "expired")
}

// A caller's changes to certificates that it holds change nothing: neither those that were
// accepted, nor such as pretend to be one of them.
func TestRememberedMeshCAIsTheBundlesOwn(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	f := w.apart(t, leaf)
	f.signWith(k.other, ecdsaSHA256, crypto.SHA256)
	theirs, err := x509.ParseCertificate(f.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	// The bytes of the mesh CA, and the key of whoever signed the leaf.
	pretender := *w.mesh.Cert
	pretender.PublicKey = k.other.Public()

	held, err := x509.ParseCertificate(bytes.Clone(w.mesh.Cert.Raw))
	if err != nil {
		t.Fatal(err)
	}
	warm(t, w.bundle, []*x509.Certificate{w.leaf, held}, w.now)
	wantRefused(t, "pretender", w.bundle, []*x509.Certificate{theirs, &pretender}, w.now, leaf, "leaf-signature")

	held.PublicKey, held.NotAfter = k.other.Public(), w.now.Add(1e6*time.Hour)
	for i := range held.Raw { // and all that is sliced out of it
		held.Raw[i] ^= 0xff
	}
	wantRefused(t, "after a change", w.bundle, []*x509.Certificate{theirs, w.mesh.Cert}, w.now, leaf, "leaf-signature")
	if _, err := w.bundle.Verify([]*x509.Certificate{w.leaf, held}, w.now); err == nil {
		t.Error("the changed bytes pass")
	}
	for _, own := range identity.CheckedMeshCAs(w.bundle) {
		if own == held || own == w.mesh.Cert || !bytes.Equal(own.Raw, w.mesh.Cert.Raw) {
			t.Error("what is remembered is a caller's certificate, or another one")
		}
	}
	warm(t, w.bundle, w.chain(false), w.now)

	// Signed bytes, around bytes that were not. A caller that lies to itself so gets
	// away with it once, and the bundle does not learn the lie.
	forger := w.apart(t, mesh)
	forger.Serial, forger.signer = bit(70), copied{w.mesh.Key, w.mesh.Cert.Signature}
	lie, err := x509.ParseCertificate(forger.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	honest := *lie
	lie.RawTBSCertificate = w.mesh.Cert.RawTBSCertificate
	fresh := w.authority.Bundle()
	if _, err := fresh.Verify([]*x509.Certificate{w.leaf, lie}, w.now); err != nil {
		t.Fatalf("a lie about what was signed shows, and this test is needed no more: %v", err)
	}
	wantRefused(t, "the same bytes", fresh, []*x509.Certificate{w.leaf, &honest}, w.now, mesh, "mesh-ca-signature")
	if n := len(identity.CheckedMeshCAs(fresh)); n != 0 {
		t.Errorf("%d mesh CAs are remembered, want none", n)
	}
}

// copied is a key that returns a signature it has seen, whatever it is to sign.
type copied struct {
	crypto.Signer
	signature []byte
}

func (c copied) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return bytes.Clone(c.signature), nil
}

// However many mesh CAs a root signs, a bundle remembers the last few, and what it forgot
// it accepts as before.
func TestRememberedMeshCAsAreBounded(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	var chains [][]*x509.Certificate
	for n := range identity.MaxCheckedMeshCAs + 8 {
		if n > 0 {
			a.AddMeshCA(t)
		}
		chain, _ := a.Issue(t, a.ID(t, identity.Shard, "eu-1"))
		chains = append(chains, chain)
	}
	b := a.Bundle()
	print := b.Fingerprint()
	for n, chain := range chains {
		for range 2 {
			warm(t, b, chain, time.Now())
		}
		if got, want := len(identity.CheckedMeshCAs(b)), min(n+1, identity.MaxCheckedMeshCAs); got != want {
			t.Fatalf("after %d mesh CAs: %d are remembered, want %d", n+1, got, want)
		}
	}
	for n, chain := range chains {
		if got, want := remembers(b, chain[1]), n >= len(chains)-identity.MaxCheckedMeshCAs; got != want {
			t.Errorf("mesh CA %d is remembered: %v, want %v", n, got, want)
		}
	}
	for _, chain := range chains {
		warm(t, b, chain, time.Now())
	}
	if b.Fingerprint() != print {
		t.Error("the fingerprint changed")
	}

	// Strangers and forgers fill nothing.
	cold := a.Bundle()
	k := newKeys(t)
	for n := range 100 {
		f := takeApart(t, chains[0][1], a.Root().Key)
		f.Serial = bit(uint(n + 1))
		f.signWith(k.other, ecdsaSHA256, crypto.SHA256)
		c, err := x509.ParseCertificate(f.sign(t))
		if err != nil {
			t.Fatal(err)
		}
		wantRefused(t, "forger", cold, []*x509.Certificate{chains[0][0], c}, time.Now(), mesh, "mesh-ca-signature")
	}
	if n := len(identity.CheckedMeshCAs(cold)); n != 0 {
		t.Errorf("%d forged mesh CAs are remembered", n)
	}
}

// Connections of all peers verify at once, some accepted, some not, and push one
// another's mesh CAs out.
func TestRememberingIsSafeForConcurrentUse(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	stranger := pkitest.NewAuthority(t, "prod.example")
	strange, _ := stranger.Issue(t, a.ID(t, identity.Shard, "eu-1"))
	var chains [][]*x509.Certificate
	for range identity.MaxCheckedMeshCAs + 4 {
		a.AddMeshCA(t)
		chain, _ := a.Issue(t, a.ID(t, identity.Shard, "eu-1"))
		chains = append(chains, chain)
	}
	b := a.Bundle()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for n := range 2 * len(chains) {
				chain := chains[(n*(2*g+1)+g)%len(chains)]
				if v, err := b.Verify(chain, time.Now()); err != nil || v.Leaf != chain[0] {
					t.Errorf("refused: %v", err)
				}
				if _, err := b.Verify(strange, time.Now()); !errors.Is(err, identity.ErrUntrusted) {
					t.Errorf("a stranger: %v", err)
				}
				if n := len(identity.CheckedMeshCAs(b)); n > identity.MaxCheckedMeshCAs {
					t.Errorf("%d mesh CAs are remembered", n)
				}
			}
		})
	}
	all.Wait()

	// Two connections that check the same mesh CA at once remember it once.
	twice := a.Bundle()
	for range 2 {
		identity.AddChecked(twice, chains[0][1])
	}
	for name, b := range map[string]*identity.Bundle{"concurrently": b, "in turn": twice} {
		seen := map[string]bool{}
		for _, c := range identity.CheckedMeshCAs(b) {
			if seen[string(c.Raw)] {
				t.Errorf("%s: a mesh CA is remembered twice", name)
			}
			seen[string(c.Raw)] = true
		}
		if len(seen) == 0 {
			t.Errorf("%s: nothing is remembered", name)
		}
	}
}

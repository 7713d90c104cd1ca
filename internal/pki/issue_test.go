package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/keygen"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

const cluster = "prod.example"

func mustID(t testing.TB, kind identity.Kind, name string) identity.ID {
	t.Helper()
	id, err := identity.New(cluster, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// rootKey derives a key from a word: the same each time, for tests only.
func rootKey(t testing.TB, word string) *ecdsa.PrivateKey {
	t.Helper()
	secret := sha256.Sum256([]byte("test root key " + word))
	key, err := keygen.ECDSA(elliptic.P256(), secret[:])
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newRoot(t testing.TB, word string, notBefore time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := rootKey(t, word)
	root, err := pki.Root(key, cluster, notBefore)
	if err != nil {
		t.Fatal(err)
	}
	return root, key
}

func newMesh(t testing.TB, now time.Time) (*pki.MeshCA, *x509.Certificate) {
	t.Helper()
	root, key := newRoot(t, "a", now.Add(-time.Hour))
	mesh, err := pki.NewMeshCA(root, key, pki.MeshConfig{Cluster: cluster, Epoch: 7, Validity: 50 * time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	return mesh, root
}

func newIssuer(t testing.TB) *pki.Issuer {
	t.Helper()
	mesh, _ := newMesh(t, time.Now())
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

func TestRootIsAFunction(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	root, key := newRoot(t, "golden", start)
	again, err := pki.Root(key, cluster, start.Add(999*time.Millisecond).In(time.FixedZone("x", 3600)))
	if err != nil || !bytes.Equal(again.Raw, root.Raw) {
		t.Errorf("the same second gives another root, %v", err)
	}
	// If this fails after an upgrade of Go, clusters would get another root from
	// the seed that they have. The bytes must stay, whatever it takes.
	const golden = "c151d31e33dc3f08e070f252efdfc605a278bcc4a9f5849cf3ca4ee09fc2cbe3"
	if got := sha256.Sum256(root.Raw); hex.EncodeToString(got[:]) != golden {
		t.Errorf("the root is %x, want %s", got, golden)
	}
	if r := internalidentity.CheckRoot(root, start); r != nil {
		t.Error(r)
	}
	for name, other := range map[string]func() (*x509.Certificate, error){
		"key":     func() (*x509.Certificate, error) { return pki.Root(rootKey(t, "other"), cluster, start) },
		"cluster": func() (*x509.Certificate, error) { return pki.Root(key, "other.example", start) },
		"time":    func() (*x509.Certificate, error) { return pki.Root(key, cluster, start.Add(time.Second)) },
	} {
		c, err := other()
		if err != nil || bytes.Equal(c.Raw, root.Raw) {
			t.Errorf("another %s: %v", name, err)
		}
		if name == "key" && (bytes.Equal(c.RawSubject, root.RawSubject) || c.SerialNumber.Cmp(root.SerialNumber) == 0) {
			t.Error("two keys have one name or serial number")
		}
	}
	if _, err := pki.Root(key, strings.Repeat("a.", 127)+"a", start); err != nil {
		t.Errorf("a cluster of 255 bytes: %v", err)
	}
}

// randomized ignores that its caller asks for determinism.
type randomized struct{ *ecdsa.PrivateKey }

func (r randomized) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return r.PrivateKey.Sign(rand.Reader, digest, opts)
}

func TestRootRefuses(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func() (*x509.Certificate, error){
		"randomized key": func() (*x509.Certificate, error) { return pki.Root(randomized{p256(t)}, cluster, time.Now()) },
		"P-384":          func() (*x509.Certificate, error) { return pki.Root(p384, cluster, time.Now()) },
		"Ed25519": func() (*x509.Certificate, error) {
			return pki.Root(pkitest.NewEd25519Key(t), cluster, time.Now())
		},
		"no key":     func() (*x509.Certificate, error) { return pki.Root(nil, cluster, time.Now()) },
		"no cluster": func() (*x509.Certificate, error) { return pki.Root(p256(t), "", time.Now()) },
		"bad name":   func() (*x509.Certificate, error) { return pki.Root(p256(t), "Prod Example", time.Now()) },
	} {
		if c, err := make(); err == nil || c != nil {
			t.Errorf("%s: made", name)
		}
	}
}

func TestMeshCA(t *testing.T) {
	now := time.Now()
	mesh, root := newMesh(t, now)
	c := mesh.Certificate()
	if r := internalidentity.CheckMeshCA(c, now); r != nil {
		t.Error(r)
	}
	if mesh.KeyID() != identity.KeyOf(c) || mesh.Epoch() != 7 || !mesh.Key().PublicKey.Equal(c.PublicKey) {
		t.Error("key, key id, epoch and certificate do not belong together")
	}
	if want := now.Add(-pki.Backdate); c.NotBefore.After(want) || c.NotBefore.Before(want.Add(-time.Second)) {
		t.Errorf("not before %v, it is %v", c.NotBefore, now)
	}
	loaded, err := pki.LoadMeshCA(root, c.Raw, mesh.Key(), cluster, 7)
	if err != nil || loaded.KeyID() != mesh.KeyID() {
		t.Errorf("loaded again: %v", err)
	}
	if other, _ := newMesh(t, now); other.KeyID() == mesh.KeyID() {
		t.Error("two mesh CAs have one key")
	}

	// Near the end of the root its lifetime is cut, not exceeded.
	end := root.NotAfter.Add(-time.Hour)
	last, err := pki.NewMeshCA(root, rootKey(t, "a"), pki.MeshConfig{Cluster: cluster, Epoch: 8, Validity: 50 * time.Hour}, end)
	if err != nil || !last.Certificate().NotAfter.Equal(root.NotAfter) {
		t.Errorf("at the end of the root: %v", err)
	}
}

func TestNewMeshCARefuses(t *testing.T) {
	now := time.Now()
	root, key := newRoot(t, "a", now)
	good := pki.MeshConfig{Cluster: cluster, Epoch: 1, Validity: time.Hour}
	for name, test := range map[string]struct {
		root *x509.Certificate
		key  crypto.Signer
		edit func(*pki.MeshConfig)
		now  time.Time
	}{
		"no cluster":      {root, key, func(c *pki.MeshConfig) { c.Cluster = "" }, now},
		"no epoch":        {root, key, func(c *pki.MeshConfig) { c.Epoch = 0 }, now},
		"no validity":     {root, key, func(c *pki.MeshConfig) { c.Validity = 0 }, now},
		"long validity":   {root, key, func(c *pki.MeshConfig) { c.Validity = internalidentity.MaxMeshCALifetime }, now},
		"another key":     {root, p256(t), func(*pki.MeshConfig) {}, now},
		"no key":          {root, nil, func(*pki.MeshConfig) {}, now},
		"no root":         {nil, key, func(*pki.MeshConfig) {}, now},
		"a leaf for root": {pkitest.NewAuthority(t, cluster).MeshCA().Cert, key, func(*pki.MeshConfig) {}, now},
		"before the root": {root, key, func(*pki.MeshConfig) {}, now.Add(-time.Hour)},
		"after the root":  {root, key, func(*pki.MeshConfig) {}, root.NotAfter.Add(time.Second)},
	} {
		cfg := good
		test.edit(&cfg)
		if mesh, err := pki.NewMeshCA(test.root, test.key, cfg, test.now); err == nil || mesh != nil {
			t.Errorf("%s: made", name)
		}
	}
	if _, err := pki.NewMeshCA(root, key, good, now); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestLoadMeshCARefuses(t *testing.T) {
	now := time.Now()
	mesh, root := newMesh(t, now)
	raw, key := mesh.Certificate().Raw, mesh.Key()
	otherRoot, otherRootKey := newRoot(t, "b", now.Add(-time.Hour))
	foreign, err := pki.NewMeshCA(otherRoot, otherRootKey, pki.MeshConfig{Cluster: cluster, Epoch: 7, Validity: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := issuer.Issue(pki.Request{PublicKey: key.Public(), ID: mustID(t, identity.Data, "a"), TTL: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	// A forger who knows names and key ids, and has not the root's key.
	forger := p256(t)
	forged := *mesh.Certificate()
	parent := *root
	parent.PublicKey = nil
	forgedDER, err := x509.CreateCertificate(rand.Reader, &forged, &parent, key.Public(), forger)
	if err != nil {
		t.Fatal(err)
	}
	// A former holder of the root's key could have signed these.
	signed := func(edit func(*x509.Certificate)) []byte {
		template := *mesh.Certificate()
		edit(&template)
		der, err := x509.CreateCertificate(rand.Reader, &template, root, key.Public(), rootKey(t, "a"))
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	loose := *root
	loose.MaxPathLen = 2
	looseDER, err := x509.CreateCertificate(rand.Reader, &loose, &loose, root.PublicKey, rootKey(t, "a"))
	if err != nil {
		t.Fatal(err)
	}
	looseRoot, err := x509.ParseCertificate(looseDER)
	if err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func() (*pki.MeshCA, error){
		"root of another profile": func() (*pki.MeshCA, error) { return pki.LoadMeshCA(looseRoot, raw, key, cluster, 7) },
		"longer path": func() (*pki.MeshCA, error) {
			return pki.LoadMeshCA(root, signed(func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 1, false }), key, cluster, 7)
		},
		"older than its root": func() (*pki.MeshCA, error) {
			return pki.LoadMeshCA(root, signed(func(c *x509.Certificate) { c.NotBefore = root.NotBefore.Add(-time.Second) }), key, cluster, 7)
		},
		"another name": func() (*pki.MeshCA, error) {
			return pki.LoadMeshCA(root, signed(func(c *x509.Certificate) { c.RawSubject, c.Subject = nil, pkix.Name{CommonName: "mesh"} }), key, cluster, 7)
		},
		"another epoch":   func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, raw, key, cluster, 8) },
		"another cluster": func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, raw, key, "other.example", 7) },
		"another key":     func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, raw, p256(t), cluster, 7) },
		"another root":    func() (*pki.MeshCA, error) { return pki.LoadMeshCA(otherRoot, raw, key, cluster, 7) },
		"foreign mesh CA": func() (*pki.MeshCA, error) {
			return pki.LoadMeshCA(root, foreign.Certificate().Raw, foreign.Key(), cluster, 7)
		},
		"forged":     func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, forgedDER, key, cluster, 7) },
		"a leaf":     func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, leaf.Raw, key, cluster, 7) },
		"the root":   func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, root.Raw, rootKey(t, "a"), cluster, 7) },
		"garbage":    func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, []byte("garbage"), key, cluster, 7) },
		"huge":       func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, make([]byte, 1<<20), key, cluster, 7) },
		"no key":     func() (*pki.MeshCA, error) { return pki.LoadMeshCA(root, raw, nil, cluster, 7) },
		"no root":    func() (*pki.MeshCA, error) { return pki.LoadMeshCA(nil, raw, key, cluster, 7) },
		"mesh as it": func() (*pki.MeshCA, error) { return pki.LoadMeshCA(mesh.Certificate(), raw, key, cluster, 7) },
	} {
		if got, err := load(); err == nil || got != nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestIssue(t *testing.T) {
	now := time.Now()
	mesh, root := newMesh(t, now)
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.NewBundle(identity.BundleConfig{Cluster: cluster, Roots: []*x509.Certificate{root}, MeshKeys: []identity.KeyID{mesh.KeyID()}})
	if err != nil {
		t.Fatal(err)
	}
	serials := map[string]bool{}
	for _, kind := range identity.Kinds() {
		for _, key := range []crypto.Signer{p256(t), pkitest.NewEd25519Key(t)} {
			r := pki.Request{PublicKey: key.Public(), ID: mustID(t, kind, "node-a"), TTL: 25 * time.Hour,
				DNSNames: []string{"node-a.example", "a"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::ffff:10.0.0.2")}}
			if kind == identity.Workload {
				r.Voucher = internalidentity.VoucherName("data/n1", (identity.KeyID{1}).String())
			}
			leaf, err := issuer.Issue(r, now)
			if err != nil {
				t.Fatalf("%v: %v", r.ID, err)
			}
			if parsed, err := x509.ParseCertificate(leaf.Raw); err != nil || !reflect.DeepEqual(parsed, leaf) {
				t.Errorf("%v: what is returned is not what its bytes say: %v", r.ID, err)
			}
			verified, err := bundle.Verify([]*x509.Certificate{leaf, mesh.Certificate()}, now)
			if err != nil || verified.IDErr != nil || verified.ID != r.ID {
				t.Errorf("%v: verified %v, %v", r.ID, verified, err)
			}
			if want, _ := identity.KeyOfPublic(key.Public()); verified.Key != want {
				t.Errorf("%v: for another key", r.ID)
			}
			if !slices.Equal(leaf.DNSNames, r.DNSNames) || len(leaf.IPAddresses) != 3 || !leaf.IPAddresses[2].Equal(net.IPv4(10, 0, 0, 2)) {
				t.Errorf("%v: names %v %v", r.ID, leaf.DNSNames, leaf.IPAddresses)
			}
			second := now.UTC().Truncate(time.Second)
			if !leaf.NotBefore.Equal(second.Add(-pki.Backdate)) || !leaf.NotAfter.Equal(second.Add(r.TTL)) {
				t.Errorf("%v: valid from %v to %v, it is %v", r.ID, leaf.NotBefore, leaf.NotAfter, now)
			}
			if leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 128 || serials[leaf.SerialNumber.String()] {
				t.Errorf("%v: serial number %v", r.ID, leaf.SerialNumber)
			}
			serials[leaf.SerialNumber.String()] = true

			// Others read it as well: here plain crypto/x509, for both usages.
			roots, middle := x509.NewCertPool(), x509.NewCertPool()
			roots.AddCert(root)
			middle.AddCert(mesh.Certificate())
			for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
				if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}, DNSName: "node-a.example"}); err != nil {
					t.Errorf("%v: crypto/x509: %v", r.ID, err)
				}
			}
		}
	}
}

// For any request, at any time: a leaf is in date when it is issued, lives no
// longer than asked, and never outlives its issuer.
func TestIssueTimes(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	mesh, _ := newMesh(t, start)
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	r := pki.Request{PublicKey: p256(t).Public(), ID: mustID(t, identity.Data, "a")}
	end := mesh.Certificate().NotAfter
	rapid.Check(t, func(t *rapid.T) {
		r := r
		r.TTL = time.Duration(rapid.Int64Range(int64(time.Second), int64(pki.MaxTTL)).Draw(t, "ttl"))
		now := start.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(51*time.Hour)).Draw(t, "at")))
		leaf, err := issuer.Issue(r, now)
		if now.Before(mesh.Certificate().NotBefore) || !now.Before(end) {
			if !errors.Is(err, pki.ErrMeshExpired) {
				t.Fatalf("at %v: %v", now, err)
			}
			return
		}
		if err != nil {
			t.Fatalf("at %v for %v: %v", now, r.TTL, err)
		}
		switch {
		case leaf.NotBefore.After(now) || leaf.NotAfter.Before(now):
			t.Fatalf("valid from %v to %v, at %v", leaf.NotBefore, leaf.NotAfter, now)
		case leaf.NotAfter.After(now.Add(r.TTL)):
			t.Fatalf("valid to %v, longer than %v from %v", leaf.NotAfter, r.TTL, now)
		case leaf.NotAfter.After(end) || leaf.NotBefore.Before(mesh.Certificate().NotBefore):
			t.Fatalf("valid from %v to %v, outlives its issuer", leaf.NotBefore, leaf.NotAfter)
		}
	})
}

// A leaf and its mesh CA are in date for a receiver whose clock is behind by up to 30
// seconds, and not for one that is behind by more.
func TestIssueIsBackdated(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	mesh, root := newMesh(t, now)
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	asked := pki.Request{PublicKey: p256(t).Public(), ID: mustID(t, identity.Data, "a"), TTL: time.Hour}
	leaf, err := issuer.Issue(asked, now)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.NewBundle(identity.BundleConfig{
		Cluster: cluster, Roots: []*x509.Certificate{root}, MeshKeys: []identity.KeyID{identity.KeyOf(mesh.Certificate())},
	})
	if err != nil {
		t.Fatal(err)
	}
	for behind, good := range map[time.Duration]bool{0: true, 30 * time.Second: true, 31 * time.Second: false} {
		_, err := bundle.Verify([]*x509.Certificate{leaf, mesh.Certificate()}, now.Add(-behind))
		if good && err != nil || !good && !errors.Is(err, identity.ErrExpired) {
			t.Errorf("for a clock that is behind by %v: %v", behind, err)
		}
	}
}

func TestIssueRefuses(t *testing.T) {
	now := time.Now()
	issuer := newIssuer(t)
	foreign, err := identity.New("other.example", identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, internalidentity.MaxAltNames)
	for i := range many {
		many[i] = fmt.Sprintf("a%d.example", i)
	}
	good := pki.Request{PublicKey: p256(t).Public(), ID: mustID(t, identity.Data, "a"), TTL: time.Hour}
	for name, test := range map[string]struct {
		edit  func(*pki.Request)
		field string // empty: refused by the lint
	}{
		"no key":            {func(r *pki.Request) { r.PublicKey = nil }, "PublicKey"},
		"no real key":       {func(r *pki.Request) { r.PublicKey = "key" }, "PublicKey"},
		"P-384":             {func(r *pki.Request) { r.PublicKey = p384.Public() }, ""},
		"no identity":       {func(r *pki.Request) { r.ID = identity.ID{} }, "ID"},
		"foreign identity":  {func(r *pki.Request) { r.ID = foreign }, "ID"},
		"member's voucher":  {func(r *pki.Request) { r.Voucher = "data/n1 " + (identity.KeyID{1}).String() }, "Voucher"},
		"no voucher":        {func(r *pki.Request) { r.ID = mustID(t, identity.Workload, "a") }, "Voucher"},
		"malformed voucher": {func(r *pki.Request) { r.ID, r.Voucher = mustID(t, identity.Workload, "a"), "data/n1" }, "lint"},
		"no TTL":            {func(r *pki.Request) { r.TTL = 0 }, "TTL"},
		"negative TTL":      {func(r *pki.Request) { r.TTL = -time.Hour }, "TTL"},
		"TTL below 1s":      {func(r *pki.Request) { r.TTL = time.Second - 1 }, "TTL"},
		"long TTL":          {func(r *pki.Request) { r.TTL = pki.MaxTTL + 1 }, "TTL"},
		"too many names":    {func(r *pki.Request) { r.DNSNames = many }, "DNSNames and IPs"},
		"wildcard":          {func(r *pki.Request) { r.DNSNames = []string{"*.example"} }, "DNSNames"},
		"upper case":        {func(r *pki.Request) { r.DNSNames = []string{"A.example"} }, "DNSNames"},
		"empty name":        {func(r *pki.Request) { r.DNSNames = []string{""} }, "DNSNames"},
		"empty label":       {func(r *pki.Request) { r.DNSNames = []string{"a..example"} }, "DNSNames"},
		"trailing dot":      {func(r *pki.Request) { r.DNSNames = []string{"a.example."} }, "DNSNames"},
		"leading hyphen":    {func(r *pki.Request) { r.DNSNames = []string{"-a.example"} }, "DNSNames"},
		"trailing hyphen":   {func(r *pki.Request) { r.DNSNames = []string{"a-.example"} }, "DNSNames"},
		"an address":        {func(r *pki.Request) { r.DNSNames = []string{"10.0.0.1"} }, "DNSNames"},
		"zero byte":         {func(r *pki.Request) { r.DNSNames = []string{"a\x00.example"} }, "DNSNames"},
		"long label":        {func(r *pki.Request) { r.DNSNames = []string{strings.Repeat("a", 64)} }, "DNSNames"},
		"long name":         {func(r *pki.Request) { r.DNSNames = []string{strings.Repeat("a.", 127)} }, "DNSNames"},
		"invalid address":   {func(r *pki.Request) { r.IPs = []netip.Addr{{}} }, "IPs"},
		"address with zone": {func(r *pki.Request) { r.IPs = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} }, "IPs"},
	} {
		r := good
		test.edit(&r)
		leaf, err := issuer.Issue(r, now)
		if leaf != nil || err == nil {
			t.Errorf("%s: issued", name)
			continue
		}
		var refusal *pki.RequestError
		switch {
		case test.field == "":
			if !errors.Is(err, identity.ErrProfile) {
				t.Errorf("%s: %v, want a refusal by the profile", name, err)
			}
		case test.field == "lint":
			if !errors.Is(err, pki.ErrLint) {
				t.Errorf("%s: %v, want a refusal by the lint", name, err)
			}
		case !errors.As(err, &refusal) || refusal.Field != test.field || !errors.Is(err, pki.ErrRequest):
			t.Errorf("%s: %v, want a refusal of %s", name, err, test.field)
		}
	}
	if _, err := pki.NewIssuer(nil, cluster); err == nil {
		t.Error("an issuer without a mesh CA")
	}
	if _, err := pki.NewIssuer(issuer.MeshCA(), ""); err == nil {
		t.Error("an issuer without a cluster")
	}
}

// TestLintRefuses asks the guards for certificates that differ from what was asked
// for, each by what one row of the tables is for.
func TestLintRefuses(t *testing.T) {
	now := time.Now()
	mesh, root := newMesh(t, now)
	issuer := mesh.Certificate()
	key := p256(t)
	id, other := mustID(t, identity.Data, "a"), mustID(t, identity.Data, "b")
	r := pki.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour, DNSNames: []string{"a.example"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	skid := func(pub crypto.PublicKey) []byte {
		keyID, err := internalidentity.SubjectKeyID(pub)
		if err != nil {
			t.Fatal(err)
		}
		return keyID
	}
	second := now.UTC().Truncate(time.Second)
	good := func(pub crypto.PublicKey) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: second.Add(-pki.Backdate), NotAfter: second.Add(r.TTL), BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			URIs: []*url.URL{id.URL()}, DNSNames: r.DNSNames, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, SubjectKeyId: skid(pub),
		}
	}
	elsewhere := *issuer
	elsewhere.RawSubject = nil
	elsewhere.Subject = pkix.Name{CommonName: "elsewhere"}
	otherKeyID := *issuer
	otherKeyID.SubjectKeyId = []byte("12345678901234567890")

	refused := map[string]bool{}
	for _, test := range []struct {
		name, rule string
		edit       func(*x509.Certificate)
		issuer     *x509.Certificate
		pub        crypto.PublicKey
	}{
		{"good", "", func(*x509.Certificate) {}, issuer, key.Public()},
		{"not of the profile", "profile", func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, issuer, key.Public()},
		{"another issuer", "issuer-name", func(*x509.Certificate) {}, &elsewhere, key.Public()},
		{"another issuer's key", "issuer-key-id", func(*x509.Certificate) {}, &otherKeyID, key.Public()},
		{"outlives its issuer", "within-issuer", func(c *x509.Certificate) { c.NotAfter = issuer.NotAfter.Add(time.Second) }, issuer, key.Public()},
		{"older than its issuer", "within-issuer", func(c *x509.Certificate) { c.NotBefore = issuer.NotBefore.Add(-time.Second) }, issuer, key.Public()},
		{"another key", "key", func(*x509.Certificate) {}, issuer, p256(t).Public()},
		{"another kind of key", "key", func(*x509.Certificate) {}, issuer, pkitest.NewEd25519Key(t).Public()},
		{"another identity", "identity", func(c *x509.Certificate) { c.URIs = []*url.URL{other.URL()} }, issuer, key.Public()},
		{"no identity", "identity", func(c *x509.Certificate) { c.URIs = nil }, issuer, key.Public()},
		{"two identities", "identity", func(c *x509.Certificate) { c.URIs = append(c.URIs, other.URL()) }, issuer, key.Public()},
		{"subject", "no-subject", func(c *x509.Certificate) { c.Subject.CommonName = "a" }, issuer, key.Public()},
		{"another DNS name", "dns-names", func(c *x509.Certificate) { c.DNSNames = []string{"b.example"} }, issuer, key.Public()},
		{"one more DNS name", "dns-names", func(c *x509.Certificate) { c.DNSNames = []string{"a.example", "b.example"} }, issuer, key.Public()},
		{"no DNS name", "dns-names", func(c *x509.Certificate) { c.DNSNames = nil }, issuer, key.Public()},
		{"another address", "addresses", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 2)} }, issuer, key.Public()},
		{"no address", "addresses", func(c *x509.Certificate) { c.IPAddresses = nil }, issuer, key.Public()},
		{"longer than asked", "ttl", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Second) }, issuer, key.Public()},
	} {
		template := good(test.pub)
		test.edit(template)
		c, err := pki.SignLeaf(template, test.issuer, test.pub, mesh, r, now)
		var refusal *pki.LintError
		switch {
		case test.rule == "":
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		case c != nil:
			t.Errorf("%s: signed", test.name)
		case test.rule == "profile":
			if !errors.Is(err, identity.ErrProfile) {
				t.Errorf("%s: %v, want a refusal by the profile", test.name, err)
			}
		case !errors.As(err, &refusal) || !errors.Is(err, pki.ErrLint) || refusal.Rule != test.rule || refusal.Section == "":
			t.Errorf("%s: %v, want rule %s", test.name, err, test.rule)
		default:
			refused[test.rule] = true
		}
	}
	for _, rule := range pki.LintRules() {
		if !refused[rule] {
			t.Errorf("rule %s has no case that it refuses", rule)
		}
	}

	// The root's key is guarded likewise, by the profile of a mesh CA and the link.
	rootSigner := rootKey(t, "a")
	goodMesh := func() *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mesh"}, NotBefore: second, NotAfter: second.Add(time.Hour),
			BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: skid(key.Public()),
		}
	}
	for _, test := range []struct {
		name  string
		edit  func(*x509.Certificate)
		asked crypto.PublicKey
		want  error
	}{
		{"good", func(*x509.Certificate) {}, key.Public(), nil},
		{"a leaf", func(c *x509.Certificate) { c.IsCA, c.MaxPathLenZero = false, false }, key.Public(), identity.ErrProfile},
		{"a longer path", func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 1, false }, key.Public(), identity.ErrProfile},
		{"another key", func(*x509.Certificate) {}, p256(t).Public(), pki.ErrLint},
		{"outlives the root", func(c *x509.Certificate) { c.NotBefore = root.NotBefore.Add(-time.Second) }, key.Public(), pki.ErrLint},
	} {
		template := goodMesh()
		test.edit(template)
		if _, err := pki.SignMesh(template, root, key.Public(), rootSigner, test.asked, now); !errors.Is(err, test.want) {
			t.Errorf("mesh CA, %s: %v, want %v", test.name, err, test.want)
		}
	}
}

// Edges that the property rarely draws.
func TestIssueEdges(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 900e6, time.UTC)
	mesh, _ := newMesh(t, start)
	issuer, err := pki.NewIssuer(mesh, cluster)
	if err != nil {
		t.Fatal(err)
	}
	c := mesh.Certificate()
	for _, test := range []struct {
		name string
		now  time.Time
		ttl  time.Duration
		want error
	}{
		{"parts of seconds that add up to one", start, 1500 * time.Millisecond, nil},
		{"as early as the mesh CA", c.NotBefore, time.Second, nil},
		{"before the mesh CA", c.NotBefore.Add(-time.Nanosecond), time.Hour, pki.ErrMeshExpired},
		{"a moment before its end", c.NotAfter.Add(-time.Nanosecond), time.Hour, nil},
		{"at its end", c.NotAfter, time.Hour, pki.ErrMeshExpired},
		{"longest", start, pki.MaxTTL, nil},
	} {
		leaf, err := issuer.Issue(pki.Request{PublicKey: p256(t).Public(), ID: mustID(t, identity.Data, "a"), TTL: test.ttl}, test.now)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
			continue
		}
		if leaf != nil && (leaf.NotBefore.Before(c.NotBefore) || leaf.NotAfter.After(c.NotAfter)) {
			t.Errorf("%s: outlives its issuer", test.name)
		}
	}
}

func TestRenewMeshCA(t *testing.T) {
	start := time.Now()
	mesh, root := newMesh(t, start)
	later := mesh.Certificate().NotAfter.Add(time.Hour)
	again, err := pki.RenewMeshCA(root, rootKey(t, "a"), mesh, cluster, 60*time.Hour, later)
	if err != nil {
		t.Fatal(err)
	}
	if again.KeyID() != mesh.KeyID() || again.Epoch() != mesh.Epoch() || !again.Key().Equal(mesh.Key()) {
		t.Error("another key or epoch")
	}
	if c := again.Certificate(); !c.NotAfter.Equal(later.UTC().Truncate(time.Second).Add(60*time.Hour)) || !bytes.Equal(c.RawSubject, mesh.Certificate().RawSubject) {
		t.Errorf("valid to %v, named %v", c.NotAfter, c.Subject)
	}
	if _, err := pki.RenewMeshCA(root, p256(t), mesh, cluster, time.Hour, later); err == nil {
		t.Error("certified by another key than the root's")
	}
}

// counting counts signatures, and spoils them on demand.
type counting struct {
	*ecdsa.PrivateKey
	signed int
	spoil  bool
}

func (c *counting) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	c.signed++
	sig, err := c.PrivateKey.Sign(r, digest, opts)
	if c.spoil {
		sig[len(sig)-1] ^= 1
	}
	return sig, err
}

func TestGuard(t *testing.T) {
	authority := pkitest.NewAuthority(t, cluster)
	issuer := authority.MeshCA()
	key := &counting{PrivateKey: issuer.Key}
	pub := p256(t).Public()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.example"}}

	refusal := &pki.LintError{Rule: "r"}
	var seen *x509.Certificate
	_, err := pki.SignGuarded(template, issuer.Cert, pub, key, func(c *x509.Certificate) error { seen = c; return refusal })
	if !errors.Is(err, pki.ErrLint) || key.signed != 0 {
		t.Errorf("refused by the lint: %v, signed %d times", err, key.signed)
	}
	if seen == nil || !slices.Equal(seen.DNSNames, template.DNSNames) || len(seen.Raw) == 0 {
		t.Error("the lint did not see the encoded certificate")
	}
	accept := func(c *x509.Certificate) error { seen = c; return nil }
	c, err := pki.SignGuarded(template, issuer.Cert, pub, key, accept)
	if err != nil || key.signed != 1 || !bytes.Equal(c.RawTBSCertificate, seen.RawTBSCertificate) || c.CheckSignatureFrom(issuer.Cert) != nil {
		t.Errorf("accepted: %v, signed %d times", err, key.signed)
	}
	// crypto/x509 checks what a signer gives it. We rely on that.
	key.spoil = true
	if _, err := pki.SignGuarded(template, issuer.Cert, pub, key, accept); err == nil {
		t.Error("a spoiled signature went into a certificate")
	}
	if _, err := pki.SignDigest(key, rand.Reader, make([]byte, 32)); err == nil {
		t.Error("signed a digest, which nobody can lint")
	}
}

// A leaf is encoded here and not by crypto/x509: to the same bytes, for whatever may be asked.
func TestLeavesEncodeAsBefore(t *testing.T) {
	long := strings.Repeat("n", 60)
	for _, at := range []time.Time{time.Date(2026, 3, 1, 12, 0, 0, 900e6, time.FixedZone("", 3600)),
		time.Date(2049, 12, 31, 23, 0, 0, 0, time.UTC), time.Date(2051, 1, 1, 0, 0, 0, 0, time.UTC)} {
		mesh, _ := newMesh(t, at)
		for _, kind := range identity.Kinds() {
			for _, key := range []crypto.Signer{p256(t), pkitest.NewEd25519Key(t)} {
				for _, r := range []pki.Request{
					{TTL: time.Second},
					{TTL: pki.MaxTTL, DNSNames: []string{"node-a.example", long + "." + long + "." + long}},
					{TTL: 25 * time.Hour, DNSNames: []string{"a"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"),
						netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::ffff:10.0.0.2")}},
				} {
					r.PublicKey, r.ID = key.Public(), mustID(t, kind, "node-a")
					if kind == identity.Workload {
						r.Voucher = internalidentity.VoucherName("data/n1", (identity.KeyID{1}).String())
					}
					ours, theirs, err := pki.EncodeLeaf(mesh, r, at)
					if err != nil || !bytes.Equal(ours, theirs) {
						t.Errorf("%v at %v: %v\n%x\n%x", r.ID, at, err, ours, theirs)
					}
				}
			}
		}
	}
}

// A leaf goes out with a signature that verifies, or not at all.
func TestSpoiledSignatureIsNotIssued(t *testing.T) {
	issuer := pkitest.NewAuthority(t, cluster).MeshCA()
	mesh, _ := newMesh(t, time.Now())
	tbs, _, err := pki.EncodeLeaf(mesh, pki.Request{PublicKey: p256(t).Public(), ID: mustID(t, identity.Data, "a"), TTL: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key := &counting{PrivateKey: issuer.Key}
	accept := func(*x509.Certificate) error { return nil }
	c, err := pki.Certify(tbs, key, accept)
	if err != nil || key.signed != 1 || !bytes.Equal(c.RawTBSCertificate, tbs) || issuer.Cert.CheckSignature(x509.ECDSAWithSHA256, tbs, c.Signature) != nil {
		t.Errorf("accepted: %v, signed %d times", err, key.signed)
	}
	if again, err := x509.ParseCertificate(c.Raw); err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("what is returned is not what its bytes say: %v", err)
	}
	refusal := &pki.LintError{Rule: "r"}
	if _, err := pki.Certify(tbs, key, func(*x509.Certificate) error { return refusal }); !errors.Is(err, pki.ErrLint) || key.signed != 1 {
		t.Errorf("refused by the lint: %v, signed %d times", err, key.signed)
	}
	key.spoil = true
	if c, err := pki.Certify(tbs, key, accept); err == nil || c != nil {
		t.Error("a spoiled signature went into a certificate")
	}
}

func TestIssueConcurrently(t *testing.T) {
	issuer := newIssuer(t)
	var g sync.WaitGroup
	for i := range 4 {
		key, id := p256(t), mustID(t, identity.Data, fmt.Sprintf("node-%d", i))
		g.Go(func() {
			for range 10 {
				leaf, err := issuer.Issue(pki.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour}, time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := identity.FromCertificate(leaf); err != nil || got != id || !key.PublicKey.Equal(leaf.PublicKey) {
					t.Errorf("got %v, %v, want %v", got, err, id)
				}
			}
		})
	}
	g.Wait()
}

func TestKeysDoNotShow(t *testing.T) {
	issuer := newIssuer(t)
	mesh := issuer.MeshCA()
	scalar, err := mesh.Key().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	decimal := new(big.Int).SetBytes(scalar).String()
	var shown strings.Builder
	for _, v := range []any{mesh, *mesh, issuer, *issuer, struct{ m *pki.MeshCA }{mesh}, struct{ M pki.MeshCA }{*mesh}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q", "%z"} {
			fmt.Fprintf(&shown, verb, v)
		}
		slog.New(slog.NewTextHandler(&shown, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&shown, nil)).Info("m", "v", v)
	}
	for _, secret := range []string{hex.EncodeToString(scalar), strings.Trim(fmt.Sprint(scalar), "[]"), decimal} {
		if strings.Contains(strings.ToLower(shown.String()), secret) {
			t.Error("a private key shows")
		}
	}
}

// BenchmarkIssue compares a request's whole way (ParseCSR, Issue) with what is
// left without any check of our own: the request's signature and
// x509.CreateCertificate. The metric raw/ours is the part of the raw throughput
// that is reached; the aim is 0.8.
func BenchmarkIssue(b *testing.B) {
	issuer := newIssuer(b)
	mesh := issuer.MeshCA()
	id := mustID(b, identity.Data, "node-a")
	for name, key := range map[string]crypto.Signer{"P-256": p256(b), "Ed25519": pkitest.NewEd25519Key(b)} {
		b.Run(name, func(b *testing.B) {
			der, err := pki.NewCSR(key)
			if err != nil {
				b.Fatal(err)
			}
			now := time.Now()
			subjectKeyID, err := internalidentity.SubjectKeyID(key.Public())
			if err != nil {
				b.Fatal(err)
			}
			var raw, ours []time.Duration
			for b.Loop() {
				start := time.Now()
				csr, err := x509.ParseCertificateRequest(der)
				if err != nil || csr.CheckSignature() != nil {
					b.Fatal(err)
				}
				template := &x509.Certificate{
					SerialNumber: big.NewInt(1 << 60), NotBefore: now.Add(-pki.Backdate), NotAfter: now.Add(time.Hour),
					KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
					BasicConstraintsValid: true, URIs: []*url.URL{id.URL()}, SubjectKeyId: subjectKeyID,
				}
				if _, err := x509.CreateCertificate(rand.Reader, template, mesh.Certificate(), csr.PublicKey, mesh.Key()); err != nil {
					b.Fatal(err)
				}
				raw = append(raw, time.Since(start))

				start = time.Now()
				pub, err := pki.ParseCSR(der)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := issuer.Issue(pki.Request{PublicKey: pub, ID: id, TTL: time.Hour}, now); err != nil {
					b.Fatal(err)
				}
				ours = append(ours, time.Since(start))
			}
			// Medians, because other work on the machine interrupts some of them.
			slices.Sort(raw)
			slices.Sort(ours)
			b.ReportMetric(float64(raw[len(raw)/2])/float64(ours[len(ours)/2]), "raw/ours")
			b.ReportMetric(float64(ours[len(ours)/2].Microseconds()), "µs/issue")
		})
	}
}

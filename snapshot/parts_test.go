package snapshot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/snapshot"
)

func TestPAE(t *testing.T) {
	if got, want := string(snapshot.PAE("t", "prod.example", []byte("a b"))), "FealtyPAEv1 1 t 12 prod.example 3 a b"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	seen := map[string]bool{}
	for _, in := range [][3]string{{"a", "b", "c"}, {"a", "b ", "c"}, {"a b", "", "c"}, {"", "a b", "c"}, {"a", "b", " c"}, {"a", "b 1", "c"}, {"a", "b", "1 c"}} {
		out := string(snapshot.PAE(in[0], in[1], []byte(in[2])))
		if seen[out] {
			t.Fatalf("%q is ambiguous", out)
		}
		seen[out] = true
	}
}

// The tree and its proofs are those of tlog, which are those of RFC 6962.
func TestTree(t *testing.T) {
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, x := range at {
			out[i] = stored[x]
		}
		return out, nil
	})
	var leaves []Digest
	for n := range 70 {
		header := bytes.Repeat([]byte{byte(n)}, n)
		add := must(tlog.StoredHashes(int64(n), snapshot.PAE(snapshot.TypeSnapshot, testCluster, header), read))
		stored = append(stored, add...)
		leaves = append(leaves, LeafOf(testCluster, header))
		tree := NewTree(leaves)
		if root := must(tlog.TreeHash(int64(n+1), read)); Digest(root) != tree.Root() || tree.Size() != uint64(n+1) {
			t.Fatalf("root of %d: %s, want %s", n+1, tree.Root(), root)
		}
		r := Record{Root: tree.Root(), TreeSize: tree.Size()}
		for i := range leaves {
			p := must(tree.Proof(i))
			want := must(tlog.ProveRecord(int64(n+1), int64(i), read))
			if len(want) != len(p.Hashes) {
				t.Fatalf("proof of %d in %d has %d hashes, want %d", i, n+1, len(p.Hashes), len(want))
			}
			if msg := p.fault(leaves[i], &r); msg != "" {
				t.Fatalf("%d in %d: %s", i, n+1, msg)
			}
			if msg := p.fault(leaves[(i+1)%len(leaves)], &r); msg == "" && n > 0 {
				t.Fatalf("%d in %d proves another leaf", i, n+1)
			}
			for other := range uint64(n + 3) {
				if msg := (Proof{other, p.Hashes}).fault(leaves[i], &r); msg == "" && other != uint64(i) {
					t.Fatalf("the proof of %d in %d is one of %d too", i, n+1, other)
				}
			}
		}
	}
	for _, i := range []int{-1, len(leaves)} {
		if _, err := NewTree(leaves).Proof(i); err == nil {
			t.Errorf("proved leaf %d of %d", i, len(leaves))
		}
	}
	for _, empty := range []*Tree{NewTree(nil), {}} {
		if _, err := empty.Proof(0); err == nil || empty.Size() != 0 || !empty.Root().IsZero() {
			t.Error("an empty tree has a root")
		}
	}
	for _, r := range []Record{{}, {TreeSize: 1 << 63}, {TreeSize: 1<<snapshot.MaxProof + 1}} {
		if msg := (Proof{}).fault(leaves[0], &r); msg == "" {
			t.Errorf("a proof in a tree of %d", r.TreeSize)
		}
	}
}

func TestSubject(t *testing.T) {
	me := mustID(identity.New(testCluster, identity.Data, "node-c"))
	for _, s := range []Subject{NodeSubject(me, identity.KeyID{1}), ClusterSubject(), GroupSubject([]string{"ingress"}, []string{"acme"}), GroupSubject(nil, nil)} {
		if got, err := ParseSubject(s.String()); err != nil || got != s {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if id, inc, ok := NodeSubject(me, identity.KeyID{1}).Node(); !ok || id != me || inc != (identity.KeyID{1}) {
		t.Error("a node subject is no node")
	}
	if _, _, ok := ClusterSubject().Node(); ok {
		t.Error("the cluster is a node")
	}
	node := NodeSubject(me, identity.KeyID{1}).String()
	for _, bad := range []string{
		"", "node", "node:", "group", "group:", "group:a b", "role:ingress", "organization:acme", "cluster:", "cluster:x", "host:x",
		node[:len(node)-1], node + "0", strings.ToUpper(node), strings.Replace(node, "#", "", 1), strings.Replace(node, "#01", "#0A", 1),
		"node:spiffe://prod.example/robot/x#" + strings.Repeat("0", 64), "group:" + strings.Repeat("a", 63), "group:" + strings.Repeat("A", 64), "group:" + strings.Repeat("a", 65),
	} {
		if got, err := ParseSubject(bad); err == nil {
			t.Errorf("%q is subject %v", bad, got)
		}
	}
}

func TestRootStatement(t *testing.T) {
	f := newFleet(t)
	root := f.ca.Root()
	other := pkitest.NewAuthority(t, testCluster).Root()
	st := RootStatement{ClusterID: testCluster, ConfigRoot: public(f.root), SeedEpoch: 2, IssuedAt: f.now}
	signed := must(st.sign(root.Key))
	data := must(signed.marshal())
	signed = must(unmarshalRoot(data))

	got, err := verifyRoot(signed, []*x509.Certificate{other.Cert, root.Cert}, testCluster, f.now)
	if err != nil || !got.ConfigRoot.Equal(public(f.root)) || got.SeedEpoch != 2 || got.ClusterID != testCluster || !got.IssuedAt.Equal(f.now) {
		t.Fatalf("%+v, %v", got, err)
	}
	raw := func(statement []byte, cluster, typ string) *signedRoot {
		sum := DigestOf(snapshot.PAE(typ, cluster, statement))
		return &signedRoot{statement, must(ecdsa.SignASN1(rand.Reader, root.Key, sum[:]))}
	}
	foreign := st
	foreign.ClusterID = "test.example"
	noEpoch := st
	noEpoch.SeedEpoch = 0
	short := st
	short.ConfigRoot = short.ConfigRoot[:31]
	later := st
	later.IssuedAt = f.now.Add(snapshot.ClockTolerance + time.Second)
	for _, c := range []struct {
		name   string
		signed *signedRoot
		roots  []*x509.Certificate
		check  int
	}{
		{"nothing", nil, nil, checkLimits},
		{"too long", &signedRoot{make([]byte, snapshot.MaxRecord+1), signed.Signature}, []*x509.Certificate{root.Cert}, checkLimits},
		{"no pinned root", signed, nil, checkSignature},
		{"another root", signed, []*x509.Certificate{other.Cert}, checkSignature},
		{"signed as another type", raw(signed.Statement, testCluster, snapshot.TypeSnapshot), []*x509.Certificate{root.Cert}, checkSignature},
		{"signed for another cluster", must(foreign.sign(root.Key)), []*x509.Certificate{root.Cert}, checkSignature},
		{"of another cluster", raw(must(encode(&foreign)), testCluster, snapshot.TypeRoot), []*x509.Certificate{root.Cert}, checkCluster},
		{"not canonical", raw(append(signed.Statement[:len(signed.Statement):len(signed.Statement)], ' '), testCluster, snapshot.TypeRoot), []*x509.Certificate{root.Cert}, checkSchema},
		{"no seed epoch", raw(must(encode(&noEpoch)), testCluster, snapshot.TypeRoot), []*x509.Certificate{root.Cert}, checkSchema},
		{"short key", raw(must(encode(&short)), testCluster, snapshot.TypeRoot), []*x509.Certificate{root.Cert}, checkSchema},
		{"of tomorrow", must(later.sign(root.Key)), []*x509.Certificate{root.Cert}, checkValidity},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := verifyRoot(c.signed, c.roots, testCluster, f.now)
			wantRefused(t, err, c.check, Reason(snapshot.ReasonOf(c.check)))
		})
	}
	for _, s := range sites(t, signed.Statement) {
		for _, m := range mutations {
			bent := m.bend(signed.Statement, s)
			if bent == nil || bytes.Equal(bent, signed.Statement) {
				continue
			}
			if _, err := verifyRoot(raw(bent, testCluster, snapshot.TypeRoot), []*x509.Certificate{root.Cert}, testCluster, f.now); !errors.Is(err, ErrRejected) {
				t.Errorf("%s %s: %v", s.path, m.name, err)
			}
		}
	}
	try := func(data []byte) {
		t.Helper()
		s, err := unmarshalRoot(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if _, err := verifyRoot(s, []*x509.Certificate{root.Cert}, testCluster, f.now); err == nil {
			t.Fatal("accepted")
		}
	}
	for i := range data {
		data[i] ^= 1 << (i % 8)
		try(data)
		data[i] ^= 1 << (i % 8)
		try(data[:i])
	}
	try(append(data, 0))

	if _, err := noEpoch.sign(root.Key); err == nil {
		t.Error("signed without a seed epoch")
	}
	if _, err := st.sign(f.root); err == nil {
		t.Error("signed with an Ed25519 key")
	}
	if _, err := st.sign(must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))); err == nil {
		t.Error("signed with a P-384 key")
	}
	if _, err := (&signedRoot{make([]byte, snapshot.MaxRecord+1), nil}).marshal(); !errors.Is(err, ErrMalformed) {
		t.Error("encoded above the limit")
	}
}

// The bundle under a new root follows the one before it no more than any other: it
// takes the signers' change of root. And the key that signs bundles retires no root.
func TestBundleMovesNoRoot(t *testing.T) {
	f := newFleet(t)
	other := newFleet(t)
	for name, edit := range map[string]func(*TrustBundle){
		"another root":           func(b *TrustBundle) { b.Roots = [][]byte{other.ca.Root().Cert.Raw} },
		"another root, retiring": func(b *TrustBundle) { b.Roots, b.RetiredRoots = [][]byte{other.ca.Root().Cert.Raw}, b.Roots },
		"a retired root":         func(b *TrustBundle) { b.RetiredRoots = [][]byte{other.ca.Root().Cert.Raw} },
	} {
		s := f.signedBundle(t, func(h *Header, b *TrustBundle) { h.ConfigVersion++; edit(b) })
		if v, err := Verify(s, f.trust(), Marks{}, f.now); !errors.Is(err, ErrRejected) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

// The examples are put together at run time, so that no scanner takes this file
// for a leak.
func TestFindSecret(t *testing.T) {
	const run = "abcdefghij0123456789klmnopqrst9876543210"
	for _, s := range []string{
		"-----BEGIN PRIVATE " + "KEY-----", "-----BEGIN EC PRIVATE " + "KEY-----\nMHcC", "x -----begin openssh private " + "key-----",
		"AGE-SECRET-" + "KEY-1QQ", "PuTTY-User-" + "Key-File-3", "fealty1_" + "x",
		"eyJ" + "hbGciOiJFZERTQSJ9" + ".eyJzdWIiOiJ4In0." + run, "Bearer " + run, "Authorization: bearer " + run, "Basic " + run,
		"AKIA" + "ABCDEFGHIJKLMNOP", "ASIA" + "ABCDEFGHIJKLMNOP", "ghp_" + run, "gho_" + run, "ghu_" + run, "ghs_" + run, "ghr_" + run,
		"github_pat_" + run, "glpat-" + run, "xoxb-" + run, "xoxp-" + run, "AIza" + run, "sk_live_" + run, "rk_live_" + run, "npm_" + run,
		"hvs." + run, "SG." + run, "postgres://app:" + "hunter2@db.example/app", "Password=" + "x", "host=x passwd=" + "y",
		"client_secret=" + "y", "AccountKey=" + "y", "api_key=" + "y", "é password=" + "x", "eyJ not yet, but eyJ" + "hbGciOiJFZERTQSJ9" + ".eyJzdWIiOiJ4In0.",
	} {
		if snapshot.FindSecret(s, true) == "" {
			t.Errorf("%q: nothing found", s)
		}
		b := &NodeBootstrap{Entry: s}
		c := &codec{}
		b.walk(c)
		if c.Err() == nil && c.Secret() == "" {
			t.Errorf("%q: not seen when written", s)
		}
		if read, err := decode(string(c.Out()), new(NodeBootstrap)); err == nil && read.Secret() == "" {
			t.Errorf("%q: not seen when read", s)
		}
	}
	for _, name := range []string{"glpat-" + run, "ghp_" + run, "hvs." + run, "n-xoxb-" + run} {
		id := mustID(identity.New(testCluster, identity.Data, name))
		read, err := decode(string(must(encode(&NodeBootstrap{Node: id, ClusterID: testCluster}))), new(NodeBootstrap))
		if err != nil || read.Secret() == "" {
			t.Errorf("member %q: not seen when read: %v", name, err)
		}
	}
	for _, s := range []string{
		"", "edge-pool", "spiffe://prod.example/data/node-c", "c1.prod.example:7443", "https://c1.prod.example:7443/a@b", "[2001:db8::1]:7443",
		"role:ingress", "bearer of bad news", "basic plan", "eyJ", "password", "password=", "continue_services", "ref:vault/db#user", strings.Repeat("0a", 32),
	} {
		if got := snapshot.FindSecret(s, true); got != "" {
			t.Errorf("%q: taken for a %s", s, got)
		}
	}
}

// Check 12 is settled: a form that was learned after snapshots were signed is refused where config is put, and a node that
// has such a snapshot goes on.
func TestCheckOfSecretsIsSettled(t *testing.T) {
	for _, s := range []string{"sshpass -p hunter" + "2 ssh gw", "PrivateKey = " + strings.Repeat("aB3/", 10) + "abc=", `{"password":"` + `x"}`} {
		if snapshot.SecretIn("", s) == "" {
			t.Errorf("%q can be put", s)
		}
		c, id := &codec{}, mustID(identity.New(testCluster, identity.Data, "a"))
		(&NodeBootstrap{Node: id, ClusterID: testCluster, Entry: s}).walk(c)
		if c.Err() != nil || c.Secret() != "" {
			t.Errorf("%q: a coordinator signs no snapshot of what is stored: %v, %q", s, c.Err(), c.Secret())
		}
		if read, err := decode(string(c.Out()), new(NodeBootstrap)); err != nil || read.Secret() != "" {
			t.Errorf("%q: a node takes no snapshot of what is stored: %v", s, err)
		}
	}
}

func TestUnmarshalLimits(t *testing.T) {
	f := newFleet(t)
	s := f.signedBootstrap(t)
	for name, bend := range map[string]func(*Signed){
		"no header":            func(s *Signed) { s.Header = nil },
		"nothing but a header": func(s *Signed) { s.Content, s.Signatures, s.Publication = nil, s.Publication.Signatures, nil },
		"content and a patch":  func(s *Signed) { s.Patch = []byte("{}") },
		"a patch and no publication": func(s *Signed) {
			s.Content, s.Patch, s.Signatures, s.Publication = nil, []byte("{}"), s.Publication.Signatures, nil
		},
		"long patch":  func(s *Signed) { s.Content, s.Patch = nil, make([]byte, snapshot.MaxContent+1) },
		"long record": func(s *Signed) { s.Publication.Record = make([]byte, snapshot.MaxRecord+1) },
		"long key id": func(s *Signed) { s.Publication.Signatures[0].KeyID = strings.Repeat("a", snapshot.MaxKeyID+1) },
		"long algorithm": func(s *Signed) {
			s.Publication.Signatures[0].Algorithm = strings.Repeat("a", snapshot.MaxAlgorithm+1)
		},
		"two ways":         func(s *Signed) { s.Signatures = s.Publication.Signatures },
		"proof of nothing": func(s *Signed) { s.Signatures, s.Publication, s.Proof.Index = s.Publication.Signatures, nil, 1 },
	} {
		c := must(Unmarshal(must(s.Marshal())))
		bend(c)
		if _, err := c.Marshal(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (*Signed)(nil).Marshal(); !errors.Is(err, ErrMalformed) {
		t.Errorf("nil: %v", err)
	}
	// A length that promises more than there is costs nothing.
	lie := append([]byte(signedMagic), 0, 0, 0, 0x20, 0, '{')
	if n := testing.AllocsPerRun(10, func() { Unmarshal(lie) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
	data := must(s.Marshal())
	if len(data) > snapshot.MaxSigned {
		t.Error("above MaxSigned")
	}
	clearable := bytes.Clone(data)
	c := must(Unmarshal(clearable))
	clear(clearable)
	if !bytes.Equal(must(c.Marshal()), data) {
		t.Error("Unmarshal shares memory with its input")
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for check := range remedies {
		err := refuse(check, ScopeTrustBundle, "detail")
		for _, part := range []string{"trust_bundle", "detail", remedies[check]} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
	}
	if text := refuse(checkLimits, "", "x").Error(); !strings.HasPrefix(text, "snapshot refused by a limit: ") {
		t.Errorf("%q", text)
	}
}

package snapshot

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// fleet is a small cluster: its keys, one node, and valid snapshots for it. Everything that it makes is valid; tests bend one thing at a time.
type fleet struct {
	now         time.Time
	ca          *pkitest.Authority
	root        ed25519.PrivateKey   // config root key
	keys        []ed25519.PrivateKey // config signing keys, sorted by public key
	signers     []ed25519.PublicKey
	me          identity.ID
	incarnation identity.KeyID
	bundle      *Verified // the active one
}

const testCluster = "prod.example"

func newKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// keyOf derives a key from its name: the same in every process, as the workers
// of a fuzz run need it.
func keyOf(name string) ed25519.PrivateKey {
	seed := DigestOf([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func newFleet(tb testing.TB) *fleet {
	tb.Helper()
	f := &fleet{now: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)}
	f.ca = pkitest.NewAuthority(tb, testCluster, pkitest.WithClock(func() time.Time { return f.now }))
	f.root = keyOf("config root")
	f.keys = []ed25519.PrivateKey{keyOf("config 0"), keyOf("config 1")}
	slices.SortFunc(f.keys, func(a, b ed25519.PrivateKey) int { return bytes.Compare(public(a), public(b)) })
	f.signers = []ed25519.PublicKey{public(keyOf("alice"))}
	f.me = f.ca.ID(tb, identity.Data, "node-c")
	f.incarnation = identity.KeyID{1, 2, 3}
	f.bundle = f.mustVerify(tb, f.signedBundle(tb), f.trust())
	return f
}

func (f *fleet) trust() Trust {
	return Trust{
		Me: f.me, Incarnation: f.incarnation, ConfigRoot: public(f.root), Bundle: f.bundle,
		Roles: []string{"ingress"}, Organizations: []string{"acme"},
	}
}

func (f *fleet) header() Header {
	return Header{
		ClusterID: testCluster, ConfigVersion: 7, AuthorityEpoch: 3,
		IssuedAt: f.now.Add(-time.Minute), ValidFrom: f.now.Add(-time.Minute),
		ExpiresAt: f.now.Add(30 * 24 * time.Hour), RefreshAfter: f.now.Add(time.Hour),
	}
}

func (f *fleet) bundleHeader() Header {
	h := f.header()
	h.Subject = ClusterSubject()
	return h
}

func (f *fleet) bundleContent() *TrustBundle {
	b := &TrustBundle{
		ClusterID: testCluster, AuthorityEpoch: 3,
		Roots:      [][]byte{f.ca.Root().Cert.Raw},
		MeshKeys:   []identity.KeyID{f.ca.MeshCA().KeyID()},
		BannedIDs:  []identity.ID{mustID(identity.New(testCluster, identity.Data, "bad"))},
		BannedKeys: []identity.KeyID{{9}},
		ConfigRoot: public(f.root),
		Signers:    Signers{Threshold: 1, Keys: []SignerKey{{Name: "alice", Key: f.signers[0]}}},
		Head:       Head{Index: 4, Hash: Digest{4}},
	}
	for _, k := range f.keys {
		b.ConfigKeys = append(b.ConfigKeys, ConfigKey{
			Algorithm: snapshot.AlgorithmTree, Key: public(k), NotBefore: f.now.Add(-time.Hour), NotAfter: f.now.Add(90 * 24 * time.Hour),
			Scopes: slices.DeleteFunc(Scopes(), func(s Scope) bool { return s == ScopeTrustBundle }),
		})
	}
	return b
}

func mustID(id identity.ID, err error) identity.ID {
	if err != nil {
		panic(err)
	}
	return id
}

func (f *fleet) bootstrapHeader() Header {
	h := f.header()
	h.Subject = NodeSubject(f.me, f.incarnation)
	h.Roles, h.OrganizationIDs = []string{"ingress"}, []string{"acme"}
	return h
}

func (f *fleet) bootstrapContent() *NodeBootstrap {
	return &NodeBootstrap{
		ClusterID: testCluster, Node: f.me, Kind: identity.Data,
		Roles: []string{"ingress"}, Organizations: []string{"acme"}, Entry: "edge-pool",
		Members: []Member{
			{mustID(identity.New(testCluster, identity.Data, "node-a")), MemberActive},
			{mustID(identity.New(testCluster, identity.Data, "node-b")), MemberDraining},
		},
		Coordinators: []string{"c1.prod.example:7443", "[2001:db8::1]:7443"},
		RenewEvery:   30 * time.Minute, SVIDTTL: 25 * time.Hour,
		Degraded:   DegradedPolicy{Allow: []string{"continue_services", "preserve_routes"}, Max: 24 * time.Hour, RouteTTL: time.Hour},
		Resilience: Resilience{DataMembers: 2, Required: 3},
	}
}

func (f *fleet) runtimeContent() *NodeRuntime {
	return &NodeRuntime{
		ClusterID: testCluster, Kind: identity.Data,
		Roles: []string{"ingress"}, Organizations: []string{"acme"}, Entry: "edge-pool", State: MemberActive,
		Companions:   []Scope{ScopeDegradedModePolicy, ScopePeerDirectory},
		Coordinators: []string{"c1.prod.example:7443", "[2001:db8::1]:7443"},
		RenewEvery:   30 * time.Minute, SVIDTTL: 25 * time.Hour,
		Degraded: &DegradedPolicy{Allow: []string{"continue_services", "preserve_routes"}, Max: 24 * time.Hour, RouteTTL: time.Hour},
	}
}

func (f *fleet) record() Record {
	return Record{
		ClusterID: testCluster, AuthorityEpoch: 3, Generation: 11,
		IssuedAt: f.now.Add(-time.Minute), FreshUntil: f.now.Add(10 * time.Minute),
	}
}

func (f *fleet) signedBundle(tb testing.TB, edits ...func(*Header, *TrustBundle)) *Signed {
	tb.Helper()
	h, b := f.bundleHeader(), f.bundleContent()
	for _, e := range edits {
		e(&h, b)
	}
	d, err := Compose(h, b)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := d.Sign(f.root)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (f *fleet) signedBootstrap(tb testing.TB, edits ...func(*Header, *NodeBootstrap, *Record)) *Signed {
	tb.Helper()
	h, b, r := f.bootstrapHeader(), f.bootstrapContent(), f.record()
	for _, e := range edits {
		e(&h, b, &r)
	}
	d, err := Compose(h, b)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := d.Publish(r, f.keys[0])
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// forge signs what no compiler should: any header over any content, with no
// check of ours in the way.
type forge struct {
	header  Header
	content Content
	raw     []byte // instead of content
	record  Record
	cluster string // of what is signed
	root    bool   // sign the header with the config root key; else publish
	keys    []crypto.Signer
}

func (f *fleet) forge(edit func(*forge)) *Signed {
	g := &forge{header: f.bootstrapHeader(), content: f.bootstrapContent(), record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
	g.header.SchemaVersion, g.header.SnapshotID, g.header.ScopeType = schemaVersion, "forged", ScopeNodeBootstrap
	return g.sign(edit)
}

func (f *fleet) forgeRuntime(edit func(*forge)) *Signed {
	g := &forge{header: f.bootstrapHeader(), content: f.runtimeContent(), record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
	g.header.SchemaVersion, g.header.SnapshotID, g.header.ScopeType = schemaVersion, "forged", ScopeNodeRuntime
	return g.sign(edit)
}

func (f *fleet) forgeBundle(edit func(*forge)) *Signed {
	g := &forge{header: f.bundleHeader(), content: f.bundleContent(), cluster: testCluster, root: true, keys: []crypto.Signer{f.root}}
	g.header.SchemaVersion, g.header.SnapshotID, g.header.ScopeType = schemaVersion, "forged", ScopeTrustBundle
	return g.sign(edit)
}

func (g *forge) sign(edit func(*forge)) *Signed {
	edit(g)
	content := g.raw
	if content == nil {
		content = must(encode(g.content))
	}
	if g.header.ContentHash.IsZero() {
		g.header.ContentHash = DigestOf(content)
	}
	if g.header.ContentSize == 0 {
		g.header.ContentSize = len(content)
	}
	return g.signBytes(must(encode(&g.header)), content)
}

func (g *forge) signBytes(header, content []byte) *Signed {
	if g.root {
		return &Signed{Header: header, Content: content, Signatures: must(signAll(snapshot.PAE(snapshot.TypeSnapshot, g.cluster, header), snapshot.AlgorithmEd25519, g.keys))}
	}
	r := g.record
	r.Root, r.TreeSize = LeafOf(g.cluster, header), 1
	record := must(encode(&r))
	return &Signed{Header: header, Content: content, Publication: &Publication{
		Record: record, Signatures: must(signAll(snapshot.PAE(snapshot.TypePublication, g.cluster, record), snapshot.AlgorithmTree, g.keys)),
	}}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (f *fleet) mustVerify(tb testing.TB, s *Signed, trust Trust) *Verified {
	tb.Helper()
	v, err := Verify(s, trust, Marks{}, f.now)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func mustAccept(tb testing.TB, m Marks, v *Verified) Marks {
	tb.Helper()
	next, err := Accept(m, v)
	if err != nil {
		tb.Fatal(err)
	}
	return next
}

// wantRefused fails unless err is a refusal by check for reason.
func wantRefused(tb testing.TB, err error, check int, reason Reason) {
	tb.Helper()
	rejected, ok := errors.AsType[*RejectedError](err)
	if !ok {
		tb.Fatalf("got %v, want a refusal by check %d (%s)", err, check, reason)
	}
	if rejected.Check != check || rejected.Reason != reason {
		tb.Fatalf("refused by check %d (%s): %v; want check %d (%s)", rejected.Check, rejected.Reason, err, check, reason)
	}
	if !errors.Is(err, ErrRejected) {
		tb.Fatalf("%v matches the wrong sentinels", err)
	}
}

func signersOf(keys ...ed25519.PrivateKey) []crypto.Signer {
	out := make([]crypto.Signer, len(keys))
	for i, k := range keys {
		out[i] = k
	}
	return out
}

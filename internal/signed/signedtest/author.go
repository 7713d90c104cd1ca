// Package signedtest signs what the authorities of a cluster sign, for tests of members.
package signedtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	Cluster     = "prod.example"
	DataDir     = "/var/lib/fealty"
	Coordinator = "c1.prod.example:7443"
)

// Author is what a cluster signs with: its root, its mesh CA and its config keys, and the
// numbers that go up with what it signs.
type Author struct {
	TB    testing.TB
	Clock func() time.Time // everybody's
	Shift atomic.Int64     // of the clock, ahead of time.Now
	at    []string         // where coordinators are, as what is signed says

	rootKey    *ecdsa.PrivateKey
	Root       *x509.Certificate
	configRoot ed25519.PrivateKey
	ConfigKey  ed25519.PrivateKey
	Signer     ed25519.PrivateKey

	Mu       sync.Mutex
	Mesh     *pki.MeshCA      // guarded by mu, as all that follows
	MeshKeys []identity.KeyID // accepted
	Epoch    uint64           // authority
	Version  uint64           // of the trust bundle
	Next     uint64           // revision, for bootstraps and generations
	Banned   []identity.KeyID
	History  [][]byte // its links; nil: one for each authority epoch

	SVIDTTL    time.Duration
	RenewEvery time.Duration
	BundleLife time.Duration
}

// New makes the keys of a cluster with coordinators at these addresses.
func New(tb testing.TB, addresses []string) *Author {
	tb.Helper()
	a := &Author{
		TB: tb, at: slices.Sorted(slices.Values(addresses)), Epoch: 1, Version: 10, Next: 100,
		SVIDTTL: 25 * time.Hour, RenewEvery: 30 * time.Minute, BundleLife: 50 * time.Hour,
	}
	a.Clock = func() time.Time { return time.Now().Add(time.Duration(a.Shift.Load())) }
	now := a.Clock()
	var err error
	a.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.Must(err)
	a.Root, err = pki.Root(a.rootKey, Cluster, now.Add(-time.Hour))
	a.Must(err)
	_, a.configRoot, _ = ed25519.GenerateKey(rand.Reader)
	_, a.ConfigKey, _ = ed25519.GenerateKey(rand.Reader)
	_, a.Signer, _ = ed25519.GenerateKey(rand.Reader)
	a.NewMeshCA()
	return a
}

type Member struct {
	ID          identity.ID
	Key         identity.KeyID
	Older       []identity.KeyID
	Incarnation identity.KeyID
	NotAfter    time.Time
	Proof       string
}

// Must ends the test with err.
func (a *Author) Must(err error) {
	if err != nil {
		a.TB.Helper()
		a.TB.Fatal(err)
	}
}

// NewMeshCA makes the mesh CA of the current epoch.
func (a *Author) NewMeshCA() {
	m, err := pki.NewMeshCA(a.Root, a.rootKey, pki.MeshConfig{Cluster: Cluster, Epoch: a.Epoch,
		Validity: 400 * 24 * time.Hour}, a.Clock())
	a.Must(err)
	a.Mesh = m
	a.MeshKeys = append(a.MeshKeys, m.KeyID())
}

// Unlike is another certificate of the key of like, which is the root or a mesh CA, by the root: of no profile, as
// it may be used for one thing more.
func (a *Author) Unlike(like *x509.Certificate) *x509.Certificate {
	c, err := pkitest.Unlike(like, a.Root, a.rootKey)
	a.Must(err)
	return c
}

// Issue certifies a key.
func (a *Author) Issue(public any, id identity.ID, ttl time.Duration) []*x509.Certificate {
	issuer, err := pki.NewIssuer(a.Mesh, Cluster)
	a.Must(err)
	leaf, err := issuer.Issue(pki.Request{PublicKey: public, ID: id, TTL: ttl}, a.Clock())
	a.Must(err)
	return []*x509.Certificate{leaf, a.Mesh.Certificate(), a.Root}
}

// LeafFor makes a leaf of the current mesh CA, over the key of like or a new one.
func (a *Author) LeafFor(kind identity.Kind, name string, like []byte) *x509.Certificate {
	id, err := identity.New(Cluster, kind, name)
	a.Must(err)
	key, err := dir.NewKeyPair()
	a.Must(err)
	public := key.Signer().Public()
	if like != nil {
		c, err := x509.ParseCertificate(like)
		a.Must(err)
		public = c.PublicKey
	}
	return a.Issue(public, id, a.SVIDTTL)[0]
}

// Content is what the trust bundle says now.
func (a *Author) Content() *snapshot.TrustBundle {
	now := a.Root.NotBefore.UTC().Truncate(time.Second)
	b := &snapshot.TrustBundle{
		ClusterID: Cluster, AuthorityEpoch: a.Epoch, Roots: [][]byte{a.Root.Raw}, MeshKeys: slices.Clone(a.MeshKeys),
		BannedKeys: slices.Clone(a.Banned),
		ConfigRoot: a.configRoot.Public().(ed25519.PublicKey),
		ConfigKeys: []snapshot.ConfigKey{{
			Algorithm: internalsnapshot.AlgorithmTree, Key: a.ConfigKey.Public().(ed25519.PublicKey), NotBefore: now,
			NotAfter: now.Add(2 * 365 * 24 * time.Hour),
			Scopes: slices.DeleteFunc(snapshot.Scopes(),
				func(s snapshot.Scope) bool { return s == snapshot.ScopeTrustBundle }),
		}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice",
			Key: a.Signer.Public().(ed25519.PublicKey)}}},
		Head: headOf(a.Links()),
	}
	compare := func(a, b identity.KeyID) int { return bytes.Compare(a[:], b[:]) }
	slices.SortFunc(b.MeshKeys, compare)
	slices.SortFunc(b.BannedKeys, compare)
	return b
}

// Links are those of the fleet's history: one for each authority epoch.
func (a *Author) Links() [][]byte {
	if a.History != nil {
		return a.History
	}
	var out [][]byte
	var previous history.Hash
	for epoch := uint64(1); epoch <= a.Epoch; epoch++ {
		t := history.Transition{Index: epoch, AuthorityEpoch: epoch, Previous: previous, Kind: history.KindRekey,
			MeshCAKey: identity.KeyID{byte(epoch)}}
		raw, err := t.Encode()
		a.Must(err)
		out, previous = append(out, raw), history.Hash(snapshot.DigestOf(raw))
	}
	return out
}

func headOf(links [][]byte) snapshot.Head {
	last := links[len(links)-1]
	t, err := history.Decode(last)
	if err != nil {
		panic("the fleet made it: " + err.Error())
	}
	return snapshot.Head{Index: t.Index, Hash: snapshot.DigestOf(last)}
}

func (a *Author) revocations() snapshot.Digest {
	digest, err := a.Content().Revocations()
	a.Must(err)
	return digest
}

// BundleLocked is what connections trust now.
func (a *Author) BundleLocked() *identity.Bundle {
	b, err := a.Content().Identity()
	a.Must(err)
	return b
}

// TrustHeader is that of the trust bundle as it is now.
func (a *Author) TrustHeader() snapshot.Header {
	now := a.Clock().UTC().Truncate(time.Second)
	return snapshot.Header{
		ClusterID: Cluster, Subject: snapshot.ClusterSubject(), ScopeType: snapshot.ScopeTrustBundle,
		ConfigVersion: a.Version, AuthorityEpoch: a.Epoch,
		IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(a.BundleLife), RefreshAfter: now.Add(a.BundleLife / 2),
	}
}

// TrustBundle signs the trust bundle as it is now.
func (a *Author) TrustBundle() *fealtyv1.SignedSnapshot {
	return a.SignTrust(a.TrustHeader(), a.Content())
}

// SignTrust signs a trust bundle.
func (a *Author) SignTrust(h snapshot.Header, content *snapshot.TrustBundle) *fealtyv1.SignedSnapshot {
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	signed, err := draft.Sign(a.configRoot)
	a.Must(err)
	return a.message(snapshot.ScopeTrustBundle, signed)
}

func (a *Author) message(scope snapshot.Scope, s *snapshot.Signed) *fealtyv1.SignedSnapshot {
	raw, err := s.Marshal()
	a.Must(err)
	return &fealtyv1.SignedSnapshot{Scope: string(scope), Envelope: raw}
}

// Bootstrap signs a node_bootstrap for m, of a version of its own.
func (a *Author) Bootstrap(m *Member, edits ...func(*snapshot.Header,
	*snapshot.NodeBootstrap)) *fealtyv1.SignedSnapshot {
	a.Next++
	now := a.Clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: Cluster, Subject: snapshot.NodeSubject(m.ID, m.Incarnation), ScopeType: snapshot.ScopeNodeBootstrap,
		ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
		ExpiresAt: now.Add(365 * 24 * time.Hour), RefreshAfter: now.Add(24 * time.Hour),
	}
	content := &snapshot.NodeBootstrap{
		ClusterID: Cluster, Node: m.ID, Kind: m.ID.Kind(), Entry: "edge-pool", Coordinators: a.Addresses(),
		RenewEvery: a.RenewEvery, SVIDTTL: a.SVIDTTL,
		Degraded: snapshot.DegradedPolicy{Allow: []string{"continue_services"},
			Max: (a.SVIDTTL * 24 / 25).Truncate(time.Second), RouteTTL: time.Minute},
		Resilience: snapshot.Resilience{DataMembers: 1, Required: 3},
	}
	for _, e := range edits {
		e(&h, content)
	}
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
		FreshUntil: now.Add(25 * time.Hour), Revocations: a.revocations(),
	}, a.ConfigKey)
	a.Must(err)
	return a.message(snapshot.ScopeNodeBootstrap, signed)
}

// Runtime signs a node_runtime for m, of a version of its own unless it is edited,
// in a tree with a header of somebody else.
func (a *Author) Runtime(m *Member, edits ...func(*snapshot.Header, *snapshot.NodeRuntime,
	*snapshot.Record)) *fealtyv1.SignedSnapshot {
	a.Next++
	now := a.Clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: Cluster, Subject: snapshot.NodeSubject(m.ID, m.Incarnation), ScopeType: snapshot.ScopeNodeRuntime,
		ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
		ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	content := &snapshot.NodeRuntime{
		ClusterID: Cluster, Kind: m.ID.Kind(), Entry: "edge-pool", State: snapshot.MemberActive,
		Coordinators: a.Addresses(),
		RenewEvery:   a.RenewEvery, SVIDTTL: a.SVIDTTL,
		Degraded: &snapshot.DegradedPolicy{Allow: []string{"continue_services"},
			Max: (a.SVIDTTL * 24 / 25).Truncate(time.Second), RouteTTL: time.Minute},
	}
	r := snapshot.Record{ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
		FreshUntil: now.Add(15 * time.Minute), Revocations: a.revocations()}
	for _, e := range edits {
		e(&h, content, &r)
	}
	h.Roles, h.OrganizationIDs = content.Roles, content.Organizations
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	tree := snapshot.NewTree([]snapshot.Digest{snapshot.LeafOf(Cluster, []byte("of somebody else")),
		draft.Leaf()})
	r.Root, r.TreeSize = tree.Root(), tree.Size()
	signed, err := r.Sign(a.ConfigKey)
	a.Must(err)
	proof, err := tree.Proof(1)
	a.Must(err)
	return a.message(snapshot.ScopeNodeRuntime, &snapshot.Signed{Header: draft.HeaderBytes(),
		Content: draft.ContentBytes(), Publication: signed, Proof: proof})
}

// Companion signs content for m, or for the group of all nodes without roles and
// organizations, of a version of its own unless it is edited.
func (a *Author) Companion(m *Member, scope snapshot.Scope, content snapshot.Content,
	edits ...func(*snapshot.Header, *snapshot.Record)) *fealtyv1.SignedSnapshot {
	a.Next++
	now := a.Clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: Cluster, Subject: snapshot.GroupSubject(nil, nil), ScopeType: scope,
		ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
		ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	if scope == snapshot.ScopeServiceAssignment {
		h.Subject = snapshot.NodeSubject(m.ID, m.Incarnation)
	}
	r := snapshot.Record{ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
		FreshUntil: now.Add(15 * time.Minute), Revocations: a.revocations()}
	for _, e := range edits {
		e(&h, &r)
	}
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	signed, err := draft.Publish(r, a.ConfigKey)
	a.Must(err)
	return a.message(scope, signed)
}

// Addresses are where coordinators are.
func (a *Author) Addresses() []string { return slices.Clone(a.at) }

// RootStatement says what the config root key is.
func (a *Author) RootStatement() []byte {
	raw, err := snapshot.RootStatement{
		ClusterID: Cluster, ConfigRoot: a.configRoot.Public().(ed25519.PublicKey), SeedEpoch: 1,
		IssuedAt: a.Root.NotBefore.UTC().Truncate(time.Second),
	}.Sign(a.rootKey)
	a.Must(err)
	return raw
}

// Do changes the fleet.
func (a *Author) Do(change func()) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	change()
}

// Count reads a number of the fleet.
func (a *Author) Count(n *int) int {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return *n
}

// Rekey notes that the member has another key.
func (m *Member) Rekey(key identity.KeyID) {
	if m.Key != key {
		m.Older = append([]identity.KeyID{m.Key}, m.Older...)
		m.Key = key
	}
}

var (
	GroupRoles         = []string{internalsnapshot.RoleCore}
	GroupOrganizations = []string{"acme"}
)

// OfGroup signs content for m or for its group, of a version of its own.
func (a *Author) OfGroup(m *Member, content snapshot.Content,
	edits ...func(*snapshot.Header, *snapshot.Record)) *fealtyv1.SignedSnapshot {
	a.Next++
	now := a.Clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: Cluster, Roles: GroupRoles, OrganizationIDs: GroupOrganizations,
		ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
		ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	r := snapshot.Record{ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
		FreshUntil: now.Add(15 * time.Minute), Revocations: a.revocations()}
	for _, e := range edits {
		e(&h, &r)
	}
	h.Subject = snapshot.GroupSubject(h.Roles, h.OrganizationIDs)
	if _, ok := content.(*snapshot.ServiceAssignment); ok {
		h.Subject = snapshot.NodeSubject(m.ID, m.Incarnation)
	}
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	signed, err := draft.Publish(r, a.ConfigKey)
	a.Must(err)
	return a.message(draft.Header().ScopeType, signed)
}

// QoS is content of qos_policy that differs with n.
func QoS(n int) *snapshot.QoSPolicy {
	return &snapshot.QoSPolicy{Classes: []snapshot.QoSClass{{Name: "gold", Organization: "acme", Priority: n}}}
}

// ContentOf is content of scope that differs with n.
func ContentOf(scope snapshot.Scope, n int) snapshot.Content {
	name := fmt.Sprintf("n%d", n)
	switch scope {
	case snapshot.ScopeDegradedModePolicy:
		return &snapshot.DegradedModePolicy{Max: time.Duration(n) * time.Second}
	case snapshot.ScopePeerDirectory:
		return &snapshot.PeerDirectory{}
	case snapshot.ScopeQoSPolicy:
		return QoS(n)
	case snapshot.ScopeRoutePolicy:
		return &snapshot.RoutePolicy{Routes: []snapshot.Route{{Name: name, Organization: "acme", Deny: true}}}
	case snapshot.ScopeServiceAssignment:
		return &snapshot.ServiceAssignment{Services: []snapshot.Service{{Name: name, Organization: "acme",
			Type: "http"}}}
	}
	return &snapshot.StorageDirectory{}
}

// Gives is a node_runtime that lists companions.
func (a *Author) Gives(m *Member, companions []snapshot.Scope,
	edits ...func(*snapshot.NodeRuntime)) *fealtyv1.SignedSnapshot {
	return a.Runtime(m, func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
		c.Roles, c.Organizations, c.Companions = GroupRoles, GroupOrganizations, companions
		for _, e := range edits {
			e(c)
		}
	})
}

// A directory is a version of the peer_directory of the nodes without roles and
// organizations, in all its forms.
type directory struct {
	Header   snapshot.Header
	Content  []byte
	Whole    *fealtyv1.SignedSnapshot
	Detached *fealtyv1.SignedSnapshot
	Patch    *fealtyv1.SignedSnapshot // from the version before; nil for the first
}

// Directory signs the directory with n peers that comes after base, or the first one,
// or, of an equal number of peers, the same header again under a newer record.
func (a *Author) Directory(n int, base *directory) *directory {
	a.TB.Helper()
	a.Next++
	now := a.Clock().UTC().Truncate(time.Second)
	content := &snapshot.PeerDirectory{}
	for i := range n {
		name := fmt.Sprintf("peer-%05d", i)
		id, err := identity.New(Cluster, identity.Data, name)
		a.Must(err)
		content.Active = append(content.Active, snapshot.Peer{Name: name, ID: id,
			Addresses: []string{name + ".prod.example:7000"}, State: snapshot.MemberActive})
	}
	h := snapshot.Header{
		ClusterID: Cluster, Subject: snapshot.GroupSubject(nil, nil), ScopeType: snapshot.ScopePeerDirectory,
		ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
		ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	if base != nil {
		h.Base = &snapshot.Base{ConfigVersion: base.Header.ConfigVersion, ContentHash: base.Header.ContentHash}
	}
	draft, err := snapshot.Compose(h, content)
	a.Must(err)
	if base != nil && bytes.Equal(draft.ContentBytes(), base.Content) {
		h = base.Header
		draft, err = snapshot.Compose(h, content)
		a.Must(err)
	}
	digest, err := a.Content().Revocations()
	a.Must(err)
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
		FreshUntil: now.Add(15 * time.Minute), Revocations: digest,
	}, a.ConfigKey)
	a.Must(err)
	d := &directory{Header: draft.Header(), Content: draft.ContentBytes(),
		Whole: a.message(snapshot.ScopePeerDirectory, signed)}
	detached := *signed
	detached.Content = nil
	d.Detached = a.message(snapshot.ScopePeerDirectory, &detached)
	if base != nil {
		if patch, ok := snapshot.Diff(snapshot.ScopePeerDirectory, base.Content, d.Content); ok {
			patched := detached
			patched.Patch = patch
			d.Patch = a.message(snapshot.ScopePeerDirectory, &patched)
		}
	}
	return d
}

// BundleWith signs the next trust bundle, bent.
func (a *Author) BundleWith(edit func(*snapshot.TrustBundle)) *fealtyv1.SignedSnapshot {
	a.Version++
	content := a.Content()
	edit(content)
	slices.SortFunc(content.ConfigKeys, func(a, b snapshot.ConfigKey) int { return bytes.Compare(a.Key, b.Key) })
	return a.SignTrust(a.TrustHeader(), content)
}

// NextKey replaces the fleet's config key, and returns the one before with how a
// bundle lists it.
func (a *Author) NextKey() snapshot.ConfigKey {
	old := a.Content().ConfigKeys[0]
	_, key, err := ed25519.GenerateKey(rand.Reader)
	a.Must(err)
	a.ConfigKey = key
	return old
}

// Emergency is a statement of the fleet's one signer.
func (a *Author) Emergency(number uint64, edit func(*trust.Emergency)) []byte {
	e := trust.Emergency{ClusterID: Cluster, Root: identity.KeyOf(a.Root), Number: number,
		IssuedAt: a.Clock().UTC().Truncate(time.Second), Reason: "test"}
	edit(&e)
	s := &trust.SignedEmergency{}
	var err error
	s.Statement, err = e.Encode()
	a.Must(err)
	a.Must(s.Sign(a.Signer))
	raw, err := s.Marshal()
	a.Must(err)
	return raw
}

// ConfigDigest names the config key.
func (a *Author) ConfigDigest() snapshot.Digest {
	return snapshot.DigestOf(a.ConfigKey.Public().(ed25519.PublicKey))
}

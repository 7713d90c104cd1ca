package nodetest

import (
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// EnemyGrant is what an enemy made of a grant, and the part by which that shows.
type EnemyGrant struct {
	Name string
	Part string
	Edit func(f *Fleet, g *fealtyv1.JoinGrant)
}

// EnemyGrants are grants that an enemy could make of a good one.
var EnemyGrants = []EnemyGrant{
	{"no outcome", "outcome", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.Outcome = 0 }},
	{"outcome of the future", "outcome", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.Outcome = 9 }},
	{"no chain", "chain", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.Chain = nil }},
	{"chain without root", "chain", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.Chain = g.Chain[:2] }},
	{"a huge certificate", "chain", func(_ *Fleet, g *fealtyv1.JoinGrant) {
		g.Chain[1] = make([]byte, internalidentity.MaxCertificateBytes+1)
	}},
	{"a leaf over another key", "chain", func(f *Fleet, g *fealtyv1.JoinGrant) {
		g.Chain[0] = f.LeafFor(identity.Data, "node-x", nil).Raw
	}},
	{"another root", "root", func(f *Fleet, g *fealtyv1.JoinGrant) { g.Chain[2] = g.Chain[1] }},
	{"a root of somebody else", "root", func(f *Fleet, g *fealtyv1.JoinGrant) { g.Chain[2] = New(f.TB).Root.Raw }},
	{"another kind", "chain", func(f *Fleet, g *fealtyv1.JoinGrant) {
		g.Chain[0] = f.LeafFor(identity.Coordinator, "c9", g.Chain[0]).Raw
	}},
	{"a mesh CA that is not accepted", "chain", func(f *Fleet, g *fealtyv1.JoinGrant) {
		accepted, before := slices.Clone(f.MeshKeys), f.Mesh
		f.NewMeshCA()
		leaf := f.LeafFor(identity.Data, idIn(g).Name(), g.Chain[0])
		g.Chain = [][]byte{leaf.Raw, f.Mesh.Certificate().Raw, f.Root.Raw}
		f.MeshKeys, f.Mesh = accepted, before
	}},
	{"a mesh CA of nobody", "chain", func(f *Fleet, g *fealtyv1.JoinGrant) {
		other := New(f.TB)
		g.Chain[1] = other.Mesh.Certificate().Raw
	}},
	{"no root statement", "root statement", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.RootStatement = nil }},
	{"a root statement of somebody else", "root statement",
		func(f *Fleet, g *fealtyv1.JoinGrant) { g.RootStatement = New(f.TB).RootStatement() }},
	{"no trust bundle", "trust bundle", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.TrustBundle = nil }},
	{"a trust bundle of somebody else", "trust bundle",
		func(f *Fleet, g *fealtyv1.JoinGrant) { g.TrustBundle = New(f.TB).TrustBundle() }},
	{"a bootstrap for a trust bundle", "trust bundle", func(_ *Fleet,
		g *fealtyv1.JoinGrant) {
		g.TrustBundle = g.NodeBootstrap
	}},
	{"a trust bundle that ended", "trust bundle", func(f *Fleet, g *fealtyv1.JoinGrant) {
		h := f.TrustHeader()
		h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(-30*time.Minute), h.IssuedAt.Add(-time.Minute)
		h.IssuedAt, h.ValidFrom = h.IssuedAt.Add(-time.Hour), h.ValidFrom.Add(-time.Hour)
		g.TrustBundle = f.SignTrust(h, f.Content())
	}},
	{"a trust bundle with another root", "trust bundle", func(f *Fleet, g *fealtyv1.JoinGrant) {
		content := f.Content()
		content.Roots = [][]byte{New(f.TB).Root.Raw}
		g.TrustBundle = f.SignTrust(f.TrustHeader(), content)
	}},
	{"a trust bundle that bans the node", "chain", func(f *Fleet, g *fealtyv1.JoinGrant) {
		content := f.Content()
		leaf, err := dir.ParseCertificate(g.Chain[0])
		f.Must(err)
		content.BannedKeys = []identity.KeyID{identity.KeyOf(leaf)}
		h := f.TrustHeader()
		h.ConfigVersion++
		g.TrustBundle = f.SignTrust(h, content)
	}},
	{"no bootstrap", "node_bootstrap", func(_ *Fleet, g *fealtyv1.JoinGrant) { g.NodeBootstrap = nil }},
	{"a bootstrap for another node", "node_bootstrap", func(f *Fleet, g *fealtyv1.JoinGrant) {
		id, err := identity.New(signedtest.Cluster, identity.Data, "node-z")
		f.Must(err)
		g.NodeBootstrap = f.Bootstrap(&signedtest.Member{ID: id, Incarnation: identity.KeyID{1}})
	}},
	{"a bootstrap for another incarnation", "node_bootstrap", func(f *Fleet, g *fealtyv1.JoinGrant) {
		g.NodeBootstrap = f.Bootstrap(&signedtest.Member{ID: idIn(g), Incarnation: identity.KeyID{1}})
	}},
	{"a bootstrap of another epoch", "node_bootstrap", func(f *Fleet, g *fealtyv1.JoinGrant) {
		g.NodeBootstrap = f.Bootstrap(f.Members["data/"+idIn(g).Name()],
			func(h *snapshot.Header, _ *snapshot.NodeBootstrap) { h.AuthorityEpoch = 9 })
	}},
	{"a trust bundle for a bootstrap", "node_bootstrap", func(f *Fleet, g *fealtyv1.JoinGrant) {
		f.Version++
		g.NodeBootstrap = f.TrustBundle()
	}},
}

func idIn(g *fealtyv1.JoinGrant) identity.ID {
	leaf, err := dir.ParseCertificate(g.GetChain()[0])
	if err != nil {
		return identity.ID{}
	}
	id, _ := identity.FromCertificate(leaf)
	return id
}

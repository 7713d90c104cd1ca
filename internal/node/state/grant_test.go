package state_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Each way in which a grant is not what was asked for, and the part by which that shows.
func TestVerifyGrant(t *testing.T) {
	author := func() *signedtest.Author { return signedtest.New(t, []string{signedtest.Coordinator}) }
	for _, tc := range []struct {
		name string
		part string // "" if it is good
		edit func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, w *state.Wanted)
	}{
		{"as asked for", "", func(*signedtest.Author, *signedtest.Member, *fealtyv1.JoinGrant, *state.Wanted) {}},
		{"of one who was a member", "", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Outcome = fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER
		}},
		{"no outcome", "outcome", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Outcome = 0
		}},
		{"an outcome of the future", "outcome", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Outcome = 9
		}},
		{"no chain", "chain", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain = nil
		}},
		{"a chain without its root", "chain", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain = g.Chain[:2]
		}},
		{"over another key", "chain", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain[0] = a.LeafFor(identity.Data, "node-a", nil).Raw
		}},
		{"another root", "root", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain[2] = g.Chain[1]
		}},
		{"a root of the pinned key and of another profile", "root", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain[2] = a.Unlike(a.Root).Raw
		}},
		{"a mesh CA of the accepted key and of another profile", "chain", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.Chain[1] = a.Unlike(a.Mesh.Certificate()).Raw
		}},
		{"another pin", "root", func(_ *signedtest.Author, _ *signedtest.Member, _ *fealtyv1.JoinGrant, w *state.Wanted) {
			w.Pin[0] ^= 1
		}},
		{"another cluster", "chain", func(_ *signedtest.Author, _ *signedtest.Member, _ *fealtyv1.JoinGrant, w *state.Wanted) {
			w.Cluster = "other.example"
		}},
		{"another kind", "chain", func(_ *signedtest.Author, _ *signedtest.Member, _ *fealtyv1.JoinGrant, w *state.Wanted) {
			w.Kind = identity.Shard
		}},
		{"of a mesh CA that is not accepted", "chain", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			content := a.Content()
			content.MeshKeys = []identity.KeyID{{1}}
			g.TrustBundle = a.SignTrust(a.TrustHeader(), content)
		}},
		{"of one that the bundle bans", "chain", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			content := a.Content()
			content.BannedKeys = []identity.KeyID{m.Key}
			g.TrustBundle = a.SignTrust(a.TrustHeader(), content)
		}},
		{"no root statement", "root statement", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.RootStatement = nil
		}},
		{"a root statement of another root", "root statement", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.RootStatement = author().RootStatement()
		}},
		{"no trust bundle", "trust bundle", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.TrustBundle = nil
		}},
		{"a trust bundle that is no snapshot", "trust bundle", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.TrustBundle.Envelope = g.TrustBundle.Envelope[1:]
		}},
		{"a trust bundle of another cluster", "trust bundle", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.TrustBundle = author().TrustBundle()
		}},
		{"a bootstrap in place of the trust bundle", "trust bundle", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.TrustBundle = g.NodeBootstrap
		}},
		{"a trust bundle that ended", "trust bundle", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			h := a.TrustHeader()
			h.IssuedAt, h.ValidFrom, h.RefreshAfter, h.ExpiresAt = a.Ago(3*time.Hour), a.Ago(3*time.Hour), a.Ago(2*time.Hour), a.Ago(time.Hour)
			g.TrustBundle = a.SignTrust(h, a.Content())
		}},
		{"a trust bundle with another root", "trust bundle", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			content := a.Content()
			content.Roots = [][]byte{author().Root.Raw}
			g.TrustBundle = a.SignTrust(a.TrustHeader(), content)
		}},
		{"no bootstrap", "node_bootstrap", func(_ *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.NodeBootstrap = nil
		}},
		{"a bootstrap of another node", "node_bootstrap", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			other, _ := a.NewMember("node-b")
			g.NodeBootstrap = a.Bootstrap(&signedtest.Member{ID: other.ID, Incarnation: m.Incarnation})
		}},
		{"a bootstrap of another incarnation", "node_bootstrap", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.NodeBootstrap = a.Bootstrap(&signedtest.Member{ID: m.ID, Incarnation: identity.KeyID{1}})
		}},
		{"a bootstrap of the next epoch", "node_bootstrap", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			a.Epoch++
			g.NodeBootstrap = a.Bootstrap(m)
		}},
		{"a trust bundle in place of the bootstrap", "node_bootstrap", func(a *signedtest.Author, _ *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			a.Version++
			g.NodeBootstrap = a.TrustBundle()
		}},
		{"a node_runtime in place of the bootstrap", "node_bootstrap", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, _ *state.Wanted) {
			g.NodeBootstrap = a.Runtime(m)
		}},
		{"a person's, without a bootstrap", "", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, w *state.Wanted) {
			id, err := identity.New(signedtest.Cluster, identity.Admin, "alice")
			a.Must(err)
			g.Chain = dir.RawChain(a.Issue(w.Key.Signer().Public(), id, a.SVIDTTL))
			w.Kind, g.NodeBootstrap = identity.Admin, nil
		}},
		{"a reader's, without a bootstrap", "", func(a *signedtest.Author, m *signedtest.Member, g *fealtyv1.JoinGrant, w *state.Wanted) {
			id, err := identity.New(signedtest.Cluster, identity.Readonly, "bob")
			a.Must(err)
			g.Chain = dir.RawChain(a.Issue(w.Key.Signer().Public(), id, a.SVIDTTL))
			w.Kind, g.NodeBootstrap = identity.Readonly, nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := author()
			m, key := a.NewMember("node-a")
			g, w := a.GrantTo(m, key), a.Wants(m, key)
			tc.edit(a, m, g, &w)
			before := proto.CloneOf(g)
			got, err := state.VerifyGrant(g, w, a.Clock)
			if !proto.Equal(g, before) {
				t.Error("the grant is changed")
			}
			if tc.part == "" {
				if err != nil || got.Me.Incarnation != key.ID || got.SVID.Key.ID != key.ID || got.Material == nil || got.After.Contact == nil {
					t.Fatalf("%+v, %v", got, err)
				}
				return
			}
			if refused, ok := errors.AsType[*state.GrantError](err); !ok || refused.Part != tc.part || got != nil {
				t.Fatalf("%v, %v; want a refusal of the %s", got, err, tc.part)
			}
		})
	}
}

// What a member that comes back is given: it stays who it is, in the incarnation that it knows or in
// the one of the key that it asked for; under another root alone by the word of the signers.
func TestVerifyRejoin(t *testing.T) {
	for _, tc := range []struct {
		name string
		part string
		// grant makes what is given to m, which asked with key.
		grant func(m *machine, key dir.KeyPair, w *state.Wanted) *fealtyv1.JoinGrant
		anew  bool
	}{
		{"the incarnation that it knows", "", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			return m.GrantTo(m.member, key)
		}, false},
		{"the incarnation of the key", "", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			return m.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
		}, true},
		{"a third incarnation", "node_bootstrap", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			return m.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: identity.KeyID{1}}, key)
		}, false},
		{"another name", "chain", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			other, _ := m.NewMember("node-b")
			return m.GrantTo(other, key)
		}, false},
		{"an older trust bundle than it accepted", "trust bundle", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			m.Version--
			return m.GrantTo(m.member, key)
		}, false},
		{"an older bootstrap than it accepted", "node_bootstrap", func(m *machine, key dir.KeyPair, _ *state.Wanted) *fealtyv1.JoinGrant {
			g := m.GrantTo(m.member, key)
			m.Next = 1
			g.NodeBootstrap = m.Bootstrap(m.member)
			return g
		}, false},
		{"the root that the signers authorized", "", func(m *machine, key dir.KeyPair, w *state.Wanted) *fealtyv1.JoinGrant {
			next := signedtest.New(m.t, []string{signedtest.Coordinator})
			w.Pin, w.Moved = identity.KeyOf(next.Root), &trust.RootChange{Root: identity.KeyOf(next.Root), ConfigRoot: next.Content().ConfigRoot}
			w.TrustState = nil
			return next.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
		}, true},
		{"that root with another config root key", "root statement", func(m *machine, key dir.KeyPair, w *state.Wanted) *fealtyv1.JoinGrant {
			next := signedtest.New(m.t, []string{signedtest.Coordinator})
			w.Pin, w.Moved = identity.KeyOf(next.Root), &trust.RootChange{Root: identity.KeyOf(next.Root), ConfigRoot: m.Content().ConfigRoot}
			w.TrustState = nil
			return next.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
		}, false},
		{"that root without a statement", "root statement", func(m *machine, key dir.KeyPair, w *state.Wanted) *fealtyv1.JoinGrant {
			next := signedtest.New(m.t, []string{signedtest.Coordinator})
			w.Pin, w.Moved = identity.KeyOf(next.Root), &trust.RootChange{Root: identity.KeyOf(next.Root), ConfigRoot: next.Content().ConfigRoot}
			w.TrustState = nil
			g := next.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
			g.RootStatement = nil
			return g
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			l := m.mustLoad()
			key, err := dir.NewKeyPair()
			m.Must(err)
			w := m.Wants(m.member, key)
			w.Me, w.TrustState = &l.Me, m.took(l.Me, l.TrustState, m.Runtime(m.member))
			got, err := state.VerifyRejoin(tc.grant(m, key, &w), w, m.Clock)
			if tc.part != "" {
				if refused, ok := errors.AsType[*state.GrantError](err); !ok || refused.Part != tc.part {
					t.Fatalf("%v, want a refusal of the %s", err, tc.part)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := m.key.ID
			if tc.anew {
				want = key.ID
			}
			if got.Me.ID != m.member.ID || got.Me.Incarnation != want || got.SVID.Key.ID != key.ID {
				t.Errorf("it is %s in incarnation %s with key %s", got.Me.ID, got.Me.Incarnation, got.SVID.Key.ID)
			}
			// A node_runtime of the incarnation before is not carried over.
			if kept := got.After.Active[snapshot.ScopeNodeRuntime] != nil; kept == tc.anew {
				t.Errorf("its node_runtime is kept: %v", kept)
			}
		})
	}
}

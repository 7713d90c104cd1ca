package state_test

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

type (
	header  = snapshot.Header
	runtime = snapshot.NodeRuntime
	record  = snapshot.Record
)

// same gives a node_runtime what the one in use has.
func same(b *state.TrustState) func(*header, *runtime, *record) {
	was := b.Active[snapshot.ScopeNodeRuntime].Verified
	return func(h *header, c *runtime, _ *record) {
		*h = was.Header()
		*c, _ = was.NodeRuntime()
	}
}

// Each way in which a snapshot that comes is taken, or not. One that is refused has the reason in
// the table; whatever is decided, what the node believed before is as it was.
func TestDecide(t *testing.T) {
	const runtimeScope, qos = snapshot.ScopeNodeRuntime, snapshot.ScopeQoSPolicy
	type outcome struct {
		reason                  string // "" if it is taken
		ahead                   bool   // it shows that the authority epoch moved on
		old                     bool   // it is no news
		kept, renewal, restored bool   // the marks stay; it renews what is in use; its history was restored
	}
	taken := outcome{}
	refused := func(reason string) outcome { return outcome{reason: reason} }
	for _, tc := range []struct {
		name string
		// come returns what comes to a node that believes b; it may change b first.
		come func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot
		want outcome
	}{
		{"the next version", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member)
		}, taken},
		{"a version far ahead", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion += 1000 })
		}, taken},
		{"what is in use", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			return &fealtyv1.SignedSnapshot{Envelope: (*b).Active[runtimeScope].Raw}
		}, outcome{old: true, kept: true, renewal: true}},
		{"a newer record over what is in use", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, same(*b))
		}, outcome{renewal: true}},
		{"an older record over what is in use", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, same(*b), func(_ *header, _ *runtime, r *record) { r.Generation = 1 })
		}, refused("stale_record")},
		{"another root under the generation in use", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			was, _ := (*b).Active[runtimeScope].Verified.Record()
			return m.Runtime(m.member, func(_ *header, _ *runtime, r *record) { r.Generation = was.Generation })
		}, refused("equivocation")},
		{"the version before", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			was := versionOf(*b, runtimeScope)
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = was - 1 })
		}, refused("config_version")},
		{"the version in use with another content", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			was := versionOf(*b, runtimeScope)
			return m.Runtime(m.member, func(h *header, c *runtime, _ *record) { h.ConfigVersion, c.Entry = was, "another" })
		}, refused("equivocation")},
		{"what was accepted, and fell out of use", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			raw := (*b).Active[runtimeScope].Raw
			*b = (*b).Without(runtimeScope)
			return &fealtyv1.SignedSnapshot{Envelope: raw}
		}, outcome{kept: true}},
		{"of a lower authority epoch than was accepted", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.nextEpoch(m.mustLoad().Me, *b)
			*b = m.took(m.mustLoad().Me, *b, m.Runtime(m.member))
			return m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 1, 1 })
		}, refused(internalsnapshot.ReasonEpoch)},
		{"of the epoch before, and none of the scope came in this one", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.nextEpoch(m.mustLoad().Me, *b)
			return m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 1, 1 })
		}, taken},
		{"of the next epoch with a lower version", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.nextEpoch(m.mustLoad().Me, *b)
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 })
		}, taken},
		{"of a higher authority epoch than the trust bundle", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 2, 2 })
		}, outcome{reason: internalsnapshot.ReasonEpoch, ahead: true}},
		{"of another cluster", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			id, err := identity.New("other.example", identity.Data, "node-a")
			m.Must(err)
			other := &signedtest.Member{ID: id, Incarnation: m.member.Incarnation}
			return m.Runtime(other, func(h *header, c *runtime, r *record) {
				h.ClusterID, c.ClusterID, r.ClusterID = "other.example", "other.example", "other.example"
			})
		}, refused(internalsnapshot.ReasonSignature)},
		{"by the key of somebody else", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			_, m.ConfigKey, _ = ed25519.GenerateKey(nil)
			return m.Runtime(m.member)
		}, refused(internalsnapshot.ReasonSignature)},
		{"for another node", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			other, _ := m.NewMember("node-b")
			return m.Runtime(other)
		}, refused(internalsnapshot.ReasonSubject)},
		{"for another incarnation", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			other := *m.member
			other.Incarnation = identity.KeyID{1}
			return m.Runtime(&other)
		}, refused(internalsnapshot.ReasonSubject)},
		{"that ended", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) {
				h.IssuedAt, h.ValidFrom = m.Ago(2*time.Hour), m.Ago(2*time.Hour)
				h.RefreshAfter, h.ExpiresAt = m.Ago(time.Hour), m.Ago(time.Minute)
			})
		}, refused(internalsnapshot.ReasonValidity)},
		{"that has not begun", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) {
				h.IssuedAt, h.ValidFrom = m.Ago(-time.Hour), m.Ago(-time.Hour)
			})
		}, refused(internalsnapshot.ReasonValidity)},
		{"with another content than its header says", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			s := m.signed(m.Runtime(m.member))
			s.Content = bytes.Replace(s.Content, []byte("edge-pool"), []byte("edge-pooL"), 1)
			raw, err := s.Marshal()
			m.Must(err)
			return &fealtyv1.SignedSnapshot{Envelope: raw}
		}, refused(internalsnapshot.ReasonHash)},
		{"with another header than was signed", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			s := m.signed(m.Runtime(m.member))
			s.Header = bytes.Replace(s.Header, []byte("node-a"), []byte("node-b"), 1)
			raw, err := s.Marshal()
			m.Must(err)
			return &fealtyv1.SignedSnapshot{Envelope: raw}
		}, refused(internalsnapshot.ReasonSignature)},

		{"a companion that is listed, for the group", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.took(m.mustLoad().Me, *b, m.Gives(m.member, []snapshot.Scope{qos}))
			return m.OfGroup(m.member, signedtest.QoS(1))
		}, taken},
		{"a companion that is not listed", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.took(m.mustLoad().Me, *b, m.Gives(m.member, nil))
			return m.OfGroup(m.member, signedtest.QoS(1))
		}, refused(internalsnapshot.ReasonGrants)},
		{"a companion before any node_runtime", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = (*b).Without(runtimeScope)
			return m.Companion(m.member, qos, &snapshot.QoSPolicy{})
		}, refused(internalsnapshot.ReasonGrants)},
		{"a companion for another group", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.took(m.mustLoad().Me, *b, m.Gives(m.member, []snapshot.Scope{qos}))
			return m.OfGroup(m.member, &snapshot.QoSPolicy{}, func(h *header, _ *record) { h.OrganizationIDs = []string{"globex"} })
		}, refused(internalsnapshot.ReasonSubject)},
		{"its own companion, as long as it is what it was for", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.took(m.mustLoad().Me, *b, m.Gives(m.member, []snapshot.Scope{snapshot.ScopeServiceAssignment}))
			return m.OfGroup(m.member, signedtest.ContentOf(snapshot.ScopeServiceAssignment, 1))
		}, taken},
		{"its own companion, for roles that it does not have", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = m.took(m.mustLoad().Me, *b, m.Gives(m.member, []snapshot.Scope{snapshot.ScopeServiceAssignment}))
			return m.OfGroup(m.member, &snapshot.ServiceAssignment{}, func(h *header, _ *record) { h.Roles = nil })
		}, refused(internalsnapshot.ReasonGrants)},

		{"the next trust bundle", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Version++
			return m.TrustBundle()
		}, taken},
		{"an older trust bundle", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Version--
			return m.TrustBundle()
		}, refused("config_version")},
		{"a trust bundle by another config root", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			other := signedtest.New(m.t, []string{signedtest.Coordinator})
			other.Version += 5
			return other.TrustBundle()
		}, refused(internalsnapshot.ReasonSignature)},
		{"a trust bundle of the next epoch, with the links", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Epoch, m.Version = 2, 1 // the version may begin anew
			(*b).Links = m.Links()
			return m.TrustBundle()
		}, taken},
		{"a trust bundle of the next epoch, without the links", func(m *machine, _ **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Epoch, m.Version = 2, 1
			return m.TrustBundle()
		}, refused(internalsnapshot.ReasonHistory)},
		{"a trust bundle whose links are another history", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Epoch, m.Version = 2, 1
			var previous history.Hash
			for epoch := uint64(1); epoch <= 2; epoch++ {
				link := history.Transition{Index: epoch, AuthorityEpoch: epoch, Previous: previous, Kind: history.KindRekey,
					MeshCAKey: identity.KeyID{0xff, byte(epoch)}}
				raw, err := link.Encode()
				m.Must(err)
				m.History, previous = append(m.History, raw), history.Hash(snapshot.DigestOf(raw))
			}
			(*b).Links = m.Links()
			return m.TrustBundle()
		}, refused(internalsnapshot.ReasonHistory)},
		{"a trust bundle with links that cannot be read", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			m.Epoch, m.Version = 2, 1
			(*b).Links = [][]byte{[]byte("{}")}
			return m.TrustBundle()
		}, refused(internalsnapshot.ReasonHistory)},

		{"what only a stale trust bundle speaks for", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			stale := (*b).Active[snapshot.ScopeTrustBundle].Verified
			*b = (*b).Without(snapshot.ScopeTrustBundle)
			(*b).Stale = stale
			return m.Runtime(m.member)
		}, refused(internalsnapshot.ReasonSigner)},
		{"a trust bundle after a stale one", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			stale := (*b).Active[snapshot.ScopeTrustBundle].Verified
			*b = (*b).Without(snapshot.ScopeTrustBundle)
			(*b).Stale = stale
			m.Version++
			return m.TrustBundle()
		}, taken},
		{"anything without any trust bundle", func(m *machine, b **state.TrustState) *fealtyv1.SignedSnapshot {
			*b = (*b).Without(snapshot.ScopeTrustBundle)
			return m.Runtime(m.member)
		}, refused(internalsnapshot.ReasonSignature)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			me := m.mustLoad().Me
			b := m.took(me, m.mustLoad().TrustState, m.Runtime(m.member))
			came := tc.come(m, &b)
			before, err := b.Ledger.File()
			m.Must(err)
			d, err := state.Decide(me, b, m.signed(came), m.Clock())
			if got := reasonOf(err); got != tc.want.reason || (err != nil) != (tc.want.reason != "") {
				t.Fatalf("refused for %q (%v), want %q", got, err, tc.want.reason)
			}
			after, ferr := b.Ledger.File()
			m.Must(ferr)
			if !bytes.Equal(before.Marks, after.Marks) {
				t.Error("what the node believed is changed in place")
			}
			if err != nil {
				if r := err.(interface{ Error() string }); r.Error() == "" {
					t.Error("it says nothing")
				}
				if ahead := isAhead(err); ahead != tc.want.ahead {
					t.Errorf("it is ahead: %v", ahead)
				}
				if d.V != nil || d.Raised || d.News {
					t.Errorf("a refusal decides %+v", d)
				}
				return
			}
			if d.News == tc.want.old || d.Raised == tc.want.kept || d.Renewal != tc.want.renewal || d.Restored != tc.want.restored {
				t.Errorf("news %v, raised %v, renewal %v, restored %v; want %+v", d.News, d.Raised, d.Renewal, d.Restored, tc.want)
			}
			scope := d.V.Header().ScopeType
			next := d.After(b, came.GetEnvelope())
			if !next.InUse(d.V) || versionOf(next, scope) != d.V.Header().ConfigVersion {
				t.Error("what was taken is not in use")
			}
			// The same again is no news, and an older one is refused from now on.
			again, err := state.Decide(me, next, m.signed(came), m.Clock())
			if err != nil || again.News || again.Raised {
				t.Errorf("the same again: %+v, %v", again, err)
			}
		})
	}
}

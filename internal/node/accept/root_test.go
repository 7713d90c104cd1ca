package accept_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// changeTo is the change from the root of m to that of next, signed by key.
func (m *machine) changeTo(next *signedtest.Author, key ed25519.PrivateKey) []byte {
	m.t.Helper()
	c := trust.RootChange{ClusterID: signedtest.Cluster, Index: 5, Previous: snapshot.Digest{4}, Manifest: snapshot.Digest{5}, AuthorityEpoch: 2,
		SeedEpoch: 2, PreviousRoot: identity.KeyOf(m.Root), Root: identity.KeyOf(next.Root), ConfigRoot: next.Content().ConfigRoot,
		TransactionKey: next.Signer.Public().(ed25519.PublicKey)}
	raw, err := c.Encode()
	m.Must(err)
	s := &trust.SignedRootChange{Change: raw, Signatures: []trust.SignerSignature{{
		Key: [32]byte(key.Public().(ed25519.PublicKey)), Signature: [64]byte(ed25519.Sign(key, internalsnapshot.PAE(internalsnapshot.TypeRootChange, signedtest.Cluster, raw)))}}}
	out, err := s.Marshal()
	m.Must(err)
	return out
}

// A node follows its cluster to another root on the word of the signers that it knows, and of nobody else. Until it has a
// grant under that root it stays what it was, but for the connections, which trust the bundle that comes.
func TestFollowsRoot(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	next := signedtest.New(t, []string{signedtest.Coordinator})
	next.Epoch, next.Version = 2, m.Version+1
	genuine := m.changeTo(next, m.Signer)
	many := make([][]byte, internalsnapshot.MaxRootChanges+1)
	for i := range many {
		many[i] = genuine
	}
	for name, changes := range map[string][][]byte{
		"none": nil, "garbage": {[]byte("x")}, "by a stranger": {m.changeTo(next, next.Signer)},
		"by the config key": {m.changeTo(next, m.ConfigKey)}, "too many": many,
	} {
		if m.node.HearChanges(t.Context(), changes) || m.node.Moved() != nil {
			t.Errorf("%s: it is believed", name)
		}
	}
	// Before it is heard of, a bundle under that root is nobody's.
	m.mustTake(next.TrustBundle())
	if got := m.refusals(); len(got) != 1 || got[0] != "trust_bundle "+internalsnapshot.ReasonSignature {
		t.Errorf("refused %v", got)
	}
	if !m.node.HearChanges(t.Context(), [][]byte{genuine}) || m.node.Moved() == nil || m.node.Moved().Root != identity.KeyOf(next.Root) {
		t.Fatal("the word of the signers is not believed")
	}
	if m.node.HearChanges(t.Context(), [][]byte{genuine}) {
		t.Error("the same again is news")
	}
	trusts := func() bool {
		cur, err := m.node.Source().Current(t.Context())
		return err == nil && state.Names(cur.Bundle(), identity.KeyOf(next.Root))
	}
	if trusts() {
		t.Error("connections trust the root before its bundle came")
	}
	// A bundle by who signs for the root that comes, and that does not name it, leads nowhere.
	aside := next.Content()
	aside.Roots = m.Content().Roots
	m.mustTake(next.SignTrust(next.TrustHeader(), aside))
	if cur, err := m.node.Source().Current(t.Context()); err != nil || cur.Bundle() != m.node.TrustState().Contact {
		t.Errorf("connections trust a bundle that does not name the root that comes: %v", err)
	}
	m.heard()
	m.mustTake(next.TrustBundle())
	if !trusts() || m.version(bundleScope) == next.Version || m.heard()["rejected trust_bundle "+internalsnapshot.ReasonSignature] != 0 {
		t.Errorf("connections trust the root that comes: %v; the bundle in use is version %d, refused %v", trusts(), m.version(bundleScope), m.refusals())
	}
	stranger := signedtest.New(t, []string{signedtest.Coordinator})
	stranger.Epoch, stranger.Version = 2, next.Version+5
	m.mustTake(stranger.TrustBundle())
	if m.heard()["rejected trust_bundle "+internalsnapshot.ReasonSignature] != 1 {
		t.Error("a bundle under a third root is not refused")
	}

	key, err := dir.NewKeyPair()
	m.Must(err)
	rejoin := func(a *signedtest.Author) (bool, error) {
		return m.node.Rejoin(t.Context(), a.GrantTo(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key),
			accept.Granted{Address: "c1", Pin: identity.KeyOf(next.Root), Key: key, Moved: m.node.Moved()},
			func(context.Context, dir.SVID, *credential.Material, error) error {
				t.Error("it is adopted as under the old root")
				return nil
			})
	}
	if _, err := rejoin(stranger); !errors.Is(err, errcode.JoinGrantRefused) || m.node.Self().Pin != identity.KeyOf(m.Root) {
		t.Errorf("a grant under a third root: %v", err)
	}
	if anew, err := rejoin(next); err != nil || !anew {
		t.Fatalf("anew %v, %v", anew, err)
	}
	check := func(when string) {
		t.Helper()
		if m.node.Self().Pin != identity.KeyOf(next.Root) || m.node.Moved() != nil || m.node.SVID().Key.ID != key.ID ||
			m.version(bundleScope) != next.Version || m.version(bootScope) == 0 || m.version(runtimeScope) != 0 || m.version(qosScope) != 0 {
			t.Errorf("%s: under root %v, in use %d, %d, %d, %d", when, m.node.Self().Pin, m.version(bundleScope), m.version(bootScope), m.version(runtimeScope), m.version(qosScope))
		}
		for _, scope := range []snapshot.Scope{runtimeScope, qosScope} {
			for _, name := range dir.FilesOf(scope) {
				if m.has(name) {
					t.Errorf("%s: %s of the old root is there", when, name)
				}
			}
		}
	}
	check("at once")
	m.restart(durabletest.Torn)
	check("after a restart")
	m.mustTake(m.Runtime(m.member))
	if m.version(runtimeScope) != 0 {
		t.Error("what the old root's cluster signs is taken")
	}
}

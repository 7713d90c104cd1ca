package agent_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// chained encodes links, each after the one before. The last one is signed by key, if
// there is one.
func chained(t *testing.T, key ed25519.PrivateKey, links ...history.Transition) (out [][]byte) {
	t.Helper()
	var previous history.Hash
	for i, l := range links {
		l.Previous, l.MeshCAKey = previous, identity.KeyID{byte(i + 1)}
		if i == len(links)-1 && key != nil {
			l.Signatures = []history.Signature{{Key: manifest.Key(key.Public().(ed25519.PublicKey)),
				Signature: [64]byte(ed25519.Sign(key, l.Statement()))}}
		}
		raw, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		out, previous = append(out, raw), history.Hash(snapshot.DigestOf(raw))
	}
	return out
}

// TestHistoryKept has the coordinators go on with another history than the node knows:
// whoever holds the seed can sign the bundles, and the node takes one only if the way
// there leads through its head, or the signers restored it.
func TestHistoryKept(t *testing.T) {
	const late = 1_800_000_000
	// Of before the head that the node knows it is another history.
	other := history.Transition{Index: 1, AuthorityEpoch: 1, Kind: history.KindRekey, Reason: "another way"}
	restore := history.Transition{Index: late, AuthorityEpoch: late, Kind: history.KindRestore}
	_, stranger, _ := ed25519.GenerateKey(nil)
	for name, row := range map[string]struct {
		change func(f *nodetest.Fleet)
		taken  bool
	}{
		"the next epoch": {func(f *nodetest.Fleet) { f.Epoch++ }, true},
		"another history": {func(f *nodetest.Fleet) {
			f.Epoch++
			f.History = chained(t, nil, other, history.Transition{Index: 2, AuthorityEpoch: 2, Kind: history.KindRekey})
		}, false},
		"another head at the same place": {func(f *nodetest.Fleet) { f.History = chained(t, nil, other) }, false},
		"a restore by the signers": {func(f *nodetest.Fleet) {
			f.Epoch, f.History = late,
				chained(t, f.Signer, other, restore)
		}, true},
		"a restore that a stranger signed": {func(f *nodetest.Fleet) {
			f.Epoch, f.History = late,
				chained(t, stranger, other, restore)
		}, false},
		"a restore that nobody signed": {func(f *nodetest.Fleet) {
			f.Epoch, f.History = late,
				chained(t, nil, other, restore)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				n := newNode(f)
				n.MustJoin()
				a := n.mustOpen()
				stop := n.run(a)
				defer stop()
				time.Sleep(time.Minute)
				before := a.Node().TrustState().Bundle().Header()
				f.TrustChanged(func() { row.change(f); f.NewMeshCA() })
				time.Sleep(5 * time.Minute)
				after := a.Node().TrustState().Bundle().Header()
				if taken := after.ConfigVersion > before.ConfigVersion; taken != row.taken {
					t.Errorf("version %d of epoch %d after %d of %d", after.ConfigVersion, after.AuthorityEpoch,
						before.ConfigVersion, before.AuthorityEpoch)
				}
				// Within an epoch the bundle's own check of its head comes first.
				reasons := []snapshot.Reason{internalsnapshot.ReasonHistory, internalsnapshot.ReasonContent}
				refused := slices.ContainsFunc(a.Node().Status().Refusals(), func(r state.Refusal) bool {
					return r.Scope == string(snapshot.ScopeTrustBundle) &&
						slices.Contains(reasons, snapshot.Reason(r.Reason))
				})
				if refused == row.taken {
					t.Errorf("refusals are %v", a.Node().Status().Refusals())
				}
			})
		})
	}
}

// A coordinator that answers without a word to say, because it is behind or lies,
// keeps a node neither from the history nor from showing what it knows to be revoked.
func TestAsksTheNextAboutTheHistory(t *testing.T) {
	f := nodetest.New(t, "a.example:1", "b.example:2")
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	before := a.Node().TrustState().Active[snapshot.ScopeTrustBundle]
	f.TrustChanged(func() { f.Epoch += 2 })
	f.Do(func() { f.Faults.Ignorant = 1 })
	f.Must(n.take(a, f.TrustBundle()))
	if got := a.Node().TrustState().Active[snapshot.ScopeTrustBundle].Verified.Header(); got.AuthorityEpoch != 3 {
		t.Errorf("the trust bundle in use is of epoch %d, refusals %v", got.AuthorityEpoch, a.Node().Status().Refusals())
	}
	f.Do(func() { f.Faults.Ignorant = 1 })
	a.Contact().Show(context.Background(), before)
	f.Do(func() {
		if len(f.Seen.Shown) != 1 || !bytes.Equal(f.Seen.Shown[0], before.Raw) {
			t.Errorf("%d bundles were shown", len(f.Seen.Shown))
		}
	})
}

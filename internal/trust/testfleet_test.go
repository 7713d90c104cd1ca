// The tests are inside: they sign what no function of the package makes.
package trust

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

const testCluster = "prod.example"

// fleet is a small cluster: its keys, and the trust bundle that its nodes hold.
type fleet struct {
	now    time.Time
	ca     *pkitest.Authority
	keys   []ed25519.PrivateKey // config signing keys
	bundle *snapshot.Verified   // its manifest takes one signer, alice
}

func newFleet(tb testing.TB) *fleet {
	tb.Helper()
	f := &fleet{now: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC), keys: []ed25519.PrivateKey{keyOf("config 0")}}
	f.ca = pkitest.NewAuthority(tb, testCluster, pkitest.WithClock(func() time.Time { return f.now }))
	f.bundle = f.bundleOf(tb, func(*snapshot.TrustBundle) {})
	return f
}

// bundleOf returns the fleet's bundle, bent and verified.
func (f *fleet) bundleOf(tb testing.TB, edit func(*snapshot.TrustBundle)) *snapshot.Verified {
	tb.Helper()
	root := keyOf("config root")
	content := &snapshot.TrustBundle{
		ClusterID: testCluster, AuthorityEpoch: 3, Roots: [][]byte{f.ca.Root().Cert.Raw}, ConfigRoot: public(root),
		ConfigKeys: []snapshot.ConfigKey{{
			Algorithm: internalsnapshot.AlgorithmTree, Key: public(f.keys[0]), NotBefore: f.now.Add(-time.Hour),
			NotAfter: f.now.Add(90 * 24 * time.Hour), Scopes: []snapshot.Scope{snapshot.ScopeNodeRuntime},
		}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: public(keyOf("alice"))}}},
		Head:    snapshot.Head{Index: 4, Hash: snapshot.Digest{4}},
	}
	edit(content)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.ClusterSubject(), ConfigVersion: 7, AuthorityEpoch: 3,
		IssuedAt: f.now.Add(-time.Minute), ValidFrom: f.now.Add(-time.Minute),
		ExpiresAt: f.now.Add(30 * 24 * time.Hour), RefreshAfter: f.now.Add(time.Hour),
	}, content)
	if err != nil {
		tb.Fatal(err)
	}
	signed := must(draft.Sign(root))
	trust := snapshot.Trust{Me: f.ca.ID(tb, identity.Data, "node-c"), Incarnation: identity.KeyID{1},
		ConfigRoot: public(root)}
	return must(snapshot.Verify(signed, trust, snapshot.Marks{}, f.now))
}

// keyOf derives a key from its name: the same in every process, as the workers
// of a fuzz run need it.
func keyOf(name string) ed25519.PrivateKey {
	seed := snapshot.DigestOf([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustID(id identity.ID, err error) identity.ID { return must(id, err) }

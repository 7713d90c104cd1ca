package snapshot_test

import (
	"crypto/ed25519"
	"errors"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// A statement counts for whom the trust bundle trusts to sign what it tells members, then and
// as long as it does.
func TestFenceAuthority(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	good := snapshot.ConfigKey{Algorithm: internalsnapshot.AlgorithmTree, Key: public, NotBefore: begin,
		NotAfter: begin.Add(time.Hour), Scopes: []snapshot.Scope{snapshot.ScopeNodeRuntime}}
	text, err := fence.Grant{Cluster: "prod.example", Holder: "shard/a", Number: 7, AuthorityEpoch: 1}.Sign(private)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		at   time.Time
		edit func(*snapshot.ConfigKey)
		want error
	}{
		{"its key", begin.Add(time.Minute), func(*snapshot.ConfigKey) {}, nil},
		{"revoked", begin.Add(time.Minute), func(k *snapshot.ConfigKey) { k.Revoked = true }, fence.ErrUntrusted},
		{"before its time", begin.Add(-time.Hour), func(*snapshot.ConfigKey) {}, fence.ErrUntrusted},
		{"after its time", begin.Add(time.Hour), func(*snapshot.ConfigKey) {}, fence.ErrUntrusted},
		{"for other scopes", begin.Add(time.Minute), func(k *snapshot.ConfigKey) {
			k.Scopes = []snapshot.Scope{snapshot.ScopeRoutePolicy}
		}, fence.ErrUntrusted},
		{"of another algorithm", begin.Add(time.Minute), func(k *snapshot.ConfigKey) { k.Algorithm = "other" },
			fence.ErrUntrusted},
		{"another key", begin.Add(time.Minute), func(k *snapshot.ConfigKey) {
			k.Key = append([]byte{k.Key[0] ^ 1}, k.Key[1:]...)
		}, fence.ErrUntrusted},
	} {
		key := good
		tc.edit(&key)
		bundle := snapshot.TrustBundle{ClusterID: "prod.example", ConfigKeys: []snapshot.ConfigKey{key}}
		got, err := bundle.FenceAuthority(func() time.Time { return tc.at }).OpenGrant(text)
		if grant, ok := got.Get(); !errors.Is(err, tc.want) || ok != (tc.want == nil) || ok && grant.Number != 7 {
			t.Errorf("%s: %+v, %v, want %v", tc.name, grant, err, tc.want)
		}
	}
	bundle := snapshot.TrustBundle{ClusterID: "prod.example", ConfigKeys: []snapshot.ConfigKey{good}}
	stated := snapshot.RevocationsIn(bundle, (&trust.Emergency{ConfigKeys: []snapshot.Digest{snapshot.DigestOf(public)}}).Revocations())
	now := func() time.Time { return begin.Add(time.Minute) }
	if _, err := bundle.FenceAuthorityWith(stated, now).OpenGrant(text); !errors.Is(err, fence.ErrUntrusted) {
		t.Errorf("revoked by a statement: %v", err)
	}
	other := snapshot.TrustBundle{ClusterID: "other.example", ConfigKeys: []snapshot.ConfigKey{good}}
	if _, err := other.FenceAuthority(func() time.Time { return begin }).OpenGrant(text); !errors.Is(err, fence.ErrUntrusted) {
		t.Errorf("for another cluster with the same key: %v", err)
	}
}

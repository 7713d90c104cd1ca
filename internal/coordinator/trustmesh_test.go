package coordinator_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
)

// everySet makes the manifest of a desk one whose every set makes a new mesh CA key.
const everySet = "trust: mesh\n"

// under reports whether the bundle in force believes the newest certificate of m.
func (d *desk) under(m *machine) error {
	chain := []*x509.Certificate{m.leaf, m.mesh}
	_, err := d.c.Rooms().Bundle.View().Bundle.Verify(chain, d.clock())
	return err
}

// With trust: mesh each set makes a mesh CA key and an epoch of its own; the keys of
// before are accepted until what they signed has ended, and no others are.
func TestTrustMesh(t *testing.T) {
	d := readyDesk(t, poolEntries+everySet)
	a := d.joined("a")
	keys := map[identity.KeyID]uint64{d.state().MeshKey: d.state().Head.AuthorityEpoch}
	for i := range 4 {
		before := d.state()
		extra := fmt.Sprintf("  - {name: more-%d, kind: witness, match: [\"token:more-%d\"]}\n", i, i)
		if i == 3 {
			extra = "  - {name: more-2, kind: witness, match: [\"token:more-2\"]}\n" // the very same again
		}
		if err := d.set(poolEntries + extra + everySet); err != nil {
			t.Fatal(err)
		}
		now := d.state()
		if _, used := keys[now.MeshKey]; used || now.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
			now.Head.MeshCAKey != now.MeshKey {
			t.Fatalf("set %d: epoch %d after %d, mesh CA key %s after %s", i, now.Head.AuthorityEpoch,
				before.Head.AuthorityEpoch, now.MeshKey, before.MeshKey)
		}
		keys[now.MeshKey] = now.Head.AuthorityEpoch
		if err := d.under(a); err != nil {
			t.Errorf("set %d: a certificate of before is not believed: %v", i, err)
		}
		if !d.c.Rooms().Delivery.Outdated(a.leaf) {
			t.Errorf("set %d: the member is not asked to renew", i)
		}
		if i == 0 {
			wantOnlyNil(t, a.renew())
			if d.c.Rooms().Delivery.Outdated(a.leaf) {
				t.Error("the renewed member is asked to renew again")
			}
		}
	}
	wantOneKeyPerEpoch(t, d)
	accepted := d.bundle()
	if len(accepted.MeshKeys) != len(keys) {
		t.Errorf("the bundle accepts %d mesh CA keys, want %d", len(accepted.MeshKeys), len(keys))
	}
	// A mesh CA that the very root signed, and no head ever named.
	s := d.state()
	other, err := ca.NewMeshCA(s.Root, s.Secrets.RootCA(), ca.MeshConfig{Cluster: testCluster,
		Epoch: s.Head.AuthorityEpoch, Validity: 100 * time.Hour}, d.clock())
	wantOnlyNil(t, err)
	issuer, err := ca.NewIssuer(other, testCluster)
	wantOnlyNil(t, err)
	leaf, err := issuer.Issue(ca.Request{PublicKey: a.key.Public(), ID: a.id, TTL: time.Hour}, d.clock())
	wantOnlyNil(t, err)
	if _, err := d.c.Rooms().Bundle.View().Bundle.Verify([]*x509.Certificate{leaf, other.Certificate()},
		d.clock()); err == nil {
		t.Error("a chain over a mesh CA key of no head is believed")
	}
	// When what the old keys signed has ended, they are accepted no more.
	d.advance(s.Manifest.LongestSVIDTTL() + time.Minute)
	d.c.Rooms().Authority.Look(t.Context())
	wantOnlyNil(t, d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true))
	if left := d.bundle().MeshKeys; len(left) != 1 || left[0] != s.MeshKey {
		t.Errorf("%d mesh CA keys are accepted when all but one are over", len(left))
	}
}

// A rotation of the mesh CA key is a rekey: one epoch on, the same manifest, seen in the
// audit log, and members are counted as they renew.
func TestRotateMeshKey(t *testing.T) {
	d := testDesk(t)
	a, b := d.joined("a"), d.joined("b")
	before := d.state()
	dry, err := d.trustService().RotateMeshKey(t.Context(), &fealtyv1.RotateMeshKeyRequest{DryRun: true})
	if err != nil || dry.GetAuthorityEpoch() != before.Head.AuthorityEpoch+1 || dry.GetMeshKeyId() != "" ||
		d.state() != before {
		t.Fatalf("dry run: %v, %v", dry, err)
	}
	if r := dry.GetTrust().GetMeshRollout(); r.GetMembers() != 2 || r.GetRenewed() != 2 {
		t.Errorf("before: %v", r)
	}
	_, err = d.trustService().RotateMeshKey(t.Context(),
		&fealtyv1.RotateMeshKeyRequest{Reason: string(make([]byte, record.MaxReasonBytes+1))})
	wantOnly(t, "a long reason", err, explain.RequestField)
	gone, cancel := context.WithCancel(t.Context())
	d.faults.Arm("rekey.before-swap", func() error { cancel(); return nil }) // whoever asked hangs up
	resp, err := d.trustService().RotateMeshKey(gone, &fealtyv1.RotateMeshKeyRequest{Reason: "yearly"})
	d.faults.Disarm("rekey.before-swap")
	if err != nil && !errors.Is(err, explain.DoneNotInForce) { // the rest of the answer was not read
		t.Fatal(err)
	}
	s := d.state()
	if s.Head.Kind != history.KindRekey || s.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
		s.MeshKey == before.MeshKey || s.Head.Manifest != before.Head.Manifest {
		t.Fatalf("the head is %+v", s.Head)
	}
	if s.Head.Reason != "the mesh CA key is rotated: yearly" {
		t.Errorf("the history says %q", s.Head.Reason)
	}
	if resp != nil && (resp.GetMeshKeyId() != s.MeshKey.String() || resp.GetAuthorityEpoch() != s.Head.AuthorityEpoch) {
		t.Errorf("the answer is %v", resp)
	}
	want := func(renewed uint32, missing string) {
		t.Helper()
		got, err := d.trustService().GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
		if r := got.GetTrust().GetMeshRollout(); err != nil || r.GetMembers() != 2 || r.GetRenewed() != renewed ||
			fmt.Sprint(r.GetMissing()) != missing {
			t.Errorf("%v, %v, want %d renewed and %s missing", r, err, renewed, missing)
		}
	}
	want(0, "[data/a data/b]")
	wantOnlyNil(t, a.renew())
	want(1, "[data/b]")
	wantOnlyNil(t, b.rejoin())
	want(2, "[]")
	wantOneKeyPerEpoch(t, d)
	if found, _ := d.audits("manifest.rekey"); len(found) != 1 {
		t.Errorf("%d audit entries", len(found))
	}
	d.store.setDown(errDown)
	_, err = d.trustService().RotateMeshKey(t.Context(), &fealtyv1.RotateMeshKeyRequest{})
	if err == nil || d.state() != s {
		t.Errorf("without a store: %v", err)
	}
}

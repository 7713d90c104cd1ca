package trust_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki"
)

// everySet makes the manifest of a desk one whose every set makes a new mesh CA key.
const everySet = "trust: mesh\n"

// under reports whether the bundle in force believes the newest certificate of m.
func under(d *coordinatortest.Desk, m *coordinatortest.Machine) error {
	chain := []*x509.Certificate{m.Leaf, m.Mesh}
	_, err := d.C.Parts().Bundle.View().Bundle.Verify(chain, d.Clock())
	return err
}

// With trust: mesh each set makes a mesh CA key and an epoch of its own; the keys of
// before are accepted until what they signed has ended, and no others are.
func TestTrustMesh(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries+everySet)
	a := d.Joined("a")
	keys := map[identity.KeyID]uint64{d.State().MeshKey: d.State().Head.AuthorityEpoch}
	for i := range 4 {
		before := d.State()
		extra := fmt.Sprintf("  - {name: more-%d, kind: witness, match: [\"token:more-%d\"]}\n", i, i)
		if i == 3 {
			extra = "  - {name: more-2, kind: witness, match: [\"token:more-2\"]}\n" // the very same again
		}
		if err := d.Set(coordinatortest.PoolEntries + extra + everySet); err != nil {
			t.Fatal(err)
		}
		now := d.State()
		if _, used := keys[now.MeshKey]; used || now.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
			now.Head.MeshCAKey != now.MeshKey {
			t.Fatalf("set %d: epoch %d after %d, mesh CA key %s after %s", i, now.Head.AuthorityEpoch,
				before.Head.AuthorityEpoch, now.MeshKey, before.MeshKey)
		}
		keys[now.MeshKey] = now.Head.AuthorityEpoch
		if err := under(d, a); err != nil {
			t.Errorf("set %d: a certificate of before is not believed: %v", i, err)
		}
		if !d.C.Parts().Delivery.Outdated(a.Leaf) {
			t.Errorf("set %d: the member is not asked to renew", i)
		}
		if i == 0 {
			coordinatortest.WantOnlyNil(t, a.Renew())
			if d.C.Parts().Delivery.Outdated(a.Leaf) {
				t.Error("the renewed member is asked to renew again")
			}
		}
	}
	coordinatortest.WantOneKeyPerEpoch(t, d)
	accepted := bundleAt(d)
	if len(accepted.MeshKeys) != len(keys) {
		t.Errorf("the bundle accepts %d mesh CA keys, want %d", len(accepted.MeshKeys), len(keys))
	}
	// A mesh CA that the very root signed, and no head ever named.
	s := d.State()
	other, err := pki.NewMeshCA(s.Root, s.Secrets.RootCA(), pki.MeshConfig{Cluster: coordinatortest.Cluster,
		Epoch: s.Head.AuthorityEpoch, Validity: 100 * time.Hour}, d.Clock())
	coordinatortest.WantOnlyNil(t, err)
	issuer, err := pki.NewIssuer(other, coordinatortest.Cluster)
	coordinatortest.WantOnlyNil(t, err)
	leaf, err := issuer.Issue(pki.Request{PublicKey: a.Key.Public(), ID: a.ID, TTL: time.Hour}, d.Clock())
	coordinatortest.WantOnlyNil(t, err)
	if _, err := d.C.Parts().Bundle.View().Bundle.Verify([]*x509.Certificate{leaf, other.Certificate()},
		d.Clock()); err == nil {
		t.Error("a chain over a mesh CA key of no head is believed")
	}
	// When what the old keys signed has ended, they are accepted no more.
	d.Advance(s.Manifest.LongestSVIDTTL() + time.Minute)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true))
	if left := bundleAt(d).MeshKeys; len(left) != 1 || left[0] != s.MeshKey {
		t.Errorf("%d mesh CA keys are accepted when all but one are over", len(left))
	}
}

// A rotation of the mesh CA key is a rekey: one epoch on, the same manifest, seen in the
// audit log, and members are counted as they renew.
func TestRotateMeshKey(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a, b := d.Joined("a"), d.Joined("b")
	before := d.State()
	dry, err := coordinatortest.TrustService(d).RotateMeshKey(t.Context(), &fealtyv1.RotateMeshKeyRequest{DryRun: true})
	if err != nil || dry.GetAuthorityEpoch() != before.Head.AuthorityEpoch+1 || dry.GetMeshKeyId() != "" ||
		d.State() != before {
		t.Fatalf("dry run: %v, %v", dry, err)
	}
	if r := dry.GetTrust().GetMeshRollout(); r.GetMembers() != 2 || r.GetRenewed() != 2 {
		t.Errorf("before: %v", r)
	}
	_, err = coordinatortest.TrustService(d).RotateMeshKey(t.Context(),
		&fealtyv1.RotateMeshKeyRequest{Reason: string(make([]byte, record.MaxReasonBytes+1))})
	coordinatortest.WantOnly(t, "a long reason", err, errcode.RequestField)
	gone, cancel := context.WithCancel(t.Context())
	d.Faults.Arm("rekey.before-swap", func() error { cancel(); return nil }) // whoever asked hangs up
	resp, err := coordinatortest.TrustService(d).RotateMeshKey(gone, &fealtyv1.RotateMeshKeyRequest{Reason: "yearly"})
	d.Faults.Disarm("rekey.before-swap")
	if err != nil && !errors.Is(err, errcode.DoneNotInForce) { // the rest of the answer was not read
		t.Fatal(err)
	}
	s := d.State()
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
		got, err := coordinatortest.TrustService(d).GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
		if r := got.GetTrust().GetMeshRollout(); err != nil || r.GetMembers() != 2 || r.GetRenewed() != renewed ||
			fmt.Sprint(r.GetMissing()) != missing {
			t.Errorf("%v, %v, want %d renewed and %s missing", r, err, renewed, missing)
		}
	}
	want(0, "[data/a data/b]")
	coordinatortest.WantOnlyNil(t, a.Renew())
	want(1, "[data/b]")
	coordinatortest.WantOnlyNil(t, b.Rejoin())
	want(2, "[]")
	coordinatortest.WantOneKeyPerEpoch(t, d)
	if found, _ := coordinatortest.Audits(d, "manifest.rekey"); len(found) != 1 {
		t.Errorf("%d audit entries", len(found))
	}
	d.Store.SetDown(coordinatortest.ErrDown)
	_, err = coordinatortest.TrustService(d).RotateMeshKey(t.Context(), &fealtyv1.RotateMeshKeyRequest{})
	if err == nil || d.State() != s {
		t.Errorf("without a store: %v", err)
	}
}

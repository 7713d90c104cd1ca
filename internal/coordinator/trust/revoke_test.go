package trust_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

func bundleAt(d *coordinatortest.Desk) snapshot.TrustBundle {
	d.T.Helper()
	in, err := d.C.Parts().Bundle.Read(context.Background(), d.State())
	if err != nil {
		d.T.Fatal(err)
	}
	return d.State().Bundle.Compile(in)
}

// A name that is revoked is in the bundle, for good, and in the digest of the record.
func TestRevoke(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	b := publication.NewPublisher()
	coordinatortest.FollowMembers(d, d.C)
	before := coordinatortest.MustPublish(d, b).State.Value.Revocations
	revoke := func(kind, name, reason string, dry bool) (*fealtyv1.RevokeResponse, error) {
		return coordinatortest.TrustService(d).Revoke(t.Context(),
			&fealtyv1.RevokeRequest{Kind: kind, Name: name, Reason: reason, DryRun: dry})
	}
	for _, tc := range []struct{ kind, name, reason string }{
		{"service", "web", ""}, {"service", "web", strings.Repeat("x", record.MaxReasonBytes+1)},
		{"whim", "web", "x"}, {"", "web", "x"}, {"service", "", "x"},
		{"role", "core", "x"}, {"peer", "nokind/x",
			"x"}, {"coordinator", "c1", "x"}, {"service", strings.Repeat("a", internalsnapshot.MaxRevokedName+1), "x"},
	} {
		_, err := revoke(tc.kind, tc.name, tc.reason, false)
		coordinatortest.WantOnly(t, fmt.Sprintf("%.20v", tc), err, errcode.RequestField)
	}
	if resp, err := revoke("service", "web", "it leaked", true); err != nil || !resp.GetChanged() ||
		len(bundleAt(d).Revoked) != 0 {
		t.Fatalf("a dry run: %v (%v)", resp, err)
	}
	if resp, err := revoke("service", "web", "it leaked", false); err != nil || !resp.GetChanged() ||
		len(resp.GetTrust().GetRevoked()) != 1 {
		t.Fatalf("%v (%v)", resp, err)
	}
	version := d.C.Parts().Bundle.View().Version
	if resp, err := revoke("service", "web", "again",
		false); err != nil || resp.GetChanged() || d.C.Parts().Bundle.View().Version != version {
		t.Fatalf("twice: %v (%v)", resp, err)
	}
	if _, err := revoke("peer", "data/a", "x", false); err != nil {
		t.Fatal(err)
	}
	want := []snapshot.Revoked{{Kind: internalsnapshot.RevokedPeer, Name: "data/a"},
		{Kind: internalsnapshot.RevokedService, Name: "web"}}
	if got := bundleAt(d).Revoked; !slices.Equal(got, want) {
		t.Fatalf("revoked %v", got)
	}
	if after := coordinatortest.MustPublish(d, b).State.Value.Revocations; after == before ||
		after != d.C.Parts().Bundle.View().Revocations.String() {
		t.Error("the record does not say that something was revoked")
	}
	d.Restart()
	if got := bundleAt(d).Revoked; !slices.Equal(got, want) {
		t.Fatalf("after a restart %v", got)
	}
	// At the limit the next is refused, and those that are there stay.
	in, err := d.C.Parts().Bundle.Read(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	full := in.State.Value
	const adminsPart = internalsnapshot.MaxRevoked * 3 / 4
	for _, part := range []struct {
		room bundle.Room
		most int
	}{{bundle.ForOthers, adminsPart}, {bundle.ForBans, internalsnapshot.MaxRevoked}} { // an admin's, the signers'
		for i := range part.most - len(full.Revoked) {
			if _, err := full.Revoke(d.Clock(), "x", "x", part.room,
				snapshot.Revoked{Kind: internalsnapshot.RevokedStorage,
					Name: fmt.Sprintf("s-%t-%d", part.room, i)}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = full.Revoke(d.Clock(), "x", "x", part.room,
			snapshot.Revoked{Kind: internalsnapshot.RevokedStorage, Name: "one-more"})
		coordinatortest.WantOnly(t, "one above the limit", err, errcode.TrustFull)
		if len(full.Revoked) != part.most {
			t.Errorf("%d are revoked", len(full.Revoked))
		}
	}
	// A name that is there already takes no room.
	if changed, err := full.Revoke(d.Clock(), "x", "x", bundle.ForOthers, want[0]); changed || err != nil {
		t.Errorf("revoked twice: %v, %v", changed, err)
	}
}

// A statement of the signers enters the bundle with all that it says.
func TestApplyEmergency(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := keepingAt(d, "a")
	coordinatortest.FollowMembers(d, d.C)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	id, err := identity.New(coordinatortest.Cluster, identity.Data, "stolen")
	if err != nil {
		t.Fatal(err)
	}
	key := snapshot.DigestOf(d.State().Bundle.PublicKey(1))
	raw := coordinatortest.Statement(d, 1, func(e *trust.Emergency) {
		e.ConfigKeys, e.Keys, e.Nodes = []snapshot.Digest{key, {1}}, []identity.KeyID{{7}}, []identity.ID{id}
		e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedService, Name: "web"}}
	})
	if resp, err := coordinatortest.ApplyEmergency(d, raw, true); err != nil || !resp.GetChanged() || len(keyStates(d)) != 1 {
		t.Fatalf("a dry run: %v (%v)", resp, err)
	}
	for _, point := range []string{"emergency.before-commit", "emergency.after-commit"} {
		crash := errors.New("crash")
		d.Faults.FailNext(point, 1, crash)
		if _, err := coordinatortest.ApplyEmergency(d, raw, false); !errors.Is(err, crash) {
			t.Fatalf("%s: %v", point, err)
		}
		d.Restart()
		coordinatortest.FollowMembers(d, d.C)
		if got, want := len(bundleAt(d).Revoked) == 1, point == "emergency.after-commit"; got != want {
			t.Fatalf("%s: it is in force: %v", point, got)
		}
	}
	if resp, err := coordinatortest.ApplyEmergency(d, raw, false); err != nil || resp.GetChanged() {
		t.Fatalf("twice: %v (%v)", resp, err)
	}
	content := bundleAt(d)
	if !slices.Contains(content.BannedIDs, id) || !slices.Contains(content.BannedKeys, identity.KeyID{7}) ||
		!content.Revokes(internalsnapshot.RevokedService, "web") {
		t.Errorf("the bundle: %+v", content)
	}
	if got := keyStates(d); !slices.Equal(got, []string{"1 revoked", "2 signing"}) {
		t.Errorf("keys %v", got)
	}
	coordinatortest.MustPublish(d, publication.NewPublisher())
	if err := m.fetch(d); err != nil {
		t.Errorf("a member: %v", err)
	}
	resp, err := coordinatortest.TrustService(d).GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
	if err != nil || len(resp.GetTrust().GetEmergencies()) != 1 ||
		resp.GetTrust().GetEmergencies()[0].GetNumber() != 1 {
		t.Fatalf("%v (%v)", resp, err)
	}
	if n := len(d.Store.Keys(auditlog.Prefix)); n == 0 {
		t.Error("nothing is audited")
	}
}

func TestApplyEmergencyRefused(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	good := func(e *trust.Emergency) { e.Keys = []identity.KeyID{{7}} }
	if _, err := coordinatortest.ApplyEmergency(d, coordinatortest.Statement(d, 3, good), false); err != nil {
		t.Fatal(err)
	}
	version := d.C.Parts().Bundle.View().Version
	for _, tc := range []struct {
		name string
		raw  func() []byte
	}{
		{"garbage", func() []byte { return []byte("garbage") }},
		{"an altered byte", func() []byte { raw := coordinatortest.Statement(d, 4, good); raw[40] ^= 1; return raw }},
		{"another signer", func() []byte {
			signer := d.Signer
			defer func() { d.Signer = signer }()
			_, d.Signer, _ = ed25519.GenerateKey(rand.Reader)
			return coordinatortest.Statement(d, 4, good)
		}},
		{"another root", func() []byte {
			return coordinatortest.Statement(d, 4, func(e *trust.Emergency) { good(e); e.Root = identity.KeyID{1} })
		}},
		{"another cluster", func() []byte {
			return coordinatortest.Statement(d, 4, func(e *trust.Emergency) { good(e); e.ClusterID = "other.example" })
		}},
		{"a number that is taken", func() []byte {
			return coordinatortest.Statement(d, 3, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{8}} })
		}},
		{"the mesh CA key in force", func() []byte {
			return coordinatortest.Statement(d, 4, func(e *trust.Emergency) { e.Keys = []identity.KeyID{d.State().MeshKey} })
		}},
	} {
		_, err := coordinatortest.ApplyEmergency(d, tc.raw(), false)
		coordinatortest.WantOnly(t, tc.name, err, errcode.EmergencyRefused)
	}
	if d.C.Parts().Bundle.View().Version != version {
		t.Error("a statement that was refused made another bundle")
	}
	// A lower number counts: statements add up in whatever order they come.
	if resp, err := coordinatortest.ApplyEmergency(d, coordinatortest.Statement(d, 1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{9}} }),
		false); err != nil || !resp.GetChanged() {
		t.Errorf("%v (%v)", resp, err)
	}
	// The largest statement there is fits into one transaction.
	large := coordinatortest.Statement(d, 5, func(e *trust.Emergency) {
		for i := range internalsnapshot.MaxEmergencyParts {
			id, err := identity.New(coordinatortest.Cluster, identity.Data, fmt.Sprintf("n-%d", i))
			if err != nil {
				t.Fatal(err)
			}
			e.Nodes = append(e.Nodes, id)
			e.Keys = append(e.Keys, identity.KeyID{1, byte(i), byte(i >> 8)})
			e.Revoked = append(e.Revoked, snapshot.Revoked{Kind: internalsnapshot.RevokedService, Name: fmt.Sprintf("s-%d", i)})
		}
	})
	if _, err := coordinatortest.ApplyEmergency(d, large, false); err != nil {
		t.Errorf("a large one: %v", err)
	}
}

// Bans and revocations leave room in the bundle for what comes by a manifest or a
// change of authority: else no bundle could follow, and the cluster had none.
func TestBundleKeepsRoomForManifests(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	in, err := d.C.Parts().Bundle.Read(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	bans := func(n int) (delta bundle.Delta) {
		for i := range n {
			id, err := identity.New(coordinatortest.Cluster, identity.Data, fmt.Sprintf("%058d", i))
			if err != nil {
				t.Fatal(err)
			}
			delta.Ban = append(delta.Ban, id)
			delta.Keys = append(delta.Keys, bundle.KeyBan{Key: coordinatortest.KeyNumber(i), CertEnd: d.Clock().Add(time.Hour)})
		}
		return delta
	}
	fill := func(n int) error {
		return d.C.Parts().Bundle.Touch(t.Context(), d.State(), d.State().Records.NewChange(d.State().HeadVersion),
			bans(n), bundle.ForBans)
	}
	// As many as fit, by bisection: each further one is refused.
	few, many := 0, internalsnapshot.MaxBans
	for many-few > 1 {
		if middle := (few + many) / 2; fill(middle) == nil {
			few = middle
		} else {
			many = middle
		}
	}
	if err := fill(many); !errors.Is(err, bundle.ErrFull) {
		t.Fatalf("%d bans: %v", many, err)
	}
	full := in.With(bans(few), in.State.Value)
	bigger := *d.State().Bundle
	m := *bigger.Manifest
	m.Signers.Keys = nil
	for i := range internalsnapshot.MaxSigners {
		public, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := manifest.NewKey(public)
		if err != nil {
			t.Fatal(err)
		}
		m.Signers.Keys = append(m.Signers.Keys, manifest.Signer{Name: fmt.Sprintf("signer-%050d", i), Key: key})
	}
	bigger.Manifest = &m
	if _, err := bigger.Sign(full, d.Clock()); err != nil {
		t.Errorf("with %d bans there is no bundle for a manifest with more signers: %v", few, err)
	}
}

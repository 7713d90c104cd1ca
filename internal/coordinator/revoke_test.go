package coordinator_test

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
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

func (d *desk) bundle() snapshot.TrustBundle {
	d.t.Helper()
	in, err := d.c.Rooms().Bundle.Read(context.Background(), d.state())
	if err != nil {
		d.t.Fatal(err)
	}
	return d.state().Bundle.Compile(in)
}

// What is revoked by name is in the bundle, for good, and in the digest of the record.
func TestRevoke(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	d.joined("a")
	b := publication.NewPublisher()
	d.follow(d.c)
	before := d.mustPublish(b).State.Value.Revocations
	revoke := func(kind, name, reason string, dry bool) (*fealtyv1.RevokeResponse, error) {
		return d.trustService().Revoke(t.Context(),
			&fealtyv1.RevokeRequest{Kind: kind, Name: name, Reason: reason, DryRun: dry})
	}
	for _, tc := range []struct{ kind, name, reason string }{
		{"service", "web", ""}, {"service", "web", strings.Repeat("x", record.MaxReasonBytes+1)},
		{"whim", "web", "x"}, {"", "web", "x"}, {"service", "", "x"},
		{"role", "core", "x"}, {"peer", "nokind/x",
			"x"}, {"coordinator", "c1", "x"}, {"service", strings.Repeat("a", snapshot.MaxRevokedName+1), "x"},
	} {
		_, err := revoke(tc.kind, tc.name, tc.reason, false)
		wantOnly(t, fmt.Sprintf("%.20v", tc), err, explain.RequestField)
	}
	if resp, err := revoke("service", "web", "it leaked", true); err != nil || !resp.GetChanged() ||
		len(d.bundle().Revoked) != 0 {
		t.Fatalf("a dry run: %v (%v)", resp, err)
	}
	if resp, err := revoke("service", "web", "it leaked", false); err != nil || !resp.GetChanged() ||
		len(resp.GetTrust().GetRevoked()) != 1 {
		t.Fatalf("%v (%v)", resp, err)
	}
	version := d.c.Rooms().Bundle.View().Version
	if resp, err := revoke("service", "web", "again",
		false); err != nil || resp.GetChanged() || d.c.Rooms().Bundle.View().Version != version {
		t.Fatalf("twice: %v (%v)", resp, err)
	}
	if _, err := revoke("peer", "data/a", "x", false); err != nil {
		t.Fatal(err)
	}
	want := []snapshot.Revoked{{Kind: snapshot.RevokedPeer, Name: "data/a"},
		{Kind: snapshot.RevokedService, Name: "web"}}
	if got := d.bundle().Revoked; !slices.Equal(got, want) {
		t.Fatalf("revoked %v", got)
	}
	if after := d.mustPublish(b).State.Value.Revocations; after == before ||
		after != d.c.Rooms().Bundle.View().Revocations.String() {
		t.Error("the record does not say that something was revoked")
	}
	d.restart()
	if got := d.bundle().Revoked; !slices.Equal(got, want) {
		t.Fatalf("after a restart %v", got)
	}
	// At the limit the next is refused, and those that are there stay.
	in, err := d.c.Rooms().Bundle.Read(t.Context(), d.state())
	if err != nil {
		t.Fatal(err)
	}
	full := in.State.Value
	const adminsPart = snapshot.MaxRevoked * 3 / 4
	for _, part := range []struct {
		room bundle.Room
		most int
	}{{bundle.ForOthers, adminsPart}, {bundle.ForBans, snapshot.MaxRevoked}} { // an admin's, the signers'
		for i := range part.most - len(full.Revoked) {
			if _, err := full.Revoke(d.clock(), "x", "x", part.room,
				snapshot.Revoked{Kind: snapshot.RevokedStorage,
					Name: fmt.Sprintf("s-%t-%d", part.room, i)}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = full.Revoke(d.clock(), "x", "x", part.room,
			snapshot.Revoked{Kind: snapshot.RevokedStorage, Name: "one-more"})
		wantOnly(t, "one above the limit", err, explain.TrustFull)
		if len(full.Revoked) != part.most {
			t.Errorf("%d are revoked", len(full.Revoked))
		}
	}
	// What is there already takes no room.
	if changed, err := full.Revoke(d.clock(), "x", "x", bundle.ForOthers, want[0]); changed || err != nil {
		t.Errorf("revoked twice: %v, %v", changed, err)
	}
}

// statement is one that the desk's signer signed.
func (d *desk) statement(number uint64, edit func(*snapshot.Emergency)) []byte {
	d.t.Helper()
	e := snapshot.Emergency{ClusterID: testCluster, Root: d.state().RootPin, Number: number,
		IssuedAt: d.clock().UTC(), Reason: "c1 was stolen"}
	edit(&e)
	s := &snapshot.SignedEmergency{}
	var err error
	if s.Statement, err = e.Encode(); err != nil {
		d.t.Fatal(err)
	}
	if err := s.Sign(d.signer); err != nil {
		d.t.Fatal(err)
	}
	raw, err := s.Marshal()
	if err != nil {
		d.t.Fatal(err)
	}
	return raw
}

func (d *desk) apply(raw []byte, dry bool) (*fealtyv1.ApplyEmergencyResponse, error) {
	return d.trustService().ApplyEmergency(context.Background(),
		&fealtyv1.ApplyEmergencyRequest{Statement: raw, DryRun: dry})
}

// A statement of the signers enters the bundle with all that it says.
func TestApplyEmergency(t *testing.T) {
	d := testDesk(t)
	m := d.keeping("a")
	d.follow(d.c)
	b := publication.NewPublisher()
	d.mustPublish(b)
	id, err := identity.New(testCluster, identity.Data, "stolen")
	if err != nil {
		t.Fatal(err)
	}
	key := snapshot.DigestOf(d.state().Bundle.PublicKey(1))
	raw := d.statement(1, func(e *snapshot.Emergency) {
		e.ConfigKeys, e.Keys, e.Nodes = []snapshot.Digest{key, {1}}, []identity.KeyID{{7}}, []identity.ID{id}
		e.Revoked = []snapshot.Revoked{{Kind: snapshot.RevokedService, Name: "web"}}
	})
	if resp, err := d.apply(raw, true); err != nil || !resp.GetChanged() || len(d.keyStates()) != 1 {
		t.Fatalf("a dry run: %v (%v)", resp, err)
	}
	for _, point := range []string{"emergency.before-commit", "emergency.after-commit"} {
		crash := errors.New("crash")
		d.faults.FailNext(point, 1, crash)
		if _, err := d.apply(raw, false); !errors.Is(err, crash) {
			t.Fatalf("%s: %v", point, err)
		}
		d.restart()
		d.follow(d.c)
		if got, want := len(d.bundle().Revoked) == 1, point == "emergency.after-commit"; got != want {
			t.Fatalf("%s: it is in force: %v", point, got)
		}
	}
	if resp, err := d.apply(raw, false); err != nil || resp.GetChanged() {
		t.Fatalf("twice: %v (%v)", resp, err)
	}
	content := d.bundle()
	if !slices.Contains(content.BannedIDs, id) || !slices.Contains(content.BannedKeys, identity.KeyID{7}) ||
		!content.Revokes(snapshot.RevokedService, "web") {
		t.Errorf("the bundle: %+v", content)
	}
	if got := d.keyStates(); !slices.Equal(got, []string{"1 revoked", "2 signing"}) {
		t.Errorf("keys %v", got)
	}
	d.mustPublish(publication.NewPublisher())
	if err := m.fetch(d); err != nil {
		t.Errorf("a member: %v", err)
	}
	resp, err := d.trustService().GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
	if err != nil || len(resp.GetTrust().GetEmergencies()) != 1 ||
		resp.GetTrust().GetEmergencies()[0].GetNumber() != 1 {
		t.Fatalf("%v (%v)", resp, err)
	}
	if n := len(d.store.keys(auditlog.Prefix)); n == 0 {
		t.Error("nothing is audited")
	}
}

func TestApplyEmergencyRefused(t *testing.T) {
	d := testDesk(t)
	good := func(e *snapshot.Emergency) { e.Keys = []identity.KeyID{{7}} }
	if _, err := d.apply(d.statement(3, good), false); err != nil {
		t.Fatal(err)
	}
	version := d.c.Rooms().Bundle.View().Version
	for _, tc := range []struct {
		name string
		raw  func() []byte
	}{
		{"garbage", func() []byte { return []byte("garbage") }},
		{"an altered byte", func() []byte { raw := d.statement(4, good); raw[40] ^= 1; return raw }},
		{"another signer", func() []byte {
			signer := d.signer
			defer func() { d.signer = signer }()
			_, d.signer, _ = ed25519.GenerateKey(rand.Reader)
			return d.statement(4, good)
		}},
		{"another root", func() []byte {
			return d.statement(4, func(e *snapshot.Emergency) { good(e); e.Root = identity.KeyID{1} })
		}},
		{"another cluster", func() []byte {
			return d.statement(4, func(e *snapshot.Emergency) { good(e); e.ClusterID = "other.example" })
		}},
		{"a number that is taken", func() []byte {
			return d.statement(3, func(e *snapshot.Emergency) { e.Keys = []identity.KeyID{{8}} })
		}},
		{"the mesh CA key in force", func() []byte {
			return d.statement(4, func(e *snapshot.Emergency) { e.Keys = []identity.KeyID{d.state().MeshKey} })
		}},
	} {
		_, err := d.apply(tc.raw(), false)
		wantOnly(t, tc.name, err, explain.EmergencyRefused)
	}
	if d.c.Rooms().Bundle.View().Version != version {
		t.Error("a statement that was refused made another bundle")
	}
	// A lower number counts: statements add up in whatever order they come.
	if resp, err := d.apply(d.statement(1, func(e *snapshot.Emergency) { e.Keys = []identity.KeyID{{9}} }),
		false); err != nil || !resp.GetChanged() {
		t.Errorf("%v (%v)", resp, err)
	}
	// The largest statement there is fits into one transaction.
	large := d.statement(5, func(e *snapshot.Emergency) {
		for i := range snapshot.MaxEmergencyParts {
			id, err := identity.New(testCluster, identity.Data, fmt.Sprintf("n-%d", i))
			if err != nil {
				t.Fatal(err)
			}
			e.Nodes = append(e.Nodes, id)
			e.Keys = append(e.Keys, identity.KeyID{1, byte(i), byte(i >> 8)})
			e.Revoked = append(e.Revoked, snapshot.Revoked{Kind: snapshot.RevokedService, Name: fmt.Sprintf("s-%d", i)})
		}
	})
	if _, err := d.apply(large, false); err != nil {
		t.Errorf("a large one: %v", err)
	}
}

// What is banned and revoked leaves room in the bundle for what comes by a manifest or
// a change of authority: else no bundle could follow, and the cluster had none.
func TestBundleKeepsRoomForManifests(t *testing.T) {
	t.Parallel()
	notUnderDetector(t)
	d := testDesk(t)
	in, err := d.c.Rooms().Bundle.Read(t.Context(), d.state())
	if err != nil {
		t.Fatal(err)
	}
	bans := func(n int) (delta bundle.Delta) {
		for i := range n {
			id, err := identity.New(testCluster, identity.Data, fmt.Sprintf("%058d", i))
			if err != nil {
				t.Fatal(err)
			}
			delta.Ban = append(delta.Ban, id)
			delta.Keys = append(delta.Keys, bundle.KeyBan{Key: testKey(i), CertEnd: d.clock().Add(time.Hour)})
		}
		return delta
	}
	fill := func(n int) error {
		return d.c.Rooms().Bundle.Touch(t.Context(), d.state(), d.state().Records.NewChange(d.state().HeadVersion),
			bans(n), bundle.ForBans)
	}
	// As many as fit, by bisection: each further one is refused.
	few, many := 0, snapshot.MaxBans
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
	bigger := *d.state().Bundle
	m := *bigger.Manifest
	m.Signers.Keys = nil
	for i := range snapshot.MaxSigners {
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
	if _, err := bigger.Sign(full, d.clock()); err != nil {
		t.Errorf("with %d bans there is no bundle for a manifest with more signers: %v", few, err)
	}
}

package delivery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

// A bootstrap that is sent again has another version, and comes after the trust
// bundle that it needs.
func TestConnectDeliversABootstrapOfItsOwn(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	f.Member("node-b")
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a",
		Refusals: []*fealtyv1.Refusal{{Scope: "a"}, {Scope: "b", Reason: strings.Repeat("x", 1000)}}}); err != nil {
		t.Fatal(err)
	}
	boot, before := coordinatortest.Until(t, stream, snapshot.ScopeNodeBootstrap)
	if len(before) == 0 || before[0] != string(snapshot.ScopeTrustBundle) {
		t.Fatalf("before the bootstrap came %v", before)
	}
	n.Grant.NodeBootstrap = boot
	v, err := n.VerifyGrant()
	if err != nil {
		t.Fatal(err)
	}
	if boot, ok := v.NodeBootstrap(); !ok || len(boot.Members) != 2 {
		t.Fatalf("the bootstrap shows %v", boot)
	}
	live := f.C.Parts().Membership.Live().Message(n.ID)
	if !live.GetConnected() || !strings.HasPrefix(live.GetLastRefusal(), "b: xxx") || len(live.GetLastRefusal()) > 200 {
		t.Fatalf("its live state is %v", live)
	}
}

// A node_runtime comes after the trust bundle, again when the manifest changes, and
// not to who holds it.
func TestConnectDeliversTheRuntime(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	bundle, err := n.VerifyGrant()
	if err != nil {
		t.Fatal(err)
	}
	held := func(s *fealtyv1.SignedSnapshot) *fealtyv1.HeldSnapshot {
		signed, err := snapshot.Unmarshal(s.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		v, err := snapshot.Verify(signed, n.Trust, snapshot.Marks{}, f.Clock())
		if err != nil {
			t.Fatal(err)
		}
		h := v.Header()
		record, _ := v.Record()
		return &fealtyv1.HeldSnapshot{Scope: s.GetScope(), AuthorityEpoch: h.AuthorityEpoch,
			ConfigVersion: h.ConfigVersion, ContentHash: h.ContentHash[:], Generation: record.Generation}
	}
	connect := func(holds ...*fealtyv1.HeldSnapshot) fealtyv1.AgentService_ConnectClient {
		ctx, cancel := context.WithCancel(f.Context())
		t.Cleanup(cancel)
		stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a", Held: append(holds, &fealtyv1.HeldSnapshot{
			Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: bundle.Header().AuthorityEpoch})}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := connect()
	first, before := coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
	if !slices.Equal(before, []string{string(snapshot.ScopeTrustBundle)}) {
		t.Fatalf("before the node_runtime came %v", before)
	}
	was := held(first)
	changed := bytes.Replace(f.Manifest(""), []byte("roles: [ingress, egress]"), []byte("roles: [ingress]"), 1)
	if err := f.Set(changed); err != nil {
		t.Fatal(err)
	}
	second, _ := coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
	n.Trust.Roles = []string{"ingress"}
	is := held(second)
	if is.GetConfigVersion() <= was.GetConfigVersion() || is.GetGeneration() <= was.GetGeneration() {
		t.Fatalf("after %v came %v", was, is)
	}
	// A member that holds it is sent the next one alone.
	stream = connect(is)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	third, _ := coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
	if h := held(third); h.GetConfigVersion() <= is.GetConfigVersion() {
		t.Fatalf("after %v came %v", is, h)
	}
	if live := f.C.Parts().Membership.Live().Message(n.ID); len(live.GetHeld()) == 0 ||
		live.GetHeld()[0].GetGeneration() != is.GetGeneration() {
		t.Fatalf("the report is kept as %v", live)
	}
}

// A member that was away for long holds the bundle in force, and it is not fresh: it is
// sent one that was signed since. A member with a fresh one is sent none.
func TestConnectRenewsTheBundle(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	trust := f.C.Parts().Bundle.View()
	for freshness, sent := range map[snapshot.Freshness]bool{"": false, snapshot.Fresh: false, snapshot.Stale: true,
		snapshot.Degraded: true, snapshot.Expired: true} {
		held := live.HeldOf([]*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeTrustBundle),
			AuthorityEpoch: trust.Epoch, ConfigVersion: trust.Version,
			ContentHash: trust.ContentHash[:], Freshness: string(freshness)}})
		if got := trust.HeldAs(held[string(snapshot.ScopeTrustBundle)]); got == sent {
			t.Errorf("%q is held: nothing new is needed: %v", freshness, got)
		}
	}
}

// Content signed again for a member has a version of its own, independent of the
// membership by then.
func TestBootstrapIsNeverEquivocated(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("node-a")
	d.Joined("node-b")
	one, err := d.C.Parts().Delivery.BootstrapAgain(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	d.Joined("node-c")
	two, err := d.C.Parts().Delivery.BootstrapAgain(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]bool)
	for _, m := range []*fealtyv1.SignedSnapshot{a.Grant.GetNodeBootstrap(), one, two} {
		signed, err := snapshot.Unmarshal(m.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		var h struct {
			Version string `json:"config_version"`
		}
		if err := json.Unmarshal(signed.Header, &h); err != nil || h.Version == "" {
			t.Fatalf("header %s: %v", signed.Header, err)
		}
		if versions[h.Version] {
			t.Fatalf("version %s was given twice", h.Version)
		}
		versions[h.Version] = true
	}
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
	_, err = d.C.Parts().Delivery.BootstrapAgain(t.Context(), a.ID)
	coordinatortest.WantOnly(t, "without an entry", err, errcode.RenewEntryGone)
}

package snapshot

import (
	"bytes"
	"crypto"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// runtimeRefusals are node_runtime snapshots with one thing wrong: at least one
// for each check. bend may change the trust, the marks and the time.
var runtimeRefusals = []struct {
	check  int
	name   string
	reason Reason
	bend   func(*testing.T, *fleet, *given, *forge)
	after  func(*Signed)
}{
	{check: checkLimits, name: "three signatures", reason: snapshot.ReasonLimits, after: func(s *Signed) {
		s.Publication.Signatures = slices.Repeat(s.Publication.Signatures, 3)
	}},
	{check: checkLimits, name: "content above the limit", reason: snapshot.ReasonLimits, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.raw = bytes.Repeat([]byte(" "), snapshot.DefaultContent+1)
	}},
	{check: checkSchema, name: "schema of tomorrow", reason: snapshot.ReasonSchema, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.SchemaVersion = 2
	}},
	{check: checkCluster, name: "another cluster", reason: snapshot.ReasonCluster, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.ClusterID, x.content.(*NodeRuntime).ClusterID = "test.example", "test.example"
	}},
	{check: checkSubject, name: "another node of the same content", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.header.Subject = NodeSubject(mustID(identity.New(testCluster, identity.Data, "node-d")), f.incarnation)
	}},
	{check: checkSubject, name: "an earlier incarnation", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.header.Subject = NodeSubject(f.me, identity.KeyID{8})
	}},
	{check: checkSubject, name: "a group", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.Subject = GroupSubject(x.header.Roles, x.header.OrganizationIDs)
	}},
	{check: checkSigner, name: "a key for other scopes", reason: snapshot.ReasonSigner, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Scopes = []Scope{ScopeNodeBootstrap} }), f.trust())
	}},
	{check: checkSigner, name: "a revoked key", reason: snapshot.ReasonSigner, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Revoked = true }), f.trust())
	}},
	{check: checkSignature, name: "an unknown key", reason: snapshot.ReasonSignature, bend: func(t *testing.T, _ *fleet, _ *given, x *forge) {
		x.keys = []crypto.Signer{newKey(t)}
	}},
	{check: checkSignature, name: "a header that is not in the tree", reason: snapshot.ReasonSignature, after: func(s *Signed) {
		s.Header = bytes.Replace(s.Header, []byte(`"config_version":"7"`), []byte(`"config_version":"8"`), 1)
	}},
	{check: checkHash, name: "other content", reason: snapshot.ReasonHash, after: func(s *Signed) {
		s.Content = bytes.Replace(s.Content, []byte(`"state":"active"`), []byte(`"state":"actiwe"`), 1)
	}},
	{check: checkValidity, name: "expired", reason: snapshot.ReasonValidity, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.header.ExpiresAt, x.header.RefreshAfter = f.now, f.now.Add(-time.Hour)
	}},
	{check: checkValidity, name: "a record of tomorrow", reason: snapshot.ReasonValidity, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.record.IssuedAt = f.now.Add(snapshot.ClockTolerance + time.Second)
	}},
	{check: checkEpoch, name: "an older epoch", reason: snapshot.ReasonEpoch, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.accepted(t, f.forgeRuntime(func(*forge) {}))
		x.header.AuthorityEpoch, x.header.ConfigVersion = 2, 8
		x.record.Generation++
	}},
	{check: checkVersion, name: "an older version", reason: ReasonVersion, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.accepted(t, f.forgeRuntime(func(*forge) {}))
		x.header.ConfigVersion = 6
		x.record.Generation++
	}},
	{check: checkVersion, name: "the same version with other content", reason: ReasonEquivocation, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.accepted(t, f.forgeRuntime(func(*forge) {}))
		x.content.(*NodeRuntime).State = MemberDraining
		x.header.IssuedAt = f.now
		x.record.Generation++
	}},
	{check: checkVersion, name: "the same generation with another root", reason: ReasonEquivocation, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.accepted(t, f.forgeRuntime(func(*forge) {}))
		x.header.ConfigVersion = 8
	}},
	{check: checkGrants, name: "roles beyond the header", reason: snapshot.ReasonGrants, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Roles = []string{"ingress", "storage"}
	}},
	{check: checkGrants, name: "organizations beyond the header", reason: snapshot.ReasonGrants, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Organizations = []string{"acme", "umbrella"}
	}},
	{check: checkGrants, name: "another kind", reason: snapshot.ReasonGrants, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Kind = identity.Shard
	}},
	{check: checkGrants, name: "degraded mode for a thin node", reason: snapshot.ReasonGrants, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.Roles, x.content.(*NodeRuntime).Roles, x.content.(*NodeRuntime).Companions = []string{"thin"}, []string{"thin"}, nil
	}},
	{check: checkContent, name: "an unknown member", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.raw = bytes.Replace(must(encode(x.content)), []byte(`{"cluster_id"`), []byte(`{"admin":true,"cluster_id"`), 1)
	}},
	{check: checkContent, name: "a degraded policy of null", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Degraded = nil
		x.raw = bytes.Replace(must(encode(x.content)), []byte(`"entry"`), []byte(`"degraded":null,"entry"`), 1)
	}},
	{check: checkGrants, name: "a companion that its roles may not hold", reason: snapshot.ReasonGrants, bend: func(_ *testing.T, _ *fleet, g *given, x *forge) {
		x.header.Roles, x.content.(*NodeRuntime).Roles = []string{"storage"}, []string{"storage"}
		x.content.(*NodeRuntime).Companions = []Scope{ScopeRoutePolicy}
	}},
	{check: checkContent, name: "companions out of order", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		slices.Reverse(x.content.(*NodeRuntime).Companions)
	}},
	{check: checkContent, name: "a companion twice", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Companions = []Scope{ScopePeerDirectory, ScopePeerDirectory}
	}},
	{check: checkContent, name: "a companion of no scope", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Companions = []Scope{"user_directory"}
	}},
	{check: checkContent, name: "a companion that is held in any case", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Companions = []Scope{ScopeTrustBundle}
	}},
	{check: checkContent, name: "no companions, in a list", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Companions = nil
		x.raw = bytes.Replace(must(encode(x.content)), []byte(`"coordinators"`), []byte(`"companions":[],"coordinators"`), 1)
	}},
	{check: checkContent, name: "another cluster inside", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).ClusterID = "test.example"
	}},
	{check: checkContent, name: "no state", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).State = "gone"
	}},
	{check: checkContent, name: "no coordinators", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Coordinators = nil
	}},
	{check: checkContent, name: "renewal after expiry", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).RenewEvery = 25 * time.Hour
	}},
	{check: checkContent, name: "degraded beyond the identity", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Degraded.Max = 25 * time.Hour
	}},
	{check: checkSecret, name: "a token", reason: snapshot.ReasonSecret, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.content.(*NodeRuntime).Entry = "fealty1_" + strings.Repeat("a", 20)
	}},
}

func TestRuntimeRefusals(t *testing.T) {
	f := newFleet(t)
	seen := make(map[int]bool)
	for _, r := range runtimeRefusals {
		t.Run(fmt.Sprintf("%d %s", r.check, r.name), func(t *testing.T) {
			g := f.given()
			s := f.forgeRuntime(func(x *forge) {
				if r.bend != nil {
					r.bend(t, f, g, x)
				}
			})
			if r.after != nil {
				r.after(s)
			}
			_, err := verify(checks, g.verification(s))
			wantRefused(t, err, r.check, r.reason)
			seen[r.check] = true
		})
	}
	for _, c := range checks {
		if !seen[c.number] {
			t.Errorf("check %d (%s) has no node_runtime that it refuses", c.number, c.rule)
		}
	}
}

// An accepted content is the one that was composed, for one node of several with the same
// content, and says what groups the node is in.
func TestRuntime(t *testing.T) {
	f := newFleet(t)
	h := f.bootstrapHeader()
	d := must(Compose(h, f.runtimeContent()))
	h.Subject = NodeSubject(mustID(identity.New(testCluster, identity.Data, "node-d")), identity.KeyID{7})
	other := must(Compose(h, f.runtimeContent()))
	if !bytes.Equal(d.ContentBytes(), other.ContentBytes()) || bytes.Equal(d.HeaderBytes(), other.HeaderBytes()) {
		t.Fatal("two nodes of one entry want one content and two headers")
	}
	v := f.mustVerify(t, f.publishAmong(d, 5), f.trust())
	r, ok := v.NodeRuntime()
	if !ok || !slices.Equal(r.Companions, f.runtimeContent().Companions) || r.Entry != "edge-pool" || r.State != MemberActive || r.Degraded == nil || r.Degraded.Max != 24*time.Hour {
		t.Fatalf("content %+v, %v", r, ok)
	}
	r.Degraded.Allow[0], r.Roles[0], r.Companions[0] = "everything", "core", ScopeRoutePolicy
	if again, _ := v.NodeRuntime(); again.Degraded.Allow[0] == "everything" || again.Roles[0] == "core" || again.Companions[0] == ScopeRoutePolicy {
		t.Fatal("a caller changed what was verified")
	}
	if _, ok := v.NodeBootstrap(); ok {
		t.Fatal("a node_runtime passed as node_bootstrap")
	}
	// A thin node holds the rest without the section that it may not hold.
	h, c := f.bootstrapHeader(), f.runtimeContent()
	h.Roles, c.Roles, c.Degraded, c.Companions = []string{snapshot.RoleThin}, []string{snapshot.RoleThin}, nil, []Scope{ScopePeerDirectory}
	thin := f.mustVerify(t, f.publishAmong(must(Compose(h, c)), 1), f.trust())
	if r, _ := thin.NodeRuntime(); r.Degraded != nil {
		t.Fatal("degraded mode from nowhere")
	}
}

// mayHoldTable is the table of docs/explanation/snapshots.md#who-gets-a-record, by role: what each may hold of what
// is not for everybody.
var mayHoldTable = []struct {
	roles []string
	holds []string
}{
	{nil, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/active", "peer_directory/bootstrap", "peer_directory/warm",
		"service_assignment/resources", "service_assignment/secrets", "service_assignment/services", "route_policy/routes",
		"qos_policy/classes", "storage_directory/endpoints", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleCore}, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/active", "peer_directory/bootstrap", "peer_directory/warm",
		"service_assignment/resources", "service_assignment/secrets", "service_assignment/services", "route_policy/entry", "route_policy/routes",
		"qos_policy/classes", "qos_policy/sessions", "storage_directory/endpoints", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleIngress}, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/bootstrap", "service_assignment/endpoints", "service_assignment/entry",
		"route_policy/entry", "qos_policy/sessions", "storage_directory/endpoints", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleEgress}, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/active", "peer_directory/bootstrap", "peer_directory/warm",
		"service_assignment/resources", "service_assignment/secrets", "service_assignment/services", "route_policy/routes",
		"qos_policy/classes", "storage_directory/endpoints", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleStorage}, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/active", "peer_directory/bootstrap", "peer_directory/warm",
		"storage_directory/endpoints", "storage_directory/shards", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleThin}, []string{"peer_directory/bootstrap", "qos_policy/sessions", "storage_directory/endpoints"}},
	// Each role must allow it.
	{[]string{snapshot.RoleCore, snapshot.RoleIngress}, []string{
		"node_bootstrap/members", "node_runtime/degraded", "peer_directory/bootstrap", "route_policy/entry", "qos_policy/sessions",
		"storage_directory/endpoints", "degraded_mode_policy/"}},
	{[]string{snapshot.RoleCore, snapshot.RoleThin}, []string{"peer_directory/bootstrap", "qos_policy/sessions", "storage_directory/endpoints"}},
	{[]string{"relay"}, nil}, // of tomorrow
	{[]string{""}, nil},
}

func TestMayHold(t *testing.T) {
	for _, row := range mayHoldTable {
		var got []string
		whole := map[Scope]bool{}
		for _, rule := range roleRules {
			if rule.scope.MayHold(rule.section, row.roles) {
				got = append(got, string(rule.scope)+"/"+rule.section)
				whole[rule.scope] = true
			}
		}
		if !slices.Equal(got, row.holds) {
			t.Errorf("roles %q may hold\n%q, want\n%q", row.roles, got, row.holds)
		}
		for _, rule := range scopeRules {
			want := whole[rule.scope] || rule.sections == nil
			if rule.scope.MayHold(snapshot.SectionWhole, row.roles) != want {
				t.Errorf("roles %q, all of %s: want %v", row.roles, rule.scope, want)
			}
		}
	}
	// A section of a scope that is ruled by sections has a row each.
	for _, rule := range scopeRules {
		for _, section := range rule.sections {
			if !slices.ContainsFunc(roleRules, func(r roleRule) bool { return r.scope == rule.scope && r.section == section.name }) {
				t.Errorf("%s/%s has no row", rule.scope, section.name)
			}
		}
	}
	if !ScopeNodeRuntime.MayHold("state", []string{snapshot.RoleThin}) {
		t.Error("a section without a row is for everybody")
	}
}

func TestFreshness(t *testing.T) {
	f := newFleet(t)
	const staleFor = time.Hour
	issued := f.now.Add(-time.Minute)
	until := f.record().FreshUntil
	runtime := f.mustVerify(t, f.forgeRuntime(func(*forge) {}), f.trust())
	ends := runtime.Header().ExpiresAt
	short := f.mustVerify(t, f.forgeRuntime(func(x *forge) {
		x.header.RefreshAfter, x.header.ExpiresAt = f.now, until.Add(time.Minute)
	}), f.trust())
	bundle := f.bundle.Header()
	for _, c := range []struct {
		name string
		v    *Verified
		at   time.Time
		want Freshness
	}{
		{"issued", runtime, issued, Fresh},
		{"clock behind", runtime, issued.Add(-24 * time.Hour), Fresh},
		{"last fresh moment", runtime, until.Add(-time.Nanosecond), Fresh},
		{"record over", runtime, until, Stale},
		{"last stale moment", runtime, until.Add(staleFor - time.Nanosecond), Stale},
		{"long without a record", runtime, until.Add(staleFor), Degraded},
		{"last moment", runtime, ends.Add(-time.Nanosecond), Degraded},
		{"over", runtime, ends, Expired},
		{"over before it was degraded", short, until.Add(time.Minute), Expired},
		{"bundle", f.bundle, bundle.RefreshAfter.Add(-time.Nanosecond), Fresh},
		{"bundle to be refreshed", f.bundle, bundle.RefreshAfter, Stale},
		{"bundle long not refreshed", f.bundle, bundle.RefreshAfter.Add(staleFor), Degraded},
		{"bundle over", f.bundle, bundle.ExpiresAt, Expired},
	} {
		if got := c.v.Freshness(c.at, staleFor); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	// A newer record over the same header makes it fresh again, and nothing else did.
	g := f.given()
	g.accepted(t, f.forgeRuntime(func(*forge) {}))
	g.now = until.Add(staleFor)
	renewed, err := Verify(f.forgeRuntime(func(x *forge) {
		x.record.Generation, x.record.IssuedAt, x.record.FreshUntil = 12, g.now, g.now.Add(time.Minute)
	}), g.trust, g.marks, g.now)
	if err != nil || renewed.HeaderDigest() != runtime.HeaderDigest() || renewed.Freshness(g.now, staleFor) != Fresh {
		t.Fatalf("renewed: %v", err)
	}
}

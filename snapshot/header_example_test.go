package snapshot_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Routes go to a node whole, and one change of them as a patch: the node makes of it
// what the header signs, and keeps that.
func ExampleVerifyHeader() {
	now := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	trust, configKey := believer(now)
	trust.Roles, trust.Organizations = []string{internalsnapshot.RoleCore}, []string{"acme"}

	// On a coordinator: two versions of the routes of a group.
	var generation uint64
	publish := func(version uint64, base *snapshot.Base, routes ...snapshot.Route) *snapshot.Signed {
		draft, err := snapshot.Compose(snapshot.Header{
			ClusterID: "prod.example", Subject: snapshot.GroupSubject(trust.Roles, trust.Organizations),
			Roles: trust.Roles, OrganizationIDs: trust.Organizations,
			AuthorityEpoch: 1, ConfigVersion: version, Base: base,
			IssuedAt: now, ValidFrom: now, RefreshAfter: now.Add(time.Hour), ExpiresAt: now.Add(720 * time.Hour),
		}, &snapshot.RoutePolicy{Routes: routes})
		if err != nil {
			panic(err)
		}
		generation++
		signed, err := draft.Publish(snapshot.Record{
			ClusterID: "prod.example", AuthorityEpoch: 1, Generation: generation, IssuedAt: now, FreshUntil: now.Add(time.Hour),
		}, configKey)
		if err != nil {
			panic(err)
		}
		return signed
	}
	db := snapshot.Route{Name: "db", Organization: "acme", To: []string{"db-1", "db-2"}, TTL: time.Hour}
	first := publish(1, nil, db)
	second := publish(2, &snapshot.Base{ConfigVersion: 1, ContentHash: snapshot.DigestOf(first.Content)},
		db, snapshot.Route{Name: "web", To: []string{"web-1"}, TTL: time.Hour})
	patch, ok := snapshot.Diff(snapshot.ScopeRoutePolicy, first.Content, second.Content)
	if !ok {
		panic("it is better sent whole")
	}
	fmt.Println(string(patch))
	second.Content, second.Patch = nil, patch // what is sent

	// On a node of the group:
	active, err := snapshot.Verify(first, trust, snapshot.Marks{}, now)
	if err != nil {
		panic(err)
	}
	marks, err := snapshot.Accept(snapshot.Marks{}, active)
	if err != nil {
		panic(err)
	}
	checked, err := snapshot.VerifyHeader(second, trust, marks, now)
	if err != nil {
		panic(err)
	}
	next, content, err := checked.CompletePatch(active, second.Patch)
	if err != nil {
		panic(err) // with the reason base_mismatch, ask for the whole
	}
	kept, err := second.With(content).Marshal() // to disk, before it is activated
	if err != nil {
		panic(err)
	}
	policy, _ := next.RoutePolicy()
	fmt.Println("version", next.Header().ConfigVersion, "has", len(policy.Routes), "routes; whole on disk:", len(kept) > len(content))

	// A node that missed the first version is told so.
	_, _, err = checked.CompletePatch(nil, second.Patch)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		fmt.Println("refused:", rejected.Reason)
	}
	// Output:
	// {"routes/web":{"deny":false,"match":"","organization":"","priority":0,"service":"","to":["web-1"],"ttl_seconds":3600,"via":[]}}
	// version 2 has 2 routes; whole on disk: true
	// refused: base_mismatch
}

// A node keeps the content apart from what was signed, and may lose it: it gets the content again from whoever
// has it, and needs no newer snapshot.
func ExampleRecheckHeader() {
	c := newExampleCluster("core")
	signed, err := snapshot.Unmarshal(c.publish(1, exampleRoutes))
	if err != nil {
		panic(err)
	}
	v, err := snapshot.Verify(signed, c.trust(), snapshot.Marks{}, c.now)
	if err != nil {
		panic(err)
	}
	marks, err := snapshot.Accept(snapshot.Marks{}, v)
	if err != nil {
		panic(err)
	}
	checked, err := snapshot.RecheckHeader(signed.With(nil), c.trust(), marks, c.now)
	if err != nil {
		panic(err)
	}
	_, err = checked.Complete([]byte("{}"))
	fmt.Println(errors.Is(err, snapshot.ErrRejected))
	again, err := checked.Complete(signed.Content)
	fmt.Println(again.HeaderDigest() == v.HeaderDigest(), err)
	// Output:
	// true
	// true <nil>
}

// Who carries snapshots sorts them by what they say of themselves, and believes none of it.
func ExampleSigned_Claims() {
	c := newExampleCluster("core")
	signed, err := snapshot.Unmarshal(c.publish(4, exampleRoutes))
	if err != nil {
		panic(err)
	}
	claims, err := signed.Claims()
	if err != nil {
		panic(err)
	}
	fmt.Println(claims.Header.ScopeType, claims.Header.ConfigVersion, claims.Record.Generation)
	// Output: route_policy 4 1
}

// A node acts on what is left of a content when parts of it were revoked after it was signed.
func ExampleRevocationsOf() {
	c := newExampleCluster("core")
	c.revoked = append([]snapshot.Revoked{{Kind: "peer", Name: "web-1"}}, c.revoked...)
	bundle, err := snapshot.Verify(c.signedBundle(), c.trust(), snapshot.Marks{}, c.now)
	if err != nil {
		panic(err)
	}
	v := exampleVerified("core", examplePeers) // signed before
	directory, _ := v.Effective(snapshot.RevocationsOf(bundle), c.me).PeerDirectory()
	for _, p := range directory.Active {
		fmt.Println(p.Name)
	}
	// Output: db-1
}

// believer returns what a node believes that took a trust bundle, and the config
// signing key that the bundle lists.
func believer(now time.Time) (snapshot.Trust, ed25519.PrivateKey) {
	root, name := cluster(now)
	rootKey, configRoot, _ := ed25519.GenerateKey(nil)
	public, configKey, _ := ed25519.GenerateKey(nil)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID: name, Subject: snapshot.ClusterSubject(), AuthorityEpoch: 1, ConfigVersion: 1,
		IssuedAt: now, ValidFrom: now, RefreshAfter: now.Add(time.Hour), ExpiresAt: now.Add(720 * time.Hour),
	}, &snapshot.TrustBundle{
		ClusterID: name, AuthorityEpoch: 1, Roots: [][]byte{root}, ConfigRoot: rootKey,
		ConfigKeys: []snapshot.ConfigKey{{
			Algorithm: internalsnapshot.AlgorithmTree, Key: public, NotBefore: now, NotAfter: now.Add(2000 * time.Hour),
			Scopes: []snapshot.Scope{snapshot.ScopeRoutePolicy},
		}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: rootKey}}},
		Head:    snapshot.Head{Index: 1, Hash: snapshot.DigestOf([]byte("genesis"))},
	})
	if err != nil {
		panic(err)
	}
	signed, err := draft.Sign(configRoot)
	if err != nil {
		panic(err)
	}
	me, _ := identity.New(name, identity.Data, "node-c")
	trust := snapshot.Trust{Me: me, Incarnation: identity.KeyID{7}, ConfigRoot: rootKey}
	if trust.Bundle, err = snapshot.Verify(signed, trust, snapshot.Marks{}, now); err != nil {
		panic(err)
	}
	return trust, configKey
}

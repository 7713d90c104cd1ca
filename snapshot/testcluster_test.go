package snapshot_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// exampleCluster is who signs for examples, and the node data/node-c that verifies.
type exampleCluster struct {
	now         time.Time
	ca          *pkitest.Authority
	me          identity.ID
	incarnation identity.KeyID
	root, key   ed25519.PrivateKey // the config root key, and a config signing key
	generation  uint64             // of the record signed last
	bundle      *snapshot.Verified
	roles       []string
	revoked     []snapshot.Revoked
	banned      []identity.ID
}

func newExampleCluster(roles ...string) *exampleCluster {
	c := &exampleCluster{now: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC), roles: roles,
		incarnation: identity.KeyID{7}}
	clock := pkitest.WithClock(func() time.Time { return c.now })
	c.ca = pkitest.NewAuthority(exampleTB{}, "prod.example", clock)
	c.me = c.ca.ID(exampleTB{}, identity.Data, "node-c")
	c.banned = []identity.ID{c.ca.ID(exampleTB{}, identity.Data, "node-x")}
	c.revoked = []snapshot.Revoked{{Kind: "service", Name: "shop"}}
	_, c.root, _ = ed25519.GenerateKey(nil)
	_, c.key, _ = ed25519.GenerateKey(nil)
	v, err := snapshot.Verify(c.signedBundle(), c.trust(), snapshot.Marks{}, c.now)
	if err != nil {
		panic(err)
	}
	c.bundle = v
	return c
}

// trust is what the node believes.
func (c *exampleCluster) trust() snapshot.Trust {
	return snapshot.Trust{Me: c.me, Incarnation: c.incarnation, ConfigRoot: c.root.Public().(ed25519.PublicKey),
		Bundle: c.bundle, Roles: c.roles, Organizations: []string{"acme"}}
}

func (c *exampleCluster) header(version uint64) snapshot.Header {
	return snapshot.Header{ClusterID: "prod.example", ConfigVersion: version, AuthorityEpoch: 1, IssuedAt: c.now,
		ValidFrom: c.now, RefreshAfter: c.now.Add(time.Hour), ExpiresAt: c.now.Add(720 * time.Hour)}
}

func (c *exampleCluster) signedBundle() *snapshot.Signed {
	scopes := slices.DeleteFunc(snapshot.Scopes(), func(s snapshot.Scope) bool {
		return s == snapshot.ScopeTrustBundle
	})
	_, signer, _ := ed25519.GenerateKey(nil)
	content := &snapshot.TrustBundle{
		ClusterID: "prod.example", AuthorityEpoch: 1, Roots: [][]byte{c.ca.Root().Cert.Raw},
		MeshKeys: []identity.KeyID{c.ca.MeshCA().KeyID()}, BannedIDs: c.banned, Revoked: c.revoked,
		ConfigRoot: c.root.Public().(ed25519.PublicKey),
		ConfigKeys: []snapshot.ConfigKey{{Algorithm: internalsnapshot.AlgorithmTree,
			Key: c.key.Public().(ed25519.PublicKey), Scopes: scopes,
			NotBefore: c.now, NotAfter: c.now.Add(2000 * time.Hour)}},
		Signers: snapshot.Signers{Threshold: 1,
			Keys: []snapshot.SignerKey{{Name: "alice", Key: signer.Public().(ed25519.PublicKey)}}},
		Head: snapshot.Head{Index: 1, Hash: snapshot.DigestOf([]byte("genesis"))},
	}
	header := c.header(1)
	header.Subject = snapshot.ClusterSubject()
	draft, err := snapshot.Compose(header, content)
	if err != nil {
		panic(err)
	}
	signed, err := draft.Sign(c.root)
	if err != nil {
		panic(err)
	}
	return signed
}

// publish signs a version of a content for the node, or for its group, and returns it as it
// travels.
func (c *exampleCluster) publish(version uint64, content snapshot.Content) []byte {
	header := c.header(version)
	header.Roles, header.OrganizationIDs = c.roles, []string{"acme"}
	header.Subject = snapshot.GroupSubject(header.Roles, header.OrganizationIDs)
	switch content.(type) {
	case *snapshot.NodeBootstrap, *snapshot.NodeRuntime, *snapshot.ServiceAssignment:
		header.Subject = snapshot.NodeSubject(c.me, c.incarnation)
	}
	draft, err := snapshot.Compose(header, content)
	if err != nil {
		panic(err)
	}
	c.generation++
	signed, err := draft.Publish(snapshot.Record{ClusterID: "prod.example", AuthorityEpoch: 1, Generation: c.generation,
		IssuedAt: c.now, FreshUntil: c.now.Add(10 * time.Minute)}, c.key)
	if err != nil {
		panic(err)
	}
	data, err := signed.Marshal()
	if err != nil {
		panic(err)
	}
	return data
}

// exampleVerified is what Verify made of a content for a node with one role.
func exampleVerified(role string, content snapshot.Content) *snapshot.Verified {
	c := newExampleCluster(role)
	signed, err := snapshot.Unmarshal(c.publish(1, content))
	if err != nil {
		panic(err)
	}
	v, err := snapshot.Verify(signed, c.trust(), snapshot.Marks{}, c.now)
	if err != nil {
		panic(err)
	}
	return v
}

// examplePeer is a member that was reached at an address.
func examplePeer(name string, state snapshot.MemberState) snapshot.Peer {
	id, err := identity.New("prod.example", identity.Data, name)
	if err != nil {
		panic(err)
	}
	return snapshot.Peer{Name: name, ID: id, Addresses: []string{name + ".prod.example:9000"}, State: state}
}

// The contents of the examples.
var (
	exampleRoutes = &snapshot.RoutePolicy{Routes: []snapshot.Route{
		{Name: "no-lab", Match: "net=192.0.2.0/24", Priority: 20, Deny: true},
		{Name: "to-db", Organization: "acme", Service: "ledger", To: []string{"db-1", "db-0"}, Via: []string{"web-1"},
			Priority: 10, TTL: time.Hour}}}
	examplePeers = &snapshot.PeerDirectory{
		Active: []snapshot.Peer{examplePeer("db-1", snapshot.MemberActive),
			examplePeer("web-1", snapshot.MemberDraining)},
		Warm: []snapshot.Peer{examplePeer("db-2", snapshot.MemberActive)}}
	exampleServices = &snapshot.ServiceAssignment{
		Resources: []snapshot.Resource{{Name: "ledger", Organization: "acme", Type: "postgres",
			Address: "ledger.acme.example:5432", Connector: "pgwire", Secrets: []string{"ledger-login"}}},
		Secrets: []snapshot.SecretRef{{Name: "ledger-login", Organization: "acme", Resolver: "vault",
			Path: "kv/acme/ledger", Version: "3"}},
		Services: []snapshot.Service{{Name: "billing", Organization: "acme", Type: "http",
			Addresses: []string{"127.0.0.1:8080"}, Resources: []string{"ledger"}, Secrets: []string{"ledger-login"},
			Parameters: []snapshot.Parameter{{Name: "log.level", Value: "info"}}}}}
	exampleEntry = &snapshot.ServiceAssignment{
		Endpoints: []snapshot.Endpoint{{Name: "billing", Organization: "acme", Address: "10.0.0.8:8080",
			Protocol: "http"}},
		Entry: &snapshot.EntryPolicy{MaxSessions: 500, Issuers: []snapshot.Issuer{{Name: "acme",
			URL: "https://login.acme.example", Audiences: []string{"billing"}, Keys: [][]byte{exampleIssuerKey()}}}}}
	exampleQoS = &snapshot.QoSPolicy{
		Classes: []snapshot.QoSClass{{Name: "bulk", Organization: "acme", Priority: 1, MinKbps: 100, MaxKbps: 20_000},
			{Name: "control", Priority: 9, MinKbps: 64}},
		Sessions: []snapshot.SessionPolicy{{Name: "core", TTL: 8 * time.Hour, Idle: 10 * time.Minute, Max: 40}}}
	exampleStorage = &snapshot.StorageDirectory{
		Endpoints: []snapshot.StorageEndpoint{{Name: "mirror-1", URL: "https://mirror.prod.example/fealty",
			Families: []snapshot.Scope{snapshot.ScopePeerDirectory, snapshot.ScopeRoutePolicy}, Priority: 3}},
		Shards: []snapshot.StorageShard{{Name: "acme-0", Organization: "acme",
			Families: []snapshot.Scope{snapshot.ScopeRoutePolicy}, Replicas: []string{"db-1", "web-1"}, Factor: 2}}}
	exampleDegraded = &snapshot.DegradedModePolicy{Allow: []string{"continue_services", "preserve_routes"},
		Max: 12 * time.Hour, RouteTTL: time.Hour, Trials: []snapshot.Trial{{Scope: snapshot.ScopeRoutePolicy,
			Duration: 5 * time.Minute}}}
)

// exampleIssuerKey is the public key of an issuer of tokens.
func exampleIssuerKey() []byte {
	public, _, _ := ed25519.GenerateKey(nil)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		panic(err)
	}
	return der
}

// exampleRuntime is what a node with one role is in its cluster.
func exampleRuntime(role string) *snapshot.NodeRuntime {
	return &snapshot.NodeRuntime{ClusterID: "prod.example", Kind: identity.Data, Roles: []string{role},
		Organizations: []string{"acme"}, Entry: "pool", State: snapshot.MemberActive,
		Companions:   []snapshot.Scope{snapshot.ScopePeerDirectory, snapshot.ScopeRoutePolicy},
		Coordinators: []string{"c1.prod.example:7443", "c2.prod.example:7443"},
		RenewEvery:   30 * time.Minute, SVIDTTL: 25 * time.Hour,
		Degraded: &snapshot.DegradedPolicy{Allow: []string{"continue_services"}, Max: 24 * time.Hour,
			RouteTTL: time.Hour}}
}

// exampleBootstrap is what a node with one role is told when it joins.
func exampleBootstrap(role string) *snapshot.NodeBootstrap {
	me := examplePeer("node-c", snapshot.MemberActive).ID
	return &snapshot.NodeBootstrap{ClusterID: "prod.example", Node: me, Kind: identity.Data, Roles: []string{role},
		Organizations: []string{"acme"}, Entry: "pool", Members: []snapshot.Member{
			{ID: examplePeer("db-1", "").ID, State: snapshot.MemberActive},
			{ID: examplePeer("web-1", "").ID, State: snapshot.MemberDraining}},
		Coordinators: []string{"c1.prod.example:7443"}, RenewEvery: 30 * time.Minute, SVIDTTL: 25 * time.Hour,
		Degraded:   snapshot.DegradedPolicy{Allow: []string{"continue_services"}, Max: 24 * time.Hour},
		Resilience: snapshot.Resilience{DataMembers: 2, Required: 3}}
}

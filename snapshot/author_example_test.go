package snapshot_test

import (
	"fmt"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/snapshot"
)

// One signature over the root of a tree publishes many snapshots. Each travels with the proof
// that it is in the tree.
func ExampleNewTree() {
	c := newExampleCluster("core")
	var drafts []*snapshot.Draft
	var leaves []snapshot.Digest
	for _, content := range []snapshot.Content{exampleRoutes, examplePeers} {
		header := c.header(1)
		header.Roles, header.OrganizationIDs = []string{"core"}, []string{"acme"}
		header.Subject = snapshot.GroupSubject(header.Roles, header.OrganizationIDs)
		draft, err := snapshot.Compose(header, content)
		if err != nil {
			fmt.Println(err)
			return
		}
		drafts, leaves = append(drafts, draft), append(leaves, draft.Leaf())
	}
	tree := snapshot.NewTree(leaves)
	publication, err := snapshot.Record{ClusterID: "prod.example", AuthorityEpoch: 1, Generation: 1,
		IssuedAt: c.now, FreshUntil: c.now.Add(10 * time.Minute), Root: tree.Root(), TreeSize: tree.Size()}.Sign(c.key)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, d := range drafts {
		proof, err := tree.Proof(i)
		if err != nil {
			fmt.Println(err)
			return
		}
		signed := &snapshot.Signed{Header: d.HeaderBytes(), Content: d.ContentBytes(), Publication: publication, Proof: proof}
		v, err := snapshot.Verify(signed, c.trust(), snapshot.Marks{}, c.now) // a node's work
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(v.Header().ScopeType, "is leaf", proof.Index, snapshot.LeafOf("prod.example", signed.Header) == leaves[i])
	}
	// Output:
	// route_policy is leaf 0 true
	// peer_directory is leaf 1 true
}

// A version that differs little from the one before goes to who has that as a patch.
func ExampleDiff() {
	c := newExampleCluster("core")
	content := func(version uint64, routes ...snapshot.Route) []byte {
		header := c.header(version)
		header.Subject = snapshot.GroupSubject(nil, nil)
		draft, err := snapshot.Compose(header, &snapshot.RoutePolicy{Routes: routes})
		if err != nil {
			panic(err)
		}
		return draft.ContentBytes()
	}
	to := func(name string, peers ...string) snapshot.Route {
		return snapshot.Route{Name: name, To: peers, TTL: time.Hour}
	}
	before := content(1, to("db", "db-1", "db-2"), to("web", "web-1", "web-2"), to("web-old", "web-0"))
	after := content(2, to("db", "db-1", "db-2"), to("web", "web-1", "web-2"))
	patch, ok := snapshot.Diff(snapshot.ScopeRoutePolicy, before, after)
	fmt.Println(string(patch), ok, len(patch) < len(after))
	// Output: {"routes/web-old":null} true true
}

// What is revoked is left out of what is composed from now on, whatever it is made from.
func ExampleWithoutRevoked() {
	bundle := snapshot.TrustBundle{Revoked: []snapshot.Revoked{{Kind: "peer", Name: "web-1"}}}
	revoked := snapshot.RevocationsIn(bundle)
	left := snapshot.WithoutRevoked(examplePeers, revoked, identity.ID{})
	if peers, ok := left.(*snapshot.PeerDirectory); ok {
		for _, p := range peers.Active {
			fmt.Println(p.Name)
		}
	}
	// Output: db-1
}

// Beside what a bundle revokes counts what the signers of the manifest say without a coordinator.
func ExampleNewRevocations() {
	bundle := snapshot.TrustBundle{Revoked: []snapshot.Revoked{{Kind: "service", Name: "shop"}}}
	stated := snapshot.NewRevocations([]snapshot.Revoked{{Kind: "peer", Name: "web-1"}}, nil, nil, nil)
	for _, thing := range snapshot.RevocationsIn(bundle, stated).Things() {
		fmt.Println(thing)
	}
	// Output:
	// peer web-1
	// service shop
}

// A digest is written, and read, as 64 lower case hex digits.
func ExampleParseDigest() {
	digest := snapshot.DigestOf([]byte("content"))
	same, err := snapshot.ParseDigest(digest.String())
	fmt.Println(same == digest, err)
	_, err = snapshot.ParseDigest("ED7002B4")
	fmt.Println(err)
	// Output:
	// true <nil>
	// snapshot: "ED7002B4" is no SHA-256: want 64 lower case hex digits
}

// A refusal names the rule that did not hold by its number.
func ExampleRules() {
	for _, rule := range snapshot.Rules() {
		fmt.Println(rule.Check, rule.Name)
	}
	// Output:
	// 0 envelope within limits
	// 5 signature over the received bytes
	// 1 schema is supported
	// 0 content within the scope's limit
	// 2 cluster is mine
	// 3 subject is me
	// 4 signer is trusted for the scope
	// 8 authority epoch is not stale
	// 9 config version is newer
	// 7 in date
	// 6 content hash and size
	// 10 nothing beyond my roles and organizations
	// 11 content is valid
	// 12 no raw secret
}

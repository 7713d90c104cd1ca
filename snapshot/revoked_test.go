package snapshot

import (
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

func TestRevokedNames(t *testing.T) {
	for _, tc := range []struct {
		kind string
		good []string
		bad  []string
	}{
		{snapshot.RevokedRole, []string{"data/node-a/core", "data/node-a/storage"}, []string{"core", "node-a/core", "data/node-a", "nokind/x/core", "data/node-a/", "data//core"}},
		{snapshot.RevokedService, []string{"web", "data/node-a/web"}, []string{"node-a/web", "nokind/x/web", "data/node-a/", "a*b"}},
		{snapshot.RevokedPeer, []string{"db-1", "data/db-1"}, []string{"nokind/db-1", "data/", "a*b"}},
		{snapshot.RevokedStorage, []string{"store-1", "https://store.example/x?y=1"}, []string{"a b", "a\nb", "ä"}},
		{snapshot.RevokedCoordinator, []string{"c1.example:7443", "[2001:db8::1]:7443"}, []string{"c1.example", ":7443", "c1.example:0", "c1.example:99999"}},
		{snapshot.RevokedPermission, []string{"continue_services"}, []string{"a*b"}},
		{"of_a_newer_release", []string{"anything", "a/b:c*"}, []string{" "}},
	} {
		for _, name := range tc.good {
			if err := (Revoked{tc.kind, name}).Check(testCluster); err != nil {
				t.Errorf("%s %q: %v", tc.kind, name, err)
			}
		}
		for _, name := range append(tc.bad, "", strings.Repeat("a", snapshot.MaxRevokedName+1)) {
			if err := (Revoked{tc.kind, name}).Check(testCluster); err == nil {
				t.Errorf("%s %q names something", tc.kind, name)
			}
		}
	}
	if err := (Revoked{"", "x"}).Check(testCluster); err == nil {
		t.Error("something without a kind")
	}
	if !slices.IsSorted(snapshot.RevokedKinds()) {
		t.Error("the kinds are not sorted")
	}
}

// A revoked member is out of every content that a node acts on, and nobody else is.
func TestEffective(t *testing.T) {
	f := newFleet(t)
	v := f.mustVerify(t, f.signedBootstrap(t), f.trust())
	with := func(things ...Revoked) Revocations {
		slices.SortFunc(things, Revoked.Compare)
		return RevocationsOf(f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.Revoked = things }), f.trust()))
	}
	path := memberPath(f.me)
	for _, tc := range []struct {
		name    string
		revoked Revoked
		edit    func(*NodeBootstrap)
	}{
		{"role", Revoked{snapshot.RevokedRole, path + "/ingress"}, func(b *NodeBootstrap) { b.Roles = nil }},
		{"role of another", Revoked{snapshot.RevokedRole, "data/other/ingress"}, func(*NodeBootstrap) {}},
		{"coordinator", Revoked{snapshot.RevokedCoordinator, "c1.prod.example:7443"}, func(b *NodeBootstrap) { b.Coordinators = b.Coordinators[1:] }},
		{"member", Revoked{snapshot.RevokedPeer, "data/node-a"}, func(b *NodeBootstrap) { b.Members = b.Members[1:] }},
		{"permission", Revoked{snapshot.RevokedPermission, "preserve_routes"}, func(b *NodeBootstrap) { b.Degraded.Allow = b.Degraded.Allow[:1] }},
		{"of a kind that is not known", Revoked{"whim", "preserve_routes"}, func(*NodeBootstrap) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := f.bootstrapContent()
			tc.edit(want)
			got := v.Effective(with(tc.revoked), f.me)
			if got.ContentJSON() != string(must(encode(want))) {
				t.Errorf("%s, want %s", got.ContentJSON(), must(encode(want)))
			}
			if content, ok := got.NodeBootstrap(); !ok || string(must(encode(&content))) != got.ContentJSON() {
				t.Error("the typed content is another one")
			}
			if got.HeaderDigest() != v.HeaderDigest() || v.ContentJSON() != string(must(encode(f.bootstrapContent()))) {
				t.Error("what was verified changed")
			}
		})
	}
	if got := v.Effective(with(), f.me); got != v {
		t.Error("nothing is revoked, and it is another one")
	}
	runtime := f.runtimeContent()
	left := runtime.without(with(Revoked{snapshot.RevokedRole, path + "/ingress"}, Revoked{snapshot.RevokedCoordinator, "c1.prod.example:7443"}, Revoked{snapshot.RevokedPermission, "preserve_routes"}), f.me).(*NodeRuntime)
	if len(left.Roles) != 0 || len(left.Coordinators) != 1 || len(left.Degraded.Allow) != 1 || len(runtime.Degraded.Allow) != 2 {
		t.Errorf("the node_runtime: %+v", left)
	}
	r := with(Revoked{snapshot.RevokedRole, path + "/ingress"})
	for _, tc := range []struct {
		roles []string
		want  bool
	}{
		{[]string{"ingress"}, true}, {[]string{"egress", "ingress"}, true}, {[]string{"egress"}, false}, {nil, false},
	} {
		if got := r.Withdraws(f.me, tc.roles); got != tc.want {
			t.Errorf("a node with roles %v is withdrawn: %v", tc.roles, got)
		}
	}
}

// Each kind of thing is out of each content that names it.
func TestEffectiveContents(t *testing.T) {
	f := newFleet(t)
	peer := mustID(identity.New(testCluster, identity.Data, "db-1"))
	with := func(kind string, names ...string) Revocations {
		var things []Revoked
		for _, n := range names {
			things = append(things, Revoked{kind, n})
		}
		return NewRevocations(things, nil, nil, nil)
	}
	route := func(name, service string, to, via []string, deny bool) Route {
		return Route{Name: name, Service: service, To: to, Via: via, Deny: deny}
	}
	for _, tc := range []struct {
		name       string
		r          Revocations
		have, want revocable
	}{
		{"peer by its record", with(snapshot.RevokedPeer, "db-1"), &PeerDirectory{Active: []Peer{{Name: "db-1"}, {Name: "db-2"}}, Warm: []Peer{{Name: "db-1"}}}, &PeerDirectory{Active: []Peer{{Name: "db-2"}}}},
		{"peer by its member", with(snapshot.RevokedPeer, "data/db-1"), &PeerDirectory{Bootstrap: []Peer{{Name: "a", ID: peer}, {Name: "b", ID: f.me}}}, &PeerDirectory{Bootstrap: []Peer{{Name: "b", ID: f.me}}}},
		{"peer by its identity", NewRevocations(nil, nil, []identity.ID{peer}, nil), &PeerDirectory{Active: []Peer{{Name: "a", ID: peer}}}, &PeerDirectory{}},
		{"service", with(snapshot.RevokedService, "web"), &ServiceAssignment{Services: []Service{{Name: "db"}, {Name: "web"}}, Endpoints: []Endpoint{{Name: "web"}}}, &ServiceAssignment{Services: []Service{{Name: "db"}}}},
		{"service of this member", with(snapshot.RevokedService, memberPath(f.me)+"/web"), &ServiceAssignment{Services: []Service{{Name: "web"}}}, &ServiceAssignment{}},
		{"service of another member", with(snapshot.RevokedService, "data/other/web"), &ServiceAssignment{Services: []Service{{Name: "web"}}}, &ServiceAssignment{Services: []Service{{Name: "web"}}}},
		{"routes of a service", with(snapshot.RevokedService, "web"),
			&RoutePolicy{Routes: []Route{route("a", "web", []string{"x"}, nil, false), route("b", "web", nil, nil, true), route("c", "db", []string{"x"}, nil, false)}},
			&RoutePolicy{Routes: []Route{route("b", "web", nil, nil, true), route("c", "db", []string{"x"}, nil, false)}}},
		{"routes to a peer", with(snapshot.RevokedPeer, "x"),
			&RoutePolicy{Entry: []Route{route("a", "", []string{"x"}, nil, false), route("b", "", []string{"x", "y"}, nil, false), route("c", "", []string{"y"}, []string{"x"}, false), route("d", "", nil, nil, false)}},
			&RoutePolicy{Entry: []Route{route("b", "", []string{"y"}, nil, false), route("d", "", nil, nil, false)}}},
		{"storage by its record", with(snapshot.RevokedStorage, "m"), &StorageDirectory{Endpoints: []StorageEndpoint{{Name: "m", URL: "https://m"}}}, &StorageDirectory{}},
		{"storage by its URL", with(snapshot.RevokedStorage, "https://m"), &StorageDirectory{Endpoints: []StorageEndpoint{{Name: "m", URL: "https://m"}, {Name: "n", URL: "https://n"}}}, &StorageDirectory{Endpoints: []StorageEndpoint{{Name: "n", URL: "https://n"}}}},
		{"replica", with(snapshot.RevokedPeer, "x"), &StorageDirectory{Shards: []StorageShard{{Name: "s", Replicas: []string{"x", "y"}}}}, &StorageDirectory{Shards: []StorageShard{{Name: "s", Replicas: []string{"y"}}}}},
		{"permission", with(snapshot.RevokedPermission, "continue_services"), &DegradedModePolicy{Allow: []string{"continue_services", "preserve_routes"}}, &DegradedModePolicy{Allow: []string{"preserve_routes"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := must(encode(tc.have))
			if got := must(encode(tc.have.without(tc.r, f.me))); string(got) != string(must(encode(tc.want))) {
				t.Errorf("%s, want %s", got, must(encode(tc.want)))
			}
			if string(must(encode(tc.have))) != string(before) {
				t.Error("what was verified changed")
			}
		})
	}
}

// The bundle and the statements add up.
func TestRevocationsAddUp(t *testing.T) {
	f := newFleet(t)
	bundle := f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) {
		b.Revoked = []Revoked{{snapshot.RevokedService, "web"}}
		b.ConfigKeys[0].Revoked = true
	}), f.trust())
	node := mustID(identity.New(testCluster, identity.Data, "stolen"))
	stated := NewRevocations([]Revoked{{snapshot.RevokedPeer, "db-1"}, {snapshot.RevokedService, "web"}},
		[]Digest{DigestOf(public(f.keys[1]))}, []identity.ID{node}, []identity.KeyID{{7}})
	r := RevocationsOf(bundle, stated)
	for _, ok := range []bool{
		r.Revokes(snapshot.RevokedService, "web"), r.RevokesService(f.me, "web"), r.RevokesPeer("db-1", f.me), r.RevokesPeer("", node),
		r.RevokesPeer("", mustID(identity.New(testCluster, identity.Data, "bad"))),
		r.revokesKey(public(f.keys[0])), r.revokesKey(public(f.keys[1])), !r.RevokesPeer("", f.me), !r.Revokes(snapshot.RevokedService, "db-1"),
		!r.RevokesStorage("web", "https://web"), len(r.Things()) == 2, !(Revocations{}).Revokes(snapshot.RevokedService, "web"),
	} {
		if !ok {
			t.Fatalf("%+v", r)
		}
	}
	// A key that a statement revokes signs nothing any more, though the bundle lists it.
	trust := f.trust()
	trust.Revoked = NewRevocations(nil, []Digest{DigestOf(public(f.keys[0]))}, nil, nil)
	_, err := Verify(f.signedBootstrap(t), trust, Marks{}, f.now)
	wantRefused(t, err, checkSigner, snapshot.ReasonSigner)
	both := must(must(Compose(f.bootstrapHeader(), f.bootstrapContent())).Publish(f.record(), f.keys[0], f.keys[1]))
	if v := f.mustVerify(t, both, trust); !slices.Equal(v.SignerKeyIDs(), []string{snapshot.KeyIDOf(public(f.keys[1]))}) {
		t.Errorf("trusted signers %v", v.SignerKeyIDs())
	}
}

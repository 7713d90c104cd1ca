package snapshot_test

import (
	"fmt"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// Traffic goes by the route that matches and has the highest priority.
func ExampleVerified_RoutePolicy() {
	v := exampleVerified("core", exampleRoutes) // what Verify returned
	policy, ok := v.RoutePolicy()
	if !ok {
		fmt.Println("it is a", v.Header().ScopeType, "and no", snapshot.ScopeRoutePolicy)
		return
	}
	show := func(r snapshot.Route) {
		switch {
		case r.Deny:
			fmt.Println(r.Name, "drops", r.Match)
		case len(r.To) > 0:
			fmt.Println(r.Name, "sends", r.Service, "to", r.To, "by", r.Via, "and keeps it for", r.TTL)
		default:
			fmt.Println(r.Name, "sends", r.Service, "where the service is")
		}
	}
	for _, r := range policy.Routes {
		show(r)
	}
	// Output:
	// no-lab drops net=192.0.2.0/24
	// to-db sends ledger to [db-1 db-0] by [web-1] and keeps it for 1h0m0s
}

// An address of a peer is a hint: whoever answers there has to prove the identity beside it.
func ExampleVerified_PeerDirectory() {
	directory, ok := exampleVerified("core", examplePeers).PeerDirectory()
	if !ok {
		fmt.Println("no", snapshot.ScopePeerDirectory)
		return
	}
	expected := make(map[string]snapshot.Peer) // by address
	for _, p := range directory.Active {
		if p.State != snapshot.MemberActive { // a draining one gets nothing new
			continue
		}
		for _, a := range p.Addresses {
			expected[a] = p
		}
	}
	for a, p := range expected {
		fmt.Println(a, "must be", p.ID)
	}
	fmt.Println("in reserve:", directory.Warm[0].Name)
	// Output:
	// db-1.prod.example:9000 must be spiffe://prod.example/data/db-1
	// in reserve: db-2
}

// An assignment names the secrets that a service needs, and where each is kept: no secret is in
// it.
func ExampleVerified_ServiceAssignment() {
	assignment, ok := exampleVerified("egress", exampleServices).ServiceAssignment()
	if !ok {
		fmt.Println("no", snapshot.ScopeServiceAssignment)
		return
	}
	resources := make(map[string]snapshot.Resource)
	for _, r := range assignment.Resources {
		resources[r.Name] = r
	}
	secrets := make(map[string]snapshot.SecretRef)
	for _, s := range assignment.Secrets {
		secrets[s.Name] = s
	}
	for _, s := range assignment.Services {
		fmt.Println("run", s.Name, "on", s.Addresses)
		for _, p := range s.Parameters {
			fmt.Println("  with", p.Name, "=", p.Value)
		}
		for _, name := range s.Resources {
			fmt.Println("  that reaches", resources[name].Address, "by", resources[name].Connector)
		}
		for _, name := range s.Secrets {
			fmt.Println("  and asks", secrets[name].Resolver, "for", secrets[name].Path)
		}
	}
	// Output:
	// run billing on [127.0.0.1:8080]
	//   with log.level = info
	//   that reaches ledger.acme.example:5432 by pgwire
	//   and asks vault for kv/acme/ledger
}

// An ingress lets in who has a token of an issuer, and forwards to an endpoint.
func ExampleServiceAssignment() {
	assignment, ok := exampleVerified("ingress", exampleEntry).ServiceAssignment()
	if !ok || assignment.Entry == nil {
		fmt.Println("this node is no ingress")
		return
	}
	for _, issuer := range assignment.Entry.Issuers {
		fmt.Println("believe", issuer.URL, "for", issuer.Audiences, "by", len(issuer.Keys), "key")
	}
	for _, e := range assignment.Endpoints {
		fmt.Println("forward", e.Name, "to", e.Protocol, e.Address)
	}
	fmt.Println("at most", assignment.Entry.MaxSessions, "sessions")
	// Output:
	// believe https://login.acme.example for [billing] by 1 key
	// forward billing to http 10.0.0.8:8080
	// at most 500 sessions
}

// A service names its class; what has the highest priority goes first.
func ExampleVerified_QoSPolicy() {
	policy, ok := exampleVerified("core", exampleQoS).QoSPolicy()
	if !ok {
		fmt.Println("no", snapshot.ScopeQoSPolicy)
		return
	}
	classes := make(map[string]snapshot.QoSClass)
	for _, class := range policy.Classes {
		classes[class.Name] = class
	}
	fmt.Println("bulk has", classes["bulk"].MinKbps, "to", classes["bulk"].MaxKbps, "kbit/s")
	for _, role := range policy.Sessions {
		fmt.Println(role.Name, "has", role.Max, "sessions of", role.TTL, "that may be idle for", role.Idle)
	}
	// Output:
	// bulk has 100 to 20000 kbit/s
	// core has 40 sessions of 8h0m0s that may be idle for 10m0s
}

// Snapshots may be had from a mirror when no coordinator answers. Verify judges what is there.
func ExampleVerified_StorageDirectory() {
	directory, ok := exampleVerified("storage", exampleStorage).StorageDirectory()
	if !ok {
		fmt.Println("no", snapshot.ScopeStorageDirectory)
		return
	}
	for _, e := range directory.Endpoints {
		fmt.Println("ask", e.URL, "for", e.Families)
	}
	for _, shard := range directory.Shards {
		fmt.Println(shard.Name, "is kept by", shard.Factor, "of", shard.Replicas)
	}
	// Output:
	// ask https://mirror.prod.example/fealty for [peer_directory route_policy]
	// acme-0 is kept by 2 of [db-1 web-1]
}

// A node may do out of reach the lesser of its own ceiling and of its group's policy.
func ExampleVerified_DegradedModePolicy() {
	runtime, _ := exampleVerified("core", exampleRuntime("core")).NodeRuntime()
	policy, ok := exampleVerified("core", exampleDegraded).DegradedModePolicy()
	if !ok || runtime.Degraded == nil {
		fmt.Println("nothing without", snapshot.ScopeDegradedModePolicy, "and a ceiling")
		return
	}
	bound := func(ceiling snapshot.DegradedPolicy, policy snapshot.DegradedModePolicy) time.Duration {
		return min(ceiling.Max, policy.Max)
	}
	fmt.Println("alone for at most", bound(*runtime.Degraded, policy))
	for _, trial := range policy.Trials {
		fmt.Println("a new", trial.Scope, "is on trial for", trial.Duration)
	}
	// Output:
	// alone for at most 12h0m0s
	// a new route_policy is on trial for 5m0s
}

// A node learns from its node_runtime what it is, and what else it is to hold.
func ExampleVerified_NodeRuntime() {
	v := exampleVerified("core", exampleRuntime("core"))
	if v.Header().ScopeType != snapshot.ScopeNodeRuntime {
		fmt.Println("something else")
		return
	}
	runtime, _ := v.NodeRuntime()
	fmt.Println(runtime.Kind, "of", runtime.Entry, "is", runtime.State, "with roles", runtime.Roles)
	fmt.Println("it holds", runtime.Companions)
	fmt.Println("it renews each", runtime.RenewEvery, "at", runtime.Coordinators)
	// Output:
	// data of pool is active with roles [core]
	// it holds [peer_directory route_policy]
	// it renews each 30m0s at [c1.prod.example:7443 c2.prod.example:7443]
}

// A node that joins is told by whom to find its way, and whether the cluster survives a loss.
func ExampleVerified_NodeBootstrap() {
	bootstrap, ok := exampleVerified("core", exampleBootstrap("core")).NodeBootstrap()
	if !ok {
		fmt.Println("no", snapshot.ScopeNodeBootstrap)
		return
	}
	for _, m := range bootstrap.Members {
		fmt.Println(m.ID.Name(), m.State, m.State == snapshot.MemberDraining)
	}
	if r := bootstrap.Resilience; !r.Met() {
		fmt.Println("only", r.DataMembers, "of", r.Required, "data members")
	}
	// Output:
	// db-1 active false
	// web-1 draining true
	// only 2 of 3 data members
}

// A node holds the scopes that its roles allow, and parts of them.
func ExampleScope_MayHold() {
	thin := []string{"thin"}
	for _, scope := range snapshot.Scopes() {
		if !scope.MayHold("", thin) {
			fmt.Println("not for a thin node:", scope)
		}
	}
	// Output:
	// not for a thin node: degraded_mode_policy
	// not for a thin node: route_policy
	// not for a thin node: service_assignment
}

package snapshot

import (
	"crypto"
	"crypto/x509"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// sample is a content of one scope with all of its sections, for one set of roles.
type sample struct {
	name    string
	roles   []string
	content Content
}

// samples returns contents that are valid, at least one of each scope that is made
// of records.
func (f *fleet) samples(tb testing.TB) []sample {
	tb.Helper()
	id := func(name string) identity.ID { return mustID(identity.New(testCluster, identity.Data, name)) }
	key := must(x509.MarshalPKIXPublicKey(public(keyOf("issuer"))))
	db, web := Peer{"db-1", id("db-1"), []string{"db-1.prod.example:9000", "10.0.0.7:9000"}, MemberActive, "acme"}, Peer{"web-1", id("web-1"), []string{"10.0.0.8:9000"}, MemberDraining, ""}
	return []sample{
		{"peer_directory", []string{RoleCore}, &PeerDirectory{Active: []Peer{db, web}, Bootstrap: []Peer{web}, Warm: []Peer{db}}},
		{"service_assignment", []string{RoleEgress}, &ServiceAssignment{
			Resources: []Resource{{"ledger", "acme", "postgres", "ledger.acme.example:5432", "pgwire", []Parameter{{"MaxConnections", "20"}}, []string{"ledger-login"}}},
			Secrets:   []SecretRef{{"ledger-login", "acme", "vault", "kv/acme/ledger", "3"}, {"mail", "", "file", "/run/keys/mail", ""}},
			Services: []Service{
				{"billing", "acme", "http", []string{"127.0.0.1:8080"}, "bulk", []string{"ledger"}, []string{"ledger-login", "mail"}, []Parameter{{"log.level", "info"}, {"motto", "Dépêche-toi \"now\""}}},
				{"probe", "", "http", []string{}, "", []string{}, []string{}, nil},
			},
		}},
		{"service_assignment of an ingress", []string{RoleIngress}, &ServiceAssignment{
			Endpoints: []Endpoint{{"billing", "acme", "10.0.0.8:8080", "http"}},
			Entry:     &EntryPolicy{Issuers: []Issuer{{"acme", "https://login.acme.example", []string{"billing", "shop"}, [][]byte{key}}}, MaxSessions: 500},
		}},
		{"route_policy", []string{RoleCore}, &RoutePolicy{
			Entry:  []Route{{"web-in", "acme", "billing", "host=billing.acme.example", []string{"web-1"}, []string{}, 5, time.Minute, false}},
			Routes: []Route{{"to-db", "acme", "ledger", "", []string{"db-1", "db-0"}, []string{"web-1"}, 10, time.Hour, false}, {"to-nobody", "", "", "net=192.0.2.0/24", []string{}, []string{}, 0, 0, true}},
		}},
		{"qos_policy", []string{RoleCore}, &QoSPolicy{
			Classes:  []QoSClass{{"bulk", "acme", 1, 100, 20_000}, {"control", "", 9, 64, 0}},
			Sessions: []SessionPolicy{{"core", "", 8 * time.Hour, 10 * time.Minute, 40}},
		}},
		{"storage_directory", []string{RoleStorage}, &StorageDirectory{
			Endpoints: []StorageEndpoint{{"mirror-1", "", "https://mirror.prod.example/fealty", []Scope{ScopePeerDirectory, ScopeRoutePolicy}, 3}},
			Shards:    []StorageShard{{"acme-0", "acme", []Scope{ScopeRoutePolicy}, []string{"db-1", "web-1"}, 2}},
		}},
		{"degraded_mode_policy", []string{RoleCore}, &DegradedModePolicy{
			Allow: []string{"continue_services", "preserve_routes"}, Max: 12 * time.Hour, RouteTTL: time.Hour, SessionTTL: 30 * time.Minute,
			Trials: []Trial{{ScopePeerDirectory, time.Minute}, {ScopeRoutePolicy, 5 * time.Minute}},
		}},
	}
}

// headerOf is a valid header for the sample.
func (f *fleet) headerOf(s sample) Header {
	h := f.header()
	h.ScopeType = s.content.scope()
	h.Roles, h.OrganizationIDs = s.roles, []string{"acme"}
	h.Subject = GroupSubject(h.Roles, h.OrganizationIDs)
	if ruleOf(h.ScopeType).subjects == subjectNode {
		h.Subject = NodeSubject(f.me, f.incarnation)
	}
	return h
}

// trustOf is the trust of a node that the sample is for.
func (f *fleet) trustOf(s sample) Trust {
	trust := f.trust()
	trust.Roles = s.roles
	return trust
}

func (f *fleet) forgeOf(s sample, edit func(*forge)) *Signed {
	g := &forge{header: f.headerOf(s), content: s.content, record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
	g.header.SchemaVersion, g.header.SnapshotID = schemaVersion, "forged"
	return g.sign(edit)
}

// What was composed of records is accepted and is what was composed, and a caller
// who writes into what he got changes nothing.
func TestContents(t *testing.T) {
	f := newFleet(t)
	seen := map[Scope]bool{}
	for _, s := range f.samples(t) {
		t.Run(s.name, func(t *testing.T) {
			scope := s.content.scope()
			seen[scope] = true
			d := must(Compose(f.headerOf(s), s.content))
			v := f.mustVerify(t, f.publishAmong(d, 3), f.trustOf(s))
			if got := v.Header(); got.ScopeType != scope || v.ContentJSON() != string(d.ContentBytes()) {
				t.Fatalf("accepted %+v", got)
			}
			if !bytesEqual(v.content, s.content) {
				t.Fatalf("composed\n%+v, accepted\n%+v", s.content, v.content)
			}
			got := accessors[scope](v)
			if !reflect.DeepEqual(got, v.content) {
				t.Fatalf("%s gives\n%+v of\n%+v", scope, got, v.content)
			}
			scribble(reflect.ValueOf(got).Elem())
			if !bytesEqual(v.content, s.content) {
				t.Fatal("a caller changed what was verified")
			}
			for other, get := range accessors {
				if (get(v) != nil) != (other == scope) {
					t.Errorf("a %s passes as %s", scope, other)
				}
			}
		})
	}
	for scope := range accessors {
		if !seen[scope] {
			t.Errorf("no sample of %s", scope)
		}
	}
	for _, rule := range scopeRules {
		if rule.sections != nil && accessors[rule.scope] == nil {
			t.Errorf("no accessor of %s", rule.scope)
		}
		if got := rule.content().scope(); got != rule.scope {
			t.Errorf("the content of %s says %s", rule.scope, got)
		}
	}
}

func bytesEqual(a, b Content) bool { return string(must(encode(a))) == string(must(encode(b))) }

// accessors ask a Verified for its content; nil: it has another.
var accessors = map[Scope]func(*Verified) any{
	ScopePeerDirectory:      accessor((*Verified).PeerDirectory),
	ScopeServiceAssignment:  accessor((*Verified).ServiceAssignment),
	ScopeRoutePolicy:        accessor((*Verified).RoutePolicy),
	ScopeQoSPolicy:          accessor((*Verified).QoSPolicy),
	ScopeStorageDirectory:   accessor((*Verified).StorageDirectory),
	ScopeDegradedModePolicy: accessor((*Verified).DegradedModePolicy),
}

func accessor[T any](get func(*Verified) (T, bool)) func(*Verified) any {
	return func(v *Verified) any {
		if c, ok := get(v); ok {
			return &c
		}
		return nil
	}
}

// scribble writes over every element of every slice in v, however deep.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scribble(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
			v.Index(i).SetZero()
		}
	}
}

// A group is a set of roles and a set of organizations, and no other pair of sets
// has its name.
func TestGroupSubject(t *testing.T) {
	seen := map[Subject][]any{}
	sets := [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"ab"}, {"a b"}, {"1 a"}, {"a 1 b"}, {"a", "1 b"}}
	for _, roles := range sets {
		for _, orgs := range sets {
			s := GroupSubject(roles, orgs)
			if other, ok := seen[s]; ok {
				t.Errorf("%q and %q are the group of %q", roles, orgs, other)
			}
			seen[s] = []any{roles, orgs}
			back := slices.Clone(orgs)
			slices.Reverse(back)
			if GroupSubject(append(back[:len(back):len(back)], orgs...), roles) != GroupSubject(orgs, roles) {
				t.Errorf("the group of %q depends on their order", orgs)
			}
		}
	}
}

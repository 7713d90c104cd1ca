package snapshot

import (
	"bytes"
	"crypto"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
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
		{"peer_directory", []string{snapshot.RoleCore}, &PeerDirectory{Active: []Peer{db, web}, Bootstrap: []Peer{web}, Warm: []Peer{db}}},
		{"service_assignment", []string{snapshot.RoleEgress}, &ServiceAssignment{
			Resources: []Resource{{"ledger", "acme", "postgres", "ledger.acme.example:5432", "pgwire", []Parameter{{"MaxConnections", "20"}}, []string{"ledger-login"}}},
			Secrets:   []SecretRef{{"ledger-login", "acme", "vault", "kv/acme/ledger", "3"}, {"mail", "", "file", "/run/keys/mail", ""}},
			Services: []Service{
				{"billing", "acme", "http", []string{"127.0.0.1:8080"}, "bulk", []string{"ledger"}, []string{"ledger-login", "mail"}, []Parameter{{"log.level", "info"}, {"motto", "Dépêche-toi \"now\""}}},
				{"probe", "", "http", []string{}, "", []string{}, []string{}, nil},
			},
		}},
		{"service_assignment of an ingress", []string{snapshot.RoleIngress}, &ServiceAssignment{
			Endpoints: []Endpoint{{"billing", "acme", "10.0.0.8:8080", "http"}},
			Entry:     &EntryPolicy{Issuers: []Issuer{{"acme", "https://login.acme.example", []string{"billing", "shop"}, [][]byte{key}}}, MaxSessions: 500},
		}},
		{"route_policy", []string{snapshot.RoleCore}, &RoutePolicy{
			Entry:  []Route{{"web-in", "acme", "billing", "host=billing.acme.example", []string{"web-1"}, []string{}, 5, time.Minute, false}},
			Routes: []Route{{"to-db", "acme", "ledger", "", []string{"db-1", "db-0"}, []string{"web-1"}, 10, time.Hour, false}, {"to-nobody", "", "", "net=192.0.2.0/24", []string{}, []string{}, 0, 0, true}},
		}},
		{"qos_policy", []string{snapshot.RoleCore}, &QoSPolicy{
			Classes:  []QoSClass{{"bulk", "acme", 1, 100, 20_000}, {"control", "", 9, 64, 0}},
			Sessions: []SessionPolicy{{"core", "", 8 * time.Hour, 10 * time.Minute, 40}},
		}},
		{"storage_directory", []string{snapshot.RoleStorage}, &StorageDirectory{
			Endpoints: []StorageEndpoint{{"mirror-1", "", "https://mirror.prod.example/fealty", []Scope{ScopePeerDirectory, ScopeRoutePolicy}, 3}},
			Shards:    []StorageShard{{"acme-0", "acme", []Scope{ScopeRoutePolicy}, []string{"db-1", "web-1"}, 2}},
		}},
		{"degraded_mode_policy", []string{snapshot.RoleCore}, &DegradedModePolicy{
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

// A content composed of records is accepted and is what was composed, and a
// caller that writes into what it got changes nothing.
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
	sets := [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"ab"}, {"a b"}, {"1 a"}, {"a 1 b"}, {"a", "1 b"}, {"a", "b c"}, {"a b", "c"}}
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

// scopeRefusals are what is wrong with a snapshot of any scope, one thing each, for
// every check that does not depend on what is in the content.
var scopeRefusals = []struct {
	check  int
	name   string
	reason Reason
	bend   func(*testing.T, *fleet, *given, *forge)
	after  func(*Signed)
	fatal  bool // what follows depends on the check: it cannot be left out
}{
	{check: checkLimits, name: "three signatures", reason: snapshot.ReasonLimits, after: func(s *Signed) {
		s.Publication.Signatures = slices.Repeat(s.Publication.Signatures, 3)
	}},
	{check: checkLimits, name: "header above its limit", reason: snapshot.ReasonLimits, fatal: true, after: func(s *Signed) {
		s.Header = append(s.Header, bytes.Repeat([]byte(" "), snapshot.MaxHeader)...)
	}},
	{check: checkLimits, name: "content above the scope's limit", reason: snapshot.ReasonLimits, fatal: true, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		limit := ruleOf(x.header.ScopeType).maxContent
		x.raw, x.header.ContentSize = bytes.Repeat([]byte(" "), limit+1), limit
	}},
	{check: checkLimits, name: "a signed size above the scope's limit", reason: snapshot.ReasonLimits, fatal: true, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		// No header says more than the largest of all limits.
		if x.header.ContentSize = ruleOf(x.header.ScopeType).maxContent + 1; x.header.ContentSize > snapshot.MaxContent {
			x.raw, x.header.ContentSize = make([]byte, snapshot.MaxContent+1), snapshot.MaxContent
		}
	}},
	{check: checkSchema, name: "schema of tomorrow", reason: snapshot.ReasonSchema, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.SchemaVersion = 2
	}},
	{check: checkSchema, name: "a base that is no version", reason: snapshot.ReasonSchema, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.Base = &Base{6, Digest{}}
	}},
	{check: checkSchema, name: "a base that comes later", reason: snapshot.ReasonSchema, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.Base = &Base{8, Digest{1}}
	}},
	{check: checkCluster, name: "record of another cluster", reason: snapshot.ReasonCluster, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.record.ClusterID = "test.example"
	}},
	{check: checkCluster, name: "another cluster", reason: snapshot.ReasonCluster, fatal: true, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.ClusterID = "test.example"
	}},
	{check: checkSubject, name: "of somebody else", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, f *fleet, g *given, x *forge) {
		if ruleOf(x.header.ScopeType).subjects == subjectNode {
			x.header.Subject = NodeSubject(mustID(identity.New(testCluster, identity.Data, "node-d")), f.incarnation)
			return
		}
		g.trust.Organizations = []string{"acme", "umbrella"} // I serve more than the group that it is for
	}},
	{check: checkSubject, name: "of an earlier incarnation, or under the name of my group", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, f *fleet, g *given, x *forge) {
		if ruleOf(x.header.ScopeType).subjects == subjectNode {
			x.header.Subject = NodeSubject(f.me, identity.KeyID{8})
			return
		}
		g.trust.Organizations = []string{"acme", "umbrella"}
		x.header.Subject = GroupSubject(g.trust.Roles, g.trust.Organizations)
	}},
	{check: checkSubject, name: "of everybody", reason: snapshot.ReasonSubject, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.Subject = ClusterSubject()
	}},
	{check: checkSigner, name: "revoked key", reason: snapshot.ReasonSigner, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Revoked = true }), f.trust())
	}},
	{check: checkSigner, name: "key of other scopes", reason: snapshot.ReasonSigner, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		others := slices.DeleteFunc(Scopes(), func(s Scope) bool { return s == ScopeTrustBundle || s == x.header.ScopeType })
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Scopes = others }), f.trust())
	}},
	{check: checkSigner, name: "config root key", reason: snapshot.ReasonSigner, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.root, x.keys = true, []crypto.Signer{f.root}
	}},
	{check: checkSignature, name: "unknown key", reason: snapshot.ReasonSignature, bend: func(t *testing.T, _ *fleet, _ *given, x *forge) {
		x.keys = []crypto.Signer{newKey(t)}
	}},
	{check: checkSignature, name: "a header that is not in the tree", reason: snapshot.ReasonSignature, after: func(s *Signed) {
		s.Header = bytes.Replace(s.Header, []byte(`"config_version":"7"`), []byte(`"config_version":"8"`), 1)
	}},
	{check: checkHash, name: "other content", reason: snapshot.ReasonHash, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.ContentHash = Digest{1}
	}},
	{check: checkHash, name: "a part of the content", reason: snapshot.ReasonHash, fatal: true, after: func(s *Signed) {
		s.Content = s.Content[:len(s.Content)-1]
	}},
	{check: checkHash, name: "no content", reason: snapshot.ReasonHash, fatal: true, after: func(s *Signed) { s.Content = nil }},
	{check: checkHash, name: "a patch where the whole is asked for", reason: snapshot.ReasonHash, fatal: true, after: func(s *Signed) {
		s.Content, s.Patch = nil, []byte("{}")
	}},
	{check: checkValidity, name: "expired", reason: snapshot.ReasonValidity, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.header.ExpiresAt, x.header.RefreshAfter = f.now, f.now.Add(-time.Hour)
	}},
	{check: checkValidity, name: "of tomorrow", reason: snapshot.ReasonValidity, bend: func(_ *testing.T, f *fleet, _ *given, x *forge) {
		x.header.ValidFrom = f.now.Add(snapshot.ClockTolerance + time.Second)
	}},
	{check: checkEpoch, name: "an older epoch with a newer version", reason: snapshot.ReasonEpoch, bend: func(t *testing.T, _ *fleet, g *given, x *forge) {
		g.acceptedAs(t, x, func(*Mark) {})
		x.header.AuthorityEpoch, x.header.ConfigVersion = 2, 8
		x.record.Generation++
	}},
	{check: checkEpoch, name: "an epoch ahead of the bundle", reason: snapshot.ReasonEpoch, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.AuthorityEpoch, x.record.AuthorityEpoch = 4, 4
	}},
	{check: checkVersion, name: "an older version", reason: ReasonVersion, bend: func(t *testing.T, _ *fleet, g *given, x *forge) {
		g.acceptedAs(t, x, func(*Mark) {})
		x.header.ConfigVersion = 6
		x.record.Generation++
	}},
	{check: checkVersion, name: "the same version with other content", reason: ReasonEquivocation, bend: func(t *testing.T, f *fleet, g *given, x *forge) {
		g.acceptedAs(t, x, func(m *Mark) { m.ContentHash = Digest{9} })
		x.header.IssuedAt = f.now
		x.record.Generation++
	}},
	{check: checkVersion, name: "the same generation with another root", reason: ReasonEquivocation, bend: func(t *testing.T, _ *fleet, g *given, x *forge) {
		g.acceptedAs(t, x, func(*Mark) {})
		x.header.ConfigVersion = 8
	}},
	{check: checkVersion, name: "an older record", reason: ReasonStaleRecord, bend: func(t *testing.T, _ *fleet, g *given, x *forge) {
		g.acceptedAs(t, x, func(*Mark) {})
		x.header.ConfigVersion = 8
		x.record.Generation--
	}},
	{check: checkContent, name: "a byte behind", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.raw = append(must(encode(x.content)), '\n')
	}},
	{check: checkContent, name: "an unknown member", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.raw = append([]byte(`{"aaa":{},`), must(encode(x.content))[1:]...)
	}},
	{check: checkContent, name: "deep nesting", reason: snapshot.ReasonContent, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		raw := must(encode(x.content))
		end := bytes.IndexByte(raw, ':') + 1
		x.raw = append(raw[:end:end], bytes.Repeat([]byte("["), 400_000)...)
	}},
	{check: checkSecret, name: "a token in the header", reason: snapshot.ReasonSecret, bend: func(_ *testing.T, _ *fleet, _ *given, x *forge) {
		x.header.ScopeIDs = []string{"glpat-" + strings.Repeat("a", 20)}
	}},
}

// acceptedAs gives the node the marks of one who accepted what x is now, and bends
// them.
func (g *given) acceptedAs(t *testing.T, x *forge, edit func(*Mark)) {
	t.Helper()
	now := *x
	v, err := Verify(now.sign(func(*forge) {}), g.trust, g.marks, g.now)
	if err != nil {
		t.Fatal(err)
	}
	marks := mustAccept(t, g.marks, v)
	key := markKey{x.header.ScopeType, x.header.Subject}
	mark := marks.m[key]
	edit(&mark)
	marks.m[key] = mark
	g.marks = marks
}

func TestScopeRefusals(t *testing.T) {
	f := newFleet(t)
	for _, s := range f.samples(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			seen := map[int]bool{checkGrants: true} // see TestGrants
			for _, r := range scopeRefusals {
				t.Run(fmt.Sprintf("%d %s", r.check, r.name), func(t *testing.T) {
					g := &given{trust: f.trustOf(s), now: f.now}
					signed := f.forgeOf(s, func(x *forge) {
						if r.bend != nil {
							r.bend(t, f, g, x)
						}
					})
					if r.after != nil {
						r.after(signed)
					}
					_, err := verify(checks, g.verification(signed))
					wantRefused(t, err, r.check, r.reason)
					// In stages it is refused as it is at once, and before the content is there
					// wherever no content is needed.
					checked, err := VerifyHeader(signed, g.trust, g.marks, g.now)
					if early := slices.IndexFunc(checks, func(c check) bool { return c.number == r.check }) < firstOfContent && !onlyInContent(r.name); early {
						wantRefused(t, err, r.check, r.reason)
					} else if err != nil {
						t.Fatalf("by its header alone: %v", err)
					} else {
						_, err = checked.Complete(signed.Content)
						wantRefused(t, err, r.check, r.reason)
					}
					if r.fatal {
						return
					}
					if r.check == checkContent {
						seen[r.check] = true // see TestContentRefusals
						return
					}
					if _, err := verify(without(r.check), g.verification(signed)); err != nil {
						t.Fatalf("without check %d it is refused all the same: %v", r.check, err)
					}
					seen[r.check] = true
				})
			}
			for _, c := range checks {
				if !seen[c.number] {
					t.Errorf("check %d (%s) has no case that shows it to be necessary", c.number, c.rule)
				}
			}
		})
	}
}

// onlyInContent: the secret of the header is reported as the last, with those of the
// content.
func onlyInContent(name string) bool { return name == "a token in the header" }

// records yields each record that belongs to an organization, with the section that
// it is in.
func records(c Content) func(yield func(section string, organization reflect.Value) bool) {
	return func(yield func(string, reflect.Value) bool) {
		v := reflect.ValueOf(c).Elem()
		for i := range v.NumField() {
			if v.Field(i).Kind() != reflect.Slice || v.Field(i).Type().Elem().Kind() != reflect.Struct {
				continue
			}
			for j := range v.Field(i).Len() {
				if org := v.Field(i).Index(j).FieldByName("Organization"); org.IsValid() && !yield(strings.ToLower(v.Type().Field(i).Name), org) {
					return
				}
			}
		}
	}
}

// No record of an organization that the header does not name gets through, and no
// section that the roles of the header may not hold, whoever signed it.
func TestGrants(t *testing.T) {
	f := newFleet(t)
	refused := func(t *testing.T, trust Trust, signed *Signed) {
		t.Helper()
		g := &given{trust: trust, now: f.now}
		_, err := verify(checks, g.verification(signed))
		wantRefused(t, err, checkGrants, snapshot.ReasonGrants)
		if _, err := verify(without(checkGrants), g.verification(signed)); err != nil {
			t.Fatalf("without check 10 it is refused all the same: %v", err)
		}
	}
	covered, held := map[string]bool{}, map[string]bool{}
	for at, s := range f.samples(t) {
		scope := s.content.scope()
		t.Run(s.name, func(t *testing.T) {
			n := 0
			for range records(s.content) {
				n++
			}
			for i := range n {
				bent := f.samples(t)[at]
				k := 0
				for section, org := range records(bent.content) {
					if k++; k-1 == i {
						org.SetString("umbrella")
						covered[string(scope)+"/"+section] = true
					}
				}
				refused(t, f.trustOf(s), f.forgeOf(bent, func(*forge) {}))
				_, err := Compose(f.headerOf(bent), bent.content)
				wantRefused(t, err, checkGrants, snapshot.ReasonGrants)
				// A node that serves it, and is told so, gets it.
				trust := f.trustOf(s)
				trust.Organizations = []string{"acme", "umbrella"}
				f.mustVerify(t, f.forgeOf(bent, func(x *forge) {
					x.header.OrganizationIDs = trust.Organizations
					if x.header.Subject.kind() == subjectGroup {
						x.header.Subject = GroupSubject(x.header.Roles, trust.Organizations)
					}
				}), trust)
			}
			// Each section alone, for everybody who may not hold it.
			for _, section := range ruleOf(scope).sections {
				alone := f.samples(t)[at]
				v := reflect.ValueOf(alone.content).Elem()
				is := false
				for i := range v.NumField() {
					if strings.ToLower(v.Type().Field(i).Name) == section.name || section.name == snapshot.SectionWhole {
						is = is || !v.Field(i).IsZero()
					} else {
						v.Field(i).SetZero()
					}
				}
				if !is {
					continue
				}
				if a, ok := alone.content.(*ServiceAssignment); ok { // what is referred to is gone
					for i := range a.Resources {
						a.Resources[i].Secrets = nil
					}
					for i := range a.Services {
						a.Services[i].Resources, a.Services[i].Secrets = nil, nil
					}
				}
				held[string(scope)+"/"+section.name] = true
				for _, row := range mayHoldTable {
					if slices.Contains(row.roles, "") {
						continue // no header has it
					}
					alone.roles = row.roles
					signed := f.forgeOf(alone, func(*forge) {})
					if slices.Contains(row.holds, string(scope)+"/"+section.name) {
						f.mustVerify(t, signed, f.trustOf(alone))
					} else {
						refused(t, f.trustOf(alone), signed)
					}
				}
			}
			if ruleOf(scope).subjects != subjectNode {
				return
			}
			// A node that has another role, too, may hold less than the header says.
			trust := f.trustOf(s)
			trust.Roles = append(slices.Clone(s.roles), snapshot.RoleThin)
			refused(t, trust, f.forgeOf(s, func(*forge) {}))
		})
	}
	for _, rule := range scopeRules {
		for _, section := range rule.sections {
			name := string(rule.scope) + "/" + section.name
			if !held[name] {
				t.Errorf("%s was given to nobody who may not hold it", name)
			}
			if section.records && !covered[name] {
				t.Errorf("%s had no record of another organization", name)
			}
		}
	}
}

// contentRefusals bend one content in one way. All are check 11.
var contentRefusals = []struct {
	sample string
	name   string
	bend   func(c any)
}{
	{"peer_directory", "peer of another cluster", func(c any) {
		c.(*PeerDirectory).Warm[0].ID = mustID(identity.New("test.example", identity.Data, "db-1"))
	}},
	{"peer_directory", "peer in no state", func(c any) { c.(*PeerDirectory).Active[0].State = "gone" }},
	{"peer_directory", "blank address", func(c any) { c.(*PeerDirectory).Bootstrap[0].Addresses = []string{""} }},
	{"peer_directory", "address with a space", func(c any) { c.(*PeerDirectory).Bootstrap[0].Addresses = []string{"a b:1"} }},
	{"peer_directory", "address twice", func(c any) { c.(*PeerDirectory).Active[0].Addresses[1] = c.(*PeerDirectory).Active[0].Addresses[0] }},
	{"service_assignment", "resource that is not there", func(c any) { c.(*ServiceAssignment).Services[0].Resources = []string{"other"} }},
	{"service_assignment", "secret that is not there", func(c any) { c.(*ServiceAssignment).Services[0].Secrets = []string{"other"} }},
	{"service_assignment", "secret of a resource that is not there", func(c any) { c.(*ServiceAssignment).Resources[0].Secrets = []string{"other"} }},
	{"service_assignment", "secrets out of order", func(c any) { slices.Reverse(c.(*ServiceAssignment).Services[0].Secrets) }},
	{"service_assignment", "resource twice", func(c any) { c.(*ServiceAssignment).Services[0].Resources = []string{"ledger", "ledger"} }},
	{"service_assignment", "service of no type", func(c any) { c.(*ServiceAssignment).Services[0].Type = "" }},
	{"service_assignment", "service of a class that is no name", func(c any) { c.(*ServiceAssignment).Services[0].QoS = "BULK" }},
	{"service_assignment", "service at an address twice", func(c any) { c.(*ServiceAssignment).Services[0].Addresses = []string{"a:1", "a:1"} }},
	{"service_assignment", "resource of no type", func(c any) { c.(*ServiceAssignment).Resources[0].Type = "" }},
	{"service_assignment", "resource without an address", func(c any) { c.(*ServiceAssignment).Resources[0].Address = "" }},
	{"service_assignment", "connector that is no name", func(c any) { c.(*ServiceAssignment).Resources[0].Connector = "a b" }},
	{"service_assignment", "secret without a resolver", func(c any) { c.(*ServiceAssignment).Secrets[1].Resolver = "" }},
	{"service_assignment", "secret without a path", func(c any) { c.(*ServiceAssignment).Secrets[1].Path = "" }},
	{"service_assignment", "secret of a version that is no name", func(c any) { c.(*ServiceAssignment).Secrets[1].Version = "a b" }},
	{"service_assignment of an ingress", "endpoint without an address", func(c any) { c.(*ServiceAssignment).Endpoints[0].Address = "" }},
	{"service_assignment of an ingress", "endpoint without a protocol", func(c any) { c.(*ServiceAssignment).Endpoints[0].Protocol = "" }},
	{"service_assignment of an ingress", "issuer over plain http", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].URL = "http://login.acme.example" }},
	{"service_assignment of an ingress", "issuer without audiences", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].Audiences = nil }},
	{"service_assignment of an ingress", "audiences out of order", func(c any) { slices.Reverse(c.(*ServiceAssignment).Entry.Issuers[0].Audiences) }},
	{"service_assignment of an ingress", "audience twice", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].Audiences = []string{"a", "a"} }},
	{"service_assignment of an ingress", "blank audience", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].Audiences = []string{""} }},
	{"service_assignment of an ingress", "issuer without keys", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].Keys = nil }},
	{"service_assignment of an ingress", "key that is none", func(c any) { c.(*ServiceAssignment).Entry.Issuers[0].Keys = [][]byte{{1}} }},
	{"service_assignment of an ingress", "private key", func(c any) {
		c.(*ServiceAssignment).Entry.Issuers[0].Keys = [][]byte{must(x509.MarshalPKCS8PrivateKey(keyOf("issuer")))}
	}},
	{"service_assignment of an ingress", "short RSA key", func(c any) {
		c.(*ServiceAssignment).Entry.Issuers[0].Keys = [][]byte{must(x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537}))}
	}},
	{"service_assignment of an ingress", "key of another kind", func(c any) {
		c.(*ServiceAssignment).Entry.Issuers[0].Keys = [][]byte{must(x509.MarshalPKIXPublicKey(must(ecdh.X25519().GenerateKey(rand.Reader)).PublicKey()))}
	}},
	{"service_assignment of an ingress", "key twice", func(c any) {
		i := &c.(*ServiceAssignment).Entry.Issuers[0]
		i.Keys = append(i.Keys, i.Keys[0])
	}},
	{"route_policy", "service that is no name", func(c any) { c.(*RoutePolicy).Routes[0].Service = "A B" }},
	{"route_policy", "denied, and where to", func(c any) { c.(*RoutePolicy).Routes[0].Deny = true }},
	{"route_policy", "denied, and over what", func(c any) { c.(*RoutePolicy).Routes[1].Via = []string{"web-1"} }},
	{"route_policy", "to somebody twice", func(c any) { c.(*RoutePolicy).Routes[0].To[1] = "db-1" }},
	{"route_policy", "to nobody", func(c any) { c.(*RoutePolicy).Entry[0].To = []string{""} }},
	{"route_policy", "over somebody twice", func(c any) { c.(*RoutePolicy).Entry[0].Via = []string{"a", "b", "a"} }},
	{"qos_policy", "at most less than at least", func(c any) { c.(*QoSPolicy).Classes[0].MaxKbps = 99 }},
	{"storage_directory", "endpoint without a URL", func(c any) { c.(*StorageDirectory).Endpoints[0].URL = "" }},
	{"storage_directory", "endpoint without families", func(c any) { c.(*StorageDirectory).Endpoints[0].Families = nil }},
	{"storage_directory", "families out of order", func(c any) { slices.Reverse(c.(*StorageDirectory).Endpoints[0].Families) }},
	{"storage_directory", "family that is no scope", func(c any) { c.(*StorageDirectory).Shards[0].Families[0] = "user_directory" }},
	{"storage_directory", "shard without families", func(c any) { c.(*StorageDirectory).Shards[0].Families = nil }},
	{"storage_directory", "replicas out of order", func(c any) { slices.Reverse(c.(*StorageDirectory).Shards[0].Replicas) }},
	{"storage_directory", "factor of 0", func(c any) { c.(*StorageDirectory).Shards[0].Factor = 0 }},
	{"degraded_mode_policy", "actions out of order", func(c any) { slices.Reverse(c.(*DegradedModePolicy).Allow) }},
	{"degraded_mode_policy", "trial of no scope", func(c any) { c.(*DegradedModePolicy).Trials[1].Scope = "user_directory" }},
	{"degraded_mode_policy", "trial of no length", func(c any) { c.(*DegradedModePolicy).Trials[0].Duration = 0 }},
	{"degraded_mode_policy", "trial of days", func(c any) { c.(*DegradedModePolicy).Trials[0].Duration = snapshot.MaxTrial + time.Second }},
}

func TestContentRefusals(t *testing.T) {
	f := newFleet(t)
	seen := map[string]bool{}
	for _, r := range contentRefusals {
		t.Run(r.sample+" "+r.name, func(t *testing.T) {
			for _, s := range f.samples(t) {
				if s.name != r.sample {
					continue
				}
				seen[s.name] = true
				r.bend(s.content)
				g := &given{trust: f.trustOf(s), now: f.now}
				signed := f.forgeOf(s, func(*forge) {})
				_, err := verify(checks, g.verification(signed))
				wantRefused(t, err, checkContent, snapshot.ReasonContent)
				if _, err := verify(without(checkContent), g.verification(signed)); err != nil {
					t.Fatalf("without check 11 it is refused all the same: %v", err)
				}
				_, err = Compose(f.headerOf(s), s.content)
				wantRefused(t, err, checkContent, snapshot.ReasonContent)
			}
		})
	}
	for _, s := range f.samples(t) {
		if !seen[s.name] {
			t.Errorf("%s has no content that is refused", s.name)
		}
	}
}

// A content that the types cannot even say is refused when it is written as when it is read.
func TestDictionaries(t *testing.T) {
	route := string(must(encode(&Route{Name: "a"})))
	for name, content := range map[string]string{
		"double":                 `{"entry":{},"routes":{"a":` + route + `,"a":` + route + `}}`,
		"out of order":           `{"entry":{},"routes":{"b":` + route + `,"a":` + route + `}}`,
		"no name":                `{"entry":{},"routes":{"":` + route + `}}`,
		"name in capitals":       `{"entry":{},"routes":{"A":` + route + `}}`,
		"name with a slash":      `{"entry":{},"routes":{"a/b":` + route + `}}`,
		"name that ends oddly":   `{"entry":{},"routes":{"a-":` + route + `}}`,
		"name that begins oddly": `{"entry":{},"routes":{".a":` + route + `}}`,
		"escaped name":           `{"entry":{},"routes":{"\u0061":` + route + `}}`,
		"long name":              `{"entry":{},"routes":{"` + strings.Repeat("a", maxRecordName+1) + `":` + route + `}}`,
		"null":                   `{"entry":{},"routes":{"a":null}}`,
		"null for the object":    `{"entry":null,"routes":{}}`,
		"comma at the end":       `{"entry":{},"routes":{"a":` + route + `,}}`,
		"comma at the start":     `{"entry":{},"routes":{,"a":` + route + `}}`,
		"no comma":               `{"entry":{},"routes":{"a":` + route + `"b":` + route + `}}`,
		"a list":                 `{"entry":[],"routes":{}}`,
		"without end":            `{"entry":{},"routes":{"a":` + route,
	} {
		if _, err := decode(content, new(RoutePolicy)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	for name, routes := range map[string][]Route{
		"double": {{Name: "a"}, {Name: "a"}}, "out of order": {{Name: "b"}, {Name: "a"}}, "no name": {{}}, "capitals": {{Name: "A"}},
		"too many": make([]Route, snapshot.MaxRecords+1),
	} {
		if _, err := encode(&RoutePolicy{Routes: routes}); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	many := new(RoutePolicy)
	for i := range snapshot.MaxRecords + 1 {
		many.Routes = append(many.Routes, Route{Name: fmt.Sprintf("r%06d", i)})
	}
	last := many.Routes[snapshot.MaxRecords]
	many.Routes = many.Routes[:snapshot.MaxRecords]
	full := string(must(encode(many)))
	if _, err := decode(full, new(RoutePolicy)); err != nil {
		t.Fatal(err)
	}
	if _, err := decode(strings.TrimSuffix(full, "}}")+`,"`+last.Name+`":`+route+"}}", new(RoutePolicy)); err == nil {
		t.Error("one record above the limit was read")
	}
}

// Every string of every content is looked through for secrets, when it is written
// and when it is read.
func TestEveryStringIsLookedThrough(t *testing.T) {
	f := newFleet(t)
	secret := "glpat-" + "abcdefghij0123456789" // a name, a scope and an address at once
	for at, s := range f.samples(t) {
		var paths []string
		eachString(reflect.ValueOf(s.content), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
		if len(paths) < 4 {
			t.Errorf("%s: only strings %q", s.name, paths)
		}
		for _, path := range paths {
			bent := f.samples(t)[at].content
			eachString(reflect.ValueOf(bent), "", func(p string, v reflect.Value) {
				if p == path {
					v.SetString(secret)
				}
			})
			// One at a time, so that names are in order.
			keepOnly(reflect.ValueOf(bent), path)
			c := &codec{}
			bent.walk(c)
			if c.Err() != nil {
				t.Errorf("%s%s: %v", s.name, path, c.Err())
				continue
			}
			read, err := decode(string(c.Out()), ruleOf(bent.scope()).content())
			if c.Secret() == "" || err != nil || read.Secret() == "" {
				t.Errorf("%s%s: a secret there is not seen: %q when written, %v when read", s.name, path, c.Secret(), err)
			}
		}
	}
}

// eachString calls do with every string in v that a content may choose.
func eachString(v reflect.Value, path string, do func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.String:
		do(path, v)
	case reflect.Pointer:
		if !v.IsNil() {
			eachString(v.Elem(), path, do)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				eachString(v.Field(i), path+"."+v.Type().Field(i).Name, do)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachString(v.Index(i), fmt.Sprintf("%s[%d]", path, i), do)
		}
	}
}

// keepOnly cuts every slice on the way to path down to the element that path goes
// through.
func keepOnly(v reflect.Value, path string) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case strings.HasPrefix(path, "."):
		name := path[1:]
		if i := strings.IndexAny(name, ".["); i >= 0 {
			name = name[:i]
		}
		keepOnly(v.FieldByName(name), path[1+len(name):])
	case strings.HasPrefix(path, "["):
		var i int
		fmt.Sscanf(path, "[%d]", &i)
		keepOnly(v.Index(i), path[strings.IndexByte(path, ']')+1:])
		v.Set(v.Slice(i, i+1))
	}
}

// A parameter that is named as a secret is one, whatever it looks like.
func TestSecretIn(t *testing.T) {
	for _, c := range []struct {
		name, text string
		secret     bool
	}{
		{"password", "x", true}, {"db_password", "hunter2", true}, {"DB_PASSWORD", "!", true}, {"ApiKey", "1", true}, {"session-token", "1", true},
		{"client.secret", "x", true}, {"tls_private_key", "x", true}, {"password", "", false}, {"", "", false},
		{"token_ttl", "60", false}, {"secret_name", "mail", false}, {"", "hunter2", false}, {"level", "info", false},
		{"level", "Bearer " + strings.Repeat("ab1", 9), true}, {"", "postgres://app:" + "hunter2@db.example/app", true},
	} {
		if got := snapshot.SecretIn(c.name, c.text); (got != "") != c.secret {
			t.Errorf("%s=%s: %q", c.name, c.text, got)
		} else if c.text != "" && strings.Contains(got, c.text) && len(c.text) > 1 {
			t.Errorf("%s=%s: the kind shows it: %q", c.name, c.text, got)
		}
		p := []Parameter{{c.name, c.text}}
		if c.name == "" {
			continue
		}
		written := &codec{}
		(&Service{Parameters: p}).walk(written)
		read, err := decode(string(written.Out()), new(Service))
		if err != nil || (written.Secret() != "") != c.secret || (read.Secret() != "") != c.secret {
			t.Errorf("parameter %s=%s: %q when written, %q when read, %v", c.name, c.text, written.Secret(), read.Secret(), err)
		}
	}
}

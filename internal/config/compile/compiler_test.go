package compile

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "prod.example"

// tester is a test, or one run of a property.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// bytesOf are the bytes that are signed and sent of a content, for a group.
func bytesOf(t tester, g Group, m *Member, content snapshot.Content) []byte {
	t.Helper()
	subject := g.Subject()
	if m != nil {
		subject = snapshot.NodeSubject(m.ID, identity.KeyID{1})
	}
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	d, err := snapshot.Compose(snapshot.Header{
		ClusterID: cluster, Subject: subject, Roles: g.Roles, OrganizationIDs: g.Organizations, ConfigVersion: 1, AuthorityEpoch: 1,
		IssuedAt: at, ValidFrom: at, ExpiresAt: at.Add(time.Hour), RefreshAfter: at.Add(time.Minute),
	}, content)
	if err != nil {
		t.Fatalf("%+v for %+v: %v", content, g, err)
	}
	return d.ContentBytes()
}

// world is a config and the members that it is for. Every string that somebody put
// is tainted: it holds a token that says which record or member it is of.
type world struct {
	t       tester
	next    int
	owners  map[string]owner // by token
	records []config.Record
	members map[string]Member
	banned  map[identity.ID]bool
	revoked []snapshot.Revoked
	ceiling snapshot.DegradedPolicy
}

// owner is whose a tainted string is, as the test understands the rules: it does
// not ask the compiler.
type owner struct {
	organization string
	roles        []string // empty: all
	serves       []string // of a member: it may be shown to those that share one of these; empty: all
}

func (o owner) mayBeSeenBy(g Group) bool {
	return (o.organization == "" || slices.Contains(g.Organizations, o.organization)) &&
		(len(o.roles) == 0 || slices.ContainsFunc(o.roles, func(r string) bool { return slices.Contains(g.Roles, r) })) &&
		(len(o.serves) == 0 || slices.ContainsFunc(o.serves, func(s string) bool { return slices.Contains(g.Organizations, s) }))
}

var tokens = regexp.MustCompile(`zq[0-9]+qz`)

// taint returns a new token for strings of o.
func (w *world) taint(o owner) string {
	w.next++
	token := fmt.Sprintf("zq%dqz", w.next)
	w.owners[token] = o
	return token
}

func (w *world) set() *config.Set {
	w.t.Helper()
	s, err := config.NewSet(w.records...)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) compiler() *Compiler { return w.compilerOf(w.set()) }

func (w *world) compilerOf(s *config.Set) *Compiler {
	return New(Input{
		Config: s, Ceiling: w.ceiling,
		Member:  func(path string) (Member, bool) { m, ok := w.members[path]; return m, ok },
		Banned:  func(id identity.ID) bool { return w.banned[id] },
		Revoked: trust.RevocationsOf(nil, &trust.Emergency{Revoked: w.revoked}),
	})
}

func (w *world) groups() []Group {
	groups := make(map[snapshot.Subject]Group)
	for _, m := range w.members {
		groups[m.Subject()] = m.Group
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b Group) int { return cmp.Compare(a.Subject().String(), b.Subject().String()) })
}

var (
	organizations = []string{"acme", "globex", "initech"}
	allRoles      = []string{internalsnapshot.RoleCore, internalsnapshot.RoleEgress, internalsnapshot.RoleIngress, internalsnapshot.RoleStorage, internalsnapshot.RoleThin}
)

func drawSome(t *rapid.T, from []string, most int, label string) []string {
	out := rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, min(most, len(from)), rapid.ID).Draw(t, label)
	slices.Sort(out)
	return out
}

// drawWorld makes a random world.
func drawWorld(t *rapid.T) *world {
	w := &world{t: t, owners: make(map[string]owner), members: make(map[string]Member), banned: make(map[identity.ID]bool)}
	for _, o := range organizations {
		w.records = append(w.records, &config.Organization{Common: config.Common{Name: o}, Description: w.taint(owner{organization: "nobody"})})
	}
	var paths []string
	for range rapid.IntRange(1, 8).Draw(t, "members") {
		serves := drawSome(t, organizations, 3, "organizations")
		m := Member{Group: Group{drawSome(t, allRoles, 2, "roles"), serves}, State: snapshot.MemberActive}
		m.Outsider = len(serves) == 0 && rapid.IntRange(0, 3).Draw(t, "outsider") == 0
		o := owner{serves: serves}
		if m.Outsider {
			o.organization = "nobody"
		}
		id, err := identity.New(cluster, identity.Data, "n-"+w.taint(o))
		if err != nil {
			t.Fatal(err)
		}
		m.ID = id
		m.State = rapid.SampledFrom([]snapshot.MemberState{snapshot.MemberActive, snapshot.MemberActive, snapshot.MemberDraining, ""}).Draw(t, "state")
		w.banned[id] = rapid.IntRange(0, 5).Draw(t, "banned") == 0
		w.members[m.path()] = m
		paths = append(paths, m.path())
	}
	paths = append(paths, "data/n-"+w.taint(owner{organization: "nobody"})) // which there is not

	common := func(kind string) (config.Common, func(string) string) {
		c := config.Common{
			Organization: rapid.SampledFrom(append([]string{""}, organizations...)).Draw(t, kind+" organization"),
			Roles:        drawSome(t, allRoles, 2, kind+" roles"),
		}
		if len(c.Roles) == 0 {
			c.Roles = nil
		}
		o := owner{organization: c.Organization, roles: c.Roles}
		c.Name = kind + "-" + w.taint(o)
		return c, func(s string) string { return s + w.taint(o) }
	}
	// refer picks records that from may refer to: of its organization or the cluster's,
	// and for all who get it.
	refer := func(from config.Common, kind config.Kind, most int) []string {
		var names []string
		for _, r := range w.records {
			b := r.Base()
			wide := len(b.Roles) == 0 || len(from.Roles) > 0 && !slices.ContainsFunc(from.Roles, func(r string) bool { return !slices.Contains(b.Roles, r) })
			if r.Kind() == kind && (b.Organization == "" || b.Organization == from.Organization) && wide {
				names = append(names, b.Name)
			}
		}
		if len(names) == 0 {
			return nil
		}
		return drawSome(t, names, most, string(kind)+" refs")
	}
	first := func(names []string) string {
		if len(names) == 0 {
			return ""
		}
		return names[0]
	}
	count := func(kind string) int { return rapid.IntRange(0, 4).Draw(t, kind) }
	for range count("secret") {
		c, s := common("secret")
		w.records = append(w.records, &config.Secret{Common: c, Resolver: s("vault"), Path: s("kv/"), Version: s("v")})
	}
	for range count("resource") {
		c, s := common("resource")
		w.records = append(w.records, &config.Resource{Common: c, Type: s("db"), Address: s("db."), Connector: s("pg"),
			Parameters: []config.Parameter{{Name: s("mode"), Value: s("full")}}, Secrets: refer(c, config.KindSecret, 2)})
	}
	for range count("qos") {
		c, _ := common("qos")
		w.records = append(w.records, &config.QoS{Common: c, Priority: rapid.IntRange(0, 9).Draw(t, "priority")})
	}
	for range count("peer") {
		c, s := common("peer")
		w.records = append(w.records, &config.Peer{Common: c, Member: rapid.SampledFrom(paths).Draw(t, "member"), Addresses: []string{s("host-") + ":1"},
			Class: rapid.SampledFrom([]string{config.PeerActive, config.PeerWarm, config.PeerBootstrap}).Draw(t, "class")})
	}
	for range count("service") {
		c, s := common("service")
		r := &config.Service{Common: c, Type: s("web"), Addresses: []string{s("host-") + ":1"}, Members: drawSome(t, paths, 2, "members"), QoS: first(refer(c, config.KindQoS, 1)),
			Resources: refer(c, config.KindResource, 2), Secrets: refer(c, config.KindSecret, 2), Parameters: []config.Parameter{{Name: s("mode"), Value: s("full")}}}
		if rapid.Bool().Draw(t, "expose") {
			r.Expose = &config.Endpoint{Address: s("host-") + ":2", Protocol: s("http")}
		}
		w.records = append(w.records, r)
	}
	for range count("route") {
		c, s := common("route")
		r := &config.Route{Common: c, Service: first(refer(c, config.KindService, 1)), Match: s("match"), To: refer(c, config.KindPeer, 2), Via: refer(c, config.KindPeer, 2),
			Entry: rapid.Bool().Draw(t, "entry")}
		if r.Deny = rapid.Bool().Draw(t, "deny"); r.Deny {
			r.To, r.Via = nil, nil
		}
		w.records = append(w.records, r)
	}
	for range count("storage") {
		c, s := common("storage")
		r := &config.Storage{Common: c, URL: "https://" + s("s.") + "/x", Families: []snapshot.Scope{snapshot.ScopeRoutePolicy}}
		if replicas := refer(c, config.KindPeer, 2); len(replicas) > 0 && rapid.Bool().Draw(t, "shard") {
			r.Shard = &config.Shard{Replicas: replicas, Factor: 1}
		}
		w.records = append(w.records, r)
	}
	w.ceiling = snapshot.DegradedPolicy{Allow: []string{"continue_services", "preserve_routes", "reconnect_peers"}, Max: time.Hour, RouteTTL: time.Minute}
	hour := func(label string) *time.Duration {
		return rapid.SampledFrom([]*time.Duration{nil, new(time.Duration), ptr(30 * time.Second), ptr(2 * time.Hour)}).Draw(t, label)
	}
	for range count("degraded") {
		c, _ := common("degraded")
		w.records = append(w.records, &config.Degraded{Common: c, Max: hour("max"), RouteTTL: hour("route"), SessionTTL: hour("session"),
			Allow: rapid.SampledFrom([][]string{nil, {}, {"continue_services"}, {"preserve_routes", "validate_peers"}}).Draw(t, "allow")})
	}
	for _, role := range drawSome(t, allRoles, 5, "role records") {
		s := w.taint(owner{roles: []string{role}})
		w.records = append(w.records, &config.Role{Common: config.Common{Name: role}, Sessions: &config.Sessions{Max: 5}, MaxSessions: 7,
			Issuers: []config.Issuer{{Name: s, URL: "https://" + s + "/", Audiences: []string{s}, Keys: [][]byte{publicKey}}}})
	}
	return w
}

func ptr[T any](v T) *T { return &v }

var publicKey = func() []byte {
	der, err := x509.MarshalPKIXPublicKey(ed25519.NewKeyFromSeed(make([]byte, 32)).Public())
	if err != nil {
		panic(err)
	}
	return der
}()

// holders is the table of docs/explanation/snapshots.md#who-gets-a-record, once more and in other words: which roles may
// hold what a record becomes. "" is a node without roles.
var holders = map[string][]string{
	"active": {"", "core", "egress", "storage"}, "warm": {"", "core", "egress", "storage"}, "bootstrap": {"", "core", "egress", "ingress", "storage", "thin"},
	"services": {"", "core", "egress"}, "endpoints": {"ingress"}, "entry": {"ingress"},
	"routes": {"", "core", "egress"}, "entry routes": {"core", "ingress"},
	"classes": {"", "core", "egress"}, "sessions": {"core", "ingress", "thin"},
	"storage": {"", "core", "egress", "ingress", "storage", "thin"}, "shards": {"storage"},
}

func mayHold(section string, g Group) bool {
	roles := g.Roles
	if len(roles) == 0 {
		roles = []string{""}
	}
	return !slices.ContainsFunc(roles, func(r string) bool { return !slices.Contains(holders[section], r) })
}

// entitled returns the names of the records that a group must find in its contents,
// and with m also in the member's assignment, by section.
func (w *world) entitled(g Group, m *Member) map[string][]string {
	out := make(map[string][]string)
	add := func(section, name string) { out[section] = append(out[section], name) }
	if m != nil && w.banned[m.ID] {
		m = nil // it is assigned nothing
	}
	needed := make(map[string]bool)
	for _, r := range w.records {
		b := r.Base()
		if !(owner{organization: b.Organization, roles: b.Roles}).mayBeSeenBy(g) {
			continue
		}
		switch r := r.(type) {
		case *config.Peer:
			peer, ok := w.members[r.Member]
			ok = ok && !w.banned[peer.ID] && peer.State != "" && !peer.Outsider && (r.Organization == "" || slices.Contains(peer.Organizations, r.Organization))
			if ok && (owner{serves: peer.Organizations}).mayBeSeenBy(g) && mayHold(r.Class, g) {
				add(r.Class, r.Name)
			}
		case *config.Route:
			if section := map[bool]string{false: "routes", true: "entry routes"}[r.Entry]; mayHold(section, g) {
				add(section, r.Name)
			}
		case *config.QoS:
			if mayHold("classes", g) {
				add("classes", r.Name)
			}
		case *config.Storage:
			if mayHold("storage", g) {
				add("storage", r.Name)
			}
			if r.Shard != nil && mayHold("shards", g) {
				add("shards", r.Name)
			}
		case *config.Role:
			if slices.Contains(g.Roles, r.Name) && mayHold("sessions", g) {
				add("sessions", r.Name)
			}
			if slices.Contains(g.Roles, r.Name) && m != nil && mayHold("entry", g) {
				add("entry", r.Issuers[0].Name)
			}
		case *config.Service:
			if m == nil {
				continue
			}
			if mayHold("services", g) && (len(r.Members) == 0 || slices.Contains(r.Members, m.path())) {
				add("services", r.Name)
				for _, n := range slices.Concat(r.Resources, r.Secrets) {
					needed[n] = true
				}
			}
			if r.Expose != nil && mayHold("endpoints", g) {
				add("endpoints", r.Name)
			}
		}
	}
	for _, r := range w.records {
		if r, ok := r.(*config.Resource); ok && needed[r.Name] {
			add("resources", r.Name)
			for _, n := range r.Secrets {
				needed[n] = true
			}
		}
	}
	for _, r := range w.records {
		if r, ok := r.(*config.Secret); ok && needed[r.Name] {
			add("secrets", r.Name)
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out
}

// found returns the names in contents, by section, as their JSON has them.
func found(t tester, contents map[snapshot.Scope][]byte) map[string][]string {
	t.Helper()
	out := make(map[string][]string)
	for scope, raw := range contents {
		var sections map[string]json.RawMessage
		if err := json.Unmarshal(raw, &sections); err != nil {
			t.Fatal(err)
		}
		for section, raw := range sections {
			if scope == snapshot.ScopeDegradedModePolicy {
				continue
			}
			var records map[string]json.RawMessage
			if err := json.Unmarshal(raw, &records); err != nil {
				t.Fatal(err)
			}
			switch {
			case scope == snapshot.ScopeRoutePolicy && section == "entry":
				section = "entry routes"
			case scope == snapshot.ScopeStorageDirectory && section == "endpoints":
				section = "storage"
			case section == "entry":
				raw = records["issuers"]
				clear(records)
				if err := json.Unmarshal(raw, &records); err != nil {
					t.Fatal(err)
				}
			}
			if names := slices.Sorted(maps.Keys(records)); len(names) > 0 {
				out[section] = names
			}
		}
	}
	return out
}

// I12: no content holds a string of a record or a member that its subject may not
// see, and each holds all that its subject is entitled to.
func TestContentsAreForTheirSubject(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.compiler()
		check := func(g Group, m *Member, raw map[snapshot.Scope][]byte) {
			for scope, content := range raw {
				for _, token := range tokens.FindAllString(string(content), -1) {
					if o, ok := w.owners[token]; !ok || !o.mayBeSeenBy(g) {
						t.Fatalf("the %s of %+v holds %s of %+v: %s", scope, g, token, o, content)
					}
				}
			}
			want, got := w.entitled(g, m), found(t, raw)
			if !maps.EqualFunc(want, got, slices.Equal[[]string]) {
				t.Fatalf("%+v gets %v, and is entitled to %v", g, got, want)
			}
		}
		for _, g := range w.groups() {
			contents, _ := c.ForGroup(g)
			if got := slices.Sorted(maps.Keys(contents)); !slices.Equal(got, g.Scopes()) {
				t.Fatalf("%+v gets %v, want %v", g, got, g.Scopes())
			}
			raw := make(map[snapshot.Scope][]byte)
			for scope, content := range contents {
				raw[scope] = bytesOf(t, g, nil, content)
			}
			check(g, nil, raw)
			w.checkDegraded(t, g, contents)
		}
		for _, m := range w.members {
			contents, _ := c.ForGroup(m.Group)
			raw := make(map[snapshot.Scope][]byte)
			for scope, content := range contents {
				raw[scope] = bytesOf(t, m.Group, nil, content)
			}
			if a, _ := c.ForMember(m); a != nil {
				raw[snapshot.ScopeServiceAssignment] = bytesOf(t, m.Group, &m, a)
			}
			check(m.Group, &m, raw)
		}
	})
}

// checkDegraded: whatever records say, the policy of a group is within the ceiling
// and within each record that is for it, and is not narrower than the least of them.
func (w *world) checkDegraded(t *rapid.T, g Group, contents map[snapshot.Scope]snapshot.Content) {
	p, ok := contents[snapshot.ScopeDegradedModePolicy].(*snapshot.DegradedModePolicy)
	if thin := slices.Contains(g.Roles, internalsnapshot.RoleThin); ok == thin {
		t.Fatalf("%+v has a policy: %v", g, ok)
	}
	if !ok {
		return
	}
	maxs, routes, sessions := []time.Duration{w.ceiling.Max}, []time.Duration{w.ceiling.RouteTTL}, []time.Duration{w.ceiling.Max}
	allowed := func(string) bool { return true }
	for _, r := range w.records {
		r, ok := r.(*config.Degraded)
		if !ok || !(owner{organization: r.Organization, roles: r.Roles}).mayBeSeenBy(g) {
			continue
		}
		for list, d := range map[*[]time.Duration]*time.Duration{&maxs: r.Max, &routes: r.RouteTTL, &sessions: r.SessionTTL} {
			if d != nil {
				*list = append(*list, *d)
			}
		}
		if before := allowed; r.Allow != nil {
			allowed = func(a string) bool { return before(a) && slices.Contains(r.Allow, a) }
		}
	}
	var allow []string
	for _, a := range w.ceiling.Allow {
		if allowed(a) {
			allow = append(allow, a)
		}
	}
	if p.Max != slices.Min(maxs) || p.RouteTTL != slices.Min(routes) || p.SessionTTL != min(p.Max, slices.Min(sessions)) || !slices.Equal(p.Allow, allow) {
		t.Fatalf("%+v: %+v, want %v, %v, %v, %q", g, p, maxs, routes, sessions, allow)
	}
}

// Equal inputs give equal bytes, whatever the order in which they come, and a step
// of the config concerns nobody beyond those that it is said to.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		before := w.compiler()
		after := w.compiler()
		if !rapid.Bool().Draw(t, "equal") {
			// Another world with the same members and names, in part.
			mutate(t, w)
			after = w.compiler()
		}
		ch := after.ChangesSince(before)
		for _, g := range w.groups() {
			a, ra := before.ForGroup(g)
			b, rb := after.ForGroup(g)
			same := slices.Equal(ra, rb)
			for scope := range a {
				same = same && bytes.Equal(bytesOf(t, g, nil, a[scope]), bytesOf(t, g, nil, b[scope]))
			}
			if !same && !ch.Group(g) {
				t.Fatalf("%+v is concerned, and not said to be", g)
			}
		}
		for path, m := range w.members {
			a, ra := before.ForMember(m)
			b, rb := after.ForMember(m)
			same := slices.Equal(ra, rb) && (a == nil) == (b == nil)
			if same && a != nil {
				same = bytes.Equal(bytesOf(t, m.Group, &m, a), bytesOf(t, m.Group, &m, b))
			}
			if !same && !ch.Member(path, m.Group) {
				t.Fatalf("member %s, %+v, is concerned, and not said to be", path, m.Group)
			}
		}
	})
}

// mutate changes one record that stays valid, or drops one that nothing refers to.
func mutate(t *rapid.T, w *world) {
	i := rapid.IntRange(0, len(w.records)-1).Draw(t, "record")
	switch r := w.records[i].(type) {
	case *config.Secret:
		n := *r
		n.Path += "x"
		w.records[i] = &n
	case *config.Resource:
		n := *r
		n.Address, n.Secrets = n.Address+"x", nil
		w.records[i] = &n
	case *config.QoS:
		n := *r
		n.Priority++
		w.records[i] = &n
	case *config.Peer:
		n := *r
		n.Class = map[string]string{config.PeerActive: config.PeerWarm, config.PeerWarm: config.PeerBootstrap, config.PeerBootstrap: config.PeerActive}[n.Class]
		w.records[i] = &n
	case *config.Service:
		n := *r
		if n.Members, n.Resources = nil, nil; rapid.Bool().Draw(t, "hide") {
			n.Expose = nil
		}
		w.records[i] = &n
	case *config.Route, *config.Storage, *config.Degraded, *config.Role:
		w.records = slices.Delete(w.records, i, i+1)
	}
}

// A member that comes, goes or changes concerns the groups that Sees names alone.
func TestSees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.compiler()
		path := rapid.SampledFrom(slices.Sorted(maps.Keys(w.members))).Draw(t, "member")
		groups := w.groups()
		before := make(map[snapshot.Subject][]byte)
		for _, g := range groups {
			contents, _ := c.ForGroup(g)
			before[g.Subject()] = bytesOf(t, g, nil, contents[snapshot.ScopePeerDirectory])
		}
		m := w.members[path]
		switch rapid.IntRange(0, 2).Draw(t, "step") {
		case 0:
			delete(w.members, path)
		case 1:
			w.banned[m.ID] = !w.banned[m.ID]
		case 2:
			m.State, m.Organizations = snapshot.MemberDraining, nil
			w.members[path] = m
		}
		for _, g := range groups {
			contents, _ := c.ForGroup(g)
			if !bytes.Equal(before[g.Subject()], bytesOf(t, g, nil, contents[snapshot.ScopePeerDirectory])) && !c.Sees(g, path) {
				t.Fatalf("%+v sees %s", g, path)
			}
		}
	})
}

func group(roles, organizations string) Group {
	fields := func(s string) []string {
		out := strings.Fields(s)
		slices.Sort(out)
		return out
	}
	return Group{fields(roles), fields(organizations)}
}

// small returns a world of two members, "data/a" of acme with role egress and
// "data/i" of acme with role ingress, and records.
func small(t tester, records ...config.Record) *world {
	w := &world{t: t, members: make(map[string]Member), banned: make(map[identity.ID]bool), records: records}
	w.records = append(w.records, &config.Organization{Common: config.Common{Name: "acme"}}, &config.Organization{Common: config.Common{Name: "globex"}})
	for name, g := range map[string]Group{"a": group("egress", "acme"), "i": group("ingress", "acme"), "none": group("", "acme")} {
		id, err := identity.New(cluster, identity.Data, name)
		if err != nil {
			t.Fatal(err)
		}
		w.members["data/"+name] = Member{ID: id, Group: g, State: snapshot.MemberActive}
	}
	return w
}

// A record that cannot be given is left out, and said so with a way out.
func TestRemoved(t *testing.T) {
	peer := func(c config.Common, member string) *config.Peer {
		return &config.Peer{Common: c, Member: member, Addresses: []string{"h:1"}, Class: config.PeerActive}
	}
	named := func(name, organization string, roles ...string) config.Common {
		return config.Common{Name: name, Organization: organization, Roles: roles}
	}
	service := func(c config.Common, members ...string) *config.Service {
		return &config.Service{Common: c, Type: "web", Members: members}
	}
	exposed := service(named("x", "", "egress"))
	exposed.Expose = &config.Endpoint{Address: "h:1", Protocol: "http"}
	for _, tc := range []struct {
		name   string
		record config.Record
		do     func(w *world)
		want   Reason
	}{
		{"peer that nobody is", peer(named("p", "acme"), "data/x"), nil, UnknownMember},
		{"peer that is banned", peer(named("p", "acme"), "data/a"), func(w *world) { w.banned[w.members["data/a"].ID] = true }, BannedMember},
		{"peer that is replaced", peer(named("p", "acme"), "data/a"), func(w *world) { m := w.members["data/a"]; m.State = ""; w.members["data/a"] = m }, AbsentMember},
		{"peer of another organization", peer(named("p", "globex"), "data/a"), nil, LacksOrganization},
		{"peer that is narrowed to nothing", peer(named("p", ""), "data/a"), func(w *world) {
			m := w.members["data/a"]
			m.Outsider, m.Organizations = true, nil
			w.members["data/a"] = m
		}, LacksOrganization},
		{"peer for a role that may not hold it", peer(named("p", "acme", "ingress"), "data/a"), nil, NotForRole},
		{"route for a role that may not hold it", &config.Route{Common: named("r", "acme", "ingress")}, nil, NotForRole},
		{"entry route for a role that may not hold it", &config.Route{Common: named("r", "acme", "egress"), Entry: true}, nil, NotForRole},
		{"sessions of a role that has none", &config.Role{Common: named("egress", ""), Sessions: &config.Sessions{Max: 1}}, nil, NotForRole},
		{"clients of a role that lets in none", &config.Role{Common: named("egress", ""), MaxSessions: 1}, nil, NotForRole},
		{"service on nobody", service(named("s", "acme"), "data/x"), nil, UnknownMember},
		{"service on who is banned", service(named("s", "acme"), "data/a"), func(w *world) { w.banned[w.members["data/a"].ID] = true }, BannedMember},
		{"service on another organization's member", service(named("s", "globex"), "data/a"), nil, LacksOrganization},
		{"service on a member without its role", service(named("s", "acme", "core"), "data/a"), nil, LacksRole},
		{"service on an ingress", service(named("s", "acme"), "data/i"), nil, NotForRole},
		{"service for ingresses", service(named("s", "acme", "ingress")), nil, NotForRole},
		{"service that no ingress forwards to", exposed, nil, LacksRole},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := small(t, tc.record)
			if tc.do != nil {
				tc.do(w)
			}
			c := w.compiler()
			removed := c.Unplaced()
			var raw []byte
			for _, g := range append(w.groups(), group("", "globex")) {
				contents, r := c.ForGroup(g)
				removed = append(removed, r...)
				for _, content := range contents {
					raw = append(raw, bytesOf(t, g, nil, content)...)
				}
			}
			for _, m := range w.members {
				a, r := c.ForMember(m)
				removed = append(removed, r...)
				if a != nil && tc.record != exposed {
					raw = append(raw, bytesOf(t, m.Group, &m, a)...)
				}
			}
			if len(removed) == 0 {
				t.Fatal("nothing is said")
			}
			for _, r := range removed {
				if r.Reason != tc.want || r.Record != config.KeyOf(tc.record) || r.Detail == "" || r.Do() == "look at the record" {
					t.Errorf("%+v, want %s of %s", r, tc.want, config.KeyOf(tc.record))
				}
			}
			if name := tc.record.Base().Name; name != "egress" && bytes.Contains(raw, []byte(`"`+name+`":`)) {
				t.Errorf("it is there: %s", raw)
			}
		})
	}
}

// A cluster-wide peer whose member serves organizations is for those that share one,
// and silently not for others: that is what all may see means.
func TestPeersStayAmongThoseThatShare(t *testing.T) {
	w := small(t, &config.Peer{Common: config.Common{Name: "p"}, Member: "data/a", Addresses: []string{"h:1"}, Class: config.PeerBootstrap})
	c := w.compiler()
	for _, tc := range []struct {
		group Group
		want  int
	}{{group("egress", "acme"), 1}, {group("ingress", "acme globex"), 1}, {group("egress", "globex"), 0}, {group("egress", ""), 0}} {
		contents, removed := c.ForGroup(tc.group)
		if d := contents[snapshot.ScopePeerDirectory].(*snapshot.PeerDirectory); len(d.Bootstrap) != tc.want || len(removed) != 0 {
			t.Errorf("%+v gets %+v (%v)", tc.group, d, removed)
		}
	}
}

// The shortest trial of a scope counts.
func TestTrials(t *testing.T) {
	trial := func(name string, organization string, scope snapshot.Scope, d time.Duration) *config.Degraded {
		return &config.Degraded{Common: config.Common{Name: name, Organization: organization}, Trials: []config.Trial{{Scope: scope, Duration: d}}}
	}
	w := small(t, trial("a", "", snapshot.ScopeRoutePolicy, time.Minute), trial("b", "acme", snapshot.ScopeRoutePolicy, time.Second),
		trial("c", "acme", snapshot.ScopePeerDirectory, time.Hour), trial("d", "globex", snapshot.ScopeRoutePolicy, time.Nanosecond+time.Second))
	contents, _ := w.compiler().ForGroup(group("egress", "acme"))
	got := contents[snapshot.ScopeDegradedModePolicy].(*snapshot.DegradedModePolicy).Trials
	if want := []snapshot.Trial{{Scope: snapshot.ScopePeerDirectory, Duration: time.Hour}, {Scope: snapshot.ScopeRoutePolicy, Duration: time.Second}}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// Content that is too large is cut to what fits, least important first, and never what
// denies.
func TestFit(t *testing.T) {
	var records []config.Record
	for i := range 40 {
		c := config.Common{Name: fmt.Sprintf("r%02d", i)}
		records = append(records, &config.Route{Common: c, Priority: i, Deny: i%4 == 0},
			&config.QoS{Common: c}, &config.Storage{Common: c, URL: "https://s/", Families: []snapshot.Scope{snapshot.ScopeRoutePolicy}},
			&config.Secret{Common: c, Resolver: "v", Path: "p"}, &config.Service{Common: c, Type: "web", Secrets: []string{c.Name}},
			&config.Peer{Common: c, Member: "data/a", Addresses: []string{"h:1"}, Class: []string{config.PeerActive, config.PeerBootstrap, config.PeerWarm}[i%3]})
	}
	w := small(t, records...)
	c := w.compiler()
	m := w.members["data/a"]
	contents, _ := c.ForGroup(m.Group)
	assignment, _ := c.ForMember(m)
	contents[snapshot.ScopeServiceAssignment] = assignment
	for scope, content := range contents {
		var as *Member
		if scope == snapshot.ScopeServiceAssignment {
			as = &m
		}
		if scope == snapshot.ScopeDegradedModePolicy {
			if _, _, ok := c.Fit(content, func(snapshot.Content) bool { return false }); ok {
				t.Error("a policy was cut")
			}
			continue
		}
		full := len(bytesOf(t, m.Group, as, content))
		for _, limit := range []int{full, full * 3 / 4, full / 2} {
			fits := func(content snapshot.Content) bool { return len(bytesOf(t, m.Group, as, content)) <= limit }
			cut, removed, ok := c.Fit(content, fits)
			if !ok || !fits(cut) || (limit == full) != (len(removed) == 0) {
				t.Fatalf("%s of %d to %d bytes: %v, %d removed", scope, full, limit, ok, len(removed))
			}
			for _, r := range removed {
				if r.Scope != scope || r.Reason != TooLarge {
					t.Fatalf("%+v", r)
				}
			}
			switch cut := cut.(type) {
			case *snapshot.RoutePolicy:
				deny, lowest := 0, 40
				for _, r := range cut.Routes {
					if r.Deny {
						deny++
					} else {
						lowest = min(lowest, r.Priority)
					}
				}
				if deny != 10 || limit < full && lowest == 1 || !slices.IsSortedFunc(cut.Routes, func(a, b snapshot.Route) int { return cmp.Compare(a.Name, b.Name) }) {
					t.Fatalf("%d of 10 denials, lowest priority %d", deny, lowest)
				}
			case *snapshot.PeerDirectory:
				if limit < full && (len(cut.Warm) > 0 && len(cut.Active) < 14 || len(cut.Bootstrap) < 13) {
					t.Fatalf("%d active, %d bootstrap, %d warm", len(cut.Active), len(cut.Bootstrap), len(cut.Warm))
				}
			case *snapshot.ServiceAssignment:
				if len(cut.Secrets) != len(cut.Services) {
					t.Fatalf("%d secrets of %d services", len(cut.Secrets), len(cut.Services))
				}
			}
		}
		if cut, _, ok := c.Fit(content, func(snapshot.Content) bool { return false }); ok {
			t.Errorf("%s: %+v fits nothing", scope, cut)
		}
	}
}

// A service brings what it needs, and nothing that no service needs.
func TestNeeds(t *testing.T) {
	named := func(name string) config.Common { return config.Common{Name: name} }
	w := small(t,
		&config.Secret{Common: named("of-resource"), Resolver: "v", Path: "p"}, &config.Secret{Common: named("of-service"), Resolver: "v", Path: "p"},
		&config.Secret{Common: named("of-nobody"), Resolver: "v", Path: "p"},
		&config.Resource{Common: named("used"), Type: "db", Address: "a", Secrets: []string{"of-resource"}},
		&config.Resource{Common: named("unused"), Type: "db", Address: "a", Secrets: []string{"of-nobody"}},
		&config.Service{Common: named("web"), Type: "web", Members: []string{"data/a"}, Resources: []string{"used"}, Secrets: []string{"of-service"}},
		&config.Service{Common: named("web-2"), Type: "web", Members: []string{"data/a"}, Resources: []string{"used"}})
	c := w.compiler()
	m := w.members["data/a"]
	a, removed := c.ForMember(m)
	if a == nil || len(removed) != 0 {
		t.Fatalf("%+v, %v", a, removed)
	}
	got := found(t, map[snapshot.Scope][]byte{snapshot.ScopeServiceAssignment: bytesOf(t, m.Group, &m, a)})
	want := map[string][]string{"services": {"web", "web-2"}, "resources": {"used"}, "secrets": {"of-resource", "of-service"}}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Fatalf("%v, want %v", got, want)
	}
	if a, _ := c.ForMember(w.members["data/none"]); a != nil {
		t.Fatalf("a member that nothing is placed on has %+v", a)
	}
}

// A change is looked at for those that it can concern, and for no others: the cost
// of one is not that of the fleet.
func TestWhoIsConcerned(t *testing.T) {
	named := func(name, organization string, roles ...string) config.Common {
		return config.Common{Name: name, Organization: organization, Roles: roles}
	}
	before := []config.Record{
		&config.Secret{Common: named("s", ""), Resolver: "v", Path: "p"},
		&config.Resource{Common: named("r", "acme"), Type: "db", Address: "a", Secrets: []string{"s"}},
		&config.Service{Common: named("placed", "acme"), Type: "web", Members: []string{"data/a"}, Resources: []string{"r"}},
		&config.Service{Common: named("spread", "acme", "core"), Type: "web"},
		&config.Service{Common: named("shown", "acme", "egress", "ingress"), Type: "web", Members: []string{"data/none"}, Expose: &config.Endpoint{Address: "h:1", Protocol: "http"}},
		&config.Peer{Common: named("p", "acme", "core"), Member: "data/a", Addresses: []string{"h:1"}, Class: config.PeerActive},
		&config.Role{Common: named("ingress", ""), MaxSessions: 5},
	}
	w := small(t, before...)
	w.members["data/core"] = Member{ID: w.members["data/a"].ID, Group: group("core", "acme"), State: snapshot.MemberActive}
	w.members["data/other"] = Member{ID: w.members["data/a"].ID, Group: group("core ingress", "globex"), State: snapshot.MemberActive}
	old := w.compiler()
	rest := w.records
	for _, tc := range []struct {
		name    string
		put     config.Record
		groups  []string // members whose group is concerned
		members []string
	}{
		{"nothing", nil, nil, nil},
		{"a secret of a resource of a placed service", &config.Secret{Common: named("s", ""), Resolver: "v", Path: "q"}, nil, []string{"data/a"}},
		{"a resource of a placed service", &config.Resource{Common: named("r", "acme"), Type: "db", Address: "b"}, nil, []string{"data/a"}},
		{"a placed service moves", &config.Service{Common: named("placed", "acme"), Type: "web", Members: []string{"data/none"}}, nil, []string{"data/a", "data/none"}},
		{"a service for a role", &config.Service{Common: named("spread", "acme", "core"), Type: "db"}, nil, []string{"data/core"}},
		{"a service that ingresses forward to", &config.Service{Common: named("shown", "acme", "egress", "ingress"), Type: "web", Members: []string{"data/none"}}, nil, []string{"data/i", "data/none"}},
		{"a peer", &config.Peer{Common: named("p", "acme", "core"), Member: "data/a", Addresses: []string{"h:2"}, Class: config.PeerActive}, []string{"data/core"}, nil},
		{"a peer for another role", &config.Peer{Common: named("p", "acme", "egress"), Member: "data/a", Addresses: []string{"h:1"}, Class: config.PeerActive}, []string{"data/a", "data/core"}, nil},
		{"a role", &config.Role{Common: named("ingress", ""), MaxSessions: 6}, []string{"data/i", "data/other"}, []string{"data/i", "data/other"}},
		{"an organization", &config.Organization{Common: named("acme", ""), Description: "x"}, nil, nil},
	} {
		w.records = slices.Clone(rest)
		if tc.put != nil {
			i := slices.IndexFunc(rest, func(r config.Record) bool { return config.KeyOf(r) == config.KeyOf(tc.put) })
			w.records[i] = tc.put
		}
		ch := w.compiler().ChangesSince(old)
		var groups, members []string
		for _, path := range slices.Sorted(maps.Keys(w.members)) {
			if m := w.members[path]; ch.Group(m.Group) {
				groups = append(groups, path)
			}
			if ch.Member(path, w.members[path].Group) {
				members = append(members, path)
			}
		}
		if !slices.Equal(groups, tc.groups) || !slices.Equal(members, tc.members) {
			t.Errorf("%s: groups of %v and members %v, want %v and %v", tc.name, groups, members, tc.groups, tc.members)
		}
	}
}

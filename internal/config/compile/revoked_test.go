package compile

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

func idOf(t *testing.T, name string) identity.ID {
	t.Helper()
	id, err := identity.New(cluster, identity.Data, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A record that is revoked by name is nobody's any more, nor are those that only it
// needed, and that is said. A record revoked for one member stays with the others.
func TestRevoked(t *testing.T) {
	named := func(name string) config.Common { return config.Common{Name: name, Organization: "acme"} }
	peer := func(name, member string) *config.Peer {
		return &config.Peer{Common: named(name), Member: member, Addresses: []string{"h:1"}, Class: config.PeerActive}
	}
	secret := &config.Secret{Common: named("key"), Resolver: "vault", Path: "kv/key"}
	service := func(roles ...string) *config.Service {
		s := &config.Service{Common: named("web"), Type: "web", Secrets: []string{"key"}}
		s.Roles = roles
		return s
	}
	placed := service()
	placed.Members = []string{"data/a"}
	exposed := service()
	exposed.Expose = &config.Endpoint{Address: "h:1", Protocol: "http"}
	shard := &config.Storage{Common: named("s"), URL: "https://s", Families: []snapshot.Scope{snapshot.ScopeRoutePolicy}, Shard: &config.Shard{Replicas: []string{"p", "q"}, Factor: 1}}
	permissions := &config.Degraded{Common: named("d"), Allow: []string{"continue_services", "preserve_routes"}}
	of := func(k config.Kind, name string) config.Key { return config.Key{Kind: k, Name: name} }
	for _, tc := range []struct {
		name    string
		records []config.Record
		revoked snapshot.Revoked
		gone    []string     // what no content has any more
		less    []string     // what fewer have than before
		removed []config.Key // what is said to be left out
	}{
		{"peer by its record", []config.Record{peer("p", "data/a"), peer("q", "data/i")}, snapshot.Revoked{Kind: internalsnapshot.RevokedPeer, Name: "p"},
			[]string{`"p":`}, nil, []config.Key{of(config.KindPeer, "p")}},
		{"peer by its member", []config.Record{peer("p", "data/a"), peer("q", "data/i")}, snapshot.Revoked{Kind: internalsnapshot.RevokedPeer, Name: "data/a"},
			[]string{`"p":`}, nil, []config.Key{of(config.KindPeer, "p")}},
		{"route to a peer", []config.Record{peer("p", "data/a"), peer("q", "data/i"), &config.Route{Common: named("r"), To: []string{"p"}}, &config.Route{Common: named("both"), To: []string{"p", "q"}}},
			snapshot.Revoked{Kind: internalsnapshot.RevokedPeer, Name: "p"}, []string{`"p"`, `"r":`}, nil, []config.Key{of(config.KindPeer, "p"), of(config.KindRoute, "both"), of(config.KindRoute, "r")}},
		{"route to a service", []config.Record{secret, service(), &config.Route{Common: named("r"), Service: "web"}},
			snapshot.Revoked{Kind: internalsnapshot.RevokedService, Name: "web"}, []string{`"web"`, `"r":`, `"key"`}, nil, []config.Key{of(config.KindRoute, "r"), of(config.KindService, "web")}},
		{"service that is exposed", []config.Record{secret, exposed}, snapshot.Revoked{Kind: internalsnapshot.RevokedService, Name: "web"},
			[]string{`"web"`, `"key"`}, nil, []config.Key{of(config.KindService, "web")}},
		{"service of a member", []config.Record{secret, service()}, snapshot.Revoked{Kind: internalsnapshot.RevokedService, Name: "data/a/web"},
			nil, []string{`"web":`, `"key":`}, []config.Key{of(config.KindService, "web")}},
		{"storage", []config.Record{peer("p", "data/a"), peer("q", "data/i"), shard}, snapshot.Revoked{Kind: internalsnapshot.RevokedStorage, Name: "https://s"},
			[]string{`https://s`}, nil, []config.Key{of(config.KindStorage, "s")}},
		{"replica", []config.Record{peer("p", "data/a"), peer("q", "data/i"), shard}, snapshot.Revoked{Kind: internalsnapshot.RevokedPeer, Name: "p"},
			[]string{`"p"`}, nil, []config.Key{of(config.KindPeer, "p"), of(config.KindStorage, "s")}},
		{"permission", []config.Record{permissions}, snapshot.Revoked{Kind: internalsnapshot.RevokedPermission, Name: "preserve_routes"},
			[]string{`preserve_routes`}, nil, []config.Key{of(config.KindDegraded, "d")}},
		{"only role of a member", []config.Record{secret, service()}, snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/a/egress"},
			nil, []string{`"web":`, `"key":`}, []config.Key{of(config.KindService, "web")}},
		{"only role of the member of a service", []config.Record{secret, placed}, snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/a/egress"},
			[]string{`"web":`, `"key":`}, nil, []config.Key{of(config.KindService, "web")}},
		{"one role of two", []config.Record{secret, service("egress")}, snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/two/egress"},
			nil, []string{`"web":`, `"key":`}, []config.Key{of(config.KindService, "web")}},
		{"the other role of two", []config.Record{secret, service("egress")}, snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/two/core"},
			nil, []string{`"web":`, `"key":`}, []config.Key{of(config.KindService, "web")}},
		{"role of an ingress", []config.Record{&config.Role{Common: config.Common{Name: "ingress"}, MaxSessions: 7}}, snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/i/ingress"},
			[]string{`"max_sessions"`}, nil, []config.Key{of(config.KindRole, "ingress")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := small(t, tc.records...)
			w.ceiling = snapshot.DegradedPolicy{Allow: []string{"continue_services", "preserve_routes"}, Max: 1e9}
			two := w.members["data/a"]
			two.ID, two.Group = idOf(t, "two"), group("core egress", "acme")
			w.members["data/two"] = two
			store := w.members["data/a"]
			store.ID, store.Group = idOf(t, "store"), group("storage", "acme")
			w.members["data/store"] = store
			all := func(c *Compiler) (raw []byte, removed []config.Key) {
				note := func(list []Removed) {
					for _, r := range list {
						if r.Reason == Revoked && r.Detail != "" {
							removed = append(removed, r.Record)
						}
					}
				}
				for _, g := range w.groups() {
					contents, r := c.ForGroup(g)
					note(r)
					for _, scope := range g.Scopes() {
						raw = append(raw, bytesOf(t, g, nil, contents[scope])...)
					}
				}
				for _, path := range slices.Sorted(maps.Keys(w.members)) {
					m := w.members[path]
					content, r := c.ForMember(m)
					note(r)
					if content != nil {
						raw = append(raw, bytesOf(t, m.Group, &m, content)...)
					}
				}
				slices.SortFunc(removed, config.Key.Compare)
				return raw, slices.Compact(removed)
			}
			before, none := all(w.compiler())
			if len(none) != 0 {
				t.Fatalf("nothing is revoked, and left out %v", none)
			}
			w.revoked = []snapshot.Revoked{tc.revoked}
			after, removed := all(w.compiler())
			count := func(raw []byte, s string) int { return bytes.Count(raw, []byte(s)) }
			for _, s := range tc.gone {
				if count(before, s) == 0 || count(after, s) != 0 {
					t.Errorf("%s is there %d times, and was %d times", s, count(after, s), count(before, s))
				}
			}
			for _, s := range tc.less {
				if n := count(after, s); n == 0 || n != count(before, s)-1 {
					t.Errorf("%s is there %d times, and was %d times", s, n, count(before, s))
				}
			}
			if len(tc.gone)+len(tc.less) == 0 && !bytes.Equal(before, after) {
				t.Errorf("%s, and was %s", after, before)
			}
			if !slices.Equal(removed, tc.removed) {
				t.Errorf("left out %v, want %v", removed, tc.removed)
			}
		})
	}
}

// A role that is revoked never gives a member more: what its other roles alone might
// hold, or who has none.
func TestRevokedRoleGivesNothing(t *testing.T) {
	w := small(t, &config.Service{Common: config.Common{Name: "web"}, Type: "web"})
	for _, roles := range []string{"egress", "egress thin", "core ingress", "thin", "ingress", ""} {
		m := w.members["data/a"]
		m.Group = group(roles, "acme")
		was, _ := w.compiler().ForMember(m)
		for _, role := range m.Roles {
			w.revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedRole, Name: "data/a/" + role}}
			is, _ := w.compiler().ForMember(m)
			if is != nil && (was == nil || len(is.Services) > len(was.Services)) {
				t.Errorf("%s: without %s it is assigned %+v", fmt.Sprint(m.Roles), role, is)
			}
		}
		w.revoked = nil
	}
}

// A revocation takes from a member what it names, and nothing else: whoever lets in clients
// goes on doing so while something else is revoked, and lets in none without its own role.
func TestRevokedEntryIsItsOwn(t *testing.T) {
	web := &config.Service{Common: config.Common{Name: "web", Organization: "acme"}, Type: "web"}
	ingress := &config.Role{Common: config.Common{Name: "ingress"}, MaxSessions: 7}
	for _, tc := range []struct {
		name    string
		revoked snapshot.Revoked
		keeps   bool
	}{
		{"a service", snapshot.Revoked{Kind: internalsnapshot.RevokedService, Name: "web"}, true},
		{"a peer that it does not know", snapshot.Revoked{Kind: internalsnapshot.RevokedPeer, Name: "p"}, true},
		{"the role of another member", snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/a/egress"}, true},
		{"a role that it does not have", snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/i/egress"}, true},
		{"its role", snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: "data/i/ingress"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := small(t, web, ingress)
			was, _ := w.compiler().ForMember(w.members["data/i"])
			if was == nil || was.Entry == nil || was.Entry.MaxSessions != 7 {
				t.Fatalf("with nothing revoked it is assigned %+v", was)
			}
			w.revoked = []snapshot.Revoked{tc.revoked}
			is, _ := w.compiler().ForMember(w.members["data/i"])
			if keeps := is != nil && is.Entry != nil && is.Entry.MaxSessions == 7; keeps != tc.keeps {
				t.Errorf("it lets in clients: %v, want %v", keeps, tc.keeps)
			}
		})
	}
}

package compile

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/snapshot"
)

// BenchmarkOneGroup changes one route in a cluster of 1,000 groups, each of an
// organization of its own with five records, and compiles whom that concerns; beside
// it, compiling everybody. Both end with the bytes that are signed.
func BenchmarkOneGroup(b *testing.B) {
	const organizations = 1000
	w := &world{t: b, members: make(map[string]Member), banned: make(map[identity.ID]bool)}
	for i := range organizations {
		o := fmt.Sprintf("o%04d", i)
		id, err := identity.New(cluster, identity.Data, o)
		if err != nil {
			b.Fatal(err)
		}
		w.members["data/"+o] = Member{ID: id, Group: group("core", o), State: snapshot.MemberActive}
		c := config.Common{Name: o, Organization: o}
		w.records = append(w.records, &config.Organization{Common: config.Common{Name: o}},
			&config.Peer{Common: c, Member: "data/" + o, Addresses: []string{"h:1"}, Class: config.PeerActive},
			&config.Service{Common: c, Type: "web"}, &config.Route{Common: c, Service: o, To: []string{o}},
			&config.QoS{Common: c, Priority: 1}, &config.Storage{Common: c, URL: "https://s/", Families: []snapshot.Scope{snapshot.ScopeRoutePolicy}})
	}
	groups := w.groups()
	set := w.set()
	old := w.compilerOf(set)
	compile := func(c *Compiler, concerned func(Group) bool) (n int) {
		for _, g := range groups {
			if !concerned(g) {
				continue
			}
			contents, _ := c.ForGroup(g)
			for _, content := range contents {
				bytesOf(b, g, nil, content)
			}
			n++
		}
		return n
	}
	for _, tc := range []struct {
		name string
		want int
		run  func(i int) int
	}{
		{"concerned", 1, func(i int) int {
			route := &config.Route{Common: config.Common{Name: "o0500", Organization: "o0500"}, Service: "o0500", To: []string{"o0500"}, Priority: i + 1}
			next, err := set.With([]config.Record{route}, nil)
			if err != nil {
				b.Fatal(err)
			}
			c := w.compilerOf(next)
			return compile(c, c.ChangesSince(old).Group)
		}},
		{"everybody", organizations, func(int) int { return compile(old, func(Group) bool { return true }) }},
	} {
		b.Run(tc.name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				if n := tc.run(i); n != tc.want {
					b.Fatalf("%d groups are compiled, want %d", n, tc.want)
				}
				i++
			}
		})
	}
}

// BenchmarkAssignments compiles the service_assignment of 1,000 members of one group,
// of which every tenth is named by a service.
func BenchmarkAssignments(b *testing.B) {
	w := &world{t: b, members: make(map[string]Member), banned: make(map[identity.ID]bool)}
	g := group("egress", "acme")
	w.records = append(w.records, &config.Organization{Common: config.Common{Name: "acme"}})
	for i := range 1000 {
		name := fmt.Sprintf("n%04d", i)
		id, err := identity.New(cluster, identity.Data, name)
		if err != nil {
			b.Fatal(err)
		}
		w.members["data/"+name] = Member{ID: id, Group: g, State: snapshot.MemberActive}
		if i%10 == 0 {
			w.records = append(w.records, &config.Service{Common: config.Common{Name: name, Organization: "acme"}, Type: "web", Members: []string{"data/" + name}})
		}
	}
	w.records = append(w.records, &config.Service{Common: config.Common{Name: "all", Organization: "acme"}, Type: "web"})
	c := w.compiler()
	var members []Member
	for _, m := range w.members {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b Member) int { return a.ID.Compare(b.ID) })
	for b.Loop() {
		for i := range members {
			a, _ := c.ForMember(members[i])
			bytesOf(b, g, &members[i], a)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/member")
}

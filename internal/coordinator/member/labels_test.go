package member_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// A member is found by what its machine said of itself and by the labels of its token,
// and none of that decides anything.
func TestMembersShowTheirMachines(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	joins := func(n *coordinatortest.Node, said *fealtyv1.Machine, req *fealtyv1.CreateTokenRequest) string {
		t.Helper()
		n.Alter = func(r *fealtyv1.JoinRequest) { r.Machine = said }
		if err := n.Join(identity.Data, proof.NewTokenProver(f.Token(req))); err != nil {
			t.Fatal(err)
		}
		return n.ID.Name()
	}
	a := f.Node()
	web := joins(a, &fealtyv1.Machine{Host: "web-7.example", Os: "linux/amd64", Addresses: []string{"10.0.0.7"}},
		&fealtyv1.CreateTokenRequest{Entry: "pool", Labels: []string{"rack=r2", "a=b"}})
	odd := joins(f.Node(), &fealtyv1.Machine{Host: "web-7\x1b[2J", Os: strings.Repeat("x", 4<<10),
		Addresses: slices.Repeat([]string{"x"}, 1000)},
		&fealtyv1.CreateTokenRequest{Entry: "pool", Labels: []string{"rack=r2"}})
	old := joins(f.Node(), nil, &fealtyv1.CreateTokenRequest{Entry: "pool"}) // of an earlier release

	members := f.Local().Member
	show := func(name string) *fealtyv1.Member {
		t.Helper()
		resp, err := members.GetMember(f.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetMember()
	}
	m := show(web)
	if m.GetReportedHost() != "web-7.example" || m.GetReportedOs() != "linux/amd64" ||
		!slices.Equal(m.GetReportedAddresses(), []string{"10.0.0.7"}) ||
		m.GetSeenAddress() == "" || !slices.Equal(m.GetLabels(), []string{"a=b", "rack=r2"}) {
		t.Errorf("the machine is not shown: %v", m)
	}
	if m.GetName() == "web-7.example" || m.GetName() == "web-7" {
		t.Errorf("a candidate chose its name: %s", m.GetName())
	}
	if m := show(odd); m.GetReportedHost() != "" || m.GetReportedOs() != "" || len(m.GetReportedAddresses()) > 0 {
		t.Errorf("what is not of the form is kept: %v", m)
	}

	for _, c := range []struct {
		host   string
		labels []string
		want   []string
	}{
		{"WEB-7.example", nil, []string{web}},
		{"", []string{"rack=r2"}, []string{web, odd}},
		{"", []string{"rack=r2", "a=b"}, []string{web}},
		{"web-7.example", []string{"rack=r3"}, nil},
		{"", nil, []string{web, odd, old}},
	} {
		resp, err := members.ListMembers(f.Context(),
			&fealtyv1.ListMembersRequest{Kind: "data", Host: c.host, Labels: c.labels})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range resp.GetMembers() {
			got = append(got, m.GetName())
		}
		slices.Sort(c.want)
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("host %q, labels %v: %v, want %v", c.host, c.labels, got, c.want)
		}
	}

	// A renewal and a rejoin by key keep the labels; a rejoin says anew what the machine is.
	if err := a.Renew(true); err != nil {
		t.Fatal(err)
	}
	if m := show(web); m.GetReportedHost() != "web-7.example" || len(m.GetLabels()) != 2 {
		t.Errorf("after a renewal: %v", m)
	}
	for _, said := range []*fealtyv1.Machine{{Host: "web-8"}, nil} {
		a.Alter = func(r *fealtyv1.JoinRequest) { r.Machine = said }
		if err := a.Join(identity.Data, proof.NewSVIDProver(a.ID.Kind(), a.ID.Name(), a.Key)); err != nil {
			t.Fatal(err)
		}
		if m := show(web); m.GetReportedHost() != "web-8" || len(m.GetLabels()) != 2 {
			t.Errorf("after a rejoin that says %v: %v", said, m)
		}
	}
	tokens := f.Local().Token
	for _, bad := range [][]string{{"rack"}, {"=x"}, {"a=b", "a=c"}, {"a=\x1b"}, {strings.Repeat("a", 64) + "=b"},
		slices.Repeat([]string{"a=b"}, manifest.MaxLabels+1)} {
		if _, err := tokens.CreateToken(f.Context(),
			&fealtyv1.CreateTokenRequest{Entry: "pool",
				Labels: bad}); !errors.Is(errcode.Of(err), errcode.TokenRequest) {
			t.Errorf("a token with labels %q: %v", bad, err)
		}
		if _, err := members.ListMembers(f.Context(),
			&fealtyv1.ListMembersRequest{Labels: bad}); !errors.Is(errcode.Of(err), errcode.RequestField) {
			t.Errorf("a question for labels %q: %v", bad, err)
		}
	}
}

// Members have the labels of their entry too, from their next renewal on after a change;
// of two with one key the token's counts.
func TestMembersHaveLabelsOfTheirEntry(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	entry := func(labels string) []byte {
		return f.Manifest("  - {name: racks, kind: data, match: [\"token:racks\"], labels: [" + labels + "]}\n")
	}
	coordinatortest.WantOnly(t, "set", f.Set(entry("rack=r1, dc=west")), "")
	a, b := f.Node(), f.Node()
	coordinatortest.WantOnly(t, "join", a.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "racks"}))), "")
	coordinatortest.WantOnly(t, "join", b.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "racks", Labels: []string{"rack=r9",
			"x=y"}}))), "")
	members := f.Local().Member
	labels := func(n *coordinatortest.Node) []string {
		t.Helper()
		resp, err := members.GetMember(f.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: n.ID.Name()})
		coordinatortest.WantOnly(t, "show", err, "")
		return resp.GetMember().GetLabels()
	}
	found := func(label string) (names []string) {
		t.Helper()
		resp, err := members.ListMembers(f.Context(), &fealtyv1.ListMembersRequest{Labels: []string{label}})
		coordinatortest.WantOnly(t, "list", err, "")
		for _, m := range resp.GetMembers() {
			names = append(names, m.GetName())
		}
		return names
	}
	if got := labels(a); !slices.Equal(got, []string{"dc=west", "rack=r1"}) {
		t.Errorf("of the entry: %q", got)
	}
	if got := labels(b); !slices.Equal(got, []string{"dc=west", "rack=r9", "x=y"}) {
		t.Errorf("of entry and token: %q", got)
	}
	if got := found("rack=r1"); !slices.Equal(got, []string{a.ID.Name()}) {
		t.Errorf("rack=r1 finds %q", got)
	}
	if got := found("dc=west"); len(got) != 2 {
		t.Errorf("dc=west finds %q", got)
	}
	coordinatortest.WantOnly(t, "set", f.Set(entry("rack=r2")), "")
	coordinatortest.WantOnly(t, "renew", a.Renew(true), "")
	if got := labels(a); !slices.Equal(got, []string{"rack=r2"}) {
		t.Errorf("after the change: %q", got)
	}
}

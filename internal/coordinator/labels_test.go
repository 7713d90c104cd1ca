// In the package, as the harness is.
package coordinator

import (
	"errors"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
)

// A member is found by what its machine said of itself and by the labels of its token,
// and none of that decides anything.
func TestMembersShowTheirMachines(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	joins := func(n *node, said *fealtyv1.Machine, req *fealtyv1.CreateTokenRequest) string {
		t.Helper()
		n.alter = func(r *fealtyv1.JoinRequest) { r.Machine = said }
		if err := n.join(identity.Data, proof.NewTokenProver(f.token(req))); err != nil {
			t.Fatal(err)
		}
		return n.id.Name()
	}
	a := f.node()
	web := joins(a, &fealtyv1.Machine{Host: "web-7.example", Os: "linux/amd64", Addresses: []string{"10.0.0.7"}},
		&fealtyv1.CreateTokenRequest{Entry: "pool", Labels: []string{"rack=r2", "a=b"}})
	odd := joins(f.node(), &fealtyv1.Machine{Host: "web-7\x1b[2J", Os: strings.Repeat("x", 4<<10), Addresses: slices.Repeat([]string{"x"}, 1000)},
		&fealtyv1.CreateTokenRequest{Entry: "pool", Labels: []string{"rack=r2"}})
	old := joins(f.node(), nil, &fealtyv1.CreateTokenRequest{Entry: "pool"}) // of an earlier release

	members := f.local().member
	show := func(name string) *fealtyv1.Member {
		t.Helper()
		resp, err := members.GetMember(f.ctx(), &fealtyv1.GetMemberRequest{Kind: "data", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetMember()
	}
	m := show(web)
	if m.GetReportedHost() != "web-7.example" || m.GetReportedOs() != "linux/amd64" || !slices.Equal(m.GetReportedAddresses(), []string{"10.0.0.7"}) ||
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
		resp, err := members.ListMembers(f.ctx(), &fealtyv1.ListMembersRequest{Kind: "data", Host: c.host, Labels: c.labels})
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
	if err := a.renew(true); err != nil {
		t.Fatal(err)
	}
	if m := show(web); m.GetReportedHost() != "web-7.example" || len(m.GetLabels()) != 2 {
		t.Errorf("after a renewal: %v", m)
	}
	for _, said := range []*fealtyv1.Machine{{Host: "web-8"}, nil} {
		a.alter = func(r *fealtyv1.JoinRequest) { r.Machine = said }
		if err := a.join(identity.Data, proof.NewSVIDProver(a.id.Kind(), a.id.Name(), a.key)); err != nil {
			t.Fatal(err)
		}
		if m := show(web); m.GetReportedHost() != "web-8" || len(m.GetLabels()) != 2 {
			t.Errorf("after a rejoin that says %v: %v", said, m)
		}
	}
	tokens := f.local().token
	for _, bad := range [][]string{{"rack"}, {"=x"}, {"a=b", "a=c"}, {"a=\x1b"}, {strings.Repeat("a", 64) + "=b"}, slices.Repeat([]string{"a=b"}, maxLabels+1)} {
		if _, err := tokens.CreateToken(f.ctx(), &fealtyv1.CreateTokenRequest{Entry: "pool", Labels: bad}); !errors.Is(explain.Of(err), explain.TokenRequest) {
			t.Errorf("a token with labels %q: %v", bad, err)
		}
		if _, err := members.ListMembers(f.ctx(), &fealtyv1.ListMembersRequest{Labels: bad}); !errors.Is(explain.Of(err), explain.RequestField) {
			t.Errorf("a question for labels %q: %v", bad, err)
		}
	}
}

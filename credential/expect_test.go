package credential_test

import (
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// Two expectations are the same exactly if whoever is expected by one is expected by the other: clients
// that expect different peers share no connection. Nobody is expected by none.
func TestExpectations(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	one, two, shard := a.ID(t, identity.Data, "n1"), a.ID(t, identity.Data, "n2"), a.ID(t, identity.Shard, "n1")
	all := []struct {
		name    string
		expect  credential.Expect
		expects []identity.ID
	}{
		{"nobody", credential.Expect{}, nil},
		{"one", credential.ExactID(one), []identity.ID{one}},
		{"the other one", credential.ExactID(two), []identity.ID{two}},
		{"one of another kind", credential.ExactID(shard), []identity.ID{shard}},
		{"a kind", credential.AnyOfKind(identity.Data), []identity.ID{one, two}},
		{"another kind", credential.AnyOfKind(identity.Shard), []identity.ID{shard}},
	}
	for i, x := range all {
		for _, id := range []identity.ID{one, two, shard, {}} {
			want := false
			for _, e := range x.expects {
				want = want || e == id
			}
			if err := x.expect.Check(id); (err == nil) != want {
				t.Errorf("%s expects %v: %v, want %v", x.name, id, err, want)
			}
		}
		for j, y := range all {
			if got := x.expect.Equal(y.expect); got != (i == j) {
				t.Errorf("%s and %s are the same: %v", x.name, y.name, got)
			}
		}
	}
}

package coordinatortest

import (
	"fmt"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/proof"
)

// BanAt bans a member, as an admin does.
func BanAt(d *Desk, t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.Members().BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: string(kind), Name: name, Reason: "test"})
	WantOnly(t, "ban", err, "")
}

// UnbanAt ends the ban of a member.
func UnbanAt(d *Desk, t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.Members().UnbanMember(t.Context(), &fealtyv1.UnbanMemberRequest{Kind: string(kind), Name: name})
	WantOnly(t, "unban", err, "")
}

// RemoveAt removes a member.
func RemoveAt(d *Desk, t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: string(kind), Name: name})
	WantOnly(t, "remove", err, "")
}

// DrainAt drains a data member.
func DrainAt(d *Desk, t *testing.T, name string) *fealtyv1.DrainMemberResponse {
	t.Helper()
	resp, err := d.Members().DrainMember(t.Context(),
		&fealtyv1.DrainMemberRequest{Kind: "data", Name: name, Reason: "old rack"})
	WantOnly(t, "drain", err, "")
	return resp
}

// ReplaceAt bans the key of a member, and lets the next proof take its name.
func ReplaceAt(d *Desk, t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.Members().ReplaceMember(t.Context(),
		&fealtyv1.ReplaceMemberRequest{Kind: string(kind), Name: name, Reason: "test"})
	WantOnly(t, "replace", err, "")
}

// JoinByToken is a join of machine m with a new token.
func JoinByToken(d *Desk, m *Machine, req *fealtyv1.CreateTokenRequest) error {
	kind := identity.Data
	if req.Entry == "ops" {
		kind = identity.Admin
	}
	return m.Join(kind, proof.NewTokenProver(d.Token(req)))
}

// SplitPath takes the path of a member apart, which is kind/name.
func SplitPath(path string) (kind, name string) {
	for i := range path {
		if path[i] == '/' {
			return path[:i], path[i+1:]
		}
	}
	panic(fmt.Sprintf("%q is no path", path))
}

// EntriesOf are the entries of a desk with a pool, or of one that lost it.
func EntriesOf(pool bool) string {
	if pool {
		return PoolEntries
	}
	return `  - {name: small, kind: data, match: ["token:small"], max_members: 2}
  - {name: ops, kind: admin, match: ["token:ops"]}
`
}

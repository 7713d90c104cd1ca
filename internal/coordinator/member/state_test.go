package member_test

import (
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// Whoever reads the state of a member and nothing else learns that it is banned, by each call that tells of members,
// until the ban is lifted. "banned" is a word of the API: scripts compare it.
func TestStateOfABannedMember(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("active")
	d.Joined("draining")
	coordinatortest.DrainAt(d, t, "draining")
	told := func(when string, want map[string]string) {
		t.Helper()
		list, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
		coordinatortest.WantOnly(t, "list", err, "")
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnly(t, "status", err, "")
		for name, state := range want {
			one, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: name})
			coordinatortest.WantOnly(t, "get", err, "")
			found := map[string][]*fealtyv1.Member{"GetMember": {one.GetMember()}, "ListMembers": list.GetMembers(),
				"GetStatus": st.GetMembers()}
			for call, members := range found {
				seen := 0
				for _, m := range members {
					if m.GetName() != name {
						continue
					}
					seen++
					if m.GetState() != state || m.GetBanned() != (state == "banned") {
						t.Errorf("%s: %s says that %s is %q, banned %t, want %q", when, call, name, m.GetState(), m.GetBanned(), state)
					}
				}
				if seen != 1 {
					t.Errorf("%s: %s tells %d times of %s", when, call, seen, name)
				}
			}
		}
	}
	told("at first", map[string]string{"active": "active", "draining": "draining"})
	for _, name := range []string{"active", "draining"} {
		coordinatortest.BanAt(d, t, identity.Data, name)
	}
	told("banned", map[string]string{"active": "banned", "draining": "banned"})
	for _, name := range []string{"active", "draining"} {
		coordinatortest.UnbanAt(d, t, identity.Data, name)
	}
	// The key stays banned: the name waits for another one.
	told("unbanned", map[string]string{"active": "replacing", "draining": "replacing"})
}

package current_test

import (
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// A bundle that came into force while a head was adopted stays, with its ban: the one that was made for the head
// is of before.
func TestAdoptionKeepsNewerBundle(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	bundle, m := d.C.Parts().Bundle, d.Joined("a")
	adoption, err := bundle.Follow(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a",
		Reason: "stolen"}); err != nil {
		t.Fatal(err)
	}
	key := coordinatortest.KeyOf(t, m.Key)
	if !bundle.Bans(m.ID, key) {
		t.Fatal("the ban is not in force")
	}
	if err := adoption.Present(); err != nil {
		t.Fatal(err)
	}
	if !bundle.Bans(m.ID, key) {
		t.Error("the adoption of a head lifted a ban")
	}
}

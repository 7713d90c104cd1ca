package current_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// A bundle that was compiled before a newer one came into force does not replace
// it, and a renewal of our own certificate takes back no ban.
func TestOlderBundleDoesNotReplaceANewerOne(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	old := d.C.Parts().Bundle.View()
	coordinatortest.BanAt(d, t, identity.Data, "a")
	if err := d.C.Parts().Bundle.PutInForce(old); err != nil {
		t.Fatal(err)
	}
	d.Advance(20 * time.Hour)
	if err := d.C.Parts().Bundle.RenewIdentity(t.Context(), d.State()); err != nil {
		t.Fatal(err)
	}
	material, err := d.C.Parts().Bundle.Source().Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*identity.Bundle{"the bundle served": d.C.Parts().Bundle.View().Bundle,
		"the bundle of our listener": material.Bundle()} {
		if !b.Banned(m.ID, coordinatortest.KeyOf(t, m.Key)) {
			t.Errorf("%s does not know of the ban", name)
		}
	}
	if got := material.NotAfter(); !got.After(d.Clock().Add(24 * time.Hour)) {
		t.Errorf("our own certificate ends at %v", got)
	}
}

// After the clock jumped ahead and back the coordinator is what it was: bans are
// listed, the bundle is in date, and its own certificate too.
func TestClockThatJumps(t *testing.T) {
	for _, bans := range []bool{true, false} {
		t.Run(fmt.Sprintf("bans %v", bans), func(t *testing.T) { testClockThatJumps(t, bans) })
	}
}

func testClockThatJumps(t *testing.T, bans bool) {
	d := coordinatortest.PoolDesk(t)
	var gone []*coordinatortest.Machine
	if bans {
		gone = []*coordinatortest.Machine{d.Joined("a"), d.Joined("b")}
		coordinatortest.BanAt(d, t, identity.Data, "a")
		coordinatortest.RemoveAt(d, t, identity.Data, "b")
	}
	for _, jump := range []time.Duration{400 * 24 * time.Hour, -400 * 24 * time.Hour} {
		d.Advance(jump)
		coordinatortest.WantOnly(t, "trust", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
		coordinatortest.WantOnly(t, "identity", d.C.Parts().Bundle.RenewIdentity(t.Context(), d.State()), "")
		v := d.C.Parts().Bundle.View()
		if age := d.Clock().Sub(v.IssuedAt); age.Abs() > bundle.RefreshPause {
			t.Fatalf("after a jump of %v the bundle was issued %v ago", jump, age)
		}
		material, err := d.C.Parts().Bundle.Source().Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if leaf := material.Chain()[0]; d.Clock().Before(leaf.NotBefore) || !d.Clock().Before(leaf.NotAfter) {
			t.Fatalf("after a jump of %v our certificate is valid from %v to %v, and it is %v", jump, leaf.NotBefore,
				leaf.NotAfter, d.Clock())
		}
		d.Joined(fmt.Sprintf("after-%d", int(jump.Hours())))
	}
	for _, m := range gone {
		if !d.C.Parts().Bundle.View().Bundle.Banned(m.ID, coordinatortest.KeyOf(t, m.Key)) {
			t.Errorf("%v is not banned any more", m.ID)
		}
	}
}

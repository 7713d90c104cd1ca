package owner_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A coordinator that is not admitted by the manifest of the head gathers no shares.
func TestDismissedCoordinatorGathersNoShares(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	f.Replicas = nil
	coordinatortest.WantOnly(t, "set", coordinatortest.SetPeople(f, ""), "")
	f.Replicas = rs
	r.Start()
	r.Await(authority.Recovery)
	_, err := r.C.Parts().Secrets.OwnerRecovery.Open(r.Context())
	coordinatortest.WantOnly(t, "open", err, errcode.ManifestLeavesOut)
	if got := coordinatortest.Keys(f, owner.Prefix); len(got) > 0 {
		t.Errorf("an attempt is open: %v", got)
	}
}

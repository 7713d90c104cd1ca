package coordinator_test

import (
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Two replicas on one store: what one does holds at the other.
func TestTwoReplicas(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	entries := coordinatortest.PoolEntries + fmt.Sprintf(
		"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
		other.Parts().Self.EnrolmentKey())
	coordinatortest.WantOnly(t, "set", d.Set(entries), "")
	other.Parts().Moves.Succession.Look(t.Context())
	if phase, reason := other.Phase(); phase != "ready" {
		t.Fatalf("the other replica is in %s: %s", phase, reason)
	}
	m := d.Joined("a")
	here := d.C
	at := func(c *coordinator.Coordinator, f func() error) error {
		d.C = c
		defer func() { d.C = here }()
		return f()
	}
	coordinatortest.WantOnly(t, "renew at the other", at(other, m.Renew), "")

	// A replica that lags does not decide under its old manifest: it catches up
	// first, and then refuses.
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)+entries[len(coordinatortest.PoolEntries):]), "")
	coordinatortest.WantOnly(t, "renew at the one that lags", at(other, m.Renew), errcode.RenewEntryGone)
	if other.Parts().Head.State().Head.Hash != d.State().Head.Hash {
		t.Fatal("the other replica did not catch up")
	}
	coordinatortest.WantOnly(t, "set", d.Set(entries), "")
	other.Parts().Moves.Succession.Look(t.Context())

	// A ban at one is a ban at the other, even before its loop looks.
	coordinatortest.BanAt(d, t, identity.Data, "a")
	next, _ := coordinatortest.NewKey()
	_, err = coordinatortest.RenewOver(t.Context(), other, identity.Peer{ID: m.ID, Key: coordinatortest.KeyOf(t,
		m.Key)},
		coordinatortest.MustCSR(t, next))
	coordinatortest.WantOnly(t, "renew at the other after a ban here", err, errcode.JoinBanned)
	if err := other.Parts().Bundle.Refresh(t.Context(), other.Parts().Head.State(), true); err != nil {
		t.Fatal(err)
	}
	if !other.Parts().Bundle.View().Bundle.Banned(m.ID, coordinatortest.KeyOf(t, m.Key)) {
		t.Fatal("the other replica does not believe the ban")
	}
	// Both compile one content for one version.
	a, b := d.C.Parts().Bundle.View(), other.Parts().Bundle.View()
	if a.Version != b.Version || a.ContentHash != b.ContentHash {
		t.Fatalf("versions %d and %d, content %v and %v", a.Version, b.Version, a.ContentHash, b.ContentHash)
	}
}

package owner_test

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
)

// A store that went back, and owners who do not know: their shares bring back no history
// that this coordinator has seen more of, and the head stays where it is.
func TestOwnersBringNoOlderHistoryBack(t *testing.T) {
	t.Parallel()
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	old := d.Store.Snapshot()
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	newest := d.Store.Snapshot()
	d.Store.Revert(old)
	d.Restart()
	coordinatortest.WantPhase(d, "recovery", "")
	head := coordinatortest.MustHead(t, d)
	if _, err := coordinatortest.BringShare(d, alice); err != nil {
		t.Fatal(err)
	}
	_, err := coordinatortest.BringShare(d, bob)
	coordinatortest.WantOnly(t, "bring", err, errcode.HistoryInvalid)
	if !errors.Is(err, history.ErrRollback) {
		t.Errorf("refused for another reason: %v", err)
	}
	coordinatortest.WantPhase(d, "recovery", "")
	if now := coordinatortest.MustHead(t, d); now.Hash != head.Hash {
		t.Errorf("the head moved to index %d", now.Index)
	}
	// The store shows the newest again: the same owners bring it back.
	d.Store.Revert(newest)
	d.LookAgain()
	coordinatortest.BringBoth(t, d, alice, bob)
	coordinatortest.WantOneKeyPerEpoch(t, d)
}

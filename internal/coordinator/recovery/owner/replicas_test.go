package owner_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
)

// All coordinators stop, and no keeper is there: owners whose shares reach different
// ones bring all of them back, one epoch further, once, and the audit log shows of each
// where it has the seed from.
func TestOwnersBringAllReplicasBack(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	p := coordinatortest.NewPeople(t, "carol", "alice", "bob")
	all := []*coordinatortest.Fleet{f, coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)}
	if err := f.Set(coordinatortest.WithSeed(f.Manifest(""), p.Seed(2, ""))); err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		r.Start()
		r.AwaitHead(f)
	}
	names := []string{"coordinator-1", "coordinator-2", "coordinator-3"}
	coordinatortest.WantOrigins(t, f, names...)
	files := map[string]keyring.ShareFile{}
	for _, n := range p.Names {
		files[n] = p.ShareFile(f.Store, n)
	}
	for round, pair := range [][2]string{{"alice", "bob"}, {"carol", "alice"}} {
		epoch := f.State().Head.AuthorityEpoch
		for _, r := range all {
			r.Kill()
		}
		for _, r := range all {
			r.Start()
			r.Await(authority.Recovery)
		}
		// Both at once, at two different ones.
		var wg sync.WaitGroup
		for i, owner := range pair {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := coordinatortest.BringTo(t, all[i+round].Addr, files[owner], recovery.Options{})
				if err != nil && !errors.Is(errcode.Of(err), errcode.RecoveryOver) &&
					!errors.Is(errcode.Of(err), errcode.RecoveryNotNeeded) {
					t.Errorf("round %d: the share of %s: %v", round, owner, err)
				}
			}()
		}
		wg.Wait()
		for _, r := range all {
			r.Await(authority.Ready)
		}
		for _, r := range all[1:] {
			r.AwaitHead(f)
		}
		s := f.State()
		slices.Sort(pair[:])
		if s.Head.AuthorityEpoch != epoch+1 || s.Head.Reason != fmt.Sprintf("recovered by %s, %s", pair[0], pair[1]) {
			t.Fatalf("round %d: epoch %d after %d: %s", round, s.Head.AuthorityEpoch, epoch, s.Head.Reason)
		}
		coordinatortest.WantOrigins(t, f, names...)
	}
}

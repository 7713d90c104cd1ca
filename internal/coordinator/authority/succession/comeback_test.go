package succession_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/store"
)

// The time that peers have is theirs: it begins when the history was read, however long the store took
// to show it, so that a slow store keeps nobody from being asked, and no mesh CA key is made that a peer would have given.
func TestSlowHistoryTakesNoTimeOfThePeers(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	f.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it gives nothing yet
	r.Start()
	r.Await(authority.Recovery)
	release, err := r.C.Parts().Moves.Turn.Take(r.Context()) // what looks for peers by itself waits
	coordinatortest.WantOnly(t, "turn", err, "")
	defer release()
	f.Faults.Disarm("peer.before-reread")
	var shown, begun atomic.Bool
	r.Link.Lie(func(e store.Entry) store.Entry {
		if strings.HasPrefix(e.Key, "history/blob/") {
			shown.Store(true)
		}
		return e
	})
	head := f.State().Head.Hash
	err = r.C.Parts().Moves.Succession.FromPeersBounded(r.Context(), head,
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			if begun.Store(true); !shown.Load() {
				t.Error("the time of the peers begins before the history was shown")
			}
			return context.WithCancel(ctx)
		})
	if err != nil {
		t.Fatal(err)
	}
	if s := r.State(); !begun.Load() || s.Phase != authority.Ready || s.Head.Hash != head {
		t.Errorf("the peers were asked: %v, and it is %v at %s", begun.Load(), s.Phase, s.Head.Hash)
	}
}

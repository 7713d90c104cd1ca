package succession_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/store"
)

// The time that peers have is theirs: a store that takes longer to show the history keeps nobody from being
// asked, and no mesh CA key is made that a peer would have given.
func TestSlowHistoryTakesNoTimeOfThePeers(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	f.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it gives nothing yet
	r.Start()
	r.Await(authority.Recovery)
	release, err := r.C.Rooms().Moves.Turn.Take(r.Context()) // what looks for peers by itself waits
	coordinatortest.WantOnly(t, "turn", err, "")
	defer release()
	f.Faults.Disarm("peer.before-reread")
	const within = time.Second
	shown := false
	r.Link.Lie(func(e store.Entry) store.Entry {
		if strings.HasPrefix(e.Key, "history/blob/") && !shown {
			shown = true
			time.Sleep(within + within/2) // the store is this slow
		}
		return e
	})
	head := f.C.Rooms().Head.State().Head.Hash
	if err := r.C.Rooms().Moves.Succession.FromPeers(r.Context(), head, within); err != nil {
		t.Fatal(err)
	}
	if s := r.C.Rooms().Head.State(); !shown || s.Phase != authority.Ready || s.Head.Hash != head {
		t.Errorf("shown is %v, and it is %v at %s", shown, s.Phase, s.Head.Hash)
	}
}

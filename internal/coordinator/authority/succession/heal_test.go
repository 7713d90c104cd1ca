package succession_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/history"
)

// The coordinator that moved the head dies before anybody has the new mesh CA key. The
// others hold the seed: one of them makes a new key, all meet at that head, and no human
// is asked.
func TestOthersHealWhenTheSetterDies(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, func(c *coordinator.Config) {
		c.Timing.SelfHealAfter = 2 * time.Second
		c.Log = slog.New(slog.DiscardHandler)
	})
	for _, r := range rs {
		r.Start()
		r.AwaitHead(f)
	}
	before := f.State().Head
	// Nobody can be prepared, and it dies right after the swap.
	for _, r := range rs {
		r.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash)
	}
	f.Faults.FailNext("set.after-swap", 1, coordinatortest.ErrCrash)
	release, err := f.C.Parts().Moves.Turn.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.C.Parts().Moves.Succession.Rekey(t.Context(), f.State(), "test", "test", nil)
	f.Link.Cut(coordinatortest.ErrKilled) // before its loop finds the head among its candidates
	release()
	if err == nil {
		t.Fatal("it did not die")
	}
	f.Stop()
	for _, r := range rs {
		r.Faults.Disarm("peer.before-reread")
		r.AwaitState("a head after the lost one",
			func(s *authority.State) bool { return s.Phase == authority.Ready && s.Head.Index >= before.Index+2 })
	}
	// On a machine that is slow the second one may heal after the first, so soon as it
	// is configured here.
	s := coordinatortest.AwaitSameHead(t, rs[0], rs[1])
	if s.Head.Kind != history.KindRekey || s.Head.AuthorityEpoch < before.AuthorityEpoch+2 ||
		s.MeshKey != s.Head.MeshCAKey {
		t.Errorf("they met at %+v", s.Head)
	}
	if n := len(coordinatortest.Audited(rs[0], "seed.created")); n != 1 {
		t.Errorf("%d seeds were made", n)
	}
	// The one that died comes back to them, from a peer.
	f.Link.Cut(nil)
	f.Start()
	f.AwaitHead(rs[0])
}

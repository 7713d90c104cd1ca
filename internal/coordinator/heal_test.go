package coordinator_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/history"
)

// The coordinator that moved the head dies before anybody has the new mesh CA key. The
// others hold the seed: one of them makes a new key, all meet at that head, and no human
// is asked.
func TestOthersHealWhenTheSetterDies(t *testing.T) {
	t.Parallel()
	f, rs := peerFleet(t, 2, func(c *coordinator.Config) {
		c.SelfHealAfter = 2 * time.Second
		c.Log = slog.New(slog.DiscardHandler)
	})
	for _, r := range rs {
		r.start()
		r.awaitHead(f)
	}
	before := f.c.Rooms().Head.State().Head
	// Nobody can be prepared, and it dies right after the swap.
	for _, r := range rs {
		r.faults.Fail("peer.before-reread", errTestCrash)
	}
	f.faults.FailNext("set.after-swap", 1, errTestCrash)
	release, err := f.c.Rooms().Authority.SettingTurn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.c.Rooms().Authority.Rekey(t.Context(), f.c.Rooms().Head.State(), "test", "test", nil)
	f.link.cut(errKilled) // before its loop finds the head among its candidates
	release()
	if err == nil {
		t.Fatal("it did not die")
	}
	f.stop()
	for _, r := range rs {
		r.faults.Disarm("peer.before-reread")
		r.awaitState("a head after the lost one",
			func(s *authority.State) bool { return s.Phase == authority.Ready && s.Head.Index >= before.Index+2 })
	}
	// On a machine that is slow the second one may heal after the first, so soon as it
	// is configured here.
	s := awaitSameHead(t, rs[0], rs[1])
	if s.Head.Kind != history.KindRekey || s.Head.AuthorityEpoch < before.AuthorityEpoch+2 ||
		s.MeshKey != s.Head.MeshCAKey {
		t.Errorf("they met at %+v", s.Head)
	}
	if n := len(rs[0].audited("seed.created")); n != 1 {
		t.Errorf("%d seeds were made", n)
	}
	// The one that died comes back to them, from a peer.
	f.link.cut(nil)
	f.start()
	f.awaitHead(rs[0])
}

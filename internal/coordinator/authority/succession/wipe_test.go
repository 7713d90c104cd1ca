package succession_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/history"
)

// A mesh CA key whose head can never come is nobody's: it does not stay in the memory.
func TestMeshKeyOfALostMoveIsWiped(t *testing.T) {
	rekeyed := func(d *coordinatortest.Desk) *transition.Move {
		s := d.State()
		mv := &transition.Move{From: s, Manifest: s.Manifest, Secrets: s.Secrets, Root: s.Root, Actor: "test"}
		next, _ := s.Chain.Next(history.KindRekey, s.Manifest)
		coordinatortest.WantOnly(t, "mesh", mv.NewMesh(next, d.Clock()), "")
		coordinatortest.WantOnly(t, "seal", mv.Seal(next), "")
		return mv
	}
	gone := func(mv *transition.Move) bool {
		return mv.Mesh.Key().D.Sign() == 0 //nolint:staticcheck // deprecated; what is looked at is whether the secret is there
	}
	t.Run("not swapped", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		mv := rekeyed(d)
		d.Faults.FailNext("set.before-swap", 1, coordinatortest.ErrCrash)
		if _, err := d.C.Parts().Moves.Succession.Swap(t.Context(), mv); err == nil || !gone(mv) {
			t.Errorf("%v, and the key is gone: %v", err, gone(mv))
		}
	})
	t.Run("swapped", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		lost, mv := rekeyed(d), rekeyed(d)
		if inUse, err := d.C.Parts().Moves.Succession.Swap(t.Context(), mv); err != nil || !inUse || gone(mv) {
			t.Errorf("%v, and the key in force is gone: %v", err, gone(mv))
		}
		if _, err := d.C.Parts().Moves.Succession.Swap(t.Context(), lost); err == nil || !gone(lost) || gone(mv) {
			t.Errorf("of two moves the one that lost keeps its key: %v", err)
		}
	})
	t.Run("decided later", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		won, lost := rekeyed(d), rekeyed(d)
		d.C.Parts().Secrets.Keys.Pend(won)
		d.C.Parts().Secrets.Keys.Pend(lost)
		if gone(won) || gone(lost) {
			t.Fatal("a key is gone whose head may come")
		}
		d.C.Parts().Secrets.Keys.Settle(won.Link)
		if gone(won) || !gone(lost) {
			t.Errorf("after one came: its key is gone %v, the other's %v", gone(won), gone(lost))
		}
	})
	t.Run("the same key", func(t *testing.T) { // of a set that begins no epoch
		d := coordinatortest.PoolDesk(t)
		d.Faults.FailNext("set.before-swap", 1, coordinatortest.ErrCrash)
		if err := d.Set(coordinatortest.PoolEntries + "  - {name: more, kind: data, match: [\"token:more\"]}\n"); err == nil {
			t.Fatal("the fault did not show")
		}
		d.Joined("a") // the key in force signs
	})
}

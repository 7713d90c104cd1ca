package succession_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

func TestRekey(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	before := d.State()
	after, err := coordinatortest.Rekey(d)
	coordinatortest.WantOnly(t, "rekey", err, "")
	switch {
	case after != d.State() || after.Phase != authority.Ready:
		t.Fatal("what it returned is not the state")
	case after.Head.Kind != history.KindRekey || after.Head.Previous != before.Head.Hash ||
		after.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1:
		t.Errorf("the head is %+v", after.Head)
	case after.Manifest.Hash() != before.Manifest.Hash() || after.RootPin != before.RootPin:
		t.Error("manifest or root changed")
	case after.MeshKey == before.MeshKey || after.MeshKey != after.Head.MeshCAKey:
		t.Error("the mesh CA key is not a new one, or not the head's")
	}
	coordinatortest.WantOnly(t, "renew", m.Renew(), "")
	d.Restart() // the keeper has the new key
	coordinatortest.WantPhase(d, "ready", "")
	if d.State().Head.Hash != after.Head.Hash || d.State().MeshKey != after.MeshKey {
		t.Error("a restart changed head or mesh CA key")
	}
	coordinatortest.WantOneKeyPerEpoch(t, d)
}

// A rekey after a head that is not the newest changes nothing, and says so.
func TestRekeyAfterAnOldHead(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	old := d.State()
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	now := d.State()
	release, err := d.C.Parts().Moves.Turn.Take(t.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	_, err = d.C.Parts().Moves.Succession.Rekey(t.Context(), old, "test", "test", nil)
	release()
	coordinatortest.WantOnly(t, "rekey", err, errcode.HistoryInvalid)
	d.C.Parts().Moves.Succession.Look(t.Context())
	if d.State() != now {
		t.Error("the state is another one")
	}
}

// Wherever a rekey dies, the head is the old one or the new one, and the keeper opens
// its mesh CA key.
func TestRekeyDiesAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"rekey.before-swap", "set.before-swap", "set.after-swap", "adopt.begin",
		"adopt.before-identity"} {
		t.Run(point, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			before := d.State().Head
			d.Faults.FailNext(point, 1, coordinatortest.ErrCrash)
			if _, err := coordinatortest.Rekey(d); err == nil {
				t.Fatal("the fault did not show")
			}
			d.Faults.Disarm(point)
			d.Restart()
			coordinatortest.WantPhase(d, "ready", "")
			moved := point == "set.after-swap" || point == "adopt.begin" || point == "adopt.before-identity"
			if got := d.State().Head.Hash != before.Hash; got != moved {
				t.Errorf("the head moved: %v, want %v", got, moved)
			}
			coordinatortest.WantOneKeyPerEpoch(t, d)
		})
	}
	for name, how := range map[string]coordinatortest.LostAnswer{"happened": coordinatortest.LostApplied,
		"did not happen": coordinatortest.LostDropped} {
		t.Run("the answer of the swap is lost, "+name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			before := d.State().Head
			d.Faults.Arm("set.before-swap", func() error {
				d.Store.Intercept(func(tx store.Tx) {
					if len(tx.Put) == 1 && tx.Put[0].Key == history.HeadKey {
						d.Store.Intercept(nil)
						d.Store.Lose(how)
					}
				})
				return nil
			})
			s, err := coordinatortest.Rekey(d)
			coordinatortest.WantOnly(t, "rekey", err, "")
			if s.Head.Previous != before.Hash {
				t.Errorf("the head is %+v", s.Head)
			}
		})
	}
}

// A coordinator that the manifest does not admit writes none: it could not serve
// under it.
func TestRekeyWantsAdmission(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	stranger, err := d.Another("stranger")
	coordinatortest.WantOnly(t, "start", err, "")
	defer stranger.Close()
	_, err = stranger.Parts().Moves.Succession.Rekey(t.Context(), d.State(), "test", "test", nil)
	coordinatortest.WantOnly(t, "a stranger's rekey", err, errcode.ManifestLeavesOut)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantPhase(d, "ready", "")
}

// A head that was written, and could not be adopted, keeps its mesh CA key until it can,
// however often the reason stays the same; and the audit log is told of all of them then.
func TestHeadsThatAreNotAdoptedKeepTheirKeys(t *testing.T) {
	t.Parallel()
	d, _ := coordinatortest.OwnedDesk(t, "")
	d.Faults.Fail("adopt.begin", coordinatortest.ErrCrash)
	var last history.Record
	for range 3 {
		release, err := d.C.Parts().Moves.Turn.Take(t.Context())
		coordinatortest.WantOnly(t, "turn", err, "")
		_, err = d.C.Parts().Moves.Succession.Rekey(t.Context(), d.State().Ready(), "test", "test", nil)
		release()
		coordinatortest.WantOnly(t, "rekey", err, errcode.DoneNotInForce)
		last = coordinatortest.MustHead(t, d)
		d.LookAgain()
	}
	d.Faults.Disarm("adopt.begin")
	d.LookAgain()
	coordinatortest.WantPhase(d, "ready", "")
	if s := d.State(); s.Head.Hash != last.Hash || s.Head.Index != 4 {
		t.Errorf("it came back at index %d by %q, after index %d", s.Head.Index, s.Head.Reason, last.Index)
	}
	for _, action := range []string{"manifest.rekey", transition.ActionMeshMade} {
		want := 3
		if action == transition.ActionMeshMade {
			want++ // that of the first set
		}
		if found, _ := coordinatortest.Audits(d, action); len(found) != want {
			t.Errorf("%d entries of %s, want %d", len(found), action, want)
		}
	}
}

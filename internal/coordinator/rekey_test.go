package coordinator_test

import (
	"context"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// rekey asks the desk's coordinator for a new mesh CA key.
func (d *desk) rekey() (*authority.State, error) {
	d.t.Helper()
	release, err := d.c.Rooms().Authority.SettingTurn(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	defer release()
	return d.c.Rooms().Authority.Rekey(context.Background(), d.state(), "test", "test", nil)
}

func TestRekey(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	before := d.state()
	after, err := d.rekey()
	wantOnly(t, "rekey", err, "")
	switch {
	case after != d.state() || after.Phase != authority.Ready:
		t.Fatal("what it returned is not the state")
	case after.Head.Kind != history.KindRekey || after.Head.Previous != before.Head.Hash ||
		after.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1:
		t.Errorf("the head is %+v", after.Head)
	case after.Manifest.Hash() != before.Manifest.Hash() || after.RootPin != before.RootPin:
		t.Error("manifest or root changed")
	case after.MeshKey == before.MeshKey || after.MeshKey != after.Head.MeshCAKey:
		t.Error("the mesh CA key is not a new one, or not the head's")
	}
	wantOnly(t, "renew", m.renew(), "")
	d.restart() // the keeper has the new key
	d.wantPhase("ready", "")
	if d.state().Head.Hash != after.Head.Hash || d.state().MeshKey != after.MeshKey {
		t.Error("a restart changed head or mesh CA key")
	}
	wantOneKeyPerEpoch(t, d)
}

// A rekey after a head that is not the newest changes nothing, and says so.
func TestRekeyAfterAnOldHead(t *testing.T) {
	d := testDesk(t)
	old := d.state()
	wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
	now := d.state()
	release, err := d.c.Rooms().Authority.SettingTurn(t.Context())
	wantOnly(t, "turn", err, "")
	_, err = d.c.Rooms().Authority.Rekey(t.Context(), old, "test", "test", nil)
	release()
	wantOnly(t, "rekey", err, explain.HistoryInvalid)
	d.c.Rooms().Authority.Look(t.Context())
	if d.state() != now {
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
			d := testDesk(t)
			before := d.state().Head
			d.faults.FailNext(point, 1, errTestCrash)
			if _, err := d.rekey(); err == nil {
				t.Fatal("the fault did not show")
			}
			d.faults.Disarm(point)
			d.restart()
			d.wantPhase("ready", "")
			moved := point == "set.after-swap" || point == "adopt.begin" || point == "adopt.before-identity"
			if got := d.state().Head.Hash != before.Hash; got != moved {
				t.Errorf("the head moved: %v, want %v", got, moved)
			}
			wantOneKeyPerEpoch(t, d)
		})
	}
	for name, how := range map[string]lostAnswer{"happened": lostApplied, "did not happen": lostDropped} {
		t.Run("the answer of the swap is lost, "+name, func(t *testing.T) {
			d := testDesk(t)
			before := d.state().Head
			d.faults.Arm("set.before-swap", func() error {
				d.store.intercept(func(tx store.Tx) {
					if len(tx.Put) == 1 && tx.Put[0].Key == history.HeadKey {
						d.store.intercept(nil)
						d.store.lose(how)
					}
				})
				return nil
			})
			s, err := d.rekey()
			wantOnly(t, "rekey", err, "")
			if s.Head.Previous != before.Hash {
				t.Errorf("the head is %+v", s.Head)
			}
		})
	}
}

// A coordinator that the manifest does not admit writes none: it could not serve
// under it.
func TestRekeyWantsAdmission(t *testing.T) {
	d := testDesk(t)
	stranger, err := d.another("stranger")
	wantOnly(t, "start", err, "")
	defer stranger.Close()
	_, err = stranger.Rooms().Authority.Rekey(t.Context(), d.state(), "test", "test", nil)
	wantOnly(t, "a stranger's rekey", err, explain.ManifestLeavesOut)
	d.c.Rooms().Authority.Look(t.Context())
	d.wantPhase("ready", "")
}

// A head that was written, and could not be adopted, keeps its mesh CA key until it can,
// however often the reason stays the same; and the audit log is told of all of them then.
func TestHeadsThatAreNotAdoptedKeepTheirKeys(t *testing.T) {
	t.Parallel()
	d, _ := ownedDesk(t, "")
	d.faults.Fail("adopt.begin", errTestCrash)
	var last history.Record
	for range 3 {
		release, err := d.c.Rooms().Authority.SettingTurn(t.Context())
		wantOnly(t, "turn", err, "")
		_, err = d.c.Rooms().Authority.Rekey(t.Context(), d.state().Ready(), "test", "test", nil)
		release()
		wantOnly(t, "rekey", err, explain.DoneNotInForce)
		last = mustHead(t, d)
		d.lookAgain()
	}
	d.faults.Disarm("adopt.begin")
	d.lookAgain()
	d.wantPhase("ready", "")
	if s := d.state(); s.Head.Hash != last.Hash || s.Head.Index != 4 {
		t.Errorf("it came back at index %d by %q, after index %d", s.Head.Index, s.Head.Reason, last.Index)
	}
	for _, action := range []string{"manifest.rekey", transition.ActionMeshMade} {
		want := 3
		if action == transition.ActionMeshMade {
			want++ // that of the first set
		}
		if found, _ := d.audits(action); len(found) != want {
			t.Errorf("%d entries of %s, want %d", len(found), action, want)
		}
	}
}

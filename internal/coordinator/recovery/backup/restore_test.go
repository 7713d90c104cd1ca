package backup_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// A coordinator that remembers a newer head goes on from a backup that the signers
// sent it back to, under clocks above all of before; what was made since is gone, and
// tokens are void.
func TestRestored(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	a := f.Member("a")
	old := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 5})
	oldRecord, err := f.Store.Get(f.Context(), admission.TokenKey(old.ID))
	if err != nil {
		t.Fatal(err)
	}
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	f.Member("b")
	for _, name := range []string{"x", "y", "z"} { // the history moves on
		if err := f.Set(coordinatortest.WithSeed(
			f.Manifest("  - {name: "+name+", kind: witness, match: [\"token:"+name+"\"]}\n"),
			owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
			t.Fatal(err)
		}
	}
	before := f.State()
	l, err := f.Store.List(f.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	b.Restore()
	f.Start()
	s := f.State()
	if s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
		t.Fatalf("phase %v (%s), head %v", s.Phase, s.Reason, s.Head.Kind)
	}
	if s.Head.Index <= before.Head.Index || s.Head.AuthorityEpoch <= before.Head.AuthorityEpoch ||
		s.HeadVersion <= l.Revision || s.MeshKey == before.MeshKey {
		t.Errorf("after %+v at %d it is %+v at %d", before.Head.Transition, before.HeadVersion, s.Head.Transition,
			s.HeadVersion)
	}
	if uint64(s.HeadVersion) < b.Plan.Index {
		t.Errorf("revision %d is not above the floor", s.HeadVersion)
	}
	if f.C.Parts().Bundle.View().Version <= uint64(b.Plan.Floor) ||
		f.C.Parts().Bundle.View().Epoch != s.Head.AuthorityEpoch {
		t.Errorf("the trust bundle is version %d of epoch %d", f.C.Parts().Bundle.View().Version,
			f.C.Parts().Bundle.View().Epoch)
	}
	members, err := f.Store.List(f.Context(), record.MemberPrefix)
	if err != nil || len(members.Entries) != 1 || members.Entries[0].Key != record.MemberKey(a.ID.Kind(), a.ID.Name()) {
		t.Errorf("members are %v, %v", members.Entries, err)
	}
	if intent, _, err := backup.ReadIntent(f.Context(), f.Store); err != nil || intent != nil {
		t.Errorf("the intent is still there: %v, %v", intent, err)
	}
	// A token of before admits nobody, also if its record is put back.
	if err := f.Node().Join("data", proof.NewTokenProver(old)); err == nil {
		t.Error("a token of before the restore admits")
	}
	if _, err := f.Store.CompareAndSwap(f.Context(), oldRecord.Key, 0, oldRecord.Value); err != nil {
		t.Fatal(err)
	}
	if err := f.Node().Join("data", proof.NewTokenProver(old)); err == nil {
		t.Error("a token of before the restore admits when its record is put back")
	}
	f.Advance(2 * time.Second)
	if err := f.Node().Join("data",
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}))); err != nil {
		t.Errorf("a new token: %v", err)
	}
	// It goes on: another set, another start.
	if err := f.Set(f.State().Manifest.Bytes()); err != nil {
		t.Fatal(err)
	}
	f.Restart()
	if phase, why := f.C.Phase(); phase != "ready" {
		t.Errorf("after another start: %s (%s)", phase, why)
	}
}

// TestRestoreWaits walks what a coordinator does not go on from.
func TestRestoreWaits(t *testing.T) {
	t.Parallel()
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		alter  func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved)
		reason errcode.Code
	}{
		{"nobody signed", func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) { b.Restore() },
			errcode.RestoreUnsigned},
		{"a stranger signed", func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) {
			b.Signed(
				stranger).Restore()
		},
			errcode.SignatureForeign},
		{"signed for other clocks",
			func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) {
				b.Signed(f.Signer).Plan.Index++
				b.Restore()
			},
			errcode.ManifestMissigned},
		{"a later revision is claimed for the backup", func(t *testing.T, f *coordinatortest.Fleet,
			b *coordinatortest.Saved) {
			b.Signed(f.Signer).Restore()
			coordinatortest.InStore(f, func(st *sqlite.Store) error {
				intent, version, err := backup.ReadIntent(f.Context(), st)
				if err != nil {
					return err
				}
				intent.Header.Revision++
				raw, err := intent.Encode()
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.Context(), backup.IntentKey, version, raw)
				return err
			})
		}, errcode.RestoreUnfit},
		{"cut off", func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) {
			b.Signed(f.Signer).Restore()
			coordinatortest.InStore(f, func(st *sqlite.Store) error {
				intent, version, err := backup.ReadIntent(f.Context(), st)
				if err != nil {
					return err
				}
				intent.Whole = false
				raw, err := intent.Encode()
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.Context(), backup.IntentKey, version, raw)
				return err
			})
		}, errcode.RestoreUnfinished},
		{"an entry is missing", func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) {
			b.Signed(f.Signer).Restore()
			coordinatortest.InStore(f, func(st *sqlite.Store) error {
				_, err := st.Commit(f.Context(), store.Tx{Delete: []string{record.MemberKey("data", "a")}})
				return err
			})
		}, errcode.RestoreUnfit},
		{"an intent of a newer release", func(t *testing.T, f *coordinatortest.Fleet, b *coordinatortest.Saved) {
			b.Signed(f.Signer).Restore()
			coordinatortest.InStore(f, func(st *sqlite.Store) error {
				e, err := st.Get(f.Context(), backup.IntentKey)
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.Context(), e.Key, e.Version,
					bytes.Replace(e.Value, []byte("restore/v1"), []byte("restore/v9"), 1))
				return err
			})
		}, errcode.RestoreUnfit},
		{"no restore: the database was set back", func(t *testing.T, f *coordinatortest.Fleet,
			b *coordinatortest.Saved) {
			b.Signed(f.Signer).Restore()
			coordinatortest.InStore(f, func(st *sqlite.Store) error {
				_, err := st.Commit(f.Context(), store.Tx{Delete: []string{backup.IntentKey}})
				return err
			})
		}, errcode.HistoryInvalid},
		{"the signers of then are not those of now", func(t *testing.T, f *coordinatortest.Fleet,
			b *coordinatortest.Saved) {
			b.Signed(f.Signer)
			m := f.State().Manifest.Bytes()
			_, next, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, _ := manifest.NewKey(next.Public().(ed25519.PublicKey))
			was, _ := manifest.NewKey(f.Signer.Public().(ed25519.PublicKey))
			if err := f.Set(bytes.Replace(m, []byte(was.String()), []byte(key.String()), 1)); err != nil {
				t.Fatal(err)
			}
			b.Restore()
		}, errcode.HistoryInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			f, owners := coordinatortest.NewOwnedFleet(t, nil)
			f.Member("a")
			b := coordinatortest.Save(f, owners)
			if err := f.Set(coordinatortest.WithSeed(
				f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
				owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
				t.Fatal(err)
			}
			row.alter(t, f, b)
			f.Start()
			s := f.State()
			if s.Phase != authority.Recovery || !strings.Contains(s.Reason, string(row.reason)) {
				t.Errorf("phase %v: %s, want recovery with %s", s.Phase, s.Reason, row.reason)
			}
			if e, err := f.Store.Get(f.Context(), history.HeadKey); err != nil ||
				!bytes.Equal(e.Value, b.Plan.Header.Head) {
				t.Errorf("the head moved: %v", err)
			}
		})
	}
}

// The signers consent to one backup: an older one at the same head, which lacks a ban,
// cannot take its place.
func TestRestoreOfOlderBackup(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	a := f.Member("a")
	older := coordinatortest.Save(f, owners)
	coordinatortest.BanIn(f, a)
	newer := coordinatortest.Save(f, owners).Signed(f.Signer)
	if older.V.Current().Hash != newer.V.Current().Hash {
		t.Fatal("the backups are of different heads")
	}
	older.Plan.Index, older.Plan.AuthorityEpoch, older.Plan.Signatures = newer.Plan.Index, newer.Plan.AuthorityEpoch,
		newer.Plan.Signatures
	older.Restore()
	f.Start()
	if s := f.State(); s.Phase != authority.Recovery || !strings.Contains(s.Reason,
		string(errcode.ManifestMissigned)) {
		t.Errorf("phase %v: %s", s.Phase, s.Reason)
	}
}

// A signature that comes later is enough: the coordinator goes on by itself.
func TestRestoreSignedLater(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	b := coordinatortest.Save(f, owners)
	b.Restore()
	b.Signed(f.Signer)
	b.Again()
	f.Start()
	if phase, why := f.C.Phase(); phase != "ready" {
		t.Errorf("%s: %s", phase, why)
	}
}

// Without its keeper a restored cluster comes back by its owners: what they write is
// the restore, and no rekey.
func TestRestoreByOwners(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	f.Member("a")
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	if err := f.Set(coordinatortest.WithSeed(f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
		t.Fatal(err)
	}
	b.Restore()
	if err := os.Remove(filepath.Join(f.Dir, "keeper.key")); err != nil {
		t.Fatal(err)
	}
	f.Start()
	if phase, _ := f.C.Phase(); phase != "recovery" {
		t.Fatalf("%s without the seed", phase)
	}
	for _, name := range []string{"alice", "bob"} {
		if _, err := f.Bring(owners.ShareFile(f.Store, name), recovery.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.State(); s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
		t.Fatalf("phase %v (%s), head %v", s.Phase, s.Reason, s.Head.Kind)
	}
}

// TestRestoreCrash stops the coordinator at each step of going on from a backup: the
// next start makes it whole, with one restore transition.
func TestRestoreCrash(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"rekey.before-swap", "set.before-swap", "set.after-swap", "adopt.begin",
		"adopt.before-identity", "restore.before-end"} {
		t.Run(point, func(t *testing.T) {
			f, owners := coordinatortest.NewOwnedFleet(t, nil)
			f.Member("a")
			b := coordinatortest.Save(f, owners).Signed(f.Signer)
			f.Member("b")
			b.Restore()
			f.Faults.Fail(point, errors.New("crash"))
			f.Start()
			f.Faults.Fail(point, nil)
			f.Restart()
			f.Await(authority.Ready)
			s := f.State()
			restores := 0
			for _, l := range s.Chain.Links() {
				if l.Kind == history.KindRestore {
					restores++
				}
			}
			if restores != 1 {
				t.Errorf("%d restore transitions", restores)
			}
			if intent, _, err := backup.ReadIntent(f.Context(), f.Store); err != nil || intent != nil {
				t.Errorf("the intent is still there: %v, %v", intent, err)
			}
		})
	}
}

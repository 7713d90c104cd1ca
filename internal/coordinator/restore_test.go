package coordinator_test

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

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/recovery"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/manifest"
)

// saved is a backup, and what is needed to restore it.
type saved struct {
	f    *coordinatortest.Fleet
	file []byte
	ids  []age.Identity
	plan *backup.Intent
	v    *history.Verified
}

func save(f *coordinatortest.Fleet, owners *coordinatortest.People) *saved {
	f.T.Helper()
	_, file, err := backUp(f, &fealtyv1.CreateBackupRequest{})
	if err != nil {
		f.T.Fatal(err)
	}
	b := &saved{f: f, file: file, ids: []age.Identity{owners.Keys["alice"]}}
	return b.planned()
}

// planned plans the restore for now.
func (b *saved) planned() *saved {
	b.f.T.Helper()
	found, err := backup.Check(bytes.NewReader(b.file), b.ids)
	if err != nil {
		b.f.T.Fatal(err)
	}
	b.v = found.History
	if b.plan, err = backup.Plan(found, b.f.Clock(), "test"); err != nil {
		b.f.T.Fatal(err)
	}
	return b
}

// signed adds the signature of key to the plan.
func (b *saved) signed(key ed25519.PrivateKey) *saved {
	k, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		b.f.T.Fatal(err)
	}
	t := b.plan.Transition(b.v)
	b.plan.Signatures = append(b.plan.Signatures,
		history.Signature{Key: k, Signature: [64]byte(ed25519.Sign(key, t.Statement()))})
	return b
}

// inStore runs f on the store of the fleet, whose coordinator is stopped.
func inStore(f *coordinatortest.Fleet, do func(st *sqlite.Store) error) {
	f.T.Helper()
	st, err := sqlite.Open(f.Context(), filepath.Join(f.Dir, "store", "db"), sqlite.Options{})
	if err != nil {
		f.T.Fatal(err)
	}
	defer st.Close()
	if err := do(st); err != nil {
		f.T.Fatal(err)
	}
}

// restore stops the coordinator, throws its store away and restores b into a new one.
func (b *saved) restore() {
	f := b.f
	f.T.Helper()
	f.Stop()
	if err := os.RemoveAll(filepath.Join(f.Dir, "store")); err != nil {
		f.T.Fatal(err)
	}
	b.again()
}

// again runs the restore on the store as it is.
func (b *saved) again() {
	b.f.T.Helper()
	inStore(b.f, func(st *sqlite.Store) error {
		r, err := backup.Open(bytes.NewReader(b.file), b.ids)
		if err != nil {
			return err
		}
		_, err = backup.Restore(b.f.Context(), st, b.plan, r, nil)
		return err
	})
}

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
	b := save(f, owners).signed(f.Signer)
	f.Member("b")
	for _, name := range []string{"x", "y", "z"} { // the history moves on
		if err := f.Set(coordinatortest.WithSeed(
			f.Manifest("  - {name: "+name+", kind: witness, match: [\"token:"+name+"\"]}\n"),
			owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
			t.Fatal(err)
		}
	}
	before := f.C.Rooms().Head.State()
	l, err := f.Store.List(f.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	b.restore()
	f.Start()
	s := f.C.Rooms().Head.State()
	if s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
		t.Fatalf("phase %v (%s), head %v", s.Phase, s.Reason, s.Head.Kind)
	}
	if s.Head.Index <= before.Head.Index || s.Head.AuthorityEpoch <= before.Head.AuthorityEpoch ||
		s.HeadVersion <= l.Revision || s.MeshKey == before.MeshKey {
		t.Errorf("after %+v at %d it is %+v at %d", before.Head.Transition, before.HeadVersion, s.Head.Transition,
			s.HeadVersion)
	}
	if uint64(s.HeadVersion) < b.plan.Index {
		t.Errorf("revision %d is not above the floor", s.HeadVersion)
	}
	if f.C.Rooms().Bundle.View().Version <= uint64(b.plan.Floor) ||
		f.C.Rooms().Bundle.View().Epoch != s.Head.AuthorityEpoch {
		t.Errorf("the trust bundle is version %d of epoch %d", f.C.Rooms().Bundle.View().Version,
			f.C.Rooms().Bundle.View().Epoch)
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
	if err := f.Set(f.C.Rooms().Head.State().Manifest.Bytes()); err != nil {
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
		alter  func(t *testing.T, f *coordinatortest.Fleet, b *saved)
		reason explain.Code
	}{
		{"nobody signed", func(t *testing.T, f *coordinatortest.Fleet, b *saved) { b.restore() },
			explain.RestoreUnsigned},
		{"a stranger signed", func(t *testing.T, f *coordinatortest.Fleet, b *saved) { b.signed(stranger).restore() },
			explain.SignatureForeign},
		{"signed for other clocks",
			func(t *testing.T, f *coordinatortest.Fleet, b *saved) { b.signed(f.Signer).plan.Index++; b.restore() },
			explain.ManifestMissigned},
		{"a later revision is claimed for the backup", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer).restore()
			inStore(f, func(st *sqlite.Store) error {
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
		}, explain.RestoreUnfit},
		{"cut off", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer).restore()
			inStore(f, func(st *sqlite.Store) error {
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
		}, explain.RestoreUnfinished},
		{"an entry is missing", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer).restore()
			inStore(f, func(st *sqlite.Store) error {
				_, err := st.Commit(f.Context(), store.Tx{Delete: []string{record.MemberKey("data", "a")}})
				return err
			})
		}, explain.RestoreUnfit},
		{"an intent of a newer release", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer).restore()
			inStore(f, func(st *sqlite.Store) error {
				e, err := st.Get(f.Context(), backup.IntentKey)
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.Context(), e.Key, e.Version,
					bytes.Replace(e.Value, []byte("restore/v1"), []byte("restore/v9"), 1))
				return err
			})
		}, explain.RestoreUnfit},
		{"no restore: the database was set back", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer).restore()
			inStore(f, func(st *sqlite.Store) error {
				_, err := st.Commit(f.Context(), store.Tx{Delete: []string{backup.IntentKey}})
				return err
			})
		}, explain.HistoryInvalid},
		{"the signers of then are not those of now", func(t *testing.T, f *coordinatortest.Fleet, b *saved) {
			b.signed(f.Signer)
			m := f.C.Rooms().Head.State().Manifest.Bytes()
			_, next, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, _ := manifest.NewKey(next.Public().(ed25519.PublicKey))
			was, _ := manifest.NewKey(f.Signer.Public().(ed25519.PublicKey))
			if err := f.Set(bytes.Replace(m, []byte(was.String()), []byte(key.String()), 1)); err != nil {
				t.Fatal(err)
			}
			b.restore()
		}, explain.HistoryInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			f, owners := coordinatortest.NewOwnedFleet(t, nil)
			f.Member("a")
			b := save(f, owners)
			if err := f.Set(coordinatortest.WithSeed(
				f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
				owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
				t.Fatal(err)
			}
			row.alter(t, f, b)
			f.Start()
			s := f.C.Rooms().Head.State()
			if s.Phase != authority.Recovery || !strings.Contains(s.Reason, string(row.reason)) {
				t.Errorf("phase %v: %s, want recovery with %s", s.Phase, s.Reason, row.reason)
			}
			if e, err := f.Store.Get(f.Context(), history.HeadKey); err != nil ||
				!bytes.Equal(e.Value, b.plan.Header.Head) {
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
	older := save(f, owners)
	banIn(f, a)
	newer := save(f, owners).signed(f.Signer)
	if older.v.Current().Hash != newer.v.Current().Hash {
		t.Fatal("the backups are of different heads")
	}
	older.plan.Index, older.plan.AuthorityEpoch, older.plan.Signatures = newer.plan.Index, newer.plan.AuthorityEpoch,
		newer.plan.Signatures
	older.restore()
	f.Start()
	if s := f.C.Rooms().Head.State(); s.Phase != authority.Recovery || !strings.Contains(s.Reason,
		string(explain.ManifestMissigned)) {
		t.Errorf("phase %v: %s", s.Phase, s.Reason)
	}
}

// A signature that comes later is enough: the coordinator goes on by itself.
func TestRestoreSignedLater(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	b := save(f, owners)
	b.restore()
	b.signed(f.Signer)
	b.again()
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
	b := save(f, owners).signed(f.Signer)
	if err := f.Set(coordinatortest.WithSeed(f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
		t.Fatal(err)
	}
	b.restore()
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
	if s := f.C.Rooms().Head.State(); s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
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
			b := save(f, owners).signed(f.Signer)
			f.Member("b")
			b.restore()
			f.Faults.Fail(point, errors.New("crash"))
			f.Start()
			f.Faults.Fail(point, nil)
			f.Restart()
			awaitPhase(f, authority.Ready)
			s := f.C.Rooms().Head.State()
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

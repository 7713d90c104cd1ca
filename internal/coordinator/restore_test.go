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
	f    *fleet
	file []byte
	ids  []age.Identity
	plan *backup.Intent
	v    *history.Verified
}

func (f *fleet) save(owners *people) *saved {
	f.t.Helper()
	_, file, err := f.backUp(&fealtyv1.CreateBackupRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	b := &saved{f: f, file: file, ids: []age.Identity{owners.keys["alice"]}}
	return b.planned()
}

// planned plans the restore for now.
func (b *saved) planned() *saved {
	b.f.t.Helper()
	found, err := backup.Check(bytes.NewReader(b.file), b.ids)
	if err != nil {
		b.f.t.Fatal(err)
	}
	b.v = found.History
	if b.plan, err = backup.Plan(found, b.f.clock(), "test"); err != nil {
		b.f.t.Fatal(err)
	}
	return b
}

// signed adds the signature of key to the plan.
func (b *saved) signed(key ed25519.PrivateKey) *saved {
	k, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		b.f.t.Fatal(err)
	}
	t := b.plan.Transition(b.v)
	b.plan.Signatures = append(b.plan.Signatures,
		history.Signature{Key: k, Signature: [64]byte(ed25519.Sign(key, t.Statement()))})
	return b
}

// inStore runs f on the store of the fleet, whose coordinator is stopped.
func (f *fleet) inStore(do func(st *sqlite.Store) error) {
	f.t.Helper()
	st, err := sqlite.Open(f.ctx(), filepath.Join(f.dir, "store", "db"), sqlite.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer st.Close()
	if err := do(st); err != nil {
		f.t.Fatal(err)
	}
}

// restoreTo stops the coordinator, throws its store away and restores b into a new one.
func (b *saved) restore() {
	f := b.f
	f.t.Helper()
	f.stop()
	if err := os.RemoveAll(filepath.Join(f.dir, "store")); err != nil {
		f.t.Fatal(err)
	}
	b.again()
}

// again runs the restore on the store as it is.
func (b *saved) again() {
	b.f.t.Helper()
	b.f.inStore(func(st *sqlite.Store) error {
		r, err := backup.Open(bytes.NewReader(b.file), b.ids)
		if err != nil {
			return err
		}
		_, err = backup.Restore(b.f.ctx(), st, b.plan, r, nil)
		return err
	})
}

// A coordinator that remembers a newer head goes on from a backup that the signers
// sent it back to, under clocks above all of before; what was made since is gone, and
// tokens are void.
func TestRestored(t *testing.T) {
	t.Parallel()
	f, owners := ownedFleet(t, nil)
	a := f.member("a")
	old := f.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 5})
	oldRecord, err := f.store.Get(f.ctx(), admission.TokenKey(old.ID))
	if err != nil {
		t.Fatal(err)
	}
	b := f.save(owners).signed(f.signer)
	f.member("b")
	for _, name := range []string{"x", "y", "z"} { // the history moves on
		if err := f.set(withSeed(f.manifest("  - {name: "+name+", kind: witness, match: [\"token:"+name+"\"]}\n"),
			owners.seed(2, "file:"+filepath.Join(f.dir, "keeper.key")))); err != nil {
			t.Fatal(err)
		}
	}
	before := f.c.Rooms().Head.State()
	l, err := f.store.List(f.ctx(), "")
	if err != nil {
		t.Fatal(err)
	}
	b.restore()
	f.start()
	s := f.c.Rooms().Head.State()
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
	if f.c.Rooms().Bundle.View().Version <= uint64(b.plan.Floor) ||
		f.c.Rooms().Bundle.View().Epoch != s.Head.AuthorityEpoch {
		t.Errorf("the trust bundle is version %d of epoch %d", f.c.Rooms().Bundle.View().Version,
			f.c.Rooms().Bundle.View().Epoch)
	}
	members, err := f.store.List(f.ctx(), record.MemberPrefix)
	if err != nil || len(members.Entries) != 1 || members.Entries[0].Key != record.MemberKey(a.id.Kind(), a.id.Name()) {
		t.Errorf("members are %v, %v", members.Entries, err)
	}
	if intent, _, err := backup.ReadIntent(f.ctx(), f.store); err != nil || intent != nil {
		t.Errorf("the intent is still there: %v, %v", intent, err)
	}
	// A token of before admits nobody, also if its record is put back.
	if err := f.node().join("data", proof.NewTokenProver(old)); err == nil {
		t.Error("a token of before the restore admits")
	}
	if _, err := f.store.CompareAndSwap(f.ctx(), oldRecord.Key, 0, oldRecord.Value); err != nil {
		t.Fatal(err)
	}
	if err := f.node().join("data", proof.NewTokenProver(old)); err == nil {
		t.Error("a token of before the restore admits when its record is put back")
	}
	f.advance(2 * time.Second)
	if err := f.node().join("data",
		proof.NewTokenProver(f.token(&fealtyv1.CreateTokenRequest{Entry: "pool"}))); err != nil {
		t.Errorf("a new token: %v", err)
	}
	// It goes on: another set, another start.
	if err := f.set(f.c.Rooms().Head.State().Manifest.Bytes()); err != nil {
		t.Fatal(err)
	}
	f.restart()
	if phase, why := f.c.Phase(); phase != "ready" {
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
		alter  func(t *testing.T, f *fleet, b *saved)
		reason explain.Code
	}{
		{"nobody signed", func(t *testing.T, f *fleet, b *saved) { b.restore() }, explain.RestoreUnsigned},
		{"a stranger signed", func(t *testing.T, f *fleet, b *saved) { b.signed(stranger).restore() },
			explain.SignatureForeign},
		{"signed for other clocks",
			func(t *testing.T, f *fleet, b *saved) { b.signed(f.signer).plan.Index++; b.restore() }, explain.ManifestMissigned},
		{"a later revision is claimed for the backup", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer).restore()
			f.inStore(func(st *sqlite.Store) error {
				intent, version, err := backup.ReadIntent(f.ctx(), st)
				if err != nil {
					return err
				}
				intent.Header.Revision++
				raw, err := intent.Encode()
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.ctx(), backup.IntentKey, version, raw)
				return err
			})
		}, explain.RestoreUnfit},
		{"cut off", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer).restore()
			f.inStore(func(st *sqlite.Store) error {
				intent, version, err := backup.ReadIntent(f.ctx(), st)
				if err != nil {
					return err
				}
				intent.Whole = false
				raw, err := intent.Encode()
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.ctx(), backup.IntentKey, version, raw)
				return err
			})
		}, explain.RestoreUnfinished},
		{"an entry is missing", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer).restore()
			f.inStore(func(st *sqlite.Store) error {
				_, err := st.Commit(f.ctx(), store.Tx{Delete: []string{record.MemberKey("data", "a")}})
				return err
			})
		}, explain.RestoreUnfit},
		{"an intent of a newer release", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer).restore()
			f.inStore(func(st *sqlite.Store) error {
				e, err := st.Get(f.ctx(), backup.IntentKey)
				if err != nil {
					return err
				}
				_, err = st.CompareAndSwap(f.ctx(), e.Key, e.Version,
					bytes.Replace(e.Value, []byte("restore/v1"), []byte("restore/v9"), 1))
				return err
			})
		}, explain.RestoreUnfit},
		{"no restore: the database was set back", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer).restore()
			f.inStore(func(st *sqlite.Store) error {
				_, err := st.Commit(f.ctx(), store.Tx{Delete: []string{backup.IntentKey}})
				return err
			})
		}, explain.HistoryInvalid},
		{"the signers of then are not those of now", func(t *testing.T, f *fleet, b *saved) {
			b.signed(f.signer)
			m := f.c.Rooms().Head.State().Manifest.Bytes()
			_, next, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, _ := manifest.NewKey(next.Public().(ed25519.PublicKey))
			was, _ := manifest.NewKey(f.signer.Public().(ed25519.PublicKey))
			if err := f.set(bytes.Replace(m, []byte(was.String()), []byte(key.String()), 1)); err != nil {
				t.Fatal(err)
			}
			b.restore()
		}, explain.HistoryInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			f, owners := ownedFleet(t, nil)
			f.member("a")
			b := f.save(owners)
			if err := f.set(withSeed(f.manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
				owners.seed(2, "file:"+filepath.Join(f.dir, "keeper.key")))); err != nil {
				t.Fatal(err)
			}
			row.alter(t, f, b)
			f.start()
			s := f.c.Rooms().Head.State()
			if s.Phase != authority.Recovery || !strings.Contains(s.Reason, string(row.reason)) {
				t.Errorf("phase %v: %s, want recovery with %s", s.Phase, s.Reason, row.reason)
			}
			if e, err := f.store.Get(f.ctx(), history.HeadKey); err != nil ||
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
	f, owners := ownedFleet(t, nil)
	a := f.member("a")
	older := f.save(owners)
	f.ban(a)
	newer := f.save(owners).signed(f.signer)
	if older.v.Current().Hash != newer.v.Current().Hash {
		t.Fatal("the backups are of different heads")
	}
	older.plan.Index, older.plan.AuthorityEpoch, older.plan.Signatures = newer.plan.Index, newer.plan.AuthorityEpoch,
		newer.plan.Signatures
	older.restore()
	f.start()
	if s := f.c.Rooms().Head.State(); s.Phase != authority.Recovery || !strings.Contains(s.Reason,
		string(explain.ManifestMissigned)) {
		t.Errorf("phase %v: %s", s.Phase, s.Reason)
	}
}

// A signature that comes later is enough: the coordinator goes on by itself.
func TestRestoreSignedLater(t *testing.T) {
	t.Parallel()
	f, owners := ownedFleet(t, nil)
	b := f.save(owners)
	b.restore()
	b.signed(f.signer)
	b.again()
	f.start()
	if phase, why := f.c.Phase(); phase != "ready" {
		t.Errorf("%s: %s", phase, why)
	}
}

// Without its keeper a restored cluster comes back by its owners: what they write is
// the restore, and no rekey.
func TestRestoreByOwners(t *testing.T) {
	t.Parallel()
	f, owners := ownedFleet(t, nil)
	f.member("a")
	b := f.save(owners).signed(f.signer)
	if err := f.set(withSeed(f.manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		owners.seed(2, "file:"+filepath.Join(f.dir, "keeper.key")))); err != nil {
		t.Fatal(err)
	}
	b.restore()
	if err := os.Remove(filepath.Join(f.dir, "keeper.key")); err != nil {
		t.Fatal(err)
	}
	f.start()
	if phase, _ := f.c.Phase(); phase != "recovery" {
		t.Fatalf("%s without the seed", phase)
	}
	for _, name := range []string{"alice", "bob"} {
		if _, err := f.bring(owners.shareFile(f.store, name), recovery.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.c.Rooms().Head.State(); s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
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
			f, owners := ownedFleet(t, nil)
			f.member("a")
			b := f.save(owners).signed(f.signer)
			f.member("b")
			b.restore()
			f.faults.Fail(point, errors.New("crash"))
			f.start()
			f.faults.Fail(point, nil)
			f.restart()
			f.awaitPhase(authority.Ready)
			s := f.c.Rooms().Head.State()
			restores := 0
			for _, l := range s.Chain.Links() {
				if l.Kind == history.KindRestore {
					restores++
				}
			}
			if restores != 1 {
				t.Errorf("%d restore transitions", restores)
			}
			if intent, _, err := backup.ReadIntent(f.ctx(), f.store); err != nil || intent != nil {
				t.Errorf("the intent is still there: %v, %v", intent, err)
			}
		})
	}
}

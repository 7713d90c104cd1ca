package owner_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	recoveryowner "github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// The coordinator comes back by itself while a share is looked at: the attempt is over, and
// the owner is told that no share is needed any more, and not to bring it once again.
func TestShareComesAsTheCoordinatorIsBack(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewOwnedFleet(t, nil)
	alice := p.ShareFile(f.Store, "alice")
	file := filepath.Join(f.Dir, "keeper.key")
	key, err := os.ReadFile(file)
	coordinatortest.WantOnly(t, "read the keeper", err, "")
	coordinatortest.LoseKeeper(f)
	f.Faults.Arm("recover.before-taking", func() error {
		if err := os.WriteFile(file, key, 0o600); err != nil {
			return err
		}
		for deadline := time.Now().Add(time.Minute); f.State().Phase != authority.Ready ||
			f.C.Parts().Secrets.OwnerRecovery.Current() != nil; {
			if time.Now().After(deadline) {
				return errors.New("it is not back")
			}
			f.C.Parts().Moves.Succession.Push()
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	_, err = f.Bring(alice, recovery.Options{})
	coordinatortest.WantCode(t, err, errcode.RecoveryNotNeeded)
}

// otherShare returns one of the same shape that nobody committed to.
func otherShare(t coordinatortest.TB, share keyring.Share) keyring.Share {
	t.Helper()
	s, err := keyring.ShareFrom(share.Index(), share.Set(), keyring.NewSeed().Reveal())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// 2-of-3 recovery brings back a coordinator whose keeper is gone; each single bad
// share is named, by the owner's tool and, if it is careless, by the coordinator.
func TestOwnersBringTheSeedBack(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewOwnedFleet(t, nil)
	m := f.Member("a")
	before := f.State()
	files := make(map[string]keyring.ShareFile)
	for _, n := range p.Names {
		files[n] = p.ShareFile(f.Store, n)
	}
	_, err := f.Bring(files["alice"], recovery.Options{})
	coordinatortest.WantCode(t, err, errcode.RecoveryNotNeeded)
	coordinatortest.LoseKeeper(f)

	bad := func(change func(*keyring.ShareFile)) keyring.ShareFile {
		file := files["alice"]
		change(&file)
		return file
	}
	for _, tc := range []struct {
		name  string
		file  keyring.ShareFile
		alter func(*fealtyv1.RecoveryOffer, *fealtyv1.RecoverRequest)
		tool  errcode.Code // empty: the tool would not send it so
		coord errcode.Code
	}{
		{name: "wrong", file: bad(func(s *keyring.ShareFile) { s.Share = otherShare(t, s.Share) }),
			tool: errcode.ShareWrong, coord: errcode.ShareWrong},
		{name: "another owner's", file: bad(func(s *keyring.ShareFile) { s.Share = files["bob"].Share }),
			tool: errcode.ShareWrong, coord: errcode.ShareWrong},
		{name: "foreign", file: bad(func(s *keyring.ShareFile) { s.Cluster = "other.example" }),
			tool: errcode.PeerOtherCluster, coord: errcode.ShareForeign},
		{name: "of nobody", file: bad(func(s *keyring.ShareFile) { s.Owner = "mallory" }), tool: errcode.ShareNoOwner,
			coord: errcode.ShareNoOwner},
		{name: "of a keeper", file: bad(func(s *keyring.ShareFile) { s.Owner = "host" }), tool: errcode.ShareNoOwner,
			coord: errcode.ShareNoOwner},
		{name: "garbage", file: files["alice"], coord: errcode.ShareWrong,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Share = []byte("garbage") }},
		{name: "damaged", file: files["alice"], coord: errcode.ShareWrong,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Share = r.Share[:len(r.Share)-40] }},
		{name: "too large", file: files["alice"], coord: errcode.RequestField,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) {
				r.Share = make([]byte, recovery.MaxSentBytes+1)
			}},
		{name: "none", file: files["alice"], coord: errcode.ShareWrong,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Share = nil }},
		{name: "sent by another name", file: files["alice"], coord: errcode.ShareWrong,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Owner = "bob" }},
		{name: "for another attempt", file: files["alice"], coord: errcode.RecoveryOver,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Attempt = make([]byte, 16) }},
		{name: "without an attempt", file: files["alice"], coord: errcode.RecoveryOver,
			alter: func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Attempt = nil }},
		{name: "encrypted for another attempt", file: files["alice"], coord: errcode.RecoveryOver,
			alter: func(o *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) {
				r.Share = coordinatortest.SentShare(t, o.GetRecipient(), make([]byte, 16), coordinatortest.Cluster,
					"alice",
					files["alice"].Share)
			}},
		{name: "encrypted to another recipient", file: files["alice"], coord: errcode.RecoveryOver,
			alter: func(o *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) {
				r.Share = coordinatortest.SentShare(t, p.Keys["bob"].Recipient().String(), o.GetAttempt(),
					coordinatortest.Cluster,
					"alice", files["alice"].Share)
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.tool != "" {
				_, err := f.Bring(tc.file, recovery.Options{})
				coordinatortest.WantCode(t, err, tc.tool)
				coordinatortest.WantNamed(t, err, tc.file.Owner)
			}
			_, err := f.BringRaw(tc.file, tc.alter)
			coordinatortest.WantCode(t, err, tc.coord)
			if tc.coord != errcode.RequestField {
				want := tc.file.Owner
				if tc.name == "sent by another name" {
					want = "bob"
				}
				coordinatortest.WantNamed(t, err, want)
			}
			if kept := gatheredIn(t, f.Store); len(kept) > 0 {
				t.Errorf("%v were kept of a bad share", kept)
			}
		})
	}

	var seen recovery.Verified
	progress, err := f.Bring(files["alice"],
		recovery.Options{DryRun: true, Verified: func(v recovery.Verified) { seen = v }})
	wantProgress(t, progress, err, false)
	if seen.Coordinator != "coordinator-1" || seen.History.Current().Hash != before.Head.Hash ||
		seen.Progress.Needed != 2 {
		t.Errorf("verified %+v", seen)
	}
	for _, what := range []string{"first", "the same again"} {
		progress, err = f.Bring(files["alice"], recovery.Options{})
		wantProgress(t, progress, err, false, "alice")
		if phase, _ := f.C.Phase(); phase != "recovery" {
			t.Fatalf("%s: one share of two made it %s", what, phase)
		}
	}
	if _, err := f.Bring(bad(func(s *keyring.ShareFile) { s.Owner, s.Share = "bob", otherShare(t, s.Share) }),
		recovery.Options{}); err == nil {
		t.Fatal("a wrong share beside a good one was taken")
	}
	progress, err = f.Bring(files["carol"], recovery.Options{})
	wantProgress(t, progress, err, true, "alice", "carol")
	after := f.State()
	switch {
	case after.Phase != authority.Ready:
		t.Fatalf("phase %s (%s)", after.Phase, after.Reason)
	case after.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 || after.Head.Kind != history.KindRekey ||
		after.Head.Previous != before.Head.Hash:
		t.Errorf("the head is %+v", after.Head)
	case after.RootPin != before.RootPin || after.MeshKey == before.MeshKey:
		t.Error("root or mesh CA key are not as after a rekey")
	case progress.Epoch != after.Head.AuthorityEpoch || progress.Head != after.Head.Hash:
		t.Errorf("the answer says epoch %d, head %v", progress.Epoch, progress.Head)
	case after.Head.Reason != "recovered by alice, carol":
		t.Errorf("the reason is %q", after.Head.Reason)
	}
	if err := m.Renew(true); err != nil {
		t.Errorf("a member does not renew: %v", err)
	}
	l, err := f.Store.List(context.Background(), recoveryowner.Prefix)
	if err != nil || len(l.Entries) > 0 {
		t.Errorf("%d records of the attempt are left (%v)", len(l.Entries), err)
	}
	_, err = f.Bring(files["bob"], recovery.Options{})
	coordinatortest.WantCode(t, err, errcode.RecoveryNotNeeded)
	// The keeper's key is lost, and no other one is made in its place before somebody says
	// so: then the next set makes one, and the next restart needs nobody.
	lost := coordinatortest.KeyIDs(t, f.C, f.Store)
	if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(f).GetFindings(), errcode.KeeperUnopened); len(
		lost) != 1 ||
		!strings.Contains(got, string(lost[0])) {
		t.Fatalf("of the keys %v status says %q", lost, got)
	}
	_, err = f.Local().Manifest.ForgetKeeperKey(f.Context(),
		&fealtyv1.ForgetKeeperKeyRequest{Keeper: "host", KeyId: string(lost[0])})
	coordinatortest.WantOnly(t, "forget", err, "")
	coordinatortest.WantOnly(t, "set", f.Set(coordinatortest.WithSeed(f.Manifest(""),
		p.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))), "")
	after = f.State()
	f.Restart()
	if s := f.State(); s.Phase != authority.Ready || s.Head.Hash != after.Head.Hash {
		t.Errorf("after a restart it is %s (%s)", s.Phase, s.Reason)
	}
}

func wantProgress(t testing.TB, p recovery.Progress, err error, recovered bool, brought ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if p.Recovered != recovered || !slices.Equal(p.Brought, brought) || p.Needed != 2 ||
		len(p.Missing) != 3-len(brought) {
		t.Fatalf("progress %+v, want recovered %v with %v", p, recovered, brought)
	}
}

// Wherever a recovery is cut off, the next one works, nothing is doubled, and no
// authority epoch ever has two mesh CA keys in use (I9).
func TestRecoveryCutOff(t *testing.T) {
	t.Parallel()
	for _, keeper := range []string{"", "file:/keeper/key"} {
		for _, point := range []string{
			"recover.before-store", "recover.after-store", "recover.before-combine", "rekey.before-swap",
			"set.before-swap", "set.after-swap", "adopt.begin", "adopt.before-identity",
		} {
			for _, crash := range []bool{true, false} {
				t.Run(strings.Join([]string{point, "keeper " + keeper,
					map[bool]string{true: "crash", false: "error"}[crash]}, "/"), func(t *testing.T) {
					d, p := coordinatortest.OwnedDesk(t, keeper)
					m := d.Joined("a")
					alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
					epoch := d.State().Head.AuthorityEpoch
					loseDeskKeeper(d, keeper)
					if _, err := coordinatortest.BringShare(d, alice); err != nil {
						t.Fatal(err)
					}
					d.Faults.FailNext(point, 1, coordinatortest.ErrCrash)
					_, err := coordinatortest.BringShare(d, bob)
					if err == nil {
						t.Fatal("the fault did not show")
					}
					d.Faults.Disarm(point)
					if crash {
						d.Restart()
					} else {
						d.C.Parts().Moves.Succession.Look(t.Context())
					}
					coordinatortest.BringBoth(t, d, alice, bob)
					head := d.State().Head
					if moved := head.AuthorityEpoch - epoch; moved < 1 || moved > 2 {
						t.Errorf("the epoch moved by %d", moved)
					}
					coordinatortest.WantOneKeyPerEpoch(t, d)
					coordinatortest.WantOnly(t, "renew", m.Renew(), "")
					// A head that was written and whose key was lost is followed by one more.
					want := uint64(1)
					if crash && slices.Contains([]string{"set.after-swap", "adopt.begin", "adopt.before-identity"},
						point) {
						want = 2
					}
					if got := head.AuthorityEpoch - epoch; got != want {
						t.Errorf("the epoch moved by %d, want %d", got, want)
					}
				})
			}
		}
	}
}

// loseDeskKeeper restarts the desk without its keeper's file.
func loseDeskKeeper(d *coordinatortest.Desk, keeper string) {
	d.T.Helper()
	if keeper != "" {
		if err := d.Disk.FS().Remove("/keeper/key"); err != nil {
			d.T.Fatal(err)
		}
	}
	d.Restart()
	coordinatortest.WantPhase(d, "recovery", "")
}

// The store loses the answer of the swap of the head, once, often, or for good, of
// one that happened and of one that did not.
func TestRecoveryWithLostAnswers(t *testing.T) {
	t.Parallel()
	for name, how := range map[string][]coordinatortest.LostAnswer{
		"happened":       {coordinatortest.LostApplied},
		"did not happen": {coordinatortest.LostDropped},
		"often":          {coordinatortest.LostDropped, coordinatortest.LostDropped, coordinatortest.LostApplied},
		"did not, for a while": {coordinatortest.LostDropped, coordinatortest.LostDropped, coordinatortest.LostDropped,
			coordinatortest.LostDropped, coordinatortest.LostDropped, coordinatortest.LostDropped,
			coordinatortest.LostDropped},
		"happened, for a while": {coordinatortest.LostApplied, coordinatortest.LostDropped, coordinatortest.LostDropped,
			coordinatortest.LostDropped, coordinatortest.LostDropped, coordinatortest.LostDropped,
			coordinatortest.LostDropped},
	} {
		t.Run(name, func(t *testing.T) {
			d, p := coordinatortest.OwnedDesk(t, "")
			alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
			epoch := d.State().Head.AuthorityEpoch
			loseDeskKeeper(d, "")
			if _, err := coordinatortest.BringShare(d, alice); err != nil {
				t.Fatal(err)
			}
			d.Faults.Arm("set.before-swap", func() error {
				d.Store.Intercept(func(tx store.Tx) {
					if len(tx.Put) == 1 && tx.Put[0].Key == history.HeadKey {
						d.Store.Intercept(nil)
						d.Store.Lose(how...)
					}
				})
				return nil
			})
			_, err := coordinatortest.BringShare(d, bob)
			d.Faults.Disarm("set.before-swap")
			d.Store.Lose()
			d.C.Parts().Moves.Succession.Look(t.Context())
			if d.State().Phase != authority.Ready {
				if err == nil {
					t.Fatal("it said that it recovered, and did not")
				}
				coordinatortest.BringBoth(t, d, alice, bob)
			}
			if got := d.State().Head.AuthorityEpoch; got != epoch+1 {
				t.Errorf("epoch %d, want %d", got, epoch+1)
			}
			coordinatortest.WantOneKeyPerEpoch(t, d)
		})
	}
}

// While owners gather, the keeper comes back: recovery gives way, and what was
// gathered opens no more.
func TestRecoveryGivesWayToTheKeeper(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "file:/keeper/key")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	head := d.State().Head
	key, err := d.Disk.FS().ReadSecret("/keeper/key", 1<<10)
	coordinatortest.WantOnly(t, "read", err, "")
	loseDeskKeeper(d, "file:/keeper/key")
	g, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	if _, err := coordinatortest.BringShare(d, alice); err != nil {
		t.Fatal(err)
	}
	d.Disk.Put("/keeper/key", key)
	d.Disk.Chmod("/keeper/key", 0o600)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantPhase(d, "ready", "")
	_, err = coordinatortest.BringShare(d, bob)
	coordinatortest.WantOnly(t, "bring", err, errcode.RecoveryNotNeeded)
	sent := coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "bob", bob.Share)
	_, err = d.C.Parts().Secrets.OwnerRecovery.Bring(t.Context(), &fealtyv1.RecoverRequest{Attempt: g.ID[:],
		Owner: "bob",
		Share: sent}, coordinatortest.AnyOwner)
	coordinatortest.WantOnly(t, "bring late", err, errcode.RecoveryNotNeeded)
	if _, err := g.Open("bob", sent); !errors.Is(err, errcode.RecoveryOver) {
		t.Errorf("the key of the attempt still opens: %v", err)
	}
	if d.State().Head.Hash != head.Hash {
		t.Error("the head moved")
	}
}

// Two replicas of one coordinator recover at once: one writes the rekey, the other
// gives way, and no epoch gets two keys.
func TestConcurrentRecoveries(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	epoch := d.State().Head.AuthorityEpoch
	loseDeskKeeper(d, "")
	key, err := d.Disk.FS().ReadSecret("/coordinator/"+authority.EnrolmentKeyFile, 4<<10)
	coordinatortest.WantOnly(t, "read", err, "")
	d.Disk.Put("/twin/"+authority.EnrolmentKeyFile, key)
	d.Disk.Chmod("/twin/"+authority.EnrolmentKeyFile, 0o600)
	twin, err := d.Another("twin")
	coordinatortest.WantOnly(t, "start", err, "")
	for _, c := range []*coordinator.Coordinator{d.C, twin} {
		if _, err := coordinatortest.BringAt(t, c, alice); err != nil {
			t.Fatal(err)
		}
	}
	d.Faults.Arm("rekey.before-swap", func() error {
		d.Faults.Disarm("rekey.before-swap")
		if _, err := coordinatortest.BringAt(t, twin, bob); err != nil {
			t.Errorf("the twin: %v", err)
		}
		return nil
	})
	_, err = coordinatortest.BringShare(d, bob)
	coordinatortest.WantOnly(t, "bring", err, errcode.RecoveryOver)
	if phase, _ := twin.Phase(); phase != "ready" {
		t.Fatalf("the twin is %s", phase)
	}
	coordinatortest.WantPhase(d, "recovery", "")
	if got := twin.Parts().Head.State().Head.AuthorityEpoch; got != epoch+1 {
		t.Errorf("epoch %d, want %d", got, epoch+1)
	}
	// The loser starts over, at the new head.
	g, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	if g.Head().Hash != twin.Parts().Head.State().Head.Hash {
		t.Error("the next attempt is not at the new head")
	}
}

// A thief who controls the store can name himself in a head, but not sign one: enough
// shares that he made himself are thrown away, with all that was gathered.
func TestForgedHeadIsThrownAway(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "")
	d.Restart()
	seed := keyring.NewSeed()
	forged, err := keyring.Split(seed, 2, 3)
	coordinatortest.WantOnly(t, "split", err, "")
	head, _, err := d.C.Parts().Head.History().Head(t.Context())
	coordinatortest.WantOnly(t, "head", err, "")
	var tr *history.Transition
	d.Store.Alter(history.BlobKey(head.Hash), func(raw []byte) []byte {
		tr, err = history.Decode(raw)
		coordinatortest.WantOnly(t, "decode", err, "")
		return raw
	})
	for i := range tr.ShareCommitments {
		tr.ShareCommitments[i].Hash = forged[i].Commitment(coordinatortest.Cluster, 1)
	}
	raw, err := tr.Encode()
	coordinatortest.WantOnly(t, "encode", err, "")
	_, err = d.Store.CompareAndSwap(t.Context(), history.BlobKey(sha256.Sum256(raw)), 0, raw)
	coordinatortest.WantOnly(t, "put", err, "")
	head.Hash = sha256.Sum256(raw)
	d.Store.Alter(history.HeadKey, func([]byte) []byte { return head.Encode() })
	file := func(i int) keyring.ShareFile {
		return keyring.ShareFile{Cluster: coordinatortest.Cluster, Owner: p.Names[i], Share: forged[i]}
	}
	if _, err := coordinatortest.BringShare(d, file(0)); err != nil {
		t.Fatal(err)
	}
	_, err = coordinatortest.BringShare(d, file(1))
	coordinatortest.WantOnly(t, "bring", err, errcode.RecoverySeedRefused)
	if d.C.Parts().Secrets.OwnerRecovery.Current() != nil || len(d.Store.Keys(recoveryowner.Prefix)) > 0 {
		t.Error("something of the attempt is left")
	}
	coordinatortest.WantPhase(d, "recovery", "")
}

// An attempt ends an hour after its last share, and is not kept for strangers who
// only look.
func TestRecoveryAttemptEnds(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	d.Restart()
	first, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	d.Advance(recovery.Life * 3 / 4)
	second, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	if first == second {
		t.Error("an attempt without a share was not made anew in time")
	}
	if _, err := coordinatortest.BringShare(d, alice); err != nil {
		t.Fatal(err)
	}
	d.Advance(recovery.Life - 1)
	if g, _ := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context()); g != second {
		t.Error("an attempt with a share ended early")
	}
	d.Advance(1)
	_, err = d.C.Parts().Secrets.OwnerRecovery.Bring(t.Context(), &fealtyv1.RecoverRequest{Attempt: second.ID[:],
		Owner: "bob",
		Share: coordinatortest.SentShare(t, second.Recipient(), second.ID[:], coordinatortest.Cluster, "bob",
			bob.Share)}, coordinatortest.AnyOwner)
	coordinatortest.WantOnly(t, "bring", err, errcode.RecoveryOver)
	progress, err := coordinatortest.BringShare(d, bob)
	if err != nil || !slices.Equal(progress.GetBrought(), []string{"bob"}) {
		t.Errorf("the next attempt begins with %v (%v)", progress.GetBrought(), err)
	}
	if _, err := second.Open("alice", nil); !errors.Is(err, errcode.RecoveryOver) &&
		!errors.Is(err, errcode.ShareWrong) {
		t.Errorf("the old key: %v", err)
	}
}

// Values among the gathered shares are looked at like those that a stranger sent.
func TestForgedGatheredShares(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob, carol := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob"), p.ShareFile(d.Store, "carol")
	d.Restart()
	g, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	put := func(owner string, value []byte) {
		t.Helper()
		e, err := d.Store.Get(t.Context(), recoveryowner.Key(g.ID, owner))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		_, err = d.Store.CompareAndSwap(t.Context(), recoveryowner.Key(g.ID, owner), e.Version, value)
		coordinatortest.WantOnly(t, "put", err, "")
	}
	put("mallory", []byte("nobody asked"))
	for name, value := range map[string][]byte{
		"garbage": []byte("garbage"),
		"large":   make([]byte, recovery.MaxSentBytes+1),
		"a wrong one": coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "bob",
			otherShare(t, bob.Share)),
		"of somebody": coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "bob",
			carol.Share),
		"of another name": coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "carol",
			carol.Share),
	} {
		put("bob", value)
		progress, err := coordinatortest.BringShare(d, alice)
		if err != nil || !slices.Equal(progress.GetBrought(), []string{"alice"}) || progress.GetRecovered() {
			t.Errorf("%s: %v, %v", name, progress, err)
		}
	}
	// A good one may come by way of the store: another replica took it.
	put("bob", coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "bob", bob.Share))
	progress, err := coordinatortest.BringShare(d, alice)
	if err != nil || !progress.GetRecovered() {
		t.Fatalf("%v, %v", progress, err)
	}
}

// A keeper that is gone does not hold a recovery up: it is shown, until its file is
// restored from the backup.
func TestKeeperThatStaysGone(t *testing.T) {
	t.Parallel()
	d, p := coordinatortest.OwnedDesk(t, "file:/keeper/key")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	backup, err := d.Disk.FS().ReadSecret("/keeper/key", 1<<10)
	coordinatortest.WantOnly(t, "read", err, "")
	d.Disk.Put("/keeper/key", []byte("garbage"))
	d.Restart()
	coordinatortest.WantPhase(d, "recovery", "keeper host")
	coordinatortest.BringBoth(t, d, alice, bob)
	status := func() string {
		t.Helper()
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnly(t, "status", err, "")
		var b strings.Builder
		for _, f := range st.GetFindings() {
			b.WriteString(f.GetCode() + " " + f.GetSummary() + "\n")
		}
		return b.String()
	}
	shown := func(problem string) {
		t.Helper()
		if s := status(); !strings.Contains(s,
			string(errcode.KeeperUnopened)+" no coordinator opens what keeper host sealed") ||
			!strings.Contains(s, problem) {
			t.Errorf("status does not show the keeper (%s):\n%s", problem, s)
		}
	}
	shown("is no key file of a keeper")
	coordinatortest.WantOnly(t, "set with a damaged file",
		d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)),
		"")
	coordinatortest.WantOnly(t, "remove", d.Disk.FS().Remove("/keeper/key"), "")
	coordinatortest.WantOnly(t, "set without the file",
		d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 3)), "")
	shown("/keeper/key is missing")
	coordinatortest.WantOnly(t, "restore", d.Disk.FS().WriteFile("/keeper/key", backup), "")
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	if s := status(); strings.Contains(s, "keeper host") {
		t.Errorf("status still shows the keeper:\n%s", s)
	}
	d.Restart()
	coordinatortest.WantPhase(d, "ready", "")
}

// Shares of an attempt that ended with its process are removed, and nothing else.
func TestLeftSharesArePruned(t *testing.T) {
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	d.Restart()
	for range 3 {
		if _, err := coordinatortest.BringShare(d, alice); err != nil {
			t.Fatal(err)
		}
		d.Restart()
	}
	if n := len(gatheredIn(t, d.Store)); n != 3 {
		t.Fatalf("%d attempts left a share, want 3", n)
	}
	coordinatortest.BringBoth(t, d, alice, bob)
	d.Lead(d.C)
	before := len(d.Store.Keys(""))
	left := len(d.Store.Keys(recoveryowner.Prefix))
	coordinatortest.WantOnly(t, "prune", d.C.Parts().Secrets.OwnerRecovery.Drop(t.Context(), d.State()), "")
	if n := len(d.Store.Keys(recoveryowner.Prefix)); n != 0 || left != 3 || len(d.Store.Keys("")) != before-left {
		t.Errorf("%d of %d left records are there", n, left)
	}
}

// After a total loss the shares are had from the store, on the machine alone, and
// one that was exchanged there is refused by the tool of its owner.
func TestSharesInRecovery(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewOwnedFleet(t, nil)
	before, err := f.Local().Manifest.GetSeedShares(f.Context(), &fealtyv1.GetSeedSharesRequest{})
	if err != nil || before.GetUnverified() || len(before.GetShares()) != 3 {
		t.Fatalf("while it is well: %v, %v", before, err)
	}
	made := before.GetTransition()
	coordinatortest.LoseKeeper(f)
	conn, err := mesh.DialPinned(f.Addr, pinned.Unproven(), mesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fealtyv1.NewManifestServiceClient(conn).GetSeedShares(f.Context(), &fealtyv1.GetSeedSharesRequest{})
	coordinatortest.WantCode(t, err, errcode.Unauthenticated)
	// A caller that came over TLS, as any of these.
	_, err = coordinatortest.Served[fealtyv1.ManifestServiceServer](
		f.C.Parts().Moves.Manifests.RegisterServices).GetSeedShares(
		t.Context(),
		&fealtyv1.GetSeedSharesRequest{})
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)

	fetch := func() *fealtyv1.GetSeedSharesResponse {
		t.Helper()
		resp, err := f.Local().Manifest.GetSeedShares(f.Context(), &fealtyv1.GetSeedSharesRequest{})
		if err != nil || !resp.GetUnverified() {
			t.Fatalf("in recovery: %v, %v", resp, err)
		}
		return resp
	}
	same := func(got []*fealtyv1.SeedShare, want ...*fealtyv1.SeedShare) {
		t.Helper()
		if !slices.EqualFunc(got, want, func(a, b *fealtyv1.SeedShare) bool { return proto.Equal(a, b) }) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
	}
	resp := fetch()
	same(resp.GetShares(), before.GetShares()...)
	if !proto.Equal(resp.GetTransition(), made) {
		t.Error("it names another transition")
	}

	// Shares that a failed set left are of another set, and stay where they are.
	entries, err := f.Store.List(f.Context(), shares.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value []byte) {
		t.Helper()
		tx := store.Tx{Put: []store.Write{{Key: key, Value: value}}}
		if value == nil {
			tx = store.Tx{Delete: []string{key}}
		}
		if _, err := f.Store.Commit(f.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	set := strings.Split(entries.Entries[0].Key, "/")[4]
	put(strings.Replace(entries.Entries[0].Key, set, strings.Repeat("0", len(set)), 1), []byte("left over"))
	same(fetch().GetShares(), before.GetShares()...)

	// Lost, too large, exchanged: the others are had all the same.
	put(entries.Entries[0].Key, nil)
	put(entries.Entries[1].Key, make([]byte, keyring.MaxShareFileBytes+1))
	resp = fetch()
	same(resp.GetShares(), before.GetShares()[2])
	if !slices.Equal(resp.GetMissing(), []string{"alice", "bob"}) {
		t.Errorf("missing: %v", resp.GetMissing())
	}
	forged, err := keyring.SealShare(p.Keys["alice"].Recipient().String(), func() keyring.ShareFile {
		file := p.ShareFile(f.Store, "carol")
		file.Owner, file.Share = "alice", otherShare(t, file.Share)
		return file
	}())
	if err != nil {
		t.Fatal(err)
	}
	put(entries.Entries[0].Key, forged)
	resp = fetch()
	file, err := keyring.OpenShare([]age.Identity{p.Keys["alice"]}, resp.GetShares()[0].GetFile())
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Bring(file, recovery.Options{})
	coordinatortest.WantCode(t, err, errcode.ShareWrong)

	// Without a record of which set it is, the newest is as good a guess.
	index, err := f.Store.List(f.Context(), shares.SetPrefix)
	if err != nil || len(index.Entries) != 1 {
		t.Fatalf("%d records of sets: %v", len(index.Entries), err)
	}
	put(index.Entries[0].Key, []byte("damaged"))
	if got := fetch().GetShares(); len(got) != 2 || got[1].GetOwner() != "carol" {
		t.Errorf("without the record: %v", got)
	}
}

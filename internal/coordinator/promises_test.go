package coordinator_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/recovery"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
)

// The answer of the swap is lost, and the store cannot be read either. Once it can, its
// head says what happened: what came into force is adopted with the very key and seed
// that were made for it, and no transition more; what did not leaves all as it was.
func TestUnknownOutcomeIsSettledByReading(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		for name, how := range map[string]lostAnswer{"it happened": lostForGood, "it did not": lostForGoodN} {
			t.Run(map[bool]string{true: "first set, ", false: "set, "}[first]+name, func(t *testing.T) {
				f := newFleet(t, func(c *coordinator.Config) { c.Log = slog.New(slog.DiscardHandler) })
				f.people = newPeople(t, "alice", "bob")
				before := f.c.Rooms().Head.State()
				if !first {
					wantOnly(t, "first set", f.setPeople(""), "")
					before = f.c.Rooms().Head.State()
				}
				f.link.lose(how)
				wantCode(t, f.setPeople(moreCoordinators(t)), explain.StoreOutcomeUnknown)
				if got := f.c.Rooms().Head.State(); got != before {
					t.Fatalf("before anybody could tell it went to phase %s, index %d", got.Phase, got.Head.Index)
				}
				f.link.cut(nil)
				f.c.Rooms().Head.LookAgain()
				if how == lostForGoodN {
					// Nothing came, and the next set goes on from where it was.
					f.awaitState("the head of before",
						func(s *authority.State) bool { return s.Phase == before.Phase && s.Head.Hash == before.Head.Hash })
					wantOnly(t, "set again", f.setPeople(moreCoordinators(t)), "")
				}
				f.await(authority.Ready)
				f.awaitState("the head", func(s *authority.State) bool {
					return s.Phase == authority.Ready && s.Head.Index == before.Head.Index+1
				})
				s := f.c.Rooms().Head.State()
				if s.Head.Kind == history.KindRekey || s.MeshKey != s.Head.MeshCAKey ||
					s.Head.Previous != before.Head.Hash {
					t.Errorf("it is at index %d by %s, with mesh CA key %s", s.Head.Index, s.Head.Kind, s.MeshKey)
				}
				f.member("after")
				wantOrigins(t, f, "coordinator-1")
				if got := len(f.loaded().Links); got != int(s.Head.Index) {
					t.Errorf("the history has %d transitions", got)
				}
			})
		}
	}
}

// A move whose swap may yet come keeps its keys while the head before it is adopted
// again; when another head takes its place they are forgotten, and a seed that was made
// for it is wiped.
func TestCandidatesWaitForTheirHead(t *testing.T) {
	t.Parallel()
	f, _ := peerFleet(t, 1, nil)
	release, err := f.c.Rooms().Authority.SettingTurn(f.ctx())
	wantOnly(t, "turn", err, "")
	defer release()
	s := f.c.Rooms().Head.State()
	mv := f.candidate(moreCoordinators(t), nil)
	seed := keyring.NewSeed()
	mv.NewSeed, mv.Secrets, mv.Link.Salt = true, secretsOf(seed, history.Salt{1}), history.Salt{1}
	f.c.Rooms().Keys.Pend(mv)
	f.c.Rooms().Keys.Settle(s.Head)
	if m := f.c.Rooms().Authority.Memory(); m.Mesh(mv.Link.MeshCAKey) == nil || m.Secrets(mv.Link.Salt) == nil ||
		!mv.Secrets.Same(secretsOf(seed, history.Salt{1})) {
		t.Error("the keys of a head that may come are gone")
	}
	other := mv.Link
	other.Hash[0] ^= 1
	other.Salt = s.Head.Salt
	f.c.Rooms().Keys.Settle(other)
	if m := f.c.Rooms().Authority.Memory(); m.Mesh(mv.Link.MeshCAKey) != nil || m.Secrets(mv.Link.Salt) != nil ||
		!mv.Secrets.Gone() {
		t.Error("the keys of a head that cannot come any more are kept")
	}
}

// A keeper opens the seed, and what it sealed of the mesh CA key is gone, of another head
// or damaged: the coordinator makes a new key, in the next epoch, and asks no human.
func TestKeeperOfTheSeedAloneIsEnough(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(store.Entry) store.Entry{
		"gone": func(e store.Entry) store.Entry { e.Value = nil; return e },
		"damaged": func(e store.Entry) store.Entry {
			e.Value = bytes.Clone(e.Value)
			e.Value[len(e.Value)-5] ^= 1
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := readyFleet(t, nil)
			before := f.c.Rooms().Head.State()
			f.stop()
			f.link.lie(func(e store.Entry) store.Entry {
				if strings.HasPrefix(e.Key, sealed.Mesh(before.Head.Hash).Under()) {
					return harm(e)
				}
				return e
			})
			f.start()
			f.await(authority.Ready)
			s := f.c.Rooms().Head.State()
			if s.Head.Kind != history.KindRekey || s.Head.Previous != before.Head.Hash ||
				s.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
				s.MeshKey == before.MeshKey || s.MeshKey != s.Head.MeshCAKey || s.RootPin != before.RootPin {
				t.Errorf("it came back at index %d by %s, epoch %d", s.Head.Index, s.Head.Kind, s.Head.AuthorityEpoch)
			}
			wantOrigins(t, f, "coordinator-1")
			f.member("after")
			// What was sealed with the new head brings it back without a transition.
			f.restart()
			f.awaitState("the same head",
				func(now *authority.State) bool { return now.Phase == authority.Ready && now.Head.Hash == s.Head.Hash })
		})
	}
}

// A coordinator on the way to another head decides nothing under the one before meanwhile,
// however long its peers take to answer; and it proves no authority to anybody who verifies
// it. It serves reads for as long as a call waits for the head, and is in recovery mode from
// then on.
func TestOnTheWayNothingIsDecided(t *testing.T) {
	t.Parallel()
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	var later atomic.Int64
	config, sinceStart := f.config, coordinator.SinceNow()
	r.config = func(cfg *coordinator.Config) {
		if config != nil {
			config(cfg)
		}
		cfg.Elapsed = func() time.Duration { return sinceStart() + time.Duration(later.Load()) }
		cfg.SelfHealAfter = time.Hour
	}
	r.start()
	r.awaitHead(f)
	before := r.c.Rooms().Head.State()
	seen, err := verifyAt(t, r.addr, recovery.Expected{Manifest: before.Manifest})
	wantOnly(t, "verify", err, "")
	asked, answer := make(chan struct{}, 64), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(goOn)
	f.faults.Arm("peer.before-reread", func() error {
		asked <- struct{}{}
		<-answer
		return errTestCrash
	})
	r.faults.Fail("peer.before-reread", errTestCrash) // it is not prepared

	// As long as it cannot even look, it says that it is behind to who verifies it.
	release, err := r.c.Rooms().Authority.SettingTurn(r.ctx())
	wantOnly(t, "turn", err, "")
	wantOnly(t, "set", f.setPeople(moreCoordinators(t)), "")
	if s := r.c.Rooms().Head.State(); s != before {
		t.Fatalf("it is at index %d", s.Head.Index)
	}
	want := recovery.Expected{Manifest: f.c.Rooms().Head.State().Manifest, Seen: seen.Mark()}
	_, err = verifyAt(t, r.addr, want)
	wantCode(t, err, explain.RecoveryMode)
	if claim, _, err := r.c.VerifyClaim(r.ctx(), make([]byte, proof.NonceBytes), make([]byte, 32)); err != nil ||
		claim.GetReady() || len(claim.GetMeshCa()) > 0 {
		t.Errorf("behind the head it claims %v, %v", claim, err)
	}
	release()

	<-asked
	if s := r.c.Rooms().Head.State(); s != before {
		t.Errorf("while it asks its peers it is in phase %s: %s", s.Phase, s.Reason)
	}
	short, cancel := context.WithTimeout(r.ctx(), 50*time.Millisecond)
	defer cancel()
	if s, err := r.c.Rooms().Head.InForce(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call is decided on %v, %v", s, err)
	}
	later.Store(int64(authority.FollowPatience))
	goOn()
	r.await(authority.Recovery)
	if _, err := r.c.Rooms().Head.Ready(); !errors.Is(err, explain.RecoveryMode) {
		t.Errorf("a call is decided on %v", err)
	}
	if ok, phase := r.c.Health().Readiness().OK, r.c.Health().Phase; ok || phase != authority.Recovery {
		t.Error("it says that it is ready")
	}
	f.faults.Disarm("peer.before-reread")
	r.awaitHead(f)
}

// A store that went back, and owners who do not know: their shares bring back no history
// that this coordinator has seen more of, and the head stays where it is.
func TestOwnersBringNoOlderHistoryBack(t *testing.T) {
	t.Parallel()
	d, p := ownedDesk(t, "")
	alice, bob := p.shareFile(d.store, "alice"), p.shareFile(d.store, "bob")
	old := d.store.snapshot()
	wantOnly(t, "set", d.set(poolEntries+coordinatorEntry(t, 2)), "")
	newest := d.store.snapshot()
	d.store.revert(old)
	d.restart()
	d.wantPhase("recovery", "")
	head := mustHead(t, d)
	if _, err := d.bring(alice); err != nil {
		t.Fatal(err)
	}
	_, err := d.bring(bob)
	wantOnly(t, "bring", err, explain.HistoryInvalid)
	if !errors.Is(err, history.ErrRollback) {
		t.Errorf("refused for another reason: %v", err)
	}
	d.wantPhase("recovery", "")
	if now := mustHead(t, d); now.Hash != head.Hash {
		t.Errorf("the head moved to index %d", now.Index)
	}
	// The store shows the newest again: the same owners bring it back.
	d.store.revert(newest)
	d.lookAgain()
	bringBoth(t, d, alice, bob)
	wantOneKeyPerEpoch(t, d)
}

// The mark in memory refuses what went back where the one on disk is lost.
func TestMarkInMemoryStandsAgainstPeers(t *testing.T) {
	t.Parallel()
	f, rs := peerFleet(t, 2, nil)
	r, evil := rs[0], rs[1]
	old, loaded := f.c.Rooms().Head.State(), f.loaded()
	wantOnly(t, "set", f.setPeople(moreCoordinators(t)), "")
	r.start()
	r.awaitHead(f)
	r.link.lie(hideReplicas) // it is the liar alone that is asked
	wantOnly(t, "remove", os.Remove(filepath.Join(r.dir, "coordinator", authority.MarkFile)), "")
	_, err := r.c.WithPeers(servePeer(t, &liar{key: evil.key, state: old})).FromPeers(r.ctx(), loaded)
	if failed := wantStep(t, err, coordinator.StepHistory, "coordinator-3"); !errors.Is(failed.Err, history.ErrRollback) {
		t.Errorf("going back failed for another reason: %v", failed.Err)
	}
}

// A coordinator that is not admitted by the manifest of the head gathers no shares.
func TestDismissedCoordinatorGathersNoShares(t *testing.T) {
	t.Parallel()
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	f.replicas = nil
	wantOnly(t, "set", f.setPeople(""), "")
	f.replicas = rs
	r.start()
	r.await(authority.Recovery)
	_, err := r.c.Rooms().OwnerRecovery.OpenGathering(r.ctx())
	wantOnly(t, "open", err, explain.ManifestLeavesOut)
	if got := f.keys(coordinator.RecoveryPrefix); len(got) > 0 {
		t.Errorf("an attempt is open: %v", got)
	}
}

// A mesh CA key that a peer brings is kept only once the audit log has the hand-over.
func TestPreparedKeyIsAuditedFirst(t *testing.T) {
	t.Parallel()
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	r.start()
	r.awaitHead(f)
	bring := func(mv *transition.Move) error {
		return (&coordinator.Preparing{C: f.c.WithPeers(), Move: mv}).Bring(f.ctx(), r.addr)
	}
	mv := f.candidate(moreCoordinators(t), nil)
	r.link.hold(func(tx store.Tx) error {
		for _, w := range tx.Put {
			if strings.HasPrefix(w.Key, auditlog.Prefix) {
				return errors.New("no space for it")
			}
		}
		return nil
	})
	if err := bring(mv); err == nil {
		t.Error("it was taken")
	}
	if slices.Contains(r.c.Rooms().Keys.Brought(), mv.Mesh.KeyID()) {
		t.Error("a key is kept of which the audit log knows nothing")
	}
	r.link.hold(nil)
	wantOnly(t, "bring", bring(f.candidate(moreCoordinators(t), nil)), "")
	if got := r.audited("mesh.prepared"); len(got) != 1 ||
		got[0].Fields["key"] != proof.KeyClaim(f.c.Rooms().Self.PrivateKey().Public().(ed25519.PublicKey)) {
		t.Errorf("the audit log says %+v", got)
	}
}

// A data owner who saw a cluster before its seed was replaced goes on from there by the
// signers' word alone: the root of before is refused, whoever shows it, and so is the
// history of before once the new one was seen.
func TestVerifyFollowsAReseed(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	old := f.c.Rooms().Head.State()
	former, oldHistory := f.keep(), f.loaded()
	found, err := verifyAt(t, f.addr, recovery.Expected{Manifest: old.Manifest})
	wantOnly(t, "verify", err, "")
	f.reseed()
	f.awaitState("the new seed",
		func(s *authority.State) bool { return s.Phase == authority.Ready && s.RootPin != old.RootPin })
	s := f.c.Rooms().Head.State()
	seen := recovery.Expected{Manifest: s.Manifest, Seen: found.Mark()}
	now, err := verifyAt(t, f.addr, seen)
	wantOnly(t, "verify after the reseed", err, "")
	if got := now.Mark(); got.Root != s.RootPin || string(got.TransactionKey) == string(seen.Seen.TransactionKey) {
		t.Errorf("the mark is %+v", got)
	}
	// claim is what the coordinator's own key vouches for, as altered.
	claim := func(h *history.History, alter func(*proof.VerifyTranscript)) string {
		return (&impostor{answer: func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error) {
			tr := proof.VerifyTranscript{
				Cluster: testCluster, Nonce: nonce, Binding: binding, Head: s.Head.Hash[:], Ready: true,
				Root: s.Root.Raw, MeshCA: s.MeshCA().Certificate().Raw, TransactionKey: s.Secrets.TransactionKey(),
			}
			alter(&tr)
			key, evidence, err := proof.ProveVerify(f.c.Rooms().Self.PrivateKey(), tr)
			return &fealtyv1.VerifyClaim{
				Cluster: tr.Cluster, Ready: tr.Ready, Head: tr.Head, Root: tr.Root, MeshCa: tr.MeshCA,
				TransactionKey: tr.TransactionKey, Key: key, Evidence: evidence,
			}, h, err
		}}).serve(t)
	}
	underOld, err := ca.RenewMeshCA(old.Root, former.keys.RootCA(), s.MeshCA(), testCluster, time.Hour, f.clock())
	wantOnly(t, "certify", err, "")
	oldRoot := claim(f.loaded(), func(tr *proof.VerifyTranscript) {
		tr.Root, tr.MeshCA = old.Root.Raw,
			underOld.Certificate().Raw
	})
	for name, want := range map[string]recovery.Expected{
		"never seen": {Manifest: s.Manifest}, "seen before the reseed": seen, "seen after it": {Manifest: s.Manifest,
			Seen: now.Mark()},
	} {
		_, err := verifyAt(t, oldRoot, want)
		if err == nil || explain.Of(err).Code != explain.VerifyAuthority {
			t.Errorf("the root of before, %s: %v", name, err)
		}
	}
	oldKey := claim(f.loaded(), func(tr *proof.VerifyTranscript) {
		tr.TransactionKey = former.keys.Transaction().Public().(ed25519.PublicKey)
	})
	_, err = verifyAt(t, oldKey, seen)
	wantCode(t, err, explain.VerifyHistory)
	back := claim(oldHistory, func(tr *proof.VerifyTranscript) {
		tr.Head, tr.Root, tr.MeshCA = old.Head.Hash[:], old.Root.Raw, old.MeshCA().Certificate().Raw
		tr.TransactionKey = former.keys.Transaction().Public().(ed25519.PublicKey)
	})
	// Under the key that was seen its head does not verify any more.
	_, err = verifyAt(t, back, recovery.Expected{Manifest: s.Manifest, Seen: now.Mark()})
	wantCode(t, err, explain.VerifyHistory)
	_, err = verifyAt(t, back, recovery.Expected{Manifest: s.Manifest, Seen: found.Mark()})
	wantOnly(t, "who saw no more", err, "")
	_, err = verifyAt(t, claim(f.loaded(), func(*proof.VerifyTranscript) {}), seen)
	wantOnly(t, "the truth", err, "")
}

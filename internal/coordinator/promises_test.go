package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
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
		for name, how := range map[string]coordinatortest.LostAnswer{"it happened": coordinatortest.LostForGood,
			"it did not": coordinatortest.LostForGoodN} {
			t.Run(map[bool]string{true: "first set, ", false: "set, "}[first]+name, func(t *testing.T) {
				f := coordinatortest.NewFleet(t, func(c *coordinator.Config) { c.Log = slog.New(slog.DiscardHandler) })
				f.People = coordinatortest.NewPeople(t, "alice", "bob")
				before := f.C.Rooms().Head.State()
				if !first {
					coordinatortest.WantOnly(t, "first set", coordinatortest.SetPeople(f, ""), "")
					before = f.C.Rooms().Head.State()
				}
				f.Link.Lose(how)
				coordinatortest.WantCode(t, coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)),
					explain.StoreOutcomeUnknown)
				if got := f.C.Rooms().Head.State(); got != before {
					t.Fatalf("before anybody could tell it went to phase %s, index %d", got.Phase, got.Head.Index)
				}
				f.Link.Cut(nil)
				f.C.Rooms().Head.LookAgain()
				if how == coordinatortest.LostForGoodN {
					// Nothing came, and the next set goes on from where it was.
					f.AwaitState("the head of before",
						func(s *authority.State) bool {
							return s.Phase == before.Phase &&
								s.Head.Hash == before.Head.Hash
						})
					coordinatortest.WantOnly(t, "set again", coordinatortest.SetPeople(f,
						coordinatortest.MoreCoordinators(t)), "")
				}
				f.Await(authority.Ready)
				f.AwaitState("the head", func(s *authority.State) bool {
					return s.Phase == authority.Ready && s.Head.Index == before.Head.Index+1
				})
				s := f.C.Rooms().Head.State()
				if s.Head.Kind == history.KindRekey || s.MeshKey != s.Head.MeshCAKey ||
					s.Head.Previous != before.Head.Hash {
					t.Errorf("it is at index %d by %s, with mesh CA key %s", s.Head.Index, s.Head.Kind, s.MeshKey)
				}
				f.Member("after")
				coordinatortest.WantOrigins(t, f, "coordinator-1")
				if got := len(coordinatortest.Loaded(f).Links); got != int(s.Head.Index) {
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
	f, _ := coordinatortest.NewPeerFleet(t, 1, nil)
	release, err := f.C.Rooms().Moves.Turn.Take(f.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	defer release()
	s := f.C.Rooms().Head.State()
	mv := coordinatortest.Candidate(f, coordinatortest.MoreCoordinators(t), nil)
	seed := keyring.NewSeed()
	mv.NewSeed, mv.Secrets, mv.Link.Salt = true, coordinatortest.SecretsOf(seed, history.Salt{1}), history.Salt{1}
	f.C.Rooms().Secrets.Keys.Pend(mv)
	f.C.Rooms().Secrets.Keys.Settle(s.Head)
	if m := f.C.Rooms().Secrets.Keys.Memory(f.C.Rooms().Head.State()); m.Mesh(mv.Link.MeshCAKey) == nil ||
		m.Secrets(mv.Link.Salt) == nil ||
		!mv.Secrets.Same(coordinatortest.SecretsOf(seed, history.Salt{1})) {
		t.Error("the keys of a head that may come are gone")
	}
	other := mv.Link
	other.Hash[0] ^= 1
	other.Salt = s.Head.Salt
	f.C.Rooms().Secrets.Keys.Settle(other)
	if m := f.C.Rooms().Secrets.Keys.Memory(f.C.Rooms().Head.State()); m.Mesh(mv.Link.MeshCAKey) != nil ||
		m.Secrets(mv.Link.Salt) != nil ||
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
			f := coordinatortest.ReadyFleet(t, nil)
			before := f.C.Rooms().Head.State()
			f.Stop()
			f.Link.Lie(func(e store.Entry) store.Entry {
				if strings.HasPrefix(e.Key, sealed.Mesh(before.Head.Hash).Under()) {
					return harm(e)
				}
				return e
			})
			f.Start()
			f.Await(authority.Ready)
			s := f.C.Rooms().Head.State()
			if s.Head.Kind != history.KindRekey || s.Head.Previous != before.Head.Hash ||
				s.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
				s.MeshKey == before.MeshKey || s.MeshKey != s.Head.MeshCAKey || s.RootPin != before.RootPin {
				t.Errorf("it came back at index %d by %s, epoch %d", s.Head.Index, s.Head.Kind, s.Head.AuthorityEpoch)
			}
			coordinatortest.WantOrigins(t, f, "coordinator-1")
			f.Member("after")
			// What was sealed with the new head brings it back without a transition.
			f.Restart()
			f.AwaitState("the same head",
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
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	var later atomic.Int64
	config, sinceStart := f.Config, coordinator.SinceNow()
	r.Config = func(cfg *coordinator.Config) {
		if config != nil {
			config(cfg)
		}
		cfg.Machine.Elapsed = func() time.Duration { return sinceStart() + time.Duration(later.Load()) }
		cfg.Timing.SelfHealAfter = time.Hour
	}
	r.Start()
	r.AwaitHead(f)
	before := r.C.Rooms().Head.State()
	seen, err := coordinatortest.VerifyAt(t, r.Addr, recovery.Expected{Manifest: before.Manifest})
	coordinatortest.WantOnly(t, "verify", err, "")
	asked, answer := make(chan struct{}, 64), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(goOn)
	f.Faults.Arm("peer.before-reread", func() error {
		asked <- struct{}{}
		<-answer
		return coordinatortest.ErrCrash
	})
	r.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it is not prepared

	// As long as it cannot even look, it says that it is behind to who verifies it.
	release, err := r.C.Rooms().Moves.Turn.Take(r.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	coordinatortest.WantOnly(t, "set", coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)), "")
	if s := r.C.Rooms().Head.State(); s != before {
		t.Fatalf("it is at index %d", s.Head.Index)
	}
	want := recovery.Expected{Manifest: f.C.Rooms().Head.State().Manifest, Seen: seen.Mark()}
	_, err = coordinatortest.VerifyAt(t, r.Addr, want)
	coordinatortest.WantCode(t, err, explain.RecoveryMode)
	if claim, _, err := r.C.Rooms().Shown.Verification.Claim(r.Context(), make([]byte, proof.NonceBytes), make([]byte,
		32)); err != nil ||
		claim.GetReady() || len(claim.GetMeshCa()) > 0 {
		t.Errorf("behind the head it claims %v, %v", claim, err)
	}
	release()

	<-asked
	if s := r.C.Rooms().Head.State(); s != before {
		t.Errorf("while it asks its peers it is in phase %s: %s", s.Phase, s.Reason)
	}
	short, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
	defer cancel()
	if s, err := r.C.Rooms().Head.InForce(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call is decided on %v, %v", s, err)
	}
	later.Store(int64(authority.FollowPatience))
	goOn()
	r.Await(authority.Recovery)
	if _, err := r.C.Rooms().Head.Ready(); !errors.Is(err, explain.RecoveryMode) {
		t.Errorf("a call is decided on %v", err)
	}
	if ok, phase := r.C.Health().Readiness().OK, r.C.Health().Phase; ok || phase != authority.Recovery {
		t.Error("it says that it is ready")
	}
	f.Faults.Disarm("peer.before-reread")
	r.AwaitHead(f)
}

// A store that went back, and owners who do not know: their shares bring back no history
// that this coordinator has seen more of, and the head stays where it is.
func TestOwnersBringNoOlderHistoryBack(t *testing.T) {
	t.Parallel()
	d, p := coordinatortest.OwnedDesk(t, "")
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	old := d.Store.Snapshot()
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	newest := d.Store.Snapshot()
	d.Store.Revert(old)
	d.Restart()
	coordinatortest.WantPhase(d, "recovery", "")
	head := coordinatortest.MustHead(t, d)
	if _, err := coordinatortest.BringShare(d, alice); err != nil {
		t.Fatal(err)
	}
	_, err := coordinatortest.BringShare(d, bob)
	coordinatortest.WantOnly(t, "bring", err, explain.HistoryInvalid)
	if !errors.Is(err, history.ErrRollback) {
		t.Errorf("refused for another reason: %v", err)
	}
	coordinatortest.WantPhase(d, "recovery", "")
	if now := coordinatortest.MustHead(t, d); now.Hash != head.Hash {
		t.Errorf("the head moved to index %d", now.Index)
	}
	// The store shows the newest again: the same owners bring it back.
	d.Store.Revert(newest)
	d.LookAgain()
	coordinatortest.BringBoth(t, d, alice, bob)
	coordinatortest.WantOneKeyPerEpoch(t, d)
}

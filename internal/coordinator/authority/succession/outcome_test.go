package succession_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
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
				before := f.State()
				if !first {
					coordinatortest.WantOnly(t, "first set", coordinatortest.SetPeople(f, ""), "")
					before = f.State()
				}
				f.Link.Lose(how)
				coordinatortest.WantCode(t, coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)),
					errcode.StoreOutcomeUnknown)
				if got := f.State(); got != before {
					t.Fatalf("before anybody could tell it went to phase %s, index %d", got.Phase, got.Head.Index)
				}
				f.Link.Cut(nil)
				f.C.Parts().Head.LookAgain()
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
				s := f.State()
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
	release, err := f.C.Parts().Moves.Turn.Take(f.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	defer release()
	s := f.State()
	mv := coordinatortest.Candidate(f, coordinatortest.MoreCoordinators(t), nil)
	seed := keyring.NewSeed()
	mv.NewSeed, mv.Secrets, mv.Link.Salt = true, coordinatortest.SecretsOf(seed, history.Salt{1}), history.Salt{1}
	f.C.Parts().Secrets.Keys.Pend(mv)
	f.C.Parts().Secrets.Keys.Settle(s.Head)
	if m := f.C.Parts().Secrets.Keys.Memory(f.State()); m.Mesh(mv.Link.MeshCAKey) == nil ||
		m.Secrets(mv.Link.Salt) == nil ||
		!mv.Secrets.Same(coordinatortest.SecretsOf(seed, history.Salt{1})) {
		t.Error("the keys of a head that may come are gone")
	}
	other := mv.Link
	other.Hash[0] ^= 1
	other.Salt = s.Head.Salt
	f.C.Parts().Secrets.Keys.Settle(other)
	if m := f.C.Parts().Secrets.Keys.Memory(f.State()); m.Mesh(mv.Link.MeshCAKey) != nil ||
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
			before := f.State()
			f.Stop()
			f.Link.Lie(func(e store.Entry) store.Entry {
				if strings.HasPrefix(e.Key, sealed.Mesh(before.Head.Hash).Under()) {
					return harm(e)
				}
				return e
			})
			f.Start()
			f.Await(authority.Ready)
			s := f.State()
			if s.Head.Kind != history.KindRekey || s.Head.Previous != before.Head.Hash ||
				s.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
				s.MeshKey == before.MeshKey || s.MeshKey != s.Head.MeshCAKey || s.RootPin != before.RootPin {
				t.Errorf("it came back at index %d by %s, epoch %d", s.Head.Index, s.Head.Kind, s.Head.AuthorityEpoch)
			}
			coordinatortest.WantOrigins(t, f, "coordinator-1")
			f.Member("after")
			// The copy sealed with the new head brings it back without a transition.
			f.Restart()
			f.AwaitState("the same head",
				func(now *authority.State) bool { return now.Phase == authority.Ready && now.Head.Hash == s.Head.Hash })
		})
	}
}

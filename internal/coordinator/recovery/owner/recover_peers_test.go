package owner_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
)

// An owner whose share is the last one finds a coordinator that is ready at that very
// head: it wins, and nothing is written. With --force it is not asked: a new mesh CA key
// is made, in the next epoch, and the ready one follows to it.
func TestReadyPeerWinsOverOwners(t *testing.T) {
	t.Parallel()
	for name, force := range map[string]bool{"asked": false, "overridden": true} {
		t.Run(name, func(t *testing.T) {
			f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
			r := rs[0]
			before := f.State().Head
			f.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it gives nothing yet
			r.Start()
			r.Await(authority.Recovery)
			// From here on it would. The loop that looks for peers waits for the share.
			r.Faults.Arm("recover.after-store", func() error {
				f.Faults.Disarm("peer.before-reread")
				return nil
			})
			got, err := coordinatortest.BringTo(t, r.Addr, f.People.ShareFile(f.Store, "alice"),
				recovery.Options{Force: force})
			coordinatortest.WantOnly(t, "bring", err, "")
			s := r.State()
			if !got.Recovered || s.Phase != authority.Ready || got.Head != s.Head.Hash {
				t.Fatalf("%+v, and it is %v", got, s.Phase)
			}
			via := func(how string) int {
				return len(slices.DeleteFunc(coordinatortest.Audited(f, transition.ActionSeedReceived),
					func(e record.AuditEntry) bool { return e.Fields["via"] != how }))
			}
			given := len(coordinatortest.Audited(f, "seed.given"))
			if !force && (s.Head.Hash != before.Hash || given != 1 || via("peer") != 1 || via("owners") != 0) {
				t.Errorf("the head is %d by %s, the seed was given %d times, and came %d times from a peer and %d "+
					"times from owners", s.Head.Index, s.Head.Kind, given, via("peer"), via("owners"))
			}
			if force && (s.Head.Previous != before.Hash || s.Head.Kind != history.KindRekey ||
				s.Head.AuthorityEpoch != before.AuthorityEpoch+1 || given != 0 || via("owners") != 1) {
				t.Errorf("the head is %d by %s, the seed was given %d times, and came %d times from owners",
					s.Head.Index, s.Head.Kind, given, via("owners"))
			}
			f.AwaitHead(r)
			if a := f.State(); a.MeshKey != s.MeshKey || a.MeshKey != s.Head.MeshCAKey {
				t.Errorf("mesh CA keys %s and %s, the head names %s", a.MeshKey, s.MeshKey, s.Head.MeshCAKey)
			}
			coordinatortest.WantOrigins(t, f, "coordinator-1", "coordinator-2")
		})
	}
}

// Shares of the owners of before a reshare are refused by their names, whichever of
// several coordinators they are brought to and whoever put them into the store; those of
// now, brought to different ones, bring the seed back.
func TestSharesOfBeforeAReshareOverReplicas(t *testing.T) {
	t.Parallel()
	d, p, others := lostDesk(t)
	old := make(map[string]keyring.ShareFile)
	for _, n := range p.Names {
		old[n] = p.ShareFile(d.Store, n)
	}
	coordinatortest.BringBoth(t, d, old["alice"], old["bob"])
	next := coordinatortest.NewPeople(t, "alice", "bob", "dave")
	if _, err := coordinatortest.Reshare(d, next.Seed(2, "")); err != nil {
		t.Fatal(err)
	}
	epoch := d.State().Head.AuthorityEpoch
	d.Restart()
	for i, c := range others {
		others[i] = againAt(d, c)
	}
	for _, c := range append([]*coordinator.Coordinator{d.C}, others...) {
		for owner, want := range map[string]errcode.Code{"alice": errcode.ShareOld, "bob": errcode.ShareOld,
			"carol": errcode.ShareNoOwner} {
			_, err := coordinatortest.BringAt(t, c, old[owner])
			coordinatortest.WantOnly(t, owner, err, want)
			if got := errcode.Of(err).Fields["owner"]; got != owner {
				t.Errorf("%s refused the share of %q, which was that of %s", d.Dir(c), got, owner)
			}
		}
	}
	// A thief who writes the store encrypts an old share to the attempt itself.
	two := others[0]
	g := two.Parts().Secrets.OwnerRecovery.Current()
	d.Store.Write(owner.Key(g.ID, "bob"), coordinatortest.SentShare(t, g.Recipient(), g.ID[:],
		coordinatortest.Cluster,
		"bob", old["bob"].Share))
	if got, err := coordinatortest.BringAt(t, d.C, next.ShareFile(d.Store, "alice")); err != nil || got.GetRecovered() {
		t.Fatalf("alice: %v, %v", got, err)
	}
	coordinatortest.WantOnly(t, "go on", two.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
	wantPhaseOf(t, two, "recovery")
	if got := two.Parts().Secrets.OwnerRecovery.Current().Brought(); !slices.Equal(got,
		[]string{"alice"}) {
		t.Errorf("after an old share was put beside it: %v", got)
	}
	if got, err := coordinatortest.BringAt(t, two, next.ShareFile(d.Store, "dave")); err != nil || !got.GetRecovered() {
		t.Fatalf("dave: %v, %v", got, err)
	}
	d.C = two
	if got := d.State().Head; got.AuthorityEpoch != epoch+1 || got.Reason != "recovered by alice, dave" {
		t.Errorf("the head is %+v", got)
	}
	coordinatortest.WantOneKeyPerEpoch(t, d)
}

// An owner who brings the share that is missing does not wait until a round of asking
// peers is over: one that would go on for ever gives way, and the last look at peers, all of which swallow
// everything, ends by itself.
func TestOwnersDoNotWaitForPeers(t *testing.T) {
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	file := f.People.ShareFile(f.Store, "alice")
	holes, _ := coordinatortest.BlackHoles(t, peer.MaxPeers)
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = holes }
	f.Stop()
	r.Start()
	r.Await(authority.Recovery)
	change := r.C.Parts().Moves.Turn
	release, err := change.Take(r.Context())
	coordinatortest.WantOnly(t, "turn", err, "")
	asking, asked := change.Asking(r.Context()) // which nothing ends but an owner, or the test
	var round sync.WaitGroup
	defer round.Wait()
	round.Go(func() {
		<-asking.Done()
		asked()
		release()
	})
	got, err := coordinatortest.BringTo(t, r.Addr, file, recovery.Options{})
	coordinatortest.WantOnly(t, "bring", err, "")
	if !got.Recovered {
		t.Errorf("it is not back: %+v", got)
	}
}

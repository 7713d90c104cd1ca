package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// Real coordinators on one store, with real connections and keys, through random
// schedules of changes, crashes at their failure points, lost answers of the swap, and
// stops: what package decide promises holds for what they did, as store, history and
// audit log show it and as their states were seen; and at the end each of them is at
// the head.
func TestReplicaSchedules(t *testing.T) {
	t.Parallel()
	first := testlane.Seed(t)
	for seed := first; seed < first+testlane.Rounds[uint64](1, 500); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newReplicaSchedule(t, seed).run()
		})
	}
}

// replicaSchedule is one run of a fleet.
type replicaSchedule struct {
	t      *testing.T
	rng    *rand.Rand
	all    []*coordinatortest.Fleet
	up     []bool
	keeper bool

	mu    sync.Mutex
	seen  []seenState // guarded by mu
	stops []func()    // end who watches a coordinator, by its number
}

// seenState is what a coordinator served at one time.
type seenState struct {
	who   int
	head  history.Link
	chain history.Hash // of the head before
	mesh  identity.KeyID
}

func newReplicaSchedule(t *testing.T, seed uint64) *replicaSchedule {
	x := &replicaSchedule{t: t, rng: rand.New(rand.NewPCG(seed, 11))}
	x.keeper = x.rng.IntN(3) == 0
	f := coordinatortest.NewFleet(t, func(cfg *coordinator.Config) {
		cfg.Timing.SelfHealAfter = 300 * time.Millisecond
		cfg.Log = slog.New(slog.DiscardHandler)
	})
	x.all = []*coordinatortest.Fleet{f}
	for range 2 {
		x.all = append(x.all, coordinatortest.NewReplica(t, f))
	}
	f.People = coordinatortest.NewPeople(t, "alice")
	x.up, x.stops = make([]bool, len(x.all)), make([]func(), len(x.all))
	x.up[0] = true
	x.watch(0)
	if err := x.set(0, ""); err != nil {
		t.Fatal(err)
	}
	for i := range x.all[1:] {
		x.start(i + 1)
	}
	return x
}

// set asks coordinator i to set a manifest.
func (x *replicaSchedule) set(i int, extra string) error {
	r := x.all[i]
	m := r.Manifest(extra)
	if !x.keeper {
		m = coordinatortest.WithSeed(m, x.all[0].People.Seed(1, ""))
	}
	return r.Set(m)
}

// watch notes every state of coordinator i, until it is stopped.
func (x *replicaSchedule) watch(i int) {
	c := x.all[i].C
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := c.Parts().Head.Changed()
			if s := c.Parts().Head.State(); s.Phase == authority.Ready {
				x.mu.Lock()
				x.seen = append(x.seen, seenState{i, s.Head, s.Head.Previous, s.MeshCA().KeyID()})
				x.mu.Unlock()
			}
			select {
			case <-changed:
			case <-stop:
				return
			}
		}
	}()
	x.stops[i] = func() { close(stop); <-done }
}

func (x *replicaSchedule) start(i int) {
	x.all[i].Start()
	x.up[i] = true
	x.watch(i)
}

// kill ends coordinator i, unless it is the last one with a seed and no keeper has it.
func (x *replicaSchedule) kill(i int) {
	others := x.keeper
	for j := range x.all {
		others = others || j != i && x.up[j] && x.all[j].State().Ready() != nil
	}
	if !x.up[i] || !others {
		return
	}
	x.stops[i]()
	x.all[i].Kill()
	x.up[i] = false
}

func (x *replicaSchedule) step() {
	i := x.rng.IntN(len(x.all))
	r := x.all[i]
	if !x.up[i] {
		x.start(i)
		return
	}
	switch x.rng.IntN(12) {
	case 0, 1:
		_ = x.set(i, "") // perhaps the same manifest again
	case 2:
		_ = x.set(i, coordinatortest.CoordinatorEntry(x.t, 9)) // authority moves
	case 3:
		_ = x.rekey(i)
	case 4: // two at once
		var g sync.WaitGroup
		for j := range x.all {
			if x.up[j] {
				g.Go(func() { _ = x.rekey(j) })
			}
		}
		g.Wait()
	case 5, 6, 7: // one that dies at a failure point
		points := []string{"set.before-swap", "set.after-swap", "rekey.before-swap", "adopt.begin",
			"adopt.before-identity", "peer.before-reread", "peer.before-audit"}
		point := points[x.rng.IntN(len(points))]
		r.Faults.FailNext(point, 1+x.rng.IntN(2), coordinatortest.ErrCrash)
		_ = x.rekey(i)
		if x.rng.IntN(2) == 0 {
			x.kill(i)
		}
		r.Faults.Disarm(point)
	case 8, 9: // the answer of the swap is lost
		r.Link.Lose([]coordinatortest.LostAnswer{coordinatortest.LostApplied, coordinatortest.LostDropped,
			coordinatortest.LostForGood, coordinatortest.LostForGoodN}[x.rng.IntN(4)])
		_ = x.rekey(i)
		if x.rng.IntN(2) == 0 {
			x.kill(i)
		}
		r.Link.Lose(coordinatortest.Answered)
		r.Link.Cut(nil)
	case 10:
		x.kill(i)
	default:
		time.Sleep(time.Duration(x.rng.IntN(30)) * time.Millisecond) // let the loops do something
	}
}

// rekey makes a new mesh CA key at coordinator i, if it is ready.
func (x *replicaSchedule) rekey(i int) error {
	c := x.all[i].C
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	release, err := c.Parts().Moves.Turn.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	s, err := c.Parts().Head.Ready()
	if err != nil {
		return err
	}
	_, err = c.Parts().Moves.Succession.Rekey(ctx, s, "test", "test", nil)
	return err
}

func (x *replicaSchedule) run() {
	for range 14 {
		x.step()
	}
	for i, r := range x.all {
		r.Link.Lose(coordinatortest.Answered)
		r.Link.Cut(nil)
		if !x.up[i] {
			x.start(i)
		}
	}
	// They come to one head, which no human helps them to.
	for _, r := range x.all {
		r.Await(authority.Ready)
	}
	x.settle()
	for _, stop := range x.stops {
		stop()
	}
	x.check()
}

// settle waits until all are ready at the head that the store shows.
func (x *replicaSchedule) settle() {
	wait.UntilNil(x.t, "all are ready at the head", func() error {
		head, _, err := x.all[0].C.Parts().Head.History().Head(context.Background())
		if err != nil {
			return err
		}
		var not []error
		for i, r := range x.all {
			if s := r.State(); s.Phase != authority.Ready || s.Head.Hash != head.Hash {
				phase, why := r.C.Phase()
				not = append(not, fmt.Errorf("coordinator %d is %s at index %d, and the head is %d: %s", i, phase,
					s.Head.Index, head.Index, why))
			}
		}
		return errors.Join(not...)
	})
}

// check looks at everything that they left.
func (x *replicaSchedule) check() {
	t, c := x.t, x.all[0].C
	v := coordinatortest.Verified(t, c)
	links := make(map[history.Hash]history.Link)
	for _, l := range v.Links() {
		links[l.Hash] = l
	}
	// I9, I10: what was served is in the history, with the key that it names.
	keys, epochs := make(map[uint64]identity.KeyID), make(map[identity.KeyID]uint64)
	for _, s := range x.seen {
		l, ok := links[s.head.Hash]
		if !ok {
			t.Errorf("coordinator %d served index %d (%v), which is not in the history", s.who, s.head.Index,
				s.head.Hash)
			continue
		}
		if s.mesh != l.MeshCAKey {
			t.Errorf("coordinator %d served index %d with key %v, which names %v", s.who, l.Index, s.mesh, l.MeshCAKey)
		}
		if k, ok := keys[l.AuthorityEpoch]; ok && k != s.mesh {
			t.Errorf("epoch %d was served with two keys", l.AuthorityEpoch)
		}
		if e, ok := epochs[s.mesh]; ok && e != l.AuthorityEpoch {
			t.Errorf("key %v was served under epochs %d and %d", s.mesh, e, l.AuthorityEpoch)
		}
		keys[l.AuthorityEpoch], epochs[s.mesh] = s.mesh, l.AuthorityEpoch
	}
	// I8: secrets went to coordinators, and what came from one was given by one.
	admitted := make(map[string]bool)
	for _, r := range x.all {
		admitted[r.C.EnrolmentKey()] = true
	}
	given := make(map[string]bool)
	for _, e := range coordinatortest.Audited(x.all[0], "seed.given") {
		if !admitted[e.Fields["key"]] {
			t.Errorf("the secrets were given to %s", e.Fields["key"])
		}
		given[e.Fields["head"]] = true
	}
	for _, e := range coordinatortest.Audited(x.all[0], transition.ActionSeedReceived, transition.ActionMeshReceived) {
		if e.Fields["via"] == "peer" && (!given[e.Fields["head"]] || !admitted[e.Fields["key"]]) {
			t.Errorf("%s received what nobody gave: %v", e.Actor, e.Fields)
		}
		if e.Fields["via"] == "keeper" && !x.keeper {
			t.Errorf("%s received from a keeper, and there is none", e.Actor)
		}
	}
	for _, e := range coordinatortest.Audited(x.all[0], "seed.created") {
		if !strings.HasSuffix(e.Actor, "/coordinator-1") {
			t.Errorf("%s made a seed", e.Actor)
		}
	}
}

package decide

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/test/testlane"
)

// Anything may fail at any time, in worlds of three to five coordinators: I4, I8, I9
// and I10 hold after each step, nobody ends stuck while a seed is in a memory, and
// somebody who is ready leads. The code of this package and of package leader
// decides.
//
// A schedule is 150 steps, each of them one of these (world.step), drawn from the seed;
// then all faults end (world.heal). Between steps every process takes its turn in
// leadership, and its calls of the store travel (world.leadTurns).
//
//	set                        rep.set begins a move: a manifest that adds a node, or lets
//	                           coordinators come and go, or a new seed; rep.goOn does the
//	                           next stage of it
//	the same manifest twice    rep.set with the manifest in force and a new key
//	forced recovery            rep.ownersCome with force: peers are not asked
//	crash at every step        rep.goOn crashes before each stage of a move; rep.crash and
//	                           rep.start at any other time
//	lost answer of the swap    rep.swap: it happened, or did not, or does later (swapLate)
//	lagging peer               rep.read shows an older head, of which a giver says that it
//	                           is behind; replies to requests of before come later
//	late and lost notices      rep.notice of any head that ever was; a notice that is lost
//	                           is none: rep.look finds the head, when its turn comes
//	late and lost messages     world.deliver in any order, twice, or not at all
//	a key that comes late      rep.leave: what is in force stays for reads for a while
//	a head that moves on       rep.adopt loses to who was first; what stays serves reads, and
//	while it is adopted        rep.certify certifies nobody under it
//	a store out of reach       rep.cut
//	keepers with a key each    rep.keyEvent: a key file is lost, restored, damaged, copied
//	                           from another machine, or another one; rep.seal seals
//	paused coordinators        rep.stopped has the clock go on, rep.asleep has not
//	takeovers, step-downs      by the cores, on clocks that run at 0.5 to 2 times the rate;
//	forced takeovers           rep.transfer hands over what another leads; rep.end stops one
//
// That each of them came about is counted, and printed with -v.
func TestSchedules(t *testing.T) {
	seed, broken, saw := firstBroken(testlane.Seed(t), testlane.Rounds[uint64](1_000, 5_000_000), sound)
	if broken != "" {
		var trace strings.Builder
		schedule(seed, sound, &trace)
		t.Fatalf("%s\nin schedule %d, which is the first with SEED=%[2]d:\n%s", broken, seed, trace.String())
	}
	for what, n := range saw {
		t.Logf("%9d %v", n, thing(what))
		if n == 0 && testlane.Enough(t) {
			t.Errorf("no schedule came by %v", thing(what))
		}
	}
}

// firstBroken runs n schedules, the first by first, and returns the first of those that were broken, and
// what all of them came by.
func firstBroken(first, n uint64, r rules) (seed uint64, broken string, saw [things]int) {
	var next atomic.Uint64
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				s := first + next.Add(1) - 1
				mu.Lock()
				stop := s >= first+n || broken != "" && s > seed
				mu.Unlock()
				if stop {
					return
				}
				w := schedule(s, r, nil)
				mu.Lock()
				if w.broken != "" && (broken == "" || s < seed) {
					seed, broken = s, w.broken
				}
				for i, n := range w.saw {
					saw[i] += n
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return seed, broken, saw
}

// Weaker protocols: the checks notice each. Those that others use, or used, are told in
// docs/explanation/recovery.md.
func TestSchedulesNoticeBugs(t *testing.T) {
	anyMesh := func(r *rep, key int) int {
		if r.meshHeld(key) == key && key != 0 {
			return key
		}
		return r.mesh
	}
	for _, tc := range []struct {
		name string
		want string // what is violated
		bug  func(*rules)
	}{
		{"the mesh CA key is made after the swap", "I9", func(r *rules) {
			r.keyLate, r.meshFor = true, anyMesh
			r.fits = func(w *world, _ *rep, t, seed, _, _ int) bool { return w.log[t].seed == seed }
		}},
		{"the mesh CA key is not compared with the head's", "I9", func(r *rules) {
			r.meshFor = anyMesh
			r.fits = func(w *world, _ *rep, t, seed, _, _ int) bool { return w.log[t].seed == seed }
		}},
		{"manifests are compared, and keys are not", "I9", func(r *rules) {
			r.fits = func(w *world, _ *rep, t, seed, _, theirs int) bool {
				return w.log[t].seed == seed && w.log[t].manifest == w.log[theirs].manifest
			}
			r.meshFor = func(r *rep, key int) int {
				if held := r.meshHeld(key); held != 0 {
					return held
				}
				for t := range r.w.log { // a head that names key
					if r.w.log[t].mesh == key && r.at >= 0 && r.w.log[t].manifest == r.w.log[r.at].manifest {
						return r.mesh
					}
				}
				return 0
			}
		}},
		{"recovery makes a key and writes no transition", "I9", func(r *rules) { r.inPlace = true }},
		{"an older head leads to recovery", "stops serving", func(r *rules) {
			r.judge = func(m Memory, seen history.Hash) Verdict {
				if v := Judge(m, seen); v != Older {
					return v
				}
				return Another
			}
		}},
		{"everybody is given the secrets", "I8", func(r *rules) {
			r.give = func(m Memory, stored, asked history.Hash, _ bool) Answer { return Give(m, stored, asked, true) }
		}},
		{"who is dismissed by a head is prepared for it", "I8", func(r *rules) {
			r.prepares = func(now, _ bool) bool { return now }
		}},
		{"the head is swapped without a look at it", "I10", func(r *rules) { r.blind = true }},
		{"nobody heals", "stuck", func(r *rules) { r.noHealing = true }},
		{"a write of a leader does not want its term", "I4", func(r *rules) { r.leadBlind = true }},
		{"a leader writes on after its lease, and does not want its term", "I4", func(r *rules) { r.leadsOn = true }},
		{"a write of a leader does not want its head", "I10", func(r *rules) { r.leadAnyHead = true }},
		{"who takes over does not wait for the lease", "gave a sign of life", func(r *rules) { r.noLease = true }},
		{"a takeover wants the entry alone", "gave a sign of life", func(r *rules) { r.termOnly = true }},
		{"a takeover wants the beat alone", "gave a sign of life", func(r *rules) { r.beatOnly = true }},
		{"a beat wants nothing", "beats under the term", func(r *rules) { r.blindBeat = true }},
		{"a step-down does not want the entry", "ends the term", func(r *rules) { r.blindStepDown = true }},
		{"nobody takes over from who is gone", "nobody leads", func(r *rules) { r.nobodyTakes = true }},
		{"an adoption that somebody was first with leads to recovery", "stops serving", func(r *rules) {
			r.stays = func(Memory, Head, Result) bool { return false }
		}},
		{"a head whose key is not here leads to recovery at once", "stops serving", func(r *rules) {
			r.lingers = func(Memory, Head, bool, time.Duration) bool { return false }
		}},
		{"what stays for reads while keys are looked for stays for ever", "serves reads at", func(r *rules) {
			r.lingers = func(m Memory, next Head, admitted bool, _ time.Duration) bool { return Lingers(m, next, admitted, 0) }
		}},
		{"it stays under another seed", "serves reads at", func(r *rules) {
			r.lingers = func(m Memory, next Head, admitted bool, lagged time.Duration) bool {
				next.Seed = m.Head().Seed
				return Lingers(m, next, admitted, lagged)
			}
		}},
		{"who is dismissed serves reads", "serves reads at", func(r *rules) {
			r.lingers = func(m Memory, next Head, _ bool, lagged time.Duration) bool { return Lingers(m, next, true, lagged) }
		}},
		{"what stays for reads certifies too", "certifies under", func(r *rules) {
			r.acts = func(p Phase, _ Verdict) bool { return p == Ready }
		}},
		{"a missing key is made, and seals over what another key opens", "opened the seed in force", func(r *rules) {
			r.oneCopy = true
			r.act = func(k Keeper) KeeperAct {
				switch {
				case k.Key == KeyMissing:
					return MakeKey
				case k.Key == KeyBroken:
					return RefuseMove
				case k.Opens && !k.NewSeed:
					return KeepCopies
				}
				return SealOwn
			}
		}},
		{"one copy for all keys of a keeper", "opened the seed in force", func(r *rules) { r.oneCopy = true }},
		{"a new seed is sealed under whatever key is here", "no key that opened", func(r *rules) {
			r.act = func(k Keeper) KeeperAct {
				switch {
				case k.NewSeed && k.Key == KeyMissing:
					return MakeKey
				case k.NewSeed && k.Key == KeyUsable:
					return SealOwn
				}
				return k.Act()
			}
		}},
		{"a coordinator that is late seals for an earlier head", "a dismissed keeper", func(r *rules) { r.lateSeal = true }},
		{"nobody sweeps", "a dismissed keeper", func(r *rules) { r.noSweep = true }},
		{"a keeper comes into force that sealed nothing", "its keeper sealed nothing", func(r *rules) {
			r.act = func(k Keeper) KeeperAct {
				if act := k.Act(); act != RefuseMove {
					return act
				}
				return KeepForeign
			}
		}},
		{"a prepared head is served before it is in force", "not in the history", func(r *rules) { r.early = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			buggy := sound
			tc.bug(&buggy)
			seed, broken, _ := firstBroken(0, 20_000, buggy)
			if broken == "" {
				t.Fatal("no schedule noticed")
			}
			if !strings.Contains(broken, tc.want) {
				t.Errorf("schedule %d: %s, want %s", seed, broken, tc.want)
			}
		})
	}
}

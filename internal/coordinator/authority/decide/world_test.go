package decide

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store/leader"
)

// A world is a few coordinators on one store, with a network, a keeper and owners, in
// which whatever can go wrong does. The coordinators decide by the code of this
// package; what they would do to store, keys and network is done to the model: a mesh
// CA key is a number, and its name is that number.
//
// After every step it checks, from outside and without that code, what package decide
// promises.
type world struct {
	rules rules
	rng   *rand.Rand
	trace *strings.Builder // nil: not wanted

	now       time.Duration
	reps      []*rep
	manifests []policy // by number
	log       []trans  // every transition that was made; the first is genesis
	latest    int      // the head in the store
	heads     []int    // all that were, oldest first
	msgs      []msg
	nextMesh  int
	nextSeed  int

	keepers          // what they sealed
	calm        bool // no faults any more
	meshOfEpoch map[int]int
	epochOfMesh map[int]int
	trustAt     int // the transition that the trust state is fitted to
	lead        leaderStore
	broken      string // what was violated first
	saw         [things]int
}

// thing is what schedules are to come by.
type thing int

const (
	movedHead thing = iota
	lostSwap        // with a conflict
	unknownSwap
	lateSwap
	fromPrepared
	fromPeer
	fromKeeper
	healed
	byOwners
	answeredBehind
	sawOlder
	heldSeedAtEnd
	tookOver
	tookHandedOver
	ledAgain
	steppedDown
	transferred
	resealed
	leaderWrite
	lateLeaderWrite
	leaderBehind
	stoodStill
	ledAtEnd
	sameAgain
	forced
	lostMessage
	twice
	lateNotice
	lostAdoption
	stayed
	lingered
	certified
	keyMade
	sealedBeside
	keptForeign
	refusedReseed
	stoppedSeal
	keyGone
	keyBack
	keyForgotten
	keeperDropped
	sweptCopies
	crashedAt // a stage: Make, and those after it
)

const things = crashedAt + thing(Done) + 1

func (t thing) String() string {
	if t >= crashedAt {
		return "crashes before " + Stage(t-crashedAt).String()
	}
	return [...]string{"moves of the head", "swaps that lost", "swaps without an answer", "swaps that came late", "adoptions of what was prepared",
		"recoveries from a peer", "from a keeper", "healings", "recoveries by owners", "answers behind", "looks at an older head", "ends with a seed in a memory",
		"takeovers after a lease", "takeovers of what was handed over", "takeovers after a restart", "step-downs", "transfers", "terms under a new seed",
		"writes of a leader", "writes of a leader that came late", "writes of a leader at an older head", "processes that stood still", "ends with a leader",
		"moves to the same manifest", "recoveries by force", "messages that were lost", "messages that came twice", "notices that came late",
		"adoptions that somebody else was first with", "states that stayed for reads", "states that stayed while keys were looked for", "certificates without a transaction",
		"keys of keepers that were made", "copies under one more key", "copies left to another machine", "reseeds without the key", "seals that came late",
		"key files that were lost", "key files that came back", "keys that were forgotten", "keepers that were dismissed", "sweeps that found copies"}[t]
}

// policy is a manifest.
type policy struct {
	admits uint16 // which coordinators
	keeper bool   // it names the keeper
}

// trans is a transition, in the history or not.
type trans struct {
	head     Head
	prev     int
	manifest int
	epoch    int
	mesh     int // the key that it names; 0 in a world that names none
	seed     int
}

// rep is one coordinator: what is in its memory, and what is on its disk.
type rep struct {
	part
	w    *world
	n    int
	seen int // on disk: the newest head that it adopted; -1: none
	disk     // of the keeper

	up         bool
	cut        bool // off the store
	phase      Phase
	at         int // the transition in force, or the last one that was; -1: none
	mesh       int // of at
	candidates []candidate
	opened     int // seed; 0: none
	search     Search
	shown      int           // the head that the store showed last; -1: none
	verdict    Verdict       // what that meant
	lagging    time.Duration // since when it meant another one
	looking    int           // the head that it asks peers about
	asking     int           // answers that are to come
	asked      time.Duration
	owners     bool // they brought the seed and wait for peers to be asked
	op         *op
}

// candidate is a move that may be in force, or may come to be.
type candidate struct {
	trans, mesh, seed int
	taken             bool // from a peer
}

// op is a move under way.
type op struct {
	move  Move
	base  int
	trans int
	mesh  int
	seed  int
	kind  history.Kind
	next  int // manifest
}

type msgKind int

const (
	request msgKind = iota
	reply
	prepared
	swapLate
)

// msg is something on its way.
type msg struct {
	kind     msgKind
	from, to int
	trans    int // what is asked for, given or prepared
	mesh     int
	seed     int // 0: none
	given    bool
}

// rules are the decisions of this package, or of one that has a bug.
type rules struct {
	judge     func(Memory, history.Hash) Verdict
	give      func(m Memory, stored, asked history.Hash, admitted bool) Answer
	take      func(m Memory, next Head, admitted bool) Answer
	prepares  func(a, b bool) bool
	stays     func(m Memory, next Head, ended Result) bool
	lingers   func(m Memory, next Head, admitted bool, lagged time.Duration) bool
	acts      func(p Phase, last Verdict) bool
	fits      func(w *world, r *rep, t, seed, mesh, theirs int) bool // theirs: the giver's head
	meshFor   func(r *rep, key int) int                              // the key in memory that is served for key; 0: none
	keyLate   bool                                                   // the mesh CA key is made after the swap
	inPlace   bool                                                   // recovery makes a key and writes no transition
	blind     bool                                                   // the swap does not compare the head
	noHealing bool
	early     bool // a prepared head is served before it is in force

	act      func(Keeper) KeeperAct
	oneCopy  bool // what a keeper seals takes the place of what is there
	lateSeal bool // it is sealed for a head that is not the one in the store any more
	noSweep  bool // what nobody may need is left in the store

	leadBlind     bool // a leader's write does not want its term
	leadsOn       bool // nor its lease
	leadAnyHead   bool // nor its head
	noLease       bool // who takes over does not wait for the lease
	termOnly      bool // a takeover does not want the beat that was read
	beatOnly      bool // nor the entry
	blindBeat     bool // a beat wants neither
	blindStepDown bool // a step-down does not want the entry
	nobodyTakes   bool // nobody takes over who was not first
}

var sound = rules{
	judge: Judge, give: Give, take: Take, prepares: Prepares, stays: Stays, lingers: Lingers, acts: Acts,
	fits: func(w *world, r *rep, t, seed, mesh, _ int) bool {
		return w.log[t].head.Fits(saltOf(seed), keyOf(mesh))
	},
	meshFor: (*rep).meshHeld,
	act:     Keeper.Act,
}

func hashOf(t int) (h history.Hash) {
	binary.BigEndian.PutUint32(h[:], uint32(t+1))
	return h
}
func transOf(h history.Hash) int { return int(binary.BigEndian.Uint32(h[:])) - 1 }
func saltOf(seed int) (s history.Salt) {
	binary.BigEndian.PutUint32(s[:], uint32(seed))
	return s
}
func seedOf(s history.Salt) int { return int(binary.BigEndian.Uint32(s[:])) }
func keyOf(mesh int) (k identity.KeyID) {
	binary.BigEndian.PutUint32(k[:], uint32(mesh))
	return k
}
func meshOf(k identity.KeyID) int { return int(binary.BigEndian.Uint32(k[:])) }

func newWorld(seed uint64, r rules) *world {
	rng := rand.New(rand.NewPCG(seed, 5))
	w := &world{
		rules: r, rng: rng, nextMesh: 1, nextSeed: 1,
		meshOfEpoch: map[int]int{}, epochOfMesh: map[int]int{},
	}
	n := 3 + rng.IntN(3)
	w.manifests = []policy{{1<<n - 1, rng.IntN(2) == 0}}
	w.lead.owner = map[uint64]int{}
	steady := rng.IntN(2) == 0
	for i := range n {
		r := &rep{w: w, n: i, seen: -1, at: -1, shown: -1, up: true}
		if r.rate = 0.5 + 1.5*rng.Float64(); steady {
			r.rate = 0.96 + 0.08*rng.Float64()
		}
		r.clock = time.Duration(rng.IntN(1e9))
		w.reps = append(w.reps, r)
	}
	// One set the first manifest; the others start.
	w.log = append(w.log, trans{prev: -1, epoch: 1, mesh: 1, seed: 1, head: Head{Hash: hashOf(0), Index: 1, Seed: saltOf(1), Mesh: keyOf(1)}})
	w.heads = []int{0}
	w.firstSealed()
	w.reps[0].opened = 1
	w.reps[0].boot()
	w.reps[0].adopt(0, 1)
	for _, r := range w.reps[1:] {
		r.start()
	}
	return w
}

func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%8v  "+format+"\n", append([]any{w.now}, args...)...)
	}
}

func (w *world) violated(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.say("VIOLATED: %s", w.broken)
	}
}

// chance is true in one of n cases, while there are faults.
func (w *world) chance(n int) bool { return !w.calm && w.rng.IntN(n) == 0 }

func (w *world) admits(manifest, n int) bool { return w.manifests[manifest].admits&(1<<n) != 0 }

// leads reports whether t goes back to old.
func (w *world) leads(t, old int) bool {
	for ; t >= 0; t = w.log[t].prev {
		if t == old {
			return true
		}
	}
	return false
}

// The memory of a coordinator.

func (r *rep) Phase() Phase { return r.phase }

func (r *rep) Head() Head {
	if r.at < 0 {
		return Head{}
	}
	return r.w.log[r.at].head
}

func (r *rep) Knows(h history.Hash) bool { return r.at >= 0 && r.w.leads(r.at, transOf(h)) }

func (r *rep) HoldsSeed(s history.Salt) bool { return r.holdsSeed(seedOf(s)) }

func (r *rep) holdsSeed(seed int) bool {
	return r.at >= 0 && r.w.log[r.at].seed == seed || r.opened == seed ||
		slices.ContainsFunc(r.candidates, func(c candidate) bool { return c.seed == seed })
}

func (r *rep) HoldsMesh(k identity.KeyID) bool { return r.w.rules.meshFor(r, meshOf(k)) != 0 }

func (r *rep) meshHeld(key int) int {
	if key != 0 && (r.mesh == key || slices.ContainsFunc(r.candidates, func(c candidate) bool { return c.mesh == key })) {
		return key
	}
	return 0
}

// The work of a coordinator.

func (r *rep) start() {
	*r = rep{part: r.part, w: r.w, n: r.n, seen: r.seen, disk: r.disk, up: true, phase: Recovery, at: -1, shown: -1, cut: r.cut}
	r.boot()
	if seed := r.w.rng.Uint64(); !r.w.calm {
		r.search.Random = rand.New(rand.NewPCG(seed, 1)).Float64
	}
}

func (r *rep) crash() {
	r.w.say("%d crashes", r.n)
	*r = rep{part: r.part, w: r.w, n: r.n, seen: r.seen, disk: r.disk, at: -1, shown: -1, cut: r.cut}
	r.core, r.stopped, r.asleep = nil, false, false
}

// adopt puts t into force with a mesh CA key, unless its manifest does not admit r, or
// somebody else is first with what belongs to it. That is a write that wants t to be the
// head, unless another coordinator made it already.
func (r *rep) adopt(t, mesh int) Result {
	w := r.w
	if !w.admits(w.log[t].manifest, r.n) {
		w.say("%d is not admitted at %d", r.n, t)
		r.phase = Recovery
		return Failed
	}
	if (w.trustAt != t && w.latest != t || w.chance(20)) && !w.rules.early {
		return r.lost(t, mesh)
	}
	w.trustAt = t
	w.say("%d adopts %d with key %d", r.n, t, mesh)
	if !r.holdsSeed(w.log[t].seed) {
		w.violated("%d serves %d without its seed", r.n, t)
	}
	if !slices.Contains(w.heads, t) {
		w.violated("%d serves %d, which is not in the history", r.n, t)
	}
	// I9
	epoch := w.log[t].epoch
	if other, ok := w.meshOfEpoch[epoch]; ok && other != mesh {
		w.violated("I9: epoch %d is served with keys %d and %d", epoch, other, mesh)
	}
	if other, ok := w.epochOfMesh[mesh]; ok && other != epoch {
		w.violated("I9: key %d is served under epochs %d and %d", mesh, other, epoch)
	}
	w.meshOfEpoch[epoch], w.epochOfMesh[mesh] = mesh, epoch
	if t == w.latest {
		w.reseal(w.log[t].seed)
		r.sweep()
	}
	r.phase, r.at, r.mesh, r.seen, r.opened, r.owners, r.asking = Ready, t, mesh, t, 0, false, 0
	r.shown, r.verdict = t, Same
	r.search = Search{Random: r.search.Random}
	r.candidates = slices.DeleteFunc(r.candidates, func(c candidate) bool { return Decided(w.log[c.trans].head, w.log[t].head) })
	return OK
}

// lost is the end of an adoption of t that somebody else was first with.
func (r *rep) lost(t, mesh int) Result {
	w := r.w
	w.say("%d loses the adoption of %d", r.n, t)
	w.saw[lostAdoption]++
	r.showed(r.shown, Another)
	if w.rules.stays(r, w.log[t].head, Conflict) {
		w.saw[stayed]++
		return Conflict
	}
	if r.phase == Ready && w.log[r.at].seed == w.log[t].seed && w.log[t].mesh == r.meshHeld(w.log[t].mesh) {
		w.violated("%d stops serving %d because somebody was first with %d", r.n, r.at, t)
	}
	r.phase, r.at, r.mesh = Recovery, t, mesh // what it holds it keeps
	return Conflict
}

// showed notes what the store showed, and what that means.
func (r *rep) showed(t int, means Verdict) {
	if means == Another && r.verdict != Another {
		r.lagging = r.w.now
	}
	r.shown, r.verdict = t, means
}

// leave has it give up its head while it looks elsewhere for the secrets of t, unless that
// stays for reads.
func (r *rep) leave(t int) {
	w, lagged := r.w, r.w.now-r.lagging
	if r.phase != Ready {
		return
	}
	next := w.log[t]
	admitted, sameSeed, late := w.admits(next.manifest, r.n), w.log[r.at].seed == next.seed, lagged >= FollowFor
	if w.rules.lingers(r, next.head, admitted, lagged) {
		w.saw[lingered]++
		if !admitted || !sameSeed || late {
			w.violated("%d serves reads at %d for %v after %d came: admitted %v, with the same seed %v", r.n, r.at, lagged, t, admitted, sameSeed)
		}
		return
	}
	if admitted && sameSeed && !late && r.meshHeld(next.mesh) == 0 {
		w.violated("%d stops serving %d because the key of %d is not here yet", r.n, r.at, t)
	}
	r.phase = Recovery
}

// certify has it certify somebody without a transaction, as in an outage of the store.
func (r *rep) certify() {
	w := r.w
	if !r.up || r.still() || !w.rules.acts(r.phase, r.verdict) {
		return
	}
	w.saw[certified]++
	if r.shown != r.at && w.leads(r.shown, r.at) {
		w.violated("%d certifies under %d, and the store showed it %d", r.n, r.at, r.shown)
	}
}

// keep keeps the secrets of a move.
func (r *rep) keep(o *op) {
	if len(r.candidates) < 8 && !slices.ContainsFunc(r.candidates, func(c candidate) bool { return c.trans == o.trans && !c.taken }) {
		r.candidates = append(r.candidates, candidate{o.trans, o.mesh, o.seed, false})
	}
}

// read returns the head as the store shows it, which may be an older one.
func (r *rep) read() (t int, ok bool) {
	if r.cut {
		return 0, false
	}
	w := r.w
	if w.chance(12) {
		return w.heads[w.rng.IntN(len(w.heads))], true
	}
	return w.latest, true
}

// look is one turn of the loop that follows the head.
func (r *rep) look() {
	if !r.up || r.still() || r.op != nil { // who moves the head looks when it is done
		return
	}
	seen, ok := r.read()
	if !ok {
		return
	}
	r.notice(seen)
}

// notice is what it does about a head that it was shown.
func (r *rep) notice(seen int) {
	w := r.w
	if !r.up || r.still() || r.op != nil {
		return
	}
	older := r.phase == Ready && r.at != seen && w.leads(r.at, seen)
	if older {
		w.saw[sawOlder]++
	}
	r.showed(seen, w.rules.judge(r, hashOf(seen)))
	if r.verdict != Another {
		if r.verdict == Same {
			r.sweep() // in time: the leader does
		}
		return
	}
	if older {
		w.violated("%d stops serving %d for its ancestor %d", r.n, r.at, seen)
	}
	if r.seen >= 0 && !w.leads(seen, r.seen) {
		r.phase = Recovery // a history that went back, or a fork
		return
	}
	head := w.log[seen].head
	if r.asking > 0 && r.looking == seen && w.now-r.asked < 2*time.Second {
		return // for answers
	}
	if r.asking > 0 {
		r.asking = 0
		r.askedPeers(Nothing)
		return
	}
	step, _ := r.search.Next(w.now, r, head, w.admits(w.log[seen].manifest, r.n))
	if step != Wait {
		w.say("%d on its way to %d: %v", r.n, seen, step)
	}
	if step != FromMemory {
		r.leave(seen)
	}
	switch step {
	case FromMemory:
		if slices.ContainsFunc(r.candidates, func(c candidate) bool { return c.trans == seen && c.taken }) {
			w.saw[fromPrepared]++
		}
		if r.adopt(seen, w.rules.meshFor(r, w.log[seen].mesh)) == Failed { // else it looks again at once
			r.search.Ended(w.now, FromMemory, Nothing)
		}
	case AskPeers:
		r.looking, r.asked, r.asking = seen, w.now, 0
		for _, p := range w.reps {
			if p != r {
				w.msgs = append(w.msgs, msg{kind: request, from: r.n, to: p.n, trans: seen})
				r.asking++
			}
		}
	case AskKeepers:
		if r.opensSeed(seen) {
			r.opened = w.log[seen].seed
			if w.mesh[seen][r.key] && r.adopt(seen, w.log[seen].mesh) == OK {
				w.saw[fromKeeper]++
				return
			}
		}
		r.search.Ended(w.now, AskKeepers, Nothing)
	case Rekey:
		w.saw[healed]++
		r.rekey(seen)
	}
}

// askedPeers goes on when none of them had the secrets of the head.
func (r *rep) askedPeers(f Found) {
	if !r.owners {
		r.search.Ended(r.w.now, AskPeers, f)
		return
	}
	r.owners = false
	r.rekey(r.looking)
}

// ownersCome bring the seed of the head; force is their word not to ask peers once
// more.
func (r *rep) ownersCome(force bool) {
	w := r.w
	seen, ok := r.read()
	if !r.up || r.still() || r.op != nil || r.phase == Ready || r.asking > 0 || !ok || r.seen >= 0 && !w.leads(seen, r.seen) || !w.admits(w.log[seen].manifest, r.n) {
		return
	}
	w.say("owners bring the seed of %d to %d, force %v", seen, r.n, force)
	r.opened = w.log[seen].seed
	w.saw[byOwners]++
	if force {
		w.saw[forced]++
		r.rekey(seen)
		return
	}
	r.owners, r.looking, r.asked = true, seen, w.now
	for _, p := range w.reps {
		if p != r {
			w.msgs = append(w.msgs, msg{kind: request, from: r.n, to: p.n, trans: seen})
			r.asking++
		}
	}
}

func (r *rep) rekey(seen int) {
	w := r.w
	switch {
	case w.rules.noHealing:
		r.search.Ended(w.now, Rekey, Nothing)
	case w.rules.inPlace:
		w.nextMesh++
		r.adopt(seen, w.nextMesh)
	default:
		r.op = &op{base: seen, kind: history.KindRekey, next: w.log[seen].manifest, seed: w.log[seen].seed}
	}
}

// set starts a change of the manifest, of one kind or another.
func (r *rep) set() {
	w := r.w
	if !r.up || r.still() || r.phase != Ready || r.op != nil {
		return
	}
	o := &op{base: r.at, kind: history.KindSet, next: w.log[r.at].manifest, seed: w.log[r.at].seed}
	next := w.manifests[o.next]
	switch w.rng.IntN(7) {
	case 0, 1: // the same manifest, with a new key
		o.kind = history.KindRekey
	case 2: // a new seed
		o.kind = history.KindReseed
		w.nextSeed++
		o.seed = w.nextSeed
	case 3, 4: // coordinators come and go, but not who sets
		next.admits = next.admits ^ 1<<w.rng.IntN(len(w.reps)) | 1<<r.n
	case 5: // the keeper comes or goes
		next.keeper = !next.keeper
	default: // a node is added: epoch and key stay
	}
	if o.kind == history.KindSet {
		w.manifests = append(w.manifests, next)
		o.next = len(w.manifests) - 1
	}
	r.op = o
}

// moves reports whether o begins an authority epoch.
func (o *op) moves(w *world) bool {
	return o.kind != history.KindSet || w.manifests[o.next].admits != w.manifests[w.log[o.base].manifest].admits
}

// goOn does the next stage of the move under way.
func (r *rep) goOn() {
	o, w := r.op, r.w
	if !r.up || r.still() || o == nil {
		return
	}
	stage := o.move.Stage()
	if w.chance(25) {
		w.saw[crashedAt+thing(stage)]++
		r.crash()
		return
	}
	w.say("%d moves the head from %d: %v", r.n, o.base, stage)
	switch stage {
	case Make:
		base := w.log[o.base]
		t := trans{prev: o.base, manifest: o.next, epoch: base.epoch, mesh: base.mesh, seed: o.seed}
		o.mesh = r.mesh
		if o.moves(w) {
			w.nextMesh++
			o.mesh = w.nextMesh
			t.mesh, t.epoch = o.mesh, base.epoch+1
			if w.rules.keyLate {
				t.mesh = 0 // it cannot be named yet
			}
		}
		o.trans = len(w.log)
		t.head = Head{Hash: hashOf(o.trans), Previous: base.head.Hash, Index: base.head.Index + 1, Seed: saltOf(t.seed), Mesh: keyOf(t.mesh)}
		w.log = append(w.log, t)
		o.move.Ended(OK)
	case Seal:
		o.move.Ended(r.seal(o))
	case Prepare:
		for _, p := range w.reps {
			if p != r && w.rules.prepares(w.admits(w.log[o.base].manifest, p.n), w.admits(o.next, p.n)) {
				w.msgs = append(w.msgs, msg{kind: prepared, from: r.n, to: p.n, trans: o.trans, mesh: o.mesh})
			}
		}
		o.move.Ended(OK)
	case Swap:
		o.move.Ended(r.swap(o))
	case Adopt:
		if o.seed != 0 && !r.holdsSeed(o.seed) {
			r.opened = o.seed
		}
		r.keep(o)
		o.move.Ended(r.adopt(o.trans, o.mesh))
	case Keep:
		r.keep(o)
		o.move.Ended(OK)
	case Drop:
		o.move.Ended(OK)
	case Done:
		if o.kind == history.KindRekey && (r.phase != Ready || r.verdict == Another) {
			r.search.Ended(w.now, Rekey, Nothing)
		}
		r.op = nil
	}
}

// swap asks the store for the new head, and settles by reading what stays unknown.
func (r *rep) swap(o *op) Result {
	w := r.w
	if r.cut {
		return Failed // it never left
	}
	fits := w.latest == o.base || w.rules.blind
	switch {
	case !fits:
		w.saw[lostSwap]++
		return Conflict
	case w.chance(8): // the answer is lost, and reading fails too
		w.saw[unknownSwap]++
		switch w.rng.IntN(3) {
		case 0:
			w.moveHead(r, o.base, o.trans)
		case 1:
			w.msgs = append(w.msgs, msg{kind: swapLate, from: r.n, to: r.n, trans: o.trans})
		}
		return Unknown
	}
	w.moveHead(r, o.base, o.trans)
	return OK
}

// moveHead is the store: it applies a swap.
func (w *world) moveHead(r *rep, base, t int) {
	if w.log[t].prev != w.latest {
		w.violated("I10: the head moves from %d to %d, whose parent is %d", w.latest, t, w.log[t].prev)
	}
	w.say("the head is %d now, by %d", t, r.n)
	w.saw[movedHead]++
	if w.log[t].manifest == w.log[base].manifest {
		w.saw[sameAgain]++
	}
	w.checkCopies(base, t)
	w.latest = t
	w.lead.revision++
	w.heads = append(w.heads, t)
}

// deliver brings a message to where it goes, or not.
func (w *world) deliver(m msg) {
	r := w.reps[m.to]
	if r.still() && m.kind != swapLate {
		w.msgs = append(w.msgs, m) // until it wakes
		return
	}
	switch m.kind {
	case swapLate:
		if w.latest == w.log[m.trans].prev {
			w.saw[lateSwap]++
			w.moveHead(r, w.latest, m.trans)
		}
	case request:
		answer := msg{kind: reply, from: m.to, to: m.from, trans: m.trans}
		if r.up {
			stored, ok := r.read()
			said := Stranger
			if ok {
				said = w.rules.give(r, hashOf(stored), hashOf(m.trans), r.at >= 0 && w.admits(w.log[r.at].manifest, m.from))
			}
			if said == Behind {
				w.saw[answeredBehind]++
			}
			if said == Given {
				answer.given, answer.mesh, answer.seed = true, r.mesh, w.log[r.at].seed
				w.say("%d gives %d the secrets of %d", r.n, m.from, r.at)
				if !w.admits(w.log[r.at].manifest, m.from) {
					w.violated("I8: %d gives %d, which its manifest does not admit, the secrets of %d", r.n, m.from, r.at)
				}
				if r.at != m.trans {
					answer.trans = r.at // as it would show itself
				}
			}
		}
		w.msgs = append(w.msgs, answer)
	case reply:
		if !r.up || r.asking == 0 || r.op != nil {
			return
		}
		r.asking--
		t := r.looking
		if m.given && w.rules.fits(w, r, t, m.seed, m.mesh, m.trans) {
			if again, ok := r.read(); ok && again == t {
				r.opened = m.seed
				r.candidates = append(r.candidates, candidate{t, m.mesh, m.seed, true})
				if r.adopt(t, m.mesh) == OK {
					w.saw[fromPeer]++
					return
				}
			}
		}
		if r.asking == 0 {
			r.askedPeers(Nothing)
		}
	case prepared:
		if r.up && w.rules.take(r, w.log[m.trans].head, r.at >= 0 && w.admits(w.log[r.at].manifest, m.from)) == Given && len(r.candidates) < 8 {
			w.say("%d holds key %d ready for %d", r.n, m.mesh, m.trans)
			if !w.admits(w.log[m.trans].manifest, r.n) || !w.admits(w.log[w.log[m.trans].prev].manifest, r.n) {
				w.violated("I8: %d is prepared for %d, which does not admit it, or follows what does not", r.n, m.trans)
			}
			seed := 0
			if r.holdsSeed(w.log[m.trans].seed) {
				seed = w.log[m.trans].seed
			}
			r.candidates = append(r.candidates, candidate{m.trans, m.mesh, seed, true})
			if w.rules.early && seed != 0 {
				r.adopt(m.trans, m.mesh)
			}
		}
	}
}

// step lets one thing happen.
func (w *world) step() {
	w.pass(time.Duration(w.rng.IntN(800)) * time.Millisecond)
	w.leadTurns()
	r := w.reps[w.rng.IntN(len(w.reps))]
	switch k := w.rng.IntN(112); {
	case k < 10:
		r.set()
	case k < 40:
		for range w.reps { // somebody who is at it
			if r.op != nil {
				break
			}
			r = w.reps[(r.n+1)%len(w.reps)]
		}
		r.goOn()
	case k < 58:
		r.look()
	case k < 82 && len(w.msgs) > 0:
		i := w.rng.IntN(len(w.msgs))
		m := w.msgs[i]
		if w.chance(10) { // it comes once more
			w.saw[twice]++
		} else {
			w.msgs = slices.Delete(w.msgs, i, i+1)
		}
		if w.chance(8) && m.kind != swapLate {
			w.saw[lostMessage]++
			return
		}
		w.deliver(m)
	case k < 86:
		head := w.heads[w.rng.IntN(len(w.heads))]
		if head != w.latest {
			w.saw[lateNotice]++
		}
		r.notice(head)
	case k < 87:
		r.crash()
	case k < 93:
		if !r.up {
			w.say("%d starts", r.n)
			r.start()
		}
	case k < 95:
		r.cut = !r.cut
	case k < 97:
		r.keyEvent()
	case k < 100:
		r.ownersCome(w.rng.IntN(2) == 0)
	case k < 102:
		if r.up && !r.still() {
			r.stopped, r.asleep = w.rng.IntN(2) == 0, true
			if r.stopped {
				r.asleep = false
			}
			w.saw[stoodStill]++
		}
	case k < 105:
		r.stopped, r.asleep = false, false
	case k < 106:
		r.transfer()
	case k < 107:
		r.end()
	case k < 111:
		r.certify()
	default:
		if r.core != nil && !r.still() {
			r.stepLead(leader.Noticed{})
		}
	}
}

// heal ends all faults, and says who is stuck although a seed is in a memory.
func (w *world) heal() {
	w.say("all is well from here on")
	w.calm = true
	for _, r := range w.reps {
		r.cut, r.stopped, r.asleep, r.broken = false, false, false, false
		if r.key == 0 {
			r.key = r.backup
		}
		if !r.up {
			r.start()
		}
	}
	for round := 0; round < 120 && w.broken == ""; round++ {
		w.fair()
		if w.settled() {
			break
		}
	}
	head := w.log[w.latest]
	seed := false
	for _, r := range w.reps {
		seed = seed || w.admits(head.manifest, r.n) && r.opensSeed(w.latest) || w.admits(head.manifest, r.n) && r.holdsSeed(head.seed)
	}
	if !seed {
		return // the owners have to come
	}
	w.saw[heldSeedAtEnd]++
	for _, r := range w.reps {
		if w.admits(head.manifest, r.n) && (r.phase != Ready || r.at != w.latest) {
			w.violated("%d is stuck: %v at %d, and the head is %d", r.n, r.phase, r.at, w.latest)
		}
	}
	// And nothing more happens.
	for range 20 {
		w.fair()
	}
	if w.log[w.latest].head.Hash != head.head.Hash {
		w.violated("the head moves on from %d to %d without a reason", transOf(head.head.Hash), w.latest)
	}
	w.soonLed()
	w.checkSwept()
}

// settled reports whether everybody who is admitted serves the head.
func (w *world) settled() bool {
	for _, r := range w.reps {
		if w.admits(w.log[w.latest].manifest, r.n) && (r.phase != Ready || r.at != w.latest || r.op != nil) {
			return false
		}
	}
	return len(w.msgs) == 0
}

// fair gives everybody a turn, and delivers everything.
func (w *world) fair() {
	w.pass(time.Second)
	w.leadTurns()
	for n := 0; len(w.lead.calls) > 0 && n < 3; n++ { // their answers, and what follows from them
		w.leadTurns()
	}
	for _, r := range w.reps {
		for r.op != nil {
			r.goOn()
		}
		r.look()
	}
	for n := 0; len(w.msgs) > 0 && n < 1000; n++ {
		m := w.msgs[0]
		w.msgs = slices.Delete(w.msgs, 0, 1)
		w.deliver(m)
	}
}

// schedule runs one world and returns what was violated.
func schedule(seed uint64, r rules, trace *strings.Builder) *world {
	w := newWorld(seed, r)
	w.trace = trace
	for range 150 {
		if w.step(); w.broken != "" {
			return w
		}
	}
	w.heal()
	return w
}

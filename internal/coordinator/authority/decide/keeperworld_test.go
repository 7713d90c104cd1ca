// Inside the package because the world is.

package decide

import (
	"maps"

	"github.com/fealty-io/fealty/internal/history"
)

// keepers is what the store holds that keepers sealed: copies by the id of their key. The
// manifests name one keeper, or none; its key is a file on each machine, which may be the
// same, another one, or none.
type keepers struct {
	seeds   map[int]map[int]int  // by seed and key: how many heads there were when it was written
	mesh    map[int]map[int]bool // by transition and key
	lost    map[int]map[int]bool // whose copies were forgotten under the head in force, by seed and key
	bare    map[int]bool         // transitions whose move found the seed in force sealed under no key
	nextKey int
}

// disk is what a coordinator's machine has of the keeper's key.
type disk struct {
	key    int  // 0: no file
	broken bool // it cannot be read
	backup int  // what its operator put away; 0: nothing
}

// firstSealed begins with what the first set left: the first machine has the key, and some
// others got a copy of its file, or have one of their own.
func (w *world) firstSealed() {
	w.keepers = keepers{seeds: map[int]map[int]int{}, mesh: map[int]map[int]bool{},
		lost: map[int]map[int]bool{}, bare: map[int]bool{}, nextKey: 1}
	if !w.names(0) {
		return
	}
	w.reps[0].key, w.reps[0].backup = 1, 1
	w.seeds[1], w.mesh[0] = map[int]int{1: 1}, map[int]bool{1: true}
	for _, r := range w.reps[1:] {
		switch w.rng.IntN(4) {
		case 0, 1:
			r.key, r.backup = 1, 1
		case 2:
			w.nextKey++
			r.key = w.nextKey
		}
	}
}

// names reports whether the manifest of t names the keeper.
func (w *world) names(t int) bool { return w.manifests[w.log[t].manifest].keeper }

// opensSeed reports whether the keeper on r's machine opens the seed of t.
func (r *rep) opensSeed(t int) bool {
	_, sealed := r.w.seeds[r.w.log[t].seed][r.key]
	return r.w.names(t) && r.key != 0 && !r.broken && sealed
}

// seal is the stage of a move that seals. It finds the store as it is; the code of this
// package decides.
func (r *rep) seal(o *op) Result {
	w := r.w
	failed := Failed
	if o.kind == history.KindRekey { // a keeper that is gone may be why it is done
		failed = OK
	}
	if !w.manifests[o.next].keeper {
		return OK
	}
	if r.cut {
		return failed
	}
	k := Keeper{NewSeed: o.kind == history.KindReseed, Proven: true}
	if w.names(o.base) {
		copies := w.seeds[w.log[o.base].seed]
		k.Copies = len(copies) > 0
		_, k.Own = copies[r.key]
	}
	switch {
	case r.broken:
		k.Key, k.Own = KeyBroken, false
	case r.key != 0:
		k.Key = KeyUsable
	}
	k.Opens = k.Own
	act := w.rules.act(k)
	w.bare[o.trans] = !k.Copies
	w.say("%d finds its keeper %+v: %v", r.n, k, act)
	switch act {
	case RefuseMove:
		if k.NewSeed && k.Copies {
			w.saw[refusedReseed]++
		}
		return failed
	case KeepForeign:
		w.saw[keptForeign]++
	case MakeKey:
		w.nextKey++
		r.key = w.nextKey
		w.saw[keyMade]++
		if r.backup == 0 { // who has one was told once
			r.backup = r.key
		}
	case SealOwn:
		if k.Copies && !k.Own {
			w.saw[sealedBeside]++
		}
	}
	if w.latest != o.base && !w.rules.lateSeal {
		w.saw[stoppedSeal]++
		return failed
	}
	if act == MakeKey || act == SealOwn {
		if w.rules.oneCopy {
			for other := range w.seeds[o.seed] {
				if other != r.key {
					w.unseal(o.seed, other, "was sealed over")
				}
			}
		}
		if w.seeds[o.seed] == nil {
			w.seeds[o.seed] = map[int]int{}
		}
		w.seeds[o.seed][r.key] = len(w.heads)
		if w.latest != o.base && !w.names(w.latest) && w.log[w.latest].seed == o.seed {
			w.violated("a dismissed keeper finds a copy that %d sealed for a head of before", r.n)
		}
	}
	if r.key != 0 && !r.broken {
		w.mesh[o.trans] = map[int]bool{r.key: true}
	}
	return OK
}

// unseal removes a copy. A machine's key still opens after what it opened before, unless
// the manifest dropped it, or somebody said that the key is lost.
func (w *world) unseal(seed, key int, why string) {
	if head := w.latest; w.log[head].seed == seed && w.names(head) {
		w.violated("key %d opened the seed in force, and does not any more: its copy %s", key, why)
	}
	delete(w.seeds[seed], key)
}

// checkCopies looks at what is sealed when the head moves: a key that opened the seed
// before opens the one after, and a keeper that is named was sealed by. A key that somebody
// said is lost counts as it did before: the move may have sealed under it already. Where the move found no copy, it
// made a key, and nobody had one to back up: a copy that came since then is of a move that lost against this one.
func (w *world) checkCopies(base, t int) {
	defer clear(w.lost) // no move that began before this head comes into force
	if !w.names(t) {
		if w.names(base) {
			w.saw[keeperDropped]++
		}
		return
	}
	before, after := w.seeds[w.log[base].seed], w.seeds[w.log[t].seed]
	if len(after) == 0 && len(w.lost[w.log[t].seed]) == 0 &&
		(w.log[t].seed != w.log[base].seed || w.log[t].manifest != w.log[base].manifest) {
		w.violated("%d comes into force, and its keeper sealed nothing", t)
	}
	if w.log[t].seed == w.log[base].seed || !w.names(base) || len(before) == 0 || w.bare[t] {
		return
	}
	for key := range after {
		if _, ok := before[key]; ok || w.lost[w.log[base].seed][key] {
			return
		}
	}
	w.violated("no key that opened the seed of %d opens that of %d", base, t)
}

// gone returns what nobody may need any more at the head, by seed and key.
func (w *world) gone() (gone [][2]int) {
	head := w.log[w.latest]
	for _, t := range w.heads {
		if seed := w.log[t].seed; seed != head.seed {
			for key := range w.seeds[seed] {
				gone = append(gone, [2]int{seed, key})
			}
		}
	}
	if !w.names(w.latest) {
		for key, at := range w.seeds[head.seed] {
			if at < len(w.heads) {
				gone = append(gone, [2]int{head.seed, key})
			}
		}
	}
	return gone
}

// sweep removes what nobody may need any more. It holds only while r is at the head.
func (r *rep) sweep() {
	w := r.w
	if r.cut || r.at != w.latest || w.rules.noSweep {
		return
	}
	gone := w.gone()
	if len(gone) > 0 {
		w.saw[sweptCopies]++
	}
	for _, x := range gone {
		w.unseal(x[0], x[1], "was swept")
	}
}

// checkSwept looks for copies that a dismissed keeper, or one with an old seed, would find
// when all is well.
func (w *world) checkSwept() {
	if w.broken == "" && len(w.gone()) > 0 {
		w.violated("a dismissed keeper finds copies: %v", w.gone())
	}
}

// keyEvent is what happens to key files.
func (r *rep) keyEvent() {
	w := r.w
	switch w.rng.IntN(6) {
	case 0:
		if r.key != 0 {
			w.saw[keyGone]++
		}
		r.key = 0
	case 1: // from the backup, whatever is there now
		if r.backup != 0 {
			w.saw[keyBack]++
			r.key = r.backup
		}
	case 2: // from another machine, as who adds a coordinator does
		if from := w.reps[w.rng.IntN(len(w.reps))]; from.key != 0 {
			r.key = from.key
		}
	case 3:
		r.broken = !r.broken
	case 4:
		w.forget()
	default: // of another cluster, by mistake
		w.nextKey++
		r.key = w.nextKey
	}
	w.say("%d has key %d, broken %v", r.n, r.key, r.broken)
}

// forget removes the copies under keys that are nowhere any more, on no disk and in no
// backup: an admin says so. It is of a keeper that the manifest in force names: a copy for one that a set
// is about to name is none of those that an admin sees.
func (w *world) forget() {
	if !w.names(w.latest) {
		return
	}
	seed := w.log[w.latest].seed
	held := make(map[int]bool)
	for _, r := range w.reps {
		held[r.key], held[r.backup] = true, true
	}
	for key := range maps.Clone(w.seeds[seed]) {
		if !held[key] {
			w.saw[keyForgotten]++
			delete(w.seeds[seed], key)
			if w.lost[seed] == nil {
				w.lost[seed] = make(map[int]bool)
			}
			w.lost[seed][key] = true
		}
	}
}

package health_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/test/testlane"
)

// A simulation is a few coordinators on one store that may go back, to an older revision of all
// that it holds: the trust state with its bans, and the config. Each coordinator decides
// by this package what that means; what it then does to the store is done to the model. A
// read begins at one step, sees the store at another, and is judged at a third. A write
// holds only while what it was decided on is still there.
//
// After every step, and when all is well again, it is checked from outside and without
// that code:
//
//   - A ban that was acknowledged, and that nobody lifted, is in force at every coordinator
//     that saw it. At the end it is in force at every coordinator that runs, or that one
//     has its alarm up.
//   - Config that was acknowledged is there at the end or was written over, or every
//     coordinator that can know better has its alarm up. One can unless the store had
//     passed what it saw by the time it looked: then the revision tells it nothing.
//   - Nobody writes to a store of which he knows that it lost something.
//   - A store that never went back alarms nobody.
type simulation struct {
	rng   *rand.Rand
	rules rules
	trace *strings.Builder // nil: not wanted
	now   time.Time

	cur     db
	dumps   []db
	wentTo  []uint64 // revisions that the store went back to, since the last restore
	lastWas uint64   // the revision that it had then
	reps    []*coord
	members []bundle // what each holds

	bans   map[string]ban    // acknowledged, and not lifted
	config map[string]record // acknowledged last
	unsure map[string]bool   // records and identities of which an answer was lost

	broken string
	saw    map[string]int
}

// db is what a store holds.
type db struct {
	revision, restored uint64
	counter, version   uint64 // of the trust state
	bans, unbans       map[string]uint64
	config             map[string]record
}

type record struct{ version, value uint64 }

// ban is one that was acknowledged: of which counter, and in which version.
type ban struct{ counter, version uint64 }

// bundle is what a coordinator signed: a trust state as members hold it.
type bundle struct {
	version, restored uint64
	bans              map[string]uint64
}

// coord is one coordinator.
type coord struct {
	n            int
	k            *health.Keeper
	small, trust health.Record // its files
	up, cut      bool
	ready        bool              // it compared all of the store since it started
	view         bundle            // in force
	refreshed    int               // how often it was put into force
	knows, wrote uint64            // the restore that it read all of the store under, and wrote so down
	had          map[string]ban    // that were in force since it started
	owes         map[string]record // config that the store lost, and that it saw
	claimed      bool              // another one says that it saw more, and cannot prove it
	calls        []call            // reads under way
	passed       bool              // the store had more than it saw when it looked, though it went back
	looks        bool              // the store went back, and it did not look since
}

// call is a read under way.
type call struct {
	began health.Seen
	read  bool // the store was read
	all   bool // of the trust state, else of the revision alone
	after int  // how often a view had been put into force when it began
	db    db
}

// rules are the decisions of this package, and those on them of who acts, or of a
// coordinator that has a bug.
type rules struct {
	read   func(k *health.Keeper, began, now health.Seen, at time.Time) *health.Loss
	at     func(k *health.Keeper, began, revision uint64, at time.Time) *health.Loss
	proof  func(p health.Proof, now *health.Trust, at time.Time) *health.Loss
	lose   func(k *health.Keeper, l *health.Loss)
	record func(r health.Record) health.Record // what of it is written down
	writes func(k *health.Keeper) bool         // it may change something
	late   bool                                // who reads takes what was seen after it, not before
	blind  bool                                // a write of the trust state does not want what it was made from
	alone  bool                                // nobody asks anybody what he saw
}

var sound = rules{
	read: (*health.Keeper).Read, at: (*health.Keeper).AtRevision, proof: health.Proof.Lost, lose: (*health.Keeper).Lose,
	record: func(r health.Record) health.Record { return r },
	writes: func(k *health.Keeper) bool { return k.Lost() == nil },
}

func (d db) clone() db {
	d.bans, d.unbans, d.config = maps.Clone(d.bans), maps.Clone(d.unbans), maps.Clone(d.config)
	return d
}

// seen is what a read of all of d shows.
func (d db) seen() health.Seen {
	t := &health.Trust{Counter: d.counter, Version: d.version, UnbansFrom: 1, Bans: maps.Clone(d.bans), Unbans: maps.Clone(d.unbans)}
	binary.BigEndian.PutUint64(t.Digest[:], d.counter)
	for i, who := range slices.Sorted(maps.Keys(d.bans)) { // enough of a digest
		t.Digest[8+i] = who[len(who)-1]
	}
	return health.Seen{Restored: d.restored, Revision: d.revision, Trust: t}
}

func newSimulation(seed uint64, r rules) *simulation {
	w := &simulation{rng: rand.New(rand.NewPCG(seed, 23)), rules: r, now: noon, bans: map[string]ban{}, config: map[string]record{}, unsure: map[string]bool{}, saw: map[string]int{}}
	w.cur = db{revision: 10, counter: 1, version: 10, bans: map[string]uint64{}, unbans: map[string]uint64{}, config: map[string]record{}}
	for n := range 2 + w.rng.IntN(2) {
		w.reps = append(w.reps, &coord{n: n, owes: make(map[string]record)})
		w.start(w.reps[n])
	}
	w.members = make([]bundle, 2)
	w.dumps = []db{w.cur.clone()}
	return w
}

func (w *simulation) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%5d  "+format+"\n", append([]any{w.cur.revision}, args...)...)
	}
}

func (w *simulation) violated(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.say("VIOLATED: %s", w.broken)
	}
}

func (w *simulation) chance(n int) bool { return w.rng.IntN(n) == 0 }

func (w *simulation) any() *coord { return w.reps[w.rng.IntN(len(w.reps))] }

// alarm reports whether x says that the store went back.
func (x *coord) alarm() bool { return x.k.Lost() != nil || x.claimed }

// start has x begin with what its files say.
func (w *simulation) start(x *coord) {
	*x = coord{n: x.n, k: new(health.Keeper), small: x.small, trust: x.trust, up: true, cut: x.cut, passed: x.passed, looks: x.looks, knows: x.wrote, wrote: x.wrote, had: make(map[string]ban), owes: x.owes}
	for name, want := range x.owes {
		if x.looks && want.version > x.small.Seen.Revision {
			delete(x.owes, name) // it did not write down that it saw it
		}
	}
	r := health.Join(x.small, x.trust)
	x.k.Resume(r)
	x.view = decodeBundle(r.Bundle)
	w.say("%d starts with revision %d, lost %v", x.n, r.Seen.Revision, r.Lost)
}

// save writes down what x saw: two files, and the process may end between them.
func (w *simulation) save(x *coord, whole bool) {
	small, trust := w.rules.record(x.k.Record()).Split()
	if x.trust = trust; whole || !w.chance(10) {
		x.small, x.wrote = small, x.knows
		return
	}
	w.saw["ends between two files"]++
	x.up = false
}

// lose is what x does about a loss that it found. That is written down at once.
func (w *simulation) lose(x *coord, loss *health.Loss) {
	w.say("%d: the store %v", x.n, loss)
	w.rules.lose(x.k, loss)
	w.save(x, true)
}

// begin begins a read.
func (w *simulation) begin(x *coord, all bool) {
	if len(x.calls) < 4 {
		x.calls = append(x.calls, call{began: x.k.Begin(), all: all, after: x.refreshed})
	}
}

// goOn has one read of x see the store, or be judged.
func (w *simulation) goOn(x *coord) {
	if len(x.calls) == 0 || x.cut {
		return
	}
	i := w.rng.IntN(len(x.calls))
	if c := &x.calls[i]; !c.read {
		c.read, c.db = true, w.cur.clone()
		return
	}
	c := x.calls[i]
	x.calls = slices.Delete(x.calls, i, i+1)
	w.judge(x, c)
}

// judge is what x does about what it read.
func (w *simulation) judge(x *coord, c call) (ok bool) {
	if c.db.restored != w.cur.restored { // a head of before: it reads again
		return false
	}
	x.looked(c)
	if w.rules.late {
		c.began = x.k.Begin()
	}
	if c.all {
		x.knows = c.db.restored
		if x.k.Restored(c.db.restored) {
			c.began, x.claimed = x.k.Begin(), false
		}
	}
	// A read of everything shows its revision, too.
	loss := w.rules.at(x.k, c.began.Revision, c.db.revision, w.now)
	if c.all && loss == nil {
		loss = w.rules.read(x.k, c.began, c.db.seen(), w.now)
	}
	if loss != nil {
		w.lose(x, loss)
	}
	if !c.all || loss != nil || x.k.Lost() != nil {
		return false
	}
	x.ready = true
	if c.after != x.refreshed {
		return true // a bundle comes of one read at a time: this one says nothing of a bundle since then
	}
	x.refreshed++
	if next := (bundle{c.db.version, c.db.restored, c.db.bans}); next.restored != x.view.restored || next.version >= x.view.version {
		x.view = next
		x.k.SawBundle(next.encode())
	}
	return true
}

// looked notes whether c could tell x that the store went back. One that began before x
// saw the newest of it could not, and x looks again.
func (x *coord) looked(c call) {
	if x.looks && c.began.Revision == x.k.Revision() {
		x.looks = false
		x.passed = x.passed || c.db.revision >= x.k.Revision()
	}
}

// fresh reads all of the store at once, as who is about to change something does.
func (w *simulation) fresh(x *coord) bool {
	c := call{began: x.k.Begin(), read: true, all: true, after: x.refreshed, db: w.cur.clone()}
	return w.judge(x, c)
}

// change makes a change of the store that was decided on what x read a moment ago.
func (w *simulation) change(x *coord, what string, edit func(*db) bool, done func(db)) {
	if !x.up || x.cut || !x.ready {
		return
	}
	if read := w.fresh(x); !w.rules.writes(x.k) || !read && x.k.Lost() == nil {
		return
	}
	if x.k.Lost() != nil {
		w.violated("%d changes a store of which it knows that it lost something", x.n)
	}
	base := w.cur.version
	next := w.cur.clone()
	if !edit(&next) {
		return
	}
	next.revision++
	if w.chance(8) && len(w.dumps) > 0 && w.chance(4) { // between the decision and the write
		w.goBack()
		if w.cur.version != base && !w.rules.blind {
			return // a conflict
		}
		if w.cur.version == base { // it is decided again on what is there: the same
			next = w.cur.clone()
			if !edit(&next) {
				return
			}
			next.revision++
		}
	}
	w.cur = next
	if w.chance(10) {
		w.saw["lost answers"]++
		w.say("%d: %s, and the answer is lost", x.n, what)
		w.unsure[what[strings.LastIndexByte(what, ' ')+1:]] = true
		return
	}
	if !w.fresh(x) { // it is acknowledged once it is in force here
		w.unsure[what[strings.LastIndexByte(what, ' ')+1:]] = true
		return
	}
	w.say("%d: %s", x.n, what)
	w.saw[what[:strings.IndexByte(what, ' ')]]++
	delete(w.unsure, what[strings.LastIndexByte(what, ' ')+1:])
	done(w.cur)
}

func (w *simulation) ban(x *coord) {
	who := fmt.Sprintf("data/%c", 'a'+rune(w.rng.IntN(5)))
	w.change(x, "ban of "+who, func(d *db) bool {
		if _, ok := d.bans[who]; ok {
			return false
		}
		d.counter++
		d.version = d.revision + 1
		d.bans[who] = d.counter
		delete(d.unbans, who)
		return true
	}, func(d db) { w.bans[who] = ban{d.bans[who], d.version} })
}

func (w *simulation) unban(x *coord) {
	who := fmt.Sprintf("data/%c", 'a'+rune(w.rng.IntN(5)))
	w.change(x, "unban of "+who, func(d *db) bool {
		of, ok := d.bans[who]
		if !ok {
			return false
		}
		d.counter++
		d.version = d.revision + 1
		delete(d.bans, who)
		d.unbans[who] = of
		delete(w.bans, who) // from here on it may be lifted
		for _, y := range w.reps {
			delete(y.had, who) // a store that goes back may give a later ban the same numbers
		}
		return true
	}, func(db) {})
}

func (w *simulation) put(x *coord) {
	name := fmt.Sprintf("q%d", w.rng.IntN(3))
	value := w.rng.Uint64()
	w.change(x, "put of "+name, func(d *db) bool {
		d.config[name] = record{d.revision + 1, value}
		return true
	}, func(d db) { w.config[name] = d.config[name] })
}

// beat is a write that tells of nothing, as a leader's sign of life.
func (w *simulation) beat() {
	for _, x := range w.reps {
		if x.up && !x.cut && x.looks && w.rng.IntN(8) > 0 {
			w.begin(x, false) // who follows the store is told at once that it is another one
			w.goOn(x)
			w.goOn(x)
		}
	}
	w.cur.revision++
}

// goBack has the store hold what it held once.
func (w *simulation) goBack() {
	d := w.dumps[w.rng.IntN(len(w.dumps))].clone()
	if d.revision >= w.cur.revision || d.restored != w.cur.restored {
		return
	}
	w.say("the store goes back to revision %d", d.revision)
	w.saw["stores that went back"]++
	w.wentTo, w.lastWas = append(w.wentTo, d.revision), max(w.lastWas, w.cur.revision)
	w.cur = d
	for _, x := range w.reps {
		x.looks = true
		saw, restored := x.small.Seen.Revision, x.wrote
		if x.up {
			saw, restored = x.k.Revision(), x.knows
		}
		if restored != w.cur.restored {
			continue // revisions from before the restore and after it are one to it: it forgets both with the restore
		}
		for name, want := range w.config {
			if want.version > d.revision && want.version <= saw {
				x.owes[name] = want
			}
		}
	}
}

// restore is what the signers do about it: it begins anew above all that was, and takes
// back the bans that somebody holds.
func (w *simulation) restore() {
	if !slices.ContainsFunc(w.reps, func(x *coord) bool { return x.up && x.k.Lost() != nil }) {
		return
	}
	w.saw["restores"]++
	w.cur.restored++
	w.cur.revision = max(w.cur.revision, w.lastWas) + 100
	w.cur.counter++
	w.cur.version = w.cur.revision
	hold := func(b bundle) {
		for who, of := range b.bans {
			if _, ok := w.cur.bans[who]; !ok && w.cur.unbans[who] < of {
				w.cur.bans[who] = w.cur.counter
			}
		}
	}
	for _, x := range w.reps {
		hold(decodeBundle(x.trust.Bundle))
		if x.up {
			hold(x.view)
		}
	}
	for _, b := range w.members {
		hold(b)
	}
	w.say("the signers restore it, with the bans of %v", slices.Sorted(maps.Keys(w.cur.bans)))
	// From here on what is there counts.
	w.config, w.unsure, w.wentTo, w.dumps, w.lastWas = maps.Clone(w.cur.config), map[string]bool{}, nil, nil, 0
	for who := range w.bans {
		if of, ok := w.cur.bans[who]; ok {
			w.bans[who] = ban{of, w.cur.version}
		} else {
			delete(w.bans, who) // whoever saw it is gone for good, or had not written it down
		}
	}
	for _, x := range w.reps {
		x.claimed, x.passed, x.looks = false, false, false
	}
}

func (b bundle) encode() []byte {
	return fmt.Appendf(nil, "%d %d %s", b.version, b.restored, strings.Join(slices.Sorted(maps.Keys(b.bans)), " "))
}

func decodeBundle(raw []byte) (b bundle) {
	b.bans = make(map[string]uint64)
	words := strings.Fields(string(raw))
	if len(words) < 2 {
		return b
	}
	b.version, _ = strconv.ParseUint(words[0], 10, 64)
	b.restored, _ = strconv.ParseUint(words[1], 10, 64)
	for _, who := range words[2:] {
		b.bans[who] = 1 << 40 // no record of an unban is as new
	}
	return b
}

// show has somebody show x a bundle, which the cluster signed, and a number.
func (w *simulation) show(x *coord, from string, b bundle, revision uint64) {
	if !x.up || x.cut || !x.ready || b.version == 0 || b.restored != w.cur.restored || x.view.restored != w.cur.restored {
		return
	}
	c := call{began: x.k.Begin(), read: true, all: true, after: x.refreshed, db: w.cur.clone()}
	w.judge(x, c)
	p := health.Proof{From: from, Version: b.version, Bans: slices.Sorted(maps.Keys(b.bans))}
	if loss := w.rules.proof(p, c.db.seen().Trust, w.now); loss != nil {
		w.lose(x, loss)
	}
	if (health.Claim{From: from, Value: revision}).Above(0, w.cur.revision) {
		x.claimed = true
	}
}

// ask has x ask the others what they saw.
func (w *simulation) ask(x *coord) {
	for _, y := range w.reps {
		if y != x && y.up && y.ready && !w.rules.alone {
			w.show(x, fmt.Sprintf("coordinator %d", y.n), y.view, y.k.Revision())
			x.claimed = x.claimed || y.k.Lost() != nil && y.k.Record().Seen.Restored == x.k.Record().Seen.Restored
		}
	}
}

// check looks at what is in force.
func (w *simulation) check() {
	for _, x := range w.reps {
		if x.up && x.alarm() && len(w.wentTo) == 0 && x.k.Record().Seen.Restored == w.cur.restored {
			w.violated("%d says that the store lost something (%v), and it never went back", x.n, x.k.Lost())
		}
		if !x.up || !x.ready || x.view.restored != w.cur.restored {
			continue
		}
		for who, of := range w.bans {
			_, ok := x.view.bans[who]
			switch {
			case ok && x.view.version >= of.version:
				x.had[who] = of
			case ok: // by an older ban
			case w.unsure[who]:
			case x.had[who] == of:
				w.violated("the ban of %s was acknowledged and in force at %d, and is not any more", who, x.n)
			}
		}
	}
}

// heal ends all faults, lets everybody look and ask, and compares.
func (w *simulation) heal() {
	w.say("all is well from here on")
	for _, x := range w.reps {
		if x.cut = false; !x.up {
			w.start(x)
		}
	}
	for range 3 {
		for _, x := range w.reps {
			for len(x.calls) > 0 {
				w.goOn(x)
			}
			w.fresh(x)
			x.ready = true
		}
		for _, x := range w.reps {
			w.ask(x)
			for i, b := range w.members {
				w.show(x, fmt.Sprintf("member %d", i), b, b.version)
			}
		}
		w.check()
	}
	for _, x := range w.reps {
		if x.alarm() {
			continue
		}
		for who, of := range w.bans {
			known := slices.ContainsFunc(w.members, func(b bundle) bool { return b.bans[who] >= of.counter && b.version >= of.version })
			known = known || slices.ContainsFunc(w.reps, func(y *coord) bool { return y.had[who] == of })
			if _, ok := x.view.bans[who]; !ok && known && !w.unsure[who] {
				w.violated("the ban of %s was acknowledged and is not in force at %d, which has no alarm up", who, x.n)
			}
		}
		for name, want := range w.config {
			if w.cur.config[name] == want || w.unsure[name] {
				continue
			}
			if x.owes[name] == want && !x.passed {
				w.violated("%s was acknowledged at version %d, which %d saw, and goes back to version %d in silence", name, want.version, x.n, w.cur.config[name].version)
			}
			w.saw["config that went back unseen"]++
		}
	}
}

func (w *simulation) step() {
	x := w.any()
	w.now = w.now.Add(time.Second)
	switch k := w.rng.IntN(60); {
	case k < 8:
		w.ban(x)
	case k < 11:
		w.unban(x)
	case k < 18:
		w.put(x)
	case k < 22:
		w.beat()
	case k < 28:
		if x.up {
			w.begin(x, w.chance(2))
		}
	case k < 40:
		if x.up {
			w.goOn(x)
		}
	case k < 44:
		if x.up {
			w.save(x, false)
		}
	case k < 46:
		if x.up {
			if w.chance(2) {
				w.save(x, false)
			}
			w.say("%d ends", x.n)
			x.up = false
		}
	case k < 50:
		if !x.up {
			w.start(x)
		}
	case k < 51:
		x.cut = !x.cut
	case k < 53:
		w.ask(x)
	case k < 55:
		i := w.rng.IntN(len(w.members))
		if x.up && x.ready && w.chance(2) && x.view.version > w.members[i].version {
			w.members[i] = bundle{x.view.version, x.view.restored, maps.Clone(x.view.bans)}
		} else {
			w.show(x, fmt.Sprintf("member %d", i), w.members[i], w.members[i].version)
		}
	case k < 57:
		w.dumps = append(w.dumps, w.cur.clone())
	case k < 58:
		if w.chance(2) && len(w.dumps) > 0 {
			w.goBack()
		}
	default:
		if w.chance(4) {
			w.restore()
		}
	}
	w.check()
}

func schedule(seed uint64, r rules, trace *strings.Builder) *simulation {
	w := newSimulation(seed, r)
	w.trace = trace
	for range 120 {
		if w.step(); w.broken != "" {
			return w
		}
	}
	w.heal()
	return w
}

// firstBroken runs n schedules, up to the first that is broken.
func firstBroken(first, n uint64, r rules) (seed uint64, broken string, saw map[string]int) {
	saw = make(map[string]int)
	for s := first; s < first+n; s++ {
		w := schedule(s, r, nil)
		for what, n := range w.saw {
			saw[what] += n
		}
		if w.broken != "" {
			return s, w.broken, saw
		}
	}
	return 0, "", saw
}

// A store may go back to anything, at any time: no ban that was acknowledged ends by
// it, and nothing of it is silent.
func TestSchedules(t *testing.T) {
	seed, broken, saw := firstBroken(testlane.Seed(t), testlane.Rounds[uint64](1_000, 5_000_000), sound)
	if broken != "" {
		var trace strings.Builder
		schedule(seed, sound, &trace)
		t.Fatalf("%s\nin schedule %d, which is the first with SEED=%[2]d:\n%s", broken, seed, trace.String())
	}
	for _, what := range []string{"ban", "unban", "put", "lost answers", "ends between two files", "stores that went back", "restores"} {
		t.Logf("%9d %s", saw[what], what)
		if saw[what] == 0 && testlane.Enough(t) {
			t.Errorf("no schedule came by %s", what)
		}
	}
	t.Logf("%9d %s", saw["config that went back unseen"], "config that went back unseen")
}

// Weaker rules: the checks notice each.
func TestSchedulesNoticeBugs(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		bug        func(*rules)
	}{
		{"what the trust state was is not compared", "the ban of", func(r *rules) {
			r.read = func(k *health.Keeper, began, now health.Seen, at time.Time) *health.Loss {
				k.Read(now, now, at)
				return nil
			}
			r.at = func(*health.Keeper, uint64, uint64, time.Time) *health.Loss { return nil }
		}},
		{"revisions are not compared", "in silence", func(r *rules) {
			r.at = func(k *health.Keeper, _, revision uint64, at time.Time) *health.Loss {
				k.AtRevision(0, revision, at)
				return nil
			}
			r.read = func(k *health.Keeper, began, now health.Seen, at time.Time) *health.Loss {
				began.Revision = 0
				return k.Read(began, now, at)
			}
		}},
		{"nothing is written down", "", func(r *rules) {
			r.record = func(health.Record) health.Record { return health.Record{} }
		}},
		{"what is lost is not written down", "", func(r *rules) {
			r.record = func(x health.Record) health.Record { x.Lost = nil; return x }
		}},
		{"a loss is forgotten at once", "in silence", func(r *rules) { r.lose = func(*health.Keeper, *health.Loss) {} }},
		{"who knows that the store lost something writes on", "changes a store", func(r *rules) {
			r.writes = func(*health.Keeper) bool { return true }
		}},
		{"what was seen is taken after the read", "never went back", func(r *rules) { r.late = true }},
		{"nobody asks what others saw, and proofs are not looked at", "the ban of", func(r *rules) {
			r.alone = true
			r.proof = func(health.Proof, *health.Trust, time.Time) *health.Loss { return nil }
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			buggy := sound
			tc.bug(&buggy)
			seed, broken, _ := firstBroken(0, 20_000, buggy)
			if broken == "" {
				t.Fatal("no schedule noticed")
			}
			t.Logf("schedule %d: %s", seed, broken)
			if !strings.Contains(broken, tc.want) {
				t.Errorf("schedule %d: %s, want %s", seed, broken, tc.want)
			}
		})
	}
}

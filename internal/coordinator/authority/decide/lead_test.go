package decide

import (
	"slices"
	"strconv"
	"time"

	"github.com/fealty-io/fealty/internal/store/leader"
)

// Leadership in a world. Every coordinator runs a core of package leader on a clock
// of its own, which runs fast or slow and stands still while the machine sleeps, and the
// store has the entry and the beat beside the head. Conditions are those of the
// coordinator's election: a leader's write holds at the term and at the head that it was
// made under, a takeover at entry, beat and head, a beat at all three, a step-down at
// the entry. Calls take any time, and are lost on the way there or back.
//
// Forged and replayed entries are the business of leadership's own TestOneLeads.

// Times of leadership here. A step of a world is up to 0.8 s.
const (
	worldLease = 4 * time.Second
	worldBeat  = time.Second
)

// leaderEntry is leader/term, and leaderBeat leader/beat, as the store has them.
type leaderEntry struct {
	version    uint64 // 0: there is none
	seed       int    // under whose key it is
	rep, life  int    // of who took over
	nonce      string
	lease      time.Duration
	handedOver bool
	to         string
}

type leaderBeat struct {
	version uint64
	nonce   string
	number  uint64
	lease   time.Duration
}

// leaderStore is what the store has of leadership, and what is known of it from outside.
type leaderStore struct {
	revision uint64
	entry    leaderEntry
	beat     leaderBeat
	before   [4]leaderStoreView // what it had: what a copy that lags may show
	changed  [5]time.Duration   // when entry or beat changed last, on the clock of each
	owner    map[uint64]int     // of each term that was written under, as rep and life
	last     uint64             // term of the last write of a leader
	calls    []*leadCall        // on their way
	spare    []*leadCall        // the array of calls before
	nonces   int
}

type leaderStoreView struct {
	entry leaderEntry
	beat  leaderBeat
}

// part is a coordinator's part in leadership. Its clock outlives the process.
type part struct {
	rate  float64
	clock time.Duration
	life  int

	stopped bool // the process stands still, and its clock goes on
	asleep  bool // the machine sleeps: the clock stands still too

	core    *leader.Core  // nil: no process
	origin  time.Duration // of the core's clock
	due     time.Duration // of its next tick
	fit     bool
	fitAt   int // the head that it was told to be fit at
	renewal leader.Renew
	renewAt int    // the head that the beat wants
	applied uint64 // the revision of renewal, if that is in the store; else 0
	led     uint64 // the last term under which it led
}

func (p *part) now() time.Duration { return p.clock - p.origin }

// still reports whether the process takes no turn.
func (p *part) still() bool { return p.stopped || p.asleep }

// leadCall is a call of the store. A nil effect is a write of a leader.
type leadCall struct {
	from    *rep
	life    int
	effect  leader.Effect
	at      int // the head that it wants
	seed    int // of at
	term    uint64
	arrived bool
	done    bool // nobody waits for it
	answer  leader.Event
}

// boot starts the core of a process.
func (r *rep) boot() {
	w := r.w
	r.life++
	r.stopped, r.asleep, r.fit, r.fitAt, r.renewal, r.applied, r.led, r.origin = false, false, false, -1, leader.Renew{}, 0, 0, r.clock
	core, err := leader.New(leader.Config{Replica: repName(r.n), Lease: worldLease, Beat: worldBeat, Nonce: func() string {
		w.lead.nonces++
		return strconv.Itoa(w.lead.nonces)
	}})
	if err != nil {
		w.violated("a core: %v", err)
	}
	r.core, r.due = core, 0
}

func repName(n int) string { return string(rune('a' + n)) }

// pass lets time pass on every clock.
func (w *world) pass(d time.Duration) {
	w.now += d
	for _, r := range w.reps {
		if !r.asleep {
			r.clock += time.Duration(float64(d) * r.rate)
		}
	}
}

// leadTurns gives every process its turn, and the network.
func (w *world) leadTurns() {
	for _, r := range w.reps {
		r.leadTurn()
	}
	calls := w.lead.calls
	w.lead.calls, w.lead.spare = w.lead.spare[:0], calls
	for _, q := range calls {
		w.travel(q)
		if !q.done || !q.arrived {
			w.lead.calls = append(w.lead.calls, q)
		}
	}
}

// leadTurn is what a process does about leadership when it wakes.
func (r *rep) leadTurn() {
	w := r.w
	if r.core == nil || r.still() {
		return
	}
	switch ready := r.phase == Ready; {
	case ready && (!r.fit || r.fitAt != r.at):
		r.fit, r.fitAt = true, r.at
		r.stepLead(leader.Fit{})
	case !ready && r.fit:
		r.fit = false
		r.stepLead(leader.Unfit{})
	case r.now() >= r.due:
		r.stepLead(leader.Tick{})
	}
	term, _, ok := r.core.Leading(r.now())
	if ok {
		r.led = term
	}
	if w.rules.leadsOn && r.led != 0 {
		term, ok = r.led, true
	}
	if ok && r.phase == Ready && w.chance(3) {
		w.lead.calls = append(w.lead.calls, &leadCall{from: r, life: r.life, at: r.at, seed: w.log[r.at].seed, term: term, done: true})
	}
}

// stepLead gives the core an event, and sends what it asks for.
func (r *rep) stepLead(e leader.Event) {
	w := r.w
	for {
		effect := r.core.Step(r.now(), e)
		r.due = r.core.Next(r.now())
		if effect == nil {
			return
		}
		q := &leadCall{from: r, life: r.life, effect: effect, at: r.at}
		if q.at >= 0 {
			q.seed = w.log[q.at].seed
		}
		switch effect := effect.(type) {
		case leader.ReadEntry:
			if r.phase != Ready {
				e = leader.ReadFailed{}
				continue
			}
		case leader.TakeOver:
			if r.phase != Ready || w.rules.nobodyTakes && w.lead.entry.version != 0 {
				e = leader.Failed{}
				continue
			}
		case leader.Renew:
			switch {
			case effect == r.renewal: // the very same transaction
				q.at = r.renewAt
			case r.phase != Ready:
				e = leader.Failed{}
				continue
			default:
				r.renewal, r.renewAt, r.applied = effect, q.at, 0
			}
		case leader.StepDown:
			if r.at < 0 {
				e = leader.Failed{}
				continue
			}
		}
		w.lead.calls = append(w.lead.calls, q)
		return
	}
}

// travel brings a call further: to the store, its answer back, or nowhere.
func (w *world) travel(q *leadCall) {
	r := q.from
	if q.life != r.life || r.core == nil {
		q.done = true // the process is gone; what it sent may come yet
	}
	if !q.arrived {
		fate := 0
		if !w.calm {
			fate = w.rng.IntN(16)
		}
		if r.cut && q.life == r.life {
			fate = 11 + w.rng.IntN(2)*4 // it never leaves, or waits
		}
		switch {
		case fate < 10:
			w.arrive(q)
		case fate == 10: // the answer is lost
			w.arrive(q)
			q.answer = lostCall(q)
		case fate == 11: // it never arrives
			q.arrived, q.answer = true, lostCall(q)
		case fate == 12 && !q.done: // it arrives later, and nobody waits any more
			if !r.still() {
				q.done = true
				r.stepLead(lostCall(q))
			}
			return
		default:
			return
		}
	}
	if q.done || r.still() {
		return
	}
	q.done = true
	r.stepLead(q.answer)
}

func lostCall(q *leadCall) leader.Event {
	if _, ok := q.effect.(leader.ReadEntry); ok {
		return leader.ReadFailed{}
	}
	return leader.Unknown{}
}

// wrote notes that entry or beat changed.
func (w *world) wrote() uint64 {
	l := &w.lead
	l.before[l.revision%4] = leaderStoreView{l.entry, l.beat}
	l.revision++
	for _, r := range w.reps {
		l.changed[r.n] = r.clock
	}
	return l.revision
}

// arrive is the store: it checks all conditions of a call, and applies it.
func (w *world) arrive(q *leadCall) {
	l, r := &w.lead, q.from
	q.arrived = true
	atHead := q.at == w.latest
	switch e := q.effect.(type) {
	case leader.ReadEntry:
		q.answer = w.readEntry(q)
	case leader.TakeOver:
		switch {
		case e.IfTerm != l.entry.version && !w.rules.beatOnly:
			q.answer = leader.Conflict{Key: leader.KeyTerm}
		case e.IfBeat != l.beat.version && !w.rules.termOnly:
			q.answer = leader.Conflict{Key: leader.KeyBeat}
		case !atHead:
			q.answer = leader.Conflict{}
		default:
			w.takenOver(r, q.life)
			version := w.wrote()
			l.entry = leaderEntry{version: version, seed: q.seed, rep: r.n, life: q.life, nonce: e.Nonce, lease: e.Lease}
			l.beat = leaderBeat{version: version, nonce: e.Nonce, lease: e.Lease}
			q.answer = leader.Written{Version: version}
			w.say("%d takes over under term %d", r.n, version)
		}
	case leader.Renew:
		same := q.life == r.life && e == r.renewal
		switch {
		case same && r.applied != 0: // the very same transaction, once more
			q.answer = leader.Written{Version: r.applied}
		case e.IfTerm != l.entry.version && !w.rules.blindBeat:
			q.answer = leader.Conflict{Key: leader.KeyTerm}
		case e.IfBeat != l.beat.version && !w.rules.blindBeat:
			q.answer = leader.Conflict{Key: leader.KeyBeat}
		case !atHead:
			q.answer = leader.Conflict{}
		default:
			if e.Nonce != l.entry.nonce {
				w.violated("I4: %d beats under the term of %d", r.n, l.entry.rep)
			}
			version := w.wrote()
			l.beat = leaderBeat{version, e.Nonce, e.Number, e.Lease}
			if same {
				r.applied = version
			}
			q.answer = leader.Written{Version: version}
		}
	case leader.StepDown:
		if e.IfTerm != l.entry.version && !w.rules.blindStepDown {
			q.answer = leader.Conflict{Key: leader.KeyTerm}
			return
		}
		if e.Nonce != l.entry.nonce {
			w.violated("I4: %d ends the term of %d", r.n, l.entry.rep)
		}
		version := w.wrote()
		l.entry.version, l.entry.nonce, l.entry.handedOver, l.entry.to = version, e.Nonce, true, ""
		q.answer = leader.Written{Version: version}
		w.saw[steppedDown]++
		w.say("%d hands over", r.n)
	case nil:
		w.arriveWrite(q, atHead)
	}
}

// arriveWrite is the store for a write of a leader.
func (w *world) arriveWrite(q *leadCall, atHead bool) {
	l, r := &w.lead, q.from
	current := q.term == l.entry.version
	switch {
	case !current && !w.rules.leadBlind && !w.rules.leadsOn:
		w.saw[lateLeaderWrite]++
		return
	case !atHead && !w.rules.leadAnyHead:
		w.saw[leaderBehind]++
		return
	}
	l.revision++
	w.saw[leaderWrite]++
	// I4, from outside.
	who := r.n*1_000_000 + q.life
	if other, ok := l.owner[q.term]; ok && other != who {
		w.violated("I4: two processes wrote under term %d", q.term)
	}
	l.owner[q.term] = who
	switch {
	case !current:
		w.violated("I4: a write of %d under term %d, and term %d is in force", r.n, q.term, l.entry.version)
	case l.entry.handedOver:
		w.violated("I4: a write of %d under term %d, which was handed over", r.n, q.term)
	case l.entry.rep != r.n || l.entry.life != q.life:
		w.violated("I4: a write of %d under term %d of %d", r.n, q.term, l.entry.rep)
	case q.term < l.last:
		w.violated("I4: a write under term %d after one under term %d", q.term, l.last)
	case !atHead:
		w.violated("I10: a write of the leader %d at head %d, and the head is %d", r.n, q.at, w.latest)
	}
	l.last = q.term
}

// takenOver checks from outside that r may take the entry in force: nobody leads, or
// the leader gave no sign of life for its lease, on the clock of who takes over.
func (w *world) takenOver(r *rep, life int) {
	l := &w.lead
	switch e := l.entry; {
	case e.version == 0:
	case e.rep == r.n && e.life < life && !e.handedOver:
		w.saw[ledAgain]++
	case e.handedOver && (e.to == "" || e.to == repName(r.n)):
		w.saw[tookHandedOver]++
	case r.clock-l.changed[r.n] < leader.LeaseOf(worldLease, e.lease, l.beat.lease, l.beat.nonce == e.nonce):
		w.violated("I4: %d takes over from %d, which gave a sign of life %v ago", r.n, e.rep, r.clock-l.changed[r.n])
	default:
		w.saw[tookOver]++
	}
}

// readEntry is the answer to a read.
func (w *world) readEntry(q *leadCall) leader.Event {
	l := &w.lead
	v := leaderStoreView{l.entry, l.beat}
	if w.chance(20) {
		v = l.before[w.rng.IntN(len(l.before))]
	}
	if v.entry.version != 0 && v.entry.seed != q.seed {
		return leader.ReadFailed{} // it is of another seed, and so of another head
	}
	e := leader.Entry{Term: v.entry.version, Beat: v.beat.version}
	if v.entry.version != 0 {
		e.Believed, e.Replica, e.Nonce, e.Lease, e.HandedOver, e.For = true, repName(v.entry.rep), v.entry.nonce, leader.LeaseOf(worldLease, v.entry.lease, v.beat.lease, v.beat.nonce == v.entry.nonce), v.entry.handedOver, v.entry.to
		if v.beat.nonce == v.entry.nonce {
			e.Number = v.beat.number
		}
	}
	if w.rules.noLease {
		e.Lease = leader.MinLease
	}
	return leader.Read{Entry: e}
}

// reseal brings the entry under another seed, as who adopts a head after a reseed does:
// another term of the same leader, and no beat.
func (w *world) reseal(seed int) {
	l := &w.lead
	if l.entry.version == 0 || l.entry.seed == seed {
		return
	}
	l.entry.version, l.entry.seed, l.beat = w.wrote(), seed, leaderBeat{}
	w.saw[resealed]++
}

// transfer is what anyone who is ready can be asked for: the entry is handed over.
func (r *rep) transfer() {
	w := r.w
	l := &w.lead
	if !r.up || r.still() || r.cut || r.phase != Ready || r.at != w.latest || l.entry.version == 0 || l.entry.handedOver {
		return
	}
	to := ""
	if heir := w.reps[w.rng.IntN(len(w.reps))]; w.rng.IntN(2) == 0 && heir.n != l.entry.rep {
		to = repName(heir.n)
	}
	l.entry.version, l.entry.handedOver, l.entry.to = w.wrote(), true, to
	w.saw[transferred]++
	w.say("%d is asked to have %q lead", r.n, to)
}

// end is a process that is told to stop: it hands over, and does not wait for long.
func (r *rep) end() {
	if r.core == nil || r.still() {
		return
	}
	r.stepLead(leader.Stop{})
	r.crash()
}

// someoneLeads reports whether who is ready leads, and writes.
func (w *world) someoneLeads() bool {
	for _, r := range w.reps {
		if r.core == nil || r.phase != Ready {
			continue
		}
		if term, _, ok := r.core.Leading(r.now()); ok && term == w.lead.entry.version && r.at == w.latest {
			before := w.saw[leaderWrite]
			w.arrive(&leadCall{from: r, life: r.life, at: r.at, term: term, done: true})
			return w.saw[leaderWrite] > before
		}
	}
	return false
}

// soonLed says if nobody leads although nothing fails any more, and somebody is ready.
func (w *world) soonLed() {
	if !slices.ContainsFunc(w.reps, func(r *rep) bool { return r.phase == Ready && r.at == w.latest }) {
		return
	}
	for range 100 { // the slowest clock runs at half the rate, and a lease may have grown to four times its length
		if w.someoneLeads() || w.broken != "" {
			w.saw[ledAtEnd]++
			return
		}
		w.fair()
	}
	w.violated("nobody leads: the entry is %+v, the beat %+v", w.lead.entry, w.lead.beat)
}

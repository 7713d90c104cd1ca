package leader

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	testLease = 1200 * time.Millisecond
	testBeat  = 300 * time.Millisecond
)

// world is a model: one store that keeps its promises, candidates whose clocks do not
// agree, and requests that take any time, or get lost.
type world struct {
	now      time.Duration // real time
	revision uint64
	entry    stored // the leader entry; version 0: none
	beat     beat
	old      []stored
	oldBeats []beat
	down     bool
	locked   bool // conditions of the caller fail
	replicas []*replica
	flying   []*request
	// steady: clocks keep to their rate within the margin, and nobody writes the entry
	// but the candidates, or as it was. Then no two lead at the same instant, by their own judgement.
	steady bool
	ids    map[string]uint64 // revisions of transactions with an id
	led    []led             // what leaders wrote, in the order of the store
	nonces int
}

// stored is the leader entry as the store has it.
type stored struct {
	version    uint64
	forged     bool
	replica    string
	nonce      string
	lease      time.Duration
	handedOver bool
	to         string
}

// beat is the beat as the store has it.
type beat struct {
	version uint64
	nonce   string // "": forged
	number  uint64
	lease   time.Duration
}

// led is one write of a leader that is in the store.
type led struct {
	term uint64
	life int
}

// replica is a coordinator. Each life of it is a process.
type replica struct {
	name   string
	life   int
	rate   float64
	offset time.Duration
	paused bool
	fit    bool
	core   *Core
	tick   time.Duration // own time of its next tick
}

// request is on its way to the store, or its answer is on its way back.
type request struct {
	from     *replica
	life     int
	effect   Effect
	id       string
	term     uint64 // of a leader's write
	arrived  bool
	answer   Event
	answered bool // its sender gave up waiting
}

func (r *replica) clock(w *world) time.Duration {
	return time.Duration(float64(w.now)*r.rate) + r.offset
}

func (w *world) boot(t *rapid.T, r *replica) {
	r.life++
	core, err := New(Config{Replica: r.name, Lease: testLease, Beat: testBeat, Nonce: func() string { w.nonces++; return fmt.Sprint("n", w.nonces) }})
	if err != nil {
		t.Fatal(err)
	}
	r.core, r.paused, r.fit = core, false, true
	w.step(r, Fit{})
}

// step gives r an event, and sends what it asks for.
func (w *world) step(r *replica, e Event) {
	effect := r.core.Step(r.clock(w), e)
	r.tick = r.core.Next(r.clock(w))
	if effect == nil {
		return
	}
	q := &request{from: r, life: r.life, effect: effect}
	if renew, ok := effect.(Renew); ok {
		q.id = fmt.Sprint(r.life, renew) // the very same transaction
	}
	w.flying = append(w.flying, q)
}

// arrive lets the store work on q.
func (w *world) arrive(q *request) {
	q.arrived = true
	write := func(q *request, ifTerm, ifBeat uint64, beat bool, apply func(version uint64)) Event {
		if version, ok := w.ids[q.id]; ok && q.id != "" {
			return Written{version}
		}
		switch {
		case ifTerm != w.entry.version:
			return Conflict{KeyTerm}
		case beat && ifBeat != w.beat.version:
			return Conflict{KeyBeat}
		case w.locked:
			return Conflict{KeyOther}
		}
		w.revision++
		apply(w.revision)
		if q.id != "" {
			w.ids[q.id] = w.revision
		}
		return Written{w.revision}
	}
	switch e := q.effect.(type) {
	case ReadEntry:
		s := w.entry
		entry := Entry{Term: s.version, Beat: w.beat.version}
		if s.version != 0 && !s.forged {
			entry.Believed, entry.Replica, entry.Nonce, entry.Lease, entry.HandedOver, entry.For = true, s.replica, s.nonce, LeaseOf(testLease, s.lease, w.beat.lease, w.beat.nonce == s.nonce), s.handedOver, s.to
			if w.beat.nonce == s.nonce {
				entry.Number = w.beat.number
			}
		}
		q.answer = Read{entry}
	case TakeOver:
		q.answer = write(q, e.IfTerm, e.IfBeat, true, func(version uint64) {
			w.put(stored{version: version, replica: q.from.name, nonce: e.Nonce, lease: e.Lease})
			w.beat = beat{version: version, nonce: e.Nonce, lease: e.Lease}
		})
	case Renew:
		q.answer = write(q, e.IfTerm, e.IfBeat, true, func(version uint64) {
			w.oldBeats = append(w.oldBeats, w.beat)
			w.beat = beat{version, e.Nonce, e.Number, e.Lease}
		})
	case StepDown:
		q.answer = write(q, e.IfTerm, 0, false, func(version uint64) {
			w.put(stored{version: version, replica: q.from.name, nonce: e.Nonce, lease: w.entry.lease, handedOver: true})
		})
	case nil: // what a leader writes
		if q.term == w.entry.version && !w.locked {
			w.revision++
			w.led = append(w.led, led{q.term, q.life*100 + slices.Index(w.replicas, q.from)})
		}
		q.answered = true
	}
}

func (w *world) put(s stored) {
	if w.entry.version != 0 {
		w.old = append(w.old, w.entry)
	}
	w.entry = s
}

// answer gives the sender of q its answer, if it still waits.
func (w *world) answer(q *request, e Event) {
	if !q.answered && q.life == q.from.life {
		q.answered = true
		w.step(q.from, e)
	}
	q.answered = true
}

// lost is what the sender of q is told when nothing comes back.
func lost(q *request) Event {
	if _, ok := q.effect.(ReadEntry); ok {
		return ReadFailed{}
	}
	return Unknown{}
}

func (w *world) sweep() {
	w.flying = slices.DeleteFunc(w.flying, func(q *request) bool { return q.arrived && q.answered })
}

// pass lets real time pass, and wakes those whose time has come.
func (w *world) pass(d time.Duration) {
	w.now += d
	for _, r := range w.replicas {
		if !r.paused && r.clock(w) >= r.tick {
			w.step(r, Tick{})
		}
	}
}

// check is I4, and what steady clocks add to it.
func (w *world) check(t *rapid.T) {
	owner := make(map[uint64]int)
	last := uint64(0)
	for _, l := range w.led {
		if was, ok := owner[l.term]; ok && was != l.life {
			t.Fatalf("two processes wrote under term %d: %d and %d", l.term, was, l.life)
		}
		owner[l.term] = l.life
		if l.term < last {
			t.Fatalf("a write under term %d came after one under term %d", l.term, last)
		}
		last = l.term
	}
	if !w.steady {
		return
	}
	leading := ""
	for _, r := range w.replicas {
		if _, _, ok := r.core.Leading(r.clock(w)); ok {
			if leading != "" {
				t.Fatalf("%s and %s both think that they lead", leading, r.name)
			}
			leading = r.name
		}
	}
}

func TestOneLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{ids: make(map[string]uint64), steady: rapid.Bool().Draw(t, "steady")}
		slowest := 1.0
		for i := range rapid.IntRange(1, 4).Draw(t, "replicas") {
			r := &replica{name: fmt.Sprint("c", i+1), rate: 1}
			if w.steady {
				r.rate = rapid.Float64Range(0.96, 1.04).Draw(t, "rate")
			} else {
				r.rate = rapid.Float64Range(0.5, 2).Draw(t, "rate")
			}
			r.offset = time.Duration(rapid.IntRange(0, 1e9).Draw(t, "offset"))
			slowest = min(slowest, r.rate)
			w.replicas = append(w.replicas, r)
			w.boot(t, r)
		}
		any := func(t *rapid.T) *replica { return rapid.SampledFrom(w.replicas).Draw(t, "replica") }
		flying := func(t *rapid.T) *request {
			if len(w.flying) == 0 {
				t.Skip("nothing is on its way")
			}
			return rapid.SampledFrom(w.flying).Draw(t, "request")
		}
		deliver := func(q *request) {
			if !q.arrived {
				w.arrive(q)
			}
			if q.answer != nil {
				w.answer(q, q.answer)
			}
		}
		pass := func(t *rapid.T) {
			w.pass(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond)
		}
		prompt := func(t *rapid.T) {
			w.pass(time.Duration(rapid.IntRange(1, 100).Draw(t, "ms")) * time.Millisecond)
			for _, q := range slices.Clone(w.flying) {
				if !w.down {
					deliver(q)
				}
			}
		}
		actions := map[string]func(*rapid.T){
			// The store answers most of the time, or nothing would come about.
			"pass": pass, "prompt": prompt, "prompt again": prompt, "prompt more": prompt,
			"long": func(t *rapid.T) { w.pass(testLease * 2) },
			"calm": func(t *rapid.T) { w.pass(CalmAfter) },
			"arrives": func(t *rapid.T) {
				if q := flying(t); !q.arrived && !w.down {
					w.arrive(q)
				}
			},
			"answered": func(t *rapid.T) {
				if q := flying(t); !w.down {
					deliver(q)
				}
			},
			"lost": func(t *rapid.T) {
				if q := flying(t); q.effect != nil {
					w.answer(q, lost(q)) // it may arrive later
				}
			},
			"dropped": func(t *rapid.T) {
				q := flying(t)
				q.arrived = true
				if q.effect == nil {
					q.answered = true
					return
				}
				e := lost(q)
				if _, ok := e.(Unknown); ok && rapid.Bool().Draw(t, "known") {
					e = Failed{}
					if _, ok := q.effect.(Renew); ok {
						e = Unknown{} // another copy of it may be on its way
					}
				}
				w.answer(q, e)
			},
			"leader writes": func(t *rapid.T) {
				r := any(t)
				if term, _, ok := r.core.Leading(r.clock(w)); ok && !r.paused {
					w.flying = append(w.flying, &request{from: r, life: r.life, term: term})
				}
			},
			"pause": func(t *rapid.T) { r := any(t); r.paused = true },
			"wake":  func(t *rapid.T) { r := any(t); r.paused = false },
			"crash": func(t *rapid.T) { w.boot(t, any(t)) },
			"transfer": func(t *rapid.T) {
			},
			"unfit":       func(t *rapid.T) { r := any(t); r.fit = false; w.step(r, Unfit{}) },
			"fit":         func(t *rapid.T) { r := any(t); r.fit = true; w.step(r, Fit{}) },
			"notice":      func(t *rapid.T) { w.step(any(t), Noticed{}) },
			"store":       func(t *rapid.T) { w.down = !w.down },
			"record lock": func(t *rapid.T) { w.locked = !w.locked },
			"write":       func(t *rapid.T) { w.revision += 3 },
			"reseal": func(t *rapid.T) { // the same entry under another key, and no beat
				if w.entry.version != 0 && !w.entry.forged {
					w.revision++
					w.entry.version, w.beat = w.revision, beat{}
				}
			},
			"": func(t *rapid.T) { w.sweep(); w.check(t) },
		}
		if !w.steady {
			actions["transfer"] = func(t *rapid.T) { // by anyone who may
				if s := w.entry; s.version != 0 && !s.forged && !w.locked {
					w.revision++
					s.version, s.handedOver, s.to = w.revision, true, rapid.SampledFrom([]string{"", "c1", "c2", "gone"}).Draw(t, "to")
					w.put(s)
				}
			}
			actions["forge"] = func(t *rapid.T) {
				w.revision++
				switch rapid.IntRange(0, 4).Draw(t, "how") {
				case 0:
					w.put(stored{version: w.revision, forged: true})
				case 1:
					w.put(stored{})
				case 2:
					w.put(stored{})
					w.beat = beat{}
				case 3:
					w.beat = beat{version: w.revision}
					if len(w.oldBeats) > 0 && rapid.Bool().Draw(t, "replayed") {
						w.beat = rapid.SampledFrom(w.oldBeats).Draw(t, "old beat")
						w.beat.version = w.revision
					}
				case 4:
					if len(w.old) > 0 {
						s := rapid.SampledFrom(w.old).Draw(t, "old")
						s.version = w.revision
						w.put(s)
					}
				}
			}
		}
		t.Repeat(actions)

		// The faults end: somebody leads soon, and can write.
		w.down, w.locked = false, false
		for _, r := range w.replicas {
			r.paused = false
			if !r.fit {
				r.fit = true
				w.step(r, Fit{})
			}
		}
		for _, q := range slices.Clone(w.flying) {
			deliver(q)
		}
		limit := w.now + time.Duration(float64(MaxStretch*testLease+6*testBeat)/slowest)
		for {
			w.sweep()
			w.check(t)
			for _, r := range w.replicas {
				if term, _, ok := r.core.Leading(r.clock(w)); ok && term == w.entry.version {
					return
				}
			}
			if w.now > limit {
				t.Fatalf("nobody leads %v after the faults ended: entry %+v at revision %d", w.now, w.entry, w.revision)
			}
			w.pass(20 * time.Millisecond)
			for _, q := range slices.Clone(w.flying) {
				deliver(q)
			}
		}
	})
}

// Package leader elects one of several coordinators on one store as the leader, and gives its
// leadership a term number.
//
// A [Core] is one coordinator's part in it: it takes what was read and written and the time on its
// own monotonic clock, and returns what to do next. Its user keeps two entries in the store: the
// leader entry, which is written when leadership changes and at no other time, and the beat, which
// the leader renews.
//
// The promises:
//
//   - One leader acts. A term is the revision of the store that wrote the leader entry, and every
//     write of a leader is conditional on the entry still being of that revision. So for each term
//     at most one process commits such writes, whatever clocks do; one that comes late fails in the
//     store, not by luck (I4).
//   - Terms grow, and none comes twice, as revisions do: also if somebody puts an old entry back,
//     or removes it. Over a restore, where the store has to begin above all revisions of before,
//     the floor checks that it did. In a store that went back nobody leads under a revision that is
//     not above all that it saw before.
//   - No clocks are compared. A coordinator that does not lead takes over when entry and beat are
//     unchanged for a lease on its own monotonic clock, counted from when it had read them, and
//     only if they are still unchanged in the store. A beat that its leader did not make, or made
//     before, is no sign of life.
//   - A leader stops by itself, before its lease is over on its own clock, counted from the start
//     of the last beat that is known to have arrived. That is a courtesy which saves refused
//     writes; nothing rests on it.
//   - The outcome of a takeover that is not known is settled by reading: the nonce tells whose it
//     is, also if it arrives later.
//   - The lease adapts. A leader that lost its lease in time, because its machine was starved or
//     its store slow, doubles the one that it keeps, up to [MaxStretch] times that of [Config];
//     whoever takes over from it keeps that one. It halves with every [CalmAfter] without such a
//     loss. A beat says the lease that it begins, so that a change needs no other term.
//   - A leader that steps down hands over: the next need not wait. A caller that may ask for
//     another leader writes the same in its place, which ends the term in the store; the one that
//     led then holds back for a lease, as do all others if it is in favour of one.
//
// Left to the caller: that entries are authentic ([Entry.Believed]), that the store checks all
// conditions of a write and applies it in one step, and that a process whose memory is copied while
// it runs ends: of two that lead from one memory the one is found out by its next beat.
//
// The package does no I/O, starts no goroutines, and knows no wall clock.
package leader

import (
	"fmt"
	"time"
)

// Bounds of a lease. A candidate that waits for another's lease, which stands in its
// entry, waits within them.
const (
	MinLease = 200 * time.Millisecond
	MaxLease = 5 * time.Minute
)

// How the lease adapts to machines on which it is lost without a fault.
const (
	// MaxStretch bounds the lease, as a multiple of Config.Lease.
	MaxStretch = 4
	// CalmAfter is how long no lease may be lost in time before it is halved again.
	CalmAfter = 5 * time.Minute
)

// Config is what a core is made of.
type Config struct {
	// Replica identifies this coordinator over its restarts. Required.
	Replica string

	// Lease is how long a leader leads without a beat, and how long others wait.
	Lease time.Duration

	// Beat is the pause between beats, at most a third of Lease, and between the looks
	// of who does not lead.
	Beat time.Duration

	// Nonce returns a new random text: what tells a takeover of ours from another's.
	// Required.
	Nonce func() string
}

// Check says what is wrong with the times of c.
func (c Config) Check() error {
	switch {
	case c.Lease < MinLease || c.Lease > MaxLease:
		return fmt.Errorf("the lease %v is not within %v and %v", c.Lease, MinLease, MaxLease)
	case c.Beat <= 0 || c.Beat > c.Lease/3:
		return fmt.Errorf("the beat %v is not within 0 and a third of the lease, %v: two beats may be lost", c.Beat, c.Lease/3)
	}
	return nil
}

// Entry is the leader entry and the beat, as they were read at one revision.
type Entry struct {
	// Term and Beat are the revisions that wrote the two; 0: absent.
	Term, Beat uint64

	// Believed says that the leader entry is there and authentic; else what follows
	// is empty.
	Believed bool

	Replica string        // who wrote it
	Nonce   string        // of the takeover
	Lease   time.Duration // that its leader keeps: see [LeaseOf]
	Number  uint64        // of the beat, if that is authentic and of this takeover; else 0

	// HandedOver: its leader leads no more. In favour of For, or of anyone if that is
	// empty.
	HandedOver bool
	For        string
}

// LeaseOf returns the lease of an entry that was written with lease, and whose last beat
// began that of beat. Without a beat of its takeover, as after a reseed, the leader may
// keep the longest. That is no longer than own, the lease of whoever reads, allows at most,
// or what the entry says: an entry that names a stretched lease is stretched no further.
func LeaseOf(own, lease, beat time.Duration, beats bool) time.Duration {
	switch {
	case !beats:
		return min(MaxStretch*lease, max(MaxStretch*own, lease), MaxLease)
	case beat <= 0:
		return lease // of an earlier release
	}
	return beat
}

// An Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Fit: this coordinator can lead, under terms above Floor.
	Fit struct{ Floor uint64 }
	// Unfit: it cannot lead any more, until it is fit again.
	Unfit struct{}
	// Read: the entry was read.
	Read struct{ Entry Entry }
	// ReadFailed: it could not be.
	ReadFailed struct{}
	// Written: the write that was asked for is in the store since Version.
	Written struct{ Version uint64 }
	// Conflict: it was not written, and never will be. Key says what stood against it.
	Conflict struct{ Key Key }
	// Failed: it was not written, and never will be, for another reason.
	Failed struct{}
	// Unknown: nobody knows if it was written, or will be.
	Unknown struct{}
	// Noticed: the entry may have changed.
	Noticed struct{}
	// Tick: time has passed.
	Tick struct{}
	// Stop: the process ends.
	Stop struct{}
)

func (Fit) event()        {}
func (Unfit) event()      {}
func (Read) event()       {}
func (ReadFailed) event() {}
func (Written) event()    {}
func (Conflict) event()   {}
func (Failed) event()     {}
func (Unknown) event()    {}
func (Noticed) event()    {}
func (Tick) event()       {}
func (Stop) event()       {}

// Key is a key on which a write is conditional.
type Key int

const (
	KeyOther Key = iota // what the caller added: the head of the history, a record lock
	KeyTerm             // the leader entry
	KeyBeat
)

// An Effect is something to do. One that reads or writes is answered by one event
// before another one is asked for.
type Effect interface{ effect() }

// The effects.
type (
	// ReadEntry: read entry and beat, at one revision, and answer Read or ReadFailed.
	ReadEntry struct{}
	// TakeOver: write an entry of this nonce and lease, and a beat, in one transaction, if
	// entry and beat are still at IfTerm and IfBeat.
	TakeOver struct {
		Nonce          string
		Lease          time.Duration
		IfTerm, IfBeat uint64
	}
	// Renew: write the beat of this nonce, number and lease, if entry and beat are still at IfTerm and IfBeat. One
	// that is equal to the last is the same write again, of which the outcome is not
	// known: commit the very same transaction.
	Renew struct {
		Nonce          string
		Number         uint64
		Lease          time.Duration
		IfTerm, IfBeat uint64
	}
	// StepDown: write the entry of this nonce as handed over to anyone, if it is still at
	// IfTerm.
	StepDown struct {
		Nonce  string
		IfTerm uint64
	}
)

func (ReadEntry) effect() {}
func (TakeOver) effect()  {}
func (Renew) effect()     {}
func (StepDown) effect()  {}

// Core is one coordinator's part. It belongs to one goroutine; make it with [New].
type Core struct {
	cfg     Config
	fit     bool
	stopped bool
	floor   uint64
	newest  uint64 // revision of a leader entry or beat that this process saw or wrote
	low     bool   // the store gave a term that is not above floor and newest

	stretch int           // the lease to keep, in leases of cfg
	calm    time.Duration // since when none was lost in time, or stretch was halved

	asked Effect // that is not answered yet; nil: none

	seen     Entry
	known    bool          // seen is what the store held at some time
	seenAt   time.Duration // when entry and number were first seen as they are
	ledUntil time.Duration // somebody leads until then, as far as can be told
	readDue  time.Duration // when to look again
	pause    time.Duration // nothing is taken before: the last try failed

	yielded string // nonce of an entry that was ours, and is for others
	try     *try
	held    *held
}

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// try is a takeover that may have happened, or may yet.
type try struct {
	TakeOver
	start   time.Duration
	open    bool // it was sent before, and nobody knows what became of it
	retryAt time.Duration
}

// held is an entry of ours.
type held struct {
	term  uint64
	nonce string
	beat  uint64        // version of the last beat that is known to have arrived
	until time.Duration // it leads no longer, unless a beat arrives
	due   time.Duration // when to write next: a beat, or that it is handed over

	lease  time.Duration // that the last beat that was sent names
	lapsed bool          // it was lost in time, and stretch tells

	number uint64        // of the last beat that was sent
	open   bool          // nobody knows whether that one arrived
	start  time.Duration // when that one was sent first

	leaving bool // it is to be handed over, and leads no more
	tries   int  // to hand it over
}

// handOverTries bounds the tries to hand over: without it others wait for the lease.
const handOverTries = 3

// New returns the core of a process that starts. Its clock starts at 0.
func New(cfg Config) (*Core, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &Core{cfg: cfg, stretch: 1}, nil
}

// Lease returns the lease that this process keeps if it leads: between one and
// [MaxStretch] times that of its [Config], at most [MaxLease].
func (c *Core) Lease() time.Duration {
	return min(time.Duration(c.stretch)*c.cfg.Lease, max(MaxLease, c.cfg.Lease))
}

// adapt notes at now a lease that was lost in time, and when there was none for long.
func (c *Core) adapt(now time.Duration) {
	h := c.held
	switch {
	case h != nil && !h.leaving && !h.lapsed && now >= h.until:
		h.lapsed = true
		c.stretch, c.calm = min(2*c.stretch, MaxStretch), now
	case c.stretch > 1 && now-c.calm >= CalmAfter:
		c.stretch, c.calm = c.stretch/2, now
	}
}

// inherit keeps at least the lease of an entry that is taken over: what made its leader
// lose it in time concerns the next one as well.
func (c *Core) inherit(e Entry, now time.Duration) {
	for c.stretch < MaxStretch && e.Believed && c.Lease() < e.lease(c.cfg) {
		c.stretch, c.calm = 2*c.stretch, now
	}
}

// Leading returns the term under which this process leads at now, and when that ends
// unless a beat arrives. It reports false if it does not lead.
func (c *Core) Leading(now time.Duration) (term uint64, until time.Duration, ok bool) {
	h := c.held
	if h == nil || h.leaving || now >= h.until {
		return 0, 0, false
	}
	return h.term, h.until, true
}

// BelowFloor reports that the store gave a term that is not above the floor, or not
// above one that this process saw before, under which nobody may lead: it was restored
// and not raised, or went back.
func (c *Core) BelowFloor() bool { return c.low }

// Seen returns the entry that was read or written last. led reports whether its
// leader may lead at now; if not, nobody does since the time returned, as far as can
// be told from here.
func (c *Core) Seen(now time.Duration) (e Entry, led bool, since time.Duration) {
	return c.seen, now < c.ledUntil, c.ledUntil
}

// Next returns when to step with a [Tick] if nothing happens before.
func (c *Core) Next(now time.Duration) time.Duration {
	at := never
	switch {
	case c.asked != nil: // its answer comes first
	case c.held != nil:
		at = c.held.due
		if !c.held.leaving {
			at = min(at, c.readDue)
		}
		if now < c.held.until {
			at = min(at, c.held.until)
		}
	case c.stopped || !c.fit:
	case !c.known:
		at = c.readDue
	default:
		at = min(c.readDue, c.takeAt())
	}
	return max(at, now)
}

// Step takes what happened, and returns what to do; nil for nothing.
func (c *Core) Step(now time.Duration, e Event) Effect {
	c.adapt(now)
	switch e := e.(type) {
	case Fit:
		c.fit, c.floor = true, max(c.floor, e.Floor)
	case Unfit:
		c.fit = false
		c.leave(now)
	case Stop:
		c.stopped = true
		c.leave(now)
	case Noticed:
		c.readDue = min(c.readDue, now)
	case Read:
		c.asked = nil
		c.read(now, e.Entry)
	case ReadFailed:
		c.asked, c.readDue = nil, now+c.cfg.Beat
	case Written, Conflict, Failed, Unknown:
		asked := c.asked
		c.asked = nil
		switch asked.(type) {
		case TakeOver:
			c.took(now, e)
		case Renew:
			c.renewed(now, e)
		case StepDown:
			c.steppedDown(now, e)
		}
	}
	if c.asked == nil { // one at a time
		c.asked = c.decide(now)
		return c.asked
	}
	return nil
}

// decide returns what to do at now.
func (c *Core) decide(now time.Duration) Effect {
	switch {
	case c.held != nil:
		return c.keep(now)
	case c.stopped || !c.fit:
		return nil
	case !c.known || now >= c.readDue:
		if now < c.readDue {
			return nil
		}
		return ReadEntry{}
	case now < c.takeAt():
		return nil
	case c.try == nil:
		c.inherit(c.seen, now)
		c.try = &try{start: now, TakeOver: TakeOver{Nonce: c.cfg.Nonce(), Lease: c.Lease(), IfTerm: c.seen.Term, IfBeat: c.seen.Beat}}
	}
	return c.try.TakeOver
}

// keep returns what to do about an entry of ours.
func (c *Core) keep(now time.Duration) Effect {
	h := c.held
	switch {
	case h.leaving && now >= h.due:
		return StepDown{Nonce: h.nonce, IfTerm: h.term}
	case h.leaving:
		return nil
	case now >= c.readDue:
		return ReadEntry{}
	case now < h.due:
		return nil
	case !h.open:
		h.number++
		h.start = now
		if h.lease > c.Lease() {
			// From when this beat is in the store, the others wait for the shorter one.
			h.until = min(h.until, leaseFrom(now, c.Lease()))
		}
		h.lease = c.Lease()
	}
	return Renew{Nonce: h.nonce, Number: h.number, Lease: h.lease, IfTerm: h.term, IfBeat: h.beat}
}

// takeAt is from when on the entry seen may be taken over.
func (c *Core) takeAt() time.Duration {
	at := c.pause
	if c.try != nil {
		at = max(at, c.try.retryAt)
	}
	switch e := c.seen; {
	case e.Term == 0: // there is none
	case !e.Believed:
		// Nobody can lead under it. The wait keeps two that believe different things from
		// writing in turns as fast as they can.
		at = max(at, c.seenAt+c.cfg.Lease)
	case e.HandedOver && e.For == c.cfg.Replica:
	case e.HandedOver && e.For == "" && e.Nonce != c.yielded:
	default:
		at = max(at, c.seenAt+e.lease(c.cfg))
	}
	return at
}

// lease is how long to wait for the leader of e.
func (e Entry) lease(cfg Config) time.Duration {
	if e.Lease == 0 {
		return cfg.Lease
	}
	return min(max(e.Lease, MinLease), MaxLease)
}

// read takes what the store held a moment ago.
func (c *Core) read(now time.Duration, e Entry) {
	first := !c.known
	if e.Term == c.seen.Term {
		e.Number = max(e.Number, c.seen.Number)
	}
	changed := first || e.Believed != c.seen.Believed || e.Believed && (e.Term != c.seen.Term || e.Number != c.seen.Number)
	c.seen, c.known, c.readDue = e, true, now+c.cfg.Beat
	defer func() { c.newest = max(c.newest, e.Term, e.Beat) }() // a term is judged by what was seen before it
	if changed {
		c.seenAt = now
		switch {
		case first && e.Believed && e.Replica == c.cfg.Replica && !e.HandedOver:
			// It is of an earlier life of this coordinator, which is over. One that was handed
			// over in favour of another coordinator is that one's to take.
			c.seenAt = now - e.lease(c.cfg)
			c.ledUntil = min(c.ledUntil, now)
		case e.Believed && !e.HandedOver:
			c.ledUntil = now + e.lease(c.cfg)
		default:
			c.ledUntil = min(c.ledUntil, now)
		}
	}
	if t := c.try; t != nil {
		switch {
		case e.of(t.Nonce):
			c.hold(now, e.Term, e.Beat)
		case e.Term != t.IfTerm || e.Beat != t.IfBeat:
			c.try = nil // it can never arrive
		}
	}
	h := c.held
	if h == nil {
		return
	}
	if e.Term != h.term {
		if !e.of(h.nonce) {
			c.held = nil // somebody else leads, or may
			if e.Nonce == h.nonce {
				c.yielded = h.nonce // somebody wants another leader
			}
			return
		}
		// Somebody wrote it again as it was: the caller, under another key. It is another
		// term of the same leader.
		h.term, h.beat, h.open = e.Term, e.Beat, false
		c.judge(now)
	}
	c.readDue = never // beats tell
}

// of reports whether e is in force, of the takeover with this nonce.
func (e Entry) of(nonce string) bool { return e.Believed && e.Nonce == nonce && !e.HandedOver }

// hold makes the takeover under way ours.
func (c *Core) hold(now time.Duration, term, beat uint64) {
	t := c.try
	c.try, c.readDue = nil, never
	c.held = &held{term: term, nonce: t.Nonce, beat: beat, lease: t.Lease, until: leaseFrom(t.start, t.Lease), due: t.start + c.cfg.Beat}
	c.judge(now)
}

// judge leaves a term of ours under which this process may not lead.
func (c *Core) judge(now time.Duration) {
	c.low = c.held.term <= max(c.floor, c.newest)
	if c.low {
		c.pause = now + c.cfg.Lease
	}
	if !c.fit || c.stopped || c.low {
		c.leave(now)
	}
}

// leaseFrom is when a leader stops who was last known in the store at start, with this
// lease: before the others may take over, also if its clock is slower than theirs by
// some percent.
func leaseFrom(start, lease time.Duration) time.Duration { return start + lease - lease/10 }

// leave stops leading at once, and hands over.
func (c *Core) leave(now time.Duration) {
	if h := c.held; h != nil && !h.leaving {
		h.leaving, h.due = true, now
		c.ledUntil = min(c.ledUntil, now)
	}
}

// took takes the outcome of a takeover.
func (c *Core) took(now time.Duration, e Event) {
	t := c.try
	switch e := e.(type) {
	case Written:
		c.seen = Entry{Term: e.Version, Beat: e.Version, Believed: true, Replica: c.cfg.Replica, Nonce: t.Nonce, Lease: t.Lease}
		c.seenAt, c.ledUntil = now, now+t.Lease
		c.hold(now, e.Version, e.Version)
		c.newest = max(c.newest, e.Version)
		return
	case Unknown:
		t.open = true
	case Conflict:
		if e.Key == KeyOther {
			c.pause = now + c.cfg.Beat
		} else {
			// Somebody was first, and reading tells whom. A store whose reads are of before its
			// writes would tell nobody, again and again.
			c.pause = now + c.cfg.Beat/4
		}
	default:
		c.pause = now + c.cfg.Beat
	}
	c.readDue = now // which tells whose it is
	t.retryAt = now + c.cfg.Beat
	if !t.open {
		c.try = nil
	}
}

// renewed takes the outcome of a beat.
func (c *Core) renewed(now time.Duration, e Event) {
	h := c.held
	_, h.open = e.(Unknown)
	h.due = now + c.cfg.Beat/4
	switch e := e.(type) {
	case Written:
		h.beat, h.until, h.due = e.Version, max(h.until, leaseFrom(h.start, h.lease)), h.start+c.cfg.Beat
		h.lapsed = h.lapsed && now >= h.until
		c.seen.Beat, c.seen.Number, c.seen.Lease, c.seenAt = e.Version, h.number, h.lease, now
		c.newest = max(c.newest, e.Version)
		if !h.leaving {
			c.ledUntil = now + h.lease
		}
	case Conflict:
		switch e.Key {
		case KeyTerm:
			c.readDue = now // which says who leads
		case KeyBeat:
			// Another process beats under this very entry: the memory of one was copied.
			// The term ends for both, and the next begins with another nonce.
			c.yielded = h.nonce
			c.leave(now)
		}
	}
	if h.leaving {
		h.due = now
	}
}

// steppedDown takes the outcome of handing over.
func (c *Core) steppedDown(now time.Duration, e Event) {
	h := c.held
	if e, ok := e.(Written); ok {
		c.held, c.readDue = nil, now
		c.seen.HandedOver, c.seen.For, c.seen.Term, c.seenAt = true, "", e.Version, now
		c.newest = max(c.newest, e.Version)
		return
	}
	h.due = now + c.cfg.Beat/4
	conflict, ok := e.(Conflict)
	if h.tries++; h.tries >= handOverTries || ok && conflict.Key == KeyTerm {
		c.held, c.readDue = nil, now
	}
}

package peer

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// When a coordinator is missed.
const (
	// After is for how long one has to be unheard.
	After = 10 * time.Second
	// Settle is how long after it began to listen a process waits before it misses
	// anybody: a fleet may start at once.
	Settle = time.Minute
	// Asks is how many questions in a row have to go unanswered too. A process that was
	// stopped for a while heard nobody in it, and asked nobody.
	Asks = 3
	// Writes is for how long after its record was another one a coordinator counts as one
	// that writes to the store: it does so each minute.
	Writes = 150 * time.Second
)

// Coordinator is another coordinator that the manifest in force admits, by its record.
type Coordinator struct {
	Key, Name  string
	Addresses  []string
	Revision   uint64 // of its record
	Recovering bool   // it said last that it is in recovery mode
	Stopped    bool   // it said that it stops: nobody misses it
}

// Missed is a coordinator that is missed.
type Missed struct {
	Coordinator
	For    time.Duration // since it was heard, or since this process listens
	Ever   bool          // it was heard by this process
	Writes bool          // it writes to the store still
}

// PresenceWatch is what one process heard of the other coordinators. Its zero value hears nobody
// yet; its methods may be called by several goroutines at once. Times are those of a clock
// that only goes forward.
type PresenceWatch struct {
	mu     sync.Mutex
	since  time.Duration     // it listens; guarded by mu
	others map[string]*other // by key; guarded by mu
}

type other struct {
	Coordinator
	heard      time.Duration // when it answered last, or was first expected to
	ever       bool
	unanswered int           // questions in a row
	wrote      time.Duration // when its record was seen to be another one
}

// Listen says that at now this process begins to listen: it heard nobody before.
func (w *PresenceWatch) Listen(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = now
	for _, o := range w.others {
		o.heard, o.ever, o.unanswered, o.wrote = now, false, 0, now
	}
}

// Expect says at now which other coordinators there are to be. One that is not
// among them any more is not missed.
func (w *PresenceWatch) Expect(all []Coordinator, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := make(map[string]*other, len(all))
	for _, c := range all {
		o := w.others[c.Key]
		if o == nil || o.Stopped && !c.Stopped { // it is new, or comes back
			o = &other{heard: now, wrote: now}
		}
		if o.Revision != c.Revision {
			o.wrote = now
		}
		o.Coordinator = c
		next[c.Key] = o
	}
	w.others = next
}

// Heard notes that the coordinator with key answered at now.
func (w *PresenceWatch) Heard(key string, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.others[key]; o != nil {
		o.heard, o.ever, o.unanswered = now, true, 0
	}
}

// Unanswered notes that the coordinator with key did not answer a question.
func (w *PresenceWatch) Unanswered(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.others[key]; o != nil {
		o.unanswered++
	}
}

// Missed returns who is missed at now, by name.
func (w *PresenceWatch) Missed(now time.Duration) []Missed {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now-w.since < Settle {
		return nil
	}
	var out []Missed
	for _, o := range w.others {
		if o.gone(now) {
			out = append(out, Missed{Coordinator: o.Coordinator, For: now - o.heard, Ever: o.ever, Writes: now-o.wrote < Writes})
		}
	}
	slices.SortStableFunc(out, func(a, b Missed) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key)) })
	return out
}

// Gone reports whether the coordinator with key is not worth a wait at now: it is unheard
// for as long as one that is missed. A coordinator that has just begun to listen waits
// for all.
func (w *PresenceWatch) Gone(key string, now time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.others[key]
	return o != nil && o.gone(now)
}

// Silent returns for how long the coordinator with key is unheard at now, and whether it is
// expected to be heard.
func (w *PresenceWatch) Silent(key string, now time.Duration) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.others[key]
	if o == nil || o.Stopped {
		return 0, false
	}
	return now - o.heard, true
}

func (o *other) gone(now time.Duration) bool {
	return !o.Stopped && o.unanswered >= Asks && now-o.heard >= After
}

// NotHeard returns the names of those that are to be there and that this process does not
// hear at now, sorted: it never heard them, or they are unheard for as long as one that is
// missed. Unlike [PresenceWatch.Missed] it says so from the first moment on, as what is not known.
func (w *PresenceWatch) NotHeard(now time.Duration) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, o := range w.others {
		if !o.Stopped && (!o.ever || o.gone(now)) {
			out = append(out, cmp.Or(o.Name, o.Key))
		}
	}
	slices.Sort(out)
	return out
}

// Counted returns how many coordinators there are to be, this one among them, and how many of
// them are left: all but those that stopped or are gone.
func (w *PresenceWatch) Counted(now time.Duration) (left, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left, all = 1, 1+len(w.others)
	for _, o := range w.others {
		if !o.Stopped && !o.gone(now) && !o.Recovering {
			left++
		}
	}
	return left, all
}

// SettlesIn returns how long from now on it has to listen before it can say who is not
// there; 0 once it can.
func (w *PresenceWatch) SettlesIn(now time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, Settle-(now-w.since))
}

// Settled reports whether at now it has listened for long enough to say who is not there.
func (w *PresenceWatch) Settled(now time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return now-w.since >= Settle
}

// Contact is what can be said of whether a member is heard.
type Contact string

// The contacts.
const (
	Connected Contact = "connected"
	NotHeard  Contact = "not heard"
	Unknown   Contact = "unknown" // one that may hear it did not say
)

// ContactOf judges a member: connected says that somebody who answered hears it, and all
// that everybody answered who may.
func ContactOf(connected, all bool) Contact {
	switch {
	case connected:
		return Connected
	case all:
		return NotHeard
	}
	return Unknown
}

// PresenceState is whether a number that is needed is there.
type PresenceState string

// The states.
const (
	Met      PresenceState = "met"
	NotMet   PresenceState = "not met"
	NotKnown PresenceState = "unknown" // those of whom it is not known decide
)

// Enough judges whether needed members are connected, of whom some are unknown.
func Enough(needed, connected, unknown uint32) PresenceState {
	switch {
	case connected >= needed:
		return Met
	case connected+unknown < needed:
		return NotMet
	}
	return NotKnown
}

package decide

import (
	"time"

	"github.com/fealty-io/fealty/internal/history"
)

// Times of a search. Between rounds it waits twice as long as before.
const (
	// firstPause is the longest that the second round waits: below a second, because
	// after a set the others wait for its setter to be ready.
	firstPause = 500 * time.Millisecond
	lastPause  = 15 * time.Second
	pushPause  = 200 * time.Millisecond
	// HealAfter is how long whoever holds the seed looks for a peer at the head before
	// it makes a new mesh CA key, unless a configuration says otherwise.
	HealAfter = 10 * time.Second
)

// Step is what brings a coordinator nearer to a head.
type Step int

const (
	// FromMemory: seed and mesh CA key are here. Adopt the head.
	FromMemory Step = iota
	// AskPeers for the secrets of the head.
	AskPeers
	// AskKeepers to open what they sealed for the head.
	AskKeepers
	// Rekey: write a transition with a new mesh CA key.
	Rekey
	// Wait until the time that comes with it, or until something happens.
	Wait
)

func (s Step) String() string {
	return [...]string{"from memory", "ask peers", "ask keepers", "rekey", "wait"}[s]
}

// Found is what a step brought that did not end the search.
type Found int

const (
	// Nothing: nobody was at the head, nothing opened, no transition was written.
	// Anything found on the way, such as a seed, is in memory.
	Nothing Found = iota
	// Nobody: there is no peer to ask.
	Nobody
)

// Search is the way back to a head, in rounds: memory, peers, keepers, a new mesh CA
// key. Owners may come at any time. The zero Search has not begun.
type Search struct {
	// HealAfter is how long to look for a peer at the head while the seed is here;
	// zero means the constant.
	HealAfter time.Duration

	// Random returns a number in [0, 1), so that many do not ask at once; nil means no
	// jitter.
	Random func() float64

	head   history.Hash
	begun  bool
	since  time.Duration // when it began
	asked  time.Duration // when the last round began
	round  int
	due    time.Duration // of the next round
	step   Step          // within a round; Wait: between two
	nobody bool          // there was no peer to ask in this round
}

// Next says what to do at now, which is on any clock that only goes forward, to come
// to head. With Wait comes for how long. admitted is whether the manifest of head
// admits this coordinator: it cannot serve otherwise, and must not move the head.
//
// Each step but Wait is followed by [Search.Ended], or by the adoption of head.
func (s *Search) Next(now time.Duration, m Memory, head Head, admitted bool) (Step, time.Duration) {
	if !s.begun || s.head != head.Hash {
		*s = Search{HealAfter: s.HealAfter, Random: s.Random, head: head.Hash, begun: true, since: now, due: now, step: Wait}
	}
	if s.step == Wait && now >= s.due {
		s.step, s.asked = AskPeers, now
		s.round++
	}
	if s.step == Rekey && !s.heals(now, m, head, admitted) {
		s.pause(now)
		// A coordinator that can heal looks again when it may.
		if heal := s.since + s.healAfter(); admitted && m.HoldsSeed(head.Seed) && now < heal {
			s.due = min(s.due, heal)
		}
	}
	switch {
	case s.step == Wait:
		return Wait, s.due - now
	case m.HoldsSeed(head.Seed) && m.HoldsMesh(head.Mesh):
		return FromMemory, 0
	}
	return s.step, 0
}

// heals reports whether it is time for a new mesh CA key. Peers were asked in this very
// round: one that is at the head wins.
func (s *Search) heals(now time.Duration, m Memory, head Head, admitted bool) bool {
	return admitted && m.HoldsSeed(head.Seed) && (s.nobody || now-s.since >= s.healAfter())
}

func (s *Search) healAfter() time.Duration {
	if s.HealAfter > 0 {
		return s.HealAfter
	}
	return HealAfter
}

// pause ends a round.
func (s *Search) pause(now time.Duration) {
	d := pauseAfter(s.round)
	if s.Random != nil {
		d -= time.Duration(s.Random() * float64(d/2))
	}
	s.step, s.due = Wait, now+d
}

// pauseAfter is how long to wait after so many rounds.
func pauseAfter(round int) time.Duration {
	d := firstPause
	for range min(round-1, 10) {
		d = min(2*d, lastPause)
	}
	return d
}

// Ended says that step, which Next returned, did not bring the head into force by now,
// and what it found.
func (s *Search) Ended(now time.Duration, step Step, found Found) {
	switch step {
	case FromMemory, Rekey:
		s.pause(now) // what is here did not come into force, or the head was not moved
	case AskPeers:
		s.step, s.nobody = AskKeepers, found == Nobody
	case AskKeepers:
		s.step = Rekey
	}
}

// Push makes the next round due, because a peer may be at the head now: at once, but
// not more often than a flood of notices may make it.
func (s *Search) Push(now time.Duration) { s.due = min(s.due, max(now, s.asked+pushPause)) }

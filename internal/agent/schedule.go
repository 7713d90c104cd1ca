package agent

import (
	"time"

	"github.com/fealty-io/fealty/internal/identity"
)

// Bounds on the pauses after a renewal that failed.
const (
	// leastPause is below every pause: a certificate about to end is no reason to ask
	// without a rest.
	leastPause = time.Second
	// pausePart is of what is left of the certificate the part that one pause takes at
	// most, and pauseJitter the part of that by which it is shorter at random.
	pausePart   = 3
	pauseJitter = 0.3
)

// action is what an identity needs.
type action int

const (
	renewing  action = iota // over mTLS, by the identity itself
	rejoining               // by a proof of its key, because the identity is not accepted
)

func (a action) String() string {
	if a == rejoining {
		return "rejoin"
	}
	return "renewal"
}

// schedule is all that decides when a node renews. It is pure.
type schedule struct {
	notBefore, notAfter time.Time // of the certificate
	every               time.Duration
	spread              float64   // drawn once for each certificate, within ±renewSpread
	start               time.Time // nothing before it that is not urgent
	pending             bool      // a key may be certified without our knowing
	demanded            time.Time // a coordinator asks for a renewal at this time, since the last attempt; zero: no
	asked               bool      // a person asks
	unwelcome           bool      // the last answer was that the certificate is not accepted
	failed              time.Time // when retry was set
	retry               time.Time // not before, after a failure; see rests
}

// next returns what is to be done, and when.
func (s schedule) next(now time.Time) (action, time.Time) {
	act, at := renewing, s.due()
	switch {
	case s.unwelcome || now.Before(s.notBefore) || !now.Before(s.notAfter):
		act, at = rejoining, now
	case s.pending:
		at = now
	}
	if act == renewing && at.Before(s.start) && !s.pending {
		at = s.start
	}
	if at.Before(s.retry) && s.rests(now) {
		at = s.retry
	}
	if !s.demanded.IsZero() && s.demanded.Before(at) {
		at = s.demanded
	}
	if s.asked {
		at = now
	}
	if act == renewing && at.After(s.notAfter) {
		at = s.notAfter // to rejoin then
	}
	return act, at
}

// rests reports whether the pause after the last failure counts. It does not once the
// certificate ended that was valid then: how renewals fare says nothing of a rejoin.
// Nor does it if the failure lies ahead, because a clock was wrong.
func (s schedule) rests(now time.Time) bool {
	if s.failed.After(now) {
		return false
	}
	return now.Before(s.notAfter) || !s.failed.Before(s.notAfter)
}

// due is when the certificate is renewed if nothing else happens: after the
// interval, and in any case with a third of its life left. Both count from when it was
// made: a short certificate begins so long before that, for its size, that it would be
// due at once, and so would be the next.
func (s schedule) due() time.Time {
	every := time.Duration(float64(s.every) * (1 + s.spread))
	made := s.notBefore.Add(min(identity.Backdate, s.notAfter.Sub(s.notBefore)/3))
	return made.Add(min(every, s.notAfter.Sub(made)*2/3))
}

// fail returns s after an attempt that failed at now, which is to be left alone for
// pause. That is bounded by a part of what is left of the certificate, so that however
// often it fails the next attempt comes while it lasts. luck is within [0, 1).
func (s schedule) fail(now time.Time, pause time.Duration, luck float64) schedule {
	s.failed, s.retry, s.demanded = now, now.Add(s.within(now, pause, luck)), time.Time{}
	return s
}

// within bounds a pause that begins at now.
func (s schedule) within(now time.Time, pause time.Duration, luck float64) time.Duration {
	if left := s.notAfter.Sub(now); left > 0 && pause > left/pausePart {
		pause = time.Duration(float64(left/pausePart) * (1 - pauseJitter*luck))
	}
	return max(pause, leastPause)
}

// renewed returns s after an attempt that succeeded, with a spread of its own.
func (s schedule) renewed(spread float64) schedule {
	s.unwelcome, s.failed, s.retry, s.demanded, s.spread = false, time.Time{}, time.Time{}, time.Time{}, spread
	return s
}

// These tests are inside the package for its schedule, which nothing else shows as
// exactly.
package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/platform/clock"
)

func TestSchedule(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC).Add(d) }
	base := schedule{notBefore: at(-identity.Backdate), notAfter: at(24 * time.Hour), every: 30 * time.Minute,
		start: at(0)}
	for _, c := range []struct {
		name string
		edit func(*schedule)
		now  time.Duration
		want action
		at   time.Duration
	}{
		{"fresh", func(*schedule) {}, time.Minute, renewing, 30 * time.Minute},
		{"spread", func(s *schedule) { s.spread = 0.1 }, time.Minute, renewing, 33 * time.Minute},
		{"overdue", func(*schedule) {}, time.Hour, renewing, 30 * time.Minute},
		{"overdue at start", func(s *schedule) { s.start = at(61 * time.Minute) }, time.Hour, renewing,
			61 * time.Minute},
		{"an interval beyond the life", func(s *schedule) { s.every = 48 * time.Hour }, time.Minute, renewing,
			16 * time.Hour},
		{"an answer was lost", func(s *schedule) { s.pending = true }, time.Minute, renewing, time.Minute},
		{"an answer was lost, at start", func(s *schedule) { s.pending, s.start = true, at(time.Hour) }, time.Minute,
			renewing, time.Minute},
		{"demanded", func(s *schedule) { s.demanded = at(5 * time.Minute) }, time.Minute, renewing, 5 * time.Minute},
		{"demanded too late", func(s *schedule) { s.demanded = at(time.Hour) }, time.Minute, renewing,
			30 * time.Minute},
		{"asked", func(s *schedule) { s.asked = true }, time.Minute, renewing, time.Minute},
		{"failed", func(s *schedule) { s.retry = at(40 * time.Minute) }, 35 * time.Minute, renewing, 40 * time.Minute},
		{"failed, demanded since", func(s *schedule) { s.retry, s.demanded = at(40*time.Minute), at(36*time.Minute) },
			35 * time.Minute, renewing, 36 * time.Minute},
		{"failed, asked", func(s *schedule) { s.retry, s.asked = at(40*time.Minute), true }, 35 * time.Minute, renewing,
			35 * time.Minute},
		{"ended", func(*schedule) {}, 24 * time.Hour, rejoining, 24 * time.Hour},
		{"ended since it failed", func(s *schedule) { s.failed, s.retry = at(23*time.Hour), at(25*time.Hour) },
			24 * time.Hour, rejoining, 24 * time.Hour},
		{"ended, and failed after that", func(s *schedule) { s.failed, s.retry = at(24*time.Hour), at(25*time.Hour) },
			24*time.Hour + time.Second, rejoining, 25 * time.Hour},
		{"failed in a future that was none", func(s *schedule) {
			s.failed, s.retry = at(1000*time.Hour),
				at(1001*time.Hour)
		}, 35 * time.Minute, renewing, 30 * time.Minute},
		{"a pause beyond the end", func(s *schedule) { s.retry = at(25 * time.Hour) }, 23 * time.Hour, renewing,
			24 * time.Hour},
		{"before its time", func(*schedule) {}, -time.Hour, rejoining, -time.Hour},
		{"not accepted", func(s *schedule) { s.unwelcome = true }, time.Minute, rejoining, time.Minute},
		{"not accepted, failed", func(s *schedule) { s.unwelcome, s.retry = true, at(time.Hour) }, time.Minute,
			rejoining, time.Hour},
	} {
		s := base
		c.edit(&s)
		if act, when := s.next(at(c.now)); act != c.want || !when.Equal(at(c.at)) {
			t.Errorf("%s: %v at %v, want %v at %v", c.name, act, when.Sub(at(0)), c.want, c.at)
		}
	}
}

// A certificate that was just made is not due, however short it is: it begins before it
// was made, and that counts for nothing.
func TestShortCertificatesAreNotDueAtOnce(t *testing.T) {
	made := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	for _, ttl := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, time.Hour, 25 * time.Hour} {
		for _, spread := range []float64{-renewSpread, 0, renewSpread} {
			s := schedule{notBefore: made.Add(-identity.Backdate), notAfter: made.Add(ttl),
				every: min(30*time.Minute, ttl/2), spread: spread}
			_, at := s.next(made)
			if least, most := ttl/3, ttl*2/3; at.Sub(made) > most || at.Sub(made) < min(least, 25*time.Minute) {
				t.Errorf("one of %v is renewed after %v", ttl, at.Sub(made))
			}
		}
	}
}

// However often renewals fail, and whatever pauses that asks for, the next attempt is at
// most a third of what is left away and no sooner than after a second; once the
// certificate ended it is at once, whatever was set before.
func TestPausesFitTheCertificate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
		life := time.Duration(rapid.Int64Range(int64(time.Second), int64(25*time.Hour)).Draw(rt, "life"))
		s := schedule{notBefore: at, notAfter: at.Add(life), every: 30 * time.Minute, pending: true}
		now := at.Add(time.Duration(rapid.Int64Range(0, int64(life)-1).Draw(rt, "first")))
		for now.Before(s.notAfter) {
			pause := time.Duration(rapid.Int64Range(0, int64(2*clock.Lasting)).Draw(rt, "pause"))
			s.unwelcome = rapid.Bool().Draw(rt, "unwelcome")
			s = s.fail(now, pause, rapid.Float64Range(0, 0.999).Draw(rt, "luck"))
			act, next := s.next(now)
			left, wait := s.notAfter.Sub(now), next.Sub(now)
			if wait > max(left/3, leastPause) || wait < min(leastPause, left) {
				rt.Fatalf("with %v left the next attempt is in %v", left, wait)
			}
			if rest := s.notAfter.Sub(next); rest > leastPause && rest < left*2/3-time.Second {
				rt.Fatalf("of %v %v are left at the next attempt", left, rest)
			}
			if want := s.unwelcome; (act == rejoining) != want {
				rt.Fatalf("it is a %v", act)
			}
			now = next
		}
		if act, next := s.next(s.notAfter); act != rejoining || next.After(s.notAfter) {
			rt.Fatalf("at the end there is a %v in %v", act, next.Sub(s.notAfter))
		}
		// From then on its own failures count.
		s = s.fail(s.notAfter, time.Minute, 0)
		if act, next := s.next(s.notAfter); act != rejoining || next.Sub(s.notAfter) != time.Minute {
			rt.Fatalf("after a rejoin that failed there is a %v in %v", act, next.Sub(s.notAfter))
		}
	})
}

// Pauses that the certificate bounds differ: who failed together does not ask together.
func TestBoundedPausesAreSpread(t *testing.T) {
	now := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	s := schedule{notBefore: now, notAfter: now.Add(3 * time.Minute)}
	first, last := s.within(now, time.Hour, 0), s.within(now, time.Hour, 0.999)
	if first != time.Minute || last > 43*time.Second {
		t.Errorf("pauses are from %v to %v", last, first)
	}
}

// Answers that only a person can change are first doubted, and then left alone.
func TestSeldom(t *testing.T) {
	var s clock.Seldom
	most := []time.Duration{15, 30, 60, 120, 240, 300, 300, 300}
	for i, m := range most {
		m *= time.Second
		if got := s.Next(); got < m*8/10 || got > m*12/10 {
			t.Errorf("pause %d is %v, want around %v", i, got, m)
		}
	}
	s.Reset()
	if got := s.Next(); got > 18*time.Second {
		t.Errorf("after a success the first pause is %v", got)
	}
}

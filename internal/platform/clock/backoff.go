// Package clock has what loops need of time: pauses between retries, the time of a last event, and
// a clock that nobody can set.
//
// [Backoff] and [Seldom] give random pauses that grow, so that members which all lost their
// coordinators at the same moment do not come back at the same moment. [BootClock] counts from the
// start of the machine and goes on while it sleeps (CLOCK_BOOTTIME of Linux; elsewhere there is
// none). [Last] keeps when something happened last, for concurrent use.
package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between tries.
const (
	Base = 200 * time.Millisecond
	Cap  = 30 * time.Second
	// Lasting is the middle of the pauses after an answer that only a person
	// can change.
	Lasting = 5 * time.Minute
	// firstLasting is the middle of the first of them, and each is twice the one before:
	// one wrong answer, as of a store that is being put back, is soon over.
	firstLasting = 15 * time.Second
)

// Backoff gives the pauses between tries: exponential with full jitter, so that a
// fleet that lost its coordinators does not come back as one.
type Backoff struct{ tries int }

// Ceiling is the longest that the next pause may be.
func (b *Backoff) Ceiling() time.Duration {
	d := Base
	for range b.tries {
		if d *= 2; d >= Cap {
			return Cap
		}
	}
	return d
}

// Next returns a pause within [0, ceiling), and doubles the ceiling.
func (b *Backoff) Next() time.Duration {
	d := rand.N(b.Ceiling())
	b.tries = min(b.tries+1, 16)
	return d
}

// Reset has the pauses begin anew.
func (b *Backoff) Reset() { b.tries = 0 }

// Seldom gives the pauses after answers that only a person can change.
type Seldom struct{ tries int }

// Next returns a pause, and doubles the one after it.
func (s *Seldom) Next() time.Duration {
	d := min(firstLasting<<s.tries, Lasting)
	s.tries = min(s.tries+1, 16)
	return Around(d, 0.2)
}

// Reset has the pauses begin anew.
func (s *Seldom) Reset() { s.tries = 0 }

// Around returns d give or take the part of it.
func Around(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1)))
}

// UpTo returns a pause within [0, d); zero for none.
func UpTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// Sleep waits for d, or until ctx ends or wake has something.
func Sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() // several may be ready
}

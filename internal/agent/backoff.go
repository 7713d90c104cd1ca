package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between tries.
const (
	backoffBase = 200 * time.Millisecond
	backoffCap  = 30 * time.Second
	// lastingPause is the middle of the pauses after an answer that only a person
	// can change.
	lastingPause = 5 * time.Minute
	// firstLasting is the middle of the first of them, and each is twice the one before:
	// one wrong answer, as of a store that is being put back, is soon over.
	firstLasting = 15 * time.Second
)

// backoff gives the pauses between tries: exponential with full jitter, so that a
// fleet that lost its coordinators does not come back as one.
type backoff struct{ tries int }

// ceiling is the longest that the next pause may be.
func (b *backoff) ceiling() time.Duration {
	d := backoffBase
	for range b.tries {
		if d *= 2; d >= backoffCap {
			return backoffCap
		}
	}
	return d
}

// next returns a pause within [0, ceiling), and doubles the ceiling.
func (b *backoff) next() time.Duration {
	d := rand.N(b.ceiling())
	b.tries = min(b.tries+1, 16)
	return d
}

func (b *backoff) reset() { b.tries = 0 }

// seldom gives the pauses after answers that only a person can change.
type seldom struct{ tries int }

func (s *seldom) next() time.Duration {
	d := min(firstLasting<<s.tries, lastingPause)
	s.tries = min(s.tries+1, 16)
	return around(d, 0.2)
}

func (s *seldom) reset() { s.tries = 0 }

// around returns d give or take the part of it.
func around(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1)))
}

// upTo returns a pause within [0, d); zero for none.
func upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// sleep waits for d, or until ctx ends or wake has something.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() // several may be ready
}

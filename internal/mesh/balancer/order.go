package balancer

import (
	"slices"
	"sync"
	"time"
)

// Pauses after which an endpoint that failed is again as good as others; each doubles the last.
const (
	firstPause = time.Second
	MaxPause   = 30 * time.Second
)

// Order says in which order a client that dials itself tries the endpoints of a set. The zero
// value knows of no failure.
type Order struct {
	mu     sync.Mutex
	turn   int                // guarded by mu
	failed map[string]failure // by endpoint; guarded by mu
}

type failure struct {
	pause time.Duration
	until time.Time
}

// Of returns set so that each endpoint is first in its turn, and those last that failed lately.
func (o *Order) Of(set []string, now time.Time) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(set) < 2 {
		return set
	}
	o.turn = (o.turn + 1) % MaxEndpoints
	at := o.turn % len(set)
	out := slices.Concat(set[at:], set[:at])
	resting := func(e string) int {
		if f, ok := o.failed[e]; ok && now.Before(f.until) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b string) int { return resting(a) - resting(b) })
	return out
}

// Failed has an endpoint tried after all others for a while.
func (o *Order) Failed(endpoint string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := failure{pause: firstPause}
	if before, ok := o.failed[endpoint]; ok {
		f.pause = min(2*before.pause, MaxPause)
	}
	f.until = now.Add(f.pause)
	o.failed = put(o.failed, endpoint, f)
}

// Good forgets that an endpoint failed.
func (o *Order) Good(endpoint string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failed, endpoint)
}

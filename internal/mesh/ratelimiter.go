package mesh

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxNetworks bounds the networks whose rate is remembered.
const maxNetworks = 4096

// RateLimiter limits how many expensive requests clients of one network begin in a second. It
// remembers a bounded number of networks. Several goroutines may use it at once.
type RateLimiter struct {
	rate     rate.Limit
	burst    int
	patience time.Duration

	mu    sync.Mutex
	by    map[string]*list.Element // of *network; guarded by mu
	order *list.List               // least recent first; guarded by mu
}

type network struct {
	name    string
	limiter *rate.Limiter
}

// NewRateLimiter returns what lets clients of each network begin perSecond times in a second, and burst
// times at once; nobody waits for longer than patience.
func NewRateLimiter(perSecond, burst int, patience time.Duration) *RateLimiter {
	return &RateLimiter{rate: rate.Limit(perSecond), burst: burst, patience: patience,
		by: make(map[string]*list.Element), order: list.New()}
}

// Reserve returns when a client of a network begins, unless that is too late. A client
// that is refused takes nothing of what the network may begin: where more come than that, as many
// as it may begin do.
func (b *RateLimiter) Reserve(name string, now time.Time) (wait *rate.Reservation, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	el, ok := b.by[name]
	if ok {
		b.order.MoveToBack(el)
	} else {
		if b.order.Len() >= maxNetworks {
			oldest := b.order.Front()
			delete(b.by, oldest.Value.(*network).name)
			b.order.Remove(oldest)
		}
		el = b.order.PushBack(&network{name, rate.NewLimiter(b.rate, b.burst)})
		b.by[name] = el
	}
	wait = el.Value.(*network).limiter.ReserveN(now, 1)
	if wait.OK() && wait.DelayFrom(now) <= b.patience {
		return wait, true
	}
	// A reservation is given back whole for as long as none came after it: nobody else
	// reserves until b.mu is free.
	wait.CancelAt(now)
	return nil, false
}

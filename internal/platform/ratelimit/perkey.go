package ratelimit

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// MaxSources is how many sources a limit by address remembers.
const MaxSources = 4096

// PerKey limits how often each key does something. It remembers a bounded number of keys:
// the one unheard of for longest is forgotten first, and may do its burst again.
type PerKey struct {
	limit   rate.Limit
	burst   int
	maximum int

	mu    sync.Mutex
	keys  map[string]*list.Element // of *keyed; guarded by mu
	order *list.List               // least recent first; guarded by mu
}

type keyed struct {
	key     string
	limiter *rate.Limiter
}

// NewPerKey lets each key do limit things per second, and burst at once. It remembers
// maximum keys.
func NewPerKey(limit rate.Limit, burst, maximum int) *PerKey {
	return &PerKey{
		limit: limit, burst: burst, maximum: maximum,
		keys: make(map[string]*list.Element), order: list.New(),
	}
}

// Limit returns what each key may do per second, and at once.
func (l *PerKey) Limit() (perSecond rate.Limit, burst int) { return l.limit, l.burst }

// Len returns how many keys are remembered.
func (l *PerKey) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.order.Len()
}

// Alive returns once nobody holds the lock that every call takes: a watchdog calls it.
func (l *PerKey) Alive() { l.Len() }

// Allow reports whether key may do one more thing now, and counts it if so.
func (l *PerKey) Allow(key string, now time.Time) bool { return l.AllowN(key, now, 1) }

// AllowN reports whether key may do n more things now, and counts them all if so, or none.
func (l *PerKey) AllowN(key string, now time.Time, n int) bool {
	return l.of(key).AllowN(now, n)
}

// Reserve is [PerKey.AllowN] for what may come to nothing yet: undo makes it uncounted, at the same now.
func (l *PerKey) Reserve(key string, now time.Time, n int) (undo func(), ok bool) {
	r := l.of(key).ReserveN(now, n)
	undo = func() { r.CancelAt(now) }
	if !r.OK() || r.DelayFrom(now) > 0 {
		undo()
		return nil, false
	}
	return undo, true
}

// Charge counts n things that key did already, at most what it may do at once: it does nothing more until
// they are paid for.
func (l *PerKey) Charge(key string, now time.Time, n int) {
	l.of(key).ReserveN(now, min(n, l.burst))
}

// of returns the limit of one key.
func (l *PerKey) of(key string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	el, ok := l.keys[key]
	if ok {
		l.order.MoveToBack(el)
	} else {
		if l.order.Len() >= l.maximum {
			oldest := l.order.Front()
			delete(l.keys, oldest.Value.(*keyed).key)
			l.order.Remove(oldest)
		}
		el = l.order.PushBack(&keyed{key: key, limiter: rate.NewLimiter(l.limit, l.burst)})
		l.keys[key] = el
	}
	return el.Value.(*keyed).limiter
}

package clock

import (
	"sync"
	"time"
)

// Last is when something last happened. Its zero value says that it never did. It is for
// concurrent use.
type Last struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// Set notes that it happened at t, be that before what was noted last or after it.
func (l *Last) Set(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = t
}

// Get returns when it last happened; the zero time if it never did.
func (l *Last) Get() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// Age is how long ago it happened, seen from now. A wall clock may be set back, and a
// monotonic one stands still while a machine sleeps, so that the longer of the two counts.
func (l *Last) Age(now time.Time) time.Duration {
	at := l.Get()
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

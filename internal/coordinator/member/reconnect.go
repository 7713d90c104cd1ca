package member

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// ReconnectList is of those who wait. Its methods may be called by several goroutines at once.
type ReconnectList struct {
	mu      sync.Mutex
	waiting map[*ReconnectWait]struct{} // guarded by mu
}

// ReconnectWait is one who waits.
type ReconnectWait struct {
	end  time.Time
	told time.Time // the last time; zero: never; guarded by the list's mu
	now  chan struct{}
}

// Now has something when it is time to come back. That of nil never has.
func (c *ReconnectWait) Now() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.now
}

// Add notes that somebody waits whose time is over at end, until the call is removed.
func (l *ReconnectList) Add(end time.Time) *ReconnectWait {
	c := &ReconnectWait{end: end, now: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = make(map[*ReconnectWait]struct{})
	}
	l.waiting[c] = struct{}{}
	return c
}

// Remove ends a call; that of nil does nothing.
func (l *ReconnectList) Remove(c *ReconnectWait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, c)
}

// Len is how many wait.
func (l *ReconnectList) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Tell tells up to most of those who wait, whose time is over first, that it is time to
// come back, but nobody twice within again. It returns how many it told.
func (l *ReconnectList) Tell(now time.Time, most int, again time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*ReconnectWait
	for c := range l.waiting {
		if c.told.IsZero() || now.Sub(c.told).Abs() >= again {
			due = append(due, c)
		}
	}
	slices.SortFunc(due, func(x, y *ReconnectWait) int { return cmp.Compare(x.end.UnixNano(), y.end.UnixNano()) })
	due = due[:min(len(due), most)]
	for _, c := range due {
		c.told = now
		select {
		case c.now <- struct{}{}:
		default: // it was told, and did not look yet
		}
	}
	return len(due)
}

package member

import (
	"sync"
	"time"
)

// MaxClosed is how many connections are remembered. A count of more than these is too low.
const MaxClosed = 4096

// ClosedLog holds the connections that were ended last. Its zero value is ready; its methods
// may be called by several goroutines at once.
type ClosedLog struct {
	mu   sync.Mutex
	last []connection // the one with number n stands at n % MaxClosed; guarded by mu
	next uint64       // the number of the next one; guarded by mu
}

type connection struct {
	of string
	at time.Time
}

// Add notes at now that a connection of somebody was ended.
func (l *ClosedLog) Add(of string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := connection{of, now}
	if len(l.last) < MaxClosed {
		l.last = append(l.last, c)
	} else {
		l.last[l.next%MaxClosed] = c
	}
	l.next++
}

// Mark returns a number for [ClosedLog.After]: what is noted from here on comes after it.
func (l *ClosedLog) Mark() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// After counts the connections of somebody that were ended after a mark.
func (l *ClosedLog) After(of string, mark uint64) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(of, mark, time.Time{})
}

// Since counts the connections of somebody that were ended at a time or after it.
func (l *ClosedLog) Since(of string, at time.Time) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(of, 0, at)
}

// count is called with mu held.
func (l *ClosedLog) count(of string, mark uint64, at time.Time) uint32 {
	oldest := l.next - uint64(len(l.last))
	n := uint32(0)
	for i := max(mark, oldest); i < l.next; i++ {
		if c := l.last[i%MaxClosed]; c.of == of && !c.at.Before(at) {
			n++
		}
	}
	return n
}

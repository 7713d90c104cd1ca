package devcluster

import (
	"sync/atomic"
	"time"
)

// movedClock is the clock of a whole cluster: the machine's, and how far a story
// moved it on. It only moves on: for all parts alike, time passed.
type movedClock struct{ by atomic.Int64 }

func (m *movedClock) now() time.Time { return time.Now().Add(time.Duration(m.by.Load())) }

// pass lets d pass at once.
func (m *movedClock) pass(d time.Duration) { m.by.Add(int64(d)) }

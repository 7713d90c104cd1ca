package cluster

import (
	"sync/atomic"
	"time"
)

// movedClock is the clock of a whole cluster: the machine's, and how far
// [Cluster.Pass] moved it on. It only moves on: for all parts alike, time passed.
type movedClock struct{ by atomic.Int64 }

func (m *movedClock) now() time.Time { return time.Now().Add(time.Duration(m.by.Load())) }

// pass lets d pass at once.
func (m *movedClock) pass(d time.Duration) { m.by.Add(int64(d)) }

// partClock is the clock of one part, which may be set wrong.
type partClock struct {
	cluster *movedClock
	skew    atomic.Int64 // nanoseconds
}

func (p *partClock) now() time.Time { return p.cluster.now().Add(time.Duration(p.skew.Load())) }

// set makes it wrong by d; 0 makes it right.
func (p *partClock) set(d time.Duration) { p.skew.Store(int64(d)) }

// clockOf returns the clock of a coordinator or member, which outlives its process.
func (c *Cluster) clockOf(name string) *partClock {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.clocks[name]
	if p == nil {
		p = &partClock{cluster: &c.clock}
		c.clocks[name] = p
	}
	return p
}

// Now is the time of the cluster.
func (c *Cluster) Now() time.Time { return c.clock.now() }

// Pass lets d pass at once, for every part alike.
func (c *Cluster) Pass(d time.Duration) {
	c.means.Passed(d)
	c.clock.pass(d)
}

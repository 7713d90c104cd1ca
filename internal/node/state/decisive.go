package state

import (
	"sync"
	"sync/atomic"
)

// Decisive is a value that the guard of degraded mode decides by, beside the time; see
// package guard. Another one takes its place by Store alone, so that none does before
// it is noted what the old one came to: a machine that slept may hear news before it
// looks at the clock again, and after them nobody can tell how long it was alone.
type Decisive[T any] struct {
	current       atomic.Pointer[T]
	before, after func() // are called around each change, by its caller; nil: nobody minds yet
}

// Load returns the value in use, which nobody changes; nil before the first Store.
func (d *Decisive[T]) Load() *T { return d.current.Load() }

// Store puts next in the place of the value in use. The caller holds what guards changes.
func (d *Decisive[T]) Store(next *T) {
	if d.before != nil {
		d.before()
	}
	d.current.Store(next)
	if d.after != nil {
		d.after()
	}
}

// Tend has before and after called around each change from now on.
func (d *Decisive[T]) Tend(before, after func()) { d.before, d.after = before, after }

// Notifier wakes all who wait for it. The zero value is ready.
type Notifier struct {
	mu sync.Mutex
	ch chan struct{} // closed when it notifies; guarded by mu
}

// Wait returns a channel that is closed at the next Notify. Take it before looking.
func (n *Notifier) Wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

// Notify wakes all who wait.
func (n *Notifier) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

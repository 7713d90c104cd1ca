package coordinator

import (
	"context"
	"sync"
	"time"
)

// news tells any number of waiters that something changed.
type news struct {
	mu sync.Mutex
	ch chan struct{} // closed at the next change; guarded by mu
}

// wait returns a channel that is closed at the next change. Take it before
// looking at what may change.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

// tell wakes everybody who waits.
func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() // both may be ready
	case <-ctx.Done():
		return ctx.Err()
	}
}
